//! Both ends of a port, as they should be and as a hostile one is.

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
        (8..u32::MAX).prop_map(Operation::Unknown)
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

    /// Whatever the order of steps, both rings hand over everything, once, in order, unchanged.
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
                    prop_assert_eq!(agent.pending().unwrap(), submitted.len());
                    if let Some((submission, byte)) = submitted.pop_front() {
                        prop_assert_eq!(agent.front(), submission);
                        prop_assert_eq!(agent.front_line(), [byte; LINE_SIZE]);
                        agent.release();
                        served.push_back((submission.tag, byte));
                    }
                }
                Step::Complete(status) => {
                    if let Some((tag, byte)) = served.pop_front() {
                        prop_assert!(agent.room().unwrap() > 0);
                        agent.complete(Completion { tag, status }, Some(&[!byte; LINE_SIZE]));
                        completed.push_back((Completion { tag, status }, !byte));
                    }
                }
                Step::Take => {
                    let mut line = [0; LINE_SIZE];
                    prop_assert_eq!(client.news(), !completed.is_empty());
                    let taken = client.take(&mut line).unwrap();
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

    /// A client may write what it likes: the agent says "broken" or finds entries to copy, never more
    /// than the ring has.
    #[test]
    fn a_hostile_client_is_only_ever_wrong(
        writes in proptest::collection::vec((0..PORT_BYTES / 8, any::<u64>()), 0..200),
        tail: u64,
        head: u64,
    ) {
        let (mut agent, client) = pair();
        for (word, value) in writes {
            client.memory().word(word).store(value, Relaxed);
        }
        client.memory().word(SQ_TAIL).store(tail, Relaxed);
        client.memory().word(CQ_HEAD).store(head, Relaxed);
        match agent.pending() {
            Ok(pending) => {
                prop_assert!(pending <= ENTRIES && pending as u64 == tail);
                for _ in 0..pending {
                    let _ = (agent.front(), agent.front_line());
                    agent.release();
                }
                prop_assert_eq!(agent.pending(), Ok(0));
            }
            Err(RingBroken { ahead }) => prop_assert_eq!(ahead, tail),
        }
        let consistent = 0_u64.wrapping_sub(head) <= ENTRIES as u64;
        prop_assert_eq!(agent.room().is_ok(), consistent);
    }
}

#[test]
fn two_threads_lose_nothing() {
    const COUNT: u32 = 200_000;
    let (mut agent, mut client) = pair();
    let echo = thread::spawn(move || {
        let mut done = 0;
        while done < COUNT {
            if agent.pending().unwrap() == 0 {
                thread::yield_now();
                continue;
            }
            let (tag, line) = (agent.front().tag, agent.front_line());
            agent.release();
            agent.complete(Completion { tag, status: Status::Done }, Some(&line));
            done += 1;
        }
    });
    let (mut sent, mut got) = (0_u32, 0_u32);
    let mut line = [0; LINE_SIZE];
    while got < COUNT {
        while sent < COUNT && sent - got < ENTRIES as u32 {
            let submission = Submission { tag: sent, operation: Operation::Read, hpa: 0 };
            client.submit(submission, Some(&[sent as u8; LINE_SIZE]));
            sent += 1;
        }
        match client.take(&mut line).unwrap() {
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
            assert_eq!(agent.pending(), Ok(1));
            assert_eq!(agent.front().operation, Operation::Unknown(code), "{count} lines from {at} on");
            agent.release();
        }
    }
    for count in [0, ZERO_LINES_MAX + 1] {
        client.submit(Submission { tag: 1, operation: Operation::Zero(count), hpa: 0 }, None);
        assert_eq!(agent.pending(), Ok(1));
        assert_eq!(agent.front().operation, Operation::Unknown(6), "{count} lines");
        agent.release();
    }
}

#[test]
fn each_end_knows_whether_the_other_is_on_its_cpu() {
    let (agent, client) = pair();
    assert!(!agent.is_client_on(0) && !client.shares_cpu(0));
    agent.set_cpu(3);
    assert!(client.shares_cpu(3) && !client.shares_cpu(4));
    assert!(agent.is_client_on(4) && !agent.is_client_on(3));
    client.set_asleep(true);
    assert!(!agent.is_client_on(4), "who sleeps is in nobody's way");
    client.set_asleep(false);
    client.leave_cpu();
    assert!(!agent.is_client_on(4));
    client.shares_cpu(3);
    agent.set_asleep(true);
    assert!(!client.shares_cpu(3));
}

#[test]
fn a_sleeper_is_woken_once() {
    let (mut agent, mut client) = pair();
    assert!(!client.wake_wanted() && !agent.wake_wanted());
    assert_eq!(agent.pending(), Ok(0));
    agent.set_asleep(true);
    assert!(!agent.news());
    client.submit(Submission { tag: 1, operation: Operation::Flush, hpa: 0 }, None);
    assert!(agent.news() && client.wake_wanted() && !client.wake_wanted());
    client.set_asleep(true);
    agent.complete(Completion { tag: 1, status: Status::Done }, None);
    assert!(client.news() && agent.wake_wanted() && !agent.wake_wanted());
}
