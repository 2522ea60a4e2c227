//! Arguments of commands may hold secrets, so the files of a group do not show them to other
//! members.

use crate::{ALICE, Ground, Role, run, stay};
use gpulimit_base::identity::Identity;
use gpulimit_group::{Member, Root};
use gpulimit_ledger::{EventKind, Happening};
use gpulimit_support::skip;
use std::fs;
use std::process::Command;

const SECRET: &str = "token=hunter2";

/// Runs a member with the secret among its arguments, until its standard input ends.
#[test]
#[ignore = "a part of another test"]
fn holder() {
    let root = std::env::var_os("HOSTILE_MEMBER_OF").expect("a path");
    let root = Root::at(root).expect("a root");
    let member = Member::join(&root, "lab").expect("joined");
    member.ledger().record(&Happening {
        kind: EventKind::Kill,
        device: None,
        process: Identity::of_self(),
        bytes: 0,
        charged: 0,
        max: 0,
    });
    println!("\n#joined");
    stay();
}

#[test]
fn members_see_command_names_but_no_arguments() {
    let Some(ground) = Ground::new() else { return };
    ground.make("groups", 0, 0o755);
    let (status, said) =
        run(&mut ground.gpulimit(&["create", "lab", "--members", "all", "max=1G"]));
    assert_eq!(status, Some(0), "{said}");
    let mut member = Command::new(std::env::current_exe().expect("known"));
    member
        .arg(SECRET)
        .env("HOSTILE_MEMBER_OF", ground.at("groups"));
    let mut member = Role::start(&mut member, "secrets::holder");
    member.line("#joined");

    // The ledger holds no arguments.
    let ledger = fs::read(ground.at("groups/lab/ledger")).expect("read");
    let holds = |text: &str| {
        let text = text.as_bytes();
        ledger.windows(text.len()).any(|bytes| bytes == text)
    };
    assert!(holds("hostile-"), "the name of the command");
    assert!(!holds("hunter2"));
    // `ps` shows the arguments that the caller can read in /proc; events show only the command's
    // name.
    let (_, said) = run(&mut ground.gpulimit(&["ps", "lab"]));
    assert!(said.contains(SECRET), "{said}");
    let (_, said) = run(&mut ground.gpulimit(&["events", "lab"]));
    assert!(
        said.contains("(hostile-") && !said.contains("hunter2"),
        "{said}"
    );
    let hidden = r#"mount -t proc -o hidepid=2 proc /proc || exit 9
        exec setpriv --reuid "$ALICE" --regid "$ALICE" --clear-groups "$GPULIMIT" "$@""#;
    for verb in ["ps", "events"] {
        let gpulimit = ground.gpulimit(&[]);
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-c", hidden, "sh", verb, "lab"])
            .env("GPULIMIT", gpulimit.get_program())
            .env("GPULIMIT_ROOT", ground.at("groups"))
            .env("ALICE", ALICE.to_string());
        let (status, said) = run(&mut command);
        if status == Some(9) {
            skip("no file system of processes can be mounted here");
            break;
        }
        assert_eq!(status, Some(0), "{said}");
        assert!(
            said.contains("hostile-") && !said.contains("hunter2"),
            "{said}"
        );
    }
    drop(member.process.0.stdin.take());
    assert!(member.process.ended().success());
}
