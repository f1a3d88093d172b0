//! What a control plane gets, and from whom.

use std::collections::BTreeSet;

use super::*;
use crate::packet::Offload;

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

/// Has the router decide on one frame that comes by the first port, with these offload facts; the batch with
/// it.
fn decided(rig: &mut Rig, bytes: &[u8], offload: Offload) -> Batch {
    let mut batch = Batch::new();
    let (frame, list) = batch.next_frame().unwrap();
    frame.head.copy_from_slice(&bytes[..HEAD]);
    (frame.len, frame.piece, frame.pieces) = (u32::try_from(bytes.len()).unwrap(), 0, 1);
    frame.offload = offload;
    assert!(list.push(rig.arena.put(0, bytes, HEAD)));
    batch.commit();
    rig.verdicts.clear();
    rig.rewrites.clear();
    rig.context.decide(&batch, &rig.ports[0], &rig.now, &mut rig.rewrites, &mut rig.verdicts);
    batch
}

/// A message of Neighbor Discovery from behind the first port, in a frame to the router: what stands in front
/// of the options, and these.
fn discovery(source: &str, kind: u8, target: Option<&str>, options: &[u8]) -> Vec<u8> {
    let target = target.map_or(vec![], |it| match ip(it) {
        IpAddr::V6(it) => it.octets().to_vec(),
        IpAddr::V4(_) => panic!(),
    });
    let message = [&[kind, 0, 0, 0, 0x60, 0, 0, 0][..], &target, options].concat();
    ether(0, IPV6, &icmp6(source, "2001:db8:a::1", 255, message))
}

/// The option of kind `kind` by which the station behind port `of` names itself.
fn station_option(kind: u8, of: usize) -> Vec<u8> {
    [&[kind, 1][..], &THEIRS[of]].concat()
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
    let too_big = |words: u8, about: u8| {
        let quoted =
            [&[3, 4, 0, 0, 0, 0, 0, 68][..], &packet4("10.0.0.1", "192.0.2.9", 64, about, &[0; 8])].concat();
        let mut packet = packet4("10.0.0.9", "10.0.0.1", 64, 1, &quoted);
        packet.splice(20..20, vec![1; 4 * usize::from(words)]);
        (packet[0], packet[3]) = (0x45 + words, packet[3] + 4 * words);
        packet[10..12].fill(0);
        let sum = Sum::of(&packet[..20 + 4 * usize::from(words)]).checksum().to_be_bytes();
        packet[10..12].copy_from_slice(&sum);
        ether(0, IPV4, &packet)
    };
    assert_eq!([0, 3].map(|words| went(&mut rig, &too_big(words, 6))), [Ok(9); 2], "about TCP");
    for (words, about) in [(0, 1), (0, 17), (0, 89), (3, 1), (4, 6), (6, 17)] {
        assert_eq!(went(&mut rig, &too_big(words, about)), Err("to_router"), "{words} {about}");
    }
    // As much for IPv6, where it stands behind the head.
    let too_big6 = |dst: &str, about: u8| {
        let quoted = packet6("2001:db8:a::1", "2620::9", 64, about, &[0; 8]);
        let message = [&[2, 0, 0, 0, 0, 0, 5, 0][..], &quoted].concat();
        let mut frame = ether(0, IPV6, &icmp6("2001:db8:a::9", dst, 64, message));
        if dst == "ff02::1" {
            frame[..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 1]);
        }
        frame
    };
    for dst in ["ff02::1", "2001:db8:a::1"] {
        assert_eq!(went(&mut rig, &too_big6(dst, 6)), Ok(9), "{dst}");
        for about in [0, 17, 44, 58] {
            assert_eq!(went(&mut rig, &too_big6(dst, about)), Err("to_router"), "{about} to {dst}");
        }
    }
    let bytes = too_big6("2001:db8:a::1", 6);
    let mut batch = decided(&mut rig, &bytes, Offload::NONE);
    rig.arena.put(0, &too_big6("2001:db8:a::1", 58), HEAD);
    rig.rewrites.rewrite(&mut batch);
    let mut got = [0; 69];
    assert_eq!(batch.read(&batch.frames()[0], 0, &mut got), got.len());
    assert_eq!(got[64..], bytes[64..69], "what was judged");
    // A first fragment may hold back what it is about, and a later one says nothing by itself.
    for (place, went_to) in [([0x20, 0], Err("to_router")), ([0x20, 1], Ok(9))] {
        let mut part = too_big(0, 6);
        part[20..22].copy_from_slice(&place);
        part[24..26].fill(0);
        let sum = Sum::of(&part[14..34]).checksum().to_be_bytes();
        part[24..26].copy_from_slice(&sum);
        assert_eq!(went(&mut rig, &part), went_to, "{place:?}");
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
        // Nothing of Neighbor Discovery passes where the router does not look at it.
        let part =
            |next: u8, place: u8, behind: &[u8]| [&[next, 0, 0, place, 0, 0, 0, 7][..], behind].concat();
        for kind in 133..=137 {
            let hidden = six(0, &options(0, &message(kind)));
            assert_eq!(went(&mut rig, &hidden), Err("to_router"), "{kind} behind options to {dst}");
            for place in [0, 1] {
                let hidden = six(44, &part(58, place, &message(kind)));
                assert_eq!(went(&mut rig, &hidden), Err("to_router"), "{kind} in a fragment to {dst}");
            }
        }
        for next in [0, 43, 44, 60] {
            let hidden = six(44, &part(next, 1, &options(0, &message(134))));
            assert_eq!(went(&mut rig, &hidden), Err("to_router"), "{next} in a fragment to {dst}");
        }
        for sound in [part(89, 1, &[0; 32]), part(58, 1, &message(128)), part(58, 8, &message(134))] {
            assert_eq!(went(&mut rig, &six(44, &sound)), Ok(9), "a fragment to {dst}");
        }
        // Reports of groups, and OSPF.
        assert_eq!(went(&mut rig, &six(0, &options(0, &message(143)))), Ok(9), "{dst}");
        assert_eq!(went(&mut rig, &six(89, &[0; 30])), Ok(9), "{dst}");
    }
}

