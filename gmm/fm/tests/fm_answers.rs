//! Answers of the FM API on a TCP connection: requests and responses as bytes, for every command and every refusal.

mod fm_fabric;

use cxloe_fm::answer::{ClientAgreements, MESSAGE_MAX, answer, refuse};
use cxloe_fm::bytes::Payload;
use cxloe_fm::fabric::*;
use cxloe_fm::header::{Dialect, ReturnCode};
use cxloe_fm::opcode::{CommandEffect, Component, Effects, Opcode};
use cxloe_fm::virtual_switch::{GetVirtualSwitches, VirtualSwitches};
use fm_fabric::*;
use proptest::prelude::*;

#[test]
fn every_component_says_what_it_is() {
    let mut bench = Conversation::new();
    bench.gives(0x0001, "", "3412 05C1 3412 05C1 7766554433221100 11 00");
    bench.device_gives(0x0001, "", "3412 0EC1 3412 0EC1 0403020100000000 11 03");
    bench.gives(0x0002, "", "00 00 0000 0000 0000");
    bench.refuses(0x0001, "00", LENGTH);
}

#[test]
fn unknown_commands_and_broken_messages_are_answered() {
    let mut bench = Conversation::new();
    for opcode in [0x0000, 0x0006, 0x5103, 0x5204, 0x5303, 0x540A, 0x5606, 0xC000, 0xFFFF] {
        bench.refuses(opcode, "0102", UNSUPPORTED);
        bench.device_refuses(opcode, "", UNSUPPORTED);
    }
    // A component must refuse commands that only the other kind of component supports.
    bench.refuses(0x5400, "", UNSUPPORTED);
    bench.device_refuses(0x0005, "", UNSUPPORTED);
    bench.device_refuses(0x5100, "", UNSUPPORTED);
    bench.device_refuses(0x5300, "", UNSUPPORTED);
    assert_eq!(bench.tunnel(3, 0x5400, ""), (UNSUPPORTED, vec![]), "an SLD has no LDs");
    // A message that is a response gets no answer; a request with a truncated header does.
    assert_eq!(bench.raw(&hex("10 00 00 01 00 00 00 00 00 00 00 00")), None);
    assert_eq!(bench.raw(&hex("00 07 00")), Some(hex("10 07 00 00 00 00 00 00 03 00 00 00")));
    assert_eq!(bench.raw(&[]), Some(hex("10 00 00 00 00 00 00 00 03 00 00 00")));
    // The header states more payload than the message has.
    let short = hex("00 07 00 04 00 53 00 00 00 00 00 00 0A");
    assert_eq!(bench.raw(&short), Some(hex("10 07 00 04 00 00 00 00 16 00 00 00")));
    let huge = hex("00 07 00 04 00 01 FF F8 00 00 00 00 0A");
    assert_eq!(bench.raw(&huge), Some(hex("10 07 00 04 00 00 00 00 16 00 00 00")));
    // Padding after the payload is ignored.
    let padded = hex("00 07 00 02 51 02 00 00 00 00 00 00 7F 00 55 55 55");
    assert_eq!(bench.raw(&padded), Some(hex("10 07 00 02 51 00 00 00 00 00 00 00")));
    assert!(bench.fabric.hosts[0].held);
    // A message of 64 bytes takes two packets, and one client sends only the first: the missing byte counts
    // as 0.
    let ids = "00".repeat(51);
    let message = hex(&format!("00 07 00 01 51 34 00 00 00 00 00 00 33 {ids}"));
    assert_eq!(message.len(), 64);
    let mut both = bench.raw(&message[..63]).unwrap();
    both[1] = 0;
    let mut whole = bench.raw(&message).unwrap();
    whole[1] = 0;
    assert_eq!((both[8], both[12], &both), (0, 51, &whole));
    assert_eq!(
        refuse(Dialect::Tools, &hex("00 07 00 04 56"), ReturnCode::InvalidPayloadLength),
        Some(hex("10 07 00 04 56 00 00 00 16 00 00 00"))
    );
}

#[test]
fn the_other_dialect() {
    let mut bench = Conversation::with(Dialect::Spec);
    assert_eq!(
        bench.raw(&hex("00 07 00 03 00 00 00 00 00 00 00 00")),
        Some(hex("01 07 00 03 00 01 00 00 00 00 00 00 11"))
    );
    // Bind vPPB starts a background operation, which bit 7 shows in this dialect.
    let bind = hex("00 08 00 01 52 06 00 00 00 00 00 00  00 01 00 00 0500");
    assert_eq!(bench.raw(&bind), Some(hex("01 08 00 01 52 00 00 80 01 00 00 00")));
    // In this dialect, a tunnelled message has no type byte.
    let tunnelled =
        hex("00 09 00 00 53 10 00 00 00 00 00 00  00 00 0C00  00 01 00 05 54 00 00 00 00 00 00 00");
    let response = "01 09 00 00 53 11 00 00 00 00 00 00  0D00 0000  01 01 00 05 54 01 00 00 00 00 00 00 0C";
    assert_eq!(bench.raw(&tunnelled), Some(hex(response)));
}

