//! Stream-ordered allocation (`cuMemAllocAsync`) and memory pools.

use std::time::Instant;

use gpulimit_base::obstacle::Obstacle;
use gpulimit_group::Undisturbed;

use crate::abi::{
    ALLOCATION_MANAGED, ALLOCATION_PINNED, AllocationProp, Device as Ordinal, DevicePtr, In,
    Location, MEMORY_TYPE_HOST, MemPool, Out, POINTER_ATTRIBUTE_DEVICE_ORDINAL,
    POINTER_ATTRIBUTE_IS_MANAGED, POINTER_ATTRIBUTE_MEMORY_TYPE, SUCCESS, Status, Stream,
};
use crate::account::Process;
use crate::account::charged::Charged;
use crate::account::device::Device;
use crate::account::obstacles::Possible;
use crate::account::pools::promise::{Growth, Promise};
use crate::account::pools::{Pool, STEP, growth, patience, uncharge_excess};
use crate::account::request::Request;
use crate::driver::Real;
use crate::driver::capture::relaxed;
use crate::driver::cuda;
use crate::driver::gate::AtOnce;
use crate::fault;
use crate::handler::Call;
use crate::handler::aside::{self, Aside, attempt};
use crate::handler::linear;
use crate::handler::stream::{await_work, capturing, own_stream};

/// A call of `cuMemAllocAsync` that was made before the hook, on the pool's ticket.
#[derive(Clone, Copy)]
pub struct Made {
    device: &'static Device,
    pool: &'static Pool,
    /// See [`Allocation::mark`].
    mark: u64,
    /// The driver's answer.
    pub status: Status,
}

/// `cuMemAllocAsync` of up to 32 MiB from a pool that has a ticket, and so has memory of which the
/// steps are known: one atomic operation before the call and one after it. Returns the status if
/// that was all. Otherwise returns the call that was made, or `None` if nothing was done.
#[inline(always)]
pub fn alloc_at_once<C: FnOnce() -> Status>(
    begin: impl FnOnce() -> Option<(AtOnce, C)>,
    dptr: Out<DevicePtr>,
    bytesize: usize,
    stream: Stream,
) -> Result<Status, Option<Made>> {
    let bytes = bytesize as u64;
    if !(1..=STEP).contains(&bytes) {
        return Err(None);
    }
    let process = Process::existing().ok_or(None)?;
    let device = process.stream_device_at_once(stream).ok_or(None)?;
    let pool = device.known_pool().ok_or(None)?;
    let mark = process.mark();
    let (begun, real) = begin().ok_or(None)?;
    if !pool.begin_at_once() {
        begun.leave();
        return Err(None);
    }
    let status = begun.run(real);
    process.pools.touch();
    if status == SUCCESS
        && let Some(start) = dptr.read()
        && pool.end_at_once(&(start..start.saturating_add(bytes)))
    {
        return Ok(status);
    }
    Err(Some(Made {
        device,
        pool,
        mark,
        status,
    }))
}

/// `cuMemAllocAsync`: Charges the most by which the stream's pool can grow, in steps of 32 MiB.
/// Uncharges the rest after the call.
pub fn alloc(
    call: Call,
    real: impl Fn(Out<DevicePtr>, usize, Stream) -> Status,
    made: Option<Made>,
    dptr: Out<DevicePtr>,
    bytesize: usize,
    stream: Stream,
) -> Status {
    let real = || real(dptr, bytesize, stream);
    if let Some(made) = made {
        // `alloc_at_once` has made the call, and could not end it.
        let place = (made.device, made.pool);
        let allocation = Allocation::new(call, place, bytesize, dptr, stream, made.mark);
        return allocation.answer(allocation.end(allocation.promise(), made.status), &real);
    }
    match current_pool(call, stream) {
        Ok(Some((device, pool))) => allocate(call, device, pool, bytesize, dptr, stream, real),
        Ok(None) => allocate_unknown(call, None, bytesize, dptr, stream, &real),
        Err(aside) => aside.answer(&real),
    }
}

