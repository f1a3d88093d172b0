//! The thread of one control plane.
//!
//! What zebra says is gathered for a moment, and takes effect together (`pending`).
//!
//! **Stale routes.** Whenever the connection comes or goes all routes become stale. Those that are not said again within `grace` seconds are
//! swept, some at a time. Before zebra has connected for the first time the kernel's table is taken: a daemon that was started anew forwards at once.
//!
//! **Comparison** with the kernel's table finds what zebra did not say (`compare`).

mod compare;
mod pending;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{accept_with, recv, RecvFlags, SocketFlags};

use self::compare::Compare;
use self::pending::{Pending, BATCH};
use super::fpm::Stream;
use super::kernel::{Kernel, Links, Neighbour};
use super::say::said;
use super::view::{ClassView, ControlView};
use crate::host::netns::{self, AddressIn, Socket, FPM};
use crate::router::{Net, Router, MAX_ALL_HOPS};
use crate::slice::upto;

/// Bytes of one read.
const READ: usize = 256 << 10;
/// Most addresses of loopback and dummy interfaces that are the router's.
const MAX_LOOPBACKS: usize = 1024;
/// How soon it is tried again to get into the namespace.
const AGAIN: Duration = Duration::from_secs(1);
/// Numbers of routing daemons in the kernel's routes (linux/rtnetlink.h, RTPROT): zebra; BGP to EIGRP; those of FRR.
const DAEMONS: [std::ops::RangeInclusive<u8>; 2] = [11..=11, 186..=199];

/// What a control plane is.
pub struct Config {
    /// The network namespace, as it is configured: a name or a path.
    pub namespace: String,
    /// Seconds for which routes stay that nobody says any more.
    pub grace: u32,
    /// The second of the router's clock.
    pub clock: Box<dyn Fn() -> u32 + Send>,
}

/// A control plane at work; it ends when this is dropped. The router keeps the routes.
pub struct Session {
    state: Arc<SessionState>,
    router: Arc<Router>,
    namespace: String,
    grace: u32,
    thread: Option<JoinHandle<()>>,
}

struct SessionState {
    /// To wake the thread: something has changed, or it is to end.
    wake: OwnedFd,
    stop: AtomicBool,
    /// Readable when it is to end, and ever after: for whoever waits for something else.
    end: Arc<OwnedFd>,
    view: Mutex<(ControlView, Seconds)>,
}

/// Seconds of the router's clock.
#[derive(Clone, Copy, Default)]
struct Seconds {
    now: u32,
    since: Option<u32>,
    last: Option<u32>,
    sweep: Option<u32>,
}

impl Session {
    /// Begins to follow the control plane of `router`.
    ///
    /// # Errors
    /// There is no thread for it.
    pub fn start(router: &Arc<Router>, config: Config) -> io::Result<Session> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let view = ControlView { namespace: config.namespace.clone(), ..ControlView::default() };
        let end = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (stop, view) = (AtomicBool::new(false), Mutex::new((view, Seconds::default())));
        let state = SessionState { wake, stop, end, view };
        let state = Arc::new(state);
        let (namespace, grace) = (config.namespace.clone(), config.grace);
        let mut worker = Worker::new(Arc::clone(&state), Arc::clone(router), config);
        let name = format!("control {}", router.name);
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            crate::confine::enter(crate::confine::Kinds::CONVERSATION);
            worker.run();
        })?;
        Ok(Session { state, router: Arc::clone(router), namespace, grace, thread: Some(thread) })
    }

    /// Whether it is the control plane of this router, in this namespace, with this grace.
    pub fn is(&self, router: &Arc<Router>, namespace: &str, grace: u32) -> bool {
        Arc::ptr_eq(&self.router, router) && self.namespace == namespace && self.grace == grace
    }

    /// The router's ports are not what they were.
    pub fn nudge(&self) {
        // Fails only if it has been nudged beyond counting.
        let _ = rustix::io::write(&self.state.wake, &1u64.to_ne_bytes());
    }

    /// What there is to show, at second `now`.
    pub fn view(&self, now: u32) -> ControlView {
        let (mut view, seconds) = self.state.view.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let fed = self.router.fed();
        view.since_s = seconds.since.map(|then| now.saturating_sub(then));
        view.last_message_s = seconds.last.map(|then| now.saturating_sub(then));
        (view.routes, view.stale, view.objects) = (fed.routes as u64, fed.stale as u64, fed.objects as u64);
        view.sweep_in_s = seconds.sweep.filter(|_| fed.stale > 0).map(|then| then.saturating_sub(now));
        (view.hops, view.short) = (fed.hops as u64, fed.short as u64);
        (view.digest, view.refused) = (format!("{:016x}", fed.digest), fed.refused);
        let class = |(class, passed, refused): (&str, u64, u64)| ClassView {
            class: class.to_owned(),
            passed,
            refused,
        };
        view.classes = self.router.punted().into_iter().map(class).collect();
        view
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Release);
        // It is empty, so there is room.
        let _ = rustix::io::write(&*self.state.end, &1u64.to_ne_bytes());
        self.nudge();
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by the thread itself.
            let _ = thread.join();
        }
    }
}

