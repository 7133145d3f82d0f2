//! Sending of segments: those of demanded pages first, then a limited number of others, so that a fault is
//! hardly delayed.

use alloc::vec::Vec;

use cxloe_wire::Transmit;
use cxloe_wire::frame::{BURST_LINES_MAX, LINE_SIZE};
use cxloe_wire::time::Time;

use super::lanes::{Class, NEW, lane_of};
use super::{BufferSource, Burst, FinishedTransfer, TransferDirection, Transfers};
use crate::engine::{BurstRead, Direction, Engine, EngineError, RequestId, Segment, Write};
use crate::pager::PAGE_BYTES;

/// Maximum number of bursts of one background class in flight to one memory node: enough to keep sending
/// during a round trip, and few enough to delay a fault only briefly.
const ON_THEIR_WAY_MAX: u16 = 64;
/// Maximum number of write-back bursts in flight to one memory node while a thread waits for a page.
const WRITES_BESIDE_DEMAND: u16 = 24;
/// Maximum number of background bursts (write-back and read-ahead) sent before the link is polled again.
const BACKGROUND: usize = 64;
/// Maximum number of background bursts sent before the link is polled again, while a thread waits for a page.
const BACKGROUND_BESIDE_DEMAND: usize = 6;

enum TurnResult {
    /// A segment was sent, or none had to be.
    Sent,
    /// The transfer's next segment belongs to another memory node, which has this lane.
    Lane(u8),
    /// All segments of the transfer have been sent.
    Nothing,
}

struct Outgoing<'a, S> {
    engine: &'a mut Engine,
    now: Time,
    tx: &'a mut dyn Transmit,
    source: &'a mut S,
    ended: &'a mut Vec<FinishedTransfer>,
}

impl Transfers {
    /// Sends demanded segments, then background ones, as far as the engine has room and a fault is not delayed much.
    /// Transfers that end within this call are appended to `ended`. Returns the number of segments sent.
    #[inline]
    pub fn advance(
        &mut self,
        engine: &mut Engine,
        now: Time,
        tx: &mut dyn Transmit,
        source: &mut impl BufferSource,
        ended: &mut Vec<FinishedTransfer>,
    ) -> usize {
        self.now = now;
        if !self.is_waiting() && self.waiting_to_retry.is_empty() {
            return 0;
        }
        // Requests are held back until `finish`, so that the bursts of one page share frames.
        let begins = engine.hold();
        let mut link = Outgoing { engine, now, tx, source, ended };
        let (mut sent, busy) = self.send_demand(&mut link);
        let most = if self.demands > 0 { BACKGROUND_BESIDE_DEMAND } else { BACKGROUND };
        for class in [Class::Write, Class::Ahead] {
            let (more, _) = self.send_class(class, busy, most, &mut link);
            sent += more;
        }
        finish(begins, link);
        sent
    }

    /// Sends demanded segments only: the caller flushes the link before it does anything else.
    #[inline]
    pub fn advance_demand(
        &mut self,
        engine: &mut Engine,
        now: Time,
        tx: &mut dyn Transmit,
        source: &mut impl BufferSource,
        ended: &mut Vec<FinishedTransfer>,
    ) -> usize {
        self.now = now;
        if self.lanes.waiting(Class::Demand) == 0 && self.waiting_to_retry.is_empty() {
            return 0;
        }
        let begins = engine.hold();
        let mut link = Outgoing { engine, now, tx, source, ended };
        let (sent, _) = self.send_demand(&mut link);
        finish(begins, link);
        sent
    }

    /// Sends demanded segments; returns their number, and a mask of the lanes whose memory nodes accept no more.
    #[inline]
    fn send_demand(&mut self, link: &mut Outgoing<'_, impl BufferSource>) -> (usize, u64) {
        while let Some((_, at)) = self.waiting_to_retry.front().copied().filter(|(at, _)| *at <= link.now) {
            self.waiting_to_retry.pop_front();
            let class = self.slots[usize::from(at)].as_ref().map_or(Class::Ahead, |transfer| transfer.class);
            self.lanes.push(at, NEW, class);
        }
        self.send_class(Class::Demand, 0, usize::MAX, link)
    }

    /// Sends up to `most` segments of a class; returns their number, and adds lanes that accept no more to `busy`.
    fn send_class(
        &mut self,
        class: Class,
        mut busy: u64,
        most: usize,
        link: &mut Outgoing<'_, impl BufferSource>,
    ) -> (usize, u64) {
        let on_their_way = match class {
            Class::Demand => u16::MAX,
            Class::Write if self.demands > 0 => WRITES_BESIDE_DEMAND,
            Class::Write | Class::Ahead => ON_THEIR_WAY_MAX,
        };
        let mut sent = 0;
        while sent < most {
            let lanes = self.lanes.waiting(class) & !busy;
            if lanes == 0 {
                break;
            }
            let lane = lanes.trailing_zeros() as u8;
            let Some(at) = self.lanes.front(lane, class) else { break };
            if self.on_their_way[class as usize][usize::from(lane)] >= on_their_way {
                busy |= 1 << lane;
                continue;
            }
            match self.send_next(at, lane, link) {
                Ok(TurnResult::Sent) => sent += 1,
                Ok(TurnResult::Lane(own)) => {
                    self.lanes.pop(lane, class);
                    self.lanes.push(at, own, class);
                }
                Ok(TurnResult::Nothing) => {
                    self.lanes.pop(lane, class);
                    self.settle(at, link.ended);
                }
                Err(EngineError::Busy) => busy |= 1 << lane,
                Err(error) => {
                    self.lanes.pop(lane, class);
                    self.fail(at, error);
                    self.settle(at, link.ended);
                }
            }
        }
        (sent, busy)
    }

