//! Sections of the evaluation, each with this system's results next to the paper's values.

use super::breakdown::{Breakdown, Breakdowns};
use super::latency_parts::PARTS;
use super::pictures::{self, Bar};
use super::section::{Cell, Grid, Picture, Section};
use super::table2::CASES;
use super::table3::Table3;
use super::{Evaluation, Values, values};
use crate::figures::{Fig11, Fig12};
use cxloe_measure::report::{Report, ReportError, units};

/// Index of the colour of bars for this system; below, those for the paper, and for other systems and limits.
const HERE: usize = 0;
const PAPER: usize = 1;
const OTHERS: usize = 7;

/// Makes the sections of the parts that were measured, in the order of the paper. Latencies come from
/// `report`.
///
/// # Errors
/// Returns [`ReportError::Picture`] when a picture cannot be drawn.
pub fn sections(found: &Evaluation, report: &Report) -> Result<Vec<Section>, ReportError> {
    let paper = values();
    let mut all = Vec::new();
    if let Some(fig) = &found.fig7 {
        all.push(fig7(&fig.names, &fig.missing, report, paper)?);
    }
    if let Some(fig) = &found.fig8 {
        all.push(fig8(fig, report, paper)?);
    }
    if found.table2.is_some() {
        all.push(table2(report, paper)?);
    }
    if let Some(fig) = &found.fig11 {
        all.push(fig11(fig, paper)?);
    }
    if let Some(fig) = &found.fig12 {
        all.push(fig12(fig, paper)?);
    }
    if let Some(table) = &found.table3 {
        all.push(table3(table, paper));
    }
    if found.table4 {
        all.push(table4(report, paper));
    }
    Ok(all)
}

/// Returns the label of a result in Fig. 7, and the index of its colour.
fn described(name: &str) -> (String, usize) {
    let socket = |rest: &str| match rest {
        "spinning" => "sockets, both ends spin",
        _ => "sockets, both ends sleep",
    };
    match name.split_once('_') {
        Some(("udp", rest)) => (format!("UDP {}", socket(rest)), OTHERS),
        Some(("tcp", rest)) => (format!("TCP {}", socket(rest)), OTHERS),
        Some((link, "echo64")) => (format!("bare echo over {link}: the limit"), OTHERS),
        Some((link, "read64")) => (format!("this system over {link}, reads"), HERE),
        Some((link, "write64")) => (format!("this system over {link}, writes"), HERE),
        Some((link, _)) => (format!("this system over {link}, half each"), HERE),
        None => ("a line of local memory".into(), OTHERS),
    }
}

