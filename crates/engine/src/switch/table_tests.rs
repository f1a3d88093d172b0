//! Tests of the MAC table: places, moves, counts. Those with several cores at work are in
//! `tests/mac_table.rs`.

use std::collections::HashMap;

use proptest::prelude::*;

use super::claim::{Contest, HOLD, MOVES};
use super::table::{Dispute, Found, Kind, Learned, MacTable, Rivals, Teller};
use super::{Switch, SwitchOptions};
use crate::port::PortId;

const KEY: [u64; 2] = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3211];
const AGEING: u32 = 300;
const MAC: u64 = 0x0605_0403_0202;
const P: PortId = PortId(1);
const Q: PortId = PortId(2);
const R: PortId = PortId(3);

fn by(port: PortId, now: u32) -> Teller {
    Teller { port, limit: 0, owns: false, moves: false, now, ageing: AGEING }
}

fn up(_: PortId) -> bool {
    true
}

fn disputes(table: &MacTable, now: u32) -> Vec<Dispute> {
    let mut all = Vec::new();
    table.disputes(now, |it| all.push(it));
    all
}

fn counts_are_true(table: &MacTable) {
    for port in 0..16 {
        assert_eq!(table.count(PortId(port)), table.recount(PortId(port)), "port {port}");
    }
}

/// `n` addresses of one bucket, as only the switch itself can find them.
fn bucket_of(table: &MacTable, n: usize) -> Vec<u64> {
    let mut buckets: HashMap<usize, Vec<u64>> = HashMap::new();
    for mac in (2..).step_by(2) {
        let bucket = buckets.entry(table.place_of(mac).0).or_default();
        bucket.push(mac);
        if bucket.len() == n {
            return bucket.clone();
        }
    }
    Vec::new()
}

#[derive(Clone, Debug)]
enum Op {
    Learn { nth: usize, port: u16, limit: u32, owns: bool, moves: bool },
    Pass(u32),
    Age,
    Forget(u16, bool),
    Pin(usize, u16, bool),
    Unpin,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        20 => (0usize..60, 0u16..5, prop_oneof![Just(0u32), 1u32..6], prop::bool::weighted(0.05), any::<bool>())
            .prop_map(|(nth, port, limit, owns, moves)| Op::Learn { nth, port, limit, owns, moves }),
        3 => (1u32..200).prop_map(Op::Pass),
        2 => Just(Op::Age),
        1 => (0u16..5, any::<bool>()).prop_map(|(port, stays)| Op::Forget(port, stays)),
        1 => (0usize..60, 0u16..5, any::<bool>()).prop_map(|(nth, port, fixed)| Op::Pin(nth, port, fixed)),
        1 => Just(Op::Unpin),
    ]
}

