//! What tenants and ports are granted of the I/O cores, for them; whether all can be kept at once; and what
//! one had of late.

use std::time::Duration;

use super::grants::{Bits, Budget, Frames, TenantSpec, Tenths, PERCENT};
use super::spec::{Entry, PortSpec, Spec};
use super::values::{Number, Toggle};
use crate::core::{Class, Rate, Service, Tenant, DEFAULT_WEIGHT, MOST_RESERVED};

impl TenantSpec {
    /// What it is granted of the I/O cores.
    pub(super) fn service(&self) -> Service {
        granted(self.class, self.weight, (self.budget, self.reclaim), (self.rate, self.bit_rate))
    }
}

impl PortSpec {
    /// What it is granted of the I/O cores, if it pays for itself.
    pub fn service(&self) -> Service {
        granted(self.class, self.weight, (self.budget, self.reclaim), (self.rate, self.bit_rate))
    }
}

/// What these options grant.
pub(super) fn granted(
    class: Option<Class>,
    weight: Option<Number<1, 1000>>,
    (budget, reclaim): (Option<Budget>, Option<Toggle>),
    (items, bits): (Option<Frames>, Option<Bits>),
) -> Service {
    Service {
        class: class.unwrap_or_default(),
        weight: weight.map_or(DEFAULT_WEIGHT, |weight| u16::try_from(weight.get()).unwrap_or(DEFAULT_WEIGHT)),
        budget: budget.map(|budget| budget.on_a_core(reclaim == Some(Toggle::On))),
        rate: Rate { items: items.map(Frames::get), bits: bits.map(Bits::get) },
    }
}

/// Those who pay: tenants, and ports, of which those with a tenant have no budget. What each is, its place in
/// its list, its name, its budget, and whether it may reclaim.
fn payers(spec: &Spec) -> impl Iterator<Item = (&'static str, usize, &str, Option<Budget>, Option<Toggle>)> {
    let tenants = spec.tenants.iter().enumerate();
    let tenants = tenants.map(|(i, it)| (TenantSpec::WHAT, i, it.name.as_str(), it.budget, it.reclaim));
    let ports = spec.ports.iter().enumerate();
    tenants.chain(ports.map(|(i, it)| (PortSpec::WHAT, i, it.name.as_str(), it.budget, it.reclaim)))
}

/// Whether all budgets can be kept at once, as far as the number of cores is known: each is one core's. `bad`
/// gets the part that cannot, its place in its list, its name, the key, and why.
pub(super) fn check_budgets(spec: &Spec, bad: &mut impl FnMut(&'static str, usize, &str, &str, &str)) {
    for (what, place, name, budget, reclaim) in payers(spec) {
        if reclaim.is_some() && budget.is_none() {
            let why =
                "does not apply: there is no budget beyond which it could have more; allowed: with budget";
            bad(what, place, name, "reclaim", why);
        }
    }
    let Some(cores) = spec.daemon.cores.as_ref().map(|cores| cores.0.len()).filter(|cores| *cores > 0) else {
        return;
    };
    // More of them may be active at times, and a budget is a promise for all times.
    let cores = spec.daemon.least_cores.map_or(cores, |least| cores.min(least.get() as usize));
    let mut budgets: Vec<(&str, u64)> = Vec::new();
    for (what, place, name, budget, _) in payers(spec) {
        budgets.extend(budget.map(|budget| (name, budget.share())));
        let shares = |budgets: &[(&str, u64)]| budgets.iter().map(|it| it.1).collect::<Vec<_>>();
        if budget.is_none() || left(shares(&budgets), cores).is_some() {
            continue;
        }
        let all = budgets.iter().map(|(name, share)| format!("{name} {}", percent(*share)));
        let all = all.collect::<Vec<_>>().join(", ");
        budgets.pop();
        let most = left(shares(&budgets), cores).unwrap_or(0);
        let allowed =
            if most == 0 { "none, nothing is left".to_owned() } else { format!("up to {}", percent(most)) };
        let why = format!(
            "the budgets ({all}) do not fit on {cores} I/O core{}, each with {}; allowed: {allowed}",
            if cores == 1 { "" } else { "s" },
            percent(MOST_RESERVED),
        );
        return bad(what, place, name, "budget", &why);
    }
}

/// The largest part of one core that is left when these are placed, the largest first, each on the first core
/// that has room for it; `None`: they have no room.
fn left(mut shares: Vec<u64>, cores: usize) -> Option<u64> {
    shares.sort_unstable_by(|a, b| b.cmp(a));
    let mut free = vec![MOST_RESERVED; cores];
    for share in shares {
        *free.iter_mut().find(|free| **free >= share)? -= share;
    }
    free.into_iter().max()
}

impl Spec {
    /// Cores that the budgets of its tenants and ports need, out of `cores`; `None`: more than that.
    pub fn cores_for_budgets(&self, cores: usize) -> Option<usize> {
        let shares: Vec<u64> = payers(self).filter_map(|(.., budget, _)| budget).map(Budget::share).collect();
        (1..=cores).find(|cores| left(shares.clone(), *cores).is_some())
    }
}

/// Millionths as percent.
fn percent(share: u64) -> String {
    format!("{}%", Tenths(share / (PERCENT / 10)))
}

crate::util::form::view! {
    /// A port's share of the I/O cores, granted and used.
    #[derive(Default)]
    ServiceView {
        /// How urgent its frames are.
        class: String = ["latency", "throughput"],
        /// Its share beside others that have work.
        weight: u16,
        /// Millionths of a core that its budget guarantees.
        granted_ppm?: u64,
        /// Period of the budget in nanoseconds.
        period_ns?: u64,
        /// Whether it may use more than its budget, if other ports leave time.
        reclaim: bool,
        /// Most frames that are taken from it a second.
        rate?: u64,
        /// Most bits of those.
        bit_rate?: u64,
        /// Nanoseconds that I/O cores spent on it.
        busy_ns: u64,
        /// Nanoseconds in which it had used up its budget or its rate.
        throttled_ns: u64,
        /// Millionths of a core that it had in the last second; absent in its first one.
        used_ppm?: u64,
        /// Millionths of the last second in which it was throttled.
        throttled_ppm?: u64,
    }
}

impl ServiceView {
    /// What is granted and was had, of late in these parts of the time.
    pub(super) fn of(tenant: &Tenant, recent: Option<(u64, u64)>) -> ServiceView {
        let (service, usage) = (tenant.service(), tenant.usage());
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        ServiceView {
            class: service.class.to_string(),
            weight: service.weight,
            granted_ppm: service.budget.map(|budget| budget.share()),
            period_ns: service.budget.map(|budget| ns(budget.period)),
            reclaim: service.budget.is_some_and(|budget| budget.reclaim),
            rate: service.rate.items,
            bit_rate: service.rate.bits,
            busy_ns: usage.busy_ns,
            throttled_ns: usage.throttled_ns,
            used_ppm: recent.map(|parts| parts.0),
            throttled_ppm: recent.map(|parts| parts.1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_that_fit_are_told_from_those_that_do_not() {
        assert_eq!(left(vec![], 2), Some(950_000));
        assert_eq!(left(vec![600_000, 300_000], 1), Some(50_000));
        assert_eq!(left(vec![600_000; 3], 2), None);
        assert_eq!(left(vec![300_000, 650_000, 600_000, 350_000], 2), Some(0));
    }
}
