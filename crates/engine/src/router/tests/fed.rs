//! A control plane's routes: what they lead to, how they are counted, and how they end.

use std::collections::BTreeSet;

use super::*;

/// Removes all that is stale, in as many steps as that takes.
fn sweep(rig: &Rig) -> usize {
    let (mut gone, mut next) = rig.router.sweep(None, 1);
    while let Some(behind) = next {
        let (more, rest) = rig.router.sweep(Some(behind), 1);
        (gone, next) = (gone + more, rest);
    }
    gone
}

proptest! {
    /// What is counted while routes change is what there is when all of them are looked at; and the digest is
    /// that of what they mean.
    #[test]
    fn counts_and_digests_follow_each_change(
        steps in prop::collection::vec((0u8..8, 0u8..6, 0u8..4), 1..120),
    ) {
        let router = Router::new("r").unwrap();
        router.set_links(links(), 1);
        let net = |n: u8| Net { address: IpAddr::V4([20, n, 0, 0].into()), len: 16 };
        let via = |n: u8| FedHop { link: 10 + u32::from(n % 2), gateway: Some(IpAddr::V4([10, 0, 1, n].into())) };
        let named = |hop: FedHop| (format!("p{}", hop.link - 10), hop.gateway);
        // What is known of each route: its object or hop, whether it is of this generation, whether it was
        // found.
        let mut routes: BTreeMap<Net, (Result<u32, FedHop>, bool, bool)> = BTreeMap::new();
        let mut objects: BTreeMap<u32, FedHop> = BTreeMap::new();
        // Copies that are told at each step, at some, and at the end alone.
        let mut copies: [(RouteCopy, BTreeMap<Net, Led>, BTreeSet<Net>); 3] = Default::default();
        for (step, (what, which, to)) in steps.into_iter().enumerate() {
            match what {
                0 | 1 => {
                    router.feed(&[Change::Route(net(which), Way::Object(to.into()))], 1);
                    routes.insert(net(which), (Ok(to.into()), true, true));
                }
                2 => {
                    router.feed(&[Change::Route(net(which), Way::Hops(vec![(via(to), 1)]))], 1);
                    routes.insert(net(which), (Err(via(to)), true, true));
                }
                3 => {
                    router.feed(&[Change::Gone(net(which))], 1);
                    routes.remove(&net(which));
                }
                4 => {
                    router.feed(&[Change::Object(to.into(), Object::Hop(via(which)))], 1);
                    objects.insert(to.into(), via(which));
                }
                5 => {
                    router.next_generation();
                    routes.values_mut().for_each(|it| it.1 = false);
                }
                6 => {
                    router.compare();
                    routes.values_mut().for_each(|it| it.2 = false);
                }
                _ => {
                    let strange = router.found(&[net(which)]);
                    prop_assert_eq!(strange.is_empty(), routes.contains_key(&net(which)));
                    routes.entry(net(which)).and_modify(|it| it.2 = true);
                }
            }
            let led: BTreeMap<Net, Led> = routes.iter().map(|(net, (way, ..))| {
                let hop = match way {
                    Ok(object) => objects.get(object).copied(),
                    Err(hop) => Some(*hop),
                };
                (*net, Led::Hops(hop.map(|hop| (named(hop), 1)).into_iter().collect()))
            }).collect();
            let counts = router.fed();
            prop_assert_eq!(counts.digest, digest::digest(led.iter().map(|(net, led)| (*net, led))));
            prop_assert_eq!(counts.routes, routes.len());
            prop_assert_eq!(counts.stale, routes.values().filter(|it| !it.1).count());
            let unfound: Vec<Net> = routes.iter().filter(|(_, it)| !it.2).map(|(net, _)| *net).collect();
            prop_assert_eq!(router.unfound(None), (unfound, None));
            for (n, (copy, has, again)) in copies.iter_mut().enumerate() {
                if step % (1 + 6 * n) == 0 {
                    prop_assert_eq!(tell(&router, copy, has, again), counts.digest);
                    prop_assert_eq!(&*has, &led);
                }
            }
        }
    }
}

/// Tells a copy all that there is to tell; the digest that it is to have then.
fn tell(
    router: &Router,
    copy: &mut RouteCopy,
    has: &mut BTreeMap<Net, Led>,
    again: &mut BTreeSet<Net>,
) -> u64 {
    loop {
        let news = router.news(copy);
        if news.begins {
            again.clear();
        }
        for (net, led) in news.routes {
            again.insert(net);
            match led {
                Some(led) => drop(has.insert(net, led)),
                None => drop(has.remove(&net)),
            }
        }
        if news.ends {
            has.retain(|net, _| again.contains(net));
        }
        if let Some((_, digest)) = news.all {
            return digest;
        }
    }
}

