//! Programs that map regions, as processes that a test starts and ends.

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use cxloe_lab::Process;

use super::work::Job;
use cxloe_system::cable::{cable, with_addresses};
use cxloe_system::copy_as;
use cxloe_system::pair::{LIMIT, Outcome, Pair, ensure, eventually, saying};

/// Bytes of the region that programs use.
pub const BYTES: u64 = 8 << 20;
/// Time for which programs work, unless the environment sets another.
pub fn duration(usual: Duration) -> Duration {
    let seconds = std::env::var("CXLOE_PAGING_SECONDS").ok().and_then(|text| text.parse().ok());
    seconds.map_or(usual, Duration::from_secs)
}

pub struct Program {
    pub process: Process,
    log: PathBuf,
}

pub fn job(rig: &Pair, what: &str) -> Job {
    Job {
        what: what.into(),
        socket: rig.socket(),
        region: "pages".into(),
        limit: 64 << 10,
        threads: 4,
        seed: 1,
        part: (0, 1),
        lost_wait: Duration::from_secs(20),
        wait: Duration::from_secs(20),
        fresh: false,
    }
}

/// Starts all three daemons, and creates the region `pages`.
pub fn rig(agent: &[&str]) -> Outcome<Pair> {
    started(Pair::bare()?, &[], agent)
}

/// Like [`rig`], with frames inside UDP, whose outer headers the packet links write.
pub fn rig_inside_udp() -> Outcome<Pair> {
    let encap = ["--encap", "udp"];
    started(Pair::on(with_addresses(cable()))?, &encap, &encap)
}

fn started(rig: Pair, mn: &[&str], agent: &[&str]) -> Outcome<Pair> {
    rig.start_gmm()?;
    rig.start_mn_with("anon", mn)?;
    rig.start_agent(agent)?;
    rig.gmm(&["create-region", "-s", &BYTES.to_string(), "--owner", cxloe_system::pair::CN, "pages"])?;
    rig.attached("pages", "active")?;
    Ok(rig)
}

impl Program {
    pub fn start(rig: &Pair, job: &Job) -> Outcome<Program> {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let log = rig.path(&format!("program.{number}.log"));
        let mut command = copy_as("work")?;
        command.args(job.arguments()).env("RUST_BACKTRACE", "1");
        Process::log_to(&mut command, &log)?;
        command.stdin(Stdio::piped());
        let program = Program { process: rig.lab.spawn("cn", command)?, log };
        program.says("ready")?;
        Ok(program)
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn number(&self, word: &str) -> Option<u64> {
        let log = self.log();
        let line = log.lines().rev().find_map(|line| line.strip_prefix(word))?;
        line.trim().parse().ok()
    }

    pub fn says(&self, words: &str) -> Outcome {
        eventually(&format!("the program says {words:?}"), || saying(&self.log, words))
            .map_err(|error| format!("{}: {}", error.message().unwrap_or_default(), self.log()).into())
    }

    /// Returns the progress that the program has reported last; 0 before its first report.
    pub fn at(&self) -> u64 {
        self.number("at ").unwrap_or_default()
    }

    /// Waits until the program's progress has increased by `by`.
    pub fn makes_progress(&self, by: u64) -> Outcome {
        let from = self.at();
        eventually("the program gets on", || (self.at() >= from + by).then_some(()))
            .map_err(|error| format!("{}: {}", error.message().unwrap_or_default(), self.log()).into())
    }

    /// Lets the program work for at least `time`, and until it has made progress.
    pub fn works(&self, time: Duration) -> Outcome {
        let until = Instant::now() + duration(time);
        while Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        self.makes_progress(1)
    }

    pub fn finish(mut self) -> Outcome<u64> {
        drop(self.process.child_mut().stdin.take());
        let status = self.process.wait(LIMIT)?;
        ensure(status.success(), format!("the program ended with {status}: {}", self.log()))?;
        Ok(self.number("done ").unwrap_or_default())
    }

    pub fn number_of(&self, word: &str) -> u64 {
        self.number(word).unwrap_or_default()
    }

    pub fn ended(&mut self) -> Outcome<ExitStatus> {
        Ok(self.process.wait(LIMIT)?)
    }

    /// Closes the program's standard input; the program then ends.
    pub fn ask_to_stop(&mut self) {
        drop(self.process.child_mut().stdin.take());
    }
}
