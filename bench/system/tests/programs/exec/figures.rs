//! Measurement of Redis with half of its data local, compared with all data local, under a Zipfian load. The
//! measurement checks nothing, so it runs only on request, on an idle machine with optimised programs:
//!
//! ```text
//! cargo build --release --workspace --bins --lib
//! cargo test --release -p cxloe-system --test programs -- --ignored redis_with_half_its_data_local --nocapture
//! ```
//!
//! Both servers run at the same time and get load alternately, so that changes of the machine affect both.

use std::time::Instant;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::redis::{Redis, local, remote};
use super::run::{Sizes, rig};
use cxloe_system::pair::{Outcome, ensure, succeeded};

/// Number of keys. With [`VALUE`] bytes each, the data is more than 80 MB.
const KEYS: usize = 100_000;
const VALUE: usize = 800;
/// Exponent of the Zipfian distribution, as in YCSB.
const EXPONENT: f64 = 0.99;
/// Number of requests that a server gets in one turn.
const REQUESTS: usize = 200_000;
/// Maximum number of requests in flight.
const DEPTH: usize = 32;
/// One in this number of requests is a write.
const WRITES: usize = 10;
const TURNS: usize = 7;

/// Source of key numbers with a Zipfian distribution, whose ranks are scattered over the keys.
struct Zipf {
    below: Vec<f64>,
    random: SmallRng,
}

impl Zipf {
    fn new(seed: u64) -> Zipf {
        let mut sum = 0.0;
        let add = |rank: usize| {
            sum += 1.0 / (rank as f64).powf(EXPONENT);
            sum
        };
        Zipf { below: (1..=KEYS).map(add).collect(), random: SmallRng::seed_from_u64(seed) }
    }

    fn next(&mut self) -> usize {
        let share = self.random.random::<f64>() * self.below[KEYS - 1];
        let rank = self.below.partition_point(|below| *below < share);
        rank.min(KEYS - 1) * 7919 % KEYS
    }
}

fn key(number: usize) -> Vec<u8> {
    format!("key:{number:08}").into_bytes()
}

fn fill(redis: &mut Redis) -> Outcome {
    let value = vec![b'x'; VALUE];
    for batch in (0..KEYS).step_by(DEPTH) {
        let keys = batch..(batch + DEPTH).min(KEYS);
        keys.clone().try_for_each(|number| redis.send(&[b"SET", &key(number), &value]))?;
        (0..keys.len()).try_for_each(|_| redis.receive().map(drop))?;
    }
    Ok(())
}

/// Sends the requests of one turn to a server; returns the requests per second.
fn turn(redis: &mut Redis, zipf: &mut Zipf, requests: usize) -> Outcome<f64> {
    let value = vec![b'y'; VALUE];
    let started = Instant::now();
    for batch in 0..requests / DEPTH {
        for request in 0..DEPTH {
            let key = key(zipf.next());
            if (batch * DEPTH + request).is_multiple_of(WRITES) {
                redis.send(&[b"SET", &key, &value])?;
            } else {
                redis.send(&[b"GET", &key])?;
            }
        }
        for _ in 0..DEPTH {
            let answer = redis.receive()?;
            ensure(answer == b"OK" || answer.len() == VALUE, "a key that was set has its value")?;
        }
    }
    Ok(requests as f64 / started.elapsed().as_secs_f64())
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

pub fn redis_with_half_its_data_local() -> Outcome {
    let rig = rig()?;
    let folder = rig.path("redis");
    std::fs::create_dir(&folder)?;
    let (_local, mut near) = local(&rig, &folder)?;
    let (running, mut far) = remote(&rig, &folder, Sizes(224, 200))?;
    fill(&mut near)?;
    fill(&mut far)?;
    let used: u64 = far.info("used_memory")?.parse()?;
    let half = (used / 2).to_string();
    let pid = far.info("process_id")?;
    succeeded(rig.cli(&["set-local", &pid, &half])?)?;
    let (mut one, mut two) = (Zipf::new(1), Zipf::new(1));
    // The first turn of each server is not measured; after it, frequently used keys are resident.
    turn(&mut far, &mut two, REQUESTS)?;
    turn(&mut near, &mut one, REQUESTS)?;
    let (mut all_local, mut half_local) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        all_local.push(turn(&mut near, &mut one, REQUESTS)?);
        half_local.push(turn(&mut far, &mut two, REQUESTS)?);
    }
    let (all_local, half_local) = (median(all_local), median(half_local));
    println!(
        "redis, {KEYS} keys of {VALUE} bytes, {used} bytes used, {half} resident, Zipf {EXPONENT}, 1 write in {WRITES}:\n\
         all local {all_local:.0}/s, half local {half_local:.0}/s, ratio {:.2}",
        half_local / all_local
    );
    far.send(&[b"SHUTDOWN", b"NOSAVE"])?;
    let ended = running.wait()?.well()?;
    println!("{:#?}", ended.view.map(|view| view.counters));
    Ok(())
}
