//! Joining a space: as a new process, as a forked child, or again after the agent was restarted.

#![expect(unsafe_code, reason = "registering memory with a userfaultfd changes what its pages contain")]

use std::os::fd::AsFd;

use cxloe_member::wire::{JoinReply, NO_VIEW, NOT_YET, REFUSED, WELCOME};

use super::cut;
use super::member::MemberLink;
use super::memory::{KernelMemory, Mapped, required_features};
use super::process::{Process, ProcessError, has_all_rights};
use super::shared_state::Record;
use super::space::{ONLY, Space};
use super::spaces::{JoinAttempt, Spaces};
use crate::uffd::{Features, Modes, Uffd};
use cxloe_closer::{ClosedElsewhere, dispose};
use cxloe_cn_core::mapped::MappingKind;
use cxloe_cn_core::pager::{MappingId, PAGE_BYTES, ViewId};

const PAGE: u64 = PAGE_BYTES as u64;

/// Refusal of a request to join, with the text for the requester.
struct JoinRefusal {
    status: u32,
    text: String,
}

fn refused(text: impl ToString) -> JoinRefusal {
    JoinRefusal { status: REFUSED, text: cut(&text.to_string()).into() }
}

/// Message for a requester that the agent cannot see: the kernel reports the process's number in the agent's PID
/// namespace, and 0 for a process outside it.
pub fn unseen(pid: u32) -> String {
    match pid {
        0 => "the program is in another PID namespace than the agent, which cannot see it there; run the agent in the \
              machine's PID namespace (containers: `--pid=host`, hostPID: true), or both in one"
            .into(),
        _ => format!(
            "there is no process {pid} among those that the agent sees; if the program or its supervisor runs in a \
             container, run the agent in the machine's PID namespace (containers: `--pid=host`, hostPID: true), or all \
             of them in one"
        ),
    }
}

impl Spaces {
    /// Makes a process a member if the checks pass, and sends it the answer, with the reason of a refusal.
    pub fn join(&mut self, mut joining: JoinAttempt) {
        // The limit of processes for each user does not apply to a process that rejoins, because the former agent
        // admitted it.
        let user = self.get(joining.space).filter(|_| !joining.resume).and_then(|space| space.options().user);
        let more = u64::from(joining.view.is_none());
        let room = self.check_processes(user, more).map_err(refused);
        let outcome = match self.get_mut(joining.space) {
            Some(space) => room.and_then(|()| space.join(&mut joining)),
            None => {
                let text = "there is no such space; its region is not mapped any more".to_string();
                let status = if joining.resume { NOT_YET } else { REFUSED };
                Err(JoinRefusal { status, text })
            }
        };
        if let Err(JoinRefusal { status, text }) = outcome {
            tracing::warn!(pid = joining.pid, text, "a process cannot have its memory paged");
            if let Some(socket) = joining.socket {
                let welcome = JoinReply { status, text: text.len() as u32, ..JoinReply::default() };
                let mut link = MemberLink::new(socket);
                link.welcome(&welcome, &text, &[]);
                dispose(link);
            }
            dispose((joining.uffd, joining.files));
        }
        self.watch();
    }
}

impl Space {
    /// Whether processes of the user `uid` may map this space's memory. The owner, root and the agent's user may. A
    /// space without an owner is open to everyone who can use this agent. A space that root owns is open to all users,
    /// because root's program may start processes of other users; only these processes know the space's number.
    fn admits(&self, uid: u32) -> bool {
        has_all_rights(uid) || self.options.owner.is_none_or(|owner| owner == uid || owner == 0)
    }

    /// Identifies the process that joins, and checks that it has only the rights of the connection's user.
    fn process(&self, joining: &JoinAttempt) -> Result<Process, JoinRefusal> {
        Process::of(joining.pid, joining.peer_uid).map_err(|error| match error {
            ProcessError::Ended(pid) => refused(unseen(pid)),
            error => refused(error),
        })
    }

