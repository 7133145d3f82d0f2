//! Alternating reads and writes: two frames instead of one for each request, and no reordering of accesses to
//! one line.

use std::collections::HashMap;

use cxloe_wire::frame::{Command::*, LINE_SIZE};
use proptest::prelude::*;

use super::lot::{READS, WRITES};
use crate::session_common::*;

/// Kind of a random request, which covers one or two lines.
#[derive(Clone, Copy, Debug)]
enum Ask {
    Read,
    Write,
    BurstRead,
}

impl Pair {
    /// Reads and writes `count` lines each, alternately, all lines far apart.
    fn mix(&mut self, count: u64) {
        self.requester.hold();
        for i in 0..count {
            self.read(0, i * 4096, i);
            self.write(0, (count + i) * 4096, i as u8 + 1, 100 + i);
        }
        self.requester.release(self.now, &mut self.up);
    }
}

#[test]
fn by_turns_they_take_a_frame_of_each_kind() {
    let mut p = Pair::open();
    p.mix(8);
    let frames = p.take_up();
    assert_eq!(list(&frames), [(MultiWriteReq, 1), (MultiReadReq, 9)]);
    p.deliver_up(&frames);
    assert_eq!(p.writes(), (0..8).map(|i| ((8 + i) * 4096, i as u8 + 1)).collect::<Vec<_>>());
    p.carry_down();
    let mut done = p.done.0.clone();
    assert_eq!(done[..8], (0..8).map(|i| Done::Written(100 + i)).collect::<Vec<_>>());
    done[8..].sort_by_key(|d| if let Done::Read(token, _) = d { *token } else { 99 });
    assert_eq!(done[8..], (0..8).map(|i| Done::Read(i, vec![0])).collect::<Vec<_>>());
    p.assert_at_rest();
}

/// A full frame must be sent at once. Requests of the other kind keep waiting, unless their numbers are lower.
#[test]
fn a_full_frame_of_writes_leaves_the_reads_waiting() {
    let mut p = Pair::open();
    p.requester.hold();
    p.read(0, 0, 0);
    (0..WRITES as u64).for_each(|i| p.write(0, (1 + i) * 64, 7, 100 + i));
    assert_eq!(list(&p.take_up()), [(MultiWriteReq, 1)]);
    (1..READS as u64).for_each(|i| p.read(0, i << 20, i));
    assert_eq!(list(&p.take_up()), [(MultiReadReq, 1 + WRITES as u16)]);
    // A full frame of reads must be preceded by the waiting writes, whose numbers are lower.
    (0..2).for_each(|i| p.write(0, (1 + i) * 64, 8, 200 + i));
    (0..READS as u64).for_each(|i| p.read(0, i << 20, 300 + i));
    let first = 1 + (WRITES + READS) as u16;
    assert_eq!(list(&p.take_up()), [(MultiWriteReq, first), (MultiReadReq, first + 2)]);
    assert_eq!(p.requester.counters().multi_requests as usize, 2 * READS + WRITES + 2);
}

/// R7: a write of a line that is still to be read must not overtake the read.
#[test]
fn r7_a_write_stays_behind_the_read_of_its_line() {
    let mut p = Pair::open();
    p.write(0, 640, 1, 0);
    p.run(MS);
    p.done.0.clear();
    p.requester.hold();
    p.read(0, 640, 1);
    p.read(0, 704, 2);
    p.write(0, 768, 5, 3);
    // This write may wait too: its line has the same index as a line with a waiting read, but is in another page.
    p.write(0, 640 + 4096, 5, 4);
    assert_eq!(p.up.frames.len(), 0);
    p.write(0, 640, 2, 5);
    assert_eq!(list(&p.take_up()), [(MultiWriteReq, 2), (MultiReadReq, 4)]);
    p.read(0, 640, 6);
    p.requester.release(p.now, &mut p.up);
    assert_eq!(list(&p.take_up()), [(WriteReq, 6), (ReadReq, 7)]);

    let mut p = Pair::open();
    p.requester.hold();
    p.read(0, 64, 1);
    p.write(0, 64, 9, 2);
    p.read(0, 64, 3);
    p.requester.release(p.now, &mut p.up);
    p.run(MS);
    assert_eq!(p.done.0, [Done::Read(1, vec![0]), Done::Written(2), Done::Read(3, vec![9])]);
}

/// A burst must be sent after the requests made before it.
#[test]
fn a_burst_has_all_that_waits_sent_before_it() {
    let mut p = Pair::open();
    p.requester.hold();
    p.read(0, 0, 1);
    p.write(0, 64, 5, 2);
    p.write(0, 128, 6, 3);
    p.requester.burst_read(0, 64, 2, 4, p.now, &mut p.up).unwrap();
    assert_eq!(list(&p.up.frames), [(MultiWriteReq, 1), (ReadReq, 3), (BurstReadReq, 4)]);
    p.run(MS);
    assert_eq!(p.done.0[2..], [Done::Read(1, vec![0]), Done::Read(4, vec![5, 6])]);
    p.assert_at_rest();
}

