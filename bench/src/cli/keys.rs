//! `cxloe-bench keys`: cost of keys: connecting during a flood of forged handshakes, rekeying, and revocation.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args as ClapArgs;
use cxloe_client::client::sessions;
use cxloe_daemon::to_stdout;
use cxloe_fabric::api::Party;
use cxloe_fabric::model::CnId;
use cxloe_lab::{Interrupt, Process};
use cxloe_link::Backend;
use cxloe_link::wait::WaitStyle;
use serde_json::json;

use super::common::{put, shown};
use super::quickstart_place::QuickstartNetwork;
use super::{Failure, agent, daemons};
use crate::keys::connect::{FloodPlan, under_floods};
use crate::keys::rekey::{RekeyPlan, rekeying};
use crate::keys::replacement::{Touched, touched};
use crate::keys::revocation::{Revoked, revoked};
use crate::keys::site::Site;
use cxloe_measure::machine::Machine;

/// Bytes of the mapped region that may be resident; so few that nearly each touch is a fault.
const RESIDENT: u64 = 1 << 20;

/// Measure sessions between keys: connecting in a flood of forged handshakes, changes of keys, and revocation
#[derive(ClapArgs, Clone, Debug)]
#[command(after_help = "Example:\n  cxloe-bench keys --json keys.json")]
pub struct Args {
    /// Number of forged Hellos per second
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    hellos: u64,

    /// Number of turns of each measurement
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: u32,

    /// Connections in each turn of a flood
    #[arg(long, value_name = "N", default_value_t = 10)]
    connections: u32,

    /// Pairs of time slices in each turn: the open session reads during a flood to an unused address, then
    /// during the flood to the memory node
    #[arg(long, value_name = "N", default_value_t = 10)]
    pairs: u32,

    /// Length of each slice, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 100)]
    slice_ms: u64,

    /// Time between two changes of keys, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 50)]
    rekey_ms: u64,

    /// Seconds for which pages of a mapped region are touched while its session is replaced, and again while
    /// it is not, for each wait style
    #[arg(long, value_name = "S", default_value_t = 10)]
    touch_s: u64,

    /// Time between two replacements of that session, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(10..))]
    replacement_ms: u64,

    /// Number of nodes that are revoked, one after the other
    #[arg(long, value_name = "N", default_value_t = 3)]
    revocations: u32,

    /// Link of both ends
    #[arg(long, value_name = Backend::VALUES, default_value = "packet")]
    link: Backend,

    /// busy (spin), adaptive or adaptive:TIME (spin that long, then sleep) or sleep
    #[arg(long, value_name = "STYLE", default_value = "adaptive")]
    wait: WaitStyle,

    /// Write the results as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub fn run(args: &Args, interrupt: &Interrupt) -> Result<(), Failure> {
    let state = tempfile::Builder::new().prefix("cxloe-keys-").tempdir()?;
    let site = Site::new(state.path(), args.link, args.wait)?;
    let mut floods = Vec::new();
    if args.hellos > 0 {
        let plan = FloodPlan {
            rate: args.hellos,
            rounds: args.rounds,
            connections: args.connections,
            pairs: args.pairs,
            slice: Duration::from_millis(args.slice_ms),
        };
        floods = shown("connections and reads beside floods", || under_floods(&site, &plan, interrupt))?;
        to_stdout!(
            "flood                                    Hellos/s  connect p50    p99      max ms   reads/s   beside the same to nobody"
        );
        for of in &floods {
            let sent = of.hellos_per_s.iter().sum::<f64>() / of.hellos_per_s.len().max(1) as f64;
            let ms = |us: f64| us / 1e3;
            to_stdout!(
                "{:<40} {sent:>9.0} {:>11.2} {:>8.2} {:>9.2} {:>9.0}   {:.3} ({:.3} to {:.3}), in all {:.3}",
                of.flood.words(),
                ms(of.connect.p50_us),
                ms(of.connect.p99_us),
                ms(of.connect.max_us),
                of.reads_median_per_s,
                of.reads_over_elsewhere.median,
                of.reads_over_elsewhere.quarter,
                of.reads_over_elsewhere.three_quarters,
                of.reads_over_elsewhere.of_sums
            );
        }
    }
    let mut changed = None;
    if args.rekey_ms > 0 {
        let plan = RekeyPlan {
            every: Duration::from_millis(args.rekey_ms),
            rounds: args.rounds,
            each: Duration::from_millis(1_500),
        };
        let found = shown("reads across changes of keys", || rekeying(&site, &plan, interrupt))?;
        to_stdout!(
            "changes of keys: {}, {} reads failed; reads across one: p50 {:.1} us, longest {:.1} us, {} of {} over 1 ms",
            found.changes,
            found.failed,
            found.across.p50_us,
            found.across.max_us,
            found.across_over_1ms,
            found.across.count
        );
        let longest = "the longest read of each 5 ms";
        for (what, which, times, over) in [
            ("reads", "with changes of keys", &found.with, found.with_over_1ms),
            ("reads", "without", &found.without, found.without_over_1ms),
            (longest, "with a change of keys", &found.worst_with, found.worst_with_over_1ms),
            (longest, "without, in the same turns", &found.worst_without, found.worst_without_over_1ms),
        ] {
            to_stdout!(
                "  {what} {which}: {}, p50 {:.1} us, p99 {:.1} us, longest {:.1} us, {over} over 1 ms",
                times.count,
                times.p50_us,
                times.p99_us,
                times.max_us
            );
        }
        changed = Some(found);
    }
    drop(site);
    let touches = if args.touch_s > 0 { touches(args, interrupt)? } else { Vec::new() };
    let mut revocations = Vec::new();
    for _ in 0..args.revocations {
        interrupt.check()?;
        let found = in_thread("a revocation", |state| revocation(args, state, interrupt))?;
        to_stdout!(
            "revocation: answered after {:.1} ms, last read carried out after {:.1} ms ({} reads), first refused after {}",
            found.answered_ms,
            found.last_read_ms,
            found.reads_after,
            found.first_refused_ms.map_or("more than 2000 ms".into(), |ms| format!("{ms:.1} ms"))
        );
        revocations.push(found);
    }
    let results = json!({
        "machine": Machine::describe(),
        "link": args.link.to_string(),
        "wait": args.wait.to_string(),
        "hellos_per_s_wanted": args.hellos,
        "floods": floods,
        "rekeying": changed,
        "touches": touches,
        "revocations": revocations,
    });
    put("results:", &args.json, || Ok(serde_json::to_vec_pretty(&results)?))
}

