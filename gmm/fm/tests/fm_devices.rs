//! Answers of the FM API about devices and through tunnels to them, and its event records: requests and responses as
//! bytes.

mod fm_fabric;

use cxloe_fabric::hdm::{Decoder, Granularity, Ways};
use cxloe_fm::bytes::Payload;
use cxloe_fm::event_record::{EventContent, Events, Log, Overflow};
use cxloe_fm::fabric::*;
use cxloe_fm::header::ReturnCode;
use cxloe_fm::physical_switch::PortState;
use fm_fabric::*;

#[test]
fn aer_events_are_for_bound_lds() {
    let mut bench = Conversation::new();
    let header = "A5".repeat(32);
    bench.refuses(0x5203, &format!("00 01 0000 00400000 {header}"), INVALID);
    bench.fabric.hosts[0].slots = vec![Slot { vppb: 1, in_progress: false, port: Some(0), ld: Some(3) }];
    bench.gives(0x5203, &format!("00 01 FFFF 00400000 {header}"), "");
    assert_eq!(bench.fabric.asked, ["aer 0 1 0x4000"]);
    bench.refuses(0x5203, "00 01 0000 00400000", LENGTH);
}

#[test]
fn tunnels_lead_to_devices() {
    let mut bench = Conversation::new();
    bench.refuses(0x5300, "01 00 0D00 08 00 00 00 01 00 00 00 00 00 00 00 00", INVALID);
    bench.refuses(0x5300, "7F 00 0D00 08 00 00 00 01 00 00 00 00 00 00 00 00", INVALID);
    bench.refuses(0x5300, "00 00 0E00 08 00 00 00 01 00 00 00 00 00 00 00 00", LENGTH);
    bench.refuses(0x5300, "00 00", LENGTH);
    bench.refuses(0x5300, "00 00 0100 07", LENGTH);
    bench.refuses(0x5300, "00 00 0D00 08 10 00 00 01 00 00 00 00 00 00 00 00", INVALID);
    // The return code of the tunnelled message does not affect that of the tunnel.
    bench.gives(
        0x5300,
        "00 00 0D00 08 00 42 00 77 77 00 00 00 00 00 00 00",
        "0D00 0000 08 10 42 00 77 77 00 00 00 03 00 00 00",
    );
}

#[test]
fn configuration_space_of_an_ld() {
    let mut bench = Conversation::new();
    *bench.fabric.ld(0, 2) =
        LogicalDevice { id: 2, reserved: 5 * GIB, bound: true, ..LogicalDevice::default() };
    let read = |bench: &mut Conversation, offset: u16, expected: &str| {
        bench.gives(
            0x5301,
            &format!("00 {:02x} F{:x} 00 0200 0000 00000000", offset & 0xFF, offset >> 8),
            expected,
        );
    };
    read(&mut bench, 0x00, "3412 0EC1");
    read(&mut bench, 0x08, "00 10 02 05");
    read(&mut bench, 0x10, "04000000");
    read(&mut bench, 0x2C, "3412 0EC1");
    read(&mut bench, 0x34, "40000000");
    read(&mut bench, 0x40, "10 00 0200");
    // CXL device DVSEC: 0023h, next at 140h; vendor 1E98h, revision 2, 3Ch bytes; id 0.
    read(&mut bench, 0x100, "23000114");
    read(&mut bench, 0x104, "981EC203");
    read(&mut bench, 0x108, "0000 1E00");
    // Memory range 1 has 5 GiB, is valid and active.
    read(&mut bench, 0x118, "01000000");
    read(&mut bench, 0x11C, "03000040");
    read(&mut bench, 0x140, "23000100");
    read(&mut bench, 0x144, "981E4001");
    read(&mut bench, 0x148, "0800 0000");
    read(&mut bench, 0x14C, "00010000");
    read(&mut bench, 0xFFC, "00000000");
    // A read returns 0 for bytes that are not enabled, and a write does not change them.
    bench.gives(0x5301, "00 08 A0 00 0200 0000", "00 10 00 05");
    bench.gives(0x5301, "00 04 F0 80 0200 0000 FFFFFFFF", "00000000");
    read(&mut bench, 0x04, "4605 1000");
    bench.gives(0x5301, "00 04 10 80 0200 0000 00000000", "00000000");
    read(&mut bench, 0x04, "0005 1000");
    // Writes to anything but the command register are refused.
    for (write, why) in [
        ("00 00 F0 80 0200 0000 00000000", "the identity"),
        ("00 10 F0 80 0200 0000 FFFFFFFF", "BAR 0"),
        ("00 04 C0 80 0200 0000 FFFFFFFF", "the status"),
        ("00 04 00 80 0200 0000 FFFFFFFF", "no byte"),
    ] {
        assert_eq!(bench.ask(0x5301, write), (UNSUPPORTED, vec![]), "{why}");
    }
    read(&mut bench, 0x00, "3412 0EC1");
    bench.refuses(0x5301, "00 FD FF 00 0200 0000", INVALID);
    bench.refuses(0x5301, "00 FD FF 80 0200 0000 00000000", INVALID);
    bench.refuses(0x5301, "00 00 F0 00 1000 0000", INVALID);
    bench.refuses(0x5301, "01 00 F0 00 0000 0000", INVALID);
    bench.refuses(0x5301, "00 00 F0 80 0200 0000", LENGTH);
    // An SLD has one LD, which both 0 and FFFFh mean.
    bench.gives(0x5301, "03 00 F0 00 0000 0000", "3412 0EC1");
    bench.gives(0x5301, "03 1C F1 00 FFFF 0000", "01000040");
}

