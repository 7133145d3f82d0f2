//! Bare echo over shared memory: the lower limit of everything over DPDK, as two processes reach it by the plug-in alone.
//!
//! ```text
//!   this process, core 0                        cxloe-bench dpdk-echo, core 1
//!     BareEnd (client) <==== net_memif ====> BareEnd (server): answers, spinning
//! ```
//!
//! The far end spins on the core of the memory node, so that of the two only the one being measured runs; the other is
//! stopped.

use std::path::Path;
use std::time::Duration;

use cxloe_daemon::to_stdout;
use cxloe_lab::{Interrupt, Process};
use cxloe_link::LinkConfig;
use cxloe_link::dpdk::BareEnd;
use cxloe_link::echo::Echo;
use cxloe_measure::machine;
use cxloe_measure::report::Samples;
use nix::sys::signal::Signal;

use super::Failure;
use super::daemons::{self, DaemonHost, READY};
use super::shared_memory::{self, Role, SharedMemory};
use crate::eventually::eventually;

/// Number of the memory for bare frames.
const NUMBER: u8 = 1;
const NEAR_MAC: &str = "02:00:00:00:01:01";
const FAR_MAC: &str = "02:00:00:00:01:09";
/// Program and command of the far end, and the line that it prints once it answers.
const PROGRAM: &str = "cxloe-bench dpdk-echo";
const ANSWERS: &str = "answering bare frames";
/// Limit on the time until the far end has ended.
const END_MAX: Duration = Duration::from_secs(2);
/// Number of lost exchanges of a trial after which the far end counts as gone.
const LOST_MAX: u32 = 20;

/// Answer bare frames over a device of DPDK until this process is ended
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The device, as in `-i dpdk:DEVICE`
    device: String,

    /// Pin the thread to this CPU
    #[arg(long, value_name = "CPU")]
    cpu: Option<usize>,
}

/// Runs the far end.
pub fn run(args: &Args) -> Result<(), Failure> {
    if let Some(cpu) = args.cpu {
        machine::pin(cpu)?;
    }
    let mut end = BareEnd::open(&LinkConfig::new(&args.device))?;
    to_stdout!("{ANSWERS}");
    end.serve()
}

/// Both ends of a bare echo. The far end runs only in a trial.
pub(super) struct BareEcho {
    far: Process,
    near: BareEnd,
    interrupt: Interrupt,
}

impl Drop for BareEcho {
    fn drop(&mut self) {
        // It is stopped, and takes note of no other signal. It has nothing to put in order.
        let _ = self.far.signal(Signal::SIGKILL);
        let _ = self.far.wait(END_MAX);
        shared_memory::wait_for_end(|| self.near.is_up());
    }
}

/// A period in which `runs` has the core of both, and `stands` is stopped; ends when it is dropped.
struct Turn<'a> {
    runs: &'a Process,
    stands: &'a Process,
}

impl<'a> Turn<'a> {
    fn begin(runs: &'a Process, stands: &'a Process) -> Result<Turn<'a>, Failure> {
        stands.pause()?;
        let turn = Turn { runs, stands };
        runs.resume()?;
        Ok(turn)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // A process that has ended is found by whoever uses it next.
        let _ = self.runs.pause();
        let _ = self.stands.resume();
    }
}

impl BareEcho {
    /// Starts the far end on the CPU `theirs`, with its log in `state`, and connects to it.
    ///
    /// # Errors
    /// The far end does not answer in time, or a signal such as Ctrl-C has arrived.
    pub fn start(
        ground: &dyn DaemonHost,
        state: &Path,
        memory: &SharedMemory<'_>,
        theirs: usize,
        interrupt: &Interrupt,
    ) -> Result<BareEcho, Failure> {
        let device = memory.interface(NUMBER, Role::Server, FAR_MAC);
        let mut far = daemons::start(ground, "", state, PROGRAM, |c| {
            c.args(["dpdk-echo", &device, "--cpu", &theirs.to_string()]);
        })?;
        let log = daemons::log(state, PROGRAM);
        let answers = || std::fs::read_to_string(&log).is_ok_and(|text| text.contains(ANSWERS));
        eventually("the far end of the bare echo answers", READY, interrupt, || {
            answers() || far.try_wait().is_ok_and(|ended| ended.is_some())
        })?;
        if !answers() {
            return Err("the far end of the bare echo has ended at once".into());
        }
        let near = BareEnd::open(&memory.link(NUMBER, Role::Client, NEAR_MAC))?;
        let echo = BareEcho { far, near, interrupt: interrupt.clone() };
        eventually("the memory joins both ends of the bare echo", READY, interrupt, || echo.near.is_up())?;
        echo.far.pause()?;
        Ok(echo)
    }

    /// Makes `count` exchanges and records their times in `samples`, whose trial the caller ends. The process `other`,
    /// which spins on the far end's core, is stopped meanwhile.
    ///
    /// # Errors
    /// Frames are lost, or a signal such as Ctrl-C has arrived.
    pub fn trial(
        &mut self,
        echo: Echo,
        count: u64,
        other: &Process,
        samples: &mut Samples,
    ) -> Result<(), Failure> {
        self.interrupt.check()?;
        let _turn = Turn::begin(&self.far, other)?;
        // Untimed exchanges warm the caches, and the first one waits for the far end's core.
        for _ in 0..count / 20 + 10 {
            self.near.exchange(echo);
        }
        let mut lost = 0;
        for _ in 0..count {
            match self.near.exchange(echo) {
                Some(ns) => samples.record_ns(ns),
                None => lost += 1,
            }
            if lost > LOST_MAX {
                return Err("the far end of the bare echo does not answer any more".into());
            }
        }
        Ok(())
    }
}
