//! Mapping of regions by requests on the agent's socket. A connection may own a space (the memory of a mapped region);
//! the processes that share the space are its members, whose connections are passed to the worker. Creating a space
//! takes time, so it is done here and not in the worker's thread.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use cxloe_member::socket::send_some;
use cxloe_member::wire::{JoinReply, NOT_YET, REFUSED};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use super::caller::Caller;
use super::context::ServerContext;
use super::manager;
use super::sent::{self, SentDescriptor, SentDescriptors};
use crate::worker::order::{Orders, ask};
use cxloe_client::message::{self, AgentAnswer, JoinRequest, MapRequest, RefusalReason, ShownFiles};
use cxloe_cn_core::attachments::worker_of;
use cxloe_cn_core::mapped::{MappingKind, SpaceOptions, limit_pages, view_pages};
use cxloe_cn_core::pager::{LIMIT_MIN, PAGE_BYTES};
use cxloe_fabric::model::{Name, Region};
use cxloe_paging::descriptor_kinds::{is_unix_socket, is_userfaultfd};
use cxloe_paging::process::MemoryFiles;
use cxloe_paging::spare_files::NO_FILE_LEFT;
use cxloe_paging::{JoinAttempt, MapClaim, NewSpace, Space, Spaces, cut};

const PAGE: u64 = PAGE_BYTES as u64;
/// Limit of pages of a region: page numbers have 32 bits, and their highest bit is reserved.
const PAGES_MAX: u64 = 1 << 31;
/// Maximum wait for the former owner of a region. A process that has ended releases its region a moment later.
const LEAVING_MAX: Duration = Duration::from_secs(1);
/// Longest wait for the dirty pages of the former owner to reach their memory nodes; shorter than the wait of programs
/// for the agent's answer.
const ENDING_MAX: Duration = Duration::from_secs(8);
/// Interval of attempts to claim a region.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The space of a mapped region, to be sent to its owner.
pub struct Mapped {
    /// Description of the space: its number, pages and descriptors.
    pub made: NewSpace,
    /// `/dev/userfaultfd`, if the caller has the right and the agent can open it.
    device: Option<OwnedFd>,
    /// Whether the region is sealed, so that the owner maps it for reading only.
    sealed: bool,
}

