//! A router between two cards that are lists of frames.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;

use rustix::event::{eventfd, EventfdFlags};

use super::*;
use crate::load::frame;

/// What the outside sees of a card.
#[derive(Debug)]
struct Wire {
    incoming: Mutex<VecDeque<Vec<u8>>>,
    outgoing: Mutex<Vec<Vec<u8>>>,
    event: OwnedFd,
}

#[derive(Debug)]
struct Card {
    wire: Arc<Wire>,
    /// Frames that its ring holds until they are taken from outside.
    room: usize,
    made: Vec<Vec<u8>>,
    armed: bool,
    most: u16,
}

impl Card {
    fn new(room: usize) -> Card {
        let event = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let wire = Wire { incoming: Mutex::default(), outgoing: Mutex::default(), event };
        Card { wire: Arc::new(wire), room, made: Vec::new(), armed: false, most: 0 }
    }
}

impl Nic for Card {
    fn receive(&mut self, limit: u16, mut see: impl FnMut(&[u8])) -> Result<u16> {
        let mut frames = 0;
        while frames < limit {
            let Some(frame) = self.wire.incoming.lock().unwrap().pop_front() else { break };
            see(&frame);
            frames += 1;
        }
        self.most = self.most.max(frames);
        Ok(frames)
    }

    fn put(&mut self, write: impl FnOnce(&mut [u8]) -> usize) -> Result<bool> {
        let room = self.made.len() + self.wire.outgoing.lock().unwrap().len() < self.room;
        if room {
            let mut buffer = vec![0; 2048];
            let len = write(&mut buffer);
            buffer.truncate(len);
            self.made.push(buffer);
        }
        Ok(room)
    }

    fn publish(&mut self) -> Result<()> {
        self.wire.outgoing.lock().unwrap().append(&mut self.made);
        Ok(())
    }

    fn has_frames(&mut self) -> Result<bool> {
        Ok(!self.wire.incoming.lock().unwrap().is_empty())
    }

    fn arm(&mut self) -> Result<bool> {
        self.armed = true;
        self.has_frames()
    }

    fn disarm(&mut self) -> Result<bool> {
        self.armed = false;
        Ok(rustix::io::read(&self.wire.event, &mut [0; 8]).is_ok())
    }

    fn interrupt(&self) -> BorrowedFd<'_> {
        self.wire.event.as_fd()
    }
}

/// The router has at both ports the address to which the load's frames go.
const OWN: [u8; 6] = [2, 0x73, 0x63, 0, 0, 2];
const HOPS: [Hop; 2] = [Hop { from: OWN, to: [2; 6] }, Hop { from: OWN, to: [4; 6] }];

fn router(room: usize) -> (GuestRouter<Card>, [Arc<Wire>; 2]) {
    let cards = [Card::new(room), Card::new(room)];
    let wires = cards.each_ref().map(|card| Arc::clone(&card.wire));
    let config = Config { hops: HOPS, cost_ns: 0.0, budget: 8 };
    (GuestRouter::new(cards, &config).unwrap(), wires)
}

fn bring(wire: &Wire, frames: usize) {
    wire.incoming.lock().unwrap().extend((0..frames).map(|_| frame(0, 60)));
}

#[test]
fn frames_leave_by_the_other_port_with_new_addresses() {
    let (mut router, wires) = router(64);
    assert!(!router.turn().unwrap(), "nothing has come");
    bring(&wires[0], 3);
    bring(&wires[1], 2);
    wires[0].incoming.lock().unwrap().push_back(vec![0; 60]);
    assert!(!router.turn().unwrap(), "short polls ask for interrupts");
    let out = wires.each_ref().map(|wire| std::mem::take(&mut *wire.outgoing.lock().unwrap()));
    assert_eq!(out.each_ref().map(Vec::len), [2, 3]);
    assert!(out[1].iter().all(|frame| frame[..6] == HOPS[1].to && frame[6..12] == HOPS[1].from));
    assert!(out[0].iter().all(|frame| frame[..6] == HOPS[0].to && frame[22] == 63 && frame.len() == 60));
    let counts = router.counters().load();
    assert_eq!((counts.received, counts.forwarded, counts.unroutable, counts.dropped()), (6, 5, 1, 1));
}

#[test]
fn a_card_with_more_than_a_budget_is_polled_on() {
    let (mut router, wires) = router(64);
    bring(&wires[0], 19);
    assert!(router.turn().unwrap() && router.turn().unwrap());
    bring(&wires[1], 1);
    assert!(!router.turn().unwrap(), "three frames were left, and one at the other port");
    let counts = router.counters().load();
    assert_eq!((counts.forwarded, counts.full_polls, counts.short_polls), (20, 2, 3));
    assert_eq!((router.ports[0].most, router.ports[0].armed), (8, true));
}

#[test]
fn a_full_ring_costs_frames_that_were_routed() {
    let (mut router, wires) = router(5);
    bring(&wires[0], 8);
    router.turn().unwrap();
    let counts = router.counters().load();
    assert_eq!((counts.received, counts.forwarded, counts.no_room), (8, 5, 3));
    assert_eq!(counts.since(&Counts { received: 2, ..Counts::default() }).received, 6);
}

#[test]
fn a_thread_sleeps_until_a_card_interrupts() {
    let (router, wires) = router(64);
    let vcpu = router.start().unwrap();
    let name = std::fs::read_to_string(format!("/proc/self/task/{}/comm", vcpu.thread())).unwrap();
    assert_eq!(name.trim(), "CPU 0/KVM");
    let start = std::time::Instant::now();
    for round in 1..=20 {
        bring(&wires[0], 1);
        rustix::io::write(&wires[0].event, &1u64.to_ne_bytes()).unwrap();
        while vcpu.counts().forwarded < round {
            assert!(start.elapsed().as_secs() < 20, "{:?}", vcpu.counts());
            std::thread::yield_now();
        }
    }
    assert!(vcpu.counts().interrupts > 0);
    vcpu.stop().unwrap();
}

#[test]
fn a_router_polls_something() {
    let config = Config { hops: HOPS, cost_ns: 0.0, budget: 0 };
    assert!(GuestRouter::new([Card::new(1), Card::new(1)], &config).is_err());
}
