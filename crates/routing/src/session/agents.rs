//! The agents of back-ends (`agent`), which have the router's routes in force in kernels of their own.
//!
//! Each is a connection to a socket that the operator names: a VMM's end of a virtio-serial port. An agent that asks gets the whole
//! table, and then what changes (`Router::news`). Behind what it was told comes a mark; what the agent then says of itself is compared with
//! the digest that the router had there. If these differ it is told the whole table again, less often each time. Nothing waits for an agent:
//! what one does not take stays in the router's list of changes, and one that is too far behind gets the whole table.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{recv, send, RecvFlags, SendFlags};
use sidecore_engine::packet::Mac;
use sidecore_engine::router::{FedHop, Led, RouteCopy, Router, Way};
use sidecore_engine::sandbox::open::socket;
use sidecore_engine::slice::upto;

use crate::agent::wire::{AgentState, Said, WireLink};
use crate::fpm::{frame, Stream};
use crate::tell::{route, Maker};
use crate::view::AgentView;

/// How soon a socket is called again that did not answer, or whose agent said what is not sound.
const AGAIN: Duration = Duration::from_secs(1);
/// An agent that says nothing for so long is silent; one that asks again so long after it was answered has lost the answer.
const SILENT: Duration = Duration::from_secs(3);
/// How soon the whole table is told again, doubled each time up to the longest.
const REPEAT: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);
/// Bytes that may wait for an agent before it is told more, and how often that many go at once.
const WAITING: usize = 64 << 10;
const TURNS: usize = 16;

/// What the router's ports are called, with their station addresses.
pub(super) type Ports = BTreeMap<String, Mac>;

/// A change, the digest there, and whether the agent has said what it has there.
struct Mark {
    at: u64,
    digest: u64,
    answered: bool,
}

/// What is known of one agent.
pub(super) struct AgentLink {
    /// Its member of the router's group.
    member: String,
    path: PathBuf,
    socket: Option<OwnedFd>,
    /// It is not called before that.
    call: Instant,
    stream: Stream,
    /// What is on its way to it.
    out: Vec<u8>,
    /// The number of its last HELLO, and when that was answered.
    hello: Option<(u64, Instant)>,
    copy: RouteCopy,
    /// Links that it knows, by name.
    links: BTreeMap<String, WireLink>,
    mark: Option<Mark>,
    /// Since when something is on its way to it.
    behind: Option<Instant>,
    heard: Instant,
    state: AgentState,
    /// When the whole table may be told again, and how long that was put off.
    repeat: (Instant, Duration),
    /// What it has was once what it should have, since it asked.
    in_force: bool,
    tables: u64,
    malformed: u64,
    trouble: Option<String>,
}

impl AgentLink {
    pub fn new(member: &str, path: PathBuf) -> AgentLink {
        let now = Instant::now();
        AgentLink {
            member: member.to_owned(),
            path,
            socket: None,
            call: now,
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
            trouble: None,
        }
    }

    /// Whether it is the one of `member` at `path`.
    pub fn is(&self, member: &str, path: &PathBuf) -> bool {
        self.member == member && self.path == *path
    }

    /// It is none of `router`'s any more.
    pub fn leave(&self, router: &Router) {
        router.set_copy(&self.member, false);
    }

    /// What to wait for, if it is connected.
    pub fn event(&self) -> Option<PollFd<'_>> {
        let more = if self.out.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        self.socket.as_ref().map(|socket| PollFd::new(socket, PollFlags::IN | more))
    }

    /// Does what there is to do: calls, hears, tells. Whether there is more at once.
    pub fn serve(&mut self, router: &Router, ports: &Ports, room: &mut [u8]) -> bool {
        let now = Instant::now();
        let more = self.step(router, ports, room, now).unwrap_or_else(|why| {
            self.end(why, now);
            false
        });
        router.set_copy(&self.member, self.in_force);
        more
    }

    fn step(
        &mut self,
        router: &Router,
        ports: &Ports,
        room: &mut [u8],
        now: Instant,
    ) -> Result<bool, Option<String>> {
        if self.socket.is_none() {
            if now < self.call {
                return Ok(false);
            }
            let socket = socket::call(&self.path).map_err(|e| Some(e.to_string()))?;
            (self.socket, self.heard, self.trouble) = (Some(socket), now, None);
        }
        self.hear(room, now)?;
        for _ in 0..TURNS {
            let more = self.hello.is_some() && self.tell(router, ports, now);
            self.flush()?;
            if !more || !self.out.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The connection ends.
    fn end(&mut self, why: Option<String>, now: Instant) {
        (self.socket, self.hello, self.behind, self.in_force) = (None, None, None, false);
        (self.stream, self.call, self.trouble) = (Stream::default(), now + AGAIN, why);
        self.out.clear();
    }

    /// Takes what the agent says; why the connection ends, if it does.
    fn hear(&mut self, room: &mut [u8], now: Instant) -> Result<(), Option<String>> {
        let Some(socket) = &self.socket else { return Ok(()) };
        let len = match recv(socket, &mut *room, RecvFlags::empty()) {
            Ok((0, _)) => return Err(Some("the other end has gone".to_owned())),
            Ok((len, _)) => len,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(e) => return Err(Some(e.to_string())),
        };
        let (mut said, mut sound) = (Vec::new(), Ok(()));
        let whole = self.stream.take(upto(room, len), |message| match message.and_then(Said::read) {
            Ok(it) => said.extend(it),
            Err(e) => sound = Err(e),
        });
        said.into_iter().for_each(|it| self.take(it, now));
        whole.and(sound).map_err(|e| {
            self.malformed += 1;
            Some(format!("what it says is no message of an agent: {e}"))
        })
    }

    fn take(&mut self, said: Said, now: Instant) {
        match said {
            Said::Hello(number) => {
                let known = self.hello.filter(|(last, _)| *last == number);
                if known.is_some_and(|(_, then)| now.duration_since(then) < SILENT) {
                    return;
                }
                if known.is_none() {
                    // Of what is on its way it takes nothing.
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
    fn tell(&mut self, router: &Router, ports: &Ports, now: Instant) -> bool {
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
                let hop = |(name, gateway): (String, _)| FedHop { link: self.number(&name, ports), gateway };
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

    /// Sends what it takes.
    fn flush(&mut self) -> Result<(), Option<String>> {
        let Some(socket) = self.socket.as_ref().filter(|_| !self.out.is_empty()) else { return Ok(()) };
        match send(socket, &self.out, SendFlags::NOSIGNAL) {
            Ok(len) => drop(self.out.drain(..len)),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(e) => return Err(Some(e.to_string())),
        }
        Ok(())
    }

    /// What there is to show.
    pub fn view(&self) -> AgentView {
        let now = Instant::now();
        let mark = self.mark.as_ref();
        let differs = mark.is_some_and(|mark| mark.at == self.state.at && mark.digest != self.state.digest);
        let state = match () {
            () if self.socket.is_none() => "unreachable",
            () if self.hello.is_none() || now.duration_since(self.heard) > SILENT => "silent",
            () if self.behind.is_some() => "behind",
            () if differs => "differs",
            () => "consistent",
        };
        AgentView {
            member: self.member.clone(),
            socket: self.path.clone(),
            state: state.to_owned(),
            routes: self.state.routes.into(),
            failed: self.state.failed.into(),
            digest: format!("{:016x}", self.state.digest),
            behind_ms: self
                .behind
                .map(|then| u64::try_from(now.duration_since(then).as_millis()).unwrap_or(u64::MAX)),
            tables: self.tables,
            malformed: self.malformed,
            trouble: self.trouble.clone(),
        }
    }
}
