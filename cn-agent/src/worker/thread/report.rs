//! What the worker says of itself when it is asked.

use cxloe_client::message::{Counters, Pace, Session};

use super::Worker;
use crate::worker::order::Report;

impl Worker {
    pub(super) fn report(&mut self) -> Report {
        let paces = self.engine.paces(self.clock.now());
        let sessions = self.engine.sessions().into_iter().zip(paces).map(|(status, pace)| {
            let refusal = self.refusals.get(&status.peer).cloned();
            Session { status, refusal, pace: pace.map(Pace::from) }
        });
        Report {
            sessions: sessions.collect(),
            counters: Counters {
                engine: self.engine.counters(),
                link: self.link.counters(),
                backend: self.link.info().backend.to_owned(),
                link_detail: self.link.info().detail.clone(),
                sleeps_by: self.sleeper.way(),
                link_down: self.options.health.down(),
                link_reopened: self.options.health.reopened(),
                clients: self.parties.clients.count(),
                in_flight: self.engine.in_flight(),
                stranded: self.engine.stranded(),
                broken_clients: self.parties.clients.broken(),
                paging: self.parties.spaces.counters(),
                fault_times: self.parties.spaces.fault_times().clone(),
            },
        }
    }
}
