//! Fetches a daemon's metrics as Prometheus does, and parses the answer; runs `promtool`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use cxloe_system::pair::{LIMIT, Outcome, ensure};

/// Answer of a daemon to a GET of `path`: status and body.
pub fn get(socket: &Path, path: &str) -> Outcome<(u16, String)> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(LIMIT))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: daemon\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("no end of the head")?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or("no status")?;
    if path == "/metrics" && status == 200 {
        ensure(head.to_lowercase().contains("text/plain; version=0.0.4"), head)?;
    }
    Ok((status, body.to_owned()))
}

#[derive(Debug)]
pub struct Scrape {
    pub text: String,
    /// Metric families by name, each with its kind and its label names.
    pub families: BTreeMap<String, (String, BTreeSet<String>)>,
    /// Values of series by name and labels, as in `up{a="b"}`.
    pub values: BTreeMap<String, f64>,
}

impl Scrape {
    pub fn of(socket: &Path) -> Outcome<Scrape> {
        let (status, text) = get(socket, "/metrics")?;
        ensure(status == 200, format!("{status}: {text}"))?;
        let mut families: BTreeMap<String, (String, BTreeSet<String>)> = BTreeMap::new();
        let mut values = BTreeMap::new();
        let mut current = String::new();
        for line in text.lines() {
            if let Some(declared) = line.strip_prefix("# TYPE ") {
                let (name, kind) = declared.split_once(' ').ok_or("a type without a kind")?;
                current = name.to_owned();
                families.insert(current.clone(), (kind.to_owned(), BTreeSet::new()));
            }
            if line.starts_with('#') {
                continue;
            }
            let (series, value) = line.rsplit_once(' ').ok_or_else(|| format!("no value: {line}"))?;
            ensure(series.starts_with(&current), format!("{series} among {current}"))?;
            let labels = series.split_once('{').map_or("", |(_, labels)| labels.trim_end_matches('}'));
            let (_, names) = families.get_mut(&current).ok_or("a sample before its type")?;
            for label in labels.split("\",").filter_map(|pair| pair.split_once('=')).map(|(name, _)| name) {
                // `le` is the bound of a histogram's bucket, and not documented as a label of the metric.
                names.extend((label != "le").then(|| label.to_owned()));
            }
            values.insert(series.to_owned(), value.parse()?);
        }
        Ok(Scrape { text, families, values })
    }

    /// Value of the series of this name and these labels.
    pub fn value(&self, series: &str) -> Outcome<f64> {
        Ok(*self.values.get(series).ok_or_else(|| format!("no {series} in\n{}", self.text))?)
    }

    /// Sum of the values of all series of a metric.
    pub fn sum(&self, name: &str) -> f64 {
        let of = |series: &str| series.split('{').next() == Some(name);
        self.values.iter().filter(|(series, _)| of(series)).map(|(_, value)| value).sum()
    }
}

/// Runs `promtool` with `input` as its standard input; returns its output. `promtool` has to end with status
/// 0.
pub fn promtool(arguments: &[&str], input: &str, folder: &Path) -> Outcome<String> {
    let mut command = Command::new("promtool");
    command.args(arguments).current_dir(folder);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .map_err(|error| format!("promtool: {error}; deploy/install/need.sh promtool installs it"))?;
    child.stdin.take().ok_or("no standard input")?.write_all(input.as_bytes())?;
    let output = child.wait_with_output()?;
    let output_text = [output.stdout, output.stderr].concat();
    let output_text = String::from_utf8_lossy(&output_text).into_owned();
    ensure(output.status.success(), format!("promtool {}: {output_text}", arguments.join(" ")))?;
    Ok(output_text)
}
