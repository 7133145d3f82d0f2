//! Waiting of a thread that polls links, when nothing has arrived.
//!
//! To wake a thread that sleeps in the kernel takes 10-40 us on a virtual machine and a few us on bare metal, more than
//! all other costs of an access to remote memory. Spinning takes a whole core. [`WaitStyle`] is the choice between the
//! two, and [`Waiter`] makes the decisions, without I/O: after each round of polling it gets the number of frames
//! handled and the time, and returns an [`Idle`]: poll again, or sleep in the kernel for at most a given time. The
//! caller does the sleeping ([`Link::wait`](super::Link::wait)), so the same code serves a single link or many
//! descriptors, in virtual or real time. A thread that shares its CPU with the programs it serves uses
//! [`idle::IdlePolicy`].

pub mod idle;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use cxloe_wire::time::Time;

/// Way in which a polling thread waits. Written `busy`, `adaptive`, `adaptive:100us` or `sleep`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum WaitStyle {
    /// Never sleeps. Lowest latency, but takes one whole core all the time.
    Busy,
    /// Spins for `spin` after the last arrival, then sleeps in the kernel. Under load it is as fast as
    /// [`WaitStyle::Busy`]. At rest each arrival costs at most `spin` of CPU time and one wake: a daemon that
    /// gets ten keep-alives a second uses 0.05-0.1 % of a core.
    ///
    /// A frame that arrives shortly after the thread went to sleep costs a wake, for example when a program
    /// computes for a while between two page faults. So the thread spins longer, up to [`Waiter::LONGER`]
    /// times `spin`, as long as arrivals come within that time. Once pauses are longer, it spins for `spin`
    /// again.
    Adaptive {
        /// Time to spin after the last arrival.
        spin: Duration,
    },
    /// Sleeps as soon as nothing has arrived. Each arrival at rest costs a wake; no CPU time is spent on
    /// polling.
    Sleep,
}

impl WaitStyle {
    /// Spin of plain `adaptive`: a few round trips, and about as long as a wake takes.
    pub(crate) const SPIN_DEFAULT: Duration = Duration::from_micros(50);
    /// Maximum spin; for longer spins there is [`WaitStyle::Busy`].
    pub(crate) const SPIN_MAX: Duration = Duration::from_millis(100);
}

impl Default for WaitStyle {
    fn default() -> Self {
        WaitStyle::Adaptive { spin: Self::SPIN_DEFAULT }
    }
}

impl fmt::Display for WaitStyle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WaitStyle::Busy => f.write_str("busy"),
            WaitStyle::Adaptive { spin } => write!(f, "adaptive:{}", humantime::format_duration(*spin)),
            WaitStyle::Sleep => f.write_str("sleep"),
        }
    }
}

/// Reason why a text is not a wait style; the message names the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitStyleError {
    /// The text is not one of the styles.
    #[error(
        "no way of waiting named `{0}`: choose busy, adaptive, adaptive:TIME (as in adaptive:100us) or sleep"
    )]
    Unknown(String),
    /// The time after `adaptive:` cannot be read or is too long.
    #[error(
        "`{0}` is not a time to spin: write a number and its unit, up to 100ms, for example adaptive:100us"
    )]
    Spin(String),
}

impl FromStr for WaitStyle {
    type Err = WaitStyleError;

    fn from_str(text: &str) -> Result<Self, WaitStyleError> {
        match text.split_once(':') {
            None if text == "busy" => Ok(WaitStyle::Busy),
            None if text == "adaptive" => Ok(WaitStyle::default()),
            None if text == "sleep" => Ok(WaitStyle::Sleep),
            Some(("adaptive", time)) => match humantime::parse_duration(time) {
                Ok(spin) if spin <= Self::SPIN_MAX => Ok(WaitStyle::Adaptive { spin }),
                _ => Err(WaitStyleError::Spin(time.to_owned())),
            },
            _ => Err(WaitStyleError::Unknown(text.to_owned())),
        }
    }
}

cxloe_wire::spelled!(WaitStyle);

/// Next step of the thread after a round of polling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Poll again at once: frames have just come, or the spin is not over.
    Poll,
    /// Sleep in the kernel until something arrives, at most for this time (never zero).
    Sleep(Duration),
}

/// Decides for one thread between polling and sleeping, from arrivals and time alone.
#[derive(Clone, Debug)]
pub struct Waiter {
    style: WaitStyle,
    active: Time,
    /// Current spin, between the configured one and [`Waiter::LONGER`] times as much.
    spin: Duration,
}

impl Waiter {
    /// Maximum sleep if there is no deadline: the thread must soon notice a request to stop. Ten such wakes a second
    /// take well under 0.1 % of a core.
    pub const SLEEP_MAX: Duration = Duration::from_millis(100);
    /// Maximum factor by which an adaptive waiter lengthens the configured spin.
    pub const LONGER: u32 = 8;

    /// Makes a waiter that has had no arrival yet.
    pub fn new(style: WaitStyle) -> Self {
        let spin = match style {
            WaitStyle::Adaptive { spin } => spin,
            WaitStyle::Busy | WaitStyle::Sleep => Duration::ZERO,
        };
        Waiter { style, active: Time::ZERO, spin }
    }

    /// Style given to [`new`](Self::new).
    pub fn style(&self) -> WaitStyle {
        self.style
    }

