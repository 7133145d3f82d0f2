//! Format of an exported region: a stream, so that it can be written to and read from a pipe.
//!
//! ```text
//! header   magic (8) | length of the region (8) | length of the name (4) | name | CRC-32C of all this (4)
//! record   offset (8) | bytes (4) | CRC-32C of offset, bytes and data (4) | data   (any number, by offset)
//! end      length of the region (8) | zero (4) | CRC-32C of all records' checksums (4)
//! ```
//!
//! The numbers in brackets are sizes in bytes; integers are little-endian. Bytes between two
//! records are zeros. Each record is checked before its data is used; the end proves that no record is
//! missing.

use std::io::{self, Read, Write};

use crc32c::crc32c_append;
use cxloe_fabric::model::Name;

/// First bytes of an exported region, version 1.
const MAGIC: [u8; 8] = *b"CXLoEex1";
/// Granularity in bytes at which zeros are left out of the stream.
const BLOCK: usize = 4096;
/// Maximum bytes of data in one record: bounds the memory that a reader needs.
pub const RECORD_MAX: usize = 1 << 20;
/// Maximum length of a region's name in bytes, checked before memory is allocated for the name.
const NAME_MAX: u32 = 256;

/// Reason why a stream is not a complete and undamaged exported region.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("cannot read {name}: {error}")]
    Read { name: String, error: io::Error },
    #[error("{0} is not an exported region: its first bytes are wrong; is it still compressed?")]
    Foreign(String),
    #[error("{name} is truncated: it ends after {at} bytes, before the end of the exported region")]
    Truncated {
        name: String,
        /// Number of bytes that were read before the stream ended.
        at: u64,
    },
    #[error("{name} is damaged at byte {at}: {why}")]
    Damaged {
        name: String,
        /// Offset in the stream at which the damaged part begins.
        at: u64,
        /// Check that failed.
        why: &'static str,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageHeader {
    /// Name that the region had at the export; an import may go to a region of another name.
    pub region: Name,
    /// Size of the exported region in bytes.
    pub bytes: u64,
}

/// Writes the stream of an exported region. The stream is invalid without the end record of
/// [`ImageWriter::finish`].
pub struct ImageWriter<W> {
    out: W,
    /// Offset in the region of the bytes that the next `put` gets.
    at: u64,
    bytes: u64,
    sums: u32,
}

impl<W: Write> ImageWriter<W> {
    pub fn begin(mut out: W, header: &ImageHeader) -> io::Result<ImageWriter<W>> {
        let name = header.region.as_str().as_bytes();
        let mut head = MAGIC.to_vec();
        head.extend(header.bytes.to_le_bytes());
        head.extend((name.len() as u32).to_le_bytes());
        head.extend(name);
        head.extend(crc32c_append(0, &head).to_le_bytes());
        out.write_all(&head)?;
        Ok(ImageWriter { out, at: 0, bytes: header.bytes, sums: 0 })
    }

    /// Writes the next bytes of the region, at most [`RECORD_MAX`], without the blocks of zeros.
    pub fn put(&mut self, data: &[u8]) -> io::Result<()> {
        let mut from = 0;
        // `None` after the last block writes the record that ends with that block.
        for block in data.chunks(BLOCK).map(Some).chain([None]) {
            match block {
                Some(block) if !is_zero(block) => {}
                _ => {
                    let end =
                        block.map_or(data.len(), |block| block.as_ptr() as usize - data.as_ptr() as usize);
                    self.record(from as u64, &data[from..end])?;
                    from = end + block.map_or(0, <[u8]>::len);
                }
            }
        }
        self.at += data.len() as u64;
        Ok(())
    }

