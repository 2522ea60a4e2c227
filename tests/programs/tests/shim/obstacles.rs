//! Why a program must not be suspended, as its slot in the ledger says: each obstacle appears
//! before the call of the driver that makes it, and is gone when it has ended.

use gpulimit_base::obstacle::Obstacle;
use gpulimit_programs::world::{CONTEXT, HOUR, MIB, Session, World, eventually};

use crate::code::FIXTURES;
use crate::shared_memory::process;

const CAP: u64 = 4096 * MIB;

fn word(world: &World, program: &Session) -> u64 {
    let identity = process(world, program).identity;
    world.ledger().obstacles_of(&identity).expect("a member")
}

#[track_caller]
fn assert_has(world: &World, program: &Session, expected: &[Obstacle]) {
    let all = expected.iter().fold(0, |all, one| all | one.bit());
    let seen: Vec<_> = Obstacle::texts(word(world, program)).collect();
    let expected: Vec<_> = Obstacle::texts(all).collect();
    assert_eq!(seen, expected);
}

/// Runs commands that succeed. After each, the program has the obstacles beside it.
#[track_caller]
fn follow(world: &World, program: &mut Session, steps: &[(&str, &[Obstacle])]) {
    for (command, expected) in steps {
        let answer = program.say(command);
        assert!(answer.starts_with('0'), "{command}: {answer}");
        assert_has(world, program, expected);
    }
}

/// Fails a function of the driver: the command leaves no obstacle.
#[track_caller]
fn fails(world: &World, program: &mut Session, function: &str, command: &str) {
    world.machine().knob("fail", &format!("{function}:800"));
    let answer = program.say(command);
    assert!(answer.starts_with("800"), "{command}: {answer}");
    world.machine().knob("fail", "none");
    assert_has(world, program, &[]);
}

/// Looks at the program while the driver works on the call: the obstacle is there already.
#[track_caller]
fn is_ahead(world: &World, program: &mut Session, function: &str, command: &str, is: Obstacle) {
    let latency = format!("{function}:{HOUR}");
    world.machine().knob("latency", &latency);
    world.machine().knob("fail", &format!("{function}:800"));
    program.tell(command);
    assert!(
        eventually(|| word(world, program) == is.bit()),
        "{command}: not before the call"
    );
    world.machine().knob("latency", "");
    let answer = program.answer();
    assert!(answer.starts_with("800"), "{command}: {answer}");
    world.machine().knob("fail", "none");
    assert_has(world, program, &[]);
}

#[test]
fn memory_of_other_processes_is_an_obstacle_until_its_last_close() {
    let world = World::new(CAP);
    let (mut owner, mut opener) = (world.on_gpu(), world.on_gpu());
    let path = world.file("handle").display().to_string();
    let (get, open) = (format!("ipc-get {path} a"), format!("ipc-open a {path}"));
    let again = format!("ipc-open-v1 b {path}");
    let (shared, opened) = (&[Obstacle::SharedMemory], &[Obstacle::OpenedMemory]);
    follow(&world, &mut owner, &[("alloc a 100M", &[])]);
    fails(&world, &mut owner, "cuIpcGetMemHandle", &get);
    is_ahead(&world, &mut owner, "cuIpcGetMemHandle", &get, shared[0]);
    follow(&world, &mut owner, &[(&get, shared), (&get, shared)]);
    fails(&world, &mut opener, "cuIpcOpenMemHandle_v2", &open);
    is_ahead(
        &world,
        &mut opener,
        "cuIpcOpenMemHandle_v2",
        &open,
        opened[0],
    );
    follow(&world, &mut opener, &[(&open, opened), (&again, opened)]);
    world.machine().knob("fail", "cuIpcCloseMemHandle:800");
    opener.expect(&[("ipc-close a", "800")]);
    world.machine().knob("fail", "none");
    follow(
        &world,
        &mut opener,
        &[("ipc-close b", opened), ("ipc-close a", &[])],
    );
    opener.expect(&[("ipc-close a", "1")]);
    assert_has(&world, &opener, &[]);
    // Both end with their context.
    follow(&world, &mut opener, &[(&open, opened), (&again, opened)]);
    follow(&world, &mut opener, &[("release-primary 0", &[])]);
    // The driver refuses to free the memory, then frees it.
    world.machine().knob("fail", "cuMemFree_v2:800");
    owner.expect(&[("free a", "800")]);
    world.machine().knob("fail", "none");
    assert_has(&world, &owner, shared);
    let small = format!("ipc-get {path} c");
    follow(
        &world,
        &mut owner,
        &[
            ("free a", &[]),
            ("alloc b 1K", &[]),
            ("alloc c 1K", &[]),
            (&small, shared),
            ("free c", shared),
            ("free b", &[]),
            ("alloc b 1K", &[]),
            ("alloc c 1K", &[]),
            (&small, shared),
            ("free b", shared),
            ("free c", &[]),
            ("alloc c 1K", &[]),
            (&small, shared),
            ("release-primary 0", &[]),
        ],
    );
    owner.end();
    opener.end();
    world.judge_end(CAP);
}

