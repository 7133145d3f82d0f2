//! Byte layouts of the FM API: each compared with bytes written out by hand, in both directions, and read from
//! arbitrary bytes.

mod fm_fabric;

use cxloe_fm::bytes::{Payload, Reader, WrongLength};
use cxloe_fm::component::*;
use cxloe_fm::control::Endpoint;
use cxloe_fm::dcd::*;
use cxloe_fm::event_record::*;
use cxloe_fm::header::*;
use cxloe_fm::mld_component::*;
use cxloe_fm::mld_port::*;
use cxloe_fm::opcode::*;
use cxloe_fm::physical_switch::*;
use cxloe_fm::virtual_switch::*;
use fm_fabric::hex;
use proptest::prelude::*;

/// Asserts that `payload` encodes to `bytes`, and that `bytes` decode to `payload`.
#[track_caller]
fn is<P: Payload + PartialEq + std::fmt::Debug>(payload: &P, bytes: &str) {
    assert_eq!(payload.to_bytes(), hex(bytes));
    assert_eq!(P::from_bytes(&hex(bytes)).as_ref(), Ok(payload));
    let (short, mut long) = (hex(bytes), hex(bytes));
    long.push(0);
    assert_eq!(P::from_bytes(&long), Err(WrongLength), "a byte too many");
    if let Some((_, short)) = short.split_last() {
        assert_eq!(P::from_bytes(short), Err(WrongLength), "a byte too few");
    }
}

/// Asserts that `bytes` decode to `payload`, although their reserved fields are not 0.
#[track_caller]
fn reads<P: Payload + PartialEq + std::fmt::Debug>(bytes: &str, payload: &P) {
    assert_eq!(P::from_bytes(&hex(bytes)).as_ref(), Ok(payload));
}

#[test]
fn headers_in_both_dialects() {
    let request = Header::request(0x42, 0x5201, 6);
    for dialect in [Dialect::Tools, Dialect::Spec] {
        assert_eq!(request.to_bytes(dialect).to_vec(), hex("00 42 00 01 52 06 00 00 00 00 00 00"));
    }
    let started = request.response(ReturnCode::BackgroundStarted, 0);
    assert_eq!(started.to_bytes(Dialect::Tools).to_vec(), hex("10 42 00 01 52 00 00 01 01 00 00 00"));
    assert_eq!(started.to_bytes(Dialect::Spec).to_vec(), hex("01 42 00 01 52 00 00 80 01 00 00 00"));
    let long = request.response(ReturnCode::Success, 0x1_2345);
    assert_eq!(long.to_bytes(Dialect::Tools).to_vec(), hex("10 42 00 01 52 45 23 08 00 00 00 00"));
    assert_eq!(long.to_bytes(Dialect::Spec).to_vec(), hex("01 42 00 01 52 45 23 01 00 00 00 00"));
    let refused = request.response(ReturnCode::InvalidPayloadLength, 0);
    assert_eq!(refused.to_bytes(Dialect::Tools).to_vec(), hex("10 42 00 01 52 00 00 00 16 00 00 00"));
    for header in [request, started, long, refused] {
        for dialect in [Dialect::Tools, Dialect::Spec] {
            assert_eq!(Header::read(&mut Reader::new(&header.to_bytes(dialect)), dialect), Ok(header));
        }
    }
    // Bits that are reserved in a dialect are ignored.
    let odd = hex("0F 42 FF 01 52 06 00 06 00 00 00 00");
    assert_eq!(Header::read(&mut Reader::new(&odd), Dialect::Tools), Ok(request));
    let odd = hex("F0 42 FF 01 52 06 00 60 00 00 00 00");
    assert_eq!(Header::read(&mut Reader::new(&odd), Dialect::Spec), Ok(request));
}

#[test]
fn return_codes_have_their_numbers() {
    for number in 0..=u16::MAX {
        assert_eq!(ReturnCode::from_number(number).number(), number);
    }
    let numbers = [0, 1, 2, 3, 4, 5, 6, 7, 0x12, 0x16];
    let known = (0..0x100).filter(|n| !matches!(ReturnCode::from_number(*n), ReturnCode::Other(_)));
    assert_eq!(known.collect::<Vec<_>>(), numbers);
}

