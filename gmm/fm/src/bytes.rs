//! Payloads as bytes: a [`Reader`] takes little-endian fields in sequence, a [`Writer`] appends them, and
//! [`Payload`] combines the two for each request and response. Reserved bytes are skipped and written as
//! zeros. The only possible error at this level is the length.

/// A payload has fewer bytes than its fields need, or more (return code 16h, invalid payload length).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the payload's length does not fit the command: send as many bytes as its fields have")]
pub struct WrongLength;

/// Reads the fields of a payload one after the other; numbers are little-endian. A method that reads fails
/// with [`WrongLength`] if too few bytes are left.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub fn take(&mut self, count: usize) -> Result<&'a [u8], WrongLength> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(WrongLength)?;
        self.rest = rest;
        Ok(taken)
    }

    /// Takes the next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], WrongLength> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(WrongLength)?;
        self.rest = rest;
        Ok(*taken)
    }

    pub fn u8(&mut self) -> Result<u8, WrongLength> {
        self.array().map(|[byte]| byte)
    }

    pub fn u16(&mut self) -> Result<u16, WrongLength> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, WrongLength> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, WrongLength> {
        self.array().map(u64::from_le_bytes)
    }

    /// Skips `count` bytes, for reserved fields.
    pub fn skip(&mut self, count: usize) -> Result<(), WrongLength> {
        self.take(count).map(|_| ())
    }

    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Takes `count` consecutive entries. Memory is allocated only for entries that are present.
    pub fn list<P: Payload>(&mut self, count: usize) -> Result<Vec<P>, WrongLength> {
        (0..count).map(|_| P::read(self)).collect()
    }
}

/// Appends fields to a payload; numbers are little-endian.
#[derive(Debug, Clone, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }

    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Appends `count` reserved bytes, which are zeros.
    pub fn reserved(&mut self, count: usize) -> &mut Self {
        self.bytes.resize(self.bytes.len() + count, 0);
        self
    }

    /// Appends the entries of a list, without their number.
    pub fn list<P: Payload>(&mut self, entries: &[P]) -> &mut Self {
        entries.iter().for_each(|entry| entry.write(self));
        self
    }

    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// Type whose fields are the payload of a request or a response, or an entry of a list in a payload.
pub trait Payload: Sized {
    /// Reads the fields in their order.
    ///
    /// # Errors
    /// [`WrongLength`] if there are too few bytes.
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength>;

    /// Writes the fields in their order.
    fn write(&self, writer: &mut Writer);

    /// Reads a payload that takes all of `bytes`.
    ///
    /// # Errors
    /// [`WrongLength`] if there are too few bytes or too many.
    fn from_bytes(bytes: &[u8]) -> Result<Self, WrongLength> {
        let mut reader = Reader::new(bytes);
        let payload = Self::read(&mut reader)?;
        if reader.is_empty() { Ok(payload) } else { Err(WrongLength) }
    }

    /// Encodes the fields as a payload.
    fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        self.write(&mut writer);
        writer.finish()
    }
}

/// Implements [`Payload`] for a structure whose fields follow each other; `+ 2` stands for two reserved bytes behind a
/// field.
macro_rules! fields {
    ($type:ident: $($field:ident $(+ $reserved:literal)?),+) => {
        impl $crate::bytes::Payload for $type {
            fn read(
                reader: &mut $crate::bytes::Reader<'_>,
            ) -> Result<Self, $crate::bytes::WrongLength> {
                $(
                    let $field = $crate::bytes::Payload::read(reader)?;
                    $(reader.skip($reserved)?;)?
                )+
                Ok(Self { $($field),+ })
            }

            fn write(&self, writer: &mut $crate::bytes::Writer) {
                $(
                    $crate::bytes::Payload::write(&self.$field, writer);
                    $(writer.reserved($reserved);)?
                )+
            }
        }
    };
}
pub(crate) use fields;

/// Implements [`Payload`] for little-endian numbers.
macro_rules! numbers {
    ($($number:ident),+) => {
        $(impl Payload for $number {
            fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
                reader.array().map(Self::from_le_bytes)
            }

            fn write(&self, writer: &mut Writer) {
                writer.bytes(&self.to_le_bytes());
            }
        })+
    };
}
numbers!(u8, u16, u32, u64);

impl<P: Payload + Copy + Default, const N: usize> Payload for [P; N] {
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength> {
        let mut all = [P::default(); N];
        for one in &mut all {
            *one = P::read(reader)?;
        }
        Ok(all)
    }

    fn write(&self, writer: &mut Writer) {
        writer.list(self);
    }
}

/// Payload of requests and responses without fields.
impl Payload for () {
    fn read(_: &mut Reader<'_>) -> Result<Self, WrongLength> {
        Ok(())
    }

    fn write(&self, _: &mut Writer) {}
}

/// Returns the number of entries as one byte: 255 for longer lists, of which clients read only the first 255 entries.
pub(super) fn count_u8(count: usize) -> u8 {
    u8::try_from(count).unwrap_or(u8::MAX)
}

pub fn count_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
