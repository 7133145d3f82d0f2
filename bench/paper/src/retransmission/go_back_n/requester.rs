//! Compute node's end of Go-Back-N: numbers requests, keeps them until they are answered, and after a loss
//! sends all of them again from the first unanswered one on.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use cxloe_wire::Transmit;
use cxloe_wire::frame::{Direction, FrameView, Message};
use cxloe_wire::session::{Completions, OpError, Rejected, RoundTrip, Timing, infer};
use cxloe_wire::time::Time;

use super::super::{LINES, Target};
use super::{FIRST, open, send};

/// Maximum number of consecutive round trips left out of the estimate because of a probe, as in the
/// protocol's sessions.
const UNCOUNTED_MAX: u8 = 8;

struct Entry {
    target: Target,
    /// Data of a write; `None` for a read.
    data: Option<Box<[u8]>>,
    last_sent: Time,
    sends: u32,
}

impl Entry {
    fn send(&self, seq: u64, tx: &mut dyn Transmit) -> bool {
        let message = match &self.data {
            Some(data) => Message::BurstWriteReq { mask: (1 << LINES) - 1, data },
            None => Message::BurstReadReq { lines: LINES as u8 },
        };
        send(tx, Direction::ToMn, self.target.stream, seq, self.target.addr, &message)
    }
}

/// Requests of one stream, with the timers of a session's stream.
struct Stream {
    /// Sequence number of the first unanswered request, which is the first of `entries`.
    oldest: u64,
    entries: VecDeque<Entry>,
    /// Sequence numbers of the requests that have to be sent again.
    resend: Range<u64>,
    /// Value of `oldest` when an early answer last made the stream go back (send all requests from the gap on again).
    /// One gap makes the stream go back only once.
    went_back_at: u64,
    /// Time of the last progress, or of the first request after a time without requests.
    since: Time,
    /// Time of the next action if no answer arrives: a probe first, then time-outs.
    silent_at: Time,
    probed: bool,
    probed_at: Time,
    /// Number of consecutive round trips left out of the estimate because of a probe.
    uncounted: u8,
    /// Number of time-outs since the last progress.
    expiries: u32,
}

impl Stream {
    const NEW: Stream = Stream {
        oldest: FIRST,
        entries: VecDeque::new(),
        resend: 0..0,
        went_back_at: 0,
        since: Time::ZERO,
        silent_at: Time::ZERO,
        probed: false,
        probed_at: Time::ZERO,
        uncounted: 0,
        expiries: 0,
    };

    fn next(&self) -> u64 {
        self.oldest + self.entries.len() as u64
    }

    fn go_back(&mut self, from: u64) {
        self.resend = from.max(self.oldest)..self.next();
    }

    /// Restarts the timers, because an answer is expected from now on.
    fn expect(&mut self, now: Time, rtt: &RoundTrip) {
        self.probed = false;
        self.silent_at = later(now, rtt.probe_ns());
    }

    /// Handles the answer to request `seq`; returns the request if the answer completes it. An answer to a request
    /// other than the oldest is early, and makes the stream go back: all unanswered requests are sent again.
    fn answered(&mut self, seq: u64, now: Time, rtt: &mut RoundTrip) -> Option<Entry> {
        if !(self.oldest..self.next()).contains(&seq) {
            return None;
        }
        if seq > self.oldest {
            if std::mem::replace(&mut self.went_back_at, self.oldest) != self.oldest {
                self.go_back(self.oldest);
            }
            return None;
        }
        let entry = self.entries.pop_front()?;
        self.oldest += 1;
        // The answer is no sample of the round trip if the request was sent twice, since it may answer either
        // transmission, or if a probe ended a silence, since the request waited for the probe.
        if entry.sends == 1 {
            let counts = entry.last_sent >= self.probed_at || self.uncounted >= UNCOUNTED_MAX;
            self.uncounted = if counts { 0 } else { self.uncounted + 1 };
            if counts {
                rtt.sample(now.0.saturating_sub(entry.last_sent.0));
            }
        }
        (self.since, self.expiries) = (now, 0);
        self.expect(now, rtt);
        Some(entry)
    }

    /// Sends the requests in `resend` again, as long as the transmit ring has room; returns their number.
    fn resend(&mut self, now: Time, tx: &mut dyn Transmit) -> u64 {
        self.resend.start = self.resend.start.max(self.oldest);
        let mut sent = 0;
        while self.resend.start < self.resend.end {
            let seq = self.resend.start;
            let entry = &mut self.entries[(seq - self.oldest) as usize];
            if !entry.send(seq, tx) {
                break;
            }
            (entry.last_sent, entry.sends) = (now, entry.sends + 1);
            self.resend.start += 1;
            sent += 1;
        }
        sent
    }
}

