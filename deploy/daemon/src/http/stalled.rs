//! Ends a connection whose peer does not read the answer; without this, it would keep memory and a slot forever.

use std::io::{Error, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// A stream whose writes fail after a time without progress.
#[derive(Debug)]
pub struct StallGuard<S> {
    stream: S,
    wait_limit: Duration,
    /// Timer since the last progress; `None` if no write waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> StallGuard<S> {
    /// Wraps `stream`; a write may wait for `wait_limit` without progress.
    pub fn new(stream: S, wait_limit: Duration) -> Self {
        Self { stream, wait_limit, stalled: None }
    }

    /// Result of a write, or an error if no write has made progress for too long.
    fn guarded<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<std::io::Result<T>>,
    ) -> Poll<std::io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let wait_limit = self.wait_limit;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(wait_limit)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(Error::new(ErrorKind::TimedOut, "the other end takes nothing of its answer")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallGuard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallGuard<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.guarded(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.guarded(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.guarded(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let ended = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.guarded(cx, ended)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[test]
    fn who_takes_nothing_is_let_go_and_who_takes_a_little_is_not() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (near, mut far) = duplex(8);
            let mut near = StallGuard::new(near, Duration::from_millis(200));
            let taking = tokio::spawn(async move {
                let mut taken = [0; 4];
                for _ in 0..5 {
                    tokio::time::sleep(Duration::from_millis(60)).await;
                    far.read_exact(&mut taken).await.unwrap();
                }
                far
            });
            near.write_all(&[7; 28])
                .await
                .expect("it takes longer than the limit in all, and never without a byte");
            let _far = taking.await.unwrap();
            let error = near.write_all(&[7; 8]).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut);
        });
    }
}
