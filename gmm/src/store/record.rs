//! Conversion between [`Change`]s and records of a store. Every store contains the same records: texts under
//! keys in named tables, one table for each kind of record, JSON in the values. Only this file maps changes
//! to records, so a new kind of record needs no change in the stores.
//!
//! ```text
//!   commit:  Change --Record::all_of--> Put / Delete / DeleteBelow --> a store's own transaction
//!   load:    tables in the order of Table::ALL, keys ascending --Restore::add--> FabricState, verified
//! ```

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;

use cxloe_fabric::api::Party;
use cxloe_fabric::model::{ClearedLog, Name};
use cxloe_gmm_core::manager::{Change, Contradiction, FabricState};

/// Number of the format that this version reads and writes, which every store contains. It is incremented with each
/// change to a table's content and with each new table.
pub const FORMAT: u32 = 4;

/// Key of the one record of [`Table::Meta`].
const COUNTERS_KEY: &str = "counters";

cxloe_fabric::named! {
    /// A table of a store, named after the kind of its records; in the order in which a load reads them.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Table {
        /// Counters of the fabric, in a single record.
        Meta = "meta",
        /// Memory nodes; the key is the name.
        MemoryNodes = "memory_nodes",
        /// Compute nodes; the key is the CN id.
        ComputeNodes = "compute_nodes",
        /// Regions; the key is the name.
        Regions = "regions",
        /// Logical devices; the key is the memory node's name and the LD-ID.
        LogicalDevices = "logical_devices",
        /// The latest background operation of each switch; the key is the switch's number.
        Operations = "operations",
        /// Quality-of-service controls; the key is the memory node's name.
        Qos = "qos",
        /// The last cleared event of each FM API event log; the key is the log's switch, port and number.
        ClearedLogs = "cleared_logs",
        /// Commands without a result; the key is the memory node's name and the command's number.
        Commands = "commands",
        /// The event log; the key is the event's number.
        Events = "events",
        /// The leaders of the fabric; the key is the term. The table keeps its older name, which the existing stores of
        /// this format use.
        LeaderTerms = "reigns",
        /// Orphans; the key is the memory node's name.
        Orphans = "orphans",
        /// Tokens; the key is the token's id.
        Tokens = "tokens",
        /// Joined nodes; the key is the kind and the name.
        Joined = "joined",
    }
}

impl Table {
    /// The table with this name; `None` if this version has none.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|table| table.name() == name)
    }
}

/// Effect of one change on the records of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// Sets the record under a key: table, key, value.
    Put(Table, String, String),
    /// Deletes the record under a key: table, key.
    Delete(Table, String),
    /// Deletes every record of a table whose key is below the given key, in byte order. Such a table grows
    /// only at its end: a record is put below a key given here only when a backup is restored.
    DeleteBelow(Table, String),
}

/// Error for a record that this version would not have written.
#[derive(Debug, thiserror::Error)]
#[error("record {key:?} of table {table}: {reason}", table = .table.name())]
pub struct RecordError {
    pub table: Table,
    pub key: String,
    pub reason: String,
}

impl Record {
    /// The effects of `changes` on a store, in the order of the changes.
    ///
    /// # Errors
    /// [`RecordError`] if a value cannot be written as JSON; every value of the manager can.
    pub fn all_of(changes: &[Change]) -> Result<Vec<Self>, RecordError> {
        let mut records = Vec::with_capacity(changes.len());
        for change in changes {
            Self::append(change, &mut records)?;
        }
        Ok(records)
    }

    /// The records of a whole state, ordered by table and key.
    ///
    /// # Errors
    /// [`RecordError`], as for [`all_of`](Self::all_of).
    pub fn all_of_state(state: &FabricState) -> Result<Vec<Self>, RecordError> {
        let mut records = Self::all_of(&state.changes())?;
        records.sort_by(|a, b| a.place().cmp(&b.place()));
        Ok(records)
    }

    fn place(&self) -> (Table, &str) {
        match self {
            Self::Put(table, key, _) | Self::Delete(table, key) | Self::DeleteBelow(table, key) => {
                (*table, key)
            }
        }
    }

    /// The effects that turn a store with the state `before` into one with the state `after`.
    fn difference(
        before: &FabricState,
        after: &FabricState,
        records: &mut Vec<Self>,
    ) -> Result<(), RecordError> {
        let after = Self::all_of_state(after)?;
        let kept: BTreeSet<(Table, &str)> = after.iter().map(Self::place).collect();
        for record in Self::all_of_state(before)? {
            let (table, key) = record.place();
            if !kept.contains(&(table, key)) {
                records.push(Self::Delete(table, key.to_owned()));
            }
        }
        records.extend(after);
        Ok(())
    }

