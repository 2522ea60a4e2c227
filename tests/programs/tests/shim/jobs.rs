//! A job's programs keep its limit for life: also when its first process has ended, when its group
//! is gone, and when they start `gpulimit run` themselves.

use serde_json::Value;
use std::fs;
use std::process::{Command, Output, Stdio};

use gpulimit_programs::world::{self, GROUP, MIB, Session, World, text};

/// Starts a job whose first process ends at once. In the background, a subshell waits for a line,
/// and then becomes this command of the shell.
fn in_background(world: &World, variables: &str, command: &str) -> (Session, String) {
    let script =
        format!("exec 3<&0; (read go; {variables} exec {command}) <&3 & echo $GPULIMIT_GROUP");
    let script = script.replace("PROGRAM", &world::program().display().to_string());
    let script = script.replace("GPULIMIT ", &format!("{} ", world::controller().display()));
    let mut job = controller(world, &["run", "--max", "1G", "--", "bash", "-c", &script]);
    job.env("GPULIMIT_LIBRARY", world::shim());
    let mut session = Session::start(job);
    let group = session.line();
    gpulimit_support::wait_until("the job's first process ends", || session.has_ended());
    (session, group)
}

pub fn controller(world: &World, arguments: &[&str]) -> Command {
    let mut command = world.bare(&world::controller());
    command
        .args(arguments)
        .env("GPULIMIT_LIBRARY", world::shim());
    command
}

fn output(world: &World, arguments: &[&str]) -> Output {
    let mut command = controller(world, arguments);
    command.stdin(Stdio::null()).output().expect("it starts")
}

/// Makes and removes the groups of other jobs.
fn clean_up(world: &World) {
    for arguments in [&["run", "--max", "1G", "--", "true"][..], &["gc"]] {
        assert!(output(world, arguments).status.success());
    }
}

