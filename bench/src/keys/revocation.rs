//! A key that is taken back: how long its node is still served.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cxloe_client::client::{Client, ClientError};
use serde::Serialize;

/// For so long nothing may have been carried out for the node before it counts as not served.
const QUIET: Duration = Duration::from_secs(2);

/// What became of the reads of a node whose key was taken back.
#[derive(Clone, Debug, Serialize)]
pub struct Revoked {
    /// From the order to the manager's answer, in milliseconds.
    pub answered_ms: f64,
    /// From the order to the end of the last read that was carried out, in milliseconds.
    pub last_read_ms: f64,
    /// From the order to the first read that was refused, in milliseconds; none if reads still wait.
    pub first_refused_ms: Option<f64>,
    /// Reads carried out after the order.
    pub reads_after: u64,
}

/// Reads a line over and over through the agent at `socket`, has `revoke` take the node's key back, and looks for how long
/// reads are carried out.
///
/// # Errors
/// The agent cannot be reached, or `revoke` fails.
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
