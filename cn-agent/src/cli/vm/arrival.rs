//! `cn-agent vm --incoming`: waits for a virtual machine that moves to this compute node, and then runs the
//! machine as if it had started here.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use cxloe_client::mapping::Owner;
use cxloe_client::message::MapRequest;
use cxloe_cn_core::mapped::MappingKind;
use cxloe_daemon::command_line::{Exit, Failure};
use cxloe_daemon::{Bound, to_stderr};
use cxloe_vmm::migration::channel::{self, SealedReceiver, SealedSender, Stream};
use cxloe_vmm::migration::machine::MovableMachine;
use cxloe_vmm::migration::message::TargetMessage;
use cxloe_vmm::migration::receiver::{Arrival, greet};
use cxloe_vmm::migration::sender::MoveAddress;
use cxloe_vmm::migration::target::TargetEnd;
use cxloe_vmm::migration::ticket::Ticket;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

use super::control;
use super::{Connect, MachineArgs, Started, exit_as};
use crate::cli::failure::of_agent;

/// Maximum wait for the first message of a source that has connected.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Maximum wait for the thread that receives the machine, after QEMU has ended.
const FINISH_MAX: Duration = Duration::from_secs(10);
/// Base of the exit code after a signal that ended the wait; the signal's number is added, as in shells.
const SIGNAL_CODE: i32 = 128;

/// Listening socket, TCP or Unix, to which the source of a machine connects.
enum Listener {
    Tcp(TcpListener),
    Unix(Bound),
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(bound) => bound.listener().as_fd(),
        }
    }
}

impl Listener {
    fn bind(address: &MoveAddress) -> Result<Listener, Failure> {
        match address {
            MoveAddress::Unix(path) => Bound::bind(path, 0o600, "machine that is to arrive")
                .map(Listener::Unix)
                .map_err(Failure::failed),
            MoveAddress::Tcp(address) => {
                let failed =
                    |error: io::Error| Failure::failed(format!("cannot listen at {address}: {error}"));
                let listener = TcpListener::bind(address).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                Ok(Listener::Tcp(listener))
            }
        }
    }

    fn accept(&self) -> io::Result<Stream> {
        let stream = match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                Stream::Tcp(stream)
            }
            Listener::Unix(bound) => {
                let (stream, _) = bound.listener().accept()?;
                stream.set_nonblocking(false)?;
                Stream::Unix(stream)
            }
        };
        Ok(stream)
    }

    /// Waits for a connection. If a termination signal arrives first, returns the signal's number as the
    /// error.
    fn next(&self) -> Result<Stream, i32> {
        let mut all = SigSet::empty();
        [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().for_each(|signal| all.add(signal));
        let mut before = SigSet::empty();
        let blocked = sigprocmask(SigmaskHow::SIG_BLOCK, Some(&all), Some(&mut before));
        // The signals are read from a descriptor, because `poll` waits for them and for a connection
        // together.
        let signals = SignalFd::with_flags(&all, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK);
        let outcome = loop {
            let Ok(signals) = &signals else { break Err(Signal::SIGTERM as i32) };
            let mut set = [
                PollFd::new(self.as_fd(), PollFlags::POLLIN),
                PollFd::new(signals.as_fd(), PollFlags::POLLIN),
            ];
            let _ = poll(&mut set, PollTimeout::NONE);
            if let Ok(Some(signal)) = signals.read_signal() {
                break Err(signal.ssi_signo as i32);
            }
            if let Ok(stream) = self.accept() {
                break Ok(stream);
            }
        };
        if blocked.is_ok() {
            let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&before), None);
        }
        outcome
    }
}

/// Waits until the machine arrives, and runs it to its end.
///
/// # Errors
/// When the address or the ticket cannot be used, or the machine cannot be run.
pub fn run(args: &MachineArgs, address: &MoveAddress, library: &Path, agent: &Path) -> Result<(), Failure> {
    let path = args.ticket.as_deref().ok_or_else(|| Failure::usage("--incoming needs --ticket"))?;
    let ticket = Ticket::read_or_write(path, rand::random()).map_err(Failure::failed)?;
    let listener = Listener::bind(address)?;
    let region = args.region.as_ref().map(ToString::to_string).unwrap_or_default();
    to_stderr!(
        "cn-agent: waiting for the machine of region {region} at {address}, with the ticket {}",
        path.display()
    );
    loop {
        let stream = match listener.next() {
            Ok(stream) => stream,
            Err(signal) => {
                drop(listener);
                std::process::exit(SIGNAL_CODE + signal);
            }
        };
        let (sender, receiver, bytes) = match open(stream, &ticket, &region) {
            Ok(opened) => opened,
            Err(error) => {
                to_stderr!("cn-agent: a connection was refused: {error}");
                continue;
            }
        };
        match receive(args, library, agent, &region, (sender, receiver, bytes))? {
            Received::Ran(status) => return exit_as(status),
            Received::Gone(reason) => {
                to_stderr!("cn-agent: the machine does not run here: {reason}; waiting again");
            }
        }
    }
}