    fn append(change: &Change, records: &mut Vec<Self>) -> Result<(), RecordError> {
        let record = match change {
            Change::Meta(meta) => put(Table::Meta, COUNTERS_KEY.to_owned(), meta)?,
            Change::Replaced(before, after) => return Self::difference(before, after, records),
            Change::MemoryNode(node) => put(Table::MemoryNodes, node.name.to_string(), node)?,
            Change::ComputeNode(node) => put(Table::ComputeNodes, node.cn_id.to_string(), node)?,
            Change::ComputeNodeGone(cn) => Self::Delete(Table::ComputeNodes, cn.to_string()),
            Change::Region(region) => put(Table::Regions, region.name.to_string(), region)?,
            Change::RegionGone(name) => Self::Delete(Table::Regions, name.to_string()),
            Change::MemoryNodeGone(name) => {
                records.push(Self::Delete(Table::Qos, name.to_string()));
                records.push(Self::Delete(Table::Orphans, name.to_string()));
                Self::Delete(Table::MemoryNodes, name.to_string())
            }
            Change::LogicalDevice(ld) => {
                put(Table::LogicalDevices, numbered_key(&ld.memory_node, ld.id.into()), ld)?
            }
            Change::LogicalDeviceGone(node, id) => {
                Self::Delete(Table::LogicalDevices, numbered_key(node, (*id).into()))
            }
            Change::Operation(operation) => {
                put(Table::Operations, number_key(operation.switch.into()), operation)?
            }
            Change::Qos(qos) => put(Table::Qos, qos.memory_node.to_string(), qos)?,
            Change::LogCleared(log) => put(Table::ClearedLogs, cleared_key(log), log)?,
            Change::CommandIssued(node, command) => {
                put(Table::Commands, numbered_key(node, command.seq), command)?
            }
            Change::CommandAnswered(node, seq) => Self::Delete(Table::Commands, numbered_key(node, *seq)),
            Change::Event(event) => put(Table::Events, number_key(event.seq), event)?,
            Change::LeaderTerm(leader) => put(Table::LeaderTerms, number_key(leader.term), leader)?,
            Change::LeaderTermForgotten(term) => Self::Delete(Table::LeaderTerms, number_key(*term)),
            Change::Orphans(orphans) => put(Table::Orphans, orphans.memory_node.to_string(), orphans)?,
            Change::OrphansGone(name) => Self::Delete(Table::Orphans, name.to_string()),
            Change::Token(token) => put(Table::Tokens, token.id.clone(), token)?,
            Change::TokenGone(id) => Self::Delete(Table::Tokens, id.clone()),
            Change::Joined(joined) => put(Table::Joined, joined_key(&joined.node), joined)?,
            Change::JoinedGone(node) => Self::Delete(Table::Joined, joined_key(node)),
            Change::EventsForgotten(before) => Self::DeleteBelow(Table::Events, number_key(*before)),
        };
        records.push(record);
        Ok(())
    }
}

/// Returns the change that writes this record.
fn change_of(table: Table, key: &str, value: &[u8]) -> Result<Change, RecordError> {
    let wrong = |reason: String| RecordError { table, key: key.to_owned(), reason };
    fn parse<T: DeserializeOwned>(value: &[u8]) -> Result<T, String> {
        serde_json::from_slice(value).map_err(|error| error.to_string())
    }
    let change = match table {
        Table::Meta => parse(value).map(Change::Meta),
        Table::MemoryNodes => parse(value).map(Change::MemoryNode),
        Table::ComputeNodes => parse(value).map(Change::ComputeNode),
        Table::Regions => parse(value).map(Change::Region),
        Table::LogicalDevices => parse(value).map(Change::LogicalDevice),
        Table::Operations => parse(value).map(Change::Operation),
        Table::Qos => parse(value).map(Change::Qos),
        Table::ClearedLogs => parse(value).map(Change::LogCleared),
        Table::Commands => {
            let node = key.split_once('/').map_or(key, |(node, _)| node);
            let node = Name::new(node).map_err(|error| wrong(error.to_string()))?;
            parse(value).map(|command| Change::CommandIssued(node, command))
        }
        Table::Events => parse(value).map(Change::Event),
        Table::LeaderTerms => parse(value).map(Change::LeaderTerm),
        Table::Orphans => parse(value).map(Change::Orphans),
        Table::Tokens => parse(value).map(Change::Token),
        Table::Joined => parse(value).map(Change::Joined),
    };
    change.map_err(wrong)
}

