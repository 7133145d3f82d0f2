//! Connection of a program that is a compute node itself: the program registers with the manager under its
//! interface's address, gets a region, and accesses it through a line port in its own process.

mod compute_node;

use std::time::Duration;

pub use crate::access::{Access, AccessError};
pub use crate::following::FollowError;
use crate::port::{Port, PortError};
use crate::rate_control::RateControl;
pub(crate) use compute_node::{ComputeNode, TemporaryRegion, cn_of};
use cxloe_cn_core::attach::AttachError;
use cxloe_cn_core::attachments::Attachment;
use cxloe_fabric::ClientError;
use cxloe_fabric::hdm::{Granularity, Ways};
use cxloe_fabric::model::{CnId, MacError, Name, NameError, Region};
use cxloe_link::wait::WaitStyle;
use cxloe_link::{LinkConfig, LinkError, Middlewares, open_with};
use cxloe_wire::frame::{Mac, SHARDS_MAX};

/// Parameters of a connection: link, manager, region and waiting.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Prefix for the name of this compute node at the manager, to which the node's address is appended, and for the
    /// name of a new region, to which a number is appended.
    pub name: String,
    /// Interface and implementation of the link.
    pub link: LinkConfig,
    /// Layers over the link for fault injection and frame recording.
    pub extras: Middlewares,
    /// Behaviour of the port's thread while it waits: spinning or sleeping.
    pub wait: WaitStyle,
    /// URL of the manager, or several, separated by commas.
    pub manager: String,
    /// Options for credentials and the node's key.
    pub access: Access,
    /// Name of an existing region of this node; `None` for a new region, which is destroyed afterwards.
    pub region: Option<String>,
    /// Size of a new region in bytes.
    pub size: u64,
    /// Number of memory nodes of a new region.
    pub ways: Ways,
    /// Interleave granularity of a new region in bytes.
    pub granularity: Granularity,
    /// Longest wait for the sessions with the region's memory nodes to open.
    pub timeout: Duration,
    /// Rate control of requests; `None` turns it off.
    pub rate_control: Option<RateControl>,
}

