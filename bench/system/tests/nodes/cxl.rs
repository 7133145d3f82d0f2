//! Regions on a CXL device of the compute node, from end to end: real daemons and frames, and for the agent a sysfs and
//! device files that the test has made. A region on a device uses no frames and survives the agent; without a device
//! the same commands work over Ethernet. Further tests cover the removal and the return of a device, and its use by
//! others.
//!
//! Runs as root, or as an ordinary user inside a private user namespace. Every wait is bounded.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

use cxloe_client::client::{self, ClientError};
use cxloe_client::message::{AttachedRegion, Attaching};
use cxloe_cn_core::engine::EngineError;
use cxloe_lab::LabPrivilege;
use cxloe_system::pair::*;
use cxloe_system::{Test, tests};

const MIB: u64 = 1 << 20;
/// First address of the CXL region on which the devices are.
const BASE: u64 = 0x6_9000_0000;

pub fn tests(_: LabPrivilege) -> Vec<Test> {
    tests![
        a_device_serves_the_region_and_the_link_is_silent,
        without_the_device_the_same_commands_use_ethernet,
        a_device_that_comes_later_serves_new_regions_only,
        a_device_that_goes_fails_its_region_alone_and_may_come_back,
        memory_that_vanishes_under_the_agent_is_an_error,
        a_region_waits_with_backend_cxl_until_a_device_fits,
        a_device_of_another_owner_is_not_used,
        a_new_region_on_a_used_device_is_empty,
        an_agent_that_may_not_look_serves_no_old_copy,
        growth_goes_over_ethernet,
        what_there_is_can_be_listed,
    ]
}

/// A folder laid out as sysfs, and a folder of device files: a committed persistent CXL region of 64 MiB, and DAX
/// devices on it.
struct Machine {
    sysfs: PathBuf,
    dev: PathBuf,
}

impl Machine {
    fn of(rig: &Pair) -> Outcome<Machine> {
        let machine = Machine { sysfs: rig.path("sys"), dev: rig.path("dev") };
        fs::create_dir_all(&machine.dev)?;
        let region = machine.sysfs.join("bus/cxl/devices/region0");
        fs::create_dir_all(&region)?;
        let (size, base) = (format!("{:#x}", 64 * MIB), format!("{BASE:#x}"));
        let attributes = [("size", size.as_str()), ("resource", &base), ("commit", "1"), ("mode", "pmem")];
        for (name, value) in attributes {
            fs::write(region.join(name), format!("{value}\n"))?;
        }
        Ok(machine)
    }

    fn folder(&self, device: &str) -> PathBuf {
        self.sysfs.join("bus/dax/devices").join(device)
    }

    /// Adds a device of `mib` MiB whose first byte is `at` MiB from the beginning of the CXL region.
    fn plug(&self, device: &str, at: u64, mib: u64) -> Outcome {
        let (folder, file) = (self.folder(device), self.dev.join(device));
        if !file.exists() {
            File::create(&file)?.set_len(mib * MIB)?;
        }
        // The folder is renamed when it is complete, so that the device appears at once.
        let hidden = self.sysfs.join(format!("{device}.hidden"));
        fs::create_dir_all(&hidden)?;
        let resource = format!("{:#x}", BASE + at * MIB);
        let size = (mib * MIB).to_string();
        for (name, value) in [("align", "2097152"), ("resource", &resource), ("size", &size)] {
            fs::write(hidden.join(name), value)?;
        }
        symlink("../../drivers/device_dax", hidden.join("driver"))?;
        fs::create_dir_all(folder.parent().ok_or("no folder")?)?;
        Ok(fs::rename(hidden, folder)?)
    }

    fn unplug(&self, device: &str) -> Outcome {
        Ok(fs::rename(self.folder(device), self.sysfs.join(format!("{device}.gone")))?)
    }

    fn plug_again(&self, device: &str) -> Outcome {
        Ok(fs::rename(self.sysfs.join(format!("{device}.gone")), self.folder(device))?)
    }

    /// Content of the line at `offset` of a device, read without the agent.
    fn content(&self, device: &str, offset: u64) -> Outcome<[u8; 64]> {
        let mut found = [0; 64];
        File::open(self.dev.join(device))?.read_exact_at(&mut found, offset)?;
        Ok(found)
    }

