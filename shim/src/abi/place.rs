//! Pointers that a C caller passes, as small values. Handlers read and write through these types
//! only.
#![allow(unsafe_code)]

use std::fmt;

/// A place that the callee writes. Same ABI as `T *`.
#[repr(transparent)]
pub struct Out<T>(*mut T);

/// A place that the callee reads. Same ABI as `const T *`.
#[repr(transparent)]
pub struct In<T>(*const T);

/// The address of a code image, or 0. Same ABI as `const void *`.
///
/// A value of this type comes only from a call of the program, so the memory behind it may be read
/// until that call returns.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Image(usize);

/// The address of a file name that ends with a NUL, or 0. Same ABI as `const char *`. As with
/// [`Image`], a value comes only from a call of the program.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct FileName(usize);

impl Image {
    pub fn address(self) -> usize {
        self.0
    }

    /// Makes the value that a program would pass.
    #[cfg(test)]
    pub fn at(address: usize) -> Self {
        Image(address)
    }
}

impl FileName {
    pub fn address(self) -> usize {
        self.0
    }

    /// Makes the value that a program would pass.
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

    /// Returns the place `index` elements further on in an array.
    pub fn at(self, index: usize) -> Self {
        Out(self.0.wrapping_add(index))
    }

    /// Returns the same address, for a callee that writes another type there.
    pub fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

impl<T: Copy> Out<T> {
    /// Returns the place for a call that the library or a test makes: `place` must outlive that
    /// call.
    pub fn of(place: &mut T) -> Self {
        Out(place)
    }

    /// As [`Out::of`], for a callee that fills an array.
    pub fn of_all(places: &mut [T]) -> Self {
        Out(places.as_mut_ptr())
    }

    /// Returns the value at the place; `None` for a null pointer. Call only after the callee that
    /// writes the place has succeeded.
    pub fn read(self) -> Option<T> {
        // SAFETY: the caller of a CUDA function promises the driver that a non-null out-pointer is
        // valid for one T until the call returns.
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }

    /// Writes `value` to the place; does nothing for a null pointer.
    pub fn write(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: the caller promises that the pointer is valid, as in `read`, and that the
            // callee may write there.
            unsafe { self.0.write_unaligned(value) }
        }
    }
}

impl<T: Copy + Ord> Out<T> {
    /// Lowers the value at the place to `most`, where it is larger.
    pub fn reduce(self, most: T) {
        if let Some(value) = self.read() {
            self.write(value.min(most));
        }
    }
}

impl<T: Copy> In<T> {
    /// Returns the place for a call that the library makes: `place` must outlive that call.
    pub fn of(place: &T) -> Self {
        In(place)
    }

    /// Returns the same address, for reading another type there.
    pub fn cast<U>(self) -> In<U> {
        In(self.0.cast())
    }

    /// Returns the place of element `index` of a list. The caller promises that the list has that
    /// many elements. A null pointer stays null.
    pub fn at(self, index: usize) -> Self {
        if self.0.is_null() {
            return self;
        }
        In(self.0.wrapping_add(index))
    }

    /// Returns the value at the place; `None` for a null pointer.
    pub fn read(self) -> Option<T> {
        // SAFETY: the caller of a CUDA function promises the driver that a non-null in-pointer is
        // valid for one T until the call returns.
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }
}
