//! Interfaces of the host as lanes: TAP, AF_XDP and AF_PACKET, by the queues that the engine itself has for
//! such ports.
//!
//! Theory of operation. The engine's backend opens the interface and gives its queues to a port and a
//! scheduler. Here the port is ours alone, and the scheduler keeps the queues for the lanes ([`Kept`]).
//! Frames to be sent are made in private memory; those that a queue refuses for want of room, or because the
//! carrier is away, wait in the lane and go first next time, so none is lost and none overtakes another.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use sidecore_engine::core::Recall;
use sidecore_engine::graph::{QueueHandle, Scheduler};
use sidecore_engine::host::packet::{self, PacketConfig};
use sidecore_engine::host::tap::{Tap, TapConfig, TapSource};
use sidecore_engine::host::xdp::{self, XdpConfig, XdpMode};
use sidecore_engine::mem::Arena;
use sidecore_engine::observe::CounterFile;
use sidecore_engine::packet::{Batch, Offload, HEAD, MAX_BATCH};
use sidecore_engine::port::{Attachment, DropReason, Outcome, Port, PortId, Tally, DEFAULT_MTU};

use super::{Lane, Opened, Result, Sink, Source, Taken, Want};

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;

/// Which of the host's ways to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The descriptors of a TAP interface.
    Tap,
    /// AF_XDP sockets.
    Xdp,
    /// Packet sockets.
    Packet,
}

impl Kind {
    /// The kind as a port has it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Tap => "tap",
            Kind::Xdp => "xdp",
            Kind::Packet => "packet",
        }
    }
}

/// A scheduler that keeps the queues instead of serving them: the lanes have them.
#[derive(Default)]
struct Kept(Mutex<Vec<QueueHandle>>);

impl Scheduler for Kept {
    fn serve_queue(self: Arc<Self>, handle: QueueHandle) -> Recall {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(handle);
        Box::new(|| ())
    }
}

/// A queue to send on, and one or more to receive from: AF_XDP has one for each of the interface's, and none
/// may be left without a reader.
pub struct HostLane {
    name: String,
    port: Arc<Port>,
    number: usize,
    outgoing: Outgoing,
    incoming: Vec<Incoming>,
    turn: usize,
    /// A received frame in one piece.
    scratch: Vec<u8>,
}

/// Frames made, in private memory.
struct Outgoing {
    // The pieces in the batch lead into the arena.
    batch: Batch,
    arena: Arena,
    /// Where a frame is written, before it lies in the arena.
    frame: Vec<u8>,
    /// Those that have not gone.
    waiting: Vec<u16>,
    /// How many are the source's fixed frame.
    laid: usize,
    refused: Vec<(u16, DropReason)>,
}

/// A queue and the batch that was fetched from it.
struct Incoming {
    handle: QueueHandle,
    batch: Batch,
    /// The first frame that was not handed out.
    at: usize,
}

/// Opens `interface` with a lane for each of `threads`, to send frames of up to `longest` bytes.
pub fn open(kind: Kind, interface: &str, threads: usize, longest: usize) -> Result<Opened<HostLane>> {
    let name = format!("{}:{interface}", kind.name());
    let counters = CounterFile::anonymous().map_err(text)?.open_slot(PortId(0), interface);
    let port = Arc::new(Port::new(PortId(0), interface, counters, DEFAULT_MTU).map_err(text)?);
    let kept = Arc::new(Kept::default());
    let keep = start(kind, interface, threads, &port, &kept)?;
    let queues = std::mem::take(&mut *kept.0.lock().unwrap_or_else(PoisonError::into_inner));
    if threads > queues.len() {
        let has = queues.len();
        return Err(format!(
            "-p {threads}: {name} has {has} queues, and every thread needs one; ethtool -L gives an interface more"
        ));
    }
    let most = port.mtu() as usize + ETHERNET;
    if longest > most {
        return Err(format!(
            "-l {longest}: {name} takes frames of at most {most} bytes; ip link set {interface} mtu {} allows this",
            longest - ETHERNET
        ));
    }
    let count = queues.len();
    let mut lanes: Vec<HostLane> = (0..threads)
        .map(|number| HostLane {
            name: name.clone(),
            port: Arc::clone(&port),
            number,
            outgoing: Outgoing {
                batch: Batch::new(),
                arena: Arena::new(MAX_BATCH, longest),
                frame: vec![0; longest],
                waiting: Vec::with_capacity(MAX_BATCH),
                laid: 0,
                refused: Vec::with_capacity(MAX_BATCH),
            },
            incoming: Vec::new(),
            turn: 0,
            scratch: Vec::new(),
        })
        .collect();
    for (number, handle) in queues.into_iter().enumerate() {
        lanes[number % threads].incoming.push(Incoming { handle, batch: Batch::new(), at: 0 });
    }
    Ok(Opened { lanes, queues: count, keep: Box::new(keep) })
}