/// Returns the current memory pool of the stream's device; `None` if gpulimit does not know the
/// stream or the pool.
#[inline(always)]
fn current_pool(
    call: Call,
    stream: Stream,
) -> Result<Option<(&'static Device, &'static Pool)>, Aside> {
    let Some(device) = call.process.stream_device(stream) else {
        return Ok(None);
    };
    let device = device?;
    Ok(device.current_pool()?.map(|pool| (device, pool)))
}

/// `cuMemAllocFromPoolAsync`: Charged like `cuMemAllocAsync`, but on the device of the pool, which
/// can differ from the stream's device.
pub fn alloc_from(
    call: Call,
    real: impl Fn(Out<DevicePtr>, usize, MemPool, Stream) -> Status,
    dptr: Out<DevicePtr>,
    bytesize: usize,
    pool: MemPool,
    stream: Stream,
) -> Status {
    let pools = &call.process.pools;
    let known = pools.get(pool).or_else(|| {
        device_of_drivers_pool(call, pool).map(|device| pools.known_or(pool, || (device, true)))
    });
    let real = || real(dptr, bytesize, pool, stream);
    let Some(known) = known else {
        return allocate_unknown(call, Some(pool), bytesize, dptr, stream, &real);
    };
    match call.process.device(known.device) {
        Ok(device) => {
            let status = allocate(call, device, known, bytesize, dptr, stream, real);
            note_managed(call, known, status, dptr, stream);
            status
        }
        Err(failed) => Aside::from(failed).answer(&real),
    }
}

/// Remembers an allocation from a managed pool. A captured allocation belongs to a graph instead.
fn note_managed(
    call: Call,
    pool: &'static Pool,
    status: Status,
    dptr: Out<DevicePtr>,
    stream: Stream,
) {
    if pool.managed
        && let (SUCCESS, Some(address)) = (status, dptr.read())
        && !capturing(call.symbol, stream)
    {
        call.process.pools.lent.insert(address, pool);
    }
}

/// Returns the device of a pool made without a hook, if it is the default or current pool of a
/// device.
pub fn device_of_drivers_pool(call: Call, pool: MemPool) -> Option<Ordinal> {
    let is = |found: MemPool| found == pool;
    if call.process.pools.is_destroyed(pool) {
        return None;
    }
    (0..call.process.device_count()).find(|ordinal| {
        let mut handle = 0;
        (cuda::cuDeviceGetDefaultMemPool(Out::of(&mut handle), *ordinal) == SUCCESS && is(handle))
            || (cuda::cuDeviceGetMemPool(Out::of(&mut handle), *ordinal) == SUCCESS && is(handle))
    })
}

/// Allocates from an unknown pool or in an unknown stream. Charges the possible growth on every
/// device in use.
#[cold]
fn allocate_unknown(
    call: Call,
    pool: Option<MemPool>,
    bytesize: usize,
    dptr: Out<DevicePtr>,
    stream: Stream,
    real: &dyn Real,
) -> Status {
    let growth = growth(bytesize as u64);
    let mark = call.process.mark();
    let mut paid: Vec<(&'static Device, Charged<'static>)> = Vec::new();
    for device in call.process.devices_in_use() {
        if !device.may_hold(bytesize as u64) {
            continue;
        }
        let request = Request::insisting(call.symbol, growth).of(bytesize as u64);
        match device.charge_ahead(request) {
            Ok(charged) => paid.push((device, charged)),
            Err(refused) => return Aside::from(refused).answer(real),
        }
    }
    fault::point("unknown-pool");
    let status = real.call();
    let taken = dptr.read().filter(|_| status == SUCCESS);
    let lies = taken.and_then(place);
    let mut stays = true;
    for (device, charged) in paid {
        let kind = lies.filter(|(ordinal, _)| *ordinal == device.ordinal);
        let kind = kind.map(|(_, kind)| kind);
        let pools = &call.process.pools;
        let known = match (kind, pool) {
            (None, _) => None,
            (_, None) => device.current_pool().ok().flatten(),
            (Some(Kind::Managed), Some(pool)) => Some(known_managed(call, pool, device.ordinal)),
            (Some(kind), Some(pool)) => {
                let counted = matches!(kind, Kind::Device) || device.shares_host;
                Some(pools.known_or(pool, || (device.ordinal, counted)))
            }
        };
        let Some(pool) = known.filter(|pool| pool.counted) else {
            if kind.is_some() {
                // gpulimit has no separate charge for this pool, so it measures the pool's memory
                // as memory of the driver.
                device.measure();
            }
            drop(charged);
            continue;
        };
        charged.spend();
        let promise = pool.adopt(&device.book, growth);
        let range = taken.map(|start| start..start.saturating_add(bytesize as u64));
        let whole = promise.settle(range);
        let undo = || take_back(call.symbol, device, pool, growth, dptr, stream);
        if whole || settle_growth(device, pool, mark, status, undo) {
            note_managed(call, pool, status, dptr, stream);
        } else {
            device.refuse(call.symbol, bytesize as u64, None);
            stays = false;
        }
    }
    call.process.pools.touch();
    match stays {
        true => status,
        false => Aside::Refused.answer(real),
    }
}

