//! Frames in both directions, headers, and slots and heads that make no sense.

use super::*;

#[test]
fn frames_pass_both_ways_with_and_without_header() {
    let mut rig = Rig::running();
    rig.write(reg::PTFEAT, VNET_HDR);
    for (round, header) in [0usize, 12].into_iter().enumerate() {
        rig.write(reg::VNET_HDR_LEN, header as u32);
        // A chain of three slots behind one of one, and one that has no header's worth of bytes.
        let first = 4 * round as u32 + round as u32;
        let at = |by: u32| (first + by) % SLOTS;
        let long: Vec<u8> = (0..300u32).map(|n| n as u8).collect();
        let with = |bytes: &[u8]| [&vec![0; header][..], bytes].concat();
        rig.fill(at(0), &with(&[5; 60]), 0);
        rig.fill(at(1), &with(&long[..100]), NS_MOREFRAG);
        rig.fill(at(2), &long[100..200], NS_MOREFRAG);
        rig.fill(at(3), &long[200..], 0);
        rig.fill(at(4), &[0; 11], 0);
        rig.poke(Rig::theirs(0, 0), at(5));
        let (frames, tally) = rig.poll(0);
        assert_eq!(frames, [vec![5; 60], long.clone()]);
        assert_eq!(drops(&tally, DropReason::TooShort), 1);
        assert_eq!(rig.indices(0), (at(5), at(4)));
        let outcome = rig.deliver(1, &[&[7; 60], &[8; 50]]);
        assert_eq!(outcome.frames, 2);
        // Behind two sending rings and the host's one.
        let ring = PAIRS as u64 + 1 + 1;
        let slot = |n: u32| rig.slot(ring, 2 * round as u32 + n);
        assert_eq!([slot(0).len(), slot(1).len()], [60 + header as u16, 50 + header as u16]);
        let mut bytes = vec![0; 60 + header];
        rustix::io::pread(rig.nic.bar.region.file(), &mut bytes[..], rig.buffer(slot(0).buf_idx())).unwrap();
        assert_eq!(bytes[header..], [7; 60]);
        rig.poke(Rig::theirs(PAIRS + 1, 0), 2 * round as u32 + 2);
    }
    assert_eq!(rig.port.fault.get(), None);
}

#[test]
fn a_header_that_asks_for_what_cannot_be_drops_its_frame() {
    let mut rig = Rig::running();
    rig.write(reg::PTFEAT, VNET_HDR);
    rig.write(reg::VNET_HDR_LEN, 12);
    // A checksum beyond the frame's end; an unknown way to cut it.
    for (slot, flags) in [(0, [1, 0]), (1, [0, 9])] {
        let mut bytes = vec![0; 72];
        bytes[..2].copy_from_slice(&flags);
        bytes[6..8].copy_from_slice(&900u16.to_le_bytes());
        rig.fill(slot, &bytes, 0);
    }
    rig.poke(Rig::theirs(0, 0), 2);
    let (frames, tally) = rig.poll(0);
    assert_eq!((frames.len(), drops(&tally, DropReason::BadOffload)), (0, 2));
}

#[test]
fn heads_that_make_no_sense_end_the_port_and_nothing_else() {
    for (ring, head) in [(0, SLOTS), (0, u32::MAX), (1, 3), (PAIRS, 1), (PAIRS, u32::MAX), (PAIRS + 1, SLOTS)]
    {
        let mut rig = Rig::running();
        if ring == 1 {
            // Forward, and back again before the slots were taken.
            rig.poke(Rig::theirs(1, 0), 5);
            assert!(rig.desk.0.lock().unwrap().get_mut(&1).unwrap().queue().has_frames());
        }
        rig.poke(Rig::theirs(ring, 0), head);
        if ring < PAIRS {
            assert!(rig.poll(ring).0.is_empty());
        } else {
            let outcome = rig.deliver(ring - PAIRS, &[&[1; 60]]);
            assert!(outcome.frames <= 1);
        }
        assert_eq!(rig.port.fault.get(), Some(Fault::BadHead), "ring {ring}, head {head}");
        rig.nic.faulted(Fault::BadHead);
        assert!(!rig.is_served() && rig.nic.queues()[0].state.contains("head"));
        // It may begin again, and is told where the rings are.
        assert_eq!(rig.command(CREATE), 0);
        assert_eq!((rig.port.fault.get(), rig.is_served()), (None, true));
        let number = ring % PAIRS;
        let at = rig.peek(Rig::theirs(number, 0));
        assert!(at < SLOTS && rig.poll(number).0.is_empty() && rig.port.fault.get().is_none());
    }
}

