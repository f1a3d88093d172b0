//! Addresses and prefixes, as routes and ports have them, and those which no router passes on.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::observe::account::DropReason;

/// An address with the length of its network: a prefix, or a port's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Net {
    /// The address; of a prefix, the bits behind `len` are zero.
    pub address: IpAddr,
    /// How many of its bits name the network.
    pub len: u8,
}

impl Net {
    /// The network that the address is in.
    #[must_use]
    pub fn network(self) -> Net {
        let address = match self.address {
            IpAddr::V4(it) => IpAddr::V4(Ipv4Addr::from_bits(it.to_bits() & mask4(self.len))),
            IpAddr::V6(it) => IpAddr::V6(Ipv6Addr::from_bits(it.to_bits() & mask6(self.len))),
        };
        Net { address, len: self.len }
    }

    /// This address alone.
    #[must_use]
    pub fn host(address: IpAddr) -> Net {
        Net { address, len: bits(address) }
    }

    /// All networks that `address` is in, from the greatest on.
    pub fn around(address: IpAddr) -> impl Iterator<Item = Net> {
        (0..=bits(address)).map(move |len| Net { address, len }.network())
    }

    /// Whether `address` is in this network.
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        bits(address) == bits(self.address) && Net { address, len: self.len }.network() == self.network()
    }

    /// The broadcast address of an IPv4 network that has one: RFC 3021 leaves networks of one or two
    /// addresses without.
    #[must_use]
    pub fn broadcast(self) -> Option<Ipv4Addr> {
        match self.address {
            IpAddr::V4(it) if self.len <= 30 => Some(Ipv4Addr::from_bits(it.to_bits() | !mask4(self.len))),
            _ => None,
        }
    }
}

/// Bits of an address of this family.
pub(super) fn bits(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

fn mask4(len: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(len.min(32))).unwrap_or(0)
}

fn mask6(len: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(len.min(128))).unwrap_or(0)
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

impl FromStr for Net {
    type Err = String;

    /// Reads `ADDRESS/LENGTH`; an address alone is a network of its own.
    fn from_str(text: &str) -> Result<Net, String> {
        let bad = || format!("{text:?} is no prefix; allowed: such as 10.0.0.0/24 or 2001:db8::/64");
        let (address, len) = match text.split_once('/') {
            Some((address, len)) => (address, Some(len)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let most = bits(address);
        let len = match len {
            // `parse` takes a sign, too.
            Some(len) if len.bytes().all(|digit| digit.is_ascii_digit()) => len.parse().map_err(|_| bad())?,
            Some(_) => return Err(bad()),
            None => most,
        };
        match len {
            len if len <= most => Ok(Net { address, len }),
            _ => Err(bad()),
        }
    }
}

crate::util::form::worded! {
    Net = crate::util::form::Form::Text("ADDRESS/LENGTH", "10.0.0.1/24");
}

/// An address of either family as one number; IPv4 addresses are mapped (RFC 4291 §2.5.5.2), so that no two
/// have one number.
#[inline]
pub(super) fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(it) => mapped(it.to_bits()),
        IpAddr::V6(it) => it.to_bits(),
    }
}

/// The number of an IPv4 address.
pub(super) fn mapped(address: u32) -> u128 {
    0xffff_0000_0000 | u128::from(address)
}

/// The address of a number.
pub(super) fn address(number: u128) -> IpAddr {
    match Ipv6Addr::from_bits(number).to_ipv4_mapped() {
        Some(it) => IpAddr::V4(it),
        None => IpAddr::V6(Ipv6Addr::from_bits(number)),
    }
}

/// Whether an IPv4 address that begins with this byte may be one of those that the functions below tell of.
pub(super) fn is_special4(first: u8) -> bool {
    matches!(first, 0 | 127 | 169 | 224..)
}

/// Whether nothing may come from this IPv4 address: RFC 1812 §5.3.7, and RFC 3927 §2.7 for link-local ones.
pub(super) fn is_martian_source4(address: u32) -> bool {
    matches!(address >> 24, 0 | 127 | 224..=239) || address == u32::MAX || address >> 16 == 0xa9fe
}

