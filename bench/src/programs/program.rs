//! The programs: what they do, what they need, and how they are started.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::error::ProgramsError;
use super::redis::Load;
use super::text;
use crate::compare::Tool;
use crate::compare::stage::find;
use crate::pattern::Share;

/// Bytes of numbers that numpy sorts.
const SORTED: f64 = 100e6;
/// Rows of about a kilobyte that sqlite keeps.
const ROWS: f64 = 80e3;
/// Keys of perl's hash.
const KEYS: f64 = 600e3;
/// Bytes that zstd compresses.
const PACKED: f64 = 64e6;
/// Bytes of the graph.
const GRAPH: f64 = 100e6;
/// Bytes of the chain, and loads along it.
const CHAIN: f64 = (64 << 20) as f64;
const LOADS: f64 = 300e3;

/// Which program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Numpy,
    Sqlite,
    Perl,
    Zstd,
    Redis,
    Graph,
    Chase,
}

/// One of the programs.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Its name on the command line and in reports.
    pub name: &'static str,
    /// What it does.
    pub what: &'static str,
    kind: Kind,
    tool: Option<Tool>,
}

/// All of them, in the order of reports.
pub fn programs() -> Vec<Program> {
    let of = |kind, name, what, tool: Option<(&'static str, &'static str)>| {
        let tool = tool.map(|(program, package)| Tool { program, package });
        Program { name, what, kind, tool }
    };
    vec![
        of(Kind::Numpy, "numpy-sort", "numpy sorts 100 MB of numbers", Some(("python3", "python3-numpy"))),
        of(
            Kind::Sqlite,
            "sqlite",
            "sqlite fills 80 MB of rows in memory, indexes them, and reads them by the index",
            Some(("sqlite3", "sqlite3")),
        ),
        of(
            Kind::Perl,
            "perl-hash",
            "perl fills a hash of 600 000 keys and looks all of them up",
            Some(("perl", "perl")),
        ),
        of(Kind::Zstd, "zstd-12", "zstd -12 compresses 64 MB of text", Some(("zstd", "zstd"))),
        of(
            Kind::Redis,
            "redis-zipf",
            "Redis: 100 000 values of 800 bytes, one request in ten writes, by Zipf's law with 0.99",
            Some(("redis-server", "redis-server")),
        ),
        of(Kind::Graph, "graph-walk", "a walk through a graph of 100 MB, breadth first", None),
        of(Kind::Chase, "chase", "a pointer chase through 64 MiB", None),
    ]
}

/// What is started.
pub(super) struct Job {
    /// Program and arguments.
    pub command: Vec<String>,
    /// For a server: what is asked of it.
    pub load: Option<Load>,
}

/// Python's answers have to be the same whatever numpy it is.
fn numpy(scale: Share) -> String {
    let numbers = (SORTED / 8.0 * scale.fraction()) as u64;
    format!(
        "import numpy\n\
         numbers = numpy.random.default_rng(7).random({numbers})\n\
         numbers.sort()\n\
         assert (numbers[1:] >= numbers[:-1]).all()\n\
         print(repr(float(numbers[0])), repr(float(numbers[-1])), repr(float(numbers[{}])))\n",
        numbers / 2
    )
}

fn sqlite(scale: Share) -> String {
    let rows = (ROWS * scale.fraction()) as u64;
    format!(
        "PRAGMA temp_store = MEMORY;\n\
         CREATE TABLE entries (id INTEGER PRIMARY KEY, key INTEGER, content TEXT);\n\
         WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {rows})\n\
         INSERT INTO entries SELECT n, n * 7919 % 1000003, printf('%d:%.900c', n, 'x') FROM numbers;\n\
         CREATE INDEX by_key ON entries (key);\n\
         SELECT count(*), sum(length(content)) FROM\n\
             (SELECT content FROM entries INDEXED BY by_key WHERE key >= 0 ORDER BY key LIMIT {});\n\
         UPDATE entries SET content = content || 'y' WHERE id % 10 = 0;\n\
         SELECT count(*), sum(id), sum(length(content)) FROM entries;\n",
        rows / 2
    )
}