/// The kind of memory that a pool consists of.
#[derive(Clone, Copy)]
enum Kind {
    Device,
    Managed,
    Host,
}

/// Returns the device of the new allocation at `address`, and the kind of its memory.
fn place(address: DevicePtr) -> Option<(Ordinal, Kind)> {
    let ask = |attribute| {
        let mut value = 0;
        let place = Out::of(&mut value);
        let asked = relaxed(|| cuda::cuPointerGetAttribute(place, attribute, address));
        (asked == SUCCESS).then_some(value)
    };
    let device = ask(POINTER_ATTRIBUTE_DEVICE_ORDINAL)?;
    let is_managed = ask(POINTER_ATTRIBUTE_IS_MANAGED).is_some_and(|is| is & 0xff != 0);
    let kind = match ask(POINTER_ATTRIBUTE_MEMORY_TYPE) {
        _ if is_managed => Kind::Managed,
        Some(MEMORY_TYPE_HOST) => Kind::Host,
        _ => Kind::Device,
    };
    Some((device, kind))
}

fn allocate(
    call: Call,
    device: &'static Device,
    pool: &'static Pool,
    bytesize: usize,
    dptr: Out<DevicePtr>,
    stream: Stream,
    real: impl Real,
) -> Status {
    /// A size in bytes that is larger than any allocation. The sum of two such sizes does not
    /// overflow.
    const TOO_MUCH: u64 = 1 << 48;
    let bytes = bytesize as u64;
    let may_hold = match pool.managed {
        // Managed memory can be larger than the GPU's memory.
        true => (1..TOO_MUCH).contains(&bytes),
        false => device.may_hold(bytes),
    };
    if !pool.counted {
        return real.call();
    }
    if !may_hold {
        return device.note_answer(call.symbol, bytes, real.call());
    }
    let place = (device, pool);
    let allocation = Allocation::new(call, place, bytesize, dptr, stream, call.process.mark());
    if !pool.prepay(&device.book, growth(bytes)) {
        return allocation.insist(None, &real);
    }
    allocation.answer(allocation.make(&real), &real)
}

/// An allocation from a pool.
#[derive(Clone, Copy)]
struct Allocation {
    call: Call,
    device: &'static Device,
    pool: &'static Pool,
    bytes: u64,
    dptr: Out<DevicePtr>,
    stream: Stream,
    /// The number of measurements that the process had made when the allocation began
    /// (`Process::mark`).
    mark: u64,
}

impl Allocation {
    #[inline]
    fn new(
        call: Call,
        (device, pool): (&'static Device, &'static Pool),
        bytesize: usize,
        dptr: Out<DevicePtr>,
        stream: Stream,
        mark: u64,
    ) -> Self {
        Allocation {
            call,
            device,
            pool,
            bytes: bytesize as u64,
            dptr,
            stream,
            mark,
        }
    }

