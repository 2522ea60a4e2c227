//! Programs with the library run under valgrind's memcheck, which finds reads of bytes that were
//! never written or lie outside an allocation.
//!
//! `GPULIMIT_SANITIZE=all` runs more of them (`scripts/sanitize`).

use std::path::Path;
use std::process::Command;

use gpulimit_programs::world::{self, MIB, World};
use gpulimit_support::have;

use crate::life::Seen;

const CAP: u64 = 8192 * MIB;
/// The exit code of valgrind when it has found an error.
const FOUND: i32 = 99;

fn all() -> bool {
    std::env::var_os("GPULIMIT_SANITIZE").is_some_and(|what| what == "all")
}

/// Runs a program in a group under valgrind, which itself runs without the library. Returns the
/// program's standard error, which is a pipe.
#[track_caller]
fn assert_no_errors(program: &Path, arguments: &[&str]) -> String {
    let world = World::new(CAP);
    let mut command = world.limited(Path::new("valgrind"));
    command
        .env_remove("LD_PRELOAD")
        .args([
            "--quiet",
            "--trace-children=yes",
            "--num-callers=30",
            "--fair-sched=yes",
        ])
        .arg(format!("--error-exitcode={FOUND}"))
        .arg("env")
        .arg(format!("LD_PRELOAD={}", world::shim().display()))
        .arg(program)
        .args(arguments);
    let seen = crate::life::watch(command, || ());
    let found = seen.errors.lines().any(|line| line.starts_with("=="));
    assert!(!found && seen.code == Some(0), "{arguments:?}: {seen:?}");
    assert!(world.machine().peak() > 0, "the program used no GPU memory");
    world.judge_end(CAP);
    seen.errors
}

/// AddressSanitizer wants to be the first library. LeakSanitizer looks for pointers in the
/// variables of libraries, and not in mapped pages. ThreadSanitizer does not see the library's
/// locks; with some kernels its programs do not start.
#[test]
fn programs_with_sanitizers_end_as_without_the_library() {
    for (name, sanitizer) in [
        ("threads", "address"),
        ("leaks", "address"),
        ("races", "thread"),
    ] {
        let sanitizer = format!("-fsanitize={sanitizer}");
        let program = world::compile(name, &[&sanitizer, "-pthread"]);
        let world = World::new(CAP);
        let suppressed = world.file("suppressed");
        std::fs::write(&suppressed, "called_from_lib:libcuda.so.1").expect("written");
        let run = |mut command: Command| {
            let options = format!("suppressions={}", suppressed.display());
            command.env("TSAN_OPTIONS", options);
            crate::life::watch(command, || ())
        };
        let is_reported = |seen: &Seen| seen.errors.contains("Sanitizer");
        let (bare, seen) = (run(world.bare(&program)), run(world.limited(&program)));
        assert_eq!(
            (seen.code, is_reported(&seen)),
            (bare.code, is_reported(&bare)),
            "{name}: {seen:?}"
        );
        let has_used = world.usage(0).peak > 0;
        assert!(
            has_used || bare.code != Some(0),
            "{name} used no GPU memory"
        );
    }
}

/// The system calls that write the refusal take whole registers: valgrind would report a 32-bit
/// argument whose upper half was never set.
#[test]
fn writing_a_refusal_to_a_pipe_has_no_memory_errors() {
    if !have("valgrind") {
        return;
    }
    let folder = World::without_group(&[]);
    let script = folder.file("refused.gpu");
    let lines = "init\nretain 0\ncurrent 0\nalloc small 1M\nalloc large 16G\nfree small\n";
    std::fs::write(&script, lines).expect("written");
    let errors = assert_no_errors(world::program(), &[&script.display().to_string()]);
    assert!(
        errors.contains("gpulimit: refused cuMemAlloc of 16.0 GiB"),
        "{errors}"
    );
}

#[test]
fn scripts_and_random_programs_have_no_memory_errors() {
    if !have("valgrind") {
        return;
    }
    let names: &[&str] = match all() {
        true => &[
            "tour.gpu",
            "capture.gpu",
            "graphs.gpu",
            "mistakes.gpu",
            "processes.gpu",
            "view.gpu",
        ],
        false => &["tour.gpu"],
    };
    for name in names {
        assert_no_errors(
            world::program(),
            &[&world::script(name).display().to_string()],
        );
    }
    let folder = World::without_group(&[]);
    for seed in 0..if all() { 24 } else { 1 } {
        let script = folder.file(&format!("{seed}.gpu"));
        std::fs::write(&script, crate::random::program(seed).join("\n")).expect("written");
        assert_no_errors(world::program(), &[&script.display().to_string()]);
    }
}

#[test]
#[ignore = "scripts/sanitize runs it"]
fn threads_that_end_have_no_memory_errors() {
    if have("valgrind") {
        for name in ["threads", "constructor", "cancel"] {
            assert_no_errors(&world::compile(name, &["-pthread"]), &[]);
        }
    }
}
