//! Metrics of a working fabric: exactly the documented metrics are served, and dashboard and alerts use no others.

#![expect(unsafe_code, reason = "a slice of mapped memory must have no other user")]

use std::collections::{BTreeMap, BTreeSet};

use cxloe_client::client;
use cxloe_client::mapping::{MapOptions, Mapping};
use cxloe_daemon::metrics::MetricKind;
use cxloe_lab::Lab;

use super::deployed::{documented, folder, named, panels};
use super::scrape::{Scrape, get, promtool};
use cxloe_system::pair::*;

/// Starts a fabric that serves metrics and has data in its region.
pub fn rig() -> Outcome<Pair> {
    let mut rig = Pair::on(Lab::builder().namespace("cn").namespace("mn").veth("cn", "cn0", "mn", "mn0"))?;
    rig.observed = true;
    rig.start_all("anon", &[])?;
    Ok(rig)
}

/// Writes and reads lines through a port, then maps the region and reads more of its pages than may be resident. The
/// region stays mapped until the returned value is dropped.
pub fn work(rig: &Pair) -> Outcome<Mapping> {
    let (mut port, hpa) = rig.written(1)?;
    verify(&mut port, hpa, 1)?;
    drop(port);
    let expected = written_lines(hpa, 1);
    let options = MapOptions { limit: 1 << 20, prefetch: false, ..MapOptions::default() };
    let mut memory = Mapping::open(&rig.socket(), "scratch", options).map_err(|error| error.to_string())?;
    // SAFETY: no other process has this region mapped.
    let bytes = unsafe { memory.as_mut_slice() };
    for _ in 0..2 {
        let right = |(at, line): (u64, &[u8; 64])| bytes[at as usize..][..64] == *line;
        let lines = expected.iter().map(|(at, line)| (at - hpa, line));
        ensure(lines.into_iter().all(right), "another line than was written")?;
        // Reads one byte of each page behind the written lines: these are more pages than may be resident.
        ensure(bytes[LINES as usize * 64..].iter().step_by(4096).all(|byte| *byte == 0), "not zero")?;
    }
    Ok(memory)
}

pub fn every_metric_is_served_and_used_as_documented() -> Outcome {
    let rig = rig()?;
    rig.gmm(&["set-quota", CN, "1G"])?;
    let mapped = work(&rig)?;
    let daemons = ["gmm", "mn-server", "cn-agent"];
    let socket = |daemon: &str| rig.path(&format!("{daemon}.metrics"));
    let mut scrapes: BTreeMap<&str, Scrape> = BTreeMap::new();
    for daemon in daemons {
        let scrape = Scrape::of(&socket(daemon))?;
        let output_text = promtool(&["check", "metrics"], &scrape.text, rig.dir.path())?;
        ensure(output_text.trim().is_empty(), format!("{daemon}: {output_text}"))?;
        ensure(get(&socket(daemon), "/healthz")?.0 == 200, format!("{daemon} is not well"))?;
        scrapes.insert(daemon, scrape);
    }
    figures_are_right(&rig, &scrapes)?;
    drop(mapped);

    // The manager reports the killed memory node with this error, marks the region as degraded, and names the region in
    // a metric.
    cxloe_lab::expect_error("has not answered within the limit");
    rig.kill("mn")?;
    let last = eventually("the manager names the region", || {
        let scrape = Scrape::of(&socket("gmm")).ok()?;
        scrape.families.contains_key("cxloe_gmm_region_unwell").then_some(scrape)
    })?;
    last.value("cxloe_gmm_region_unwell{region=\"scratch\",compute_node=\"agent\",state=\"degraded\"}")?;
    ensure(last.value("cxloe_gmm_memory_node_up{memory_node=\"mn0\"}")? == 0.0, "it is gone")?;

    let mut served: BTreeSet<String> = BTreeSet::new();
    for (daemon, metrics) in documented() {
        let mut families = scrapes[daemon].families.clone();
        if daemon == "gmm" {
            families.extend(last.families.clone());
        }
        for metric in &metrics {
            let (kind, labels) = families
                .remove(metric.name)
                .ok_or_else(|| format!("{daemon} documents {} and does not serve it", metric.name))?;
            let expected = match metric.kind {
                MetricKind::Counter => "counter",
                MetricKind::Gauge => "gauge",
                MetricKind::Histogram => "histogram",
            };
            let documented: BTreeSet<String> =
                metric.labels.iter().map(|label| (*label).to_owned()).collect();
            ensure(
                (kind.as_str(), &labels) == (expected, &documented),
                format!("{}: {kind} {labels:?}", metric.name),
            )?;
            served.insert(metric.name.to_owned());
        }
        ensure(families.is_empty(), format!("{daemon} serves what is not documented: {families:?}"))?;
    }
    let alerts = std::fs::read_to_string(folder().join("prometheus/alerts.yml"))?;
    for (place, expression) in panels()?.into_iter().chain([("alerts.yml".to_owned(), alerts)]) {
        let unknown: Vec<String> = named(&expression).difference(&served).cloned().collect();
        ensure(unknown.is_empty(), format!("{place} speaks of {unknown:?}, which nobody serves"))?;
    }
    // An agent that serves metrics ends in order at SIGTERM, and removes its metrics socket.
    rig.stop("agent")?;
    ensure(!socket("cn-agent").exists(), "the socket of the metrics is left")
}

