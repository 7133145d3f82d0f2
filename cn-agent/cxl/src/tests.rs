//! Tests of CXL memory as sysfs shows it: each state of a device, impossible combinations, and hostile files. A fixture
//! is a table of files and links, which a test writes to a folder of its own.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use proptest::prelude::*;
use tempfile::TempDir;

use super::device::{Device, DeviceError};
use super::device_state::{DeviceState, device_state};
use super::inventory::{CpulessNode, CxlMemory, DaxDevice};
use super::unsuitable::UnsuitableReason;
use cxloe_cn_core::backing::{DeviceMemory, DevicePlacement};

const MIB: u64 = 1 << 20;

/// Files (`path = text`) and links (`path -> target`).
type Table = [(&'static str, &'static str)];

/// A memory device with no committed decoder.
const IDLE: &Table = &[
    ("bus/cxl/devices/mem0/ram/size", "0x0"),
    ("bus/cxl/devices/mem0/pmem/size", "0x10000000"),
    ("bus/cxl/devices/mem0/serial", "0x1234"),
    ("bus/cxl/devices/endpoint2/uport", "-> ../../../../pci0000:0c/mem0"),
    ("bus/cxl/devices/endpoint2/devtype", "cxl_port"),
    ("bus/cxl/devices/decoder0.0/devtype", "cxl_decoder_root"),
    ("bus/cxl/devices/decoder0.0/start", "0x690000000"),
    ("bus/cxl/devices/decoder0.0/size", "0x100000000"),
    ("bus/cxl/devices/decoder2.0/devtype", "cxl_decoder_endpoint"),
    ("bus/cxl/devices/decoder2.0/start", "0x0"),
    ("bus/cxl/devices/decoder2.0/size", "0x0"),
    ("bus/cxl/devices/decoder2.0/mode", "none"),
    ("bus/cxl/devices/decoder2.0/region", ""),
    ("devices/system/node/has_cpu", "0"),
    ("devices/system/node/has_memory", "0"),
];

/// In addition to [`IDLE`]: a committed region without a mode, as Linux 6.1 shows it.
const REGION: &Table = &[
    ("bus/cxl/devices/decoder2.0/start", "0x690000000"),
    ("bus/cxl/devices/decoder2.0/size", "0x10000000"),
    ("bus/cxl/devices/decoder2.0/mode", "pmem"),
    ("bus/cxl/devices/decoder2.0/region", "region0"),
    ("bus/cxl/devices/region0/commit", "1"),
    ("bus/cxl/devices/region0/size", "0x10000000"),
    ("bus/cxl/devices/region0/resource", "0x690000000"),
    ("bus/cxl/devices/region0/interleave_ways", "1"),
    ("bus/cxl/devices/region0/interleave_granularity", "256"),
];

/// In addition to [`REGION`]: a namespace in devdax mode.
const DEVDAX: &Table = &[
    ("bus/dax/devices/dax0.0/size", "262144000"),
    ("bus/dax/devices/dax0.0/align", "2097152"),
    ("bus/dax/devices/dax0.0/resource", "0x690600000"),
    ("bus/dax/devices/dax0.0/target_node", "1"),
    ("bus/dax/devices/dax0.0/driver", "-> ../../../../bus/dax/drivers/device_dax"),
];

/// In addition to [`DEVDAX`]: the device as system RAM.
const SYSTEM_RAM: &Table = &[
    ("bus/dax/devices/dax0.0/driver", "-> ../../../../bus/dax/drivers/kmem"),
    ("devices/system/node/has_memory", "0-1"),
    ("devices/system/node/node1/meminfo", "Node 1 MemTotal:         131072 kB\nNode 1 MemFree:  131072 kB"),
];

fn put(root: &Path, tables: &[&Table]) {
    for (path, content) in tables.iter().copied().flatten() {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _ = fs::remove_file(&path);
        match content.strip_prefix("-> ") {
            Some(target) => symlink(target, &path).unwrap(),
            None => fs::write(&path, format!("{content}\n")).unwrap(),
        }
    }
}

