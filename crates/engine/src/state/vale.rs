//! VALE's names and verbs on ports and switches: `sidecore_abi::vale` carried out.
//!
//! `valeS:P` is port P of switch S, where S is the name of a switch, and without a name the default one. Two things
//! differ from the configuration's names: a ring port whose location is the whole of `valeS:P` bears that name on its
//! switch, as a port made on demand does; and a port that is parted from its switch is joined to a wire of
//! its own name, as the only end.
//!
//! A port made on demand is kept by leases, one for each connection that asked for it; it goes with the last. So are
//! host rings: a program that asks for `NAME^` of a ring port that has none gets them, with a TAP of the port's name
//! across.

mod also;
mod makers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustix::io::Errno;
use sidecore_abi::vale::{text, Ask, Reply, Verb};

use super::engine::{Engine, Error};
use super::spec::{PortSpec, Spec, DEFAULT_SWITCH};
use super::values::Number;
use crate::port::Peer;
use crate::transport::ring::{Asker, Verbs, HOST};

/// `nr_mode` of an attachment with the host's rings.
const NIC_SW: u32 = 3;
/// The port's number in a reply about a port that is not in its switch.
const NO_PORT: u32 = 255;

/// Carries VALE's verbs out.
pub struct Vale {
    engine: Arc<Engine>,
    /// Most ports that are there on demand.
    limit: usize,
    /// Ports that connections keep.
    leases: BTreeMap<u64, BTreeSet<String>>,
    /// Ports of host interfaces that `Attach` made.
    made: BTreeSet<String>,
    /// Ports that are attached to further switches, and those: see [`Vale::attach_also`].
    also: BTreeMap<String, Vec<String>>,
    /// Names under which pipes lie in the memory of another port, by the user who gave them: its location, and the
    /// connections that keep them so.
    inside: BTreeMap<(Option<u32>, String), (String, BTreeSet<u64>)>,
    polled: BTreeSet<String>,
    makers: makers::Makers,
}

type Refusal = (Errno, String);

/// A name as programs write it.
struct Name<'a> {
    /// Without a pipe's suffix.
    base: &'a str,
    /// Whether it is one of a pipe's ends.
    pipe: bool,
    /// Whether it is about the port's host rings.
    host: bool,
    /// Of `valeS:P`, S (settled) and P.
    vale: Option<(&'a str, &'a str)>,
}

impl<'a> Name<'a> {
    fn read(name: &'a str) -> Result<Name<'a>, Refusal> {
        let (base, pipe, host) = match (name.find(['{', '}']), name.strip_suffix(HOST)) {
            (Some(at), _) => (&name[..at], true, false),
            (None, Some(base)) => (base, false, true),
            (None, None) => (name, false, false),
        };
        let plain = |part: &str| part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'.');
        let bad = |why| Err((Errno::INVAL, format!("{name:?} is no port's name: {why}")));
        if pipe && !plain(&name[base.len() + 1..]) {
            return bad("a pipe is named by letters, digits, '_' and '.'");
        }
        let vale = match base.strip_prefix("vale").and_then(|rest| rest.split_once(':')) {
            Some((switch, port)) if plain(switch) && plain(port) && !port.is_empty() => {
                Some((if switch.is_empty() { DEFAULT_SWITCH } else { switch }, port))
            }
            Some(_) => return bad("switch and port of valeS:P are letters, digits, '_' and '.'"),
            None if plain(base) && !base.is_empty() && !base.starts_with('.') => None,
            None => return bad("it is letters, digits, '_' and '.', or valeS:P"),
        };
        Ok(Name { base, pipe, host, vale })
    }

