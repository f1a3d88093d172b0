//! Frames that the interface receives.
//!
//! Invariant of the `unsafe` here: the arena is private memory that only [`PacketIngress::fetch`] writes,
//! when no batch of the queue is under way, each frame behind the one before.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::Arc;

use rustix::net::{recv, RecvFlags};
use sidecore_abi::virtio::NET_HDR_LEN;

use super::ring::{self, PacketRing, SlotFacts, HEADER};
use crate::host::describe::{describe, Facts};
use crate::host::mapping::Mapping;
use crate::host::nic::InterfaceState;
use crate::packet::{Batch, Offloads, HEAD};
use crate::port::{DropReason, IngressQueue, Port, Tally};

/// Longest frame: 64 KiB of IP, Ethernet and two VLAN tags, rounded up.
const MAX_FRAME: usize = (1 << 16) + 2 * HEAD;
/// Frames too large for a slot: after seven of 64 KiB the batch ends.
const ARENA: usize = 8 * MAX_FRAME;
/// What the kernel may leave to us.
const GIVES: Offloads = Offloads::ALL.without(Offloads::UFO);

/// Frames that the interface receives.
pub(super) struct PacketIngress {
    fd: Arc<OwnedFd>,
    ring: PacketRing,
    port: Arc<Port>,
    state: Arc<InterfaceState>,
    arena: Mapping,
    /// Where the next large frame of this batch goes.
    line: usize,
    /// The kernel may have lost frames; how many is still to be asked.
    losing: bool,
    /// Frames lost that are still to be counted.
    pending: u32,
    /// Frames came since the kernel was asked.
    busy: bool,
}

impl PacketIngress {
    pub(super) fn new(
        fd: Arc<OwnedFd>,
        ring: PacketRing,
        port: Arc<Port>,
        state: Arc<InterfaceState>,
    ) -> io::Result<PacketIngress> {
        Ok(PacketIngress {
            fd,
            ring,
            port,
            state,
            arena: Mapping::private(ARENA)?,
            line: HEAD,
            losing: false,
            pending: 0,
            busy: false,
        })
    }

    /// Asks the kernel what it lost.
    #[cold]
    fn ask(&mut self) {
        (self.losing, self.busy) = (false, false);
        self.pending = self.pending.saturating_add(ring::lost(&self.fd));
    }

    /// Describes the frame in `slot`.
    fn small(&self, slot: &SlotFacts, batch: &mut Batch) -> Result<(), DropReason> {
        let (header, bytes) = self.ring.frame(slot);
        describe(batch, bytes, &facts(&header, slot), |from, len| self.ring.piece(slot, from, len))
    }

    /// Reads the frame that did not fit into `slot`, and describes it.
    #[cold]
    fn large(&mut self, slot: &SlotFacts, batch: &mut Batch) -> Result<(), DropReason> {
        if !slot.copied {
            return Err(DropReason::HostOverrun);
        }
        // The frame begins on a cache line, behind a header that ends there.
        let at = self.line - HEADER;
        // SAFETY: the batch holds nothing of the arena from `line` on.
        let room = unsafe { self.arena.bytes_mut(at, MAX_FRAME) };
        let wanted = room.len();
        let len = match recv(&*self.fd, room, RecvFlags::DONTWAIT) {
            Ok((len, _)) if len < wanted && len > HEADER => len,
            Ok(_) => return Err(DropReason::TooLong),
            Err(_) => return Err(DropReason::HostOverrun),
        };
        self.line = (at + len + HEADER).next_multiple_of(HEAD);
        // SAFETY: `recv` has just written there, and no side will until the batch is released.
        let bytes = unsafe { self.arena.bytes(at, len) };
        let (header, bytes) = bytes.split_first_chunk::<HEADER>().ok_or(DropReason::TooShort)?;
        describe(batch, bytes, &facts(header, slot), |from, len| self.arena.piece(at + HEADER + from, len))
    }
}

#[inline]
fn facts(header: &[u8; HEADER], slot: &SlotFacts) -> Facts {
    let mut long = [0; NET_HDR_LEN];
    long[..HEADER].copy_from_slice(header);
    Facts { header: long, tag: slot.tag, allowed: GIVES }
}

impl IngressQueue for PacketIngress {
    fn fetch(&mut self, batch: &mut Batch, tally: &mut Tally) {
        self.line = HEAD;
        while batch.room() > 0 && self.line + MAX_FRAME <= ARENA {
            let Some(slot) = self.ring.look() else { break };
            self.losing |= slot.losing;
            self.busy = true;
            tally.frames += 1;
            tally.bytes += slot.len as u64 + if slot.tag.is_some() { 4 } else { 0 };
            let result = if slot.whole { self.small(&slot, batch) } else { self.large(&slot, batch) };
            if let Err(reason) = result {
                tally.drops.add(reason, 1);
                batch.skip();
            }
            self.ring.take();
        }
        if self.losing {
            self.ask();
        }
        if self.pending > 0 {
            tally.frames += u64::from(self.pending);
            tally.drops.add(DropReason::HostOverrun, self.pending);
            self.pending = 0;
        }
        if !self.state.wanted.load(Ordering::Relaxed) {
            tally.drops.add(DropReason::LinkDown, u32::try_from(batch.len()).unwrap_or(0));
            batch.clear();
        }
    }

    fn has_frames(&mut self) -> bool {
        // Frames that were lost are to be counted, too.
        self.pending > 0 || self.losing || self.ring.is_ready()
    }

    fn release(&mut self, _: &mut Tally) {
        self.ring.give_back();
    }

    /// The socket is readable while frames wait, asked or not: no notification has to be asked for. The
    /// kernel marks a lost frame at the next one that it does not lose: before a sleep it is asked.
    fn want_kicks(&mut self, on: bool) -> bool {
        if !on || self.port.fault.get().is_some() {
            return false;
        }
        if self.busy {
            self.ask();
        }
        self.pending > 0 || self.ring.is_ready()
    }

    fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }
}