#[test]
fn component_registers_of_an_ld() {
    let mut bench = Conversation::new();
    let decoder = |base, size, ways, granularity: u32| Decoder {
        base,
        size,
        ways,
        granularity: Granularity::try_from(granularity).unwrap(),
    };
    bench.fabric.ld(0, 2).decoders =
        vec![decoder(0, GIB, Ways::Four, 1024), decoder(GIB, 3 * 256 * MIB, Ways::Three, 256)];
    let read = |bench: &mut Conversation, offset: u32, expected: &str| {
        let [o0, o1, o2, o3] = offset.to_le_bytes();
        let bytes = hex(expected).len();
        let request = format!("00 00 F0 0F 0200 {bytes:02x}00 {o0:02x}{o1:02x}{o2:02x}{o3:02x}00000000");
        bench.gives(0x5302, &request, &format!("{bytes:02x}00 0000 {expected}"));
    };
    read(&mut bench, 0x1000, "01001101 05000310");
    read(&mut bench, 0x1100, "0C1B0000 02000000");
    read(&mut bench, 0x1110, "00000000 00000000 00000040 00000000 22160000");
    read(&mut bench, 0x1130, "00000040 00000000 00000030 00000000 80160000");
    read(&mut bench, 0x1150, "00000000 00000000 00000000 00000000 00000000");
    read(&mut bench, 0xFFFC, "00000000");
    // Clients send as many data bytes with a read as they request; these bytes are ignored.
    bench.gives(0x5302, "00 00 F0 0F 0200 0400 0010000000000000 AAAAAAAA", "0400 0000 01001101");
    bench.refuses(0x5302, "00 00 F0 0F 0200 0400 FDFF000000000000", INVALID);
    bench.refuses(0x5302, "00 00 F0 0F 0200 0400 FFFFFFFFFFFFFFFF", INVALID);
    bench.refuses(0x5302, "00 00 F0 0F 0200 0110 0000000000000000", INVALID);
    bench.refuses(0x5302, "00 00 F0 0F 1000 0400 0000000000000000", INVALID);
    bench.refuses(0x5302, "00 00 F0 8F 0200 0400 0010000000000000 00000000", UNSUPPORTED);
    bench.refuses(0x5302, "00 00 F0 0F 0200 0400", LENGTH);
    let (code, most) = bench.ask(0x5302, "00 00 F0 0F 0200 0010 0010000000000000");
    assert_eq!((code, most.len()), (0, 4 + 4096));
}

