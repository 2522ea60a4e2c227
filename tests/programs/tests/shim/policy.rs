//! The administrator's rules hold, whatever the environment says, also if it is empty. In a mount
//! namespace of their own, the programs see the world's root at the machine's own place,
//! /run/gpulimit; these tests therefore need root.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::Identity;
use gpulimit_base::units::Size;
use gpulimit_group::{Access, Members};
use gpulimit_ledger::{EventKind, Ledger, Level, NoWitness, charge_unchecked};
use gpulimit_limits::{Key, LimitSet};
use gpulimit_policy::rules;
use gpulimit_programs::world::{self, CONTEXT, MIB, Session, World, repository, text};
use gpulimit_support::{is_root, skip};
use serde_json::Value;

/// Users of the simulated machine.
const ALICE: u32 = 41_001;
const BOB: u32 = 41_002;
const RUNNER: u32 = 41_004;
/// The user id that config/policy/container-host.toml gives to its example user.
const BATCH: u32 = 2_000;

/// A world whose users and rules are the machine's.
struct Machine {
    world: World,
}

/// Returns whether these tests can run here; prints why if they cannot.
fn may_run() -> bool {
    // In a user namespace, the first condition can hold without the second.
    world::may_mount() && is_root()
}

impl Machine {
    fn new(gpus: usize) -> Machine {
        let world = World::without_group(&[("GPULIMIT_SIM_GPUS", &gpus.to_string())]);
        let users = [
            ("alice", ALICE),
            ("bob", BOB),
            ("carol", 41_003),
            ("gitlab-runner", RUNNER),
            ("batch", BATCH),
        ];
        let mut passwd = String::from("root:x:0:0::/:/bin/sh\n");
        let mut group = String::from("root:x:0:\nlab:x:41000:alice,bob\n");
        for (name, id) in users {
            passwd += &format!("{name}:x:{id}:{id}::/:/bin/sh\n");
            group += &format!("{name}:x:{id}:\n");
        }
        fs::write(world.file("passwd"), passwd).expect("written");
        fs::write(world.file("group"), group).expect("written");
        Machine { world }
    }

    /// Returns a command of this user on this machine, with the machine's users, and with the
    /// world's root at the machine's place. The environment holds only these variables, those of
    /// the simulated driver and those of scripts/mutants.
    fn command(&self, uid: u32, program: &Path, variables: &[(&str, &str)]) -> Command {
        const ENTER: &str = "mount -t tmpfs tmpfs /run && mkdir /run/gpulimit /run/world \
            && mount --bind \"$1\" /run/world && mkdir -p \"$1/shm\" && chmod 1777 \"$1/shm\" \
            && mount --bind \"$1/shm\" /dev/shm && mkdir -p \"$1\" \
            && mount --bind /run/world \"$1\" \
            && mount --bind \"$1/root\" /run/gpulimit \
            && if [ -e \"$1/policy.toml\" ]; then { [ -e \"$1/etc\" ] || cp -a /etc \"$1/etc\"; } \
            && mkdir -p \"$1/etc/gpulimit\" \
                && cp \"$1/policy.toml\" \"$1/etc/gpulimit/gpulimit.toml\" \
                && mount --bind \"$1/etc\" /etc; fi \
            && mount --bind \"$1/passwd\" /etc/passwd && mount --bind \"$1/group\" /etc/group \
            && if [ -e \"$1/containers\" ]; then mount --bind \"$1/containers/\"*/hosts \
            /etc/hosts; fi \
            && uid=$2 && shift 2 && exec setpriv --reuid=$uid --regid=$uid \
            --init-groups env -i \"$@\"";
        let folder = self.world.file("");
        let mut inner = Command::new(program);
        self.world.machine().enter(&mut inner);
        let mut command = Command::new("unshare");
        command
            .args(["-m", "sh", "-c", ENTER, "sh"])
            .arg(folder)
            .arg(uid.to_string());
        for name in ["MUTANTS_ACTIVE", "MUTANTS_REACHED"] {
            let said = std::env::var(name).map(|value| format!("{name}={value}"));
            command.args(said);
        }
        for (name, value) in inner.get_envs() {
            let mut pair = name.to_owned();
            pair.push("=");
            pair.push(value.unwrap_or_default());
            command.arg(pair);
        }
        command.args(
            variables
                .iter()
                .map(|(name, value)| format!("{name}={value}")),
        );
        command.arg(program);
        command
    }

    /// Starts `gpu-script` with the library preloaded and these variables.
    fn start(&self, uid: u32, variables: &[(&str, &str)]) -> Session {
        let library = world::shim();
        let library = library.to_str().expect("UTF-8");
        let variables = [&[("LD_PRELOAD", library)], variables].concat();
        Session::start(self.command(uid, world::program(), &variables))
    }

    fn controller(&self, arguments: &[&str]) -> Output {
        let mut command = self.command(0, &world::controller(), &[]);
        command.args(arguments).output().expect("it runs")
    }

    #[track_caller]
    fn apply(&self, policy: &str) -> String {
        let path = self.world.file("policy.toml");
        fs::write(&path, policy).expect("written");
        let output = self.controller(&["apply", path.to_str().expect("UTF-8")]);
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout)
    }

    fn rules(&self) -> PathBuf {
        self.world.root().path().join(rules::FILE)
    }

    /// Asserts that the GPU is closed for this user, with one line that contains `says`.
    #[track_caller]
    fn closed(&self, uid: u32, variables: &[(&str, &str)], says: &str) {
        let mut program = self.start(uid, variables);
        program.expect(&[("init", "0"), ("retain 0", "800")]);
        let (_, errors) = program.end();
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(
            errors.contains("no GPU memory for this program") && errors.contains(says),
            "{errors}"
        );
    }
}

