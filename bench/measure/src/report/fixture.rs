//! Small reports for the tests of the module `report`.

use super::{Latency, Link, Report, Samples, Throughput, ThroughputTrial};
use crate::machine::Machine;

pub(super) fn report() -> Report {
    let machine = Machine {
        cpu: "Test <CPU> & Co".into(),
        cores: 2,
        kernel: "6.1.0".into(),
        bounce_ns: Some(125.5),
        hypervisor: None,
    };
    let interfaces = vec!["cn0".into(), "mn0".into()];
    Report::new(
        machine,
        Link { backend: "xdp".into(), interfaces, mtu: 1500, wait: "busy".into(), frames: String::new() },
    )
}

/// Makes a latency with trials of ten equal samples; each trial is given as core round trip and time, in
/// nanoseconds.
pub(super) fn latency(name: &str, trials: &[(Option<f64>, u64)]) -> Latency {
    let mut samples = Samples::new(name);
    for &(bounce, time) in trials {
        (0..10).for_each(|_| samples.record_ns(time));
        samples.end_trial(bounce);
    }
    samples.summary().expect("there are samples")
}

/// Makes a rate with trials of 64-byte operations; each trial is given as core round trip and operations per
/// second.
pub(super) fn rate(name: &str, trials: &[(Option<f64>, f64)]) -> Throughput {
    let trial =
        |&(bounce_ns, ops_per_s)| ThroughputTrial { bounce_ns, ops_per_s, bytes_per_s: 64.0 * ops_per_s };
    Throughput::from_trials(name, trials.iter().map(trial).collect()).expect("there are trials")
}
