//! A memory node without memory, which speaks to the manager as one and says what the test wants: for what no well-meant
//! node says, and for pools larger than this machine.

use cxloe_fabric::api::{MemoryNodeSync, RegisterMemoryNode};
use cxloe_fabric::model::{CommandResult, DeviceKind, NodeAction, Watermark};
use serde_json::Value;

use cxloe_system::star::{Outcome, Star, name};

/// Such a node. It does what it is told only while [`answer`](Scripted::answer) runs.
pub struct Scripted<'a> {
    rig: &'a Star,
    name: &'static str,
    sync: MemoryNodeSync,
}

impl<'a> Scripted<'a> {
    /// Registers one with a pool of `pool` bytes.
    pub fn register(rig: &'a Star, node: &'static str, pool: u64) -> Outcome<Scripted<'a>> {
        let register = RegisterMemoryNode {
            name: name(node),
            kind: DeviceKind::Mld,
            macs: vec!["02:00:00:00:09:01".parse()?],
            udp: None,
            key: None,
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
            stats: Value::Null,
            wait_ms: 0,
        };
        Ok(Scripted { rig, name: node, sync })
    }

    /// Carries out every command there is; mapping is refused with the words of `refusal`, if there are any. Reports
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
