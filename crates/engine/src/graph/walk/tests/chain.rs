//! Routers that are each other's neighbours on a switch.

use super::*;

/// A datagram with this many hops left.
fn with_ttl(mut packet: Vec<u8>, ttl: u8) -> Vec<u8> {
    packet[22] = ttl;
    sealed(packet, 34)
}

/// With the checksum of its IPv4 header, which ends at `end`.
fn sealed(mut packet: Vec<u8>, end: usize) -> Vec<u8> {
    packet[24..26].fill(0);
    let sum = Sum::of(&packet[14..end]).checksum().to_be_bytes();
    packet[24..26].copy_from_slice(&sum);
    packet
}

/// A datagram of IPv6 by way of the router at port `gateway`.
fn packet6(from: u16, gateway: u16, to: [u8; 16], hops: u8, bytes: usize) -> Vec<u8> {
    let len = u16::try_from(8 + bytes).unwrap().to_be_bytes();
    let fixed = [&[0x60, 0, 0, 0], &len[..], &[17, hops]].concat();
    let payload: Vec<u8> = (0..8 + bytes).map(|n| u8::try_from(n % 251).unwrap()).collect();
    [&mac(gateway)[..], &mac(from), &[0x86, 0xdd], &fixed, &six(from), &to, &payload].concat()
}

/// The station behind `from` asks for its router's station by IPv6, and says its own.
fn solicit(from: u16, gateway: u16) -> Vec<u8> {
    let mut message = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &six(gateway), &[1, 1], &mac(from)].concat();
    let mut sum = Sum::pseudo(&six(from), &six(gateway), 58, message.len());
    sum.add(&message);
    message[2..4].copy_from_slice(&sum.checksum().to_be_bytes());
    let fixed = [0x60, 0, 0, 0, 0, 32, 58, 255];
    let header = [&mac(gateway)[..], &mac(from), &[0x86, 0xdd], &fixed, &six(from), &six(gateway)].concat();
    [header, message].concat()
}

/// The ends of the chain have spoken, and the routers know each other.
fn acquainted(controls: &[(u16, u16)]) -> Rig {
    let mut rig = Rig::with(controls);
    rig.meet(0, 2);
    rig.meet(9, 10);
    for (guest, gateway) in [(0, 2), (9, 10)] {
        let got = rig.send(guest, &[solicit(guest, gateway)]);
        assert_eq!((to(&got), got[0].1[54]), (vec![guest], 136));
    }
    // Each first packet has the next router asked for its station. It answers within the visit.
    rig.send(0, &[packet(0, 2, ip(9), 9), packet6(0, 2, six(9), 64, 9)]);
    // A question says who asks: of ARP that is the address that routes lead to, of Neighbor Discovery a
    // link-local one.
    rig.send(9, &[packet6(9, 10, six(0), 64, 9)]);
    assert_eq!((rig.drops(2)["no_neighbour"], rig.drops(10)["no_neighbour"]), (2, 1));
    rig
}

#[test]
fn packets_pass_two_routers_there_and_back() {
    let mut rig = Rig::new();
    rig.meet(0, 2);
    rig.meet(9, 10);
    // The guests of the switch between them hear the question.
    let got = rig.send(0, &[packet(0, 2, ip(9), 9)]);
    assert_eq!(to(&got), [3, 4]);
    assert!(got.iter().all(|(_, bytes)| bytes[12..14] == [8, 6] && bytes[38..42] == ip(7)));
    assert_eq!((&rig.drops(7), &rig.drops(5)), (&BTreeMap::from([("to_router", 1)]), &rig.drops(7)));
    let mut rig = acquainted(&[]);
    for (from, by, far, last) in [(0, 2, 9, 10), (9, 10, 0, 2)] {
        let sent = packet(from, by, ip(far), 300);
        let got = rig.send(from, std::slice::from_ref(&sent));
        assert_eq!((to(&got), &got[0].1[..6], &got[0].1[6..12]), (vec![far], &mac(far)[..], &mac(last)[..]));
        assert_eq!((got[0].1[22], &got[0].1[26..]), (62, &sent[26..]));
        assert_eq!(Sum::of(&got[0].1[14..34]).value(), 0xffff);
        let sent = packet6(from, by, six(far), 64, 300);
        let got = rig.send(from, std::slice::from_ref(&sent));
        assert_eq!((to(&got), got[0].1[21], &got[0].1[22..]), (vec![far], 62, &sent[22..]));
    }
    // From the switch between them each router is reached, as before.
    rig.meet(3, 7);
    rig.meet(3, 5);
}

