//! The events of a group that is gone are still shown, with what the group's own ring does not
//! have.

use gpulimit_ledger::EventKind;
use gpulimit_programs::world::{self, CONTEXT, MIB, Session, World};
use serde_json::Value;

/// Returns the events of a kind that `gpulimit events` shows with these arguments.
fn events(world: &World, arguments: &[&str]) -> Vec<Value> {
    let mut command = world.bare(&world::controller());
    command.args(["events", "--json"]).args(arguments);
    let output = world::finish(command);
    assert!(output.status.success(), "{output:?}");
    let text = world::text(&output.stdout);
    let parse = |line: &str| serde_json::from_str(line).expect("JSON");
    text.lines().map(parse).collect()
}

#[test]
fn a_refused_job_leaves_its_events() {
    let world = World::without_group(&[]);
    let mut command = world.bare(&world::controller());
    let library = world::shim();
    command
        .env("GPULIMIT_LIBRARY", library)
        .args(["run", "--max", "1G", "--"])
        .arg(world::program());
    let mut program = Session::start(command);
    let pid = program.pid();
    program.expect(&[
        ("start", "0 0"),
        ("alloc a 100M", "0"),
        ("alloc b 600M", "2"),
        ("alloc c 700M", "2"),
        ("alloc d 700M", "2"),
    ]);
    let (status, _) = program.end();
    assert!(status.success());
    // A job that the library itself makes.
    let mut command = world.preloaded(world::program());
    command.env("GPULIMIT_MAX", "1G");
    let mut other = Session::start(command);
    let other_pid = other.pid();
    other.expect(&[("start", "0 0"), ("alloc b 700M", "2")]);
    assert!(other.end().0.success());
    // The groups go once the driver has freed the memory.
    let gone = || {
        let mut command = world.bare(&world::controller());
        command.arg("gc");
        assert!(world::finish(command).status.success());
        world.root().groups().expect("listed").is_empty()
    };
    assert!(world::eventually(gone));

    let refused = events(&world, &["--kind", "refusal"]);
    assert_eq!(refused.len(), 2, "{refused:#?}");
    // The requests of a process share a line, which has the figures of the last one.
    for (event, kind, pid, bytes, used, count) in [
        (&refused[0], "run-", pid, 700 * MIB, CONTEXT + 100 * MIB, 3),
        (&refused[1], "job-", other_pid, 700 * MIB, CONTEXT, 1),
    ] {
        assert_eq!(event["count"], count, "{event}");
        let group = event["group"].as_str().expect("a name");
        assert!(group.starts_with(kind), "{event}");
        assert_eq!(event["event"], "refusal");
        assert_eq!(event["command"], "gpu-script");
        assert_eq!(
            (&event["pid"], &event["bytes"]),
            (&pid.into(), &bytes.into())
        );
        assert_eq!(
            (&event["function"], &event["max"]),
            (&"cuMemAlloc".into(), &(1024 * MIB).into())
        );
        let holders = event["holders"].as_array().expect("a list");
        assert_eq!(holders.len(), 1, "{event}");
        assert_eq!(
            (&holders[0]["pid"], &holders[0]["bytes"]),
            (&pid.into(), &used.into())
        );
        let of_group = events(&world, &[group]);
        assert_eq!(&of_group[0], event);
        // The memory that the process held when it ended.
        assert_eq!((of_group.len(), &of_group[1]["event"]), (2, &"reap".into()));
        assert_eq!(of_group[1]["pid"], pid);
    }
}

#[test]
fn a_kill_names_its_cause_and_both_processes() {
    let world = World::new(3 * CONTEXT + 600 * MIB);
    world.settings(&["oom=kill-largest"]);
    let (mut largest, mut small, mut other) = (world.on_gpu(), world.on_gpu(), world.on_gpu());
    largest.expect(&[("alloc a 400M", "0")]);
    small.expect(&[("alloc a 100M", "0")]);
    other.expect(&[("alloc b 300M", "0")]);
    assert_eq!(world.events(EventKind::Kill).len(), 1);
    let killed = events(&world, &["world", "--kind", "kill"]);
    assert_eq!(killed.len(), 1);
    let killed = &killed[0];
    assert_eq!(
        (&killed["cause"], &killed["pid"]),
        (&"oom".into(), &largest.pid().into())
    );
    let by = &killed["by"];
    assert_eq!(
        (&by["pid"], &by["bytes"]),
        (&other.pid().into(), &(300 * MIB).into())
    );
    assert_eq!(
        (&by["command"], &killed["function"]),
        (&"gpu-script".into(), &"cuMemAlloc".into())
    );
    let holders = killed["holders"].as_array().expect("a list");
    let pids: Vec<_> = holders.iter().map(|holder| &holder["pid"]).collect();
    assert_eq!(pids, [largest.pid(), small.pid(), other.pid()]);
    let oom = events(&world, &["world", "--kind", "oom"]);
    assert_eq!((oom.len(), &oom[0]["pid"]), (1, &other.pid().into()));
}
