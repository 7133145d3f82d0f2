//! Conversations as clients hold them, byte by byte, and as they should not.

use proptest::prelude::*;

use super::super::wire::{CHUNK, CHUNK_DONE, OPTION_REPLY, REQUEST, SIMPLE_REPLY};
use super::*;

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

fn request(wishes: u16, kind: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let head = [&REQUEST.to_be_bytes()[..], &wishes.to_be_bytes(), &kind.to_be_bytes()].concat();
    [&head[..], &cookie.to_be_bytes(), &offset.to_be_bytes(), &length.to_be_bytes()].concat()
}

/// What the server says to these bytes, and what it wants done.
fn talk(conversation: &mut Conversation, bytes: &[u8]) -> (Vec<u8>, Vec<Request>, Result<Step, Violation>) {
    conversation.receive(bytes);
    let mut requests = Vec::new();
    loop {
        match conversation.step() {
            Ok(Step::Carry(request)) => requests.push(request),
            end => return (std::mem::take(conversation.output()), requests, end),
        }
    }
}

/// A conversation that has come to requests.
fn chosen(offer: Offer, structured: bool) -> Conversation {
    let mut conversation = Conversation::new(offer);
    let structured = if structured { option(8, &[]) } else { Vec::new() };
    let (_, _, end) =
        talk(&mut conversation, &[flags(3), structured, option(7, &go("scratch", &[]))].concat());
    assert_eq!(end, Ok(Step::Receive(REQUEST_HEADER)));
    assert!(!conversation.is_negotiating());
    conversation
}

/// The answers to options in `bytes`: option, reply, data.
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

#[test]
fn the_greeting_is_that_of_the_fixed_newstyle_protocol() {
    assert_eq!(Conversation::new(offer()).output(), b"NBDMAGICIHAVEOPT\0\x03");
}

#[test]
fn go_tells_what_the_export_is_like_and_chooses_it() {
    let mut conversation = Conversation::new(offer());
    conversation.output().clear();
    let (said, ..) = talk(&mut conversation, &[flags(3), option(6, &go("", &[1, 2, 3]))].concat());
    let replies = option_replies(&said);
    assert!(conversation.is_negotiating(), "info alone chooses nothing");
    let mut export = vec![0, 0];
    export.extend(SIZE.to_be_bytes());
    export.extend(0b1_0110_1101_u16.to_be_bytes());
    assert_eq!(replies[0], (6, 3, export));
    assert_eq!(replies[1], (6, 3, b"\0\x03\0\0\x02\0\0\0\x10\0\x02\0\0\0".to_vec()));
    assert_eq!(replies[2], (6, 3, b"\0\x01scratch".to_vec()));
    assert!(replies[3].2.starts_with(b"\0\x02region scratch"), "{replies:?}");
    assert_eq!(replies[4], (6, 1, vec![]));

    let (said, _, end) = talk(&mut conversation, &option(7, &go("scratch", &[])));
    let replies: Vec<_> = option_replies(&said).into_iter().map(|(_, reply, _)| reply).collect();
    assert_eq!(replies, [3, 3, 1]);
    assert_eq!(end, Ok(Step::Receive(REQUEST_HEADER)));
    assert!(!conversation.is_negotiating());
}

#[test]
fn the_old_way_to_choose_works() {
    for (client, zeros) in [(3, 0), (1, 124)] {
        let mut conversation = Conversation::new(offer());
        conversation.output().clear();
        let (said, _, end) = talk(&mut conversation, &[flags(client), option(1, b"scratch")].concat());
        assert_eq!(said.len(), 10 + zeros);
        assert_eq!(said[..8], SIZE.to_be_bytes());
        assert_eq!(end, Ok(Step::Receive(REQUEST_HEADER)));
    }
    for (offer, name) in [(offer(), &b"other"[..]), (Offer { size: Err("gone".into()), ..offer() }, b"")] {
        let mut conversation = Conversation::new(offer);
        conversation.output().clear();
        let (said, _, end) = talk(&mut conversation, &[flags(3), option(1, name)].concat());
        assert_eq!((said.len(), end), (0, Ok(Step::Leave)), "all that can be said is nothing");
    }
}

#[test]
fn options_are_answered_known_or_not() {
    let mut conversation = Conversation::new(offer());
    conversation.output().clear();
    let all = [
        flags(3),
        option(3, &[]),
        option(3, b"x"),
        option(5, &[]),
        option(8, b"x"),
        option(8, &[]),
        option(10, b"whatever it is"),
        option(7, b"short"),
        option(7, &go("other", &[])),
        option(2, &[]),
        option(3, &[]),
    ];
    let (said, _, end) = talk(&mut conversation, &all.concat());
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
        (10, error(1)),
        (7, error(3)),
        (7, error(6)),
        (2, 1),
    ];
    assert_eq!(numbers, expected);
    assert!(replies[0].2.starts_with(b"\0\0\0\x07scratchregion scratch in remote memory"), "{replies:?}");
    assert_eq!(end, Ok(Step::Leave), "nothing is read after the client has said that it leaves");
}

