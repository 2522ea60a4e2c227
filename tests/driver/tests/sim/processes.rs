//! Tests of several processes on one simulated machine, and of the memory of dead processes.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::rig::{
    CONTEXT, Cuda, Library, MIB, Machine, ROLE, alone, eventually, expect_line, role,
    wait_for_close,
};
use gpulimit_support::{Random, seed};

/// The child process of a test: takes 1 GiB and holds it until its standard input is closed.
fn hold() {
    let cuda = Cuda::load();
    cuda.start();
    cuda.alloc(1 << 30).expect("memory");
    println!("holding");
    wait_for_close();
}

const HELD: u64 = CONTEXT + (1 << 30);

#[test]
fn a_killed_process_keeps_its_memory_for_the_lag() {
    if role().is_some() {
        return hold();
    }
    let machine = Machine::new(&[("GPULIMIT_SIM_KILL_LAG_MS", "3600000")]);
    let mut child = machine.spawn("hold");
    expect_line(&mut child, "holding");
    assert_eq!(machine.used(), HELD);
    child.kill().expect("killed");
    child.wait().expect("gone");
    assert_eq!(machine.used(), HELD, "a dead child's memory still counts");
    let usage = machine.usage();
    assert!(
        usage.contains(&format!("\"pid\":{}", child.id())) && usage.contains("\"dying\":true"),
        "{usage}"
    );
    machine.knob("kill-lag-ms", "300");
    assert!(eventually(|| machine.used() == 0));

    let mut child = machine.spawn("hold");
    expect_line(&mut child, "holding");
    let alive = Instant::now();
    child.kill().expect("killed");
    child.wait().expect("gone");
    assert!(eventually(|| machine.used() == 0));
    assert!(alive.elapsed() >= Duration::from_millis(300));
    assert_eq!(machine.number("peak"), HELD);
}

/// The program before an `exec` is dead, and its memory is listed beside that of the next program
/// of the process, in every PID namespace.
#[test]
fn memory_from_before_an_exec_is_listed() {
    use std::os::unix::process::CommandExt;
    match role().as_deref() {
        Some("first") => {
            let cuda = Cuda::load();
            cuda.start();
            cuda.alloc(1 << 30).expect("memory");
            let mut next = Command::new(std::env::current_exe().expect("known"));
            next.args(std::env::args_os().skip(1)).env(ROLE, "next");
            panic!("{}", next.exec());
        }
        Some(_) => return hold(),
        None => {}
    }
    let machine = Machine::new(&[("GPULIMIT_SIM_KILL_LAG_MS", "3600000")]);
    let mut child = machine.spawn("first");
    expect_line(&mut child, "holding");
    assert_eq!(machine.used(), 2 * HELD);
    let usage = machine.usage();
    let listed = usage.matches(&format!("\"pid\":{}", child.id())).count();
    assert_eq!(listed, 2, "{usage}");
    child.kill().expect("killed");
    child.wait().expect("gone");
}

#[test]
fn an_exit_frees_all_memory() {
    if role().is_some() {
        return hold();
    }
    let machine = Machine::new(&[]);
    let mut child = machine.spawn("hold");
    expect_line(&mut child, "holding");
    drop(child.stdin.take());
    assert!(child.wait().expect("gone").success());
    assert!(eventually(|| machine.used() == 0));
}

#[test]
fn a_process_sees_the_memory_of_the_others() {
    match role().as_deref() {
        Some("hold") => return hold(),
        Some(_) => {
            let cuda = Cuda::load();
            cuda.start();
            let (mut free, mut total) = (0u64, 0u64);
            assert_eq!(
                cuda.call(
                    "cuMemGetInfo_v2",
                    &[&raw mut free as usize, &raw mut total as usize]
                ),
                0
            );
            assert_eq!(total - free, HELD + CONTEXT);
            return processes_by_nvml();
        }
        None => {}
    }
    let machine = Machine::new(&[]);
    let mut child = machine.spawn("hold");
    expect_line(&mut child, "holding");
    machine.run("look");
    drop(child.stdin.take());
    child.wait().expect("gone");
}

