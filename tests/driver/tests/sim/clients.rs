//! Tests of the simulated driver with real client libraries: NVIDIA's own libcudart, and cudarc.

use crate::rig::{Library, MIB, Machine, alone, role, used};
use gpulimit_support::{fetch, repository, skip};

/// Runs functions of one version of libcudart. Fetches this libcudart first if it is missing.
fn runtime(version: &str) {
    let path = repository().join(format!(".cache/cudart-{version}/libcudart.so.{version}"));
    if role().is_none() {
        fetch("wheels");
        if !path.exists() {
            return skip(format_args!(
                "scripts/wheels could not fetch libcudart {version}"
            ));
        }
        return Machine::new(&[]).run("client");
    }
    let runtime = Library::open(path.to_str().expect("a path")).expect("libcudart loads");
    assert_eq!(runtime.get("cudaGetDeviceCount", &[]), Ok(1));
    let before = used();
    assert_eq!(before, 0);
    let address = runtime.get("cudaMalloc", &[3 << 20]).expect("cudaMalloc");
    assert_eq!(used(), crate::rig::CONTEXT + 4 * MIB);
    let (sent, mut back) = ([7u8, 8, 9], [0u8; 3]);
    assert_eq!(
        runtime.call(
            "cudaMemcpy",
            &[address as usize, sent.as_ptr() as usize, 3, 1]
        ),
        0
    );
    assert_eq!(
        runtime.call(
            "cudaMemcpy",
            &[back.as_mut_ptr() as usize, address as usize, 3, 2]
        ),
        0
    );
    assert_eq!(back, sent);
    let (mut free, mut total) = (0u64, 0u64);
    assert_eq!(
        runtime.call(
            "cudaMemGetInfo",
            &[&raw mut free as usize, &raw mut total as usize]
        ),
        0
    );
    assert_eq!(total - free, used());
    let properties = if version == "12" {
        "cudaGetDeviceProperties_v2"
    } else {
        "cudaGetDeviceProperties"
    };
    let mut buffer = [0u64; 1024];
    assert_eq!(
        runtime.call(properties, &[buffer.as_mut_ptr() as usize, 0]),
        0
    );
    // The structure cudaDeviceProp begins with name[256], uuid, luid and the mask of the luid. The
    // next field is totalGlobalMem.
    assert_eq!(buffer[36], 85_017_493_504);
    assert_eq!(
        buffer[32].to_be_bytes()[..],
        gpulimit_sim::device::uuid(0)[..8]
            .iter()
            .rev()
            .copied()
            .collect::<Vec<_>>()[..]
    );
    assert_eq!(runtime.call("cudaFree", &[address as usize]), 0);
    let stream = runtime
        .get("cudaStreamCreate", &[])
        .expect("cudaStreamCreate") as usize;
    let address = runtime
        .get("cudaMallocAsync", &[1 << 20, stream])
        .expect("cudaMallocAsync") as usize;
    assert_eq!(used(), crate::rig::CONTEXT + 32 * MIB);
    assert_eq!(runtime.call("cudaFreeAsync", &[address, stream]), 0);
    assert_eq!(runtime.call("cudaStreamSynchronize", &[stream]), 0);
    assert_eq!(runtime.call("cudaStreamDestroy", &[stream]), 0);
    assert_eq!(runtime.call("cudaDeviceSynchronize", &[]), 0);
    assert_eq!(used(), crate::rig::CONTEXT);
    // The `cudaChannelFormatDesc` of four floats.
    let float4 = [32i32, 32, 32, 32, 2];
    let array = runtime
        .get("cudaMallocArray", &[float4.as_ptr() as usize, 1000, 1000])
        .expect("cudaMallocArray") as usize;
    assert_eq!(used(), crate::rig::CONTEXT + 16 * MIB);
    assert_eq!(runtime.call("cudaFreeArray", &[array]), 0);
    assert_eq!(used(), crate::rig::CONTEXT);
    assert!(matches!(runtime.get("cudaMalloc", &[1 << 40]), Err(2)));
    assert_eq!(runtime.call("cudaDeviceReset", &[]), 0);
    assert_eq!(used(), 0);
}

#[test]
fn libcudart_12() {
    runtime("12");
}

#[test]
fn libcudart_13() {
    runtime("13");
}

#[test]
fn cudarc_copies_back_and_forth() {
    alone(&[], |cuda| {
        let context = cudarc::driver::CudaContext::new(0).expect("a context");
        assert_eq!(context.name().expect("a name"), gpulimit_sim::device::NAME);
        let stream = context.default_stream();
        let sent = vec![1.5f32, 2.5, 3.5];
        let buffer = stream.clone_htod(&sent).expect("copied");
        assert_eq!(stream.clone_dtoh(&buffer).expect("copied back"), sent);
        assert!(cuda.beyond() > 0);
        drop(buffer);
        stream.synchronize().expect("synchronised");
        assert_eq!(cuda.beyond(), 0);
    });
}