    /// The short name: P of `valeS:P`.
    fn short(&self) -> &'a str {
        self.vale.map_or(self.base, |(_, port)| port)
    }

    fn of_switch(self) -> Result<(&'a str, &'a str), Refusal> {
        self.vale.ok_or_else(|| (Errno::INVAL, format!("{:?} names no switch; write valeS:P", self.base)))
    }

    /// The port of that name in `spec`.
    fn find<'s>(&self, spec: &'s Spec) -> Option<&'s PortSpec> {
        let rings = || spec.ports.iter().filter(|port| port.kind == "ring");
        let whole = rings().find(|port| port.location == self.base);
        let Some((switch, short)) = self.vale else { return whole };
        whole.or_else(|| {
            on_switch(spec, switch).into_iter().find(|port| port.location == short || port.name == short)
        })
    }
}

/// The ports joined to `switch`.
fn on_switch<'s>(spec: &'s Spec, switch: &str) -> Vec<&'s PortSpec> {
    spec.ports.iter().filter(|port| port.switch.as_deref() == Some(switch)).collect()
}

/// The name by which VALE knows a port on `switch`.
fn vale_name(switch: &str, port: &PortSpec) -> String {
    match port.location.starts_with("vale") && port.location.contains(':') && port.kind == "ring" {
        true => port.location.clone(),
        false => format!("vale{switch}:{}", port.name),
    }
}

fn refuse(error: &Error) -> Refusal {
    let errno = match error {
        Error::Bad(_) | Error::Fixed(_) => Errno::INVAL,
        Error::Unknown { .. } => Errno::NXIO,
        Error::Exists { .. } => Errno::EXIST,
        Error::InUse { .. } | Error::Cannot(_) => Errno::BUSY,
        Error::Failed(_) => Errno::IO,
    };
    (errno, error.to_string())
}

/// A port without options.
fn plain(name: &str, kind: &str, location: &str) -> PortSpec {
    let [name, kind, location] = [name, kind, location].map(str::to_owned);
    PortSpec { name, kind, location, ..PortSpec::default() }
}

/// A ring port made by a request.
fn ring(name: &str, location: &str, ask: &Ask) -> Result<PortSpec, Refusal> {
    let mut port = plain(name, "ring", location);
    let bad = |why: String| (Errno::INVAL, why);
    // Both directions of a ring port are alike: the larger wish counts.
    if let slots @ 1.. = ask.tx_slots.max(ask.rx_slots) {
        port.slots = Some(slots.to_string().parse().map_err(|why| bad(format!("slots: {why}")))?);
    }
    if let rings @ 1.. = ask.tx_rings.max(ask.rx_rings) {
        port.queues = Some(rings.to_string().parse().map_err(|why| bad(format!("rings: {why}")))?);
    }
    Ok(port)
}

/// As in netmap, a port that a program has made takes any frame that its slots can hold: those of 64 buffers of 2 KiB
/// hold more than there is.
fn any_frame() -> Option<Number<68, 65535>> {
    "65535".parse().ok()
}

impl Vale {
    /// For `engine`, with at most `limit` ports on demand.
    pub fn new(engine: Arc<Engine>, limit: usize) -> Vale {
        let (leases, made, polled) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        let (also, inside) = (BTreeMap::new(), BTreeMap::new());
        Vale { engine, limit, leases, made, also, inside, polled, makers: makers::Makers::default() }
    }

    fn carry(&mut self, who: Asker, ask: &Ask) -> Result<Reply, Refusal> {
        let name = text(&ask.name).ok_or((Errno::INVAL, "the name is no text".to_owned()))?;
        self.forget_parted();
        self.makers.tidy(&self.engine.everything());
        match Verb::from_code(ask.verb) {
            Some(Verb::Open) if name.contains('@') => self.open_inside(who, name, ask),
            Some(Verb::List) => self.list(name, ask.first, ask.second),
            Some(verb) => {
                let name = Name::read(name)?;
                if name.host && verb != Verb::Open {
                    let why = format!(
                        "{:?} are host rings, which come and go with their port",
                        text(&ask.name).unwrap_or("")
                    );
                    return Err((Errno::INVAL, why));
                }
                match verb {
                    Verb::Open => self.open(who, name, ask),
                    Verb::NewIf => self.new_if(who, &name, ask),
                    Verb::DelIf => self.del_if(who, &name),
                    Verb::Attach => self.attach(who, name.of_switch()?, ask.mode),
                    Verb::Detach => self.detach(who, name.of_switch()?),
                    Verb::PollingOn => self.poll_on(who, name.of_switch()?, ask),
                    Verb::PollingOff | Verb::List => self.poll_off(who, name.of_switch()?),
                }
            }
            None => Err((Errno::OPNOTSUPP, format!("there is no request {}", ask.verb))),
        }
    }

