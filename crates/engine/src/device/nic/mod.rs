//! A network card around its registers: what every emulated card does in one way, whichever part it is.
//!
//! Theory of operation. A card has rings of descriptors in the guest's memory and registers that say where
//! they are and what shall be done. `card` is the state machine: who may have the rings now, what resets,
//! links and maps do to them, and what another process finds. `transmitter` serves the transmit rings for an
//! I/O core; `tx` walks the descriptors of one and makes frames of them. `shared` is what both have of a
//! card. A part adds its registers and how its descriptors read ([`Model`], [`TxCodec`]); its receive rings
//! are its own.

mod card;
mod ring;
mod transmitter;
mod tx;

pub use card::Card;
pub(super) use card::{Access, Layout, Model, Parts, RxRings};
pub use ring::Nic;
pub(super) use ring::{RingBase, SharedPart};
pub(super) use transmitter::LONGEST_NAP;
pub(super) use tx::{Cursor, Look, Made, TxCodec, Wishes};