/// What the thread has.
struct Worker {
    state: Arc<SessionState>,
    router: Arc<Router>,
    config: Config,
    path: PathBuf,
    pending: Pending,
    stream: Stream,
    room: Box<[u8]>,
    view: ControlView,
    seconds: Seconds,
    links: BTreeMap<u32, String>,
    /// Addresses that the configuration has given, by interface: those that it does not give any more are taken away.
    given: BTreeSet<(String, Net)>,
    compare: Compare,
    /// Stale routes are being swept: behind which to go on, and how many have gone.
    sweeping: Option<(Option<Net>, usize)>,
    /// A routing daemon has been here, or the kernel's table has been taken in its place.
    begun: bool,
    /// Some ways have no hops, and that has been said.
    is_short: bool,
}

/// What there is to wait for, once the namespace could be entered.
struct Open {
    kernel: Kernel,
    listener: OwnedFd,
    zebra: Option<OwnedFd>,
}

/// What has happened.
#[derive(Default)]
struct Ready {
    woken: bool,
    kernel: bool,
    listener: bool,
    zebra: bool,
}

impl Worker {
    fn new(state: Arc<SessionState>, router: Arc<Router>, config: Config) -> Worker {
        let path = netns::path(&config.namespace);
        let view = ControlView { namespace: config.namespace.clone(), ..ControlView::default() };
        Worker {
            state,
            router,
            config,
            path,
            pending: Pending::default(),
            stream: Stream::default(),
            room: vec![0; READ].into(),
            view,
            seconds: Seconds::default(),
            links: BTreeMap::new(),
            given: BTreeSet::new(),
            compare: Compare::default(),
            sweeping: None,
            begun: false,
            is_short: false,
        }
    }

    fn now(&self) -> u32 {
        (self.config.clock)()
    }

    fn stops(&self) -> bool {
        self.state.stop.load(Ordering::Acquire)
    }

    fn run(&mut self) {
        while !self.stops() {
            match self.open() {
                Ok(mut open) => {
                    self.trouble(None);
                    match self.serve(&mut open) {
                        Err(why) if !self.stops() => self.trouble(Some(why.to_string())),
                        _ => {}
                    }
                    self.disconnected(&mut open.zebra);
                }
                Err(why) => self.trouble(Some(why.to_string())),
            }
            self.sweep();
            self.show();
            if !self.stops() && self.sweeping.is_none() {
                let _ = self.wait(None, Some(AGAIN));
            }
        }
    }

    /// Says what is in the way, once.
    fn trouble(&mut self, why: Option<String>) {
        if self.view.trouble != why {
            match &why {
                Some(why) => tracing::error!(router = %self.router.name, "its control plane: {why}"),
                None => {
                    tracing::info!(router = %self.router.name, "its control plane is in namespace {}", self.config.namespace)
                }
            }
            self.view.trouble = why;
        }
        self.show();
    }

