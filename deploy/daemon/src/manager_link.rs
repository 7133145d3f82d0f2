//! A node's link to the manager: a thread with a small runtime of its own that registers the node, keeps the
//! registration, and retries forever while the manager is unreachable. The data path never waits for the link. If
//! several managers share a store, the link goes to the leader, and follows a change of leader.
//!
//! The node passes in an async function that registers the node, executes the manager's commands, and returns only on
//! failure. The thread pauses, retries, stops on request, and logs each change of the connection's state once.

use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use tokio::sync::watch;
use tokio::time::sleep;

use super::{Backoff, NodeIdentity, StateError, Stop, Stopped};
use cxloe_fabric::api::{ErrorCode, NotFollowed};
use cxloe_fabric::follow::Halt;
use cxloe_fabric::{Client, ClientError};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connection {
    Connecting,
    /// Registered; the node executes the manager's commands.
    Registered,
    /// The manager is unreachable, or the node has rejected it, for this reason. The node continues with its present
    /// state.
    Away(String),
}

/// Failures that prevent the link from starting; later ones are retried.
#[derive(Debug, thiserror::Error)]
pub enum ManagerLinkError {
    /// The URL is not valid.
    #[error(transparent)]
    Url(ClientError),
    #[error("cannot start the thread of the manager connection: {0}")]
    Thread(std::io::Error),
}

#[derive(Debug, thiserror::Error)]
pub enum RegistrationEnd {
    /// The manager is unreachable, or refused.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The node's state file cannot be read or written.
    #[error(transparent)]
    State(#[from] StateError),
    /// The node itself cannot execute the commands of the manager, for example because it cannot store a change.
    #[error(transparent)]
    Node(Box<dyn std::error::Error + Send + Sync>),
    /// Another manager leads, or the same one was restarted: the node has to check again whether it may follow.
    #[error("another manager leads")]
    Anew,
    /// The link is being stopped.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

impl RegistrationEnd {
    pub fn node(reason: impl std::error::Error + Send + Sync + 'static) -> Self {
        RegistrationEnd::Node(Box::new(reason))
    }
}

/// Context of a registration, which the node's function gets.
#[derive(Debug)]
pub struct Contact {
    client: Client,
    backoff: Backoff,
    connection_sender: watch::Sender<Connection>,
    stop: Arc<Stop>,
    /// Error in which the manager reports that its store lacks changes that the node has seen.
    stale: Option<ClientError>,
}

impl Contact {
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    pub fn stop(&self) -> &Arc<Stop> {
        &self.stop
    }

    /// Waits for the manager's answer, or for the link to be stopped.
    pub async fn ask<T>(
        &self,
        question: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, RegistrationEnd> {
        Ok(self.stop.or(question).await??)
    }

    /// Waits for the answer to a registration. Returns `None` if the manager reports that its store lacks changes that
    /// the node has seen.
    pub async fn register<T>(
        &mut self,
        question: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<Option<T>, RegistrationEnd> {
        self.stale = None;
        match self.ask(question).await {
            Ok(answer) => Ok(Some(answer)),
            Err(RegistrationEnd::Client(error)) if error.code() == Some(ErrorCode::StaleManager) => {
                self.stale = Some(error);
                Ok(None)
            }
            Err(reason) => Err(reason),
        }
    }

    /// Reports to the manager that the node does not execute its commands.
    pub async fn not_followed(&self, body: &NotFollowed) -> Result<(), RegistrationEnd> {
        if let Err(error) = self.stop.or(self.client.not_followed(body)).await? {
            tracing::debug!(%error, "the manager did not record that this node does not follow");
        }
        Ok(())
    }

    /// End of a registration because of `halt`. If the manager reported that its store is stale, the
    /// manager's error is used, because its text has advice.
    pub fn halted<R: Error + Send + Sync + 'static>(&mut self, halt: Halt<R>) -> RegistrationEnd {
        match (halt, self.stale.take()) {
            (Halt::Anew, _) => RegistrationEnd::Anew,
            (Halt::Stale, Some(error)) => error.into(),
            (halt, _) => RegistrationEnd::node(halt),
        }
    }

    /// Marks the node as registered: it has executed all commands sent so far. Returns true if the state has changed.
    pub fn registered(&mut self) -> bool {
        self.backoff.reset();
        self.connection_sender.send_replace(Connection::Registered) != Connection::Registered
    }

    fn away(&self, reason: String) {
        let url = self.client.url();
        // A reason is logged as a warning only when it differs from the reason before.
        match self.connection_sender.send_replace(Connection::Away(reason.clone())) {
            Connection::Away(old) if old == reason => tracing::debug!(%url, %reason, "still no manager"),
            _ => tracing::warn!(%url, %reason, "no manager reachable; existing mappings are still served"),
        }
    }

    /// Registers `node` again after each end of a registration, until the link is stopped.
    async fn keep<N>(
        mut self,
        node: &mut N,
        registration: impl AsyncFn(&mut N, &mut Contact) -> Result<Infallible, RegistrationEnd>,
    ) {
        loop {
            let Err(reason) = registration(node, &mut self).await;
            match reason {
                RegistrationEnd::Stopped(Stopped) => return,
                // A manager that was restarted or has lost the registration is no error: the node registers again.
                RegistrationEnd::Client(error) if error.code() == Some(ErrorCode::NotRegistered) => {
                    tracing::info!(url = %self.client.url(), "the manager asks this node to register again");
                }
                RegistrationEnd::Anew => {
                    tracing::info!(url = %self.client.url(), "another manager leads, or it was started anew: registering again");
                }
                reason => self.away(reason.to_string()),
            }
            let pause = self.backoff.pause();
            if self.stop.or(sleep(pause)).await.is_err() {
                return;
            }
        }
    }
}

/// Running link to the manager. It owns the node `N` until it stops; dropping the link stops it.
pub struct ManagerLink<N> {
    connection: watch::Receiver<Connection>,
    stop: Arc<Stop>,
    thread: Option<JoinHandle<N>>,
}

impl<N: Send + 'static> ManagerLink<N> {
    /// Starts a link to the manager at `url`, or to several managers at URLs separated by commas. Returns at
    /// once; the manager need not be reachable. `registration` is called for each registration of `node`. The
    /// node authenticates itself with `identity`.
    pub fn start(
        url: &str,
        identity: Option<Arc<NodeIdentity>>,
        backoff: Backoff,
        mut node: N,
        registration: impl AsyncFn(&mut N, &mut Contact) -> Result<Infallible, RegistrationEnd> + Send + 'static,
    ) -> Result<Self, ManagerLinkError> {
        let credentials = identity.as_ref().map(|identity| identity.credentials()).unwrap_or_default();
        let client = Client::with(url, credentials).map_err(ManagerLinkError::Url)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(ManagerLinkError::Thread)?;
        let (connection_sender, connection) = watch::channel(Connection::Connecting);
        let stop = Arc::new(Stop::default());
        let contact = Contact { client, backoff, connection_sender, stop: Arc::clone(&stop), stale: None };
        let thread = thread::Builder::new().name("manager-link".into()).spawn(move || {
            let client = contact.client();
            let renewal = async {
                match &identity {
                    // A connection over a Unix socket uses no certificate, so none is renewed.
                    Some(identity) if !client.url().starts_with("unix:") => {
                        identity.keep_renewed(&client).await
                    }
                    _ => std::future::pending().await,
                }
            };
            runtime.block_on(async {
                tokio::select! {
                    () = contact.keep(&mut node, registration) => {}
                    never = renewal => match never {},
                }
            });
            node
        });
        let thread = Some(thread.map_err(ManagerLinkError::Thread)?);
        Ok(ManagerLink { connection, stop, thread })
    }
}

impl<N> ManagerLink<N> {
    pub fn connection(&self) -> Connection {
        self.connection.borrow().clone()
    }

    pub fn watch(&self) -> watch::Receiver<Connection> {
        self.connection.clone()
    }

    /// Stops the link and returns the node.
    ///
    /// # Panics
    /// If the registration panicked.
    pub fn stop(mut self) -> N {
        self.stop.set();
        let thread = self.thread.take().expect("only stop takes it");
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl<N> fmt::Debug for ManagerLink<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagerLink").field("connection", &self.connection()).finish_non_exhaustive()
    }
}

impl<N> Drop for ManagerLink<N> {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.stop.set();
            // A panic of the thread is in the log already.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    fn start(
        registration: impl AsyncFn(&mut u32, &mut Contact) -> Result<Infallible, RegistrationEnd> + Send + 'static,
    ) -> ManagerLink<u32> {
        let backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(2));
        ManagerLink::start("http://127.0.0.1:1", None, backoff, 0, registration).unwrap()
    }

