//! Access patterns that every peer runs.
//!
//! ```text
//!                          64 B           4 KiB          1 MiB
//!   random, one           read64         read4k         read1m          a time
//!   in order, one         seq64          seq4k          seq1m           a time
//!   random, many          stream64       stream4k       stream1m        a rate
//!   in order, many        seq_stream64   seq_stream4k   seq_stream1m    a rate
//!   random, at a rate     load25 load50 load75 load90                   a time, from the intended start
//!   others                write64, trace: a time; bulk_read, bulk_write: a rate
//! ```

use super::unit::{AccessUnit, LINE};

/// Bytes of a block, the unit of bulk transfers of a peer that cannot transfer all at once.
pub const BLOCK: usize = 65536;

cxloe_wire::named! {
    /// Access pattern, the same for all peers, in the order of reports. A trace is measured only if a file has one.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Pattern {
        /// Reads of random lines, one at a time: each is a round trip that ends when its bytes have arrived.
        Read64 = "read64",
        /// Reads of random pages, one at a time.
        Read4k = "read4k",
        /// Reads of random stretches of 1 MiB, one at a time.
        Read1m = "read1m",
        /// Reads of one line after the other, one at a time.
        Seq64 = "seq64",
        Seq4k = "seq4k",
        Seq1m = "seq1m",
        /// Reads of random lines with many requests in flight.
        Stream64 = "stream64",
        Stream4k = "stream4k",
        Stream1m = "stream1m",
        /// Reads of one line after the other with many requests in flight.
        SeqStream64 = "seq_stream64",
        SeqStream4k = "seq_stream4k",
        SeqStream1m = "seq_stream1m",
        /// Reads of random lines that begin at moments given in advance, at a quarter of the peer's own highest rate.
        Load25 = "load25",
        Load50 = "load50",
        Load75 = "load75",
        Load90 = "load90",
        /// Writes of random lines, one at a time: each is a round trip that ends with the acknowledgement.
        Write64 = "write64",
        /// Read of the whole memory in order, as fast as possible.
        BulkRead = "bulk_read",
        /// Write of the whole memory in order, until the last byte is acknowledged.
        BulkWrite = "bulk_write",
        /// Accesses of a recorded trace in their order, one at a time, each in whole lines.
        Trace = "trace",
    }
}

/// Order of the places that reads of a pattern touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessOrder {
    Random,
    /// Each place follows the one before; the first follows the last.
    Sequential,
}

/// Reads of a pattern that consists of reads of one size, as fast as the peer answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadShape {
    pub unit: AccessUnit,
    pub order: AccessOrder,
    /// True if many requests are in flight; the result is then a rate.
    pub is_many: bool,
}

impl Pattern {
    /// Reads that the pattern consists of; `None` if it is none of sizes and orders.
    pub fn read_shape(self) -> Option<ReadShape> {
        use AccessOrder::{Random, Sequential};
        use AccessUnit::{Line, Page, Stretch};
        let (unit, order, is_many) = match self {
            Pattern::Read64 => (Line, Random, false),
            Pattern::Read4k => (Page, Random, false),
            Pattern::Read1m => (Stretch, Random, false),
            Pattern::Seq64 => (Line, Sequential, false),
            Pattern::Seq4k => (Page, Sequential, false),
            Pattern::Seq1m => (Stretch, Sequential, false),
            Pattern::Stream64 => (Line, Random, true),
            Pattern::Stream4k => (Page, Random, true),
            Pattern::Stream1m => (Stretch, Random, true),
            Pattern::SeqStream64 => (Line, Sequential, true),
            Pattern::SeqStream4k => (Page, Sequential, true),
            Pattern::SeqStream1m => (Stretch, Sequential, true),
            Pattern::Load25 | Pattern::Load50 | Pattern::Load75 | Pattern::Load90 => return None,
            Pattern::Write64 | Pattern::BulkRead | Pattern::BulkWrite | Pattern::Trace => return None,
        };
        Some(ReadShape { unit, order, is_many })
    }

