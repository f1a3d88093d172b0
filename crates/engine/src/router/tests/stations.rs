//! Neighbours: asked for, heard and answered (ARP, Neighbor Discovery, echo).

use super::*;

fn arp(operation: u8, from: usize, sender: &str, target: &str) -> Vec<u8> {
    let (IpAddr::V4(sender), IpAddr::V4(target)) = (ip(sender), ip(target)) else { panic!() };
    let body =
        [&[0, 1, 8, 0, 6, 4, 0, operation], &THEIRS[from][..], &sender.octets(), &[0; 6], &target.octets()];
    [&[0xff; 6][..], &THEIRS[from], &[8, 6], &body.concat()].concat()
}

#[test]
fn neighbours_are_asked_for_heard_and_answered() {
    let mut rig = Rig::new(&[]);
    // The first frame asks, the second one waits.
    let done = rig.send(0, &[v4("10.0.1.50"), v4("10.0.1.50")]);
    assert_eq!(done.went, [Err("no_neighbour"); 2]);
    let [(1, request)] = &done.made[..] else { panic!() };
    assert_eq!(request[..12], [[0xff; 6], MACS[1]].concat());
    assert_eq!(request[20..42], [&[0, 1][..], &MACS[1], &[10, 0, 1, 1], &[0; 6], &[10, 0, 1, 50]].concat());
    assert_eq!(rig.one(1, &arp(2, 1, "10.0.1.50", "10.0.1.1")).went, [Err("to_router")]);
    assert_eq!(rig.one(0, &v4("10.0.1.50")).went, [Ok(1)]);
    // Somebody asks for us.
    let done = rig.one(2, &arp(1, 2, "10.0.2.60", "10.0.2.1"));
    let [(2, reply)] = &done.made[..] else { panic!() };
    assert_eq!(reply[..12], [THEIRS[2], MACS[2]].concat());
    assert_eq!(reply[20..42], [&[0, 2][..], &MACS[2], &[10, 0, 2, 1], &THEIRS[2], &[10, 0, 2, 60]].concat());
    assert_eq!(rig.one(0, &v4("10.0.2.60")).went, [Ok(2)], "and is known then");
    assert!(rig.one(2, &arp(1, 2, "10.0.2.60", "10.0.2.7")).made.is_empty(), "no proxy");
    assert_eq!(rig.one(2, &arp(1, 2, "0.0.0.0", "10.0.2.1")).made.len(), 1, "a probe is answered");
    // Nobody takes our address, one of another network, or another station's.
    assert_eq!(rig.one(2, &arp(2, 2, "10.0.2.1", "10.0.2.1")).went, [Err("spoofed")]);
    assert_eq!(rig.one(2, &arp(2, 2, "10.0.1.50", "10.0.2.1")).went, [Err("spoofed")]);
    let mut lie = arp(2, 2, "10.0.2.9", "10.0.2.1");
    lie[27] ^= 1;
    assert_eq!(rig.one(2, &lie).went, [Err("spoofed")]);
    assert_eq!(rig.one(2, &arp(1, 2, "10.0.2.9", "10.0.2.1")[..41]).went, [Err("bad_header")]);
    // Who does not answer is given up, and senders are told.
    for second in 101..=103 {
        rig.now.seconds = second;
        assert_eq!(rig.one(0, &v4("10.0.2.99")).made[0].0, 2);
    }
    rig.now.seconds = 104;
    let done = rig.one(0, &v4("10.0.2.99"));
    assert_eq!(done.went, [Err("no_neighbour")]);
    assert!(done.made.iter().any(|(to, frame)| *to == 0 && frame[34..36] == [3, 1]));
}

