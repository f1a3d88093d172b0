//! Places for people: the machine as a tree, with I/O cores and vCPUs at the processors where they are.

use std::fmt::Write;

use super::judge::Finding;
use super::machine::Processor;
use super::{IoCore, Places};
use crate::table::percent;

/// The text.
pub fn text(places: &Places) -> String {
    let mut text = String::new();
    // Writing to a text cannot fail.
    let _ = draw(&mut text, places);
    text
}

fn draw(out: &mut String, places: &Places) -> std::fmt::Result {
    let machine = &places.machine;
    for node in &machine.nodes {
        writeln!(out, "node {}: processors {}", node.number, node.processors)?;
        let mut drawn: Vec<usize> = Vec::new();
        let mut outer = String::new();
        for processor in machine.processors.iter().filter(|it| it.node == node.number) {
            if drawn.contains(&processor.number) {
                continue;
            }
            let shared = outermost(processor);
            if shared != outer {
                writeln!(out, "  package {}{shared}", processor.package)?;
                outer = shared;
            }
            writeln!(out, "    physical core{}", own_caches(processor))?;
            for number in &processor.core.0 {
                drawn.push(*number);
                writeln!(out, "      processor {number}{}", who(places, *number))?;
                for core in places.cores.iter().filter(|core| core.cpu == Some(*number)) {
                    queues(out, core)?;
                }
            }
        }
    }
    for core in places.cores.iter().filter(|core| core.cpu.is_none()) {
        writeln!(out, "I/O core {}, which is not pinned", core.number)?;
        queues(out, core)?;
    }
    guests(out, places)?;
    findings(out, &places.findings)
}

/// The outermost cache, which many processors share.
fn outermost(processor: &Processor) -> String {
    match processor.caches.last() {
        Some(cache) => format!(", L{} {} of processors {}", cache.level, cache.size, cache.processors),
        None => String::new(),
    }
}

/// The other caches.
fn own_caches(processor: &Processor) -> String {
    let inner = processor.caches.split_last().map_or(&[][..], |(_, inner)| inner);
    let caches: Vec<_> = inner.iter().map(|cache| format!("L{} {}", cache.level, cache.size)).collect();
    if caches.is_empty() {
        String::new()
    } else {
        format!(", {}", caches.join(", "))
    }
}

/// What runs on a processor and nowhere else.
fn who(places: &Places, number: usize) -> String {
    let mut who: Vec<String> = Vec::new();
    for core in places.cores.iter().filter(|core| core.cpu == Some(number)) {
        who.push(format!("I/O core {}{}", core.number, if core.active { "" } else { ", resting" }));
    }
    for guest in &places.guests {
        let only = |cpus: &super::Cpus| cpus.0.len() == 1 && cpus.0.contains(&number);
        for vcpu in guest.vcpus.iter().filter(|vcpu| only(&vcpu.allowed)) {
            who.push(format!("vCPU {} of {}", vcpu.number, guest.ports.join(", ")));
        }
    }
    if who.is_empty() {
        String::new()
    } else {
        format!(": {}", who.join(", "))
    }
}

fn queues(out: &mut String, core: &IoCore) -> std::fmt::Result {
    for queue in &core.queues {
        let load = percent(queue.load_ppm, 1_000_000);
        writeln!(out, "        {load:>7}  queue {} of {}", queue.queue, queue.port)?;
    }
    Ok(())
}

fn guests(out: &mut String, places: &Places) -> std::fmt::Result {
    for guest in &places.guests {
        write!(out, "guest of {}: {}, process {}", guest.ports.join(", "), guest.name, guest.process)?;
        for (node, kib) in &guest.memory_kib {
            write!(out, ", {} MB on node {node}", kib / 1_000)?;
        }
        writeln!(out)?;
        for vcpu in &guest.vcpus {
            writeln!(out, "  vCPU {} (thread {}) may run on {}", vcpu.number, vcpu.thread, vcpu.allowed)?;
        }
        if guest.vcpus.is_empty() {
            writeln!(out, "  no thread of it has the name of a vCPU (QEMU: -name debug-threads=on)")?;
        }
    }
    Ok(())
}

fn findings(out: &mut String, findings: &[Finding]) -> std::fmt::Result {
    if findings.is_empty() {
        return writeln!(out, "nothing is wrong");
    }
    for finding in findings {
        writeln!(out, "wrong: {}", finding.what)?;
        match (&finding.mend, &finding.failed, finding.mended) {
            (Some(mend), _, true) => writeln!(out, "  fixed: {mend}")?,
            (Some(mend), Some(why), _) => writeln!(out, "  {mend}: {why}")?,
            (Some(mend), None, _) => writeln!(out, "  to fix it: {mend}")?,
            (None, ..) => writeln!(out, "  no other processor is left to it")?,
        }
    }
    Ok(())
}