    /// Returns the guard for the call, whose possible growth is paid.
    #[inline]
    fn promise(&self) -> Promise<'static> {
        Promise::new(self.pool, &self.device.book, growth(self.bytes))
    }

    /// Runs `real` after the pool's possible growth was paid. Returns whether all memory of the
    /// pool is then paid.
    #[inline]
    fn make(self, real: &(impl Real + ?Sized)) -> (Status, bool) {
        let promise = self.promise();
        fault::point("pool");
        self.end(promise, real.call())
    }

    /// Ends the call that the driver has answered with `status`. Returns it, and whether all memory
    /// of the pool is paid.
    #[inline]
    fn end(self, promise: Promise<'_>, status: Status) -> (Status, bool) {
        let taken = self.dptr.read().filter(|_| status == SUCCESS);
        let range = taken.map(|start| start..start.saturating_add(self.bytes));
        let whole = promise.settle(range);
        self.call.process.pools.touch();
        (status, whole)
    }

    /// Returns the status for the program of a call that was made. Tries again where not all memory
    /// of the pool is paid.
    #[inline]
    fn answer(self, made: (Status, bool), real: &impl Real) -> Status {
        match made {
            (SUCCESS, true) => SUCCESS,
            (status, true) => (self.device).note_answer(self.call.symbol, self.bytes, status),
            (status, false) => self.insist(Some(status), real),
        }
    }

    /// Allocates where the pool's headroom does not suffice. `made` is the status if the driver's
    /// call exceeded the payment.
    #[cold]
    #[inline(never)]
    fn insist(self, made: Option<Status>, real: &dyn Real) -> Status {
        attempt(real, || {
            let status = self.try_again(made, real)?;
            Ok((self.device).note_answer(self.call.symbol, self.bytes, status))
        })
    }

    fn try_again(self, mut made: Option<Status>, real: &dyn Real) -> Result<Status, Aside> {
        let Self {
            call,
            device,
            pool,
            bytes,
            dptr,
            stream,
            mark,
        } = self;
        let growth = growth(bytes);
        let mut tries = 0;
        // A pool's first memory makes the driver open files. Cancellation is put off, because a
        // cancelled thread would end there.
        let mut undisturbed = None;
        loop {
            let status = match made.take() {
                Some(status) => status,
                None => {
                    undisturbed.get_or_insert_with(Undisturbed::new);
                    pay(call, device, pool, bytes, stream)?;
                    match self.make(real) {
                        (status, true) => {
                            let below = (status == SUCCESS).then(|| device.below()).flatten();
                            if below.is_none() {
                                return Ok(status);
                            }
                            take_back(call.symbol, device, pool, growth, dptr, stream);
                            return Err(device.refuse(call.symbol, bytes, below).into());
                        }
                        (status, false) => status,
                    }
                }
            };
            let undo = || take_back(call.symbol, device, pool, growth, dptr, stream);
            if settle_growth(device, pool, mark, status, undo) {
                return Ok(status);
            }
            tries += 1;
            // A managed pool keeps the memory of an undone allocation, so a second try would
            // measure nothing.
            if tries == TRIES || pool.managed {
                return Err(device.refuse(call.symbol, bytes, None).into());
            }
            // Waits for room for the growth and for new headroom. Another thread may still take the
            // room first.
            let room = Request::insisting(call.symbol, growth + STEP).of(bytes);
            if tries > 1 {
                drop(device.charge_ahead(room)?);
            }
            // The first retry does not wait, because memory that the driver has given back
            // meanwhile may suffice.
        }
    }
}

/// The most tries of one allocation. A try is undone if other requests have taken the room for the
/// headroom.
const TRIES: u32 = 16;

