//! Latency, failure, and several GPUs.

use std::time::{Duration, Instant};

use crate::rig::{Cuda, Library, Machine, alone, expect_line, role};

#[test]
fn failures_and_latency() {
    let knobs = [
        ("GPULIMIT_SIM_FAIL", "cuMemCreate:2,cuMemAlloc_v2:2@3"),
        ("GPULIMIT_SIM_LATENCY", "cuMemFree_v2:3000000"),
    ];
    alone(&knobs, |cuda| {
        cuda.start();
        let answers: Vec<bool> = (0..5).map(|_| cuda.alloc(1).is_ok()).collect();
        assert_eq!(
            answers,
            [true, true, false, true, true],
            "the third call fails"
        );
        assert_eq!(cuda.call("cuMemCreate", &[0, 0, 0, 0]), 2);
        let start = Instant::now();
        cuda.free(0);
        assert!(start.elapsed() >= Duration::from_millis(3));
    });
}

#[test]
fn knobs_change_while_programs_run() {
    if role().is_some() {
        let cuda = Cuda::load();
        cuda.start();
        assert!(cuda.alloc(1).is_ok());
        println!("ready");
        crate::rig::wait_for_close();
        assert_eq!(cuda.alloc(1), Err(999));
        return;
    }
    let machine = Machine::new(&[]);
    let mut child = machine.spawn("child");
    expect_line(&mut child, "ready");
    machine.knob("fail", "cuMemAlloc_v2:999");
    drop(child.stdin.take());
    assert!(child.wait().expect("gone").success());
}

fn cuda_uuids() -> Vec<[u8; 16]> {
    let cuda = Cuda::load();
    assert_eq!(cuda.call("cuInit", &[0]), 0);
    let count = cuda.get("cuDeviceGetCount", &[]).expect("a count") as usize;
    (0..count)
        .map(|ordinal| {
            let mut uuid = [0u8; 16];
            assert_eq!(
                cuda.call("cuDeviceGetUuid_v2", &[uuid.as_mut_ptr() as usize, ordinal]),
                0
            );
            uuid
        })
        .collect()
}

fn nvml_uuids() -> Vec<[u8; 16]> {
    let nvml = Library::open("libnvidia-ml.so.1").expect("NVML");
    assert_eq!(nvml.call("nvmlInit_v2", &[]), 0);
    (0..3)
        .map(|index| {
            let (mut device, mut text) = (0usize, [0u8; 96]);
            assert_eq!(
                nvml.call(
                    "nvmlDeviceGetHandleByIndex_v2",
                    &[index, &raw mut device as usize]
                ),
                0
            );
            assert_eq!(
                nvml.call(
                    "nvmlDeviceGetUUID",
                    &[device, text.as_mut_ptr() as usize, 96]
                ),
                0
            );
            let text = std::str::from_utf8(&text)
                .expect("text")
                .trim_end_matches('\0');
            let digits: String = text
                .strip_prefix("GPU-")
                .expect("the prefix")
                .replace('-', "");
            u128::from_str_radix(&digits, 16)
                .expect("hex")
                .to_be_bytes()
        })
        .collect()
}

/// Runs the test's other half with these variables on a machine of three GPUs whose orders differ.
fn with_three(variables: &[(&str, &str)], expected: &str) {
    let mut knobs = vec![("GPULIMIT_SIM_GPUS", "3"), ("GPULIMIT_SIM_REVERSED", "1")];
    knobs.extend(variables);
    Machine::new(&knobs).run(expected);
}

#[test]
fn order_and_visibility() {
    if let Some(expected) = role() {
        let nvml = nvml_uuids();
        let cuda: String = cuda_uuids()
            .iter()
            .map(|uuid| {
                nvml.iter()
                    .position(|other| other == uuid)
                    .expect("the same GPUs")
                    .to_string()
            })
            .collect();
        assert_eq!(cuda, expected);
        return;
    }
    with_three(&[], "210");
    with_three(&[("CUDA_DEVICE_ORDER", "PCI_BUS_ID")], "012");
    with_three(&[("CUDA_VISIBLE_DEVICES", "0")], "2");
    with_three(
        &[
            ("CUDA_VISIBLE_DEVICES", "1,0"),
            ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
        ],
        "10",
    );
    with_three(
        &[
            ("CUDA_VISIBLE_DEVICES", "2,7,0"),
            ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
        ],
        "2",
    );
    let second = gpulimit_sim::device::uuid_text(1);
    with_three(&[("CUDA_VISIBLE_DEVICES", &second)], "1");
}

#[test]
fn no_visible_gpu() {
    alone(&[("CUDA_VISIBLE_DEVICES", "-1")], |cuda| {
        assert_eq!(cuda.call("cuInit", &[0]), 100)
    });
}