/// A policy with 2,000 MiB for each user and 3,000 MiB for all users together.
const POLICY: &str = r#"
[group.lab]
max = "3000M"
[group."lab/{user}"]
max = "2000M"
[[rule]]
user = "root"
group = "none"
[[rule]]
unix_group = "lab"
group = "lab/{user}"
"#;

/// Asserts that the program may use 2,000 MiB, and that the driver reports this size.
#[track_caller]
fn assert_limited(program: &mut Session) {
    program.expect(&[
        ("start", "0 0"),
        ("alloc a 1600M", "2"),
        ("alloc a 1000M", "0"),
    ]);
    assert_eq!(program.numbers("info")[2], 2000 * MIB);
}

#[test]
fn an_empty_environment_is_limited_by_a_rule() {
    if !may_run() {
        return;
    }
    let machine = Machine::new(1);
    machine.apply(POLICY);
    let mut alice = machine.start(ALICE, &[]);
    assert_limited(&mut alice);
    // Alice's programs share her limit, and all users share the limit of the group above.
    let mut second = machine.start(ALICE, &[]);
    second.expect(&[("init", "0"), ("retain 0", "2")]);
    let mut bob = machine.start(BOB, &[]);
    bob.expect(&[
        ("start", "0 0"),
        ("alloc a 1000M", "2"),
        ("alloc a 400M", "0"),
    ]);
    let (_, errors) = bob.end();
    assert!(errors.contains(" in lab; most is used by pid"), "{errors}");
    let (_, errors) = alice.end();
    assert!(
        errors.contains(" in lab/alice; most is used by pid"),
        "{errors}"
    );
    assert!(machine.world.machine().peak() <= 3000 * MIB);
    // The policy exempts root.
    let mut root = machine.start(0, &[]);
    root.expect(&[("start", "0 0"), ("alloc a 5000M", "0")]);
    root.end_quietly();
}

#[test]
fn no_variable_overrides_the_assigned_group() {
    if !may_run() {
        return;
    }
    let machine = Machine::new(1);
    machine.apply(POLICY);
    let own = machine.world.file("own");
    let own = own.to_str().expect("UTF-8");
    for variables in [
        [("GPULIMIT_ROOT", own), ("HOME", own)],
        [
            ("GPULIMIT_ROOT", "nowhere"),
            ("GPULIMIT_GROUP", "lab/alice"),
        ],
        [("CUDA_DEVICE_MEMORY_LIMIT", "0"), ("GPULIMIT_ROOT", own)],
    ] {
        let mut alice = machine.start(ALICE, &variables);
        assert_limited(&mut alice);
        alice.end();
    }
    for name in ["lab", "lab/bob", "bob", "job-1-2"] {
        let says = "you are assigned to group lab/alice by rule 2 of the administrator's policy, \
            and your programs run only in this group and in groups below it";
        machine.closed(ALICE, &[("GPULIMIT_GROUP", name)], says);
    }
    // The program removes the variable after its start.
    let mut alice = machine.start(ALICE, &[("GPULIMIT_GROUP", "lab/alice")]);
    alice.expect(&[("unsetenv GPULIMIT_GROUP", "0")]);
    assert_limited(&mut alice);
}

#[test]
fn a_job_gets_a_group_below_the_assigned_one() {
    if !may_run() {
        return;
    }
    let machine = Machine::new(1);
    machine.apply(POLICY);
    let mut alice = machine.start(ALICE, &[("GPULIMIT_MAX", "1000M")]);
    alice.expect(&[
        ("start", "0 0"),
        ("alloc a 600M", "2"),
        ("alloc a 400M", "0"),
    ]);
    let groups = machine.world.root().groups().expect("groups");
    assert!(
        groups
            .iter()
            .any(|group| group.name().starts_with("lab/alice/job-")),
        "{groups:?}"
    );
    // Memory of the job is also charged in the group above.
    let mut second = machine.start(ALICE, &[]);
    second.expect(&[("start", "0 0"), ("alloc a 800M", "2")]);
    // A program that removes the variables after its start stays in its job's group.
    let mut third = machine.start(BOB, &[("GPULIMIT_MAX", "1000M")]);
    third.expect(&[
        ("unsetenv GPULIMIT_GROUP", "0"),
        ("unsetenv GPULIMIT_MAX", "0"),
        ("start", "0 0"),
    ]);
    assert_eq!(third.numbers("info")[2], 1000 * MIB);

    let machine = Machine::new(1);
    machine.apply("[group.all]\nmax = '2000M'\n[[rule]]\nuser = '*'\ngroup = 'all'\n");
    machine.closed(
        ALICE,
        &[("GPULIMIT_MAX", "1000M")],
        "may not make groups below this group",
    );
}

