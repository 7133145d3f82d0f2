//! Control socket of a process that runs a virtual machine. `cn-agent vm move` sends one request there and
//! reads the progress, each as a line of JSON. If the requester ends, the move is cancelled as long as that
//! is possible.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cxloe_client::defaults::default_socket;
use cxloe_daemon::{Bound, to_stderr};
use cxloe_vmm::migration::machine::MovableMachine;
use cxloe_vmm::migration::qmp::QmpError;
use cxloe_vmm::migration::sender::{Departure, MoveOrder, MoveReport};
use cxloe_vmm::migration::source::{SourceEnd, SourceStep};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::{Deserialize, Serialize};
use std::os::fd::AsFd;

use super::manager::FabricManager;
use super::{Connect, MachineArgs};

/// Interval at which loops check whether to end, in milliseconds.
const LOOK_MS: u8 = 50;
/// Maximum length of a request in bytes.
const REQUEST_MAX: u64 = 64 << 10;
/// Maximum time for a requester to send its request. Requests are served one at a time, so a silent requester delays
/// the others.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// Maximum wait for a move in progress after the machine has ended.
const FINISH_MAX: Duration = Duration::from_secs(10);

/// Request of `cn-agent vm move`, as one line of JSON.
#[derive(Debug, Serialize, Deserialize)]
pub struct MoveRequest {
    /// Address at which the target compute node waits: `HOST:PORT` or `unix:PATH`.
    pub to: String,
    /// Secret that both compute nodes have, as text.
    pub ticket: String,
    /// Whether the two compute nodes are only compared, and nothing is moved.
    pub dry_run: bool,
    /// URL of the manager that hands the region over.
    pub manager: String,
    /// Token for the manager, with the rights of the user who moves the machine.
    pub token: Option<String>,
}

/// Answer to a [`MoveRequest`]: any number of steps, and then the end, each as a line of JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MoveProgress {
    /// Text about the step that begins.
    Step(String),
    /// The outcome, after which the connection ends.
    End {
        /// `possible`, `moved`, `unconfirmed`, `stayed` or `broken`.
        outcome: String,
        /// Reason, if the machine did not move or it is unknown whether it runs.
        reason: Option<String>,
        /// Name of the target compute node; `None` if the move ended before it was known.
        target: Option<String>,
        /// Time in microseconds from QEMU's stop of the guest to the target's report that the guest runs.
        stopped_us: Option<u64>,
        /// Bytes of QEMU's state that were sent.
        state_bytes: u64,
        /// Number of pages that were resident when the memory was suspended.
        resident_pages: u64,
    },
}

/// Default path of the control socket of the machine whose memory is `region`.
pub fn path(region: &str) -> PathBuf {
    default_socket().with_file_name(format!("vm-{region}.sock"))
}

/// Thread that serves the control socket while the machine runs.
pub struct Control {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Starts the thread, which connects to QEMU by `connect` and serves requests. Prints the reason if the
    /// machine cannot move.
    pub fn start(args: &MachineArgs, connect: Connect) -> Control {
        let region = args.region.as_ref().map(ToString::to_string).unwrap_or_default();
        let place = args.control.clone().unwrap_or_else(|| path(&region));
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        let body = move || match connect() {
            Ok(machine) => serve(&machine, &place, &stopped),
            // Not reported: QEMU has printed why it ended.
            Err(QmpError::Gone) => {}
            Err(error) => to_stderr!("cn-agent: this machine cannot move: {error}"),
        };
        let thread = thread::Builder::new().name("vm-control".into()).spawn(body);
        if let Err(error) = &thread {
            to_stderr!("cn-agent: this machine cannot move: {error}");
        }
        Control { stop, thread: thread.ok() }
    }

    /// Ends the thread. If a move is in progress, waits up to [`FINISH_MAX`] for its outcome.
    pub fn finish(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return };
        let until = Instant::now() + FINISH_MAX;
        while !thread.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(LOOK_MS.into()));
        }
    }
}

