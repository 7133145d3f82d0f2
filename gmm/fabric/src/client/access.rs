//! Calls about tokens, joining, and the client's own identity.

use reqwest::Method;

use super::{Client, ClientError};
use crate::api::{CreateToken, Join, Joined, Party, Renew, TokenCreated, TokenStatus, WhoAmI};

impl Client {
    /// Creates a token: `POST /v1/tokens`.
    pub async fn create_token(&self, token: &CreateToken) -> Result<TokenCreated, ClientError> {
        self.call(Method::POST, "/v1/tokens", "create a token", Some(token), 0).await
    }

    /// Lists the tokens that are not revoked, without their secrets.
    pub async fn tokens(&self) -> Result<Vec<TokenStatus>, ClientError> {
        self.get("/v1/tokens", "list tokens").await
    }

    /// Revokes the token of this id: it is invalid from the next request on.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found` if no token has this id.
    pub async fn revoke_token(&self, id: &str) -> Result<(), ClientError> {
        let path = format!("/v1/tokens/{}", super::events::url_encoded(id));
        let asked = format!("revoke token {id}");
        self.exchange(Method::DELETE, &path, &asked, None::<&()>, 0).await.map(drop)
    }

    /// Requests the admission of a node, with a join token or as an administrator.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `unauthenticated` or `forbidden` if the token does not allow it.
    pub async fn join(&self, join: &Join) -> Result<Joined, ClientError> {
        self.call(Method::POST, "/v1/join", &format!("let {} join", join.node), Some(join), 0).await
    }

    /// Requests a new certificate for the node that this client belongs to.
    pub async fn renew(&self, renew: &Renew) -> Result<Joined, ClientError> {
        self.call(Method::POST, "/v1/renew", "renew a certificate", Some(renew), 0).await
    }

    /// Revokes a node's access to the manager.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found` if the node has not joined.
    pub async fn revoke(&self, node: &Party) -> Result<(), ClientError> {
        self.exchange(Method::POST, "/v1/revoke", &format!("revoke {node}"), Some(node), 0).await.map(drop)
    }

    /// Returns the identity and rights that the manager assigns to this client.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `unauthenticated` if the manager cannot identify the client.
    pub async fn who_am_i(&self) -> Result<WhoAmI, ClientError> {
        self.get("/v1/whoami", "say who asks").await
    }
}
