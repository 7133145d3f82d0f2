//! The agent's metrics; the doc comment of each is its served help text.

use cxloe_node::metrics::LinkMetrics;

/// Metrics of the link, as on memory nodes, under the prefix of this node.
pub static LINK_METRICS: LinkMetrics = cxloe_node::link_metrics!("cxloe_cn", []);

cxloe_daemon::metrics_table! {
    /// Always 1; the labels say which release this is, the node's name in the fabric, its CN id and its interface.
    BUILD: Gauge "cxloe_cn_build_info" ["version", "node", "cn", "interface"];
    /// Always 1; the label says what carries the frames: xdp, packet, pnet, udp, dpdk.
    LINK: Gauge "cxloe_cn_link_info" ["backend"];
    /// Whether the workers, which serve all programs, answer. While it is 0, figures of workers are missing.
    RESPONDING: Gauge "cxloe_cn_worker_responding" [];
    /// Whether the manager has suspended this node.
    HELD: Gauge "cxloe_cn_held" [];

    /// Ports that programs have open at a worker.
    WORKER_PORTS: Gauge "cxloe_cn_worker_ports_open" ["worker"];
    /// Page faults that a worker has served.
    WORKER_FAULTS: Counter "cxloe_cn_worker_page_faults_total" ["worker"];
    /// Frames that a worker has received.
    WORKER_FRAMES_IN: Counter "cxloe_cn_worker_frames_received_total" ["worker"];
    /// Frames that a worker has sent.
    WORKER_FRAMES_OUT: Counter "cxloe_cn_worker_frames_sent_total" ["worker"];

    /// Bytes of an attached region, and what serves it: ethernet, or cxl and the name of a DAX device.
    REGION_BYTES: Gauge "cxloe_cn_region_size_bytes" ["region", "served_by"];
    /// Whether a region is attached, so that programs on this node can use it.
    REGION_ATTACHED: Gauge "cxloe_cn_region_attached" ["region"];
    /// The state of a region in the manager's last answer: 1 for the state it is in, 0 for the others.
    REGION_STATE: Gauge "cxloe_cn_region_state" ["region", "state"];

    /// Line reads, by whether the line cache had the line: hit, miss.
    LINE_READS: Counter "cxloe_cn_line_reads_total" ["result"];
    /// Line writes, by whether the line cache had the line: hit, miss.
    LINE_WRITES: Counter "cxloe_cn_line_writes_total" ["result"];
    /// Bursts of lines, by which pages are transferred, by direction: read, write.
    BURSTS: Counter "cxloe_cn_bursts_total" ["direction"];
    /// Operations that memory of this machine served (real CXL memory), by direction: read, write.
    LOCAL: Counter "cxloe_cn_local_operations_total" ["direction"];
    /// Modified lines written back from the line cache.
    WRITE_BACKS: Counter "cxloe_cn_line_write_backs_total" [];
    /// Operations that failed, of all kinds.
    FAILURES: Counter "cxloe_cn_operation_failures_total" [];
    /// Accesses to unmapped addresses, by answer: error, poison, ones, dropped.
    UNMAPPED: Counter "cxloe_cn_unmapped_accesses_total" ["answer"];
    /// Operations that have begun and are not complete.
    IN_FLIGHT: Gauge "cxloe_cn_operations_in_flight" [];
    /// Modified lines that are kept until their memory node answers again.
    STRANDED: Gauge "cxloe_cn_lines_stranded" [];
    /// Ports that programs have open.
    PORTS: Gauge "cxloe_cn_ports_open" [];
    /// Ports closed because a program damaged the port's rings.
    PORTS_BROKEN: Counter "cxloe_cn_ports_broken_total" [];

    /// Pause signals that were applied, by source: link (802.1Qbb frames seen), nic (frames that the NIC has counted),
    /// memory_node (its Congestion frames).
    PAUSE_SIGNALS: Counter "cxloe_cn_pause_signals_total" ["source"];

    /// The state of the session with a memory node: 1 for the state it is in, 0 for the others.
    SESSION_STATE: Gauge "cxloe_cn_session_state" ["peer", "state"];
    /// Whether the memory node refused the last attempt; `cn-agent sessions` says why.
    SESSION_REFUSED: Gauge "cxloe_cn_session_refused" ["peer"];
    /// Smoothed round-trip time; there is none before the first sample.
    RTT: Gauge "cxloe_cn_session_rtt_seconds" ["peer"];
    /// Variation of the round-trip time.
    RTT_VARIATION: Gauge "cxloe_cn_session_rtt_variation_seconds" ["peer"];
    /// The present time-out, after which a request is sent again.
    TIMEOUT: Gauge "cxloe_cn_session_timeout_seconds" ["peer"];
    /// Requests that are not answered yet.
    SESSION_IN_FLIGHT: Gauge "cxloe_cn_session_requests_in_flight" ["peer"];
    /// Requests sent, each counted once, alone or with others in a frame.
    REQUESTS: Counter "cxloe_cn_session_requests_total" ["peer"];
    /// Frames that carried several requests.
    MULTI_FRAMES: Counter "cxloe_cn_session_multi_frames_total" ["peer"];
    /// Requests sent in frames with several requests.
    MULTI_REQUESTS: Counter "cxloe_cn_session_multi_requests_total" ["peer"];
    /// Requests completed by an answer.
    ANSWERED: Counter "cxloe_cn_session_answers_total" ["peer"];
    /// Requests sent again.
    RETRANSMITTED: Counter "cxloe_cn_session_retransmissions_total" ["peer"];
    /// Bytes of lines that requests sent again carried or asked for.
    RETRANSMITTED_BYTES: Counter "cxloe_cn_session_retransmitted_bytes_total" ["peer"];
    /// Selective acknowledgements received.
    SACKS: Counter "cxloe_cn_session_sacks_total" ["peer"];
    /// Silences after which one request was sent again, to find out what happened to the others.
    PROBES: Counter "cxloe_cn_session_probes_total" ["peer"];
    /// Time-outs that expired, after which requests are sent again.
    TIMEOUTS: Counter "cxloe_cn_session_timeouts_total" ["peer"];
    /// Answers that arrived before an earlier answer of their stream.
    EARLY: Counter "cxloe_cn_session_early_answers_total" ["peer"];
    /// Answers that arrived more than once.
    DUPLICATES: Counter "cxloe_cn_session_duplicate_answers_total" ["peer"];
    /// Requests that the memory node refused with a Fault frame.
    FAULTS: Counter "cxloe_cn_session_faults_total" ["peer"];
    /// Congestion frames received.
    CONGESTION: Counter "cxloe_cn_session_congestion_frames_total" ["peer"];
    /// Sessions opened; more than one means that one was lost.
    SESSIONS_OPENED: Counter "cxloe_cn_sessions_opened_total" ["peer"];
    /// Frames dropped, by cause: length, trailer (damaged or of another session), window, unmatched (the answer does not fit),
    /// full (no buffer), foreign.
    DROPPED: Counter "cxloe_cn_session_frames_dropped_total" ["peer", "cause"];

    /// The phase of the rate controller, a (stable) to f: 1 for the phase it is in, 0 for the others.
    PHASE: Gauge "cxloe_cn_pace_phase" ["peer", "phase"];
    /// The rate that requests to a memory node may have on the wire (CR).
    RATE: Gauge "cxloe_cn_pace_rate_bytes_per_second" ["peer"];
    /// The rate that recovery aims at (TR).
    TARGET: Gauge "cxloe_cn_pace_target_bytes_per_second" ["peer"];
    /// Pause signals that counted for this memory node.
    PAUSES: Counter "cxloe_cn_pace_pauses_total" ["peer"];
    /// Pause signals ignored because they followed another one too closely.
    PAUSES_DUPLICATE: Counter "cxloe_cn_pace_duplicate_pauses_total" ["peer"];
    /// Times a request had to wait for tokens.
    PACE_WAITS: Counter "cxloe_cn_pace_waits_total" ["peer"];

    /// Faults on pages that were not in memory, of all mapped regions.
    PAGE_FAULTS: Counter "cxloe_cn_page_faults_total" [];
    /// Faults on pages never written: filled with zeros, nothing is fetched.
    PAGE_FAULTS_ZERO: Counter "cxloe_cn_page_zero_fills_total" [];
    /// First writes to pages in memory.
    PAGE_WRITE_FAULTS: Counter "cxloe_cn_page_write_faults_total" [];
    /// Duration of faults on absent pages, from the agent's reading of them to the page in place, by kind: local
    /// (zeros, or fetched before), fetch, room (no more pages may be resident, so one had to leave first).
    FAULT_TIME: Histogram "cxloe_cn_page_fault_duration_seconds" ["kind"];
    /// Times a fault had to wait because no more pages may be resident.
    ROOM_WAITS: Counter "cxloe_cn_page_room_waits_total" [];
    /// Pages fetched, by reason: demand (a thread waited), ahead.
    PAGES_FETCHED: Counter "cxloe_cn_pages_fetched_total" ["why"];
    /// Pages fetched ahead, by outcome: hit (used afterwards), wasted.
    PREFETCHED: Counter "cxloe_cn_pages_prefetched_total" ["result"];
    /// Pages evicted from memory.
    EVICTED: Counter "cxloe_cn_pages_evicted_total" [];
    /// Pages that were fetched again soon after their eviction.
    REFAULTED: Counter "cxloe_cn_pages_refaulted_total" [];
    /// Pages that had changed and were written back.
    WRITTEN_BACK: Counter "cxloe_cn_pages_written_back_total" [];
    /// Lines of 64 bytes that were sent for pages written back.
    LINES_WRITTEN_BACK: Counter "cxloe_cn_page_lines_written_back_total" [];
    /// Evictions given up because the page was written to.
    CANCELLED: Counter "cxloe_cn_page_evictions_cancelled_total" [];
    /// Pages discarded by their program.
    DISCARDED: Counter "cxloe_cn_pages_discarded_total" [];
    /// Pages whose data is lost, because their memory node lost it or was away for too long.
    LOST: Counter "cxloe_cn_pages_lost_total" [];
    /// Write-backs that failed; their pages stay in memory.
    WRITE_BACK_FAILURES: Counter "cxloe_cn_page_write_back_failures_total" [];
    /// Forks of programs whose memory is remote.
    FORKS: Counter "cxloe_cn_forks_total" [];

    /// Bytes of a mapped region that are in memory here.
    RESIDENT: Gauge "cxloe_cn_mapping_resident_bytes" ["region"];
    /// Limit of the bytes of a mapped region that are in memory here.
    LIMIT: Gauge "cxloe_cn_mapping_limit_bytes" ["region"];
    /// Processes that have a region mapped.
    MEMBERS: Gauge "cxloe_cn_mapping_processes" ["region"];
    /// Faults on absent pages of a region's mapping, since it was mapped.
    MAPPING_FAULTS: Counter "cxloe_cn_mapping_faults_total" ["region"];
    /// Pages of a region's mapping whose data is lost, since it was mapped.
    MAPPING_LOST: Counter "cxloe_cn_mapping_pages_lost_total" ["region"];
}
