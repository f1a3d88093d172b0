//! The 82574L's second rings.

use super::*;
use crate::device::e1000::regs::{RX_RINGS, TX_RINGS};

/// Where the second rings lie.
const TX_RING_1: u64 = 0x5000;
const RX_RING_1: u64 = 0x7000;
const RX_BUFFERS_1: u64 = 0xc_0000;
/// Messages of the second rings: receive, transmit.
const RXQ1: usize = 3;
const TXQ1: usize = 4;

/// A device whose second rings are set up; receive side scaling is on, and sends IPv4 to the second one.
fn pair() -> Rig {
    let mut rig = rig(Model::E1000e);
    rig.program(regs::TX_RING_1, TX_RING_1, RING_SIZE);
    rig.program(regs::RX_RING_1, RX_RING_1, RING_SIZE);
    rig.write(regs::IVAR, 0x000a_c9b8);
    rig.write(regs::EIAC, regs::RXQ0 | regs::RXQ1 | regs::TXQ0 | regs::TXQ1);
    rig.write(regs::IMS, regs::RXQ1 | regs::TXQ1);
    (0..32).for_each(|word| rig.write(regs::RETA + 4 * word, 0x8080_8080));
    rig.write(regs::RXCSUM, regs::RXCSUM_PCSD);
    rig.write(regs::MRQC, regs::MRQC_RSS | regs::MRQC_IPV4);
    rig
}

impl Rig {
    fn transmit_1(&self, place: u64, frame: &[u8]) {
        let buffer = TX_BUFFERS + 0x2_0000 + (place % RING_SIZE) * 0x1000;
        self.store(buffer, frame);
        self.describe(TX_RING_1, place % RING_SIZE, [buffer, LEGACY | frame.len() as u64]);
        self.poke(regs::TX_RING_1 + ring::TAIL, ((place + 1) % RING_SIZE) as u32);
    }

    fn post_1(&self, from: u64, to: u64) {
        for place in from..to {
            self.describe(RX_RING_1, place % RING_SIZE, [RX_BUFFERS_1 + (place % RING_SIZE) * 0x800, 0]);
        }
        self.poke(regs::RX_RING_1 + ring::TAIL, (to % RING_SIZE) as u32);
    }

    /// The frames whose descriptors are done, from `place` on.
    fn received(&self, ring: u64, buffers: (u64, u64), place: u64) -> Vec<Vec<u8>> {
        let words = |place: u64| self.load_u64(ring + 16 * place + 8);
        let done = (place..RING_SIZE).take_while(|place| words(*place) & regs::rx::DD != 0);
        done.map(|place| self.load(buffers.0 + place * buffers.1, (words(place) >> 32 & 0xffff) as usize))
            .collect()
    }
}

fn numbered(n: u8) -> Vec<u8> {
    let mut frame = packet(false, false, 50, false);
    *frame.last_mut().unwrap() = n;
    frame
}

