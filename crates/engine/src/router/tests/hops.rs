//! Several next hops: which flows move when hops come, go, or lose their links; and shares by weights.

use super::*;
use crate::router::hops::{Hop, Hops, BUCKETS};

/// A hop of the control plane, by number: behind one of the ports, with a gateway of its own.
fn numbered(n: u8) -> FedHop {
    FedHop { link: 10 + u32::from(n % 3), gateway: Some(IpAddr::V4([10, 0, n % 3, 20 + n].into())) }
}

fn number_of(hop: &Hop) -> u8 {
    hop.gateway.to_be_bytes()[15] - 20
}

/// What `look` finds at the hops of the route to `to`.
fn at<T>(rig: &Rig, to: &str, look: impl FnOnce(&Hops) -> T) -> T {
    let group = rig.router.control().longest(ip(to)).unwrap().1;
    match rig.router.plan.take().1.group(group) {
        Group::Via(hops) => look(hops),
        _ => panic!(),
    }
}

/// The numbers of the hops that take the flows of each bucket.
fn owners(rig: &Rig, to: &str) -> Vec<u8> {
    let buckets = 0..u32::try_from(BUCKETS).unwrap();
    at(rig, to, |hops| buckets.map(|bucket| number_of(hops.choose(|| bucket).unwrap())).collect())
}

/// One with a route to 20.0.0.0/8 by object 100, and objects 0 to 40 that are hops.
fn rig() -> Rig {
    let rig = Rig::new(&[]);
    rig.router.set_links(links(), 1);
    let hops = (0..41u8).map(|n| Change::Object(1 + u32::from(n), Object::Hop(numbered(n))));
    rig.router.feed(&hops.collect::<Vec<_>>(), 1);
    rig.router.feed(&[Change::Route(net("20.0.0.0/8"), Way::Object(100))], 1);
    rig
}

/// The route's hops are these now; who has its buckets.
fn by(rig: &Rig, hops: &BTreeMap<u8, u16>) -> Vec<u8> {
    let group = hops.iter().map(|(n, weight)| (1 + u32::from(*n), *weight)).collect();
    rig.router.feed(&[Change::Object(100, Object::Group(group))], 1);
    owners(rig, "20.0.0.1")
}

/// How far a count of `BUCKETS` draws, each of which hits with chance `p`, may be from its mean: five
/// deviations.
fn tolerance(p: f64) -> f64 {
    5.0 * (BUCKETS as f64 * p * (1.0 - p)).sqrt() + 1.0
}

