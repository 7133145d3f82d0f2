//! Sizes as human-readable text.

/// Text of a size in the largest unit that fits, with two decimals unless the unit divides it: `16 GiB`, `1.50 MiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match UNITS.iter().find(|(shift, _)| bytes >> shift > 0) {
        Some((shift, unit)) if bytes.is_multiple_of(1 << shift) => format!("{} {unit}", bytes >> shift),
        Some((shift, unit)) => format!("{:.2} {unit}", bytes as f64 / (1_u64 << shift) as f64),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!([size(16 << 30), size(3 << 19), size(100)], ["16 GiB", "1.50 MiB", "100 bytes"]);
    }
}
