//! The control plane: what the operator asks for ([`Spec`]), whether it makes sense (`check`), what it
//! changes (`plan`) and how that is done, all or nothing (`carry`).
//!
//! ```text
//! command line, file, JSON → Spec → check → plan::between(what runs, wanted) → carry → ports that run
//! ```
//!
//! One mutex serialises requests; it is never taken by an I/O core. The cores learn of changes by a new
//! [`Graph`], published whole. Port kinds are rows of a table (`kinds`); this module knows none of them
//! by name.

mod carry;
mod check;
mod cores;
mod engine;
mod fabric;
mod follow;
pub mod kinds;
mod neighbours;
mod plan;
mod retire;
mod spec;
pub mod status;
#[cfg(test)]
mod tests;
pub mod text;
mod vale;
pub mod values;
mod visitors;

pub use carry::Undone;
pub use check::{check, Finding, Part};
pub use cores::CoreFabric;
pub use engine::{Engine, Error};
pub use fabric::{Address, Fabric, Graph, Joined, Joint, Standing};
pub use plan::{Change, Verb};
pub use spec::{DaemonSpec, PortSpec, Spec, SwitchSpec, COMMON_KEYS, DEFAULT_SWITCH};
pub use text::BadSpec;
pub use vale::Vale;