fn count(owners: &[u8], n: u8) -> f64 {
    owners.iter().filter(|it| **it == n).count() as f64
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A hop that comes takes its share of all others' and nothing else moves; when it goes only what was its
    /// own moves, and all is as it was.
    #[test]
    fn only_what_must_moves(
        mut hops in prop::collection::btree_map(0u8..40, 1u16..17, 1..20),
        weight in 1u16..17,
    ) {
        let rig = rig();
        let before = by(&rig, &hops);
        prop_assert!(before.iter().all(|owner| hops.contains_key(owner)));
        hops.insert(40, weight);
        let after = by(&rig, &hops);
        let moved = before.iter().zip(&after).filter(|(before, after)| before != after);
        prop_assert!(moved.clone().all(|(_, after)| *after == 40));
        let share = f64::from(weight) / f64::from(hops.values().sum::<u16>());
        let (got, mean) = (moved.count() as f64, BUCKETS as f64 * share);
        prop_assert!((got - mean).abs() < tolerance(share), "{got} of {mean}");
        // By another order of events, and by another group, it comes to the same.
        hops.remove(&40);
        prop_assert_eq!(by(&rig, &hops), before);
        let same = hops.iter().map(|(n, weight)| (numbered(*n), *weight)).collect();
        rig.router.feed(&[Change::Route(net("30.0.0.0/8"), Way::Hops(same))], 1);
        prop_assert_eq!(owners(&rig, "30.0.0.1"), by(&rig, &hops));
    }

    #[test]
    fn shares_follow_weights(hops in prop::collection::btree_map(0u8..40, 1u16..257, 2..9)) {
        let owners = by(&rig(), &hops);
        let all: f64 = hops.values().map(|it| f64::from(*it)).sum();
        for (n, weight) in hops {
            let share = f64::from(weight) / all;
            let (got, mean) = (count(&owners, n), BUCKETS as f64 * share);
            prop_assert!((got - mean).abs() < tolerance(share), "{got} of {mean}");
        }
    }

    /// Hops behind ports without a link leave their flows to those that have one, and no other flow moves; if
    /// none has one, none does.
    #[test]
    fn a_link_that_is_down_moves_its_flows_alone(
        hops in prop::collection::btree_map(0u8..40, 1u16..17, 1..20),
        up in prop::array::uniform3(any::<bool>()),
    ) {
        let rig = rig();
        let all: Vec<_> = (0..3).map(|i| rig.ports[i].lend(0, Hole)).collect();
        let before = by(&rig, &hops);
        let _some: Vec<_> = all.into_iter().zip(up).filter_map(|(link, up)| up.then_some(link)).collect();
        let has_link = |n: u8| up[usize::from(n % 3)];
        let any = hops.keys().any(|n| has_link(*n));
        for (before, after) in before.iter().zip(owners(&rig, "20.0.0.1")) {
            prop_assert!(after == *before || !has_link(*before) && has_link(after));
            prop_assert!(has_link(after) || !any);
        }
    }
}

/// Flows of frames, over many tables: each differs from the mean by its draws, which those of others do not
/// follow.
#[test]
fn weights_of_three_to_one_are_three_to_one_of_the_flows() {
    let mut rig = rig();
    let _sinks: Vec<_> = (0..3).map(|i| rig.ports[i].lend(0, Hole)).collect();
    let (mut most, mut flows) = (0, 0);
    for n in 0..13u8 {
        // One behind the second port, one behind the third.
        let (heavy, light) = (3 * n + 1, 3 * n + 2);
        by(&rig, &[(heavy, 3), (light, 1)].into());
        for (port, n) in [(1, heavy), (2, light)] {
            rig.know(port, numbered(n).gateway.unwrap(), THEIRS[port]);
        }
        for first in (0..512u16).step_by(64) {
            let flow = |n: u16| {
                let udp = [&(1000 + n).to_be_bytes()[..], &[0, 9, 0, 38, 0, 0], &[0; 30]].concat();
                ether(0, IPV4, &packet4("10.0.0.9", "20.0.0.1", 64, 17, &udp))
            };
            let went = rig.send(0, &(first..first + 64).map(flow).collect::<Vec<_>>()).went;
            assert!(went.iter().all(|went| matches!(went, Ok(1 | 2))), "{went:?}");
            most += went.iter().filter(|went| **went == Ok(1)).count();
            flows += went.len();
        }
    }
    let share = most as f64 / flows as f64;
    assert!((0.72..0.78).contains(&share), "{share}");
    let all = rig.router.routes(1);
    let weights: Vec<Option<u16>> = all
        .iter()
        .find(|it| it.prefix == net("20.0.0.0/8"))
        .unwrap()
        .hops
        .iter()
        .map(|hop| hop.weight)
        .collect();
    assert_eq!(weights, [Some(3), None]);
}

/// A change of something else leaves a table where it is.
#[test]
fn a_table_stays_while_its_hops_do() {
    let rig = rig();
    by(&rig, &[(1, 3), (2, 1)].into());
    let table = || at(&rig, "20.0.0.1", |hops| hops.owners.clone().unwrap());
    let before = table();
    rig.router.set_links([links(), [(99, "x".to_owned())].into()].into_iter().flatten().collect(), 1);
    assert!(Arc::ptr_eq(&before, &table()));
    by(&rig, &[(1, 2), (2, 1)].into());
    assert!(!Arc::ptr_eq(&before, &table()));
}
