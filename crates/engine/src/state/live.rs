//! What runs: the ports with what stands behind them, and what they are made with.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use sidecore_abi::counters::MAX_PORTS;

use super::cores::{CoreGraph, Placed};
use super::diagnosis::MemoryWatch;
use super::flow::{CoreFlow, Flow};
use super::grants::TenantSpec;
use super::kinds::{find, Kind};
use super::on_demand::OnDemand;
use super::retire::{self, Ending, Leaver, Leaving};
use super::spec::{PortSpec, Spec};
use crate::core::Tenant;
use crate::observe::{CounterFile, Totals};
use crate::port::{Attachment, LinkEvents, Port, PortId};

/// A port that runs, or that could not be started again after a failed change.
pub(super) struct Live {
    pub spec: PortSpec,
    pub port: Arc<Port>,
    pub attachment: Option<Box<dyn Attachment>>,
    /// The network namespace in which what stands behind it was started.
    pub space: Option<(u64, u64)>,
    pub stopped: Option<String>,
    /// Its link, as it was told last.
    pub link: bool,
    pub flow: Flow,
    pub memory: MemoryWatch,
}

/// A tenant of the configuration, and what it had of late.
pub(super) struct LiveTenant {
    pub tenant: Arc<Tenant>,
    pub flow: Flow,
}

/// Those of the configuration, by name.
#[derive(Default)]
pub(super) struct Tenants(pub BTreeMap<String, LiveTenant>);

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
        for (name, live) in &mut self.0 {
            if let Some(how) = live.flow.note(now, &Totals::default(), live.tenant.usage()) {
                tracing::debug!(event = "throttle", tenant = name, "{how}");
            }
        }
    }
}

/// What is configured and what runs.
#[derive(Default)]
pub(super) struct EngineState {
    pub spec: Spec,
    pub ports: BTreeMap<String, Live>,
    pub tenants: Tenants,
    pub ids: Ids,
    /// The sums of ports that are gone: with them, the law of conservation holds over the daemon's life.
    pub retired: Totals,
    /// Ports that are deleted, while what stood behind them is still ending.
    pub leaving: Leaving,
    /// Which of all this was made on demand.
    pub on_demand: OnDemand,
    /// What the I/O cores did in the last second.
    pub cores: CoreFlow,
}

impl EngineState {
    /// The default switch, and no ports.
    pub fn new() -> EngineState {
        EngineState { spec: Spec::default().settled(), ..EngineState::default() }
    }

    /// The configured ports that are live.
    pub fn placed(&self) -> Vec<Placed<'_>> {
        let of = |spec: &PortSpec| self.ports.get(&spec.name).map(|live| &live.port);
        self.spec.ports.iter().filter_map(|spec| Some((spec, of(spec)?))).collect()
    }
}

/// Port numbers. A number rests for a while before it is used again, so that a reader that looks at the
/// counters file twice does not take one port for another.
#[derive(Default)]
pub(super) struct Ids {
    used: u16,
    free: VecDeque<u16>,
}

/// How many freed numbers rest.
const RESTING: usize = 16;

impl Ids {
    pub fn take(&mut self) -> Option<PortId> {
        let fresh = usize::from(self.used) < MAX_PORTS;
        if self.free.len() > RESTING || !fresh {
            return self.free.pop_front().map(PortId);
        }
        self.used += 1;
        Some(PortId(self.used - 1))
    }

    pub fn give_back(&mut self, id: PortId) {
        self.free.push_back(id.0);
    }
}

/// What ports are made with.
pub(super) struct Means {
    pub kinds: &'static [Kind],
    pub graph: Arc<CoreGraph>,
    pub counters: CounterFile,
    /// Where ports tell of their links.
    pub links: Arc<LinkEvents>,
}

impl Means {
    /// Makes the cores use what runs.
    pub fn publish(&self, state: &EngineState) {
        self.graph.publish(&state.spec, &state.placed());
    }

    /// Stops a port that is out of the graph. `deleted`: for good; else it never came to be.
    pub fn retire(&self, state: &mut EngineState, name: &str, deleted: bool) -> Option<Ending> {
        let Live { port, attachment, spec, .. } = state.ports.remove(name)?;
        port.capture.close();
        let ending = retire::end(name, attachment);
        state.leaving.enter(port, spec, deleted, &ending);
        Some(ending)
    }

    /// Keeps the sums of ports that have ended, and frees their numbers.
    pub fn reap(&self, state: &mut EngineState) {
        for leaver in state.leaving.ended() {
            let sums = leaver.sums();
            let Leaver { port, spec, deleted, .. } = leaver;
            if let (true, Ok(kind)) = (deleted, find(self.kinds, &spec.kind)) {
                (kind.forget)(&spec);
            }
            state.retired.add(&sums);
            self.counters.close_slot(&port.counters);
            state.ids.give_back(port.id);
        }
    }
}
