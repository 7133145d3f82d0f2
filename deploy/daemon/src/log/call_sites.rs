//! Rate limit of the log per call site: a peer or a program may cause the same line ten thousand times a second. Each
//! call site has a burst and a rate; the number of suppressed lines is logged.

use std::collections::HashMap;
use std::fmt::{Debug, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Limit of a call site for warnings and errors.
const ALARMS: Rate = Rate { at_once: 50, per_second: 1 };
/// Limit of a call site for information. Debug lines, which only the operator enables, have no limit.
const NEWS: Rate = Rate { at_once: 500, per_second: 50 };
/// Maximum number of characters quoted from a suppressed line.
const QUOTE_MAX: usize = 120;
/// Log target of the lines that report suppressed lines; they have no limit.
const REPORT: &str = concat!(module_path!(), "::report");

/// Call sites of this process, for all threads.
pub static SITES: CallSites = CallSites(Mutex::new(None));

#[derive(Clone, Copy, Debug)]
struct Rate {
    at_once: u32,
    per_second: u32,
}

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

#[derive(Debug)]
struct Site {
    bucket: Bucket,
    left_out: u64,
    /// Text of the first suppressed line since the last report.
    quote: String,
    of: &'static Metadata<'static>,
}

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

    /// Logs the number of lines suppressed since the last report, by call site.
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

/// Text of an event, cut at a limit.
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
    fn a_call_site_earns_lines_over_time_up_to_a_burst() {
        let start = Instant::now();
        let mut bucket = Bucket::new(Rate { at_once: 3, per_second: 2 }, start);
        let admitted = |bucket: &mut Bucket, ms: u64| bucket.admits(start + Duration::from_millis(ms));
        assert_eq!([0, 0, 0, 0, 499].map(|ms| admitted(&mut bucket, ms)), [true, true, true, false, false]);
        assert_eq!([500, 600, 1000, 1100].map(|ms| admitted(&mut bucket, ms)), [true, false, true, false]);
        let hour = 3_600_000;
        assert_eq!((0..9).filter(|_| admitted(&mut bucket, hour)).count(), 3);
    }

    #[derive(Clone, Default)]
    struct CapturedLines(Arc<Mutex<Vec<String>>>);

    impl<S: Subscriber> Layer<S> for CapturedLines {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            let mut text = String::new();
            event.record(&mut Quote(&mut text));
            self.0.lock().unwrap().push(text);
        }
    }

    #[test]
    fn one_place_is_limited_and_others_are_not() {
        static SITES: CallSites = CallSites(Mutex::new(None));
        let heard = CapturedLines::default();
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
