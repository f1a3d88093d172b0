//! What a guest sends: frames by descriptors of each format, checksums, segmentation, and requests that
//! cannot be.

use super::*;

#[test]
fn frames_leave_by_a_store_to_the_shared_page() {
    both(|model| {
        let mut rig = rig(model);
        let traps = rig.device.features();
        let frame = packet(false, false, 300, false);
        let last = LEGACY;
        rig.transmit(0, &frame, &[0, 0, last]);
        let (frames, tally) = rig.poll();
        assert_eq!(frames, [(frame.clone(), Offload::NONE)]);
        assert_eq!((tally.frames, tally.bytes), (1, frame.len() as u64));
        // Done only where the driver asked for it.
        let done = |place: u64| rig.load_u64(TX_RING + 16 * place + 8) & regs::tx::DD != 0;
        assert_eq!([done(0), done(1), done(2)], [false, false, true]);
        assert!(rig.interrupted(usize::from(model == Model::E1000e)));
        assert_eq!(rig.device.features(), traps, "nothing trapped");
        assert_eq!(rig.read(regs::TX_RING + ring::HEAD), 3);
        // Round the end of the ring, and short ones padded.
        for place in (3..).take(70) {
            rig.transmit(place % RING_SIZE, &frame[..20], &[LEGACY]);
            let (frames, _) = rig.poll();
            assert_eq!(frames[0].0.len(), 60);
            assert_eq!(frames[0].0[..20], frame[..20]);
            assert!(frames[0].0[20..].iter().all(|b| *b == 0));
        }
        assert_eq!(rig.read(0x4080), 71);
        assert_eq!(rig.read(0x4080), 0, "cleared by reading");
    });
}

#[test]
fn reports_of_sent_frames_wait_for_silence_or_half_a_ring() {
    both(|model| {
        let rig = rig_with(E1000Config::new(model, MAC));
        let event = usize::from(model == Model::E1000e);
        let frame = packet(false, false, 300, false);
        rig.transmit(0, &frame, &[LEGACY]);
        assert_eq!(rig.poll().1.interrupts, 0);
        // Silence: it comes by itself.
        while rig.poll().1.interrupts == 0 {}
        assert!(rig.interrupted(event));
        rig.device.nic.irq.read(regs::ICR);
        rig.device.nic.irq.write(regs::IMS, regs::TXDW | regs::TXQ0);
        rig.device.interrupts().unmask();
        // As many as shall not wait, since the driver has looked.
        for place in 1..=REPORT_AT {
            rig.describe(TX_RING, place, [TX_BUFFERS, LEGACY | 60]);
        }
        rig.poke(regs::TX_RING + ring::TAIL, REPORT_AT as u32 + 1);
        assert_eq!(rig.poll().1.interrupts, 1);
    });
}

#[test]
fn a_packet_without_its_end_waits_and_an_endless_one_is_dropped() {
    let mut rig = rig(Model::E1000e);
    let frame = packet(false, false, 100, false);
    rig.transmit(0, &frame[..50], &[DATA]);
    assert_eq!(rig.poll().1.frames, 0);
    rig.transmit(1, &frame[50..], &[LAST]);
    assert_eq!(rig.poll().0[0].0, frame);
    // A longer ring whose descriptors never end a packet.
    rig.write(regs::TCTL, 0);
    let size = 0x400;
    rig.program(regs::TX_RING, 0x4_0000, size);
    rig.write(regs::TCTL, regs::TCTL_EN);
    for place in 0..size {
        rig.describe(0x4_0000, place, [TX_BUFFERS, DATA | 4]);
    }
    rig.poke(regs::TX_RING + ring::TAIL, 1000);
    let dropped: u64 = (0..4).map(|_| rig.poll().1).map(|tally| tally.frames).sum();
    assert_eq!(dropped, 1);
    // It is over with the next end, and the one after it passes.
    rig.describe(0x4_0000, 1000, [TX_BUFFERS, LAST | 4]);
    rig.describe(0x4_0000, 1001, [TX_BUFFERS, LAST | 64]);
    rig.poke(regs::TX_RING + ring::TAIL, 1002);
    assert_eq!(rig.poll().0.len(), 1);
    assert_eq!(rig.port.fault.get(), None);
}