    /// Sends the next segment of a transfer that waits in `lane`, if the segment's memory node has that lane.
    fn send_next(
        &mut self,
        at: u16,
        lane: u8,
        link: &mut Outgoing<'_, impl BufferSource>,
    ) -> Result<TurnResult, EngineError> {
        let Outgoing { engine, now, tx, source, .. } = link;
        let Some(transfer) = &mut self.slots[usize::from(at)] else { return Ok(TurnResult::Nothing) };
        let Some(buffers) = transfer.space.and_then(|space| source.buffers(space)) else {
            // The transfer's space has ended, so the rest of the page is not sent.
            transfer.all_sent = true;
            return Ok(TurnResult::Nothing);
        };
        if transfer.all_sent {
            return Ok(TurnResult::Nothing);
        }
        let direction = match transfer.way {
            TransferDirection::Fetch => Direction::Read,
            TransferDirection::Write(_) => Direction::Write,
        };
        let Some(segment) = transfer.segment_iter.segment(engine, direction) else {
            transfer.all_sent = true;
            return Ok(TurnResult::Nothing);
        };
        let own = lane_of(engine.peer_of(&segment));
        if own != lane {
            return Ok(TurnResult::Lane(own));
        }
        let Some(burst) = self.free_bursts.last().copied() else { return Err(EngineError::Busy) };
        let id = RequestId::PageBurst { transfers: self.number, burst };
        let from = (segment.hpa - transfer.hpa) as usize;
        let on_its_way = match transfer.way {
            TransferDirection::Fetch => match engine.burst_read(&segment, id, *now, *tx)? {
                BurstRead::Sent => true,
                BurstRead::Here(data) => {
                    segment.scatter(data, &mut buffers.page_mut(transfer.buffer)[from..]);
                    false
                }
                BurstRead::Alike(line) => {
                    let lines = [line; BURST_LINES_MAX];
                    let page = &mut buffers.page_mut(transfer.buffer)[from..];
                    segment.scatter(lines[..segment.lines].as_flattened(), page);
                    false
                }
            },
            TransferDirection::Write(lines) => {
                let (mask, bytes) =
                    gather(&segment, from, lines, buffers.page(transfer.buffer), &mut self.room);
                let mut write = || engine.burst_write(&segment, mask, &self.room[..bytes], id, *now, *tx);
                match (mask != 0).then(&mut write).unwrap_or(Ok(Write::Done)) {
                    // A sealed region is mapped for reading only; if a program changes its pages anyway, the changes
                    // are dropped.
                    Err(EngineError::Sealed(_)) => false,
                    written => written? == Write::Sent,
                }
            }
        };
        transfer.segment_iter.advance(&segment);
        if on_its_way {
            transfer.in_flight += 1;
            self.free_bursts.pop();
            let class = transfer.class;
            self.bursts[usize::from(burst)] = Some(Burst { transfer: at, segment, lane, class });
            self.on_their_way[class as usize][usize::from(lane)] += 1;
        }
        Ok(TurnResult::Sent)
    }
}

/// Sends held requests. If `begins` is true, the caller began to hold requests, and the holding ends here.
#[inline]
fn finish<S>(begins: bool, link: Outgoing<'_, S>) {
    let Outgoing { engine, now, tx, .. } = link;
    if begins {
        engine.release(now, tx);
    } else {
        engine.send_waiting(now, tx);
    }
}

/// Selects those lines of a segment that the mask `lines` of its page contains. Returns the segment's mask and the
/// number of bytes gathered in `room`. The segment begins at byte `from` of the page.
fn gather(
    segment: &Segment,
    from: usize,
    lines: u64,
    page: &[u8; PAGE_BYTES],
    room: &mut [u8; PAGE_BYTES],
) -> (u64, usize) {
    let (mut mask, mut bytes) = (0, 0);
    for index in 0..segment.lines {
        let at = from + segment.offset(index) as usize;
        if lines >> (at / LINE_SIZE) & 1 == 1 {
            mask |= 1 << index;
            room[bytes..bytes + LINE_SIZE].copy_from_slice(&page[at..at + LINE_SIZE]);
            bytes += LINE_SIZE;
        }
    }
    (mask, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_named_lines_are_gathered() {
        let page: [u8; PAGE_BYTES] = std::array::from_fn(|at| (at / LINE_SIZE) as u8);
        let mut room = [0xFF; PAGE_BYTES];
        let segment = Segment::straight(1 << 40, 22);
        let (mask, bytes) =
            gather(&segment, 22 * LINE_SIZE, 1 << 23 | 1 << 43 | 1 << 44 | 1, &page, &mut room);
        assert_eq!((mask, bytes), (1 << 1 | 1 << 21, 2 * LINE_SIZE));
        assert_eq!((room[0], room[63], room[64], room[128]), (23, 23, 43, 0xFF));
    }
}
