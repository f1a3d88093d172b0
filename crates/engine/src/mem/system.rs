//! Calls of the system for which libraries have none. How the kernel schedules a thread: sched_setattr(2),
//! the only call that sets SCHED_DEADLINE.
//!
//! Invariant of the `unsafe` here: the kernel reads or writes what is lent to it for the call, of the size
//! that is given, and keeps no pointer to it. `SchedulingPolicy` is the call's `struct sched_attr` in its
//! first version, which all kernels know that this program runs on.
//!
//! Locks of whole files that belong to the open file, not to the process (`F_OFD_SETLK`, fcntl(2)): the
//! holder of the descriptor has the lock, and it goes with the last one. Requests that the kernel still
//! carries out hold the file open, too, so the lock of a process that was killed goes when the last of them
//! is over.
//!
//! The NUMA node of memory.
//!
//! Options of sockets. How far a stream socket has been looked at: the one number that
//! the kernel keeps beside its bytes. Whether its peers may send descriptors.
//!
//! Theory of operation. With SO_PEEK_OFF (unix(7), socket(7)) each look (`MSG_PEEK`) begins where the last
//! one ended, and taking bytes out moves the place back by as many. So a message that was looked at as a
//! whole leaves its length there, and taking it leaves zero: a process that inherits the socket can tell
//! whether a message that was answered is still to be taken.
//!
//! With SO_PASSRIGHTS switched off (Linux 6.16) a sender of descriptors gets EPERM, and what is accepted from
//! a listening socket has the same.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use libc::{c_int, socklen_t};
use serde::{Deserialize, Serialize};

use super::piece::Piece;

/// A policy with its parameters (sched(7)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[repr(C)]
pub struct SchedulingPolicy {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

#[allow(clippy::cast_possible_truncation, reason = "48")]
const SIZE: u32 = size_of::<SchedulingPolicy>() as u32;

impl SchedulingPolicy {
    /// SCHED_DEADLINE. Threads that this one makes are ordinary ones: without that flag it could make none.
    pub fn deadline(runtime: Duration, period: Duration) -> SchedulingPolicy {
        let [runtime, period] =
            [runtime, period].map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        let flags = libc::SCHED_FLAG_RESET_ON_FORK.unsigned_abs().into();
        let deadline = period;
        SchedulingPolicy { flags, runtime, deadline, period, ..Self::real_time(libc::SCHED_DEADLINE, 0) }
    }

    /// SCHED_FIFO, SCHED_RR.
    pub fn real_time(policy: i32, priority: u32) -> SchedulingPolicy {
        let (size, policy) = (SIZE, policy.unsigned_abs());
        SchedulingPolicy { size, policy, priority, ..Self::default() }
    }

    /// That of a thread.
    pub fn of(thread: u32) -> io::Result<SchedulingPolicy> {
        let mut policy = SchedulingPolicy::default();
        // SAFETY: as the invariant says.
        done(unsafe { libc::syscall(libc::SYS_sched_getattr, thread, &raw mut policy, SIZE, 0) })?;
        if policy.deadline == 0 {
            // The kernel tells its usual slice of ordinary threads here, and would take it for a wish.
            policy.runtime = 0;
        }
        Ok(policy)
    }

    /// Has the kernel schedule a thread so.
    pub fn apply(&self, thread: u32) -> io::Result<()> {
        // SAFETY: as the invariant says.
        done(unsafe { libc::syscall(libc::SYS_sched_setattr, thread, std::ptr::from_ref(self), 0) })
    }
}

fn done(result: libc::c_long) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Locks all of `file`: for ourselves, or against writers. Never waits.
///
/// # Errors
/// Another process has a lock that keeps this one out (`WouldBlock`), or the system has none.
pub fn lock_file(file: &File, alone: bool) -> io::Result<()> {
    let kind = if alone { libc::F_WRLCK } else { libc::F_RDLCK };
    #[expect(clippy::cast_possible_truncation, reason = "constants of the system's interface")]
    let lock =
        libc::flock { l_type: kind as _, l_whence: libc::SEEK_SET as _, l_start: 0, l_len: 0, l_pid: 0 };
    // SAFETY: the kernel reads `lock`, which outlives the call; the descriptor is open.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    done(result.into()).map_err(|e| match e.raw_os_error() {
        Some(libc::EACCES) => io::ErrorKind::WouldBlock.into(),
        _ => e,
    })
}

/// `get_mempolicy(2)`: the node of the page at an address, instead of a policy.
const MPOL_F_NODE: libc::c_ulong = 1;
const MPOL_F_ADDR: libc::c_ulong = 2;

