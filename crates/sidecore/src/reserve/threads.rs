//! The threads of a VMM that a reservation is for, as /proc has them (proc(5)): they run vCPUs, I/O or the
//! kernel's vhost.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::place::{numbered, read_status, thread_name, vcpu_number, Cpus};

/// A thread, and when it started: another one that gets its number later is not taken for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadId {
    pub process: u32,
    pub thread: u32,
    /// In ticks of the kernel's clock since the host's start.
    pub start: u64,
}

impl ThreadId {
    pub fn find(proc: &Path, process: u32, thread: u32) -> Option<ThreadId> {
        let stat = fs::read_to_string(proc.join(format!("{process}/task/{thread}/stat"))).ok()?;
        // Behind the name, which may have anything in it; `state` is the third field, `starttime` the 22nd.
        let start = stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()?;
        Some(ThreadId { process, thread, start })
    }

    pub fn is_there(&self, proc: &Path) -> bool {
        ThreadId::find(proc, self.process, self.thread) == Some(*self)
    }

    /// The processors that it may run on.
    pub fn allowed(&self, proc: &Path) -> Option<Cpus> {
        Cpus::read(&read_status(proc, self.process, self.thread, "Cpus_allowed_list")?)
    }
}

/// A thread that a reservation can be for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    #[serde(flatten)]
    pub id: ThreadId,
    /// As people name it.
    pub title: String,
    /// Number of the vCPU, if it runs one.
    pub vcpu: Option<u32>,
}

/// The threads of process `process`, vCPUs first.
pub fn find(proc: &Path, process: u32) -> Vec<Thread> {
    let vhost = format!("vhost-{process}");
    let thread = |of: u32, thread: usize| {
        let id = ThreadId::find(proc, of, u32::try_from(thread).ok()?)?;
        let name = thread_name(proc, of, id.thread)?;
        let vcpu = vcpu_number(&name);
        let title = match (vcpu, of == process) {
            (Some(number), true) => format!("vCPU {number} (thread {thread})"),
            _ if name == vhost && (of == process || is_kernels(proc, of)) => format!("vhost thread {thread}"),
            // QEMU's objects of kind iothread, with debug-threads=on.
            (None, true) if name.starts_with("IO ") => format!("I/O thread {thread} ({name})"),
            _ => return None,
        };
        Some(Thread { id, title, vcpu })
    };
    let own = numbered(&proc.join(format!("{process}/task")), "");
    let mut threads: Vec<Thread> = own.into_iter().filter_map(|number| thread(process, number)).collect();
    threads.sort_by_key(|thread| thread.vcpu.map_or((1, thread.id.thread), |number| (0, number)));
    // Before Linux 6.4, vhost's threads are processes of the kernel.
    let others =
        numbered(proc, "").into_iter().filter_map(|number| Some((u32::try_from(number).ok()?, number)));
    threads.extend(others.filter(|(of, _)| *of != process).filter_map(|(of, number)| thread(of, number)));
    threads
}

/// Whether the kernel started a process for itself: anybody can name one of theirs as it does.
fn is_kernels(proc: &Path, process: u32) -> bool {
    // kthreadd's.
    read_status(proc, process, process, "PPid").is_some_and(|parent| parent == "2")
}

/// The user whose rights a process has.
pub fn user(proc: &Path, process: u32) -> Option<u32> {
    read_status(proc, process, process, "Uid")?.split_whitespace().nth(1)?.parse().ok()
}

/// What says that another program, such as libvirt, has chosen where a thread runs.
pub fn pinned(proc: &Path, id: &ThreadId) -> Option<String> {
    let groups = fs::read_to_string(proc.join(format!("{}/task/{}/cgroup", id.process, id.thread)));
    if groups.is_ok_and(|text| text.lines().any(|line| line.contains(":/machine"))) {
        return Some("is in the control group of libvirt's machines".to_owned());
    }
    let main = ThreadId { thread: id.process, ..*id }.allowed(proc)?;
    let allowed = id.allowed(proc)?;
    let narrower = !main.0.is_subset(&allowed.0);
    narrower.then(|| format!("is pinned to {allowed}, its process to {main}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reserve::fake_tests::Fake;

    #[test]
    fn vcpus_io_and_vhost_threads_are_found_and_told_from_later_ones() {
        let fake = Fake::new();
        fake.thread(77, 77, "qemu-system-x86", "0-3");
        fake.thread(77, 80, "CPU 1/KVM", "0-3");
        fake.thread(77, 81, "CPU 0/TCG", "2");
        fake.thread(77, 82, "IO iothread0", "0-3");
        fake.thread(77, 83, "vhost-77", "0-3");
        fake.thread(77, 84, "CPU ) R 1/KVM", "0-3");
        fake.thread(90, 90, "vhost-77", "0-3");
        fake.thread(91, 91, "vhost-78", "0-3");
        fake.thread(93, 93, "vhost-77", "0-3");
        fake.write("proc/93/task/93/status", "PPid:\t1\nCpus_allowed_list:\t0-3\n");
        fake.thread(92, 92, "CPU 0/KVM", "0-3");
        let proc = fake.proc();
        let found = find(&proc, 77);
        let titles: Vec<String> = found.iter().map(|thread| thread.title.clone()).collect();
        assert_eq!(
            titles,
            [
                "vCPU 0 (thread 81)",
                "vCPU 1 (thread 80)",
                "I/O thread 82 (IO iothread0)",
                "vhost thread 83",
                "vhost thread 90"
            ]
        );
        assert_eq!((found[0].id.start, found[4].id.process), (1_081, 90));
        assert!(found[0].id.is_there(&proc));
        assert!(!ThreadId { start: 5, ..found[0].id }.is_there(&proc), "its number is another one's now");
        assert_eq!(ThreadId::find(&proc, 77, 84).map(|id| id.start), Some(1_084), "whatever its name is");
        assert_eq!((find(&proc, 99), user(&proc, 77), user(&proc, 99)), (vec![], Some(1_000), None));
    }

    #[test]
    fn what_others_pinned_is_known() {
        let fake = Fake::new();
        fake.thread(77, 77, "qemu-system-x86", "0-3");
        fake.thread(77, 80, "CPU 0/KVM", "0-3");
        fake.thread(77, 81, "CPU 1/KVM", "2");
        let id = |thread| ThreadId::find(&fake.proc(), 77, thread).unwrap();
        assert_eq!(pinned(&fake.proc(), &id(80)), None);
        assert_eq!(pinned(&fake.proc(), &id(81)).unwrap(), "is pinned to 2, its process to 0-3");
        fake.write("proc/77/task/80/cgroup", "0::/machine.slice/machine-qemu.scope/libvirt/vcpu0\n");
        assert!(pinned(&fake.proc(), &id(80)).unwrap().contains("libvirt"));
    }
}