#[test]
fn response_limits() {
    let mut bench = Conversation::new();
    bench.gives(0x0003, "", "11");
    bench.gives(0x0004, "08", "08");
    bench.gives(0x0003, "", "08");
    for n in ["07", "12", "FF"] {
        bench.refuses(0x0004, n, INVALID);
    }
    bench.refuses(0x0004, "", LENGTH);
    // A limit of 256 bytes leaves 244 for the payload: a request for 245 bytes of a log is refused.
    bench.refuses(0x0401, "0da9c0b5bf414b788f7996b1623b3f17 00000000 F5000000", INVALID);
    bench.fabric.devices = (0..40).map(|port| Device { port, ..bench.fabric.devices[0].clone() }).collect();
    let ports: String = (0..40).map(|port| format!("{port:02x}")).collect();
    let (_, states) = bench.ask(0x5101, &format!("28 {ports}"));
    assert_eq!((states[0], states.len()), (15, 4 + 15 * 16));
    let (_, switches) = bench.ask(0x5200, "00 1E 03 00 00 00");
    assert_eq!((switches[0], switches.len()), (1, 4 + 4 + 30 * 4));
    bench.gives(0x5200, "00 7F 01 00", "00 000000");
}

#[test]
fn the_command_effects_log_lists_what_is_answered() {
    let mut bench = Conversation::new();
    let effects_log = "0da9c0b5bf414b788f7996b1623b3f17";
    let components = [(Component::Switch, None), (Component::Mld, Some(0)), (Component::Sld, Some(3))];
    for (component, port) in components {
        let mut ask = |opcode, payload: &str| match port {
            None => bench.ask(opcode, payload),
            Some(port) => bench.tunnel(port, opcode, payload),
        };
        let (_, logs) = ask(0x0400, "");
        let size = u32::from_le_bytes(logs[24..28].try_into().unwrap());
        assert_eq!(logs[..24], hex(&format!("0100 000000000000 {effects_log}")));
        let all =
            format!("{effects_log} 00000000 {}", size.to_le_bytes().map(|b| format!("{b:02x}")).concat());
        let (code, log) = ask(0x0401, &all);
        assert_eq!((code, log.len() as u32), (0, size));
        let entries: Vec<CommandEffect> =
            log.chunks(4).map(|entry| CommandEffect::from_bytes(entry).unwrap()).collect();
        // The component must support exactly the listed commands. With a payload that is too long, a supported command
        // fails with a wrong length, and an unknown command with Unsupported.
        let too_long = "00".repeat(64);
        for opcode in 0..=0x5700 {
            let listed = entries.iter().any(|entry| entry.opcode == opcode);
            if listed || opcode % 0x100 < 16 {
                let (code, _) = ask(opcode, &too_long);
                assert_eq!(code != UNSUPPORTED, listed, "{component:?} {opcode:04x}: {code}");
            }
        }
        assert_eq!(entries, CommandEffect::log_of(component));
        let part = format!("{effects_log} 04000000 02000000");
        assert_eq!(ask(0x0401, &part), (0, log[4..6].to_vec()));
        let beyond =
            format!("{effects_log} 04000000 {}", size.to_le_bytes().map(|b| format!("{b:02x}")).concat());
        assert_eq!(ask(0x0401, &beyond).0, INVALID);
        assert_eq!(ask(0x0401, &format!("{} 00000000 04000000", "00".repeat(16))).0, INVALID);
        assert_eq!(ask(0x0401, &format!("{effects_log} FFFFFFFF FFFFFFFF")).0, INVALID);
    }
    let background = |opcode: Opcode| opcode.effects().contains(Effects::BACKGROUND);
    let in_background: Vec<_> = Opcode::ALL.iter().filter(|opcode| background(**opcode)).collect();
    assert_eq!(in_background, [&Opcode::BindVppb, &Opcode::UnbindVppb]);
}