impl Mapped {
    /// Sends the space, with its descriptors, to the owner.
    ///
    /// # Errors
    /// The kernel's error.
    pub async fn answer(&self, stream: &mut UnixStream) -> io::Result<()> {
        let NewSpace { id, pages, shared_state, memory } = &self.made;
        let all = [
            ("ledger", Some(shared_state)),
            ("memory", memory.as_ref()),
            ("userfaultfd", self.device.as_ref()),
        ];
        let there = all.iter().filter_map(|(name, fd)| Some((*name, fd.as_ref()?.as_fd())));
        let (names, descriptors): (Vec<&str>, Vec<BorrowedFd<'_>>) = there.unzip();
        let descriptors_named = names.into_iter().map(String::from).collect();
        let (space, pages, sealed) = (*id, *pages, self.sealed);
        let answer = AgentAnswer::Mapped { space, pages, sealed, descriptors: descriptors_named };
        let bytes = message::encode(&answer);
        let sent = {
            let stream = &*stream;
            let send = || send_some(stream.as_fd(), &bytes, &descriptors, libc::MSG_DONTWAIT);
            stream.async_io(Interest::WRITABLE, send).await?
        };
        stream.write_all(&bytes[sent..]).await
    }
}

/// Maps a region. Afterwards the connection owns the region's space, and has to release it ([`Spaces::own`]).
///
/// # Errors
/// The reason why the region cannot be mapped.
pub async fn map(
    context: &ServerContext,
    caller: Caller,
    request: MapRequest,
    mut sent: SentDescriptors,
) -> Result<Mapped, RefusalReason> {
    if request.limit < u64::from(LIMIT_MIN) * PAGE {
        return Err(RefusalReason::Limit { limit: request.limit, least: u64::from(LIMIT_MIN) * PAGE });
    }
    // The right is checked before any information about a mapped region is given, and before a predecessor's state is
    // read.
    if let Err(refused @ RefusalReason::NotYours { .. }) =
        caller.region(context.listing.regions(), &request.region)
    {
        return Err(refused);
    }
    let keeper = if request.keeps { sent.take() } else { None };
    if keeper.as_ref().is_some_and(|keeper| !is_unix_socket(&**keeper)) {
        return Err(RefusalReason::Malformed(
            "what keeps the memory of forked children is no Unix socket".into(),
        ));
    }
    if let Some(bytes) = request.incoming.filter(|_| !request.resume) {
        let (worker, space) = create_held(context, caller, &request, bytes).await?;
        let made = add(context, worker, space).await?;
        let made = made.ok_or(RefusalReason::NoSpace)?;
        return Ok(Mapped { made, device: device(context, caller), sealed: false });
    }
    let mut made = claim_in_time(context, caller, &request).await?;
    if made.is_none() && request.resume {
        let (Some(shared_state), memory) = (sent.take(), sent.take()) else {
            return Err(RefusalReason::NotResumed("no shared state came with the request".into()));
        };
        let name = request.region.clone();
        let there = {
            let name = name.clone();
            move |spaces: &mut Spaces| spaces.is_mapped(&name)
        };
        resume(context, caller, shared_state, memory, there, move |of| of.region == name).await?;
        made = claim_in_time(context, caller, &request).await?;
    }
    if made.is_none() {
        let (worker, space) = create(context, caller, &request).await?;
        made = add(context, worker, space).await?;
    }
    if made.is_none() {
        // A concurrent request has added the space first, so this request tries to become the owner of that space.
        made = claim_in_time(context, caller, &request).await?;
    }
    let made = made.ok_or(RefusalReason::NoSpace)?;
    if let Some(keeper) = keeper {
        let id = made.id;
        let keep = move |spaces: &mut Spaces| {
            if let Some(space) = spaces.get_mut(id) {
                space.keep_with(keeper);
            }
        };
        if ask(context.workers.of_space(id).await, keep).await.is_none() {
            context.workers.disown(id).await;
            return Err(RefusalReason::Ending);
        }
    }
    let device = device(context, caller);
    // Read after the claim: a region is sealed only while no program maps it, so `sealed` does not change any more.
    let region = caller.region(context.listing.regions(), &request.region);
    let sealed = region.is_ok_and(|region| region.sealed);
    Ok(Mapped { made, device, sealed })
}

/// Opens `/dev/userfaultfd`; `None` if the caller has no right to it or the agent cannot open it.
fn device(context: &ServerContext, caller: Caller) -> Option<OwnedFd> {
    let open = || OpenOptions::new().read(true).write(true).open("/dev/userfaultfd").ok().map(OwnedFd::from);
    caller.may_serve_kernel_faults(context.allow_kernel_faults).then(open).flatten()
}

/// Creates a space for a region of `bytes` bytes that is not attached here yet, and returns the number of its worker.
/// Faults wait until the region is attached.
async fn create_held(
    context: &ServerContext,
    caller: Caller,
    request: &MapRequest,
    bytes: u64,
) -> Result<(usize, Box<Space>), RefusalReason> {
    if request.kind != MappingKind::Shared || request.fresh {
        return Err(RefusalReason::NotSuspendable);
    }
    let name = Name::new(request.region.as_str());
    let name = name.map_err(|_| RefusalReason::NoRegion(request.region.clone()))?;
    // The table alone takes a part in 512 of the size. The region exists already, elsewhere.
    let Region { uid, size, .. } = manager::region(context, &name).await?;
    let pages = held_pages(caller, &request.region, bytes, uid, size)?;
    let worker = context.controller.expect(name);
    let (orders, user) = (context.workers.get(worker).ok_or(RefusalReason::Ending)?, caller.limited());
    ask(orders, move |spaces| spaces.check_room(user)).await.ok_or(RefusalReason::Ending)??;
    let options = options(caller, context.workers.space_number(worker), request, pages);
    let made = spawn_blocking(|| Space::create(options).map(|space| Box::new(space.held()))).await;
    let made = made.map_err(|error| RefusalReason::System(error.to_string()))?;
    Ok((worker, made.map_err(|error| RefusalReason::System(error.to_string()))?))
}

/// Number of pages to hold for `bytes` bytes of a region that belongs to the user `uid` and has `size` bytes.
///
/// # Errors
/// The region is another user's, smaller, or too large.
fn held_pages(
    caller: Caller,
    region: &str,
    bytes: u64,
    uid: Option<u32>,
    size: u64,
) -> Result<u32, RefusalReason> {
    caller.check(region, uid)?;
    if bytes > size {
        return Err(RefusalReason::OtherSize { region: region.to_owned(), bytes: size, expected: bytes });
    }
    match bytes / PAGE {
        pages @ 1..=PAGES_MAX => Ok(pages as u32),
        _ => Err(RefusalReason::TooLarge(region.to_owned())),
    }
}

/// Returns the options of space `id` for a region that this node does not have yet: HPA and time of creation
/// are 0.
fn options(caller: Caller, id: u64, request: &MapRequest, pages: u32) -> SpaceOptions {
    SpaceOptions {
        id,
        region: request.region.clone(),
        kind: request.kind,
        hpa: 0,
        pages,
        view_pages: view_pages(request.kind, pages),
        limit: limit_pages(request.limit, pages),
        prefetch: request.prefetch,
        fresh: request.fresh,
        lost_wait: Duration::from_millis(request.lost_wait_ms),
        stay: request.stay,
        owner: Some(caller.uid),
        created_ms: 0,
        user: caller.limited(),
    }
}

/// Makes the connection an owner of a region that is already mapped; `None` if it is not mapped. If the region still
/// has a former owner, waits a bounded time for the former owner to release it.
async fn claim_in_time(
    context: &ServerContext,
    caller: Caller,
    request: &MapRequest,
) -> Result<Option<NewSpace>, RefusalReason> {
    let since = Instant::now();
    loop {
        let wish = request.clone();
        let claim = move |spaces: &mut Spaces| match spaces.owner(&wish.region) {
            Some(owner) if !caller.may_use(owner) => Ok(MapClaim::Taken),
            _ => spaces.claim(&wish),
        };
        let orders = of_region(context, &request.region).await;
        let claimed = ask(orders, claim).await.ok_or(RefusalReason::Ending)?;
        let late = |limit: Duration| request.resume || since.elapsed() >= limit;
        match claimed.map_err(|error| RefusalReason::System(error.to_string()))? {
            MapClaim::Owned(made) => return Ok(Some(made)),
            MapClaim::Free => return Ok(None),
            MapClaim::Taken if late(LEAVING_MAX) => {
                return Err(RefusalReason::Mapped(request.region.clone()));
            }
            MapClaim::Ending if late(ENDING_MAX) => {
                return Err(RefusalReason::WritingBack(request.region.clone()));
            }
            MapClaim::Taken | MapClaim::Ending => sleep(POLL_INTERVAL).await,
        }
    }
}

/// Returns the channel of orders to the worker that has the space of the region `name`, or that would get the space if
/// it were created.
async fn of_region<'a>(context: &'a ServerContext, name: &str) -> &'a Orders {
    context.workers.of_region(name, context.controller.worker_of_region(name)).await
}

