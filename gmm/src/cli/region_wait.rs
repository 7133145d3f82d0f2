//! The wait of a command until a region is as ordered. The manager holds one request for a minute at most, so the
//! command goes on to read the region afterwards.

use std::time::{Duration, Instant};

use cxloe_daemon::command_line::Failure;
use cxloe_fabric::Client;
use cxloe_fabric::model::Region;

/// Time for which the manager holds the request before it answers, in milliseconds.
pub const REQUEST_WAIT_MS: u64 = 60_000;
/// Maximum time of the wait after that answer.
const WAIT_MAX: Duration = Duration::from_secs(540);
/// Interval at which the region is read.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Reads a region again until `pending` is false for it, or the time is over.
///
/// # Errors
/// If the manager does not answer, or the region does not exist any more.
pub async fn wait_while(
    client: &Client,
    mut region: Region,
    pending: impl Fn(&Region) -> bool,
) -> Result<Region, Failure> {
    let began = Instant::now();
    while pending(&region) && began.elapsed() < WAIT_MAX {
        tokio::time::sleep(LOOK_EVERY).await;
        region = client.region(&region.name).await?;
    }
    Ok(region)
}
