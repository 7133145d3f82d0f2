//! Loads: reads of random lines at shares of the highest rate that the peer itself reaches. Before them, a closed loop
//! of the same client finds this rate.

use std::time::{Duration, Instant};

use super::trial::Trial;
use super::{Store, compare};
use crate::error::PeerError;
use crate::load::{LoadLimits, LoadSchedule, LoadStep, LoadTimes};
use crate::measured::Measured;
use crate::pattern::Pattern;
use crate::pipeline::Pipeline;
use crate::stream::SILENCE;
use crate::unit::{AccessUnit, LINE};
use cxloe_lab::Interrupt;
use cxloe_measure::pattern::arrivals::Spacing;

/// Maximum wait for an answer between two checks for Ctrl-C.
const LOOK: Duration = Duration::from_millis(20);
/// Waits of this length and more sleep; the rest of a wait spins, so that a read begins in time.
const SLEPT: Duration = Duration::from_micros(500);

impl Trial<'_> {
    pub fn loads(&mut self) -> Result<Vec<Measured>, PeerError> {
        let has = |pattern: &Pattern| self.plan.has(*pattern);
        let loads = self.plan.patterns.iter().copied().filter(has);
        let loads: Vec<(Pattern, f64)> = loads.filter_map(|load| Some((load, load.load_share()?))).collect();
        let Some((first, _)) = loads.first() else { return Ok(Vec::new()) };
        let limits = self.limits();
        let highest = self.load(*first, LoadSchedule::closed(limits))?.per_s;
        let mut found = Vec::with_capacity(loads.len());
        for (pattern, share) in loads {
            let offered_per_s = share * highest;
            let schedule = LoadSchedule::open(limits, offered_per_s, Spacing::Poisson);
            let LoadTimes { times_ns, per_s } = self.load(pattern, schedule)?;
            found.push(Measured::load(pattern, times_ns, offered_per_s, per_s));
        }
        Ok(found)
    }

    fn limits(&mut self) -> LoadLimits {
        let unit = AccessUnit::Line;
        let slots = if self.store.pipeline().is_some() { unit.in_flight(self.plan.depth) } else { 1 };
        LoadLimits {
            lines: self.plan.lines(),
            slots,
            duration_ns: self.plan.each.as_nanos() as u64,
            reads_min: unit.timed_min() + unit.warm(),
            reads_max: self.plan.operations + unit.warm(),
            warm: unit.warm(),
        }
    }

    fn load(&mut self, pattern: Pattern, schedule: LoadSchedule) -> Result<LoadTimes, PeerError> {
        let content = &self.content.first;
        if let Some(pipeline) = self.store.pipeline() {
            return in_flight(pipeline, content, pattern, schedule, self.interrupt);
        }
        one_at_a_time(self.store, content, pattern, schedule, self.interrupt)
    }
}

/// Makes the reads of a schedule with several in flight.
fn in_flight(
    pipeline: &mut dyn Pipeline,
    content: &[u8],
    pattern: Pattern,
    mut schedule: LoadSchedule,
    interrupt: &Interrupt,
) -> Result<LoadTimes, PeerError> {
    let start = Instant::now();
    let now_ns = || start.elapsed().as_nanos() as u64;
    let mut progress = start;
    loop {
        interrupt.check()?;
        let until_ns = loop {
            match schedule.next(now_ns()) {
                LoadStep::Begin { slot, line } => {
                    if !pipeline.begin(slot, line)? {
                        schedule.refused(slot);
                        break 0;
                    }
                }
                LoadStep::Wait { until_ns } => break until_ns,
                LoadStep::End => return Ok(schedule.into_times()),
            }
        };
        let until = start + Duration::from_nanos(until_ns.min(now_ns() + LOOK.as_nanos() as u64));
        let (mut outcome, mut count) = (Ok(()), 0);
        pipeline.take(until, &mut |slot, found| {
            count += 1;
            // The time is read before the bytes are compared.
            match schedule.ended(slot, now_ns()) {
                Some(line) if outcome.is_ok() => {
                    let at = line * LINE;
                    outcome = compare(pattern, found, &content[at..at + LINE], at);
                }
                Some(_) => {}
                None => {
                    let found = format!("a line for slot {slot}");
                    outcome = Err(PeerError::Protocol { expected: "a line that was asked for", found });
                }
            }
        })?;
        outcome?;
        if count > 0 || schedule.in_flight() == 0 {
            progress = Instant::now();
        } else if progress.elapsed() > SILENCE {
            let what = "an answer under load".into();
            return Err(PeerError::Timeout { what, limit: SILENCE, log: String::new() });
        }
    }
}

/// Makes the reads of a schedule one after the other. What prepares a read is not timed, so its clock stands meanwhile.
fn one_at_a_time(
    store: &mut dyn Store,
    content: &[u8],
    pattern: Pattern,
    mut schedule: LoadSchedule,
    interrupt: &Interrupt,
) -> Result<LoadTimes, PeerError> {
    let mut out = [0; LINE];
    let (start, mut paused) = (Instant::now(), Duration::ZERO);
    loop {
        interrupt.check()?;
        let now_ns = (start.elapsed() - paused).as_nanos() as u64;
        match schedule.next(now_ns) {
            LoadStep::Begin { slot, line } => {
                let pause = Instant::now();
                store.forget(AccessUnit::Line, line)?;
                paused += pause.elapsed();
                store.read(AccessUnit::Line, line, &mut out)?;
                schedule.ended(slot, (start.elapsed() - paused).as_nanos() as u64);
                let at = line * LINE;
                compare(pattern, &out, &content[at..at + LINE], at)?;
            }
            LoadStep::Wait { until_ns } => {
                let left = Duration::from_nanos(until_ns.saturating_sub(now_ns)).min(LOOK);
                if left >= SLEPT {
                    std::thread::sleep(left - SLEPT / 2);
                } else {
                    std::hint::spin_loop();
                }
            }
            LoadStep::End => return Ok(schedule.into_times()),
        }
    }
}
