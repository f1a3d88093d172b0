//! `sidecore bench share`, `mix`, `parts`, `budget`, `grants` and `move`: what I/O cores do for many guests.
//! The first three stand beside a thread for each device on the same processor.
//!
//! All of them have the stage of `stage` and the players of `guest`: one thread is all guests and the network
//! behind them, so two processors are enough. Each round starts every way of doing I/O anew, in alternation;
//! figures are medians of rounds, a ratio is the median of the rounds' ratios. How busy the load was stands
//! beside each figure: it must not be what limits. Each measurement of the players has the distance of their
//! processor and the I/O cores'; a figure of several has that of all of them.

pub mod budget;
pub mod cores;
pub mod grants;
pub mod guest;
pub mod mix;
pub mod moves;
pub mod parts;
pub mod share;
pub mod stage;

/// A core that is busy for so much of the time has no more to give.
const FULL: f64 = 0.95;
