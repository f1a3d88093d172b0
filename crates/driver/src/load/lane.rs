//! One virtio port for frames of any length: made in place when they are sent, looked at in place when they
//! come.
//!
//! As the load's own port ([`super::port`]) it has bound rings, writes an index once for a burst and
//! prefetches the lines that follow. The caller owns a frame's contents. No other code uses the buffers, so
//! if only the beginning of a frame changes, only that has to be written again. The lane continues after its
//! backend has ended, with the rings as they were.
//!
//! Invariant kept by the `unsafe` here: a slice of a buffer exists only while the device does not hold that
//! buffer (before it is offered, or after it was given back), and only one at a time, since the lane is
//! borrowed mutably.

use std::os::fd::OwnedFd;

use sidecore_abi::virtio::{features as f, NET_HDR_LEN};

use crate::bound::Bound;
use crate::error::{Error, Result};
use crate::frontend::Frontend;
use crate::memory::{prefetch, prefetch_write, Buffers, Page};
use crate::queue::Buf;
use crate::session::{Config, Session, Want};

/// Received entries that are offered again together, of rings that have room for more of them.
const REFILL: u16 = 32;
/// Frames ahead of the one in hand whose first line is asked for.
const AHEAD: u16 = 16;

/// How a lane is made.
#[derive(Clone, Copy, Debug)]
pub struct LaneConfig {
    /// Entries of each ring, a power of two.
    pub entries: u16,
    /// Frames that the device has at most, which may be fewer than entries and any number: buffers to receive
    /// into, and frames to be sent.
    pub depth: [u16; 2],
    /// Bytes of the longest frame, sent or received.
    pub longest: usize,
    /// Mergeable receive buffers.
    pub mergeable: bool,
    /// Pages of the memory.
    pub page: Page,
}

/// A port's one pair of queues.
pub struct Lane {
    session: Session,
    rx: Bound,
    tx: Bound,
    rx_buffers: Buffers,
    tx_buffers: Buffers,
    kicks: [OwnedFd; 2],
    /// By which the device tells of received frames.
    call: OwnedFd,
    mask: u16,
    /// Transmit entries that are not used.
    idle: u16,
    /// Bytes that each transmit entry offers.
    lens: Box<[u32]>,
    /// Frames made and not yet sent.
    made: u16,
    /// Receive entries taken back and not yet offered again, and how many of them are offered together.
    owed: u16,
    refill: u16,
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").field("entries", &(self.mask + 1)).finish_non_exhaustive()
    }
}

