//! Memory of another Python object, borrowed by the buffer protocol. Bulk reads write into this memory, and
//! bulk writes read from it, without a copy in Python.

#![expect(unsafe_code, reason = "Python's buffer protocol lends raw memory")]

use std::ffi::c_int;
use std::mem::MaybeUninit;

use pyo3::ffi;
use pyo3::prelude::*;

/// A buffer that an object lends. The object keeps the memory in place until this is dropped.
pub struct Borrowed(Box<ffi::Py_buffer>);

// SAFETY: the address and the length do not change while the buffer is lent, and they are all that is used without the
// interpreter's lock.
unsafe impl Send for Borrowed {}
// SAFETY: the address and the length do not change while the buffer is lent, and they are all that is used without the
// interpreter's lock.
unsafe impl Sync for Borrowed {}

impl Borrowed {
    /// Borrows `object` to read from it.
    pub fn readable(object: &Bound<'_, PyAny>) -> PyResult<Borrowed> {
        Self::of(object, ffi::PyBUF_SIMPLE)
    }

    /// Borrows `object` to write into it.
    pub fn writable(object: &Bound<'_, PyAny>) -> PyResult<Borrowed> {
        Self::of(object, ffi::PyBUF_WRITABLE)
    }

    /// Borrows `object` with `flags`. Both flags in use request contiguous bytes of any type.
    fn of(object: &Bound<'_, PyAny>, flags: c_int) -> PyResult<Borrowed> {
        let mut view = Box::new(MaybeUninit::<ffi::Py_buffer>::zeroed());
        // SAFETY: the object is valid, and the structure has room and stays where it is.
        let got = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), flags) };
        if got != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        // SAFETY: the call has filled the structure.
        Ok(Borrowed(unsafe { view.assume_init() }))
    }

    pub fn len(&self) -> usize {
        self.0.len as usize
    }

    /// Returns the bytes for reading.
    ///
    /// # Safety
    /// No thread writes to the bytes while the slice is used. (Python gives this promise to no reader of a
    /// buffer; a program that breaks it gets a mixture of bytes, as from `file.write`.)
    pub unsafe fn bytes(&self) -> &[u8] {
        if self.0.len == 0 {
            return &[];
        }
        // SAFETY: the object lends that many bytes there as long as `self` lives; the caller ensures the rest.
        unsafe { std::slice::from_raw_parts(self.0.buf.cast(), self.len()) }
    }

    /// Returns the bytes for writing.
    ///
    /// # Safety
    /// The buffer is [writable](Self::writable), and no thread uses the bytes while the slice is used; as for
    /// [`bytes`](Self::bytes).
    pub unsafe fn bytes_mut(&mut self) -> &mut [u8] {
        if self.0.len == 0 {
            return &mut [];
        }
        // SAFETY: as for `bytes`, and the object has lent the bytes for writing.
        unsafe { std::slice::from_raw_parts_mut(self.0.buf.cast(), self.len()) }
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        // If the interpreter has ended, the buffer need not be released.
        let _ = Python::try_attach(|_| {
            // SAFETY: the buffer was lent to this structure, and is given back once.
            unsafe { ffi::PyBuffer_Release(&mut *self.0) };
        });
    }
}
