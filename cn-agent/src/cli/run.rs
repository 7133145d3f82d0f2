//! `cn-agent run`: assembles links, engines, workers, the monitor of CXL devices, the link to the manager and the socket
//! for programs, and shuts them down in order.
//!
//! Start: options, socket, links, state, workers, manager, then requests on the socket. End (SIGTERM, SIGINT, or the
//! worker's error): socket, manager link, workers (which write back dirty lines and end their sessions).

use std::path::PathBuf;
use std::sync::Arc;

use cxloe_client::message::NodeView;
use cxloe_cn::config::{Config, RunArgs};
use cxloe_cn::manager::{ManagerLink, ManagerLinkOptions};
use cxloe_cn::metrics;
use cxloe_cn::region_controller::RegionController;
use cxloe_cn::server::{self, Server, ServerContext};
use cxloe_cn::state_file::StateFile;
use cxloe_cn::worker::{WorkerHandle, WorkerOptions, WorkerResults, Workers};
use cxloe_cn_core::attach::{SessionKeys, SessionSettings};
use cxloe_cn_core::backing::Preference;
use cxloe_cn_core::engine::Engine;
use cxloe_cn_core::workers::ending_stages;
use cxloe_cxl::HandOver;
use cxloe_cxl::uevents::UeventMonitor;
use cxloe_daemon::command_line::{Failure, output};
use cxloe_daemon::metrics::MetricsListener;
use cxloe_daemon::options::Protection;
use cxloe_daemon::{NodeIdentity, Shutdown, Supervisor, log, raise_limit, wait_for_interface};
use cxloe_fabric::model::{CnId, Mac};
use cxloe_link::keys::{SYSTEM, pre_shared_key};
use cxloe_link::{Link, LinkConfig, LinkError, LinkHealth, Middlewares, join_queues, open_persistent};
use cxloe_node::exit_of_link;
use cxloe_port::signals::Signals;
use cxloe_rings::client_slot::ClientSlots;
use cxloe_wire::time::Time;
use tracing::{info, warn};

/// Runs the agent until a signal ends it.
///
/// # Errors
/// When it cannot start, or did not end in order.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    let config = args.resolve().map_err(Failure::usage)?;
    if args.print_config {
        return output::write(config.to_toml().as_bytes());
    }
    let protection = config.node.protection("cn-agent").map_err(Failure::usage)?;
    let _log = log::start(&config.node.log, config.node.log_format);
    if protection == Protection::Checksum {
        warn!("--insecure: any station on the network can read and forge frames");
    }
    serve(&config)
        .map_err(|error| Failure::new(exit_of_link(&*error, Supervisor::of_this_process().is_there()), error))
}

