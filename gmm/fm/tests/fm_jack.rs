//! The requests of jack, a public command-line client of the FM API, byte by byte: one connection per command,
//! arbitrary values in bytes that the command does not set, and a count of 255 to request all entries.

mod fm_fabric;

use std::io::Write;
use std::net::{SocketAddr, TcpStream};

use cxloe_fm::fabric::Slot;
use cxloe_fm::header::ReturnCode;
use fm_fabric::{Received, Serving, Shared, TEST_TIMEOUT, hex, receive};

/// Sends these packets on a new connection, and reads the response.
fn run(address: SocketAddr, packets: &str) -> Received {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let mut bytes = hex(packets);
    bytes.resize(bytes.len().next_multiple_of(68), 0x5A);
    stream.write_all(&bytes).unwrap();
    receive(&mut stream)
}

struct Switch {
    shared: Shared,
    serving: Serving,
}

impl Switch {
    fn new() -> Self {
        let shared = Shared::new();
        let serving = Serving::start(&shared, |_| ());
        Self { shared, serving }
    }

    /// Sends an FM API request in one packet, and asserts the header of the response and the beginning of its payload;
    /// `length` is the length of the response's payload.
    #[track_caller]
    fn fm(&self, request: &str, length: u16, code: u8, payload: &str) {
        let response = run(self.serving.addresses[0], &format!("01 00 00 C8 07 {request}"));
        let asked = hex(request);
        let background = u8::from(code == 1);
        let [l0, l1] = length.to_le_bytes();
        let header = [0x10, asked[1], 0, asked[3], asked[4], l0, l1, background, code, 0, 0, 0];
        let expected = [header.as_slice(), &hex(payload)].concat();
        assert_eq!((response.kind, response.tag), (7, 0));
        let got: String = response.body[..expected.len()].iter().map(|byte| format!("{byte:02x} ")).collect();
        assert_eq!(response.body[..expected.len()], expected, "{request}: {got}");
    }

    /// Sends a request as `fm` does, through the tunnel to the device at port 0.
    #[track_caller]
    fn device(&self, inner: &str, length: u16, code: u8, payload: &str) {
        let asked = hex(inner);
        let ([s0, s1], outer) = ((1 + asked.len() as u16).to_le_bytes(), 5 + asked.len());
        let request = format!("00 00 77 00 53 {outer:02x}00 00 0000 0000  00 77 {s0:02x}{s1:02x} 08 {inner}");
        let [l0, l1] = length.to_le_bytes();
        let [t0, t1] = (13 + length).to_le_bytes();
        let header = format!(
            "{t0:02x}{t1:02x} 0000 08  10 00 00 {:02x}{:02x} {l0:02x}{l1:02x} 00 {code:02x}00 0000",
            asked[3], asked[4]
        );
        self.fm(&request, 5 + 12 + length, 0, &format!("{header} {payload}"));
    }
}

#[test]
fn a_switch_is_shown_bound_and_unbound() {
    let switch = Switch::new();
    // Commands `show switch`, `show identity` and `show bos`.
    switch.fm("00 00 77 00 51 0000 00 0000 0000", 73, 0, "00 00 FE 7F 09");
    switch.fm("00 00 77 01 00 0000 00 0000 0000", 18, 0, "3412 05C1 3412 05C1 7766554433221100 11 00");
    switch.fm("00 00 77 02 00 0000 00 0000 0000", 8, 0, "00 00 0000 0000 0000");
    // Command `show port -p 3`.
    switch.fm("00 00 77 01 51 0200 00 0000 0000  01 03", 20, 0, "01 000000 03 03 02 00 04");
    // Command `show vcs -v 0`.
    let free = "00 00 FF 00".repeat(127);
    switch.fm(
        "00 00 77 00 52 0400 00 0000 0000  00 FF 01 00",
        516,
        0,
        &format!("01 000000 00 01 7F 7F {free}"),
    );
    // Commands `port bind -v 0 -b 1 -p 0 -l 5` and `show bos`.
    switch.fm("00 00 77 01 52 0600 00 0000 0000  00 01 00 77 0500", 0, 1, "");
    switch.fm("00 00 77 02 00 0000 00 0000 0000", 8, 0, "01 00 0152 0000 0000");
    switch.fm("00 00 77 02 52 0300 00 0000 0000  00 01 01", 0, 6, "");
    switch.shared.0.lock().unwrap().finish(ReturnCode::Success);
    // Command `aer -v 0 -b 1`.
    let header = "0102030405060708".repeat(4);
    switch.fm(&format!("00 00 77 03 52 2800 00 0000 0000  00 01 7777 00400000 {header}"), 0, 0, "");
    // Command `port unbind -v 0 -b 1` with each option: wait, managed, surprise.
    for option in ["00", "01", "02"] {
        switch.fm(&format!("00 00 77 02 52 0300 00 0000 0000  00 01 {option}"), 0, 1, "");
        switch.shared.0.lock().unwrap().operation = None;
    }
    // Command `port control`: hold in reset, then release.
    for (operation, held) in [("00", true), ("01", false)] {
        switch.fm(&format!("00 00 77 02 51 0200 00 0000 0000  7F {operation}"), 0, 0, "");
        assert_eq!(switch.shared.0.lock().unwrap().hosts[0].held, held);
    }
}