pub struct Requester {
    streams: Vec<Stream>,
    rtt: RoundTrip,
    /// Number of requests that were sent again.
    pub again: u64,
    /// Number of silences after which requests were sent again before the time-out.
    pub probes: u64,
    pub timeouts: u64,
}

impl Requester {
    pub fn new(timing: &Timing, streams: u8) -> Self {
        Self {
            streams: (0..streams).map(|_| Stream::NEW).collect(),
            rtt: RoundTrip::new(timing.timeout_initial, timing.timeout_min, timing.timeout_max),
            again: 0,
            probes: 0,
            timeouts: 0,
        }
    }

    /// Sends a request: a write of `data` or, without data, a read.
    pub fn submit(
        &mut self,
        target: Target,
        data: Option<&[u8]>,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<(), Rejected> {
        let stream = &mut self.streams[usize::from(target.stream)];
        let entry = Entry { target, data: data.map(Box::from), last_sent: now, sends: 1 };
        if !entry.send(stream.next(), tx) {
            return Err(Rejected::Busy);
        }
        if stream.entries.is_empty() {
            stream.since = now;
            stream.expect(now, &self.rtt);
        }
        stream.entries.push_back(entry);
        Ok(())
    }

    pub fn handle(&mut self, frame: &mut [u8], now: Time, out: &mut dyn Completions) {
        let Ok(mut view) = FrameView::new_checked(frame) else { return };
        let Some(stream) = self.streams.get_mut(usize::from(view.stream())) else { return };
        let seq = infer(stream.oldest, view.seq());
        if !open(&mut view, Direction::ToCn, seq) {
            return;
        }
        let Ok(message) = view.message() else { return };
        if let Message::SackNak { last_in_order } = message {
            stream.go_back(infer(stream.oldest, last_in_order) + 1);
            return;
        }
        let Some(Entry { target: Target { operation, .. }, .. }) = stream.answered(seq, now, &mut self.rtt)
        else {
            return;
        };
        match message {
            Message::BurstReadResp { data, .. } => out.read(operation, data),
            Message::Fault { status } => out.failed(operation, OpError::Fault(status), &[]),
            _ => out.written(operation),
        }
    }

    /// Returns the time at which [`poll`](Self::poll) is due next.
    pub fn deadline(&self) -> Time {
        let waiting = self.streams.iter().filter(|stream| !stream.entries.is_empty());
        let due = waiting.map(|stream| if stream.resend.is_empty() { stream.silent_at } else { Time::ZERO });
        due.min().unwrap_or(Time(u64::MAX))
    }

    /// Retransmits the requests that are due, and handles silences.
    pub fn poll(&mut self, now: Time, tx: &mut dyn Transmit) {
        for stream in self.streams.iter_mut().filter(|stream| !stream.entries.is_empty()) {
            if now >= stream.silent_at {
                if stream.probed {
                    self.timeouts += 1;
                    stream.expiries += 1;
                    stream.silent_at = later(now, self.rtt.timeout_ns(stream.expiries));
                    stream.go_back(stream.oldest);
                } else {
                    self.probes += u64::from(probe(stream, now, &self.rtt));
                }
            }
            self.again += stream.resend(now, tx);
        }
    }
}

/// After a silence, makes the stream go back: all unanswered requests are sent again, unless the newest of them was
/// sent too recently to have been answered. Returns true if the stream went back.
fn probe(stream: &mut Stream, now: Time, rtt: &RoundTrip) -> bool {
    let newest_sent = stream.entries.back().map_or(now, |entry| entry.last_sent);
    let timeout_at = later(stream.since, rtt.timeout_ns(0));
    let overdue_at = later(newest_sent, rtt.probe_ns());
    if now < overdue_at {
        stream.silent_at = overdue_at.min(timeout_at);
        stream.probed = timeout_at <= overdue_at;
        return false;
    }
    (stream.probed, stream.probed_at) = (true, now);
    stream.silent_at = timeout_at.max(later(now, rtt.probe_ns()));
    stream.go_back(stream.oldest);
    true
}

fn later(at: Time, ns: u64) -> Time {
    at + Duration::from_nanos(ns)
}
