//! What every link is: the trait, what a link says of itself, and what has passed it.

use std::os::fd::RawFd;
use std::time::Duration;

use cxloe_wire::Transmit;
use cxloe_wire::frame::Mac;
use cxloe_wire::session::HelloSieve;

use crate::LinkError;

/// What a link is made of; does not change while it is open.
#[derive(Clone, Debug)]
pub struct LinkInfo {
    /// Which implementation carries the frames: `packet`, `xdp`, `pnet`, `udp` or `sim`.
    pub backend: &'static str,
    /// Particulars worth a log line, for example `native, copy, prefer-busy-poll, queue 0`.
    pub detail: String,
    /// The network interface's name, empty for a simulated link.
    pub interface: String,
    /// The address frames leave from: for a CN, its CN id.
    pub mac: Mac,
    /// The interface's MTU in bytes (without the 14-byte Ethernet header); of a `udp` link, what the path's leaves of it
    /// beside the outer headers.
    pub mtu: usize,
    /// The largest untagged frame that both the MTU and this link's buffers carry, in bytes from the
    /// destination MAC to the end of the integrity trailer.
    pub max_frame: usize,
}

/// What has passed a link since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LinkCounters {
    /// Frames handed to the receiver.
    pub rx_frames: u64,
    /// Bytes of those frames.
    pub rx_bytes: u64,
    /// Frames queued for transmission.
    pub tx_frames: u64,
    /// Bytes of those frames.
    pub tx_bytes: u64,
    /// Frames the kernel dropped because the receive ring was full.
    pub rx_dropped: u64,
    /// Times a transmit slot was asked for and none was free.
    pub tx_full: u64,
    /// Frames the kernel refused to send.
    pub tx_errors: u64,
    /// Frames to a MAC for which a `udp` link knows no outer address; not sent.
    #[serde(default)]
    pub tx_unknown: u64,
    /// Frames whose outer address does not speak for their source MAC; not handed over.
    #[serde(default)]
    pub rx_forged: u64,
    /// Datagrams without a frame for this node: too short, another destination MAC or EtherType; not handed over.
    #[serde(default)]
    pub rx_foreign: u64,
}

impl LinkCounters {
    /// The sum of two.
    #[must_use]
    pub fn plus(&self, o: &LinkCounters) -> LinkCounters {
        LinkCounters {
            rx_frames: self.rx_frames + o.rx_frames,
            rx_bytes: self.rx_bytes + o.rx_bytes,
            tx_frames: self.tx_frames + o.tx_frames,
            tx_bytes: self.tx_bytes + o.tx_bytes,
            rx_dropped: self.rx_dropped + o.rx_dropped,
            tx_full: self.tx_full + o.tx_full,
            tx_errors: self.tx_errors + o.tx_errors,
            tx_unknown: self.tx_unknown + o.tx_unknown,
            rx_forged: self.rx_forged + o.rx_forged,
            rx_foreign: self.rx_foreign + o.rx_foreign,
        }
    }
}

/// What receives a frame: the frame, untagged, without preamble and FCS, to be read (and decrypted) in
/// place, and the same link's transmit side.
pub type OnFrame<'a> = dyn FnMut(&mut [u8], &mut dyn Transmit) + 'a;

/// A way for frames in and out of this machine. One thread owns it.
pub trait Link: Send {
    /// What this link is.
    fn info(&self) -> &LinkInfo;

