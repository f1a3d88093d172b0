//! A descriptor in reserve, for the moment when no other is left.
//!
//! Theory of operation. A listener that cannot accept for the lack of a descriptor (EMFILE, ENFILE) stays
//! readable: a thread that waits for it spins, or leaves its clients waiting for an unknown time. So the
//! process keeps one descriptor without other use. When no other one is left, it closes that descriptor,
//! accepts the client with it, disconnects the client, and takes the reserve again. If another thread is
//! faster, or the limit was lowered below the reserve, the listener's owner has to pause.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

use rustix::event::{eventfd, EventfdFlags};
use rustix::io::Errno;
use rustix::net::{accept_with, SocketFlags};

static RESERVE: Mutex<Option<OwnedFd>> = Mutex::new(None);
static TURNED_AWAY: AtomicU64 = AtomicU64::new(0);

/// Takes the reserve, unless it is there: before the first client may come.
pub fn keep() {
    let mut reserve = crate::lock(&RESERVE);
    if reserve.is_none() {
        // Where there is none, `turn_away` tries again.
        *reserve = eventfd(0, EventfdFlags::CLOEXEC).ok();
    }
}

/// Accepts a client. Not while another one is turned away, in the place that the reserve is to have again.
///
/// # Errors
/// As of the system's call.
pub fn accept(listener: &UnixListener) -> io::Result<UnixStream> {
    let _reserve = crate::lock(&RESERVE);
    listener.accept().map(|(stream, _)| stream)
}

/// Clients that were hung up on because there was no descriptor for them.
pub fn turned_away() -> u64 {
    TURNED_AWAY.load(Ordering::Relaxed)
}

/// Behind an `accept` at `listener`, which does not wait, that has failed with `error`: hangs up on the
/// client that waits there, if it failed for the lack of descriptors. How many that were: none if no client
/// waits (the system looks for a descriptor before it looks for a client). `None`: it failed otherwise, or no
/// client could be turned away, and the listener is still readable. `hang_up` is called before the client's
/// connection is closed: under a lock, so it must not wait.
pub fn turn_away(listener: impl AsFd, error: &io::Error, hang_up: impl FnOnce(&OwnedFd)) -> Option<u64> {
    if !matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE)) {
        return None;
    }
    // Under the lock: no other thread of ours takes the place that becomes free.
    let mut reserve = crate::lock(&RESERVE);
    drop(reserve.take());
    let client = accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
    let turned_away = match &client {
        Ok(client) => {
            hang_up(client);
            Some(1)
        }
        Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Some(0),
        Err(_) => None,
    };
    drop(client);
    *reserve = eventfd(0, EventfdFlags::CLOEXEC).ok();
    drop(reserve);
    if turned_away != Some(0) {
        tracing::error!("there is no descriptor left ({error}): clients are turned away; raise the limit (LimitNOFILE= of the unit)");
    }
    TURNED_AWAY.fetch_add(turned_away.unwrap_or(0), Ordering::Relaxed);
    turned_away
}