/// Builds a state from the records of a store.
#[derive(Debug, Default)]
pub struct Restore {
    state: FabricState,
}

impl Restore {
    /// Adds one record. The records of a table must be added in ascending order of their keys.
    ///
    /// # Errors
    /// [`RecordError`] if this version does not write such a record, or writes it under another key.
    pub fn add(&mut self, table: Table, key: &str, value: &[u8]) -> Result<(), RecordError> {
        let change = change_of(table, key, value)?;
        match Record::all_of(std::slice::from_ref(&change))?.as_slice() {
            [Record::Put(_, own_key, _)] if own_key == key => {}
            _ => {
                let reason = "it belongs under another key".to_owned();
                return Err(RecordError { table, key: key.to_owned(), reason });
            }
        }
        self.state.apply(change);
        Ok(())
    }

    /// The state, after every record was added.
    ///
    /// # Errors
    /// [`Contradiction`] if the records contradict each other.
    pub fn finish(self) -> Result<FabricState, Contradiction> {
        self.state.verify()?;
        Ok(self.state)
    }
}

fn joined_key(node: &Party) -> String {
    match node {
        Party::MemoryNode(name) => format!("mn/{name}"),
        Party::ComputeNode(cn) => format!("cn/{cn}"),
        Party::FmClient(name) => format!("fm/{name}"),
    }
}

fn put(table: Table, key: String, value: &impl serde::Serialize) -> Result<Record, RecordError> {
    match serde_json::to_string(value) {
        Ok(value) => Ok(Record::Put(table, key, value)),
        Err(error) => Err(RecordError { table, key, reason: error.to_string() }),
    }
}

/// Encodes a number as a key, such that the byte order of keys is the numeric order.
fn number_key(number: u64) -> String {
    format!("{number:020}")
}

/// Key `switch/port/log`; the port is empty for the logs of the switch itself.
fn cleared_key(log: &ClearedLog) -> String {
    let port = log.port.map(|port| format!("{port:03}")).unwrap_or_default();
    format!("{:010}/{port}/{}", log.switch, log.log)
}

fn numbered_key(node: &Name, seq: u64) -> String {
    format!("{node}/{}", number_key(seq))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cxloe_fabric::model::{Event, EventKind};
    use cxloe_gmm_core::manager::Meta;

    /// Table, key and value of the record that a change puts.
    fn record(change: Change) -> (Table, String, String) {
        match Record::all_of(&[change]).unwrap().remove(0) {
            Record::Put(table, key, value) => (table, key, value),
            other => panic!("{other:?} puts nothing"),
        }
    }

    fn event(seq: u64) -> Change {
        Change::Event(Event { seq, time_ms: 3, who: None, kind: EventKind::ManagerStarted { term: seq } })
    }

    #[test]
    fn tables_have_one_order_and_names_of_their_own() {
        for (place, table) in Table::ALL.into_iter().enumerate() {
            assert_eq!((table as usize, Table::named(table.name())), (place, Some(table)));
        }
    }

    #[test]
    fn numbers_are_in_order_as_keys() {
        assert!(number_key(9) < number_key(10) && number_key(99_999) < number_key(u64::MAX));
        assert_eq!(numbered_key(&Name::new("mn0").unwrap(), 7), "mn0/00000000000000000007");
    }

    #[test]
    fn a_record_under_the_wrong_key_is_refused() {
        let (table, key, value) = record(event(4));
        let mut restore = Restore::default();
        let error = restore.add(table, &number_key(5), value.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("events") && error.contains("another key"), "{error}");
        restore.add(table, &key, value.as_bytes()).unwrap();
    }

    #[test]
    fn what_no_version_writes_is_named() {
        let error = Restore::default().add(Table::Regions, "r0", b"{}").unwrap_err().to_string();
        assert!(error.contains("\"r0\"") && error.contains("regions"), "{error}");
        let error = Restore::default().add(Table::Commands, "-/1", b"{}").unwrap_err().to_string();
        assert!(error.contains("cannot be a name"), "{error}");
    }

    #[test]
    fn records_that_contradict_each_other_are_no_state() {
        let mut restore = Restore::default();
        for change in [event(1), event(3)] {
            let (table, key, value) = record(change);
            restore.add(table, &key, value.as_bytes()).unwrap();
        }
        let (table, key, value) = record(Change::Meta(Meta { last_event: 3, ..Meta::default() }));
        restore.add(table, &key, value.as_bytes()).unwrap();
        assert!(restore.finish().unwrap_err().to_string().contains("gap"));
    }
}
