//! The files of a group are changed under running programs: any user whose memory is charged in the
//! ledger can change the ledger, and the group's owner can change both files.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gpulimit_base::device::DeviceId;
use gpulimit_ledger::{EventKind, Ledger};
use gpulimit_programs::world::{self, CONTEXT, MIB, World};

use crate::life::watch;

const CAP: u64 = 4096 * MIB;
const PIECE: u64 = 100 * MIB;
/// Offsets in the ledger: the charges, the slots, the bills of users, and the history.
const CHARGES: u64 = 16 << 10;
const SLOTS: u64 = CHARGES + (2 << 20);
const USERS: u64 = SLOTS + (32 << 20);
const HISTORY: u64 = USERS + (128 << 10);

fn ledger(world: &World) -> File {
    let path = world.group().ledger_path();
    let open = OpenOptions::new().write(true).open(path);
    open.expect("the ledger")
}

/// Zeroes the charges of the first slots on the first device.
fn zero(ledger: &File) {
    for slot in 0..16 {
        let word = CHARGES + slot * 64;
        ledger.write_all_at(&[0; 8], word).expect("written");
    }
}

/// The ledger stores the size of the first context in a word that any member may write.
#[test]
fn an_impossible_context_size_in_the_ledger_is_ignored() {
    // Bytes of local memory that every context of the simulated GPU has from the start.
    const LEAST: u64 = 264 * MIB;
    let world = World::new(CAP);
    let first = world.on_gpu();
    let id: DeviceId = world.machine().gpu(0).uuid.parse().expect("a UUID");
    let ledger = world.ledger();
    let device = ledger.find_device(&id).expect("seen");
    assert!(ledger.context_hint(device) >= LEAST);
    ledger.set_context_hint(device, 1);
    let before = world.usage(0).charged;
    let mut second = world.start();
    second.expect(&[("start", "0 0")]);
    let charged = world.usage(0).charged - before;
    assert!(charged >= LEAST, "{charged}");
    second.end_quietly();
    first.end_quietly();
}

#[test]
fn a_program_restores_its_own_charge_in_a_zeroed_ledger() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("alloc a 3000M", "0")]);
    // After the library has seen a change, the process gets no memory for this long. The bound is
    // the library's promise: a slower answer decides nothing, and is asked for again.
    const WHILE: Duration = Duration::from_secs(1);
    loop {
        let began = Instant::now();
        zero(&ledger(&world));
        program.expect(&[("alloc b 1000M", "2")]);
        let answer = program.say("alloc b 100M");
        // On a slow machine this time may be over already.
        if began.elapsed() < WHILE {
            assert_eq!(answer, "2");
            break;
        }
        if answer == "0" {
            program.expect(&[("free b", "0")]);
        }
    }
    world.judge(CAP);
    assert!(world::eventually(|| program.say("alloc b 100M") == "0"));
    program.expect(&[("free a", "0"), ("free b", "0")]);
    world.judge(CAP);
    program.end();
    world.judge_end(CAP);
}

/// A program that computes makes no request, so nothing restores its charge. The driver's figures
/// tell others what it holds.
#[test]
fn memory_whose_charge_was_zeroed_is_given_to_no_other_program() {
    let world = World::new(CAP);
    let mut idle = world.on_gpu();
    idle.expect(&[("alloc a 3200M", "0")]);
    for _ in 0..4 {
        zero(&ledger(&world));
        let mut newcomer = world.start();
        newcomer.expect(&[("start", "0 2"), ("alloc b 1M", "201")]);
        let (_, errors) = newcomer.end();
        assert!(errors.contains(" GiB beyond their charges"), "{errors}");
    }
    assert!(world.machine().peak() <= CAP);
    // The verbs show it.
    let says = |arguments: &[&str]| {
        let mut command = world.bare(&world::controller());
        let output = world::finish({
            command.args(arguments);
            command
        });
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned())
    };
    let is_told = |text: &str| text.contains("hold 3.6 GiB of GPU ");
    let [_, errors] = says(&["ps"]);
    assert!(is_told(&errors), "{errors}");
    let [doctor, _] = says(&["doctor"]);
    assert!(
        doctor.contains("warning  uncovered ") && is_told(&doctor),
        "{doctor}"
    );
    let [show, _] = says(&["show", "--json"]);
    let show: serde_json::Value = serde_json::from_str(&show).expect("JSON");
    let [uncovered, free] =
        ["uncovered", "free"].map(|key| show["groups"][0]["gpus"][0][key].as_u64());
    let used = world.machine().used();
    assert_eq!((uncovered, free), (Some(used), Some(CAP - used)), "{show}");
    // The refused request has told the members, which restore their charges at their next call.
    assert!(world::eventually(|| {
        idle.expect(&[("sync", "0")]);
        world.usage(0).charged >= world.machine().used()
    }));
    world.judge(CAP);
    // The member charges its memory again. Others get it after the member has freed it.
    idle.expect(&[("free a", "0")]);
    let mut newcomer = world.on_gpu();
    newcomer.expect(&[("alloc b 2500M", "0")]);
    world.judge(CAP);
    newcomer.end_quietly();
    idle.end_quietly();
    world.judge_end(CAP);
}

