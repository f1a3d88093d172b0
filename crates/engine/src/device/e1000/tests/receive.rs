//! What a guest receives: descriptors of each format, frames that take several of them, filters.

use super::*;

#[test]
fn frames_are_received_in_every_format() {
    let frame = [&MAC.0[..], &PEER, &[8, 0], &[0x5a; 1000]].concat();
    for (model, format) in [(Model::E1000, 0), (Model::E1000e, 0), (Model::E1000e, 1), (Model::E1000e, 2)] {
        let mut rig = rig(model);
        rig.write(regs::RFCTL, if format > 0 { regs::RFCTL_EXTEN } else { 0 });
        let split = if format == 2 { regs::RCTL_DTYP_SPLIT } else { 0 };
        rig.poke(regs::PSRCTL, 1 | 1 << 8 | 4 << 16);
        // Without SECRC the length counts the FCS, too.
        rig.write(regs::RCTL, regs::RCTL_EN | split);
        if format == 2 {
            for place in 0..4 {
                rig.describe(RX_RING, 2 * place, [RX_BUFFERS, RX_BUFFERS + 0x1000]);
                rig.describe(RX_RING, 2 * place + 1, [RX_BUFFERS + 0x2000, 0]);
            }
            rig.poke(regs::RX_RING + ring::TAIL, 8);
        } else {
            rig.post(0, 4);
        }
        let outcome = rig.deliver(&[(&frame, Offload { flags: Offload::DATA_VALID, ..Offload::NONE })]);
        assert_eq!((outcome.frames, outcome.bytes), (1, frame.len() as u64), "{model:?} {format}");
        let words: Vec<u64> = (0..4).map(|i| rig.load_u64(RX_RING + 8 * i)).collect();
        let len = frame.len() as u64 + 4;
        let status = regs::rx::DD | regs::rx::EOP | if model == Model::E1000 { regs::rx::IXSM } else { 0 };
        let checked = if model == Model::E1000 { 0 } else { regs::rx::TCPCS | regs::rx::UDPCS };
        match format {
            0 => assert_eq!(words[1], len | (status | checked) << 32),
            1 => assert_eq!(words[..2], [0, status | checked | len << 32]),
            _ => {
                assert_eq!(words[..2], [0, status | checked | 128 << 32]);
                assert_eq!(words[2], (len - 128) << 16);
            }
        }
        if format == 2 {
            assert_eq!(rig.load(RX_BUFFERS, 128), frame[..128]);
            assert_eq!(rig.load(RX_BUFFERS + 0x1000, frame.len() - 128), frame[128..]);
        } else {
            assert_eq!(rig.load(RX_BUFFERS, frame.len()), frame);
        }
        assert!(rig.interrupted(0));
        assert_eq!(rig.read(0x4074), 1);
        assert_eq!(rig.read(0x4088), frame.len() as u32 + 4);
        rig.read(0x408c);
        assert_eq!(rig.read(0x4088), 0);
    }
}

#[test]
fn long_frames_take_several_descriptors_and_empty_ones_take_none() {
    let mut rig = rig(Model::E1000);
    rig.write(regs::RCTL, regs::RCTL_EN | regs::RCTL_LPE | regs::RCTL_SECRC);
    rig.post(0, 8);
    // A descriptor without an address in the middle of it.
    rig.describe(RX_RING, 1, [0, 0]);
    let frame = [&MAC.0[..], &PEER, &[8, 0], &[0xa5; 5000]].concat();
    let outcome = rig.deliver(&[(&frame, Offload::NONE), (&frame[..30], Offload::NONE)]);
    assert_eq!(outcome.frames, 2);
    let word = |place: u64| rig.load_u64(RX_RING + 16 * place + 8);
    let status = (regs::rx::DD | regs::rx::IXSM) << 32;
    assert_eq!([word(0), word(1), word(2)], [2048 | status, status, 2048 | status]);
    assert_eq!(word(3), 918 | status | regs::rx::EOP << 32);
    assert_eq!(word(4), 60 | status | regs::rx::EOP << 32);
    let got =
        [rig.load(RX_BUFFERS, 2048), rig.load(RX_BUFFERS + 0x2000, 2048), rig.load(RX_BUFFERS + 0x3000, 918)];
    assert_eq!(got.concat(), frame);
    // Three descriptors are left: one frame of 5014 bytes, and none for the next.
    let outcome = rig.deliver(&[(&frame, Offload::NONE), (&frame, Offload::NONE)]);
    assert_eq!((outcome.frames, outcome.drops.counts[DropReason::RingFull as usize]), (1, 1));
    assert_eq!(rig.read(0x4010), 1);
    assert_ne!(rig.read(regs::ICR) & regs::RXO, 0);
    // Longer than allowed.
    rig.write(regs::RCTL, regs::RCTL_EN);
    assert_eq!(rig.deliver(&[(&frame, Offload::NONE)]).drops.counts[DropReason::BufferTooSmall as usize], 1);
}

