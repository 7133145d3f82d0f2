//! The plug-in `libcxloe_dpdk.so`: its place, its version, and its functions. Their contract is in
//! `wire/dpdk/cxloe_dpdk.h`.

#![expect(unsafe_code, reason = "functions of a loaded library are called by address")]

use std::env;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

use libloading::Library;

/// Version of the interface between program and plug-in; both must have the same.
pub const VERSION: u32 = 4;
/// Maximum number of frames that one call receives.
pub const BURST: usize = 32;
/// Maximum number of queues of a port.
pub const QUEUES_MAX: u16 = 64;
/// Environment variable for the path of the plug-in.
pub const PLUGIN: &str = "CXLOE_DPDK";
const FILE: &str = "libcxloe_dpdk.so";
/// Folder in which the package `cxloe-dpdk` installs the plug-in.
const INSTALLED: &str = "/usr/lib/cxloe";
/// Length in bytes of the buffer into which the plug-in writes the reason of a failure.
const WHY: usize = 256;
/// Length in bytes of the buffer into which the plug-in writes the names of a device's statistics: room for 1024.
const NAMES: usize = 64 << 10;

/// Description of a device by the plug-in; laid out as in `cxloe_dpdk.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceInfo {
    pub mac: [u8; 6],
    /// MTU in bytes, without the Ethernet header.
    pub mtu: u16,
    /// Speed of the link in megabits per second; 0 if unknown, as without a link.
    pub speed: u32,
    /// Speed of the fastest link that the device can have, in megabits per second; 0 if unknown.
    pub fastest: u32,
    /// Number of queues that the device has in each direction.
    pub queues: u16,
    /// NUMA node of the device; negative if unknown.
    pub numa: i16,
    pub(super) driver: [u8; 32],
}

impl DeviceInfo {
    pub fn driver(&self) -> String {
        let end = self.driver.iter().position(|byte| *byte == 0).unwrap_or(self.driver.len());
        String::from_utf8_lossy(&self.driver[..end]).into_owned()
    }
}

/// Received frame in the plug-in's memory; laid out as in `cxloe_dpdk.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    pub bytes: *mut u8,
    pub length: u32,
}

// SAFETY: a frame is an address and a length, which only the owner of the frame's queue uses.
unsafe impl Send for Frame {}

/// Numbers of frames that a device lost; laid out as in `cxloe_dpdk.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceCounters {
    pub rx_missed: u64,
    pub rx_dropped: u64,
    pub tx_errors: u64,
}

/// Frames for one queue: those whose addresses equal the rule's in all bits of its masks; laid out as in
/// `cxloe_dpdk.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    pub destination: [u8; 6],
    pub destination_mask: [u8; 6],
    pub source: [u8; 6],
    pub source_mask: [u8; 6],
    /// EtherType of the frames; 0 for any, with a tag or without.
    pub ethertype: u16,
    pub queue: u16,
    /// For frames with an EtherType: 1 for those with a tag, 0 for those without.
    pub tagged: u16,
}

/// Functions of the plug-in, with the signatures of `cxloe_dpdk.h`.
pub struct Plugin {
    start: unsafe extern "C" fn(c_int, *mut *mut c_char, *mut c_char, usize) -> c_int,
    find: unsafe extern "C" fn(*const c_char, *mut DeviceInfo, *mut c_char, usize) -> c_int,
    isolate: unsafe extern "C" fn(u16, c_int, *mut c_char, usize) -> c_int,
    open: unsafe extern "C" fn(u16, u16, u16, *mut c_char, usize) -> c_int,
    close: unsafe extern "C" fn(u16),
    is_up: unsafe extern "C" fn(u16) -> c_int,
    rule: unsafe extern "C" fn(u16, *const Rule, *mut c_char, usize) -> c_int,
    hash: unsafe extern "C" fn(u16, *mut c_char, usize) -> c_int,
    clear: unsafe extern "C" fn(u16),
    accept: unsafe extern "C" fn(u16, *const u8, *mut c_char, usize) -> c_int,
    statistics: unsafe extern "C" fn(u16, *mut c_char, usize) -> c_int,
    statistic: unsafe extern "C" fn(u16, u32, *mut u64, *mut c_char, usize) -> c_int,
    queue: unsafe extern "C" fn(u16, u16) -> *mut c_void,
    pub(super) count: unsafe extern "C" fn(*mut c_void, *mut DeviceCounters),
    pub(super) free: unsafe extern "C" fn(*mut c_void),
    pub(super) receive: unsafe extern "C" fn(*mut c_void, *mut Frame, u32) -> u32,
    pub(super) waiting: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub(super) slot: unsafe extern "C" fn(*mut c_void, u32) -> *mut u8,
    pub(super) commit: unsafe extern "C" fn(*mut c_void),
    pub(super) flush: unsafe extern "C" fn(*mut c_void) -> u32,
    // Never unloaded, because DPDK's threads run code of the library until the process ends.
    _library: &'static Library,
}

