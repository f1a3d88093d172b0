//! The receiving loops.

use std::time::{Duration, Instant};

use super::counters::Job;
use super::end::{Lane, Result, Sink, Source, Taken, Want};
use super::pace::Idle;
use super::verify::{Checker, Findings};

/// With `-W`: so long without a frame is the end.
const SILENCE: Duration = Duration::from_secs(1);

/// Receives `job.count` frames; with `until_silence` no more than come without a second's pause.
pub fn plain<L: Lane, S: Sink>(lane: &mut L, sink: &mut S, job: &Job<'_>, until_silence: bool) -> Result<()> {
    let (mut idle, mut begun) = (Idle::new(job.busy), false);
    loop {
        let left = job.left();
        if left == 0 || job.is_over() {
            break;
        }
        let limit = job.burst.min(usize::try_from(left).unwrap_or(usize::MAX));
        let taken = lane.receive(limit, sink)?;
        if taken.frames > 0 {
            if !begun {
                job.started();
            }
            begun = true;
            job.counters.batch(taken, taken.frames);
            idle.over();
            continue;
        }
        if until_silence && begun && idle.time() > SILENCE {
            break;
        }
        idle.wait(lane, Want::Frames)?;
    }
    // The time of the last frame, not of the end of waiting for more.
    job.ended(Instant::now() - idle.time());
    Ok(())
}

/// Receives and checks `job.count` numbered frames, and acknowledges them.
pub fn verified<L: Lane>(lane: &mut L, checker: &mut Checker, job: &Job<'_>) -> Result<()> {
    let mut idle = Idle::new(job.busy);
    let done = |found: &Findings| found.verified.saturating_add(found.lost) >= job.count;
    while !done(&checker.findings) && !job.is_over() {
        let before = checker.seen();
        let left = usize::try_from(job.count - before.frames as u64).unwrap_or(usize::MAX);
        let came = lane.receive(job.burst.min(left), checker)?.frames;
        let after = checker.seen();
        if after.frames > before.frames {
            if before.frames == 0 {
                job.started();
            }
            let (frames, bytes) = (after.frames - before.frames, after.bytes - before.bytes);
            job.counters.batch(Taken { frames, bytes }, frames);
            idle.over();
        }
        if let Some(mut ack) = checker.due(came == 0 || done(&checker.findings)) {
            say(lane, &mut ack)?;
        }
        if came == 0 {
            idle.wait(lane, Want::Frames)?;
        }
    }
    job.ended(Instant::now() - idle.time());
    if let Ok(mut findings) = job.counters.findings.lock() {
        *findings = Some(checker.findings);
    }
    Ok(())
}

/// Sends one frame, and waits a second for room if there is none.
pub fn say<L: Lane>(lane: &mut L, frame: &mut impl Source) -> Result<()> {
    let start = Instant::now();
    while lane.room()? == 0 && start.elapsed() < Duration::from_secs(1) {
        std::thread::yield_now();
    }
    lane.send(1, frame)?;
    Ok(())
}
