//! Trace of a run: a line for each frame, with its fate in the network, for each operation, and for each
//! fault.
//!
//! The network and the nodes write to a [`Trace`]; a disabled trace costs nothing. A trace keeps the last
//! lines, or passes each line to a listener. It also computes a hash of all lines, by which two runs can be
//! compared.

use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cxloe_net::impairment::Loss;
use cxloe_net::sim::{self, FrameOutcome};
use cxloe_wire::frame::{Command, Header, Mac};
use cxloe_wire::time::Time;

pub(crate) type Listener = Box<dyn FnMut(&str) + Send>;

/// Destination of the events of a run; clones share the lines.
#[derive(Clone, Default)]
pub struct Trace(Option<Arc<Mutex<TraceLog>>>);

struct TraceLog {
    last: VecDeque<String>,
    keep: usize,
    listener: Option<Listener>,
    digest: u64,
    lines: u64,
    line: String,
}

/// Initial value of the hash FNV-1a with 64 bits.
const DIGEST_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
/// Factor of the hash FNV-1a with 64 bits.
const DIGEST_PRIME: u64 = 0x0000_0100_0000_01b3;

impl Trace {
    /// A disabled trace, which drops all events.
    pub const NONE: Trace = Trace(None);

    /// Returns a trace that keeps the last `lines` lines.
    pub fn keeping(lines: usize) -> Trace {
        Trace::new(lines, None)
    }

    /// Returns a trace that passes every line to `listener`.
    pub fn to(listener: impl FnMut(&str) + Send + 'static) -> Trace {
        Trace::new(0, Some(Box::new(listener)))
    }

    fn new(keep: usize, listener: Option<Listener>) -> Trace {
        let (last, line) = (VecDeque::with_capacity(keep.min(1 << 16)), String::new());
        Trace(Some(Arc::new(Mutex::new(TraceLog {
            last,
            keep,
            listener,
            digest: DIGEST_BASIS,
            lines: 0,
            line,
        }))))
    }

    fn story(&self) -> Option<MutexGuard<'_, TraceLog>> {
        self.0.as_ref().map(|story| story.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Records the event `what`, caused by `who`. `what` is not called if the trace is disabled.
    #[inline]
    pub fn log(&self, at: Time, who: impl fmt::Display, what: impl FnOnce() -> String) {
        if let Some(mut story) = self.story() {
            story.write(at, &format_args!("{who:<11} {}", what()));
        }
    }

    /// Records a frame, with its fate in the network.
    pub fn frame(&self, trace: &sim::Trace<'_>) {
        if let Some(mut story) = self.story() {
            story.write(trace.at, &Frame(trace));
        }
    }

    /// Returns the kept lines, each with a line break.
    pub fn tail(&self) -> String {
        self.story()
            .map_or_else(String::new, |story| story.last.iter().map(|line| format!("{line}\n")).collect())
    }

    /// Returns the number of lines, and a hash of all of them.
    pub fn digest(&self) -> (u64, u64) {
        self.story().map_or((0, 0), |story| (story.lines, story.digest))
    }
}

impl TraceLog {
    fn write(&mut self, at: Time, what: &dyn fmt::Display) {
        self.line.clear();
        let _ = write!(self.line, "{:>13} {what}", at.to_string());
        self.lines += 1;
        for byte in self.line.bytes() {
            self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(DIGEST_PRIME);
        }
        if let Some(listener) = &mut self.listener {
            listener(&self.line);
        }
        if self.keep > 0 {
            // The newest line reuses the memory of the oldest one.
            let mut line =
                if self.last.len() == self.keep { self.last.pop_front() } else { None }.unwrap_or_default();
            line.clone_from(&self.line);
            self.last.push_back(line);
        }
    }
}

/// MAC address, displayed as the name of its node, such as `cn0` or `mn1`, or as a plain address if no node
/// has it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Name(pub Mac);

impl Name {
    /// Returns the MAC address of the compute node with this index.
    pub const fn cn(index: usize) -> Mac {
        Mac([2, 0, 0, 0, 0, index as u8])
    }

    /// Returns the MAC address of the memory node with this index.
    pub const fn mn(index: usize) -> Mac {
        Mac([2, 0, 0, 0, 1, index as u8])
    }

    /// Returns the compute node's shard with this address: the node's own address, and the number of the shard. `None`
    /// for an address of another node, and for that of the compute node itself.
    fn shard(mac: Mac) -> Option<(Mac, u8)> {
        // The inverse of `Mac::shard`.
        let [first, 0, 0, 0, 0, last] = mac.0 else { return None };
        let (shard, local) = (first >> 4, first & 0xF);
        (shard > 0 && local == 2).then(|| (Name::cn(last.wrapping_sub(shard).into()), shard))
    }

