//! Tests that need a kernel of their own: they run in a virtual machine with Debian's kernel, emulated by QEMU, which
//! boots in about ten seconds. Every wait is bounded.

mod cxl;
mod dpdk;
mod nbd;
mod nvme;
mod rdma;

use cxloe_lab::LabPrivilege;
use cxloe_system::guest::*;
use cxloe_system::{Outcome, ensure};
use cxloe_system::{Test, tests};

pub fn tests(_: LabPrivilege) -> Vec<Test> {
    let mut tests = tests![
        command_ends_as_it_does,
        time_is_bounded,
        death_is_told,
        nbd::kernel_swaps_and_mounts,
        cxl::device_serves_what_fits,
    ];
    let cards = |mn, cn| move || dpdk::nodes_have_cards_of_their_own(mn, cn);
    tests.push(Test::new("dpdk::e1000e_and_virtio", cards(&dpdk::E1000E, &dpdk::VIRTIO)));
    let more = Test::new("dpdk::vmxnet3", cards(&dpdk::VMXNET3, &dpdk::VMXNET3));
    tests.push(more.long("the same with other cards"));
    let peer = Test::new("rdma::soft_roce_beside_this_system", rdma::soft_roce_beside_this_system);
    tests.push(peer.long("a comparison in an emulated machine"));
    let peer = Test::new("nvme::over_tcp_beside_this_system", nvme::over_tcp_beside_this_system);
    tests.push(peer.long("a comparison in an emulated machine"));
    tests
}

fn command_ends_as_it_does() -> Outcome {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("in"), "from outside")?;
    let share = folder.path().to_str().ok_or("paths of tests are plain text")?;
    let command = format!(
        "cat /share/in; echo ' and inside' >/share/out; echo $(id -u) $(pwd) $(cat); echo x >{share}/mine || exit 9; exit 7"
    );
    let output_text = ended(guest(&["--share", share], &command)?, 7)?;
    let here = std::env::current_dir()?;
    ensure(output_text == format!("from outside0 {}\n", here.display()), output_text)?;
    ensure(
        std::fs::read_to_string(folder.path().join("out"))? == " and inside\n",
        "the shared folder is shared",
    )?;
    ensure(!folder.path().join("mine").exists(), "nothing else of this system is written")
}

fn time_is_bounded() -> Outcome {
    let output = guest(&["--timeout", "2"], "true")?;
    let output_text = String::from_utf8_lossy(&output.stderr).into_owned();
    ended(output, 124)?;
    ensure(output_text.contains("not done after 2 s"), output_text)
}

fn death_is_told() -> Outcome {
    let output = guest(&["--memory", "512"], "echo c >/proc/sysrq-trigger; sleep 60")?;
    let output_text = String::from_utf8_lossy(&output.stderr).into_owned();
    ended(output, 125)?;
    ensure(output_text.contains("sysrq_trigger") && output_text.contains("without a status"), output_text)
}
