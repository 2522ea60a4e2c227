//! Suspensions, and what other commands, shells and namespaces make of them.

use gpulimit_base::identity::Identity;
use gpulimit_base::process::FIRST_PID_NS;
use gpulimit_programs::world::{self, GROUP, Session, World};
use serde_json::Value;
use std::process::Command;

use crate::refused::around;
use crate::{
    CAP, Looker, await_line, begin, done, figures, finish, goes_on, holder, run, shown, verb,
};

/// A process that waits to bring back two others, behind a third one.
struct Waiting {
    world: World,
    programs: [Session; 2],
    other: Session,
    actor: Session,
}

impl Waiting {
    fn new(wrapper: &[&str]) -> Waiting {
        let world = World::new(CAP);
        let programs = [holder(&world, "800M"), holder(&world, "800M")];
        done(&world, &["suspend", GROUP]);
        let other = holder(&world, "2000M");
        let command = verb(&world, &["resume", GROUP]);
        let actor = Session::start(match wrapper {
            [] => command,
            _ => around(wrapper, &command),
        });
        // It has charged the room of one process, and waits for the other's.
        assert!(world::eventually(|| world.usage(0).charged > 2800 << 20));
        await_line(&world, 1);
        Waiting {
            world,
            programs,
            other,
            actor,
        }
    }

    fn end(mut self) {
        self.other.expect(&[("free a", "0")]);
        let (status, errors) = self.actor.end();
        assert!(status.success(), "{errors}");
        self.programs.iter_mut().for_each(goes_on);
        for program in self.programs.into_iter().chain([self.other]) {
            program.end();
        }
        self.world.judge_end(CAP);
    }
}

/// A killed process needs no room, and those behind it in the line need not wait for it.
#[test]
fn a_resume_ends_when_its_process_is_killed() {
    let world = World::new(CAP);
    let program = holder(&world, "2000M");
    let pid = program.pid().to_string();
    done(&world, &["suspend", GROUP]);
    let other = holder(&world, "2000M");
    let actor = Session::start(verb(&world, &["resume", "--pid", &pid]));
    await_line(&world, 1);
    program.kill();
    let (status, errors) = actor.end();
    assert_eq!(status.code(), Some(1), "{errors}");
    let why = "all processes have ended or called exec meanwhile";
    assert!(errors.contains(why), "{errors}");
    other.end();
    world.judge_end(CAP);
}

/// `ps` says whether the driver or only the ledger tells of a suspended process.
#[test]
fn ps_marks_a_state_that_the_driver_does_not_confirm() {
    let world = World::new(CAP);
    let mut program = holder(&world, "300M");
    let own = program.pid().to_string();
    done(&world, &["suspend", GROUP]);
    for (has_driver, by, state) in [
        (true, "driver", "suspended"),
        (false, "ledger", "suspended?"),
    ] {
        let ps = |arguments: &[&str]| {
            let mut command = verb(&world, &["ps"]);
            command.args(arguments);
            if !has_driver {
                command.env_remove("LD_LIBRARY_PATH");
            }
            finish(command).out
        };
        let json: Value = serde_json::from_str(&ps(&["--json"])).expect("JSON");
        let [process] = &json["processes"].as_array().expect("a list")[..] else {
            panic!("{json}");
        };
        assert_eq!(
            (&process["state"], &process["state_by"]),
            (&"suspended".into(), &by.into())
        );
        let table = ps(&[]);
        let row = table.lines().find(|line| line.trim().starts_with(&own));
        let words: Vec<&str> = row.expect("a row").split_whitespace().collect();
        assert!(words.contains(&state), "{table}");
    }
    done(&world, &["resume", GROUP]);
    goes_on(&mut program);
    assert_eq!(shown(&world, &program)["state_by"], "ledger");
    program.end();
}

