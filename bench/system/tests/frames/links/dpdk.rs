//! Devices of DPDK: both ends of shared memory in this process, and an end that is spliced to a cable. Only the test of
//! tags uses packet sockets under DPDK, because a splice sees frames without tags.

use cxloe_link::dpdk::look;
use cxloe_system::memif::{device, splice};

use super::traffic::*;
use super::*;

const CN: Mac = Mac([2, 0, 0, 0, 0, 1]);
const MN: Mac = Mac([2, 0, 0, 0, 0, 9]);

/// Opens links at both ends of shared memory, with the MTU of the cable, and waits until frames pass.
pub fn ends_of_memory(lab: &Lab) -> Result<[Box<dyn Link>; 2], Failed> {
    let mtu = lab.enter("cn", || fs::read_to_string("/sys/class/net/cn0/mtu"))??;
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("memif.sock");
    let config = |role, mac| LinkConfig::new(format!("{},mtu={}", device(&socket, role, mac), mtu.trim()));
    let (at_cn, at_mn) = (config("client", CN), config("server", MN));
    // The server makes the socket, to which the client connects when it is opened.
    let far = open(&at_mn)?;
    let near = open(&at_cn)?;
    let is_up = |config| look(config).is_ok_and(|found| found.up);
    eventually("the memory joins both ends", || is_up(&at_cn) && is_up(&at_mn))?;
    Ok([near, far])
}

/// Opens a link at an end of the cable; to a device, the end is spliced by the process that is returned. The link is to
/// be dropped first.
pub fn link_at(
    lab: &Lab,
    over: LinkKind,
    interface: &str,
) -> Result<(Option<Process>, Box<dyn Link>), Failed> {
    if !over.is_dpdk() {
        return Ok((None, link_on(lab, &config_of(over, interface))?));
    }
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("memif.sock");
    let link = open(&LinkConfig::new(device(&socket, "server", MN)))?;
    Ok((Some(splice(lab, interface, &socket, CN)?), link))
}

/// A queue is seen before it is received, as far as a burst, which is all that this driver lets see. A receiver gets no
/// more of it than it asks for.
pub fn a_queue_is_seen() -> Outcome {
    let lab = cable().build()?;
    let [mut a, mut b] = ends(&lab, LinkKind::DPDK)?;
    let (from, to) = (a.info().mac, b.info().mac);
    ensure(!b.holds(3), "frames before there are any")?;
    let frames: Vec<_> = (0..40).map(|number| ours(to, from, 60, number)).collect();
    for frame in &frames {
        queue(&mut *a, frame)?;
    }
    a.flush()?;
    ensure(b.holds(3) && b.holds(32) && !b.holds(33), "another number of frames")?;
    let mut got = Vec::new();
    let count = b.receive(5, &mut |frame, _| got.push(frame.to_vec()))?;
    ensure(count == 5 && got.len() == 5, format!("{count} of 5 frames, {} passed", got.len()))?;
    got.extend(take(&mut *b, frames.len() - 5)?);
    same(&frames, &got)
}

/// Frames are shown before they are received, as many as are asked for, and received as often as others: once. A look that
/// finds nothing hides no frame that comes later.
pub fn frames_are_shown_and_then_received() -> Outcome {
    let lab = cable().build()?;
    let [mut a, mut b] = ends(&lab, LinkKind::DPDK)?;
    let (from, to) = (a.info().mac, b.info().mac);
    let frames: Vec<_> = (0..4).map(|number| ours(to, from, 60, number)).collect();
    let shown = |link: &mut dyn Link, most| {
        let mut shown = Vec::new();
        link.peek(most, &mut |frame| shown.push(frame.to_vec()));
        shown
    };
    for frame in &frames[..3] {
        queue(&mut *a, frame)?;
    }
    a.flush()?;
    same(&frames[..2], &shown(&mut *b, 2))?;
    same(&frames[..3], &shown(&mut *b, 64))?;
    ensure(b.holds(3), "frames that were shown do not count")?;
    same(&frames[..3], &take(&mut *b, 3)?)?;
    ensure(shown(&mut *b, 64).is_empty(), "frames are shown after they were received")?;
    queue(&mut *a, &frames[3])?;
    a.flush()?;
    same(&frames[3..], &take(&mut *b, 1)?)
}

/// A hastened frame leaves at its commit, behind those committed before it. The next one waits for the flush again.
pub fn a_hastened_frame_leaves_at_its_commit() -> Outcome {
    let lab = cable().build()?;
    let [mut a, mut b] = ends(&lab, LinkKind::DPDK)?;
    let (from, to) = (a.info().mac, b.info().mac);
    let frames: Vec<_> = (0..3).map(|number| ours(to, from, 60, number)).collect();
    queue(&mut *a, &frames[0])?;
    ensure(a.has_unsent(), "a frame left before the flush")?;
    a.transmit().hasten();
    queue(&mut *a, &frames[1])?;
    ensure(!a.has_unsent(), "a hastened frame waits")?;
    same(&frames[..2], &take(&mut *b, 2)?)?;
    queue(&mut *a, &frames[2])?;
    ensure(a.has_unsent(), "a frame was hastened that nobody hastened")?;
    a.flush()?;
    same(&frames[2..], &take(&mut *b, 1)?)
}

/// The cable has a larger MTU than the link. Longer frames are counted as lost, and the next short one passes.
pub fn frames_longer_than_a_buffer_are_lost() -> Outcome {
    let lab = cable().mtu(9000).build()?;
    let neighbour = RawSocket::open_in(&lab, "cn0")?;
    let (_splice, mut link) = link_at(&lab, LinkKind::DPDK, "mn0")?;
    let (own, from) = (link.info().mac, Mac([2, 0, 0, 0, 9, 9]));
    let good = ours(own, from, 100, 1);
    for number in 0..10 {
        neighbour.send(&ours(own, from, 9014, number))?;
    }
    neighbour.send(&good)?;
    same(&[good], &take(&mut *link, 1)?)?;
    let counters = link.counters();
    ensure((counters.rx_frames, counters.rx_dropped) == (1, 10), format!("{counters:?}"))
}
