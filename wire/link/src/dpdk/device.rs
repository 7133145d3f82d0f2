//! Devices of DPDK as an option names them, and the ports that this process has opened.
//!
//! ```text
//!   dpdk:0000:03:00.0                                    a card, by its PCI address
//!   dpdk:0000:03:00.0,mtu=9000                           with an MTU
//!   dpdk:net_memif0,role=client,socket=/run/x.sock       a virtual device, with its driver's arguments
//! ```
//!
//! DPDK is started once in a process, for the first device. A port is configured for all of its queues at
//! once, and stopped when the last of them is dropped.

#![expect(unsafe_code, reason = "sched_getaffinity and sched_setaffinity take raw pointers")]

use std::collections::HashMap;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cxloe_net::ETHERNET_HEADER;

use super::plugin::{DeviceInfo, Plugin};
use crate::LinkError;

/// Prefix of the name of an interface that is a device of DPDK.
pub const PREFIX: &str = "dpdk:";
/// Driver for memory that is shared with another process.
const SHARED_MEMORY: &str = "net_memif";
/// Size in megabytes of the memory for buffers on a machine without huge pages.
const MEMORY: u32 = 128;

/// Parsed name of a DPDK device, as written in an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeviceName {
    /// Device and arguments of its driver, in DPDK's syntax.
    device: String,
    /// MTU to set, in bytes; 0 keeps the device's own.
    pub mtu: u16,
}

impl DeviceName {
    /// Parses the name of an interface, which begins with [`PREFIX`].
    pub fn parse(interface: &str) -> Result<DeviceName, String> {
        let text = interface.strip_prefix(PREFIX).unwrap_or(interface);
        let mut parts = Vec::new();
        let mut mtu = 0;
        for part in text.split(',') {
            match part.strip_prefix("mtu=") {
                Some(value) => {
                    let read = value.parse().ok().filter(|mtu| (68..=9600).contains(mtu));
                    mtu = read.ok_or_else(|| format!("`mtu={value}` is no MTU from 68 to 9600"))?;
                }
                None => parts.push(part),
            }
        }
        if parts.first().is_none_or(|first| first.is_empty()) {
            return Err(format!(
                "`{interface}` names no device: write {PREFIX}0000:03:00.0, or {PREFIX}net_memif0,role=client,socket=PATH"
            ));
        }
        let mut device = parts.join(",");
        // The driver for shared memory splits frames longer than its buffers, but this link needs whole frames, so the
        // buffers must fit the MTU.
        if mtu > 0 && device.starts_with(SHARED_MEMORY) && !device.contains(",bsize=") {
            let bytes = (usize::from(mtu) + ETHERNET_HEADER + 4).next_multiple_of(64);
            device += &format!(",bsize={bytes}");
        }
        Ok(DeviceName { device, mtu })
    }

    /// Whether the device is shared memory to which this process connects as a client. Such a device must be opened
    /// again to reconnect.
    pub fn connects_by_opening(&self) -> bool {
        self.device.starts_with(SHARED_MEMORY) && self.argument("role") == Some("client")
    }

    /// Value of the driver's argument `name`, as in `role=client`.
    fn argument(&self, name: &str) -> Option<&str> {
        self.device.split(',').find_map(|argument| argument.strip_prefix(name)?.strip_prefix('='))
    }

    /// Removes the socket file left by a shared-memory server that was killed; with that file the driver
    /// would refuse to start.
    fn remove_stale_socket(&self) {
        let Some(path) = self.argument("socket").filter(|_| self.argument("socket-abstract") == Some("no"))
        else {
            return;
        };
        // If a process listens on the socket, the error of connecting is another one, because the driver's socket is of
        // another type.
        let nobody_listens = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        if self.argument("role") != Some("client") && UnixStream::connect(path).is_err_and(nobody_listens) {
            let _ = std::fs::remove_file(path);
        }
    }

    /// Whether the device is a card on the PCI bus, and not a virtual device.
    fn is_on_pci(&self) -> bool {
        self.device.split(',').next().is_some_and(|name| name.contains(':'))
    }
}

/// Device that DPDK has found.
#[derive(Clone, Debug)]
pub(super) struct Device {
    pub port: u16,
    pub info: DeviceInfo,
    pub name: DeviceName,
}

