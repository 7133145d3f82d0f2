//! Applies to the engine the manager's description of the legs of a position: the one or two memory nodes that hold a
//! copy of this part of an interleave set.

use alloc::vec::Vec;

use cxloe_wire::machine::Deadline;
use cxloe_wire::time::Time;

use super::super::shards::session_of;
use super::super::{Engine, RouteTarget};
use super::{LegMode, Mirror, MirrorLeg, Mirrors, MissedPages};

/// A leg of a position in the manager's description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LegTarget {
    /// Index of the first session with the leg's memory node.
    pub peer: usize,
    /// First CMem address of the leg.
    pub cmem: u64,
    /// Incarnation of the leg's content; `None` if the manager does not state it.
    pub incarnation: Option<u64>,
    /// Whether the leg is in sync; if not, it is stale, and this node fills it.
    pub in_sync: bool,
}

impl LegTarget {
    fn is(&self, leg: &MirrorLeg) -> bool {
        (leg.peer, leg.cmem) == (self.peer, self.cmem)
    }

    fn leg(&self, now: Time) -> MirrorLeg {
        MirrorLeg {
            peer: self.peer,
            cmem: self.cmem,
            incarnation: self.incarnation,
            mode: if self.in_sync { LegMode::Synced } else { LegMode::Stale },
            failing: false,
            missed_write: false,
            since: now,
            reported: None,
            missed: MissedPages::default(),
        }
    }
}

impl Engine {
    /// Applies the manager's description of the legs of a position of the route that begins at `hpa`, ordered
    /// by copy: one leg, or two of a mirror. Operations continue: reads in flight to a leg that is stale now
    /// are sent to the other leg, and writes no longer wait for the stale one. A description of an earlier
    /// `epoch` of the region is ignored.
    pub fn set_legs(&mut self, hpa: u64, position: u8, legs: &[LegTarget], epoch: u64, now: Time) {
        let mirror = self.routes.target_at(hpa, position).and_then(|target| target.mirror);
        let known = mirror.and_then(|number| self.core.mirrors.get(number));
        if known.is_some_and(|mirror| epoch < mirror.epoch) {
            return;
        }
        self.replace_legs(hpa, position, legs, epoch, now);
    }

    /// As [`set_legs`](Self::set_legs), by a manager over a restored store: the epoch may be earlier, and legs may be listed
    /// as in sync that lack later writes. A leg that this node had not in sync is not read from, and the manager is asked
    /// to declare it stale. If no other leg is listed as in sync, the content of the restored store's leg is used, and the
    /// other leg misses every page.
    pub fn set_restored_legs(&mut self, hpa: u64, position: u8, legs: &[LegTarget], epoch: u64, now: Time) {
        let Some(target) = self.routes.target_at(hpa, position) else { return };
        let known = target.mirror.and_then(|number| self.core.mirrors.get_mut(number));
        let sound: Vec<(usize, u64)> = match known {
            Some(mirror) => {
                mirror.filled_epoch = 0;
                let sound = mirror.legs.iter().filter(|leg| leg.must_have() && leg.missed.is_empty());
                sound.map(|leg| (leg.peer, leg.cmem)).collect()
            }
            None => [(target.peer, target.cmem)].into(),
        };
        self.replace_legs(hpa, position, legs, epoch, now);
        let number = self.routes.target_at(hpa, position).and_then(|target| target.mirror);
        let Some(number) = number else { return };
        self.doubt_legs(number, legs, &sound, now);
        self.choose_read_leg(number, legs);
    }

    /// Has the legs filled again that are not among those that were in sync, `sound`, with peer and CMem address.
    fn doubt_legs(&mut self, number: u16, legs: &[LegTarget], sound: &[(usize, u64)], now: Time) {
        let is_sound = |peer: usize, cmem: u64| sound.contains(&(peer, cmem));
        let has_content = legs.iter().any(|leg| leg.in_sync && is_sound(leg.peer, leg.cmem));
        for side in 0..2 {
            let Some(mirror) = self.core.mirrors.get_mut(number) else { return };
            let pages = mirror.pages();
            let known = &mirror.legs[side];
            let is_listed = legs.iter().any(|listed| listed.in_sync && listed.is(known));
            let leg = &mut mirror.legs[side];
            match (is_listed, has_content) {
                (true, true) if !is_sound(leg.peer, leg.cmem) => {
                    (leg.failing, leg.missed_write) = (true, true);
                }
                (false, false) => leg.mode = LegMode::Stale,
                _ => continue,
            }
            (leg.missed, leg.since, leg.reported) = (MissedPages::all(pages), now, None);
            self.leave_leg(number, side, now);
        }
    }

