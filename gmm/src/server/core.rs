//! The one thread that owns the manager and the store. Jobs come over a bounded queue; those that wait together are
//! carried out one after the other, stored with one commit, and answered only after it.
//!
//! ```text
//!   routes --(job)--> queue --> apply, apply, apply --> one commit --> answers, and long polls whose topic was touched
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::clock::Clock;
use super::topics::{Topic, Topics, Watch};
use crate::manager::{Change, Command, Manager, ManagerError, Outcome};
use crate::rights::{Caller, Denied, Directory, Evidence, Refusals, permit};
use crate::store::{Store, StoreError};

/// Jobs waiting for the thread; more are turned away. As many as nodes may ask at once when a manager is back.
const QUEUE_MAX: usize = 16_384;
/// Jobs stored with one commit at most.
const BATCH_MAX: usize = 256;
/// How long the thread sleeps at most when no node can fall silent.
const IDLE: Duration = Duration::from_secs(1);
/// Pauses before a store is tried again that could not be written: the first, and the longest.
const THAW_PAUSE_MIN: Duration = Duration::from_millis(500);
const THAW_PAUSE_MAX: Duration = Duration::from_secs(8);

/// Why the core did not carry out a job.
#[derive(Debug, thiserror::Error)]
pub enum CoreError {
    /// The manager refused.
    #[error(transparent)]
    Manager(#[from] ManagerError),
    /// Who asked may not.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// Too many jobs are waiting.
    #[error("the manager has {QUEUE_MAX} requests waiting")]
    Busy,
    /// The store could not be written.
    #[error("it was not done: {0}")]
    Unwritable(String),
    /// The thread ended: the store failed, or the process is ending.
    #[error("the manager is ending")]
    Ended,
}

/// Called with the manager when it is a job's turn; returns the answer to be given after the commit.
type Work = Box<dyn FnOnce(&mut Turn<'_>) -> Answer + Send>;
/// Sends the answer.
type Answer = Box<dyn FnOnce() + Send>;

/// What a job works with.
struct Turn<'a> {
    manager: &'a mut Manager,
    now_ms: u64,
    changes: &'a mut Vec<Change>,
}

/// The way to the thread. Cheap to clone.
#[derive(Clone)]
pub struct Core {
    jobs: SyncSender<Work>,
    topics: Arc<Topics>,
    /// Why the store cannot be written, when it cannot.
    unwritable: Unwritable,
    /// Who may come in, as far as that is stored.
    directory: Arc<RwLock<Directory>>,
    /// Who was refused lately.
    refusals: Arc<Mutex<Refusals>>,
    clock: Clock,
}

/// Why the store cannot be written, between the thread and those who wait for its answers.
type Unwritable = Arc<Mutex<Option<String>>>;

/// The thread itself.
pub struct CoreThread {
    thread: JoinHandle<Result<(), StoreError>>,
    jobs: SyncSender<Work>,
    end: Arc<AtomicBool>,
}

impl Core {
    /// Starts the thread over a manager whose taking over is stored already.
    pub fn start(
        manager: Manager,
        store: Box<dyn Store>,
        clock: Clock,
    ) -> std::io::Result<(Self, CoreThread)> {
        let (jobs, queue) = sync_channel(QUEUE_MAX);
        let topics = Arc::new(Topics::default());
        let publish = Arc::clone(&topics);
        let end = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&end);
        let unwritable = Unwritable::default();
        let tell = Arc::clone(&unwritable);
        let directory = Arc::new(RwLock::new(Directory::new(manager.state())));
        let followed = Arc::clone(&directory);
        let thread = std::thread::Builder::new().name("gmm-core".to_owned()).spawn(move || {
            let result = run(
                manager,
                store,
                clock,
                &queue,
                &Told { topics: &publish, directory: &followed, unwritable: &tell },
                &told,
            );
            publish.close();
            result
        })?;
        Ok((
            Self { jobs: jobs.clone(), topics, unwritable, directory, refusals: Arc::default(), clock },
            CoreThread { thread, jobs, end },
        ))
    }

