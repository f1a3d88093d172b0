//! The kernel's own threads that carry out what io_uring cannot do at once: reads that have to wait for a disk, flushes.
//!
//! They belong to the thread that asks, an I/O core mostly, and may run wherever the process may: on the I/O core's processor,
//! too. So each I/O core says once, as one of its first acts, where they run and how many there are at most.
//!
//! Invariant of the `unsafe` here: a set of processors is plain bits, all zero is the empty one, and only bits inside it are set.

use io_uring::IoUring;

use crate::place;

/// Most workers of a thread: of those that read and write files, and of all others. A request that waits for a file system or its
/// server occupies one, so there are enough for many disks that do not answer: a ring asks for a few (`transfer`).
const MOST: u32 = 512;

/// Has the workers of the calling thread, from now on, run on the processors that no I/O core has, if there are any, and be bounded in number.
/// Nothing where the system has no io_uring for us: then there are none.
pub fn keep_workers_away() {
    // The setting is the thread's, and outlives this ring (io_uring_register(2), IORING_REGISTER_IOWQ_AFF).
    let Ok(ring) = IoUring::new(1) else { return };
    // SAFETY: all zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let others = place::others();
    for cpu in others.iter().filter(|cpu| **cpu < 8 * size_of::<libc::cpu_set_t>()) {
        // SAFETY: the bit is inside the set.
        unsafe { libc::CPU_SET(*cpu, &mut set) };
    }
    if !others.is_empty() {
        // Before Linux 5.14 they go where they like.
        let _ = ring.submitter().register_iowq_aff(&set);
    }
    let _ = ring.submitter().register_iowq_max_workers(&mut [MOST, MOST]);
}
