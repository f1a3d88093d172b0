//! The cards that are measured, and one driver for all of them.

use crate::prelude::*;
use sidecore_driver::e1000::{Model as IntelModel, E1000};
use sidecore_driver::rtl8169::Rtl8169;
use sidecore_driver::Error;
use sidecore_engine::device::e1000::Model;

/// A card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// One of Intel's.
    Intel(Model),
    /// Realtek's.
    Rtl8169,
}

impl Part {
    /// All of them.
    pub const ALL: [Part; 3] = [Part::Intel(Model::E1000), Part::Intel(Model::E1000e), Part::Rtl8169];

    /// The kind of port.
    pub const fn name(self) -> &'static str {
        match self {
            Part::Intel(Model::E1000) => "e1000",
            Part::Intel(Model::E1000e) => "e1000e",
            Part::Rtl8169 => "rtl8169",
        }
    }

    /// That of the port kind `name`, which is one of them.
    pub fn named(name: &str) -> Part {
        Part::ALL.into_iter().find(|part| part.name() == name).unwrap_or(Part::Rtl8169)
    }
}

/// How a driver sets its card up.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Entries of the rings.
    pub ring: u16,
    /// Pages behind rings and buffers.
    pub page: Page,
    /// Doorbells are mapped, where the card's can be.
    pub map: bool,
    /// The least gap between two interrupts, in 256 ns; the RTL8169's driver leaves that to the operator.
    pub itr: u16,
    /// There is a communication status block, and it is used.
    pub csb: bool,
}

/// A driver.
pub enum Nic {
    /// One of Intel's cards.
    Intel(Box<E1000>),
    /// Realtek's.
    Realtek(Box<Rtl8169>),
}

/// Does something with the driver, whichever it is.
macro_rules! either {
    ($nic:expr, $driver:ident => $work:expr) => {
        match $nic {
            Nic::Intel($driver) => $work,
            Nic::Realtek($driver) => $work,
        }
    };
}

/// What both drivers can do under one name.
macro_rules! both_have {
    ($($(#[$about:meta])* mut $name:ident($($of:ident: $type:ty),*) -> $result:ty;)*) => {
        $($(#[$about])* pub fn $name(&mut self $(, $of: $type)*) -> $result {
            either!(self, nic => nic.$name($($of),*))
        })*
    };
}

impl Nic {
    both_have! {
        /// Asks for an interrupt at every frame received and sent.
        mut arm_all() -> Result<(), Error>;
        /// If there was an interrupt, does what Linux's driver does then. Frames received; `None`: no
        /// interrupt.
        mut service(budget: usize, see: impl FnMut(&[u8])) -> Result<Option<usize>, Error>;
        /// Queues one frame that `fill` writes. False: the ring has no room.
        mut queue_with(fill: impl FnOnce(&mut [u8]) -> usize) -> Result<bool, Error>;
        /// Tells the device of everything queued, if it does not know.
        mut doorbell() -> Result<(), Error>;
        /// Queues as many of `count` frames as there is room for and rings once; returns how many.
        #[inline]
        mut send_with(count: usize, fill: impl FnMut(usize, &mut [u8]) -> usize) -> Result<usize, Error>;
        /// Takes the descriptors of sent frames back.
        mut reclaim() -> bool;
        /// Asks for an interrupt when frames have been sent, if the ring has no room.
        mut want_room() -> ();
        /// Shows up to `limit` received frames to `see`; returns how many there were.
        #[inline]
        mut receive(limit: usize, see: impl FnMut(&[u8])) -> Result<usize, Error>;
    }

    /// Whether the last [`service`](Nic::service) was not the end of it.
    pub fn is_polling(&self) -> bool {
        either!(self, nic => nic.is_polling())
    }

    /// Whether the end of an interrupt leaves the guest: a pin's does.
    pub fn ends_trap(&self) -> bool {
        match self {
            Nic::Intel(nic) => nic.model() == IntelModel::E1000,
            Nic::Realtek(_) => true,
        }
    }

    /// Whether the device has nothing to send, as far as the driver has looked.
    pub fn is_clean(&self) -> bool {
        either!(self, nic => nic.is_clean())
    }

    /// Accesses so far that would have left a guest, without ends of interrupts.
    pub fn traps(&self) -> u64 {
        let traps = either!(self, nic => nic.traps());
        traps.reads + traps.writes
    }
}
