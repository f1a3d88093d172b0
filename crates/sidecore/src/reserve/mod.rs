//! `reserve`: time of processors for the threads of a VMM, by means of the kernel.
//!
//! Theory of operation. The daemon tells which process is at the other end of a port's socket. The command
//! finds that process's threads by their names (`threads`), and tries one mechanism after the other for each
//! (`mechanisms`; control groups in `groups`). What it does is written down first (`record`), so that all of
//! it can be undone, by this user and without the daemon. It has the rights of its caller: the daemon may not
//! change other processes.

#[cfg(test)]
mod fake_tests;
mod groups;
mod mechanisms;
mod record;
mod threads;

use std::fmt::Write;
use std::path::Path;

use rustix::param::clock_ticks_per_second;
use rustix::process::geteuid;
use serde::Serialize;
use sidecore_engine::state::status::{Ports, VERSION};

use self::mechanisms::{grant, may_schedule_all, online};
use self::record::{Grant, Records, Reservation};
use self::threads::{Thread, ThreadId};
use crate::cli::{OfDaemon, ReserveArgs, ShowArgs};
use crate::client::Client;
use crate::place::thread_name;
use crate::show::{answer, no_port};
use crate::{print, Outcome};

/// Answer to `show reservations`.
#[derive(Serialize)]
struct Reservations {
    version: u32,
    reservations: Vec<Reservation>,
}

pub fn run(args: &OfDaemon<ReserveArgs>) -> Outcome {
    let socket = std::path::absolute(args.control.path()).map_err(|e| e.to_string())?;
    let records = Records::open()?;
    if args.undo {
        return undo(&args.name, &socket, &records);
    }
    let (ended, mut others): (Vec<_>, Vec<_>) = records.all()?.into_iter().partition(|it| it.ended);
    for mut ended in ended {
        if let Err(left) = ended.undo(&mut others) {
            eprintln!("sidecore: of a VMM that has ended: {left}");
        }
    }
    check(args)?;
    let root = Path::new("/");
    let proc = root.join("proc");
    let (process, ports) = vmm(&proc, &Client::new(&socket)?.get("/v1/ports")?, &args.name)?;
    let threads = chosen(&proc, args, &process, &records.all()?)?;
    let (name, file) = (args.name.clone(), records.file(&process));
    let mut reservation = Reservation { socket, name, ports, process, file, ..Reservation::default() };
    reservation.threads =
        threads.into_iter().map(|thread| grant(root, args, thread, &mut reservation)).collect();
    reservation.save().map_err(|e| format!("{}: {e}", reservation.file.display()))?;
    let enough = reservation.threads.iter().all(|grant| grant.enough);
    let nothing = reservation.steps.is_empty();
    print(&shown(false, vec![reservation])?)?;
    match (enough, nothing) {
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
    shown(args.json, Records::open()?.all()?)
}

fn shown(json: bool, reservations: Vec<Reservation>) -> Result<String, String> {
    let all = Reservations { version: VERSION, reservations };
    answer(json, &all, |all| match all.reservations.is_empty() {
        true => "nothing is reserved\n".to_owned(),
        false => all.reservations.iter().map(text).collect(),
    })
}

fn text(reservation: &Reservation) -> String {
    let state = match (reservation.ended, reservation.changed) {
        (true, _) => ", which has ended",
        (false, true) => ", of which a thread has ended or was changed since",
        (false, false) => "",
    };
    let mut text = format!("{}: process {}{state}\n", reservation.name, reservation.process.process);
    for Grant { thread, mechanism, meaning, cpus, refused, .. } in &reservation.threads {
        let _ = writeln!(text, "  {}: {mechanism}, {meaning}, on {cpus}", thread.title);
        refused.iter().for_each(|reason| text += &format!("    not {reason}\n"));
    }
    text
}

fn undo(name: &str, socket: &Path, records: &Records) -> Outcome {
    let meant = |it: &Reservation| {
        it.socket == socket && (it.name == name || it.ports.iter().any(|port| port == name))
    };
    let (mut all, mut others): (Vec<_>, Vec<_>) = records.all()?.into_iter().partition(meant);
    if all.is_empty() {
        return Err(format!("nothing is reserved for {name}; see `sidecore show reservations`"));
    }
    for reservation in all.iter_mut().rev() {
        reservation.undo(&mut others)?;
    }
    let threads = all.iter().flat_map(|it| &it.threads).map(|grant| &grant.thread);
    let there = threads.filter(|thread| thread.id.is_there(Path::new("/proc")));
    let titles: Vec<&str> = there.map(|thread| thread.title.as_str()).collect();
    print(&match titles.is_empty() {
        true => format!("{name}: the threads have ended, and nothing is left behind\n"),
        false => format!("{name}: as before: {}\n", titles.join(", ")),
    })
}

/// Refuses what cannot be.
fn check(args: &ReserveArgs) -> Outcome {
    let time = args.runtime.zip(args.period);
    if let Some((_, period)) = time.filter(|(runtime, period)| runtime > period || runtime.is_zero()) {
        return Err(format!("--runtime: from 1us to the period, {period:?}"));
    }
    let (online, cpus) = (online(), args.cpus.clone().unwrap_or_else(online));
    match cpus.0.is_empty() || !cpus.0.is_subset(&online.0) {
        true => Err(format!("--cpus: the machine's processors are {online}")),
        false => Ok(()),
    }
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
    let user = threads::user(proc, pid).ok_or("the VMM has ended")?;
    if user != geteuid().as_raw() && !may_schedule_all() {
        return Err(format!(
            "process {pid} ({program}) is user {user}'s: reserve as that user, or with CAP_SYS_NICE"
        ));
    }
    let mut threads = threads::find(proc, pid);
    let names = threads.iter().map(|thread| thread.title.as_str()).collect::<Vec<_>>().join(", ");
    threads.retain(|thread| args.vcpu.is_none() || thread.vcpu == args.vcpu);
    match (threads.is_empty(), names.is_empty()) {
        (true, true) => Err(format!(
            "no thread of process {pid} ({program}) has the name of a vCPU: QEMU names them with -name debug-threads=on"
        )),
        (true, false) => Err(format!("there is no such vCPU; there are {names}")),
        _ => Ok(()),
    }?;
    for thread in &threads {
        if earlier.iter().flat_map(|it| &it.threads).any(|grant| grant.thread.id == thread.id) {
            return Err(format!(
                "{} has a reservation; first undo it: sidecore reserve {} --undo",
                thread.title, args.name
            ));
        }
        if let Some(why) = threads::pinned(proc, &thread.id).filter(|_| !args.force) {
            return Err(format!(
                "{} {why}: change it where that was done (virsh vcpupin), or say --force",
                thread.title
            ));
        }
    }
    Ok(threads)
}

#[cfg(test)]
mod tests {
    use super::fake_tests::Fake;
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
