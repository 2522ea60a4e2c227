//! The life of a process: how it begins, multiplies, moves and ends. Each program behaves the same
//! with and without gpulimit, in exit status, output and errors; its memory is counted exactly
//! while it lives, and no charge is left when it ends.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};

use gpulimit_ledger::EventKind;
use gpulimit_programs::world::{self, CONTEXT, HOUR, MIB, Session, World};
use gpulimit_support::{patience, side_by_side};

/// A limit with room for everything that the programs do.
const ROOMY: u64 = 8192 * MIB;
/// The limit of tests where programs wait for each other.
const CAP: u64 = 4096 * MIB;
/// The limit of programs that fill all the memory there is.
const TIGHT: u64 = 1536 * MIB;
/// The size of one request of `gpu_fill`.
const PIECE: u64 = 50 * MIB;

const DOORS: [&[&str]; 4] = [
    &[],
    &["-DLINKED", "-l:libcuda.so.1"],
    &["-DASKED", "-l:libcuda.so.1"],
    &["-DRUNTIME"],
];

/// The lines, status and errors of a program.
#[derive(Debug, PartialEq)]
pub struct Seen {
    pub lines: Vec<String>,
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub errors: String,
}

/// Runs a program; calls `at_hold` whenever the program waits for an inspection of the machine.
#[track_caller]
pub fn watch(mut command: Command, mut at_hold: impl FnMut()) -> Seen {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut input = child.stdin.take().expect("piped");
    let mut errors = child.stderr.take().expect("piped");
    let errors = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = errors.read_to_string(&mut text);
        text
    });
    let output = BufReader::new(child.stdout.take().expect("piped")).lines();
    let (sender, coming) = channel();
    std::thread::spawn(move || {
        output
            .map_while(Result::ok)
            .try_for_each(|line| sender.send(line))
    });
    let mut lines = Vec::new();
    loop {
        match coming.recv_timeout(patience()) {
            Ok(line) if line == "hold" => {
                at_hold();
                let _ = input.write_all(b"\n");
                lines.push(line);
            }
            Ok(line) => lines.push(line),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                let _ = child.kill();
                panic!("{command:?} hangs after {lines:?}");
            }
        }
    }
    let status = child.wait().expect("it ends");
    Seen {
        lines,
        code: status.code(),
        signal: status.signal(),
        errors: errors.join().expect("readable"),
    }
}

fn with(mut command: Command, arguments: &[&str]) -> Command {
    command.args(arguments);
    command
}

/// Asserts that a program behaves the same with and without gpulimit, and then in a group that it
/// fills.
#[track_caller]
fn same_life(program: &Path, arguments: &[&str]) {
    let bare = World::without_group(&[]);
    let expected = watch(with(bare.bare(program), arguments), || ());

    let world = World::new(ROOMY);
    let mut found = watch(with(world.limited(program), arguments), || {
        world.bury();
        world.judge(ROOMY);
    });
    // Each request beyond the limit is reported in exactly one line.
    let said = std::mem::take(&mut found.errors);
    let other = without_refusals(&said);
    found.errors = other;
    assert_eq!(found, expected, "{program:?} {arguments:?}: {said}");
    world.judge_end(ROOMY);

    let world = World::new(TIGHT);
    let mut command = with(world.limited(program), arguments);
    command.env("FILL", "1");
    let found = watch(command, || {
        world.bury();
        world.judge(TIGHT);
    });
    let without_errors = |seen: &Seen| (seen.lines.clone(), seen.code, seen.signal);
    assert_eq!(
        without_errors(&found),
        without_errors(&expected),
        "{program:?} {arguments:?}, full: {}",
        found.errors
    );
    assert_eq!(without_refusals(&found.errors), expected.errors);
    let peak = world.machine().peak();
    assert!(peak + 2 * PIECE > TIGHT, "filled to {peak} of {TIGHT}");
    world.judge_end(TIGHT);
}

