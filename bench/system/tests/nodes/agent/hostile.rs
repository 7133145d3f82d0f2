//! Clients that violate the protocol: the agent closes their ports, and continues to serve the other clients.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering::{Relaxed, Release};

use cxloe_client::client::{self, Client};
use cxloe_client::memory::{SharedMemory, receive_with_descriptor};
use cxloe_client::message::{self, AgentAnswer, AgentCall, AgentRequest, RefusalReason, VERSION};
use cxloe_client::ring::PORT_BYTES;
use cxloe_system::pair::*;

/// Opens a port without the client library: its socket and its memory.
fn raw_port(rig: &Pair) -> Outcome<(UnixStream, SharedMemory)> {
    let mut socket = UnixStream::connect(rig.socket())?;
    socket.set_read_timeout(Some(LIMIT))?;
    message::write(&mut socket, &AgentRequest { version: VERSION, ask: AgentCall::Port })?;
    let mut bytes = [0; 512];
    let (_, memory) = receive_with_descriptor(&socket, &mut bytes)?;
    Ok((socket, SharedMemory::open(memory.ok_or("no memory came")?, PORT_BYTES)?))
}

pub fn hostile_clients_hurt_only_themselves() -> Outcome {
    let rig = Pair::with_region("anon", &["--max-clients", "4"])?;
    let (mut good, hpa) = rig.written(13)?;

    // This client fills its shared memory with invalid indices, unknown operations and unmapped addresses.
    let (mut liar, memory) = raw_port(&rig)?;
    for word in 0..PORT_BYTES / 8 {
        memory.store(word, 0xDEAD_BEEF_DEAD_BEEF, Relaxed);
    }
    // The agent may already have closed the port.
    match liar.write_all(&[1; 10_000]) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => return Err(e.into()),
        _ => {}
    }
    match liar.read_to_end(&mut Vec::new()) {
        // The client has overwritten the sleep flag too, so the agent may have sent it a wake-up.
        Ok(_) => {}
        Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => {}
        other => return Err(format!("its port was not closed: {other:?}").into()),
    }
    verify(&mut good, hpa, 13)?;

    // This client submits operations until its rings are full, and takes no completions.
    let (mut sluggard, memory) = raw_port(&rig)?;
    // The entries are flushes, in the first lap of the ring and in the second, which the phase bit (bit 31)
    // distinguishes.
    const PHASE: u64 = 1 << 31;
    let submission = |entry: usize| 512 + entry * 16;
    let completion = |entry: usize| 512 + (256 + entry) * 16;
    let submit = |phase: u64| (0..256).for_each(|entry| memory.store(submission(entry), 3 | phase, Release));
    submit(PHASE);
    sluggard.write_all(&[1])?;
    let is_told = |entry: usize| memory.untrusted::<1>(completion(entry)).acquire()[0] & PHASE != 0;
    eventually("its flushes are answered", || is_told(255).then_some(()))?;
    submit(0);
    sluggard.write_all(&[1])?;
    good.write_batch(&written_lines(hpa, 14))?;
    verify(&mut good, hpa, 14)?;
    ensure((0..256).all(is_told), "no completion goes where there is no room")?;
    drop(sluggard);

    // This client sends malformed requests on the socket.
    let mut babbler = UnixStream::connect(rig.socket())?;
    babbler.set_read_timeout(Some(LIMIT))?;
    babbler.write_all(&[0xFF; 64])?;
    let output_text: AgentAnswer = message::read(&mut babbler, 4096)?;
    ensure(
        matches!(output_text, AgentAnswer::Refused(RefusalReason::Malformed(_))),
        format!("{output_text:?}"),
    )?;
    let mut old = UnixStream::connect(rig.socket())?;
    old.set_read_timeout(Some(LIMIT))?;
    message::write(&mut old, &serde_json::json!({"version": 0, "ask": "something else"}))?;
    let output_text: AgentAnswer = message::read(&mut old, 4096)?;
    ensure(
        matches!(output_text, AgentAnswer::Refused(RefusalReason::Version { agent: VERSION })),
        format!("{output_text:?}"),
    )?;

    // This client opens more ports than permitted; the slots of closed ports can be used again.
    let count = |rig: &Pair| client::counters(&rig.socket()).map(|c| c.clients).ok();
    eventually("closed ports are cleaned up", || (count(&rig)? == 1).then_some(()))?;
    let ports: Vec<Client> = (0..3).map(|_| rig.connect()).collect::<Result<_, _>>()?;
    let full = Client::connect(&rig.socket()).unwrap_err();
    ensure(full.to_string().contains("--max-clients"), full.to_string())?;
    drop(ports);
    eventually("a port is free again", || rig.connect().ok())?;
    ensure(client::counters(&rig.socket())?.broken_clients == 1, "one client was given up")?;
    verify(&mut good, hpa, 14)
}
