//! Fuzzing of the messages that programs send to the agent's socket.

use cxloe_client::message::{self, AgentRequest};

/// Maximum length of a message that the reader accepts, in bytes.
const LIMIT: usize = 64 << 10;

/// Checks arbitrary bytes as a message. The message is refused with a reason, or it is parsed and then
/// survives encoding and parsing again. No announced length makes the reader request more than the limit.
pub fn agent_message(data: &[u8]) {
    if let Err(error) = message::read::<AgentRequest>(&mut &data[..], LIMIT) {
        assert!(!error.to_string().is_empty());
    }
    let Ok(request) = message::decode::<AgentRequest>(data) else { return };
    let again = message::encode(&request);
    let length = message::announced(again[..4].try_into().expect("a prefix"), usize::MAX).expect("its own");
    assert_eq!(length, again.len() - 4);
    assert!(message::decode::<AgentRequest>(&again[4..]).is_ok());
}
