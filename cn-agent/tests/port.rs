//! The line port over regions that are interleaved over memory nodes: data written reads back, by bytes and by lines,
//! and lies in the memory nodes' pools as the interleave prescribes. Engine and services are real; the simulated
//! network advances whenever the port polls for frames.

mod looped;

use std::sync::Arc;

use cxloe_cn_core::backing::DeviceMemory;
use cxloe_cn_core::engine::{EngineError, Unmapped};
use cxloe_cxl::Device;
use cxloe_cxl::inventory::DaxDevice;
use cxloe_fabric::hdm::{Granularity, Ways};
use cxloe_mn::pool::MpAddr;
use cxloe_port::port::PortError;

use looped::{HPA, open, pattern, route};

#[test]
fn what_is_written_is_read_again_and_lies_where_the_interleave_has_it() {
    for (ways, granularity) in
        [(1, 4096), (2, 256), (3, 256), (3, 4096), (4, 256), (4, 1024), (4, 16_384), (6, 512), (16, 256)]
    {
        let (ways, granularity) =
            (Ways::try_from(ways).unwrap(), Granularity::try_from(granularity).unwrap());
        let what = format!("{ways} ways of {granularity}");
        // Frames for an MTU of 1500, and frames that carry few lines.
        for max_frame in [1514, 300] {
            let (mut port, tables) = open(ways.count() as u8, max_frame);
            let route = route(HPA, ways, granularity, 0, false);
            let size = route.decoder.size as usize;
            port.engine().add_route(route).expect("a route");
            let mut model = pattern(size, 1);
            port.write_bytes(HPA, &model).expect("all of it");
            // Ranges with different alignments of both ends.
            for (salt, start, lines) in [(2, 0, 1), (3, 3, 7), (4, 61, 70), (5, size / 64 - 100, 100)] {
                let part = pattern(lines * 64, salt);
                port.write_bytes(HPA + start as u64 * 64, &part).expect("a part");
                model[start * 64..][..part.len()].copy_from_slice(&part);
                let mut back = vec![0; part.len()];
                port.read_bytes(HPA + start as u64 * 64, &mut back).expect("a part");
                assert!(back == part, "{what}: lines from {start}");
            }
            let mut back = vec![0; size];
            port.read_bytes(HPA, &mut back).expect("all of it");
            assert!(back == model, "{what}");
            let hpas: Vec<u64> = (0..size as u64 / 64).step_by(7).map(|line| HPA + line * 64).collect();
            let mut lines = vec![[0; 64]; hpas.len()];
            port.read_batch(&hpas, &mut lines).expect("lines");
            for (hpa, line) in hpas.iter().zip(&lines) {
                assert_eq!(line[..], model[(hpa - HPA) as usize..][..64], "{what}: HPA {hpa:#x}");
            }
            // Computes the location of each byte from the definition of interleaving, and compares it with the memory
            // nodes' pools.
            let (grain, count) = (granularity.bytes() as usize, ways.count() as usize);
            for (chunk, expected) in model.chunks(grain).enumerate() {
                let mut found = vec![0; grain];
                let at = (chunk / count * grain) as u64;
                tables[chunk % count].pool().read_lines(MpAddr(at), &mut found);
                assert!(found == expected, "{what}: chunk {chunk}");
            }
            port.close().expect("an end in order");
        }
    }
}

