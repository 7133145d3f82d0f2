//! Links of each kind on one interface: whether they open here, with what properties, and their times to another server.

use cxloe_lab::Interrupt;
use cxloe_link::udp::own_address;
use cxloe_link::{Backend, LinkConfig, LinkInfo, UdpConfig, open};
use cxloe_measure::MeasureError;
use cxloe_measure::echo::{EchoPlan, echo};
use cxloe_measure::report::Samples;
use cxloe_wire::frame::Mac;
use serde::Serialize;

/// Kind of a link, as far as two cards are compared by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LinkKind {
    Packet,
    Xdp,
    Udp,
    Dpdk,
}

impl LinkKind {
    /// Kinds that leave an interface as it is, but for a moment with a program for AF_XDP.
    pub const USUAL: [LinkKind; 3] = [LinkKind::Packet, LinkKind::Xdp, LinkKind::Udp];

    pub fn name(self) -> &'static str {
        match self {
            LinkKind::Packet => "packet",
            LinkKind::Xdp => "xdp",
            LinkKind::Udp => "udp",
            LinkKind::Dpdk => "dpdk",
        }
    }

    /// Value of `--link`; a device of DPDK is a link of its own.
    pub fn backend(self) -> Backend {
        match self {
            LinkKind::Packet => Backend::Packet,
            LinkKind::Xdp => Backend::Xdp,
            LinkKind::Udp => Backend::Udp,
            LinkKind::Dpdk => Backend::Auto,
        }
    }
}

/// Interface whose links are tried, and what is measured over them.
#[derive(Debug)]
pub struct LinkTrials {
    pub interface: String,
    /// Device of DPDK, with its prefix; `None` if there is none.
    pub device: Option<String>,
    pub udp: UdpConfig,
    pub priority: Option<u8>,
    /// Interface that answers echoes; `None` if no times are measured.
    pub peer: Option<Mac>,
    pub plan: EchoPlan,
    pub interrupt: Interrupt,
}

/// Link of one kind. A time that was not measured is `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LinkFinding {
    /// Name of the kind.
    pub link: &'static str,
    pub works: bool,
    /// Properties of the open link, or the reason why it does not open.
    pub detail: String,
    /// Longest frame in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_frame: Option<usize>,
    /// One exchange of a line read's frames with an end that only echoes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub echo64: Option<TimeFigures>,
    /// Such exchanges per second with many in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub echoes_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read64: Option<TimeFigures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write64: Option<TimeFigures>,
    /// Reasons why times that were asked for are missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unmeasured: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TimeFigures {
    pub p50_ns: f64,
    pub p99_ns: f64,
    pub p999_ns: f64,
    pub samples: u64,
}

impl TimeFigures {
    /// Figures of samples; `None` without any.
    pub fn of(samples: &Samples) -> Option<TimeFigures> {
        let all = samples.summary()?;
        Some(TimeFigures { p50_ns: all.p50, p99_ns: all.p99, p999_ns: all.p999, samples: all.count })
    }
}

impl LinkFinding {
    fn refused(kind: LinkKind, why: impl Into<String>) -> LinkFinding {
        LinkFinding { link: kind.name(), detail: why.into(), ..LinkFinding::default() }
    }
}

impl LinkTrials {
    /// Configuration of a link; `None` of DPDK without a device.
    pub fn config(&self, kind: LinkKind) -> Option<LinkConfig> {
        let interface = match kind {
            LinkKind::Dpdk => self.device.clone()?,
            _ => self.interface.clone(),
        };
        Some(LinkConfig {
            backend: kind.backend(),
            priority: self.priority,
            udp: self.udp.clone(),
            ..LinkConfig::new(interface)
        })
    }

    /// Link that `auto` takes, and why; or the reason why none works.
    pub fn automatic(&self) -> String {
        let config = LinkConfig { priority: self.priority, ..LinkConfig::new(&self.interface) };
        match open(&config) {
            Ok(link) => format!("{}: {}", link.info().backend, link.info().detail),
            Err(error) => format!("none: {error}"),
        }
    }

