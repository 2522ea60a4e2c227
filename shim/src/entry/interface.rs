//! The C interface: the functions that programs find by `include/gpulimit.h`.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::time::{Duration, Instant};

use gpulimit_base::device::DeviceId;
use gpulimit_group::Demanded;
use gpulimit_ledger::Category;

use crate::abi::{CUDA_ERROR_UNKNOWN, Status};
use crate::account::Process;
use crate::account::device::Device;
use crate::account::limited::limited;
use crate::account::registration::Look;
use crate::driver::{devices, figures as nvml};
use crate::handler::{Call, view};
use crate::{hook, membership};

/// The version of the interface, `GPULIMIT_VERSION`.
const VERSION: u32 = 1;

/// What the functions return: `GPULIMIT_OK` and so on.
const OK: c_int = 0;
const NO_GROUP: c_int = 2;
const NO_DEVICE: c_int = 3;
const INVALID: c_int = 4;
const TIMEOUT: c_int = 5;
const INTERRUPTED: c_int = 6;
const NOT_REGISTERED: c_int = 7;
const FAILED: c_int = 8;

/// The timeout of a wait without an end.
const WITHOUT_END: c_int = -1;

/// `GPULIMIT_CAN_WAIT`: the process can be asked for memory.
const CAN_WAIT: u64 = 1;

/// A structure of the interface. Its first member is its size in bytes: the program sets the size
/// that it knows, and the library writes no more.
trait Structure: Copy {
    fn set_size(&mut self, bytes: u64);
}

/// `struct gpulimit_memory`: figures of one device, in bytes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Memory {
    size: u64,
    limit: u64,
    usage: u64,
    available: u64,
    total: u64,
    own: u64,
    allocations: u64,
    pools: u64,
    managed: u64,
    driver: u64,
    idle: u64,
    peak: u64,
    refusals: u64,
}

impl Structure for Memory {
    fn set_size(&mut self, bytes: u64) {
        self.size = bytes;
    }
}

/// `struct gpulimit_pressure`: what is asked of this process.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Pressure {
    size: u64,
    bytes: u64,
    reason: i32,
    ordinal: i32,
    uuid: [u8; 64],
    group: [u8; 256],
}

impl Structure for Pressure {
    fn set_size(&mut self, bytes: u64) {
        self.size = bytes;
    }
}

/// Writes `value` to the structure of the program, as far as it has room.
///
/// # Safety
/// `place` is null or has as many bytes as its first word says.
unsafe fn give<T: Structure>(place: *mut T, mut value: T) -> c_int {
    const WORD: usize = size_of::<u64>();
    if place.is_null() {
        return INVALID;
    }
    // SAFETY: the caller promises at least the first word.
    let room = unsafe { place.cast::<u64>().read_unaligned() };
    let bytes = usize::try_from(room)
        .unwrap_or(usize::MAX)
        .min(size_of::<T>());
    if bytes < WORD {
        return INVALID;
    }
    value.set_size(bytes as u64);
    // SAFETY: the caller promises room for these bytes, and `value` has at least as many.
    unsafe {
        std::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), place.cast::<u8>(), bytes);
    }
    OK
}

/// Copies a text, cut to `size` bytes with the NUL at its end.
///
/// # Safety
/// `place` has room for `size` bytes, and `size` is not 0.
unsafe fn copy(text: &str, place: *mut c_char, size: usize) {
    let bytes = text.len().min(size - 1);
    // SAFETY: the caller promises room for `bytes` and the NUL.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), place.cast::<u8>(), bytes);
        place.add(bytes).write(0);
    }
}

/// Returns the code for a process that has failed to join its group with `status`.
fn not_joined(status: Status) -> c_int {
    match status {
        CUDA_ERROR_UNKNOWN => NO_GROUP,
        _ => FAILED,
    }
}

/// Returns the code for a process that has failed to join its group, or would fail at its first use
/// of CUDA. `None` if no reason for that is known.
fn failure_code(process: &'static Process) -> Option<c_int> {
    match process.joined() {
        Some(joined) => joined.err().map(not_joined),
        None => match membership::prospect() {
            Ok(Some(_)) => None,
            Ok(None) => Some(NO_GROUP),
            Err(_) => Some(FAILED),
        },
    }
}