    fn open(&mut self, who: Asker, name: Name<'_>, ask: &Ask) -> Result<Reply, Refusal> {
        if name.host {
            return self.open_host(who, &name, ask);
        }
        self.move_to(who, &name)?;
        let spec = self.engine.everything();
        if let Some(port) = name.find(&spec) {
            if port.kind != "ring" {
                let why =
                    format!("port {} is of kind {}, which no netmap program can open", port.name, port.kind);
                return Err((Errno::BUSY, why));
            }
            return self.keep(who, &port.location);
        }
        if let Some(location) = self.location_inside(who, &name) {
            return self.keep(who, &location);
        }
        if name.vale.is_none() && !name.pipe {
            let why = format!("there is no ring port {:?}; make it: sidecore vale-ctl -n {0}", name.base);
            return Err((Errno::NXIO, why));
        }
        self.room(who)?;
        let mut port = PortSpec { mtu: any_frame(), ..ring(&name.base.replace(':', "."), name.base, ask)? };
        match name.vale {
            Some((switch, _)) => port.switch = Some(switch.to_owned()),
            None => port.wire = Some(port.name.clone()),
        }
        // The socket belongs to the asker alone, whatever user the daemon runs as.
        port.mode = "0600".parse().ok();
        let (user, group) = who.ids;
        if user != crate::open::broker::maker() {
            port.owner = format!("{user}:{group}").parse().ok();
        }
        self.memory_for(who, &port)?;
        self.engine.add_on_demand(&port, true).map_err(|e| refuse(&e))?;
        self.makers.note(who, &port.name);
        tracing::info!(port = %port.name, user, "made for a program");
        self.leases.entry(who.connection).or_default().insert(port.name);
        Ok(Reply::done(name.base, 0, 0))
    }

    /// Has a ring port's host rings be there: if it has none, some that lead to a TAP of its name.
    fn open_host(&mut self, who: Asker, name: &Name<'_>, ask: &Ask) -> Result<Reply, Refusal> {
        let spec = self.engine.everything();
        let missing = || (Errno::NXIO, format!("there is no ring port {:?}", name.base));
        let port = name.find(&spec).filter(|port| port.kind == "ring").ok_or_else(missing)?;
        let location = format!("{}{HOST}", port.location);
        let (host, tap) = (format!("{}.host", port.name), format!("{}.tap", port.name));
        match spec.ports.iter().find(|port| port.kind == "ring" && port.location == location) {
            Some(there) if !self.engine.on_demand(&there.name).1 => return Ok(Reply::done(&location, 0, 0)),
            Some(there) => self.may_keep(who, &there.name)?,
            None => {
                self.may_host(who, name.short())?;
                self.room(who)?;
                let rings = PortSpec { wire: Some(host.clone()), ..ring(&host, &location, ask)? };
                self.engine.add_on_demand(&rings, true).map_err(|e| refuse(&e))?;
                let across = PortSpec { wire: Some(host.clone()), ..plain(&tap, "tap", name.short()) };
                if let Err(error) = self.engine.add_on_demand(&across, true) {
                    self.engine.end_on_demand(&host).map_err(|e| refuse(&e))?;
                    return Err(refuse(&error));
                }
                tracing::info!(port = %port.name, "its host rings lead to interface {}", name.short());
            }
        }
        self.leases.entry(who.connection).or_default().extend([host, tap]);
        Ok(Reply::done(&location, 0, 0))
    }