fn fig7(
    names: &[String],
    missing: &[String],
    report: &Report,
    paper: &Values,
) -> Result<Section, ReportError> {
    let columns = [
        ("system", "system"),
        ("mean", "mean_ns"),
        ("p50", "p50_ns"),
        ("p99", "p99_ns"),
        ("least", "least_ns"),
        ("most", "most_ns"),
        ("from", "from"),
    ];
    let mut grid = Grid::new("fig7", "64 bytes, one operation at a time", &columns);
    let mut bars = Vec::new();
    for r in names.iter().filter_map(|name| report.result(name)) {
        let (name, colour) = described(&r.name);
        bars.push(Bar { name: name.clone(), ns: r.p50, range: None, colour });
        let times = [r.mean, r.p50, r.p99, r.min, r.max].map(Cell::Ns);
        grid.rows.push([&[Cell::text(name)], &times[..], &[Cell::text("measured here")]].concat());
    }
    for row in &paper.fig7.rows {
        let name = format!("paper: {}", row.name);
        let range = row.low.zip(row.high);
        bars.push(Bar { name: name.clone(), ns: row.ns, range, colour: PAPER });
        let ends = [row.low, row.high].map(|end| end.map_or(Cell::Empty, Cell::Ns));
        let [least, most] = ends;
        let cells = [Cell::Ns(row.ns), Cell::Empty, Cell::Empty, least, most, Cell::text(&row.of)];
        grid.rows.push([&[Cell::text(name)], &cells[..]].concat());
    }
    let p50 = |name: &str| report.result(name).map(|r| r.p50);
    let mut findings = Vec::new();
    for name in names.iter().filter(|name| name.ends_with("_mixed64")) {
        let link = name.trim_end_matches("_mixed64");
        let Some(here) = p50(name) else { continue };
        let mut words = format!("Over {link}, half of the operations take {} or less", units::time(here));
        if let Some(echo) = p50(&format!("{link}_echo64")) {
            words += &format!(": {:.2} times a bare echo of the same frames", here / echo);
        }
        for (socket, told) in [("udp_spinning", "UDP"), ("tcp_spinning", "TCP")] {
            if let Some(other) = p50(socket) {
                words += &format!(", {:.2} times as fast as {told} sockets that spin", other / here);
            }
        }
        findings.push(words + ".");
    }
    findings.extend(missing.iter().map(|missing| format!("Not measured: {missing}")));
    Ok(Section {
        id: "fig7",
        title: "Fig. 7: latency of 64 bytes, beside other systems".into(),
        source: paper.fig7.source.clone(),
        findings,
        pictures: vec![Picture {
            title: "64 bytes: medians here, means in the paper; the axis is logarithmic".into(),
            svg: pictures::latencies("fig7", &bars)?,
            legend: vec![
                (HERE, "this system".into()),
                (OTHERS, "others and limits, measured in the same lab".into()),
                (PAPER, "the paper".into()),
            ],
        }],
        grids: vec![grid],
        comparable: "What was measured here is comparable with each other: one machine, one kind of cable, alternating rounds, \
            the same random lines. The order of systems, and how far each is from the bare echo, should be found again on \
            other hardware.",
        not_comparable: "The absolute times are not those of the paper's: there, two FPGAs on a 100G link, whose MACs move \
            frames without a kernel; here a virtual cable, on which the kernel copies each frame. The paper's values are \
            means seen by a CPU behind CXL; here the call of the line port is timed. Clover, HERD, LegoOS and Clio were \
            not run: in their place stand sockets as a program uses them today.",
    })
}

fn fig8(fig: &Breakdowns, report: &Report, paper: &Values) -> Result<Section, ReportError> {
    let mut pictures = Vec::new();
    let mut grids = vec![summary(fig)];
    let mut findings = Vec::new();
    let legend: Vec<(usize, String)> = PARTS
        .iter()
        .enumerate()
        .map(|(i, (part, what, here))| (i, format!("{part}: {what}: {here}")))
        .collect();
    for one in &fig.each {
        let (figure, kind, from) = match one.name.starts_with("fig9") {
            true => ("Fig. 9", "writes", &paper.fig9),
            false => ("Fig. 10", "reads", &paper.fig10),
        };
        let how = if one.depth == 1 { "one at a time".into() } else { format!("{} in flight", one.depth) };
        pictures.push(Picture {
            title: format!("{figure}: {kind} by part, {how}"),
            svg: pictures::stacked(one)?,
            legend: legend.clone(),
        });
        grids.push(points(one, &format!("{figure}: single {kind}, {how}")));
        let p50 = |what: &str| report.result(&format!("{}_{what}", one.name)).map_or(0.0, |r| r.p50);
        findings.push(format!(
            "{} {kind}, {how}: least {}, median {}, mean {}; the paper: least {}, mean {}. Ethernet (b and e) is {:.0} % of \
             the middle half; the paper: {:.0} %.",
            units::count(one.operations as u64),
            units::time(one.total_min_ns as f64),
            units::time(p50("total")),
            units::time(one.total_mean_ns),
            units::time(from.min_ns),
            units::time(from.mean_ns),
            one.network_percent,
            paper.network_share_percent
        ));
        findings.push(format!(
            "The six parts of a request add up to its total, nanosecond by nanosecond; their means to {:.1} ns, where the \
             mean of the totals is {:.1} ns. {} of the requests are left out: their frame was lost or sent twice.",
            one.mean_ns.iter().sum::<f64>(),
            one.total_mean_ns,
            one.left_out
        ));
        if one.plain.is_some() {
            findings.push(format!(
                "What noting costs: with notes half of these {kind} take {} or less, without {}, alternately. One look at the \
                 clock takes {}, and seven are on the way.",
                units::time(p50("total")),
                units::time(p50("plain")),
                units::time(fig.clock_ns)
            ));
        }
    }
    Ok(Section {
        id: "fig8",
        title: "Fig. 8 to 10: latency by parts of the path".into(),
        source: format!("Fig. 8 and its description. {} {}", paper.fig9.source, paper.fig10.source),
        findings,
        pictures,
        grids,
        comparable: "The parts are bounded by the same events: agent, MAC, memory, MAC, agent. So is what follows from \
            them: how much of the whole the network is, that reads and writes differ little one at a time, and that \
            with many in flight it is the waiting before a stage that grows.",
        not_comparable: "A MAC is here the system call that sends, and the ring that receives: parts b and e are the \
            kernel, its copies and a virtual cable, where the paper has an Ethernet IP core in a simulation. c and d are \
            instructions of a CPU core, not a pipeline of 4 ns cycles. A full window means \
            up to 256 requests of each kind in the paper; a veth loses frames from 256 on, so here it is 128.",
    })
}