#[test]
fn exported_and_imported_allocations_are_obstacles_while_they_live() {
    let world = World::new(CAP);
    let (mut exporter, mut importer) = (world.on_gpu(), world.on_gpu());
    let path = world.file("memory").display().to_string();
    let (offer, take) = (format!("offer {path} a"), format!("take a {path}"));
    let again = format!("take b {path}");
    let (exported, imported) = (&[Obstacle::ExportedMemory], &[Obstacle::ImportedMemory]);
    let export = "cuMemExportToShareableHandle";
    let import = "cuMemImportFromShareableHandle";
    follow(&world, &mut exporter, &[("create a 100M 0", &[])]);
    fails(&world, &mut exporter, export, &offer);
    is_ahead(&world, &mut exporter, export, &offer, exported[0]);
    follow(
        &world,
        &mut exporter,
        &[(&offer, exported), (&offer, exported)],
    );
    fails(&world, &mut importer, import, &take);
    is_ahead(&world, &mut importer, import, &take, imported[0]);
    let steps: &[(&str, &[Obstacle])] = &[
        (&take, imported),
        (&again, imported),
        ("release b", imported),
        ("reserve at 100M", imported),
        ("map at 0 a 100M", imported),
        ("release a", imported),
        ("unmap at 0 100M", &[]),
    ];
    follow(&world, &mut importer, steps);
    importer.expect(&[("release a", "1")]);
    assert_has(&world, &importer, &[]);
    world.machine().knob("fail", "cuMemRelease:800");
    exporter.expect(&[("release a", "800")]);
    world.machine().knob("fail", "none");
    assert_has(&world, &exporter, exported);
    let both = &[Obstacle::ImportedMemory, Obstacle::ExportedMemory];
    let steps: &[(&str, &[Obstacle])] = &[
        ("release a", &[]),
        ("create a 2M 0", &[]),
        ("import b a", both),
        ("release a", imported),
        ("release b", &[]),
        // The library keeps no account of memory of the host, so it stays an obstacle.
        ("create-on-host c 2M", &[]),
    ];
    follow(&world, &mut exporter, steps);
    exporter.end();
    importer.end();
    world.judge_end(CAP);
}