#[test]
fn both_transmit_rings_are_served_in_turns_and_report_for_themselves() {
    let mut rig = pair();
    for n in 0..3 {
        rig.transmit(n, &numbered(n as u8), &[LEGACY]);
        rig.transmit_1(n, &numbered(100 + n as u8));
    }
    let sent =
        |rig: &Rig| -> Vec<u8> { rig.poll().0.iter().map(|(frame, _)| *frame.last().unwrap()).collect() };
    let mut first = sent(&rig);
    let head = first[0];
    first.sort_unstable();
    assert_eq!(first, [0, 1, 2, 100, 101, 102]);
    let done = |ring: u64, place: u64| rig.load_u64(ring + 16 * place + 8) & regs::tx::DD != 0;
    assert!((0..3).all(|place| done(TX_RING, place) && done(TX_RING_1, place)));
    assert_eq!([rig.interrupted(1), rig.interrupted(TXQ1)], [true; 2]);
    // The other one is first the next time.
    rig.write(regs::IMS, regs::TXQ0 | regs::TXQ1);
    rig.transmit(3, &numbered(3), &[LEGACY]);
    rig.transmit_1(3, &numbered(103));
    let second = sent(&rig);
    assert_eq!((second.len(), second[0] < 100), (2, head >= 100));
    // One alone does not interrupt for the other.
    assert_eq!([rig.interrupted(1), rig.interrupted(TXQ1)], [true; 2]);
    rig.write(regs::IMS, regs::TXQ0 | regs::TXQ1);
    rig.transmit_1(4, &numbered(104));
    assert_eq!(sent(&rig), [104]);
    assert_eq!([rig.interrupted(1), rig.interrupted(TXQ1)], [false, true]);
    let shown: Vec<_> =
        rig.device.queues().iter().map(|queue| (queue.direction, queue.index, queue.size)).collect();
    assert_eq!(shown, [("ingress", 0, 32), ("ingress", 1, 32), ("egress", 0, 32), ("egress", 1, 32)]);
    assert!(rig.device.queues().iter().all(|queue| queue.state == "running" && queue.kind == "exitless"));
}

#[test]
fn a_ring_that_is_programmed_anew_while_it_is_on_begins_anew() {
    let mut rig = pair();
    for round in 0..3 {
        (0..5).for_each(|place| rig.transmit_1(place, &numbered(place as u8)));
        rig.post_1(0, 5);
        assert_eq!(rig.poll().0.len(), 5, "round {round}");
        assert_eq!(rig.deliver(&[(&numbered(1), Offload::NONE)]).frames, 0, "not ours: the filter");
        let frame = [&MAC.0[..], &numbered(1)[6..]].concat();
        assert_eq!(rig.deliver(&[(&frame, Offload::NONE)]).frames, 1);
        assert_eq!(rig.received(RX_RING_1, (RX_BUFFERS_1, 0x800), 0).len(), 1);
        rig.program(regs::TX_RING_1, TX_RING_1, RING_SIZE);
        rig.program(regs::RX_RING_1, RX_RING_1, RING_SIZE);
    }
    // Without a length it is not there, and a reset takes it away.
    rig.transmit_1(0, &numbered(0));
    rig.poke(regs::TX_RING_1 + ring::LEN, 0);
    assert_eq!((rig.poll().0.len(), rig.device.queues().len()), (0, 3));
    rig.write(regs::CTRL, regs::CTRL_RST);
    assert_eq!((rig.device.queues().len(), rig.read(regs::MRQC)), (2, 0));
}

#[test]
fn the_82540em_has_no_second_ring() {
    let rig = rig(Model::E1000);
    rig.program(regs::TX_RING_1, TX_RING_1, RING_SIZE);
    rig.transmit_1(0, &numbered(0));
    rig.transmit(0, &numbered(1), &[LEGACY]);
    assert_eq!((rig.poll().0.len(), rig.device.queues().len()), (1, 2));
}

