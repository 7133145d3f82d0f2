//! Tests of the screen with synthetic snapshots.

use cxloe_wire::session::{RequesterCounters, RequesterStatus};
use cxloe_wire::time::Time;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;
use crate::top::Snapshot;
use cxloe_client::message::{
    AttachedLeg, AttachedRegion, Attaching, PagingView, Session, SessionPace, WorkerCounters,
};
use cxloe_cn_core::mapped::MappingKind;

fn region(name: &str, size: u64) -> AttachedRegion {
    AttachedRegion {
        region: name.into(),
        hpa: 1 << 40,
        size,
        state: "active".into(),
        served_by: "ethernet".into(),
        window: 16 << 30,
        // The second memory node holds no region listed here, so its name is not known.
        memory_nodes: vec![AttachedLeg {
            memory_node: "mn-far".into(),
            mac: "02:00:00:00:00:02".into(),
            decoder: 0,
            position: 0,
            offset: 0,
            bytes: size,
        }],
        ..AttachedRegion::default()
    }
}

fn mapping(space: u64, region: &str, faults: u64, zero_fills: u64) -> PagingView {
    PagingView {
        space,
        region: region.into(),
        kind: MappingKind::Shared,
        bytes: 1 << 30,
        limit: 64 << 20,
        resident: 32 << 20,
        slots_used: 0,
        full: false,
        suspended: false,
        prefetch: true,
        lost_wait_ms: 30_000,
        taking_over: false,
        owners: 1,
        owner: None,
        members: Vec::new(),
        counters: cxloe_cn_core::pager::PagerCounters { faults, zero_fills, ..Default::default() },
    }
}

fn session(peer: &str, requests: u64, retransmitted: u64) -> Session {
    let counters = RequesterCounters { requests, retransmitted, ..RequesterCounters::default() };
    let status = RequesterStatus {
        peer: peer.into(),
        state: "open".into(),
        integrity: "insecure".into(),
        unanswered: 7,
        buffered: 3,
        rtt_ns: 12_340,
        rtt_variation_ns: 560,
        timeout_ns: 2_000_000,
        counters,
        ..RequesterStatus::default()
    };
    let pace = SessionPace {
        phase: 'c',
        rate: 7_500_000_000,
        target: 10_000_000_000,
        pauses: 3,
        duplicates: 0,
        delayed: 0,
    };
    Session { status, pace: Some(pace), ..Session::default() }
}

/// Two snapshots of one agent, two seconds apart.
fn snapshots() -> (Snapshot, Snapshot) {
    let mut before = Snapshot {
        at: Time(1_000_000_000),
        unix_ms: 50_000_000,
        regions: vec![region("cold", 4 << 30), region("hot", 1 << 30)],
        sessions: vec![session("02:00:00:00:00:02", 1000, 0), session("02:00:00:00:00:03", 1000, 0)],
        mappings: vec![mapping(1, "hot", 100, 0), mapping(2, "cold", 100, 0)],
        ..Snapshot::default()
    };
    before.node.cn = "02:00:00:00:00:01".into();
    before.node.name = "cn-near".into();
    before.node.manager = "http://10.0.0.1:7440".into();
    before.counters.backend = "xdp".into();
    let mut now = before.clone();
    (now.at, now.unix_ms) = (Time(3_000_000_000), 50_002_000);
    now.counters.engine.read_hits = 3000;
    now.counters.engine.read_misses = 1000;
    now.counters.paging.faults = 6000;
    now.counters.paging.zero_fills = 1500;
    (0..100).for_each(|_| now.counters.fault_times.fetch.record(Duration::from_micros(16)));
    now.mappings = vec![mapping(1, "hot", 6100, 1500), mapping(2, "cold", 120, 0)];
    now.sessions = vec![session("02:00:00:00:00:02", 5000, 0), session("02:00:00:00:00:03", 1200, 40)];
    (before, now)
}

fn view() -> View {
    View { interval: Duration::from_secs(2), socket: "/run/cxloe/cn-agent.sock".into(), ..View::default() }
}

/// Draws the screen; returns its lines.
fn screen(figures: Option<&Figures>, view: &View, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(figures, view, frame.area(), frame.buffer_mut())).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(line).collect()
}