    /// Hands over at most `budget` frames that have arrived, in order, without waiting; returns how many.
    /// A link that busy-polls asks the kernel for more before it says 0.
    fn receive(&mut self, budget: usize, on_frame: &mut OnFrame<'_>) -> Result<usize, LinkError>;

    /// Shows at most `budget` frames that have arrived, without taking them: a chance to fetch ahead what they
    /// will ask for. A link may show fewer, or none, and a tagged frame is shown with its tag.
    fn peek(&mut self, budget: usize, look: &mut dyn FnMut(&[u8])) {
        let _ = (budget, look);
    }

    /// Whether at least `count` frames have arrived and wait to be received, as far as this link can see (a
    /// ring's slots at most). One that cannot see says no.
    fn holds(&mut self, count: usize) -> bool {
        let _ = count;
        false
    }

    /// The transmit side.
    fn transmit(&mut self) -> &mut dyn Transmit;

    /// Sends everything committed. Cheap when nothing is.
    fn flush(&mut self) -> Result<(), LinkError>;

    /// Whether something committed and flushed could not leave yet, because a queue beneath was full: the next
    /// [`flush`](Link::flush) tries again.
    fn has_unsent(&mut self) -> bool {
        false
    }

    /// Sleeps in the kernel until a frame may have arrived or `timeout` is over (spurious returns allowed).
    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError>;

    /// A descriptor that polls readable when [`receive`](Link::receive) may have something, to be waited
    /// for together with others; `None` for a simulated link.
    fn readiness(&self) -> Option<RawFd>;

    /// Has Hellos dropped that the sieve does not let through, before they are received; `None`: none of them. Frames of
    /// sessions pass as before. Whether this link does so: one that cannot says no, and lets all through.
    fn sift(&mut self, sieve: Option<&HelloSieve>) -> Result<bool, LinkError> {
        let _ = sieve;
        Ok(false)
    }

    /// What has passed so far.
    fn counters(&mut self) -> LinkCounters;

    /// How often it was opened again after its interface had been away or had changed. When the number has risen,
    /// [`info`](Link::info) may say another MTU, and sockets opened beside the link are to be opened again.
    fn reopened(&self) -> u32 {
        0
    }
}

/// A link whose particulars can be added to while it is opened.
pub(crate) trait Explain {
    /// The text of [`LinkInfo::detail`].
    fn detail(&mut self) -> &mut String;
}

/// Methods of [`Link`] that a link around another one passes on as they are: `pass_on!(self => self.inner; info wait)`.
macro_rules! pass_on {
    ($self:ident => $inner:expr; $($method:ident)+) => {
        $($crate::link::pass_on!(@$method $self $inner);)+
    };
    (@info $self:ident $inner:expr) => {
        #[inline]
        fn info(&$self) -> &$crate::LinkInfo {
            $inner.info()
        }
    };
    (@receive $self:ident $inner:expr) => {
        #[inline]
        fn receive(
            &mut $self,
            budget: usize,
            on_frame: &mut $crate::OnFrame<'_>,
        ) -> Result<usize, $crate::LinkError> {
            $inner.receive(budget, on_frame)
        }
    };
    (@peek $self:ident $inner:expr) => {
        #[inline]
        fn peek(&mut $self, budget: usize, look: &mut dyn FnMut(&[u8])) {
            $inner.peek(budget, look);
        }
    };
    (@holds $self:ident $inner:expr) => {
        #[inline]
        fn holds(&mut $self, count: usize) -> bool {
            $inner.holds(count)
        }
    };
    (@transmit $self:ident $inner:expr) => {
        #[inline]
        fn transmit(&mut $self) -> &mut dyn ::cxloe_wire::Transmit {
            $inner.transmit()
        }
    };
    (@flush $self:ident $inner:expr) => {
        #[inline]
        fn flush(&mut $self) -> Result<(), $crate::LinkError> {
            $inner.flush()
        }
    };
    (@has_unsent $self:ident $inner:expr) => {
        fn has_unsent(&mut $self) -> bool {
            $inner.has_unsent()
        }
    };
    (@wait $self:ident $inner:expr) => {
        fn wait(&mut $self, timeout: ::std::time::Duration) -> Result<(), $crate::LinkError> {
            $inner.wait(timeout)
        }
    };
    (@readiness $self:ident $inner:expr) => {
        fn readiness(&$self) -> Option<::std::os::fd::RawFd> {
            $inner.readiness()
        }
    };
    (@sift $self:ident $inner:expr) => {
        fn sift(
            &mut $self,
            sieve: Option<&::cxloe_wire::session::HelloSieve>,
        ) -> Result<bool, $crate::LinkError> {
            $inner.sift(sieve)
        }
    };
    (@counters $self:ident $inner:expr) => {
        fn counters(&mut $self) -> $crate::LinkCounters {
            $inner.counters()
        }
    };
    (@reopened $self:ident $inner:expr) => {
        fn reopened(&$self) -> u32 {
            $inner.reopened()
        }
    };
}
pub(crate) use pass_on;
