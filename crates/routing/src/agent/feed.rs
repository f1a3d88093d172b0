//! What the daemon tells an agent, and what the agent says of itself, without the connection between them.
//!
//! An agent that asks gets the whole table, and then what changes (`Router::news`). Behind what it was told
//! comes a mark; what the agent then says of itself is compared with the digest that the router had there. If
//! these differ it is told the whole table again, less often each time. Nothing waits for an agent: what one
//! does not take stays in the router's list of changes, and one that is too far behind gets the whole table.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sidecore_engine::host::netlink::Malformed;
use sidecore_engine::packet::Mac;
use sidecore_engine::router::{FedHop, Led, RouteCopy, Router, Way};

use super::wire::{AgentState, Said, WireLink};
use crate::fpm::{frame, Stream};
use crate::tell::{route, Maker};

/// An agent that says nothing for so long is silent; one that asks again so long after it was answered has
/// lost the answer.
const SILENT: Duration = Duration::from_secs(3);
/// How soon the whole table is told again, doubled each time up to the longest.
const REPEAT: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);
/// Bytes that may wait for an agent before it is told more.
const WAITING: usize = 64 << 10;

/// What the router's ports are called, with their station addresses.
pub type Ports = BTreeMap<String, Mac>;

/// A change, the digest there, and whether the agent has said what it has there.
struct Mark {
    at: u64,
    digest: u64,
    answered: bool,
}

/// An agent, as the daemon knows it.
pub struct AgentFeed {
    stream: Stream,
    /// What is on its way to it.
    pub out: Vec<u8>,
    /// The number of its last HELLO, and when that was answered.
    hello: Option<(u64, Instant)>,
    copy: RouteCopy,
    /// Links that it knows, by name.
    links: BTreeMap<String, WireLink>,
    mark: Option<Mark>,
    /// Since when something is on its way to it.
    behind: Option<Instant>,
    heard: Instant,
    /// What it has said last.
    pub state: AgentState,
    /// When the whole table may be told again, and how long that was put off.
    repeat: (Instant, Duration),
    /// What it has was once what it should have, since it asked.
    pub in_force: bool,
    /// Times that it was told the whole table.
    pub tables: u64,
    /// Messages of its that were not sound.
    pub malformed: u64,
}

impl AgentFeed {
    /// One that has yet to ask.
    #[must_use]
    pub fn new(now: Instant) -> AgentFeed {
        AgentFeed {
            stream: Stream::default(),
            out: Vec::new(),
            hello: None,
            copy: RouteCopy::default(),
            links: BTreeMap::new(),
            mark: None,
            behind: None,
            heard: now,
            state: AgentState::default(),
            repeat: (now, Duration::ZERO),
            in_force: false,
            tables: 0,
            malformed: 0,
        }
    }

    /// Its connection has ended.
    pub fn end(&mut self) {
        (self.hello, self.behind, self.in_force) = (None, None, false);
        self.stream = Stream::default();
        self.out.clear();
    }

    /// Takes what it says.
    ///
    /// # Errors
    /// It is no message of an agent: the connection is of no use any more.
    pub fn hear(&mut self, bytes: &[u8], now: Instant) -> Result<(), Malformed> {
        let (mut said, mut sound) = (Vec::new(), Ok(()));
        let whole = self.stream.take(bytes, |message| match message.and_then(Said::read) {
            Ok(it) => said.extend(it),
            Err(e) => sound = Err(e),
        });
        said.into_iter().for_each(|it| self.take(it, now));
        let sound = whole.and(sound);
        self.malformed += u64::from(sound.is_err());
        sound
    }

