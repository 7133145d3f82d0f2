//! A mapped region with Python's buffer protocol: `memoryview(mapping)`, `numpy.frombuffer(mapping)`.

#![expect(unsafe_code, reason = "Python's buffer protocol takes raw pointers")]

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cxloe_client::mapping::{self, Hint, MapError, MapOptions};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::Failure;

/// Mapped memory that only the process that mapped it unmaps. A child of `fork` has neither the memory nor the thread
/// that watches the agent, and unmapping would wait for the end of that thread.
struct Mapped {
    memory: ManuallyDrop<mapping::Mapping>,
    pid: u32,
}

impl Mapped {
    fn is_here(&self) -> bool {
        self.pid == std::process::id()
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: `memory` is dropped once, here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}

/// Memory of a mapping and the number of its views, which change together under one lock.
struct State {
    /// The memory; `None` once it is closed.
    mapped: Option<Arc<Mapped>>,
    /// Number of existing views of the memory (memoryviews, arrays).
    views: usize,
}

/// A mapped region.
#[pyclass(module = "cxloe", frozen)]
pub struct Mapping {
    name: String,
    size: usize,
    space: u64,
    kernel_faults: bool,
    pid: u32,
    /// Locked for a few instructions only, never during a wait.
    state: Mutex<State>,
}

impl Mapping {
    /// Maps the region `name` through the agent whose socket is at `socket`.
    pub fn open(py: Python<'_>, socket: &Path, name: String, options: MapOptions) -> PyResult<Mapping> {
        let memory = py.detach(|| mapping::Mapping::open(socket, &name, options)).map_err(Failure::from)?;
        let (size, space, kernel_faults) = (memory.len(), memory.space(), memory.serves_kernel_faults());
        let pid = std::process::id();
        let mapped = Some(Arc::new(Mapped { memory: ManuallyDrop::new(memory), pid }));
        Ok(Mapping { name, size, space, kernel_faults, pid, state: Mutex::new(State { mapped, views: 0 }) })
    }

    fn is_here(&self) -> Result<(), Failure> {
        if self.pid == std::process::id() { Ok(()) } else { Err(Failure::MappingOfParent) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `f` with the memory, without the interpreter's lock.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&mapping::Mapping) -> Result<T, MapError> + Send,
    ) -> Result<T, Failure> {
        self.is_here()?;
        let mapped = self.state().mapped.clone().ok_or(Failure::MappingClosed)?;
        py.detach(move || Ok(f(&mapped.memory)?))
    }
}

#[pymethods]
impl Mapping {
    /// Name of the region.
    #[getter]
    fn region(&self) -> &str {
        &self.name
    }

    /// Number of the region's space, as `cn-agent paging` prints it.
    #[getter]
    fn space(&self) -> u64 {
        self.space
    }

    /// Whether system calls may touch absent pages; if not, such a call fails with EFAULT.
    #[getter]
    fn kernel_faults(&self) -> bool {
        self.kernel_faults
    }

    /// Whether the mapping is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.is_here().is_ok() && self.state().mapped.is_none()
    }

    fn __len__(&self) -> usize {
        self.size
    }

    /// Waits until all earlier writes are at the memory nodes.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        Ok(self.with(py, mapping::Mapping::flush)?)
    }

    /// Changes the limit of resident bytes.
    fn set_local(&self, py: Python<'_>, local: u64) -> PyResult<()> {
        Ok(self.with(py, |memory| memory.set_limit(local))?)
    }

    /// Discards the content of whole pages, which read as zeros afterwards.
    fn discard(&self, py: Python<'_>, offset: usize, size: usize) -> PyResult<()> {
        Ok(self.with(py, |memory| memory.discard(offset..offset.saturating_add(size)))?)
    }

    /// Announces the use of a range: `will_read`, `will_write`, `cold` or `page_out`.
    fn hint(&self, py: Python<'_>, offset: usize, size: usize, hint: &str) -> PyResult<()> {
        let hint = match hint {
            "will_read" => Hint::WillRead,
            "will_write" => Hint::WillWrite,
            "cold" => Hint::Cold,
            "page_out" => Hint::PageOut,
            other => {
                let words = format!("no hint {other:?}: choose will_read, will_write, cold or page_out");
                return Err(PyValueError::new_err(words));
            }
        };
        Ok(self.with(py, |memory| memory.hint(offset..offset.saturating_add(size), hint))?)
    }

    /// Paging counters since the region was mapped, and the number of bytes that are resident now.
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let view = self.with(py, mapping::Mapping::paging)?;
        let counted = view.counters;
        let counters = PyDict::new(py);
        for (name, value) in [
            ("faults", counted.faults),
            ("zero_fills", counted.zero_fills),
            ("fetched", counted.fetched),
            ("prefetched", counted.prefetched),
            ("prefetch_hits", counted.prefetch_hits),
            ("evicted", counted.evicted),
            ("refaulted", counted.refaulted),
            ("written_back", counted.written_back),
            ("lines_written_back", counted.lines_written_back),
            ("resident", view.resident),
        ] {
            counters.set_item(name, value)?;
        }
        Ok(counters)
    }

    /// Writes all modified pages back and unmaps the region, which is unmapped also when writing back fails.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.is_here()?;
        let mapped = {
            let mut state = self.state();
            if state.views > 0 {
                let views = state.views;
                return Err(PyBufferError::new_err(format!(
                    "the mapping of region `{}` has {views} views (memoryviews, arrays): release them first",
                    self.name
                )));
            }
            state.mapped.take()
        };
        let Some(mapped) = mapped else { return Ok(()) };
        let flushed = py.detach(move || mapped.memory.flush());
        Ok(flushed.map_err(Failure::from)?)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        let closed = if self.closed() { ", closed" } else { "" };
        format!("<cxloe.Mapping of region {:?}, {} bytes{closed}>", self.name, self.size)
    }

    /// Lends the memory to a new view (a memoryview or an array), and counts the view.
    ///
    /// # Safety
    /// `view` is what Python's buffer protocol passes.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let mapping = slf.get();
        mapping.is_here().map_err(|failure| PyBufferError::new_err(failure.to_string()))?;
        let mut state = mapping.state();
        let Some(mapped) = &state.mapped else {
            return Err(PyBufferError::new_err(Failure::MappingClosed.to_string()));
        };
        let (address, size) = (mapped.memory.as_ptr().cast(), mapping.size as ffi::Py_ssize_t);
        let read_only = c_int::from(mapped.memory.is_sealed());
        // SAFETY: the structure is what Python passes, and the memory stays mapped as long as views are counted.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), address, size, read_only, flags) };
        if filled != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        state.views += 1;
        Ok(())
    }

    /// Stops counting a view that Python has released.
    ///
    /// # Safety
    /// `view` is what Python's buffer protocol passes, and was filled by `__getbuffer__`.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.state().views -= 1;
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Unmapping waits for the agent, so it runs without the interpreter's lock. If the interpreter has ended
        // already, there is no lock to release.
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let Some(mapped) = state.mapped.take() else { return };
        let mut mapped = Some(mapped);
        let _ = Python::try_attach(|py| py.detach(|| drop(mapped.take())));
    }
}
