//! A guest that serves a receive interrupt gets one ring of frames, if receiving has a share of its time.

use super::*;

#[test]
fn one_ring_for_each_service() {
    let frame = [0xff; 60];
    for (share, most) in [(100, 4 * RING_SIZE), (50, RING_SIZE)] {
        let config = E1000Config { receive_share: share, ..E1000Config::new(Model::E1000, MAC) };
        let mut rig = rig_with(config);
        rig.post(0, 4);
        rig.deliver(&[(&frame[..], Offload::NONE)]);
        assert!(rig.interrupted(0));
        rig.read(regs::ICR);
        rig.write(regs::IMC, u32::MAX);
        // It takes each frame and gives the buffer back, again and again.
        let (mut place, mut got) = (1, 0);
        for _ in 0..4 * RING_SIZE {
            rig.post(place, place + 4);
            let outcome = rig.deliver(&[(&frame[..], Offload::NONE)]);
            place += outcome.frames;
            got += outcome.frames;
            assert_eq!(outcome.frames + u64::from(outcome.drops.counts[DropReason::RingFull as usize]), 1);
        }
        assert_eq!(got, most, "share {share}");
        // The next service has its own.
        rig.write(regs::IMS, regs::RXT0);
        rig.post(place, place + 4);
        assert_eq!(rig.deliver(&[(&frame[..], Offload::NONE)]).frames, 1);
    }
}
