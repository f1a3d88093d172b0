//! Two figures: what moderation gains and costs, and what a receiver still gets done under any load (the
//! paper's Figure 3).
//!
//! *Moderation.* ITR from 0 to 500: frames a second that a guest sends, and the round trip of a ping with and
//! without other traffic. *Livelock.* Frames are offered at up to 20 million a second; the guest's interrupt
//! work goes before its application's, as in the paper's guests, and what the application has taken counts. A
//! frame costs the driver and the application a fixed time, and the polling guest gives half of its time to
//! each.

use std::collections::VecDeque;
use std::fs;
use std::os::fd::BorrowedFd;
use std::path::Path;

use sidecore_driver::e1000::{Config, Model as Part, E1000 as Driver};
use sidecore_engine::device::e1000::Model;
use sidecore_engine::packet::Batch;
use sidecore_engine::port::{IngressQueue, Tally};

use super::guest::{Clock, Guest, Mode};
use super::model;
use super::nic::{Nic, Part as Card};
use super::stage::{frame, Limits, Stage};
use super::Args;
use crate::prelude::*;

/// What a trap takes in both figures: the paper's figure for one that the kernel emulates.
const TRAP: Duration = Duration::from_nanos(1_200);
/// Steps of ITR, in 256 ns.
const ITR_STEP: usize = 50;
/// Offered loads, in million frames a second.
const OFFERED: [f64; 10] = [0.1, 0.3, 0.6, 1.0, 1.5, 2.0, 4.0, 6.0, 10.0, 20.0];
/// Nanoseconds that a received frame costs the driver and the application.
const COSTS: [u64; 2] = [400, 600];
/// Frames that wait for the application at most.
const SOCKET: usize = 512;
/// The timer of the polling guest, in nanoseconds.
const TICK: u64 = 250_000;

/// Measures both and writes them into `dir`.
pub fn draw(args: &Args, dir: &Path) -> Result<(), String> {
    // Now, not after minutes of measuring.
    fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let itrs = || (0..=500u16).step_by(ITR_STEP);
    let mut rate = Vec::new();
    for (name, mode) in [
        ("every doorbell traps", Mode::Trapping),
        ("send combining", Mode::Combining),
        ("exitless", Mode::Exitless),
    ] {
        let mut points = Vec::new();
        for itr in itrs() {
            let kind = model::kind("", mode, itr, None);
            let row = model::one(args, Card::Intel(Model::E1000), &kind, 1_200, false, 64)?;
            points.push((f64::from(itr), row.kpps));
        }
        rate.push(Line::new(name.to_owned(), points));
    }
    let mut ping = Vec::new();
    for (name, gap) in [("alone", None), ("beside 50,000 frames/s", Some(20_000))] {
        let mut points = Vec::new();
        for itr in itrs() {
            points.push((f64::from(itr), round_trip(args, itr, gap)?));
        }
        ping.push(Line::new(name.to_owned(), points));
    }
    let mut received = Vec::new();
    let floor = Duration::from_micros(8);
    for (name, handler, mode, itr, limits) in [
        ("itr=0, traps", Handler::Interrupts, Mode::Trapping, 0, Limits::NONE),
        ("itr=250, traps", Handler::Interrupts, Mode::Trapping, 250, Limits::NONE),
        ("exitless", Handler::Interrupts, Mode::Exitless, 0, Limits { floor, share: 100 }),
        ("exitless, share=50", Handler::Interrupts, Mode::Exitless, 0, Limits { floor, share: 50 }),
        ("polling guest", Handler::Polling, Mode::Exitless, 0, Limits { floor, share: 100 }),
    ] {
        let mut points = Vec::new();
        for offered in OFFERED {
            points.push((offered, livelock(args, handler, mode, itr, limits, offered)?));
        }
        received.push(Line::new(name.to_owned(), points));
    }
    let note = "native drivers, 82540EM, a trap takes 1.2 µs; sidecore bench e1000 --figures DIR";
    let itr = Axis::linear("ITR, in 256 ns");
    let pictures = [
        ("e1000-moderation-rate.svg", chart("Sent by a guest, 64 B", note, itr, Axis::log("thousand frames a second"), &rate)),
        ("e1000-moderation-latency.svg", chart("Round trip of a ping", note, itr, Axis::linear("median, in µs"), &ping)),
        (
            "e1000-livelock.svg",
            chart(
                "Received by an application in a guest",
                "native drivers, 82540EM, 1.2 µs a trap, 0.4 µs a frame in the driver, 0.6 µs in the application; sidecore bench e1000 --figures DIR",
                Axis::log("offered, in million frames a second"),
                Axis::linear("received, in million frames a second"),
                &received,
            ),
        ),
    ];
    for (name, picture) in pictures {
        let path = dir.join(name);
        fs::write(&path, picture).map_err(|e| format!("{}: {e}", path.display()))?;
        eprintln!("{}", path.display());
    }
    Ok(())
}

