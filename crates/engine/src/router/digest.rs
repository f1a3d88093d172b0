//! A number for a table of routes: equal tables have equal numbers.
//!
//! Theory of operation. The number of a table is a sum over its routes, modulo 2⁶⁴: of each the number of its prefix, times a factor
//! that is made of where it leads. So the order of routes counts for nothing, and a change of one is an addition. Many
//! routes lead one way: what their prefixes sum up to is kept for each way, so a next hop that changes under all of them costs a
//! product. Factors are odd: no route vanishes. Where a route leads is told by names of interfaces and by addresses, not by the
//! control plane's numbers: two tables that mean the same have the same number.
//!
//! It tells what was lost on the way. It is no proof against an attacker who chooses prefixes in order to deceive.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use super::net::Net;
use super::route::Key;

/// Where a route leads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Led {
    /// Nowhere, silently.
    Blackhole,
    /// Nowhere: the destination is unreachable.
    Unreachable,
    /// Nowhere: it is prohibited.
    Prohibit,
    /// To one of these: by which interface, and to which gateway; none: destinations are neighbours. In their order, each once.
    Hops(Vec<(String, Option<IpAddr>)>),
}

impl Led {
    fn factor(&self) -> u64 {
        number(self) | 1
    }
}

fn number(it: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    it.hash(&mut hasher);
    hasher.finish()
}

/// The number of a table with these routes, each prefix once.
pub fn digest<'r>(routes: impl IntoIterator<Item = (Net, &'r Led)>) -> u64 {
    routes.into_iter().fold(0, |sum, (net, led)| sum.wrapping_add(number(&net).wrapping_mul(led.factor())))
}

/// The number of a table that changes.
#[derive(Default)]
pub(super) struct Digest {
    total: u64,
    ways: BTreeMap<Arc<Key>, Part>,
}

/// What all routes of one way add to it.
struct Part {
    prefixes: u64,
    routes: usize,
    factor: u64,
}

impl Digest {
    pub fn total(&self) -> u64 {
        self.total
    }

    /// There is one more route, of `net`, by `key`, which leads where `led` says.
    pub fn add(&mut self, net: &Net, key: &Arc<Key>, led: impl FnOnce() -> Led) {
        let number = number(net);
        let part = match self.ways.get_mut(key) {
            Some(part) => part,
            None => self.ways.entry(Arc::clone(key)).or_insert(Part {
                prefixes: 0,
                routes: 0,
                factor: led().factor(),
            }),
        };
        part.routes += 1;
        part.prefixes = part.prefixes.wrapping_add(number);
        self.total = self.total.wrapping_add(number.wrapping_mul(part.factor));
    }

    /// There is one less, which was added.
    pub fn remove(&mut self, net: &Net, key: &Key) {
        let Some(part) = self.ways.get_mut(key) else { return };
        let number = number(net);
        part.routes -= 1;
        part.prefixes = part.prefixes.wrapping_sub(number);
        self.total = self.total.wrapping_sub(number.wrapping_mul(part.factor));
        if part.routes == 0 {
            self.ways.remove(key);
        }
    }

    /// Those keys of which `which` is true lead where `led` says now.
    pub fn again(&mut self, which: impl Fn(&Key) -> bool, led: impl Fn(&Key) -> Led) {
        for (key, part) in self.ways.iter_mut().filter(|(key, _)| which(key)) {
            let factor = led(key).factor();
            let more =
                part.prefixes.wrapping_mul(factor).wrapping_sub(part.prefixes.wrapping_mul(part.factor));
            self.total = self.total.wrapping_add(more);
            part.factor = factor;
        }
    }
}