    fn replace_legs(&mut self, hpa: u64, position: u8, legs: &[LegTarget], epoch: u64, now: Time) {
        let Some(target) = self.routes.target_at(hpa, position) else { return };
        let bytes = self.routes.bytes_of_targets(hpa);
        let is_target = |leg: &LegTarget| (leg.peer, leg.cmem) == (target.peer, target.cmem);
        if target.mirror.is_none() && !legs.iter().any(is_target) {
            // Another leg has taken the place of the only one, with its content: lines that wait for the former leg's
            // memory node are sent to the new one.
            if let Some(leg) = legs.iter().find(|leg| leg.in_sync) {
                let (former, queues) = (self.siblings(target.peer), self.queues());
                let (peer, cmem) = (leg.peer, leg.cmem);
                let place = |offset: u64| {
                    let at = cmem + offset;
                    (session_of(peer, at, queues), at)
                };
                self.core.move_stranded(former, target.cmem, bytes, place);
            }
        }
        let number = match (target.mirror, legs) {
            (Some(number), _) => number,
            (None, [only]) => {
                if (only.peer, only.cmem) == (target.peer, target.cmem) {
                    return;
                }
                let LegTarget { peer, cmem, incarnation, .. } = *only;
                let target = RouteTarget { peer, cmem, incarnation, mirror: None };
                return self.routes.set_target(hpa, position, target);
            }
            (None, [first, second]) => {
                let (of_first, of_second) = (first.leg(now), second.leg(now));
                let reads = usize::from(!first.in_sync && second.in_sync);
                let (epoch, filled_epoch, route) = (0, 0, hpa);
                let legs = [of_first, of_second];
                let mirror = Mirror { route, position, bytes, epoch, filled_epoch, reads, legs };
                let Mirrors { list, pairs, fill, .. } = &mut self.core.mirrors;
                pairs.reserve();
                fill.reserve();
                // Writes in flight to a former mirror still have its number.
                let is_free = |number: &usize| list[*number].is_none() && !pairs.refer_to(*number as u16);
                let free = (0..list.len()).find(is_free).unwrap_or(list.len());
                if free == list.len() {
                    list.push(None);
                }
                list[free] = Some(mirror);
                let mirror = list[free].as_mut().expect("it was just put there");
                for side in 0..2 {
                    if mirror.legs[side].mode == LegMode::Stale {
                        mirror.legs[side].missed = MissedPages::all(mirror.pages());
                    }
                }
                free as u16
            }
            _ => return,
        };
        let Some(mirror) = self.core.mirrors.get_mut(number) else { return };
        mirror.epoch = epoch;
        // A leg that the manager no longer describes is replaced by a newly described leg, if there is one.
        let gone = [0, 1].map(|side| !legs.iter().any(|leg| leg.is(&mirror.legs[side])));
        let mut new: Vec<&LegTarget> = legs.iter().collect();
        new.retain(|leg| !mirror.legs.iter().any(|known| leg.is(known)));
        for side in (0..2).filter(|side| gone[*side]) {
            self.leave_leg(number, side, now);
            let Some(mirror) = self.core.mirrors.get_mut(number) else { return };
            if let Some(leg) = new.pop() {
                mirror.legs[side] = leg.leg(now);
                if !leg.in_sync {
                    mirror.legs[side].missed = MissedPages::all(mirror.pages());
                }
            }
        }
        for leg in legs {
            self.follow_leg(number, leg, epoch, now);
        }
        self.choose_read_leg(number, legs);
        if let [_only] = legs {
            self.core.end_copies(number);
            self.core.mirrors.list[usize::from(number)] = None;
        } else {
            self.core.mirrors.watch_at = now;
        }
        self.core.mirrors.pending = true;
        self.deadline.keep_earlier(Deadline::new(now, "a change of mirrored copies"));
    }

