//! What the FM API answers on a TCP connection: requests and responses as bytes, for every command and every refusal.

mod fm_fabric;

use std::net::TcpStream;

use cxloe_fabric::hdm::{Decoder, Granularity, Ways};
use cxloe_fm::answer::{MESSAGE_MAX, Session, answer, refuse};
use cxloe_fm::bytes::Payload;
use cxloe_fm::event_record::{Events, Happening, Log, Overflow};
use cxloe_fm::fabric::*;
use cxloe_fm::header::{Dialect, ReturnCode};
use cxloe_fm::opcode::{CommandEffect, Component, Effects, Opcode};
use cxloe_fm::physical_switch::PortState;
use cxloe_fm::virtual_switch::{GetVirtualSwitches, VirtualSwitches};
use fm_fabric::{GIB, MIB, MemoryFabric, Serving, Shared, hex, receive, send};
use proptest::prelude::*;

/// A connection to a fabric in memory.
struct Bench {
    fabric: MemoryFabric,
    shared: Shared,
    _serving: Serving,
    stream: TcpStream,
    sent: u8,
}

impl Bench {
    fn new() -> Self {
        Self::with(Dialect::Tools)
    }

    fn with(dialect: Dialect) -> Self {
        let shared = Shared::new();
        let serving = Serving::start(&shared, |config| config.dialect = dialect);
        let stream = serving.connect(0);
        Self { fabric: MemoryFabric::new(), shared, _serving: serving, stream, sent: 0 }
    }

    /// Header and payload in, header and payload out. What MCTP control answers to the question behind it shows that there
    /// was no answer.
    fn raw(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        *self.shared.0.lock().unwrap() = self.fabric.clone();
        send(&mut self.stream, &mut self.sent, 3, 7, message);
        send(&mut self.stream, &mut self.sent, 4, 0, &[0x81, 2]);
        let first = receive(&mut self.stream);
        let answered = first.tag == 3;
        let control = if answered { receive(&mut self.stream) } else { first.clone() };
        assert_eq!((control.kind, control.tag, &control.body[..6]), (0, 4, [1, 2, 0, 0, 0, 0].as_slice()));
        self.fabric = self.shared.0.lock().unwrap().clone();
        answered.then(|| {
            // Without the padding.
            let length = usize::from(u16::from_le_bytes([first.body[5], first.body[6]]));
            let beyond = if first.body[0] == 0x10 { first.body[7] >> 3 } else { first.body[7] & 0x1F };
            let end = 12 + length + (usize::from(beyond) << 16);
            assert_eq!((first.kind, first.body.len() / 64), (7, end / 64), "packets");
            assert!(first.body[end..].iter().all(|byte| *byte == 0));
            first.body[..end].to_vec()
        })
    }

    /// Return code and payload of the response to a request.
    #[track_caller]
    fn ask(&mut self, opcode: u16, payload: &str) -> (u16, Vec<u8>) {
        let payload = hex(payload);
        let [o0, o1] = opcode.to_le_bytes();
        let [l0, l1, l2, ..] = payload.len().to_le_bytes();
        let request = [&[0, 0x5A, 0, o0, o1, l0, l1, l2 << 3, 0, 0, 0, 0], payload.as_slice()].concat();
        let response = self.raw(&request).expect("every request is answered");
        let (header, payload) = response.split_at(12);
        let background = u8::from(header[8] == 1);
        let length = payload.len();
        let [l0, l1, l2, ..] = length.to_le_bytes();
        assert_eq!(header, [0x10, 0x5A, 0, o0, o1, l0, l1, l2 << 3 | background, header[8], 0, 0, 0]);
        (header[8].into(), payload.to_vec())
    }

