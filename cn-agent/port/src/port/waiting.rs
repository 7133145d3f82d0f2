//! What a port waits for: one operation, or many of one call; and where the data goes that answers bring.

use cxloe_cn_core::cache::Line;
use cxloe_cn_core::engine::{EngineError, Segment, Sink};

/// Bits of a user value that say which of its call's requests it is; those above say which call it belongs to.
pub(super) const REQUEST_BITS: u32 = 32;

/// Where the data of a request goes.
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub segment: Segment,
    /// Where in the call's buffer the segment begins.
    pub at: usize,
}

/// The requests of a call that are on their way, in numbered slots: as many as may be in flight.
#[derive(Default)]
pub(super) struct Requests {
    pub slots: Vec<Request>,
    pub free: Vec<u32>,
}

impl Requests {
    pub fn new(depth: usize) -> Requests {
        let mut requests = Requests::default();
        requests.clear(depth);
        requests
    }

    /// With room for `depth`, all free: what an earlier call left behind is nobody's.
    pub fn clear(&mut self, depth: usize) {
        self.slots.resize(depth, Request { segment: Segment::straight(0, 0), at: 0 });
        self.free.clear();
        self.free.extend((0..depth as u32).rev());
    }

    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

/// Waits for one operation, `user`.
pub(super) struct One {
    pub user: u64,
    pub line: Line,
    pub outcome: Option<Result<(), EngineError>>,
}

impl One {
    #[inline]
    fn end(&mut self, user: u64, outcome: Result<(), EngineError>) {
        if user == self.user {
            self.outcome = Some(outcome);
        }
    }
}

impl Sink for One {
    #[inline]
    fn read(&mut self, user: u64, data: &[u8]) {
        if let (true, Some(line)) = (user == self.user, data.first_chunk()) {
            self.line = *line;
            self.end(user, Ok(()));
        }
    }
    #[inline]
    fn written(&mut self, user: u64) {
        self.end(user, Ok(()));
    }
    fn failed(&mut self, user: u64, error: EngineError) {
        self.end(user, Err(error));
    }
}

/// Waits for many of one call; what reads bring is scattered into `out`.
pub(super) struct Many<'a> {
    pub call: u64,
    pub out: &'a mut [u8],
    pub requests: &'a mut Requests,
    pub error: Option<EngineError>,
}

impl Many<'_> {
    /// The request that has ended, if it is one of this call's.
    #[inline]
    fn end(&mut self, user: u64) -> Option<Request> {
        let slot = user.wrapping_sub(self.call);
        let request = *self.requests.slots.get(slot as usize).filter(|_| slot >> REQUEST_BITS == 0)?;
        self.requests.free.push(slot as u32);
        Some(request)
    }
}

impl Sink for Many<'_> {
    #[inline]
    fn read(&mut self, user: u64, data: &[u8]) {
        if let Some(Request { segment, at }) = self.end(user)
            && let Some(out) = self.out.get_mut(at..)
        {
            segment.scatter(data, out);
        }
    }
    #[inline]
    fn written(&mut self, user: u64) {
        self.end(user);
    }
    fn failed(&mut self, user: u64, error: EngineError) {
        if self.end(user).is_some() {
            self.error.get_or_insert(error);
        }
    }
}

/// What has become of an attempt to make the next request of a call.
pub(super) enum Next {
    /// It is on its way.
    Sent(Request),
    /// Done without one.
    Done,
    /// There is no other.
    End,
}

/// For polling when nobody waits for anything in particular.
pub(super) struct Nobody;

impl Sink for Nobody {
    fn read(&mut self, _user: u64, _data: &[u8]) {}
    fn written(&mut self, _user: u64) {}
    fn failed(&mut self, _user: u64, _error: EngineError) {}
}

#[cfg(test)]
mod tests {
    use cxloe_wire::frame::LINE_SIZE;

    use super::*;

    #[test]
    fn answers_to_an_earlier_call_are_nobodys() {
        let (before, call) = (7 << REQUEST_BITS, 8 << REQUEST_BITS);
        let mut one = One { user: call, line: [0; LINE_SIZE], outcome: None };
        one.read(before, &[1; LINE_SIZE]);
        one.written(before);
        one.failed(before, EngineError::Unmapped(0));
        assert!(one.outcome.is_none());
        one.read(call, &[2; LINE_SIZE]);
        assert_eq!((one.outcome, one.line), (Some(Ok(())), [2; LINE_SIZE]));

        let mut out = [0; 2 * LINE_SIZE];
        let mut requests = Requests::new(2);
        for (at, slot) in requests.slots.iter_mut().enumerate() {
            *slot = Request { segment: Segment::straight(0, 1), at: at * LINE_SIZE };
        }
        requests.free.clear();
        let mut many = Many { call, out: &mut out, requests: &mut requests, error: None };
        many.read(before, &[1; LINE_SIZE]);
        many.failed(before + 1, EngineError::Unmapped(0));
        many.written(before);
        assert_eq!((many.requests.in_flight(), many.error), (2, None));
        many.read(call + 1, &[3; LINE_SIZE]);
        many.failed(call, EngineError::Unmapped(0));
        assert_eq!((many.requests.in_flight(), many.error), (0, Some(EngineError::Unmapped(0))));
        assert_eq!((out[0], out[64]), (0, 3));
    }
}
