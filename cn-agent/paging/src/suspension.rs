//! Suspension of the space with a given number, while its region moves to another compute node or is expected from one.

use cxloe_cn_core::mapped::SpaceError;

use super::space::suspension::{OnSuspended, PageNotes};
use super::spaces::Spaces;

impl Spaces {
    /// Suspends a space: faults wait from now on, and all pages are written back and removed. Then `done` is
    /// called. [`serve_again`](Self::serve_again) before that ends the suspension, and drops `done`.
    ///
    /// # Errors
    /// [`SpaceError::Unknown`], [`SpaceError::NotSuspendable`].
    pub fn suspend(&mut self, id: u64, done: OnSuspended) -> Result<(), SpaceError> {
        self.get_mut(id).ok_or(SpaceError::Unknown)?.suspend(done)?;
        self.watch();
        Ok(())
    }

    /// Passes notes on the pages, from the region's previous compute node, to a suspended space.
    ///
    /// # Errors
    /// [`SpaceError::Unknown`], [`SpaceError::NotSuspendable`] unless the space is suspended and its region not
    /// attached.
    pub fn note(&mut self, id: u64, notes: &PageNotes) -> Result<(), SpaceError> {
        let space = self.get_mut(id).ok_or(SpaceError::Unknown)?;
        space.note(notes)
    }

    /// Ends the suspension of a space, the region of which is attached at `hpa`. Does nothing if the space is
    /// served.
    ///
    /// # Errors
    /// [`SpaceError::Unknown`]; [`SpaceError::Taken`] if another space uses the region.
    pub fn serve_again(&mut self, id: u64, hpa: u64) -> Result<(), SpaceError> {
        let region = &self.get(id).ok_or(SpaceError::Unknown)?.options().region;
        let other = self.position(region).and_then(|at| self.list.0[at].as_deref());
        if other.is_some_and(|other| other.options().id != id) {
            return Err(SpaceError::Taken);
        }
        let space = self.get_mut(id).ok_or(SpaceError::Unknown)?;
        if space.serve_again(hpa) {
            self.watch();
        }
        Ok(())
    }

    /// Whether pages of this region may be resident: the region has a space, from which not all pages have been
    /// removed.
    pub fn uses(&self, region: &str) -> bool {
        self.any(|space| space.options().region == region && space.uses_region())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use cxloe_cn_core::mapped::{MapRequest, MappingKind};
    use cxloe_cn_core::pager::{PAGE_BYTES, PageState};
    use cxloe_cn_core::transfers::Transfers;
    use cxloe_wire::time::Time;

    use super::*;
    use crate::MapClaim;
    use crate::space::testing::{HPA, options};
    use crate::space::{ONLY, Space};

    fn request() -> MapRequest {
        MapRequest::new("r", MappingKind::Shared, 1 << 20, Duration::from_secs(1))
    }

    fn add(spaces: &mut Spaces, space: Space) -> u64 {
        let id = space.options().id;
        spaces.add(Box::new(space)).unwrap();
        spaces.own(id, true);
        id
    }

    #[test]
    fn a_space_without_resident_pages_is_suspended_and_served_again() {
        let mut spaces = Spaces::new().unwrap();
        let id = add(&mut spaces, Space::create(options(MappingKind::Shared)).unwrap());
        assert!(spaces.uses("r") && spaces.mapped().len() == 1);
        let (sender, receiver) = channel();
        spaces.suspend(id, Box::new(move |notes| sender.send(notes).unwrap())).unwrap();
        assert!(spaces.uses("r"), "it is still being written back");
        assert_eq!(spaces.suspend(id, Box::new(|_| ())), Err(SpaceError::NotSuspendable));
        let mut transfers = Transfers::new(0);
        spaces.get_mut(id).unwrap().leave(&mut transfers);
        assert_eq!(receiver.recv().unwrap(), PageNotes::default());
        assert!(!spaces.uses("r") && spaces.is_mapped("r"));
        assert!(matches!(spaces.claim(&request()), Ok(MapClaim::Taken)), "nobody maps it meanwhile");
        assert_eq!(spaces.mapped().len(), 1, "nor are its lines written");
        assert_eq!(
            spaces.note(id, &PageNotes::default()),
            Err(SpaceError::NotSuspendable),
            "it knows better"
        );
        spaces.serve_again(id, HPA).unwrap();
        assert!(spaces.uses("r") && spaces.serve_again(id, HPA).is_ok());

        // The region of the suspended space is destroyed, and a new region with the same name is mapped.
        spaces.suspend(id, Box::new(|_| ())).unwrap();
        spaces.get_mut(id).unwrap().leave(&mut transfers);
        spaces.dropped(HPA);
        assert!(!spaces.is_mapped("r") && spaces.mapped().is_empty());
        add(&mut spaces, Space::create(options(MappingKind::Shared)).unwrap());
        assert_eq!(spaces.serve_again(id, HPA), Err(SpaceError::Taken));
        spaces.own(id, false);
        spaces.housekeeping(Time::ZERO);
        assert!(spaces.get(id).is_none() && spaces.is_mapped("r"), "it ends at once, with nothing to write");
    }

    #[test]
    fn a_space_waits_for_its_region() {
        let mut spaces = Spaces::new().unwrap();
        let id = add(&mut spaces, Space::create(options(MappingKind::Shared)).unwrap().held());
        assert!(!spaces.is_mapped("r") && !spaces.uses("r") && spaces.mapped().is_empty());
        assert!(matches!(spaces.claim(&request()), Ok(MapClaim::Free)), "who waits takes no name");
        let notes = PageNotes { hot: vec![3, 1, 99], zeros: vec![(4, 2), (60, u32::MAX)] };
        spaces.note(id, &notes).unwrap();
        spaces.housekeeping(Time::ZERO);
        spaces.serve_again(id, 2 << 40).unwrap();
        let there = 2 << 40..(2 << 40) + 64 * PAGE_BYTES as u64;
        assert_eq!(spaces.mapped(), std::slice::from_ref(&there));
        let slot = |page| spaces.get(id).unwrap().pager.entry_of(ONLY, page).unwrap().slot();
        assert_eq!([3, 4, 5, 6, 59, 60, 63].map(slot), [Some(3), None, None, Some(6), Some(59), None, None]);
        assert!(spaces.get(id).unwrap().pager.has_work());
    }

    #[test]
    fn only_memory_that_can_leave_is_suspended() {
        for kind in [MappingKind::Private, MappingKind::Foreign] {
            let mut spaces = Spaces::new().unwrap();
            let id = add(&mut spaces, Space::create(options(kind)).unwrap());
            assert_eq!(spaces.suspend(id, Box::new(|_| ())), Err(SpaceError::NotSuspendable));
        }
        assert_eq!(Spaces::new().unwrap().suspend(7, Box::new(|_| ())), Err(SpaceError::Unknown));
    }

    #[test]
    fn dirty_pages_are_written_back_first() {
        let mut spaces = Spaces::new().unwrap();
        let id = add(&mut spaces, Space::create(options(MappingKind::Shared)).unwrap());
        let space = spaces.get_mut(id).unwrap();
        let table = space.empty_table(ONLY).unwrap();
        table.set(7, table.get(7).to(PageState::Dirty));
        space.suspend(Box::new(|_| panic!("not yet"))).unwrap();
        assert_eq!(space.leave(&mut Transfers::new(0)), 1);
        assert!(!space.is_held() && space.cleans.len() == 1);
        // `serve_again` also ends a suspension whose write-back is still under way.
        spaces.serve_again(id, HPA).unwrap();
        assert!(!spaces.get(id).unwrap().is_suspended());
    }
}
