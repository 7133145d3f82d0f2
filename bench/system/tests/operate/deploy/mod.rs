//! Installation and service: units, packages, notifications to the service manager, and the doctors. Real daemons over
//! a virtual cable run with exactly the rights of their units; packages are installed into a separate root folder,
//! removed and purged; the `doctor` commands examine interfaces that are down, missing, or have too small an MTU.
//!
//! Runs as root, or as an ordinary user inside a private user namespace. Every wait is bounded.

mod callers;
mod doctor;
mod kubernetes;
mod notify;
mod packages;
mod private_files;
mod repository;
#[allow(dead_code)]
mod rights;
mod syscalls;
mod unit;

use std::sync::OnceLock;

use cxloe_lab::LabPrivilege;
use cxloe_system::{Test, tests};

static STANDING: OnceLock<LabPrivilege> = OnceLock::new();

/// True if this process runs as root outside a user namespace, so that it may switch users and load XDP programs.
fn is_root() -> bool {
    STANDING.get() == Some(&LabPrivilege::Root)
}

pub fn tests(standing: LabPrivilege) -> Vec<Test> {
    let _ = STANDING.set(standing);
    tests![
        unit::units_are_ones_that_systemd_takes,
        unit::units_expose_little,
        unit::shipped_configuration_is_read,
        syscalls::units_allow_the_system_calls_that_are_made,
        rights::the_rights_of_the_units_suffice,
        callers::no_unit_hides_the_ids_of_users,
        callers::members_of_the_admin_group_are_administrators,
        notify::the_manager_tells_its_supervisor,
        notify::the_memory_node_tells_its_supervisor,
        notify::the_agent_tells_its_supervisor,
        notify::a_service_waits_for_its_interface,
        notify::lines_for_the_journal_have_priorities,
        packages::packages_come_and_go,
        kubernetes::manifests_are_ones_that_kubernetes_takes,
        private_files::what_daemons_write_is_their_owners,
        doctor::a_working_fabric_has_no_failures,
        doctor::what_is_wrong_with_an_interface_is_named,
        doctor::an_interface_is_known_by_its_alternative_names,
        doctor::missing_rights_are_named,
        doctor::a_card_is_looked_at_before_it_is_taken,
        doctor::wrong_options_and_absent_peers_are_named,
    ]
}
