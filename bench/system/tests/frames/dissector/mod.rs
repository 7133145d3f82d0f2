//! The Wireshark dissector compared with this project's decoder: tshark reads captures of real traffic, and every field
//! that it shows is compared with the result of `cxloe_wire` for the same bytes. Then tshark reads frames of every kind
//! with random bytes changed.
//!
//! [`traffic`] makes the captures (dumpcap at the switch between a line port and a real `mn-server`), [`tshark`] runs
//! the dissector, [`decoder`] computes the expected fields of one frame, and [`follow`] computes those that relate
//! frames.
//!
//! Runs as root, or as an ordinary user inside a private user namespace. Every wait is bounded.

mod decoder;
mod follow;
mod mutants;
mod traffic;
mod tshark;

use std::collections::{BTreeMap, BTreeSet};

use cxloe_lab::LabPrivilege;
use cxloe_system::{Failed, Test, tests};
use cxloe_system::{Outcome, ensure};
use cxloe_wire::frame::Command;
use traffic::{Captured, Traffic};
use tshark::Row;

pub fn tests(_: LabPrivilege) -> Vec<Test> {
    tests![
        a_quiet_session_is_followed_from_hello_to_bye,
        frames_inside_datagrams_are_followed_alike,
        losses_and_damage_are_told_apart,
        crowding_shows_and_pause_frames_are_left_to_wireshark,
        sealed_payloads_are_named_as_such,
        without_the_handshake_nothing_is_verified,
        one_pass_shows_what_it_can,
        frames_of_every_kind_and_mutants,
    ]
}

/// Compares all rows with the fields that [`decoder`] and [`follow`] compute; returns the number of frames of each
/// command.
fn compare(captured: &Captured, rows: &[Row], two_passes: bool) -> Result<BTreeMap<Command, usize>, Failed> {
    ensure(rows.len() == captured.frames.len(), format!("{} rows", rows.len()))?;
    let mut follower = follow::Follower::default();
    let mut expected = Vec::new();
    let mut seen = BTreeMap::new();
    for (index, frame) in captured.frames.iter().enumerate() {
        let mut row = Row::new();
        if let Some(followed) = follower.follow(index + 1, frame.time, &frame.bytes) {
            row = followed.row;
            decoder::describe(&mut row, &frame.bytes, followed.sealed);
            if let Some(command) = followed.command {
                *seen.entry(command).or_default() += 1;
            }
        }
        expected.push(row);
    }
    // tshark relates a request to a later frame only in its second pass.
    if two_passes {
        follower.link(&mut expected);
    }
    for (index, (expected, row)) in expected.iter().zip(rows).enumerate() {
        tshark::same(index + 1, expected, row)?;
    }
    Ok(seen)
}

fn has(seen: &BTreeMap<Command, usize>, commands: &[Command]) -> Outcome {
    let missing: Vec<_> = commands.iter().filter(|c| !seen.contains_key(c)).collect();
    ensure(missing.is_empty(), format!("no {missing:?} in the capture, only {seen:?}"))
}

const SESSION: [Command; 14] = [
    Command::Hello,
    Command::HelloAck,
    Command::Start,
    Command::StartAck,
    Command::Ping,
    Command::Pong,
    Command::Bye,
    Command::ByeAck,
    Command::ReadReq,
    Command::ReadResp,
    Command::WriteReq,
    Command::WriteResp,
    Command::BurstReadReq,
    Command::BurstReadResp,
];

/// Commands of frames with many requests.
const MANY: [Command; 4] =
    [Command::MultiReadReq, Command::MultiReadResp, Command::MultiWriteReq, Command::MultiWriteResp];

