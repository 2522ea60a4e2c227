use super::*;
use gpulimit_support::{Running, wait_until};

#[test]
fn old_drivers_are_named() {
    let old = "550.54.14";
    assert_eq!(of_version(old), Some(driver(old)));
    for fine in ["570.86.10", "580.65", "1000.1", "unknown"] {
        assert_eq!(of_version(fine), None, "{fine}");
    }
}

#[test]
fn a_process_that_does_not_run_is_named() {
    let status = |state: &str, pending: &str, shared: &str| {
        let text = format!(
            "Name:\tState: T\nUmask:\t0022\nState:\t{state}\nTgid:\t7\nTracerPid:\t0\n\
             SigPnd:\t{pending}\nShdPnd:\t{shared}\n"
        );
        of_status(&text)
    };
    let none = "0000000000000000";
    for running in ["R (running)", "S (sleeping)", "D (disk sleep)", "I (idle)"] {
        assert_eq!(status(running, none, none), None);
    }
    assert_eq!(status("T (stopped)", none, none), Some(STOPPED));
    assert_eq!(status("Z (zombie)", none, none), Some(ENDED));
    assert_eq!(status("X (dead)", none, none), Some(ENDED));
    let kill = "0000000000000100";
    assert_eq!(status("T (stopped)", kill, none), Some(ENDED));
    assert_eq!(status("S (sleeping)", none, kill), Some(ENDED));
    assert_eq!(status("S (sleeping)", none, "0000000000004000"), None);
}

#[test]
fn pid_namespaces_are_counted() {
    assert_eq!(namespaces("Pid:\t9\nNSpid:\t9\n"), 1);
    assert_eq!(namespaces("Pid:\t9\nNSpid:\t9\t1\n"), 2);
    assert_eq!(namespaces("Pid:\t9\n"), 1, "before Linux 4.1");
}

/// The memory map of a program under a profiler; each library has several mappings.
const MAPS: &str = "\
    55d0c0a00000-55d0c0a01000 r--p 00000000 08:01 9 /usr/bin/python3.12\n\
    7f0000000000-7f0000001000 r-xp 00000000 08:01 1 /opt/nsight/libToolsInjection64.so\n\
    7f0000001000-7f0000002000 r--p 00000000 08:01 1 /opt/nsight/libToolsInjection64.so\n\
    7f0000003000-7f0000004000 r--p 00000000 08:01 2 /usr/lib/libcupti.so.12\n\
    7f0000005000-7f0000006000 rw-p 00000000 00:00 0\n\
    7f0000007000-7f0000008000 r--p 00000000 08:01 3 /opt/a b/libsanitizer-collection.so (deleted)\n\
    7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0 [stack]\n";

#[test]
fn profilers_are_seen_and_libcupti_alone_is_none() {
    let variables: [&[u8]; 3] = [
        b"CUDA_INJECTION64_PATH=/opt/x.so",
        b"NVTX_INJECTION64_PATH=",
        b"MY_CUDA_INJECTION64_PATH=x",
    ];
    let found = tools(&variables, MAPS);
    let expected = [
        "CUDA_INJECTION64_PATH",
        "libToolsInjection",
        "libsanitizer-collection",
    ];
    assert_eq!(found, expected);
    let torch = "7f00-7f01 r-xp 0 08:01 1 /site-packages/nvidia/cuda_cupti/lib/libcupti.so.12\n";
    assert_eq!(tools(&[b"PATH=/usr/bin"], torch), [""; 0]);
}

#[test]
fn a_32_bit_program_has_short_addresses() {
    assert!(!is_32_bit(MAPS));
    let short = "08048000-0804c000 r-xp 00000000 08:01 1 /bin/x\n\
                 fffdd000-ffffe000 rw-p 00000000 00:00 0 [stack]\n";
    assert!(is_32_bit(short));
    assert!(!is_32_bit(""), "a process without a memory map");
}

#[test]
fn answers_are_read_back() {
    let own = std::process::id();
    let read = |answer: &str| of_answer(answer, own);
    assert_eq!(read(&answer(own)), []);
    assert_eq!(read(NOT_READ), [UNREADABLE]);
    assert_eq!(read(DENIED), [Obstacle::denied(Denied::of(Some(own)))]);
    let [tool, short] = &read("libaccinj64 32-bit")[..] else {
        panic!("two obstacles");
    };
    assert!(tool.text.contains("(libaccinj64)"), "{tool}");
    assert_eq!(short, &BITS_32);
}

#[test]
fn obstacles_of_living_processes() {
    assert_eq!(of_process(std::process::id(), None, ""), []);
    assert_eq!(of_process(1 << 23, None, ""), [ENDED]);
    let child = Running::start(std::process::Command::new("sleep").arg("600"));
    let pid = child.id();
    assert_eq!(of_process(pid, None, ""), []);
    let signal = |name: &str| {
        let sent = std::process::Command::new("kill")
            .args(["-s", name, &pid.to_string()])
            .status();
        assert!(sent.expect("sent").success());
    };
    signal("STOP");
    // The child stops a moment after the signal.
    wait_until("the child stops", || !of_process(pid, None, "").is_empty());
    assert_eq!(of_process(pid, None, ""), [STOPPED]);
    signal("KILL");
    wait_until("the child ends", || of_process(pid, None, "") == [ENDED]);
}

#[test]
fn a_process_without_its_first_thread_is_looked_at() {
    let process = Running::without_first_thread();
    assert_eq!(answer(process.id()), "");
}
