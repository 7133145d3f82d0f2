//! Mapping regions, as the agent's socket asks for it: connections that own a space, and members on their way to the
//! worker. What takes time, making a space, is done here and not in the worker's thread.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use cxloe_member::socket::{Descriptors, receive_some, send_some};
use cxloe_member::wire::{NOT_YET, REFUSED, Welcome};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use super::caller::Caller;
use super::context::ServerContext;
use crate::worker::order::ask;
use cxloe_client::message::{self, Answer, JoinRequest, MapRequest, Refused};
use cxloe_cn_core::mapped::{Kind, SpaceOptions, limit_pages, view_pages};
use cxloe_cn_core::pager::{LIMIT_MIN, PAGE_BYTES};
use cxloe_paging::{Claim, Joining, Made, Space, Spaces, cut};

const PAGE: u64 = PAGE_BYTES as u64;
/// Pages of a region at most: numbers of pages have 32 bits, the highest of which mean something else.
const PAGES_MAX: u64 = 1 << 31;
/// How long whoever had a region mapped has for its end: a process that ends lets go of it a moment later.
const LEAVING_MAX: Duration = Duration::from_secs(1);
/// How long what is dirty of it then has to get to its memory nodes; less than programs wait for the answer.
const ENDING_MAX: Duration = Duration::from_secs(8);
/// The pause between two looks at it.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Receives the first bytes of a request, and the descriptors beside them.
pub async fn receive_first(
    stream: &mut UnixStream,
    bytes: &mut [u8],
    descriptors: &mut Descriptors,
) -> io::Result<()> {
    let mut got = 0;
    while got < bytes.len() {
        let more = {
            let (stream, bytes) = (&*stream, &mut bytes[got..]);
            let receive = || receive_some(stream.as_fd(), bytes, descriptors, libc::MSG_DONTWAIT);
            stream.async_io(Interest::READABLE, receive).await?
        };
        if more == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        got += more;
    }
    Ok(())
}

/// What a mapped region's owner gets.
pub struct Mapped {
    /// The space.
    pub made: Made,
    /// `/dev/userfaultfd`, if the caller may have it and the agent may open it.
    device: Option<OwnedFd>,
}

