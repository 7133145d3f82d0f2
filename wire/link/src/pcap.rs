//! Capture: a link that records every frame that passes, for Wireshark and tcpdump.
//!
//! [`PcapWriter`] wraps any link. A frame is written to a [`PcapFile`] when it is committed, or before it is
//! passed to the receiver. The file is pcapng (draft-ietf-opsawg-pcapng): one section, one Ethernet
//! interface, time stamps in nanoseconds, and each frame's direction, which the older pcap format cannot
//! store. Writing is buffered. The capture ends at a size limit or at the first error, and the link
//! continues.

use std::io::{self, BufWriter, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Link, LinkError, OnFrame};
use cxloe_net::pass_on;
use cxloe_wire::Transmit;

/// LINKTYPE_ETHERNET: a frame that begins with its destination MAC, without frame check sequence.
const LINKTYPE_ETHERNET: u32 = 1;
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
/// Length in bytes of an enhanced packet block without the frame: eight words, and three words of options.
const PACKET_OVERHEAD: usize = 44;

/// Direction of a recorded frame, as Wireshark shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PcapDirection {
    /// The capturing program received the frame.
    Inbound,
    /// The capturing program sent the frame.
    Outbound,
}

/// A pcapng file while it is written, to a file or to any other writer.
pub struct PcapFile {
    /// `None` after the limit was reached or a write has failed.
    out: Option<BufWriter<Box<dyn Write + Send>>>,
    written: u64,
    limit: u64,
    frames: u64,
    error: Option<io::Error>,
}

impl PcapFile {
    /// Begins a file in `out` of at most `limit` bytes: the first frame that would exceed the limit ends the
    /// capture. `u64::MAX` means no limit.
    pub fn new(out: impl Write + Send + 'static, limit: u64) -> io::Result<Self> {
        let mut header = Vec::with_capacity(60);
        // Section header: byte order, version 1.0, length unknown, no options.
        words(&mut header, &[SECTION_HEADER, 28, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, 28]);
        // Interface description: no snapshot length; option 9 (if_tsresol), one byte: 10^-9 s; end of
        // options.
        words(&mut header, &[INTERFACE_DESCRIPTION, 32, LINKTYPE_ETHERNET, 0, 9 | 1 << 16, 9, 0, 32]);
        let mut out: BufWriter<Box<dyn Write + Send>> = BufWriter::with_capacity(1 << 16, Box::new(out));
        out.write_all(&header)?;
        Ok(PcapFile { out: Some(out), written: header.len() as u64, limit, frames: 0, error: None })
    }

    /// Records that `frame` passed at `time`, counted from 1970 or from the start of a simulation.
    pub fn record(&mut self, time: Duration, direction: PcapDirection, frame: &[u8]) {
        let Some(out) = &mut self.out else { return };
        let padding = frame.len().next_multiple_of(4) - frame.len();
        let block = (PACKET_OVERHEAD + frame.len() + padding) as u32;
        if self.written + u64::from(block) > self.limit {
            tracing::info!(bytes = self.written, frames = self.frames, "capture stopped at its size limit");
            self.out = None;
            return;
        }
        let ns = time.as_nanos() as u64;
        let len = frame.len() as u32;
        let flags = match direction {
            PcapDirection::Inbound => 1,
            PcapDirection::Outbound => 2,
        };
        let mut write = || {
            let head = [ENHANCED_PACKET, block, 0, (ns >> 32) as u32, ns as u32, len, len];
            head.iter().try_for_each(|word| out.write_all(&word.to_le_bytes()))?;
            out.write_all(frame)?;
            out.write_all(&[0; 3][..padding])?;
            // Option 2 (epb_flags), four bytes; end of options; the length again.
            let tail = [2 | 4 << 16, flags, 0, block];
            tail.iter().try_for_each(|word| out.write_all(&word.to_le_bytes()))
        };
        match write() {
            Ok(()) => {
                self.written += u64::from(block);
                self.frames += 1;
            }
            Err(error) => self.fail(error),
        }
    }

    /// Number of frames written to the file.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Whether frames are still recorded. `false` without an [`error`](PcapFile::error) means that the limit
    /// was reached.
    #[cfg(test)]
    pub(crate) fn is_recording(&self) -> bool {
        self.out.is_some()
    }

