//! A small NBD client: one connection, one request at a time, so that a test receives each request's answer. The tools
//! of libnbd and QEMU test the protocol; this client tests what these tools do not show, mainly errors.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Limit on every wait for the server's answer, so that a hanging server fails the test.
const LIMIT: Duration = Duration::from_secs(60);

/// Answer to a request: data, or an NBD error number.
pub type Answer = Result<Vec<u8>, u32>;

pub struct NbdClient {
    stream: UnixStream,
    cookie: u64,
    pub size: u64,
}

impl NbdClient {
    /// Connects to the server and selects the unnamed export with NBD_OPT_EXPORT_NAME.
    pub fn connect(path: &Path) -> io::Result<NbdClient> {
        let mut stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        assert_eq!(&greeting, b"NBDMAGICIHAVEOPT\0\x03");
        stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0")?;
        let mut export = [0; 10];
        stream.read_exact(&mut export)?;
        let size = u64::from_be_bytes(*export.first_chunk().expect("ten bytes"));
        Ok(NbdClient { stream, cookie: 0, size })
    }

    pub fn read(&mut self, offset: u64, length: u32) -> io::Result<Answer> {
        self.send(0, 0, offset, length, &[])?;
        self.answer(length)
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<Answer> {
        self.send(1, 1, offset, data.len() as u32, data)?;
        self.answer(0)
    }

    pub fn zero(&mut self, offset: u64, length: u32) -> io::Result<Answer> {
        self.send(0, 6, offset, length, &[])?;
        self.answer(0)
    }

    pub fn flush(&mut self) -> io::Result<Answer> {
        self.send(0, 3, 0, 0, &[])?;
        self.answer(0)
    }

    /// True if the server has closed the connection without sending anything.
    pub fn is_hung_up(&mut self) -> bool {
        let short = self.stream.set_read_timeout(Some(Duration::from_millis(10)));
        short.is_ok() && matches!(self.stream.read(&mut [0]), Ok(0))
    }

    /// Sends a request without waiting for its answer.
    pub fn send(&mut self, flags: u16, kind: u16, offset: u64, length: u32, data: &[u8]) -> io::Result<()> {
        self.cookie += 1;
        let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(self.cookie.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        bytes.extend_from_slice(data);
        self.stream.write_all(&bytes)
    }

    /// Receives the answer to the request sent last, with `length` bytes of data unless it is an error.
    pub fn answer(&mut self, length: u32) -> io::Result<Answer> {
        let mut header = [0; 16];
        self.stream.read_exact(&mut header)?;
        assert_eq!(header[..4], 0x6744_6698_u32.to_be_bytes());
        assert_eq!(header[8..], self.cookie.to_be_bytes());
        let error = u32::from_be_bytes(*header[4..].first_chunk().expect("twelve bytes"));
        if error != 0 {
            return Ok(Err(error));
        }
        let mut data = vec![0; length as usize];
        self.stream.read_exact(&mut data)?;
        Ok(Ok(data))
    }
}
