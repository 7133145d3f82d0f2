//! A capture of frames of every kind, from the fuzzers' corpus, and of thousands of copies with bytes changed, removed
//! or added. Each frame has a source address of its own, so that no two frames belong to one session.

use std::fs;
use std::path::Path;

use cxloe_system::Failed;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::traffic::Captured;

/// Number of mutants of each frame of the corpus.
const EACH: usize = 250;
/// Length below which frames have no EtherType.
const SHORTEST: usize = 14;

/// Makes the capture of corpus frames and mutants.
pub fn captured() -> Result<Captured, Failed> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../wire/fuzz/corpus/message");
    let mut paths: Vec<_> =
        fs::read_dir(&corpus)?.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>()?;
    paths.sort();
    let mut random = StdRng::seed_from_u64(0x88B5);
    let mut file: Vec<u8> =
        [0xa1b2_c3d4_u32, 4 << 16 | 2, 0, 0, 0xffff, 1].iter().flat_map(|w| w.to_le_bytes()).collect();
    let mut number = 0_u32;
    for path in paths {
        let original = fs::read(&path)?;
        for copy in 0..EACH {
            let mut frame = original.clone();
            if copy > 0 {
                mutate(&mut frame, &mut random);
            }
            number += 1;
            // Locally administered addresses, for source and destination: a changed command changes which of them is
            // the CN.
            frame[..12].fill(2);
            frame[2..6].copy_from_slice(&number.to_be_bytes());
            frame[8..12].copy_from_slice(&number.to_be_bytes());
            let head = [number / 1000, number % 1000, frame.len() as u32, frame.len() as u32];
            file.extend(head.iter().flat_map(|word| word.to_le_bytes()));
            file.extend(&frame);
        }
    }
    Captured::new(file)
}

fn mutate(frame: &mut Vec<u8>, random: &mut StdRng) {
    for _ in 0..random.random_range(1..=3) {
        match random.random_range(0..8) {
            // Changes a header field: the command, the address, or the count or mask.
            0 if frame.len() > SHORTEST => frame[SHORTEST] = random.random(),
            1..=3 if frame.len() > SHORTEST => {
                let at = random.random_range(SHORTEST..frame.len().min(34));
                frame[at] = random.random();
            }
            4..=5 if frame.len() > SHORTEST => {
                let at = random.random_range(SHORTEST..frame.len());
                frame[at] ^= 1 << random.random_range(0..8);
            }
            6 => frame.truncate(random.random_range(SHORTEST..=frame.len())),
            _ => frame.extend((0..random.random_range(1..80)).map(|_| random.random::<u8>())),
        }
    }
}
