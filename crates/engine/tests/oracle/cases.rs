//! Small configurations and frames that have found something.

use super::config::router_station;
use super::frames::{four, station, Sent};
use super::options::{Wish, GATEWAY, OF_SWITCH};
use super::rules::List;

/// A datagram from station `number` behind port `n`.
fn datagram(n: usize, number: u8, to: [u8; 6]) -> Sent {
    let header = [0x45, 0, 0, 46, 0, 7, 0, 0, 64, 17, 0, 0];
    let udp = [0x9c, 0x40, 0, 53, 0, 26, 0, 0];
    let ends = [&to[..], &station(n, number), &[8, 0]].concat();
    let bytes = [&ends, &header[..], &four(n, number), &four(1, 0), &udp, &[0; 18]].concat();
    Sent::plain(n, bytes)
}

/// What each is about, its configuration, and the frames of each visit.
pub fn all() -> Vec<(&'static str, Wish, Vec<Vec<Sent>>)> {
    let own = |number, to| datagram(0, number, station(0, to));
    // `explain` said that what a station sends to itself is flooded; and a visit's frames for a station were
    // that came behind one of its own, if others for it had come before.
    let hairpin = vec![vec![own(0, 0)], vec![own(0, 0)], vec![own(1, 2), own(2, 2), own(1, 2)]];
    // It also said so where the station would move here.
    let mut moves = Wish::plain();
    moves.given.insert((OF_SWITCH, "mac-move"), "learn".to_owned());
    let there = datagram(1, 0, station(1, 0));
    let moved = vec![vec![there.clone()], vec![Sent { port: 0, ..there }]];
    // `explain` did not ask the list of what comes into a router.
    let mut listed = Wish::plain();
    listed.with_router();
    let list =
        |n: usize, rule: &str| List { name: format!("l{n}"), rules: vec![rule.to_owned()], permit: true };
    listed.lists = vec![list(0, "deny proto=udp"), list(1, "deny type=ipv4")];
    listed.given.extend([((GATEWAY, "acl-in"), "l0".to_owned()), ((GATEWAY, "acl-out"), "l1".to_owned())]);
    let routed = vec![vec![datagram(0, 0, router_station(GATEWAY))]];
    let mut passes = listed.clone();
    passes.given.remove(&(GATEWAY, "acl-in"));
    vec![
        ("a station's frame to itself", Wish::plain(), hairpin),
        ("a frame to itself of a station that moves", moves, moved),
        ("a list of what comes into a router", listed, routed.clone()),
        ("a list of what leaves a router", passes, routed),
    ]
}