#[test]
fn ports_and_their_reset() {
    let mut bench = Conversation::new();
    // These bitmaps have ports 0, 3, 127 and 129, and VCSs 0 and 2.
    let (ports, switches) =
        (format!("09 {} 80 02 {}", "00".repeat(14), "00".repeat(15)), format!("05 {}", "00".repeat(31)));
    bench.gives(0x5100, "", &format!("00 00 FE 7F {ports} {switches} 013F 0000 20"));
    let (mld, sld) =
        ("00 03 02 00 05 02 10 02 00 00 00 04 00 0400 10", "03 03 02 00 04 02 10 01 00 00 00 04 00 0400 00");
    let (up, down) =
        ("7F 04 02 00 00 02 10 01 00 00 00 04 00 0400 00", "81 04 02 00 00 02 10 00 00 00 00 08 00 0000 00");
    let all: String = (0..=254).map(|port| format!("{port:02x}")).collect();
    bench.gives(0x5101, &format!("FF {all}"), &format!("04 000000 {mld} {sld} {up} {down}"));
    bench.gives(0x5101, "02 FE 03", &format!("01 000000 {sld}"));
    bench.gives(0x5101, "00", "00 000000");
    // One client always sends room for 255 ports.
    bench.gives(0x5101, &format!("01 03 {}", "5A".repeat(254)), &format!("01 000000 {sld}"));
    bench.refuses(0x5101, "02 00", LENGTH);

    bench.gives(0x5102, "7F 00", "");
    assert!(bench.fabric.hosts[0].held);
    bench.gives(0x5101, "01 7F", "01 000000 7F 04 02 00 00 02 10 00 00 00 00 08 00 0200 00");
    bench.gives(0x5102, "7F 01", "");
    assert!(!bench.fabric.hosts[0].held);
    bench.refuses(0x5102, "7F 02", UNSUPPORTED);
    bench.refuses(0x5102, "7F 03", INVALID);
    bench.refuses(0x5102, "80 00", INVALID);
    bench.refuses(0x5102, "00 00", UNSUPPORTED);
    bench.refuses(0x5102, "7F", LENGTH);
}

#[test]
fn binding_and_unbinding_in_the_background() {
    let mut bench = Conversation::new();
    let info = |bench: &mut Conversation, status: &str| {
        bench.gives(0x5200, "01 02 01 00", &format!("01 000000 00 01 7F 7F {status} 00 00 FF 00"));
    };
    info(&mut bench, "00 00 FF 00");
    assert_eq!(bench.ask(0x5201, "00 01 00 EE 0500"), (1, vec![]));
    info(&mut bench, "01 00 05 00");
    bench.gives(0x0002, "", "01 00 0152 0000 0000");
    // A second background operation is refused as busy, but an invalid request as invalid.
    bench.refuses(0x5201, "00 02 00 00 0600", BUSY);
    bench.refuses(0x5202, "00 01 01", BUSY);
    bench.refuses(0x5201, "00 02 01 00 0600", INVALID);
    // The background status of a device is independent of the switch's.
    bench.device_gives(0x0002, "", "00 00 0000 0000 0000");
    bench.fabric.finish(ReturnCode::Success);
    info(&mut bench, "03 00 05 00");
    bench.gives(0x0002, "", "C8 00 0152 0000 0000");
    let (_, identity) = bench.ask(0x5100, "");
    assert_eq!(identity[70..72], [1, 0]);
    for (request, why) in [
        ("00 01 00 00 0600", "the vPPB is bound"),
        ("00 02 00 00 0500", "the LD is bound"),
        ("01 02 00 00 0600", "no such VCS"),
        ("00 7F 00 00 0600", "no such vPPB"),
        ("00 02 09 00 0600", "no such port"),
        ("00 02 7F 00 0600", "a host's port"),
        ("00 02 00 00 1000", "no such LD"),
        ("00 02 00 00 FFFF", "an MLD is not bound whole"),
        ("00 02 03 00 0000", "an SLD is bound whole"),
    ] {
        assert_eq!(bench.ask(0x5201, request), (INVALID, vec![]), "{why}");
    }
    bench.refuses(0x5201, "00 02 00 00 06", LENGTH);
    assert_eq!(bench.ask(0x5201, "00 02 03 00 FFFF"), (1, vec![]));
    bench.fabric.finish(ReturnCode::Success);
    bench.gives(0x5200, "02 01 01 00", "01 000000 00 01 7F 7F 02 03 FF 00");

    for (request, why) in
        [("00 03 01", "not bound"), ("00 01 03", "no such option"), ("05 01 01", "no such VCS")]
    {
        assert_eq!(bench.ask(0x5202, request), (INVALID, vec![]), "{why}");
    }
    bench.refuses(0x5202, "00 01", LENGTH);
    assert_eq!(bench.ask(0x5202, "00 01 F1"), (1, vec![]));
    bench.gives(0x0002, "", "51 00 0252 0000 0000");
    bench.gives(0x0005, "", "");
    bench.refuses(0x0005, "00", LENGTH);
    assert_eq!(bench.fabric.asked.pop().as_deref(), Some("abort"));
    bench.fabric.finish(ReturnCode::Aborted);
    bench.gives(0x0002, "", "C8 00 0252 1200 0000");
    assert_eq!(bench.ask(0x5202, "00 02 02"), (1, vec![]));
    bench.fabric.finish(ReturnCode::Success);
    assert_eq!(bench.ask(0x5201, "00 02 00 00 0000"), (1, vec![]));
    bench.fabric.finish(ReturnCode::Success);
    assert_eq!(bench.ask(0x5202, "00 02 00"), (1, vec![]));
    assert_eq!(bench.fabric.asked, ["unbind Managed", "unbind Surprise", "unbind WaitLinkDown"]);
    // If the fabric refuses a change, the response has the fabric's return code.
    bench.fabric.finish(ReturnCode::Success);
    bench.fabric.refusal = Some(ReturnCode::RetryRequired);
    bench.refuses(0x5201, "00 02 00 00 0000", RETRY);
}

