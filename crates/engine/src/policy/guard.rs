//! The source guard of a port: the source addresses that its frames may have.
//!
//! Three modes. *Off*: any, and the port's own address is nothing special. *Claim*: any, but the port's own
//! address is pinned: while the port has a carrier no other port can have it. *Strict*: pinned, too, and
//! frames from other addresses than its own and those that were allowed are dropped.

/// How a port's source addresses are guarded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MacGuard {
    /// They are not.
    #[default]
    Off,
    /// Its own address is pinned.
    Claim,
    /// Its own address is pinned, and it may use no others but those that are allowed.
    Strict,
}

/// Addresses (first byte lowest, as `Frame::src` gives them) that a port has and may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceGuard {
    /// Its mode.
    pub mode: MacGuard,
    /// 0: not known.
    own: u64,
    /// Entries of the MAC table that stay, sorted.
    pub fixed: Box<[u64]>,
    /// Further addresses that it may use, sorted.
    allowed: Box<[u64]>,
    vrrp: bool,
}

/// The addresses of virtual routers without their last byte, first byte lowest: RFC 9568 §7.3, IPv4 and IPv6.
const VRRP: [u64; 2] = [0x01_00_5e_00_00, 0x02_00_5e_00_00];
const WITHOUT_LAST: u64 = 0xff_ffff_ffff;

fn sorted(addresses: &[u64]) -> Box<[u64]> {
    let mut sorted = addresses.to_vec();
    sorted.sort_unstable();
    sorted.into()
}

impl SourceGuard {
    /// The guard of a port whose own address is `own` (0: not known), behind which `fixed` live, and which
    /// under [`MacGuard::Strict`] may use `allowed`, too, and with `vrrp` the addresses of virtual routers.
    pub fn new(mode: MacGuard, own: u64, fixed: &[u64], allowed: &[u64], vrrp: bool) -> SourceGuard {
        SourceGuard { mode, own, fixed: sorted(fixed), allowed: sorted(allowed), vrrp }
    }

    /// Whether it asks for anything.
    pub(super) fn asks(&self) -> bool {
        self.mode != MacGuard::Off || !self.fixed.is_empty()
    }

    /// The address that is pinned to the port while it has a carrier.
    pub fn pinned(&self) -> Option<u64> {
        (self.mode != MacGuard::Off && self.own != 0).then_some(self.own)
    }

    /// Whether `src` is the port's own address, and pinned.
    pub fn owns(&self, src: u64) -> bool {
        self.mode != MacGuard::Off && src == self.own && src != 0
    }

    /// Whether frames from `src` may come in.
    pub fn admits(&self, src: u64) -> bool {
        self.mode != MacGuard::Strict || self.is_listed(src)
    }

    fn is_listed(&self, src: u64) -> bool {
        src != 0 && src == self.own
            || self.fixed.binary_search(&src).is_ok()
            || self.allowed.binary_search(&src).is_ok()
            || self.is_virtual(src)
    }

    /// Whether `src` is a virtual router's, and those are allowed.
    pub fn is_virtual(&self, src: u64) -> bool {
        self.vrrp && VRRP.contains(&(src & WITHOUT_LAST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mac(bytes: [u8; 6]) -> u64 {
        let [a, b, c, d, e, f] = bytes;
        u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
    }

    #[test]
    fn strict_admits_its_own_the_listed_and_virtual_routers() {
        let (own, fixed, other) = (mac([2, 0, 0, 0, 0, 1]), mac([2, 0, 0, 0, 0, 9]), mac([2, 0, 0, 0, 0, 2]));
        let (ipv4, ipv6) = (mac([0, 0, 0x5e, 0, 1, 77]), mac([0, 0, 0x5e, 0, 2, 255]));
        let near = mac([0, 0, 0x5e, 0, 3, 77]);
        let all = [own, fixed, other, ipv4, ipv6, near, 0];
        let admitted = |guard: &SourceGuard| all.map(|src| guard.admits(src));
        let guard = |mode, allowed: &[u64], vrrp| SourceGuard::new(mode, own, &[fixed], allowed, vrrp);
        assert_eq!(admitted(&guard(MacGuard::Off, &[], false)), [true; 7]);
        assert_eq!(admitted(&guard(MacGuard::Claim, &[], false)), [true; 7]);
        let strict = guard(MacGuard::Strict, &[], false);
        assert_eq!(admitted(&strict), [true, true, false, false, false, false, false]);
        assert_eq!(
            admitted(&guard(MacGuard::Strict, &[other], true)),
            [true, true, true, true, true, false, false]
        );
        assert_eq!((strict.pinned(), strict.owns(own), strict.owns(other)), (Some(own), true, false));
        assert_eq!(guard(MacGuard::Off, &[], false).pinned(), None);
        let of_routers = |guard: &SourceGuard| all.map(|src| guard.is_virtual(src));
        assert_eq!(of_routers(&strict), [false; 7]);
        assert_eq!(
            of_routers(&guard(MacGuard::Strict, &[], true)),
            [false, false, false, true, true, false, false]
        );
        let unknown = SourceGuard::new(MacGuard::Strict, 0, &[], &[other], false);
        assert_eq!((unknown.pinned(), unknown.owns(0), unknown.admits(other)), (None, false, true));
    }
}
