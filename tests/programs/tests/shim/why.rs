//! The test of truth of `gpulimit why`: in each situation a program is refused memory, its user
//! obeys the first advice and repeats the request, and the request is granted. The two situations
//! of a test differ in one figure, and so in the first advice.

use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Command;

use gpulimit_base::identity::Identity;
use gpulimit_ledger::{Details, EventKind, Happening, Ledger, NoWitness};
use gpulimit_programs::world::{self, MIB, Session, World, eventually};
use gpulimit_support::{is_root, may_unshare};
use serde_json::{Value, json};

/// The user who asks, and another one.
const ALICE: u32 = 40_001;
const BOB: u32 = 40_002;
/// What a context takes on this machine, in MiB.
const CONTEXT: u64 = 10;

/// What happens between the refusal and the question.
#[derive(Clone, Copy)]
enum Later {
    Nothing,
    /// The refused program ends.
    Ends,
    /// The first other program frees its memory.
    Frees,
}

/// A situation. All sizes are in MiB.
#[derive(Clone, Copy)]
struct Case {
    /// The memory of the GPU.
    gpu: u64,
    /// The groups: name, who makes it and may change its limits, settings.
    groups: &'static [(&'static str, u32, &'static str)],
    /// The other programs: group ("" for a program without the library), user, memory.
    others: &'static [(&'static str, u32, u64)],
    /// The group of the program, or the limit of a job of its own.
    place: &'static str,
    /// What the program holds, and then asks for.
    holds: u64,
    asks: u64,
    /// The command of `gpu-script` that asks.
    call: &'static str,
    later: Later,
    /// The first advice.
    first: &'static str,
    /// Advice that must not be given, as the user cannot follow it.
    never: &'static [&'static str],
}

const CASE: Case = Case {
    gpu: 8192,
    groups: &[("lab", 0, "max=2G")],
    others: &[],
    place: "lab",
    holds: 100,
    asks: 1000,
    call: "alloc",
    later: Later::Nothing,
    first: "",
    never: &[],
};

/// The call that asks for a context, of a program that has none yet.
const CONTEXTS: &str = "retain 0";

impl Case {
    /// Returns the command that asks for so many bytes.
    fn ask(&self, name: &str, bytes: u64) -> String {
        match self.call {
            CONTEXTS => CONTEXTS.to_owned(),
            call => format!("{call} {name} {bytes}"),
        }
    }
}

/// The world of a case, with its programs.
struct Scene {
    world: World,
    case: Case,
    others: Vec<Session>,
    program: Option<Session>,
}

impl Scene {
    fn new(case: Case) -> Scene {
        let context = (CONTEXT * MIB).to_string();
        let gpu = (case.gpu * MIB).to_string();
        let world = World::without_group(&[
            ("GPULIMIT_SIM_CONTEXT_BYTES", &context),
            ("GPULIMIT_SIM_CAPACITY", &gpu),
        ]);
        // The job of a user who is not root needs a root of their own.
        let shared = if case.groups.is_empty() {
            0o755
        } else {
            0o1777
        };
        for (path, mode) in [
            (world.machine().state(), 0o666),
            (world.root().path(), shared),
        ] {
            let open = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(path, open).expect("for all users");
        }
        if case.groups.is_empty() {
            // The record of a job is in the root's trail, which only the root's owner reads.
            std::os::unix::fs::chown(world.root().path(), Some(ALICE), None).expect("root may");
        }
        for (name, maker, settings) in case.groups {
            let mut create = world.bare(&world::controller());
            create.args(["create", name, "--members", "all"]);
            if *maker == 0 {
                // The owner may make groups in it, and not change its limits.
                create.args(["--owner", &ALICE.to_string()]);
            }
            create.args(settings.split_whitespace());
            let create = by(*maker, create);
            let done = world::finish(create);
            assert!(done.status.success(), "{done:?}");
        }
        let mut scene = Scene {
            world,
            case,
            others: Vec::new(),
            program: None,
        };
        for (group, user, size) in case.others {
            let mut other = Session::start(match *group {
                "" => by(*user, scene.world.bare(world::program())),
                group => scene.member(group, *user),
            });
            let alloc = format!("alloc a {size}M");
            other.expect(&[("start", "0 0"), (&*alloc, "0")]);
            scene.others.push(other);
        }
        scene.program = Some(scene.start(case.place));
        let ask = case.ask("asked", case.asks * MIB);
        scene.program().expect(&[(&*ask, "2")]);
        match case.later {
            Later::Nothing => {}
            Later::Ends => {
                let program = scene.program.take().expect("started");
                let pid = program.pid();
                program.end();
                scene.bury(&[pid]);
            }
            Later::Frees => scene.others[0].expect(&[("free a", "0")]),
        }
        scene
    }

