//! Human-readable numbers: three significant digits and a unit.

/// Formats a time given in nanoseconds.
pub fn time(ns: f64) -> String {
    scaled(ns, &[(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")])
}

/// Formats a rate in operations per second.
pub fn operations(per_s: f64) -> String {
    scaled(per_s, &[(1e9, "G/s"), (1e6, "M/s"), (1e3, "k/s"), (1.0, "/s")])
}

/// Formats a rate in bytes per second, with units that are powers of 1024.
pub fn bytes(per_s: f64) -> String {
    const KI: f64 = 1024.0;
    scaled(per_s, &[(KI * KI * KI, "GiB/s"), (KI * KI, "MiB/s"), (KI, "KiB/s"), (1.0, "B/s")])
}

/// Formats a number with narrow spaces between the groups of three digits.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// Removes the trailing zeros of the decimals from a number with a unit, for labels of ticks.
pub fn brief(text: &str) -> String {
    match text.split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text.to_owned(),
    }
}

/// Formats a value in the largest unit in which the rounded number is at least 1, else in the smallest unit.
fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    let fits = |unit: &&(f64, &str)| value.abs() / unit.0 >= 0.9995;
    let Some(&(size, name)) = units.iter().find(fits).or(units.last()) else { return value.to_string() };
    let number = value / size;
    let decimals = match number.abs() {
        n if n >= 99.95 => 0,
        n if n >= 9.995 => 1,
        _ => 2,
    };
    format!("{number:.decimals$} {name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_a_unit() {
        let cases =
            [(0.0, "0.00 ns"), (4.7, "4.70 ns"), (99.96, "100 ns"), (999.6, "1.00 µs"), (1980.0, "1.98 µs")];
        for (ns, text) in cases {
            assert_eq!(time(ns), text);
        }
        assert_eq!(time(12_345_678.0), "12.3 ms");
        assert_eq!(time(2.5e9), "2.50 s");
        assert_eq!(operations(1_234_567.0), "1.23 M/s");
        assert_eq!(bytes(1.5 * 1024.0 * 1024.0 * 1024.0), "1.50 GiB/s");
        assert_eq!(bytes(700.0), "700 B/s");
    }

    #[test]
    fn round_numbers_are_brief() {
        assert_eq!(
            ["2.00 µs", "1.50 ns", "100 ns", "20.000 %"].map(brief),
            ["2 µs", "1.5 ns", "100 ns", "20 %"]
        );
    }

    #[test]
    fn thousands_are_apart() {
        let plain = |number| count(number).replace('\u{202f}', " ");
        assert_eq!([0, 999, 1000, 1_234_567].map(plain), ["0", "999", "1 000", "1 234 567"]);
    }
}