/// Serves requests on a socket at `place` until `stop` is set.
pub fn serve(machine: &MovableMachine, place: &Path, stop: &AtomicBool) {
    let socket = match Bound::bind(place, 0o600, "virtual machine of this region") {
        Ok(socket) => socket,
        Err(error) => {
            to_stderr!("cn-agent: this machine cannot move: {error}; another place is given by --control");
            return;
        }
    };
    while !stop.load(Ordering::Relaxed) {
        let mut set = [PollFd::new(socket.listener().as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut set, PollTimeout::from(LOOK_MS));
        match socket.listener().accept() {
            Ok((stream, _)) if socket.admits(&stream) => {
                if let Err(error) = answer(machine, stream) {
                    to_stderr!("cn-agent: a request to move this machine was not served: {error}");
                }
            }
            Ok(_) => {
                to_stderr!("cn-agent: a request to move this machine came from another user, and was refused")
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => thread::sleep(Duration::from_millis(LOOK_MS.into())),
        }
    }
}

fn answer(machine: &MovableMachine, stream: UnixStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    stream.set_write_timeout(Some(SILENCE_MAX))?;
    let mut line = String::new();
    BufReader::new(stream.try_clone()?).take(REQUEST_MAX).read_line(&mut line)?;
    let request: MoveRequest = serde_json::from_str(&line)?;
    let wrong = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
    let order = MoveOrder {
        to: request.to.parse().map_err(wrong)?,
        ticket: request.ticket.parse().map_err(|()| wrong("the ticket is malformed".to_owned()))?,
        ephemeral: rand::random(),
        dry_run: request.dry_run,
    };
    let mut manager = FabricManager::new(&request.manager, request.token.as_deref()).map_err(wrong)?;
    let cancelled = Arc::<AtomicBool>::default();
    let watcher = watch(stream.try_clone()?, Arc::clone(&cancelled))?;
    let said = Mutex::new(stream.try_clone()?);
    let say = |progress: &MoveProgress| {
        let line = format!("{}\n", serde_json::to_string(progress).unwrap_or_default());
        // An error is ignored: if the requester has ended, the watcher thread notices that and cancels the move.
        let _ = said.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes());
    };
    let departure = Departure::new(machine, order, &mut manager, &cancelled);
    let (end, report) = departure.run(|step| say(&MoveProgress::Step(describe(step))));
    say(&told(&end, report));
    print_end(&end);
    // Ends the watcher's read, so that its thread can be joined.
    stream.shutdown(std::net::Shutdown::Both)?;
    let _ = watcher.join();
    Ok(())
}

/// Starts a thread that sets `cancelled` when the requester closes the connection.
fn watch(mut stream: UnixStream, cancelled: Arc<AtomicBool>) -> io::Result<JoinHandle<()>> {
    stream.set_read_timeout(None)?;
    let body = move || {
        // A requester sends nothing after its request, so the read returns when the connection ends.
        let _ = stream.read(&mut [0]);
        cancelled.store(true, Ordering::Relaxed);
    };
    thread::Builder::new().name("vm-control-end".into()).spawn(body)
}

fn describe(step: &SourceStep) -> String {
    match step {
        SourceStep::Connect => "comparing the machines of both sides".into(),
        SourceStep::WriteBack => "writing dirty pages back while the guest runs".into(),
        SourceStep::Migrate => "sending the state of devices".into(),
        SourceStep::SendState => "the guest is stopped; sending the rest of its state".into(),
        SourceStep::Suspend => "writing the last dirty pages back".into(),
        SourceStep::Order => "handing the region over".into(),
        SourceStep::Settle => "waiting for the manager to say whose the region is".into(),
        SourceStep::AwaitRunning => "waiting until the guest runs at the other side".into(),
        SourceStep::TakeBack => "the other side cannot run it; taking the region back".into(),
        SourceStep::Quit => "ending QEMU here".into(),
        SourceStep::ServeAgain => "serving the guest's memory here again".into(),
        SourceStep::Cancel => "cancelling QEMU's migration".into(),
        SourceStep::Continue => "letting the guest go on here".into(),
        SourceStep::Abort(reason) => format!("telling the other side: {reason}"),
    }
}

fn told(end: &SourceEnd, report: MoveReport) -> MoveProgress {
    let (outcome, reason) = match end {
        SourceEnd::Possible => ("possible", None),
        SourceEnd::Moved => ("moved", None),
        SourceEnd::Unconfirmed(reason) => ("unconfirmed", Some(reason)),
        SourceEnd::Stayed(reason) => ("stayed", Some(reason)),
        SourceEnd::Broken(reason) => ("broken", Some(reason)),
    };
    let MoveReport { target, stopped_us, state_bytes, resident_pages } = report;
    let (outcome, reason) = (outcome.to_owned(), reason.cloned());
    MoveProgress::End { outcome, reason, target, stopped_us, state_bytes, resident_pages }
}

fn print_end(end: &SourceEnd) {
    match end {
        SourceEnd::Possible => {}
        SourceEnd::Moved => to_stderr!("cn-agent: this machine has moved"),
        SourceEnd::Unconfirmed(reason) => {
            to_stderr!("cn-agent: this machine has moved, and has not reported that it runs: {reason}");
        }
        SourceEnd::Stayed(reason) => {
            to_stderr!("cn-agent: this machine did not move, and goes on here: {reason}")
        }
        SourceEnd::Broken(reason) => {
            to_stderr!("cn-agent: this machine did not move, and cannot go on: {reason}")
        }
    }
}