/// `uint32_t gpulimit_version(void)`: returns the version of the interface.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn gpulimit_version() -> u32 {
    VERSION
}

/// `uint64_t gpulimit_capabilities(void)`: returns what the library can do for this process.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn gpulimit_capabilities() -> u64 {
    let can_wait = hook::own(|| limited() && failure_code(Process::current()).is_none());
    match can_wait {
        Some(true) => CAN_WAIT,
        _ => 0,
    }
}

/// `int gpulimit_group(char *name, size_t size)`: writes the name of the process's group.
///
/// # Safety
/// `name` is null or has room for `size` bytes.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn gpulimit_group(name: *mut c_char, size: usize) -> c_int {
    if name.is_null() || size == 0 {
        return INVALID;
    }
    let written = hook::own(|| {
        if !limited() {
            return NO_GROUP;
        }
        // The question does not join: a program may ask without using CUDA.
        let group = match Process::current().joined() {
            Some(Ok(member)) => member.group().to_owned(),
            Some(Err(status)) => return not_joined(status),
            None => match membership::prospect() {
                Ok(Some(group)) => group,
                Ok(None) => return NO_GROUP,
                Err(_) => return FAILED,
            },
        };
        // SAFETY: the program promises the room, and `size` is not 0.
        unsafe { copy(&group, name, size) };
        OK
    });
    written.unwrap_or(FAILED)
}

/// `int gpulimit_error(char *text, size_t size)`: writes why the process could not join its group,
/// an empty text if it could.
///
/// # Safety
/// `text` is null or has room for `size` bytes.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn gpulimit_error(text: *mut c_char, size: usize) -> c_int {
    if text.is_null() || size == 0 {
        return INVALID;
    }
    let written = hook::own(|| {
        let process = Process::current();
        let reason = match process.joined() {
            _ if !limited() => None,
            // The process joins at its first use of CUDA, and would fail then.
            None => membership::prospect().err().map(|error| error.to_string()),
            Some(_) => process.failure().map(str::to_owned),
        };
        // SAFETY: the program promises the room, and `size` is not 0.
        unsafe { copy(&reason.unwrap_or_default(), text, size) };
        OK
    });
    written.unwrap_or(FAILED)
}

/// `int gpulimit_memory(const char *device, struct gpulimit_memory *memory)`: writes the figures of
/// a device.
///
/// # Safety
/// `device` is null or a text, and `memory` is null or as large as its first member says.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn gpulimit_memory(device: *const c_char, memory: *mut Memory) -> c_int {
    if memory.is_null() {
        return INVALID;
    }
    let write = |figures| {
        // SAFETY: the program promises that `memory` is as large as it says.
        unsafe { give(memory, figures) }
    };
    let early = |name: &str| before_cuda(name).map_or(NO_DEVICE, write);
    // SAFETY: the program promises null or a text.
    unsafe { on(device, |device| write(figures(device)), early) }
}

/// Runs `function` for the device that the program has named, or `early` before `cuInit`.
///
/// # Safety
/// `device` is null or a text.
unsafe fn on(
    device: *const c_char,
    function: impl FnOnce(&'static Device) -> c_int,
    early: impl FnOnce(&str) -> c_int,
) -> c_int {
    let done = hook::own(|| {
        if !limited() {
            return NO_GROUP;
        }
        // SAFETY: the caller promises null or a text.
        let named = (!device.is_null()).then(|| unsafe { CStr::from_ptr(device) });
        let Ok(named) = named.unwrap_or_default().to_str() else {
            return INVALID;
        };
        match find(named) {
            Ok(device) => function(device),
            Err(NO_DEVICE) if Process::current().device_count() == 0 => early(named),
            Err(code) => code,
        }
    });
    done.unwrap_or(FAILED)
}

/// `int gpulimit_peak_begin(const char *device, uint64_t *peak)`: begins to measure the process's
/// peak on a device.
///
/// # Safety
/// `device` is null or a text, and `peak` is null or has room for a number.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn gpulimit_peak_begin(device: *const c_char, peak: *mut u64) -> c_int {
    if peak.is_null() {
        return INVALID;
    }
    let begin = |device| {
        // SAFETY: the program promises the room.
        unsafe { peak.write_unaligned(Process::current().begin_peak(device)) };
        OK
    };
    // SAFETY: the program promises null or a text.
    unsafe { on(device, begin, |_| NO_DEVICE) }
}