    fn start_agent(&self, rig: &Pair, backend: &str) -> Outcome {
        let (sysfs, dev) = (path(&self.sysfs)?, path(&self.dev)?);
        rig.start_agent(&["--backend", backend, "--sysfs-root", sysfs, "--dev-root", dev])
    }
}

fn path(path: &Path) -> Outcome<&str> {
    Ok(path.to_str().ok_or("not text")?)
}

/// Starts all daemons without a region; `backend` is the value of the agent's option `--backend`.
fn started(backend: &str, devices: &[(&str, u64, u64)]) -> Outcome<(Pair, Machine)> {
    let rig = Pair::bare()?;
    let machine = Machine::of(&rig)?;
    devices.iter().try_for_each(|(device, at, mib)| machine.plug(device, *at, *mib))?;
    rig.start_gmm()?;
    rig.start_mn("anon")?;
    machine.start_agent(&rig, backend)?;
    Ok((rig, machine))
}

/// Waits until the agent lists a region as `holds` requires.
fn shown(rig: &Pair, region: &str, holds: impl Fn(&AttachedRegion) -> bool) -> Outcome<AttachedRegion> {
    let mut last = None;
    eventually(&format!("region {region} is shown as wanted"), || {
        last = client::regions(&rig.socket()).ok()?.into_iter().find(|listed| listed.region == region);
        last.clone().filter(|region| holds(region))
    })
    .map_err(|e| format!("{}; it is {last:?}", e.message().unwrap_or_default()).into())
}

/// Creates a region and waits until it is attached and served by `carrier`: Ethernet or a device.
fn created(rig: &Pair, region: &str, carrier: &str) -> Outcome<AttachedRegion> {
    rig.create_region(region)?;
    shown(rig, region, |shown| shown.served_by == carrier && shown.attachment == Attaching::Attached)
}

/// Performs a user's operations on a region, which are the same whatever serves it; returns the region's HPA.
fn use_it(rig: &Pair, seed: u64) -> Outcome<u64> {
    let (mut port, hpa) = rig.written(seed)?;
    verify(&mut port, hpa, seed)?;
    succeeded(rig.cli(&["write", "scratch+0x20000", "--text", "hello", "--flush"])?)?;
    let dump = succeeded(rig.cli(&["read", "scratch+0x20000"])?)?;
    ensure(dump.contains("|hello...........|"), dump)?;
    failed_with(&rig.cli(&["read", "scratch+1"])?, 2, &["multiple of 64"])?;
    failed_with(&rig.cli(&["read", &(hpa + REGION).to_string()])?, 4, &["no region holds"])?;
    Ok(hpa)
}

fn a_device_serves_the_region_and_the_link_is_silent() -> Outcome {
    let (rig, machine) = started("auto", &[("dax0.0", 6, 8)])?;
    let quiet = client::counters(&rig.socket())?;
    let region = created(&rig, "scratch", "cxl:dax0.0")?;
    ensure(region.note.is_none() && region.state == "active", format!("{region:?}"))?;
    let hpa = use_it(&rig, 1)?;
    ensure(client::sessions(&rig.socket())?.is_empty(), "no session is opened")?;
    let counters = client::counters(&rig.socket())?;
    let sent = counters.link.tx_frames - quiet.link.tx_frames;
    ensure(sent == 0, format!("{sent} frames were sent for a region that needs none"))?;
    let engine = counters.engine;
    ensure(engine.local_reads >= LINES && engine.local_writes >= LINES, format!("{engine:?}"))?;
    let cached = (engine.read_hits, engine.write_hits, engine.read_misses, engine.write_misses);
    ensure(cached == (0, 0, 0, 0), format!("{cached:?}: neither the cache nor the link"))?;
    // The content of an acknowledged write is in the device's memory.
    ensure(machine.content("dax0.0", 64)? == line(hpa + 64, 1), "it is in the device")?;

    // After a kill and after an orderly end of the agent, the next agent finds the device and its content.
    rig.kill("agent")?;
    machine.start_agent(&rig, "auto")?;
    ensure(created_before(&rig)?.hpa == hpa, "a region keeps its address")?;
    let mut port = rig.connect()?;
    recovered(&mut port, hpa)?;
    verify(&mut port, hpa, 1)?;
    rig.stop("agent")?;
    // The next agent finds the device even without the manager.
    rig.kill("gmm")?;
    machine.start_agent(&rig, "auto")?;
    created_before(&rig)?;
    let mut port = rig.connect()?;
    recovered(&mut port, hpa)?;
    verify(&mut port, hpa, 1)?;
    ensure(client::sessions(&rig.socket())?.is_empty(), "still no session")
}

