//! Negotiation of metadata contexts, the kinds of status that a client can ask for with `NBD_CMD_BLOCK_STATUS`.
//!
//! There is one, `base:allocation`. A region has memory for all of its pages from its creation on, and nobody records
//! which of them were never written or hold zeros: finding out takes a read. So every range has the same status, which
//! is that of data; the protocol permits it where a server does not know better.

use super::Conversation;
use crate::output::Output;
use crate::wire::{ALLOCATION, ALLOCATION_NUMBER, BASE, OptReply, OptionCode, parse_contexts};

impl Conversation {
    /// Answers `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`, which also selects contexts.
    pub(super) fn contexts(&mut self, option: u32, data: &[u8], output: &Output) {
        let selects = OptionCode::from(option) == OptionCode::SetMetaContext;
        if selects {
            // A selection replaces the one before, even if it is refused.
            self.allocation = false;
        }
        if !output.is_structured() {
            return self.refuse(option, OptReply::Invalid, "agree on structured replies before");
        }
        let Some((name, queries)) = parse_contexts(data) else {
            return self.refuse(option, OptReply::Invalid, "the data of the option does not add up");
        };
        if let Err((reply, why)) = self.export_size(name) {
            return self.refuse(option, reply, &why);
        }
        if selects && is_selected(&queries) {
            self.allocation = true;
            self.name_allocation(option, ALLOCATION_NUMBER);
        } else if !selects && is_listed(&queries) {
            // A list has no numbers: clients disregard this one.
            self.name_allocation(option, 0);
        }
        self.reply(option, OptReply::Ack, &[]);
    }

    fn name_allocation(&mut self, option: u32, number: u32) {
        self.reply(option, OptReply::MetaContext, &[&number.to_be_bytes(), ALLOCATION.as_bytes()]);
    }
}

/// Whether queries select the context; those for contexts of other servers select nothing.
fn is_selected(queries: &[&[u8]]) -> bool {
    queries.contains(&ALLOCATION.as_bytes())
}

/// Whether queries list the context: by its name or its namespace. No query lists all contexts.
fn is_listed(queries: &[&[u8]]) -> bool {
    queries.is_empty() || is_selected(queries) || queries.contains(&BASE.as_bytes())
}
