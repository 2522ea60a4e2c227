//! Driver calls that load code or launch kernels. The declared memory is charged before the call,
//! the rest is measured afterwards.

use std::cell::{Cell, LazyCell};
use std::sync::atomic::Ordering;

use gpulimit_group::Undisturbed;

use crate::abi::{
    Context, FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, LIMIT_MALLOC_HEAP_SIZE, Opaque, Out, SUCCESS, Status,
};
use crate::account::device::Device;
use crate::account::device_runtime::Runtime;
use crate::account::driver_part::{Measured, Prepaid};
use crate::account::handles::Kind;
use crate::account::kernel_memory::ContextMemory;
use crate::account::locks::{Place, hold};
use crate::account::{BLOCK, round_up};
use crate::driver::capture::relaxed;
use crate::driver::context_limit::is_in_use;
use crate::driver::{Real, cuda};
use crate::handler::Call;
use crate::handler::aside::Aside;
use crate::handler::measured;
use crate::handler::payment::Payment;
use crate::image::Needs;
use crate::refusal::Refused;

/// Returns the local memory of each thread of the kernel, in bytes; 0 if the driver does not tell.
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
    // The driver has a query for each kind of handle. A handle can be a `CUkernel` without
    // gpulimit's knowledge.
    let told = relaxed(|| match call.process.launched.is_kernel(function) {
        true => of_kernel(&mut bytes),
        false => of_function(&mut bytes) || of_kernel(&mut bytes),
    });
    u64::try_from(bytes).ok().filter(|_| told).unwrap_or(0)
}

/// Learns the local memory of a kernel that the program has put into a graph, so that an update of
/// an executable graph need not look at each node.
pub fn ask_for_graph(call: Call, kernel: Opaque) {
    let launched = &call.process.launched;
    if launched.need_of(kernel).is_some() {
        return;
    }
    match call.process.current_device() {
        Ok(device) if call.process.handles.knows(Kind::Code, kernel) => {
            call.process
                .learn_need(kernel, per_thread(call, device, kernel));
        }
        _ => launched.note_unasked(),
    }
}

/// Notes the growth of local memory in `context` after a measured call that was not charged ahead.
pub fn has_grown(device: &'static Device, context: Context, per_thread: u64) {
    let memory = device.kernels.context(context);
    let _alone = hold(Place::Alone, || memory.alone.write());
    if device.kernels.growth(&memory, per_thread) > 0 {
        let change = device.kernels.set(&memory, per_thread);
        if device.measure().is_none() {
            device.assume(change);
        }
    }
}