/// The words of the row whose first word is `first`.
fn row<'s>(screen: &'s [String], first: &str) -> Vec<&'s str> {
    let line = screen.iter().find(|line| line.split_whitespace().next() == Some(first));
    line.unwrap_or_else(|| panic!("no {first} in\n{}", screen.join("\n"))).split_whitespace().collect()
}

#[test]
fn rates_are_those_between_two_snapshots() {
    let (before, now) = snapshots();
    let figures = Figures::between(Some(&before), &now);
    let shown = screen(Some(&figures), &view(), 120, 24);
    let all = shown.join("\n");
    assert!(shown[0].starts_with("cn-agent top  cn-near  13:53:22 UTC  link xdp  manager http"), "{all}");
    assert!(all.contains("reads 2.00k/s hit 75.0%") && all.contains("writes 0/s hit -"), "{all}");
    assert!(all.contains("faults 3.00k/s hit 25.0%  p50 17.5µs"), "{all}");
    assert!(all.contains("2µs|    █              |10s"), "{all}");
    let expected = ["hot", "1GiB", "active", "3.00k", "25.0%", "32MiB", "64MiB", "0", "1", "ethernet"];
    assert_eq!(row(&shown, "hot"), expected);
    let expected = ["open", "12.3µs", "100", "20", "recovering", "7.50Gbit/s", "7", "40", "0", "0"];
    assert_eq!(row(&shown, "02:00:00:00:00:03")[1..], expected);
    assert!(shown[23].starts_with("q end  ? help  s sort (rate)") && shown[23].contains("every 2s"), "{all}");
}

/// Counters of a worker that has run for `ran` in total.
fn worker(worker: usize, ran: Duration, reads: u64, frames: u64) -> WorkerCounters {
    let mut of = WorkerCounters {
        worker,
        cpu: Some(worker as u32 + 4),
        cpu_time_ns: ran.as_nanos() as u64,
        ..WorkerCounters::default()
    };
    of.counters.engine.read_hits = reads;
    of.counters.paging.faults = reads / 10;
    (of.counters.link.rx_frames, of.counters.link.tx_frames) = (frames, 2 * frames);
    (of.counters.clients, of.counters.in_flight) = (worker + 1, 5);
    of
}

/// The snapshots of an agent with two workers, the second of which serves the region `hot`.
fn snapshots_of_two_workers() -> (Snapshot, Snapshot) {
    let (mut before, mut now) = snapshots();
    let second = Duration::from_secs(1);
    before.workers = vec![worker(0, second, 0, 100), worker(1, second, 1000, 100)];
    now.workers = vec![worker(0, second, 0, 120), worker(1, 2 * second, 5000, 2100)];
    now.regions[1].worker = 1;
    for snapshot in [&mut before, &mut now] {
        let [first, second] = &mut snapshot.sessions[..] else { panic!("there are two sessions") };
        second.status.peer = format!("{} worker 1", first.status.peer);
        (first.worker, second.worker) = (Some(0), Some(1));
    }
    (before, now)
}

#[test]
fn several_workers_have_a_row_each() {
    let (before, now) = snapshots_of_two_workers();
    let figures = Figures::between(Some(&before), &now);
    for (width, height) in [(120, 24), (80, 24)] {
        let shown = screen(Some(&figures), &view(), width, height);
        let all = shown.join("\n");
        let place = shown.iter().position(|line| line.starts_with(" workers ")).unwrap();
        let rows: Vec<Vec<&str>> =
            shown[place + 1..place + 4].iter().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0].len(), 10, "{all}");
        assert_eq!(rows[1], ["0", "4", "0.0%", "0", "0", "10", "20", "1", "1", "5"], "{all}");
        assert_eq!(rows[2], ["1", "5", "50.0%", "2.00k", "200", "1.00k", "2.00k", "1", "2", "5"], "{all}");
        assert!(all.contains("reads 2.00k/s hit 75.0%"), "the sum stays: {all}");
    }
    let shown = screen(Some(&figures), &view(), 120, 40);
    assert_eq!(row(&shown, "hot")[8..], ["1", "1", "ethernet"]);
    let sessions: Vec<&String> = shown.iter().filter(|line| line.starts_with("mn-far")).collect();
    assert_eq!(sessions.len(), 2, "both have the memory node's name: {}", shown.join("\n"));
    let workers: Vec<&str> = sessions.iter().filter_map(|line| line.split_whitespace().nth(1)).collect();
    assert_eq!(workers, ["0", "1"]);
    let text = text(&figures, &view(), 130);
    assert!(text.contains(" workers") && text.contains("50.0%"), "{text}");
}