/// A capture with every kind of frame of a session without losses, and a Fault; each request is shown with its answer
/// and the time in between.
fn a_quiet_session_is_followed_from_hello_to_bye() -> Outcome {
    let captured = Traffic { echo: true, priority: Some(3), ..Traffic::quiet() }.capture()?;
    let rows = captured.read(&["-2"])?;
    let seen = compare(&captured, &rows, true)?;
    has(&seen, &SESSION)?;
    has(&seen, &[Command::BurstWriteReq, Command::Fault, Command::Echo, Command::EchoReply])?;
    has(&seen, &MANY)?;
    for row in rows.iter().filter(|row| row.contains_key("cxloe.command")) {
        let status = row.get("cxloe.trailer.status").map(String::as_str);
        ensure(matches!(status, None | Some("1")), format!("a trailer is not good: {row:?}"))?;
    }
    let answered = rows.iter().filter(|row| row.contains_key("cxloe.response_in")).count();
    let answers: Vec<_> = rows.iter().filter(|row| row.contains_key("cxloe.response_time")).collect();
    let asked: BTreeSet<_> = answers.iter().filter_map(|row| row.get("cxloe.response_to")).collect();
    // One acknowledgement may cover several writes that were sent in single frames: it refers to the first of these
    // frames.
    let is = |row: &Row, command: Command| {
        row.get("cxloe.command").is_some_and(|code| *code == format!("{:#04x}", command as u8))
    };
    let of_many = |frame: &String| {
        let at = frame.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
        at.and_then(|at| rows.get(at)).is_some_and(|row| is(row, Command::MultiWriteReq))
    };
    let joint = answers.iter().filter(|row| {
        is(row, Command::MultiWriteResp) && row.get("cxloe.response_to").is_some_and(|frame| !of_many(frame))
    });
    let others: usize =
        joint.filter_map(|row| row.get("cxloe.lines")?.parse::<usize>().ok()).map(|n| n - 1).sum();
    let counts = format!(
        "{answered} requests, {} of them with one of {} answers, {others} with another's",
        asked.len(),
        answers.len()
    );
    // A page is requested by one frame, and answered by several.
    ensure(answered == asked.len() + others && answered > 1000 && answers.len() > asked.len(), counts)?;
    ensure(rows.iter().any(|row| row.contains_key("vlan.priority")), "no frame was tagged")
}

/// Frames inside UDP are dissected and related like raw ones: the link `udp` puts unchanged frames into datagrams.
fn frames_inside_datagrams_are_followed_alike() -> Outcome {
    let captured = Traffic::quiet().capture()?.inside_datagrams(63669)?;
    has(&compare(&captured, &captured.read(&["-2"])?, true)?, &SESSION)?;
    // Datagrams to another port are not dissected, unless the dissector is configured for that port.
    let elsewhere = Traffic::quiet().capture()?.inside_datagrams(4791)?;
    let shown = |rows: &[Row]| rows.iter().filter(|row| row.contains_key("cxloe.command")).count();
    ensure(shown(&elsewhere.read(&[])?) == 0, "port 4791 is not ours")?;
    let told = elsewhere.read(&["-2", "-o", "cxloe.udp_port:4791"])?;
    has(&compare(&elsewhere, &told, true)?, &SESSION)
}

fn losses_and_damage_are_told_apart() -> Outcome {
    let faults = Some("drop=3%,dup=1%,reorder=2%,corrupt=1%");
    let captured = Traffic { faults, ..Traffic::quiet() }.capture()?;
    let rows = captured.read(&[])?;
    let seen = compare(&captured, &rows, false)?;
    has(&seen, &SESSION[8..])?;
    has(&seen, &[Command::SackNak])?;
    for filter in ["cxloe.bad_trailer", "cxloe.sent_again", "cxloe.gap", "cxloe.sack_of"] {
        ensure(rows.iter().any(|row| row.contains_key(filter)), format!("no {filter}"))?;
    }
    Ok(())
}

