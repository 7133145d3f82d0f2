//! Throw-away networks on one machine.
//!
//! A [`Lab`] is a set of network namespaces joined by veth pairs, bridges and macvlans. The namespaces have no name in
//! `/run/netns`: they exist only as file descriptors of this process (and of the processes started inside), so when
//! those end, by whatever signal, the kernel takes the namespaces and every interface, address and XDP program in them
//! away.
//!
//! How a lab is used:
//! 1. `main` calls [`become_private_user_namespace`] first; an ordinary user gets the rights a lab needs that way.
//! 2. [`Lab::builder`] describes the network (or [`Lab::star`], a switch with nodes around it), [`Builder::build`] makes it with the `ip` tool.
//! 3. [`Lab::enter`] runs a closure inside a namespace, [`Namespace::join`] moves a thread there for good, and
//!    [`Lab::spawn`] starts a program there, held by a [`Process`] guard.
//! 4. [`Interrupt`] turns Ctrl-C into an ordinary return, so that the guards get their turn.
//!
//! A [`NamedLab`] is one with daemons that outlives the command that makes it, for people who try things out.
//!
//! Each thread or process inside sees a `/sys` of its own, which lists the interfaces of its namespace.
//!
//! ```no_run
//! use cxloe_lab::Lab;
//!
//! let lab = Lab::builder()
//!     .namespace("cn")
//!     .namespace("mn")
//!     .veth("cn", "cn0", "mn", "mn0")
//!     .address("cn0", "10.77.0.1/24")
//!     .address("mn0", "10.77.0.2/24")
//!     .build()?;
//! let server = lab.enter("mn", || std::net::UdpSocket::bind("10.77.0.2:0"))??;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod builder;
mod error;
mod host;
mod interrupt;
mod ip;
mod logs;
mod named;
mod namespace;
mod privilege;
mod process;
mod programs;
mod star;

use std::collections::BTreeMap;
use std::process::Command;

pub use builder::Builder;
pub use error::LabError;
pub use host::Host;
pub use interrupt::{Interrupt, Interrupted};
pub use logs::{LogScope, expect_error, unexpected_errors, verdict};
pub use named::{Change, NAMED_NODES_MAX, NamedError, NamedLab, Settings, keep};
pub use namespace::Namespace;
pub use privilege::{Standing, become_private_user_namespace, may_make_labs};
pub use process::Process;
pub use programs::program;
pub use star::{STAR_NODES_MAX, compute_node_mac, memory_node_mac};

use process::Spawner;

/// A network of namespaces, alive as long as this value or a process or socket inside one of them.
#[derive(Debug)]
pub struct Lab {
    namespaces: Vec<Namespace>,
    /// Interface name -> index of the namespace it lives in.
    interfaces: BTreeMap<String, usize>,
    spawner: Spawner,
}

impl Lab {
    /// Starts the description of a lab.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The namespace called `name`; a clone of it may be carried to another thread.
    ///
    /// # Errors
    /// [`LabError::UnknownNamespace`] when the lab has none of that name.
    pub fn namespace(&self, name: &str) -> Result<&Namespace, LabError> {
        self.namespaces
            .iter()
            .find(|n| n.name() == name)
            .ok_or_else(|| LabError::UnknownNamespace { namespace: name.into() })
    }

    /// Runs `work` on a thread inside the namespace `name` and waits for its result; see [`Namespace::enter`].
    ///
    /// # Errors
    /// An unknown name, or a kernel that refuses to let the thread in.
    pub fn enter<T: Send>(&self, name: &str, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        self.namespace(name)?.enter(work)
    }

    /// Starts `command` inside the namespace `name`.
    ///
    /// Standard streams are as `command` says (inherited unless changed; [`Process::log_to`] sends them to a file). The
    /// program leads a process group of its own, so Ctrl-C in a terminal reaches this process only, which then ends
    /// its guards in order; and the kernel kills it should this process die without doing so.
    ///
    /// # Errors
    /// An unknown name, or a program that cannot be started.
    pub fn spawn(&self, name: &str, command: Command) -> Result<Process, LabError> {
        self.spawner.spawn(self.namespace(name)?, command)
    }

    /// Takes the interface down; its peer loses carrier.
    ///
    /// # Errors
    /// An unknown interface, or `ip` refusing.
    pub fn link_down(&self, interface: &str) -> Result<(), LabError> {
        ip::run(self.home_of(interface)?, &["link", "set", "dev", interface, "down"])
    }

    /// Brings the interface up again. Addresses survive both ways.
    ///
    /// # Errors
    /// An unknown interface, or `ip` refusing.
    pub fn link_up(&self, interface: &str) -> Result<(), LabError> {
        ip::run(self.home_of(interface)?, &["link", "set", "dev", interface, "up"])
    }

    /// Deletes the interface, and with it the other end of its cable.
    ///
    /// # Errors
    /// An unknown interface, or `ip` refusing.
    pub fn delete_link(&self, interface: &str) -> Result<(), LabError> {
        ip::run(self.home_of(interface)?, &["link", "delete", "dev", interface])
    }

    /// Makes a cable that was deleted again, between interfaces of the names it had, with these MAC addresses, and
    /// brings it up.
    ///
    /// # Errors
    /// An unknown interface, or `ip` refusing.
    pub fn make_link_again(&self, [(a, mac_a), (b, mac_b)]: [(&str, &str); 2]) -> Result<(), LabError> {
        let peer = self.home_of(b)?.path();
        let near = ["link", "add", "name", a, "address", mac_a, "type", "veth", "peer"];
        ip::run(self.home_of(a)?, &[&near[..], &["name", b, "address", mac_b, "netns", &peer]].concat())?;
        self.link_up(a)?;
        self.link_up(b)
    }

    /// Gives the interface that the lab made as `interface`, and that is called `before` now, another name.
    ///
    /// # Errors
    /// An unknown interface, or `ip` refusing.
    pub fn rename_link(&self, interface: &str, before: &str, after: &str) -> Result<(), LabError> {
        ip::run(self.home_of(interface)?, &["link", "set", "dev", before, "name", after])
    }

    /// Brings the interface up that the lab made as `interface`, and that is called `name` now.
    ///
    /// # Errors
    /// An unknown interface, or `ip` refusing.
    pub fn up_link(&self, interface: &str, name: &str) -> Result<(), LabError> {
        ip::run(self.home_of(interface)?, &["link", "set", "dev", name, "up"])
    }

    /// Changes the interface by `ip link set`.
    ///
    /// # Errors
    /// An unknown interface, or `ip` refusing.
    pub fn set_link(&self, interface: &str, how: &[&str]) -> Result<(), LabError> {
        ip::run(self.home_of(interface)?, &[&["link", "set", "dev", interface], how].concat())
    }

    /// The namespace in which `interface` lives.
    ///
    /// # Errors
    /// [`LabError::UnknownInterface`] when the lab made none of that name.
    pub fn home_of(&self, interface: &str) -> Result<&Namespace, LabError> {
        match self.interfaces.get(interface) {
            Some(&index) => Ok(&self.namespaces[index]),
            None => Err(LabError::UnknownInterface { interface: interface.into() }),
        }
    }
}
