//! Every command escapes the texts of other users: no escape sequence reaches the terminal.

use crate::{ALICE, Ground, Guarded, run, text};
use gpulimit_base::identity::Identity;
use gpulimit_group::Root;
use gpulimit_ledger::{EventKind, Happening, Ledger};
use gpulimit_support::finish;
use std::ffi::OsStr;
use std::fs;
use std::mem::forget;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

/// Clears the screen, sets the title and starts a new line, by C0 and C1 control characters, and
/// reverses the writing direction.
const EVIL: &str = "\u{1b}[2J\u{1b}]0;x\u{7}\n\r\u{7f}\u{9b}31m\u{202e}\u{2066}";
/// The same for a file name, with bytes that are not UTF-8.
const EVIL_NAME: &[u8] = b"\x1b]0;x\x07\n\r\x7f\xc2\x9b2J\xe2\x80\xae\xff\x9b";

/// Fails if the output contains characters that a terminal would obey, or show in another order.
#[track_caller]
pub fn check(what: &dyn std::fmt::Debug, output: &Output) {
    for bytes in [&output.stdout, &output.stderr] {
        let shown = bytes.escape_ascii();
        let Ok(text) = str::from_utf8(bytes) else {
            panic!("{what:?} prints no UTF-8: {shown}");
        };
        let reorders = |c: char| {
            ('\u{200e}'..='\u{200f}').contains(&c)
                || ('\u{2028}'..='\u{202e}').contains(&c)
                || ('\u{2066}'..='\u{2069}').contains(&c)
        };
        let obeyed = |c: char| (c.is_control() && c != '\n' && c != '\t') || reorders(c);
        assert!(!text.contains(obeyed), "{what:?} prints {shown}");
    }
    assert!(!text(output).contains("panicked"), "{}", text(output));
}

/// Runs a command, and returns what it prints.
#[track_caller]
fn said(command: &mut Command) -> String {
    let output = finish(command);
    check(command, &output);
    text(&output)
}

/// Writes forged slots to a ledger, as a member can, with processes that live as long as this one.
fn forge(ledger: &Path) {
    let ledger = Arc::new(Ledger::open(ledger).expect("opened"));
    let mut command = [0; 64];
    for (to, from) in command.iter_mut().zip(EVIL.bytes().chain(*b"forged")) {
        *to = from;
    }
    let identity = Identity {
        // A number above the largest pid that Linux assigns.
        pid: 1 << 23,
        command,
        ..Identity::of_self()
    };
    for below in [EVIL, "alice\n0 root", "../\u{1b}c"] {
        forget(ledger.claim(&identity, below).expect("a slot"));
    }
    ledger.record(&Happening {
        kind: EventKind::Kill,
        device: None,
        process: identity,
        bytes: 1,
        charged: 1,
        max: 1,
    });
}

