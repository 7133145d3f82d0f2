//! Backup of a state as one file: every record as in a store, one per line, readable in a text editor. The
//! first line contains the number of records and a checksum, so a truncated file is detected.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::record::{FORMAT, Record, Restore, Table};
use cxloe_fabric::model::{Digest, Watermark};
use cxloe_gmm_core::manager::{Contradiction, FabricState};

/// The first line of a backup; its first field identifies the file as a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupHead {
    /// Format number of the records, the same as in a store.
    pub cxloe_backup: u32,
    /// Random number of the fabric that was backed up.
    pub fabric: u64,
    /// Watermark of the manager at the time of the backup.
    pub watermark: Watermark,
    /// Number of records that follow, one per line.
    pub records: usize,
    /// Hash of the authority's certificate by which this fabric's nodes know their manager; none if the manager had no
    /// TLS. The authority itself is not in this file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority: Option<Digest>,
    /// Checksum of the records and of the other fields of this line.
    pub sum: u64,
}

/// One record of a store, as a line of the backup.
#[derive(Debug, Serialize, Deserialize)]
struct Row {
    table: String,
    key: String,
    value: String,
}

/// Reason for which a file cannot be restored.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error("this is no backup of a manager's store, or a damaged one ({0}); take another one")]
    Damaged(String),
    #[error(
        "this backup has format {0}, and this version reads format {FORMAT}; restore it with the version \
         that made it"
    )]
    Format(u32),
    #[error("this backup is not usable: {0}")]
    Contradiction(#[from] Contradiction),
}

/// FNV-1a hash, which detects accidental changes, not deliberate ones.
fn sum(head: &BackupHead, rows: &[impl AsRef<str>]) -> u64 {
    let BackupHead { cxloe_backup, fabric, watermark, records, authority, sum: _ } = head;
    let mut head = format!("{cxloe_backup} {fabric} {watermark:?} {records}");
    if let Some(authority) = authority {
        let _ = write!(head, " {authority}");
    }
    // Offset basis and prime of the 64-bit FNV-1a hash.
    let mut sum = 0xCBF2_9CE4_8422_2325_u64;
    for text in std::iter::once(head.as_str()).chain(rows.iter().map(AsRef::as_ref)) {
        // A zero byte ends each text, so that bytes moved from one text to the next change the sum.
        for byte in text.bytes().chain([0]) {
            sum = (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
        }
    }
    sum
}

/// The text of a backup of `state`; `authority` is the hash of the certificate of the fabric's authority.
///
/// # Errors
/// The name of the record that cannot be written as JSON; the present types do not contain any.
pub fn write(state: &FabricState, authority: Option<Digest>) -> Result<String, String> {
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
        authority,
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

/// Reads a backup, and returns its head and its state.
pub fn read(text: &str) -> Result<(BackupHead, FabricState), BackupError> {
    let damaged = |reason: &dyn ToString| BackupError::Damaged(reason.to_string());
    let mut lines = text.lines();
    let head: BackupHead = serde_json::from_str(lines.next().unwrap_or_default()).map_err(|e| damaged(&e))?;
    if head.cxloe_backup != FORMAT {
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
    use cxloe_gmm_core::manager::{Manager, Options};

    fn state() -> FabricState {
        let options = Options { new_fabric: 77, run: 5, ..Options::default() };
        Manager::take_over(FabricState::default(), options, 1000).unwrap().0.state().clone()
    }

    #[test]
    fn a_backup_reads_back() {
        let state = state();
        for authority in [None, Some(Digest::of(b"authority"))] {
            let (head, read) = read(&write(&state, authority).unwrap()).unwrap();
            assert_eq!((read, head.fabric, head.watermark), (state.clone(), 77, state.meta.watermark));
            assert_eq!(head.authority, authority);
        }
    }

    #[test]
    fn every_byte_of_a_backup_counts() {
        let whole = write(&state(), Some(Digest::of(b"authority"))).unwrap();
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
