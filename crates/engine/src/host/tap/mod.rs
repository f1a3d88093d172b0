//! TAP: an Ethernet interface of the host as a port.
//!
//! Theory of operation. What the host sends out of the interface is ingress here, what it receives from it is
//! egress. [`Tap::start`] makes the interface, or adopts one that exists under the name, or takes descriptors
//! that a process with more rights has opened. Each of its queues is one descriptor; a queue's two directions
//! share it and nothing else.
//!
//! Every frame carries a virtio-net header, so segmentation and checksums cross the switch undone: a
//! 64 KiB TCP segment is one frame, one `read` and one `writev`. The kernel is asked (TUNSETOFFLOAD) for
//! as much as it knows: first with UDP segmentation (since Linux 6.2), then without.
//!
//! Ownership. An interface that we made is gone when its last descriptor is closed, also when the daemon is
//! killed. It belongs to our user, or the kernel would let every local user attach a queue to it and read a
//! share of its frames. An adopted one stays, with its settings; only its carrier follows us; one without an
//! owner that may have several queues is told of. In a passed descriptor's interface nothing is changed but
//! header size and offloads, because it may lie in another network namespace, where its name means another
//! interface to us.
//!
//! An interface that is set down (`ip link set … down`) has no link: each second its state is looked at, by a
//! queue's descriptor, and the egress queues are the port's only while it is up.
//!
//! Faults. An interface that is deleted under us reads and writes EBADFD from then on, and would be
//! readable for ever: the queue stops itself with `Fault::InterfaceGone`, and a small thread that waits
//! for the port's fault takes the queues back at once, so that the port's link goes down and no core is
//! woken for nothing. The port stays, to be seen in `show`.
//!
//! Cost. One system call a frame in each direction: a TAP descriptor has no call that moves several.

mod open;
mod queue;
pub(crate) mod sys;

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use sidecore_abi::virtio::NET_HDR_LEN;

use crate::graph::{Pairs, Scheduler};
use crate::host::interface::Interface;
use crate::host::netns;
use crate::host::nic::NO_MTU;
use crate::host::watcher::{pairs, Watcher};
use crate::packet::Offloads;
use crate::port::{Attachment, AttachmentStatus, Peer, Port};
use open::{open_by_name, open_inside, take_passed, OpenedTap, Origin};
pub use open::{remove_tap, tap_in, TapIn, TapSource};
pub(crate) use open::{remove_tap_here, tap_in_here};
use queue::{TapEgress, TapIngress, TapQueue};

/// A TAP port to be.
pub struct TapConfig {
    /// Where the interface comes from.
    pub source: TapSource,
    /// Queue pairs, 1 to [`MAX_QUEUES`](crate::port::MAX_QUEUES); with [`TapSource::Fds`], one per
    /// descriptor.
    pub queues: usize,
    /// MTU to give the interface. None: one that we make gets the port's, and the port takes over that
    /// of one that we adopt. Not with [`TapSource::Fds`].
    pub mtu: Option<u32>,
}

/// A running TAP port.
pub struct Tap {
    /// The interface's name.
    pub name: String,
    origin: Origin,
    /// To change it by name; none if it was passed.
    interface: Option<Interface>,
    /// The namespace that it lies in, if that is another one.
    netns: Option<PathBuf>,
    /// The offloads that the host takes over.
    pub accepts: Offloads,
    /// Any local user may attach a queue as well.
    for_all: bool,
    attached: Arc<AttachedTap>,
    watcher: Option<Watcher>,
}

/// What the watcher and the owner share.
struct AttachedTap {
    port: Arc<Port>,
    queues: Vec<Arc<TapQueue>>,
    carrier: Arc<AtomicBool>,
    lent: Mutex<Pairs<TapIngress, TapEgress>>,
}

impl AttachedTap {
    /// Takes all queues back; the second call finds none.
    fn take_back(&self) {
        let lent = std::mem::take(&mut *crate::lock(&self.lent));
        drop(lent);
    }

