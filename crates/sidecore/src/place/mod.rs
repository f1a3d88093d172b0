//! `place`: where I/O cores, guests and their memory are, bad placement, and how to mend it.
//!
//! Theory of operation. sysfs describes the machine (`machine`). Guests are the processes at the other ends
//! of ports' sockets, and their vCPUs are threads with the names that QEMU gives them (`guests`). The daemon
//! tells its I/O cores and their queues. `judge` compares the three, and `draw` shows them. The command reads
//! all of it and not the daemon, which may not inspect other processes. So its user must be allowed to
//! inspect guests, and to pin their threads for `--apply`.

mod draw;
mod guests;
mod judge;
mod machine;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use rustix::thread::{sched_setaffinity, CpuSet};
use serde::Serialize;
use sidecore_engine::state::status::{Cores, Ports, Queues, VERSION};

use self::guests::Guest;
pub use self::guests::{read_status, thread_name, vcpu_number};
pub use self::judge::Cpus;
use self::judge::Finding;
pub use self::machine::numbered;
use self::machine::Machine;
use crate::cli::{OfDaemon, PlaceArgs};
use crate::client::Client;
use crate::show::answer;
use crate::{print, Outcome};

/// Loads are those of this time.
const LOOK: Duration = Duration::from_millis(500);

/// Answer to `place`.
#[derive(Debug, Serialize)]
pub struct Places {
    /// `status::VERSION`.
    pub version: u32,
    #[serde(flatten)]
    pub machine: Machine,
    pub cores: Vec<IoCore>,
    pub guests: Vec<Guest>,
    /// What is wrong.
    pub findings: Vec<Finding>,
}

/// An I/O core, and what it serves.
#[derive(Debug, Serialize)]
pub struct IoCore {
    pub number: usize,
    /// The processor that it is pinned to.
    pub cpu: Option<usize>,
    pub active: bool,
    pub queues: Vec<Served>,
}

/// An ingress queue.
#[derive(Debug, Serialize)]
pub struct Served {
    pub port: String,
    pub queue: usize,
    /// Millionths of the core that it has at the moment.
    pub load_ppm: u64,
}

pub fn run(args: &OfDaemon<PlaceArgs>) -> Outcome {
    let client = Client::new(&args.control.path())?;
    let mut places = look(&client)?;
    if args.apply {
        places.findings.iter_mut().for_each(mend);
    }
    print(&answer(args.json, &places, draw::text)?)?;
    let failed = places.findings.iter().filter(|finding| finding.failed.is_some()).count();
    match failed {
        0 => Ok(()),
        n => Err(format!("{n} could not be fixed")),
    }
}

fn look(client: &Client) -> Result<Places, String> {
    let machine = Machine::read(Path::new("/sys/devices/system"))?;
    let cores: Cores = client.get("/v1/cores")?;
    let ports: Ports = client.get("/v1/ports")?;
    let before: Queues = client.get("/v1/queues")?;
    let begun = std::time::Instant::now();
    std::thread::sleep(LOOK);
    let after: Queues = client.get("/v1/queues")?;
    let time = begun.elapsed().as_nanos().max(1);
    let cores: Vec<IoCore> = cores
        .cores
        .iter()
        .map(|core| &core.time)
        .map(|core| IoCore {
            number: core.number,
            cpu: core.cpu,
            active: core.active,
            queues: served(&before, &after, core.number, time),
        })
        .collect();
    let pids: Vec<(&str, u32)> =
        ports.ports.iter().filter_map(|port| Some((port.name.as_str(), port.state.as_ref()?.pid?))).collect();
    let guests = guests::read(Path::new("/proc"), &pids);
    let findings = judge::judge(&machine, &cores, &guests);
    Ok(Places { version: VERSION, machine, cores, guests, findings })
}

/// The queues of a core, the busiest first.
fn served(before: &Queues, after: &Queues, core: usize, time: u128) -> Vec<Served> {
    let mut served: Vec<Served> = Vec::new();
    for queue in &after.queues {
        let Some(task) = queue.served.as_ref().filter(|task| task.core == core) else { continue };
        let earlier = before.queues.iter().filter_map(|queue| queue.served.as_ref());
        let was = earlier.filter(|other| other.id == task.id).map(|task| task.busy_ns).next();
        let busy = u128::from(task.busy_ns.saturating_sub(was.unwrap_or(task.busy_ns)));
        let load_ppm = u64::try_from(busy * 1_000_000 / time).unwrap_or(u64::MAX);
        served.push(Served { port: queue.port.clone(), queue: queue.index, load_ppm });
    }
    served.sort_by_key(|queue| std::cmp::Reverse(queue.load_ppm));
    served
}

/// Pins the thread of a finding where it should be, if it is one of a thread.
fn mend(finding: &mut Finding) {
    let Some(pin) = &finding.pin else { return };
    // The number may be another thread's by now.
    let there = thread_name(Path::new("/proc"), pin.process, pin.thread);
    let result = match there == Some(pin.name.clone()) {
        true => set_affinity(pin.thread, &pin.cpus.0).map_err(|e| e.to_string()),
        false => Err("the thread has ended".to_owned()),
    };
    match result {
        Ok(()) => finding.mended = true,
        Err(why) => finding.failed = Some(why),
    }
}

/// Has a thread run on these processors only.
pub fn set_affinity(thread: u32, cpus: &BTreeSet<usize>) -> std::io::Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu));
    let thread = i32::try_from(thread).ok().and_then(rustix::process::Pid::from_raw);
    Ok(sched_setaffinity(thread, &set)?)
}
