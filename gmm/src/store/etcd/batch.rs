//! The records of one commit as steps of etcd transactions. A transaction may have a limited number of steps and bytes,
//! and must not contain a key twice. So records that later records replace are left out, and the remaining records are
//! split into chunks.

use std::collections::BTreeMap;

use serde_json::Value;

use super::wire::{delete, delete_span, put};
use crate::store::record::{Record, Table};
use crate::store::{EtcdPlace, StoreError};

/// Maximum number of steps in a chunk: etcd permits 128 per transaction (`--max-txn-ops`), and the store adds some.
pub const STEPS_MAX: usize = 120;
/// Maximum number of bytes in a chunk: etcd permits 1.5 MiB per request (`--max-request-bytes`), and a chunk becomes a
/// third larger in the redo log.
pub const CHUNK_BYTES_MAX: usize = 512 << 10;
/// Maximum number of bytes of one record, key included; a larger one does not fit into the redo log.
pub const RECORD_BYTES_MAX: usize = 1 << 20;

/// Total effect of a commit's records on each key.
#[derive(Debug, Default)]
pub struct Batch {
    /// New value of each changed key; `None`: the key is deleted.
    keys: BTreeMap<(Table, String), Option<String>>,
    /// For each table, the key below which all records are deleted.
    emptied: BTreeMap<Table, String>,
}

impl Batch {
    /// The total effect of `records`, applied in this order.
    pub fn of(records: Vec<Record>) -> Self {
        let mut batch = Self::default();
        for record in records {
            match record {
                Record::Put(table, key, value) => drop(batch.keys.insert((table, key), Some(value))),
                Record::Delete(table, key) => drop(batch.keys.insert((table, key), None)),
                Record::DeleteBelow(table, end) => {
                    batch.keys.retain(|(other, key), _| *other != table || *key >= end);
                    let below = batch.emptied.entry(table).or_default();
                    *below = std::mem::take(below).max(end);
                }
            }
        }
        batch
    }

    /// The steps of the batch, in chunks that each fit into a transaction.
    ///
    /// # Errors
    /// [`StoreError::RecordTooLarge`] if one record exceeds the limit.
    pub fn chunks(self, place: &EtcdPlace) -> Result<Vec<Vec<Value>>, StoreError> {
        // etcd refuses a transaction that puts a key within a span that it deletes (a restored event, for example), so
        // then the spans have a chunk to themselves.
        let spans = self.emptied.len();
        let within = |(table, key): &(Table, String)| self.emptied.get(table).is_some_and(|end| key < end);
        let spans_apart = self.keys.iter().any(|(key, value)| value.is_some() && within(key));
        let emptied = self.emptied.into_iter().map(|(table, end)| {
            let (first, end) = (record_key(place, table, ""), record_key(place, table, &end));
            Ok((first.len() + end.len(), delete_span(&first, &end)))
        });
        let keys = self.keys.into_iter().map(|((table, key), value)| {
            let record = record_key(place, table, &key);
            let Some(value) = value else { return Ok((record.len(), delete(&record))) };
            let bytes = record.len() + value.len();
            if bytes > RECORD_BYTES_MAX {
                let (place, limit) = (place.to_string(), RECORD_BYTES_MAX);
                return Err(StoreError::RecordTooLarge { place, record, bytes, limit });
            }
            Ok((bytes, put(&record, &value)))
        });
        let mut chunks: Vec<Vec<Value>> = Vec::new();
        let mut bytes = 0;
        for (number, step) in emptied.chain(keys).enumerate() {
            let (own, step) = step?;
            let apart = spans_apart && number == spans;
            match chunks.last_mut() {
                Some(chunk) if !apart && chunk.len() < STEPS_MAX && bytes + own <= CHUNK_BYTES_MAX => {
                    chunk.push(step);
                }
                _ => {
                    chunks.push(vec![step]);
                    bytes = 0;
                }
            }
            bytes += own;
        }
        Ok(chunks)
    }
}

/// etcd's key of a record; if `key` is empty, the prefix of all keys of the table.
pub fn record_key(place: &EtcdPlace, table: Table, key: &str) -> String {
    place.key(&format!("state/{}/{key}", table.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Maximum size of a request to etcd in bytes, unless etcd is configured otherwise.
    const REQUEST_BYTES_MAX: usize = 1536 << 10;

    fn place() -> EtcdPlace {
        "etcd://h:1/f".parse().unwrap()
    }

    fn put(key: usize, value: &str) -> Record {
        Record::Put(Table::Events, format!("{key:020}"), value.to_owned())
    }

    #[test]
    fn a_key_is_touched_once_and_as_it_was_left() {
        let records = vec![
            put(1, "a"),
            put(2, "a"),
            put(2, "b"),
            put(3, "a"),
            Record::Delete(Table::Events, format!("{:020}", 3)),
            Record::DeleteBelow(Table::Events, format!("{:020}", 1)),
            Record::DeleteBelow(Table::Events, format!("{:020}", 2)),
            Record::Delete(Table::Regions, "r".to_owned()),
            Record::Put(Table::Regions, "r".to_owned(), "again".to_owned()),
        ];
        let chunks = Batch::of(records).chunks(&place()).unwrap();
        let key = |number: usize| format!("f/state/events/{number:020}");
        let wanted = vec![
            delete_span("f/state/events/", &key(2)),
            super::put("f/state/regions/r", "again"),
            super::put(&key(2), "b"),
            delete(&key(3)),
        ];
        assert_eq!(chunks, [wanted]);
        assert!(Batch::of(Vec::new()).chunks(&place()).unwrap().is_empty());
    }

    /// A backup that is restored in the commit that also forgets events has events below those.
    #[test]
    fn a_key_within_a_deleted_span_is_put_in_a_later_chunk() {
        let end = format!("{:020}", 5);
        let records = vec![put(1, "a"), Record::DeleteBelow(Table::Events, end), put(2, "b"), put(7, "c")];
        let chunks = Batch::of(records).chunks(&place()).unwrap();
        let key = |number: usize| format!("f/state/events/{number:020}");
        let spans = vec![delete_span("f/state/events/", &key(5))];
        assert_eq!(chunks, [spans, vec![super::put(&key(2), "b"), super::put(&key(7), "c")]]);
    }

    #[test]
    fn chunks_keep_to_both_limits() {
        let value = "x".repeat(CHUNK_BYTES_MAX / 10);
        for (count, value) in [(STEPS_MAX * 3 + 1, "x"), (25, value.as_str())] {
            let chunks = Batch::of((0..count).map(|key| put(key, value)).collect()).chunks(&place()).unwrap();
            assert!(chunks.len() > 2, "{}", chunks.len());
            for chunk in &chunks {
                let redo = serde_json::to_string(chunk).unwrap();
                assert!(chunk.len() <= STEPS_MAX && redo.len() < REQUEST_BYTES_MAX, "{}", redo.len());
            }
            assert_eq!(chunks.concat().len(), count);
        }
    }

    #[test]
    fn a_record_beyond_all_limits_is_named() {
        let large = "x".repeat(CHUNK_BYTES_MAX + 1);
        let chunks = Batch::of(vec![put(1, &large), put(2, "")]).chunks(&place()).unwrap();
        assert_eq!(chunks.len(), 2, "one that is larger than a chunk has one to itself");
        let error = Batch::of(vec![put(1, &"x".repeat(RECORD_BYTES_MAX))]).chunks(&place()).unwrap_err();
        assert!(error.to_string().contains("f/state/events/"), "{error}");
    }
}
