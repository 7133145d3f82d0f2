//! Full histograms as an HdrHistogram log (V2, compressed), which the usual viewers of that format read.
//!
//! Each measurement is one interval, tagged with its name; values are nanoseconds.

use std::io::Write;
use std::time::Duration;

use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};

use super::{ReportError, Samples};

/// Number of nanoseconds in a unit of the log's column `Interval_Max`, which is usually in milliseconds.
const NS_PER_MS: f64 = 1e6;

/// Writes the histograms of `measurements` as an HdrHistogram log. The length of each interval is the sum of
/// its samples, as if all operations had run one after the other.
///
/// # Errors
/// Returns [`ReportError::Log`] when writing fails, or a name cannot be a tag (it contains a comma or a blank).
pub fn write_histogram_log(mut writer: impl Write, measurements: &[&Samples]) -> Result<(), ReportError> {
    fn failed(error: impl ToString) -> ReportError {
        ReportError::Log { message: error.to_string() }
    }
    let mut serializer = V2DeflateSerializer::new();
    let mut log = IntervalLogWriterBuilder::new()
        .add_comment("[Histogram log format version 1.3]")
        .add_comment("[Values are nanoseconds; one interval per measurement, tagged with its name]")
        .with_max_value_divisor(NS_PER_MS)
        .begin_log_with(&mut writer, &mut serializer)
        .map_err(failed)?;
    let mut start = Duration::ZERO;
    for samples in measurements {
        let name = samples.name();
        let tag = Tag::new(name)
            .ok_or_else(|| failed(format!("{name:?} cannot be a tag; use letters and digits")))?;
        let histogram = samples.histogram_ns();
        let length = Duration::from_secs_f64(histogram.mean() * histogram.len() as f64 / 1e9);
        log.write_histogram(&histogram, start, length, Some(tag)).map_err(|e| failed(format!("{e:?}")))?;
        start += length;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use hdrhistogram::Histogram;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    use super::*;

    #[test]
    fn the_log_holds_every_measurement() {
        let (mut read, mut hit) = (Samples::new("read64"), Samples::fine("hit_read64"));
        (1..=1000).for_each(|time| read.record_ns(time));
        read.end_trial(None);
        hit.record_batch(5_200.0, 1000);
        let mut log = Vec::new();
        write_histogram_log(&mut log, &[&read, &hit]).unwrap();
        let intervals: Vec<_> = IntervalLogIterator::new(&log)
            .filter_map(|entry| match entry.unwrap() {
                LogEntry::Interval(interval) => {
                    Some((interval.tag().unwrap().as_str().to_owned(), interval.max()))
                }
                _ => None,
            })
            .collect();
        assert_eq!(intervals, [("read64".to_owned(), 0.001), ("hit_read64".to_owned(), 0.0)]);
    }

    #[test]
    fn the_histogram_in_it_is_the_one_recorded() {
        use hdrhistogram::serialization::{Deserializer, Serializer};
        let mut samples = Samples::new("x");
        (1..=1000).for_each(|time| samples.record_ns(7 * time));
        let histogram = samples.histogram_ns();
        let mut bytes = Vec::new();
        V2DeflateSerializer::new().serialize(&histogram, &mut bytes).unwrap();
        let back: Histogram<u64> = Deserializer::new().deserialize(&mut bytes.as_slice()).unwrap();
        assert_eq!(back, histogram);
    }

    #[test]
    fn a_name_that_is_no_tag_is_refused() {
        let error = write_histogram_log(Vec::new(), &[&Samples::new("a, b")]).unwrap_err();
        assert!(error.to_string().contains("a, b"), "{error}");
    }
}
