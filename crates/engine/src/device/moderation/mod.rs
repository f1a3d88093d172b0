//! How often devices interrupt their guests.
//!
//! `gate` says whether an interrupt may be sent now, or when; `alarm` sees to it that those that had to wait are looked at again.
//! Neither knows what an interrupt is.

mod alarm;
mod gate;

pub(super) use alarm::Alarm;
#[cfg(test)]
pub(super) use alarm::Clock;
#[cfg(test)]
pub(super) use gate::BURST;
pub(super) use gate::{Gate, NEVER};
