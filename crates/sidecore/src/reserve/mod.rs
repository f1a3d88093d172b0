//! `reserve`: time of processors for the threads of a VMM, by means of the kernel.
//!
//! Theory of operation. The daemon tells which process is at the other end of a port's socket. The command finds that process's
//! threads by their names (`threads`), and tries one mechanism after the other for each (`mechanisms`; control groups in
//! `groups`). What it does is written down first (`record`), so that all of it can be undone, by this user and without the
//! daemon. It has the rights of its caller: the daemon may not change other processes.

#[cfg(test)]
mod fake;
mod groups;
mod mechanisms;
mod record;
mod report;
mod threads;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rustix::param::clock_ticks_per_second;
use rustix::process::geteuid;
use sidecore_engine::state::status::{Cores, Ports};

use self::mechanisms::{may_schedule_all, online, Wish};
use self::record::{Mechanism, Records, Reservation};
use self::report::Reservations;
use self::threads::{Thread, ThreadId};
use crate::cli::{ReserveArgs, ShowArgs};
use crate::client::Client;
use crate::place::thread_name;
use crate::show::{answer, no_port};
use crate::{print, Outcome};

pub fn run(args: &ReserveArgs) -> Outcome {
    let socket = std::path::absolute(args.control.path()).map_err(|e| e.to_string())?;
    let records = Records::open()?;
    if args.undo {
        return undo(args, &socket, &records);
    }
    if let Err(left) = records.tidy() {
        eprintln!("sidecore: of a VMM that has ended: {left}");
    }
    let wish = wish(args)?;
    let client = Client::new(&socket)?;
    let ports: Ports = client.get("/v1/ports")?;
    let cores: Cores = client.get("/v1/cores")?;
    let cores: BTreeSet<usize> = cores.cores.iter().filter_map(|core| core.time.cpu).collect();
    let polled = |cpus: &BTreeSet<usize>| cpus.iter().find(|cpu| cores.contains(cpu)).copied();
    if let Some(cpu) = wish.cpus.as_ref().and_then(|cpus| polled(&cpus.0)).filter(|_| !args.force) {
        return Err(format!("processor {cpu} is an I/O core's; choose others, or say --force"));
    }
    let (process, ports) = vmm(Path::new("/proc"), &ports, &args.name)?;
    let mut earlier = records.all()?;
    earlier.retain(|reservation| reservation.process == process);
    let threads = chosen(Path::new("/proc"), args, &process, &earlier)?;
    for reservation in &mut earlier {
        reservation.release(|id| threads.iter().any(|thread| thread.id == *id))?;
    }
    let (name, asked, file) = (args.name.clone(), wish.to_string(), PathBuf::new());
    let empty = Reservation { socket, name, ports, asked, process, threads: vec![], steps: vec![], file };
    let mut reservation = records.start(empty);
    for thread in threads {
        let grant = wish.grant(Path::new("/proc"), thread, &mut reservation);
        reservation.threads.push(grant);
        reservation.save().map_err(|e| format!("{}: {e}", reservation.file.display()))?;
    }
    print(&answer(args.json, &Reservations::new([&reservation]), Reservations::text)?)?;
    for grant in &reservation.threads {
        let ahead = wish.is_met_by(grant.mechanism) && grant.mechanism != Some(Mechanism::Affinity);
        if let Some(cpu) = polled(&grant.cpus.0).filter(|_| ahead) {
            let thread = grant.thread.title();
            eprintln!(
                "sidecore: {thread} may run on processor {cpu}, ahead of the I/O core there: see --cpus"
            );
        }
    }
    let met = reservation.threads.iter().all(|grant| wish.is_met_by(grant.mechanism));
    reservation.threads.retain(|grant| grant.mechanism.is_some());
    let nothing = reservation.threads.is_empty();
    reservation.release(|_| false)?;
    match (met, nothing) {
        (true, _) => Ok(()),
        (false, true) => Err("nothing was granted".to_owned()),
        (false, false) => Err(format!(
            "less was granted than asked for; `sidecore reserve {} --undo` takes it back",
            args.name
        )),
    }
}

/// `show reservations`.
pub fn show(args: &ShowArgs) -> Result<String, String> {
    let all = Records::open()?.all()?;
    answer(args.json, &Reservations::new(&all), Reservations::text)
}

fn undo(args: &ReserveArgs, socket: &Path, records: &Records) -> Outcome {
    let mut all = records.all()?;
    all.retain(|reservation| {
        reservation.socket == socket
            && (reservation.name == args.name || reservation.ports.contains(&args.name))
    });
    if all.is_empty() {
        return Err(format!("nothing is reserved for {}; see `sidecore show reservations`", args.name));
    }
    let mut text = String::new();
    for reservation in &mut all {
        let meant =
            reservation.threads.iter().filter(|grant| args.vcpu.is_none() || grant.thread.vcpu == args.vcpu);
        let meant: Vec<Thread> = meant.map(|grant| grant.thread.clone()).collect();
        reservation.release(|id| args.vcpu.is_none() || meant.iter().any(|thread| thread.id == *id))?;
        let there = |thread: &&Thread| thread.id.is_there(Path::new("/proc"));
        let titles: Vec<String> = meant.iter().filter(there).map(Thread::title).collect();
        text += &match titles.is_empty() {
            true => format!("{}: its threads have ended; nothing is left of them\n", args.name),
            false => format!("{}: as before: {}\n", args.name, titles.join(", ")),
        };
    }
    print(&text)
}