/// The median round trip in µs of single frames that a guest sends and the host sends back, while the host
/// sends another frame every `stream` nanoseconds.
fn round_trip(args: &Args, itr: u16, stream: Option<u64>) -> Result<f64, String> {
    const PING: u8 = 0xff;
    let mut stage = Stage::new(args.cpus.io_core)?;
    let config = Config { map: true, itr, ..Config::default() };
    let nic = Nic::Intel(Box::new(stage.guest(Model::E1000, Limits::NONE, &config)?));
    let mut guest = Guest::new(nic, Mode::Exitless, TRAP)?;
    let mut host = stage.host()?;
    let (mut there, mut back) = (frame(0, 1, 64), frame(1, 0, 64));
    let clock = Clock::new();
    let (mut times, mut sent_at, mut next, mut next_stream, mut look) = (Vec::new(), None, 0, 0, 0);
    let mut wait = 0u64;
    let end = args.window.as_nanos() / 4;
    while u128::from(clock.now()) < end {
        let now = clock.now();
        let ask = sent_at.is_none() && now >= next;
        there[20] = PING;
        let before = guest.seen.sent;
        let mut answered = false;
        guest.step(now, ask.then_some(&there[..]), |bytes| answered |= bytes[20] == PING).map_err(text)?;
        if guest.seen.sent > before {
            sent_at = Some(now);
        }
        if let Some(sent) = sent_at.filter(|_| answered) {
            times.push((clock.now() - sent) as f64 / 1e3);
            sent_at = None;
            // No step with the gaps of the device.
            wait = wait.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            next = now + 500_000 + (wait >> 48);
        }
        if now < look {
            continue;
        }
        look = now + 1_000;
        let mut asked = false;
        host.receive(0, |_, bytes| asked |= bytes[20] == PING).map_err(text)?;
        if asked {
            back[20] = PING;
            host.complete(0).map_err(text)?;
            host.send(0, &[&back]).map_err(text)?;
        }
        if let Some(gap) = stream.filter(|_| now >= next_stream) {
            next_stream = now + gap;
            back[20] = 0;
            host.complete(0).map_err(text)?;
            host.send(0, &[&back]).map_err(text)?;
        }
    }
    match times.is_empty() {
        true => Err(format!("no ping came back at itr={itr}")),
        false => Ok(median(times)),
    }
}

/// A queue that offers frames at a rate.
struct Source {
    head: [u8; 64],
    /// Nanoseconds between two frames.
    gap: f64,
    clock: Clock,
    offered: f64,
}