/// Checks that NVML lists two processes: this process, which has a context, and another one.
fn processes_by_nvml() {
    let nvml = Library::open("libnvidia-ml.so.1").expect("the simulated NVML");
    assert_eq!(
        nvml.call("nvmlDeviceGetCount_v2", &[0]),
        1,
        "NVML is not initialised"
    );
    assert_eq!(nvml.call("nvmlInit_v2", &[]), 0);
    let mut device = 0usize;
    assert_eq!(
        nvml.call(
            "nvmlDeviceGetHandleByIndex_v2",
            &[0, &raw mut device as usize]
        ),
        0
    );
    for (name, words) in [
        ("nvmlDeviceGetComputeRunningProcesses", 2),
        ("nvmlDeviceGetComputeRunningProcesses_v3", 3),
    ] {
        let mut count = 0u32;
        assert_eq!(
            nvml.call(name, &[device, &raw mut count as usize, 0]),
            7,
            "the buffer has too little room"
        );
        assert_eq!(count, 2);
        let mut infos = [0u64; 12];
        assert_eq!(
            nvml.call(
                name,
                &[device, &raw mut count as usize, infos.as_mut_ptr() as usize]
            ),
            0
        );
        let mut seen: Vec<(u32, u64)> = infos[..2 * words]
            .chunks(words)
            .map(|info| (info[0] as u32, info[1]))
            .collect();
        seen.sort_by_key(|(_, bytes)| *bytes);
        assert_eq!(seen[0], (std::process::id(), CONTEXT));
        assert_eq!(seen[1].1, HELD);
    }
    let mut memory = [0u64; 3];
    assert_eq!(
        nvml.call(
            "nvmlDeviceGetMemoryInfo",
            &[device, memory.as_mut_ptr() as usize]
        ),
        0
    );
    assert_eq!(memory[0], 85_520_809_984);
    assert_eq!(memory[2], HELD + CONTEXT + 480 * MIB);
    let mut second = [0u64; 5];
    assert_eq!(
        nvml.call(
            "nvmlDeviceGetMemoryInfo_v2",
            &[device, second.as_mut_ptr() as usize]
        ),
        25
    );
    second[0] = 0x0200_0028;
    assert_eq!(
        nvml.call(
            "nvmlDeviceGetMemoryInfo_v2",
            &[device, second.as_mut_ptr() as usize]
        ),
        0
    );
    assert_eq!(
        second[1..],
        [memory[0], 480 * MIB, memory[1], HELD + CONTEXT]
    );
}

/// Calls every function that returns a process list. Returns each name, status and count, and the
/// first element's pid and bytes.
fn lists(nvml: &Library, device: usize, v3_words: usize) -> Vec<(String, i32, u64, [u64; 2])> {
    let mut answers = Vec::new();
    for (mode, kind) in ["Compute", "Graphics", "MPSCompute"].iter().enumerate() {
        for (suffix, words) in [("", 2), ("_v2", 3), ("_v3", v3_words)] {
            let name = format!("nvmlDeviceGet{kind}RunningProcesses{suffix}");
            let (mut count, mut infos) = (2u32, [7u64; 9]);
            let places = [&raw mut count as usize, infos.as_mut_ptr() as usize];
            let status = nvml.call(&name, &[device, places[0], places[1]]);
            let written = infos.iter().position(|word| *word == 7);
            assert_eq!(written, Some(words * count as usize), "{name}");
            answers.push((name, status, count.into(), [infos[0], infos[1]]));
        }
        let mut infos = [7u64; 9];
        let mut list = [
            0x0100_0018 | (mode as u64) << 32,
            2,
            infos.as_mut_ptr() as u64,
        ];
        let name = "nvmlDeviceGetRunningProcessDetailList";
        let status = nvml.call(name, &[device, list.as_mut_ptr() as usize]);
        answers.push((
            format!("{name} {kind}"),
            status,
            list[1],
            [infos[0], infos[1]],
        ));
    }
    answers
}

fn first_gpu(nvml: &Library) -> usize {
    let mut device = 0usize;
    let place = &raw mut device as usize;
    assert_eq!(nvml.call("nvmlInit_v2", &[]), 0);
    assert_eq!(nvml.call("nvmlDeviceGetHandleByIndex_v2", &[0, place]), 0);
    device
}

#[test]
fn every_nvml_list_of_processes() {
    alone(&[], |cuda| {
        cuda.start();
        let nvml = Library::open("libnvidia-ml.so.1").expect("the simulated NVML");
        let device = first_gpu(&nvml);
        let own = [std::process::id().into(), CONTEXT];
        for (name, status, count, first) in lists(&nvml, device, 3) {
            assert_eq!(status, 0, "{name}");
            if name.contains("Compute") && !name.contains("MPS") {
                assert_eq!((count, [first[0] & 0xffff_ffff, first[1]]), (1, own));
            } else {
                assert_eq!(count, 0, "{name}");
            }
        }
        let mut list = [0x0200_0018u64, 2, 0];
        let name = "nvmlDeviceGetRunningProcessDetailList";
        let detailed = |list: &mut [u64; 3]| nvml.call(name, &[device, list.as_mut_ptr() as usize]);
        assert_eq!(detailed(&mut list), 25, "the list's version is unknown");
        list = [0x0100_0018 | 9 << 32, 0, 0];
        assert_eq!(detailed(&mut list), 2, "the list's mode is unknown");
        list = [0x0100_0018, 0, 0];
        assert_eq!((detailed(&mut list), list[1]), (7, 1));
    });
}

