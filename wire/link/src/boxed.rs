//! A boxed link is a link, so that middlewares go around whatever [`open`](super::open) has chosen.

use std::os::fd::RawFd;
use std::time::Duration;

use super::{Link, LinkCounters, LinkError, LinkInfo, OnFrame};
use cxloe_wire::Transmit;

impl<L: Link + ?Sized> Link for Box<L> {
    fn info(&self) -> &LinkInfo {
        (**self).info()
    }

    fn receive(&mut self, budget: usize, on_frame: &mut OnFrame<'_>) -> Result<usize, LinkError> {
        (**self).receive(budget, on_frame)
    }

    fn peek(&mut self, budget: usize, look: &mut dyn FnMut(&[u8])) {
        (**self).peek(budget, look);
    }

    fn holds(&mut self, count: usize) -> bool {
        (**self).holds(count)
    }

    fn transmit(&mut self) -> &mut dyn Transmit {
        (**self).transmit()
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        (**self).flush()
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError> {
        (**self).wait(timeout)
    }

    fn readiness(&self) -> Option<RawFd> {
        (**self).readiness()
    }

    fn counters(&mut self) -> LinkCounters {
        (**self).counters()
    }

    fn reopened(&self) -> u32 {
        (**self).reopened()
    }
}
