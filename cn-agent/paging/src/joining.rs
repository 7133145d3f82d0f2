//! Becoming a member of a space: a new process, a forked child, or a member of an agent that has died.

use std::os::fd::AsFd;

use cxloe_member::wire::{NOT_YET, REFUSED, WELCOME, Welcome};

use super::cut;
use super::member::Link;
use super::memory::private::may_look;
use super::memory::{KernelMemory, Mapped, wanted};
use super::shared_state::{self, Record};
use super::space::{ONLY, Space};
use super::spaces::{Joining, Spaces};
use crate::uffd::{Features, Modes, Uffd};
use cxloe_cn_core::mapped::Kind;
use cxloe_cn_core::pager::{MappingId, PAGE_BYTES, ViewId};

const PAGE: u64 = PAGE_BYTES as u64;

/// Why not.
struct No {
    status: u32,
    text: String,
}

fn refused(text: impl ToString) -> No {
    No { status: REFUSED, text: cut(&text.to_string()).into() }
}

/// Why a process that asks is not to be seen. The kernel names it by its number among the agent's own processes, and by 0
/// if it is none of them.
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
    /// A process becomes a member, and is told so, or why not.
    pub fn join(&mut self, mut joining: Joining) {
        let outcome = match self.get_mut(joining.space) {
            Some(space) => space.join(&mut joining),
            None => {
                let text = "there is no such space; its region is not mapped any more".to_string();
                let status = if joining.resume { NOT_YET } else { REFUSED };
                Err(No { status, text })
            }
        };
        if let Err(No { status, text }) = outcome {
            tracing::warn!(pid = joining.pid, text, "a process cannot have its memory paged");
            if let Some(socket) = joining.socket {
                let welcome = Welcome { status, text: text.len() as u32, ..Welcome::default() };
                Link::new(socket).welcome(&welcome, &text, &[]);
            }
        }
        self.watch();
    }
}

