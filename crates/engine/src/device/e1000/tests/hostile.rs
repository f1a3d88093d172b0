//! What only a guest does that means harm, or whose driver is broken.

use super::*;

/// A ring for many descriptors, and room behind it.
const LONG_RING: u64 = 0x4_0000;
const LONG: u64 = 0x1000;

fn queue<T>(rig: &Rig, see: impl FnOnce(&mut dyn IngressQueue) -> T) -> T {
    let mut queues = rig.desk.queues.lock().unwrap();
    see(queues.values_mut().next().expect("the transmit queue is not served").queue())
}

#[test]
fn contexts_in_the_middle_of_a_packet_are_counted_as_its_descriptors() {
    let rig = rig(Model::E1000e);
    rig.program(regs::TX_RING, LONG_RING, LONG);
    rig.describe(LONG_RING, 0, [TX_BUFFERS, DATA | 100]);
    // The bit of a context that says TCP is EOP elsewhere.
    for place in 1..LONG {
        rig.describe(LONG_RING, place, [0, regs::tx::DEXT | regs::tx::RS | regs::tx::TCP]);
    }
    rig.poke(regs::TX_RING + ring::TAIL, LONG as u32 - 1);
    let (frames, tally) = rig.poll();
    assert!(frames.is_empty());
    assert_eq!((tally.frames, tally.drops.counts[DropReason::TooManyPieces as usize]), (1, 1));
    assert!(rig.read_head() < 1024, "one visit looks at so many at most");
    while rig.read_head() != LONG as u32 - 1 {
        assert_eq!(rig.poll().1.frames, 0);
    }
    // The packet has not ended yet. The one after its end is whole.
    rig.describe(LONG_RING, LONG - 1, [TX_BUFFERS, LAST | 100]);
    rig.describe(LONG_RING, 0, [TX_BUFFERS, LAST | 100]);
    rig.poke(regs::TX_RING + ring::TAIL, 1);
    assert_eq!(rig.poll().0.len(), 1);
    assert_eq!(rig.port.fault.get(), None);
}

/// What is read there are zeros, which are the beginning of a packet.
#[test]
fn memory_that_is_cut_short_under_a_transmit_ring_stops_it() {
    both(|model| {
        let rig = rig(model);
        rig.transmit(0, &packet(false, false, 100, false), &[LEGACY]);
        assert_eq!((rig.poll().0.len(), rig.port.fault.get()), (1, None));
        ftruncate(&rig.file, 0).unwrap();
        rig.poke(regs::TX_RING + ring::TAIL, 2);
        assert_eq!(rig.poll().1.frames, 0);
        assert_eq!(rig.port.fault.get(), Some(Fault::MemoryTruncated));
        assert!(!queue(&rig, |queue| queue.want_kicks(true)), "a ring that has stopped has no work");
    });
}

impl Rig {
    fn read_head(&self) -> u32 {
        self.device.nic.regs.get(regs::TX_RING + ring::HEAD)
    }
}

#[test]
fn a_packet_that_the_driver_never_ends_lets_the_core_sleep() {
    both(|model| {
        let rig = rig(model);
        let frame = packet(false, false, 100, false);
        rig.transmit(0, &frame[..50], &[DATA]);
        assert!(queue(&rig, |queue| queue.want_kicks(true)), "nobody has looked at it yet");
        assert_eq!(rig.poll().1.frames, 0);
        assert!(!queue(&rig, |queue| queue.want_kicks(true)));
        // A nap is bounded, so its end is found without a kick.
        assert!(queue(&rig, |queue| queue.longest_sleep()).is_some());
        rig.transmit(1, &frame[50..], &[LAST]);
        assert!(queue(&rig, |queue| queue.want_kicks(true)));
        assert_eq!(rig.poll().0[0].0, frame);
        assert!(!queue(&rig, |queue| queue.want_kicks(true)));
    });
}

#[test]
fn a_ring_that_is_set_up_anew_in_the_middle_of_a_batch_begins_where_the_driver_says() {
    both(|model| {
        let rig = rig(model);
        let frame = packet(false, false, 100, false);
        for place in 0..4 {
            rig.transmit(place, &frame, &[LEGACY]);
            assert_eq!(rig.poll().0.len(), 1);
        }
        // Taken, and not given back: there was no frame in it.
        rig.describe(TX_RING, 4, [0, regs::tx::DEXT]);
        rig.poke(regs::TX_RING + ring::TAIL, 5);
        queue(&rig, |queue| queue.fetch(&mut Batch::new(), &mut Tally::default()));
        rig.program(regs::TX_RING, 0x2000, 8);
        rig.store(TX_BUFFERS, &frame);
        rig.describe(0x2000, 0, [TX_BUFFERS, LEGACY | frame.len() as u64]);
        rig.poke(regs::TX_RING + ring::TAIL, 1);
        assert!(queue(&rig, |queue| queue.want_kicks(true)));
        assert_eq!(rig.poll().0.len(), 1);
        assert_ne!(rig.load_u64(0x2008) & regs::tx::DD, 0);
        assert_eq!(rig.port.fault.get(), None);
    });
}

