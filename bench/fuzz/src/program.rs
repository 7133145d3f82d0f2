//! What programs say to the agent on its socket.

use cxloe_client::message::{self, Request};

/// The longest message that is read here, in bytes.
const LIMIT: usize = 64 << 10;

/// Any bytes as a message: it is understood, and then can be written and understood again, or refused with a reason; no
/// announced length makes the reader ask for more than the limit.
pub fn agent_message(data: &[u8]) {
    if let Err(error) = message::read::<Request>(&mut &data[..], LIMIT) {
        assert!(!error.to_string().is_empty());
    }
    let Ok(request) = message::decode::<Request>(data) else { return };
    let again = message::encode(&request);
    let length = message::announced(again[..4].try_into().expect("a prefix"), usize::MAX).expect("its own");
    assert_eq!(length, again.len() - 4);
    assert!(message::decode::<Request>(&again[4..]).is_ok());
}
