//! Results on standard output, as the CXL tools print them: JSON, sizes and addresses as integers, or with `-u` as people
//! read them.

use std::io::Write;

use cxloe_gmm::model::human_bytes;
use serde_json::Value;

use super::failure::Failure;

/// Fields that are numbers of bytes.
const SIZES: [&str; 6] = ["size", "bytes", "pool_bytes", "extent_bytes", "free_bytes", "draining_bytes"];
/// Fields that are addresses or identities best read in hexadecimal.
const HEXADECIMAL: [&str; 4] = ["cmem_base", "cmem_next", "offset", "incarnation"];

/// Turns the numbers of a result into text for people, wherever they are in it.
pub fn humanize(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(humanize),
        Value::Object(fields) => {
            for (key, field) in fields {
                match field.as_u64() {
                    Some(bytes) if SIZES.contains(&key.as_str()) => {
                        *field = Value::String(human_bytes(bytes))
                    }
                    Some(number) if HEXADECIMAL.contains(&key.as_str()) => {
                        *field = Value::String(format!("0x{number:x}"));
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
    line(&text)
}

/// Prints one line.
///
/// # Errors
/// When standard output is closed.
pub fn line(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")
        .and_then(|()| out.flush())
        .map_err(|error| Failure::failed(format!("cannot write to standard output: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_are_turned_where_they_mean_bytes_or_addresses() {
        let mut value =
            json!([{"size": 536_870_912u64, "ways": 1, "legs": [{"cmem_base": 2_097_152, "bytes": 4096}]}]);
        humanize(&mut value);
        let expected = json!([{"size": "512.00 MiB (536.87 MB)", "ways": 1,
            "legs": [{"cmem_base": "0x200000", "bytes": "4.00 KiB (4.10 KB)"}]}]);
        assert_eq!(value, expected);
    }
}