/// Pays for the growth that an allocation can cause, where the pool's headroom does not suffice.
#[cold]
fn pay(
    call: Call,
    device: &'static Device,
    pool: &'static Pool,
    asked: u64,
    stream: Stream,
) -> Result<(), Aside> {
    if stream <= 2 {
        aside::check_context()?;
    }
    let growth = growth(asked);
    let until = Instant::now() + patience();
    let book = &device.book;
    let ahead = |request| device.charge_ahead(request).map(Charged::spend);
    let quietly = |rest| ahead(Request::reclaiming(rest));
    let ahead_by = |until| call.process.pools.await_headroom(book, growth, until);
    let paid = |ahead| pool.pay(book, growth, ahead, quietly).is_ok();
    if paid(0) {
        return Ok(());
    }
    if capturing(call.symbol, stream) {
        return Err(Aside::Node);
    }
    // The group is full. Calls of other threads may have the headroom, so wait for them.
    if paid(ahead_by(until)) {
        return Ok(());
    }
    // A trimmed pool makes room for growth. It gives back twice the growth, so that the next
    // request finds room.
    pool.trim(&device.book, growth.saturating_mul(2));
    if paid(ahead_by(until)) {
        return Ok(());
    }
    if pool.borrow(growth) {
        return Ok(());
    }
    // The pool can give back only memory that no work uses, so wait for this stream's work.
    if pool.unused() >= growth {
        await_work(call.symbol, stream, until);
    }
    pool.trim(&device.book, u64::MAX);
    pool.pay(book, growth, ahead_by(until), |rest| {
        ahead(Request::insisting(call.symbol, rest).of(asked))
    })?;
    Ok(())
}

/// Pays for the growth of a pool and for new headroom. If that fails, undoes the allocation and
/// returns false.
#[cold]
fn settle_growth(
    device: &'static Device,
    pool: &'static Pool,
    mark: u64,
    status: Status,
    undo: impl FnOnce(),
) -> bool {
    let _growth = Growth(&device.book);
    device.renew(mark);
    // In a full group a managed pool needs no headroom while it uses only memory that it had
    // before.
    let within = pool.managed && !pool.has_overrun();
    let ahead = |short| {
        let request = Request::reclaiming(short);
        device.charge_ahead(request).map(Charged::spend)
    };
    let stays = pool.restore_headroom(&device.book, ahead) || status != SUCCESS || within;
    if !stays {
        undo();
    }
    stays
}

/// Undoes an allocation from a pool. The pool keeps the memory charged until the stream's work
/// ends.
fn take_back(
    symbol: &str,
    device: &Device,
    pool: &Pool,
    growth: u64,
    dptr: Out<DevicePtr>,
    stream: Stream,
) {
    if let Some(address) = dptr.read() {
        relaxed(|| match own_stream(symbol) {
            true => cuda::cuMemFreeAsync_ptsz(address, stream),
            false => cuda::cuMemFreeAsync(address, stream),
        });
    }
    pool.trim(&device.book, growth);
}

/// Does the work of [`free`] where no memory but that of usual pools can be freed.
#[inline(always)]
pub fn free_at_once<C: FnOnce() -> Status>(
    begin: impl FnOnce() -> Option<(AtOnce, C)>,
    dptr: DevicePtr,
    _: Stream,
) -> Option<Status> {
    let process = Process::existing()?;
    if process.blocks.may_have(dptr) || !process.pools.lent.is_empty() {
        return None;
    }
    let (begun, real) = begin()?;
    let status = begun.run(real);
    if status == SUCCESS {
        process.pools.touch();
    }
    Some(status)
}

/// `cuMemFreeAsync`: Uncharges nothing, because the pool keeps the memory. The hook of a later
/// synchronise call uncharges shrunk pools, and memory of `cuMemAlloc` that was freed here.
pub fn free(
    call: Call,
    real: impl Fn(DevicePtr, Stream) -> Status,
    dptr: DevicePtr,
    stream: Stream,
) -> Status {
    match call.process.blocks.may_have(dptr) {
        true => linear::free_later(call, dptr, &|| free_one(call, &real, dptr, stream)),
        false => free_one(call, &real, dptr, stream),
    }
}

#[inline(always)]
fn free_one(
    call: Call,
    real: &impl Fn(DevicePtr, Stream) -> Status,
    dptr: DevicePtr,
    stream: Stream,
) -> Status {
    let lent = call.process.pools.lent.take(dptr);
    let status = real(dptr, stream);
    if status == SUCCESS {
        call.process.pools.touch();
    }
    if let Some(pool) = lent
        && (status != SUCCESS || capturing(call.symbol, stream))
    {
        call.process.pools.lent.insert(dptr, pool);
    }
    status
}

