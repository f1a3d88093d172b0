//! Figures 2, 5 and 9: more processors than there are here, by a model.
//!
//! What two processors can show is measured: load, guest and I/O on one of them, on both as the kernel likes,
//! and with guest or I/O alone on one. Lines with a processor for each thread are reckoned: a thread forwards
//! one frame in each `cost`, the slowest one is what the router forwards, and what is offered beyond that
//! waits outside and is lost there, as it is on wires. Costs are measured with the thread alone on a
//! processor, of which it may have so little (`PART`) that nothing else limits.
//!
//! The model also says what the placements that were measured should forward. How far that is off is the
//! *calibration*, which is a part of the result. (Reservations as processors were tried first: a thread with
//! 30 to 45 % of a processor forwards 0.02 to 2.4 times as much as that much of a real one. Guest and I/O
//! wait for each other whenever a ring is full or empty, within 50 to 250 µs, and the kernel enforces
//! reservations with the tick, of 4 ms; a thread that preempts all others each 25 µs makes that finer, and no
//! better.)

use super::super::sched::cores::Way;
use super::curves::{measure, Curve, LOADS};
use super::interconnects;
use super::report::{How, Row};
use super::stage::{play, Bench, Placement, Sample, Setup, ALONE, SHARED_CORE};
use super::threads::Class;
use super::{Found, Plan, DPDK_NS};
use crate::prelude::*;

/// Part of a processor that the thread has whose cost is measured, and the period of that.
const PART: f64 = 0.2;
const PERIOD: Duration = Duration::from_millis(10);
/// Million frames a second that are offered meanwhile, if the guest could not forward as many.
const OFFERED: f64 = 3.0;
/// A thread for each card, otherwise like the I/O core.
const TWO_THREADS: Way = Way { per_device: true, ..SHARED_CORE };
/// What the output says.
const NOTE: &str =
    "lines with (model) are reckoned from `costs`, the others measured; `calibration`: the model beside what was measured";
/// The picture.
const PICTURE: &str = "wires";

/// Nanoseconds of a thread's processor for a frame.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Costs {
    pub guest_ns: f64,
    /// Nanoseconds of the I/O core, and of the busier one of two I/O threads.
    pub io_ns: f64,
    pub io_thread_ns: f64,
    /// Part of its processor that the load takes, at whatever rate.
    pub load_part: f64,
}

/// What costs tell of a measured line.
#[derive(Clone, Debug, Serialize)]
pub struct Calibration {
    pub line: String,
    pub model_mpps: f64,
    pub measured_mpps: f64,
    pub ratio: f64,
}

/// A placement that two processors can show, and what costs tell of it, in million frames a second.
struct Shown {
    line: &'static str,
    way: Way,
    placement: Placement,
    model: fn(&Costs) -> f64,
}

const ONE: Shown = Shown {
    line: "1 processor",
    way: SHARED_CORE,
    placement: Placement::One,
    model: |costs| rate(1.0 - costs.load_part, costs.guest_ns + costs.io_ns),
};
const FREE: Shown = Shown {
    line: "2 processors, free",
    way: SHARED_CORE,
    placement: Placement::Free,
    model: |costs| rate(2.0 - costs.load_part, costs.guest_ns + costs.io_ns).min(rate(1.0, costs.guest_ns)),
};
const IO_ALONE: Shown = Shown {
    line: "2 processors, I/O alone",
    way: SHARED_CORE,
    placement: Placement::IoAlone(ALONE),
    model: |costs| rate(1.0 - costs.load_part, costs.guest_ns).min(rate(1.0, costs.io_ns)),
};
const GUEST_ALONE: Shown = Shown {
    line: "2 processors, guest alone",
    way: SHARED_CORE,
    placement: Placement::GuestAlone(ALONE),
    model: |costs| rate(1.0, costs.guest_ns).min(rate(1.0 - costs.load_part, costs.io_ns)),
};
/// Both threads of I/O are on the load's processor.
const GUEST_BESIDE_TWO: Shown = Shown {
    line: "2 I/O threads, guest alone",
    way: TWO_THREADS,
    model: |costs| rate(1.0, costs.guest_ns).min(rate(1.0 - costs.load_part, 2.0 * costs.io_thread_ns)),
    ..GUEST_ALONE
};

/// What two processors cannot show: each thread has its own. A guest with more vCPUs has its frames in as
/// many queues.
struct Reckoned {
    line: &'static str,
    vcpus: f64,
    two_threads: bool,
}

const THREE: Reckoned = Reckoned { line: "3 processors", vcpus: 1.0, two_threads: false };
const OF_THREADS: [Reckoned; 3] = [
    Reckoned { line: "1 I/O core, 1 vCPU", ..THREE },
    Reckoned { line: "2 I/O threads", two_threads: true, ..THREE },
    Reckoned { line: "2 vCPUs", vcpus: 2.0, ..THREE },
];

/// Million frames a second of a thread that has this part of a processor.
fn rate(part: f64, cost_ns: f64) -> f64 {
    part * 1e3 / cost_ns
}

/// Figure 2: more processors.
pub fn processors(plan: &Plan) -> Result<Found> {
    figure(plan, &[ONE, FREE, IO_ALONE, GUEST_ALONE], &[THREE])
}

/// Figure 5: more threads.
pub fn threads(plan: &Plan) -> Result<Found> {
    figure(plan, &[GUEST_ALONE, GUEST_BESIDE_TWO], &OF_THREADS)
}

