//! `cuMemCreate` memory that processes share by descriptors is charged once: to its exporter until
//! the exporter releases it, then to an importer, as the driver counts it. The limit holds
//! throughout, even if a process sleeps or dies.

use gpulimit_base::process::{FIRST_PID_NS, pid_ns};
use gpulimit_ledger::{Category, NoWitness, ProcessUsage};
use gpulimit_programs::world::{
    self, BLOCK, CONTEXT, GROUP, HOUR, Holder, MIB, Session, World, eventually, finish, program,
};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use serde_json::Value;

/// Bytes of the shared memory.
pub const SIZE: u64 = 300 * MIB;
/// Beside three contexts and the shared memory, this limit leaves 100 MiB and the reserves of three
/// processes.
pub const CAP: u64 = 3 * CONTEXT + SIZE + 112 * MIB;

/// Exports a handle and returns the path of the descriptor for other processes.
pub fn export(program: &mut Session, handle: &str) -> String {
    let answer = program.say(&format!("export fd-{handle} {handle}"));
    let (status, descriptor) = answer.split_once(' ').expect("two numbers");
    assert_eq!(status, "0");
    format!("/proc/{}/fd/{descriptor}", program.pid())
}

/// Starts an exporter of [`SIZE`] as `a`, an importer that has this memory mapped, and a third
/// process.
fn shared(world: &World) -> [Session; 3] {
    let [mut exporter, mut importer, third] = std::array::from_fn(|_| world.on_gpu());
    exporter.expect(&[("create a 300M", "0")]);
    let path = export(&mut exporter, "a");
    importer.expect(&[
        (&format!("import-from a {path}"), "0"),
        ("reserve range 300M", "0"),
        ("map range 0 a 300M", "0"),
        ("release a", "0"),
    ]);
    exporter.expect(&[("close fd-a", "0")]);
    world.judge(CAP);
    [exporter, importer, third]
}

pub fn process(world: &World, program: &Session) -> ProcessUsage {
    let all = world.ledger().processes(&NoWitness);
    let of = |process: &ProcessUsage| process.identity.pid == program.pid();
    all.into_iter().find(of).expect("a member")
}

/// Returns the bytes charged to a process beyond its context, and those of them in a category.
#[track_caller]
pub fn charged_as(category: Category, world: &World, program: &Session) -> (u64, u64) {
    let usage = process(world, program).devices[0];
    let beyond = (usage.in_use() - CONTEXT) / BLOCK * BLOCK;
    (beyond, usage.of(category))
}

#[track_caller]
fn charged(world: &World, program: &Session) -> (u64, u64) {
    charged_as(Category::Vmm, world, program)
}

/// Asserts that the third process gets all memory that is left, and no more.
#[track_caller]
pub fn fill(world: &World, third: &mut Session) {
    third.expect(&[
        ("alloc big 112M", "2"),
        ("alloc fits 96M", "0"),
        ("alloc more 16M", "2"),
    ]);
    world.judge(CAP);
}

pub fn end(world: &World, programs: [Session; 3]) {
    for program in programs {
        program.end();
    }
    world.judge_end(CAP);
}

#[test]
fn released_memory_stays_charged_while_an_importer_has_it() {
    let world = World::new(CAP);
    let [mut exporter, mut importer, mut third] = shared(&world);
    assert_eq!(charged(&world, &exporter), (SIZE, SIZE));
    exporter.expect(&[("release a", "0")]);
    assert_eq!(world.machine().used(), 3 * CONTEXT + SIZE);
    world.judge(CAP);
    fill(&world, &mut third);
    importer.expect(&[("unmap range 0 300M", "0")]);
    assert_eq!(world.machine().used(), 3 * CONTEXT + 96 * MIB);
    // The exporter sleeps: the member that needs the memory finds that it is free.
    third.expect(&[("alloc more 300M", "0")]);
    world.judge(CAP);
    assert_eq!(charged(&world, &exporter), (0, 0));
    end(&world, [exporter, importer, third]);
}

