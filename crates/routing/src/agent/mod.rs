//! The agent in a back-end, such as a router in a VM: its kernel has the routes of a router's control plane,
//! which another machine's daemon runs.
//!
//! Theory of operation. The daemon says the routes by a stream (`wire`), and names the interfaces of its
//! router with their station addresses; the interfaces here with these addresses are the same ones. Each
//! route that is told is set in the main table with a protocol and a metric of its own, so no other route is
//! touched: one of the operator's with a lesser metric, or the network of an address, goes before it. What
//! leads by no port of the router is a blackhole, as the router itself drops it.
//!
//! The agent answers with a number for the table that is in force. A route that the kernel refuses is not in
//! that number. The kernel is looked at each [`COMPARE`] and whenever a link or an address changes: what
//! somebody else has deleted or altered, or the kernel has dropped with a link, is set again. When the agent
//! ends the routes stay; the next one takes them over.

pub mod feed;
pub mod wire;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use sidecore_engine::host::netlink::{self, Malformed};
use sidecore_engine::packet::Mac;
use sidecore_engine::router::{merged, part, Change, FedHop, Led, Net, Way};

use self::wire::{AgentState, Said, WireLink};
use crate::fpm::Stream;
use crate::kernel::Kernel;
use crate::say::said;
use crate::tell::{route, Maker};

/// How often the agent says how it is, or asks for the table.
pub const SAY: Duration = Duration::from_secs(1);
/// How often the kernel's table is looked at, at most.
const COMPARE: Duration = Duration::from_secs(5);
/// A look takes at most a two-hundredth of the time: changes wait for its end.
const SHARE: u32 = 200;
/// Who makes these routes: a number that rt_protos of iproute2 leaves free, and the metric of FRR's.
const MAKER: Maker = Maker { protocol: 83, metric: 20 };
/// Routes that wait for the kernel together at most.
const BATCH: usize = 4096;

/// A route that was told.
struct Told {
    way: Way,
    /// It was told since the whole table began.
    fresh: bool,
    /// What it adds to the number of the table: 0 while it is not in force.
    part: u64,
    /// The look that found it in the kernel.
    seen: u32,
}

/// An agent.
pub struct Agent {
    kernel: Kernel,
    /// The daemon has answered: what comes are whole frames.
    started: bool,
    /// What came before that.
    before: Vec<u8>,
    stream: Stream,
    links: BTreeMap<u32, WireLink>,
    /// Interfaces here, by their station addresses, each with its own addresses.
    here: BTreeMap<Mac, Vec<(u32, Vec<Net>)>>,
    routes: BTreeMap<Net, Told>,
    /// Prefixes that the kernel is to be told of.
    pending: BTreeSet<Net>,
    /// The whole table was told once: what it lacks is to go.
    whole: bool,
    looks: u32,
    state: AgentState,
    say: Instant,
    compare: Instant,
}

impl Agent {
    /// One that works on `kernel`, and calls itself `number`.
    ///
    /// # Errors
    /// The kernel does not tell its interfaces.
    pub fn new(kernel: Kernel, number: u64) -> io::Result<Agent> {
        let now = Instant::now();
        let mut agent = Agent {
            kernel,
            started: false,
            before: Vec::new(),
            stream: Stream::default(),
            links: BTreeMap::new(),
            here: BTreeMap::new(),
            routes: BTreeMap::new(),
            pending: BTreeSet::new(),
            whole: false,
            looks: 0,
            state: AgentState { number, ..AgentState::default() },
            say: now,
            compare: now + COMPARE,
        };
        agent.look()?;
        Ok(agent)
    }

    /// The connection is a new one, or what came by it was not sound: everything is asked for again. Routes
    /// stay.
    pub fn again(&mut self) {
        (self.started, self.whole, self.say) = (false, false, Instant::now());
        (self.stream, self.before) = (Stream::default(), Vec::new());
        self.state = AgentState { number: self.state.number.wrapping_add(1), at: 0, ..self.state };
    }

    /// When there is something to do, if nothing is heard before.
    #[must_use]
    pub fn due(&self) -> Instant {
        self.say.min(self.compare)
    }

    /// The kernel tells here that something has changed.
    pub fn kernel(&mut self) -> &mut Kernel {
        &mut self.kernel
    }

