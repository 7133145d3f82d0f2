//! Calls about logical devices: listing, binding and unbinding.

use reqwest::{Method, StatusCode};

use super::{Client, ClientError};
use crate::api::{Bind, LogicalDeviceStatus, Unbind};

/// Progress of an unbinding when the call returns.
#[derive(Debug, Clone, PartialEq)]
pub enum Unbound {
    /// The logical device is not bound any more, and its memory is zeroed.
    Free,
    /// The compute node has not yet released its regions, or memory is not yet zeroed; the manager continues without
    /// further calls.
    Unbinding(Box<LogicalDeviceStatus>),
}

impl Client {
    /// Lists every logical device that has capacity or is bound, by memory node and LD-ID.
    pub async fn logical_devices(&self) -> Result<Vec<LogicalDeviceStatus>, ClientError> {
        self.get("/v1/logical-devices", "list logical devices").await
    }

    /// Binds a logical device to a compute node, and waits up to `bind.wait_ms` for the region that is created on it. A
    /// region that is still `creating` when the wait ends becomes `active` without further calls.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found` (node, capacity), `wrong_state` (bound already, wrong kind of
    /// node), `bad_request` (LD, vPPB), `no_space`, `over_quota`, `node_refused` (the binding is undone).
    pub async fn bind(&self, bind: &Bind) -> Result<LogicalDeviceStatus, ClientError> {
        let asked = format!("bind memory node {} to compute node {}", bind.memory_node, bind.compute_node);
        self.call(Method::POST, "/v1/bindings", &asked, Some(bind), bind.wait_ms).await
    }

    /// Unbinds a logical device from its compute node, which loses every region with a part on it, and waits up to
    /// `unbind.wait_ms` for the memory to be zeroed.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found` (no such node, or not bound).
    pub async fn unbind(&self, unbind: &Unbind) -> Result<Unbound, ClientError> {
        let asked = format!("unbind LD {} of memory node {}", unbind.ld, unbind.memory_node);
        let (status, body) =
            self.exchange(Method::POST, "/v1/unbind", &asked, Some(unbind), unbind.wait_ms).await?;
        if status == StatusCode::NO_CONTENT {
            return Ok(Unbound::Free);
        }
        self.parse(&asked, &body).map(|device| Unbound::Unbinding(Box::new(device)))
    }
}