fn crowding_shows_and_pause_frames_are_left_to_wireshark() -> Outcome {
    let captured = Traffic { congestion: true, ..Traffic::quiet() }.capture()?;
    let rows = captured.read(&[])?;
    let seen = compare(&captured, &rows, false)?;
    has(&seen, &[Command::Congestion])?;
    let pauses = rows.iter().filter(|row| row.get("macc.opcode").is_some_and(|code| code == "0x0101"));
    ensure(pauses.clone().count() > 0, "no pause frame")?;
    ensure(pauses.into_iter().all(|row| !row.contains_key("cxloe.command")), "a pause frame is not ours")
}

fn sealed_payloads_are_named_as_such() -> Outcome {
    let captured = Traffic { sealed: true, ..Traffic::quiet() }.capture()?;
    let rows = captured.read(&[])?;
    let seen = compare(&captured, &rows, false)?;
    has(&seen, &SESSION)?;
    has(&seen, &MANY)?;
    let sealed = |row: &&Row| row.contains_key("cxloe.sealed");
    ensure(rows.iter().filter(sealed).count() > 500, "hardly anything is sealed")?;
    ensure(
        rows.iter().filter(sealed).all(|row| row.contains_key("cxloe.trailer.tag")),
        "sealed, but without a tag",
    )
}

/// In a capture that begins during a session, related frames are found, and checksums stay unverified.
fn without_the_handshake_nothing_is_verified() -> Outcome {
    let mut captured = Traffic::quiet().capture()?;
    captured.drop_first(|frame| frame.get(14) != Some(&(Command::StartAck as u8)))?;
    let rows = captured.read(&[])?;
    let answers = rows.iter().filter(|row| row.contains_key("cxloe.response_time")).count();
    ensure(answers > 1000, format!("{answers} answers were found"))?;
    for row in rows.iter().filter(|row| row.contains_key("cxloe.command")) {
        ensure(
            row.get("cxloe.trailer.status").is_some_and(|status| status == "2"),
            format!("verified: {row:?}"),
        )?;
        ensure(!row.contains_key("cxloe.session"), format!("a session that nobody named: {row:?}"))?;
    }
    Ok(())
}

/// In Wireshark's first pass over a file the dissector need not build a tree of fields. The fields after one pass and
/// after two passes are the same.
fn one_pass_shows_what_it_can() -> Outcome {
    let captured = Traffic::quiet().capture()?;
    let (once, mut twice) = (captured.read(&[])?, captured.read(&["-2"])?);
    // tshark relates a request to a later frame only in its second pass.
    for row in &mut twice {
        row.remove("cxloe.response_in");
    }
    for (index, (once, twice)) in once.iter().zip(&twice).enumerate() {
        tshark::same(index + 1, twice, once)?;
    }
    ensure(once.len() == twice.len(), "frames are missing")
}

fn frames_of_every_kind_and_mutants() -> Outcome {
    let captured = mutants::captured()?;
    let rows = captured.read(&[])?;
    ensure(rows.len() == captured.frames.len(), format!("{} rows", rows.len()))?;
    let mut malformed = BTreeMap::<&str, usize>::new();
    for (index, (frame, row)) in captured.frames.iter().zip(&rows).enumerate() {
        let mut expected = Row::new();
        let sealed = row.contains_key("cxloe.trailer.tag");
        ensure(!sealed || decoder::may_be_sealed(&frame.bytes), format!("frame {}: sealed?", index + 1))?;
        decoder::describe(&mut expected, &frame.bytes, sealed);
        for wrong in decoder::MALFORMED.iter().filter(|wrong| row.contains_key(**wrong)) {
            *malformed.entry(wrong).or_default() += 1;
        }
        let shown: Row = row
            .iter()
            .filter(|(name, _)| !follow::FIELDS.contains(&name.as_str()))
            .map(tshark::owned)
            .collect();
        tshark::same(index + 1, &expected, &shown)?;
    }
    ensure(malformed.len() == decoder::MALFORMED.len(), format!("only {malformed:?}"))
}
