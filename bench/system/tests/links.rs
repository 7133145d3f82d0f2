//! Links over real interfaces: what goes in at one end of a cable comes out at the other, whole, in order, and
//! nothing else does.
//!
//! Each backend is held against the same promises of the `Link` trait: packet rings and pnet as root and as an
//! ordinary user, AF_XDP as root only. Raw sockets play the neighbours; processes that are to be killed, or have no
//! rights, are copies of this program.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{ExitCode, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::node::link_on;
use common::raw::Raw;
use common::{LIMIT, Outcome, copy_as, copy_without_rights_as, ensure, eventually, ip, pair};
use cxloe_lab::{Lab, Process, Standing};
use cxloe_link::{Backend, Link, LinkConfig, LinkError, open};
use cxloe_wire::frame::{ETHERTYPE_DEFAULT, Mac};
use libtest_mimic::{Failed, Trial};
use nix::sys::signal::Signal;

/// Environment variable that tells a copy of this program what to open: backend and interface.
const OPEN: &str = "CXLOE_TEST_OPEN";

fn main() -> ExitCode {
    common::run(tests, &[("opener", opener), ("holder", holder)], &[])
}

type ForBackend = fn(Backend) -> Outcome;

fn tests(standing: Standing) -> Vec<Trial> {
    let for_each: [(&str, ForBackend); 11] = [
        ("frames_pass_whole_at_1500", |b| frames_pass_whole(b, 1500)),
        ("frames_pass_whole_at_9000", |b| frames_pass_whole(b, 9000)),
        ("batches_keep_their_order", batches_keep_their_order),
        ("slots_are_lent_once", slots_are_lent_once),
        ("priority_is_a_tag_on_the_wire_only", priority_is_a_tag_on_the_wire_only),
        ("frames_of_others_stay_out", frames_of_others_stay_out),
        ("waiting_sleeps_and_wakes", waiting_sleeps_and_wakes),
        ("losses_are_counted", losses_are_counted),
        ("link_outlives_its_interface_going_down", link_outlives_its_interface_going_down),
        ("errors_name_the_interface", errors_name_the_interface),
        ("missing_rights_are_named", missing_rights_are_named),
    ];
    let mut backends = vec![Backend::Packet, Backend::Pnet];
    if standing == Standing::Root {
        backends.push(Backend::Xdp);
    }
    let mut tests = Vec::new();
    for backend in backends {
        for (name, test) in for_each {
            tests.push(Trial::test(format!("{backend}::{name}"), move || test(backend)));
        }
    }
    tests.push(Trial::test("packet::two_links_share_an_interface", two_links_share_an_interface));
    tests.push(Trial::test("pnet::has_one_queue", pnet_has_one_queue));
    tests.push(Trial::test("auto_says_what_it_takes", move || auto_says_what_it_takes(standing)));
    if standing == Standing::Root {
        tests.push(Trial::test("xdp::two_queues", xdp_two_queues));
        tests.push(Trial::test("xdp::second_opener_is_told", xdp_second_opener_is_told));
        tests.push(Trial::test("xdp::program_goes_with_the_link", xdp_program_goes_with_the_link));
        tests.push(Trial::test("xdp::settings_are_put_back", xdp_settings_are_put_back));
    }
    tests
}

fn config(backend: Backend, interface: &str) -> LinkConfig {
    LinkConfig { backend, ..LinkConfig::new(interface) }
}

/// Links of one backend at both ends of the cable.
fn ends(lab: &Lab, backend: Backend) -> Result<[Box<dyn Link>; 2], Failed> {
    Ok([link_on(lab, &config(backend, "cn0"))?, link_on(lab, &config(backend, "mn0"))?])
}

