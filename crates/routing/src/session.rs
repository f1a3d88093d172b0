//! The thread of one control plane.
//!
//! What zebra says is gathered for a moment, and takes effect together (`pending`).
//!
//! **Stale routes.** Whenever the connection comes or goes all routes become stale. Those that are not said
//! again within `grace` seconds are swept, some at a time. Before zebra has connected for the first time the
//! kernel's table is taken: a daemon that was started anew forwards at once.
//!
//! **Comparison** with the kernel's table finds what zebra did not say (`compare`).

mod agents;
mod compare;
mod pending;
mod zebra;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use sidecore_engine::host::netns::{self, AddressIn, Socket, FPM};
use sidecore_engine::router::{never, Net, Router, MAX_ALL_HOPS};
use sidecore_engine::sandbox::filters;

use self::agents::AgentLink;
use self::compare::Compare;
use self::pending::{Pending, BATCH};
use crate::agent::feed::Ports;
use crate::fpm::Stream;
use crate::kernel::{Kernel, Neighbour};
use crate::say::said;
use crate::view::ControlView;

/// Bytes of one read.
const READ: usize = 256 << 10;
/// Most addresses of loopback and dummy interfaces that are the router's.
const MAX_LOOPBACKS: usize = 1024;
/// How soon it is tried again to get into the namespace.
const AGAIN: Duration = Duration::from_secs(1);
/// Numbers of routing daemons in the kernel's routes (linux/rtnetlink.h, RTPROT): zebra; BGP to EIGRP; those
/// of FRR.
const DAEMONS: [std::ops::RangeInclusive<u8>; 2] = [11..=11, 186..=199];

/// A control plane: what it is, and what both its thread and others have of it.
pub(crate) struct Plane {
    router: Arc<Router>,
    /// The network namespace, as it is configured: a name or a path.
    namespace: String,
    /// What tells the namespace from another that was made in its place.
    space: Option<(u64, u64)>,
    /// Seconds for which a route stays that the routing daemon does not say any more.
    grace: u32,
    /// The second of the router's clock.
    clock: Box<dyn Fn() -> u32 + Send + Sync>,
    /// To wake the thread: something has changed, or it is to end.
    wake: OwnedFd,
    stop: AtomicBool,
    /// Readable when it is to end, and ever after: for whoever waits for something else.
    end: Arc<OwnedFd>,
    shown: Mutex<(ControlView, Seconds)>,
    /// The agents that there are to be: of which member, at which socket.
    agents: Mutex<Vec<(String, PathBuf)>>,
}

impl Plane {
    /// That of `router` in `namespace`; nothing follows it yet.
    ///
    /// # Errors
    /// There are no descriptors for it.
    pub fn new(
        router: Arc<Router>,
        namespace: &str,
        grace: u32,
        clock: Box<dyn Fn() -> u32 + Send + Sync>,
    ) -> io::Result<Plane> {
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let (wake, end) = (event()?, Arc::new(event()?));
        let space = netns::identity(&netns::path(namespace));
        let (namespace, stop, shown) = (namespace.to_owned(), AtomicBool::new(false), Mutex::default());
        Ok(Plane { router, namespace, space, grace, clock, wake, stop, end, shown, agents: Mutex::default() })
    }
}

/// A control plane that is followed, until this is dropped. The router keeps the routes.
pub(crate) struct Session {
    plane: Arc<Plane>,
    thread: Option<JoinHandle<()>>,
}

/// Seconds of the router's clock.
#[derive(Clone, Copy, Default)]
struct Seconds {
    since: Option<u32>,
    last: Option<u32>,
    sweep: Option<u32>,
}