/// `int gpulimit_peak_read(uint64_t peak, uint64_t *bytes)`: writes the peak so far.
///
/// # Safety
/// `bytes` is null or has room for a number.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn gpulimit_peak_read(peak: u64, bytes: *mut u64) -> c_int {
    // SAFETY: the program promises the room.
    unsafe { peak_bytes(peak, false, bytes) }
}

/// `int gpulimit_peak_end(uint64_t peak, uint64_t *bytes)`: ends a measurement and writes the peak.
///
/// # Safety
/// `bytes` is null or has room for a number.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn gpulimit_peak_end(peak: u64, bytes: *mut u64) -> c_int {
    // SAFETY: the program promises the room.
    unsafe { peak_bytes(peak, true, bytes) }
}

/// Writes the bytes of a measurement.
///
/// # Safety
/// `bytes` is null or has room for a number.
unsafe fn peak_bytes(number: u64, ends: bool, bytes: *mut u64) -> c_int {
    if bytes.is_null() {
        return INVALID;
    }
    let peak = hook::own(|| match limited() {
        true => Process::current().peak(number, ends).ok_or(INVALID),
        false => Err(NO_GROUP),
    });
    match peak {
        Some(Ok(peak)) => {
            // SAFETY: the caller promises the room.
            unsafe { bytes.write_unaligned(peak) };
            OK
        }
        Some(Err(code)) => code,
        None => FAILED,
    }
}

/// `int gpulimit_captures(void)`: returns the number of captures that are under way.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn gpulimit_captures() -> c_int {
    let count = hook::own(|| match limited() {
        true => Process::current().captures.count() as c_int,
        false => 0,
    });
    count.unwrap_or(0)
}

/// `int gpulimit_pressure_register(void)`: from now on the process may be asked for memory.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn gpulimit_pressure_register() -> c_int {
    let registered = hook::own(|| {
        if !limited() {
            return NO_GROUP;
        }
        let process = Process::current();
        if let Some(code) = failure_code(process) {
            return code;
        }
        process.register();
        OK
    });
    registered.unwrap_or(FAILED)
}

/// `int gpulimit_pressure_unregister(void)`: undoes one call of `gpulimit_pressure_register`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn gpulimit_pressure_unregister() -> c_int {
    match hook::own(|| limited() && Process::current().unregister()) {
        Some(true) => OK,
        Some(false) => NOT_REGISTERED,
        None => FAILED,
    }
}

/// `int gpulimit_pressure_wait(int timeout_ms, struct gpulimit_pressure *pressure)`: waits until
/// the process is asked for memory.
///
/// # Safety
/// `pressure` is null or as large as its first member says.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn gpulimit_pressure_wait(
    timeout_ms: c_int,
    pressure: *mut Pressure,
) -> c_int {
    // SAFETY: the program promises the first word.
    if pressure.is_null() || unsafe { pressure.cast::<u64>().read_unaligned() } < 8 {
        return INVALID;
    }
    // A wait of less than nothing is a mistake in the program. Do not wait without an end for it.
    let until = match u64::try_from(timeout_ms) {
        Ok(wait) => Some(Instant::now() + Duration::from_millis(wait)),
        Err(_) if timeout_ms == WITHOUT_END => None,
        Err(_) => return INVALID,
    };
    loop {
        // The sleep is outside of the guard, so that the thread's signal handlers may call CUDA.
        let look = hook::own(|| match limited() {
            true => Process::current().look(),
            false => Look::Unregistered,
        });
        match look {
            // SAFETY: the program promises that `pressure` is as large as it says.
            Some(Look::Told(demanded)) => return unsafe { give(pressure, told(&demanded)) },
            Some(Look::Unregistered) => return NOT_REGISTERED,
            Some(Look::Nothing(pause)) => {
                let left = until.map(|until| until.saturating_duration_since(Instant::now()));
                if left == Some(Duration::ZERO) {
                    return TIMEOUT;
                }
                if !pause.sleep(left.unwrap_or(Duration::MAX)) {
                    return INTERRUPTED;
                }
            }
            None => return FAILED,
        }
    }
}