/// What traceroute does: each router tells of itself, by way of those before it.
#[test]
fn errors_of_a_second_router_come_back_through_the_first() {
    let mut rig = acquainted(&[]);
    for (hops, told) in [(1, 2), (2, 7)] {
        let got = rig.send(0, &[with_ttl(packet(0, 2, ip(9), 100), hops)]);
        let error = &got[0].1;
        assert_eq!((to(&got), &error[26..30], error[34]), (vec![0], &ip(told)[..], 11));
        assert_eq!((error[22], Sum::of(&error[14..34]).value()), (65 - hops, 0xffff));
        let got = rig.send(0, &[packet6(0, 2, six(9), hops, 100)]);
        assert_eq!((to(&got), &got[0].1[22..38], got[0].1[54]), (vec![0], &six(told)[..], 3));
    }
    assert_eq!(to(&rig.send(0, &[with_ttl(packet(0, 2, ip(9), 100), 3)])), [9]);
    // The second one's last port takes less.
    rig.ports[10].set_mtu(1280);
    let mut whole = packet(0, 2, ip(9), 1400);
    whole[20] = 0x40;
    let got = rig.send(0, &[sealed(whole, 34)]);
    let error = &got[0].1;
    assert_eq!(
        (to(&got), &error[26..30], &error[34..36], &error[40..42]),
        (vec![0], &ip(7)[..], &[3, 4][..], &[5, 0][..])
    );
    let got = rig.send(0, &[packet6(0, 2, six(9), 64, 1400)]);
    assert_eq!((to(&got), got[0].1[54], &got[0].1[58..62]), (vec![0], 2, &[0, 0, 5, 0][..]));
    // Fragments that the first one makes are forwarded by the second.
    rig.ports[10].set_mtu(DEFAULT_MTU);
    rig.ports[5].set_mtu(1280);
    let sent = packet(0, 2, ip(9), 1400);
    let got = rig.send(0, std::slice::from_ref(&sent));
    assert_eq!(to(&got), [9, 9]);
    let bytes: Vec<u8> = got.iter().flat_map(|(_, bytes)| bytes[34..].to_vec()).collect();
    assert!(bytes == sent[34..] && got.iter().all(|(_, bytes)| bytes[22] == 62));
}

/// The limits of a second router: what one guest behind the first one has of them, others do not lack.
#[test]
fn guests_behind_one_router_have_parts_of_the_next_ones_limits() {
    let mut rig = acquainted(&[(7, 11)]);
    rig.meet(1, 2);
    let last = |from| with_ttl(packet(from, 2, ip(9), 100), 2);
    let flood: Vec<_> = (0..60).map(|_| last(0)).collect();
    rig.send(0, &flood);
    for _ in 0..5 {
        assert!(rig.send(0, &flood).len() < flood.len() / 2);
        let got = rig.send(1, &[last(1)]);
        assert_eq!((to(&got), &got[0].1[26..30], got[0].1[34]), (vec![1], &ip(7)[..], 11));
    }
    // Packets for its control plane count, which hears what the first one's says, too.
    let hello = |from, gateway| {
        let mut packet = packet(from, gateway, ip(7), 20);
        packet[23] = 89;
        sealed(packet, 34)
    };
    let flood: Vec<_> = (0..250).map(|_| hello(0, 2)).collect();
    for _ in 0..5 {
        rig.send(0, &flood);
    }
    for _ in 0..5 {
        assert!(rig.send(0, &flood).len() < flood.len() / 2);
        assert_eq!(to(&rig.send(1, &[hello(1, 2)])), [11]);
        // From the first one's own control plane, by its port there.
        let mut own = hello(5, 7);
        own[6..12].copy_from_slice(&mac(5));
        assert_eq!(to(&rig.send(12, &[own])), [11]);
    }
}

