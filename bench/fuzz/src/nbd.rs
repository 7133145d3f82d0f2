//! A client's side of an NBD connection.

use cxloe_nbd::conversation::{Command, Conversation, LENGTH_MAX, Offer, Step};
use cxloe_nbd::output::Output;

/// Bytes of the export.
const SIZE: u64 = 1 << 20;

/// Any bytes: the conversation always comes to a step, asks for nothing beyond the export, and keeps no more input than it
/// was given. The first byte says in how long pieces the others arrive, and whether writes are refused.
pub fn nbd(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let offer = Offer { name: "scratch".into(), size: Ok(SIZE), read_only: first & 0x80 != 0 };
    let mut conversation = Conversation::new(offer);
    let mut output = Output::default();
    for piece in rest.chunks(usize::from(first & 0x7f) + 1) {
        conversation.receive(piece);
        loop {
            match conversation.step(&mut output) {
                Err(violation) => {
                    assert!(!violation.to_string().is_empty());
                    return;
                }
                Ok(Step::Leave) => return,
                Ok(Step::Payload(left)) => {
                    assert!(left <= LENGTH_MAX);
                    if conversation.payload(4096).is_empty() {
                        break;
                    }
                }
                Ok(Step::Carry(request)) => within(&request.command),
                Ok(Step::Receive(more)) => {
                    assert!(more > 0);
                    break;
                }
            }
        }
    }
}

fn within(command: &Command) {
    let (offset, length) = match *command {
        Command::Read { offset, length, .. } => (offset, length),
        Command::Write { offset, length, .. } => (offset, length),
        _ => return,
    };
    assert!(length <= LENGTH_MAX && offset.checked_add(u64::from(length)).is_some_and(|end| end <= SIZE));
}
