//! A refusal at the limit returns the driver's own code and prints one clear line; repeated
//! refusals do not flood standard error.

use gpulimit_ledger::EventKind;
use gpulimit_programs::world::{self, CONTEXT, MIB, Session, World};

const CAP: u64 = 1024 * MIB;

/// Asserts that the line reports a refusal of `call`, and names this process as the holder.
#[track_caller]
fn check(line: &str, call: &str, pid: u32) {
    let rest = line
        .strip_prefix("gpulimit: refused ")
        .unwrap_or_else(|| panic!("{line}"));
    let (name, rest) = rest.split_once(" of ").unwrap_or_else(|| panic!("{line}"));
    assert_eq!(name, call, "{line}");
    let (size, rest) = rest
        .split_once(" on GPU 0 (GPU-")
        .unwrap_or_else(|| panic!("{line}"));
    // Pools grow in steps of 32 MiB, which is told where what is left would do for the request.
    let (size, takes) = match size.strip_suffix(',') {
        Some(sizes) => sizes.split_once(", which takes ").expect("two sizes"),
        None => (size, size),
    };
    assert!(size == takes || call.ends_with("Async"), "{line}");
    for size in [size, takes] {
        let (amount, unit) = size.split_once(' ').unwrap_or_else(|| panic!("{line}"));
        assert!(amount.parse::<f64>().is_ok(), "{line}");
        assert!(["GiB", "MiB", "KiB", "bytes"].contains(&unit), "{line}");
    }
    let (uuid, rest) = rest
        .split_once("\u{2026}): ")
        .unwrap_or_else(|| panic!("{line}"));
    assert!(
        uuid.len() == 4 && uuid.bytes().all(|c| c.is_ascii_hexdigit()),
        "{line}"
    );
    let (_, rest) = rest
        .split_once(" left of 1.0 GiB in world; ")
        .unwrap_or_else(|| panic!("{line}"));
    let holder = format!("most is used by pid {pid} (gpu-script) 5");
    assert!(rest.starts_with(&holder), "{line}");
}

#[test]
fn every_refusal_returns_the_drivers_code_and_names_the_call() {
    for (command, answer, call) in [
        ("alloc a 600M", "2", "cuMemAlloc"),
        ("pitch a 16 2097152", "2 0", "cuMemAllocPitch"),
        ("alloc-v1 a 600M", "2", "cuMemAlloc"),
        ("pitch-v1 a 16 2097152", "2 0", "cuMemAllocPitch"),
        ("managed a 600M", "2", "cuMemAllocManaged"),
        ("create a 600M 0", "2", "cuMemCreate"),
        ("async a 600M", "2", "cuMemAllocAsync"),
        ("async-from a p 600M", "2", "cuMemAllocFromPoolAsync"),
        ("context a 0 v2", "2", "cuCtxCreate"),
        ("context a 0 v4", "2", "cuCtxCreate"),
        ("module a 600M", "2", "cuModuleLoadData"),
    ] {
        let world = World::new(CAP);
        let mut program = world.on_gpu();
        let pid = program.pid();
        program.expect(&[("default-pool p 0", "0"), (command, answer)]);
        assert_eq!(world.machine().used(), CONTEXT, "{command} leaves nothing");
        assert_eq!(world.usage(0).refusals, 1, "{command}");
        let (_, errors) = program.end();
        let lines: Vec<_> = errors.lines().collect();
        assert_eq!(lines.len(), 1, "{command}: {errors}");
        check(lines[0], call, pid);
        world.settle();
    }
}

#[test]
fn refusals_name_twins_by_their_plain_name() {
    let world = World::new(CAP);
    let mut program = world.start_with(&["--ptsz"]);
    program.expect(&[("start", "0 0"), ("async a 600M", "2")]);
    let pid = program.pid();
    let (_, errors) = program.end();
    check(errors.trim_end(), "cuMemAllocAsync", pid);
}