    /// Whether the interface is up, as an administrator has it.
    fn is_up(&self) -> bool {
        self.queues.first().is_some_and(|queue| sys::is_up(&queue.fd))
    }

    /// Has the port's link be as the interface's state.
    fn follow(&self) {
        let mut lent = crate::lock(&self.lent);
        let up = self.is_up() && self.port.fault.get().is_none();
        if up != self.port.link() {
            lent.end_receiving();
            let queues = self.queues.iter().filter(|_| up);
            queues.for_each(|queue| lent.receive(&self.port, TapEgress::new(Arc::clone(queue))));
        }
    }
}

impl Tap {
    /// Makes or adopts the interface, brings it up and gives its queues to `port` and `scheduler`.
    ///
    /// # Errors
    /// What is wrong with the configuration, or what the system refused; an interface made on the way
    /// is gone again.
    pub fn start(config: TapConfig, port: Arc<Port>, scheduler: Arc<dyn Scheduler>) -> Result<Tap, String> {
        let netns = match &config.source {
            TapSource::Inside(wanted) => Some(wanted.netns.clone()),
            _ => None,
        };
        let opened = match config.source {
            TapSource::Name(name) => open_by_name(name, config.queues)?,
            TapSource::Fds(fds) => take_passed(fds, config.queues)?,
            TapSource::Inside(wanted) => open_inside(&wanted)?,
        };
        let OpenedTap { name, origin, fds, vnet_header, for_all } = opened;
        let failed = |step| {
            let name = name.clone();
            move |source| failed_at(&name, step)(source)
        };

        let accepts = if vnet_header {
            sys::set_vnet_header(&fds[0], NET_HDR_LEN)
                .map_err(failed("cannot set the size of its headers"))?;
            negotiate(&fds[0]).map_err(failed("cannot switch its offloads on"))?
        } else {
            Offloads::NONE
        };
        let interface = match origin {
            Origin::Inside => None,
            origin => set_up(&name, origin, config.mtu, &port)?,
        };
        sys::set_carrier(&fds[0], true).map_err(failed("cannot put its carrier up"))?;

        let carrier = Arc::new(AtomicBool::new(true));
        let queues: Vec<_> = fds
            .into_iter()
            .map(|fd| {
                let header = if vnet_header { NET_HDR_LEN } else { 0 };
                Arc::new(TapQueue { fd, port: Arc::clone(&port), header, carrier: Arc::clone(&carrier) })
            })
            .collect();
        let ingress = queues
            .iter()
            .map(|queue| TapIngress::new(Arc::clone(queue), accepts))
            .collect::<io::Result<Vec<_>>>()
            .map_err(failed("cannot map memory for its frames"))?;

        // Everything that can fail has not: now the queues go live.
        port.set_accepts(accepts);
        let attached = Arc::new(AttachedTap { port, queues, carrier, lent: Mutex::default() });
        if for_all {
            tracing::warn!(port = %attached.port.name, interface = %name, "{FOR_ALL}");
        }
        let mut tap = Tap { name, origin, interface, netns, accepts, for_all, attached, watcher: None };
        let gone = Arc::clone(&tap.attached);
        let watcher = Watcher::start(
            format!("tap {}", tap.name),
            &gone.port.clone(),
            None,
            |_| (),
            move || gone.take_back(),
        );
        tap.watcher = Some(watcher.map_err(failed_at(&tap.name, "cannot start its thread"))?);
        let attached = &tap.attached;
        attached.follow();
        let mut lent = crate::lock(&attached.lent);
        for queue in ingress {
            lent.send(&attached.port, &scheduler, queue);
        }
        drop(lent);
        Ok(tap)
    }
}

const FOR_ALL: &str = "any local user may attach a queue to the interface, and get a share of its frames: whoever made it should \
                       give it an owner (ip tuntap add … user …)";

