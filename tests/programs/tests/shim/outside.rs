//! Processes outside of all groups: `gpulimit ps --outside` finds them by their memory maps, and
//! says why the library does not count their memory.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use gpulimit_base::identity::{Identity, SeenProcess};
use gpulimit_base::process::{FIRST_PID_NS, pid_ns};
use gpulimit_base::units::Size;
use gpulimit_group::Root;
use gpulimit_limits::LimitSet;
use gpulimit_programs::world::{self, CONTEXT, GROUP, MIB, Session, World, eventually, text};
use gpulimit_support::is_root;
use serde_json::Value;

const CAP: u64 = 4096 * MIB;

fn controller(world: &World, arguments: &[&str]) -> Output {
    let mut command = world.bare(&world::controller());
    command
        .args(arguments)
        .env("GPULIMIT_LIBRARY", world::shim());
    world::finish(command)
}

/// Returns what `ps --outside --json` lists, and checks its exit status.
fn outside(world: &World, arguments: &[&str]) -> Vec<Value> {
    let output = controller(world, &[&["ps", "--outside", "--json"], arguments].concat());
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let found = json["outside"].as_array().expect("a list").clone();
    let status = if found.is_empty() { 0 } else { 3 };
    assert_eq!(output.status.code(), Some(status), "{output:?}");
    found
}

/// Returns the reason for this process, with whether something puts it into a group.
fn why(world: &World, program: &Session) -> Option<(String, bool)> {
    let found = outside(world, &[]);
    let entry = found.iter().find(|entry| entry["pid"] == program.pid())?;
    let why = entry["why"].as_str().expect("a word").to_owned();
    Some((why, entry["to_join"].as_bool().expect("a flag")))
}

#[track_caller]
fn on_gpu(command: Command) -> Session {
    let mut program = Session::start(command);
    program.expect(&[("start", "0 0"), ("alloc a 100M", "0")]);
    program
}

#[test]
fn each_process_in_no_group_is_listed_with_the_reason() {
    let world = World::new(CAP);
    let member = world.on_gpu();
    assert_eq!(outside(&world, &[]), <[Value; 0]>::default());
    let program = world::program();
    let with = |variables: &[(&str, &str)], mut command: Command| {
        command.envs(variables.iter().copied());
        on_gpu(command)
    };
    let place = world.file("theirs");
    let theirs = Root::at(&place).expect("a root");
    theirs
        .create(GROUP, &LimitSet::all(Size::Max))
        .expect("a group");
    let place = place.to_str().expect("UTF-8");
    let linker = || {
        let mut command = world.bare(Path::new("/lib64/ld-linux-x86-64.so.2"));
        command.arg(program);
        command
    };
    let mut cases = vec![
        ("not loaded", false, with(&[], world.bare(program))),
        (
            "environment cleared",
            true,
            with(&[("GPULIMIT_GROUP", GROUP)], world.bare(program)),
        ),
        (
            "not loaded",
            false,
            with(
                &[("LD_PRELOAD", "/nowhere/libgpulimit.so")],
                world.bare(program),
            ),
        ),
        ("no group", false, with(&[], world.preloaded(program))),
        (
            "private root",
            false,
            with(&[("GPULIMIT_ROOT", place)], world.limited(program)),
        ),
    ];
    // The dynamic linker itself is a static program.
    if linker()
        .get_program()
        .to_str()
        .is_some_and(|it| Path::new(it).exists())
    {
        cases.push(("not loaded", false, with(&[], linker())));
    }
    for (reason, is_to_join, program) in &cases {
        assert_eq!(
            why(&world, program),
            Some(((*reason).to_owned(), *is_to_join)),
            "{reason}"
        );
    }
    let found = outside(&world, &[]);
    assert_eq!(found.len(), cases.len(), "{found:?}");
    let bytes = CONTEXT + 100 * MIB;
    assert!(
        found.iter().all(|it| it["bytes"].as_u64() >= Some(bytes)),
        "{found:?}"
    );
    assert_eq!(outside(&world, &["--device", "0"]).len(), cases.len());
    let table = text(&controller(&world, &["ps", "--outside"]).stdout);
    assert_eq!(table.lines().count(), 1 + cases.len(), "{table}");
    // `top` counts the same processes.
    let top = controller(&world, &["top", "--once", "--json"]);
    let top: Value = serde_json::from_slice(&top.stdout).expect("JSON");
    let gpu = &top["gpus"][0];
    assert_eq!(gpu["outsiders"], cases.len(), "{gpu}");
    let sum: u64 = found.iter().filter_map(|it| it["bytes"].as_u64()).sum();
    assert_eq!(gpu["outside"], sum, "{gpu}");
    let shown = text(&controller(&world, &["top", "--once"]).stdout);
    assert!(
        shown.contains(&format!("  {} outside ", cases.len())),
        "{shown}"
    );
    // `doctor` warns of processes that ought to be in a group, by the same list.
    let doctor = text(&controller(&world, &["doctor"]).stdout);
    let warned = format!("process {} has", cases[1].2.pid());
    assert!(doctor.contains(&warned), "{doctor}");
    assert_eq!(
        doctor.matches("that no group counts").count(),
        1,
        "{doctor}"
    );
    for (.., program) in cases {
        program.end();
    }
    member.end_quietly();
    world.settle();
    assert_eq!(outside(&world, &[]), <[Value; 0]>::default());
}

