//! vhost-user sockets as lanes: the native virtio driver in the guest's place.

use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::RecvFlags;
use sidecore_abi::virtio::NET_HDR_LEN;
use sidecore_driver::session::Config;
use sidecore_driver::{Frontend, Listener, NetDriver};

use super::{Lane, Opened, Result, Sink, Source, Taken, Want};

/// How long the other side of the socket may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// Entries of each ring.
const ENTRIES: u16 = 256;
/// Queue pair that is used.
const PAIR: u16 = 0;

/// A queue pair.
pub struct VhostLane {
    driver: NetDriver,
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Says that something is waited for, and for how long.
fn waits(what: &str) {
    eprintln!("sidecore: {what} for up to {} s", PATIENCE.as_secs());
}

/// Connects to the socket at `path`, or listens there, for frames of up to `longest` bytes.
pub fn open(path: &str, server: bool, threads: usize, longest: usize) -> Result<Opened<VhostLane>> {
    if threads > 1 {
        return Err(format!("-p {threads}: a vhost-user port is driven by one thread"));
    }
    let frontend = match server {
        true => Listener::new(path).and_then(|listener| {
            waits(&format!("waits for a switch to connect to {path}"));
            listener.accept(PATIENCE)
        }),
        // Once, and without a listener again for a while: a switch that was just started may not have made
        // its socket yet.
        false => Frontend::connect(path, Duration::ZERO).or_else(|e| {
            waits(&format!("{e}; tries again"));
            Frontend::connect(path, PATIENCE)
        }),
    };
    let frontend = frontend.map_err(|e| format!("vhost-user:{path}: {e}"))?;
    // Room for what others send, too.
    let buffer = (longest + NET_HDR_LEN).max(2048).next_multiple_of(64);
    let config = Config { entries: ENTRIES, buffer, ..Config::default() };
    let driver = NetDriver::start(frontend, config).map_err(|e| format!("vhost-user:{path}: {e}"))?;
    Ok(Opened { lanes: vec![VhostLane { driver }], queues: 1, keep: Box::new(()) })
}

impl Lane for VhostLane {
    fn depth(&self) -> usize {
        ENTRIES.into()
    }

    fn room(&mut self) -> Result<usize> {
        self.driver.complete(PAIR).map_err(text)?;
        Ok(self.driver.room(PAIR).into())
    }

    fn send(&mut self, limit: usize, source: &mut impl Source) -> Result<Taken> {
        let mut bytes = 0;
        let limit = limit.min(self.driver.room(PAIR).into());
        let write = |_, buffer: &mut [u8]| {
            let len = source.write(buffer);
            bytes += len as u64;
            len
        };
        let frames = self.driver.send_with(PAIR, limit, write).map_err(text)?;
        Ok(Taken { frames, bytes })
    }

    fn is_drained(&mut self) -> Result<bool> {
        Ok(self.room()? == usize::from(ENTRIES))
    }

    fn receive<S: Sink>(&mut self, limit: usize, sink: &mut S) -> Result<Taken> {
        let mut done = Taken::default();
        let each = |_: &_, frame: &[u8]| {
            done.frames += 1;
            done.bytes += frame.len() as u64;
            if S::READS {
                sink.frame(frame);
            }
        };
        self.driver.receive_up_to(PAIR, limit, each).map_err(text)?;
        Ok(done)
    }

    fn sleep(&mut self, want: Want, limit: Duration) -> Result<()> {
        let mut byte = [0];
        let socket = self.driver.session().frontend.socket();
        match rustix::net::recv(socket, &mut byte, RecvFlags::DONTWAIT | RecvFlags::PEEK) {
            Ok((0, _)) => return Err("the other side has closed the vhost-user socket".to_owned()),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(format!("the vhost-user socket is gone: {error}")),
        }
        match want {
            Want::Frames => drop(self.driver.wait(limit).map_err(text)?),
            // A transmit queue has no interrupts here: the other side is about to take something.
            Want::Room if !limit.is_zero() => {
                let start = Instant::now();
                while self.room()? == 0 && start.elapsed() < limit {
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
            Want::Room => {}
        }
        Ok(())
    }
}

/// Room for as many frames is looked for at once.
const LOOK: u16 = 256;

/// The driver of benchmarks, which has no interrupts: who waits for it polls.
impl Lane for sidecore_driver::load::Lane {
    fn depth(&self) -> usize {
        self.depth().into()
    }

    #[inline]
    fn room(&mut self) -> Result<usize> {
        self.room(LOOK).map(usize::from).map_err(text)
    }

    #[inline]
    fn send(&mut self, limit: usize, source: &mut impl Source) -> Result<Taken> {
        let frames = limit.min(self.room(1).map_err(text)?.into());
        let mut bytes = 0;
        let write = |buffer: &mut [u8]| {
            let len = source.write(buffer);
            bytes += len as u64;
            len
        };
        self.send(u16::try_from(frames).unwrap_or(0), write).map_err(text)?;
        Ok(Taken { frames, bytes })
    }

    fn is_drained(&mut self) -> Result<bool> {
        Ok(self.room(self.depth()).map_err(text)? == self.depth())
    }

    #[inline]
    fn receive<S: Sink>(&mut self, limit: usize, sink: &mut S) -> Result<Taken> {
        let mut bytes = 0;
        let look = |frame: &[u8]| {
            bytes += frame.len() as u64;
            sink.frame(frame);
        };
        let frames = self.receive(u16::try_from(limit).unwrap_or(u16::MAX), look).map_err(text)?;
        Ok(Taken { frames: frames.into(), bytes })
    }
}