/// DPDK in this process, and the ports in use.
struct Runtime {
    plugin: &'static Plugin,
    /// Whether DPDK was started with access to the PCI bus.
    pci: bool,
    /// Queues in use, by port number.
    open: Mutex<HashMap<u16, PortUse>>,
}

#[derive(Debug, Default)]
struct PortUse {
    queues: u16,
    used: Vec<u16>,
}

/// Use of a queue; dropping the value frees the queue, and stops the port with its last queue.
pub(super) struct QueueUse {
    runtime: &'static Runtime,
    port: u16,
    queue: u16,
}

impl Drop for QueueUse {
    fn drop(&mut self) {
        let mut open = self.runtime.ports();
        let Some(port) = open.get_mut(&self.port) else { return };
        port.used.retain(|used| *used != self.queue);
        if port.used.is_empty() {
            self.runtime.plugin.close(self.port);
            open.remove(&self.port);
        }
    }
}

impl Runtime {
    fn ports_are_open(&self) -> bool {
        !self.ports().is_empty()
    }

    fn ports(&self) -> MutexGuard<'_, HashMap<u16, PortUse>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unsupported(interface: &str, why: String) -> LinkError {
    LinkError::Unsupported { backend: "dpdk", interface: interface.to_owned(), why }
}

/// Starts DPDK, unless it already runs in this process.
fn runtime(name: &DeviceName) -> Result<&'static Runtime, String> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    static STARTING: Mutex<()> = Mutex::new(());
    let _one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let plugin = Plugin::load()?;
    let pci = name.is_on_pci();
    let affinity = Affinity::of_this_thread();
    let started = plugin.start(&arguments(name, affinity.first(), has_huge_pages()));
    // DPDK pins the calling thread to one CPU when it starts; this undoes the pinning.
    affinity.restore();
    started.map_err(|why| explained(&why, pci))?;
    let plugin = Box::leak(Box::new(plugin));
    Ok(RUNTIME.get_or_init(|| Runtime { plugin, pci, open: Mutex::default() }))
}

/// Adds advice to DPDK's reason why it has not started.
fn explained(why: &str, pci: bool) -> String {
    let advice = if pci {
        "; a card needs huge pages (`sysctl vm.nr_hugepages=128`), a driver that DPDK has (`dpdk-devbind.py --status`), \
         and for most drivers vfio-pci (`modprobe vfio-pci`, `dpdk-devbind.py --bind=vfio-pci ADDRESS`)"
    } else {
        "; its messages are on standard error"
    };
    format!("{why}{advice}")
}

/// Arguments of DPDK's environment abstraction layer: share no files with other processes, and take no core.
fn arguments(name: &DeviceName, cpu: usize, huge_pages: bool) -> Vec<String> {
    let mut arguments: Vec<String> =
        ["cxloe", "--no-telemetry", "--log-level=lib.*:error", "--log-level=pmd.*:critical"]
            .map(Into::into)
            .into();
    arguments.push(format!("--lcores=0@{cpu}"));
    match name.is_on_pci() {
        true => arguments.extend(["-a".into(), name.device.clone()]),
        false => arguments.push("--no-pci".into()),
    }
    match huge_pages {
        true => arguments.push("--in-memory".into()),
        false => {
            let memory = MEMORY.to_string();
            arguments.extend(["--no-shconf", "--no-huge", "-m", &memory].map(Into::into));
        }
    }
    arguments
}

fn has_huge_pages() -> bool {
    let Ok(sizes) = std::fs::read_dir("/sys/kernel/mm/hugepages") else { return false };
    let free =
        |size: &Path| std::fs::read_to_string(size.join("free_hugepages")).ok()?.trim().parse::<u64>().ok();
    sizes.flatten().any(|size| free(&size.path()).is_some_and(|free| free > 0))
}

/// CPUs that a thread may run on.
struct Affinity(libc::cpu_set_t);

impl Affinity {
    fn of_this_thread() -> Affinity {
        // SAFETY: a set of CPUs is plain data for which all zeros is valid.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set outlives the call, and its size is passed; on failure the set stays empty.
        unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) };
        Affinity(set)
    }

    fn first(&self) -> usize {
        // SAFETY: the number is below the number of bits in a set.
        (0..libc::CPU_SETSIZE as usize).find(|cpu| unsafe { libc::CPU_ISSET(*cpu, &self.0) }).unwrap_or(0)
    }

    fn restore(&self) {
        // SAFETY: the set outlives the call, and its size is passed.
        unsafe { libc::sched_setaffinity(0, size_of_val(&self.0), &self.0) };
    }
}

