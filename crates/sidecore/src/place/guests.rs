//! Guests: the processes at the other ends of ports' sockets, their vCPUs' threads, and the nodes of their
//! memory.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Serialize;
use sidecore_engine::util::fault::shown;

use super::judge::Cpus;
use super::machine::numbered;

/// Longest name of a task (proc(5), `comm`).
const LONGEST_NAME: usize = 63;

/// A process with ports.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Guest {
    pub process: u32,
    /// Its program, as the kernel names it.
    pub name: String,
    pub ports: Vec<String>,
    /// None where it has none that can be told from its other threads.
    pub vcpus: Vec<Vcpu>,
    /// KiB of its memory by node; none where that may not be read.
    pub memory_kib: BTreeMap<usize, u64>,
}

/// A thread that runs a guest's processor.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Vcpu {
    pub number: u32,
    pub thread: u32,
    /// The thread's name.
    pub name: String,
    /// The processors that it may run on.
    pub allowed: Cpus,
}

/// The processes of these ports, by what `proc` (which is `/proc`) says of them.
pub fn read(proc: &Path, ports: &[(&str, u32)]) -> Vec<Guest> {
    let mut guests: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for (port, pid) in ports {
        guests.entry(*pid).or_default().push((*port).to_owned());
    }
    let guest = |(process, ports): (u32, Vec<String>)| {
        let at = proc.join(process.to_string());
        // It may have ended meanwhile, or be in a namespace whose numbers are not ours.
        let name = fs::read_to_string(at.join("comm")).ok()?;
        // It names itself, and may name terminals' commands.
        let name = shown(name.trim_end_matches('\n'), LONGEST_NAME);
        let vcpu = |thread: usize| vcpu(proc, process, u32::try_from(thread).ok()?);
        let mut vcpus: Vec<Vcpu> = numbered(&at.join("task"), "").into_iter().filter_map(vcpu).collect();
        vcpus.sort_by_key(|vcpu| vcpu.number);
        let maps = fs::read_to_string(at.join("numa_maps")).unwrap_or_default();
        Some(Guest { process, name, ports, vcpus, memory_kib: memory(&maps) })
    };
    guests.into_iter().filter_map(guest).collect()
}

/// The name of a thread.
pub fn thread_name(proc: &Path, process: u32, thread: u32) -> Option<String> {
    let name = fs::read_to_string(proc.join(format!("{process}/task/{thread}/comm"))).ok()?;
    Some(shown(name.trim_end_matches('\n'), LONGEST_NAME))
}

fn vcpu(proc: &Path, process: u32, thread: u32) -> Option<Vcpu> {
    let name = thread_name(proc, process, thread)?;
    let allowed = Cpus::read(&read_status(proc, process, thread, "Cpus_allowed_list")?)?;
    Some(Vcpu { number: vcpu_number(&name)?, thread, allowed, name })
}

/// The number of the vCPU whose thread has this name: QEMU's, with `-name guest=…,debug-threads=on`, which
/// libvirt gives.
pub fn vcpu_number(name: &str) -> Option<u32> {
    let number = name.strip_prefix("CPU ")?;
    number.strip_suffix("/KVM").or_else(|| number.strip_suffix("/TCG"))?.parse().ok()
}

/// A field of a thread's status.
pub fn read_status(proc: &Path, process: u32, thread: u32, field: &str) -> Option<String> {
    let status = fs::read_to_string(proc.join(format!("{process}/task/{thread}/status"))).ok()?;
    let value = |line: &str| Some(line.strip_prefix(field)?.strip_prefix(':')?.trim().to_owned());
    status.lines().find_map(value)
}

/// KiB by node: of each mapping, pages by node and their size (numa(7)).
fn memory(maps: &str) -> BTreeMap<usize, u64> {
    let mut nodes = BTreeMap::new();
    for line in maps.lines() {
        let words = || line.split(' ');
        let size = words().find_map(|word| word.strip_prefix("kernelpagesize_kB=")?.parse::<u64>().ok());
        for word in words() {
            let Some((node, pages)) = word.strip_prefix('N').and_then(|word| word.split_once('=')) else {
                continue;
            };
            if let (Ok(node), Ok(pages)) = (node.parse::<usize>(), pages.parse::<u64>()) {
                *nodes.entry(node).or_insert(0u64) += pages.saturating_mul(size.unwrap_or(4));
            }
        }
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_counted_by_node() {
        let maps = "7f00 default file=/memfd:ram dirty=600 N0=500 N1=100 kernelpagesize_kB=4\n\
                    7f80 bind:1 file=/hugepages/x huge dirty=3 N1=3 kernelpagesize_kB=2048\n\
                    7fff default stack N=1 Nx=2 N0= kernelpagesize_kB=4\n";
        assert_eq!(memory(maps), [(0, 2_000), (1, 400 + 3 * 2_048)].into());
        assert!(memory("").is_empty());
    }

    #[test]
    fn threads_of_vcpus_are_known_by_their_names() {
        let dir = std::env::temp_dir().join(format!("sidecore-place-{}", std::process::id()));
        let task = |thread: u32, name: &str, allowed: &str| {
            let at = dir.join(format!("77/task/{thread}"));
            fs::create_dir_all(&at).unwrap();
            fs::write(at.join("comm"), format!("{name}\n")).unwrap();
            fs::write(at.join("status"), format!("Name:\tx\nCpus_allowed_list:\t{allowed}\n")).unwrap();
        };
        task(77, "qemu-system-x86", "0-3");
        task(79, "CPU 1/KVM", "2-3");
        task(78, "CPU 0/TCG", "0,2");
        task(80, "CPU x/KVM", "0");
        fs::write(dir.join("77/comm"), "qemu-system-x86\n").unwrap();
        let guests = read(&dir, &[("a", 77), ("gone", 99), ("b", 77)]);
        fs::remove_dir_all(&dir).unwrap();
        let [guest] = &guests[..] else { panic!("{guests:?}") };
        assert_eq!(
            (guest.process, guest.name.as_str(), guest.ports.join(" ")),
            (77, "qemu-system-x86", "a b".into())
        );
        let vcpus: Vec<_> =
            guest.vcpus.iter().map(|it| (it.number, it.thread, it.allowed.to_string())).collect();
        assert_eq!(vcpus, [(0, 78, "0,2".to_owned()), (1, 79, "2-3".to_owned())]);
    }
}
