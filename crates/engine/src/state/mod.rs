//! The control plane: what the operator asks for ([`Spec`]), whether it makes sense (`check`), what it
//! changes (`plan`) and how that is done, all or nothing (`carry`).
//!
//! ```text
//! command line, file, JSON → Spec → check → plan::between(what runs, wanted) → carry → ports that run
//! ```
//!
//! One mutex serialises requests; it is never taken by an I/O core. The cores learn of changes by a new
//! graph, published whole ([`Fabric::publish`]). Port kinds are rows of a table (`kinds`); this module knows none of them
//! by name.

mod carry;
mod check;
mod control;
mod cores;
pub mod cpus;
mod demand;
pub mod disks;
mod engine;
mod fabric;
mod flow;
mod follow;
mod grants;
pub mod kinds;
mod live;
pub mod media;
mod neighbours;
pub mod options;
mod plan;
mod retire;
pub mod routers;
mod routes;
mod served;
mod service;
mod spec;
pub mod status;
#[cfg(test)]
mod tests;
pub mod text;
mod trouble;
mod vale;
pub mod values;
mod visitors;

pub use carry::Undone;
pub use check::{check, Finding, Part};
pub use cores::CoreFabric;
pub use engine::{Engine, Entry, Error};
pub use fabric::{Address, Fabric, Placed, Standing};
pub use plan::{Change, Verb};
pub use routes::{RouteSpec, RouterSpec};
pub use service::ServiceView;
pub use spec::{DaemonSpec, Joint, PortSpec, Spec, SwitchSpec, DEFAULT_SWITCH};
pub use text::BadSpec;
pub use vale::Vale;