/// Finds the device of an interface whose name begins with [`PREFIX`].
pub(super) fn find(interface: &str) -> Result<Device, LinkError> {
    let look = || {
        let name = DeviceName::parse(interface)?;
        let runtime = runtime(&name)?;
        if name.is_on_pci() != runtime.pci {
            return Err("one process uses either cards or virtual devices".into());
        }
        if !runtime.ports_are_open() {
            name.remove_stale_socket();
        }
        let (port, info) = runtime.plugin.find(&name.device)?;
        Ok(Device { port, info, name })
    };
    look().map_err(|why| unsupported(interface, why))
}

/// Takes a queue of a device. A device that is not open yet is opened with `queues` queues.
pub(super) fn take_queue(
    interface: &str,
    device: &Device,
    queue: u16,
    queues: u16,
) -> Result<(&'static Plugin, Arc<QueueUse>), LinkError> {
    let take = || {
        let runtime = runtime(&device.name)?;
        let mut open = runtime.ports();
        if let std::collections::hash_map::Entry::Vacant(new) = open.entry(device.port) {
            runtime.plugin.open(device.port, queues, device.name.mtu)?;
            new.insert(PortUse { queues, used: Vec::new() });
        }
        let port = open.get_mut(&device.port).expect("it was inserted");
        if port.queues != queues || port.used.contains(&queue) {
            return Err(format!(
                "queue {queue} is in use: a device belongs to one process, and each queue to one link"
            ));
        }
        port.used.push(queue);
        Ok((runtime.plugin, Arc::new(QueueUse { runtime, port: device.port, queue })))
    };
    take().map_err(|why| unsupported(interface, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read() {
        let name = |device: &str, mtu| Ok(DeviceName { device: device.into(), mtu });
        assert_eq!(DeviceName::parse("dpdk:0000:03:00.0"), name("0000:03:00.0", 0));
        let memif = "net_memif0,role=client,socket=/x";
        assert_eq!(
            DeviceName::parse(&format!("dpdk:{memif},mtu=9000")),
            name(&format!("{memif},bsize=9024"), 9000)
        );
        for wrong in ["dpdk:", "dpdk:,mtu=1500", "dpdk:net_memif0,mtu=many", "dpdk:net_memif0,mtu=0"] {
            assert!(DeviceName::parse(wrong).is_err(), "{wrong}");
        }
        let is_on_pci = |text: &str| DeviceName::parse(text).unwrap().is_on_pci();
        assert!(is_on_pci("dpdk:0000:03:00.0,mtu=9000") && !is_on_pci("dpdk:net_memif0,socket=/a:b"));
    }

    #[test]
    fn a_socket_is_removed_if_nobody_listens() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("memif.sock");
        let name = |role: &str| {
            let text = format!("dpdk:net_memif0,role={role},socket={},socket-abstract=no", path.display());
            DeviceName::parse(&text).unwrap()
        };
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        name("server").remove_stale_socket();
        assert!(path.exists(), "a process listens there");
        drop(listener);
        name("client").remove_stale_socket();
        assert!(path.exists(), "it is the server's");
        name("server").remove_stale_socket();
        assert!(!path.exists());
    }

    #[test]
    fn no_files_are_shared_and_no_core_is_taken() {
        let card = DeviceName::parse("dpdk:0000:03:00.0").unwrap();
        let all = arguments(&card, 3, true).join(" ");
        assert_eq!(
            all,
            "cxloe --no-telemetry --log-level=lib.*:error --log-level=pmd.*:critical --lcores=0@3 \
             -a 0000:03:00.0 --in-memory"
        );
        let shared = DeviceName::parse("dpdk:net_memif0").unwrap();
        assert!(
            arguments(&shared, 0, false)
                .ends_with(&["--no-pci", "--no-shconf", "--no-huge", "-m", "128"].map(Into::into))
        );
    }

    #[test]
    fn the_cpus_of_a_thread_are_as_before() {
        let before = Affinity::of_this_thread();
        before.restore();
        assert_eq!(before.first(), Affinity::of_this_thread().first());
    }
}
