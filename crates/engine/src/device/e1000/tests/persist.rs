//! The device is taken over: what its registers say stays, and rings whose owner ended at any step go on.

use proptest::prelude::*;

use super::*;
use crate::device::e1000::journal::{RingJournal, RingPosition};
use crate::device::e1000::{irq, IRQ};
use crate::device::pci::{self, Image, Persist};
use crate::device::written_tests::Written;

impl Rig {
    /// This guest, and another process's device.
    pub(super) fn taken_over(self) -> Rig {
        self.taken_over_with(|_| ()).unwrap()
    }

    /// This guest, and another process's device, from a changed image.
    fn taken_over_with(mut self, change: impl FnOnce(&mut Image)) -> Result<Rig, String> {
        let mut image = Image::new(self.device.format().size);
        self.device.save(&mut image);
        change(&mut image);
        let files = self.device.files().into_iter().map(|file| file.try_clone_to_owned().unwrap()).collect();
        let settings = self.device.settings;
        let port = self._counters.open_slot(PortId(1), "again");
        self.port = Arc::new(Port::new(PortId(1), "again", port, DEFAULT_MTU).unwrap());
        self.desk = Arc::new(Desk::default());
        let scheduler = Arc::clone(&self.desk) as Arc<dyn Scheduler>;
        self.device = E1000::new(settings, Arc::clone(&self.port), scheduler).unwrap();
        self.device.adopt(files, &image)?;
        for (number, event) in self.events.iter().enumerate() {
            let index = if settings.model == Model::E1000 { Index::Intx } else { Index::Msix };
            if settings.model == Model::E1000e || number == 0 {
                self.device.interrupts().set_trigger(index, number, Some(event.try_clone().unwrap()));
            }
        }
        self.device.dma_changed(Arc::clone(&self.map));
        pci::resume(&mut self.device);
        Ok(self)
    }

    pub(super) fn journals(&self) -> [RingJournal; 4] {
        RingJournal::open(Some(self.device.journal_file.try_clone().unwrap().into())).unwrap().1
    }

    fn words(&self, ring: u64, place: u64) -> [u64; 2] {
        [0, 8].map(|at| self.load_u64(ring + 16 * (place % RING_SIZE) + at))
    }
}

#[test]
fn registers_phy_and_eeprom_are_what_they_were() {
    both(|model| {
        let mut rig = rig(model);
        let phy = |register: u32, value: u32| 1 << 21 | register << 16 | value;
        rig.write(regs::LEDCTL, 0x1234);
        rig.write(regs::ITR, 77);
        rig.write(regs::MDIC, 1 << 26 | phy(16, 0x4321));
        // In the middle of a command: the start bit and a one.
        for wires in [0x42, 0x46, 0x47, 0x46, 0x47, 0x46] {
            rig.write(regs::EECD, wires);
        }
        if model == Model::E1000 {
            rig.device.write(1, 0, &regs::LEDCTL.to_le_bytes());
        }
        let _told: Vec<bool> = (0..5).map(|event| rig.interrupted(event)).collect();
        let mut config = [vec![0; 256], vec![0; 256]];
        pci::read_config(&mut rig.device, 0, &mut config[0]);
        let eeprom = rig.device.eeprom.wires();
        let mut rig = rig.taken_over();
        assert!(rig.interrupted(0), "what it may have missed is told");
        pci::read_config(&mut rig.device, 0, &mut config[1]);
        config.iter_mut().for_each(|bytes| bytes[6] &= !8);
        assert_eq!(config[0], config[1]);
        assert_eq!((rig.read(regs::LEDCTL), rig.read(regs::ITR)), (0x1234, 77));
        rig.write(regs::MDIC, 1 << 27 | phy(16, 0));
        assert_eq!(rig.read(regs::MDIC) & 0xffff, 0x4321);
        assert_eq!(rig.device.eeprom.wires(), eeprom);
        assert_ne!(rig.read(regs::IMS) & regs::LSC, 0);
        if model == Model::E1000 {
            let mut bytes = [0; 4];
            rig.device.read(1, 4, &mut bytes);
            assert_eq!(u32::from_le_bytes(bytes), 0x1234, "the I/O window shows another register");
        }
    });
}