/// Creates the space of a region. Also returns the number of the region's worker.
async fn create(
    context: &ServerContext,
    caller: Caller,
    request: &MapRequest,
) -> Result<(usize, Box<Space>), RefusalReason> {
    let name = &request.region;
    let region = caller.region(context.listing.regions(), name)?;
    if region.sealed && request.kind != MappingKind::Shared {
        return Err(RefusalReason::Sealed(name.clone()));
    }
    let pages = (region.size - region.beyond_window) / PAGE;
    if pages == 0 || pages > PAGES_MAX {
        return Err(RefusalReason::TooLarge(name.clone()));
    }
    let worker = worker_of(region.hpa, context.workers.count());
    let options = SpaceOptions {
        hpa: region.hpa,
        // The content of a private mapping belongs to the caller, even if all users may use the region. The
        // pages of a sealed region are not shared with other users either, who could change them.
        owner: region
            .uid
            .or_else(|| (request.kind != MappingKind::Shared || region.sealed).then_some(caller.uid)),
        created_ms: region.created_ms,
        ..options(caller, context.workers.space_number(worker), request, pages as u32)
    };
    let made = spawn_blocking(|| Space::create(options).map(Box::new)).await;
    let made = made.map_err(|error| RefusalReason::System(error.to_string()))?;
    Ok((worker, made.map_err(|error| RefusalReason::System(error.to_string()))?))
}