    /// Decides after a round that handled `received` items (frames, or other operations) and ended at `now`.
    /// `deadline` is the time of the caller's next action, such as a time-out; a sleep ends no later. If the
    /// deadline has passed, there is work, so the answer is to poll.
    #[inline]
    pub fn after(&mut self, received: usize, now: Time, deadline: Option<Time>) -> Idle {
        if received > 0 {
            let pause = now.since(std::mem::replace(&mut self.active, now));
            if let WaitStyle::Adaptive { spin } = self.style
                && pause > self.spin
            {
                self.learn(pause, spin);
            }
            return Idle::Poll;
        }
        if self.style == WaitStyle::Busy || now.since(self.active) < self.spin {
            return Idle::Poll;
        }
        match deadline.map_or(Self::SLEEP_MAX, |at| at.since(now).min(Self::SLEEP_MAX)) {
            Duration::ZERO => Idle::Poll,
            max => Idle::Sleep(max),
        }
    }

    /// Adapts the spin after a pause between arrivals in which the thread slept: lengthens the spin if the longest
    /// permitted one would have lasted until the arrival, else shortens it.
    #[cold]
    fn learn(&mut self, pause: Duration, least: Duration) {
        let most = (least * Self::LONGER).min(WaitStyle::SPIN_MAX);
        self.spin = if pause <= most { (pause * 2).min(most) } else { (self.spin / 2).max(least) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;

    fn at(us: u64) -> Time {
        Time(us * US)
    }

    #[test]
    fn texts() {
        assert_eq!("busy".parse(), Ok(WaitStyle::Busy));
        assert_eq!("sleep".parse(), Ok(WaitStyle::Sleep));
        assert_eq!("adaptive".parse(), Ok(WaitStyle::Adaptive { spin: Duration::from_micros(50) }));
        assert_eq!("adaptive:100us".parse(), Ok(WaitStyle::Adaptive { spin: Duration::from_micros(100) }));
        for style in ["busy", "sleep", "adaptive:50us", "adaptive:1ms 500us"] {
            assert_eq!(style.parse::<WaitStyle>().unwrap().to_string(), style);
            let json = serde_json::to_string(&style.parse::<WaitStyle>().unwrap()).unwrap();
            assert_eq!(json, format!("\"{style}\""));
            assert_eq!(serde_json::from_str::<WaitStyle>(&json).unwrap().to_string(), style);
        }
        assert_eq!("adaptive:1s".parse::<WaitStyle>(), Err(WaitStyleError::Spin("1s".into())));
        assert_eq!("adaptive:".parse::<WaitStyle>(), Err(WaitStyleError::Spin("".into())));
        for wrong in ["", "Busy", "sleep:1ms", "spin"] {
            assert_eq!(wrong.parse::<WaitStyle>(), Err(WaitStyleError::Unknown(wrong.into())));
        }
    }

    #[test]
    fn busy_never_sleeps() {
        let mut w = Waiter::new(WaitStyle::Busy);
        assert_eq!(w.after(0, at(1_000_000), None), Idle::Poll);
        assert_eq!(w.after(3, at(1_000_001), Some(at(2_000_000))), Idle::Poll);
    }

    #[test]
    fn adaptive_spins_then_sleeps() {
        let mut w = Waiter::new(WaitStyle::default());
        assert_eq!(w.after(1, at(1_000), None), Idle::Poll);
        assert_eq!(w.after(0, at(1_049), None), Idle::Poll);
        assert_eq!(w.after(0, at(1_050), None), Idle::Sleep(Waiter::SLEEP_MAX));
        assert_eq!(w.after(0, at(1_060), Some(at(1_500))), Idle::Sleep(Duration::from_micros(440)));
        // The deadline woke the thread. That is work but not an arrival, so no new spin follows.
        assert_eq!(w.after(0, at(1_500), Some(at(1_500))), Idle::Poll);
        assert_eq!(w.after(0, at(1_501), Some(at(9_000))), Idle::Sleep(Duration::from_micros(7_499)));
        // An arrival starts a new spin.
        assert_eq!(w.after(2, at(2_000), None), Idle::Poll);
        assert_eq!(w.after(0, at(2_010), None), Idle::Poll);
    }

    #[test]
    fn adaptive_spins_longer_where_that_saves_a_wake() {
        let mut w = Waiter::new(WaitStyle::default());
        let spins = |w: &mut Waiter, last: u64| {
            let polls = (0..).take_while(|us| w.after(0, at(last + us), None) == Idle::Poll);
            polls.count() as u64
        };
        w.after(1, at(1_000_000), None);
        assert_eq!(spins(&mut w, 1_000_000), 50);
        // Pauses of 90 us: the thread spins through the second and all later ones.
        w.after(1, at(1_000_090), None);
        assert_eq!(spins(&mut w, 1_000_090), 180);
        w.after(1, at(1_000_180), None);
        assert_eq!(spins(&mut w, 1_000_180), 180);
        // The spin is never longer than eight times the configured one.
        w.after(1, at(1_000_580), None);
        assert_eq!(spins(&mut w, 1_000_580), 400);
        // After long pauses the spin shrinks to the configured one.
        for (number, spun) in [200, 100, 50, 50].into_iter().enumerate() {
            let now = 2_000_000 + number as u64 * 100_000;
            w.after(1, at(now), None);
            assert_eq!(spins(&mut w, now), spun);
        }
    }

    #[test]
    fn sleep_sleeps_at_once() {
        let mut w = Waiter::new(WaitStyle::Sleep);
        assert_eq!(w.after(1, at(10), None), Idle::Poll);
        assert_eq!(w.after(0, at(10), None), Idle::Sleep(Waiter::SLEEP_MAX));
        assert_eq!(w.after(0, at(10), Some(at(9))), Idle::Poll);
    }
}
