//! The paper's line cache: 64-byte lines, set-associative, replacement of the least recently used line,
//! states M, E and I.
//!
//! The cache makes no decisions about the network: the engine looks up a line, gets the line's way or the way
//! to use for it, and stores the new content. The engine also writes a modified victim back. While a fill is
//! in flight, its way is [`LineState::Filling`]: reserved, and never a victim.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use cxloe_wire::frame::LINE_SIZE;

pub type Line = [u8; LINE_SIZE];

/// State of a way; the paper's M, E and I, and one for a fill in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineState {
    /// The way is empty.
    Invalid,
    /// The line equals the memory node's content.
    Exclusive,
    /// The line is newer than the memory node's content.
    Modified,
    /// The way is reserved for a line whose read is in flight.
    Filling,
}

/// A way: its line, state, and time of last use. 16 bytes, so that the usual four ways of a set share one cache line of
/// the CPU.
#[derive(Clone, Copy)]
struct CacheWay {
    /// Number of the line, its HPA divided by 64; `u64::MAX` if the way is empty.
    line: u64,
    /// State in the low two bits, the time of last use in the bits above.
    stamp: u64,
}

const STATE_MASK: u64 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// Bytes of line data, a power of two times `ways` times 64; 0 disables the cache.
    pub bytes: usize,
    /// Ways of a set (associativity), 1 to 16.
    pub ways: usize,
}

impl Default for CacheConfig {
    /// The paper's cache: 32 KiB, 4 ways.
    fn default() -> Self {
        CacheConfig { bytes: 32 << 10, ways: 4 }
    }
}

impl CacheConfig {
    /// A disabled cache: every operation goes to the memory node.
    pub const OFF: CacheConfig = CacheConfig { bytes: 0, ways: 1 };

    /// Checks that the size is 0, or makes a power of two of sets. The error says what to change.
    pub fn check(&self) -> Result<(), String> {
        let sets = self.bytes / LINE_SIZE / self.ways.max(1);
        if self.bytes == 0 {
            Ok(())
        } else if self.ways == 0 || self.ways > 16 {
            Err(format!("a line cache has 1 to 16 ways, not {}", self.ways))
        } else if !sets.is_power_of_two() || sets * self.ways * LINE_SIZE != self.bytes {
            Err(format!(
                "{} bytes in {} ways do not make a power of two of sets; try 32768 bytes in 4 ways",
                self.bytes, self.ways
            ))
        } else {
            Ok(())
        }
    }
}

/// Index of a way among all ways of the cache, in order of sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WayIndex(u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The line is cached, in any state but invalid.
    Here(WayIndex),
    /// The line is absent. The value is the way to use for it, or `None` while all ways of the set are being filled.
    Absent(Option<WayIndex>),
}

pub struct LineCache {
    ways: Box<[CacheWay]>,
    data: Box<[Line]>,
    per_set: usize,
    set_mask: u64,
    tick: u64,
    valid: usize,
}

impl LineCache {
    /// An empty cache; `None` for a shape of 0 bytes.
    ///
    /// # Panics
    /// If the shape is impossible ([`CacheConfig::check`]).
    pub fn new(config: CacheConfig) -> Option<LineCache> {
        config.check().expect("the shape was checked");
        let lines = config.bytes / LINE_SIZE;
        if lines == 0 {
            return None;
        }
        let empty = CacheWay { line: u64::MAX, stamp: LineState::Invalid as u64 };
        Some(LineCache {
            ways: vec![empty; lines].into_boxed_slice(),
            data: vec![[0; LINE_SIZE]; lines].into_boxed_slice(),
            per_set: config.ways,
            set_mask: (lines / config.ways - 1) as u64,
            tick: 0,
            valid: 0,
        })
    }

    #[inline]
    fn set(&self, line: u64) -> core::ops::Range<usize> {
        let start = (line & self.set_mask) as usize * self.per_set;
        start..start + self.per_set
    }

    /// Returns the way of `line`, if the line is cached in any state but invalid.
    #[inline]
    pub fn find(&self, line: u64) -> Option<WayIndex> {
        let set = self.set(line);
        let start = set.start;
        self.ways[set].iter().position(|w| w.line == line).map(|i| WayIndex((start + i) as u32))
    }

    #[inline]
    pub fn state(&self, place: WayIndex) -> LineState {
        match self.ways[place.0 as usize].stamp & STATE_MASK {
            0 => LineState::Invalid,
            1 => LineState::Exclusive,
            2 => LineState::Modified,
            _ => LineState::Filling,
        }
    }

    /// Number of the line at `place`: its HPA divided by 64.
    #[inline]
    pub fn line(&self, place: WayIndex) -> u64 {
        self.ways[place.0 as usize].line
    }

    /// Data at `place`; counts as a use.
    #[inline]
    pub fn read(&mut self, place: WayIndex) -> &Line {
        self.tick += 1;
        let way = &mut self.ways[place.0 as usize];
        way.stamp = (self.tick << 2) | (way.stamp & STATE_MASK);
        &self.data[place.0 as usize]
    }

    /// Data at `place`; does not count as a use.
    #[inline]
    pub fn peek(&self, place: WayIndex) -> &Line {
        &self.data[place.0 as usize]
    }

    /// Writes data to `place`, which becomes modified.
    #[inline]
    pub fn write(&mut self, place: WayIndex, data: &Line) {
        self.put(place, data, LineState::Modified);
    }

