//! What drivers' self-tests look at: which bits registers keep, and loopback.

use super::*;

#[test]
fn registers_keep_the_bits_that_they_have() {
    both(|model| {
        let mut rig = rig(model);
        let ring = |first, register| first + register;
        let rows = [
            (regs::FCAH, 0xffff),
            (regs::FCT, 0xffff),
            (regs::VET, 0xffff),
            (regs::FCTTV, 0xffff),
            (regs::TIPG, 0x3fff_ffff),
            (ring(regs::RX_RING, ring::DELAY), 0xffff),
            (ring(regs::TX_RING, ring::DELAY), 0xffff),
            (ring(regs::RX_RING, ring::BAL), 0xffff_fff0),
            (ring(regs::TX_RING, ring::BAL), 0xffff_fff0),
            (ring(regs::RX_RING, ring::BAH), 0xffff_ffff),
            (ring(regs::RX_RING, ring::LEN), 0xf_ff80),
            (ring(regs::TX_RING, ring::LEN), 0xf_ff80),
            (ring(regs::RX_RING, ring::HEAD), 0xffff),
            (ring(regs::TX_RING, ring::TAIL), 0xffff),
            (regs::RA, 0xffff_ffff),
            (regs::RA + 4, 0x8003_ffff),
            (regs::RA + 0x7c, 0x8003_ffff),
            (regs::MTA, 0xffff_ffff),
            (regs::VFTA + 4, 0xffff_ffff),
        ];
        // Off: rings that are nowhere must not be walked.
        rig.write(regs::RCTL, 0);
        rig.write(regs::TCTL, 0);
        for (register, kept) in rows {
            for pattern in [0x5a5a_5a5a, 0xa5a5_a5a5, 0, 0xffff_ffff] {
                rig.write(register, pattern);
                assert_eq!(rig.read(register), pattern & kept, "{register:#x}");
            }
        }
    });
}

#[test]
fn in_loopback_frames_come_back_and_the_wire_is_not_heard() {
    // By the PHY's control register, through MDIC, and by the MAC's.
    let phy = (regs::MDIC, 1 << 26 | 1 << 21 | 0x4140, 1 << 26 | 1 << 21 | 0x1140);
    let on = regs::RCTL_EN | regs::RCTL_BAM | regs::RCTL_SECRC;
    let mac = (regs::RCTL, on | regs::RCTL_LBM, on);
    for (register, looped, normal) in [phy, mac] {
        both(|model| {
            let mut rig = rig(model);
            rig.post(0, 8);
            // Without a carrier, too.
            rig.device.set_link(false);
            rig.write(register, looped);
            let frame = [&[0xff; 6][..], &MAC.0, &[0xff; 90]].concat();
            rig.transmit(0, &frame, &[LEGACY]);
            let (frames, tally) = rig.poll();
            assert_eq!((frames.len(), tally.frames, tally.bytes), (0, 0, 0));
            assert_eq!(rig.load(RX_BUFFERS, frame.len()), frame);
            assert_ne!(
                rig.load_u64(RX_RING + 8) & if model == Model::E1000 { regs::rx::DD << 32 } else { 1 },
                0
            );
            // The descriptor is given back when the queue is looked at next.
            rig.poll();
            assert_ne!(rig.load_u64(TX_RING + 8) & regs::tx::DD, 0);
            // A frame of another port finds no queue.
            assert!(rig.port.egress(0).is_none_or(|slot| slot.is_none()));
            // What finds no descriptor is dropped by name, and has come in.
            for place in 1..10 {
                rig.transmit(place, &frame, &[LEGACY]);
            }
            let (frames, tally) = rig.poll();
            assert_eq!((frames.len(), tally.frames), (0, 2));
            assert_eq!(tally.drops.counts[DropReason::RingFull as usize], 2);
            rig.post(0, 16);
            rig.write(register, normal);
            assert!(!rig.port.link());
            rig.device.set_link(true);
            rig.transmit(10, &frame, &[LEGACY]);
            assert_eq!(rig.poll().0.len(), 1);
            assert_eq!(rig.deliver(&[(&frame, Offload::NONE)]).frames, 1);
        });
    }
}

#[test]
fn a_receive_buffer_may_span_regions_that_are_adjacent() {
    both(|model| {
        let mut rig = rig(model);
        // This memory as two regions, of which the second lies elsewhere in the host's.
        let border = RX_BUFFERS + 0x1000 + 700;
        let region = |gpa, size, offset| RegionSpec {
            gpa,
            size,
            user_addr: gpa,
            offset,
            file: rig.file.try_clone().unwrap(),
        };
        let map = |specs: &[RegionSpec]| Arc::new(GuestMap::new(specs).unwrap());
        let far = MEMORY + 0x1000;
        rig.file.set_len(2 * far + 0x2000).unwrap();
        let specs = [region(0, border, SKIP), region(border, MEMORY - border, far)];
        rig.device.dma_changed(map(&specs));
        if model == Model::E1000e {
            rig.write(regs::RFCTL, 0);
        }
        rig.post(0, 4);
        let frame = [&[0xff; 6][..], &MAC.0, &[8, 0], &[0x5a; 1400]].concat();
        let outcome = rig.deliver(&[(&frame, Offload::NONE), (&frame, Offload::NONE)]);
        assert_eq!(outcome.frames, 2);
        assert_eq!(rig.port.fault.get(), None);
        let mut rest = vec![0; frame.len() - 700];
        rustix::io::pread(rig.file.as_fd(), &mut rest, far).unwrap();
        assert_eq!([rig.load(RX_BUFFERS + 0x1000, 700), rest].concat(), frame);
        // One that leaves the last region does not.
        rig.describe(RX_RING, 2, [MEMORY - 100, 0]);
        let outcome = rig.deliver(&[(&frame, Offload::NONE)]);
        assert_eq!(outcome.drops.counts[DropReason::RingBroken as usize], 1);
        assert_eq!(rig.port.fault.get(), Some(Fault::AddressOutOfRange));
    });
}