/// Adds a space to a worker, owned by the requester; `None` if a concurrent request has added one first.
async fn add(
    context: &ServerContext,
    worker: usize,
    space: Box<Space>,
) -> Result<Option<NewSpace>, RefusalReason> {
    let made = space.made().map_err(|error| RefusalReason::System(error.to_string()))?;
    let orders = context.workers.get(worker).ok_or(RefusalReason::Ending)?;
    let added = ask(orders, |spaces| {
        let SpaceOptions { id, user, .. } = *space.options();
        // A rejected space is returned and dropped by this task: dropping it in the worker's thread would delay the
        // worker.
        if let Err(full) = spaces.check_room(user) {
            return Err((space, Some(full)));
        }
        spaces.add(space).map_err(|space| (space, None))?;
        spaces.own(id, true);
        Ok(())
    });
    match added.await.ok_or(RefusalReason::Ending)? {
        Ok(()) => Ok(Some(made)),
        Err((_, Some(full))) => Err(full.into()),
        Err((_, None)) => Ok(None),
    }
}

/// Adopts the space of an agent that has ended, if `is_meant` accepts the space. Does nothing if a worker has the space
/// already, which `there` finds out. One space is adopted at a time, because adopting changes the shared state.
async fn resume(
    context: &ServerContext,
    caller: Caller,
    shared_state: SentDescriptor,
    memory: Option<SentDescriptor>,
    there: impl Fn(&mut Spaces) -> bool + Clone + Send + 'static,
    is_meant: impl FnOnce(&SpaceOptions) -> bool + Send + 'static,
) -> Result<(), RefusalReason> {
    let _one = context.adopting.lock().await;
    if context.workers.ask_all(there).await.ok_or(RefusalReason::Ending)?.contains(&true) {
        return Ok(());
    }
    let listing = context.listing.clone();
    let adopted = spawn_blocking(move || {
        let place = |of: &SpaceOptions| {
            if !is_meant(of) {
                return None;
            }
            let region = caller.region(listing.regions(), &of.region).ok()?;
            // A new region of the same name, or one with another owner, differs from the mapped region.
            let same = [0, region.created_ms].contains(&of.created_ms);
            let its = of.owner.is_none_or(|owner| caller.may_use(Some(owner)));
            (same && its).then(|| (region.hpa, region.size - region.beyond_window))
        };
        Space::adopt(shared_state.into_inner(), memory.map(SentDescriptor::into_inner), place)
            .map(|space| space.map(Box::new))
    });
    let adopted = adopted.await.map_err(|error| RefusalReason::System(error.to_string()))?;
    match adopted.map_err(|error| RefusalReason::NotResumed(error.to_string()))? {
        Some(mut space) => {
            space.charge_to(caller.limited());
            let orders = context.workers.at(space.options().hpa);
            drop(ask(orders, |spaces| spaces.add(space).err()).await.ok_or(RefusalReason::Ending)?);
            Ok(())
        }
        None => Err(RefusalReason::NotResumed("its region is not attached here, or is another one".into())),
    }
}

