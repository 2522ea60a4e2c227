//! The commands of a script, by subject.
//!
//! | command | |
//! |---|---|
//! | `start` | `init`, `retain 0`, `current 0` |
//! | `init`, `retain D`, `release-primary D`, `reset D`, `current D` | the primary context of GPU D |
//! | `context NAME D v1..v4, gl-v1, gl-v2, vdpau-v1, vdpau-v2`, `destroy NAME`, `detach NAME`, `use NAME`, `push NAME`, `pop`, `enable-peer NAME` | other contexts |
//! | `green NAME D`, `use-green NAME`, `green-stream NAME GREEN`, `destroy-green NAME` | green contexts |
//! | `limit N`, `set-limit N SIZE` | limits of the current context, by their numbers |
//! | `alloc NAME SIZE`, `alloc-over NAME SIZE`, `pitch NAME WIDTH HEIGHT`, `managed NAME SIZE`, `free NAME`, `free-number N` | linear and managed memory; `alloc-over` lets the place for the new address have that of NAME before |
//! | `pinned NAME SIZE [plain\|v1]`, `free-pinned NAME`, `register-host SIZE` | host memory, by `cuMemHostAlloc` or the versions of `cuMemAllocHost`, and registered memory of the program |
//! | `alloc-v1 NAME SIZE`, `pitch-v1 NAME WIDTH HEIGHT`, `free-v1 NAME`, `info-v1`, `total-v1 D` | the 32-bit functions of before CUDA 3.2 |
//! | `many NAME COUNT SIZE`, `fill NAME SIZE`, `free-many NAME` | COUNT allocations, or allocations until one is refused |
//! | `create NAME SIZE D`, `reserve NAME SIZE`, `map NAME OFFSET HANDLE SIZE`, `access NAME OFFSET SIZE D FLAGS [D FLAGS]…`, `unmap NAME OFFSET SIZE`, `release NAME`, `retain-handle NEW NAME OFFSET`, `import NEW NAME`, `export FD NAME`, `import-from NEW PATH`, `close FD`, `offer FILE NAME`, `take NEW FILE`, `multicast NAME SIZE` | virtual memory |
//! | `ipc-get FILE NAME [OFFSET]`, `ipc-open NAME FILE`, `ipc-open-v1 …`, `ipc-close NAME`, `ipc-open-event NAME` | linear memory and events that another process opens; the handle is in the file |
//! | `external NAME memory\|semaphore`, `destroy-external NAME memory\|semaphore` | objects of other programming interfaces |
//! | `array NAME SHAPE [2d]`, `mipmap NAME SHAPE LEVELS`, `level NEW NAME N`, `destroy-array NAME`, `destroy-mipmap NAME`, `array-nowhere SHAPE`, `array-of-nothing` | arrays; a shape is `WIDTH,HEIGHT,DEPTH,FORMAT,CHANNELS,FLAGS`, omitted parts are `0,0,32,4,0` |
//! | `many-arrays NAME COUNT SHAPE`, `fill-arrays NAME SHAPE`, `destroy-arrays NAME` | as `many`, `fill` and `free-many` |
//! | `map-tiles NAME X WIDTH HANDLE`, `map-whole NAME SIZE HANDLE` | memory for sparse and deferred arrays (`none` unmaps): for the top row of tiles of an array, or for a whole mipmapped array |
//! | `async NAME SIZE [STREAM]`, `async-over NAME SIZE` (like `alloc-over`), `async-from NAME POOL SIZE [STREAM]`, `free-async NAME [STREAM]`, `sync [STREAM]`, `event-sync`, `sync-context NAME` | stream-ordered memory |
//! | `pool NAME D`, `managed-pool NAME D`, `default-managed-pool NAME D`, `current-managed-pool NAME D` (D may be `none` or `host`), `default-pool NAME D`, `threshold POOL SIZE`, `trim POOL SIZE`, `use-pool POOL D`, `use-pool-at POOL D`, `pool-bytes POOL`, `destroy-pool POOL`, `pool-access POOL D FLAGS [D FLAGS]…`, `export-pool FD POOL`, `import-pool NEW FD`, `import-pointer NAME POOL` | pools |
//! | `event NAME [STREAM]`, `query-event NAME`, `sync-event NAME`, `elapsed EVENT EVENT` | recorded events |
//! | `stream NAME`, `priority-stream NAME`, `query [STREAM]`, `capture [STREAM]`, `capture-v1 STREAM`, `capture-to STREAM GRAPH`, `recapture STREAM GRAPH`, `end-capture STREAM [NAME]` | streams |
//! | `graph NAME`, `alloc-node NAME GRAPH SIZE [D]`, `alloc-node-v1 …`, `free-node GRAPH NAME`, `empty-node GRAPH`, `child-node GRAPH CHILD`, `conditional-node FUNCTION GRAPH BODY...` | graphs; BODY names each graph that a conditional node may run |
//! | `instantiate NAME GRAPH [FLAGS]`, `instantiate-v1`, `-v2`, `instantiate-upload NAME GRAPH [STREAM]`, `upload-graph NAME [STREAM]`, `launch-graph NAME [STREAM]`, `destroy-exec NAME`, `destroy-graph NAME`, `trim-graphs [D]` | executable graphs |
//! | `update EXEC GRAPH`, `update-v1 …`, `set-kernel EXEC GRAPH N MODULE`, `set-kernel-v1 …`, `set-kernel-node …`, `set-kernel-of EXEC GRAPH N LIBRARY`, `set-child EXEC GRAPH N CHILD`, `set-child-node …`, `set-nothing EXEC GRAPH N` | changes to the kernels of executable graphs; N is the number of a node |
//! | `module NAME BYTES`, `module-ex …`, `module-fat …`, `module-file …`, `image NAME FILE`, `image-file NAME FILE`, `library-image NAME FILE`, `library NAME BYTES`, `library-file …`, `library-module NAME`, `library-function NAME`, `library-global NAME`, `library-launch NAME`, `unload NAME`, `unload-library NAME`, `launch NAME [STREAM]`, `cooperative NAME [STREAM]` | code |
//! | `kernels NAME LOCAL [malloc] [printf] [assert] [long]`, `kernel-library …`, `get-function NAME`, `launch-ex NAME [STREAM]`, `launch-kernel NAME [STREAM]`, `launch-one NAME`, `launch-grid NAME`, `launch-grid-async NAME [STREAM]`, `launch-many MODULE STREAM [MODULE STREAM]...` | modules and libraries with a kernel that needs LOCAL bytes of local memory, and all ways to load and launch the kernel |
//! | `ask FUNCTION LIBRARY`, `ask-listed FUNCTION MODULE`, `ask-nothing FUNCTION`, `kernel-node FUNCTION GRAPH LIBRARY [CONTEXT]`, `listed-node FUNCTION GRAPH MODULE` | functions of CUDA, by name, that load a kernel of a library or a function of a module: functions that query it or set an attribute, that add a node with it, or that put it into the first node of a graph |
//! | `listed NEW FUNCTION OWNER`, `clone-graph NEW GRAPH`, `launch-handle NAME [STREAM]`, `destroy-stream NAME [FUNCTION]` | handles got from lists and copies, used and destroyed |
//! | `unseen-stream NAME`, `unseen-context NAME D`, `unseen-pool NAME D`, `unseen-function NEW MODULE`, `unseen-kernel NEW LIBRARY`, `unseen-graph NAME`, `unseen-exec NEW GRAPH` | handles made by code inside the driver, which no hook sees |
//! | `info`, `total D`, `bus D`, `name D`, `attribute N D` | CUDA's figures of a GPU |
//! | `nvml N`, `nvml-own N`, `nvml-shutdown`, `processes N Compute\|Graphics\|MPSCompute v1\|v2\|v3\|v3-535\|details ROOM` | NVML's figures of GPU N, or of MIG instance `N.I`; `nowhere-ROOM` passes no buffer for the answer |
//! | `gated FUNCTION` | calls a function by name, with the handles `event`, `memory`, `pool` and `module` |
//! | `lock-process PID`, `checkpoint-process PID`, `restore-process PID`, `unlock-process PID`, `process-state PID`, `restore-thread PID` | moves other processes off the GPU and back |
//! | `can`, `group SIZE`, `error`, `figures [DEVICE]`, `peak-begin [DEVICE]`, `peak-read N`, `peak-end N`, `register`, `unregister`, `asked MS`, `captures` | the C interface of gpulimit |
//! | `threads N {`, `repeat N {`, `until FILE {`, `fork {`, `background {`, `join` | blocks end with `}`; `until` repeats its block until the file exists |
//! | `aside {`, `await` | runs a block in a thread beside the script; waits for the answers of these threads |
//! | `spawn SCRIPT LOG`, `reap` | starts a child that reads its commands from one file and writes to another, and prints its pid; prints the children that have ended as `PID:CODE`, and kills their own children |
//! | `exec` | runs this program again for the rest of standard input |
//! | `touch FILE`, `wait FILE`, `sleep MS`, `catch SIGNAL`, `closefrom N`, `clearenv`, `setenv NAME VALUE`, `unsetenv NAME`, `exit N` | the process |
//! | `errno` | 1 if a call of the driver has changed `errno` since the last such question, else 0 |
//! | `dlsym NAME`, `owner NAME`, `hooks`, `names FILE`, `panics` | queries: the linker's result for a name, the object that defines it, the hooks that this door misses, the names in a file for which it leads to the wrong place, whether a panic of the library stays in it |

