//! Ring ports as lanes.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use sidecore_port::attach::set_header;
use sidecore_port::{Port, RxRing, TxRing};

use super::{Lane, Opened, Result, Sink, Source, Taken, Want};

/// Most slots of a frame that a port takes.
const MAX_SLOTS: usize = 64;

/// A ring to send on, and one or more to receive from: the switch spreads flows over all rings of a port, so
/// none may be left without a reader.
pub struct RingLane {
    tx: TxRing,
    rx: Vec<RxRing>,
    /// The ring that is received from first.
    turn: usize,
    /// Bytes of the virtio-net header before each frame.
    header: usize,
    /// Slots that the longest frame to be sent takes.
    per_frame: usize,
    /// Slots whose buffers hold the source's fixed frame.
    laid: usize,
    /// A frame of several slots, with its header.
    scratch: Vec<u8>,
}

/// Attaches to the ring port `name` and takes a lane for each of `threads`, to send frames of up to `longest`
/// bytes.
pub fn open(name: &str, threads: usize, header: Option<u32>, longest: usize) -> Result<Opened<RingLane>> {
    if let Some(bytes) = header {
        set_header(name, bytes).map_err(|e| format!("-H {bytes}: {e}"))?;
    }
    let mut port = Port::attach(name).map_err(text)?;
    let queues = port.tx.len().min(port.rx.len());
    if threads > queues {
        return Err(format!(
            "-p {threads}: port {name} has rings for {queues}, and every thread needs one; give the port queues={threads}"
        ));
    }
    let info = *port.info();
    let (header, size) = (info.header as usize, (info.buf_size as usize).min(usize::from(u16::MAX)));
    let most = size * MAX_SLOTS.min(info.tx_slots as usize - 1);
    if header + longest > most {
        return Err(format!("-l {longest}: port {name} takes frames of at most {} bytes", most - header));
    }
    let per_frame = (header + longest).div_ceil(size).max(1);
    let mut tx = std::mem::take(&mut port.tx);
    let idle = tx.split_off(threads);
    let mut lanes: Vec<RingLane> = tx
        .into_iter()
        .map(|tx| {
            let scratch = vec![0; header + longest];
            RingLane { tx, rx: Vec::new(), turn: 0, header, per_frame, laid: 0, scratch }
        })
        .collect();
    for (number, ring) in std::mem::take(&mut port.rx).into_iter().enumerate() {
        lanes[number % threads].rx.push(ring);
    }
    Ok(Opened { lanes, queues, keep: Box::new((port, idle)) })
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl RingLane {
    /// Writes a frame where it will lie.
    #[inline]
    fn write_in_place(&mut self, source: &mut impl Source) -> Option<usize> {
        let buffer = self.tx.buffer()?;
        buffer[..self.header].fill(0);
        let len = source.write(&mut buffer[self.header..]);
        self.tx.commit(self.header + len, false);
        Some(len)
    }

    /// Writes a frame that is then cut into slots.
    fn write_apart(&mut self, source: &mut impl Source) -> Option<usize> {
        if self.tx.space() < self.per_frame {
            return None;
        }
        let len = source.write(&mut self.scratch[self.header..]);
        self.tx.push(&self.scratch[..self.header + len]);
        Some(len)
    }

    /// Sends the same frame again and again: after one lap of the ring every buffer holds it.
    #[inline]
    fn repeat(&mut self, limit: usize, len: usize, source: &mut impl Source) -> Taken {
        let frames = limit.min(self.tx.space());
        let unlaid = frames.min(self.tx.slots() - self.laid);
        for _ in 0..unlaid {
            self.write_in_place(source);
        }
        self.laid += unlaid;
        for _ in unlaid..frames {
            self.tx.commit(self.header + len, false);
        }
        Taken { frames, bytes: frames as u64 * len as u64 }
    }
}

impl Lane for RingLane {
    fn depth(&self) -> usize {
        (self.tx.slots() - 1) / self.per_frame
    }

    fn room(&mut self) -> Result<usize> {
        self.tx.sync().map_err(text)?;
        Ok(self.tx.space() / self.per_frame)
    }

    fn send(&mut self, limit: usize, source: &mut impl Source) -> Result<Taken> {
        let mut done = Taken::default();
        if let Some(len) = source.fixed().filter(|_| self.per_frame == 1) {
            done = self.repeat(limit, len, source);
        } else {
            while done.frames < limit {
                let in_place = self.per_frame == 1;
                let len = if in_place { self.write_in_place(source) } else { self.write_apart(source) };
                let Some(len) = len else { break };
                done.frames += 1;
                done.bytes += len as u64;
            }
        }
        self.tx.sync().map_err(text)?;
        Ok(done)
    }

    fn is_drained(&mut self) -> Result<bool> {
        self.tx.sync().map_err(text)?;
        Ok(self.tx.is_drained())
    }

    #[inline]
    fn receive<S: Sink>(&mut self, limit: usize, sink: &mut S) -> Result<Taken> {
        let mut done = Taken::default();
        for _ in 0..self.rx.len() {
            self.turn = if self.turn + 1 < self.rx.len() { self.turn + 1 } else { 0 };
            let taken = self.receive_on(self.turn, limit - done.frames, sink)?;
            done.frames += taken.frames;
            done.bytes += taken.bytes;
        }
        Ok(done)
    }

    fn sleep(&mut self, want: Want, limit: Duration) -> Result<()> {
        let ready = match want {
            // It wakes for one slot: a frame of several asks again after a while.
            Want::Room if self.per_frame > 1 => {
                std::thread::sleep(Duration::from_micros(50));
                true
            }
            Want::Room => self.tx.arm(),
            // All of them, whether or not the first has something.
            Want::Frames => self.rx.iter_mut().map(RxRing::arm).fold(false, |ready, arm| arm | ready),
        };
        let watch = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut fds: Vec<PollFd<'_>> = match want {
            Want::Room => vec![watch(self.tx.as_fd())],
            Want::Frames => self.rx.iter().map(|ring| watch(ring.as_fd())).collect(),
        };
        let limit = Timespec::try_from(limit).map_err(text)?;
        let polled = if ready { Ok(0) } else { poll(&mut fds, Some(&limit)) };
        let gone = fds.iter().any(|fd| fd.revents().intersects(PollFlags::HUP | PollFlags::ERR));
        match want {
            Want::Room => self.tx.disarm(),
            Want::Frames => self.rx.iter_mut().for_each(RxRing::disarm),
        }
        match polled {
            _ if gone => Err("the daemon has ended, or has taken the port away".to_owned()),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(format!("cannot wait for the port: {error}")),
        }
    }
}

impl RingLane {
    #[inline]
    fn receive_on<S: Sink>(&mut self, ring: usize, limit: usize, sink: &mut S) -> Result<Taken> {
        let rx = &mut self.rx[ring];
        rx.sync().map_err(text)?;
        if !S::READS {
            let (frames, bytes) = rx.skip(limit);
            rx.sync().map_err(text)?;
            return Ok(Taken { frames, bytes: bytes.saturating_sub((frames * self.header) as u64) });
        }
        let mut done = Taken::default();
        while done.frames < limit {
            let Some(frame) = rx.take() else { break };
            let len = frame.len();
            done.frames += 1;
            done.bytes += len.saturating_sub(self.header) as u64;
            let mut parts = frame.parts();
            let first = parts.next().unwrap_or_default();
            if first.len() == len {
                sink.frame(first.get(self.header..).unwrap_or_default());
                continue;
            }
            self.scratch.clear();
            self.scratch.extend_from_slice(first);
            parts.for_each(|part| self.scratch.extend_from_slice(part));
            sink.frame(self.scratch.get(self.header..).unwrap_or_default());
        }
        // Slots go back before the sender is told that their frames have arrived.
        if done.frames > 0 {
            rx.sync().map_err(text)?;
        }
        Ok(done)
    }
}
