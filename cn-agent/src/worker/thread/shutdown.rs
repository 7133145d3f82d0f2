//! The worker's end, in order: dirty lines are written back, sessions are ended, and the clients' ports are closed.

use std::time::Duration;

use cxloe_cn_core::node::Users;
use cxloe_link::LinkError;
use cxloe_wire::time::Time;

use super::Worker;

/// Longest wait for memory nodes to confirm the end of their sessions.
const CLOSE_MAX: Duration = Duration::from_millis(200);

impl Worker {
    /// Writes back all dirty lines, as far as memory nodes answer within the limit of a session. Clients are not served
    /// during that time, so that the write-back ends.
    fn write_back(&mut self) -> Result<(), LinkError> {
        let until = self.clock.now() + self.users.station.timing.dead_after;
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

    /// Runs a round, and then waits up to 1 ms for frames. Clients can submit nothing any more.
    fn pump(&mut self, now: Time) -> Result<(), LinkError> {
        self.round(now)?;
        self.link.wait(Duration::from_millis(1))
    }

    /// Ends in order: writes back dirty lines and ends the sessions; the clients' ports close when this value is
    /// dropped.
    pub(super) fn finish(&mut self) -> Result<(), LinkError> {
        self.users.ends = true;
        self.write_back()?;
        // Mapped pages stay in the memory of programs until another agent takes over. Their state stays in memory that
        // the programs share with the agent.
        self.users.spaces.notify_shutdown();
        if self.engine.stranded() == 0 && self.engine.in_flight() == 0 {
            self.results.settle();
        }
        self.engine.close(self.clock.now(), self.users.sink());
        let until = self.clock.now() + CLOSE_MAX;
        while !self.engine.is_closed() && self.clock.now() < until {
            self.pump(self.clock.now())?;
        }
        self.take_events();
        self.users.clients.wake();
        Ok(())
    }
}