#[test]
fn virtual_switches_are_listed_as_requested() {
    let mut bench = Conversation::new();
    bench.gives(0x5200, "00 00 02 02 05", "02 000000 02 00 81 7F 05 FF FF 00");
    bench.gives(0x5200, "7E FF 01 00", "01 000000 00 01 7F 7F 00 00 FF 00");
    bench.gives(0x5200, "FF FF 01 00", "01 000000 00 01 7F 7F");
    bench.gives(0x5200, "00 FF 00", "00 000000");
    bench.refuses(0x5200, "00 FF 02 00", LENGTH);
    bench.fabric.hosts[0].slots = vec![Slot { vppb: 0, in_progress: false, port: None, ld: Some(3) }];
    bench.gives(0x5200, "00 01 01 00", "01 000000 00 01 7F 7F 03 FF 03 00");
    // The response about all hosts at once must fit into one message.
    bench.fabric.hosts = (0..HOSTS_MAX).map(|vcs| Host { vcs, ..Host::default() }).collect();
    let ids: Vec<u8> = (0..HOSTS_MAX).collect();
    let request = GetVirtualSwitches { first_vppb: 0, vppb_limit: 255, ids };
    let payload: String = request.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let (code, bytes) = bench.ask(0x5200, &payload);
    let switches = VirtualSwitches::from_bytes(&bytes, &request).unwrap().switches;
    assert_eq!((code, switches.len(), switches[126].vppbs.len()), (0, 127, 127));
}

proptest! {
    /// Every request must get a response with the request's tag and opcode, within the response limit.
    #[test]
    fn every_request_is_answered(
        dialect in prop_oneof![Just(Dialect::Tools), Just(Dialect::Spec)],
        requests in prop::collection::vec(
            (prop_oneof![any::<u16>(), prop::sample::select(Opcode::ALL).prop_map(Opcode::number)],
             prop::collection::vec(prop_oneof![0u8..5, any::<u8>()], 0..80), any::<bool>(), -2i8..3),
            1..20,
        ),
    ) {
        let (mut fabric, mut session) = (MemoryFabric::new(), ClientAgreements::new(dialect));
        for (opcode, payload, tunnelled, off) in requests {
            let header = |opcode: u16, length: usize| {
                let [o0, o1] = opcode.to_le_bytes();
                let [l0, l1, ..] = length.to_le_bytes();
                [0, 9, 0xEE, o0, o1, l0, l1, 0, 0, 0, 0, 0]
            };
            let length = payload.len().saturating_add_signed(off.into());
            let mut request = [header(opcode, length).as_slice(), &payload].concat();
            let mut opcode = opcode;
            if tunnelled {
                let kind: &[u8] = if dialect == Dialect::Tools { &[8] } else { &[] };
                let [s0, s1, ..] = (request.len() + kind.len()).to_le_bytes();
                let tunnel = [&[3 * (payload.len() as u8 & 1), 0, s0, s1], kind, &request].concat();
                opcode = 0x5300;
                request = [header(opcode, tunnel.len()).as_slice(), &tunnel].concat();
            }
            let response = answer(&mut fabric, &mut session, &request).expect("an answer");
            prop_assert!(response.len() <= MESSAGE_MAX);
            prop_assert_eq!(response[0], if dialect == Dialect::Tools { 0x10 } else { 0x01 });
            prop_assert_eq!((response[1], [response[3], response[4]]), (9, opcode.to_le_bytes()));
        }
    }

    #[test]
    fn any_bytes_are_answered_or_not(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for dialect in [Dialect::Tools, Dialect::Spec] {
            let _ = answer(&mut MemoryFabric::new(), &mut ClientAgreements::new(dialect), &bytes);
            let _ = refuse(dialect, &bytes, ReturnCode::InternalError);
        }
    }
}
