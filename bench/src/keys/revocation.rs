//! Revocation of a key: time until the memory node no longer serves the key's owner.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cxloe_client::client::{Client, ClientError};
use serde::Serialize;

/// Time without a successful read after which the reads count as ended.
const QUIET: Duration = Duration::from_secs(2);

/// Times of reads by a node whose key is revoked.
#[derive(Clone, Debug, Serialize)]
pub struct Revoked {
    /// Milliseconds from the request for revocation to the manager's answer.
    pub answered_ms: f64,
    /// Milliseconds from the request to the end of the last successful read.
    pub last_read_ms: f64,
    /// Milliseconds from the request to the first refused read; `None` if reads wait without an answer.
    pub first_refused_ms: Option<f64>,
    /// Number of successful reads after the request.
    pub reads_after: u64,
}

/// Reads a line repeatedly through the agent at `socket`, calls `revoke` to revoke the node's key, and records for how
/// long reads succeed.
///
/// # Errors
/// Fails if the agent cannot be reached, or `revoke` fails.
pub fn revoked<E: From<ClientError>>(
    socket: &Path,
    hpa: u64,
    revoke: impl FnOnce() -> Result<(), E>,
) -> Result<Revoked, E> {
    let mut client = Client::connect(socket)?;
    client.read(hpa)?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut carried_out, mut refused) = (Vec::new(), None);
            while !stop.load(Ordering::Relaxed) {
                match client.read(hpa) {
                    Ok(_) => carried_out.push(Instant::now()),
                    Err(_) => {
                        refused = refused.or(Some(Instant::now()));
                        std::thread::sleep(Duration::from_micros(100));
                    }
                }
            }
            (carried_out, refused)
        });
        // Reads are to be under way when the key is revoked.
        std::thread::sleep(Duration::from_millis(200));
        let ordered = Instant::now();
        let outcome = revoke();
        let answered = ordered.elapsed();
        std::thread::sleep(QUIET);
        stop.store(true, Ordering::Relaxed);
        let (carried_out, refused) = reader.join().unwrap_or_default();
        outcome?;
        let ms = |at: Instant| at.saturating_duration_since(ordered).as_secs_f64() * 1e3;
        Ok(Revoked {
            answered_ms: answered.as_secs_f64() * 1e3,
            last_read_ms: carried_out.last().map_or(0.0, |at| ms(*at)),
            first_refused_ms: refused.map(ms),
            reads_after: carried_out.iter().filter(|at| **at > ordered).count() as u64,
        })
    })
}
