//! Descriptions of measurements, found by their names.

/// Prefix of the names of measurements whose frames are not sealed, in a run that also measures sealed ones.
pub const PLAIN: &str = "plain_";

/// Names of latencies and rates, with their descriptions in reports.
const LABELS: &[(&str, &str)] = &[
    ("echo64", "limit: a bare frame to the memory node and back"),
    ("read64", "a line read by the line port, in the measuring thread"),
    ("write64", "a line written by the line port"),
    ("mixed64", "lines read and written by the line port, as many of each"),
    ("hit_read64", "a line read that the port's cache has"),
    ("hit_write64", "a line written that the port's cache has"),
    ("agent_read64", "a line read by asking cn-agent, another process"),
    ("agent_write64", "a line written by asking cn-agent, another process"),
    ("read4k", "a page read by the line port, in as many frames as carry it"),
    ("agent_read4k", "a page read by asking cn-agent"),
    ("nbd_read4k", "a page read from a block device, which cn-agent nbd serves from the agent's region"),
    ("fault4k", "first touch of a page; the agent fetches it"),
    ("fault4k_inline", "first touch of a page; the thread that touches it fetches it"),
    ("fetch4k", "limit: the bare frames of a page"),
    (
        "dpdk_echo64",
        "limit: a bare frame there and back by the plug-in alone, between processes of their own",
    ),
    ("dpdk_fetch4k", "limit: the bare frames of a page by the plug-in alone"),
    ("uffd_floor4k", "limit: a page fault served from local memory by another thread"),
    ("uffd_inline_floor4k", "limit: a page fault served from local memory by the thread that has it"),
    ("spin20us", "20 us in which a thread only reads the clock: what the machine takes from any of them"),
    ("memcpy4k", "a page copied, in local memory"),
    ("dram64", "a random line of local memory"),
    ("echo_pipelined", "limit: bare frames of lines, many on their way"),
    ("echo_pipelined_burst_read", "limit: bare frames of bursts, those back large"),
    ("echo_pipelined_burst_write", "limit: bare frames of bursts, those there large"),
    ("stream64", "lines read by the line port, many on their way"),
    ("stream64_write", "lines written by the line port, many on their way"),
    ("burst_read", "bursts of lines read by the line port"),
    ("burst_write", "bursts of lines written by the line port"),
    ("agent_bulk_read", "stretches of 1 MiB read by asking cn-agent, one at a time"),
    ("nbd_bulk_read", "the same from a block device, which cn-agent nbd serves"),
    ("mapped_read", "pages touched in order, fetched by the agent"),
    ("mapped_random", "pages touched at random, fetched by the agent"),
    ("mapped_random_plain", "the same without a prefetcher"),
    ("inline_read", "pages touched in order by the thread that fetches them"),
    ("inline_random", "pages touched at random by the thread that fetches them"),
    ("inline_random_plain", "the same without a prefetcher"),
    ("write_back_line", "pages written back of which one line has changed"),
    ("write_back_page", "pages written back of which every line has changed"),
];

/// Returns the description of the measurement `name`; empty if there is none.
pub(super) fn label(name: &str) -> String {
    let find = |name: &str| LABELS.iter().find(|(known, _)| *known == name).map(|(_, label)| *label);
    match name.strip_prefix(PLAIN) {
        Some(sealed) => find(sealed).map_or_else(String::new, |label| format!("{label}; frames not sealed")),
        None => find(name).unwrap_or_default().to_owned(),
    }
}

/// Paragraph on the difference between a line read through the agent and one through the port of the
/// measuring process.
pub(super) const AGENT_AND_PORT: &str = "<code>read64</code> and <code>agent_read64</code> both read one line, and \
    differ in who does. The line port is a part of the measuring process: one thread, spinning on a core of its own, puts \
    the frame on the link and takes the answer from it. The agent is another process: the request goes through a ring in \
    shared memory to a thread that has to be woken when it sleeps, from there over the agent's own link, and \
    all the way back, on cores that bench and memory node spin on meanwhile. What the \
    agent brings instead: it serves many programs, keeps regions mapped and cached for all of them, and costs no core while \
    nobody asks. A program that needs the shorter time opens a port, or maps its region inline.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_says_that_frames_are_not_sealed() {
        assert_eq!(label("plain_write64"), format!("{}; frames not sealed", label("write64")));
        assert!(label("write64").contains("line written"));
        assert_eq!([label("plain_none"), label("none")], ["", ""]);
    }
}
