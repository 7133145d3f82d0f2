//! The only thread that uses the manager and the store. Jobs arrive through a bounded queue. The waiting jobs are
//! carried out in sequence, stored with one commit, and answered after that commit.
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
use super::event_log;
use super::topics::{Topic, TopicWait, Topics};
use crate::store::{Store, StoreError};
use cxloe_gmm_core::machine::StateMachine;
use cxloe_gmm_core::manager::{Change, Command, CommandOutcome, Manager, ManagerError};
use cxloe_gmm_core::rights::{Caller, Denied, Directory, Evidence, Refusals, permit};

/// Maximum number of jobs in the queue; further ones are refused. The queue has room for a job of every node, since all
/// nodes return at once after a restart of the manager.
const QUEUE_MAX: usize = 16_384;
/// Maximum number of jobs stored with one commit.
const BATCH_MAX: usize = 256;
/// Maximum time for which the thread sleeps between two checks of the nodes' time-outs. Short, because a pause of the
/// whole machine within a longer sleep would not make the wake-up late, and would count as silence of the nodes.
const IDLE: Duration = Duration::from_millis(250);
/// Lateness of a wake-up, in milliseconds, from which the process counts as having been paused.
const PAUSE_MIN_MS: u64 = 200;
/// Minimum and maximum pause before an unwritable store is tried again; each failure doubles the pause.
const THAW_PAUSE_MIN: Duration = Duration::from_millis(500);
const THAW_PAUSE_MAX: Duration = Duration::from_secs(8);

