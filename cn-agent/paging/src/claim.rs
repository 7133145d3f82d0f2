//! Ownership of spaces: a process claims a space by mapping its region, and releases it later.
//!
//! Shared memory has any number of owners. Other memory has a single owner, and its content belongs to that owner's
//! processes: an abandoned space can be claimed only by an owner that resumes after the agent was restarted. Any
//! other new owner gets a fresh space instead.

use std::io;

use super::space::{NewSpace, Space};
use super::spaces::Spaces;
use cxloe_cn_core::mapped::{MapRequest, MappingKind, limit_pages};

/// Result of a request to map a region.
#[derive(Debug)]
pub enum MapClaim {
    /// The region is mapped already, and the requester has become one of its owners.
    Owned(NewSpace),
    /// The region is not mapped: a space may be added.
    Free,
    /// Another process owns the region's space.
    Taken,
    /// The region's space has no owner any more, but its dirty pages are still being written back.
    Ending,
}

impl Space {
    fn own(&mut self, owns: bool) {
        self.used = true;
        self.owners = if owns { self.owners + 1 } else { self.owners.saturating_sub(1) };
    }

    /// Whether the space has neither an owner nor a member (a process that maps it). A process that may still rejoin
    /// after the end of the former agent counts as a member.
    pub(super) fn is_idle(&self) -> bool {
        self.owners == 0 && self.processes() == 0 && self.takeover.is_none()
    }
}