    /// Takes what the daemon has said; `out` gets the answers.
    ///
    /// # Errors
    /// It is not sound, or the kernel cannot be asked.
    pub fn hear(&mut self, more: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        let mut more = more;
        if !self.started {
            let start = Said::Start(self.state.number).frame();
            let known = self.before.len().saturating_sub(start.len() - 1);
            self.before.drain(..known);
            self.before.extend(more);
            let Some(at) = self.before.windows(start.len()).position(|some| some == start) else {
                return Ok(());
            };
            // What stands behind it came with the last bytes: it was not there before.
            let left = self.before.len() - at - start.len();
            more = sidecore_engine::util::slice::behind(more, more.len() - left);
            self.started = true;
            self.before.clear();
        }
        let mut said = Vec::new();
        let bad = |_: Malformed| io::Error::from(io::ErrorKind::InvalidData);
        let mut sound = Ok(());
        let whole = self.stream.take(more, |message| match message.and_then(Said::read) {
            Ok(it) => said.extend(it),
            Err(e) => sound = Err(e),
        });
        for it in said {
            self.take(it, out)?;
        }
        self.set()?;
        whole.and(sound).map_err(bad)
    }

    fn take(&mut self, said: Said, out: &mut Vec<u8>) -> io::Result<()> {
        match said {
            Said::Link(link) => {
                let old = self.links.insert(link.number, link.clone());
                if old.is_some_and(|old| old != link) {
                    self.pending.extend(self.routes.keys());
                }
            }
            Said::Begin => self.routes.values_mut().for_each(|it| it.fresh = false),
            Said::End => {
                let old = self.routes.iter().filter(|(_, it)| !it.fresh).map(|(net, _)| *net);
                let old: Vec<Net> = old.collect();
                old.into_iter().for_each(|net| self.forget(net));
                self.whole = true;
                // What an agent before has left.
                self.set()?;
                self.compare()?;
            }
            Said::Route(Change::Gone(net)) => self.forget(net),
            Said::Route(Change::Route(net, way)) => {
                let same = self.routes.get_mut(&net).filter(|it| it.way == way && it.part != 0);
                if let Some(it) = same {
                    it.fresh = true;
                    return Ok(());
                }
                let part = self.routes.remove(&net).map_or(0, |old| old.part);
                self.routes.insert(net, Told { way, fresh: true, part, seen: 0 });
                self.pending.insert(net);
                if self.pending.len() >= BATCH {
                    self.set()?;
                }
            }
            Said::Mark(at) => {
                self.set()?;
                self.state.at = at;
                self.say(out);
            }
            Said::Hello(_) | Said::Start(_) | Said::State(_) | Said::Route(_) => {}
        }
        Ok(())
    }

    fn forget(&mut self, net: Net) {
        if let Some(old) = self.routes.remove(&net) {
            self.count(old.part, 0);
            self.pending.insert(net);
        }
    }

    /// What a route adds to the number of the table was `old` and is `new`.
    fn count(&mut self, old: u64, new: u64) {
        self.state.digest = self.state.digest.wrapping_sub(old).wrapping_add(new);
        self.state.routes = self.state.routes + u32::from(new != 0) - u32::from(old != 0);
    }

    fn say(&mut self, out: &mut Vec<u8>) {
        self.state.failed = u32::try_from(self.routes.len()).unwrap_or(u32::MAX) - self.state.routes;
        out.extend(Said::State(self.state).frame());
        self.say = Instant::now() + SAY;
    }

    /// Does what is due at time `now`; `changed`: links or addresses are not what they were.
    ///
    /// # Errors
    /// The kernel cannot be asked.
    pub fn tick(&mut self, now: Instant, changed: bool, out: &mut Vec<u8>) -> io::Result<()> {
        if changed {
            self.look()?;
        }
        if changed || now >= self.compare {
            match self.whole {
                true => self.compare()?,
                false => self.compare = now + COMPARE,
            }
        }
        if changed {
            self.say = now;
        }
        if now >= self.say {
            match self.started {
                true => self.say(out),
                false => {
                    out.extend(Said::Hello(self.state.number).frame());
                    self.say = now + SAY;
                }
            }
        }
        Ok(())
    }

    /// Looks which interfaces there are.
    fn look(&mut self) -> io::Result<()> {
        let mut nets: BTreeMap<u32, Vec<Net>> = BTreeMap::new();
        for (index, net) in self.kernel.addresses()? {
            nets.entry(index).or_default().push(net);
        }
        self.here.clear();
        for link in self.kernel.links()? {
            let Some(mac) = link.mac else { continue };
            let own = nets.remove(&link.index).unwrap_or_default();
            self.here.entry(mac).or_default().push((link.index, own));
        }
        Ok(())
    }

