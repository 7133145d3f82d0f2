//! The FM API's listener and client: pipelining, several switches, hostile input, limits.

mod fm_fabric;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use cxloe_fm::answer::ClientAgreements;
use cxloe_fm::authenticator::Answerer;
use cxloe_fm::client::{FmClient, FmClientError, Recipient};
use cxloe_fm::component::{BackgroundStatus, Identity};
use cxloe_fm::header::{Dialect, ReturnCode};
use cxloe_fm::mld_component::{GetLdAllocations, LdAllocations, LdInfo, SetLdAllocations};
use cxloe_fm::opcode::Opcode;
use cxloe_fm::physical_switch::{GetPortState, PortStates};
use cxloe_fm::virtual_switch::BindVppb;
use fm_fabric::{Serving, Shared, TEST_TIMEOUT, hex, packets, receive, send};
use tokio::sync::Semaphore;

const IDENTIFY: &str = "00 5A 00 01 00 00 00 00 00 00 00 00";
const IDENTITY: &str = "10 5A 00 01 00 12 00 00 00 00 00 00 3412 05C1 3412 05C1 7766554433221100 11 00";

fn is_well(stream: &mut TcpStream) {
    let mut sent = 0;
    send(stream, &mut sent, 6, 7, &hex(IDENTIFY));
    let response = receive(stream);
    assert_eq!((response.kind, response.tag, &response.body[..30]), (7, 6, hex(IDENTITY).as_slice()));
}

/// Reads until the peer closes the connection, and returns the number of bytes. A reset counts as a close.
fn drained(stream: &mut TcpStream) -> usize {
    let (mut buffer, mut count) = ([0; 4096], 0);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return count,
            Ok(n) => count += n,
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "not closed: {error}");
                return count;
            }
        }
    }
}

#[test]
fn one_request_one_packet_one_response() {
    let serving = Serving::start(&Shared::new(), |_| ());
    let mut stream = serving.connect(0);
    let mut request = hex(&format!("01 00 00 CE 07 {IDENTIFY}"));
    request.resize(68, 0xEE);
    stream.write_all(&request).unwrap();
    let mut response = [0; 68];
    stream.read_exact(&mut response).unwrap();
    let mut expected = hex(&format!("01 00 00 C6 07 {IDENTITY}"));
    expected.resize(68, 0);
    assert_eq!(response.to_vec(), expected);
    // The response must have the request's endpoint ids in exchanged order, and the request's message type, here that
    // of the CCI.
    request[..5].copy_from_slice(&[1, 9, 8, 0xDF, 8]);
    stream.write_all(&request).unwrap();
    stream.read_exact(&mut response).unwrap();
    expected[..5].copy_from_slice(&[1, 8, 9, 0xD7, 8]);
    assert_eq!(response.to_vec(), expected);
}

#[test]
fn requests_are_answered_in_order_by_tag_however_they_are_cut() {
    let serving = Serving::start(&Shared::new(), |_| ());
    let mut stream = serving.connect(0);
    let mut sent = 0;
    let mut stream_bytes = Vec::new();
    let ports = format!("00 00 00 01 51 FF 00 00 00 00 00 00 FE {}", "00".repeat(254));
    for tag in 0..40 {
        let body = if tag % 3 == 2 { hex(&ports) } else { hex(IDENTIFY) };
        stream_bytes.extend(packets(&mut sent, tag % 8, 7, &body));
    }
    for piece in stream_bytes.chunks(101) {
        stream.write_all(piece).unwrap();
    }
    for tag in 0..40u8 {
        let response = receive(&mut stream);
        let length = if tag % 3 == 2 { 4 + 254 * 16 } else { 18 };
        assert_eq!(
            (response.tag, response.body[5..7].to_vec()),
            (tag % 8, u16::to_le_bytes(length).to_vec())
        );
    }
}

#[test]
fn each_switch_has_its_address_and_a_slow_manager_costs_one_answer() {
    let serving = Serving::start(&Shared::new(), |config| {
        config.switches = 3;
        config.answer_within = Duration::from_millis(40);
    });
    assert_eq!(serving.addresses.len(), 3);
    // Switch 1 never answers in time: its client must be asked to repeat the request, and clients of other switches
    // must be served.
    let (mut slow, mut sent) = (serving.connect(1), 0);
    for _ in 0..3 {
        send(&mut slow, &mut sent, 1, 7, &hex(IDENTIFY));
    }
    for _ in 0..3 {
        assert_eq!(receive(&mut slow).body[..12], hex("10 5A 00 01 00 00 00 00 05 00 00 00"));
    }
    let mut stream = serving.connect(2);
    send(&mut stream, &mut sent, 1, 0, &[0x81, 3]);
    let uuid = receive(&mut stream).body;
    assert_eq!((&uuid[..3], uuid[18]), ([1, 3, 0].as_slice(), 2), "the number of the switch");
}