#[test]
fn a_kernel_hears_only_what_was_judged_of_neighbours() {
    let mut rig = rig();
    let near = "2001:db8:a::9";
    let (own, mine, theirs) = ("2001:db8:a::1", station_option(1, 0), station_option(1, 1));
    let advertised = |target, option: &[u8]| discovery(near, 136, Some(target), option);
    for sound in [
        discovery(near, 133, None, &mine),
        discovery("fe80::9", 133, None, &mine),
        discovery(near, 135, Some("2001:db8:a::77"), &mine),
        advertised(near, &station_option(2, 0)),
        advertised("fe80::9", &station_option(2, 0)),
    ] {
        assert_eq!(went(&mut rig, &sound), Ok(9));
    }
    for lie in [
        discovery(near, 133, None, &theirs),
        discovery("2001:db8:b::9", 133, None, &mine),
        discovery("2001:db8:b::9", 135, Some("2001:db8:a::77"), &mine),
        discovery(near, 135, Some("2001:db8:a::77"), &theirs),
        advertised(near, &station_option(2, 1)),
        advertised("2001:db8:b::9", &station_option(2, 0)),
        advertised(own, &station_option(2, 0)),
    ] {
        assert_eq!(went(&mut rig, &lie), Err("spoofed"));
    }
    // A nonce (RFC 3971 §5.3.2) makes a message as long as anybody likes.
    let long = |words: u8, target| {
        let nonce = [&[14, words][..], &vec![0; 8 * usize::from(words) - 2]].concat();
        advertised(target, &[station_option(2, 0), nonce].concat())
    };
    assert_eq!(went(&mut rig, &long(16, near)), Ok(9));
    assert_eq!(went(&mut rig, &long(16, own)), Err("spoofed"));
    for words in [17, 100] {
        assert_eq!(went(&mut rig, &long(words, own)), Err("bad_header"), "nobody looks at so much");
    }
    let mut short = discovery(near, 133, None, &[]);
    short.truncate(short.len() - 1);
    short[19] -= 1;
    assert_eq!(went(&mut rig, &short), Err("bad_header"));

    // The target lies behind the head: its sender changes it when it was judged, and the kernel gets what was
    // judged.
    for words in [1, 16] {
        let bytes = long(words, near);
        let mut batch = decided(&mut rig, &bytes, Offload::NONE);
        assert!(rig.verdicts.used == [9] && rig.verdicts.drops.is_empty());
        rig.arena.put(0, &long(words, own), HEAD);
        rig.rewrites.rewrite(&mut batch);
        let mut got = vec![0; bytes.len()];
        assert_eq!(batch.read(&batch.frames()[0], 0, &mut got), bytes.len());
        assert_eq!(got, bytes);
    }
}

