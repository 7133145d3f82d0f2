//! Rate control as an option: what a user may set of the controller, and how it is put to work on a link.

use std::path::Path;
use std::time::Duration;

use cxloe_cc::Config;
use cxloe_link::ethtool::Ethtool;
use cxloe_link::limit::Rate;
use cxloe_link::{LinkError, LinkInfo};
use cxloe_wire::time::Time;

use crate::signals::{SignalConfig, Signals};
use cxloe_cn_core::engine::{BUCKET_DEFAULT, Engine, Pacing};

/// The link's rate where the interface knows none: virtual ones often do not.
const LINK_RATE_UNKNOWN: Rate = Rate::gbit_per_s(10);
/// The link's rate where datagrams leave by no wire of this machine.
const LINK_RATE_NO_WIRE: Rate = Rate::gbit_per_s(100);
/// The controller's times, shortest and longest.
const TIMES: std::ops::RangeInclusive<Duration> = Duration::from_micros(1)..=Duration::from_secs(10);
/// The bucket, smallest and largest: a frame, and more than any queue holds.
const BUCKETS: std::ops::RangeInclusive<u64> = 1_500..=16 << 20;

/// What was set. The default is the paper's controller at the interface's speed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateControl {
    /// The link's rate; `None`: what the interface says.
    pub link: Option<Rate>,
    /// t1 to t6 of the controller; `None`: the paper's.
    pub times: [Option<Duration>; 6],
    /// A step of the controller's increment exploration; `None`: a hundredth of the link's rate, which is the paper's
    /// 1 Gbit/s at 100 Gbit/s.
    pub increment: Option<Rate>,
    /// Bytes that may leave at once after a rest.
    pub bucket: u64,
    /// Whether bare 802.1Qbb frames at the interface, and the NIC's count of them, slow requests down as well. Anybody at
    /// the cable can send such frames.
    pub trust_pfc: bool,
    /// The NIC's statistic that counts PFC frames, where these are trusted; `None`: the one known of its driver.
    pub nic_counter: Option<String>,
}

impl Default for RateControl {
    fn default() -> Self {
        RateControl {
            link: None,
            times: [None; 6],
            increment: None,
            bucket: BUCKET_DEFAULT,
            trust_pfc: false,
            nic_counter: None,
        }
    }
}

impl RateControl {
    /// Checks what was set.
    ///
    /// # Errors
    /// The option's name, and what would be right.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        const NAMES: [&str; 6] = ["cc-t1", "cc-t2", "cc-t3", "cc-t4", "cc-t5", "cc-t6"];
        for (name, time) in NAMES.iter().zip(self.times) {
            if time.is_some_and(|time| !TIMES.contains(&time)) {
                return Err((name, "choose 1us to 10s".into()));
            }
        }
        if self.nic_counter.is_some() && !self.trust_pfc {
            let why = "it counts PFC frames, which slow this node down only with --pfc trust";
            return Err(("pfc-counter", why.into()));
        }
        if !BUCKETS.contains(&self.bucket) {
            return Err(("cc-bucket", format!("{} bytes is out of range; choose 1500 to 16M", self.bucket)));
        }
        Ok(())
    }

    /// The controller's configuration on a link of `rate`.
    pub fn config(&self, rate: Rate) -> Config {
        let mut config = Config::for_link(rate.get());
        let Config { t1, t2, t3, t4, t5, t6, .. } = &mut config;
        for (time, set) in [t1, t2, t3, t4, t5, t6].into_iter().zip(self.times) {
            *time = set.unwrap_or(*time);
        }
        if let Some(increment) = self.increment {
            config.increment = increment.get().min(config.link);
        }
        config
    }

    /// Has `engine` pace its requests over `link`, in which our frames are of the PFC class `class`. Returns what
    /// signals pauses. To be called in the link's network namespace.
    ///
    /// # Errors
    /// [`LinkError`] of the signals.
    pub fn apply(
        &self,
        engine: &mut Engine,
        link: &LinkInfo,
        class: u8,
        now: Time,
    ) -> Result<Signals, LinkError> {
        let speed = || Ethtool::open(&link.interface).ok().and_then(|ethtool| ethtool.speed());
        let over_udp = link.backend == "udp";
        let rate = match self.link {
            Some(rate) => rate,
            // What a virtual interface says of its rate, if anything, is of no wire that datagrams would pass.
            None if over_udp && !has_device(&link.interface) => LINK_RATE_NO_WIRE,
            None => speed().unwrap_or(LINK_RATE_UNKNOWN),
        };
        let control = self.config(rate);
        engine.set_pacing(Some(Pacing { control, bucket: self.bucket, class }), now);
        tracing::info!(interface = %link.interface, %rate, class, "rate control is on");
        if over_udp || !self.trust_pfc {
            // By UDP no pause frame comes; others may be anybody's. What memory nodes say in their sessions is all there is.
            return Ok(Signals::default());
        }
        Signals::open(&SignalConfig {
            interface: link.interface.clone(),
            class,
            nic_counter: self.nic_counter.clone(),
        })
    }
}

/// Whether an interface is that of a device.
fn has_device(interface: &str) -> bool {
    Path::new("/sys/class/net").join(interface).join("device").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_set_is_the_papers() {
        let rate = Rate::gbit_per_s(100);
        assert_eq!(RateControl::default().config(rate), Config::for_link(rate.get()));
        let us = Duration::from_micros;
        let set = RateControl {
            times: [None, None, None, Some(us(400)), None, Some(us(7))],
            increment: Some(Rate::gbit_per_s(5)),
            ..RateControl::default()
        };
        let paper = Config::for_link(rate.get());
        assert_eq!(set.config(rate), Config { t4: us(400), t6: us(7), increment: 5_000_000_000, ..paper });
        assert_eq!(set.check(), Ok(()));
        // Nobody without a session slows a node down unless that was asked for.
        assert!(!RateControl::default().trust_pfc);
        let counts = RateControl { nic_counter: Some("rx_pause".into()), ..RateControl::default() };
        assert!(
            counts.check().is_err_and(|(name, why)| name == "pfc-counter" && why.contains("--pfc trust"))
        );
        assert_eq!(RateControl { trust_pfc: true, ..counts }.check(), Ok(()));
    }
}
