//! Properties that only AF_XDP has.

use super::traffic::*;
use super::*;

pub fn xdp_two_queues() -> Outcome {
    let lab = cable().queues(2).build()?;
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
    // One queue is closed; the other continues to receive.
    let [mut first, second] = far;
    drop(second);
    pass(&mut *near[0], &mut *first, &[ours(to, from, 60, 9)])
}

/// A copy of this program that holds an XDP link on mn0.
pub fn xdp_holder(lab: &Lab) -> Result<Process, Failed> {
    let mut command = copy_as("holder")?;
    command.env(OPEN, "xdp mn0").stdout(Stdio::piped());
    let mut holder = lab.spawn("mn", command)?;
    let mut output_text = String::new();
    let output = holder.child_mut().stdout.take().ok_or("no pipe")?;
    BufReader::new(output).read_line(&mut output_text)?;
    ensure(output_text == "opened\n", output_text)?;
    Ok(holder)
}

pub fn has_program(lab: &Lab) -> Result<bool, Failed> {
    Ok(ip(lab, "mn", &["-d", "link", "show", "dev", "mn0"])?.contains("xdp"))
}

pub fn xdp_second_opener_is_told() -> Outcome {
    let lab = cable().build()?;
    let holder = xdp_holder(&lab)?;
    let config = config(Backend::Xdp, "mn0");
    match lab.enter("mn", || open(&config).map(drop))? {
        Err(e @ LinkError::Unsupported { backend: "xdp", .. }) => {
            let output_text = e.to_string();
            ensure(
                output_text.contains("another program holds it") && output_text.contains("ip link show mn0"),
                output_text,
            )?;
        }
        other => return Err(format!("{other:?}").into()),
    }
    // A second link on the same queue is also refused within one process.
    drop(holder);
    eventually("the program is gone", || has_program(&lab).is_ok_and(|has| !has))?;
    let mut link = link_on(&lab, &config)?;
    let again = lab.enter("mn", || open(&config).map(drop))?;
    ensure(matches!(again, Err(LinkError::Unsupported { .. })), format!("{again:?}"))?;
    // The failed attempt has not affected the first link.
    let mut near = link_on(&lab, &LinkConfig { backend: Backend::Packet, ..LinkConfig::new("cn0") })?;
    let frame = ours(link.info().mac, near.info().mac, 60, 1);
    pass(&mut *near, &mut *link, &[frame])
}

pub fn xdp_program_goes_with_the_link() -> Outcome {
    let lab = cable().build()?;
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
    // The interface can be opened again.
    drop(link_on(&lab, &config(Backend::Xdp, "mn0"))?);
    Ok(())
}

pub fn xdp_settings_are_put_back() -> Outcome {
    let lab = cable().build()?;
    let settings = || -> std::io::Result<[String; 2]> {
        let read = |name| fs::read_to_string(format!("/sys/class/net/mn0/{name}"));
        Ok([read("napi_defer_hard_irqs")?, read("gro_flush_timeout")?])
    };
    let mut near = link_on(&lab, &config(Backend::Packet, "cn0"))?;
    let from = near.info().mac;
    lab.enter("mn", || -> Outcome {
        // The values differ from zero, so that a reset to zero would be detected.
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
