//! Minimal NBD client, for measurements: one connection with one request at a time, the slowest use of a
//! block device.

use std::io::{self, IoSliceMut, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Maximum wait for an answer, after which the server counts as broken.
const LIMIT: Duration = Duration::from_secs(20);
/// Greeting of a server: the old magic, the new one, and the flags fixed-newstyle and no-zeroes.
const GREETING: &[u8; 18] = b"NBDMAGICIHAVEOPT\0\x03";
/// The client's flags, fixed-newstyle and no-zeroes, and the option that selects the export without a name.
const CHOICE: &[u8; 20] = b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0";
const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;

/// Connection to an NBD server, with one export chosen. `cookie` numbers the requests.
#[derive(Debug)]
pub struct NbdClient {
    stream: UnixStream,
    cookie: u64,
    size: u64,
}

fn odd(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

impl NbdClient {
    /// Connects to the server at `path` and chooses the server's default export.
    ///
    /// # Errors
    /// Returns errors of the system, and [`io::ErrorKind::InvalidData`] if the answer is not that of an NBD server.
    pub fn connect(path: &Path) -> io::Result<NbdClient> {
        let mut stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        let mut greeting = [0; GREETING.len()];
        stream.read_exact(&mut greeting)?;
        if greeting != *GREETING {
            return Err(odd("no NBD server of the new style"));
        }
        stream.write_all(CHOICE)?;
        // Size of the export (8 bytes) and its flags (2 bytes).
        let mut export = [0; 10];
        stream.read_exact(&mut export)?;
        let (size, _) = export.split_first_chunk().ok_or_else(|| odd("no size"))?;
        Ok(NbdClient { stream, cookie: 0, size: u64::from_be_bytes(*size) })
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    /// Reads `out.len()` bytes at `offset`.
    ///
    /// # Errors
    /// Returns errors of the system, and [`io::ErrorKind::InvalidData`] if the answer is an error or malformed.
    pub fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.cookie += 1;
        let mut request = [0; 28];
        request[..4].copy_from_slice(&REQUEST.to_be_bytes());
        // The command's flags and type stay 0: a read without flags.
        request[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        request[16..24].copy_from_slice(&offset.to_be_bytes());
        request[24..].copy_from_slice(&(out.len() as u32).to_be_bytes());
        self.stream.write_all(&request)?;
        // One system call reads the header and the data if both have arrived.
        let mut reply = [0; 16];
        let mut parts = [IoSliceMut::new(&mut reply), IoSliceMut::new(out)];
        let came = self.stream.read_vectored(&mut parts)?;
        let (header, data) = (came.min(reply.len()), came.saturating_sub(reply.len()));
        self.stream.read_exact(&mut reply[header..])?;
        let expected = [&REPLY.to_be_bytes()[..], &[0; 4], &self.cookie.to_be_bytes()].concat();
        if reply[..] != expected {
            return Err(odd(format!("the NBD server answered a read by {reply:02x?}")));
        }
        self.stream.read_exact(&mut out[data..])
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Acts as a server of 8 KiB, with each byte equal to its offset modulo 256; the second read fails.
    fn serve(listener: &UnixListener) -> io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        stream.write_all(GREETING)?;
        let mut choice = [0; CHOICE.len()];
        stream.read_exact(&mut choice)?;
        assert_eq!(choice, *CHOICE);
        stream.write_all(&[0, 0, 0, 0, 0, 0, 0x20, 0, 0, 1])?;
        for error in [0, 5_u8] {
            let mut request = [0; 28];
            stream.read_exact(&mut request)?;
            assert_eq!(request[..8], [0x25, 0x60, 0x95, 0x13, 0, 0, 0, 0]);
            let offset = usize::from(request[23]);
            stream.write_all(&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, error])?;
            stream.write_all(&request[8..16])?;
            let data: Vec<u8> = (offset..offset + usize::from(request[27])).map(|byte| byte as u8).collect();
            stream.write_all(&data)?;
        }
        Ok(())
    }

    #[test]
    fn bytes_are_read_and_errors_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nbd");
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || serve(&listener));
        let mut client = NbdClient::connect(&path).unwrap();
        assert_eq!(client.size(), 8192);
        let mut out = [0; 5];
        client.read(7, &mut out).unwrap();
        assert_eq!(out, [7, 8, 9, 10, 11]);
        let error = client.read(7, &mut out).unwrap_err();
        assert!(error.to_string().contains("answered a read"), "{error}");
        server.join().unwrap().unwrap();
    }
}
