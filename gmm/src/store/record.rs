//! What a [`Change`] is in a store, and back. Every store keeps the same records: texts under keys in named tables, one
//! table per noun, JSON in the values. This is the one place that knows which change writes which record, so a new noun
//! is added here and nowhere else in the stores.
//!
//! ```text
//!   commit:  Change --Record::all_of--> Put / Delete / DeleteBelow --> a store's own transaction
//!   load:    tables in the order of Table::ALL, keys ascending --Restore::add--> State, verified
//! ```

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;

use crate::manager::{Change, Contradiction, State};
use cxloe_fabric::api::Party;
use cxloe_fabric::model::{ClearedLog, Name};

/// Number of the layout that this version reads and writes. It is part of every store; whoever changes what a table
/// holds, or adds one, counts it up.
pub const FORMAT: u32 = 4;

/// The oldest layout that is read: as one where some tables are empty, like those between.
pub const FORMAT_BEFORE: u32 = 2;

/// Key of the one record of [`Table::Meta`].
const COUNTERS_KEY: &str = "counters";

/// A table: what its records are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// Counters of the fabric: one record.
    Meta,
    /// Memory nodes by name.
    MemoryNodes,
    /// Compute nodes by CN id.
    ComputeNodes,
    /// Regions by name.
    Regions,
    /// Logical devices by memory node and LD-ID.
    LogicalDevices,
    /// The latest background operation of each switch.
    Operations,
    /// Quality-of-service controls by memory node.
    Qos,
    /// How far the FM API's event logs are cleared, by switch, port and number.
    ClearedLogs,
    /// Commands without a result, by memory node and number.
    Commands,
    /// The event log, by number.
    Events,
    /// Who has led the fabric, by term.
    LeaderTerms,
    /// Memory that no region has, by memory node.
    Orphans,
    /// Tokens by id.
    Tokens,
    /// Nodes that have joined, by kind and name.
    Joined,
}

impl Table {
    /// Every table, in the order in which they are read.
    pub const ALL: [Self; 14] = [
        Self::Meta,
        Self::MemoryNodes,
        Self::ComputeNodes,
        Self::Regions,
        Self::LogicalDevices,
        Self::Operations,
        Self::Qos,
        Self::ClearedLogs,
        Self::Commands,
        Self::Events,
        Self::LeaderTerms,
        Self::Orphans,
        Self::Tokens,
        Self::Joined,
    ];

    /// Its name in a store.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Meta => "meta",
            Self::MemoryNodes => "memory_nodes",
            Self::ComputeNodes => "compute_nodes",
            Self::Regions => "regions",
            Self::LogicalDevices => "logical_devices",
            Self::Operations => "operations",
            Self::Qos => "qos",
            Self::ClearedLogs => "cleared_logs",
            Self::Commands => "commands",
            Self::Events => "events",
            Self::LeaderTerms => "reigns",
            Self::Orphans => "orphans",
            Self::Tokens => "tokens",
            Self::Joined => "joined",
        }
    }

    /// The table of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|table| table.name() == name)
    }
}

/// What one change does to a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// The record under a key is now this.
    Put(Table, String, String),
    /// The record under a key is gone.
    Delete(Table, String),
    /// Every record of a table below a key is gone, in the order of bytes. Such a table only grows at its end: nothing
    /// is ever put below a key that was given here.
    DeleteBelow(Table, String),
}

/// A record that is not what this version writes.
#[derive(Debug, thiserror::Error)]
#[error("record {key:?} of table {table}: {reason}", table = .table.name())]
pub struct RecordError {
    /// Where it is.
    pub table: Table,
    /// Its key.
    pub key: String,
    /// What is wrong with it.
    pub reason: String,
}

impl Record {
    /// What `changes` do to a store, in order.
    ///
    /// # Errors
    /// [`RecordError`] when a value has no JSON, which no value the manager makes does.
    pub fn all_of(changes: &[Change]) -> Result<Vec<Self>, RecordError> {
        let mut records = Vec::with_capacity(changes.len());
        for change in changes {
            Self::append(change, &mut records)?;
        }
        Ok(records)
    }

    /// The records of all of a state, by table and key.
    ///
    /// # Errors
    /// [`RecordError`], as of [`all_of`](Self::all_of).
    pub fn all_of_state(state: &State) -> Result<Vec<Self>, RecordError> {
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

    /// What makes a store of `after` out of one of `before`.
    fn difference(before: &State, after: &State, records: &mut Vec<Self>) -> Result<(), RecordError> {
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

/// The change that put a record.
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

/// A state that is put together from the records of a store.
#[derive(Debug, Default)]
pub struct Restore {
    state: State,
}

impl Restore {
    /// Takes one record. Records of a table must come by ascending key.
    ///
    /// # Errors
    /// [`RecordError`] when this version does not write such a record, or not under this key.
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

    /// The state, when every record was taken.
    ///
    /// # Errors
    /// [`Contradiction`] when the records contradict each other.
    pub fn finish(self) -> Result<State, Contradiction> {
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

/// Numbers as keys, in an order of bytes that is the order of numbers.
fn number_key(number: u64) -> String {
    format!("{number:020}")
}

/// `switch/port/log`; a switch's own logs have no port.
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
    use crate::manager::Meta;
    use cxloe_fabric::model::{Event, EventKind};

    /// Where a change puts a record, and which.
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
