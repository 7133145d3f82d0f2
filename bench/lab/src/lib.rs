//! Throw-away networks on one machine.
//!
//! A [`Lab`] is a set of network namespaces joined by veth pairs, bridges and macvlans. The namespaces have no name in
//! `/run/netns`: they exist only as file descriptors of this process (and of the processes started inside), so when
//! these processes end, by whatever signal, the kernel removes the namespaces with every interface, address and XDP
//! program in them.
//!
//! Use of a lab:
//! 1. `main` calls [`become_private_user_namespace`] first; an ordinary user gets the rights a lab needs that way.
//! 2. [`Lab::builder`] describes the network (or [`Lab::star`], a switch with nodes around it), [`Builder::build`]
//!    makes the network with the `ip` tool.
//! 3. [`Lab::enter`] runs a closure inside a namespace, [`Namespace::join`] moves a thread there for good, and
//!    [`Lab::spawn`] starts a program there, held by a [`Process`] guard.
//! 4. [`Interrupt`] turns Ctrl-C into an ordinary return, so that the guards are dropped.
//!
//! A [`NamedLab`] has daemons and outlives the command that makes it, for manual experiments.
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
pub use named::{Change, LabSettings, NAMED_NODES_MAX, NamedError, NamedLab, keep};
pub use namespace::Namespace;
pub use privilege::{LabPrivilege, become_private_user_namespace, may_make_labs};
pub use process::Process;
pub use programs::{example, program};
pub use star::{STAR_NODES_MAX, compute_node_mac, memory_node_mac};

use process::Spawner;

/// A network of namespaces, which exists as long as this value or a process or socket inside one of them.
#[derive(Debug)]
pub struct Lab {
    namespaces: Vec<Namespace>,
    /// Index in `namespaces` of each interface's namespace, by interface name.
    interfaces: BTreeMap<String, usize>,
    spawner: Spawner,
}

impl Lab {
    /// Starts the description of a lab; [`Builder::build`] makes the lab.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Returns the namespace called `name`; clones of it may be moved to other threads.
    ///
    /// # Errors
    /// Returns [`LabError::UnknownNamespace`] when the lab has no namespace of that name.
    pub fn namespace(&self, name: &str) -> Result<&Namespace, LabError> {
        self.namespaces
            .iter()
            .find(|n| n.name() == name)
            .ok_or_else(|| LabError::UnknownNamespace { namespace: name.into() })
    }

    /// Runs `work` on a thread inside the namespace `name` and waits for its result; see [`Namespace::enter`].
    ///
    /// # Errors
    /// Fails on an unknown name, or if the kernel does not let the thread enter.
    pub fn enter<T: Send>(&self, name: &str, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        self.namespace(name)?.enter(work)
    }

    /// Starts `command` inside the namespace `name`.
    ///
    /// Standard streams are those of `command` (inherited unless changed; [`Process::log_to`] redirects them to a
    /// file). The program leads a process group of its own, so Ctrl-C in a terminal reaches only this process, which
    /// then ends its guards in order; the kernel kills the program if this process dies first.
    ///
    /// # Errors
    /// Fails on an unknown name, or if the program cannot be started.
    pub fn spawn(&self, name: &str, command: Command) -> Result<Process, LabError> {
        self.spawner.spawn(self.namespace(name)?, command)
    }

    /// Sets the interface down; its peer loses carrier.
    ///
    /// # Errors
    /// Fails on an unknown interface, or an error of `ip`.
    pub fn link_down(&self, interface: &str) -> Result<(), LabError> {
        ip::run(self.home_of(interface)?, &["link", "set", "dev", interface, "down"])
    }

    /// Brings the interface up again. Its addresses survive [`Lab::link_down`] and this call.
    ///
    /// # Errors
    /// Fails on an unknown interface, or an error of `ip`.
    pub fn link_up(&self, interface: &str) -> Result<(), LabError> {
        ip::run(self.home_of(interface)?, &["link", "set", "dev", interface, "up"])
    }

    /// Deletes the interface, and with it the other end of its cable.
    ///
    /// # Errors
    /// Fails on an unknown interface, or an error of `ip`.
    pub fn delete_link(&self, interface: &str) -> Result<(), LabError> {
        ip::run(self.home_of(interface)?, &["link", "delete", "dev", interface])
    }

    /// Makes a cable again that [`Lab::delete_link`] has deleted, between interfaces of the same names with these MAC
    /// addresses, and brings it up.
    ///
    /// # Errors
    /// Fails on an unknown interface, or an error of `ip`.
    pub fn make_link_again(&self, [(a, mac_a), (b, mac_b)]: [(&str, &str); 2]) -> Result<(), LabError> {
        let peer = self.home_of(b)?.path();
        let near = ["link", "add", "name", a, "address", mac_a, "type", "veth", "peer"];
        ip::run(self.home_of(a)?, &[&near[..], &["name", b, "address", mac_b, "netns", &peer]].concat())?;
        self.link_up(a)?;
        self.link_up(b)
    }

    /// Renames the interface that the lab made as `interface` from its current name `before` to `after`.
    ///
    /// # Errors
    /// Fails on an unknown interface, or an error of `ip`.
    pub fn rename_link(&self, interface: &str, before: &str, after: &str) -> Result<(), LabError> {
        ip::run(self.home_of(interface)?, &["link", "set", "dev", before, "name", after])
    }

    /// Brings up the interface that the lab made as `interface` and that is now called `name`.
    ///
    /// # Errors
    /// Fails on an unknown interface, or an error of `ip`.
    pub fn up_link(&self, interface: &str, name: &str) -> Result<(), LabError> {
        ip::run(self.home_of(interface)?, &["link", "set", "dev", name, "up"])
    }

    /// Moves the interface from the namespace `from` to the namespace `to`, where the interface is down at first.
    ///
    /// # Errors
    /// Fails on an unknown namespace, or an error of `ip`.
    pub fn move_link(&self, interface: &str, from: &str, to: &str) -> Result<(), LabError> {
        let to = self.namespace(to)?.path();
        ip::run(self.namespace(from)?, &["link", "set", "dev", interface, "netns", &to])
    }

    /// Changes the interface by `ip link set` with the arguments `how`.
    ///
    /// # Errors
    /// Fails on an unknown interface, or an error of `ip`.
    pub fn set_link(&self, interface: &str, how: &[&str]) -> Result<(), LabError> {
        ip::run(self.home_of(interface)?, &[&["link", "set", "dev", interface], how].concat())
    }

    /// Returns the namespace in which the lab made `interface`, even if the interface has been moved to another one.
    ///
    /// # Errors
    /// Returns [`LabError::UnknownInterface`] when the lab has made no interface of that name.
    pub fn home_of(&self, interface: &str) -> Result<&Namespace, LabError> {
        match self.interfaces.get(interface) {
            Some(&index) => Ok(&self.namespaces[index]),
            None => Err(LabError::UnknownInterface { interface: interface.into() }),
        }
    }
}
