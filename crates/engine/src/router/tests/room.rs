//! Bounds of what a control plane may say.

use super::*;
use crate::router::said::MAX_MEMBERS;

/// Hops at port 1, and groups of four of them.
fn said() -> Vec<Change> {
    let hops = (1..=4u8).map(|n| Change::Object(n.into(), hop(11, &format!("10.0.1.{}", 8 + n))));
    let groups = (100..104).map(|id| Change::Object(id, Object::Group(vec![(1, 1), (2, 1), (3, 1), (4, 1)])));
    hops.chain(groups).collect()
}

fn hops(rig: &Rig, to: &str) -> usize {
    rig.router.explain(ip(to), None, 1).hops.len()
}

fn short(rig: &Rig) -> (usize, usize) {
    let FedCounts { hops, short, .. } = rig.router.fed();
    (hops, short)
}

#[test]
fn ways_have_hops_while_there_is_room_and_get_them_when_there_is_again() {
    let mut rig = Rig::new(&[via("40.0.0.0/8", &["10.0.1.9"]), via("0.0.0.0/0", &["10.0.2.9"])]);
    rig.router.set_links(links(), 1);
    rig.router.control().groups.most = 9;
    rig.router.feed(&said(), 1);
    let routes = (0..4).map(|i| Change::Route(net(&format!("2{i}.0.0.0/8")), Way::Object(100 + i)));
    rig.router.feed(&routes.collect::<Vec<_>>(), 1);
    // The operator's do not count. Two ways lead nowhere, and fall to no shorter prefix.
    assert_eq!(short(&rig), (8, 2));
    assert_eq!([20, 21, 22, 23].map(|i| hops(&rig, &format!("{i}.0.0.1"))), [4, 4, 0, 0]);
    assert_eq!((goes(&mut rig, "22.0.0.1"), goes(&mut rig, "30.0.0.1")), (Err("no_route"), Ok(2)));
    // Hops that a route names itself; and the operator's, which are never refused.
    let two = ["10.0.1.9", "10.0.1.10"];
    let two = two.iter().map(|it| (FedHop { link: 11, gateway: Some(ip(it)) }, 1)).collect();
    rig.router.feed(&[Change::Route(net("24.0.0.0/8"), Way::Hops(two))], 1);
    assert_eq!((rig.router.fed().refused, goes(&mut rig, "24.0.0.1")), (1, Err("no_route")));
    rig.configure(&[
        via("40.0.0.0/8", &["10.0.1.9"]),
        via("0.0.0.0/0", &["10.0.2.9"]),
        via("41.0.0.0/8", &["10.0.1.9", "10.0.1.10"]),
    ]);
    assert_eq!((hops(&rig, "41.0.0.1"), short(&rig).1), (2, 2));
    // Groups that are smaller leave room: when no core is on its way to the larger ones, others have it.
    rig.router.feed(
        &[Change::Object(100, Object::Group(vec![(1, 1)])), Change::Object(101, Object::Group(vec![(2, 1)]))],
        1,
    );
    let mut rounds = 0;
    while short(&rig).1 > 1 {
        assert!(goes(&mut rig, "30.0.0.1").is_ok() && rounds < 8, "{:?}", short(&rig));
        rig.router.tidy(1);
        rounds += 1;
    }
    assert_eq!(short(&rig), (6, 1));
    rig.router.feed(&[Change::Gone(net("20.0.0.0/8")), Change::Gone(net("21.0.0.0/8"))], 1);
    rig.router.feed(&[Change::Object(102, Object::Group(vec![(3, 1)]))], 1);
    while short(&rig).1 > 0 {
        assert!(goes(&mut rig, "30.0.0.1").is_ok() && rounds < 16, "{:?}", short(&rig));
        rig.router.tidy(1);
        rounds += 1;
    }
    assert_eq!([22, 23].map(|i| hops(&rig, &format!("{i}.0.0.1"))), [1, 4]);
    // What nothing leads to any more is not kept, the plan included.
    let (Some((_, group)), true) = (rig.router.control().longest(ip("23.0.0.1")), rounds < 16) else {
        panic!()
    };
    let group = rig.router.control().groups.get(group).map(Arc::downgrade).unwrap();
    rig.router.feed(&[Change::Gone(net("23.0.0.0/8"))], 1);
    while group.upgrade().is_some() {
        assert!(goes(&mut rig, "30.0.0.1").is_ok() && rounds < 24);
        rig.router.tidy(1);
        rounds += 1;
    }
}

#[test]
fn members_of_groups_are_bounded_over_all_of_them() {
    let rig = Rig::new(&[]);
    rig.router.set_links(links(), 1);
    let group = |id, members| Change::Object(id, Object::Group(vec![(1, 1); members]));
    rig.router.feed(&[Change::Object(1, hop(11, "10.0.1.9")), group(7, MAX_MEMBERS - 1), group(8, 1)], 1);
    rig.router.feed(&[Change::Route(net("20.0.0.0/8"), Way::Object(8))], 1);
    assert_eq!((rig.router.fed().refused, hops(&rig, "20.0.0.1")), (0, 1));
    // One more is too much: then it leads nowhere, and not where it led before.
    rig.router.feed(&[group(8, 2)], 1);
    assert_eq!((rig.router.fed().refused, hops(&rig, "20.0.0.1")), (1, 0));
    rig.router.feed(&[group(7, 1), group(8, 2)], 1);
    assert_eq!((rig.router.fed().refused, hops(&rig, "20.0.0.1")), (1, 1));
    rig.router.feed(&[Change::ObjectGone(7), Change::ObjectGone(8), group(9, MAX_MEMBERS)], 1);
    assert_eq!((rig.router.fed().refused, rig.router.fed().objects), (1, 2));
}
