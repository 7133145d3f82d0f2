//! Tools for labs and operators: the lab on one machine (`deploy/lab`), the settings of interfaces and the cards for DPDK
//! (`deploy/tune`), and the Ansible role (`deploy/ansible`), each run for real in namespaces, cards on a fake machine.
//!
//! Runs as root, or as an ordinary user inside a private user namespace, in which the role is not tested, because it
//! creates users. Every wait is bounded.

mod ansible;
mod dpdk;
mod nic;
mod one_machine;

use std::path::PathBuf;

use cxloe_lab::LabPrivilege;
use cxloe_system::{Test, source, tests};

pub fn tests(standing: LabPrivilege) -> Vec<Test> {
    let mut tests = tests![
        one_machine::it_comes_up_serves_and_leaves_nothing,
        one_machine::hints_name_the_lab,
        one_machine::what_cannot_be_is_said,
        one_machine::nothing_outlives_its_keeper,
        nic::an_interface_is_changed_and_put_back,
        nic::a_whole_nic_is_changed_and_put_back,
        nic::what_cannot_be_is_said,
        dpdk::a_card_is_taken_and_put_back,
        dpdk::the_way_to_the_network_stays,
        dpdk::what_cannot_be_is_said,
    ];
    if standing == LabPrivilege::Root {
        tests.extend(tests![ansible::the_role_brings_up_a_lab_and_changes_nothing_twice]);
    }
    tests.extend(tests![ansible::the_role_is_clean]);
    tests
}

/// Path of a file below the folder `deploy`.
fn deploy(path: &str) -> PathBuf {
    source("deploy").join(path)
}