/// Reason for which a job was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum CoreError {
    #[error(transparent)]
    Manager(#[from] ManagerError),
    #[error(transparent)]
    Denied(#[from] Denied),
    #[error("the manager has {QUEUE_MAX} requests waiting")]
    Busy,
    /// The store could not be written, for this reason.
    #[error("it was not done: {0}")]
    Unwritable(String),
    /// The thread ended: the store failed, or the process is ending.
    #[error("the manager is ending")]
    Ended,
}

/// Carries out a job on the manager. Returns the function that sends the answer, to be called after the commit.
type Work = Box<dyn FnOnce(&mut JobContext<'_>) -> AnswerSender + Send>;
type AnswerSender = Box<dyn FnOnce() + Send>;

/// Context in which the thread runs a job. The job appends its changes, which the thread stores.
struct JobContext<'a> {
    manager: &'a mut Manager,
    now_ms: u64,
    changes: &'a mut Vec<Change>,
}

tokio::task_local! {
    /// True if a job of the present request has changed the state, whether or not the change is stored.
    static CHANGED: Arc<AtomicBool>;
}

/// Carries out `request`, and returns with its result whether it has changed the state, stored or not.
pub async fn noting_changes<T>(request: impl Future<Output = T>) -> (T, bool) {
    let changed = Arc::new(AtomicBool::new(false));
    let result = CHANGED.scope(Arc::clone(&changed), request).await;
    (result, changed.load(Ordering::SeqCst))
}

/// Handle with which other threads use the core; cheap to clone.
#[derive(Clone)]
pub struct Core {
    jobs: SyncSender<Work>,
    topics: Arc<Topics>,
    /// The reason why the store cannot be written; none if it can.
    unwritable: Unwritable,
    /// Callers' credentials and rights, from the stored state.
    directory: Arc<RwLock<Directory>>,
    /// Recently refused callers, to limit their entries in the event log.
    refusals: Arc<Mutex<Refusals>>,
    clock: Clock,
}

/// The reason why the store cannot be written, shared by the thread and the callers that wait for its answers.
type Unwritable = Arc<Mutex<Option<String>>>;

/// Handle with which its owner ends the core's thread; all other callers use [`Core`].
pub struct CoreThread {
    thread: JoinHandle<Result<(), StoreError>>,
    jobs: SyncSender<Work>,
    end: Arc<AtomicBool>,
}

impl Core {
    /// Starts the thread. The manager must have taken over the state, and the takeover must be stored.
    pub fn start(
        manager: Manager,
        store: Box<dyn Store>,
        clock: Clock,
    ) -> std::io::Result<(Self, CoreThread)> {
        let (jobs, queue) = sync_channel(QUEUE_MAX);
        let topics = Arc::new(Topics::default());
        let publish = Arc::clone(&topics);
        let end = Arc::new(AtomicBool::new(false));
        let receivers = Arc::clone(&end);
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
                &CommitReceivers { topics: &publish, directory: &followed, unwritable: &tell },
                &receivers,
            );
            publish.close();
            result
        })?;
        Ok((
            Self { jobs: jobs.clone(), topics, unwritable, directory, refusals: Arc::default(), clock },
            CoreThread { thread, jobs, end },
        ))
    }

    /// Carries out a command for `caller`, if it has the right to it. Returns the result of `view` on the state after
    /// the command.
    ///
    /// # Errors
    /// [`CoreError`]; [`CoreError::Manager`] if the manager refuses the command, [`CoreError::Denied`] if the caller
    /// has no right to it.
    pub async fn apply<T: Send + 'static>(
        &self,
        caller: &Caller,
        command: Command,
        view: impl FnOnce(&Manager, &CommandOutcome) -> T + Send + 'static,
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

    /// Returns the result of `view` on the present state.
    ///
    /// # Errors
    /// [`CoreError::Busy`], [`CoreError::Ended`], or [`CoreError::Unwritable`] if an earlier change that the state
    /// contains could not be stored.
    pub async fn view<T: Send + 'static>(
        &self,
        view: impl FnOnce(&Manager) -> T + Send + 'static,
    ) -> Result<T, CoreError> {
        self.job(move |turn| view(turn.manager)).await
    }

    /// Carries out `work` on the manager at the present time. Returns its result after its changes are stored.
    ///
    /// # Errors
    /// [`CoreError::Busy`], [`CoreError::Ended`], or [`CoreError::Unwritable`] if the changes could not be stored.
    pub async fn execute<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Manager, u64, &mut Vec<Change>) -> T + Send + 'static,
    ) -> Result<T, CoreError> {
        self.job(move |turn| work(turn.manager, turn.now_ms, turn.changes)).await
    }

    /// Queues a command without waiting for its result. The command is dropped if the queue is full.
    pub fn post(&self, command: Command) {
        let work: Work = Box::new(move |turn| {
            if let Ok(outcome) = turn.manager.apply(command, turn.now_ms) {
                turn.changes.extend(outcome.changes);
            }
            Box::new(|| ())
        });
        drop(self.jobs.try_send(work));
    }

    /// Counts a refused request `what` of the caller `who`. The event log gets an entry only if the limit for
    /// this caller permits.
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

    /// Begins to wait for a topic: no change that is stored after this call is missed.
    pub fn watch(&self, topic: Topic) -> TopicWait {
        self.topics.watch(topic)
    }

    /// Wakes the long polls on a topic after a change that is not stored.
    pub fn touch(&self, topic: &Topic) {
        self.topics.touch(topic);
    }

    /// Identifies the caller by these credentials; without valid ones, returns an unauthenticated caller.
    pub fn caller(&self, evidence: &Evidence<'_>) -> Caller {
        self.directory.read().unwrap_or_else(PoisonError::into_inner).caller(evidence, self.clock.now_ms())
    }

    /// Begins a browser's session for the bearer of a token. Returns the caller, and the end of the session in
    /// milliseconds since the Unix epoch.
    pub fn log_in(&self, token: &str, secret: &str) -> Option<(Caller, u64)> {
        let mut directory = self.directory.write().unwrap_or_else(PoisonError::into_inner);
        directory.log_in(token, secret, self.clock.now_ms())
    }

    /// Ends the browser's session with this secret, if there is one.
    pub fn log_out(&self, secret: &str) {
        self.directory.write().unwrap_or_else(PoisonError::into_inner).log_out(secret);
    }

    /// Present time by the manager's clock, in milliseconds since the Unix epoch.
    pub fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// The error for a job that the thread did not answer.
    fn unanswered(&self) -> CoreError {
        let unwritable = self.unwritable.lock().unwrap_or_else(PoisonError::into_inner).clone();
        unwritable.map_or(CoreError::Ended, CoreError::Unwritable)
    }

    async fn job<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut JobContext<'_>) -> T + Send + 'static,
    ) -> Result<T, CoreError> {
        let (sender, receiver) = oneshot::channel();
        let changed = CHANGED.try_with(Arc::clone).ok();
        let work: Work = Box::new(move |turn| {
            let before = turn.changes.len();
            let result = work(turn);
            if let Some(changed) = changed.filter(|_| turn.changes.len() > before) {
                changed.store(true, Ordering::SeqCst);
            }
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
    /// True once the thread has ended, by order or because the store failed.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends the thread after the jobs in the queue, and waits until it has ended. Later jobs fail with
    /// [`CoreError::Ended`].
    ///
    /// # Errors
    /// The [`StoreError`] that had already ended the thread.
    pub fn end(self) -> Result<(), StoreError> {
        self.end.store(true, Ordering::SeqCst);
        // An empty job wakes the thread; if the queue is full, the thread is awake.
        drop(self.jobs.try_send(Box::new(|_| Box::new(|| ()))));
        drop(self.jobs);
        match self.thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

struct CommitReceivers<'a> {
    topics: &'a Topics,
    directory: &'a RwLock<Directory>,
    unwritable: &'a Mutex<Option<String>>,
}

fn run(
    mut manager: Manager,
    mut store: Box<dyn Store>,
    clock: Clock,
    queue: &Receiver<Work>,
    receivers: &CommitReceivers<'_>,
    end: &AtomicBool,
) -> Result<(), StoreError> {
    let (mut changes, mut answers) = (Vec::new(), Vec::new());
    let CommitReceivers { topics, directory, unwritable } = receivers;
    let mut thaw = StoreRetry::default();
    // The changes of a batch are recorded, so that they can be undone if the store cannot be written.
    manager.begin_batch();
    loop {
        if manager.frozen().is_some() && thaw.is_due() && thaw.tried(&mut manager, store.as_mut(), &clock)? {
            *unwritable.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        let (deadline, began_ms) = (manager.deadline(), clock.now_ms());
        let wait = Duration::from_millis(deadline.at.as_millis().saturating_sub(began_ms)).min(IDLE);
        tracing::trace!(?wait, reason = deadline.reason, "waits for jobs");
        let mut next = match queue.recv_timeout(wait) {
            Ok(work) => Some(work),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        let now_ms = clock.now_ms();
        let late_ms = now_ms.saturating_sub(began_ms.saturating_add(wait.as_millis() as u64));
        if late_ms >= PAUSE_MIN_MS {
            tracing::warn!(
                late_ms,
                "the manager was not run by this machine for a time: nodes get as long again to answer"
            );
            manager.note_pause(late_ms, now_ms);
        }
        // Number of answers that depend on stored changes only.
        let mut sure = 0;
        while let Some(work) = next.take() {
            answers.push(work(&mut JobContext { manager: &mut manager, now_ms, changes: &mut changes }));
            if changes.is_empty() {
                sure = answers.len();
            }
            if answers.len() < BATCH_MAX {
                next = queue.try_recv().ok();
            }
        }
        // Time-outs of nodes are checked after the jobs, so that a sync that waited in the queue counts as a message of
        // its node.
        if let Ok(outcome) = manager.apply(Command::Tick, now_ms) {
            changes.extend(outcome.changes);
        }
        debug_assert!(manager.deadline().at.as_millis() > now_ms, "due again: {}", manager.deadline());
        if !changes.is_empty() {
            let committed = store.commit(&changes);
            // Nodes send nothing before they get their answers, so the time of the write does not count as
            // their silence.
            let written_ms = clock.now_ms();
            let took_ms = written_ms.saturating_sub(now_ms);
            if took_ms >= PAUSE_MIN_MS {
                tracing::warn!(
                    took_ms,
                    "the store was slow to be written: nodes get as long again to answer"
                );
                manager.note_pause(took_ms, written_ms);
            }
            match committed {
                Ok(()) => {
                    manager.keep();
                    CommandOutcome::events_of(&changes).for_each(event_log::log);
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
                    thaw = StoreRetry::default();
                    // Answers that depend on the changes of this batch are dropped, so that their callers get an error:
                    // the changes were undone.
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

/// Schedule of the tries to write an unwritable store.
#[derive(Debug)]
struct StoreRetry {
    next: Instant,
    pause: Duration,
}

impl Default for StoreRetry {
    fn default() -> Self {
        Self { next: Instant::now() + THAW_PAUSE_MIN, pause: THAW_PAUSE_MIN }
    }
}

impl StoreRetry {
    fn is_due(&self) -> bool {
        Instant::now() >= self.next
    }

    /// Tries to write the store again. Returns true if it succeeded.
    fn tried(
        &mut self,
        manager: &mut Manager,
        store: &mut dyn Store,
        clock: &Clock,
    ) -> Result<bool, StoreError> {
        // Writing an unchanged record shows whether the store can be written.
        let found = store.reopen().and_then(|state| {
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