#[test]
fn lds_and_their_capacity() {
    let mut bench = Conversation::new();
    bench.device_gives(0x5400, "", "0000000001000000 1000 03");
    let (four, none) = ("0400000000000000 0000000000000000", "0000000000000000 0000000000000000");
    bench.device_gives(0x5402, &format!("02 0E FFFF {four} {none}"), &format!("02 0E 0000 {four} {none}"));
    assert_eq!(bench.fabric.ld(0, 14).reserved, GIB);
    bench.device_gives(0x5401, "0D 02", &format!("10 00 0D 02 {none} {four}"));
    bench.device_gives(0x5401, "0E FF", &format!("10 00 0E 02 {four} {none}"));
    bench.device_refuses(0x5401, "10 01", INVALID);
    bench.device_refuses(0x5401, "00 00", INVALID);
    bench.device_refuses(0x5401, "00", LENGTH);
    bench.device_refuses(0x5402, &format!("02 0F 0000 {four} {none}"), INVALID);
    bench.device_refuses(0x5402, "00 00 0000", INVALID);
    bench.device_refuses(0x5402, &format!("02 00 0000 {four}"), LENGTH);
    bench.device_refuses(0x5402, "01 00 0000 0100000000000000 0100000000000000", INVALID);
    bench.device_refuses(0x5402, "01 00 0000 FFFFFFFFFFFFFFFF 0000000000000000", INVALID);
    bench.fabric.refusal = Some(ReturnCode::InvalidInput);
    bench.device_refuses(0x5402, &format!("01 00 0000 {four}"), INVALID);
    assert_eq!(bench.fabric.ld(0, 0).reserved, 0);
}

#[test]
fn quality_of_service() {
    let mut bench = Conversation::new();
    bench.device_gives(0x5403, "", "00 0A 19 08 0000 40");
    bench.device_gives(0x5404, "03 14 1E 10 0201 20", "03 14 1E 10 0201 20");
    bench.device_gives(0x5403, "", "03 14 1E 10 0201 20");
    for (control, why) in [
        ("00 1F 1E 10 0000 20", "moderate above severe"),
        ("00 14 65 10 0000 20", "more than all"),
        ("04 14 1E 10 0000 20", "nothing to enable"),
    ] {
        assert_eq!(bench.tunnel(0, 0x5404, control), (INVALID, vec![]), "{why}");
    }
    bench.device_refuses(0x5404, "03 14", LENGTH);
    bench.device_gives(0x5405, "", "0C");
    for (get, set) in [(0x5406, 0x5407), (0x5408, 0x5409)] {
        bench.device_gives(get, "02 0E", "02 0E 00 00");
        bench.device_gives(set, "02 0E 40 80", "02 0E 40 80");
        bench.device_gives(get, "03 0D", "03 0D 00 40 80");
        // The request is for 3 entries from LD 14 on: the response has the 2 that exist.
        bench.device_gives(get, "03 0E", "02 0E 40 80");
        bench.device_gives(get, "FF 00", &format!("10 00 {} 40 80", "00".repeat(14)));
        for nothing in ["00 00", "01 10"] {
            bench.device_refuses(get, nothing, INVALID);
        }
        bench.device_refuses(set, "03 0E 01 02 03", INVALID);
        bench.device_refuses(set, "03 0E 01 02", LENGTH);
        bench.device_refuses(get, "", LENGTH);
    }
    // The sum of bandwidth limits may exceed the device's bandwidth; the sum of allocated bandwidths may not.
    bench.device_refuses(0x5407, "02 00 FF FF", INVALID);
    bench.device_gives(0x5409, "02 00 FF FF", "02 00 FF FF");
    bench.device_gives(0x5406, "02 00", "02 00 00 00");
}

