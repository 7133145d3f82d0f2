//! `cn-agent run`: puts link, engine, worker, the link to the manager and the socket for programs together, and
//! takes them apart again in order.
//!
//! Start: options, socket, link, state, worker, manager, answers on the socket. End (SIGTERM, SIGINT, or the
//! worker's error): socket, manager link, worker (which writes back what is modified and ends its sessions).

use std::path::Path;
use std::sync::{Arc, mpsc};

use cxloe_cn::attach::Station;
use cxloe_cn::config::{Config, LogFormat, RunArgs};
use cxloe_cn::daemon::{WorkerHandle, WorkerOptions};
use cxloe_cn::engine::Engine;
use cxloe_cn::local::server::{Backstage, Bound};
use cxloe_cn::manager::{ManagerLink, ManagerLinkOptions};
use cxloe_cn::signals::Signals;
use cxloe_cn::state_file::StateFile;
use cxloe_gmm::model::{CnId, Mac};
use cxloe_wire::link::wait::WaitStyle;
use cxloe_wire::link::{Extras, LinkConfig, open_with};
use cxloe_wire::session::PreSharedKey;
use cxloe_wire::time::Time;
use tracing::info;

use super::failure::Failure;
use super::output;

/// Runs the agent until it is told to end.
///
/// # Errors
/// When it cannot start, or did not end well.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    let config = args.resolve().map_err(|error| Failure::usage(error.to_string()))?;
    if args.print_config {
        return output::write(config.to_toml().as_bytes());
    }
    start_log(&config);
    serve(&config).map_err(|error| Failure::failed(error.to_string()))
}

fn start_log(config: &Config) {
    let filter = tracing_subscriber::EnvFilter::try_new(&config.log).unwrap_or_default();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match config.log_format {
        LogFormat::Json => log.json().init(),
        LogFormat::Text => log.with_target(false).init(),
    }
}

/// What ends the agent.
enum End {
    Signal(i32),
    Worker,
}

fn serve(config: &Config) -> Result<(), Box<dyn std::error::Error>> {
    let (ended, end) = mpsc::channel();
    watch_signals(ended.clone())?;

    let bound = Bound::bind(&config.socket)?;
    let key = config.key_file.as_deref().map(read_key).transpose()?;
    let link = open_with(
        &LinkConfig {
            backend: config.backend,
            ethertype: config.ethertype,
            priority: config.priority,
            busy_poll: config.wait == WaitStyle::Busy,
            ..LinkConfig::new(&config.interface)
        },
        &Extras {
            faults: config.fault_plan(),
            pcap: config.pcap.clone().map(|path| (path, config.pcap_bytes_max)),
        },
    )?;
    let own = link.info().mac;
    let cn = CnId::new(Mac(own.0))?;
    let state = StateFile::lock(&config.data_dir, own)?;
    let instance = rand::random();
    let options = WorkerOptions {
        station: Station {
            own,
            ethertype: config.ethertype,
            max_frame: link.info().max_frame,
            streams: config.streams,
            instance,
            key,
            timing: config.timing(),
        },
        wait: config.wait,
        cpu: config.cpu,
        clients_max: config.clients_max,
    };
    let mut engine = Engine::new(config.cache);
    let signals = match &config.rate_control {
        // The start of the worker's clock, which is yet to be made, is before any other time of it.
        Some(rates) => rates.apply(&mut engine, link.info(), config.priority.unwrap_or(0), Time::ZERO)?,
        None => Signals::default(),
    };
    let worker = WorkerHandle::start(link, engine, signals, options, move || drop(ended.send(End::Worker)))?;
    let options = ManagerLinkOptions::new(&config.manager, config.name.clone(), cn, instance);
    let manager = ManagerLink::start(options, state, worker.orders())?;
    let server = bound.serve(Backstage {
        listing: manager.listing(),
        orders: worker.orders(),
        clients_max: config.clients_max,
    })?;
    info!(name = %config.name, %cn, interface = %config.interface, socket = %config.socket.display(), "serving");

    match end.recv() {
        Ok(End::Signal(signal)) => info!(signal, "ending"),
        Ok(End::Worker) | Err(_) => {}
    }
    // No new programs, then no more changes, then everything modified goes back.
    drop(server);
    worker.stop();
    let result = worker.join();
    drop(manager);
    result?;
    info!("ended");
    Ok(())
}

fn read_key(path: &Path) -> Result<PreSharedKey, Box<dyn std::error::Error>> {
    let bytes =
        std::fs::read(path).map_err(|e| format!("cannot read the key file {}: {e}", path.display()))?;
    let key = bytes.trim_ascii();
    if key.len() < 16 {
        let have = key.len();
        return Err(format!(
            "the key in {} has {have} bytes; at least 16 are needed: `openssl rand -hex 32` makes one",
            path.display()
        )
        .into());
    }
    Ok(Arc::from(key))
}

/// Turns SIGTERM and SIGINT into messages. Must run before any other thread is started.
fn watch_signals(ended: mpsc::Sender<End>) -> Result<(), Box<dyn std::error::Error>> {
    use nix::sys::signal::{SigSet, Signal};
    let mut set = SigSet::empty();
    set.add(Signal::SIGTERM);
    set.add(Signal::SIGINT);
    set.thread_block()?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        while let Ok(signal) = set.wait() {
            if ended.send(End::Signal(signal as i32)).is_err() {
                return;
            }
        }
    })?;
    Ok(())
}