#[test]
fn lists_of_graphics_and_mps_and_of_the_first_535_drivers() {
    let knobs = [
        ("GPULIMIT_SIM_ALL_LISTS", "1"),
        ("GPULIMIT_SIM_EARLY_535", "1"),
    ];
    alone(&knobs, |cuda| {
        cuda.start();
        let nvml = Library::open("libnvidia-ml.so.1").expect("the simulated NVML");
        let device = first_gpu(&nvml);
        for (name, status, count, first) in lists(&nvml, device, 4) {
            assert_eq!((status, count), (0, 1), "{name}");
            assert_eq!(first[1], CONTEXT, "{name}");
        }
    });
}

#[test]
fn contexts_do_not_survive_fork() {
    alone(&[], |cuda| {
        // The parent process has not initialised the driver before the fork. So the driver works in
        // the forked child.
        let in_child = |body: &dyn Fn() -> bool| {
            // SAFETY: the child only calls the driver and exits.
            match unsafe { libc::fork() } {
                // SAFETY: _exit ends the child without the test runner's exit handlers.
                0 => unsafe { libc::_exit(if body() { 0 } else { 1 }) },
                child => {
                    let mut status = 0;
                    // SAFETY: `child` is a child of this process.
                    unsafe { libc::waitpid(child, &mut status, 0) };
                    status == 0
                }
            }
        };
        assert!(in_child(&|| {
            cuda.start();
            cuda.alloc(1 << 20).is_ok()
        }));
        cuda.start();
        assert!(in_child(
            &|| cuda.call("cuInit", &[0]) == 3 && cuda.alloc(1) == Err(3)
        ));
        assert!(cuda.alloc(1).is_ok(), "the parent's driver still works");
    });
}

/// The child process of a test: allocates and frees memory at random until it is killed.
fn churn(seed: u64) {
    let cuda = Cuda::load();
    if cuda.call("cuInit", &[0]) != 0 {
        panic!("no driver");
    }
    let context = loop {
        match cuda.get("cuDevicePrimaryCtxRetain", &[0]) {
            Ok(context) => break context,
            Err(2) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(cuda.call("cuCtxSetCurrent", &[context as usize]), 0);
    println!("churning");
    let (mut live, mut random) = (Vec::new(), Random::with_seed(seed));
    loop {
        if let Ok(address) = cuda.alloc(random.u64(1..=16 * MIB)) {
            live.push(address);
        }
        if random.u8(..64) == 0 {
            // Free all memory, so that new processes find room for their contexts.
            live.drain(..)
                .for_each(|address| assert_eq!(cuda.free(address), 0));
        } else if live.len() > 20 {
            assert_eq!(cuda.free(live.swap_remove(random.usize(..20))), 0);
        }
    }
}

#[test]
fn capacity_holds_against_killed_and_stopped_processes() {
    if let Some(role) = role() {
        return churn(seed() + role.parse::<u64>().expect("a number"));
    }
    let capacity = 512 * MIB;
    let machine = Machine::new(&[
        ("GPULIMIT_SIM_CAPACITY", &capacity.to_string()),
        ("GPULIMIT_SIM_CONTEXT_BYTES", "4194304"),
        ("GPULIMIT_SIM_KILL_LAG_MS", "5"),
    ]);
    let mut children: Vec<_> = (1..5u64)
        .map(|seed| machine.spawn(&seed.to_string()))
        .collect();
    for child in &mut children {
        expect_line(child, "churning");
    }
    // Stop one process at any instruction. SAFETY: the process is a child of this process and not
    // yet waited for.
    unsafe { libc::kill(children[0].id() as i32, libc::SIGSTOP) };
    let peak = || machine.number("peak");
    // On a slow machine processes may be killed early. So the test goes on until the peak is high
    // enough.
    for kills in 0..1000u64 {
        if kills >= 25 && peak() > capacity / 2 {
            break;
        }
        let index = 1 + kills as usize % 3;
        // Any moment is right for a kill, and a late one makes the peak higher.
        std::thread::sleep(Duration::from_millis(5 + kills % 7 + kills / 5));
        children[index].kill().expect("killed");
        children[index].wait().expect("gone");
        children[index] = machine.spawn(&(kills + 10).to_string());
        expect_line(&mut children[index], "churning");
    }
    for child in &mut children {
        child.kill().expect("killed");
        child.wait().expect("gone");
    }
    assert!(eventually(|| machine.used() == 0), "{}", machine.usage());
    let peak = peak();
    assert!(peak <= capacity && peak > capacity / 2, "{peak}");
}