impl Space {
    fn join(&mut self, joining: &mut Joining) -> Result<(), No> {
        if self.options.kind != Kind::Foreign {
            joining.pid = joining.peer;
        }
        let Joining { address, bytes, offset, pid, .. } = *joining;
        let whole = [address, bytes, offset].iter().all(|number| number.is_multiple_of(PAGE));
        let end = address.checked_add(bytes).zip(offset.checked_add(bytes));
        let all = u64::from(self.options.view_pages) * PAGE;
        if !whole || bytes == 0 || end.is_none_or(|(_, end)| end > all) {
            return Err(refused(format!(
                "{bytes} bytes at {address:#x} from byte {offset} on are not whole pages of a view, which has room for {all}"
            )));
        }
        if self.options.kind == Kind::Private && offset != 0 {
            return Err(refused("private memory begins at its first page"));
        }
        let started = shared_state::started(pid).ok_or_else(|| refused(unseen(pid)))?;
        let mapping = match (joining.resume, joining.view) {
            (true, view) => self.rejoin(ViewId(view.unwrap_or_default()), joining)?,
            (false, Some(view)) if self.options.kind == Kind::Private => {
                self.join_child(ViewId(view), joining)?
            }
            _ => self.join_new(joining)?,
        };
        let view = self.pager.view_of(mapping).unwrap_or(ONLY);
        let shared_state = self.shared_state.share().map_err(refused)?;
        self.shared_state.set_record(mapping.0, Some(Record { view: view.0, pid, started, address }));
        self.changed = true;
        if let Some(mapped) = self.memory.mappings_mut().get_mut(mapping) {
            let welcome = Welcome {
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

    fn mapped(&self, joining: &mut Joining, uffd: Uffd) -> Mapped {
        let Joining { address, bytes, offset, pid, .. } = *joining;
        let link = joining.socket.take().map(Link::new);
        Mapped::new(uffd, address, (offset / PAGE) as u32, (bytes / PAGE) as u32, pid, link)
    }

    fn uffd(joining: &mut Joining) -> Result<Uffd, No> {
        let fd = joining.uffd.take().ok_or_else(|| refused("no userfaultfd came with the request"))?;
        Uffd::from_fd(fd).map_err(refused)
    }

    /// A process that brings a userfaultfd of its own.
    fn join_new(&mut self, joining: &mut Joining) -> Result<MappingId, No> {
        let uffd = Self::uffd(joining)?;
        let (features, modes) = wanted(self.options.kind);
        if self.options.kind != Kind::Foreign {
            // Who faults says where it is best served.
            uffd.handshake(features | Features::THREAD_ID).map_err(refused)?;
            let range = joining.address..joining.address + joining.bytes;
            // SAFETY: the memory is another process's, which has asked for it to be served.
            unsafe { uffd.register(range, modes) }.map_err(|error| {
                refused(format!("its memory at {:#x} cannot be registered: {error}", joining.address))
            })?;
        }
        debug_assert!(modes.contains(Modes::MISSING));
        if let KernelMemory::Foreign(memory) = &mut self.memory {
            let first = (joining.offset / PAGE) as u32;
            if !memory.give(first..first + (joining.bytes / PAGE) as u32) {
                return Err(refused(
                    "a machine has had these pages of the region already; map the region anew for another one",
                ));
            }
        }
        let view = match self.options.kind {
            Kind::Shared | Kind::Foreign => ONLY,
            Kind::Private => {
                may_look(joining.pid).map_err(refused)?;
                let table = self.empty_table(self.free_view()).map_err(refused)?;
                self.pager.add_view(table, true).map_err(refused)?
            }
        };
        let mapping = self.pager.add_mapping(view).map_err(refused)?;
        let mapped = self.mapped(joining, uffd);
        self.add(view, mapping, mapped);
        Ok(mapping)
    }

    fn add(&mut self, view: ViewId, mapping: MappingId, mapped: Mapped) {
        match &mut self.memory {
            KernelMemory::Private(memory) => memory.add(view, mapping, mapped),
            memory => memory.mappings_mut().add(mapping, mapped),
        }
    }

    /// A forked child says who it is.
    fn join_child(&mut self, view: ViewId, joining: &mut Joining) -> Result<MappingId, No> {
        let none = || refused("no process with this view has forked; the agent has been replaced meanwhile");
        let KernelMemory::Private(memory) = &mut self.memory else { return Err(none()) };
        let mapping = memory.of_view(view).ok_or_else(none)?;
        let mapped = memory.mappings.get_mut(mapping).filter(|m| m.pid == 0).ok_or_else(none)?;
        if mapped.address != joining.address {
            return Err(none());
        }
        mapped.pid = joining.pid;
        mapped.link = joining.socket.take().map(Link::new);
        self.pager.set_droppable(view, true);
        Ok(mapping)
    }

    /// A member of a predecessor, or one whose connection broke.
    fn rejoin(&mut self, view: ViewId, joining: &mut Joining) -> Result<MappingId, No> {
        let Joining { pid, address, .. } = *joining;
        let known = self.memory.mappings().iter().find(|(id, mapped)| {
            self.pager.view_of(*id) == Some(view) && (mapped.pid, mapped.address) == (pid, address)
        });
        if let Some((mapping, linked)) = known.map(|(id, mapped)| (id, mapped.link.is_some())) {
            if linked {
                // What has come over the one before is looked at first.
                let text = "its connection of before has not ended yet".to_string();
                return Err(No { status: NOT_YET, text });
            }
            if let Some(mapped) = self.memory.mappings_mut().get_mut(mapping) {
                mapped.link = joining.socket.take().map(Link::new);
            }
            self.pager.set_droppable(view, true);
            return Ok(mapping);
        }
        if !self.expects(view, pid) {
            return Err(refused("its memory was given up when it was thought to have ended"));
        }
        let uffd = Self::uffd(joining)?;
        if let KernelMemory::Foreign(memory) = &mut self.memory {
            let first = (joining.offset / PAGE) as u32;
            memory.give(first..first + (joining.bytes / PAGE) as u32);
        }
        let mapping = self.pager.add_mapping(view).map_err(refused)?;
        let mapped = self.mapped(joining, uffd);
        // Whoever the predecessor left waiting tries again.
        mapped.uffd.wake(mapped.all()).map_err(refused)?;
        self.add(view, mapping, mapped);
        self.pager.set_droppable(view, true);
        self.came(view, pid);
        Ok(mapping)
    }
}