    /// Writes data to `place` and sets its state; counts as a use.
    #[inline]
    pub fn put(&mut self, place: WayIndex, data: &Line, state: LineState) {
        self.tick += 1;
        self.data[place.0 as usize] = *data;
        self.ways[place.0 as usize].stamp = (self.tick << 2) | state as u64;
    }

    /// Sets the state of `place` without counting as a use; `Invalid` also frees the way.
    #[inline]
    pub(crate) fn set_state(&mut self, place: WayIndex, state: LineState) {
        let way = &mut self.ways[place.0 as usize];
        way.stamp = (way.stamp & !STATE_MASK) | state as u64;
        if state == LineState::Invalid {
            way.line = u64::MAX;
            self.valid -= 1;
        }
    }

    /// Looks `line` up. For an absent line, also selects the way to use: a free one of its set, else the least
    /// recently used one that is not being filled. A hit compares tags and nothing else.
    #[inline]
    pub fn look_up(&self, line: u64) -> Lookup {
        match self.find(line) {
            Some(place) => Lookup::Here(place),
            None => Lookup::Absent(self.victim(line)),
        }
    }

    /// Returns the way to use for `line`, which is absent. Not inlined, so that the path of a hit stays
    /// short.
    #[inline(never)]
    fn victim(&self, line: u64) -> Option<WayIndex> {
        let set = self.set(line);
        let start = set.start;
        let (mut best, mut found) = (u64::MAX, None);
        for (index, way) in self.ways[set].iter().enumerate() {
            let age = match way {
                CacheWay { line: u64::MAX, .. } => 0,
                way if way.stamp & STATE_MASK == LineState::Filling as u64 => u64::MAX,
                way => way.stamp,
            };
            if age < best {
                (best, found) = (age, Some(WayIndex((start + index) as u32)));
            }
        }
        found
    }

    /// Returns the use counter, which advances each time that a way is assigned, read or written.
    #[inline]
    pub fn tick(&self) -> u64 {
        self.tick
    }

    /// Assigns `place` to `line` in `state` and drops its former content.
    #[inline]
    pub(crate) fn assign(&mut self, place: WayIndex, line: u64, state: LineState) {
        self.tick += 1;
        let way = &mut self.ways[place.0 as usize];
        if way.line == u64::MAX {
            self.valid += 1;
        }
        *way = CacheWay { line, stamp: (self.tick << 2) | state as u64 };
    }

    /// Number of ways whose state is not invalid.
    #[inline]
    pub fn used(&self) -> usize {
        self.valid
    }

    #[inline]
    pub fn places(&self) -> impl Iterator<Item = WayIndex> + use<> {
        self.places_from(0)
    }

    #[inline]
    pub(crate) fn places_from(&self, skip: usize) -> impl Iterator<Item = WayIndex> + use<> {
        (skip as u32..self.ways.len() as u32).map(WayIndex)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place_for(cache: &LineCache, line: u64) -> Option<WayIndex> {
        match cache.look_up(line) {
            Lookup::Absent(place) => place,
            Lookup::Here(place) => panic!("it is at {place:?}"),
        }
    }

    fn fill(cache: &mut LineCache, line: u64, state: LineState) -> WayIndex {
        let place = place_for(cache, line).expect("some place is free");
        cache.assign(place, line, state);
        cache.put(place, &[line as u8; LINE_SIZE], state);
        place
    }

    #[test]
    fn least_recently_used_goes_first() {
        let mut cache = LineCache::new(CacheConfig { bytes: 4 * 4 * 64, ways: 4 }).unwrap();
        // Four lines that all fall into set 1 of the four sets.
        let lines = [1, 5, 9, 13];
        for line in lines {
            fill(&mut cache, line, LineState::Exclusive);
        }
        let first = cache.find(1).unwrap();
        assert_eq!(cache.read(first), &[1; LINE_SIZE]);
        let victim = place_for(&cache, 17).unwrap();
        assert_eq!(cache.line(victim), 5, "1 was used after 5");
        cache.assign(victim, 17, LineState::Filling);
        assert_eq!(cache.find(5), None);
        assert_eq!(cache.line(place_for(&cache, 21).unwrap()), 9, "a place being filled is no victim");
    }

    #[test]
    fn a_set_full_of_fills_has_no_victim() {
        let mut cache = LineCache::new(CacheConfig { bytes: 2 * 64, ways: 2 }).unwrap();
        for line in 0..2 {
            let place = place_for(&cache, line).unwrap();
            cache.assign(place, line, LineState::Filling);
        }
        assert_eq!(place_for(&cache, 7), None);
        let place = cache.find(0).unwrap();
        cache.set_state(place, LineState::Invalid);
        assert_eq!(place_for(&cache, 7), Some(place));
        assert_eq!(cache.used(), 1);
    }

    #[test]
    fn impossible_shapes_are_named() {
        assert!(CacheConfig { bytes: 1000, ways: 4 }.check().is_err());
        assert!(CacheConfig { bytes: 32 << 10, ways: 0 }.check().is_err());
        assert!(CacheConfig { bytes: 3 * 64 * 4, ways: 4 }.check().is_err());
        assert!(CacheConfig::default().check().is_ok());
        assert!(LineCache::new(CacheConfig::OFF).is_none());
    }
}