/// A copy that gets a whole table while that changes has the table as it is at last; one that is too far
/// behind gets it again.
#[test]
fn a_table_that_changes_on_its_way_to_a_copy() {
    let router = Router::new("r").unwrap();
    let net = |i: u32| Net { address: IpAddr::V4((0x1400_0000 + (i << 8)).into()), len: 24 };
    let routes = |range: std::ops::Range<u32>| {
        range.map(|i| Change::Route(net(i), Way::Blackhole)).collect::<Vec<_>>()
    };
    router.feed(&routes(0..10_000), 1);
    let (mut copy, mut has, mut again) = <(RouteCopy, BTreeMap<Net, Led>, BTreeSet<Net>)>::default();
    let news = router.news(&mut copy);
    assert!(news.begins && !news.ends && news.all.is_none());
    has.extend(news.routes.into_iter().map(|(net, led)| (net, led.unwrap())));
    again.extend(has.keys());
    // One that was told, one that was not, and one that is new.
    router.feed(
        &[Change::Gone(net(1)), Change::Gone(net(9_999)), Change::Route(net(20_000), Way::Prohibit)],
        1,
    );
    assert_eq!(tell(&router, &mut copy, &mut has, &mut again), router.fed().digest);
    assert_eq!(
        (has.len(), digest::digest(has.iter().map(|(net, led)| (*net, led)))),
        (9_999, router.fed().digest)
    );
    assert!(router.news(&mut copy).routes.is_empty());
    // It is told of each change once, and of all of them when there were too many.
    router.feed(&[Change::Route(net(2), Way::Prohibit)], 1);
    assert_eq!(router.news(&mut copy).routes, [(net(2), Some(Led::Prohibit))]);
    router.feed(&routes(0..80_000), 1);
    assert!(router.news(&mut copy.clone()).begins);
    assert_eq!(tell(&router, &mut copy, &mut has, &mut again), router.fed().digest);
    assert_eq!(has.len(), 80_000);
}

#[test]
fn many_stale_routes_go_in_several_steps() {
    let rig = Rig::new(&[]);
    let net = |i: u32| Net { address: IpAddr::V4((0x1400_0000 + (i << 8)).into()), len: 24 };
    let table: Vec<Change> = (0..10_000).map(|i| Change::Route(net(i), Way::Blackhole)).collect();
    rig.router.feed(&table, 1);
    rig.router.next_generation();
    // One of them is said again meanwhile.
    let (gone, next) = rig.router.sweep(None, 1);
    assert!(gone < 10_000 && next.is_some());
    rig.router.feed(&table[9_000..9_001], 1);
    assert_eq!((gone + sweep(&rig), rig.router.fed().routes, rig.router.fed().stale), (9_999, 1, 0));
    assert_eq!(rig.router.routes(1).iter().filter(|it| it.origin == "fpm").count(), 1);
}

