//! What a control plane gets, and from whom.

use std::collections::BTreeSet;

use super::*;

fn rig() -> Rig {
    let mut rig = Rig::new(&[]);
    let mut members: Vec<_> = rig.ports.iter().enumerate().map(|(i, port)| member(port, i)).collect();
    members.iter_mut().take(2).for_each(|member| member.control = Some(PortId(9)));
    rig.router.configure(&members, &[], 1);
    rig.now = Now { seconds: 100, epoch: Instant::now(), core: 0, sender: PortId(0) };
    rig
}

/// What becomes of one frame that comes by the first port.
fn went(rig: &mut Rig, frame: &[u8]) -> Result<u16, &'static str> {
    rig.one(0, frame).went[0]
}

#[test]
fn advertisements_and_redirects_are_not_for_a_kernel() {
    let mut rig = rig();
    let four = |header: &[u8], kind: u8| {
        let mut packet = packet4("10.0.0.9", "10.0.0.1", 64, 1, &[kind; 20]);
        packet[0] = 0x45 + u8::try_from(header.len() / 4).unwrap();
        packet.splice(20..20, header.iter().copied());
        let total = u16::try_from(packet.len()).unwrap().to_be_bytes();
        packet[2..4].copy_from_slice(&total);
        packet[10..12].fill(0);
        let sum = Sum::of(&packet[..20 + header.len()]).checksum().to_be_bytes();
        packet[10..12].copy_from_slice(&sum);
        ether(0, IPV4, &packet)
    };
    assert_eq!(went(&mut rig, &four(&[], 3)), Ok(9), "an error may be");
    assert_eq!(went(&mut rig, &four(&[1; 4], 3)), Ok(9));
    for header in [0, 4, 28, 40] {
        assert_eq!(went(&mut rig, &four(&vec![1; header], 5)), Err("to_router"), "{header}");
    }
    // Where the type lies behind the head its sender may change it.
    assert_eq!(went(&mut rig, &four(&[1; 32], 3)), Err("to_router"));
    for dst in ["ff02::1", "fe80::ff:fe00:a0", "2001:db8:a::1"] {
        let six = |next, payload: &[u8]| {
            let mut frame = ether(0, IPV6, &packet6("fe80::9", dst, 255, next, payload));
            if dst == "ff02::1" {
                frame[..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 1]);
            }
            frame
        };
        let message = |kind: u8| [&[kind, 0, 0, 0][..], &[0; 28]].concat();
        let checked = |kind| {
            let mut frame = ether(0, IPV6, &icmp6("fe80::9", dst, 255, message(kind)));
            frame[..6].copy_from_slice(&six(0, &[])[..6]);
            frame
        };
        let options = |words: u8, behind: &[u8]| {
            [&[58, words][..], &vec![0; 6 + 8 * usize::from(words)], behind].concat()
        };
        for kind in [134, 137] {
            assert_eq!(went(&mut rig, &checked(kind)), Err("to_router"), "{kind} to {dst}");
            for next in [0, 43, 60] {
                for words in [0, 1] {
                    let hidden = six(next, &options(words, &message(kind)));
                    assert_eq!(went(&mut rig, &hidden), Err("to_router"), "{kind} behind {next} to {dst}");
                }
            }
        }
        // Solicitations, reports of groups, and OSPF.
        assert_eq!(went(&mut rig, &checked(133)), Ok(9), "{dst}");
        assert_eq!(went(&mut rig, &six(0, &options(0, &message(143)))), Ok(9), "{dst}");
        assert_eq!(went(&mut rig, &six(89, &[0; 30])), Ok(9), "{dst}");
    }
}

#[test]
fn a_neighbour_behind_one_port_ends_no_session_of_one_behind_another() {
    let mut rig = rig();
    let bfd = |source: &str, port: u16| {
        let udp = [&[0xc0, 0][..], &port.to_be_bytes(), &[0, 32, 0, 0], &[0; 24]].concat();
        match source.contains(':') {
            true => ether(0, IPV6, &packet6(source, "2001:db8:a::1", 255, 17, &udp)),
            false => ether(0, IPV4, &packet4(source, "10.0.0.1", 255, 17, &udp)),
        }
    };
    for near in ["10.0.0.9", "2001:db8:a::9"] {
        assert_eq!(went(&mut rig, &bfd(near, 3784)), Ok(9), "{near}");
    }
    for far in ["10.0.1.9", "2001:db8:b::9", "203.0.113.1"] {
        for port in [3784, 3785] {
            assert_eq!(went(&mut rig, &bfd(far, port)), Err("spoofed"), "{far}");
        }
        assert_eq!(went(&mut rig, &bfd(far, 4784)), Ok(9), "over several hops it may be from afar: {far}");
    }
}