/// Answers with the number of the request, as soon as there is a permit.
#[derive(Clone)]
struct Counting {
    count: Arc<AtomicU8>,
    permits: Arc<Semaphore>,
}

impl Answerer for Counting {
    async fn answer(
        &self,
        _switch: u32,
        session: ClientAgreements,
        message: Vec<u8>,
    ) -> Result<(ClientAgreements, Option<Vec<u8>>), ReturnCode> {
        let number = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        let _permit = self.permits.acquire().await.map_err(|_| ReturnCode::InternalError)?;
        let response = [0x10, message[1], 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, number];
        Ok((session, Some(response.to_vec())))
    }
}

#[test]
fn a_request_that_is_repeated_as_asked_is_carried_out_once() {
    let (count, permits) = (Arc::default(), Arc::new(Semaphore::new(0)));
    let counting = Counting { count, permits: Arc::clone(&permits) };
    let serving = Serving::over(counting, |config| config.answer_within = Duration::from_millis(40));
    let (mut stream, mut sent, mut tag) = (serving.connect(0), 0, 0x50);
    let mut ask = || {
        tag += 1;
        send(&mut stream, &mut sent, 1, 7, &hex(&format!("00 {tag:02X} 00 01 00 00 00 00 00 00 00 00")));
        let body = receive(&mut stream).body;
        assert_eq!(body[..2], [0x10, tag], "the tag of the repetition");
        (body[8], body[12])
    };
    let retry = 5;
    for _ in 0..3 {
        assert_eq!(ask().0, retry, "it cannot be answered");
    }
    permits.add_permits(1);
    let deadline = Instant::now() + TEST_TIMEOUT;
    for number in 1..3 {
        let answered = loop {
            let (code, answered) = ask();
            if code != retry {
                break answered;
            }
            assert!(Instant::now() < deadline, "it is not answered");
        };
        assert_eq!(answered, number);
    }
}

#[test]
fn broken_messages_are_dropped_and_the_next_is_answered() {
    let serving = Serving::start(&Shared::new(), |_| ());
    let mut stream = serving.connect(0);
    let mut sent = 0;
    // Messages with a gap, without a beginning, of an unknown type, and of another version must not end the
    // connection.
    let mut wrong = packets(&mut sent, 1, 7, &[0; 200]);
    wrong.drain(68..136);
    stream.write_all(&wrong).unwrap();
    let mut headless = packets(&mut sent, 1, 7, &hex(IDENTIFY));
    headless[3] &= !0x80;
    stream.write_all(&headless).unwrap();
    send(&mut stream, &mut sent, 1, 5, &hex(IDENTIFY));
    let mut strange = packets(&mut sent, 1, 7, &hex(IDENTIFY));
    strange[0] = 2;
    stream.write_all(&strange).unwrap();
    is_well(&mut stream);
    // The first of these messages has a header that states more payload than follows; the second message is longer than
    // the limit.
    send(&mut stream, &mut sent, 2, 7, &hex("00 11 00 01 51 FF FF F8 00 00 00 00"));
    assert_eq!(receive(&mut stream).body[..12], hex("10 11 00 01 51 00 00 00 16 00 00 00"));
    let mut long = hex("00 12 00 04 56 00 00 10 00 00 00 00");
    long.resize((128 << 10) + 100, 7);
    send(&mut stream, &mut sent, 3, 7, &long);
    let refused = receive(&mut stream);
    assert_eq!((refused.tag, refused.body[..12].to_vec()), (3, hex("10 12 00 04 56 00 00 00 16 00 00 00")));
    is_well(&mut stream);
}

#[test]
fn a_client_of_another_protocol_is_closed() {
    let serving = Serving::start(&Shared::new(), |_| ());
    let mut stream = serving.connect(0);
    let request = "GET / HTTP/1.1\r\nHost: switch\r\n\r\n".repeat(200);
    // The listener may close the connection before everything is written.
    let _ = stream.write_all(request.as_bytes());
    assert_eq!(drained(&mut stream), 0);
    is_well(&mut serving.connect(0));
}