    /// Checks that a process which joins for the first time has passed the files through which the agent
    /// reads its pages. A forked child that cannot open its files joins without them; then its pages are not
    /// evicted.
    fn check_files(&self, joining: &JoinAttempt) -> Result<(), JoinRefusal> {
        let enough = match self.options.kind {
            MappingKind::Shared => true,
            MappingKind::Private => joining.view.is_some() || joining.files.is_complete(),
            MappingKind::Foreign => joining.files.has_table(),
        };
        if enough { Ok(()) } else { Err(refused(ProcessError::NoFiles)) }
    }

    fn join(&mut self, joining: &mut JoinAttempt) -> Result<(), JoinRefusal> {
        if !self.admits(joining.peer_uid) {
            let (region, uid) = (&self.options.region, joining.peer_uid);
            return Err(refused(format!("region {region} belongs to another user than {uid}")));
        }
        if self.options.kind != MappingKind::Foreign {
            joining.pid = joining.peer;
        }
        let JoinAttempt { address, bytes, offset, pid, .. } = *joining;
        let whole = [address, bytes, offset].iter().all(|number| number.is_multiple_of(PAGE));
        let end = address.checked_add(bytes).zip(offset.checked_add(bytes));
        let all = u64::from(self.options.view_pages) * PAGE;
        if !whole || bytes == 0 || end.is_none_or(|(_, end)| end > all) {
            return Err(refused(format!(
                "{bytes} bytes at {address:#x} from byte {offset} on are not whole pages of a view, which has room for {all}"
            )));
        }
        if self.options.kind == MappingKind::Private && offset != 0 {
            return Err(refused("private memory begins at its first page"));
        }
        let process = self.process(joining)?;
        self.check_files(joining)?;
        // Made before the process is added: if there is no descriptor left, the process is refused.
        let shared_state = self.shared_state.share().map_err(refused)?;
        let process = process.showing(std::mem::take(&mut joining.files));
        let started = process.started();
        let mapping = match (joining.resume, joining.view) {
            (true, view) => self.rejoin(ViewId(view.unwrap_or_default()), joining, process)?,
            (false, Some(view)) if self.options.kind == MappingKind::Private => {
                self.join_child(ViewId(view), joining, process)?
            }
            _ => self.join_new(joining, process)?,
        };
        let nonce = self.memory.mappings().get(mapping).map_or(0, |mapped| mapped.nonce);
        let view = self.pager.view_of(mapping).unwrap_or(ONLY);
        self.shared_state.set_record(mapping.0, Some(Record { view: view.0, pid, started, address, nonce }));
        self.changed = true;
        if let Some(mapped) = self.memory.mappings_mut().get_mut(mapping) {
            let welcome = JoinReply {
                status: WELCOME,
                view: view.0,
                mapping: mapping.0,
                pages: self.options.view_pages,
                agent: std::process::id(),
                text: 0,
            };
            let Mapped { link, uffd, .. } = mapped;
            if let Some(link) = link {
                match (joining.resume, joining.view) {
                    (true, _) => link.welcome(&welcome, "", &[]),
                    (false, Some(_)) => link.welcome(&welcome, "", &[uffd.as_fd(), shared_state.as_fd()]),
                    (false, None) => link.welcome(&welcome, "", &[shared_state.as_fd()]),
                }
            }
        }
        tracing::debug!(
            region = self.options.region,
            pid,
            view = view.0,
            resume = joining.resume,
            "a process has joined"
        );
        Ok(())
    }

    fn mapped(&self, joining: &mut JoinAttempt, uffd: Uffd, process: Process, nonce: u64) -> Mapped {
        let JoinAttempt { address, bytes, offset, pid, .. } = *joining;
        let link = joining.socket.take().map(MemberLink::new);
        let mapped = Mapped::new(uffd, address, (offset / PAGE) as u32, (bytes / PAGE) as u32, pid, link);
        mapped.of(process, nonce)
    }

