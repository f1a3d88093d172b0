//! How many frames a second go through a pipe: a thread for each end, each on a processor of its own.
//!
//! `pipe_rate [MILLISECONDS [LENGTH [BURST [SENDER_CPU [RECEIVER_CPU [TOUCH [SLOTS]]]]]]]`
//!
//! With TOUCH 0 the ends handle slots only, as netmap's pkt-gen does on a pipe once its buffers are filled;
//! with 1 the sender writes each frame and the receiver reads it. The same processor twice: one thread does
//! both.
//!
//! The time is cut into ten samples. How far the processors are from each other is probed before and after
//! each, and a second line sums the samples up by that distance.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_precision_loss)]

#[path = "../../bench/src/distance.rs"]
#[allow(dead_code, reason = "the benchmarks of the program use more of it")]
mod distance;
#[path = "../tests/rig/mod.rs"]
mod rig;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sidecore_port::Port;

use distance::Distance;

struct Load {
    len: usize,
    burst: usize,
    touch: bool,
    frame: Vec<u8>,
}

impl Load {
    fn send(&self, port: &mut Port) {
        let tx = &mut port.tx[0];
        for _ in 0..self.burst.min(tx.space()) {
            if self.touch {
                tx.buffer().expect("there is space")[..self.len].copy_from_slice(&self.frame);
            }
            tx.commit(self.len, false);
        }
        tx.sync().unwrap();
    }

    /// Frames and bytes that came.
    fn receive(&self, port: &mut Port) -> u64 {
        let rx = &mut port.rx[0];
        rx.sync().unwrap();
        let mut got = 0;
        while let Some(frame) = rx.take() {
            let whole = frame.len() == self.len;
            got += u64::from(
                whole && (!self.touch || frame.parts().next().expect("it has a part") == self.frame),
            );
        }
        got
    }

    /// Frames that came, and the seconds in which they did.
    fn sample(
        &self,
        a: &mut Port,
        b: &mut Port,
        [sender, receiver]: [usize; 2],
        length: Duration,
    ) -> (u64, f64) {
        let over = AtomicBool::new(false);
        let pin = |cpu| sidecore_engine::util::place::pin(cpu).expect("no such processor");
        let (start, mut got) = (Instant::now(), 0);
        std::thread::scope(|scope| {
            if sender != receiver {
                scope.spawn(|| {
                    pin(sender);
                    while !over.load(Ordering::Relaxed) {
                        self.send(a);
                    }
                });
                pin(receiver);
                while start.elapsed() < length {
                    for _ in 0..16 {
                        got += self.receive(b);
                    }
                }
                over.store(true, Ordering::Relaxed);
            } else {
                pin(sender);
                while start.elapsed() < length {
                    for _ in 0..16 {
                        self.send(a);
                        got += self.receive(b);
                    }
                }
            }
        });
        (got, start.elapsed().as_secs_f64())
    }
}

/// Parts of the time that are measured by themselves.
const SAMPLES: u32 = 10;

fn main() {
    let numbers: Vec<usize> = std::env::args().skip(1).map(|arg| arg.parse().expect("a number")).collect();
    let get = |i: usize, default| numbers.get(i).copied().unwrap_or(default);
    let (length, len, burst) = (Duration::from_millis(get(0, 1000) as u64), get(1, 60), get(2, 256));
    let (sender, receiver) = (get(3, 0), get(4, 1));
    let load = Load { len, burst, touch: get(5, 0) == 1, frame: rig::frame(2, 1, 0, len) };
    let engine = rig::Engine::new(1, Vec::new(), Duration::from_micros(20), |config| {
        config.geometry.slots = get(6, 1024).try_into().expect("a small number");
    });
    let end = |which| Port::attach(&format!("{}{which}", engine.name(0))).expect("a pipe");
    let (mut a, mut b) = (end("{1"), end("}1"));
    // Everything has been in use once.
    for _ in 0..64 {
        load.send(&mut a);
        load.receive(&mut b);
    }
    let (mut got, mut time, mut samples) = (0, 0.0, Vec::new());
    for _ in 0..SAMPLES {
        let distance = Distance::before(&[sender, receiver]);
        let (frames, seconds) = load.sample(&mut a, &mut b, [sender, receiver], length / SAMPLES);
        samples.push((distance.after(), frames as f64 / seconds / 1e6));
        (got, time) = (got + frames, time + seconds);
    }
    println!(
        "{:.2} Mpps through the pipe, {:.1} Gbit/s",
        got as f64 / time / 1e6,
        got as f64 * len as f64 * 8.0 / time / 1e9
    );
    println!("Mpps, {}:", distance::HEAD);
    for (mode, of) in distance::by_mode(samples) {
        println!("{} {:.2} / {:.2} / {:.2} ({})", mode.name(), of.decile, of.quartile, of.median, of.samples);
    }
}
