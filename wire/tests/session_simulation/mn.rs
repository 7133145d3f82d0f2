//! A memory node: a responder and memory that survives its restarts, or does not.

use std::collections::HashMap;

use cxloe_link::Link;
use cxloe_link::sim::SimLink;
use cxloe_wire::frame::{FaultStatus, LINE_SIZE, Mac};
use cxloe_wire::session::{Memory, Responder, ResponderConfig, ResponderCounters};
use cxloe_wire::time::Time;

/// Lines by CN and address; what was never written is 0.
#[derive(Default)]
pub struct Lines(HashMap<(u64, u64), [u8; LINE_SIZE]>);

impl Memory for Lines {
    fn read(&mut self, cn: u64, addr: u64, out: &mut [u8]) -> Result<(), FaultStatus> {
        for (addr, line) in (addr..).step_by(LINE_SIZE).zip(out.chunks_exact_mut(LINE_SIZE)) {
            line.copy_from_slice(self.0.get(&(cn, addr)).unwrap_or(&[0; LINE_SIZE]));
        }
        Ok(())
    }

    fn write(&mut self, cn: u64, addr: u64, mask: u64, data: &[u8]) -> Result<(), FaultStatus> {
        let places = (0..64).filter(|i| mask & 1 << i != 0);
        for (i, line) in places.zip(data.chunks_exact(LINE_SIZE)) {
            self.0.insert((cn, addr + i * LINE_SIZE as u64), line.try_into().expect("a line"));
        }
        Ok(())
    }

    fn admits(&mut self, _cn: u64) -> bool {
        true
    }
}

pub struct Mn {
    pub mac: Mac,
    pub link: SimLink,
    pub config: ResponderConfig,
    pub responder: Responder,
    memory: Lines,
    polled: Time,
    /// What earlier lives counted.
    before: ResponderCounters,
}

impl Mn {
    pub fn new(link: SimLink, config: ResponderConfig) -> Mn {
        Mn {
            mac: config.own,
            link,
            responder: Responder::new(config.clone()),
            config,
            memory: Lines::default(),
            polled: Time::ZERO,
            before: ResponderCounters::default(),
        }
    }

    /// Comes back as a new process, with its memory or without.
    pub fn restart(&mut self, keeps_memory: bool) {
        self.config.seed += 1;
        if !keeps_memory {
            self.config.incarnation += 1;
            self.memory = Lines::default();
        }
        self.before = self.totals();
        self.responder = Responder::new(self.config.clone());
    }

    pub fn totals(&self) -> ResponderCounters {
        self.before.plus(&self.responder.totals())
    }

    /// Takes what has arrived; whether there was anything.
    pub fn work(&mut self, now: Time, batch: usize) -> bool {
        let Mn { link, responder, memory, .. } = self;
        let received = link
            .receive(batch, &mut |frame, tx| responder.handle(frame, now, memory, tx))
            .expect("a simulated link");
        responder.finish_batch(link.transmit());
        if now.since(self.polled).as_millis() >= 100 {
            self.polled = now;
            responder.poll(now);
        }
        link.flush().expect("a simulated link");
        received > 0
    }
}
