//! Client operations on several lines, or on part of one, through rings. The engine and the memory nodes'
//! services are real, the network is simulated, and the clients run in the thread of the test.

#[allow(dead_code, reason = "the tests of the line port use the rest")]
#[path = "../../tests/looped/mod.rs"]
mod looped;

#[allow(dead_code, reason = "the tests of hostile clients use the rest")]
mod agent;

use agent::{Agent, Ends, ROUNDS};
use cxloe_client::ring::{DATA_LINES, Lines, Operation, Submission};
use cxloe_client::status::Status;
use cxloe_cn_core::engine::EngineError;
use cxloe_fabric::hdm::{Granularity, Ways};

use looped::{HPA, pattern};

#[test]
fn bytes_are_written_zeroed_and_read_wherever_they_lie() {
    for (ways, granularity) in
        [(Ways::One, Granularity::PAGE), (Ways::Three, Granularity::MIN), (Ways::Four, Granularity::MIN)]
    {
        let mut agent = Agent::start(ways, granularity);
        let mut client = agent.connect();
        let mut model = pattern(agent.bytes, 1);
        let lines = |at: u32, bytes: usize| Lines { at, count: (bytes / 64) as u32 };
        client.put(5, &model);
        let all = lines(5, model.len());
        assert_eq!(agent.run(&mut client, Operation::WriteBytes(all), HPA, None), Status::Done);
        for (first, count) in [(0_usize, 1_usize), (3, 70), (61, 200), (model.len() / 64 - 9, 9)] {
            let part = pattern(count * 64, first as u32 + 9);
            client.put(100, &part);
            let hpa = HPA + first as u64 * 64;
            let operation = Operation::WriteBytes(lines(100, part.len()));
            assert_eq!(agent.run(&mut client, operation, hpa, None), Status::Done);
            model[first * 64..][..part.len()].copy_from_slice(&part);
            let zero = Operation::Zero(2);
            let hpa = HPA + (first as u64 / 2) * 64;
            assert_eq!(agent.run(&mut client, zero, hpa, None), Status::Done);
            model[first / 2 * 64..][..128].fill(0);
        }
        let end = DATA_LINES as u32 - all.count;
        let there = Lines { at: end, count: all.count };
        assert_eq!(agent.run(&mut client, Operation::ReadBytes(there), HPA, None), Status::Done);
        assert!(client.get(end, model.len()) == model, "{ways} ways");
        // A range of two lines: the last line of the region, and the line behind it.
        let beyond = Operation::ReadBytes(Lines { at: 0, count: 2 });
        let hpa = HPA + model.len() as u64 - 64;
        let status = agent.run(&mut client, beyond, hpa, None);
        assert_eq!(status, Status::Failed(EngineError::Unmapped(hpa + 64)));
        assert_eq!(client.get(0, 64), model[model.len() - 64..], "what is there was read");
    }
}

#[test]
fn what_makes_no_sense_is_refused_and_hurts_nobody() {
    let mut agent = Agent::start(Ways::Two, Granularity::MIN);
    let (mut good, mut bad) = (agent.connect(), agent.connect());
    let some = Lines { at: 0, count: 4 };
    for operation in [Operation::ReadBytes(some), Operation::WriteBytes(some), Operation::Zero(4)] {
        let refused = |hpa| Status::Failed(EngineError::Unaligned(hpa));
        assert_eq!(agent.run(&mut bad, operation, HPA + 1, None), refused(HPA + 1));
        let last = u64::MAX - 63;
        let status = agent.run(&mut bad, operation, last, None);
        assert_eq!(status, Status::Failed(EngineError::Unmapped(last)));
    }
    for operation in [
        Operation::ReadBytes(Lines { at: DATA_LINES as u32, count: 1 }),
        Operation::WriteBytes(Lines { at: 1, count: u32::MAX }),
        Operation::Zero(0),
        Operation::Zero(u32::MAX),
        Operation::Unknown(99),
    ] {
        assert_eq!(agent.run(&mut bad, operation, HPA, None), Status::BadOperation, "{operation:?}");
    }
    assert_eq!(agent.run(&mut good, Operation::Patch(1), HPA, Some(&[5; 64])), Status::Done);
    // When a client disconnects, its operations end and their bursts become free for other clients.
    for round in 0..20 {
        let mut leaving = agent.connect();
        for tag in 0..200 {
            let operation = match tag % 3 {
                0 => Operation::ReadBytes(Lines { at: 0, count: 512 }),
                1 => Operation::Zero(512),
                _ => Operation::Patch(u64::MAX),
            };
            leaving.ring.submit(Submission { tag, operation, hpa: HPA + 4096 }, Some(&[1; 64]));
        }
        (0..round).for_each(|_| agent.round(&[]));
        drop(leaving);
        agent.clients.drain_wakeups(|_| true);
    }
    let read = Operation::ReadBytes(Lines { at: 0, count: 1 });
    assert_eq!(agent.run(&mut good, read, HPA, None), Status::Done);
    assert_eq!(good.get(0, 2), [5, 0]);
    assert_eq!(agent.run(&mut good, Operation::Patch(1), HPA + 4096, Some(&[5; 64])), Status::Done);
}