/// After the rules were given other groups, the groups of running programs only shrink.
#[test]
fn a_renamed_rule_gives_nobody_two_shares() {
    if !may_run() {
        return;
    }
    let machine = Machine::new(1);
    machine.apply(POLICY);
    let mut old = machine.start(ALICE, &[]);
    old.expect(&[
        ("start", "0 0"),
        ("alloc a 600M", "0"),
        ("alloc b 400M", "0"),
    ]);
    let renamed = POLICY
        .replace("lab/", "team/")
        .replace("group.lab", "group.team");
    let kept = |said: &str| {
        for group in ["lab", "lab/alice"] {
            let mut lines = said.lines();
            let line = lines.find(|line| line.starts_with(&format!("{group}: kept, ")));
            let ends = "users: alice; its max is now its usage, so that it only shrinks";
            assert!(line.is_some_and(|line| line.ends_with(ends)), "{said}");
        }
        assert!(said.contains("lab/bob: removed\n"), "{said}");
    };
    kept(&machine.apply(&renamed));
    old.expect(&[("alloc c 16M", "2"), ("free b", "0"), ("alloc b 200M", "0")]);
    let mut new = machine.start(ALICE, &[]);
    assert_limited(&mut new);
    new.end();
    // The next `apply` takes what was given back in the meantime.
    let said = machine.apply(&renamed);
    assert!(said.contains("lab/alice: kept, "), "{said}");
    old.expect(&[("alloc d 100M", "2"), ("free a", "0"), ("free b", "0")]);
    old.end();
    machine.apply(&renamed);
    let groups = machine.world.root().groups().expect("groups");
    assert!(
        groups.iter().all(|group| group.name().starts_with("team")),
        "{groups:?}"
    );
}

/// The old group's new limit is the usage with all that is suspended, and never more than the old
/// limit, also on a GPU that the group has not used.
#[test]
fn a_renamed_rules_old_group_keeps_what_it_has_and_no_more() {
    if !may_run() {
        return;
    }
    let machine = Machine::new(2);
    machine.apply(POLICY);
    let mut old = machine.start(ALICE, &[]);
    old.expect(&[("start", "0 0"), ("alloc a 600M", "0")]);
    let group = machine.world.root().group("lab/alice").expect("a group");
    let ledger = Arc::new(Ledger::open(&group.ledger_path()).expect("a ledger"));
    let process = ledger.processes(&NoWitness)[0].identity;
    let used = ledger.devices()[0];
    let apply = || {
        machine.apply(&POLICY.replace("lab/", "x/").replace("group.lab", "group.x"));
        let limits = group.limits().and_then(|text| Ok(text.rules()?));
        let limits = limits.expect("limits");
        [used.id, DeviceId::gpu([0xe0; 16])].map(|gpu| limits.for_device(gpu, Key::Max))
    };
    let forger = ledger.claim(&Identity::of_self(), "").expect("a slot");
    let level = Level {
        slot: &forger,
        device: used.index,
        max: u64::MAX,
        protection: None,
        keeps_low: false,
        uncovered: None,
    };
    charge_unchecked(&[level], 8000 * MIB);
    let bytes = |bytes| Some(Size::Bytes(bytes));
    assert_eq!(apply(), [bytes(2000 * MIB), bytes(0)]);
    drop(forger);
    let right = ledger.act_on(&process).expect("the only actor");
    ledger.move_out(&process).expect("moved");
    drop(right);
    let usage = ledger.usage(used.index);
    assert!(usage.suspended > 600 * MIB, "{usage:?}");
    assert_eq!(apply(), [bytes(usage.charged + usage.suspended), bytes(0)]);
}

#[test]
fn an_old_group_gets_no_memory_of_its_dead_programs() {
    if !may_run() {
        return;
    }
    let machine = Machine::new(1);
    machine.apply(POLICY);
    let [mut lives, mut dies] = [(); 2].map(|()| machine.start(ALICE, &[]));
    for program in [&mut lives, &mut dies] {
        program.expect(&[("start", "0 0"), ("alloc a 100M", "0")]);
    }
    machine.world.machine().knob("kill-lag-ms", "3600000");
    dies.kill();
    machine.apply(&POLICY.replace("lab/", "x/").replace("group.lab", "group.x"));
    let group = machine.world.root().group("lab/alice").expect("a group");
    let ledger = Ledger::open(&group.ledger_path()).expect("a ledger");
    let processes = ledger.processes(&NoWitness);
    assert_eq!(processes.len(), 2, "one drains");
    let living = processes.iter().find(|process| process.alive);
    let used = ledger.devices()[0];
    let charged = living.expect("it lives").on(used.index).charged;
    let limits = group.limits().and_then(|text| Ok(text.rules()?));
    let max = limits.expect("limits").for_device(used.id, Key::Max);
    assert_eq!(max, Some(Size::Bytes(charged)));
    machine.world.machine().knob("kill-lag-ms", "0");
    lives.end();
}

/// The line of a refusal names the users who hold the memory of the full group.
#[test]
fn a_refusal_names_the_other_users() {
    if !may_run() {
        return;
    }
    let machine = Machine::new(1);
    machine.apply(POLICY);
    let mut alice = machine.start(ALICE, &[]);
    alice.expect(&[("start", "0 0"), ("alloc a 1400M", "0")]);
    let mut bob = machine.start(BOB, &[]);
    bob.expect(&[("start", "0 0"), ("alloc a 600M", "2")]);
    let (own, other) = (bob.pid(), alice.pid());
    let (_, errors) = bob.end();
    assert!(errors.contains(" in lab; most is used by pid"), "{errors}");
    for holder in [
        format!(" pid {other} (gpu-script, alice) 1.9 GiB, "),
        format!(" pid {own} (gpu-script) 518.0 MiB. "),
    ] {
        assert!(errors.contains(&holder), "{holder}: {errors}");
    }
    alice.end_quietly();
}

