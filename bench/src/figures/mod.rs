//! The congestion figures of the paper "CXL over Ethernet", Fig. 11 and Fig. 12, from a simulated link of 100 Gbit/s
//! and the controller and token bucket that ship ([`cxloe_cc`]).
//!
//! A sender that always has something to send, paced by its token bucket, fills the receive FIFO of a memory node
//! through a wire that takes one slot at a time. Above a threshold of entries the node sends PFC frames; the
//! controller hears of each one feedback delay later. [`Run`] is one such run, frame by frame; [`Fig11`] and [`Fig12`]
//! are sweeps over many, with tables, CSV and SVG. Nothing is drawn from the clock or the machine: the same program
//! gives the same bytes everywhere.
//!
//! # The model, and why it is this one
//! The paper gives the link's rate, the controller's times and the thresholds; how its FIFO is filled and emptied it
//! does not say. [`Model`] supplies that:
//!
//! * **An entry is a write request: a slot of 113 bytes on the wire.** The paper's request of 89 bytes, preamble and
//!   start delimiter (8), check sequence (4) and the least gap between frames (12). At 100 Gbit/s one comes every
//!   9.04 ns.
//! * **The reader takes an entry in 4 ns**, one cycle of the paper's FPGA at 250 MHz: more than twice the link's rate.
//!   On average it always keeps up, so what limits the rate is the depth of the FIFO, as the paper observes.
//! * **The reader sees 11 entries ahead**: it takes an entry once 11 have come after it (a window out of which a memory
//!   controller can choose by bank), or once it has waited 1 µs. Above 10 Gbit/s about 11 entries therefore
//!   always stand in the FIFO.
//! * **The reader stalls for 0.82 µs every 8 to 30 µs** (refresh, and what else keeps a DRAM busy). The times
//!   between are drawn evenly, from a seed.
//! * **The threshold is looked at when an entry comes.** A PFC frame leaves when the count rises above it, and again
//!   each microsecond for as long as it stays above. The frame that ends a pause (quanta 0) is no signal to the
//!   controller and is left out, and no frame stops the sender: it only slows it down (paper, III.D).
//! * **The feedback delay is 1 µs**: encoding, cable, MAC and clock domains, about the paper's half of a round trip.
//!
//! Window and stall are fitted to the paper's two statements about its FIFO, which leave little choice. While the
//! reader stalls at rate r, the FIFO gains r times the stall. At 100 Gbit/s the peak has to stay at 105 entries or
//! below, for with that threshold the paper sees no PFC frame; at 41 to 42 Gbit/s it has to be about 50. A stall
//! alone cannot do both, for its peaks are in proportion to the rates; a constant part of about 11 entries and a stall
//! of about 0.82 µs can. Neither is a matter of the last digit: with stalls of 0.815 to 0.83 µs, the
//! final rates of Fig. 12 lie between 40.7 and 42.6 Gbit/s, and 1.7 to 3 % apart.
//!
//! # What is measured
//! * **First stable rate**: the controller's rate when it first comes back to phase (a), Stable Running, after a PFC
//!   frame.
//! * **Final stable rate**: what arrives, averaged over the last 9 ms of 12 ms. The controller never rests: it explores
//!   and gives way for as long as it lives, so a rate at one moment would say little.
//!
//! Every point is run with several seeds; its mean is drawn, and the least and the most beside it.

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
