//! Debian's package, by dpkg.

use std::path::{Path, PathBuf};

use gpulimit_programs::world::World;

use super::built::{self, NEW, OLD};
use super::life::{self, CAP, Installation};
use super::system::System;

fn place() -> Option<(World, System, [PathBuf; 2])> {
    let packages = built::deb()?;
    if !Path::new("/var/lib/dpkg/status").exists() {
        eprintln!("SKIPPED: this system is not one of dpkg");
        return None;
    }
    let world = World::with(CAP, &[("GPULIMIT_SIM_KILL_LAG_MS", "0")]);
    let system = System::new(&world)?;
    Some((world, system, packages))
}

fn install(system: &System, package: &Path) -> String {
    system.done(&format!("dpkg -i {}", package.display()))
}

fn version(system: &System) -> String {
    system.done("dpkg-query -W -f '${Status} ${Version}' gpulimit")
}

#[test]
fn programs_live_through_an_upgrade_and_the_end() {
    let Some((world, system, [old, new])) = place() else {
        return;
    };
    install(&system, &old);
    assert_eq!(version(&system), format!("install ok installed {OLD}-1"));
    assert_eq!(system.done("dpkg --verify gpulimit"), "");
    system.made_root();
    let installation = Installation {
        prefix: Path::new("/usr"),
        enter: &|command| system.enter(&command),
    };
    let upgrade = || {
        // With a policy in force.
        system.done("touch /run/asked; rm /run/asked");
        install(&system, &new);
        assert_eq!(version(&system), format!("install ok installed {NEW}-1"));
        let asked = system.done("cat /run/asked");
        assert!(asked.contains("daemon-reload"), "{asked}");
        assert!(asked.contains("reload gpulimit-apply.service"), "{asked}");
    };
    let remove = || {
        system.done("dpkg --remove gpulimit");
    };
    life::from_start_to_end(&world, &installation, &upgrade, &remove);
    system.done("dpkg --purge gpulimit");
    assert_eq!(system.added(), [""; 0]);
}

#[test]
fn an_entry_for_all_programs_goes_with_the_package() {
    let Some((world, system, [old, new])) = place() else {
        return;
    };
    install(&system, &old);
    let upgrade = || {
        install(&system, &new);
    };
    let remove = || system.done("dpkg --remove gpulimit");
    life::system_wide(&world, &system, "/usr", &upgrade, &remove);
}

#[test]
fn it_stays_where_the_entry_cannot_be_taken_out() {
    let Some((_world, system, [_, new])) = place() else {
        return;
    };
    install(&system, &new);
    system.done("gpulimit install; cp /etc/ld.so.preload /run/preload; mount --bind /run/preload /etc/ld.so.preload");
    let output = system.shell("dpkg --remove gpulimit");
    assert!(!output.status.success(), "{output:?}");
    let errors = gpulimit_programs::world::text(&output.stderr);
    assert!(
        errors.contains("could not be taken out of /etc/ld.so.preload"),
        "{errors}"
    );
    assert_eq!(
        system.done("env -i ls /usr/lib/gpulimit"),
        "libgpulimit.so\n"
    );
}