#[test]
fn a_flood_from_one_sender_leaves_others_their_part() {
    let mut rig = rig();
    let flood: Vec<_> = (0..60).map(|_| plain(0, "10.0.0.9", "10.0.0.1")).collect();
    let passed = |rig: &mut Rig| rig.send(0, &flood).went.iter().filter(|went| went.is_ok()).count();
    while passed(&mut rig) == 60 {}
    rig.now.sender = PortId(1);
    assert!(passed(&mut rig) >= 10, "its own part");
    // Questions after neighbours: a port's own are not used up by those of another.
    rig.now.sender = PortId(0);
    for batch in 0..20 {
        let to = |n: u8| plain(0, "10.0.0.9", &format!("10.0.1.{}", 30 + n));
        let frames: Vec<_> = (0..10).map(|n| to(batch * 10 + n)).collect();
        rig.send(0, &frames);
    }
    let other = |host: u8| ether(2, IPV4, &packet4("10.0.2.9", &format!("10.0.1.{host}"), 64, 17, &[0; 8]));
    rig.now.sender = PortId(2);
    assert_eq!(rig.send(2, &[other(252), other(253)]).made.len(), 2);
}

/// Addresses that a routing daemon has at no port, such as router IDs.
#[test]
fn addresses_at_no_port_are_the_routers() {
    let mut rig = rig();
    let ping = |dst: &str| {
        let mut message = [&[8, 0, 0, 0, 0, 7, 0, 1][..], &[3; 20]].concat();
        let sum = Sum::of(&message).checksum().to_be_bytes();
        message[2..4].copy_from_slice(&sum);
        ether(0, IPV4, &packet4("10.0.0.9", dst, 64, 1, &message))
    };
    let bgp = |dst: &str| {
        let tcp = [&[0x9c, 0x40, 0, 179][..], &[0; 16]].concat();
        match dst.contains(':') {
            true => ether(0, IPV6, &packet6("2001:db8:a::9", dst, 1, 6, &tcp)),
            false => ether(0, IPV4, &packet4("10.0.0.9", dst, 1, 6, &tcp)),
        }
    };
    // Before it has them; and a route of the routing daemon's to one of them is no other.
    let led = Change::Route(net("192.0.2.1/32"), Way::Hops(Vec::new()));
    rig.router.feed(&[led], 1);
    assert_eq!(went(&mut rig, &ping("192.0.2.1")), Err("no_route"));
    let all: BTreeSet<IpAddr> = ["192.0.2.1", "2001:db8:ffff::1"].map(ip).into();
    rig.router.set_loopbacks(&all, 1);
    let answered = rig.one(0, &ping("192.0.2.1"));
    assert_eq!((&answered.went[..], answered.heads[0][34]), (&[Ok(0)][..], 0));
    assert_eq!(answered.heads[0][26..34], [192, 0, 2, 1, 10, 0, 0, 9]);
    assert_eq!([went(&mut rig, &bgp("192.0.2.1")), went(&mut rig, &bgp("2001:db8:ffff::1"))], [Ok(9), Ok(9)]);
    assert_eq!(rig.router.explain(ip("192.0.2.1"), None, 1).action, "answer");
    // Nobody else may send from there, and its neighbours stay what they are.
    let stolen = ether(0, IPV4, &packet4("192.0.2.1", "10.0.1.9", 64, 17, &[0; 8]));
    assert_eq!(went(&mut rig, &stolen), Err("martian"));
    assert_eq!(went(&mut rig, &plain(0, "10.0.0.9", "10.0.1.9")), Ok(1));
    // They stay while ports and routes change, until the routing daemon takes them back.
    let members: Vec<_> = rig.ports.iter().enumerate().map(|(i, port)| member(port, i)).collect();
    rig.router.configure(&members, &[], 1);
    assert_eq!(went(&mut rig, &ping("192.0.2.1")), Ok(0));
    rig.router.set_loopbacks(&BTreeSet::new(), 1);
    assert_eq!(went(&mut rig, &ping("192.0.2.1")), Err("no_route"));
    assert_eq!(rig.router.explain(ip("192.0.2.1"), None, 1).origin.as_deref(), Some("fpm"));
    assert_eq!(went(&mut rig, &bgp("2001:db8:ffff::1")), Err("no_route"));
    assert_eq!(went(&mut rig, &stolen), Ok(1));
}
