//! Runs tshark with the dissector over a capture file, and returns the fields that tshark prints, one row for each
//! frame.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use cxloe_system::Failed;

use super::{decoder, follow};
use cxloe_system::{Outcome, ensure};

/// Fields of a frame by name; values of a field that occurs more than once are joined by `|`.
pub type Row = BTreeMap<String, String>;

/// Fields of Wireshark's own dissectors that the tests use as well.
const OTHERS: [&str; 2] = ["vlan.priority", "macc.opcode"];
/// Field in which Wireshark reports that a Lua script has failed.
const LUA_FAILED: &str = "_ws.lua.text";

/// Path of the dissector's Lua script.
pub fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/wireshark/cxloe.lua")
}

/// Fields that tshark shows of the frames in `file`, with further `options`.
pub fn read(file: &Path, options: &[&str]) -> Result<Vec<Row>, Failed> {
    let fields: Vec<&str> = decoder::FIELDS
        .iter()
        .chain(decoder::MALFORMED.iter())
        .chain(follow::FIELDS.iter())
        .chain(OTHERS.iter())
        .chain([&LUA_FAILED])
        .copied()
        .collect();
    let mut command = Command::new("tshark");
    command.arg("-X").arg(format!("lua_script:{}", script().display()));
    // tshark runs without the user's configuration, and shows addresses instead of names.
    command.env("HOME", "/nonexistent").args(["-n", "-C", "Default", "-o", "eth.fcs:Never"]).args(options);
    command.args(["-T", "fields", "-E", "separator=/t", "-E", "occurrence=a", "-E", "aggregator=|"]);
    command.args(fields.iter().flat_map(|field| ["-e", field])).arg("-r").arg(file);
    let output = command.output()?;
    let output_text = String::from_utf8_lossy(&output.stderr);
    ensure(output.status.success() && !output_text.contains("Lua"), format!("tshark: {output_text}"))?;
    let text = String::from_utf8(output.stdout)?;
    let row = |line: &str| -> Row {
        let cells = fields.iter().zip(line.split('\t')).filter(|(_, cell)| !cell.is_empty());
        cells.map(|(field, cell)| ((*field).to_owned(), cell.to_owned())).collect()
    };
    let rows: Vec<Row> = text.lines().map(row).collect();
    let failed = rows.iter().position(|row| row.contains_key(LUA_FAILED));
    ensure(failed.is_none(), format!("the dissector failed at frame {}", failed.unwrap_or_default() + 1))?;
    Ok(rows)
}

/// Checks that frame `number` shows exactly the expected fields; those of Wireshark's own dissectors are ignored.
pub fn same(number: usize, expected: &Row, shown: &Row) -> Outcome {
    let names = expected.keys().chain(shown.keys()).filter(|name| name.starts_with("cxloe."));
    for name in names {
        let (wanted, found) = (expected.get(name), shown.get(name));
        ensure(
            wanted == found,
            format!("frame {number}, {name}: {wanted:?} expected, {found:?} shown: {shown:?}"),
        )?;
    }
    Ok(())
}

pub fn owned((name, value): (&String, &String)) -> (String, String) {
    (name.clone(), value.clone())
}
