//! The records of one commit as steps of etcd transactions. A transaction has so many steps and bytes at most, and touches
//! no key twice; so what a later record undoes is left out, and what is still too much comes in several chunks.

use std::collections::BTreeMap;

use super::wire::{Range, Step};
use crate::store::record::{Record, Table};
use crate::store::{EtcdPlace, StoreError};

/// Most steps of a chunk: etcd takes 128 in a transaction (`--max-txn-ops`), and some are the store's own.
pub const STEPS_MAX: usize = 120;
/// Most bytes of a chunk. etcd takes 1.5 MiB in a request (`--max-request-bytes`), and a chunk that is first written down
/// as text takes a third more.
pub const CHUNK_BYTES_MAX: usize = 512 << 10;
/// Most bytes of one record, key included; a larger one could not be written down as text first.
pub const RECORD_BYTES_MAX: usize = 1 << 20;

/// What is left of the records of a commit.
#[derive(Debug, Default)]
pub struct Batch {
    /// What becomes of each key: a value, or nothing.
    keys: BTreeMap<(Table, String), Option<String>>,
    /// Below which key a table is emptied.
    emptied: BTreeMap<Table, String>,
}

impl Batch {
    /// What `records`, one after the other, come to.
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

    /// The steps, in chunks that fit into a transaction each.
    ///
    /// # Errors
    /// [`StoreError::RecordTooLarge`] when one record does not.
    pub fn chunks(self, place: &EtcdPlace) -> Result<Vec<Vec<Step>>, StoreError> {
        let emptied = self.emptied.into_iter().map(|(table, end)| {
            let (first, end) = (record_key(place, table, ""), record_key(place, table, &end));
            Step::Delete(Range::span(first, end))
        });
        let keys = self.keys.into_iter().map(|((table, key), value)| {
            let key = record_key(place, table, &key);
            match value {
                Some(value) => Step::put(key, value),
                None => Step::Delete(Range::one(key)),
            }
        });
        let mut chunks: Vec<Vec<Step>> = Vec::new();
        let (mut steps, mut bytes) = (STEPS_MAX, 0);
        for step in emptied.chain(keys) {
            let own = step.bytes();
            if let Step::Put(put) = &step
                && own > RECORD_BYTES_MAX
            {
                let (place, record) = (place.to_string(), put.key.text());
                return Err(StoreError::RecordTooLarge {
                    place,
                    record,
                    bytes: own,
                    limit: RECORD_BYTES_MAX,
                });
            }
            if steps >= STEPS_MAX || bytes + own > CHUNK_BYTES_MAX {
                chunks.push(Vec::new());
                (steps, bytes) = (0, 0);
            }
            (steps, bytes) = (steps + 1, bytes + own);
            chunks.last_mut().expect("there is one").push(step);
        }
        Ok(chunks)
    }
}

/// The key of a record; with an empty one, what the keys of a table start with.
pub fn record_key(place: &EtcdPlace, table: Table, key: &str) -> String {
    place.key(&format!("state/{}/{key}", table.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

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
            Step::Delete(Range::span("f/state/events/", key(2))),
            Step::put("f/state/regions/r", "again"),
            Step::put(key(2), "b"),
            Step::Delete(Range::one(key(3))),
        ];
        assert_eq!(chunks, [wanted]);
        assert!(Batch::of(Vec::new()).chunks(&place()).unwrap().is_empty());
    }

    #[test]
    fn chunks_keep_to_both_limits() {
        let value = "x".repeat(CHUNK_BYTES_MAX / 10);
        for (count, value) in [(STEPS_MAX * 3 + 1, "x"), (25, value.as_str())] {
            let chunks = Batch::of((0..count).map(|key| put(key, value)).collect()).chunks(&place()).unwrap();
            assert!(chunks.len() > 2, "{}", chunks.len());
            for chunk in &chunks {
                assert!(
                    chunk.len() <= STEPS_MAX
                        && chunk.iter().map(Step::bytes).sum::<usize>() <= CHUNK_BYTES_MAX
                );
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