/// What is asked for, if it can be.
fn wish(args: &ReserveArgs) -> Result<Wish, String> {
    let time = args.runtime.zip(args.period);
    if let Some((runtime, period)) = time.filter(|(runtime, period)| runtime > period || runtime.is_zero()) {
        return Err(format!("a runtime of {runtime:?} does not fit into a period of {period:?}: at least 1us, at most {period:?}"));
    }
    let (online, cpus) = (online(), args.cpus.clone());
    if cpus.as_ref().is_some_and(|cpus| cpus.0.is_empty() || !cpus.0.is_subset(&online.0)) {
        return Err(format!("--cpus {}: the machine's processors are {online}", cpus.unwrap_or_default()));
    }
    Ok(Wish { time, fifo: args.fifo, cpus })
}

/// The process that the ports of this name belong to, and all of its ports.
fn vmm(proc: &Path, ports: &Ports, name: &str) -> Result<(ThreadId, Vec<String>), String> {
    let Some(port) = ports.ports.iter().find(|port| port.name == name) else {
        return Err(no_port(ports, name));
    };
    let peer = port.state.as_ref().and_then(|state| Some((state.pid?, state.pid_met_ns?)));
    let Some((pid, met)) = peer else {
        return Err(format!("no process is at the other end of {name}: `sidecore doctor {name}` says why"));
    };
    let process =
        process(proc, pid, met).map_err(|why| format!("process {pid}, the VMM of {name}, {why}"))?;
    let same = ports.ports.iter().filter(|port| port.state.as_ref().and_then(|state| state.pid) == Some(pid));
    Ok((process, same.map(|port| port.name.clone()).collect()))
}

/// The process that had number `pid` at time `met`, in nanoseconds since the host's start.
fn process(proc: &Path, pid: u32, met: u64) -> Result<ThreadId, &'static str> {
    let process = ThreadId::find(proc, pid, pid).ok_or("has ended, or is in another PID namespace")?;
    let tick = 1_000_000_000 / clock_ticks_per_second().max(1);
    match process.start.saturating_mul(tick) > met {
        true => Err("has ended; its number is another process's now"),
        false => Ok(process),
    }
}

/// The threads that are meant, if they may be changed.
fn chosen(
    proc: &Path,
    args: &ReserveArgs,
    process: &ThreadId,
    earlier: &[Reservation],
) -> Result<Vec<Thread>, String> {
    let pid = process.process;
    let program = thread_name(proc, pid, pid).unwrap_or_default();
    let user = threads::user(proc, pid);
    if user != Some(geteuid().as_raw()) && !may_schedule_all() {
        let user = user.map_or_else(|| "another user".to_owned(), |user| format!("user {user}"));
        return Err(format!(
            "process {pid} ({program}) is {user}'s: reserve as that user, or with CAP_SYS_NICE"
        ));
    }
    let mut threads = threads::find(proc, pid);
    if threads.is_empty() {
        return Err(format!(
            "process {pid} ({program}) has no thread that is named as a vCPU's: QEMU does so with -name debug-threads=on"
        ));
    }
    if args.vcpu.is_some() {
        let numbers: Vec<String> = threads.iter().filter_map(|it| Some(it.vcpu?.to_string())).collect();
        threads.retain(|thread| thread.vcpu == args.vcpu);
        if threads.is_empty() {
            return Err(format!("it has no such vCPU: its vCPUs are {}", numbers.join(", ")));
        }
    }
    let ours = |id: &ThreadId| earlier.iter().flat_map(|it| &it.threads).any(|grant| grant.thread.id == *id);
    for thread in threads.iter().filter(|thread| !args.force && !ours(&thread.id)) {
        if let Some(why) = threads::pinned(proc, &thread.id) {
            return Err(format!(
                "{} {why}: change it where that was done (virsh vcpupin, vcpusched), or say --force",
                thread.title()
            ));
        }
    }
    Ok(threads)
}

#[cfg(test)]
mod tests {
    use super::fake::Fake;
    use super::*;

    #[test]
    fn a_process_that_started_after_the_vmm_connected_is_another_one() {
        let fake = Fake::new();
        fake.thread(77, 77, "qemu-system-x86", "0-3");
        let start = 1_077 * 1_000_000_000 / clock_ticks_per_second();
        assert_eq!(process(&fake.proc(), 77, start).map(|id| id.start), Ok(1_077));
        assert!(process(&fake.proc(), 77, start - 1).unwrap_err().contains("another process's now"));
        assert!(process(&fake.proc(), 78, start).unwrap_err().contains("has ended"));
    }
}