fn perl(scale: Share) -> String {
    let keys = (KEYS * scale.fraction()) as u64;
    format!(
        "my (%hash, $sum);\n\
         sub key {{ 'key' . ($_[0] * 1103515245 + 12345) % 2147483648 }}\n\
         $hash{{key($_)}} = $_ for 1 .. {keys};\n\
         $sum += $hash{{key($_)}} for 1 .. {keys};\n\
         print scalar(keys %hash), \" $sum\\n\";\n"
    )
}

impl Program {
    /// The Python that has numpy: that of the system, or the first on the PATH.
    fn python() -> Option<PathBuf> {
        let has_numpy = |path: &PathBuf| {
            let asked = Command::new(path).args(["-c", "import numpy"]).output();
            asked.is_ok_and(|output| output.status.success())
        };
        [Some(PathBuf::from("/usr/bin/python3")), find("python3")].into_iter().flatten().find(has_numpy)
    }

    fn path(&self) -> Option<PathBuf> {
        match (self.kind, self.tool) {
            (Kind::Numpy, _) => Program::python(),
            (_, Some(tool)) => find(tool.program),
            (_, None) => std::env::current_exe().ok(),
        }
    }

    /// What has to be installed for it, if it is not.
    pub fn missing(&self) -> Option<String> {
        let package = self.tool?.package;
        self.path().is_none().then(|| format!("not installed: apt-get install {package}"))
    }

    /// What is started to do `scale` of the usual work. Files it needs are made in `folder`.
    pub(super) fn job(&self, scale: Share, folder: &Path) -> Result<Job, ProgramsError> {
        let path = self.path().unwrap_or_else(|| self.name.into()).to_string_lossy().into_owned();
        let part = |whole: f64| ((whole * scale.fraction()) as u64).to_string();
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let arguments = match self.kind {
            Kind::Numpy => words(&["-c", &numpy(scale)]),
            Kind::Sqlite => words(&[":memory:", &sqlite(scale)]),
            Kind::Perl => words(&["-e", &perl(scale)]),
            Kind::Zstd => {
                let file = folder.join("text");
                let made = fs::File::create(&file)
                    .and_then(|to| text::write((PACKED * scale.fraction()) as u64, to));
                made.map_err(ProgramsError::io(format!("writing {}", file.display())))?;
                words(&["-12", "-T1", "-q", "-c", &file.to_string_lossy()])
            }
            Kind::Redis => {
                let load = Load::new(folder.join("redis.sock"), scale);
                let mut arguments = words(&["--port", "0", "--save", "", "--appendonly", "no", "--dir"]);
                arguments.extend([folder.to_string_lossy().into_owned(), "--unixsocket".into()]);
                arguments.push(load.socket.to_string_lossy().into_owned());
                let command = [vec![path], arguments].concat();
                return Ok(Job { command, load: Some(load) });
            }
            Kind::Graph => words(&["work", "graph", "--bytes", &part(GRAPH)]),
            Kind::Chase => words(&["work", "chase", "--bytes", &part(CHAIN), "--steps", &part(LOADS)]),
        };
        Ok(Job { command: [vec![path], arguments].concat(), load: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_and_every_program_says_what_it_needs() {
        let all = programs();
        for program in &all {
            assert_eq!(all.iter().filter(|other| other.name == program.name).count(), 1);
            assert!(program.tool.is_some() || program.path().is_some(), "{program:?}");
        }
        let unknown = Program { tool: Some(Tool { program: "no-such-zstd", package: "zstd" }), ..all[3] };
        assert_eq!(unknown.missing().as_deref(), Some("not installed: apt-get install zstd"));
    }

    #[test]
    fn work_is_as_large_as_its_scale() {
        let folder = tempfile::tempdir().unwrap();
        let job = programs()[3].job(Share::percent(1.0), folder.path()).unwrap();
        assert_eq!(job.command[1..4], ["-12", "-T1", "-q"]);
        let bytes = fs::metadata(folder.path().join("text")).unwrap().len();
        assert!((640_000..641_000).contains(&bytes), "{bytes}");
        assert!(numpy(Share::percent(8.0)).contains("random(1000000)"), "{}", numpy(Share::percent(8.0)));
        let chase = programs()[6].job(Share::percent(50.0), folder.path()).unwrap();
        assert_eq!(chase.command[1..], ["work", "chase", "--bytes", "33554432", "--steps", "150000"]);
    }
}
