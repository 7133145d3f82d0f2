//! Answers to clients beyond the limit: a thread sends the reason to each such client and disconnects it.
//!
//! The threads are few and short-lived, so that clients that reconnect repeatedly take no slot.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cxloe_client::vectored;

use super::conversation::{Conversation, ConversationStep, Offer, Unavailable};
use super::output::Output;

/// Maximum number of clients that are answered at a time; further ones are disconnected without an answer.
const ANSWERED_MAX: usize = 4;
/// Longest time for a client to request the export and to take the answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Number of the clients that are being answered.
#[derive(Debug, Default)]
pub struct SurplusClients(Arc<AtomicUsize>);

/// One client that is being answered, counted until this is dropped.
struct SurplusClient(Arc<AtomicUsize>);

impl Drop for SurplusClient {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl SurplusClients {
    /// Answers a client of the export `name` that the limit of `limit` clients is reached. Returns without waiting for
    /// the client.
    pub fn answer(&self, stream: UnixStream, name: &str, limit: usize) {
        let more = |count| (count < ANSWERED_MAX).then_some(count + 1);
        if self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
            return;
        }
        let answered = SurplusClient(Arc::clone(&self.0));
        let why = format!("{limit} clients are served already; raise --connections, or let one leave");
        let offer = Offer { name: name.into(), size: Err(Unavailable::Full(why)), read_only: false };
        let answer = move || {
            let _answered = answered;
            // Ignored: nothing depends on a client that is not served.
            let _ = converse(stream, Conversation::new(offer));
        };
        // If no thread can be started, the client is disconnected without an answer.
        drop(thread::Builder::new().name("nbd-turned-away".into()).spawn(answer));
    }
}

/// Runs the protocol with a client until the client leaves or its time is over.
fn converse(mut stream: UnixStream, mut conversation: Conversation) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    let until = Instant::now() + ANSWER_MAX;
    let mut output = Output::default();
    let mut bytes = [0; 1024];
    loop {
        let step = conversation.step(&mut output).map_err(io::Error::other)?;
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        send(&stream, &mut output)?;
        match step {
            ConversationStep::Receive(_) => match stream.read(&mut bytes)? {
                0 => return Ok(()),
                count => conversation.receive(&bytes[..count]),
            },
            // The export is offered as unavailable, so there is no request to carry out.
            ConversationStep::Leave | ConversationStep::Carry(_) | ConversationStep::Payload(_) => {
                return Ok(());
            }
        }
    }
}

/// Sends all of the output, which is short; fails if the client does not take it.
fn send(stream: &UnixStream, output: &mut Output) -> io::Result<()> {
    while !output.is_empty() {
        let mut sent = vectored::send(stream.as_fd(), output.stretches(None, 0))?;
        while output.next_sent(&mut sent).is_some() {}
    }
    Ok(())
}
