//! Pointers that a C caller hands us, as small values: the only way handlers read and write through
//! them.
#![allow(unsafe_code)]

use std::fmt;

/// A place that the callee fills. Same ABI as `T *`.
#[repr(transparent)]
pub struct Out<T>(*mut T);

/// A place that the callee reads. Same ABI as `const T *`.
#[repr(transparent)]
pub struct In<T>(*const T);

/// The address of a code image, or 0. Same ABI as `const void *`.
///
/// The call of a program brings it, and nothing else makes one: whoever has it may read what is
/// there until that call ends.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Image(usize);

/// The address of the name of a file, which a NUL ends, or 0. Same ABI as `const char *`. Made by a
/// program's call alone, as an [`Image`].
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct FileName(usize);

impl Image {
    pub fn address(self) -> usize {
        self.0
    }

    /// As if a program had passed it.
    #[cfg(test)]
    pub fn at(address: usize) -> Self {
        Image(address)
    }
}

impl FileName {
    pub fn address(self) -> usize {
        self.0
    }

    /// As if a program had passed it.
    #[cfg(test)]
    pub fn at(address: usize) -> Self {
        FileName(address)
    }
}

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Out<T> {}
impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for In<T> {}

impl<T> fmt::Debug for Out<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
impl<T> fmt::Debug for In<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T> Out<T> {
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The place `index` elements further on, in an array.
    pub fn at(self, index: usize) -> Self {
        Out(self.0.wrapping_add(index))
    }

    /// The same address, for a callee that puts something else there.
    pub fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

impl<T: Copy> Out<T> {
    /// For a call of our own, or a test: `place` must outlive the call that this value is given to.
    pub fn of(place: &mut T) -> Self {
        Out(place)
    }

    /// As [`Out::of`], for a callee that fills an array.
    pub fn of_all(places: &mut [T]) -> Self {
        Out(places.as_mut_ptr())
    }

    /// What stands there; `None` for a null pointer. Only after the call that fills it has
    /// succeeded.
    pub fn read(self) -> Option<T> {
        // SAFETY: a non-null out-pointer of a CUDA call is valid for one T for the duration of that
        // call (the caller's promise to the driver).
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }

    /// Puts `value` there; nothing for a null pointer.
    pub fn write(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: as in `read`; the callee may write it.
            unsafe { self.0.write_unaligned(value) }
        }
    }
}

impl<T: Copy + Ord> Out<T> {
    /// Makes what stands there no larger than `most`.
    pub fn reduce(self, most: T) {
        if let Some(value) = self.read() {
            self.write(value.min(most));
        }
    }
}

impl<T: Copy> In<T> {
    /// For a call of our own: `place` must outlive the call that this value is given to.
    pub fn of(place: &T) -> Self {
        In(place)
    }

    /// The same address, where something else may stand as well.
    pub fn cast<U>(self) -> In<U> {
        In(self.0.cast())
    }

    /// The n-th element of a list that the caller promises to have so many; null stays null.
    pub fn at(self, index: usize) -> Self {
        if self.0.is_null() {
            return self;
        }
        In(self.0.wrapping_add(index))
    }

    /// What stands there; `None` for a null pointer.
    pub fn read(self) -> Option<T> {
        // SAFETY: a non-null in-pointer of a CUDA call is valid for one T for the duration of that
        // call (the caller's promise to the driver).
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }
}
