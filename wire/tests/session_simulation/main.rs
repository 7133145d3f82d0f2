//! Sessions over a simulated network that loses, doubles, reorders and damages frames, is cut and healed,
//! between nodes that restart; thousands of runs, each a function of its seed.
//!
//! * `world` makes the nodes and the network, and what befalls them, from the seed;
//! * `cn` and `mn` are the nodes; `model` knows what each line may read as.
//!
//! After each run: every operation has ended, every line read as it had to, both ends' buffers are empty.
//!
//! `CXLOE_SIM_SEEDS` sets how many seeds are run, `CXLOE_SIM_START` the first of them. A seed that fails
//! is run once more with a trace, whose end is printed.

mod cn;
mod mn;
mod model;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use world::{Figures, World};

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Err(_) => default,
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text}: write a number")),
    }
}

fn run(seed: u64, traced: bool) -> Result<Figures, String> {
    let trace = traced.then(Default::default);
    let tail = trace.clone();
    let outcome = catch_unwind(AssertUnwindSafe(|| World::new(seed, trace).run()));
    let why = match outcome {
        Ok(Ok(figures)) => return Ok(figures),
        Ok(Err(why)) => why,
        Err(panic) => match panic.downcast_ref::<String>() {
            Some(text) => format!("panic: {text}"),
            None => "panic".to_owned(),
        },
    };
    let lines = tail.map_or(String::new(), |tail| tail.text());
    Err(format!("{lines}seed {seed}: {why}"))
}

#[test]
fn every_seed_keeps_the_rules() {
    let (start, seeds) = (number("CXLOE_SIM_START", 1), number("CXLOE_SIM_SEEDS", 300));
    let began = Instant::now();
    let mut sum = Figures::default();
    for seed in start..start + seeds {
        match run(seed, false) {
            Ok(figures) => sum.add(&figures),
            Err(_) => {
                let why = run(seed, true).expect_err("a seed is a run");
                panic!(
                    "{why}\nreproduce: CXLOE_SIM_START={seed} CXLOE_SIM_SEEDS=1 \
                     cargo test -p cxloe-wire --test session_simulation"
                );
            }
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    println!("{seeds} seeds in {seconds:.1} s, {:.0} operations/s", sum.operations as f64 / seconds);
    println!("{sum:#?}");
    if seeds >= 100 {
        sum.assert_eventful();
    }
}

#[test]
fn a_seed_is_a_run() {
    for seed in [3, 4, 5, 6] {
        assert_eq!(run(seed, false).expect("a good run"), run(seed, true).expect("a good run"));
    }
}
