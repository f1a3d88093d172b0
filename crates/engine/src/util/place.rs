//! Which processor does what.
//!
//! An I/O core has its processor to itself. The main thread leaves the I/O cores' processors ([`leave`])
//! before it makes any other thread or process, and these inherit its affinity. If no processor would be left
//! (there is only one, or all are I/O cores'), all threads share, and `show cores` says so.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::OnceLock;

use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};

/// Pins the calling thread to processor `cpu`.
///
/// # Errors
/// If there is no such processor or this process may not use it.
pub fn pin(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    if cpu < CpuSet::MAX_CPU {
        set.set(cpu);
    }
    // No processor at all is refused as one that is not there (sched_setaffinity(2)).
    sched_setaffinity(None, &set).map_err(|e| match e {
        rustix::io::Errno::INVAL => io::Error::other(format!(
            "there is no processor {cpu} that this process may use; it may use {}",
            ranges(&usable())
        )),
        e => io::Error::other(format!("cannot pin a thread to processor {cpu}: {e}")),
    })
}

/// The division of processors: those that this process had at first, and those that are kept for I/O cores.
static LEFT: OnceLock<(Vec<usize>, Vec<usize>)> = OnceLock::new();

/// Whether I/O cores have no processor to themselves, because there is no other one.
static SHARED: AtomicBool = AtomicBool::new(false);

/// Takes `cpus` from the calling thread, and so from all threads and processes that it makes from now on.
/// False: no other processor would be left, so nothing has changed. Said once, at the start of a daemon.
///
/// # Errors
/// What the system says of it.
pub fn leave(cpus: &[usize]) -> io::Result<bool> {
    let before = usable();
    // Later sysfs may be out of reach.
    has_nodes();
    // Until something else is achieved. A core that is not pinned has no processor to itself, but may move
    // away.
    SHARED.store(!cpus.is_empty() || before.len() == 1, Ordering::Relaxed);
    let mut others = CpuSet::new();
    before.iter().filter(|cpu| !cpus.contains(cpu)).for_each(|cpu| others.set(*cpu));
    if others.count() == 0 {
        return Ok(false);
    }
    sched_setaffinity(None, &others)?;
    SHARED.store(before.len() == 1, Ordering::Relaxed);
    // A second call would be of another daemon in this process, of which there is none.
    let _ = LEFT.set((before, cpus.to_vec()));
    Ok(true)
}

/// Whether everything that runs takes time from I/O cores, because they share their processors. False where
/// no processors were to be kept (tests, benchmarks).
pub fn is_shared() -> bool {
    SHARED.load(Ordering::Relaxed)
}

/// Whether processor `cpu` is kept for an I/O core.
pub fn is_kept(cpu: usize) -> bool {
    LEFT.get().is_some_and(|(_, kept)| kept.contains(&cpu))
}

/// The NUMA node of processor `cpu`, if the kernel tells (Documentation/ABI/stable/sysfs-devices-node).
pub fn node_of(cpu: usize) -> Option<usize> {
    number_in(&format!("/sys/devices/system/cpu/cpu{cpu}"), "node").next()
}

/// Whether the machine has more than one NUMA node, so that it matters where memory is.
pub fn has_nodes() -> bool {
    static SEVERAL: OnceLock<bool> = OnceLock::new();
    *SEVERAL.get_or_init(|| number_in("/sys/devices/system/node", "node").nth(1).is_some())
}

/// The numbers N of the files in `folder` that are called `prefix`N.
fn number_in<'p>(folder: &str, prefix: &'p str) -> impl Iterator<Item = usize> + 'p {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(move |entry| entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok())
}

/// The processors of this process that no I/O core has, if any are kept for some.
pub fn others() -> Vec<usize> {
    let Some((before, kept)) = LEFT.get() else { return Vec::new() };
    before.iter().copied().filter(|cpu| !kept.contains(cpu)).collect()
}

/// The processors that the calling thread may use, or might before it left some to I/O cores.
fn usable() -> Vec<usize> {
    if let Some((before, _)) = LEFT.get() {
        return before.clone();
    }
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// Numbers that rise, as `0-3,6`.
fn ranges(numbers: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => parts.push((number, number)),
        }
    }
    let part = |&(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    parts.iter().map(part).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_names_a_wrong_processor_is_told_the_right_ones() {
        assert_eq!(
            ["", "3", "0-1", "0-3,6,8-9"],
            [&[] as &[_], &[3], &[0, 1], &[0, 1, 2, 3, 6, 8, 9]].map(ranges)
        );
        let may = usable();
        // On a thread of its own, whose last pin does not matter.
        std::thread::spawn(move || {
            let text = format!("; it may use {}", ranges(&may));
            for cpu in [CpuSet::MAX_CPU, usize::MAX] {
                let error = pin(cpu).unwrap_err().to_string();
                assert!(
                    error.starts_with(&format!("there is no processor {cpu} ")) && error.ends_with(&text),
                    "{error}"
                );
            }
            may.iter().for_each(|cpu| pin(*cpu).unwrap());
        })
        .join()
        .unwrap();
    }
}
