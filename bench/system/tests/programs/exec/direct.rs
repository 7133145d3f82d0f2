//! Direct I/O and registered buffers: refused, or allowed with memory that stays resident.

use std::path::Path;

use super::run::{Running, Sizes, compiled, nothing_is_left, rig, start, text};
use cxloe_system::pair::{Outcome, Pair, ensure};

/// Starts fio, which writes a file through registered buffers, reads it again, and checks the data.
fn fio(rig: &Pair, more: &[&str], engine: &[&str]) -> Outcome<Running> {
    let folder = format!("--directory={}", text(rig.dir.path()));
    let mut command = vec!["fio", "--name=direct", &folder, "--rw=randwrite", "--size=48M", "--bs=256k"];
    command.extend([
        "--iodepth=64",
        "--verify=crc32c",
        "--do_verify=1",
        "--verify_fatal=1",
        "--verify_state_save=0",
        "--thread",
    ]);
    command.extend(engine);
    start(rig, Sizes(192, 8), more, &command)
}

const RING: [&str; 3] = ["--ioengine=io_uring", "--fixedbufs=1", "--direct=1"];
const DIRECT: [&str; 2] = ["--ioengine=psync", "--direct=1"];

/// Checks that exactly one message reports the refusal of `what`, and that every message names the remedy.
fn told(err: &str, what: &str) -> Outcome {
    let lines: Vec<&str> = err.lines().filter(|line| line.starts_with("cn-agent:")).collect();
    let about = lines.iter().filter(|line| line.contains(&format!("is refused {what}"))).count();
    ensure(about == 1, format!("{about} lines about {what}: {err}"))?;
    ensure(lines.iter().all(|line| line.contains("--allow-direct-io")), err)
}

pub fn registered_buffers_are_refused() -> Outcome {
    let rig = rig()?;
    let ended = fio(&rig, &[], &RING)?.wait()?;
    ensure(!ended.status.success(), "fio does without io_uring")?;
    told(&ended.err, "io_uring")?;
    // The message names fio and precedes fio's own error, because fio is stopped until the message is
    // printed.
    let (ours, theirs) = (ended.err.find("(fio) is refused io_uring"), ended.err.find("io_queue_init"));
    let whole = format!("{}{}", ended.text(), ended.err);
    ensure(ours.is_some() && theirs.is_none_or(|theirs| ours < Some(theirs)), &whole)?;
    ensure(whole.contains("io_queue_init"), &whole)?;
    let ended = fio(&rig, &[], &DIRECT)?.wait()?;
    ensure(!ended.status.success(), "fio does without direct I/O")?;
    told(&ended.err, "direct I/O (O_DIRECT) of ")?;
    nothing_is_left(&rig)
}

/// fio reads the data that it has written, although its buffers alone are twice as large as the usual resident limit.
pub fn registered_buffers_are_safe_when_allowed() -> Outcome {
    let rig = rig()?;
    for engine in [&RING[..], &DIRECT[..]] {
        let ended = fio(&rig, &["--allow-direct-io"], engine)?.wait()?.well()?;
        let evicted = ended.view.map_or(u64::MAX, |view| view.counters.evicted);
        ensure(evicted == 0, format!("{evicted} pages left all the same"))?;
    }
    nothing_is_left(&rig)
}

pub fn what_only_looks_like_direct_io_goes_on() -> Outcome {
    let rig = rig()?;
    let program = compiled(&rig, "direct", &[])?;
    let ended = start(&rig, Sizes(16, 1), &[], &[text(&program)])?.wait()?.well()?;
    ensure(ended.text() == "ok\n", format!("it said {:?}, {}", ended.text(), ended.err))?;
    for what in ["direct I/O (O_DIRECT) of direct.file", "io_uring", "writing another process's memory"] {
        told(&ended.err, what)?;
    }
    ensure(Path::new(&rig.path("direct.file")).exists(), "it was made where the test looks")?;
    nothing_is_left(&rig)
}
