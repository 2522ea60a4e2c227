//! Tests of processes that are locked, moved off the GPU and back by another process.

use gpulimit_support::Running;
use std::io::{BufRead, Write};

use crate::rig::{CONTEXT, Cuda, Library, MIB, Machine, eventually, expect_line, role};

const RUNNING: &str = "0 0";
const LOCKED: &str = "0 1";
const CHECKPOINTED: &str = "0 2";

/// A driver that tells the state of a process while a step is under way.
const REPORTS_STEPS: &str = "13040";

/// Runs the commands of one child process, one a line, and answers each with a line.
fn obey() {
    let cuda = Cuda::load();
    if role().as_deref() == Some("stranger") {
        // SAFETY: the calls only change this process's own users.
        unsafe { assert_eq!((libc::setgid(65_534), libc::setuid(65_534)), (0, 0)) };
    }
    assert_eq!(cuda.call("cuInit", &[0]), 0);
    if role().as_deref() == Some("program") {
        cuda.start();
    }
    let mut memory = 0;
    let mut objects = None;
    println!("answer ready");
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("readable");
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<usize>().expect("a number");
        let step = |name: &str| cuda.call(&format!("cuCheckpointProcess{name}"), &[number(1), 0]);
        let answer = match words[0] {
            "alloc" => match cuda.alloc(number(1) as u64 * MIB) {
                Ok(address) => {
                    memory = address as usize;
                    0
                }
                Err(error) => error,
            },
            "managed" => {
                let address = cuda.get("cuMemAllocManaged", &[number(1) << 20, 1]);
                memory = address.expect("memory") as usize;
                0
            }
            "free" => cuda.free(memory as u64),
            "fill" => cuda.call("cuMemsetD8_v2", &[memory, number(1), 64]),
            "first" => {
                let mut byte = [0u8; 1];
                let copy = [byte.as_mut_ptr() as usize, memory, 1];
                assert_eq!(cuda.call("cuMemcpyDtoH_v2", &copy), 0);
                byte[0].into()
            }
            "export" => {
                let mut bytes = [0u8; 64];
                let status = cuda.call("cuIpcGetMemHandle", &[bytes.as_mut_ptr() as usize, memory]);
                std::fs::write(words[1], bytes).expect("written");
                status
            }
            // The context of the second GPU, in which nothing happens yet.
            "second" => {
                let context = cuda.get("cuDevicePrimaryCtxRetain", &[1]);
                memory = context.expect("a context") as usize;
                0
            }
            "enable-peer" => cuda.call("cuCtxEnablePeerAccess", &[memory, 0]),
            "nvml-processes" => processes_of_nvml(),
            "state" => {
                let mut state = -1i32;
                let ask = [number(1), &raw mut state as usize];
                let status = cuda.call("cuCheckpointProcessGetState", &ask);
                println!("answer {status} {state}");
                continue;
            }
            "thread" => {
                let mut thread = -1i32;
                let ask = [number(1), &raw mut thread as usize];
                cuda.call("cuCheckpointProcessGetRestoreThreadId", &ask)
            }
            "open" => {
                #[repr(C)]
                struct Handle([u64; 8]);
                type Open = extern "C" fn(*mut u64, Handle, u32) -> i32;
                let bytes = std::fs::read(words[1]).expect("a handle");
                let words = std::array::from_fn(|at| {
                    u64::from_le_bytes(bytes[at * 8..][..8].try_into().expect("eight bytes"))
                });
                let address = cuda.find("cuIpcOpenMemHandle_v2");
                // SAFETY: the function of this name has this type.
                let open: Open = unsafe { std::mem::transmute(address) };
                let mut place = 0;
                open(&raw mut place, Handle(words), 1)
            }
            "lock-for" => {
                let mut options = [0u64; 8];
                options[0] = number(2) as u64;
                let call = [number(1), options.as_ptr() as usize];
                cuda.call("cuCheckpointProcessLock", &call)
            }
            // Sets one of the eight words of the options.
            "options" => {
                let mut options = [0u64; 8];
                options[number(3)] = 1 << number(4);
                let call = [number(1), options.as_ptr() as usize];
                cuda.call(&format!("cuCheckpointProcess{}", words[2]), &call)
            }
            "call" => {
                let objects = objects.get_or_insert_with(|| Objects::new(&cuda));
                objects.call(&cuda, words[1], &words[2..], memory)
            }
            "lock" => step("Lock"),
            "checkpoint" => step("Checkpoint"),
            "restore" => step("Restore"),
            "unlock" => step("Unlock"),
            _ => panic!("unknown command {line}"),
        };
        println!("answer {answer}");
    }
    // The test runner would print more, to a test that may have ended.
    std::process::exit(0);
}

