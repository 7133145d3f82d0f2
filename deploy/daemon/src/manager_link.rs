//! A node's link to the manager: a thread with a small runtime of its own that registers the node, keeps the
//! registration, and starts over for ever when the manager is away. The data path never waits for it. Where several
//! managers share a store, the link goes to the one that leads, and follows when another one does.
//!
//! What registering means is the node's to know: it brings an async function that registers, follows what the manager
//! says, and returns only when something breaks. The thread around it pauses, tries again, stops when it is told to,
//! and logs each change of the connection's state once, however often it is tried meanwhile.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use tokio::sync::watch;
use tokio::time::sleep;

use super::{Backoff, NodeIdentity, StateError, Stop, Stopped};
use cxloe_fabric::api::ErrorCode;
use cxloe_fabric::{Client, ClientError};

/// How things stand with the manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connection {
    /// Not heard of yet.
    Connecting,
    /// Registered; the node does what it says.
    Registered,
    /// Not reachable or not to be followed, for this reason; the node goes on with what it has.
    Away(String),
}

/// Why the link could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ManagerLinkError {
    /// The URL cannot be one.
    #[error(transparent)]
    Url(ClientError),
    /// No thread.
    #[error("cannot start the thread that talks to the manager: {0}")]
    Thread(std::io::Error),
}

/// What ended a registration.
#[derive(Debug, thiserror::Error)]
pub enum Break {
    /// The manager could not be asked, or refused.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// What the node has to remember could not be kept.
    #[error(transparent)]
    State(#[from] StateError),
    /// The node cannot follow, for a reason of its own.
    #[error(transparent)]
    Node(Box<dyn std::error::Error + Send + Sync>),
    /// Another manager leads since the node registered, or the same one was started anew: the node has to see whether it
    /// can follow.
    #[error("another manager leads")]
    Anew,
    /// The link is to end.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

impl Break {
    /// The node cannot follow for this reason.
    pub fn node(reason: impl std::error::Error + Send + Sync + 'static) -> Self {
        Break::Node(Box::new(reason))
    }
}

/// What a registration has to do with: the manager, whom to tell of success, and when to stop.
#[derive(Debug)]
pub struct Contact {
    client: Client,
    backoff: Backoff,
    tell: watch::Sender<Connection>,
    stop: Arc<Stop>,
}

impl Contact {
    /// The manager.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Set when the link is to end.
    pub fn stop(&self) -> &Arc<Stop> {
        &self.stop
    }

    /// The manager's answer, unless the link is to end before it comes.
    ///
    /// # Errors
    /// [`Break::Client`] and [`Break::Stopped`].
    pub async fn ask<T>(&self, question: impl Future<Output = Result<T, ClientError>>) -> Result<T, Break> {
        Ok(self.stop.or(question).await??)
    }

    /// The node is registered and has done what the manager said so far. Returns whether that is news.
    pub fn registered(&mut self) -> bool {
        self.backoff.reset();
        self.tell.send_replace(Connection::Registered) != Connection::Registered
    }

    fn away(&self, reason: String) {
        let url = self.client.url();
        match self.tell.send_replace(Connection::Away(reason.clone())) {
            Connection::Away(old) if old == reason => tracing::debug!(%url, %reason, "still no manager"),
            _ => tracing::warn!(%url, %reason, "no manager; what this node has goes on being served"),
        }
    }

    /// Registers `node` again and again until the link is to end.
    async fn keep<N>(
        mut self,
        node: &mut N,
        registration: impl AsyncFn(&mut N, &mut Contact) -> Result<Infallible, Break>,
    ) {
        loop {
            let Err(reason) = registration(node, &mut self).await;
            match reason {
                Break::Stopped(Stopped) => return,
                // The manager restarted or forgot this node: nothing is wrong, it only has to be told again.
                Break::Client(error) if error.code() == Some(ErrorCode::NotRegistered) => {
                    tracing::info!(url = %self.client.url(), "the manager asks this node to register again");
                }
                Break::Anew => {
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

/// A running link to the manager, which has the node `N` until it ends; it ends when this is dropped.
pub struct ManagerLink<N> {
    connection: watch::Receiver<Connection>,
    stop: Arc<Stop>,
    thread: Option<JoinHandle<N>>,
}

impl<N: Send + 'static> ManagerLink<N> {
    /// Starts a link to the manager at `url`, or to several managers at URLs separated by commas. Returns at once; the
    /// manager need not be there. `registration` is called for each registration of `node`, which shows `identity`.
    ///
    /// # Errors
    /// Any [`ManagerLinkError`].
    pub fn start(
        url: &str,
        identity: Option<Arc<NodeIdentity>>,
        backoff: Backoff,
        mut node: N,
        registration: impl AsyncFn(&mut N, &mut Contact) -> Result<Infallible, Break> + Send + 'static,
    ) -> Result<Self, ManagerLinkError> {
        let credentials = identity.as_ref().map(|identity| identity.credentials()).unwrap_or_default();
        let client = Client::with(url, credentials).map_err(ManagerLinkError::Url)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(ManagerLinkError::Thread)?;
        let (tell, connection) = watch::channel(Connection::Connecting);
        let stop = Arc::new(Stop::default());
        let contact = Contact { client, backoff, tell, stop: Arc::clone(&stop) };
        let thread = thread::Builder::new().name("manager-link".into()).spawn(move || {
            let client = contact.client();
            let renewal = async {
                match &identity {
                    Some(identity) => identity.keep_renewed(&client).await,
                    None => std::future::pending().await,
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
    /// How things stand.
    pub fn connection(&self) -> Connection {
        self.connection.borrow().clone()
    }

    /// A receiver that hears of every change of [`connection`](Self::connection).
    pub fn watch(&self) -> watch::Receiver<Connection> {
        self.connection.clone()
    }

    /// Ends the link and returns the node as it is then.
    ///
    /// # Panics
    /// If the registration did.
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
        registration: impl AsyncFn(&mut u32, &mut Contact) -> Result<Infallible, Break> + Send + 'static,
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
    async fn what_breaks_is_tried_again_until_it_holds() {
        let link = start(async |tries, contact| {
            *tries += 1;
            if *tries < 5 {
                return Err(Break::node(std::io::Error::other(format!("try {tries}"))));
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
        let never = async |_: &mut u32, _: &mut Contact| Err(Break::Stopped(Stopped));
        let error = ManagerLink::start("gopher://m", None, Backoff::default(), 0, never).unwrap_err();
        assert!(matches!(error, ManagerLinkError::Url(_)), "{error}");
    }
}
