//! The fabric from end to end: a manager, memory nodes and compute nodes around a switch, real daemons and real frames.
//! The tests cover interleaved regions that grow while in use, binding and unbinding under load, hot-add, nodes held in
//! reset, fabrics without a manager, and memory that is zeroed before reuse.
//!
//! Runs as root, or as an ordinary user inside a private user namespace. Every wait is bounded.

mod binding;
mod clones;
mod examples;
mod labels;
mod load;
mod memory;
mod moves;
mod sealed;
mod starting;
mod store;

use cxloe_lab::LabPrivilege;
use cxloe_system::{Test, tests};

pub fn tests(_: LabPrivilege) -> Vec<Test> {
    tests![
        memory::interleaved_regions_hold_every_byte_and_grow_under_load,
        memory::quotas_are_kept,
        memory::disabled_regions_keep_content_and_address,
        memory::new_regions_never_show_old_bytes,
        memory::a_lost_leg_takes_its_chunks_and_no_others,
        memory::forgotten_memory_nodes_come_back_empty,
        memory::a_flush_holds_up_nobody,
        labels::regions_are_found_by_their_labels,
        moves::regions_move_between_compute_nodes_with_their_content,
        moves::a_mapped_region_moves_once_it_is_unmapped,
        moves::a_move_is_finished_or_ends_whoever_stops,
        sealed::sealed_regions_are_read_by_many_and_written_by_none,
        sealed::sealed_regions_are_mapped_to_be_read,
        examples::a_sealed_set_is_scanned_at_two_nodes_at_once,
        examples::a_counter_moves_and_loses_no_count,
        clones::snapshots_and_clones_keep_their_content,
        clones::what_is_cloned_is_named_and_what_cannot_be,
        binding::unbinding_one_leaves_the_other_alone,
        binding::devices_come_and_go_while_the_agent_runs,
        starting::held_nodes_wait_for_what_is_declared,
        starting::static_fabrics_need_no_manager,
        store::an_older_store_changes_nothing_however_often_it_is_started,
        store::an_empty_store_detaches_nothing,
        store::a_full_disk_stops_changes_and_nothing_else,
        store::an_older_store_can_be_adopted_and_what_it_lacks_is_kept_until_it_is_released,
    ]
}
