//! The worker's end, in order: modified lines go back, sessions are ended, and ports with the worker.

use std::time::Duration;

use cxloe_link::LinkError;
use cxloe_wire::time::Time;

use super::{BATCH, Worker};

/// How long memory nodes have to confirm the end of their sessions.
const CLOSE_MAX: Duration = Duration::from_millis(200);

impl Worker {
    /// Writes back everything modified, as far as memory nodes answer within the session's limit. Clients are
    /// not served meanwhile, so that it ends.
    fn write_back(&mut self) -> Result<(), LinkError> {
        let until = self.clock.now() + self.options.station.timing.dead_after;
        loop {
            let now = self.clock.now();
            let flushed = self.engine.flush(now, self.link.transmit());
            match flushed {
                Ok(true) => return Ok(()),
                Ok(false) if now < until => {}
                Ok(false) => {
                    tracing::error!(
                        "not everything modified could be written back within the session's limit"
                    );
                    return Ok(());
                }
                Err(error) => {
                    tracing::error!(%error, stranded = self.engine.stranded(), "modified lines could not be written back");
                    return Ok(());
                }
            }
            self.pump(now)?;
        }
    }

    /// A round without submissions.
    fn pump(&mut self, now: Time) -> Result<(), LinkError> {
        let (engine, parties) = (&mut self.engine, &mut self.parties);
        self.link.flush()?;
        self.link.receive(BATCH, &mut |frame, tx| engine.handle(frame, now, tx, parties))?;
        self.engine.poll(now, self.link.transmit(), &mut self.parties);
        self.link.flush()?;
        self.parties.clients.wake();
        self.link.wait(Duration::from_millis(1))
    }

    /// Ends in order: modified lines, sessions, and with this value the clients' ports.
    pub(super) fn finish(&mut self) -> Result<(), LinkError> {
        self.write_back()?;
        // What programs have mapped stays in their memory, and in their shared states, until a successor comes.
        self.parties.spaces.bye();
        self.engine.close(self.clock.now(), &mut self.parties);
        let until = self.clock.now() + CLOSE_MAX;
        while !self.engine.is_closed() && self.clock.now() < until {
            self.pump(self.clock.now())?;
        }
        while let Some(event) = self.engine.poll_event() {
            self.note(&event);
        }
        self.parties.clients.wake();
        Ok(())
    }
}
