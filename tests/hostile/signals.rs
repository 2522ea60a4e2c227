//! Root signals a group whose owner has forged its ledger: the signals reach the members and no
//! bystander.

use crate::damage::{SLOT, SLOTS};
use crate::{Ground, Guarded, Role, own, run, stay};
use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::{Identity, SeenProcess};
use gpulimit_base::units::Size;
use gpulimit_group::{Access, Insistence, Member, Members, Root};
use gpulimit_ledger::{DeviceIndex, Ledger, MAX_SLOTS, NoWitness, Pressure, Witness};
use gpulimit_limits::{LimitSet, Oom};
use gpulimit_support::random;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// The user who forges the ledger. Only these tests use this user: a defect would end all of the
/// user's processes.
const FORGER: u32 = 40_017;
/// A user who is not in the group.
const STRANGER: u32 = 40_018;

/// The number of slots that the forger holds: if root's command waited a second for each, it would
/// not end within the test's patience.
const HELD: usize = 300;

const GPU: DeviceId = DeviceId::gpu([7; 16]);
const CAPACITY: u64 = 80 << 30;
const GIB: u64 = 1 << 30;

const ROOT: &str = "GPULIMIT_TEST_ROOT";
const GROUP: &str = "GPULIMIT_TEST_GROUP";
const LEDGER: &str = "GPULIMIT_TEST_LEDGER";
const FORGERY: &str = "GPULIMIT_TEST_FORGERY";
const BYSTANDERS: &str = "GPULIMIT_TEST_BYSTANDERS";

/// The ways in which the slots of the group are forged.
const FORGERIES: [&str; 3] = ["random", "start time 0", "right start time"];

/// A group of the forger's, and processes of root, of a stranger and of the forger that are not
/// members of the group.
struct Scene {
    ground: Ground,
    ledger: PathBuf,
    bystanders: Vec<Guarded>,
    forger: Role,
}

impl Scene {
    fn new(forgery: &str) -> Option<Self> {
        let ground = Ground::new()?;
        let root = Root::at(ground.make("groups", 0, 0o755)).expect("a root");
        let access = Access {
            owner: Some(FORGER),
            members: Members::Owner,
        };
        let made = root.create_for("lab", &LimitSet::default(), access);
        assert!(made.expect("created").new);
        let ledger = root.group("lab").expect("there").ledger_path();
        let sleep = |user| Guarded::start(Command::new("sleep").arg("600").uid(user).gid(user));
        let bystanders: Vec<_> = [0, STRANGER, FORGER].map(sleep).into();
        let pids: Vec<_> = bystanders.iter().map(|one| one.id().to_string()).collect();
        let mut command = own(FORGER);
        command
            .env(LEDGER, &ledger)
            .env(FORGERY, forgery)
            .env(BYSTANDERS, pids.join(" "));
        let mut forger = Role::start(&mut command, "signals::forger_process");
        forger.line("#forged");
        Some(Self {
            ground,
            ledger,
            bystanders,
            forger,
        })
    }

    /// Runs a command of root's that ends the forger and none of the bystanders.
    #[track_caller]
    fn root_runs(&mut self, arguments: &[&str]) -> (Option<i32>, String) {
        let (status, said) = run(&mut self.ground.gpulimit(arguments));
        for (whose, one) in ["root", "stranger", "forger"]
            .iter()
            .zip(&mut self.bystanders)
        {
            assert!(
                one.lives(),
                "the bystander of {whose} was signalled: {said}"
            );
        }
        assert!(!said.contains("panicked"), "{said}");
        let ended = self.forger.process.ended();
        assert_eq!(ended.signal(), Some(9), "{said}");
        (status, said)
    }
}

/// The forger's process, started by [`Scene::new`].
#[test]
#[ignore = "a part of other tests"]
fn forger_process() {
    let path = std::env::var(LEDGER).expect("a path");
    let forgery = std::env::var(FORGERY).expect("a name");
    let text = std::env::var(BYSTANDERS).expect("numbers");
    let pids: Vec<u32> = text
        .split(' ')
        .map(|pid| pid.parse().expect("a number"))
        .collect();
    let ledger = Arc::new(Ledger::open(Path::new(&path)).expect("opened"));
    let claim = |pid: &u32| {
        let start_time = match forgery.as_str() {
            "right start time" => SeenProcess::by_pid(*pid).start_time().expect("seen"),
            _ => 0,
        };
        let identity = Identity {
            pid: *pid,
            start_time,
            ..Identity::of_self()
        };
        ledger.claim(&identity, "").expect("a slot")
    };
    let slots: Vec<_> = pids.iter().cycle().take(HELD).map(claim).collect();
    if forgery == "random" {
        let mut random = random();
        // Some words are right by chance, so that slots of all kinds appear.
        let mut word = || match random.u8(..4) {
            0 => 0,
            1 => pids.get(random.usize(..3)).copied().map_or(0, u64::from),
            _ => random.u64(..),
        };
        let bytes: Vec<u8> = (0..MAX_SLOTS as u64 * SLOT / 8)
            .flat_map(|_| word().to_ne_bytes())
            .collect();
        let file = OpenOptions::new().write(true).open(&path).expect("opened");
        file.write_all_at(&bytes, SLOTS).expect("written");
    }
    println!("\n#forged");
    stay();
    drop(slots);
}

