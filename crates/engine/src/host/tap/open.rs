//! How a TAP port comes by its descriptors, and what can go wrong on the way.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{fcntl_getfl, fcntl_setfl, OFlags};

use super::sys::{self, Attach};
use crate::host::netns::{inside, set_up};
use crate::host::nic::{check_name, check_queues};
pub use crate::sandbox::open::broker::TapIn;
use crate::sandbox::open::broker::{have_done, obtain, Refusal, Request};

/// Where the interface comes from.
pub enum TapSource {
    /// The interface of this name in the calling thread's network namespace: made if there is none,
    /// adopted if there is one.
    Name(String),
    /// Descriptors of an interface's queues, opened by another process.
    Fds(Vec<OwnedFd>),
    /// An interface in another network namespace, with one queue.
    Inside(TapIn),
}

/// How we came by the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Created,
    Adopted,
    Passed,
    /// In another namespace.
    Inside,
}

/// The interface's queues and what is known of it.
pub(super) struct OpenedTap {
    pub(super) name: String,
    pub(super) origin: Origin,
    pub(super) fds: Vec<OwnedFd>,
    pub(super) vnet_header: bool,
    /// Any local user may attach a queue as well.
    pub(super) for_all: bool,
}

/// Makes the interface, or adopts the one that is there.
pub(super) fn open_by_name(name: String, queues: usize) -> Result<OpenedTap, String> {
    check_name("tap", &name)?;
    check_queues("tap", &name, queues)?;
    let refused = |queue: usize, Refusal { error, step }: Refusal| {
        if step == sys::DRIVER {
            return format!(
                "tap: /dev/net/tun: {error}; load the module (modprobe tun) or pass the device into the container"
            );
        }
        let hint = match error.raw_os_error() {
            Some(libc::EPERM) => "it takes CAP_NET_ADMIN, or an interface made for this user (ip tuntap add … user …)",
            Some(libc::EBUSY) => "another program has it open",
            Some(libc::EINVAL) => {
                "an interface of that name exists and is no TAP, or is not made for several queues (multi_queue)"
            }
            _ => "see the kernel's log",
        };
        format!("tap {name}: queue {queue} cannot be attached: {error}; {hint}")
    };
    let is = |e: &Refusal, errno: i32| e.step.is_empty() && e.error.raw_os_error() == Some(errno);

    let mut how = Attach { create: true, multi: queues > 1 };
    let (first, origin) = match sys::queue(&name, how) {
        Ok(first) => (first, Origin::Created),
        Err(e) if is(&e, libc::EBUSY) => {
            how.create = false;
            let mut adopted = sys::queue(&name, how);
            // One queue of an interface that may have several will do, too.
            if queues == 1 && adopted.as_ref().is_err_and(|e| is(e, libc::EINVAL)) {
                how.multi = true;
                adopted = sys::queue(&name, how);
            }
            (adopted.map_err(|e| refused(0, e))?, Origin::Adopted)
        }
        Err(e) => return Err(refused(0, e)),
    };
    how.create = false;
    let for_all = first.for_all;
    let mut fds = vec![first.fd];
    for queue in 1..queues {
        fds.push(sys::queue(&name, how).map_err(|e| refused(queue, e))?.fd);
    }
    Ok(OpenedTap { name, origin, fds, vnet_header: true, for_all })
}

/// Makes or takes an interface in another namespace.
pub(super) fn open_inside(wanted: &TapIn) -> Result<OpenedTap, String> {
    let name = wanted.name.clone();
    let fd = tap_in(wanted).map_err(|e| format!("tap {name}: {e}"))?;
    Ok(OpenedTap { name, origin: Origin::Inside, fds: vec![fd], vnet_header: true, for_all: false })
}

/// Looks at descriptors that another process has opened.
pub(super) fn take_passed(fds: Vec<OwnedFd>, queues: usize) -> Result<OpenedTap, String> {
    if queues != fds.len() {
        return Err(format!(
            "tap: {queues} queues, but {} descriptors were passed: there must be one for each",
            fds.len()
        ));
    }
    check_queues("tap", "(passed)", queues)?;
    let mut name = String::new();
    let mut vnet_header = true;
    for (index, fd) in fds.iter().enumerate() {
        let wrong = |what| {
            format!("tap: passed descriptor {index} {what}; open it with IFF_TAP, IFF_NO_PI and IFF_VNET_HDR")
        };
        let identity = sys::identity(fd).map_err(|_| wrong("is not attached to a TAP interface"))?;
        if !identity.is_tap() {
            return Err(wrong("belongs to a TUN interface, which has no Ethernet frames"));
        }
        if identity.has_packet_info() {
            return Err(wrong("puts packet information before each frame"));
        }
        if index > 0 && identity.name != name {
            return Err(wrong("belongs to another interface than the first"));
        }
        vnet_header = identity.has_vnet_header();
        name = identity.name;
        fcntl_getfl(fd)
            .and_then(|flags| fcntl_setfl(fd, flags | OFlags::NONBLOCK))
            .map_err(|_| wrong("cannot be made non-blocking"))?;
    }
    Ok(OpenedTap { name, origin: Origin::Passed, fds, vnet_header, for_all: false })
}

/// Makes the interface, or takes the one that an earlier daemon has left, and brings it up; its one queue.
///
/// # Errors
/// There is no such namespace, another program has the interface, or the system refuses it.
pub fn tap_in(wanted: &TapIn) -> io::Result<OwnedFd> {
    obtain(&Request::TapIn(wanted.clone()), &[], || tap_in_here(wanted))
}

/// [`tap_in`] by this process.
pub(crate) fn tap_in_here(wanted: &TapIn) -> io::Result<OwnedFd> {
    inside(&wanted.netns, || {
        let attach = |create| sys::queue_here(&wanted.name, Attach { create, multi: false });
        let queue = match attach(true) {
            Err(e) if e.error.raw_os_error() == Some(libc::EBUSY) => attach(false),
            made => made,
        }?;
        sys::set_stays(&queue.fd, wanted.stays)?;
        set_up(&wanted.name, wanted.mac, wanted.mtu)?;
        Ok(queue.fd)
    })
}

/// Removes a TAP that no process uses any more.
///
/// # Errors
/// Another program has it, or the system refuses it.
pub fn remove_tap(netns: &Path, name: &str) -> io::Result<()> {
    let request = Request::TapOut { netns: netns.to_owned(), name: name.to_owned() };
    have_done(&request, &[], || remove_tap_here(netns, name))
}

/// [`remove_tap`] by this process.
pub(crate) fn remove_tap_here(netns: &Path, name: &str) -> io::Result<()> {
    inside(netns, || {
        let queue = sys::queue_here(name, Attach { create: false, multi: false })?;
        sys::set_stays(&queue.fd, false)
    })
}
