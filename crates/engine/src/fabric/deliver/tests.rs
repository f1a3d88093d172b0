//! Every frame of a batch is delivered or counted, whatever becomes of its receiver's queues meanwhile.

use std::sync::{Arc, Mutex};

use super::*;
use crate::core::Lease;
use crate::fabric::topology::{Attach, Topology};
use crate::observe::CounterFile;
use crate::port::{EgressQueue, DEFAULT_MTU};
use crate::switch::Verdicts;

/// What a queue does when it is given frames.
type Then = Box<dyn Fn() + Send>;

/// A queue that takes everything and notes in which order.
struct Sink {
    got: Arc<Mutex<Vec<(usize, u16)>>>,
    number: usize,
    then: Option<Then>,
}

impl EgressQueue for Sink {
    fn send(&mut self, batch: &Batch, picks: &[u16], outcome: &mut Outcome) {
        for pick in picks {
            outcome.delivered(batch.frames()[usize::from(*pick)].len);
            self.got.lock().unwrap().push((self.number, *pick));
        }
        if let Some(then) = &self.then {
            then();
        }
    }
}

struct Rig {
    from: Arc<Port>,
    to: Arc<Port>,
    got: Arc<Mutex<Vec<(usize, u16)>>>,
    topology: Topology,
    delivery: Delivery,
    verdicts: Verdicts,
    _sinks: Vec<Lease<Sink>>,
}

impl Rig {
    /// A wire to a port with `queues` queues.
    fn new(queues: usize, then: impl Fn(usize, &Arc<Port>) -> Option<Then>) -> Rig {
        let file = CounterFile::anonymous().unwrap();
        let port = |id, name| {
            let counters = file.open_slot(PortId(id), name);
            Arc::new(Port::new(PortId(id), name, counters, DEFAULT_MTU).unwrap())
        };
        let (from, to) = (port(0, "from"), port(1, "to"));
        let got = Arc::<Mutex<Vec<_>>>::default();
        let mut sinks = Vec::new();
        for number in 0..queues {
            let sink = Sink { got: Arc::clone(&got), number, then: then(number, &to) };
            sinks.push(to.lend(number, sink));
        }
        let wire = [(Arc::clone(&from), Attach::Wire(PortId(1))), (Arc::clone(&to), Attach::Wire(PortId(0)))];
        let topology = Topology::new(&wire);
        Rig {
            from,
            to,
            got,
            topology,
            delivery: Delivery::new(0, Arc::default()),
            verdicts: Verdicts::new(),
            _sinks: sinks,
        }
    }

    fn forward(&mut self, batch: &Batch) {
        self.delivery.forward(&self.topology, &self.from, batch, 1, &mut self.verdicts);
    }

    /// Frames that were delivered, and frames that were dropped by name.
    fn counted(&self) -> (u64, Vec<(&'static str, u64)>) {
        let totals = self.to.counters.totals();
        (totals.out_frames, totals.named_drops().collect())
    }
}

/// A full batch of as many flows as frames.
fn flows() -> Batch {
    let mut batch = Batch::new();
    for i in 0..MAX_BATCH {
        let mut frame = [0; 60];
        frame[..2].copy_from_slice(&u16::try_from(i).unwrap().to_be_bytes());
        assert!(batch.push_short(&frame));
    }
    batch
}

#[test]
fn queues_share_the_flows_and_keep_their_order() {
    let mut rig = Rig::new(5, |_, _| None);
    rig.forward(&flows());
    assert_eq!(rig.counted(), (MAX_BATCH as u64, vec![]));
    let got = rig.got.lock().unwrap();
    for number in 0..5 {
        let mine: Vec<u16> =
            got.iter().filter(|(queue, _)| *queue == number).map(|(_, pick)| *pick).collect();
        assert!(!mine.is_empty() && mine.is_sorted());
    }
}

#[test]
fn frames_for_queues_that_go_in_the_middle_of_a_batch_are_counted() {
    for left in 0..4 {
        // The first queue that gets frames takes the others away.
        let mut rig = Rig::new(4, |number, port| {
            let port = Arc::downgrade(port);
            let then = move || {
                let port = port.upgrade().unwrap();
                port.say_queues(left);
                (left.max(1)..4).for_each(|queue| drop(port.egress(queue).unwrap().take()));
            };
            (number == 0).then(|| Box::new(then) as Then)
        });
        rig.forward(&flows());
        let (delivered, dropped) = rig.counted();
        let sum: u64 = dropped.iter().map(|(_, n)| n).sum();
        assert_eq!(delivered + sum, MAX_BATCH as u64, "{left} queues left: {dropped:?}");
        assert_eq!(delivered, rig.got.lock().unwrap().len() as u64);
        assert_eq!(dropped, [("link_down", sum)]);
    }
}

#[test]
fn frames_for_queues_that_come_in_the_middle_of_a_batch_are_given_once() {
    let mut rig = Rig::new(4, |number, port| {
        let port = Arc::downgrade(port);
        (number == 0).then(|| Box::new(move || port.upgrade().unwrap().say_queues(4)) as Then)
    });
    rig.to.say_queues(2);
    rig.forward(&flows());
    assert_eq!(rig.counted(), (MAX_BATCH as u64, vec![]));
}