#[test]
fn half_a_packet_holds_nobody_up() {
    let serving = Serving::start(&Shared::new(), |_| ());
    let mut halves: Vec<TcpStream> = (0..20).map(|_| serving.connect(0)).collect();
    for (count, stream) in halves.iter_mut().enumerate() {
        stream.write_all(&packets(&mut 0, 1, 7, &hex(IDENTIFY))[..count * 3 + 1]).unwrap();
    }
    is_well(&mut serving.connect(0));
    // Clients that have sent half a message can complete it.
    for (count, stream) in halves.iter_mut().enumerate() {
        stream.write_all(&packets(&mut 0, 1, 7, &hex(IDENTIFY))[count * 3 + 1..]).unwrap();
        assert_eq!(receive(stream).body[..30], hex(IDENTITY));
    }
}

#[test]
fn more_connections_than_the_limit_are_closed() {
    let serving = Serving::start(&Shared::new(), |config| config.connections_max = 5);
    let mut served: Vec<TcpStream> = (0..5).map(|_| serving.connect(0)).collect();
    served.iter_mut().for_each(is_well);
    for _ in 0..10 {
        assert_eq!(drained(&mut serving.connect(0)), 0);
    }
    is_well(&mut served[4]);
    // A closed connection makes room for another.
    drop(served.pop());
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        let mut stream = serving.connect(0);
        let asked = stream.write_all(&packets(&mut 0, 1, 7, &hex(IDENTIFY)));
        let mut response = [0; 68];
        if asked.and_then(|()| stream.read_exact(&mut response)).is_ok() {
            break;
        }
        assert!(Instant::now() < deadline, "a slot that was given back cannot be had");
    }
}

#[test]
fn an_idle_client_is_closed() {
    let serving = Serving::start(&Shared::new(), |config| config.idle_within = Duration::from_millis(300));
    let (mut silent, mut amid) = (serving.connect(0), serving.connect(0));
    is_well(&mut silent);
    amid.write_all(&packets(&mut 0, 1, 7, &hex(IDENTIFY))[..40]).unwrap();
    assert_eq!((drained(&mut silent), drained(&mut amid)), (0, 0));
}

#[test]
fn one_address_does_not_lock_the_others_out() {
    let serving = Serving::start(&Shared::new(), |config| config.connections_max = 5);
    let mut crowd: Vec<TcpStream> = (0..5).map(|_| serving.connect(0)).collect();
    crowd.iter_mut().for_each(is_well);
    let mut other = serving.connect_from([127, 0, 0, 2], 0);
    is_well(&mut other);
    // The connection that was silent longest was closed to make room.
    assert_eq!(drained(&mut crowd[0]), 0);
    crowd[1..].iter_mut().for_each(is_well);
    is_well(&mut other);
}

#[test]
fn what_one_client_sets_is_not_anothers() {
    let serving = Serving::start(&Shared::new(), |_| ());
    let limit = |stream: &mut TcpStream, request: &str| {
        send(stream, &mut 0, 1, 7, &hex(request));
        receive(stream).body[12]
    };
    let get = "00 01 00 03 00 00 00 00 00 00 00 00";
    assert_eq!(limit(&mut serving.connect(0), "00 01 00 04 00 01 00 00 00 00 00 00 08"), 8);
    assert_eq!(limit(&mut serving.connect(0), get), 8, "it lasts beyond a connection");
    assert_eq!(limit(&mut serving.connect_from([127, 0, 0, 2], 0), get), 17, "and is its own");
}

#[test]
fn a_thousand_connections() {
    let serving = Serving::start(&Shared::new(), |_| ());
    let mut streams: Vec<TcpStream> = (0..1000).map(|_| serving.connect(0)).collect();
    for stream in &mut streams {
        send(stream, &mut 0, 2, 7, &hex(IDENTIFY));
    }
    for stream in streams.iter_mut().rev() {
        assert_eq!(receive(stream).body[..30], hex(IDENTITY));
    }
}