fn created_before(rig: &Pair) -> Outcome<AttachedRegion> {
    shown(rig, "scratch", |region| region.served_by == "cxl:dax0.0")
}

fn without_the_device_the_same_commands_use_ethernet() -> Outcome {
    let (rig, _machine) = started("auto", &[])?;
    created(&rig, "scratch", "ethernet")?;
    use_it(&rig, 2)?;
    ensure(client::sessions(&rig.socket())?.len() == 1, "a session with the memory node")?;
    let counters = client::counters(&rig.socket())?;
    // The test counts bytes instead of frames, because many lines share one frame.
    ensure(counters.link.tx_bytes > LINES * 64, format!("{:?}", counters.link))?;
    ensure(counters.engine.local_reads == 0, "nothing is local")
}

fn a_device_that_comes_later_serves_new_regions_only() -> Outcome {
    let (rig, machine) = started("auto", &[])?;
    created(&rig, "scratch", "ethernet")?;
    let hpa = use_it(&rig, 3)?;
    machine.plug("dax0.0", 6, 8)?;
    let told = shown(&rig, "scratch", |region| region.note.is_some())?;
    ensure(told.served_by == "ethernet", "what has data stays where it is")?;
    ensure(told.note.is_some_and(|note| note.contains("dax0.0")), "the device is named")?;
    created(&rig, "second", "cxl:dax0.0")?;
    // Accesses alternate between both regions.
    let second = shown(&rig, "second", |_| true)?.hpa;
    let mut port = rig.connect()?;
    let both: Vec<_> =
        written_lines(second, 4).into_iter().zip(written_lines(hpa, 5)).flat_map(|(a, b)| [a, b]).collect();
    port.write_batch(&both)?;
    port.flush()?;
    verify(&mut port, second, 4)?;
    verify(&mut port, hpa, 5)?;
    shown(&rig, "scratch", |region| region.note.is_none()).map(drop)
}

fn a_device_that_goes_fails_its_region_alone_and_may_come_back() -> Outcome {
    cxloe_lab::expect_error("the CXL device of a region is");
    let (rig, machine) = started("auto", &[("dax0.0", 6, 8)])?;
    let hpa = created(&rig, "scratch", "cxl:dax0.0")?.hpa;
    let other = created(&rig, "other", "ethernet")?.hpa;
    let (mut port, _) = rig.written(6)?;
    eventually("a session is open", || port.read(other).ok())?;
    port.write_batch(&written_lines(other, 7))?;

    machine.unplug("dax0.0")?;
    let error = failure(&mut port, hpa)?;
    ensure(
        matches!(error, ClientError::Engine(EngineError::DeviceGone(at)) if at == hpa),
        error.to_string(),
    )?;
    let error = port.write(hpa, &[1; 64]).unwrap_err();
    ensure(matches!(error, ClientError::Engine(EngineError::DeviceGone(_))), error.to_string())?;
    failed_with(&rig.cli(&["read", "scratch"])?, 3, &["CXL device", "is gone"])?;
    shown(&rig, "scratch", |region| region.note.as_ref().is_some_and(|note| note.contains("not there")))?;
    verify(&mut port, other, 7)?;

    // An agent that is started without the device reports the same error.
    rig.stop("agent")?;
    machine.start_agent(&rig, "auto")?;
    let mut port = rig.connect()?;
    let error = failure(&mut port, hpa)?;
    ensure(matches!(error, ClientError::Engine(EngineError::DeviceGone(_))), error.to_string())?;

    machine.plug_again("dax0.0")?;
    recovered(&mut port, hpa)?;
    verify(&mut port, hpa, 6)?;
    let back = created_before(&rig)?;
    ensure(back.note.is_none(), format!("{back:?}"))?;
    recovered(&mut port, other)?;
    verify(&mut port, other, 7)
}

