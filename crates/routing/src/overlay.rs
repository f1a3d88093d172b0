//! The thread of one switch that spans hosts: what a routing daemon that speaks EVPN says of other hosts, and
//! is told of this one.
//!
//! Theory of operation. The routing daemon works on the switch's shadow, a bridge in its namespace
//! (`host/shadow.rs` of the engine). What it enters at the VXLAN device there goes into the switch's table:
//! routes of type 2 are stations, those of type 3 the endpoints that get floods. Stations that our switch
//! learns, moves or forgets are entered at the shadow's other port, and the routing daemon announces them.
//! Which host has a station that both claim is the routing daemon's to decide (RFC 7432 §15): we follow. The
//! bridge's own entry says at which port it is; the VXLAN device's says behind which endpoint, and zebra
//! leaves that where it is when the station comes here. A station that goes back there changes nothing but
//! the bridge's entry.
//!
//! **Stale entries.** An entry that goes is in force for a moment more ([`HOLD`]): it may come again at once.
//! If nobody listens for BGP in the namespace meanwhile, where somebody did, bgpd has ended, and with it went
//! all that it had said. What went stays for [`GRACE`], unless it comes again before. A withdrawal by a bgpd
//! that lives is obeyed. zebra leaves its entries in the kernel when it is killed.
//!
//! **Bounds.** A guest may use a new address in each frame. Of one port so many stations and addresses are
//! announced at once and so many a second ([`Allowances`]); the others wait, and get frames as unknown ones
//! do. After each look at the switch's table the thread rests for a multiple of what that took, so that a
//! large table costs no more of a processor.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use sidecore_engine::host::netlink::{self, messages, Builder};
use sidecore_engine::host::netns::{self, Socket};
use sidecore_engine::host::shadow::{Entries, Shadow};
use sidecore_engine::packet::Mac;
use sidecore_engine::port::PortId;
use sidecore_engine::sandbox::filters;
use sidecore_engine::state::{LocalMac, Overlay};
use sidecore_engine::util::slice::upto;

use crate::kernel::{Kernel, Neighbour, Station};

/// How soon a change of the switch's table is seen.
const LOOK: Duration = Duration::from_millis(20);
/// How soon it is tried again to get into the namespace.
const AGAIN: Duration = Duration::from_secs(1);
/// For how long an entry holds that was taken out by a routing daemon that lives.
const HOLD: Duration = Duration::from_millis(300);
/// For how long an entry holds that a routing daemon said which has gone.
const GRACE: Duration = Duration::from_secs(120);
/// For how long stations stay announced that an earlier daemon has announced, until they speak: VMMs connect
/// again within seconds, and a silent one that is here is found by floods.
const SPEAK: Duration = Duration::from_secs(20);
/// Stations and addresses behind one port that are announced at once, and how many more a second.
const BURST: f64 = 4096.0;
const RATE: f64 = 500.0;
/// How many times as long as a look at the switch's table takes it rests after that, and for how long at
/// most.
const REST: u32 = 9;
const LONGEST_REST: Duration = Duration::from_millis(200);
/// The port of BGP.
const BGP: u16 = 179;
/// Those who have no address: all that are not known.
const UNKNOWN: [u8; 6] = [0; 6];

/// A switch that is followed, until this is dropped. What was said of it stays in force.
pub(crate) struct Span {
    shadow: Shadow,
    overlay: Overlay,
    /// What tells its namespace from another that was made in its place.
    space: Option<(u64, u64)>,
    end: Arc<OwnedFd>,
    thread: Option<JoinHandle<Table>>,
}

