//! Invalid frames that a neighbour sends, by kind of attack.

use super::work::{Numbers, Work};
use super::*;

/// A frame that belongs to no session, with a valid trailer.
pub fn outside(from: Mac, to: Mac, direction: Direction, message: &Message<'_>) -> Vec<u8> {
    let header = Header {
        dst: to,
        src: from,
        ethertype: ETHERTYPE_DEFAULT,
        command: 0,
        seq: 0,
        axi: Axi { stream: 0, tag: 0 },
        addr: 0,
    };
    let body = message.body_len();
    let mut frame = vec![0; (body + Seal::PLAIN_LEN).max(MIN_FRAME)];
    message.emit(&header, &mut frame);
    Seal::OUTSIDE.seal(direction, Space::Control, &mut frame, body, 0);
    frame
}

pub fn hello(from: Mac, instance: u64, nonce: u64) -> Vec<u8> {
    let hello = Hello {
        version: PROTOCOL_VERSION,
        features: 0,
        nonce,
        instance,
        streams: 16,
        max_frame: 1514,
        integrity: Integrity::Plain,
        shard: 0,
        owner: Mac::default(),
    };
    outside(from, MN, Direction::ToMn, &Message::Hello(hello))
}

/// A kind of attack: its name, and a function that makes the frame with the number in its argument.
pub type Attack<'a> = (&'static str, Box<dyn FnMut(u64) -> Vec<u8> + 'a>);

/// Attacks that apply to both ends, with destination `to` and source `from`, derived from genuine frames.
pub fn attacks<'a>(to: Mac, from: Mac, good: &'a [Vec<u8>]) -> Vec<Attack<'a>> {
    let start = move |frame: &mut Vec<u8>| {
        frame[field::DST].copy_from_slice(&to.0);
        frame[field::SRC].copy_from_slice(&from.0);
        frame[field::ETHERTYPE].copy_from_slice(&ETHERTYPE_DEFAULT.to_be_bytes());
    };
    let [mut a, mut b, mut c, mut d, mut e, mut f] = [1, 2, 3, 4, 5, 6].map(Numbers);
    let command = |n: u64| Command::ALL[n as usize % Command::ALL.len()] as u8;
    vec![
        (
            "cut-off frames",
            Box::new(move |_| {
                let whole = &good[a.below(good.len())];
                whole[..field::COMMAND + a.below(whole.len() - field::COMMAND)].to_vec()
            }),
        ),
        (
            "oversized frames",
            Box::new(move |n| {
                let mut frame = good[b.below(good.len())].clone();
                frame.resize(1514 - b.below(200), n as u8);
                frame[field::COMMAND] = command(n);
                frame
            }),
        ),
        (
            "random bytes",
            Box::new(move |n| {
                let len = field::COMMAND + c.below(1500);
                let mut frame = c.bytes(len);
                start(&mut frame);
                if let (Some(code), true) = (frame.get_mut(field::COMMAND), n % 2 == 0) {
                    *code = command(n / 2);
                }
                frame
            }),
        ),
        (
            "damaged copies of good frames",
            Box::new(move |_| {
                let mut frame = good[d.below(good.len())].clone();
                // Flips one bit of the body; the addresses and the padding stay unchanged.
                let end = cxloe_wire::frame::body_len(&frame).unwrap_or(frame.len()) + Seal::PLAIN_LEN;
                let bit = field::COMMAND * 8 + d.below((end.min(frame.len()) - field::COMMAND) * 8);
                frame[bit / 8] ^= 1 << (bit % 8);
                frame
            }),
        ),
        ("replays of good frames", Box::new(move |_| good[e.below(good.len())].clone())),
        (
            "good frames of another station",
            Box::new(move |n| {
                let mut frame = good[f.below(good.len())].clone();
                frame[field::SRC].copy_from_slice(&Mac([2, 0xF0, 0, 0, (n >> 8) as u8, n as u8]).0);
                frame
            }),
        ),
        (
            "pauses",
            Box::new(move |n| {
                let mut frame = PfcVector { enabled: 0xFF, quanta: [0xFFFF; 8] }.frame(from).to_vec();
                if n % 2 == 0 {
                    frame[field::DST].copy_from_slice(&to.0);
                }
                frame
            }),
        ),
    ]
}

