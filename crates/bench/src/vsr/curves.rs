//! Rate forwarded by rate offered: figures whose lines differ in how router and I/O are set up.

use super::super::sched::cores::{Way, OURS};
use super::report::{self, Row};
use super::stage::{play, Placement, Setup, ALONE, OUTSIDE_RING, SHARED_CORE, THREADS};
use super::threads::Class;
use super::{lines, number, Found, Plan, JOINS};
use crate::prelude::*;

/// Loads of a figure, in rates that the guest would have if it did nothing but route.
pub const LOADS: [f64; 9] = [0.2, 0.4, 0.6, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0];
/// Those of a figure with longer measurements, or with more lines.
const FEWER: [f64; 7] = [0.3, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0];
const FEWEST: [f64; 4] = [0.4, 0.8, 1.2, 1.6];
/// Lengths of queues in the paper's Figures 13 to 15.
pub const QUEUES: [u16; 5] = [5, 35, 50, 110, 500];
/// The paper's period of a reservation, and its parts in Figures 14 and 15.
pub const PERIOD: Duration = Duration::from_millis(200);

/// A line.
pub struct Curve {
    pub picture: &'static str,
    pub name: String,
    pub setup: Setup,
    pub placement: Placement,
}

/// Figure 3: guest and I/O in real-time classes on one processor, and on two.
pub fn priorities(plan: &Plan) -> Result<Vec<Row>> {
    let mut curves = Vec::new();
    for (switched, picture) in JOINS {
        let setup = |way: Way| Setup { switched, ..Setup::new(Way { card: plan.card, ..way }, plan.cost_ns) };
        for (vcpu, io) in [(98, 99), (99, 98), (99, 99)] {
            let placement = Placement::Together(Class::Fifo(vcpu), Class::Fifo(io));
            let name = format!("vc{vcpu},vh{io}");
            curves.push(Curve { picture, name, setup: setup(SHARED_CORE), placement });
        }
        let (name, placement) = ("separate".to_owned(), Placement::IoAlone(ALONE));
        curves.push(Curve { picture, name, setup: setup(OURS), placement });
    }
    measure(plan, &curves, &LOADS)
}

/// Figures 13 to 15: queues of several lengths, with an I/O core and with a thread for each device; the guest
/// has as much of the processor as it can get, or this part of it.
pub fn queues(plan: &Plan, share: Option<f64>) -> Result<Found> {
    let mut curves = Vec::new();
    for (way, pictures) in [
        (SHARED_CORE, ["I/O core, wires", "I/O core, switches"]),
        (THREADS, ["thread per device, wires", "thread per device, switches"]),
    ] {
        for ((switched, _), picture) in JOINS.into_iter().zip(pictures) {
            for queue in QUEUES {
                let setup = Setup { switched, ..Setup::new(way, plan.cost_ns) };
                // Where frames wait: on a wire in the sender's ring, as long as the receiver has no room.
                let setup = match switched {
                    true => Setup { guest: [queue, setup.guest[1]], ..setup },
                    false => Setup { outside: queue.min(OUTSIDE_RING), ..setup },
                };
                let placement = match share {
                    Some(share) => Placement::Together(Class::reserved(share, PERIOD), Class::Fair),
                    None => Placement::Together(Class::Fifo(99), Class::Fifo(99)),
                };
                curves.push(Curve { picture, name: queue.to_string(), setup, placement });
            }
        }
    }
    let rows = match share {
        // A whole number of periods.
        Some(_) => measure(&plan.whole(PERIOD, 2), &curves, &FEWEST)?,
        None => measure(plan, &curves, &FEWER)?,
    };
    let served = |by: &'static str| rows.iter().filter(move |row| row.picture.starts_with(by));
    let best = report::best(served(SHARED_CORE.name));
    let longest = QUEUES[QUEUES.len() - 1].to_string();
    let threads = served(THREADS.name).filter(|row| row.line == longest);
    let ratios = [
        number("overload_ratio", best.as_ref().map(|(ratio, _)| *ratio)),
        number("overload_ratio_threads", report::worst(threads)),
    ];
    // The line of which it is.
    let line = best.map(|(_, line)| ("best".to_owned(), line.into()));
    let summary = ratios.into_iter().chain([line]).flatten().collect();
    Ok(Found { summary, ..rows.into() })
}

/// All curves, by turns in each round.
pub fn measure(plan: &Plan, curves: &[Curve], loads: &[f64]) -> Result<Vec<Row>> {
    let loads = if plan.quick { &loads[..2] } else { loads };
    let loads: Vec<f64> = loads.iter().map(|load| load * 1e3 / plan.cost_ns).collect();
    let name = |curve: &Curve| [curve.picture.to_owned(), curve.name.clone()];
    lines(
        plan,
        curves,
        name,
        |_| loads.clone(),
        |curve, loads| {
            play(&curve.setup, plan.cpus, |bench| {
                bench.place(curve.placement)?;
                loads.iter().map(|load| bench.offer(*load, plan.window)).collect()
            })
        },
    )
}
