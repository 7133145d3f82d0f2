//! The agent's end of a member's connection, which sends orders and receives answers. All queues are bounded: a
//! message that exceeds a bound or is malformed ends this connection only.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use cxloe_member::socket::{Descriptors, Socket};
use cxloe_member::wire::{Inbox, JoinReply, MESSAGE_MAX, Message, MessageKind, Pages, RANGES_MAX};

use cxloe_cn_core::pager::{Hint, PagerOptions};

use cxloe_closer::dispose;

/// Maximum number of unanswered orders to drop pages, for each member.
const ORDERS_MAX: usize = 64;

/// Record of a forked child. The agent sends it, with the child's userfaultfd, to the keeper process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForkedChild {
    pub view: u16,
    /// Address range of the paged memory in the child.
    pub memory: Range<u64>,
}

impl ForkedChild {
    /// Length of the encoded record in bytes.
    pub const BYTES: usize = 24;

    pub fn encode(&self) -> [u8; ForkedChild::BYTES] {
        let mut bytes = [0; ForkedChild::BYTES];
        let words = [u64::from(self.view), self.memory.start, self.memory.end];
        bytes
            .as_chunks_mut::<8>()
            .0
            .iter_mut()
            .zip(words)
            .for_each(|(place, word)| *place = word.to_le_bytes());
        bytes
    }

    /// Decodes a record; `None` if the view's number is too large or the range is empty.
    pub fn decode(bytes: &[u8; ForkedChild::BYTES]) -> Option<ForkedChild> {
        let [view, start, end] = [0, 1, 2].map(|index| u64::from_le_bytes(bytes.as_chunks().0[index]));
        let memory = start..end;
        (!memory.is_empty()).then_some(ForkedChild { view: u16::try_from(view).ok()?, memory })
    }
}

#[derive(Debug)]
pub struct MemberLink {
    socket: Socket,
    inbox: Inbox,
    /// Unanswered orders to drop pages, oldest first.
    ordered: VecDeque<Message>,
    /// Whether the connection has failed, so that nothing more is sent or received.
    broken: bool,
    /// Whether epoll reports the member's messages.
    pub(crate) watched: bool,
}

/// Message of a member, or the state of its connection.
#[derive(Debug)]
pub enum MemberMessage {
    /// The member has dropped the pages of its oldest order.
    Dropped(Message),
    /// The member is about to discard these pages.
    Discard(Message),
    /// The member passes its program's advice on these pages.
    Hint(Hint, Message),
    /// The member leaves the space in an orderly way.
    Leave,
    /// No complete message has arrived, or no more may be read now.
    Nothing,
    /// The member has closed the connection or violated the protocol.
    Gone,
}