fn summary(fig: &Breakdowns) -> Grid {
    let mut columns = vec![
        ("part".to_owned(), "part".to_owned()),
        ("in the paper".into(), "paper".into()),
        ("here".into(), "here".into()),
    ];
    for one in &fig.each {
        let kind = if one.name.starts_with("fig9") { "writes" } else { "reads" };
        let how = if one.depth == 1 { "" } else { ", window full" };
        columns.push((format!("{kind}{how}: mean"), format!("{}_mean_ns", one.name)));
        columns.push((format!("{kind}{how}: middle half"), format!("{}_middle_ns", one.name)));
    }
    let mut grid =
        Grid::new("fig8", "Each part: mean of all requests, and of the middle half by their totals", &[]);
    grid.columns = columns;
    for (index, (part, there, here)) in PARTS.into_iter().enumerate() {
        let mut row = vec![Cell::text(part), Cell::text(there), Cell::text(here)];
        row.extend(
            fig.each.iter().flat_map(|one| [Cell::Ns(one.mean_ns[index]), Cell::Ns(one.middle_ns[index])]),
        );
        grid.rows.push(row);
    }
    let mut row = vec![Cell::text("total"), Cell::Empty, Cell::Empty];
    row.extend(
        fig.each.iter().flat_map(|one| [Cell::Ns(one.total_mean_ns), Cell::Ns(one.middle_ns.iter().sum())]),
    );
    grid.rows.push(row);
    grid
}

fn points(one: &Breakdown, caption: &str) -> Grid {
    let columns = [
        ("request", "request"),
        ("a", "a_ns"),
        ("b", "b_ns"),
        ("c", "c_ns"),
        ("d", "d_ns"),
        ("e", "e_ns"),
        ("f", "f_ns"),
        ("total", "total_ns"),
    ];
    let mut grid = Grid::new(&one.name, caption, &columns);
    for point in &one.points {
        let mut row = vec![Cell::Count(point.request as u64)];
        row.extend(point.parts.0.map(|ns| Cell::Ns(ns as f64)));
        row.push(Cell::Ns(point.parts.total() as f64));
        grid.rows.push(row);
    }
    grid
}

