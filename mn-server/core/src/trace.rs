//! A moment on the way of a request through the memory node, told to whoever times it.
//!
//! What happens before and after a frame is handled can be timed from outside a [`Service`](crate::service::Service);
//! when the pool is touched cannot. A service is made with something that is told: [`Untraced`] for every worker, which
//! compiles to nothing, and a clock where the parts of a request's latency are measured (paper, Fig. 8).

/// Is told when a request reaches the memory.
pub trait Trace {
    /// The address is translated, and its lines are about to be read or written.
    fn access(&mut self);
}

/// Takes no notice.
#[derive(Clone, Copy, Debug, Default)]
pub struct Untraced;

impl Trace for Untraced {
    #[inline(always)]
    fn access(&mut self) {}
}
