//! The trait that every link implements, its properties and its counters.

use std::os::fd::RawFd;
use std::time::Duration;

use cxloe_wire::Transmit;
use cxloe_wire::frame::Mac;
use cxloe_wire::session::HelloSieve;

use crate::LinkError;

/// Properties of a link; constant while the link is open.
#[derive(Clone, Debug)]
pub struct LinkInfo {
    /// Kind of link: `packet`, `xdp`, `pnet`, `udp`, `dpdk` or `sim`.
    pub backend: &'static str,
    /// Further properties for the log, for example `native, copy, prefer-busy-poll, queue 0`.
    pub detail: String,
    /// Name of the network interface; empty for a simulated link.
    pub interface: String,
    /// Source MAC address of frames sent; that of a CN is its CN id.
    pub mac: Mac,
    /// MTU of the interface in bytes, without the 14-byte Ethernet header. For a `udp` link: MTU of the path,
    /// minus the outer headers.
    pub mtu: usize,
    /// Longest untagged frame that both the MTU and this link's buffers carry, in bytes from the destination
    /// MAC to the end of the integrity trailer.
    pub max_frame: usize,
}

cxloe_wire::counters! {
    /// Counters of a link since it was opened.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
    pub struct LinkCounters {
        /// Frames received and passed to the caller.
        pub rx_frames: u64,
        /// Bytes of these frames, without preamble and frame check sequence.
        pub rx_bytes: u64,
        /// Frames committed for transmission.
        pub tx_frames: u64,
        /// Bytes of the frames committed.
        pub tx_bytes: u64,
        /// Frames that the kernel dropped because the receive ring was full.
        pub rx_dropped: u64,
        /// Requests for a transmit slot when none was free.
        pub tx_full: u64,
        /// Frames that the kernel refused to send.
        pub tx_errors: u64,
        /// Frames not sent because a `udp` link has no outer address for their destination MAC.
        #[serde(default)]
        pub tx_unknown: u64,
        /// Frames dropped because they came from another outer address than the one registered for their source
        /// MAC.
        #[serde(default)]
        pub rx_forged: u64,
        /// Datagrams dropped because they have no frame for this node: too short, or another destination MAC or
        /// EtherType.
        #[serde(default)]
        pub rx_foreign: u64,
    }
}

/// Callback for a received frame. The first argument is the frame, without 802.1Q tag, preamble and frame
/// check sequence; it may be decrypted in place. The second is the transmit side of the same link, for the
/// answer.
pub type OnFrame<'a> = dyn FnMut(&mut [u8], &mut dyn Transmit) + 'a;

/// Sends and receives frames of this machine. Only one thread uses a link.
pub trait Link: Send {
    /// Properties of this link; they change only when the link [is opened again](Link::reopened).
    fn info(&self) -> &LinkInfo;

    /// Passes at most `budget` arrived frames to `on_frame`, in order and without waiting, and returns their
    /// number. A link that busy-polls makes the kernel poll the device before it returns 0.
    fn receive(&mut self, budget: usize, on_frame: &mut OnFrame<'_>) -> Result<usize, LinkError>;

    /// Shows at most `budget` arrived frames without removing them, so that the caller can prefetch the
    /// memory that they will access. A link may show fewer frames or none. A tagged frame is shown with its
    /// tag.
    fn peek(&mut self, budget: usize, look: &mut dyn FnMut(&[u8])) {
        let _ = (budget, look);
    }

    /// Whether at least `count` frames wait to be received, as far as the link can count them (at most the
    /// slots of a ring). A link that cannot count returns `false`.
    fn holds(&mut self, count: usize) -> bool {
        let _ = count;
        false
    }

    /// Transmit side of this link, for frames that are not sent from the callback of [`receive`](Link::receive).
    fn transmit(&mut self) -> &mut dyn Transmit;

    /// Sends all committed frames; costs little if there are none.
    fn flush(&mut self) -> Result<(), LinkError>;

    /// Whether a flushed frame has not been sent yet because a queue below the link was full. The next
    /// [`flush`](Link::flush) tries again.
    fn has_unsent(&mut self) -> bool {
        false
    }

    /// Sleeps in the kernel until a frame may have arrived or `timeout` has passed. It may return early
    /// without a reason.
    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError>;

    /// Descriptor that becomes readable when [`receive`](Link::receive) may return frames, for callers that
    /// wait on several descriptors. `None` for simulated links, and for links that must be polled at
    /// intervals of [`sleep_max`](Link::sleep_max).
    fn readiness(&self) -> Option<RawFd>;

    /// Maximum time for which a caller may sleep without [`wait`](Link::wait), on a link that has no descriptor to wake
    /// the caller.
    fn sleep_max(&self) -> Duration {
        Duration::MAX
    }

    /// Makes the link drop Hellos that `sieve` does not pass, before they are received; with `None` the link passes all
    /// Hellos again. Frames of sessions always pass. Returns `false` if this link cannot drop Hellos; then all pass.
    fn sift(&mut self, sieve: Option<&HelloSieve>) -> Result<bool, LinkError> {
        let _ = sieve;
        Ok(false)
    }

    /// Counters since the link was opened; those that the kernel keeps are read now.
    fn counters(&mut self) -> LinkCounters;

    /// Number of times that the link was reopened because its interface had disappeared or had changed. After an
    /// increase, [`info`](Link::info) may have another MTU, and other sockets on the interface must be reopened.
    fn reopened(&self) -> u32 {
        0
    }
}

/// Implements methods of [`Link`] that a wrapping link passes on unchanged: `pass_on!(self => self.inner;
/// info wait)`.
#[macro_export]
macro_rules! pass_on {
    ($self:ident => $inner:expr; $($method:ident)+) => {
        $($crate::pass_on!(@$method $self $inner);)+
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
        fn transmit(&mut $self) -> &mut dyn $crate::reexport::Transmit {
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
    (@sleep_max $self:ident $inner:expr) => {
        fn sleep_max(&$self) -> ::std::time::Duration {
            $inner.sleep_max()
        }
    };
    (@sift $self:ident $inner:expr) => {
        fn sift(
            &mut $self,
            sieve: Option<&$crate::reexport::HelloSieve>,
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