mod arrays;
mod checkpoint;
mod code;
mod contexts;
mod external;
mod gated;
mod graphs;
mod green;
mod handles;
mod interface;
mod ipc;
mod kernels;
mod lazy;
mod linear;
mod mapped;
mod narrow;
mod pools;
mod streams;
mod surroundings;
mod updates;
mod view;

use crate::driver::{ABSENT, Driver};
use crate::interpreter::{Scope, Words};

/// The result of a command, or a description of a mistake in it.
pub type Answer<T> = Result<T, String>;

/// Runs one command.
pub fn run(driver: &Driver, scope: &mut Scope, words: &Words<'_>) -> Answer<String> {
    let subjects = [
        contexts::run,
        linear::run,
        mapped::run,
        ipc::run,
        external::run,
        gated::run,
        arrays::run,
        pools::run,
        streams::run,
        graphs::run,
        updates::run,
        code::run,
        kernels::run,
        lazy::run,
        green::run,
        handles::run,
        view::run,
        checkpoint::run,
        interface::run,
        surroundings::run,
    ];
    for subject in subjects {
        if let Some(answer) = subject(driver, scope, words)? {
            return Ok(answer);
        }
    }
    Err(format!("no command {}", words.name()))
}

/// Returns a status as scripts show it.
pub fn plain(status: i32) -> String {
    match status {
        ABSENT => "absent".to_owned(),
        status => status.to_string(),
    }
}

/// Returns the list of `CUmemAccessDesc` that the words from `begin` on name: a GPU and its flags
/// each.
fn rights(words: &Words<'_>, begin: usize) -> Answer<Vec<[i32; 3]>> {
    let right = |at| Ok([1, words.gpu(at)? as i32, words.size(at + 1)? as i32]);
    let named = (begin..)
        .step_by(2)
        .take_while(|at| words.get(*at).is_some());
    named.map(right).collect()
}

/// Returns `CUmemAllocationProp` or `CUmemPoolProps` of pinned memory on a GPU.
fn placed(gpu: usize) -> [i32; 22] {
    let mut properties = [0; 22];
    (properties[0], properties[2], properties[3]) = (1, 1, gpu as i32);
    properties
}
