//! One of the load's two ports: bound rings, tagged frames.
//!
//! Invariant kept by the `unsafe` here: every pointer lies in the first cache line of a buffer of this
//! port's own memory, which the session keeps mapped; a transmit buffer is written only while the
//! device does not hold it, a receive buffer read only after it was given back.

use std::os::fd::OwnedFd;

use sidecore_abi::virtio::{features as f, NET_HDR_LEN};

use super::LoadConfig;
use crate::bound::Bound;
use crate::error::{Error, Result};
use crate::frontend::Frontend;
use crate::memory::{prefetch, prefetch_write, Buffers};
use crate::queue::Buf;
use crate::session::{Config, Session, Want};

/// Where the tag lies in a frame: the first bytes behind Ethernet, IPv4 and UDP headers. With the
/// network header before it, it ends just within the first cache line.
pub const TAG: usize = 42;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) lost: u64,
    pub(super) reordered: u64,
    pub(super) corrupt: u64,
}

/// One of the two ports.
pub(super) struct Port {
    session: Session,
    rx: Bound,
    tx: Bound,
    rx_buffers: Buffers,
    tx_buffers: Buffers,
    mask: u16,
    rx_kick: OwnedFd,
    tx_kick: OwnedFd,
    /// Receive entries taken back and not yet offered again.
    rx_owed: u16,
    /// The tag that the next sent frame gets, and that the next received one should have.
    pub(super) tx_tag: u64,
    pub(super) rx_tag: u64,
    /// First eight bytes of a frame that belongs here.
    rx_start: u64,
    pub(super) counts: Counts,
}

/// MAC address of a port: locally administered, unicast.
fn mac(port: u8) -> [u8; 6] {
    [0x02, 0x73, 0x63, 0, 0, 1 + port]
}

/// A UDP datagram from one port's station to the other's, without a tag.
pub fn frame(from: u8, len: usize) -> Vec<u8> {
    let word = |n: usize| u16::try_from(n).unwrap_or(u16::MAX).to_be_bytes();
    let mut bytes = vec![0; len];
    bytes[..6].copy_from_slice(&mac(1 - from));
    bytes[6..12].copy_from_slice(&mac(from));
    bytes[12..14].copy_from_slice(&[8, 0]);
    bytes[14..24].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17]);
    bytes[16..18].copy_from_slice(&word(len - 14));
    bytes[26..34].copy_from_slice(&[10, 0, 0, 1 + from, 10, 0, 0, 2 - from]);
    let sum: u32 = bytes[14..34].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !((sum & 0xffff) + (sum >> 16)) & 0xffff;
    bytes[24..26].copy_from_slice(&word(sum as usize));
    bytes[34..40].copy_from_slice(&[0x12, 0x34, 0x56, 0x78, 0, 0]);
    bytes[38..40].copy_from_slice(&word(len - 34));
    for (i, byte) in bytes.iter_mut().enumerate().skip(TAG + 8) {
        *byte = i.to_le_bytes()[0];
    }
    bytes
}

impl Port {
    /// Negotiates, binds and starts.
    pub(super) fn new(frontend: Frontend, config: &LoadConfig, number: u8) -> Result<Self> {
        let want = Want::default()
            .and_if(config.mergeable, f::NET_MRG_RXBUF)
            .and_if(config.packed, f::RING_PACKED)
            .and_if(config.in_order, f::IN_ORDER);
        let entries = config.entries;
        let buffer = NET_HDR_LEN + 1524;
        let mut session =
            Session::new(frontend, Config { want, entries, buffer, page: config.page, ..Config::default() })?;
        let memory = session.memory.clone();
        let rx_buffers = memory.alloc_buffers(usize::from(entries), buffer)?;
        let tx_buffers = memory.alloc_buffers(usize::from(entries), buffer)?;
        let template = frame(number, config.frame);
        for n in 0..entries {
            memory.write(tx_buffers.offset(n) + NET_HDR_LEN, &template);
            memory.write(tx_buffers.offset(n) + NET_HDR_LEN + TAG, &u64::from(n).to_le_bytes());
        }
        let bind = |queue: u16, buffers: Buffers, len: usize| {
            let len = u32::try_from(len).unwrap_or(u32::MAX);
            let parts = session.vring(queue)?.parts.clone();
            Bound::new(queue, session.options(), parts, |n| Buf {
                addr: memory.gpa(buffers.offset(n)),
                len,
                write: queue == 0,
            })
        };
        let mut rx = bind(0, rx_buffers, buffer)?;
        let tx = bind(1, tx_buffers, NET_HDR_LEN + config.frame)?;
        rx.offer(rx.room());
        let clone = |queue: u16| {
            let fd = &session.vring(queue)?.kick;
            fd.try_clone().map_err(|e| Error::io("duplicating an eventfd", e))
        };
        let (rx_kick, tx_kick) = (clone(0)?, clone(1)?);
        let first = session.first_base();
        session.start(&[first; 2])?;
        let mut start = [0; 8];
        start.copy_from_slice(&frame(1 - number, config.frame)[..8]);
        Ok(Self {
            session,
            rx,
            tx,
            rx_buffers,
            tx_buffers,
            rx_kick,
            tx_kick,
            mask: config.entries - 1,
            rx_owed: 0,
            tx_tag: 0,
            rx_tag: 0,
            rx_start: u64::from_le_bytes(start),
            counts: Counts::default(),
        })
    }