impl Span {
    /// Begins to follow what is said of `overlay`, the tunnel of `switch`. `before`: what was said in this
    /// shadow to one that has ended.
    ///
    /// # Errors
    /// There is no thread for it.
    pub fn start(switch: &str, shadow: Shadow, overlay: Overlay, before: Option<Table>) -> io::Result<Span> {
        let end = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let space = netns::identity(&shadow.netns);
        let mut worker = Worker {
            switch: switch.to_owned(),
            shadow: shadow.clone(),
            overlay: overlay.clone(),
            end: Arc::clone(&end),
            links: [0; 3],
            addresses: BTreeMap::new(),
            // What the shadow has of our stations is this daemon's own then.
            inherited: before.as_ref().map(|_| Inherited::default()),
            table: before.unwrap_or_default(),
            announced: BTreeMap::new(),
            allowances: Allowances::default(),
            rest: Instant::now(),
            seen: None,
            trouble: None,
            waits: false,
        };
        let thread = std::thread::Builder::new().name(format!("control {switch}")).spawn(move || {
            filters::enter(filters::Kinds::CONVERSATION);
            worker.run();
            worker.table
        })?;
        Ok(Span { shadow, overlay, space, end, thread: Some(thread) })
    }

    /// Whether it is the one with this shadow and this tunnel.
    pub fn is(&self, shadow: &Shadow, overlay: &Overlay) -> bool {
        self.has(shadow) && self.overlay.id() == overlay.id() && self.is_in_its_namespace()
    }

    /// Whether its namespace is the one in which it began.
    pub fn is_in_its_namespace(&self) -> bool {
        netns::identity(&self.shadow.netns) == self.space
    }

    /// Ends it; what was said to it.
    pub fn end(mut self) -> Table {
        self.join().unwrap_or_default()
    }

    fn join(&mut self) -> Option<Table> {
        // It is empty, so there is room.
        let _ = rustix::io::write(&*self.end, &1u64.to_ne_bytes());
        // A panic there has been reported by the thread itself.
        self.thread.take()?.join().ok()
    }

    /// Whether it has this shadow.
    pub fn has(&self, shadow: &Shadow) -> bool {
        self.shadow == *shadow
    }

    /// The switch has no control plane any more, or another one.
    pub fn remove(self) {
        let (shadow, overlay) = (self.shadow.clone(), self.overlay.clone());
        drop(self);
        overlay.forget();
        // With its namespace it has gone already.
        if let Err(e) = shadow.remove().or_else(|e| if shadow.netns.exists() { Err(e) } else { Ok(()) }) {
            tracing::warn!("the shadow of VNI {} stays in its namespace: {e}", shadow.vni);
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        self.join();
    }
}

/// What is said: a station, and the endpoint behind which it is; of those that are not known each endpoint.
type Said = ([u8; 6], IpAddr);

/// What a routing daemon has said, and not taken back for long.
#[derive(Default)]
pub(crate) struct Table {
    /// Whether each moves nowhere.
    said: BTreeMap<Said, bool>,
    /// What was taken back, when that counts, and whether it waits for a routing daemon that has gone.
    stale: BTreeMap<Said, (Instant, bool)>,
    /// Somebody has listened for BGP.
    has_listened: bool,
}

/// What becomes of the switch's table.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    put: Vec<([u8; 6], IpAddr, bool)>,
    take: Vec<[u8; 6]>,
    floods: bool,
}

impl Table {
    /// The routing daemon has entered this, or taken it out.
    fn hear(&mut self, station: &Station, now: Instant, changes: &mut Changes) {
        let Some(behind) = station.behind else { return };
        let said = (station.mac, behind);
        if !station.there {
            if self.said.contains_key(&said) {
                self.stale.entry(said).or_insert((now + HOLD, false));
            }
            return;
        }
        self.stale.remove(&said);
        if self.said.insert(said, station.sticky) == Some(station.sticky) {
            return;
        }
        match station.mac {
            UNKNOWN => changes.floods = true,
            mac => {
                // It is behind one endpoint: where it was before it is not any more.
                let others: Vec<Said> = self.of(mac).filter(|other| *other != said).collect();
                others.iter().for_each(|other| self.forget(other));
                changes.put.push((mac, behind, station.sticky));
            }
        }
    }

