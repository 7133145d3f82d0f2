//! Slots of clients, whose number is limited: a client that has sent no request yields its slot to a new client.

use std::cell::Cell;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cxloe_permits::{Permits, Policy, Unused};

/// Time after which a client that has chosen no export may lose its slot to a new client.
pub const UNDECIDED_MAX: Duration = Duration::from_secs(1);
/// Time after which a client that has chosen an export and sent no request may lose its slot to a new client. After its
/// first request, which every device in use has sent, a client keeps the slot as long as it is connected.
pub const UNUSED_MAX: Duration = Duration::from_secs(60);

/// Progress of a client, which decides how long the client keeps an unused slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Undecided,
    Chosen,
    Asked,
}

impl Stage {
    /// Priority with which a client that connected at `since` loses its slot to a new client; `None` if the client
    /// keeps the slot.
    fn unused(self, since: Instant) -> Option<Unused<Instant>> {
        let from = match self {
            Stage::Undecided => since + UNDECIDED_MAX,
            Stage::Chosen => since + UNUSED_MAX,
            Stage::Asked => return None,
        };
        Some(Unused { class: 0, rank: 0, from })
    }
}

/// The slot of one client, which becomes free when this is dropped.
#[derive(Debug)]
pub struct ClientSlot {
    number: u64,
    since: Instant,
    stage: Cell<Stage>,
    slots: ClientSlots,
}

impl ClientSlot {
    pub fn number(&self) -> u64 {
        self.number
    }

    fn rise(&self, to: Stage) {
        if self.stage.get() < to {
            self.stage.set(to);
            self.slots.all().set(self.number, to.unused(self.since));
        }
    }

    pub fn set_chosen(&self, chosen: bool) {
        if chosen {
            self.rise(Stage::Chosen);
        }
    }

    pub fn set_asked(&self) {
        self.rise(Stage::Asked);
    }

    /// Whether the slot was given to another client.
    pub fn is_displaced(&self) -> bool {
        !self.slots.all().has(self.number)
    }
}

impl Drop for ClientSlot {
    fn drop(&mut self) {
        self.slots.all().remove(self.number);
    }
}

/// The slots of all connected clients; clones share them.
#[derive(Clone, Debug)]
pub struct ClientSlots(Arc<Mutex<Permits<(), UnixStream, Instant>>>);

impl ClientSlots {
    pub fn new(max: usize) -> ClientSlots {
        ClientSlots(Arc::new(Mutex::new(Permits::new(Policy::at_most(max)))))
    }

    fn all(&self) -> MutexGuard<'_, Permits<(), UnixStream, Instant>> {
        // Every change of the slots is a single call, so the slots are consistent even if a thread panicked while it
        // held the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot for the client at `stream`. If no slot is free, disconnects the client that has left its
    /// slot unused for longest, and takes that slot. `None` if no slot has been unused for long enough.
    pub fn take(&self, stream: UnixStream, now: Instant) -> Option<ClientSlot> {
        let stage = Stage::Undecided;
        let (number, displaced) = self.all().take(None, stage.unused(now), stream, now).ok()?;
        if let Some((_, displaced)) = displaced {
            // Ignored: the client may have disconnected by itself.
            let _ = displaced.shutdown(Shutdown::Both);
        }
        Some(ClientSlot { number, since: now, stage: Cell::new(stage), slots: self.clone() })
    }

    /// Shuts down the sockets of all clients, in one direction or both.
    pub fn shut_down(&self, how: Shutdown) {
        for stream in self.all().ends() {
            let _ = stream.shutdown(how);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn who_asks_for_nothing_makes_room_and_nobody_else_does() {
        let (slots, start) = (ClientSlots::new(4), Instant::now());
        let (mut clients, mut places) = (Vec::new(), Vec::new());
        let mut connect = |now| {
            let (server, client) = UnixStream::pair().unwrap();
            client.set_nonblocking(true).unwrap();
            clients.push(client);
            slots.take(server, now)
        };
        places.extend((0..4).map(|_| connect(start).unwrap()));
        assert!(connect(start).is_none(), "everybody may take a moment");
        places[1].set_chosen(true);
        places[2].set_chosen(true);
        places[2].set_asked();
        places[3].set_asked();
        let fifth = connect(start + UNDECIDED_MAX).unwrap();
        fifth.set_asked();
        assert!(places[0].is_displaced());
        places[0].set_asked();
        assert!(places[0].is_displaced());
        assert!(connect(start + UNDECIDED_MAX).is_none(), "an export was chosen");
        let sixth = connect(start + UNUSED_MAX).unwrap();
        sixth.set_asked();
        assert!(places[1].is_displaced());
        assert!(connect(start + 1000 * UNUSED_MAX).is_none(), "who uses it keeps it");
        assert_eq!(clients[0].read(&mut [0]).unwrap(), 0);
        assert_eq!(clients[1].read(&mut [0]).unwrap(), 0);
        assert!(clients[2].read(&mut [0]).is_err() && clients[3].read(&mut [0]).is_err());
        drop((places, fifth, sixth));
        assert_eq!(slots.all().count(), 0);
    }
}