/// Handles that the program passes to functions.
struct Objects(Vec<(&'static str, usize)>);

impl Objects {
    fn new(cuda: &Cuda) -> Objects {
        let ptx = c".version 8.0\n.visible .entry work()\n{\nret;\n}\n".as_ptr() as usize;
        let mut objects = vec![("ptx", ptx), ("name", c"work".as_ptr() as usize)];
        for (name, function, arguments) in [
            ("stream", "cuStreamCreate", vec![1]),
            ("event", "cuEventCreate", vec![0]),
            ("pool", "cuDeviceGetDefaultMemPool", vec![0]),
            ("module", "cuModuleLoadData", vec![ptx]),
            ("library", "cuLibraryLoadData", vec![ptx, 0, 0, 0, 0, 0, 0]),
            ("graph", "cuGraphCreate", vec![0]),
        ] {
            let handle = cuda.get(function, &arguments).expect("an object");
            objects.push((name, handle as usize));
        }
        Objects(objects)
    }

    /// Calls a function with numbers, objects, the address of the program's memory, and places for
    /// results.
    fn call(&self, cuda: &Cuda, function: &str, arguments: &[&str], memory: usize) -> i32 {
        let mut place = [0u64; 16];
        let argument = |word: &&str| match *word {
            "out" => place.as_mut_ptr() as usize,
            "memory" => memory,
            word => match self.0.iter().find(|(name, _)| *name == word) {
                Some((_, handle)) => *handle,
                None => word.parse().expect("a number"),
            },
        };
        let arguments: Vec<usize> = arguments.iter().map(argument).collect();
        cuda.call(function, &arguments)
    }
}

/// Returns how many processes NVML lists for the first GPU.
pub fn processes_of_nvml() -> i32 {
    let nvml = Library::open("libnvidia-ml.so.1").expect("NVML");
    assert_eq!(nvml.call("nvmlInit_v2", &[]), 0);
    let (mut device, mut count, mut infos) = (0usize, 16u32, [[0u64; 3]; 16]);
    nvml.call(
        "nvmlDeviceGetHandleByIndex_v2",
        &[0, &raw mut device as usize],
    );
    let places = [device, &raw mut count as usize, infos.as_mut_ptr() as usize];
    assert_eq!(
        nvml.call("nvmlDeviceGetComputeRunningProcesses_v3", &places),
        0
    );
    count as i32
}

/// A child process that obeys.
struct Session(Running);

impl Session {
    fn start(machine: &Machine, role: &str) -> Session {
        Session::start_with(machine, role, &[])
    }

    fn start_with(machine: &Machine, role: &str, variables: &[(&str, &str)]) -> Session {
        let mut session = Session(machine.spawn_with(role, variables));
        assert_eq!(session.answer(), "ready");
        session
    }

    /// Returns whether the program has printed nothing.
    fn is_silent(&mut self) -> bool {
        use std::os::fd::AsRawFd;
        let output = self.0.stdout.as_ref().expect("piped");
        let mut poll = libc::pollfd {
            fd: output.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: the array of one entry lives during the call.
        unsafe { libc::poll(&mut poll, 1, 0) == 0 }
    }

    #[track_caller]
    fn expect_end(mut self, signal: i32) {
        use std::os::unix::process::ExitStatusExt;
        let status = self.0.wait().expect("gone");
        assert_eq!(status.signal(), Some(signal));
    }

    /// Sends a command whose call waits in the driver.
    #[track_caller]
    fn tell_waiting(&mut self, command: &str) {
        self.tell(command);
        let tasks = format!("/proc/{}/task", self.pid());
        let sleeps = || {
            let mut tasks = std::fs::read_dir(&tasks).expect("a process").flatten();
            tasks.any(|task| {
                let call = std::fs::read_to_string(task.path().join("wchan"));
                let waits = ["nanosleep", "setlk", "lock_"];
                call.is_ok_and(|call| waits.iter().any(|wait| call.contains(wait)))
            })
        };
        assert!(eventually(sleeps), "{command} does not wait");
    }

    fn tell(&mut self, command: &str) {
        let input = self.0.stdin.as_mut().expect("piped");
        writeln!(input, "{command}").expect("written");
    }

    fn answer(&mut self) -> String {
        expect_line(&mut self.0, "answer ")["answer ".len()..].to_owned()
    }

    fn say(&mut self, command: &str) -> String {
        self.tell(command);
        self.answer()
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    #[track_caller]
    fn expect(&mut self, dialogue: &[(&str, &str)], target: &Session) {
        for (command, answer) in dialogue {
            let command = command.replace("PID", &target.pid().to_string());
            assert_eq!(self.say(&command), *answer, "{command}");
        }
    }

    fn kill(mut self) {
        self.0.kill().expect("killed");
        self.0.wait().expect("gone");
    }
}

/// Starts a program that has a context and 100 MiB, and the process that moves it.
fn two(machine: &Machine) -> (Session, Session) {
    let (mut program, tool) = (
        Session::start(machine, "program"),
        Session::start(machine, "tool"),
    );
    assert_eq!(program.say("alloc 100"), "0");
    assert_eq!(program.say("fill 7"), "0");
    (program, tool)
}

fn listed(machine: &Machine, session: &Session) -> bool {
    let pid = format!("\"pid\":{},", session.pid());
    machine.usage().contains(&pid)
}

const GIB: u64 = 1024 * MIB;

#[test]
fn a_checkpoint_takes_all_memory_away_and_a_restore_brings_it_back() {
    if role().is_some() {
        return obey();
    }
    let machine = Machine::new(&[]);
    let (mut program, mut tool) = two(&machine);
    let steps = [
        ("state PID", RUNNING),
        ("thread PID", "0"),
        ("checkpoint PID", "401"),
        ("restore PID", "401"),
        ("unlock PID", "401"),
        ("lock PID", "0"),
        ("lock PID", "401"),
        ("restore PID", "401"),
        ("state PID", LOCKED),
        ("checkpoint PID", "0"),
        ("state PID", CHECKPOINTED),
        ("checkpoint PID", "401"),
        ("unlock PID", "401"),
    ];
    tool.expect(&steps, &program);
    assert_eq!(machine.used(), 0);
    assert!(!listed(&machine, &program));
    tool.expect(&[("restore PID", "0"), ("state PID", LOCKED)], &program);
    assert_eq!(machine.used(), CONTEXT + 100 * MIB);
    assert!(listed(&machine, &program));
    tool.expect(&[("unlock PID", "0"), ("state PID", RUNNING)], &program);
    assert_eq!(program.say("first"), "7");
    assert_eq!(program.say("free"), "0");
    assert_eq!(machine.used(), CONTEXT);
}

#[test]
fn a_process_without_cuda_has_no_state_and_cannot_be_locked() {
    if role().is_some() {
        return obey();
    }
    let machine = Machine::new(&[]);
    let mut tool = Session::start(&machine, "tool");
    let own = std::process::id();
    for (command, answer) in [
        (format!("state {own}"), "3 -1"),
        (format!("thread {own}"), "3"),
        (format!("lock {own}"), "3"),
        ("state 0".to_owned(), "304 -1"),
        (format!("state {}", i32::MAX), "304 -1"),
        (format!("lock {}", i32::MAX), "304"),
    ] {
        assert_eq!(tool.say(&command), answer, "{command}");
    }
}

#[test]
fn reserved_words_of_options_are_zero() {
    if role().is_some() {
        return obey();
    }
    let machine = Machine::new(&[]);
    let (program, mut tool) = two(&machine);
    for step in ["Lock", "Checkpoint", "Restore", "Unlock"] {
        for (word, bit) in [(0, 32), (1, 0), (7, 63)] {
            let options = format!("options PID {step} {word} {bit}");
            tool.expect(&[(&options, "1"), ("state PID", RUNNING)], &program);
        }
    }
    tool.expect(
        &[("options PID Lock 0 10", "0"), ("state PID", LOCKED)],
        &program,
    );
    tool.expect(
        &[("options PID Unlock 0 0", "1"), ("unlock PID", "0")],
        &program,
    );
}

#[test]
fn calls_wait_from_the_lock_to_the_unlock() {
    if role().is_some() {
        return obey();
    }
    let machine = Machine::new(&[]);
    let (mut program, mut tool) = two(&machine);
    tool.expect(&[("lock PID", "0")], &program);
    program.tell("alloc 50");
    tool.expect(&[("checkpoint PID", "0")], &program);
    assert_eq!(machine.used(), 0, "the call has taken no memory");
    tool.expect(&[("restore PID", "0")], &program);
    assert_eq!(machine.used(), CONTEXT + 100 * MIB);
    tool.expect(&[("unlock PID", "0")], &program);
    assert_eq!(program.answer(), "0");
    assert_eq!(machine.used(), CONTEXT + 150 * MIB);
}

const AWAY: [(&str, &str); 2] = [("lock PID", "0"), ("checkpoint PID", "0")];
const BACK: [(&str, &str); 2] = [("restore PID", "0"), ("unlock PID", "0")];

/// Functions that crash in a checkpointed process.
const CRASHES: [&str; 10] = [
    "cuCtxSynchronize",
    "cuCtxSynchronize_v2 0",
    "cuStreamQuery stream",
    "cuStreamQuery_ptsz stream",
    "cuStreamSynchronize stream",
    "cuStreamSynchronize_ptsz stream",
    "cuEventQuery event",
    "cuEventSynchronize event",
    "cuEventElapsedTime out event event",
    "cuEventElapsedTime_v2 out event event",
];

#[test]
fn queries_and_waits_crash_in_a_checkpointed_process() {
    if role().is_some() {
        return obey();
    }
    let machine = Machine::new(&[]);
    let mut tool = Session::start(&machine, "tool");
    for call in CRASHES {
        let mut program = Session::start(&machine, "program");
        let call = format!("call {call}");
        assert_eq!(program.say("call cuEventRecord event stream"), "0");
        assert_eq!(program.say(&call), "0", "{call}");
        tool.expect(&AWAY[..1], &program);
        assert_eq!(program.say(&call), "0", "{call} in a locked process");
        tool.expect(&AWAY[1..], &program);
        program.tell(&call);
        program.expect_end(libc::SIGSEGV);
    }
}

/// A lock does not wait for a call that is still on its way to the process's state.
#[test]
fn a_call_that_is_late_crashes_in_a_checkpointed_process() {
    if role().is_some() {
        return obey();
    }
    let machine = Machine::new(&[("GPULIMIT_SIM_CHECKPOINT", "none")]);
    for function in ["cuStreamQuery", "cuMemAllocAsync"] {
        let (mut program, mut tool) = two(&machine);
        assert_eq!(program.say("call cuMemAllocAsync out 4096 stream"), "0");
        machine.knob("latency", &format!("{function}:{MINUTE}"));
        program.tell_waiting(match function {
            "cuStreamQuery" => "call cuStreamQuery stream",
            _ => "call cuMemAllocAsync out 4096 stream",
        });
        tool.expect(&AWAY, &program);
        machine.knob("latency", "0");
        program.expect_end(libc::SIGSEGV);
    }
}

#[test]
fn calls_that_crash_if_they_begin_in_a_checkpointed_process() {
    if role().is_some() {
        return obey();
    }
    let machine = Machine::new(&[]);
    let mut tool = Session::start(&machine, "tool");
    for call in [
        "cuMemAllocAsync out 4096 stream",
        "cuMemAllocAsync_ptsz out 4096 stream",
        "cuMemAllocFromPoolAsync out 4096 pool stream",
        "cuMemAllocFromPoolAsync_ptsz out 4096 pool stream",
        "cuModuleUnload module",
    ] {
        let mut program = Session::start(&machine, "program");
        let call = format!("call {call}");
        assert_eq!(program.say("call cuEventQuery event"), "0");
        tool.expect(&AWAY[..1], &program);
        program.tell_waiting(&call);
        tool.expect(&AWAY[1..], &program);
        tool.expect(&BACK, &program);
        assert_eq!(program.answer(), "0", "{call}");
        tool.expect(&AWAY, &program);
        program.tell(&call);
        program.expect_end(libc::SIGSEGV);
    }
}

/// Functions that fail in a checkpointed process.
const FAILS: [&str; 5] = [
    "cuMemGetInfo out out",
    "cuMemGetInfo_v2 out out",
    "cuDeviceGetName out 64 0",
    "cuDeviceGetAttribute out 13 0",
    "cuIpcGetMemHandle out memory",
];

/// Functions that answer in a checkpointed process.
const ANSWERS: [&str; 25] = [
    "cuDriverGetVersion out",
    "cuDeviceGetCount out",
    "cuDeviceTotalMem_v2 out 0",
    "cuDeviceGetUuid_v2 out 0",
    "cuDeviceGetAttribute out 16 0",
    "cuCtxGetCurrent out",
    "cuCtxGetDevice out",
    "cuCtxGetStreamPriorityRange out out",
    "cuDevicePrimaryCtxGetState 0 out out",
    "cuDevicePrimaryCtxRetain out 0",
    "cuPointerGetAttribute out 2 memory",
    "cuMemGetAddressRange_v2 out out memory",
    "cuMemPoolGetAttribute pool 4 out",
    "cuMemPoolTrimTo pool 0",
    "cuLibraryLoadData out ptx 0 0 0 0 0 0",
    "cuLibraryGetKernel out library name",
    "cuStreamIsCapturing stream out",
    "cuStreamIsCapturing_ptsz stream out",
    "cuStreamGetPriority stream out",
    "cuStreamGetCtx stream out",
    "cuStreamWaitEvent stream event 0",
    "cuStreamWaitEvent_ptsz stream event 0",
    "cuMemAddressReserve out 2097152 0 0 0",
    "cuGraphInstantiateWithFlags out graph 0",
    "cuGetErrorName 304 out",
];

#[test]
fn some_calls_answer_in_a_process_that_is_not_running() {
    if role().is_some() {
        return obey();
    }
    let machine = Machine::new(&[]);
    let (mut program, mut tool) = two(&machine);
    let ask = |program: &mut Session, expected: i32| {
        for call in FAILS {
            let answer = program.say(&format!("call {call}"));
            assert_eq!(answer, expected.to_string(), "{call}");
        }
        for call in ANSWERS {
            assert_eq!(program.say(&format!("call {call}")), "0", "{call}");
        }
    };
    ask(&mut program, 0);
    let steps = AWAY.iter().chain(&BACK);
    for (step, answer) in steps.zip([0, 304, 0, 0]) {
        tool.expect(&[*step], &program);
        ask(&mut program, answer);
    }
}

/// A call that answers in a checkpointed process waits if it takes memory.
#[test]
fn a_call_that_takes_memory_waits_in_a_checkpointed_process() {
    if role().is_some() {
        return obey();
    }
    let machine = Machine::new(&[("GPULIMIT_SIM_GPUS", "3")]);
    let (mut program, mut tool) = two(&machine);
    let retain = |gpu| format!("call cuDevicePrimaryCtxRetain out {gpu}");
    assert_eq!(program.say(&retain(0)), "0");
    tool.expect(&AWAY[..1], &program);
    assert_eq!(program.say(&retain(1)), "0", "in a locked process");
    tool.expect(&AWAY[1..], &program);
    program.tell_waiting(&retain(2));
    let gpus_with = |bytes: u64| {
        machine
            .usage()
            .matches(&format!("\"used\":{bytes},"))
            .count()
    };
    assert_eq!(gpus_with(0), 3);
    tool.expect(&BACK, &program);
    assert_eq!(program.answer(), "0");
    assert_eq!(gpus_with(CONTEXT), 2);
}

#[test]
fn a_lock_waits_for_calls_under_way_and_gives_up_in_time() {
    if role().is_some() {
        return obey();
    }
    // Every allocation takes a minute after its memory was taken.
    let machine = Machine::new(&[("GPULIMIT_SIM_CHECKPOINT", "none")]);
    let (mut program, mut tool) = two(&machine);
    machine.knob("delay", "cuMemAlloc_v2:60000000000");
    program.tell("alloc 50");
    assert!(eventually(|| machine.used() == CONTEXT + 150 * MIB));
    tool.expect(
        &[("lock-for PID 20", "600"), ("state PID", RUNNING)],
        &program,
    );
    // A lock without a limit ends when the process dies.
    machine.knob("driver-version", REPORTS_STEPS);
    let mut other = Session::start(&machine, "tool");
    let state = format!("state {}", program.pid());
    tool.tell(&format!("lock {}", program.pid()));
    assert!(eventually(|| other.say(&state) == LOCKED));
    program.kill();
    assert_eq!(tool.answer(), "304");
    assert!(eventually(|| machine.used() == 0));
}

#[test]
fn a_process_can_lock_and_unlock_itself() {
    if role().is_some() {
        return obey();
    }
    let machine = Machine::new(&[]);
    let (mut program, mut tool) = two(&machine);
    let own = program.pid();
    for (command, answer) in [("lock", "0"), ("unlock", "0"), ("lock", "0")] {
        assert_eq!(program.say(&format!("{command} {own}")), answer);
    }
    tool.expect(&[("state PID", LOCKED), ("unlock PID", "0")], &program);
    assert_eq!(program.say("first"), "7");
}

#[test]
fn a_dead_locker_leaves_the_process_locked() {
    if role().is_some() {
        return obey();
    }
    let machine = Machine::new(&[]);
    let (mut program, mut tool) = two(&machine);
    tool.expect(&[("lock PID", "0")], &program);
    tool.kill();
    let mut tool = Session::start(&machine, "tool");
    tool.expect(&[("state PID", LOCKED), ("unlock PID", "0")], &program);
    assert_eq!(program.say("first"), "7");
}

#[test]
fn a_restore_without_room_loses_the_process() {
    if role().is_some() {
        return obey();
    }
    let capacity = (2 * GIB).to_string();
    let machine = Machine::new(&[("GPULIMIT_SIM_CAPACITY", &capacity)]);
    let (mut program, mut tool) = two(&machine);
    let mut other = Session::start(&machine, "program");
    tool.expect(&[("lock PID", "0"), ("checkpoint PID", "0")], &program);
    assert_eq!(other.say("alloc 1000"), "0");
    let before = machine.used();
    tool.expect(&[("restore PID", "2")], &program);
    assert_eq!(other.say("free"), "0");
    let steps = [
        ("state PID", CHECKPOINTED),
        ("restore PID", "304"),
        ("unlock PID", "401"),
    ];
    tool.expect(&steps, &program);
    assert_eq!(machine.used(), before - 1000 * MIB);
    program.tell("first");
    program.kill();
    assert_eq!(other.say("alloc 1000"), "0");
}

#[test]
fn managed_memory_leaves_the_process_locked_and_intact() {
    if role().is_some() {
        return obey();
    }
    let machine = Machine::new(&[]);
    let (mut program, mut tool) = two(&machine);
    assert_eq!(program.say("managed 10"), "0");
    let steps = [
        ("lock PID", "0"),
        ("checkpoint PID", "801"),
        ("state PID", LOCKED),
        ("unlock PID", "0"),
    ];
    tool.expect(&steps, &program);
    assert_eq!(machine.used(), CONTEXT + 100 * MIB);
    assert_eq!(program.say("free"), "0");
    tool.expect(&[("lock PID", "0"), ("checkpoint PID", "0")], &program);
}

#[test]
fn an_exporter_comes_back_and_an_importer_is_lost() {
    if role().is_some() {
        return obey();
    }
    let machine = Machine::new(&[]);
    let (mut program, mut tool) = two(&machine);
    let path = machine.at("handle").display().to_string();
    assert_eq!(program.say(&format!("export {path}")), "0");
    let round = [
        ("lock PID", "0"),
        ("checkpoint PID", "0"),
        ("restore PID", "0"),
        ("unlock PID", "0"),
    ];
    tool.expect(&round[..2], &program);
    assert_eq!(machine.used(), 0);
    tool.expect(&round[2..], &program);
    assert_eq!(machine.used(), CONTEXT + 100 * MIB);
    let mut importer = Session::start(&machine, "program");
    assert_eq!(importer.say(&format!("open {path}")), "0");
    std::fs::remove_file(&path).expect("removed");
    tool.expect(&round[..2], &importer);
    let steps = [
        ("restore PID", "1"),
        ("state PID", CHECKPOINTED),
        ("restore PID", "304"),
        ("unlock PID", "401"),
    ];
    tool.expect(&steps, &importer);
    // The memory that the importer has open stays on the GPU.
    tool.expect(&round[..2], &program);
    assert_eq!(machine.used(), 100 * MIB);
    tool.expect(&round[2..], &program);
    assert_eq!(machine.used(), CONTEXT + 100 * MIB);
}

#[test]
fn another_users_process_is_left_alone() {
    if role().is_some() {
        return obey();
    }
    // SAFETY: the call cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    let machine = Machine::new(&[]);
    let (program, _tool) = two(&machine);
    let mut stranger = Session::start(&machine, "stranger");
    for step in ["lock", "checkpoint", "restore", "unlock"] {
        stranger.expect(&[(&format!("{step} PID"), "304")], &program);
    }
    stranger.expect(&[("state PID", "304 -1")], &program);
}

#[test]
fn knobs_make_each_step_fail() {
    if role().is_some() {
        return obey();
    }
    let machine = Machine::new(&[]);
    let (mut program, mut tool) = two(&machine);
    machine.knob("checkpoint", "denied");
    tool.expect(&[("lock PID", "304")], &program);
    machine.knob("checkpoint", "mps");
    tool.expect(&[("lock PID", "801"), ("state PID", RUNNING)], &program);
    machine.knob("checkpoint", "restore-fails");
    let lost = [
        ("lock PID", "0"),
        ("checkpoint PID", "0"),
        ("restore PID", "1"),
        ("restore PID", "304"),
    ];
    tool.expect(&lost, &program);
    program.kill();
    program = Session::start(&machine, "program");
    machine.knob("checkpoint", "checkpoint-fails");
    let failed = [
        ("lock PID", "0"),
        ("checkpoint PID", "999"),
        ("state PID", "0 3"),
        ("unlock PID", "401"),
        ("restore PID", "401"),
    ];
    tool.expect(&failed, &program);
    assert_eq!(machine.used(), CONTEXT, "the memory stays on the GPU");
    program.kill();
    machine.knob("checkpoint", "none");
    assert!(eventually(|| machine.used() == 0));
}

#[test]
fn a_process_killed_while_checkpointed_leaves_nothing() {
    if role().is_some() {
        return obey();
    }
    let machine = Machine::new(&[]);
    let (program, mut tool) = two(&machine);
    tool.expect(&[("lock PID", "0"), ("checkpoint PID", "0")], &program);
    let gone = program.pid();
    program.kill();
    assert!(eventually(|| tool.say(&format!("lock {gone}")) == "304"));
    assert_eq!(machine.used(), 0);
    let mut next = Session::start(&machine, "program");
    tool.expect(&[("state PID", RUNNING)], &next);
    assert_eq!(next.say("alloc 10"), "0");
}

/// Sends a program a signal, and waits until the program is stopped or continued.
fn signal(program: &Session, signal: i32) {
    // SAFETY: the process is a child of this process and not yet waited for.
    unsafe { libc::kill(program.pid() as i32, signal) };
    let stat = format!("/proc/{}/stat", program.pid());
    let is_stopped = || std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") T "));
    assert!(eventually(|| is_stopped() == (signal == libc::SIGSTOP)));
}

#[test]
fn a_process_with_peer_access_is_lost() {
    if role().is_some() {
        return obey();
    }
    let machine = Machine::new(&[("GPULIMIT_SIM_GPUS", "2")]);
    let (mut program, mut tool) = two(&machine);
    assert_eq!(program.say("second"), "0");
    let round = [
        ("lock PID", "0"),
        ("checkpoint PID", "0"),
        ("restore PID", "0"),
        ("unlock PID", "0"),
    ];
    tool.expect(&round, &program);
    assert_eq!(machine.used(), CONTEXT + 100 * MIB);
    assert_eq!(program.say("enable-peer"), "0");
    tool.expect(&round[..2], &program);
    let steps = [
        ("restore PID", "1"),
        ("state PID", CHECKPOINTED),
        ("restore PID", "304"),
    ];
    tool.expect(&steps, &program);
}

#[test]
fn nvml_does_not_list_a_process_while_it_is_restored() {
    if role().is_some() {
        return obey();
    }
    let machine = Machine::new(&[]);
    let (program, mut tool) = two(&machine);
    let mut other = Session::start(&machine, "tool");
    assert_eq!(other.say("nvml-processes"), "1");
    tool.expect(&[("lock PID", "0"), ("checkpoint PID", "0")], &program);
    assert_eq!(other.say("nvml-processes"), "0");
    machine.knob("step", MINUTE);
    tool.tell(&format!("restore {}", program.pid()));
    assert!(eventually(|| machine.used() == CONTEXT + 100 * MIB));
    assert_eq!(other.say("nvml-processes"), "0");
    tool.kill();
    machine.knob("step", "0");
    other.expect(&[("state PID", LOCKED)], &program);
    assert_eq!(other.say("nvml-processes"), "1");
}

const MINUTE: &str = "60000000000";

/// Steps whose caller is killed are finished, whatever they were in the middle of.
#[test]
fn a_killed_caller_leaves_no_half_step() {
    if role().is_some() {
        return obey();
    }
    let machine = Machine::new(&[]);
    let (mut program, mut tool) = two(&machine);
    tool.expect(&[("lock PID", "0")], &program);
    machine.knob("step", MINUTE);
    machine.knob("driver-version", REPORTS_STEPS);
    tool.tell(&format!("checkpoint {}", program.pid()));
    let mut other = Session::start(&machine, "tool");
    let state = format!("state {}", program.pid());
    assert!(eventually(|| other.say(&state) == "0 4"));
    tool.kill();
    machine.knob("step", "0");
    other.expect(&[("state PID", CHECKPOINTED)], &program);
    assert_eq!(machine.used(), 0);
    machine.knob("step", MINUTE);
    other.tell(&format!("restore {}", program.pid()));
    let mut last = Session::start(&machine, "tool");
    assert!(eventually(|| last.say(&state) == "0 5"));
    other.kill();
    machine.knob("step", "0");
    last.expect(&[("state PID", LOCKED), ("unlock PID", "0")], &program);
    assert_eq!(machine.used(), CONTEXT + 100 * MIB);
    assert_eq!(program.say("first"), "7");
}

#[test]
fn calls_about_a_process_wait_for_the_step_under_way() {
    if role().is_some() {
        return obey();
    }
    let machine = Machine::new(&[]);
    let (program, mut tool) = two(&machine);
    let mut other = Session::start(&machine, "tool");
    tool.expect(&[("lock PID", "0")], &program);
    for (step, under_way, state) in [("checkpoint", "4", "2"), ("restore", "5", "1")] {
        machine.knob("step", MINUTE);
        machine.knob("driver-version", REPORTS_STEPS);
        tool.tell(&format!("{step} {}", program.pid()));
        let ask = format!("state {}", program.pid());
        assert!(eventually(|| other.say(&ask) == format!("0 {under_way}")));
        machine.knob("driver-version", "13000");
        other.tell_waiting(&ask);
        assert!(other.is_silent(), "{step}");
        machine.knob("step", "0");
        assert_eq!(other.answer(), format!("0 {state}"));
        assert_eq!(tool.answer(), "0");
    }
    tool.expect(&[("unlock PID", "0")], &program);
    // A process that is killed during a step ends the call.
    tool.expect(&[("lock PID", "0")], &program);
    machine.knob("step", MINUTE);
    machine.knob("driver-version", REPORTS_STEPS);
    tool.tell(&format!("checkpoint {}", program.pid()));
    let ask = format!("state {}", program.pid());
    assert!(eventually(|| other.say(&ask) == "0 4"));
    program.kill();
    assert_eq!(tool.answer(), "304");
    assert!(eventually(|| machine.used() == 0));
}

#[test]
fn calls_about_a_stopped_process_wait_until_it_goes_on() {
    if role().is_some() {
        return obey();
    }
    let machine = Machine::new(&[]);
    let (program, mut tool) = two(&machine);
    for (command, answer) in [
        ("state PID", RUNNING),
        // Longer than its time.
        ("lock-for PID 1", "0"),
        ("checkpoint PID", "0"),
        ("restore PID", "0"),
        ("unlock PID", "0"),
    ] {
        signal(&program, libc::SIGSTOP);
        tool.tell_waiting(&command.replace("PID", &program.pid().to_string()));
        let mut other = Session::start(&machine, "tool");
        other.tell_waiting(&format!("state {}", program.pid()));
        for waiting in [&mut tool, &mut other] {
            assert!(waiting.is_silent(), "{command}");
        }
        signal(&program, libc::SIGCONT);
        assert_eq!(tool.answer(), answer, "{command}");
        assert!(other.answer().starts_with("0 "), "{command}");
    }
}

#[test]
fn a_caller_ends_before_or_after_a_call() {
    if role().is_some() {
        return obey();
    }
    let machine = Machine::new(&[]);
    let (mut program, mut tool) = two(&machine);
    for (order, state) in [
        ("cuCheckpointProcessLock:before", RUNNING),
        ("cuCheckpointProcessLock:after", LOCKED),
        ("cuCheckpointProcessUnlock:before", LOCKED),
        ("cuCheckpointProcessUnlock:after@2", RUNNING),
    ] {
        let mut dying = Session::start_with(&machine, "tool", &[("GPULIMIT_SIM_KILL", order)]);
        if order.ends_with("@2") {
            dying.expect(&[("unlock PID", "0"), ("lock PID", "0")], &program);
        }
        let step = if order.contains("Unlock") {
            "unlock"
        } else {
            "lock"
        };
        dying.tell(&format!("{step} {}", program.pid()));
        dying.expect_end(libc::SIGKILL);
        tool.expect(&[("state PID", state)], &program);
    }
    assert_eq!(program.say("first"), "7");
}