impl Spaces {
    /// Makes the requester an owner of the region's space, if a space exists and the rules of this module
    /// allow that.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn claim(&mut self, request: &MapRequest) -> io::Result<MapClaim> {
        let Some(at) = self.position(&request.region) else { return Ok(MapClaim::Free) };
        let Some(space) = &mut self.list.0[at] else { return Ok(MapClaim::Free) };
        let alike = space.options().kind == request.kind;
        let (idle, shared) = (space.is_idle(), space.options().kind == MappingKind::Shared);
        let joins = match (request.resume, shared) {
            (true, true) => true,
            (true, false) => space.owners() == 0,
            // A request for zeroed memory gets a new space, unless other processes still use this one.
            (false, true) => !(space.is_suspended() || (idle && request.fresh)),
            (false, false) => false,
        };
        if alike && joins {
            // Made before anything changes: who gets no descriptors owns nothing.
            let made = space.made()?;
            // An idle space has a new owner now, so its content must not be dropped any more.
            space.unwanted &= !idle;
            if idle && !request.resume {
                space.set_limit(limit_pages(request.limit, space.options().pages));
            }
            space.own(true);
            return Ok(MapClaim::Owned(made));
        }
        if !idle || space.is_suspended() {
            return Ok(MapClaim::Taken);
        }
        // Dirty pages of shared memory are written back first, unless the request drops the content.
        if shared && !request.fresh {
            return Ok(MapClaim::Ending);
        }
        self.watch();
        self.close(at);
        Ok(MapClaim::Free)
    }

    /// Removes an owner that no longer needs the space's content. If it was the last owner, nothing is
    /// written back.
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

    /// Marks the content of the region at `hpa` as gone, because the region was destroyed or emptied. Dirty pages are
    /// not written back. Processes that map the region keep the memory, which no other process gets: a later region of
    /// the same name may belong to another user.
    pub fn dropped(&mut self, hpa: u64) {
        if let Some(space) = self.list.0.iter_mut().flatten().find(|space| space.options().hpa == hpa) {
            space.unwanted = true;
            if space.is_held() {
                space.region_left();
                self.close_lines();
                return;
            }
            space.region_gone = true;
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

    /// Reverses [`dropped`](Self::dropped): a region is attached at `hpa` again, so dirty pages are written
    /// back.
    pub fn attached(&mut self, hpa: u64) {
        if let Some(space) = self.list.0.iter_mut().flatten().find(|space| space.options().hpa == hpa) {
            (space.unwanted, space.region_gone) = (false, false);
        }
    }

    /// Adds an owner to the space with number `id`, or removes one if `owns` is false.
    pub fn own(&mut self, id: u64, owns: bool) {
        if let Some(space) = self.get_mut(id) {
            space.own(owns);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::process::Command;
    use std::time::Duration;

    use nix::sys::resource::{Resource, getrlimit, setrlimit};

    use super::*;
    use crate::space::ONLY;
    use crate::space::testing::options;
    use cxloe_cn_core::mapped::SpaceOptions;
    use cxloe_cn_core::pager::{PAGE_BYTES, PageState};

    fn request(kind: MappingKind) -> MapRequest {
        MapRequest::new("r", kind, 1 << 20, Duration::from_secs(1))
    }

    /// Spaces with one claimed space, for region `r`.
    fn mapped(kind: MappingKind) -> (Spaces, u64) {
        let mut spaces = Spaces::new().unwrap();
        assert!(matches!(spaces.claim(&request(kind)), Ok(MapClaim::Free)));
        let id = add(&mut spaces, kind);
        (spaces, id)
    }

    fn add(spaces: &mut Spaces, kind: MappingKind) -> u64 {
        add_at(spaces, kind, 1 << 40)
    }

    /// Adds a claimed space for a region `r` that is attached at `hpa`.
    fn add_at(spaces: &mut Spaces, kind: MappingKind, hpa: u64) -> u64 {
        let options = SpaceOptions { hpa, ..options(kind) };
        let id = options.id;
        spaces.add(Box::new(Space::create(options).unwrap())).unwrap();
        spaces.own(id, true);
        id
    }

    #[test]
    fn private_memory_gets_the_pages_that_its_region_grows_by() {
        let bytes = |pages: u64| pages * PAGE_BYTES as u64;
        let (mut spaces, id) = mapped(MappingKind::Private);
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

        let (mut spaces, id) = mapped(MappingKind::Shared);
        spaces.grown(1 << 40, bytes(64), bytes(96));
        assert_eq!(spaces.get(id).unwrap().options().pages, 64, "it is mapped as it was");
    }

    #[test]
    fn a_machine_gets_no_pages_that_another_one_had() {
        let (mut spaces, first) = mapped(MappingKind::Foreign);
        assert!(
            matches!(spaces.claim(&request(MappingKind::Foreign)), Ok(MapClaim::Taken)),
            "it is one owner's"
        );
        let table = spaces.get(first).unwrap().empty_table(ONLY).unwrap();
        table.set(5, table.get(5).to(PageState::Dirty));
        spaces.own(first, false);
        assert!(
            matches!(spaces.claim(&request(MappingKind::Foreign)), Ok(MapClaim::Free)),
            "the next one's is new"
        );
        assert!(spaces.is_empty() && spaces.mapped().is_empty());
        let second = add(&mut spaces, MappingKind::Foreign);
        let entry = spaces.get(second).unwrap().pager.entry_of(ONLY, 5).unwrap();
        assert_eq!(
            (entry.state(), entry.slot()),
            (PageState::Absent, Some(5)),
            "it is fetched from the region"
        );
    }

    /// Variable that tells a copy of this program that it runs one test alone.
    const ALONE: &str = "CXLOE_CLAIM_ALONE";

    #[test]
    fn who_gets_no_descriptor_owns_nothing() {
        if std::env::var_os(ALONE).is_none() {
            // Other tests in this process would have no descriptors either.
            let name = "claim::tests::who_gets_no_descriptor_owns_nothing";
            let mut alone = Command::new(std::env::current_exe().unwrap());
            assert!(alone.args(["--exact", name]).env(ALONE, "1").status().unwrap().success());
            return;
        }
        let (mut spaces, id) = mapped(MappingKind::Shared);
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, hard.min(256), hard).unwrap();
        let held: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        assert!(spaces.claim(&request(MappingKind::Shared)).is_err());
        assert_eq!(spaces.get(id).unwrap().owners(), 1);
        drop(held);
        assert!(matches!(spaces.claim(&request(MappingKind::Shared)), Ok(MapClaim::Owned(_))));
        assert_eq!(spaces.get(id).unwrap().owners(), 2);
    }

    #[test]
    fn who_resumes_gets_what_it_had() {
        for kind in [MappingKind::Foreign, MappingKind::Shared] {
            let (mut spaces, id) = mapped(kind);
            let resumes = MapRequest { resume: true, ..request(kind) };
            let taken = spaces.claim(&resumes).unwrap();
            assert_eq!(matches!(taken, MapClaim::Owned(_)), kind == MappingKind::Shared, "{taken:?}");
            while spaces.get(id).unwrap().owners() > 0 {
                spaces.own(id, false);
            }
            assert!(matches!(spaces.claim(&resumes), Ok(MapClaim::Owned(made)) if made.id == id));
        }
    }

    #[test]
    fn shared_memory_is_open_to_every_process_of_the_space() {
        let (mut spaces, id) = mapped(MappingKind::Shared);
        let fresh = MapRequest { fresh: true, ..request(MappingKind::Shared) };
        let owned = |claim: io::Result<MapClaim>| matches!(claim, Ok(MapClaim::Owned(made)) if made.id == id);
        assert!(owned(spaces.claim(&fresh)) && owned(spaces.claim(&request(MappingKind::Shared))));
        (0..3).for_each(|_| spaces.own(id, false));
        // Written content must reach the memory nodes before the region is mapped as memory of another kind.
        assert!(matches!(spaces.claim(&request(MappingKind::Foreign)), Ok(MapClaim::Ending)));
        let tight = MapRequest { limit: 128 << 10, ..request(MappingKind::Shared) };
        assert!(owned(spaces.claim(&tight)));
        assert_eq!(spaces.get(id).unwrap().options().limit, 32, "the limit of whoever has it now");
        spaces.own(id, false);
        assert!(matches!(spaces.claim(&fresh), Ok(MapClaim::Free)), "zeros are wanted");
    }

    fn dirty(spaces: &mut Spaces, id: u64) {
        let space = spaces.get(id).unwrap();
        let table = space.empty_table(ONLY).unwrap();
        (0..64).for_each(|page| table.set(page, table.get(page).to(PageState::Dirty)));
        assert_eq!(space.dirty(), 64);
    }

    #[test]
    fn what_nobody_wants_is_not_written_back() {
        let (mut spaces, id) = mapped(MappingKind::Shared);
        dirty(&mut spaces, id);
        spaces.own(id, true);
        spaces.discard(id);
        assert!(spaces.get(id).is_some(), "another has it still");
        spaces.discard(id);
        assert!(spaces.is_empty() && spaces.mapped().is_empty());

        let id = add(&mut spaces, MappingKind::Shared);
        dirty(&mut spaces, id);
        spaces.clean_all(id, true, Box::new(|_| ())).unwrap();
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

    /// A later region of the same name has another address. It may belong to a user who must not share memory with the
    /// processes that map the former one.
    #[test]
    fn a_region_of_a_destroyed_ones_name_gets_memory_of_its_own() {
        let (mut spaces, former) = mapped(MappingKind::Shared);
        spaces.dropped(1 << 40);
        assert!(!spaces.is_mapped("r") && !spaces.uses("r") && spaces.owner("r").is_none());
        assert!(matches!(spaces.claim(&request(MappingKind::Shared)), Ok(MapClaim::Free)));
        let later = add_at(&mut spaces, MappingKind::Shared, 2 << 40);
        assert!(
            matches!(spaces.claim(&request(MappingKind::Shared)), Ok(MapClaim::Owned(made)) if made.id == later)
        );
        assert_eq!(spaces.get(former).unwrap().owners(), 1, "its process keeps the memory");

        // A region that was only emptied returns at its address, and has one space.
        let (mut spaces, id) = mapped(MappingKind::Shared);
        spaces.dropped(1 << 40);
        let options = SpaceOptions { id: 7, ..spaces.get(id).unwrap().options().clone() };
        assert!(spaces.add(Box::new(Space::create(options).unwrap())).is_err());
        spaces.attached(1 << 40);
        assert!(
            matches!(spaces.claim(&request(MappingKind::Shared)), Ok(MapClaim::Owned(made)) if made.id == id)
        );
    }
}
