//! Payloads as bytes: a [`Reader`] takes little-endian fields off one after the other, a [`Writer`] appends them, and
//! [`Payload`] joins the two for each request and response. Bytes that mean nothing are skipped and written as zeros,
//! whatever they hold; the only thing that can be wrong with a payload at this level is its length.

/// A payload has fewer bytes than its fields need, or more (return code 16h, invalid payload length).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the payload's length does not fit the command: send as many bytes as its fields have")]
pub struct WrongLength;

/// Takes fields off the front of a payload.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from the first of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    /// [`WrongLength`] when fewer are left, like all methods here that read.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], WrongLength> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(WrongLength)?;
        self.rest = rest;
        Ok(taken)
    }

    /// The next `N` bytes as an array.
    ///
    /// # Errors
    /// [`WrongLength`].
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], WrongLength> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(WrongLength)?;
        self.rest = rest;
        Ok(*taken)
    }

    /// One byte.
    ///
    /// # Errors
    /// [`WrongLength`].
    pub fn u8(&mut self) -> Result<u8, WrongLength> {
        self.array().map(|[byte]| byte)
    }

    /// Two bytes.
    ///
    /// # Errors
    /// [`WrongLength`].
    pub fn u16(&mut self) -> Result<u16, WrongLength> {
        self.array().map(u16::from_le_bytes)
    }

    /// Four bytes.
    ///
    /// # Errors
    /// [`WrongLength`].
    pub fn u32(&mut self) -> Result<u32, WrongLength> {
        self.array().map(u32::from_le_bytes)
    }

    /// Eight bytes.
    ///
    /// # Errors
    /// [`WrongLength`].
    pub fn u64(&mut self) -> Result<u64, WrongLength> {
        self.array().map(u64::from_le_bytes)
    }

    /// Passes over `count` bytes without looking at them.
    ///
    /// # Errors
    /// [`WrongLength`].
    pub fn skip(&mut self, count: usize) -> Result<(), WrongLength> {
        self.take(count).map(|_| ())
    }

    /// Everything that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// `count` entries, one after the other. Nothing is set aside for them before they are there.
    ///
    /// # Errors
    /// [`WrongLength`].
    pub fn list<P: Payload>(&mut self, count: usize) -> Result<Vec<P>, WrongLength> {
        (0..count).map(|_| P::read(self)).collect()
    }
}

/// Appends fields to a payload.
#[derive(Debug, Clone, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Appends bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// Appends one byte.
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }

    /// Appends two bytes.
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Appends four bytes.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Appends eight bytes.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Appends `count` reserved bytes.
    pub fn reserved(&mut self, count: usize) -> &mut Self {
        self.bytes.resize(self.bytes.len() + count, 0);
        self
    }

    /// Appends entries, one after the other.
    pub fn list<P: Payload>(&mut self, entries: &[P]) -> &mut Self {
        entries.iter().for_each(|entry| entry.write(self));
        self
    }

    /// What was written.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// A request's or a response's payload, or an entry of a list in one.
pub trait Payload: Sized {
    /// Reads the fields in their order.
    ///
    /// # Errors
    /// [`WrongLength`] when there are too few bytes.
    fn read(reader: &mut Reader<'_>) -> Result<Self, WrongLength>;

    /// Writes the fields in their order.
    fn write(&self, writer: &mut Writer);

    /// From all of `bytes`.
    ///
    /// # Errors
    /// [`WrongLength`] when there are too few bytes or too many.
    fn from_bytes(bytes: &[u8]) -> Result<Self, WrongLength> {
        let mut reader = Reader::new(bytes);
        let payload = Self::read(&mut reader)?;
        if reader.is_empty() { Ok(payload) } else { Err(WrongLength) }
    }

    /// As bytes.
    fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        self.write(&mut writer);
        writer.finish()
    }
}

/// No payload.
impl Payload for () {
    fn read(_: &mut Reader<'_>) -> Result<Self, WrongLength> {
        Ok(())
    }

    fn write(&self, _: &mut Writer) {}
}

/// A count as the one byte it is written with. Lists are built to fit; a longer one would be cut off by its reader.
pub(super) fn count_u8(count: usize) -> u8 {
    u8::try_from(count).unwrap_or(u8::MAX)
}

/// A count as the four bytes it is written with.
pub fn count_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
