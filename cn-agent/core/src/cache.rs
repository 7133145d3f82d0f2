//! The paper's line cache: 64-byte lines, set-associative, least recently used, states M, E and I.
//!
//! It decides nothing about the network. The engine asks where a line is, or which way it should take, and
//! is told what stands there now; a modified victim is the engine's to write back. While a fill is on its
//! way its place is [`State::Filling`]: reserved, and never a victim.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use cxloe_wire::frame::LINE_SIZE;

/// One line of data.
pub type Line = [u8; LINE_SIZE];

/// What a place of the cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing.
    Invalid,
    /// The same as the memory node.
    Exclusive,
    /// Newer than the memory node.
    Modified,
    /// Nothing yet; a read is on its way.
    Filling,
}

/// A place: which line, in which state, when it was last used. 16 bytes, so that the usual four ways of a
/// set share one cache line of the CPU.
#[derive(Clone, Copy)]
struct Way {
    line: u64,
    /// State in the low two bits, the time of last use above.
    stamp: u64,
}

const STATE_MASK: u64 = 3;

/// Size and shape of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// Bytes of line data, a power of two times `ways` times 64; 0 for no cache.
    pub bytes: usize,
    /// Ways of a set, 1 to 16.
    pub ways: usize,
}

impl Default for CacheConfig {
    /// The paper's: 32 KiB, 4 ways.
    fn default() -> Self {
        CacheConfig { bytes: 32 << 10, ways: 4 }
    }
}

impl CacheConfig {
    /// No cache: every operation goes to the memory node.
    pub const OFF: CacheConfig = CacheConfig { bytes: 0, ways: 1 };

    /// Why this shape is impossible, if it is.
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

/// A place in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(u32);

/// What a look for a line has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// It is here, in any state but invalid.
    Here(Place),
    /// It is not here. The place that it should take, if there is one: all may be being filled.
    Absent(Option<Place>),
}

/// The cache.
pub struct LineCache {
    ways: Box<[Way]>,
    data: Box<[Line]>,
    per_set: usize,
    set_mask: u64,
    tick: u64,
    valid: usize,
}

