//! Worked examples of decoders, the bijection of decoding and encoding, and the rules of a set compared with a second,
//! independent model.

use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn decoder(base: u64, size: u64, ways: u32, granularity: u32) -> Decoder {
    let ways = Ways::try_from(ways).unwrap();
    Decoder { base, size, ways, granularity: Granularity::try_from(granularity).unwrap() }
}

#[test]
fn worked_examples() {
    /// Ways and granularity, then offset, position and DPA of some bytes.
    type Example = (u32, u32, &'static [(u64, u32, u64)]);
    let examples: [Example; 8] = [
        (4, 1 << 10, &[(0x400, 1, 0), (0x800, 2, 0), (0xC00, 3, 0)]),
        (4, 1 << 10, &[(0x1000, 0, 0x400), (0x1234, 0, 0x634), (0xFFFF_FFFF, 3, 0x3FFF_FFFF)]),
        (3, 256, &[(0x100, 1, 0), (0x300, 0, 0x100), (0x523, 2, 0x123)]),
        (6, 1 << 10, &[(0x1400, 5, 0), (0x1800, 0, 0x400), (0x1A34, 0, 0x634), (0x2_FFFF, 5, 0x7FFF)]),
        (
            12,
            16 << 10,
            &[(0x2_C000, 11, 0), (0x3_0000, 0, 0x4000), (0x3_1234, 0, 0x5234), (0xB_FFFF, 11, 0xFFFF)],
        ),
        (16, 256, &[(0xF00, 15, 0), (0x10AB, 0, 0x1AB), (0xF_FFFF, 15, 0xFFFF)]),
        (8, 4 << 10, &[(0x7000, 7, 0), (0x9ABC, 1, 0x1ABC)]),
        (2, 16 << 10, &[(0xC123, 1, 0x4123)]),
    ];
    for (ways, granularity, bytes) in examples {
        // 12 GiB is a multiple of every number of ways, and contains the offsets of all examples.
        let size = if ways == 4 { 4 * GIB } else { 12 * GIB };
        for base in [0, 16 * GIB] {
            let decoder = decoder(base, size, ways, granularity);
            for (offset, position, dpa) in bytes.iter().copied() {
                let what = format!("{ways} ways of {granularity}, base {base:#x}, offset {offset:#x}");
                assert_eq!(decoder.decode(base + offset), Some((position, dpa)), "{what}");
                assert_eq!(decoder.encode(position, dpa), Some(base + offset), "{what}");
            }
        }
    }
}

#[test]
fn the_edges_of_a_range() {
    let four = decoder(16 * GIB, 4 * GIB, 4, 1 << 10);
    assert_eq!(four.decode(16 * GIB), Some((0, 0)));
    assert_eq!(four.decode(20 * GIB - 1), Some((3, GIB - 1)));
    assert_eq!(four.decode(20 * GIB), None);
    assert_eq!(four.decode(16 * GIB - 1), None);
    assert_eq!(four.decode(0), None);
    assert_eq!(four.encode(4, 0), None);
    assert_eq!(four.encode(0, GIB), None);
    assert_eq!(four.encode(u32::MAX, u64::MAX), None);
    // This range ends at the last address, 2^64 - 1.
    let last = decoder(0_u64.wrapping_sub(3 * GIB), 3 * GIB, 3, 256);
    assert_eq!(last.check(0, UNIT_CXL), Ok(()));
    assert_eq!(last.decode(u64::MAX), Some((2, GIB - 1)));
    assert_eq!(last.encode(2, GIB - 1), Some(u64::MAX));
    assert_eq!(last.decode(0), None);
}

fn any_ways() -> impl Strategy<Value = Ways> {
    prop::sample::select(Ways::ALL.to_vec())
}

fn any_granularity() -> impl Strategy<Value = Granularity> {
    prop::sample::select(Granularity::all().collect::<Vec<_>>())
}

/// Generates decoders that comply with all rules for units of 2 MiB.
fn valid_decoder() -> impl Strategy<Value = Decoder> {
    (any_ways(), any_granularity(), 0..1_u64 << 20, 1..1_u64 << 12).prop_map(
        |(ways, granularity, base, share)| Decoder {
            base: base * 2 * MIB,
            size: share * u64::from(ways.count()) * 2 * MIB,
            ways,
            granularity,
        },
    )
}

proptest! {
    #[test]
    fn every_address_has_one_place_and_every_place_one_address(decoder in valid_decoder(), at: prop::sample::Index) {
        prop_assert_eq!(decoder.check(0, 2 * MIB), Ok(()));
        let hpa = decoder.base + at.index(decoder.size as usize) as u64;
        let (position, dpa) = decoder.decode(hpa).unwrap();
        prop_assert!(position < decoder.ways.count() && dpa < decoder.share());
        prop_assert_eq!(decoder.encode(position, dpa), Some(hpa));
        // This computation follows the definition, without bit fields of the address.
        let (offset, grain, ways) =
            (hpa - decoder.base, u64::from(decoder.granularity.bytes()), u64::from(decoder.ways.count()));
        prop_assert_eq!(u64::from(position), offset / grain % ways);
        prop_assert_eq!(dpa, offset / grain / ways * grain + offset % grain);
    }

    #[test]
    fn every_address_maps_back(decoder in valid_decoder(), position in 0_u32..16, at: prop::sample::Index) {
        let position = position % decoder.ways.count();
        let dpa = at.index(decoder.share() as usize) as u64;
        let hpa = decoder.encode(position, dpa).unwrap();
        prop_assert_eq!(decoder.decode(hpa), Some((position, dpa)));
    }

    /// Checks every byte of a range, not only samples: the DPAs of each position are contiguous.
    #[test]
    fn shares_are_dense(ways in any_ways(), granularity in any_granularity(), turns in 1_u64..5) {
        let size = turns * u64::from(ways.count() * granularity.bytes());
        let decoder = Decoder { base: 0x4000_0000, size, ways, granularity };
        let mut next = vec![0_u64; ways.count() as usize];
        for hpa in (decoder.base..decoder.base + size).step_by(64) {
            let (position, dpa) = decoder.decode(hpa).unwrap();
            // Ascending HPAs visit each position's DPAs in order, without gap or repetition.
            prop_assert_eq!(dpa, next[position as usize]);
            next[position as usize] += 64;
        }
        prop_assert!(next.iter().all(|end| *end == decoder.share()));
    }

    #[test]
    fn any_numbers_are_answered(
        base: u64, size: u64, ways in any_ways(), granularity in any_granularity(), hpa: u64, position: u32, dpa: u64, unit: u64
    ) {
        let decoder = Decoder { base, size, ways, granularity };
        let _ = (decoder.decode(hpa), decoder.encode(position, dpa), decoder.check(0, unit));
    }
}

/// Independent model of the rules of a set: a list of (program, committed, locked), and plain arithmetic in
/// 128 bits.
#[derive(Default)]
struct Model {
    slots: Vec<(Option<Program<u8>>, bool, bool)>,
    unit: u128,
}

impl Model {
    fn may_program(&self, index: usize) -> bool {
        self.slots.get(index).is_some_and(|(_, committed, _)| !committed)
    }

    fn may_uncommit(&self, index: usize) -> bool {
        let above = |from: usize| self.slots[from..].iter().any(|(_, committed, _)| *committed);
        self.slots.get(index).is_some_and(|(_, committed, locked)| *committed && !locked) && !above(index + 1)
    }

    fn may_commit(&self, index: usize) -> bool {
        let Some((Some(program), ..)) = self.slots.get(index) else { return false };
        let range = |program: &Program<u8>| {
            (
                u128::from(program.decoder.base),
                u128::from(program.decoder.base) + u128::from(program.decoder.size),
            )
        };
        let (base, end) = range(program);
        let ways = u128::from(u32::from(program.decoder.ways));
        let size = end - base;
        let lower_all_committed = self.slots[..index].iter().all(|(_, committed, _)| *committed);
        let previous_end =
            index.checked_sub(1).and_then(|at| self.slots[at].0.as_ref()).map_or(0, |below| range(below).1);
        let mut targets = program.targets.clone();
        targets.sort_unstable();
        targets.dedup();
        let dpa_end: u128 = self.slots[..=index]
            .iter()
            .filter_map(|(program, ..)| program.as_ref())
            .map(|p| u128::from(p.skip) + u128::from(p.decoder.size) / u128::from(u32::from(p.decoder.ways)))
            .sum();
        lower_all_committed
            && size > 0
            && base % self.unit == 0
            && size % (self.unit * ways) == 0
            && size % (ways * u128::from(u32::from(program.decoder.granularity))) == 0
            && end <= 1 << 64
            && base >= previous_end
            && program.targets.len() as u128 == ways
            && targets.len() as u128 == ways
            && u128::from(program.skip) % self.unit == 0
            && dpa_end < 1 << 64
    }
}

#[derive(Debug, Clone)]
enum Step {
    Program(usize, Program<u8>),
    Commit(usize),
    Uncommit(usize),
    Lock(usize),
    Reset,
}

const UNIT: u64 = 4096;

/// Generates programs that mostly comply with the rules, and sometimes violate each rule.
fn any_program() -> impl Strategy<Value = Program<u8>> {
    let number = |likely: std::ops::Range<u64>| {
        prop_oneof![
            8 => likely.prop_map(|n| n * UNIT),
            1 => any::<u64>(),
            1 => any::<u64>().prop_map(|n| n / UNIT * UNIT),
        ]
    };
    let targets = prop_oneof![
        8 => Just((0..16).collect::<Vec<u8>>()),
        1 => prop::collection::vec(0_u8..40, 0..20),
    ];
    (number(0..200), number(0..49), any_ways(), any_granularity(), number(0..2), targets, 0..10).prop_map(
        |(base, size, ways, granularity, skip, mut targets, odd)| {
            // Most sizes are whole shares; otherwise few programs could be committed.
            let turn = u64::from(ways.count()) * UNIT.max(u64::from(granularity.bytes()));
            let size = if odd > 1 { size.div_ceil(turn).checked_mul(turn).unwrap_or(size) } else { size };
            if odd > 0 {
                targets.truncate(ways.count() as usize);
            }
            Program { decoder: Decoder { base, size, ways, granularity }, skip, targets }
        },
    )
}

fn any_step() -> impl Strategy<Value = Step> {
    let index = || prop_oneof![3 => 0_usize..2, 1 => 0_usize..5];
    prop_oneof![
        6 => (index(), any_program()).prop_map(|(index, program)| Step::Program(index, program)),
        6 => index().prop_map(Step::Commit),
        2 => index().prop_map(Step::Uncommit),
        1 => index().prop_map(Step::Lock),
        1 => Just(Step::Reset),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_set_takes_exactly_what_the_rules_allow(steps in prop::collection::vec(any_step(), 1..40)) {
        let mut set = DecoderSet::new(4, UNIT).unwrap();
        let mut model = Model { slots: vec![(None, false, false); 4], unit: u128::from(UNIT) };
        for step in steps {
            match step {
                Step::Program(index, program) => {
                    let may = model.may_program(index);
                    prop_assert_eq!(set.program(index, program.clone()).is_ok(), may);
                    if may {
                        model.slots[index].0 = Some(program);
                    }
                }
                Step::Commit(index) => {
                    // A committed decoder stays committed, because nothing that it depends on can change.
                    let may = model.may_commit(index);
                    let said = set.commit(index);
                    prop_assert_eq!(said.is_ok(), may, "{:?}", said);
                    if let Some(slot) = model.slots.get_mut(index) {
                        prop_assert!(may || !slot.1);
                        slot.1 |= may;
                        let shown = set.control(index).unwrap();
                        prop_assert!(shown.is_none_or(|c| (c.committed, c.commit_error) == (may, !may)));
                    }
                }
                Step::Uncommit(index) => {
                    let may = model.may_uncommit(index);
                    prop_assert_eq!(set.uncommit(index).is_ok(), may);
                    if may {
                        model.slots[index].1 = false;
                    }
                }
                Step::Lock(index) => {
                    let may = model.slots.get(index).is_some_and(|slot| slot.1);
                    prop_assert_eq!(set.lock(index).is_ok(), may);
                    if may {
                        model.slots[index].2 = true;
                    }
                }
                Step::Reset => {
                    set.reset();
                    model.slots.fill((None, false, false));
                }
            }
            // Each committed range must be claimed by exactly one decoder.
            for (index, (program, committed, _)) in model.slots.iter().enumerate() {
                let Some(Program { decoder, targets, .. }) = program else { continue };
                if !committed {
                    continue;
                }
                for hpa in [decoder.base, decoder.base + (decoder.size - 1)] {
                    let hit = set.decode(hpa).unwrap();
                    let (position, dpa) = decoder.decode(hpa).unwrap();
                    let target = &targets[position as usize];
                    prop_assert_eq!(hit, Hit { index, position, target, dpa });
                }
            }
        }
    }
}

fn program(decoder: Decoder) -> Program<u8> {
    Program { decoder, skip: 0, targets: (0..decoder.ways.count() as u8).collect() }
}

/// Returns a set whose decoder 0 is committed: 16 GiB to 20 GiB over four targets.
fn set_with_one() -> DecoderSet<u8> {
    let mut set = DecoderSet::new(3, UNIT_CXL).unwrap();
    set.program(0, program(decoder(16 * GIB, 4 * GIB, 4, 1 << 10))).unwrap();
    set.commit(0).unwrap();
    set
}

#[test]
fn each_rule_has_a_name() {
    let refusal = |program: Program<u8>| {
        let mut set = set_with_one();
        set.program(1, program).unwrap();
        let error = set.commit(1).unwrap_err();
        assert_eq!(set.state(1), Ok(SlotState::Programmed));
        assert!(set.control(1).unwrap().unwrap().commit_error);
        error
    };
    let at = |base, size, ways| program(decoder(base, size, ways, 4096));
    let index = 1;
    assert_eq!(refusal(at(20 * GIB, 0, 1)), DecoderError::Empty { index });
    let base = 20 * GIB + MIB;
    assert_eq!(refusal(at(base, GIB, 1)), DecoderError::BaseUnaligned { index, base, unit: UNIT_CXL });
    let size = GIB + MIB;
    assert_eq!(refusal(at(20 * GIB, size, 1)), DecoderError::SizeUnaligned { index, size, unit: UNIT_CXL });
    let (base, size) = (0_u64.wrapping_sub(GIB), 2 * GIB);
    assert_eq!(refusal(at(base, size, 1)), DecoderError::Wraps { index, base, size });
    let base = 20 * GIB - UNIT_CXL;
    let lower_last = 20 * GIB - 1;
    assert_eq!(refusal(at(base, GIB, 1)), DecoderError::BelowPrevious { index, base, lower: 0, lower_last });
    let (unit, ways) = (UNIT_CXL, Ways::Six);
    assert_eq!(refusal(at(20 * GIB, GIB, 6)), DecoderError::NotThirds { index, units: 4, unit, ways });
    assert_eq!(
        refusal(at(20 * GIB, 9 * UNIT_CXL, 6)),
        DecoderError::NotShares { index, units: 9, unit, ways }
    );
    let ways = Ways::Four;
    assert_eq!(
        refusal(at(20 * GIB, 6 * UNIT_CXL, 4)),
        DecoderError::NotShares { index, units: 6, unit, ways }
    );
    let good = at(20 * GIB, GIB, 4);
    let few = Program { targets: vec![1, 2, 3], ..good.clone() };
    assert_eq!(refusal(few), DecoderError::TargetCount { index, ways, targets: 3 });
    let twice = Program { targets: vec![1, 2, 3, 2], ..good.clone() };
    assert_eq!(refusal(twice), DecoderError::TargetRepeated { index, first: 1, second: 3 });
    let skip = MIB;
    let error = DecoderError::SkipUnaligned { index, skip, unit };
    assert_eq!(refusal(Program { skip, ..good.clone() }), error);
    let skip = 0_u64.wrapping_sub(UNIT_CXL);
    assert_eq!(refusal(Program { skip, ..good }), DecoderError::DpaWraps { index });

    // Units may be smaller than the granularity.
    let mut fine = DecoderSet::new(1, 4096).unwrap();
    fine.program(0, program(decoder(0, 16 << 10, 4, 16 << 10))).unwrap();
    let (size, granularity) = (16 << 10, Granularity::MAX);
    assert_eq!(fine.commit(0), Err(DecoderError::NotChunks { index: 0, size, ways, granularity }));
    assert_eq!(DecoderSet::<u8>::new(1, 0).unwrap_err(), DecoderError::ZeroUnit);
}

#[test]
fn decoders_are_committed_in_order_and_taken_back_in_reverse() {
    let mut set = set_with_one();
    let (second, third) = (decoder(20 * GIB, 3 * GIB, 3, 256), decoder(32 * GIB, GIB, 1, 256));
    assert_eq!(set.commit(1), Err(DecoderError::NotProgrammed { index: 1 }));
    set.program(2, program(third)).unwrap();
    assert_eq!(set.commit(2), Err(DecoderError::LowerNotCommitted { index: 2, lower: 1 }));
    set.program(1, program(second)).unwrap();
    set.commit(1).unwrap();
    set.commit(2).unwrap();
    set.commit(2).unwrap();
    assert_eq!(set.program(1, program(second)), Err(DecoderError::Committed { index: 1 }));
    assert_eq!(set.uncommit(0), Err(DecoderError::HigherCommitted { index: 0, higher: 2 }));
    assert_eq!(set.decode(32 * GIB).map(|hit| (hit.index, hit.position, hit.dpa)), Some((2, 0, 0)));
    set.uncommit(2).unwrap();
    assert_eq!(set.decode(32 * GIB), None);
    assert_eq!(set.uncommit(2), Err(DecoderError::NotCommitted { index: 2 }));
    set.lock(1).unwrap();
    assert_eq!(set.state(1), Ok(SlotState::Locked));
    assert_eq!(set.uncommit(1), Err(DecoderError::Locked { index: 1 }));
    assert_eq!(set.program(1, program(second)), Err(DecoderError::Locked { index: 1 }));
    // Decoders below a locked one cannot be uncommitted either.
    assert_eq!(set.uncommit(0), Err(DecoderError::HigherCommitted { index: 0, higher: 1 }));
    assert_eq!(set.lock(2), Err(DecoderError::NotCommitted { index: 2 }));
    assert_eq!(set.commit(3), Err(DecoderError::NoSuchDecoder { index: 3, count: 3 }));
    set.reset();
    assert_eq!(set.state(1), Ok(SlotState::Free));
    assert_eq!(set.decode(16 * GIB), None);
}

#[test]
fn shares_lie_one_behind_the_other_in_a_device() {
    let mut set = set_with_one();
    let three = program(decoder(20 * GIB, 3 * GIB, 3, 256));
    set.program(1, Program { skip: UNIT_CXL, ..three.clone() }).unwrap();
    set.program(2, Program { skip: 2 * UNIT_CXL, ..program(decoder(32 * GIB, GIB, 1, 256)) }).unwrap();
    assert_eq!(set.dpa_base(0), Ok(0));
    assert_eq!(set.dpa_base(1), Ok(GIB + UNIT_CXL));
    assert_eq!(set.dpa_base(2), Ok(GIB + UNIT_CXL + GIB + 2 * UNIT_CXL));
    assert_eq!(set.control(0).unwrap().unwrap().bits(), 0x1622);
    assert_eq!(set.get(1).unwrap().map(|p| &p.targets), Some(&three.targets));
    let mut empty = DecoderSet::<u8>::new(2, UNIT_CXL).unwrap();
    empty.program(1, three).unwrap();
    assert_eq!(empty.dpa_base(1), Err(DecoderError::NotProgrammed { index: 0 }));
}