#[test]
fn filters() {
    let mut rig = rig(Model::E1000);
    rig.post(0, 31);
    let to = |dst: [u8; 6]| [&dst[..], &PEER, &[8, 0], &[0; 60]].concat();
    let tagged = |vid: u16| [&MAC.0[..], &PEER, &[0x81, 0], &vid.to_be_bytes(), &[8, 0], &[7; 60]].concat();
    let taken = |rig: &Rig, frame: &[u8]| rig.deliver(&[(frame, Offload::NONE)]).frames == 1;
    let multicast = [0x01, 0, 0x5e, 0x12, 0x34, 0x56];
    assert!(taken(&rig, &to(MAC.0)));
    assert!(taken(&rig, &to([0xff; 6])));
    assert!(!taken(&rig, &to(PEER)) && !taken(&rig, &to(multicast)));
    let outcome = rig.deliver(&[(&to(PEER), Offload::NONE)]);
    assert_eq!(outcome.drops.counts[DropReason::Filtered as usize], 1);
    // The second receive address; the multicast table by bits 47 to 36 of the address.
    rig.write(regs::RA + 8, u32::from_le_bytes([PEER[0], PEER[1], PEER[2], PEER[3]]));
    rig.write(regs::RA + 12, u32::from(u16::from_le_bytes([PEER[4], PEER[5]])) | regs::RAH_AV);
    assert!(taken(&rig, &to(PEER)));
    let hash = (0x5634u32 >> 4) & 0xfff;
    rig.write(regs::MTA + 4 * (hash >> 5), 1 << (hash & 31));
    assert!(taken(&rig, &to(multicast)));
    let base = regs::RCTL_EN;
    rig.write(regs::RCTL, base);
    assert!(!taken(&rig, &to([0xff; 6])));
    rig.write(regs::RCTL, base | regs::RCTL_UPE | regs::RCTL_MPE);
    assert!(taken(&rig, &to([2, 2, 2, 2, 2, 2])) && taken(&rig, &to([3, 2, 2, 2, 2, 2])));
    // VLANs.
    assert!(taken(&rig, &tagged(5)));
    rig.write(regs::RCTL, base | regs::RCTL_VFE);
    assert!(!taken(&rig, &tagged(5)));
    rig.write(regs::VFTA, 1 << 5);
    assert!(taken(&rig, &tagged(5)) && !taken(&rig, &tagged(6)));
    rig.write(regs::CTRL, regs::CTRL_VME);
    assert!(taken(&rig, &tagged(0x6005)));
    let words: Vec<u64> = (0..RING_SIZE).map(|place| rig.load_u64(RX_RING + 16 * place + 8)).collect();
    let place = words.iter().position(|word| word >> 32 & regs::rx::VP != 0).expect("a stripped tag") as u64;
    assert_eq!(words[place as usize] >> 48, 0x6005);
    assert_eq!(rig.load(RX_BUFFERS + place * 0x1000, 16), [&MAC.0[..], &PEER, &[8, 0, 7, 7]].concat());
}
