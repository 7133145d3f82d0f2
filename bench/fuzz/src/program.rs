//! What programs say to the agent: messages on its socket, and submissions in a ring of shared memory.

use cxloe_client::memory::SharedMemory;
use cxloe_client::message::{self, Request};
use cxloe_client::ring::{AgentEnd, Completion, ENTRIES, PORT_BYTES};
use cxloe_client::status::Status;

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

/// A ring whose every word the client may have written: the agent's end reads what it takes without leaving the ring, and
/// completes no more than there are places, or says that the ring is broken.
pub fn client_ring(data: &[u8]) {
    let Ok(memory) = SharedMemory::create(PORT_BYTES) else { return };
    let mut agent = AgentEnd::new(memory);
    let mut under_way = 0;
    // Each eleven bytes are a word that the client writes: its place, its value, and how many submissions are taken then,
    // and how many completed.
    for write in data.chunks_exact(11) {
        let place = usize::from(u16::from_le_bytes([write[0], write[1]])) % (PORT_BYTES / 8);
        let value = u64::from_le_bytes(write[2..10].try_into().expect("eight bytes"));
        agent.memory().store(place, value, std::sync::atomic::Ordering::Relaxed);
        let _ = (agent.client_cpu(), agent.wake_wanted());
        for _ in 0..write[10] % 8 {
            let Some(submission) = agent.front() else { break };
            match agent.has_room(under_way) {
                Err(broken) => return assert!(!broken.to_string().is_empty()),
                Ok(false) => break,
                Ok(true) => {}
            }
            let _ = (*agent.front_line(), format!("{submission:?}"));
            agent.release();
            under_way += 1;
            assert!(under_way <= ENTRIES);
        }
        for _ in 0..usize::from(write[10] / 8 % 8).min(under_way) {
            agent.complete(Completion { tag: 1, status: Status::Done }, Some(&[1; 64]));
            under_way -= 1;
        }
    }
}
