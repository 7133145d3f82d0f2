//! Steering: rules by which a device passes each frame to the queue of the link that waits for it. A worker has a
//! queue of its own and shares none, so a frame in another queue is lost.
//!
//! ```text
//!   each queue has an address (a compute node)   destination -----------------------> queue of that address
//!   all queues share one (a memory node)         last bits of the source -----------> queue
//!                                                or a hash of the source -----------> queue
//!   memory shared with another process           queue i of the one -----------------> queue i of the other
//! ```
//!
//! What a driver accepts shows only when it is asked, so each way is tried until all its rules are accepted.

use cxloe_wire::frame::Mac;

use super::plugin::Rule;

/// Further bits of the source address by which senders are divided among a number of queues that is no power of two,
/// so that the shares differ little.
const FURTHER_BITS: u32 = 2;

/// Queues of a device, and the frames for them.
#[derive(Clone, Debug)]
pub(super) struct Demand {
    pub queues: u16,
    /// Address of each queue, or the one address that all queues have.
    pub addresses: Vec<Mac>,
    pub ethertype: u16,
    /// Whether frames have an 802.1Q tag. A rule for an EtherType does not match them.
    pub tagged: bool,
}

/// Way in which frames reach their queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Steering {
    /// The device has one queue.
    Single,
    /// Each queue is joined to the same one of the process at the other end.
    Pairs,
    Destination,
    Source,
    Hash,
}

impl Steering {
    /// Text for the detail of a link.
    pub fn describe(self) -> &'static str {
        match self {
            Steering::Single => "",
            Steering::Pairs => ", joined to the same one of the other end",
            Steering::Destination => ", for its destination address",
            Steering::Source => ", for some source addresses",
            Steering::Hash => ", by a hash of source addresses",
        }
    }
}

/// Device that may accept rules.
pub(super) trait Steerable {
    /// Removes all rules.
    fn clear(&self);

    /// Adds a rule; the error is the driver's reason.
    fn add(&self, rule: &Rule) -> Result<(), String>;

    /// Spreads frames by a hash of their source addresses.
    fn hash(&self) -> Result<(), String>;
}

/// Makes a device pass each frame to its queue.
///
/// # Errors
/// The driver's reason why it refused the last of the ways.
pub(super) fn steer(device: &impl Steerable, demand: &Demand) -> Result<Steering, String> {
    let shared = demand.addresses.len() == 1;
    let kinds = [0, demand.ethertype];
    let kinds = if demand.tagged { &kinds[..1] } else { &kinds[..] };
    let mut why = String::new();
    for kind in kinds {
        device.clear();
        match rules(demand, *kind).iter().try_for_each(|rule| device.add(rule)) {
            Ok(()) => return Ok(if shared { Steering::Source } else { Steering::Destination }),
            Err(error) => why = error,
        }
    }
    device.clear();
    if shared && device.hash().is_ok() {
        return Ok(Steering::Hash);
    }
    Err(why)
}

/// Rules that divide the frames among all queues.
fn rules(demand: &Demand, ethertype: u16) -> Vec<Rule> {
    let all = [0xFF; 6];
    let for_address =
        |address: &Mac| Rule { destination: address.0, destination_mask: all, ethertype, ..Rule::default() };
    let [address] = demand.addresses[..] else {
        return (0..).zip(&demand.addresses).map(|(queue, to)| Rule { queue, ..for_address(to) }).collect();
    };
    let bits = bits(demand.queues);
    let last = |value: u16| {
        let [high, low] = value.to_be_bytes();
        [0, 0, 0, 0, high, low]
    };
    let from = |value: u16| Rule {
        source: last(value),
        source_mask: last((1 << bits) - 1),
        queue: value % demand.queues,
        ..for_address(&address)
    };
    (0..1 << bits).map(from).collect()
}