    async fn until(link: &ManagerLink<u32>, what: impl FnMut(&Connection) -> bool) -> Connection {
        let mut changes = link.watch();
        let found = timeout(LIMIT, changes.wait_for(what)).await.expect("in time").expect("the link lives");
        found.clone()
    }

    #[tokio::test]
    async fn a_broken_registration_is_retried_until_it_succeeds() {
        let link = start(async |tries, contact| {
            *tries += 1;
            if *tries < 5 {
                return Err(RegistrationEnd::node(std::io::Error::other(format!("try {tries}"))));
            }
            assert!(contact.registered(), "news the first time");
            assert!(!contact.registered(), "and none the second");
            Err(contact.stop().or(std::future::pending::<()>()).await.unwrap_err().into())
        });
        until(&link, |connection| *connection == Connection::Registered).await;
        assert_eq!(link.connection(), Connection::Registered);
        assert_eq!(link.stop(), 5);
    }

    #[tokio::test]
    async fn a_manager_that_is_away_is_named_and_waiting_for_it_can_be_ended() {
        let link = start(async |_, contact| {
            let client = contact.client();
            contact.ask(client.health()).await?;
            panic!("nobody listens on port 1");
        });
        let away = until(&link, |connection| matches!(connection, Connection::Away(_))).await;
        assert!(matches!(&away, Connection::Away(why) if why.contains("127.0.0.1:1")), "{away:?}");
        drop(link);
    }

    #[test]
    fn a_url_that_cannot_be_one_is_refused() {
        let never = async |_: &mut u32, _: &mut Contact| Err(RegistrationEnd::Stopped(Stopped));
        let error = ManagerLink::start("gopher://m", None, Backoff::default(), 0, never).unwrap_err();
        assert!(matches!(error, ManagerLinkError::Url(_)), "{error}");
    }
}