fn serve(config: &Config) -> Result<(), Box<dyn std::error::Error>> {
    let ending = Shutdown::watch()?;
    // Each client needs descriptors of the agent, so the limit of open files is raised.
    raise_limit();
    let supervisor = Supervisor::of_this_process();
    if !wait_for_interface(&config.node.interface, supervisor, &ending) {
        return Ok(());
    }

    let socket = server::bind(&config.socket)?;
    let metrics = config.node.metrics.as_ref().map(MetricsListener::bind).transpose()?;
    let key = config.node.key_file.as_deref().map(pre_shared_key).transpose()?;
    let mut keys = SessionKeys::none(SYSTEM);
    keys.own = config.node.own_key()?;
    keys.named = config.node.peer_keys.iter().map(|peer| (peer.mac, peer.key)).collect();
    let public = keys.own.as_ref().map(|key| key.public());
    let link_config = config.node.link(config.node.udp());
    let (links, health) = links(config, &link_config)?;
    let own = links[0].info().mac;
    let cn = CnId::new(Mac(own.0))?;
    let state = StateFile::lock(&config.node.data_dir, own)?;
    let instance = rand::random();
    let (results, drained, leg_reports) = WorkerResults::channels(links.len());
    let mut handles = Vec::with_capacity(links.len());
    for (index, link) in links.into_iter().enumerate() {
        let options = WorkerOptions {
            index,
            station: SessionSettings {
                own,
                ethertype: config.node.ethertype,
                max_frame: link.info().max_frame,
                streams: config.streams,
                instance,
                key: key.clone(),
                keys: keys.clone(),
                timing: config.timing(),
            },
            health: health.clone(),
            wait: config.node.wait,
            cpu: config.cpus.get(index).copied(),
            clients_max: config.clients_max,
            shares: config.shares,
        };
        let mut engine = Engine::new(config.cache);
        engine.set_shard(index as u8 * config.queues);
        engine.set_queues(config.queues.into());
        let signals = match &config.rate_control {
            // The worker's clock starts later, so zero is earlier than any time that the clock shows.
            Some(rates) => {
                rates.apply(&mut engine, link.info(), config.node.priority.unwrap_or(0), Time::ZERO)?
            }
            None => Signals::default(),
        };
        handles.push(WorkerHandle::start(link, engine, signals, options, results.clone(), ending.worker())?);
    }
    // Drops this thread's senders: the channels of results then close when all workers have ended.
    drop(results);
    let workers = Workers::new(handles.iter().map(WorkerHandle::orders).collect());
    let options = ManagerLinkOptions {
        identity: NodeIdentity::read_if_given(config.node.identity.as_deref())?,
        link: health.clone(),
        key: public,
        ..ManagerLinkOptions::new(&config.manager, config.node.name.clone(), cn, instance)
    };
    let preference = config.cxl.preference;
    let listening = if preference == Preference::Ethernet { None } else { Some(UeventMonitor::listen()?) };
    let waker = listening.as_ref().map(|(_, waker)| waker.clone());
    let node = NodeView {
        manager: config.manager.clone(),
        cn: cn.to_string(),
        name: config.node.name.to_string(),
        ..NodeView::default()
    };
    let controller = RegionController::open(
        node,
        state,
        preference,
        waker,
        workers.clone(),
        drained,
        link_config.udp.peers.clone(),
    )?;
    let joined = options.identity.as_ref().map(|identity| identity.joined());
    if joined.is_none() {
        tracing::info!(
            "this node has not joined: while it has no regions, it follows any manager at its URL"
        );
    }
    controller.join(joined)?;
    let start = |(monitor, waker)| HandOver::start(config.cxl.clone(), controller.clone(), monitor, waker);
    let hand_over = listening.map(start).transpose()?;
    let identity = options.identity.clone();
    let manager = ManagerLink::start(options, controller.clone(), Some(leg_reports))?;
    let context = ServerContext {
        identity,
        listing: controller.listing(),
        controller: controller.clone(),
        workers: workers.clone(),
        slots: ClientSlots::new(config.clients_max, config.shares.ports),
        shares: config.shares,
        allow_kernel_faults: config.allow_kernel_faults,
        adopting: Arc::default(),
    };
    let watched = metrics::MetricsSource {
        name: config.node.name.to_string(),
        interface: config.node.interface.clone(),
        listing: context.listing.clone(),
        workers: workers.clone(),
    };
    let metrics = metrics.map(|at| at.serve(move || metrics::sample(watched.clone()))).transpose()?;
    let server = Server::start(socket, context)?;
    info!(name = %config.node.name, %cn, interface = %config.node.interface, socket = %config.socket.display(), "serving");

    let serving = format!("serving on {}", config.node.interface);
    supervisor.ready(&serving);
    supervisor.watch(&ending, |wait_limit| match workers.silent(wait_limit) {
        // An agent without a link counts as healthy: a restart would not bring the interface back.
        None => Ok(health.down().map_or_else(|| serving.clone(), |down| format!("no link: {}", down.why))),
        Some(worker) => Err(format!("worker {worker} has not completed a round for {wait_limit:?}")),
    });
    supervisor.stopping("writing back what is modified");
    // Stops in order: first new programs, then changes of regions, last the workers, which write back all
    // dirty lines.
    drop((server, metrics));
    drop(hand_over);
    let result = end(handles);
    drop(manager);
    result?;
    info!("ended");
    Ok(())
}

/// Opens one link for each worker. Worker `i` has the `queues` queues from `i * queues` on.
fn links(config: &Config, link_config: &LinkConfig) -> Result<(Vec<Box<dyn Link>>, LinkHealth), LinkError> {
    let queues = u32::from(config.queues) * u32::from(config.workers);
    let sharded = queues > 1;
    let queue = |queue| LinkConfig { queue, queues, sharded, ..link_config.clone() };
    let (links, health) = open_persistent(&(0..queues).map(queue).collect::<Vec<_>>())?;
    // Faults are injected at each queue separately; frames of all queues of a worker are recorded together.
    let faults = Middlewares { faults: config.node.fault_plan(), pcap: None };
    let mut links = links.into_iter().map(|link| faults.around(link)).collect::<Result<Vec<_>, _>>()?;
    let mut of_workers = Vec::with_capacity(config.workers.into());
    for worker in 0..config.workers {
        let later = links.split_off(config.queues.into());
        let pcap = config.node.recording().map(|(path, bytes)| (recording_of(path, worker), bytes));
        of_workers.push(Middlewares { faults: None, pcap }.around(join_queues(links)?)?);
        links = later;
    }
    Ok((of_workers, health))
}

/// Returns the path of a worker's recording. Workers after the first insert their number before the
/// extension.
fn recording_of(path: PathBuf, worker: u8) -> PathBuf {
    if worker == 0 {
        return path;
    }
    let extension = path.extension().map(|extension| format!(".{}", extension.to_string_lossy()));
    path.with_extension(format!("{worker}{}", extension.unwrap_or_default()))
}

/// Ends the workers, stage by stage.
fn end(mut handles: Vec<WorkerHandle>) -> Result<(), LinkError> {
    let mut results = Vec::with_capacity(handles.len());
    for stage in ending_stages(handles.len()) {
        let ending: Vec<WorkerHandle> = handles.drain(stage).collect();
        ending.iter().for_each(WorkerHandle::stop);
        results.extend(ending.into_iter().map(WorkerHandle::join));
    }
    results.into_iter().collect()
}
