//! A connection to the agent of this machine: reads and writes of lines, the list of regions, and mappings.

#![expect(unsafe_code, reason = "a Python program may change a buffer that it has lent")]

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cxloe_client::client::{self, Client, ClientError};
use cxloe_client::defaults::default_socket;
use cxloe_client::mapping::{MapOptions, WAIT_DEFAULT};
use cxloe_client::message::RefusalReason;
use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffer::Borrowed;
use crate::errors::Failure;
use crate::mapping::Mapping;
use crate::region::Region;

/// Size of a line in bytes.
const LINE: usize = 64;
/// Maximum number of lines that are submitted together: the rings of a port have as many entries.
const BATCH: usize = 256;
/// Bytes that are transferred between two checks for signals of the process, so that Ctrl-C ends a long call.
const BETWEEN_SIGNALS: usize = 64 << 20;

/// Maximum of the mapping options that are times, such as `lost_wait`: 366 days.
const WAIT_MAX: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// A connection to the agent. Threads that share a connection wait for each other; a thread that must not wait needs a
/// separate connection.
#[pyclass(module = "cxloe", frozen)]
pub struct Node {
    path: PathBuf,
    /// Process that connected: a child of `fork` shares the rings with its parent, and must not use them.
    pid: u32,
    /// The port; `None` after the connection was closed. Locked only without the interpreter's lock, because the thread
    /// that has locked it may wait.
    port: Mutex<Option<Client>>,
}

/// Connects to the agent of this machine.
#[pyfunction]
#[pyo3(signature = (socket=None))]
pub fn connect(py: Python<'_>, socket: Option<PathBuf>) -> PyResult<Node> {
    let named = || std::env::var_os("CXLOE_AGENT").map_or_else(default_socket, PathBuf::from);
    let path = socket.unwrap_or_else(named);
    let port = py.detach(|| Client::connect(&path)).map_err(Failure::from)?;
    Ok(Node { path, pid: std::process::id(), port: Mutex::new(Some(port)) })
}

/// Returns the number of lines in `bytes` bytes, or an error if they are not whole lines.
fn lines(bytes: usize) -> PyResult<usize> {
    if bytes.is_multiple_of(LINE) {
        return Ok(bytes / LINE);
    }
    Err(PyValueError::new_err(format!("{bytes} bytes are not whole lines of {LINE}")))
}

/// Returns an error if the range ends beyond the largest address.
fn end(address: u64, bytes: usize) -> PyResult<()> {
    let end = address.checked_add(bytes as u64);
    end.map(drop)
        .ok_or_else(|| PyOverflowError::new_err(format!("no memory is {bytes} bytes from {address:#x} on")))
}

/// Divides `bytes` bytes into parts, after each of which signals are checked.
fn parts(bytes: usize) -> impl Iterator<Item = Range<usize>> {
    (0..bytes).step_by(BETWEEN_SIGNALS).map(move |from| from..bytes.min(from + BETWEEN_SIGNALS))
}

/// Returns the addresses of the `lines` lines of a batch that begins at `first`. Entries of the array beyond the first
/// `lines` ones are unused.
fn addresses(first: u64, lines: usize) -> [u64; BATCH] {
    std::array::from_fn(|i| if i < lines { first + (i * LINE) as u64 } else { first })
}

impl Node {
    /// Returns an error in a child of `fork`, which must not use its parent's connection.
    fn is_here(&self) -> Result<(), Failure> {
        if self.pid == std::process::id() { Ok(()) } else { Err(Failure::NodeOfParent) }
    }

    fn locked(&self) -> MutexGuard<'_, Option<Client>> {
        self.port.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `f` with the port, without the interpreter's lock.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&mut Client) -> Result<T, ClientError> + Send,
    ) -> Result<T, Failure> {
        self.is_here()?;
        py.detach(|| {
            let mut port = self.locked();
            let port = port.as_mut().ok_or(Failure::NodeClosed)?;
            Ok(f(port)?)
        })
    }

    /// Returns an error if the connection is closed.
    fn is_open(&self, py: Python<'_>) -> Result<(), Failure> {
        self.with(py, |_| Ok(()))
    }
}

#[pymethods]
impl Node {
    /// Path of the agent's socket.
    #[getter]
    fn socket(&self) -> PathBuf {
        self.path.clone()
    }