proptest! {
    /// While nothing ages and no bucket overflows, it is a map of homes.
    #[test]
    fn it_agrees_with_a_map(ops in prop::collection::vec((1u64..40, 0u16..5), 1..200)) {
        let table = MacTable::new(8192, KEY);
        let mut map = HashMap::new();
        for (mac, port) in ops {
            let mac = mac * 0x0100_0002;
            let learned = table.learn(mac, &by(PortId(port), 1), up);
            match map.get(&mac) {
                None => {
                    prop_assert_eq!(learned, Learned::New);
                    map.insert(mac, port);
                }
                Some(home) if *home == port => prop_assert_eq!(learned, Learned::Known),
                Some(_) => prop_assert!(!matches!(learned, Learned::New | Learned::Moved(_))),
            }
            for (mac, port) in &map {
                prop_assert_eq!(table.lookup(*mac).unwrap().port, PortId(*port));
            }
        }
        prop_assert_eq!(table.entries().len(), map.len());
    }

    /// An address is told again from its bucket and its tag, whatever the size of the table and its key; the
    /// VLAN is a part of what is looked up.
    #[test]
    fn no_two_addresses_are_taken_for_each_other(
        mac in 1u64..1 << 48, vlan in 1u64..4096, key in any::<[u64; 2]>(), size in 0u32..21,
    ) {
        let table = MacTable::new(1 << size, key);
        table.learn(mac, &by(P, 1), up);
        prop_assert_eq!(table.lookup(mac | vlan << 48), None);
        table.learn(mac | vlan << 48, &by(Q, 1), up);
        let at = |mac: u64| table.lookup(mac).map(|found| found.port);
        prop_assert_eq!((at(mac), at(mac | vlan << 48)), (Some(P), Some(Q)));
        prop_assert!(table.entries().iter().all(|entry| entry.mac == mac));
    }

    /// Whatever happens to a bucket that is too small: each port's count is what is there, never above its
    /// limit by what was learned, and no address stands twice.
    #[test]
    fn counts_are_what_is_there(ops in prop::collection::vec(op(), 1..300), down in 0u16..8) {
        let table = MacTable::new(0, KEY);
        let macs = bucket_of(&table, 60);
        let mut now = 1;
        for op in ops {
            match op {
                Op::Learn { nth, port, limit, owns, moves } => {
                    let by = Teller { limit, owns, moves, ..by(PortId(port), now) };
                    let before = table.count(PortId(port));
                    table.learn(macs[nth], &by, |port| port != PortId(down));
                    let after = table.count(PortId(port));
                    prop_assert!(after <= before || limit == 0 || after <= limit);
                }
                Op::Pass(seconds) => now += seconds,
                Op::Age => table.age(now, AGEING, |_| false),
                Op::Forget(port, stays) => table.forget(PortId(port), stays, now, AGEING),
                Op::Pin(nth, port, fixed) => {
                    let kind = if fixed { Kind::Static } else { Kind::Pinned };
                    table.pin(macs[nth], &by(PortId(port), now), kind);
                }
                Op::Unpin => table.unpin(now, |entry| entry.kind == Kind::Static),
            }
            counts_are_true(&table);
            let mut there: Vec<_> = table.entries().iter().map(|entry| entry.mac).collect();
            let entries = there.len();
            prop_assert!(there.iter().all(|mac| macs.contains(mac)));
            there.sort_unstable();
            there.dedup();
            prop_assert_eq!(there.len(), entries);
            prop_assert!(entries <= 8, "all in one bucket");
        }
    }
}

#[test]
fn a_full_bucket_takes_a_newcomer_from_the_port_with_most() {
    let table = MacTable::new(8192, KEY);
    let macs = bucket_of(&table, 12);
    // A neighbour is there first, then an attacker fills the rest of its bucket.
    assert_eq!(table.learn(macs[0], &by(P, 1), up), Learned::New);
    for mac in &macs[1..8] {
        assert_eq!(table.learn(*mac, &by(Q, 2), up), Learned::New);
    }
    // Newcomers of whatever port are learned, and the neighbour stays, however old its entry is.
    assert_eq!(table.learn(macs[8], &by(R, 3), up), Learned::New);
    for mac in &macs[9..] {
        assert_eq!(table.learn(*mac, &by(Q, 4), up), Learned::New);
    }
    let at = |mac: u64| table.lookup(mac).map(|found| found.port);
    assert_eq!((at(macs[0]), at(macs[8])), (Some(P), Some(R)));
    assert_eq!((table.count(P), table.count(Q), table.count(R)), (1, 6, 1));
    // What has aged goes first, whosever it is.
    for mac in [macs[0], macs[8]] {
        table.learn(mac, &by(if mac == macs[0] { P } else { R }, 250), up);
    }
    assert_eq!(table.learn(macs[7], &by(Q, 304), up), Learned::New);
    assert_eq!((at(macs[0]), at(macs[8]), table.count(Q)), (Some(P), Some(R), 6));
    counts_are_true(&table);
}

#[test]
fn the_key_decides_who_shares_a_bucket() {
    let table = MacTable::new(8192, KEY);
    let macs = bucket_of(&table, 8);
    let other = MacTable::new(8192, [KEY[0] ^ 1 << 40, KEY[1]]);
    let buckets: std::collections::HashSet<_> = macs.iter().map(|mac| other.place_of(*mac).0).collect();
    assert!(buckets.len() > 4, "{buckets:?}");
    // Addresses in sequence, as vendors and clouds give them, spread evenly.
    let mut load = vec![0u32; 1024];
    (0..4096u64).for_each(|n| {
        load[table.place_of(0x5254_0000_0000_u64.swap_bytes() >> 16 | n.swap_bytes() >> 16).0] += 1
    });
    assert!(load.iter().all(|n| *n < 20), "{:?}", load.iter().max());
}