/// Waiting requests must move to the next session in the order in which they would have been sent.
#[test]
fn both_kinds_go_over_to_the_next_session() {
    let mut p = Pair::open();
    p.requester.hold();
    for i in 0..4 {
        p.read(0, i * 64, i);
        p.write(0, (8 + i) * 64, 5, 100 + i);
    }
    p.read(0, 8 * 64, 4);
    restart(&mut p, 1000, |_| {});
    p.run(3000 * MS);
    assert_eq!(p.done.0.len(), 9);
    assert!(p.done.0.contains(&Done::Read(4, vec![5])));
    p.mix(3);
    assert_eq!(codes(&p.take_up()), [MultiWriteReq, MultiReadReq]);
}

#[derive(Default)]
struct Model {
    /// Last value written to each line.
    lines: HashMap<u64, u8>,
    /// Data that each read must return, by token.
    expected: HashMap<u64, Vec<u8>>,
    /// Lines of unanswered reads, which must not be written before the answer (R7).
    reading: HashMap<u64, Vec<u64>>,
    done: usize,
}

impl Model {
    fn check(&mut self, done: &[Done]) {
        for done in &done[self.done..] {
            match done {
                Done::Read(token, found) => {
                    assert_eq!(Some(found), self.expected.get(token), "read {token}");
                    self.reading.remove(token);
                }
                Done::Written(_) => {}
                Done::Failed(..) => panic!("{done:?}"),
            }
        }
        self.done = done.len();
    }
}

proptest! {
    /// Random reads, writes and bursts of few lines, over a network that loses, duplicates and reorders
    /// frames. Each read must return the last write asked for before it.
    #[test]
    fn each_read_returns_the_preceding_write(
        lots in prop::collection::vec(
            (
                prop::collection::vec(
                    (prop_oneof![4 => Just(Ask::Read), 4 => Just(Ask::Write), 1 => Just(Ask::BurstRead)], 0..12_u64, any::<bool>()),
                    1..70,
                ),
                any::<[u8; 4]>(),
            ),
            1..12,
        ),
    ) {
        let mut p = Pair::open();
        let mut model = Model::default();
        let (mut token, mut value) = (0, 0_u8);
        for (asks, fate) in lots {
            p.requester.hold();
            for (ask, line, far) in asks {
                let addr = line * 64 + if far { 1 << 20 } else { 0 };
                let value_of = |model: &Model, addr| model.lines.get(&addr).copied().unwrap_or(0);
                token += 1;
                match ask {
                    Ask::Read => {
                        if p.requester.read(0, addr, token, p.now, &mut p.up).is_ok() {
                            model.expected.insert(token, vec![value_of(&model, addr)]);
                            model.reading.insert(token, vec![addr]);
                        }
                    }
                    Ask::BurstRead => {
                        if p.requester.burst_read(0, addr, 2, token, p.now, &mut p.up).is_ok() {
                            let both = [addr, addr + 64];
                            model.expected.insert(token, both.map(|addr| value_of(&model, addr)).to_vec());
                            model.reading.insert(token, both.to_vec());
                        }
                    }
                    Ask::Write if model.reading.values().flatten().any(|line| *line == addr) => {}
                    Ask::Write => {
                        value = value.wrapping_add(1);
                        if p.requester.write(0, addr, &[value; LINE_SIZE], token, p.now, &mut p.up).is_ok() {
                            model.lines.insert(addr, value);
                        }
                    }
                }
            }
            p.requester.release(p.now, &mut p.up);
            let mut frames = p.take_up();
            if fate[0] & 3 == 0 && frames.len() > 1 {
                frames.rotate_left(1);
            }
            if fate[0] & 12 == 0 && !frames.is_empty() {
                frames.remove(usize::from(fate[1]) % frames.len());
            }
            if fate[0] & 48 == 0 {
                frames.extend_from_within(..);
            }
            p.deliver_up(&frames);
            let mut answers = p.take_down();
            if fate[2] & 3 == 0 && !answers.is_empty() {
                answers.remove(usize::from(fate[3]) % answers.len());
            }
            p.deliver_down(&answers);
            if fate[2] & 12 == 0 {
                p.run(MS);
            }
            model.check(&p.done.0);
        }
        p.run(2000 * MS);
        model.check(&p.done.0);
        prop_assert!(model.reading.is_empty());
        p.assert_at_rest();
    }
}