#[test]
fn pools_of_other_processes_are_obstacles_until_their_memory_is_freed() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    let (exported, imported) = (&[Obstacle::ExportedPool], &[Obstacle::ImportedPool]);
    let export = "cuMemPoolExportToShareableHandle";
    let import = "cuMemPoolImportFromShareableHandle";
    let both = &[Obstacle::ImportedPool, Obstacle::ExportedPool];
    follow(&world, &mut program, &[("pool p 0", &[])]);
    fails(&world, &mut program, export, "export-pool fd p");
    is_ahead(
        &world,
        &mut program,
        export,
        "export-pool fd p",
        exported[0],
    );
    let steps: &[(&str, &[Obstacle])] = &[
        ("export-pool fd p", exported),
        ("import-pool q fd", both),
        ("import-pool r fd", both),
        ("destroy-pool p", imported),
        ("destroy-pool q", imported),
        ("import-pointer a r", imported),
        ("import-pointer b r", imported),
        ("free a", imported),
        ("destroy-pool r", imported),
        ("free-async b", imported),
        ("sync", &[]),
    ];
    follow(&world, &mut program, steps);
    fails(&world, &mut program, import, "import-pool q fd");
    is_ahead(
        &world,
        &mut program,
        import,
        "import-pool q fd",
        imported[0],
    );
    // A pool that is destroyed with memory in use may be used by others for ever.
    let steps: &[(&str, &[Obstacle])] = &[
        ("close fd", &[]),
        ("pool p 0", &[]),
        ("export-pool fd p", exported),
        ("async-from a p 10M", exported),
        ("destroy-pool p", exported),
        ("free-async a", exported),
        ("sync", exported),
    ];
    follow(&world, &mut program, steps);
    program.end();
    world.judge_end(CAP);
}

#[test]
fn managed_memory_of_each_kind_is_an_obstacle() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    let managed = &[Obstacle::ManagedMemory];
    let image = format!("image m {FIXTURES}/managed.cubin");
    fails(&world, &mut program, "cuMemAllocManaged", "managed a 10M");
    let ahead = "cuMemAllocManaged";
    is_ahead(&world, &mut program, ahead, "managed a 10M", managed[0]);
    fails(&world, &mut program, "cuMemPoolCreate", "managed-pool p 0");
    let ahead = "cuMemPoolCreate";
    is_ahead(&world, &mut program, ahead, "managed-pool p 0", managed[0]);
    let steps: &[(&str, &[Obstacle])] = &[
        ("managed a 10M", managed),
        ("managed b 10M", managed),
        ("free a", managed),
        ("free b", &[]),
        (&image, managed),
        ("unload m", &[]),
        ("managed-pool p 0", managed),
        ("async-from a p 10M", managed),
        ("destroy-pool p", managed),
        ("free-async a", managed),
        ("sync", &[]),
        ("managed a 10M", managed),
        ("release-primary 0", &[]),
        ("start", &[]),
        // A default pool is never destroyed.
        ("default-managed-pool p 0", managed),
        ("default-managed-pool p 0", managed),
    ];
    follow(&world, &mut program, steps);
    // A refused request makes no managed memory.
    let mut other = world.on_gpu();
    let refused = other.say("managed a 5000M");
    assert!(refused.starts_with('2'), "{refused}");
    assert_has(&world, &other, &[]);
    program.end();
    other.end();
    world.judge_end(CAP);
}