/// Runs a measurement of daemons in a thread of its own, as the thread that makes a lab cannot leave its namespace again.
fn in_thread<T: Send>(
    what: &str,
    measure: impl FnOnce(&Path) -> Result<T, Failure> + Send,
) -> Result<T, Failure> {
    let state = tempfile::Builder::new().prefix("cxloe-keys-").tempdir()?;
    let joined = shown(what, || std::thread::scope(|scope| scope.spawn(|| measure(state.path())).join()));
    let measured = joined.map_err(|_| format!("the measurement of {what} panicked"))?;
    measured.inspect_err(|_| daemons::show_logs(state.path()))
}

/// Times touches of pages for each wait style, while the session is replaced and while it is not.
fn touches(args: &Args, interrupt: &Interrupt) -> Result<Vec<Touched>, Failure> {
    let mut touches = Vec::new();
    to_stdout!("touches of pages     sessions replaced   touches   p50      p99      longest   over 1 ms");
    for wait in [WaitStyle::Busy, WaitStyle::default(), WaitStyle::Sleep] {
        for every in [Some(args.replacement_ms), None] {
            interrupt.check()?;
            let what = format!("touches of pages, --wait {wait}");
            let found = in_thread(&what, |state| touches_of(args, wait, every, state, interrupt))?;
            let Touched { wait, replacements, touches: times, over_1ms, .. } = &found;
            to_stdout!(
                "--wait {wait:<15} {replacements:>15} {:>9} {:>5.1} us {:>5.1} us {:>9.1} us {over_1ms:>9}",
                times.count,
                times.p50_us,
                times.p99_us,
                times.max_us
            );
            touches.push(found);
        }
    }
    Ok(touches)
}

/// Times touches of pages through one agent and one memory node with this wait style.
fn touches_of(
    args: &Args,
    wait: WaitStyle,
    every_ms: Option<u64>,
    state: &Path,
    interrupt: &Interrupt,
) -> Result<Touched, Failure> {
    let place = QuickstartNetwork::lab(args.link, 1500)?;
    let _nodes = manager_and_memory_node(args, &place, wait, state, interrupt)?;
    let mut with_agent = place.agent(state)?;
    with_agent.link.extend(["--wait".into(), wait.to_string()]);
    if let Some(ms) = every_ms {
        with_agent.link.extend(["--rekey-every".into(), format!("{ms}ms")]);
    }
    let agent = agent::start(&*place.ground, &with_agent, state, interrupt)?;
    let mapping = agent.map(RESIDENT)?;
    let (socket, _) = agent.region();
    let agreed = || -> Result<u64, Failure> {
        Ok(sessions(socket)?.iter().map(|session| session.status.counters.sessions).sum())
    };
    touched(&mapping, wait.to_string(), Duration::from_secs(args.touch_s), agreed, interrupt)
}

/// Starts a manager and a memory node that joins it.
fn manager_and_memory_node(
    args: &Args,
    place: &QuickstartNetwork,
    wait: WaitStyle,
    state: &Path,
    interrupt: &Interrupt,
) -> Result<[Process; 2], Failure> {
    let manager = QuickstartNetwork::manager(state);
    let gmm = daemons::start(&*place.ground, "cn", state, "gmm", |c| {
        c.args(["serve", "--listen", &place.listen, "--data-dir"]).arg(state.join("gmm"));
        c.arg("--socket").arg(state.join("gmm.sock"));
    })?;
    let mn = daemons::start(&*place.ground, "mn", state, "mn-server", |c| {
        c.args(["join", &manager, "--run", "-i", "mn0", "--name", "mn1", "--pool-size", "128M"]);
        c.arg("--config").arg(state.join("mn-server.toml"));
        c.args(["--link", &args.link.to_string(), "--wait", &wait.to_string()]);
        c.arg("--data-dir").arg(state.join("mn")).arg("--socket").arg(state.join("mn-server.sock"));
    })?;
    daemons::wait_for_nodes(&manager, interrupt)?;
    Ok([gmm, mn])
}

/// Starts a manager, a memory node and an agent that join, then revokes the key of the agent's node by `gmm revoke`.
fn revocation(args: &Args, state: &Path, interrupt: &Interrupt) -> Result<Revoked, Failure> {
    let place = QuickstartNetwork::lab(args.link, 1500)?;
    let manager = QuickstartNetwork::manager(state);
    let _nodes = manager_and_memory_node(args, &place, args.wait, state, interrupt)?;
    let with_agent = place.agent(state)?;
    let owner = CnId::new(with_agent.own)?;
    let agent = agent::start(&*place.ground, &with_agent, state, interrupt)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = cxloe_fabric::Client::new(&manager)?;
    let (socket, hpa) = agent.region();
    revoked(socket, hpa, || Ok(runtime.block_on(client.revoke(&Party::ComputeNode(owner)))?))
}