    /// The interface here with this station address by which `gateway` is reached. Others may have the
    /// address, too: a VLAN's has that of its parent, and a bridge or bond that of one of its ports. So one
    /// in whose network the gateway is goes first, then one with an address that is not link-local, then one
    /// with any, then the oldest.
    fn interface(&self, mac: Mac, gateway: Option<IpAddr>) -> Option<u32> {
        let local = |net: &Net| matches!(net.address, IpAddr::V6(it) if it.is_unicast_link_local());
        let rank = |(index, nets): &&(u32, Vec<Net>)| {
            let leads = gateway.is_some_and(|gateway| nets.iter().any(|net| net.contains(gateway)));
            (leads, !nets.iter().all(local), !nets.is_empty(), Reverse(*index))
        };
        self.here.get(&mac)?.iter().max_by_key(rank).map(|(index, _)| *index)
    }

    /// The way that leads here as `way` does there. `None`: an interface that it needs is missing.
    fn here(&self, way: &Way) -> Option<Way> {
        let Way::Hops(hops) = way else { return Some(way.clone()) };
        let ports =
            hops.iter().filter_map(|(hop, weight)| Some((hop, weight, self.links.get(&hop.link)?.mac)));
        let mut hops = Vec::new();
        for (hop, weight, mac) in ports.filter(|(.., mac)| *mac != Mac([0; 6])) {
            hops.push((FedHop { link: self.interface(mac, hop.gateway)?, gateway: hop.gateway }, *weight));
        }
        Some(if hops.is_empty() { Way::Blackhole } else { Way::Hops(merged(hops)) })
    }

    /// Where it leads, by names.
    fn led(&self, way: &Way) -> Led {
        let hops = match way {
            Way::Blackhole => return Led::Blackhole,
            Way::Unreachable => return Led::Unreachable,
            Way::Prohibit => return Led::Prohibit,
            Way::Object(_) => &[],
            Way::Hops(hops) => &hops[..],
        };
        let name = |link: u32| self.links.get(&link).map(|link| link.name.clone()).unwrap_or_default();
        Led::Hops(merged(hops.iter().map(|(hop, weight)| ((name(hop.link), hop.gateway), *weight))))
    }

    /// Has the kernel have what is pending.
    fn set(&mut self) -> io::Result<()> {
        const ANSWER: u16 = netlink::REQUEST | netlink::ACK;
        let gone = |net: Net| route(net, None, ANSWER, 0, MAKER);
        let nets: Vec<Net> = std::mem::take(&mut self.pending).into_iter().collect();
        let change = |net: &Net| match self.routes.get(net) {
            // A route that the kernel cannot have is not left as it was before, either.
            Some(told) => self.here(&told.way).map_or_else(
                || gone(*net),
                |way| route(*net, Some(&way), ANSWER | netlink::CREATE | netlink::REPLACE, 0, MAKER),
            ),
            None => gone(*net),
        };
        let changes: Vec<Vec<u8>> = nets.iter().map(change).collect();
        let answers = self.kernel.change(&changes)?;
        for ((net, change), answer) in nets.iter().zip(&changes).zip(answers) {
            let Some(told) = self.routes.get(net) else { continue };
            // Some kernels replace no route by one of another kind.
            let is_set = match answer {
                Ok(()) => true,
                Err(_) => {
                    self.kernel.change(&[gone(*net), change.clone()])?.pop().is_some_and(|it| it.is_ok())
                }
            };
            let here = is_set && self.here(&told.way).is_some();
            let part = if here { part(*net, &self.led(&told.way)) } else { 0 };
            if let Some(told) = self.routes.get_mut(net) {
                let old = std::mem::replace(&mut told.part, part);
                told.seen = self.looks;
                self.count(old, part);
            }
        }
        Ok(())
    }

    /// Looks what the kernel has, and has it have what it is to have.
    fn compare(&mut self) -> io::Result<()> {
        let begun = Instant::now();
        self.looks = self.looks.wrapping_add(1);
        let mut all = Vec::new();
        let whole = self.kernel.routes(|message| match message.map(said) {
            Some(Ok(Some((Change::Route(net, way), protocol)))) if protocol == MAKER.protocol => {
                all.push((net, way))
            }
            _ => {}
        })?;
        self.compare = Instant::now() + COMPARE.max(begun.elapsed() * SHARE);
        if !whole {
            return Ok(());
        }
        for (net, way) in all {
            let wanted = self.routes.get(&net).and_then(|told| self.here(&told.way));
            match self.routes.get_mut(&net).filter(|told| wanted == Some(way) && told.part != 0) {
                Some(told) => told.seen = self.looks,
                None => drop(self.pending.insert(net)),
            }
        }
        let lost = self.routes.iter().filter(|(_, told)| told.seen != self.looks).map(|(net, _)| *net);
        self.pending.extend(lost);
        self.set()
    }
}