/// Many programs make no request while they compute.
#[test]
fn a_program_restores_its_charge_at_its_next_gated_call() {
    for step in [
        &[("query-event e", "0")][..],
        &[("async p 1M", "0"), ("free-async p", "0")],
    ] {
        let world = World::new(CAP);
        let mut program = world.on_gpu();
        program.expect(&[("alloc a 2000M", "0"), ("event e", "0")]);
        program.expect(&[("async p 1M", "0"), ("free-async p", "0")]);
        zero(&ledger(&world));
        program.expect(step);
        assert!(world.usage(0).charged < world.machine().used(), "not told");
        // The first look of a newcomer tells the program.
        let newcomer = world.on_gpu();
        program.expect(step);
        assert!(world.usage(0).charged >= world.machine().used());
        world.judge(CAP);
        newcomer.end_quietly();
        program.end_quietly();
        world.judge_end(CAP);
    }
}

/// OpenCL and Vulkan take memory inside the driver. Here a context that no hook sees does.
#[test]
fn memory_that_no_hook_sees_leaves_less_room_for_others() {
    let world = World::new(CAP);
    let (mut one, mut other) = (world.on_gpu(), world.on_gpu());
    one.expect(&[("unseen-context u 0", "0")]);
    // The other program looks once a second.
    let rest = (CAP - 3 * CONTEXT) / PIECE;
    let expected = [rest - 1, rest].map(|count| format!("2 {count}"));
    assert!(world::eventually(|| {
        world.machine().reset_peak();
        let filled = other.say("fill f 100M");
        other.expect(&[("free-many f", "0")]);
        expected.contains(&filled)
    }));
    assert!(world.machine().peak() <= CAP);
    one.end_quietly();
    other.expect(&[("alloc a 3100M", "0")]);
    world.judge(CAP);
    drop(other);
    world.judge_end(CAP);
}

#[test]
fn zeroing_the_ledger_gains_each_program_one_charge_at_most() {
    let world = World::new(CAP);
    let (mut one, mut two) = (world.on_gpu(), world.on_gpu());
    let ledger = ledger(&world);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                zero(&ledger);
            }
        });
        for _ in 0..60 {
            for program in [&mut one, &mut two] {
                let answer = program.say("alloc x 100M");
                assert!(answer == "0" || answer == "2", "{answer}");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let peak = world.machine().gpus()[0].peak;
    assert!(peak <= CAP + 2 * PIECE, "peak {peak}");
    assert!(peak >= 2 * CONTEXT, "the programs made no contexts");
    zero(&ledger);
    drop((one, two));
    world.settle();
}

/// The bytes written over a range of a file.
#[derive(Clone, Copy, Debug)]
enum Damage {
    Zeros,
    Ones,
    Flipped,
    Random,
}

const DAMAGES: [Damage; 4] = [Damage::Zeros, Damage::Ones, Damage::Flipped, Damage::Random];

fn damage(path: &Path, start: u64, length: usize, kind: Damage) {
    let open = OpenOptions::new().read(true).write(true).open(path);
    let file = open.expect("there");
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, start).expect("readable");
    match kind {
        Damage::Zeros => bytes.fill(0),
        Damage::Ones => bytes.fill(0xff),
        Damage::Flipped => bytes.iter_mut().for_each(|byte| *byte = !*byte),
        Damage::Random => gpulimit_support::random().fill(&mut bytes),
    }
    file.write_all_at(&bytes, start).expect("written");
}