/// `cuMemPoolCreate`: Charges nothing. Remembers the device and the kind of memory of the pool.
pub fn create(
    call: Call,
    real: &dyn Real,
    pool: Out<MemPool>,
    props: In<AllocationProp>,
) -> Status {
    let managed = |props: AllocationProp| props.allocation_type == ALLOCATION_MANAGED;
    let _possible = expect_managed(call, props.read().is_some_and(managed));
    let status = real.call();
    if let (SUCCESS, Some(handle), Some(props)) = (status, pool.read(), props.read()) {
        call.process.pools.note_created(handle);
        if managed(props) {
            enter_managed(call, handle, props.location);
            return status;
        }
        let device = props.location.device();
        let device = device
            .or_else(|| call.process.host_payer())
            .filter(|_| props.allocation_type == ALLOCATION_PINNED);
        call.process
            .pools
            .known_or(handle, || (device.unwrap_or(0), device.is_some()));
    }
    status
}

/// Records a managed pool, charged in full on the device of its location, else on the current or
/// the first device.
fn enter_managed(call: Call, pool: MemPool, location: Location) {
    let current = || call.process.current_device().map(|device| device.ordinal);
    let device = location.device().or_else(|| current().ok()).unwrap_or(0);
    known_managed(call, pool, device);
}

/// Returns the managed pool with this handle. A pool that was unknown is an obstacle from now on.
fn known_managed(call: Call, pool: MemPool, device: Ordinal) -> &'static Pool {
    let (pool, new) = call.process.pools.known_managed(pool, device);
    if new {
        let managed = Obstacle::ManagedMemory;
        call.process.expect_obstacle(managed).stay();
    }
    pool
}

/// Counts an obstacle until the value is dropped, if a call may make a managed pool.
fn expect_managed(call: Call, managed: bool) -> Option<Possible> {
    managed.then(|| call.process.expect_obstacle(Obstacle::ManagedMemory))
}

/// `cuMemPoolExportToShareableHandle`: Charges nothing. The process must not be suspended until the
/// pool is destroyed without memory in use.
pub fn export(call: Call, real: &dyn Real, pool: MemPool) -> Status {
    let possible = call.process.expect_obstacle(Obstacle::ExportedPool);
    let known = call.process.pools.get(pool);
    known.inspect(|known| known.exported());
    let status = real.call();
    // An unknown pool stays an obstacle. If the pool was destroyed meanwhile, its obstacle has
    // ended already.
    if status == SUCCESS || known.is_some_and(|known| !known.unexported()) {
        possible.stay();
    }
    status
}

/// `cuMemPoolImportFromShareableHandle`: Charges nothing, because the exporting process pays.
pub fn import(call: Call, real: &dyn Real, pool: Out<MemPool>) -> Status {
    let possible = call.process.expect_obstacle(Obstacle::ImportedPool);
    let status = real.call();
    if let (SUCCESS, Some(handle)) = (status, pool.read()) {
        call.process.pools.note_created(handle);
        if call.process.pools.enter_imported(handle) {
            possible.stay();
        }
    }
    status
}

/// `cuMemPoolImportPointer`: Charges nothing. Remembers the memory, which outlives its pool.
pub fn import_pointer(call: Call, real: &dyn Real, dptr: Out<DevicePtr>, pool: MemPool) -> Status {
    let status = real.call();
    if let (SUCCESS, Some(address)) = (status, dptr.read())
        && let Some(known) = call.process.pools.get(pool)
    {
        call.process.pools.lent.insert(address, known);
    }
    status
}

