//! How a TAP port comes by its descriptors, and what can go wrong on the way.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{fcntl_getfl, fcntl_setfl, OFlags};

use super::inside::{tap_in, TapIn};
use super::sys::{self, Attach, NoQueue};
use crate::host::interface::{is_interface, MAX_NAME};
use crate::port::MAX_QUEUES;

/// Where the interface comes from.
#[derive(Debug)]
pub enum TapSource {
    /// The interface of this name in the calling thread's network namespace: made if there is none,
    /// adopted if there is one.
    Name(String),
    /// Descriptors of an interface's queues, opened by another process.
    Fds(Vec<OwnedFd>),
    /// An interface in another network namespace, with one queue.
    Inside(TapIn),
}

/// Why a TAP port could not be started.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// Not a name that an interface can have.
    #[error("tap: {0:?} is no interface name: 1 to {MAX_NAME} bytes without '/', ':', '%' and white space")]
    BadName(String),
    /// Too many queues, or none.
    #[error("tap {name}: {queues} queues are not possible: 1 to {MAX_QUEUES}")]
    BadQueues {
        /// The interface.
        name: String,
        /// Queues asked for.
        queues: usize,
    },
    /// The number of queues differs from that of the descriptors.
    #[error("tap: {queues} queues, but {fds} descriptors were passed: there must be one for each")]
    FdCount {
        /// Queues asked for.
        queues: usize,
        /// Descriptors passed.
        fds: usize,
    },
    /// The driver cannot be opened.
    #[error("tap: /dev/net/tun: {0}; load the module (modprobe tun) or pass the device into the container")]
    NoDriver(#[source] io::Error),
    /// The interface can neither be made nor adopted.
    #[error("tap {name}: queue {queue} cannot be attached: {source}; {hint}")]
    Attach {
        /// The interface.
        name: String,
        /// Number of the queue.
        queue: usize,
        /// What to do about it.
        hint: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// It cannot be made or taken in another namespace.
    #[error("tap {name}: {source}")]
    Inside {
        /// The interface.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// A descriptor that belongs to something else.
    #[error("tap: passed descriptor {index} {what}; open it with IFF_TAP, IFF_NO_PI and IFF_VNET_HDR")]
    WrongFd {
        /// Place of the descriptor.
        index: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// A step of the setting-up failed.
    #[error("tap {name}: {step}: {source}")]
    System {
        /// The interface.
        name: String,
        /// What was being done.
        step: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The MTU of an interface that another process made and passed.
    #[error("tap {0}: mtu= does not apply to passed descriptors: the program that opened them sets the MTU (ip link set {0} mtu …)")]
    MtuOfPassed(String),
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
pub(super) fn open_by_name(name: String, queues: usize) -> Result<OpenedTap, TapError> {
    if !is_interface(&name) {
        return Err(TapError::BadName(name));
    }
    if queues == 0 || queues > MAX_QUEUES {
        return Err(TapError::BadQueues { name, queues });
    }
    let failed = |queue: usize, source: io::Error| {
        let hint = match source.raw_os_error() {
            Some(libc::EPERM) => "it takes CAP_NET_ADMIN, or an interface made for this user (ip tuntap add … user …)",
            Some(libc::EBUSY) => "another program has it open",
            Some(libc::EINVAL) => {
                "an interface of that name exists and is no TAP, or is not made for several queues (multi_queue)"
            }
            _ => "see the kernel's log",
        };
        TapError::Attach { name: name.clone(), queue, hint, source }
    };
    let refused = |queue: usize| {
        let failed = &failed;
        move |why: NoQueue| match why {
            NoQueue::Driver(source) => TapError::NoDriver(source),
            NoQueue::Attach(source) => failed(queue, source),
        }
    };
    let is = |e: &NoQueue, errno: i32| matches!(e, NoQueue::Attach(e) if e.raw_os_error() == Some(errno));

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
            (adopted.map_err(refused(0))?, Origin::Adopted)
        }
        Err(e) => return Err(refused(0)(e)),
    };
    how.create = false;
    let for_all = first.for_all;
    let mut fds = vec![first.fd];
    for queue in 1..queues {
        fds.push(sys::queue(&name, how).map_err(refused(queue))?.fd);
    }
    Ok(OpenedTap { name, origin, fds, vnet_header: true, for_all })
}

/// Makes or takes an interface in another namespace.
pub(super) fn open_inside(wanted: &TapIn) -> Result<OpenedTap, TapError> {
    let name = wanted.name.clone();
    let fd = tap_in(wanted).map_err(|source| TapError::Inside { name: name.clone(), source })?;
    Ok(OpenedTap { name, origin: Origin::Inside, fds: vec![fd], vnet_header: true, for_all: false })
}

/// Looks at descriptors that another process has opened.
pub(super) fn take_passed(fds: Vec<OwnedFd>, queues: usize) -> Result<OpenedTap, TapError> {
    if queues != fds.len() {
        return Err(TapError::FdCount { queues, fds: fds.len() });
    }
    if queues == 0 || queues > MAX_QUEUES {
        return Err(TapError::BadQueues { name: "(passed)".to_owned(), queues });
    }
    let mut name = String::new();
    let mut vnet_header = true;
    for (index, fd) in fds.iter().enumerate() {
        let wrong = |what| TapError::WrongFd { index, what };
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