fn table2(report: &Report, paper: &Values) -> Result<Section, ReportError> {
    let columns = [
        ("case", "case"),
        ("p50", "p50_ns"),
        ("p99", "p99_ns"),
        ("write hits", "write_hits"),
        ("paper, cycles", "paper_cycles"),
        ("paper", "paper_ns"),
        ("write hits in the paper", "paper_write_hits"),
    ];
    let mut grid = Grid::new("table2", "Cases of a cache of 32 KiB in 4 ways", &columns);
    let cycles = |case: Option<&str>, local| {
        let case = paper.table2.cases.iter().find(|c| Some(c.case.as_str()) == case)?;
        Some(if local { case.local } else { case.ethernet })
    };
    let hit = report.result("hit_write64").map(|r| r.p50);
    let paper_hit = cycles(Some("write_hit"), false);
    let mut bars = Vec::new();
    for (name, what, case, local) in CASES {
        let Some(r) = report.result(name) else { continue };
        let mut row = vec![Cell::text(what), Cell::Ns(r.p50), Cell::Ns(r.p99)];
        row.push(hit.map_or(Cell::Empty, |hit| Cell::Number(r.p50 / hit.max(0.001))));
        bars.push(Bar { name: what.into(), ns: r.p50, range: None, colour: HERE });
        match cycles(case, local) {
            Some(cycles) => {
                let ns = cycles * paper.table2.cycle_ns;
                row.extend([Cell::Count(cycles as u64), Cell::Ns(ns)]);
                row.push(paper_hit.map_or(Cell::Empty, |hit| Cell::Number(cycles / hit)));
                bars.push(Bar { name: "paper".into(), ns, range: None, colour: PAPER });
            }
            None => row.extend([Cell::Empty, Cell::Empty, Cell::Empty]),
        }
        grid.rows.push(row);
    }
    let mut findings = Vec::new();
    let there = |case| cycles(Some(case), false).map(|cycles| cycles * paper.table2.cycle_ns);
    if let (Some(hit), Some(miss)) = (report.result("hit_read64"), report.result("read_miss_clean"))
        && let (Some(hit_there), Some(miss_there)) = (there("read_hit"), there("read_miss"))
    {
        findings.push(format!(
            "A read hit takes {}, a read miss {}: {:.0} times as long; the paper: {} and {}, {:.0} times.",
            units::time(hit.p50),
            units::time(miss.p50),
            miss.p50 / hit.p50.max(0.001),
            units::time(hit_there),
            units::time(miss_there),
            miss_there / hit_there
        ));
    }
    if let (Some(done), Some(acked)) =
        (report.result("write_miss_dirty"), report.result("write_miss_dirty_acked"))
    {
        findings.push(format!(
            "A write whose victim is dirty is done in {}: the victim goes into the retry buffer, and nobody waits for it. \
             The memory node has acknowledged it after {}, which stands for the paper's case.",
            units::time(done.p50),
            units::time(acked.p50)
        ));
    }
    Ok(Section {
        id: "table2",
        title: "Table II: the cases of the line cache".into(),
        source: paper.table2.source.clone(),
        findings,
        pictures: vec![Picture {
            title: "Medians here, cycles of 4 ns in the paper; the axis is logarithmic".into(),
            svg: pictures::latencies("table2", &bars)?,
            legend: vec![(HERE, "this system".into()), (PAPER, "the paper".into())],
        }],
        grids: vec![grid],
        comparable: "The shape of the cache, its states and what each case does are the paper's. Which cases stay on the \
            node and which wait for the memory node can be compared, and by how many hits a miss is dearer.",
        not_comparable: "A cycle of an FPGA is not one of a CPU: 14 cycles there are 56 ns, always; here a hit is a few \
            nanoseconds in a cache of the CPU, as long as nothing pushes the table out of it. A CPU sees a hit of the \
            FPGA after 415 ns, because CXL lies between. Local memory is the host's here, and DRAM behind the same FPGA \
            in the paper.",
    })
}

