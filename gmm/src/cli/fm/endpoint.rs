//! An FM API endpoint as the command line asks it: what it refuses becomes an exit code, the same one as in the other
//! commands for the same reason.

use cxloe_daemon::command_line::{Exit, Failure};
use cxloe_fm::bytes::{Payload, WrongLength};
use cxloe_fm::client::{FmClient, FmClientError, Recipient, Response};
use cxloe_fm::component::BackgroundStatus;
use cxloe_fm::header::{Dialect, ReturnCode};
use cxloe_fm::opcode::Opcode;

/// A connected endpoint.
pub struct Endpoint(FmClient);

impl Endpoint {
    /// Connects to `address`.
    pub async fn connect(address: &str, dialect: Dialect) -> Result<Self, Failure> {
        FmClient::connect(address, dialect).await.map(Self).map_err(failure)
    }

    /// As [`FmClient::ask`].
    pub async fn ask<R: Payload>(
        &mut self,
        recipient: Recipient,
        opcode: Opcode,
        request: &impl Payload,
    ) -> Result<R, Failure> {
        self.0.ask(recipient, opcode, request).await.map_err(failure)
    }

    /// As [`FmClient::ask_with`].
    pub async fn ask_with<R>(
        &mut self,
        recipient: Recipient,
        opcode: Opcode,
        request: &[u8],
        read: impl Fn(&[u8]) -> Result<R, WrongLength>,
    ) -> Result<R, Failure> {
        self.0.ask_with(recipient, opcode, request, read).await.map_err(failure)
    }

    /// As [`FmClient::background`].
    pub async fn background(&mut self) -> Result<BackgroundStatus, Failure> {
        self.0.background().await.map_err(failure)
    }

    /// As [`FmClient::send`].
    pub async fn send(
        &mut self,
        recipient: Recipient,
        opcode: u16,
        payload: &[u8],
    ) -> Result<Response, Failure> {
        self.0.send(recipient, opcode, payload).await.map_err(failure)
    }
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