    /// The same through the tunnel to a port.
    #[track_caller]
    fn tunnel(&mut self, port: u8, opcode: u16, payload: &str) -> (u16, Vec<u8>) {
        let payload = hex(payload);
        let [o0, o1] = opcode.to_le_bytes();
        let [s0, s1, ..] = (payload.len() + 13).to_le_bytes();
        let [l0, l1, ..] = payload.len().to_le_bytes();
        let inner = [&[8, 0, 0x33, 0, o0, o1, l0, l1, 0, 0, 0, 0, 0], payload.as_slice()].concat();
        let request: String =
            [&[port, 0, s0, s1], inner.as_slice()].concat().iter().map(|b| format!("{b:02x}")).collect();
        let (code, response) = self.ask(0x5300, &request);
        assert_eq!(code, 0);
        let size = usize::from(u16::from_le_bytes([response[0], response[1]]));
        assert_eq!((&response[2..8], size), ([0, 0, 8, 0x10, 0x33, 0].as_slice(), response.len() - 4));
        let (header, payload) = response[5..].split_at(12);
        assert_eq!((&header[3..5], usize::from(header[5])), ([o0, o1].as_slice(), payload.len() & 0xFF));
        (header[8].into(), payload.to_vec())
    }

    #[track_caller]
    fn gives(&mut self, opcode: u16, payload: &str, response: &str) {
        assert_eq!(self.ask(opcode, payload), (0, hex(response)));
    }

    #[track_caller]
    fn refuses(&mut self, opcode: u16, payload: &str, code: u16) {
        assert_eq!(self.ask(opcode, payload), (code, vec![]));
    }

    #[track_caller]
    fn device_gives(&mut self, opcode: u16, payload: &str, response: &str) {
        assert_eq!(self.tunnel(0, opcode, payload), (0, hex(response)));
    }

    #[track_caller]
    fn device_refuses(&mut self, opcode: u16, payload: &str, code: u16) {
        assert_eq!(self.tunnel(0, opcode, payload), (code, vec![]));
    }
}

const BUSY: u16 = 6;
const INVALID: u16 = 2;
const UNSUPPORTED: u16 = 3;
const RETRY: u16 = 5;
const LENGTH: u16 = 0x16;

#[test]
fn every_component_says_what_it_is() {
    let mut bench = Bench::new();
    bench.gives(0x0001, "", "3412 05C1 3412 05C1 7766554433221100 11 00");
    bench.device_gives(0x0001, "", "3412 0EC1 3412 0EC1 0403020100000000 11 03");
    bench.gives(0x0002, "", "00 00 0000 0000 0000");
    bench.refuses(0x0001, "00", LENGTH);
}

#[test]
fn unknown_commands_and_broken_messages_are_answered() {
    let mut bench = Bench::new();
    for opcode in [0x0000, 0x0006, 0x5103, 0x5204, 0x5303, 0x540A, 0x5606, 0xC000, 0xFFFF] {
        bench.refuses(opcode, "0102", UNSUPPORTED);
        bench.device_refuses(opcode, "", UNSUPPORTED);
    }
    // What only the one or the other does.
    bench.refuses(0x5400, "", UNSUPPORTED);
    bench.device_refuses(0x0005, "", UNSUPPORTED);
    bench.device_refuses(0x5100, "", UNSUPPORTED);
    bench.device_refuses(0x5300, "", UNSUPPORTED);
    assert_eq!(bench.tunnel(3, 0x5400, ""), (UNSUPPORTED, vec![]), "an SLD has no LDs");
    // A response is not answered; a header that breaks off is.
    assert_eq!(bench.raw(&hex("10 00 00 01 00 00 00 00 00 00 00 00")), None);
    assert_eq!(bench.raw(&hex("00 07 00")), Some(hex("10 07 00 00 00 00 00 00 03 00 00 00")));
    assert_eq!(bench.raw(&[]), Some(hex("10 00 00 00 00 00 00 00 03 00 00 00")));
    // More payload than came.
    let short = hex("00 07 00 04 00 53 00 00 00 00 00 00 0A");
    assert_eq!(bench.raw(&short), Some(hex("10 07 00 04 00 00 00 00 16 00 00 00")));
    let huge = hex("00 07 00 04 00 01 FF F8 00 00 00 00 0A");
    assert_eq!(bench.raw(&huge), Some(hex("10 07 00 04 00 00 00 00 16 00 00 00")));
    // Padding does not matter.
    let padded = hex("00 07 00 02 51 02 00 00 00 00 00 00 7F 00 55 55 55");
    assert_eq!(bench.raw(&padded), Some(hex("10 07 00 02 51 00 00 00 00 00 00 00")));
    assert!(bench.fabric.hosts[0].held);
    // A message of 64 bytes takes two packets; one client sends the first alone: the byte that is missing is a zero.
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
    let mut bench = Bench::with(Dialect::Spec);
    assert_eq!(
        bench.raw(&hex("00 07 00 03 00 00 00 00 00 00 00 00")),
        Some(hex("01 07 00 03 00 01 00 00 00 00 00 00 11"))
    );
    // Bind starts a background operation: bit 7.
    let bind = hex("00 08 00 01 52 06 00 00 00 00 00 00  00 01 00 00 0500");
    assert_eq!(bench.raw(&bind), Some(hex("01 08 00 01 52 00 00 80 01 00 00 00")));
    // A tunnelled message has no type before it.
    let tunnelled =
        hex("00 09 00 00 53 10 00 00 00 00 00 00  00 00 0C00  00 01 00 05 54 00 00 00 00 00 00 00");
    let response = "01 09 00 00 53 11 00 00 00 00 00 00  0D00 0000  01 01 00 05 54 01 00 00 00 00 00 00 0C";
    assert_eq!(bench.raw(&tunnelled), Some(hex(response)));
}

