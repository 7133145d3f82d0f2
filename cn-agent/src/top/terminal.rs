//! The terminal: a thread takes snapshots, this one draws them and obeys keys.
//!
//! The terminal is given back as it was: at the end, when a signal ends the program, and when it panics (the hook that
//! ratatui sets does that before the panic is told).

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

/// How long a key waits at most for what else there is to look at.
const REDRAW_INTERVAL: Duration = Duration::from_millis(50);
/// The intervals there can be.
pub const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// The longest.
pub const INTERVAL_MAX: Duration = Duration::from_secs(60);

/// What a snapshot came to.
pub type Taken = Result<Snapshot, String>;

/// Shows what `take` takes, every `view.interval`, until the user has seen enough.
///
/// # Errors
/// When standard output is no terminal, or the terminal fails.
pub fn live(take: impl FnMut() -> Taken + Send + 'static, view: View) -> io::Result<()> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let why = "standard input and output have to be a terminal; use --once, or --json for programs";
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    // Before any thread is started, so that all of them have these blocked.
    let ending = watch_signals()?;
    let (pace, told) = sample(take, view.interval)?;
    let mut terminal = ratatui::try_init()?;
    let shown =
        Screen { view, pace, before: None, now: None, figures: None }.run(&mut terminal, &told, &ending);
    // After a panic it has been given back already; once more would put the cursor where the message is.
    let restored = if is_raw_mode_enabled()? { ratatui::try_restore() } else { Ok(()) };
    shown.and(restored)
}

/// What becomes true when a signal ends the program.
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

/// Takes snapshots on a thread of its own, which may have to wait for the agent. The interval can be changed by sending
/// another; when the sender is dropped, the thread ends.
fn sample(
    mut take: impl FnMut() -> Taken + Send + 'static,
    mut interval: Duration,
) -> io::Result<(Sender<Duration>, Receiver<Taken>)> {
    let (pace, paced) = channel();
    let (tell, told) = channel();
    thread::Builder::new().name("sampler".into()).spawn(move || {
        loop {
            let due = Instant::now() + interval;
            if tell.send(take()).is_err() {
                return;
            }
            match paced.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(other) => interval = other,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    })?;
    Ok((pace, told))
}

struct Screen {
    view: View,
    pace: Sender<Duration>,
    /// The last two snapshots of one agent, and when the later one came.
    before: Option<Snapshot>,
    now: Option<(Snapshot, Instant)>,
    figures: Option<Figures>,
}

impl Screen {
    fn run(
        mut self,
        terminal: &mut DefaultTerminal,
        told: &Receiver<Taken>,
        ending: &AtomicBool,
    ) -> io::Result<()> {
        loop {
            terminal.draw(|frame| {
                let area = frame.area();
                draw(self.figures.as_ref(), &self.view, area, frame.buffer_mut());
            })?;
            // Until there is something to show: a key, another size, a snapshot.
            loop {
                if ending.load(Ordering::Relaxed) {
                    return Ok(());
                }
                if event::poll(REDRAW_INTERVAL)? {
                    match event::read()? {
                        Event::Key(key) if key.kind == KeyEventKind::Press => {
                            if self.obey(key) {
                                return Ok(());
                            }
                        }
                        Event::Resize(..) => {}
                        _ => continue,
                    }
                    break;
                }
                match told.try_recv() {
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

    fn take(&mut self, taken: Taken) {
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
                // The next agent counts from 0: what this one has counted says nothing about it.
                let age = self.now.take().map_or(since + self.view.interval, |(_, at)| at.elapsed());
                self.view.trouble = Some((reason, age));
            }
        }
    }

    /// Does what a key says; whether it says to end.
    fn obey(&mut self, key: KeyEvent) -> bool {
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
        // Gone only if the sampler is, which is noticed where its snapshots are missed.
        let _ = self.pace.send(self.view.interval);
    }
}
