//! Links at both ends of a cable, and frames identified by numbers.

use super::*;

pub fn config(backend: Backend, interface: &str) -> LinkConfig {
    LinkConfig { backend, ..LinkConfig::new(interface) }
}

/// Configuration of a link at an end of the cable.
pub fn config_of(over: LinkKind, interface: &str) -> LinkConfig {
    match over.is_dpdk() {
        true => LinkConfig::new(packet_device(interface)),
        false => config(over.backend, interface),
    }
}

/// Opens links of one kind at both ends of the cable, or of shared memory in its place.
pub fn ends(lab: &Lab, over: LinkKind) -> Result<[Box<dyn Link>; 2], Failed> {
    if over.is_dpdk() {
        return ends_of_memory(lab);
    }
    Ok([link_on(lab, &config_of(over, "cn0"))?, link_on(lab, &config_of(over, "mn0"))?])
}

/// A frame whose bytes are derived from its number.
pub fn frame(to: Mac, from: Mac, ethertype: u16, len: usize, number: u64) -> Vec<u8> {
    let mut frame = vec![0; len];
    let mut state = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for byte in &mut frame {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *byte = (state >> 24) as u8;
    }
    frame[..6].copy_from_slice(&to.0);
    frame[6..12].copy_from_slice(&from.0);
    frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
    frame
}

pub fn ours(to: Mac, from: Mac, len: usize, number: u64) -> Vec<u8> {
    frame(to, from, ETHERTYPE_DEFAULT, len, number)
}

/// Queues a frame; if there is no room, first sends the queued frames.
pub fn queue(link: &mut dyn Link, frame: &[u8]) -> Outcome {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(slot) = link.transmit().slot(frame.len()) {
            ensure(slot.len() == frame.len(), "a slot of another length than asked for")?;
            slot.copy_from_slice(frame);
            link.transmit().commit();
            return Ok(());
        }
        link.flush()?;
        ensure(Instant::now() < deadline, format!("no slot for {} bytes", frame.len()))?;
    }
}

/// Receives `count` frames; fails if fewer arrive.
pub fn take(link: &mut dyn Link, count: usize) -> Result<Vec<Vec<u8>>, Failed> {
    take_while(link, count, || Ok(()))
}

/// Receives `count` frames, and calls `meanwhile` after each look for them.
fn take_while(
    link: &mut dyn Link,
    count: usize,
    mut meanwhile: impl FnMut() -> Outcome,
) -> Result<Vec<Vec<u8>>, Failed> {
    let mut frames = Vec::new();
    let deadline = Instant::now() + LIMIT;
    while frames.len() < count {
        let budget = count - frames.len();
        link.receive(budget, &mut |frame, _| frames.push(frame.to_vec()))?;
        meanwhile()?;
        if Instant::now() >= deadline {
            return Err(format!("{} of {count} frames came: {:?}", frames.len(), link.counters()).into());
        }
    }
    Ok(frames)
}

pub fn same(sent: &[Vec<u8>], got: &[Vec<u8>]) -> Outcome {
    ensure(sent.len() == got.len(), format!("{} frames of {}", got.len(), sent.len()))?;
    for (number, (sent, got)) in sent.iter().zip(got).enumerate() {
        ensure(
            sent == got,
            format!(
                "frame {number} of {} bytes came as one of {} or with other bytes",
                sent.len(),
                got.len()
            ),
        )?;
    }
    Ok(())
}

/// Sends `frames` from one end and checks that these frames and no others arrive at the other.
pub fn pass(from: &mut dyn Link, to: &mut dyn Link, frames: &[Vec<u8>]) -> Outcome {
    for frame in frames {
        queue(from, frame)?;
    }
    from.flush()?;
    // In shared memory, a client makes room for frames when it first receives.
    let got = take_while(to, frames.len(), || if from.has_unsent() { Ok(from.flush()?) } else { Ok(()) })?;
    same(frames, &got)
}
