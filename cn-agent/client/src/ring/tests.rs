//! Tests of both ends of a port, well-behaved and hostile.

use std::collections::VecDeque;
use std::thread;

use cxloe_wire::frame::Mac;
use proptest::prelude::*;

use super::*;
use cxloe_cn_core::engine::EngineError;

fn pair() -> (AgentEnd, ClientEnd) {
    let agent = AgentEnd::new(SharedMemory::create(PORT_BYTES).unwrap());
    let copy = agent.memory().descriptor().try_clone_to_owned().unwrap();
    let client = ClientEnd::new(SharedMemory::open(copy, PORT_BYTES).unwrap()).unwrap();
    (agent, client)
}

#[derive(Clone, Debug)]
enum Step {
    Submit(Operation, u64, u8),
    Serve,
    Complete(Status),
    Take,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let operation = prop_oneof![
        Just(Operation::Read),
        Just(Operation::Write),
        Just(Operation::Flush),
        (0..DATA_LINES as u32)
            .prop_map(|at| { Operation::ReadBytes(Lines { at, count: DATA_LINES as u32 - at }) }),
        (1..=DATA_LINES as u32).prop_map(|count| Operation::WriteBytes(Lines { at: 0, count })),
        (1..=ZERO_LINES_MAX).prop_map(Operation::Zero),
        any::<u64>().prop_map(Operation::Patch),
        (8..1_u32 << 31).prop_map(Operation::Unknown)
    ];
    let status = prop_oneof![
        Just(Status::Done),
        Just(Status::BadOperation),
        any::<u64>().prop_map(|hpa| Status::Failed(EngineError::Unmapped(hpa))),
        Just(Status::Failed(EngineError::NotConnected(Mac([2, 0, 0, 0, 0, 1])))),
    ];
    let step = prop_oneof![
        4 => (operation, any::<u64>(), any::<u8>()).prop_map(|(o, h, b)| Step::Submit(o, h, b)),
        3 => Just(Step::Serve),
        3 => status.prop_map(Step::Complete),
        3 => Just(Step::Take),
    ];
    proptest::collection::vec(step, 0..3000)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Tests that, in any order of steps, both rings deliver every entry once, in order and unchanged.
    #[test]
    fn both_rings_are_queues(steps in steps()) {
        let (mut agent, mut client) = pair();
        let mut submitted = VecDeque::new();
        let mut served = VecDeque::new();
        let mut completed = VecDeque::new();
        let (mut next_tag, mut unfinished) = (0_u32, 0);
        for step in steps {
            match step {
                Step::Submit(operation, hpa, byte) if unfinished < ENTRIES => {
                    let submission = Submission { tag: next_tag, operation, hpa };
                    client.submit(submission, Some(&[byte; LINE_SIZE]));
                    submitted.push_back((submission, byte));
                    next_tag = next_tag.wrapping_add(1);
                    unfinished += 1;
                }
                Step::Serve => {
                    prop_assert_eq!(agent.front(), submitted.front().map(|(submission, _)| *submission));
                    if let Some((submission, byte)) = submitted.pop_front() {
                        if matches!(submission.operation, Operation::Write | Operation::Patch(_)) {
                            prop_assert_eq!(agent.front_line(), &[byte; LINE_SIZE]);
                        }
                        agent.release();
                        served.push_back((submission.tag, byte));
                    }
                }
                Step::Complete(status) => {
                    if let Some((tag, byte)) = served.pop_front() {
                        prop_assert!(agent.has_room(served.len()).unwrap());
                        agent.complete(Completion { tag, status }, Some(&[!byte; LINE_SIZE]));
                        completed.push_back((Completion { tag, status }, !byte));
                    }
                }
                Step::Take => {
                    let mut line = [0; LINE_SIZE];
                    prop_assert_eq!(client.news(), !completed.is_empty());
                    let taken = client.take(&mut line);
                    let expected = completed.pop_front();
                    prop_assert_eq!(taken, expected.map(|(completion, _)| completion));
                    if let Some((Completion { status: Status::Done, .. }, byte)) = expected {
                        prop_assert_eq!(line, [byte; LINE_SIZE]);
                    }
                    unfinished -= usize::from(taken.is_some());
                }
                Step::Submit(..) => {}
            }
        }
    }