#[test]
fn response_limits() {
    let mut bench = Bench::new();
    bench.gives(0x0003, "", "11");
    bench.gives(0x0004, "08", "08");
    bench.gives(0x0003, "", "08");
    for n in ["07", "12", "FF"] {
        bench.refuses(0x0004, n, INVALID);
    }
    bench.refuses(0x0004, "", LENGTH);
    // 256 bytes: a header and 244 more. What does not fit is left for the next request.
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
    let mut bench = Bench::new();
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
        // Exactly what is listed is supported: a payload too long is wrong in length, but for what is not there.
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
    let mut bench = Bench::new();
    // Ports 0, 3, 127, 129; VCSs 0 and 2.
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
    // One client always sends room for 255 of them.
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
    let mut bench = Bench::new();
    let info = |bench: &mut Bench, status: &str| {
        bench.gives(0x5200, "01 02 01 00", &format!("01 000000 00 01 7F 7F {status} 00 00 FF 00"));
    };
    info(&mut bench, "00 00 FF 00");
    assert_eq!(bench.ask(0x5201, "00 01 00 EE 0500"), (1, vec![]));
    info(&mut bench, "01 00 05 00");
    bench.gives(0x0002, "", "01 00 0152 0000 0000");
    // One at a time; what is wrong is wrong all the same.
    bench.refuses(0x5201, "00 02 00 00 0600", BUSY);
    bench.refuses(0x5202, "00 01 01", BUSY);
    bench.refuses(0x5201, "00 02 01 00 0600", INVALID);
    // The device's own status is another's.
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
    // What the fabric refuses is refused with its return code.
    bench.fabric.finish(ReturnCode::Success);
    bench.fabric.refusal = Some(ReturnCode::RetryRequired);
    bench.refuses(0x5201, "00 02 00 00 0000", RETRY);
}

