//! Sources that no route leads to, or none by their port.

use super::*;

/// Ports 0 to 2, the first one checking sources.
fn rig(rpf: Rpf, routes: &[Static]) -> Rig {
    let rig = Rig::new(&[]);
    let mut members: Vec<_> = rig.ports.iter().enumerate().map(|(i, port)| member(port, i)).collect();
    members[0].rpf = rpf;
    rig.router.configure(&members, routes, 1);
    rig
}

/// Sends a packet from each of these by the first port, together, and says which came through.
fn passed(rig: &mut Rig, sources: &[&str]) -> Vec<bool> {
    let frame = |src: &&str| match src.contains(':') {
        true => ether(0, IPV6, &packet6(src, "2001:db8:b::9", 64, 17, &[0; 30])),
        false => ether(0, IPV4, &packet4(src, "10.0.1.9", 64, 17, &[0; 30])),
    };
    let frames: Vec<_> = sources.iter().map(frame).collect();
    let done = rig.send(0, &frames);
    assert!(done.made.is_empty(), "nobody is told");
    let passed = |went: &Result<u16, &'static str>| match went {
        Ok(port) => *port == 1,
        Err(why) => {
            assert_eq!(*why, "reverse_path");
            false
        }
    };
    done.went.iter().map(passed).collect()
}

const NEAR: [&str; 2] = ["10.0.0.77", "2001:db8:a::77"];
const BY_ANOTHER: [&str; 4] = ["10.0.2.77", "192.0.2.1", "2001:db8:b::77", "2620:2::1"];
const BY_SEVERAL: [&str; 2] = ["198.51.100.1", "2620:1::1"];
const NOWHERE: [&str; 6] = ["203.0.113.1", "100.64.0.1", "100.65.0.1", "100.66.0.1", "2a00::1", "2620:3::1"];

fn routes() -> Vec<Static> {
    vec![
        via("192.0.2.0/24", &["10.0.1.9"]),
        via("2620:2::/32", &["2001:db8:b::9"]),
        via("198.51.100.0/24", &["10.0.1.9", "10.0.0.9"]),
        via("2620:1::/32", &["2001:db8:b::9", "2001:db8:a::9"]),
        route("100.64.0.0/16", Target::Blackhole),
        route("100.65.0.0/16", Target::Unreachable),
        route("100.66.0.0/16", Target::Prohibit),
        route("2620:3::/32", Target::Blackhole),
    ]
}

#[test]
fn sources_are_where_their_routes_lead() {
    for (rpf, expected) in [
        (Rpf::Off, [true, true, true, true]),
        (Rpf::Loose, [true, true, true, false]),
        (Rpf::Strict, [true, true, false, false]),
    ] {
        let mut rig = rig(rpf, &routes());
        let sets: [&[&str]; 4] = [&NEAR, &BY_SEVERAL, &BY_ANOTHER, &NOWHERE];
        for (set, expected) in sets.iter().zip(expected) {
            assert_eq!(passed(&mut rig, set), vec![expected; set.len()], "{rpf:?} {set:?}");
        }
        // All of them in one batch, more than a vector: each has its own verdict.
        let mixed: Vec<&str> = sets.concat().repeat(4);
        let each: Vec<bool> = sets.iter().zip(expected).flat_map(|(set, is)| vec![is; set.len()]).collect();
        assert_eq!(passed(&mut rig, &mixed), each.repeat(4), "{rpf:?}");
        // Other ports check nothing.
        let other = ether(1, IPV4, &packet4("203.0.113.1", "10.0.0.9", 64, 17, &[0; 30]));
        assert_eq!(rig.one(1, &other).went, [Ok(0)]);
    }
}

#[test]
fn the_default_route_is_a_route() {
    let default = |gateway: &str, six: &str| {
        let more = [via("0.0.0.0/0", &[gateway]), via("::/0", &[six])];
        [&routes()[..], &more].concat()
    };
    let everywhere = ["203.0.113.1", "2a00::1"];
    let elsewhere = default("10.0.1.9", "2001:db8:b::9");
    assert_eq!(passed(&mut rig(Rpf::Loose, &elsewhere), &everywhere), [true; 2]);
    assert_eq!(passed(&mut rig(Rpf::Strict, &elsewhere), &everywhere), [false; 2]);
    assert_eq!(passed(&mut rig(Rpf::Loose, &elsewhere), &["100.64.0.1", "2620:3::1"]), [false; 2]);
    let here = default("10.0.0.9", "2001:db8:a::9");
    assert_eq!(passed(&mut rig(Rpf::Strict, &here), &everywhere), [true; 2]);
    assert_eq!(passed(&mut rig(Rpf::Strict, &here), &["100.64.0.1", "192.0.2.1", "10.0.2.77"]), [false; 3]);
}

/// What is for the router itself is checked as well; what neighbours say to each other has checks of its own.
#[test]
fn packets_to_the_router_are_checked_and_neighbours_are_not() {
    let mut rig = rig(Rpf::Strict, &routes());
    let ping = |src: &str| ether(0, IPV4, &packet4(src, "10.0.0.1", 64, 1, &[8, 0, 0xf7, 0xff, 0, 0, 0, 0]));
    assert_eq!(rig.one(0, &ping("10.0.0.77")).went, [Ok(0)]);
    assert_eq!(rig.one(0, &ping("10.0.2.77")).went, [Err("reverse_path")]);
    // A neighbour is solicited from, and answers by, a link-local address.
    let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
    let IpAddr::V6(target) = ip("2001:db8:a::1") else { panic!() };
    message.extend(target.octets());
    let solicited = ether(0, IPV6, &icmp6("fe80::9", "2001:db8:a::1", 255, message));
    let done = rig.one(0, &solicited);
    assert_eq!((&done.went[..], done.made.len()), (&[Err("to_router")][..], 1));
    // DHCP: from nowhere, to everybody.
    let mut request =
        ether(0, IPV4, &packet4("0.0.0.0", "255.255.255.255", 64, 17, &[0, 68, 0, 67, 0, 8, 0, 0]));
    request[..6].fill(0xff);
    assert_eq!(rig.one(0, &request).went, [Err("group_address")]);
    let asks = [8, 6, 0, 1, 8, 0, 6, 4, 0, 1];
    let arp = [&[0xff; 6][..], &THEIRS[0], &asks, &THEIRS[0], &[10, 0, 0, 9], &[0; 6], &[10, 0, 0, 1]];
    assert_eq!(rig.one(0, &arp.concat()).made.len(), 1);
    // It is shown, and can be changed while packets pass.
    assert_eq!(rig.router.interfaces()[0].rpf.as_deref(), Some("strict"));
    rig.configure(&routes());
    assert_eq!(rig.one(0, &ping("10.0.2.77")).went, [Ok(0)]);
}
