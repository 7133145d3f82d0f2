//! Reports as tables in a terminal, and comparisons of two reports.

pub use cxloe_daemon::command_line::{Table, new_table};

use super::{Ratio, Report, Statistic, units};

impl Report {
    /// Formats a line about machine and link, then tables of the latencies, rates, costs, ratios and goals that the
    /// report has.
    pub fn tables(&self) -> String {
        let mut parts = vec![self.headline()];
        if !self.results.is_empty() {
            let mut table = new_table(["time", "samples", "p50", "p99", "p99.9", "max", "p50 / limit"]);
            for r in &self.results {
                let times = [r.p50, r.p99, r.p999, r.max].map(units::time);
                let mut row = vec![r.name.clone(), units::count(r.count)];
                row.extend(times);
                row.push(self.ratio_of(&r.name, &[Statistic::P50]));
                table.add_row(row);
            }
            parts.push(table.to_string());
        }
        if !self.throughput.is_empty() {
            let mut table = new_table(["rate", "operations", "payload", "/ limit"]);
            for t in &self.throughput {
                let ratio = self.ratio_of(&t.name, &[Statistic::OpsPerS, Statistic::BytesPerS]);
                table.add_row([
                    t.name.clone(),
                    units::operations(t.ops_per_s),
                    units::bytes(t.bytes_per_s),
                    ratio,
                ]);
            }
            parts.push(table.to_string());
        }
        if !self.costs.is_empty() {
            let mut table = new_table(super::cost::HEADS);
            for cost in &self.costs {
                table.add_row(cost.cells());
            }
            parts.push(table.to_string());
        }
        if !self.ratios.is_empty() {
            let mut table = new_table(["ratio", "of", "value", "over the limit", "target", "trials"]);
            for ratio in &self.ratios {
                let (target, trials) = (ratio.target_text(), ratio.trials_text());
                table.add_row([
                    ratio.name.clone(),
                    ratio.statistic.name().into(),
                    format!("{:.2}", ratio.value),
                    ratio.over_text(),
                    target,
                    trials,
                ]);
            }
            parts.push(table.to_string());
        }
        if !self.goals.is_empty() {
            let mut table = new_table(super::goal::HEADS);
            for goal in &self.goals {
                table.add_row(goal.cells());
            }
            parts.push(table.to_string());
        }
        parts.join("\n") + "\n"
    }

    /// Describes machine and link in one line.
    pub fn headline(&self) -> String {
        let (machine, link) = (&self.machine, &self.link);
        let bounce = machine
            .bounce_ns
            .map_or_else(String::new, |ns| format!(", core to core and back {}", units::time(ns)));
        let frames = match link.frames.as_str() {
            "" => String::new(),
            frames => format!(", frames {frames}"),
        };
        format!(
            "{}, {} cores{bounce}, Linux {}; {} over {}, MTU {}, waiting {}{frames}",
            machine.cpu,
            machine.cores,
            machine.kernel,
            link.backend,
            link.interfaces.join(" - "),
            link.mtu,
            link.wait
        )
    }

    /// Formats the first ratio that divides `name` by a limit in one of these statistics; empty if there is
    /// none.
    fn ratio_of(&self, name: &str, statistics: &[Statistic]) -> String {
        let is_of = |r: &&Ratio| {
            r.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('/'))
                && statistics.contains(&r.statistic)
        };
        self.ratios.iter().find(is_of).map_or_else(String::new, |r| format!("{:.2}", r.value))
    }
}

impl Ratio {
    /// Formats the difference of a latency and its limit in nanoseconds, which a ratio of short times does
    /// not show; empty for rates.
    pub(super) fn over_text(&self) -> String {
        self.over.map_or_else(String::new, |ns| format!("{ns:+.0} ns"))
    }

    /// Formats the target and whether it is reached; empty without a target.
    pub(super) fn target_text(&self) -> String {
        let Some(target) = self.target else { return String::new() };
        let sign = if self.statistic.is_cost() { '≤' } else { '≥' };
        let mark = if self.reached() == Some(true) { "reached" } else { "missed" };
        format!("{sign} {target:.2} {mark}")
    }

    /// Formats the number and the class of the trials that the ratio compares.
    pub(super) fn trials_text(&self) -> String {
        let count = self.trials.map_or_else(String::new, |n| n.to_string());
        self.class.map_or(count.clone(), |class| format!("{count} {}", class.name()).trim().to_owned())
    }
}

