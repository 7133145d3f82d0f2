//! Numbers for the screen: three digits and a prefix, so that columns are narrow.

use std::time::Duration;

/// Formats `value` with three digits and a decimal prefix, as in `1.23k`.
pub fn short(value: f64) -> String {
    let (mut value, mut prefix) = (value, "");
    for next in ["k", "M", "G", "T"] {
        if value.abs() < 999.5 {
            break;
        }
        (value, prefix) = (value / 1000.0, next);
    }
    if prefix.is_empty() && value.fract().abs() < 0.05 {
        return format!("{value:.0}");
    }
    match value.abs() {
        v if v < 9.995 => format!("{value:.2}{prefix}"),
        v if v < 99.95 => format!("{value:.1}{prefix}"),
        _ => format!("{value:.0}{prefix}"),
    }
}

/// Formats a rate in bytes per second as bits on the wire, as in `9.41Gbit/s`.
pub fn bits(bytes_per_s: f64) -> String {
    format!("{}bit/s", short(bytes_per_s * 8.0))
}

/// Formats a number of bytes with a binary prefix, as in `1.5GiB`.
pub fn bytes(value: u64) -> String {
    let (mut scaled, mut unit) = (value as f64, "B");
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if scaled < 1024.0 {
            break;
        }
        (scaled, unit) = (scaled / 1024.0, next);
    }
    if scaled.fract() == 0.0 || unit == "B" {
        format!("{scaled:.0}{unit}")
    } else {
        format!("{scaled:.1}{unit}")
    }
}

/// Formats a share, as in `98.3%`; `-` for `None`.
pub fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".into(), |share| format!("{:.1}%", share * 100.0))
}

/// Formats a duration, as in `16.2µs`; `-` for `None`.
pub fn time(value: Option<Duration>) -> String {
    match value {
        None => "-".into(),
        Some(value) if value >= Duration::from_secs(1) => format!("{:.1}s", value.as_secs_f64()),
        Some(value) => format!("{value:.1?}"),
    }
}

/// Plain word for a phase of the rate control, which the paper names by a letter.
pub fn phase(letter: char) -> &'static str {
    match letter {
        'a' => "steady",
        'b' => "slowed",
        'c' => "recovering",
        'd' => "slowed again",
        'e' => "exploring",
        'f' => "guessing",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        let shown = [0.0, 7.0, 0.5, 12.34, 999.4, 999.6, 1234.0, 45_600.0, 7.8e9].map(short);
        assert_eq!(shown, ["0", "7", "0.50", "12.3", "999", "1.00k", "1.23k", "45.6k", "7.80G"]);
        assert_eq!(bits(1.25e9), "10.0Gbit/s");
        assert_eq!([0, 1023, 4096, 6 << 29, 3 << 40].map(bytes), ["0B", "1023B", "4KiB", "3GiB", "3TiB"]);
        assert_eq!((percent(Some(0.983)), percent(None)), ("98.3%".into(), "-".into()));
        assert_eq!(time(Some(Duration::from_nanos(16_240))), "16.2µs");
        assert_eq!((time(Some(Duration::from_millis(2500))), time(None)), ("2.5s".into(), "-".into()));
    }

    #[test]
    fn every_phase_has_a_word_of_its_own() {
        let words: std::collections::BTreeSet<&str> =
            cxloe_cc::Phase::ALL.iter().map(|of| phase(of.letter())).collect();
        assert!(words.len() == 6 && !words.contains("unknown"), "{words:?}");
    }
}
