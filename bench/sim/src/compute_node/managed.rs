//! A worker's part in a compute node that follows a manager: the orders for the worker, the regions that it drains, and
//! its results for the node's control.

use std::collections::VecDeque;
use std::sync::Arc;

use cxloe_cn_core::attach::{SessionKeys, SessionSettings};
use cxloe_cn_core::attachments::{Attachment, AttachmentChange};
use cxloe_cn_core::drain::Drains;
use cxloe_cn_core::engine::Engine;
use cxloe_cn_core::quiet::QuietMark;
use cxloe_cn_core::workers::FollowOrder;
use cxloe_wire::frame::ETHERTYPE_DEFAULT;
use cxloe_wire::session::RequesterConfig;
use cxloe_wire::time::Time;

use crate::node_keys::key_of;
use crate::trace;

/// Maximum number of memory nodes in a run with a manager.
const MNS_MAX: usize = 16;

/// An order as it waits for its worker.
pub(super) enum Order {
    Apply(AttachmentChange),
    OpenSessions(Attachment),
}

impl From<FollowOrder<'_>> for Order {
    fn from(order: FollowOrder<'_>) -> Order {
        match order {
            FollowOrder::Apply(change) => Order::Apply(change.clone()),
            FollowOrder::OpenSessions(attachment) => Order::OpenSessions(attachment.clone()),
        }
    }
}

/// Orders of the node's control that a worker has not carried out yet.
#[derive(Default)]
pub(super) struct Orders {
    pub waiting: Vec<Order>,
    /// Number of the manager's event up to which all changes are among the orders so far.
    pub event: u64,
}

pub(super) struct Managed {
    pub drains: Drains,
    pub station: SessionSettings,
    /// Regions being released: the manager's ticket, the first address and the number of bytes of each.
    pub tickets: VecDeque<(u64, u64, u64)>,
    /// Tickets of released regions that the node's control has not taken yet.
    pub drained: Vec<u64>,
    /// Regions being moved or released: first address, and the time at which that began.
    pub moving: Vec<(u64, Time)>,
    quiet_mark: QuietMark,
    /// Number of the newest applied event such that all operations in flight at its application have ended.
    quiet: u64,
    /// Number of the last event that the worker has applied.
    told_event: u64,
}

impl Managed {
    pub fn new(config: &RequesterConfig) -> Managed {
        Managed {
            drains: Drains::default(),
            station: SessionSettings {
                own: config.identity.own,
                ethertype: ETHERTYPE_DEFAULT,
                max_frame: config.max_frame,
                streams: config.streams,
                instance: config.instance,
                key: None,
                keys: keys_of(config),
                timing: config.timing,
            },
            tickets: VecDeque::new(),
            drained: Vec::new(),
            moving: Vec::new(),
            quiet_mark: QuietMark::default(),
            quiet: 0,
            told_event: 0,
        }
    }

    /// Records that all changes up to `event` are applied. When the operations that are now in flight have ended, the
    /// worker reports this event as quiet.
    pub fn followed(&mut self, engine: &mut Engine, event: u64) {
        if self.told_event != event {
            self.told_event = event;
            self.quiet_mark.follow(event);
        }
        self.poll_quiet(engine);
    }

    /// Checks whether the operations that were in flight at the last call of [`followed`](Self::followed) have ended.
    pub fn poll_quiet(&mut self, engine: &mut Engine) {
        self.quiet = self.quiet_mark.poll(engine).unwrap_or(self.quiet);
    }

    pub fn quiet(&self) -> u64 {
        self.quiet
    }

    /// Begins the life of a new process, with this instance id.
    pub fn restart(&mut self, instance: u64) {
        self.station.instance = instance;
        (self.quiet, self.told_event, self.quiet_mark) = (0, 0, QuietMark::default());
        self.drains = Drains::default();
        self.tickets.clear();
        self.drained.clear();
        self.moving.clear();
    }
}

/// Returns the key of a compute node with this configuration, and the public keys of all memory nodes.
fn keys_of(config: &RequesterConfig) -> SessionKeys {
    let mut keys = SessionKeys::none(0.into());
    if let Some(pair) = &config.keys {
        keys.own = Some(Arc::clone(&pair.own));
        keys.epoch_ns = pair.epoch_ns;
        keys.named = (0..MNS_MAX).map(trace::Name::mn).map(|mac| (mac, key_of(mac).public())).collect();
    }
    keys
}