    /// Applies the manager's description of a leg that this node has a record of.
    fn follow_leg(&mut self, number: u16, leg: &LegTarget, epoch: u64, now: Time) {
        let Some(mirror) = self.core.mirrors.get_mut(number) else { return };
        let Some(side) = mirror.legs.iter().position(|known| leg.is(known)) else { return };
        let (pages, filled_epoch) = (mirror.pages(), mirror.filled_epoch);
        let known = &mut mirror.legs[side];
        let other_content =
            known.incarnation.is_some() && leg.incarnation.is_some_and(|new| known.incarnation != Some(new));
        known.incarnation = leg.incarnation.or(known.incarnation);
        match (known.mode, leg.in_sync) {
            (LegMode::Synced, true) => {}
            (_, true) => {
                (known.mode, known.reported) = (LegMode::Synced, None);
                // A leg that has missed a write after it was reported as filled is to be filled again.
                if !known.missed_write {
                    known.missed = MissedPages::default();
                }
            }
            // The manager has not yet applied the report that the leg is filled.
            (LegMode::Joining, false) if epoch == filled_epoch && !other_content => {}
            // The region has changed since the report, so the leg is reported again with the new epoch.
            (LegMode::Joining, false) if !known.failing && !other_content => {
                known.reported = None;
                mirror.filled_epoch = epoch;
            }
            // The manager has declared the leg stale.
            (LegMode::Synced | LegMode::Joining, false) => {
                (known.mode, known.failing, known.missed_write) = (LegMode::Stale, false, false);
                (known.since, known.reported) = (now, None);
                if other_content {
                    known.missed = MissedPages::all(pages);
                } else if known.missed.is_empty() {
                    known.missed = MissedPages::none(pages);
                }
                self.leave_leg(number, side, now);
            }
            // The memory node has lost the pages that were copied to it so far.
            (LegMode::Filling | LegMode::Stale, false) if other_content => {
                (known.mode, known.missed, known.since) = (LegMode::Stale, MissedPages::all(pages), now);
                self.core.end_copies(number);
                self.leave_leg(number, side, now);
            }
            (LegMode::Filling | LegMode::Stale, false) => {}
        }
    }

    /// Ends every dependence on a leg: its copies end, writes complete without it, and reads in flight to it are sent
    /// again.
    fn leave_leg(&mut self, number: u16, side: usize, now: Time) {
        let Some(mirror) = self.core.mirrors.get(number) else { return };
        let (peer, cmem, bytes) = (mirror.legs[side].peer, mirror.legs[side].cmem, mirror.bytes);
        self.core.end_copies(number);
        self.core.abandon_side(number, side);
        self.core.orphan_reads(self.siblings(peer), cmem, bytes, now);
    }

    /// Makes the first leg in sync the one to read from, and the target of the route.
    fn choose_read_leg(&mut self, number: u16, legs: &[LegTarget]) {
        let Some(mirror) = self.core.mirrors.get_mut(number) else { return };
        let is_whole = |leg: &&LegTarget| {
            leg.in_sync && mirror.legs.iter().any(|known| leg.is(known) && known.missed.is_empty())
        };
        let in_sync = legs.iter().find(is_whole).or(legs.iter().find(|leg| leg.in_sync));
        let Some(leg) = in_sync.or(legs.first()) else { return };
        let Some(side) = mirror.legs.iter().position(|known| leg.is(known)) else { return };
        let was = core::mem::replace(&mut mirror.reads, side);
        let (route, position, bytes) = (mirror.route, mirror.position, mirror.bytes);
        let (before, after) = (mirror.legs[was].clone(), &mirror.legs[side]);
        let (peer, cmem, incarnation) = (after.peer, after.cmem, after.incarnation);
        let mirror = (legs.len() == 2).then_some(number);
        self.routes.set_target(route, position, RouteTarget { peer, cmem, incarnation, mirror });
        // Write-backs that failed with the former leg's session are sent to the new leg.
        if (before.peer, before.cmem) != (peer, cmem) {
            let (former, queues) = (self.siblings(before.peer), self.queues());
            let place = |offset: u64| {
                let at = cmem + offset;
                (session_of(peer, at, queues), at)
            };
            self.core.move_stranded(former, before.cmem, bytes, place);
        }
    }

    pub(in super::super) fn drop_mirrors(&mut self, route: &super::super::Route) {
        for number in route.targets.iter().filter_map(|target| target.mirror) {
            self.core.end_copies(number);
            self.core.drop_owed(number);
            if let Some(mirror) = self.core.mirrors.list.get_mut(usize::from(number)) {
                *mirror = None;
            }
        }
    }
}
