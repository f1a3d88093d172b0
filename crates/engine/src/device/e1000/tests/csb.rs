//! The communication status block, by hand.

use sidecore_abi::csb::{self, Csb, CSBAH, CSBAL, NONE, SUBSYSTEM, WANTED};
use std::mem::offset_of;

use super::*;

/// Where the block is.
const BLOCK: u64 = 0x7000;

/// A device that has a block, and a driver that has turned it on.
fn with_block() -> Rig {
    let rig = rig_with(E1000Config { csb: true, pcix: false, ..E1000Config::new(Model::E1000, MAC) });
    rig.poke(CSBAH, 0);
    rig.poke(CSBAL, BLOCK as u32);
    rig.field(offset_of!(Csb, host_need_txkick), WANTED);
    rig.field(offset_of!(Csb, guest_csb_on), 1);
    rig
}

impl Rig {
    fn field(&self, at: usize, value: u32) {
        self.store(BLOCK + at as u64, &value.to_le_bytes());
    }

    fn see(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.load(BLOCK + at as u64, 4).try_into().unwrap())
    }

    fn fault(&self) -> Option<Fault> {
        self.port.fault.get()
    }
}

const FRAME: [u8; 60] = [0xff; 60];

/// A descriptor with a frame, and its tail in the block.
fn transmit(rig: &Rig, place: u64) {
    rig.store(TX_BUFFERS, &FRAME);
    rig.describe(TX_RING, place, [TX_BUFFERS, LEGACY | 60]);
    rig.field(offset_of!(Csb, guest_tdt), (place + 1) as u32);
}

#[test]
fn tails_and_heads_are_the_blocks() {
    let rig = with_block();
    transmit(&rig, 0);
    let (frames, tally) = rig.poll();
    assert_eq!((frames.len(), tally.interrupts), (1, 0), "nobody asked for an interrupt");
    assert_eq!(rig.see(offset_of!(Csb, host_tdh)), 1);
    assert_eq!(rig.see(offset_of!(Csb, host_need_txkick)), 0, "the core polls");
    // The register's tail does not count while the block is on, and does again when it is off.
    rig.poke(regs::TX_RING + ring::TAIL, 9);
    assert!(rig.poll().0.is_empty());
    rig.poke(regs::TX_RING + ring::TAIL, 1);
    rig.field(offset_of!(Csb, guest_csb_on), 0);
    transmit(&rig, 1);
    assert!(rig.poll().0.is_empty());
    rig.poke(regs::TX_RING + ring::TAIL, 2);
    assert_eq!(rig.poll().0.len(), 1);
    // Receiving.
    rig.field(offset_of!(Csb, guest_csb_on), 1);
    for place in 0..4 {
        rig.describe(RX_RING, place, [RX_BUFFERS + place * 0x1000, 0]);
    }
    rig.field(offset_of!(Csb, guest_rdt), 4);
    let outcome = rig.deliver(&[(&FRAME[..], Offload::NONE); 5]);
    assert_eq!((outcome.frames, outcome.interrupts), (4, 0));
    assert_eq!(rig.see(offset_of!(Csb, host_rdh)), 4);
    assert_eq!([offset_of!(Csb, host_need_rxkick), offset_of!(Csb, host_isr)].map(|at| rig.see(at)), [0, 0]);
    assert_eq!(rig.see(offset_of!(Csb, host_rxkick_at)), NONE);
}

#[test]
fn interrupts_come_when_the_guest_wants_them() {
    let rig = with_block();
    // The flag, then the threshold.
    rig.field(offset_of!(Csb, guest_need_txkick), WANTED);
    transmit(&rig, 0);
    assert_eq!(rig.poll().1.interrupts, 1);
    assert!(rig.interrupted(0));
    let mut rig = rig;
    rig.read(regs::ICR);
    rig.device.interrupts().unmask();
    rig.field(offset_of!(Csb, guest_need_txkick), csb::SEEN);
    rig.field(offset_of!(Csb, guest_txkick_at), 3);
    for (place, interrupts) in [(1, 0), (2, 1), (3, 0)] {
        transmit(&rig, place);
        assert_eq!(rig.poll().1.interrupts, interrupts, "head at {}", place + 1);
        rig.read(regs::ICR);
        rig.device.interrupts().unmask();
    }
    for place in 0..4 {
        rig.describe(RX_RING, place, [RX_BUFFERS + place * 0x1000, 0]);
    }
    rig.field(offset_of!(Csb, guest_rdt), 4);
    for (wish, interrupts) in [(0, 0), (1, 1)] {
        rig.field(offset_of!(Csb, guest_need_rxkick), wish);
        assert_eq!(rig.deliver(&[(&FRAME[..], Offload::NONE)]).interrupts, interrupts);
    }
}

