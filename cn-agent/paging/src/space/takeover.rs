//! Taking over the spaces of a dead agent.
//!
//! The first member or owner that returns passes the shared state, from which the space is rebuilt: the views with
//! their tables, under their former numbers. The view of a process that no longer exists is removed at once. Resident
//! pages are not written back before every living process has rejoined, because the pages cannot be write-protected
//! until then.

use std::io;

use super::{ONLY, Space};
use crate::memory::KernelMemory;
use crate::shared_state::{self, Record};
use cxloe_cn_core::mapped::MappingKind;
use cxloe_cn_core::pager::{PageTable, ViewId};

/// Processes of a dead agent's space that have not rejoined yet.
#[derive(Debug)]
pub(crate) struct ExpectedProcesses {
    expected: Vec<ExpectedProcess>,
}

#[derive(Debug)]
struct ExpectedProcess {
    record: Record,
    /// Pages that may be present or absent. Only the page table of the process shows which, and the process passes the
    /// table when it rejoins.
    unsettled: Vec<u32>,
}

impl ExpectedProcess {
    fn is_of(&self, view: ViewId, pid: u32) -> bool {
        (self.record.view, self.record.pid) == (view.0, pid)
    }
}

impl Record {
    fn is_alive(&self) -> bool {
        self.pid != 0 && shared_state::started(self.pid) == Some(self.started)
    }
}

impl Space {
    /// Rebuilds the space from its shared state.
    pub(crate) fn take_over(&mut self) -> io::Result<()> {
        let records = self.shared_state.records();
        // Mappings get new numbers, so members that rejoin get new records.
        (0..cxloe_cn_core::pager::MAPPINGS_MAX as u16)
            .for_each(|mapping| self.shared_state.set_record(mapping, None));
        self.pager.expect_more();
        let shared = self.options.kind != MappingKind::Private;
        let views = if shared { 1 } else { records.iter().map(|record| record.view + 1).max().unwrap_or(0) };
        let (mut gaps, mut unsettled) = (Vec::new(), vec![Vec::new(); usize::from(views)]);
        for view in (0..views).map(ViewId) {
            let record = records.iter().find(|record| record.view == view.0);
            let table = match record {
                None if !shared => PageTable::local(0),
                _ => self.shared_state.table(view.0)?,
            };
            let added = self.pager.add_view(table, shared).map_err(io::Error::other)?;
            debug_assert_eq!(added, view);
            match (record, &mut self.memory) {
                (Some(record), KernelMemory::Private(_)) if record.is_alive() => {
                    unsettled[usize::from(view.0)] = self.pager.take_over_known(view);
                    continue;
                }
                // This view has no living process. Its slots (places on the memory nodes) are counted below, and
                // `end_view` then frees them.
                (_, KernelMemory::Private(_)) => gaps.push(view),
                _ => {}
            }
            self.pager.take_over(view, self.memory.as_memory());
        }
        gaps.into_iter().for_each(|view| self.pager.end_view(view));
        let expect = |record: Record| {
            let unsettled = unsettled.get_mut(usize::from(record.view)).map(std::mem::take);
            ExpectedProcess { record, unsettled: unsettled.unwrap_or_default() }
        };
        let expected: Vec<_> = records.into_iter().filter(Record::is_alive).map(expect).collect();
        // The processes that are expected to rejoin are recorded again, because this agent may be killed as well.
        let last = cxloe_cn_core::pager::MAPPINGS_MAX as u16;
        for (index, process) in expected.iter().enumerate() {
            self.shared_state.set_record(last - 1 - index as u16, Some(process.record));
        }
        tracing::info!(
            region = self.options.region,
            processes = expected.len(),
            resident = self.pager.resident(),
            "taking over paged memory from an agent that has died"
        );
        self.takeover = Some(ExpectedProcesses { expected });
        self.advance_takeover();
        Ok(())
    }

    /// First word of the random content by which the former agent verified the files of the process `pid` with this
    /// view; `None` if that process is not expected to rejoin.
    pub(crate) fn expected_nonce(&self, view: ViewId, pid: u32) -> Option<u64> {
        let expected = self.takeover.as_ref()?.expected.iter();
        expected.filter(|process| process.is_of(view, pid)).map(|process| process.record.nonce).next()
    }

    /// Removes a process that has rejoined from the list of expected processes. The pager then determines which of the
    /// process's pages are present, where that was unknown.
    pub(crate) fn rejoined(&mut self, view: ViewId, pid: u32) {
        if let Some(takeover) = &mut self.takeover
            && let Some(at) = takeover.expected.iter().position(|process| process.is_of(view, pid))
        {
            let process = takeover.expected.remove(at);
            self.pager.settle(view, &process.unsettled, self.memory.as_memory());
            self.record_expected();
        }
        self.advance_takeover();
    }

    /// Records the members that are still expected, at the end of the table: present members are at its
    /// beginning.
    fn record_expected(&self) {
        let Some(takeover) = &self.takeover else { return };
        let last = cxloe_cn_core::pager::MAPPINGS_MAX as u16;
        let expected = &takeover.expected;
        for (index, process) in expected.iter().enumerate() {
            self.shared_state.set_record(last - 1 - index as u16, Some(process.record));
        }
        self.shared_state.set_record(last - 1 - expected.len() as u16, None);
    }

    /// Drops expected processes that have ended; when none is expected any more, the takeover is complete.
    pub(crate) fn advance_takeover(&mut self) {
        let Some(takeover) = &mut self.takeover else { return };
        let (alive, ended): (Vec<_>, Vec<_>) =
            std::mem::take(&mut takeover.expected).into_iter().partition(|process| process.record.is_alive());
        let complete = alive.is_empty();
        takeover.expected = alive;
        for ExpectedProcess { record, unsettled } in &ended {
            if self.options.kind == MappingKind::Private {
                let view = ViewId(record.view);
                self.pager.settle(view, unsettled, self.memory.as_memory());
                self.pager.end_view(view);
            }
            self.record_expected();
        }
        if complete {
            self.takeover = None;
            self.pager.complete();
            debug_assert!(
                self.options.kind == MappingKind::Private || self.pager.entry_of(ONLY, 0).is_some()
            );
            tracing::info!(region = self.options.region, "paged memory is taken over");
        }
    }
}
