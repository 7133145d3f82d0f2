//! The keeper process: `mn-server keep-pool`, started by a node. It has the memory's descriptor, maps nothing, and ends
//! by itself.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::Args;
use cxloe_daemon::{Bound, Span};
use cxloe_link::Clock;
use cxloe_mn_core::keeping::{Action, Answer, Keeping, NodeId, Request};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::setsid;

use super::connection::Connection;
use super::{KeeperOptions, START_MAX, message};

/// Maximum number of connections: the holder's, a claimant's, and some of nodes that are refused.
const NODES_MAX: usize = 8;
/// Number of the connection on standard input, which is that of the first holder.
const FIRST: NodeId = 0;

#[derive(Args, Clone, Debug)]
pub struct KeeperArgs {
    /// Socket at which later processes of the node ask for the memory
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Time for which the memory is kept without a node
    #[arg(long, value_name = "TIME")]
    keep: Span,
}

/// Starts a keeper process and sends it the memory's descriptor.
///
/// # Errors
/// Error of a system call, or of the keeper.
pub fn start(options: &KeeperOptions, memory: BorrowedFd<'_>) -> io::Result<Connection> {
    let (ours, its) = UnixStream::pair()?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("mn-server").arg("keep-pool").arg("--socket").arg(&options.socket);
    command.arg("--keep").arg(Span(options.keep).to_string());
    command.stdin(OwnedFd::from(its)).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let connection = Connection::of(ours);
    connection.send(Request::Keep, Some(memory))?;
    match connection.receive(START_MAX) {
        Ok(Some((Answer::Kept, _))) => {
            tracing::info!(
                pid = child.id(), keep = %Span(options.keep),
                "a process of its own keeps the pool's memory after an unexpected end"
            );
            Ok(connection)
        }
        Ok(None) => {
            // The keeper has ended at once: its error message explains why.
            let mut why = String::new();
            if let Some(stderr) = &mut child.stderr {
                stderr.read_to_string(&mut why)?;
            }
            child.wait()?;
            Err(io::Error::other(why.trim().to_owned()))
        }
        answer => {
            child.kill()?;
            child.wait()?;
            answer.and(Err(io::Error::other("the keeper process gives a wrong answer")))
        }
    }
}

struct Node {
    id: NodeId,
    stream: UnixStream,
}

/// Runs a keeper process to its end.
///
/// # Errors
/// The socket cannot be bound, or a system call fails.
pub fn run(args: &KeeperArgs) -> Result<(), Box<dyn std::error::Error>> {
    // Leaves the process group of the terminal, so that Ctrl-C ends only the node, which then ends this process. The
    // call fails in a session leader, which needs no new session.
    let _ = setsid();
    let bound = Bound::bind(&args.socket, 0o600, "keeper")?;
    let first = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    serve(&bound, first, args.keep.0)?;
    Ok(())
}

fn serve(bound: &Bound, first: UnixStream, keep: Duration) -> io::Result<()> {
    let clock = Clock::new();
    let mut keeping = Keeping::new(keep, clock.now());
    let mut memory: Option<OwnedFd> = None;
    let mut nodes = vec![Node { id: FIRST, stream: first }];
    let mut next = FIRST + 1;
    loop {
        let ready = wait(bound, &nodes, keeping.ends_at().map(|at| at.since(clock.now())))?;
        let mut actions: Vec<Action> = keeping.on_time(clock.now()).into_iter().collect();
        let mut left = Vec::new();
        for node in nodes.iter().filter(|node| ready.contains(&Some(node.id))) {
            match message::receive(&node.stream) {
                Ok(Some((byte, descriptor))) => match message::request(byte) {
                    Some(request) => {
                        let action = keeping.on_request(node.id, request, descriptor.is_some());
                        if action == Some(Action::Answer(node.id, Answer::Kept)) {
                            memory = descriptor;
                        }
                        actions.extend(action);
                    }
                    None => left.push(node.id),
                },
                Ok(None) | Err(_) => left.push(node.id),
            }
        }
        for action in actions {
            carry_out(action, &nodes, memory.as_ref(), &mut left);
            if action == Action::End {
                return Ok(());
            }
        }
        // If an answer cannot be sent, the connection is closed, so that another node may get the memory.
        while let Some(id) = left.pop() {
            nodes.retain(|node| node.id != id);
            if let Some(action) = keeping.on_left(id, clock.now()) {
                carry_out(action, &nodes, memory.as_ref(), &mut left);
            }
        }
        if ready.contains(&None)
            && let Ok((stream, _)) = bound.listener().accept()
            && bound.admits(&stream)
            && nodes.len() < NODES_MAX
        {
            stream.set_nonblocking(false)?;
            nodes.push(Node { id: next, stream });
            // The number of the first holder is never given again.
            next = next.wrapping_add(1).max(FIRST + 1);
        }
    }
}

/// Carries out an action; adds to `left` the nodes whose connection is to be closed.
fn carry_out(action: Action, nodes: &[Node], memory: Option<&OwnedFd>, left: &mut Vec<NodeId>) {
    match action {
        Action::Answer(id, answer) => {
            let Some(node) = nodes.iter().find(|node| node.id == id) else { return };
            let with = memory.filter(|_| answer == Answer::Memory).map(AsFd::as_fd);
            if message::send(&node.stream, message::answer_byte(answer), with).is_err() {
                left.push(id);
            }
        }
        Action::Refuse(id) => left.push(id),
        Action::End => {}
    }
}

/// Waits for new connections (`None`) and for nodes whose requests can be read.
fn wait(bound: &Bound, nodes: &[Node], most: Option<Duration>) -> io::Result<Vec<Option<NodeId>>> {
    let mut set = vec![PollFd::new(bound.listener().as_fd(), PollFlags::POLLIN)];
    set.extend(nodes.iter().map(|node| PollFd::new(node.stream.as_fd(), PollFlags::POLLIN)));
    // Rounded up, so that the last fraction of a millisecond is not spent polling.
    let most = most.map(|time| (time + Duration::from_millis(1)).min(Duration::from_secs(60)));
    let timeout =
        most.map_or(PollTimeout::NONE, |time| PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX));
    match poll(&mut set, timeout) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => {}
        Err(errno) => return Err(errno.into()),
    }
    let ids = [None].into_iter().chain(nodes.iter().map(|node| Some(node.id)));
    let ready = set.iter().map(|entry| entry.revents().is_some_and(|events| !events.is_empty()));
    Ok(ids.zip(ready.collect::<Vec<_>>()).filter_map(|(id, ready)| ready.then_some(id)).collect())
}
