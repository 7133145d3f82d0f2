//! Closes a connection so that the answer arrives. Closing a socket with unread bytes resets the connection, and a
//! client that is still sending loses the answer with the reason of the refusal. So if a part of a request was not
//! read, the sending half is closed first, and the rest is read and dropped, within limits (RFC 9112, 9.6).

use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// Maximum time for the peer to end its request or close the connection.
const LINGER_MAX: Duration = Duration::from_secs(5);
/// Maximum number of bytes of a request that are read and dropped.
const DROPPED_MAX: usize = 16 << 20;
const CHUNK: usize = 16 << 10;

/// Stream whose shutdown waits until a peer that is still sending has ended.
#[derive(Debug)]
pub struct Lingering<S> {
    stream: S,
    /// True while a request is read in part: set by this stream, cleared by the reader of requests.
    partial: Arc<AtomicBool>,
    /// Deadline for reading the rest after the sending half was closed; `None` before.
    until: Option<Pin<Box<Sleep>>>,
    dropped: usize,
}

impl<S> Lingering<S> {
    /// Wraps `stream`; the reader of requests clears `partial` at the end of each request.
    pub fn new(stream: S, partial: Arc<AtomicBool>) -> Self {
        Self { stream, partial, until: None, dropped: 0 }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Lingering<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = into.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, into);
        if into.filled().len() > before {
            self.partial.store(true, Ordering::Relaxed);
        }
        polled
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Lingering<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let Self { stream, partial, until, dropped } = &mut *self;
        let until = match until {
            Some(until) => until,
            None => {
                ready!(Pin::new(&mut *stream).poll_shutdown(cx))?;
                // Everything was read, so that closing the socket does not reset the connection.
                if !partial.load(Ordering::Relaxed) {
                    return Poll::Ready(Ok(()));
                }
                until.insert(Box::pin(tokio::time::sleep(LINGER_MAX)))
            }
        };
        let mut chunk = [0; CHUNK];
        while *dropped < DROPPED_MAX && until.as_mut().poll(cx).is_pending() {
            let mut into = ReadBuf::new(&mut chunk);
            // A read error ends the wait, too: the answer has been sent.
            match ready!(Pin::new(&mut *stream).poll_read(cx, &mut into)) {
                Ok(()) if !into.filled().is_empty() => *dropped += into.filled().len(),
                _ => break,
            }
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    /// Bytes that the client can still send after the server has answered and shut down.
    async fn sent_after_the_answer(bytes: usize, partial: bool) -> Result<usize, usize> {
        let (near, mut far) = duplex(4096);
        let mut near = Lingering::new(near, Arc::default());
        let sending = tokio::spawn(async move {
            far.write_all(b"head").await.unwrap();
            let mut sent = 0;
            while sent < bytes {
                match far.write(&vec![7; 4096.min(bytes - sent)]).await {
                    Ok(more) => sent += more,
                    Err(_) => return Err(sent),
                }
            }
            let mut answer = String::new();
            far.read_to_string(&mut answer).await.unwrap();
            assert_eq!(answer, "413");
            Ok(sent)
        });
        let mut head = [0; 4];
        near.read_exact(&mut head).await.unwrap();
        near.partial.store(partial, Ordering::Relaxed);
        near.write_all(b"413").await.unwrap();
        near.shutdown().await.unwrap();
        drop(near);
        sending.await.unwrap()
    }

    #[test]
    fn what_is_still_sent_is_dropped_within_limits() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            assert_eq!(sent_after_the_answer(4 << 20, true).await, Ok(4 << 20));
            let sent = sent_after_the_answer(64 << 20, true).await.unwrap_err();
            assert!((DROPPED_MAX..2 * DROPPED_MAX).contains(&sent), "{sent}");
            assert!(sent_after_the_answer(4 << 20, false).await.is_err(), "the request was there as a whole");
        });
    }
}