/// Runs a program that comes to the group and takes what it gets: the program must end normally,
/// whether it was let in or not.
fn run_newcomer(world: &World) {
    let mut program = world.start();
    let started = program.say("start");
    assert!(
        ["0 0", "800", "2"]
            .iter()
            .any(|known| started.ends_with(known)),
        "{started}"
    );
    let filled = program.say("fill new 100M");
    let (status, errors) = program.end();
    assert!(status.success(), "{filled}: {status:?} {errors}");
    assert!(
        errors.lines().all(|line| line.starts_with("gpulimit: ")),
        "{errors}"
    );
}

#[test]
fn overwritten_limits_allow_no_more_memory() {
    // The ranges are the preface, the count of changes, the head and the rules of each bank, and
    // all of them.
    let bank = |number: u64| 128 + number * 4160;
    for (start, length) in [
        (0, 24),
        (8, 8),
        (64, 8),
        (bank(0), 64),
        (bank(1), 8),
        (bank(1), 64),
        (bank(1) + 64, 64),
        (64, 128 + 2 * 4160 - 64),
    ] {
        for kind in DAMAGES {
            let world = World::new(CAP);
            let mut program = world.on_gpu();
            program.expect(&[("alloc a 1000M", "0")]);
            damage(&world.group().path().join("limits"), start, length, kind);
            println!("{kind:?} at {start}");
            let filled = program.say("fill f 100M");
            assert!(filled.starts_with("2 "), "{filled}");
            run_newcomer(&world);
            assert!(world.machine().peak() <= CAP);
            program.expect(&[("free a", "0"), ("free-many f", "0")]);
            let (status, errors) = program.end();
            assert!(status.success(), "{status:?} {errors}");
        }
    }
}

#[test]
fn an_overwritten_ledger_allows_no_more_memory() {
    // Some newcomers wait for seconds for memory that the damaged charges claim.
    std::thread::scope(|scope| {
        for kind in DAMAGES {
            scope.spawn(move || overwrite_ledgers(kind));
        }
    });
}

fn overwrite_ledgers(kind: Damage) {
    let page = 4096;
    // The flag says whether the damage leaves earlier members' charges recognisable: damage to the
    // words, or to the GPU that they are for, does not.
    for (start, length, is_known) in [
        (0, 64, true),
        (64, 64, true),
        (128, 896, true),
        (1024, 2048, false),
        (page, 3 * page as usize, true),
        (CHARGES, 64, false),
        (CHARGES, 1 << 18, false),
        (SLOTS, 128, true),
        (SLOTS + 128, 64, true),
        (SLOTS + page, 4096, true),
        (SLOTS, 16 << 10, true),
        (USERS, 128 << 10, true),
        (HISTORY, 64 << 10, true),
    ] {
        let world = World::new(CAP);
        let mut program = world.on_gpu();
        program.expect(&[("alloc a 1000M", "0")]);
        damage(&world.group().ledger_path(), start, length, kind);
        println!("{kind:?} at {start}");
        // A process whose word was lowered gets no memory for a second.
        let filled = program.say("fill f 100M");
        assert!(filled.starts_with("2 "), "{filled}");
        assert!(
            world.machine().peak() <= CAP,
            "{:?}",
            world.machine().gpu(0)
        );
        run_newcomer(&world);
        assert!(
            !is_known || world.machine().peak() <= CAP,
            "{:?}",
            world.machine().gpu(0)
        );
        program.expect(&[("free a", "0")]);
        let (status, errors) = program.end();
        assert!(status.success(), "{status:?} {errors}");
    }
}

/// A way to truncate a file.
#[derive(Clone, Copy, Debug)]
enum Cut {
    All,
    Half,
    /// The file is then extended with zeros to its former length.
    AndGrown,
}

fn cut(path: &Path, how: Cut) {
    let file = OpenOptions::new().write(true).open(path).expect("there");
    let length = file.metadata().expect("there").len();
    let cut = |length| file.set_len(length).expect("cut");
    match how {
        Cut::All => cut(0),
        Cut::Half => cut(length / 2),
        Cut::AndGrown => {
            cut(0);
            cut(length);
        }
    }
}

/// Asserts that every line comes from the library and names the file.
#[track_caller]
fn assert_every_line_names(errors: &str, path: &Path) {
    assert!(!errors.is_empty());
    for line in errors.lines() {
        assert!(line.starts_with("gpulimit: refused "), "{line}");
        assert!(line.contains(&path.display().to_string()), "{line}");
    }
}