#[test]
fn workers_are_named_in_json_if_there_are_several() {
    let (before, now) = snapshots_of_two_workers();
    let json = serde_json::to_value(Figures::between(Some(&before), &now)).unwrap();
    assert_eq!((&json["workers"][1]["worker"], &json["workers"][1]["awake"]), (&1.into(), &0.5.into()));
    assert_eq!((&json["regions"][1]["worker"], &json["sessions"][1]["worker"]), (&1.into(), &1.into()));
    let first = serde_json::to_value(Figures::between(None, &now)).unwrap();
    assert!(first["workers"][0]["awake"].is_null(), "{first}");
    let (before, now) = snapshots();
    let json = serde_json::to_value(Figures::between(Some(&before), &now)).unwrap();
    for object in [&json, &json["regions"][0], &json["sessions"][0]] {
        assert!(object.get("workers").or(object.get("worker")).is_none(), "{object}");
    }
}

#[test]
fn without_an_earlier_snapshot_there_are_no_rates() {
    let (_, now) = snapshots();
    let figures = Figures::between(None, &now);
    assert_eq!((figures.interval_ns, figures.reads_per_s, figures.regions[1].faults_per_s), (0, 0.0, 0.0));
    assert_eq!(figures.faults.times.count(), 100);
}

#[test]
fn an_agent_that_has_begun_anew_has_no_negative_rates() {
    let (before, now) = snapshots();
    let (before, now) = (now, Snapshot { at: Time(4_000_000_000), ..before });
    let figures = Figures::between(Some(&before), &now);
    assert_eq!((figures.reads_per_s, figures.sessions[0].requests_per_s), (0.0, 0.0));
    assert_eq!((figures.read_hits, figures.faults.times.count()), (None, 0));
}

#[test]
fn order_is_the_users() {
    let (before, now) = snapshots();
    let figures = Figures::between(Some(&before), &now);
    let order = |view: &View| -> (Vec<String>, Vec<String>) {
        let shown = screen(Some(&figures), view, 120, 24);
        let firsts: Vec<String> =
            shown.iter().filter_map(|line| Some(line.split_whitespace().next()?.into())).collect();
        let named =
            |names: &[&str]| firsts.iter().filter(|word| names.contains(&word.as_str())).cloned().collect();
        (named(&["hot", "cold"]), named(&["mn-far", "02:00:00:00:00:03"]))
    };
    let by = |sort, reverse| {
        let (regions, sessions) = order(&View { sort, reverse, ..view() });
        (regions[0].clone(), if sessions[0] == "mn-far" { '2' } else { '3' })
    };
    assert_eq!(by(Sort::Rate, false), ("hot".into(), '2'));
    assert_eq!(by(Sort::Rate, true), ("cold".into(), '3'));
    assert_eq!(by(Sort::Name, false), ("cold".into(), '3'));
    assert_eq!(by(Sort::Size, false), ("cold".into(), '3'));
    assert_eq!(by(Sort::Trouble, false), ("hot".into(), '3'), "who sends again comes first");
    let orders = std::iter::successors(Some(Sort::default()), |sort| Some(sort.next()));
    let words: std::collections::BTreeSet<&str> = orders.take(4).map(Sort::word).collect();
    assert_eq!(words.len(), 4, "each comes once");
}

#[test]
fn an_agent_that_is_away_is_named_and_its_last_figures_stay() {
    let (before, now) = snapshots();
    let figures = Figures::between(Some(&before), &now);
    let away = View { trouble: Some(("the agent has ended".into(), Duration::from_secs(12))), ..view() };
    let shown = screen(Some(&figures), &away, 120, 24);
    assert_eq!(shown[1], "these figures are 12.0s old, trying again: the agent has ended");
    assert_eq!(row(&shown, "hot")[1], "1GiB");
    let nothing = screen(None, &away, 120, 24);
    assert!(nothing[0].contains("/run/cxloe/cn-agent.sock"), "{nothing:?}");
    assert_eq!(nothing[1], "trying again: the agent has ended");
}