    fn program(&mut self) -> &mut Session {
        self.program.as_mut().expect("started")
    }

    fn member(&self, group: &str, user: u32) -> Command {
        let mut command = self.world.preloaded(world::program());
        command.env("GPULIMIT_GROUP", group);
        by(user, command)
    }

    /// Starts the program in a group, or as a job with a limit, and allocates what it holds.
    fn start(&self, place: &str) -> Session {
        let command = match place.starts_with("--") {
            true => {
                let program = world::program().to_str().expect("text");
                self.verb(&format!("exec gpulimit run {place} -- {program}"))
            }
            false => self.member(place, ALICE),
        };
        let mut program = Session::start(command);
        if self.case.call == CONTEXTS {
            program.expect(&[("init", "0")]);
            return program;
        }
        let alloc = format!("alloc held {}M", self.case.holds);
        program.expect(&[("start", "0 0"), (&*alloc, "0")]);
        program
    }

    /// Returns a command line of the user's shell.
    fn verb(&self, line: &str) -> Command {
        let mut shell = self.world.bare("sh".as_ref());
        with_controller(shell.args(["-c", line]));
        by(ALICE, shell)
    }

    fn said(&self, line: &str) -> String {
        let output = world::finish(self.verb(line));
        assert!(output.status.success(), "{line}: {output:?}");
        world::text(&output.stdout)
    }

    /// Returns the advice, the best first.
    fn advice(&self) -> Vec<Value> {
        let json: Value = serde_json::from_str(&self.said("gpulimit why --json")).expect("JSON");
        let advice = json["now"]["advice"].as_array();
        advice.unwrap_or_else(|| panic!("{json:#}")).clone()
    }

    /// Waits until the driver has freed the memory of these processes.
    fn bury(&self, pids: &[u32]) {
        let gone = || {
            let gpu = self.world.machine().gpu(0);
            !gpu.holders.iter().any(|holder| pids.contains(&holder.pid))
        };
        assert!(eventually(gone), "{:?}", self.world.machine().gpus());
    }

    /// Follows an advice and repeats the request, which must be granted.
    fn obey(mut self, advice: &Value) {
        let mut asks = self.case.asks * MIB;
        let mut place = self.case.place.to_owned();
        let command = advice["command"].as_str();
        let pids = advice["pids"].as_array().expect("a list").iter();
        let pids: Vec<u32> = pids
            .map(|pid| pid.as_u64().expect("a pid") as u32)
            .collect();
        match (advice["advice"].as_str().expect("a word"), command) {
            ("again", None) => {}
            ("smaller", None) => asks = advice["bytes"].as_u64().expect("bytes"),
            ("raise" | "lower", Some(command)) if command.contains(" -- COMMAND") => {
                let words: Vec<&str> = command.split_whitespace().collect();
                place = words[2..4].join(" ");
            }
            ("raise" | "lower" | "suspend", Some(command)) => _ = self.said(command),
            ("end", Some(command)) => {
                self.said(command);
                self.bury(&pids);
            }
            ("wait", None) => {
                let (ended, stay): (Vec<_>, Vec<_>) = self
                    .others
                    .drain(..)
                    .partition(|one| pids.contains(&one.pid()));
                assert_eq!(ended.len(), pids.len(), "{advice}");
                ended.into_iter().for_each(Session::kill);
                self.others = stay;
                self.bury(&pids);
            }
            _ => panic!("{advice}"),
        }
        if self.program.is_none() {
            self.program = Some(self.start(&place));
        }
        let ask = self.case.ask("again", asks);
        self.program().expect(&[(&*ask, "0")]);
    }
}