/// The offloads that the kernel agreed to. What it hands us it also takes from us.
fn negotiate(fd: &OwnedFd) -> io::Result<Offloads> {
    let basic = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    let accepts = Offloads::CSUM | Offloads::TSO4 | Offloads::TSO6 | Offloads::ECN | Offloads::VALID;
    if sys::set_offload(fd, basic | libc::TUN_F_USO4 | libc::TUN_F_USO6).is_ok() {
        return Ok(accepts | Offloads::USO4 | Offloads::USO6);
    }
    sys::set_offload(fd, basic)?;
    Ok(accepts)
}

/// Sets MTU and state of an interface that lies in our network namespace.
fn set_up(name: &str, origin: Origin, mtu: Option<u32>, port: &Port) -> Result<Option<Interface>, String> {
    if origin == Origin::Passed {
        return mtu.map_or(Ok(None), |_| Err(mtu_of_passed(name)));
    }
    let interface = Interface::new(name).map_err(failed_at(name, "cannot make a socket"))?;
    match (mtu, origin) {
        (None, Origin::Adopted) => {
            port.set_mtu(interface.mtu().map_err(failed_at(name, "cannot read its MTU"))?);
        }
        (mtu, _) => {
            let mtu = mtu.unwrap_or_else(|| port.mtu());
            interface.set_mtu(mtu).map_err(failed_at(name, NO_MTU))?;
            port.set_mtu(mtu);
        }
    }
    interface.bring_up().map_err(failed_at(name, "cannot bring it up (ip link set … up)"))?;
    Ok(Some(interface))
}

fn mtu_of_passed(name: &str) -> String {
    format!("tap {name}: mtu= does not apply to passed descriptors: the program that opened them sets the MTU (ip link set {name} mtu …)")
}

fn failed_at<'a>(name: &'a str, step: &'static str) -> impl FnOnce(io::Error) -> String + 'a {
    move |e| format!("tap {name}: {step}: {e}")
}

impl Attachment for Tap {
    fn status(&self) -> AttachmentStatus {
        let fault = self.attached.port.fault.get();
        let origin = match self.origin {
            Origin::Created => "created",
            Origin::Adopted => "adopted",
            Origin::Passed => "passed",
            Origin::Inside => "in another namespace",
        };
        let carrier = if self.attached.carrier.load(Ordering::Relaxed) { "up" } else { "down" };
        let mut features = Vec::new();
        if self.attached.queues.iter().all(|queue| queue.header > 0) {
            features.push("vnet_hdr".to_owned());
            features.extend(self.accepts.to_string().split(',').map(str::to_owned));
        }
        let (peer, carrier) = match (fault, self.attached.is_up()) {
            (Some(_), _) => (Peer::Faulted, carrier),
            (None, true) => (Peer::Running, carrier),
            (None, false) => (Peer::Waiting, "down: it is set down (ip link set … up)"),
        };
        AttachmentStatus {
            peer,
            detail: format!("interface {} ({origin}), carrier {carrier}", self.name),
            hint: self.for_all.then(|| FOR_ALL.to_owned()),
            lack: None,
            features,
            queues: pairs("tap", self.attached.queues.len(), [0; 2], &self.attached.port),
        }
    }

    fn set_mtu(&mut self, mtu: u32) -> Result<(), String> {
        match (&self.interface, &self.netns) {
            (_, Some(netns)) => netns::set_mtu(netns, &self.name, mtu).map_err(failed_at(&self.name, NO_MTU)),
            (Some(interface), None) => interface.set_mtu(mtu).map_err(failed_at(&self.name, NO_MTU)),
            (None, None) => Err(mtu_of_passed(&self.name)),
        }
    }

    fn look(&self) {
        self.attached.follow();
    }

    fn set_link(&mut self, up: bool) -> Result<(), String> {
        let queue = self.attached.queues.first().ok_or("it has no queues")?;
        sys::set_carrier(&queue.fd, up).map_err(|e| {
            format!("tap {}: cannot put its carrier {}: {e}", self.name, if up { "up" } else { "down" })
        })?;
        self.attached.carrier.store(up, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.watcher = None;
        self.attached.take_back();
    }
}