#[test]
fn pressure_on_single_buckets_is_told_from_a_table_that_is_too_small() {
    let table = MacTable::new(4096, KEY);
    for mac in bucket_of(&table, 80) {
        table.learn(mac, &by(Q, 1), up);
    }
    assert!(table.pressed(), "one bucket overflows and the others are empty");
    assert!(!table.pressed(), "that was before");
    (2..80_000).step_by(2).for_each(|mac| {
        table.learn(mac, &by(Q, 2), up);
    });
    assert!(!table.pressed(), "full because there are so many");
}

#[test]
fn a_silent_port_gets_its_count_back_when_its_address_ages() {
    let table = MacTable::new(8192, KEY);
    let macs = bucket_of(&table, 9);
    let limited = |now| Teller { limit: 1, ..by(P, now) };
    assert_eq!(table.learn(macs[0], &limited(1), up), Learned::New);
    assert_eq!(table.learn(macs[8], &limited(2), up), Learned::Limit);
    // Others fill its bucket and replace what has aged before any sweep comes by.
    macs[1..9].iter().for_each(|mac| {
        table.learn(*mac, &by(Q, 302), up);
    });
    assert_eq!((table.lookup(macs[0]), table.count(P)), (None, 0));
    assert_eq!(table.learn(macs[0], &limited(303), up), Learned::New);
    counts_are_true(&table);
}

#[test]
fn a_clock_that_a_core_saw_tick_first_ages_nothing() {
    let table = MacTable::new(64, KEY);
    table.learn(MAC, &by(P, 11), up);
    table.age(10, AGEING, |_| false);
    assert_eq!(table.entries().len(), 1);
}

#[test]
fn both_get_the_frames_until_it_is_clear_who_has_the_address() {
    let table = MacTable::new(64, KEY);
    let found = || table.lookup(MAC).map(|Found { port, claimant, .. }| (port, claimant));
    table.learn(MAC, &by(P, 1), up);
    // A virtual router fails over: its successor is reached at once, and so is the port that was robbed.
    assert_eq!(table.learn(MAC, &by(Q, 2), up), Learned::Claimed(P));
    assert_eq!(found(), Some((P, Some(Q))));
    assert_eq!(table.learn(MAC, &by(Q, 3), up), Learned::Known);
    assert_eq!((table.count(P), table.count(Q)), (1, 1));
    // The first one speaks: it was never away.
    assert_eq!(table.learn(MAC, &by(P, 4), up), Learned::Known);
    assert_eq!((found(), table.count(Q)), (Some((P, None)), 0));
    // It falls silent for good: the other one has it, and its claim is its entry.
    table.learn(MAC, &by(Q, 5), up);
    table.age(303, AGEING, |_| false);
    assert_eq!(found(), Some((P, Some(Q))), "not before it has aged");
    table.learn(MAC, &by(Q, 303), up);
    table.age(304, AGEING, |_| false);
    assert_eq!((found(), table.count(P), table.count(Q)), (Some((Q, None)), 0, 1));
    // A third claims, too, then its home goes down.
    table.learn(MAC, &by(R, 305), up);
    table.forget(Q, true, 306, AGEING);
    assert_eq!((found(), table.count(R)), (Some((R, None)), 1));
    counts_are_true(&table);
}

#[test]
fn an_address_of_a_port_that_is_down_moves_at_once() {
    let table = MacTable::new(64, KEY);
    table.learn(MAC, &by(P, 1), up);
    assert_eq!(table.learn(MAC, &by(Q, 1), |port| port != P), Learned::Moved(P));
    assert_eq!(
        table.lookup(MAC),
        Some(Found { port: Q, kind: Kind::Learned, claimant: None, rivals: Rivals::NONE })
    );
    counts_are_true(&table);
}