/// Removes all groups, as the end of a login session may.
fn empty(world: &World) {
    for entry in fs::read_dir(world.root().path()).expect("listed") {
        let path = entry.expect("an entry").path();
        let is_directory = path.is_dir();
        let removed = if is_directory {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        removed.expect("removed");
    }
}

/// Asserts that the program has 1 GiB. A failure closes its input, and with that ends it.
#[track_caller]
fn assert_limited(job: &mut Session) {
    for (command, expected) in [
        ("start", "0 0"),
        ("alloc a 900M", "2"),
        ("alloc a 300M", "0"),
    ] {
        assert_eq!(job.say(command), expected, "{command}");
    }
}

#[test]
fn the_callers_limit_has_a_row_for_each_gpu_and_no_other() {
    let world = World::with(1024 * MIB, &[("GPULIMIT_SIM_GPUS", "2")]);
    let mut command = controller(&world, &["show", "--mine"]);
    command.env("GPULIMIT_GROUP", GROUP);
    let out = text(&command.output().expect("it starts").stdout);
    let is_before = |line: &&str| !line.starts_with("GPU ");
    let rows: Vec<&str> = out.lines().skip_while(is_before).collect();
    assert!(rows.len() == 3 && rows[2].starts_with("1 "), "{out}");
}

#[test]
fn a_jobs_group_lives_as_long_as_its_programs() {
    let world = World::without_group(&[]);
    for command in ["PROGRAM", "setsid PROGRAM", "nohup env NAME=VALUE PROGRAM"] {
        let (mut job, group) = in_background(&world, "", command);
        clean_up(&world);
        let shown = || text(&output(&world, &["show", "--names"]).stdout);
        assert!(shown().contains(&group), "{command}");
        let refused = output(&world, &["rm", &group]);
        assert!(!refused.status.success(), "{refused:?}");
        let error = text(&refused.stderr);
        assert!(error.contains("may still use group"), "{error}");
        job.tell("go");
        assert_limited(&mut job);
        assert!(text(&output(&world, &["ps"]).stdout).contains(&group));
        job.end();
        // The driver frees the memory of the job in its own time.
        gpulimit_support::wait_until("the group is removed", || {
            clean_up(&world);
            world.root().groups().expect("listed").is_empty()
        });
    }
}

/// The driver lists an ended process as long as its forked child lives. A job without such a child
/// shows that the time has passed after which nobody waits for the driver.
#[test]
fn memory_that_a_forked_child_keeps_stays_charged() {
    let world = World::without_group(&[("GPULIMIT_SIM_KILL_LAG_MS", "3600000")]);
    let [(mut kept, group), (mut other, gone)] = ["PROGRAM; read -u 3 end", "PROGRAM"]
        .map(|command| in_background(&world, "", &format!("bash -c '{command}'")));
    for job in [&mut kept, &mut other] {
        job.tell("go");
        assert_limited(job);
        job.tell("exit 0");
    }
    let groups = || world.root().groups().expect("listed");
    gpulimit_support::wait_until("the other job's group is removed", || {
        clean_up(&world);
        !groups().iter().any(|it| it.name() == gone)
    });
    let shown = text(&output(&world, &["show", &group, "--json"]).stdout);
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    let usage = &shown["groups"][0]["gpus"][0]["usage"];
    assert!(usage.as_u64().expect("bytes") > 300 * MIB, "{shown}");
    kept.end();
}

#[test]
fn a_nested_run_stays_below_the_limit_of_an_ended_job() {
    let world = World::without_group(&[]);
    for is_emptied in [false, true] {
        let (mut job, group) = in_background(&world, "", "GPULIMIT run --max 4G -- PROGRAM");
        clean_up(&world);
        if is_emptied {
            empty(&world);
        }
        job.tell("go");
        assert_limited(&mut job);
        let shown = text(&output(&world, &["show"]).stdout);
        assert!(shown.contains(&group), "{shown}");
        job.end();
    }
}

#[test]
fn a_job_whose_group_is_gone_makes_it_again() {
    let world = World::without_group(&[]);
    for command in [
        "PROGRAM",
        "GPULIMIT run -- PROGRAM",
        "GPULIMIT run --max 2G -- PROGRAM",
    ] {
        let (mut job, _) = in_background(&world, "", command);
        empty(&world);
        job.tell("go");
        assert_limited(&mut job);
        job.end();
        empty(&world);
    }
}

#[test]
fn a_job_of_a_variable_is_the_parent_of_runs() {
    let world = World::without_group(&[]);
    let mut shell = world.preloaded("bash".as_ref());
    let nested = "\"$0\" run --max 4G -- \"$1\"";
    shell
        .args(["-c", nested])
        .args([world::controller(), world::program().to_path_buf()])
        .env("GPULIMIT_LIBRARY", world::shim())
        .env("GPULIMIT_MAX", "1G");
    let mut job = Session::start(shell);
    assert_limited(&mut job);
    job.end();
}

#[test]
fn without_its_limits_a_job_whose_group_is_gone_gets_no_memory() {
    let world = World::without_group(&[]);
    for command in ["PROGRAM", "GPULIMIT run --max 2G -- PROGRAM"] {
        let without = "unset GPULIMIT_LIMITS;";
        let (mut job, _) = in_background(&world, without, command);
        empty(&world);
        job.tell("go");
        if command == "PROGRAM" {
            assert_ne!(job.say("start"), "0 0");
        }
        let (_, errors) = job.end();
        assert!(errors.contains("unset GPULIMIT_GROUP"), "{errors}");
    }
}

/// The first command of the README: its group is there until the next one, and then only its past.
#[test]
fn a_job_without_a_name_has_a_past() {
    let world = World::without_group(&[]);
    let script = "echo $GPULIMIT_GROUP; exec \"$0\"";
    let run = ["run", "--max", "4G", "--", "bash", "-c", script];
    let mut command = controller(&world, &run);
    let mut job = Session::start({
        command.arg(world::program());
        command
    });
    let group = job.line();
    job.expect(&[("start", "0 0"), ("alloc a 900M", "0"), ("free a", "0")]);
    job.expect(&[("alloc b 100M", "0")]);
    job.end();
    let json = |verb: &str, list: &str| {
        let said = output(&world, &[verb, "--json"]).stdout;
        let json: Value = serde_json::from_slice(&said).expect("JSON");
        let all = json[list].as_array().expect("a list");
        assert!(all.len() <= 1, "{json}");
        all.first().cloned()
    };
    let is_whole = || {
        let both = [json("history", "histories"), json("report", "uses")];
        both.iter().flatten().count() == 2
            && both.into_iter().flatten().all(|one| {
                assert_eq!(one["name"], group, "{one}");
                let peak = one["peak"].as_u64().expect("a figure");
                assert!((900 * MIB..4096 * MIB).contains(&peak), "{one}");
                one["ended"].is_string()
            })
    };
    gpulimit_support::wait_until("the job has ended", is_whole);
    let curve = text(&output(&world, &["history"]).stdout);
    let peak = format!("{group}  GPU 0  ended ");
    assert!(
        curve.starts_with(&peak) && curve.contains(" of 4.0 GiB\n"),
        "{curve}"
    );
    // A program that only the library limits removes no past.
    let mut program = world.preloaded(world::program());
    let mut other = Session::start({
        program.env("GPULIMIT_MAX", "1G");
        program
    });
    other.expect(&[("start", "0 0"), ("alloc a 100M", "0")]);
    other.end();
    assert!(is_whole());
    gpulimit_support::wait_until("the groups are removed", || {
        clean_up(&world);
        world.root().groups().expect("listed").is_empty()
    });
    assert!(is_whole());
}

/// A program of OpenCL has the group in its environment, and makes no call that a hook sees.
#[test]
fn doctor_names_a_program_whose_memory_no_group_counts() {
    let world = World::new(4096 * MIB);
    let doctor = || text(&output(&world, &["doctor"]).stdout);
    let member = world.on_gpu();
    let mut command = world.bare(world::program());
    command.env("GPULIMIT_GROUP", GROUP);
    let mut other = Session::start(command);
    other.expect(&[("start", "0 0"), ("alloc a 100M", "0")]);
    let said = doctor();
    assert_eq!(said.matches("that no group counts").count(), 1, "{said}");
    let expected = format!("process {} has 618.0 MiB of GPU memory", other.pid());
    assert!(said.contains(&expected), "{said}");
    other.end_quietly();
    member.end_quietly();
    world.settle();
    assert!(!doctor().contains("that no group counts"));
}
