//! The users that had ports made, and what they may do: the socket at which programs ask may be open to
//! several users.
//!
//! The *operator*, root or the user that the daemon was started by, may do everything. Another user may open
//! ports on switches and make ports, each socket of which is that user's alone; but what a user has not made
//! stays where it is: ports of VMs are not parted from their switch, interfaces of the host are not attached,
//! other users' ports do not go, and are not kept. A user has a share of the places for ports, and of the
//! names for pipes; some are for operators alone. And the memory of one user's ports has a bound, in which
//! monitors are counted as if all of them were there.

use std::collections::BTreeSet;

use rustix::io::Errno;
use sidecore_engine::state::PortSpec;
use sidecore_engine::transport::ring::{Asker, EXTRA_LIMIT, MONITORS};

use super::{refused, Refusal, Vale};

/// Bytes that the ports of one user may come to.
const MEMORY: u64 = 2 << 30;

/// A user has one part in so many of the places for ports, and so much is for operators alone.
const SHARES: usize = 4;

/// A port that a program had made.
pub(super) struct Made {
    /// The user who asked for it.
    pub(super) user: u32,
    /// The connections that keep it; `None`: it stays until somebody removes it.
    pub(super) keepers: Option<BTreeSet<u64>>,
}

pub(super) fn is_operator(user: u32) -> bool {
    user == 0 || user == sidecore_engine::sandbox::open::broker::maker()
}

/// Bytes of a ring port that a program asks for, with all its monitors.
fn bytes(port: &PortSpec) -> u64 {
    let default = sidecore_engine::ring::Geometry::default();
    let rings = port.queues.map_or(default.rings as u64, |queues| queues.get().into());
    let slots: u64 = port.slots.map_or(default.slots, |slots| slots.get()).into();
    let buffer: u64 = port.buf_size.map_or(default.buf_size, |bytes| bytes.get()).into();
    let extra = u64::from(EXTRA_LIMIT);
    // A monitor has rings in one direction.
    (rings * slots * (2 + MONITORS as u64) + extra) * buffer
}

impl Vale {
    fn is_of(&self, who: Asker, port: &str) -> bool {
        self.made.get(port).is_some_and(|made| made.user == who.ids.0)
    }

    /// Whether `who` may move or remove `port`.
    pub(super) fn may(&self, who: Asker, port: &str) -> Result<(), Refusal> {
        let user = who.ids.0;
        if is_operator(user) || self.is_of(who, port) {
            return Ok(());
        }
        tracing::warn!(port, user, "refused to a netmap program: the port is another user's");
        refused!(PERM, "port {port} was not made by user {user}, which may neither move nor keep it")
    }

    /// Whether `who` may keep `port`, or name pipes in its memory: one that was made on demand is its
    /// maker's.
    pub(super) fn may_keep(&self, who: Asker, port: &str) -> Result<(), Refusal> {
        if self.is_leased(port) {
            self.may(who, port)
        } else {
            Ok(())
        }
    }

    /// Whether port `name` goes with the last connection that asked for it.
    pub(super) fn is_leased(&self, name: &str) -> bool {
        self.made.get(name).is_some_and(|made| made.keepers.is_some())
    }

    /// The connection keeps port `name`, if that was made on demand.
    pub(super) fn keep(&mut self, who: Asker, name: &str) -> Result<(), Refusal> {
        self.may_keep(who, name)?;
        if let Some(keepers) = self.made.get_mut(name).and_then(|made| made.keepers.as_mut()) {
            keepers.insert(who.connection);
        }
        Ok(())
    }

    /// Whether `who` may attach what belongs to the host.
    pub(super) fn may_host(&self, who: Asker, interface: &str) -> Result<(), Refusal> {
        if is_operator(who.ids.0) {
            return Ok(());
        }
        refused!(
            PERM,
            "interface {interface} is the host's: only root and the daemon's own user may attach it here"
        )
    }

    /// Whether `who` may have `ports` made, too.
    pub(super) fn may_add(&self, who: Asker, ports: &[PortSpec]) -> Result<(), Refusal> {
        let (user, limit) = (who.ids.0, self.limit);
        if limit == 0 {
            return refused!(
                NOSPC,
                "no ports are made on demand here; the daemon's option vale-ports allows them"
            );
        }
        if self.made.len() >= limit {
            return refused!(
                NOSPC,
                "{limit} ports were made on demand; the daemon's option vale-ports allows no more"
            );
        }
        if is_operator(user) {
            return Ok(());
        }
        let mine = self.made.values().filter(|made| made.user == user).count();
        let all = self.made.values().filter(|made| !is_operator(made.user)).count();
        let share = (limit / SHARES).max(1);
        let others = limit - limit / SHARES;
        if mine >= share || all >= others {
            return refused!(
                NOSPC,
                "user {user} has had {mine} ports made, users other than root {all}: of {limit} places (vale-ports) one user may have {share}, all of them {others}"
            );
        }
        let spec = self.engine.everything();
        let own = spec.ports.iter().filter(|port| self.is_of(who, &port.name));
        let all: u64 = own.chain(ports).map(bytes).sum();
        if all > MEMORY {
            return refused!(
                NOMEM,
                "the ports of user {user} would come to {} MiB with their monitors, and a user may have {}: fewer rings or slots, or fewer ports",
                all >> 20,
                MEMORY >> 20
            );
        }
        Ok(())
    }
}
