//! Devices of DPDK as an option names them, and the ports that this process has opened.
//!
//! ```text
//!   dpdk:0000:03:00.0                                    a card, by its PCI address
//!   dpdk:0000:03:00.0,mtu=9000                           with an MTU
//!   dpdk:net_memif0,role=client,socket=/run/x.sock       a virtual device, with its driver's arguments
//! ```
//!
//! DPDK is started once in a process, for the first device. A port is configured for all of its queues at
//! once, with the rules that steer frames to them, and stopped when the last of them is dropped.

#![expect(unsafe_code, reason = "sched_getaffinity and sched_setaffinity take raw pointers")]

use std::collections::HashMap;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use cxloe_net::ETHERNET_HEADER;
use cxloe_wire::frame::Mac;

use super::plugin::{DeviceInfo, Plugin, QUEUES_MAX, Rule};
use super::steering::{Demand, Steerable, Steered, Steering, steer};
use crate::{LinkConfig, LinkError};

/// Prefix of the name of an interface that is a device of DPDK.
pub const PREFIX: &str = "dpdk:";
/// Driver for memory that is shared with another process.
const SHARED_MEMORY: &str = "net_memif";
/// Size in megabytes of the memory of a process with virtual devices, without that of queues.
const MEMORY: u32 = 104;
/// Size in megabytes of the memory for the buffers of a queue, at the largest MTU.
const MEMORY_OF_QUEUE: u32 = 24;
/// The kernel's drivers beside which DPDK uses a card (bifurcated drivers): the kernel keeps its interfaces.
const KEEPING: [&str; 3] = ["mlx4_core", "mlx5_core", "mana"];
/// Error of a device that cannot have several queues.
const ONE_QUEUE: &str = "it serves one queue: leave --workers and --queues at 1";

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

    /// Device and arguments of its driver, for a link of `queues` queues. Both ends of shared memory need as many queues,
    /// or the driver would read one ring by two queues. Its secret makes the driver check that: an end with
    /// several queues refuses one with another number of them.
    fn for_queues(&self, queues: u16) -> String {
        let device = &self.device;
        match device.starts_with(SHARED_MEMORY) && queues > 1 && self.argument("secret").is_none() {
            true => format!("{device},secret=queues{queues}"),
            false => device.clone(),
        }
    }

    /// Folder of the card below `sys`, the root of sysfs; `None` for a virtual device.
    fn folder(&self, sys: &Path) -> Option<PathBuf> {
        let name = self.device.split(',').next().filter(|_| self.is_on_pci())?;
        let address = name.strip_prefix("pci:").unwrap_or(name);
        let address = match address.matches(':').count() {
            1 => format!("0000:{address}"),
            _ => address.to_owned(),
        };
        Some(sys.join("bus/pci/devices").join(address))
    }

    /// Name of the card's interface, if the kernel keeps the card and has one interface for it. `sys` is the root of
    /// sysfs.
    pub fn kernel_interface(&self, sys: &Path) -> Option<String> {
        let mut interfaces = std::fs::read_dir(self.folder(sys)?.join("net")).ok()?.flatten();
        let only = interfaces.next()?.file_name().into_string().ok()?;
        interfaces.next().is_none().then_some(only)
    }

    /// Whether the kernel has the card too, so that it wants some of its frames. `sys` is the root of sysfs.
    fn stays_with_kernel(&self, sys: &Path) -> bool {
        let driver = self.folder(sys).and_then(|folder| std::fs::read_link(folder.join("driver")).ok());
        let name = driver.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
        name.is_some_and(|name| KEEPING.contains(&name))
    }
}

/// Frames of a card that the kernel gets while a port is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KernelFrames {
    /// None: DPDK has the card alone, or it is a virtual device.
    None,
    /// All that are not this protocol's.
    Others,
    /// At most those for other addresses than the port's, because the driver steers no single protocol.
    OtherAddresses,
}

impl KernelFrames {
    /// Text for the detail of a link.
    pub fn describe(self) -> &'static str {
        match self {
            KernelFrames::None => "",
            KernelFrames::Others => ", the kernel gets all other frames",
            KernelFrames::OtherAddresses => ", the kernel gets no frames for this address",
        }
    }
}

/// Device that DPDK has found.
pub(super) struct Device {
    pub port: u16,
    pub info: DeviceInfo,
    pub name: DeviceName,
    runtime: &'static Runtime,
}

