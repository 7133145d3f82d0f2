//! The program run by the tests: maps a region, works with it, and compares each line with its expected content. The
//! program is this test binary, started with `work` and a job.
//!
//! The program prints `ready` when the region is mapped, `at N` as it progresses, and `done N` at the end; it ends when
//! its standard input is closed. If a line differs from its last write, the program ends with status 1 and a message.

#![expect(unsafe_code, reason = "threads share mapped memory through raw pointers")]

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use cxloe_client::mapping::{MapOptions, Mapping, OrphanReaction};
use cxloe_cn_core::pager::PAGE_BYTES;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

pub const LINE: usize = 64;

/// A job of the program, passed in its arguments.
#[derive(Clone, Debug)]
pub struct Job {
    pub what: String,
    pub socket: PathBuf,
    pub region: String,
    pub limit: u64,
    pub threads: usize,
    pub seed: u64,
    /// Index of the part of the region that belongs to this process, and number of parts.
    pub part: (usize, usize),
    pub lost_wait: Duration,
    pub wait: Duration,
    pub fresh: bool,
}

impl Job {
    pub fn arguments(&self) -> Vec<String> {
        let Job { what, socket, region, limit, threads, seed, part, lost_wait, wait, fresh } = self;
        vec![
            "work".into(),
            what.clone(),
            socket.display().to_string(),
            region.clone(),
            limit.to_string(),
            threads.to_string(),
            seed.to_string(),
            part.0.to_string(),
            part.1.to_string(),
            lost_wait.as_millis().to_string(),
            wait.as_millis().to_string(),
            fresh.to_string(),
        ]
    }

    fn parse(arguments: &[String]) -> Option<Job> {
        let number = |at: usize| arguments.get(at)?.parse::<u64>().ok();
        Some(Job {
            what: arguments.get(1)?.clone(),
            socket: arguments.get(2)?.into(),
            region: arguments.get(3)?.clone(),
            limit: number(4)?,
            threads: number(5)? as usize,
            seed: number(6)?,
            part: (number(7)? as usize, number(8)? as usize),
            lost_wait: Duration::from_millis(number(9)?),
            wait: Duration::from_millis(number(10)?),
            fresh: arguments.get(11)? == "true",
        })
    }
}

pub fn play() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let job = Job::parse(&arguments).expect("the tests know how to ask");
    match work(&job) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("failed: {error}");
            ExitCode::FAILURE
        }
    }
}

fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{what}").and_then(|()| out.flush());
}

/// Flag that is set when standard input is closed.
fn asked_to_stop() -> &'static AtomicBool {
    static STOP: AtomicBool = AtomicBool::new(false);
    thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        STOP.store(true, Ordering::Relaxed);
    });
    &STOP
}

fn work(job: &Job) -> Result<(), String> {
    let options = MapOptions {
        limit: job.limit,
        // Read-ahead is off for hints, so that hinted pages can be distinguished.
        prefetch: job.what != "hints",
        fresh: job.fresh,
        lost_wait: job.lost_wait,
        wait: job.wait,
        abandoned: OrphanReaction::Abort,
    };
    let mapping = Mapping::open(&job.socket, &job.region, options).map_err(|error| error.to_string())?;
    say("ready");
    match job.what.as_str() {
        "lines" => lines(job, &mapping),
        "verify" => verify(job, &mapping),
        "touch" => touch(job, &mapping),
        "counter" => counter(job, &mapping),
        "system-calls" => super::system_calls::run(&mapping),
        "parts" => super::system_calls::parts(&mapping),
        "hints" => super::hints::run(&mapping),
        other => Err(format!("no job is called {other}")),
    }
}

/// Content of a line in some version; version 0 is all zeros.
fn content(line: usize, seed: u64, version: u32) -> [u64; 8] {
    std::array::from_fn(|word| match version {
        0 => 0,
        _ => {
            let mixed = (line as u64) << 32 ^ u64::from(version) << 8 ^ word as u64 ^ seed.rotate_left(40);
            mixed.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23).wrapping_mul(0xD6E8_FEB8_6659_FD93) | 1
        }
    })
}

/// Words of the mapping, accessed as ordinary memory.
#[derive(Clone, Copy)]
pub struct Words(pub *mut u64);
// SAFETY: each thread uses its own part of the mapping.
unsafe impl Send for Words {}
// SAFETY: each thread uses its own part of the mapping.
unsafe impl Sync for Words {}

impl Words {
    fn line(self, line: usize) -> [u64; 8] {
        // SAFETY: the line is in the mapping, and has no other writer.
        std::array::from_fn(|word| unsafe { self.0.add(line * 8 + word).read_volatile() })
    }

    fn put(self, line: usize, content: [u64; 8]) {
        for (word, value) in content.into_iter().enumerate() {
            // SAFETY: the line is in the mapping, and has no other writer.
            unsafe { self.0.add(line * 8 + word).write_volatile(value) };
        }
    }
}

/// Lines of thread `index`, interleaved with those of other threads, so that each page belongs to several threads.
fn lines_of(job: &Job, mapping: &Mapping, index: usize) -> impl Iterator<Item = usize> + Clone + use<> {
    let (part, parts) = job.part;
    let all = job.threads * parts;
    (part * job.threads + index..mapping.len() / LINE).step_by(all)
}

