//! A state as one file that people keep: every record of it, as any store has them, and what tells a whole file from a part
//! of one. One line each, so that it can be looked into.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::record::{FORMAT, FORMAT_BEFORE, Record, Restore, Table};
use crate::manager::{Contradiction, State};
use cxloe_fabric::model::Watermark;

/// What a backup begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupHead {
    /// The layout of its records, as that of a store.
    pub cxloe_backup: u32,
    /// The number of its fabric.
    pub fabric: u64,
    /// How far its manager had come.
    pub watermark: Watermark,
    /// Records that follow.
    pub records: usize,
    /// What they and the rest of this line sum up to.
    pub sum: u64,
}

/// One record.
#[derive(Debug, Serialize, Deserialize)]
struct Row {
    table: String,
    key: String,
    value: String,
}

/// Why a file is no backup that could be restored.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// It is something else, or a part is missing or changed.
    #[error("this is no backup of a manager's store, or a damaged one ({0}); take another one")]
    Damaged(String),
    /// It is of another version.
    #[error(
        "this backup has format {0}, and this version reads formats {FORMAT_BEFORE} and {FORMAT}; restore it with the version \
         that made it"
    )]
    Format(u32),
    /// Its records contradict each other.
    #[error("this backup is not usable: {0}")]
    Contradiction(#[from] Contradiction),
}

/// FNV-1a: against accidents, not against evil.
fn sum(head: &BackupHead, rows: &[impl AsRef<str>]) -> u64 {
    let BackupHead { cxloe_backup, fabric, watermark, records, sum: _ } = head;
    let head = format!("{cxloe_backup} {fabric} {watermark:?} {records}");
    let mut sum = 0xCBF2_9CE4_8422_2325_u64;
    for text in std::iter::once(head.as_str()).chain(rows.iter().map(AsRef::as_ref)) {
        for byte in text.bytes().chain([0]) {
            sum = (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
        }
    }
    sum
}

/// A backup of `state`.
///
/// # Errors
/// Words about a record that has no JSON, which no record has.
pub fn write(state: &State) -> Result<String, String> {
    let mut rows = Vec::new();
    for record in Record::all_of_state(state).map_err(|error| error.to_string())? {
        if let Record::Put(table, key, value) = record {
            let row = Row { table: table.name().to_owned(), key, value };
            rows.push(serde_json::to_string(&row).map_err(|error| error.to_string())?);
        }
    }
    let mut head = BackupHead {
        cxloe_backup: FORMAT,
        fabric: state.meta.fabric,
        watermark: state.meta.watermark,
        records: rows.len(),
        sum: 0,
    };
    head.sum = sum(&head, &rows);
    let mut text = serde_json::to_string(&head).map_err(|error| error.to_string())?;
    for row in rows {
        let _ = write!(text, "\n{row}");
    }
    text.push('\n');
    Ok(text)
}

/// What a backup says of itself, and the state in it.
///
/// # Errors
/// Any [`BackupError`].
pub fn read(text: &str) -> Result<(BackupHead, State), BackupError> {
    let damaged = |reason: &dyn ToString| BackupError::Damaged(reason.to_string());
    let mut lines = text.lines();
    let head: BackupHead = serde_json::from_str(lines.next().unwrap_or_default()).map_err(|e| damaged(&e))?;
    if ![FORMAT, FORMAT_BEFORE].contains(&head.cxloe_backup) {
        return Err(BackupError::Format(head.cxloe_backup));
    }
    let rows: Vec<&str> = lines.collect();
    if rows.len() != head.records {
        return Err(damaged(&format!("{} of {} records are there", rows.len(), head.records)));
    }
    if sum(&head, &rows) != head.sum {
        return Err(damaged(&"its records are not those that were written"));
    }
    let mut restore = Restore::default();
    for row in rows {
        let Row { table, key, value } = serde_json::from_str(row).map_err(|e| damaged(&e))?;
        let table = Table::named(&table).ok_or_else(|| damaged(&format!("no table is called {table:?}")))?;
        restore.add(table, &key, value.as_bytes()).map_err(|e| damaged(&e))?;
    }
    let state = restore.finish()?;
    if (state.meta.fabric, state.meta.watermark) != (head.fabric, head.watermark) {
        return Err(damaged(&"its head is another one's"));
    }
    Ok((head, state))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager::{Manager, Options};

    fn state() -> State {
        let options = Options { new_fabric: 77, run: 5, ..Options::default() };
        Manager::take_over(State::default(), options, 1000).unwrap().0.state().clone()
    }

    #[test]
    fn a_backup_reads_back() {
        let state = state();
        let (head, read) = read(&write(&state).unwrap()).unwrap();
        assert_eq!((read, head.fabric, head.watermark), (state.clone(), 77, state.meta.watermark));
    }

    #[test]
    fn every_byte_of_a_backup_counts() {
        let whole = write(&state()).unwrap();
        for at in 0..whole.len() - 1 {
            let mut bytes = whole.clone().into_bytes();
            bytes[at] ^= 1;
            let changed = String::from_utf8(bytes).unwrap_or_default();
            assert!(read(&changed).is_err(), "byte {at}");
            assert!(read(&whole[..at]).is_err(), "cut at {at}");
        }
        let other = whole.replacen(&format!("\"cxloe_backup\":{FORMAT}"), "\"cxloe_backup\":9", 1);
        assert!(matches!(read(&other), Err(BackupError::Format(9))));
    }
}