    /// Write error that ended the capture, if any.
    pub fn error(&self) -> Option<&io::Error> {
        self.error.as_ref()
    }

    /// Writes the buffered blocks. Dropping the file does the same but reports no errors.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.as_mut().map_or(Ok(()), Write::flush)
    }

    fn fail(&mut self, error: io::Error) {
        tracing::warn!(%error, frames = self.frames, "capture stopped: the frame could not be written");
        self.out = None;
        self.error = Some(error);
    }
}

fn words(to: &mut Vec<u8>, words: &[u32]) {
    to.extend(words.iter().flat_map(|word| word.to_le_bytes()));
}

/// Wraps a link and records its frames; see the [module](self).
///
/// A frame to send is written into a buffer here and copied to the slot of the link below, so that the
/// capture has the committed bytes.
pub struct PcapWriter<L> {
    inner: L,
    recorder: Recorder,
}

struct Recorder {
    file: PcapFile,
    staged: Box<[u8]>,
    lent: Option<usize>,
    now: Box<dyn FnMut() -> Duration + Send>,
}

impl Recorder {
    fn slot(&mut self, inner: &mut dyn Transmit, len: usize) -> Option<&mut [u8]> {
        inner.slot(len)?;
        let slot = self.staged.get_mut(..len)?;
        self.lent = Some(len);
        Some(slot)
    }

    fn commit(&mut self, inner: &mut dyn Transmit) {
        let Some(len) = self.lent.take() else { return };
        let frame = &self.staged[..len];
        if let Some(slot) = inner.slot(len) {
            slot.copy_from_slice(frame);
            inner.commit();
            self.file.record((self.now)(), PcapDirection::Outbound, frame);
        }
    }
}

impl<L: Link> PcapWriter<L> {
    /// Records the frames of `inner` in `file`, with the time of day.
    pub fn new(inner: L, file: PcapFile) -> Self {
        Self::with_now(inner, file, || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
    }

    /// [`PcapWriter::new`] with the time read from `now`, for a simulation.
    pub fn with_now(inner: L, file: PcapFile, now: impl FnMut() -> Duration + Send + 'static) -> Self {
        let staged = vec![0; inner.info().max_frame].into_boxed_slice();
        PcapWriter { inner, recorder: Recorder { file, staged, lent: None, now: Box::new(now) } }
    }

    /// File of the capture, for its state or to flush it.
    pub fn file(&mut self) -> &mut PcapFile {
        &mut self.recorder.file
    }

    /// Ends the capture. Returns the link below, and the first write error, if any.
    pub fn finish(self) -> (L, io::Result<()>) {
        let mut file = self.recorder.file;
        let flushed = file.flush();
        (self.inner, file.error.map_or(flushed, Err))
    }
}

/// Transmit side for frames sent during `receive`, which are recorded too.
struct Answers<'a> {
    recorder: &'a mut Recorder,
    inner: &'a mut dyn Transmit,
}

impl Transmit for Answers<'_> {
    fn slot(&mut self, len: usize) -> Option<&mut [u8]> {
        self.recorder.slot(self.inner, len)
    }

    fn steer(&mut self, queue: u8) {
        self.inner.steer(queue);
    }

    fn commit(&mut self) {
        self.recorder.commit(self.inner);
    }
}

impl<L: Link> Transmit for PcapWriter<L> {
    fn slot(&mut self, len: usize) -> Option<&mut [u8]> {
        self.recorder.slot(self.inner.transmit(), len)
    }

    fn steer(&mut self, queue: u8) {
        self.inner.transmit().steer(queue);
    }

    fn commit(&mut self) {
        self.recorder.commit(self.inner.transmit());
    }
}

impl<L: Link> Link for PcapWriter<L> {
    pass_on!(self => self.inner; info holds has_unsent flush wait readiness sleep_max counters reopened);

    fn receive(&mut self, budget: usize, on_frame: &mut OnFrame<'_>) -> Result<usize, LinkError> {
        let recorder = &mut self.recorder;
        self.inner.receive(budget, &mut |frame, transmit| {
            recorder.file.record((recorder.now)(), PcapDirection::Inbound, frame);
            on_frame(frame, &mut Answers { recorder, inner: transmit });
        })
    }

