//! Guarantees that every kind of link gives, and those of links on interfaces of the kernel.

use super::traffic::*;
use super::*;

pub fn frames_pass_whole(over: LinkKind, mtu: u32) -> Outcome {
    let lab = cable().mtu(mtu).build()?;
    let [mut a, mut b] = ends(&lab, over)?;
    let (at_a, at_b) = (a.info().clone(), b.info().clone());
    ensure(at_a.mtu == mtu as usize && at_a.backend == over.to_string(), format!("{at_a:?}"))?;
    ensure(at_a.max_frame <= at_a.mtu + 14 && at_a.max_frame >= 1514, format!("{at_a:?}"))?;
    if over.backend != Backend::Xdp {
        ensure(at_a.max_frame == at_a.mtu + 14, "less than the MTU carries")?;
    }
    // A page fits into one frame if the MTU permits.
    ensure(at_a.max_frame >= (at_a.mtu + 14).min(MAX_FRAME_LIMIT), format!("{at_a:?}"))?;
    // These lengths are close to the length of an AF_XDP chunk, and to that of a page.
    let edges = [3835, 3836, 3837, 3840, 3841, 4096, 4097, MAX_FRAME_LIMIT];
    let mut lengths = vec![60, 93, 256, 1514, at_a.max_frame - 1, at_a.max_frame];
    lengths.extend(edges.into_iter().filter(|edge| *edge < at_a.max_frame - 1));
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
    let (count, bytes) = (3 * lengths.len() as u64, 3 * lengths.iter().sum::<usize>() as u64);
    ensure((sent.tx_frames, sent.tx_bytes) == (count, bytes), format!("{sent:?}"))?;
    ensure((got.rx_frames, got.rx_bytes) == (count, bytes), format!("{got:?}"))?;
    ensure((got.rx_dropped, sent.tx_errors) == (0, 0), format!("{sent:?} {got:?}"))
}

/// Short frames alternate with pages until all rings have wrapped around several times, so that chunks are
/// used in every order.
pub fn pages_and_lines_take_turns(over: LinkKind) -> Outcome {
    let lab = cable().mtu(9000).build()?;
    let [mut a, mut b] = ends(&lab, over)?;
    let (from, to) = (a.info().mac, b.info().mac);
    for batch in 0..120_u64 {
        let len = |i: u64| if (i * i + batch).is_multiple_of(3) { MAX_FRAME_LIMIT } else { 60 + i as usize };
        let frames: Vec<_> = (0..40).map(|i| ours(to, from, len(i), batch * 40 + i)).collect();
        pass(&mut *a, &mut *b, &frames)?;
    }
    let (sent, got) = (a.counters(), b.counters());
    ensure((got.rx_frames, got.rx_dropped, sent.tx_errors) == (4800, 0, 0), format!("{sent:?} {got:?}"))
}

pub fn batches_keep_their_order(over: LinkKind) -> Outcome {
    let lab = cable().build()?;
    let [mut a, mut b] = ends(&lab, over)?;
    let (from, to) = (a.info().mac, b.info().mac);
    // Both rings wrap around several times; a veth can hold each batch (256 frames).
    for batch in 0..40_u64 {
        let frames: Vec<_> = (0..100)
            .map(|i| ours(to, from, 60 + ((batch * 100 + i) * 37 % 1400) as usize, batch * 100 + i))
            .collect();
        pass(&mut *a, &mut *b, &frames)?;
    }
    // A receiver gets at most as many frames at a time as its budget permits.
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

pub fn slots_are_lent_once(over: LinkKind) -> Outcome {
    let lab = cable().build()?;
    let [mut a, mut b] = ends(&lab, over)?;
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

pub fn priority_is_a_tag_on_the_wire_only(over: LinkKind) -> Outcome {
    let lab = cable().build()?;
    let mut a = link_on(&lab, &LinkConfig { priority: Some(5), ..config_of(over, "cn0") })?;
    let neighbour = lab.enter("mn", || RawSocket::open("mn0"))??;
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
    // A link removes the 802.1Q tag of received frames, whether it adds tags to its own frames or not. Over DPDK both
    // links are made over one device: its driver keeps the socket of a closed device, and with a second device the two
    // sockets would share the frames of the interface (PACKET_FANOUT).
    let far = config_of(over, "mn0");
    for priority in [None, Some(2)] {
        let mut b = link_on(&lab, &LinkConfig { priority, ..far.clone() })?;
        pass(&mut *a, &mut *b, &sent)?;
    }
    Ok(())
}

pub fn frames_of_others_stay_out(over: LinkKind) -> Outcome {
    let lab = cable().build()?;
    let neighbour = lab.enter("cn", || RawSocket::open("cn0"))??;
    let (_splice, mut link) = link_at(&lab, over, "mn0")?;
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

pub fn waiting_sleeps_and_wakes(over: LinkKind) -> Outcome {
    let lab = cable().build()?;
    let [mut a, mut b] = ends(&lab, over)?;
    sleeps(&mut *b)?;
    let frame = ours(b.info().mac, a.info().mac, 60, 1);
    let waits = std::thread::spawn(move || -> Result<usize, LinkError> {
        let mut came = 0;
        for _ in 0..40 {
            b.wait(Duration::from_millis(500))?;
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

/// Checks that waits without an event last as long as requested, because the thread sleeps. A frame of another station
/// may end a wait early, so only a part of the time is required.
pub fn sleeps(link: &mut dyn Link) -> Outcome {
    let began = Instant::now();
    for _ in 0..10 {
        link.wait(Duration::from_millis(20))?;
        link.receive(64, &mut |_, _| {})?;
    }
    ensure(began.elapsed() >= Duration::from_millis(100), "waiting does not sleep: it spins")
}

pub fn losses_are_counted(backend: Backend) -> Outcome {
    const SENT: u64 = 40_000;
    let lab = cable().build()?;
    let neighbour = lab.enter("cn", || RawSocket::open("cn0"))??;
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
    // After an overflow, the ring receives frames again.
    neighbour.send(&frame)?;
    same(&[frame], &take(&mut *link, 1)?)
}

pub fn link_outlives_its_interface_going_down(backend: Backend) -> Outcome {
    let lab = cable().build()?;
    let [mut a, mut b] = ends(&lab, backend.into())?;
    let (at_a, at_b) = (a.info().mac, b.info().mac);
    pass(&mut *a, &mut *b, &[ours(at_b, at_a, 60, 1)])?;
    lab.link_down("mn0")?;
    // While the interface is down, both ends send more frames than any ring has slots.
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
    // Receives the frames that are still in flight, so that no frame ends the waits below.
    for _ in 0..200 {
        a.receive(64, &mut |_, _| {})?;
        b.receive(64, &mut |_, _| {})?;
    }
    sleeps(&mut *a)?;
    sleeps(&mut *b)
}

pub fn errors_name_the_interface(backend: Backend) -> Outcome {
    let lab = cable().build()?;
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
