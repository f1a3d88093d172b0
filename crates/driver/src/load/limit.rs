//! The limit of one hop: one core that does nothing but copy frames from one shared-memory region to another.
//!
//! A switch that copies each frame once can be as fast as this at most, less what looking, deciding and
//! telling cost. Both regions are as ring ports have them: buffers of 2048 bytes, taken in their order.
//!
//! Invariant kept by the `unsafe` here: source and destination are whole buffers of two different regions
//! that nothing else refers to.

use std::time::{Duration, Instant};

use super::pin;
use crate::error::{Error, Result};
use crate::memory::{Memory, Page};

/// Bytes of a buffer.
const BUFFER: usize = 2048;
/// Frames between two looks at the clock.
const LAP: u16 = 256;

/// Nanoseconds for a frame of `len` bytes, over `window`, on processor `core`, from a ring of so many buffers
/// to a ring of so many: what fits into the processor's caches is copied faster.
///
/// # Errors
/// No memory, no such processor, or frames longer than a buffer.
pub fn copy_limit(core: usize, len: usize, slots: [u16; 2], window: Duration) -> Result<f64> {
    if len > BUFFER || slots.contains(&0) {
        return Err(Error::Config(format!("frames of {len} bytes in {slots:?} buffers of {BUFFER}")));
    }
    pin(core)?;
    let region = |slots: u16| {
        let memory = Memory::new(Memory::buffers_size(usize::from(slots), BUFFER), Page::Small)?;
        let buffers = memory.alloc_buffers(usize::from(slots), BUFFER)?;
        // All pages are there before time counts.
        (0..slots).for_each(|n| memory.write(buffers.offset(n), &[n.to_le_bytes()[0]; BUFFER]));
        Ok::<_, Error>((memory, buffers))
    };
    let ((from, from_buffers), (to, to_buffers)) = (region(slots[0])?, region(slots[1])?);
    let mut at = [0; 2];
    let mut lap = || {
        for _ in 0..LAP {
            let source = from.at(from_buffers.offset(at[0]), BUFFER);
            let destination = to.at(to_buffers.offset(at[1]), BUFFER);
            for (at, slots) in at.iter_mut().zip(slots) {
                *at = if *at + 1 == slots { 0 } else { *at + 1 };
            }
            // SAFETY: `len` is within both buffers, which lie in different mappings.
            unsafe { std::ptr::copy_nonoverlapping(source, destination, std::hint::black_box(len)) };
        }
    };
    for _ in 0..slots[0].max(slots[1]) / LAP + 1 {
        lap();
    }
    let (start, mut laps) = (Instant::now(), 0u64);
    while start.elapsed() < window {
        lap();
        laps += 1;
    }
    let frames = laps * u64::from(LAP);
    Ok(start.elapsed().as_nanos() as f64 / frames.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_time() {
        let time = |len| copy_limit(0, len, [64, 80], Duration::from_millis(20));
        assert!(time(60).unwrap() > 0.0);
        assert!(time(2049).is_err());
    }
}