#[test]
fn kill_signals_no_bystander_named_in_a_forged_slot() {
    for forgery in FORGERIES {
        let Some(mut scene) = Scene::new(forgery) else {
            return;
        };
        let (status, said) = scene.root_runs(&["kill", "-s", "KILL", "lab"]);
        assert_eq!(status, Some(1), "{forgery}: {said}");
        let line = format!("SIGKILL sent to {} (in no slot)", scene.forger.process.id());
        assert!(said.contains(&line), "{forgery}: {said}");
        assert_eq!(said.matches(" sent to ").count(), 1, "{forgery}: {said}");
        let missed = said.matches("gpulimit: cannot signal ").count();
        // One of the slots belongs to the forger, which got the signal. Random words also make free
        // slots.
        match forgery {
            "random" => assert!((1..HELD).contains(&missed), "{forgery}: {said}"),
            _ => assert_eq!(missed, HELD - 1, "{forgery}: {said}"),
        }
    }
}

#[test]
fn rm_force_ends_the_forger_and_no_bystander() {
    for forgery in FORGERIES {
        let Some(mut scene) = Scene::new(forgery) else {
            return;
        };
        let (status, said) = scene.root_runs(&["rm", "--force", "lab"]);
        assert_eq!(status, Some(0), "{forgery}: {said}");
        assert!(!scene.ledger.exists(), "{forgery}: {said}");
    }
}

/// A member of a group, started by another test.
#[test]
#[ignore = "a part of other tests"]
fn stranger_process() {
    let root = std::env::var(ROOT).expect("a path");
    let root = Root::at(root).expect("a root");
    let group = std::env::var(GROUP).expect("a name");
    let member = Member::join(&root, &group).expect("joined");
    let device = member.device(GPU, CAPACITY).expect("room");
    device.charge_unchecked(GIB);
    println!("\n#joined");
    stay();
    drop(member);
}

/// Starts a process of this user in a group.
fn join(root: &Root, group: &str, user: u32) -> Role {
    let mut command = own(user);
    command.env(ROOT, root.path()).env(GROUP, group);
    let mut role = Role::start(&mut command, "signals::stranger_process");
    role.line("#joined");
    role
}

/// The forger owns a group in which everybody may run programs, and links its ledger into a group
/// of their own below it.
#[test]
fn a_link_to_the_ledger_of_another_own_group_leads_to_no_signal() {
    let Some(ground) = Ground::new() else { return };
    let root = Root::at(ground.make("groups", 0, 0o755)).expect("a root");
    for (name, owner, members) in [
        ("lab", 0, Members::Owner),
        ("lab/team", FORGER, Members::All),
        ("lab/team/x", FORGER, Members::Owner),
        ("lab/team/y", FORGER, Members::Owner),
    ] {
        let owner = Some(owner);
        let made = root.create_for(name, &LimitSet::default(), Access { owner, members });
        assert!(made.expect("created").new);
    }
    let mut victim = join(&root, "lab/team", STRANGER);
    let below = root.path().join("lab/sub/team/sub");
    let as_forger = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-ec", script]).current_dir(&below);
        let done = command.uid(FORGER).gid(FORGER).status();
        assert!(done.expect("started").success());
    };
    for link in [
        "rm x/ledger; ln ../ledger x/ledger",
        // A further name is that of a draft.
        "ln ../ledger x/.ledger.1.1.new",
    ] {
        as_forger(link);
        for verb in [&["kill", "-s", "KILL"][..], &["rm", "--force"]] {
            let arguments = [verb, &["lab/team/x"]].concat();
            let (status, said) = run(&mut ground.gpulimit(&arguments));
            assert!(victim.process.lives(), "{arguments:?}: {said}");
            assert_eq!(status, Some(1), "{arguments:?}: {said}");
            assert!(said.contains("x/ledger: the file has "), "{said}");
        }
    }
    // The names that root makes in a container's view are no reason to signal nobody.
    let mut member = join(&root, "lab/team/y", FORGER);
    let containers = ground.make("groups/.containers", 0, 0o700);
    for name in ["container-a", "container-b"] {
        ground.make(&format!("groups/.containers/{name}"), 0, 0o711);
        let view = containers.join(name).join("view");
        let group = root.group("lab/team/y").expect("there");
        group.show_in(&view).expect("shown");
    }
    // Where a killed program has left a draft, the message names the remedy.
    as_forger("ln y/ledger y/.ledger.1.1.new");
    let (status, said) = run(&mut ground.gpulimit(&["kill", "-s", "KILL", "lab/team/y"]));
    assert_eq!(status, Some(1), "{said}");
    assert!(
        said.contains("gpulimit gc") && member.process.lives(),
        "{said}"
    );
    as_forger("rm y/.ledger.1.1.new");
    let (status, said) = run(&mut ground.gpulimit(&["kill", "-s", "KILL", "lab/team/y"]));
    assert_eq!(status, Some(0), "{said}");
    let ended = member.process.ended();
    assert_eq!(ended.signal(), Some(9), "{said}");
    assert!(victim.process.lives());
}