#[test]
fn truncated_files_end_no_program_and_allow_no_memory() {
    for name in ["ledger", "limits"] {
        for how in [Cut::All, Cut::Half, Cut::AndGrown] {
            println!("{name} {how:?}");
            let world = World::new(CAP);
            let (mut program, mut idle) = (world.on_gpu(), world.on_gpu());
            program.expect(&[("alloc a 1000M", "0")]);
            let path = world.group().path().join(name);
            cut(&path, how);
            let filled = program.say("fill f 100M");
            // The first half of the limits suffices for a process that has read the file before.
            // That of the ledger suffices until the process records in the history, which is in
            // the other half: in the same second or in the next one.
            let is_refused = !matches!(how, Cut::Half);
            assert!(filled.starts_with("2 "), "{filled}");
            if name == "limits" || is_refused {
                assert_eq!(filled == "2 0", is_refused, "{filled}");
            }
            run_newcomer(&world);
            let filled = idle.say("fill f 100M");
            let most = if name == "ledger" && !is_refused {
                1
            } else {
                0
            };
            assert!(
                (0..=most).any(|count| filled == format!("2 {count}")),
                "{filled}"
            );
            if is_refused {
                // The process can get no memory, and the driver reports none as free.
                assert_eq!(program.numbers("info")[1], 0);
            }
            assert!(world.machine().peak() <= CAP);
            program.expect(&[("free a", "0"), ("free-many f", "0")]);
            for program in [program, idle] {
                let (status, errors) = program.end();
                assert!(status.success(), "{status:?} {errors}");
                if is_refused {
                    assert_every_line_names(&errors, &path);
                }
            }
        }
    }
}

#[test]
fn truncated_files_of_a_parent_group_allow_no_memory() {
    for name in ["ledger", "limits"] {
        let world = World::new(CAP);
        world.below("leaf", &["max=2G"]);
        let mut program = world.on_gpu_in("leaf");
        program.expect(&[("alloc a 500M", "0")]);
        let path = world.group().path().join(name);
        cut(&path, Cut::All);
        program.expect(&[("alloc b 100M", "2"), ("free a", "0"), ("alloc b 10M", "2")]);
        let (status, errors) = program.end();
        assert!(status.success(), "{status:?} {errors}");
        assert_every_line_names(&errors, &path);
    }
}

#[test]
fn a_waiting_request_is_refused_if_a_file_is_truncated() {
    for name in ["ledger", "limits"] {
        let world = World::new(CAP);
        world.settings(&["on_limit=wait", "wait_timeout=600s"]);
        let (mut holder, mut waiter) = (world.on_gpu(), world.on_gpu());
        holder.expect(&[("alloc a 2500M", "0")]);
        waiter.tell("alloc b 1000M");
        let waits = || !world.events(EventKind::Wait).is_empty();
        assert!(world::eventually(waits));
        cut(&world.group().path().join(name), Cut::All);
        assert_eq!(waiter.answer(), "2");
        holder.expect(&[("free a", "0")]);
        for program in [holder, waiter] {
            let (status, errors) = program.end();
            assert!(status.success(), "{status:?} {errors}");
        }
    }
}

#[test]
fn threads_and_children_survive_truncated_files() {
    let program = world::compile("cut", &["-pthread"]);
    for name in ["ledger", "limits"] {
        let world = World::new(CAP);
        let path = world.group().path().join(name);
        let seen = watch(world.limited(&program), || cut(&path, Cut::All));
        assert_eq!(seen.code, Some(0), "{seen:?}");
        let expected = ["hold", "start 0 freed 0 held 0", "child 100"];
        assert_eq!(seen.lines, expected, "{}", seen.errors);
        assert!(world.machine().peak() <= CAP);
    }
}

#[test]
fn a_program_may_start_while_a_file_is_truncated() {
    for name in ["ledger", "limits"] {
        for moment in 0..20 {
            let world = World::new(CAP);
            let path = world.group().path().join(name);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(3 * moment));
                    cut(&path, Cut::All);
                });
                run_newcomer(&world);
            });
            assert!(world.machine().peak() <= CAP);
        }
    }
}

#[test]
fn a_programs_handler_does_not_see_the_librarys_bus_errors() {
    let program = world::compile("bus", &[]);
    for how in ["info", "plain", "jumps"] {
        let world = World::new(CAP);
        let mut command = world.limited(&program);
        command.args([how, "before"]);
        let path = world.group().ledger_path();
        let seen = watch(command, || cut(&path, Cut::All));
        assert_eq!(seen.code, Some(0), "{how} {seen:?}");
        let last = seen.lines.last().map(String::as_str);
        assert_eq!(last, Some("free 0 handled 0"), "{how} {seen:?}");
    }
}

