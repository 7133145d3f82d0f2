//! Memory accessed by the line port: requests for lines, many of them in flight.

use std::time::Instant;

use cxloe_cn_core::cache::{CacheConfig, Line};
use cxloe_cn_core::engine::{EngineError, Read, RequestId, Sink, Write};
use cxloe_port::port::PortError;
use cxloe_wire::frame::LINE_SIZE;

use super::{AccessPath, LINE_BYTES, Memory, whole_lines};
use crate::pattern::Share;
use crate::pattern::flow::{Access, Flow, FlowAction};
use crate::{MeasureError, MeasuredRegion};

/// Number of polls of the port between two checks for Ctrl-C.
const LOOK_EVERY: u32 = 4096;
/// Associativity of the line cache: 4 ways, as in the paper.
const WAYS: u64 = 4;

struct PortMemory<'t> {
    target: &'t mut MeasuredRegion,
    lines: u64,
}

/// Runs `body` over at most `bytes` bytes of the target's region. Leaves the port without a cache.
pub(crate) fn over_port<R>(
    target: &mut MeasuredRegion,
    bytes: u64,
    body: impl FnOnce(&mut dyn Memory) -> Result<R, MeasureError>,
) -> Result<R, MeasureError> {
    let lines = whole_lines(bytes.min(target.bytes));
    let mut memory = PortMemory { target, lines };
    let result = body(&mut memory)?;
    memory.set_resident(Share::NONE)?;
    Ok(result)
}

impl PortMemory<'_> {
    #[inline]
    fn hpa(&self, line: u64) -> u64 {
        self.target.hpa + line * LINE_BYTES
    }
}

/// Returns the largest possible cache of at most `bytes` bytes; the number of sets has to be a power of two.
fn cache_of(bytes: u64) -> CacheConfig {
    match (bytes / LINE_BYTES / WAYS).checked_ilog2() {
        None => CacheConfig::OFF,
        Some(bits) => CacheConfig { bytes: ((WAYS * LINE_BYTES) << bits) as usize, ways: WAYS as usize },
    }
}

impl Memory for PortMemory<'_> {
    fn over(&self) -> AccessPath {
        AccessPath::Port
    }

    fn lines(&self) -> u64 {
        self.lines
    }

    fn set_resident(&mut self, share: Share) -> Result<u64, MeasureError> {
        let cache = cache_of(share.of(self.lines * LINE_BYTES));
        // A change of the cache is refused while it has modified lines.
        self.target.port.flush()?;
        self.target.port.engine().set_cache(cache).map_err(PortError::from)?;
        Ok(cache.bytes as u64)
    }

    #[inline]
    fn read(&mut self, line: u64) -> Result<Line, MeasureError> {
        let hpa = self.hpa(line);
        Ok(self.target.port.read(hpa)?)
    }

    #[inline]
    fn write(&mut self, line: u64, content: &Line) -> Result<(), MeasureError> {
        let hpa = self.hpa(line);
        Ok(self.target.port.write(hpa, content)?)
    }

    fn read_run(&mut self, first: u64, out: &mut [Line]) -> Result<(), MeasureError> {
        let hpa = self.hpa(first);
        Ok(self.target.port.read_bytes(hpa, out.as_flattened_mut())?)
    }

    fn write_run(&mut self, first: u64, lines: &[Line]) -> Result<(), MeasureError> {
        let hpa = self.hpa(first);
        Ok(self.target.port.write_bytes(hpa, lines.as_flattened())?)
    }

    /// Reads all lines of the batch at once, changes them locally, and writes them back together.
    fn update(&mut self, updates: &[(u64, u64)]) -> Result<(), MeasureError> {
        const WORDS: u64 = LINE_BYTES / 8;
        // Several updates may be in one line, which is read and written once.
        let mut hpas: Vec<u64> = updates.iter().map(|(word, _)| self.hpa(word / WORDS)).collect();
        hpas.sort_unstable();
        hpas.dedup();
        let mut lines = vec![[0; LINE_SIZE]; hpas.len()];
        self.target.port.read_batch(&hpas, &mut lines)?;
        for &(word, value) in updates {
            let index = hpas.binary_search(&self.hpa(word / WORDS)).expect("every line was asked for");
            let bytes = &mut lines[index].as_chunks_mut::<8>().0[(word % WORDS) as usize];
            *bytes = (u64::from_le_bytes(*bytes) ^ value).to_le_bytes();
        }
        let changed: Vec<(u64, Line)> = hpas.into_iter().zip(lines).collect();
        Ok(self.target.port.write_batch(&changed)?)
    }

    fn serve(&mut self, flow: &mut Flow<'_>, depth: usize) -> Result<(), MeasureError> {
        let start = Instant::now();
        let mut served = SlotRequests {
            flow,
            start,
            under_way: vec![None; depth.max(1)],
            free: (0..depth.max(1) as u32).rev().collect(),
            failed: None,
        };
        let (mut waiting, mut more, mut turns) = (None, true, 0_u32);
        loop {
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(LOOK_EVERY) {
                self.check()?;
            }
            while more && let Some(slot) = served.free.last().copied() {
                let next = waiting.take().unwrap_or_else(|| served.flow.next(served.now()));
                match self.submit(&next, slot, &mut served) {
                    Submitted::Yes => {}
                    Submitted::Busy => {
                        waiting = Some(next);
                        break;
                    }
                    Submitted::NotYet => break,
                    Submitted::End => more = false,
                    Submitted::Failed(error) => (served.failed, more) = (Some(error), false),
                }
            }
            // After a failure nothing new is submitted, but the requests in flight have to end before the
            // return.
            more &= served.failed.is_none();
            if !more && served.free.len() == served.under_way.len() {
                return served.failed.map_or(Ok(()), |error| Err(PortError::from(error).into()));
            }
            self.target.port.send().map_err(PortError::from)?;
            self.target.port.turn(&mut served)?;
        }
    }

    fn flush(&mut self) -> Result<(), MeasureError> {
        Ok(self.target.port.flush()?)
    }

    fn check(&self) -> Result<(), MeasureError> {
        self.target.check()
    }
}

