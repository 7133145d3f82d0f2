//! Connection of the command line to an FM API endpoint, over TLS with this client's certificate if it has
//! joined. An endpoint's refusals end the command with the same exit codes as a manager's.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cxloe_daemon::NodeIdentity;
use cxloe_daemon::command_line::{Exit, Failure};
use cxloe_fabric::Client;
use cxloe_fm::bytes::{Payload, WrongLength};
use cxloe_fm::client::ANSWER_TIMEOUT;
use cxloe_fm::client::{FmClient, FmClientError, Recipient, Response};
use cxloe_fm::component::BackgroundStatus;
use cxloe_fm::header::{Dialect, ReturnCode};
use cxloe_fm::opcode::Opcode;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::super::contact;

/// FM API client whose failures have the exit codes of the command line.
pub struct Endpoint(FmClient);

impl Endpoint {
    /// Connects to `address`, over TLS if `identity` names a certificate file.
    pub async fn connect(address: &str, dialect: Dialect, identity: Option<&Path>) -> Result<Self, Failure> {
        match identity {
            Some(identity) => Self::secured(address, dialect, identity).await,
            None => FmClient::connect(address, dialect).await.map(Self).map_err(failure),
        }
    }

    async fn secured(address: &str, dialect: Dialect, path: &Path) -> Result<Self, Failure> {
        let identity = NodeIdentity::read(path).map_err(Failure::failed)?;
        // The certificate is valid for 30 days, and is renewed only when it is used.
        if let Some(manager) = identity.manager() {
            let manager = Client::with(manager, identity.credentials()).map_err(Failure::usage)?;
            identity.renew_if_due(&manager).await;
        }
        let unreachable =
            |source| failure(FmClientError::Unreachable { address: address.to_owned(), source });
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(Failure::usage)?;
        let connector = TlsConnector::from(Arc::new(identity.credentials().tls()));
        let connected = async {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            connector.connect(name, stream).await
        };
        let stream = timeout(ANSWER_TIMEOUT, connected).await.map_err(std::io::Error::from);
        let stream = stream.and_then(|connected| connected).map_err(unreachable)?;
        Ok(Self(FmClient::over(stream, address, dialect)))
    }

    /// As [`FmClient::ask`], with failures mapped to exit codes.
    pub async fn ask<R: Payload>(
        &mut self,
        recipient: Recipient,
        opcode: Opcode,
        request: &impl Payload,
    ) -> Result<R, Failure> {
        self.0.ask(recipient, opcode, request).await.map_err(failure)
    }

    pub async fn ask_with<R>(
        &mut self,
        recipient: Recipient,
        opcode: Opcode,
        request: &[u8],
        read: impl Fn(&[u8]) -> Result<R, WrongLength>,
    ) -> Result<R, Failure> {
        self.0.ask_with(recipient, opcode, request, read).await.map_err(failure)
    }

    pub async fn background(&mut self) -> Result<BackgroundStatus, Failure> {
        self.0.background().await.map_err(failure)
    }

    pub async fn send(
        &mut self,
        recipient: Recipient,
        opcode: u16,
        payload: &[u8],
    ) -> Result<Response, Failure> {
        self.0.send(recipient, opcode, payload).await.map_err(failure)
    }
}

/// Path at which `gmm fm join` writes this client's certificate by default: in the folder of the saved
/// log-ins.
pub fn identity_default() -> PathBuf {
    contact::Logins::path().with_file_name("fm.identity")
}

fn failure(error: FmClientError) -> Failure {
    let exit = match &error {
        FmClientError::Unreachable { .. } => Exit::Unreachable,
        FmClientError::Broken { .. } | FmClientError::Protocol { .. } => Exit::Failed,
        FmClientError::Refused { code, .. } => match code {
            ReturnCode::Busy | ReturnCode::RetryRequired | ReturnCode::InvalidInput => Exit::Refused,
            ReturnCode::InvalidPayloadLength => Exit::Usage,
            _ => Exit::Failed,
        },
    };
    Failure::new(exit, error)
}
