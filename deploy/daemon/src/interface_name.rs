//! Names of network interfaces. An interface may have alternative names
//! (`ip link property add dev eth0 altname wire`): the kernel's calls accept all of them, while `/sys` and
//! lists have only the first.

use nix::net::if_::{if_indextoname, if_nametoindex};

/// Whether the name is that of a DPDK device (`dpdk:...`), which the kernel does not have.
pub fn is_outside_kernel(name: &str) -> bool {
    name.starts_with("dpdk:")
}

/// Name under which `/sys` has the interface `name`, which may be an alternative one; `name` itself if there is no such
/// interface in this network namespace.
pub fn interface_name(name: &str) -> String {
    let found = if_nametoindex(name).and_then(if_indextoname).ok();
    found.and_then(|name| name.into_string().ok()).unwrap_or_else(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_has_its_name_and_others_keep_theirs() {
        assert_eq!([interface_name("lo"), interface_name("none-such")], ["lo", "none-such"]);
    }
}