/// Returns the lines of standard error other than the library's reports of refusals.
fn without_refusals(errors: &str) -> String {
    let is_ours = |line: &&str| line.starts_with("gpulimit: ") && line.contains("refus");
    let rest = errors.lines().filter(|line| !is_ours(line));
    rest.map(|line| format!("{line}\n")).collect()
}

/// Runs the test with the program compiled for each door, at the same time: most of the programs
/// wait most of the time.
fn by_every_door(name: &str, test: impl Fn(&Path) + Sync) {
    side_by_side(DOORS, |arguments| {
        test(&world::compile(name, &[arguments, &["-pthread"]].concat()));
    });
}

#[track_caller]
fn same_life_by_every_door(name: &str, arguments: &[&str]) {
    by_every_door(name, |program| same_life(program, arguments));
}

#[test]
fn a_program_may_use_cuda_before_main() {
    same_life_by_every_door("constructor", &[]);
}

#[test]
fn a_program_may_end_in_every_way() {
    for how in [
        "return",
        "early",
        "_exit",
        "quick_exit",
        "abort",
        "kill",
        "crash",
        "thread",
        "pthread_exit",
    ] {
        same_life_by_every_door("leaves", &[how]);
    }
}

#[test]
fn threads_may_end() {
    same_life_by_every_door("threads", &[]);
}

#[test]
fn threads_may_be_cancelled() {
    same_life_by_every_door("cancel", &[]);
}

#[test]
fn threads_with_a_pending_cancellation_behave_the_same() {
    for arguments in [&[][..], &["first"]] {
        same_life_by_every_door("cancelled", arguments);
    }
}

/// Calls during which NVIDIA's driver ends a cancelled thread (tests/driver/src/cancel.rs).
const ENDING: [&str; 8] = [
    "create",
    "retain",
    "destroy",
    "load",
    "async",
    "synchronize",
    "synchronize-stream",
    "free",
];

#[test]
fn threads_may_be_cancelled_in_the_driver() {
    for call in ENDING {
        same_life_by_every_door("cancelled_in", &[call]);
    }
}

/// The thread frees the memory first: in the driver, it would end before, and keep it.
#[test]
fn memory_is_freed_before_a_cancelled_thread_ends() {
    by_every_door("cancelled_in", |program| {
        let world = World::new(ROOMY);
        watch(with(world.limited(program), &["free"]), || {
            assert_eq!(world.machine().used(), CONTEXT + 100 * MIB);
        });
    });
}

/// Programs linked against the driver call the library's functions even without a limit.
#[test]
fn threads_may_be_cancelled_in_the_driver_without_a_limit() {
    by_every_door("cancelled_in", |program| {
        for call in ENDING {
            let world = World::without_group(&[]);
            let expected = watch(with(world.bare(program), &[call]), || ());
            let found = watch(with(world.preloaded(program), &[call]), || ());
            assert_eq!(found, expected, "{program:?} {call}");
        }
    });
}

#[test]
fn an_unread_standard_error_blocks_no_program() {
    for kind in [
        "pipe",
        "closed-pipe",
        "full-pipe",
        "held-pipe",
        "full-held-pipe",
        "pending",
        "socket",
        "closed-socket",
        "full-socket",
        "full-datagrams",
        "terminal",
        "stopped-terminal",
        "full-terminal",
        "background",
        "full-disk",
        "large-file",
    ] {
        let program = world::compile("unread", &[]);
        same_life(&program, &[kind]);
    }
}

#[test]
fn a_stream_of_signals_disturbs_no_call() {
    same_life_by_every_door("interrupted", &[]);
}

#[test]
fn libraries_that_use_cuda_may_be_closed() {
    for arguments in DOORS {
        let library = world::library("holds", arguments);
        let library = library.display().to_string();
        same_life_by_every_door("closes", &[&library]);
    }
}

#[test]
fn the_library_adds_no_thread_handler_or_descriptor() {
    same_life_by_every_door("traces", &[]);
}

#[test]
fn children_of_every_kind_are_limited() {
    same_life_by_every_door("children", &[]);
}

