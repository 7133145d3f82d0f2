//! Whose a space is: taken by whoever maps its region, given up by whoever has it, and made anew for the next.
//!
//! Shared memory is for all who ask. Other memory is one owner's, and its pages are what that one's processes left of
//! them: only an owner that resumes, with an agent's successor, gets such a space again. Whoever comes new and finds one
//! that nobody has any more gets a new one in its place.

use std::io;

use super::space::{Made, Space};
use super::spaces::Spaces;
use cxloe_cn_core::mapped::{Kind, MapRequest, limit_pages};

/// What has come of a wish to map a region.
#[derive(Debug)]
pub enum Claim {
    /// It is mapped, and owned by one more.
    Owned(Made),
    /// It is not mapped: a space may be added.
    Free,
    /// Somebody else has it.
    Taken,
    /// Nobody has it any more, but what is dirty is still on its way to memory nodes.
    Ending,
}

impl Space {
    /// Somebody has mapped it (again), or has let go of it.
    fn own(&mut self, owns: bool) {
        self.used = true;
        self.owners = if owns { self.owners + 1 } else { self.owners.saturating_sub(1) };
    }

    /// Whether nobody has it, or is expected to come again.
    pub(super) fn is_idle(&self) -> bool {
        self.owners == 0 && self.memory.mappings().iter().next().is_none() && self.takeover.is_none()
    }
}