#[test]
fn access_to_another_gpu_is_an_obstacle_for_ever() {
    let world = World::with(CAP, &[("GPULIMIT_SIM_GPUS", "2")]);
    let peer = &[Obstacle::PeerAccess];
    let program = || {
        let mut program = world.on_gpu();
        program.expect(&[("retain 1", "0")]);
        program
    };
    let mut enabling = program();
    let enable = "enable-peer primary-1";
    fails(&world, &mut enabling, "cuCtxEnablePeerAccess", enable);
    is_ahead(
        &world,
        &mut enabling,
        "cuCtxEnablePeerAccess",
        enable,
        peer[0],
    );
    follow(&world, &mut enabling, &[(enable, peer), (enable, peer)]);
    let mut mapping = program();
    let steps: &[(&str, &[Obstacle])] = &[
        ("create m 2M 0", &[]),
        ("create n 2M 1", &[]),
        ("reserve r 4M", &[]),
        ("map r 0 m 2M", &[]),
        ("map r 2M n 2M", &[]),
        // 3 is for reading and writing, and 0 takes the access away.
        ("access r 0 2M 0 3", &[]),
        ("access r 2M 2M 1 3", &[]),
        ("access r 0 4M 1 0", &[]),
    ];
    follow(&world, &mut mapping, steps);
    let access = "access r 0 2M 1 3";
    fails(&world, &mut mapping, "cuMemSetAccess", access);
    is_ahead(&world, &mut mapping, "cuMemSetAccess", access, peer[0]);
    let steps = [
        (access, &peer[..]),
        ("unmap r 0 4M", peer),
        ("release m", peer),
    ];
    follow(&world, &mut mapping, &steps);
    let mut pooling = program();
    let steps: &[(&str, &[Obstacle])] = &[
        ("pool p 1", &[]),
        ("default-pool d 1", &[]),
        ("pool-access p 1 3", &[]),
        ("pool-access d 1 3", &[]),
        ("pool-access p 0 0", &[]),
    ];
    follow(&world, &mut pooling, steps);
    let access = "pool-access p 0 3";
    fails(&world, &mut pooling, "cuMemPoolSetAccess", access);
    is_ahead(&world, &mut pooling, "cuMemPoolSetAccess", access, peer[0]);
    follow(&world, &mut pooling, &[(access, peer)]);
    let mut default = program();
    let steps: &[(&str, &[Obstacle])] = &[("default-pool d 1", &[]), ("pool-access d 0 3", peer)];
    follow(&world, &mut default, steps);
    // Another part of the program has enabled it before.
    let mut late = program();
    world.machine().knob("fail", "cuCtxEnablePeerAccess:704");
    assert_eq!(late.say(enable), "704");
    world.machine().knob("fail", "none");
    assert_has(&world, &late, peer);
    for program in [enabling, mapping, pooling, default, late] {
        program.end();
    }
    world.judge_end(CAP);
}

/// The driver may set some of the rights before one fails.
#[test]
fn a_failed_call_that_sets_several_rights_may_have_given_access() {
    let world = World::with(CAP, &[("GPULIMIT_SIM_GPUS", "2")]);
    let no_gpu = "101";
    let fails = |program: &mut Session, command: &str, expected: &[Obstacle]| {
        assert_eq!(program.say(command), no_gpu, "{command}");
        assert_has(&world, program, expected);
    };
    let peer = &[Obstacle::PeerAccess];
    let steps: &[(&str, &[Obstacle])] = &[
        ("create m 2M 0", &[]),
        ("reserve r 4M", &[]),
        ("map r 0 m 2M", &[]),
    ];
    let mut mapping = world.on_gpu();
    follow(&world, &mut mapping, steps);
    fails(&mut mapping, "access r 0 2M 9 3", &[]);
    fails(&mut mapping, "access r 0 2M 1 3 9 3", peer);
    let mut two = world.on_gpu();
    follow(&world, &mut two, steps);
    follow(
        &world,
        &mut two,
        &[("create n 2M 1", &[]), ("map r 2M n 2M", &[])],
    );
    fails(&mut two, "access r 0 4M 9 3", peer);
    let mut pooling = world.on_gpu();
    follow(&world, &mut pooling, &[("pool p 0", &[])]);
    fails(&mut pooling, "pool-access p 9 3", &[]);
    fails(&mut pooling, "pool-access p 1 3 9 3", peer);
    for program in [mapping, two, pooling] {
        program.end();
    }
    world.judge_end(CAP);
}