#[test]
fn every_size_of_a_screen_can_be_drawn_on() {
    let (before, mut now) = snapshots();
    now.regions.extend((0..200).map(|number| region(&format!("r{number}"), 1 << 20)));
    let figures = Figures::between(Some(&before), &now);
    for (width, height) in [(1, 1), (5, 3), (20, 8), (80, 24), (300, 100)] {
        for view in [view(), View { help: true, scroll: 1000, paused: true, ..view() }] {
            screen(Some(&figures), &view, width, height);
        }
    }
    let (before, mut many) = snapshots_of_two_workers();
    many.workers.extend((2..16).map(|number| worker(number, Duration::ZERO, 0, 0)));
    let of_many = Figures::between(Some(&before), &many);
    for (width, height) in [(1, 1), (5, 3), (20, 8), (80, 24), (300, 100)] {
        screen(Some(&of_many), &view(), width, height);
    }
    let narrow = screen(Some(&figures), &view(), 80, 24);
    assert_eq!(
        row(&narrow, "hot")[..5],
        ["hot", "1GiB", "active", "3.00k", "25.0%"],
        "the first columns stay"
    );
    assert_eq!(row(&narrow, "02:00:00:00:00:03")[5..7], ["recovering", "7.50Gbit/s"]);
    let scrolled = screen(Some(&figures), &View { scroll: 2, sort: Sort::Size, ..view() }, 120, 24);
    assert!(scrolled.iter().all(|line| !line.starts_with("hot ") && !line.starts_with("cold ")));
    let help = screen(Some(&figures), &View { help: true, ..view() }, 120, 24);
    assert!(help.iter().any(|line| line.contains("sort by rate, name, size, trouble")));
}

/// Tests a default terminal, 80 by 24: neither the summary nor a visible column is cut, even with large numbers.
#[test]
fn eighty_columns_are_enough() {
    let (before, mut now) = snapshots();
    let large = 1_999_999_999;
    let (e, p, l) = (&mut now.counters.engine, &mut now.counters.paging, &mut now.counters.link);
    (e.read_hits, e.read_misses, e.write_hits, e.burst_reads, e.failures) =
        (large, large, large, large, large);
    (p.faults, p.prefetched, p.prefetch_hits, p.evicted, p.written_back) =
        (large, large, large, large, large);
    (l.rx_bytes, l.tx_bytes, l.rx_frames, l.tx_frames, l.rx_dropped) = (large, large, large, large, large);
    (p.waits_for_room, now.counters.in_flight, now.counters.stranded) = (large, 65_536, 65_536);
    now.regions.push(AttachedRegion {
        state: "degraded".into(),
        attachment: Attaching::Draining,
        ..region("r", 1)
    });
    now.node.held = true;
    let figures = Figures::between(Some(&before), &now);
    let wide = screen(Some(&figures), &view(), 500, 60);
    let narrow = screen(Some(&figures), &view(), 80, 24);
    let all = narrow.join("\n");
    let labels = ["lines", "pages", "link"];
    let summary = wide.iter().filter(|line| labels.iter().any(|label| line.starts_with(label)));
    let phrases: Vec<&str> =
        summary.flat_map(|line| line[LABEL..].split("  ")).map(str::trim).filter(|p| !p.is_empty()).collect();
    assert!(phrases.len() >= 16, "{phrases:?}");
    for phrase in phrases.iter().filter(|phrase| !phrase.contains('█') && !phrase.contains('|')) {
        assert!(all.contains(phrase), "no {phrase:?} in\n{all}");
    }
    assert!(narrow[0].contains("cn-near") && narrow[0].contains("suspended"), "{all}");
    assert_eq!(
        row(&narrow, "region"),
        ["region", "size", "state", "faults/s", "hit", "resident", "limit", "procs"]
    );
    let sessions = ["memory", "node", "state", "RTT", "req/s", "resent/s", "phase", "rate"];
    assert_eq!(row(&narrow, "memory"), sessions);
    assert!(all.contains("mn-far") && all.contains("letting go") && all.contains("recovering"), "{all}");
    assert!(narrow[23].ends_with("j k scroll") && narrow[23].len() <= 80, "{all}");
}

#[test]
fn text_has_every_region_and_session() {
    let (before, now) = snapshots();
    let shown = text(&Figures::between(Some(&before), &now), &view(), 130);
    for words in ["hot", "cold", "mn-far", "02:00:00:00:00:03", "faults 3.00k/s"] {
        assert!(shown.contains(words), "no {words} in\n{shown}");
    }
    assert!(!shown.contains("q end"), "keys are of no use there");
}
