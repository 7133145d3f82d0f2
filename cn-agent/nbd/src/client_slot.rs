//! The places of clients, which are few: who has asked for nothing makes room for who comes.

use std::collections::HashMap;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a client that has chosen no export keeps its place when others want it.
pub const UNDECIDED_MAX: Duration = Duration::from_secs(1);
/// How long a client that has chosen one and asked for nothing keeps its place when others want it. Who has once asked for
/// something, as every device in use has, keeps it as long as it likes.
pub const UNUSED_MAX: Duration = Duration::from_secs(60);

const UNDECIDED: u8 = 0;
const CHOSEN: u8 = 1;
const ASKED: u8 = 2;
const DISPLACED: u8 = 3;

/// A client's place.
#[derive(Debug)]
pub struct ClientSlot {
    stage: AtomicU8,
    since: Instant,
}

impl ClientSlot {
    fn new(since: Instant) -> ClientSlot {
        ClientSlot { stage: AtomicU8::new(UNDECIDED), since }
    }

    fn rise(&self, from: u8, to: u8) {
        if self.stage.load(Ordering::Relaxed) == from {
            // Who is displaced stays so.
            let _ = self.stage.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Its client has chosen an export, or not.
    pub fn set_chosen(&self, chosen: bool) {
        if chosen {
            self.rise(UNDECIDED, CHOSEN);
        }
    }

    /// Its client has asked for something.
    pub fn set_asked(&self) {
        self.rise(UNDECIDED, ASKED);
        self.rise(CHOSEN, ASKED);
    }

    /// Whether it was taken from its client.
    pub fn is_displaced(&self) -> bool {
        self.stage.load(Ordering::Relaxed) == DISPLACED
    }

    /// Since when others may have it; `None` if they never may.
    fn free_from(&self) -> Option<Instant> {
        match self.stage.load(Ordering::Relaxed) {
            UNDECIDED => Some(self.since + UNDECIDED_MAX),
            CHOSEN => Some(self.since + UNUSED_MAX),
            _ => None,
        }
    }

    /// Takes it from its client, unless that has just asked for something.
    fn displace(&self) -> bool {
        let stage = self.stage.load(Ordering::Relaxed);
        stage < ASKED
            && self.stage.compare_exchange(stage, DISPLACED, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// The clients being served, by the order in which they came.
#[derive(Debug, Default)]
pub struct ClientSlots(Mutex<HashMap<u64, (UnixStream, Arc<ClientSlot>)>>);

impl ClientSlots {
    fn all(&self) -> MutexGuard<'_, HashMap<u64, (UnixStream, Arc<ClientSlot>)>> {
        // Each change of it is one call, so that a panic elsewhere leaves it whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot for this client.
    pub fn take(&self, number: u64, stream: UnixStream) -> Arc<ClientSlot> {
        let slot = Arc::new(ClientSlot::new(Instant::now()));
        self.all().insert(number, (stream, Arc::clone(&slot)));
        slot
    }

    /// The client has left.
    pub fn leave(&self, number: u64) {
        self.all().remove(&number);
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.all().len()
    }

    /// Shuts all clients' sockets down, in part or wholly.
    pub fn shut_down(&self, how: Shutdown) {
        for (stream, _) in self.all().values() {
            let _ = stream.shutdown(how);
        }
    }

    /// Hangs up on the client that has kept a place longest without asking for anything, if that is too long; whether
    /// there is one.
    pub fn displace(&self, now: Instant) -> bool {
        let all = self.all();
        let free = all.values().filter_map(|(stream, slot)| Some((slot.free_from()?, stream, slot)));
        let longest = free.filter(|(from, ..)| *from <= now).min_by_key(|(from, ..)| *from);
        let displaced = longest.filter(|(.., slot)| slot.displace());
        displaced.is_some_and(|(_, stream, _)| stream.shutdown(Shutdown::Both).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn who_asks_for_nothing_makes_room_and_nobody_else_does() {
        let slots = ClientSlots::default();
        let (mut clients, mut places) = (Vec::new(), Vec::new());
        for number in 0..4 {
            let (server, client) = UnixStream::pair().unwrap();
            client.set_nonblocking(true).unwrap();
            places.push(slots.take(number, server));
            clients.push(client);
        }
        let start = Instant::now();
        assert!(!slots.displace(places[0].since), "everybody may take a moment");
        places[1].set_chosen(true);
        places[2].set_chosen(true);
        places[2].set_asked();
        places[3].set_asked();
        assert!(slots.displace(start + UNDECIDED_MAX) && places[0].is_displaced());
        assert_eq!(clients[0].read(&mut [0]).unwrap(), 0);
        places[0].set_asked();
        assert!(places[0].is_displaced());
        assert!(!slots.displace(start + UNDECIDED_MAX), "an export was chosen");
        assert!(slots.displace(start + UNUSED_MAX) && places[1].is_displaced());
        assert!(!slots.displace(start + 1000 * UNUSED_MAX), "who uses it keeps it");
        assert!(clients[2].read(&mut [0]).is_err() && clients[3].read(&mut [0]).is_err());
        (0..4).for_each(|number| slots.leave(number));
        assert_eq!(slots.count(), 0);
    }
}