#[test]
fn opcodes_have_their_numbers() {
    let numbers: Vec<u16> = Opcode::ALL.iter().map(|opcode| opcode.number()).collect();
    let sets: [(u16, &[u16]); 8] = [
        (0x0000, &[1, 2, 3, 4, 5]),
        (0x0100, &[0, 1]),
        (0x0400, &[0, 1]),
        (0x5100, &[0, 1, 2]),
        (0x5200, &[0, 1, 2, 3]),
        (0x5300, &[0, 1, 2]),
        (0x5400, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (0x5600, &[0, 1, 2, 3, 4, 5]),
    ];
    let expected: Vec<u16> = sets.iter().flat_map(|(set, all)| all.iter().map(move |n| set | n)).collect();
    assert_eq!(numbers, expected);
    assert_eq!(Opcode::from_number(0x5201), Some(Opcode::BindVppb));
    assert_eq!(Opcode::from_number(0x5204), None);
}

#[test]
fn every_component_commands() {
    let (vendor, device, subsystem_vendor, subsystem) = (0x1234, 0xC105, 0x0102, 0x0304);
    let serial = 0x1122_3344_5566_7788;
    let identity =
        Identity { vendor, device, subsystem_vendor, subsystem, serial, message_max: 17, component_type: 3 };
    is(&identity, "3412 05C1 0201 0403 8877665544332211 11 03");
    let running =
        BackgroundStatus { running: true, percent: 40, opcode: 0x5202, code: ReturnCode::Success, vendor: 0 };
    is(&running, "51 00 0252 0000 0000");
    reads("51 FF 0252 0000 0000", &running);
    let failed =
        BackgroundStatus { running: false, percent: 100, code: ReturnCode::InternalError, ..running };
    is(&failed, "C8 00 0252 0400 0000");
    is(&ResponseLimit { n: 8 }, "08");
    let effects_log = "0da9c0b5-bf41-4b78-8f79-96b1623b3f17";
    let logs = SupportedLogs { logs: vec![LogEntry { id: COMMAND_EFFECTS_LOG, size: 0x54 }] };
    is(&logs, &format!("0100 000000000000 {effects_log} 54000000"));
    let get = GetLog { id: COMMAND_EFFECTS_LOG, offset: 4, length: 0x102 };
    is(&get, &format!("{effects_log} 04000000 02010000"));
    is(&CommandEffect { opcode: 0x5202, effects: Opcode::UnbindVppb.effects() }, "0252 4601");
}

#[test]
fn event_records() {
    is(&GetEvents { log: 4 }, "04");
    is(&ClearEvents { log: 1, all: false, handles: vec![1, 0x102] }, "01 00 02 000000 0100 0201");
    is(&ClearEvents { log: 0, all: true, handles: vec![] }, "00 01 00 000000");
    let port = PortState {
        port: 3,
        state: 3,
        device_mode: 2,
        device_type: 5,
        versions: 2,
        width_max: 16,
        width: 2,
        ltssm: 4,
        link_flags: 4,
        ..PortState::default()
    };
    let link = EventRecord {
        handle: 0x102,
        severity: 1,
        time_ns: 0x0807_0605_0403_0201,
        happening: EventContent::Link(port),
    };
    let zeros = |bytes: usize| "00".repeat(bytes);
    is(
        &link,
        &format!(
            "77cf9271-9c02-470b-9fe4-bc7b75f2da97 80 010000 0201 0000 0102030405060708 {}
             03 00 0000 00  03 02 00 05 02 10 02 00 00 00 04 00 0400 {}",
            zeros(16),
            zeros(61)
        ),
    );
    let binding = EventContent::Binding { vcs: 1, vppb: 2, status: VppbStatus::BoundLd, port: 3, ld: 4 };
    let bound = EventRecord { handle: 1, severity: 0, time_ns: 0, happening: binding };
    is(
        &bound,
        &format!(
            "40d26425-3396-4c4d-a5da-3d47263af425 80 000000 0100 {} 01 02 00 03 03 04 {}",
            zeros(26),
            zeros(74)
        ),
    );
    let extent = Extent { dpa: 0x1000_0000, length: 0x2000_0000, tag: [0xAB; 16], sequence: 0 };
    let happening =
        EventContent::Capacity { change: 1, host: 2, extent, extents_free: 0x11, tags_free: 0x22 };
    let capacity = EventRecord { handle: 2, severity: 0, time_ns: 0, happening };
    is(
        &capacity,
        &format!(
            "ca95afa7-f183-4018-8c2f-95268e101a2a 80 000000 0200 {} 01 03 0200 00 00 0000
             0000001000000000 0000002000000000 {} 0000 000000000000 {} 11000000 22000000",
            zeros(26),
            "AB".repeat(16),
            zeros(24)
        ),
    );
    let overflow = Overflow { count: 0x1234, first_ns: 1, last_ns: 2 };
    let events = Events { more: true, overflow: Some(overflow), records: vec![bound.clone()] };
    let header = "03 00 3412 0100000000000000 0200000000000000 0100";
    let records: Vec<u8> = [hex(header), vec![0; 10], bound.to_bytes()].concat();
    assert_eq!((events.to_bytes(), Events::from_bytes(&records)), (records, Ok(events.clone())));
    let lost = Overflow { count: 70_000, ..overflow };
    let told = Events::from_bytes(&Events { overflow: Some(lost), ..events }.to_bytes()).unwrap();
    assert_eq!(told.overflow.unwrap().count, 65_535);
    is(&Events { more: false, overflow: None, records: vec![] }, &zeros(32));
}

#[test]
fn physical_switch_commands() {
    let identity = SwitchIdentity {
        ingress_port: 0,
        ports: 254,
        virtual_switches: 127,
        active_ports: [0, 9, 127].into_iter().collect(),
        active_virtual_switches: [0].into_iter().collect(),
        vppbs: 16_129,
        bound_vppbs: 2,
        decoders: 32,
    };
    let bytes = format!(
        "00 00 FE 7F 0102 {} 80 {} 01 {} 013F 0200 20",
        "00".repeat(13),
        "00".repeat(16),
        "00".repeat(31)
    );
    assert_eq!(hex(&bytes).len(), 73);
    is(&identity, &bytes);
    assert_eq!(identity.active_ports.iter().collect::<Vec<_>>(), [0, 9, 127]);
    let ports = GetPortState { ports: vec![0, 127, 254] };
    assert_eq!(ports.to_bytes(), hex("03 00 7F FE"));
    reads("03 00 7F FE", &ports);
    reads("03 00 7F FE 00 11 22", &ports);
    assert_eq!(GetPortState::from_bytes(&hex("03 00 7F")), Err(WrongLength));
    let port = PortState {
        port: 1,
        state: 3,
        device_mode: 2,
        device_type: 5,
        versions: 2,
        width_max: 16,
        width: 4,
        speeds: 0x1F,
        speed_max: 5,
        speed: 4,
        ltssm: 4,
        first_lane: 1,
        link_flags: 0x0104,
        ld_count: 16,
    };
    let block = "01 03 02 00 05 02 10 04 1F 05 04 04 01 0401 10";
    is(&port, block);
    reads("01 F3 F2 FF 05 02 10 04 1F 05 04 04 01 0401 10", &port);
    is(&PortStates { ports: vec![port, port] }, &format!("02 000000 {block} {block}"));
    is(&PortControl { port: 130, operation: 1 }, "82 01");
}

#[test]
fn virtual_switch_commands() {
    let request = GetVirtualSwitches { first_vppb: 1, vppb_limit: 3, ids: vec![0, 5] };
    is(&request, "01 03 02 00 05");
    let vppb = |status, port, ld| Vppb { status, port, ld };
    let vppbs = vec![Vppb::UNBOUND, vppb(VppbStatus::BoundLd, 4, 2), vppb(VppbStatus::BoundPort, 6, NO_LD)];
    let switches = VirtualSwitches {
        switches: vec![
            VirtualSwitch { id: 0, state: 1, usp: 127, vppb_total: 127, vppbs },
            VirtualSwitch { id: 5, state: 0xFF, usp: 0xFF, vppb_total: 0, vppbs: vec![] },
        ],
    };
    let bytes = hex("02 000000  00 01 7F 7F  00 00 FF 00  03 04 02 00  02 06 FF 00  05 FF FF 00");
    assert_eq!(switches.to_bytes(), bytes);
    assert_eq!(VirtualSwitches::from_bytes(&bytes, &request), Ok(switches));
    assert_eq!(VirtualSwitches::from_bytes(&bytes[..bytes.len() - 1], &request), Err(WrongLength));
    let bind = BindVppb { vcs: 1, vppb: 2, port: 3, ld: WHOLE_DEVICE };
    is(&bind, "01 02 03 00 FFFF");
    reads("01 02 03 EE FFFF", &bind);
    is(&BindVppb { ld: 7, ..bind }, "01 02 03 00 0700");
    let unbind = UnbindVppb { vcs: 1, vppb: 2, option: 1 };
    is(&unbind, "01 02 01");
    reads("01 02 F1", &unbind);
    let aer = GenerateAer { vcs: 1, vppb: 2, error: 0x0001_0000, header: [0xA5; 32] };
    is(&aer, &format!("01 02 0000 00000100 {}", "A5".repeat(32)));
}

#[test]
fn mld_port_commands() {
    let inner = hex("00 07 00 00 54 00 00 00 00 00 00 00");
    let tunnel = Tunnel { port: 9, target: 0, message: inner.clone() };
    let tools = hex("09 00 0D00 08 00 07 00 00 54 00 00 00 00 00 00 00");
    let spec = hex("09 00 0C00 00 07 00 00 54 00 00 00 00 00 00 00");
    for (dialect, bytes) in [(Dialect::Tools, tools), (Dialect::Spec, spec)] {
        assert_eq!(tunnel.to_bytes(dialect), bytes);
        assert_eq!(Tunnel::from_bytes(&bytes, dialect), Ok(tunnel.clone()));
        assert_eq!(Tunnel::from_bytes(&bytes[..bytes.len() - 1], dialect), Err(WrongLength));
        let response = [&bytes[2..4], &[0, 0], &bytes[4..]].concat();
        let tunnelled = Tunnelled { message: inner.clone() };
        assert_eq!(tunnelled.to_bytes(dialect), response);
        assert_eq!(Tunnelled::from_bytes(&response, dialect), Ok(tunnelled));
    }
    assert_eq!(
        Tunnel::from_bytes(&hex("09 00 0200 07 00"), Dialect::Tools),
        Err(WrongLength),
        "another type"
    );
    assert_eq!(Tunnel::from_bytes(&hex("09 00 0000"), Dialect::Tools), Err(WrongLength), "no type");

    let read = ConfigRequest { port: 3, offset: 0x104, byte_enables: 0xF, write: false, ld: 2, data: [0; 4] };
    is(&ConfigRequest { write: true, data: [1, 2, 3, 4], ..read }, "03 04 F1 80 0200 0000 01020304");
    reads("03 04 F1 00 0200 0000 00000000", &read);
    reads("03 04 F1 7F 0200 FFFF", &read);
    assert_eq!(
        ConfigRequest::from_bytes(&hex("03 04 F1 80 0200 0000")),
        Err(WrongLength),
        "nothing to write"
    );
    is(&ConfigResponse { data: [1, 2, 3, 4] }, "01020304");

    let memory = MemoryRequest {
        port: 3,
        first_enables: 0xF,
        last_enables: 0x3,
        write: false,
        ld: 2,
        length: 4,
        offset: 0x1100,
        data: vec![9; 4],
    };
    assert_eq!(memory.to_bytes(), hex("03 00 F0 03 0200 0400 0011000000000000 09090909"));
    reads("03 EE FE 03 0200 0400 0011000000000000 09090909", &memory);
    assert!(MemoryRequest::from_bytes(&hex("03 00 F0 83 0200 0400 0011000000000000")).unwrap().write);
    is(&MemoryResponse { data: vec![1, 2, 3] }, "0300 0000 010203");
}

#[test]
fn mld_component_commands() {
    is(&LdInfo { memory_size: 16 << 30, ld_count: 16, qos: 3 }, "0000000004000000 1000 03");
    is(&GetLdAllocations { first: 2, limit: 3 }, "02 03");
    let allocations =
        vec![LdAllocation { range_1: 4, range_2: 0 }, LdAllocation { range_1: 0x0102, range_2: 1 }];
    let list = "0400000000000000 0000000000000000 0201000000000000 0100000000000000";
    let all = LdAllocations { total: 16, granularity: 0, first: 2, allocations: allocations.clone() };
    is(&all, &format!("10 00 02 02 {list}"));
    let set = SetLdAllocations { first: 2, allocations };
    is(&set, &format!("02 02 0000 {list}"));
    reads(&format!("02 02 FFFF {list}"), &set);
    is(&QosControl::default(), "00 0A 19 08 0000 40");
    is(&QosControl { enables: 3, request_basis: 0x0102, ..QosControl::default() }, "03 0A 19 08 0201 40");
    is(&QosStatus { backpressure: 7 }, "07");
    is(&GetQosFractions { count: 4, first: 2 }, "04 02");
    is(&QosFractions { first: 2, fractions: vec![64, 128] }, "02 02 40 80");
}

#[test]
fn dynamic_capacity_commands() {
    let mut block_sizes = [0; 8];
    block_sizes[0] = 1 << 21;
    let info = DcdInfo {
        hosts: 16,
        regions: 1,
        add_policies: 3,
        removal_policies: 3,
        sanitize_mask: 0x80,
        capacity: 0x40,
        block_sizes,
    };
    let bytes =
        format!("10 01 0000 0300 0000 0300 80 00 4000000000000000 0000200000000000 {}", "00".repeat(56));
    assert_eq!(hex(&bytes).len(), 84);
    is(&info, &bytes);
    is(&GetHostRegions { host: 2, count: 8, first: 0 }, "0200 08 00");
    let region =
        DcRegion { base: 0, decode_length: 16, length: 1 << 32, block_size: 1 << 21, flags: 4, sanitize: 1 };
    let block = "0000000000000000 1000000000000000 0000000001000000 0000200000000000 04 000000 01 000000";
    assert_eq!(hex(block).len(), 40);
    is(&region, block);
    let regions = HostRegions {
        host: 2,
        total: 1,
        regions: vec![region],
        extents_max: 16,
        extents_free: 15,
        tags_max: 8,
        tags_free: 7,
    };
    is(&regions, &format!("0200 01 01 {block} 10000000 0F000000 08000000 07000000"));
    is(&SetDcRegion { region: 0, block_size: 1 << 21, sanitize: 1 }, "00 000000 0000200000000000 01 000000");
    is(&GetExtents { host: 2, count: 5, first: 1 }, "0200 0000 05000000 01000000");
    let extent = Extent { dpa: 1 << 21, length: 1 << 22, tag: *b"0123456789abcdef", sequence: 1 };
    let tag = "30313233343536373839616263646566";
    let listed = format!("0000200000000000 0000400000000000 {tag} 0100 000000000000");
    is(&extent, &listed);
    let extents = Extents { host: 2, first: 1, total: 6, generation: 9, extents: vec![extent] };
    is(&extents, &format!("0200 0000 01000000 01000000 06000000 09000000 00000000 {listed}"));
    let tag_bytes = *b"0123456789abcdef";
    let add =
        InitiateAdd { host: 2, policy: 2, region: 0, length: 1 << 22, tag: tag_bytes, extents: vec![extent] };
    is(&add, &format!("0200 02 00 0000400000000000 {tag} 01000000 {listed}"));
    let free = InitiateAdd { policy: 0, extents: vec![], ..add.clone() };
    reads(&format!("0200 F0 00 0000400000000000 {tag} 00000000"), &free);
    reads(&format!("0200 00 00 0000400000000000 {tag}"), &free);
    let release = InitiateRelease {
        host: 2,
        policy: 1,
        forced: true,
        length: 0,
        tag: tag_bytes,
        extents: vec![extent],
    };
    is(&release, &format!("0200 11 00 0000000000000000 {tag} 01000000 {listed}"));
    // A count of more extents than the payload has must be refused before memory is allocated.
    assert_eq!(
        InitiateAdd::from_bytes(&hex(&format!("0200 00 00 0000400000000000 {tag} FFFFFFFF"))),
        Err(WrongLength)
    );
}

#[test]
fn mctp_control_messages() {
    let mut endpoint = Endpoint::of_switch(0x0102_0304_0506_0708, 3);
    let mut asked = |request: &str| endpoint.answer(&hex(request));
    let padding = "00".repeat(59);
    assert_eq!(asked(&format!("83 05 {padding}")), Some(hex("03 05 00 02 07 08")));
    assert_eq!(asked("81 02"), Some(hex("01 02 00 00 00 00")));
    assert_eq!(asked("81 01 00 1D"), Some(hex("01 01 00 00 1D 00")));
    assert_eq!(asked("81 02"), Some(hex("01 02 00 1D 00 00")));
    assert_eq!(asked("81 01 00 FF"), Some(hex("01 01 02")), "nobody's id");
    assert_eq!(asked("81 01"), Some(hex("01 01 03")), "too short");
    let uuid = asked("81 03").unwrap();
    assert_eq!(
        (&uuid[..3], &uuid[15..], uuid[9] >> 4, uuid[11] >> 6),
        ([1, 3, 0].as_slice(), [0, 0, 0, 3].as_slice(), 8, 2)
    );
    assert_eq!(uuid[3..], hex("01 02 03 04 05 06 80 07 80 08 0000 00000003"));
    assert_eq!(asked("81 04 FF"), Some(hex("01 04 00 01 F1F3F100")));
    assert_eq!(asked("81 04 07"), Some(hex("01 04 00 01 F1F0FF00")));
    assert_eq!(asked("81 04 05"), Some(hex("01 04 80")));
    assert_eq!(asked("81 77"), Some(hex("01 77 05")));
    assert_eq!(asked("01 02"), None, "a response");
    assert_eq!(asked("C1 02"), None, "a datagram");
    assert_eq!(asked(""), None);
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        macro_rules! each { ($($payload:ty),+ $(,)?) => { $(
            if let Ok(payload) = <$payload>::from_bytes(&bytes) {
                // A payload that was decoded, encoded and decoded again must be the same.
                prop_assert_eq!(<$payload>::from_bytes(&payload.to_bytes()), Ok(payload));
            }
        )+ } }
        each!(
            Identity, BackgroundStatus, ResponseLimit, SupportedLogs, GetLog, CommandEffect, GetEvents, ClearEvents,
            EventRecord, Events, SwitchIdentity, GetPortState, PortState, PortStates, PortControl, GetVirtualSwitches,
            Vppb, BindVppb, UnbindVppb, GenerateAer, ConfigRequest, ConfigResponse, MemoryRequest, MemoryResponse, LdInfo,
            GetLdAllocations, LdAllocations, SetLdAllocations, QosControl, QosStatus, GetQosFractions, QosFractions,
            DcdInfo, GetHostRegions, HostRegions, SetDcRegion, GetExtents, Extents, InitiateAdd, InitiateRelease,
        );
        for dialect in [Dialect::Tools, Dialect::Spec] {
            let _ = Tunnel::from_bytes(&bytes, dialect);
            let _ = Tunnelled::from_bytes(&bytes, dialect);
            if let Ok(header) = Header::read(&mut Reader::new(&bytes), dialect) {
                prop_assert_eq!(Header::read(&mut Reader::new(&header.to_bytes(dialect)), dialect), Ok(header));
            }
        }
        let request = GetVirtualSwitches { first_vppb: 0, vppb_limit: 255, ids: vec![] };
        let _ = VirtualSwitches::from_bytes(&bytes, &request);
        let _ = Endpoint::default().answer(&bytes);
    }

    /// Arbitrary bytes with the length of a payload must decode. An event record must be the same after
    /// encoding and decoding.
    #[test]
    fn payloads_of_the_right_length_are_read(bytes in any::<[u8; 128]>()) {
        prop_assert!(Identity::from_bytes(&bytes[..18]).is_ok());
        prop_assert!(BackgroundStatus::from_bytes(&bytes[..8]).is_ok());
        prop_assert!(SwitchIdentity::from_bytes(&bytes[..73]).is_ok());
        prop_assert!(PortState::from_bytes(&bytes[..16]).is_ok());
        prop_assert!(GenerateAer::from_bytes(&bytes[..40]).is_ok());
        prop_assert!(LdInfo::from_bytes(&bytes[..11]).is_ok());
        prop_assert!(QosControl::from_bytes(&bytes[..7]).is_ok());
        prop_assert!(DcdInfo::from_bytes(&bytes[..84]).is_ok());
        prop_assert!(DcRegion::from_bytes(&bytes[..40]).is_ok());
        let record = EventRecord::from_bytes(&bytes).unwrap();
        prop_assert_eq!(EventRecord::from_bytes(&record.to_bytes()), Ok(record));
    }
}
