//! Clients beyond the limit: each is answered why it is not served, by a thread that serves nothing, and hung up on.
//!
//! The threads are few and each has a short time, so that clients who come again and again take nobody's place.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cxloe_client::vectored;

use super::conversation::{Conversation, Offer, Step, Unavailable};
use super::output::Output;

/// Clients answered at a time; more are hung up on without an answer.
const ANSWERED_MAX: usize = 4;
/// The longest time that one has to ask for its export and to take the answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// The clients that are being answered.
#[derive(Debug, Default)]
pub struct TurnedAway(Arc<AtomicUsize>);

/// One of them, until it is dropped.
struct Answered(Arc<AtomicUsize>);

impl Drop for Answered {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl TurnedAway {
    /// Answers a client of the export `name` that `limit` others are served already. Returns without waiting for it.
    pub fn answer(&self, stream: UnixStream, name: &str, limit: usize) {
        let more = |count| (count < ANSWERED_MAX).then_some(count + 1);
        if self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
            return;
        }
        let answered = Answered(Arc::clone(&self.0));
        let why = format!("{limit} clients are served already; raise --connections, or let one leave");
        let offer = Offer { name: name.into(), size: Err(Unavailable::Full(why)), read_only: false };
        let answer = move || {
            let _answered = answered;
            // A client that is not in earnest gets no answer.
            let _ = converse(stream, Conversation::new(offer));
        };
        // Without a thread the client is hung up on.
        drop(thread::Builder::new().name("nbd-turned-away".into()).spawn(answer));
    }
}

/// Speaks with a client until it leaves or its time is over.
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
            Step::Receive(_) => match stream.read(&mut bytes)? {
                0 => return Ok(()),
                count => conversation.receive(&bytes[..count]),
            },
            // Nothing is offered, so there is nothing to carry out.
            Step::Leave | Step::Carry(_) | Step::Payload(_) => return Ok(()),
        }
    }
}

/// Sends all of the output, which is little: a client that does not take it leaves.
fn send(stream: &UnixStream, output: &mut Output) -> io::Result<()> {
    while !output.is_empty() {
        let mut sent = vectored::send(stream.as_fd(), output.stretches(None, 0))?;
        while output.next_sent(&mut sent).is_some() {}
    }
    Ok(())
}
