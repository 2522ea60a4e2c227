//! The package of Fedora, SUSE and others, installed by rpm.

use std::path::{Path, PathBuf};
use std::process::Command;

use gpulimit_programs::world::{World, finish, text};

use super::built::{self, NEW, OLD};
use super::life::{self, CAP, Installation};
use super::system::System;

/// A system of another kind has no rpm database, and so none of the packages that this one needs:
/// rpm does not know of the C library there. Debian's rpm has its database in the home directory,
/// and needs an option to install packages into the system.
fn rpm(system: &System, arguments: &str) -> String {
    let debian = match Path::new("/etc/debian_version").exists() {
        true => "--force-debian",
        false => "",
    };
    system.done(&format!(
        "rpm {debian} --dbpath /var/lib/rpm --nodeps {arguments}"
    ))
}

fn place() -> Option<(World, System, [PathBuf; 2])> {
    let packages = built::rpm()?;
    let world = World::with(CAP, &[("GPULIMIT_SIM_KILL_LAG_MS", "0")]);
    let system = System::new(&world)?;
    Some((world, system, packages))
}

#[test]
fn programs_survive_an_upgrade_and_the_removal() {
    let Some((world, system, [old, new])) = place() else {
        return;
    };
    rpm(&system, &format!("-i {}", old.display()));
    assert_eq!(
        system.done("rpm --dbpath /var/lib/rpm -q gpulimit | cut -d . -f 1-3"),
        format!("gpulimit-{OLD}-1\n")
    );
    assert_eq!(
        system.done("rpm --dbpath /var/lib/rpm -V --nodeps gpulimit"),
        ""
    );
    system.made_root();
    system.made_logs();
    let installation = Installation {
        prefix: Path::new("/usr"),
        enter: &|command| system.enter(&command),
    };
    let upgrade = || {
        system.done("rm /run/asked");
        rpm(&system, &format!("-U {}", new.display()));
        assert_eq!(
            system.done("rpm --dbpath /var/lib/rpm -q gpulimit | cut -d . -f 1-3"),
            format!("gpulimit-{NEW}-1\n")
        );
        let asked = system.done("cat /run/asked");
        assert!(asked.contains("daemon-reload"), "{asked}");
        assert!(asked.contains("reload gpulimit-apply.service"), "{asked}");
        assert!(
            asked.contains("try-restart gpulimit-report.timer gpulimit-serve.service"),
            "{asked}"
        );
    };
    let remove = || {
        rpm(&system, "-e gpulimit");
        let asked = system.done("cat /run/asked");
        assert!(
            asked.contains("disable --now gpulimit-report.timer"),
            "{asked}"
        );
    };
    life::from_start_to_end(&world, &installation, &upgrade, &remove);
    let added = system.added();
    assert_eq!(added, [""; 0]);
}

#[test]
fn the_system_wide_entry_is_removed_with_the_package() {
    let Some((world, system, [old, new])) = place() else {
        return;
    };
    rpm(&system, &format!("-i {}", old.display()));
    let upgrade = || {
        rpm(&system, &format!("-U {}", new.display()));
    };
    let remove = || rpm(&system, "-e gpulimit");
    life::system_wide(&world, &system, "/usr", &upgrade, &remove);
}

#[test]
fn the_package_needs_only_the_c_library_and_a_shell() {
    let Some([_, new]) = built::rpm() else { return };
    let mut command = Command::new("rpm");
    command.args(["-qp", "--requires"]).arg(&new);
    let needs = text(&finish(command).stdout);
    let known = [
        "ld-linux",
        "libc.so.6",
        "libdl.so.2",
        "libm.so.6",
        "libpthread.so.0",
        "librt.so.1",
        "libgcc_s.so.1",
        "rpmlib(",
        "rtld(",
        "/bin/sh",
    ];
    for line in needs.lines() {
        assert!(known.iter().any(|known| line.starts_with(known)), "{line}");
    }
    let mut command = Command::new("rpm");
    command.args(["-qp", "--provides"]).arg(&new);
    let provides = text(&finish(command).stdout);
    assert!(
        provides.lines().all(|line| line.starts_with("gpulimit")),
        "{provides}"
    );
}
