//! The users that had ports made, and what they may do: the socket at which programs ask may be open to several users.
//!
//! The *operator*, root or the user that the daemon was started by, may do everything. Another user may open ports on switches
//! and make ports, each socket of which is that user's alone; but what a user has not made stays where it is: ports of VMs
//! are not parted from their switch, interfaces of the host are not attached, other users' ports do not go, and are not kept.
//! A user has a share of the places for ports, and of the names for pipes; some are for operators alone. And the memory of one
//! user's ports has a bound, in which monitors are counted as if all of them were there.

use std::collections::BTreeMap;

use rustix::io::Errno;

use super::{Refusal, Vale};
use crate::state::spec::{PortSpec, Spec};
use crate::transport::ring::{Asker, EXTRA_LIMIT, MONITORS};

/// Bytes that the ports of one user may come to.
const MEMORY: u64 = 2 << 30;

/// A user has one part in so many of the places for ports, and so much is for operators alone.
const SHARES: usize = 4;

/// The user that had a port made, by the port's name.
#[derive(Debug, Default)]
pub(super) struct Makers(BTreeMap<String, u32>);

impl Makers {
    /// `port` is of `who`.
    pub(super) fn note(&mut self, who: Asker, port: &str) {
        self.0.insert(port.to_owned(), who.ids.0);
    }

    /// `port` is gone: one that bears its name later is another user's. Returns the user whose it was.
    pub(super) fn forget(&mut self, port: &str) -> Option<u32> {
        self.0.remove(port)
    }

    /// Ports that are not in `spec` belong to no user.
    pub(super) fn tidy(&mut self, spec: &Spec) {
        self.0.retain(|name, _| spec.ports.iter().any(|port| port.name == *name));
    }

    /// Ports of `user`, and those of all users who are no operators.
    fn count(&self, user: u32) -> (usize, usize) {
        let mine = self.0.values().filter(|maker| **maker == user).count();
        (mine, self.0.values().filter(|maker| !is_operator(**maker)).count())
    }

    fn is_of(&self, user: u32, port: &str) -> bool {
        self.0.get(port) == Some(&user)
    }
}

pub(super) fn is_operator(user: u32) -> bool {
    user == 0 || user == crate::open::broker::maker()
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
        if is_operator(who.ids.0) || self.makers.is_of(who.ids.0, port) {
            return Ok(());
        }
        let why =
            format!("port {port} was not made by user {}, which may neither move nor keep it", who.ids.0);
        tracing::warn!(port, user = who.ids.0, "refused to a netmap program: the port is another user's");
        Err((Errno::PERM, why))
    }

    /// Whether `who` may have one more port made.
    pub(super) fn room(&self, who: Asker) -> Result<(), Refusal> {
        let (user, limit) = (who.ids.0, self.limit);
        if self.engine.on_demand("").0 + self.made.len() >= limit {
            let why = match limit {
                0 => {
                    "no ports are made on demand here; the daemon's option vale-ports allows them".to_owned()
                }
                n => format!("{n} ports were made on demand; the daemon's option vale-ports allows no more"),
            };
            return Err((Errno::NOSPC, why));
        }
        let (mine, all) = self.makers.count(user);
        let share = limit / SHARES;
        if is_operator(user) || (mine < share.max(1) && all < limit - share) {
            return Ok(());
        }
        let why = format!(
            "user {user} has had {mine} ports made, users other than root {all}: of {limit} places (vale-ports) one user may have {}, all of them {}",
            share.max(1),
            limit - share
        );
        Err((Errno::NOSPC, why))
    }

    /// Whether `who` may keep `port`, or name pipes in its memory: one that was made on demand is its maker's.
    pub(super) fn may_keep(&self, who: Asker, port: &str) -> Result<(), Refusal> {
        if self.engine.on_demand(port).1 {
            return self.may(who, port);
        }
        Ok(())
    }

    /// Whether `who` may attach what belongs to the host.
    pub(super) fn may_host(&self, who: Asker, interface: &str) -> Result<(), Refusal> {
        if is_operator(who.ids.0) {
            return Ok(());
        }
        let why = format!(
            "interface {interface} is the host's: only root and the daemon's own user may attach it here"
        );
        Err((Errno::PERM, why))
    }

    /// Whether `who` may have the memory of `port`, too.
    pub(super) fn memory_for(&self, who: Asker, port: &PortSpec) -> Result<(), Refusal> {
        if is_operator(who.ids.0) {
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