impl MemberLink {
    pub fn new(socket: OwnedFd) -> MemberLink {
        MemberLink {
            socket: Socket::from(socket),
            inbox: Inbox::new(),
            ordered: VecDeque::with_capacity(ORDERS_MAX),
            broken: false,
            watched: false,
        }
    }

    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Answers a request to join. The member keeps the descriptors sent with the answer.
    pub fn welcome(&mut self, welcome: &JoinReply, text: &str, descriptors: &[BorrowedFd<'_>]) {
        let mut bytes = welcome.encode().to_vec();
        bytes.extend_from_slice(text.as_bytes());
        self.broken |= self.socket.try_send(&bytes, descriptors).is_err();
    }

    fn send_message(&mut self, message: &Message) -> bool {
        let mut bytes = [0; MESSAGE_MAX];
        let length = message.encode(&mut bytes);
        // The message is short, so a full socket means that the member does not read.
        self.broken |= self.broken || self.socket.try_send(&bytes[..length], &[]).is_err();
        !self.broken
    }

    /// Orders the member to drop pages; `false` if the order cannot be sent, or too many orders are
    /// unanswered.
    pub(crate) fn order_drop(&mut self, ranges: &[Range<u32>]) -> bool {
        if self.broken || self.ordered.len() + ranges.len().div_ceil(RANGES_MAX) > ORDERS_MAX {
            return false;
        }
        for some in ranges.chunks(RANGES_MAX) {
            let mut pages = [Pages::default(); RANGES_MAX];
            for (place, range) in pages.iter_mut().zip(some) {
                *place = Pages { first: range.start, count: range.end - range.start };
            }
            let order = Message::new(MessageKind::Drop, &pages[..some.len()]);
            // A failed send is ignored: the connection then ends, and the orders that were not answered count as
            // carried out.
            self.send_message(&order);
            self.ordered.push_back(order);
        }
        true
    }

    pub(crate) fn take_ordered(&mut self) -> VecDeque<Message> {
        std::mem::take(&mut self.ordered)
    }

    /// Notifies the member that the content of page `page` of its view is lost.
    pub fn lost(&mut self, page: u32) {
        self.send_message(&Message::new(MessageKind::Lost, &[Pages { first: page, count: 1 }]));
    }

    /// Has the member send SIGBUS to its process, because a lost page cannot be marked; `false` if the order cannot be
    /// sent.
    pub fn unmarked(&mut self, page: u32) -> bool {
        self.send_message(&Message::new(MessageKind::Unmarked, &[Pages { first: page, count: 1 }]))
    }

    /// Sends the member the reason of the page losses that the following messages report.
    pub fn why(&mut self, text: &str) {
        self.send_message(&Message::words(MessageKind::Why, text));
    }

    /// Permits the member to discard the pages that it announced last.
    pub fn discarded(&mut self) {
        self.send_message(&Message::new(MessageKind::Discarded, &[]));
    }

    /// Notifies the member that the region has had no room for evicted pages for too long; the member then ends its
    /// process.
    pub fn full(&mut self) {
        self.send_message(&Message::new(MessageKind::Full, &[]));
    }

    pub fn notify_shutdown(&mut self) {
        self.send_message(&Message::new(MessageKind::Bye, &[]));
    }

    /// Whether the member has an unanswered order to drop pages.
    #[inline]
    pub fn is_busy(&self) -> bool {
        !self.ordered.is_empty()
    }

    /// Receives the member's next message, without waiting. Takes each read of the connection off `reads`, and makes none
    /// at 0; complete messages that were read before are returned all the same, as nothing reports them again.
    pub fn receive_message(&mut self, reads: &mut u32) -> MemberMessage {
        if self.broken {
            return MemberMessage::Gone;
        }
        let said = loop {
            match self.inbox.next() {
                Ok(Some(message)) => break self.decode_message(message),
                Ok(None) => {}
                Err(_) => break MemberMessage::Gone,
            }
            let Some(left) = reads.checked_sub(1) else { break MemberMessage::Nothing };
            *reads = left;
            let mut sent = Descriptors::new();
            let received = self.socket.try_receive(self.inbox.room(), &mut sent);
            // Members pass no descriptors with these messages.
            if !sent.is_empty() {
                dispose(sent);
            }
            match received {
                Ok(0) => break MemberMessage::Gone,
                Ok(bytes) => self.inbox.put(bytes),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break MemberMessage::Nothing,
                Err(_) => break MemberMessage::Gone,
            }
        };
        self.broken |= matches!(said, MemberMessage::Gone);
        said
    }

    fn decode_message(&mut self, message: Message) -> MemberMessage {
        match message.kind {
            // `Dropped` answers an order; if there is no unanswered order, the member has violated the protocol.
            MessageKind::Dropped => {
                self.ordered.pop_front().map_or(MemberMessage::Gone, MemberMessage::Dropped)
            }
            MessageKind::Discard => MemberMessage::Discard(message),
            MessageKind::Leave => MemberMessage::Leave,
            MessageKind::WillRead => MemberMessage::Hint(Hint::WillRead, message),
            MessageKind::WillWrite => MemberMessage::Hint(Hint::WillWrite, message),
            MessageKind::Cold => MemberMessage::Hint(Hint::Cold, message),
            MessageKind::PageOut => MemberMessage::Hint(Hint::PageOut, message),
            MessageKind::Drop
            | MessageKind::Lost
            | MessageKind::Bye
            | MessageKind::Discarded
            | MessageKind::Why
            | MessageKind::Full
            | MessageKind::Unmarked => MemberMessage::Gone,
        }
    }
}

/// Page ranges of a message, cut to the size of a view.
pub fn ranges(message: &Message, options: &PagerOptions) -> impl Iterator<Item = Range<u32>> {
    let all = options.pages;
    message.ranges().iter().map(move |pages| {
        let first = pages.first.min(all);
        first..first.saturating_add(pages.count).min(all)
    })
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "one range of pages is meant")]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn pair() -> (MemberLink, UnixStream) {
        let (here, there) = UnixStream::pair().unwrap();
        (MemberLink::new(here.into()), there)
    }

    fn bytes(kind: MessageKind, ranges: &[Pages]) -> Vec<u8> {
        let mut bytes = [0; MESSAGE_MAX];
        let length = Message::new(kind, ranges).encode(&mut bytes);
        bytes[..length].to_vec()
    }

    #[test]
    fn orders_are_answered_in_turn() {
        let (mut link, mut there) = pair();
        assert!(matches!(link.receive_message(&mut 1), MemberMessage::Nothing));
        assert!(link.order_drop(&[1..3]) && link.order_drop(&[7..8]) && link.is_busy());
        let mut order = [0; 16];
        there.read_exact(&mut order).unwrap();
        there.write_all(&bytes(MessageKind::Dropped, &[])).unwrap();
        let MemberMessage::Dropped(first) = link.receive_message(&mut 1) else { panic!() };
        assert_eq!(first.ranges(), [Pages { first: 1, count: 2 }]);
        there.write_all(&bytes(MessageKind::Discard, &[Pages { first: 5, count: u32::MAX }])).unwrap();
        let MemberMessage::Discard(message) = link.receive_message(&mut 1) else { panic!() };
        let options = PagerOptions { pages: 9, limit: 16, prefetch: false, evict: true };
        assert_eq!(ranges(&message, &options).collect::<Vec<_>>(), [5..9]);
        there.write_all(&bytes(MessageKind::Cold, &[Pages { first: u32::MAX, count: 2 }])).unwrap();
        let MemberMessage::Hint(Hint::Cold, message) = link.receive_message(&mut 1) else { panic!() };
        assert_eq!(ranges(&message, &options).collect::<Vec<_>>(), [9..9]);
        drop(there);
        assert!(matches!(link.receive_message(&mut 1), MemberMessage::Gone) && !link.order_drop(&[1..2]));
    }

    #[test]
    fn a_kept_child_reads_back() {
        let child = ForkedChild { view: 255, memory: 0x7000_0000_0000..0x7000_1000_0000 };
        assert_eq!(ForkedChild::decode(&child.encode()), Some(child));
        assert_eq!(ForkedChild::decode(&[0; ForkedChild::BYTES]), None);
    }

    #[test]
    fn orders_are_bounded() {
        let (mut link, _there) = pair();
        assert_eq!((0..100).filter(|page| link.order_drop(&[*page..page + 1])).count(), ORDERS_MAX);
    }

    #[test]
    fn nonsense_ends_it() {
        for kind in [MessageKind::Dropped, MessageKind::Drop, MessageKind::Bye] {
            let (mut link, mut there) = pair();
            there.write_all(&bytes(kind, &[])).unwrap();
            assert!(
                matches!(link.receive_message(&mut 1), MemberMessage::Gone)
                    && matches!(link.receive_message(&mut 1), MemberMessage::Gone)
            );
        }
        let (mut link, mut there) = pair();
        there.write_all(&[0xFF; 64]).unwrap();
        assert!(matches!(link.receive_message(&mut 1), MemberMessage::Gone));
    }
}
