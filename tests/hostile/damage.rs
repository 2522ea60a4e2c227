//! Every command reads randomly damaged files of groups: the command ends, does not panic, and
//! prints no escape sequence.
//!
//! The commands run in a pid namespace of their own, so that no number in a damaged ledger names a
//! process of this machine. `GPULIMIT_DAMAGE_ROUNDS` sets the number of rounds.

use crate::{Ground, Guarded, LOOK, RM, run, text};
use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::Identity;
use gpulimit_group::{Member, Root};
use gpulimit_ledger::{Category, EventKind, Happening, Ledger};
use gpulimit_support::{Random, patience, seed};
use std::fs::{self, File, Permissions};
use std::mem::forget;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const GPU: DeviceId = DeviceId::gpu([7; 16]);
const GIB: u64 = 1 << 30;
/// The offsets of a ledger's words and slots.
const WORDS: u64 = 16 << 10;
pub const SLOTS: u64 = WORDS + (1 << 20);
/// Bytes of a slot.
pub const SLOT: u64 = 4096;

const POLICY: &str = "[group.lab]\nmax = '4G'\n[group.'lab/alice']\nmax = '2G'\nlow = '1G'\n\
    [[rule]]\nuser = 'daemon'\ngroup = 'lab/alice'\n";

/// Every command that reads files of groups, from those that only read to those that remove
/// everything.
const VERBS: &str = "\
ls
tree
show
show --json
show lab/alice
ps
ps --json lab
get lab
get lab/alice max
events lab
events --json lab/alice
doctor --user daemon
doctor
set lab max=3G
set lab/alice high=1G
create lab/new max=1G
apply --dry-run POLICY
apply POLICY
oci-hook remove
gc
kill lab 4711
kill -s KILL lab
rm lab/alice
rm --recursive --force lab
gc
apply POLICY
ls
";

/// Runs each line of `$VERBS` and prints its status. The script is the first process of a pid
/// namespace, so that no `kill` ends it.
const RUN: &str = r#"
mount -t tmpfs tmpfs /run && mkdir /run/gpulimit && mount --bind "$COPY" /run/gpulimit || exit 9
# The limit is more than any command needs, and stops one that reads an endless file.
ulimit -v 4000000
n=0
while read -r line; do
    n=$((n + 1))
    timeout -k 5 90 "$GPULIMIT" $line <"$STATE" >"$OUT/$n" 2>&1
    echo "$? $line"
done <"$VERBS"
"#;

/// Makes this process a member and leaves its slot in the ledger: in the file itself the slot's
/// process lives, in copies of the file its process is dead.
fn stay(root: &Root, name: &str, bytes: u64) {
    let member = Member::join(root, name).expect("joined");
    let device = member.device(GPU, 80 * GIB).expect("a device");
    device.charge_unchecked(bytes);
    device.publish(Category::Linear, bytes);
    let ledger = member.ledger();
    ledger.record(&Happening {
        kind: EventKind::Kill,
        device: ledger.find_device(&GPU),
        process: Identity::of_self(),
        bytes,
        charged: bytes,
        max: 2 * GIB,
    });
    forget(member);
}

/// Returns all regular files below a directory.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("listed") {
        let path = entry.expect("listed").path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}

/// Damages a file, and returns a description of the damage.
fn damage(path: &Path, random: &mut Random, others: &[PathBuf]) -> String {
    // Earlier damage has put something else here, perhaps a link out of the copy.
    if !fs::symlink_metadata(path).is_ok_and(|about| about.is_file()) {
        return format!("{}: no file any more", path.display());
    }
    let file = File::options()
        .read(true)
        .write(true)
        .open(path)
        .expect("root's");
    let length = file.metadata().expect("there").len();
    let is_ledger = path.ends_with("ledger");
    let at = match (is_ledger, random.u8(..4)) {
        (true, 0) => random.u64(..64),
        (true, 1) => random.u64(..WORDS),
        (true, 2) => SLOTS + random.u64(..4 * SLOT),
        (true, _) => WORDS + random.u64(..256) * 8,
        (false, _) => random.u64(..length.max(1)),
    };
    let value = match random.u8(..6) {
        0 => 0,
        1 => u64::MAX,
        2 => i64::MAX as u64,
        3 => random.u64(..1 << 20),
        4 => u64::from_ne_bytes(*b"\x1b]0;a\x07\n\x1b"),
        _ => random.u64(..),
    };
    let what = match random.u32(..if is_ledger { 40 } else { 20 }) {
        0 => {
            file.set_len(random.u64(..=length)).expect("cut");
            "cut short"
        }
        1 => {
            file.set_len(length + random.u64(1..=1 << 36))
                .expect("grown");
            "grown"
        }
        2..=6 => {
            fs::remove_file(path).expect("removed");
            match random.u8(..5) {
                0 => drop(Command::new("mkfifo").arg(path).status()),
                1 => fs::create_dir(path).expect("made"),
                2 => symlink(path, path).expect("linked"),
                3 => symlink("/dev/zero", path).expect("linked"),
                _ => return format!("{}: removed", path.display()),
            }
            "something else"
        }
        7 => {
            let other = &others[random.usize(..others.len())];
            // An earlier damage may have grown the file with holes, which copying would fill.
            if fs::symlink_metadata(other)
                .is_ok_and(|about| about.is_file() && about.len() < 64 << 20)
            {
                fs::copy(other, path).expect("copied");
            }
            return format!("{}: {}", path.display(), other.display());
        }
        8 => {
            fs::set_permissions(path, Permissions::from_mode(0o1777)).expect("set");
            "for everybody"
        }
        // The ledger gets the same slot twice, as if a process number had been used again.
        9..=14 if is_ledger => {
            let mut slot = vec![0; SLOT as usize];
            let (from, to) = (random.u64(..3), random.u64(..6));
            if file.read_exact_at(&mut slot, SLOTS + from * SLOT).is_ok() {
                file.write_all_at(&slot, SLOTS + to * SLOT)
                    .expect("written");
            }
            "a slot twice"
        }
        _ => {
            let bytes = value.to_ne_bytes();
            let count = random.usize(1..=8);
            file.write_all_at(&bytes[..count], at).expect("written");
            return format!("{}: {:x?} at {at}", path.display(), &bytes[..count]);
        }
    };
    format!("{}: {what}", path.display())
}