impl Device {
    pub fn plugin(&self) -> &'static Plugin {
        self.runtime.plugin
    }
}

/// DPDK in this process, and the ports in use.
struct Runtime {
    plugin: &'static Plugin,
    /// Whether DPDK was started with access to the PCI bus.
    pci: bool,
    /// Queues in use, by port number.
    open: Mutex<HashMap<u16, PortUse>>,
}

#[derive(Debug)]
struct PortUse {
    queues: u16,
    used: Vec<u16>,
    steering: Steering,
    kernel: KernelFrames,
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

/// Port that is open, for its rules.
struct OpenPort(&'static Plugin, u16);

impl Steerable for OpenPort {
    fn clear(&self) {
        self.0.clear(self.1);
    }

    fn add(&self, rule: &Rule) -> Result<(), String> {
        self.0.rule(self.1, rule)
    }

    fn hash(&self) -> Result<(), String> {
        self.0.hash(self.1)
    }
}

fn unsupported(interface: &str, why: String) -> LinkError {
    LinkError::Unsupported { backend: "dpdk", interface: interface.to_owned(), why }
}

/// Starts DPDK with memory for `queues` queues, unless it already runs in this process.
fn runtime(name: &DeviceName, queues: u16) -> Result<&'static Runtime, String> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    static STARTING: Mutex<()> = Mutex::new(());
    let _one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let plugin = Plugin::load()?;
    let pci = name.is_on_pci();
    let affinity = Affinity::of_this_thread();
    // A card needs huge pages, however few there are. A virtual device takes them if they are enough.
    let needed = if pci { 1 } else { memory(queues) };
    let huge_pages = free_huge_memory(Path::new("/sys")) >= u64::from(needed);
    let started = plugin.start(&arguments(name, queues, affinity.first(), huge_pages));
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
fn arguments(name: &DeviceName, queues: u16, cpu: usize, huge_pages: bool) -> Vec<String> {
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
            let memory = memory(queues).to_string();
            arguments.extend(["--no-shconf", "--no-huge", "-m", &memory].map(Into::into));
        }
    }
    arguments
}

/// Size in megabytes of the memory of a process with `queues` queues.
fn memory(queues: u16) -> u32 {
    MEMORY + MEMORY_OF_QUEUE * u32::from(queues)
}

