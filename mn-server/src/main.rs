//! `mn-server`: starts pool, translation, workers and the link to the manager, and shuts them down in order.
//!
//! Order at the start: options, socket, pool, page table, links, workers, manager. Order at the end (SIGTERM, SIGINT,
//! or a worker's error): socket, manager link, workers (which send Bye to their CNs), pool. Other commands are in
//! [`cli`].

// `println!` and the like panic when standard output or standard error is closed.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod cli;

use std::fs::File;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cxloe_daemon::command_line::{Exit, finish, output};
use cxloe_daemon::metrics::{MetricsError, MetricsListener, MetricsServer, Sample};
use cxloe_daemon::options::Protection;
use cxloe_daemon::to_stderr;
use cxloe_daemon::{
    Bound, NodeIdentity, Shutdown, SocketError, StateFile, Supervisor, is_outside_kernel, log, raise_limit,
    wait_for_interface,
};
use cxloe_fabric::model::Watermark;
use cxloe_link::keys::{SYSTEM, pre_shared_key};
use cxloe_link::pfc::PfcSocket;
use cxloe_link::{LinkConfig, LinkHealth, Middlewares, UdpConfig, check as check_link, open_persistent};
use cxloe_mn::admin::server::Server;
use cxloe_mn::admin::{self, NodeStatus, WorkerStatus};
use cxloe_mn::config::{Config, MapSource};
use cxloe_mn::control::{
    KeptMemory, KeptShares, KeyRing, ManagerLink, ManagerLinkOptions, Mappings, bounded_report, static_map,
};
use cxloe_mn::keeper::Kept;
use cxloe_mn::metrics;
use cxloe_mn::pool::{ByteSize, Former, Host, Pool, PoolError, check_former};
use cxloe_mn::worker::{WorkerHandle, WorkerOptions, WorkerReport};
use cxloe_mn_core::fill::FillBoard;
use cxloe_mn_core::service::Service;
use cxloe_mn_core::translation::PageTable;
use cxloe_node::exit_of_link;
use cxloe_wire::frame::Mac;
use cxloe_wire::session::{ResponderConfig, WINDOW};
use tracing::{error, info, warn};

/// Error of the start, of the run, or of an orderly end.
type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let args = match cli::parse() {
        cli::Task::Run(args) => args,
        cli::Task::Done(exit) => return exit,
    };
    let config = match args.resolve() {
        Ok(config) => config,
        Err(e) => {
            to_stderr!("mn-server: {e}");
            return ExitCode::from(Exit::Usage as u8);
        }
    };
    if args.print_config {
        return finish("mn-server", output::write(config.to_toml().as_bytes()));
    }
    let protection = match config.node.protection("mn-server") {
        Ok(protection) => protection,
        Err(e) => {
            to_stderr!("mn-server: {e}");
            return ExitCode::from(Exit::Usage as u8);
        }
    };
    let _log = log::start(&config.node.log, config.node.log_format);
    if protection == Protection::Checksum {
        warn!("--insecure: any station on the network can read and forge frames");
    }
    match run(&config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            error!("{e}");
            ExitCode::from(exit_of(&*e) as u8)
        }
    }
}

