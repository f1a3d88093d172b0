//! A TAP in another network namespace.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use super::sys::{queue_here, set_stays, Attach, NoQueue};
use crate::host::interface::check_name;
use crate::host::netns::{inside, set_up};
use crate::open::broker::{broker, Request};

/// A TAP that is wanted in a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapIn {
    /// Where the namespace is.
    pub netns: PathBuf,
    /// The interface's name.
    pub name: String,
    /// Its station address, if not one that the kernel chooses.
    pub mac: Option<[u8; 6]>,
    /// Its MTU.
    pub mtu: u32,
    /// Whether it outlives its last user.
    pub stays: bool,
}

/// Makes the interface, or takes the one that an earlier daemon has left, and brings it up; its one queue.
///
/// # Errors
/// There is no such namespace, another program has the interface, or the system refuses it.
pub fn tap_in(wanted: &TapIn) -> io::Result<OwnedFd> {
    let Some(broker) = broker() else { return tap_in_here(wanted) };
    let TapIn { netns, name, mac, mtu, stays } = wanted.clone();
    broker.fd(&Request::TapIn { netns, name, mac, mtu, stays }, &[]).map_err(|refusal| refusal.error)
}

fn plain(why: NoQueue) -> io::Error {
    match why {
        NoQueue::Driver(e) | NoQueue::Attach(e) => e,
    }
}

/// The same, by this process.
pub(crate) fn tap_in_here(wanted: &TapIn) -> io::Result<OwnedFd> {
    check_name(&wanted.name)?;
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
    let Some(broker) = broker() else { return remove_tap_here(netns, name) };
    let request = Request::TapOut { netns: netns.to_owned(), name: name.to_owned() };
    broker.ask(&request, &[]).map(drop).map_err(|refusal| refusal.error)
}

/// The same, by this process.
pub(crate) fn remove_tap_here(netns: &Path, name: &str) -> io::Result<()> {
    check_name(name)?;
    inside(netns, || {
        let queue = queue_here(name, Attach { create: false, multi: false }).map_err(plain)?;
        set_stays(&queue.fd, false)
    })
}
