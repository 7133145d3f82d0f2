//! A boxed link is a link, so that middlewares go around whatever [`open`](super::open()) has chosen.

use super::Link;
use super::link::pass_on;

impl<L: Link + ?Sized> Link for Box<L> {
    pass_on!(self => **self; info receive peek holds transmit flush has_unsent wait readiness sift counters reopened);
}
