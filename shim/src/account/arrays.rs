//! The arrays and mipmapped arrays of the process, and the memory that each shape of array
//! requires.
//!
//! The entry of an array is removed before the driver destroys the array. During that call, the
//! driver can already reuse the handle for a new array.

use parking_lot::Mutex;

use crate::abi::{Array, Array3dDescriptor, Context, Device as Ordinal};
use crate::account::maps::Map;

/// The kind of an array handle: `CUarray` or `CUmipmappedArray`.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Kind {
    Plain,
    Mipmapped,
}

/// The handle of an array of either kind.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Handle {
    pub kind: Kind,
    pub array: Array,
}

/// Where the account counts the memory of an array.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Memory {
    /// The array has this many bytes of device memory for itself.
    Own(u64),
    /// The array is charged by this estimate, because NVML gave no figure. It may take fewer bytes,
    /// and every measurement until its end counts them for the driver's own memory.
    Estimated(u64),
    /// The array shares 2 MiB blocks, or its size is unknown. Measurements count its memory as the
    /// driver's own.
    Measured,
}

/// The record of an array: its device, its context and where its memory is counted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Entry {
    pub device: Ordinal,
    pub context: Context,
    pub memory: Memory,
}

/// The properties of an array that decide how much memory it takes.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Shape {
    pub kind: Kind,
    pub descriptor: Array3dDescriptor,
    pub levels: u32,
}

/// The most array shapes whose memory requirement is remembered. For any other shape the driver is
/// asked each time.
const REMEMBERED: usize = 256;

/// The arrays of a process.
#[derive(Default)]
pub struct Arrays {
    live: Mutex<Map<Handle, Entry>>,
    required: Mutex<Map<(Ordinal, Shape), u64>>,
}

impl Arrays {
    pub fn insert(&self, handle: Handle, entry: Entry) {
        self.live.lock().insert(handle, entry);
    }

    /// Removes the record of an array and returns it; `None` when the array is unknown.
    pub fn take(&self, handle: Handle) -> Option<Entry> {
        self.live.lock().remove(&handle)
    }

    /// Removes all arrays of the destroyed context `context`. Calls `gone` with each array.
    pub fn drain(&self, context: Context, gone: impl FnMut(Entry)) {
        let mut live = self.live.lock();
        let drained = live.extract_if(|_, entry| entry.context == context);
        drained.map(|(_, entry)| entry).for_each(gone);
    }

    /// Returns the bytes that an array of this shape requires. Calls `ask` unless the number is
    /// remembered.
    pub fn required(
        &self,
        device: Ordinal,
        shape: Shape,
        ask: impl FnOnce() -> Option<u64>,
    ) -> Option<u64> {
        let known = self.required.lock().get(&(device, shape)).copied();
        if known.is_some() {
            return known;
        }
        let bytes = ask()?;
        let mut required = self.required.lock();
        if required.len() < REMEMBERED {
            required.insert((device, shape), bytes);
        }
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_is_known_until_it_is_destroyed_or_its_context_is() {
        let arrays = Arrays::default();
        let handle = |array| Handle {
            kind: Kind::Plain,
            array,
        };
        let of = |context, bytes| Entry {
            device: 0,
            context,
            memory: Memory::Own(bytes),
        };
        arrays.insert(handle(1), of(7, 10));
        arrays.insert(handle(2), of(7, 20));
        arrays.insert(handle(3), of(8, 40));
        let mipmapped = Handle {
            kind: Kind::Mipmapped,
            ..handle(1)
        };
        assert_eq!(arrays.take(mipmapped), None);
        assert_eq!(arrays.take(handle(1)), Some(of(7, 10)));
        assert_eq!(arrays.take(handle(1)), None);
        let mut gone = Vec::new();
        arrays.drain(7, |entry| gone.push(entry));
        assert_eq!(gone, [of(7, 20)]);
        assert_eq!(arrays.take(handle(3)), Some(of(8, 40)));
    }

    #[test]
    fn sizes_of_a_limited_number_of_shapes_are_remembered() {
        let arrays = Arrays::default();
        let required = |device, width, told| {
            let shape = Shape {
                kind: Kind::Plain,
                descriptor: Array3dDescriptor {
                    width,
                    height: 0,
                    depth: 0,
                    format: 1,
                    channels: 1,
                    flags: 0,
                },
                levels: 1,
            };
            arrays.required(device, shape, || told)
        };
        assert_eq!(required(0, 1, None), None);
        assert_eq!(required(0, 1, Some(10)), Some(10));
        assert_eq!(required(0, 1, None), Some(10));
        assert_eq!(required(1, 1, None), None, "another device");
        for width in 2..=REMEMBERED + 1 {
            assert_eq!(required(0, width, Some(20)), Some(20));
        }
        assert_eq!(required(0, REMEMBERED, None), Some(20));
        assert_eq!(
            required(0, REMEMBERED + 1, None),
            None,
            "a further shape is not remembered"
        );
    }
}
