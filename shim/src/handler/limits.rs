//! What contexts set aside for their kernels: by `cuCtxSetLimit`, and in calls that load and launch them.

use std::cell::{Cell, LazyCell};
use std::sync::atomic::{AtomicU64, Ordering};

use gpulimit_group::Undisturbed;

use crate::abi::{
    CUDA_ERROR_OUT_OF_MEMORY, Context, FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, LIMIT_MALLOC_HEAP_SIZE,
    LIMIT_STACK_SIZE, Opaque, Out, SUCCESS, Status,
};
use crate::account::device::Device;
use crate::account::driver_share::{Measured, Prepaid};
use crate::account::kernel_memory::ContextMemory;
use crate::account::locks::{Place, hold};
use crate::account::{BLOCK, round_up};
use crate::capture::relaxed;
use crate::handler::device_runtime::Runtime;
use crate::handler::linear::current_context;
use crate::handler::measured;
use crate::handler::payment::Payment;
use crate::hook::{Call, Real};
use crate::image::Needs;
use crate::refusal::Refused;
use crate::table::cuda;

/// What device `malloc` has where no limit is set, bytes (measured).
const HEAP: u64 = 8 << 20;
/// What a heap of device `malloc` takes with the first launch that needs it: its limit in whole blocks, and one more (measured).
pub fn heap(limit: u64) -> u64 {
    round_up(limit, BLOCK).saturating_add(BLOCK)
}

/// `cuCtxSetLimit`: the stack limit takes its memory at once, charged before the call; the heap takes its own when a kernel first needs it, and is
/// charged from here on. The others take nothing (measured).
pub fn set(call: Call, real: impl Fn(i32, usize) -> Status, limit: i32, value: usize) -> Status {
    let wanted = match limit {
        LIMIT_STACK_SIZE => value as u64,
        // In full: the heap that there is without a limit comes with the first launch, too (measured). That one is charged with the code.
        LIMIT_MALLOC_HEAP_SIZE if value as u64 > HEAP => heap(value as u64),
        LIMIT_MALLOC_HEAP_SIZE => 0,
        _ => return real(limit, value),
    };
    let device = match call.process.current_device() {
        Ok(device) => device,
        Err(failed) => {
            return call
                .process
                .unavailable(failed, &move || real(limit, value));
        }
    };
    let context = match current_context() {
        0 => return real(limit, value),
        context => device.kernels.context(context),
    };
    let real = |value| real(limit, value);
    let due = || match limit {
        LIMIT_STACK_SIZE => stack_growth(device, &context, wanted),
        _ => wanted.saturating_sub(context.heap.load(Ordering::Acquire)),
    };
    let payment = Payment {
        lock: &|| hold(Place::Alone, || context.alone.write()),
        pay: &|_, paid| {
            let quietly = |missing| device.charge_ahead_quietly(missing);
            match due() {
                // In use: the driver says so.
                _ if limit != LIMIT_STACK_SIZE && matches!(current(limit), Limit::Fixed) => Ok(()),
                due => paid.raise(due, &quietly).map_err(|_| due),
            }
        },
        is_due: &|bytes| due() >= bytes,
    };
    let Ok((_alone, paid)) = payment.make(call, device, Prepaid::none(device)) else {
        return CUDA_ERROR_OUT_OF_MEMORY;
    };
    match limit {
        LIMIT_STACK_SIZE => set_stack(call, device, &context, paid, real, value),
        _ if matches!(current(limit), Limit::Fixed) => real(value),
        _ => reserve(device, &context.heap, paid, &move || real(value), wanted),
    }
}

/// Bytes by which local memory grows with this stack limit.
fn stack_growth(device: &Device, context: &ContextMemory, wanted: u64) -> u64 {
    let backing = device.kernels.backing(wanted);
    // Of more than the GPU has the driver takes care by itself.
    match backing <= device.capacity {
        true => backing.saturating_sub(context.backing()),
        false => 0,
    }
}

