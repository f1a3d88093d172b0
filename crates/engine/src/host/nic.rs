//! A port on an interface that the host has: what `packet` and `xdp` have in common.
//!
//! Theory of operation. The interface stays the host's: it is brought up and its MTU is set if that was
//! asked for, and nothing else of it is changed for longer than the port lives. A small thread hears of
//! every change of an interface (rtnetlink) and then looks at ours again, by its number, so that a new name
//! does not matter:
//!
//! * its carrier is the port's link: while it is away the egress queues are taken out of the port, and
//!   frames for it are dropped as `link_down`;
//! * its MTU becomes the port's, unless the operator gave one;
//! * if it is gone (deleted, or moved to another network namespace) the port stops with
//!   `Fault::InterfaceGone` and stays, to be seen in `show`.
//!
//! The operator's `link=down` leaves the interface alone, since the host may use it, too: frames are dropped
//! as `link_down` in both directions.

use std::fmt::Display;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use libc::c_int;
use rustix::net::sockopt::socket_error;

use super::interface::{is_interface, netlink_socket, Interface, MAX_NAME};
use super::watcher::{pairs, Watcher};
use crate::core::Lease;
use crate::graph::Scheduler;
use crate::port::{Attachment, AttachmentStatus, EgressQueue, Fault, IngressQueue, Peer, Port, MAX_QUEUES};

/// Every change of an interface (linux/rtnetlink.h).
const RTMGRP_LINK: u32 = 1;

/// What the queues of a port know of its interface.
pub(super) struct InterfaceState {
    /// The operator's `link`.
    pub(super) wanted: AtomicBool,
    carrier: AtomicBool,
    /// The interface's MTU.
    pub(super) mtu: AtomicU32,
}

/// An interface that was found, before it has queues.
pub(super) struct FoundInterface {
    pub(super) kind: &'static str,
    pub(super) interface: Interface,
    pub(super) index: c_int,
    pub(super) state: Arc<InterfaceState>,
    changes: OwnedFd,
    mtu: Option<u32>,
}

impl FoundInterface {
    /// An error at `step`; `hint` for those that say no more than their text.
    pub(super) fn failed(&self, step: &'static str) -> impl FnOnce(io::Error) -> String {
        let (kind, name) = (self.kind, self.interface.name.clone());
        move |error| failed(kind, &name, step)(error)
    }
}

fn failed<'a>(kind: &'a str, name: &'a str, step: &'a str) -> impl FnOnce(io::Error) -> String + 'a {
    move |error| failure(kind, name, step, &error, hint(&error))
}

/// That a step of the setting-up failed, and what to do about it.
pub(super) fn failure(kind: &str, name: &str, step: &str, error: &dyn Display, hint: &str) -> String {
    format!("{kind} {name}: {step}: {error}; {hint}")
}

fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "it takes root, or the capabilities CAP_NET_RAW and CAP_NET_ADMIN (xdp: also CAP_BPF)"
        }
        Some(libc::ENOMEM | libc::ENOBUFS) => {
            "the system refuses the memory: raise the limit of locked memory (LimitMEMLOCK=, ulimit -l), or ask for fewer queues"
        }
        Some(libc::ENODEV | libc::ENXIO) => "the interface has just gone",
        _ => "the kernel's log may say more (dmesg)",
    }
}

/// Finds the interface `name`, gives it the MTU that was asked for and brings it up.
pub(super) fn open(
    kind: &'static str,
    name: &str,
    mtu: Option<u32>,
    port: &Port,
) -> Result<FoundInterface, String> {
    check_name(kind, name)?;
    let failed = |step| failed(kind, name, step);
    let interface = Interface::new(name).map_err(failed("cannot make a socket"))?;
    let index = interface.index().map_err(|e| match e.raw_os_error() {
        Some(libc::ENODEV) => format!(
            "{kind} {name}: there is no such interface in the daemon's network namespace; `ip link` lists those that there are"
        ),
        _ => failed("cannot look it up")(e),
    })?;
    // Listened to before it is looked at, so that no change is missed.
    let changes = netlink_socket(RTMGRP_LINK).map_err(failed("cannot listen for changes of it"))?;
    if let Some(mtu) = mtu {
        interface.set_mtu(mtu).map_err(failed(NO_MTU))?;
    }
    interface.bring_up().map_err(failed("cannot bring it up (ip link set … up)"))?;
    let now = interface.mtu().map_err(failed("cannot read its MTU"))?;
    port.set_mtu(now);
    let state = InterfaceState {
        wanted: AtomicBool::new(true),
        carrier: AtomicBool::new(false),
        mtu: AtomicU32::new(now),
    };
    Ok(FoundInterface { kind, interface, index, state: Arc::new(state), changes, mtu })
}