impl Plugin {
    /// Loads the plug-in and checks its version.
    ///
    /// # Errors
    /// A sentence: the plug-in is missing, cannot be loaded, or is of another version.
    pub fn load() -> Result<Plugin, String> {
        let path = place(env::var_os(PLUGIN).map(PathBuf::from), env::current_exe().ok().as_deref());
        let missing = |error: libloading::Error| {
            format!(
                "the plug-in {} cannot be loaded ({error}); install it with `apt install cxloe-dpdk`, or build it with \
                 `make dpdk` and name its path by the variable {PLUGIN}",
                path.display()
            )
        };
        // SAFETY: loading the library runs only the initialisers of DPDK, which register drivers.
        let library = unsafe { Library::new(&path) }.map_err(missing)?;
        let library: &'static Library = Box::leak(Box::new(library));
        let wrong = |error: libloading::Error| format!("{} is no such plug-in: {error}", path.display());
        macro_rules! function {
            ($name:literal) => {{
                // SAFETY: the types are those of cxloe_dpdk.h at this version, which is checked before all
                // other functions.
                let found = unsafe { library.get(concat!("cxloe_dpdk_", $name, "\0").as_bytes()) };
                *found.map_err(wrong)?
            }};
        }
        let version: unsafe extern "C" fn() -> u32 = function!("version");
        // SAFETY: the function takes no arguments and returns a constant.
        let found = unsafe { version() };
        if found != VERSION {
            return Err(format!(
                "the plug-in {} has version {found} of the interface, this program {VERSION}: install both of one release",
                path.display()
            ));
        }
        Ok(Plugin {
            start: function!("start"),
            find: function!("find"),
            isolate: function!("isolate"),
            open: function!("open"),
            close: function!("close"),
            is_up: function!("is_up"),
            rule: function!("rule"),
            hash: function!("hash"),
            clear: function!("clear"),
            accept: function!("accept"),
            statistics: function!("statistics"),
            statistic: function!("statistic"),
            queue: function!("queue"),
            count: function!("count"),
            free: function!("free"),
            receive: function!("receive"),
            waiting: function!("waiting"),
            slot: function!("slot"),
            commit: function!("commit"),
            flush: function!("flush"),
            _library: library,
        })
    }

    /// Starts DPDK. May be called only once in a process.
    ///
    /// # Errors
    /// The plug-in's reason, as a sentence.
    pub fn start(&self, arguments: &[String]) -> Result<(), String> {
        let text = |argument: &String| CString::new(argument.as_str()).map_err(|error| error.to_string());
        let texts = arguments.iter().map(text).collect::<Result<Vec<_>, _>>()?;
        // Leaked, because DPDK keeps pointers to its arguments.
        let mut pointers: Vec<*mut c_char> = texts.into_iter().map(CString::into_raw).collect();
        pointers.push(std::ptr::null_mut());
        let pointers = pointers.leak();
        let count = (pointers.len() - 1) as c_int;
        // SAFETY: `pointers` has `count` strings and a null pointer, all of which live as long as the process.
        said(|why, room| unsafe { (self.start)(count, pointers.as_mut_ptr(), why, room) }).map(drop)
    }

    /// Finds a device. Returns the number of its port and its description.
    ///
    /// # Errors
    /// The plug-in's reason, as a sentence.
    pub fn find(&self, device: &str) -> Result<(u16, DeviceInfo), String> {
        let text = CString::new(device).map_err(|error| error.to_string())?;
        let mut found = DeviceInfo::default();
        // SAFETY: the text and the description outlive the call.
        let port = said(|why, room| unsafe { (self.find)(text.as_ptr(), &mut found, why, room) })?;
        Ok((port as u16, found))
    }

    /// Makes a port that is not open pass only the frames of its rules (isolated mode), or undoes that. The kernel gets
    /// the other frames of a card that it has too.
    ///
    /// # Errors
    /// The driver's reason.
    pub fn isolate(&self, port: u16, set: bool) -> Result<(), String> {
        // SAFETY: the call takes plain values.
        said(|why, room| unsafe { (self.isolate)(port, set.into(), why, room) }).map(drop)
    }

    /// Configures and starts a port. With an `mtu` of 0 the device keeps its own.
    ///
    /// # Errors
    /// The plug-in's reason, as a sentence.
    pub fn open(&self, port: u16, queues: u16, mtu: u16) -> Result<(), String> {
        // SAFETY: the call takes plain values.
        said(|why, room| unsafe { (self.open)(port, queues, mtu, why, room) }).map(drop)
    }

    /// Stops a port. All its queues must have been freed.
    pub fn close(&self, port: u16) {
        // SAFETY: the call takes a plain value; the caller has freed all queues.
        unsafe { (self.close)(port) }
    }