#[test]
fn dynamic_capacity() {
    let mut bench = Conversation::new();
    let zeros = "00".repeat(56);
    bench.device_gives(
        0x5600,
        "",
        &format!("10 01 0000 0300 0000 0300 00 00 1000000000000000 0000200000000000 {zeros}"),
    );
    let region = "0000000000000000 0000100000000000 0000000000000100 0000200000000000 00 000000 01 000000";
    let room = "00000100 00000100 00000100 00000100";
    bench.device_gives(0x5601, "0200 08 00", &format!("0200 01 01 {region} {room}"));
    bench.device_gives(0x5601, "0200 00 00", &format!("0200 01 00 {room}"));
    bench.device_refuses(0x5601, "0200 01 01", INVALID);
    bench.device_refuses(0x5601, "1000 01 00", INVALID);
    bench.device_gives(0x5602, "00 000000 0000200000000000 01 000000", "");
    bench.device_refuses(0x5602, "01 000000 0000200000000000 01 000000", INVALID);
    bench.device_refuses(0x5602, "00 000000 0000400000000000 01 000000", INVALID);
    bench.device_refuses(0x5602, "00 000000 0000200000000000 00 000000", UNSUPPORTED);

    let (a, b) = ("0A".repeat(16), "0B".repeat(16));
    let four_mib = "0000400000000000";
    bench.device_refuses(0x5604, &format!("0200 00 00 {four_mib} {a} 00000000"), RETRY);
    bench.fabric.ld(0, 2).bound = true;
    bench.device_gives(0x5604, &format!("0200 00 00 {four_mib} {a} 00000000"), "");
    bench.device_gives(0x5604, &format!("0200 01 00 0000200000000000 {b}"), "");
    for (request, why) in [
        (format!("0200 00 00 {four_mib} {a} 00000000"), "the tag is taken"),
        (format!("0200 00 01 {four_mib} {} 00000000", "0C".repeat(16)), "no such region"),
        (format!("0200 02 00 {four_mib} {} 00000000", "0C".repeat(16)), "not prescriptive"),
        (format!("0200 03 00 {four_mib} {a} 00000000"), "nothing is shared"),
        (format!("0200 00 00 0000000000000000 {} 00000000", "0C".repeat(16)), "nothing"),
        (format!("0200 00 00 0000100000000000 {} 00000000", "0C".repeat(16)), "half a block"),
        (format!("1000 00 00 {four_mib} {} 00000000", "0C".repeat(16)), "no such host"),
    ] {
        assert_eq!(bench.tunnel(0, 0x5604, &request), (INVALID, vec![]), "{why}");
    }
    bench.device_refuses(0x5604, "0200 00 00", LENGTH);
    let first = format!("0000000000000000 {four_mib} {a} 0000 000000000000");
    let second = format!("{four_mib} 0000200000000000 {b} 0000 000000000000");
    let extents = |bench: &mut Conversation, request: &str, counts: &str, listed: &str| {
        bench.device_gives(0x5603, request, &format!("0200 0000 {counts} 00000000 {listed}"));
    };
    extents(
        &mut bench,
        "0200 0000 FF000000 00000000",
        "00000000 02000000 02000000 02000000",
        &format!("{first}{second}"),
    );
    extents(&mut bench, "0200 0000 FF000000 01000000", "01000000 01000000 02000000 02000000", &second);
    extents(&mut bench, "0200 0000 00000000 00000000", "00000000 00000000 02000000 02000000", "");
    bench.device_refuses(0x5603, "0200 0000 01000000 03000000", INVALID);
    bench.device_gives(0x5601, "0200 00 00", "0200 01 00 00000100 FEFF0000 00000100 FEFF0000");
    bench.device_refuses(0x5602, "00 000000 0000200000000000 01 000000", UNSUPPORTED);

    for (request, why) in [
        (format!("0200 00 00 0000000000000000 {} 00000000", "0C".repeat(16)), "no such tag"),
        (format!("0200 00 00 0000200000000000 {a} 00000000"), "half of it"),
        (format!("0200 02 00 0000000000000000 {a} 00000000"), "no such policy"),
        (format!("0200 01 00 0000000000000000 {a} 00000000"), "no extents"),
        (
            format!("0200 01 00 0000000000000000 {a} 01000000 {four_mib} {four_mib} {b} 0000 000000000000"),
            "not its extent",
        ),
        (format!("0300 00 00 0000000000000000 {a} 00000000"), "another host"),
    ] {
        assert_eq!(bench.tunnel(0, 0x5605, &request), (INVALID, vec![]), "{why}");
    }
    bench.device_gives(0x5605, &format!("0200 10 00 {four_mib} {a} 00000000"), "");
    bench.device_gives(
        0x5605,
        &format!("0200 01 00 0000000000000000 {} 01000000 {second}", "00".repeat(16)),
        "",
    );
    extents(&mut bench, "0200 0000 FF000000 00000000", "00000000 00000000 00000000 04000000", "");
    assert_eq!(bench.fabric.asked, ["release forced=true", "release forced=false"]);
}

