//! Checks for the memory that a node will lend.

use cxloe_daemon::doctor::permissions::Process;
use cxloe_daemon::doctor::{Check, Group, folder_for_files, size};
use cxloe_mn::config::Config;
use cxloe_mn::pool::{Host, POOL_BYTES_DEFAULT, PoolSpec, memory_bytes};
use nix::unistd::{AccessFlags, access};

/// Memory in bytes that should be left to the rest of the system.
const SPARE: u64 = 256 << 20;

/// Reads the machine's resources for the pool, and judges them.
pub fn examine(config: &Config, process: &Process) -> Vec<Check> {
    let (host, pool) = (Host::default(), &config.pool);
    let bytes = pool.bytes.unwrap_or(POOL_BYTES_DEFAULT);
    // Includes the page table, which takes at least one more page in a pool of 2 MiB pages, and no more memory in a
    // pool of 1 GiB pages.
    let taken = memory_bytes(pool).unwrap_or(bytes);
    let of_memory = match &pool.spec {
        PoolSpec::Anon => vec![judge_memory(bytes, host.available_memory())],
        PoolSpec::Huge2M => vec![judge_huge_pages(taken, 2 << 20, host.huge_pages(2 << 20))],
        PoolSpec::Huge1G => vec![judge_huge_pages(taken, 1 << 30, host.huge_pages(1 << 30))],
        PoolSpec::File(path) => {
            let kept =
                std::fs::metadata(path).map_or(0, |file| std::os::unix::fs::MetadataExt::blocks(&file) * 512);
            let folder = path.parent().unwrap_or(path);
            vec![folder_for_files("pool", folder, bytes.saturating_sub(kept), "--pool")]
        }
        PoolSpec::Dax(path) => {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let usable = access(path, AccessFlags::R_OK | AccessFlags::W_OK).map_err(|errno| errno.desc());
            vec![judge_device(&path.display().to_string(), host.dax_bytes(&name), pool.bytes, usable)]
        }
    };
    let locked = pool.mlock.then(|| process.judge_lock("locked pool", bytes));
    let node = pool.numa_node.map(|node| {
        let (exists, online) = host.numa_node(node);
        judge_node(node, exists, &online)
    });
    of_memory.into_iter().chain(locked).chain(node).collect()
}

fn judge_memory(bytes: u64, available: Option<u64>) -> Check {
    let (group, name) = (Group::Memory, "pool");
    let Some(available) = available else { return Check::ok(group, name, size(bytes)) };
    let found = format!("{} of {} available", size(bytes), size(available));
    if bytes > available {
        let advice = "choose a smaller pool-size, end other programs, or put the pool into a file (pool = \"file:/path\")";
        return Check::fail(group, name, found, advice);
    }
    if bytes + SPARE > available {
        let advice = format!("leave {} to the rest of the system: choose a smaller pool-size", size(SPARE));
        return Check::warn(group, name, found, advice);
    }
    Check::ok(group, name, found)
}

/// Judges the huge pages of `page` bytes for a pool of `bytes`; `free` and `all` are numbers of pages.
fn judge_huge_pages(bytes: u64, page: u64, (free, all): (u64, u64)) -> Check {
    let (group, name) = (Group::Memory, "huge pages");
    let needed = bytes.div_ceil(page);
    let found = format!("{free} of {all} pages of {} free, {needed} needed", size(page));
    if free >= needed {
        return Check::ok(group, name, found);
    }
    // Pages in use by other programs remain in use.
    let reserve = all - free.min(all) + needed;
    let advice = if page == 1 << 30 {
        format!("boot with hugepagesz=1G hugepages={reserve}, or take pool = \"huge2m\"")
    } else {
        format!(
            "echo {reserve} > /proc/sys/vm/nr_hugepages; to keep it over a reboot, vm.nr_hugepages = {reserve} in \
             /etc/sysctl.d/60-cxloe.conf (example: /usr/share/cxloe/hugepages.conf)"
        )
    };
    Check::fail(group, name, found, advice)
}