#[test]
fn repeated_refusals_print_only_a_few_lines() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    assert_eq!(program.say("repeat 1000 {\nalloc a 600M\n}"), "2:1000");
    assert_eq!(world.usage(0).refusals, 1000);
    let (_, errors) = program.end();
    let lines = errors.lines().count();
    // At most three lines are printed per second, and a slow machine needs a few seconds.
    assert!((1..=60).contains(&lines), "{lines} lines");
}

#[test]
fn a_refusal_names_the_holders() {
    let world = World::new(CAP);
    let mut other = world.on_gpu();
    let mut program = world.start();
    program.expect(&[("init", "0"), ("retain 0", "2")]);
    let (_, errors) = program.end();
    let pid = other.pid();
    let holder = format!("; most is used by pid {pid} (gpu-script) 518.0 MiB. `gpulimit why`");
    assert!(errors.contains(&holder), "{errors}");
    assert!(
        errors.contains("refused cuDevicePrimaryCtxRetain of "),
        "{errors}"
    );
    other.expect(&[("alloc a 400M", "0")]);
    world.judge(CAP);
}

#[test]
fn a_refusal_is_silent_if_standard_error_is_closed() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[
        ("closefrom 2", "0"),
        ("alloc a 600M", "2"),
        ("alloc a 100M", "0"),
    ]);
    world.judge(CAP);
}

/// The driver itself fails, at every function that takes memory.
#[test]
fn a_failed_call_is_uncharged() {
    for (call, command) in [
        ("cuMemAlloc_v2", "alloc a 100M"),
        ("cuMemAlloc_v2", "alloc a 1000"),
        ("cuMemAllocPitch_v2", "pitch a 100 100000"),
        ("cuMemAllocManaged", "managed a 100M"),
        ("cuMemCreate", "create a 100M 0"),
        ("cuMemAllocAsync", "async a 100M"),
        ("cuMemAllocFromPoolAsync", "async-from a p 100M"),
        ("cuCtxCreate_v2", "context a 0 v2"),
        ("cuCtxCreate_v4", "context a 0 v4"),
        ("cuDevicePrimaryCtxRetain", "retain 0"),
        ("cuModuleLoadData", "module a 100M"),
        ("cuLibraryLoadData", "library a 100M"),
        ("cuStreamCreate", "stream a"),
    ] {
        for code in ["2", "999", "901"] {
            let world = World::new(4096 * MIB);
            let mut program = world.on_gpu();
            program.expect(&[("default-pool p 0", "0"), ("alloc before 4M", "0")]);
            let before = world.usage(0);
            world.machine().knob("fail", &format!("{call}:{code}"));
            let answer = program.say(&format!("repeat 20 {{\n{command}\n}}"));
            assert_eq!(answer, format!("{code}:20"), "{command}");
            let after = world.usage(0);
            assert!(
                // A pool keeps one step charged for the next allocation.
                after.charged <= before.charged + if call.contains("Async") { 32 } else { 2 } * MIB,
                "{command}: {before:?} {after:?}"
            );
            assert_eq!(
                after.charged - after.idle,
                before.charged - before.idle,
                "{command}"
            );
            world.judge(4096 * MIB);
            world.machine().knob("fail", "none");
            program.expect(&[(
                command,
                if command.starts_with("pitch") {
                    "0 512"
                } else {
                    "0"
                },
            )]);
            world.judge(4096 * MIB);
            match code {
                "2" => drop(program.end()),
                _ => program.end_quietly(),
            }
            world.judge_end(4096 * MIB);
        }
    }
}

