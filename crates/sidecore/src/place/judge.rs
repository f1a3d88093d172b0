//! What is wrong with where things are, and the command that mends it.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::guests::{Guest, Vcpu};
use super::machine::Machine;
use super::IoCore;

/// A set of processors, written as `0-3,6`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpus(pub BTreeSet<usize>);

impl<const N: usize> From<[usize; N]> for Cpus {
    fn from(cpus: [usize; N]) -> Cpus {
        Cpus(cpus.into())
    }
}

impl Cpus {
    /// As the kernel writes them.
    pub fn read(list: &str) -> Option<Cpus> {
        let mut cpus = BTreeSet::new();
        for part in list.split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            // No machine has more; a list is not to fill the memory.
            cpus.extend(first..=last.min(first.saturating_add(65_535)));
        }
        Some(Cpus(cpus))
    }

    fn without(&self, others: &BTreeSet<usize>) -> Cpus {
        Cpus(self.0.difference(others).copied().collect())
    }

    fn some(self) -> Option<Cpus> {
        Some(self).filter(|cpus| !cpus.0.is_empty())
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.iter().copied().peekable();
        let mut mark = "";
        while let Some(first) = rest.next() {
            let mut last = first;
            while rest.next_if_eq(&(last + 1)).is_some() {
                last += 1;
            }
            match first == last {
                true => write!(f, "{mark}{first}")?,
                false => write!(f, "{mark}{first}-{last}")?,
            }
            mark = ",";
        }
        Ok(())
    }
}