/// NVML shows that a process has no memory only in the first pid namespace.
#[test]
fn ps_shows_that_another_tool_has_suspended_a_process() {
    let world = World::new(CAP);
    let mut program = holder(&world, "300M");
    let mut looker = Looker::new(&world);
    let down = match Identity::of_self().pid_ns {
        FIRST_PID_NS => ("suspended", "driver"),
        _ => ("running", "ledger"),
    };
    let up = ("running", "ledger");
    for (step, (state, by)) in [
        ("lock", up),
        ("checkpoint", down),
        ("restore", up),
        ("unlock", up),
    ] {
        assert_eq!(looker.say(&format!("{step}-process"), &program), "0");
        let process = shown(&world, &program);
        assert_eq!(process["state"], state, "{step}: {process}");
        assert_eq!(process["state_by"], by, "{step}: {process}");
    }
    goes_on(&mut program);
    program.end();
    world.judge_end(CAP);
}

/// Another tool may bring a process back and leave it locked, so that its calls of CUDA wait.
#[test]
fn resume_says_that_another_tool_holds_a_process() {
    let world = World::new(CAP);
    let mut program = holder(&world, "300M");
    let mut looker = Looker::new(&world);
    done(&world, &["suspend", GROUP]);
    assert_eq!(looker.say("restore-process", &program), "0");
    let ended = run(&world, &["resume", GROUP]);
    assert_eq!(ended.status, Some(1), "{ended:?}");
    assert!(ended.out.contains(": locked"), "{ended:?}");
    assert!(
        ended.errors.contains("another program has locked"),
        "{ended:?}"
    );
    assert_eq!(looker.say("unlock-process", &program), "0");
    done(&world, &["resume", GROUP]);
    for step in ["lock", "checkpoint"] {
        assert_eq!(looker.say(&format!("{step}-process"), &program), "0");
    }
    let held = run(&world, &["resume", GROUP]);
    held.expect_failure("another program has locked or suspended");
    for step in ["restore", "unlock"] {
        assert_eq!(looker.say(&format!("{step}-process"), &program), "0");
    }
    goes_on(&mut program);
    program.end();
    world.judge_end(CAP);
}

/// The verbs that show leave the work of a dead command as it is, and `ps` names the one that ends
/// it.
#[test]
fn verbs_that_show_leave_an_abandoned_suspension_as_it_is() {
    let world = World::new(CAP);
    let mut program = holder(&world, "300M");
    let mut looker = Looker::new(&world);
    let mut dying = verb(&world, &["suspend", GROUP]);
    dying.env("GPULIMIT_SIM_KILL", "cuCheckpointProcessLock:after");
    assert_eq!(finish(dying).status, None);
    world.bury();
    let before = figures(&world);
    for shows in [
        &["ps"][..],
        &["ps", "--by", "user", "--json"],
        &["show"],
        &["top", "--once"],
        &["events"],
        &["report"],
        &["history"],
        &["doctor", "--pid", &program.pid().to_string()],
    ] {
        let shown = run(&world, shows);
        assert_eq!(looker.state(&program), "0 1", "{shown:?}");
        assert_eq!(figures(&world), before, "{shown:?}");
        assert_eq!(world.ledger().abandoned().len(), 1, "{shown:?}");
    }
    assert_eq!(shown(&world, &program)["state"], "abandoned");
    let left = format!("half-done: {}; `gpulimit gc` ends its work", program.pid());
    let ps = done(&world, &["ps"]);
    assert!(ps.errors.contains(&left), "{ps:?}");
    let ended = done(&world, &["gc"]);
    assert!(ended.errors.contains("runs: the command"), "{ended:?}");
    assert_eq!(looker.state(&program), "0 0");
    assert_eq!(shown(&world, &program)["state"], "running");
    assert!(!done(&world, &["ps"]).errors.contains("half-done"));
    goes_on(&mut program);
    program.end();
}

#[test]
fn kill_signals_a_resume_that_holds_several_slots_once() {
    let waiting = Waiting::new(&[]);
    let told = done(&waiting.world, &["kill", "--signal", "CONT", GROUP]);
    let pid = waiting.actor.pid();
    let line = format!("{GROUP}: SIGCONT sent to {pid} (gpulimit)");
    let lines: Vec<&str> = told.out.lines().filter(|told| **told == line).collect();
    assert_eq!(lines.len(), 1, "{told:?}");
    assert_eq!(told.out.lines().count(), 4, "{told:?}");
    waiting.end();
}