/// A user can make such links in the directory of their own groups: to another group's directory,
/// which is readable, and to the ledger of the group above both, which both users may write.
#[test]
fn links_to_other_ledgers_lead_to_no_signal() {
    let Some(ground) = Ground::new() else { return };
    let root = Root::at(ground.make("groups", 0, 0o755)).expect("a root");
    for (name, owner) in [
        ("lab", 0),
        ("lab/victim", STRANGER),
        ("lab/hers", FORGER),
        ("lab/hers/file", FORGER),
    ] {
        let access = Access {
            owner: Some(owner),
            members: Members::Owner,
        };
        let made = root.create_for(name, &LimitSet::default(), access);
        assert!(made.expect("created").new);
    }
    let mut victim = join(&root, "lab/victim", STRANGER);
    let links = "ln -s ../../victim directory; ln -f ../../../ledger file/ledger";
    let linked = Command::new("sh")
        .args(["-ec", links])
        .current_dir(root.path().join("lab/sub/hers/sub"))
        .uid(FORGER)
        .gid(FORGER)
        .status();
    assert!(linked.expect("started").success());
    for group in ["lab/hers/directory", "lab/hers/file"] {
        for verb in [&["kill", "-s", "KILL"][..], &["rm", "--force"]] {
            let arguments = [verb, &[group]].concat();
            let (status, said) = run(&mut ground.gpulimit(&arguments));
            assert!(victim.process.lives(), "{arguments:?}: {said}");
            assert_eq!(status, Some(1), "{arguments:?}: {said}");
        }
    }
    let (status, said) = run(&mut ground.gpulimit(&["kill", "-s", "KILL", "lab"]));
    assert_eq!(status, Some(0), "{said}");
    let ended = victim.process.ended();
    assert_eq!(ended.signal(), Some(9), "{said}");
}

/// A request of root's program in a group of the forger's.
struct Request;

impl Pressure for Request {
    fn reclaim(&self, _: DeviceIndex) -> bool {
        false
    }

    fn witness(&self) -> &dyn Witness {
        &NoWitness
    }
}

/// The forger's group kills its largest process when it is full. Root runs a program there, which
/// has the right to kill every process of the machine.
#[test]
fn a_program_of_root_in_a_users_group_kills_only_members_of_this_group() {
    let Some(ground) = Ground::new() else { return };
    let root = Root::at(ground.make("groups", 0, 0o755)).expect("a root");
    let mut limits = LimitSet::all(Size::Bytes(GIB));
    limits.options.oom = Oom::KillLargest;
    for (name, owner, limits) in [
        ("lab", 0, LimitSet::default()),
        ("lab/victim", STRANGER, LimitSet::default()),
        ("lab/hers", FORGER, LimitSet::default()),
        ("lab/hers/linked", FORGER, limits.clone()),
        ("lab/hers/own", FORGER, limits),
    ] {
        let access = Access {
            owner: Some(owner),
            members: Members::Owner,
        };
        let made = root.create_for(name, &limits, access);
        assert!(made.expect("created").new);
    }
    let mut victim = join(&root, "lab/victim", STRANGER);
    let mut killed = join(&root, "lab/hers/own", FORGER);
    let as_forger = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-ec", script]).uid(FORGER).gid(FORGER);
        command.current_dir(root.path().join("lab/sub/hers/sub/linked"));
        assert!(command.status().expect("started").success());
    };
    let charge = |member: &Member| {
        let device = member.device(GPU, CAPACITY).expect("room");
        let done = device.charge(GIB, &Request, Insistence::Full);
        done.map(|()| device.uncharge(GIB)).is_ok()
    };
    as_forger("ln -f ../../../../ledger ledger");
    let member = Member::join(&root, "lab/hers/linked").expect("joined");
    assert!(!charge(&member));
    assert!(victim.process.lives());
    as_forger("rm ledger");
    assert!(!charge(&member));
    assert!(victim.process.lives());
    let member = Member::join(&root, "lab/hers/own").expect("joined");
    assert!(charge(&member));
    assert_eq!(killed.process.ended().signal(), Some(9));
    assert!(victim.process.lives());
}
