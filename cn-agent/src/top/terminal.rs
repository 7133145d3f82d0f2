//! The terminal view: a thread takes snapshots, and the calling thread draws them and handles keys.
//!
//! The terminal is restored at the end, when a signal ends the program, and after a panic (by ratatui's hook, before
//! the message).

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::terminal::is_raw_mode_enabled;

use super::view::{View, draw};
use super::{Figures, Snapshot};

/// Longest wait for a key before the thread checks for signals and snapshots.
const REDRAW_INTERVAL: Duration = Duration::from_millis(50);
/// Shortest interval of snapshots that a user can choose.
pub const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Longest interval of snapshots that a user can choose.
pub const INTERVAL_MAX: Duration = Duration::from_secs(60);

/// A snapshot, or the reason why the agent could not be queried.
pub type SnapshotResult = Result<Snapshot, String>;

/// Draws the snapshots that `take` returns, every `view.interval`, until the user quits or a signal comes.
///
/// # Errors
/// When standard output is no terminal, or the terminal fails.
pub fn live(take: impl FnMut() -> SnapshotResult + Send + 'static, view: View) -> io::Result<()> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let why = "standard input and output have to be a terminal; use --once, or --json for programs";
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    // Signals are blocked before any thread starts: all threads inherit the mask, and only the waiting thread
    // gets signals.
    let ending = watch_signals()?;
    let (pace, receiver) = sample(take, view.interval)?;
    let mut terminal = ratatui::try_init()?;
    let shown =
        Screen { view, pace, before: None, now: None, figures: None }.run(&mut terminal, &receiver, &ending);
    // After a panic, the panic hook has restored the terminal already; restoring it again would move the cursor over
    // the panic's message.
    let restored = if is_raw_mode_enabled()? { ratatui::try_restore() } else { Ok(()) };
    shown.and(restored)
}

/// Starts a thread that waits for signals, and returns a flag that is set when one comes.
fn watch_signals() -> io::Result<Arc<AtomicBool>> {
    let mut set = SigSet::empty();
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().for_each(|signal| set.add(signal));
    set.thread_block()?;
    let ending = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&ending);
    thread::Builder::new().name("signals".into()).spawn(move || {
        if set.wait().is_ok() {
            ended.store(true, Ordering::Relaxed);
        }
    })?;
    Ok(ending)
}

/// Takes snapshots on a separate thread, since a query may wait for the agent. A new interval can be sent;
/// dropping the sender ends the thread.
fn sample(
    mut take: impl FnMut() -> SnapshotResult + Send + 'static,
    mut interval: Duration,
) -> io::Result<(Sender<Duration>, Receiver<SnapshotResult>)> {
    let (pace, paced) = channel();
    let (sender, receiver) = channel();
    thread::Builder::new().name("sampler".into()).spawn(move || {
        loop {
            let due = Instant::now() + interval;
            if sender.send(take()).is_err() {
                return;
            }
            match paced.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(other) => interval = other,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    })?;
    Ok((pace, receiver))
}

struct Screen {
    view: View,
    pace: Sender<Duration>,
    /// The last two snapshots of one agent, and the time at which the later one arrived.
    before: Option<Snapshot>,
    now: Option<(Snapshot, Instant)>,
    figures: Option<Figures>,
}

impl Screen {
    fn run(
        mut self,
        terminal: &mut DefaultTerminal,
        receiver: &Receiver<SnapshotResult>,
        ending: &AtomicBool,
    ) -> io::Result<()> {
        loop {
            terminal.draw(|frame| {
                let area = frame.area();
                draw(self.figures.as_ref(), &self.view, area, frame.buffer_mut());
            })?;
            // Waits until there is something to draw: after a key, a change of the size, or a snapshot.
            loop {
                if ending.load(Ordering::Relaxed) {
                    return Ok(());
                }
                if event::poll(REDRAW_INTERVAL)? {
                    match event::read()? {
                        Event::Key(key) if key.kind == KeyEventKind::Press => {
                            if self.on_key(key) {
                                return Ok(());
                            }
                        }
                        Event::Resize(..) => {}
                        _ => continue,
                    }
                    break;
                }
                match receiver.try_recv() {
                    Ok(taken) => {
                        self.take(taken);
                        break;
                    }
                    Err(TryRecvError::Empty) => {}
                    Err(TryRecvError::Disconnected) => {
                        return Err(io::Error::other("the thread that asks the agent has ended"));
                    }
                }
            }
        }
    }

    fn take(&mut self, taken: SnapshotResult) {
        match taken {
            Ok(_) if self.view.paused => {}
            Ok(snapshot) => {
                self.view.trouble = None;
                self.before = self.now.take().map(|(snapshot, _)| snapshot);
                self.figures = Some(Figures::between(self.before.as_ref(), &snapshot));
                self.now = Some((snapshot, Instant::now()));
            }
            Err(reason) => {
                let since = self.view.trouble.take().map(|(_, age)| age).unwrap_or_default();
                // The agent may be replaced by a new one, whose counters begin at 0, so the snapshot of this agent is
                // dropped.
                let age = self.now.take().map_or(since + self.view.interval, |(_, at)| at.elapsed());
                self.view.trouble = Some((reason, age));
            }
        }
    }

    /// Handles a key; returns whether the key quits.
    fn on_key(&mut self, key: KeyEvent) -> bool {
        let view = &mut self.view;
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
            KeyCode::Char('q') => return true,
            KeyCode::Esc if view.help => view.help = false,
            KeyCode::Esc => return true,
            KeyCode::Char('s') => view.sort = view.sort.next(),
            KeyCode::Char('r') => view.reverse = !view.reverse,
            KeyCode::Char(' ') => view.paused = !view.paused,
            KeyCode::Char('h' | '?') => view.help = !view.help,
            KeyCode::Char('j') | KeyCode::Down => {
                let most = self.figures.as_ref().map_or(0, |figures| figures.regions.len().saturating_sub(1));
                view.scroll = (view.scroll + 1).min(most);
            }
            KeyCode::Char('k') | KeyCode::Up => view.scroll = view.scroll.saturating_sub(1),
            KeyCode::Char('+' | '=') => self.change_interval(self.view.interval / 2),
            KeyCode::Char('-') => self.change_interval(self.view.interval * 2),
            _ => {}
        }
        false
    }

    fn change_interval(&mut self, interval: Duration) {
        self.view.interval = interval.clamp(INTERVAL_MIN, INTERVAL_MAX);
        // Fails only if the sampling thread has ended, which the missing snapshots show.
        let _ = self.pace.send(self.view.interval);
    }
}
