//! Source of ids, nonces and ephemeral keys: the operating system's generator, passed in by the I/O code, or a seed, so
//! that a simulated run repeats.

use crate::random::Random;

/// A source of random bytes.
#[derive(Clone, Copy, Debug)]
pub enum Entropy {
    /// Generator with a seed, for simulations and tests alone: a few of its numbers reveal all others.
    Seeded(u64),
    /// Function that fills a buffer with bytes of the operating system's generator.
    System(fn(&mut [u8])),
}

impl Entropy {
    /// Derives the source for part `label` of the calling code; parts of one seed have different seeds.
    pub fn part(self, label: u64) -> Self {
        match self {
            Self::Seeded(seed) => Self::Seeded(seed.wrapping_add(label)),
            Self::System(fill) => Self::System(fill),
        }
    }
}

impl From<u64> for Entropy {
    fn from(seed: u64) -> Self {
        Self::Seeded(seed)
    }
}

/// Nonces, ids and ephemeral keys of one state machine.
#[derive(Clone, Debug)]
pub(crate) enum Nonces {
    Seeded(Random),
    System(fn(&mut [u8])),
}

impl Nonces {
    pub fn new(entropy: Entropy) -> Self {
        match entropy {
            Entropy::Seeded(seed) => Self::Seeded(Random::new(seed)),
            Entropy::System(fill) => Self::System(fill),
        }
    }

    /// Random bytes.
    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        match self {
            Self::Seeded(random) => {
                bytes.chunks_mut(8).for_each(|part| {
                    let number = random.bits().to_be_bytes();
                    part.copy_from_slice(&number[..part.len()]);
                });
            }
            Self::System(fill) => fill(&mut bytes),
        }
        bytes
    }

    /// Returns the next number; all 64 bits are random, and it is never 0.
    pub fn next(&mut self) -> u64 {
        loop {
            let number = u64::from_be_bytes(self.bytes());
            if number != 0 {
                return number;
            }
        }
    }
}