/// Exit code for an error. The systemd units do not restart a node whose options have to be changed first.
fn exit_of(error: &(dyn std::error::Error + 'static)) -> Exit {
    match error.downcast_ref::<PoolError>() {
        Some(pool) if pool.is_lasting() => Exit::Usage,
        _ => exit_of_link(error, Supervisor::of_this_process().is_there()),
    }
}

/// Maximum wait for the workers' reports. A worker under full load reports every half second.
const REPORT_MAX: Duration = Duration::from_millis(1500);

fn run(config: &Config) -> Result<(), Failure> {
    let ending = Shutdown::watch()?;
    raise_limit();
    let supervisor = Supervisor::of_this_process();
    // Waits for the interface before the pool is opened, because opening the pool may take minutes.
    if !wait_for_interface(&config.node.interface, supervisor, &ending) {
        return Ok(());
    }
    check_link(&link_config(config, &config.udp(), 0))?;

    // The keeper is asked before sockets are bound, because a process that is taken over has its sockets until it ends.
    let keeper = config.keeper();
    let mut kept = Kept::find(&keeper)?;
    let former = StateFile::<Former>::at(config.former_path())?;
    let served_before = former.load()?;
    check_former(&served_before, kept.memory.as_ref(), &config.pool, &Host::default())?;
    // A pool in a file or device does not use the memory that a keeper has, and the keeper frees that memory.
    if config.pool.discard || !config.pool.spec.is_memory() {
        kept = kept.freed(&keeper)?;
    }
    let socket = bind_socket(config)?;
    let metrics = config.node.metrics.as_ref().map(MetricsListener::bind).transpose()?;
    let state = StateFile::at(config.state_path())?;
    let pool = open_pool(config, kept.memory.take(), supervisor)?;
    let serves = Former { pool: Some(config.pool.spec.clone()) };
    if serves != served_before {
        former.store(&serves)?;
    }
    let keeping = kept.keep(&pool, &keeper, ending.worker());
    let seen: Watermark = state.load()?;
    let (mut mappings, recovery) = Mappings::open(Arc::clone(&pool), seen);
    info!(?recovery, "page table");
    let shares: StateFile<KeptShares> = StateFile::at(config.shares_path())?;
    mappings.resume_shares(shares.load()?.shares);
    let kept_memory: StateFile<KeptMemory> = StateFile::at(config.kept_path())?;
    mappings.resume_kept(kept_memory.load()?.translations(pool.incarnation()));
    let table = Arc::clone(mappings.table());

    let key = config.node.key_file.as_deref().map(pre_shared_key).transpose()?;
    let node_key = config.node.own_key()?;
    let named = config.node.peer_keys.iter().map(|peer| (peer.mac, peer.key)).collect();
    let ring = KeyRing::open(named, Some(StateFile::at(config.keys_path())?))?;
    if let Some(key) = &node_key {
        info!(key = %key.public(), "sessions with compute nodes that have keys are sealed");
    }
    // Without a manager, nobody orders copies.
    let fills: Option<Arc<FillBoard>> = matches!(config.source, MapSource::Manager(_)).then(Arc::default);
    let mut workers = Vec::new();
    let mut macs: Vec<Mac> = Vec::new();
    let mut mtu = 0;
    let udp = config.udp();
    let configs: Vec<_> = (0..config.workers).map(|queue| link_config(config, &udp, queue)).collect();
    let extras = Middlewares { faults: config.node.fault_plan(), pcap: config.node.recording() };
    let (links, health) = open_persistent(&configs)?;
    for (index, link) in (0..).zip(links) {
        let link = extras.around(link)?;
        let info = link.info();
        if !macs.contains(&info.mac) {
            macs.push(info.mac);
        }
        mtu = info.mtu;
        let responder = ResponderConfig {
            ethertype: config.node.ethertype,
            sessions_max: config.sessions_max as usize,
            early_buffers: config.reorder_max as usize,
            early_buffers_total: config.reorder_total_max as usize,
            idle_after: config.session_timeout,
            key: key.clone(),
            node_key: node_key.clone(),
            ..ResponderConfig::new(info.mac, info.max_frame, pool.incarnation(), SYSTEM)
        };
        let mut service = Service::new(responder, Arc::clone(&table), config.tlb_entries);
        service.set_congestion(config.congestion());
        service.set_keys(ring.admitted());
        let pauses = config.pfc && !config.node.is_over_udp() && !is_outside_kernel(&config.node.interface);
        let pfc = if pauses { Some(PfcSocket::open(&config.node.interface)?) } else { None };
        let options = WorkerOptions {
            index,
            cpu: config.cpus.get(index as usize).copied(),
            wait: config.node.wait,
            echo: config.echo.clone(),
            keyed: node_key.is_some(),
            fills: fills.clone(),
        };
        workers.push(WorkerHandle::start(link, service, pfc, options, ending.worker())?);
    }

    let manager = match &config.source {
        MapSource::Static(path) => {
            static_map::apply(&static_map::read(path)?, &mut mappings)?;
            info!(extents = mappings.len(), "serving the static map");
            None
        }
        MapSource::Manager(url) => {
            let options = ManagerLinkOptions {
                identity: NodeIdentity::read_if_given(config.node.identity.as_deref())?,
                state: Some(state),
                heard: Some(StateFile::at(config.heard_path())?),
                shares: Some(shares),
                kept: Some(kept_memory),
                kind: config.device,
                rack: config.rack.clone(),
                link: health.clone(),
                peers: udp.peers,
                key: node_key.as_ref().map(|key| key.public()),
                keys: Some(ring),
                fills: fills.unwrap_or_default(),
                ..ManagerLinkOptions::new(url, config.node.name.as_str(), macs, mtu as u32)
            };
            let reporters: Vec<_> = workers.iter().map(WorkerHandle::reporter).collect();
            let link = health.clone();
            let stats = Box::new(move || {
                let mut reports: Vec<_> = reporters.iter().map(|report| report()).collect();
                let why = link.down().map(|down| down.why);
                reports.iter_mut().for_each(|report| report.link_down.clone_from(&why));
                bounded_report(reports)
            });
            Some(ManagerLink::start(mappings, options, stats)?)
        }
    };
    let admin =
        socket.map(|socket| Server::start(socket, status_of(config, &workers, &health))).transpose()?;
    let metrics = metrics
        .map(|at| serve_metrics(at, status_of(config, &workers, &health), Arc::clone(&table)))
        .transpose()?;
    info!(name = %config.node.name, interface = %config.node.interface, bytes = pool.bytes(), "serving");

    let serving = format!("serving {} on {}", ByteSize(pool.bytes()).approximate(), config.node.interface);
    supervisor.ready(&serving);
    supervisor.watch(&ending, check_workers(&workers, health, serving));
    supervisor.stopping("telling compute nodes");
    drop((admin, metrics));
    // Order: first no mapping changes any more, then no worker uses the pool, then the pool is closed.
    let stopped = manager.map(ManagerLink::stop);
    workers.iter().for_each(WorkerHandle::stop);
    let results: Vec<_> = workers.into_iter().map(WorkerHandle::join).collect();
    drop(stopped);
    pool.close()?;
    keeping.release();
    results.into_iter().collect::<Result<Vec<()>, _>>()?;
    info!("ended");
    Ok(())
}

fn link_config(config: &Config, udp: &UdpConfig, queue: u32) -> LinkConfig {
    LinkConfig { queue, queues: config.workers, ..config.node.link(udp.clone()) }
}

/// Binds the administration socket. A path given as an option must be bound; at the default path another node of this
/// machine may have its socket, and then this node serves without one.
fn bind_socket(config: &Config) -> Result<Option<Bound>, SocketError> {
    if let Some(path) = &config.socket {
        return admin::server::bind(path).map(Some);
    }
    Ok(admin::server::bind(&admin::default_socket())
        .inspect_err(|error| tracing::warn!(%error, "serving without a socket for `mn-server sessions`"))
        .ok())
}

/// Status for the socket: asks the workers for reports and waits a limited time for them.
fn status_of(
    config: &Config,
    workers: &[WorkerHandle],
    health: &LinkHealth,
) -> impl Fn() -> NodeStatus + Send + Sync + 'static {
    let health = health.clone();
    let (name, interface) = (config.node.name.to_string(), config.node.interface.clone());
    let reporters: Vec<_> = workers.iter().map(WorkerHandle::reporter_with_timeout).collect();
    move || {
        let until = Instant::now() + REPORT_MAX;
        let status = |worker, reported: Option<(WorkerReport, Duration)>| match reported {
            Some((report, age)) => WorkerStatus { worker, age_ns: Some(age.as_nanos() as u64), report },
            None => WorkerStatus { worker, age_ns: None, report: WorkerReport::default() },
        };
        NodeStatus {
            version: admin::VERSION,
            name: name.clone(),
            interface: interface.clone(),
            window: WINDOW,
            link_down: health.down(),
            link_reopened: health.reopened(),
            workers: reporters
                .iter()
                .enumerate()
                .map(|(worker, report)| status(worker, report(until)))
                .collect(),
        }
    }
}