#[test]
fn neighbour_discovery_is_the_same_for_ipv6() {
    let mut rig = Rig::new(&[]);
    let done = rig.one(0, &v6("2001:db8:b::50"));
    assert_eq!(done.went, [Err("no_neighbour")]);
    let [(1, request)] = &done.made[..] else { panic!() };
    assert_eq!(request[..12], [[0x33, 0x33, 0xff, 0, 0, 0x50], MACS[1]].concat());
    let target: IpAddr = ip("2001:db8:b::50");
    let IpAddr::V6(bits) = target else { panic!() };
    let mine = ip("2001:db8:b::1");
    let IpAddr::V6(own) = mine else { panic!() };
    assert_eq!(request[62..78], bits.octets());
    let mut sum = Sum::pseudo(&request[22..38], &request[38..54], 58, 32);
    sum.add(&request[54..]);
    assert_eq!((sum.value(), request[21], request[54]), (0xffff, 255, 135));
    let said = |kind: u8, target: &std::net::Ipv6Addr, option: u8| {
        [&[kind, 0, 0, 0, 0x60, 0, 0, 0][..], &target.octets(), &[option, 1], &THEIRS[1]].concat()
    };
    let link = rig.router.interfaces()[1].link_local.to_string();
    let answer = icmp6("2001:db8:b::50", &link, 255, said(136, &bits, 2));
    assert_eq!(rig.one(1, &ether(1, 0x86dd, &answer)).went, [Err("to_router")]);
    assert_eq!(rig.one(0, &v6("2001:db8:b::50")).went, [Ok(1)]);
    // Somebody asks for us, and is known then.
    let group = "ff02::1:ff00:1";
    let ask = |src: &str, hops, message| {
        [&[0x33, 0x33, 0xff, 0, 0, 1][..], &THEIRS[1], &[0x86, 0xdd], &icmp6(src, group, hops, message)]
            .concat()
    };
    let done = rig.one(1, &ask("2001:db8:b::60", 255, said(135, &own, 1)));
    let [(1, reply)] = &done.made[..] else { panic!() };
    assert_eq!((&reply[..6], reply[54], reply[58] & 0xe0), (&THEIRS[1][..], 136, 0xe0));
    assert_eq!(rig.one(0, &v6("2001:db8:b::60")).went, [Ok(1)]);
    // Who looks whether our address is free is told that it is not.
    let mut probe = said(135, &own, 1);
    probe.truncate(24);
    let done = rig.one(1, &ask("::", 255, probe));
    assert_eq!((done.made[0].1[38], done.made[0].1[58] & 0x40), (0xff, 0));
    // What was forwarded, lies, or is broken.
    for (frame, why) in [
        (ask("2001:db8:b::61", 64, said(135, &own, 1)), "bad_header"),
        (ask("2620::61", 255, said(135, &own, 1)), "spoofed"),
        (ask("2001:db8:b::1", 255, said(135, &own, 1)), "spoofed"),
        (ask("2001:db8:b::61", 255, [said(135, &own, 1), vec![1, 0]].concat()), "bad_header"),
    ] {
        let done = rig.one(1, &frame);
        assert!(done.went == [Err(why)] && done.made.is_empty(), "{why}");
    }
    let mut broken = ask("2001:db8:b::61", 255, said(135, &own, 1));
    broken[60] ^= 1;
    assert_eq!(rig.one(1, &broken).went, [Err("bad_header")]);
}

#[test]
fn echo_requests_are_answered_in_place() {
    let mut rig = Rig::new(&[]);
    let mut request = [&[8, 0, 0, 0, 1, 2, 0, 1][..], &[0x5a; 100]].concat();
    let sum = Sum::of(&request).checksum().to_be_bytes();
    request[2..4].copy_from_slice(&sum);
    let frame = ether(0, 0x0800, &packet4("10.0.0.9", "10.0.1.1", 1, 1, &request));
    let done = rig.one(0, &frame);
    assert_eq!(done.went, [Ok(0)]);
    let answer = [&done.heads[0][..], &frame[HEAD..]].concat();
    assert_eq!(answer[..12], [THEIRS[0], MACS[0]].concat());
    assert_eq!(
        (&answer[26..30], &answer[30..34], answer[22], answer[34]),
        (&[10, 0, 1, 1][..], &[10, 0, 0, 9][..], 64, 0)
    );
    assert_eq!((Sum::of(&answer[14..34]).value(), Sum::of(&answer[34..]).value()), (0xffff, 0xffff));

    let request = [&[128, 0, 0, 0, 1, 2, 0, 1][..], &[0x5a; 100]].concat();
    let frame = ether(0, 0x86dd, &icmp6("2001:db8:a::9", "2001:db8:b::1", 9, request));
    let done = rig.one(0, &frame);
    let answer = [&done.heads[0][..], &frame[HEAD..]].concat();
    let mut sum = Sum::pseudo(&answer[22..38], &answer[38..54], 58, 108);
    sum.add(&answer[54..]);
    assert_eq!((done.went, sum.value(), answer[54]), (vec![Ok(0)], 0xffff, 129));
    assert_eq!((&answer[22..38], &answer[38..54]), (&frame[38..54], &frame[22..38]));
}