/// Returns the command, run by a user.
fn by(user: u32, mut command: Command) -> Command {
    command.uid(user).gid(user).current_dir("/");
    command
}

/// Obeys the first advice of two situations that differ in one figure, and returns it.
fn differ(one: Case, other: Case) {
    if !is_root() {
        return;
    }
    let [one, other] = [one, other].map(|case| {
        let scene = Scene::new(case);
        let advice = scene.advice();
        println!("{}", scene.said("gpulimit why"));
        let words: Vec<&str> = advice
            .iter()
            .map(|one| one["advice"].as_str().expect("a word"))
            .collect();
        assert_eq!(
            words.first().copied().unwrap_or(""),
            case.first,
            "{advice:#?}"
        );
        for word in case.never {
            assert!(!words.contains(word), "{word}: {advice:#?}");
        }
        let first = advice[0].clone();
        // Pids differ in any case.
        let mut said = format!("{} {}", first["text"], first["command"]);
        for (at, pid) in scene.others.iter().map(Session::pid).enumerate() {
            said = said.replace(&pid.to_string(), &format!("#{at}"));
        }
        scene.obey(&first);
        said
    });
    assert_ne!(one, other);
}

/// Returns the number of refusals that a form of `why` explains.
fn explained(scene: &Scene, line: &str) -> usize {
    let json: Value = serde_json::from_str(&scene.said(line)).expect("JSON");
    json["refusals"].as_array().expect("a list").len()
}

#[test]
fn a_refusal_is_found_by_group_and_process_and_skipped_after_a_recovery() {
    if !is_root() {
        return;
    }
    let groups = &[("lab", 0, "max=2G"), ("lab/a", 0, ""), ("lab/b", 0, "")];
    let case = Case {
        groups,
        place: "lab/a",
        asks: 3000,
        ..CASE
    };
    let mut scene = Scene::new(case);
    let pid = scene.program().pid();
    scene.program().expect(&[("managed more 3000M", "2")]);
    // The group above has refused the request of a program in lab/a.
    for (line, count) in [
        ("gpulimit why --json", 1),
        ("gpulimit why --json --all", 2),
        ("gpulimit why --json lab", 1),
        ("gpulimit why --json lab/a", 1),
        ("gpulimit why --json lab/b", 0),
        (&*format!("gpulimit why --json --pid {pid}"), 1),
        ("gpulimit why --json --pid 1", 0),
    ] {
        assert_eq!(explained(&scene, line), count, "{line}");
    }
    let lab = scene.world.root().group("lab").expect("a group");
    let ledger = Ledger::open(&lab.ledger_path()).expect("a ledger");
    let refused = ledger.events(0).pop().expect("an event").what;
    let recovered = |device| {
        let kind = EventKind::Recovered;
        ledger.record(&Happening {
            kind,
            device,
            ..refused
        });
        explained(&scene, "gpulimit why --json --all")
    };
    assert_eq!(recovered(None), 2, "another GPU");
    assert_eq!(recovered(refused.device), 0);
    let text = scene.said("gpulimit why lab");
    assert!(
        text.starts_with("Nothing is to be done: after each refusal of `lab`"),
        "{text}"
    );
    let text = scene.said("gpulimit why --pid 1");
    assert!(
        text.starts_with("No refusal of process 1 is on record. "),
        "{text}"
    );
}