fn bytes(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

impl Lane {
    /// Negotiates, binds split rings and starts.
    ///
    /// # Errors
    /// The negotiation fails, or there is no memory.
    pub fn new(frontend: Frontend, config: LaneConfig) -> Result<Lane> {
        let LaneConfig { entries, depth, longest, mergeable, page } = config;
        if depth.iter().any(|depth| !(1..=entries).contains(depth)) {
            return Err(Error::Config(format!("{depth:?} frames at most in rings of {entries}")));
        }
        let want = Want::default().and_if(mergeable, f::NET_MRG_RXBUF);
        let buffer = NET_HDR_LEN + longest.max(1524);
        let mut session =
            Session::new(frontend, Config { want, entries, buffer, page, ..Config::default() })?;
        let memory = session.memory.clone();
        let rx_buffers = memory.alloc_buffers(usize::from(entries), buffer)?;
        let tx_buffers = memory.alloc_buffers(usize::from(entries), buffer)?;
        let bind = |queue: u16, buffers: Buffers| {
            let parts = session.vring(queue)?.parts.clone();
            Bound::new(queue, session.options(), parts, |n| Buf {
                addr: memory.gpa(buffers.offset(n)),
                len: bytes(buffer),
                write: queue == 0,
            })
        };
        let (mut rx, tx) = (bind(0, rx_buffers)?, bind(1, tx_buffers)?);
        rx.offer(depth[0]);
        let clone = |fd: &OwnedFd| fd.try_clone().map_err(|e| Error::io("duplicating an eventfd", e));
        let kicks = [clone(&session.vring(0)?.kick)?, clone(&session.vring(1)?.kick)?];
        let call = clone(&session.vring(0)?.call)?;
        let first = session.first_base();
        session.start(&[first; 2])?;
        let lens = vec![bytes(buffer); usize::from(entries)].into_boxed_slice();
        Ok(Lane {
            session,
            rx,
            tx,
            rx_buffers,
            tx_buffers,
            kicks,
            call,
            mask: entries - 1,
            idle: entries - depth[1],
            lens,
            made: 0,
            owed: 0,
            refill: depth[0].div_ceil(2).min(REFILL),
        })
    }

    /// Frames that the empty transmit ring has room for.
    pub fn depth(&self) -> u16 {
        self.mask + 1 - self.idle
    }

    /// Frames that there is room for, at least `enough` if that can be.
    ///
    /// # Errors
    /// The device gave back what it was never given.
    #[inline]
    pub fn room(&mut self, enough: u16) -> Result<u16> {
        if self.left() < enough {
            let done = self.tx.pending(u16::MAX)?;
            self.tx.take_back(done)?;
        }
        Ok(self.left())
    }

    /// Frames that can be made without a look at what the device has given back.
    #[inline]
    fn left(&self) -> u16 {
        self.tx.room().saturating_sub(self.idle + self.made)
    }

    /// Sends `n ≤ room()` frames that `write` makes: it gets a buffer of the longest frame's length and tells
    /// the frame's.
    ///
    /// # Errors
    /// The other side's eventfd is gone.
    #[inline]
    pub fn send(&mut self, n: u16, mut write: impl FnMut(&mut [u8]) -> usize) -> Result<()> {
        for _ in 0..n.min(self.left()) {
            self.make(&mut write);
        }
        self.publish()
    }

    /// Makes one frame as [`Lane::send`] does, which is sent with those that follow it by [`Lane::publish`].
    /// False: no room.
    ///
    /// # Errors
    /// The device gave back what it was never given.
    #[inline]
    pub fn put(&mut self, write: impl FnOnce(&mut [u8]) -> usize) -> Result<bool> {
        let room = self.room(1)? > 0;
        if room {
            self.make(write);
        }
        Ok(room)
    }

    #[inline(always)]
    fn make(&mut self, write: impl FnOnce(&mut [u8]) -> usize) {
        let (entry, size) = (self.tx.next().wrapping_add(self.made) & self.mask, self.tx_buffers.size);
        // SAFETY: the entry is not with the device, and no other slice of its buffer is alive.
        let buffer = unsafe { self.session.memory.bytes_mut(self.tx_buffers.offset(entry), size) };
        // The header stays as the memory was made: all zero, which is that of a plain frame (virtio 1.2
        // §5.1.6.2).
        let len = bytes(write(&mut buffer[NET_HDR_LEN..]) + NET_HDR_LEN);
        if let Some(last) = self.lens.get_mut(usize::from(entry)).filter(|last| **last != len) {
            *last = len;
            self.tx.set_len(entry, len);
        }
        self.made += 1;
    }

    /// Sends the frames that were made, if there are any.
    ///
    /// # Errors
    /// The other side's eventfd is gone.
    #[inline]
    pub fn publish(&mut self) -> Result<()> {
        let n = std::mem::take(&mut self.made);
        let first = self.tx.next();
        // The device has long read the frames that follow: their lines can come back meanwhile.
        for i in n..n.saturating_mul(2).min(self.tx.room()) {
            prefetch_write(self.line(&self.tx_buffers, first.wrapping_add(i)));
        }
        if self.tx.offer(n) {
            kick(&self.kicks[1])?;
        }
        Ok(())
    }

    /// Has received frames interrupt from now on, or not any more. True: some have come and were not taken
    /// yet.
    ///
    /// # Errors
    /// The device gave back what it was never given.
    pub fn set_interrupts(&mut self, on: bool) -> Result<bool> {
        self.rx.set_interrupts(on);
        self.has_frames()
    }

    /// Whether frames have come and were not taken yet.
    ///
    /// # Errors
    /// The device gave back what it was never given.
    #[inline]
    pub fn has_frames(&mut self) -> Result<bool> {
        Ok(self.rx.pending(1)? > 0)
    }

    /// The eventfd of received frames.
    pub fn call(&self) -> &OwnedFd {
        &self.call
    }

    /// Takes at most `limit` frames that have come, and offers their buffers again; how many.
    ///
    /// # Errors
    /// The other side is gone, or says what cannot be.
    #[inline]
    pub fn receive(&mut self, limit: u16, mut each: impl FnMut(&[u8])) -> Result<u16> {
        let n = self.rx.pending(limit)?;
        let first = self.rx.oldest();
        for i in 0..n.min(AHEAD) {
            prefetch(self.line(&self.rx_buffers, first.wrapping_add(i)));
        }
        for i in 0..n {
            if i + AHEAD < n {
                prefetch(self.line(&self.rx_buffers, first.wrapping_add(i + AHEAD)));
            }
            let entry = first.wrapping_add(i) & self.mask;
            let written = self.rx.written(entry).map_or(0, |len| len as usize);
            let size = written.min(self.rx_buffers.size);
            // SAFETY: the device gave the entry back, and it is offered again below, when the slice is gone.
            let frame = unsafe { self.session.memory.bytes_mut(self.rx_buffers.offset(entry), size) };
            each(frame.get(NET_HDR_LEN..).unwrap_or_default());
        }
        self.rx.take_back(n)?;
        self.owed += n;
        if self.owed >= self.refill {
            let owed = std::mem::take(&mut self.owed);
            if self.rx.offer(owed) {
                kick(&self.kicks[0])?;
            }
        }
        Ok(n)
    }

    /// Goes on with another backend: what the old one had not given back is offered again, so frames may
    /// arrive twice.
    ///
    /// # Errors
    /// The negotiation fails.
    pub fn reconnect(&mut self, frontend: Frontend) -> Result<()> {
        let bases = [self.rx.base()?, self.tx.base()?];
        self.session.reconnect(frontend, &bases)?;
        // A backend that comes back cannot know that there is something to do.
        self.kicks.iter().try_for_each(kick)
    }

    #[inline(always)]
    fn line(&self, buffers: &Buffers, entry: u16) -> *mut u8 {
        self.session.memory.at(buffers.offset(entry & self.mask), NET_HDR_LEN)
    }
}

fn kick(fd: &OwnedFd) -> Result<()> {
    rustix::io::write(fd, &1u64.to_ne_bytes()).map_err(|e| Error::io("kicking", e))?;
    Ok(())
}
