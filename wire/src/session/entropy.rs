//! Source of ids, nonces and ephemeral keys: the operating system's generator, which the I/O code passes in,
//! or a seed, so that a simulated run can be repeated.

use crate::random::Random;

/// Source of random bytes: the operating system in production, a seed in simulations.
#[derive(Clone, Copy, Debug)]
pub enum Entropy {
    /// Generator with a seed, only for simulations and tests: a few of its numbers reveal all others.
    Seeded(u64),
    /// Function that fills a buffer with random bytes of the operating system.
    System(fn(&mut [u8])),
}

impl Entropy {
    /// Returns the source for part `label` of the calling code; different parts of one seed get different
    /// seeds.
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

/// Generator of the nonces, ids and ephemeral keys of one state machine.
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

    /// Returns the next number, all 64 bits random but never 0, since 0 means "no session".
    pub fn next(&mut self) -> u64 {
        loop {
            let number = u64::from_be_bytes(self.bytes());
            if number != 0 {
                return number;
            }
        }
    }
}