/// A user who cannot read the system root's trail has a copy of their refusals in their own.
#[test]
fn copies_of_refusals_are_events_and_are_explained() {
    let world = World::without_group(&[]);
    let path = world.root().path().join(".trail");
    Ledger::create_with_history(&path, 0o600).expect("made");
    let trail = Ledger::open(&path).expect("opened");
    let gpu = world.machine().gpu(0).uuid.parse().expect("a UUID");
    let device = trail.device(gpu, 8 << 30).expect("a device");
    let refused = Happening {
        kind: EventKind::Refusal,
        device: Some(device),
        process: Identity::of_self(),
        bytes: 5 << 30,
        charged: 1 << 30,
        max: 4 << 30,
    };
    let owner = Some(0);
    trail.record_in(
        Some(&trail),
        &refused,
        &Details {
            group: "run-1-2",
            owner,
            ..Details::default()
        },
    );
    let said = |line: &str| {
        let mut verb = world.bare(&world::controller());
        verb.args(line.split(' '));
        world::text(&world::finish(verb).stdout)
    };
    let json: Value = serde_json::from_str(&said("why --json")).expect("JSON");
    let refusals = json["refusals"].as_array().expect("a list");
    assert_eq!(refusals.len(), 1, "{json:#}");
    let place = (refusals[0]["root"].as_str(), refusals[0]["group"].as_str());
    assert_eq!(place, (Some("/run/gpulimit"), Some("run-1-2")));
    assert_eq!(
        json["now"]["advice"][0]["command"],
        "gpulimit run --max 5.1G -- COMMAND"
    );
    assert!(said("events").contains("run-1-2"), "an event, too");
}

#[test]
fn a_refusal_above_is_found_by_the_group_of_a_program_that_has_ended() {
    if !is_root() {
        return;
    }
    let scene = Scene::new(Case {
        groups: &[("lab", 0, "max=2G"), ("lab/a", 0, ""), ("lab/b", 0, "")],
        place: "lab/a",
        asks: 3000,
        later: Later::Ends,
        ..CASE
    });
    assert_eq!(explained(&scene, "gpulimit why --json lab/a"), 1);
    assert_eq!(explained(&scene, "gpulimit why --json lab/b"), 0);
}