fn told(demanded: &Demanded<'_>) -> Pressure {
    let mut devices = Process::current().devices();
    let device = devices.find(|device| device.id == demanded.device);
    let mut told = Pressure {
        size: 0,
        bytes: demanded.bytes,
        reason: demanded.reason as i32,
        ordinal: device.map_or(-1, |device| device.ordinal),
        uuid: [0; 64],
        group: [0; 256],
    };
    fill(&mut told.uuid, demanded.device.to_string().as_bytes());
    fill(&mut told.group, demanded.group.as_bytes());
    told
}

/// Copies the end of a text that fits with a NUL.
fn fill(place: &mut [u8], text: &[u8]) {
    let start = (text.len() + 1).saturating_sub(place.len());
    let end = text.get(start..).unwrap_or_default();
    for (to, from) in place.iter_mut().zip(end) {
        *to = *from;
    }
}

/// Finds the device that the program has named.
fn find(name: &str) -> Result<&'static Device, c_int> {
    let process = Process::current();
    let is_number = !name.is_empty() && name.bytes().all(|digit| digit.is_ascii_digit());
    let id: Option<DeviceId> = match name.is_empty() || is_number {
        true => None,
        false => Some(name.parse().map_err(|_| INVALID)?),
    };
    // A process that joins its group before `cuInit` does not see the GPUs that its limits name.
    if process.device_count() == 0 {
        return Err(failure_code(process).unwrap_or(NO_DEVICE));
    }
    if let Some(Err(status)) = process.joined() {
        return Err(not_joined(status));
    }
    let device = match id {
        Some(id) => {
            let mut ordinals = process.ordinals();
            let ordinal = ordinals.find(|ordinal| devices::id(*ordinal) == Some(id));
            process.device(ordinal.ok_or(NO_DEVICE)?)
        }
        None if is_number => process.device(name.parse().map_err(|_| NO_DEVICE)?),
        None => process.current_device().or_else(|_| process.device(0)),
    };
    device.map_err(|_| match process.joined() {
        Some(Err(status)) => not_joined(status),
        _ => NO_DEVICE,
    })
}

/// Returns the figures of a device before CUDA has numbered the GPUs: NVML knows the device by its
/// UUID, and the only GPU of a machine has the ordinal 0.
fn before_cuda(name: &str) -> Option<Memory> {
    let device = match name {
        "" | "0" if std::env::var_os("CUDA_VISIBLE_DEVICES").is_none() => nvml::only()?,
        name => nvml::find(&name.parse().ok()?)?,
    };
    let (process, symbol) = (Process::current(), "gpulimit_memory");
    let call = Call { process, symbol };
    let ([limit, charged, usage, total, _], free) = view::before_cuda(call, device)?;
    Some(Memory {
        limit,
        usage,
        available: limit.saturating_sub(charged).min(free).min(total),
        total,
        ..Memory::default()
    })
}

fn figures(device: &Device) -> Memory {
    let book = &device.book;
    book.clean();
    let (limit, usage) = book.group.limit_and_usage();
    let own = book.group.own_usage();
    let machine = device.machine_free().unwrap_or(u64::MAX);
    let machine = machine.saturating_sub(book.keep_free());
    Memory {
        size: 0,
        limit,
        usage,
        available: book.free().min(machine).min(device.capacity),
        total: device.capacity,
        own: own.in_use(),
        allocations: own.allocations(),
        pools: own.of(Category::Pools),
        managed: own.of(Category::Managed),
        driver: own.of(Category::Driver),
        idle: own.idle,
        peak: own.peak,
        refusals: own.refusals,
    }
}