#[test]
fn an_importer_takes_over_the_charge_of_a_sleeping_exporter() {
    let world = World::new(CAP);
    let [mut exporter, mut importer, mut third] = shared(&world);
    exporter.expect(&[("release a", "0")]);
    // Any call that takes a block makes the importer measure.
    importer.expect(&[("alloc x 4M", "0"), ("free x", "0")]);
    assert_eq!(charged(&world, &exporter), (0, 0));
    assert_eq!(charged(&world, &importer), (SIZE, SIZE));
    world.judge(CAP);
    fill(&world, &mut third);
    importer.expect(&[("unmap range 0 300M", "0")]);
    assert_eq!(charged(&world, &importer), (0, 0));
    world.judge(CAP);
    end(&world, [exporter, importer, third]);
}

#[test]
fn memory_kept_by_a_descriptor_and_an_importer_stays_charged() {
    let world = World::new(CAP);
    let [mut exporter, mut importer, mut third] = shared(&world);
    export(&mut exporter, "a");
    exporter.expect(&[("release a", "0")]);
    let shown = |program: &Session| {
        let holders = world.machine().gpu(0).holders;
        let of = |pid| holders.iter().find(|holder| holder.pid == pid);
        of(program.pid()).expect("a holder").bytes - CONTEXT
    };
    assert_eq!((shown(&exporter), shown(&importer)), (0, 0));
    assert_eq!(world.machine().used(), 3 * CONTEXT + SIZE);
    world.judge(CAP);
    fill(&world, &mut third);
    exporter.expect(&[("close fd-a", "0")]);
    assert_eq!((shown(&exporter), shown(&importer)), (0, SIZE));
    importer.expect(&[("alloc x 4M", "0"), ("free x", "0")]);
    assert_eq!(charged(&world, &importer), (SIZE, SIZE));
    importer.expect(&[("unmap range 0 300M", "0")]);
    assert_eq!(charged(&world, &exporter), (0, 0));
    assert_eq!(charged(&world, &importer), (0, 0));
    world.judge(CAP);
    end(&world, [exporter, importer, third]);
}

#[test]
fn released_memory_without_importers_is_uncharged_at_once() {
    let world = World::new(CAP);
    let [mut exporter, mut importer, third] = shared(&world);
    importer.expect(&[("unmap range 0 300M", "0")]);
    assert_eq!(charged(&world, &exporter), (SIZE, SIZE));
    exporter.expect(&[("release a", "0")]);
    assert_eq!(world.usage(0).charged, world.usage(0).idle + 3 * CONTEXT);
    world.judge(CAP);
    end(&world, [exporter, importer, third]);
}

#[test]
fn the_charge_of_a_dead_exporter_moves_to_the_importer() {
    for way in ["kill", "exit"] {
        let world = World::new(CAP);
        let [exporter, mut importer, mut third] = shared(&world);
        match way {
            "kill" => exporter.kill(),
            _ => exporter.end_quietly(),
        }
        let used = 2 * CONTEXT + SIZE;
        assert!(eventually(|| world.machine().used() == used));
        // One context has ended, so 518 MiB more are left for the third process.
        third.expect(&[
            ("alloc big 640M", "2"),
            ("alloc fits 608M", "0"),
            ("alloc more 24M", "2"),
        ]);
        world.judge(CAP);
        importer.expect(&[("create x 4M", "0"), ("release x", "0")]);
        assert_eq!(charged(&world, &importer), (SIZE, SIZE));
        assert_eq!(process(&world, &third).devices[0].orphaned, 0);
        world.judge(CAP);
        importer.expect(&[("unmap range 0 300M", "0")]);
        third.expect(&[("alloc more 300M", "0")]);
        world.judge(CAP);
        importer.end_quietly();
        third.end();
        world.judge_end(CAP);
    }
}

