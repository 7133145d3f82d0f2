//! Tests of requests to a region in this process: every answer is checked byte by byte.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::output::SentItem;
use super::*;
use cxloe_client::ring::DATA_BYTES;
use cxloe_client::vectored::SendSlice;

const SIZE: usize = 3 << 20;
/// Offset of the data area in the shared memory.
const BASE: usize = 4096;

/// A client's requests, the region's bytes, and an agent that carries out every operation.
struct Bench {
    requests: Requests,
    output: Output,
    memory: SharedMemory,
    region: Vec<u8>,
    said: Vec<u8>,
}

/// Answer to a request: data, or the reason of its failure.
type RequestAnswer = Result<Vec<u8>, String>;

impl Bench {
    fn new(structured: bool) -> Bench {
        let mut output = Output::default();
        if structured {
            output.set_structured();
        }
        Bench {
            requests: Requests::default(),
            output,
            memory: SharedMemory::create(BASE + DATA_BYTES).unwrap(),
            region: (0..SIZE).map(|i| (i % 251) as u8).collect(),
            said: Vec::new(),
        }
    }

    fn begin(&mut self, cookie: u64, command: ExportCommand) {
        assert!(self.requests.has_room(&self.output));
        self.requests.begin(ExportRequest { cookie, command }, &mut self.output);
        self.requests.cut(&mut self.output);
    }

    /// Carries out an operation as the agent would.
    fn carry_out(&mut self, order: PortOrder) {
        let at = order.offset as usize;
        let area = |lines: Lines| BASE + lines.at as usize * LINE_SIZE;
        let bytes = |count: u32| count as usize * LINE_SIZE;
        assert!(order.offset.is_multiple_of(LINE));
        match order.operation {
            Operation::ReadBytes(lines) => {
                self.memory.put(area(lines), &self.region[at..at + bytes(lines.count)])
            }
            Operation::WriteBytes(lines) => {
                self.memory.take(area(lines), &mut self.region[at..at + bytes(lines.count)])
            }
            Operation::Zero(count) => self.region[at..at + bytes(count)].fill(0),
            Operation::Patch(mask) => {
                let mut line = [0; LINE_SIZE];
                if let Some(place) = order.line {
                    self.memory.take(BASE + place, &mut line);
                }
                for (index, byte) in line.iter().enumerate().filter(|(index, _)| mask >> index & 1 == 1) {
                    self.region[at + index] = *byte;
                }
            }
            other => panic!("{other:?}"),
        }
        assert!(self.requests.ended(order.tag, &self.memory, BASE, &mut self.output));
    }

    /// Sends payload in steps of `bite` bytes.
    fn pay(&mut self, mut data: &[u8], bite: usize) {
        while !data.is_empty() {
            self.requests.cut(&mut self.output);
            let Some((at, length)) = self.requests.places().next() else {
                self.work();
                continue;
            };
            let (now, later) = data.split_at(length.min(bite).min(data.len()));
            self.memory.put(BASE + at, now);
            self.requests.fill(now.len(), &mut self.output);
            data = later;
        }
    }

    /// Sends all output to the client.
    fn send(&mut self) {
        let before = self.said.len();
        for stretch in self.output.stretches(Some(&self.memory), BASE) {
            match stretch {
                SendSlice::Own(bytes) => self.said.extend_from_slice(bytes),
                SendSlice::Shared(memory, at, length) => {
                    let mut bytes = vec![0; length];
                    memory.take(at, &mut bytes);
                    self.said.extend(bytes);
                }
            }
        }
        let mut length = self.said.len() - before;
        while let Some(sent) = self.output.next_sent(&mut length) {
            match sent {
                SentItem::Part(part) => self.requests.sent(part),
                SentItem::Staged(bytes) => self.requests.staged_sent(bytes),
                SentItem::Bytes => {}
            }
        }
    }

