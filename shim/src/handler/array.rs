//! Arrays and mipmapped arrays. The driver tells no size of an ordinary array, so gpulimit queries
//! a twin: the same array with deferred mapping, which takes no memory.
//!
//! Arrays below 2 MiB share blocks: gpulimit charges one block before the call and measures
//! afterwards. Before CUDA 11.6 it charges an estimate.

use gpulimit_ledger::Category;

use crate::abi::{
    ARRAY3D_DEFERRED_MAPPING, ARRAY3D_SPARSE, Array, Array3dDescriptor, ArrayDescriptor,
    ArrayMemoryRequirements, Context, Device as Ordinal, In, Out, SUCCESS, Status,
};
use crate::account::arrays::{Entry, Handle, Kind, Memory, Shape};
use crate::account::charged::Charged;
use crate::account::contexts::current_context;
use crate::account::device::Device;
use crate::account::driver_part::Prepaid;
use crate::account::request::Request;
use crate::account::{BLOCK, round_up, tiling};
use crate::driver::Real;
use crate::driver::capture::relaxed;
use crate::driver::cuda::{self, has};
use crate::fault;
use crate::handler::Call;
use crate::handler::aside::{self, Aside, attempt};
use crate::refusal::Refused;

/// `cuArrayCreate_v2`: Charges the array's bytes before the call. Arrays below 2 MiB share blocks
/// and are measured after the call.
pub fn create(
    call: Call,
    real: &dyn Real,
    array: Out<Array>,
    descriptor: In<ArrayDescriptor>,
) -> Status {
    let flat = descriptor.read().map(|flat| Array3dDescriptor {
        width: flat.width,
        height: flat.height,
        depth: 0,
        format: flat.format,
        channels: flat.channels,
        flags: 0,
    });
    plain(call, flat, array, real)
}

/// `cuArray3DCreate_v2`: Charged like `cuArrayCreate_v2`. Sparse arrays and arrays with deferred
/// mapping take no memory.
pub fn create_3d(
    call: Call,
    real: &dyn Real,
    array: Out<Array>,
    descriptor: In<Array3dDescriptor>,
) -> Status {
    plain(call, descriptor.read(), array, real)
}

/// `cuMipmappedArrayCreate`: Charged like `cuArray3DCreate_v2`, for all mipmap levels together.
pub fn create_mipmapped(
    call: Call,
    real: &dyn Real,
    array: Out<Array>,
    descriptor: In<Array3dDescriptor>,
    levels: u32,
) -> Status {
    let shape = descriptor.read().map(|descriptor| Shape {
        kind: Kind::Mipmapped,
        descriptor,
        levels,
    });
    make(call, shape, array, real)
}

fn plain(
    call: Call,
    descriptor: Option<Array3dDescriptor>,
    array: Out<Array>,
    real: &dyn Real,
) -> Status {
    let shape = descriptor.map(|descriptor| Shape {
        kind: Kind::Plain,
        descriptor,
        levels: 1,
    });
    make(call, shape, array, real)
}

fn make(call: Call, shape: Option<Shape>, array: Out<Array>, real: &dyn Real) -> Status {
    attempt(real, || {
        let shape = shape.ok_or(Aside::NothingToCharge)?;
        let descriptor = &shape.descriptor;
        if descriptor.flags & (ARRAY3D_SPARSE | ARRAY3D_DEFERRED_MAPPING) != 0 {
            // A sparse array, or one with deferred mapping, takes no memory. Memory mapped later is
            // charged by its own handle.
            return Err(Aside::NothingToCharge);
        }
        let device = call.process.current_device()?;
        aside::check_context()?;
        let making = Making {
            call,
            device,
            kind: shape.kind,
            array,
        };
        match required(call, device, shape) {
            Some(bytes) if bytes >= BLOCK => making.large(round_up(bytes, BLOCK), real),
            Some(_) => making.measured(BLOCK, real),
            // The driver refuses an array larger than the GPU with a status of its own.
            None if tiling::least(descriptor) > device.capacity => Err(Aside::NoSize),
            None => match tiling::most(descriptor, shape.levels) {
                0 => Err(Aside::NoSize),
                most => making.measured(most, real),
            },
        }
    })
}

