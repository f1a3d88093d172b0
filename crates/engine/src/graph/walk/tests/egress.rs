//! What a port's policy says of frames that go out by it: limits and mirrors.

use std::time::Duration;

use super::*;
use crate::policy::acl::{Acl, Action};
use crate::policy::{EgressRate, IpGuard, Mirror, PortVlans, TagProtocol, VlanSet};

const MIRROR: u16 = 3;

fn frame(to: [u8; 6], from: u16) -> Vec<u8> {
    let mut bytes = [&to[..], &mac(from), &[0x88, 0xb5]].concat();
    bytes.resize(100, u8::try_from(from).unwrap());
    bytes
}

/// A trunk, an access port in VLAN 10, another, and one beside them.
fn rig(mirror: Option<Mirror>, rate: Option<EgressRate>) -> Rig {
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
    let to = PortId(MIRROR);
    let tagged = |frame: &Vec<u8>| [&frame[..12], &[0x81, 0, 0, 10], &frame[12..]].concat();
    let (out, back) = (frame([0xff; 6], 1), frame(mac(1), 0));
    for (ways, copies) in [([true, true], [1, 1]), ([true, false], [0, 1]), ([false, true], [1, 0])] {
        let mirror = Some(Mirror { to, ways, acl: None, snap: None });
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
    let mut rig = rig(None, rate);
    let got = rig.send(1, &vec![frame([0xff; 6], 1); 15]);
    let trunk = got.iter().filter(|(to, _)| *to == 0).count();
    assert!((10..=11).contains(&trunk), "{trunk}");
    assert_eq!(rig.drops(0)["rate"], 15 - trunk as u64);
    assert_eq!(got.iter().filter(|(to, _)| *to == 2).count(), 15, "the others' are not limited");
}

/// A list at the sender's port and one at a receiver's: each drops there, by name, and only there.
#[test]
fn access_lists_drop_where_they_stand() {
    let list = |rules: &[&str]| {
        let rules = crate::policy::acl::read_rules(rules.iter().copied()).unwrap();
        Some(Arc::new(Acl::compile(rules, Action::Permit, [7; 8])))
    };
    let sender = Policy { acl: [list(&["deny dst-mac=02:00:00:00:00:02"]), None], ..Policy::default() };
    let receiver =
        Policy { acl: [None, list(&["deny type=0x88b5 src-mac=02:00:00:00:00:00"])], ..Policy::default() };
    let mut rig = Rig::switch(&[sender.compile(), receiver.compile(), None]);
    rig.walk.delivery.acl_cache.open();
    let all: Vec<_> = [mac(2), [0xff; 6], mac(2), mac(1)].iter().map(|to| frame(*to, 0)).collect();
    for port in 1..3 {
        rig.send(port, &[frame([0xff; 6], port)]);
    }
    for _ in 0..2 {
        let got = rig.send(0, &all);
        assert_eq!(got, [(2, all[1].clone())]);
    }
    assert_eq!((rig.drops(0)["acl"], rig.drops(1)["acl"]), (4, 4));
    // What the other two say to each other is not looked at.
    assert_eq!(rig.send(2, &[frame(mac(1), 2)]).len(), 1);
    let counts =
        rig.topology.get(PortId(0)).unwrap().policy.as_ref().unwrap().acl[0].as_ref().unwrap().counts();
    assert_eq!(counts, [4, 4]);
}

/// A frame for everybody of this type.
fn packet(ethertype: u16, rest: &[&[u8]]) -> Vec<u8> {
    let mut bytes = [&[0xff; 6][..], &mac(0), &ethertype.to_be_bytes(), &rest.concat()].concat();
    bytes.resize(bytes.len().max(100), 0);
    bytes
}

fn ipv4(src: [u8; 4], protocol: u8, rest: &[u8]) -> Vec<u8> {
    packet(0x0800, &[&[0x45, 0, 0, 60, 0, 0, 0, 0, 64, protocol, 0, 0], &src, &[192, 0, 2, 99], rest])
}

fn ipv6(src: &str, next: u8, rest: &[&[u8]]) -> Vec<u8> {
    let src: std::net::Ipv6Addr = src.parse().unwrap();
    let head = [0x60, 0, 0, 0, 0, 60, next, 255];
    packet(0x86dd, &[&head, &src.octets(), &[0xff; 16], &rest.concat()])
}

fn arp(sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    packet(0x0806, &[&[0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 0], &sender, &[0; 6], &target])
}

/// A neighbour solicitation (135) or advertisement (136) of `target`.
fn neighbour(kind: u8, target: &str) -> Vec<u8> {
    let target: std::net::Ipv6Addr = target.parse().unwrap();
    [&[kind, 0, 0, 0, 0x60, 0, 0, 0][..], &target.octets()].concat()
}

/// In LLC and SNAP, with a length that lies.
fn snap(oui: u8, frame: &[u8]) -> Vec<u8> {
    [&frame[..12], &[0, 9, 0xaa, 0xaa, 3, 0, 0, oui], &frame[12..]].concat()
}

fn tagged(tags: usize, frame: &[u8]) -> Vec<u8> {
    [&frame[..12], &[0x81, 0, 0, 10].repeat(tags), &frame[12..]].concat()
}

#[test]
fn guards_drop_what_claims_to_be_another() {
    // Destination options: of 8 bytes, and of 200.
    let short = [58, 0, 1, 4, 0, 0, 0, 0];
    let long = |next| [&[next, 24, 1, 198][..], &[0; 196]].concat();
    let advertised = neighbour(136, "2001:db8:0:1::9");
    let (own, other) = ([192, 0, 2, 7], [192, 0, 2, 1]);
    let claims = [
        ipv4([192, 0, 2, 8], 6, &[]),
        ipv4([10, 0, 0, 1], 17, &[0, 68, 0, 67]),
        arp(other, other),
        // Not of Ethernet and IPv4.
        packet(0x0806, &[&[0; 28]]),
        ipv6("2001:db8:0:1::1", 6, &[]),
        ipv6("2001:db8::7", 58, &[&advertised]),
        ipv6("::", 60, &[&short, &advertised]),
        tagged(2, &ipv6("fe80::1", 58, &[&advertised])),
        // A routing header, whose addresses lie behind the head.
        ipv6("2001:db8:0:1::1", 43, &[&[6, 2, 0, 1], &[0; 20]]),
        ipv6("fe80::1", 44, &[&[58, 0, 0, 1, 0, 0, 0, 1], &advertised]),
        tagged(3, &ipv4([192, 0, 2, 8], 6, &[])),
        snap(0xf8, &arp(other, own)),
        tagged(1, &snap(0, &ipv4([192, 0, 2, 8], 6, &[]))),
        // Who asks for an address, without one of its own, makes its owner give it up.
        arp([0; 4], other),
        ipv6("::", 58, &[&neighbour(135, "2001:db8:0:1::9")]),
        ipv6("::", 60, &[&short, &neighbour(135, "2001:db8:0:1::9")]),
        // A solicitation that is cut off.
        ipv6("::", 58, &[&neighbour(135, "2001:db8::7")])[..72].to_vec(),
    ];
    // A message of which only the protocol is seen.
    let message = [ipv6("2001:db8::7", 60, &[&long(58), &neighbour(136, "2001:db8::7")])];
    let unseen = [
        ipv6("2001:db8::7", 60, &[&long(60), &short, &neighbour(136, "2001:db8::7")]),
        packet(38, &[&[6, 6, 3, 0x45]]),
        packet(38, &[&[0x45, 0, 0, 60]]),
        packet(38, &[&[0xaa, 0xaa, 0xf3, 0, 0, 0, 8, 0]]),
        packet(0x0800, &[&[0x65; 40]]),
    ];
    let answers = [
        ipv4(own, 17, &[0, 67, 0, 68]),
        ipv4(own, 17, &[4, 43, 0, 68]),
        // To a relay.
        ipv4(own, 17, &[0, 67, 0, 67]),
        ipv6("fe80::1", 17, &[&[2, 0x23, 2, 0x22]]),
        ipv6("fe80::1", 17, &[&[6, 0x0b, 2, 0x22]]),
        tagged(1, &ipv4(own, 17, &[0, 67, 0, 68])),
        snap(0, &ipv4(own, 17, &[4, 43, 0, 68])),
    ];
    let router = |kind: u8| [kind, 0, 0, 0, 0, 0, 0, 0];
    let routes = [
        ipv6("fe80::1", 58, &[&router(134)]),
        ipv6("2001:db8::7", 58, &[&router(137)]),
        ipv6("fe80::1", 60, &[&short, &router(134)]),
        ipv6("fe80::1", 44, &[&[58, 0, 0, 1, 0, 0, 0, 1], &router(134)]),
        tagged(2, &ipv6("fe80::1", 60, &[&short, &router(134)])),
        ipv6("fe80::1", 60, &[&[44, 0, 1, 4, 0, 0, 0, 0, 60, 0, 0, 1, 0, 0, 0, 1], &short, &router(134)]),
        tagged(1, &snap(0xf8, &ipv6("fe80::1", 58, &[&router(134)]))),
    ];
    let honest = [
        ipv4(own, 6, &[]),
        ipv4([198, 51, 100, 77], 17, &[0, 53, 0, 67]),
        ipv4([0; 4], 17, &[0, 68, 0, 67]),
        arp(own, other),
        arp(own, own),
        arp([0; 4], own),
        ipv6("2001:db8::1:7", 17, &[&[2, 0x22, 2, 0x23]]),
        ipv6("::", 58, &[&neighbour(135, "2001:db8::7")]),
        ipv6("::", 58, &[&neighbour(135, "fe80::1:9")]),
        ipv6("2001:db8::7", 58, &[&neighbour(135, "2001:db8:0:1::9")]),
        ipv6("fe80::1", 58, &[&neighbour(136, "2001:db8::7")]),
        ipv6("fe80::1", 60, &[&short, &neighbour(136, "fe80::1")]),
        packet(0x88b5, &[]),
        tagged(1, &arp(own, other)),
        tagged(3, &ipv4(own, 6, &[])),
        snap(0, &arp(own, other)),
        // The spanning tree, and Cisco's.
        packet(38, &[&[0x42, 0x42, 3]]),
        packet(38, &[&[0xaa, 0xaa, 3, 0, 0, 0x0c, 1, 0x0b]]),
    ];
    let nets = ["192.0.2.7", "198.51.100.0", "2001:db8::"].map(|it| it.parse().unwrap());
    let nets = || Some(nets.into_iter().zip([32, 24, 64]));
    for (addresses, dhcp, ra) in
        [(true, false, false), (false, true, false), (false, false, true), (true, true, true)]
    {
        let ip_guard = IpGuard::new(nets().filter(|_| addresses), dhcp, ra);
        let mut rig = Rig::switch(&[Policy { ip_guard, ..Policy::default() }.compile(), None]);
        // What is not dropped, and how many others are for each reason.
        let mut drops = |frames: &[Vec<u8>]| {
            let before = rig.drops(0);
            let got = rig.send(0, frames).len();
            let now = rig.drops(0);
            let count = |drops: &BTreeMap<&str, u64>, reason| drops.get(reason).copied().unwrap_or(0);
            let of = |reason| count(&now, reason) - count(&before, reason);
            (got, [of("ip_guard"), of("dhcp_guard"), of("ra_guard")])
        };
        assert_eq!(drops(&honest), (honest.len(), [0; 3]));
        let all = |frames: &[Vec<u8>], by: Option<usize>| match by {
            None => (frames.len(), [0; 3]),
            Some(by) => (0, std::array::from_fn(|at| if at == by { frames.len() as u64 } else { 0 })),
        };
        assert_eq!(drops(&answers), all(&answers, dhcp.then_some(1)));
        assert_eq!(drops(&routes), all(&routes, ra.then_some(2)));
        assert_eq!(drops(&claims), all(&claims, addresses.then_some(0)));
        // Whose headers cannot be followed may be an answer or an advertisement.
        let by = |any: &[(bool, usize)]| any.iter().find(|(on, _)| *on).map(|(_, by)| *by);
        assert_eq!(drops(&unseen), all(&unseen, by(&[(ra, 2), (dhcp, 1), (addresses, 0)])));
        assert_eq!(drops(&message), all(&message, by(&[(ra, 2), (addresses, 0)])));
    }
}

/// A mirror that wants some frames only, and of them the beginning.
#[test]
fn a_mirror_gets_what_its_list_permits_and_no_more_bytes_than_it_wants() {
    let rules = crate::policy::acl::read_rules(["deny dst-mac=02:00:00:00:00:01"]).unwrap();
    let acl = Some(Arc::new(Acl::compile(rules, Action::Permit, [7; 8])));
    let mirror = Mirror { to: PortId(2), ways: [true, false], acl, snap: Some(70) };
    let sender = Policy { mirror: Some(mirror), ..Policy::default() };
    let mut rig = Rig::switch(&[sender.compile(), None, None]);
    rig.walk.delivery.acl_cache.open();
    rig.send(1, &[frame([0xff; 6], 1)]);
    let (unwanted, long) = (frame(mac(1), 0), packet(0x88b5, &[&[7; 300]]));
    let mut short = long[..66].to_vec();
    short[..6].copy_from_slice(&mac(9));
    let got = rig.send(0, &[unwanted.clone(), long.clone(), short.clone()]);
    let of =
        |port| got.iter().filter(|(to, _)| *to == port).map(|(_, frame)| frame.clone()).collect::<Vec<_>>();
    assert_eq!(of(1), [unwanted, long.clone(), short.clone()]);
    // The flood and the frame to nowhere come to it as to any port, too.
    let mut mirrored = of(2);
    for whole in [&long, &short] {
        let at = mirrored.iter().position(|frame| frame == whole).unwrap();
        mirrored.remove(at);
    }
    assert_eq!(mirrored, [long[..70].to_vec(), short]);
}
