//! Fuzzing of the server's end of an NBD connection (`cn-agent nbd`).

use cxloe_nbd::conversation::{Conversation, ConversationStep, ExportCommand, LENGTH_MAX, Offer};
use cxloe_nbd::output::Output;

/// Size of the export in bytes.
const SIZE: u64 = 1 << 20;

/// Checks arbitrary bytes from a client: the state machine always progresses, accesses nothing beyond the
/// export, and buffers no more input than it has received. The first byte of `data` selects the length of the
/// pieces in which the remaining bytes arrive, and whether writes are refused.
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
                Ok(ConversationStep::Leave) => return,
                Ok(ConversationStep::Payload(left)) => {
                    assert!(left <= LENGTH_MAX);
                    if conversation.payload(4096).is_empty() {
                        break;
                    }
                }
                Ok(ConversationStep::Carry(request)) => within(&request.command),
                Ok(ConversationStep::Receive(more)) => {
                    assert!(more > 0);
                    break;
                }
            }
        }
    }
}

fn within(command: &ExportCommand) {
    let (offset, length) = match *command {
        ExportCommand::Read { offset, length, .. } | ExportCommand::Write { offset, length } => {
            assert!(length <= LENGTH_MAX);
            (offset, length)
        }
        ExportCommand::WriteZeroes { offset, length }
        | ExportCommand::Trim { offset, length }
        | ExportCommand::Cache { offset, length } => (offset, length),
        ExportCommand::BlockStatus { length } => {
            assert!(length > 0);
            (0, length)
        }
        ExportCommand::Flush => (0, 0),
    };
    assert!(offset.checked_add(u64::from(length)).is_some_and(|end| end <= SIZE));
}
