//! The host and containers share one group. The containers have pid, user and mount namespaces of
//! their own and reach the root through a bind mount.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use gpulimit_base::identity::SeenProcess;
use gpulimit_base::units::Size;
use gpulimit_group::{Access, Group, Members, Root};
use gpulimit_ledger::NoWitness;
use gpulimit_limits::LimitSet;
use gpulimit_programs::world::{self, CONTEXT, GROUP, MIB, Session, World, eventually};
use gpulimit_support::{is_root, may_unshare};

const CAP: u64 = 4096 * MIB;

const FLAGS: [&str; 7] = [
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "--user",
    "--map-root-user",
    "--mount-proc",
];

/// Mounts the root read-only, as containers get it; only the paths in `$WRITABLE` can be written.
const MOUNT: &str = r#"
set -e
mount --rbind "$HOST_ROOT" "$GPULIMIT_ROOT"
mount -o remount,bind,ro,nosuid,nodev,noexec "$GPULIMIT_ROOT"
for writable in $WRITABLE; do
    mount --bind "$HOST_ROOT/$writable" "$GPULIMIT_ROOT/$writable"
done
if touch "$GPULIMIT_ROOT/x" 2> /dev/null; then echo "the root can be written"; exit 1; fi
exec "$PROGRAM"
"#;

/// Starts a program in a container, in this group. `writable` names files and directories below the
/// root.
fn start_in_container(world: &World, group: &str, writable: &str) -> Session {
    session(
        world,
        world.preloaded(Path::new("unshare")),
        group,
        writable,
    )
}

fn session(world: &World, mut command: Command, group: &str, writable: &str) -> Session {
    let inside = world.file("inside");
    std::fs::create_dir_all(&inside).expect("a place to mount on");
    command
        .args(FLAGS)
        .args(["sh", "-c", MOUNT])
        .env("HOST_ROOT", world.root().path())
        .env("GPULIMIT_ROOT", inside)
        .env("GPULIMIT_GROUP", group)
        .env("WRITABLE", writable)
        .env("PROGRAM", world::program());
    let mut session = Session::start(command);
    assert_eq!(session.say("start"), "0 0");
    session
}

fn container(world: &World) -> Session {
    start_in_container(world, GROUP, &format!("{GROUP}/ledger"))
}

/// Returns the host's pid of the program in the container, which is the only child of `unshare`.
fn pid_on_host(container: &Session) -> u32 {
    let pid = container.pid();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    children
        .expect("readable")
        .trim()
        .parse()
        .expect("one child")
}

/// Kills the container's first process, which ends the container, and waits for its death.
fn kill_container(container: Session) {
    let pid = pid_on_host(&container).to_string();
    let killed = Command::new("kill").args(["-KILL", &pid]).status();
    assert!(killed.is_ok_and(|status| status.success()));
    container.end();
}

/// Returns the host's pids of the members of a group.
fn members(group: &Group) -> Vec<u32> {
    let ledger = group.ledger().expect("readable");
    let mut pids: Vec<u32> = ledger
        .processes(&NoWitness)
        .iter()
        .filter(|process| process.alive)
        .map(|process| {
            SeenProcess::pid_of(&process.identity, SeenProcess::everybody)
                .expect("seen from the host")
        })
        .collect();
    pids.sort_unstable();
    pids
}

/// Both programs have the same pid, each in its own namespace.
#[test]
fn why_names_a_holder_that_has_the_pid_of_the_refused_process() {
    if !may_unshare(&FLAGS) {
        return;
    }
    let world = World::new(CAP);
    let (mut one, mut two) = (container(&world), container(&world));
    one.expect(&[("alloc a 2000M", "0")]);
    two.expect(&[("alloc a 2000M", "2")]);
    let mut why = world.bare(&world::controller());
    why.args(["why", "--json", GROUP]);
    let said = world::text(&world::finish(why).stdout);
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let advice = said["now"]["advice"].as_array().expect("advice");
    let end = advice.iter().find(|it| it["advice"] == "end");
    let end = end.unwrap_or_else(|| panic!("{said:#}"));
    assert_eq!(end["pids"][0], pid_on_host(&one), "{said:#}");
}

#[test]
fn host_and_containers_share_one_limit() {
    if !may_unshare(&FLAGS) {
        return;
    }
    let world = World::new(CAP);
    let mut host = world.on_gpu();
    let (mut one, mut two) = (container(&world), container(&world));
    host.expect(&[("alloc a 500M", "0")]);
    one.expect(&[("alloc a 600M", "0")]);
    two.expect(&[("alloc a 700M", "0")]);
    world.judge(CAP);
    let used = 3 * CONTEXT + 1800 * MIB;
    assert!(world.counted(0).abs_diff(used) <= 3 * world::BLOCK);
    // 742 MiB are left for the first session that asks.
    for session in [&mut host, &mut one, &mut two] {
        session.expect(&[("alloc b 800M", "2")]);
    }
    two.expect(&[("alloc b 600M", "0")]);
    host.expect(&[("alloc b 300M", "2")]);
    world.judge(CAP);

    let mut expected = [host.pid(), pid_on_host(&one), pid_on_host(&two)];
    expected.sort_unstable();
    assert_eq!(members(&world.group()), expected);

    // A limit changed on the host holds in the containers at once.
    world.set(CAP + 400 * MIB);
    one.expect(&[("alloc b 300M", "0")]);
    world.set(CAP);
    one.expect(&[("alloc c 10M", "2"), ("free b", "0")]);
    world.judge(CAP + 400 * MIB);
}