enum Submitted {
    Yes,
    Busy,
    NotYet,
    End,
    Failed(EngineError),
}

impl PortMemory<'_> {
    /// Submits the access `next` in the free slot `slot`; a cache hit completes at once and leaves the slot
    /// free.
    fn submit(&mut self, next: &FlowAction, slot: u32, served: &mut SlotRequests<'_, '_>) -> Submitted {
        let port = &mut self.target.port;
        let hpa = |access: &Access| self.target.hpa + access.line * LINE_BYTES;
        let (access, outcome) = match next {
            FlowAction::Read(access) => match port.start_read(hpa(access), slot) {
                Ok(Read::Hit(content)) => {
                    served.flow.read_done(access, served.now(), &content);
                    return Submitted::Yes;
                }
                Ok(Read::Sent) => (access, Ok(())),
                Err(error) => (access, Err(error)),
            },
            FlowAction::Write(access) => match port.start_write(hpa(access), &access.content(), slot) {
                Ok(Write::Done) => {
                    served.flow.write_done(access, served.now());
                    return Submitted::Yes;
                }
                Ok(Write::Sent) => (access, Ok(())),
                Err(error) => (access, Err(error)),
            },
            FlowAction::NotYet => return Submitted::NotYet,
            FlowAction::End => return Submitted::End,
        };
        match outcome {
            Ok(()) => {
                served.free.pop();
                served.under_way[slot as usize] = Some(*access);
                Submitted::Yes
            }
            Err(EngineError::Busy) => Submitted::Busy,
            Err(error) => Submitted::Failed(error),
        }
    }
}

/// Requests of a flow that are in flight, each in a numbered slot. `failed` is the first error.
struct SlotRequests<'s, 'f> {
    flow: &'s mut Flow<'f>,
    start: Instant,
    under_way: Vec<Option<Access>>,
    free: Vec<u32>,
    failed: Option<EngineError>,
}

impl SlotRequests<'_, '_> {
    #[inline]
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    #[inline]
    fn end(&mut self, id: RequestId) -> Option<Access> {
        let slot = id.number()?;
        let access = self.under_way.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(access)
    }
}

impl Sink for SlotRequests<'_, '_> {
    #[inline]
    fn read(&mut self, id: RequestId, data: &[u8]) {
        if let (Some(access), Some(content)) = (self.end(id), data.first_chunk()) {
            self.flow.read_done(&access, self.now(), content);
        }
    }

    #[inline]
    fn written(&mut self, id: RequestId) {
        if let Some(access) = self.end(id) {
            self.flow.write_done(&access, self.now());
        }
    }

    fn failed(&mut self, id: RequestId, error: EngineError) {
        if self.end(id).is_some() {
            self.failed.get_or_insert(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_the_largest_that_fits() {
        assert_eq!(cache_of(0), CacheConfig::OFF);
        assert_eq!(cache_of(255), CacheConfig::OFF);
        for (bytes, expected) in [(256, 256), (511, 256), (32 << 10, 32 << 10), (100 << 20, 64 << 20)] {
            let cache = cache_of(bytes);
            assert_eq!(cache.bytes, expected);
            cache.check().unwrap();
        }
    }
}