    fn show(&mut self) {
        self.seconds.now = self.now();
        let mut shown = self.state.view.lock().unwrap_or_else(PoisonError::into_inner);
        shown.0.clone_from(&self.view);
        shown.1 = self.seconds;
    }

    fn open(&self) -> io::Result<Open> {
        let kernel = Kernel::new(&self.path, &self.state.end)?;
        let listener = netns::open(&self.path, Socket::Listen(FPM)).map_err(|e| {
            let why = format!("cannot listen at port {FPM} in namespace {}: {e}", self.config.namespace);
            io::Error::new(e.kind(), why)
        })?;
        Ok(Open { kernel, listener, zebra: None })
    }

    /// Follows what happens in the namespace until that is of no use any more.
    fn serve(&mut self, open: &mut Open) -> io::Result<()> {
        self.look(&mut open.kernel)?;
        self.begin(&mut open.kernel)?;
        loop {
            let ready = self.wait(Some(&*open), Some(self.patience()))?;
            if self.stops() {
                return Ok(());
            }
            if ready.kernel {
                self.hear(&mut open.kernel)?;
            }
            if ready.woken {
                self.look(&mut open.kernel)?;
            }
            if ready.listener {
                self.accept(open);
            }
            if ready.zebra {
                self.read(&mut open.zebra);
            }
            self.flush(false);
            self.sweep();
            self.judge();
            self.compare(open)?;
            self.show();
        }
    }

    /// Says so when ways have no hops for want of room, and when that is over.
    fn judge(&mut self) {
        let short = self.router.short();
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
            _ if self.sweeping.is_some() => Duration::ZERO,
            wait => wait.unwrap_or(Duration::from_secs(1)),
        }
    }

    fn wait(&self, open: Option<&Open>, most: Option<Duration>) -> io::Result<Ready> {
        let wake = PollFd::new(&self.state.wake, PollFlags::IN);
        let mut fds = vec![wake];
        if let Some(open) = open {
            fds.push(PollFd::from_borrowed_fd(open.kernel.event(), PollFlags::IN));
            fds.push(PollFd::new(&open.listener, PollFlags::IN));
            fds.extend(open.zebra.iter().map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)));
        }
        let most = most.and_then(|most| Timespec::try_from(most).ok());
        match poll(&mut fds, most.as_ref()) {
            Err(Errno::INTR) => return Ok(Ready::default()),
            ready => ready?,
        };
        let is = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
        let ready = Ready { woken: is(0), kernel: is(1), listener: is(2), zebra: is(3) };
        if ready.woken {
            let mut count = [0; 8];
            // Somebody else's wish may have been taken with it.
            let _ = rustix::io::read(&self.state.wake, &mut count);
        }
        Ok(ready)
    }

    /// Before zebra is there: what the kernel has of it, so that a daemon that was started anew forwards at once.
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
            self.seconds.sweep = Some(now + self.config.grace);
        }
        Ok(())
    }

    /// Looks at the namespace's links, addresses and neighbours, and gives its interfaces the addresses that they are to have.
    fn look(&mut self, kernel: &mut Kernel) -> io::Result<()> {
        let Links { names, loopbacks } = kernel.links()?;
        self.links = names;
        self.router.set_links(self.links.clone(), self.now());
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
        let all: BTreeSet<IpAddr> = all.filter(|it| is_routed(*it)).collect();
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

    fn tell(&mut self, Neighbour { link, address, mac, always }: Neighbour) {
        if let Some(name) = self.links.get(&link) {
            self.view.neighbours += 1;
            self.router.told(name, address, mac, always, self.now());
        }
    }

    fn accept(&mut self, open: &mut Open) {
        // Non-blocking by a flag of its own: the listener's is not inherited.
        let Ok(zebra) = accept_with(&open.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) else {
            return;
        };
        // The newest counts: an older one may be of a zebra that is gone.
        self.disconnected(&mut open.zebra);
        self.stream = Stream::default();
        let now = self.now();
        (self.view.connected, self.seconds.since) = (true, Some(now));
        self.view.connections += 1;
        self.renew(now);
        tracing::info!(router = %self.router.name, "zebra has connected");
        open.zebra = Some(zebra);
    }

    fn disconnected(&mut self, zebra: &mut Option<OwnedFd>) {
        if zebra.take().is_none() {
            return;
        }
        self.flush(true);
        let now = self.now();
        (self.view.connected, self.seconds.since) = (false, None);
        self.renew(now);
        tracing::warn!(
            router = %self.router.name,
            "zebra has gone; {} routes stay for {} s", self.router.fed().routes, self.config.grace
        );
    }

    /// What was said so far is to be said anew.
    fn renew(&mut self, now: u32) {
        self.router.next_generation();
        (self.seconds.sweep, self.sweeping) = (Some(now.saturating_add(self.config.grace)), None);
        self.compare = self.compare.again();
    }

    fn read(&mut self, zebra: &mut Option<OwnedFd>) {
        let Some(from) = zebra else { return };
        let len = match recv(&*from, &mut self.room[..], RecvFlags::empty()) {
            Ok((0, _)) => return self.disconnected(zebra),
            Ok((len, _)) => len,
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(_) => return self.disconnected(zebra),
        };
        self.seconds.last = Some(self.now());
        let (pending, view) = (&mut self.pending, &mut self.view);
        let taken = self.stream.take(upto(&self.room, len), |message| match said(message) {
            Ok(Some((change, _))) => pending.push(change),
            Ok(None) => {}
            Err(_) => view.malformed += 1,
        });
        pending.heard(Instant::now());
        match taken {
            Ok(taken) => {
                view.messages += taken.messages;
                view.malformed += taken.malformed;
            }
            Err(why) => {
                view.malformed += 1;
                tracing::warn!(router = %self.router.name, "the stream at port {FPM} is not FPM ({why}): the connection ends");
                self.disconnected(zebra);
            }
        }
    }

    /// Has what was said take effect, if it is time.
    fn flush(&mut self, now: bool) {
        let changes = self.pending.take(Instant::now(), now);
        if !changes.is_empty() {
            self.router.feed(&changes, self.now());
        }
    }

    /// Removes what was not said again in time, some of it.
    fn sweep(&mut self) {
        let now = self.now();
        if self.seconds.sweep.is_some_and(|then| now >= then) {
            self.seconds.sweep = None;
            self.sweeping = Some((None, 0));
        }
        let Some((behind, gone)) = self.sweeping.take() else { return };
        let (more, next) = self.router.sweep(behind, now);
        match (next, gone + more) {
            (Some(_), gone) => self.sweeping = Some((next, gone)),
            (None, 0) => {}
            (None, gone) => {
                tracing::warn!(router = %self.router.name, "{gone} routes that zebra has not sent again were removed");
            }
        }
    }
}

