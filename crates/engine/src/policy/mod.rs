//! What a port may do to its neighbours on a switch: a verdict with a reason, before the graph.
//!
//! A port's [`Policy`] is part of the topology's snapshot, so the hot path reads it without locks; a change
//! of the configuration makes another. A port for which nothing is configured has none, and pays for none: an
//! honest guest may be a VRRP router, a nested bridge or a load generator.
//!
//! What frames meet is a list of stages for each direction, in one order for all ports (`graph/stages.rs`).
//! What comes in is held to its rate by the scheduler.

pub mod acl;
mod guard;
mod ip_guard;
mod rate;
mod storm;
mod vlan;

use std::sync::Arc;

pub use guard::{MacGuard, SourceGuard};
pub use ip_guard::IpGuard;
pub use rate::EgressRate;
pub use storm::{Storm, StormAllowance, StormLimits};
pub use vlan::{BatchVlans, Form, InVlan, PortVlans, TagProtocol, VlanSet, MAX_VLAN};

use self::acl::Acl;
use crate::port::{DropReason, PortId};

/// Copies of the frames that pass a port.
#[derive(Debug)]
pub struct Mirror {
    /// The port that gets them.
    pub to: PortId,
    /// Whether it gets what comes in, and whether it gets what goes out.
    pub ways: [bool; 2],
    /// Only of frames that this list permits.
    pub acl: Option<Arc<Acl>>,
    /// Bytes of a copy, at most.
    pub snap: Option<u16>,
}

/// What is configured for one port.
#[derive(Debug, Default)]
pub struct Policy {
    /// Addresses that a switch may learn behind it; 0: any number.
    pub mac_limit: u32,
    /// Which source addresses it may use, and which are its own.
    pub guard: SourceGuard,
    /// Whether an address that comes in by it lives there at once; else as at its switch, but for virtual
    /// routers'.
    pub moves: Option<bool>,
    /// How many copies its floods may make, if that is limited.
    pub storm: Option<Storm>,
    /// The VLANs that it carries, if it is in any.
    pub vlans: Option<PortVlans>,
    /// What its frames may claim to be, if that is limited.
    pub ip_guard: Option<IpGuard>,
    /// Access lists for what comes in by it, and for what goes out.
    pub acl: [Option<Arc<Acl>>; 2],
    /// It exchanges no frames with other isolated ports.
    pub isolated: bool,
    /// How much goes out by it, if that is limited.
    pub egress_rate: Option<EgressRate>,
    /// Who gets copies of what passes it.
    pub mirror: Option<Mirror>,
    /// It neither sends nor receives messages of the spanning tree protocols.
    pub no_bpdu: bool,
}

/// The address of the spanning tree protocols (802.1Q table 8-1), and that of PVST, which sends by VLAN.
const BPDU: [u64; 2] = [0x00_00_00_c2_80_01, 0xcd_cc_cc_0c_00_01];

impl Policy {
    /// `None` if it asks for nothing.
    #[must_use]
    pub fn compile(self) -> Option<Arc<Policy>> {
        let asks = self.mac_limit != 0 || self.guard.asks() || self.moves.is_some() || self.storm.is_some();
        let asks = asks || self.ip_guard.is_some() || self.copies(0).is_some();
        let asks = asks || self.acl[0].is_some() || self.is_at_egress();
        asks.then(|| Arc::new(self))
    }

    /// Its mirror, if that gets copies of what comes in (0) or goes out (1).
    pub fn copies(&self, way: usize) -> Option<&Mirror> {
        self.mirror.as_ref().filter(|mirror| mirror.ways[way])
    }

    /// Whether it asks for what may lie behind the first bytes of a frame.
    pub fn looks_inside(&self) -> bool {
        let lists = self.acl.iter().any(Option::is_some);
        lists || self.ip_guard.is_some() || self.mirror.as_ref().is_some_and(|mirror| mirror.acl.is_some())
    }

    /// Whether it says anything of frames that go out by the port.
    pub fn is_at_egress(&self) -> bool {
        self.vlans.is_some()
            || self.isolated
            || self.no_bpdu
            || self.egress_rate.is_some()
            || self.acl[1].is_some()
            || self.copies(1).is_some()
    }

    /// Whether a frame to `dst` in VLAN `of` may go out by a port with `policy`, as far as its list and its
    /// rate let it; and the form that it has to get there, if it has another. It was sent by a port that is
    /// `isolated` or not, and has tags of `protocol`.
    ///
    /// # Errors
    /// Its port is isolated from this one; it is of the spanning tree protocols; or this one does not carry
    /// its VLAN, or would give it away without a tag so that the sender's own next tag names another one.
    #[inline]
    pub fn judge_out(
        policy: Option<&Policy>,
        dst: u64,
        of: InVlan,
        (isolated, protocol): (bool, TagProtocol),
    ) -> Result<Option<Form>, DropReason> {
        let vlans = match policy {
            Some(policy) if isolated && policy.isolated => return Err(DropReason::Isolated),
            Some(policy) => {
                policy.admits_control(dst)?;
                policy.vlans.as_ref()
            }
            None => None,
        };
        match vlans {
            None if of.number() == 0 => Ok(None),
            None => Err(DropReason::Vlan),
            Some(vlans) => {
                let form = vlans.form(of).ok_or(DropReason::Vlan)?;
                Ok((!of.is(protocol, form)).then_some(form))
            }
        }
    }

    /// Whether frames to the group address `dst` may pass the port.
    ///
    /// # Errors
    /// They are of the spanning tree protocols, which end here.
    #[inline]
    pub fn admits_control(&self, dst: u64) -> Result<(), DropReason> {
        match self.no_bpdu && BPDU.contains(&dst) {
            true => Err(DropReason::ControlFrame),
            false => Ok(()),
        }
    }
}
