//! Checks of the files for Prometheus and Grafana that need no fabric: documentation, alerts, dashboard.

use std::collections::BTreeSet;
use std::path::PathBuf;

use cxloe_daemon::metrics::{Definition, MetricKind, PROCESS, document};
use serde_json::Value;

use super::scrape::promtool;
use cxloe_system::pair::{Outcome, ensure};

/// Environment variable that makes the test rewrite the documentation of metrics.
const UPDATE: &str = "CXLOE_UPDATE";

/// Folder of the files for Prometheus and Grafana.
pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy/observe")
}

/// Definitions of all metrics, by daemon.
pub fn documented() -> [(&'static str, Vec<&'static Definition>); 3] {
    let with_process = |own: Vec<&'static Definition>| own.into_iter().chain(PROCESS).collect();
    [
        ("gmm", with_process(cxloe_gmm::server::metrics::ALL.to_vec())),
        ("mn-server", with_process(cxloe_mn::metrics::all())),
        ("cn-agent", with_process(cxloe_cn::metrics::all())),
    ]
}

/// Names of metrics in an expression; of a histogram, the name without the suffixes of its series.
pub fn named(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = |word: &&str| word.starts_with("cxloe_") || word.starts_with("process_");
    let histogram = |name: &str| {
        documented()
            .iter()
            .flat_map(|(_, all)| all)
            .any(|metric| metric.name == name && metric.kind == MetricKind::Histogram)
    };
    words
        .filter(ours)
        .map(|word| {
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|ending| word.strip_suffix(ending));
            base.filter(|base| histogram(base)).unwrap_or(word).to_owned()
        })
        .collect()
}

/// Expressions of the dashboard's panels, each with the title of its panel.
pub fn panels() -> Outcome<Vec<(String, String)>> {
    let dashboard: Value =
        serde_json::from_str(&std::fs::read_to_string(folder().join("grafana/cxloe.json"))?)?;
    let panels = dashboard["panels"].as_array().ok_or("no panels")?;
    let mut all = Vec::new();
    for panel in panels {
        let title = panel["title"].as_str().ok_or("a panel without a title")?;
        for target in panel["targets"].as_array().into_iter().flatten() {
            all.push((
                title.to_owned(),
                target["expr"].as_str().ok_or("a target without an expression")?.to_owned(),
            ));
        }
    }
    for variable in dashboard["templating"]["list"].as_array().into_iter().flatten() {
        if let Some(query) = variable["definition"].as_str() {
            all.push((variable["name"].to_string(), query.to_owned()));
        }
    }
    Ok(all)
}

pub fn the_documentation_is_that_of_the_code() -> Outcome {
    let path = folder().join("METRICS.md");
    let mut text = String::from(
        "# Metrics\n\nWhat each daemon serves at `/metrics` when it is started with `--metrics ADDRESS`. Made from the tables in the code,\n\
         by `CXLOE_UPDATE=1 cargo test -p cxloe-system --test fabrics the_documentation`; a test says when the two differ. Counters\n\
         begin at 0 with each start of their daemon unless they say otherwise.\n",
    );
    let own = [
        ("gmm", "The manager: `gmm serve`", cxloe_gmm::server::metrics::ALL.to_vec()),
        ("mn-server", "Memory nodes: `mn-server`", cxloe_mn::metrics::all()),
        ("cn-agent", "Compute nodes: `cn-agent run`", cxloe_cn::metrics::all()),
    ];
    for (_, title, metrics) in &own {
        text += &format!("\n## {title}\n\n{}", document(metrics.iter().copied()));
    }
    text += &format!("\n## Each process\n\n{}", document(PROCESS));
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&path, &text)?;
    }
    ensure(std::fs::read_to_string(&path)? == text, format!("{} is not what the code says", path.display()))?;
    let all: Vec<&Definition> = own.iter().flat_map(|(_, _, metrics)| metrics.iter().copied()).collect();
    let names: BTreeSet<&str> = all.iter().map(|metric| metric.name).collect();
    ensure(names.len() == all.len(), "two metrics have one name")?;
    for metric in all {
        let total = metric.name.ends_with("_total");
        ensure(
            total == (metric.kind == MetricKind::Counter),
            format!("{}: counters end in _total", metric.name),
        )?;
        ensure(metric.help.ends_with('.'), format!("{}: its help is no sentence", metric.name))?;
    }
    Ok(())
}

pub fn promtool_takes_alerts_and_configuration() -> Outcome {
    let folder = folder().join("prometheus");
    promtool(&["check", "rules", "alerts.yml"], "", &folder)?;
    promtool(&["check", "config", "prometheus.yml"], "", &folder)?;
    promtool(&["test", "rules", "alerts_test.yml"], "", &folder).map(drop)
}

/// Prometheus's own parser must accept the expression of each panel. The test passes each expression to it as a rule.
pub fn every_panel_is_valid() -> Outcome {
    let dir = tempfile::tempdir()?;
    let mut rules = String::from("groups:\n  - name: panels\n    rules:\n");
    let mut count = 0;
    for (title, expression) in panels()? {
        ensure(!named(&expression).is_empty(), format!("{title}: {expression} names no metric"))?;
        // `label_values` is a function of Grafana, which Prometheus does not parse.
        if expression.starts_with("label_values(") {
            continue;
        }
        let expression =
            expression.replace("$__rate_interval", "1m").replace("$cn", ".*").replace("$mn", ".*");
        rules += &format!("      - record: panel:{count}\n        expr: {}\n", Value::from(expression));
        count += 1;
    }
    ensure(count > 50, format!("{count} expressions"))?;
    std::fs::write(dir.path().join("panels.yml"), rules)?;
    promtool(&["check", "rules", "panels.yml"], "", dir.path()).map(drop)
}
