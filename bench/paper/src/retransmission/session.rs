//! Selective retransmission: both ends of a session of the protocol, with the code of the daemons.

use cxloe_wire::Transmit;
use cxloe_wire::frame::ETHERTYPE_DEFAULT;
use cxloe_wire::machine::StateMachine;
use cxloe_wire::session::{
    Completions, Identity, Rejected, Requester, RequesterConfig, Responder, ResponderConfig, Timing,
};
use cxloe_wire::time::Time;

use super::{CN, Counts, LINES, MN, Pages, STREAMS, Target, Transport};

pub struct Session {
    requester: Requester,
    responder: Responder,
}

impl Session {
    /// Makes both ends of a session and begins the handshake at the compute node.
    pub fn new(max_frame: usize, timing: Timing, seed: u64, now: Time) -> Session {
        let mut requester = Requester::new(RequesterConfig {
            identity: Identity { own: CN, peer: MN, ethertype: ETHERTYPE_DEFAULT },
            max_frame,
            streams: STREAMS,
            instance: 1,
            key: None,
            keys: None,
            timing,
            seed: seed.into(),
        });
        requester.connect(now);
        Session { requester, responder: Responder::new(ResponderConfig::new(MN, max_frame, 1, seed)) }
    }
}

impl Transport for Session {
    fn is_open(&self) -> bool {
        self.requester.is_open()
    }

    fn write(
        &mut self,
        Target { stream, addr, operation }: Target,
        data: &[u8],
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<(), Rejected> {
        self.requester.burst_write(stream, addr, (1 << LINES) - 1, data, operation, now, tx)
    }

    fn read(
        &mut self,
        Target { stream, addr, operation }: Target,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<(), Rejected> {
        self.requester.burst_read(stream, addr, LINES as u8, operation, now, tx)
    }

    fn serve(&mut self, frame: &mut [u8], now: Time, pages: &mut Pages, tx: &mut dyn Transmit) {
        self.responder.handle(frame, now, pages, tx);
    }

    fn finish_batch(&mut self, now: Time, pages: &mut Pages, tx: &mut dyn Transmit) {
        self.responder.poll(now, pages, tx);
    }

    fn handle(&mut self, frame: &mut [u8], now: Time, tx: &mut dyn Transmit, out: &mut dyn Completions) {
        self.requester.handle(frame, now, tx, out);
    }

    fn deadline(&self) -> Time {
        self.requester.deadline().at
    }

    fn poll(&mut self, now: Time, tx: &mut dyn Transmit, out: &mut dyn Completions) {
        self.requester.poll(now, tx, out);
    }

    fn counts(&self) -> Counts {
        let (requester, responder) = (self.requester.counters(), self.responder.totals());
        Counts {
            requests_again: requester.retransmitted,
            answers_again: responder.duplicates,
            sacks: responder.sacks + responder.sack_acks,
            probes: requester.probes,
            timeouts: requester.timeouts,
        }
    }
}
