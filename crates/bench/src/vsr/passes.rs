//! What a frame through a guest router costs: beside testpmd's vhost ports, and beside a thread for each
//! device.
//!
//! Each of the three has the same processor and the same router, whose stack is as short as that of a router
//! on DPDK, and which shares the other processor with the load by turns (`turns`). A polling processor is
//! spent whether it has frames or not, so what a frame costs testpmd is all of it; our I/O core says what of
//! it was work.

use std::path::PathBuf;

use sidecore_driver::load::ticks_per_ns;

use super::super::peers::{Testpmd, VhostPort};
use super::super::sched::cores::{Way, POLLED};
use super::super::sched::stage::Stage;
use super::stage::{Sample, THREADS};
use super::turns::{Frames, Turns};
use super::Plan;
use crate::prelude::*;

/// Bytes of a frame, without check sequence, and entries of rings.
const SIZE: usize = 60;
const RING: u16 = 1024;
/// The three.
const WHO: [&str; 3] = ["sidecore", "thread per device", "testpmd"];

/// All three, by turns in each round; and why one is missing.
pub fn measure(plan: &Plan) -> Result<(impl Serialize, impl Serialize, Vec<String>)> {
    let is_peer = |who: &&'static str| (*who, *who == WHO[2]);
    let (samples, missing) = beside_peers(plan.rounds, &WHO, is_peer, |round, who| {
        let sample = match *who {
            "sidecore" => ours(plan, POLLED)?,
            "testpmd" => testpmd(plan)?,
            _ => ours(plan, Way { interrupts: true, ..THREADS })?,
        };
        eprintln!("{round}: {who}: {:.2} Mpps, {}", sample.forwarded, sample.mode.name());
        Ok(vec![sample])
    })?;
    let samples: Vec<Vec<Sample>> =
        samples.into_iter().map(|of| of.into_iter().flatten().collect()).collect();
    let per_ns = ticks_per_ns();
    let of = |samples: &[Sample]| Modes::of(samples, |sample| (sample.mode, sample.forwarded));
    let rows = WHO.into_iter().zip(&samples).filter(|(_, samples)| !samples.is_empty());
    let row = |(who, of_who): (&'static str, &Vec<Sample>)| {
        let modes = match who == WHO[0] {
            true => of(of_who)
                .over("ratio_to_testpmd", &of(&samples[2]))
                .over("ratio_to_threads", &of(&samples[1])),
            false => of(of_who),
        };
        fields! {
            who,
            mpps: Range::of(of_who.iter().map(|sample| sample.forwarded)),
            /// Cycles of its processor for a forwarded frame, which passes it twice.
            cycles: middle(of_who, |sample| cycles(sample, per_ns)),
            io_busy: Some(middle(of_who, |sample| sample.io)).filter(|_| who == WHO[0]),
            modes,
        }
    };
    let rows: Vec<_> = rows.map(row).collect();
    let [ours, threads, testpmd] = &samples[..] else { return Err("not all three".to_owned()) };
    let ratio = |theirs: &[Sample], value: &dyn Fn(&Sample) -> f64| near(ours, value) / near(theirs, value);
    let rate = |sample: &Sample| sample.forwarded;
    let beside = |value: &dyn Fn(&Sample) -> f64| Some(ratio(testpmd, value)).filter(|_| !testpmd.is_empty());
    // How many times as much, by the medians of rounds that were near if there are some, else of all.
    let summary = fields! {
        mpps: near(ours, &rate),
        ratio_testpmd: beside(&rate),
        cycles_ratio: beside(&|sample| cycles(sample, per_ns)),
        ratio_threads: ratio(threads, &rate),
    };
    Ok((rows, summary, missing.into_values().collect()))
}

/// The median of samples that were near, if there are some.
fn near(samples: &[Sample], value: &dyn Fn(&Sample) -> f64) -> f64 {
    let some = samples.iter().any(|sample| sample.mode == Mode::Near);
    median(samples.iter().filter(|sample| !some || sample.mode == Mode::Near).map(value))
}

/// Cycles of the I/O processor for a frame.
fn cycles(sample: &Sample, per_ns: f64) -> f64 {
    sample.io * 1e3 * per_ns / sample.forwarded
}

fn frames(plan: &Plan) -> Frames {
    Frames { bytes: SIZE, cost_ns: plan.cost_ns, ring: RING }
}

fn ours(plan: &Plan, way: Way) -> Result<Sample> {
    let io = Stage::start(way, &[plan.cpus.io_core], 2)?;
    Turns::on(&io, plan.cpus, frames(plan), |turns| turns.measure(plan.window))
}

/// Four vhost ports, of which it joins the first two and the last two.
fn testpmd(plan: &Plan) -> Result<Sample> {
    let scratch = Scratch::new("sc-vsr")?;
    // Outside, guest, guest, outside.
    let paths: Vec<PathBuf> = ["a", "b", "c", "d"].into_iter().map(|name| scratch.file(name)).collect();
    let ports: Vec<_> = paths.iter().map(|path| VhostPort { path: path.clone(), client: false }).collect();
    let _testpmd = Testpmd::start(plan.cpus.io_core, &ports, 1)?;
    let pairs = [[1, 0], [2, 3]].map(|pair: [usize; 2]| pair.map(|at| paths[at].clone()));
    on(plan.cpus.load_core, || {
        let sample = Turns::connect(&pairs, plan.cpus, frames(plan), None)?.measure(plan.window)?;
        Ok(Sample { io: 1.0, ..sample })
    })
}
