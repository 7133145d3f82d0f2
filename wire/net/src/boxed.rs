//! `Link` for boxed links, so that a middleware can wrap a link of any type.

use crate::{Link, pass_on};

impl<L: Link + ?Sized> Link for Box<L> {
    pass_on!(self => **self; info receive peek holds transmit flush has_unsent wait readiness sleep_max sift counters reopened);
}