    /// Whether the port has a link, so that frames can pass.
    pub fn is_up(&self, port: u16) -> bool {
        // SAFETY: the call takes a plain value.
        unsafe { (self.is_up)(port) != 0 }
    }

    /// Makes an open port pass the frames of `rule` to the rule's queue.
    ///
    /// # Errors
    /// The driver's reason.
    pub fn rule(&self, port: u16, rule: &Rule) -> Result<(), String> {
        // SAFETY: the rule outlives the call.
        said(|why, room| unsafe { (self.rule)(port, rule, why, room) }).map(drop)
    }

    /// Makes an open port spread frames over its queues by a hash of their source addresses.
    ///
    /// # Errors
    /// The driver's reason.
    pub fn hash(&self, port: u16) -> Result<(), String> {
        // SAFETY: the call takes plain values.
        said(|why, room| unsafe { (self.hash)(port, why, room) }).map(drop)
    }

    /// Removes all rules of a port, and the hash.
    pub fn clear(&self, port: u16) {
        // SAFETY: the call takes a plain value.
        unsafe { (self.clear)(port) }
    }

    /// Makes an open port accept frames for a further address, or for any address if it has no list of them.
    ///
    /// # Errors
    /// The plug-in's reason, as a sentence.
    pub fn accept(&self, port: u16, address: &[u8; 6]) -> Result<(), String> {
        // SAFETY: the plug-in reads the six bytes of the address, which outlives the call.
        said(|why, room| unsafe { (self.accept)(port, address.as_ptr(), why, room) }).map(drop)
    }

    /// Names of the device's statistics, in the order of their places.
    pub fn statistics(&self, port: u16) -> Vec<String> {
        let mut names = vec![0_u8; NAMES];
        // SAFETY: the plug-in writes at most as many bytes as the buffer has, which outlives the call.
        unsafe { (self.statistics)(port, names.as_mut_ptr().cast(), names.len()) };
        let names = CStr::from_bytes_until_nul(&names).unwrap_or_default();
        names.to_string_lossy().lines().map(str::to_owned).collect()
    }

    /// Reads the statistic at `place`; may take milliseconds.
    ///
    /// # Errors
    /// The plug-in's reason, as a sentence.
    pub fn statistic(&self, port: u16, place: u32) -> Result<u64, String> {
        let mut value = 0;
        // SAFETY: the value outlives the call.
        said(|why, room| unsafe { (self.statistic)(port, place, &mut value, why, room) }).map(|_| value)
    }

    /// Makes a queue of an open port. Returns `None` if there is not enough memory.
    pub fn queue(&self, port: u16, number: u16) -> Option<std::ptr::NonNull<c_void>> {
        // SAFETY: the call takes plain values.
        std::ptr::NonNull::new(unsafe { (self.queue)(port, number) })
    }
}

/// Calls a plug-in function that returns a negative number on failure and writes the reason into the given
/// buffer.
fn said(call: impl FnOnce(*mut c_char, usize) -> c_int) -> Result<c_int, String> {
    let mut why = [0_u8; WHY];
    match call(why.as_mut_ptr().cast(), why.len()) {
        code if code >= 0 => Ok(code),
        _ => {
            why[WHY - 1] = 0;
            Err(CStr::from_bytes_until_nul(&why).unwrap_or_default().to_string_lossy().into_owned())
        }
    }
}

/// Path of the plug-in: `named` by the variable; otherwise in the program's folder, if it is there; otherwise in the
/// folder of the package.
fn place(named: Option<PathBuf>, program: Option<&Path>) -> PathBuf {
    if let Some(named) = named {
        return named;
    }
    let beside = program.map(|program| program.with_file_name(FILE)).filter(|path| path.exists());
    beside.unwrap_or_else(|| Path::new(INSTALLED).join(FILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plug_in_is_sought_where_it_may_be() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("cn-agent");
        assert_eq!(place(Some("/x/y.so".into()), Some(&program)), Path::new("/x/y.so"));
        assert_eq!(place(None, Some(&program)), Path::new("/usr/lib/cxloe/libcxloe_dpdk.so"));
        std::fs::write(folder.path().join(FILE), "").unwrap();
        assert_eq!(place(None, Some(&program)), folder.path().join(FILE));
        assert_eq!(place(None, None), Path::new("/usr/lib/cxloe/libcxloe_dpdk.so"));
    }

    #[test]
    fn a_reason_ends_at_its_zero() {
        let fill = |why: *mut c_char, room: usize| {
            // SAFETY: copies at most as many bytes as the buffer has.
            unsafe { std::ptr::copy_nonoverlapping(b"no device\0rest".as_ptr(), why.cast(), 14.min(room)) };
            -1
        };
        assert_eq!(said(fill), Err("no device".into()));
        assert_eq!(said(|_, _| 3), Ok(3));
    }
}