/// Size in megabytes of the free huge pages of all sizes. `sys` is the root of sysfs.
fn free_huge_memory(sys: &Path) -> u64 {
    let free_kib = |size: &Path| {
        let name = size.file_name()?.to_str()?.strip_prefix("hugepages-")?;
        let kib: u64 = name.strip_suffix("kB")?.parse().ok()?;
        let pages: u64 = std::fs::read_to_string(size.join("free_hugepages")).ok()?.trim().parse().ok()?;
        Some(pages.saturating_mul(kib))
    };
    let Ok(sizes) = std::fs::read_dir(sys.join("kernel/mm/hugepages")) else { return 0 };
    sizes.flatten().filter_map(|size| free_kib(&size.path())).fold(0, u64::saturating_add) >> 10
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

/// Finds the device of an interface whose name begins with [`PREFIX`], for a link of `queues` queues.
pub(super) fn find(interface: &str, queues: u32) -> Result<Device, LinkError> {
    let look = || {
        let name = DeviceName::parse(interface)?;
        let queues = u16::try_from(queues).unwrap_or(u16::MAX);
        let runtime = runtime(&name, queues.min(QUEUES_MAX))?;
        if name.is_on_pci() != runtime.pci {
            return Err("one process uses either cards or virtual devices".into());
        }
        if !runtime.ports_are_open() {
            name.remove_stale_socket();
        }
        let (port, info) = runtime.plugin.find(&name.for_queues(queues))?;
        Ok(Device { port, info, name, runtime })
    };
    look().map_err(|why| unsupported(interface, why))
}

/// Queue that a link has taken.
pub(super) struct TakenQueue {
    pub plugin: &'static Plugin,
    pub number: u16,
    pub in_use: QueueUse,
    pub steering: Steering,
    pub kernel: KernelFrames,
}

/// Takes a queue of a device, the one that `config` names. A device that is not open yet is opened with all queues of
/// the process.
pub(super) fn take_queue(config: &LinkConfig, device: &Device) -> Result<TakenQueue, LinkError> {
    let runtime = device.runtime;
    let take = || {
        let queues = queues(config.queues, device.info.queues)?;
        let number = config.queue as u16;
        let mut open = runtime.ports();
        if let std::collections::hash_map::Entry::Vacant(new) = open.entry(device.port) {
            let (steering, kernel) = open_port(config, device, queues)?;
            new.insert(PortUse { queues, used: Vec::new(), steering, kernel });
        }
        let port = open.get_mut(&device.port).expect("it was inserted");
        if port.queues != queues || number >= queues || port.used.contains(&number) {
            return Err(format!(
                "queue {number} is in use: a device belongs to one process, and each queue to one link"
            ));
        }
        port.used.push(number);
        let in_use = QueueUse { runtime, port: device.port, queue: number };
        let (steering, kernel) = (port.steering, port.kernel);
        Ok(TakenQueue { plugin: runtime.plugin, number, in_use, steering, kernel })
    };
    take().map_err(|why| unsupported(&config.interface, why))
}

/// Number of queues to open, of a device that has `has` queues of each direction.
fn queues(wanted: u32, has: u16) -> Result<u16, String> {
    let most = has.min(QUEUES_MAX);
    match u16::try_from(wanted) {
        Ok(queues) if queues <= most.max(1) => Ok(queues),
        _ if most <= 1 => Err(ONE_QUEUE.into()),
        _ => Err(format!("it has {most} queues, fewer than the {wanted} of --workers and --queues")),
    }
}

/// Opens a port with `queues` queues, and makes it pass each frame to its queue. A card that the kernel has too passes it
/// all frames of other protocols, if its driver can do that.
fn open_port(config: &LinkConfig, device: &Device, queues: u16) -> Result<(Steering, KernelFrames), String> {
    if !device.name.stays_with_kernel(Path::new("/sys")) {
        return Ok((configure(config, device, queues, false)?.steering, KernelFrames::None));
    }
    let (plugin, port) = (device.runtime.plugin, device.port);
    let why = match plugin.isolate(port, true) {
        Err(why) => why,
        Ok(()) => match configure(config, device, queues, true) {
            Ok(Steered { steering, any_protocol: false }) => return Ok((steering, KernelFrames::Others)),
            Ok(Steered { steering, any_protocol: true }) => {
                warn_of_loss(config, "its rules match no single protocol");
                return Ok((steering, KernelFrames::OtherAddresses));
            }
            // An isolated port without rules would get no frames.
            Err(why) => match plugin.isolate(port, false) {
                Ok(()) => why,
                Err(_) => return Err(why),
            },
        },
    };
    let steering = configure(config, device, queues, false)?.steering;
    warn_of_loss(config, &why);
    Ok((steering, KernelFrames::OtherAddresses))
}

fn warn_of_loss(config: &LinkConfig, why: &str) {
    tracing::warn!(
        interface = %config.interface, why,
        "the kernel gets no frames for the address of this card while the node has it: do not reach the machine by it"
    );
}

/// Opens a port and steers its frames. An `isolated` port has been made to pass only the frames of its rules.
fn configure(config: &LinkConfig, device: &Device, queues: u16, isolated: bool) -> Result<Steered, String> {
    let (plugin, port) = (device.runtime.plugin, device.port);
    plugin.open(port, queues, device.name.mtu)?;
    let driver = device.info.driver();
    let without_rules = match queues {
        1 if !isolated => Some(Steering::Single),
        _ if driver == SHARED_MEMORY => Some(Steering::Pairs),
        _ => None,
    };
    if let Some(steering) = without_rules {
        return Ok(Steered { steering, any_protocol: true });
    }
    let addresses = config.addresses(Mac(device.info.mac));
    let tagged = config.priority.is_some();
    let demand = Demand { queues, addresses, ethertype: config.ethertype, tagged, isolated };
    let prepare = || {
        let steered = steer(&OpenPort(plugin, port), &demand).map_err(|why| match queues {
            1 => why,
            _ => format!("{ONE_QUEUE}, as driver `{driver}` takes no rules for addresses ({why})"),
        })?;
        for mac in &demand.addresses[1..] {
            let accepted = plugin.accept(port, &mac.0);
            // The rules of an isolated port bring frames for every address that they name.
            if !isolated {
                accepted?;
            }
        }
        Ok::<_, String>(steered)
    };
    prepare().inspect_err(|_| plugin.close(port))
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
        let all = arguments(&card, 2, 3, true).join(" ");
        assert_eq!(
            all,
            "cxloe --no-telemetry --log-level=lib.*:error --log-level=pmd.*:critical --lcores=0@3 \
             -a 0000:03:00.0 --in-memory"
        );
        let shared = DeviceName::parse("dpdk:net_memif0").unwrap();
        for (queues, memory) in [(1, "128"), (4, "200")] {
            let all = arguments(&shared, queues, 0, false);
            assert!(all.ends_with(&["--no-pci", "--no-shconf", "--no-huge", "-m", memory].map(Into::into)));
        }
    }

    #[test]
    fn free_huge_pages_are_counted_by_their_sizes() {
        let sys = tempfile::tempdir().unwrap();
        assert_eq!(free_huge_memory(sys.path()), 0);
        for (size, free) in [("hugepages-2048kB", "65\n"), ("hugepages-1048576kB", "2\n"), ("others", "9\n")]
        {
            let folder = sys.path().join("kernel/mm/hugepages").join(size);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("free_hugepages"), free).unwrap();
        }
        assert_eq!(free_huge_memory(sys.path()), 130 + 2048);
    }

    #[test]
    fn both_ends_of_shared_memory_have_as_many_queues() {
        let device = |text: &str, queues| DeviceName::parse(text).unwrap().for_queues(queues);
        let memif = "net_memif0,role=client";
        assert_eq!(device("dpdk:net_memif0,role=client", 1), memif);
        assert_eq!(device("dpdk:net_memif0,role=client", 4), format!("{memif},secret=queues4"));
        assert_eq!(device("dpdk:net_memif0,secret=x", 4), "net_memif0,secret=x", "the operator's own");
        assert_eq!(device("dpdk:0000:03:00.0", 4), "0000:03:00.0");
    }

    #[test]
    fn a_device_with_fewer_queues_than_workers_says_so() {
        assert_eq!([queues(1, 1), queues(4, 4), queues(1, 0)], [Ok(1), Ok(4), Ok(1)]);
        assert_eq!(queues(2, 1), Err(ONE_QUEUE.into()));
        assert!(queues(4, 2).is_err_and(|why| why.contains("it has 2 queues, fewer than the 4")));
        assert!(queues(65, 255).is_err_and(|why| why.contains("it has 64 queues")));
        assert!(queues(1 << 20, 255).is_err());
    }

    #[test]
    fn the_interface_of_a_card_that_the_kernel_keeps_is_found() {
        let sys = tempfile::tempdir().unwrap();
        let net = sys.path().join("bus/pci/devices/0000:03:00.0/net");
        let interface = |text: &str| DeviceName::parse(text).unwrap().kernel_interface(sys.path());
        assert_eq!(interface("dpdk:0000:03:00.0"), None, "DPDK has the card alone");
        std::fs::create_dir_all(net.join("enp3s0")).unwrap();
        for text in ["dpdk:0000:03:00.0,mtu=9000", "dpdk:03:00.0", "dpdk:pci:0000:03:00.0"] {
            assert_eq!(interface(text).as_deref(), Some("enp3s0"), "{text}");
        }
        assert_eq!(interface("dpdk:net_memif0,socket=/a:b"), None);
        std::fs::create_dir_all(net.join("enp3s1")).unwrap();
        assert_eq!(interface("dpdk:0000:03:00.0"), None, "it is not known which of its ports");
    }

    #[test]
    fn a_card_stays_with_the_kernel_by_its_driver() {
        let sys = tempfile::tempdir().unwrap();
        let card = sys.path().join("bus/pci/devices/0000:03:00.0");
        std::fs::create_dir_all(&card).unwrap();
        let stays = |text: &str| DeviceName::parse(text).unwrap().stays_with_kernel(sys.path());
        assert!(!stays("dpdk:0000:03:00.0"), "no driver has it");
        for (driver, expected) in
            [("mlx5_core", true), ("mlx4_core", true), ("mana", true), ("vfio-pci", false)]
        {
            let link = card.join("driver");
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(format!("../../drivers/{driver}"), link).unwrap();
            assert_eq!(stays("dpdk:03:00.0,mtu=9000"), expected, "{driver}");
        }
        assert!(!stays("dpdk:net_memif0,socket=/a:b"));
    }

    #[test]
    fn the_cpus_of_a_thread_are_as_before() {
        let before = Affinity::of_this_thread();
        before.restore();
        assert_eq!(before.first(), Affinity::of_this_thread().first());
    }
}
