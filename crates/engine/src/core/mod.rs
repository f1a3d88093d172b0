//! The I/O cores.
//!
//! [`Cores`] is the set of them (`cores`): it starts their threads, gives every task to an *active* core,
//! moves tasks and hands them back. A [`Task`] is what a core visits (`task`); its owner holds a lease on it
//! (`lease`), and `registry` says which core has it. `run` is the loop of a core; `accounts` divides its
//! time, `pace` bounds a visit, `mailbox` brings messages, `poller` and timers wake it. `balance` decides
//! which core serves which task, by samples of the cores' work; `cores` carries that out, on a thread of its
//! own (`watch`). Nothing here knows about frames, ports or devices.

mod accounts;
mod balance;
mod clock;
mod cores;
mod histogram;
mod lease;
mod ledger;
mod mailbox;
mod pace;
mod poller;
mod registry;
mod run;
mod task;
mod tenant;
#[cfg(test)]
pub(crate) mod tests;
mod watch;

pub use cores::Cores;
pub use histogram::Histogram;
pub use lease::{Home, Lease, Lent, Recall};
pub use ledger::{CoreStatus, Heat, TaskStatus, VisitEnd};
pub use pace::Tuning;
pub(crate) use pace::TURN;
pub use task::{Budget, Owner, Slow, SlowCount, Task, TaskHandle, Visit};
pub use tenant::{Class, CpuBudget, Rate, Service, Tenant, Usage, DEFAULT_WEIGHT, MAX_WEIGHT, MOST_RESERVED};
