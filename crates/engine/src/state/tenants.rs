//! Tenants: several ports that pay for their work together, such as the network cards and disks of one
//! virtual machine.
//!
//! What a tenant is granted of the I/O cores (`service`) stands at the tenant, not at its ports. A port keeps
//! the tenant with which it was added: its queues are in that tenant's accounts on every core.

use super::engine::Engine;
use super::live::LiveTenant;
use super::service::ServiceView;
use super::status::VERSION;
use crate::port::OverrunCount;

crate::util::form::view! {
    /// All tenants of the configuration. Ports that pay for themselves are none of them.
    TenantList {
        /// Version of the JSON.
        version: u32,
        /// All tenants.
        tenants: Vec<TenantView>,
    }

    /// One tenant.
    TenantView {
        /// Its name.
        name: String,
        /// Its ports.
        ports: Vec<String>,
        /// What it is granted of the I/O cores, and had.
        service: ServiceView,
        /// Nanoseconds within which 99 of 100 visits at its slowest queue came after there was work.
        wait_p99_ns: u64,
        /// I/O cores that serve its queues.
        cores: Vec<usize>,
        /// What its ports took of I/O cores beyond what is usual.
        overrun: OverrunCount,
    }
}

impl Engine {
    /// The tenants of the configuration.
    pub fn tenants(&self) -> TenantList {
        let tasks = self.means.graph.cores.tasks();
        let state = crate::lock(&self.state);
        let view = |(name, live): (&String, &LiveTenant)| {
            let ports = state.spec.paid_by(name);
            let numbers = ports.iter().filter_map(|port| Some(state.ports.get(port)?.port.id.0));
            let numbers: Vec<u16> = numbers.collect();
            let its = || tasks.iter().filter(|task| numbers.contains(&task.owner));
            let mut cores: Vec<usize> = its().map(|task| task.core).collect();
            cores.sort_unstable();
            cores.dedup();
            TenantView {
                name: name.clone(),
                ports,
                service: ServiceView::of(&live.tenant, live.flow.parts),
                wait_p99_ns: its().map(|task| task.wait_p99_ns).max().unwrap_or(0),
                cores,
                overrun: live.tenant.overrun.count(),
            }
        };
        TenantList { version: VERSION, tenants: state.tenants.0.iter().map(view).collect() }
    }
}