/// The trail of the system root is root's. So the refusals of a job there are in the trail of its
/// user's own root.
#[test]
fn users_can_read_the_refusals_of_their_jobs_in_the_system_root() {
    if !may_run() {
        return;
    }
    let machine = Machine::new(1);
    let limits = LimitSet::all(Size::Bytes(1000 * MIB));
    let access = Access {
        members: Members::All,
        ..Access::default()
    };
    let (root, job) = (machine.world.root(), "run-1-2");
    let created = root.create_for(job, &limits, access).expect("created");
    let mut bob = machine.start(BOB, &[("GPULIMIT_GROUP", job)]);
    bob.expect(&[
        ("start", "0 0"),
        ("alloc a 600M", "2"),
        ("alloc a 100M", "0"),
    ]);
    bob.end();
    drop(created);
    root.remove(job).expect("removed");
    let own = machine.world.file(&format!("shm/gpulimit-{BOB}"));
    let trail = Ledger::open_readonly(&own.join(".trail")).expect("made");
    let events = trail.trail(0);
    assert_eq!(events.len(), 1, "{events:?}");
    let refusal = &events[0];
    assert_eq!((&*refusal.group, refusal.owner), (job, Some(0)));
    assert_eq!(refusal.event.what.kind, EventKind::Refusal);
    assert_eq!(refusal.event.what.process.uid, BOB);
    for (path, mode) in [(own.clone(), 0o700), (own.join(".trail"), 0o600)] {
        let about = fs::metadata(path).expect("made");
        assert_eq!((about.uid(), about.mode() & 0o777), (BOB, mode));
    }
    let roots = root.trail().expect("readable").expect("made");
    assert_eq!(roots.trail(0).len(), 0);
}

#[test]
fn rules_match_executables_and_cgroups() {
    if !may_run() {
        return;
    }
    let machine = Machine::new(1);
    let program = world::program();
    let name = program.file_name().expect("a name").to_string_lossy();
    let policy = format!(
        "[group.a]\nmax = '1000M'\n[group.b]\nmax = '2000M'\n\
         [[rule]]\nexecutable = '*/{name}'\nuser = 'bob'\ngroup = 'a'\n\
         [[rule]]\ncgroup = '/*'\ngroup = 'b'\n"
    );
    machine.apply(&policy);
    for (uid, max) in [(BOB, 1000), (ALICE, 2000), (0, 2000)] {
        let mut program = machine.start(uid, &[]);
        program.expect(&[("start", "0 0")]);
        assert_eq!(program.numbers("info")[2], max * MIB, "{uid}");
        program.end_quietly();
    }
}

/// Commands by which a user makes namespaces without any privilege. `$1` is the program, `$2` the
/// directory of groups.
const NAMESPACES: [&str; 8] = [
    "exec unshare -r \"$1\"",
    "exec unshare -U \"$1\"",
    "exec unshare -r unshare -r \"$1\"",
    "exec unshare -r unshare -r unshare -U \"$1\"",
    "exec unshare -rC \"$1\"",
    "exec unshare -rm sh -c 'mount -t tmpfs tmpfs /run/gpulimit && exec \"$1\"' sh \"$1\"",
    "exec unshare -rm sh -c 'mount -t tmpfs tmpfs /run && exec \"$1\"' sh \"$1\"",
    // The program sees the machine's user map and names the machine's user namespace as its own.
    "exec 9< /proc/self/ns/user && exec unshare -rm sh -c 'p=/run && mount -t tmpfs tmpfs $p \
        && mkdir -p $p/self/ns $p/self/fd \
        && echo 0 0 4294967295 > $p/self/uid_map && : > $p/user \
        && mount --bind /proc/self/fd/9 $p/user && ln -s /proc/user $p/self/ns/user \
        && mkdir $p/gpulimit && mount --bind \"$2\" $p/gpulimit && mount --rbind $p /proc \
        && exec \"$1\"' sh \"$1\" \"$2\"",
];

#[test]
fn rules_close_the_gpu_in_a_user_namespace() {
    if !may_run() {
        return;
    }
    let machine = Machine::new(1);
    // One of the users is exempted by the executable, the other is limited by it.
    let policy = format!("{POLICY}[[rule]]\nexecutable = \"*\"\ngroup = \"none\"\n");
    machine.apply(&policy);
    if !unprivileged_namespaces(&machine) {
        return;
    }
    let library = world::shim();
    let library = library.to_str().expect("UTF-8");
    for script in NAMESPACES {
        for uid in [ALICE, 41_003] {
            let mut command = machine.command(uid, Path::new("sh"), &[("LD_PRELOAD", library)]);
            command.args(["-c", script, "sh"]).arg(world::program());
            command.arg(machine.world.root().path());
            let mut program = Session::start(command);
            program.expect(&[("init", "0"), ("retain 0", "800")]);
            let (_, errors) = program.end();
            assert!(
                errors.contains(
                    "no GPU memory for this program: this program is in a user namespace"
                ),
                "{script}: {errors}"
            );
        }
    }
    // Programs outside the namespaces are limited as before.
    assert_limited(&mut machine.start(ALICE, &[]));
    machine
        .start(41_003, &[])
        .expect(&[("start", "0 0"), ("alloc a 5000M", "0")]);
}