/// Number of last bits of the source address that select the queue.
fn bits(queues: u16) -> u32 {
    let bits = queues.next_power_of_two().trailing_zeros();
    if queues.is_power_of_two() { bits } else { bits + FURTHER_BITS }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    const OWN: Mac = Mac([2, 0, 0, 0, 0, 9]);
    const ETHERTYPE: u16 = 0x88B5;

    /// Device with a driver that accepts some rules.
    struct Driver {
        accepts: fn(&Rule) -> bool,
        hashes: bool,
        rules: RefCell<Vec<Rule>>,
    }

    impl Driver {
        fn new(accepts: fn(&Rule) -> bool, hashes: bool) -> Driver {
            Driver { accepts, hashes, rules: RefCell::default() }
        }

        /// Queues of the rules that match a frame.
        fn queues(&self, to: Mac, from: Mac) -> Vec<u16> {
            let is = |address: Mac, wanted: [u8; 6], mask: [u8; 6]| {
                (0..6).all(|at| (address.0[at] ^ wanted[at]) & mask[at] == 0)
            };
            let rules = self.rules.borrow();
            let matching = rules.iter().filter(|rule| {
                is(to, rule.destination, rule.destination_mask) && is(from, rule.source, rule.source_mask)
            });
            matching.map(|rule| rule.queue).collect()
        }
    }

    impl Steerable for Driver {
        fn clear(&self) {
            self.rules.borrow_mut().clear();
        }

        fn add(&self, rule: &Rule) -> Result<(), String> {
            if !(self.accepts)(rule) {
                return Err("not this one".into());
            }
            self.rules.borrow_mut().push(*rule);
            Ok(())
        }

        fn hash(&self) -> Result<(), String> {
            if self.hashes { Ok(()) } else { Err("no hash".into()) }
        }
    }

    fn sharded(queues: u8) -> Demand {
        let addresses = (0..queues).map(|queue| OWN.shard(queue)).collect();
        Demand { queues: queues.into(), addresses, ethertype: ETHERTYPE, tagged: false }
    }

    fn shared(queues: u16) -> Demand {
        Demand { queues, addresses: vec![OWN], ethertype: ETHERTYPE, tagged: false }
    }

    #[test]
    fn an_address_of_its_own_leads_to_its_queue() {
        let driver = Driver::new(|_| true, false);
        assert_eq!(steer(&driver, &sharded(16)), Ok(Steering::Destination));
        for queue in 0..16 {
            assert_eq!(driver.queues(OWN.shard(queue), Mac([6; 6])), [u16::from(queue)]);
        }
        assert!(driver.queues(Mac([2, 0, 0, 0, 0, 8]), Mac([6; 6])).is_empty());
        assert!(driver.rules.borrow().iter().all(|rule| rule.ethertype == 0), "also frames with a tag");
    }

    #[test]
    fn each_sender_to_a_shared_address_has_one_queue_and_no_queue_is_idle() {
        for queues in 1..=64 {
            let driver = Driver::new(|_| true, false);
            assert_eq!(steer(&driver, &shared(queues)), Ok(Steering::Source));
            let mut senders = vec![0_u32; queues.into()];
            for last in 0..1024_u16 {
                let [high, low] = last.to_be_bytes();
                let [queue] = driver.queues(OWN, Mac([2, 7, 7, 7, high, low]))[..] else {
                    panic!("{last} has not one queue of {queues}");
                };
                senders[usize::from(queue)] += 1;
            }
            let (least, most) = (*senders.iter().min().unwrap(), *senders.iter().max().unwrap());
            assert!(most <= least * 4 / 3 + 1, "{queues} queues: {least} to {most}");
        }
        // A compute node's queues have consecutive last octets, so each has another worker.
        let driver = Driver::new(|_| true, false);
        steer(&driver, &shared(4)).unwrap();
        let mut queues: Vec<u16> = (0..4).flat_map(|shard| driver.queues(OWN, OWN.shard(shard))).collect();
        queues.sort_unstable();
        assert_eq!(queues, [0, 1, 2, 3]);
    }

    #[test]
    fn a_driver_that_needs_the_ethertype_gets_it_unless_frames_have_tags() {
        let driver = Driver::new(|rule| rule.ethertype == ETHERTYPE, false);
        assert_eq!(steer(&driver, &sharded(2)), Ok(Steering::Destination));
        assert_eq!(driver.rules.borrow().len(), 2);
        let tagged = Demand { tagged: true, ..sharded(2) };
        assert_eq!(steer(&driver, &tagged), Err("not this one".into()));
        assert!(driver.rules.borrow().is_empty());
    }

    #[test]
    fn a_way_that_the_driver_accepts_in_part_leaves_no_rules() {
        let driver = Driver::new(|rule| rule.queue == 0, false);
        assert_eq!(steer(&driver, &sharded(2)), Err("not this one".into()));
        assert!(driver.rules.borrow().is_empty());
    }

    #[test]
    fn a_hash_divides_the_senders_where_no_rule_can() {
        let no_masks = |rule: &Rule| rule.source_mask == [0; 6];
        let driver = Driver::new(no_masks, true);
        assert_eq!(steer(&driver, &shared(2)), Ok(Steering::Hash));
        assert!(driver.rules.borrow().is_empty());
        assert!(steer(&Driver::new(no_masks, false), &shared(2)).is_err());
        // Addresses of queues have to lead to them, which a hash does not.
        assert!(steer(&Driver::new(|_| false, true), &sharded(2)).is_err());
    }
}