    /// Carries out operations and sends output until nothing is left to do.
    fn work(&mut self) {
        let now = Instant::now();
        loop {
            self.requests.cut(&mut self.output);
            match self.requests.next(now) {
                Some(order) => self.carry_out(order),
                None if self.output.is_empty() => return,
                None => {}
            }
            self.send();
        }
    }

    fn nothing_is_left(&self) {
        assert!(self.requests.is_empty() && self.output.is_empty());
        let Requests { given, staged, free_parts, .. } = &self.requests;
        assert_eq!((*given, *staged, free_parts.len()), (0, 0, PARTS_MAX));
        assert_eq!(self.requests.used_blocks().count(), 0);
    }

    /// Answers by cookie; `lengths` gives the data length of simple replies to reads.
    fn answers(&self, lengths: &BTreeMap<u64, (u64, usize)>) -> BTreeMap<u64, RequestAnswer> {
        let number = |at: usize, length: usize| {
            self.said[at..at + length].iter().fold(0_u64, |n, byte| n << 8 | u64::from(*byte))
        };
        let mut answers: BTreeMap<u64, RequestAnswer> = BTreeMap::new();
        let mut open: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let mut at = 0;
        while at < self.said.len() {
            if number(at, 4) == 0x6744_6698 {
                let (error, cookie) = (number(at + 4, 4), number(at + 8, 8));
                at += 16;
                let length =
                    if error == 0 { lengths.get(&cookie).map_or(0, |(_, length)| *length) } else { 0 };
                let data = self.said[at..at + length].to_vec();
                at += length;
                let answer = if error == 0 { Ok(data) } else { Err(format!("error {error}")) };
                assert!(answers.insert(cookie, answer).is_none(), "answered twice");
                continue;
            }
            assert_eq!(number(at, 4), 0x668e_33ef);
            let (last, kind, cookie) = (number(at + 4, 2) == 1, number(at + 6, 2), number(at + 8, 8));
            let length = number(at + 16, 4) as usize;
            let body = &self.said[at + 20..at + 20 + length];
            let (offset, all) = lengths.get(&cookie).copied().unwrap_or_default();
            let data = open.entry(cookie).or_insert_with(|| vec![0xEE; all]);
            match kind {
                0 => assert!(last && length == 0 && all == 0),
                1 => {
                    assert!(length > 8, "libnbd takes a chunk of no data for an error");
                    let from = (number(at + 20, 8) - offset) as usize;
                    data[from..from + length - 8].copy_from_slice(&body[8..]);
                }
                0x8001 => assert!(last),
                other => panic!("a chunk of kind {other}"),
            }
            if last {
                let data = open.remove(&cookie).unwrap();
                let text = || String::from_utf8(body[6..].to_vec()).unwrap();
                let answer = if kind == 0x8001 { Err(text()) } else { Ok(data) };
                assert!(answers.insert(cookie, answer).is_none(), "answered twice");
            }
            at += 20 + length;
        }
        assert!(open.is_empty(), "answered in part");
        answers
    }
}