#[test]
fn without_rules_user_namespaces_change_nothing() {
    if !may_run() {
        return;
    }
    let machine = Machine::new(1);
    if !unprivileged_namespaces(&machine) {
        return;
    }
    let library = world::shim();
    let library = library.to_str().expect("UTF-8");
    let own = machine.world.file("own");
    fs::create_dir(&own).expect("made");
    std::os::unix::fs::chown(&own, Some(ALICE), Some(ALICE)).expect("given");
    let root = own.join("root");
    let root = root.to_str().expect("UTF-8");
    let start = |script: &str, variables: &[(&str, &str)]| {
        let variables = [&[("LD_PRELOAD", library)], variables].concat();
        let mut command = machine.command(ALICE, Path::new("sh"), &variables);
        command.args(["-c", script, "sh"]).arg(world::program());
        command.arg(machine.world.root().path());
        Session::start(command)
    };
    // The last script leaves no `/proc`, which the driver needs.
    let scripts = &NAMESPACES[..NAMESPACES.len() - 1];
    let all = |with_root: bool| {
        for script in scripts {
            start(script, &[]).expect(&[("start", "0 0"), ("alloc a 5000M", "0")]);
            // A limit that the user sets for their own program holds.
            if with_root && script.contains("unshare -r ") && !script.contains("-U") {
                let own = [("GPULIMIT_ROOT", root), ("GPULIMIT_MAX", "2000M")];
                assert_limited(&mut start(script, &own));
            }
        }
    };
    all(true);
    // A policy without rules changes nothing either.
    machine.apply("[group.a]\nmax = '1000M'\n");
    assert!(!machine.rules().exists());
    for script in scripts.iter().filter(|script| !script.contains("tmpfs")) {
        start(script, &[]).expect(&[("start", "0 0"), ("alloc a 5000M", "0")]);
    }
}

/// Starts the container as docs/containers.md describes it for rootless engines: with the image's
/// own file system, and with the directory of groups mounted at another place.
#[test]
fn a_rootless_container_joins_its_users_group() {
    if !may_run() {
        return;
    }
    let machine = Machine::new(1);
    machine.apply(POLICY);
    if !unprivileged_namespaces(&machine) {
        return;
    }
    const CONTAINER: &str = "exec unshare -rm sh -c 'p=/run/inside && mount -t tmpfs tmpfs /etc \
        && mount --bind /run/gpulimit /mnt && mount -t tmpfs tmpfs /run && mkdir $p \
        && mount --bind /mnt $p \
        && GPULIMIT_ROOT=$p exec \"$1\"' sh \"$1\"";
    let library = world::shim();
    let library = library.to_str().expect("UTF-8");
    for (group, is_hers) in [("lab/alice", true), ("lab/bob", false)] {
        let variables = [("LD_PRELOAD", library), ("GPULIMIT_GROUP", group)];
        let mut command = machine.command(ALICE, Path::new("sh"), &variables);
        command.args(["-c", CONTAINER, "sh"]).arg(world::program());
        let mut program = Session::start(command);
        if is_hers {
            assert_limited(&mut program);
        } else {
            program.expect(&[("init", "0"), ("retain 0", "800")]);
        }
    }
}

fn unprivileged_namespaces(machine: &Machine) -> bool {
    let mut command = machine.command(ALICE, Path::new("unshare"), &[]);
    let output = command.args(["-r", "true"]).output().expect("it runs");
    let may = output.status.success();
    if !may {
        skip("users may not make namespaces here");
    }
    may
}

#[test]
fn on_error_decides_about_a_missing_group() {
    if !may_run() {
        return;
    }
    for open in [false, true] {
        let machine = Machine::new(1);
        let on_error = if open { "open" } else { "closed" };
        machine.apply(&format!("[defaults]\non_error = '{on_error}'\n{POLICY}"));
        machine.world.root().remove("lab/alice").expect("removed");
        if !open {
            machine.closed(ALICE, &[], "there is no group lab/alice");
            continue;
        }
        let mut alice = machine.start(ALICE, &[]);
        alice.expect(&[
            ("start", "0 0"),
            ("alloc a 5000M", "0"),
            ("async b 100M", "0"),
            ("create c 100M 0", "0"),
            ("free a", "0"),
        ]);
        let (status, errors) = alice.end();
        assert!(status.success(), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(
            errors.contains("runs without a limit") && errors.contains("rule 2"),
            "{errors}"
        );
        // A group that the user chose must exist even with `on_error = "open"`.
        let bob = [("GPULIMIT_GROUP", "lab/bob/none")];
        machine.closed(BOB, &bob, "no group lab/bob/none");
    }
}

#[test]
fn damaged_or_foreign_rules_close_the_gpu() {
    if !may_run() {
        return;
    }
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("changed")
    };
    let machine = Machine::new(1);
    machine.apply(POLICY);
    let good = fs::read(machine.rules()).expect("rules");
    mode(&machine.rules(), 0o666);
    machine.closed(ALICE, &[], "mode 0666");
    mode(&machine.rules(), 0o600);
    machine.closed(ALICE, &[], "cannot read the administrator's rules");
    mode(&machine.rules(), 0o644);
    std::os::unix::fs::chown(machine.rules(), Some(ALICE), None).expect("given");
    machine.closed(ALICE, &[], "belongs to user 41001");
    std::os::unix::fs::chown(machine.rules(), Some(0), None).expect("given");
    fs::write(machine.rules(), &good[..good.len() / 2]).expect("written");
    machine.closed(ALICE, &[], "damaged");
    machine.closed(0, &[("GPULIMIT_MAX", "1G")], "damaged");
    fs::write(machine.rules(), "gpulimit-rules 2\n").expect("written");
    machine.closed(ALICE, &[], "another version");
    fs::write(machine.rules(), &good).expect("written");
    // Carol joined the unix group after the policy was applied.
    fs::write(machine.world.file("group"), "lab:x:41000:alice,bob,carol\n").expect("written");
    machine.closed(41_003, &[], "none for user 41003");
    let mut alice = machine.start(ALICE, &[]);
    assert_limited(&mut alice);
}

