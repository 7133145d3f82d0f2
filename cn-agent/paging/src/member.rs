//! The agent's end of a member's connection: orders out, answers in. All of it is bounded: what does not fit, or cannot be
//! understood, ends this connection and no other.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use cxloe_member::socket::Socket;
use cxloe_member::wire::{Inbox, Kind, MESSAGE_MAX, Message, Pages, RANGES_MAX, Welcome};

use cxloe_cn_core::pager::{Hint, PagerOptions};

/// Orders to drop pages that a member may have unanswered.
const ORDERS_MAX: usize = 64;

/// A forked child, as it is told to whoever keeps its userfaultfd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Its view.
    pub view: u16,
    /// Where its memory is.
    pub memory: Range<u64>,
}

impl Kept {
    /// Bytes of it.
    pub const BYTES: usize = 24;

    /// Its bytes.
    pub fn encode(&self) -> [u8; Kept::BYTES] {
        let mut bytes = [0; Kept::BYTES];
        let words = [u64::from(self.view), self.memory.start, self.memory.end];
        bytes
            .as_chunks_mut::<8>()
            .0
            .iter_mut()
            .zip(words)
            .for_each(|(place, word)| *place = word.to_le_bytes());
        bytes
    }

    /// A child, if these bytes are one.
    pub fn decode(bytes: &[u8; Kept::BYTES]) -> Option<Kept> {
        let [view, start, end] = [0, 1, 2].map(|index| u64::from_le_bytes(bytes.as_chunks().0[index]));
        let memory = start..end;
        (!memory.is_empty()).then_some(Kept { view: u16::try_from(view).ok()?, memory })
    }
}

/// A member's connection.
#[derive(Debug)]
pub struct Link {
    socket: Socket,
    inbox: Inbox,
    /// Orders to drop pages, oldest first, that it has not answered.
    ordered: VecDeque<Message>,
    /// Nothing is said or heard any more.
    broken: bool,
}

/// What a member says.
#[derive(Debug)]
pub enum Said {
    /// The pages of its oldest order are gone.
    Dropped(Message),
    /// It is about to discard these.
    Discard(Message),
    /// What it will do with these.
    Hint(Hint, Message),
    /// It leaves.
    Leave,
    /// Nothing at present.
    Nothing,
    /// It has hung up, or talks nonsense.
    Gone,
}

impl Link {
    /// Over this connection.
    pub fn new(socket: OwnedFd) -> Link {
        Link {
            socket: Socket::from(socket),
            inbox: Inbox::new(),
            ordered: VecDeque::with_capacity(ORDERS_MAX),
            broken: false,
        }
    }

    /// The descriptor to wait on.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Answers a request to join, with what the member has to keep.
    pub fn welcome(&mut self, welcome: &Welcome, text: &str, descriptors: &[BorrowedFd<'_>]) {
        let mut bytes = welcome.encode().to_vec();
        bytes.extend_from_slice(text.as_bytes());
        self.broken |= self.socket.try_send(&bytes, descriptors).is_err();
    }

    fn say(&mut self, message: &Message) -> bool {
        let mut bytes = [0; MESSAGE_MAX];
        let length = message.encode(&mut bytes);
        // A connection that has no room for so little has a member that does not listen.
        self.broken |= self.broken || self.socket.try_send(&bytes[..length], &[]).is_err();
        !self.broken
    }

    /// Orders pages away; `false` if that cannot be now, or any more.
    pub fn order_drop(&mut self, ranges: &[Range<u32>]) -> bool {
        if self.broken || self.ordered.len() + ranges.len().div_ceil(RANGES_MAX) > ORDERS_MAX {
            return false;
        }
        for some in ranges.chunks(RANGES_MAX) {
            let mut pages = [Pages::default(); RANGES_MAX];
            for (place, range) in pages.iter_mut().zip(some) {
                *place = Pages { first: range.start, count: range.end - range.start };
            }
            let order = Message::new(Kind::Drop, &pages[..some.len()]);
            // If it breaks here, what was ordered is settled with the mapping's end.
            self.say(&order);
            self.ordered.push_back(order);
        }
        true
    }

    /// Its unanswered orders, oldest first.
    pub fn take_ordered(&mut self) -> VecDeque<Message> {
        std::mem::take(&mut self.ordered)
    }

    /// Says that a page is lost.
    pub fn lost(&mut self, page: u32) {
        self.say(&Message::new(Kind::Lost, &[Pages { first: page, count: 1 }]));
    }

    /// Says why pages will be lost next.
    pub fn why(&mut self, text: &str) {
        self.say(&Message::words(Kind::Why, text));
    }

    /// Says that what was announced may be discarded.
    pub fn discarded(&mut self) {
        self.say(&Message::new(Kind::Discarded, &[]));
    }

    /// Says that the region is full, and has been for too long.
    pub fn full(&mut self) {
        self.say(&Message::new(Kind::Full, &[]));
    }

    /// Says that the agent ends.
    pub fn bye(&mut self) {
        self.say(&Message::new(Kind::Bye, &[]));
    }

    /// Whether the member has been ordered to drop pages and has not answered yet.
    #[inline]
    pub fn is_busy(&self) -> bool {
        !self.ordered.is_empty()
    }

    /// The next thing it says, without waiting.
    pub fn hear(&mut self) -> Said {
        if self.broken {
            return Said::Gone;
        }
        let said = loop {
            match self.inbox.next() {
                Ok(Some(message)) => break self.understand(message),
                Ok(None) => {}
                Err(_) => break Said::Gone,
            }
            match self.socket.try_receive(self.inbox.room()) {
                Ok(0) => break Said::Gone,
                Ok(bytes) => self.inbox.put(bytes),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Said::Nothing,
                Err(_) => break Said::Gone,
            }
        };
        self.broken |= matches!(said, Said::Gone);
        said
    }

    fn understand(&mut self, message: Message) -> Said {
        match message.kind {
            // An answer to nothing is nonsense.
            Kind::Dropped => self.ordered.pop_front().map_or(Said::Gone, Said::Dropped),
            Kind::Discard => Said::Discard(message),
            Kind::Leave => Said::Leave,
            Kind::WillRead => Said::Hint(Hint::WillRead, message),
            Kind::WillWrite => Said::Hint(Hint::WillWrite, message),
            Kind::Cold => Said::Hint(Hint::Cold, message),
            Kind::PageOut => Said::Hint(Hint::PageOut, message),
            Kind::Drop | Kind::Lost | Kind::Bye | Kind::Discarded | Kind::Why | Kind::Full => Said::Gone,
        }
    }
}

/// The pages of a message that a view has.
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