impl Serialize for Cpus {
    fn serialize<S: Serializer>(&self, sink: S) -> Result<S::Ok, S::Error> {
        sink.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cpus {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Cpus, D::Error> {
        let list = String::deserialize(source)?;
        Cpus::read(&list)
            .ok_or_else(|| serde::de::Error::custom(format!("{list:?} is no list of processors")))
    }
}

/// One thing that is wrong.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What.
    pub what: String,
    /// The command that mends it, if one does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mend: Option<String>,
    /// What mends it, where it is a thread that should be pinned.
    #[serde(skip)]
    pub pin: Option<Pin>,
    /// `--apply` has done so.
    pub mended: bool,
    /// Why it could not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// A thread, and the processors that it should run on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    pub process: u32,
    pub thread: u32,
    pub name: String,
    pub cpus: Cpus,
}

/// All that is wrong.
pub fn judge(machine: &Machine, cores: &[IoCore], guests: &[Guest]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for guest in guests {
        findings.extend(guest.vcpus.iter().filter_map(|vcpu| thread(machine, cores, guest, vcpu)));
        findings.extend(memory(machine, cores, guest));
    }
    findings
}

/// A vCPU that may run where an I/O core polls, or on the same physical core.
fn thread(machine: &Machine, cores: &[IoCore], guest: &Guest, vcpu: &Vcpu) -> Option<Finding> {
    let mut wrong = Vec::new();
    let (mut own, mut near) = (BTreeSet::new(), BTreeSet::new());
    for (core, cpu) in cores.iter().filter_map(|core| Some((core.number, core.cpu?))) {
        own.insert(cpu);
        if vcpu.allowed.0.contains(&cpu) {
            wrong.push(format!("on processor {cpu}, which is I/O core {core}'s"));
        }
        for other in machine.processor(cpu).iter().flat_map(|it| &it.core.0).filter(|other| **other != cpu) {
            near.insert(*other);
            let another = cores.iter().any(|core| core.cpu == Some(*other));
            if vcpu.allowed.0.contains(other) && !another {
                wrong
                    .push(format!("on processor {other}, which shares a physical core with I/O core {core}"));
            }
        }
    }
    if wrong.is_empty() {
        return None;
    }
    let all = Cpus(machine.processors.iter().map(|it| it.number).collect());
    let far = &own | &near;
    // As much of what it may use now as there is; beside an I/O core rather than on one.
    let [allowed, all] = [&vcpu.allowed, &all];
    let better = allowed.without(&far).some().or_else(|| all.without(&far).some());
    let better = better.or_else(|| allowed.without(&own).some()).or_else(|| all.without(&own).some());
    let better = better.filter(|better| better != allowed);
    let pin = better.map(|cpus| {
        let (process, thread, name) = (guest.process, vcpu.thread, vcpu.name.clone());
        Pin { process, thread, name, cpus }
    });
    Some(Finding {
        what: format!(
            "vCPU {} of {} (thread {}) may run {}",
            vcpu.number,
            guest.ports.join(", "),
            vcpu.thread,
            wrong.join(", and ")
        ),
        mend: pin.as_ref().map(|pin| format!("taskset -cp {} {}", pin.cpus, pin.thread)),
        pin,
        mended: false,
        failed: None,
    })
}

/// A guest most of whose memory is on another node than an I/O core that serves it.
fn memory(machine: &Machine, cores: &[IoCore], guest: &Guest) -> Vec<Finding> {
    let all: u64 = guest.memory_kib.values().sum();
    let most = guest.memory_kib.iter().max_by_key(|(_, kib)| **kib);
    let Some((&home, kib)) = most.filter(|(_, kib)| **kib * 2 > all) else { return Vec::new() };
    let node = |core: &IoCore| machine.processor(core.cpu?).map(|it| it.node);
    let mut findings = Vec::new();
    for core in cores {
        let Some(here) = node(core).filter(|here| *here != home) else { continue };
        for port in &guest.ports {
            if !core.queues.iter().any(|queue| queue.port == *port) {
                continue;
            }
            let near = cores.iter().find(|other| other.active && node(other) == Some(home));
            let mend = match near {
                Some(near) => format!("sidecore move {port} {}", near.number),
                None => format!("migratepages {} {home} {here}", guest.process),
            };
            findings.push(Finding {
                what: format!(
                    "{} MB of the memory of {port}'s guest are on node {home}, and I/O core {}, which serves it, on node {here}",
                    kib / 1_000,
                    core.number
                ),
                mend: Some(mend),
                pin: None,
                mended: false,
                failed: None,
            });
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::machine::{Node, Processor};
    use super::super::Served;
    use super::*;

    fn cpus(list: &str) -> Cpus {
        Cpus::read(list).unwrap()
    }

    /// Two nodes with two physical cores each, of two threads each: 0 and 4 are one core.
    fn machine() -> Machine {
        let processor = |number: usize| Processor {
            number,
            package: number % 4 / 2,
            core: Cpus::from([number % 4, number % 4 + 4]),
            node: number % 4 / 2,
            caches: Vec::new(),
        };
        let node = |number, list| Node { number, processors: cpus(list) };
        Machine {
            nodes: vec![node(0, "0-1,4-5"), node(1, "2-3,6-7")],
            processors: (0..8).map(processor).collect(),
        }
    }

    fn core(number: usize, cpu: usize, ports: &[&str]) -> IoCore {
        let served = |port: &&str| Served { port: (*port).to_owned(), queue: 0, load_ppm: 0 };
        IoCore { number, cpu: Some(cpu), active: true, queues: ports.iter().map(served).collect() }
    }

    fn guest(allowed: &[&str], memory: &[(usize, u64)]) -> Guest {
        let vcpu = |(number, list): (usize, &&str)| Vcpu {
            number: u32::try_from(number).unwrap(),
            thread: 100 + u32::try_from(number).unwrap(),
            name: format!("CPU {number}/KVM"),
            allowed: cpus(list),
        };
        Guest {
            process: 99,
            name: "qemu".to_owned(),
            ports: vec!["web".to_owned()],
            vcpus: allowed.iter().enumerate().map(vcpu).collect(),
            memory_kib: memory.iter().copied().collect(),
        }
    }

    #[test]
    fn processors_are_written_as_the_kernel_does() {
        for list in ["", "3", "0-1", "0-3,6,8-9"] {
            assert_eq!(cpus(list).to_string(), list);
        }
        for list in ["x", "1-", "-1", "1,x"] {
            assert_eq!(Cpus::read(list), None, "{list}");
        }
    }

    #[test]
    fn vcpus_leave_io_cores_and_their_siblings() {
        let found = |allowed: &str, cores: &[IoCore]| {
            let findings = judge(&machine(), cores, &[guest(&[allowed], &[])]);
            findings.into_iter().map(|it| (it.what, it.mend.unwrap_or_default())).collect::<Vec<_>>()
        };
        let one = [core(0, 3, &["web"])];
        assert_eq!(found("0-2,4-6", &one), []);
        let [(what, mend)] = &found("0-7", &one)[..] else { panic!() };
        assert_eq!(
            what,
            "vCPU 0 of web (thread 100) may run on processor 3, which is I/O core 0's, and on processor 7, which shares a \
             physical core with I/O core 0"
        );
        assert_eq!(mend, "taskset -cp 0-2,4-6 100");
        assert_eq!(found("7", &one)[0].1, "taskset -cp 0-2,4-6 100");
        // Two I/O cores on one physical core are the operator's wish.
        assert_eq!(found("0-3", &[core(0, 3, &[]), core(1, 7, &[])])[0].1, "taskset -cp 0-2 100");
        // Every physical core has an I/O core: beside one is better than on one.
        let four: Vec<_> = (0..4).map(|n| core(n, n, &[])).collect();
        assert_eq!(found("0,4", &four)[0].1, "taskset -cp 4 100");
        // Where it is as good as it can be, nothing mends it.
        assert_eq!(found("4", &four)[0].1, "");
        let all: Vec<_> = (0..8).map(|n| core(n, n, &[])).collect();
        assert_eq!(found("0-7", &all)[0].1, "");
    }

    #[test]
    fn memory_is_near_who_copies_it() {
        let found = |memory: &[(usize, u64)], cores: &[IoCore]| {
            let findings = judge(&machine(), cores, &[guest(&[], memory)]);
            findings.into_iter().map(|it| it.mend.unwrap_or_default()).collect::<Vec<_>>()
        };
        let cores = [core(0, 3, &["web"]), core(1, 1, &[])];
        assert_eq!(found(&[(1, 5_000), (0, 100)], &cores), [""; 0]);
        assert_eq!(found(&[(0, 5_000), (1, 100)], &cores), ["sidecore move web 1"]);
        assert_eq!(found(&[(0, 5_000)], &cores[..1]), ["migratepages 99 0 1"]);
        assert_eq!(found(&[(0, 50), (1, 50)], &cores), [""; 0]);
        assert_eq!(found(&[], &cores), [""; 0]);
    }
}