#[test]
fn a_program_out_of_descriptors_is_told_which_file_failed() {
    if !may_run() {
        return;
    }
    let machine = Machine::new(1);
    machine.apply(POLICY);
    // The script closes every descriptor that the program would inherit from this test.
    const FEW: &str = "exec 3<&- 4<&- 5<&- 6<&- 7<&- 8<&- 9<&-; ulimit -n $1; shift; exec \"$@\"";
    let library = world::shim().display().to_string();
    for (descriptors, asked_for) in [("4", "/proc/self/ns/user"), ("5", "ledger")] {
        let mut command = machine.command(ALICE, Path::new("sh"), &[]);
        command
            .args(["-c", FEW, "sh", descriptors, "env"])
            .arg(format!("LD_PRELOAD={library}"))
            .arg(world::program());
        let mut program = Session::start(command);
        program.expect(&[("init", "0"), ("retain 0", "800")]);
        let (_, errors) = program.end();
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(
            errors.contains(asked_for) && errors.contains("Too many open files"),
            "{errors}"
        );
    }
}

#[test]
fn users_may_apply_policies_of_their_own() {
    if !may_run() {
        return;
    }
    let machine = Machine::new(1);
    let home = machine.world.file("home");
    let folder = home.join("gpulimit");
    fs::create_dir_all(&folder).expect("made");
    std::os::unix::fs::chown(&home, Some(ALICE), Some(ALICE)).expect("given");
    fs::write(folder.join("gpulimit.toml"), "[group.a]\nmax = '1000M'\n").expect("written");
    let own = home.join("root");
    let own = own.to_str().expect("UTF-8");
    let variables = [
        ("XDG_CONFIG_HOME", home.to_str().expect("UTF-8")),
        ("GPULIMIT_ROOT", own),
    ];
    let mut command = machine.command(ALICE, &world::controller(), &variables);
    let output = command.arg("apply").output().expect("it runs");
    let expected = "a: created, max 1000MiB, owner alice, members owner\n";
    assert_eq!(text(&output.stdout), expected, "{output:?}");
    let mut program = machine.start(ALICE, &[("GPULIMIT_ROOT", own), ("GPULIMIT_GROUP", "a")]);
    program.expect(&[("start", "0 0")]);
    assert_eq!(program.numbers("info")[2], 1000 * MIB);
}

#[test]
fn the_controller_is_no_member_of_its_users_group() {
    if !may_run() {
        return;
    }
    let machine = Machine::new(1);
    machine.apply(&POLICY.replacen("\"none\"", "\"lab\"", 1));
    let library = format!("{}\n", world::shim().display());
    fs::write(machine.world.file("etc/ld.so.preload"), library).expect("written");
    let start = |uid| {
        let mut program = Session::start(machine.command(uid, world::program(), &[]));
        program.expect(&[("start", "0 0"), ("alloc a 100M", "0")]);
        program
    };
    for (uid, arguments) in [
        (ALICE, &["kill", "--signal", "KILL", "lab/alice"][..]),
        (0, &["kill", "--signal", "KILL", "lab"]),
        (0, &["rm", "--recursive", "--force", "lab"]),
    ] {
        let programs = [ALICE, ALICE, if uid == 0 { 0 } else { ALICE }].map(start);
        let controller = |arguments: &[&str]| {
            let mut command = machine.command(uid, &world::controller(), &[]);
            let output = command.args(arguments).output().expect("it runs");
            assert!(output.status.success(), "{arguments:?}: {output:?}");
            assert_eq!(text(&output.stderr), "", "{arguments:?}");
            text(&output.stdout)
        };
        let listed: Value = serde_json::from_str(&controller(&["ps", "--json"])).expect("JSON");
        let listed = listed["processes"].as_array().expect("processes").iter();
        let pids: BTreeSet<_> = listed
            .map(|it| it["pid"].as_u64().expect("a pid"))
            .collect();
        assert_eq!(pids, programs.iter().map(|it| it.pid().into()).collect());
        controller(arguments);
        for program in programs {
            let (status, _) = program.end();
            assert_eq!(status.signal(), Some(libc::SIGKILL), "{arguments:?}");
        }
    }
}

