//! Full speed: two drivers that poll, one I/O core between them.

use super::ends::{Driver, End, Flow, Flown};
use super::nic::{Part, Setup};
use super::stage::{frame, Limits, Stage};
use super::Args;
use crate::prelude::*;

/// Entries of the rings, frames of a doorbell, and frames under way in one direction.
const RING: u16 = 1024;
const BURST: usize = 64;
const WINDOW: u64 = 512;
/// Where a frame's number stands: behind Ethernet, IP and UDP headers.
const TAG: usize = 42;

figures! {
    /// One measurement, or medians of them.
    pub struct Figures {
        /// Million frames a second, both directions added, and the same in Gbit/s of frames.
        mpps, gbps,
        /// Nanoseconds of the I/O core for each frame.
        ns_per_frame,
        /// Accesses for each frame that would have left a guest, of both drivers.
        traps,
    }
}

/// Measures all cards with both sizes, one way and both ways; with a status block, too, where doorbells trap
/// without.
pub fn measure(args: &Args, page: Page) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for &part in &args.parts {
        let blocks = if part == Part::Rtl8169 { &[false, true][..] } else { &[false] };
        for &csb in blocks {
            for size in [64, 1500] {
                for both_ways in [false, true] {
                    let setup = Setup { ring: RING, page, map: true, itr: 0, csb };
                    rows.push(one(args, part, &setup, size, both_ways)?);
                }
            }
        }
    }
    Ok(rows)
}

fn one(args: &Args, part: Part, setup: &Setup, size: usize, both_ways: bool) -> Result<Row, String> {
    let mut stage = Stage::new(args.cpus.io_core)?;
    let mut end = |from: u8| -> Result<End> {
        let nic = stage.card(part, Limits::NONE, setup)?;
        Ok(End::new(Driver::Card(nic), frame(from, 1 - from, size), TAG, None))
    };
    let mut ends = [end(0)?, end(1)?];
    // Both stations are known before anything counts.
    let [a, b] = &mut ends;
    b.greet(a)?;
    let flow = Flow { burst: BURST, window: WINDOW, both_ways };
    flow.run(&mut ends, Duration::from_millis(200))?;
    let traps = |end: &End| match &end.driver {
        Driver::Card(nic) => nic.traps(),
        _ => 0,
    };
    let trapped = |ends: &[End; 2]| ends.iter().map(traps).sum::<u64>();
    let samples = by_turns(args.rounds, &[()], |round, ()| {
        let (distance, before) = (Distance::before(&args.cpus.pair()), trapped(&ends));
        let Flown { frames, mpps, gbps, ns_per_frame } =
            flow.measure(&stage.engine, &mut ends, args.window)?;
        let traps = (trapped(&ends) - before) as f64 / frames.max(1) as f64;
        let mode = distance.after();
        eprintln!("{round}: {} {size} B: {mpps:.2} Mpps, {}", part.name(), mode.name());
        Ok((Figures { mpps, gbps, ns_per_frame, traps }, mode))
    })?;
    Ok(row(part, setup, size, both_ways, &samples[0], ends[0].wrong + ends[1].wrong))
}

row! {
    fn row(
        part: Part,
        setup: &Setup,
        size: usize,
        both_ways: bool,
        samples: &[(Figures, Mode)],
        lost: u64,
    ) -> Row {}

    /// What was measured.
    pub struct Row {
        /// `e1000`, `e1000e` or `rtl8169`.
        pub model: &'static str = part.name(),
        /// With a communication status block.
        pub csb: bool = setup.csb,
        /// Bytes of a frame.
        pub size: usize = size,
        /// Both directions at once.
        pub both_ways: bool = both_ways,
        /// Million frames a second: every round.
        rounds: Vec<f64> = samples.iter().map(|it| it.0.mpps).collect(),
        #[serde(flatten)]
        pub figures: Figures = Figures::of(samples.iter().map(|it| &it.0)),
        /// Frames that did not come, or not in their place.
        lost: u64 = lost,
        /// Whether the drivers' memory had huge pages.
        huge_pages: bool = setup.page == Page::Huge,
        /// Million frames a second, by the distance of the two processors.
        modes: Modes = Modes::of(samples, |(it, mode)| (*mode, it.mpps)),
    }
}
