//! A TAP in another network namespace.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use super::sys::{queue_here, set_stays, Attach, NoQueue};
use crate::host::netns::{inside, set_up};
pub use crate::open::broker::TapIn;
use crate::open::broker::{have_done, obtain, Request};

/// Makes the interface, or takes the one that an earlier daemon has left, and brings it up; its one queue.
///
/// # Errors
/// There is no such namespace, another program has the interface, or the system refuses it.
pub fn tap_in(wanted: &TapIn) -> io::Result<OwnedFd> {
    obtain(&Request::TapIn(wanted.clone()), &[], || tap_in_here(wanted))
}

fn plain(why: NoQueue) -> io::Error {
    match why {
        NoQueue::Driver(e) | NoQueue::Attach(e) => e,
    }
}

/// The same, by this process.
pub(crate) fn tap_in_here(wanted: &TapIn) -> io::Result<OwnedFd> {
    inside(&wanted.netns, || {
        let attach = |create| queue_here(&wanted.name, Attach { create, multi: false });
        let queue = match attach(true) {
            Err(NoQueue::Attach(e)) if e.raw_os_error() == Some(libc::EBUSY) => attach(false),
            made => made,
        };
        let queue = queue.map_err(plain)?;
        set_stays(&queue.fd, wanted.stays)?;
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

/// The same, by this process.
pub(crate) fn remove_tap_here(netns: &Path, name: &str) -> io::Result<()> {
    inside(netns, || {
        let queue = queue_here(name, Attach { create: false, multi: false }).map_err(plain)?;
        set_stays(&queue.fd, false)
    })
}
