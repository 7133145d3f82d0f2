//! What has become of operations, and what the memory nodes hold: the checks.

use cxloe_cn_core::engine::{EngineError, Sink};
use cxloe_link::Link;
use cxloe_wire::frame::LINE_SIZE;
use cxloe_wire::time::Time;

use super::ComputeNode;
use super::paged::{PAGE, is_paging, words};
use crate::broken::Broken;
use crate::operation::Kind;
use crate::surroundings::Surroundings;
use crate::tally::Tally;
use crate::trace::Name;
use crate::verdict::{Moment, check_error};

/// What ended, in order.
#[derive(Default)]
pub(super) struct Ended {
    outcomes: Vec<(u64, Result<usize, EngineError>)>,
    /// The data of reads, one behind the other.
    data: Vec<u8>,
}

impl Sink for Ended {
    fn read(&mut self, user: u64, data: &[u8]) {
        self.data.extend_from_slice(data);
        self.outcomes.push((user, Ok(data.len())));
    }
    fn written(&mut self, user: u64) {
        self.outcomes.push((user, Ok(0)));
    }
    fn failed(&mut self, user: u64, error: EngineError) {
        self.outcomes.push((user, Err(error)));
    }
}

impl ComputeNode {
    pub(super) fn take_ended(
        &mut self,
        now: Time,
        around: Surroundings<'_>,
        tally: &mut Tally,
    ) -> Result<(), Broken> {
        if self.ended.outcomes.is_empty() {
            return Ok(());
        }
        let mut ended = std::mem::take(&mut self.ended);
        let mut rest = ended.data.as_slice();
        for (user, outcome) in ended.outcomes.drain(..) {
            let outcome = outcome.map(|len| {
                let (data, behind) = rest.split_at(len);
                rest = behind;
                data
            });
            match &mut self.paged {
                Some(paged) if is_paging(user) => {
                    tally.figures.page_parts += 1;
                    paged.arrived(user, outcome);
                }
                _ => self.end(user, outcome, now, around, tally)?,
            }
        }
        ended.data.clear();
        self.ended = ended;
        Ok(())
    }

    /// An operation that was on its way has ended.
    fn end(
        &mut self,
        user: u64,
        outcome: Result<&[u8], EngineError>,
        now: Time,
        around: Surroundings<'_>,
        tally: &mut Tally,
    ) -> Result<(), Broken> {
        let Some(at) = self.under_way.iter().position(|(u, _)| *u == user) else {
            return Err(Broken::Rule(format!("{}: operation {user} ends twice", Name(self.mac))));
        };
        let (_, op) = self.under_way.remove(at);
        self.trace.say(now, Name(self.mac), || match outcome {
            Ok(_) => format!("{op}: done after {:?}", now - op.at),
            Err(error) => format!("{op}: FAILED after {:?}, {error}", now - op.at),
        });
        tally.figures.operations += 1;
        let broken = |why: String| Broken::at(self.mac, &op, why);
        let region = &mut self.regions[op.region];
        if region.life == op.life {
            if op.lost && outcome.is_ok() {
                return Err(broken("it has succeeded, but its region was lost".into()));
            }
            let registers = &mut region.registers;
            for (i, line) in op.lines().enumerate() {
                match (op.kind, outcome) {
                    (Kind::Read | Kind::BurstRead(_), Ok(data)) => {
                        let data = data.get(i * LINE_SIZE..(i + 1) * LINE_SIZE);
                        let data = data.ok_or_else(|| broken("too little data came".into()))?;
                        registers
                            .read_ended(line, user, data, true)
                            .map_err(|why| broken(why.to_string()))?;
                    }
                    (Kind::Read | Kind::BurstRead(_), Err(_)) => registers.read_failed(line, user),
                    (Kind::Write(value), _) => registers.write_ended(line, value, outcome.is_err()),
                    (Kind::BurstWrite(_, first), _) => {
                        registers.write_ended(line, first + i as u64, outcome.is_err());
                    }
                    (Kind::Flush, _) => {}
                }
            }
        }
        match outcome {
            Ok(_) => {
                if let Some(class) = op.class() {
                    tally.took(class, now - op.at);
                }
                Ok(())
            }
            Err(error) if self.all_succeed => {
                Err(broken(format!("it fails though nothing but frames was lost: {error}")))
            }
            Err(error) => {
                let region = &self.regions[op.region];
                // Of a life before, all that is known is that it ended.
                let ended = region.place.is_some() && region.life != op.life;
                check_error(&op, error, region, around, &mut tally.figures, Moment { sent: true, ended })
                    .map_err(broken)
            }
        }
    }