/// Figure 9: virtio ports and those of netmap's kind.
pub fn netmap(plan: &Plan) -> Result<Found> {
    let mut found = figure(plan, &[IO_ALONE], &[THREE])?;
    let Found { rows, notes, .. } = interconnects::all(plan, &interconnects::Way::TWO)?;
    let named =
        |row: Row| Row { line: format!("2 processors, {}", row.line), picture: PICTURE.to_owned(), ..row };
    found.rows.extend(rows.into_iter().map(named));
    found.notes.extend(notes);
    Ok(found)
}

fn figure(plan: &Plan, shown: &[Shown], reckoned: &[Reckoned]) -> Result<Found> {
    let curve = |shown: &Shown| Curve {
        picture: PICTURE,
        name: shown.line.to_owned(),
        setup: Setup::new(shown.way, plan.cost_ns),
        placement: shown.placement,
    };
    let costs = costs(plan)?;
    let mut rows = measure(plan, &shown.iter().map(curve).collect::<Vec<_>>(), &LOADS)?;
    let calibrate = |(shown, row): (&Shown, &Row)| Calibration {
        line: shown.line.to_owned(),
        model_mpps: (shown.model)(&costs),
        measured_mpps: row.peak_mpps,
        ratio: (shown.model)(&costs) / row.peak_mpps,
    };
    let calibration = shown.iter().zip(&rows).map(calibrate).collect();
    rows.extend(reckoned.iter().map(|line| line.row(plan, &costs)));
    let (notes, model) = (vec![NOTE.to_owned()], Some((costs, calibration)));
    Ok(Found { notes, model, ..rows.into() })
}

impl Reckoned {
    /// Forwards what is offered, up to what the slowest thread can.
    fn row(&self, plan: &Plan, costs: &Costs) -> Row {
        let (io_ns, slowest_ns) = match self.two_threads {
            true => (2.0 * costs.io_thread_ns, costs.io_thread_ns),
            false => (costs.io_ns, costs.io_ns),
        };
        let most = rate(self.vcpus, costs.guest_ns).min(rate(1.0, slowest_ns));
        let point = |load: &f64| {
            let offered = load * 1e3 / plan.cost_ns;
            let forwarded = offered.min(most);
            let sample = Sample {
                offered,
                forwarded,
                refused: 1.0 - forwarded / offered,
                wasted: 0.0,
                vcpu: forwarded * costs.guest_ns / 1e3,
                io: forwarded * io_ns / 1e3,
                load: costs.load_part,
                late: 0.0,
                mode: Mode::Unknown,
            };
            (offered, vec![sample])
        };
        let loads = if plan.quick { &LOADS[..2] } else { &LOADS[..] };
        let points: Vec<_> = loads.iter().map(point).collect();
        let name = [PICTURE.to_owned(), format!("{} (model)", self.line)];
        Row { how: How::Model, ..plan.row(name, &points) }
    }
}

/// What a frame costs each thread: the least of all rounds, as what disturbs a thread only adds.
fn costs(plan: &Plan) -> Result<Costs> {
    let (mut guest, mut io, mut thread, mut load) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let part = Class::reserved(PART, PERIOD);
    for round in Round::all(plan.rounds) {
        let own = Setup::new(SHARED_CORE, plan.cost_ns);
        let (of_guest, of_load) = play(&own, plan.cpus, |bench| {
            bench.place(Placement::GuestAlone(part))?;
            let guest = cost(plan, bench, bench.vcpus[0].thread(), own.cost_ns)?;
            Ok((guest.of_frame_ns, cost(plan, bench, this_thread(), own.cost_ns)?.part))
        })?;
        // Beside a guest that is faster than I/O, so that it is I/O that limits.
        let busiest = |way: Way| {
            play(&Setup::new(way, DPDK_NS), plan.cpus, |bench| {
                bench.place(Placement::IoAlone(part))?;
                let costs = bench.io.clone().into_iter().map(|thread| cost(plan, bench, thread, DPDK_NS));
                costs
                    .map(|cost| Ok(cost?.of_frame_ns))
                    .try_fold(0.0, |most: f64, of: Result<f64>| Ok(most.max(of?)))
            })
        };
        let (of_io, of_thread) = (busiest(SHARED_CORE)?, busiest(TWO_THREADS)?);
        eprintln!(
            "{round}: a frame: guest {of_guest:.0} ns, I/O core {of_io:.0} ns, I/O thread {of_thread:.0} ns"
        );
        guest.push(of_guest);
        load.push(of_load);
        io.push(of_io);
        thread.push(of_thread);
    }
    let [guest_ns, io_ns, io_thread_ns, load_part] = [guest, io, thread, load].map(|of| percentile(of, 0));
    Ok(Costs { guest_ns, io_ns, io_thread_ns, load_part })
}

/// What a thread costs.
struct Cost {
    /// Its part of a processor.
    part: f64,
    of_frame_ns: f64,
}

/// What this thread takes while more frames are offered than a guest of this cost forwards.
fn cost(plan: &Plan, bench: &mut Bench<'_>, thread: u32, guest_ns: f64) -> Result<Cost> {
    // A sample tells what the I/O threads had.
    let io = std::mem::replace(&mut bench.io, vec![thread]);
    let sample = bench.offer(OFFERED.min(1e3 / guest_ns), plan.whole(PERIOD, 10).window);
    bench.io = io;
    let sample = sample?;
    Ok(Cost { part: sample.io, of_frame_ns: sample.io * 1e3 / sample.forwarded })
}
