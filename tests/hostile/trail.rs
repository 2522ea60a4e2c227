//! Members forge the trail of a common group, and a user puts other files in the place of the trail
//! of their own root: `gpulimit events` shows nothing impossible, and does not hang.

use crate::{ALICE, Ground, run};
use gpulimit_base::identity::Identity;
use gpulimit_group::Root;
use gpulimit_ledger::{Cause, Details, EventKind, Happening, Holding, Ledger};
use gpulimit_limits::LimitSet;
use serde_json::Value;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, chown, symlink};
use std::process::Command;

const EVIL: &[u8] = b"\x1b]0;x\x07\x1b[2J\xc2\x9b2J\n";
/// The length of a trail and of its entries in bytes; the trail is at the end of a ledger.
const TRAIL: u64 = 4 << 20;
const ENTRY: u64 = 1024;

/// Adds events to a trail, as a member can: one that is possible, and others that are not.
fn forge(ledger: &Ledger) {
    let mut process = Identity::of_self();
    process.uid = ALICE;
    process.command = [0; 64];
    process.command[..EVIL.len()].copy_from_slice(EVIL);
    let holding = Holding {
        reserve: u64::MAX,
        suspended: u64::MAX,
        ..Holding::new(process, u64::MAX)
    };
    let happening = Happening {
        kind: EventKind::Kill,
        device: None,
        process,
        bytes: u64::MAX - 1,
        charged: u64::MAX,
        max: u64::MAX - 1,
    };
    for group in [
        "",
        // A group that has a trail of its own, and one that does not exist.
        "alice",
        "alice/run-1-2",
        "bob",
        "../lab",
        "/run-1-2",
        "run-1-2/",
        "run-1-2\u{1b}[2J",
        "~\u{1b}[2J",
        "~/alice",
        "run-1-2/\n",
    ] {
        let details = Details {
            group,
            function: "cuMemAlloc",
            holders: [Some(holding); 5],
            cause: Some(Cause::Oom),
            by: Some(holding),
            count: u64::MAX,
            left: u64::MAX,
            outside: u64::MAX,
            kept: u64::MAX,
            home: group,
            takes: u64::MAX,
            is_unheard: true,
            owner: None,
        };
        ledger.record_in(Some(ledger), &happening, &details);
    }
}

#[test]
fn forged_events_are_left_out_or_harmless() {
    let Some(ground) = Ground::new() else { return };
    for name in ["lab", "lab/alice", "lab/new"] {
        let (status, said) = run(&mut ground.gpulimit(&["create", name, "max=1G"]));
        assert_eq!(status, Some(0), "{said}");
    }
    let root = Root::at(ground.at("groups")).expect("a root");
    let path = root.group("lab").expect("there").ledger_path();
    let ledger = Ledger::open(&path).expect("opened");
    // The ring of the group is not what is tested, so that its events are erased.
    forge(&ledger);
    let file = OpenOptions::new().write(true).open(&path).expect("opened");
    file.write_all_at(&[0; 3 * 4096], 4096).expect("erased");
    let shown = |arguments: &[&str]| {
        let (status, said) = run(&mut ground.gpulimit(arguments));
        assert_eq!(status, Some(0), "{said}");
        let control = |char: char| char.is_control() && char != '\n';
        assert!(!said.contains(control), "{said:?}");
        said
    };
    let events = |arguments: &[&str]| -> Vec<Value> {
        let said = shown(&[&["events", "--json"], arguments].concat());
        let parse = |line: &str| serde_json::from_str(line).expect("JSON");
        said.lines().map(parse).collect()
    };
    for arguments in [&[][..], &["lab"]] {
        let all = events(arguments);
        assert_eq!(all.len(), 1, "{all:?}");
        assert_eq!(all[0]["group"], "lab");
    }
    for name in ["lab/alice", "lab/new"] {
        assert_eq!(events(&[name]), [Value::Null; 0]);
    }
    let said = shown(&["events"]);
    assert_eq!(said.lines().count(), 1, "{said}");
    // The only event left moves to the future, and its stamp to another entry.
    let trail = fs::metadata(&path).expect("there").len() - TRAIL;
    file.write_all_at(&(u64::MAX / 2).to_ne_bytes(), trail + 8)
        .expect("written");
    assert_eq!(events(&[]), [Value::Null; 0]);
    for entry in 0..TRAIL / ENTRY {
        file.write_all_at(&u64::MAX.to_ne_bytes(), trail + entry * ENTRY)
            .expect("written");
    }
    assert_eq!(events(&[]), [Value::Null; 0]);
    // All words of the trail and of the counts in the header are wrong.
    for fill in [0xff, 0x01, 0x80] {
        file.write_all_at(&vec![fill; TRAIL as usize], trail)
            .expect("written");
        file.write_all_at(&[fill; 16], 392).expect("written");
        assert_eq!(events(&["lab"]), [Value::Null; 0]);
    }
}

#[test]
fn other_files_in_the_place_of_a_trail_hold_up_no_command() {
    let Some(ground) = Ground::new() else { return };
    let place = ground.make("groups", ALICE, 0o700);
    let trail = place.join(".trail");
    let secret = ground.write("secret", "secret", 0, 0o600);
    let other = ground.at("other");
    Ledger::create_with_history(&other, 0o600).expect("made");
    let ledger = Ledger::open(&other).expect("opened");
    forge(&ledger);
    drop(ledger);
    let replaced: [&dyn Fn(); 6] = [
        &|| symlink(&secret, &trail).expect("linked"),
        &|| symlink(&other, &trail).expect("linked"),
        &|| fs::hard_link(&other, &trail).expect("linked"),
        &|| {
            let made = Command::new("mkfifo").arg(&trail).status();
            assert!(made.expect("run").success());
        },
        &|| fs::create_dir(&trail).expect("made"),
        &|| {
            fs::copy(&other, &trail).expect("copied");
            chown(&trail, Some(ALICE), Some(ALICE)).expect("given");
            let file = OpenOptions::new().write(true).open(&trail);
            file.expect("opened").set_len(5_000).expect("cut");
        },
    ];
    let root = Root::at(&place).expect("a root");
    for replace in replaced {
        replace();
        for arguments in [&["events"][..], &["gc"], &["show", "--names"], &["doctor"]] {
            let (_, said) = run(&mut ground.gpulimit(arguments));
            assert!(
                !said.contains("cuMemAlloc") && !said.contains("secret"),
                "{said}"
            );
            assert!(!said.contains("not made by gpulimit"), "{said}");
        }
        let job = root.create("run-1-2", &LimitSet::default());
        drop(job.expect("created"));
        root.remove("run-1-2").expect("removed");
        assert!(fs::symlink_metadata(&trail).is_ok(), "left alone");
        let _ = fs::remove_file(&trail).or_else(|_| fs::remove_dir(&trail));
    }
    assert_eq!(fs::read(&secret).expect("read"), b"secret");
}
