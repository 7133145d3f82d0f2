//! Results on standard output, as the CXL tools print them: JSON, sizes and addresses as integers, or with `-u` as
//! people read them.

use std::io::Write;

use cxloe_gmm::model::human_bytes;
use serde_json::Value;

use super::failure::Failure;

/// Fields that are numbers of bytes.
const SIZES: [&str; 4] = ["size", "bytes", "rx_bytes", "tx_bytes"];
/// Fields that are addresses.
const HEXADECIMAL: [&str; 2] = ["hpa", "offset"];

/// Turns the numbers of a result into text for people, wherever they are in it.
fn humanize(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(humanize),
        Value::Object(fields) => {
            for (key, field) in fields {
                match field.as_u64() {
                    Some(bytes) if SIZES.contains(&key.as_str()) => *field = human_bytes(bytes).into(),
                    Some(number) if HEXADECIMAL.contains(&key.as_str()) => {
                        *field = format!("{number:#x}").into();
                    }
                    Some(time) if key.ends_with("_ns") => {
                        *field = format!("{:.1} us", time as f64 / 1e3).into()
                    }
                    _ => humanize(field),
                }
            }
        }
        _ => {}
    }
}

/// Prints a result. An empty array is two lines, as the CXL tools have it.
///
/// # Errors
/// When standard output is closed.
pub fn print(mut value: Value, human: bool) -> Result<(), Failure> {
    if human {
        humanize(&mut value);
    }
    let text = match &value {
        Value::Array(items) if items.is_empty() => "[\n]".to_owned(),
        value => format!("{value:#}"),
    };
    write(format!("{text}\n").as_bytes())
}

/// Writes bytes as they are.
///
/// # Errors
/// When standard output is closed.
pub fn write(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes)
        .and_then(|()| out.flush())
        .map_err(|error| Failure::failed(format!("cannot write to standard output: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_are_turned_where_they_mean_bytes_addresses_or_times() {
        let mut value = json!([{"hpa": 1_u64 << 40, "size": 4096, "streams": 4, "rtt_ns": 12_340}]);
        humanize(&mut value);
        let expected = json!([{"hpa": "0x10000000000", "size": "4.00 KiB (4.10 KB)", "streams": 4, "rtt_ns": "12.3 us"}]);
        assert_eq!(value, expected);
    }
}