/// Linux's e1000e takes a link for down that it is told of while it looks, as by one daemon after the other.
#[test]
fn a_driver_is_told_of_the_link_if_that_is_news() {
    for model in [Model::E1000e, Model::E1000] {
        let mut rig = rig(model);
        rig.read(regs::ICR);
        let mut rig = rig.taken_over();
        assert_eq!(rig.read(regs::ICR) & regs::LSC, 0, "{model:?}: the link is as it was");
        rig.device.set_link(false);
        rig.device.set_link(true);
        let mut rig = rig.taken_over();
        assert_ne!(rig.read(regs::ICR) & regs::LSC, 0, "{model:?}: the driver had not looked");
        rig.device.set_link(false);
        rig.read(regs::ICR);
        let mut rig = rig.taken_over();
        assert_ne!(rig.read(regs::ICR) & regs::LSC, 0, "{model:?}: the link came meanwhile");
    }
}

/// What its guest had told the card, where its rings were, and all that is saved: each word has the meaning
/// that it had.
#[test]
fn what_an_older_program_left_is_read_as_it_was_meant() {
    let e1000e = Written(include_str!("../../tests/e1000e.txt"));
    let e1000 = Written(include_str!("../../tests/e1000.txt"));
    for (model, written, id, heads) in [
        (Model::E1000e, e1000e, [0xd3, 0x10], [(0x15, 0x15), (0x4c, 0x1e)]),
        (Model::E1000, e1000, [0x0e, 0x10], [(0x1f, 0x1f), (0x16, 0x65)]),
    ] {
        let mut rig = rig(model);
        let changed = written.adopt(&mut rig.device, &["pages", "journal"]);
        // Interrupt registers are set by `resume`.
        let others = changed.iter().filter(|at| !(IRQ..IRQ + irq::SAVED).contains(*at));
        assert_eq!(others.count(), 0, "{changed:?}");
        assert_eq!(rig.read(regs::LEDCTL), 0x0102_0304);
        let mut config = [0; 16];
        pci::read_config(&mut rig.device, 0, &mut config);
        assert_eq!(config[..6], [0x86, 0x80, id[0], id[1], 7, 0], "its id; it may reach memory");
        rig.write(regs::MDIC, 2 << 26 | 1 << 21 | 2 << 16);
        assert_eq!(rig.read(regs::MDIC) & 0xffff, 0x141, "the first word of its PHY's id");
        assert_eq!((rig.device.faulted, rig.device.own.io_address), (false, 0));
        let journals = rig.journals();
        for ((journal, base), (head, published)) in journals.iter().zip([0x4000_0000, 0x4004_4800]).zip(heads)
        {
            let place = RingPosition { bal: base, bah: 1, len: 0x800, head, published: [published; 2] };
            assert_eq!(journal.position(), Some(place));
        }
        assert!(journals[2..].iter().all(|journal| journal.position().is_none()), "one pair was in use");
    }
}