    fn of(&self, mac: [u8; 6]) -> impl Iterator<Item = Said> + '_ {
        let least = IpAddr::from([0; 4]);
        self.said
            .range((mac, least)..)
            .take_while(move |((other, _), _)| *other == mac)
            .map(|(said, _)| *said)
    }

    fn forget(&mut self, said: &Said) {
        self.said.remove(said);
        self.stale.remove(said);
    }

    /// A station is at the VXLAN device again.
    fn again(&self, mac: [u8; 6], changes: &mut Changes) {
        let all = self.of(mac).filter_map(|said| Some((mac, said.1, *self.said.get(&said)?)));
        changes.put.extend(all);
    }

    /// What is in the kernel's table now is all that there is.
    fn compare(&mut self, stations: &[Station], now: Instant, changes: &mut Changes) {
        stations.iter().for_each(|station| self.hear(station, now, changes));
        let there: BTreeSet<Said> = stations.iter().filter_map(|it| Some((it.mac, it.behind?))).collect();
        let gone = self.said.keys().filter(|said| !there.contains(said));
        gone.for_each(|said| _ = self.stale.entry(*said).or_insert((now + HOLD, false)));
    }

    /// How many wait for a routing daemon that has gone.
    fn waiting(&self) -> usize {
        self.stale.values().filter(|(_, waits)| *waits).count()
    }

    /// Whether it matters who listens for BGP.
    fn is_asking(&self) -> bool {
        !self.has_listened || self.stale.values().any(|(_, waits)| !waits)
    }

    /// What was taken back long enough ago goes. If nobody listens for BGP any more it waits: a successor may
    /// be there before it is due.
    fn sweep(&mut self, now: Instant, listens: Option<bool>, changes: &mut Changes) {
        self.has_listened |= listens == Some(true);
        if self.has_listened && listens == Some(false) {
            let new = self.stale.values_mut().filter(|(_, waits)| !waits);
            new.for_each(|it| *it = (now + GRACE, true));
        }
        let due = self.stale.iter().filter(|(_, (at, _))| *at <= now);
        let due: Vec<Said> = due.map(|(said, _)| *said).collect();
        for said in due {
            self.forget(&said);
            match said.0 {
                UNKNOWN => changes.floods = true,
                mac => changes.take.push(mac),
            }
        }
    }

    fn floods(&self) -> Vec<IpAddr> {
        self.of(UNKNOWN).map(|(_, at)| at).collect()
    }
}

/// Stations that an earlier daemon has announced, and until when they may speak again.
#[derive(Default)]
struct Inherited(BTreeMap<[u8; 6], Instant>);

impl Inherited {
    fn new(macs: impl Iterator<Item = [u8; 6]>, now: Instant) -> Inherited {
        Inherited(macs.map(|mac| (mac, now + SPEAK)).collect())
    }

    /// Whether `mac` stays announced although it has not spoken.
    fn stays(&self, mac: &[u8; 6], now: Instant) -> bool {
        self.0.get(mac).is_some_and(|until| now < *until)
    }

    /// Whether it is time to look for those that have not spoken.
    fn is_due(&mut self, now: Instant) -> bool {
        let before = self.0.len();
        self.0.retain(|_, until| now < *until);
        self.0.len() < before
    }
}

/// What may still be announced, by port, and when that was reckoned.
#[derive(Default)]
struct Allowances(BTreeMap<PortId, (f64, Instant)>);

impl Allowances {
    /// Whether one more may be announced of what is behind `port`.
    fn spend(&mut self, port: PortId, now: Instant) -> bool {
        let (left, at) = self.0.entry(port).or_insert((BURST, now));
        let more = now.saturating_duration_since(*at).as_secs_f64() * RATE;
        (*left, *at) = ((*left + more).min(BURST), now);
        let may = *left >= 1.0;
        *left -= if may { 1.0 } else { 0.0 };
        may
    }
}