/// Access to memory of another process is an obstacle also after the memory was given back, if the
/// memory lies on another GPU.
#[test]
fn access_to_memory_of_another_process_on_another_gpu_lasts() {
    let world = World::with(CAP, &[("GPULIMIT_SIM_GPUS", "2")]);
    let (import, pool) = (Obstacle::ImportedMemory, Obstacle::ImportedPool);
    let (multicast, open) = (Obstacle::Multicast, Obstacle::OpenedMemory);
    let (exported, peer) = (Obstacle::ExportedPool, Obstacle::PeerAccess);
    let mut owner = world.on_gpu();
    let path = world.file("memory").display().to_string();
    let handle = world.file("handle").display().to_string();
    owner.expect(&[
        ("create m 2M 0", "0"),
        (&format!("offer {path} m"), "0"),
        ("alloc a 2M", "0"),
        (&format!("ipc-get {handle} a"), "0"),
    ]);
    let take = format!("take m {path}");
    let opened = format!("ipc-open o {handle}");
    let steps: [&[(&str, &[Obstacle])]; 6] = [
        &[
            (&take, &[import]),
            ("reserve r 2M", &[import]),
            ("map r 0 m 2M", &[import]),
            ("access r 0 2M 0 3", &[import]),
            ("unmap r 0 2M", &[import]),
            ("release m", &[]),
        ],
        &[
            (&take, &[import]),
            ("reserve r 2M", &[import]),
            ("map r 0 m 2M", &[import]),
            ("access r 0 2M 1 3", &[import, peer]),
            ("unmap r 0 2M", &[import, peer]),
            ("release m", &[peer]),
        ],
        &[
            ("multicast m 2M", &[multicast]),
            ("reserve r 2M", &[multicast]),
            ("map r 0 m 2M", &[multicast]),
            ("access r 0 2M 0 3", &[multicast, peer]),
            ("unmap r 0 2M", &[multicast, peer]),
            ("release m", &[peer]),
        ],
        &[
            ("pool own 0", &[]),
            ("export-pool fd own", &[exported]),
            ("import-pool p fd", &[exported, pool]),
            ("pool-access p 0 3", &[exported, pool, peer]),
            ("destroy-pool p", &[exported, peer]),
            ("destroy-pool own", &[peer]),
        ],
        &[(&opened, &[open]), ("ipc-close o", &[])],
        &[
            ("retain 1", &[]),
            ("current 1", &[]),
            (&opened, &[open, peer]),
            ("ipc-close o", &[peer]),
        ],
    ];
    for steps in steps {
        let mut program = world.on_gpu();
        follow(&world, &mut program, steps);
        program.end();
    }
    owner.end();
    world.judge_end(CAP);
}

#[test]
fn multicast_objects_and_captures_are_obstacles() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    let (multicast, capture) = (&[Obstacle::Multicast], &[Obstacle::Capture]);
    fails(&world, &mut program, "cuMulticastCreate", "multicast m 2M");
    let ahead = "cuMulticastCreate";
    is_ahead(&world, &mut program, ahead, "multicast m 2M", multicast[0]);
    let steps: &[(&str, &[Obstacle])] = &[
        ("multicast m 2M", multicast),
        ("multicast n 2M", multicast),
        ("release m", multicast),
        ("release n", &[]),
        ("stream s", &[]),
        ("stream t", &[]),
    ];
    follow(&world, &mut program, steps);
    let ahead = "cuStreamBeginCapture_v2";
    fails(&world, &mut program, ahead, "capture s");
    // The driver captures no default stream.
    program.expect(&[("capture", "900")]);
    assert_has(&world, &program, &[]);
    is_ahead(&world, &mut program, ahead, "capture s", capture[0]);
    let steps: &[(&str, &[Obstacle])] = &[
        ("capture s", capture),
        ("capture t", capture),
        ("end-capture s", capture),
    ];
    follow(&world, &mut program, steps);
    // A capture can begin only once in a stream.
    assert!(!program.say("capture t").starts_with('0'));
    assert_has(&world, &program, capture);
    let steps: &[(&str, &[Obstacle])] = &[
        ("destroy-stream t", &[]),
        ("capture s", capture),
        ("release-primary 0", &[]),
    ];
    follow(&world, &mut program, steps);
    program.end();
    world.judge_end(CAP);
}

