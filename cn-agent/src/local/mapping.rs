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
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

use super::message::{self, Answer, JoinRequest, MapRequest, Refused};
use super::server::Backstage;
use crate::daemon::Orders;
use crate::daemon::order::{Order, PagingOrder};
use crate::pager::{LIMIT_MIN, PAGE_BYTES};
use crate::paging::{Joining, Kind, Made, Space, SpaceOptions, Spaces, cut, limit_pages, view_pages};

const PAGE: u64 = PAGE_BYTES as u64;
/// Pages of a region at most: numbers of pages have 32 bits, the highest of which mean something else.
const PAGES_MAX: u64 = 1 << 31;

/// Has the worker do something with mapped regions; `None` when it has ended.
pub async fn ask<T: Send + 'static>(
    orders: &Orders,
    what: impl FnOnce(&mut Spaces) -> T + Send + 'static,
) -> Option<T> {
    let (tell, told) = oneshot::channel();
    let order = PagingOrder(Box::new(move |spaces| drop(tell.send(what(spaces)))));
    orders.try_give(Order::Paging(order)).ok()?;
    told.await.ok()
}

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
    /// `/dev/userfaultfd`, if the agent may open it.
    device: Option<OwnedFd>,
}

impl Mapped {
    /// Answers with it.
    ///
    /// # Errors
    /// What the kernel says.
    pub async fn answer(&self, stream: &mut UnixStream) -> io::Result<()> {
        let Made { id, pages, ledger, memory } = &self.made;
        let all =
            [("ledger", Some(ledger)), ("memory", memory.as_ref()), ("userfaultfd", self.device.as_ref())];
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
    backstage: &Backstage,
    request: MapRequest,
    mut sent: Descriptors,
) -> Result<Mapped, Refused> {
    let MapRequest { region, kind, limit, .. } = request.clone();
    if limit < u64::from(LIMIT_MIN) * PAGE {
        return Err(Refused::Limit { limit, least: u64::from(LIMIT_MIN) * PAGE });
    }
    let keeper = if request.keeps { sent.take() } else { None };
    let mut made = own(backstage, &region, kind).await?;
    if made.is_none() && request.resume {
        let (Some(ledger), memory) = (sent.take(), sent.take()) else {
            return Err(Refused::NotResumed("no ledger came with the request".into()));
        };
        let name = region.clone();
        resume(backstage, ledger, memory, move |spaces| spaces.find(&name).is_some()).await?;
        made = own(backstage, &region, kind).await?;
    }
    if made.is_none() {
        let space = create(backstage, &request).await?;
        add(backstage, space).await?;
        made = own(backstage, &region, kind).await?;
    }
    let made = made.ok_or(Refused::NoSpace)?;
    if let Some(keeper) = keeper {
        let id = made.id;
        let keep = move |spaces: &mut Spaces| {
            if let Some(space) = spaces.get_mut(id) {
                space.keep_with(keeper);
            }
        };
        ask(&backstage.orders, keep).await.ok_or(Refused::Ending)?;
    }
    let device = OpenOptions::new().read(true).write(true).open("/dev/userfaultfd").ok().map(OwnedFd::from);
    Ok(Mapped { made, device })
}

/// The space of a region that is mapped already, owned by one more.
async fn own(backstage: &Backstage, region: &str, kind: Kind) -> Result<Option<Made>, Refused> {
    let name = region.to_string();
    let owned = ask(&backstage.orders, move |spaces| {
        let Some(found) = spaces.find(&name) else { return Ok(None) };
        // Other memory than shared is one owner's; a space that has none yet, or none any more, has room for it.
        let space = spaces.get(found.id);
        let free = found.kind == Kind::Shared || space.is_some_and(|space| space.owners() == 0);
        if found.kind != kind || !free {
            return Err(Refused::Mapped(name));
        }
        let made = space.map(Space::made).transpose().map_err(|error| Refused::System(error.to_string()))?;
        spaces.own(found.id, true);
        Ok(made)
    });
    owned.await.ok_or(Refused::Ending)?
}

async fn create(backstage: &Backstage, request: &MapRequest) -> Result<Box<Space>, Refused> {
    let name = &request.region;
    let regions = backstage.listing.regions();
    let none = || Refused::NoRegion(name.clone());
    let region = regions.into_iter().find(|region| region.region == *name).ok_or_else(none)?;
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
    };
    let made = spawn_blocking(|| Space::create(options).map(Box::new)).await;
    made.map_err(|error| Refused::System(error.to_string()))?
        .map_err(|error| Refused::System(error.to_string()))
}

/// If another was faster, that one is taken.
async fn add(backstage: &Backstage, space: Box<Space>) -> Result<(), Refused> {
    let added = ask(&backstage.orders, |spaces| {
        // One that cannot be added is dropped elsewhere than in the worker's thread.
        spaces.add(space).err()
    });
    drop(added.await.ok_or(Refused::Ending)?);
    Ok(())
}

/// Goes on with a space that an agent has left behind, unless it is `there` already: one at a time, because whoever
/// adopts a ledger changes it.
async fn resume(
    backstage: &Backstage,
    ledger: OwnedFd,
    memory: Option<OwnedFd>,
    there: impl FnOnce(&mut Spaces) -> bool + Send + 'static,
) -> Result<(), Refused> {
    let _one = backstage.adopting.lock().await;
    if ask(&backstage.orders, there).await.ok_or(Refused::Ending)? {
        return Ok(());
    }
    let listing = backstage.listing.clone();
    let adopted = spawn_blocking(move || {
        let hpa = |name: &str| Some(listing.regions().into_iter().find(|region| region.region == name)?.hpa);
        Space::adopt(ledger, memory, hpa).map(|space| space.map(Box::new))
    });
    let adopted = adopted.await.map_err(|error| Refused::System(error.to_string()))?;
    match adopted.map_err(|error| Refused::NotResumed(error.to_string()))? {
        Some(space) => add(backstage, space).await,
        None => Err(Refused::NotResumed("its region is not attached yet".into())),
    }
}

/// Has a process become a member; the connection goes to the worker.
///
/// # Errors
/// What the kernel says.
pub async fn join(
    backstage: &Backstage,
    request: JoinRequest,
    mut sent: Descriptors,
    stream: UnixStream,
) -> io::Result<()> {
    let JoinRequest { space, address, bytes, offset, pid, view, resume: resumes } = request;
    let uffd = sent.take();
    if resumes && let Some(ledger) = sent.take() {
        let there = move |spaces: &mut Spaces| spaces.get(space).is_some();
        if let Err(error) = resume(backstage, ledger, sent.take(), there).await {
            return refuse(stream, NOT_YET, &error.to_string()).await;
        }
    }
    // Who it is says the kernel, not the request.
    let peer = stream.peer_cred()?.pid().and_then(|pid| u32::try_from(pid).ok());
    let Some(peer) = peer else {
        return refuse(stream, REFUSED, "the system does not say which process this is").await;
    };
    let socket = Some(OwnedFd::from(stream.into_std()?));
    let joining = Joining { space, address, bytes, offset, pid, peer, view, resume: resumes, uffd, socket };
    // If the worker has ended, the connection closes here, which says so.
    let _ = ask(&backstage.orders, move |spaces| spaces.join(joining)).await;
    Ok(())
}

async fn refuse(mut stream: UnixStream, status: u32, text: &str) -> io::Result<()> {
    let text = cut(text);
    let welcome = Welcome { status, text: text.len() as u32, ..Welcome::default() };
    stream.write_all(&[&welcome.encode(), text.as_bytes()].concat()).await
}
