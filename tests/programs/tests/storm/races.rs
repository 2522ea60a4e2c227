//! Provoked races: a driver that waits for random times before it takes memory and after it has
//! freed memory, and members at their limit.
//!
//! The judge watches without a pause: at every look the ledger has granted at least what the driver
//! has given.

use gpulimit_ledger::NoWitness;
use gpulimit_programs::world::{MIB, Session, World};

use crate::judge::Judge;
use crate::tempest::setting;
use gpulimit_support::seed;

/// Bytes of a small context.
const CONTEXT: u64 = 10 * MIB;
const PROCESSES: usize = 4;
const THREADS: usize = 2;

/// Several members with a few threads each run `lines` repeatedly in a group with room for half of
/// them, with waits of `ns` nanoseconds on both sides of these functions.
#[track_caller]
fn provoke_races(functions: &str, ns: u64, room: u64, lines: &str) {
    let jitter = seed().to_string();
    let rounds = 12 * setting("SECONDS", 1);
    let cap = PROCESSES as u64 * (CONTEXT + 8 * MIB) + room;
    let waits: Vec<String> = functions
        .split(' ')
        .map(|name| format!("{name}:{ns}"))
        .collect();
    let waits = waits.join(",");
    let knobs = [
        ("GPULIMIT_SIM_CONTEXT_BYTES", "10485760"),
        ("GPULIMIT_SIM_KILL_LAG_MS", "10"),
        ("GPULIMIT_SIM_LATENCY", waits.as_str()),
        ("GPULIMIT_SIM_DELAY", waits.as_str()),
        ("GPULIMIT_SIM_JITTER", jitter.as_str()),
    ];
    let world = World::with(cap, &knobs);
    let mut programs: Vec<Session> = (0..PROCESSES).map(|_| world.on_gpu()).collect();
    for program in &mut programs {
        program.expect(&[("stream work", "0"), ("pool pool 0", "0")]);
    }
    let judge = Judge::watch(&world, cap, 0);
    let lines = lines.replace(';', "\n");
    let block = format!("threads {THREADS} {{\nrepeat {rounds} {{\n{lines}\n}}\n}}");
    for program in &mut programs {
        program.tell(&block);
    }
    // One of the members is killed before the end.
    let last = programs.pop().expect("some");
    let answers: Vec<String> = programs[..1].iter_mut().map(Session::answer).collect();
    last.kill();
    let rest = programs[1..].iter_mut().map(Session::answer);
    let answers: Vec<String> = answers.into_iter().chain(rest).collect();
    assert!(
        answers.iter().any(|answer| answer.contains("0:")),
        "{answers:?}"
    );
    for program in &mut programs {
        program.say("sync");
    }
    let verdict = judge
        .end()
        .unwrap_or_else(|objection| panic!("{objection}"));
    println!("  {answers:?}\n  {verdict:?}");
    assert!(verdict.compared > 0);
    world.bury();
    for process in world.ledger().processes(&NoWitness) {
        println!("  {}: {:?}", process.identity.pid, process.devices);
    }
    world.judge(cap);
    drop(programs);
    world.judge_end(cap);
}

#[test]
fn races_of_linear_memory_keep_to_the_limit() {
    let lines = "alloc a 7M;alloc b 300000;alloc c 1900000;free a;free b;free c";
    provoke_races("cuMemAlloc_v2 cuMemFree_v2", 400_000, 20 * MIB, lines);
}

#[test]
fn races_of_small_allocations_keep_to_the_limit() {
    let lines = "many a 12 700000;free-many a";
    provoke_races("cuMemAlloc_v2 cuMemFree_v2", 60_000, 12 * MIB, lines);
}

#[test]
fn races_of_mapped_memory_keep_to_the_limit() {
    let lines =
        "create a 6M 0;reserve r 6M;map r 0 a 6M;release a;create b 4M 0;unmap r 0 6M;release b";
    let functions = "cuMemCreate cuMemRelease cuMemMap cuMemUnmap";
    provoke_races(functions, 300_000, 20 * MIB, lines);
}

#[test]
fn races_of_pools_keep_to_the_limit() {
    let lines = "async a 20M;async-from b pool 5M work;free-async a;free-async b work;sync;\
        sync work;trim pool 0";
    let functions = "cuMemAllocAsync cuMemAllocFromPoolAsync cuMemFreeAsync cuMemPoolTrimTo \
        cuMemPoolGetAttribute cuCtxSynchronize cuStreamSynchronize";
    provoke_races(functions, 200_000, 200 * MIB, lines);
}

#[test]
fn races_of_arrays_keep_to_the_limit() {
    let lines = "array a 300,200;array b 1000,900;mipmap c 500,500 4;destroy-array a;\
        destroy-array b;destroy-mipmap c";
    let functions =
        "cuArray3DCreate_v2 cuArrayDestroy cuMipmappedArrayCreate cuMipmappedArrayDestroy";
    provoke_races(functions, 300_000, 30 * MIB, lines);
}

#[test]
fn races_of_graphs_keep_to_the_limit() {
    let lines = "graph g;alloc-node a g 20M;free-node g a;instantiate e g;\
        launch-graph e work;sync;destroy-exec e;destroy-graph g;trim-graphs";
    let functions = "cuGraphInstantiateWithFlags cuGraphLaunch cuGraphExecDestroy \
        cuDeviceGraphMemTrim cuCtxSynchronize";
    provoke_races(functions, 200_000, 150 * MIB, lines);
}

#[test]
fn races_of_contexts_and_code_keep_to_the_limit() {
    let lines = "context c 0 v4;pop;module m 3M;library l 3M;library-launch l;stream s;\
        unload m;unload-library l;destroy c";
    let functions = "cuCtxCreate_v4 cuCtxDestroy_v2 cuModuleLoadData cuModuleUnload \
        cuLibraryLoadData cuLibraryUnload cuStreamCreate";
    provoke_races(functions, 300_000, 60 * MIB, lines);
}

#[test]
fn races_of_managed_memory_keep_to_the_limit() {
    let lines = "managed a 9M;alloc b 5M;free a;free b";
    let functions = "cuMemAllocManaged cuMemAlloc_v2 cuMemFree_v2";
    provoke_races(functions, 300_000, 25 * MIB, lines);
}
