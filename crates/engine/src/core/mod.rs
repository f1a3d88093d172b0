//! The I/O cores.
//!
//! [`Cores`] is the set of them (`cores`): it starts their threads, gives every task to an *active* core, moves tasks and hands
//! them back. A [`Task`] is what a core visits (`task`); its owner holds a lease on it (`lease`), and `registry` says which core
//! has it. `run` is the loop of a core; `accounts` and `server` divide its time, `pace` bounds a visit, `mailbox` brings messages.
//! `balance` decides which core serves which task, by `sample`s of the cores' work; `cores` carries that out, on a thread of its
//! own (`periodic`). Nothing here knows about frames, ports or devices.

mod accounts;
mod balance;
mod clock;
mod cores;
mod histogram;
mod lease;
mod ledger;
mod mailbox;
mod pace;
mod periodic;
mod poller;
mod registry;
mod run;
mod sample;
mod server;
mod task;
mod tenant;
#[cfg(test)]
pub(crate) mod tests;
mod time_spent;
mod timers;
mod tuning;
mod watch;

pub use cores::Cores;
pub use histogram::Histogram;
pub use lease::{Home, Lease, Lent, Recall};
pub use ledger::{Heat, TaskStatus, VisitEnd};
pub use task::{Budget, Owner, Slow, SlowCount, Task, TaskHandle, Visit};
pub use tenant::{Class, CpuBudget, Rate, Service, Tenant, Usage, DEFAULT_WEIGHT, MAX_WEIGHT, MOST_RESERVED};
pub use time_spent::CoreStatus;
pub use tuning::Tuning;
pub(crate) use tuning::TURN;