fn sysfs(tables: &[&Table]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    put(root.path(), tables);
    root
}

fn scan(tables: &[&Table]) -> CxlMemory {
    let memory = CxlMemory::scan(sysfs(tables).path());
    assert_eq!(memory.problems, []);
    memory
}

fn devdax() -> CxlMemory {
    scan(&[IDLE, REGION, DEVDAX])
}

#[test]
fn a_machine_without_cxl_has_none() {
    let nothing = scan(&[]);
    assert_eq!(nothing, CxlMemory::default());
    assert!(nothing.why_none(MIB, &[]).contains("no CXL bus"));
    let no_device = scan(&[&[("bus/cxl/devices/root0/devtype", "cxl_port")]]);
    assert!(no_device.driver && no_device.why_none(MIB, &[]).contains("no CXL memory device"));
}

#[test]
fn a_device_that_decodes_nothing_is_named_with_what_to_do() {
    let memory = scan(&[IDLE]);
    let [mem0] = &memory.memdevs[..] else { panic!("{memory:?}") };
    assert_eq!((mem0.pmem_size, mem0.ram_size, mem0.serial), (256 * MIB, 0, Some(0x1234)));
    assert_eq!((mem0.endpoint.as_deref(), mem0.decoding), (Some("endpoint2"), false));
    let why = memory.why_none(MIB, &[]);
    assert!(
        why.contains("mem0: no decoder of it is committed") && why.contains("cxl create-region"),
        "{why}"
    );
}

#[test]
fn a_region_without_a_dax_device_is_named_with_what_to_do() {
    let memory = scan(&[IDLE, REGION]);
    let [region] = &memory.regions[..] else { panic!("{memory:?}") };
    assert_eq!((region.resource, region.size), (Some(0x6_9000_0000), 256 * MIB));
    assert_eq!((region.committed, region.persistent), (true, Some(true)), "by its decoder");
    assert!(memory.memdevs[0].decoding);
    let why = memory.why_none(MIB, &[]);
    assert!(why.starts_with("region0: no DAX device") && why.contains("ndctl create-namespace"), "{why}");
    let ram = scan(&[IDLE, REGION, &[("bus/cxl/devices/region0/mode", "ram")]]);
    assert_eq!(ram.regions[0].persistent, Some(false), "by its own word");
    assert!(ram.why_none(MIB, &[]).contains("daxctl create-device"));
}

#[test]
fn a_devdax_device_serves_what_fits() {
    let memory = devdax();
    let [dax] = &memory.dax_devices[..] else { panic!("{memory:?}") };
    assert_eq!((dax.region.as_deref(), dax.persistent, &dax.unfit), (Some("region0"), true, &None));
    let names = |bytes, taken: &[String]| -> Vec<String> {
        memory.fitting(bytes, taken).iter().map(|dax| dax.device.clone()).collect()
    };
    let taken = ["dax0.0".to_owned()];
    assert_eq!(names(262_144_000, &[]), ["dax0.0"]);
    assert_eq!((names(262_144_001, &[]), names(MIB, &taken)), (vec![], vec![]));
    let small = memory.why_none(1 << 30, &[]);
    assert!(small.contains("dax0.0: it has 250") && small.contains("the region 1"), "{small}");
    assert!(memory.why_none(MIB, &taken).contains("serves another region"));
}

#[test]
fn the_smallest_that_fits_is_taken() {
    let second: &Table = &[
        ("bus/dax/devices/dax1.0/size", "4194304"),
        ("bus/dax/devices/dax1.0/align", "2097152"),
        ("bus/dax/devices/dax1.0/resource", "0x690000000"),
        ("bus/dax/devices/dax1.0/driver", "-> ../device_dax"),
    ];
    let memory = scan(&[IDLE, REGION, DEVDAX, second]);
    let first = |bytes| memory.fitting(bytes, &[]).first().map(|dax| dax.device.clone());
    assert_eq!((first(MIB), first(5 * MIB)), (Some("dax1.0".into()), Some("dax0.0".into())));
}