    /// Carries out a command for `caller`, if they may give it, and returns what `view` sees right after it.
    ///
    /// # Errors
    /// [`CoreError`]; [`CoreError::Manager`] when the manager refuses the command, [`CoreError::Denied`] when they may not.
    pub async fn apply<T: Send + 'static>(
        &self,
        caller: &Caller,
        command: Command,
        view: impl FnOnce(&Manager, &Outcome) -> T + Send + 'static,
    ) -> Result<T, CoreError> {
        let caller = caller.clone();
        self.job(move |turn| {
            permit(turn.manager, &caller, &command)?;
            let outcome = turn.manager.apply_for(&caller.who, command, turn.now_ms)?;
            let seen = view(turn.manager, &outcome);
            turn.changes.extend(outcome.changes);
            Ok::<T, CoreError>(seen)
        })
        .await?
    }

    /// Returns what `view` sees.
    ///
    /// # Errors
    /// [`CoreError::Busy`] or [`CoreError::Ended`].
    pub async fn look<T: Send + 'static>(
        &self,
        view: impl FnOnce(&Manager) -> T + Send + 'static,
    ) -> Result<T, CoreError> {
        self.job(move |turn| view(turn.manager)).await
    }

    /// Carries out `work` on the manager, at the time given, and returns what it does once the changes it adds are stored.
    ///
    /// # Errors
    /// [`CoreError::Busy`] or [`CoreError::Ended`].
    pub async fn turn<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Manager, u64, &mut Vec<Change>) -> T + Send + 'static,
    ) -> Result<T, CoreError> {
        self.job(move |turn| work(turn.manager, turn.now_ms, turn.changes)).await
    }

    /// Hands over a command whose outcome nobody waits for. Lost when too many jobs wait.
    pub fn post(&self, command: Command) {
        let work: Work = Box::new(move |turn| {
            if let Ok(outcome) = turn.manager.apply(command, turn.now_ms) {
                turn.changes.extend(outcome.changes);
            }
            Box::new(|| ())
        });
        drop(self.jobs.try_send(work));
    }

    /// `who` was refused `what`. The event log has an entry of it, if there is one left for such.
    pub fn refused(&self, who: String, what: String) {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(attempts) = refusals.refused(&who, self.clock.now_ms()) else { return };
        drop(refusals);
        let work: Work = Box::new(move |turn| {
            let command = Command::NoteRefused(what, attempts);
            if let Ok(outcome) = turn.manager.apply_for(&who, command, turn.now_ms) {
                turn.changes.extend(outcome.changes);
            }
            Box::new(|| ())
        });
        drop(self.jobs.try_send(work));
    }

    /// Waits for a topic: what is stored from here on is not missed.
    pub fn watch(&self, topic: Topic) -> Watch {
        self.topics.watch(topic)
    }

    /// Who asks.
    pub fn caller(&self, evidence: &Evidence<'_>) -> Caller {
        self.directory.read().unwrap_or_else(PoisonError::into_inner).caller(evidence, self.clock.now_ms())
    }

    /// Begins a browser's session for the bearer of a token; returns who that is, and when it ends.
    pub fn log_in(&self, token: &str, secret: &str) -> Option<(Caller, u64)> {
        let mut directory = self.directory.write().unwrap_or_else(PoisonError::into_inner);
        directory.log_in(token, secret, self.clock.now_ms())
    }

    /// Ends a browser's session.
    pub fn log_out(&self, secret: &str) {
        self.directory.write().unwrap_or_else(PoisonError::into_inner).log_out(secret);
    }

    /// The time by the manager's clock, in milliseconds since the Unix epoch.
    pub fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// Why a job has no answer.
    fn unanswered(&self) -> CoreError {
        let unwritable = self.unwritable.lock().unwrap_or_else(PoisonError::into_inner).clone();
        unwritable.map_or(CoreError::Ended, CoreError::Unwritable)
    }

    async fn job<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Turn<'_>) -> T + Send + 'static,
    ) -> Result<T, CoreError> {
        let (sender, receiver) = oneshot::channel();
        let work: Work = Box::new(move |turn| {
            let result = work(turn);
            Box::new(move || drop(sender.send(result)))
        });
        match self.jobs.try_send(work) {
            Ok(()) => receiver.await.map_err(|_| self.unanswered()),
            Err(TrySendError::Full(_)) => Err(CoreError::Busy),
            Err(TrySendError::Disconnected(_)) => Err(CoreError::Ended),
        }
    }
}

