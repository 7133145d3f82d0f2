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
//!
//! The port of a card that the kernel has too gets only the frames of rules (isolated mode). Its rules match the
//! EtherType, with a tag and without, so that the kernel loses no other frames.

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
    /// Whether frames have an 802.1Q tag.
    pub tagged: bool,
    /// Whether the port gets only the frames of its rules, and the kernel all others.
    pub isolated: bool,
}

impl Demand {
    /// Ways to match the EtherType, in the order in which they are tried.
    fn matches(&self) -> &'static [EtherTypeMatch] {
        use EtherTypeMatch::{Any, Both, Untagged};
        match (self.isolated, self.tagged) {
            (false, false) => &[Any, Untagged],
            (false, true) => &[Any],
            (true, false) => &[Both, Untagged, Any],
            (true, true) => &[Both, Any],
        }
    }
}

/// Frames that the rules match by their EtherType.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EtherTypeMatch {
    /// Those of every protocol, with a tag or without.
    Any,
    /// Those of this protocol without a tag.
    Untagged,
    /// Those of this protocol, by a rule for those with a tag beside each rule for those without.
    Both,
}

/// Rules that a device has accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Steered {
    pub steering: Steering,
    /// Whether the rules match frames of other protocols as well.
    pub any_protocol: bool,
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
pub(super) fn steer(device: &impl Steerable, demand: &Demand) -> Result<Steered, String> {
    let shared = demand.addresses.len() == 1;
    let steering = match (demand.queues, shared) {
        (1, _) => Steering::Single,
        (_, true) => Steering::Source,
        (_, false) => Steering::Destination,
    };
    let mut why = String::new();
    for by in demand.matches() {
        device.clear();
        match rules(demand, *by).iter().try_for_each(|rule| device.add(rule)) {
            Ok(()) => return Ok(Steered { steering, any_protocol: *by == EtherTypeMatch::Any }),
            Err(error) => why = error,
        }
    }
    device.clear();
    // A hash would bring an isolated port the frames of all protocols and addresses.
    if shared && !demand.isolated && device.hash().is_ok() {
        return Ok(Steered { steering: Steering::Hash, any_protocol: true });
    }
    Err(why)
}

/// Rules that divide the frames among all queues.
fn rules(demand: &Demand, by: EtherTypeMatch) -> Vec<Rule> {
    let all = [0xFF; 6];
    let ethertype = if by == EtherTypeMatch::Any { 0 } else { demand.ethertype };
    let for_address =
        |address: &Mac| Rule { destination: address.0, destination_mask: all, ethertype, ..Rule::default() };
    let mut rules = match demand.addresses[..] {
        [address] => by_source(demand.queues, for_address(&address)),
        _ => (0..)
            .zip(&demand.addresses)
            .map(|(queue, to)| Rule { queue, ..for_address(to) })
            .collect::<Vec<_>>(),
    };
    if by == EtherTypeMatch::Both {
        rules.extend_from_within(..);
        let half = rules.len() / 2;
        rules[half..].iter_mut().for_each(|rule| rule.tagged = 1);
    }
    rules
}

/// Rules that divide the frames of `rule` among a number of queues, by the last bits of their source addresses.
fn by_source(queues: u16, rule: Rule) -> Vec<Rule> {
    let bits = bits(queues);
    let last = |value: u16| {
        let [high, low] = value.to_be_bytes();
        [0, 0, 0, 0, high, low]
    };
    let from = |value: u16| Rule {
        source: last(value),
        source_mask: last((1 << bits) - 1),
        queue: value % queues,
        ..rule
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

        /// Rules by which frames are steered, and whether they match other protocols.
        fn steer(&self, demand: &Demand) -> Result<(Steering, bool), String> {
            steer(self, demand).map(|steered| (steered.steering, steered.any_protocol))
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
        Demand { queues: queues.into(), addresses, ethertype: ETHERTYPE, tagged: false, isolated: false }
    }

    fn shared(queues: u16) -> Demand {
        Demand { queues, addresses: vec![OWN], ethertype: ETHERTYPE, tagged: false, isolated: false }
    }

    #[test]
    fn an_address_of_its_own_leads_to_its_queue() {
        let driver = Driver::new(|_| true, false);
        assert_eq!(driver.steer(&sharded(16)), Ok((Steering::Destination, true)));
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
            let steering = if queues == 1 { Steering::Single } else { Steering::Source };
            assert_eq!(driver.steer(&shared(queues)), Ok((steering, true)));
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
        assert_eq!(driver.steer(&sharded(2)), Ok((Steering::Destination, false)));
        assert_eq!(driver.rules.borrow().len(), 2);
        let tagged = Demand { tagged: true, ..sharded(2) };
        assert_eq!(driver.steer(&tagged), Err("not this one".into()));
        assert!(driver.rules.borrow().is_empty());
    }

    #[test]
    fn an_isolated_port_takes_only_frames_of_this_protocol_where_a_rule_can_say_so() {
        let isolated = |demand: Demand| Demand { isolated: true, ..demand };
        let driver = Driver::new(|_| true, true);
        assert_eq!(driver.steer(&isolated(shared(1))), Ok((Steering::Single, false)));
        let found: Vec<_> = driver.rules.borrow().iter().map(|rule| (rule.ethertype, rule.tagged)).collect();
        assert_eq!(found, [(ETHERTYPE, 0), (ETHERTYPE, 1)]);
        assert_eq!(driver.queues(OWN, Mac([6; 6])), [0, 0]);
        assert_eq!(driver.steer(&isolated(sharded(3))), Ok((Steering::Destination, false)));
        assert_eq!(driver.rules.borrow().len(), 6);

        let untagged = Driver::new(|rule| rule.tagged == 0, true);
        assert_eq!(untagged.steer(&isolated(shared(1))), Ok((Steering::Single, false)));
        assert_eq!(untagged.rules.borrow().len(), 1);
        let tagged = Demand { tagged: true, ..isolated(shared(1)) };
        assert_eq!(untagged.steer(&tagged), Ok((Steering::Single, true)));
        let addresses = Driver::new(|rule| rule.ethertype == 0, true);
        assert_eq!(addresses.steer(&isolated(shared(1))), Ok((Steering::Single, true)));
        // A hash of all frames is no way: the kernel has some of them.
        assert_eq!(Driver::new(|_| false, true).steer(&isolated(shared(2))), Err("not this one".into()));
    }

    #[test]
    fn a_way_that_the_driver_accepts_in_part_leaves_no_rules() {
        let driver = Driver::new(|rule| rule.queue == 0, false);
        assert_eq!(driver.steer(&sharded(2)), Err("not this one".into()));
        assert!(driver.rules.borrow().is_empty());
    }

    #[test]
    fn a_hash_divides_the_senders_where_no_rule_can() {
        let no_masks = |rule: &Rule| rule.source_mask == [0; 6];
        let driver = Driver::new(no_masks, true);
        assert_eq!(driver.steer(&shared(2)), Ok((Steering::Hash, true)));
        assert!(driver.rules.borrow().is_empty());
        assert!(steer(&Driver::new(no_masks, false), &shared(2)).is_err());
        // Addresses of queues have to lead to them, which a hash does not.
        assert!(steer(&Driver::new(|_| false, true), &sharded(2)).is_err());
    }
}