impl Session {
    /// Begins to follow `plane`, for these agents.
    ///
    /// # Errors
    /// There is no thread for it.
    pub fn start(mut plane: Plane, agents: Vec<(String, PathBuf)>) -> io::Result<Session> {
        plane.agents = Mutex::new(agents);
        let plane = Arc::new(plane);
        let mut worker = Worker::new(Arc::clone(&plane));
        let name = format!("control {}", plane.router.name);
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            filters::enter(filters::Kinds::CONVERSATION);
            worker.run();
        })?;
        Ok(Session { plane, thread: Some(thread) })
    }

    /// Whether it is the control plane of this router, in this namespace, with this grace.
    pub fn is(&self, router: &Arc<Router>, namespace: &str, grace: u32) -> bool {
        let Plane { router: own, namespace: its, grace: seconds, .. } = &*self.plane;
        Arc::ptr_eq(own, router) && its == namespace && *seconds == grace && self.is_in_its_namespace()
    }

    /// Whether its namespace is the one in which it began.
    pub fn is_in_its_namespace(&self) -> bool {
        netns::identity(&netns::path(&self.plane.namespace)) == self.plane.space
    }

    /// The router's ports are not what they were, or its agents are to be these.
    pub fn nudge(&self, agents: Vec<(String, PathBuf)>) {
        *self.plane.agents.lock().unwrap_or_else(PoisonError::into_inner) = agents;
        self.wake();
    }

    fn wake(&self) {
        // Fails only if it has been nudged beyond counting.
        let _ = rustix::io::write(&self.plane.wake, &1u64.to_ne_bytes());
    }

    /// What there is to show, at second `now`.
    pub fn view(&self, now: u32) -> ControlView {
        let (mut view, seconds) = self.plane.shown.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let fed = self.plane.router.fed();
        view.namespace.clone_from(&self.plane.namespace);
        view.since_s = seconds.since.map(|then| now.saturating_sub(then));
        view.last_message_s = seconds.last.map(|then| now.saturating_sub(then));
        (view.routes, view.stale, view.objects) = (fed.routes as u64, fed.stale as u64, fed.objects as u64);
        view.sweep_in_s = seconds.sweep.filter(|_| fed.stale > 0).map(|then| then.saturating_sub(now));
        (view.hops, view.short) = (fed.hops as u64, fed.short as u64);
        (view.digest, view.refused) = (format!("{:016x}", fed.digest), fed.refused);
        view.classes = self.plane.router.punted();
        view
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.plane.stop.store(true, Ordering::Release);
        // It is empty, so there is room.
        let _ = rustix::io::write(&*self.plane.end, &1u64.to_ne_bytes());
        self.wake();
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by the thread itself.
            let _ = thread.join();
        }
    }
}

/// What the thread has.
struct Worker {
    plane: Arc<Plane>,
    router: Arc<Router>,
    path: PathBuf,
    zebra: Option<OwnedFd>,
    pending: Pending,
    stream: Stream,
    room: Box<[u8]>,
    view: ControlView,
    seconds: Seconds,
    links: BTreeMap<u32, String>,
    /// Addresses that the configuration has given, by interface: those that it does not give any more are
    /// taken away.
    given: BTreeSet<(String, Net)>,
    compare: Compare,
    /// Stale routes are being swept: behind which to go on, and how many have gone.
    sweeping: Option<(Option<Net>, usize)>,
    /// A routing daemon has been here, or the kernel's table has been taken in its place.
    begun: bool,
    /// Some ways have no hops, and that has been said.
    is_short: bool,
    agents: Vec<AgentLink>,
    ports: Ports,
    /// Some agent is to be told more at once.
    tells: bool,
}

impl Worker {
    fn new(plane: Arc<Plane>) -> Worker {
        Worker {
            router: Arc::clone(&plane.router),
            path: netns::path(&plane.namespace),
            plane,
            zebra: None,
            pending: Pending::default(),
            stream: Stream::default(),
            room: vec![0; READ].into(),
            view: ControlView::default(),
            seconds: Seconds::default(),
            links: BTreeMap::new(),
            given: BTreeSet::new(),
            compare: Compare::default(),
            sweeping: None,
            begun: false,
            is_short: false,
            agents: Vec::new(),
            ports: Ports::new(),
            tells: false,
        }
    }

    fn now(&self) -> u32 {
        (self.plane.clock)()
    }

    fn stops(&self) -> bool {
        self.plane.stop.load(Ordering::Acquire)
    }

    fn run(&mut self) {
        while !self.stops() {
            match self.serve() {
                Err(why) if !self.stops() => self.trouble(Some(why.to_string())),
                _ => {}
            }
            self.disconnected();
            self.sweep();
            self.show();
            if !self.stops() && self.sweeping.is_none() {
                let _ = self.wait(None, AGAIN);
            }
        }
    }

    /// Says what is in the way, once.
    fn trouble(&mut self, why: Option<String>) {
        if self.view.trouble != why {
            match &why {
                Some(why) => {
                    tracing::error!(event = "routing", router = %self.router.name, "its control plane: {why}")
                }
                None => {
                    tracing::info!(event = "routing", router = %self.router.name, "its control plane is in namespace {}", self.plane.namespace)
                }
            }
            self.view.trouble = why;
        }
        self.show();
    }

    fn show(&mut self) {
        self.view.agents = self.agents.iter().map(AgentLink::view).collect();
        let shown = (self.view.clone(), self.seconds);
        *self.plane.shown.lock().unwrap_or_else(PoisonError::into_inner) = shown;
    }