/// Attacks with frames that only a memory node receives: Hellos and requests.
pub fn attacks_on_memory_node() -> Vec<Attack<'static>> {
    let mut numbers = Numbers(11);
    let mut forged = Numbers(12);
    vec![
        (
            "Hellos of invented stations",
            Box::new(move |n| {
                let invented = Mac([2, 0xF1, 0, (n >> 16) as u8, (n >> 8) as u8, n as u8]);
                hello(invented, numbers.next(), numbers.next())
            }),
        ),
        ("Hellos in the compute node's name", Box::new(|n| hello(CN, 0xBAD, n))),
        (
            "Start, Bye and requests with a guessed session",
            Box::new(move |n| {
                let messages = [Message::Start, Message::Bye, Message::Ping, Message::ReadReq];
                let message = messages[n as usize % messages.len()];
                in_guessed_session(CN, MN, Direction::ToMn, &message, n as u16, forged.next())
            }),
        ),
    ]
}

pub fn in_guessed_session(
    from: Mac,
    to: Mac,
    direction: Direction,
    message: &Message<'_>,
    seq: u16,
    session: u64,
) -> Vec<u8> {
    let mut frame = outside(from, to, direction, message);
    frame[field::SEQ].copy_from_slice(&seq.to_be_bytes());
    let space = message.command().space(0).unwrap_or(Space::Control);
    Seal::Plain { session }.seal(direction, space, &mut frame, message.body_len(), seq.into());
    frame
}

/// Attacks with frames that only a compute node receives: HelloAcks and answers.
pub fn attacks_on_compute_node() -> Vec<Attack<'static>> {
    let mut forged = Numbers(13);
    let line = &[0xEE; 64];
    vec![
        (
            "HelloAcks nobody asked for",
            Box::new(|n| {
                let ack = HelloAck {
                    hello_nonce: n,
                    version_min: PROTOCOL_VERSION,
                    version_max: PROTOCOL_VERSION,
                    features: 0,
                    session: n | 1,
                    nonce: n,
                    window: 256,
                    streams: 4,
                    max_frame: 1514,
                    incarnation: 0xBAD,
                    integrity: Integrity::Plain,
                    status: if n % 2 == 0 { HelloStatus::Ok } else { HelloStatus::NotAllowed },
                };
                outside(MN, CN, Direction::ToCn, &Message::HelloAck(ack))
            }),
        ),
        (
            "answers with a guessed session",
            Box::new(move |n| {
                let messages = [
                    Message::ReadResp { data: line },
                    Message::WriteResp,
                    Message::Fault { status: FaultStatus::Poisoned },
                    Message::Bye,
                    Message::SackNak { last_in_order: n as u16 },
                    Message::StartAck,
                ];
                let message = messages[n as usize % messages.len()];
                in_guessed_session(MN, CN, Direction::ToCn, &message, n as u16, forged.next())
            }),
        ),
    ]
}

/// Captures genuine frames at `tap` while the compute node works.
pub fn capture(tap: &RawSocket, work: &Work) -> Result<Vec<Vec<u8>>, Failed> {
    let mut good = VecDeque::new();
    tap.drain()?;
    eventually("good frames pass by", || {
        for _ in 0..50 {
            let Ok(Some(seen)) = tap.receive(Duration::from_millis(20)) else { continue };
            let frame = Outer::inner(&seen.bytes).unwrap_or(&seen.bytes);
            if frame.len() >= MIN_FRAME && frame[field::ETHERTYPE] == ETHERTYPE_DEFAULT.to_be_bytes() {
                good.push_back(frame.to_vec());
            }
        }
        good.len() >= 400 || work.thread.is_finished()
    })?;
    ensure(good.len() >= 400, "the compute node has stopped")?;
    Ok(good.into())
}

/// Sends the frames of each attack from `from` while the compute node works.
pub fn attack(from: &RawSocket, attacks: Vec<Attack<'_>>, work: &Work) -> Outcome {
    for (what, mut make) in attacks {
        for number in 0..FLOOD {
            let frame = make(number);
            from.send(&frame).map_err(|e| format!("{what}: sending {} bytes: {e}", frame.len()))?;
        }
        work.goes_on(what)?;
    }
    Ok(())
}
