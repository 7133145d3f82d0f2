//! The time during which this process leads: the manager over its loaded store, the routes to it, and whatever else only a
//! leader runs. With a store of its own a process leads from start to end; with etcd it campaigns, leads while it can renew
//! its lease, steps down, and campaigns again.
//!
//! ```text
//!   campaign --won--> load, take over --> lead ... lease lost, store failed, or told to end --> end --> campaign
//! ```

use std::time::Duration;

use axum::Router;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::clock::Clock;
use super::config::Config;
use super::core::{Core, CoreThread};
use super::fm::{GuardedFm, ManagerFm};
use super::identify::Door;
use super::leader_election::LeaderElection;
use super::{ServerError, routes};
use crate::manager::{Manager, Options};
use crate::store::etcd::{Attempt, Campaign, Leadership};
use crate::store::{EtcdPlace, EtcdStore, Store, StoreError};
use cxloe_fm::door::Open;
use cxloe_fm::listener::{FmConfig, FmListener};

/// Pause before the leader is looked for again.
const LOOK_PAUSE: Duration = Duration::from_millis(250);
/// How often a thread that may end by itself is looked at.
const CORE_PAUSE: Duration = Duration::from_millis(100);

/// A manager that leads. Dropping it without [`LeaderTerm::end`] breaks everything off.
pub struct LeaderTerm {
    core: Core,
    thread: CoreThread,
    /// What only a leader runs; aborted when the term ends.
    services: JoinSet<()>,
}

impl LeaderTerm {
    /// Loads the store and takes over its state. Blocks while it does.
    ///
    /// # Errors
    /// [`ServerError::Store`] and [`ServerError::Thread`].
    pub fn begin(mut store: Box<dyn Store>, config: &Config) -> Result<Self, ServerError> {
        let state = store.load()?;
        // The monotonic clock of another run says nothing about the wall clock of this one: go on after its last event.
        let clock = Clock::start().not_before(state.events.back().map_or(0, |event| event.time_ms));
        let options = Options {
            node_timeout_ms: u64::try_from(config.node_timeout.as_millis()).unwrap_or(u64::MAX),
            initialisation: config.initialisation,
            declared: config.declared.clone(),
            new_fabric: rand::random_range(1..=u64::MAX),
            run: rand::random_range(1..=u64::MAX),
            anew: config.new_fabric,
        };
        let place = config.store.to_string();
        let (manager, outcome) = Manager::take_over(state, options, clock.now_ms())
            .map_err(|source| StoreError::Contradiction { place, source })?;
        store.commit(&outcome.changes)?;
        tracing::info!(
            store = %config.store, term = manager.watermark().term, regions = manager.state().regions.len(),
            "took over the store"
        );
        let (core, thread) = Core::start(manager, store, clock).map_err(ServerError::Thread)?;
        Ok(Self { core, thread, services: JoinSet::new() })
    }

    /// Starts what only a leader runs besides the REST interface: each a task of `services`, which is aborted when the
    /// term ends, and with it whatever the task has opened.
    ///
    /// # Errors
    /// [`ServerError`] when one cannot be started.
    pub async fn serve(&mut self, config: &Config, door: &Door) -> Result<(), ServerError> {
        if let Some(fm) = &config.fm {
            let fabric = self.core.look(|manager| manager.state().meta.fabric).await.unwrap_or_default();
            let fm = FmConfig { fabric, ..fm.clone() };
            let answers = ManagerFm::new(self.core.clone());
            let listener = match door.tls().filter(|_| !config.fm_insecure) {
                Some(tls) => FmListener::start(fm, GuardedFm::new(tls.clone(), answers)).await?,
                None => {
                    tracing::warn!(
                        "the FM API is served without rights: whoever reaches it may do everything"
                    );
                    FmListener::start(fm, Open(answers)).await?
                }
            };
            for (switch, address) in listener.addresses().iter().enumerate() {
                tracing::info!(switch, %address, "FM API of switch {switch} on {address}");
            }
            self.services.spawn(listener.serve());
        }
        Ok(())
    }

    /// The core, for those who watch it.
    pub fn core(&self) -> Core {
        self.core.clone()
    }

    /// The REST interface; `url` is where this process says it serves.
    pub fn router(&self, url: &str, door: Door) -> Router {
        routes::router(self.core.clone(), url, door)
    }

    /// Returns when the core has ended by itself, which it does when the store fails.
    pub async fn failed(&self) {
        while !self.thread.is_finished() {
            tokio::time::sleep(CORE_PAUSE).await;
        }
    }