struct Worker {
    switch: String,
    shadow: Shadow,
    overlay: Overlay,
    end: Arc<OwnedFd>,
    /// The numbers of the shadow's bridge, of its VXLAN device, and of the port behind which our stations
    /// are.
    links: [u32; 3],
    /// Addresses of stations of ours that the shadow has, and whether each is as we entered it: zebra enters
    /// those of stations that move.
    addresses: BTreeMap<IpAddr, ([u8; 6], bool)>,
    table: Table,
    /// Stations of ours that the shadow has, and whether each is configured.
    announced: BTreeMap<[u8; 6], bool>,
    /// Those of them that an earlier daemon has entered; `None` until that is known.
    inherited: Option<Inherited>,
    allowances: Allowances,
    /// The next look at the switch's table is not before this.
    rest: Instant,
    /// The state of the switch's table in which they were looked at.
    seen: Option<u32>,
    trouble: Option<String>,
    /// Entries wait for a routing daemon, and that has been said.
    waits: bool,
}

impl Worker {
    fn run(&mut self) {
        while let Err(why) = self.serve() {
            let why = why.to_string();
            if self.trouble.as_ref() != Some(&why) {
                tracing::error!(event = "routing", switch = %self.switch, "its control plane: {why}");
                self.trouble = Some(why);
            }
            match self.wait(None, AGAIN) {
                Ok([false, _]) => {}
                _ => return,
            }
        }
    }

    /// Waits until this is to end, or the kernel has something to say.
    fn wait(&self, kernel: Option<&Kernel>, most: Duration) -> io::Result<[bool; 2]> {
        let all = std::iter::once(self.end.as_fd()).chain(kernel.map(Kernel::event));
        let mut fds: Vec<PollFd> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match poll(&mut fds, Timespec::try_from(most).ok().as_ref()) {
            Err(rustix::io::Errno::INTR) => return Ok([false; 2]),
            ready => ready?,
        };
        Ok(std::array::from_fn(|at| fds.get(at).is_some_and(|fd| !fd.revents().is_empty())))
    }

    /// Follows both sides until that is to end, or is of no use any more.
    fn serve(&mut self) -> io::Result<()> {
        self.shadow.make()?;
        let mut kernel = Kernel::new(&self.shadow.netns, &self.end)?;
        let look = netns::open(&self.shadow.netns, Socket::Look)?;
        self.links = self.numbers(&mut kernel)?;
        self.take_over(&mut kernel)?;
        self.trouble = None;
        tracing::info!(event = "routing", switch = %self.switch, "its control plane is in namespace {}", self.shadow.netns.display());
        loop {
            let [ended, said] = self.wait(Some(&kernel), LOOK)?;
            if ended {
                return Ok(());
            }
            let (now, mut changes) = (Instant::now(), Changes::default());
            if said {
                let heard = kernel.hear()?;
                heard.stations.iter().for_each(|station| self.hear(station, now, &mut changes));
                heard.neighbours.iter().for_each(|neighbour| self.resolve(neighbour));
                if heard.links && self.numbers(&mut kernel)? != self.links {
                    return Err(io::Error::new(io::ErrorKind::NotFound, "somebody has removed its devices"));
                }
                // What was told before the loss is older than what the kernel has now.
                if heard.lost {
                    self.carry_out(&std::mem::take(&mut changes));
                    self.take_over(&mut kernel)?;
                }
            }
            if self.table.is_asking() {
                self.table.sweep(now, listens(&look).ok(), &mut changes);
            } else {
                self.table.sweep(now, None, &mut changes);
            }
            self.carry_out(&changes);
            self.say(self.table.waiting());
            self.announce()?;
        }
    }

    /// The kernel's numbers of the shadow's bridge, of its VXLAN device, and of its port for our stations.
    fn numbers(&self, kernel: &mut Kernel) -> io::Result<[u32; 3]> {
        let links = kernel.links()?;
        let [bridge, vxlan, port, _] = self.shadow.names();
        Ok([bridge, vxlan, port]
            .map(|name| links.iter().find(|link| link.name == name).map_or(0, |link| link.index)))
    }

