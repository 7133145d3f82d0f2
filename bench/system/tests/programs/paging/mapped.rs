//! Mapped regions in normal operation, and while parts of the system end, hang or misbehave.

#![expect(unsafe_code, reason = "a slice of mapped memory must have no other user")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use cxloe_client::client::{self, ClientError};
use cxloe_client::mapping::{MapError, MapOptions, Mapping, Owner};
use cxloe_client::message::{
    self, AgentAnswer, AgentCall, AgentRequest, JoinRequest, MapRequest, RefusalReason, ShownFiles, VERSION,
};
use cxloe_cn_core::engine::EngineError;
use cxloe_cn_core::mapped::MappingKind;
use cxloe_cn_core::pager::PagerCounters;
use nix::sys::signal::Signal;

use super::program::*;
use super::work::Job;
use cxloe_system::pair::*;

const SHORT: Duration = Duration::from_secs(1);

fn counters(rig: &Pair) -> Outcome<PagerCounters> {
    Ok(client::counters(&rig.socket())?.paging)
}

/// Checks that no program maps the region any more, and that all writes are at the memory node.
fn unmapped(rig: &Pair) -> Outcome {
    eventually("the mapping ends", || client::paging(&rig.socket(), None).ok()?.is_empty().then_some(()))
}

/// Four threads write to all of 2048 pages, of which sixteen may be resident.
pub fn threads_under_the_tightest_limit() -> Outcome {
    tightly(&rig(&[])?)
}

/// Like [`threads_under_the_tightest_limit`], with frames inside UDP; the manager sends each node the other's address.
pub fn threads_under_the_tightest_limit_inside_udp() -> Outcome {
    let rig = rig_inside_udp()?;
    tightly(&rig)?;
    let counted = client::counters(&rig.socket())?;
    ensure(counted.backend == "packet" && counted.link_detail.contains("inside UDP"), counted.link_detail)?;
    ensure(counted.link.rx_forged == 0, format!("{:?}", counted.link))
}

fn tightly(rig: &Pair) -> Outcome {
    let program = Program::start(rig, &job(rig, "lines"))?;
    program.works(Duration::from_secs(2))?;
    let done = program.finish()?;
    let counted = counters(rig)?;
    ensure(
        counted.evicted > 100 && counted.fetched > 100 && counted.lines_written_back > 100,
        format!("{counted:?}"),
    )?;
    ensure(counted.lost == 0 && counted.write_back_failures == 0, format!("{counted:?}"))?;
    ensure(done > 500, format!("{done} accesses only"))
}

pub fn what_was_written_is_there_for_the_next_program() -> Outcome {
    let rig = rig(&[])?;
    for threads in [1, 2] {
        // The first program writes the pages; the second one checks them.
        let job = Job { threads: 1, limit: 1 << 20, seed: 7, ..job(&rig, "verify") };
        let found = Program::start(&rig, &job)?.finish()?;
        ensure(found == threads - 1, format!("{found}"))?;
        unmapped(&rig)?;
    }
    // The data can also be read line by line.
    let hpa = rig.attached("pages", "active")?.hpa;
    let line = rig.connect()?.read(hpa + (4 << 20))?;
    ensure(line != [0; 64], "what was mapped reads line by line afterwards")?;
    // The mapping of a program that is killed by SIGKILL ends too, after its pages are written back.
    let mut killed = Program::start(&rig, &Job { seed: 7, ..job(&rig, "lines") });
    if let Ok(program) = &mut killed {
        program.process.signal(Signal::SIGKILL)?;
        program.ended()?;
    }
    unmapped(&rig)
}

pub fn processes_share_a_region() -> Outcome {
    let rig = rig(&[])?;
    // Each page has lines of both programs.
    let of = |part| Job { part: (part, 2), threads: 2, seed: 3, ..job(&rig, "lines") };
    let programs = [Program::start(&rig, &of(0))?, Program::start(&rig, &of(1))?];
    programs.iter().try_for_each(|program| program.works(SHORT))?;
    let [a, b] = programs;
    a.finish()?;
    b.works(SHORT)?;
    b.finish()?;
    unmapped(&rig)?;

    rig.gmm(&["create-region", "-s", "2M", "--owner", CN, "count"])?;
    rig.attached("count", "active")?;
    let of = |part| Job {
        part: (part, 2),
        threads: 3,
        seed: 2000,
        region: "count".into(),
        ..job(&rig, "counter")
    };
    let mut programs = [Program::start(&rig, &of(0))?, Program::start(&rig, &of(1))?];
    for program in &programs {
        program.says("done 6000")?;
    }
    for program in &mut programs {
        program.ask_to_stop();
    }
    for mut program in programs {
        let status = program.ended()?;
        ensure(status.success(), program.log())?;
        ensure(
            program.number_of("sum ") == 12_000,
            format!("{} additions of 12000", program.number_of("sum ")),
        )?;
    }
    Ok(())
}