#[test]
fn objects_of_other_interfaces_are_obstacles() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    let kinds = [
        ("memory", "Memory", Obstacle::ExternalMemory),
        ("semaphore", "Semaphore", Obstacle::ExternalSemaphore),
    ];
    for (kind, suffix, obstacle) in kinds {
        let function = format!("cuImportExternal{suffix}");
        let (import, again) = (format!("external a {kind}"), format!("external b {kind}"));
        let destroy = format!("destroy-external a {kind}");
        let last = format!("destroy-external b {kind}");
        fails(&world, &mut program, &function, &import);
        is_ahead(&world, &mut program, &function, &import, obstacle);
        let there: &[Obstacle] = &[obstacle];
        follow(&world, &mut program, &[(&import, there), (&again, there)]);
        follow(&world, &mut program, &[(&destroy, there)]);
        program.expect(&[(&destroy, "400")]);
        assert_has(&world, &program, there);
        follow(&world, &mut program, &[(&last, &[])]);
    }
    // The library does not follow events, so this obstacle stays.
    let (open, function) = ("ipc-open-event e", "cuIpcOpenEventHandle");
    fails(&world, &mut program, function, open);
    is_ahead(&world, &mut program, function, open, Obstacle::OpenedEvent);
    follow(&world, &mut program, &[(open, &[Obstacle::OpenedEvent])]);
    program.end();
    world.judge_end(CAP);
}

/// A forked child has no obstacle of its parent.
#[test]
fn obstacles_belong_to_one_process() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    let managed = &[Obstacle::ManagedMemory];
    follow(&world, &mut program, &[("managed a 10M", managed)]);
    let (shown, go) = (world.file("shown"), world.file("go"));
    let wait = format!("touch {}\nwait {}", shown.display(), go.display());
    program.tell(&format!("fork {{\nretain 0\n{wait}\n}}"));
    assert!(eventually(|| shown.exists()));
    let ledger = world.ledger();
    let processes = ledger.processes(&gpulimit_ledger::NoWitness);
    let mut identities = processes.iter().map(|process| process.identity);
    let child = identities.find(|identity| identity.pid != program.pid());
    let child = child.expect("the child is a member");
    assert_eq!(ledger.obstacles_of(&child), Some(0));
    assert_has(&world, &program, managed);
    std::fs::write(go, "").expect("a file");
    program.end();
    world.judge_end(CAP);
}

/// A process joins its group when it first asks for a GPU. It may have obstacles by then.
#[test]
fn obstacles_from_before_a_process_joins_are_shown_when_it_joins() {
    let world = World::new(CAP);
    let mut program = world.start();
    program.expect(&[("init", "0"), ("external a memory", "0")]);
    let ledger = world.ledger();
    assert_eq!(ledger.processes(&gpulimit_ledger::NoWitness).len(), 0);
    program.expect(&[("retain 0", "0")]);
    assert_has(&world, &program, &[Obstacle::ExternalMemory]);
    follow(&world, &mut program, &[("destroy-external a memory", &[])]);
    program.end();
    world.judge_end(CAP);
}

#[test]
fn threads_lose_no_obstacle() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    let managed = &[Obstacle::ManagedMemory];
    follow(&world, &mut program, &[("managed kept 10M", managed)]);
    let lines = "managed a 2M\nexternal b memory\nfree a\nmulticast c 2M\n\
                 destroy-external b memory\nrelease c";
    program.tell(&format!("threads 4 {{\nrepeat 200 {{\n{lines}\n}}\n}}"));
    while !program.line().starts_with("threads") {
        assert_ne!(word(&world, &program) & managed[0].bit(), 0);
    }
    assert_has(&world, &program, managed);
    follow(&world, &mut program, &[("free kept", &[])]);
    assert!(world.usage(0).charged >= CONTEXT);
    program.end();
    world.judge_end(CAP);
}