#[test]
fn pythons_fault_handler_sees_only_its_own_bus_errors() {
    let script = world::repository().join("tests/programs/python/faults.py");
    let run = |mut command: Command, arguments: [&str; 2], at_hold: &dyn Fn()| {
        command.arg(&script).args(arguments);
        watch(command, at_hold)
    };
    let python = Path::new("python3");
    for when in ["before", "after"] {
        let bare = World::without_group(&[]);
        let expected = run(bare.bare(python), [when, "own"], &|| ());
        let world = World::new(CAP);
        let seen = run(world.limited(python), [when, "own"], &|| ());
        let reported = "Fatal Python error: Bus error";
        for seen in [&expected, &seen] {
            assert_eq!(seen.signal, Some(libc::SIGBUS), "{when}: {seen:?}");
            assert_eq!(seen.errors.matches(reported).count(), 1, "{when}: {seen:?}");
        }
        assert_eq!(seen.lines, expected.lines);
    }
    let world = World::new(CAP);
    let path = world.group().ledger_path();
    let seen = run(world.limited(python), ["before", "none"], &|| {
        cut(&path, Cut::All)
    });
    assert_eq!(seen.code, Some(0), "{seen:?}");
    assert_eq!(seen.lines.last().map(String::as_str), Some("again 2"));
    assert_every_line_names(&seen.errors, &path);
}

#[test]
fn replaced_files_do_not_affect_running_programs() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("alloc a 1000M", "0")]);
    let folder = world.group().path().to_owned();
    let other = folder.join("other");
    Ledger::create(&other, 0o600).expect("made");
    fs::rename(&other, folder.join("ledger")).expect("in its place");
    let filled = program.say("fill f 100M");
    assert!(filled.starts_with("2 "), "{filled}");
    assert!(world.machine().peak() <= CAP);
    run_newcomer(&world);
    // Each of the two ledgers allows a limit's worth of memory, and no more.
    assert!(world.machine().peak() <= 2 * CAP);

    let world = World::new(CAP);
    let mut program = world.on_gpu();
    let folder = world.group().path().to_owned();
    for (at, bytes) in [&b""[..], b"GPULIMTS", &[0xff; 8448]]
        .into_iter()
        .enumerate()
    {
        let other = folder.join("other");
        fs::write(&other, bytes).expect("written");
        fs::rename(&other, folder.join("limits")).expect("in its place");
        let filled = program.say(&format!("fill f{at} 100M"));
        assert!(filled.starts_with("2 "), "{filled}");
        run_newcomer(&world);
    }
    assert!(world.machine().peak() <= CAP);
    program.end();
}

/// A false NVML may hide what only NVML could report, but not what the library knows without NVML:
/// linear memory, the local memory of contexts (here 264 MiB of each) and the variables of code.
#[test]
fn a_false_nvml_hides_no_memory_that_the_library_knows() {
    const LOCAL: u64 = 264 * MIB;
    let cap = CONTEXT + 800 * MIB;
    for (variable, value) in [
        ("GPULIMIT_SIM_NVML_FIGURE", "1"),
        ("GPULIMIT_SIM_NVML_COUNT", "4294967295"),
    ] {
        let world = World::new(cap);
        let mut command = world.limited(gpulimit_programs::world::program());
        command.env(variable, value);
        let mut program = world::Session::start(command);
        program.expect(&[("start", "0 0")]);
        let mut loaded = 0;
        for number in 0..8 {
            let load = match number % 2 {
                0 => program.say(&format!("module m{number} 200M")),
                _ => {
                    program.say(&format!("library m{number} 200M"));
                    program.say(&format!("library-module m{number}"))
                }
            };
            loaded += u64::from(load == "0");
        }
        let hidden = CONTEXT - LOCAL;
        assert!((3..=5).contains(&loaded), "{variable}: {loaded} loaded");
        let used = world.machine().used();
        assert!(used <= cap + hidden, "{} over", used - cap);
        assert!(world.usage(0).charged + hidden >= used);
        program.expect(&[("alloc a 500M", "2")]);
        program.end();
        world.settle();
        assert_eq!(world.usage(0).charged, 0);
    }
}