/// Whether nothing may go to it; groups are not meant.
pub(super) fn is_martian4(address: u32) -> bool {
    matches!(address >> 24, 0 | 127) || address >> 16 == 0xa9fe
}

/// Whether it names several stations.
pub(super) fn is_group4(address: u32) -> bool {
    address >> 28 == 0xe || address == u32::MAX
}

/// Whether nothing may come from or go to this IPv6 address: RFC 4291 §2.5.2, §2.5.3, and RFC 4038 §4.2 for
/// mapped ones.
pub(super) fn is_martian6(address: u128) -> bool {
    address <= 1 || address >> 32 == 0xffff
}

/// Whether it is link-local: RFC 4291 §2.5.6.
pub(super) fn is_link_local6(address: u128) -> bool {
    address >> 118 == 0x3fa
}

/// Whether it names several stations: RFC 4291 §2.7.
pub(super) fn is_group6(address: u128) -> bool {
    address >> 120 == 0xff
}

/// Why no router passes a packet to `to` on, whatever its routes are.
pub fn never(to: IpAddr) -> Option<DropReason> {
    let (group, martian) = match to {
        IpAddr::V4(it) => (is_group4(it.to_bits()), is_martian4(it.to_bits())),
        IpAddr::V6(it) => {
            let it = it.to_bits();
            (is_group6(it), is_martian6(it) || is_link_local6(it))
        }
    };
    match (group, martian) {
        (true, _) => Some(DropReason::GroupAddress),
        (_, true) => Some(DropReason::Martian),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_read_and_written() {
        for text in ["10.0.0.1/24", "0.0.0.0/0", "2001:db8::1/64", "::/0"] {
            assert_eq!(text.parse::<Net>().unwrap().to_string(), text);
        }
        assert_eq!("10.0.0.1".parse::<Net>().unwrap().len, 32);
        for text in ["", "10.0.0/8", "10.0.0.0/33", "::/129", "10.0.0.0/+8", "10.0.0.0/", "x/8"] {
            assert!(text.parse::<Net>().is_err(), "{text}");
        }
        let net: Net = "10.1.2.3/20".parse().unwrap();
        assert_eq!(net.network().to_string(), "10.1.0.0/20");
        assert_eq!(net.broadcast(), Some(Ipv4Addr::new(10, 1, 15, 255)));
        assert_eq!("10.0.0.0/31".parse::<Net>().unwrap().broadcast(), None);
        assert!(net.contains("10.1.15.9".parse().unwrap()) && !net.contains("10.1.16.0".parse().unwrap()));
        assert!(!"::/0".parse::<Net>().unwrap().contains("10.0.0.1".parse().unwrap()));
        assert!("0.0.0.0/0".parse::<Net>().unwrap().contains("10.0.0.1".parse().unwrap()));
    }

    #[test]
    fn addresses_and_numbers_are_one_to_one() {
        for text in ["10.0.0.1", "2001:db8::1", "fe80::1"] {
            let it: IpAddr = text.parse().unwrap();
            assert_eq!(address(number(it)), it);
        }
        let six = |text: &str| number(text.parse().unwrap());
        assert!(
            is_link_local6(six("fe80::1"))
                && is_link_local6(six("febf::1"))
                && !is_link_local6(six("fec0::1"))
        );
        assert!(is_martian6(0) && is_martian6(1) && is_martian6(mapped(7)) && !is_martian6(six("2001::1")));
        assert!(is_group6(six("ff02::1")) && !is_group6(six("fe80::1")));
        let four = |a, b| Ipv4Addr::new(a, b, 0, 1).to_bits();
        assert!(
            is_martian_source4(four(224, 0))
                && is_martian_source4(four(0, 1))
                && !is_martian_source4(four(240, 0))
        );
        assert!(is_martian4(four(169, 254)) && !is_martian4(four(169, 253)) && !is_martian4(four(224, 0)));
    }
}
