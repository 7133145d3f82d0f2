//! STREAM: four kernels over three arrays of floating-point numbers, with STREAM's own check of their
//! results.
//!
//! ```text
//!   copy   c = a            scale  b = 3 c            add  c = a + b            triad  a = b + 3 c
//! ```
//!
//! Bytes are counted as STREAM counts them: 16 for each element of copy and scale, 24 of add and triad. The
//! first iteration is not counted. Minimum and maximum times of a kernel are those of single iterations over
//! the whole arrays; STREAM's best rate is the bytes of an iteration divided by the minimum.

use std::time::{Duration, Instant};

use cxloe_cn_core::cache::Line;
use cxloe_wire::frame::LINE_SIZE;

use super::memory::{AccessPath, LINE_BYTES, Memory};
use super::results::{Results, Setting};
use super::{Pattern, Plan};
use crate::MeasureError;
use crate::report::Samples;

const SCALAR: f64 = 3.0;
const LINE_ELEMENTS: u64 = LINE_BYTES / 8;
/// Relative error up to which an element counts as right.
const TOLERANCE: f64 = 1e-13;
/// Values of the elements of a, b and c before the first iteration, as STREAM's first touch of the arrays
/// leaves them.
const FIRST: [f64; 3] = [2.0, 2.0, 0.0];

cxloe_wire::named! {
    /// One of STREAM's four loops.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Kernel {
        Copy = "copy",
        Scale = "scale",
        Add = "add",
        Triad = "triad",
    }
}

impl Kernel {
    /// Returns the arrays that the kernel reads (the same twice if it reads only one), and the array that it
    /// writes: 0 for a, 1 for b, 2 for c.
    fn arrays(self) -> ([usize; 2], usize) {
        match self {
            Kernel::Copy => ([0, 0], 2),
            Kernel::Scale => ([2, 2], 1),
            Kernel::Add => ([0, 1], 2),
            Kernel::Triad => ([1, 2], 0),
        }
    }

    fn bytes_per_element(self) -> u64 {
        if self.arrays().0[0] == self.arrays().0[1] { 16 } else { 24 }
    }

    /// Computes an element of the result from the elements read.
    #[inline]
    fn apply(self, x: f64, y: f64) -> f64 {
        match self {
            Kernel::Copy => x,
            Kernel::Scale => SCALAR * x,
            Kernel::Add => x + y,
            Kernel::Triad => x + SCALAR * y,
        }
    }
}

/// Three arrays in a working set, one after the other, with a local buffer for a run of lines of each.
struct Arrays {
    lines: u64,
    runs: [Vec<Line>; 3],
}

impl Arrays {
    fn new(memory: &dyn Memory) -> Arrays {
        // Over a link, a run has to be long enough for a full window; otherwise it has to fit in the L1
        // cache.
        let run = if memory.over() == AccessPath::Port { 4096 } else { 64 };
        let lines = memory.lines() / 3;
        let run = run.min(lines as usize);
        Arrays { lines, runs: std::array::from_fn(|_| vec![[0; LINE_SIZE]; run]) }
    }

    /// Returns the runs into which an array is divided: first line and number of lines.
    fn runs(&self) -> impl Iterator<Item = (u64, usize)> + use<> {
        let (lines, run) = (self.lines, self.runs[0].len() as u64);
        (0..lines).step_by(run as usize).map(move |first| (first, run.min(lines - first) as usize))
    }

    /// Sets every element to the value of its array in [`FIRST`].
    fn fill(&mut self, memory: &mut dyn Memory) -> Result<(), MeasureError> {
        for (array, value) in (0..).zip(FIRST) {
            self.runs[0].as_flattened_mut().as_chunks_mut::<8>().0.fill(value.to_le_bytes());
            for (first, count) in self.runs() {
                memory.check()?;
                memory.write_run(array * self.lines + first, &self.runs[0][..count])?;
            }
        }
        memory.flush()
    }

    /// Makes one iteration of a kernel over the whole arrays, and returns how long it took.
    fn iterate(&mut self, kernel: Kernel, memory: &mut dyn Memory) -> Result<Duration, MeasureError> {
        let ([left, right], to) = kernel.arrays();
        let start = Instant::now();
        for (first, count) in self.runs() {
            memory.check()?;
            let [x, y, out] = &mut self.runs;
            let (x, y, out) = (&mut x[..count], &mut y[..count], &mut out[..count]);
            memory.read_run(left as u64 * self.lines + first, x)?;
            if left != right {
                memory.read_run(right as u64 * self.lines + first, y)?;
            }
            let elements = out.as_flattened_mut().as_chunks_mut::<8>().0.iter_mut();
            let read = x.as_flattened().as_chunks::<8>().0.iter().zip(y.as_flattened().as_chunks::<8>().0);
            for (element, (x, y)) in elements.zip(read) {
                *element = kernel.apply(f64::from_le_bytes(*x), f64::from_le_bytes(*y)).to_le_bytes();
            }
            memory.write_run(to as u64 * self.lines + first, out)?;
        }
        Ok(start.elapsed())
    }