    /// First byte of a buffer.
    #[inline(always)]
    fn line(&self, buffers: &Buffers, n: u16) -> *mut u8 {
        self.session.memory.at(buffers.offset(n), NET_HDR_LEN + TAG + 8)
    }

    /// Offers `n` frames; `time` goes into their tags (0: none).
    #[inline]
    pub(super) fn send(&mut self, n: u16, touch: bool, mask: u64, time: u64) -> Result<()> {
        if touch {
            let first = self.tx.next();
            for i in 0..n {
                let entry = first.wrapping_add(i) & self.mask;
                let tag = (self.tx_tag + u64::from(i)) & mask | time << 16;
                let at = self.line(&self.tx_buffers, entry);
                // SAFETY: within the buffer's first line, and the entry is not with the device.
                unsafe { at.add(NET_HDR_LEN + TAG).cast::<u64>().write_unaligned(tag) };
            }
            // The device has long read the frames that follow: their lines can come back meanwhile.
            for i in n..2 * n {
                prefetch_write(self.line(&self.tx_buffers, first.wrapping_add(i) & self.mask));
            }
        }
        self.tx_tag = self.tx_tag.wrapping_add(n.into());
        self.counts.sent += u64::from(n);
        if self.tx.offer(n) {
            kick(&self.tx_kick)?;
        }
        Ok(())
    }

    /// Takes received frames, at most `limit`; `seen` gets the time in each tag.
    #[inline]
    pub(super) fn receive(
        &mut self,
        limit: u16,
        len: u32,
        mask: u64,
        mut seen: impl FnMut(u64),
    ) -> Result<u16> {
        let n = self.rx.pending(limit)?;
        if n == 0 {
            return Ok(0);
        }
        let first = self.rx.oldest();
        for i in 0..n {
            prefetch(self.line(&self.rx_buffers, first.wrapping_add(i) & self.mask));
        }
        for i in 0..n {
            let entry = first.wrapping_add(i) & self.mask;
            let at = self.line(&self.rx_buffers, entry);
            // SAFETY: within the buffer's first line, and the device gave the entry back.
            let (start, tag) = unsafe {
                (
                    at.add(NET_HDR_LEN).cast::<u64>().read_unaligned(),
                    at.add(NET_HDR_LEN + TAG).cast::<u64>().read_unaligned(),
                )
            };
            let right_length = self.rx.written(entry).is_none_or(|written| written == len);
            if start != self.rx_start || !right_length {
                self.counts.corrupt += 1;
                continue;
            }
            let ahead = (tag & 0xffff).wrapping_sub(self.rx_tag) & mask;
            if ahead > mask / 2 {
                self.counts.reordered += 1;
                continue;
            }
            self.counts.lost += ahead;
            self.rx_tag = self.rx_tag.wrapping_add(ahead + 1);
            seen(tag >> 16);
        }
        self.counts.received += u64::from(n);
        self.rx.take_back(n)?;
        self.rx_owed += n;
        Ok(n)
    }

    /// Offers receive entries again, if a burst of them has come together.
    #[inline]
    pub(super) fn refill(&mut self, at_least: u16) -> Result<()> {
        if self.rx_owed >= at_least && self.rx_owed > 0 {
            let owed = std::mem::take(&mut self.rx_owed);
            if self.rx.offer(owed) {
                kick(&self.rx_kick)?;
            }
        }
        Ok(())
    }

    /// Makes room to send `n`, by looking for sent entries only if that is needed.
    #[inline]
    pub(super) fn make_room(&mut self, n: u16) -> Result<u16> {
        if self.tx.room() < n {
            let done = self.tx.pending(u16::MAX)?;
            self.tx.take_back(done)?;
        }
        Ok(self.tx.room())
    }
}

fn kick(fd: &OwnedFd) -> Result<()> {
    rustix::io::write(fd, &1u64.to_ne_bytes()).map_err(|e| Error::io("kicking", e))?;
    Ok(())
}