/// Returns the bytes of an array of this shape; `None` if the driver does not tell or no limit
/// applies.
fn required(call: Call, device: &Device, shape: Shape) -> Option<u64> {
    let is_unlimited = device.book.group.max() == u64::MAX && device.book.keep_free() == 0;
    if is_unlimited
        || !has::cuArrayGetMemoryRequirements()
        || !has::cuMipmappedArrayGetMemoryRequirements()
    {
        return None;
    }
    let ask = || relaxed(|| ask_twin(device.ordinal, shape));
    call.process.arrays.required(device.ordinal, shape, ask)
}

/// Makes an array of this shape with deferred mapping (the twin), queries its size and destroys it.
fn ask_twin(ordinal: Ordinal, shape: Shape) -> Option<u64> {
    let twin = Array3dDescriptor {
        flags: shape.descriptor.flags | ARRAY3D_DEFERRED_MAPPING,
        ..shape.descriptor
    };
    let (mut array, mut told) = (0, ArrayMemoryRequirements::default());
    let (made, place) = (Out::of(&mut array), Out::of(&mut told));
    let asked = match shape.kind {
        Kind::Plain => {
            if cuda::cuArray3DCreate_v2(made, In::of(&twin)) != SUCCESS {
                return None;
            }
            let asked = cuda::cuArrayGetMemoryRequirements(place, array, ordinal);
            cuda::cuArrayDestroy(array);
            asked
        }
        Kind::Mipmapped => {
            if cuda::cuMipmappedArrayCreate(made, In::of(&twin), shape.levels) != SUCCESS {
                return None;
            }
            let asked = cuda::cuMipmappedArrayGetMemoryRequirements(place, array, ordinal);
            cuda::cuMipmappedArrayDestroy(array);
            asked
        }
    };
    (asked == SUCCESS && told.size > 0).then_some(told.size as u64)
}

/// An array that a driver call is about to make.
struct Making {
    call: Call,
    device: &'static Device,
    kind: Kind,
    array: Out<Array>,
}

impl Making {
    /// Returns the handle of the array if the driver has made it.
    fn handle(&self, status: Status) -> Option<Handle> {
        let array = self.array.read().filter(|_| status == SUCCESS)?;
        Some(Handle {
            kind: self.kind,
            array,
        })
    }

    fn enter(&self, handle: Handle, memory: Memory) {
        let entry = Entry {
            device: self.device.ordinal,
            context: current_context(),
            memory,
        };
        self.call.process.arrays.insert(handle, entry);
    }