#[test]
fn what_is_not_to_be_had_is_told_with_its_reason() {
    let mut conversation = Conversation::new(Offer { size: Err("no agent at /run/x".into()), ..offer() });
    conversation.output().clear();
    let (said, ..) = talk(&mut conversation, &[flags(3), option(3, &[]), option(7, &go("", &[]))].concat());
    let replies = option_replies(&said);
    assert_eq!(replies[0], (3, 1, vec![]));
    assert_eq!(replies[1], (7, 1 << 31 | 7, b"no agent at /run/x".to_vec()));
    assert!(conversation.is_negotiating());
}

#[test]
fn requests_come_out_as_they_went_in() {
    let mut conversation = chosen(offer(), false);
    let bytes = [
        request(0, 0, 1, 4096, 512),
        request(1, 1, 2, 8192, 5),
        b"hello".to_vec(),
        request(3, 6, 3, 0, SIZE as u32),
        request(0, 4, 4, SIZE - 1, 1),
        request(1, 3, 5, 0, 0),
        request(0, 2, 6, 0, 0),
        b"and more".to_vec(),
    ];
    let (said, requests, end) = talk(&mut conversation, &bytes.concat());
    assert_eq!(said, b"");
    let commands = [
        Command::Read { offset: 4096, length: 512 },
        Command::Write { offset: 8192, data: b"hello".to_vec() },
        Command::WriteZeroes { offset: 0, length: SIZE as u32 },
        Command::Trim { offset: SIZE - 1, length: 1 },
        Command::Flush,
    ];
    let expected: Vec<_> =
        commands.into_iter().zip(1..).map(|(command, cookie)| Request { cookie, command }).collect();
    assert_eq!(requests, expected);
    assert_eq!(end, Ok(Step::Leave));
}

#[test]
fn what_cannot_be_done_is_answered_here() {
    let mut conversation = chosen(offer(), false);
    let mut refused = |bytes: &[u8], error: u32| {
        let (said, requests, end) = talk(&mut conversation, bytes);
        assert_eq!((said, requests), (simple(error, 9), vec![]), "{bytes:x?}");
        assert_eq!(end, Ok(Step::Receive(REQUEST_HEADER)));
    };
    refused(&request(0, 0, 9, SIZE - 1, 2), 22);
    refused(&request(0, 0, 9, u64::MAX, 2), 22);
    refused(&request(0, 0, 9, 0, LENGTH_MAX + 1), 75);
    refused(&[request(0, 1, 9, SIZE - 1, 2), vec![0; 2]].concat(), 28);
    refused(&request(0, 6, 9, SIZE, 1), 28);
    refused(&request(0, 4, 9, SIZE, 1), 28);
    refused(&request(0, 3, 9, 1, 0), 22);
    refused(&request(0, 7, 9, 0, 512), 22);
    refused(&request(1 << 4, 6, 9, 0, 512), 22);
    refused(&request(1 << 1, 0, 9, 0, 512), 22);

    let mut conversation = chosen(Offer { read_only: true, ..offer() }, false);
    for bytes in
        [[request(0, 1, 9, 0, 2), vec![0; 2]].concat(), request(0, 6, 9, 0, 2), request(0, 4, 9, 0, 2)]
    {
        let (said, requests, _) = talk(&mut conversation, &bytes);
        assert_eq!((said, requests), (simple(1, 9), vec![]));
    }
}

#[test]
fn answers_are_simple_or_structured_as_was_agreed() {
    let mut conversation = chosen(offer(), false);
    conversation.answer_data(7, 64, b"data");
    conversation.answer_done(8);
    conversation.answer_error(9, Errno::Io, "why");
    let expected = [simple(0, 7), b"data".to_vec(), simple(0, 8), simple(5, 9)].concat();
    assert_eq!(*conversation.output(), expected);

    let mut conversation = chosen(offer(), true);
    conversation.answer_data(6, 64, b"");
    conversation.answer_data(7, 64, b"data");
    conversation.answer_done(8);
    conversation.answer_error(9, Errno::Io, &format!("why{}", "é".repeat(TEXT_MAX)));
    let chunk = |kind: u16, cookie: u64, body: &[u8]| {
        let head = [&CHUNK.to_be_bytes()[..], &CHUNK_DONE.to_be_bytes(), &kind.to_be_bytes()].concat();
        [&head[..], &cookie.to_be_bytes(), &(body.len() as u32).to_be_bytes(), body].concat()
    };
    let text = format!("why{}", "é".repeat((TEXT_MAX - 3) / 2));
    let error = [&5_u32.to_be_bytes()[..], &(text.len() as u16).to_be_bytes(), text.as_bytes()].concat();
    let expected = [
        chunk(0, 6, b""),
        chunk(1, 7, &[&64_u64.to_be_bytes()[..], b"data"].concat()),
        simple(0, 8),
        chunk(0x8001, 9, &error),
    ];
    assert_eq!(*conversation.output(), expected.concat());
}