#[test]
fn children_are_limited_on_kernels_that_wipe_no_page() {
    let old_kernel = world::compile("old_kernel", &[]);
    // The door does not affect whose child a process is, so the first door suffices.
    let arguments = [DOORS[0], &["-pthread"]].concat();
    let program = world::compile("children", &arguments);
    same_life(&old_kernel, &["4.13", program.to_str().expect("UTF-8")]);
}

#[test]
fn a_sandbox_may_forbid_system_calls() {
    let sandbox = world::compile("old_kernel", &[]);
    let program = world::compile("constructor", &[]);
    let program = program.to_str().expect("UTF-8");
    same_life(&sandbox, &["fallocate", program]);
    let world = World::new(ROOMY);
    let seen = watch(with(world.limited(&sandbox), &["flock", program]), || ());
    assert!(seen.errors.contains("a sandbox forbids flock"), "{seen:?}");
    world.judge_end(ROOMY);
}

/// Runs a daemon with files of its own; returns its status and the lines in the files.
fn daemon(world: &World, program: &Path, mut command: Command) -> (Option<i32>, Vec<String>) {
    let files: Vec<PathBuf> = (0..3)
        .map(|number| world.file(&format!("daemon-{number}")))
        .collect();
    let output = world::finish({
        command.args(&files);
        command
    });
    let said = world::text(&output.stderr);
    assert_eq!(said, "", "{program:?}: it has no standard error");
    let text = |path| std::fs::read_to_string(path).expect("written");
    (output.status.code(), files.iter().map(text).collect())
}

#[test]
fn daemons_without_descriptors_are_limited() {
    by_every_door("daemon", |program| {
        for how in ["EARLY", "BETWEEN", "LATE"] {
            let bare = World::without_group(&[]);
            let mut command = bare.bare(program);
            command.env(how, "1");
            let expected = daemon(&bare, program, command);
            let world = World::new(TIGHT);
            let mut command = world.limited(program);
            command.env(how, "1");
            if how != "EARLY" {
                command.env("FILL", "1");
            }
            assert_eq!(daemon(&world, program, command), expected, "{program:?}");
            assert!(how == "EARLY" || world.machine().peak() > TIGHT - 2 * PIECE);
            world.judge_end(TIGHT);
        }
    });
}

#[test]
fn bus_errors_on_the_programs_own_files_are_left_to_it() {
    let handled = ["info", "plain", "once", "jumps", "sent"];
    let not = ["default", "ignored", "sent_default", "sent_ignored"];
    for how in handled.into_iter().chain(not) {
        for when in ["before", "after"] {
            same_life_by_every_door("bus", &[how, when]);
        }
    }
}

/// Waits until this many requests have come to wait.
#[track_caller]
fn waiting(world: &World, count: usize) {
    let waits = || world.events(EventKind::Wait).len() >= count;
    assert!(
        world::eventually(waits),
        "{:?}",
        world.events(EventKind::Wait)
    );
}

#[test]
fn a_program_may_jump_out_of_a_wait() {
    for from in ["same", "up", "down"] {
        by_every_door("jumps", |program| {
            let world = World::new(CAP);
            world.settings(&["on_limit=wait", "wait_timeout=600s"]);
            let mut holder = world.on_gpu();
            holder.expect(&[("alloc a 1500M", "0")]);
            let mut jumper = Session::start(with(world.limited(program), &[from]));
            assert_eq!(jumper.line(), "start 0");
            waiting(&world, 1);
            jumper.signal(libc::SIGALRM);
            assert_eq!(jumper.line(), "over 0", "{program:?} {from}");
            assert_eq!(jumper.line(), "small 0");
            assert_eq!(jumper.line(), "hold");
            world.judge(CAP);
            // The jumper's place in the line is free again.
            let mut other = world.on_gpu();
            other.tell("alloc b 1500M");
            waiting(&world, 2);
            holder.expect(&[("free a", "0")]);
            assert_eq!(other.answer(), "0");
            world.judge(CAP);
            // The jumper may wait again, after the others.
            jumper.tell("");
            waiting(&world, 3);
            other.expect(&[("free b", "0")]);
            assert_eq!(jumper.line(), "again 1");
            assert_eq!(jumper.line(), "hold");
            world.judge(CAP);
            jumper.tell("");
            assert_eq!(jumper.line(), "free 0 0");
            let (status, errors) = jumper.end();
            assert!(status.success(), "{status:?} {errors}");
            assert_eq!(errors.matches("refused").count(), 1, "{errors}");
            holder.end();
            other.end();
            world.judge_end(CAP);
        });
    }
}