    /// Tests a client that writes anything: the agent copies entries, and reports a broken ring before more completions
    /// are pending than the ring has entries.
    #[test]
    fn a_hostile_client_gets_errors_only(
        writes in proptest::collection::vec((0..PORT_BYTES / 8, any::<u64>()), 0..200),
        heads in proptest::collection::vec(any::<u64>(), 1..8),
        honest in any::<bool>(),
    ) {
        let (mut agent, client) = pair();
        for (word, value) in writes {
            client.memory().store(word, value, Relaxed);
        }
        let (mut told, mut highest) = (0_u64, 0);
        'heads: for head in heads {
            // An honest client publishes a head that is not above the number of completions and never decreases.
            let head = if honest { told.saturating_sub(head % 300).max(highest) } else { head };
            highest = head;
            client.memory().store(CQ_HEAD, head, Relaxed);
            for _ in 0..2 * ENTRIES {
                let _ = (agent.front(), *agent.front_line(), agent.client_cpu(), agent.wake_wanted(), agent.news());
                match agent.has_room(0) {
                    Ok(false) => break,
                    Ok(true) => {}
                    Err(RingBroken { ahead }) => {
                        prop_assert!(!honest && ahead == told.wrapping_sub(head) && ahead > ENTRIES as u64);
                        break 'heads;
                    }
                }
                agent.release();
                agent.complete(Completion { tag: 1, status: Status::Done }, None);
                told += 1;
                prop_assert!(!honest || told - highest <= ENTRIES as u64);
            }
        }
    }
}

/// Tests that a client that takes no completions gets at most as many as the ring has entries, and that a client with
/// an impossible head is soon reported as broken.
#[test]
fn completions_have_a_place_or_are_not_begun() {
    let (mut agent, mut client) = pair();
    let mut line = [0; LINE_SIZE];
    let tell = |agent: &mut AgentEnd| agent.complete(Completion { tag: 3, status: Status::Done }, None);
    let mut told = 0;
    while agent.has_room(6).unwrap() {
        tell(&mut agent);
        told += 1;
    }
    assert_eq!(told, ENTRIES - 6, "six are under way");
    (0..6).for_each(|_| tell(&mut agent));
    assert_eq!(agent.has_room(0), Ok(false));
    for _ in 0..ENTRIES {
        assert!(client.take(&mut line).is_some());
    }
    assert_eq!(client.take(&mut line), None, "an old lap's are no completions");
    assert_eq!((agent.has_room(ENTRIES - 1), agent.has_room(ENTRIES)), (Ok(true), Ok(false)));

    client.memory().store(CQ_HEAD, ENTRIES as u64 + 1000, Relaxed);
    let broken = (0..ENTRIES).find_map(|_| {
        tell(&mut agent);
        agent.has_room(0).err()
    });
    assert!(broken.is_some());
}

/// Tests that the agent works on a copy: overwriting an entry after the agent has read it has no effect.
#[test]
fn a_submission_stays_what_it_was_when_the_agent_saw_it() {
    let (mut agent, mut client) = pair();
    let first = Submission { tag: 1, operation: Operation::Write, hpa: 64 };
    client.submit(first, Some(&[1; LINE_SIZE]));
    assert_eq!((agent.front(), agent.front_line()), (Some(first), &[1; LINE_SIZE]));
    for word in SUBMISSIONS..COMPLETIONS {
        client.memory().store(word, client.memory().untrusted::<1>(word).copy_out()[0] ^ 0x7777, Relaxed);
    }
    assert_eq!((agent.front(), agent.front_line()), (Some(first), &[1; LINE_SIZE]));
    agent.release();
    assert_ne!(agent.front(), Some(first));
}

