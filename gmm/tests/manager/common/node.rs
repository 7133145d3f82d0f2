//! A memory node without memory: it registers, carries out commands, keeps its watermark across restarts of
//! its manager, refuses a manager with a lower watermark, and records violations of the rules.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use cxloe_daemon::{Backoff, Contact, ManagerLink, RegistrationEnd};
use cxloe_fabric::api::{MemoryNodeSync, RegisterMemoryNode};
use cxloe_fabric::model::{CnId, CommandResult, Mapping, NodeAction, NodeCommand, Watermark};

/// State of the memory node, which the test reads.
#[derive(Debug, Default)]
pub struct Known {
    /// The highest watermark (term and revision) that a manager has sent.
    pub seen: Watermark,
    /// Compute node and CMem address that each mapped extent belongs to, by extent.
    pub mapped: BTreeMap<u64, (CnId, u64)>,
    /// Number of registrations until now.
    pub registrations: u64,
    /// Number of commands and answers refused because their watermark was lower than the highest seen.
    pub refused: u64,
    /// Violations by the manager, as text: commands out of order, or extents mapped to two owners.
    pub wrong: Vec<String>,
    acked_seq: u64,
    results: Vec<CommandResult>,
}

impl Known {
    /// Returns true if the node accepts a manager with this watermark, which is then stored as the highest seen.
    pub fn accepts(&mut self, from: Watermark) -> bool {
        let accepted = !from.is_before(self.seen);
        if accepted {
            // A command does not contain the number of the manager's run, so the number seen last is kept.
            self.seen = Watermark { run: if from.run == 0 { self.seen.run } else { from.run }, ..from }
        } else {
            self.refused += 1
        }
        accepted
    }

    fn map(&mut self, mapping: &Mapping) {
        for (extent, page) in mapping.extents.iter().zip(0..) {
            let place = (mapping.cn, mapping.cmem_base + page * mapping.extent_bytes);
            let before = self.mapped.insert(extent, place);
            if before.is_some_and(|before| before != place) {
                self.wrong.push(format!("extent {extent} was given to {place:?} while {before:?} had it"));
            }
        }
    }

    /// Carries out a command, unless it was carried out before.
    pub fn carry_out(&mut self, command: &NodeCommand) {
        if !self.accepts(command.watermark()) || command.seq <= self.acked_seq {
            return;
        }
        if command.seq != self.acked_seq + 1 {
            self.wrong.push(format!("command {} came after {}", command.seq, self.acked_seq));
        }
        self.acked_seq = command.seq;
        match &command.action {
            NodeAction::MapCmem(mapping) => self.map(mapping),
            NodeAction::HandOver(hand_over) => {
                hand_over.mapping.extents.iter().for_each(|extent| {
                    self.mapped.remove(&extent);
                });
                self.map(&hand_over.mapping);
            }
            NodeAction::Share(_) | NodeAction::Unshare(_) => {}
            NodeAction::Clone(clone) => self.map(&clone.mapping),
            NodeAction::UnmapCmem(mapping) => {
                mapping.extents.iter().for_each(|extent| {
                    self.mapped.remove(&extent);
                });
            }
        }
        self.results.push(CommandResult::done(command.seq));
    }
}

/// A memory node; clones share its state.
#[derive(Debug, Clone)]
pub struct Node {
    pub register: RegisterMemoryNode,
    known: Arc<Mutex<Known>>,
}

impl Node {
    pub fn new(register: RegisterMemoryNode) -> Self {
        Self { register, known: Arc::default() }
    }

    pub fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap()
    }

    /// Starts the node's daemon. Dropping the returned link ends it.
    pub fn start(&self, managers: &str) -> ManagerLink<Self> {
        let backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(500));
        ManagerLink::start(managers, None, backoff, self.clone(), Self::registration).unwrap()
    }

    async fn registration(&mut self, contact: &mut Contact) -> Result<Infallible, RegistrationEnd> {
        let client = contact.client();
        let seen = self.known().seen;
        self.register.seen = seen;
        let registered = contact.ask(client.register_memory_node(&self.register)).await?;
        {
            let mut known = self.known();
            if !known.accepts(registered.watermark) {
                return Err(RegistrationEnd::node(std::io::Error::other("the manager is behind")));
            }
            known.registrations += 1;
            known.acked_seq = registered.acked_seq;
            known.results.clear();
            known.mapped.clear();
            registered.mappings.iter().for_each(|mapping| known.map(mapping));
            let taken = registered.unowned.iter().find(|extent| known.mapped.contains_key(extent));
            known.wrong.extend(taken.map(|extent| format!("extent {extent} is both served and free")));
        }
        contact.registered();
        loop {
            let sync = {
                let known = self.known();
                MemoryNodeSync {
                    registration: registered.registration,
                    acked_seq: known.acked_seq,
                    results: known.results.clone(),
                    progress: None,
                    fills: Vec::new(),
                    stats: serde_json::Value::Null,
                    wait_ms: 1000,
                }
            };
            let synced = contact.ask(client.sync_memory_node(&self.register.name, &sync)).await?;
            let mut known = self.known();
            if !known.accepts(synced.watermark) {
                return Err(RegistrationEnd::node(std::io::Error::other("the manager is behind")));
            }
            known.results.clear();
            synced.commands.iter().for_each(|command| known.carry_out(command));
        }
    }
}