    /// Returns the address of the compute node that has this address or a shard with it; another node's as it is.
    pub fn owner(mac: Mac) -> Mac {
        Name::shard(mac).map_or(mac, |(owner, _)| owner)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.0 {
            [2, 0, 0, 0, 0, index] => f.pad(&format!("cn{index}")),
            [2, 0, 0, 0, 1, index] => f.pad(&format!("mn{index}")),
            // A compute node with several queues or workers has further addresses; this may be one of them.
            _ => match Name::shard(self.0) {
                Some((owner, shard)) => f.pad(&format!("{}.{shard}", Name(owner))),
                None => f.pad(&self.0.to_string()),
            },
        }
    }
}

struct Frame<'a>(&'a sim::Trace<'a>);

impl fmt::Display for Frame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sim::Trace { from, to, frame, outcome, .. } = self.0;
        write!(f, "{:<11} ", format!("{} > {}", Name(*from), Name(*to)))?;
        match Header::parse(frame) {
            None => write!(f, "{} B", frame.len())?,
            Some(header) => {
                match Command::from_u8(header.command) {
                    Some(command) => write!(f, "{:<13}", format!("{command:?}"))?,
                    None => write!(f, "command {:#04x} ", header.command)?,
                }
                let (stream, seq, addr) = (header.axi.stream, header.seq, header.addr);
                write!(f, " stream {stream} seq {seq:<5} at {addr:#07x} {:>4} B", frame.len())?;
            }
        }
        f.write_str("  ")?;
        match *outcome {
            FrameOutcome::Sent { arrival, damaged: false } => write!(f, "sent, arrives {arrival}"),
            FrameOutcome::Sent { arrival, damaged: true } => write!(f, "sent, arrives {arrival}, DAMAGED"),
            FrameOutcome::Duplicated => f.write_str("sent TWICE"),
            FrameOutcome::Late { arrival } => write!(f, "a COPY OF LONG AGO, arrives {arrival}"),
            FrameOutcome::Delayed => f.write_str("HELD BACK"),
            FrameOutcome::Lost(Loss::Single) => f.write_str("LOST"),
            FrameOutcome::Lost(Loss::Burst) => f.write_str("LOST in a burst"),
            FrameOutcome::Cut => f.write_str("LOST, the path is cut"),
            FrameOutcome::NoPort => f.write_str("LOST, nobody there"),
            FrameOutcome::QueueFull => f.write_str("LOST, the switch's queue is full"),
            FrameOutcome::FifoFull => f.write_str("LOST, the receive queue is full"),
            FrameOutcome::NetworkFull => f.write_str("LOST, the network is full"),
            FrameOutcome::Runt => f.write_str("LOST, no frame"),
            FrameOutcome::Delivered => f.write_str("arrived"),
        }
    }
}

#[cfg(test)]
mod tests {
    use cxloe_wire::frame::{Axi, ETHERTYPE_DEFAULT};

    use super::*;

    #[test]
    fn the_last_lines_are_kept_and_all_of_them_count() {
        let (short, long) = (Trace::keeping(2), Trace::keeping(100));
        for trace in [&short, &long] {
            (0..5).for_each(|i| trace.log(Time(i), "cn0", || format!("step {i}")));
        }
        assert_eq!(short.tail(), "   0.000003ms cn0         step 3\n   0.000004ms cn0         step 4\n");
        assert_eq!(short.digest(), long.digest());
        short.log(Time(5), "cn0", || "another".into());
        assert_ne!(short.digest().1, long.digest().1);
    }

    #[test]
    fn shards_have_the_name_of_their_node() {
        for (cn, shard) in [(0, 1), (7, 3), (0, 15)] {
            let mac = Name::cn(cn).shard(shard);
            assert_eq!((Name(mac).to_string(), Name::owner(mac)), (format!("cn{cn}.{shard}"), Name::cn(cn)));
        }
        assert_eq!((Name::owner(Name::cn(3)), Name::owner(Name::mn(3))), (Name::cn(3), Name::mn(3)));
    }

    #[test]
    fn a_frame_is_one_line() {
        let mut frame = vec![0; 60];
        let header = Header {
            dst: Name::mn(1),
            src: Name::cn(0),
            ethertype: ETHERTYPE_DEFAULT,
            command: Command::WriteReq as u8,
            seq: 9,
            axi: Axi::default(),
            addr: 0x1000,
        };
        header.emit(&mut frame);
        let outcome = FrameOutcome::Lost(Loss::Single);
        let (at, from, to) = (Time(1_500), Name::cn(0), Name::mn(1));
        let trace = Trace::keeping(9);
        trace.frame(&sim::Trace { at, from, to, frame: &frame, outcome });
        assert_eq!(
            trace.tail(),
            "   0.001500ms cn0 > mn1   WriteReq      stream 0 seq 9     at 0x01000   60 B  LOST\n"
        );
    }
}
