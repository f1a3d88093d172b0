//! The end of a connection that may have unread data.
//!
//! Theory of operation. The process that closes the last reference to a connection also closes the descriptors in its
//! unread messages, and those of connections that wait at a listener. One of them may be the last reference to a socket
//! that lingers (SO_LINGER): its close waits for as long as its sender has chosen. So the daemon first shuts the
//! connection down, after which nothing is added to it. If the connection holds anything, a door gets a duplicate, so
//! that the daemon's reference is not the last one. The door never closes the connection; it *ends*, and the sockets of
//! a process that ends do not linger. It ends a second after the first connection ([`HOLD`]), or with the [`MOST`]th,
//! and the next connection starts another door. So clients that do nothing else cost one process a second. A connection
//! that is on its way to a door when that door ends is closed by that end, too.
//!
//! If no door can be started, [`MOST`] connections wait for the next door. Further ones are closed here, however long
//! that takes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::io::{ioctl_fionread, Errno};
use rustix::net::{shutdown, Shutdown};

use super::line::{another, LINE};
use super::record::{say, KEEP};

/// How long a door keeps connections before it ends with them.
pub(super) const HOLD: Duration = Duration::from_secs(1);
/// How many it keeps at most, and how many wait where there is none.
pub(super) const MOST: usize = 128;

static KEPT: AtomicU64 = AtomicU64::new(0);
static KEEPER: Mutex<Keeper> = Mutex::new(Keeper { door: None, waiting: Vec::new() });

/// The way to a door that may have ended by now, and what could not be given to one.
struct Keeper {
    door: Option<OwnedFd>,
    waiting: Vec<OwnedFd>,
}

/// Connections and listeners that were not closed here.
pub(super) fn kept() -> u64 {
    KEPT.load(Ordering::Relaxed)
}

/// Shuts `connection`; the close that follows does not wait.
pub fn hang_up(connection: impl AsFd) {
    // The other end may have shut it; nothing is added then, either.
    let _ = shutdown(&connection, Shutdown::Both);
    if !matches!(ioctl_fionread(&connection), Ok(0)) {
        keep(connection);
    }
}

/// The close of `socket` that follows will not be the last.
pub fn keep(socket: impl AsFd) {
    if LINE.get().is_none() {
        return;
    }
    KEPT.fetch_add(1, Ordering::Relaxed);
    let mut keeper = KEEPER.lock().unwrap_or_else(PoisonError::into_inner);
    keeper.keep(socket.as_fd());
}

impl Keeper {
    fn keep(&mut self, socket: BorrowedFd) {
        if self.pass(socket).is_err() {
            if self.waiting.len() < MOST {
                self.waiting.extend(socket.try_clone_to_owned());
            }
            return;
        }
        while let Some(waiting) = self.waiting.pop() {
            if self.pass(waiting.as_fd()).is_err() {
                self.waiting.push(waiting);
                return;
            }
        }
    }

    /// Gives a duplicate to a door, a new one if the last has ended.
    fn pass(&mut self, socket: BorrowedFd) -> io::Result<()> {
        if let Some(door) = &self.door {
            match say(door, KEEP, 0, "", &[socket]) {
                Err(e) if ended(&e) => {}
                said => return said,
            }
        }
        // Its descriptor may be the one that the next way needs.
        self.door = None;
        say(self.door.insert(another()?), KEEP, 0, "", &[socket])
    }
}

fn ended(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN))
}
