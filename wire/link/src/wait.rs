//! Waiting: what a thread that polls links does when nothing has arrived.
//!
//! Waking a thread that sleeps in the kernel costs 10-40 us on a virtual machine, a few us on bare metal:
//! more than everything else on a line's way. Spinning costs a core. [`WaitStyle`] is the choice between the
//! two and [`Waiter`] carries it out as a pure decision: after each round of polling the thread tells it how
//! much there was to do and the time, and it answers with [`Idle`]: poll again, or sleep in the kernel for at
//! most so long. The thread does the sleeping ([`Link::wait`](super::Link::wait)), so the same decision
//! serves one link or many descriptors, and virtual time as well as the real one.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use cxloe_wire::time::Time;

/// How a thread that polls waits for work. Written `busy`, `adaptive`, `adaptive:100us` or `sleep`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum WaitStyle {
    /// Never sleeps. Lowest latency; one whole core, always.
    Busy,
    /// Spins for `spin` after the last thing that arrived, then sleeps in the kernel. Under load as fast as
    /// [`WaitStyle::Busy`]; at rest each arrival costs at most `spin` of CPU and one wake: a daemon that gets
    /// ten keep-alives a second uses 0.05-0.1 % of a core.
    ///
    /// What arrives shortly after the thread went to sleep pays for a wake each time, as the requests of a program that computes
    /// a while between two page faults do. So the thread spins longer, up to [`Waiter::LONGER`] times `spin`, for as long as
    /// that would have met what arrives, and as briefly as before once pauses are longer than that.
    Adaptive {
        /// How long to go on polling without result.
        spin: Duration,
    },
    /// Sleeps as soon as there is nothing. Every arrival at rest pays for a wake; no CPU is spent on polling.
    Sleep,
}

impl WaitStyle {
    /// The spin of plain `adaptive`: a few round trips, and about what a wake costs.
    pub const SPIN_DEFAULT: Duration = Duration::from_micros(50);
    /// The longest spin accepted; who wants more wants [`WaitStyle::Busy`].
    pub const SPIN_MAX: Duration = Duration::from_millis(100);
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

/// A text that names no way of waiting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitStyleError {
    /// Not one of the styles.
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

impl TryFrom<String> for WaitStyle {
    type Error = WaitStyleError;
    fn try_from(text: String) -> Result<Self, WaitStyleError> {
        text.parse()
    }
}

impl From<WaitStyle> for String {
    fn from(style: WaitStyle) -> String {
        style.to_string()
    }
}

/// What to do after a round of polling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Poll again at once.
    Poll,
    /// Sleep in the kernel until something arrives, at most this long (never zero).
    Sleep(Duration),
}

/// Decides between polling and sleeping for one thread.
#[derive(Clone, Debug)]
pub struct Waiter {
    style: WaitStyle,
    active: Time,
    /// How long it spins at present.
    spin: Duration,
}

impl Waiter {
    /// The longest sleep without a deadline, so that a thread sees in time that it is to stop. Ten such wakes
    /// a second cost well under 0.1 % of a core.
    pub const SLEEP_MAX: Duration = Duration::from_millis(100);
    /// How many times as long as asked for an adaptive waiter spins at most.
    pub const LONGER: u32 = 8;

    /// A waiter that has seen nothing arrive yet.
    pub fn new(style: WaitStyle) -> Self {
        let spin = match style {
            WaitStyle::Adaptive { spin } => spin,
            WaitStyle::Busy | WaitStyle::Sleep => Duration::ZERO,
        };
        Waiter { style, active: Time::ZERO, spin }
    }

    /// The style it was made with.
    pub fn style(&self) -> WaitStyle {
        self.style
    }

    /// What to do after a round that found `received` things to do (frames, or operations of another kind)
    /// and ended at `now`. `deadline` is when the caller has something to do by itself, a time-out for one; a
    /// sleep ends no later. A deadline that has passed is work waiting: poll.
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

    /// Something has arrived after a pause in which the thread went to sleep: would it have been worth to spin?
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
        // Woken by the deadline: it is work, but nothing arrived, so there is no new spin after it.
        assert_eq!(w.after(0, at(1_500), Some(at(1_500))), Idle::Poll);
        assert_eq!(w.after(0, at(1_501), Some(at(9_000))), Idle::Sleep(Duration::from_micros(7_499)));
        // An arrival starts the spin anew.
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
        // Pauses of 90 us: the second and all behind it are spun through.
        w.after(1, at(1_000_090), None);
        assert_eq!(spins(&mut w, 1_000_090), 180);
        w.after(1, at(1_000_180), None);
        assert_eq!(spins(&mut w, 1_000_180), 180);
        // Never longer than eight times as long.
        w.after(1, at(1_000_580), None);
        assert_eq!(spins(&mut w, 1_000_580), 400);
        // After long pauses as long as before.
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