#[test]
fn an_address_that_goes_to_and_fro_stays_where_it_is() {
    let table = MacTable::new(64, KEY);
    table.learn(MAC, &by(P, 5), up);
    for _ in 0..MOVES {
        assert_eq!(table.learn(MAC, &by(Q, 5), up), Learned::Claimed(P));
        table.learn(MAC, &by(P, 5), up);
    }
    assert!(disputes(&table, 5).is_empty());
    assert_eq!(table.learn(MAC, &by(Q, 5), up), Learned::Held(P));
    assert_eq!(table.learn(MAC, &by(Q, 5 + HOLD - 1), up), Learned::Held(P));
    // Which port is right is not known: both go on getting the frames, and so does a third that uses it.
    let rivals = || table.lookup(MAC).map(|found| found.rivals).unwrap();
    assert_eq!((table.lookup(MAC).unwrap().port, rivals().has(Q), rivals().has(R)), (P, true, false));
    assert_eq!(table.learn(MAC, &by(P, 6), up), Learned::Known);
    assert_eq!(table.learn(MAC, &by(R, 6), up), Learned::Held(P));
    assert!(rivals().has(Q) && rivals().has(R), "the home's word counts no more than that of others");
    let held = Dispute { contest: Contest::Held, mac: MAC, home: P, other: Q, third: None };
    assert_eq!(disputes(&table, 6), [held]);
    assert!(disputes(&table, 6).is_empty(), "told once");
    assert_eq!((table.count(P), table.count(Q)), (1, 0));
    assert_eq!(table.learn(MAC, &by(Q, 5 + HOLD), up), Learned::Claimed(P), "the hold ends");
    table.learn(MAC, &by(P, 5 + HOLD), up);
    assert_eq!(rivals(), Rivals::NONE);
    // Ten a second is no flapping.
    table.learn(MAC, &by(P, 99), up);
    for now in 100..120 {
        for _ in 0..MOVES {
            assert_eq!(table.learn(MAC, &by(Q, now), up), Learned::Claimed(P));
            table.learn(MAC, &by(P, now), up);
        }
    }
    // Frames that circle come in by two ports in turn, neither of which is their sender's.
    let mut port = Q;
    while table.learn(MAC, &by(port, 200), up) != Learned::Held(P) {
        port = if port == Q { R } else { Q };
    }
    let flaps = disputes(&table, 200);
    assert_eq!((flaps[0].home, flaps[0].other.min(flaps[0].third.unwrap())), (P, Q));
    counts_are_true(&table);
}

/// Two stations with one address, at rates at which nothing is held; a pair of VRRP routers that fails over
/// all the time is none.
#[test]
fn an_address_that_two_use_by_turns_is_told_of() {
    for (gap, told) in [(1, true), (3, true), (4, false)] {
        let table = MacTable::new(64, KEY);
        table.learn(MAC, &by(P, 1), up);
        let mut seconds = None;
        for now in (5..45).step_by(gap) {
            let _ = table.learn(MAC, &by(Q, now), up);
            table.learn(MAC, &by(P, now), up);
            if let Some(it) = disputes(&table, now).first() {
                assert_eq!((it.contest, it.home, it.other, it.third), (Contest::ByTurns, P, Q, None));
                seconds = seconds.or(Some(now - 5));
            }
        }
        assert_eq!(seconds, told.then_some(4 * u32::try_from(gap).unwrap()), "every {gap} s");
        assert!(disputes(&table, 60).is_empty(), "it has ended");
        counts_are_true(&table);
    }
}

#[test]
fn a_claim_that_lasts_is_told_of_until_it_ends() {
    let table = MacTable::new(64, KEY);
    table.learn(MAC, &by(P, 1), up);
    table.learn(MAC, &by(Q, 10), up);
    assert!(disputes(&table, 12).is_empty(), "its home may just be about to speak");
    let lasting = [Dispute { contest: Contest::Lasting, mac: MAC, home: P, other: Q, third: None }];
    assert_eq!((disputes(&table, 14), disputes(&table, 200)), (lasting.into(), lasting.into()));
    table.learn(MAC, &by(P, 201), up);
    assert!(disputes(&table, 210).is_empty());
}