fn ranges() -> impl Strategy<Value = (usize, usize)> {
    let length = prop_oneof![3 => 0_usize..200, 3 => 0..4 * 4096_usize, 2 => 0..700_usize << 10];
    let offset = prop_oneof![0..SIZE, (0..SIZE / 4096).prop_map(|page| page * 4096)];
    (offset, length).prop_map(|(offset, length)| (offset, length.min(SIZE - offset)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn it_reads_and_writes_as_bytes_do(
        structured: bool,
        steps in prop::collection::vec((ranges(), 0..5_u8, any::<u8>(), any::<bool>()), 1..40),
        bite in prop_oneof![1..100_usize, Just(1 << 20)],
    ) {
        let mut bench = Bench::new(structured);
        let mut model = bench.region.clone();
        let (mut expected, mut lengths) = (BTreeMap::new(), BTreeMap::new());
        for (cookie, ((offset, length), what, seed, now)) in (1..).zip(steps) {
            let range = offset..offset + length;
            let (first, count) = (offset as u64, length as u32);
            if !bench.requests.has_room(&bench.output) {
                bench.work();
            }
            match what {
                0 | 1 => {
                    bench.begin(cookie, ExportCommand::Read { offset: first, length: count, whole: what == 1 });
                    lengths.insert(cookie, (first, length));
                    expected.insert(cookie, Ok(model[range].to_vec()));
                }
                2 => {
                    let data: Vec<u8> = (0..length).map(|i| seed.wrapping_add(i as u8)).collect();
                    bench.begin(cookie, ExportCommand::Write { offset: first, length: count });
                    bench.pay(&data, bite.max(length / 64));
                    model[range].copy_from_slice(&data);
                    expected.insert(cookie, Ok(Vec::new()));
                }
                3 => {
                    bench.begin(cookie, ExportCommand::WriteZeroes { offset: first, length: count });
                    model[range].fill(0);
                    expected.insert(cookie, Ok(Vec::new()));
                }
                _ => {
                    bench.begin(cookie, ExportCommand::Cache { offset: first, length: count });
                    expected.insert(cookie, Ok(Vec::new()));
                }
            }
            if now {
                bench.work();
            }
        }
        bench.work();
        bench.nothing_is_left();
        prop_assert!(bench.region == model, "the region");
        prop_assert!(bench.answers(&lengths) == expected, "the answers");
    }
}

#[test]
fn what_may_pass_is_tried_again_and_what_has_waited_fails() {
    let mut bench = Bench::new(true);
    let now = Instant::now();
    let retry_limit = |now| RetryLimit { now, most: Duration::from_secs(5) };
    bench.begin(1, ExportCommand::Read { offset: 0, length: 8192, whole: false });
    bench.begin(2, ExportCommand::Read { offset: 8192, length: 4096, whole: false });
    let (first, second) = (bench.requests.next(now).unwrap(), bench.requests.next(now).unwrap());
    let Bench { requests, output, .. } = &mut bench;
    assert_eq!(requests.failed(77, &"", true, retry_limit(now), output), None, "there is none");
    assert_eq!(requests.failed(first.tag, &"away", true, retry_limit(now), output), Some(false));
    assert_eq!(requests.failed(first.tag, &"away", true, retry_limit(now), output), None, "not twice");
    assert_eq!(requests.failed(second.tag, &"lost", false, retry_limit(now), output), Some(true));
    assert_eq!((requests.next(now), requests.due()), (None, Some(now + RETRY_INTERVAL)));
    let again = requests.next(now + RETRY_INTERVAL).unwrap();
    assert_eq!(again, first);
    assert_eq!(
        requests.failed(again.tag, &"away", true, retry_limit(now + RETRY_INTERVAL), output),
        Some(false)
    );
    let late = now + Duration::from_secs(5);
    let again = requests.next(late).unwrap();
    assert_eq!(requests.failed(again.tag, &"away", true, retry_limit(late), output), Some(true));
    bench.work();
    bench.nothing_is_left();
    let lengths = [(1, (0, 8192)), (2, (8192, 4096))].into();
    assert_eq!(bench.answers(&lengths), [(1, Err("away".into())), (2, Err("lost".into()))].into());
}

#[test]
fn requests_of_a_lost_port_move_to_the_next() {
    for structured in [false, true] {
        let mut bench = Bench::new(structured);
        let now = Instant::now();
        let retry_limit = RetryLimit { now, most: Duration::from_secs(5) };
        let data = vec![7; 300_000];
        bench.begin(1, ExportCommand::Write { offset: 100, length: 300_000 });
        bench.pay(&data, usize::MAX);
        bench.begin(2, ExportCommand::Read { offset: 64, length: 300_000, whole: false });
        let given: Vec<PortOrder> = std::iter::from_fn(|| bench.requests.next(now)).collect();
        assert!(given.len() > 5 && bench.requests.given() == given.len());
        bench.requests.lost(retry_limit);
        assert!(bench.requests.is_waiting() && bench.requests.given() == 0);
        assert!(!bench.requests.expire(&"away", false, now, &mut bench.output), "there is time");
        bench.work();
        bench.nothing_is_left();
        assert!(bench.region[100..300_100] == data);
        let lengths = [(2, (64, 300_000))].into();
        // The read was carried out after the write: from offset 100 on, it returns the written data.
        let read = [(64..100).collect(), data[..299_964].to_vec()].concat();
        assert_eq!(bench.answers(&lengths)[&1], Ok(vec![]));
        assert!(bench.answers(&lengths)[&2] == Ok(read));

        // These two requests fail, because no agent carries them out within the time limit.
        bench.begin(3, ExportCommand::Read { offset: 0, length: 300_000, whole: false });
        bench.begin(4, ExportCommand::Write { offset: 0, length: 200_000 });
        bench.requests.away(retry_limit);
        assert!(bench.requests.expire(&"away", false, now + Duration::from_secs(5), &mut bench.output));
        bench.pay(&data[..200_000], usize::MAX);
        bench.requests.expire(&"away", true, now, &mut bench.output);
        bench.work();
        bench.nothing_is_left();
        let answers = bench.answers(&[(2, (64, 300_000)), (3, (0, 300_000))].into());
        assert!(answers[&3].is_err() && answers[&4].is_err(), "{:?}", (&answers[&3], &answers[&4]));
    }
}

#[test]
fn who_leaves_within_a_write_leaves_nothing() {
    for paid in [0, 10, 5000] {
        let mut bench = Bench::new(false);
        bench.begin(1, ExportCommand::Read { offset: 0, length: 100, whole: false });
        bench.begin(2, ExportCommand::Write { offset: 4096, length: 8192 });
        bench.pay(&vec![9; paid], 100);
        bench.requests.hang_up(&mut bench.output);
        bench.work();
        bench.nothing_is_left();
        let answers = bench.answers(&[(1, (0, 100))].into());
        assert_eq!(answers.keys().copied().collect::<Vec<_>>(), [1]);
    }
    let mut bench = Bench::new(false);
    bench.begin(1, ExportCommand::Write { offset: 4096, length: 8192 });
    bench.pay(&[9; 8192], 100);
    bench.requests.hang_up(&mut bench.output);
    bench.work();
    assert_eq!(bench.answers(&BTreeMap::new()), [(1, Ok(vec![]))].into(), "what has come whole is done");
}

#[test]
fn no_client_has_more_kept_for_it_than_there_is_room_for() {
    let mut bench = Bench::new(true);
    let now = Instant::now();
    let mut count = 0;
    while bench.requests.has_room(&bench.output) {
        bench.begin(count, ExportCommand::Read { offset: 0, length: 3 << 20, whole: count % 2 == 0 });
        count += 1;
        assert!(count <= REQUESTS_MAX as u64);
    }
    // The client takes no answers.
    loop {
        bench.requests.cut(&mut bench.output);
        let Some(order) = bench.requests.next(now) else { break };
        bench.carry_out(order);
    }
    assert!(bench.requests.staged <= STAGED_MAX && bench.requests.used_blocks().count() <= 128);
    bench.work();
    bench.nothing_is_left();
}

/// Number of lines that a `NBD_CMD_CACHE` of this range reads; checks that it reads nothing else, and sends nothing.
fn read_ahead(offset: u64, length: u32) -> u32 {
    let mut bench = Bench::new(true);
    let mut lines = 0;
    bench.begin(1, ExportCommand::Cache { offset, length });
    loop {
        bench.requests.cut(&mut bench.output);
        let Some(order) = bench.requests.next(Instant::now()) else { break };
        let Operation::ReadBytes(Lines { count, .. }) = order.operation else { panic!("{order:?}") };
        assert_eq!(order.offset, offset / LINE * LINE + u64::from(lines) * LINE);
        lines += count;
        let Bench { requests, output, memory, .. } = &mut bench;
        assert!(requests.ended(order.tag, memory, BASE, output));
    }
    bench.work();
    bench.nothing_is_left();
    assert_eq!(bench.answers(&BTreeMap::new()), [(1, Ok(vec![]))].into());
    lines
}

#[test]
fn a_range_is_read_ahead_up_to_a_limit() {
    assert_eq!(read_ahead(100, 1), 1);
    assert_eq!(read_ahead(100, 1 << 20), (1 << 20) / LINE as u32 + 1);
    assert_eq!(read_ahead(0, u32::MAX), READ_AHEAD_MAX / LINE as u32);
}

#[test]
fn a_range_that_cannot_be_read_ahead_is_told() {
    let mut bench = Bench::new(true);
    let now = Instant::now();
    bench.begin(1, ExportCommand::Cache { offset: 0, length: 4096 });
    let order = bench.requests.next(now).unwrap();
    let retry_limit = RetryLimit { now, most: Duration::ZERO };
    let told = bench.requests.failed(order.tag, &"poisoned", false, retry_limit, &mut bench.output);
    assert_eq!(told, Some(true));
    bench.work();
    bench.nothing_is_left();
    assert_eq!(bench.answers(&BTreeMap::new()), [(1, Err("poisoned".into()))].into());
}

/// Tests reads that must be answered in one chunk: they wait in their blocks and are complete and correct, whichever
/// part arrives first; several that together need more blocks than exist do not deadlock.
#[test]
fn whole_reads_are_held_in_their_blocks() {
    let wanted = [
        (1, (0, 1 << 20)),
        (2, (70, 700_001)),
        (3, (63, HELD_MAX as usize)),
        (4, (1 << 20, HELD_MAX as usize)),
        (5, (4096, 300_000)),
    ];
    for structured in [false, true] {
        let mut bench = Bench::new(structured);
        let now = Instant::now();
        for (cookie, (offset, length)) in wanted {
            bench.begin(cookie, ExportCommand::Read { offset, length: length as u32, whole: true });
        }
        loop {
            bench.requests.cut(&mut bench.output);
            let orders: Vec<_> = std::iter::from_fn(|| bench.requests.next(now)).collect();
            if orders.is_empty() && bench.output.is_empty() {
                break;
            }
            orders.into_iter().rev().for_each(|order| bench.carry_out(order));
            assert_eq!(bench.requests.staged, 0);
            bench.send();
        }
        bench.nothing_is_left();
        let answers = bench.answers(&wanted.into());
        for (cookie, (offset, length)) in wanted {
            let expected = &bench.region[offset as usize..offset as usize + length];
            assert!(answers[&cookie].as_deref() == Ok(expected), "{cookie}, structured: {structured}");
        }
    }
}

#[test]
fn a_whole_read_that_fails_gives_its_blocks_back() {
    for failing in [0, 3, 7] {
        let mut bench = Bench::new(true);
        let now = Instant::now();
        bench.begin(1, ExportCommand::Read { offset: 0, length: 1 << 20, whole: true });
        let orders: Vec<_> = std::iter::from_fn(|| bench.requests.next(now)).collect();
        assert_eq!(orders.len(), 8);
        for (index, order) in orders.into_iter().enumerate() {
            if index == failing {
                let retry_limit = RetryLimit { now, most: Duration::ZERO };
                let told =
                    bench.requests.failed(order.tag, &"poisoned", false, retry_limit, &mut bench.output);
                assert_eq!(told, Some(true));
            } else {
                bench.carry_out(order);
            }
        }
        bench.work();
        bench.nothing_is_left();
        assert!(bench.answers(&[(1, (0, 1 << 20))].into())[&1].is_err());
    }
}