/// The kernel unmaps the pages of a removed device without notice. Accesses to them have to return an error, instead of
/// ending the agent by SIGBUS.
fn memory_that_vanishes_under_the_agent_is_an_error() -> Outcome {
    cxloe_lab::expect_error("the CXL device of a region is");
    let (rig, machine) = started("auto", &[("dax0.0", 6, 8)])?;
    let hpa = created(&rig, "scratch", "cxl:dax0.0")?.hpa;
    let (mut port, _) = rig.written(8)?;
    let file = fs::OpenOptions::new().write(true).open(machine.dev.join("dax0.0"))?;
    file.set_len(0)?;
    for offset in (0..REGION).step_by(4096) {
        let read = port.read(hpa + offset);
        let gone = matches!(read, Err(ClientError::Engine(EngineError::DeviceGone(_))));
        ensure(gone, format!("offset {offset:#x}: {read:x?}"))?;
    }
    let error = port.write(hpa, &[1; 64]).unwrap_err();
    ensure(matches!(error, ClientError::Engine(EngineError::DeviceGone(_))), error.to_string())?;
    shown(&rig, "scratch", |region| region.note.is_some())?;
    created(&rig, "other", "ethernet")?;
    Ok(())
}

fn a_region_waits_with_backend_cxl_until_a_device_fits() -> Outcome {
    cxloe_lab::expect_error("no CXL device can serve a region");
    let (rig, machine) = started("cxl", &[("dax0.0", 0, 2)])?;
    rig.create_region("scratch")?;
    let waits = shown(&rig, "scratch", |region| region.note.is_some())?;
    ensure(waits.attachment == Attaching::Waiting && waits.served_by == "undecided", format!("{waits:?}"))?;
    let note = waits.note.unwrap_or_default();
    ensure(note.contains("dax0.0: it has 2") && note.contains("the region 4"), note)?;
    let error = rig.connect()?.read(waits.hpa).unwrap_err();
    ensure(matches!(error, ClientError::Engine(EngineError::Unmapped(_))), error.to_string())?;
    ensure(client::sessions(&rig.socket())?.is_empty(), "nobody is called")?;
    machine.plug("dax1.0", 6, 8)?;
    shown(&rig, "scratch", |region| region.served_by == "cxl:dax1.0")?;
    use_it(&rig, 9).map(drop)
}

fn a_device_of_another_owner_is_not_used() -> Outcome {
    let (rig, machine) = started("ethernet", &[("dax0.0", 6, 8)])?;
    rig.stop("agent")?;
    let others = fs::OpenOptions::new().read(true).write(true).open(machine.dev.join("dax0.0"))?;
    others.write_all_at(&[0xA5; 64], 0)?;
    others.lock()?;
    machine.start_agent(&rig, "auto")?;
    created(&rig, "scratch", "ethernet")?;
    use_it(&rig, 10)?;
    ensure(machine.content("dax0.0", 0)? == [0xA5; 64], "nothing was written to it")?;
    // The agent locks the file of a device that serves a region, so that no other process uses the device.
    others.unlock()?;
    created(&rig, "second", "cxl:dax0.0")?;
    ensure(others.try_lock().is_err(), "a device that serves is locked")?;
    rig.stop("agent")?;
    others.try_lock().map_err(|error| format!("still locked: {error}").into())
}

fn a_new_region_on_a_used_device_is_empty() -> Outcome {
    let (rig, machine) = started("auto", &[("dax0.0", 6, 8)])?;
    created(&rig, "scratch", "cxl:dax0.0")?;
    let (_, hpa) = rig.written(11)?;
    ensure(machine.content("dax0.0", 0)? == line(hpa, 11), "it is in the device")?;
    // The next region is created at once, while the agent still detaches the first.
    rig.gmm(&["destroy-region", "scratch", "--force"])?;
    let next = created(&rig, "scratch", "cxl:dax0.0")?;
    ensure(next.hpa != hpa, "another region, another address")?;
    let mut port = rig.connect()?;
    let hpas: Vec<u64> = (next.hpa..next.hpa + REGION).step_by(64).collect();
    let mut read = vec![[1; 64]; hpas.len()];
    port.read_batch(&hpas, &mut read)?;
    ensure(read.iter().all(|line| *line == [0; 64]), "no old bytes")?;
    let old = port.read(hpa).unwrap_err();
    ensure(matches!(old, ClientError::Engine(EngineError::Unmapped(_))), old.to_string())
}

