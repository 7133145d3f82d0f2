//! A link for one round of receiving and sending: each received frame gets the time of its arrival.

use cxloe_cn_core::node::Frames;
use cxloe_link::{Link, LinkError};
use cxloe_wire::Transmit;
use cxloe_wire::time::Time;

/// A link with a clock. All frames that are received together get the same time, so the clock is read once for them,
/// and not at all if no frame arrives.
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
