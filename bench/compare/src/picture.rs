//! The figures of a comparison as one picture: a group of bars for each pattern, a bar for each peer.

use super::pattern::Pattern;
use super::report::{Comparison, value};
use super::run::Figure;
use cxloe_measure::report::{Bar, BarGroup, ReportError, bar_groups};

/// Maximum number of characters in a line of notes.
const LINE: usize = 100;

impl Comparison {
    /// Picture as SVG.
    ///
    /// # Errors
    /// Returns [`ReportError::Picture`] when it cannot be drawn.
    pub fn picture(&self) -> Result<String, ReportError> {
        let groups: Vec<BarGroup> = self.patterns.iter().filter_map(|one| self.group(*one)).collect();
        let baseline = self.baseline.as_ref().map_or_else(String::new, |name| format!(" {name}'s"));
        let mut notes = lines(&format!(
            "Times are p50 (p99), shorter is better; rates are per second, longer is better. In brackets: how many \
             times{}.",
            if baseline.is_empty() { " the baseline's" } else { &baseline }
        ));
        if !self.absent_figures.is_empty() {
            notes.extend(lines("A system without a bar cannot make that access; the table has the reasons."));
        }
        if !self.absent.is_empty() {
            let names: Vec<&str> = self.absent.iter().map(|one| one.peer.as_str()).collect();
            notes.extend(lines(&format!("Not measured: {}; the table has the reasons.", names.join(", "))));
        }
        bar_groups("Remote memory beside other systems", &groups, &notes)
    }

    /// Bars of one pattern; `None` if no peer has a figure.
    fn group(&self, pattern: Pattern) -> Option<BarGroup> {
        let bar = |(colour, (peer, _)): (usize, &(&'static str, _))| {
            let figure = self.figure(peer, pattern)?;
            // A load's rate takes the place of the ratio, which would not fit beside it.
            let text = match figure.offered_per_s {
                Some(_) => value(figure, pattern),
                None => self.cell(peer, pattern),
            };
            Some(Bar { name: (*peer).to_owned(), value: length(figure, pattern)?, text, colour })
        };
        let bars: Vec<Bar> = self.peers.iter().enumerate().filter_map(bar).collect();
        (!bars.is_empty()).then(|| BarGroup { title: title(pattern).to_owned(), bars })
    }
}

/// Value that a bar shows: that which the table has.
fn length(figure: &Figure, pattern: Pattern) -> Option<f64> {
    let rate = if pattern.counts_operations() { figure.ops_per_s } else { figure.bytes_per_s };
    figure.p50_ns.or(figure.mean_ns).or(rate)
}

fn title(pattern: Pattern) -> &'static str {
    match pattern {
        Pattern::Read64 => "read64: time to read 64 bytes at a random place",
        Pattern::Read4k => "read4k: time to read 4 KiB at a random place",
        Pattern::Read1m => "read1m: time to read 1 MiB at a random place",
        Pattern::Seq64 => "seq64: time to read the next 64 bytes",
        Pattern::Seq4k => "seq4k: time to read the next 4 KiB",
        Pattern::Seq1m => "seq1m: time to read the next 1 MiB",
        Pattern::Stream64 => "stream64: random reads of 64 bytes a second, many in flight",
        Pattern::Stream4k => "stream4k: random reads of 4 KiB, many in flight",
        Pattern::Stream1m => "stream1m: random reads of 1 MiB, several in flight",
        Pattern::SeqStream64 => "seq_stream64: reads of 64 bytes a second in order, many in flight",
        Pattern::SeqStream4k => "seq_stream4k: reads of 4 KiB in order, many in flight",
        Pattern::SeqStream1m => "seq_stream1m: reads of 1 MiB in order, several in flight",
        Pattern::Load25 => "load25: time to read 64 bytes at 25 % of the system's own highest rate",
        Pattern::Load50 => "load50: time to read 64 bytes at 50 % of the system's own highest rate",
        Pattern::Load75 => "load75: time to read 64 bytes at 75 % of the system's own highest rate",
        Pattern::Load90 => "load90: time to read 64 bytes at 90 % of the system's own highest rate",
        Pattern::Write64 => "write64: time to write 64 bytes at a random place, until acknowledged",
        Pattern::BulkRead => "bulk_read: all memory read in order",
        Pattern::BulkWrite => "bulk_write: all memory written in order",
        Pattern::Trace => "trace: time of an access of the recorded trace",
    }
}

/// Words of a text in lines of at most [`LINE`] characters.
fn lines(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= LINE => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::comparison;
    use super::*;

    #[test]
    fn each_figure_has_a_bar_and_who_is_missing_is_named() {
        let svg = comparison().picture().unwrap();
        for words in [
            "read64: time",
            "cxloe-packet",
            "mean-only",
            "2.50 µs mean [2.50]",
            "Not measured: redis;",
            "without a bar",
        ] {
            assert!(svg.contains(words), "{words} in {svg}");
        }
        assert!(!svg.contains("write64:"), "nobody has a figure of it");
    }

    #[test]
    fn long_notes_are_broken() {
        let text = "word ".repeat(50);
        let broken = lines(&text);
        assert!(broken.len() == 3 && broken.iter().all(|line| line.chars().count() <= LINE), "{broken:?}");
        assert_eq!(broken.join(" "), text.trim_end());
    }
}
