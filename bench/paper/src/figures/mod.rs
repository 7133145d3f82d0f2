//! The congestion figures of the paper "CXL over Ethernet", Fig. 11 and Fig. 12, from a simulated link of 100 Gbit/s
//! and the daemons' own controller and token bucket ([`cxloe_cc`]).
//!
//! A sender that always has data, paced by its token bucket, fills the receive FIFO of a memory node over a wire that
//! carries one slot at a time. Above a threshold of entries, the node sends PFC frames; each reaches the controller
//! after the feedback delay. [`Run`] simulates this frame by frame; [`Fig11`] and [`Fig12`] are sweeps over many runs,
//! with tables, CSV and SVG. Nothing depends on the clock or the machine, so that the same program produces the same
//! bytes everywhere.
//!
//! # The model, and the reasons for it
//! The paper gives the link's rate, the controller's times and the thresholds, but not how the FIFO is filled and
//! emptied. [`Model`] supplies this:
//!
//! * **An entry is a write request: a slot of 113 bytes on the wire.** The paper's request of 89 bytes, preamble and
//!   start delimiter (8), check sequence (4) and the smallest gap between frames (12). At 100 Gbit/s an entry arrives
//!   every 9.04 ns.
//! * **The reader takes an entry in 4 ns**, one cycle of the paper's FPGA at 250 MHz: more than twice the link's rate.
//!   On average the reader keeps up, so the depth of the FIFO limits the rate, as the paper observes.
//! * **The reader sees 11 entries ahead**: it takes an entry once 11 more have arrived (a window from which a memory
//!   controller can choose by bank), or once the entry has waited 1 µs. Above 10 Gbit/s the FIFO therefore always holds
//!   about 11 entries.
//! * **The reader stalls for 0.82 µs every 8 to 30 µs** (DRAM refresh and other accesses). The times between stalls are
//!   uniformly distributed, from a seed.
//! * **The threshold is checked when an entry arrives.** A PFC frame is sent when the number of entries rises above the
//!   threshold, and again each microsecond while it stays above. The frame that ends a pause (quanta 0) is no signal to
//!   the controller and is left out. No frame stops the sender: PFC frames only slow it down (paper, III.D).
//! * **The feedback delay is 1 µs**: encoding, cable, MAC and clock domains, about half of the paper's round trip.
//!
//! Window and stall are fitted to the paper's two statements about its FIFO, which leave little choice. While the
//! reader stalls, the FIFO grows by the rate times the length of the stall. At 100 Gbit/s the peak must be at most 105
//! entries, since the paper sees no PFC frame with that threshold; at 41 to 42 Gbit/s the peak must be about 50. With a
//! stall alone, the peaks would be proportional to the rates; a constant part of about 11 entries and a stall of about
//! 0.82 µs give both peaks. The exact values matter little: with stalls of 0.815 to 0.83 µs, the final rates of Fig. 12
//! lie between 40.7 and 42.6 Gbit/s, and 1.7 to 3 % apart.
//!
//! # Results of a run
//! * **First stable rate**: the controller's rate when it first returns to phase (a), Stable Running, after a PFC
//!   frame.
//! * **Final stable rate**: the rate of arrivals, averaged over the last 9 ms of 12 ms. The controller keeps raising
//!   and lowering the rate, so the rate at a single moment would say little.
//!
//! Every point is run with several seeds; the figures show the mean, with minimum and maximum.

mod drawing;
mod fifo;
mod fig11;
mod fig12;
mod model;
mod run;
mod sweep;
mod time;

pub use fig11::{Fig11, ThresholdPoint};
pub use fig12::{Fig12, InitialPoint, Trace};
pub use model::Model;
pub use run::{Plan, Run};
pub use sweep::Spread;