impl Mapped {
    /// Answers with it.
    ///
    /// # Errors
    /// What the kernel says.
    pub async fn answer(&self, stream: &mut UnixStream) -> io::Result<()> {
        let Made { id, pages, shared_state, memory } = &self.made;
        let all = [
            ("ledger", Some(shared_state)),
            ("memory", memory.as_ref()),
            ("userfaultfd", self.device.as_ref()),
        ];
        let there = all.iter().filter_map(|(name, fd)| Some((*name, fd.as_ref()?.as_fd())));
        let (names, descriptors): (Vec<&str>, Vec<BorrowedFd<'_>>) = there.unzip();
        let descriptors_named = names.into_iter().map(String::from).collect();
        let answer = Answer::Mapped { space: *id, pages: *pages, descriptors: descriptors_named };
        let bytes = message::encode(&answer);
        let sent = {
            let stream = &*stream;
            let send = || send_some(stream.as_fd(), &bytes, &descriptors, libc::MSG_DONTWAIT);
            stream.async_io(Interest::WRITABLE, send).await?
        };
        stream.write_all(&bytes[sent..]).await
    }
}

/// Maps a region. The connection owns its space then, and has to give it up ([`Spaces::own`]).
///
/// # Errors
/// Why not.
pub async fn map(
    context: &ServerContext,
    caller: Caller,
    request: MapRequest,
    mut sent: Descriptors,
) -> Result<Mapped, Refused> {
    if request.limit < u64::from(LIMIT_MIN) * PAGE {
        return Err(Refused::Limit { limit: request.limit, least: u64::from(LIMIT_MIN) * PAGE });
    }
    // Also before anything is told of a region that is mapped already, and before anything a predecessor left is looked at.
    if let Err(refused @ Refused::NotYours { .. }) = caller.region(context.listing.regions(), &request.region)
    {
        return Err(refused);
    }
    let keeper = if request.keeps { sent.take() } else { None };
    let mut made = claim_in_time(context, caller, &request).await?;
    if made.is_none() && request.resume {
        let (Some(shared_state), memory) = (sent.take(), sent.take()) else {
            return Err(Refused::NotResumed("no shared state came with the request".into()));
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
        let space = create(context, caller, &request).await?;
        made = add(context, space).await?;
    }
    if made.is_none() {
        // Another was faster.
        made = claim_in_time(context, caller, &request).await?;
    }
    let made = made.ok_or(Refused::NoSpace)?;
    if let Some(keeper) = keeper {
        let id = made.id;
        let keep = move |spaces: &mut Spaces| {
            if let Some(space) = spaces.get_mut(id) {
                space.keep_with(keeper);
            }
        };
        ask(&context.orders, keep).await.ok_or(Refused::Ending)?;
    }
    let open = || OpenOptions::new().read(true).write(true).open("/dev/userfaultfd").ok().map(OwnedFd::from);
    let device = caller.may_serve_kernel_faults(context.allow_kernel_faults).then(open).flatten();
    Ok(Mapped { made, device })
}

/// The space of a region that is mapped already, owned by one more; `None` if it is not mapped. Who had it before may
/// have ended a moment ago: that is waited for.
async fn claim_in_time(
    context: &ServerContext,
    caller: Caller,
    request: &MapRequest,
) -> Result<Option<Made>, Refused> {
    let since = Instant::now();
    loop {
        let wish = request.clone();
        let claim = move |spaces: &mut Spaces| match spaces.owner(&wish.region) {
            Some(owner) if !caller.may_use(owner) => Ok(Claim::Taken),
            _ => spaces.claim(&wish),
        };
        let claimed = ask(&context.orders, claim).await.ok_or(Refused::Ending)?;
        let late = |limit: Duration| request.resume || since.elapsed() >= limit;
        match claimed.map_err(|error| Refused::System(error.to_string()))? {
            Claim::Owned(made) => return Ok(Some(made)),
            Claim::Free => return Ok(None),
            Claim::Taken if late(LEAVING_MAX) => return Err(Refused::Mapped(request.region.clone())),
            Claim::Ending if late(ENDING_MAX) => return Err(Refused::WritingBack(request.region.clone())),
            Claim::Taken | Claim::Ending => sleep(POLL_INTERVAL).await,
        }
    }
}

async fn create(
    context: &ServerContext,
    caller: Caller,
    request: &MapRequest,
) -> Result<Box<Space>, Refused> {
    let name = &request.region;
    let region = caller.region(context.listing.regions(), name)?;
    let pages = (region.size - region.beyond_window) / PAGE;
    if pages == 0 || pages > PAGES_MAX {
        return Err(Refused::TooLarge(name.clone()));
    }
    let options = SpaceOptions {
        id: rand::random(),
        region: name.clone(),
        kind: request.kind,
        hpa: region.hpa,
        pages: pages as u32,
        view_pages: view_pages(request.kind, pages as u32),
        limit: limit_pages(request.limit, pages as u32),
        prefetch: request.prefetch,
        fresh: request.fresh,
        lost_wait: Duration::from_millis(request.lost_wait_ms),
        stay: request.stay,
        // What one program has in it is its user's, though the region be everybody's.
        owner: region.uid.or_else(|| (request.kind != Kind::Shared).then_some(caller.uid)),
        created_ms: region.created_ms,
    };
    let made = spawn_blocking(|| Space::create(options).map(Box::new)).await;
    made.map_err(|error| Refused::System(error.to_string()))?
        .map_err(|error| Refused::System(error.to_string()))
}

/// Adds a space, owned by who asked for it; `None` if another was faster.
async fn add(context: &ServerContext, space: Box<Space>) -> Result<Option<Made>, Refused> {
    let made = space.made().map_err(|error| Refused::System(error.to_string()))?;
    let added = ask(&context.orders, |spaces| {
        let id = space.options().id;
        let added = spaces.add(space);
        if added.is_ok() {
            spaces.own(id, true);
        }
        // One that cannot be added is dropped elsewhere than in the worker's thread.
        added.err()
    });
    match added.await.ok_or(Refused::Ending)? {
        None => Ok(Some(made)),
        Some(_) => Ok(None),
    }
}

/// Goes on with a space that an agent has left behind, if it is the one that is meant, and unless it is `there` already: one
/// at a time, because whoever
/// adopts a shared state changes it.
async fn resume(
    context: &ServerContext,
    caller: Caller,
    shared_state: OwnedFd,
    memory: Option<OwnedFd>,
    there: impl FnOnce(&mut Spaces) -> bool + Send + 'static,
    is_meant: impl FnOnce(&SpaceOptions) -> bool + Send + 'static,
) -> Result<(), Refused> {
    let _one = context.adopting.lock().await;
    if ask(&context.orders, there).await.ok_or(Refused::Ending)? {
        return Ok(());
    }
    let listing = context.listing.clone();
    let adopted = spawn_blocking(move || {
        let place = |of: &SpaceOptions| {
            if !is_meant(of) {
                return None;
            }
            let region = caller.region(listing.regions(), &of.region).ok()?;
            // Another one of its name, or one that has changed hands, is not the one that was mapped.
            let same = [0, region.created_ms].contains(&of.created_ms);
            let its = of.owner.is_none_or(|owner| caller.may_use(Some(owner)));
            (same && its).then(|| (region.hpa, region.size - region.beyond_window))
        };
        Space::adopt(shared_state, memory, place).map(|space| space.map(Box::new))
    });
    let adopted = adopted.await.map_err(|error| Refused::System(error.to_string()))?;
    match adopted.map_err(|error| Refused::NotResumed(error.to_string()))? {
        Some(space) => {
            drop(ask(&context.orders, |spaces| spaces.add(space).err()).await.ok_or(Refused::Ending)?);
            Ok(())
        }
        None => Err(Refused::NotResumed("its region is not attached here, or is another one".into())),
    }
}

/// Has a process become a member; the connection goes to the worker.
///
/// # Errors
/// What the kernel says.
pub async fn join(
    context: &ServerContext,
    caller: Caller,
    request: JoinRequest,
    mut sent: Descriptors,
    stream: UnixStream,
) -> io::Result<()> {
    let JoinRequest { space, address, bytes, offset, pid, view, resume: resumes } = request;
    let uffd = sent.take();
    if resumes && let Some(shared_state) = sent.take() {
        let there = move |spaces: &mut Spaces| spaces.get(space).is_some();
        if let Err(error) =
            resume(context, caller, shared_state, sent.take(), there, move |of| of.id == space).await
        {
            return refuse(stream, NOT_YET, &error.to_string()).await;
        }
    }
    // Not by what the request says.
    let Some(peer) = caller.pid else {
        return refuse(stream, REFUSED, "the system does not say which process this is").await;
    };
    let socket = Some(OwnedFd::from(stream.into_std()?));
    let peer_uid = caller.uid;
    let joining =
        Joining { space, address, bytes, offset, pid, peer, peer_uid, view, resume: resumes, uffd, socket };
    // If the worker has ended, the connection closes here, which says so.
    let _ = ask(&context.orders, move |spaces| spaces.join(joining)).await;
    Ok(())
}

async fn refuse(mut stream: UnixStream, status: u32, text: &str) -> io::Result<()> {
    let text = cut(text);
    let welcome = Welcome { status, text: text.len() as u32, ..Welcome::default() };
    stream.write_all(&[&welcome.encode(), text.as_bytes()].concat()).await
}