pub(super) const NO_MTU: &str = "cannot set its MTU (ip link set … mtu …)";

/// Whether an interface can have that name.
pub(super) fn check_name(kind: &str, name: &str) -> Result<(), String> {
    let why = || {
        format!("{kind}: {name:?} is no interface name: 1 to {MAX_NAME} bytes without '/', ':', '%' and white space")
    };
    is_interface(name).then_some(()).ok_or_else(why)
}

/// Whether a port can have that many queues.
pub(super) fn check_queues(kind: &str, name: &str, queues: usize) -> Result<(), String> {
    let why = || no_queues(kind, name, queues, &format!("1 to {MAX_QUEUES}"));
    (1..=MAX_QUEUES).contains(&queues).then_some(()).ok_or_else(why)
}

/// That it cannot, and what would be possible.
pub(super) fn no_queues(kind: &str, name: &str, queues: usize, why: &str) -> String {
    format!("{kind} {name}: {queues} queues are not possible: {why}")
}

/// What to say of a port's queues, and what they need.
#[derive(Default)]
pub(super) struct Queues {
    /// Whose pending errors are taken when the carrier comes back.
    pub(super) sockets: Vec<Arc<OwnedFd>>,
    /// Names of what the kernel agreed to.
    pub(super) features: Vec<String>,
    /// More for people.
    pub(super) detail: String,
    /// Frames on other queues would pass to the host, and there was none when it started.
    pub(super) needs_all: bool,
    /// Entries of the ingress and of the egress rings; 0 if there are none.
    pub(super) sizes: [u32; 2],
    /// Closed when the port is.
    pub(super) keep: Vec<OwnedFd>,
}

/// A running port on an interface of the host.
pub(super) struct InterfacePort<I, E: EgressQueue + 'static> {
    attached: Arc<AttachedNic<I, E>>,
    /// What is to be said of its queues; the queues themselves are in `attached`.
    queues: Queues,
    watcher: Option<Watcher>,
}

struct AttachedNic<I, E> {
    kind: &'static str,
    index: c_int,
    count: usize,
    port: Arc<Port>,
    state: Arc<InterfaceState>,
    sockets: Vec<Arc<OwnedFd>>,
    live: Mutex<LiveInterface<I, E>>,
}

/// What changes with the interface.
struct LiveInterface<I, E> {
    interface: Interface,
    /// Whether the operator gave an MTU.
    own_mtu: bool,
    /// Egress queues while the link is down; otherwise the port has them.
    parked: Vec<E>,
    /// Those that the port has.
    plugged: Vec<Lease<E>>,
    /// Ingress queues that the I/O cores have.
    served: Vec<Lease<I>>,
}

impl<I, E> LiveInterface<I, E> {
    /// Takes the egress queues out of the port, the first one last: it is the port's link.
    fn unplug(&mut self) -> Vec<E> {
        let mut queues: Vec<_> = self.plugged.drain(..).rev().filter_map(Lease::take_back).collect();
        queues.reverse();
        queues
    }
}

impl<I, E: EgressQueue + 'static> AttachedNic<I, E> {
    /// Looks at the interface again.
    fn refresh(&self, live: &mut LiveInterface<I, E>) {
        match live.interface.find(self.index) {
            Ok(()) => {}
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENODEV | libc::ENXIO)) => {
                return self.port.fault.set(Fault::InterfaceGone);
            }
            Err(e) => return tracing::warn!(port = %self.port.name, "cannot look its interface up: {e}"),
        }
        if let Ok(mtu) = live.interface.mtu() {
            self.state.mtu.store(mtu, Ordering::Relaxed);
            if !live.own_mtu {
                self.port.set_mtu(mtu);
            }
        }
        let carrier = live.interface.carrier().unwrap_or(false);
        if carrier && !self.state.carrier.load(Ordering::Relaxed) {
            // A socket keeps an error for the time that its interface was down.
            self.sockets.iter().for_each(|fd| _ = socket_error(fd));
        }
        self.state.carrier.store(carrier, Ordering::Relaxed);
        self.park(live);
    }

    /// Takes the egress queues out of the port or puts them back, as the link is.
    fn park(&self, live: &mut LiveInterface<I, E>) {
        let up = self.state.carrier.load(Ordering::Relaxed) && self.state.wanted.load(Ordering::Relaxed);
        match (up, live.parked.is_empty()) {
            (true, false) => {
                let parked = live.parked.drain(..).enumerate();
                live.plugged = parked.map(|(index, queue)| self.port.lend(index, queue)).collect();
            }
            (false, true) => live.parked = live.unplug(),
            _ => {}
        }
    }

    /// Takes all queues back; the second call finds none.
    fn take_back(&self) {
        let mut live = crate::lock(&self.live);
        live.parked.clear();
        let served = std::mem::take(&mut live.served);
        drop(live.unplug());
        drop(live);
        drop(served);
    }
}