    /// An entry of the shadow has changed.
    fn hear(&mut self, station: &Station, now: Instant, changes: &mut Changes) {
        let ([_, vxlan, port], mac) = (self.links, station.mac);
        if station.link == vxlan && station.behind.is_some() {
            self.table.hear(station, now, changes);
        } else if station.link == vxlan && station.there && self.announced.get(&mac) != Some(&true) {
            // It is not here any more, and may come back. Those of its addresses that zebra has not taken
            // over go.
            self.announced.remove(&mac);
            self.seen = None;
            self.table.again(mac, changes);
        } else if station.link == port && station.there && !station.own && !self.announced.contains_key(&mac)
        {
            // An older message said that it had gone when this was written: where it is now shows when it
            // speaks.
            self.announced.insert(mac, station.sticky);
            self.overlay.take(mac);
            self.seen = None;
        }
    }

    /// An address of the shadow's bridge has a station, or none any more.
    fn resolve(&mut self, neighbour: &Neighbour) {
        let (ip, mac) = (neighbour.address, neighbour.mac.map(|Mac(mac)| mac));
        if neighbour.link == self.links[0] {
            match self.addresses.get_mut(&ip) {
                Some((whose, ours)) if Some(*whose) == mac => *ours = neighbour.permanent,
                _ => _ = self.addresses.remove(&ip),
            }
            self.overlay.resolve(ip, mac);
        }
    }

    /// Takes all that the kernel's table has.
    fn take_over(&mut self, kernel: &mut Kernel) -> io::Result<()> {
        let ([bridge, vxlan, port], mut changes) = (self.links, Changes::default());
        let all = kernel.stations()?;
        let (far, near): (Vec<Station>, Vec<Station>) = all
            .into_iter()
            .filter(|it| it.link == vxlan || it.link == port && !it.own)
            .partition(|it| it.link == vxlan);
        self.announced = near.into_iter().map(|station| (station.mac, station.sticky)).collect();
        let neighbours = kernel.neighbours()?;
        neighbours.iter().for_each(|neighbour| self.resolve(neighbour));
        let known = neighbours.iter().filter(|it| it.link == bridge && it.permanent);
        let known = known.filter_map(|it| it.mac.map(|Mac(mac)| (it.address, (mac, true))));
        self.addresses = known.filter(|(_, (mac, _))| self.announced.contains_key(mac)).collect();
        let at_bridge = far.iter().filter(|station| station.behind.is_none());
        at_bridge.for_each(|station| self.table.again(station.mac, &mut changes));
        // What an earlier one was told is not in force at another tunnel.
        changes.floods = true;
        self.table.compare(&far, Instant::now(), &mut changes);
        let inherited = || Inherited::new(self.announced.keys().copied(), Instant::now());
        self.inherited.get_or_insert_with(inherited);
        self.seen = None;
        self.carry_out(&changes);
        Ok(())
    }

    /// Tells when entries begin to wait for a routing daemon, and when none does any more.
    fn say(&mut self, waiting: usize) {
        match (std::mem::replace(&mut self.waits, waiting > 0), waiting) {
            (false, 1..) => tracing::warn!(
                event = "routing",
                switch = %self.switch,
                "its BGP daemon has gone; {waiting} entries stay for {} s", GRACE.as_secs()
            ),
            (true, 0) => tracing::info!(
                event = "routing",
                switch = %self.switch,
                "entries of the BGP daemon that had gone were said again, or have been removed"
            ),
            _ => {}
        }
    }

