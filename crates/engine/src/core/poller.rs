//! How an idle core sleeps and what wakes it: an epoll set with the mailbox, the events of its tasks: kick
//! eventfds, descriptors of host interfaces.
//!
//! Kicks are watched edge-triggered and never read: an eventfd belongs to the VMM, which could make it
//! block. The set watches duplicates of its own, so that a task may close its descriptor at any time.
//!
//! When cold tasks asked to be looked at: a heap.
//!
//! A task that is looked at earlier, or leaves, has its entry left behind: the code that takes an entry out
//! compares its time with what the task at that place asked for last.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use super::mailbox::TaskId;

/// Most events handled per wake-up; the others are still there at the next one.
const EVENTS: usize = 32;
/// Bits of an event's word that are the place of its task on the core; the others are its number, from 1 on.
const PLACE_BITS: u32 = 20;

/// An epoll set.
pub(super) struct Poller {
    epoll: OwnedFd,
}

/// A descriptor that is being watched.
pub(super) struct Watched {
    fd: OwnedFd,
}

impl Poller {
    pub(super) fn new(mailbox: BorrowedFd<'_>) -> io::Result<Poller> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, mailbox, EventData::new_u64(0), EventFlags::IN)?;
        Ok(Poller { epoll })
    }

    /// Wakes for `fd` from now on. A descriptor that cannot be waited for (its VMM passed a plain file) is
    /// left out: its guest is served late, and no other is hurt. What comes back is the task's number and its
    /// place.
    pub(super) fn watch(&self, id: TaskId, place: usize, fd: BorrowedFd<'_>) -> Option<Watched> {
        let fd = rustix::io::fcntl_dupfd_cloexec(fd, 0).ok()?;
        let word =
            (id.0 << PLACE_BITS) | u64::try_from(place).ok().filter(|place| *place < 1 << PLACE_BITS)?;
        epoll::add(&self.epoll, &fd, EventData::new_u64(word), EventFlags::IN | EventFlags::ET).ok()?;
        Some(Watched { fd })
    }

    /// Wakes for it no longer.
    pub(super) fn unwatch(&self, watch: &Watched) {
        // Closing would not do: the set knows the open file, which the task may still have open.
        let _ = epoll::delete(&self.epoll, watch.fd.as_fd());
    }

    /// Sleeps until something happens, at most `longest`; calls `woken` for each task that woke us.
    /// False if nothing happened.
    pub(super) fn wait(&self, longest: std::time::Duration, mut woken: impl FnMut(TaskId, usize)) -> bool {
        let blank = epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        let mut events = [blank; EVENTS];
        let timeout = rustix::event::Timespec {
            tv_sec: i64::try_from(longest.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(longest.subsec_nanos()),
        };
        match epoll::wait(&self.epoll, &mut events[..], Some(&timeout)) {
            Ok(n) => {
                for event in events.iter().take(n) {
                    // A copy: the event is packed.
                    let data = event.data;
                    let word = data.u64();
                    if word != 0 {
                        let place = (word & ((1 << PLACE_BITS) - 1)) as usize;
                        woken(TaskId(word >> PLACE_BITS), place);
                    }
                }
                n > 0
            }
            Err(Errno::INTR) => true,
            Err(error) => {
                tracing::error!("epoll_wait: {error}");
                true
            }
        }
    }
}

/// Times, in nanoseconds of the core's clock, and places of tasks.
#[derive(Debug, Default)]
pub(super) struct Timers(BinaryHeap<Reverse<(u64, usize)>>);

impl Timers {
    /// The task at `place` is to be looked at when it is `due`.
    pub(super) fn add(&mut self, due: u64, place: usize) {
        self.0.push(Reverse((due, place)));
    }

    /// The first entry, if its time has come.
    pub(super) fn due(&mut self, now: u64) -> Option<(u64, usize)> {
        let Reverse((due, _)) = self.0.peek()?;
        if *due > now {
            return None;
        }
        self.0.pop().map(|Reverse(entry)| entry)
    }

    /// When the first one comes.
    pub(super) fn first(&self) -> Option<u64> {
        self.0.peek().map(|Reverse((due, _))| *due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_come_in_the_order_of_their_times() {
        let mut timers = Timers::default();
        assert_eq!((timers.first(), timers.due(u64::MAX)), (None, None));
        for (due, place) in [(30, 1), (10, 2), (20, 3)] {
            timers.add(due, place);
        }
        assert_eq!((timers.first(), timers.due(9), timers.due(10)), (Some(10), None, Some((10, 2))));
        assert_eq!((timers.due(25), timers.due(25), timers.due(99)), (Some((20, 3)), None, Some((30, 1))));
    }
}