#[test]
fn a_client_that_never_reads_is_cut_off() {
    let serving = Serving::start(&Shared::new(), |config| config.read_within = Duration::from_millis(300));
    let mut stream = serving.connect(0);
    // Each request is for 64 KiB of virtual switches. Writing stalls when the listener stops reading, and fails when it
    // has closed the connection.
    let ids: String = "00".repeat(127);
    let request = packets(&mut 0, 1, 7, &hex(&format!("00 01 00 00 52 82 00 00 00 00 00 00 00 FF 7F {ids}")));
    let deadline = Instant::now() + TEST_TIMEOUT;
    let cut_off = loop {
        match stream.write_all(&request) {
            Ok(()) => assert!(Instant::now() < deadline, "still read from"),
            Err(error) => break error.kind(),
        }
    };
    assert_ne!(cut_off, std::io::ErrorKind::WouldBlock, "not closed");
    is_well(&mut serving.connect(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_asks_in_both_dialects() {
    for dialect in [Dialect::Tools, Dialect::Spec] {
        let shared = Shared::new();
        let serving =
            tokio::task::block_in_place(|| Serving::start(&shared, |config| config.dialect = dialect));
        let address = serving.addresses[0].to_string();
        let mut client = FmClient::connect(&address, dialect).await.unwrap();
        let switch: Identity = client.ask(Recipient::Switch, Opcode::Identify, &()).await.unwrap();
        assert_eq!((switch.component_type, switch.serial), (0, 0x0011_2233_4455_6677));
        let device: Identity = client.ask(Recipient::Device(0), Opcode::Identify, &()).await.unwrap();
        assert_eq!((device.component_type, device.serial), (3, 0x0102_0304));
        let request = GetPortState { ports: (0..=254).collect() };
        let ports: PortStates =
            client.ask(Recipient::Switch, Opcode::GetPhysicalPortState, &request).await.unwrap();
        assert_eq!(ports.ports.iter().map(|port| port.port).collect::<Vec<_>>(), [0, 3, 127, 129]);
        let info: LdInfo = client.ask(Recipient::Device(0), Opcode::GetLdInfo, &()).await.unwrap();
        assert_eq!((info.memory_size, info.ld_count), (4 << 30, 16));

        let bind = BindVppb { vcs: 0, vppb: 9, port: 0, ld: 1 };
        client.ask::<()>(Recipient::Switch, Opcode::BindVppb, &bind).await.unwrap();
        let status = client.background().await.unwrap();
        let running = BackgroundStatus {
            running: true,
            percent: 0,
            opcode: 0x5201,
            code: ReturnCode::Success,
            vendor: 0,
        };
        assert_eq!(status, running);
        let refused = client.ask::<()>(Recipient::Switch, Opcode::BindVppb, &bind).await.unwrap_err();
        assert!(matches!(refused, FmClientError::Refused { code: ReturnCode::Busy, .. }), "{refused}");
        assert!(refused.to_string().contains("Bind vPPB (5201h): busy"), "{refused}");
        let refused = client.ask::<LdInfo>(Recipient::Device(77), Opcode::GetLdInfo, &()).await.unwrap_err();
        assert!(refused.to_string().contains("the tunnel to port 77: invalid input"), "{refused}");
        let raw = client.send(Recipient::Switch, 0xBEEF, &[1, 2, 3]).await.unwrap();
        assert_eq!((raw.header.code, raw.payload.len()), (ReturnCode::Unsupported, 0));
        tokio::task::block_in_place(|| drop(serving));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_tries_again_when_asked_to_and_names_what_went_wrong() {
    let shared = Shared::new();
    let serving = tokio::task::block_in_place(|| Serving::start(&shared, |_| ()));
    let address = serving.addresses[0].to_string();
    let mut client = FmClient::connect(&address, Dialect::Tools).await.unwrap();
    {
        let mut fabric = shared.0.lock().unwrap();
        (fabric.refusal, fabric.refusals) = (Some(ReturnCode::RetryRequired), 2);
    }
    let allocation = cxloe_fm::mld_component::LdAllocation { range_1: 1, range_2: 0 };
    let set = SetLdAllocations { first: 3, allocations: vec![allocation] };
    let done: SetLdAllocations =
        client.ask(Recipient::Device(0), Opcode::SetLdAllocations, &set).await.unwrap();
    assert_eq!(done, set);
    let get = GetLdAllocations { first: 0, limit: 16 };
    let all: LdAllocations = client.ask(Recipient::Device(0), Opcode::GetLdAllocations, &get).await.unwrap();
    assert_eq!(all.allocations[3], allocation);

    let mut other = FmClient::connect(&address, Dialect::Spec).await.unwrap();
    let error = other.ask::<Identity>(Recipient::Switch, Opcode::Identify, &()).await.unwrap_err();
    assert!(matches!(error, FmClientError::Protocol { .. }), "{error}");
    assert!(error.to_string().contains("--dialect"), "{error}");
    tokio::task::block_in_place(|| drop(serving));
    let error = client.ask::<Identity>(Recipient::Switch, Opcode::Identify, &()).await.unwrap_err();
    assert!(matches!(error, FmClientError::Broken { .. }), "{error}");
    let error = FmClient::connect(&address, Dialect::Tools).await.unwrap_err();
    assert!(error.to_string().contains("--fm-listen"), "{error}");
}