fn an_agent_that_may_not_look_serves_no_old_copy() -> Outcome {
    let (rig, machine) = started("auto", &[("dax0.0", 6, 8)])?;
    let hpa = created(&rig, "scratch", "cxl:dax0.0")?.hpa;
    rig.written(12)?;
    rig.stop("agent")?;
    machine.start_agent(&rig, "ethernet")?;
    let told = shown(&rig, "scratch", |region| region.note.is_some())?;
    ensure(told.note.is_some_and(|note| note.contains("--backend ethernet")), "the reason is told")?;
    let error = failure(&mut rig.connect()?, hpa)?;
    ensure(matches!(error, ClientError::Engine(EngineError::DeviceGone(_))), error.to_string())?;
    rig.stop("agent")?;
    machine.start_agent(&rig, "cxl")?;
    let mut port = rig.connect()?;
    recovered(&mut port, hpa)?;
    verify(&mut port, hpa, 12)
}

fn growth_goes_over_ethernet() -> Outcome {
    let (rig, _machine) = started("auto", &[("dax0.0", 6, 8)])?;
    let hpa = created(&rig, "scratch", "cxl:dax0.0")?.hpa;
    rig.written(13)?;
    rig.gmm(&["grow-region", "scratch", "-s", &format!("+{REGION}")])?;
    shown(&rig, "scratch", |region| region.served_by == "cxl:dax0.0+ethernet" && region.size == 2 * REGION)?;
    let behind = hpa + REGION;
    let mut port = rig.connect()?;
    recovered(&mut port, behind)?;
    // One batch crosses the boundary between the two parts of the region.
    let border: Vec<u64> = (behind - 4096..behind + 4096).step_by(64).collect();
    let written: Vec<_> = border.iter().map(|hpa| (*hpa, line(*hpa, 14))).collect();
    port.write_batch(&written)?;
    port.flush()?;
    let mut read = vec![[0; 64]; border.len()];
    port.read_batch(&border, &mut read)?;
    ensure(written.iter().map(|(_, line)| line).eq(&read), "both sides of the border")?;
    verify(&mut port, hpa, 13)?;
    ensure(client::sessions(&rig.socket())?.len() == 1, "the memory node was called for the rest")
}

fn what_there_is_can_be_listed() -> Outcome {
    let rig = Pair::bare()?;
    let machine = Machine::of(&rig)?;
    let (sysfs, dev) = (path(&machine.sysfs)?, path(&machine.dev)?);
    let list = |more: &[&str]| {
        let arguments = [&["cxl", "list", "--sysfs-root", sysfs, "--dev-root", dev], more].concat();
        succeeded(rig.cli(&arguments)?)
    };
    let bare = list(&[])?;
    ensure(bare.contains("region0") && bare.contains("ndctl create-namespace -m devdax"), bare)?;
    machine.plug("dax0.0", 6, 8)?;
    machine.plug("dax1.0", 80, 2)?;
    let both = list(&[])?;
    let row = |name: &str| both.lines().find(|line| line.contains(name)).unwrap_or_default().to_owned();
    ensure(row("dax0.0").contains("up to 8"), both.clone())?;
    ensure(row("dax1.0").contains("no: no CXL region holds its addresses"), both.clone())?;
    let json: serde_json::Value = serde_json::from_str(&list(&["--json"])?)?;
    let devices = &json["dax_devices"];
    ensure(devices[0]["device"] == "dax0.0" && devices[0]["size"] == 8 * MIB, json.to_string())?;
    ensure(devices[0]["region"] == "region0" && devices[0].get("unfit").is_none(), json.to_string())?;
    ensure(devices[1]["unfit"].is_string() && json["driver"] == true, json.to_string())?;
    fs::write(machine.folder("dax1.0").join("size"), [0xFF; 64])?;
    let output = rig.cli(&["cxl", "list", "--sysfs-root", sysfs, "--dev-root", dev])?;
    let output_text = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure(output.status.success() && output_text.contains("dax1.0/size"), output_text)?;
    let nothing = rig.cli(&["cxl", "list", "--sysfs-root", dev])?;
    let output_text = String::from_utf8_lossy(&nothing.stderr).into_owned();
    ensure(nothing.status.success() && output_text.contains("no CXL memory found"), output_text)
}
