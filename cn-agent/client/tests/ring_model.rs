//! The rings of a port under a model checker: every order in which the two ends' accesses can take effect, as far as
//! the memory model permits, for a few operations. The code is that of the agent and of clients, over words of the
//! checker.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use cxloe_client::ring::{AgentEnd, ClientEnd, Completion, Operation, Submission};
use cxloe_client::ring_memory::RingMemory;
use cxloe_client::status::Status;
use loom::model::Builder;
use loom::sync::atomic::{AtomicU64, fence};
use loom::sync::{Arc, Notify};
use loom::thread;

/// Index of the first word of each ring, and number of words of an entry.
const SUBMISSIONS: usize = 512;
const COMPLETIONS: usize = SUBMISSIONS + 256 * ENTRY;
const ENTRY: usize = 16;
/// Indices of the words outside the rings: two of the layout, one each of the agent and the client, and the
/// number of completions that were taken.
const ENDS: [usize; 5] = [0, 1, 16, 32, 48];
const TAKEN: usize = 48;
/// Maximum number of preemptions (switches between the threads without a wait). Two are enough to reveal most errors of
/// protocols.
const PREEMPTIONS: usize = 2;
/// Maximum number of orders to try, in case a change of the rings multiplies the orders.
const ORDERS_MAX: usize = 50_000;

/// Shared memory with only the words that a few operations use.
#[derive(Clone, Debug)]
struct ModelMemory(Arc<BTreeMap<usize, AtomicU64>>);

impl ModelMemory {
    fn new(entries: usize) -> ModelMemory {
        let of_ring = |ring: usize| (0..(entries + 1) * ENTRY).map(move |word| ring + word);
        let words = ENDS.into_iter().chain(of_ring(SUBMISSIONS)).chain(of_ring(COMPLETIONS));
        ModelMemory(Arc::new(words.map(|word| (word, AtomicU64::new(0))).collect()))
    }
}

impl RingMemory for ModelMemory {
    fn copy_out<const N: usize>(&self, first: usize) -> [u64; N] {
        std::array::from_fn(|word| self.0[&(first + word)].load(Ordering::Relaxed))
    }

    fn acquire<const N: usize>(&self, first: usize) -> [u64; N] {
        let words = self.copy_out(first);
        fence(Ordering::Acquire);
        words
    }

    fn store(&self, index: usize, value: u64, order: Ordering) {
        self.0[&index].store(value, order);
    }

    fn clear_bits(&self, index: usize, bits: u64) -> u64 {
        self.0[&index].fetch_and(!bits, Ordering::Relaxed) & bits
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// Models the byte on a port's socket, by which one end wakes the other.
type Sleep = Arc<Notify>;

fn check(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.max_permutations = Some(ORDERS_MAX);
    builder.check(run);
}

fn line(number: u64) -> [u8; 64] {
    [number as u8 + 1; 64]
}

fn write(number: u64) -> Submission {
    Submission { tag: number as u32, operation: Operation::Write, hpa: number << 6 }
}

/// Serves `count` operations as a worker does: in each round it serves all submissions, and then sleeps unless there
/// are new ones.
fn serve(mut end: AgentEnd<ModelMemory>, memory: &ModelMemory, count: u64, asleep: &Sleep, client: &Sleep) {
    let mut served = 0;
    while served < count {
        while let Some(submission) = end.front() {
            assert!(end.has_room(0).expect("the client's head is in range"));
            assert_eq!((submission, *end.front_line()), (write(served), line(served)));
            end.release();
            let done = Completion { tag: submission.tag, status: Status::Done };
            end.complete(done, Some(&line(served + 7)));
            served += 1;
        }
        memory.fence();
        if end.wake_wanted() {
            client.notify();
        }
        if served < count {
            end.set_asleep(true);
            memory.fence();
            if !end.news() {
                asleep.wait();
            }
            end.set_asleep(false);
        }
    }
}

/// Submits `count` operations and takes their completions; sleeps while there is no completion.
fn submit(mut end: ClientEnd<ModelMemory>, count: u64, asleep: &Sleep, agent: &Sleep) {
    for number in 0..count {
        end.submit(write(number), Some(&line(number)));
        if end.wake_wanted() {
            agent.notify();
        }
    }
    let (mut taken, mut read) = (0, [0; 64]);
    while taken < count {
        if let Some(completion) = end.take(&mut read) {
            assert_eq!(completion, Completion { tag: taken as u32, status: Status::Done });
            assert_eq!(read, line(taken + 7));
            taken += 1;
        } else {
            end.set_asleep(true);
            if !end.news() {
                asleep.wait();
            }
            end.set_asleep(false);
        }
    }
}

fn both_ends(count: u64) {
    let memory = ModelMemory::new(count as usize);
    let [agent, client] = [(); 2].map(|()| Arc::new(Notify::new()));
    let (agent_end, client_end) = (AgentEnd::new(memory.clone()), ClientEnd::new(memory.clone()));
    let serving = {
        let (agent, client) = (agent.clone(), client.clone());
        thread::spawn(move || serve(agent_end, &memory, count, &agent, &client))
    };
    submit(client_end.expect("the layout is known"), count, &client, &agent);
    serving.join().expect("the agent has served all");
}

/// Tests that no operation is lost, repeated or torn. An end that sleeps although the other end has submitted
/// or completed something would be a deadlock, which the checker reports.
#[test]
fn operations_cross_and_nobody_sleeps_through_one() {
    check(|| both_ends(1));
}

/// Tests that the agent's copy of an entry never changes, whatever a client stores in any word at any time,
/// and that an impossible index is detected.
#[test]
fn a_client_that_writes_anything_changes_no_copy() {
    check(|| {
        let memory = ModelMemory::new(1);
        let mut end = AgentEnd::new(memory.clone());
        let mut good = ClientEnd::new(memory.clone()).expect("the layout is known");
        good.submit(write(1), Some(&line(1)));
        let hostile = thread::spawn(move || {
            for (word, value) in [(0, 1 << 31 | 5), (1, u64::MAX), (2, u64::MAX), (8, 77)] {
                memory.store(SUBMISSIONS + word, value, Ordering::Relaxed);
            }
            memory.store(TAKEN, 1 << 40, Ordering::Relaxed);
        });
        if let Some(first) = end.front() {
            let written = *end.front_line();
            assert_eq!((end.front(), *end.front_line()), (Some(first), written));
            assert!([1, 0].contains(&first.tag), "a tag that was there: {first:?}");
            let _ = end.has_room(256);
        }
        hostile.join().expect("it has stored all");
        assert!(end.has_room(256).is_err(), "the head of completions is impossible");
    });
}

/// Tests that the agent does not accept a released entry again before the next lap of the ring, whatever a
/// client stores in it: the agent waits at the next entry.
#[test]
fn a_released_entry_is_accepted_no_second_time() {
    check(|| {
        let memory = ModelMemory::new(1);
        let mut end = AgentEnd::new(memory.clone());
        let mut good = ClientEnd::new(memory.clone()).expect("the layout is known");
        good.submit(write(1), Some(&line(1)));
        let [first_word] = memory.copy_out(SUBMISSIONS);
        let hostile = thread::spawn(move || {
            for value in [first_word ^ 1 << 31, first_word, first_word | 2 << 32] {
                memory.store(SUBMISSIONS, value, Ordering::Release);
            }
        });
        let accepted = (0..3).filter(|_| {
            let front = end.front();
            let _ = end.news();
            front.inspect(|_| end.release()).is_some()
        });
        assert!(accepted.count() <= 1, "one submission was made");
        hostile.join().expect("it has stored all");
    });
}
