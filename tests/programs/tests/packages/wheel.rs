//! Python's package, installed by pip in a virtual environment.

use std::path::{Path, PathBuf};
use std::process::Command;

use gpulimit_programs::world::{World, finish, text};
use gpulimit_support::skip;

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
    skip(format_args!("python3 -m venv: {}", text(&output.stdout)));
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

/// Runs the environment's Python in a folder without modules, and returns what it prints.
#[track_caller]
fn python(world: &World, environment: &Path, arguments: &[&str]) -> String {
    let mut command = world.bare(&environment.join("bin/python"));
    command.args(arguments).current_dir(environment);
    let output = finish(command);
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout)
}

/// Returns what `doctor` says of Python.
fn doctor(world: &World, environment: &Path) -> String {
    let all = python(world, environment, &["-m", "gpulimit", "doctor"]);
    let lines = all
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    let mut lines = lines
        .skip_while(|line| !line.contains(" python "))
        .peekable();
    let first = lines.next().expect("a finding");
    let more = lines.take_while(|line| !["ok ", "warning "].iter().any(|it| line.starts_with(it)));
    [first]
        .into_iter()
        .chain(more)
        .collect::<Vec<_>>()
        .join(" ")
}

/// The module is installed with the program, and runs scripts under a limit.
#[test]
fn python_has_the_module() {
    let Some([_, new]) = built::wheel() else {
        return;
    };
    let world = World::with(CAP, &[("GPULIMIT_SIM_KILL_LAG_MS", "0")]);
    let Some(environment) = environment(&world) else {
        return;
    };
    pip(&environment, &["install", new.to_str().expect("text")]);
    let script = world.file("train.py");
    let code = "import gpulimit\nprint(gpulimit.active(), gpulimit.limit())\n";
    std::fs::write(&script, code).expect("written");
    let script = script.to_str().expect("text");
    let said = python(
        &world,
        &environment,
        &["-m", "gpulimit", "--max", "1G", script],
    );
    assert_eq!(said, "True 1073741824\n");
    let said = python(&world, &environment, &[script]);
    assert!(said.starts_with("False "), "{said}");

    let own = doctor(&world, &environment);
    assert!(
        own.starts_with(&format!("ok python gpulimit-cap {NEW} in ")),
        "{own}"
    );
    let packages = "import sysconfig; print(sysconfig.get_path('purelib'))";
    let packages = python(&world, &environment, &["-c", packages]);
    let said = python(
        &world,
        &environment,
        &["-W", "error", "-c", "import gpulimit"],
    );
    assert_eq!(said, "");
    let other = Path::new(packages.trim()).join("gpulimit-0.2.1.dist-info");
    std::fs::create_dir(other).expect("made");
    let both = doctor(&world, &environment);
    assert!(
        both.starts_with("warning python the package gpulimit 0.2.1 of PyPI in "),
        "{both}"
    );
    assert!(both.contains("-> run `pip uninstall gpulimit`"), "{both}");
    let warned = "import warnings\n\
        with warnings.catch_warnings(record=True) as all:\n    import gpulimit\n\
        print(*(one.message for one in all))";
    let said = python(&world, &environment, &["-c", warned]);
    assert!(
        said.contains(" package gpulimit-0.2.1, too,") && said.contains("`pip uninstall gpulimit`"),
        "{said}"
    );
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
