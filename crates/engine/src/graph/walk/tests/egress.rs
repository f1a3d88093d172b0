//! What a port's policy says of frames that go out by it: limits and mirrors.

use std::time::Duration;

use super::*;
use crate::policy::{EgressRate, PortVlans, TagProtocol, VlanSet};

const MIRROR: u16 = 3;

fn frame(to: [u8; 6], from: u16) -> Vec<u8> {
    let mut bytes = [&to[..], &mac(from), &[0x88, 0xb5]].concat();
    bytes.resize(100, u8::try_from(from).unwrap());
    bytes
}

/// A trunk, an access port in VLAN 10, another, and one beside them.
fn rig(mirror: [Option<PortId>; 2], rate: Option<EgressRate>) -> Rig {
    let vlans = |own, tagged: Option<u16>| {
        let set = tagged.map(|number| VlanSet::new([(number, number)]));
        Some(PortVlans::new(own, set, TagProtocol::Customer))
    };
    let all = [
        Policy { vlans: vlans(0, Some(10)), mirror, egress_rate: rate, ..Policy::default() },
        Policy { vlans: vlans(10, None), ..Policy::default() },
        Policy { vlans: vlans(10, None), ..Policy::default() },
        Policy::default(),
    ];
    Rig::switch(&all.map(Policy::compile))
}

/// A mirror gets what passes the port, in the form that it has there, and not what is dropped.
#[test]
fn a_mirror_gets_what_passes_in_both_directions() {
    let to = Some(PortId(MIRROR));
    let tagged = |frame: &Vec<u8>| [&frame[..12], &[0x81, 0, 0, 10], &frame[12..]].concat();
    let (out, back) = (frame([0xff; 6], 1), frame(mac(1), 0));
    for (mirror, copies) in [([to, to], [1, 1]), ([to, None], [0, 1]), ([None, to], [1, 0])] {
        let mut rig = rig(mirror, None);
        let of = |got: Vec<(u16, Vec<u8>)>, port| -> Vec<Vec<u8>> {
            got.into_iter().filter(|(to, _)| *to == port).map(|(_, frame)| frame).collect()
        };
        assert_eq!(of(rig.send(1, std::slice::from_ref(&out)), MIRROR), vec![tagged(&out); copies[0]]);
        // One without a tag comes in, too: that is dropped.
        let got = rig.send(0, &[back.clone(), tagged(&back)]);
        assert_eq!(of(got.clone(), 1), vec![back.clone()]);
        assert_eq!(of(got, MIRROR), vec![tagged(&back); copies[1]]);
    }
}

#[test]
fn what_is_beyond_the_rate_is_dropped_by_name() {
    // Ten frames are saved up, and no more come back while the test runs.
    let rate = EgressRate::new(Some(10), None, Duration::from_secs(1));
    let mut rig = rig([None, None], rate);
    let got = rig.send(1, &vec![frame([0xff; 6], 1); 15]);
    let trunk = got.iter().filter(|(to, _)| *to == 0).count();
    assert!((10..=11).contains(&trunk), "{trunk}");
    assert_eq!(rig.drops(0)["rate"], 15 - trunk as u64);
    assert_eq!(got.iter().filter(|(to, _)| *to == 2).count(), 15, "the others' are not limited");
}
