//! The machine: processors, the physical cores and caches that they share, and NUMA nodes, as sysfs has them.

use std::fs;
use std::path::Path;

use serde::Serialize;

use super::judge::Cpus;

/// All of it.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Machine {
    pub nodes: Vec<Node>,
    pub processors: Vec<Processor>,
}

/// Memory, and the processors next to it.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    pub number: usize,
    pub processors: Cpus,
}

/// A logical processor.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Processor {
    pub number: usize,
    pub package: usize,
    /// Those of its physical core, itself among them.
    pub core: Cpus,
    pub node: usize,
    pub caches: Vec<Cache>,
}

/// A cache for data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cache {
    pub level: u8,
    /// As the kernel writes it.
    pub size: String,
    /// The processors that share it.
    pub processors: Cpus,
}

impl Machine {
    /// Reads it from `root`, which is `/sys/devices/system`.
    pub fn read(root: &Path) -> Result<Machine, String> {
        let mut nodes: Vec<Node> = numbered(&root.join("node"), "node")
            .into_iter()
            .filter_map(|number| {
                let list = text(&root.join(format!("node/node{number}/cpulist")))?;
                Some(Node { number, processors: Cpus::read(&list)? })
            })
            .collect();
        let mut processors = Vec::new();
        for number in numbered(&root.join("cpu"), "cpu") {
            let at = root.join(format!("cpu/cpu{number}"));
            // One that is offline has none.
            let Some(siblings) = text(&at.join("topology/thread_siblings_list")) else { continue };
            let package = text(&at.join("topology/physical_package_id")).and_then(|text| text.parse().ok());
            processors.push(Processor {
                number,
                package: package.unwrap_or(0),
                core: Cpus::read(&siblings).unwrap_or_else(|| Cpus::from([number])),
                node: nodes
                    .iter()
                    .find(|node| node.processors.0.contains(&number))
                    .map_or(0, |node| node.number),
                caches: caches(&at.join("cache")),
            });
        }
        if processors.is_empty() {
            return Err(format!("{} tells of no processors", root.display()));
        }
        if nodes.is_empty() {
            let all = Cpus(processors.iter().map(|it| it.number).collect());
            nodes.push(Node { number: 0, processors: all });
        }
        Ok(Machine { nodes, processors })
    }

    /// The processor of this number.
    pub fn processor(&self, number: usize) -> Option<&Processor> {
        self.processors.iter().find(|it| it.number == number)
    }
}

fn caches(at: &Path) -> Vec<Cache> {
    let one = |index: usize| {
        let at = at.join(format!("index{index}"));
        let get = |name: &str| text(&at.join(name));
        if get("type")? == "Instruction" {
            return None;
        }
        let processors = Cpus::read(&get("shared_cpu_list")?)?;
        Some(Cache { level: get("level")?.parse().ok()?, size: get("size")?, processors })
    };
    let mut caches: Vec<Cache> = numbered(at, "index").into_iter().filter_map(one).collect();
    caches.sort_by_key(|cache| cache.level);
    caches
}

fn text(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// The numbers of the entries `PREFIXnumber` of a folder, in their order.
pub fn numbered(folder: &Path, prefix: &str) -> Vec<usize> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok();
    let mut numbers: Vec<usize> = entries.filter_map(number).collect();
    numbers.sort_unstable();
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_read() {
        let machine = Machine::read(Path::new("/sys/devices/system")).unwrap();
        for processor in &machine.processors {
            assert!(processor.core.0.contains(&processor.number));
            assert!(machine.nodes.iter().any(|node| node.number == processor.node));
        }
        assert!(Machine::read(Path::new("/nowhere")).is_err());
    }
}
