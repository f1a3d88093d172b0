//! A driver that does anything: registers of any width in any order, descriptors rewritten at any time,
//! memory that goes and comes, and journals that say anything to whoever takes the card over. Nothing panics,
//! nothing outside of its memory changes, and a reset makes all of it good.

use proptest::prelude::*;

use super::*;

/// What stands in the file in front of the guest's memory and behind it.
const OUTSIDE: u64 = 0x1000;

#[derive(Clone, Debug)]
enum Step {
    Write(u8, u8, u32),
    Read(u8),
    Config(u8, u8),
    Describe(bool, u8, u64, u64),
    Poll,
    Deliver(u8, u16),
    Map(bool),
    Link(bool),
    BringUp,
    Journal(bool, u8, u64),
    TakeOver,
}

/// The first word of a descriptor: any, or one that makes sense.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        (0u64..0x4000, any::<u8>()).prop_map(|(len, bits)| desc::OWN | len | u64::from(bits) << 24),
        (40u64..2000).prop_map(|len| desc::OWN | ONE | len),
        (40u64..2000, 1u64..0x800).prop_map(|(len, mss)| desc::OWN
            | ONE
            | desc::LGSEN
            | len
            | mss << desc::MSS_SHIFT),
    ]
}

fn address() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0..MEMORY, Just(MEMORY - 7), Just(TX_BUFFERS), Just(TX_RING), Just(RX_RING)]
}

/// What an earlier daemon may have left in a word of a journal: anything, a place, or an intent.
fn left() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0u64..2048,
        (0u64..40, 0u64..2048).prop_map(|(count, place)| 1 << 63 | count << 32 | place),
        word(),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (any::<u8>(), 0u8..3, any::<u32>()).prop_map(|(at, width, value)| Step::Write(at, width, value)),
        1 => any::<u8>().prop_map(Step::Read),
        1 => (any::<u8>(), any::<u8>()).prop_map(|(at, value)| Step::Config(at, value)),
        6 => (any::<bool>(), any::<u8>(), word(), address()).prop_map(|(tx, at, word, to)| Step::Describe(tx, at, word, to)),
        4 => Just(Step::Poll),
        3 => (any::<u8>(), 14u16..9000).prop_map(|(count, len)| Step::Deliver(count, len)),
        1 => any::<bool>().prop_map(Step::Map),
        1 => any::<bool>().prop_map(Step::Link),
        2 => Just(Step::BringUp),
        2 => (any::<bool>(), 0u8..24, left()).prop_map(|(tx, at, word)| Step::Journal(tx, at, word)),
        2 => Just(Step::TakeOver),
    ]
}

impl Rig {
    fn poll_if_served(&self) {
        if !self.desk.queues.lock().unwrap().is_empty() {
            let (frames, tally) = self.poll();
            let drops: u32 = tally.drops.counts.iter().sum();
            assert_eq!(tally.frames, frames.len() as u64 + u64::from(drops));
        }
    }

    fn deliver_if_on(&self, count: u8, len: u16) {
        if self.port.egress(0).is_none_or(|slot| slot.is_none()) {
            return;
        }
        let frame = vec![0xff; usize::from(len)];
        let count = u64::from(count % 40);
        let frames: Vec<_> = (0..count).map(|_| (&frame[..], Offload::NONE)).collect();
        let outcome = self.deliver(&frames);
        let drops: u32 = outcome.drops.counts.iter().sum();
        assert_eq!(outcome.frames + u64::from(drops), count);
    }
}