#[test]
fn the_charge_of_a_dead_importer_moves_to_another_importer() {
    let world = World::new(CAP);
    let [mut exporter, importer, mut third] = shared(&world);
    let path = export(&mut exporter, "a");
    third.expect(&[(&format!("import-from a {path}"), "0")]);
    // NVML attributes the memory to no process, since there are two imports.
    exporter.expect(&[("close fd-a", "0"), ("release a", "0")]);
    world.judge(CAP);
    importer.kill();
    let used = 2 * CONTEXT + SIZE;
    assert!(eventually(|| world.machine().used() == used));
    exporter.expect(&[("alloc big 640M", "2"), ("alloc fits 608M", "0")]);
    world.judge(CAP);
    third.expect(&[("release a", "0")]);
    world.judge(CAP);
    exporter.expect(&[("alloc more 300M", "0")]);
    world.judge(CAP);
    exporter.end();
    third.end();
    world.judge_end(CAP);
}

#[test]
fn memory_released_and_imported_again_is_charged_once() {
    let cap = CONTEXT + 512 * MIB;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    program.expect(&[("reserve range 1G", "0")]);
    for round in 0..2 {
        let handle = format!("a{round}");
        program.expect(&[(&format!("create {handle} 200M"), "0")]);
        let path = export(&mut program, &handle);
        program.expect(&[(&format!("release {handle}"), "0")]);
        let held = (round + 1) * 200 * MIB;
        assert_eq!(world.machine().used(), CONTEXT + held);
        world.judge(cap);
        program.expect(&[(&format!("import-from {handle} {path}"), "0")]);
        if round == 0 {
            program.expect(&[("map range 0 a0 200M", "0")]);
        }
        // The driver attributes the memory to this process from now on, without a call of the
        // process.
        program.expect(&[(&format!("close fd-{handle}"), "0")]);
        world.judge(cap);
        assert_eq!(charged(&world, &program), (held, held));
    }
    program.expect(&[("create a2 200M", "2"), ("create a2 40M", "0")]);
    assert_eq!(charged(&world, &program), (440 * MIB, 440 * MIB));
    program.expect(&[
        ("release a0", "0"),
        ("release a1", "0"),
        ("create more 200M", "0"),
        ("unmap range 0 200M", "0"),
    ]);
    assert_eq!(world.machine().used(), CONTEXT + 240 * MIB);
    world.judge(cap);
    assert_eq!(charged(&world, &program), (240 * MIB, 240 * MIB));
    program.end();
    world.judge_end(cap);
}

#[test]
fn memory_kept_only_by_a_descriptor_stays_charged() {
    let cap = CONTEXT + 512 * MIB;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    program.expect(&[("create a 200M", "0")]);
    let path = export(&mut program, "a");
    program.expect(&[("release a", "0"), ("create b 400M", "2")]);
    world.judge(cap);
    let import = format!("import-from c {path}");
    program.expect(&[(&import, "0"), ("create b 400M", "2"), ("release c", "0")]);
    world.judge(cap);
    program.expect(&[("close fd-a", "0")]);
    assert!(eventually(|| world.machine().used() == CONTEXT));
    // Closing the last descriptor makes no call; the library notices it when the memory is needed.
    program.expect(&[("create b 400M", "0")]);
    world.judge(cap);
    program.end();
    world.judge_end(cap);
}

