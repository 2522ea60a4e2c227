//! Debian's package, installed by dpkg.

use std::path::{Path, PathBuf};

use gpulimit_programs::world::World;
use gpulimit_support::skip;

use super::built::{self, NEW, OLD};
use super::life::{self, CAP, Installation};
use super::system::System;

fn place() -> Option<(World, System, [PathBuf; 2])> {
    let packages = built::deb()?;
    if !Path::new("/var/lib/dpkg/status").exists() {
        skip("this system is not one of dpkg");
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
fn programs_survive_an_upgrade_and_the_removal() {
    let Some((world, system, [old, new])) = place() else {
        return;
    };
    install(&system, &old);
    assert_eq!(version(&system), format!("install ok installed {OLD}-1"));
    assert_eq!(system.done("dpkg --verify gpulimit"), "");
    system.made_root();
    system.made_logs();
    let installation = Installation {
        prefix: Path::new("/usr"),
        enter: &|command| system.enter(&command),
    };
    let upgrade = || {
        // A policy is in force.
        system.done("touch /run/asked; rm /run/asked");
        install(&system, &new);
        assert_eq!(version(&system), format!("install ok installed {NEW}-1"));
        let asked = system.done("cat /run/asked");
        assert!(asked.contains("daemon-reload"), "{asked}");
        assert!(asked.contains("reload gpulimit-apply.service"), "{asked}");
        assert!(
            asked.contains("try-restart gpulimit-report.timer gpulimit-serve.service"),
            "{asked}"
        );
    };
    let remove = || {
        system.done("touch /var/log/gpulimit/2026-11-23.csv");
        system.done("dpkg --remove gpulimit");
        let asked = system.done("cat /run/asked");
        assert!(asked.contains("stop gpulimit-report.timer"), "{asked}");
        system.done("test -e /var/log/gpulimit/2026-11-23.csv");
    };
    life::from_start_to_end(&world, &installation, &upgrade, &remove);
    system.done("dpkg --purge gpulimit");
    system.done("test ! -e /var/log/gpulimit");
    assert_eq!(system.added(), [""; 0]);
}

#[test]
fn the_system_wide_entry_is_removed_with_the_package() {
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
fn removal_fails_if_the_entry_cannot_be_removed() {
    let Some((_world, system, [_, new])) = place() else {
        return;
    };
    install(&system, &new);
    system.done(
        "gpulimit install; cp /etc/ld.so.preload /run/preload; \
         mount --bind /run/preload /etc/ld.so.preload",
    );
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

#[test]
fn the_packages_scripts_ignore_the_environment() {
    let Some((world, system, [old, new])) = place() else {
        return;
    };
    // The environment is one that `su` passes on from a user: it names a library that records that
    // it runs, and a root of the user's.
    let source = world.file("evil.c");
    let code = "#include <fcntl.h>\nconst char gpulimit_version_text[] = \"\";\n\
                __attribute__((constructor)) static void evil(void) { \
                open(\"/run/proof\", O_CREAT, 0600); }\n";
    std::fs::write(&source, code).expect("written");
    let library = world.file("libgpulimit.so");
    let mut compiler = std::process::Command::new("cc");
    compiler
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source]);
    assert!(gpulimit_programs::world::finish(compiler).status.success());
    std::os::unix::fs::chown(&library, Some(40_001), None).expect("given");
    let root = world.file("hers");
    std::fs::create_dir(&root).expect("made");
    std::os::unix::fs::chown(&root, Some(40_001), None).expect("given");
    let with = |script: &str| {
        system.done(&format!(
            "export GPULIMIT_LIBRARY={} GPULIMIT_ROOT={} GPULIMIT_GROUP=evil GPULIMIT_MAX=1M\n\
                {script}",
            library.display(),
            root.display()
        ))
    };
    with(&format!("dpkg -i {}", old.display()));
    system.done("gpulimit install");
    with(&format!("dpkg -i {}", new.display()));
    with("dpkg --remove gpulimit; dpkg --purge gpulimit; test ! -e /etc/ld.so.preload");
    assert_eq!(system.added(), [""; 0]);
    assert_eq!(std::fs::read_dir(&root).expect("listed").count(), 0);
    system.done("test ! -e /run/proof");
}
