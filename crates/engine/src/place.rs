//! Which processor does what.

use std::io;

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

/// The processors that the calling thread may use.
fn usable() -> Vec<usize> {
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
        // On a thread of its own, whose last pin nobody minds.
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