#[test]
fn receive_side_scaling_chooses_the_ring_and_says_so() {
    let mut rig = pair();
    rig.post(0, 8);
    rig.post_1(0, 8);
    let flow = |n: u8| [&MAC.0[..], &numbered(n)[6..]].concat();
    let other = |n: u8| [&MAC.0[..], &PEER, &[0x88, 0xb5, n], &[0; 60]].concat();
    let frames = [flow(1), other(1), flow(2), other(2), other(3), flow(3)];
    let all: Vec<(&[u8], Offload)> = frames.iter().map(|frame| (&frame[..], Offload::NONE)).collect();
    let outcome = rig.deliver(&all);
    assert_eq!((outcome.frames, outcome.interrupts), (6, 2));
    assert_eq!(rig.received(RX_RING_1, (RX_BUFFERS_1, 0x800), 0), [flow(1), flow(2), flow(3)]);
    assert_eq!(rig.received(RX_RING, (RX_BUFFERS, 0x1000), 0), [other(1), other(2), other(3)]);
    assert_eq!([rig.interrupted(0), rig.interrupted(RXQ1)], [true; 2]);
    // Kind 2, ring 1, and a hash by a key of zero; nothing for what was not hashed.
    assert_eq!([rig.load_u64(RX_RING_1), rig.load_u64(RX_RING)], [0x102, 0]);
    // Each message is held until its own cause is enabled.
    rig.deliver(&all[..1]);
    rig.write(regs::IMS, regs::RXQ0);
    assert!(!rig.interrupted(RXQ1));
    rig.write(regs::IMS, regs::RXQ1);
    assert!(rig.interrupted(RXQ1));
    assert_eq!(rig.read(0x4074), 7, "one count for both");
    // Off, or with descriptors that have no place for it: everything goes to the first.
    for (register, value) in
        [(regs::RFCTL, 0), (regs::RFCTL, regs::RFCTL_EXTEN), (regs::MRQC, regs::MRQC_IPV4)]
    {
        let before = rig.shared_head(1);
        rig.write(register, value);
        assert_eq!(rig.deliver(&all[..1]).frames, 1);
        let moved = rig.shared_head(1) != before;
        assert_eq!(moved, register == regs::RFCTL && value != 0);
    }
}

impl Rig {
    /// Where receive ring `queue` is, once it rests.
    fn shared_head(&mut self, queue: usize) -> u32 {
        let rctl = self.read(regs::RCTL);
        self.write(regs::RCTL, rctl & !regs::RCTL_EN);
        self.write(regs::RCTL, rctl);
        self.read(RX_RINGS[queue] + ring::HEAD)
    }
}

#[test]
fn a_full_ring_is_nothing_to_the_other() {
    let mut rig = pair();
    rig.post(0, 8);
    rig.post_1(0, 2);
    let flow = [&MAC.0[..], &numbered(1)[6..]].concat();
    let other = [&MAC.0[..], &PEER, &[0x88, 0xb5], &[0; 60]].concat();
    let frames: Vec<(&[u8], Offload)> =
        (0..10).map(|n| (if n % 2 == 0 { &flow[..] } else { &other }, Offload::NONE)).collect();
    let outcome = rig.deliver(&frames);
    assert_eq!((outcome.frames, outcome.drops.counts[DropReason::RingFull as usize]), (7, 3));
    assert_eq!(rig.received(RX_RING, (RX_BUFFERS, 0x1000), 0).len(), 5);
    assert_eq!(rig.read(0x4010), 3);
    let is_full = |rig: &Rig| rig.port.egress(0).unwrap().as_mut().unwrap().is_full();
    assert!(!is_full(&rig), "there is room for some");
    rig.deliver(&frames);
    assert!(is_full(&rig));
}

#[test]
fn without_messages_both_rings_have_the_causes_of_one() {
    let mut rig = pair();
    // The pin instead of MSI-X.
    write_config(&mut rig.device, 0xa2, &[0, 0]);
    rig.device.interrupts().set_trigger(Index::Intx, 0, Some(rig.events[0].try_clone().unwrap()));
    rig.post_1(0, 8);
    let flow = [&MAC.0[..], &numbered(1)[6..]].concat();
    rig.read(regs::ICR);
    rig.deliver(&[(&flow, Offload::NONE)]);
    assert!(rig.interrupted(0));
    assert_eq!(rig.read(regs::ICR) & (regs::RXT0 | regs::RXQ1), regs::RXT0);
    rig.device.interrupts().unmask();
    rig.transmit_1(0, &numbered(1));
    rig.poll();
    assert!(rig.interrupted(0));
    assert_eq!(rig.read(regs::ICR) & (regs::TXDW | regs::TXQ1), regs::TXDW);
}