fn fig11(fig: &Fig11, paper: &Values) -> Result<Section, ReportError> {
    let columns = [
        ("threshold", "threshold"),
        ("PFC frames", "pfc_frames"),
        ("first, Gbit/s", "first_gbit"),
        ("final, Gbit/s", "final_gbit"),
        ("difference", "difference_percent"),
    ];
    let mut grid = Grid::new("fig11", "Rates over the threshold of the memory node's FIFO", &columns);
    for point in &fig.points {
        grid.rows.push(vec![
            Cell::Count(point.threshold.into()),
            Cell::Count(point.pfc),
            point.first.map_or(Cell::Empty, |first| Cell::Number(first.mean)),
            Cell::Number(point.last.mean),
            point.difference_percent.map_or(Cell::Empty, Cell::Percent),
        ]);
    }
    let difference = fig.difference_percent.map_or("no PFC frame at any threshold".into(), |d| {
        format!("First and final stable rate differ by {:.1} % on average", d.mean)
    });
    let quiet = fig.quiet_from().map_or("PFC frames at every threshold".into(), |threshold| {
        format!("No PFC frame from {threshold} entries on")
    });
    Ok(Section {
        id: "fig11",
        title: "Fig. 11: stable rates over FIFO thresholds".into(),
        source: paper.fig11.source.clone(),
        findings: vec![
            format!("{difference}; the paper: {} %.", paper.fig11.difference_percent),
            format!("{quiet}; the paper: at {}.", paper.fig11.quiet_from),
        ],
        pictures: vec![Picture { title: "Simulated".into(), svg: fig.svg()?, legend: Vec::new() }],
        grids: vec![grid],
        comparable: "Controller and token bucket are those that pace real links here, with the paper's times t1 to t6, on \
            a link of 100 Gbit/s. Both are simulations: the same program gives the same figure everywhere.",
        not_comparable: "How the memory node's FIFO is filled and emptied, the paper does not say. Two numbers of our model \
            of it are fitted to the paper's two statements, so that these two are no independent confirmation; the shape \
            of the curve is.",
    })
}

fn fig12(fig: &Fig12, paper: &Values) -> Result<Section, ReportError> {
    let columns = [
        ("initial, Gbit/s", "initial_gbit"),
        ("PFC frames", "pfc_frames"),
        ("final, Gbit/s", "final_gbit"),
        ("least", "final_least_gbit"),
        ("most", "final_most_gbit"),
    ];
    let mut grid = Grid::new("fig12", "Rates over the rate a link starts at", &columns);
    for point in &fig.points {
        let rates = [point.last.mean, point.last.min, point.last.max];
        let mut row = vec![Cell::Count(point.initial), Cell::Count(point.pfc)];
        row.extend(rates.map(Cell::Number));
        grid.rows.push(row);
    }
    let findings = fig.rates().map(|rates| {
        format!(
            "With a threshold of {} entries, final rates are {:.1} to {:.1} Gbit/s wherever a link starts; the paper: {} to {}.",
            fig.threshold, rates.min, rates.max, paper.fig12.low_gbit, paper.fig12.high_gbit
        )
    });
    Ok(Section {
        id: "fig12",
        title: "Fig. 12: stable rates over initial rates".into(),
        source: paper.fig12.source.clone(),
        findings: findings.into_iter().collect(),
        pictures: vec![Picture { title: "Simulated".into(), svg: fig.svg()?, legend: Vec::new() }],
        grids: vec![grid],
        comparable: "That the final rate does not depend on where a link starts is the controller's doing, and is found \
            again. So are the times it takes.",
        not_comparable: "The rate itself follows from the model of the FIFO, which is fitted to it.",
    })
}

