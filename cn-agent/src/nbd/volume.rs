//! Bytes at any offset, over lines: what an export's client reads and writes, as reads and writes of 64-byte lines.
//!
//! Ranges are walked in stretches ([`STRETCH`]), each of them one batch of lines. The first and the last line of a range
//! may belong to it in part: when read they are cut, when written they are read, changed and written back, alone.

use std::sync::Arc;

use super::stripes::{STRETCH, Stripes};
use crate::cache::Line;

/// Bytes of a line.
const LINE: usize = size_of::<Line>();

/// Where lines are read and written; offsets are those of the export, multiples of 64.
pub trait Lines {
    /// Why it does not.
    type Error;
    /// Reads the lines from `offset` on into `out`.
    ///
    /// # Errors
    /// What the memory says. `out` may have been changed in part.
    fn read(&mut self, offset: u64, out: &mut [Line]) -> Result<(), Self::Error>;
    /// Writes the lines from `offset` on, and waits until memory nodes have them.
    ///
    /// # Errors
    /// What the memory says. Some of the lines may have been written.
    fn write(&mut self, offset: u64, lines: &[Line]) -> Result<(), Self::Error>;
}

/// An export as one connection has it.
#[derive(Debug)]
pub struct Volume<L> {
    lines: L,
    stripes: Arc<Stripes>,
    /// Lines of one stretch.
    buffer: Vec<Line>,
}

/// A part of a range that is read or written at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    /// First byte.
    offset: u64,
    /// Bytes.
    length: usize,
}

impl Part {
    /// The first line it touches.
    fn line(self) -> u64 {
        self.offset - self.offset % LINE as u64
    }

    /// Where it begins in that line.
    fn within(self) -> usize {
        (self.offset - self.line()) as usize
    }

    /// How many lines it touches.
    fn lines(self) -> usize {
        (self.within() + self.length).div_ceil(LINE)
    }
}

/// Cuts a range at the ends of stretches.
fn by_stretch(offset: u64, length: u64) -> impl Iterator<Item = Part> {
    cut(offset, length, |at| STRETCH - at % STRETCH)
}

/// Cuts a range at the ends of stretches, and its first and last line off where they are not whole.
fn by_whole_lines(offset: u64, length: u64) -> impl Iterator<Item = Part> {
    let end = offset + length;
    let last = end - end % LINE as u64;
    cut(offset, length, move |at| {
        let within = at % LINE as u64;
        if within != 0 {
            LINE as u64 - within
        } else if at == last {
            LINE as u64
        } else {
            (STRETCH - at % STRETCH).min(last - at)
        }
    })
}

fn cut(offset: u64, length: u64, step: impl Fn(u64) -> u64) -> impl Iterator<Item = Part> {
    let (mut at, end) = (offset, offset + length);
    std::iter::from_fn(move || {
        let length = step(at).min(end - at);
        let part = Part { offset: at, length: length as usize };
        at += length;
        (length > 0).then_some(part)
    })
}

impl<L: Lines> Volume<L> {
    /// An export over `lines`; all connections of one export share its `stripes`.
    pub fn new(lines: L, stripes: Arc<Stripes>) -> Volume<L> {
        Volume { lines, stripes, buffer: Vec::new() }
    }

    /// Puts the `length` bytes from `offset` on into `out`, in place of what it held.
    ///
    /// # Errors
    /// What the lines say.
    pub fn read(&mut self, offset: u64, length: u32, out: &mut Vec<u8>) -> Result<(), L::Error> {
        out.clear();
        for part in by_stretch(offset, length.into()) {
            self.buffer.resize(part.lines(), [0; LINE]);
            self.lines.read(part.line(), &mut self.buffer)?;
            out.extend_from_slice(&self.buffer.as_flattened()[part.within()..][..part.length]);
        }
        Ok(())
    }

    /// Writes `data` from `offset` on.
    ///
    /// # Errors
    /// What the lines say; a part may have been written.
    pub fn write(&mut self, offset: u64, mut data: &[u8]) -> Result<(), L::Error> {
        for part in by_whole_lines(offset, data.len() as u64) {
            let (now, later) = data.split_at(part.length);
            data = later;
            let (whole, rest) = now.as_chunks::<LINE>();
            if rest.is_empty() {
                let _held = self.stripes.whole(part.offset);
                self.lines.write(part.offset, whole)?;
            } else {
                self.change(part, |bytes| bytes.copy_from_slice(rest))?;
            }
        }
        Ok(())
    }