#[test]
fn nonsense_ends_the_conversation() {
    let violations = [
        (flags(0), Violation::Flags(0)),
        (flags(1 << 9 | 1), Violation::Flags(1 << 9 | 1)),
        ([flags(3), vec![b'x'; 16]].concat(), Violation::NoOption),
        (
            [flags(3), OPTION.to_be_bytes().to_vec(), vec![0, 0, 0, 7, 0xff, 0xff, 0xff, 0xff]].concat(),
            Violation::LongOption { option: 7, length: u32::MAX },
        ),
        ([flags(3), option(3, &[]).repeat(257)].concat(), Violation::ManyOptions),
        ([flags(3), option(1, b""), vec![0; 28]].concat(), Violation::NoRequest),
        (
            [flags(3), option(1, b""), request(0, 1, 0, 0, LENGTH_MAX + 1)].concat(),
            Violation::LongPayload(LENGTH_MAX + 1),
        ),
    ];
    for (bytes, violation) in violations {
        let mut conversation = Conversation::new(offer());
        let (.., end) = talk(&mut conversation, &bytes);
        assert_eq!(end, Err(violation));
        assert_eq!(conversation.step(), Ok(Step::Leave), "there is no way back");
    }
}

#[test]
fn a_payload_is_waited_for_by_its_length() {
    let mut conversation = chosen(offer(), false);
    let (.., end) = talk(&mut conversation, &request(0, 1, 9, 0, 1000));
    assert_eq!(end, Ok(Step::Receive(1000)));
    let (.., end) = talk(&mut conversation, &[1; 999]);
    assert_eq!(end, Ok(Step::Receive(1)));
    let (_, requests, _) = talk(&mut conversation, &[1]);
    let command = Command::Write { offset: 0, data: vec![1; 1000] };
    assert_eq!(requests, [Request { cookie: 9, command }]);
}

/// Bytes that are mostly what clients say.
fn sayings() -> impl Strategy<Value = Vec<u8>> {
    let small = || prop_oneof![0..20_u32, any::<u32>()];
    let said = prop_oneof![
        (0..12_u32, prop::collection::vec(any::<u8>(), 0..40))
            .prop_map(|(number, data)| option(number, &data)),
        Just(option(7, &go("scratch", &[3]))),
        Just(option(1, b"")),
        (0..4_u16, 0..8_u16, any::<u64>(), 0..2 * SIZE, small())
            .prop_map(|(w, k, c, o, l)| request(w, k, c, o, l)),
        (0..200_usize).prop_map(|n| [request(0, 1, 3, 64, n as u32), vec![7; n]].concat()),
        prop::collection::vec(any::<u8>(), 0..64),
    ];
    let first = prop_oneof![9 => Just(flags(3)), 1 => any::<u32>().prop_map(flags)];
    (first, prop::collection::vec(said, 0..20)).prop_map(|(first, said)| [first, said.concat()].concat())
}

/// Everything said, wanted and ended with, when each request fails at once.
fn outcome(pieces: &[&[u8]]) -> (Vec<u8>, Vec<Request>, Option<Violation>) {
    let mut conversation = Conversation::new(offer());
    let mut requests = Vec::new();
    let mut needed = 0_usize;
    for piece in pieces {
        conversation.receive(piece);
        needed = needed.saturating_sub(piece.len());
        loop {
            match conversation.step() {
                Ok(Step::Carry(request)) => {
                    conversation.answer_error(request.cookie, Errno::Io, "no");
                    requests.push(request);
                }
                Ok(Step::Receive(more)) => {
                    assert!(more > 0 && more <= REQUEST_HEADER + LENGTH_MAX as usize);
                    assert!(needed == 0 || more <= needed, "what is needed does not grow by what comes");
                    needed = more;
                    break;
                }
                Ok(Step::Leave) => return (conversation.output().clone(), requests, None),
                Err(violation) => return (conversation.output().clone(), requests, Some(violation)),
            }
        }
        assert!(conversation.input.len() - conversation.taken <= REQUEST_HEADER + LENGTH_MAX as usize);
    }
    (conversation.output().clone(), requests, None)
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
        for Request { command, .. } in outcome(&[&bytes]).1 {
            let (offset, length) = match command {
                Command::Read { offset, length } => {
                    prop_assert!(length <= LENGTH_MAX);
                    (offset, u64::from(length))
                }
                Command::Write { offset, data } => (offset, data.len() as u64),
                Command::WriteZeroes { offset, length } | Command::Trim { offset, length } => (offset, length.into()),
                Command::Flush => (0, 0),
            };
            prop_assert!(offset + length <= SIZE);
        }
    }
}