#[test]
fn a_range_over_routes_and_holes_is_one_call() {
    let (mut port, _tables) = open(5, 1514);
    let three = route(HPA, Ways::Three, Granularity::MIN, 0, false);
    let hole = HPA + three.decoder.size;
    let two = route(hole + 8192, Ways::Two, Granularity::PAGE, 3, false);
    let end = two.decoder.base + two.decoder.size;
    port.engine().add_route(three).expect("a route");
    port.engine().add_route(two).expect("another");
    let range = hole - 4096..hole + 12_288;
    let mut out = vec![0; (range.end - range.start) as usize];
    let unmapped = |error: Result<(), PortError>| match error {
        Err(PortError::Engine(error)) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(unmapped(port.read_bytes(range.start, &mut out)), EngineError::Unmapped(hole));

    port.engine().add_miss_policy(HPA, 1 << 30, Unmapped::AllOnes).expect("a hole");
    let data = pattern(out.len(), 9);
    port.write_bytes(range.start, &data).expect("what falls into the hole is dropped");
    port.read_bytes(range.start, &mut out).expect("all of it");
    assert!(out[..4096] == data[..4096] && out[12_288..] == data[12_288..]);
    assert!(out[4096..12_288].iter().all(|byte| *byte == 0xFF));
    let mut lines = [[0; 64]; 2];
    port.read_batch(&[hole, hole - 64], &mut lines).expect("lines");
    assert_eq!(lines, [[0xFF; 64], *data[4032..4096].first_chunk().expect("a line")]);
    assert_eq!(port.read(end).expect("beyond"), [0xFF; 64]);
    port.write(end, &[1; 64]).expect("dropped");

    port.engine().remove_miss_policy(HPA);
    port.engine().add_miss_policy(HPA, 1 << 30, Unmapped::Poison).expect("a hole");
    assert_eq!(unmapped(port.read_bytes(range.start, &mut out)), EngineError::Poisoned(hole));
    assert_eq!(unmapped(port.read(end).map(drop)), EngineError::Poisoned(end));
}

/// Tests one call that reads a range of three parts: a region over memory nodes, local memory (such as a CXL
/// device) and a hole. The local part needs no frame.
#[test]
fn a_range_over_local_memory_is_one_call_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let size: u64 = 64 << 10;
    let dax = DaxDevice {
        device: "dax0.0".into(),
        size,
        align: 4096,
        resource: Some(1 << 32),
        target_node: None,
        driver: None,
        region: None,
        persistent: true,
        unfit: None,
    };
    let file = std::fs::File::create(folder.path().join("dax0.0")).expect("a file");
    file.set_len(size).expect("some room");
    let device = Arc::new(Device::claim(folder.path(), &dax).expect("a device"));

    let (mut port, _tables) = open(3, 1514);
    let three = route(HPA, Ways::Three, Granularity::MIN, 0, false);
    let local = HPA + three.decoder.size;
    port.engine().add_route(three).expect("a route");
    port.engine().add_local(local, size, device.clone(), 0).expect("local memory");
    port.engine().add_miss_policy(local + size, 4096, Unmapped::AllOnes).expect("a hole");
    let range = local - 8192..local + size + 4096;
    let data = pattern((range.end - range.start) as usize, 21);
    port.write_bytes(range.start, &data).expect("all of it");
    let mut back = vec![0; data.len()];
    port.read_bytes(range.start, &mut back).expect("all of it");
    let hole = back.len() - 4096;
    assert!(back[..hole] == data[..hole] && back[hole..].iter().all(|byte| *byte == 0xFF));
    let hpas: Vec<u64> = range.clone().step_by(64).collect();
    let mut lines = vec![[0; 64]; hpas.len()];
    port.read_batch(&hpas, &mut lines).expect("lines");
    assert!(lines.as_flattened() == back);

    let frames = port.link().counters().tx_frames;
    let part = pattern(5 * 64, 22);
    port.write_bytes(local + 4096 - 128, &part).expect("over a page");
    port.write(local, &[3; 64]).expect("a line");
    assert_eq!(port.read(local).expect("a line"), [3; 64]);
    let mut found = vec![0; part.len()];
    port.read_bytes(local + 4096 - 128, &mut found).expect("over a page");
    port.flush().expect("nothing to write back");
    assert!(found == part && port.link().counters().tx_frames == frames, "no frame for any of it");

    // If part of a range cannot be read, the whole call fails.
    device.give_up();
    let gone = port.read_bytes(range.start, &mut back);
    assert!(matches!(gone, Err(PortError::Engine(EngineError::DeviceGone(hpa))) if hpa == local), "{gone:?}");
    port.read_bytes(range.start, &mut back[..8192]).expect("the rest");
}
