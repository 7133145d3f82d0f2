//! Calls about tokens, joining, and who the client is.

use reqwest::Method;

use super::{Client, ClientError};
use crate::api::{CreateToken, Join, Joined, Party, Renew, TokenCreated, TokenStatus, WhoAmI};

impl Client {
    /// Makes a token.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn create_token(&self, token: &CreateToken) -> Result<TokenCreated, ClientError> {
        self.call(Method::POST, "/v1/tokens", "create a token", Some(token), 0).await
    }

    /// The tokens there are.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn tokens(&self) -> Result<Vec<TokenStatus>, ClientError> {
        self.get("/v1/tokens", "list tokens").await
    }

    /// Has a token not taken any more, by its id.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found` when there is none.
    pub async fn revoke_token(&self, id: &str) -> Result<(), ClientError> {
        let path = format!("/v1/tokens/{}", super::events::url_encoded(id));
        let asked = format!("revoke token {id}");
        self.exchange(Method::DELETE, &path, &asked, None::<&()>, 0).await.map(drop)
    }

    /// Has a node join.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `unauthenticated` or `forbidden` where the token does not allow it.
    pub async fn join(&self, join: &Join) -> Result<Joined, ClientError> {
        self.call(Method::POST, "/v1/join", &format!("let {} join", join.node), Some(join), 0).await
    }

    /// A new certificate for the node that this client speaks for.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn renew(&self, renew: &Renew) -> Result<Joined, ClientError> {
        self.call(Method::POST, "/v1/renew", "renew a certificate", Some(renew), 0).await
    }

    /// Has a node not speak at the manager any more.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found` when it has not joined.
    pub async fn revoke(&self, node: &Party) -> Result<(), ClientError> {
        self.exchange(Method::POST, "/v1/revoke", &format!("revoke {node}"), Some(node), 0).await.map(drop)
    }

    /// Who this client is to the manager.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `unauthenticated` when it is not known.
    pub async fn who_am_i(&self) -> Result<WhoAmI, ClientError> {
        self.get("/v1/whoami", "say who asks").await
    }
}