    fn new_if(&mut self, who: Asker, name: &Name<'_>, ask: &Ask) -> Result<Reply, Refusal> {
        if name.vale.is_some() || name.pipe {
            return Err((Errno::INVAL, format!("{:?}: a port that stays has a plain name", name.base)));
        }
        self.room(who)?;
        let port = PortSpec {
            wire: Some(name.base.to_owned()),
            mtu: any_frame(),
            ..ring(name.base, name.base, ask)?
        };
        self.memory_for(who, &port)?;
        self.engine.add_on_demand(&port, false).map_err(|e| refuse(&e))?;
        self.makers.note(who, &port.name);
        tracing::info!(port = %port.name, user = who.ids.0, "made by a netmap program, to stay");
        self.made.insert(port.name);
        Ok(Reply::done(name.base, 0, 0))
    }

    fn del_if(&mut self, who: Asker, name: &Name<'_>) -> Result<Reply, Refusal> {
        let spec = self.engine.everything();
        let found = spec.ports.iter().find(|port| port.name == name.base && port.kind == "ring");
        let port = found.ok_or_else(|| (Errno::NXIO, format!("there is no ring port {:?}", name.base)))?;
        let busy = |why: &str| Err((Errno::BUSY, format!("port {}: {why}", port.name)));
        self.may(who, &port.name)?;
        if port.wire.as_deref() != Some(&*port.name) {
            return busy(&format!("it is joined to {}; part it first: vale-ctl -d", port.joint()));
        }
        if self.engine.on_demand(&port.name).1 {
            return busy("it was made on demand and goes with its last user");
        }
        if !matches!(self.engine.peer(&port.name), None | Some(Peer::Waiting)) {
            return busy("a program has it open");
        }
        self.engine.end_on_demand(&port.name).map_err(|e| refuse(&e))?;
        self.made.remove(&port.name);
        self.makers.forget(&port.name);
        tracing::info!(port = %port.name, user = who.ids.0, "removed by a netmap program");
        Ok(Reply::done(name.base, 0, 0))
    }

    fn attach(&mut self, who: Asker, (switch, short): (&str, &str), mode: u32) -> Result<Reply, Refusal> {
        let spec = self.engine.everything();
        let found = spec
            .ports
            .iter()
            .find(|port| port.name == short || (port.kind == "ring" && port.location == short));
        if mode == NIC_SW && found.is_none_or(|port| port.kind != "ring") {
            let why =
                format!("the host's own stack can be attached beside a ring port only, and {short} is none");
            return Err((Errno::OPNOTSUPP, why));
        }
        match found {
            Some(port) => self.may(who, &port.name)?,
            None => self.may_host(who, short)?,
        }
        if mode == NIC_SW {
            self.may_host(who, short)?;
        }
        match found {
            Some(port) if port.wire.as_deref() == Some(&*port.name) => {
                self.engine.rejoin(&port.name, Some(switch)).map_err(|e| refuse(&e))?;
                if mode == NIC_SW {
                    self.attach_host(who, switch, (short, &port.name))?;
                }
            }
            Some(port) if port.kind == "ring" && mode != NIC_SW => self.attach_also(switch, port)?,
            Some(port) => {
                let why = format!("port {} is joined to {} already; part it first", port.name, port.joint());
                return Err((Errno::BUSY, why));
            }
            None => self.attach_interface(who, switch, short)?,
        }
        tracing::info!(port = short, switch, user = who.ids.0, "attached by a netmap program");
        self.place(switch, short)
    }

    /// Has the host's stack be on `switch`, too, by a TAP of the name of ring port `name`.
    fn attach_host(&mut self, who: Asker, switch: &str, (short, name): (&str, &str)) -> Result<(), Refusal> {
        let tap = PortSpec { switch: Some(switch.to_owned()), ..plain(&format!("{name}.tap"), "tap", short) };
        let made =
            self.room(who).and_then(|()| self.engine.add_on_demand(&tap, false).map_err(|e| refuse(&e)));
        if made.is_err() {
            self.engine.rejoin(name, None).map_err(|e| refuse(&e))?;
        }
        made?;
        self.made.insert(tap.name);
        Ok(())
    }

