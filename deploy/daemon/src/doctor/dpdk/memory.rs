//! Huge pages that a port of DPDK takes, compared with those that are free.

use super::{DpdkDevice, Hold, PageSize, PciCard, SCRIPT};
use crate::doctor::{Check, Group, size};

/// Frames for which each queue has buffers: `BUFFERS` in `wire/dpdk/cxloe_dpdk.c`.
const BUFFERS: u64 = 2 * 1024 + 8 * 32;
/// Minimum length of a buffer in bytes, and that of the headers of a frame with a tag.
const BUFFER_MIN: u64 = 2048;
const HEADERS: u64 = 14 + 4;
/// Bytes of each buffer beside the frame: its descriptor, room before the frame, and the pool's header.
const BUFFER_OVERHEAD: u64 = 128 + 128 + 64;
/// Bytes of a queue's pool beside its buffers: the buffers that threads keep at hand.
const POOL: u64 = 1 << 20;
/// Bytes that DPDK and a driver take for themselves, such as for the rings of a port.
const OWN: u64 = 15 << 20;
/// Size of the pages that can be reserved at any time, in bytes.
const PAGE: u64 = 2 << 20;

/// Memory of a port with `queues` queues in each direction, in bytes.
pub(super) fn port_bytes(mtu: u64, queues: u64) -> u64 {
    let frame = (mtu + HEADERS).next_multiple_of(64).max(BUFFER_MIN);
    OWN + queues * (POOL + BUFFERS * (frame + BUFFER_OVERHEAD))
}

impl PageSize {
    fn lacks(&self, needed: u64) -> u64 {
        needed.div_ceil(self.bytes).saturating_sub(self.free)
    }

    fn describe(&self, needed: u64) -> String {
        let needed = needed.div_ceil(self.bytes);
        format!("{} of {} pages of {} free, {needed} needed", self.free, self.all, size(self.bytes))
    }
}

impl DpdkDevice {
    pub(super) fn judge_pages(&self, needed: u64) -> Check {
        let (group, name) = (Group::Memory, "huge pages for DPDK");
        let is_standard = |size: &&PageSize| size.bytes == PAGE;
        let Some(standard) = self.pages.iter().find(is_standard).or(self.pages.first()) else {
            return self.judge_ordinary("this kernel has none", "boot a kernel with CONFIG_HUGETLBFS");
        };
        let used = self.pages.iter().filter(|size| size.all > 0 || *size == standard);
        let found = used.map(|size| size.describe(needed)).collect::<Vec<_>>().join("; ");
        if self.pages.iter().any(|size| size.lacks(needed) == 0) {
            return Check::ok(group, name, found);
        }
        let advice = self.reserve(standard, standard.lacks(needed));
        if self.without_pages {
            self.judge_ordinary(&found, &advice)
        } else {
            Check::fail(group, name, found, advice)
        }
    }

    /// Judges a machine without a free huge page, on which DPDK takes ordinary memory.
    fn judge_ordinary(&self, found: &str, advice: &str) -> Check {
        let (group, name) = (Group::Memory, "huge pages for DPDK");
        match self.card.as_ref().map(PciCard::hold) {
            None => Check::ok(group, name, format!("{found}: ordinary memory is taken")),
            Some(Hold::Shared) => {
                Check::warn(group, name, format!("{found}: ordinary memory is taken"), advice)
            }
            Some(_) => Check::fail(group, name, found, advice),
        }
    }

    /// Commands that reserve `more` pages of a size, now and at each boot.
    fn reserve(&self, size: &PageSize, more: u64) -> String {
        let all = size.all + more;
        let now = format!("echo {all} > {}", size.file);
        match &self.card {
            Some(card) if size.bytes == PAGE => format!(
                "{SCRIPT} bind {} --hugepages {more} --persist, which keeps them over a reboot; until then: {now}",
                card.address
            ),
            _ => format!(
                "{now}; to keep them over a reboot, vm.nr_hugepages = {all} in /etc/sysctl.d/60-cxloe.conf (with those of a \
                 pool)"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;

    fn with_driver(driver: &str) -> PciCard {
        PciCard { address: "0000:03:00.0".into(), driver: driver.into(), ..PciCard::default() }
    }

    fn pages(bytes: u64, free: u64, all: u64) -> PageSize {
        PageSize { bytes, free, all, file: "/sys/nr_hugepages".into() }
    }

    fn judge(driver: Option<&str>, pages: Vec<PageSize>) -> Check {
        let without_pages = pages.iter().all(|size| size.free == 0);
        let device = DpdkDevice { card: driver.map(with_driver), mtu: 1500, pages, without_pages };
        device.judge_pages(11 * PAGE)
    }

    #[test]
    fn a_port_takes_buffers_for_its_frames() {
        let pages = |mtu, queues| port_bytes(mtu, queues).div_ceil(PAGE);
        assert_eq!([pages(1500, 1), pages(9000, 1), pages(9000, 2)], [11, 19, 30]);
    }

    #[test]
    fn too_few_huge_pages_are_named_with_what_reserves_them() {
        let enough = judge(Some("vfio-pci"), vec![pages(1 << 30, 0, 0), pages(PAGE, 11, 16)]);
        assert_eq!(
            (enough.level, enough.found.as_str()),
            (Level::Ok, "11 of 16 pages of 2 MiB free, 11 needed")
        );
        let large = judge(Some("vfio-pci"), vec![pages(1 << 30, 1, 1), pages(PAGE, 0, 0)]);
        assert_eq!(large.level, Level::Ok);
        assert!(large.found.starts_with("1 of 1 pages of 1 GiB free, 1 needed; 0 of 0"), "{}", large.found);

        let few = judge(Some("vfio-pci"), vec![pages(PAGE, 4, 16)]);
        assert_eq!(few.level, Level::Fail);
        let command = "/usr/share/cxloe/tune/dpdk bind 0000:03:00.0 --hugepages 7 --persist";
        let advice = few.advice.unwrap();
        assert!(advice.contains(command) && advice.contains("echo 23 > /sys/nr_hugepages"), "{advice}");
        let few = judge(None, vec![pages(PAGE, 4, 16)]);
        assert_eq!(few.level, Level::Fail);
        assert!(few.advice.unwrap().contains("vm.nr_hugepages = 23"));
    }

    #[test]
    fn without_huge_pages_ordinary_memory_is_taken_where_that_works() {
        for none in [vec![], vec![pages(PAGE, 0, 0)]] {
            assert_eq!(judge(None, none.clone()).level, Level::Ok);
            assert_eq!(judge(Some("mlx5_core"), none.clone()).level, Level::Warn);
            assert_eq!(judge(Some("vfio-pci"), none).level, Level::Fail);
        }
    }
}