#[test]
fn failed_exports_and_imports_keep_the_charge() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("create a 40M", "0")]);
    let path = export(&mut program, "a");
    let fail = "cuMemExportToShareableHandle:999,cuMemImportFromShareableHandle:999";
    world.machine().knob("fail", fail);
    program.expect(&[
        ("export no a", "999 -1"),
        (&format!("import-from b {path}"), "999"),
        ("import-from b /dev/null", "999"),
    ]);
    world.judge(CAP);
    world.machine().knob("fail", "none");
    program.expect(&[
        ("import-from b /dev/null", "1"),
        ("close fd-a", "0"),
        ("release a", "0"),
    ]);
    assert_eq!(world.machine().used(), CONTEXT);
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn memory_freed_by_another_process_is_not_taken_for_shared_memory() {
    for in_nobodys_figure in [false, true] {
        let cap = CAP + SIZE;
        let world = World::new(cap);
        let [mut exporter, mut importer, mut third] = shared(&world);
        third.expect(&[("alloc own 300M", "0")]);
        if in_nobodys_figure {
            export(&mut exporter, "a");
        }
        // The delay keeps the exporter's release from returning while the other process frees.
        world
            .machine()
            .knob("delay", &format!("cuMemRelease:{HOUR}"));
        exporter.tell("release a");
        let left = || {
            let holders = world.machine().gpu(0).holders;
            let of = |holder: &&Holder| holder.pid == exporter.pid();
            holders.iter().find(of).expect("a holder").bytes == CONTEXT
        };
        assert!(eventually(left));
        third.expect(&[("free own", "0")]);
        world.machine().knob("delay", "0");
        assert_eq!(exporter.answer(), "0");
        assert_eq!(world.machine().used(), 3 * CONTEXT + SIZE);
        world.judge(cap);
        third.expect(&[("alloc big 412M", "2"), ("alloc fits 396M", "0")]);
        if in_nobodys_figure {
            exporter.expect(&[("close fd-a", "0")]);
        }
        importer.expect(&[("unmap range 0 300M", "0")]);
        world.judge(cap);
        for program in [exporter, importer, third] {
            program.end();
        }
        world.judge_end(cap);
    }
}