impl CoreThread {
    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends the thread, after the jobs that wait at this moment, and waits for that. Jobs that come later are answered with
    /// [`CoreError::Ended`].
    ///
    /// # Errors
    /// The [`StoreError`] that had ended it before.
    pub fn end(self) -> Result<(), StoreError> {
        self.end.store(true, Ordering::SeqCst);
        // Wakes it; when the queue is full, it is awake.
        drop(self.jobs.try_send(Box::new(|_| Box::new(|| ()))));
        drop(self.jobs);
        match self.thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// Those who hear of what was stored, and of what cannot be.
struct Told<'a> {
    topics: &'a Topics,
    directory: &'a RwLock<Directory>,
    unwritable: &'a Mutex<Option<String>>,
}

fn run(
    mut manager: Manager,
    mut store: Box<dyn Store>,
    clock: Clock,
    queue: &Receiver<Work>,
    told: &Told<'_>,
    end: &AtomicBool,
) -> Result<(), StoreError> {
    let (mut changes, mut answers) = (Vec::new(), Vec::new());
    let Told { topics, directory, unwritable } = told;
    let mut thaw = Thaw::default();
    manager.begin_batch();
    loop {
        if manager.frozen().is_some() && thaw.is_due() && thaw.tried(&mut manager, store.as_mut(), &clock)? {
            *unwritable.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        let deadline_ms = manager.next_deadline_ms();
        let wait =
            deadline_ms.map_or(IDLE, |at| Duration::from_millis(at.saturating_sub(clock.now_ms())).min(IDLE));
        let mut next = match queue.recv_timeout(wait) {
            Ok(work) => Some(work),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        let now_ms = clock.now_ms();
        // Answers that tell of nothing but what is stored.
        let mut sure = 0;
        while let Some(work) = next.take() {
            answers.push(work(&mut Turn { manager: &mut manager, now_ms, changes: &mut changes }));
            if changes.is_empty() {
                sure = answers.len();
            }
            if answers.len() < BATCH_MAX {
                next = queue.try_recv().ok();
            }
        }
        // After the jobs: a node whose sync was waiting in the queue has been heard.
        if let Ok(outcome) = manager.apply(Command::Tick, now_ms) {
            changes.extend(outcome.changes);
        }
        if !changes.is_empty() {
            match store.commit(&changes) {
                Ok(()) => {
                    manager.keep();
                    log(&changes);
                    if changes.iter().any(Directory::is_concerned) {
                        let mut directory = directory.write().unwrap_or_else(PoisonError::into_inner);
                        changes.iter().for_each(|change| directory.follow(change));
                    }
                    topics.publish(&changes);
                }
                Err(error) if error.is_for_want_of_room() => {
                    tracing::error!(%error, "nothing can be changed until the store can be written; looks and nodes go on");
                    let reason = error.to_string();
                    *unwritable.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason.clone());
                    manager.freeze(reason).map_err(|source| store.contradicted(source))?;
                    thaw = Thaw::default();
                    // Whoever waits for one of the others hears that it was not done.
                    answers.truncate(sure);
                }
                Err(error) => return Err(error),
            }
            changes.clear();
        }
        answers.drain(..).for_each(|answer| answer());
        if end.load(Ordering::SeqCst) {
            return Ok(());
        }
    }
}

/// When the store is tried again that could not be written.
#[derive(Debug)]
struct Thaw {
    next: Instant,
    pause: Duration,
}

impl Default for Thaw {
    fn default() -> Self {
        Self { next: Instant::now() + THAW_PAUSE_MIN, pause: THAW_PAUSE_MIN }
    }
}

impl Thaw {
    fn is_due(&self) -> bool {
        Instant::now() >= self.next
    }

    /// Tries whether the store can be written again. Returns whether it can.
    fn tried(
        &mut self,
        manager: &mut Manager,
        store: &mut dyn Store,
        clock: &Clock,
    ) -> Result<bool, StoreError> {
        let found = store.revive().and_then(|state| {
            store.commit(&[Change::Meta(state.meta)])?;
            Ok(state)
        });
        match found {
            Ok(state) => {
                manager.thaw(state, clock.now_ms()).map_err(|source| store.contradicted(source))?;
                tracing::info!("the store can be written again; changes are made as before");
                Ok(true)
            }
            Err(error) if error.is_for_want_of_room() => {
                tracing::debug!(%error, "the store still cannot be written");
                self.pause = (self.pause * 2).min(THAW_PAUSE_MAX);
                self.next = Instant::now() + self.pause;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

/// Writes stored events to the log.
fn log(changes: &[Change]) {
    for change in changes {
        if let Change::Event(event) = change {
            match (serde_json::to_string(&event.kind), serde_json::to_value(&event.kind)) {
                (Ok(kind), Ok(fields)) => {
                    let word = |name: &str| fields.get(name).and_then(serde_json::Value::as_str);
                    tracing::info!(
                        seq = event.seq,
                        event = word("event"),
                        region = word("region"),
                        memory_node = word("memory_node"),
                        compute_node = word("compute_node"),
                        cause = word("reason"),
                        who = event.who.as_deref(),
                        "{kind}"
                    );
                }
                (Err(error), _) | (_, Err(error)) => {
                    tracing::warn!(seq = event.seq, %error, "event cannot be shown")
                }
            }
        }
    }
}