pub fn the_kernel_touches_pages_too() -> Outcome {
    let rig = rig(&["--wait", "sleep"])?;
    Program::start(&rig, &job(&rig, "system-calls"))?.finish().map(drop)
}

pub fn parts_may_be_discarded_and_unmapped() -> Outcome {
    let rig = rig(&[])?;
    Program::start(&rig, &Job { limit: 1 << 20, ..job(&rig, "parts") })?.finish()?;
    unmapped(&rig)
}

/// A program calls `Mapping::hint` and finds the effects in the agent's counters.
pub fn programs_say_what_they_will_need() -> Outcome {
    let rig = rig(&[])?;
    Program::start(&rig, &Job { limit: 4 << 20, ..job(&rig, "hints") })?.finish()?;
    unmapped(&rig)
}

pub fn many_threads_fault_at_once() -> Outcome {
    let rig = rig(&[])?;
    let program = Program::start(&rig, &Job { threads: 48, limit: 256 << 10, ..job(&rig, "lines") })?;
    program.works(SHORT)?;
    program.finish().map(drop)
}

pub fn frames_may_be_lost() -> Outcome {
    let rig = rig(&["--faults", "drop=0.01"])?;
    let program = Program::start(&rig, &job(&rig, "lines"))?;
    program.works(Duration::from_secs(2))?;
    program.finish()?;
    let counted = counters(&rig)?;
    ensure(counted.lost == 0 && counted.evicted > 50, format!("{counted:?}"))
}

/// The agent is killed repeatedly while two programs access pages; no data is lost.
pub fn a_killed_agent_is_taken_over_from() -> Outcome {
    let rig = rig(&[])?;
    let of = |part| Job { part: (part, 2), threads: 2, seed: 5, limit: 128 << 10, ..job(&rig, "lines") };
    let programs = [Program::start(&rig, &of(0))?, Program::start(&rig, &of(1))?];
    for _ in 0..3 {
        programs.iter().try_for_each(|program| program.works(Duration::from_millis(300)))?;
        rig.kill("agent")?;
        rig.start_agent(&[])?;
        programs.iter().try_for_each(|program| program.makes_progress(1000))?;
    }
    eventually("the takeover is complete", || {
        let views = client::paging(&rig.socket(), None).ok()?;
        views.iter().all(|view| !view.taking_over && view.owners == 2).then_some(())
    })?;
    let evicted = counters(&rig)?.evicted;
    programs.iter().try_for_each(|program| program.makes_progress(1000))?;
    ensure(counters(&rig)?.evicted > evicted, "pages leave again after the takeover")?;
    for program in programs {
        program.finish()?;
    }
    unmapped(&rig)
}

/// Three programs run, each with its own region and worker. The agent is killed several times, and restarted with other
/// numbers of workers.
pub fn several_workers_serve_several_programs() -> Outcome {
    let rig = rig(&["--workers", "3"])?;
    for name in ["pages1", "pages2"] {
        rig.gmm(&["create-region", "-s", &BYTES.to_string(), "--owner", CN, name])?;
    }
    let names = ["pages", "pages1", "pages2"];
    let workers = |rig: &Pair| -> Outcome<Vec<usize>> {
        names.iter().map(|name| Ok(rig.attached(name, "active")?.worker)).collect()
    };
    ensure(workers(&rig)? == [0, 1, 2], format!("{:?}", workers(&rig)?))?;
    let start =
        |name: &&str| Program::start(&rig, &Job { threads: 2, region: (*name).into(), ..job(&rig, "lines") });
    let programs = names.iter().map(start).collect::<Outcome<Vec<_>>>()?;
    programs.iter().try_for_each(|program| program.works(Duration::from_millis(300)))?;
    let served = client::paging(&rig.socket(), None)?;
    ensure(served.len() == 3 && served.iter().all(|view| view.counters.faults > 0), format!("{served:?}"))?;
    client::set_limit(&rig.socket(), served[2].space, 256 << 10)?;
    for number in ["2", "1", "3"] {
        rig.kill("agent")?;
        rig.start_agent(&["--workers", number])?;
        programs.iter().try_for_each(|program| program.makes_progress(1000))?;
    }
    ensure(workers(&rig)? == [0, 1, 2], format!("{:?}", workers(&rig)?))?;
    for program in programs {
        program.finish()?;
    }
    let lost = counters(&rig)?.lost;
    ensure(lost == 0, format!("{lost} pages lost"))?;
    unmapped(&rig)
}