#[test]
fn a_control_planes_next_hop_changes_under_its_routes() {
    let mut rig = Rig::new(&[]);
    rig.router.set_links(links(), 1);
    let table: Vec<Change> = (0..1000u32)
        .map(|i| {
            Change::Route(
                Net { address: IpAddr::V4((0x1400_0000 + (i << 8)).into()), len: 24 },
                Way::Object(7),
            )
        })
        .collect();
    // The routes first: until it is said what the number stands for they drop, and fall to no other one.
    rig.router.feed(
        &[Change::Route(
            net("0.0.0.0/0"),
            Way::Hops(vec![(FedHop { link: 12, gateway: Some(ip("10.0.2.9")) }, 1)]),
        )],
        1,
    );
    rig.router.feed(&table, 1);
    assert_eq!((goes(&mut rig, "20.0.9.1"), goes(&mut rig, "30.0.0.1")), (Err("no_route"), Ok(2)));
    let digest = rig.router.fed().digest;
    rig.router.feed(&[Change::Object(7, hop(11, "10.0.1.9"))], 1);
    assert_eq!(goes(&mut rig, "20.0.9.1"), Ok(1));
    // A group of it and another one, and then of the other one alone.
    rig.router.feed(&[Change::Object(1, hop(11, "10.0.1.9")), Change::Object(2, hop(12, "10.0.2.9"))], 1);
    rig.router.feed(&[Change::Object(7, Object::Group(vec![(1, 1), (2, 1)]))], 1);
    assert_eq!(rig.router.explain(ip("20.0.9.1"), None, 1).hops.len(), 2);
    rig.router.feed(&[Change::ObjectGone(1)], 1);
    assert_eq!(goes(&mut rig, "20.0.9.1"), Ok(2));
    rig.router.feed(&[Change::Object(7, Object::Blackhole)], 1);
    assert_eq!(goes(&mut rig, "20.0.9.1"), Err("blackhole"));
    // What the routes lead to is another thing, and then the same again: so is the digest.
    let counts = rig.router.fed();
    assert!(counts.digest != digest && counts.routes == 1001);
    rig.router.feed(&[Change::ObjectGone(7)], 1);
    assert_eq!(rig.router.fed().digest, digest);
    // Its interface gets another number, or goes.
    rig.router.feed(&[Change::Object(7, hop(11, "10.0.1.9"))], 1);
    rig.router.set_links([(11, "p2".to_owned())].into(), 1);
    rig.know(2, ip("10.0.1.9"), THEIRS[2]);
    assert_eq!(goes(&mut rig, "20.0.9.1"), Ok(2));
    rig.router.set_links(BTreeMap::new(), 1);
    assert_eq!(goes(&mut rig, "20.0.9.1"), Err("no_route"));
    // Nothing of it is left, and no neighbour stays pinned.
    rig.router.next_generation();
    assert_eq!(sweep(&rig), 1001);
    for _ in 0..4 {
        assert_eq!(goes(&mut rig, "20.0.9.1"), Err("no_route"));
    }
    rig.configure(&[]);
    rig.configure(&[]);
    assert_eq!(rig.router.fed(), FedCounts::default());
    assert!(rig.router.neighbours(1).iter().all(|it| !it.gateway), "{:?}", rig.router.neighbours(1));
}

#[test]
fn own_routes_and_the_operators_go_before_the_control_planes() {
    let mut rig = Rig::new(&[via("20.0.0.0/8", &["10.0.1.9"])]);
    rig.router.set_links(links(), 1);
    let elsewhere = || Way::Hops(vec![(FedHop { link: 12, gateway: Some(ip("10.0.2.9")) }, 1)]);
    let all = ["20.0.0.0/8", "10.0.1.0/24", "10.0.0.1/32", "30.0.0.0/8"];
    rig.router.feed(&all.map(|prefix| Change::Route(net(prefix), elsewhere())), 1);
    assert_eq!(
        (goes(&mut rig, "20.0.0.1"), goes(&mut rig, "10.0.1.9"), goes(&mut rig, "30.0.0.1")),
        (Ok(1), Ok(1), Ok(2))
    );
    assert_eq!(rig.router.explain(ip("20.0.0.1"), None, 1).origin.as_deref(), Some("static"));
    // When the operator's goes, the control plane's takes its place; and the other way round.
    rig.configure(&[]);
    assert_eq!(goes(&mut rig, "20.0.0.1"), Ok(2));
    assert_eq!(rig.router.explain(ip("20.0.0.1"), None, 1).origin.as_deref(), Some("fpm"));
    rig.configure(&[via("20.0.0.0/8", &["10.0.1.9"])]);
    assert_eq!(goes(&mut rig, "20.0.0.1"), Ok(1));
    rig.router.feed(&[Change::Gone(net("20.0.0.0/8")), Change::Gone(net("10.0.0.1/32"))], 1);
    assert_eq!((goes(&mut rig, "20.0.0.1"), rig.router.fed().routes), (Ok(1), 2));
    rig.configure(&[]);
    assert_eq!(goes(&mut rig, "20.0.0.1"), Err("no_route"));
    // What is said again stays, the rest is swept.
    rig.router.next_generation();
    rig.router.feed(&[Change::Route(net("10.0.1.0/24"), elsewhere())], 1);
    assert_eq!((rig.router.fed().stale, sweep(&rig)), (1, 1));
    assert_eq!((rig.router.fed().stale, rig.router.fed().routes), (0, 1));
    assert_eq!((goes(&mut rig, "30.0.0.1"), goes(&mut rig, "10.0.1.9")), (Err("no_route"), Ok(1)));
}
