//! `cuGetExportTable` and its private tables. NVIDIA's libcudart does not start without these
//! tables.
//!
//! Each table begins with its size in bytes, except the table for context-local storage. The
//! integrity answer covers the addresses of two tables. The meaning of the entries is published by
//! the ZLUDA project.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use gpulimit_sim::abi::{In, Out, Text, code};
use gpulimit_sim::context::{Context, Destructor, current};
use gpulimit_sim::driver::driver;
use gpulimit_sim::{Outcome, Status, device as gpu};

use crate::integrity::{Gpu, Question, answer};
use crate::symbols::Address;
use crate::{context, device, module};

type Table<const N: usize> = [Address; N];

/// Returns the first entry of an export table: the table's size in bytes.
const fn size(entries: usize) -> Address {
    Address(std::ptr::without_provenance(entries * 8))
}

const NOTHING: Address = Address(nothing as *const ());
const LATER: Address = Address(unsupported as *const ());

static CUDART: Table<13> = [
    size(13),
    Address(load_fatbin as *const ()),
    Address(primary as *const ()),
    LATER,
    LATER,
    LATER,
    Address(load_fatbin_1 as *const ()),
    NOTHING,
    Address(load_fatbin_2 as *const ()),
    LATER,
    LATER,
    LATER,
    NOTHING,
];

static TOOLS_TLS: Table<4> = [size(4), NOTHING, NOTHING, NOTHING];

static TOOLS_CALLBACKS: Table<7> = [
    size(7),
    NOTHING,
    Address(callbacks_1 as *const ()),
    NOTHING,
    NOTHING,
    NOTHING,
    Address(callbacks_2 as *const ()),
];

static STORAGE: Table<4> = [
    Address(storage_put as *const ()),
    Address(storage_delete as *const ()),
    Address(storage_get as *const ()),
    Address(std::ptr::null()),
];

static CREATE_BYPASS: Table<2> = [size(2), Address(create as *const ())];

static INTEGRITY: Table<3> = [size(3), Address(integrity as *const ()), NOTHING];

static CHECKS: Table<4> = [size(4), NOTHING, Address(check as *const ()), NOTHING];

/// Returns the export table with this UUID.
pub fn get(table: Out<usize>, id: In<[u8; 16]>) -> Outcome<()> {
    let start = match u128::from_be_bytes(id.get()?) {
        0x6bd5fb6c_5bf4_e74a_8987_d93912fd9df9 => CUDART.as_ptr(),
        0x42d85a81_23f6_cb47_8298_f6e78a3aecdc => TOOLS_TLS.as_ptr(),
        0xa094798c_2e74_2e74_93f2_0800200c0a66 => TOOLS_CALLBACKS.as_ptr(),
        0xc693336e_1121_df11_a8c3_68f355d89593 => STORAGE.as_ptr(),
        0x0ca50b8c_1004_929a_89a7_d0df10e77286 => CREATE_BYPASS.as_ptr(),
        0xd4082055_bde6_704b_8d34_ba123c66e1f2 => INTEGRITY.as_ptr(),
        0x263e8860_7cd2_6143_92f6_bbd5006dfa7e => CHECKS.as_ptr(),
        _ => {
            table.put_if(0);
            return Err(Status::NOT_FOUND);
        }
    };
    table.put(start as usize)
}

extern "C" fn nothing() -> i32 {
    0
}

extern "C" fn unsupported() -> i32 {
    Status::NOT_SUPPORTED.0
}

extern "C" fn load_fatbin(out: Out<usize>, image: Text) -> i32 {
    code(module::load(out, image))
}

extern "C" fn load_fatbin_1(out: Out<usize>, image: Text, _: usize, _: usize, _: u32) -> i32 {
    code(module::load(out, image))
}

extern "C" fn load_fatbin_2(image: Text, out: Out<usize>, _: usize, _: usize, _: u32) -> i32 {
    code(module::load(out, image))
}

/// Returns the handle of a GPU's primary context, even if that context is not active.
extern "C" fn primary(out: Out<usize>, ordinal: i32) -> i32 {
    code(primary_handle(ordinal).and_then(|handle| out.put(handle)))
}

fn primary_handle(ordinal: i32) -> Outcome<usize> {
    Ok(driver()?.gpu(device::index(ordinal)?).primary.handle())
}

extern "C" fn create(out: Out<usize>, flags: u32, ordinal: i32) -> i32 {
    code(context::create(out, flags, ordinal))
}

/// Flags with which a debugging tool asks the driver for callbacks. The simulated driver ignores
/// these flags.
static CALLBACKS_1: [AtomicU32; 1024] = [const { AtomicU32::new(0) }; 1024];
static CALLBACKS_2: [AtomicU32; 14] = [const { AtomicU32::new(0) }; 14];

extern "C" fn callbacks_1(out: Out<usize>, count: Out<usize>) {
    out.put_if(CALLBACKS_1.as_ptr() as usize);
    count.put_if(1024);
}

extern "C" fn callbacks_2(out: Out<usize>, count: Out<usize>) {
    out.put_if(CALLBACKS_2.as_ptr() as usize);
    count.put_if(14);
}

/// Returns the context that a handle stands for. The handle NULL stands for the current context.
fn owner(handle: usize) -> Outcome<&'static Context> {
    driver()?;
    if handle == 0 {
        current()
    } else {
        Context::from_handle(handle)
    }
}

extern "C" fn storage_put(
    handle: usize,
    key: usize,
    value: usize,
    destructor: Option<Destructor>,
) -> i32 {
    code(owner(handle).map(|context| {
        context.storage().insert(key, (value, destructor));
    }))
}

extern "C" fn storage_delete(handle: usize, key: usize) -> i32 {
    code(owner(handle).map(|context| {
        context.storage().remove(&key);
    }))
}

extern "C" fn storage_get(out: Out<usize>, handle: usize, key: usize) -> i32 {
    let stored = owner(handle).and_then(|context| {
        let storage = context.storage();
        let stored = storage.get(&key).ok_or(Status::INVALID_HANDLE)?;
        Ok(stored.0)
    });
    code(stored.and_then(|value| out.put(value)))
}

extern "C" fn check(_handle: usize, first: Out<u32>, _second: Out<usize>) -> i32 {
    first.put_if(0);
    0
}

extern "C" fn integrity(version: u32, seconds: u64, out: Out<[u64; 2]>) -> i32 {
    code(integrity_answer(version, seconds).and_then(|answer| out.put(answer)))
}

fn integrity_answer(version: u32, seconds: u64) -> Outcome<[u64; 2]> {
    let machine = driver()?.machine;
    let gpus: Vec<Gpu> = gpu::visible(machine)
        .iter()
        .map(|index| {
            let pci = gpu::pci(gpu::gpu_of(machine, *index));
            Gpu {
                uuid: gpu::uuid(gpu::gpu_of(machine, *index)),
                place: [pci.domain, pci.bus, pci.device],
            }
        })
        .collect();
    let question = Question {
        driver_version: machine.knobs.driver_version.load(Relaxed),
        version,
        process: std::process::id(),
        // SAFETY: pthread_self cannot fail and has no preconditions.
        thread: unsafe { libc::pthread_self() } as u32,
        cudart_table: CUDART.as_ptr() as usize,
        integrity_table: INTEGRITY.as_ptr() as usize,
        function: INTEGRITY[1].0 as usize,
        seconds,
    };
    Ok(answer(&question, &gpus))
}
