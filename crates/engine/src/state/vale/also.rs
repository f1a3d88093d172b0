//! Two things that netmap's memory makes easy: a port on several switches, and pipes of a name in another port's memory.
//!
//! A port passes frames on one switch here. One that is attached to further ones is listed on all, and goes to the
//! one by whose name a program opens it. Pipes lie in the memory of a port; a program that asks for a memory by its
//! number has them in that one, under the name that it gave them. A name that an operator gave holds for every user who
//! may use that port, another user's for its own programs alone: it leads no other user into that memory.

use std::collections::BTreeSet;

use rustix::io::Errno;
use sidecore_abi::vale::{Ask, Reply};

use super::makers::is_operator;
use super::{on_switch, refuse, vale_name, Name, Refusal, Vale};
use crate::port::Peer;
use crate::state::spec::{PortSpec, Spec};
use crate::transport::ring::Asker;

/// Names that one connection may give to pipes in the memory of other ports: a port has no more pipes.
const MAX_INSIDE: usize = 64;
/// Names that all connections may give, and those of one user who is no operator.
const MAX_INSIDES: usize = 4096;
const MAX_INSIDES_OF_A_USER: usize = 512;
/// Further switches to which a port may be attached.
const MAX_ALSO: usize = 64;

/// The user under whom a name that `who` gives is known; operators' names are for all.
fn giver(who: Asker) -> Option<u32> {
    Some(who.ids.0).filter(|user| !is_operator(*user))
}

impl Vale {
    /// A ring port that is on a switch is attached to `switch`, too: it passes frames on one of its switches at a time, that
    /// by whose name a program opened it last.
    pub(super) fn attach_also(&mut self, switch: &str, port: &PortSpec) -> Result<(), Refusal> {
        let others = self.also.get(&port.name).map_or(&[][..], Vec::as_slice);
        let why = match &port.switch {
            None => format!("port {} is joined to {} already; part it first", port.name, port.joint()),
            Some(_) if self.engine.on_demand(&port.name).1 => {
                format!("port {} was made on demand, for its own switch", port.name)
            }
            Some(own) if own == switch || others.iter().any(|other| other == switch) => {
                format!("port {} is attached to switch {switch} already", port.name)
            }
            Some(_) if others.len() >= MAX_ALSO => {
                format!("port {} is attached to {MAX_ALSO} further switches already", port.name)
            }
            Some(_) => {
                self.also.entry(port.name.clone()).or_default().push(switch.to_owned());
                return Ok(());
            }
        };
        Err((Errno::BUSY, why))
    }

    /// Ports that are gone, or have left their switch otherwise, are attached to no others.
    pub(super) fn forget_parted(&mut self) {
        if self.also.is_empty() {
            return;
        }
        let spec = self.engine.everything();
        let on = |name: &str| spec.ports.iter().any(|port| port.name == name && port.switch.is_some());
        self.also.retain(|name, switches| !switches.is_empty() && on(name));
    }

    /// Of `valeS:P`, the port P that is attached to S, too.
    pub(super) fn attached_also(&self, switch: &str, short: &str) -> Option<&str> {
        let here = |switches: &[String]| switches.iter().any(|other| other == switch);
        self.also.iter().find(|(name, switches)| *name == short && here(switches)).map(|(name, _)| &**name)
    }

    /// A program opens a port by the name of another of its switches: it goes there, unless a program has it open.
    pub(super) fn move_to(&mut self, who: Asker, name: &Name<'_>) -> Result<(), Refusal> {
        let Some((switch, short)) = name.vale else { return Ok(()) };
        let Some(port) = self.attached_also(switch, short).map(str::to_owned) else { return Ok(()) };
        let spec = self.engine.everything();
        let own = spec.ports.iter().find(|other| other.name == port).and_then(|other| other.switch.clone());
        let Some(own) = own else { return Ok(()) };
        self.may(who, &port)?;
        if !matches!(self.engine.peer(&port), None | Some(Peer::Waiting)) {
            return Err((Errno::BUSY, format!("a program has port {port} open on switch {own}")));
        }
        self.engine.rejoin(&port, Some(switch)).map_err(|e| refuse(&e))?;
        if let Some(others) = self.also.get_mut(&port) {
            others.retain(|other| other != switch);
            others.push(own);
        }
        Ok(())
    }

    /// `NAME{P@PORT`: pipes of a port NAME that is not there, in the memory of PORT.
    pub(super) fn open_inside(&mut self, who: Asker, name: &str, ask: &Ask) -> Result<Reply, Refusal> {
        let (wanted, home) = name.split_once('@').unwrap_or((name, ""));
        let (wanted, home) = (Name::read(wanted)?, Name::read(home)?);
        let spec = self.engine.everything();
        let there = wanted.find(&spec).is_some() || self.location_inside(who, &wanted).is_some();
        let home = home.find(&spec).filter(|port| port.kind == "ring");
        match home {
            Some(home) if !there && wanted.pipe => {
                self.may_keep(who, &home.name)?;
                let giver = giver(who);
                let mine = self.inside.values().filter(|(_, users)| users.contains(&who.connection)).count();
                let of_user = self.inside.keys().filter(|(other, _)| *other == giver).count();
                let too_many = giver.is_some() && of_user >= MAX_INSIDES_OF_A_USER;
                if mine >= MAX_INSIDE || too_many || self.inside.len() >= MAX_INSIDES {
                    let why = format!("port {} takes no more names for its pipes", home.name);
                    return Err((Errno::NOSPC, why));
                }
                let users = BTreeSet::from([who.connection]);
                self.inside.insert((giver, wanted.base.to_owned()), (home.location.clone(), users));
                self.keep(who, &home.location)
            }
            _ => self.open(who, wanted, ask),
        }
    }

    /// In whose memory the pipes of this name lie for `who`. A user who could have given the name keeps it from now on.
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

    /// The connection keeps the port with this location.
    pub(super) fn keep(&mut self, who: Asker, location: &str) -> Result<Reply, Refusal> {
        let spec = self.engine.everything();
        let port = spec.ports.iter().find(|port| port.kind == "ring" && port.location == location);
        let port = port.ok_or_else(|| (Errno::NXIO, format!("ring port {location} is gone")))?;
        self.may_keep(who, &port.name)?;
        if self.engine.on_demand(&port.name).1 {
            self.leases.entry(who.connection).or_default().insert(port.name.clone());
        }
        Ok(Reply::done(location, 0, 0))
    }

    /// All switches and the ports attached to them, those that pass frames on another one at the end; switches that have only
    /// such are the last.
    pub(super) fn table(&self, spec: &Spec) -> Vec<(String, Vec<String>)> {
        let names =
            |switch: &str| on_switch(spec, switch).into_iter().map(|port| vale_name(switch, port)).collect();
        let mut table: Vec<(String, Vec<String>)> =
            spec.switches.iter().map(|switch| (switch.name.clone(), names(&switch.name))).collect();
        for (port, switch) in
            self.also.iter().flat_map(|(port, all)| all.iter().map(move |switch| (port, switch)))
        {
            let name = format!("vale{switch}:{port}");
            match table.iter_mut().find(|(other, _)| other == switch) {
                Some((_, ports)) => ports.push(name),
                None => table.push((switch.clone(), vec![name])),
            }
        }
        table
    }
}
