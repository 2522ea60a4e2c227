//! Pointers that a program passes to CUDA functions. Handlers access the program's memory only
//! through these types.
#![allow(unsafe_code)]

use std::fmt;

/// A pointer to a value that the called function writes. Same ABI as `T *`.
#[repr(transparent)]
pub struct Out<T>(*mut T);

/// A pointer to a value that the called function reads. Same ABI as `const T *`.
#[repr(transparent)]
pub struct In<T>(*const T);

/// The address of a code image (a cubin, PTX or fatbin), or 0. Valid until the program's CUDA call
/// returns.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Image(usize);

/// The address of a NUL-terminated file name, or 0. Valid until the program's CUDA call returns.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct FileName(usize);

impl Image {
    pub fn address(self) -> usize {
        self.0
    }

    /// Makes the pointer that a program would pass to a CUDA function.
    #[cfg(test)]
    pub fn at(address: usize) -> Self {
        Image(address)
    }
}

impl FileName {
    pub fn address(self) -> usize {
        self.0
    }

    /// Makes the pointer that a program would pass to a CUDA function.
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

    /// Returns a pointer to the array element `index` elements after the one that this pointer
    /// leads to.
    pub fn at(self, index: usize) -> Self {
        Out(self.0.wrapping_add(index))
    }

    /// Returns the same pointer, for a function that writes a value of type `U` to it.
    pub fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

impl<T: Copy> Out<T> {
    /// Returns a pointer to `place` for a call that gpulimit or a test makes; `place` must outlive
    /// the call.
    pub fn of(place: &mut T) -> Self {
        Out(place)
    }

    /// Returns a pointer to the first of `places`, for a function that fills an array; `places`
    /// must outlive the call.
    pub fn of_all(places: &mut [T]) -> Self {
        Out(places.as_mut_ptr())
    }

    /// Returns the value behind the pointer; `None` for a null pointer. Call only after the value
    /// was written.
    pub fn read(self) -> Option<T> {
        // SAFETY: the program promises the driver that a non-null out-pointer is valid for one T
        // until the call returns.
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }

    /// Writes `value` through the pointer; does nothing where the pointer is null.
    pub fn write(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: the program promises the driver a non-null out-pointer that is writable for
            // one T until the call returns.
            unsafe { self.0.write_unaligned(value) }
        }
    }
}

impl<T: Copy + Ord> Out<T> {
    /// Replaces the value behind the pointer by `most`, if the value is larger than `most`.
    pub fn reduce(self, most: T) {
        if let Some(value) = self.read() {
            self.write(value.min(most));
        }
    }
}

impl<T: Copy> In<T> {
    /// Returns a pointer to `place` for a call that gpulimit makes; `place` must outlive the call.
    pub fn of(place: &T) -> Self {
        In(place)
    }

    /// Returns the same pointer, for reading a value of type `U` from it.
    pub fn cast<U>(self) -> In<U> {
        In(self.0.cast())
    }

    /// Returns a pointer to element `index` of the list, which must have that many elements. A null
    /// pointer stays null.
    pub fn at(self, index: usize) -> Self {
        if self.0.is_null() {
            return self;
        }
        In(self.0.wrapping_add(index))
    }

    /// Returns the value that the pointer leads to; `None` for a null pointer.
    pub fn read(self) -> Option<T> {
        // SAFETY: the program promises the driver that a non-null in-pointer is valid for one T
        // until the call returns.
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }
}