    fn uffd(joining: &mut JoinAttempt) -> Result<ClosedElsewhere<Uffd>, JoinRefusal> {
        let fd = joining.uffd.take().ok_or_else(|| refused("no userfaultfd came with the request"))?;
        Uffd::from_fd(fd).map(ClosedElsewhere::new).map_err(refused)
    }

    /// Adds a process that passes its own userfaultfd.
    fn join_new(&mut self, joining: &mut JoinAttempt, process: Process) -> Result<MappingId, JoinRefusal> {
        let uffd = Self::uffd(joining)?;
        let (features, modes) = required_features(self.options.kind);
        if self.options.kind != MappingKind::Foreign {
            // Fault events carry the thread's id, so that the worker can choose the best CPU for the answer.
            uffd.handshake(features | Features::THREAD_ID).map_err(refused)?;
            let range = joining.address..joining.address + joining.bytes;
            // SAFETY: the memory belongs to another process, which requested the registration.
            unsafe { uffd.register(range, modes) }.map_err(|error| {
                refused(format!("its memory at {:#x} cannot be registered: {error}", joining.address))
            })?;
        }
        debug_assert!(modes.contains(Modes::MISSING));
        let nonce = match self.options.kind {
            MappingKind::Private => process.confirm(&uffd, joining.address).map_err(refused)?,
            MappingKind::Shared | MappingKind::Foreign => 0,
        };
        if let KernelMemory::Foreign(memory) = &mut self.memory {
            let first = (joining.offset / PAGE) as u32;
            if !memory.give(first..first + (joining.bytes / PAGE) as u32) {
                return Err(refused(
                    "a machine has had these pages of the region already; map the region anew for another one",
                ));
            }
        }
        let view = match self.options.kind {
            MappingKind::Shared | MappingKind::Foreign => ONLY,
            MappingKind::Private => {
                let table = self.empty_table(self.free_view()).map_err(refused)?;
                self.pager.add_view(table, true).map_err(refused)?
            }
        };
        let mapping = self.pager.add_mapping(view).map_err(refused)?;
        let mapped = self.mapped(joining, uffd.into_inner(), process, nonce);
        self.add(view, mapping, mapped);
        Ok(mapping)
    }

    fn add(&mut self, view: ViewId, mapping: MappingId, mapped: Mapped) {
        match &mut self.memory {
            KernelMemory::Private(memory) => memory.add(view, mapping, mapped),
            memory => memory.mappings_mut().add(mapping, mapped),
        }
    }

    /// Adds a forked child, whose userfaultfd the agent already has.
    fn join_child(
        &mut self,
        view: ViewId,
        joining: &mut JoinAttempt,
        process: Process,
    ) -> Result<MappingId, JoinRefusal> {
        let none = || refused("no process with this view has forked; the agent has been replaced meanwhile");
        if view.0 == NO_VIEW
            && let Some(why) = &self.denied
        {
            return Err(refused(why));
        }
        let KernelMemory::Private(memory) = &mut self.memory else { return Err(none()) };
        let mapping = memory.of_view(view).ok_or_else(none)?;
        let mapped = memory.mappings.get_mut(mapping).filter(|m| m.pid == 0).ok_or_else(none)?;
        // The answer passes on the userfaultfd of the child's memory, which is nobody else's, also of no other process
        // that may join the space.
        if mapped.address != joining.address || joining.proof != Some(mapped.proof) {
            return Err(none());
        }
        let readable = process.is_readable();
        let nonce = match readable {
            true => process.confirm(&mapped.uffd, joining.address).map_err(refused)?,
            false => 0,
        };
        (mapped.pid, mapped.nonce, mapped.process) = (joining.pid, nonce, Some(process));
        mapped.link = joining.socket.take().map(MemberLink::new);
        self.pager.set_droppable(view, readable);
        Ok(mapping)
    }