/// Three frames were received, and four more were being marked when the owner ended.
#[test]
fn a_receive_batch_is_seen_once_and_whole_wherever_its_owner_ended() {
    const STEPS: [&str; 5] =
        ["nothing marked", "all but the first marked", "marked", "moved", "taken by the driver"];
    for (step, name) in STEPS.iter().enumerate() {
        both(|model| {
            let rig = rig(model);
            let bit = if model == Model::E1000 { regs::rx::DD << 32 } else { regs::rx::DD };
            let frame = [&MAC.0[..], &PEER, &[8, 0], &[7; 60]].concat();
            let frames = |count: usize| vec![(&frame[..], Offload::NONE); count];
            rig.post(0, 31);
            assert_eq!(rig.deliver(&frames(3)).frames, 3);
            let before: Vec<_> = (3..7).map(|place| rig.words(RX_RING, place)).collect();
            assert_eq!(rig.deliver(&frames(4)).frames, 4);
            let filled: Vec<_> = (3..7).map(|place| (place, rig.words(RX_RING, place.into()))).collect();
            let marked: Vec<_> = filled.iter().map(|(_, words)| *words).collect();
            let [_, journal, ..] = rig.journals();
            journal.begin_receive(7, model == Model::E1000e, before[0], &filled);
            if step != 3 {
                journal.moved(3, 3, 3);
            }
            for (place, index) in (3..7).zip(0..) {
                let untouched = step == 0 || step == 1 && index == 0;
                rig.describe(RX_RING, place, if untouched { before[index] } else { marked[index] });
            }
            if step == 4 {
                rig.post(31, 35);
                rig.post(3, 7);
                rig.poke(regs::RX_RING + ring::TAIL, 6);
            }
            let rig = rig.taken_over();
            let seen: Vec<_> = (3..7).map(|place| rig.words(RX_RING, place)).collect();
            if step == 4 {
                assert!(seen.iter().all(|words| words[1] & bit == 0), "{name}: a frame came twice");
            } else {
                assert_eq!(seen, marked, "{name}");
            }
            assert_eq!(rig.deliver(&frames(1)).frames, 1);
            assert_ne!(rig.words(RX_RING, 7)[1] & bit, 0, "{name}: a hole");
            assert_eq!(rig.words(RX_RING, 8)[1] & bit, 0, "{name}");
        });
    }
}

/// Three frames were sent, and four more were being given back when the owner ended.
#[test]
fn a_transmit_batch_is_given_back_once_wherever_its_owner_ended() {
    const STEPS: [&str; 5] = ["nothing marked", "one marked", "marked", "moved", "filled anew by the driver"];
    let frame = packet(false, false, 50, false);
    for (step, name) in STEPS.iter().enumerate() {
        let rig = rig(Model::E1000e);
        let send = |rig: &Rig, places: std::ops::Range<u64>| {
            places.for_each(|place| rig.transmit(place, &frame, &[LEGACY]));
        };
        send(&rig, 0..3);
        assert_eq!(rig.poll().0.len(), 3);
        send(&rig, 3..7);
        let reports: Vec<_> = (3..7).map(|place| (place, rig.words(TX_RING, place.into())[1])).collect();
        assert_eq!(rig.poll().0.len(), 4);
        let [journal, ..] = rig.journals();
        let own = journal.own(false);
        journal.begin_transmit(7, &reports, own);
        // Every frame was published: the ring ran empty.
        let published = rig.device.nic.regs.get(regs::TX_RING + ring::HEAD);
        let place = if step == 3 { 7 } else { 3 };
        journal.moved(place, published, published);
        for (place, word) in &reports {
            if step == 0 || step == 1 && *place != 3 {
                rig.describe(TX_RING, (*place).into(), [rig.words(TX_RING, (*place).into())[0], *word]);
            }
        }
        if step == 4 {
            send(&rig, 7..37);
        }
        let rig = rig.taken_over();
        let done = |place| rig.words(TX_RING, place)[1] & regs::tx::DD != 0;
        if step == 4 {
            assert!(!done(3) && !done(4), "{name}: a frame that was not sent was given back");
            assert_eq!(rig.poll().0.len(), 30, "{name}");
        } else {
            assert!((3..7).all(done), "{name}");
            assert_eq!(rig.poll().0.len(), 0, "{name}: a frame is sent twice");
            send(&rig, 7..8);
            assert_eq!(rig.poll().0.len(), 1, "{name}");
        }
    }
}