    /// Rate at which a load offers reads, as a share of the peer's own highest rate; `None` if it is no load.
    pub fn load_share(self) -> Option<f64> {
        match self {
            Pattern::Load25 => Some(0.25),
            Pattern::Load50 => Some(0.5),
            Pattern::Load75 => Some(0.75),
            Pattern::Load90 => Some(0.9),
            _ => None,
        }
    }

    /// True if each operation is timed; the results of other patterns are rates.
    pub fn is_time(self) -> bool {
        match self.read_shape() {
            Some(shape) => !shape.is_many,
            None => !matches!(self, Pattern::BulkRead | Pattern::BulkWrite),
        }
    }

    /// True if a rate is shown in operations, because its operations are lines; other rates are shown in bytes.
    pub fn counts_operations(self) -> bool {
        self.read_shape().is_some_and(|shape| shape.is_many && shape.unit == AccessUnit::Line)
    }

    /// Bytes that one operation transfers; of a trace, at least.
    pub fn bytes(self) -> usize {
        match (self.read_shape(), self) {
            (Some(shape), _) => shape.unit.bytes(),
            (None, Pattern::BulkRead | Pattern::BulkWrite) => BLOCK,
            (None, _) => LINE,
        }
    }

    /// Name of the patterns that differ from this one in their size or load only.
    pub fn group(self) -> &'static str {
        match (self.read_shape(), self) {
            (Some(ReadShape { order: AccessOrder::Random, is_many: false, .. }), _) => "read",
            (Some(ReadShape { order: AccessOrder::Sequential, is_many: false, .. }), _) => "seq",
            (Some(ReadShape { order: AccessOrder::Random, is_many: true, .. }), _) => "stream",
            (Some(ReadShape { order: AccessOrder::Sequential, is_many: true, .. }), _) => "seq_stream",
            (None, Pattern::Write64) => "write",
            (None, Pattern::BulkRead | Pattern::BulkWrite) => "bulk",
            (None, Pattern::Trace) => "trace",
            (None, _) => "load",
        }
    }

    /// True if `word`, a value of `--patterns`, is the name of this pattern, of its group, or of its size among reads.
    pub fn is_meant(self, word: &str) -> bool {
        let has_size = |shape: ReadShape| shape.unit.name() == word;
        self.name() == word || self.group() == word || self.read_shape().is_some_and(has_size)
    }
}

#[cfg(test)]
mod tests {
    use super::super::unit::STRETCH;
    use super::*;

    #[test]
    fn names_say_size_and_group() {
        for pattern in Pattern::ALL {
            if let Some(shape) = pattern.read_shape() {
                assert_eq!(pattern.name(), format!("{}{}", pattern.group(), shape.unit.name()));
            }
            if let Some(share) = pattern.load_share() {
                assert_eq!(pattern.name(), format!("load{:.0}", share * 100.0));
            }
            assert!(pattern.name().starts_with(pattern.group()), "{pattern}");
        }
    }

    #[test]
    fn words_mean_a_pattern_a_group_or_a_size() {
        let meant = |word| Pattern::ALL.into_iter().filter(|pattern| pattern.is_meant(word)).count();
        let words =
            ["read64", "read", "seq", "stream", "seq_stream", "load", "bulk", "1m", "64", "trace", "str"];
        assert_eq!(words.map(meant), [1, 3, 3, 3, 3, 4, 2, 4, 4, 1, 0]);
    }

    #[test]
    fn a_pattern_is_a_time_or_a_rate() {
        let rates: Vec<&str> =
            Pattern::ALL.into_iter().filter(|pattern| !pattern.is_time()).map(Pattern::name).collect();
        let many = ["stream64", "stream4k", "stream1m", "seq_stream64", "seq_stream4k", "seq_stream1m"];
        assert_eq!(rates, [&many[..], &["bulk_read", "bulk_write"]].concat());
        assert_eq!(
            [Pattern::Stream1m, Pattern::Load90, Pattern::BulkRead].map(Pattern::bytes),
            [STRETCH, LINE, BLOCK]
        );
    }
}
