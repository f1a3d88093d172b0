//! The control plane: the operator's request ([`Spec`]), its checks (`check`), the changes that it takes
//! (`plan`), and their execution, all or nothing (`transaction`).
//!
//! ```text
//! command line, file, JSON → Spec → check → plan::between(what runs, wanted) → transaction → ports that run
//! ```
//!
//! One mutex serialises requests; it is never taken by an I/O core. The cores learn of changes by a new
//! graph, published whole (`CoreGraph::publish`). Port kinds are rows of a table (`kinds`); this module knows
//! none of them by name.

mod acl;
pub mod acls;
mod check;
mod control;
mod cores;
mod diagnosis;
pub mod disks;
mod engine;
pub mod explain;
mod flow;
mod follow;
mod grants;
mod grouping;
pub mod groups;
pub mod kinds;
mod live;
pub mod media;
mod member;
mod members;
mod neighbours;
mod on_demand;
mod overlay;
mod plan;
mod retire;
pub mod routers;
mod routes;
mod served;
mod service;
mod spec;
pub mod status;
pub mod tenants;
#[cfg(test)]
mod tests;
pub mod text;
mod transaction;
pub mod values;

pub use acl::AclSpec;
pub use check::{check, Finding};
pub use cores::{Address, CoreGraph, Standing};
pub use engine::{Engine, Error};
pub use grants::{Cpus, TenantSpec};
pub use grouping::GroupSpec;
pub use overlay::{LocalMac, Overlay};
pub use plan::{Change, Verb};
pub use routes::{AgentAt, RouteSpec, RouterSpec};
pub use service::ServiceView;
pub use spec::{DaemonSpec, Entry, Joint, PortSpec, Spec, SwitchSpec, DEFAULT_SWITCH};
pub use text::BadSpec;
pub use transaction::Undone;