/// Whether packets to this address, and from it, pass routers: others are a link's or the namespace's own.
fn is_routed(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(it) => {
            !(it.is_loopback() || it.is_link_local() || it.is_multicast() || it.is_broadcast())
                && it.octets()[0] != 0
        }
        IpAddr::V6(it) => {
            !(it.is_loopback() || it.is_unspecified() || it.is_multicast() || it.is_unicast_link_local())
                && it.to_ipv4_mapped().is_none()
        }
    }
}

/// Whether routes with this number are a routing daemon's.
fn is_daemons(protocol: u8) -> bool {
    DAEMONS.iter().any(|range| range.contains(&protocol))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::netlink::{kind, Builder};
    use crate::router::Change;

    /// The kernel of a namespace may have no memory for an answer; until zebra is there nobody else knows the routes.
    #[test]
    fn a_first_look_at_the_kernels_routes_that_failed_is_repeated() {
        let event = || eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let (end, router) = (Arc::new(event()), Arc::new(Router::new("r").unwrap()));
        let (mut kernel, answers) = Kernel::by_hand(&end);
        let (stop, view) = (AtomicBool::new(false), Mutex::default());
        let state = Arc::new(SessionState { wake: event(), stop, end, view });
        let config = Config { namespace: "/none".to_owned(), grace: 60, clock: Box::new(|| 1) };
        let mut worker = Worker::new(state, Arc::clone(&router), config);
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
