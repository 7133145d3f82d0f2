//! Text that compresses like natural language: lines of words, of which short ones are more frequent.

use std::io::{self, BufWriter, Write};

use cxloe_wire::random::Random;

/// Number of different words.
const WORDS: u64 = 20_000;
/// Words per line.
const LINE: u64 = 12;

/// Writes at least `bytes` bytes of text; the last word is complete.
pub(super) fn write(bytes: u64, to: impl Write) -> io::Result<()> {
    let mut letters = Random::new(26);
    let words: Vec<String> = (0..WORDS)
        .map(|rank| {
            let length = 2 + rank.checked_ilog2().unwrap_or(0) / 2 + letters.below(4) as u32;
            (0..length).map(|_| char::from(b'a' + letters.below(26) as u8)).collect()
        })
        .collect();
    let (mut draw, mut to) = (Random::new(99), BufWriter::new(to));
    let (mut written, mut count) = (0, 0);
    while written < bytes {
        // The minimum of three draws makes low ranks far more frequent than high ones.
        let rank = draw.below(WORDS).min(draw.below(WORDS)).min(draw.below(WORDS));
        let word = &words[rank as usize];
        count += 1;
        to.write_all(word.as_bytes())?;
        to.write_all(if count % LINE == 0 { b"\n" } else { b" " })?;
        written += word.len() as u64 + 1;
    }
    to.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_as_long_as_asked_for_and_always_the_same() {
        let (mut one, mut two) = (Vec::new(), Vec::new());
        write(100_000, &mut one).unwrap();
        write(100_000, &mut two).unwrap();
        assert_eq!(one, two);
        assert!((100_000..100_040).contains(&one.len()), "{}", one.len());
        assert!(one.iter().all(|byte| byte.is_ascii_lowercase() || b" \n".contains(byte)));
    }
}
