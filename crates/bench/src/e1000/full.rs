//! Full speed: two drivers that poll, one I/O core between them.

use std::time::Instant;

use serde::Serialize;
use sidecore_driver::memory::Page;

use super::super::distance::Distance;
use super::super::modes::Modes;
use super::super::runner::{by_turns, figures};
use super::nic::{Nic, Part, Setup};
use super::stage::{frame, Limits, Stage};
use super::{text, Args};

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

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// `e1000`, `e1000e` or `rtl8169`.
    pub model: &'static str,
    /// With a communication status block.
    pub csb: bool,
    /// Bytes of a frame.
    pub size: usize,
    /// Both directions at once.
    pub both_ways: bool,
    /// Million frames a second: every round.
    rounds: Vec<f64>,
    #[serde(flatten)]
    pub figures: Figures,
    /// Frames that did not come, or not in their place.
    lost: u64,
    /// Whether the drivers' memory had huge pages.
    huge_pages: bool,
    /// Million frames a second, by the distance of the two processors.
    modes: Modes,
}

/// One end: what it has sent and received.
struct End {
    nic: Nic,
    data: Vec<u8>,
    sent: u64,
    received: u64,
    wrong: u64,
}

impl End {
    fn send(&mut self, to: &End) -> Result<(), sidecore_driver::Error> {
        if self.sent - to.received > WINDOW - BURST as u64 {
            return Ok(());
        }
        let (data, first) = (&self.data, self.sent);
        let sent = self.nic.send_with(BURST, |i, buffer| {
            // The buffers hold the frame already; only the number is new.
            let tag = (first + i as u64).to_le_bytes();
            if buffer[..6] != data[..6] {
                buffer[..data.len()].copy_from_slice(data);
            }
            buffer[TAG..TAG + 8].copy_from_slice(&tag);
            data.len()
        })?;
        self.sent += sent as u64;
        Ok(())
    }

    fn receive(&mut self) -> Result<(), sidecore_driver::Error> {
        let (received, wrong, len) = (&mut self.received, &mut self.wrong, self.data.len());
        self.nic.receive(4 * BURST, |bytes| {
            let mut tag = [0; 8];
            tag.copy_from_slice(&bytes[TAG..TAG + 8]);
            if u64::from_le_bytes(tag) != *received || bytes.len() != len {
                *wrong += 1;
            }
            *received += 1;
        })?;
        Ok(())
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
    let mut end = |from: u8| -> Result<End, String> {
        let nic = stage.card(part, Limits::NONE, setup)?;
        Ok(End { nic, data: frame(from, 1 - from, size), sent: 0, received: 0, wrong: 0 })
    };
    let mut ends = [end(0)?, end(1)?];
    // Both stations are known before anything counts.
    let run = |ends: &mut [End; 2], seconds: f64| -> Result<f64, String> {
        let (start, mut turns) = (Instant::now(), 0u32);
        loop {
            let [a, b] = &mut *ends;
            a.send(b).map_err(text)?;
            b.receive().map_err(text)?;
            if both_ways || b.sent == 0 {
                b.send(a).map_err(text)?;
            }
            a.receive().map_err(text)?;
            turns = turns.wrapping_add(1);
            if turns % 64 == 0 && start.elapsed().as_secs_f64() >= seconds {
                return Ok(start.elapsed().as_secs_f64());
            }
        }
    };
    run(&mut ends, 0.2)?;
    let count = |ends: &[End; 2]| ends[0].received + ends[1].received;
    let trapped = |ends: &[End; 2]| ends[0].nic.traps() + ends[1].nic.traps();
    let samples = by_turns(args.rounds, &[()], |round, ()| {
        let distance = Distance::before(&args.cpus.pair());
        let (before, busy, exits) = (count(&ends), stage.engine.busy(), trapped(&ends));
        let seconds = run(&mut ends, args.window.as_secs_f64())?;
        let (frames, now) = ((count(&ends) - before) as f64, stage.engine.busy());
        let mpps = frames / seconds / 1e6;
        let figures = Figures {
            mpps,
            gbps: mpps * size as f64 * 8.0 / 1e3,
            ns_per_frame: (now.0 - busy.0) as f64 / (now.1 - busy.1).max(1) as f64,
            traps: (trapped(&ends) - exits) as f64 / frames.max(1.0),
        };
        let mode = distance.after();
        eprintln!("{round}: {} {size} B: {mpps:.2} Mpps, {}", part.name(), mode.name());
        Ok((figures, mode))
    })?;
    let samples = &samples[0];
    Ok(Row {
        model: part.name(),
        csb: setup.csb,
        size,
        both_ways,
        rounds: samples.iter().map(|it| it.0.mpps).collect(),
        figures: Figures::of(samples.iter().map(|it| &it.0)),
        lost: ends[0].wrong + ends[1].wrong,
        huge_pages: setup.page == Page::Huge,
        modes: Modes::of(samples, |(it, mode)| (*mode, it.mpps)),
    })
}
