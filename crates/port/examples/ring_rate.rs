//! How many frames a second go from one ring port through the learning switch to another: one I/O core, and
//! one core for both clients.
//!
//! In a virtual machine the answer depends on where the host has put the two processors: beside each other a
//! line goes from one to the other several times as fast as across the die. Take several runs.
//!
//! `ring_rate [MILLISECONDS [LENGTH [BURST [CLIENT_CPU [IO_CPU [SLOTS [BUF_SIZE]]]]]]]`
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_precision_loss)]

#[path = "../tests/rig/mod.rs"]
mod rig;

use std::time::{Duration, Instant};

fn main() {
    let numbers: Vec<u32> = std::env::args().skip(1).map(|arg| arg.parse().expect("a number")).collect();
    let get = |i: usize, default| numbers.get(i).copied().unwrap_or(default);
    let (millis, len, burst) = (get(0, 1000), get(1, 60) as usize, get(2, 256) as usize);
    let (client_cpu, io_cpu) = (get(3, 0) as usize, get(4, 1) as usize);
    let engine = rig::Engine::new(2, vec![io_cpu], Duration::from_millis(10), |config| {
        config.geometry.slots = get(5, 1024);
        config.geometry.buf_size = get(6, 2048);
    });
    sidecore_engine::util::place::pin(client_cpu).expect("no such processor");
    let (mut a, mut b) = (engine.attach(0), engine.attach(1));
    // Make both addresses known.
    for (port, dst, src) in [(&mut a, 2, 1), (&mut b, 1, 2)] {
        port.tx[0].push(&rig::frame(dst, src, 0, 60));
        port.tx[0].sync().unwrap();
    }
    let bytes = rig::frame(2, 1, 0, len);
    std::thread::sleep(Duration::from_millis(50));
    let before = engine.cores.status()[0].clone();
    let start = Instant::now();
    let (mut sent, mut got, mut batches) = (0u64, 0u64, 0u64);
    let length = Duration::from_millis(millis.into());
    while start.elapsed() < length {
        for _ in 0..16 {
            let tx = &mut a.tx[0];
            for _ in 0..burst.min(tx.space()) {
                let buffer = tx.buffer().expect("there is space");
                buffer[..len].copy_from_slice(&bytes);
                tx.commit(len, false);
                sent += 1;
            }
            tx.sync().unwrap();
            let rx = &mut b.rx[0];
            rx.sync().unwrap();
            let old = got;
            while let Some(frame) = rx.take() {
                // As a program does that looks at what it gets.
                let part = frame.parts().next().expect("a frame has a part");
                got += u64::from(frame.len() == len && part[..14] == bytes[..14]);
            }
            batches += u64::from(got > old);
        }
    }
    let time = start.elapsed().as_secs_f64();
    let after = &engine.cores.status()[0];
    let drops: Vec<_> = engine.ports[1].counters.totals().named_drops().collect();
    println!(
        "{:.2} Mpps received, {:.2} Mpps sent, {:.1} frames a batch, I/O core busy {:.1} %, {:.1} ns a frame, drops {drops:?}",
        got as f64 / time / 1e6,
        sent as f64 / time / 1e6,
        got as f64 / batches.max(1) as f64,
        (after.busy_ns - before.busy_ns) as f64 / time / 1e7,
        (after.busy_ns - before.busy_ns) as f64 / (after.frames - before.frames) as f64,
    );
}
