//! Tenants: several ports that pay for their work together, such as the network cards and disks of one virtual machine.
//!
//! What a tenant is granted of the I/O cores (`service`) stands at the tenant, not at its ports. A port keeps the tenant
//! with which it was added: its queues are in that tenant's accounts on every core.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::engine::Engine;
use super::flow::Flow;
use super::grants::{Bits, Budget, Frames};
use super::options::{options, Key, Scope, Value};
use super::service::{granted, ServiceView};
use super::spec::{Entry, PortSpec, Spec};
use super::status::VERSION;
use super::values::{Number, Toggle};
use super::view::view;
use crate::core::{Class, Service, Tenant};
use crate::observe::Totals;
use crate::port::OverrunCount;

options! {
    /// One tenant.
    TenantSpec {
        must {
            /// Its name: 1 to 63 letters, digits, `.`, `_` and `-`.
            name: String = "name";
        }
        may {
            /// How urgent the work of its ports is.
            class: Class = "class", Any, "`throughput`";
            /// Its share of an I/O core beside other tenants, and ports without one, that have work.
            weight: Number<1, 1000> = "weight", Any, "100";
            /// The share of one I/O core that its ports together are guaranteed and limited to. All their queues are on that
            /// core then.
            budget: Budget = "budget", Any, "none: its share by weight";
            /// Whether it may use, beyond its budget, time that others leave.
            reclaim: Toggle = "reclaim", Any, "`off`";
            /// Most frames and requests a second that are taken from its ports together.
            rate: Frames = "rate", Any, "no limit";
            /// Most bits a second of the frames and requests that are taken from its ports together.
            bit_rate: Bits = "bit-rate", Any, "no limit";
        }
    }
}

impl TenantSpec {
    /// What it is granted of the I/O cores.
    pub(super) fn service(&self) -> Service {
        granted(self.class, self.weight, (self.budget, self.reclaim), (self.rate, self.bit_rate))
    }
}

impl Entry for TenantSpec {
    const WHAT: &'static str = "tenant";

    fn name(&self) -> &str {
        &self.name
    }

    fn list(spec: &mut Spec) -> &mut Vec<TenantSpec> {
        &mut spec.tenants
    }

    fn held(spec: &Spec, name: &str) -> Option<String> {
        let ports = ports_of(spec, name);
        (!ports.is_empty()).then(|| format!("it pays for {}", ports.join(", ")))
    }
}

/// The names of the ports that tenant `name` pays for.
fn ports_of(spec: &Spec, name: &str) -> Vec<String> {
    let its = spec.ports.iter().filter(|port| port.tenant.as_deref() == Some(name));
    its.map(|port| port.name.clone()).collect()
}

/// A tenant of the configuration, and what it had of late.
pub(super) struct LiveTenant {
    pub tenant: Arc<Tenant>,
    pub flow: Flow,
}

/// Those of the configuration, by name.
#[derive(Default)]
pub(super) struct Tenants(BTreeMap<String, LiveTenant>);

impl Tenants {
    /// The tenant that pays for `port`, if it does not do so itself.
    pub fn of(&self, port: &PortSpec) -> Option<&Arc<Tenant>> {
        self.0.get(port.tenant.as_deref()?).map(|live| &live.tenant)
    }

    /// Has all of `specs` be there, as they are specified, and those of no other name unless they `stay`.
    pub fn follow(&mut self, specs: &[TenantSpec], stay: bool) {
        self.0.retain(|name, _| stay || specs.iter().any(|spec| spec.name == *name));
        for spec in specs {
            let live = self.0.entry(spec.name.clone()).or_insert_with(|| LiveTenant {
                tenant: Arc::new(Tenant::new(&spec.name)),
                flow: Flow::default(),
            });
            live.tenant.set(spec.service());
        }
    }

    /// What they had so far is looked at, each second.
    pub fn note(&mut self, now: Instant) {
        for live in self.0.values_mut() {
            live.flow.note(now, &Totals::default(), live.tenant.usage());
        }
    }
}

view! {
    /// Answer to `show tenants`.
    TenantList {
        /// [`VERSION`].
        version: u32,
        /// Those of the configuration, by name. Ports that pay for themselves are none of them.
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
            let ports = ports_of(&state.spec, name);
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
