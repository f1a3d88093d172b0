//! Arbitrary frames with arbitrary offload facts: accepted facts must be honoured without a panic, and
//! every segment must be as long as it says.
#![cfg_attr(feature = "libfuzzer", no_main)]

use sidecore_engine::packet::{
    flow_hash, is_about_another, plain_hash, symmetric_hash, Ether, Offload, Offloads, Plan, Sum, MAX_HEADER,
    MAX_SEGMENTS,
};
use sidecore_fuzz::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((header, frame)) = data.split_first_chunk::<12>() else { return };
    let head = &frame[..frame.len().min(64)];
    let _ = (flow_hash(head), is_about_another(head));
    let hash = symmetric_hash(head, [1, 2]);
    assert!(plain_hash(head, [1, 2]).is_none_or(|plain| plain == hash));
    let _ = Ether::parse(head);
    let Ok(offload) = Offload::parse(header, head, frame.len(), Offloads::ALL) else { return };
    let bound = offload.header_bound(frame.len());
    let Ok(plan) = Plan::new(&frame[..bound], frame.len(), offload, 1) else {
        let _ = offload.complete(&mut frame.to_vec());
        return;
    };
    assert!(plan.count <= MAX_SEGMENTS);
    let mut covered = 0;
    for index in 0..plan.count {
        let mut out = [0; MAX_HEADER];
        let segment = plan.segment(index, &mut out).unwrap();
        assert!(segment.header_len <= MAX_HEADER && segment.payload.end <= frame.len());
        covered += segment.payload.len();
        segment.seal(&mut out, Sum::of(&frame[segment.summed.clone()]));
    }
    assert!(covered <= frame.len());
    assert!(plan.segment(plan.count, &mut [0; MAX_HEADER]).is_none());
});