/// IEEE 802.1Q §8.7: a frame from another port moves the address.
#[test]
fn an_address_that_may_move_does_so_by_its_first_frame() {
    let table = MacTable::new(64, KEY);
    let moves = |port, now| Teller { moves: true, ..by(port, now) };
    table.learn(MAC, &by(P, 1), up);
    assert_eq!(table.learn(MAC, &by(R, 1), up), Learned::Claimed(P));
    let alone = |port| Some(Found { port, kind: Kind::Learned, claimant: None, rivals: Rivals::NONE });
    for now in 2..40 {
        let (to, from) = if now % 2 == 0 { (Q, P) } else { (P, Q) };
        assert_eq!(table.learn(MAC, &moves(to, now * 4), up), Learned::Moved(from));
        assert_eq!(table.lookup(MAC), alone(to));
        assert!(disputes(&table, now * 4).is_empty(), "a pair of routers");
        counts_are_true(&table);
    }
    // Two stations have it: both are named, and it is never held.
    for now in 200..210 {
        for _ in 0..2 * MOVES {
            assert_eq!(table.learn(MAC, &moves(Q, now), up), Learned::Moved(P));
            assert_eq!(table.learn(MAC, &moves(P, now), up), Learned::Moved(Q));
        }
    }
    assert_eq!(disputes(&table, 210)[0].contest, Contest::ByTurns);
    // Nobody's choice moves what is pinned.
    assert!(table.pin(MAC, &by(P, 211), Kind::Pinned));
    assert_eq!(table.learn(MAC, &moves(Q, 212), up), Learned::Pinned(P));
    counts_are_true(&table);
}

#[test]
fn a_pinned_address_moves_only_while_its_port_is_down() {
    let table = MacTable::new(64, KEY);
    let found = || table.lookup(MAC).map(|found| found.port);
    assert!(table.pin(MAC, &by(P, 1), Kind::Pinned));
    assert_eq!(table.learn(MAC, &by(Q, 2), up), Learned::Pinned(P));
    table.age(1000, AGEING, |_| false);
    assert_eq!((found(), table.count(P), table.count(Q)), (Some(P), 1, 0));
    assert_eq!(table.learn(MAC, &by(Q, 1001), |port| port != P), Learned::Moved(P));
    // It is back, and says so itself.
    let own = Teller { owns: true, ..by(P, 1002) };
    assert_eq!(table.learn(MAC, &own, up), Learned::Moved(Q));
    assert_eq!(table.learn(MAC, &own, up), Learned::Known);
    assert_eq!(table.learn(MAC, &by(Q, 1003), up), Learned::Pinned(P));
    // Or the control plane does.
    table.forget(P, true, 1004, AGEING);
    table.learn(MAC, &by(Q, 1004), up);
    assert!(table.pin(MAC, &by(P, 1005), Kind::Pinned));
    assert_eq!((found(), table.count(Q)), (Some(P), 0));
    // No longer the port's own: it ages like others.
    table.unpin(1006, |_| false);
    table.age(1006 + AGEING, AGEING, |_| false);
    assert_eq!(found(), None);
    counts_are_true(&table);
}

#[test]
fn a_static_entry_stays_whatever_happens_to_its_port() {
    let table = MacTable::new(64, KEY);
    table.learn(MAC, &by(Q, 1), up);
    assert!(table.pin(MAC, &by(P, 1), Kind::Static));
    assert_eq!(table.learn(MAC, &by(Q, 2), |port| port != P), Learned::Pinned(P));
    table.forget(P, true, 3, AGEING);
    assert_eq!(table.lookup(MAC).map(|found| found.port), Some(P));
    assert_eq!(table.entries()[0].kind, Kind::Static);
    table.forget(P, false, 3, AGEING);
    assert_eq!((table.lookup(MAC), table.count(P)), (None, 0));
}

#[test]
fn a_port_that_leaves_a_vlan_is_forgotten_there() {
    let table = MacTable::new(64, KEY);
    let [ten, twenty] = [10, 20].map(|vlan: u64| MAC | vlan << 48);
    let home = |key| table.lookup(key).map(|found| found.port);
    table.learn(ten, &by(P, 1), up);
    table.learn(twenty, &by(P, 1), up);
    assert_eq!(table.learn(ten, &by(Q, 2), up), Learned::Claimed(P));
    table.forget_vlans(P, |vlan| vlan == 20, 3, AGEING);
    assert_eq!((home(ten), home(twenty)), (Some(Q), Some(P)), "who claimed it has it");
    // So is a claim.
    assert_eq!(table.learn(twenty, &by(Q, 4), up), Learned::Claimed(P));
    table.forget_vlans(Q, |vlan| vlan == 10, 5, AGEING);
    assert_eq!(table.lookup(twenty).and_then(|found| found.claimant), None);
    assert_eq!((home(ten), home(twenty)), (Some(Q), Some(P)));
    counts_are_true(&table);
}