    fn transmit(&mut self) -> &mut dyn Transmit {
        self
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::sim::{PortConfig, SimNetwork};
    use cxloe_wire::frame::Mac;
    use cxloe_wire::time::Time;

    const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const B: Mac = Mac([2, 0, 0, 0, 0, 2]);

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[rustfmt::skip]
    const FILE: [u8; 60 + 60] = [
        0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0,
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 28, 0, 0, 0,
        1, 0, 0, 0, 32, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0, 0,
        6, 0, 0, 0, 60, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0, 14, 0, 0, 0, 14, 0, 0, 0,
        2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5, 0, 0,
        2, 0, 4, 0, 2, 0, 0, 0, 0, 0, 0, 0, 60, 0, 0, 0,
    ];

    #[test]
    fn bytes_of_a_file() {
        let out = Shared::default();
        let mut file = PcapFile::new(out.clone(), u64::MAX).unwrap();
        file.record(Duration::from_nanos((2 << 32) + 5), PcapDirection::Outbound, &FILE[88..102]);
        drop(file);
        assert_eq!(out.0.lock().unwrap()[..], FILE);
    }

    #[test]
    fn stops_at_its_limit_and_at_an_error() {
        let out = Shared::default();
        let mut file = PcapFile::new(out.clone(), 60 + 2 * 104 + 103).unwrap();
        for _ in 0..5 {
            file.record(Duration::ZERO, PcapDirection::Inbound, &[7; 60]);
        }
        assert_eq!((file.frames(), file.is_recording()), (2, false));
        assert!(file.error().is_none());
        assert_eq!(out.0.lock().unwrap().len(), 60 + 2 * 104);

        let mut file = PcapFile::new(Full, u64::MAX).unwrap();
        for _ in 0..2_000 {
            file.record(Duration::ZERO, PcapDirection::Inbound, &[7; 60]);
        }
        assert_eq!(file.error().unwrap().kind(), io::ErrorKind::StorageFull);
    }

    /// Frames of both directions, and answers sent during `receive`, must be in the capture in the order in which they
    /// passed.
    #[test]
    fn records_both_ways() {
        let net = SimNetwork::new(1);
        let mut b = net.attach(B, PortConfig::default()).unwrap();
        let out = Shared::default();
        let file = PcapFile::new(out.clone(), u64::MAX).unwrap();
        let clock = net.clone();
        let a = net.attach(A, PortConfig::default()).unwrap();
        let mut a = PcapWriter::with_now(a, file, move || Duration::from_nanos(clock.now().0));
        let write = |slot: &mut [u8], to: Mac, mark: u8| {
            slot.fill(mark);
            slot[..6].copy_from_slice(&to.0);
        };
        write(b.transmit().slot(61).unwrap(), A, 1);
        b.transmit().commit();
        b.flush().unwrap();
        net.step(Time(1_000_000));
        let received = a.receive(8, &mut |frame, transmit| {
            assert_eq!(frame[60], 1);
            frame.fill(9);
            write(transmit.slot(64).unwrap(), B, 2);
            transmit.commit();
        });
        assert_eq!(received.unwrap(), 1);
        write(a.transmit().slot(60).unwrap(), B, 3);
        a.transmit().commit();
        a.flush().unwrap();
        net.step(Time(2_000_000));
        let mut marks = Vec::new();
        b.receive(8, &mut |frame, _| marks.push((frame.len(), frame[59]))).unwrap();
        assert_eq!(marks, [(64, 2), (60, 3)]);
        assert!(a.finish().1.is_ok());

        let file = out.0.lock().unwrap();
        let mut blocks = Vec::new();
        let mut at = 60;
        while at < file.len() {
            let word = |n: usize| u32::from_le_bytes(file[at + 4 * n..][..4].try_into().unwrap()) as usize;
            let (block, len) = (word(1), word(5));
            let flags = file[at + block - 12];
            blocks.push((word(4), len, file[at + 28 + 59], flags));
            at += block;
        }
        assert_eq!(blocks, [(1_000_000, 61, 1, 1), (1_000_000, 64, 2, 2), (1_000_000, 60, 3, 2)]);
    }
}