/// Compares two runs in tables: the results of both, and the relative changes from `old` to `new`.
pub fn comparison(old: &Report, new: &Report) -> String {
    let change = |old: f64, new: f64| {
        if old > 0.0 { format!("{:+.1} %", 100.0 * (new / old - 1.0)) } else { "-".into() }
    };
    let mut times = new_table(["time", "p50 old", "p50 new", "change", "p99 old", "p99 new", "change"]);
    for n in &new.results {
        if let Some(o) = old.result(&n.name) {
            let row = [units::time(o.p50), units::time(n.p50), change(o.p50, n.p50)];
            let tail = [units::time(o.p99), units::time(n.p99), change(o.p99, n.p99)];
            times.add_row([vec![n.name.clone()], row.to_vec(), tail.to_vec()].concat());
        }
    }
    let mut rates = new_table(["rate", "old", "new", "change"]);
    for n in &new.throughput {
        if let Some(o) = old.rate(&n.name) {
            let both = [o.ops_per_s, n.ops_per_s].map(units::operations);
            rates.add_row(
                [vec![n.name.clone()], both.to_vec(), vec![change(o.ops_per_s, n.ops_per_s)]].concat(),
            );
        }
    }
    let mut ratios = new_table(["ratio", "of", "old", "new", "change"]);
    for n in &new.ratios {
        if let Some(o) = old.ratios.iter().find(|o| o.name == n.name && o.statistic == n.statistic) {
            let both = [o.value, n.value].map(|value| format!("{value:.2}"));
            let label = vec![n.name.clone(), n.statistic.name().into()];
            ratios.add_row([label, both.to_vec(), vec![change(o.value, n.value)]].concat());
        }
    }
    let tables =
        [times, rates, ratios].into_iter().filter(|table| table.row_count() > 0).map(|t| t.to_string());
    let heads = [format!("old: {}", old.headline()), format!("new: {}", new.headline())];
    heads.into_iter().chain(tables).collect::<Vec<_>>().join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{latency, rate, report};
    use super::*;

    fn row<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
        let line = text.lines().find(|l| l.starts_with(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("no row {name} in\n{text}"))
            .split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty())
            .collect()
    }

    fn measured(read: u64) -> Report {
        let mut report = report();
        report.results = vec![latency("echo64", &[(None, 2000)]), latency("read64", &[(None, read)])];
        report.throughput = vec![rate("burst_read", &[(None, 2e6)])];
        report.add_ratio("read64/echo64", Statistic::P50, Some(1.2)).unwrap();
        report
    }

    #[test]
    fn rows_show_times_and_ratios() {
        let text = measured(2400).tables();
        assert!(text.starts_with("Test <CPU> & Co, 2 cores, core to core and back 126 ns"), "{text}");
        assert_eq!(row(&text, "echo64"), ["echo64", "10", "2.00 µs", "2.00 µs", "2.00 µs", "2.00 µs"]);
        assert_eq!(
            row(&text, "read64"),
            ["read64", "10", "2.40 µs", "2.40 µs", "2.40 µs", "2.40 µs", "1.20"]
        );
        assert_eq!(row(&text, "burst_read"), ["burst_read", "2.00 M/s", "122 MiB/s"]);
        assert_eq!(
            row(&text, "read64/echo64"),
            ["read64/echo64", "p50", "1.20", "+401 ns", "≤ 1.20 missed", "1"]
        );
        assert!(measured(2390).tables().contains("≤ 1.20 reached"));
        assert_eq!(report().tables().lines().count(), 1, "no empty tables");
    }

    #[test]
    fn two_runs_are_compared() {
        let text = comparison(&measured(2400), &measured(3600));
        assert_eq!(row(&text, "read64")[1..4], ["2.40 µs", "3.60 µs", "+50.0 %"]);
        assert_eq!(row(&text, "burst_read")[1..], ["2.00 M/s", "2.00 M/s", "+0.0 %"]);
        assert_eq!(row(&text, "read64/echo64")[1..], ["p50", "1.20", "1.80", "+50.0 %"]);
        assert!(!comparison(&report(), &measured(1)).contains("read64"));
    }
}