#[test]
fn two_threads_lose_nothing() {
    const COUNT: u32 = 200_000;
    let (mut agent, mut client) = pair();
    let echo = thread::spawn(move || {
        let mut done = 0;
        while done < COUNT {
            let Some(Submission { tag, .. }) = agent.front() else {
                thread::yield_now();
                continue;
            };
            let line = *agent.front_line();
            agent.release();
            agent.complete(Completion { tag, status: Status::Done }, Some(&line));
            done += 1;
        }
    });
    let (mut sent, mut got) = (0_u32, 0_u32);
    let mut line = [0; LINE_SIZE];
    while got < COUNT {
        while sent < COUNT && sent - got < ENTRIES as u32 {
            let submission = Submission { tag: sent, operation: Operation::Write, hpa: 0 };
            client.submit(submission, Some(&[sent as u8; LINE_SIZE]));
            sent += 1;
        }
        match client.take(&mut line) {
            Some(Completion { tag, .. }) => {
                assert_eq!((tag, line), (got, [got as u8; LINE_SIZE]));
                got += 1;
            }
            None => thread::yield_now(),
        }
    }
    echo.join().unwrap();
}

#[test]
fn lines_that_are_not_there_are_nobodys() {
    let none = [
        (0, 0),
        (0, DATA_LINES as u32 + 1),
        (DATA_LINES as u32, 1),
        (u32::MAX, u32::MAX),
        (1, DATA_LINES as u32),
    ];
    let (mut agent, mut client) = pair();
    for (at, count) in none {
        for (operation, code) in
            [(Operation::ReadBytes(Lines { at, count }), 4), (Operation::WriteBytes(Lines { at, count }), 5)]
        {
            client.submit(Submission { tag: 1, operation, hpa: 0 }, None);
            let operation = agent.front().map(|submission| submission.operation);
            assert_eq!(operation, Some(Operation::Unknown(code)), "{count} lines from {at} on");
            agent.release();
        }
    }
    for count in [0, ZERO_LINES_MAX + 1] {
        client.submit(Submission { tag: 1, operation: Operation::Zero(count), hpa: 0 }, None);
        let operation = agent.front().map(|submission| submission.operation);
        assert_eq!(operation, Some(Operation::Unknown(6)), "{count} lines");
        agent.release();
    }
}

#[test]
fn each_end_knows_whether_the_other_is_on_its_cpu() {
    let (mut agent, mut client) = pair();
    assert!(agent.client_cpu().is_none() && !client.shares_cpu(0));
    agent.set_cpu(3);
    assert!(client.shares_cpu(3) && !client.shares_cpu(4));
    assert_eq!(agent.client_cpu(), Some(4));
    client.set_asleep(true);
    assert_eq!(agent.client_cpu(), None, "who sleeps is in nobody's way");
    client.set_asleep(false);
    assert_eq!(agent.client_cpu(), Some(4));
    assert!(client.shares_cpu(3));
    agent.set_asleep(true);
    assert!(!client.shares_cpu(3));
    agent.set_asleep(false);
    assert!(client.shares_cpu(3));
}

#[test]
fn a_sleeper_is_woken_once() {
    let (mut agent, mut client) = pair();
    assert!(!client.wake_wanted() && !agent.wake_wanted());
    assert_eq!(agent.front(), None);
    agent.set_asleep(true);
    assert!(!agent.news());
    client.submit(Submission { tag: 1, operation: Operation::Flush, hpa: 0 }, None);
    assert!(agent.news() && client.wake_wanted() && !client.wake_wanted());
    client.set_asleep(true);
    agent.complete(Completion { tag: 1, status: Status::Done }, None);
    assert!(client.news() && agent.wake_wanted() && !agent.wake_wanted());
}

/// Tests that each submission keeps the agent awake only once: the one at the front, and those submitted behind it.
#[test]
fn what_was_looked_at_is_no_news() {
    let (mut agent, mut client) = pair();
    let mut submit = |count: usize| {
        let submission = Submission { tag: 1, operation: Operation::Flush, hpa: 0 };
        (0..count).for_each(|_| client.submit(submission, None));
    };
    assert!(!agent.news());
    submit(1);
    assert!(agent.front().is_some() && !agent.news() && agent.front().is_some());
    submit(2);
    assert!(agent.news() && !agent.news());
    agent.release();
    assert!(agent.front().is_some() && !agent.news(), "the second was looked at");
    submit(ENTRIES - 2);
    assert!(agent.news() && !agent.news(), "a full ring");
    (0..ENTRIES).for_each(|_| agent.release());
    assert!(agent.front().is_none() && !agent.news());
    submit(1);
    assert!(agent.news() && agent.front().is_some());
}