/// Threads write lines all over the region, and check that each line contains its last write; at the end they check all
/// lines.
fn lines(job: &Job, mapping: &Mapping) -> Result<(), String> {
    let stop = asked_to_stop();
    let (total, failed) = (AtomicU64::new(0), AtomicBool::new(false));
    let words = Words(mapping.as_ptr().cast());
    let outcome = thread::scope(|scope| {
        let thread_of = |index: usize| {
            let (total, failed) = (&total, &failed);
            scope.spawn(move || -> Result<(), String> {
                let mine: Vec<usize> = lines_of(job, mapping, index).collect();
                let mut versions = vec![0_u32; mine.len()];
                let mut random = SmallRng::seed_from_u64(job.seed << 8 ^ index as u64);
                let check = |at: usize, version: u32| {
                    let (line, seed) = (mine[at], job.seed);
                    let (found, expected) = (words.line(line), content(line, seed, version));
                    (found == expected).then_some(()).ok_or_else(|| {
                        failed.store(true, Ordering::Relaxed);
                        let page = line * LINE / PAGE_BYTES;
                        format!(
                            "line {line} of page {page} is {found:x?}, not {expected:x?} (version {version})"
                        )
                    })
                };
                while !stop.load(Ordering::Relaxed) && !failed.load(Ordering::Relaxed) {
                    // A run accesses consecutive lines, or lines at a random constant distance.
                    let (mut at, step) = match random.random_range(0..4) {
                        0 => (random.random_range(0..mine.len()), 1),
                        _ => (random.random_range(0..mine.len()), random.random_range(1..mine.len())),
                    };
                    for _ in 0..64 {
                        check(at, versions[at])?;
                        if random.random_bool(0.6) {
                            versions[at] += 1;
                            words.put(mine[at], content(mine[at], job.seed, versions[at]));
                        }
                        at = (at + step) % mine.len();
                        total.fetch_add(1, Ordering::Relaxed);
                    }
                }
                (0..mine.len()).try_for_each(|at| check(at, versions[at]))
            })
        };
        let threads: Vec<_> = (0..job.threads).map(thread_of).collect();
        while threads.iter().any(|thread| !thread.is_finished()) {
            thread::sleep(Duration::from_millis(20));
            say(&format!("at {}", total.load(Ordering::Relaxed)));
        }
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    });
    outcome?;
    say(&format!("done {}", total.load(Ordering::Relaxed)));
    Ok(())
}

/// Writes every line of this process's part if the job has one thread and the region is empty. Otherwise
/// checks that the lines have the content that a process with the same seed has written.
fn verify(job: &Job, mapping: &Mapping) -> Result<(), String> {
    let words = Words(mapping.as_ptr().cast());
    let wanted = |line| content(line, job.seed, 1);
    let mut mine = lines_of(job, mapping, 0);
    if job.threads == 1 && words.line(mine.clone().next().unwrap_or_default()) == [0; 8] {
        mine.for_each(|line| words.put(line, wanted(line)));
        mapping.flush().map_err(|error| error.to_string())?;
        say("done 0");
        return Ok(());
    }
    let wrong = mine.find(|line| words.line(*line) != wanted(*line));
    match wrong {
        None => {
            say("done 1");
            Ok(())
        }
        Some(line) => Err(format!("line {line} is {:x?}, not {:x?}", words.line(line), wanted(line))),
    }
}

/// Reads the first line of every page, repeatedly, and checks it.
fn touch(job: &Job, mapping: &Mapping) -> Result<(), String> {
    let stop = asked_to_stop();
    let words = Words(mapping.as_ptr().cast());
    let mut rounds = 0;
    while !stop.load(Ordering::Relaxed) {
        for line in (0..mapping.len() / LINE).step_by(PAGE_BYTES / LINE) {
            let found = words.line(line);
            let expected = content(line, job.seed, 1);
            if found != expected {
                return Err(format!("line {line} is {found:x?}, not {expected:x?}"));
            }
            if stop.load(Ordering::Relaxed) {
                break;
            }
        }
        rounds += 1;
        say(&format!("at {rounds}"));
    }
    say(&format!("done {rounds}"));
    Ok(())
}

/// Several processes add to a word of each page by atomic additions, a fixed number of times.
fn counter(job: &Job, mapping: &Mapping) -> Result<(), String> {
    let pages = mapping.len() / PAGE_BYTES;
    let add = |index: usize| {
        let mut random = SmallRng::seed_from_u64(job.seed ^ (index as u64) << 32 ^ (job.part.0 as u64) << 48);
        // In this job, the seed is also the number of additions.
        for _ in 0..job.seed {
            let page = random.random_range(0..pages);
            let word = (mapping.as_ptr() as usize + page * PAGE_BYTES + 8) as *const AtomicU64;
            // SAFETY: the word is in the mapping, and all processes use it as an atomic one.
            unsafe { &*word }.fetch_add(1, Ordering::Relaxed);
        }
    };
    thread::scope(|scope| {
        (0..job.threads).for_each(|index| drop(scope.spawn(move || add(index))));
    });
    mapping.flush().map_err(|error| error.to_string())?;
    say(&format!("done {}", job.seed * job.threads as u64));
    // Waits until the test ends this job, because other processes may still be adding to the words.
    let stop = asked_to_stop();
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(5));
    }
    let sum: u64 = (0..pages)
        .map(|page| {
            let word = (mapping.as_ptr() as usize + page * PAGE_BYTES + 8) as *const AtomicU64;
            // SAFETY: the word is in the mapping, and all processes use it as an atomic one.
            unsafe { &*word }.load(Ordering::Relaxed)
        })
        .sum();
    say(&format!("sum {sum}"));
    Ok(())
}
