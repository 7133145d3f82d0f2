//! The part of the agent's worker that serves clients, driven round by round by a test.

use std::ops::Range;
use std::os::unix::net::UnixStream;

use cxloe_client::memory::SharedMemory;
use cxloe_client::ring::{AgentEnd, ClientEnd, Completion, Operation, PORT_BYTES, Submission};
use cxloe_client::status::Status;
use cxloe_cn_core::cache::CacheConfig;
use cxloe_fabric::hdm::{Granularity, Ways};
use cxloe_link::Link;
use cxloe_port::port::PortParts;
use cxloe_rings::client::Client;
use cxloe_rings::client_slot::ClientSlots;
use cxloe_rings::clients::Clients;
use cxloe_wire::machine::StateMachine;

use super::looped::{HPA, open_with, route};

/// Maximum number of rounds that an operation may take.
pub const ROUNDS: usize = 100_000;

pub struct Agent {
    parts: PortParts,
    pub clients: Clients,
    slots: ClientSlots,
    /// Size of each region in bytes.
    pub bytes: usize,
    pub regions: Vec<Range<u64>>,
}

/// The client's ends of its rings and of its socket.
pub struct Ends {
    pub ring: ClientEnd,
    _socket: UnixStream,
}

impl Agent {
    /// An agent with one region, which begins at [`HPA`].
    pub fn start(ways: Ways, granularity: Granularity) -> Agent {
        Agent::with_regions(CacheConfig::OFF, ways, granularity, 1)
    }

    /// An agent with two regions of 256 KiB, and the default line cache.
    pub fn with_two_regions() -> Agent {
        Agent::with_regions(CacheConfig::default(), Ways::Four, Granularity::PAGE, 2)
    }

    fn with_regions(cache: CacheConfig, ways: Ways, granularity: Granularity, count: u64) -> Agent {
        let (mut port, _tables) = open_with(cache, ways.count() as u8, 1514);
        let mut regions = Vec::new();
        let mut bytes = 0;
        for index in 0..count {
            let route = route(HPA + (index << 30), ways, granularity, 0, index > 0);
            bytes = route.decoder.size;
            regions.push(route.decoder.base..route.decoder.base + bytes);
            port.engine().add_route(route).expect("a route");
        }
        let (clients, slots) = (Clients::new(8), ClientSlots::new(8, 8));
        Agent { parts: port.into_parts(), clients, slots, bytes: bytes as usize, regions }
    }

    /// Connects a client that may use all regions.
    pub fn connect(&mut self) -> Ends {
        self.connect_as(None).0
    }

    /// Connects a client of user `uid`. Also returns a second mapping of the client's memory, by which a test
    /// can overwrite the rings.
    pub fn connect_as(&mut self, uid: Option<u32>) -> (Ends, SharedMemory) {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let end = AgentEnd::new(SharedMemory::create(PORT_BYTES).expect("memory"));
        let memory = end.memory().descriptor().try_clone_to_owned().expect("a copy");
        let slot = self.slots.take(None).expect("a slot");
        self.clients.add(Box::new(Client::new(end, ours, slot, uid)));
        let again = memory.try_clone().expect("a copy");
        let memory = SharedMemory::open(memory, PORT_BYTES).expect("the same memory");
        let ring = ClientEnd::new(memory).expect("an end");
        let ends = Ends { ring, _socket: theirs };
        (ends, SharedMemory::open(again, PORT_BYTES).expect("the same memory"))
    }

    pub fn round(&mut self, mapped: &[std::ops::Range<u64>]) {
        let PortParts { link, engine, clock, .. } = &mut self.parts;
        let clients = &mut self.clients;
        let now = clock.now();
        link.receive(64, &mut |frame, tx| engine.handle(frame, now, tx, clients)).expect("frames");
        clients.serve(engine, mapped, now, link.transmit());
        if engine.deadline().is_due(now) {
            engine.poll(now, link.transmit(), clients);
        }
        link.flush().expect("a flush");
    }

    /// Runs rounds until this client has a completion.
    pub fn completion(&mut self, client: &mut Ends) -> Completion {
        for _ in 0..ROUNDS {
            if let Some(completion) = client.ring.take(&mut [0; 64]) {
                return completion;
            }
            self.round(&[]);
        }
        panic!("no completion");
    }

    /// Submits an operation, and runs rounds until it has ended.
    pub fn run(
        &mut self,
        client: &mut Ends,
        operation: Operation,
        hpa: u64,
        line: Option<&[u8; 64]>,
    ) -> Status {
        client.ring.submit(Submission { tag: 7, operation, hpa }, line);
        let Completion { tag, status } = self.completion(client);
        assert_eq!(tag, 7);
        status
    }
}

impl Ends {
    /// Copies `bytes` into the data area, from line `line` on.
    pub fn put(&self, line: u32, bytes: &[u8]) {
        let (memory, base) = self.ring.data();
        memory.put(base + line as usize * 64, bytes);
    }

    /// Copies `length` bytes out of the data area, from line `line` on.
    pub fn get(&self, line: u32, length: usize) -> Vec<u8> {
        let (memory, base) = self.ring.data();
        let mut bytes = vec![0; length];
        memory.take(base + line as usize * 64, &mut bytes);
        bytes
    }
}