    fn carry_out(&mut self, changes: &Changes) {
        let mut refused = 0;
        // The bridge has those that were announced here, whatever was said of them before.
        let here = |mac: &[u8; 6]| self.announced.get(mac) == Some(&false);
        for (mac, at, sticky) in changes.put.iter().filter(|(mac, ..)| !here(mac)) {
            refused += usize::from(!self.overlay.put(*mac, *at, *sticky));
        }
        changes
            .take
            .iter()
            .filter(|mac| self.table.of(**mac).next().is_none())
            .for_each(|mac| self.overlay.take(*mac));
        if changes.floods && !self.overlay.flood(&self.table.floods()) {
            refused += 1;
        }
        if refused > 0 {
            tracing::warn!(
                switch = %self.switch,
                "its control plane says of {refused} addresses what cannot be: they are configured here, or there is no room"
            );
        }
    }

    /// Enters what the switch has learned into the shadow, and takes out what it has forgotten.
    fn announce(&mut self) -> io::Result<()> {
        let (start, state) = (Instant::now(), self.overlay.changes());
        if self.inherited.as_mut().is_some_and(|it| it.is_due(start)) {
            self.seen = None;
        }
        if self.seen == Some(state) || start < self.rest {
            return Ok(());
        }
        let here: BTreeMap<[u8; 6], LocalMac> =
            self.overlay.local_macs().into_iter().map(|it| (it.mac, it)).collect();
        // What waits for its port's allowance is looked at again.
        let mut seen = Some(state);
        let mut there = BTreeMap::new();
        for fixed in [false, true] {
            let mut new = Vec::new();
            for (mac, its) in here.iter().filter(|(_, its)| its.fixed == fixed) {
                let is_new = self.announced.get(mac) != Some(&fixed);
                if is_new && !fixed && !self.allowances.spend(its.port, start) {
                    seen = None;
                    continue;
                }
                there.insert(*mac, fixed);
                new.extend(is_new.then_some(*mac));
            }
            self.write(true, fixed, new)?;
        }
        let mut gone = Vec::new();
        for (mac, fixed) in self.announced.iter().filter(|(mac, _)| !here.contains_key(*mac)) {
            match self.inherited.as_ref().is_some_and(|it| it.stays(mac, start)) {
                true => drop(there.insert(*mac, *fixed)),
                false => gone.push(*mac),
            }
        }
        self.write(false, false, gone)?;
        let mut addresses = self.addresses.clone();
        addresses.retain(|_, (whose, _)| there.contains_key(whose));
        let gone: Vec<_> = self
            .addresses
            .iter()
            .filter(|(ip, (_, ours))| *ours && !addresses.contains_key(ip))
            .map(|(ip, (whose, _))| (*ip, *whose))
            .collect();
        let mut new = self.overlay.addresses(|mac| here.contains_key(&mac));
        new.retain(|(ip, mac)| {
            let is_new = addresses.get(ip).is_none_or(|(whose, _)| whose != mac);
            let may = is_new
                && there.contains_key(mac)
                && here.get(mac).is_some_and(|its| self.allowances.spend(its.port, start));
            if may {
                addresses.insert(*ip, (*mac, true));
            } else if is_new {
                seen = None;
            }
            may
        });
        for (is_there, all) in [(false, gone), (true, new)] {
            for some in all.chunks(Entries::MOST_WITH_IP) {
                // A station may say that it has any address, and as many as the kernel's table does not hold.
                if let Err(why) = Entries::with_ip(&self.shadow, is_there, some).write() {
                    tracing::warn!(switch = %self.switch, "addresses of stations cannot all be announced: {why}");
                }
            }
        }
        self.addresses = addresses;
        self.allowances.0.retain(|port, _| here.values().any(|its| its.port == *port));
        (self.announced, self.seen) = (there, seen);
        self.rest = Instant::now() + (start.elapsed() * REST).min(LONGEST_REST);
        Ok(())
    }

    fn write(&self, there: bool, fixed: bool, macs: Vec<[u8; 6]>) -> io::Result<()> {
        macs.chunks(Entries::MOST).try_for_each(|some| Entries::new(&self.shadow, there, fixed, some).write())
    }
}