#[test]
fn no_command_prints_escape_sequences_of_others() {
    let Some(ground) = Ground::new() else { return };
    for name in ["lab", "lab/alice", "old"] {
        let (status, said) = run(&mut ground.gpulimit(&["create", name, "max=1G"]));
        assert_eq!(status, Some(0), "{said}");
    }
    let root = Root::at(ground.at("groups")).expect("a root");
    for name in ["lab", "lab/alice", "old"] {
        forge(&root.group(name).expect("there").ledger_path());
    }
    // Directories and files get such names in the root, below a group, and inside one.
    for folder in ["groups", "groups/lab/sub", "groups/old"] {
        let evil = ground.at(folder).join(OsStr::from_bytes(EVIL_NAME));
        fs::create_dir_all(evil.join("sub")).expect("made");
        fs::copy(ground.at("groups/lab/limits"), evil.join("limits")).expect("copied");
        fs::write(evil.join(EVIL), "").expect("written");
    }
    let policy = ground.write(
        "policy.toml",
        r#"[group."\u001b]0;x\u0007\n\u009b2J\u202e"]
max = "\u001b[2J"
"#,
        0,
        0o644,
    );
    let broken = ground.write("broken.toml", format!("[group.{EVIL}]\n"), 0, 0o644);
    for arguments in [
        &["show", "--names"][..],
        &["show", "--tree"],
        &["show", "--tree", "--json"],
        &["show"],
        &["show", "--json"],
        &["show", EVIL],
        &["ps"],
        &["ps", "lab"],
        &["ps", "--json"],
        &["get", "lab"],
        &["get", "lab", EVIL],
        &["events"],
        &["events", "lab", "--json"],
        &["doctor"],
        &["doctor", "--json"],
        &["doctor", "--user", EVIL],
        &["doctor", "--container", EVIL],
        &["doctor", "--pid", EVIL],
        &["set", "lab", "max=2G"],
        &["set", "lab", EVIL],
        &["create", EVIL],
        &["kill", "--signal", "CONT", "lab"],
        &["kill", "--signal", "CONT", "lab", "8388608"],
        &["kill", "--signal", EVIL, "lab"],
        &["apply", "--check", &policy.to_string_lossy()],
        &["apply", "--check", &broken.to_string_lossy()],
        &["apply", "--check", EVIL],
        &["apply", &policy.to_string_lossy()],
        &["apply", EVIL],
        &["run", "--group", EVIL, "true"],
        &["run", "--name", "lab", "--max", EVIL, "true"],
        &["run", "--name", "lab", "--", EVIL],
        &["oci-hook", EVIL],
        &["cdi", "generate", "--cap", EVIL],
        &["install", "--library", EVIL],
        &["uninstall", EVIL],
        &[EVIL],
        &["rm", "lab"],
        &["rm", "old"],
        &["rm", EVIL],
        &["gc", "--dry-run"],
        &["gc"],
    ] {
        said(&mut ground.gpulimit(arguments));
    }
    // Text from a member is shown, but escaped.
    let shown = said(&mut ground.gpulimit(&["ps", "lab"]));
    assert!(shown.contains("forged"), "{shown}");
    let shown = said(&mut ground.gpulimit(&["events", "lab"]));
    assert!(shown.contains("forged"), "{shown}");

    for evil in [
        OsStr::from_bytes(b"/nowhere/\x1b]0;x\x07\n\r\xc2\x9b2J\xe2\x80\xae\xff\x9b"),
        OsStr::new(EVIL),
    ] {
        for arguments in [
            &["show", "--names"][..],
            &["show"],
            &["show", "lab"],
            &["show", "--tree", "--json"],
            &["ps", "--json"],
            &["get", "lab"],
            &["events"],
            &["doctor"],
            &["doctor", "--json"],
            &["set", "lab", "max=2G"],
            &["create", "lab"],
            &["kill", "--signal", "CONT", "lab"],
            &["run", "--max", "1G", "true"],
            &["rm", "lab"],
            &["gc"],
        ] {
            for variable in ["GPULIMIT_ROOT", "GPULIMIT_LIBRARY", "GPULIMIT_GROUP"] {
                said(ground.gpulimit(arguments).env(variable, evil));
            }
        }
    }
}

#[test]
fn doctor_prints_no_escape_sequences_in_paths_of_libraries() {
    let Some(ground) = Ground::new() else { return };
    // The dynamic linker accepts only paths without spaces and colons.
    let name = OsStr::from_bytes(b"\x1b]0;x\x07\n\xc2\x9b2J\xe2\x80\xae");
    let folder = ground.at("hers").join(name);
    fs::create_dir(&folder).expect("made");
    let library = folder.join("libgpulimit.so");
    let maps = fs::read_to_string("/proc/self/maps").expect("read");
    let any = maps
        .split_whitespace()
        .find(|word| word.starts_with('/') && word.contains("/libc.so"));
    fs::copy(any.expect("libc"), &library).expect("copied");
    let mut command = crate::alice("sleep");
    command
        .arg("600")
        .env("LD_PRELOAD", &library)
        .env("GPULIMIT_ROOT", &folder)
        .env("GPULIMIT_GROUP", EVIL);
    let process = Guarded::start(&mut command);
    let pid = process.id().to_string();
    for arguments in [
        &["doctor", "--pid", &pid][..],
        &["doctor", "--json", "--pid", &pid],
    ] {
        let shown = said(&mut ground.gpulimit(arguments));
        assert!(
            shown.contains("]0;x"),
            "the path of {ALICE} is shown: {shown}"
        );
    }
}
