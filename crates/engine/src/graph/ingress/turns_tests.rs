//! The guests' shares of a core: rounds without threads, with queues that always have frames.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::core::tests::by_hand::ByHand;
use crate::graph::topology::{Attach, Topology};
use crate::observe::CounterFile;
use crate::policy::{Policy, Storm, StormLimits};
use crate::port::{EgressQueue, Outcome, PortId, Room, DEFAULT_MTU};
use crate::switch::{Switch, SwitchOptions};

/// A guest that sends these frames in turn, as often as it may.
struct Source {
    frames: Vec<[u8; 60]>,
    sent: usize,
}

impl IngressQueue for Source {
    fn fetch(&mut self, batch: &mut Batch, tally: &mut Tally) {
        while batch.room() > 0 && batch.push_short(&self.frames[self.sent % self.frames.len()]) {
            self.sent += 1;
            tally.frames += 1;
        }
    }
    fn release(&mut self, _: &mut Tally) {}
    fn want_kicks(&mut self, _: bool) -> bool {
        true
    }
    fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A guest that gives `free` buffers, and as many again when it is asked for the next batch.
struct Sink {
    free: Arc<AtomicU64>,
    /// Frames for it alone that it got.
    own: Arc<AtomicU64>,
}

impl EgressQueue for Sink {
    fn send(&mut self, batch: &Batch, picks: &[u16], outcome: &mut Outcome) {
        for pick in picks {
            let left = self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
            match left {
                Ok(_) => {
                    let frame = batch.frame(*pick);
                    outcome.delivered(frame.len);
                    self.own.fetch_add(1 - (frame.dst() & 1), Ordering::Relaxed);
                }
                Err(_) => outcome.dropped(*pick, crate::port::DropReason::RingFull),
            }
        }
    }
    fn room(&mut self) -> Option<Room> {
        let free = u32::try_from(self.free.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        Some(Room { free, size: 1024 })
    }
}

fn frame(to: u8, from: u8) -> [u8; 60] {
    let mut bytes = [0; 60];
    bytes[..6].copy_from_slice(&if to == 0xff { [0xff; 6] } else { [2, 0, 0, 0, 0, to] });
    bytes[6..12].copy_from_slice(&[2, 0, 0, 0, 0, from]);
    bytes
}

struct Rig {
    core: ByHand<Local>,
    _leases: Vec<Lease<Sink>>,
    ports: Vec<Arc<Port>>,
    free: Vec<Arc<AtomicU64>>,
    own: Vec<Arc<AtomicU64>>,
}

impl Rig {
    /// `count` guests on a switch, those in `sends` with a frame that they send all the time.
    fn new(count: u8, policy: Policy, sends: &[[u8; 60]]) -> Rig {
        let file = CounterFile::anonymous().unwrap();
        let switch = Arc::new(Switch::new("lan", SwitchOptions::default()));
        let (mut ports, mut free, mut own, mut all) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut leases = Vec::new();
        for number in 0..count {
            let id = PortId(number.into());
            let port = Arc::new(Port::new(id, "p", file.open_slot(id, "p"), DEFAULT_MTU).unwrap());
            let buffers = Arc::new(AtomicU64::new(u32::MAX.into()));
            let sink = Sink { free: Arc::clone(&buffers), own: Arc::default() };
            own.push(Arc::clone(&sink.own));
            leases.push(port.lend(0, sink));
            all.push((Arc::clone(&port), Attach::Switch(Arc::clone(&switch))));
            ports.push(port);
            free.push(buffers);
        }
        let mut core = ByHand::new(Local::by_hand());
        let policy = policy.compile();
        core.local().topology = Arc::new(Topology::with_policies(&all, |_| policy.clone()));
        let mut rig = Rig { core, _leases: leases, ports, free, own };
        sends.iter().enumerate().for_each(|(port, frame)| rig.sends(port, &[*frame]));
        rig
    }

    /// From now on this guest sends these frames, in turn.
    fn sends(&mut self, port: usize, frames: &[[u8; 60]]) {
        let source = Source { frames: frames.to_vec(), sent: 0 };
        let task = NetTask::new(&self.ports[port], 0, source, PATIENCE);
        self.core.take(Home::<Source>::default().lend(Box::new(task) as _));
    }

    fn rounds(&mut self, from: u64, count: u64) {
        for round in from..from + count {
            self.core.round(round);
        }
    }

    fn out(&self, port: usize) -> u64 {
        self.ports[port].counters.totals().out_frames
    }

