//! What of an I/O core's time guests have that share it: by their weights, and by a budget with and without
//! `reclaim`.
//!
//! Theory of operation. Weights mean something only where the core is full, and one thread plays all guests,
//! so it must have less to do than the core: frames are jumbo frames ([`JUMBO`]). Each share is measured
//! twice: *by time*, which is the core's own account, and *by frames* that arrived, which does not trust it.
//! A budget is a part of the clock's time, whatever else the processor does; weights divide what the core
//! has. So on a machine that does other things, too, what may be expected of a setting follows from the part
//! of the time in which the core's thread had its processor ([`cores_ran`]).

use sidecore_engine::core::{CpuBudget, Service, DEFAULT_WEIGHT};
use sidecore_engine::port::Port;

use super::super::cores::{cores_ran, JUMBO};
use super::super::guest::{Players, Work};
use super::super::stage::Stage;
use super::{Measured, Sample, Setting};
use crate::prelude::*;

/// Weights of one guest; the other one has the usual one.
const WEIGHTS: [u16; 4] = [100, 200, 400, 800];
/// A fifth of a core.
const RUNTIME: Duration = Duration::from_millis(1);
const PERIOD: Duration = Duration::from_millis(5);

/// What two guests had: parts of the time.
struct Had {
    time: [f64; 2],
    /// Frames a second.
    frames: [f64; 2],
    /// The core's thread.
    ran: f64,
    mode: Mode,
}

impl Had {
    /// What was granted, and what came of it by time and by frames.
    fn sample(&self, granted: f64, measured: f64, frames: f64) -> Sample {
        let (frames, core_ran) = (Some(frames), Some(self.ran));
        Sample { granted: Some(granted), measured, frames, core_ran, mode: self.mode }
    }
}

/// Has the first guest flood with this service, and the other one if `both`.
fn flood(
    players: &mut Players,
    ports: [&Port; 2],
    window: Duration,
    service: Service,
    both: bool,
) -> Result<Had> {
    ports[0].tenant.set(service);
    let work = |guest: usize| if guest == 0 || both { Work::Jumbo } else { Work::Nothing };
    let counters = || {
        let [own, other] = ports.map(|port| port.tenant.usage().busy_ns);
        [own, other, cores_ran()]
    };
    let (report, [own, other, ran]) = players.measure_with(work, window, counters)?;
    let part = |ns: u64| ns as f64 / 1e9 / report.seconds;
    Ok(Had {
        time: [part(own), part(other)],
        frames: [0, 1].map(|guest| report.rate(guest..guest + 1)),
        ran: part(ran),
        mode: report.mode,
    })
}

/// The first one's part of what both have.
fn part([own, other]: [f64; 2]) -> f64 {
    own / (own + other)
}

/// Two guests flood, one of which has each of these weights.
pub fn measure_weights(common: &Common) -> Result<Vec<Measured>> {
    let stage = Stage::start(JUMBO, &common.io_cores[..1], 2)?;
    let ports = [0, 1].map(|guest| &**stage.guest(guest));
    let skipped = if common.quick { WEIGHTS.len() - 1 } else { 0 };
    stage.play(common.load_core, |players| {
        let one = |weight: u16| {
            let service = Service { weight, ..Service::default() };
            let had = flood(players, ports, common.repeat.window, service, true)?;
            let granted = part([weight, DEFAULT_WEIGHT].map(f64::from));
            Ok((Setting::Weight { weight }, had.sample(granted, part(had.time), part(had.frames))))
        };
        WEIGHTS.into_iter().skip(skipped).map(one).collect()
    })
}

/// One guest with a budget floods, beside another one that does nothing or floods.
pub fn measure_reclaims(common: &Common) -> Result<Vec<Measured>> {
    let stage = Stage::start(JUMBO, &common.io_cores[..1], 2)?;
    let ports = [0, 1].map(|guest| &**stage.guest(guest));
    stage.play(common.load_core, |players| {
        let alone = flood(players, ports, common.repeat.window, Service::default(), false)?;
        // Frames of a core that does nothing else.
        let whole = alone.frames[0] / alone.time[0];
        let one = |(reclaim, busy): (bool, bool)| {
            let budget = Some(CpuBudget { runtime: RUNTIME, period: PERIOD, reclaim });
            let service = Service { budget, ..Service::default() };
            let had = flood(players, ports, common.repeat.window, service, busy)?;
            let sample = had.sample(expected(reclaim, busy, had.ran), had.time[0], had.frames[0] / whole);
            Ok((Setting::Reclaim { reclaim, busy }, sample))
        };
        [(false, false), (false, true), (true, false), (true, true)].into_iter().map(one).collect()
    })
}

/// The part of the time that the guest with the budget may expect, where the core's thread has its processor
/// for a part of `ran`.
fn expected(reclaim: bool, busy: bool, ran: f64) -> f64 {
    let budget = (RUNTIME.as_secs_f64() / PERIOD.as_secs_f64()).min(ran);
    // Weights are the same.
    let share = if busy { 0.5 } else { 1.0 };
    if reclaim {
        budget + (ran - budget) * share
    } else {
        budget
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_expected_follows_from_the_time_that_the_core_had() {
        let all = [(false, false), (false, true), (true, false), (true, true)];
        let of = |ran: f64| all.map(|(reclaim, busy)| (100.0 * expected(reclaim, busy, ran)).round());
        assert_eq!(of(1.0), [20.0, 20.0, 100.0, 60.0]);
        assert_eq!(of(0.5), [20.0, 20.0, 50.0, 35.0]);
        assert_eq!(of(0.1), [10.0, 10.0, 10.0, 10.0]);
        assert_eq!(part([8.0, 1.0]), 8.0 / 9.0);
    }
}
