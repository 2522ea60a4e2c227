//! Output on a terminal: lines broken at its width, and bold letters if it supports them. Other
//! outputs get plain lines.

use crate::place::{GIB, GPU, Nothing, Place, on, set_environment, text};
use gpulimit_base::units::Size;
use gpulimit_group::Insistence;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::Command;

/// Returns the output of the controller on a terminal of this many columns.
pub fn seen(place: &Place, columns: u32, environment: &[(&str, &str)], arguments: &str) -> String {
    let script = format!("stty cols {columns} rows 24; PROGRAM {arguments}");
    let output = on_terminal(place, &script)
        .envs(environment.iter().copied())
        .output();
    let output = output.expect("script, of util-linux");
    text(&output.stdout).replace('\r', "")
}

/// Returns the command `script`, which makes a terminal. A test run can have ignored signals, as
/// under `nohup` or as a job in the background. On the terminal, Ctrl-C must end a program.
pub fn script() -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal", "script"]);
    command
}

/// Returns a shell script that runs on a terminal, which `script` makes. `PROGRAM` in it becomes
/// the controller's path.
pub fn on_terminal(place: &Place, script: &str) -> Command {
    let controller = place.gpulimit(&[]);
    let own = controller.get_program().to_string_lossy();
    let mut command = self::script();
    command
        .arg("-qec")
        .arg(script.replace("PROGRAM", &own))
        .arg("/dev/null")
        .env("TERM", "xterm")
        .env_remove("NO_COLOR");
    set_environment(&mut command, &controller);
    command
}

/// Returns both streams of a command without a terminal.
fn plain(place: &Place, arguments: &str) -> String {
    let output = place.output(&arguments.split(' ').collect::<Vec<_>>());
    text(&output.stderr) + &text(&output.stdout)
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(String::from).collect()
}

#[test]
fn long_lines_are_broken_between_words() {
    let place = Place::new();
    place.said(&["create", "lab", "--max", "4G"]);
    for arguments in [
        "doctor",
        "rm nolab",
        "kill lab abc",
        "set lab max=4Q",
        "create lab --max 4G",
        "set lab --max 10M",
    ] {
        let whole = plain(&place, arguments);
        let longest = whole.lines().map(|line| line.chars().count()).max();
        assert!(longest > Some(60), "{whole}");
        let seen = seen(&place, 60, &[("NO_COLOR", "1")], arguments);
        for line in seen.lines() {
            // A single word that is longer than the line cannot be broken.
            let breakable = line.split_whitespace().count() > 1;
            let long = words(line).iter().any(|word| word.len() > 36);
            assert!(
                line.chars().count() <= 60 || !breakable || long,
                "{arguments}: {seen}"
            );
        }
        assert_eq!(words(&seen), words(&whole), "{arguments}");
    }
}

/// Two programs that print on one terminal at the same time do not share a line. A datagram socket
/// keeps separate writes apart.
#[test]
fn a_message_is_written_in_one_piece() {
    let place = Place::new();
    let (ours, theirs) = UnixDatagram::pair().expect("sockets");
    let mut command = place.gpulimit(&["rm", "nolab"]);
    let status = command.stderr(OwnedFd::from(theirs)).status();
    assert_eq!(status.expect("started").code(), Some(1));
    let mut line = [0; 1024];
    let length = ours.recv(&mut line).expect("a message");
    let line = text(&line[..length]);
    assert!(
        line.starts_with("gpulimit: no group 'nolab'") && line.ends_with(")\n"),
        "{line:?}"
    );
}

#[test]
fn bold_letters_are_printed_only_on_capable_terminals() {
    let place = Place::new();
    place.said(&["create", "lab", "--max", "4G"]);
    place.said(&["set", "lab", "--max", "2G", "--device", &GPU.to_string()]);
    for arguments in [
        "show",
        "show --tree",
        "--help",
        "run --help",
        "kill lab abc",
        "--no-such",
    ] {
        let bold = |environment: &[(&str, &str)]| {
            seen(&place, 80, environment, arguments).contains('\u{1b}')
        };
        assert!(bold(&[]), "{arguments}");
        assert!(bold(&[("NO_COLOR", "")]), "{arguments}");
        for none in [("TERM", "dumb"), ("TERM", ""), ("NO_COLOR", "1")] {
            assert!(!bold(&[none]), "{arguments} with {none:?}");
        }
        for name in ["CLICOLOR_FORCE", "FORCE_COLOR"] {
            let mut command = place.gpulimit(&arguments.split(' ').collect::<Vec<_>>());
            let output = command.env(name, "1").output().expect("started");
            let said = text(&output.stdout) + &text(&output.stderr);
            assert!(!said.contains('\u{1b}'), "{arguments} with {name}: {said}");
        }
    }
}

/// Without a verb, a terminal gets one short screen. Other outputs get the help, as a mistake.
#[test]
fn a_screen_says_who_has_what_and_what_to_type_next() {
    let place = Place::new();
    assert!(seen(&place, 80, &[], "").contains("No group limits a program of yours now."));
    place.group("lab", Size::Bytes(2 * GIB));
    place.group("idle", Size::Bytes(GIB));
    let member = place.member("lab");
    let device = on(&member);
    let charge = |bytes| device.charge(bytes, &Nothing, Insistence::Full);
    charge(GIB).expect("room");
    let refusal = charge(3 * GIB).expect_err("no room");
    device.count_refusal("cuMemAlloc", 3 * GIB, &refusal);
    let screen = seen(&place, 80, &[("NO_COLOR", "1")], "");
    for expected in [
        "lab    GPU-1a2b…: 1.0 of 2.0 GiB",
        " in lab: 3.0 GiB",
        "\ngpulimit why ",
    ] {
        assert!(screen.contains(expected), "{expected}: {screen}");
    }
    assert!(!screen.contains("idle"), "{screen}");
    let widest = screen.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(80), "{screen}");
    let help = place.refused(2, &[]);
    assert!(help.contains("Usage: gpulimit <COMMAND>"), "{help}");
}