/// `cuMemGetDefaultMemPool`, `cuMemGetMemPool`: Charges nothing. Remembers the device and kind of a
/// pool that the program did not create.
pub fn find(
    call: Call,
    real: &dyn Real,
    pool: Out<MemPool>,
    location: In<Location>,
    kind: i32,
) -> Status {
    let _possible = expect_managed(call, kind == ALLOCATION_MANAGED);
    let status = real.call();
    if let (SUCCESS, Some(handle), Some(location)) = (status, pool.read(), location.read())
        && !call.process.pools.is_destroyed(handle)
    {
        match location.device() {
            _ if kind == ALLOCATION_MANAGED => enter_managed(call, handle, location),
            Some(_) => {}
            None => drop(call.process.pools.known_or(handle, || (0, false))),
        }
    }
    status
}

/// `cuMemPoolDestroy`: Uncharges the pool's memory after the call. Memory still in use stays
/// charged until a measurement finds it gone.
pub fn destroy(call: Call, real: &dyn Real, pool: MemPool) -> Status {
    let known = call.process.pools.forget(pool);
    let exported_in_use = known.is_some_and(Pool::is_exported_in_use);
    // Other threads may still use the record of this pool. No thread asks the driver about a
    // retired pool.
    if let Some(known) = known {
        known.retire();
    }
    // The driver can reuse the handle at once, so note the pool as destroyed before the call.
    if known.is_some() {
        call.process.pools.note_destroyed(pool);
    }
    let status = real.call();
    if let Some(known) = known
        && status == SUCCESS
        && !exported_in_use
    {
        let exports = known.take_exports();
        call.process.end_obstacle(Obstacle::ExportedPool, exports);
    }
    match known.map(|known| (known, call.process.device(known.device))) {
        Some((known, Ok(_))) if known.obstacle().is_some() && status == SUCCESS => {
            call.process.pools.lent.leave(known);
            call.process.release_lent();
        }
        Some((known, Ok(device))) if known.counted && status == SUCCESS => {
            // Allocations of the pool may be left.
            device.let_go_idle(known.close(&device.book));
            uncharge_excess(&device.book, false);
        }
        Some((known, _)) if status != SUCCESS => call.process.pools.restore(known),
        _ => {}
    }
    for device in call.process.devices() {
        device.forget_current_pool();
    }
    // The allocations of a managed or an imported pool keep its record.
    if let Some(known) = known.filter(|known| known.obstacle().is_none())
        && status == SUCCESS
    {
        call.process.pools.end(known);
    }
    status
}

/// `cuMemPoolTrimTo`: Uncharges, after the call, the memory that the pool no longer reserves.
pub fn trim(call: Call, real: &dyn Real) -> Status {
    let status = real.call();
    call.process.refresh_pools();
    status
}

/// `cuMemPoolSetAttribute`: Charges nothing. With a lower release threshold, the hook of the next
/// synchronise call uncharges the memory.
pub fn set_attribute(call: Call, real: &dyn Real) -> Status {
    let status = real.call();
    call.process.pools.touch();
    status
}

/// `cuDeviceSetMemPool`: Charges nothing. The hook of the next allocation asks the driver which
/// pool is current.
pub fn set_current(call: Call, real: &dyn Real, device: Ordinal, pool: MemPool) -> Status {
    note_current(call, pool);
    let status = real.call();
    forget_current(call, device);
    status
}

/// `cuMemSetMemPool`: Charges nothing, like `cuDeviceSetMemPool`.
pub fn set_current_at(
    call: Call,
    real: &dyn Real,
    location: In<Location>,
    pool: MemPool,
) -> Status {
    note_current(call, pool);
    let status = real.call();
    if let Some(device) = location.read().and_then(Location::device) {
        forget_current(call, device);
    }
    status
}

/// Records that a pool becomes current. The driver also accepts a destroyed one (measured), so it
/// is not asked about an unknown one.
fn note_current(call: Call, pool: MemPool) {
    match call.process.pools.get(pool) {
        Some(known) => known.note_current(),
        None if device_of_drivers_pool(call, pool).is_none() => {
            call.process.pools.note_destroyed(pool);
        }
        None => {}
    }
}

fn forget_current(call: Call, device: Ordinal) {
    if let Ok(device) = call.process.device(device) {
        device.forget_current_pool();
    }
}
