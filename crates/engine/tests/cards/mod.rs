//! What the tests of cards have in common: waiting, frames, and that none gets lost.

// No test uses all of it.
#![allow(dead_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use sidecore_engine::packet::Mac;
use sidecore_engine::port::Port;

/// Longer than anything takes unless it is broken.
pub const LIMIT: Duration = Duration::from_secs(20);

/// Waits for something that happens by itself soon.
pub fn await_true(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        std::thread::yield_now();
    }
}

/// Σ in + Σ made = Σ out + Σ drops, between two batches. A frame is seen by its receiver before the batch
/// that it came in is counted, so this waits for the end of a batch.
pub fn assert_conserved(ports: &[Arc<Port>]) {
    await_true("frames in + made = frames out + drops", || {
        let totals: Vec<_> = ports.iter().map(|port| port.counters.totals()).collect();
        let came: u64 = totals.iter().map(|t| t.in_frames + t.made).sum();
        let went: u64 = totals.iter().map(|t| t.out_frames + t.drops.iter().sum::<u64>()).sum();
        came == went
    });
}

/// Frame number `n` of `len` bytes from one station to the other.
pub fn frame(to: Mac, from: Mac, n: u32, len: usize) -> Vec<u8> {
    let mut frame = [&to.0[..], &from.0, &[0x88, 0xb5], &n.to_be_bytes()].concat();
    frame.extend((frame.len()..len).map(|i| (i as u32).wrapping_mul(n) as u8));
    frame
}
