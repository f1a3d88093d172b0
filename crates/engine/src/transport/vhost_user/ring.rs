//! One ring as the VMM sets it up, message by message and in any order.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use sidecore_abi::virtio::{features as bit, split};

use crate::mem::{GuestMap, Overrun, Piece, Signal};
use crate::sandbox::descriptors;
use crate::virtq::{Position, RingConfig};

/// Where the parts of a ring are, in the VMM's own addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Addresses {
    pub desc: u64,
    pub driver: u64,
    pub device: u64,
    /// Guest address of the used ring, if it is to be logged.
    pub log: Option<u64>,
}

/// Where a ring starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Base {
    #[default]
    Unknown,
    /// As SET_VRING_BASE gave it. It may be stale: see `journal`.
    Sent(u32),
    /// Where we stopped it ourselves.
    At(Position),
}

impl Base {
    /// The form of SET_VRING_BASE and GET_VRING_BASE.
    pub(super) fn to_wire(self) -> u32 {
        match self {
            Base::Unknown => 0,
            Base::Sent(word) => word,
            Base::At(Position::Split(index)) => u32::from(index),
            Base::At(Position::Packed { avail, used }) => u32::from(avail) | u32::from(used) << 16,
        }
    }
}

/// A position in a packed ring from the form of SET_VRING_BASE. Front ends that know only the lower half
/// (DPDK's virtio-user) leave the upper one zero and mean the same place by it.
pub(super) fn packed_from_wire(word: u32) -> Position {
    #[expect(clippy::cast_possible_truncation, reason = "two halves of a word")]
    let (avail, used) = (word as u16, (word >> 16) as u16);
    Position::Packed { avail, used: if used == 0 { avail } else { used } }
}

/// The kick descriptor.
#[derive(Debug, Default)]
pub(super) enum Kick {
    /// Not told yet: the ring is stopped.
    #[default]
    Unknown,
    /// There is none; the ring is to be polled.
    Polled,
    Event(File),
}

/// A ring and what is known of it.
#[derive(Debug, Default)]
pub(super) struct Vring {
    pub size: Option<u16>,
    pub addresses: Option<Addresses>,
    pub base: Base,
    pub kick: Kick,
    /// What SET_VRING_ENABLE said, if it came.
    pub enabled: Option<bool>,
    pub notifier: Arc<Signal>,
    pub error: Arc<Signal>,
    pub running: bool,
    /// Why it could not be started when all was known.
    pub refused: Option<String>,
}

impl Vring {
    /// A ring of a port with this account.
    pub(super) fn new(overrun: &Overrun) -> Vring {
        let [notifier, error] = [0; 2].map(|_| Arc::new(Signal::new(overrun)));
        Vring { notifier, error, ..Vring::default() }
    }

    /// Interrupts go to this eventfd from now on, or to this socket; none: nowhere. A socket that they went
    /// to before is hung up on here: no I/O core may close it (see `channel`).
    pub(super) fn interrupt_by(&self, event: Option<OwnedFd>, socket: bool) {
        self.notifier.take_socket().iter().for_each(descriptors::hang_up);
        match event {
            Some(end) if socket => self.notifier.set_socket(end),
            event => self.notifier.set(event),
        }
    }

    /// Forgets what a driver set up; the VMM's own descriptors for interrupts and errors stay.
    pub(super) fn reset(&mut self) {
        let Vring { notifier, error, .. } = std::mem::take(self);
        *self = Vring { notifier, error, ..Vring::default() };
    }

    /// Forgets where the ring stopped, if it ran.
    pub(super) fn forget_place(&mut self) {
        if let Base::At(_) = self.base {
            self.base = Base::Unknown;
        }
    }

    /// What the ring still waits for.
    pub(super) fn missing(&self, memory: bool, starts_enabled: bool) -> Option<&'static str> {
        if !memory {
            Some("waits for memory")
        } else if self.size.is_none() {
            Some("waits for its size")
        } else if self.addresses.is_none() {
            Some("waits for its addresses")
        } else if self.base == Base::Unknown {
            Some("waits for its start index")
        } else if matches!(self.kick, Kick::Unknown) {
            Some("stopped")
        } else if !self.enabled.unwrap_or(starts_enabled) {
            Some("disabled")
        } else {
            None
        }
    }

    /// The kick descriptor once more, for the queue to keep.
    pub(super) fn kick_copy(&self) -> std::io::Result<Option<OwnedFd>> {
        match &self.kick {
            Kick::Event(file) => Ok(Some(file.try_clone()?.into())),
            _ => Ok(None),
        }
    }
}

/// The three parts of a ring, translated.
pub(super) fn translate(
    map: &GuestMap,
    at: Addresses,
    size: u16,
    features: u64,
) -> Result<[Piece; 3], String> {
    let names = if features & bit::RING_PACKED != 0 {
        ["descriptor ring", "driver event area", "device event area"]
    } else {
        ["descriptor table", "available ring", "used ring"]
    };
    let sizes = RingConfig::part_sizes(size, features);
    let mut parts = [Piece::EMPTY; 3];
    for (i, addr) in [at.desc, at.driver, at.device].into_iter().enumerate() {
        let len = u32::try_from(sizes[i]).unwrap_or(u32::MAX);
        parts[i] = map.translate_user(addr, len).ok_or_else(|| {
            format!(
                "the {} at {addr:#x} ({len} bytes) is not inside one region of the memory table",
                names[i]
            )
        })?;
    }
    Ok(parts)
}

/// The used index that a split ring's used part holds.
pub(super) fn used_index(used: &Piece) -> u16 {
    let mut at = *used;
    at.advance(split::USED_IDX);
    let mut bytes = [0; 2];
    at.read(&mut bytes);
    u16::from_le_bytes(bytes)
}
