//! The least that it takes to read from an NBD server: one connection, one request at a time, as the worst case of a block
//! device is.

use std::io::{self, IoSliceMut, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(20);
/// What a server says first: the old magic, the new one, and that it can do without 124 zeros.
const GREETING: &[u8; 18] = b"NBDMAGICIHAVEOPT\0\x03";
/// The client's flags, and the export without a name.
const CHOICE: &[u8; 20] = b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0";
const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;

/// A connection to an NBD server.
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
    /// Connects to the server at `path` and chooses its export.
    ///
    /// # Errors
    /// What the kernel says; [`io::ErrorKind::InvalidData`] if something else answers.
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
        // The export's size and its flags.
        let mut export = [0; 10];
        stream.read_exact(&mut export)?;
        let (size, _) = export.split_first_chunk().ok_or_else(|| odd("no size"))?;
        Ok(NbdClient { stream, cookie: 0, size: u64::from_be_bytes(*size) })
    }

    /// Bytes of the export.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Reads `out.len()` bytes from `offset` on.
    ///
    /// # Errors
    /// What the kernel says; [`io::ErrorKind::InvalidData`] if the answer is an error or none.
    pub fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.cookie += 1;
        let mut request = [0; 28];
        request[..4].copy_from_slice(&REQUEST.to_be_bytes());
        // No flags; the command is 0, a read.
        request[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        request[16..24].copy_from_slice(&offset.to_be_bytes());
        request[24..].copy_from_slice(&(out.len() as u32).to_be_bytes());
        self.stream.write_all(&request)?;
        // Header and data by one system call, if they come as one.
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

    /// A server of 8 KiB, whose bytes are their number; it fails the second read.
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