#[test]
fn a_resume_that_holds_several_slots_is_shown_once() {
    let waiting = Waiting::new(&[]);
    let row = |key: &str, value: Value| {
        let json = done(&waiting.world, &["ps", "--json"]).json();
        let all = json["processes"].as_array().expect("a list").iter();
        let found: Vec<Value> = all.filter(|row| row[key] == value).cloned().collect();
        assert_eq!(found.len(), 1, "{json}");
        found[0].clone()
    };
    let actor = row("pid", waiting.actor.pid().into());
    // It has the room of one process, and waits for as much.
    let room = actor["total"].as_u64().expect("a size");
    assert!(room > 800 << 20, "{actor}");
    assert_eq!(actor["waits_for"]["bytes"], room, "{actor}");
    let json = done(&waiting.world, &["show", "--json"]).json();
    let group = &json["groups"][0];
    // Three programs and the command.
    assert_eq!(group["processes"], 4, "{json}");
    assert_eq!(group["gpus"][0]["processes"], 4, "{json}");
    let json = done(&waiting.world, &["ps", "--by", "user", "--json"]).json();
    let users = json["users"].as_array().expect("a list");
    assert_eq!(users.len(), 1, "{json}");
    assert_eq!(
        (&users[0]["processes"], &users[0]["waiting"]),
        (&4.into(), &1.into()),
        "{json}"
    );
    waiting.end();
}

#[test]
fn suspending_a_process_without_gpu_memory_says_so() {
    let world = World::new(CAP);
    let mut program = holder(&world, "800M");
    done(&world, &["suspend", GROUP]);
    let mut other = holder(&world, "3000M");
    let actor = begin(&world, &["resume", GROUP]);
    await_line(&world, 1);
    let pid = actor.pid().to_string();
    let said = run(&world, &["suspend", "--pid", &pid]);
    let note = format!("process {pid} (gpulimit) runs on: it has no memory on a GPU, and waits");
    said.expect_failure(&note);
    other.expect(&[("free a", "0")]);
    assert!(actor.end().0.success());
    goes_on(&mut program);
    for program in [program, other] {
        program.end();
    }
    world.judge_end(CAP);
}

#[test]
fn signals_that_were_ignored_at_the_start_stay_so() {
    let waiting = Waiting::new(&["sh", "-c", "trap '' INT HUP; exec \"$@\"", "sh"]);
    waiting.actor.signal(libc::SIGINT);
    waiting.actor.signal(libc::SIGHUP);
    waiting.end();
}

/// From these namespaces the kernel does not show what the process has mapped.
#[test]
fn namespaces_in_which_membership_is_not_seen_are_named() {
    if !world::may_mount() {
        return;
    }
    let world = World::new(CAP);
    let mut program = holder(&world, "100M");
    let user: &[&str] = &["unshare", "--user", "--map-root-user"];
    let pid: &[&str] = &["unshare", "--pid", "--fork", "--mount-proc"];
    let tried = Command::new(user[0]).args(&user[1..]).arg("true").output();
    let may = tried.is_ok_and(|output| output.status.success());
    let mut cases = vec![(pid, "run gpulimit in the pid namespace of the process")];
    if may {
        cases.push((user, "a security module or user namespace forbids it"));
    }
    for (namespace, why) in cases {
        for arguments in [&["suspend", GROUP][..], &["kill", GROUP]] {
            let said = finish(around(namespace, &verb(&world, arguments)));
            said.expect_failure(why);
        }
    }
    // The pid does not exist there, or is another process.
    let said = finish(around(pid, &verb(&world, &["suspend", GROUP])));
    let who = format!(
        "process {} (gpu-script; the pid is that of another",
        program.pid()
    );
    said.expect_failure(&who);
    goes_on(&mut program);
    program.end();
}