#[test]
fn system_ram_is_a_node_and_serves_nothing() {
    let memory = scan(&[IDLE, REGION, DEVDAX, SYSTEM_RAM]);
    assert_eq!(memory.cpuless_nodes, [CpulessNode { node: 1, size: Some(128 * MIB) }]);
    assert_eq!(memory.dax_devices[0].unfit, Some(UnsuitableReason::SystemRam { device: "dax0.0".into() }));
    assert!(memory.why_none(MIB, &[]).contains("daxctl reconfigure-device --mode=devdax dax0.0"));
}

#[test]
fn what_is_wrong_with_a_device_is_said() {
    let unfit = |more: &Table| scan(&[IDLE, REGION, DEVDAX, more]).dax_devices[0].unfit.clone();
    let other = Some(UnsuitableReason::NotCxl);
    assert_eq!(unfit(&[("bus/dax/devices/dax0.0/resource", "0x100000000")]), other, "an NVDIMM");
    assert_eq!(unfit(&[("bus/dax/devices/dax0.0/size", "0x10000000")]), other, "over the region's end");
    assert_eq!(unfit(&[("bus/dax/devices/dax0.0/resource", "0x0")]), Some(UnsuitableReason::NoAddress));
    let none = unfit(&[("bus/dax/devices/dax0.0/driver", "-> ../fsdev_dax")]);
    assert_eq!(none, Some(UnsuitableReason::NoDriver));
    let uncommitted = unfit(&[("bus/cxl/devices/region0/commit", "0")]);
    assert_eq!(uncommitted, Some(UnsuitableReason::NotCommitted { region: "region0".into() }));
    for (file, content) in
        [("size", "0"), ("align", "0"), ("align", "3"), ("align", "1"), ("size", "2097153")]
    {
        let root = sysfs(&[IDLE, REGION, DEVDAX]);
        fs::write(root.path().join("bus/dax/devices/dax0.0").join(file), content).unwrap();
        let memory = CxlMemory::scan(root.path());
        assert_eq!(memory.dax_devices[0].unfit, Some(UnsuitableReason::Shape), "{file} {content}");
        assert!(memory.fitting(0, &[]).is_empty());
    }
}

