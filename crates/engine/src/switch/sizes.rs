//! Sizes of the MAC table. A model of it has smaller ones.

use sidecore_abi::counters::MAX_PORTS;

/// Entries of a bucket: one cache line.
pub(super) const WAYS: usize = 8;
/// Ports that are counted.
pub(super) const PORTS: usize = MAX_PORTS;
/// Bits of what is looked up: an address and its VLAN.
pub(super) const KEY_BITS: u32 = 48 + 12;