/// Failure to open the link, to register with the manager, or to attach the region.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The link failed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A call of the manager failed.
    #[error(transparent)]
    Manager(#[from] ClientError),
    /// The interface's address cannot be a CN id.
    #[error("interface `{interface}`: {source}")]
    CnId {
        /// Name of the interface whose address is unsuitable.
        interface: String,
        /// Reason why the address is no CN id.
        source: MacError,
    },
    /// This process already has a port on the interface.
    #[error(
        "this program has a port on interface `{interface}` (CN {own}) already, and an interface has one at a time: \
         close that one first, use another interface, or map all regions inline, which share one"
    )]
    Taken {
        /// Name of the interface with the other port.
        interface: String,
        /// CN id of the interface.
        own: CnId,
    },
    /// This process already uses the interface with other options.
    #[error(
        "this program has a region over interface `{interface}` (CN {own}) already, by another link, manager or key: \
         map all regions of an interface by the same, or close that one first"
    )]
    OtherWay {
        /// Name of the interface in use.
        interface: String,
        /// CN id of the interface.
        own: CnId,
    },
    /// The region's name is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The region belongs to another compute node.
    #[error(
        "region `{region}` belongs to CN {owner}, and this one is {own}; create one with `gmm create-region --owner {own}`"
    )]
    NotOurs {
        /// Name of the region to be used.
        region: Name,
        /// CN id of the region's owner.
        owner: CnId,
        /// CN id of this compute node.
        own: CnId,
    },
    /// The region has two copies, or is being moved: a port does not write to two copies.
    #[error(
        "region `{0}` is mirrored, or a part of it is being moved: programs with a link of their own do not write two \
         copies; use it through `cn-agent`, or give a copy up with `gmm protect {0} none`"
    )]
    Mirrored(Name),
    /// The region is sealed, and a port needs a region that can be written.
    #[error(
        "region `{0}` is sealed: programs with a link of their own take regions that they can write; read it through `cn-agent`"
    )]
    Sealed(Name),
    /// Attaching the region failed.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// Credentials or key are missing or unusable.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The thread that renews the certificate could not be started.
    #[error("no thread for the certificate can be started: {0}")]
    Renewer(std::io::Error),
    /// The registration failed, or this node refuses the manager's answer.
    #[error(transparent)]
    Follow(#[from] FollowError),
    /// The thread that receives changes from the manager could not be started.
    #[error("no thread that follows the manager can be started: {0}")]
    Follower(std::io::Error),
    /// The thread for handshakes could not be started.
    #[error("no thread for handshakes can be started: {0}")]
    Thread(std::io::Error),
    /// The port failed, or its sessions did not open in time.
    #[error(transparent)]
    Port(#[from] PortError),
}

/// A line port to a region, and the lease of the region, which has to be ended after use.
pub struct Connected {
    /// Line port to the region, without a line cache.
    pub port: Port,
    /// Description of the region by the manager.
    pub region: Region,
    /// First HPA of the region.
    pub hpa: u64,
    /// Address of the region's first memory node.
    pub peer: Mac,
    /// Registration and temporary region, which end with the lease.
    pub lease: Lease,
}

/// Line ports to a region, one for each shard of this compute node. Each has its own queue, engine and session, for a
/// thread of its own. The user ensures that no line is accessed through two of them.
pub struct Shards {
    /// The ports, without line caches, by shard.
    pub ports: Vec<Port>,
    /// Description of the region by the manager.
    pub region: Region,
    /// First HPA of the region.
    pub hpa: u64,
    /// Address of the region's first memory node.
    pub peer: Mac,
    /// Registration and temporary region, which end with the lease.
    pub lease: Lease,
}

/// The registration, and the region if it is temporary: both end by [`end`](Self::end), or when this is dropped.
pub struct Lease {
    node: ComputeNode,
    temporary: Option<TemporaryRegion>,
}

/// Longest time for the destruction of a temporary region, in milliseconds.
pub(crate) const DESTROY_WAIT_MS: u64 = 10_000;

/// HPA of the region; not 0, so that errors in address arithmetic show.
pub(crate) const HPA: u64 = 1 << 32;

impl Connected {
    /// Opens the link, registers with the manager, gets the region and waits for the sessions.
    ///
    /// # Errors
    /// Any [`ConnectError`].
    pub fn open(options: &ConnectOptions) -> Result<Connected, ConnectError> {
        let Shards { mut ports, region, hpa, peer, lease } = Shards::open(options, 1)?;
        Ok(Connected { port: ports.remove(0), region, hpa, peer, lease })
    }
}

impl Shards {
    /// Opens a link for each of `shards` queues (1 to 16), registers with the manager, gets the region and waits for
    /// the sessions.
    ///
    /// # Errors
    /// Any [`ConnectError`].
    pub fn open(options: &ConnectOptions, shards: u8) -> Result<Shards, ConnectError> {
        let queues = u32::from(shards.clamp(1, SHARDS_MAX));
        let links = (0..queues).map(|queue| {
            let link = LinkConfig { queue, queues, sharded: queues > 1, ..options.link.clone() };
            open_with(&link, &options.extras)
        });
        let links = links.collect::<Result<Vec<_>, _>>()?;
        let node = ComputeNode::register(options, links[0].info().clone())?;
        // If a later step fails, dropping the lease gives the region back.
        let mut lease = Lease { node, temporary: None };
        let region = lease.node.region(options, &mut lease.temporary)?;
        let attachment = Attachment::over_ethernet(region.clone(), HPA, region.size);
        let mut ports = Vec::with_capacity(links.len());
        for (shard, link) in (0..).zip(links) {
            let mut port = lease.node.port(link, shard, options)?;
            let now = port.clock().now();
            lease.node.station().attach(port.engine(), &attachment, now)?;
            port.connect(options.timeout)?;
            ports.push(port);
        }
        lease.node.follow()?;
        let peer = region.legs.first().and_then(|leg| leg.mac()).map_or(Mac::default(), |mac| Mac(mac.0));
        Ok(Shards { ports, region, hpa: HPA, peer, lease })
    }
}

impl Lease {
    /// Destroys the temporary region, if there is one, and ends the registration.
    pub fn end(mut self) -> Result<(), ConnectError> {
        self.temporary.take().map_or(Ok(()), |region| self.node.destroy(&region, DESTROY_WAIT_MS))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(region) = self.temporary.take() {
            self.node.abandon(&region);
        }
    }
}