    /// Makes an array of `bytes` bytes that shares its blocks with no other array.
    fn large(&self, bytes: u64, real: &dyn Real) -> Result<Status, Aside> {
        let (call, device) = (self.call, self.device);
        let make = |charged: Charged<'_>| {
            fault::point("array");
            let status = real.call();
            match self.handle(status) {
                Some(handle) => {
                    charged.spend();
                    device.book.add(Category::Arrays, bytes);
                    self.enter(handle, Memory::Own(bytes));
                }
                None => drop(charged),
            }
            status
        };
        let undo = || {
            if let Some(handle) = self.handle(SUCCESS) {
                end(call, handle.kind, handle.array, &|| {
                    discard(handle);
                    SUCCESS
                });
            }
        };
        Ok(device.take(call.symbol, bytes, make, undo)?)
    }

    /// Charges as many bytes as the driver's reserve paid for `grown` bytes of growth, and refills
    /// the reserve.
    fn make_whole(&self, grown: u64) -> Result<(), Refused> {
        let part = &self.device.driver_part;
        let missing = part.out_of_reserve(grown);
        if missing > 0 {
            let request = Request::insisting(self.call.symbol, missing);
            self.device.charge_ahead(request)?.spend();
            part.keep(&self.device.book, missing);
        }
        Ok(())
    }

    /// Makes an array of at most `most` bytes, which are charged before the call. The memory that
    /// the array takes is measured as part of the driver's own.
    fn measured(&self, most: u64, real: &dyn Real) -> Result<Status, Aside> {
        let (device, symbol) = (self.device, self.call.symbol);
        let paid = Prepaid::pay(device, Request::insisting(symbol, most))?;
        let before = device.driver_part.used();
        let status = real.call();
        let Some(handle) = self.handle(status) else {
            return Ok(status);
        };
        let measured = match paid.settle() {
            Ok(measured) => measured,
            Err(paid) => {
                // The GPU's memory use cannot be measured, so the array may have taken all of
                // `most`.
                paid.hand_over();
                device.book.add(Category::Arrays, most);
                self.enter(handle, Memory::Estimated(most));
                return Ok(status);
            }
        };
        // Accepted: what other threads' calls have taken meanwhile counts, too.
        let grown = measured.used.saturating_sub(before);
        let below = device.below();
        if grown > 0 && (measured.overrun > 0 || below.is_some()) {
            device.refuse(symbol, grown, below);
        } else if self.make_whole(grown).is_ok() {
            self.enter(handle, Memory::Measured);
            return Ok(status);
        }
        discard(handle);
        device.measure();
        Err(Aside::Refused)
    }
}

fn discard(handle: Handle) {
    match handle.kind {
        Kind::Plain => cuda::cuArrayDestroy(handle.array),
        Kind::Mipmapped => cuda::cuMipmappedArrayDestroy(handle.array),
    };
}

/// `cuArrayDestroy`: Uncharges the array after the call. For arrays in shared blocks, a measurement
/// finds the freed memory.
pub fn destroy(call: Call, real: &dyn Real, array: Array) -> Status {
    end(call, Kind::Plain, array, real)
}

/// `cuMipmappedArrayDestroy`: Uncharged like `cuArrayDestroy`. Arrays that were mapped from
/// external memory were not charged.
pub fn destroy_mipmapped(call: Call, real: &dyn Real, array: Array) -> Status {
    end(call, Kind::Mipmapped, array, real)
}

fn end(call: Call, kind: Kind, array: Array, real: &dyn Real) -> Status {
    let arrays = &call.process.arrays;
    let handle = Handle { kind, array };
    let mark = call.process.mark();
    let Some(entry) = arrays.take(handle) else {
        return real.call();
    };
    let Ok(device) = call.process.device(entry.device) else {
        return real.call();
    };
    let status = match entry.memory {
        Memory::Own(bytes) | Memory::Estimated(bytes) => {
            device.book.remove(Category::Arrays, bytes);
            let status = real.call();
            if status != SUCCESS {
                device.book.add(Category::Arrays, bytes);
            } else if matches!(entry.memory, Memory::Estimated(_)) && !device.is_unlisted() {
                // Only a measurement tells what the driver has freed.
                device.book.add_idle(bytes);
                device.driver_part.keep(&device.book, bytes);
                device.measure();
                return status;
            } else {
                device.book.uncharge(bytes);
            }
            device.renew(mark);
            status
        }
        Memory::Measured => {
            let status = real.call();
            if status == SUCCESS {
                device.measure();
            }
            status
        }
    };
    if status != SUCCESS {
        arrays.insert(handle, entry);
    }
    status
}

/// Forgets all arrays of the ended context. Calls `freed` for each array with blocks of its own.
pub fn drain(call: Call, context: Context, freed: impl Fn(Ordinal, Category, u64)) {
    call.process.arrays.drain(context, |entry| {
        if let Memory::Own(bytes) | Memory::Estimated(bytes) = entry.memory {
            freed(entry.device, Category::Arrays, bytes);
        }
    });
}