    fn take(&mut self, said: Said, now: Instant) {
        match said {
            Said::Hello(number) => {
                let known = self.hello.filter(|(last, _)| *last == number);
                if known.is_some_and(|(_, then)| now.duration_since(then) < SILENT) {
                    return;
                }
                if known.is_none() {
                    // It takes nothing of what is on its way.
                    (self.in_force, self.state) = (false, AgentState::default());
                    self.out.clear();
                }
                self.out.extend(Said::Start(number).frame());
                (self.hello, self.heard) = (Some((number, now)), now);
                self.again();
                self.links.clear();
            }
            Said::State(state) if self.hello.is_some_and(|(number, _)| number == state.number) => {
                (self.state, self.heard) = (state, now);
                let Some(mark) = self.mark.as_mut().filter(|mark| mark.at == state.at) else { return };
                mark.answered = true;
                if mark.digest == state.digest {
                    self.repeat = (now, Duration::ZERO);
                    self.in_force = true;
                } else if now >= self.repeat.0 {
                    let wait = (self.repeat.1 * 2).clamp(REPEAT, LONGEST);
                    self.repeat = (now + wait, wait);
                    self.again();
                }
            }
            _ => {}
        }
    }

    /// It is told the whole table.
    fn again(&mut self) {
        (self.copy, self.mark) = (RouteCopy::default(), None);
    }

    /// Tells it what is new, as far as there is room. Whether there is more.
    pub fn tell(&mut self, router: &Router, ports: &Ports, now: Instant) -> bool {
        if self.hello.is_none() {
            return false;
        }
        for name in ports.keys() {
            self.number(name, ports);
        }
        while self.out.len() < WAITING {
            let news = router.news(&mut self.copy);
            if news.begins {
                self.tables += 1;
                self.out.extend(Said::Begin.frame());
            }
            if news.begins || news.ends || !news.routes.is_empty() {
                self.behind.get_or_insert(now);
            }
            for (net, led) in news.routes {
                let way = led.map(|led| self.way(led, ports));
                self.out.extend(frame(&route(net, way.as_ref(), 0, 0, Maker::default())));
            }
            if news.ends {
                self.out.extend(Said::End.frame());
            }
            let Some((at, digest)) = news.all else { continue };
            match &self.mark {
                Some(mark) if mark.at == at && mark.answered => self.behind = None,
                // One at a time: what changes without end is seen to be followed, too.
                Some(mark) if mark.at == at || !mark.answered => {}
                _ => {
                    self.mark = Some(Mark { at, digest, answered: false });
                    self.out.extend(Said::Mark(at).frame());
                }
            }
            return false;
        }
        true
    }

    /// The way that leads as `led` says, by the agent's numbers of links.
    fn way(&mut self, led: Led, ports: &Ports) -> Way {
        match led {
            Led::Blackhole => Way::Blackhole,
            Led::Unreachable => Way::Unreachable,
            Led::Prohibit => Way::Prohibit,
            Led::Hops(hops) => {
                let hop = |((name, gateway), weight): ((String, _), u16)| {
                    (FedHop { link: self.number(&name, ports), gateway }, weight)
                };
                Way::Hops(hops.into_iter().map(hop).collect())
            }
        }
    }

    /// The number by which it knows this link; it is told of links that it does not know as they are.
    fn number(&mut self, name: &str, ports: &Ports) -> u32 {
        let mac = ports.get(name).copied().unwrap_or(Mac([0; 6]));
        let known = self.links.get(name);
        if let Some(link) = known.filter(|link| link.mac == mac) {
            return link.number;
        }
        let next = u32::try_from(self.links.len() + 1).unwrap_or(u32::MAX);
        let number = known.map_or(next, |link| link.number);
        let link = WireLink { number, name: name.to_owned(), mac };
        self.out.extend(Said::Link(link.clone()).frame());
        self.links.insert(name.to_owned(), link);
        number
    }

    /// How it is, at time `now`: see [`crate::AgentView::state`].
    #[must_use]
    pub fn condition(&self, now: Instant) -> &'static str {
        let mark = self.mark.as_ref();
        let differs = mark.is_some_and(|mark| mark.at == self.state.at && mark.digest != self.state.digest);
        match () {
            () if self.hello.is_none() || now.duration_since(self.heard) > SILENT => "silent",
            () if self.behind.is_some() => "behind",
            () if differs => "differs",
            () => "consistent",
        }
    }

    /// For how long it has been behind, if it is.
    #[must_use]
    pub fn behind(&self, now: Instant) -> Option<Duration> {
        self.behind.map(|then| now.duration_since(then))
    }
}