fn set_stack(
    call: Call,
    device: &'static Device,
    context: &ContextMemory,
    paid: Prepaid<'_>,
    real: impl Fn(usize) -> Status,
    value: usize,
) -> Status {
    let (before, wanted) = (context.per_thread(), value as u64);
    let growth = stack_growth(device, context, wanted);
    if device.kernels.backing(wanted) < device.kernels.start() {
        // What is launched from here on asks anew, and waits for us.
        call.process.launched.forget();
    }
    let used = device.driver.used();
    let status = real(value);
    let measured = paid.settle().ok();
    if status != SUCCESS {
        note_failure(call, device, context, used, measured);
        return status;
    }
    let change = device.kernels.set(context, wanted);
    match measured {
        None => device.driver.assume(device, change),
        Some(measured) if growth > 0 && measured.overrun > 0 => {
            real(before as usize);
            device.kernels.set(context, before);
            device.driver.measure(device);
            device.refuse(call.symbol, measured.used.saturating_sub(used));
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        // As after a failure: less than every context has from the start.
        Some(_) if context.backing() < device.kernels.start() => {
            device.driver.measure(device);
        }
        Some(_) => {}
    }
    status
}

/// The driver has refused growth of local memory. What there was may have gone with that: all kernels need it anew.
fn note_failure(
    call: Call,
    device: &Device,
    context: &ContextMemory,
    before: u64,
    measured: Option<Measured>,
) {
    if measured.is_some_and(|measured| context.is_dropped(before, measured.used)) {
        call.process.launched.forget();
        // The measurement took what has gone for the least that there can be.
        device.driver.measure(device);
    }
}

/// Keeps `wanted` bytes charged for what the context will take later, of which what is more than before is `paid`.
fn reserve(
    device: &'static Device,
    kept: &AtomicU64,
    mut paid: Prepaid<'_>,
    real: &dyn Real,
    wanted: u64,
) -> Status {
    let before = kept.load(Ordering::Acquire);
    let status = real.call();
    if status != SUCCESS {
        return status;
    }
    kept.store(wanted, Ordering::Release);
    paid.reserve(wanted.saturating_sub(before));
    drop(paid);
    device
        .driver
        .unreserve(device, before.saturating_sub(wanted));
    status
}

/// What the driver says of a limit.
pub enum Limit {
    /// It cannot be told, as of a context that is none.
    Unknown,
    /// It cannot be set: a module has been loaded that uses what it is for (measured).
    Fixed,
    /// Its value.
    Free(usize),
}

/// This limit of the current context.
fn current(which: i32) -> Limit {
    let mut value = 0;
    relaxed(|| match cuda::cuCtxGetLimit(Out::of(&mut value), which) {
        SUCCESS if cuda::cuCtxSetLimit(which, value) == SUCCESS => Limit::Free(value),
        SUCCESS => Limit::Fixed,
        _ => Limit::Unknown,
    })
}

/// This limit of `context`.
pub fn limit_of(context: Context, which: i32) -> Limit {
    if context == 0 || cuda::cuCtxPushCurrent_v2(context) != SUCCESS {
        return Limit::Unknown;
    }
    let limit = current(which);
    let mut popped = 0;
    cuda::cuCtxPopCurrent_v2(Out::of(&mut popped));
    limit
}

/// Whether code in `context` uses what the limit is for.
pub fn is_in_use(context: Context, which: i32) -> bool {
    matches!(limit_of(context, which), Limit::Fixed)
}

/// Bytes of local memory that every thread of `function` needs; 0 where it cannot be told.
///
/// Two functions of the driver: one for `CUfunction`s and one for `CUkernel`s, which pass for functions in launches, but not here (measured).
pub fn per_thread(call: Call, device: &Device, function: Opaque) -> u64 {
    let mut bytes = 0;
    let of_function = |bytes: &mut i32| {
        cuda::cuFuncGetAttribute(Out::of(bytes), FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function)
            == SUCCESS
    };
    let of_kernel = |bytes: &mut i32| {
        let attribute = FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES;
        let place = Out::of(bytes);
        let told =
            cuda::cuKernelGetAttribute(place, attribute, function, device.ordinal) == SUCCESS;
        if told {
            call.process.launched.note_kernel(function, 0);
        }
        told
    };
    // A kernel that is not known as one was found by other ways than its name.
    let told = relaxed(|| match call.process.launched.is_kernel(function) {
        true => of_kernel(&mut bytes),
        false => of_function(&mut bytes) || of_kernel(&mut bytes),
    });
    u64::try_from(bytes).ok().filter(|_| told).unwrap_or(0)
}

/// A call for which nothing was paid by name has been measured, and has run kernels that need so much in `context`.
pub fn has_grown(device: &'static Device, context: Context, per_thread: u64) {
    let memory = device.kernels.context(context);
    let _alone = hold(Place::Alone, || memory.alone.write());
    if device.kernels.growth(&memory, per_thread) > 0 {
        let change = device.kernels.set(&memory, per_thread);
        if device.driver.measure(device).is_none() {
            device.driver.assume(device, change);
        }
    }
}

/// What a call lets its context take beside what is measured.
pub enum Use<'a> {
    /// The code of kernels is loaded.
    Load,
    /// A kernel is launched whose threads need so much local memory each; asked for only when the estimate is paid.
    Launch(&'a dyn Fn() -> u64),
    /// As [`Use::Launch`], one of several in a call.
    OneOfSeveral(&'a dyn Fn() -> u64, &'a Shortage),
    /// The same of the kernels of an executable graph, which need so much at most.
    Graph(&'a dyn Fn() -> u64),
}

/// What a launch lacked that must not wait, as other launches of its call hold their locks: the device, and the bytes that are due there.
pub type Shortage = Cell<Option<(&'static Device, u64)>>;

/// As [`measured::run`] in `context`, with what its kernels need paid ahead, too: what the driver's reserve covers, what the image `says` that comes
/// with their code, the growth of local memory, and up to `more` bytes of what the group has left then.
#[allow(clippy::too_many_arguments)]
pub fn run(
    call: Call,
    device: &'static Device,
    context: Context,
    usage: Use<'_>,
    says: Needs,
    more: u64,
    real: &dyn Real,
    undo: Option<&dyn Fn()>,
) -> Status {
    // The driver may open files here, and we ask it for much.
    let _undisturbed = Undisturbed::new();
    let driver = &device.driver;
    // A few variables lie in the block that the reserve has for the code.
    let large = if says.variables < BLOCK {
        0
    } else {
        round_up(says.variables, BLOCK)
    };
    let (launches, at_most, shortage) = match usage {
        Use::Load => (false, false, None),
        Use::Launch(_) => (true, false, None),
        Use::OneOfSeveral(_, shortage) => (true, false, Some(shortage)),
        Use::Graph(_) => (true, true, None),
    };
    let need = LazyCell::new(|| match usage {
        Use::Load => 0,
        Use::Launch(per_thread) | Use::OneOfSeveral(per_thread, _) | Use::Graph(per_thread) => {
            per_thread()
        }
    });
    let memory = device.kernels.context(context);
    let kept = || match launches {
        true => memory.heap.load(Ordering::Acquire),
        false => 0,
    };
    let growth = || device.kernels.growth(&memory, *need);
    let is_first = || Runtime::is_new(says, device, &memory);
    let extra = Cell::new((0, Runtime::default()));
    // The estimate by itself: asking for the need may load code.
    let estimate = Payment {
        lock: &|| (),
        pay: &|_, paid| {
            let paid_for = paid.raise_with_reserve(0);
            paid_for.map_err(|_| paid.with_reserve(0))
        },
        is_due: &|_| true,
    };
    let payment = Payment {
        // One at a time: two that need the same growth make it once.
        lock: &|| {
            let alone = || hold(Place::Alone, || memory.alone.write());
            (growth() > 0 || kept() > 0 || is_first()).then(alone)
        },
        pay: &|alone, paid| {
            let (growth, runtime) = match alone {
                Some(_) => (growth(), Runtime::of(says, device, context, &memory)),
                None => (0, Runtime::default()),
            };
            extra.set((growth, runtime));
            let bytes = large + growth + runtime.tables + runtime.heap;
            let paid_for = paid.raise_with_reserve(bytes);
            paid_for.map_err(|_| paid.with_reserve(bytes))
        },
        is_due: &|_| {
            let (before, runtime) = extra.get();
            growth() >= before && (is_first() || runtime.tables + runtime.heap == 0)
        },
    };
    let none = Prepaid::none(device);
    let paid = match shortage {
        Some(shortage) => estimate
            .quietly(none)
            .and_then(|((), paid)| payment.quietly(paid))
            .inspect_err(|due| shortage.set(Some((device, *due))))
            .map_err(|_| Refused),
        None if launches => estimate
            .make(call, device, none)
            .and_then(|((), paid)| payment.make(call, device, paid)),
        None => payment.make(call, device, none),
    };
    let Ok((alone, mut paid)) = paid else {
        return CUDA_ERROR_OUT_OF_MEMORY;
    };
    let (growth, runtime) = extra.get();
    paid.add_some(more);
    if alone.is_none() {
        return measured::conclude(call, device, paid, real, undo);
    }
    runtime.keep(&mut paid, &memory);
    let heap = kept();
    driver.offer(heap);
    let before = driver.used();
    let status = real.call();
    // Measured: its limit cannot be set any more once it is there.
    let needed = heap > 0 && status == SUCCESS && is_in_use(context, LIMIT_MALLOC_HEAP_SIZE);
    let taken = |grown: u64| {
        let is_taken = needed && grown.saturating_sub(growth + large + runtime.tables) >= heap;
        if is_taken {
            memory.heap.store(0, Ordering::Release);
        }
        if is_taken { heap } else { 0 }
    };
    let measured = paid.settle_offer(heap, before, taken);
    let exact = measured.filter(|measured| !measured.at_least);
    let grown = exact.map(|measured| measured.used.saturating_sub(before));
    runtime.conclude(device, &memory, status, grown);
    if growth > 0 {
        let needs = (*need, at_most);
        conclude_growth(call, device, &memory, needs, before, measured, status);
    }
    match measured {
        Some(measured) => measured::judge(call, device, before, measured, status, undo),
        None => status,
    }
}

/// After a launch that was to let the local memory of `memory` grow, for a kernel that needs so much, or for some that need so much at most.
fn conclude_growth(
    call: Call,
    device: &'static Device,
    memory: &ContextMemory,
    (per_thread, at_most): (u64, bool),
    before: u64,
    measured: Option<Measured>,
    status: Status,
) {
    if status != SUCCESS {
        return note_failure(call, device, memory, before, measured);
    }
    let growth = device.kernels.growth(memory, per_thread);
    let is_there = |measured: Measured| {
        measured.at_least || measured.used.saturating_sub(before) >= growth / 2
    };
    // What has been dropped may come with the next kernel only, and that of a graph with its launch only.
    let may_wait = at_most || memory.backing() == 0 && per_thread == 0;
    if may_wait && !measured.is_none_or(is_there) {
        return;
    }
    let wanted = per_thread.max(memory.per_thread());
    let change = device.kernels.set(memory, wanted);
    if measured.is_none() {
        device.driver.assume(device, change);
    }
}
