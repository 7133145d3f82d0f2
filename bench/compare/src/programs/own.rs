//! Programs of this project: a pointer chase, a graph traversal, and a first touch of fresh memory. They take their
//! memory from the allocator, like any program, and contain no code for remote memory.

use std::hint::black_box;
use std::time::{Duration, Instant};

use cxloe_wire::random::Random;

use cxloe_measure::pattern::order::Scatter;

const LINE_WORDS: usize = 8;
/// Bytes of a page, the unit in which memory becomes resident.
pub(super) const PAGE: usize = 4096;
/// Number of edges that leave each vertex.
const EDGES: usize = 8;
/// Bytes of a vertex: offset of its edges, the edges, distance, entry in the queue.
const VERTEX_BYTES: usize = 8 + 4 * EDGES + 4 + 4;
/// Distance of a vertex that has not been reached.
const UNSEEN: u32 = u32::MAX;

/// Result of a program's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worked {
    /// Number of loads, edges or pages.
    pub operations: u64,
    /// Duration of the work, without its preparation.
    pub time: Duration,
    /// Checksum of the work; the same for every way of holding memory.
    pub answer: u64,
}

/// Follows a chain through all lines of a buffer, in an unpredictable order.
pub fn chase(bytes: usize, steps: u64) -> Worked {
    let lines = 1_usize << (bytes / (LINE_WORDS * 8)).max(2).ilog2();
    let order = Scatter::new(lines as u64, 64);
    let next = |line: usize| order.place(order.position(line as u64) + 1);
    let chain: Vec<[u64; LINE_WORDS]> = (0..lines).map(|line| [next(line); LINE_WORDS]).collect();
    let mut at = order.place(0);
    let start = Instant::now();
    for _ in 0..steps {
        at = chain[at as usize][0];
    }
    Worked { operations: steps, time: start.elapsed(), answer: black_box(at) }
}

/// Traverses a graph breadth first from several vertices. A few vertices have most of the incoming edges.
pub fn graph(bytes: usize) -> Worked {
    let vertices = (bytes / VERTEX_BYTES).clamp(2, UNSEEN as usize - 1);
    let mut random = Random::new(2055);
    let mut edges = Vec::with_capacity(vertices * EDGES);
    let begins: Vec<u64> = (0..vertices)
        .map(|_| {
            let begin = edges.len() as u64;
            for _ in 0..EDGES {
                edges.push(random.below(vertices as u64).min(random.below(vertices as u64)) as u32);
            }
            begin
        })
        .collect();
    let mut distances = vec![UNSEEN; vertices];
    let mut queue: Vec<u32> = Vec::with_capacity(vertices);
    let start = Instant::now();
    let mut walked = 0;
    for first in 0..vertices {
        if distances[first] != UNSEEN {
            continue;
        }
        distances[first] = 0;
        let mut at = queue.len();
        queue.push(first as u32);
        while let Some(&vertex) = queue.get(at) {
            at += 1;
            let begin = begins[vertex as usize] as usize;
            for &to in &edges[begin..begin + EDGES] {
                walked += 1;
                if distances[to as usize] == UNSEEN {
                    distances[to as usize] = distances[vertex as usize] + 1;
                    queue.push(to);
                }
            }
        }
    }
    let time = start.elapsed();
    let answer = queue.iter().zip(&distances).fold(0_u64, |sum, (vertex, distance)| {
        sum.rotate_left(5).wrapping_add(u64::from(*vertex) << 8 ^ u64::from(*distance))
    });
    Worked { operations: walked, time, answer }
}

/// Touches each page of fresh memory once, in order.
pub fn touch(bytes: usize) -> Worked {
    let pages = bytes / PAGE;
    let mut memory: Vec<u8> = Vec::with_capacity(pages * PAGE);
    let start = Instant::now();
    for (page, at) in memory.spare_capacity_mut().iter_mut().step_by(PAGE).enumerate().take(pages) {
        black_box(at.write(page as u8));
    }
    Worked { operations: pages as u64, time: start.elapsed(), answer: pages as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chase_goes_through_all_lines_and_comes_back() {
        let lines = 1 << 10;
        let begin = chase(lines * 64, 0).answer;
        let all = chase(lines * 64, lines as u64);
        assert_eq!((all.answer, all.operations), (begin, lines as u64), "once round");
        assert!((1..lines as u64).all(|steps| chase(lines * 64, steps).answer != begin));
    }

    #[test]
    fn a_walk_goes_along_every_edge_once() {
        let bytes = 1000 * VERTEX_BYTES;
        let worked = graph(bytes);
        assert_eq!(worked.operations, 1000 * EDGES as u64);
        assert_eq!(worked.answer, graph(bytes).answer);
        assert_ne!(worked.answer, graph(bytes + VERTEX_BYTES).answer);
    }

    #[test]
    fn a_touch_counts_pages() {
        assert_eq!(touch(10 * PAGE + 17).operations, 10);
    }
}
