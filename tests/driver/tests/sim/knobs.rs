//! Tests of the knobs for latency and failure, and of simulated machines with several GPUs.

use std::time::{Duration, Instant};

use crate::rig::{Cuda, Library, Machine, alone, expect_line, role};

#[test]
fn knobs_make_calls_fail_and_wait() {
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
            "the knob makes the third call fail"
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

/// Runs the calling test with three GPUs, which CUDA and NVML order differently. `expected` is the
/// order to find.
fn with_three(variables: &[(&str, &str)], expected: &str) {
    let mut knobs = vec![("GPULIMIT_SIM_GPUS", "3"), ("GPULIMIT_SIM_REVERSED", "1")];
    knobs.extend(variables);
    Machine::new(&knobs).run(expected);
}

#[test]
fn device_order_and_visibility() {
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
fn init_fails_without_a_visible_gpu() {
    alone(&[("CUDA_VISIBLE_DEVICES", "-1")], |cuda| {
        assert_eq!(cuda.call("cuInit", &[0]), 100)
    });
}

/// Returns the number of devices that this process sees, and the first device's two UUIDs: the
/// GPU's and its own.
fn seen(cuda: &Cuda) -> (u64, [u8; 16], [u8; 16]) {
    assert_eq!(cuda.call("cuInit", &[0]), 0);
    let uuid = |name: &str| {
        let mut uuid = [0u8; 16];
        assert_eq!(cuda.call(name, &[uuid.as_mut_ptr() as usize, 0]), 0);
        uuid
    };
    let count = cuda.get("cuDeviceGetCount", &[]).expect("a count");
    (count, uuid("cuDeviceGetUuid"), uuid("cuDeviceGetUuid_v2"))
}

#[test]
fn mig_instances_match_nvml() {
    if let Some(expected) = role() {
        let cuda = Cuda::load();
        let (count, whole, own) = seen(&cuda);
        assert_eq!(count, 1, "a process sees only one MIG instance");
        let nvml = Library::open("libnvidia-ml.so.1").expect("NVML");
        assert_eq!(nvml.call("nvmlInit_v2", &[]), 0);
        let written = |device: usize| {
            let mut text = [0u8; 96];
            let place = text.as_mut_ptr() as usize;
            assert_eq!(nvml.call("nvmlDeviceGetUUID", &[device, place, 96]), 0);
            let text = std::str::from_utf8(&text).expect("text");
            text.trim_end_matches('\0').to_owned()
        };
        let bytes = |uuid: &[u8; 16]| -> String {
            let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
            hex
        };
        let mut found = String::new();
        for gpu in 0..2usize {
            let (mut device, mut mode) = (0usize, [0u32; 2]);
            let place = &raw mut device as usize;
            nvml.call("nvmlDeviceGetHandleByIndex_v2", &[gpu, place]);
            let places = [&raw mut mode[0] as usize, &raw mut mode[1] as usize];
            assert_eq!(
                nvml.call("nvmlDeviceGetMigMode", &[device, places[0], places[1]]),
                0
            );
            assert_eq!(mode, [1, 1]);
            for index in 0..3usize {
                let (mut instance, mut parent, mut id) = (0usize, 0usize, 0u32);
                let place = &raw mut instance as usize;
                let status = nvml.call(
                    "nvmlDeviceGetMigDeviceHandleByIndex",
                    &[device, index, place],
                );
                assert_eq!(status == 0, index < 2);
                if status != 0 {
                    continue;
                }
                let place = &raw mut parent as usize;
                nvml.call(
                    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
                    &[instance, place],
                );
                assert_eq!(parent, device);
                nvml.call(
                    "nvmlDeviceGetGpuInstanceId",
                    &[instance, &raw mut id as usize],
                );
                assert_eq!(id as usize, index + 1);
                let name = written(instance);
                if name.replace('-', "") == format!("MIG{}", bytes(&own)) {
                    assert_eq!(
                        written(device).replace('-', ""),
                        format!("GPU{}", bytes(&whole))
                    );
                    found = format!("{gpu}.{index}");
                }
                let mut memory = [0u64; 3];
                let place = memory.as_mut_ptr() as usize;
                assert_eq!(nvml.call("nvmlDeviceGetMemoryInfo", &[instance, place]), 0);
                let total = cuda.get("cuDeviceTotalMem_v2", &[0]).expect("a size");
                assert_eq!(memory[0], total + (240 << 20));
            }
        }
        assert_eq!(found, expected);
        return;
    }
    let machine = |more: &[(&str, &str)], expected: &str| {
        let mut knobs = vec![("GPULIMIT_SIM_GPUS", "2"), ("GPULIMIT_SIM_MIG", "2")];
        knobs.extend(more);
        Machine::new(&knobs).run(expected);
    };
    machine(&[], "0.0");
    machine(&[("GPULIMIT_SIM_REVERSED", "1")], "1.0");
    machine(&[("CUDA_VISIBLE_DEVICES", "3,0")], "1.1");
    let second = gpulimit_sim::device::uuid_text(1);
    machine(&[("CUDA_VISIBLE_DEVICES", &second)], "1.0");
    let usage = Machine::new(&[("GPULIMIT_SIM_GPUS", "2"), ("GPULIMIT_SIM_MIG", "2")]).usage();
    let names: Vec<_> = usage
        .match_indices("MIG-")
        .map(|(at, _)| &usage[at..at + 40])
        .collect();
    assert_eq!(names.len(), 4, "{usage}");
    machine(&[("CUDA_VISIBLE_DEVICES", names[1])], "0.1");
    machine(&[("CUDA_VISIBLE_DEVICES", &names[2][..14])], "1.0");
}

#[test]
fn nvml_calls_its_own_exports() {
    const OWN: (&str, &str) = ("GPULIMIT_SIM_OWN_EXPORTS", "1");
    // Each function fails with a code of its own, which shows the function that NVML has called.
    let fail = "nvmlDeviceGetMemoryInfo_v2:13,nvmlDeviceGetMPSComputeRunningProcesses_v3:14";
    alone(&[OWN, ("GPULIMIT_SIM_FAIL", fail)], |cuda| {
        cuda.start();
        let flags = libc::RTLD_NOW | libc::RTLD_GLOBAL;
        let nvml = Library::open_with("libnvidia-ml.so.1", flags).expect("NVML");
        assert_eq!(nvml.call("nvmlInit_v2", &[]), 0);
        let (mut device, mut memory) = (0usize, [0u64; 3]);
        let place = &raw mut device as usize;
        nvml.call("nvmlDeviceGetHandleByIndex_v2", &[0, place]);
        let place = memory.as_mut_ptr() as usize;
        assert_eq!(nvml.call("nvmlDeviceGetMemoryInfo", &[device, place]), 13);
        for (kind, status) in [("MPSCompute", 14), ("Compute", 0)] {
            let (mut count, mut infos) = (8u32, [0u64; 24]);
            let arguments = [device, &raw mut count as usize, infos.as_mut_ptr() as usize];
            let name = format!("nvmlDeviceGet{kind}RunningProcesses_v2");
            assert_eq!(nvml.call(&name, &arguments), status, "{name}");
            if status == 0 {
                assert_eq!(
                    (count, infos[0] as u32, infos[1]),
                    (1, std::process::id(), crate::rig::CONTEXT)
                );
            }
        }
    });
}
