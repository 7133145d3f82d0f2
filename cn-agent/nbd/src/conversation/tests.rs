//! Tests of conversations byte by byte, with correct and incorrect clients.

use proptest::prelude::*;

use super::super::wire::{OPTION_REPLY, REQUEST, SIMPLE_REPLY};
use super::*;
use cxloe_client::vectored::SendSlice;

const SIZE: u64 = 1 << 30;

fn offer() -> Offer {
    Offer { name: "scratch".into(), size: Ok(SIZE), read_only: false }
}

fn flags(flags: u32) -> Vec<u8> {
    flags.to_be_bytes().to_vec()
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    [&OPTION.to_be_bytes()[..], &number.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
}

fn go(name: &str, asked: &[u16]) -> Vec<u8> {
    let asked_bytes: Vec<u8> = asked.iter().flat_map(|number| number.to_be_bytes()).collect();
    let count = (asked.len() as u16).to_be_bytes();
    [&(name.len() as u32).to_be_bytes()[..], name.as_bytes(), &count, &asked_bytes].concat()
}

/// Data of an option about metadata contexts.
fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
    let string = |text: &str| [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat();
    let count = (queries.len() as u32).to_be_bytes().to_vec();
    let strings = queries.iter().map(|query| string(query)).collect::<Vec<_>>().concat();
    [string(name), count, strings].concat()
}

fn request(wishes: u16, kind: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let head = [&REQUEST.to_be_bytes()[..], &wishes.to_be_bytes(), &kind.to_be_bytes()].concat();
    [&head[..], &cookie.to_be_bytes(), &offset.to_be_bytes(), &length.to_be_bytes()].concat()
}

/// Takes all bytes of the output.
fn said(output: &mut Output) -> Vec<u8> {
    let mut bytes = Vec::new();
    for stretch in output.stretches(None, 0) {
        if let SendSlice::Own(own) = stretch {
            bytes.extend_from_slice(own);
        }
    }
    let mut length = bytes.len();
    while output.next_sent(&mut length).is_some() {}
    bytes
}

/// A conversation, its output, and the payload taken from it.
struct Talk {
    conversation: Conversation,
    output: Output,
    payload: Vec<u8>,
}

impl Talk {
    /// A conversation after the greeting.
    fn new(offer: Offer) -> Talk {
        let (conversation, output) = (Conversation::new(offer), Output::default());
        let mut talk = Talk { conversation, output, payload: Vec::new() };
        assert_eq!(talk.exchange(b"").0, b"NBDMAGICIHAVEOPT\0\x03");
        talk
    }

    /// Sends these bytes; returns the server's reply, the requests, and the last step.
    fn exchange(
        &mut self,
        bytes: &[u8],
    ) -> (Vec<u8>, Vec<ExportRequest>, Result<ConversationStep, ProtocolViolation>) {
        self.conversation.receive(bytes);
        let mut requests = Vec::new();
        loop {
            match self.conversation.step(&mut self.output) {
                Ok(ConversationStep::Carry(request)) => requests.push(request),
                Ok(ConversationStep::Payload(left)) => {
                    let here = self.conversation.payload(5);
                    assert!(here.len() <= (left as usize).min(5));
                    if here.is_empty() {
                        return (said(&mut self.output), requests, Ok(ConversationStep::Payload(left)));
                    }
                    self.payload.extend_from_slice(here);
                }
                end => return (said(&mut self.output), requests, end),
            }
        }
    }
}

/// A conversation in the request phase.
fn chosen(offer: Offer) -> Talk {
    let mut talk = Talk::new(offer);
    let (_, _, end) = talk.exchange(&[flags(3), option(7, &go("scratch", &[]))].concat());
    assert_eq!(end, Ok(ConversationStep::Receive(REQUEST_HEADER)));
    assert!(!talk.conversation.is_negotiating());
    talk
}

/// A conversation in the request phase with structured replies, in which the client has sent these selections of
/// metadata contexts.
fn chosen_with(selections: &[Vec<u8>]) -> Talk {
    let mut talk = Talk::new(offer());
    let selected = selections.iter().map(|data| option(10, data)).collect::<Vec<_>>().concat();
    let (_, _, end) =
        talk.exchange(&[flags(3), option(8, &[]), selected, option(7, &go("scratch", &[]))].concat());
    assert_eq!(end, Ok(ConversationStep::Receive(REQUEST_HEADER)));
    talk
}

/// Decodes replies to options: option, reply, data.
fn option_replies(mut bytes: &[u8]) -> Vec<(u32, u32, Vec<u8>)> {
    let mut replies = Vec::new();
    while !bytes.is_empty() {
        assert_eq!(bytes[..8], OPTION_REPLY.to_be_bytes());
        let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        let end = 20 + number(16) as usize;
        replies.push((number(8), number(12), bytes[20..end].to_vec()));
        bytes = &bytes[end..];
    }
    replies
}

fn simple(error: u32, cookie: u64) -> Vec<u8> {
    [&SIMPLE_REPLY.to_be_bytes()[..], &error.to_be_bytes(), &cookie.to_be_bytes()].concat()
}

/// Error number of a structured reply to request 9 that consists of an error.
fn structured_error(said: &[u8]) -> u32 {
    assert_eq!(said[..16], *b"\x66\x8e\x33\xef\0\x01\x80\x01\0\0\0\0\0\0\0\x09");
    u32::from_be_bytes(said[20..24].try_into().unwrap())
}

#[test]
fn go_tells_what_the_export_is_like_and_chooses_it() {
    let mut conversation = Talk::new(offer());
    let (said, ..) = conversation.exchange(&[flags(3), option(6, &go("", &[1, 2, 3]))].concat());
    let replies = option_replies(&said);
    assert!(conversation.conversation.is_negotiating(), "info alone chooses nothing");
    let mut export = vec![0, 0];
    export.extend(SIZE.to_be_bytes());
    export.extend(0b1101_0110_1101_u16.to_be_bytes());
    assert_eq!(replies[0], (6, 3, export));
    assert_eq!(replies[1], (6, 3, b"\0\x03\0\0\x02\0\0\0\x10\0\x04\0\0\0".to_vec()));
    assert_eq!(replies[2], (6, 3, b"\0\x01scratch".to_vec()));
    assert!(replies[3].2.starts_with(b"\0\x02region scratch"), "{replies:?}");
    assert_eq!(replies[4], (6, 1, vec![]));

    let (said, _, end) = conversation.exchange(&option(7, &go("scratch", &[])));
    let replies: Vec<_> = option_replies(&said).into_iter().map(|(_, reply, _)| reply).collect();
    assert_eq!(replies, [3, 3, 1]);
    assert_eq!(end, Ok(ConversationStep::Receive(REQUEST_HEADER)));
    assert!(!conversation.conversation.is_negotiating());
}

#[test]
fn the_export_name_option_selects_an_export() {
    for (client, zeros) in [(3, 0), (1, 124)] {
        let mut conversation = Talk::new(offer());
        let (said, _, end) = conversation.exchange(&[flags(client), option(1, b"scratch")].concat());
        assert_eq!(said.len(), 10 + zeros);
        assert_eq!(said[..8], SIZE.to_be_bytes());
        assert_eq!(end, Ok(ConversationStep::Receive(REQUEST_HEADER)));
    }
    for (offer, name) in
        [(offer(), &b"other"[..]), (Offer { size: Err(Unavailable::Away("gone".into())), ..offer() }, b"")]
    {
        let mut conversation = Talk::new(offer);
        let (said, _, end) = conversation.exchange(&[flags(3), option(1, name)].concat());
        assert_eq!((said.len(), end), (0, Ok(ConversationStep::Leave)), "all that can be said is nothing");
    }
}

#[test]
fn options_are_answered_known_or_not() {
    let mut conversation = Talk::new(offer());
    let all = [
        flags(3),
        option(3, &[]),
        option(3, b"x"),
        option(5, &[]),
        option(8, b"x"),
        option(8, &[]),
        option(10, b"whatever it is"),
        option(11, b"whatever it is"),
        option(7, b"short"),
        option(7, &go("other", &[])),
        option(2, &[]),
        option(3, &[]),
    ];
    let (said, _, end) = conversation.exchange(&all.concat());
    let replies = option_replies(&said);
    let numbers: Vec<_> = replies.iter().map(|(option, reply, _)| (*option, *reply)).collect();
    let error = |number: u32| 1 << 31 | number;
    let expected = [
        (3, 2),
        (3, 1),
        (3, error(3)),
        (5, error(1)),
        (8, error(3)),
        (8, 1),
        (10, error(3)),
        (11, error(1)),
        (7, error(3)),
        (7, error(6)),
        (2, 1),
    ];
    assert_eq!(numbers, expected);
    assert!(replies[0].2.starts_with(b"\0\0\0\x07scratchregion scratch in remote memory"), "{replies:?}");
    assert_eq!(end, Ok(ConversationStep::Leave), "nothing is read after the client has said that it leaves");
}

#[test]
fn what_is_not_to_be_had_is_told_with_its_reason() {
    let mut conversation =
        Talk::new(Offer { size: Err(Unavailable::Away("no agent at /run/x".into())), ..offer() });
    let (said, ..) = conversation.exchange(&[flags(3), option(3, &[]), option(7, &go("", &[]))].concat());
    let replies = option_replies(&said);
    assert_eq!(replies[0], (3, 1, vec![]));
    assert_eq!(replies[1], (7, 1 << 31 | 7, b"no agent at /run/x".to_vec()));
    assert!(conversation.conversation.is_negotiating());
}

#[test]
fn a_client_beyond_the_limit_gets_an_error() {
    let full = Unavailable::Full("16 clients are served already".into());
    let mut conversation = Talk::new(Offer { size: Err(full), ..offer() });
    let (said, ..) = conversation.exchange(&[flags(3), option(7, &go("", &[]))].concat());
    assert_eq!(option_replies(&said)[0], (7, 1 << 31 | 2, b"16 clients are served already".to_vec()));
}

#[test]
fn metadata_contexts_are_listed_and_selected() {
    let mut conversation = Talk::new(offer());
    let early = [flags(3), option(9, &contexts("", &[])), option(10, &contexts("", &["base:allocation"]))];
    let (said, ..) = conversation.exchange(&early.concat());
    let replies: Vec<_> = option_replies(&said).into_iter().map(|(_, reply, _)| reply).collect();
    assert_eq!(replies, [1_u32 << 31 | 3; 2], "there are no structured replies yet");
    conversation.exchange(&option(8, &[])).2.unwrap();
    let queries: [(u32, &[&str], Option<u8>); 8] = [
        (9, &[], Some(0)),
        (9, &["base:"], Some(0)),
        (9, &["qemu:", "base:allocation"], Some(0)),
        (9, &["qemu:", "base:other", ""], None),
        (10, &["qemu:allocation-depth", "base:allocation"], Some(1)),
        (10, &["base:allocation", "base:allocation"], Some(1)),
        (10, &["base:"], None),
        (10, &[], None),
    ];
    for (number, queries, found) in queries {
        let (said, ..) = conversation.exchange(&option(number, &contexts("scratch", queries)));
        let named = |id: u8| (number, 4, [&[0, 0, 0, id][..], b"base:allocation"].concat());
        let expected: Vec<(u32, u32, Vec<u8>)> =
            found.map(named).into_iter().chain([(number, 1, vec![])]).collect();
        assert_eq!(option_replies(&said), expected, "{queries:?}");
    }
    let (said, ..) = conversation.exchange(&option(10, &contexts("other", &["base:allocation"])));
    assert_eq!(option_replies(&said)[0].1, 1 << 31 | 6);

    let full = Unavailable::Full("16 clients are served already".into());
    let mut conversation = Talk::new(Offer { size: Err(full), ..offer() });
    let asked = [flags(3), option(8, &[]), option(10, &contexts("", &["base:allocation"]))];
    let (said, ..) = conversation.exchange(&asked.concat());
    assert_eq!(option_replies(&said)[1], (10, 1 << 31 | 2, b"16 clients are served already".to_vec()));
}

#[test]
fn a_status_is_told_to_those_who_selected_it() {
    let selection = contexts("", &["base:allocation"]);
    let mut conversation = chosen_with(std::slice::from_ref(&selection));
    let asked = [request(0, 7, 1, 4096, 512), request(1 << 3 | 1, 7, 2, 0, SIZE as u32)];
    let (said, requests, _) = conversation.exchange(&asked.concat());
    let expected = [(1, 512), (2, SIZE as u32)]
        .map(|(cookie, length)| ExportRequest { cookie, command: ExportCommand::BlockStatus { length } });
    assert_eq!((said, requests), (vec![], expected.to_vec()));
    for bytes in [request(0, 7, 9, 0, 0), request(0, 7, 9, SIZE - 1, 2), request(1 << 4, 7, 9, 0, 512)] {
        let (said, requests, _) = conversation.exchange(&bytes);
        assert_eq!((structured_error(&said), requests), (22, vec![]), "{bytes:x?}");
    }
    // Each selection replaces the one before, also one that is refused.
    for later in [contexts("", &[]), contexts("other", &["base:allocation"]), b"short".to_vec()] {
        let mut conversation = chosen_with(&[selection.clone(), later]);
        let (said, requests, _) = conversation.exchange(&request(0, 7, 9, 0, 512));
        assert_eq!((structured_error(&said), requests), (22, vec![]));
    }
}

#[test]
fn requests_come_out_as_they_went_in() {
    let mut conversation = chosen(offer());
    let bytes = [
        request(0, 0, 1, 4096, 512),
        request(1, 1, 2, 8192, 5),
        b"hello".to_vec(),
        request(3, 6, 3, 0, SIZE as u32),
        request(0, 4, 4, SIZE - 1, 1),
        request(1, 3, 5, 0, 0),
        request(0, 5, 6, 0, SIZE as u32),
        request(2, 6, 7, 0, 512),
        request(0, 2, 8, 0, 0),
        b"and more".to_vec(),
    ];
    let (said, requests, end) = conversation.exchange(&bytes.concat());
    assert_eq!(said, b"");
    let commands = [
        ExportCommand::Read { offset: 4096, length: 512, whole: false },
        ExportCommand::Write { offset: 8192, length: 5 },
        ExportCommand::WriteZeroes { offset: 0, length: SIZE as u32 },
        ExportCommand::Trim { offset: SIZE - 1, length: 1 },
        ExportCommand::Flush,
        ExportCommand::Cache { offset: 0, length: SIZE as u32 },
        ExportCommand::WriteZeroes { offset: 0, length: 512 },
    ];
    let expected: Vec<_> =
        commands.into_iter().zip(1..).map(|(command, cookie)| ExportRequest { cookie, command }).collect();
    assert_eq!(requests, expected);
    assert_eq!(end, Ok(ConversationStep::Leave));
    assert_eq!(conversation.payload, b"hello");
}

#[test]
fn what_cannot_be_done_is_answered_here() {
    let mut conversation = chosen(offer());
    let mut refused = |bytes: &[u8], error: u32| {
        let (said, requests, end) = conversation.exchange(bytes);
        assert_eq!((said, requests), (simple(error, 9), vec![]), "{bytes:x?}");
        assert_eq!(end, Ok(ConversationStep::Receive(REQUEST_HEADER)));
    };
    refused(&request(0, 0, 9, SIZE - 1, 2), 22);
    refused(&request(0, 0, 9, u64::MAX, 2), 22);
    refused(&request(0, 0, 9, 0, LENGTH_MAX + 1), 75);
    refused(&[request(0, 1, 9, SIZE - 1, 2), vec![0; 2]].concat(), 28);
    refused(&request(0, 6, 9, SIZE, 1), 28);
    refused(&request(0, 4, 9, SIZE, 1), 28);
    refused(&request(0, 3, 9, 1, 0), 22);
    refused(&request(0, 7, 9, 0, 512), 22);
    refused(&request(0, 8, 9, 0, 512), 22);
    refused(&request(0, 5, 9, SIZE, 1), 22);
    refused(&request(1 << 3, 5, 9, 0, 512), 22);
    refused(&request(1 << 4, 6, 9, 0, 512), 95);
    refused(&request(1 << 4, 6, 9, SIZE, 1), 28);
    refused(&[request(1 << 4, 1, 9, 0, 2), vec![0; 2]].concat(), 22);
    refused(&request(1 << 1, 0, 9, 0, 512), 22);
    refused(&request(1 << 5, 0, 9, 0, 512), 22);

    let mut conversation = chosen(Offer { read_only: true, ..offer() });
    for bytes in
        [[request(0, 1, 9, 0, 2), vec![0; 2]].concat(), request(0, 6, 9, 0, 2), request(0, 4, 9, 0, 2)]
    {
        let (said, requests, _) = conversation.exchange(&bytes);
        assert_eq!((said, requests), (simple(1, 9), vec![]));
    }
}

#[test]
fn nonsense_ends_the_conversation() {
    let violations = [
        (flags(0), ProtocolViolation::Flags(0)),
        (flags(1 << 9 | 1), ProtocolViolation::Flags(1 << 9 | 1)),
        ([flags(3), vec![b'x'; 16]].concat(), ProtocolViolation::NoOption),
        (
            [flags(3), OPTION.to_be_bytes().to_vec(), vec![0, 0, 0, 7, 0xff, 0xff, 0xff, 0xff]].concat(),
            ProtocolViolation::LongOption { option: 7, length: u32::MAX },
        ),
        ([flags(3), option(3, &[]).repeat(257)].concat(), ProtocolViolation::ManyOptions),
        ([flags(3), option(1, b""), vec![0; 28]].concat(), ProtocolViolation::NoRequest),
        (
            [flags(3), option(1, b""), request(0, 1, 0, 0, LENGTH_MAX + 1)].concat(),
            ProtocolViolation::LongPayload(LENGTH_MAX + 1),
        ),
    ];
    for (bytes, violation) in violations {
        let mut conversation = Talk::new(offer());
        let (.., end) = conversation.exchange(&bytes);
        assert_eq!(end, Err(violation));
        assert_eq!(conversation.exchange(b"").2, Ok(ConversationStep::Leave), "there is no way back");
    }
}

#[test]
fn a_payload_goes_past_and_its_rest_is_known() {
    let mut conversation = chosen(offer());
    let (_, requests, end) = conversation.exchange(&request(0, 1, 9, 0, 1000));
    assert_eq!(
        requests,
        [ExportRequest { cookie: 9, command: ExportCommand::Write { offset: 0, length: 1000 } }]
    );
    assert_eq!(end, Ok(ConversationStep::Payload(1000)));
    let (.., end) = conversation.exchange(&[1; 600]);
    assert_eq!(end, Ok(ConversationStep::Payload(400)));
    conversation.conversation.paid(399);
    let (.., end) = conversation.exchange(&[&[2][..], &request(0, 3, 10, 0, 0)].concat());
    assert_eq!(end, Ok(ConversationStep::Receive(REQUEST_HEADER)));
    assert_eq!(conversation.payload, [&[1; 600][..], &[2]].concat());
    // The payload of a refused write is skipped, in pieces of any size.
    for pieces in [1, 7, 100] {
        let mut conversation = chosen(Offer { read_only: true, ..offer() });
        let bytes = [request(0, 1, 9, 0, 100), vec![7; 100], request(0, 3, 10, 0, 0)].concat();
        let mut requests = Vec::new();
        for piece in bytes.chunks(pieces) {
            requests.extend(conversation.exchange(piece).1);
        }
        assert_eq!(requests, [ExportRequest { cookie: 10, command: ExportCommand::Flush }]);
        assert_eq!(conversation.payload, b"");
    }
}

/// Sequences of bytes that mostly consist of valid messages.
fn sayings() -> impl Strategy<Value = Vec<u8>> {
    let small = || prop_oneof![0..20_u32, any::<u32>()];
    let said = prop_oneof![
        (0..12_u32, prop::collection::vec(any::<u8>(), 0..40))
            .prop_map(|(number, data)| option(number, &data)),
        Just(option(7, &go("scratch", &[3]))),
        Just(option(8, b"")),
        Just(option(10, &contexts("", &["base:allocation"]))),
        Just(option(1, b"")),
        (0..32_u16, 0..9_u16, any::<u64>(), 0..2 * SIZE, small())
            .prop_map(|(w, k, c, o, l)| request(w, k, c, o, l)),
        (0..200_usize).prop_map(|n| [request(0, 1, 3, 64, n as u32), vec![7; n]].concat()),
        prop::collection::vec(any::<u8>(), 0..64),
    ];
    let first = prop_oneof![9 => Just(flags(3)), 1 => any::<u32>().prop_map(flags)];
    (first, prop::collection::vec(said, 0..20)).prop_map(|(first, said)| [first, said.concat()].concat())
}

/// Feeds the pieces to a conversation; returns all output, requests and payload, and the violation that ended the
/// conversation, if any.
fn outcome(pieces: &[&[u8]]) -> (Vec<u8>, Vec<ExportRequest>, Vec<u8>, Option<ProtocolViolation>) {
    let mut talk = Talk::new(offer());
    let (mut all_said, mut all_requests) = (Vec::new(), Vec::new());
    for piece in pieces {
        let (said, requests, end) = talk.exchange(piece);
        all_said.extend(said);
        all_requests.extend(requests);
        match end {
            Ok(ConversationStep::Receive(more)) => assert!(more > 0 && more <= LENGTH_MAX as usize),
            Ok(ConversationStep::Payload(left)) => assert!(left > 0 && left <= LENGTH_MAX),
            Ok(ConversationStep::Carry(_)) => unreachable!("it was taken"),
            Ok(ConversationStep::Leave) => return (all_said, all_requests, talk.payload, None),
            Err(violation) => return (all_said, all_requests, talk.payload, Some(violation)),
        }
        let Conversation { input, taken, .. } = &talk.conversation;
        assert!(input.len() - taken <= OPTION_HEADER + OPTION_DATA_MAX as usize, "nothing else is kept");
    }
    (all_said, all_requests, talk.payload, None)
}

proptest! {
    #[test]
    fn how_bytes_are_cut_does_not_matter(bytes in sayings(), cuts in prop::collection::vec(0..2000_usize, 0..20)) {
        let whole = outcome(&[&bytes]);
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
        cuts.sort_unstable();
        cuts.push(bytes.len());
        let mut at = 0;
        let pieces: Vec<&[u8]> = cuts.into_iter().map(|cut| &bytes[std::mem::replace(&mut at, cut)..cut]).collect();
        prop_assert_eq!(outcome(&pieces), whole);
    }

    #[test]
    fn requests_that_come_out_lie_within_the_export(bytes in sayings()) {
        for ExportRequest { command, .. } in outcome(&[&bytes]).1 {
            let (offset, length) = match command {
                ExportCommand::Read { offset, length, .. } | ExportCommand::Write { offset, length } => {
                    prop_assert!(length <= LENGTH_MAX);
                    (offset, u64::from(length))
                }
                ExportCommand::WriteZeroes { offset, length }
                | ExportCommand::Trim { offset, length }
                | ExportCommand::Cache { offset, length } => (offset, length.into()),
                ExportCommand::BlockStatus { length } => {
                    prop_assert!(length > 0);
                    (0, length.into())
                }
                ExportCommand::Flush => (0, 0),
            };
            prop_assert!(offset + length <= SIZE);
        }
    }
}