/// Returns a shell for all users' programs, whose roots of groups no other test sees.
fn alone(world: &World, script: &str) -> Command {
    let open = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(world.machine().state(), open).expect("for all users");
    const MOUNTS: &str = "
        mount -t tmpfs -o mode=755 tmpfs /run
        machine=${GPULIMIT_SIM_STATE%/*}
        mkdir /run/machine && mount --bind $machine /run/machine
        mount -t tmpfs -o mode=1777 tmpfs /dev/shm
        mkdir -p $machine && mount --bind /run/machine $machine";
    let mut shell = world.bare("unshare".as_ref());
    shell
        .args(["--mount", "sh", "-c", &format!("{MOUNTS}\n{script}")])
        .env_remove("GPULIMIT_ROOT")
        .env("PROGRAM", world::program());
    with_controller(&mut shell);
    shell
}

/// Lets a shell find the controller, and the controller the library.
fn with_controller(shell: &mut Command) {
    let controller = world::controller();
    let folder = controller.parent().expect("a folder").display();
    let path = std::env::var("PATH").unwrap_or_default();
    shell
        .env("PATH", format!("{folder}:{path}"))
        .env("GPULIMIT_LIBRARY", world::shim());
}

/// Programs of root's jobs that run as another user leave their refusals to that user and to root.
#[test]
fn refusals_of_roots_jobs_are_found_by_their_user_and_by_root() {
    if !is_root() || !may_unshare(&["--mount"]) {
        return;
    }
    let world = World::without_group(&[]);
    let script = "
        user() { setpriv --reuid 40077 --regid 40077 --clear-groups \"$@\"; }
        refuse() { printf 'start 0\\nalloc a 2G\\n' | \"$@\" $PROGRAM >&2; }
        refuse gpulimit run --user 40077:40077 --max 1G --
        user gpulimit why | grep 'gpulimit run' && echo '\"The user may not.\"'
        refuse gpulimit run --max 1G -- setpriv --reuid 40077 --regid 40077 --clear-groups
        gpulimit why --all --json
        user gpulimit why --all --json
        gpulimit events --kind refusal --json
        user gpulimit events --kind refusal --json";
    let output = world::finish(alone(&world, script));
    let said = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>();
    let counts = said.map(|json| match &json.expect("JSON")["refusals"] {
        Value::Array(refusals) => refusals.len(),
        _ => 1,
    });
    let counts: Vec<usize> = counts.collect();
    assert_eq!(counts, [2, 2, 1, 1, 1, 1], "{output:?}");
}

/// In a job of root, whose programs find the group by a secret path, and outside of it.
#[test]
fn a_refusal_in_roots_job_is_explained_inside_and_outside() {
    if !is_root() || !may_unshare(&["--mount"]) {
        return;
    }
    let world = World::without_group(&[]);
    let job = "
        user() { setpriv --reuid 40078 --regid 40078 --clear-groups \"$@\"; }
        hold='start 0\\nalloc a 300M\\ntouch /run/all/held\\nwait /run/all/asked\\n'
        printf \"$hold\" | user $PROGRAM >&2 &
        until [ -e /run/all/held ]; do sleep 0.01; done
        printf 'start 0\\nalloc a 100M\\nalloc b 2G\\n' | user $PROGRAM >&2
        gpulimit why --json
        user gpulimit why --json
        user env -u GPULIMIT_ROOT -u GPULIMIT_GROUP gpulimit why --json
        touch /run/all/asked
        wait";
    let script = "
        mkdir -m 1777 /run/all
        gpulimit run --max 2G -- sh -c \"$JOB\"";
    let mut shell = alone(&world, script);
    shell.env("JOB", job);
    let output = world::finish(shell);
    assert!(!world::text(&output.stdout).contains(".secret"));
    let said = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>();
    let said: Vec<Value> = said.map(|json| json.expect("JSON")).collect();
    assert_eq!(said.len(), 3, "{output:?}");
    for (json, is_outside) in said.iter().zip([false, false, true]) {
        let refusals = json["refusals"].as_array().expect("a list");
        assert_eq!(refusals.len(), 1, "{json:#}");
        let holders = refusals[0]["holders"].as_array().expect("a list");
        assert_eq!(holders.len(), 2, "{json:#}");
        assert_eq!(refusals[0]["cause"], "limit", "{json:#}");
        // The program needs what it held itself, and not what its group had.
        let held = holders.iter().map(|one| one["bytes"].as_u64()).min();
        let beside = json["now"]["beside"].as_u64();
        assert!(
            beside < held.flatten().map(|held| held + 10 * MIB),
            "{json:#}"
        );
        // Only root and programs of the job can look into it.
        let group = &json["now"]["groups"][0];
        assert_eq!(group["left"].is_null(), is_outside, "{json:#}");
        assert_eq!(group["gone"], false, "{json:#}");
    }
}

/// The driver may hold the memory of a dead program for a while.
#[test]
fn what_a_dead_program_still_holds_is_not_counted_twice() {
    if !is_root() {
        return;
    }
    let mut scene = Scene::new(Case {
        others: &[("lab", BOB, 300)],
        holds: 800,
        ..CASE
    });
    let knob = |scene: &Scene, value| scene.world.machine().knob("kill-lag-ms", value);
    knob(&scene, "3600000");
    let program = scene.program.take().expect("started");
    let pid = program.pid();
    program.kill();
    scene.others[0].expect(&[("free a", "0")]);
    let advice = scene.advice();
    assert_eq!(advice[0]["advice"], "again", "{advice:#?}");
    knob(&scene, "0");
    scene.bury(&[pid]);
    scene.obey(&advice[0]);
}

/// A child that a dead program has forked keeps the driver's files open, and with them the memory.
#[test]
fn what_a_child_of_a_dead_program_keeps_is_not_left() {
    /// Where a ledger has its slots, the bytes of one, and where it has the time of a death
    /// (`crates/ledger/src/layout.rs`).
    const SLOTS: u64 = (16 << 10) + (2 << 20);
    const SLOT: u64 = 8 << 10;
    const DEAD_SINCE: u64 = 40;
    if !is_root() {
        return;
    }
    let mut scene = Scene::new(Case {
        others: &[("lab", BOB, 1000)],
        ..CASE
    });
    let lab = scene.world.root().group("lab").expect("a group");
    let mut parent = scene.others.pop().expect("started");
    let pid = parent.pid();
    let members = Ledger::open(&lab.ledger_path()).expect("a ledger");
    let members = members.processes(&NoWitness);
    let member = members.iter().find(|one| one.identity.pid == pid);
    let at = SLOTS + SLOT * member.expect("a member").slot as u64 + DEAD_SINCE;
    assert_eq!(parent.say("background {\nsleep 600000\n}"), "0");
    parent.kill();
    let first = scene.advice()[0].clone();
    assert_eq!(first["advice"], "again", "a request waits for it: {first}");
    // Requests wait for half a minute after a death was noticed.
    let mut options = File::options();
    let ledger = options.read(true).write(true).open(lab.ledger_path());
    let ledger = ledger.expect("a ledger");
    let mut since = [0; 8];
    ledger.read_exact_at(&mut since, at).expect("read");
    let since = u64::from_le_bytes(since) - 30_000;
    let written = ledger.write_all_at(&since.to_le_bytes(), at);
    written.expect("written");
    scene.program().expect(&[("alloc again 1000M", "2")]);
    let first = scene.advice()[0].clone();
    assert_eq!(first["advice"], "wait", "{first}");
    assert_eq!(first["pids"], json!([pid]), "{first}");
    let said = format!("the end of the children of the ended process {pid} (gpu-script) of");
    assert!(
        first["text"].as_str().expect("text").contains(&said),
        "{first}"
    );
    let mut kill = Command::new("kill");
    kill.args(["-KILL", "--", &format!("-{pid}")]);
    assert!(world::finish(kill).status.success());
    scene.bury(&[pid]);
    scene.program().expect(&[("alloc again 1000M", "0")]);
}

#[test]
fn an_ended_program_that_held_nothing_needs_only_what_it_asked_for() {
    let case = Case {
        groups: &[("lab", 0, "max=1G")],
        asks: CONTEXT,
        call: CONTEXTS,
        later: Later::Ends,
        ..CASE
    };
    differ(
        Case {
            others: &[("lab", ALICE, 1006)],
            first: "suspend",
            ..case
        },
        Case {
            others: &[("lab", BOB, 1006)],
            first: "wait",
            ..case
        },
    );
}

#[test]
fn what_min_keeps_is_no_room_for_a_program_that_starts_again() {
    let case = Case {
        place: "lab/job",
        asks: 1200,
        later: Later::Ends,
        ..CASE
    };
    differ(
        Case {
            groups: &[
                ("lab", 0, "max=2G"),
                ("lab/job", 0, ""),
                ("lab/kept", 0, "min=1000M"),
            ],
            first: "smaller",
            ..case
        },
        Case {
            groups: &[
                ("lab", 0, "max=2G"),
                ("lab/job", 0, ""),
                ("lab/kept", 0, "min=500M"),
            ],
            asks: 1700,
            first: "smaller",
            ..case
        },
    );
}

const OWN: &[(&str, u32, &str)] = &[("lab", ALICE, "max=2G")];

#[test]
fn a_limit_is_raised_unless_the_gpu_is_full() {
    let case = Case {
        groups: OWN,
        asks: 2000,
        ..CASE
    };
    differ(
        Case {
            first: "raise",
            ..case
        },
        Case {
            first: "smaller",
            gpu: 2080,
            never: &["raise"],
            ..case
        },
    );
}

#[test]
fn a_limit_is_raised_by_its_owner() {
    let case = Case { asks: 2000, ..CASE };
    differ(
        Case {
            first: "raise",
            groups: OWN,
            ..case
        },
        Case {
            first: "smaller",
            never: &["raise"],
            ..case
        },
    );
}

#[test]
fn a_limit_is_raised_as_far_as_the_group_above_allows() {
    let case = Case {
        place: "lab/a",
        holds: 800,
        asks: 500,
        ..CASE
    };
    differ(
        Case {
            first: "raise",
            groups: &[("lab", 0, "max=4G"), ("lab/a", ALICE, "max=1G")],
            ..case
        },
        Case {
            first: "smaller",
            groups: &[("lab", 0, "max=1200M"), ("lab/a", ALICE, "max=1G")],
            never: &["raise"],
            ..case
        },
    );
}

#[test]
fn the_limit_of_a_gpu_is_raised_with_its_index() {
    let case = Case { asks: 2000, ..CASE };
    differ(
        Case {
            first: "raise",
            groups: &[("lab", ALICE, "max=2G --device 0")],
            ..case
        },
        Case {
            first: "raise",
            groups: OWN,
            ..case
        },
    );
}

#[test]
fn a_job_gets_more_while_it_runs_and_when_it_starts_again() {
    let case = Case {
        place: "--max 1G",
        groups: &[],
        first: "raise",
        ..CASE
    };
    differ(
        case,
        Case {
            later: Later::Ends,
            ..case
        },
    );
}

/// A stranger uses the GPU beside a group that keeps 2 GiB of it free.
#[test]
fn keep_free_is_lowered_only_by_who_may() {
    let case = Case {
        groups: &[("lab", ALICE, "keep_free=2G")],
        others: &[("", BOB, 5100)],
        ..CASE
    };
    let other = Case {
        groups: &[("lab", 0, "keep_free=2G")],
        first: "wait",
        never: &["lower"],
        ..case
    };
    differ(
        Case {
            first: "lower",
            ..case
        },
        other,
    );
    // Lowered to 0, it leaves too little.
    let full = Case {
        asks: 3000,
        first: "wait",
        never: &["lower"],
        ..case
    };
    differ(
        Case {
            first: "lower",
            ..case
        },
        full,
    );
    let job = Case {
        place: "--keep-free 2G",
        groups: &[],
        first: "lower",
        ..case
    };
    differ(
        job,
        Case {
            later: Later::Ends,
            ..job
        },
    );
}

/// The command that is printed works as it stands where the library is in all programs, and the
/// shell exports a limit.
#[test]
fn a_printed_run_is_no_part_of_the_callers_own_job() {
    if !is_root() {
        return;
    }
    let scene = Scene::new(Case {
        place: "--max 1G",
        groups: &[],
        later: Later::Ends,
        ..CASE
    });
    let library = world::shim();
    let shell = format!("export GPULIMIT_MAX=1G LD_PRELOAD={}; ", library.display());
    let json = scene.said(&format!("{shell} gpulimit why --json"));
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let command = json["now"]["advice"][0]["command"].as_str().expect("text");
    let begin = "env -u GPULIMIT_GROUP -u GPULIMIT_MAX gpulimit run --max ";
    assert!(command.starts_with(begin), "{command}");
    let program = world::program().display().to_string();
    let line = format!("{shell} exec {}", command.replace("COMMAND", &program));
    let mut program = Session::start(scene.verb(&line));
    program.expect(&[
        ("start", "0 0"),
        ("alloc held 100M", "0"),
        ("alloc asked 1000M", "0"),
    ]);
}

#[test]
fn own_processes_are_suspended_and_others_are_awaited() {
    let case = Case { asks: 1500, ..CASE };
    differ(
        Case {
            first: "suspend",
            others: &[("lab", ALICE, 1000)],
            ..case
        },
        Case {
            first: "wait",
            others: &[("lab", BOB, 1000)],
            never: &["suspend", "end", "raise"],
            ..case
        },
    );
}

#[test]
fn processes_are_suspended_only_with_room_on_the_host() {
    let case = Case {
        asks: 1500,
        others: &[("lab", ALICE, 1000)],
        ..CASE
    };
    differ(
        Case {
            first: "suspend",
            ..case
        },
        Case {
            first: "end",
            groups: &[("lab", 0, "max=2G suspended.max=100M")],
            never: &["suspend"],
            ..case
        },
    );
}

#[test]
fn a_request_is_repeated_once_there_is_room() {
    let case = Case {
        asks: 1500,
        others: &[("lab", BOB, 1000)],
        ..CASE
    };
    differ(
        Case {
            first: "again",
            later: Later::Frees,
            ..case
        },
        Case {
            first: "wait",
            ..case
        },
    );
}

#[test]
fn a_program_that_starts_again_needs_what_it_held() {
    let case = Case {
        holds: 600,
        others: &[("lab", BOB, 600)],
        later: Later::Ends,
        ..CASE
    };
    differ(
        Case {
            first: "wait",
            ..case
        },
        Case {
            first: "wait",
            others: &[("lab", BOB, 700)],
            ..case
        },
    );
}

#[test]
fn the_smallest_process_that_suffices_is_named() {
    let others = &[("lab", BOB, 900), ("lab", BOB, 500)];
    let case = Case {
        first: "wait",
        others,
        ..CASE
    };
    differ(Case { asks: 900, ..case }, Case { asks: 1300, ..case });
}

#[test]
fn several_processes_are_named_if_one_does_not_suffice() {
    let others = &[("lab", BOB, 500), ("lab", BOB, 500), ("lab", BOB, 100)];
    let case = Case {
        first: "wait",
        others,
        ..CASE
    };
    differ(Case { asks: 1100, ..case }, Case { asks: 1500, ..case });
}

#[test]
fn less_memory_fits_beside_what_min_keeps() {
    let case = Case {
        place: "lab/a",
        first: "smaller",
        asks: 1800,
        ..CASE
    };
    const A: (&str, u32, &str) = ("lab/a", ALICE, "");
    const LAB: (&str, u32, &str) = ("lab", 0, "max=2G");
    differ(
        Case {
            groups: &[LAB, A, ("lab/b", 0, "min=500M")],
            ..case
        },
        Case {
            groups: &[LAB, A, ("lab/b", 0, "min=1000M")],
            ..case
        },
    );
}

#[test]
fn the_wait_is_as_long_as_the_group_lets_requests_wait() {
    let case = Case {
        first: "wait",
        asks: 1500,
        others: &[("lab", BOB, 1000)],
        ..CASE
    };
    differ(
        case,
        Case {
            groups: &[("lab", 0, "max=2G on_limit=wait wait_timeout=10ms")],
            ..case
        },
    );
}

#[test]
fn a_limit_is_raised_only_if_no_other_group_lacks_room() {
    let case = Case {
        place: "lab/a",
        holds: 100,
        asks: 1200,
        ..CASE
    };
    differ(
        Case {
            first: "raise",
            groups: &[("lab", ALICE, "max=1G"), ("lab/a", ALICE, "max=2G")],
            ..case
        },
        Case {
            first: "smaller",
            groups: &[("lab", ALICE, "max=1G"), ("lab/a", ALICE, "max=1100M")],
            never: &["raise"],
            ..case
        },
    );
}

#[test]
fn what_fits_is_granted_to_pools_and_to_programs_that_start_again() {
    let case = Case {
        call: "async",
        asks: 2000,
        first: "smaller",
        ..CASE
    };
    differ(case, Case { holds: 300, ..case });
    let case = Case {
        later: Later::Ends,
        ..case
    };
    differ(case, Case { holds: 300, ..case });
    let case = Case {
        groups: OWN,
        first: "raise",
        ..case
    };
    differ(case, Case { holds: 300, ..case });
}

const WHOLE: &[(&str, u32, &str)] = &[("lab", ALICE, "max=20G")];

#[test]
fn a_gpu_that_others_fill_is_freed_by_their_users() {
    let case = Case {
        groups: WHOLE,
        asks: 4000,
        never: &["raise"],
        ..CASE
    };
    differ(
        Case {
            first: "end",
            others: &[("", ALICE, 5000)],
            ..case
        },
        Case {
            first: "wait",
            others: &[("", BOB, 5100)],
            never: &["raise", "end"],
            ..case
        },
    );
    let case = Case {
        later: Later::Ends,
        first: "end",
        others: &[("", ALICE, 5000)],
        ..case
    };
    let others = &[("", ALICE, 5500)];
    differ(case, Case { others, ..case });
}

#[test]
fn nothing_smaller_is_advised_than_a_context() {
    let case = Case {
        groups: &[("lab", ALICE, "max=5M")],
        first: "raise",
        never: &["smaller"],
        call: CONTEXTS,
        ..CASE
    };
    differ(
        case,
        Case {
            groups: &[("lab", ALICE, "max=6M")],
            ..case
        },
    );
}

#[test]
fn a_request_larger_than_the_gpu_is_made_smaller() {
    let case = Case {
        groups: WHOLE,
        asks: 9000,
        first: "smaller",
        never: &["raise"],
        ..CASE
    };
    differ(case, Case { gpu: 7000, ..case });
}