    /// Makes a port of the host's interface `name`.
    fn attach_interface(&mut self, who: Asker, switch: &str, name: &str) -> Result<(), Refusal> {
        if !std::path::Path::new("/sys/class/net").join(name).exists() {
            let why = format!("there is no port and no interface of the host {name:?}");
            return Err((Errno::NXIO, why));
        }
        if super::kinds::find(self.engine.means.kinds, "packet").is_err() {
            let why =
                format!("this build has no kind of port for the host's interface {name}; use a tap port");
            return Err((Errno::OPNOTSUPP, why));
        }
        self.room(who)?;
        let port = PortSpec { switch: Some(switch.to_owned()), ..plain(name, "packet", name) };
        self.engine.add_on_demand(&port, false).map_err(|e| refuse(&e))?;
        self.made.insert(port.name);
        Ok(())
    }

    fn detach(&mut self, who: Asker, (switch, short): (&str, &str)) -> Result<Reply, Refusal> {
        if let Some(port) = self.attached_also(switch, short).map(str::to_owned) {
            self.may(who, &port)?;
            let place = self.place(switch, short)?;
            self.also.entry(port).or_default().retain(|other| other != switch);
            return Ok(place);
        }
        let (name, place) = self.joined(switch, short)?;
        self.may(who, &name)?;
        if self.engine.on_demand(&name).1 {
            let why = format!("port {name} was made on demand and goes with its last user");
            return Err((Errno::BUSY, why));
        }
        let is_interface = self.made.contains(&name)
            && self.engine.everything().ports.iter().any(|port| port.name == name && port.kind == "packet");
        let parted = match is_interface {
            true => self.engine.end_on_demand(&name),
            false => self.engine.rejoin(&name, self.also.get_mut(&name).and_then(Vec::pop).as_deref()),
        };
        parted.map_err(|e| refuse(&e))?;
        let tap = format!("{name}.tap");
        if self.made.remove(&tap) {
            self.engine.end_on_demand(&tap).map_err(|e| refuse(&e))?;
        }
        if is_interface {
            self.made.remove(&name);
        }
        self.polled.remove(&name);
        tracing::info!(port = %name, switch, user = who.ids.0, "detached by a netmap program");
        Ok(place)
    }

    /// The name of port `short` of `switch`, and a reply that tells its place.
    fn joined(&self, switch: &str, short: &str) -> Result<(String, Reply), Refusal> {
        let place = self.place(switch, short)?;
        let spec = self.engine.everything();
        let port = on_switch(&spec, switch).into_iter().find(|port| is(port, switch, short));
        match port {
            Some(port) => Ok((port.name.clone(), place)),
            None => Err((Errno::NXIO, format!("switch {switch} has no port {short:?}"))),
        }
    }

    /// Where port `short` of `switch` is.
    fn place(&self, switch: &str, short: &str) -> Result<Reply, Refusal> {
        let spec = self.engine.everything();
        if self.attached_also(switch, short).is_some() {
            let name = format!("vale{switch}:{short}");
            for (number, (_, ports)) in (0u32..).zip(self.table(&spec)) {
                if let Some(at) = ports.iter().position(|other| *other == name) {
                    return Ok(Reply::done(&name, number, u32::try_from(at).unwrap_or(NO_PORT)));
                }
            }
        }
        let number = spec.switches.iter().position(|other| other.name == switch);
        let number = number.ok_or_else(|| (Errno::NXIO, format!("there is no switch {switch:?}")))?;
        let mut ports = on_switch(&spec, switch).into_iter().enumerate();
        let found = ports.find(|(_, port)| is(port, switch, short));
        let (at, name) = found.map_or((NO_PORT, format!("vale{switch}:{short}")), |(at, port)| {
            (u32::try_from(at).unwrap_or(NO_PORT), vale_name(switch, port))
        });
        Ok(Reply::done(&name, u32::try_from(number).unwrap_or(u32::MAX), at))
    }