/// libgcc_s unwinds the thread through the frames of the library.
#[test]
fn a_thread_may_end_in_a_signal_handler_that_interrupts_a_call() {
    for waits in [true, false] {
        by_every_door("ends", |program| {
            let world = World::new(CAP);
            world.settings(&["on_limit=wait", "wait_timeout=600s"]);
            let mut holder = world.on_gpu();
            holder.expect(&[("alloc a 1500M", "0")]);
            let mib = if waits { "2000" } else { "1000" };
            let knob = |latency: &str| world.machine().knob("latency", latency);
            if !waits {
                knob(&format!("cuMemAlloc_v2:{HOUR}"));
            }
            let mut ender = Session::start(with(world.limited(program), &[mib]));
            assert_eq!(ender.line(), "start 0");
            assert_eq!(ender.line(), "hold");
            match waits {
                true => waiting(&world, 1),
                false => {
                    let is_charged = || world.usage(0).charged > 3000 * MIB;
                    assert!(world::eventually(is_charged));
                }
            }
            ender.tell("");
            assert_eq!(ender.line(), "ended", "{program:?} {waits}");
            assert_eq!(ender.line(), "hold");
            knob("0");
            holder.expect(&[("free a", "0")]);
            ender.tell("");
            assert_eq!(ender.line(), "free 0");
            let (status, errors) = ender.end();
            assert!(status.success(), "{status:?} {errors}");
            holder.end();
            world.judge_end(CAP);
        });
    }
}

#[test]
fn a_program_may_change_its_user_root_and_namespaces() {
    for how in ["setuid", "chroot", "user", "mount", "pid", "descriptors"] {
        same_life_by_every_door("moves", &[how]);
    }
}

/// Starts a program from the world's shell under `ulimit -f`, so that it cannot make files larger
/// than this many blocks of 512 bytes.
fn with_file_size(blocks: u32, mut shell: Command) -> Session {
    let script = format!("ulimit -f {blocks}; exec \"$@\"");
    shell.args(["-c", &script, "sh"]).arg(world::program());
    Session::start(shell)
}

#[test]
fn limits_on_the_size_of_files_end_no_program() {
    // The library does not store the size of a context then, because the store is a file in the
    // root.
    for (blocks, figures) in [(1 << 20, 1), (0, 0)] {
        let world = World::new(2 << 30);
        let mut program = with_file_size(blocks, world.limited(Path::new("/bin/sh")));
        program.expect(&[("start", "0 0"), ("alloc a 1M", "0"), ("free a", "0")]);
        let (status, errors) = program.end();
        assert!(status.success(), "{status:?}: {errors}");
        let names = fs::read_dir(world.root().path()).expect("a root");
        let names = names.map(|entry| entry.expect("listed").file_name());
        let kept = names.filter(|name| name.to_string_lossy().starts_with(".context-"));
        assert_eq!(kept.count(), figures, "{errors}");
        world.judge_end(2 << 30);
    }

    // The library cannot make a group for the program, and says so.
    let world = World::without_group(&[]);
    let mut shell = world.preloaded(Path::new("/bin/sh"));
    shell.env("GPULIMIT_MAX", "1G");
    let mut program = with_file_size(16, shell);
    let started = program.say("start");
    assert_ne!(started, "0 0");
    let (status, errors) = program.end();
    assert_eq!(status.signal(), None, "{errors}");
    assert!(errors.contains("ulimit -f"), "{errors}");
}