#[test]
fn a_trapped_tail_of_the_second_ring_wakes_and_is_counted() {
    let mut rig = pair();
    rig.desk.queues.lock().unwrap().values_mut().map(|seat| seat.queue()).for_each(|queue| {
        assert!(!queue.want_kicks(true));
    });
    rig.transmit_1(0, &numbered(0));
    rig.write(TX_RINGS[1] + ring::TAIL, 1);
    assert!(rustix::io::read(rig.device.nic.irq.alarm.wake_fd(), &mut [0; 8]).is_ok());
    assert_eq!(rig.device.queues().iter().filter(|queue| queue.kind == "trapping").count(), 1);
    assert!(rig.device.features().contains(&"trapped-tx-tails=1".to_owned()));
}

#[test]
fn reports_of_one_ring_do_not_wait_for_the_other() {
    let mut rig = rig_with(E1000Config::new(Model::E1000e, MAC));
    rig.program(regs::TX_RING_1, TX_RING_1, RING_SIZE);
    rig.write(regs::IVAR, 0x000a_c9b8);
    rig.write(regs::IMS, regs::TXQ1);
    // Half of the second ring is told of at once, a frame of the first one waits.
    rig.transmit(0, &numbered(0), &[LEGACY]);
    (0..REPORT_AT).for_each(|place| rig.transmit_1(place, &numbered(1)));
    assert_eq!(rig.poll().0.len() as u64, 1 + REPORT_AT);
    assert!(rig.interrupted(TXQ1));
}

/// Both rings of each direction go on in another process at the right descriptor.
#[test]
fn the_second_rings_outlive_their_process() {
    let rig = pair();
    let flow = [&MAC.0[..], &numbered(1)[6..]].concat();
    rig.post_1(0, 16);
    for place in 0..3 {
        rig.transmit_1(place, &numbered(1));
        rig.transmit(place, &numbered(2), &[LEGACY]);
        assert_eq!(rig.poll().0.len(), 2);
        assert_eq!(rig.deliver(&[(&flow, Offload::NONE)]).frames, 1);
    }
    rig.transmit_1(3, &numbered(7));
    let rig = rig.taken_over();
    assert_eq!(rig.poll().0.len(), 1, "one was waiting");
    assert_eq!(rig.deliver(&[(&flow, Offload::NONE)]).frames, 1);
    assert_eq!(
        rig.received(RX_RING_1, (RX_BUFFERS_1, 0x800), 0).len(),
        4,
        "the next descriptor, by the same rules"
    );
}

/// A batch of the second receive ring was being marked when its process ended: the mark of an extended
/// descriptor is written before its status, and tells the driver nothing.
#[test]
fn a_marked_batch_of_the_second_ring_is_whole() {
    for (step, done) in [(0, false), (1, false), (2, true)] {
        let rig = pair();
        let flow = [&MAC.0[..], &numbered(1)[6..]].concat();
        rig.post_1(0, 16);
        assert_eq!(rig.deliver(&[(&flow, Offload::NONE)]).frames, 1);
        let words = |rig: &Rig, place: u64| [0, 8].map(|at| rig.load_u64(RX_RING_1 + 16 * place + at));
        let before = words(&rig, 1);
        assert_eq!(rig.deliver(&[(&flow, Offload::NONE)]).frames, 1);
        let marked = words(&rig, 1);
        let journal = &rig.journals()[3];
        journal.begin_receive(2, true, before, &[(1, marked)]);
        journal.moved(1, 1, 1);
        rig.poke(regs::RX_RING_1 + ring::HEAD, 1);
        let now = [[before[0], before[1]], [marked[0], before[1]], marked][step];
        rig.describe(RX_RING_1, 1, now);
        if done {
            // The driver has taken it and filled the descriptor anew.
            rig.describe(RX_RING_1, 1, before);
            rig.poke(regs::RX_RING_1 + ring::TAIL, 1);
        }
        let rig = rig.taken_over();
        assert_eq!(words(&rig, 1), if done { before } else { marked }, "step {step}");
    }
}
