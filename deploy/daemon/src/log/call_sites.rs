//! Keeps one place in the code from filling the log: a peer or a program may cause the same line ten thousand times a
//! second. Each place has so many lines at once and so many a second after that; how many were left out is told.

use std::collections::HashMap;
use std::fmt::{Debug, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Lines that one place may log at once, and each second after that: warnings and errors.
const ALARMS: Rate = Rate { at_once: 50, per_second: 5 };
/// The same of what is only told. What is logged for debugging is not limited: somebody has asked for it.
const NEWS: Rate = Rate { at_once: 500, per_second: 50 };
/// Characters of a line left out that are quoted.
const QUOTE_MAX: usize = 120;
/// What the lines about lines left out are told by; they are not limited themselves.
const REPORT: &str = concat!(module_path!(), "::report");

/// All places of this process.
pub static SITES: CallSites = CallSites(Mutex::new(None));

#[derive(Clone, Copy, Debug)]
struct Rate {
    at_once: u32,
    per_second: u32,
}

/// How many lines a place has left.
#[derive(Debug)]
struct Bucket {
    rate: Rate,
    left: u32,
    since: Instant,
}

impl Bucket {
    fn new(rate: Rate, now: Instant) -> Bucket {
        Bucket { rate, left: rate.at_once, since: now }
    }

    /// Whether one more line may be logged.
    fn admits(&mut self, now: Instant) -> bool {
        let each = Duration::from_secs(1) / self.rate.per_second;
        let earned = now.saturating_duration_since(self.since).as_nanos() / each.as_nanos();
        let earned = u32::try_from(earned).unwrap_or(u32::MAX);
        self.since += each.saturating_mul(earned);
        self.left = self.left.saturating_add(earned).min(self.rate.at_once);
        let admits = self.left > 0;
        self.left = self.left.saturating_sub(1);
        admits
    }
}

/// A place in the code that logs.
#[derive(Debug)]
struct Site {
    bucket: Bucket,
    left_out: u64,
    /// What the first of them said.
    quote: String,
    of: &'static Metadata<'static>,
}

/// The places that have logged.
#[derive(Debug)]
pub struct CallSites(Mutex<Option<HashMap<Identifier, Site>>>);

impl CallSites {
    fn admits(&self, event: &Event<'_>, now: Instant) -> bool {
        let of = event.metadata();
        let rate = match *of.level() {
            Level::ERROR | Level::WARN => ALARMS,
            Level::INFO => NEWS,
            _ => return true,
        };
        if of.target() == REPORT {
            return true;
        }
        let mut sites = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let site = sites.get_or_insert_default().entry(of.callsite()).or_insert_with(|| Site {
            bucket: Bucket::new(rate, now),
            left_out: 0,
            quote: String::new(),
            of,
        });
        let admits = site.bucket.admits(now);
        if !admits {
            if site.left_out == 0 {
                site.quote.clear();
                event.record(&mut Quote(&mut site.quote));
            }
            site.left_out += 1;
        }
        admits
    }

    /// Logs how many lines of which places were left out since the last time.
    pub fn report(&self) {
        let mut silent = Vec::new();
        {
            let mut sites = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            for site in sites.iter_mut().flat_map(HashMap::values_mut).filter(|site| site.left_out > 0) {
                silent.push((std::mem::take(&mut site.left_out), site.quote.clone(), site.of));
            }
        }
        for (lines, first, of) in silent {
            let place = format!("{}:{}", of.file().unwrap_or("?"), of.line().unwrap_or_default());
            tracing::warn!(target: REPORT, lines, first, place, "lines of one kind came too fast and were left out of the log");
        }
    }
}

impl<S: Subscriber> Layer<S> for &'static CallSites {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        self.admits(event, Instant::now())
    }
}

/// The words of an event, as far as they have room.
struct Quote<'a>(&'a mut String);

impl Visit for Quote<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let separator = if self.0.is_empty() { "" } else { " " };
        let _ = match field.name() {
            "message" => write!(self.0, "{separator}{value:?}"),
            name => write!(self.0, "{separator}{name}={value:?}"),
        };
        if let Some((end, _)) = self.0.char_indices().nth(QUOTE_MAX) {
            self.0.truncate(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn a_place_earns_lines_with_time_and_no_more_than_at_once() {
        let start = Instant::now();
        let mut bucket = Bucket::new(Rate { at_once: 3, per_second: 2 }, start);
        let admitted = |bucket: &mut Bucket, ms: u64| bucket.admits(start + Duration::from_millis(ms));
        assert_eq!([0, 0, 0, 0, 499].map(|ms| admitted(&mut bucket, ms)), [true, true, true, false, false]);
        assert_eq!([500, 600, 1000, 1100].map(|ms| admitted(&mut bucket, ms)), [true, false, true, false]);
        let hour = 3_600_000;
        assert_eq!((0..9).filter(|_| admitted(&mut bucket, hour)).count(), 3);
    }

    #[derive(Clone, Default)]
    struct Heard(Arc<Mutex<Vec<String>>>);

    impl<S: Subscriber> Layer<S> for Heard {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            let mut text = String::new();
            event.record(&mut Quote(&mut text));
            self.0.lock().unwrap().push(text);
        }
    }

    #[test]
    fn one_place_is_limited_and_others_are_not() {
        static SITES: CallSites = CallSites(Mutex::new(None));
        let heard = Heard::default();
        let subscriber = tracing_subscriber::registry().with(&SITES).with(heard.clone());
        tracing::subscriber::with_default(subscriber, || {
            let logged = || std::mem::take(&mut *heard.0.lock().unwrap());
            (0..10_000).for_each(|n| tracing::warn!(n, "again"));
            let some = logged().len();
            assert!((50..500).contains(&some), "{some}");
            (0..10).for_each(|_| tracing::warn!("another"));
            (0..10_000).for_each(|_| tracing::debug!("asked for"));
            assert_eq!(logged().len(), 10_010);
            SITES.report();
            let report = logged();
            assert_eq!(report.len(), 1);
            assert!(report[0].contains(&format!("lines={}", 10_000 - some)), "{report:?}");
            assert!(report[0].contains("again n="), "{report:?}");
            SITES.report();
            assert!(logged().is_empty(), "told once");
        });
    }
}