#[test]
fn virtual_switches_are_told_as_far_as_asked() {
    let mut bench = Bench::new();
    bench.gives(0x5200, "00 00 02 02 05", "02 000000 02 00 81 7F 05 FF FF 00");
    bench.gives(0x5200, "7E FF 01 00", "01 000000 00 01 7F 7F 00 00 FF 00");
    bench.gives(0x5200, "FF FF 01 00", "01 000000 00 01 7F 7F");
    bench.gives(0x5200, "00 FF 00", "00 000000");
    bench.refuses(0x5200, "00 FF 02 00", LENGTH);
    bench.fabric.hosts[0].slots = vec![Slot { vppb: 0, in_progress: false, port: None, ld: Some(3) }];
    bench.gives(0x5200, "00 01 01 00", "01 000000 00 01 7F 7F 03 FF 03 00");
    // All of them at once.
    bench.fabric.hosts = (0..HOSTS_MAX).map(|vcs| Host { vcs, ..Host::default() }).collect();
    let ids: Vec<u8> = (0..HOSTS_MAX).collect();
    let request = GetVirtualSwitches { first_vppb: 0, vppb_limit: 255, ids };
    let payload: String = request.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let (code, bytes) = bench.ask(0x5200, &payload);
    let switches = VirtualSwitches::from_bytes(&bytes, &request).unwrap().switches;
    assert_eq!((code, switches.len(), switches[126].vppbs.len()), (0, 127, 127));
}

#[test]
fn aer_events_are_for_bound_lds() {
    let mut bench = Bench::new();
    let header = "A5".repeat(32);
    bench.refuses(0x5203, &format!("00 01 0000 00400000 {header}"), INVALID);
    bench.fabric.hosts[0].slots = vec![Slot { vppb: 1, in_progress: false, port: Some(0), ld: Some(3) }];
    bench.gives(0x5203, &format!("00 01 FFFF 00400000 {header}"), "");
    assert_eq!(bench.fabric.asked, ["aer 0 1 0x4000"]);
    bench.refuses(0x5203, "00 01 0000 00400000", LENGTH);
}

#[test]
fn tunnels_lead_to_devices() {
    let mut bench = Bench::new();
    bench.refuses(0x5300, "01 00 0D00 08 00 00 00 01 00 00 00 00 00 00 00 00", INVALID);
    bench.refuses(0x5300, "7F 00 0D00 08 00 00 00 01 00 00 00 00 00 00 00 00", INVALID);
    bench.refuses(0x5300, "00 00 0E00 08 00 00 00 01 00 00 00 00 00 00 00 00", LENGTH);
    bench.refuses(0x5300, "00 00", LENGTH);
    bench.refuses(0x5300, "00 00 0100 07", LENGTH);
    bench.refuses(0x5300, "00 00 0D00 08 10 00 00 01 00 00 00 00 00 00 00 00", INVALID);
    // A return code of the message inside does not show outside.
    bench.gives(
        0x5300,
        "00 00 0D00 08 00 42 00 77 77 00 00 00 00 00 00 00",
        "0D00 0000 08 10 42 00 77 77 00 00 00 03 00 00 00",
    );
}

