//! Links over real interfaces: the frames sent at one end of a cable, and no others, arrive at the other end, unchanged
//! and in order.
//!
//! Each backend is tested for the guarantees of the `Link` trait: packet rings and pnet as root and as an ordinary
//! user, AF_XDP and devices of DPDK as root only. Raw sockets act as neighbours; processes that are killed, or that have
//! no rights, are copies of this program.

mod dpdk;
mod promises;
mod roles;
mod traffic;
mod xdp;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{ExitCode, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cxloe_lab::{Lab, LabPrivilege, Process};
use cxloe_link::{Backend, Link, LinkConfig, LinkError, open};
use cxloe_system::cable::LinkKind;
use cxloe_system::memif::{SPLICE, by_dpdk, packet_device};
use cxloe_system::node::link_on;
use cxloe_system::raw::RawSocket;
use cxloe_system::{Failed, Test};
use cxloe_system::{
    LIMIT, Outcome, Role, cable::cable, cable::ip, copies::copy_without_rights_as, copy_as, ensure,
    eventually,
};
use cxloe_wire::frame::{ETHERTYPE_DEFAULT, MAX_FRAME_LIMIT, Mac};
use nix::sys::signal::Signal;

use dpdk::*;
use promises::*;
use roles::*;
use traffic::*;
use xdp::*;

/// Environment variable with the link that a copy of this program opens: backend and interface.
const OPEN: &str = "CXLOE_TEST_OPEN";

type ForKind = fn(LinkKind) -> Outcome;
type ForBackend = fn(Backend) -> Outcome;

/// Guarantees of every kind of link.
const OF_ALL: [(&str, ForKind); 8] = [
    ("frames_pass_whole_at_1500", |over| frames_pass_whole(over, 1500)),
    ("frames_pass_whole_at_9000", |over| frames_pass_whole(over, 9000)),
    ("pages_and_lines_take_turns", pages_and_lines_take_turns),
    ("batches_keep_their_order", batches_keep_their_order),
    ("slots_are_lent_once", slots_are_lent_once),
    ("priority_is_a_tag_on_the_wire_only", priority_is_a_tag_on_the_wire_only),
    ("frames_of_others_stay_out", frames_of_others_stay_out),
    ("waiting_sleeps_and_wakes", waiting_sleeps_and_wakes),
];

/// Guarantees of links on interfaces of the kernel.
const OF_INTERFACES: [(&str, ForBackend); 4] = [
    ("losses_are_counted", losses_are_counted),
    ("link_outlives_its_interface_going_down", link_outlives_its_interface_going_down),
    ("errors_name_the_interface", errors_name_the_interface),
    ("missing_rights_are_named", missing_rights_are_named),
];

pub const ROLES: &[Role] = &[("opener", opener), ("holder", holder), SPLICE];

pub fn tests(standing: LabPrivilege) -> Vec<Test> {
    let mut backends = vec![Backend::Packet, Backend::Pnet];
    if standing == LabPrivilege::Root {
        backends.push(Backend::Xdp);
    }
    let mut tests = Vec::new();
    for backend in backends {
        for (name, test) in OF_ALL {
            tests.push(Test::new(format!("{backend}::{name}"), move || test(backend.into())));
        }
        for (name, test) in OF_INTERFACES {
            tests.push(Test::new(format!("{backend}::{name}"), move || test(backend)));
        }
    }
    if standing == LabPrivilege::Root {
        tests.extend(OF_ALL.map(|(name, test)| by_dpdk(name, move || test(LinkKind::DPDK))));
        tests.push(by_dpdk("a_queue_is_seen", a_queue_is_seen));
        tests.push(by_dpdk("frames_are_shown_and_then_received", frames_are_shown_and_then_received));
        tests.push(by_dpdk("a_hastened_frame_leaves_at_its_commit", a_hastened_frame_leaves_at_its_commit));
        let long = "frames_longer_than_a_buffer_are_lost";
        tests.push(by_dpdk(long, frames_longer_than_a_buffer_are_lost));
    }
    tests.push(Test::new("packet::two_links_share_an_interface", two_links_share_an_interface));
    tests.push(Test::new("pnet::has_one_queue", pnet_has_one_queue));
    tests.push(Test::new("auto_says_what_it_takes", move || auto_says_what_it_takes(standing)));
    if standing == LabPrivilege::Root {
        tests.push(Test::new("xdp::two_queues", xdp_two_queues));
        tests.push(Test::new("xdp::second_opener_is_told", xdp_second_opener_is_told));
        tests.push(Test::new("xdp::program_goes_with_the_link", xdp_program_goes_with_the_link));
        tests.push(Test::new("xdp::settings_are_put_back", xdp_settings_are_put_back));
    }
    tests
}

fn two_links_share_an_interface() -> Outcome {
    let lab = cable().build()?;
    let neighbour = lab.enter("cn", || RawSocket::open("cn0"))??;
    let queue = |queue| link_on(&lab, &LinkConfig { queue, queues: 2, ..config(Backend::Packet, "mn0") });
    let mut links = [queue(0)?, queue(1)?];
    let own = links[0].info().mac;
    // Each of 32 neighbours sends 20 frames, in turns with the others.
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
    let lab = cable().build()?;
    let config = LinkConfig { queues: 2, ..config(Backend::Pnet, "cn0") };
    match lab.enter("cn", || open(&config).map(drop))? {
        Err(e @ LinkError::Unsupported { backend: "pnet", .. }) => {
            ensure(e.to_string().contains("use the packet or xdp link"), e.to_string())
        }
        other => Err(format!("{other:?}").into()),
    }
}

/// A log that is kept in memory.
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

/// On a veth AF_XDP copies each frame, so `auto` selects packet rings, unless the highest number of frames
/// per second is requested.
fn auto_says_what_it_takes(standing: LabPrivilege) -> Outcome {
    let lab = cable().build()?;
    for asked in [Backend::Auto, Backend::AutoLatency, Backend::AutoThroughput] {
        let kept = Kept::default();
        let writer = kept.clone();
        let info = lab.enter("cn", || {
            let log = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
            tracing::subscriber::with_default(log, || open(&config(asked, "cn0")).map(|l| l.info().clone()))
        })??;
        let output_text = String::from_utf8_lossy(&kept.0.lock().map_err(|_| "poisoned")?).into_owned();
        let wants_xdp = asked == Backend::AutoThroughput;
        let expected = if wants_xdp && standing == LabPrivilege::Root { "xdp" } else { "packet" };
        ensure(info.backend == expected, format!("{asked}: {} was taken: {output_text}", info.backend))?;
        ensure(info.detail.contains("taken because"), info.detail)?;
        ensure(
            output_text.contains("link open") && output_text.contains(&format!("backend=\"{expected}\"")),
            output_text.clone(),
        )?;
        let refused = output_text.lines().filter(|line| line.contains("link not taken")).collect::<Vec<_>>();
        match standing {
            LabPrivilege::UserNamespace if wants_xdp => ensure(
                refused.len() == 1
                    && refused[0].contains("backend=xdp")
                    && refused[0].contains("AF_XDP needs"),
                output_text.clone(),
            )?,
            _ => ensure(refused.is_empty(), output_text.clone())?,
        }
    }
    Ok(())
}
