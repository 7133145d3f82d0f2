//! Tests with frames on cables: kinds of links, losses, congestion, hostile neighbours, older processors, and the
//! Wireshark dissector.

mod congestion;
mod dissector;
mod hostile;
mod links;
mod loss;
mod narrow;
mod processors;
mod queues;
mod udp;

use std::process::ExitCode;

use cxloe_system::{Subject, run};

fn main() -> ExitCode {
    run(
        &[
            Subject::new("links", links::tests).also_as_nobody(&[]),
            Subject::new("loss", loss::tests).also_as_nobody(&["mn-server"]),
            Subject::new("narrow", narrow::tests),
            Subject::new("congestion", congestion::tests).also_as_nobody(&["mn-server"]),
            Subject::new("hostile", hostile::tests)
                .also_as_nobody(&["mn-server"])
                .only(&["packet::memory_node_withstands", "packet::compute_node_withstands"]),
            Subject::new("dissector", dissector::tests),
            Subject::new("processors", processors::tests),
            Subject::new("queues", queues::tests).also_as_nobody(&["mn-server"]),
            Subject::new("over_udp", udp::tests).also_as_nobody(&["mn-server"]),
        ],
        links::ROLES,
    )
}
