//! A look at the descriptors that wait at a connection, in the process that takes it.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{getpeername, AddressFamily, RecvFlags, SocketType};

use crate::mem::{is_eventfd, is_memory, link_name};
use crate::open::passing::{self, MAX_FDS};

/// Which descriptors may pass.
#[derive(Clone, Copy, Debug)]
pub struct WantedFds {
    /// How many.
    pub most: usize,
    /// Of any file: the operator trusts their sender.
    pub any: bool,
    /// Of connected stream sockets of this host: their owner may write, and hang up ([`super::hang_up()`]), without waiting.
    pub sockets: bool,
}

/// Why no descriptor passes.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// One is neither memory nor an eventfd; what the kernel calls it.
    #[error("{0} is neither memory nor an eventfd")]
    Stranger(String),
    /// More than may pass came.
    #[error("{came} descriptors came along; {most} at most can be taken")]
    TooMany {
        /// So many came.
        came: u64,
        /// So many may.
        most: usize,
    },
    /// Some were lost.
    #[error("descriptors are missing: there was no room for all of them (RLIMIT_NOFILE)")]
    Cut,
    /// There is no door to look at them.
    #[error("the descriptors cannot be checked: {0}")]
    NoDoor(String),
}

/// What a look has found.
pub(super) struct Look {
    pub(super) good: Vec<OwnedFd>,
    /// Closing them may wait for others.
    pub(super) strangers: Vec<OwnedFd>,
    pub(super) verdict: Result<(), Why>,
}

/// Whether `fd` is a connected stream socket of this host.
fn is_connected(fd: &OwnedFd) -> bool {
    socket_domain(fd) == Ok(AddressFamily::UNIX)
        && socket_type(fd) == Ok(SocketType::STREAM)
        && getpeername(fd).is_ok()
}

/// Looks, in this process.
pub(super) fn see(connection: BorrowedFd, wanted: WantedFds) -> io::Result<Look> {
    let got = passing::receive(connection, &mut [], MAX_FDS, RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
    let came = got.fds.len();
    let passes =
        |fd: &OwnedFd| wanted.any || is_memory(fd) || is_eventfd(fd) || wanted.sockets && is_connected(fd);
    let (good, strangers): (Vec<_>, Vec<_>) = got.fds.into_iter().partition(passes);
    let verdict = match strangers.first() {
        Some(first) => Err(Why::Stranger(link_name(first.as_fd()))),
        None if got.cut => Err(Why::Cut),
        None if came > wanted.most => Err(Why::TooMany { came: came as u64, most: wanted.most }),
        None => Ok(()),
    };
    Ok(Look { good, strangers, verdict })
}
