//! Human-readable numbers in results: sizes, addresses and times, recognised by the names of their fields.

use std::time::{Duration, UNIX_EPOCH};

use cxloe_fabric::model::human_bytes;
use serde_json::Value;

/// Names of fields that are sizes in bytes.
const SIZES: [&str; 19] = [
    "size",
    "bytes",
    "growing",
    "capacity",
    "reserved",
    "quota",
    "ram_size",
    "pool_bytes",
    "extent_bytes",
    "free_bytes",
    "used_bytes",
    "reserved_bytes",
    "draining_bytes",
    "rx_bytes",
    "tx_bytes",
    "window",
    "beyond_window",
    "limit",
    "resident",
];
/// Names of fields that are addresses or identities, best read in hexadecimal.
const HEXADECIMAL: [&str; 8] =
    ["resource", "serial", "cmem_base", "cmem_next", "hpa", "offset", "incarnation", "aer"];
/// Suffix of the names of fields that are times in nanoseconds.
const NANOSECONDS: &str = "_ns";
/// Names of fields that are points in time: milliseconds since the Unix epoch.
const MOMENTS: [&str; 7] =
    ["time_ms", "created_ms", "expires_ms", "renew_ms", "since_ms", "heard_ms", "reported_ms"];
/// Last point in time with a year of four digits; RFC 3339 has no later one.
const MOMENT_MAX_MS: u64 = 253_402_300_799_999;

/// Replaces the numbers of a result, nested ones included, by human-readable text.
fn humanize(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(humanize),
        Value::Object(fields) => {
            for (key, field) in fields {
                match field.as_u64().and_then(|number| text(key, number)) {
                    Some(text) => *field = text.into(),
                    None => humanize(field),
                }
            }
        }
        _ => {}
    }
}

/// Human-readable text of a number; `None` if the number stays as it is.
fn text(key: &str, number: u64) -> Option<String> {
    if SIZES.contains(&key) {
        Some(human_bytes(number))
    } else if HEXADECIMAL.contains(&key) {
        Some(format!("{number:#x}"))
    } else if MOMENTS.contains(&key) {
        let moment = UNIX_EPOCH + Duration::from_millis(number.min(MOMENT_MAX_MS));
        Some(humantime::format_rfc3339_millis(moment).to_string())
    } else {
        key.ends_with(NANOSECONDS).then(|| format!("{:.1} us", number as f64 / 1e3))
    }
}

pub fn for_people(mut value: Value) -> Value {
    humanize(&mut value);
    value
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_are_turned_where_they_mean_bytes_addresses_or_times() {
        let mut value = json!([
            {"size": 536_870_912_u64, "ways": 1, "legs": [{"cmem_base": 2_097_152, "bytes": 4096}]},
            {"hpa": 1_u64 << 40, "size": 4096, "streams": 4, "rtt_ns": 12_340},
            {"time_ms": 86_400_001, "created_ms": u64::MAX, "serial": 255, "quota": null},
            {"expires_ms": 1_000, "resident": 4096},
        ]);
        humanize(&mut value);
        let expected = json!([
            {"size": "512.00 MiB (536.87 MB)", "ways": 1,
             "legs": [{"cmem_base": "0x200000", "bytes": "4.00 KiB (4.10 KB)"}]},
            {"hpa": "0x10000000000", "size": "4.00 KiB (4.10 KB)", "streams": 4, "rtt_ns": "12.3 us"},
            {"time_ms": "1970-01-02T00:00:00.001Z", "created_ms": "9999-12-31T23:59:59.999Z", "serial": "0xff",
             "quota": null},
            {"expires_ms": "1970-01-01T00:00:01.000Z", "resident": "4.00 KiB (4.10 KB)"},
        ]);
        assert_eq!(value, expected);
    }
}
