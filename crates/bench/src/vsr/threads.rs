//! Threads of this process, by their numbers: scheduling class, processors, and what they had of those.
//!
//! `chrt` (util-linux) sets classes, as an operator does. As long as the kernel admits reservations by their
//! sum it has every thread with one run on all processors. A benchmark needs to know on which, so it turns
//! that off for a while ([`Pinned`]).

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::thread::{sched_setaffinity, CpuSet, Pid};

use super::super::peers;
use crate::prelude::*;

/// A scheduling class of the kernel's (sched(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// `SCHED_OTHER`.
    Fair,
    /// `SCHED_FIFO`.
    Fifo(u8),
    /// `SCHED_DEADLINE`: so much of each period.
    Deadline { runtime: Duration, period: Duration },
}

impl Class {
    /// A part of each period.
    pub fn reserved(share: f64, period: Duration) -> Class {
        Class::Deadline { runtime: period.mul_f64(share), period }
    }
}

/// Where the kernel keeps what real-time threads together may have of a second; -1: no limit, and no
/// admission.
const RUNTIME: &str = "/proc/sys/kernel/sched_rt_runtime_us";

/// Waits until its input ends, then puts the limit `$1` back into the file `$0`. The time of reservations
/// that have ended counts as taken until their period is over, so it tries for two seconds.
const GUARD: &str = r#"
    read -r _
    for _ in $(seq 100); do
        echo "$1" 2>&- >"$0" && exit
        sleep 0.02
    done
    echo "$0 was $1, and stays $(cat "$0"): write it back" >&2
"#;

/// As long as this is, threads with reservations can be pinned: the kernel does not check that reservations
/// fit.
///
/// The limit is the whole machine's, so a process of its own ([`GUARD`]) puts it back, however this one ends.
pub struct Pinned(Child);

impl Pinned {
    /// Turns the check off.
    ///
    /// # Errors
    /// It is not allowed.
    pub fn new() -> Result<Pinned> {
        let failed = |e: std::io::Error| format!("{RUNTIME}: {e}: reservations need root");
        let before = fs::read_to_string(RUNTIME).map_err(failed)?;
        let mut guard = Command::new("sh");
        guard.args(["-c", GUARD, RUNTIME, before.trim()]).stdin(Stdio::piped()).stdout(Stdio::null());
        // In a group of its own: a terminal's Ctrl-C is not for it.
        let pinned = Pinned(guard.process_group(0).spawn().map_err(|e| format!("sh: {e}"))?);
        fs::write(RUNTIME, "-1").map_err(failed)?;
        Ok(pinned)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // `wait` closes the input first.
        if let Err(error) = self.0.wait() {
            eprintln!("{RUNTIME}: {error}");
        }
    }
}

/// Gives a thread this class on these processors.
///
/// # Errors
/// It is not allowed.
pub fn place(thread: u32, class: Class, cpus: &[usize]) -> Result<()> {
    let mut only = CpuSet::new();
    cpus.iter().for_each(|cpu| only.set(*cpu));
    let pid = i32::try_from(thread).ok().and_then(Pid::from_raw).ok_or("no number of a thread")?;
    sched_setaffinity(Some(pid), &only).map_err(text)?;
    let schedule = peers::schedule;
    match class {
        Class::Fair => schedule(thread, &["-o", "-p", "0"]),
        Class::Fifo(priority) => schedule(thread, &["-f", "-p", &priority.to_string()]),
        Class::Deadline { runtime, period } => {
            let [runtime, period] = [runtime, period].map(|time| time.as_nanos().to_string());
            // What the thread starts has no reservation: else the kernel would let it start nothing.
            let words = ["-R", "-d", "--sched-runtime", &runtime, "--sched-period", &period];
            schedule(thread, &[&words[..], &["--sched-deadline", &period, "-p", "0"]].concat())
        }
    }
}

/// Nanoseconds that these threads have had processors so far.
pub fn ran(threads: &[u32]) -> u64 {
    threads.iter().map(|thread| peers::ran(std::process::id(), *thread)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_known_by_its_number() {
        std::thread::Builder::new()
            .spawn(|| {
                sidecore_driver::load::pin(0).unwrap();
                let before = ran(&[this_thread()]);
                let start = std::time::Instant::now();
                while start.elapsed() < Duration::from_millis(20) {}
                assert!(ran(&[this_thread()]) > before);
            })
            .unwrap()
            .join()
            .unwrap();
        assert_eq!(ran(&[u32::MAX]), 0);
    }
}