#[test]
fn nothing_of_a_packet_that_stops_the_port_is_marked_done() {
    let rig = rig(Model::E1000);
    rig.describe(TX_RING, 0, [TX_BUFFERS, LEGACY | 60]);
    rig.describe(TX_RING, 1, [TX_BUFFERS, DATA | regs::tx::RS | 60]);
    rig.describe(TX_RING, 2, [MEMORY - 10, LAST | 60]);
    rig.poke(regs::TX_RING + ring::TAIL, 3);
    assert_eq!(rig.poll().0.len(), 1);
    assert_eq!(rig.port.fault.get(), Some(Fault::AddressOutOfRange));
    let done = |place: u64| rig.load_u64(TX_RING + 16 * place + 8) & regs::tx::DD != 0;
    assert_eq!([done(0), done(1), done(2)], [true, false, false]);
}

#[test]
fn nothing_of_a_frame_that_cannot_be_received_is_marked_done() {
    let mut rig = rig(Model::E1000);
    rig.write(regs::RCTL, regs::RCTL_EN | regs::RCTL_LPE | regs::RCTL_SECRC);
    rig.post(0, 4);
    rig.describe(RX_RING, 1, [MEMORY - 10, 0]);
    let frame = [&MAC.0[..], &PEER, &[8, 0], &[0xa5; 3000]].concat();
    let outcome = rig.deliver(&[(&frame, Offload::NONE)]);
    assert_eq!(outcome.drops.counts[DropReason::RingBroken as usize], 1);
    assert_eq!(rig.load_u64(RX_RING + 8), 0);
}

#[test]
fn a_reset_takes_a_fault_along_that_nobody_has_heard_of() {
    both(|model| {
        let mut rig = rig(model);
        rig.describe(TX_RING, 0, [MEMORY - 10, LAST | 60]);
        rig.poke(regs::TX_RING + ring::TAIL, 1);
        rig.poll();
        assert_eq!(rig.port.fault.get(), Some(Fault::AddressOutOfRange));
        // The conversation would hear of it after this message.
        rig.write(regs::CTRL, regs::CTRL_RST);
        assert_eq!(rig.port.fault.get(), None);
        rig.bring_up();
        rig.transmit(0, &packet(false, false, 20, false), &[LEGACY]);
        assert_eq!(rig.poll().0.len(), 1);
    });
}

#[test]
fn flexible_buffers_hold_what_they_say() {
    let mut rig = rig(Model::E1000e);
    // FLXBUF: 1 KiB.
    rig.write(regs::RCTL, regs::RCTL_EN | regs::RCTL_SECRC | 1 << 27);
    rig.post(0, 4);
    let frame = [&MAC.0[..], &PEER, &[8, 0], &[0xa5; 1400]].concat();
    assert_eq!(rig.deliver(&[(&frame, Offload::NONE)]).frames, 1);
    assert_eq!(rig.load(RX_BUFFERS, 1024), frame[..1024]);
    assert_eq!(rig.load(RX_BUFFERS + 1024, 8), [0; 8], "behind the buffer");
    assert_eq!(rig.load(RX_BUFFERS + 0x1000, frame.len() - 1024), frame[1024..]);
}

#[test]
fn both_halves_of_a_count_are_of_one_moment() {
    let mut rig = rig(Model::E1000);
    let frame = packet(false, false, 58, false);
    let bytes = frame.len() as u32 + 4;
    let mut place = 0;
    let mut send = |rig: &Rig| {
        rig.transmit(place, &frame, &[LEGACY]);
        place += 1;
        assert_eq!(rig.poll().0.len(), 1);
    };
    send(&rig);
    assert_eq!(rig.read(0x4090), bytes);
    // Between the two reads.
    send(&rig);
    assert_eq!(rig.read(0x4094), 0);
    assert_eq!(rig.read(0x4090), bytes, "it was not lost");
    assert_eq!((rig.read(0x4094), rig.read(0x4090)), (0, 0));
    // The upper half alone clears, too.
    rig.read(0x4094);
    send(&rig);
    assert_eq!((rig.read(0x4094), rig.read(0x4090)), (0, 0));
}
