//! The agent of a back-end, which may say anything to the daemon, while routes change: what waits for it
//! stays bounded, and one that is honest then, whatever came before, has the router's table when it was told
//! all.
#![cfg_attr(feature = "libfuzzer", no_main)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sidecore_engine::router::{merged, part, Change, FedHop, Led, Net, Router, Way};
use sidecore_fuzz::fuzz_target;
use sidecore_routing::agent::feed::{AgentFeed, Ports};
use sidecore_routing::agent::wire::{AgentState, Said};
use sidecore_routing::fpm::Stream;

thread_local! {
    static ROUTER: Router = {
        let router = Router::new("r").unwrap();
        router.set_links([(1, "a".to_owned()), (2, "b".to_owned()), (3, "elsewhere".to_owned())].into(), 1);
        router
    };
}

fn net(a: u8) -> Net {
    Net { address: [20, a & 31, 0, 0].into(), len: 16 }
}

fn way(it: u8) -> Way {
    let hop = |link: u8| FedHop { link: u32::from(link & 3), gateway: Some([10, 0, link, it].into()) };
    match it & 7 {
        0 => Way::Blackhole,
        1 => Way::Unreachable,
        2 => Way::Object(u32::from(it >> 3)),
        few => Way::Hops(merged((1..=few).map(|link| (hop(link), 1 + u16::from(it >> 3) * u16::from(link))))),
    }
}

/// An agent that takes what it is told; what it has by names.
#[derive(Default)]
struct Honest {
    stream: Stream,
    started: bool,
    links: BTreeMap<u32, String>,
    routes: BTreeMap<Net, (Led, bool)>,
    at: u64,
}

impl Honest {
    fn take(&mut self, number: u64, bytes: &[u8]) {
        let mut all = Vec::new();
        self.stream.take(bytes, |it| all.extend(it.and_then(Said::read).unwrap())).unwrap();
        for said in all {
            match said {
                Said::Start(it) => self.started |= it == number,
                _ if !self.started => {}
                Said::Link(link) => drop(self.links.insert(link.number, link.name)),
                Said::Begin => self.routes.values_mut().for_each(|it| it.1 = false),
                Said::End => self.routes.retain(|_, it| it.1),
                Said::Mark(at) => self.at = at,
                Said::Route(Change::Gone(net)) => drop(self.routes.remove(&net)),
                Said::Route(Change::Route(net, way)) => {
                    let led = match way {
                        Way::Blackhole => Led::Blackhole,
                        Way::Unreachable => Led::Unreachable,
                        Way::Prohibit => Led::Prohibit,
                        Way::Object(_) => panic!("an object has no meaning here"),
                        Way::Hops(hops) => {
                            let named = |hop: FedHop| (self.links[&hop.link].clone(), hop.gateway);
                            let mut all: Vec<_> =
                                hops.into_iter().map(|(hop, weight)| (named(hop), weight)).collect();
                            all.sort_unstable();
                            Led::Hops(all)
                        }
                    };
                    self.routes.insert(net, (led, true));
                }
                other => panic!("{other:?} is no word for an agent"),
            }
        }
    }

    fn state(&self, number: u64) -> AgentState {
        let sum = |sum: u64, (net, (led, _)): (&Net, &(Led, bool))| sum.wrapping_add(part(*net, led));
        let digest = self.routes.iter().fold(0, sum);
        AgentState { number, at: self.at, digest, routes: self.routes.len() as u32, failed: 0 }
    }
}

fuzz_target!(|data: &[u8]| {
    ROUTER.with(|router| {
        let ports: Ports = [("a".to_owned(), "02:00:00:00:00:01".parse().unwrap())].into();
        let mut now = Instant::now();
        let mut feed = AgentFeed::new(now);
        for step in data.chunks(24) {
            let [what, a, b, rest @ ..] = step else { break };
            match what & 7 {
                0 | 1 => router.feed(&[Change::Route(net(*a), way(*b))], 1),
                2 => router.feed(&[Change::Gone(net(*a))], 1),
                3 => {
                    // A sound word of a strange agent.
                    let number = u64::from(*a & 3);
                    let state = AgentState { number, at: u64::from(*b), digest: 1, routes: 2, failed: 3 };
                    let words =
                        [Said::Hello(number), Said::State(state), Said::Start(1), Said::Mark(2), Said::Begin];
                    let _ = feed.hear(&words[usize::from(*b) % words.len()].frame(), now);
                }
                4 => now += Duration::from_millis(u64::from(*a) * 50),
                5 => {
                    if feed.hear(rest, now).is_err() {
                        feed.end();
                    }
                }
                6 => feed.out.clear(),
                _ => drop(feed.tell(router, &ports, now)),
            }
            assert!(feed.out.len() < 1 << 20);
        }
        // An honest one takes its place.
        feed.end();
        let (number, mut honest) = (77, Honest::default());
        feed.hear(&Said::Hello(number).frame(), now).unwrap();
        for _ in 0..4 {
            while feed.tell(router, &ports, now) || !feed.out.is_empty() {
                honest.take(number, &std::mem::take(&mut feed.out));
            }
            feed.hear(&Said::State(honest.state(number)).frame(), now).unwrap();
        }
        assert_eq!(honest.state(number).digest, router.fed().digest);
        assert_eq!((feed.condition(now), feed.in_force), ("consistent", true));
        router.next_generation();
        while let (_, Some(_)) = router.sweep(None, 1) {}
    });
});