#[test]
fn events_are_read_and_cleared_in_order() {
    let mut bench = Conversation::new();
    bench.gives(0x0100, "00", &"00".repeat(32));
    bench.refuses(0x0100, "05", INVALID);
    bench.refuses(0x0100, "", LENGTH);
    let entry = |seq| LogEntry {
        seq,
        time_ms: seq * 10,
        happening: EventContent::Link(PortState { port: seq as u8, ..PortState::default() }),
    };
    let overflow = Some(Overflow { count: 70_000, first_ns: 1, last_ns: 2 });
    let log = EventLog { overflow, entries: vec![entry(1), entry(65_534), entry(65_535), entry(65_536)] };
    bench.fabric.logs = vec![
        (LogSource::Switch, Log::Warning, log.clone()),
        (LogSource::Device(0), Log::DynamicCapacity, log),
    ];
    let (_, bytes) = bench.ask(0x0100, "01");
    assert_eq!(bytes[..22], hex("01 00 FFFF 0100000000000000 0200000000000000 0400"));
    let events = Events::from_bytes(&bytes).unwrap();
    let told: Vec<_> =
        events.records.iter().map(|record| (record.handle, record.severity, record.time_ns)).collect();
    assert_eq!(
        told,
        [(2, 1, 10_000_000), (65_535, 1, 655_340_000_000), (1, 1, 655_350_000_000), (2, 1, 655_360_000_000)]
    );
    assert_eq!(Events::from_bytes(&bench.ask(0x0100, "00").1).unwrap().records.len(), 0);
    let device = Events::from_bytes(&bench.tunnel(0, 0x0100, "04").1).unwrap();
    assert_eq!((device.records.len(), device.records[0].severity), (4, 0));

    bench.refuses(0x0101, "01 00 01 000000 FFFF", INVALID);
    bench.refuses(0x0101, "05 01 00 000000", INVALID);
    bench.refuses(0x0101, "01 00 02 000000 0200", LENGTH);
    bench.gives(0x0101, "01 00 02 000000 0200 FFFF", "");
    let events = Events::from_bytes(&bench.ask(0x0100, "01").1).unwrap();
    assert_eq!((events.records.len(), events.records[0].handle, events.overflow), (2, 1, None));
    bench.gives(0x0101, "01 00 00 000000", "");
    bench.gives(0x0101, "01 01 00 000000", "");
    bench.gives(0x0100, "01", &"00".repeat(32));
    // The log has more events than one response has room for.
    let log = EventLog { overflow: None, entries: (1..=300).map(entry).collect() };
    bench.fabric.logs = vec![(LogSource::Switch, Log::Informational, log)];
    let events = Events::from_bytes(&bench.ask(0x0100, "00").1).unwrap();
    assert_eq!((events.records.len(), events.more), (255, true));
    bench.gives(0x0004, "08", "08");
    let events = Events::from_bytes(&bench.ask(0x0100, "00").1).unwrap();
    assert_eq!((events.records.len(), events.more), (1, true));
}
