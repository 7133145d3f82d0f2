//! Calls that read the event log and the manager's health.

use reqwest::Method;

use super::{Client, ClientError};
use crate::api::{Events, EventsQuery, ManagerHealth};

impl Client {
    /// Returns the events that `query` selects; waits up to `query.wait_ms` for the first.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `bad_request` for an unknown kind.
    pub async fn events(&self, query: EventsQuery) -> Result<Events, ClientError> {
        let EventsQuery { after, limit, wait_ms, since_ms, kind, node, who, region } = query;
        let mut path = format!("/v1/events?after={after}&wait_ms={wait_ms}");
        let optional = [
            ("limit", limit.map(|limit| limit.to_string())),
            ("since_ms", since_ms.map(|since_ms| since_ms.to_string())),
            ("kind", kind),
            ("node", node.map(|node| node.to_string())),
            ("who", who),
            ("region", region.map(|region| region.to_string())),
        ];
        for (key, value) in optional {
            if let Some(value) = value {
                let value: String = url_encoded(&value);
                path.push_str(&format!("&{key}={value}"));
            }
        }
        self.call(Method::GET, &path, "read events", None::<&()>, wait_ms).await
    }

    /// Returns the manager's health, and the numbers of its nodes and regions.
    pub async fn health(&self) -> Result<ManagerHealth, ClientError> {
        self.get("/v1/health", "tell its health").await
    }
}

/// Percent-encodes a text for a query.
pub(super) fn url_encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~,:".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