fn table3(table: &Table3, paper: &Values) -> Section {
    let columns = [
        ("single lines", "operation"),
        ("a second", "per_s"),
        ("CPU at the CN", "cn_cpu_ns"),
        ("CPU at the MN", "mn_cpu_ns"),
    ];
    let mut cpu = Grid::new("table3_cpu", "Time of a CPU for each operation, at both ends", &columns);
    for row in &table.cpu {
        let mn = row.mn_ns.map_or(Cell::Empty, Cell::Ns);
        cpu.rows.push(vec![Cell::text(&row.name), Cell::PerSecond(row.per_s), Cell::Ns(row.cn_ns), mn]);
    }
    let mut memory =
        Grid::new("table3_memory", "Memory", &[("for", "for"), ("at", "node"), ("memory", "bytes")]);
    for row in &table.memory {
        memory.rows.push(vec![Cell::text(&row.name), Cell::text(&row.node), Cell::Bytes(row.bytes)]);
    }
    let names: Vec<(&str, &str)> = std::iter::once(("FPGA", "resource"))
        .chain(paper.table3.columns.iter().map(|name| (name.as_str(), name.as_str())))
        .collect();
    let mut there = Grid::new("table3_paper", "The paper: resources of an FPGA", &names);
    for row in &paper.table3.rows {
        let cells = row.cells.iter().map(Cell::text);
        there.rows.push(std::iter::once(Cell::text(&row.name)).chain(cells).collect());
    }
    Section {
        id: "table3",
        title: "Table III: what it costs".into(),
        source: paper.table3.source.clone(),
        findings: vec![
            "An end that spins uses its whole core, whether requests come or not: its time for an operation is the time \
             between two of them. What the work itself takes shows where both ends sleep."
                .into(),
        ],
        pictures: Vec::new(),
        grids: vec![cpu, memory, there],
        comparable: "That the compute node costs more than the memory node; and that a cache costs the compute node \
            memory: 32 KiB of lines and their tags here, 185 block RAMs there.",
        not_comparable: "Look-up tables are not nanoseconds of a core. The FPGA is paid for once and works without a CPU; \
            software takes a core only while it is used, if its ends may sleep.",
    }
}

/// This system's cells of Table IV: key of the row, and text. The row of the latency is absent, because the latency is
/// measured.
const FEATURES: [(&str, &str); 8] = [
    ("method", "loads and stores to mapped pages; a function call for single lines"),
    ("coherence", "none between nodes: a region has one owner; line cache with M, E, I"),
    ("granularity", "cache line; page where mapped"),
    ("api", "none for mapped memory and under `cn-agent exec`; one call for a line"),
    (
        "overhead",
        "user space at both ends, the kernel for each frame; a page fault for a page that is not there",
    ),
    ("link", "Ethernet, any NIC"),
    ("reach", "an Ethernet segment, over any switch"),
    ("congestion", "yes: the paper's six phases, driven by PFC and by the memory nodes"),
];

fn table4(report: &Report, paper: &Values) -> Section {
    let mut columns: Vec<(&str, &str)> = vec![("feature", "feature")];
    columns.extend(paper.table4.columns.iter().map(|name| (name.as_str(), name.as_str())));
    columns.push(("this system", "this system"));
    let mut grid = Grid::new("table4", "Features", &columns);
    let p50 = |name: &str| report.result(name).map(|r| units::time(r.p50));
    let latency = || {
        let line = ["xdp_mixed64", "packet_mixed64", "pnet_mixed64"].into_iter().find_map(p50);
        let hit = p50("hit_read64").map(|hit| format!("{hit} if cached"));
        let known: Vec<String> = line.into_iter().chain(hit).collect();
        if known.is_empty() { "not measured in this run".to_owned() } else { known.join("; ") }
    };
    for row in &paper.table4.rows {
        let own = FEATURES.iter().find(|(key, _)| *key == row.key).map(|(_, own)| (*own).to_owned());
        let mut cells = vec![Cell::text(&row.name)];
        cells.extend(row.cells.iter().map(Cell::text));
        cells.push(Cell::Text(own.unwrap_or_else(latency)));
        grid.rows.push(cells);
    }
    Section {
        id: "table4",
        title: "Table IV: features".into(),
        source: paper.table4.source.clone(),
        findings: Vec::new(),
        pictures: Vec::new(),
        grids: vec![grid],
        comparable: "Every row but the last.",
        not_comparable: "Latency: the paper's are hardware's, this system's is that of the link it was measured on; see \
            Fig. 7. Transparency has a price that the paper's hardware does not pay: a page is fetched where a line \
            was asked for.",
    }
}
