//! Both ends of a session keep the contract of state machines: an output is named until it is taken, and a poll at the
//! deadline leads to a later one.

mod session_common;

use cxloe_wire::machine::{ContractBreach, StateMachine, check};
use session_common::*;

#[test]
fn a_compute_node_waits_when_its_outputs_are_taken() {
    let mut p = Pair::new();
    assert_eq!(check(&p.requester, p.now), Ok(()), "only a command brings work");
    p.requester.connect(p.now);
    assert!(matches!(check(&p.requester, p.now), Err(ContractBreach::Overdue(_))), "a Hello is due");
    p.run(10 * MS);
    assert_eq!(check(&p.requester, p.now), Err(ContractBreach::Undrained("an event of a session")));
    p.events();
    assert_eq!(check(&p.requester, p.now), Ok(()));

    p.requester.hold();
    p.read(0, 0, 1);
    let held = ContractBreach::Undrained("requests held back to share a frame");
    assert_eq!(check(&p.requester, p.now), Err(held));
    p.requester.release(p.now, &mut p.up);
    assert_eq!(check(&p.requester, p.now), Ok(()));

    let deadline = p.requester.deadline();
    assert_eq!(deadline.reason, "requests to send again");
    p.now = deadline.at;
    assert_eq!(check(&p.requester, p.now), Err(ContractBreach::Overdue(deadline)));
    p.poll();
    assert!(!p.requester.deadline().is_due(p.now), "{}", p.requester.deadline());
}

#[test]
fn a_memory_node_waits_when_its_outputs_are_taken() {
    let mut p = Pair::open();
    p.take_down();
    assert_eq!(check(&p.responder, p.now), Ok(()));
    p.write(0, 0, 1, 1);
    for mut frame in p.take_up() {
        p.responder.handle(&mut frame, p.now, &mut p.memory, &mut p.down);
    }
    let held = ContractBreach::Undrained("an acknowledgement held back");
    assert_eq!(check(&p.responder, p.now), Err(held));
    p.responder.poll(p.now, &mut p.memory, &mut p.down);
    assert_eq!((check(&p.responder, p.now), p.take_down().len()), (Ok(()), 1));

    // The event that the session has started is due to be taken at the interval of the checks.
    let deadline = p.responder.deadline();
    p.now = deadline.at;
    assert_eq!(check(&p.responder, p.now), Err(ContractBreach::Overdue(deadline)));
    p.responder.poll(p.now, &mut p.memory, &mut p.down);
    assert_eq!(check(&p.responder, p.now), Err(ContractBreach::Undrained("an event of a session")));
    assert_eq!(p.mn_events().len(), 1);
    assert_eq!(check(&p.responder, p.now), Ok(()));
}
