//! The kernel's own NBD driver on `cn-agent nbd`: a file system and swap in remote memory.

use cxloe_system::guest::*;
use cxloe_system::{Outcome, ensure};

/// A file system is made, filled, and read again after a remount; then a file of 2 MiB in a tmpfs is swapped out and
/// read again. Sizes are small: an emulated machine is slow.
pub fn kernel_swaps_and_mounts() -> Outcome {
    let command = r#"
        fabric $programs 16M
        $programs/cn-agent nbd --region scratch --socket $FABRIC/nbd.sock >$FABRIC/nbd.log 2>&1 &
        until_true 30 grep -q serving $FABRIC/nbd.log
        modprobe -a nbd ext4
        nbd-client -unix $FABRIC/nbd.sock /dev/nbd0 -b 4096 -N scratch -C 2 >/dev/null
        blockdev --getsize64 /dev/nbd0
        head -c 2M /dev/urandom >/run/random

        mkfs.ext2 -q -b 4096 -N 64 /dev/nbd0
        mount /dev/nbd0 /mnt
        head -c 256K /run/random >/mnt/file
        umount /mnt
        mount /dev/nbd0 /mnt
        cmp -n 256K /mnt/file /run/random && echo file system
        umount /mnt

        mkswap /dev/nbd0 >/dev/null 2>&1
        swapon /dev/nbd0
        echo +memory >/sys/fs/cgroup/cgroup.subtree_control
        mkdir /sys/fs/cgroup/hungry
        (echo $BASHPID >/sys/fs/cgroup/hungry/cgroup.procs; cat /run/random >/run/copy)
        # As much at a time as the kernel likes to; what is written out is gone from memory the next time.
        mostly_gone() {
            echo 2M 2>/dev/null >/sys/fs/cgroup/hungry/memory.reclaim
            [ $(cat /sys/fs/cgroup/hungry/memory.current) -lt 1000000 ]
        }
        until_true 90 mostly_gone
        cmp /run/copy /run/random && echo swap
        echo swapped: $(awk '/pswpout/ { print $2 }' /proc/vmstat) out, $(awk '/pswpin/ { print $2 }' /proc/vmstat) in
    "#;
    let output_text = ended(guest_with_fabric(&["--memory", "1024", "--timeout", "280"], command)?, 0)?;
    let lines: Vec<&str> = output_text.lines().collect();
    ensure(lines == ["16777216", "file system", "swap", lines.last().unwrap_or(&"")], output_text.clone())?;
    let figures = lines.last().and_then(|line| line.strip_prefix("swapped: ")).ok_or("no figures")?;
    let pages: Vec<u64> = figures.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    ensure(matches!(pages[..], [out, back] if out >= 400 && back >= 200), output_text)
}
