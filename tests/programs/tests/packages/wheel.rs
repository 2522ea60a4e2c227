//! Python's package, installed by pip in a virtual environment.

use std::path::{Path, PathBuf};
use std::process::Command;

use gpulimit_programs::world::{World, finish, text};

use super::built::{self, NEW, OLD};
use super::life::{self, CAP, Installation};

/// Makes a virtual environment; `None` where Python cannot make one.
fn environment(world: &World) -> Option<PathBuf> {
    let path = world.file("environment");
    let mut command = Command::new("python3");
    command.args(["-m", "venv"]).arg(&path);
    let output = finish(command);
    if output.status.success() {
        return Some(path);
    }
    eprintln!("SKIPPED: python3 -m venv: {}", text(&output.stdout));
    None
}

#[track_caller]
fn pip(environment: &Path, arguments: &[&str]) {
    let mut command = Command::new(environment.join("bin/pip"));
    command
        .args(arguments)
        .env("PIP_DISABLE_PIP_VERSION_CHECK", "1")
        .env("PIP_NO_INDEX", "1");
    let output = finish(command);
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn programs_survive_an_upgrade_and_the_removal() {
    let Some([old, new]) = built::wheel() else {
        return;
    };
    let world = World::with(CAP, &[("GPULIMIT_SIM_KILL_LAG_MS", "0")]);
    let Some(environment) = environment(&world) else {
        return;
    };
    let install = |wheel: &Path, version: &str| {
        pip(
            &environment,
            &["install", "--upgrade", wheel.to_str().expect("text")],
        );
        let mut command = Command::new(environment.join("bin/python"));
        command.args([
            "-c",
            "from importlib.metadata import version; print(version('gpulimit-cap'))",
        ]);
        assert_eq!(text(&finish(command).stdout), format!("{version}\n"));
    };
    install(&old, OLD);
    let installation = Installation {
        prefix: &environment,
        enter: &|command| command,
    };
    let remove = || pip(&environment, &["uninstall", "--yes", "gpulimit-cap"]);
    life::from_start_to_end(&world, &installation, &|| install(&new, NEW), &remove);
    assert!(
        !environment.join("bin/gpulimit").exists() && !environment.join("share/gpulimit").exists()
    );
}
