//! Pipes of a name in another port's memory.
//!
//! Pipes lie in the memory of a port; a program that asks for a memory by its number has them in that one,
//! under the name that it gave them. A name that an operator gave holds for every user who may use that port,
//! another user's for its own programs alone: it leads no other user into that memory.

use std::collections::BTreeSet;

use rustix::io::Errno;
use sidecore_abi::vale::{Ask, Reply};
use sidecore_engine::transport::ring::Asker;

use super::names::Name;
use super::users::is_operator;
use super::{refused, Refusal, Vale};

/// Names that one connection may give to pipes in the memory of other ports: a port has no more pipes.
const MAX_INSIDE: usize = 64;
/// Names that all connections may give, and those of one user who is no operator.
const MAX_INSIDES: usize = 4096;
const MAX_INSIDES_OF_A_USER: usize = 512;

/// The user under whom a name that `who` gives is known; operators' names are for all.
fn giver(who: Asker) -> Option<u32> {
    Some(who.ids.0).filter(|user| !is_operator(*user))
}

impl Vale {
    /// `NAME{P@PORT`: pipes of a port NAME that is not there, in the memory of PORT.
    pub(super) fn open_inside(&mut self, who: Asker, name: &str, ask: &Ask) -> Result<Reply, Refusal> {
        let (wanted, home) = name.split_once('@').unwrap_or((name, ""));
        let (wanted, home) = (Name::read(wanted)?, Name::read(home)?);
        let spec = self.engine.everything();
        let home = home.find(&spec).filter(|port| port.kind == "ring" && wanted.pipe);
        let there = wanted.find(&spec).is_some() || self.location_inside(who, &wanted).is_some();
        let Some(home) = home.filter(|_| !there) else {
            return if wanted.host {
                self.open_host(who, &wanted, ask)
            } else {
                self.open(who, &wanted, ask)
            };
        };
        self.may_keep(who, &home.name)?;
        let giver = giver(who);
        let mine = self.inside.values().filter(|(_, users)| users.contains(&who.connection)).count();
        let of_user = self.inside.keys().filter(|(other, _)| *other == giver).count();
        let too_many = giver.is_some() && of_user >= MAX_INSIDES_OF_A_USER;
        if mine >= MAX_INSIDE || too_many || self.inside.len() >= MAX_INSIDES {
            return refused!(NOSPC, "port {} takes no more names for its pipes", home.name);
        }
        let users = BTreeSet::from([who.connection]);
        self.inside.insert((giver, wanted.base.to_owned()), (home.location.clone(), users));
        self.keep(who, &home.name)?;
        Ok(Reply::done(&home.location, 0, 0))
    }

    /// In whose memory the pipes of this name lie for `who`. A user who could have given the name keeps it
    /// from now on.
    pub(super) fn location_inside(&mut self, who: Asker, name: &Name<'_>) -> Option<String> {
        let by = |giver: Option<u32>| (giver, name.base.to_owned());
        if !name.pipe {
            return None;
        }
        if let Some((location, users)) = self.inside.get_mut(&by(giver(who))) {
            users.insert(who.connection);
            return Some(location.clone());
        }
        self.inside.get(&by(None)).map(|(location, _)| location.clone())
    }
}
