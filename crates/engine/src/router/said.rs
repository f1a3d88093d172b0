//! What a control plane says: changes of routes, and of the objects that routes lead to.

use std::net::IpAddr;

use super::net::Net;

/// Most routes of a control plane: two tables of the whole Internet.
pub const MAX_ROUTES: usize = 3_000_000;
/// Most objects.
pub const MAX_OBJECTS: usize = 262_144;
/// Most next hops of a way, or members of an object.
pub const MAX_HOPS: usize = 256;

/// Most next hops of all its ways together.
pub const MAX_ALL_HOPS: usize = 131_072;
/// Most members of all its groups together.
pub const MAX_MEMBERS: usize = 1_048_576;

/// A next hop as the control plane names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FedHop {
    /// The control plane's number of an interface.
    pub link: u32,
    /// The gateway; none: the destination is a neighbour.
    pub gateway: Option<IpAddr>,
}

/// Where a route of the control plane leads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// Where the object of this number does.
    Object(u32),
    /// To one of these, by weights, as [`super::merged`] has them.
    Hops(Vec<(FedHop, u16)>),
    /// Nowhere, silently.
    Blackhole,
    /// Nowhere: the destination is unreachable.
    Unreachable,
    /// Nowhere: it is prohibited.
    Prohibit,
}

impl Way {
    /// Next hops that it names by itself.
    pub(super) fn hops(&self) -> usize {
        match self {
            Way::Hops(hops) => hops.len(),
            _ => 0,
        }
    }
}

/// What a number of the control plane stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// A next hop.
    Hop(FedHop),
    /// Several objects, with weights, as [`super::merged`] has them.
    Group(Vec<(u32, u16)>),
    /// Nothing: packets are dropped.
    Blackhole,
    /// A next hop that this router cannot use, such as one with labels.
    Elsewhere,
}

impl Object {
    /// Objects that it names.
    pub(super) fn members(&self) -> usize {
        match self {
            Object::Group(members) => members.len(),
            _ => 0,
        }
    }
}

/// One thing that the control plane says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The prefix leads there.
    Route(Net, Way),
    /// It leads nowhere any more.
    Gone(Net),
    /// The number stands for this.
    Object(u32, Object),
    /// It stands for nothing any more.
    ObjectGone(u32),
}

/// What there is of a control plane's routes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FedCounts {
    /// Routes.
    pub routes: usize,
    /// Routes among these of an earlier generation.
    pub stale: usize,
    /// Objects.
    pub objects: usize,
    /// Next hops of all its ways.
    pub hops: usize,
    /// Ways that have none, because there was no room for them.
    pub short: usize,
    /// A digest of all routes, in any order: tables that mean the same have equal ones ([`super::digest()`]).
    pub digest: u64,
    /// What was beyond a bound, or had no room in a table.
    pub refused: u64,
}