    /// Opens a link of one kind, and measures echoes over it.
    ///
    /// # Errors
    /// Returns [`MeasureError::Interrupted`]; all other errors are part of the finding.
    pub fn attempt(&self, kind: LinkKind, progress: &mut dyn FnMut()) -> Result<LinkFinding, MeasureError> {
        self.interrupt.check()?;
        let Some(config) = self.config(kind) else {
            let why = "the interface has no card on the PCI bus: name a device, as in \
                       --dpdk net_memif0,role=client,socket=PATH";
            return Ok(LinkFinding::refused(kind, why));
        };
        let mut link = match open(&config) {
            Ok(link) => link,
            Err(error) => return Ok(LinkFinding::refused(kind, error.to_string())),
        };
        let info = link.info().clone();
        let mut finding = LinkFinding {
            link: kind.name(),
            works: true,
            detail: info.detail.clone(),
            max_frame: Some(info.max_frame),
            ..LinkFinding::default()
        };
        if kind == LinkKind::Xdp {
            // Every AF_XDP socket of a link is bound with XDP_USE_NEED_WAKEUP, or the link does not open.
            finding.detail += ", need-wakeup";
        }
        let Some(peer) = self.peer else { return Ok(finding) };
        match echo(&mut *link, (peer, config.ethertype), self.plan, &self.interrupt, progress) {
            Ok(results) => {
                finding.echo64 = TimeFigures::of(&results.echo64);
                finding.echoes_per_s = results.pipelined.map(|rate| rate.ops_per_s);
            }
            Err(interrupted @ MeasureError::Interrupted(_)) => return Err(interrupted),
            Err(MeasureError::NoEcho(_)) => finding.unmeasured.push(self.silence(kind, &config, &info, peer)),
            Err(error) => finding.unmeasured.push(error.to_string()),
        }
        Ok(finding)
    }

    /// Advice for a peer that does not answer: the command to run there.
    fn silence(&self, kind: LinkKind, config: &LinkConfig, info: &LinkInfo, peer: Mac) -> String {
        let serve = "cxloe-bench echo -i INTERFACE --serve";
        match kind {
            LinkKind::Packet | LinkKind::Xdp | LinkKind::Dpdk => {
                format!("{peer} does not answer; start there: {serve}")
            }
            LinkKind::Udp => {
                let own = own_address(config).map_or_else(|_| "ADDRESS:PORT".into(), |own| own.to_string());
                format!(
                    "{peer} does not answer; name its address here by --udp-peer {peer}=ADDRESS:PORT, and start there: \
                     {serve} --link udp --udp-peer {}={own}",
                    info.mac
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trials(interface: &str, device: Option<&str>) -> LinkTrials {
        LinkTrials {
            interface: interface.into(),
            device: device.map(str::to_owned),
            udp: UdpConfig::default(),
            priority: Some(3),
            peer: None,
            plan: EchoPlan { trials: 1, operations: 10, depth: 1 },
            interrupt: Interrupt::never(),
        }
    }

    #[test]
    fn each_kind_has_its_configuration() {
        let here = trials("eth9", None);
        for kind in LinkKind::USUAL {
            let config = here.config(kind).unwrap();
            assert_eq!(config.backend.to_string(), kind.name());
            assert_eq!((config.interface.as_str(), config.priority), ("eth9", Some(3)));
        }
        assert_eq!(here.config(LinkKind::Dpdk), None);
        let device = trials("eth9", Some("dpdk:0000:03:00.0")).config(LinkKind::Dpdk).unwrap();
        assert!(device.interface == "dpdk:0000:03:00.0" && device.backend.is_auto());
    }

    #[test]
    fn what_does_not_open_has_a_reason() {
        let nowhere = trials("no-such-nic", None);
        for kind in [LinkKind::Packet, LinkKind::Dpdk] {
            let finding = nowhere.attempt(kind, &mut || ()).unwrap();
            assert!(!finding.works && !finding.detail.is_empty(), "{finding:?}");
        }
        assert!(nowhere.automatic().starts_with("none: "), "{}", nowhere.automatic());
    }
}