    fn record(&mut self, from: u64, data: &[u8]) -> io::Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let head = place(self.at + from, data.len() as u32);
        let sum = crc32c_append(crc32c_append(0, &head), data).to_le_bytes();
        self.sums = crc32c_append(self.sums, &sum);
        self.out.write_all(&head)?;
        self.out.write_all(&sum)?;
        self.out.write_all(data)
    }

    /// Writes the end record, which makes the stream complete.
    pub fn finish(mut self) -> io::Result<()> {
        self.out.write_all(&place(self.bytes, 0))?;
        self.out.write_all(&self.sums.to_le_bytes())?;
        self.out.flush()
    }
}

/// Reads the stream of an exported region, and verifies each record before it returns the data.
pub struct ImageReader<R> {
    input: R,
    name: String,
    /// Number of bytes read from the stream so far, for error messages.
    read: u64,
    header: ImageHeader,
    /// Offset in the region at which the last record ended; no later record may begin before it.
    end: u64,
    sums: u32,
}

impl<R: Read> ImageReader<R> {
    /// Reads and checks the header; `name` names the stream in errors.
    pub fn open(input: R, name: &str) -> Result<ImageReader<R>, ImageError> {
        let region = Name::new("unread").expect("these letters are a name");
        let header = ImageHeader { region, bytes: 0 };
        let mut reader = ImageReader { input, name: name.into(), read: 0, header, end: 0, sums: 0 };
        let mut head = [0; 20];
        let got = reader.fill_some(&mut head)?;
        if got < MAGIC.len() || head[..MAGIC.len()] != MAGIC {
            return Err(ImageError::Foreign(reader.name));
        }
        if got < head.len() {
            return Err(reader.truncated());
        }
        let length = u32::from_le_bytes(head[16..].try_into().expect("4 bytes"));
        if length > NAME_MAX {
            return Err(reader.damaged(16, "the region's name is too long"));
        }
        let mut name = vec![0; length as usize];
        reader.fill(&mut name)?;
        if crc32c_append(crc32c_append(0, &head), &name) != reader.number()? {
            return Err(reader.damaged(0, "the checksum of the header does not match"));
        }
        let region = String::from_utf8(name).ok().and_then(|name| Name::new(name).ok());
        reader.header.region = region.ok_or_else(|| reader.damaged(20, "the region's name is no name"))?;
        reader.header.bytes = u64::from_le_bytes(head[8..16].try_into().expect("8 bytes"));
        Ok(reader)
    }

    pub fn header(&self) -> &ImageHeader {
        &self.header
    }

    /// Reads the next record into `data`, and returns the record's offset in the region. Returns `None` after
    /// the end record, if no record is missing and no bytes follow.
    pub fn next(&mut self, data: &mut Vec<u8>) -> Result<Option<u64>, ImageError> {
        let at = self.read;
        let mut head = [0; 12];
        self.fill(&mut head)?;
        let offset = u64::from_le_bytes(head[..8].try_into().expect("8 bytes"));
        let length = u32::from_le_bytes(head[8..].try_into().expect("4 bytes"));
        let sum = self.number()?;
        if length == 0 {
            if sum != self.sums || offset != self.header.bytes {
                return Err(self.damaged(at, "the checksum of all records does not match"));
            }
            return match self.fill_some(&mut [0])? {
                0 => Ok(None),
                _ => Err(self.damaged(at + 16, "more follows after the end of the exported region")),
            };
        }
        let end = offset.checked_add(length.into()).filter(|end| *end <= self.header.bytes);
        let is_whole = offset % 64 == 0 && length % 64 == 0 && length as usize <= RECORD_MAX;
        let Some(end) = end.filter(|_| is_whole && offset >= self.end) else {
            return Err(self.damaged(at, "a record is not where one can be"));
        };
        data.resize(length as usize, 0);
        self.fill(data)?;
        if crc32c_append(crc32c_append(0, &head), data) != sum {
            return Err(self.damaged(at, "the checksum of a record does not match"));
        }
        self.sums = crc32c_append(self.sums, &sum.to_le_bytes());
        self.end = end;
        Ok(Some(offset))
    }

