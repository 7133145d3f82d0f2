//! A simulated memory node without memory, which registers with the manager and reports values set by the test: values
//! that no real node reports, and pools larger than this machine's memory.

use cxloe_fabric::api::{MemoryNodeSync, RegisterMemoryNode};
use cxloe_fabric::model::{CommandResult, DeviceKind, NodeAction, Watermark};
use serde_json::Value;

use cxloe_system::star::{Outcome, Star, name};

/// A simulated node, which executes commands only while [`answer`](Scripted::answer) runs.
pub struct Scripted<'a> {
    rig: &'a Star,
    name: &'static str,
    sync: MemoryNodeSync,
}

impl<'a> Scripted<'a> {
    /// Registers a node with a pool of `pool` bytes.
    pub fn register(rig: &'a Star, node: &'static str, pool: u64) -> Outcome<Scripted<'a>> {
        let register = RegisterMemoryNode {
            name: name(node),
            kind: DeviceKind::Mld,
            macs: vec!["02:00:00:00:09:01".parse()?],
            udp: None,
            key: None,
            rack: None,
            pool_bytes: pool,
            extent_bytes: 2 << 20,
            incarnation: 1,
            instance_id: 1,
            started_ms: 0,
            mtu: 1500,
            seen: Watermark::default(),
        };
        let registered = rig.ask(rig.manager.register_memory_node(&register))?;
        let sync = MemoryNodeSync {
            registration: registered.registration,
            acked_seq: registered.acked_seq,
            results: Vec::new(),
            progress: None,
            fills: Vec::new(),
            stats: Value::Null,
            wait_ms: 0,
        };
        Ok(Scripted { rig, name: node, sync })
    }

    /// Executes every pending command, but refuses mappings with the message `refusal` if that is given. Reports
    /// `stats`.
    pub fn answer(&mut self, refusal: Option<&str>, stats: Value) -> Outcome {
        self.sync.stats = stats;
        loop {
            let synced = self.rig.ask(self.rig.manager.sync_memory_node(&name(self.name), &self.sync))?;
            self.sync.results.clear();
            let Some(last) = synced.commands.last() else { return Ok(()) };
            self.sync.acked_seq = last.seq;
            for command in &synced.commands {
                let refused = refusal.filter(|_| matches!(command.action, NodeAction::MapCmem(_)));
                let error = refused.map(str::to_owned);
                self.sync.results.push(CommandResult { seq: command.seq, error });
            }
        }
    }
}