#[test]
fn configuration_space_of_an_ld() {
    let mut bench = Bench::new();
    *bench.fabric.ld(0, 2) =
        LogicalDevice { id: 2, reserved: 5 * GIB, bound: true, ..LogicalDevice::default() };
    let read = |bench: &mut Bench, offset: u16, expected: &str| {
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
    // Range 1: 5 GiB, valid and active.
    read(&mut bench, 0x118, "01000000");
    read(&mut bench, 0x11C, "03000040");
    read(&mut bench, 0x140, "23000100");
    read(&mut bench, 0x144, "981E4001");
    read(&mut bench, 0x148, "0800 0000");
    read(&mut bench, 0x14C, "00010000");
    read(&mut bench, 0xFFC, "00000000");
    // Byte enables: what is not enabled reads as zero and stays as it is.
    bench.gives(0x5301, "00 08 A0 00 0200 0000", "00 10 00 05");
    bench.gives(0x5301, "00 04 F0 80 0200 0000 FFFFFFFF", "00000000");
    read(&mut bench, 0x04, "4605 1000");
    bench.gives(0x5301, "00 04 10 80 0200 0000 00000000", "00000000");
    read(&mut bench, 0x04, "0005 1000");
    // Nothing else can be written: that is said.
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
    // An SLD has one, under either number.
    bench.gives(0x5301, "03 00 F0 00 0000 0000", "3412 0EC1");
    bench.gives(0x5301, "03 1C F1 00 FFFF 0000", "01000040");
}

#[test]
fn component_registers_of_an_ld() {
    let mut bench = Bench::new();
    let decoder = |base, size, ways, granularity: u32| Decoder {
        base,
        size,
        ways,
        granularity: Granularity::try_from(granularity).unwrap(),
    };
    bench.fabric.ld(0, 2).decoders =
        vec![decoder(0, GIB, Ways::Four, 1024), decoder(GIB, 3 * 256 * MIB, Ways::Three, 256)];
    let read = |bench: &mut Bench, offset: u32, expected: &str| {
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
    // Clients send as much data with reads as they want back.
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
    let mut bench = Bench::new();
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
    let mut bench = Bench::new();
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
        // As many as there are.
        bench.device_gives(get, "03 0E", "02 0E 40 80");
        bench.device_gives(get, "FF 00", &format!("10 00 {} 40 80", "00".repeat(14)));
        for nothing in ["00 00", "01 10"] {
            bench.device_refuses(get, nothing, INVALID);
        }
        bench.device_refuses(set, "03 0E 01 02 03", INVALID);
        bench.device_refuses(set, "03 0E 01 02", LENGTH);
        bench.device_refuses(get, "", LENGTH);
    }
    // Limits may add up to anything; shares to no more than all.
    bench.device_refuses(0x5407, "02 00 FF FF", INVALID);
    bench.device_gives(0x5409, "02 00 FF FF", "02 00 FF FF");
    bench.device_gives(0x5406, "02 00", "02 00 00 00");
}

#[test]
fn dynamic_capacity() {
    let mut bench = Bench::new();
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
    let extents = |bench: &mut Bench, request: &str, counts: &str, listed: &str| {
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
    let mut bench = Bench::new();
    bench.gives(0x0100, "00", &"00".repeat(32));
    bench.refuses(0x0100, "05", INVALID);
    bench.refuses(0x0100, "", LENGTH);
    let entry = |seq| LogEntry {
        seq,
        time_ms: seq * 10,
        happening: Happening::Link(PortState { port: seq as u8, ..PortState::default() }),
    };
    let overflow = Some(Overflow { count: 70_000, first_ns: 1, last_ns: 2 });
    let log = EventLog { overflow, entries: vec![entry(1), entry(65_534), entry(65_535), entry(65_536)] };
    bench.fabric.logs =
        vec![(Source::Switch, Log::Warning, log.clone()), (Source::Device(0), Log::DynamicCapacity, log)];
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
    // What does not fit is told of.
    let log = EventLog { overflow: None, entries: (1..=300).map(entry).collect() };
    bench.fabric.logs = vec![(Source::Switch, Log::Informational, log)];
    let events = Events::from_bytes(&bench.ask(0x0100, "00").1).unwrap();
    assert_eq!((events.records.len(), events.more), (255, true));
    bench.gives(0x0004, "08", "08");
    let events = Events::from_bytes(&bench.ask(0x0100, "00").1).unwrap();
    assert_eq!((events.records.len(), events.more), (1, true));
}

proptest! {
    /// Whatever a request holds: it is answered, within the limit, and the answer is a response to it.
    #[test]
    fn every_request_is_answered(
        dialect in prop_oneof![Just(Dialect::Tools), Just(Dialect::Spec)],
        requests in prop::collection::vec(
            (prop_oneof![any::<u16>(), prop::sample::select(Opcode::ALL).prop_map(Opcode::number)],
             prop::collection::vec(prop_oneof![0u8..5, any::<u8>()], 0..80), any::<bool>(), -2i8..3),
            1..20,
        ),
    ) {
        let (mut fabric, mut session) = (MemoryFabric::new(), Session::new(dialect));
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
            let _ = answer(&mut MemoryFabric::new(), &mut Session::new(dialect), &bytes);
            let _ = refuse(dialect, &bytes, ReturnCode::InternalError);
        }
    }
}