#[test]
fn memory_of_a_killed_container_is_uncharged() {
    if !may_unshare(&FLAGS) {
        return;
    }
    let world = World::with(CAP, &[("GPULIMIT_SIM_KILL_LAG_MS", "100")]);
    let mut inside = container(&world);
    inside.expect(&[("alloc a 3000M", "0")]);
    let mut host = world.on_gpu();
    host.expect(&[("alloc a 1000M", "2")]);
    kill_container(inside);
    // The simulated machine frees a dead process's memory at the next look at the machine.
    assert!(eventually(|| world.machine().used() == CONTEXT));
    // The request waits for the driver to release the memory instead of failing: the library cannot
    // tell from a pid of another namespace whether the process still lives.
    host.expect(&[("alloc a 1000M", "0")]);
    assert_eq!(members(&world.group()), [host.pid()]);
    // A container also finds dead processes of the host.
    host.kill();
    assert!(eventually(|| world.machine().used() == 0));
    let mut next = container(&world);
    next.expect(&[("alloc a 3400M", "0")]);
    world.judge(CAP);
    drop(next);
    world.judge_end(CAP);
}

#[test]
fn a_nested_group_needs_writable_ledgers_at_every_level() {
    if !may_unshare(&FLAGS) {
        return;
    }
    let world = World::new(CAP);
    let job = format!("{GROUP}/job");
    let limits = LimitSet::all(Size::Bytes(2048 * MIB));
    world.root().create(&job, &limits).expect("created");
    let own = format!("{GROUP}/sub/job");
    let mut inside = start_in_container(&world, &job, &format!("{own} {GROUP}/ledger"));
    inside.expect(&[("alloc a 1400M", "0"), ("alloc b 200M", "2")]);
    let mut host = world.on_gpu();
    host.expect(&[("alloc a 1700M", "2"), ("alloc a 1500M", "0")]);
    world.judge(CAP);
    inside.expect(&[("free a", "0")]);
    host.expect(&[("alloc b 1000M", "0")]);
    inside.expect(&[("alloc a 1400M", "2")]);
    world.judge(CAP);
    drop((inside, host));
    world.settle();
    // With a ledger that cannot be written, the program gets no memory, rather than memory without
    // that ledger's limit.
    let mut refused = world.preloaded(Path::new("unshare"));
    let place = world.file("inside");
    refused
        .args(FLAGS)
        .args(["sh", "-c", &MOUNT.replace("\nexec", "\necho start | exec")])
        .env("HOST_ROOT", world.root().path())
        .env("GPULIMIT_ROOT", place)
        .env("GPULIMIT_GROUP", &job)
        .env("WRITABLE", own)
        .env("PROGRAM", world::program());
    let output = world::finish(refused);
    let errors = world::text(&output.stderr);
    assert!(
        errors.contains("no GPU memory for this program"),
        "{errors}"
    );
    let line = "`ReadWritePaths=-/run/gpulimit`";
    assert!(
        errors.contains("Read-only") && errors.contains(line),
        "{errors}"
    );
    assert!(eventually(|| world.machine().used() == 0));
    let root: &Root = world.root();
    root.remove(&job).expect("removed");
}

#[test]
fn a_rootless_container_is_in_the_group_of_its_user() {
    const USER: u32 = 40_001;
    if !may_unshare(&FLAGS) {
        return;
    }
    if !is_root() {
        return;
    }
    let world = World::new(CAP);
    let name = format!("{GROUP}/user");
    let access = Access {
        owner: Some(USER),
        members: Members::Owner,
    };
    let limits = LimitSet::all(Size::Bytes(1024 * MIB));
    let made = world.root().create_for(&name, &limits, access);
    made.expect("a group of another user");
    let open = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(world.machine().state(), open).expect("a GPU for all");
    let mut command = world.preloaded(Path::new("setpriv"));
    command.args(["--reuid", "40001", "--regid", "40001", "--clear-groups"]);
    command.arg("unshare");
    let own = format!("{GROUP}/sub/user/ledger");
    let mut inside = session(&world, command, &name, &format!("{own} {GROUP}/ledger"));
    inside.expect(&[("alloc a 400M", "0"), ("alloc b 200M", "2")]);
    let mut host = world.on_gpu();
    host.expect(&[("alloc a 3000M", "2"), ("alloc a 2500M", "0")]);
    world.judge(CAP);
    let group = world.root().group(&name).expect("there");
    let ledger = group.ledger().expect("readable");
    let uids: Vec<u32> = ledger
        .processes(&NoWitness)
        .iter()
        .map(|process| process.identity.uid)
        .collect();
    assert_eq!(uids, [0], "as it is called inside");
}
