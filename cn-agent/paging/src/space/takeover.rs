//! Going on with the spaces of an agent that has died.
//!
//! The first member or owner that comes shows the shared_state, from which everything is made again: the views, each with its
//! table, in the numbers they had. Those of processes that have ended meanwhile are ended at once. What is in memory is
//! not cleaned before every process that lives has come again, since until then its pages cannot be protected.

use std::io;

use super::{ONLY, Space};
use crate::memory::KernelMemory;
use crate::shared_state::{self, Record};
use cxloe_cn_core::mapped::Kind;
use cxloe_cn_core::pager::{PageTable, ViewId};

/// Processes that have not come again yet.
#[derive(Debug)]
pub(crate) struct TakeOver {
    expected: Vec<Record>,
}

impl Record {
    fn is_alive(&self) -> bool {
        self.pid != 0 && shared_state::started(self.pid) == Some(self.started)
    }
}

impl Space {
    /// Makes the space again from its shared_state.
    pub(crate) fn take_over(&mut self) -> io::Result<()> {
        let records = self.shared_state.records();
        (0..cxloe_cn_core::pager::MAPPINGS_MAX as u16)
            .for_each(|mapping| self.shared_state.set_record(mapping, None));
        self.pager.expect_more();
        let shared = self.options.kind != Kind::Private;
        let views = if shared { 1 } else { records.iter().map(|record| record.view + 1).max().unwrap_or(0) };
        let mut gaps = Vec::new();
        for view in (0..views).map(ViewId) {
            let record = records.iter().find(|record| record.view == view.0);
            let table = match record {
                None if !shared => PageTable::local(0),
                _ => self.shared_state.table(view.0)?,
            };
            let added = self.pager.add_view(table, shared).map_err(io::Error::other)?;
            debug_assert_eq!(added, view);
            match (record, &mut self.memory) {
                (Some(record), KernelMemory::Private(memory)) if record.is_alive() => {
                    memory.expect(view, record.pid, record.address);
                }
                // Its slots are counted, and given up again.
                (_, KernelMemory::Private(_)) => gaps.push(view),
                _ => {}
            }
            self.pager.take_over(view, self.memory.as_memory());
        }
        gaps.into_iter().for_each(|view| self.pager.end_view(view));
        let expected: Vec<Record> = records.into_iter().filter(Record::is_alive).collect();
        // What has not come again is noted again, in case this agent dies, too.
        let last = cxloe_cn_core::pager::MAPPINGS_MAX as u16;
        for (index, record) in expected.iter().enumerate() {
            self.shared_state.set_record(last - 1 - index as u16, Some(*record));
        }
        tracing::info!(
            region = self.options.region,
            processes = expected.len(),
            resident = self.pager.resident(),
            "taking over paged memory from an agent that has died"
        );
        self.takeover = Some(TakeOver { expected });
        self.go_on_taking_over();
        Ok(())
    }

    /// Whether a process is expected to come again with this view.
    pub(crate) fn expects(&self, view: ViewId, pid: u32) -> bool {
        let here = |record: &Record| record.view == view.0 && record.pid == pid;
        self.takeover.as_ref().is_some_and(|takeover| takeover.expected.iter().any(here))
    }

    /// A process has come again.
    pub(crate) fn came(&mut self, view: ViewId, pid: u32) {
        if let Some(takeover) = &mut self.takeover
            && let Some(at) = takeover.expected.iter().position(|r| r.view == view.0 && r.pid == pid)
        {
            takeover.expected.remove(at);
            self.renote();
        }
        self.go_on_taking_over();
    }

    /// Notes those who are still expected, behind those who are there.
    fn renote(&self) {
        let Some(takeover) = &self.takeover else { return };
        let last = cxloe_cn_core::pager::MAPPINGS_MAX as u16;
        let expected = &takeover.expected;
        for (index, record) in expected.iter().enumerate() {
            self.shared_state.set_record(last - 1 - index as u16, Some(*record));
        }
        self.shared_state.set_record(last - 1 - expected.len() as u16, None);
    }

    /// Gives up those who have ended meanwhile; with the last one, all is as it was.
    pub(crate) fn go_on_taking_over(&mut self) {
        let Some(takeover) = &mut self.takeover else { return };
        let (alive, ended): (Vec<Record>, Vec<Record>) =
            std::mem::take(&mut takeover.expected).into_iter().partition(Record::is_alive);
        let complete = alive.is_empty();
        takeover.expected = alive;
        for record in &ended {
            if self.options.kind == Kind::Private {
                self.pager.end_view(ViewId(record.view));
            }
            self.renote();
        }
        if complete {
            self.takeover = None;
            self.pager.complete();
            debug_assert!(self.options.kind == Kind::Private || self.pager.look(ONLY, 0).is_some());
            tracing::info!(region = self.options.region, "paged memory is taken over");
        }
    }
}
