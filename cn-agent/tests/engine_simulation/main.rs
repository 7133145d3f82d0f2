//! Engines and memory nodes over a simulated network that loses, doubles, reorders and damages frames, is cut
//! and healed, between nodes that restart with their pools or without; each run a function of its seed.
//!
//! * `world` makes the nodes and the network, and what befalls them, from the seed;
//! * `cn` is an engine with a program that makes operations; `mn` the real service over a real pool;
//! * `model` knows what each line may read as; `single` has cases that want a run of their own.
//!
//! In each run every operation ends, every line reads as it has to, nothing is left over, and after a flush
//! the pools hold what was written last.
//!
//! `CXLOE_SIM_SEEDS` sets how many seeds are run, `CXLOE_SIM_START` the first of them. A seed that fails is
//! run once more, saying what befalls the nodes.

mod cn;
mod mn;
mod model;
mod single;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use world::{Figures, World};

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Err(_) => default,
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text}: write a number")),
    }
}

fn run(seed: u64, traced: bool) -> Result<Figures, String> {
    match catch_unwind(AssertUnwindSafe(|| World::new(seed, traced).run())) {
        Ok(outcome) => outcome,
        Err(panic) => match panic.downcast_ref::<String>() {
            Some(text) => Err(format!("panic: {text}")),
            None => Err("panic".to_owned()),
        },
    }
}

#[test]
fn every_seed_keeps_the_register() {
    let (start, seeds) = (number("CXLOE_SIM_START", 1), number("CXLOE_SIM_SEEDS", 150));
    let mut sum = Figures::default();
    for seed in start..start + seeds {
        match run(seed, false) {
            Ok(figures) => sum.add(figures),
            Err(why) => {
                // The story of the run.
                let again = run(seed, true);
                assert_eq!(again, Err(why.clone()), "a seed is a run");
                panic!(
                    "seed {seed}: {why}\nreproduce: CXLOE_SIM_START={seed} CXLOE_SIM_SEEDS=1 \
                     cargo test -p cxloe-cn --test engine_simulation"
                );
            }
        }
    }
    println!("{seeds} seeds: {sum:#?}");
    if seeds >= 100 {
        sum.assert_eventful();
    }
}

#[test]
fn a_seed_is_a_run() {
    for seed in 3..6 {
        assert_eq!(run(seed, false).expect("a good run"), run(seed, false).expect("a good run"));
    }
}