    /// Everything the cache had is at the memory nodes: compares with their pools.
    pub(super) fn flushed(&mut self, around: Surroundings<'_>) -> Result<(), Broken> {
        for index in 0..self.layout.parts().len() {
            let part = self.layout.parts()[index];
            self.check_stored(part, around)?;
        }
        Ok(())
    }

    /// What the cache had of a part of a region is at its memory node: compares with its pool.
    pub(super) fn check_stored(&mut self, part: usize, around: Surroundings<'_>) -> Result<(), Broken> {
        if self.paged.is_some() {
            // Its pages are compared as a whole.
            return Ok(());
        }
        let region = &mut self.regions[part];
        let mn = around.node_of(region);
        if !region.lost && region.born == Some(mn.config.incarnation) && !around.is_taken_away(region) {
            for line in 0..self.shape.lines() {
                let broken =
                    |why: String| Broken::Rule(format!("{}, {}: {why}", Name(self.mac), Name(mn.mac)));
                let data = mn.line(self.mac, region.cmem + self.shape.offset(line));
                let data = data.ok_or_else(|| broken(format!("line {line} has no memory")))?;
                region.registers.check_stored(line, &data).map_err(|why| broken(why.to_string()))?;
            }
        }
        region.registers.flushed();
        Ok(())
    }

    /// Goes on with what programs have mapped.
    pub(super) fn work_paged(&mut self, now: Time, around: Surroundings<'_>) -> Result<(), Broken> {
        let Some(paged) = &mut self.paged else { return Ok(()) };
        if let (None, Some(set)) = (paged.hpa, self.layout.sets().first()) {
            let base = set.base;
            for (page, content) in (0..).zip(paged.begin(base)) {
                for (line, data) in (0..).zip(content.as_chunks::<LINE_SIZE>().0) {
                    let hpa = base + page * PAGE + line * LINE_SIZE as u64;
                    let (part, dpa) = self.layout.place(hpa).expect("the region is large enough");
                    let region = &self.regions[part];
                    around.node_of(region).set_line(self.mac, region.cmem + dpa, data);
                }
            }
        }
        paged.work(&mut self.engine, now, self.link.transmit());
        match paged.broken() {
            Some(why) => Err(Broken::Rule(format!("{}: {why}", Name(self.mac)))),
            None => Ok(()),
        }
    }

    /// Whether all programs have come to rest, and what they have written is at the memory nodes.
    ///
    /// # Errors
    /// It is not there.
    pub fn finish(&mut self, around: Surroundings<'_>) -> Result<bool, Broken> {
        let Some(paged) = &mut self.paged else { return Ok(true) };
        if paged.is_finished() {
            return Ok(true);
        }
        if !paged.finish() {
            return Ok(false);
        }
        let base = paged.hpa.unwrap_or_default();
        for (page, expected) in paged.expected() {
            let mut content = [0; PAGE as usize];
            for (line, data) in (0..).zip(content.as_chunks_mut::<LINE_SIZE>().0) {
                let hpa = base + u64::from(page) * PAGE + line * LINE_SIZE as u64;
                let (part, dpa) = self.layout.place(hpa).expect("the region is there");
                let region = &self.regions[part];
                let stored = around.node_of(region).line(self.mac, region.cmem + dpa);
                *data = stored
                    .ok_or_else(|| Broken::Rule(format!("{}: page {page} has no memory", Name(self.mac))))?;
            }
            let found = words(&content);
            if found != expected {
                let mac = Name(self.mac);
                return Err(Broken::Rule(format!(
                    "{mac}: page {page} is {found:?} at its memory nodes, not {expected:?}"
                )));
            }
        }
        Ok(true)
    }

    /// With nothing on its way: writes everything back, then compares with the pools. Whether it is done.
    pub fn flush(&mut self, now: Time, around: Surroundings<'_>) -> Result<bool, Broken> {
        let flushed = self.engine.flush(now, self.link.transmit());
        self.link.flush().expect("a simulated link");
        match flushed {
            Ok(true) => self.flushed(around).map(|()| true),
            Ok(false) | Err(EngineError::NotConnected(_)) => Ok(false),
            Err(error) => {
                Err(Broken::Rule(format!("{}: flush fails without reason: {error}", Name(self.mac))))
            }
        }
    }
}
