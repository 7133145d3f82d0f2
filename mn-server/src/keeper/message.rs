//! Messages between a node and its keeper: one byte each, some with a descriptor.

#![expect(unsafe_code, reason = "descriptors arrive as raw numbers")]

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use cxloe_mn_core::keeping::{Answer, Request};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

pub fn request_byte(request: Request) -> u8 {
    match request {
        Request::Keep => b'K',
        Request::Want => b'W',
        Request::Claim => b'C',
        Request::Release => b'R',
    }
}

/// Decodes a request; `None` for an unknown byte.
pub fn request(byte: u8) -> Option<Request> {
    [Request::Keep, Request::Want, Request::Claim, Request::Release]
        .into_iter()
        .find(|request| request_byte(*request) == byte)
}

pub fn answer_byte(answer: Answer) -> u8 {
    match answer {
        Answer::Kept => b'k',
        Answer::Memory => b'm',
        Answer::Held => b'h',
        Answer::Yield => b'y',
    }
}

/// Decodes an answer; `None` for an unknown byte.
pub fn answer(byte: u8) -> Option<Answer> {
    [Answer::Kept, Answer::Memory, Answer::Held, Answer::Yield]
        .into_iter()
        .find(|answer| answer_byte(*answer) == byte)
}

/// Sends a byte without waiting, with a copy of the descriptor `memory` if given.
pub fn send(socket: &UnixStream, byte: u8, memory: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let descriptors: Vec<RawFd> = memory.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&descriptors)];
    let control = if descriptors.is_empty() { &rights[..0] } else { &rights[..] };
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(&[byte])], control, flags, None)?;
    Ok(())
}

/// Receives a byte and the descriptor attached, if any; `None` at the end of the connection. The socket's time limit
/// applies.
pub fn receive(socket: &UnixStream) -> io::Result<Option<(u8, Option<OwnedFd>)>> {
    let mut byte = [0];
    let mut space = nix::cmsg_space!([RawFd; 1]);
    let mut parts = [IoSliceMut::new(&mut byte)];
    let message =
        recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
    let mut memory = None;
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(descriptors) = control {
            for descriptor in descriptors {
                // SAFETY: the kernel has just made this descriptor for this call, so no other code owns it.
                memory = Some(unsafe { OwnedFd::from_raw_fd(descriptor) });
            }
        }
    }
    let length = message.bytes;
    Ok((length > 0).then_some((byte[0], memory)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_back() {
        for byte in 0..=u8::MAX {
            assert!(request(byte).is_none_or(|found| request_byte(found) == byte && answer(byte).is_none()));
            assert!(answer(byte).is_none_or(|found| answer_byte(found) == byte));
        }
        assert_eq!((0..=u8::MAX).filter_map(request).count(), 4);
        assert_eq!((0..=u8::MAX).filter_map(answer).count(), 4);
    }
}