/// Whether somebody in the namespace of `look` listens for BGP (sock_diag(7)).
fn listens(look: &OwnedFd) -> io::Result<bool> {
    const BY_FAMILY: u16 = 20;
    const LISTEN: u32 = 1 << 10;
    let mut found = false;
    for family in [libc::AF_INET, libc::AF_INET6] {
        let (family, tcp) = (u8::try_from(family).unwrap_or(0), u8::try_from(libc::IPPROTO_TCP).unwrap_or(0));
        let fixed = [&[family, tcp, 0, 0][..], &LISTEN.to_ne_bytes(), &[0; 48]].concat();
        let request = Builder::new(BY_FAMILY, netlink::REQUEST | netlink::DUMP, 1, &fixed).end();
        rustix::net::send(look, &request, rustix::net::SendFlags::empty())?;
        let mut block = vec![0; 32 << 10];
        'all: loop {
            let patience = Timespec { tv_sec: 2, tv_nsec: 0 };
            if poll(&mut [PollFd::new(look, PollFlags::IN)], Some(&patience))? == 0 {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let (len, _) = rustix::net::recv(look, &mut block[..], rustix::net::RecvFlags::empty())?;
            for message in messages(upto(&block, len)).flatten() {
                if message.kind != BY_FAMILY {
                    // All was told, or it is refused.
                    break 'all;
                }
                found |= netlink::bytes(message.body, 4).is_ok_and(|port| u16::from_be_bytes(port) == BGP);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const M: [u8; 6] = [2, 0, 0, 0, 0, 1];

    fn at(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn entry(mac: [u8; 6], behind: u8, there: bool) -> Station {
        Station { link: 1, mac, behind: Some(at(behind)), sticky: false, own: false, there }
    }

    /// What becomes of the switch's table when these are heard at this time.
    fn hear(table: &mut Table, entries: &[Station], now: Instant) -> Changes {
        let mut changes = Changes::default();
        entries.iter().for_each(|station| table.hear(station, now, &mut changes));
        changes
    }

    fn sweep(table: &mut Table, now: Instant, listens: bool) -> Changes {
        let mut changes = Changes::default();
        table.sweep(now, Some(listens), &mut changes);
        changes
    }

    #[test]
    fn a_guest_with_ever_new_addresses_has_few_announced() {
        let (mut allowances, start, [one, other]) =
            (Allowances::default(), Instant::now(), [PortId(1), PortId(2)]);
        // As many addresses a second as a guest was seen to use, for ten seconds.
        let spent = (0..39_000u32).filter(|n| allowances.spend(one, start + Duration::from_micros(256) * *n));
        let spent = spent.count();
        assert!((9000..9200).contains(&spent), "{spent}");
        assert!((0..4096).all(|_| allowances.spend(other, start)), "others have their own");
        assert!(!allowances.spend(other, start));
        assert!(allowances.spend(other, start + Duration::from_millis(3)));
    }

    #[test]
    fn a_station_that_does_not_come_back_is_announced_for_a_short_time() {
        let start = Instant::now();
        let mut inherited = Inherited::new([M].into_iter(), start);
        let almost = start + Duration::from_secs(19);
        assert!(
            inherited.stays(&M, almost) && !inherited.stays(&[4; 6], almost) && !inherited.is_due(almost)
        );
        let late = start + Duration::from_secs(21);
        assert!(!inherited.stays(&M, late) && inherited.is_due(late) && !inherited.is_due(late));
    }

    #[test]
    fn a_station_moves_at_once_and_goes_a_moment_later() {
        let (mut table, start) = (Table { has_listened: true, ..Table::default() }, Instant::now());
        let first = hear(&mut table, &[entry(UNKNOWN, 2, true), entry(M, 2, true), entry(M, 2, true)], start);
        assert_eq!(first, Changes { put: vec![(M, at(2), false)], take: vec![], floods: true });
        // FRR enters where it is now, and takes out where it was; the other way round it is the same.
        let moved = hear(&mut table, &[entry(M, 3, true), entry(M, 2, false)], start);
        assert_eq!(moved.put, [(M, at(3), false)]);
        let back = hear(&mut table, &[entry(M, 3, false), entry(M, 2, true)], start);
        assert_eq!(back.put, [(M, at(2), false)]);
        assert_eq!(sweep(&mut table, start + HOLD, true), Changes::default());
        hear(&mut table, &[entry(M, 2, false), entry(UNKNOWN, 2, false)], start);
        assert_eq!(sweep(&mut table, start + HOLD / 2, true), Changes::default());
        let gone = sweep(&mut table, start + HOLD, true);
        assert_eq!((gone, table.floods()), (Changes { put: vec![], take: vec![M], floods: true }, vec![]));
    }

    #[test]
    fn what_goes_with_its_daemon_stays_for_a_while() {
        let (mut table, start) = (Table { has_listened: true, ..Table::default() }, Instant::now());
        hear(&mut table, &[entry(M, 2, true), entry([4; 6], 2, true)], start);
        hear(&mut table, &[entry(M, 2, false), entry([4; 6], 2, false)], start);
        assert_eq!((sweep(&mut table, start + HOLD, false), table.waiting()), (Changes::default(), 2));
        // One of them is said again by the next one: nothing has happened to it.
        assert_eq!(hear(&mut table, &[entry(M, 2, true)], start + GRACE / 2), Changes::default());
        assert_eq!(table.waiting(), 1);
        assert_eq!(sweep(&mut table, start + GRACE, true), Changes::default());
        assert_eq!(sweep(&mut table, start + HOLD + GRACE, false).take, [[4; 6]]);
        assert_eq!(table.waiting(), 0);
        assert_eq!(sweep(&mut table, start + HOLD + 2 * GRACE, false), Changes::default());
        // Where nobody has ever listened nothing can be told from that.
        table.has_listened = false;
        hear(&mut table, &[entry(M, 2, false)], start);
        assert_eq!(sweep(&mut table, start + HOLD, false).take, [M]);
    }

    /// bgpd is started again before what it had said is due to go.
    #[test]
    fn a_daemon_that_is_back_at_once_has_gone_nevertheless() {
        let (mut table, start) = (Table { has_listened: true, ..Table::default() }, Instant::now());
        hear(&mut table, &[entry(M, 2, true)], start);
        hear(&mut table, &[entry(M, 2, false)], start);
        assert!(table.is_asking());
        assert_eq!(sweep(&mut table, start + HOLD / 3, false), Changes::default());
        assert!(!table.is_asking());
        assert_eq!(sweep(&mut table, start + HOLD, true), Changes::default());
        assert_eq!(sweep(&mut table, start + HOLD / 3 + GRACE, true).take, [M]);
    }

    #[test]
    fn a_station_that_was_here_is_where_it_was_before() {
        let (mut table, mut changes) = (Table::default(), Changes::default());
        hear(&mut table, &[entry(M, 2, true)], Instant::now());
        table.again([6; 6], &mut changes);
        table.again(M, &mut changes);
        assert_eq!(changes, Changes { put: vec![(M, at(2), false)], take: vec![], floods: false });
    }

    #[test]
    fn what_was_missed_is_found_by_comparing() {
        let (mut table, start, mut changes) = (Table::default(), Instant::now(), Changes::default());
        hear(&mut table, &[entry(M, 2, true), entry([4; 6], 2, true)], start);
        table.compare(&[entry([4; 6], 3, true), entry([6; 6], 2, true)], start, &mut changes);
        assert_eq!(changes.put, [([4; 6], at(3), false), ([6; 6], at(2), false)]);
        assert_eq!(sweep(&mut table, start + HOLD, true).take, [M]);
        assert_eq!(table.said.len(), 2);
    }
}
