//! What the MAC table is told of a frame's sender, and what it answers to cores and to people.

use super::super::claim::Contest;
use crate::port::PortId;

/// The port that says that an address is here, and what the switch thinks of that port.
#[derive(Clone, Copy, Debug)]
pub struct Teller {
    /// The port.
    pub port: PortId,
    /// Addresses that it may have; 0: any number.
    pub limit: u32,
    /// Whether the address is the port's own, to be pinned.
    pub owns: bool,
    /// Whether an address that lives at another port moves here at once.
    pub moves: bool,
    /// The time in seconds.
    pub now: u32,
    /// Seconds after which an entry that was not seen counts for nothing.
    pub ageing: u32,
}

/// What learning did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// The address was known at this port, or its claim is.
    Known,
    /// The address is new.
    New,
    /// The address has moved here from this port, which is down or has not been heard for long, or because it
    /// may.
    Moved(PortId),
    /// The address lives at this port and is claimed here: both get its frames now.
    Claimed(PortId),
    /// The address is pinned to this port.
    Pinned(PortId),
    /// The address went to and fro too often and stays where it is for a while.
    Held(PortId),
    /// The port has as many addresses as it may have.
    Limit,
    /// There is no room for it: its bucket is full of pinned entries, or of those of ports that have fewer.
    Full,
}

/// Where an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its home.
    pub port: PortId,
    /// What holds it there.
    pub kind: Kind,
    /// The port that claims it, too.
    pub claimant: Option<PortId>,
    /// Ports that use it while it is held.
    pub rivals: Rivals,
}

/// A set of ports: exact while their numbers are below 64, and one that has a few others, too, beyond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rivals(pub(super) u64);

impl Rivals {
    /// None.
    pub const NONE: Rivals = Rivals(0);

    pub(super) fn of(port: PortId) -> Rivals {
        Rivals(1 << (port.0 % 64))
    }

    /// How many they are, at least.
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether `port` is one.
    pub fn has(self, port: PortId) -> bool {
        self.0 & Rivals::of(port).0 != 0
    }
}

/// What holds an entry in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It was learned.
    Learned,
    /// It is the own address of its port.
    Pinned,
    /// The operator put it there.
    Static,
}

/// One line of the table, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The address, first byte lowest.
    pub mac: u64,
    /// Its VLAN; 0: none.
    pub vlan: u16,
    /// Where it lives.
    pub port: PortId,
    /// When it was last seen, in the clock that `learn` was given.
    pub seen: u32,
    /// What holds it.
    pub kind: Kind,
    /// Another port that claims it.
    pub claimant: Option<PortId>,
    /// Another port that it went to and from too often, until when it stays where it is.
    pub held: Option<(PortId, u32)>,
}

/// An address that two ports have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispute {
    /// In which way.
    pub contest: Contest,
    /// The address.
    pub mac: u64,
    /// Where it lives.
    pub home: PortId,
    /// Where it came in, too.
    pub other: PortId,
    /// A third port at which it came in.
    pub third: Option<PortId>,
}
