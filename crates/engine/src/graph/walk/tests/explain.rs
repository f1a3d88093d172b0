//! What is said of a frame beside what happens to it.

use proptest::prelude::*;

use super::*;
use crate::graph::effects::Fate;
use crate::policy::acl::{read_rules, Acl, Action};
use crate::policy::{IpGuard, Mirror, PortVlans, TagProtocol, VlanSet};

const PORTS: u16 = 5;

fn list(rules: &[&str], default: Action) -> Arc<Acl> {
    Arc::new(Acl::compile(read_rules(rules.iter().copied()).unwrap(), default, [7; 8]))
}

/// The policy of port `id`.
fn policy(id: u16) -> impl Strategy<Value = Option<Arc<Policy>>> {
    let vlans =
        (prop::sample::select(vec![0u16, 0, 10, 10, 20]), prop::sample::subsequence(vec![10u16, 20], 0..=2));
    let flags = prop::array::uniform4(prop::bool::weighted(0.2));
    let lists = prop::array::uniform2(prop::option::weighted(0.3, 0usize..3));
    let mirror = prop::option::weighted(0.3, (0..PORTS, any::<[bool; 2]>(), any::<bool>()));
    let guards = (prop::sample::select(vec![0u32, 0, 0, 1]), any::<bool>(), 0usize..4);
    (vlans, flags, lists, mirror, guards).prop_map(
        move |(
            (own, tagged),
            [isolated, no_bpdu, service, with_vlans],
            lists,
            mirror,
            (mac_limit, strict, ip),
        )| {
            let protocol = if service { TagProtocol::Service } else { TagProtocol::Customer };
            let set = (!tagged.is_empty()).then(|| VlanSet::new(tagged.iter().map(|it| (*it, *it))));
            let [a, b, c, d, e, f] = mac(id);
            let own_mac = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
            let mode = if strict { MacGuard::Strict } else { MacGuard::Off };
            let nets = Some([(ip4(id), 32)].into_iter());
            Policy {
                vlans: (with_vlans && (own != 0 || set.is_some()))
                    .then(|| PortVlans::new(own, set, protocol)),
                isolated,
                no_bpdu,
                acl: lists.map(|list| {
                    Some(match list? {
                        0 => self::list(
                            &["deny proto=udp dport=67", "permit type=ipv4", "deny vlan=10"],
                            Action::Permit,
                        ),
                        1 => self::list(&["permit type=arp", "permit src=10.0.0.0/31"], Action::Deny),
                        _ => {
                            self::list(&["deny dst-mac=02:00:00:00:00:00/ff:ff:ff:ff:ff:fe"], Action::Permit)
                        }
                    })
                }),
                mirror: mirror.filter(|(to, ..)| *to != id).map(|(to, ways, some)| Mirror {
                    to: PortId(to),
                    ways,
                    acl: some.then(|| self::list(&["deny type=ipv4"], Action::Permit)),
                    snap: None,
                }),
                mac_limit,
                guard: SourceGuard::new(mode, own_mac, &[], &[], false),
                ip_guard: IpGuard::new(nets.filter(|_| ip == 1), ip == 2, ip == 2),
                ..Policy::default()
            }
            .compile()
        },
    )
}

fn ip4(id: u16) -> std::net::IpAddr {
    std::net::Ipv4Addr::from(ip(id)).into()
}

/// Its protocol, and the VLAN.
type Tag = ([u8; 2], u16);

/// Who sends, whose address it uses, to whom, the tag, and what.
fn sent() -> impl Strategy<Value = (u16, u16, u16, Option<Tag>, u8)> {
    let tag =
        (prop::sample::select(vec![[0x81u8, 0], [0x88, 0xa8]]), prop::sample::select(vec![0u16, 10, 20, 30]));
    (
        0..PORTS,
        prop_oneof![9 => Just(None), 1 => (0..PORTS).prop_map(Some)],
        0u16..9,
        prop::option::weighted(0.3, tag),
        0u8..4,
    )
        .prop_map(|(from, spoofed, to, tag, what)| (from, spoofed.unwrap_or(from), to, tag, what))
}

fn frame(src: u16, to: u16, tag: Option<Tag>, what: u8) -> Vec<u8> {
    let dst = match to {
        6 => [0xff; 6],
        7 => [1, 0x80, 0xc2, 0, 0, 0],
        8 => [1, 0x80, 0xc2, 0, 0, 0x0e],
        to => mac(to),
    };
    let mut bytes = match what {
        0 => arp(src, 1, ip(9)),
        1 => packet(src, 0, ip(1), 200),
        2 => [&mac(0)[..], &mac(src), &[0x88, 0xb5], &[7; 80]].concat(),
        _ => {
            let mut frame = packet(src, 0, ip(2), 10);
            (frame[34], frame[35], frame[36], frame[37]) = (0, 67, 0, 68);
            frame
        }
    };
    bytes[..6].copy_from_slice(&dst);
    if let Some((protocol, vlan)) = tag {
        let [high, low] = vlan.to_be_bytes();
        bytes.splice(12..12, [protocol[0], protocol[1], high, low]);
    }
    bytes
}

/// Drops by port and reason.
fn all_drops(rig: &Rig) -> BTreeMap<(u16, &'static str), u64> {
    (0..PORTS).flat_map(|port| rig.drops(port).into_iter().map(move |(why, n)| ((port, why), n))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    /// Before each frame is sent it is said who gets it, and who drops it and why. (100,000 frames.)
    #[test]
    fn what_is_said_happens(
        policies in (policy(0), policy(1), policy(2), policy(3), policy(4)),
        sent in prop::collection::vec(sent(), 60..140),
    ) {
        let (a, b, c, d, e) = policies;
        let mut rig = Rig::switch(&[a, b, c, d, e]);
        rig.walk.delivery.acl_cache.open();
        for (from, src, to, tag, what) in sent {
            // The switch learns from a frame where its source is before it looks for its destination.
            if src == to {
                continue;
            }
            let bytes = frame(src, to, tag, what);
            let said = rig.topology.explain(PortId(from), &bytes);
            let mut out: Vec<u16> = said.iter().filter(|it| matches!(it.fate, Fate::Out)).map(|it| it.port.0).collect();
            out.sort_unstable();
            let mut dropped = all_drops(&rig);
            for step in &said {
                if let Fate::Dropped(why) = step.fate {
                    *dropped.entry((step.port.0, why.name())).or_default() += 1;
                }
            }
            let got = rig.send(from, std::slice::from_ref(&bytes));
            prop_assert_eq!(super::to(&got), out, "{} {} {} {:?} {}", from, src, to, tag, what);
            prop_assert_eq!(all_drops(&rig), dropped);
        }
    }
}