    /// Makes `length` bytes from `offset` on zero.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn zero(&mut self, offset: u64, length: u32) -> Result<(), L::Error> {
        for part in by_whole_lines(offset, length.into()) {
            if part.length.is_multiple_of(LINE) {
                self.buffer.clear();
                self.buffer.resize(part.lines(), [0; LINE]);
                let _held = self.stripes.whole(part.offset);
                self.lines.write(part.offset, &self.buffer)?;
            } else {
                self.change(part, |bytes| bytes.fill(0))?;
            }
        }
        Ok(())
    }

    /// Changes a part of one line.
    fn change(&mut self, part: Part, change: impl FnOnce(&mut [u8])) -> Result<(), L::Error> {
        let _held = self.stripes.part(part.offset);
        let mut line = [[0; LINE]];
        self.lines.read(part.line(), &mut line)?;
        change(&mut line.as_flattened_mut()[part.within()..][..part.length]);
        self.lines.write(part.line(), &line)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use proptest::prelude::*;

    use super::*;

    const SIZE: usize = 600 << 10;

    /// Lines in this process; several volumes share them.
    #[derive(Clone, Debug)]
    struct Memory(Arc<Mutex<Vec<Line>>>);

    impl Memory {
        fn new() -> Memory {
            let lines = (0..SIZE / LINE).map(|i| [(i % 251) as u8; LINE]).collect();
            Memory(Arc::new(Mutex::new(lines)))
        }

        fn bytes(&self) -> Vec<u8> {
            self.0.lock().unwrap().as_flattened().to_vec()
        }
    }

    impl Lines for Memory {
        type Error = u64;

        fn read(&mut self, offset: u64, out: &mut [Line]) -> Result<(), u64> {
            assert!(offset.is_multiple_of(64) && out.len() * LINE <= STRETCH as usize);
            let first = offset as usize / LINE;
            out.copy_from_slice(self.0.lock().unwrap().get(first..first + out.len()).ok_or(offset)?);
            Ok(())
        }

        fn write(&mut self, offset: u64, lines: &[Line]) -> Result<(), u64> {
            assert!(offset.is_multiple_of(64) && lines.len() * LINE <= STRETCH as usize);
            let first = offset as usize / LINE;
            let mut memory = self.0.lock().unwrap();
            memory.get_mut(first..first + lines.len()).ok_or(offset)?.copy_from_slice(lines);
            Ok(())
        }
    }

    fn ranges() -> impl Strategy<Value = (u64, usize)> {
        let length = prop_oneof![0_usize..200, 0..4 * 4096_usize, 0..STRETCH as usize + 5000];
        (0..SIZE as u64, length).prop_map(|(offset, length)| (offset, length.min(SIZE - offset as usize)))
    }

    proptest! {
        #[test]
        fn it_reads_and_writes_as_bytes_do(steps in proptest::collection::vec((ranges(), 0..3_u8, any::<u8>()), 1..12)) {
            let memory = Memory::new();
            let mut expected = memory.bytes();
            let mut volume = Volume::new(memory.clone(), Arc::default());
            let mut read = Vec::new();
            for ((offset, length), what, seed) in steps {
                let range = offset as usize..offset as usize + length;
                match what {
                    0 => {
                        volume.read(offset, length as u32, &mut read).unwrap();
                        prop_assert_eq!(&read, &expected[range]);
                    }
                    1 => {
                        let data: Vec<u8> = (0..length).map(|i| seed.wrapping_add(i as u8)).collect();
                        volume.write(offset, &data).unwrap();
                        expected[range].copy_from_slice(&data);
                    }
                    _ => {
                        volume.zero(offset, length as u32).unwrap();
                        expected[range].fill(0);
                    }
                }
            }
            prop_assert!(memory.bytes() == expected);
        }
    }

    #[test]
    fn what_the_lines_refuse_is_refused() {
        let mut volume = Volume::new(Memory::new(), Arc::default());
        let mut out = Vec::new();
        assert_eq!(volume.read(SIZE as u64 - 64, 65, &mut out), Err(SIZE as u64 - 64));
        assert_eq!(volume.write(SIZE as u64 - 10, &[1; 20]), Err(SIZE as u64));
        assert_eq!(volume.zero(SIZE as u64, 1), Err(SIZE as u64));
    }

    /// Each writer owns every eighth byte of the same lines; nobody's bytes may be undone by another's.
    #[test]
    fn writers_of_one_line_do_not_undo_each_other() {
        let (memory, stripes) = (Memory::new(), Arc::new(Stripes::default()));
        std::thread::scope(|scope| {
            for owner in 0..4_u64 {
                let mut volume = Volume::new(memory.clone(), Arc::clone(&stripes));
                scope.spawn(move || {
                    for round in 0..100_u64 {
                        for place in (owner..512).step_by(4) {
                            volume.write(place, &[round as u8]).unwrap();
                        }
                    }
                });
            }
        });
        assert!(memory.bytes()[..512].iter().all(|byte| *byte == 99));
    }
}