/// Tests that an error names the unreadable file, and that the rest of the inventory is complete.
#[test]
fn hostile_files_are_named_and_harmless() {
    let dax = "bus/dax/devices/dax0.0";
    let huge = "9".repeat(4000);
    let long = "1".repeat(5000);
    let table: &[(&str, &[u8], &str)] = &[
        ("size", b"banana", "not a number"),
        ("size", b"-1", "not a number"),
        ("size", huge.as_bytes(), "not a number"),
        ("size", b"0x", "not a number"),
        ("size", b"", "not a number"),
        ("align", b"\xff\xfe\x00\x80", "not text"),
        ("align", b"1\x00", "not text"),
        ("resource", b"0x1ffffffffffffffff", "not a number"),
        ("size", long.as_bytes(), "longer than 4096"),
    ];
    for (file, content, said) in table {
        let root = sysfs(&[IDLE, REGION, DEVDAX]);
        fs::write(root.path().join(dax).join(file), content).unwrap();
        let memory = CxlMemory::scan(root.path());
        let [problem] = &memory.problems[..] else { panic!("{file}: {:?}", memory.problems) };
        let problem = problem.to_string();
        assert!(problem.contains(&format!("{dax}/{file}")) && problem.contains(said), "{problem}");
        assert!(memory.dax_devices.is_empty() && memory.regions.len() == 1 && memory.memdevs.len() == 1);
    }
    // A file of the device is missing, or is replaced by a folder, a pipe that never ends, or a link to itself.
    type Spoil = fn(&Path);
    let spoils: [(Spoil, &str); 4] = [
        (|_| {}, "missing"),
        (|path| fs::create_dir(path).unwrap(), "not a file"),
        (|path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap(), "not a file"),
        (|path| symlink("size", path).unwrap(), "cannot read"),
    ];
    for (spoil, said) in spoils {
        let root = sysfs(&[IDLE, REGION, DEVDAX]);
        let path = root.path().join(dax).join("size");
        fs::remove_file(&path).unwrap();
        spoil(&path);
        let problems = CxlMemory::scan(root.path()).problems;
        let [problem] = &problems[..] else { panic!("{problems:?}") };
        assert!(
            problem.to_string().contains("dax0.0/size") && problem.to_string().contains(said),
            "{problem}"
        );
    }
    // The largest possible numbers, and invalid names.
    let root = sysfs(&[
        IDLE,
        REGION,
        DEVDAX,
        &[
            ("bus/dax/devices/dax0.0/size", "18446744073709551615"),
            ("bus/dax/devices/dax0.0/resource", "0xffffffffffffffff"),
            ("bus/cxl/devices/region0/size", "0xffffffffffffffff"),
            ("bus/cxl/devices/region0/resource", "0xfffffffffffffffe"),
            ("bus/dax/devices/dax../size", "1"),
            ("bus/dax/devices/dax0.0.0/size", "1"),
            ("bus/dax/devices/dax1/size", "1"),
            ("bus/dax/devices/dax99999999999999999999.0/size", "1"),
        ],
    ]);
    let memory = CxlMemory::scan(root.path());
    assert_eq!((memory.dax_devices.len(), &memory.problems[..]), (1, &[][..]));
    assert!(memory.dax_devices[0].unfit.is_some() && memory.fitting(1, &[]).is_empty());
}

#[test]
fn lists_of_nodes_have_an_end() {
    for (list, good) in
        [("0-1023", true), ("0-4294967295", false), ("3-1", false), ("x", false), ("1,,2", true)]
    {
        let root = sysfs(&[IDLE]);
        put(root.path(), &[&[("devices/system/node/has_cpu", "0")]]);
        fs::write(root.path().join("devices/system/node/has_memory"), list).unwrap();
        let memory = CxlMemory::scan(root.path());
        assert_eq!(memory.problems.is_empty(), good, "{list}: {:?}", memory.problems);
        assert_eq!(memory.memdevs.len(), 1, "the rest is there");
    }
}

proptest! {
    #[test]
    fn any_bytes_in_any_file_are_a_value_or_a_problem(
        file in 0_usize..IDLE.len() + REGION.len() + DEVDAX.len(),
        content: Vec<u8>,
    ) {
        let root = sysfs(&[IDLE, REGION, DEVDAX]);
        let (path, _) = IDLE.iter().chain(REGION).chain(DEVDAX).nth(file).unwrap();
        let path = root.path().join(path);
        prop_assume!(!path.is_symlink());
        fs::write(&path, content).unwrap();
        let memory = CxlMemory::scan(root.path());
        for dax in memory.fitting(1, &[]) {
            prop_assert!(dax.size.is_multiple_of(dax.align) && dax.size <= 256 * MIB);
        }
        for problem in &memory.problems {
            prop_assert!(problem.to_string().contains(&*root.path().to_string_lossy()));
        }
        memory.why_none(MIB, &[]);
    }
}

fn served(dax: &DaxDevice, boot: Option<&str>) -> DevicePlacement {
    DevicePlacement {
        device: dax.device.clone(),
        resource: dax.resource.unwrap(),
        size: dax.size,
        bytes: MIB,
        boot: boot.map(Into::into),
        lost: None,
        memory: None,
    }
}

