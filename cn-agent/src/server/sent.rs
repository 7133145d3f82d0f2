//! Descriptors that a client has sent with a request. They are closed on another thread, whether the request
//! succeeds or not, because a client determines how long a close takes.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use cxloe_closer::ClosedElsewhere;
use cxloe_member::socket::{DESCRIPTORS_MAX, Descriptors, receive_some};
use cxloe_paging::spare_files::is_spare;
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Descriptor that a client has sent, closed on another thread when it is dropped.
pub type SentDescriptor = ClosedElsewhere<OwnedFd>;

/// The descriptors of a request, in the order in which they were sent.
#[derive(Debug, Default)]
pub struct SentDescriptors(VecDeque<SentDescriptor>);

impl SentDescriptors {
    /// Removes the first descriptor that is left.
    pub fn take(&mut self) -> Option<SentDescriptor> {
        self.0.pop_front()
    }

    /// Removes the last descriptor that is left.
    pub fn take_last(&mut self) -> Option<SentDescriptor> {
        self.0.pop_back()
    }

    /// Whether these descriptors come from the reserve that the agent keeps for its own files (module
    /// `spare_files`).
    pub fn are_spare(&self) -> bool {
        self.0.iter().any(|descriptor| is_spare(&**descriptor))
    }

    /// Receives a part of a request, with the descriptors that arrive with it.
    ///
    /// # Errors
    /// The system call's error; [`io::ErrorKind::UnexpectedEof`] if the client closes the connection before
    /// the end of the part.
    pub async fn receive(&mut self, stream: &mut UnixStream, bytes: &mut [u8]) -> io::Result<()> {
        let mut got = 0;
        while got < bytes.len() {
            let mut came = ClosedElsewhere::new(Descriptors::new());
            let more = {
                let (stream, bytes) = (&*stream, &mut bytes[got..]);
                let receive = || receive_some(stream.as_fd(), bytes, &mut came, libc::MSG_DONTWAIT);
                stream.async_io(Interest::READABLE, receive).await?
            };
            // Descriptors beyond the maximum of a request stay in `came`, and are closed when it is dropped.
            while self.0.len() < DESCRIPTORS_MAX
                && let Some(descriptor) = came.take()
            {
                self.0.push_back(ClosedElsewhere::new(descriptor));
            }
            if more == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            got += more;
        }
        Ok(())
    }
}

/// Closes a connection on another thread: descriptors that the client has sent and that were not received
/// close with it.
pub fn close(stream: UnixStream) {
    if let Ok(stream) = stream.into_std() {
        drop(ClosedElsewhere::new(stream));
    }
}