    /// Returns the number of elements that differ from the result of `iterations` iterations.
    fn wrong(&mut self, memory: &mut dyn Memory, iterations: u32) -> Result<u64, MeasureError> {
        let mut right = 0;
        for (array, expected) in (0..).zip(after(iterations)) {
            for (first, count) in self.runs() {
                memory.check()?;
                let run = &mut self.runs[0][..count];
                memory.read_run(array * self.lines + first, run)?;
                let found = run.as_flattened().as_chunks::<8>().0.iter().map(|e| f64::from_le_bytes(*e));
                // A comparison with NaN is false, so that NaN counts as wrong.
                right += found.filter(|f| ((f - expected) / expected).abs() <= TOLERANCE).count() as u64;
            }
        }
        Ok(3 * self.lines * LINE_ELEMENTS - right)
    }
}

/// Returns the values that the elements of a, b and c must have after `iterations` iterations of all kernels.
fn after(iterations: u32) -> [f64; 3] {
    let mut values = FIRST;
    for kernel in (0..iterations).flat_map(|_| Kernel::ALL) {
        let ([left, right], to) = kernel.arrays();
        values[to] = kernel.apply(values[left], values[right]);
    }
    values
}

/// Measures all kernels in rotation, as STREAM does, and checks the arrays at the end.
pub fn run(
    memory: &mut dyn Memory,
    plan: &Plan,
    setting: &Setting,
    results: &mut Results,
) -> Result<(), MeasureError> {
    let mut arrays = Arrays::new(memory);
    arrays.fill(memory)?;
    let elements = arrays.lines * LINE_ELEMENTS;
    let mut measured = Kernel::ALL.map(|kernel| {
        let mut conditions =
            setting.conditions(Pattern::Stream, &format!("stream_{}", kernel.name()), memory);
        conditions.kernel = Some(kernel.name().into());
        conditions.working_set = 3 * arrays.lines * LINE_BYTES;
        (kernel, Samples::new(&conditions.name), conditions, Vec::new())
    });
    for iteration in 0..=plan.iterations {
        for (kernel, samples, conditions, times) in &mut measured {
            let took = arrays.iterate(*kernel, memory)?;
            // STREAM does not count the first iteration.
            if iteration > 0 {
                samples.record_ns(took.as_nanos() as u64);
                conditions.operations += elements;
                times.push(took);
            }
        }
    }
    let wrong = arrays.wrong(memory, plan.iterations + 1)?;
    for (kernel, samples, mut conditions, times) in measured {
        conditions.checked = 3 * elements;
        conditions.wrong = wrong;
        let bytes = kernel.bytes_per_element();
        let trials = times.into_iter().map(|took| (elements, elements * bytes, took));
        results.add_trials(conditions, Some(samples), trials);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::memory::local;
    use super::*;

    #[test]
    fn values_follow_the_kernels() {
        // From a=2: c=2, b=6, c=8, a=30; then c=30, b=90, c=120, a=450.
        assert_eq!(after(1), [30.0, 6.0, 8.0]);
        assert_eq!(after(2), [450.0, 90.0, 120.0]);
        assert!(after(200).iter().all(|value| value.is_finite()));
    }

    #[test]
    fn kernels_compute_and_a_wrong_element_is_found() {
        // Each array has 341 lines, which is not a whole number of runs, so that the last run is shorter.
        let mut memory = local(1 << 16, None);
        let mut arrays = Arrays::new(&memory);
        arrays.fill(&mut memory).unwrap();
        for kernel in (0..3).flat_map(|_| Kernel::ALL) {
            arrays.iterate(kernel, &mut memory).unwrap();
        }
        assert_eq!(arrays.wrong(&mut memory, 3).unwrap(), 0);
        assert_eq!(arrays.wrong(&mut memory, 2).unwrap(), 3 * 341 * 8);
        let mut line = memory.read(2 * 341 + 340).unwrap();
        line[..8].copy_from_slice(&f64::NAN.to_le_bytes());
        memory.write(2 * 341 + 340, &line).unwrap();
        assert_eq!(arrays.wrong(&mut memory, 3).unwrap(), 1);
    }
}
