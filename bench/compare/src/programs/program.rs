//! The programs that are measured: their work, requirements, and command lines.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::error::ProgramsError;
use super::redis::Load;
use super::text;
use crate::Tool;
use crate::stage::find;
use cxloe_measure::pattern::Share;

/// Bytes of the numbers that numpy sorts.
const SORTED: f64 = 100e6;
/// Number of sqlite's rows, of about a kilobyte each.
const ROWS: f64 = 80e3;
/// Number of keys in perl's hash.
const KEYS: f64 = 600e3;
/// Bytes that zstd compresses.
const PACKED: f64 = 64e6;
/// Bytes of the text that `sort` sorts.
const LINES: f64 = 64e6;
/// Number of entries in lua's table.
const ENTRIES: f64 = 500e3;
/// Number of rows in duckdb's table.
const COLUMNAR: f64 = 3e6;
/// Number of objects in node's map.
const OBJECTS: f64 = 600e3;
/// Bytes of the graph that `graph` traverses.
const GRAPH: f64 = 100e6;
/// Bytes of the chain that `chase` follows, and number of loads.
const CHAIN: f64 = (64 << 20) as f64;
const LOADS: f64 = 300e3;
/// Bytes of a parent process whose children write a part of its memory each.
const PARENT: f64 = (64 << 20) as f64;
/// Bytes of a region needed for each child process, as a share of the parent's memory: the part that the child writes,
/// and half as much again.
const OWN: f64 = 0.15;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProgramKind {
    Numpy,
    Sqlite,
    Perl,
    Zstd,
    Redis,
    Graph,
    Chase,
    SortLines,
    Lua,
    Duckdb,
    Node,
    Children(u32),
}

/// Program to measure, with the software that it requires.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Name on the command line and in reports.
    pub name: &'static str,
    /// Description of the program's work, for lists and reports.
    pub what: &'static str,
    kind: ProgramKind,
    tool: Option<Tool>,
}

/// All programs, in the order of reports.
pub fn programs() -> Vec<Program> {
    let of = |kind, name, what, tool: Option<(&'static str, &'static str)>| {
        let tool = tool.map(|(program, package)| Tool { program, package });
        Program { name, what, kind, tool }
    };
    vec![
        of(
            ProgramKind::Numpy,
            "numpy-sort",
            "numpy sorts 100 MB of numbers",
            Some(("python3", "python3-numpy")),
        ),
        of(
            ProgramKind::Sqlite,
            "sqlite",
            "sqlite fills 80 MB of rows in memory, indexes them, and reads them by the index",
            Some(("sqlite3", "sqlite3")),
        ),
        of(
            ProgramKind::Perl,
            "perl-hash",
            "perl fills a hash of 600 000 keys and looks all of them up",
            Some(("perl", "perl")),
        ),
        of(ProgramKind::Zstd, "zstd-12", "zstd -12 compresses 64 MB of text", Some(("zstd", "zstd"))),
        of(
            ProgramKind::Redis,
            "redis-zipf",
            "Redis: 100 000 values of 800 bytes, one request in ten writes, by Zipf's law with 0.99",
            Some(("redis-server", "redis-server")),
        ),
        of(ProgramKind::Graph, "graph-walk", "a walk through a graph of 100 MB, breadth first", None),
        of(ProgramKind::Chase, "chase", "a pointer chase through 64 MiB", None),
        of(
            ProgramKind::SortLines,
            "sort",
            "sort sorts the lines of 64 MB of text in memory",
            Some(("sort", "coreutils")),
        ),
        of(
            ProgramKind::Lua,
            "lua",
            "Lua fills a table of 500 000 texts, sorts it, and looks all of them up",
            Some(("lua5.4", "lua5.4")),
        ),
        of(
            ProgramKind::Duckdb,
            "duckdb",
            "DuckDB fills a table of 3 000 000 rows, groups it, and sorts it",
            Some(("python3", "duckdb")),
        ),
        of(
            ProgramKind::Node,
            "node",
            "Node.js fills a map of 600 000 objects, sorts their keys, and looks all of them up",
            Some(("node", "nodejs")),
        ),
        of(
            ProgramKind::Children(1),
            "children-1",
            "a child writes a tenth of its parent's 64 MiB, and reads all",
            None,
        ),
        of(ProgramKind::Children(10), "children-10", "ten children at once do the same", None),
        of(ProgramKind::Children(50), "children-50", "fifty children at once do the same", None),
    ]
}

/// Command of a run, and its load and memory.
pub(super) struct Job {
    /// Program and its arguments.
    pub command: Vec<String>,
    /// Load from clients, if the program is a server.
    pub load: Option<Load>,
    /// Bytes of memory of the program's children, in addition to its own.
    pub beside: u64,
}

/// Script that sorts with numpy; its output is the same for every version of numpy.
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

fn lua(scale: Share) -> String {
    let entries = (ENTRIES * scale.fraction()) as u64;
    format!(
        "local texts, places, sum = {{}}, {{}}, 0\n\
         for n = 1, {entries} do texts[n] = string.format('%08d %d', n * 7919 % 10000019, n) end\n\
         table.sort(texts)\n\
         for place, text in ipairs(texts) do places[text] = place end\n\
         for n = 1, {entries} do\n\
             sum = (sum * 31 + places[string.format('%08d %d', n * 7919 % 10000019, n)]) % 1000000007\n\
         end\n\
         print(texts[1], texts[#texts], sum)\n"
    )
}