pub fn an_agent_that_ends_is_taken_over_from() -> Outcome {
    let rig = rig(&[])?;
    let program = Program::start(&rig, &job(&rig, "lines"))?;
    program.works(SHORT)?;
    rig.stop("agent")?;
    rig.start_agent(&[])?;
    program.makes_progress(1000)?;
    program.finish()?;
    unmapped(&rig)
}

pub fn without_a_successor_the_program_ends() -> Outcome {
    let rig = rig(&[])?;
    let mut program = Program::start(&rig, &Job { wait: SHORT, ..job(&rig, "lines") })?;
    program.works(Duration::from_millis(200))?;
    rig.kill("agent")?;
    let status = program.ended()?;
    ensure(status.signal() == Some(libc::SIGABRT), format!("{status}: {}", program.log()))?;
    program.says("has ended")
}

pub fn lost_data_is_a_signal_and_never_zeros() -> Outcome {
    cxloe_lab::expect_error("has not answered within the limit");
    cxloe_lab::expect_error("a page is given up");
    let rig = rig(&[])?;
    let write = Job { threads: 1, limit: 1 << 20, seed: 7, ..job(&rig, "verify") };
    Program::start(&rig, &write)?.finish()?;
    unmapped(&rig)?;
    let touch = Job { seed: 7, lost_wait: SHORT, ..job(&rig, "touch") };
    let mut program = Program::start(&rig, &touch)?;
    program.makes_progress(1)?;
    rig.kill("mn")?;
    let status = program.ended()?;
    ensure(status.signal() == Some(libc::SIGBUS), format!("{status}: {}", program.log()))?;
    ensure(!program.log().contains("failed"), program.log())?;
    ensure(counters(&rig)?.lost > 0, "what is lost is counted")
}

pub fn the_manager_may_be_gone() -> Outcome {
    let rig = rig(&[])?;
    let program = Program::start(&rig, &job(&rig, "lines"))?;
    rig.kill("gmm")?;
    program.works(SHORT)?;
    program.finish().map(drop)
}

pub fn the_cable_may_be_unplugged() -> Outcome {
    cxloe_lab::expect_error("has not answered within the limit");
    let rig = rig(&[])?;
    let program = Program::start(&rig, &job(&rig, "lines"))?;
    program.works(SHORT)?;
    rig.lab.link_down("cn0")?;
    // The link is down for longer than the session time-out.
    std::thread::sleep(Duration::from_secs(2));
    rig.lab.link_up("cn0")?;
    program.makes_progress(1000)?;
    program.finish().map(drop)
}

pub fn mapped_regions_are_not_read_line_by_line() -> Outcome {
    let rig = rig(&[])?;
    let hpa = rig.attached("pages", "active")?.hpa;
    let mut port = rig.connect()?;
    recovered(&mut port, hpa)?;
    port.write(hpa, &[9; 64])?;
    let mapping = Mapping::open(&rig.socket(), "pages", MapOptions::default())?;
    let refused = port.read(hpa).unwrap_err();
    ensure(
        matches!(refused, ClientError::Engine(EngineError::Mapped(at)) if at == hpa),
        refused.to_string(),
    )?;
    // Lines that were modified in the agent's line cache are part of the mapped page. SAFETY: the region has no other
    // user.
    let byte = unsafe { mapping.as_slice()[5] };
    ensure(byte == 9, format!("{byte}"))?;
    let listed = succeeded(rig.cli(&["paging"])?)?;
    ensure(listed.contains("pages") && listed.contains(&std::process::id().to_string()), listed)?;
    drop(mapping);
    unmapped(&rig)?;
    recovered(&mut port, hpa).map(drop)
}

pub fn limits_change_and_mappings_end() -> Outcome {
    let rig = rig(&[])?;
    let socket = rig.socket();
    let nowhere = Mapping::open(&socket, "nowhere", MapOptions::default()).unwrap_err();
    ensure(
        matches!(&nowhere, MapError::Agent(ClientError::Refused { reason: RefusalReason::NoRegion(_), .. })),
        nowhere.to_string(),
    )?;
    let tight =
        Mapping::open(&socket, "pages", MapOptions { limit: 4096, ..MapOptions::default() }).unwrap_err();
    ensure(tight.to_string().contains("too low"), tight.to_string())?;

    let options = MapOptions { limit: BYTES, ..MapOptions::default() };
    let mut mapping = Mapping::open(&socket, "pages", options)?;
    // SAFETY: the region has no other user.
    unsafe { mapping.as_mut_slice() }.fill(3);
    let before = mapping.paging()?;
    ensure(before.resident == BYTES && before.counters.evicted == 0, format!("{before:?}"))?;
    mapping.set_limit(1 << 20)?;
    eventually("pages leave", || (mapping.paging().ok()?.resident <= 1 << 20).then_some(()))?;
    // SAFETY: the region has no other user.
    ensure(unsafe { mapping.as_slice() }.iter().all(|byte| *byte == 3), "what left comes back")?;
    let other = Owner::map(&socket, private(&rig)).unwrap_err();
    ensure(
        matches!(&other, ClientError::Refused { reason: RefusalReason::Mapped(_), .. }),
        other.to_string(),
    )?;
    mapping.flush()?;
    drop(mapping);
    unmapped(&rig)
}

