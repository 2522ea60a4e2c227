//! CUDA contexts. Each takes hundreds of MiB of GPU memory, and the driver does not tell how much.
//!
//! The first process of a group measures a context, and stores the size in the ledger and in
//! `.context-GPU`. Later contexts are charged this size in advance.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gpulimit_base::obstacle::Obstacle;
use gpulimit_ledger::Category;

use crate::abi::{Context, Device as Ordinal, Out, SUCCESS, Status};
use crate::account::contexts::LARGEST;
use crate::account::device::Device;
use crate::account::driver_part::Prepaid;
use crate::account::locks::{Place, hold};
use crate::account::request::Request;
use crate::account::vmm::Gone;
use crate::account::{BLOCK, round_up};
use crate::driver::Real;
use crate::driver::{cuda, inside};
use crate::handler::Call;
use crate::handler::aside::{Aside, attempt};
use crate::handler::payment::Payment;
use crate::handler::{array, capture};

/// The bytes charged for a context that cannot be measured, beside its local memory: no less than
/// an H100 and an H200 take.
const UNMEASURED: u64 = 256 << 20;
/// The longest time to wait while another member of the group measures the first context.
const PATIENCE: Duration = Duration::from_secs(3);

/// The kind of context that a call makes.
#[derive(Clone, Copy)]
enum Kind {
    /// The device's primary context, which all parts of the program share.
    Primary,
    /// A context that the program makes in addition to the primary context.
    Further,
}

/// Makes a context with the driver's function `real`, which writes the handle to `made`.
///
/// Where its size is unknown, the context is measured after the call. If it does not fit, `undo`
/// destroys it, and the context is made once more with `size`, the measured bytes, charged before:
/// that request cleans up, waits and is refused like all others. `size` is 0 at first.
fn make(
    call: Call,
    kind: Kind,
    ordinal: Ordinal,
    real: &dyn Real,
    made: Out<Context>,
    undo: &dyn Fn(Context),
    size: u64,
) -> Status {
    attempt(real, || {
        let device = call.process.device(ordinal)?;
        let is_made = || matches!(kind, Kind::Primary) && has_primary(device, ordinal);
        if is_made() {
            return Ok(real.call());
        }
        let is_nested = inside::is_nested();
        if !is_nested {
            await_hint(device);
        }
        let entered = match device.contexts.count() {
            0 if !is_nested => Some(device.enter_group(call.symbol, first_estimate(device, size))?),
            _ => None,
        };
        let hint = Cell::new(0);
        let payment = Payment {
            // One thread at a time makes a context. If two threads retain the primary context, only
            // the first makes it.
            lock: &|| hold(Place::Making, || device.contexts.making.lock()),
            pay: &|_, paid| {
                // The stored size of a context may be too small, because every member of the group
                // can write it.
                hint.set(match device.book.group.context_hint().max(size) {
                    0 => 0,
                    known => known.max(device.least_context),
                });
                if is_made() || !device.book.group.member().counts_contexts() {
                    return Ok(());
                }
                let due = estimate(device, hint.get());
                paid.raise(Request::trimming(due))
            },
            is_due: &|_| !is_made(),
        };
        let (alone, paid) = payment.make(call, device, Prepaid::none(device))?;
        if is_made() {
            return Ok(real.call());
        }
        let hint = hint.get();
        let before = device.driver_part.used();
        let asked = hint.max(device.least_context);
        let status = device.note_answer(call.symbol, asked, real.call());
        let context = made.read().filter(|_| status == SUCCESS);
        if let Some(context) = context {
            device.contexts.insert(context);
            call.process.launched.forget_kernels();
        }
        let below = context.and_then(|_| device.below());
        if context.is_some() && hint > 0 && !device.has_measured() && below.is_none() {
            // Charges the known size without a measurement, because starting NVML for the
            // measurement takes 12 ms. A measurement under way might not have seen the context, and
            // would take its charge away.
            paid.settle_assumed(hint);
            return Ok(status);
        }
        let measured = match paid.settle() {
            Ok(measured) => measured,
            Err(paid) => {
                // NVML fails, so the new context cannot be measured yet.
                if context.is_some() {
                    paid.settle_assumed(match hint {
                        0 => device.least_context + UNMEASURED,
                        hint => hint,
                    });
                }
                return Ok(status);
            }
        };
        let is_judged = hint == 0 || size > 0 || below.is_some();
        let Some(context) = context.filter(|_| is_judged) else {
            return Ok(status);
        };
        let grown = measured.used.saturating_sub(before);
        // Another context that ended during the measurement makes the measured size too small, so
        // it is not stored.
        if grown > 0 && !measured.at_least {
            device.book.group.set_context_hint(grown);
        }
        if measured.overrun > 0 || below.is_some() {
            undo(context);
            if matches!(kind, Kind::Primary) {
                device.contexts.released(true);
            }
            device.contexts.remove(context);
            device.measure();
            if size == 0 && grown > 0 {
                drop((alone, entered));
                return Ok(make(call, kind, ordinal, real, made, undo, grown));
            }
            device.refuse(call.symbol, grown, below);
            return Err(Aside::Refused);
        }
        Ok(status)
    })
}