#[test]
fn a_device_is_identified_by_its_address() {
    let there = devdax();
    let (persistent, volatile) =
        (served(&there.dax_devices[0], None), served(&there.dax_devices[0], Some("b1")));
    assert_eq!(device_state(&persistent, &there, "b2"), DeviceState::Present(&there.dax_devices[0]));
    assert_eq!(device_state(&volatile, &there, "b1"), DeviceState::Present(&there.dax_devices[0]));
    assert!(
        matches!(device_state(&volatile, &there, "b2"), DeviceState::Lost(why) if why.contains("started anew"))
    );
    // The same device under another name.
    let mut renamed = there.clone();
    renamed.dax_devices[0].device = "dax3.0".into();
    assert!(
        matches!(device_state(&persistent, &renamed, "b1"), DeviceState::Present(dax) if dax.device == "dax3.0")
    );
    // Another device under the same name.
    let mut other = there.clone();
    other.dax_devices[0].resource = Some(0x6_9080_0000);
    assert!(
        matches!(device_state(&persistent, &other, "b1"), DeviceState::Away(why) if why.contains("is not there"))
    );
    let gone = scan(&[IDLE, REGION]);
    assert!(matches!(device_state(&persistent, &gone, "b1"), DeviceState::Away(_)));
    assert!(
        matches!(device_state(&volatile, &gone, "b1"), DeviceState::Lost(why) if why.contains("taken away"))
    );
    let ram = scan(&[IDLE, REGION, DEVDAX, SYSTEM_RAM]);
    assert!(
        matches!(device_state(&persistent, &ram, "b1"), DeviceState::Lost(why) if why.contains("system RAM"))
    );
    let unbound = scan(&[IDLE, REGION, DEVDAX, &[("bus/dax/devices/dax0.0/driver", "-> ../none")]]);
    assert!(
        matches!(device_state(&volatile, &unbound, "b1"), DeviceState::Away(why) if why.contains("driver"))
    );
}

fn file_for(root: &Path, bytes: u64) -> DaxDevice {
    let dax = devdax().dax_devices[0].clone();
    let dax = DaxDevice { size: 4 * MIB, ..dax };
    let file = fs::File::create(root.join(&dax.device)).unwrap();
    file.set_len(bytes).unwrap();
    dax
}

#[test]
fn a_device_is_taken_by_one() {
    use cxloe_cn_core::engine::LocalMemory;
    let root = tempfile::tempdir().unwrap();
    let dax = file_for(root.path(), 4 * MIB);
    let first = Device::claim(root.path(), &dax).unwrap();
    assert!(matches!(Device::claim(root.path(), &dax), Err(DeviceError::Held { .. })));
    assert_eq!(first.bytes(), 4 * MIB);
    first.write(2 * MIB, &[5; 128]).unwrap();
    first.give_up();
    assert!(first.read(2 * MIB, &mut [0; 64]).is_err() && first.write(2 * MIB, &[6; 64]).is_err());
    // The device can be claimed again although the first claim still exists.
    let second = Device::claim(root.path(), &dax).unwrap();
    let mut found = [0; 128];
    second.read(2 * MIB, &mut found).unwrap();
    assert_eq!(found, [5; 128]);
    second.clear(2 * MIB, 64).unwrap();
    second.read(2 * MIB, &mut found).unwrap();
    assert_eq!((found[63], found[64]), (0, 5));
}

#[test]
fn files_that_are_no_devices_are_named() {
    let root = tempfile::tempdir().unwrap();
    let dax = file_for(root.path(), 4 * MIB - 1);
    let said = |dax: &DaxDevice| Device::claim(root.path(), dax).unwrap_err().to_string();
    assert!(said(&dax).contains("dax0.0") && said(&dax).contains("4194303 of 4194304"));
    let missing = DaxDevice { device: "dax7.0".into(), ..dax.clone() };
    assert!(said(&missing).contains("dax7.0 for reading and writing: No such file"));
    fs::create_dir(root.path().join("dax8.0")).unwrap();
    let folder = DaxDevice { device: "dax8.0".into(), ..dax };
    assert!(said(&folder).contains("dax8.0"));
}