    /// Follows what happens in the namespace until that is of no use any more.
    fn serve(&mut self) -> io::Result<()> {
        let mut kernel = Kernel::new(&self.path, &self.plane.end)?;
        let listener = netns::open(&self.path, Socket::Listen(FPM)).map_err(|e| {
            let why = format!("cannot listen at port {FPM} in namespace {}: {e}", self.plane.namespace);
            io::Error::new(e.kind(), why)
        })?;
        self.trouble(None);
        self.look(&mut kernel)?;
        self.begin(&mut kernel)?;
        loop {
            let [woken, changed, connected, said] =
                self.wait(Some([kernel.event(), listener.as_fd()]), self.patience())?;
            if self.stops() {
                return Ok(());
            }
            if changed {
                self.hear(&mut kernel)?;
            }
            if woken {
                self.look(&mut kernel)?;
            }
            if connected {
                self.accept(&listener);
            }
            if said {
                self.read();
            }
            self.flush(false);
            self.sweep();
            self.judge();
            self.compare(&mut kernel)?;
            self.serve_agents();
            self.show();
        }
    }

    fn serve_agents(&mut self) {
        let Worker { agents, router, ports, room, .. } = self;
        // All of them, whatever the first ones have to tell.
        self.tells = agents.iter_mut().fold(false, |more, agent| agent.serve(router, ports, room) | more);
    }

    /// Has the agents be those of the configuration.
    fn look_for_agents(&mut self) {
        self.ports = self.router.interfaces().into_iter().map(|at| (at.port, at.mac)).collect();
        let wanted = self.plane.agents.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut old = std::mem::take(&mut self.agents);
        for (member, path) in wanted {
            let at = old.iter().position(|agent| agent.is(&member, &path));
            self.agents.push(at.map_or_else(|| AgentLink::new(&member, path), |at| old.swap_remove(at)));
        }
        old.iter().for_each(|agent| agent.leave(&self.router));
    }

    /// Says so when ways have no hops for want of room, and when that is over.
    fn judge(&mut self) {
        let short = self.router.fed().short;
        if (short > 0) != self.is_short {
            self.is_short = short > 0;
            match self.is_short {
                true => tracing::error!(
                    router = %self.router.name,
                    "{short} ways have no next hops: all ways together may have {MAX_ALL_HOPS}"
                ),
                false => tracing::info!(router = %self.router.name, "all routes have their next hops again"),
            }
        }
    }

    /// How long there is nothing to do, unless something happens.
    fn patience(&self) -> Duration {
        match self.pending.wait(Instant::now()) {
            _ if self.sweeping.is_some() || self.tells => Duration::ZERO,
            wait => wait.unwrap_or(Duration::from_secs(1)),
        }
    }