#[test]
fn every_port_there_may_be_is_asked_about_at_once() {
    let switch = Switch::new();
    // Command `show port -a`: 268 bytes in five packets.
    let ids: Vec<u8> = (0..=254).collect();
    let message = [hex("07 00 00 77 01 51 00 01 00 00 00 00 00 FF"), ids].concat();
    assert_eq!(message.len(), 269);
    let packets: String = message
        .chunks(64)
        .zip(["88", "18", "28", "38", "48"])
        .map(|(part, flags)| {
            let part: String = part.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("010000{flags}{part}")
        })
        .collect();
    let response = run(switch.serving.addresses[0], &packets);
    assert_eq!(response.body[..13], hex("10 00 00 01 51 44 00 00 00 00 00 00 04"));
    let ports: Vec<u8> = response.body[16..16 + 64].chunks(16).map(|port| port[0]).collect();
    assert_eq!(ports, [0, 3, 127, 129]);
}

#[test]
fn lds_are_sized_read_and_limited() {
    let switch = Switch::new();
    // Commands `show ld info`, `set ld allocations -l 2` (1 GiB), and `show ld allocations` for 255 LDs from
    // 0 on.
    switch.device("00 00 77 00 54 0000 00 0000 0000", 11, 0, "0000000001000000 1000 03");
    let gib = "0400000000000000 0000000000000000";
    switch.device(
        &format!("00 00 77 02 54 1400 00 0000 0000  01 02 7777 {gib}"),
        20,
        0,
        &format!("01 02 0000 {gib}"),
    );
    let none = "00".repeat(32);
    switch.device("00 00 77 01 54 0200 00 0000 0000  00 FF", 260, 0, &format!("10 00 00 10 {none} {gib}"));
    // Commands `show qos control` and `status`; `set` and `show qos allocated` and `limit`, for 255 LDs from
    // 0 on.
    switch.device("00 00 77 03 54 0000 00 0000 0000", 7, 0, "00 0A 19 08 0000 40");
    switch.device("00 00 77 05 54 0000 00 0000 0000", 1, 0, "0C");
    for (set, show) in [("07", "06"), ("09", "08")] {
        let request = format!("00 00 77 {set} 54 0400 00 0000 0000  02 01 40 80");
        switch.device(&request, 4, 0, "02 01 40 80");
        let request = format!("00 00 77 {show} 54 0200 00 0000 0000  FF 00");
        switch.device(&request, 18, 0, "10 00 00 40 80 00");
    }
    // Commands `ld config -r 8`, which reads one byte by default, and `ld mem -o 1000h`, which reads 4 bytes.
    switch.fm("00 00 77 01 53 0C00 00 0000 0000  00 08 10 00 0200 7777 00000000", 4, 0, "00000000");
    switch.fm("00 00 77 01 53 0C00 00 0000 0000  00 09 10 00 0200 7777 00000000", 4, 0, "10000000");
    let read = "00 00 77 02 53 1400 00 0000 0000  00 77 F0 0F 0200 0400 0010000000000000 00000000";
    switch.fm(read, 8, 0, "0400 0000 01001101");
    // Command `ld config -w`: to the command register, and to a register that cannot be written.
    switch.fm("00 00 77 01 53 0C00 00 0000 0000  00 04 10 80 0200 7777 06000000", 4, 0, "00000000");
    switch.fm("00 00 77 01 53 0C00 00 0000 0000  00 10 10 80 0200 7777 FF000000", 0, 3, "");
}

#[test]
fn what_is_set_holds_for_the_next_command() {
    let switch = Switch::new();
    // Commands `show msg-limit`, `set msg-limit 8` and `show msg-limit`.
    switch.fm("00 00 77 03 00 0000 00 0000 0000", 1, 0, "11");
    switch.fm("00 00 77 04 00 0100 00 0000 0000  08", 1, 0, "08");
    switch.fm("00 00 77 03 00 0000 00 0000 0000", 1, 0, "08");
    // Commands `mctp get-eid`, `set-eid 1D`, `get-eid`, `get-type` and `get-ver`.
    let control = |body: &str| run(switch.serving.addresses[0], &format!("01 00 00 C8 00 {body}")).body;
    assert_eq!(control("80 02")[..6], hex("00 02 00 00 00 00"));
    assert_eq!(control("80 01 00 1D")[..6], hex("00 01 00 00 1D 00"));
    assert_eq!(control("80 02")[..6], hex("00 02 00 1D 00 00"));
    assert_eq!(control("80 05")[..6], hex("00 05 00 02 07 08"));
    assert_eq!(control("80 04 FF")[..4], hex("00 04 00 01"));
    // A response of at most 256 bytes has room for the first vPPBs of a VCS.
    let slot = Slot { vppb: 0, in_progress: false, port: Some(0), ld: Some(5) };
    switch.shared.0.lock().unwrap().hosts[0].slots = vec![slot];
    switch.fm("00 00 77 00 52 0400 00 0000 0000  00 02 01 00", 16, 0, "01 000000 00 01 7F 7F 03 00 05 00");
}
