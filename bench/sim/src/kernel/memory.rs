//! Memory operations that the pager requests from the simulated kernel.

use std::ops::Range;

use cxloe_cn_core::pager::{Drop, MappingId, Memory, MemoryError, PAGE_BYTES, Page, ViewId};

use super::{Kernel, MemorySharing};
use crate::planted_fault::PlantedFault;

impl Memory for Kernel {
    fn install(
        &mut self,
        mapping: MappingId,
        page: u32,
        bytes: &Page,
        protect: bool,
    ) -> Result<(), MemoryError> {
        self.meanwhile();
        let process = self.of(mapping).ok_or(MemoryError::Gone)?;
        // The kernel refuses userfaultfd operations while an event that changes mappings is unread.
        if self.processes[process].changing {
            return Err(MemoryError::Again);
        }
        let index = page as usize;
        if self.ready.get(&page) == Some(&true) {
            self.ready.remove(&page);
            let content = self.cache[index].as_deref().copied().ok_or(MemoryError::Absent)?;
            if content != *bytes {
                self.wrong(format!("page {page} is installed as something else than it was filled with"));
            }
            let pte = &mut self.processes[process].ptes[index];
            (pte.present, pte.protected) = (true, protect);
            self.wake_threads(process, page);
            self.meanwhile();
            return Ok(());
        }
        self.give_up(ViewId(0), page);
        let present = match self.kind {
            MemorySharing::Shared => self.cache[index].is_some(),
            MemorySharing::Private => self.processes[process].ptes[index].present,
        };
        if present {
            return Err(MemoryError::Exists);
        }
        self.installed.insert((process, page), *bytes);
        match self.kind {
            MemorySharing::Shared => self.cache[index] = Some(Box::new(*bytes)),
            MemorySharing::Private => self.processes[process].ptes[index].own = Some(Box::new(*bytes)),
        }
        let pte = &mut self.processes[process].ptes[index];
        (pte.present, pte.protected) = (true, protect);
        self.wake_threads(process, page);
        self.meanwhile();
        Ok(())
    }

    fn makes_ready(&self) -> bool {
        self.kind == MemorySharing::Shared
    }

    fn make_ready(&mut self, _: ViewId, page: u32) {
        self.meanwhile();
        if self.cache[page as usize].is_none() && self.chance(800) {
            self.cache[page as usize] = Some(Box::new([0; PAGE_BYTES]));
            self.ready.insert(page, false);
        }
        self.meanwhile();
    }

    fn fill(&mut self, _: ViewId, page: u32, bytes: &Page) {
        if !self.ready.contains_key(&page) {
            return;
        }
        // The agent may die between the two halves, and leave a page that is only half filled.
        for half in [0..PAGE_BYTES / 2, PAGE_BYTES / 2..PAGE_BYTES] {
            self.meanwhile();
            let content = self.cache[page as usize].get_or_insert_with(|| Box::new([0; PAGE_BYTES]));
            content[half.clone()].copy_from_slice(&bytes[half]);
        }
        self.ready.insert(page, true);
        self.meanwhile();
    }

    fn give_up(&mut self, _: ViewId, page: u32) {
        if self.ready.remove(&page).is_some() {
            self.take_away(0, page);
        }
    }

    fn map(&mut self, mapping: MappingId, page: u32, protect: bool) -> Result<(), MemoryError> {
        self.meanwhile();
        let process = self.of(mapping).ok_or(MemoryError::Gone)?;
        if self.cache[page as usize].is_none() {
            return Err(MemoryError::Absent);
        }
        let pte = &mut self.processes[process].ptes[page as usize];
        if pte.present {
            return Err(MemoryError::Exists);
        }
        (pte.present, pte.protected) = (true, protect);
        self.wake_threads(process, page);
        self.meanwhile();
        Ok(())
    }

    fn protect(&mut self, mapping: MappingId, pages: Range<u32>) -> Result<(), MemoryError> {
        self.meanwhile();
        let process = self.of(mapping).ok_or(MemoryError::Gone)?;
        if self.processes[process].changing {
            return Err(MemoryError::Again);
        }
        for page in pages {
            let pte = &mut self.processes[process].ptes[page as usize];
            pte.protected |= pte.present && self.mistake != Some(PlantedFault::IgnoresProtection);
        }
        self.meanwhile();
        Ok(())
    }

    fn unprotect(&mut self, mapping: MappingId, page: u32) -> Result<(), MemoryError> {
        self.meanwhile();
        let process = self.of(mapping).ok_or(MemoryError::Gone)?;
        if self.processes[process].changing {
            return Err(MemoryError::Again);
        }
        self.processes[process].ptes[page as usize].protected = false;
        self.wake_threads(process, page);
        self.meanwhile();
        Ok(())
    }

    fn snapshot(&mut self, view: ViewId, page: u32, into: &mut Page) -> Result<(), MemoryError> {
        self.meanwhile();
        let stale = self.installed.iter().find(|((_, of), _)| *of == page).map(|(_, page)| page);
        if let Some(stale) = stale.filter(|_| self.mistake == Some(PlantedFault::CopiesStalePages)) {
            *into = *stale;
            return Ok(());
        }
        let content = match self.kind {
            MemorySharing::Shared => self.cache[page as usize].as_ref(),
            MemorySharing::Private => {
                let process = self.processes.iter().rposition(|p| p.view == view && p.alive);
                let process = process.ok_or(MemoryError::Gone)?;
                self.processes[process].ptes[page as usize].own.as_ref()
            }
        };
        into.copy_from_slice(&**content.ok_or(MemoryError::Absent)?);
        self.meanwhile();
        Ok(())
    }

    fn drop_pages(&mut self, view: ViewId, ranges: &[Range<u32>]) -> Result<Drop, MemoryError> {
        self.meanwhile();
        if self.mistake == Some(PlantedFault::DropsLate) {
            // The planted fault: the page is removed late, so that a write after this point goes to a page
            // about to be removed.
            let process = self.processes.iter().rposition(|p| p.view == view && p.alive);
            self.processes[process.unwrap_or(0)].orders.push_back(ranges.to_vec());
            return Ok(Drop::Done);
        }
        match self.kind {
            MemorySharing::Shared => {
                ranges.iter().cloned().flatten().for_each(|page| self.take_away(0, page));
                self.meanwhile();
                Ok(Drop::Done)
            }
            MemorySharing::Private => {
                let process = self.processes.iter().rposition(|p| p.view == view && p.alive);
                let process = process.ok_or(MemoryError::Gone)?;
                self.processes[process].orders.push_back(ranges.to_vec());
                Ok(Drop::Ordered)
            }
        }
    }

    fn is_present(&mut self, view: ViewId, page: u32) -> bool {
        match self.kind {
            MemorySharing::Shared => self.cache[page as usize].is_some() && !self.ready.contains_key(&page),
            MemorySharing::Private => {
                let process = self.processes.iter().rposition(|p| p.view == view && p.alive);
                process.is_some_and(|process| self.processes[process].ptes[page as usize].present)
            }
        }
    }

    fn wake(&mut self, mapping: MappingId, page: u32) {
        if let Some(process) = self.of(mapping) {
            self.wake_threads(process, page);
        }
        self.meanwhile();
    }

    fn poison(&mut self, mapping: MappingId, page: u32) -> Result<(), MemoryError> {
        let process = self.of(mapping).ok_or(MemoryError::Gone)?;
        self.processes[process].ptes[page as usize].poisoned = true;
        self.wake_threads(process, page);
        Ok(())
    }
}
