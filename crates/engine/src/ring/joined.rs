//! The memory of a pipe between two ports: each end has an interface and rings of its own, and both have all
//! buffers.
//!
//! What end 0 sends in ring *i* end 1 receives in its ring *i*, at the same slots and in the same buffers,
//! and the other way round. The slots themselves cannot be one row for both: in netmap's format they follow
//! the ring's `head`, `cur` and `tail`, which belong to one end alone.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::hand::Hand;
use super::layout::{ends, parts_of_ends, Geometry};
use super::region::{adopt_memory, memory, Region};
use super::sync::{ClientRx, ClientTx};

/// One of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The first.
    First,
    /// The second.
    Second,
}

impl Side {
    /// Both.
    pub const BOTH: [Side; 2] = [Side::First, Side::Second];

    /// The other one.
    #[must_use]
    pub fn other(self) -> Side {
        match self {
            Side::First => Side::Second,
            Side::Second => Side::First,
        }
    }

    /// Its own of what the two ends have.
    pub fn of<T>(self, [first, second]: &[T; 2]) -> &T {
        match self {
            Side::First => first,
            Side::Second => second,
        }
    }
}

/// The memory of a pipe between two ports: a region for each end.
pub struct Joined {
    ends: [Arc<Region>; 2],
}

impl Joined {
    /// New memory, all pages present, for a pipe called `name`.
    ///
    /// # Errors
    /// A geometry out of range, or what the system says of making, sizing or mapping the file.
    pub fn new(geometry: &Geometry, name: &str) -> io::Result<Joined> {
        let infos @ [first, _] = ends(geometry)?;
        let memory = memory(&first)?;
        let joined = Joined { ends: infos.map(|info| Arc::new(Region::part(info, &memory))) };
        let first = joined.end(Side::First);
        first.allocate(parts_of_ends(first.info()))?;
        joined.fill(name);
        Ok(joined)
    }

    /// Memory that another process made, as it left it.
    ///
    /// # Errors
    /// It is not the file of such memory; or as above.
    pub fn adopt(geometry: &Geometry, file: OwnedFd) -> io::Result<Joined> {
        let infos @ [first, _] = ends(geometry)?;
        let memory = adopt_memory(&first, file)?;
        Ok(Joined { ends: infos.map(|info| Arc::new(Region::part(info, &memory))) })
    }

    /// The memory file.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.end(Side::First).file()
    }

    /// What `end` has.
    pub fn end(&self, end: Side) -> &Arc<Region> {
        end.of(&self.ends)
    }

    /// Writes interfaces and rings of both ends: as they are at first, whatever stands there.
    pub fn fill(&self, name: &str) {
        for end in Side::BOTH {
            let (region, across) = (self.end(end), self.end(end.other()).info().first_buf);
            let info = region.info();
            for ring in 0..info.tx_rings {
                let bufs = ring * info.tx_slots;
                region.fill_ring(ring, ring, false, info.first_buf + bufs);
                region.fill_ring(info.tx_rings + ring, ring, true, across + bufs);
                self.set_position(end, ring, [0, 0, info.tx_slots - 1], [0; 3]);
            }
            let [tx, rx] = idle(region);
            region.fill_idle(tx, info.tx_rings, false);
            region.fill_idle(rx, info.rx_rings, true);
            self.set_interface(end, name, true);
        }
    }

    /// Writes the interface of `end`: with the idle host rings, which a guest's netmap wants to find, or
    /// without.
    pub fn set_interface(&self, end: Side, name: &str, host: bool) {
        let region = self.end(end);
        let info = region.info();
        let [idle_tx, idle_rx] = idle(region);
        let row = |first: u32, count: u32, idle: u32| -> Vec<u64> {
            let idle = host.then_some(idle);
            (first..first + count).chain(idle).map(|number| region.ring_offset(number)).collect()
        };
        let (txs, rxs) = (row(0, info.tx_rings, idle_tx), row(info.tx_rings, info.rx_rings, idle_rx));
        region.fill_interface(info.interface, name, 0, (&txs, &rxs), usize::from(host));
    }

    /// The way of frames from ring `ring` of end `from` to the other end: where it is sent, and where it is
    /// received. One at a time may exist of each.
    ///
    /// # Panics
    /// If there is no such ring.
    pub fn direction(&self, from: Side, ring: u32) -> (ClientTx<Hand>, ClientRx<Hand>) {
        let (sender, receiver) = (self.end(from), self.end(from.other()));
        let (send, receive) = (Hand::new(sender, ring), Hand::new(receiver, receiver.info().tx_rings + ring));
        // New memory: all slots are the sender's.
        let ([released, _], [_, given]) = (send.indices(), receive.indices());
        let (mut tx, mut rx) = (ClientTx::with(sender, ring, send), ClientRx::with(receiver, ring, receive));
        // Ends write there, too: if what stands there cannot be, they are told of something else.
        if tx.set_position(released, given) {
            rx.set_position(released, given);
        }
        (tx, rx)
    }

    /// Writes where ring `ring` of `end` is, for a program that takes it over: on which it sends, and on
    /// which it receives.
    pub fn set_position(&self, end: Side, ring: u32, sends: [u32; 3], receives: [u32; 3]) {
        let region = self.end(end);
        region.set_position(ring, sends);
        region.set_position(region.info().tx_rings + ring, receives);
    }
}

/// The two idle rings of an end.
fn idle(region: &Region) -> [u32; 2] {
    let first = region.info().tx_rings + region.info().rx_rings;
    [first, first + 1]
}