/// Checks that served values equal those that other interfaces report.
fn figures_are_right(rig: &Pair, scrapes: &BTreeMap<&str, Scrape>) -> Outcome {
    let (gmm, mn, cn) = (&scrapes["gmm"], &scrapes["mn-server"], &scrapes["cn-agent"]);
    let counters = client::counters(&rig.socket())?;
    let engine = counters.engine;
    for (series, expected) in [
        ("cxloe_cn_line_reads_total{result=\"miss\"}", engine.read_misses),
        ("cxloe_cn_line_reads_total{result=\"hit\"}", engine.read_hits),
        ("cxloe_cn_line_writes_total{result=\"miss\"}", engine.write_misses),
        ("cxloe_cn_page_faults_total", counters.paging.faults),
        ("cxloe_cn_pages_evicted_total", counters.paging.evicted),
        ("cxloe_cn_region_size_bytes{region=\"scratch\",served_by=\"ethernet\"}", REGION),
        ("cxloe_cn_mapping_faults_total{region=\"scratch\"}", counters.paging.faults),
        ("cxloe_cn_mapping_limit_bytes{region=\"scratch\"}", 1 << 20),
        ("cxloe_cn_mapping_processes{region=\"scratch\"}", 1),
        ("cxloe_cn_region_state{region=\"scratch\",state=\"active\"}", 1),
        ("cxloe_cn_region_state{region=\"scratch\",state=\"lost\"}", 0),
    ] {
        let found = cn.value(series)?;
        ensure(found == expected as f64, format!("{series} is {found}, not {expected}"))?;
    }
    // Every fault on an absent page is counted in exactly one of the three histograms of durations.
    let timed = cn.sum("cxloe_cn_page_fault_duration_seconds_count");
    let faults = counters.paging.faults as f64;
    ensure(faults > 500.0 && timed == faults, format!("{timed} of {faults} faults were timed"))?;
    let spent = cn.sum("cxloe_cn_page_fault_duration_seconds_sum");
    ensure(spent > 1e-6 * faults && spent < LIMIT.as_secs_f64(), format!("{faults} faults took {spent} s"))?;
    let session = format!("cxloe_cn_session_state{{peer=\"{MN}\",state=\"open\"}}");
    ensure(cn.value(&session)? == 1.0, "the session is open")?;
    let executed = mn.sum("cxloe_mn_requests_executed_total");
    let requests = cn.sum("cxloe_cn_session_requests_total");
    ensure(executed > 0.0 && executed <= requests, format!("{executed} executed of {requests}"))?;
    let of_node = format!("cxloe_mn_session_requests_executed_total{{compute_node=\"{CN}\"}}");
    ensure(mn.value(&of_node)? == executed, "one compute node did it all")?;
    for (series, expected) in [
        ("cxloe_gmm_leader", 1.0),
        ("cxloe_gmm_memory_node_up{memory_node=\"mn0\"}", 1.0),
        ("cxloe_gmm_regions{state=\"active\"}", 1.0),
        ("cxloe_gmm_memory_node_pool_bytes{memory_node=\"mn0\"}", f64::from(32 << 20)),
        ("cxloe_gmm_compute_node_region_bytes{compute_node=\"agent\"}", REGION as f64),
        ("cxloe_gmm_compute_node_quota_bytes{compute_node=\"agent\"}", f64::from(1 << 30)),
    ] {
        let found = gmm.value(series)?;
        ensure(found == expected, format!("{series} is {found}, not {expected}"))?;
    }
    ensure(mn.value("cxloe_mn_pool_bytes")? == f64::from(32 << 20), "the pool")
}
