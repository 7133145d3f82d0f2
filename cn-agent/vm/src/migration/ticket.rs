//! Ticket of a move: a secret that both sides have in a file, by which they authenticate each other and seal what they
//! exchange. Anyone who has the secret can send any device state to the receiving QEMU.

use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use cxloe_private::Existing;

/// A secret of 32 bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Ticket([u8; 32]);

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ticket(..)")
    }
}

#[derive(Debug, thiserror::Error)]
pub enum TicketError {
    /// The file cannot be read or written, or others can read it.
    #[error("cannot use the ticket {}: {source}", .path.display())]
    File { path: PathBuf, source: io::Error },
    /// The content of the file is no ticket.
    #[error("{} is no ticket: it needs 64 hexadecimal digits; remove it on both sides and begin anew", .0.display())]
    Content(PathBuf),
}

impl FromStr for Ticket {
    type Err = ();

    fn from_str(text: &str) -> Result<Ticket, ()> {
        let text = text.trim();
        let mut bytes = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return Err(());
        }
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(drop)?;
            *byte = u8::from_str_radix(digits, 16).map_err(drop)?;
        }
        Ok(Ticket(bytes))
    }
}

impl Ticket {
    pub fn of(bytes: [u8; 32]) -> Ticket {
        Ticket(bytes)
    }

    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The secret as 64 hexadecimal digits.
    pub fn reveal(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Reads the ticket at `path`, a file that only its owner can read.
    pub fn read(path: &Path) -> Result<Ticket, TicketError> {
        let text = cxloe_private::read_to_string(path)
            .map_err(|source| TicketError::File { path: path.into(), source })?;
        text.parse().map_err(|()| TicketError::Content(path.into()))
    }

    /// Reads the ticket at `path`; if that file does not exist, creates it with `bytes` as the secret.
    ///
    /// # Errors
    /// Any [`TicketError`].
    pub fn read_or_write(path: &Path, bytes: [u8; 32]) -> Result<Ticket, TicketError> {
        match Self::read(path) {
            Err(TicketError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                let ticket = Ticket(bytes);
                cxloe_private::write(path, format!("{}\n", ticket.reveal()).as_bytes(), Existing::Keep)
                    .map_err(|source| TicketError::File { path: path.into(), source })?;
                Ok(ticket)
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_written_once_and_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ticket");
        assert!(Ticket::read(&path).is_err());
        let ticket = Ticket::read_or_write(&path, [7; 32]).unwrap();
        assert_eq!(Ticket::read_or_write(&path, [8; 32]).unwrap(), ticket);
        assert_eq!(format!("{ticket:?}"), "Ticket(..)");
        std::fs::write(&path, "07").unwrap();
        assert!(Ticket::read(&path).unwrap_err().to_string().contains("64 hexadecimal digits"));
        assert!("é".repeat(32).parse::<Ticket>().is_err());
    }
}
