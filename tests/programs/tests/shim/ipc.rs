//! `cuMemAlloc` memory that other processes open is charged once: to its owner until the owner
//! frees it, then to a process that has it open, as the driver counts it. The limit holds
//! throughout, even if a process sleeps or dies.

use gpulimit_ledger::Category;
use gpulimit_programs::world::{BLOCK, CONTEXT, MIB, Session, World, eventually, program};

use crate::shared_memory::{CAP, SIZE, charged_as, end, fill, process};

/// Exports `name` and returns the path of the file with the handle.
#[track_caller]
fn export(world: &World, program: &mut Session, name: &str) -> String {
    let path = world.file("handle").display().to_string();
    assert_eq!(program.say(&format!("ipc-get {path} {name}")), "0");
    path
}

/// Starts an owner of [`SIZE`] as `a`, a process that has this memory open, and a third process.
fn shared(world: &World) -> [Session; 3] {
    let [mut owner, mut opener, third] = std::array::from_fn(|_| world.on_gpu());
    owner.expect(&[("alloc a 300M", "0")]);
    let path = export(world, &mut owner, "a");
    opener.expect(&[(&format!("ipc-open a {path}"), "0")]);
    world.judge(CAP);
    [owner, opener, third]
}

#[track_caller]
fn charged(world: &World, program: &Session) -> (u64, u64) {
    charged_as(Category::Linear, world, program)
}

/// Makes a call that takes a block, after which the library measures.
fn measure(program: &mut Session) {
    program.expect(&[("alloc x 4M", "0"), ("free x", "0")]);
}

#[test]
fn shared_memory_is_charged_to_its_owner() {
    let world = World::new(CAP);
    let [mut owner, mut opener, mut third] = shared(&world);
    let path = world.file("handle").display().to_string();
    opener.expect(&[(&format!("ipc-open b {path}"), "0")]);
    measure(&mut opener);
    assert_eq!(charged(&world, &owner), (SIZE, SIZE));
    assert_eq!(charged(&world, &opener), (0, 0));
    fill(&world, &mut third);
    opener.expect(&[("ipc-close a", "0"), ("ipc-close b", "0")]);
    assert_eq!(charged(&world, &owner), (SIZE, SIZE));
    owner.expect(&[("free a", "0")]);
    assert_eq!(charged(&world, &owner), (0, 0));
    world.judge(CAP);
    third.expect(&[("alloc more 300M", "0")]);
    world.judge(CAP);
    end(&world, [owner, opener, third]);
}

#[test]
fn opened_memory_from_outside_beyond_the_limit_stops_growth_and_openings() {
    let world = World::new(CONTEXT + 100 * MIB);
    let mut outsider = Session::start(world.bare(program()));
    outsider.expect(&[
        ("start", "0 0"),
        ("alloc a 300M", "0"),
        ("alloc b 300M", "0"),
    ]);
    let [first, second] = ["first", "second"].map(|name| world.file(name).display().to_string());
    outsider.expect(&[
        (&format!("ipc-get {first} a"), "0"),
        (&format!("ipc-get {second} b"), "0"),
    ]);
    let mut opener = world.on_gpu();
    opener.expect(&[(&format!("ipc-open a {first}"), "0")]);
    outsider.expect(&[("free a", "0")]);
    let again = format!("ipc-open b {second}");
    opener.expect(&[(&again, "2"), ("alloc x 4M", "2")]);
    assert_eq!(world.counted(0), CONTEXT + SIZE);
    opener.expect(&[("ipc-close a", "0"), (&again, "0"), ("alloc x 4M", "0")]);
    opener.end();
    outsider.end_quietly();
}

#[test]
fn freed_memory_stays_charged_while_a_process_has_it_open() {
    let world = World::new(CAP);
    let [mut owner, mut opener, mut third] = shared(&world);
    owner.expect(&[("free a", "0")]);
    assert_eq!(world.machine().used(), 3 * CONTEXT + SIZE);
    world.judge(CAP);
    fill(&world, &mut third);
    opener.expect(&[("ipc-close a", "0")]);
    assert_eq!(world.machine().used(), 3 * CONTEXT + 96 * MIB);
    world.judge(CAP);
    assert_eq!(charged(&world, &owner), (0, 0));
    third.expect(&[("alloc more 300M", "0")]);
    world.judge(CAP);
    end(&world, [owner, opener, third]);
}

