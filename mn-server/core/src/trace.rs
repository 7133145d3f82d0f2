//! Observation of accesses to memory, for measuring the parts of a request's latency.
//!
//! The time before and after a [`Service`](crate::service::Service) handles a frame can be measured outside; the time
//! of the access to the pool cannot. So a service calls an observer: [`Untraced`] in every worker, for which no code is
//! generated, or a clock when a latency is measured (paper, Fig. 8).

pub trait Trace {
    /// Called when an address has been translated, before its lines are read or written.
    fn access(&mut self);
}

/// Observer without any code, for workers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Untraced;

impl Trace for Untraced {
    #[inline(always)]
    fn access(&mut self) {}
}