fn start(
    kind: Kind,
    interface: &str,
    queues: usize,
    port: &Arc<Port>,
    kept: &Arc<Kept>,
) -> Result<Box<dyn Attachment>> {
    let (port, kept) = (Arc::clone(port), Arc::clone(kept) as Arc<dyn Scheduler>);
    let interface = interface.to_owned();
    Ok(match kind {
        Kind::Tap => {
            let config = TapConfig { source: TapSource::Name(interface), queues, mtu: None };
            Box::new(Tap::start(config, port, kept).map_err(text)?)
        }
        Kind::Xdp => {
            let config = XdpConfig { interface, queues: None, mtu: None, mode: XdpMode::Auto };
            Box::new(xdp::start(&config, port, kept).map_err(text)?)
        }
        Kind::Packet => {
            let config = PacketConfig { interface, queues, mtu: None };
            Box::new(packet::start(&config, port, kept).map_err(text)?)
        }
    })
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl HostLane {
    fn is_there(&self) -> Result<()> {
        match self.port.fault.get() {
            Some(fault) => Err(format!("{}: {fault}", self.name)),
            None => Ok(()),
        }
    }

    /// Hands over what waits; true if nothing waits any more.
    fn flush(&mut self) -> Result<bool> {
        let Outgoing { batch, waiting, refused, .. } = &mut self.outgoing;
        if waiting.is_empty() {
            return Ok(true);
        }
        let Some(mut slot) = self.port.egress(self.number) else { return Ok(false) };
        // Taken out while the carrier is away.
        let Some(queue) = slot.as_mut() else { return Ok(false) };
        refused.clear();
        let mut outcome = Outcome::new();
        outcome.trace = Some(std::mem::take(refused));
        queue.send(batch, waiting, &mut outcome);
        drop(slot);
        *refused = outcome.trace.unwrap_or_default();
        waiting.clear();
        for &(pick, reason) in &*refused {
            match reason {
                DropReason::RingFull | DropReason::LinkDown => waiting.push(pick),
                _ => return Err(format!("{}: the host refuses a frame: {}", self.name, reason.name())),
            }
        }
        Ok(waiting.is_empty())
    }
}

impl Outgoing {
    /// Makes the frame of place `place`; its length.
    fn make(&mut self, place: usize, source: &mut impl Source) -> usize {
        let len = source.write(&mut self.frame);
        let bytes = &self.frame[..len];
        let head = len.min(HEAD);
        let body = self.arena.put(place, bytes, head);
        // `MAX_BATCH` frames of one piece each: there is room.
        if let Some((frame, pieces)) = self.batch.next_frame() {
            frame.head[..head].copy_from_slice(&bytes[..head]);
            frame.len = u32::try_from(len).unwrap_or(0);
            frame.offload = Offload::NONE;
            frame.piece = u32::try_from(pieces.len()).unwrap_or(0);
            frame.pieces = u16::from(len > HEAD && pieces.push(body));
            self.batch.commit();
        }
        len
    }
}

impl Lane for HostLane {
    fn depth(&self) -> usize {
        MAX_BATCH
    }

    fn room(&mut self) -> Result<usize> {
        Ok(if self.flush()? { MAX_BATCH } else { 0 })
    }

    fn send(&mut self, limit: usize, source: &mut impl Source) -> Result<Taken> {
        if !self.flush()? {
            return Ok(Taken::default());
        }
        let frames = limit.min(MAX_BATCH);
        let mut bytes = 0;
        let outgoing = &mut self.outgoing;
        if let Some(len) = source.fixed() {
            for place in outgoing.laid..frames {
                outgoing.make(place, source);
            }
            outgoing.laid = outgoing.laid.max(frames);
            bytes = frames * len;
        } else {
            outgoing.batch.clear();
            outgoing.laid = 0;
            for place in 0..frames {
                bytes += outgoing.make(place, source);
            }
        }
        outgoing.waiting.extend((0..frames).map(|pick| u16::try_from(pick).unwrap_or(u16::MAX)));
        self.flush()?;
        Ok(Taken { frames, bytes: bytes as u64 })
    }

    fn is_drained(&mut self) -> Result<bool> {
        self.flush()
    }

    fn receive<S: Sink>(&mut self, limit: usize, sink: &mut S) -> Result<Taken> {
        let mut done = Taken::default();
        for _ in 0..self.incoming.len() {
            self.turn = if self.turn + 1 < self.incoming.len() { self.turn + 1 } else { 0 };
            let taken = self.incoming[self.turn].receive(limit - done.frames, sink, &mut self.scratch);
            done.frames += taken.frames;
            done.bytes += taken.bytes;
        }
        Ok(done)
    }

    fn sleep(&mut self, want: Want, limit: Duration) -> Result<()> {
        self.is_there()?;
        if want == Want::Room {
            // There is no event for it: the host takes frames at once, unless its memory is short or the link
            // is down.
            std::thread::sleep(limit.min(Duration::from_micros(50)));
            return Ok(());
        }
        let mut wait = limit;
        let mut ready = false;
        for Incoming { handle, .. } in &mut self.incoming {
            let queue = handle.queue();
            ready |= queue.want_kicks(true);
            wait = queue.longest_sleep().map_or(wait, |longest| wait.min(longest));
        }
        let fds = self.incoming.iter_mut().filter_map(|incoming| incoming.handle.queue().kick_fd());
        let mut fds: Vec<PollFd<'_>> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let wait = Timespec::try_from(wait).map_err(text)?;
        let polled = if ready { Ok(0) } else { poll(&mut fds, Some(&wait)) };
        for Incoming { handle, .. } in &mut self.incoming {
            handle.queue().want_kicks(false);
        }
        match polled {
            Ok(_) | Err(Errno::INTR) => self.is_there(),
            Err(error) => Err(format!("cannot wait for {}: {error}", self.name)),
        }
    }
}

impl Incoming {
    /// Takes frames of the batch that was fetched last; if those are all taken, of the next.
    fn receive<S: Sink>(&mut self, limit: usize, sink: &mut S, scratch: &mut Vec<u8>) -> Taken {
        let mut done = Taken::default();
        if limit == 0 {
            return done;
        }
        let mut tally = Tally::default();
        if self.at == self.batch.len() {
            self.batch.clear();
            self.at = 0;
            self.handle.queue().fetch(&mut self.batch, &mut tally);
        }
        for frame in self.batch.frames().iter().skip(self.at).take(limit) {
            done.frames += 1;
            done.bytes += u64::from(frame.len);
            if S::READS {
                scratch.clear();
                scratch.extend_from_slice(&frame.head[..frame.head_len()]);
                for piece in self.batch.body(frame) {
                    let at = scratch.len();
                    scratch.resize(at + piece.len(), 0);
                    piece.read(&mut scratch[at..]);
                }
                sink.frame(scratch);
            }
        }
        self.at += done.frames;
        if self.at == self.batch.len() {
            self.handle.queue().release(&mut tally);
        }
        done
    }
}