    /// Whether the connection is closed.
    #[getter]
    fn closed(&self, py: Python<'_>) -> PyResult<bool> {
        self.is_here()?;
        Ok(py.detach(|| self.locked().is_none()))
    }

    /// Regions that the agent has attached, in order of their addresses.
    fn regions(&self, py: Python<'_>) -> PyResult<Vec<Region>> {
        self.is_open(py)?;
        let regions = py.detach(|| client::regions(&self.path)).map_err(Failure::from)?;
        Ok(regions.into_iter().map(Region::from).collect())
    }

    /// The region named `name`.
    fn region(&self, py: Python<'_>, name: &str) -> PyResult<Region> {
        let found = self.regions(py)?.into_iter().find(|region| region.name() == name);
        found.ok_or_else(|| {
            let reason = RefusalReason::NoRegion(name.into());
            Failure::Agent(ClientError::Refused { path: self.path.clone(), reason }).into()
        })
    }

    /// Reads `size` bytes (whole lines) from `address` on, through the agent's line cache.
    fn read<'py>(&self, py: Python<'py>, address: u64, size: usize) -> PyResult<Bound<'py, PyBytes>> {
        lines(size)?;
        end(address, size)?;
        PyBytes::new_with(py, size, |out| {
            let mut at = address;
            for part in out.chunks_mut(BETWEEN_SIGNALS) {
                self.with(py, |port| {
                    let (lines, _) = part.as_chunks_mut::<LINE>();
                    lines.chunks_mut(BATCH).try_for_each(|batch| {
                        let first = at;
                        at += (batch.len() * LINE) as u64;
                        port.read_batch(&addresses(first, batch.len())[..batch.len()], batch)
                    })
                })?;
                py.check_signals()?;
            }
            Ok(())
        })
    }

    /// Writes `data` (whole lines) from `address` on, into the agent's line cache.
    fn write(&self, py: Python<'_>, address: u64, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let data = Borrowed::readable(data)?;
        lines(data.len())?;
        end(address, data.len())?;
        for part in parts(data.len()) {
            self.with(py, |port| {
                let mut at = address + part.start as u64;
                // SAFETY: the calling program must not change the data during the call; if it does, a mixture of old
                // and new bytes is written.
                let bytes = unsafe { &data.bytes()[part.clone()] };
                let (lines, _) = bytes.as_chunks::<LINE>();
                lines.chunks(BATCH).try_for_each(|batch| {
                    let pairs: Vec<_> = (at..).step_by(LINE).zip(batch.iter().copied()).collect();
                    at += (batch.len() * LINE) as u64;
                    port.write_batch(&pairs)
                })
            })?;
            py.check_signals()?;
        }
        Ok(())
    }

    /// Fills `buffer` (whole lines) with the bytes from `address` on, without the line cache. Returns the number of
    /// bytes read.
    fn read_into(&self, py: Python<'_>, address: u64, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let mut buffer = Borrowed::writable(buffer)?;
        lines(buffer.len())?;
        end(address, buffer.len())?;
        for part in parts(buffer.len()) {
            self.with(py, |port| {
                // SAFETY: the calling program must not use the buffer during the call; if it does, it finds a mixture
                // of old and new bytes.
                let out = unsafe { &mut buffer.bytes_mut()[part.clone()] };
                port.read_bytes(address + part.start as u64, out)
            })?;
            py.check_signals()?;
        }
        Ok(buffer.len())
    }

    /// Writes the bytes of `buffer` (whole lines) from `address` on, without the line cache; the memory nodes have the
    /// bytes when this returns. Returns the number of bytes written.
    fn write_from(&self, py: Python<'_>, address: u64, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let buffer = Borrowed::readable(buffer)?;
        lines(buffer.len())?;
        end(address, buffer.len())?;
        for part in parts(buffer.len()) {
            self.with(py, |port| {
                // SAFETY: the calling program must not change the buffer during the call; if it does, a mixture of old
                // and new bytes is written.
                let bytes = unsafe { &buffer.bytes()[part.clone()] };
                port.write_bytes(address + part.start as u64, bytes)
            })?;
            py.check_signals()?;
        }
        Ok(buffer.len())
    }

    /// Reads the lines at `addresses` into `buffer`, in the order of `addresses`; many requests are in flight at a
    /// time.
    fn read_lines(&self, py: Python<'_>, addresses: Vec<u64>, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut buffer = Borrowed::writable(buffer)?;
        room(&addresses, buffer.len())?;
        for part in parts(buffer.len()) {
            self.with(py, |port| {
                let hpas = &addresses[part.start / LINE..part.end / LINE];
                // SAFETY: the calling program must not use the buffer during the call; if it does, it finds a mixture
                // of old and new bytes.
                let out = unsafe { &mut buffer.bytes_mut()[part.clone()] };
                port.read_batch(hpas, out.as_chunks_mut().0)
            })?;
            py.check_signals()?;
        }
        Ok(())
    }

    /// Writes the lines of `data` to `addresses`; many requests are in flight at a time. Several writes to the same
    /// address keep their order.
    fn write_lines(&self, py: Python<'_>, addresses: Vec<u64>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let data = Borrowed::readable(data)?;
        room(&addresses, data.len())?;
        for part in parts(data.len()) {
            self.with(py, |port| {
                let hpas = &addresses[part.start / LINE..part.end / LINE];
                // SAFETY: the calling program must not change the data during the call; if it does, a mixture of old
                // and new bytes is written.
                let bytes = unsafe { &data.bytes()[part.clone()] };
                let lines = bytes.as_chunks::<LINE>().0;
                hpas.chunks(BATCH).zip(lines.chunks(BATCH)).try_for_each(|(hpas, lines)| {
                    let pairs: Vec<_> = hpas.iter().copied().zip(lines.iter().copied()).collect();
                    port.write_batch(&pairs)
                })
            })?;
            py.check_signals()?;
        }
        Ok(())
    }

    /// Waits until every line that was written earlier through this agent is at its memory node.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        Ok(self.with(py, Client::flush)?)
    }

    /// Maps a region: its pages are fetched on first touch.
    #[pyo3(signature = (region, *, local=MapOptions::default().limit, prefetch=true, fresh=false, lost_wait=None,
                        agent_wait=None))]
    #[allow(clippy::too_many_arguments, reason = "each is an option of Python's call, by name")]
    fn map(
        &self,
        py: Python<'_>,
        region: &Bound<'_, PyAny>,
        local: u64,
        prefetch: bool,
        fresh: bool,
        lost_wait: Option<f64>,
        agent_wait: Option<f64>,
    ) -> PyResult<Mapping> {
        self.is_open(py)?;
        let name = match region.cast::<Region>() {
            Ok(region) => region.get().name().to_owned(),
            Err(_) => region.extract()?,
        };
        let usual = MapOptions::default();
        let options = MapOptions {
            limit: local,
            prefetch,
            fresh,
            lost_wait: seconds("lost_wait", lost_wait, usual.lost_wait)?,
            wait: seconds("agent_wait", agent_wait, WAIT_DEFAULT)?,
            ..usual
        };
        Mapping::open(py, &self.path, name, options)
    }

    /// Closes the connection. Mappings made through it stay mapped.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.is_here()?;
        py.detach(|| drop(self.locked().take()));
        Ok(())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        format!("<cxloe.Node at {}>", self.path.display())
    }
}

/// Returns an error unless the buffer has exactly one line for each address.
fn room(addresses: &[u64], bytes: usize) -> PyResult<()> {
    if lines(bytes)? == addresses.len() {
        return Ok(());
    }
    let (wanted, count) = (addresses.len().saturating_mul(LINE), addresses.len());
    Err(PyValueError::new_err(format!("{count} lines are {wanted} bytes, and the buffer has {bytes}")))
}

/// Converts the option `name`, a wait of 0 seconds to a year, to a duration; `None` gives `usual`.
fn seconds(name: &str, given: Option<f64>, usual: Duration) -> PyResult<Duration> {
    let Some(given) = given else { return Ok(usual) };
    let wait = Duration::try_from_secs_f64(given).ok().filter(|wait| *wait <= WAIT_MAX);
    wait.ok_or_else(|| {
        let most = WAIT_MAX.as_secs();
        PyValueError::new_err(format!("{name} of {given} seconds: choose 0 to {most}, which is a year"))
    })
}