#[test]
fn doctor_names_the_rule_that_applies() {
    if !may_run() {
        return;
    }
    let machine = Machine::new(1);
    machine.apply(POLICY);
    let says = |uid| {
        let library = world::shim();
        let library = library.to_str().expect("UTF-8");
        let variables = [("GPULIMIT_LIBRARY", library)];
        let mut command = machine.command(uid, &world::controller(), &variables);
        text(&command.arg("doctor").output().expect("it runs").stdout)
    };
    let said = says(ALICE);
    assert!(
        said.contains("rule 2 of the administrator's policy assigns you to group lab/alice"),
        "{said}"
    );
    assert!(!says(0).contains("assigns"));
    fs::write(machine.rules(), "damaged").expect("written");
    let said = says(ALICE);
    assert!(
        said.lines().filter(|line| line.contains("damaged")).count() == 1,
        "{said}"
    );
}

#[test]
fn doctor_names_the_rule_for_another_process() {
    if !may_run() {
        return;
    }
    let machine = Machine::new(1);
    let by_program =
        "[[rule]]\nuser = \"bob\"\nexecutable = \"/usr/bin/train*\"\ngroup = \"lab\"\n";
    machine.apply(&POLICY.replacen("[[rule]]", &format!("{by_program}[[rule]]"), 1));
    let doctor = |about: &[&str]| text(&machine.controller(&[&["doctor"], about].concat()).stdout);
    let said = doctor(&["--user", "alice"]);
    assert!(
        said.contains("alice is assigned to lab/alice by rule 3"),
        "{said}"
    );
    let said = doctor(&["--user", "bob"]);
    assert!(
        said.contains("rule 1: a process that runs /usr/bin/train* joins lab"),
        "{said}"
    );
    assert!(
        said.contains("bob is assigned to lab/bob by rule 3"),
        "{said}"
    );
    let said = doctor(&["--user", "root"]);
    assert!(said.contains("no rule assigns root"), "{said}");

    let mut alice = machine.start(ALICE, &[]);
    alice.expect(&[("init", "0")]);
    let said = doctor(&["--pid", &alice.pid().to_string()]);
    assert!(
        said.contains("rule 3 of the administrator's policy assigns the process to lab/alice"),
        "{said}"
    );
    assert_limited(&mut alice);
    let said = doctor(&["--pid", &alice.pid().to_string()]);
    assert!(
        said.contains("the process is in group lab/alice and uses 1.5 GiB"),
        "{said}"
    );
    assert!(!said.contains("error "), "{said}");
    // The rules change while the program runs.
    let changed = "[[rule]]\nuser = \"alice\"\ngroup = \"lab\"\n";
    machine.apply(&POLICY.replacen("[[rule]]", &format!("{changed}[[rule]]"), 1));
    let said = doctor(&["--pid", &alice.pid().to_string()]);
    assert!(said.contains("would be in group lab\n"), "{said}");
}

#[test]
fn programs_without_cuda_do_not_read_the_rules() {
    if !may_run() {
        return;
    }
    let machine = Machine::new(1);
    machine.apply(POLICY);
    fs::write(machine.rules(), "damaged").expect("written");
    let library = world::shim();
    let variables = [
        ("LD_PRELOAD", library.to_str().expect("UTF-8")),
        ("GPULIMIT_GROUP", "lab/alice"),
    ];
    let mut command = machine.command(ALICE, Path::new("/bin/echo"), &variables);
    let output = command.arg("fine").output().expect("it runs");
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    assert_eq!(text(&output.stdout), "fine\n");
}

#[test]
fn every_shipped_policy_is_applied() {
    if !may_run() {
        return;
    }
    let folder = repository().join("config/policy");
    let files: Vec<PathBuf> = fs::read_dir(folder)
        .expect("a folder")
        .map(|file| file.expect("a file").path())
        .collect();
    assert!(files.len() >= 4, "{files:?}");
    for path in files {
        for gpus in [1, 2, 8] {
            let machine = Machine::new(gpus);
            let path = path.to_str().expect("UTF-8");
            let run = |arguments: &[&str]| {
                let output = machine.controller(arguments);
                assert!(output.status.success(), "{gpus}: {output:?}");
                text(&output.stdout)
            };
            assert!(run(&["apply", "--check", path]).contains("ok, groups: "));
            let would = run(&["apply", "--dry-run", path]);
            assert_eq!(machine.world.root().groups().expect("groups").len(), 0);
            let does = run(&["apply", path]);
            let as_done = would.replace("would be ", "");
            assert_ne!(as_done, would);
            assert_eq!(as_done, format!("{does}dry run: nothing was changed\n"));
            assert!(does.contains("rules: "), "{does}");
            assert_eq!(run(&["apply", path]), "nothing to change\n");
        }
    }
}

/// Returns a machine to which a shipped policy was applied.
fn shipped(name: &str, gpus: usize) -> Machine {
    let machine = Machine::new(gpus);
    let path = repository().join("config/policy").join(name);
    machine.apply(&fs::read_to_string(path).expect("readable"));
    machine
}

#[test]
fn the_lab_server_gives_each_user_a_fifth() {
    if !may_run() {
        return;
    }
    let machine = shipped("lab-server.toml", 1);
    let mut probe = machine.start(0, &[]);
    probe.expect(&[("start", "0 0")]);
    let whole = probe.numbers("info")[2];
    probe.end_quietly();
    let mut alice = machine.start(ALICE, &[]);
    alice.expect(&[("start", "0 0")]);
    let fifth = alice.numbers("info")[2];
    assert!(fifth.abs_diff(whole / 5) <= 2 * MIB, "{fifth} of {whole}");
    let access = machine
        .world
        .root()
        .group("lab/burst")
        .expect("a group")
        .access()
        .expect("known");
    assert_eq!(access.members, Members::UnixGroup(41_000));
}

