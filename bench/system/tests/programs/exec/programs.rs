//! Programs of other projects, such as Python, PHP and Java, with remote memory.

use std::process::Command;

use super::run::{Ended, MIB, Sizes, nothing_is_left, rig, start, text};
use cxloe_system::pair::{Outcome, ensure};

/// Runs a command without remote memory, for comparison; returns its output.
fn locally(command: &[&str]) -> Outcome<Vec<u8>> {
    let output = Command::new(command[0]).args(&command[1..]).output()?;
    ensure(output.status.success(), String::from_utf8_lossy(&output.stderr))?;
    Ok(output.stdout)
}

/// Text of `count` different lines in random order, each of `width` bytes.
fn lines(count: u64, width: usize) -> Vec<u8> {
    let mut text = Vec::with_capacity(count as usize * width);
    for line in 0..count {
        let key = line.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let filler = char::from(b'a' + (key % 26) as u8);
        let mut line = format!("{key:016x} {line:08} ");
        line.extend(std::iter::repeat_n(filler, width - line.len() - 1));
        text.extend(line.into_bytes());
        text.push(b'\n');
    }
    text
}

/// Python program that sorts a list of 64 ascending runs, which Python's merge sort scans several times.
const SORTING: &str = "
import hashlib
runs, length = 64, 2500
numbers = [(1 << 40) + place * 1000003 + run * 7919 for run in range(runs) for place in range(length)]
ordered = sorted(numbers)
assert len(ordered) == runs * length and all(a <= b for a, b in zip(ordered, ordered[1:]))
assert sum(ordered) == sum(numbers)
print(hashlib.sha256(','.join(map(str, ordered)).encode()).hexdigest())
";

pub fn python_sorts_a_list() -> Outcome {
    let rig = rig()?;
    let command = ["/usr/bin/python3", "-c", SORTING];
    let ended = start(&rig, Sizes(64, 4), &[], &command)?.wait()?.well()?.paged(8 * MIB)?;
    ensure(ended.out == locally(&command)?, "another list than without remote memory")?;
    nothing_is_left(&rig)
}

pub fn sort_sorts_a_file_larger_than_its_memory() -> Outcome {
    let rig = rig()?;
    let file = rig.path("lines");
    std::fs::write(&file, lines(12 << 10, 1024))?;
    let command = ["sort", "--buffer-size=40M", "--parallel=2", text(&file)];
    let ended = start(&rig, Sizes(64, 6), &[], &command)?.wait()?.well()?.paged(12 * MIB)?;
    let mut expected: Vec<Vec<u8>> =
        std::fs::read(&file)?.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    expected.sort();
    ensure(ended.out == expected.concat(), "the lines are not in order")
}

const QUERIES: &str = "
CREATE TABLE entries (id INTEGER PRIMARY KEY, key INTEGER, content TEXT);
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 10000)
INSERT INTO entries SELECT n, n * 7919 % 10007, printf('%d:%.1000c', n, 'x') FROM numbers;
UPDATE entries SET content = 'even ' || content WHERE id % 2 = 0;
CREATE INDEX by_key ON entries (key);
DELETE FROM entries WHERE id % 5 = 0;
SELECT count(*), sum(id), sum(length(content)) FROM entries;
SELECT id, key, substr(content, 1, 12) FROM entries ORDER BY key LIMIT 5 OFFSET 1000;
SELECT count(*) FROM entries WHERE content NOT LIKE '%' || id || ':%x';
PRAGMA integrity_check;
";

pub fn sqlite_keeps_a_database_in_memory() -> Outcome {
    let rig = rig()?;
    let command = ["sqlite3", ":memory:", QUERIES];
    let ended = start(&rig, Sizes(64, 4), &[], &command)?.wait()?.well()?.paged(10 * MIB)?;
    ensure(ended.text().ends_with("\n0\nok\n"), ended.text())?;
    ensure(ended.out == locally(&command)?, "another answer than without remote memory")
}

/// Python runs in namespaces of its own, in a process that bubblewrap makes without `fork(3)`.
pub fn python_sorts_a_list_in_a_container() -> Outcome {
    let rig = rig()?;
    let python = ["/usr/bin/python3", "-c", SORTING];
    let container = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"];
    let ended = start(&rig, Sizes(64, 4), &[], &[&container[..], &python].concat())?.wait()?.well()?;
    ensure(ended.out == locally(&python)?, "another list than without remote memory")?;
    nothing_is_left(&rig)
}