    fn pair() -> (Link, UnixStream) {
        let (here, there) = UnixStream::pair().unwrap();
        (Link::new(here.into()), there)
    }

    fn bytes(kind: Kind, ranges: &[Pages]) -> Vec<u8> {
        let mut bytes = [0; MESSAGE_MAX];
        let length = Message::new(kind, ranges).encode(&mut bytes);
        bytes[..length].to_vec()
    }

    #[test]
    fn orders_are_answered_in_turn() {
        let (mut link, mut there) = pair();
        assert!(matches!(link.hear(), Said::Nothing));
        assert!(link.order_drop(&[1..3]) && link.order_drop(&[7..8]) && link.is_busy());
        let mut order = [0; 16];
        there.read_exact(&mut order).unwrap();
        there.write_all(&bytes(Kind::Dropped, &[])).unwrap();
        let Said::Dropped(first) = link.hear() else { panic!() };
        assert_eq!(first.ranges(), [Pages { first: 1, count: 2 }]);
        there.write_all(&bytes(Kind::Discard, &[Pages { first: 5, count: u32::MAX }])).unwrap();
        let Said::Discard(message) = link.hear() else { panic!() };
        let options = PagerOptions { pages: 9, limit: 16, prefetch: false, evict: true };
        assert_eq!(ranges(&message, &options).collect::<Vec<_>>(), [5..9]);
        there.write_all(&bytes(Kind::Cold, &[Pages { first: u32::MAX, count: 2 }])).unwrap();
        let Said::Hint(Hint::Cold, message) = link.hear() else { panic!() };
        assert_eq!(ranges(&message, &options).collect::<Vec<_>>(), [9..9]);
        drop(there);
        assert!(matches!(link.hear(), Said::Gone) && !link.order_drop(&[1..2]));
    }

    #[test]
    fn a_kept_child_reads_back() {
        let child = Kept { view: 255, memory: 0x7000_0000_0000..0x7000_1000_0000 };
        assert_eq!(Kept::decode(&child.encode()), Some(child));
        assert_eq!(Kept::decode(&[0; Kept::BYTES]), None);
    }

    #[test]
    fn orders_are_bounded() {
        let (mut link, _there) = pair();
        assert_eq!((0..100).filter(|page| link.order_drop(&[*page..page + 1])).count(), ORDERS_MAX);
    }

    #[test]
    fn nonsense_ends_it() {
        for kind in [Kind::Dropped, Kind::Drop, Kind::Bye] {
            let (mut link, mut there) = pair();
            there.write_all(&bytes(kind, &[])).unwrap();
            assert!(matches!(link.hear(), Said::Gone) && matches!(link.hear(), Said::Gone));
        }
        let (mut link, mut there) = pair();
        there.write_all(&[0xFF; 64]).unwrap();
        assert!(matches!(link.hear(), Said::Gone));
    }
}