/// A message of Neighbor Discovery whose checksum is still to be made is none that a host sends.
#[test]
fn neighbours_make_their_checksums_themselves() {
    let mut rig = rig();
    let advertised = discovery("fe80::9", 136, Some("fe80::9"), &station_option(2, 0));
    let offload = Offload { flags: Offload::NEEDS_CSUM, csum_start: 54, csum_offset: 2, ..Offload::NONE };
    decided(&mut rig, &advertised, offload);
    assert_eq!(rig.verdicts.drops.iter().map(|(_, why)| why.name()).collect::<Vec<_>>(), ["bad_header"]);
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
    }
    let far = "203.0.113.1";
    assert_eq!(went(&mut rig, &bfd(far, 4784)), Ok(9), "over several hops it may be from afar");
    // Behind options, and where the ports lie behind the head.
    let hidden = |words: u8, source: &str| {
        let options = vec![1; 4 * usize::from(words)];
        let mut packet = [&bfd(source, 3784)[14..34], &options[..], &bfd(source, 3784)[34..]].concat();
        (packet[0], packet[3]) = (0x45 + words, packet[3] + 4 * words);
        packet[10..12].fill(0);
        let sum = Sum::of(&packet[..20 + 4 * usize::from(words)]).checksum().to_be_bytes();
        packet[10..12].copy_from_slice(&sum);
        ether(0, IPV4, &packet)
    };
    for words in [1, 6, 7, 10] {
        assert_eq!(went(&mut rig, &hidden(words, "10.0.0.9")), Ok(9), "{words} words of options");
        assert_eq!(went(&mut rig, &hidden(words, "10.0.1.9")), Err("spoofed"), "{words} words of options");
    }
    assert_eq!(went(&mut rig, &hidden(1, far)), Err("spoofed"));
}

#[test]
fn who_has_passed_no_router_is_on_no_other_ports_network() {
    let mut rig = rig();
    let tcp = [&[0x9c, 0x40, 0, 179][..], &[0; 28]].concat();
    let four = |source: &str, ttl| ether(0, IPV4, &packet4(source, "10.0.0.1", ttl, 6, &tcp));
    let six = |source: &str, hops| ether(0, IPV6, &packet6(source, "2001:db8:a::1", hops, 6, &tcp));
    for ttl in [254, 255] {
        for source in ["10.0.0.9", "203.0.113.1"] {
            assert_eq!(went(&mut rig, &four(source, ttl)), Ok(9), "{source}");
        }
        for source in ["2001:db8:a::9", "2620::1", "fe80::9"] {
            assert_eq!(went(&mut rig, &six(source, ttl)), Ok(9), "{source}");
        }
    }
    for source in ["10.0.1.9", "10.0.2.9"] {
        assert_eq!(went(&mut rig, &four(source, 255)), Err("spoofed"), "{source}");
        assert_eq!(went(&mut rig, &four(source, 254)), Ok(9), "another router may have passed it on");
    }
    assert_eq!(went(&mut rig, &six("2001:db8:b::9", 255)), Err("spoofed"));
    let mut group = ether(0, IPV4, &packet4("10.0.1.9", "224.0.0.18", 255, 112, &[0; 30]));
    group[..6].copy_from_slice(&[1, 0, 0x5e, 0, 0, 18]);
    assert_eq!(went(&mut rig, &group), Err("spoofed"));
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