fn private(_rig: &Pair) -> MapRequest {
    let request = MapRequest::new("pages", MappingKind::Private, 1 << 20, Duration::from_secs(1));
    MapRequest { fresh: true, ..request }
}

/// A program that sends malformed messages, misrepresents its memory or ends without a message is disconnected; another
/// program continues.
pub fn hostile_members_hurt_only_themselves() -> Outcome {
    let rig = rig(&[])?;
    let program = Program::start(&rig, &job(&rig, "lines"))?;
    let view = eventually("the region is mapped", || client::paging(&rig.socket(), None).ok()?.pop())?;
    let join = |space: u64, address: u64, bytes: u64| -> Outcome<Vec<u8>> {
        let mut socket = UnixStream::connect(rig.socket())?;
        socket.set_read_timeout(Some(LIMIT))?;
        let pid = std::process::id();
        let request = JoinRequest {
            space,
            address,
            bytes,
            offset: 0,
            pid,
            view: None,
            proof: None,
            resume: false,
            files: ShownFiles::None,
        };
        message::write(&mut socket, &AgentRequest { version: VERSION, ask: AgentCall::Join(request) })?;
        let mut output_text = Vec::new();
        socket.read_to_end(&mut output_text)?;
        Ok(output_text)
    };
    for (space, address, bytes, words) in [
        (view.space, 0, 1 << 60, "whole pages"),
        (view.space, 17, 4096, "whole pages"),
        (view.space, 4096, 4096, "no userfaultfd"),
        (view.space ^ 1, 4096, 4096, "no such space"),
    ] {
        let output_text = String::from_utf8_lossy(&join(space, address, bytes)?).into_owned();
        ensure(output_text.contains(words), output_text)?;
    }
    // The connection that owns one mapping is closed without a message; another connection sends malformed messages.
    drop(Owner::map(&rig.socket(), MapRequest { kind: MappingKind::Shared, ..private(&rig) })?);
    let mut socket = UnixStream::connect(rig.socket())?;
    socket.write_all(&[0xFF; 4096])?;
    let request = MapRequest { resume: true, region: "other".into(), ..private(&rig) };
    let mut socket = UnixStream::connect(rig.socket())?;
    socket.set_read_timeout(Some(LIMIT))?;
    message::write(&mut socket, &AgentRequest { version: VERSION, ask: AgentCall::Map(request) })?;
    let answer: AgentAnswer = message::read(&mut socket, 4096)?;
    ensure(matches!(answer, AgentAnswer::Refused(RefusalReason::NotResumed(_))), format!("{answer:?}"))?;
    program.makes_progress(1000)?;
    program.finish().map(drop)
}

/// A page fault wakes a sleeping agent.
pub fn an_idle_agent_sleeps_and_wakes() -> Outcome {
    let rig = rig(&["--wait", "sleep"])?;
    let mapping =
        Mapping::open(&rig.socket(), "pages", MapOptions { limit: 1 << 20, ..MapOptions::default() })?;
    let pid = rig.pid("agent")?;
    let ticks = || -> Outcome<u64> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let fields: Vec<&str> = stat.rsplit_once(')').ok_or("stat")?.1.split_whitespace().collect();
        Ok(fields[11].parse::<u64>()? + fields[12].parse::<u64>()?)
    };
    for page in 0..20 {
        std::thread::sleep(Duration::from_millis(20));
        // SAFETY: the region has no other user.
        ensure(unsafe { mapping.as_slice()[page * 4096 * 7] } == 0, "zeros")?;
    }
    let before = ticks()?;
    // The CPU time of the idle agent is counted over these two seconds.
    std::thread::sleep(Duration::from_secs(2));
    let spent = ticks()? - before;
    ensure(spent <= 20, format!("{spent} ticks of CPU in two idle seconds"))?;
    drop(mapping);
    unmapped(&rig)
}