/// What a driver call does with code. This determines how much memory for kernels is charged before
/// the call.
pub enum Use<'a> {
    /// The call loads code.
    Load,
    /// The call launches a kernel. After the estimate is paid, this function returns the kernel's
    /// local memory per thread.
    Launch(&'a dyn Fn() -> u64),
    /// The call launches several kernels, and this value stands for one of them.
    OneOfSeveral(&'a dyn Fn() -> u64, &'a Shortage),
    /// The call makes, changes or launches an executable graph. This function returns the most
    /// local memory per thread.
    Graph(&'a dyn Fn() -> u64),
}

/// The device that lacked room for a launch, and the bytes to pay. The caller waits without holding
/// locks.
pub type Shortage = Cell<Option<(&'static Device, u64)>>;

/// Does the work of [`measured::run`] in `context`. Also charges the `declared` memory, growth of
/// local memory, and up to `more` bytes.
#[allow(clippy::too_many_arguments)]
pub fn run(
    call: Call,
    device: &'static Device,
    context: Context,
    usage: Use<'_>,
    declared: Needs,
    more: u64,
    real: &dyn Real,
    undo: Option<&dyn Fn()>,
) -> Result<Status, Aside> {
    // A cancelled thread would end where the driver opens a file, so cancellation is put off.
    let _undisturbed = Undisturbed::new();
    // Variables smaller than a block fit into the block that the driver's reserve has for code.
    let large = if declared.variables < BLOCK {
        0
    } else {
        round_up(declared.variables, BLOCK)
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
    let is_first = || Runtime::is_new(declared, device, &memory);
    let extra = Cell::new((0, Runtime::default()));
    // The estimate is paid before the kernels' need is queried, because the query may load code.
    let estimate = Payment {
        lock: &|| (),
        pay: &|_, paid| paid.raise_with_reserve(0),
        is_due: &|_| true,
    };
    let payment = Payment {
        // One thread at a time: of two launches with the same need, only the first makes local
        // memory grow.
        lock: &|| {
            let alone = || hold(Place::Alone, || memory.alone.write());
            (growth() > 0 || kept() > 0 || is_first()).then(alone)
        },
        pay: &|alone, paid| {
            let (growth, runtime) = match alone {
                Some(_) => (growth(), Runtime::of(declared, device, context, &memory)),
                None => (0, Runtime::default()),
            };
            extra.set((growth, runtime));
            let bytes = large + growth + runtime.tables + runtime.heap;
            paid.raise_with_reserve(bytes)
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
    let (alone, mut paid) = paid?;
    let (growth, runtime) = extra.get();
    paid.add_some(more);
    let real = &|| match shortage {
        // A launch on several devices fails with code 2 to try again.
        Some(_) => real.call(),
        None => device.note_answer(call.symbol, large + growth, real.call()),
    };
    if alone.is_none() {
        return Ok(measured::conclude(call, device, paid, large, real, undo));
    }
    runtime.keep(&mut paid, &memory);
    let heap = kept();
    let before = paid.offer(heap);
    let status = real();
    // The driver refuses to set the heap limit once the heap exists. So setting the limit shows
    // whether the heap exists.
    let needed = heap > 0 && status == SUCCESS && is_in_use(context, LIMIT_MALLOC_HEAP_SIZE);
    let taken = |grown: u64| {
        let is_taken = needed && grown.saturating_sub(growth + large + runtime.tables) >= heap;
        if is_taken {
            memory.heap.store(0, Ordering::Release);
        }
        if is_taken { heap } else { 0 }
    };
    let measured = match paid.settle_offer(taken) {
        Ok(measured) => Some(measured),
        Err(paid) => {
            paid.settle_unmeasured(large + growth);
            None
        }
    };
    let exact = measured.filter(|measured| !measured.at_least);
    let grown = exact.map(|measured| measured.used.saturating_sub(before));
    runtime.conclude(device, &memory, status, grown);
    if growth > 0 {
        let needs = (*need, at_most);
        let of = (context, &*memory);
        conclude_growth(call, device, of, needs, before, measured, status);
    }
    Ok(match measured {
        Some(measured) => measured::judge(call, device, before, measured, status, undo),
        None => status,
    })
}

/// Notes the result of a launch whose growth of local memory was charged. With `at_most`,
/// `per_thread` is an upper bound.
fn conclude_growth(
    call: Call,
    device: &'static Device,
    (context, memory): (Context, &ContextMemory),
    (per_thread, at_most): (u64, bool),
    before: u64,
    measured: Option<Measured>,
    status: Status,
) {
    if status != SUCCESS {
        return note_failure(call, device, (context, memory), before, measured);
    }
    let growth = device.kernels.growth(memory, per_thread);
    let is_there = |measured: Measured| {
        measured.at_least || measured.used.saturating_sub(before) >= growth / 2
    };
    // The driver may make the local memory later: with a later kernel, or with the graph's launch.
    let may_wait = at_most || memory.backing() == 0 && per_thread == 0;
    if may_wait && !measured.is_none_or(is_there) {
        return;
    }
    let wanted = per_thread.max(memory.per_thread());
    let change = device.kernels.set(memory, wanted);
    if measured.is_none() {
        device.assume(change);
    }
}

/// Handles a failed growth of local memory. If the driver dropped the context's local memory, every
/// kernel needs new memory.
pub fn note_failure(
    call: Call,
    device: &Device,
    (context, memory): (Context, &ContextMemory),
    before: u64,
    measured: Option<Measured>,
) {
    if measured.is_some_and(|measured| memory.is_dropped(before, measured.used)) {
        call.process.forget_limits(context);
        // The first measurement counted the dropped memory as still taken, so measure again.
        device.measure();
    }
}