#[test]
fn checksums_become_facts_or_are_made() {
    for v6 in [false, true] {
        for tcp in [false, true] {
            let rig = rig(Model::E1000);
            let frame = packet(v6, tcp, 200, false);
            let [low, high] = context(v6, tcp, 0, false);
            rig.describe(TX_RING, 0, [low, high]);
            rig.transmit(1, &frame, &[DATA | regs::tx::TXSM, LAST]);
            let (frames, _) = rig.poll();
            let (sent, offload) = &frames[0];
            assert!(offload.needs_csum() && offload.gso == Gso::None);
            assert_eq!(*sent, frame);
            let mut whole = sent.clone();
            offload.complete(&mut whole).unwrap();
            // By the other road, a span that ends before the packet does is summed here.
            let (l4, store) =
                if v6 { (54, if tcp { 70 } else { 60 }) } else { (34, if tcp { 50 } else { 40 }) };
            let mut longer = frame.clone();
            longer.extend([0xee; 30]);
            let span = l4 | store << 8 | (frame.len() as u64 - 1) << 16;
            rig.describe(TX_RING, 3, [span << 32, high]);
            rig.transmit(4, &longer, &[DATA | regs::tx::TXSM, DATA, LAST]);
            let (frames, _) = rig.poll();
            assert!(frames[0].1.is_none());
            assert_eq!(frames[0].0[..frame.len()], whole);
            assert_eq!(frames[0].0[frame.len()..], [0xee; 30]);
            // A legacy descriptor asks for it, too.
            rig.transmit(7, &frame, &[LEGACY | regs::tx::IC | store << 16 | l4 << 40]);
            let (frames, _) = rig.poll();
            let mut legacy = frames[0].0.clone();
            frames[0].1.complete(&mut legacy).unwrap();
            assert_eq!(legacy, whole);
        }
    }
}

#[test]
fn segmentation_crosses_the_switch_whole_and_well_formed() {
    for (v6, tcp, tagged) in
        [(false, true, false), (true, true, false), (false, true, true), (true, false, true)]
    {
        let mut rig = rig(Model::E1000e);
        let large = packet(v6, tcp, 9000, true);
        rig.describe(TX_RING, 0, context(v6, tcp, 1400, true));
        let vlan = if tagged { regs::tx::VLE } else { 0 };
        rig.write(regs::CTRL, regs::CTRL_VME);
        let first = DATA | regs::tx::TSE | regs::tx::TXSM | regs::tx::IXSM;
        rig.transmit(1, &large, &[first, DATA | regs::tx::TSE, LAST | regs::tx::TSE | vlan | 0x0123 << 48]);
        let (frames, _) = rig.poll();
        let (mut sent, offload) = frames[0].clone();
        if tagged {
            assert_eq!(sent[12..16], [0x81, 0, 0x01, 0x23]);
        }
        let expected = packet(v6, tcp, 9000, false);
        let kind = [[Gso::Udp4, Gso::Tcp4], [Gso::Udp6, Gso::Tcp6]][usize::from(v6)][usize::from(tcp)];
        assert_eq!((offload.gso, offload.gso_size), (kind, 1400));
        // Every segment verifies.
        let bound = offload.header_bound(sent.len());
        let header = sent[..bound].to_vec();
        let plan = Plan::new(&header, sent.len(), offload, 0).unwrap();
        assert_eq!(plan.count, 9000usize.div_ceil(1400));
        let mut out = [0; MAX_HEADER];
        assert!(plan.segment(0, &mut out).is_some());
        // Untagged it is what a virtio driver would have sent: lengths, IP checksum, seed.
        if tagged {
            sent.drain(12..16);
        }
        let ip_sum = if v6 { [0, 0] } else { Sum::of(&expected[14..34]).checksum().to_be_bytes() };
        let mut expected = expected;
        if !v6 {
            expected[24..26].copy_from_slice(&ip_sum);
        }
        if !tcp {
            // UDP's own length field is the driver's.
            let at = if v6 { 58 } else { 38 };
            expected[at..at + 2].copy_from_slice(&sent[at..at + 2]);
        }
        assert_eq!(sent, expected);
    }
}

#[test]
fn absurd_requests_cost_the_frame_only() {
    let rig = rig(Model::E1000);
    let large = packet(false, true, 3000, true);
    let first = LAST | regs::tx::TSE | regs::tx::TXSM;
    let [low, high] = context(false, true, 1400, true);
    let absurd = [
        [low, high & 0xffff_ffff_ffff], // no segment size
        [low | 0xff << 40, high],       // the checksum behind every header
        [low & !(0xff << 40), high],    // … before the headers
        [low, high ^ regs::tx::IP],     // the other IP
        [u64::MAX, high],
    ];
    for (i, words) in absurd.iter().enumerate() {
        let place = 2 * i as u64;
        rig.describe(TX_RING, place, *words);
        rig.transmit(place + 1, &large, &[first]);
        let (frames, tally) = rig.poll();
        assert!(frames.is_empty(), "request {i}");
        assert_eq!(tally.drops.counts[DropReason::BadOffload as usize], 1, "request {i}");
    }
    rig.transmit(10, &large[..10], &[LEGACY]);
    assert_eq!(rig.poll().1.drops.counts[DropReason::TooShort as usize], 1);
    assert_eq!(rig.port.fault.get(), None);
}
