//! Any registers and any descriptors: a guest harms its own port at most.

use proptest::prelude::*;

use super::*;

/// Registers that are worth hitting, and any others.
fn offset() -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => (0u32..10, 0u32..2).prop_map(|(i, ring)| regs::TX_RINGS[ring as usize] + 4 * i),
        4 => (0u32..10, 0u32..2).prop_map(|(i, ring)| regs::RX_RINGS[ring as usize] + 4 * i),
        4 => prop_oneof![
            Just(regs::RCTL), Just(regs::TCTL), Just(regs::IMS), Just(regs::ICS), Just(regs::CTRL),
            Just(regs::CTRL_EXT), Just(regs::EECD), Just(regs::MDIC), Just(regs::IVAR), Just(regs::RFCTL),
            Just(regs::PSRCTL), Just(regs::VET), Just(regs::MRQC), Just(regs::RETA), Just(regs::RSSRK),
        ],
        2 => (0u32..0x8000).prop_map(|i| i * 4),
    ]
}

/// Numbers that look like something, and any others.
fn value() -> impl Strategy<Value = u32> {
    prop_oneof![3 => 0u32..128, 2 => (0u32..0x10_0000).prop_map(|v| v & !0x7f), 1 => any::<u32>(), 2 => Just(3u32 << 1)]
}

fn descriptor() -> impl Strategy<Value = [u64; 2]> {
    let address = prop_oneof![4 => 0..MEMORY, 1 => any::<u64>(), 1 => Just(0u64)];
    (address, any::<u64>(), 0u64..0x1_0000).prop_map(|(address, word, len)| {
        let len = if word & 1 << 63 == 0 { word & 0xff } else { len };
        [address, word & !0xf_ffff | len]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn no_guest_harms_more_than_its_port(
        e1000e in any::<bool>(),
        pair in any::<bool>(),
        steps in prop::collection::vec((offset(), value(), 0u8..6), 1..60),
        tx in prop::collection::vec(descriptor(), 64),
        rx in prop::collection::vec(descriptor(), 64),
        frame in prop::collection::vec(any::<u8>(), 14..3000),
    ) {
        let mut rig = rig(if e1000e { Model::E1000e } else { Model::E1000 });
        // What lies around guest memory in its file.
        let outside = [vec![0xaa; SKIP as usize], vec![0xbb; (0x2000 - SKIP) as usize]];
        rustix::io::pwrite(rig.file.as_fd(), &outside[0], 0).unwrap();
        rustix::io::pwrite(rig.file.as_fd(), &outside[1], SKIP + MEMORY).unwrap();
        for (place, words) in tx.iter().enumerate() {
            rig.describe(TX_RING, place as u64, *words);
        }
        for (place, words) in rx.iter().enumerate() {
            rig.describe(RX_RING, place as u64, *words);
        }
        if pair {
            // The second rings lie where the first ones do, and receive side scaling is on.
            rig.program(regs::TX_RING_1, TX_RING, RING_SIZE);
            rig.program(regs::RX_RING_1, RX_RING, RING_SIZE);
            for (register, value) in [(regs::RETA, 0x8000_8000), (regs::RSSRK, 7), (regs::MRQC, !2)] {
                rig.write(register, value);
            }
        }
        let flow = [&MAC.0[..], &packet(frame[0] & 1 != 0, frame[1] & 1 != 0, 9, false)[6..]].concat();
        for (offset, value, how) in steps {
            match how {
                0 | 1 if regs::SHARED.contains(&offset) => rig.poke(offset, value),
                0 | 1 => rig.write(offset, value),
                2 => { rig.read(offset); }
                3 => rig.poke(regs::TX_RINGS[(value >> 6 & 1) as usize] + ring::TAIL, value % 64),
                4 => rig.poke(regs::RX_RINGS[(value >> 6 & 1) as usize] + ring::TAIL, value % 64),
                _ => {
                    let served = !rig.desk.queues.lock().unwrap().is_empty();
                    if served {
                        let (frames, tally) = rig.poll();
                        let dropped: u32 = tally.drops.counts.iter().sum();
                        prop_assert_eq!(tally.frames, frames.len() as u64 + u64::from(dropped));
                        for (sent, offload) in frames {
                            prop_assert!(sent.len() >= 14 && sent.len() <= 65_535 + 26);
                            prop_assert!(usize::from(offload.csum_start) < sent.len());
                        }
                    }
                    if rig.port.link() {
                        let frames = [&frame[..], &frame[..14], &flow].map(|frame| (frame, Offload::NONE));
                        let outcome = rig.deliver(&frames);
                        let dropped: u32 = outcome.drops.counts.iter().sum();
                        prop_assert_eq!(outcome.frames + u64::from(dropped), 3);
                    }
                    if let Some(fault) = rig.port.fault.get() {
                        rig.device.faulted(fault);
                    }
                }
            }
        }
        let mut around = [vec![0; SKIP as usize], vec![0; (0x2000 - SKIP) as usize]];
        rustix::io::pread(rig.file.as_fd(), &mut around[0], 0).unwrap();
        rustix::io::pread(rig.file.as_fd(), &mut around[1], SKIP + MEMORY).unwrap();
        prop_assert_eq!(around, outside);
        rig.device.detached();
        prop_assert!(rig.desk.queues.lock().unwrap().is_empty() && !rig.port.link());
    }
}