    /// Waits for something to happen, for `most` at most: it was woken, or the kernel, a new connection or
    /// zebra is to be heard.
    fn wait(&self, open: Option<[BorrowedFd<'_>; 2]>, most: Duration) -> io::Result<[bool; 4]> {
        let all = std::iter::once(self.plane.wake.as_fd()).chain(open.into_iter().flatten());
        let all = all.chain(self.zebra.iter().map(AsFd::as_fd));
        let mut fds: Vec<PollFd> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let zebra = fds.len() == 4;
        fds.extend(self.agents.iter().filter_map(AgentLink::event));
        let most = Timespec::try_from(most).ok();
        match poll(&mut fds, most.as_ref()) {
            Err(Errno::INTR) => return Ok([false; 4]),
            ready => ready?,
        };
        let ready: [bool; 4] = std::array::from_fn(|at| {
            (at < 3 || zebra) && fds.get(at).is_some_and(|fd| !fd.revents().is_empty())
        });
        if ready[0] {
            // Somebody else's wish may have been taken with it.
            let _ = rustix::io::read(&self.plane.wake, &mut [0; 8]);
        }
        Ok(ready)
    }

    /// Before zebra is there: what the kernel has of it, so that a daemon that was started anew forwards at
    /// once.
    fn begin(&mut self, kernel: &mut Kernel) -> io::Result<()> {
        let mut all = Vec::new();
        if !self.begun && self.router.fed().routes == 0 {
            kernel.routes(|message| match message.map(said) {
                Some(Ok(Some((change, protocol)))) if is_daemons(protocol) => all.push(change),
                _ => {}
            })?;
        }
        self.begun = true;
        let now = self.now();
        if !all.is_empty() {
            all.chunks(BATCH).for_each(|some| self.router.feed(some, now));
            self.router.next_generation();
            self.seconds.sweep = Some(now + self.plane.grace);
        }
        Ok(())
    }

    /// Looks at the namespace's links, addresses and neighbours, and gives its interfaces the addresses that
    /// they are to have.
    fn look(&mut self, kernel: &mut Kernel) -> io::Result<()> {
        let links = kernel.links()?;
        let loopbacks: BTreeSet<u32> =
            links.iter().filter(|link| link.is_loopback).map(|link| link.index).collect();
        self.links = links.into_iter().map(|link| (link.index, link.name)).collect();
        self.router.set_links(self.links.clone(), self.now());
        self.look_for_agents();
        let there = kernel.addresses()?;
        self.own(there.iter().filter(|(index, _)| loopbacks.contains(index)).map(|(_, net)| net.address));
        let index = |name: &str| self.links.iter().find(|(_, other)| *other == name).map(|(index, _)| *index);
        let mut wanted = BTreeSet::new();
        for at in self.router.interfaces() {
            let Some(index) = index(&at.port) else { continue };
            for net in at.addresses {
                wanted.insert((at.port.clone(), net));
                if !there.contains(&(index, net)) {
                    self.set_address(&at.port, net, true);
                }
            }
        }
        let gone: Vec<(String, Net)> = self.given.difference(&wanted).cloned().collect();
        for (name, net) in gone.into_iter().filter(|(name, _)| index(name).is_some()) {
            self.set_address(&name, net, false);
        }
        self.given = wanted;
        for neighbour in kernel.neighbours()? {
            self.tell(neighbour);
        }
        Ok(())
    }

    /// The namespace has these addresses at no port: what is for them is for the router.
    fn own(&mut self, all: impl Iterator<Item = IpAddr>) {
        let all: BTreeSet<IpAddr> = all.filter(|it| never(*it).is_none()).collect();
        let some: BTreeSet<IpAddr> = all.iter().copied().take(MAX_LOOPBACKS).collect();
        if some.len() < all.len() && !self.view.addresses.iter().eq(&some) {
            tracing::warn!(
                router = %self.router.name,
                "of {} addresses of loopback and dummy interfaces in its namespace the router has {MAX_LOOPBACKS}", all.len()
            );
        }
        self.router.set_loopbacks(&some, self.now());
        self.view.addresses = some.into_iter().collect();
    }

    fn set_address(&self, name: &str, net: Net, there: bool) {
        let (netns, name) = (self.path.clone(), name.to_owned());
        let wanted = AddressIn { netns, name, address: net.address, len: net.len, there };
        match netns::set_address(&wanted) {
            Ok(()) => {}
            // Somebody was faster.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EEXIST | libc::EADDRNOTAVAIL)) => {}
            Err(e) => {
                tracing::warn!(router = %self.router.name, "address {net} at {} in its namespace: {e}", wanted.name)
            }
        }
    }

    fn hear(&mut self, kernel: &mut Kernel) -> io::Result<()> {
        let heard = kernel.hear()?;
        if heard.links || heard.lost {
            return self.look(kernel);
        }
        heard.neighbours.into_iter().for_each(|neighbour| self.tell(neighbour));
        Ok(())
    }

    fn tell(&mut self, Neighbour { link, address, mac, always, .. }: Neighbour) {
        if let Some(name) = self.links.get(&link) {
            self.view.neighbours += 1;
            self.router.kernel_neighbour(name, address, mac, always, self.now());
        }
    }
}

/// Whether routes with this number are a routing daemon's.
fn is_daemons(protocol: u8) -> bool {
    DAEMONS.iter().any(|range| range.contains(&protocol))
}

#[cfg(test)]
mod tests {
    use sidecore_engine::host::netlink::{kind, Builder};
    use sidecore_engine::router::Change;

    use super::*;

    /// The kernel of a namespace may have no memory for an answer; until zebra is there nobody else knows the
    /// routes.
    #[test]
    fn a_first_look_at_the_kernels_routes_that_failed_is_repeated() {
        let router = Arc::new(Router::new("r").unwrap());
        let plane = Plane::new(Arc::clone(&router), "/none", 60, Box::new(|| 1)).unwrap();
        let (mut kernel, answers) = Kernel::by_hand(&plane.end);
        let mut worker = Worker::new(Arc::new(plane));
        let answer = |kind: u16, sequence: u32, fixed: &[u8]| {
            rustix::io::write(&answers, &Builder::new(kind, 0, sequence, fixed).end()).unwrap();
        };
        // It has no next hops, and says no when it is asked for routes of IPv4.
        answer(kind::DONE, 1, &[0; 4]);
        answer(kind::ERROR, 2, &(-libc::ENOBUFS).to_ne_bytes());
        assert_eq!(worker.begin(&mut kernel).unwrap_err().raw_os_error(), Some(libc::ENOBUFS));
        // 0.0.0.0/0 of zebra, in the main table, to nowhere.
        answer(kind::DONE, 3, &[0; 4]);
        answer(kind::NEWROUTE, 4, &[2, 0, 0, 0, 254, 11, 0, 6, 0, 0, 0, 0]);
        answer(kind::DONE, 4, &[0; 4]);
        answer(kind::DONE, 5, &[0; 4]);
        worker.begin(&mut kernel).unwrap();
        assert_eq!(router.fed().routes, 1);
        // Once is enough, even when zebra has taken all routes away since. It would wait for an answer.
        router.feed(&[Change::Gone(Net { address: [0; 4].into(), len: 0 })], 1);
        worker.begin(&mut kernel).unwrap();
        assert_eq!(router.fed().routes, 0);
    }
}
