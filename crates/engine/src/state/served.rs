//! Queues and cores moved by hand, and what is to be done each second.

use std::sync::Arc;
use std::time::Instant;

use super::diagnosis;
use super::engine::{Engine, Error};
use super::live::Live;
use super::text::BadSpec;
use crate::core::{CoreStatus, TaskStatus, Tenant, MOST_RESERVED};
use crate::port::{Lack, Port};

impl Engine {
    /// What is to be done each second: addresses age, ports that could not be started are tried again, and
    /// what ports and cores did is noted.
    pub fn tick(&self) {
        self.graph().tick();
        self.try_again();
        let now = Instant::now();
        let cores = self.means.graph.cores.status();
        let mut state = crate::lock(&self.state);
        state.cores.note(now, cores);
        state.tenants.note(now);
        for live in state.ports.values_mut() {
            let how = live.flow.note(now, &live.port.counters.totals(), live.port.tenant.usage());
            if let Some(how) = how.filter(|_| live.spec.tenant.is_none()) {
                tracing::debug!(event = "throttle", port = live.spec.name, "{how}");
            }
            live.attachment.iter().for_each(|attachment| attachment.look());
            let private = live.port.memory_seems_private();
            let lack = || live.attachment.as_ref().and_then(|attachment| attachment.lack());
            if live.memory.look(private || lack() == Some(Lack::Memory)) {
                diagnosis::log_memory(&live.spec.name, private);
            }
        }
    }

    /// Has I/O core `to` serve ingress queue `queue` of port `name`, or all that it has; how many moved.
    ///
    /// # Errors
    /// There is no such port, queue or core; or a budget is in the way.
    pub fn move_queues(&self, name: &str, queue: Option<usize>, to: usize) -> Result<usize, Error> {
        let port = self.port(name)?;
        let cores = self.means.graph.cores.status();
        check_core(&cores, to)?;
        let tasks = self.means.graph.cores.tasks();
        let its = self.moves_with(&port);
        let own = || tasks.iter().filter(|task| its.contains(&task.owner));
        let chosen: Vec<_> = own().filter(|task| queue.is_none_or(|queue| task.index == queue)).collect();
        if chosen.is_empty() {
            let there: Vec<_> = own().map(|task| task.index.to_string()).collect();
            return Err(Error::Cannot(match (queue, there.as_slice()) {
                (Some(queue), [_, ..]) => {
                    format!(
                        "no I/O core serves queue {queue} of port {name}; there are: {}",
                        there.join(", ")
                    )
                }
                _ => format!("no I/O core serves a queue of port {name}: its peer is not there"),
            }));
        }
        self.check_budget(&port, chosen.len() < own().count(), &tasks, to)?;
        Ok(chosen.iter().filter(|task| self.means.graph.cores.move_task(task.id, to)).count())
    }

    /// The numbers of the ports whose queues move with those of `port`: all that its tenant pays for, if that
    /// has a budget.
    fn moves_with(&self, port: &Arc<Port>) -> Vec<u16> {
        let bound = port.tenant.service().budget.is_some();
        let state = crate::lock(&self.state);
        let ports = state.ports.values().map(|live| &live.port);
        let together = |it: &&Arc<Port>| it.id == port.id || bound && Arc::ptr_eq(&it.tenant, &port.tenant);
        ports.filter(together).map(|it| it.id.0).collect()
    }

    /// Whether core `to` can keep the budget of `port`, of whose tasks only some are to move there, beside
    /// those that it has.
    fn check_budget(&self, port: &Port, some: bool, tasks: &[TaskStatus], to: usize) -> Result<(), Error> {
        let Some(budget) = port.tenant.service().budget else { return Ok(()) };
        let name = &port.name;
        if some {
            return Err(Error::Cannot(format!(
                "port {name} or its tenant has a budget, which is a part of one core: all queues move, or none"
            )));
        }
        let state = crate::lock(&self.state);
        let there = |live: &&Live| tasks.iter().any(|task| (task.owner, task.core) == (live.port.id.0, to));
        let mut others: Vec<&Arc<Tenant>> =
            state.ports.values().filter(there).map(|live| &live.port.tenant).collect();
        others.sort_by_key(|tenant| Arc::as_ptr(tenant));
        others.dedup_by_key(|tenant| Arc::as_ptr(tenant));
        others.retain(|tenant| !Arc::ptr_eq(tenant, &port.tenant));
        let reserved: u64 = others.iter().filter_map(|it| it.service().budget).map(|b| b.share()).sum();
        let left = MOST_RESERVED.saturating_sub(reserved);
        if budget.share() > left {
            return Err(Error::Cannot(format!(
                "the budget of port {name} or its tenant does not fit on I/O core {to}: {}% are left there",
                left / 10_000
            )));
        }
        Ok(())
    }

    /// Has `count` I/O cores be active, from number 0 on.
    ///
    /// # Errors
    /// There are fewer, or budgets need more.
    pub fn set_active(&self, count: usize) -> Result<(), Error> {
        let all = self.means.graph.cores.status().len();
        if !(1..=all).contains(&count) {
            let why = format!("{count} active I/O cores are not allowed; allowed: 1 to {all}");
            return Err(BadSpec(vec![why]).into());
        }
        match self.everything().cores_for_budgets(all) {
            Some(least) if least > count => {
                Err(Error::Cannot(format!("budgets need {least} active I/O cores")))
            }
            _ => {
                self.means.graph.cores.set_active(count);
                Ok(())
            }
        }
    }
}

/// Whether there is a core `to`, and it serves queues.
fn check_core(cores: &[CoreStatus], to: usize) -> Result<(), Error> {
    match cores.get(to) {
        Some(core) if core.active => Ok(()),
        Some(_) => Err(Error::Cannot(format!(
            "I/O core {to} is not active; `sidecore cores {}` makes it so",
            to + 1
        ))),
        None => {
            let there: Vec<_> = cores.iter().map(|core| core.number.to_string()).collect();
            Err(BadSpec(vec![format!("there is no I/O core {to}; there are: {}", there.join(", "))]).into())
        }
    }
}