/// A frame whose bytes are told by its number.
fn frame(to: Mac, from: Mac, ethertype: u16, len: usize, number: u64) -> Vec<u8> {
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

fn ours(to: Mac, from: Mac, len: usize, number: u64) -> Vec<u8> {
    frame(to, from, ETHERTYPE_DEFAULT, len, number)
}

/// Queues a frame, sending what is queued when there is no room for it.
fn queue(link: &mut dyn Link, frame: &[u8]) -> Outcome {
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

/// Takes frames until there are `count`, or fails.
fn take(link: &mut dyn Link, count: usize) -> Result<Vec<Vec<u8>>, Failed> {
    let mut frames = Vec::new();
    let deadline = Instant::now() + LIMIT;
    while frames.len() < count {
        let budget = count - frames.len();
        link.receive(budget, &mut |frame, _| frames.push(frame.to_vec()))?;
        ensure(Instant::now() < deadline, format!("{} of {count} frames came", frames.len()))?;
    }
    Ok(frames)
}

fn same(sent: &[Vec<u8>], got: &[Vec<u8>]) -> Outcome {
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

/// Sends `frames` from one end and checks that exactly they come out at the other.
fn pass(from: &mut dyn Link, to: &mut dyn Link, frames: &[Vec<u8>]) -> Outcome {
    for frame in frames {
        queue(from, frame)?;
    }
    from.flush()?;
    same(frames, &take(to, frames.len())?)
}

fn frames_pass_whole(backend: Backend, mtu: u32) -> Outcome {
    let lab = pair().mtu(mtu).build()?;
    let [mut a, mut b] = ends(&lab, backend)?;
    let (at_a, at_b) = (a.info().clone(), b.info().clone());
    ensure(at_a.mtu == mtu as usize && at_a.backend == backend.to_string(), format!("{at_a:?}"))?;
    ensure(at_a.max_frame <= at_a.mtu + 14 && at_a.max_frame >= 1514, format!("{at_a:?}"))?;
    if backend != Backend::Xdp {
        ensure(at_a.max_frame == at_a.mtu + 14, "less than the MTU carries")?;
    }
    let lengths = [60, 93, 256, 1514, at_a.max_frame - 1, at_a.max_frame];
    let frames = |to, from| -> Vec<_> {
        lengths
            .iter()
            .enumerate()
            .map(|(i, &len)| ours(to, from, len.min(at_a.max_frame), i as u64))
            .collect()
    };
    for _ in 0..3 {
        pass(&mut *a, &mut *b, &frames(at_b.mac, at_a.mac))?;
        pass(&mut *b, &mut *a, &frames(at_a.mac, at_b.mac))?;
    }
    let (sent, got) = (a.counters(), b.counters());
    let bytes: usize = 3 * lengths.iter().sum::<usize>();
    ensure((sent.tx_frames, sent.tx_bytes) == (18, bytes as u64), format!("{sent:?}"))?;
    ensure((got.rx_frames, got.rx_bytes) == (18, bytes as u64), format!("{got:?}"))?;
    ensure((got.rx_dropped, sent.tx_errors) == (0, 0), format!("{sent:?} {got:?}"))
}

fn batches_keep_their_order(backend: Backend) -> Outcome {
    let lab = pair().build()?;
    let [mut a, mut b] = ends(&lab, backend)?;
    let (from, to) = (a.info().mac, b.info().mac);
    // Many times around both rings, in batches that a veth (256 frames) has room for.
    for batch in 0..40_u64 {
        let frames: Vec<_> = (0..100)
            .map(|i| ours(to, from, 60 + ((batch * 100 + i) * 37 % 1400) as usize, batch * 100 + i))
            .collect();
        pass(&mut *a, &mut *b, &frames)?;
    }
    // No more than the budget at a time.
    for number in 0..10 {
        queue(&mut *a, &ours(to, from, 60, number))?;
    }
    a.flush()?;
    let (mut calls, mut came) = (0, 0);
    eventually("ten frames come", || {
        let mut now = 0;
        let told = b.receive(3, &mut |_, _| now += 1).unwrap_or(usize::MAX);
        calls = calls.max(now);
        came += now;
        told <= 3 && came >= 10
    })?;
    ensure(calls <= 3 && came == 10, format!("{calls} frames at once, {came} in all"))
}

fn slots_are_lent_once(backend: Backend) -> Outcome {
    let lab = pair().build()?;
    let [mut a, mut b] = ends(&lab, backend)?;
    let (from, to, max) = (a.info().mac, b.info().mac, a.info().max_frame);
    let tx = a.transmit();
    tx.commit(); // nothing was lent: nothing happens
    ensure(tx.slot(max + 1).is_none(), "a slot for more than the link carries")?;
    ensure(tx.slot(max).is_some(), "no slot for the longest frame")?;
    let first = tx.slot(100).ok_or("no slot")?.as_ptr();
    let (discarded, sent) = (ours(to, from, 100, 1), ours(to, from, 64, 2));
    tx.slot(100).ok_or("no slot")?.copy_from_slice(&discarded);
    let slot = tx.slot(64).ok_or("no slot")?;
    ensure(slot.as_ptr() == first && slot.len() == 64, "asked again, another slot was lent")?;
    slot.copy_from_slice(&sent);
    tx.commit();
    tx.commit();
    a.flush()?;
    let last = ours(to, from, 70, 3);
    queue(&mut *a, &last)?;
    a.flush()?;
    same(&[sent, last], &take(&mut *b, 2)?)?;
    ensure(a.counters().tx_frames == 2, format!("{:?}", a.counters()))
}

fn priority_is_a_tag_on_the_wire_only(backend: Backend) -> Outcome {
    let lab = pair().build()?;
    let mut a = link_on(&lab, &LinkConfig { priority: Some(5), ..config(backend, "cn0") })?;
    let neighbour = lab.enter("mn", || Raw::open("mn0"))??;
    let b = link_on(&lab, &config(Backend::Packet, "mn0"))?;
    let (from, to, max) = (a.info().mac, b.info().mac, a.info().max_frame);
    drop(b);
    let sent: Vec<_> = [60, 89, max].iter().map(|&len| ours(to, from, len, len as u64)).collect();
    for frame in &sent {
        queue(&mut *a, frame)?;
    }
    a.flush()?;
    let mut seen = Vec::new();
    eventually("the neighbour sees all frames", || {
        if let Ok(Some(frame)) = neighbour.receive(Duration::from_millis(100))
            && frame.bytes[12..14] == ETHERTYPE_DEFAULT.to_be_bytes()
        {
            seen.push(frame);
        }
        seen.len() == sent.len()
    })?;
    for (sent, seen) in sent.iter().zip(&seen) {
        ensure(seen.tag == Some(5 << 13), format!("tag {:x?}: not priority 5 with VLAN 0", seen.tag))?;
        ensure(&seen.bytes == sent, "other bytes beside the tag")?;
    }
    // A receiver, tagging or not, never sees the tag.
    for priority in [None, Some(2)] {
        let mut b = link_on(&lab, &LinkConfig { priority, ..config(backend, "mn0") })?;
        pass(&mut *a, &mut *b, &sent)?;
    }
    Ok(())
}

fn frames_of_others_stay_out(backend: Backend) -> Outcome {
    let lab = pair().build()?;
    let neighbour = lab.enter("cn", || Raw::open("cn0"))??;
    let mut link = link_on(&lab, &config(backend, "mn0"))?;
    let (own, from) = (link.info().mac, Mac([2, 0, 0, 0, 9, 9]));
    let mut near = own;
    near.0[5] ^= 1;
    let mut far = own;
    far.0[0] ^= 4;
    let good: Vec<_> = (0..3).map(|i| ours(own, from, 60 + i * 100, i as u64)).collect();
    for good in &good {
        for other in [near, far, Mac([0xFF; 6]), Mac([1, 0x80, 0xC2, 0, 0, 1])] {
            neighbour.send(&ours(other, from, 80, 7))?;
        }
        for ethertype in [0x0800, 0x8808, 0x8100, ETHERTYPE_DEFAULT + 1, 0x0040] {
            neighbour.send(&frame(own, from, ethertype, 80, 8))?;
        }
        neighbour.send(good)?;
    }
    same(&good, &take(&mut *link, good.len())?)?;
    let mut more = 0;
    for _ in 0..100 {
        link.receive(64, &mut |_, _| more += 1)?;
    }
    let counters = link.counters();
    ensure(more == 0 && counters.rx_frames == 3, format!("{more} more frames; {counters:?}"))
}

fn waiting_sleeps_and_wakes(backend: Backend) -> Outcome {
    let lab = pair().build()?;
    let [mut a, mut b] = ends(&lab, backend)?;
    sleeps(&mut *b)?;
    let frame = ours(b.info().mac, a.info().mac, 60, 1);
    let waits = std::thread::spawn(move || -> Result<usize, LinkError> {
        let mut came = 0;
        for _ in 0..40 {
            b.wait(LIMIT / 40)?;
            came += b.receive(64, &mut |_, _| {})?;
            if came > 0 {
                break;
            }
        }
        Ok(came)
    });
    queue(&mut *a, &frame)?;
    a.flush()?;
    let came = waits.join().map_err(|_| "the waiting thread panicked")??;
    ensure(came == 1, format!("{came} frames after all waits"))
}

/// Waits with nothing to wait for take their time: the thread sleeps. (A wait may end early now and then, when a
/// frame of somebody else has come, so a part of the time is asked for.)
fn sleeps(link: &mut dyn Link) -> Outcome {
    let began = Instant::now();
    for _ in 0..10 {
        link.wait(Duration::from_millis(20))?;
        link.receive(64, &mut |_, _| {})?;
    }
    ensure(began.elapsed() >= Duration::from_millis(100), "waiting does not sleep: it spins")
}

fn losses_are_counted(backend: Backend) -> Outcome {
    const SENT: u64 = 40_000;
    let lab = pair().build()?;
    let neighbour = lab.enter("cn", || Raw::open("cn0"))??;
    let mut link = link_on(&lab, &config(backend, "mn0"))?;
    let frame = ours(link.info().mac, Mac([2, 0, 0, 0, 9, 9]), 60, 1);
    for _ in 0..SENT {
        neighbour.send(&frame)?;
    }
    let mut wrong = 0;
    eventually("everything is received or counted as lost", || {
        let taken = link.receive(64, &mut |got, _| wrong += u64::from(got != frame)).unwrap_or(0);
        taken == 0 && link.counters().rx_frames > 0
    })?;
    let counters = link.counters();
    let (got, lost) = (counters.rx_frames, counters.rx_dropped);
    ensure(wrong == 0, format!("{wrong} damaged frames"))?;
    ensure(lost > 0 && got + lost <= SENT, format!("{got} received, {lost} lost, of {SENT}"))?;
    if backend == Backend::Packet {
        ensure(got + lost == SENT, format!("{got} received, {lost} lost, of {SENT}"))?;
    }
    ensure(link.counters().rx_dropped == lost, "asked again, the count has changed")?;
    // The ring works on after having been full.
    neighbour.send(&frame)?;
    same(&[frame], &take(&mut *link, 1)?)
}

fn link_outlives_its_interface_going_down(backend: Backend) -> Outcome {
    let lab = pair().build()?;
    let [mut a, mut b] = ends(&lab, backend)?;
    let (at_a, at_b) = (a.info().mac, b.info().mac);
    pass(&mut *a, &mut *b, &[ours(at_b, at_a, 60, 1)])?;
    lab.link_down("mn0")?;
    // Both ends go on trying, more often than any ring has slots.
    for number in 0..3_000 {
        for (link, to, from) in [(&mut a, at_b, at_a), (&mut b, at_a, at_b)] {
            if let Some(slot) = link.transmit().slot(60) {
                slot.copy_from_slice(&ours(to, from, 60, number));
                link.transmit().commit();
            }
            link.flush()?;
            link.receive(64, &mut |_, _| {})?;
        }
    }
    b.wait(Duration::from_millis(1))?;
    lab.link_up("mn0")?;
    for (from, to, (src, dst)) in [(0, 1, (at_a, at_b)), (1, 0, (at_b, at_a))] {
        let frame = ours(dst, src, 93, 0xF1A9);
        let mut ends = [&mut a, &mut b];
        eventually("frames pass again", || {
            if let Some(slot) = ends[from].transmit().slot(93) {
                slot.copy_from_slice(&frame);
                ends[from].transmit().commit();
            }
            let mut came = false;
            ends[from].flush().is_ok()
                && ends[to].receive(64, &mut |got, _| came |= got == frame).is_ok()
                && came
        })?;
    }
    // What is still on its way, then rest.
    for _ in 0..200 {
        a.receive(64, &mut |_, _| {})?;
        b.receive(64, &mut |_, _| {})?;
    }
    sleeps(&mut *a)?;
    sleeps(&mut *b)
}

fn errors_name_the_interface(backend: Backend) -> Outcome {
    let lab = pair().build()?;
    let refused = |interface: &str| -> Result<LinkError, Failed> {
        let config = config(backend, interface);
        match lab.enter("cn", || open(&config).map(drop))? {
            Ok(()) => Err(format!("{interface} was opened").into()),
            Err(e) => Ok(e),
        }
    };
    for name in ["cn9", "", "a-name-that-is-far-too-long", "cn0\0"] {
        let error = refused(name)?;
        ensure(matches!(&error, LinkError::NoSuchInterface(n) if n == name), format!("{error:?}"))?;
        ensure(error.to_string().contains("`ip link` lists them"), error.to_string())?;
    }
    ip(&lab, "cn", &["link", "set", "dev", "cn0", "mtu", "68"])?;
    let error = refused("cn0")?;
    ensure(matches!(&error, LinkError::MtuTooSmall { mtu: 68, .. }), format!("{error:?}"))?;
    ensure(error.to_string().contains("ip link set cn0 mtu 1500"), error.to_string())?;
    ip(&lab, "cn", &["link", "set", "dev", "cn0", "mtu", "1500"])?;
    lab.link_down("cn0")?;
    let error = refused("cn0")?;
    ensure(matches!(&error, LinkError::Down(name) if name == "cn0"), format!("{error:?}"))?;
    ensure(error.to_string().contains("ip link set cn0 up"), error.to_string())?;
    let error = refused("lo")?;
    ensure(matches!(&error, LinkError::Unsupported { .. }), format!("{error:?}"))
}

/// The copy that opens a link and prints what comes of it.
fn opener() -> ExitCode {
    match open_as_told() {
        Ok(link) => println!("opened {}", link.info().backend),
        Err(e) => println!("{e:?}\n{e}"),
    }
    ExitCode::SUCCESS
}

/// The copy that opens a link, says so, takes and answers frames for a while, and is killed meanwhile.
fn holder() -> ExitCode {
    let mut link = match open_as_told() {
        Ok(link) => link,
        Err(e) => {
            println!("{e}");
            return ExitCode::FAILURE;
        }
    };
    println!("opened");
    for _ in 0..300 {
        if link.receive(64, &mut |_, _| {}).and(link.wait(Duration::from_millis(200))).is_err() {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn open_as_told() -> Result<Box<dyn Link>, LinkError> {
    let told = std::env::var(OPEN).unwrap_or_default();
    let (backend, interface) = told.split_once(' ').unwrap_or_default();
    open(&config(backend.parse().unwrap_or_default(), interface))
}

fn missing_rights_are_named(backend: Backend) -> Outcome {
    let lab = pair().build()?;
    for asked in [backend, Backend::Auto] {
        let mut command = copy_without_rights_as("opener")?;
        command.env(OPEN, format!("{asked} cn0"));
        let folder = tempfile::tempdir()?;
        let log = folder.path().join("log");
        Process::log_to(&mut command, &log)?;
        lab.spawn("cn", command)?.wait(LIMIT)?;
        let said = fs::read_to_string(&log)?;
        ensure(said.starts_with("Permission"), format!("{asked}: {said}"))?;
        ensure(said.contains("no permission to") && said.contains("`cn0`"), said.clone())?;
        ensure(said.contains("CAP_NET_RAW") && said.contains("run as root"), said)?;
    }
    Ok(())
}

fn two_links_share_an_interface() -> Outcome {
    let lab = pair().build()?;
    let neighbour = lab.enter("cn", || Raw::open("cn0"))??;
    let queue = |queue| link_on(&lab, &LinkConfig { queue, queues: 2, ..config(Backend::Packet, "mn0") });
    let mut links = [queue(0)?, queue(1)?];
    let own = links[0].info().mac;
    // 32 neighbours, 20 frames each, interleaved.
    for number in 0..20_u64 {
        for source in 0..32_u8 {
            neighbour.send(&ours(own, Mac([2, 0, 0, 0, 7, source]), 60 + number as usize, number))?;
        }
    }
    let mut seen: [BTreeMap<u8, Vec<Vec<u8>>>; 2] = Default::default();
    eventually("all frames come", || {
        for (link, seen) in links.iter_mut().zip(&mut seen) {
            let _ = link.receive(64, &mut |frame, _| seen.entry(frame[11]).or_default().push(frame.to_vec()));
        }
        seen.iter().flat_map(BTreeMap::values).map(Vec::len).sum::<usize>() >= 640
    })?;
    ensure(seen.iter().all(|seen| !seen.is_empty()), "one of the links got nothing")?;
    for source in 0..32_u8 {
        let sent: Vec<_> = (0..20_u64)
            .map(|number| ours(own, Mac([2, 0, 0, 0, 7, source]), 60 + number as usize, number))
            .collect();
        let at: Vec<_> = seen.iter().filter_map(|seen| seen.get(&source)).collect();
        ensure(at.len() == 1, format!("frames of source {source} are spread over both links"))?;
        same(&sent, at[0])?;
    }
    Ok(())
}

fn pnet_has_one_queue() -> Outcome {
    let lab = pair().build()?;
    let config = LinkConfig { queues: 2, ..config(Backend::Pnet, "cn0") };
    match lab.enter("cn", || open(&config).map(drop))? {
        Err(e @ LinkError::Unsupported { backend: "pnet", .. }) => {
            ensure(e.to_string().contains("use the packet or xdp link"), e.to_string())
        }
        other => Err(format!("{other:?}").into()),
    }
}

/// A log kept in memory.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().map_err(|_| std::io::Error::other("poisoned"))?.extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn auto_says_what_it_takes(standing: Standing) -> Outcome {
    let lab = pair().build()?;
    let kept = Kept::default();
    let writer = kept.clone();
    let backend = lab.enter("cn", || {
        let log = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(log, || {
            open(&config(Backend::Auto, "cn0")).map(|l| l.info().backend)
        })
    })??;
    let said = String::from_utf8_lossy(&kept.0.lock().map_err(|_| "poisoned")?).into_owned();
    let expected = if standing == Standing::Root { "xdp" } else { "packet" };
    ensure(backend == expected, format!("{backend} was taken: {said}"))?;
    ensure(said.contains("link open") && said.contains(&format!("backend=\"{expected}\"")), said.clone())?;
    let refused = said.lines().filter(|line| line.contains("link not taken")).collect::<Vec<_>>();
    match standing {
        Standing::Root => ensure(refused.is_empty(), said.clone()),
        Standing::UserNamespace => ensure(
            refused.len() == 1 && refused[0].contains("backend=xdp") && refused[0].contains("AF_XDP needs"),
            said.clone(),
        ),
    }
}

fn xdp_two_queues() -> Outcome {
    let lab = pair().queues(2).build()?;
    let on = |interface: &str, queue| {
        link_on(&lab, &LinkConfig { queue, queues: 2, ..config(Backend::Xdp, interface) })
    };
    let mut near = [on("cn0", 0)?, on("cn0", 1)?];
    let mut far = [on("mn0", 0)?, on("mn0", 1)?];
    let (from, to) = (near[0].info().mac, far[0].info().mac);
    for queue in [0, 1] {
        let there: Vec<_> = (0..50).map(|i| ours(to, from, 100, i + 1000 * queue as u64)).collect();
        let back: Vec<_> = (0..50).map(|i| ours(from, to, 200, i + 1000 * queue as u64)).collect();
        pass(&mut *near[queue], &mut *far[queue], &there)?;
        pass(&mut *far[queue], &mut *near[queue], &back)?;
    }
    ensure(far.iter_mut().all(|l| l.counters().rx_frames == 50), "a frame arrived on the other queue")?;
    // One ends; the other works on.
    let [mut first, second] = far;
    drop(second);
    pass(&mut *near[0], &mut *first, &[ours(to, from, 60, 9)])
}

/// A copy of this program that holds an XDP link on mn0.
fn xdp_holder(lab: &Lab) -> Result<Process, Failed> {
    let mut command = copy_as("holder")?;
    command.env(OPEN, "xdp mn0").stdout(Stdio::piped());
    let mut holder = lab.spawn("mn", command)?;
    let mut said = String::new();
    let output = holder.child_mut().stdout.take().ok_or("no pipe")?;
    BufReader::new(output).read_line(&mut said)?;
    ensure(said == "opened\n", said)?;
    Ok(holder)
}

fn has_program(lab: &Lab) -> Result<bool, Failed> {
    Ok(ip(lab, "mn", &["-d", "link", "show", "dev", "mn0"])?.contains("xdp"))
}

fn xdp_second_opener_is_told() -> Outcome {
    let lab = pair().build()?;
    let holder = xdp_holder(&lab)?;
    let config = config(Backend::Xdp, "mn0");
    match lab.enter("mn", || open(&config).map(drop))? {
        Err(e @ LinkError::Unsupported { backend: "xdp", .. }) => {
            let said = e.to_string();
            ensure(said.contains("another program holds it") && said.contains("ip link show mn0"), said)?;
        }
        other => return Err(format!("{other:?}").into()),
    }
    // The same queue a second time in one process.
    drop(holder);
    eventually("the program is gone", || has_program(&lab).is_ok_and(|has| !has))?;
    let mut link = link_on(&lab, &config)?;
    let again = lab.enter("mn", || open(&config).map(drop))?;
    ensure(matches!(again, Err(LinkError::Unsupported { .. })), format!("{again:?}"))?;
    // The attempt has not harmed the first.
    let mut near = link_on(&lab, &LinkConfig { backend: Backend::Packet, ..LinkConfig::new("cn0") })?;
    let frame = ours(link.info().mac, near.info().mac, 60, 1);
    pass(&mut *near, &mut *link, &[frame])
}

fn xdp_program_goes_with_the_link() -> Outcome {
    let lab = pair().build()?;
    ensure(!has_program(&lab)?, "a program before there is a link")?;
    let link = link_on(&lab, &config(Backend::Xdp, "mn0"))?;
    ensure(has_program(&lab)?, "no program with a link")?;
    drop(link);
    eventually("the program goes with the link", || has_program(&lab).is_ok_and(|has| !has))?;
    let mut holder = xdp_holder(&lab)?;
    ensure(has_program(&lab)?, "no program with a holder")?;
    holder.signal(Signal::SIGKILL)?;
    holder.wait(LIMIT)?;
    eventually("the program goes with its killed holder", || has_program(&lab).is_ok_and(|has| !has))?;
    // And the interface is free for the next.
    drop(link_on(&lab, &config(Backend::Xdp, "mn0"))?);
    Ok(())
}

fn xdp_settings_are_put_back() -> Outcome {
    let lab = pair().build()?;
    let settings = || -> std::io::Result<[String; 2]> {
        let read = |name| fs::read_to_string(format!("/sys/class/net/mn0/{name}"));
        Ok([read("napi_defer_hard_irqs")?, read("gro_flush_timeout")?])
    };
    let mut near = link_on(&lab, &config(Backend::Packet, "cn0"))?;
    let from = near.info().mac;
    lab.enter("mn", || -> Outcome {
        // Values of somebody's own, so that putting zeros back would show.
        fs::write("/sys/class/net/mn0/napi_defer_hard_irqs", "7")?;
        fs::write("/sys/class/net/mn0/gro_flush_timeout", "12345")?;
        let before = settings()?;
        let mut link = open(&LinkConfig { busy_poll: true, ..config(Backend::Xdp, "mn0") })?;
        let frame = ours(link.info().mac, from, 60, 1);
        pass(&mut *near, &mut *link, &[frame])?;
        drop(link);
        ensure(settings()? == before, format!("{:?}, before {before:?}", settings()?))
    })?
}