    fn sent(&self, port: usize) -> u64 {
        self.ports[port].counters.totals().in_frames
    }

    /// The law of conservation.
    fn is_conserved(&self) {
        let totals: Vec<_> = self.ports.iter().map(|port| port.counters.totals()).collect();
        let sum = |of: fn(&crate::observe::Totals) -> u64| totals.iter().map(of).sum::<u64>();
        assert_eq!(sum(|t| t.in_frames + t.made), sum(|t| t.out_frames + t.drops.iter().sum::<u64>()));
    }
}

/// Guest 0 floods, guest 1 sends to guest 2, which was heard before.
fn flood_and_flow(count: u8, policy: Policy) -> Rig {
    let mut rig = Rig::new(count, policy, &[frame(0xff, 0), frame(2, 1), frame(1, 2)]);
    // One round in which all are heard, guest 2 first; from then on it only receives.
    rig.core.swap(0, 2);
    rig.rounds(1, 1);
    rig.core.remove(0);
    rig.core.swap(0, 1);
    rig
}

#[test]
fn a_flood_has_a_turn_of_copies_and_the_flow_beside_it_loses_nothing() {
    let mut rig = flood_and_flow(33, Policy::default());
    let (flooded, flowed) = (rig.sent(0), rig.sent(1));
    assert_eq!((flooded, flowed), (256, 256));
    rig.rounds(2, 200);
    assert_eq!(rig.sent(1) - flowed, 200 * 256, "a whole batch in each round");
    let copies = (rig.sent(0) - flooded) * 32;
    // The first batch was a surprise, and is paid for: with it the flood has had as much of the core as the
    // flow.
    assert!((200 * 256..=206 * 256).contains(&(copies + 256 * 32)), "{copies}");
    rig.is_conserved();
    // Alone it does not wait.
    rig.core.truncate(1);
    let before = rig.sent(0);
    rig.rounds(202, 100);
    let alone = rig.sent(0) - before;
    assert!((100 * 30..=100 * 31).contains(&alone), "turns of the longest time: {alone}");
}

#[test]
fn a_flood_leaves_buffers_to_others() {
    let mut rig = flood_and_flow(3, Policy::default());
    // What the first flood cost is paid before.
    rig.rounds(2, 10);
    let (before, own) = (rig.out(2), rig.own[2].load(Ordering::Relaxed));
    for round in 12..112 {
        // The guest takes ten frames between two rounds.
        rig.free[2].store(10, Ordering::Relaxed);
        rig.rounds(round, 1);
    }
    assert_eq!(rig.out(2) - before, 1000, "no buffer is left unused");
    let flow = rig.own[2].load(Ordering::Relaxed) - own;
    assert!(
        (500..600).contains(&flow),
        "half of them for the flow, all of them while the flood is passed over: {flow}"
    );
    rig.is_conserved();
}

#[test]
fn a_storm_limit_drops_by_name_what_is_beyond() {
    let limits = StormLimits { broadcast: 100, unicast: 100, ..StormLimits::default() };
    let policy = Policy { storm: Storm::new(limits), ..Policy::default() };
    // Guest 1 sends to a station that the switch does not know.
    let mut rig = Rig::new(5, policy, &[frame(0xff, 0), frame(9, 1)]);
    rig.rounds(1, 10);
    for (port, name) in [(0, "storm_broadcast"), (1, "storm_unicast")] {
        let totals = rig.ports[port].counters.totals();
        let dropped = totals.named_drops().find(|(reason, _)| *reason == name).map_or(0, |(_, n)| n);
        let passed = rig.sent(port) - dropped;
        assert!(passed >= 3 && dropped > passed, "{name}: {passed} passed, {dropped} dropped");
    }
    rig.is_conserved();
}

/// A batch whose floods were all beyond the limit has other frames, too: none of them is lost.
#[test]
fn a_storm_limit_takes_nothing_but_floods() {
    let policy = Policy {
        storm: Storm::new(StormLimits { broadcast: 10, ..StormLimits::default() }),
        ..Policy::default()
    };
    let mut rig = Rig::new(3, policy, &[]);
    rig.sends(2, &[frame(0, 2)]);
    rig.rounds(1, 1);
    rig.core.remove(0);
    rig.sends(0, &[frame(0xff, 0), frame(2, 0)]);
    rig.rounds(2, 10);
    assert_eq!(rig.own[2].load(Ordering::Relaxed), rig.sent(0) / 2);
    rig.is_conserved();
}