/// The driver starts a ring anew between two daemons.
#[test]
fn a_ring_that_was_programmed_anew_starts_at_its_new_head() {
    let rig = rig(Model::E1000e);
    let frame = packet(false, false, 50, false);
    for place in 0..9 {
        rig.transmit(place, &frame, &[LEGACY]);
        assert_eq!(rig.poll().0.len(), 1);
    }
    rig.program(regs::TX_RING, TX_RING, RING_SIZE);
    rig.transmit(0, &frame, &[LEGACY]);
    let rig = rig.taken_over();
    assert_eq!(rig.poll().0.len(), 1);
}

/// A word of a journal that looks like one, or any.
fn lie() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        (0u64..64, 0u64..64, 0u64..64).prop_map(|(a, b, c)| a | b << 16 | c << 32 | 1 << 63)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// Whatever an earlier daemon, or a broken one, has left: it is refused, or harms this guest only.
    #[test]
    fn a_state_that_lies_is_survived(
        e1000e in any::<bool>(),
        words in prop::collection::vec((0usize..4000, lie()), 0..20),
        places in prop::collection::vec((0u64..4, prop_oneof![Just(3u64), 0u64..64], lie()), 0..20),
        journal_only in any::<bool>(),
    ) {
        let rig = rig(if e1000e { Model::E1000e } else { Model::E1000 });
        let frame = packet(false, false, 50, false);
        rig.post(0, 20);
        for place in 0..5 {
            rig.transmit(place, &frame, &[LEGACY]);
            prop_assert_eq!(rig.poll().0.len(), 1);
        }
        rig.transmit(5, &frame, &[LEGACY]);
        // The file has the journals of four rings.
        let size = rig.device.journal_file.metadata().unwrap().len() / 4;
        for (ring, word, value) in places {
            rustix::io::pwrite(&rig.device.journal_file, &value.to_ne_bytes(), ring * size + 8 * word).unwrap();
        }
        let outside = vec![0xbb; (0x2000 - SKIP) as usize];
        rustix::io::pwrite(rig.file.as_fd(), &outside, SKIP + MEMORY).unwrap();
        let rig = rig.taken_over_with(|image| {
            for (at, word) in words.into_iter().filter(|_| !journal_only) {
                if at < image.size() {
                    image.put(at, word);
                }
            }
        });
        let Ok(mut rig) = rig else { return Ok(()) };
        for _ in 0..3 {
            if !rig.desk.queues.lock().unwrap().is_empty() {
                rig.poll();
            }
            if rig.port.link() {
                rig.deliver(&[(&[0xff; 60], Offload::NONE)]);
            }
        }
        let mut around = vec![0; outside.len()];
        rustix::io::pread(rig.file.as_fd(), &mut around, SKIP + MEMORY).unwrap();
        prop_assert_eq!(around, outside);
        // A reset makes it good.
        write_config(&mut rig.device, 4, &[0, 0]);
        rig.write(regs::CTRL, regs::CTRL_RST);
        rig.bring_up();
        rig.transmit(0, &frame, &[LEGACY]);
        prop_assert_eq!(rig.poll().0.len(), 1);
    }
}

/// A VMM that has had a port's pages may keep a mapping of them: the next VMM has others, and the device is
/// as new.
#[test]
fn each_vmm_has_pages_of_its_own() {
    for model in [Model::E1000, Model::E1000e] {
        let mut rig = rig(model);
        let number = |rig: &Rig| {
            let pages = rig.device.regions()[0].clone().unwrap().mappable.unwrap();
            rustix::fs::fstat(pages.pages.file()).unwrap().st_ino
        };
        let before = number(&rig);
        rig.device.set_link(false);
        rig.device.nic.regs.set(regs::TX_RINGS[0] + ring::TAIL, 7);
        rig.device.detached();
        rig.device.attached().unwrap();
        assert_ne!(number(&rig), before);
        assert_eq!(rig.device.nic.regs.get(regs::TX_RINGS[0] + ring::TAIL), 0);
        // The operator's word holds.
        assert_eq!(rig.device.nic.regs.get(regs::STATUS) & regs::STATUS_LU, 0);
    }
}