    /// Ends what runs, and closes the store.
    ///
    /// # Errors
    /// [`StoreError`] when the store had failed.
    pub async fn end(mut self) -> Result<(), StoreError> {
        self.services.shutdown().await;
        drop(self.core);
        let thread = self.thread;
        match tokio::task::spawn_blocking(|| thread.end()).await {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        }
    }
}

/// Leads, as it does already, with a store of its own until told to end.
///
/// # Errors
/// [`ServerError::Store`] when the store failed.
pub async fn alone(
    term: LeaderTerm,
    election: LeaderElection,
    mut stop: watch::Receiver<bool>,
) -> Result<(), ServerError> {
    tokio::select! {
        () = told_to_end(&mut stop) => {}
        () = term.failed() => {}
    }
    election.wait("it is ending");
    Ok(term.end().await?)
}

/// Takes part in the managers of `place` until told to end: leads or follows.
///
/// # Errors
/// [`ServerError`] when this process cannot go on, whoever leads.
pub async fn among(
    config: Config,
    place: EtcdPlace,
    election: LeaderElection,
    url: String,
    mut stop: watch::Receiver<bool>,
    door: Door,
) -> Result<(), ServerError> {
    let unusable = |source| StoreError::Etcd { place: place.to_string(), source };
    let campaign = Campaign::new(&place, &url, config.lease_ttl_s).map_err(unusable)?;
    loop {
        let attempt = tokio::select! {
            attempt = campaign.attempt() => attempt,
            () = told_to_end(&mut stop) => return Ok(()),
        };
        match attempt {
            Ok(Attempt::Won(leadership)) => {
                let led = lead(&config, &place, &leadership, &election, (&url, &door), &mut stop).await;
                election.wait("this manager has just given up the lead");
                if let Err(reason) = leadership.give_back().await {
                    tracing::info!(%reason, "the lead cannot be given back; it ends by itself");
                }
                led?;
            }
            Ok(Attempt::Led(leader)) => {
                if election.follow(&leader) {
                    tracing::info!(%leader, "another manager leads");
                }
            }
            Err(error) => {
                let reason = unusable(error).to_string();
                if election.wait(&reason) {
                    tracing::warn!(%reason, "cannot take part; trying again");
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_PAUSE) => {}
            () = told_to_end(&mut stop) => return Ok(()),
        }
    }
}

/// Leads until the lead is lost, the store fails, or this process is told to end. When this returns, nothing of the term
/// runs any more.
async fn lead(
    config: &Config,
    place: &EtcdPlace,
    leadership: &Leadership,
    election: &LeaderElection,
    (url, door): (&str, &Door),
    stop: &mut watch::Receiver<bool>,
) -> Result<(), ServerError> {
    let lease = leadership.token().lease().clone();
    let over = async {
        tokio::select! {
            reason = leadership.keep() => tracing::warn!(%reason, "the lead is lost; stepping down"),
            () = told_to_end(stop) => {}
        }
    };
    tokio::pin!(over);
    let mut begun = {
        let (config, place, seal) = (config.clone(), place.clone(), leadership.token());
        tokio::task::spawn_blocking(move || {
            let store = EtcdStore::open(&place, seal)?;
            LeaderTerm::begin(Box::new(store), &config)
        })
    };
    let term = tokio::select! {
        begun = &mut begun => begun,
        () = &mut over => {
            // What loads the store gives up when it may not ask any more.
            lease.end();
            begun.await
        }
    };
    let begun = term.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
    let mut term = match begun {
        Ok(term) => term,
        Err(ServerError::Store(reason)) if reason.is_passing() => {
            tracing::warn!(%reason, "cannot take over the store; trying again");
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    if lease.holds() {
        if let Err(error) = term.serve(config, door).await {
            drop(term.end().await);
            return Err(error);
        }
        election.lead(term.router(url, door.clone()), lease.clone());
        election.show(term.core());
        tracing::info!("this manager leads");
        tokio::select! {
            () = &mut over => {}
            () = term.failed() => {}
        }
        election.wait("this manager has just given up the lead");
    }
    match term.end().await {
        Err(reason) if reason.is_passing() => {
            tracing::warn!(%reason, "stepping down");
            Ok(())
        }
        ended => Ok(ended?),
    }
}

/// Returns once this process is told to end, or nobody is left who could tell.
async fn told_to_end(stop: &mut watch::Receiver<bool>) {
    drop(stop.wait_for(|stop| *stop).await);
}