impl Spaces {
    /// Takes the space of a region for whoever asks to map it.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn claim(&mut self, request: &MapRequest) -> io::Result<Claim> {
        let Some(at) = self.position(&request.region) else { return Ok(Claim::Free) };
        let Some(space) = &mut self.list.0[at] else { return Ok(Claim::Free) };
        let alike = space.options().kind == request.kind;
        let (idle, shared) = (space.is_idle(), space.options().kind == Kind::Shared);
        let joins = match (request.resume, shared) {
            (true, true) => true,
            (true, false) => space.owners() == 0,
            (false, true) => !(idle && request.fresh),
            (false, false) => false,
        };
        if alike && joins {
            space.unwanted &= !idle;
            if idle && !request.resume {
                space.set_limit(limit_pages(request.limit, space.options().pages));
            }
            space.own(true);
            return space.made().map(Claim::Owned);
        }
        if !idle {
            return Ok(Claim::Taken);
        }
        // What is dirty in shared memory goes out first, unless it is not wanted any more.
        if shared && !request.fresh {
            return Ok(Claim::Ending);
        }
        self.watch();
        self.close(at);
        Ok(Claim::Free)
    }

    /// An owner lets go of a space, and does not want what is in it any more: if nobody else does, nothing is written back.
    pub fn discard(&mut self, id: u64) {
        let here = |place: &Option<Box<Space>>| place.as_ref().is_some_and(|s| s.options().id == id);
        let Some(at) = self.list.0.iter().position(here) else { return };
        let Some(space) = &mut self.list.0[at] else { return };
        space.own(false);
        if space.owners() == 0 {
            space.unwanted = true;
        }
        if space.is_idle() && space.unwanted {
            self.watch();
            self.close(at);
        }
    }

    /// The content of the region at `hpa` is gone: it was destroyed or emptied. What was modified of it here has nowhere to
    /// go.
    pub fn dropped(&mut self, hpa: u64) {
        if let Some(space) = self.list.0.iter_mut().flatten().find(|space| space.options().hpa == hpa) {
            space.unwanted = true;
            let pages = space.dirty();
            if pages > 0 {
                tracing::warn!(
                    region = space.options().region,
                    pages,
                    "the region was destroyed or emptied while it was mapped; what was modified of it goes with the mapping"
                );
            }
        }
    }

    /// The region at `hpa` is there again.
    pub fn attached(&mut self, hpa: u64) {
        if let Some(space) = self.list.0.iter_mut().flatten().find(|space| space.options().hpa == hpa) {
            space.unwanted = false;
        }
    }

    /// Somebody has mapped it (again), or has let go of it.
    pub fn own(&mut self, id: u64, owns: bool) {
        if let Some(space) = self.get_mut(id) {
            space.own(owns);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::space::ONLY;
    use cxloe_cn_core::mapped::SpaceOptions;
    use cxloe_cn_core::pager::{PAGE_BYTES, State};

    fn request(kind: Kind) -> MapRequest {
        MapRequest {
            region: "r".into(),
            kind,
            limit: 1 << 20,
            prefetch: true,
            fresh: false,
            lost_wait_ms: 1000,
            stay: false,
            keeps: false,
            resume: false,
        }
    }

    /// Spaces of which one of region `r` is claimed.
    fn mapped(kind: Kind) -> (Spaces, u64) {
        let mut spaces = Spaces::new().unwrap();
        assert!(matches!(spaces.claim(&request(kind)), Ok(Claim::Free)));
        let id = add(&mut spaces, kind);
        (spaces, id)
    }

    fn add(spaces: &mut Spaces, kind: Kind) -> u64 {
        let options = SpaceOptions {
            id: rand::random(),
            region: "r".into(),
            kind,
            hpa: 1 << 40,
            pages: 64,
            view_pages: cxloe_cn_core::mapped::view_pages(kind, 64),
            limit: 64,
            prefetch: true,
            fresh: false,
            lost_wait: Duration::from_secs(1),
            stay: false,
            owner: None,
            created_ms: 0,
        };
        let id = options.id;
        spaces.add(Box::new(Space::create(options).unwrap())).unwrap();
        spaces.own(id, true);
        id
    }

    #[test]
    fn private_memory_gets_the_pages_that_its_region_grows_by() {
        let bytes = |pages: u64| pages * PAGE_BYTES as u64;
        let (mut spaces, id) = mapped(Kind::Private);
        spaces.grown(2 << 40, bytes(64), bytes(96));
        spaces.grown(1 << 40, bytes(80), bytes(96));
        assert_eq!(spaces.get(id).unwrap().options().pages, 64, "another region, or not what follows");
        spaces.grown(1 << 40, bytes(64), bytes(96));
        assert_eq!(spaces.get(id).unwrap().options().pages, 96);
        assert_eq!(spaces.mapped().first().map(|range| range.end), Some((1 << 40) + bytes(96)));
        assert_eq!(spaces.report(Some(id))[0].bytes, bytes(96));
        let shared_state = spaces.get(id).unwrap().made().unwrap().shared_state;
        let successor = Space::adopt(shared_state, None, |_| Some((1 << 40, bytes(128)))).unwrap().unwrap();
        assert_eq!(
            successor.options().pages,
            128,
            "it had grown more, which the predecessor did not hear of"
        );

        let (mut spaces, id) = mapped(Kind::Shared);
        spaces.grown(1 << 40, bytes(64), bytes(96));
        assert_eq!(spaces.get(id).unwrap().options().pages, 64, "it is mapped as it was");
    }

    #[test]
    fn a_machine_gets_no_pages_that_another_one_had() {
        let (mut spaces, first) = mapped(Kind::Foreign);
        assert!(matches!(spaces.claim(&request(Kind::Foreign)), Ok(Claim::Taken)), "it is one owner's");
        let table = spaces.get(first).unwrap().empty_table(ONLY).unwrap();
        table.set(5, table.get(5).to(State::Dirty));
        spaces.own(first, false);
        assert!(matches!(spaces.claim(&request(Kind::Foreign)), Ok(Claim::Free)), "the next one's is new");
        assert!(spaces.is_empty() && spaces.mapped().is_empty());
        let second = add(&mut spaces, Kind::Foreign);
        let entry = spaces.get(second).unwrap().pager.look(ONLY, 5).unwrap();
        assert_eq!((entry.state(), entry.slot()), (State::Absent, Some(5)), "it is fetched from the region");
    }

    #[test]
    fn who_resumes_gets_what_it_had() {
        for kind in [Kind::Foreign, Kind::Shared] {
            let (mut spaces, id) = mapped(kind);
            let resumes = MapRequest { resume: true, ..request(kind) };
            let taken = spaces.claim(&resumes).unwrap();
            assert_eq!(matches!(taken, Claim::Owned(_)), kind == Kind::Shared, "{taken:?}");
            while spaces.get(id).unwrap().owners() > 0 {
                spaces.own(id, false);
            }
            assert!(matches!(spaces.claim(&resumes), Ok(Claim::Owned(made)) if made.id == id));
        }
    }

    #[test]
    fn shared_memory_is_for_all_who_want_its_content() {
        let (mut spaces, id) = mapped(Kind::Shared);
        let fresh = MapRequest { fresh: true, ..request(Kind::Shared) };
        let owned = |claim: io::Result<Claim>| matches!(claim, Ok(Claim::Owned(made)) if made.id == id);
        assert!(owned(spaces.claim(&fresh)) && owned(spaces.claim(&request(Kind::Shared))));
        (0..3).for_each(|_| spaces.own(id, false));
        // What was written is of interest to some, and has to get out before memory of another kind is made of it.
        assert!(matches!(spaces.claim(&request(Kind::Foreign)), Ok(Claim::Ending)));
        let tight = MapRequest { limit: 128 << 10, ..request(Kind::Shared) };
        assert!(owned(spaces.claim(&tight)));
        assert_eq!(spaces.get(id).unwrap().options().limit, 32, "the limit of whoever has it now");
        spaces.own(id, false);
        assert!(matches!(spaces.claim(&fresh), Ok(Claim::Free)), "zeros are wanted");
    }

    /// A space that has dirty pages, and somebody who waits for them.
    fn dirty(spaces: &mut Spaces, id: u64) {
        let space = spaces.get(id).unwrap();
        let table = space.empty_table(ONLY).unwrap();
        (0..64).for_each(|page| table.set(page, table.get(page).to(State::Dirty)));
        assert_eq!(space.dirty(), 64);
    }

    #[test]
    fn what_nobody_wants_is_not_written_back() {
        let (mut spaces, id) = mapped(Kind::Shared);
        dirty(&mut spaces, id);
        spaces.own(id, true);
        spaces.discard(id);
        assert!(spaces.get(id).is_some(), "another has it still");
        spaces.discard(id);
        assert!(spaces.is_empty() && spaces.mapped().is_empty());

        let id = add(&mut spaces, Kind::Shared);
        dirty(&mut spaces, id);
        spaces.clean_all(id, Box::new(|_| ())).unwrap();
        spaces.own(id, false);
        let now = cxloe_wire::time::Time::ZERO;
        spaces.housekeeping(now);
        assert!(!spaces.is_empty(), "it is being written back");
        spaces.dropped(1 << 40);
        spaces.attached(1 << 40);
        spaces.housekeeping(now);
        assert!(!spaces.is_empty(), "also to a region that is there again");
        spaces.dropped(1 << 40);
        spaces.housekeeping(now);
        assert!(spaces.is_empty(), "at once when it is gone for good");
    }
}