fn judge_device(path: &str, has: Option<u64>, wanted: Option<u64>, usable: Result<(), &str>) -> Check {
    let (group, name) = (Group::Memory, "pool");
    let Some(has) = has else {
        let advice = "`daxctl list` names those that are there; one in system-ram mode has to be given back first: \
                      daxctl reconfigure-device --mode=devdax";
        return Check::fail(group, name, format!("{path} is no device in devdax mode here"), advice);
    };
    let found = format!("{path}, {}", size(has));
    if let Err(why) = usable {
        let advice = format!("let the user of the node in: chgrp cxloe {path}; chmod 660 {path}");
        return Check::fail(group, name, format!("{found}: {why}"), advice);
    }
    if wanted.is_some_and(|wanted| wanted > has) {
        return Check::fail(
            group,
            name,
            found,
            "choose a smaller pool-size, or leave it out to lend all of it",
        );
    }
    Check::ok(group, name, found)
}

fn judge_node(node: u32, exists: bool, online: &str) -> Check {
    let (group, name) = (Group::Memory, "pool's NUMA node");
    if exists {
        return Check::ok(group, name, node.to_string());
    }
    Check::fail(
        group,
        name,
        format!("there is no node {node}"),
        format!("choose of {online} with --numa-node"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use cxloe_daemon::doctor::Level;
    use cxloe_mn::pool::PoolOptions;

    const GIB: u64 = 1 << 30;

    #[test]
    fn memory_has_to_be_there_with_some_to_spare() {
        let level = |available| judge_memory(4 * GIB, available).level;
        assert_eq!(level(Some(4 * GIB - 1)), Level::Fail);
        assert_eq!(
            (level(Some(4 * GIB)), level(Some(5 * GIB)), level(None)),
            (Level::Warn, Level::Ok, Level::Ok)
        );
    }

    #[test]
    fn huge_pages_in_use_stay_in_use() {
        let short = judge_huge_pages(GIB, 2 << 20, (100, 300));
        // The 200 pages in use stay in use, and the pool needs 512.
        assert_eq!(short.level, Level::Fail);
        assert!(short.advice.unwrap().starts_with("echo 712 > "));
        assert_eq!(judge_huge_pages(GIB, 2 << 20, (512, 512)).level, Level::Ok);
        assert!(judge_huge_pages(3 * GIB, GIB, (0, 0)).advice.unwrap().contains("hugepages=3"));
    }

    #[test]
    fn a_pool_of_huge_pages_needs_one_for_its_page_table() {
        let taken = |spec| {
            let options = PoolOptions { spec, bytes: Some(GIB), ..PoolOptions::default() };
            memory_bytes(&options).unwrap()
        };
        assert_eq!(taken(PoolSpec::Huge2M), 513 << 21);
        assert_eq!(taken(PoolSpec::Huge1G), GIB);
    }

    #[test]
    fn devices_have_to_be_in_the_right_mode_open_to_this_user_and_large_enough() {
        let level = |has, wanted, usable| judge_device("/dev/dax0.0", has, wanted, usable).level;
        assert_eq!(level(None, None, Ok(())), Level::Fail);
        assert_eq!(level(Some(GIB), None, Err("Permission denied")), Level::Fail);
        assert_eq!(level(Some(GIB), Some(2 * GIB), Ok(())), Level::Fail);
        assert_eq!(
            (level(Some(GIB), Some(GIB), Ok(())), level(Some(GIB), None, Ok(()))),
            (Level::Ok, Level::Ok)
        );
    }

    #[test]
    fn nodes_are_chosen_of_those_there_are() {
        assert_eq!(judge_node(0, true, "0").level, Level::Ok);
        assert!(judge_node(7, false, "0-1").advice.unwrap().contains("0-1"));
    }
}
