//! The sending loops.

use std::time::{Duration, Instant};

use super::address::Mac;
use super::counters::Job;
use super::end::{Lane, Result, Source, Want};
use super::pace::{Idle, Pace};
use super::verify::{Acks, Numbered};

/// How long the other side may take no frame at all before the run has failed.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two hellos.
const HELLO: Duration = Duration::from_millis(100);

/// Sends `job.count` frames.
pub fn plain<L: Lane>(lane: &mut L, source: &mut impl Source, job: &Job<'_>) -> Result<()> {
    let mut pace = Pace::new(job.rate, job.burst);
    // To wait for room for a whole batch makes batches; for more than half of the queue, makes gaps.
    let enough = pace.burst.min(lane.depth().div_ceil(2));
    let (mut idle, mut left) = (Idle::new(job.busy), job.count);
    job.started();
    while left > 0 && !job.is_over() {
        if !pace.wait(job.busy) {
            continue;
        }
        let mut batch = pace.burst.min(usize::try_from(left).unwrap_or(usize::MAX));
        let mut waited = false;
        while batch > 0 && !job.is_over() {
            let room = lane.room()?;
            if room < enough.min(batch) && !(waited && room > 0) {
                idle.wait(lane, Want::Room)?;
                // A sleep ends with little room: that has to do.
                waited = idle.time() > Duration::from_millis(1);
                continue;
            }
            let sent = lane.send(batch.min(room), source)?;
            job.counters.batch(sent, room);
            batch -= sent.frames;
            left -= sent.frames as u64;
            idle.over();
        }
    }
    job.ended(drain(lane, job)?);
    Ok(())
}

/// Waits until everything that was sent has been taken; what has not would be lost with the port.
pub fn drain<L: Lane>(lane: &mut L, job: &Job<'_>) -> Result<Instant> {
    let start = Instant::now();
    let mut idle = Idle::new(job.busy);
    while !lane.is_drained()? {
        if start.elapsed() > PATIENCE {
            return Err(format!("the last frames were not taken for {} s", PATIENCE.as_secs()));
        }
        // There is no event for the last slot of a ring: its room may be there already.
        if idle.time() < Duration::from_millis(1) {
            idle.wait(lane, Want::Room)?;
        } else {
            std::thread::sleep(Duration::from_micros(100));
            lane.sleep(Want::Room, Duration::ZERO)?;
        }
    }
    Ok(Instant::now())
}

/// Sends `job.count` numbered frames, at most `window` ahead of the receiver's acknowledgements. `adopt`: to
/// the address that answers.
pub fn verified<L: Lane>(
    lane: &mut L,
    source: &mut Numbered,
    job: &Job<'_>,
    window: u64,
    adopt: bool,
) -> Result<()> {
    let mut acks = Acks::default();
    let Some(base) = greet(lane, source, job, &mut acks)? else { return Ok(()) };
    if let Some((_, mac)) = acks.last.filter(|_| adopt) {
        source.set_destination(Mac(mac));
    }
    let mut pace = Pace::new(job.rate, job.burst);
    let (mut idle, mut sent, mut heard) = (Idle::new(job.busy), 0, (0, Instant::now()));
    job.started();
    while !job.is_over() {
        lane.receive(usize::MAX, &mut acks)?;
        let acknowledged = acks.last.map_or(0, |(count, _)| count - base);
        if acknowledged > heard.0 {
            heard = (acknowledged, Instant::now());
            idle.over();
        }
        if acknowledged >= job.count {
            break;
        }
        let allowed = (window - (sent - acknowledged.min(sent))).min(job.count - sent);
        let batch = pace.burst.min(usize::try_from(allowed).unwrap_or(usize::MAX));
        let room = lane.room()?.min(batch);
        if room > 0 {
            if pace.wait(job.busy) {
                let taken = lane.send(room, source)?;
                job.counters.batch(taken, room);
                sent += taken.frames as u64;
                heard.1 = Instant::now();
                idle.over();
            }
            continue;
        }
        if heard.1.elapsed() > PATIENCE {
            return Err(format!(
                "no acknowledgement for {} s: of {sent} packets {acknowledged} have arrived, the others were lost",
                PATIENCE.as_secs()
            ));
        }
        idle.wait(lane, Want::Frames)?;
    }
    job.ended(Instant::now());
    Ok(())
}

/// Says hello until a receiver answers; where that receiver's count starts. `None`: it is time to end.
fn greet<L: Lane>(
    lane: &mut L,
    source: &mut Numbered,
    job: &Job<'_>,
    acks: &mut Acks,
) -> Result<Option<u64>> {
    let mut idle = Idle::new(job.busy);
    let mut said: Option<Instant> = None;
    while !job.is_over() {
        lane.receive(usize::MAX, acks)?;
        if let Some((count, _)) = acks.last {
            return Ok(Some(count));
        }
        if said.is_none_or(|said| said.elapsed() > HELLO) && lane.room()? > 0 {
            lane.send(1, &mut source.hello())?;
            said = Some(Instant::now());
        }
        idle.wait(lane, Want::Frames)?;
    }
    Ok(None)
}