/// Returns whether the device's primary context already exists.
fn has_primary(device: &Device, ordinal: Ordinal) -> bool {
    device.contexts.primary.load(Ordering::Acquire) != 0 && is_primary_active(ordinal)
}

/// Waits while another member of the group measures what a context takes on this device.
fn await_hint(device: &Device) {
    let started = Instant::now();
    // Waits only if room is short and another member of the group could measure a context.
    while device.book.group.context_hint() == 0
        && room(device) < LARGEST
        && device.book.has_others()
        && started.elapsed() <= PATIENCE
    {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the bytes that must be free for the first context of this process. `size` as in
/// [`make`].
fn first_estimate(device: &Device, size: u64) -> u64 {
    match device.book.group.member().counts_contexts() {
        true => estimate(device, device.book.group.context_hint().max(size)),
        false => BLOCK,
    }
}

/// Returns the bytes that the groups have left, and that `keep_free` leaves on the GPU.
fn room(device: &Device) -> u64 {
    let left = device.book.group.free();
    let keep = device.book.keep_free();
    match (keep > 0).then(|| device.machine_free()).flatten() {
        Some(free) => left.min(free.saturating_sub(keep)),
        None => left,
    }
}

/// Returns the bytes to charge before a context is made. `hint` is the measured size of a context,
/// or 0.
fn estimate(device: &Device, hint: u64) -> u64 {
    if hint > 0 {
        return round_up(hint, BLOCK);
    }
    (LARGEST.min(room(device)) / BLOCK * BLOCK)
        .max(device.least_context)
        .max(BLOCK)
}

fn is_primary_active(ordinal: Ordinal) -> bool {
    let (mut flags, mut active) = (0, 0);
    let asked =
        cuda::cuDevicePrimaryCtxGetState(ordinal, Out::of(&mut flags), Out::of(&mut active));
    asked == SUCCESS && active != 0
}

/// Uncharges the memory of an ended context. Returns memory that other processes may use, which
/// stays charged.
fn uncharge_contents(call: Call, device: &Device, context: Context) -> Vec<Gone> {
    let shared = drain(call, context);
    if device.contexts.count() <= 1 {
        device.graphs.clear(&device.book);
    } else {
        device.graphs.refresh(&device.book);
    }
    shared
}

/// Does the work of [`uncharge_contents`] for everything except the memory of graphs.
fn drain(call: Call, context: Context) -> Vec<Gone> {
    let freed = |ordinal: Ordinal, category: Category, bytes: u64| {
        if let Ok(device) = call.process.device(ordinal) {
            device.book.remove(category, bytes);
            device.book.uncharge(bytes);
        }
    };
    let mut shared = Vec::new();
    let (mut exported, mut opened, mut managed) = (0u64, 0u64, 0u64);
    let mut part = |device, bytes, size| {
        shared.push(Gone {
            device,
            bytes,
            size,
            shared: true,
            ..Gone::default()
        });
        if let Ok(device) = call.process.device(device) {
            device.book.remove(Category::Linear, bytes);
        }
    };
    call.process
        .blocks
        .drain(context, |ordinal, blocks, exports| {
            let bytes = blocks * BLOCK;
            exported += u64::from(exports);
            match exports {
                0 => freed(ordinal, Category::Linear, bytes),
                _ => part(ordinal, bytes, bytes),
            }
        });
    for opening in call.process.openings.drain(context) {
        part(opening.device, opening.bytes, opening.size);
        opened += u64::from(opening.count);
        if let Ok(device) = call.process.device(opening.device) {
            device.closed();
        }
    }
    call.process.managed.drain(context, |ordinal, bytes| {
        managed += 1;
        freed(ordinal, Category::Managed, bytes)
    });
    for (obstacle, count) in [
        (Obstacle::SharedMemory, exported),
        (Obstacle::OpenedMemory, opened),
        (Obstacle::ManagedMemory, managed),
    ] {
        call.process.end_obstacle(obstacle, count);
    }
    call.process.libraries.forget_context(context);
    call.process.variables.forget_context(context);
    array::drain(call, context, freed);
    call.process.refresh_pools();
    call.process.execs.drain(context);
    shared
}

/// Forgets `context`, which has ended on `device`. `shared` is memory of the context that other
/// processes may still use.
fn forget_context(call: Call, device: &'static Device, context: Context, shared: Vec<Gone>) {
    call.process.forget_launches(context);
    forget_handles(call, context);
    device
        .driver_part
        .unreserve(&device.book, device.kernels.forget(context));
    device.contexts.remove(context);
    if device.contexts.count() == 0 {
        device.release_spares();
    }
    let Device { book, contexts, .. } = device;
    device.driver_part.forget_assumed(book, contexts);
    device.measure();
    part_with(call, shared);
}

/// Hands the memory `shared` to [`Device::part_with`]: this process has freed it, but other
/// processes may still use it.
fn part_with(call: Call, shared: Vec<Gone>) {
    for left in shared {
        if let Ok(device) = call.process.device(left.device) {
            device.part_with(left.bytes, left.size, None);
        }
    }
}

/// Forgets the handles that belonged to `context` or to the green contexts in it.
fn forget_handles(call: Call, context: Context) {
    let greens = call.process.greens.forget(context);
    for gone in greens.into_iter().chain([context]) {
        call.process.handles.forget_context(gone);
        capture::forget_context(call, gone);
    }
}

/// `cuDevicePrimaryCtxRetain`: The first retain makes the primary context. Charges the known size
/// before that call, and measures afterwards.
pub fn retain_primary(
    call: Call,
    real: &dyn Real,
    context: Out<Context>,
    ordinal: Ordinal,
) -> Status {
    let retain = || {
        let status = real.call();
        if let (SUCCESS, Some(handle), Ok(device)) =
            (status, context.read(), call.process.device(ordinal))
        {
            device.contexts.primary.store(handle, Ordering::Release);
            device.contexts.retained();
        }
        status
    };
    let undo = |_| {
        cuda::cuDevicePrimaryCtxRelease_v2(ordinal);
    };
    make(call, Kind::Primary, ordinal, &retain, context, &undo, 0)
}

/// `cuDevicePrimaryCtxRelease`, `cuDevicePrimaryCtxReset` and their `_v2`: If the call ends the
/// primary context, uncharges all its memory.
pub fn release_primary(call: Call, real: &dyn Real, ordinal: Ordinal) -> Status {
    let was = is_primary_active(ordinal);
    let Ok(device) = call.process.device(ordinal) else {
        return real.call();
    };
    if device.contexts.is_last_release() || call.symbol.starts_with("cuDevicePrimaryCtxReset") {
        // The driver can reuse the freed handles for new code, whose first launch must be charged.
        let context = device.contexts.primary.load(Ordering::Acquire);
        call.process.forget_launches(context);
    }
    let mut ended = None;
    let status = device.tear_down(
        || real.call(),
        |status| {
            let has_ended = was && !is_primary_active(ordinal);
            if status == SUCCESS {
                device.contexts.released(has_ended);
            }
            if has_ended {
                let context = device.contexts.primary.load(Ordering::Acquire);
                ended = Some((context, uncharge_contents(call, device, context)));
            }
        },
    );
    if let Some((context, shared)) = ended {
        forget_context(call, device, context, shared);
    }
    status
}

/// `cuCtxCreate`, `cuGLCtxCreate`, `cuVDPAUCtxCreate` and later versions: Charges the known size
/// before the call, and measures afterwards. Destroys a context that does not fit.
pub fn create(call: Call, real: &dyn Real, context: Out<Context>, ordinal: Ordinal) -> Status {
    let undo = |context| {
        cuda::cuCtxDestroy_v2(context);
    };
    make(call, Kind::Further, ordinal, real, context, &undo, 0)
}

/// `cuCtxDestroy`, `cuCtxDestroy_v2`, `cuCtxDetach`: Uncharges the context and all memory in it
/// after the call.
pub fn destroy(call: Call, real: &dyn Real, context: Context) -> Status {
    let Some(device) = call.process.context_device(context) else {
        return destroy_unknown(call, real, context);
    };
    // The driver can reuse the freed handles for new code, whose first launch must be charged.
    call.process.forget_launches(context);
    let mut shared = Vec::new();
    let status = device.tear_down(
        || real.call(),
        |status| {
            if status == SUCCESS {
                shared = uncharge_contents(call, device, context);
            }
        },
    );
    if status == SUCCESS {
        forget_context(call, device, context, shared);
    }
    status
}

/// Destroys a context that was made without a hook, on any device. Uncharges its memory afterwards.
#[cold]
fn destroy_unknown(call: Call, real: &dyn Real, context: Context) -> Status {
    let devices: Vec<&'static Device> = call.process.devices().collect();
    let mut shared = Vec::new();
    let status = tear_down_all(&devices, real, &mut |status| {
        if status == SUCCESS {
            shared = drain(call, context);
            devices
                .iter()
                .for_each(|device| device.graphs.refresh(&device.book));
        }
    });
    if status == SUCCESS {
        call.process.forget_launches(context);
        forget_handles(call, context);
        for device in devices {
            device
                .driver_part
                .unreserve(&device.book, device.kernels.forget(context));
            device.measure();
        }
        part_with(call, shared);
    }
    status
}

/// Does the work of [`Device::tear_down`] for a context that may be on any of `devices`.
fn tear_down_all(
    devices: &[&'static Device],
    real: &dyn Real,
    after: &mut dyn FnMut(Status),
) -> Status {
    match devices.split_first() {
        Some((device, others)) => device.tear_down(|| tear_down_all(others, real, after), |_| {}),
        None => {
            let status = real.call();
            after(status);
            status
        }
    }
}