/// The node of the first page of `piece`, which is found or made if it is not there: for memory that is in
/// use. `None`: the kernel does not tell.
pub fn node_of(piece: &Piece) -> Option<usize> {
    let mut node: libc::c_int = -1;
    let (no_mask, bits) = (std::ptr::null_mut::<libc::c_ulong>(), 0 as libc::c_ulong);
    let (at, flags) = (piece.as_ptr(), MPOL_F_NODE | MPOL_F_ADDR);
    // SAFETY: `node` lives until the call is over; the address is only looked up, and one that is not mapped
    // is an error.
    done(unsafe { libc::syscall(libc::SYS_get_mempolicy, &raw mut node, no_mask, bits, at, flags) }).ok()?;
    usize::try_from(node).ok()
}

/// Bytes of one `c_int`.
#[expect(clippy::cast_possible_truncation, reason = "four")]
const INT: socklen_t = size_of::<c_int>() as socklen_t;

/// Sets the place from which the next look begins.
///
/// # Errors
/// It is no Unix socket, or the number is absurd.
pub fn set_peeked(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    set(socket, libc::SO_PEEK_OFF, c_int::try_from(bytes).map_err(io::Error::other)?)
}

/// Lets no peer of `socket` send descriptors, where the kernel knows how: none are wanted there. Without it
/// they are dropped unseen, since no read has room for them.
pub fn take_no_descriptors(socket: impl AsFd) {
    /// As asm-generic/socket.h has it; x86 and ARM have no other.
    const SO_PASSRIGHTS: c_int = 83;
    // Before Linux 6.16 it does not exist.
    let _ = set(socket, SO_PASSRIGHTS, 0);
}

fn set(socket: impl AsFd, option: c_int, value: c_int) -> io::Result<()> {
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `value` lives through the call and is of the size that is given.
    done(unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, (&raw const value).cast(), INT) }.into())
}

/// That place; zero if it was never set.
///
/// # Errors
/// It is no Unix socket.
pub fn peeked(socket: impl AsFd) -> io::Result<usize> {
    let (mut value, mut size): (c_int, socklen_t) = (0, INT);
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: both locals live through the call, and `size` is that of `value`.
    let result = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEEK_OFF, (&raw mut value).cast(), &raw mut size)
    };
    done(result.into())?;
    Ok(usize::try_from(value).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_scheduled_as_it_was_told() {
        let before = SchedulingPolicy::of(0).unwrap();
        assert_eq!((before.policy, before.runtime), (libc::SCHED_OTHER.unsigned_abs(), 0));
        let milder = SchedulingPolicy { nice: before.nice + 1, ..before };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                milder.apply(0).unwrap();
                assert_eq!(SchedulingPolicy::of(0).unwrap(), milder);
            });
        });
        assert_eq!(SchedulingPolicy::of(0).unwrap(), before);
        assert_eq!(SchedulingPolicy::of(u32::MAX / 4).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        let wrong = SchedulingPolicy::deadline(Duration::from_millis(2), Duration::from_millis(1));
        assert_eq!(wrong.apply(0).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }
}

#[cfg(test)]
mod nodes_tests {
    use super::*;
    use crate::mem::Mapping;

    #[test]
    fn memory_is_on_some_node() {
        let store = Mapping::anonymous(4096).unwrap();
        let piece = store.piece(0, 64).unwrap();
        let node = node_of(&piece);
        // Kernels without NUMA have no such call.
        let known = std::path::Path::new("/proc/self/numa_maps").exists();
        assert_eq!(node.is_some(), known, "{node:?}");
    }
}

#[cfg(test)]
mod peek_tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use rustix::net::{recv, RecvFlags};

    use super::*;

    #[test]
    fn it_moves_with_looking_and_with_taking() {
        let (mut from, mut to) = UnixStream::pair().unwrap();
        assert_eq!(peeked(&to).unwrap(), 0);
        set_peeked(&to, 0).unwrap();
        from.write_all(&[1; 20]).unwrap();
        from.write_all(&[2; 10]).unwrap();
        let mut bytes = [0; 25];
        let look = |bytes: &mut [u8]| recv(&to, bytes, RecvFlags::PEEK).unwrap().0;
        assert_eq!((look(&mut bytes), peeked(&to).unwrap()), (25, 25));
        assert_eq!((look(&mut bytes), peeked(&to).unwrap()), (5, 30));
        set_peeked(&to, 20).unwrap();
        to.read_exact(&mut bytes[..20]).unwrap();
        assert_eq!((peeked(&to).unwrap(), bytes[19]), (0, 1));
    }
}