impl LineCache {
    /// An empty cache; `None` if the shape asks for none.
    ///
    /// # Panics
    /// If the shape is impossible ([`CacheConfig::check`]).
    pub fn new(config: CacheConfig) -> Option<LineCache> {
        config.check().expect("the shape was checked");
        let lines = config.bytes / LINE_SIZE;
        if lines == 0 {
            return None;
        }
        let empty = Way { line: u64::MAX, stamp: State::Invalid as u64 };
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

    /// Where `line` is, if it is here in any state but invalid.
    #[inline]
    pub fn find(&self, line: u64) -> Option<Place> {
        let set = self.set(line);
        let start = set.start;
        self.ways[set].iter().position(|w| w.line == line).map(|i| Place((start + i) as u32))
    }

    /// What `place` holds.
    #[inline]
    pub fn state(&self, place: Place) -> State {
        match self.ways[place.0 as usize].stamp & STATE_MASK {
            0 => State::Invalid,
            1 => State::Exclusive,
            2 => State::Modified,
            _ => State::Filling,
        }
    }

    /// Which line `place` holds.
    #[inline]
    pub fn line(&self, place: Place) -> u64 {
        self.ways[place.0 as usize].line
    }

    /// The data at `place`, which counts as a use.
    #[inline]
    pub fn read(&mut self, place: Place) -> &Line {
        self.tick += 1;
        let way = &mut self.ways[place.0 as usize];
        way.stamp = (self.tick << 2) | (way.stamp & STATE_MASK);
        &self.data[place.0 as usize]
    }

    /// The data at `place`, which does not count as a use.
    #[inline]
    pub fn peek(&self, place: Place) -> &Line {
        &self.data[place.0 as usize]
    }

    /// Puts new data at `place`, which becomes modified.
    #[inline]
    pub fn write(&mut self, place: Place, data: &Line) {
        self.put(place, data, State::Modified);
    }

    /// Puts data at `place` in `state`; counts as a use.
    #[inline]
    pub fn put(&mut self, place: Place, data: &Line, state: State) {
        self.tick += 1;
        self.data[place.0 as usize] = *data;
        self.ways[place.0 as usize].stamp = (self.tick << 2) | state as u64;
    }

    /// Changes the state of `place` alone.
    #[inline]
    pub fn set_state(&mut self, place: Place, state: State) {
        let way = &mut self.ways[place.0 as usize];
        way.stamp = (way.stamp & !STATE_MASK) | state as u64;
        if state == State::Invalid {
            way.line = u64::MAX;
            self.valid -= 1;
        }
    }

    /// Looks for `line`, and for the place that it should take if it is not here: a free one of its set, else the least
    /// recently used that is not being filled. A hit compares lines and nothing else.
    #[inline]
    pub fn look_up(&self, line: u64) -> Lookup {
        match self.find(line) {
            Some(place) => Lookup::Here(place),
            None => Lookup::Absent(self.victim(line)),
        }
    }

    /// The place that `line`, which is not here, should take; its set was read a moment ago. Out of line, so that a hit stays
    /// short where it is inlined.
    #[inline(never)]
    fn victim(&self, line: u64) -> Option<Place> {
        let set = self.set(line);
        let start = set.start;
        let (mut best, mut found) = (u64::MAX, None);
        for (index, way) in self.ways[set].iter().enumerate() {
            let age = match way {
                Way { line: u64::MAX, .. } => 0,
                way if way.stamp & STATE_MASK == State::Filling as u64 => u64::MAX,
                way => way.stamp,
            };
            if age < best {
                (best, found) = (age, Some(Place((start + index) as u32)));
            }
        }
        found
    }

    /// Which use this is: another one each time that a place is given to a line, read or written.
    #[inline]
    pub fn tick(&self) -> u64 {
        self.tick
    }

    /// Gives `place` to `line` in `state`; what was there is forgotten.
    #[inline]
    pub fn assign(&mut self, place: Place, line: u64, state: State) {
        self.tick += 1;
        let way = &mut self.ways[place.0 as usize];
        if way.line == u64::MAX {
            self.valid += 1;
        }
        *way = Way { line, stamp: (self.tick << 2) | state as u64 };
    }

    /// Places that hold something.
    #[inline]
    pub fn used(&self) -> usize {
        self.valid
    }

    /// All places.
    #[inline]
    pub fn places(&self) -> impl Iterator<Item = Place> + use<> {
        self.places_from(0)
    }

    /// All places but the first `skip`.
    #[inline]
    pub fn places_from(&self, skip: usize) -> impl Iterator<Item = Place> + use<> {
        (skip as u32..self.ways.len() as u32).map(Place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place_for(cache: &LineCache, line: u64) -> Option<Place> {
        match cache.look_up(line) {
            Lookup::Absent(place) => place,
            Lookup::Here(place) => panic!("it is at {place:?}"),
        }
    }

    fn fill(cache: &mut LineCache, line: u64, state: State) -> Place {
        let place = place_for(cache, line).expect("some place is free");
        cache.assign(place, line, state);
        cache.put(place, &[line as u8; LINE_SIZE], state);
        place
    }

    #[test]
    fn least_recently_used_goes_first() {
        let mut cache = LineCache::new(CacheConfig { bytes: 4 * 4 * 64, ways: 4 }).unwrap();
        // Four lines of set 1 (four sets).
        let lines = [1, 5, 9, 13];
        for line in lines {
            fill(&mut cache, line, State::Exclusive);
        }
        let first = cache.find(1).unwrap();
        assert_eq!(cache.read(first), &[1; LINE_SIZE]);
        let victim = place_for(&cache, 17).unwrap();
        assert_eq!(cache.line(victim), 5, "1 was used after 5");
        cache.assign(victim, 17, State::Filling);
        assert_eq!(cache.find(5), None);
        assert_eq!(cache.line(place_for(&cache, 21).unwrap()), 9, "a place being filled is no victim");
    }

    #[test]
    fn a_set_full_of_fills_has_no_victim() {
        let mut cache = LineCache::new(CacheConfig { bytes: 2 * 64, ways: 2 }).unwrap();
        for line in 0..2 {
            let place = place_for(&cache, line).unwrap();
            cache.assign(place, line, State::Filling);
        }
        assert_eq!(place_for(&cache, 7), None);
        let place = cache.find(0).unwrap();
        cache.set_state(place, State::Invalid);
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