/// Asserts that `doctor --pid` says one thing about suspending a program.
#[track_caller]
pub fn diagnosed(mut doctor: Command, pid: &str, text: &str, remedy: &str) {
    doctor.args(["doctor", "--json", "--pid", pid]);
    let json = finish(doctor).json();
    let findings = json["findings"].as_array().expect("findings").iter();
    let said: Vec<_> = findings
        .filter(|finding| finding["check"] == "suspend")
        .collect();
    let has = |name: &str, part: &str| {
        let whole = said.first().and_then(|finding| finding[name].as_str());
        whole.unwrap_or_default().contains(part)
    };
    assert_eq!(said.len(), 1, "{text}: {json}");
    assert!(has("text", text) && has("remedy", remedy), "{text}: {json}");
}

#[test]
fn doctor_knows_what_suspend_would_say() {
    let world = World::new(CAP);
    let mut program = holder(&world, "300M");
    let pid = program.pid().to_string();
    let says = |text: &str, remedy: &str| diagnosed(verb(&world, &[]), &pid, text, remedy);
    says("nothing prevents", "");
    let resume = format!("`gpulimit resume --pid {pid}`");
    done(&world, &["suspend", GROUP]);
    says("the process is suspended, with 8", &resume);
    done(&world, &["suspend", GROUP, "--freeze"]);
    says("the process is suspended and stopped, with 8", &resume);
    // A resume that waits for room is at work on the process.
    let other = holder(&world, "3000M");
    let waiting = begin(&world, &["resume", GROUP]);
    assert!(world::eventually(
        || shown(&world, &program)["state"] == "resuming"
    ));
    says("another command", "wait until");
    other.kill();
    assert!(waiting.end().0.success());
    goes_on(&mut program);
    world.settings(&["suspended.max=100M"]);
    says("100.0 MiB on the host (suspended.max)", "");
    world.settings(&["suspended.max=max"]);
    says("nothing prevents", "");
    // A machine on which `suspend` refuses.
    let mut without = verb(&world, &[]);
    without.env("LD_LIBRARY_PATH", "");
    diagnosed(without, &pid, "cannot be suspended here: cannot load", "");
    world.machine().knob("fail", "cuCheckpointProcessRestore:2");
    done(&world, &["suspend", GROUP]);
    run(&world, &["resume", GROUP]);
    says("the process is lost", "--kill-lost");
    program.kill();
    world.judge_end(CAP);
}

#[test]
fn doctor_names_the_process_of_a_thread() {
    let world = World::new(CAP);
    let script = "import threading as t, time\nf = lambda: (print('id =', t.get_native_id(), \
                  flush=True), time.sleep(1000))\nt.Thread(target=f, daemon=True).start()\ninput()";
    let mut command = Command::new("python3");
    command.args(["-c", script]);
    let mut python = Session::start(command);
    let thread = python.answer();
    let said = run(&world, &["doctor", "--pid", &thread]).out;
    let expected = format!("{thread} is a thread of process {}", python.pid());
    assert!(said.contains(&expected), "{said}");
    python.kill();
}

#[test]
fn users_have_suspended_bytes() {
    let world = World::new(CAP);
    let program = holder(&world, "300M");
    let users = ["ps", "--by", "user"];
    assert!(!done(&world, &users).out.contains("SUSPENDED"));
    done(&world, &["suspend", GROUP]);
    assert!(done(&world, &users).out.contains("SUSPENDED"));
    let json = done(&world, &[&users[..], &["--json"]].concat()).json();
    assert_eq!(json["users"][0]["suspended"], figures(&world).1, "{json}");
    program.end();
    world.judge_end(CAP);
}

/// Some of these limits suffice for everything but a look at the process.
#[test]
fn a_lack_of_open_files_is_named() {
    let world = World::new(CAP);
    let program = holder(&world, "100M");
    let failures = (3..32).filter_map(|files| {
        let limit = format!("--nofile={files}");
        let run = around(&["prlimit", &limit], &verb(&world, &["suspend", GROUP]));
        let said = finish(run);
        (said.status != Some(0)).then_some(said.errors)
    });
    let failures: Vec<String> = failures.collect();
    assert!(failures.iter().any(|said| said.contains("os error 24")));
    let wrong = |said: &&String| said.contains("run gpulimit as root");
    assert_eq!(failures.iter().find(wrong), None);
    program.end();
}