#[test]
fn the_opener_takes_over_the_charge_until_the_last_close() {
    for open in ["ipc-open", "ipc-open-v1"] {
        let world = World::new(CAP);
        let [mut owner, mut opener, mut third] = std::array::from_fn(|_| world.on_gpu());
        owner.expect(&[("alloc a 300M", "0")]);
        let path = export(&world, &mut owner, "a");
        opener.expect(&[
            (&format!("{open} a {path}"), "0"),
            (&format!("{open} b {path}"), "0"),
        ]);
        owner.expect(&[("free a", "0")]);
        measure(&mut opener);
        assert_eq!(charged(&world, &owner), (0, 0));
        assert_eq!(charged(&world, &opener), (SIZE, SIZE), "{open}");
        fill(&world, &mut third);
        opener.expect(&[("ipc-close a", "0")]);
        assert_eq!(charged(&world, &opener), (SIZE, SIZE));
        world.judge(CAP);
        opener.expect(&[("ipc-close b", "0"), ("ipc-close b", "1")]);
        assert_eq!(charged(&world, &opener), (0, 0));
        world.judge(CAP);
        end(&world, [owner, opener, third]);
    }
}

/// The owner gets the same address again each time.
#[test]
fn an_owner_that_reallocates_opened_memory_stops_at_the_limit() {
    for awake in [false, true] {
        let world = World::new(CAP);
        let [mut owner, mut opener, mut third] = std::array::from_fn(|_| world.on_gpu());
        let mut open = 0;
        while owner.say("alloc a 40M") == "0" {
            let path = world.file("handle").display().to_string();
            // The exported pointer lies in the middle of the allocation.
            owner.expect(&[(&format!("ipc-get {path} a 20M"), "0")]);
            opener.expect(&[(&format!("ipc-open a{open} {path}"), "0")]);
            owner.expect(&[("free a", "0")]);
            if awake {
                measure(&mut opener);
            }
            world.judge(CAP);
            open += 1;
        }
        assert_eq!(open, 10, "412 MiB, less three reserves");
        third.expect(&[("alloc a 12M", "2")]);
        for number in 0..open {
            opener.expect(&[(&format!("ipc-close a{number}"), "0")]);
            world.judge(CAP);
        }
        assert_eq!(world.machine().used(), 3 * CONTEXT);
        owner.expect(&[("alloc a 400M", "0")]);
        world.judge(CAP);
        end(&world, [owner, opener, third]);
    }
}

#[test]
fn small_opened_memory_is_charged_with_its_block() {
    let world = World::new(CAP);
    let [mut owner, mut opener, third] = std::array::from_fn(|_| world.on_gpu());
    owner.expect(&[("alloc a 500K", "0"), ("alloc b 500K", "0")]);
    let path = export(&world, &mut owner, "a");
    opener.expect(&[(&format!("ipc-open a {path}"), "0")]);
    owner.expect(&[("free a", "0")]);
    measure(&mut opener);
    assert_eq!(charged(&world, &owner), (BLOCK, BLOCK));
    assert_eq!(charged(&world, &opener), (0, 0));
    owner.expect(&[("free-number 1", "1"), ("free b", "0"), ("free b", "1")]);
    assert_eq!(world.machine().used(), 3 * CONTEXT + BLOCK);
    world.judge(CAP);
    measure(&mut opener);
    assert_eq!(charged(&world, &owner), (0, 0));
    assert_eq!(charged(&world, &opener), (BLOCK, BLOCK));
    world.judge(CAP);
    opener.expect(&[("ipc-close a", "0")]);
    assert_eq!(world.machine().used(), 3 * CONTEXT);
    assert_eq!(charged(&world, &opener), (0, 0));
    world.judge(CAP);
    end(&world, [owner, opener, third]);
}

