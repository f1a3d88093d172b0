//! Who had which port made, and what they may do: the socket at which programs ask may be open to several users.
//!
//! The *operator*, root or the user that the daemon was started by, may do everything. Another user may open ports on switches
//! and make ports, each socket of which is that user's alone; but what a user has not made stays where it is: ports of VMs
//! are not parted from their switch, interfaces of the host are not attached, other users' ports do not go. And the memory of
//! one user's ports has a bound, in which monitors are counted as if all of them were there.

use std::collections::BTreeMap;

use rustix::io::Errno;

use super::{Refusal, Vale};
use crate::state::spec::{PortSpec, Spec};
use crate::transport::ring::{Asker, EXTRA_LIMIT, MONITORS};

/// Bytes that the ports of one user may come to.
const MEMORY: u64 = 2 << 30;

/// The user that had a port made, by the port's name.
#[derive(Debug, Default)]
pub(super) struct Makers(BTreeMap<String, u32>);

impl Makers {
    /// `port` is of `who`.
    pub(super) fn note(&mut self, who: Asker, port: &str) {
        self.0.insert(port.to_owned(), who.ids.0);
    }

    /// `port` is gone: one that bears its name later is somebody else's. Returns whose it was.
    pub(super) fn forget(&mut self, port: &str) -> Option<u32> {
        self.0.remove(port)
    }

    /// Ports that are not in `spec` are nobody's.
    pub(super) fn tidy(&mut self, spec: &Spec) {
        self.0.retain(|name, _| spec.ports.iter().any(|port| port.name == *name));
    }

    fn is_of(&self, user: u32, port: &str) -> bool {
        self.0.get(port) == Some(&user)
    }
}

fn is_operator(who: Asker) -> bool {
    who.ids.0 == 0 || who.ids.0 == crate::open::broker::maker()
}

/// Bytes of a ring port that a program asks for, with all its monitors.
fn bytes(port: &PortSpec) -> u64 {
    let default = crate::ring::Geometry::default();
    let rings = port.queues.map_or(default.rings as u64, |queues| queues.get().into());
    let slots: u64 = port.slots.map_or(default.slots, |slots| slots.get()).into();
    let buffer: u64 = port.buf_size.map_or(default.buf_size, |bytes| bytes.get()).into();
    let extra = u64::from(EXTRA_LIMIT);
    // A monitor has rings in one direction.
    (rings * slots * (2 + MONITORS as u64) + extra) * buffer
}

impl Vale {
    /// Whether `who` may move or remove `port`.
    pub(super) fn may(&self, who: Asker, port: &str) -> Result<(), Refusal> {
        if is_operator(who) || self.makers.is_of(who.ids.0, port) {
            return Ok(());
        }
        let why = format!("port {port} was not made by user {}, who may open it and nothing else", who.ids.0);
        tracing::warn!(port, user = who.ids.0, "refused to a netmap program: the port is another user's");
        Err((Errno::PERM, why))
    }

    /// Whether `who` may attach what belongs to the host.
    pub(super) fn may_host(&self, who: Asker, interface: &str) -> Result<(), Refusal> {
        if is_operator(who) {
            return Ok(());
        }
        let why = format!(
            "interface {interface} is the host's: only root and the daemon's own user may attach it here"
        );
        Err((Errno::PERM, why))
    }

    /// Whether `who` may have the memory of `port`, too.
    pub(super) fn memory_for(&self, who: Asker, port: &PortSpec) -> Result<(), Refusal> {
        if is_operator(who) {
            return Ok(());
        }
        let spec = self.engine.everything();
        let mine = spec.ports.iter().filter(|port| self.makers.is_of(who.ids.0, &port.name));
        let all = mine.map(bytes).sum::<u64>() + bytes(port);
        if all <= MEMORY {
            return Ok(());
        }
        let why = format!(
            "the ports of user {} would come to {} MiB with their monitors, and a user may have {}: fewer rings or slots, or fewer ports",
            who.ids.0,
            all >> 20,
            MEMORY >> 20
        );
        Err((Errno::NOMEM, why))
    }
}