#[test]
fn every_command_survives_damaged_files() {
    let Some(ground) = Ground::new() else { return };
    let policy = ground.write("policy.toml", POLICY, 0, 0o644);
    let root = Root::at(ground.at("groups")).expect("a root");
    let done = ground
        .gpulimit(&["apply"])
        .arg(&policy)
        .output()
        .expect("started");
    assert!(done.status.success(), "{}", text(&done));
    for name in ["lab/alice/train", "lab/bob"] {
        let made = ground.gpulimit(&["create", name, "max=1G"]).output();
        assert!(made.expect("started").status.success());
    }
    // A container is recorded, whose first process lives.
    let bundle = ground.make("bundle", 0, 0o755);
    ground.write(
        "bundle/config.json",
        r#"{"root":{"path":"rootfs"}}"#,
        0,
        0o644,
    );
    let init = Guarded::start(Command::new("sleep").arg("600"));
    let state = format!(
        r#"{{"ociVersion":"1.0.2","id":"box","pid":{},"status":"creating","bundle":"{}"}}"#,
        init.id(),
        bundle.display()
    );
    let state = ground.write("state.json", state, 0, 0o644);
    let mut hook = ground.gpulimit(&["oci-hook", "create", "--cap", "1G"]);
    let hook = hook.stdin(File::open(&state).expect("there")).output();
    let hook = hook.expect("started");
    assert!(hook.status.success(), "{}", text(&hook));
    drop(init);
    for (name, bytes) in [
        ("lab", GIB),
        ("lab/alice", GIB / 2),
        ("lab/alice", GIB / 4),
        ("lab/bob", 1),
    ] {
        stay(&root, name, bytes);
    }
    let verbs = VERBS.replace("POLICY", policy.to_str().expect("UTF-8"));
    let verbs = ground.write("verbs", verbs, 0, 0o644);
    let (copy, out) = (ground.at("copy"), ground.make("out", 0, 0o755));

    let rounds = std::env::var("GPULIMIT_DAMAGE_ROUNDS").ok();
    let rounds = rounds.map_or(24, |text| text.parse().expect("a number"));
    let seed = seed();
    for round in 0..rounds {
        let mut random = Random::with_seed(seed << 32 | round);
        let copied = Command::new("cp")
            .args(["-a", "--sparse=always"])
            .args([root.path(), &copy])
            .status();
        assert!(copied.is_ok_and(|status| status.success()));
        // In some rounds a live process is a member, for whose end `rm --force` waits.
        if round % 8 == 0 {
            for ledger in ["lab/ledger", "lab/sub/alice/ledger"] {
                let ledger = Arc::new(Ledger::open(&copy.join(ledger)).expect("opened"));
                forget(ledger.claim(&Identity::of_self(), "").expect("a slot"));
                // This process must not read a truncated file through its mapping.
                forget(ledger);
            }
        }
        let all = files(&copy);
        let mut deeds = Vec::new();
        for _ in 0..random.u8(1..=12) {
            let path = &all[random.usize(..all.len())];
            deeds.push(damage(path, &mut random, &all));
        }
        let mut command = Command::new("unshare");
        command
            .args([
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
                "--mount-proc",
                "sh",
                "-c",
                RUN,
            ])
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env(LOOK, patience().as_millis().to_string())
            .env(RM, "200")
            .env("GPULIMIT", env!("CARGO_BIN_EXE_gpulimit"))
            .env("COPY", &copy)
            .env("OUT", &out)
            .env("STATE", &state)
            .env("VERBS", &verbs);
        let (_, said) = run(&mut command);
        assert_eq!(said.lines().count(), VERBS.lines().count(), "{said}");
        for (line, n) in said.lines().zip(1..) {
            let printed = fs::read(out.join(n.to_string())).expect("there");
            let (status, _) = line.split_once(' ').expect("a status");
            let context = || {
                let end = printed.len().min(2000);
                let printed = printed[..end].escape_ascii();
                format!("seed {seed}, round {round}: {line}\n{printed}\nafter {deeds:#?}")
            };
            assert!(matches!(status, "0" | "1" | "2"), "{}", context());
            assert!(!text_of(&printed).contains("panicked"), "{}", context());
            let obeyed = |c: char| c.is_control() && c != '\n';
            assert!(!text_of(&printed).contains(obeyed), "{}", context());
            assert!(printed.len() < 1 << 20, "{}", context());
        }
        fs::remove_dir_all(&copy).expect("removed");
    }
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