/// Two routers that take each other for the next hop. What says so of each packet is whole, however many
/// rounds it takes.
#[test]
fn a_circle_has_an_end() {
    let mut rig = acquainted(&[]);
    let nowhere = [10, 77, 0, 1];
    let all: Vec<_> = (0..MAX_BATCH).map(|n| packet(0, 2, nowhere, n % 10)).collect();
    assert!(rig.send(0, &all).is_empty());
    let routers = u16::from(ROUTERS);
    let last = if routers % 2 == 0 { 5 } else { 7 };
    assert_eq!(rig.drops(last)["reentry"], MAX_BATCH as u64);
    // What ends before is told of by whoever has it last, and that comes back through the other one.
    let sent: Vec<_> = (0..36u8)
        .map(|n| {
            let mut packet = with_ttl(packet(0, 2, nowhere, 200 + usize::from(n)), 10 + n % 3 * 2);
            packet[42..].fill(n);
            packet
        })
        .collect();
    let mut got = rig.send(0, &sent);
    assert_eq!(to(&got), [0; 36]);
    got.sort_by_key(|(_, error)| error[70]);
    for (sent, (_, error)) in sent.iter().zip(&got) {
        assert_eq!((&error[26..30], error[34]), (&ip(7)[..], 11));
        assert_eq!((Sum::of(&error[34..]).value(), &error[62..]), (0xffff, &sent[34..]));
    }
    // What the first one says of a packet from the other comes to itself by the circle: from its own address.
    assert!(rig.send(0, &[with_ttl(packet(0, 2, nowhere, 9), 11)]).is_empty());
    assert_eq!(rig.drops(5)["martian"], 1);
    // The last packet that passes enough routers to be told of.
    let most = u8::try_from(routers).unwrap();
    assert!(
        rig.send(0, &[with_ttl(packet(0, 2, nowhere, 9), most)]).is_empty(),
        "the error itself has passed enough"
    );
    assert_eq!(rig.drops(if most % 2 == 0 { 5 } else { 7 })["reentry"], MAX_BATCH as u64 + 1);
}

#[test]
fn full_batches_pass_two_routers_whole() {
    let mut rig = acquainted(&[]);
    let frames: Vec<_> = (0..MAX_BATCH)
        .map(|n| with_ttl(packet(0, 2, ip(9), n % 10), if n % 64 == 63 { 2 } else { 64 }))
        .collect();
    let got = rig.send(0, &frames);
    let lens: Vec<usize> = got.iter().filter(|(port, _)| *port == 9).map(|(_, bytes)| bytes.len()).collect();
    let sent: Vec<usize> = (0..MAX_BATCH).filter(|n| n % 64 != 63).map(|n| 42 + n % 10).collect();
    assert_eq!(lens, sent);
    assert_eq!(got.iter().filter(|(port, _)| *port == 0).count(), MAX_BATCH / 64);
}

/// Ends of long headers are kept apart, for each frame and each router.
#[test]
fn long_headers_pass_two_routers() {
    let mut rig = acquainted(&[]);
    rig.meet(3, 5);
    let sent: Vec<_> = (0..60u8)
        .map(|n| {
            let plain = packet(0, 2, ip(if n % 3 == 0 { 3 } else { 9 }), 40 + usize::from(n));
            let options = [&[7, 39, 4][..], &[n; 36], &[1]].concat();
            let mut frame = [&plain[..34], &options, &plain[34..]].concat();
            frame[14] = 0x4f;
            let len = u16::try_from(frame.len() - 14).unwrap().to_be_bytes();
            frame[16..18].copy_from_slice(&len);
            sealed(frame, 74)
        })
        .collect();
    let mut got = rig.send(0, &sent);
    got.sort_by_key(|(_, bytes)| bytes[37]);
    for (n, (sent, (port, bytes))) in sent.iter().zip(&got).enumerate() {
        assert_eq!((*port, bytes[22]), if n % 3 == 0 { (3, 63) } else { (9, 62) });
        assert_eq!((Sum::of(&bytes[14..74]).value(), &bytes[26..]), (0xffff, &sent[26..]));
    }
    assert_eq!(got.len(), sent.len());
}

/// Routing daemons of two routers speak to each other over the switch.
#[test]
fn control_planes_speak_to_each_other() {
    let mut rig = acquainted(&[(5, 12), (7, 11)]);
    // A question for the other router's station: the answer goes to who asked, also to the daemon's kernel.
    let got = rig.send(12, &[arp(5, 1, ip(7))]);
    assert_eq!(to(&got), [3, 4, 12]);
    assert!(got.iter().any(|(port, bytes)| (*port, &bytes[28..32]) == (12, &ip(7)[..])));
    for (from, by, beside, far) in [(12, 5, 11, 7), (11, 7, 12, 5)] {
        let mut bgp = packet(by, far, ip(far), 20);
        bgp[23] = 6;
        bgp[36..38].copy_from_slice(&179u16.to_be_bytes());
        let bgp = sealed(bgp, 34);
        assert_eq!(rig.send(from, std::slice::from_ref(&bgp)), [(beside, bgp.clone())]);
        let mut hello = bgp;
        hello[..6].copy_from_slice(&[1, 0, 0x5e, 0, 0, 5]);
        (hello[22], hello[23]) = (1, 89);
        hello[30..34].copy_from_slice(&[224, 0, 0, 5]);
        assert_eq!(to(&rig.send(from, &[sealed(hello, 34)])), [3, 4, beside]);
    }
}
