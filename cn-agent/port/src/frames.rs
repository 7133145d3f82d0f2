//! A link as a round uses it: each received frame has the time of its arrival.

use cxloe_cn_core::node::Frames;
use cxloe_link::{Link, LinkError};
use cxloe_wire::Transmit;
use cxloe_wire::time::Time;

/// A link and its clock, which is read once for all frames received together, and not at all without frames.
pub struct Stamped<'a, S> {
    /// Link whose frames get their time of arrival.
    pub link: &'a mut dyn Link,
    /// Reads the present time on the engine's clock.
    pub stamp: S,
}

impl<S: FnMut() -> Time> Frames for Stamped<'_, S> {
    type Error = LinkError;

    #[inline]
    fn receive(
        &mut self,
        budget: usize,
        mut on_frame: impl FnMut(&mut [u8], Time, &mut dyn Transmit),
    ) -> Result<usize, LinkError> {
        let (mut arrived, stamp) = (None, &mut self.stamp);
        self.link
            .receive(budget, &mut |frame, tx| on_frame(frame, *arrived.get_or_insert_with(&mut *stamp), tx))
    }

    #[inline]
    fn transmit(&mut self) -> &mut dyn Transmit {
        self.link.transmit()
    }

    #[inline]
    fn flush(&mut self) -> Result<(), LinkError> {
        self.link.flush()
    }
}