/// Opens the sealed connection of a source, and checks that the source offers the machine of `region`. Also
/// returns the bytes of the machine's memory.
fn open(stream: Stream, ticket: &Ticket, region: &str) -> io::Result<(SealedSender, SealedReceiver, u64)> {
    let (mut sender, mut receiver) = channel::accept(stream, ticket, rand::random())?;
    let (named, bytes) = greet(&mut receiver, SILENCE_MAX)?;
    if named != region {
        let reason = format!("it waits for the machine of region {region}, not of {named}");
        let _ = sender.message(&TargetMessage::Failed { reason: reason.clone() });
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    Ok((sender, receiver, bytes))
}

/// Connects to the QEMU with the process id `pid`. If that fails, ends QEMU: it would wait for a state for ever, and
/// this process would wait for QEMU.
fn connect_or_end(connect: Connect, pid: u32) -> Result<Arc<MovableMachine>, String> {
    connect().map_err(|error| {
        // Ignored: QEMU may have ended by itself.
        let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
        format!("QEMU does not start there: {error}")
    })
}

/// Signal mask of this thread, which is set again when this is dropped. A session leaves its signals blocked, and the
/// monitor of the next session would start with them blocked.
struct SignalMask(SigSet);

impl SignalMask {
    fn keep() -> Result<SignalMask, Failure> {
        SigSet::thread_get_mask().map(SignalMask).map_err(Failure::failed)
    }
}

impl Drop for SignalMask {
    fn drop(&mut self) {
        // Ignored: the call fails only for arguments that are malformed.
        let _ = self.0.thread_set_mask();
    }
}

enum Received {
    /// The machine ran here, and its monitor has ended.
    Ran(std::process::ExitStatus),
    /// The machine did not run here, for this reason.
    Gone(String),
}

/// Starts a monitor that takes over the machine, and supervises the monitor to its end.
fn receive(
    args: &MachineArgs,
    library: &Path,
    agent: &Path,
    region: &str,
    (mut sender, receiver, bytes): (SealedSender, SealedReceiver, u64),
) -> Result<Received, Failure> {
    let _mask = SignalMask::keep()?;
    let name = args.region.as_ref().ok_or_else(|| Failure::usage("--incoming needs --region"))?;
    let request = MapRequest { incoming: Some(bytes), ..args.paging.map(name, MappingKind::Shared, false) };
    let started = Owner::map(agent, request)
        .map_err(of_agent)
        .and_then(|owner| Started::spawn(args, library, agent, owner, true));
    let started = match started {
        Ok(started) => started,
        Err(failure) => {
            let _ = sender.message(&TargetMessage::Failed { reason: failure.message.clone() });
            return Ok(Received::Gone(failure.message));
        }
    };
    let pid = started.session.pid();
    let connect = started.machine.ok_or_else(|| {
        Failure::new(Exit::Usage, "only a machine of QEMU can move: the command has to be qemu-system-…")
    })?;
    let end = Arc::<OnceLock<TargetEnd>>::default();
    let stop = Arc::<AtomicBool>::default();
    let place = args.control.clone().unwrap_or_else(|| control::path(region));
    let (told, stopped) = (Arc::clone(&end), Arc::clone(&stop));
    let body = move || {
        let machine = match connect_or_end(connect, pid) {
            Ok(machine) => machine,
            Err(reason) => {
                let _ = sender.message(&TargetMessage::Failed { reason: reason.clone() });
                let _ = told.set(TargetEnd::Gone(reason));
                return;
            }
        };
        let arrival = Arrival::new(&machine, pid, sender, receiver);
        let ended = arrival.run(|news| to_stderr!("cn-agent: {news}"));
        let runs = ended == TargetEnd::Arrived;
        let _ = told.set(ended);
        if runs {
            to_stderr!("cn-agent: the machine has arrived, and runs here");
            control::serve(&machine, &place, &stopped);
        }
    };
    // Signals are blocked in this thread while the session lasts. The new thread inherits the mask, so it gets no
    // signals.
    let thread = thread::Builder::new().name("vm-arrival".into()).spawn(body).map_err(Failure::failed)?;
    let over = started.session.supervise().map_err(Failure::failed)?;
    stop.store(true, Ordering::Relaxed);
    let until = Instant::now() + FINISH_MAX;
    while !thread.is_finished() && Instant::now() < until {
        thread::sleep(Duration::from_millis(10));
    }
    // Releases the memory, so that the region can go back to its source.
    drop(over.owner);
    match end.get() {
        Some(TargetEnd::Gone(reason)) if over.status.signal() == Some(Signal::SIGKILL as i32) => {
            Ok(Received::Gone(reason.clone()))
        }
        Some(TargetEnd::Gone(reason)) => {
            Err(Failure::failed(format!("QEMU has ended before the machine ran: {reason}")))
        }
        _ => Ok(Received::Ran(over.status)),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use cxloe_vmm::migration::qmp::QmpError;

    use super::*;

    #[test]
    fn a_monitor_that_does_not_answer_is_ended() {
        let mut monitor = Command::new("sleep").arg("60").spawn().unwrap();
        let silent: Connect = Box::new(|| Err(QmpError::Silent("qmp_capabilities".into())));
        assert!(connect_or_end(silent, monitor.id()).is_err());
        assert_eq!(monitor.wait().unwrap().signal(), Some(Signal::SIGKILL as i32));
    }

    #[test]
    fn signals_that_a_session_blocks_are_not_blocked_for_the_next_monitor() {
        let before = SigSet::thread_get_mask().unwrap();
        {
            let _mask = SignalMask::keep().unwrap();
            let mut of_session = SigSet::empty();
            of_session.add(Signal::SIGTERM);
            of_session.thread_block().unwrap();
            assert!(SigSet::thread_get_mask().unwrap().contains(Signal::SIGTERM));
        }
        assert_eq!(SigSet::thread_get_mask().unwrap(), before);
    }
}