/// The ring's end moves so that a walk never comes back to where it began.
#[test]
fn a_ring_whose_end_moves_has_no_more_descriptors_than_a_ring() {
    let rig = rig();
    let frame = [0xff; 60];
    let of = |count| vec![(&frame[..], Offload::NONE); count];
    assert_eq!(rig.deliver(&of(6)).frames, 6);
    // From 6 to 0, and then from 3 to 0 each time. A frame takes 64 of them.
    for (place, end) in [(6, desc::EOR), (0, 0), (1, 0), (2, 0), (3, desc::EOR)] {
        rig.describe(RX_RING, place, [desc::OWN | end | 1, RX_BUFFERS]);
    }
    let outcome = rig.deliver(&of(40));
    assert_eq!(outcome.frames, 1024 / 64);
    assert_eq!(outcome.drops.counts[DropReason::RingFull as usize], 24);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_driver_that_does_anything_harms_only_itself(steps in prop::collection::vec(step(), 0..120)) {
        let mut rig = rig();
        // This memory, with some of the file around it that no device may reach.
        let file = memory_file(c"guest", (MEMORY + 2 * OUTSIDE) as usize).unwrap();
        let spec = RegionSpec { gpa: 0, size: MEMORY, user_addr: 0, offset: OUTSIDE, file: file.try_clone().unwrap() };
        let maps = [Arc::new(GuestMap::new(&[spec]).unwrap()), Arc::new(GuestMap::new(&[]).unwrap())];
        let around = |file: &File| {
            [0, OUTSIDE + MEMORY].map(|at| {
                let mut bytes = vec![0; OUTSIDE as usize];
                rustix::io::pread(file, &mut bytes, at).unwrap();
                bytes
            })
        };
        for at in [0, OUTSIDE + MEMORY] {
            rustix::io::pwrite(&file, &[0xbb; OUTSIDE as usize], at).unwrap();
        }
        let before = around(&file);
        rig.base = OUTSIDE;
        (rig.file, rig.map) = (file, Arc::clone(&maps[0]));
        rig.device.dma_changed(Arc::clone(&maps[0]));
        rig.bring_up();
        for step in steps {
            match step {
                Step::Write(at, width, value) => {
                    let width = 1usize << width;
                    let at = u64::from(at) & !(width as u64 - 1);
                    rig.device.write(usize::from(value % 7 == 0), at, &value.to_le_bytes()[..width]);
                }
                Step::Read(at) => rig.device.read(1, u64::from(at), &mut [0]),
                Step::Journal(tx, at, word) => {
                    let ring = rig.device.journal_file.metadata().unwrap().len() / 2;
                    let at = u64::from(!tx) * ring + 8 * u64::from(at);
                    rustix::io::pwrite(&rig.device.journal_file, &word.to_ne_bytes(), at).unwrap();
                }
                Step::Config(at, value) => write_config(&mut rig.device, at.into(), &[value]),
                Step::Describe(tx, at, word, to) => {
                    let ring = if tx { TX_RING } else { RX_RING };
                    rig.describe(ring, u64::from(at) % SIZE, [word, to]);
                }
                Step::Poll => rig.poll_if_served(),
                Step::Deliver(count, len) => rig.deliver_if_on(count, len),
                Step::Map(on) => {
                    rig.map = Arc::clone(&maps[usize::from(!on)]);
                    rig.device.dma_changed(Arc::clone(&rig.map));
                }
                Step::Link(up) => rig.device.set_link(up),
                Step::BringUp => rig.bring_up(),
                Step::TakeOver => rig = rig.taken_over(),
            }
            // As the conversation does.
            if let Some(fault) = rig.port.fault.get() {
                rig.device.faulted(fault);
                prop_assert!(rig.port.egress(0).unwrap().is_none(), "a stopped device still receives");
            }
        }
        prop_assert_eq!(around(&rig.file), before);
        rig.map = Arc::clone(&maps[0]);
        rig.device.dma_changed(Arc::clone(&rig.map));
        pci::reset(&mut rig.device);
        rig.device.set_link(true);
        rig.bring_up();
        rig.transmit(0, &packet(false, 50), &[ONE]);
        prop_assert_eq!(rig.poll().0.len(), 1);
        prop_assert_eq!(rig.deliver(&[(&[0xff; 60], Offload::NONE)]).frames, 1);
    }
}