#[test]
fn slots_that_make_no_sense_cost_their_frame() {
    let rig = Rig::running();
    let good = rig.slot(0, 0).buf_idx();
    let bufs = rig.nic.bar.region.info().bufs;
    for (slot, word) in [
        SlotWord::new(0, 60, 0),
        SlotWord::new(1, 60, 0),
        SlotWord::new(bufs, 60, 0),
        SlotWord::new(u32::MAX, 60, 0),
        SlotWord::new(good, 129, 0),
        SlotWord::new(good, 13, 0),
    ]
    .into_iter()
    .enumerate()
    {
        rig.set_slot(0, slot as u32, word);
    }
    rig.poke(Rig::theirs(0, 0), 6);
    let (frames, tally) = rig.poll(0);
    assert_eq!(frames.len(), 0);
    assert_eq!((drops(&tally, DropReason::BadBuffer), drops(&tally, DropReason::TooShort)), (5, 1));
    // A buffer to receive into that is not the region's is passed over, with no bytes in it.
    let ring = PAIRS as u64 + 1;
    rig.set_slot(ring, 0, SlotWord::new(u32::MAX, 128, 0));
    assert_eq!(rig.deliver(0, &[&[1; 60]]).frames, 1);
    assert_eq!((rig.slot(ring, 0), rig.slot(ring, 1).len()), (SlotWord::new(0, 0, 0), 60));
    assert_eq!(rig.indices(PAIRS), (0, 2));
    assert_eq!(rig.port.fault.get(), None);
}

#[test]
fn a_link_that_is_down_drops_frames() {
    let mut rig = Rig::running();
    rig.nic.set_link(false);
    rig.fill(0, &[1; 60], 0);
    rig.poke(Rig::theirs(0, 0), 1);
    let (frames, tally) = rig.poll(0);
    assert_eq!((frames.len(), drops(&tally, DropReason::LinkDown)), (0, 1));
    let outcome = rig.deliver(0, &[&[1; 60]]);
    assert_eq!((outcome.frames, outcome.drops.counts[DropReason::LinkDown as usize]), (0, 1));
    rig.nic.set_link(true);
    assert_eq!(rig.deliver(0, &[&[1; 60]]).frames, 1);
    // The published drivers know of no such word.
    let link = HOST + 64 * PAIRS as u64 + 12;
    assert_eq!((rig.peek(link), rig.interrupted(PAIRS + 1)), (0, false));
    rig.write(reg::PTFEAT, LINK);
    assert_eq!((rig.command(DELETE), rig.command(CREATE)), (0, 0));
    assert_eq!(rig.peek(link), 1);
    // The guest is told, whether or not it wants to hear of frames.
    rig.poke(Rig::theirs(PAIRS, 2), 0);
    rig.interrupted(PAIRS);
    for up in [false, true] {
        rig.nic.set_link(up);
        assert_eq!((rig.peek(link), rig.peek(link - 4)), (u32::from(up), 0));
        assert!(rig.interrupted(PAIRS) && rig.is_served());
        rig.nic.set_link(up);
        assert!(!rig.interrupted(PAIRS));
    }
    assert_eq!(rig.deliver(0, &[&[1; 60]]).frames, 1);
}

#[test]
fn guests_that_take_datagrams_to_be_cut_are_given_them() {
    let mut rig = Rig::running();
    for (features, header, given) in [
        (VNET_HDR, 12, "csum,tso4,tso6,ecn"),
        (VNET_HDR | GUEST_USO, 12, "csum,tso4,tso6,ecn,uso4,uso6"),
        (VNET_HDR | GUEST_USO, 0, ""),
        (GUEST_USO, 12, ""),
    ] {
        rig.write(reg::PTFEAT, features);
        rig.write(reg::VNET_HDR_LEN, header);
        assert_eq!(rig.port.accepts().to_string(), given);
    }
}