#[test]
fn a_sleeping_core_asks_for_kicks_where_they_can_wake_it() {
    for exitless in [true, false] {
        let config = E1000Config { csb: true, exitless, pcix: false, ..E1000Config::new(Model::E1000, MAC) };
        let mut rig = rig_with(config);
        rig.write(CSBAL, BLOCK as u32);
        rig.field(offset_of!(Csb, guest_csb_on), 1);
        rig.poll();
        let wants =
            |rig: &Rig, on| rig.desk.queues.lock().unwrap().values_mut().any(|q| q.queue().want_kicks(on));
        let longest = |rig: &Rig| {
            let mut queues = rig.desk.queues.lock().unwrap();
            queues.values_mut().filter_map(|q| q.queue().longest_sleep()).min()
        };
        // While the last frame is not long ago, it looks again by itself, soon; later only where nothing can
        // wake it.
        let mut asked = false;
        while !asked && (!exitless || longest(&rig) != Some(Duration::from_micros(200))) {
            assert!(!wants(&rig, true));
            asked = rig.see(offset_of!(Csb, host_need_txkick)) != 0;
            assert!(asked || longest(&rig) <= Some(Duration::from_micros(200)));
            wants(&rig, false);
        }
        assert_eq!(asked, !exitless);
        assert_eq!(rig.see(offset_of!(Csb, host_need_txkick)), 0);
        // What came before the flag was seen is seen now.
        transmit(&rig, 0);
        assert!(wants(&rig, true));
    }
}

#[test]
fn the_block_outlives_the_chips_reset_and_not_the_functions() {
    let mut rig = with_block();
    rig.write(regs::CTRL, regs::CTRL_RST);
    assert_eq!(rig.read(CSBAL), BLOCK as u32);
    assert_eq!(rig.read(regs::TX_RING + ring::TAIL), 0);
    crate::device::pci::reset(&mut rig.device);
    assert_eq!((rig.read(CSBAL), rig.read(CSBAH)), (0, 0));
}

#[test]
fn pages_that_are_none_stop_the_port() {
    for (low, high, fault) in [
        (BLOCK as u32 + 8, 0, Fault::BadRegister),
        (0x2000_0000, 0, Fault::AddressOutOfRange),
        (BLOCK as u32, 7, Fault::AddressOutOfRange),
        (MEMORY as u32 - 0x800, 0, Fault::BadRegister),
    ] {
        let rig = with_block();
        rig.poll();
        rig.poke(CSBAH, high);
        rig.poke(CSBAL, low);
        rig.poll();
        assert_eq!(rig.fault(), Some(fault), "{high:#x} {low:#x}");
    }
    // A tail beyond the ring is counted, and nothing comes of it.
    let rig = with_block();
    rig.field(offset_of!(Csb, guest_tdt), 0xffff_0003);
    rig.field(offset_of!(Csb, guest_rdt), RING_SIZE as u32);
    assert!(rig.poll().0.is_empty());
    assert_eq!(rig.deliver(&[(&FRAME[..], Offload::NONE)]).frames, 0);
    assert_eq!((rig.fault(), rig.device.nic.bad_tails.load(std::sync::atomic::Ordering::Relaxed)), (None, 2));
}

#[test]
fn only_a_device_that_was_given_one_says_so() {
    let subsystem = |config: E1000Config| {
        let mut rig = rig_with(config);
        let mut bytes = [0; 2];
        crate::device::pci::read_config(&mut rig.device, 0x2e, &mut bytes);
        u16::from_le_bytes(bytes)
    };
    let new = E1000Config::new;
    assert_eq!(subsystem(E1000Config { csb: true, ..new(Model::E1000, MAC) }), SUBSYSTEM);
    assert_ne!(subsystem(new(Model::E1000, MAC)), SUBSYSTEM);
    // Without, the registers are storage.
    let rig = rig(Model::E1000);
    rig.poke(CSBAL, 3);
    rig.poll();
    assert_eq!(rig.fault(), None);
}

#[test]
fn half_an_address_is_no_block() {
    let rig = with_block();
    transmit(&rig, 0);
    assert_eq!(rig.poll().0.len(), 1);
    // Taken away and given anew, the high half first.
    rig.poke(CSBAL, 0);
    rig.poke(CSBAH, 7);
    rig.poke(regs::TX_RING + ring::TAIL, 1);
    assert!(rig.poll().0.is_empty());
    assert_eq!(rig.fault(), None);
    rig.poke(CSBAH, 0);
    rig.poke(CSBAL, BLOCK as u32);
    transmit(&rig, 1);
    assert_eq!(rig.poll().0.len(), 1);
}