#[test]
fn a_failed_free_keeps_the_charge() {
    for (call, take, give) in [
        ("cuMemFree_v2", "alloc a 100M", "free a"),
        ("cuMemFree_v2", "alloc a 1000", "free a"),
        ("cuMemFree_v2", "managed a 100M", "free a"),
        ("cuMemRelease", "create a 100M 0", "release a"),
        ("cuMemFreeAsync", "async a 100M", "free-async a"),
        ("cuMemPoolTrimTo", "async a 100M", "trim p 0"),
        ("cuCtxDestroy_v2", "context a 0 v2", "destroy a"),
        ("cuModuleUnload", "module a 100M", "unload a"),
        (
            "cuDevicePrimaryCtxRelease_v2",
            "retain 0",
            "release-primary 0",
        ),
        ("cuDevicePrimaryCtxReset_v2", "retain 0", "reset 0"),
    ] {
        let world = World::new(4096 * MIB);
        let mut program: Session = world.on_gpu();
        program.expect(&[("default-pool p 0", "0"), (take, "0")]);
        world.machine().knob("fail", &format!("{call}:700"));
        program.expect(&[(give, "700"), (give, "700")]);
        world.judge(4096 * MIB);
        world.machine().knob("fail", "none");
        program.expect(&[(give, "0")]);
        world.judge(4096 * MIB);
        program.end_quietly();
        world.judge_end(4096 * MIB);
    }
}

/// What is left is what the process could still get: its charged reserve is not.
#[test]
fn a_refusal_says_what_is_left() {
    // The cap has room for the context, the driver's reserve and 96 MiB.
    let cap = CONTEXT + 100 * MIB;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    program.expect(&[("alloc a 98M", "2"), ("alloc a 96M", "0")]);
    let usage = world.usage(0);
    assert_eq!(usage.charged, cap);
    assert_eq!(usage.charged - usage.idle, CONTEXT + 96 * MIB);
    let (_, errors) = program.end();
    let said = ": 96.0 MiB left of 618.0 MiB in world; most";
    assert!(errors.contains(said), "{errors}");
}

/// A pool takes more from the driver than the program asks for, and that more does not fit.
#[test]
fn a_refusal_says_what_a_pool_takes() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("async a 500M", "2")]);
    let one = world.ledger().trail(0).pop().expect("an event");
    assert_eq!((one.event.what.bytes, one.takes), (500 * MIB, 512 * MIB));
    let mut why = world.bare(&world::controller());
    why.arg("why");
    let why = world::finish(why);
    let said = "that takes 512.0 MiB: 502.0 MiB left of 1.0 GiB in world";
    assert!(world::text(&why.stdout).contains(said), "{why:?}");
    let (_, errors) = program.end();
    let asked = "refused cuMemAllocAsync of 500.0 MiB, which takes 512.0 MiB, on GPU 0 (GPU-";
    assert!(errors.contains(asked), "{errors}");
    assert!(
        errors.contains(": 502.0 MiB left of 1.0 GiB in world; most"),
        "{errors}"
    );
}

/// The driver refuses these calls without a current context (measured on an H200, driver 580), so
/// the group is not asked: nothing is refused, charged or waited for.
#[test]
fn a_call_without_a_context_gets_the_drivers_answer() {
    let world = World::new(2048 * MIB);
    world.settings(&["on_limit=wait", "wait_timeout=100ms"]);
    let mut program = world.on_gpu();
    let mut other = world.on_gpu();
    program.expect(&[("async a 2M", "0"), ("default-pool p 0", "0")]);
    other.expect(&[("alloc a 500M", "0")]);
    program.expect(&[("pop", "0")]);
    let before = world.usage(0);
    for call in [
        "alloc b 1900M",
        "alloc b 100M",
        "alloc b 4K",
        "alloc-v1 b 1900M",
        "pitch b 1M 1900",
        "managed b 1900M",
        "array b 16384,16384,0,32,4",
        "array b 64,64,0,32,4",
        "mipmap b 16384,16384,0,32,4 3",
        "async b 1900M",
        "async-from b p 1900M",
        "stream s",
        "module-ex m 1900000000",
        "set-limit 0 1M",
    ] {
        let answer = program.say(call);
        assert_eq!(answer.split(' ').next(), Some("201"), "{call}: {answer}");
        let (charged, peak) = (world.usage(0).charged, world.usage(0).peak);
        assert_eq!((charged, peak), (before.charged, before.peak), "{call}");
    }
    program.expect(&[("current 0", "0"), ("alloc b 2M", "0")]);
    assert_eq!(world.events(EventKind::Refusal).len(), 0);
    assert_eq!(world.events(EventKind::Wait).len(), 0);
    program.end();
    other.end();
    world.judge_end(2048 * MIB);
}
