//! Report of a worker on request: sessions and counters, which `cn-agent sessions` and `cn-agent counters`
//! print.

use std::time::Duration;

use cxloe_client::defaults::this_cpu;
use cxloe_client::message::{Counters, Session, SessionPace};
use nix::time::{ClockId, clock_gettime};

use super::Worker;
use crate::worker::order::WorkerReport;

/// CPU time of the calling thread in nanoseconds; 0 if the kernel does not report it.
fn cpu_time_ns() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    time.map_or(0, |time| Duration::from(time).as_nanos() as u64)
}

impl Worker {
    pub(super) fn report(&mut self) -> WorkerReport {
        let paces = self.engine.paces(self.clock.now());
        let sessions = self.engine.sessions().into_iter().zip(paces).map(|(status, pace)| {
            let refusal = self.refusals.of(&status.peer).map(str::to_owned);
            Session { status, refusal, pace: pace.map(SessionPace::from), worker: None }
        });
        WorkerReport {
            cpu: this_cpu(),
            cpu_time_ns: cpu_time_ns(),
            sessions: sessions.collect(),
            counters: Counters {
                engine: self.engine.counters(),
                link: self.link.counters(),
                backend: self.link.info().backend.to_owned(),
                link_detail: self.link.info().detail.clone(),
                sleeps_by: self.sleeper.sleep_call(),
                waits_for: self.users.deadline(&self.engine).reason.to_owned(),
                link_down: self.health.down(),
                link_reopened: self.health.reopened(),
                clients: self.users.clients.count(),
                in_flight: self.engine.in_flight(),
                stranded: self.engine.stranded(),
                broken_clients: self.users.clients.broken(),
                paging: self.users.spaces.counters(),
                fault_times: self.users.spaces.fault_times().clone(),
            },
        }
    }
}