    fn number(&mut self) -> Result<u32, ImageError> {
        let mut bytes = [0; 4];
        self.fill(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), ImageError> {
        match self.fill_some(bytes)? {
            got if got == bytes.len() => Ok(()),
            _ => Err(self.truncated()),
        }
    }

    /// Reads until `bytes` are full or the stream ends; returns the number of bytes read.
    fn fill_some(&mut self, bytes: &mut [u8]) -> Result<usize, ImageError> {
        let mut got = 0;
        while got < bytes.len() {
            match self.input.read(&mut bytes[got..]) {
                Ok(0) => break,
                Ok(more) => got += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(ImageError::Read { name: self.name.clone(), error }),
            }
        }
        self.read += got as u64;
        Ok(got)
    }

    fn truncated(&self) -> ImageError {
        ImageError::Truncated { name: self.name.clone(), at: self.read }
    }

    fn damaged(&self, at: u64, why: &'static str) -> ImageError {
        ImageError::Damaged { name: self.name.clone(), at, why }
    }
}

pub fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// Encodes the offset and the length that a record begins with.
fn place(offset: u64, length: u32) -> [u8; 12] {
    let mut head = [0; 12];
    head[..8].copy_from_slice(&offset.to_le_bytes());
    head[8..].copy_from_slice(&length.to_le_bytes());
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: usize = 64 << 10;

    /// Returns a region of 1 MiB and three lines, mostly zeros, and its exported form.
    fn example() -> (Vec<u8>, Vec<u8>) {
        let mut region = vec![0; (1 << 20) + 192];
        for (from, bytes) in [(0, 64), (8192, 3 * BLOCK), (CHUNK - 64, 128), ((1 << 20) + 128, 64)] {
            region[from..from + bytes].iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8 | 1);
        }
        let header = ImageHeader { region: Name::new("scratch").unwrap(), bytes: region.len() as u64 };
        let mut image = Vec::new();
        let mut writer = ImageWriter::begin(&mut image, &header).unwrap();
        region.chunks(CHUNK).for_each(|chunk| writer.put(chunk).unwrap());
        writer.finish().unwrap();
        (region, image)
    }

    fn read(image: &[u8]) -> Result<Vec<u8>, ImageError> {
        let mut reader = ImageReader::open(image, "the image")?;
        let (mut region, mut data) = (vec![0; (1 << 20) + 192], Vec::new());
        while let Some(offset) = reader.next(&mut data)? {
            region[offset as usize..][..data.len()].copy_from_slice(&data);
        }
        assert_eq!(reader.header().region.as_str(), "scratch");
        Ok(region)
    }

    #[test]
    fn a_region_reads_back_and_zeros_take_no_room() {
        let (region, image) = example();
        assert!(image.len() < 8 * BLOCK, "{} bytes", image.len());
        assert_eq!(read(&image).unwrap(), region);
    }

    #[test]
    fn a_stream_that_ends_early_or_late_is_refused() {
        let (_, image) = example();
        for end in 0..image.len() {
            let error = read(&image[..end]).unwrap_err();
            let foreign = matches!(error, ImageError::Foreign(_));
            assert!(
                foreign == (end < 8) && (foreign || matches!(error, ImageError::Truncated { .. })),
                "{error}"
            );
        }
        let more = [&image[..], &[0]].concat();
        assert!(matches!(read(&more), Err(ImageError::Damaged { .. })));
    }

    #[test]
    fn any_changed_bit_is_noticed() {
        let (_, image) = example();
        for at in 0..image.len() {
            let mut changed = image.clone();
            changed[at] ^= 1 << (at % 8);
            read(&changed).expect_err("a changed bit");
        }
    }

    #[test]
    fn a_missing_record_is_noticed() {
        let (_, image) = example();
        // The first record follows the header, and has one block.
        let first = 8 + 8 + 4 + "scratch".len() + 4;
        let without = [&image[..first], &image[first + 16 + BLOCK..]].concat();
        let error = read(&without).unwrap_err();
        assert!(error.to_string().contains("checksum of all records"), "{error}");
    }
}