/// Desktops may hold memory that no process list shows.
#[test]
fn earlier_unattributed_memory_keeps_no_charge() {
    let world = World::new(CAP);
    let mut outsider = Session::start(world.bare(program()));
    outsider.expect(&[("start", "0 0"), ("create a 300M", "0")]);
    export(&mut outsider, "a");
    outsider.expect(&[("release a", "0")]);
    let mut exporter = world.on_gpu();
    exporter.expect(&[("create a 300M", "0")]);
    export(&mut exporter, "a");
    exporter.expect(&[("close fd-a", "0"), ("release a", "0")]);
    assert_eq!(world.machine().used(), 2 * CONTEXT + SIZE);
    assert_eq!(world.counted(0), CONTEXT);
    exporter.end_quietly();
    outsider.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn memory_from_outside_is_charged_while_it_is_imported() {
    let world = World::new(CAP);
    let mut outsider = Session::start(world.bare(program()));
    outsider.expect(&[("start", "0 0"), ("create a 300M", "0")]);
    let path = export(&mut outsider, "a");
    let mut importer = world.on_gpu();
    importer.expect(&[(&format!("import-from a {path}"), "0")]);
    outsider.expect(&[("release a", "0"), ("close fd-a", "0")]);
    importer.expect(&[("alloc x 4M", "0"), ("free x", "0")]);
    assert_eq!(world.counted(0), CONTEXT + SIZE);
    // The charge goes back at once, even right after a measurement.
    let block = "repeat 1 {\nalloc x 4M\nfree x\nrelease a\n}";
    importer.expect(&[(block, "0:3")]);
    assert_eq!(world.counted(0), CONTEXT);
    importer.end_quietly();
    outsider.end_quietly();
    world.judge_end(CAP);
}

/// Memory that a program of another group shares, and then lets go of, cannot be kept out of the
/// charge: it stops growth and further imports at once.
#[test]
fn memory_from_outside_beyond_the_limit_stops_growth_and_imports() {
    let world = World::new(CONTEXT + 100 * MIB);
    let mut outsider = Session::start(world.bare(program()));
    outsider.expect(&[("start", "0 0")]);
    let mut give = |name: &str| {
        outsider.expect(&[(&format!("create {name} 300M"), "0")]);
        let path = export(&mut outsider, name);
        (path, format!("close fd-{name}"), format!("release {name}"))
    };
    let ((first, closes, releases), (second, ..)) = (give("a"), give("b"));
    let mut importer = world.on_gpu();
    importer.expect(&[(&format!("import-from a {first}"), "0")]);
    outsider.expect(&[(&releases, "0"), (&closes, "0")]);
    // The first request counts the memory, and so does an import.
    importer.expect(&[("alloc x 4M", "2")]);
    assert_eq!(world.counted(0), CONTEXT + SIZE);
    let again = format!("import-from b {second}");
    importer.expect(&[(&again, "2"), ("release a", "0"), (&again, "0")]);
    outsider.expect(&[("release b", "0"), ("close fd-b", "0")]);
    importer.expect(&[("alloc x 4M", "2")]);
    importer.end();
    outsider.end_quietly();
}

#[test]
fn threads_can_export_import_and_release_at_once() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    let block = "reserve range 40M\nrepeat 30 {\ncreate a 20M\nimport b a\nmap range 0 b 20M\n\
        release a\nrelease b\nunmap range 0 20M\n}";
    let answer = program.say(&format!("threads 4 {{\n{block}\n}}"));
    assert_eq!(answer, ["0:181"; 4].join(", "));
    assert_eq!(world.machine().used(), CONTEXT);
    // A measurement corrects what the threads hid from each other.
    program.expect(&[("alloc x 4M", "0"), ("free x", "0")]);
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

/// The driver keeps exported memory for its descriptor. NVML lists a process without a context not
/// at all.
#[test]
fn exported_memory_stays_charged_when_the_context_is_reset() {
    let world = World::new(CAP);
    let mut exporter = world.start();
    for handle in ["a", "b"] {
        exporter.expect(&[("start", "0 0"), (&format!("create {handle} 300M"), "0")]);
        export(&mut exporter, handle);
        exporter.expect(&[(&format!("release {handle}"), "0"), ("reset 0", "0")]);
        world.judge(CAP);
    }
    let used = 2 * SIZE;
    assert_eq!(world.machine().used(), used);
    assert_eq!(world.usage(0).charged - world.usage(0).idle, used);
    exporter.expect(&[("start", "0 0"), ("create c 900M", "2")]);
    exporter.expect(&[("close fd-a", "0"), ("close fd-b", "0")]);
    assert!(eventually(|| world.machine().used() == CONTEXT));
    exporter.expect(&[("create c 900M", "0")]);
    world.judge(CAP);
    exporter.end();
    world.judge_end(CAP);
}

/// This test process keeps the descriptor. It is not a member of the group.
#[test]
fn memory_that_a_descriptor_keeps_stays_charged_when_its_exporter_ends() {
    let world = World::new(CAP);
    let mut exporter = world.on_gpu();
    exporter.expect(&[("create a 300M", "0")]);
    let path = export(&mut exporter, "a");
    let (_, number) = path.rsplit_once('/').expect("a path");
    let pid = Pid::from_raw(exporter.pid().cast_signed()).expect("a pid");
    let process = pidfd_open(pid, PidfdFlags::empty()).expect("it lives");
    let number = number.parse().expect("a number");
    let descriptor = pidfd_getfd(process, number, PidfdGetfdFlags::empty()).expect("a copy");
    exporter.end_quietly();
    assert!(eventually(|| world.machine().used() == SIZE));
    let usage = || {
        let mut show = world.bare(&world::controller());
        show.args(["show", GROUP, "--json"]);
        let output = finish(show);
        let shown: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        shown["groups"][0]["gpus"][0]["usage"].as_u64()
    };
    // On a driver without a list of all processes nobody could tell.
    if pid_ns() == FIRST_PID_NS {
        assert_eq!(usage(), Some(SIZE));
        let mut next = world.on_gpu();
        next.expect(&[("create b 1300M", "2")]);
        world.judge(CAP);
        next.end();
        assert!(eventually(|| usage() == Some(SIZE)));
    }
    drop(descriptor);
    assert!(eventually(|| usage() == Some(0)));
}
