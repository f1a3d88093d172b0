//! Moderation of interrupts, as all emulated NICs have it: how often they are let through ([`InterruptGate`]), and when what had to
//! wait is looked at again ([`Alarm`]).

mod alarm;
mod gate;

pub(in crate::device) use alarm::Alarm;
#[cfg(test)]
pub(in crate::device) use alarm::Clock;
#[cfg(test)]
pub(in crate::device) use gate::BURST;
pub(in crate::device) use gate::{Delayed, InterruptGate, NEVER};