/// A control plane tells once of stations elsewhere, and they may be silent here for ever.
#[test]
fn stations_that_are_told_stay_whatever_a_guest_sends() {
    let switch = Switch::new("lan", SwitchOptions::default());
    let (told, station) = (|port| port != R, |n: u64| 0x0100_0000_0002 + (n << 16));
    assert!((0..200).all(|n| switch.tell(station(n), R, false, 1)));
    let now = 2 + 2 * AGEING;
    switch.age(now, |port| port == R);
    (0..20_000).for_each(|n| _ = switch.table.learn(0x0300_0000_0002 + (n << 16), &by(P, now), told));
    let at = |n| switch.table.lookup(station(n)).map(|found| found.port);
    assert_eq!((0..200).filter(|n| at(*n) == Some(R)).count(), 200);
    // One that speaks here has moved, and goes back where it is told.
    assert_eq!(switch.table.learn(station(7), &by(P, now), told), Learned::Moved(R));
    assert!(switch.tell(station(7), R, false, now) && at(7) == Some(R));
    // In another table they are, too, with what was learned and what stays.
    assert!(switch.pin(station(5000), Q, Kind::Static, now));
    let home = |switch: &Switch, n| switch.table.lookup(station(n)).map(|found| (found.port, found.kind));
    let larger = switch.with_new_table(SwitchOptions { table_size: 262_144, ..SwitchOptions::default() });
    assert!((0..200).chain([5000]).all(|n| home(&larger, n) == home(&switch, n)));
    assert_eq!(larger.table.entries().len(), switch.table.entries().len());
    counts_are_true(&larger.table);
    let smaller = larger.with_new_table(SwitchOptions { table_size: 64, ..SwitchOptions::default() });
    assert!((0..200).chain([5000]).all(|n| home(&smaller, n) == home(&switch, n)));
    counts_are_true(&smaller.table);
}

#[test]
fn stations_that_are_told_take_no_place_of_others() {
    let switch = Switch::new("lan", SwitchOptions::default());
    let macs = bucket_of(&switch.table, 12);
    // Those that speak here are as many as a bucket holds.
    for (port, mac) in (1..).zip(&macs[..8]) {
        assert_eq!(switch.table.learn(*mac, &by(PortId(port), 9), up), Learned::New);
    }
    let beside =
        (2..).step_by(2).filter(|mac| switch.table.place_of(*mac).0 != switch.table.place_of(macs[0]).0);
    assert!(beside.take(10).all(|mac| switch.tell(mac, PortId(15), false, 9)));
    assert!(!switch.tell(macs[8], PortId(15), false, 9), "there is no room");
    assert!(macs[..8].iter().all(|mac| switch.table.lookup(*mac).is_some()));
    // Where others were told before, those that speak find places.
    let switch = Switch::new("lan", SwitchOptions::default());
    let macs = bucket_of(&switch.table, 12);
    assert!(macs[..8].iter().all(|mac| switch.tell(*mac, R, false, 9)));
    for (port, mac) in [(P, macs[8]), (Q, macs[9])] {
        assert_eq!(switch.table.learn(mac, &by(port, 9), up), Learned::New);
    }
    assert_eq!([macs[8], macs[9]].map(|mac| switch.table.lookup(mac).map(|it| it.port)), [Some(P), Some(Q)]);
    assert_eq!(switch.table.count(R), 6);
    counts_are_true(&switch.table);
    // What is there by having spoken is another one's when that is told.
    assert!(switch.tell(macs[8], R, false, 9));
    assert_eq!(switch.table.lookup(macs[8]).map(|it| it.port), Some(R));
    // What an operator has put here is not.
    assert!(switch.pin(MAC, Q, Kind::Static, 9) && !switch.tell(MAC, R, true, 9));
}