impl IngressQueue for Source {
    fn fetch(&mut self, batch: &mut Batch, tally: &mut Tally) {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive, and a batch at most"
        )]
        let due = (self.clock.now() as f64 / self.gap - self.offered).clamp(0.0, 256.0) as usize;
        // In bursts of a hundred, as the paper's.
        if due < 100 && self.gap < 10_000.0 {
            return;
        }
        for _ in 0..due {
            batch.push_short(&self.head);
        }
        tally.frames += due as u64;
        tally.bytes += 64 * due as u64;
        self.offered += due as f64;
    }

    fn release(&mut self, _: &mut Tally) {}

    fn want_kicks(&mut self, _: bool) -> bool {
        true
    }

    fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// How a guest gets at its frames.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Handler {
    /// At interrupts, whose work goes before the application's.
    Interrupts,
    /// At a timer, interrupts off, half of the time at most (FreeBSD's device polling).
    Polling,
}

/// Million frames a second that the application takes.
fn livelock(
    args: &Args,
    handler: Handler,
    mode: Mode,
    itr: u16,
    limits: Limits,
    offered: f64,
) -> Result<f64, String> {
    let mut stage = Stage::new(args.cpus.io_core)?;
    let config = Config { map: mode == Mode::Exitless, itr, ..Config::default() };
    let mut nic = stage.guest(Model::E1000, limits, &config)?;
    let (port, number, _) = stage.port()?;
    let mut head = [0; 64];
    head.copy_from_slice(&frame(number, 0, 64));
    // The guest says where it is.
    nic.send(&[&frame(0, number, 64)]).map_err(text)?;
    if handler == Handler::Interrupts {
        nic.arm_all().map_err(text)?;
    }
    let clock = Clock::new();
    let source = Source { head, gap: 1e3 / offered, clock, offered: 0.0 };
    let lease = stage.engine.scheduler().serve(&port, 0, source);
    let mut processor =
        Processor { nic, until: 0, look: 0, polling: false, socket: VecDeque::new(), taken: 0 };
    let warm = u64::try_from(args.window.as_nanos() / 20).unwrap_or(u64::MAX);
    let run = |processor: &mut Processor, until: u64| -> Result<(), String> {
        while clock.now() < until {
            processor.step(clock.now(), handler).map_err(text)?;
        }
        Ok(())
    };
    run(&mut processor, warm)?;
    let (start, before) = (clock.now(), processor.taken);
    run(&mut processor, 5 * warm)?;
    let time = clock.now() - start;
    drop(lease);
    Ok((processor.taken - before) as f64 * 1e3 / time as f64)
}

/// A guest that receives: driver, socket, application.
struct Processor {
    nic: Driver,
    until: u64,
    look: u64,
    polling: bool,
    socket: VecDeque<()>,
    taken: u64,
}

impl Processor {
    fn step(&mut self, now: u64, handler: Handler) -> Result<(), sidecore_driver::Error> {
        if now < self.until {
            return Ok(());
        }
        let [driver, application] = COSTS;
        let traps = |nic: &Driver| nic.traps().reads + nic.traps().writes;
        let before = traps(&self.nic);
        let socket = &mut self.socket;
        let mut take = |_: &[u8]| {
            if socket.len() < SOCKET {
                socket.push_back(());
            }
        };
        let trap = u64::try_from(TRAP.as_nanos()).unwrap_or(u64::MAX);
        if handler == Handler::Polling && now >= self.look {
            self.look = now + TICK;
            // Half of the time, so many frames.
            let budget = usize::try_from(TICK / 2 / driver).unwrap_or(usize::MAX);
            let got = self.nic.receive(budget, &mut take)? as u64;
            self.until = now + got * driver + (traps(&self.nic) - before) * trap;
            return Ok(());
        }
        if handler == Handler::Interrupts && (self.polling || now >= self.look) {
            self.look = now + 1_000;
            if let Some(got) = self.nic.service(64, &mut take)? {
                self.polling = self.nic.is_polling();
                let end = u64::from(!self.polling && self.nic.model() == Part::E1000);
                self.until = now + got as u64 * driver + (traps(&self.nic) - before + end) * trap;
                return Ok(());
            }
        }
        if self.socket.pop_front().is_some() {
            self.taken += 1;
            self.until = now + application;
        }
        Ok(())
    }
}
