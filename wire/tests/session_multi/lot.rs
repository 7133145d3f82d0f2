//! Helpers that make many requests at once, for a pair of ends whose frames are carried by hand.

use cxloe_wire::frame::LINE_SIZE;

use crate::session_common::*;

/// Number of lines that a frame carries at an MTU of 1500.
pub const READS: usize = 23;
pub const WRITES: usize = 21;

impl Pair {
    /// Reads `count` lines of different pages. The requests are held until all are made, so that they share frames;
    /// their tokens count from `token`.
    pub fn read_many(&mut self, count: u64, token: u64) {
        self.requester.hold();
        (0..count).for_each(|i| self.read(0, i * 4096, token + i));
        self.requester.release(self.now, &mut self.up);
    }

    /// Writes `count` lines of different pages, each filled with its number. The requests are held until all are made,
    /// so that they share frames.
    pub fn write_many(&mut self, count: u64, token: u64) {
        self.requester.hold();
        (0..count).for_each(|i| self.write(0, i * 4096, i as u8 + 1, token + i));
        self.requester.release(self.now, &mut self.up);
    }

    pub fn writes(&self) -> Vec<(u64, u8)> {
        let write = |e: &Executed| match e {
            Executed::Write(addr, value) => Some((*addr, *value)),
            Executed::Read(_) => None,
        };
        self.memory.log.iter().filter_map(write).collect()
    }
}

/// Returns the payload of a frame of many requests: count, addresses of all lines but the first, lines.
pub fn payload(others: &[u64], data: &[[u8; LINE_SIZE]]) -> Vec<u8> {
    let addresses = others.iter().flat_map(|addr| addr.to_be_bytes()[2..].to_vec());
    [others.len() as u8 + 1].into_iter().chain(addresses).chain(data.as_flattened().iter().copied()).collect()
}

pub fn read_tokens(done: &[Done]) -> Vec<u64> {
    let token = |d: &Done| if let Done::Read(token, _) = d { Some(*token) } else { None };
    done.iter().filter_map(token).collect()
}