pub fn zstd_compresses_with_two_threads() -> Outcome {
    let rig = rig()?;
    let (file, packed) = (rig.path("lines"), rig.path("lines.zst"));
    let content = lines(20 << 10, 1024);
    std::fs::write(&file, &content)?;
    let command = ["zstd", "-T2", "-3", "-q", "-o", text(&packed), text(&file)];
    start(&rig, Sizes(96, 8), &[], &command)?.wait()?.well()?.paged(10 * MIB)?;
    let unpacked = locally(&["zstd", "-dcq", text(&packed)])?;
    ensure(unpacked == content, "what was compressed comes out otherwise")?;
    let command = ["zstd", "-dcq", text(&packed)];
    let ended: Ended = start(&rig, Sizes(64, 1), &[], &command)?.wait()?.well()?;
    ensure(ended.out == content, "what was compressed comes out otherwise with remote memory")
}

/// memtester locks its memory if permitted, and tests less if memory seems short. Remote memory cannot be
/// locked, but all 8 MiB have to be tested.
pub fn memtester_tests_as_much_as_it_was_asked_to() -> Outcome {
    let rig = rig()?;
    // Only memtester's first tests run, because each test accesses all memory some thousand times.
    let command = ["env", "MEMTESTER_TEST_MASK=3", "memtester", "8M", "1"];
    let ended = start(&rig, Sizes(64, 2), &[], &command)?.wait()?.well()?.paged(8 * MIB)?;
    let text = ended.text();
    ensure(text.contains("got  8MB"), format!("{text}{}", ended.err))?;
    ensure(text.contains("unlocked") || ended.err.contains("unlocked"), format!("{text}{}", ended.err))?;
    nothing_is_left(&rig)
}

/// musl's dynamic linker cannot load the preloaded library: its programs run without it, and a message names them.
pub fn programs_of_musl_run_as_children_with_local_memory() -> Outcome {
    let rig = rig()?;
    let child = rig.path("child");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/exec/c/child.c");
    locally(&["musl-gcc", "-O1", "-o", text(&child), source])?;
    let script = format!("{0} && x=$(expr 20 + 22) && echo parent $x", text(&child));
    let ended = start(&rig, Sizes(64, 4), &[], &["sh", "-c", &script])?.wait()?.well()?;
    ensure(ended.text() == "child 42\nparent 42\n", format!("{:?} {}", ended.text(), ended.err))?;
    let ended = start(&rig, Sizes(64, 4), &[], &[text(&child)])?.wait()?;
    let refused = ended.status.code() == Some(5) && ended.err.contains("musl");
    ensure(refused, format!("{}: {}", ended.status, ended.err))
}

const MODULES: &str = r#"
$entries = [];
for ($n = 0; $n < 40000; $n++) $entries[] = sprintf('%08x %s', $n * 2654435761 % 4294967296, str_repeat(chr(97 + $n % 26), 200));
sort($entries);
$document = new DOMDocument();
$root = $document->appendChild($document->createElement('entries'));
foreach (array_slice($entries, 0, 2000) as $entry) $root->appendChild($document->createElement('entry', $entry));
$parsed = simplexml_load_string($document->saveXML());
echo count($parsed->entry), ' ', mb_strtoupper((string) $parsed->entry[1999]), ' ', md5(implode(',', $entries)), "\n";
"#;

/// PHP opens its modules with `RTLD_DEEPBIND`; some of them are libraries of C and C++ with heaps of their own.
pub fn php_opens_its_modules() -> Outcome {
    let rig = rig()?;
    let command = ["php", "-d", "memory_limit=-1", "-r", MODULES];
    let ended = start(&rig, Sizes(96, 6), &[], &command)?.wait()?.well()?.paged(8 * MIB)?;
    ensure(ended.err.is_empty(), ended.err)?;
    ensure(ended.out == locally(&command)?, "another answer than without remote memory")?;
    nothing_is_left(&rig)
}

const JAVA: &str = "
class Heap {
    public static void main(String[] arguments) {
        byte[][] blocks = new byte[96][];
        for (int n = 0; n < blocks.length; n++) {
            blocks[n] = new byte[1 << 19];
            java.util.Arrays.fill(blocks[n], (byte) (n * 7));
        }
        long sum = 0;
        for (int round = 0; round < 2; round++)
            for (byte[] block : blocks)
                for (int at = 0; at < block.length; at += 512)
                    sum += block[at];
        System.out.println(\"sum \" + sum);
    }
}
";

/// A Java program whose heap is remote gives the right result.
pub fn javas_heap_is_remote() -> Outcome {
    let rig = rig()?;
    let program = rig.path("Heap.java");
    std::fs::write(&program, JAVA)?;
    let folder = rig.dir.path().to_path_buf();
    locally(&["javac", "-d", text(&folder), text(&program)])?;
    let command = [
        "java",
        "-XX:+UseSerialGC",
        "-Xint",
        "-Xms80m",
        "-Xmx80m",
        "-Xshare:off",
        "-cp",
        text(&folder),
        "Heap",
    ];
    let ended = start(&rig, Sizes(192, 24), &[], &command)?.wait()?.well()?.paged(48 * MIB)?;
    ensure(ended.out == locally(&command)?, "another sum than without remote memory")?;
    nothing_is_left(&rig)
}
