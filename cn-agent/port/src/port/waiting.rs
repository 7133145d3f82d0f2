//! Sinks of a port's calls: one for a single operation, and one for the operations of a batched call. They copy the
//! data of answers to its destination.

use cxloe_cn_core::cache::Line;
use cxloe_cn_core::engine::{EngineError, RequestId, Segment, Sink};

/// Advice for the case that a memory node has not answered.
pub(crate) const NO_SESSION: &str =
    "check that mn-server runs there, that both are on one Ethernet segment and use the same EtherType";

/// Destination of the data of a request in flight.
#[derive(Clone, Copy)]
pub(super) struct PendingRequest {
    pub segment: Segment,
    /// Offset of the segment in the call's buffer.
    pub at: usize,
}

/// Requests of a call that are in flight, in numbered slots.
#[derive(Default)]
pub(super) struct PendingRequests {
    pub slots: Vec<PendingRequest>,
    pub free: Vec<u32>,
}

impl PendingRequests {
    pub fn new(depth: usize) -> PendingRequests {
        let mut requests = PendingRequests::default();
        requests.clear(depth);
        requests
    }

    /// Removes all requests, and makes room for `depth` new ones.
    pub fn clear(&mut self, depth: usize) {
        self.slots.resize(depth, PendingRequest { segment: Segment::straight(0, 0), at: 0 });
        self.free.clear();
        self.free.extend((0..depth as u32).rev());
    }

    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

/// Sink of a single operation with identity `id`.
pub(super) struct SingleSink {
    pub id: RequestId,
    pub line: Line,
    pub outcome: Option<Result<(), EngineError>>,
}

impl SingleSink {
    #[inline]
    fn end(&mut self, id: RequestId, outcome: Result<(), EngineError>) {
        if id == self.id {
            self.outcome = Some(outcome);
        }
    }
}

impl Sink for SingleSink {
    #[inline]
    fn read(&mut self, id: RequestId, data: &[u8]) {
        if let (true, Some(line)) = (id == self.id, data.first_chunk()) {
            self.line = *line;
            self.end(id, Ok(()));
        }
    }
    #[inline]
    fn written(&mut self, id: RequestId) {
        self.end(id, Ok(()));
    }
    fn failed(&mut self, id: RequestId, error: EngineError) {
        self.end(id, Err(error));
    }
}

/// Sink of the operations of a batched call; the data of reads is scattered into `out`.
pub(super) struct BatchSink<'a> {
    pub call: u32,
    pub out: &'a mut [u8],
    pub requests: &'a mut PendingRequests,
    pub error: Option<EngineError>,
}

impl BatchSink<'_> {
    /// Removes and returns the request `id`, which has ended, if it belongs to this call.
    #[inline]
    fn end(&mut self, id: RequestId) -> Option<PendingRequest> {
        let RequestId::PortRequest { call, request: slot } = id else { return None };
        let request = *self.requests.slots.get(slot as usize).filter(|_| call == self.call)?;
        self.requests.free.push(slot);
        Some(request)
    }
}

impl Sink for BatchSink<'_> {
    #[inline]
    fn read(&mut self, id: RequestId, data: &[u8]) {
        if let Some(PendingRequest { segment, at }) = self.end(id)
            && let Some(out) = self.out.get_mut(at..)
        {
            segment.scatter(data, out);
        }
    }
    #[inline]
    fn written(&mut self, id: RequestId) {
        self.end(id);
    }
    fn failed(&mut self, id: RequestId, error: EngineError) {
        if self.end(id).is_some() {
            self.error.get_or_insert(error);
        }
    }
}

/// Result of an attempt to make the next request of a call.
pub(super) enum NextRequest {
    Sent(PendingRequest),
    /// The operation was completed at once, without a request to a memory node.
    Done,
    /// The call has no further operation.
    End,
}

/// Sink that ignores all results, for polls without an operation.
pub(super) struct DiscardCompletions;

impl Sink for DiscardCompletions {
    fn read(&mut self, _: RequestId, _data: &[u8]) {}
    fn written(&mut self, _: RequestId) {}
    fn failed(&mut self, _: RequestId, _error: EngineError) {}
}

#[cfg(test)]
mod tests {
    use cxloe_wire::frame::LINE_SIZE;

    use super::*;

    #[test]
    fn answers_to_an_earlier_call_are_dropped() {
        let of = |call, request| RequestId::PortRequest { call, request };
        let mut one = SingleSink { id: of(8, 0), line: [0; LINE_SIZE], outcome: None };
        for other in [of(7, 0), of(8, 1), RequestId::Number(0)] {
            one.read(other, &[1; LINE_SIZE]);
            one.written(other);
            one.failed(other, EngineError::Unmapped(0));
        }
        assert!(one.outcome.is_none());
        one.read(of(8, 0), &[2; LINE_SIZE]);
        assert_eq!((one.outcome, one.line), (Some(Ok(())), [2; LINE_SIZE]));

        let mut out = [0; 2 * LINE_SIZE];
        let mut requests = PendingRequests::new(2);
        for (at, slot) in requests.slots.iter_mut().enumerate() {
            *slot = PendingRequest { segment: Segment::straight(0, 1), at: at * LINE_SIZE };
        }
        requests.free.clear();
        let mut many = BatchSink { call: 8, out: &mut out, requests: &mut requests, error: None };
        many.read(of(7, 0), &[1; LINE_SIZE]);
        many.failed(of(7, 1), EngineError::Unmapped(0));
        many.written(of(8, 2));
        many.written(RequestId::Number(0));
        assert_eq!((many.requests.in_flight(), many.error), (2, None));
        many.read(of(8, 1), &[3; LINE_SIZE]);
        many.failed(of(8, 0), EngineError::Unmapped(0));
        assert_eq!((many.requests.in_flight(), many.error), (0, Some(EngineError::Unmapped(0))));
        assert_eq!((out[0], out[64]), (0, 3));
    }
}