/// Script of queries for duckdb, in one thread so that rows have a fixed order, and without the progress bar, which
/// would be part of the output.
fn duckdb(scale: Share) -> String {
    let rows = (COLUMNAR * scale.fraction()) as u64;
    format!(
        "import duckdb\n\
         database = duckdb.connect(':memory:', config={{'threads': 1}})\n\
         database.execute('SET enable_progress_bar = false')\n\
         database.execute('CREATE TABLE entries AS SELECT n AS id, n * 7919 % 1000003 AS key, \\\n\
             n % 1013 AS part, concat(n, repeat(chr(97 + (n % 26)::INTEGER), 12)) AS content FROM range({rows}) t(n)')\n\
         print(database.execute('SELECT count(*), sum(id), sum(length(content)) FROM entries').fetchall())\n\
         print(database.execute('SELECT part, count(*), min(key), max(content) FROM entries GROUP BY part \\\n\
             ORDER BY part').fetchall())\n\
         print(database.execute('SELECT id, key, content FROM (SELECT *, row_number() OVER (ORDER BY key, id) \\\n\
             AS place FROM entries) WHERE place % 100000 = 0 ORDER BY place').fetchall())\n"
    )
}

fn node(scale: Share) -> String {
    let objects = (OBJECTS * scale.fraction()) as u64;
    format!(
        "const map = new Map();\n\
         const key = n => 'key' + (n * 7919 % 10000019) + ':' + n;\n\
         for (let n = 0; n < {objects}; n++) map.set(key(n), {{ n, name: 'entry ' + n }});\n\
         const keys = [...map.keys()].sort();\n\
         let sum = 0;\n\
         for (let n = 0; n < {objects}; n++) sum = (sum * 31 + map.get(key(n)).name.length + n) % 1000000007;\n\
         console.log(keys[0], keys[keys.length - 1], sum);\n"
    )
}

/// Writes a text file with the share `scale` of `bytes` to `folder`; returns its path.
fn written(folder: &Path, bytes: f64, scale: Share) -> Result<String, ProgramsError> {
    let file = folder.join("text");
    let made = fs::File::create(&file).and_then(|to| text::write((bytes * scale.fraction()) as u64, to));
    made.map_err(ProgramsError::io(format!("writing {}", file.display())))?;
    Ok(file.to_string_lossy().into_owned())
}

impl Program {
    /// Path of a Python that has `module`: the system's, or the first in the PATH.
    fn python(module: &str) -> Option<PathBuf> {
        let has_it = |path: &PathBuf| {
            let asked = Command::new(path).args(["-c", &format!("import {module}")]).output();
            asked.is_ok_and(|output| output.status.success())
        };
        [Some(PathBuf::from("/usr/bin/python3")), find("python3")].into_iter().flatten().find(has_it)
    }

    fn path(&self) -> Option<PathBuf> {
        match (self.kind, self.tool) {
            (ProgramKind::Numpy, _) => Program::python("numpy"),
            (ProgramKind::Duckdb, _) => Program::python("duckdb"),
            (_, Some(tool)) => find(tool.program),
            (_, None) => std::env::current_exe().ok(),
        }
    }

    /// Text with the command that installs the missing program; `None` if it is installed.
    pub fn missing(&self) -> Option<String> {
        let package = self.tool?.package;
        let how = match self.kind {
            // Debian has no package of duckdb.
            ProgramKind::Duckdb => "pip install duckdb".to_owned(),
            _ => format!("apt-get install {package}"),
        };
        self.path().is_none().then(|| format!("not installed: {how}"))
    }

    /// True if the program is measured by default. The other programs are only meant to be compared with each
    /// other.
    pub fn is_usual(&self) -> bool {
        !matches!(self.kind, ProgramKind::Children(_))
    }

    /// Command that does the share `scale` of the usual work. Files that it needs are made in `folder`.
    pub(super) fn job(&self, scale: Share, folder: &Path) -> Result<Job, ProgramsError> {
        let path = self.path().unwrap_or_else(|| self.name.into()).to_string_lossy().into_owned();
        let part = |whole: f64| ((whole * scale.fraction()) as u64).to_string();
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let mut beside = 0;
        let arguments = match self.kind {
            ProgramKind::Numpy => words(&["-c", &numpy(scale)]),
            ProgramKind::Sqlite => words(&[":memory:", &sqlite(scale)]),
            ProgramKind::Perl => words(&["-e", &perl(scale)]),
            ProgramKind::Zstd => words(&["-12", "-T1", "-q", "-c", &written(folder, PACKED, scale)?]),
            ProgramKind::SortLines => {
                words(&["--parallel=1", "--buffer-size=512M", &written(folder, LINES, scale)?])
            }
            ProgramKind::Lua => words(&["-e", &lua(scale)]),
            ProgramKind::Duckdb => words(&["-c", &duckdb(scale)]),
            ProgramKind::Node => words(&["-e", &node(scale)]),
            ProgramKind::Redis => {
                let load = Load::new(folder.join("redis.sock"), scale);
                let mut arguments = words(&["--port", "0", "--save", "", "--appendonly", "no", "--dir"]);
                arguments.extend([folder.to_string_lossy().into_owned(), "--unixsocket".into()]);
                arguments.push(load.socket.to_string_lossy().into_owned());
                let command = [vec![path], arguments].concat();
                return Ok(Job { command, load: Some(load), beside });
            }
            ProgramKind::Graph => words(&["work", "graph", "--bytes", &part(GRAPH)]),
            ProgramKind::Children(count) => {
                beside = (f64::from(count) * PARENT * OWN * scale.fraction()) as u64;
                let count = count.to_string();
                words(&["work", "children", "--bytes", &part(PARENT), "--children", &count])
            }
            ProgramKind::Chase => words(&["work", "chase", "--bytes", &part(CHAIN), "--steps", &part(LOADS)]),
        };
        Ok(Job { command: [vec![path], arguments].concat(), load: None, beside })
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