    fn list(&self, name: &str, first: u32, second: u32) -> Result<Reply, Refusal> {
        if !name.is_empty() {
            let (switch, short) = Name::read(name)?.of_switch()?;
            return self.place(switch, short);
        }
        let spec = self.engine.everything();
        for (number, (_, ports)) in (0u32..).zip(self.table(&spec)).skip(first as usize) {
            let from = if number == first { second as usize } else { 0 };
            if let Some((at, port)) = (0u32..).zip(ports).nth(from) {
                return Ok(Reply::done(&port, number, at));
            }
        }
        Err((Errno::NOENT, "there are no more ports".to_owned()))
    }

    /// I/O cores poll every port that is joined to anything, so this only holds what was asked against what is.
    fn poll_on(&mut self, who: Asker, (switch, short): (&str, &str), ask: &Ask) -> Result<Reply, Refusal> {
        let (name, place) = self.joined(switch, short)?;
        self.may(who, &name)?;
        let cpus = self.engine.spec().daemon.cores.unwrap_or_default();
        let wanted = ask.first..ask.first.saturating_add(ask.second.clamp(1, 1024));
        let is_core = |cpu: u32| cpus.iter().any(|&core| u32::try_from(core) == Ok(cpu));
        if !matches!(ask.mode, 1 | 2) {
            return Err((Errno::INVAL, format!("polling mode {} is not possible; allowed: 1, 2", ask.mode)));
        }
        if let Some(cpu) = wanted.into_iter().find(|&cpu| !is_core(cpu)) {
            let why = format!("processor {cpu} is no I/O core; those are {cpus:?}, and they poll all ports");
            return Err((Errno::INVAL, why));
        }
        if !self.polled.insert(name.clone()) {
            return Err((Errno::BUSY, format!("port {name} is polled already")));
        }
        Ok(place)
    }

    fn poll_off(&mut self, who: Asker, (switch, short): (&str, &str)) -> Result<Reply, Refusal> {
        let (name, place) = self.joined(switch, short)?;
        self.may(who, &name)?;
        if !self.polled.remove(&name) {
            return Err((Errno::INVAL, format!("polling of port {name} was not asked for")));
        }
        Ok(place)
    }
}

/// Whether `port` of `switch` is called `short` there.
fn is(port: &PortSpec, switch: &str, short: &str) -> bool {
    let whole = port.location.strip_prefix("vale").and_then(|rest| rest.split_once(':'));
    let settled = |name: &str| if name.is_empty() { DEFAULT_SWITCH.to_owned() } else { name.to_owned() };
    port.name == short
        || (port.kind == "ring" && port.location == short)
        || whole.is_some_and(|(s, p)| settled(s) == switch && p == short)
}

impl Verbs for Vale {
    fn ask(&mut self, who: Asker, ask: &Ask) -> Reply {
        self.carry(who, ask).unwrap_or_else(|(errno, why)| {
            tracing::debug!("refused to a program: {why}");
            Reply::refused(errno.raw_os_error().unsigned_abs(), &why)
        })
    }

    fn gone(&mut self, connection: u64) {
        self.inside.retain(|_, (_, users)| {
            users.remove(&connection);
            !users.is_empty()
        });
        for name in self.leases.remove(&connection).unwrap_or_default() {
            if self.leases.values().any(|kept| kept.contains(&name)) {
                continue;
            }
            let user = self.makers.forget(&name);
            match self.engine.end_on_demand(&name) {
                Ok(_) => tracing::info!(port = %name, user, "its last user has left: it is removed"),
                Err(error) => {
                    tracing::error!(port = %name, user, "its last user has left, but it cannot be removed: {error}")
                }
            }
        }
    }
}