    /// Adds a member again, after the agent was restarted or the member's connection broke.
    fn rejoin(
        &mut self,
        view: ViewId,
        joining: &mut JoinAttempt,
        process: Process,
    ) -> Result<MappingId, JoinRefusal> {
        let JoinAttempt { pid, address, .. } = *joining;
        let known = self.memory.mappings().iter().find(|(id, mapped)| {
            self.pager.view_of(*id) == Some(view) && (mapped.pid, mapped.address) == (pid, address)
        });
        if let Some((mapping, linked)) = known.map(|(id, mapped)| (id, mapped.link.is_some())) {
            if linked {
                // The previous connection may still contain messages of the member, which must be handled first.
                let text = "its previous connection has not ended yet".to_string();
                return Err(JoinRefusal { status: NOT_YET, text });
            }
            if let Some(mapped) = self.memory.mappings_mut().get_mut(mapping) {
                // The files that the member passed when it first joined are kept.
                let link = joining.socket.take().map(MemberLink::new);
                dispose(std::mem::replace(&mut mapped.link, link));
                let evicts = self.options.kind != MappingKind::Private || mapped.is_readable();
                self.pager.set_droppable(view, evicts);
            }
            return Ok(mapping);
        }
        let Some(nonce) = self.expected_nonce(view, pid) else {
            return Err(refused("its memory was released after it was assumed to have ended"));
        };
        let uffd = Self::uffd(joining)?;
        let readable = process.is_readable();
        if readable && !process.shows(nonce, address) {
            return Err(refused(ProcessError::OtherMemory));
        }
        if let KernelMemory::Foreign(memory) = &mut self.memory {
            let first = (joining.offset / PAGE) as u32;
            memory.give(first..first + (joining.bytes / PAGE) as u32);
        }
        let mapping = self.pager.add_mapping(view).map_err(refused)?;
        let mapped = self.mapped(joining, uffd.into_inner(), process, nonce);
        // Threads whose faults the dead agent did not serve still wait: they are woken, and fault again.
        if let Err(error) = mapped.uffd.wake(mapped.all()) {
            dispose(mapped);
            return Err(refused(error));
        }
        self.add(view, mapping, mapped);
        self.pager.set_droppable(view, readable || self.options.kind != MappingKind::Private);
        self.rejoined(view, pid);
        Ok(mapping)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use cxloe_cn_core::pager::PageTable;

    use super::*;
    use crate::process::MemoryFiles;
    use crate::space::testing::options;

    /// The child has not joined, and would not show its files.
    #[test]
    fn the_view_of_a_child_is_the_one_whose_first_page_it_reads() {
        const PROOF: u64 = 0x0123_4567_89AB_CDEF;
        let mut space = Space::create(options(MappingKind::Private)).unwrap();
        let uffd = || Uffd::create_user_only().or_else(|_| Uffd::create()).unwrap();
        for child in 0..2 {
            let view = space.pager.add_view(PageTable::local(64), false).unwrap();
            let mapping = space.pager.add_mapping(view).unwrap();
            let mapped = Mapped::new(uffd(), PAGE, 0, 64, 0, None).of_child(PROOF + child);
            space.add(view, mapping, mapped);
        }
        let (here, _there) = UnixStream::pair().unwrap();
        let mut join = |view: u16, proof: Option<u64>| {
            let (pid, socket) = (std::process::id(), Some(OwnedFd::from(here.try_clone().unwrap())));
            let mut joining = JoinAttempt {
                space: space.options().id,
                address: PAGE,
                bytes: 64 * PAGE,
                offset: 0,
                pid,
                peer: pid,
                peer_uid: 0,
                view: Some(view),
                proof,
                resume: false,
                uffd: None,
                files: MemoryFiles::default(),
                socket,
            };
            space.join(&mut joining).map_err(|refusal| refusal.text)
        };
        for (view, proof) in [(1, None), (1, Some(0)), (1, Some(PROOF)), (0, Some(PROOF + 1))] {
            let text = join(view, proof).unwrap_err();
            assert!(text.contains("no process with this view"), "{text}");
        }
        assert_eq!((join(1, Some(PROOF + 1)), join(0, Some(PROOF))), (Ok(()), Ok(())));
        assert!(join(1, Some(PROOF + 1)).is_err(), "it has joined");
    }
}