#[test]
fn mapped_regions_are_not_touched() {
    let mut agent = Agent::start(Ways::One, Granularity::PAGE);
    let mut client = agent.connect();
    let mapped = HPA + 8192..HPA + 12_288;
    for (hpa, refused) in [(HPA, true), (HPA + 12_288 - 64, true), (HPA + 12_288, false)] {
        for operation in
            [Operation::ReadBytes(Lines { at: 0, count: 129 }), Operation::Zero(129), Operation::Patch(3)]
        {
            client.ring.submit(Submission { tag: 1, operation, hpa }, Some(&[0; 64]));
            let completion = (0..ROUNDS).find_map(|_| {
                agent.round(std::slice::from_ref(&mapped));
                client.ring.take(&mut [0; 64])
            });
            let status = completion.expect("a completion").status;
            let patches_another = matches!(operation, Operation::Patch(_)) && hpa == HPA;
            let expected = if refused && !patches_another {
                Status::Failed(EngineError::Mapped(hpa))
            } else {
                Status::Done
            };
            assert_eq!(status, expected, "{operation:?} at {hpa:#x}");
        }
    }
}

/// Tests that several clients that patch bytes of the same lines at once do not undo each other's writes.
#[test]
fn writers_of_one_line_do_not_undo_each_other() {
    const WRITERS: usize = 4;
    let mut agent = Agent::start(Ways::Two, Granularity::MIN);
    let mut clients: Vec<Ends> = (0..WRITERS).map(|_| agent.connect()).collect();
    for round in 1..=8_u8 {
        let mut open = [0; WRITERS];
        for line in 0..32_u64 {
            for (owner, client) in clients.iter_mut().enumerate() {
                // A mask with every fourth byte of the line.
                let mask = 0x1111_1111_1111_1111 << owner;
                let bytes = [round * 4 + owner as u8; 64];
                let submission =
                    Submission { tag: line as u32, operation: Operation::Patch(mask), hpa: HPA + line * 64 };
                client.ring.submit(submission, Some(&bytes));
                open[owner] += 1;
            }
            agent.round(&[]);
        }
        for (owner, client) in clients.iter_mut().enumerate() {
            for _ in 0..open[owner] {
                assert_eq!(agent.completion(client).status, Status::Done);
            }
        }
        // Line reads take another path through the engine than bursts do.
        let client = &mut clients[0];
        for line in 0..32 {
            client.ring.submit(Submission { tag: 1, operation: Operation::Read, hpa: HPA + line * 64 }, None);
            let mut found = [0; 64];
            let taken = (0..ROUNDS).find_map(|_| {
                agent.round(&[]);
                client.ring.take(&mut found)
            });
            assert_eq!(taken.map(|completion| completion.status), Some(Status::Done));
            let expected: Vec<u8> = (0..64).map(|byte| round * 4 + byte % 4).collect();
            assert_eq!(found[..], expected, "line {line} of round {round}");
        }
    }
}

/// Tests that a long operation of one client does not delay another client until its end.
#[test]
fn clients_take_turns() {
    let mut agent = Agent::start(Ways::One, Granularity::PAGE);
    let (mut long, mut short) = (agent.connect(), agent.connect());
    let count = (agent.bytes / 64) as u32;
    for tag in 0..100 {
        let operation = Operation::ReadBytes(Lines { at: 0, count });
        long.ring.submit(Submission { tag, operation, hpa: HPA }, None);
    }
    (0..10).for_each(|_| agent.round(&[]));
    let read = Operation::ReadBytes(Lines { at: 0, count: 8 });
    assert_eq!(agent.run(&mut short, read, HPA + agent.bytes as u64 / 2, None), Status::Done);
    let mut through = 0;
    while long.ring.take(&mut [0; 64]).is_some() {
        through += 1;
    }
    assert!(through < 50, "{through} of 100 long ones came first");
}