#[test]
fn small_opened_memory_stops_at_the_limit() {
    let cap = 2 * CONTEXT + 28 * MIB;
    let world = World::new(cap);
    let [mut owner, mut opener] = std::array::from_fn(|_| world.on_gpu());
    let mut open = 0;
    while owner.say("alloc a 500K") == "0" {
        let path = export(&world, &mut owner, "a");
        opener.expect(&[(&format!("ipc-open a{open} {path}"), "0")]);
        owner.expect(&[("free a", "0")]);
        let (truth, usage) = (world.machine().gpu(0), world.usage(0));
        assert!(truth.peak <= cap, "{truth:?}");
        assert!(usage.charged >= truth.used, "{usage:?} for {truth:?}");
        open += 1;
    }
    assert!((9..=14).contains(&open), "{open}");
    for number in 0..open {
        opener.expect(&[(&format!("ipc-close a{number}"), "0")]);
    }
    assert_eq!(world.machine().used(), 2 * CONTEXT);
    owner.expect(&[("alloc a 18M", "0"), ("free a", "0")]);
    measure(&mut opener);
    world.judge(cap);
    owner.end();
    opener.end_quietly();
    world.judge_end(cap);
}

#[test]
fn the_charge_of_a_dead_owner_moves_to_the_opener() {
    for way in ["kill", "exit"] {
        let world = World::new(CAP);
        let [owner, mut opener, mut third] = shared(&world);
        match way {
            "kill" => owner.kill(),
            _ => owner.end_quietly(),
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
        measure(&mut opener);
        assert_eq!(charged(&world, &opener), (SIZE, SIZE));
        assert_eq!(process(&world, &third).devices[0].orphaned, 0);
        world.judge(CAP);
        opener.expect(&[("ipc-close a", "0")]);
        third.expect(&[("alloc more 300M", "0")]);
        world.judge(CAP);
        opener.end_quietly();
        third.end();
        world.judge_end(CAP);
    }
}

#[test]
fn the_charge_of_a_dead_opener_moves_to_another_opener() {
    let world = World::new(CAP);
    let [mut owner, mut opener, mut third] = shared(&world);
    owner.expect(&[("free a", "0")]);
    measure(&mut opener);
    assert_eq!(charged(&world, &opener), (SIZE, SIZE));
    opener.kill();
    assert!(eventually(|| world.machine().used() == 2 * CONTEXT));
    third.expect(&[("alloc a 800M", "0"), ("free a", "0")]);
    world.judge(CAP);
    // Two processes have the memory open.
    opener = world.on_gpu();
    owner.expect(&[("alloc a 300M", "0")]);
    let path = export(&world, &mut owner, "a");
    opener.expect(&[(&format!("ipc-open a {path}"), "0")]);
    third.expect(&[(&format!("ipc-open a {path}"), "0")]);
    owner.expect(&[("free a", "0")]);
    measure(&mut opener);
    measure(&mut third);
    world.judge(CAP);
    opener.kill();
    let used = 2 * CONTEXT + SIZE;
    assert!(eventually(|| world.machine().used() == used));
    owner.expect(&[("alloc big 640M", "2"), ("alloc fits 608M", "0")]);
    world.judge(CAP);
    third.expect(&[("ipc-close a", "0")]);
    world.judge(CAP);
    owner.expect(&[("alloc more 300M", "0")]);
    world.judge(CAP);
    owner.end();
    third.end();
    world.judge_end(CAP);
}

#[test]
fn destroying_a_context_closes_memory_that_it_had_open() {
    let cap = CAP + CONTEXT;
    let world = World::new(cap);
    let [mut owner, mut opener, third] = shared(&world);
    owner.expect(&[("reset 0", "0"), ("start", "0 0")]);
    assert_eq!(world.machine().used(), 3 * CONTEXT + SIZE);
    world.judge(cap);
    measure(&mut opener);
    assert_eq!(charged(&world, &opener), (SIZE, SIZE));
    opener.expect(&[("reset 0", "0"), ("start", "0 0")]);
    assert_eq!(world.machine().used(), 3 * CONTEXT);
    measure(&mut opener);
    assert_eq!(charged(&world, &opener), (0, 0));
    world.judge(cap);
    // The owner keeps the memory.
    owner.expect(&[("alloc a 300M", "0")]);
    let path = export(&world, &mut owner, "a");
    opener.expect(&[
        ("context other 0 v2", "0"),
        (&format!("ipc-open a {path}"), "0"),
        ("destroy other", "0"),
        ("ipc-close a", "1"),
    ]);
    assert_eq!(charged(&world, &owner), (SIZE, SIZE));
    world.judge(cap);
    owner.expect(&[("free a", "0")]);
    assert_eq!(charged(&world, &owner), (0, 0));
    world.judge(cap);
    for program in [owner, opener, third] {
        program.end();
    }
    world.judge_end(cap);
}

#[test]
fn opened_memory_is_charged_on_its_own_gpu() {
    let cap = 2 * CONTEXT + SIZE + 12 * MIB;
    let world = World::with(cap, &[("GPULIMIT_SIM_GPUS", "2")]);
    let [mut owner, mut opener] = std::array::from_fn(|_| world.start());
    owner.expect(&[
        ("init", "0"),
        ("retain 1", "0"),
        ("current 1", "0"),
        ("alloc a 300M", "0"),
    ]);
    let path = export(&world, &mut owner, "a");
    opener.expect(&[("start", "0 0"), (&format!("ipc-open a {path}"), "0")]);
    owner.expect(&[("free a", "0"), ("alloc b 600M", "2")]);
    assert_eq!(world.machine().gpu(1).used, CONTEXT + SIZE);
    world.judge(cap);
    measure(&mut opener);
    world.judge(cap);
    opener.expect(&[("reset 0", "0")]);
    assert_eq!(world.machine().gpu(1).used, CONTEXT);
    world.judge(cap);
    owner.expect(&[("alloc b 600M", "0")]);
    world.judge(cap);
    owner.end();
    opener.end_quietly();
    world.judge_end(cap);
}

#[test]
fn failed_calls_keep_the_charge() {
    let world = World::new(CAP);
    let [mut owner, mut opener, third] = shared(&world);
    let path = world.file("handle").display().to_string();
    let open = format!("ipc-open b {path}");
    // The owner cannot open its own memory, and the opener cannot free it.
    owner.expect(&[(&open, "201")]);
    opener.expect(&[("free a", "1")]);
    let fail = "cuIpcGetMemHandle:999,cuIpcOpenMemHandle_v2:999,cuIpcCloseMemHandle:999";
    world.machine().knob("fail", fail);
    owner.expect(&[(&format!("ipc-get {path}-no a"), "999")]);
    opener.expect(&[(&open, "999"), ("ipc-close a", "999")]);
    world.machine().knob("fail", "cuMemFree_v2:999");
    owner.expect(&[("free a", "999"), ("alloc s 500K", "0")]);
    let small = export(&world, &mut owner, "s");
    owner.expect(&[("free s", "999")]);
    world.machine().knob("fail", "none");
    world.judge(CAP);
    owner.expect(&[(&format!("ipc-get {small} s"), "0"), ("free s", "0")]);
    assert_eq!(charged(&world, &owner), (SIZE, SIZE));
    owner.expect(&[("free a", "0")]);
    measure(&mut opener);
    assert_eq!(charged(&world, &opener), (SIZE, SIZE));
    world.machine().knob("fail", "cuIpcCloseMemHandle:999");
    opener.expect(&[("ipc-close a", "999")]);
    world.machine().knob("fail", "none");
    assert_eq!(charged(&world, &opener), (SIZE, SIZE));
    world.judge(CAP);
    opener.expect(&[("ipc-close a", "0")]);
    assert_eq!(charged(&world, &opener), (0, 0));
    owner.expect(&[
        ("async a 20M", "0"),
        (&format!("ipc-get {path} a"), "1"),
        ("managed m 20M", "0"),
        (&format!("ipc-get {path} m"), "1"),
    ]);
    world.judge(CAP);
    end(&world, [owner, opener, third]);
}

#[test]
fn threads_can_export_and_free_at_once() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    let path = world.file("handle").display().to_string();
    let block = format!(
        "repeat 30 {{\nalloc a 20M\nipc-get {path} a\nalloc s 300K\nipc-get {path} s\nfree a\n\
            free s\n}}"
    );
    let answer = program.say(&format!("threads 4 {{\n{block}\n}}"));
    assert_eq!(answer, ["0:180"; 4].join(", "));
    assert_eq!(world.machine().used(), CONTEXT);
    // A measurement corrects what the threads hid from each other.
    measure(&mut program);
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}