#[test]
fn the_workstation_keeps_memory_for_the_desktop() {
    if !may_run() {
        return;
    }
    let machine = shipped("workstation.toml", 1);
    // Without the library the program sees the whole GPU.
    let mut bare = Session::start(machine.command(0, world::program(), &[]));
    bare.expect(&[("start", "0 0")]);
    let whole = bare.numbers("info")[2];
    bare.end_quietly();
    for uid in [ALICE, 0] {
        let mut program = machine.start(uid, &[]);
        program.expect(&[("start", "0 0")]);
        assert_eq!(program.numbers("info")[2], whole - 2048 * MIB, "{uid}");
        let all_but = |bytes: u64| format!("alloc a {}M", (whole - CONTEXT - bytes) / MIB);
        program.expect(&[(&all_but(2000 * MIB), "2"), (&all_but(2100 * MIB), "0")]);
        program.end();
    }
}

#[test]
fn the_workstation_kills_the_largest_other_program() {
    if !may_run() {
        return;
    }
    let machine = shipped("workstation.toml", 1);
    let mut largest = machine.start(ALICE, &[]);
    largest.expect(&[("start", "0 0")]);
    let whole = largest.numbers("info")[2];
    let part = |name: &str, percent: u64| format!("alloc {name} {}M", whole / 100 * percent / MIB);
    largest.expect(&[(&part("a", 50), "0")]);
    // The programs of `gpulimit run` are in groups of their own, below the user's group.
    let mut small = machine.start(ALICE, &[("GPULIMIT_MAX", "30%")]);
    small.expect(&[("start", "0 0"), (&part("a", 20), "0")]);
    let mut other = machine.start(ALICE, &[]);
    other.expect(&[("start", "0 0"), (&part("a", 40), "0")]);
    let work = machine
        .world
        .root()
        .group("machine/compute")
        .expect("a group");
    let events = work.ledger().expect("a ledger").events(0);
    let killed: Vec<u32> = events
        .iter()
        .filter(|event| event.what.kind == EventKind::Kill)
        .map(|event| event.what.process.pid)
        .collect();
    assert_eq!(killed, [largest.pid()]);
    let (status, _) = largest.end();
    assert_eq!(status.signal(), Some(libc::SIGKILL));
    // The program that asks is the largest one now, and is refused.
    other.expect(&[(&part("b", 40), "2")]);
    small.expect(&[("alloc b 10M", "0")]);
}

#[test]
fn a_user_of_the_workstation_makes_groups_of_their_own() {
    if !may_run() {
        return;
    }
    let machine = shipped("workstation.toml", 1);
    let library = world::shim();
    let variables = [("GPULIMIT_LIBRARY", library.to_str().expect("UTF-8"))];
    for arguments in [
        &["run", "--max", "2G", "--", "true"][..],
        &["run", "--max", "3G", "--name", "lab", "--", "true"],
        &["run", "--name", "lab", "--", "true"],
        &["set", "lab", "--max", "4G"],
        &["rm", "lab"],
    ] {
        let mut command = machine.command(ALICE, &world::controller(), &variables);
        let output = command.args(arguments).output().expect("started");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }
}

#[test]
fn the_ci_runner_has_less_of_the_first_gpu() {
    if !may_run() {
        return;
    }
    let machine = shipped("ci-runner.toml", 2);
    let mut job = machine.start(RUNNER, &[]);
    job.expect(&[("start", "0 0")]);
    let group = machine.world.root().group("ci").expect("a group");
    let limits = group.limits().expect("limits");
    let gpus = machine.world.machine().gpus();
    let max = |gpu: usize| {
        let id = gpus[gpu].uuid.parse().expect("a UUID");
        limits.bounds(&id, 100 * MIB).max
    };
    assert_eq!((max(0), max(1)), (50 * MIB, 90 * MIB));
    // A job may set a limit of its own.
    let mut own = machine.start(RUNNER, &[("GPULIMIT_MAX", "1000M")]);
    own.expect(&[("start", "0 0")]);
    assert_eq!(own.numbers("info")[2], 1000 * MIB);
}

#[test]
fn the_container_host_limits_containers_by_user() {
    if !may_run() {
        return;
    }
    let machine = shipped("container-host.toml", 1);
    // A container engine mounts files of a folder with such a name into its containers.
    let folder = machine
        .world
        .file("containers")
        .join("0123456789abcdef".repeat(4));
    fs::create_dir_all(&folder).expect("made");
    fs::write(folder.join("hosts"), "").expect("written");
    let total = |uid| {
        let mut program = machine.start(uid, &[]);
        program.expect(&[("start", "0 0")]);
        program.numbers("info")[2]
    };
    let groups = machine.world.root();
    let max = |name: &str| {
        groups
            .group(name)
            .expect("a group")
            .limits()
            .expect("limits")
    };
    let whole = machine.world.machine();
    let id = whole.gpu(0).uuid.parse().expect("a UUID");
    let (others, batch) = (total(ALICE), total(BATCH));
    assert!(
        batch.abs_diff(others * 25 / 90) <= MIB,
        "{batch} of {others}"
    );
    assert_eq!(total(0), others);
    assert_eq!(max("containers/batch").bounds(&id, 100 * MIB).max, 25 * MIB);
}
