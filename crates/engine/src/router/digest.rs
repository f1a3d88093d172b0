//! A number for a table of routes: equal tables have equal numbers.
//!
//! Theory of operation. The number of a table is a sum over its routes, modulo 2⁶⁴: of each the number of its
//! prefix, times a factor that is made of where it leads. So the order of routes counts for nothing, and a
//! change of one is an addition. Many routes lead one way: what their prefixes sum up to is kept for each
//! way, so a next hop that changes under all of them costs a product. Factors are odd: no route vanishes.
//! Where a route leads is told by names of interfaces and by addresses, not by the control plane's numbers:
//! two tables that mean the same have the same number.
//!
//! The number of a prefix or a way is FNV-1a (64 bits) of its bytes, the same in all versions and on all
//! machines:
//!
//! * a prefix: its family (4 or 6), its length, its address (4 or 16 bytes);
//! * a way: 0 for a blackhole, 1 for unreachable, 2 for prohibited, 3 for hops; each of these, in the order
//!   of names and gateways: the interface's name, a zero, the gateway's family (0 for none, 4, 6), the
//!   gateway, and if its weight is not 1 a 255, which no name begins with, and the weight (2 bytes, the lower
//!   first). The lowest bit of the number is set.
//!
//! It tells what was lost on the way. It is no proof against an attacker who chooses prefixes in order to
//! deceive.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::net::Net;
use super::route::Key;

/// Where a route leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Led {
    /// Nowhere, silently.
    Blackhole,
    /// Nowhere: the destination is unreachable.
    Unreachable,
    /// Nowhere: it is prohibited.
    Prohibit,
    /// To one of these: by which interface, and to which gateway; none: destinations are neighbours. With
    /// weights, as [`super::merged`] has them.
    Hops(Vec<((String, Option<IpAddr>), u16)>),
}

impl Led {
    fn factor(&self) -> u64 {
        let hops = match self {
            Led::Blackhole => return Fnv::new().with(&[0]).0 | 1,
            Led::Unreachable => return Fnv::new().with(&[1]).0 | 1,
            Led::Prohibit => return Fnv::new().with(&[2]).0 | 1,
            Led::Hops(hops) => hops,
        };
        let hop = |all: Fnv, ((name, gateway), weight): &((String, Option<IpAddr>), u16)| {
            let all = all.with(name.as_bytes()).with(&[0]);
            let all = gateway.map_or(all.with(&[0]), |gateway| all.address(gateway, &[]));
            if *weight == 1 {
                all
            } else {
                all.with(&[255]).with(&weight.to_le_bytes())
            }
        };
        hops.iter().fold(Fnv::new().with(&[3]), hop).0 | 1
    }
}

/// FNV-1a of 64 bits (draft-eastlake-fnv).
#[derive(Clone, Copy)]
struct Fnv(u64);

impl Fnv {
    fn new() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }

    fn with(self, bytes: &[u8]) -> Fnv {
        Fnv(bytes.iter().fold(self.0, |all, byte| (all ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)))
    }

    /// An address behind its family, with something between them.
    fn address(self, address: IpAddr, between: &[u8]) -> Fnv {
        match address {
            IpAddr::V4(it) => self.with(&[4]).with(between).with(&it.octets()),
            IpAddr::V6(it) => self.with(&[6]).with(between).with(&it.octets()),
        }
    }
}

fn number(net: &Net) -> u64 {
    Fnv::new().address(net.address, &[net.len]).0
}

/// What a route adds to the number of its table.
#[must_use]
pub fn part(net: Net, led: &Led) -> u64 {
    number(&net).wrapping_mul(led.factor())
}

/// The number of a table with these routes, each prefix once.
pub fn digest<'r>(routes: impl IntoIterator<Item = (Net, &'r Led)>) -> u64 {
    routes.into_iter().fold(0, |sum, (net, led)| sum.wrapping_add(part(net, led)))
}

/// The number of a table that changes.
#[derive(Default)]
pub(super) struct Digest {
    pub total: u64,
    ways: BTreeMap<Arc<Key>, Part>,
}

/// What all routes of one way add to it.
struct Part {
    prefixes: u64,
    routes: usize,
    factor: u64,
}

impl Digest {
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

    /// Those keys of which `which` is true lead where `led` says now. Whether that is another place for any
    /// route.
    pub fn again(&mut self, which: impl Fn(&Key) -> bool, led: impl Fn(&Key) -> Led) -> bool {
        let mut changed = false;
        for (key, part) in self.ways.iter_mut().filter(|(key, _)| which(key)) {
            let factor = led(key).factor();
            changed |= part.factor != factor;
            let more =
                part.prefixes.wrapping_mul(factor).wrapping_sub(part.prefixes.wrapping_mul(part.factor));
            self.total = self.total.wrapping_add(more);
            part.factor = factor;
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Agents of other versions work it out, too: it stays what it is.
    #[test]
    fn the_number_of_a_table_is_the_same_in_all_versions() {
        let hops = |weight| {
            let all = [("r0".to_owned(), Some([10, 0, 0, 9].into())), ("r1".to_owned(), None)];
            Led::Hops(all.into_iter().zip([weight, 1]).collect())
        };
        let six = "2001:db8::/32".parse().unwrap();
        let number = |hops: &Led| {
            let all = [("10.1.0.0/16".parse().unwrap(), hops), (six, &Led::Blackhole)];
            format!("{:016x}", digest(all))
        };
        assert_eq!([number(&hops(1)), number(&hops(3))], ["7f9009368f4ae30b", "cbfd6fc66189fb0b"]);
    }
}