/// Checks for the service manager's watchdog whether every worker reports.
fn check_workers(
    workers: &[WorkerHandle],
    health: LinkHealth,
    serving: String,
) -> impl FnMut(Duration) -> Result<String, String> {
    let reporters: Vec<_> = workers.iter().map(WorkerHandle::reporter_with_timeout).collect();
    move |wait_limit| {
        let (asked, mut sessions) = (Instant::now(), 0);
        for (worker, report) in reporters.iter().enumerate() {
            match report(asked + wait_limit) {
                Some((report, age)) if age <= asked.elapsed() => sessions += report.sessions.len(),
                Some((_, age)) => {
                    return Err(format!("worker {worker} has not completed a round for {age:.1?}"));
                }
                None => return Err(format!("worker {worker} has never come by")),
            }
        }
        // A node whose link is down counts as healthy, because a restart would not restore the interface, but would
        // lose the pool.
        Ok(match health.down() {
            Some(down) => format!("no link: {}", down.why),
            None => format!("{serving}, {sessions} sessions"),
        })
    }
}

/// Serves metrics from a thread that asks the workers for reports and waits for them.
fn serve_metrics(
    at: MetricsListener,
    status: impl Fn() -> NodeStatus + Send + Sync + 'static,
    table: Arc<PageTable>,
) -> Result<MetricsServer, MetricsError> {
    let status = Arc::new(status);
    at.serve(move || {
        let (status, table) = (Arc::clone(&status), Arc::clone(&table));
        let asked = tokio::task::spawn_blocking(move || {
            metrics::sample(&status(), table.pool().bytes(), table.bytes_to_copy())
        });
        async {
            asked
                .await
                .unwrap_or_else(|error| Sample { unwell: Some(error.to_string()), ..Sample::default() })
        }
    })
}

fn open_pool(config: &Config, kept: Option<File>, supervisor: Supervisor) -> Result<Arc<Pool>, Failure> {
    let started = Instant::now();
    let told = Mutex::new(started);
    let progress = |done: u64, of: u64| {
        let Ok(mut told) = told.try_lock() else { return };
        if told.elapsed() > Duration::from_secs(2) {
            *told = Instant::now();
            let percent = done * 100 / of.max(1);
            info!(percent, "touching the pages of the pool");
            supervisor.status(&format!("bringing the pool in: {percent} %"));
        }
    };
    let pool = cxloe_mn::pool::open(&config.pool, &Host::default(), kept, &progress)?;
    info!(
        pool = %pool.spec(), bytes = pool.bytes(), extent_bytes = pool.extent_bytes(),
        incarnation = format_args!("{:#x}", pool.incarnation()), kept = pool.retained(),
        took = ?started.elapsed(), "pool ready"
    );
    Ok(Arc::new(pool))
}
