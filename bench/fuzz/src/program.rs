//! Messages from programs to the agent on its socket.

use cxloe_client::message::{self, AgentRequest};

/// Largest message that the reader accepts, in bytes.
const LIMIT: usize = 64 << 10;

/// Checks any bytes as a message: it is parsed, and then survives encoding and parsing, or is refused with a reason; no
/// announced length makes the reader request more than the limit.
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