#[test]
fn a_process_above_shows_that_the_environment_was_cleared() {
    let world = World::new(CAP);
    let mut shell = world.preloaded("sh".as_ref());
    shell
        .args(["-c", "env -u LD_PRELOAD \"$0\"; true"])
        .arg(world::program());
    let shell = on_gpu(shell);
    let found = outside(&world, &[]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0]["why"], "environment cleared", "{found:?}");
    let says = found[0]["says"].as_str().expect("a sentence");
    assert!(
        says.contains(&format!("of process {} names", shell.pid())),
        "{says}"
    );
    shell.end_quietly();
}

/// Nobody but root could read the memory map of the process that has ended.
#[test]
fn memory_that_a_forked_child_keeps_of_a_member_is_not_outside() {
    if !is_root() || pid_ns() != FIRST_PID_NS {
        return;
    }
    let world = World::new(CAP);
    let open = Permissions::from_mode(0o666);
    std::fs::set_permissions(world.machine().state(), open).expect("for all users");
    let mut member = world.on_gpu();
    let (forked, go) = (world.file("forked"), world.file("go"));
    let (said, waited) = (forked.display(), go.display());
    member.tell(&format!("background {{\ntouch {said}\nwait {waited}\n}}"));
    assert!(eventually(|| forked.exists()));
    member.kill();
    let mut user = world.bare("setpriv".as_ref());
    user.args(["--reuid=40077", "--regid=40077", "--clear-groups"])
        .arg(world::controller())
        .args(["ps", "--outside", "--json"])
        .env_remove("GPULIMIT_ROOT");
    let output = world::finish(user);
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(json["outside"].as_array().map(Vec::len), Some(0), "{json}");
    assert!(
        world.usage(0).charged > CONTEXT,
        "the child keeps the memory"
    );
    std::fs::write(go, "").expect("a file");
    world.settle();
}

/// Any member can write any pid into the ledger of its group.
#[test]
fn an_entry_in_a_ledger_proves_nothing() {
    let world = World::new(CAP);
    let member = world.on_gpu();
    let stranger = on_gpu(world.bare(world::program()));
    let start_time = SeenProcess::by_pid(stranger.pid()).start_time();
    let ledger = world.ledger();
    let forged = Identity {
        pid: stranger.pid(),
        start_time: start_time.expect("it lives"),
        ..Identity::of_self()
    };
    let slot = ledger.claim(&forged, "").expect("a slot");
    let shown = text(&controller(&world, &["ps"]).stdout);
    assert!(shown.contains(&stranger.pid().to_string()), "{shown}");
    assert_eq!(
        why(&world, &stranger),
        Some(("not loaded".to_owned(), false))
    );
    assert_eq!(why(&world, &member), None);
    drop(slot);
    stranger.end_quietly();
    member.end_quietly();
}