/// Makes a process a member of a space; the connection is passed to the worker.
///
/// # Errors
/// The kernel's error.
pub async fn join(
    context: &ServerContext,
    caller: Caller,
    request: JoinRequest,
    mut sent: SentDescriptors,
    stream: UnixStream,
) -> io::Result<()> {
    let JoinRequest { space, address, bytes, offset, pid, view, proof, resume: resumes, files } = request;
    // The last free descriptors are reserved for the agent's own files, so a request that has taken one of them is
    // refused.
    if sent.are_spare() {
        return refuse(stream, REFUSED, NO_FILE_LEFT).await;
    }
    // A forked child sends no userfaultfd: the kernel has passed the child's userfaultfd to the agent at the fork.
    let uffd = if resumes || view.is_none() { sent.take() } else { None };
    let shared_state = if resumes { sent.take() } else { None };
    let (memory, files) = shown(files, sent);
    if uffd.as_ref().is_some_and(|uffd| !is_userfaultfd(&**uffd)) {
        return refuse(stream, REFUSED, "what came as a userfaultfd is another descriptor").await;
    }
    if resumes && let Some(shared_state) = shared_state {
        let there = move |spaces: &mut Spaces| spaces.get(space).is_some();
        if let Err(error) =
            resume(context, caller, shared_state, memory, there, move |of| of.id == space).await
        {
            return refuse(stream, NOT_YET, &error.to_string()).await;
        }
    }
    let files =
        match spawn_blocking(move || MemoryFiles::check(files.map(|fd| fd.map(SentDescriptor::into_inner))))
            .await
        {
            Ok(Ok(files)) => files,
            Ok(Err(error)) => return refuse(stream, REFUSED, &error.to_string()).await,
            Err(error) => return refuse(stream, NOT_YET, &error.to_string()).await,
        };
    // The process id comes from the kernel, not from the request.
    let Some(peer) = caller.pid else {
        return refuse(stream, REFUSED, "the system does not say which process this is").await;
    };
    let socket = Some(OwnedFd::from(stream.into_std()?));
    let peer_uid = caller.uid;
    let joining = JoinAttempt {
        space,
        address,
        bytes,
        offset,
        pid,
        peer,
        peer_uid,
        view,
        proof,
        resume: resumes,
        uffd: uffd.map(SentDescriptor::into_inner),
        files,
        socket,
    };
    // If the worker has ended, the connection closes here, by which the process detects the failure.
    let _ = ask(context.workers.of_space(space).await, move |spaces| spaces.join(joining)).await;
    Ok(())
}

/// Divides the last descriptors of a request to join into the memory of the space, if it is shared, and the memory and
/// page table of the process.
fn shown(
    files: ShownFiles,
    mut rest: SentDescriptors,
) -> (Option<SentDescriptor>, [Option<SentDescriptor>; 2]) {
    let (table, memory) = match files {
        ShownFiles::None => (None, None),
        ShownFiles::Table => (rest.take_last(), None),
        ShownFiles::All => (rest.take_last(), rest.take_last()),
    };
    (rest.take_last(), [memory, table])
}

async fn refuse(mut stream: UnixStream, status: u32, text: &str) -> io::Result<()> {
    let text = cut(text);
    let welcome = JoinReply { status, text: text.len() as u32, ..JoinReply::default() };
    let sent = stream.write_all(&[&welcome.encode(), text.as_bytes()].concat()).await;
    sent::close(stream);
    sent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_held_for_a_region_that_moves_here_than_it_has() {
        let caller = Caller { uid: 4_000_000, pid: None };
        let held = |bytes, uid| held_pages(caller, "web", bytes, uid, 64 * PAGE);
        assert_eq!((held(64 * PAGE, Some(caller.uid)), held(PAGE, None)), (Ok(64), Ok(1)));
        let more =
            RefusalReason::OtherSize { region: "web".into(), bytes: 64 * PAGE, expected: PAGES_MAX * PAGE };
        assert_eq!(held(PAGES_MAX * PAGE, None), Err(more));
        let another = held(PAGE, Some(caller.uid + 1));
        assert_eq!(another, Err(RefusalReason::NotYours { region: "web".into(), uid: caller.uid }));
        assert_eq!(held(PAGE - 1, None), Err(RefusalReason::TooLarge("web".into())));
    }
}
