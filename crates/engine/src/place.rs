//! Which processor does what.

use std::io;

/// Pins the calling thread to processor `cpu`.
///
/// # Errors
/// If there is no such processor or this process may not use it.
pub fn pin(cpu: usize) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    if cpu >= rustix::thread::CpuSet::MAX_CPU {
        return Err(io::Error::other(format!("there is no processor {cpu}")));
    }
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set)
        .map_err(|e| io::Error::other(format!("cannot pin a thread to processor {cpu}: {e}")))
}