impl<I: IngressQueue + 'static, E: EgressQueue + 'static> InterfacePort<I, E> {
    /// Gives the queues to port and I/O cores and follows the interface from now on.
    pub(super) fn start(
        opened: FoundInterface,
        mut queues: Queues,
        (ingress, parked): (Vec<I>, Vec<E>),
        port: Arc<Port>,
        scheduler: Arc<dyn Scheduler>,
    ) -> Result<InterfacePort<I, E>, String> {
        let failed = opened.failed("cannot start its thread");
        let FoundInterface { kind, interface, index, state, changes, mtu } = opened;
        let name = interface.name.clone();
        let sockets = std::mem::take(&mut queues.sockets);
        let (own_mtu, count) = (mtu.is_some(), parked.len());
        let live = LiveInterface { interface, own_mtu, parked, plugged: Vec::new(), served: Vec::new() };
        let live = Mutex::new(live);
        let attached = Arc::new(AttachedNic { kind, index, count, port, state, sockets, live });
        let (followed, gone) = (Arc::clone(&attached), Arc::clone(&attached));
        let changed = move |changes: &OwnedFd| {
            let mut message = [0; 8192];
            loop {
                match rustix::io::read(changes, &mut message) {
                    Ok(n) if n > 0 => {}
                    // Some were lost: the interface is looked at all the same.
                    Err(rustix::io::Errno::NOBUFS | rustix::io::Errno::INTR) => {}
                    _ => break,
                }
            }
            followed.refresh(&mut crate::lock(&followed.live));
        };
        let name = format!("{kind} {name}");
        let watcher = Watcher::start(name, &attached.port, Some(changes), changed, move || gone.take_back());
        let watcher = Some(watcher.map_err(failed)?);
        let mut live = crate::lock(&attached.live);
        for (index, queue) in ingress.into_iter().enumerate() {
            live.served.push(scheduler.serve(&attached.port, index, queue));
        }
        attached.refresh(&mut live);
        drop(live);
        Ok(InterfacePort { attached, queues, watcher })
    }

    /// That the interface has got more queues than the port knows of, if it has.
    fn misses(&self) -> Option<String> {
        let attached = &*self.attached;
        let now =
            crate::lock(&attached.live).interface.receive_queues().ok().filter(|_| self.queues.needs_all)?;
        (now > attached.count).then(|| {
            let count = attached.count;
            format!("its interface receives on {now} queues now, and the port on {count}: the host keeps what comes in on the others; delete and add the port")
        })
    }
}

impl<I, E> Attachment for InterfacePort<I, E>
where
    I: IngressQueue + 'static,
    E: EgressQueue + 'static,
{
    fn status(&self) -> AttachmentStatus {
        let attached = &*self.attached;
        let fault = attached.port.fault.get();
        let carrier = attached.state.carrier.load(Ordering::Relaxed);
        let peer = match (fault, carrier) {
            (Some(_), _) => Peer::Faulted,
            (None, true) => Peer::Running,
            (None, false) => Peer::Waiting,
        };
        AttachmentStatus {
            peer,
            detail: format!(
                "interface {}, carrier {}{}",
                crate::lock(&attached.live).interface.name,
                if carrier { "up" } else { "down" },
                self.queues.detail
            ),
            hint: self.misses(),
            lack: None,
            features: self.queues.features.clone(),
            queues: pairs(attached.kind, attached.count, self.queues.sizes, &attached.port),
        }
    }

    fn set_mtu(&mut self, mtu: u32) -> Result<(), String> {
        let mut live = crate::lock(&self.attached.live);
        live.own_mtu = true;
        let name = live.interface.name.clone();
        live.interface.set_mtu(mtu).map_err(|e| format!("{} {name}: {NO_MTU}: {e}", self.attached.kind))?;
        self.attached.state.mtu.store(mtu, Ordering::Relaxed);
        Ok(())
    }

    /// The carrier is the interface's own: no peer sees another.
    fn follow(&mut self, _: bool) -> Result<(), String> {
        Ok(())
    }

    fn set_link(&mut self, up: bool) -> Result<(), String> {
        let mut live = crate::lock(&self.attached.live);
        self.attached.state.wanted.store(up, Ordering::Relaxed);
        self.attached.park(&mut live);
        Ok(())
    }
}

impl<I, E: EgressQueue + 'static> Drop for InterfacePort<I, E> {
    fn drop(&mut self) {
        self.watcher = None;
        self.attached.take_back();
        self.queues.keep.clear();
    }
}
