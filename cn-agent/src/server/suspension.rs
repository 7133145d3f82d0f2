//! Suspension of mapped regions by requests on the agent's socket: the region moves to another compute node,
//! or arrives from one.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::caller::Caller;
use super::context::ServerContext;
use crate::worker::order::ask;
use cxloe_client::message::{AgentAnswer, Attaching, RefusalReason};
use cxloe_cn_core::pager::PAGE_BYTES;
use cxloe_paging::PageNotes;

/// Maximum wait for a region's attachment in one request.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Interval of checks of the list of attached regions.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// Suspends a space (the memory of a mapped region), and waits until all of its pages are written back and removed from
/// this machine.
///
/// # Errors
/// The reason why the space cannot be suspended, or [`RefusalReason::NotClean`] if the suspension has ended early.
pub async fn suspend(context: &ServerContext, space: u64) -> Result<AgentAnswer, RefusalReason> {
    let orders = context.workers.of_space(space).await;
    let (sender, receiver) = oneshot::channel();
    let done = Box::new(move |notes| drop(sender.send(notes)));
    ask(orders, move |spaces| spaces.suspend(space, done)).await.ok_or(RefusalReason::Ending)??;
    let PageNotes { hot, zeros } = receiver.await.map_err(|_| RefusalReason::NotClean)?;
    Ok(AgentAnswer::Suspended { hot, zeros })
}

/// Passes the former compute node's notes on pages (which will be used soon, which are zeros) to the space of a region
/// that is not attached here yet.
///
/// # Errors
/// The reason why the space takes no notes.
pub async fn note(
    context: &ServerContext,
    space: u64,
    notes: PageNotes,
) -> Result<AgentAnswer, RefusalReason> {
    let orders = context.workers.of_space(space).await;
    ask(orders, move |spaces| spaces.note(space, &notes)).await.ok_or(RefusalReason::Ending)??;
    Ok(AgentAnswer::Done)
}

/// Serves a suspended space again, after a wait of up to `wait_ms` for its region to be attached.
///
/// # Errors
/// The reason why the space is not served.
pub async fn serve_again(
    context: &ServerContext,
    caller: Caller,
    space: u64,
    wait_ms: u64,
) -> Result<AgentAnswer, RefusalReason> {
    let of = move |space: &cxloe_paging::Space| (space.options().region.clone(), space.options().pages);
    let orders = context.workers.of_space(space).await;
    let named = ask(orders, move |spaces| spaces.get(space).map(of)).await;
    let (name, pages) = named.ok_or(RefusalReason::Ending)?.ok_or(RefusalReason::NoSpace)?;
    let until = Instant::now() + Duration::from_millis(wait_ms).min(WAIT_MAX);
    let region = loop {
        let refused = match caller.region(context.listing.regions(), &name) {
            Ok(region) if region.attachment == Attaching::Attached => break region,
            Ok(_) => RefusalReason::NoRegion(name.clone()),
            Err(refused) => refused,
        };
        match refused {
            RefusalReason::NoRegion(_) if Instant::now() < until => sleep(LOOK_INTERVAL).await,
            refused => return Err(refused),
        }
    };
    let (bytes, expected) = (region.size - region.beyond_window, u64::from(pages) * PAGE_BYTES as u64);
    if region.sealed {
        return Err(RefusalReason::Sealed(name));
    }
    if bytes != expected {
        return Err(RefusalReason::OtherSize { region: name, bytes, expected });
    }
    if !std::ptr::eq(orders, context.workers.at(region.hpa)) {
        return Err(RefusalReason::System(
            "another worker of the agent serves the region now: map it anew".into(),
        ));
    }
    let served = ask(orders, move |spaces| spaces.serve_again(space, region.hpa)).await;
    served.ok_or(RefusalReason::Ending)??;
    Ok(AgentAnswer::Done)
}
