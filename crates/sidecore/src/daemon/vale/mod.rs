//! VALE's names and verbs (`sidecore_abi::vale`): requests for ordinary ports and switches.
//!
//! `valeS:P` is port P of switch S, where S is the name of a switch, and without a name the default one. Two
//! things differ from the configuration's names: a ring port whose location is the whole of `valeS:P` bears
//! that name on its switch, as a port made on demand does; and a port that is parted from its switch is
//! joined to a wire of its own name, as the only end.
//!
//! A port made on demand is kept by the connections that asked for it, and goes with the last of them. So do
//! host rings: a program that asks for `NAME^` of a ring port that has none gets them, with a TAP of the
//! port's name across.
//!
//! A port passes frames on one switch here. One that is attached to further ones, as netmap's memory makes
//! easy, is listed on all, and goes to the one by whose name a program opens it.

mod names;
mod pipes;
mod users;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use rustix::io::Errno;
use sidecore_abi::vale::{text, Ask, Reply, Verb};
use sidecore_engine::port::Peer;
use sidecore_engine::state::{Cpus, Engine, Error, PortSpec, Spec};
use sidecore_engine::transport::ring::{Asker, Verbs, HOST};
use sidecore_engine::util::form::Scope;

use self::names::{is_called, place_of, ring_at, Name, OnSwitch};
use self::users::Made;

/// `nr_mode` of an attachment with the host's rings.
const NIC_SW: u32 = 3;
/// The port's number in a reply about a port that is not on its switch.
const NO_PORT: u32 = 255;
/// As in netmap, a port that a program has made takes any frame that its slots can hold: those of 64 buffers
/// of 2 KiB hold more than there is.
const ANY_FRAME: &str = "65535";
/// Further switches to which a port may be attached.
const MAX_FURTHER: usize = 64;

/// Carries VALE's verbs out.
pub struct Vale {
    engine: Arc<Engine>,
    /// Most ports that are there because a program asked for them.
    limit: usize,
    /// Those, by name.
    made: BTreeMap<String, Made>,
    /// Further switches to which ports are attached.
    further: BTreeMap<String, Vec<String>>,
    /// Names under which pipes lie in the memory of another port, by the user who gave them (operators' names
    /// are for all): its location, and the connections that keep them so.
    inside: BTreeMap<(Option<u32>, String), (String, BTreeSet<u64>)>,
    /// Ports whose polling was asked for.
    polled: BTreeSet<String>,
}

type Refusal = (Errno, String);

/// That it cannot be: an error number's name, and why.
macro_rules! refused {
    ($errno:ident, $($why:tt)*) => { Err((Errno::$errno, format!($($why)*))) };
}
use refused;

/// A port on a switch, as it is listed.
struct Row<'s> {
    /// Numbers of the switch and of the port on it.
    at: (u32, u32),
    switch: &'s str,
    port: &'s PortSpec,
    /// It is attached to this switch, too, and passes frames on another one.
    further: bool,
}

impl Row<'_> {
    fn reply(&self) -> Reply {
        let own = !self.further && self.port.kind == "ring" && place_of(&self.port.location).is_some();
        let name =
            if own { self.port.location.clone() } else { format!("vale{}:{}", self.switch, self.port.name) };
        Reply::done(&name, self.at.0, self.at.1)
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

/// What was asked for of two directions, which are alike here: the larger number counts, and 0 is the usual
/// one.
fn wish<T: FromStr<Err = String>>(what: &str, sent: u32, received: u32) -> Result<Option<T>, Refusal> {
    match sent.max(received) {
        0 => Ok(None),
        most => most.to_string().parse().map(Some).map_err(|why| (Errno::INVAL, format!("{what}: {why}"))),
    }
}

/// A ring port as `ask` wants it.
fn ring(name: &str, location: &str, ask: &Ask) -> Result<PortSpec, Refusal> {
    let slots = wish("slots", ask.tx_slots, ask.rx_slots)?;
    let queues = wish("rings", ask.tx_rings, ask.rx_rings)?;
    Ok(PortSpec { slots, queues, ..plain(name, "ring", location) })
}

/// Joins port `name` to `switch`, or to a wire of its own.
fn join(spec: &mut Spec, name: &str, switch: Option<&str>) {
    for port in spec.ports.iter_mut().filter(|port| port.name == name) {
        port.switch = switch.map(str::to_owned);
        port.wire = switch.is_none().then(|| name.to_owned());
        if switch.is_none() {
            *port = port.without(&[Scope::Learning]);
        }
    }
}

impl Vale {
    /// For `engine`, with at most `limit` ports on demand.
    pub fn new(engine: Arc<Engine>, limit: usize) -> Vale {
        let (made, further, inside) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Vale { engine, limit, made, further, inside, polled: BTreeSet::new() }
    }

    fn carry(&mut self, who: Asker, ask: &Ask) -> Result<Reply, Refusal> {
        let written = text(&ask.name).ok_or((Errno::INVAL, "the name is no text".to_owned()))?;
        let unknown = || (Errno::OPNOTSUPP, format!("there is no request {}", ask.verb));
        let verb = Verb::from_code(ask.verb).ok_or_else(unknown)?;
        // Ports that are gone are nobody's, and one that has left its switch otherwise is on no other.
        let spec = self.engine.everything();
        let has = |name: &String, on: bool| {
            spec.ports.iter().any(|port| port.name == *name && (port.switch.is_some() || !on))
        };
        self.made.retain(|name, _| has(name, false));
        self.further.retain(|name, switches| !switches.is_empty() && has(name, true));
        if verb == Verb::Open && written.contains('@') {
            return self.open_inside(who, written, ask);
        }
        if verb == Verb::List && written.is_empty() {
            let at = (ask.first, ask.second);
            let next = self.table(&spec).into_iter().find(|row| row.at >= at).map(|row| row.reply());
            return next.ok_or_else(|| (Errno::NOENT, "there are no more ports".to_owned()));
        }
        let name = Name::read(written)?;
        if name.host && verb != Verb::Open {
            return refused!(INVAL, "{written:?} are host rings, which come and go with their port");
        }
        match verb {
            Verb::Open if name.host => self.open_host(who, &name, ask),
            Verb::Open => self.open(who, &name, ask),
            Verb::List => self.place(name.on_switch()?),
            Verb::NewIf => self.new_if(who, &name, ask),
            Verb::DelIf => self.del_if(who, &name),
            Verb::Attach => self.attach(who, name.on_switch()?, ask.mode == NIC_SW),
            Verb::Detach => self.detach(who, name.on_switch()?),
            Verb::PollingOn => self.poll(who, name.on_switch()?, Some(ask)),
            Verb::PollingOff => self.poll(who, name.on_switch()?, None),
        }
    }

    /// All ports on switches, in the order of their numbers. Those that pass frames on another switch come
    /// behind a switch's own; switches that have only such are the last.
    fn table<'s>(&'s self, spec: &'s Spec) -> Vec<Row<'s>> {
        let mut switches: Vec<&str> = spec.switches.iter().map(|switch| &*switch.name).collect();
        for name in self.further.values().flatten() {
            if !switches.contains(&&**name) {
                switches.push(name);
            }
        }
        let mut table = Vec::new();
        for (number, switch) in (0u32..).zip(switches) {
            let own = spec.ports.iter().filter(|port| port.switch.as_deref() == Some(switch));
            let further = self.further.iter().filter(|(_, all)| all.iter().any(|other| other == switch));
            let further = further.filter_map(|(name, _)| spec.ports.iter().find(|port| port.name == *name));
            let all = own.map(|port| (port, false)).chain(further.map(|port| (port, true)));
            let row = |(at, (port, further))| Row { at: (number, at), switch, port, further };
            table.extend((0u32..).zip(all).map(row));
        }
        table
    }

    /// The port at `at`.
    fn row<'s>(&'s self, spec: &'s Spec, at: OnSwitch<'_>) -> Option<Row<'s>> {
        self.table(spec).into_iter().find(|row| row.switch == at.0 && is_called(row.port, at))
    }

    /// A reply that tells where the port at `at` is, also if it is not there but the switch is.
    fn place(&self, at: OnSwitch<'_>) -> Result<Reply, Refusal> {
        let spec = self.engine.everything();
        if let Some(row) = self.row(&spec, at) {
            return Ok(row.reply());
        }
        match (0u32..).zip(&spec.switches).find(|(_, switch)| switch.name == at.0) {
            Some((number, _)) => Ok(Reply::done(&format!("vale{}:{}", at.0, at.1), number, NO_PORT)),
            None => refused!(NXIO, "there is no switch {:?}", at.0),
        }
    }

    /// The port at `at`, which has to be there and which `who` may change; whether it is there beside another
    /// switch, and a reply that tells its place.
    fn joined(&self, who: Asker, at: OnSwitch<'_>) -> Result<(PortSpec, bool, Reply), Refusal> {
        let reply = self.place(at)?;
        let spec = self.engine.everything();
        let row = self.row(&spec, at);
        let row = row.ok_or_else(|| (Errno::NXIO, format!("switch {} has no port {:?}", at.0, at.1)))?;
        self.may(who, &row.port.name)?;
        Ok((row.port.clone(), row.further, reply))
    }

    /// Changes what runs by `edit`, and has `ports` added. They stay for as long as the connection lasts if
    /// it has them on a `lease`.
    fn add(
        &mut self,
        who: Asker,
        lease: bool,
        ports: &[PortSpec],
        edit: impl FnOnce(&mut Spec),
    ) -> Result<(), Refusal> {
        if !ports.is_empty() {
            self.may_add(who, ports)?;
        }
        self.change(lease, ports, edit)?;
        for port in ports {
            let keepers = lease.then(|| BTreeSet::from([who.connection]));
            self.made.insert(port.name.clone(), Made { user: who.ids.0, keepers });
        }
        Ok(())
    }

    fn change(&self, lease: bool, add: &[PortSpec], edit: impl FnOnce(&mut Spec)) -> Result<(), Refusal> {
        self.engine.change_on_demand(lease, add, edit).map_err(|e| refuse(&e)).map(|_| ())
    }

    /// A program has port `name` open.
    fn is_open(&self, name: &str) -> bool {
        !matches!(self.engine.peer(name), None | Some(Peer::Waiting))
    }

    fn open(&mut self, who: Asker, name: &Name<'_>, ask: &Ask) -> Result<Reply, Refusal> {
        if let Some(at) = name.vale {
            self.move_to(who, at)?;
        }
        let spec = self.engine.everything();
        let inside = self.location_inside(who, name);
        let port = name.find(&spec).or_else(|| ring_at(&spec, inside.as_deref()?));
        if let Some(port) = port {
            if port.kind != "ring" {
                let PortSpec { name, kind, .. } = port;
                return refused!(BUSY, "port {name} is of kind {kind}, which no netmap program can open");
            }
            self.keep(who, &port.name)?;
            return Ok(Reply::done(&port.location, 0, 0));
        }
        if name.vale.is_none() && !name.pipe {
            let base = name.base;
            return refused!(NXIO, "there is no ring port {base:?}; make it: sidecore vale-ctl -n {base}");
        }
        let mut port = ring(&name.base.replace(':', "."), name.base, ask)?;
        port.mtu = ANY_FRAME.parse().ok();
        port.switch = name.vale.map(|(switch, _)| switch.to_owned());
        port.wire = name.vale.is_none().then(|| port.name.clone());
        // The socket belongs to the asker alone, whatever user the daemon runs as.
        port.mode = "0600".parse().ok();
        let (user, group) = who.ids;
        if user != sidecore_engine::sandbox::open::broker::maker() {
            port.owner = format!("{user}:{group}").parse().ok();
        }
        self.add(who, true, &[port.clone()], |_| ())?;
        tracing::info!(event = "configuration", port = %port.name, user, "made for a program");
        Ok(Reply::done(name.base, 0, 0))
    }

    /// Has a ring port's host rings be there: if it has none, some that lead to a TAP of its name.
    fn open_host(&mut self, who: Asker, name: &Name<'_>, ask: &Ask) -> Result<Reply, Refusal> {
        let spec = self.engine.everything();
        let missing = || (Errno::NXIO, format!("there is no ring port {:?}", name.base));
        let port = name.find(&spec).filter(|port| port.kind == "ring").ok_or_else(missing)?;
        let location = format!("{}{HOST}", port.location);
        let (host, tap) = (format!("{}.host", port.name), format!("{}.tap", port.name));
        match ring_at(&spec, &location) {
            Some(there) if !self.is_leased(&there.name) => {}
            Some(_) => [&host, &tap].into_iter().try_for_each(|name| self.keep(who, name))?,
            None => {
                let interface = name.vale.map_or(name.base, |(_, port)| port);
                self.may_host(who, interface)?;
                let ends = [ring(&host, &location, ask)?, plain(&tap, "tap", interface)];
                let ends = ends.map(|end| PortSpec { wire: Some(host.clone()), ..end });
                self.add(who, true, &ends, |_| ())?;
                tracing::info!(port = %port.name, "its host rings lead to interface {interface}");
            }
        }
        Ok(Reply::done(&location, 0, 0))
    }

    /// A program opens a port by the name of another of its switches: it goes there, unless a program has it
    /// open.
    fn move_to(&mut self, who: Asker, at: OnSwitch<'_>) -> Result<(), Refusal> {
        let spec = self.engine.everything();
        let Some(port) = self.row(&spec, at).filter(|row| row.further).map(|row| row.port.clone()) else {
            return Ok(());
        };
        self.may(who, &port.name)?;
        let own = port.switch.unwrap_or_default();
        if self.is_open(&port.name) {
            return refused!(BUSY, "a program has port {} open on switch {own}", port.name);
        }
        self.change(false, &[], |spec| join(spec, &port.name, Some(at.0)))?;
        let others = self.further.entry(port.name).or_default();
        others.retain(|other| other != at.0);
        others.push(own);
        Ok(())
    }

    fn new_if(&mut self, who: Asker, name: &Name<'_>, ask: &Ask) -> Result<Reply, Refusal> {
        if name.vale.is_some() || name.pipe {
            return refused!(INVAL, "{:?}: a port that stays has a plain name", name.base);
        }
        let (wire, mtu) = (Some(name.base.to_owned()), ANY_FRAME.parse().ok());
        self.add(who, false, &[PortSpec { wire, mtu, ..ring(name.base, name.base, ask)? }], |_| ())?;
        tracing::info!(event = "configuration", port = %name.base, user = who.ids.0, "made by a netmap program, to stay");
        Ok(Reply::done(name.base, 0, 0))
    }

    fn del_if(&mut self, who: Asker, name: &Name<'_>) -> Result<Reply, Refusal> {
        let spec = self.engine.everything();
        let name = name.base;
        let Some(port) = spec.ports.iter().find(|port| port.name == name && port.kind == "ring") else {
            return refused!(NXIO, "there is no ring port {name:?}");
        };
        self.may(who, name)?;
        if port.wire.as_deref() != Some(name) {
            let joint = port.joint();
            return refused!(BUSY, "port {name}: it is joined to {joint}; part it first: vale-ctl -d");
        }
        if self.is_leased(name) {
            return refused!(BUSY, "port {name}: it was made on demand and goes with its last user");
        }
        if self.is_open(name) {
            return refused!(BUSY, "port {name}: a program has it open");
        }
        self.remove(name)?;
        tracing::info!(event = "configuration", port = %name, user = who.ids.0, "removed by a netmap program");
        Ok(Reply::done(name, 0, 0))
    }

    /// Removes port `name`, if it is there.
    fn remove(&mut self, name: &str) -> Result<(), Refusal> {
        self.change(false, &[], |spec| spec.ports.retain(|port| port.name != name))?;
        self.made.remove(name);
        Ok(())
    }

    /// Joins a port, or an interface of the host, to a switch; with `host`, the host's own stack, too, by a
    /// TAP.
    fn attach(&mut self, who: Asker, at: OnSwitch<'_>, host: bool) -> Result<Reply, Refusal> {
        let (switch, short) = at;
        let spec = self.engine.everything();
        let found = spec.ports.iter().find(|port| port.name == short).or_else(|| ring_at(&spec, short));
        let is_ring = found.is_some_and(|port| port.kind == "ring");
        if host && !is_ring {
            return refused!(
                OPNOTSUPP,
                "the host's own stack can be attached beside a ring port only, and {short} is none"
            );
        }
        let name = found.map_or(short, |port| &port.name);
        if found.is_some() {
            self.may(who, name)?;
        }
        if host || found.is_none() {
            self.may_host(who, short)?;
        }
        let there =
            |name: &str, kind| PortSpec { switch: Some(switch.to_owned()), ..plain(name, kind, short) };
        match found {
            Some(port) if port.wire.as_deref() == Some(name) => {
                let tap = host.then(|| there(&format!("{name}.tap"), "tap"));
                self.add(who, false, tap.as_slice(), |spec| join(spec, name, Some(switch)))?;
            }
            Some(PortSpec { switch: Some(own), .. }) if is_ring && !host => {
                let leased = self.is_leased(name);
                let others = self.further.entry(name.to_owned()).or_default();
                if leased {
                    return refused!(BUSY, "port {name} was made on demand, for its own switch");
                } else if own == switch || others.iter().any(|other| other == switch) {
                    return refused!(BUSY, "port {name} is attached to switch {switch} already");
                } else if others.len() >= MAX_FURTHER {
                    return refused!(
                        BUSY,
                        "port {name} is attached to {MAX_FURTHER} further switches already"
                    );
                }
                others.push(switch.to_owned());
            }
            Some(port) => {
                return refused!(BUSY, "port {name} is joined to {} already; part it first", port.joint())
            }
            None if Path::new("/sys/class/net").join(short).exists() => {
                self.add(who, false, &[there(short, "packet")], |_| ())?;
            }
            None => return refused!(NXIO, "there is no port and no interface of the host {short:?}"),
        }
        tracing::info!(
            event = "configuration",
            port = short,
            switch,
            user = who.ids.0,
            "attached by a netmap program"
        );
        self.place(at)
    }

    fn detach(&mut self, who: Asker, at: OnSwitch<'_>) -> Result<Reply, Refusal> {
        let (port, further, reply) = self.joined(who, at)?;
        let name = &port.name;
        if further {
            self.further.entry(name.clone()).or_default().retain(|other| other != at.0);
            return Ok(reply);
        }
        if self.is_leased(name) {
            return refused!(BUSY, "port {name} was made on demand and goes with its last user");
        }
        let tap = format!("{name}.tap");
        let tap = self.made.contains_key(&tap).then_some(tap);
        let goes = port.kind == "packet" && self.made.contains_key(name);
        let next = self.further.get(name).and_then(|all| all.last()).cloned();
        self.change(false, &[], |spec| {
            spec.ports.retain(|port| !(goes && port.name == *name || Some(&port.name) == tap.as_ref()));
            join(spec, name, next.as_deref());
        })?;
        self.further.get_mut(name).map(Vec::pop);
        tap.iter().chain(goes.then_some(name)).for_each(|gone| _ = self.made.remove(gone));
        self.polled.remove(name);
        tracing::info!(event = "configuration", port = %name, switch = at.0, user = who.ids.0, "detached by a netmap program");
        Ok(reply)
    }

    /// I/O cores poll every port that is joined to anything, so this only holds what was asked against what
    /// is. `ask`: that it be polled, else that it be polled no more.
    fn poll(&mut self, who: Asker, at: OnSwitch<'_>, ask: Option<&Ask>) -> Result<Reply, Refusal> {
        let (PortSpec { name, .. }, _, reply) = self.joined(who, at)?;
        let Some(ask) = ask else {
            return match self.polled.remove(&name) {
                true => Ok(reply),
                false => refused!(INVAL, "polling of port {name} was not asked for"),
            };
        };
        let Cpus(cpus) = self.engine.spec().daemon.cores.unwrap_or_default();
        let mut wanted = ask.first..ask.first.saturating_add(ask.second.clamp(1, 1024));
        if !matches!(ask.mode, 1 | 2) {
            return refused!(INVAL, "polling mode {} is not possible; allowed: 1, 2", ask.mode);
        }
        if let Some(cpu) = wanted.find(|&cpu| !cpus.iter().any(|&core| u32::try_from(core) == Ok(cpu))) {
            return refused!(
                INVAL,
                "processor {cpu} is no I/O core; those are {cpus:?}, and they poll all ports"
            );
        }
        if !self.polled.insert(name.clone()) {
            return refused!(BUSY, "port {name} is polled already");
        }
        Ok(reply)
    }
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
        let mut left = Vec::new();
        for (name, made) in &mut self.made {
            if made.keepers.as_mut().is_some_and(|all| all.remove(&connection) && all.is_empty()) {
                left.push((name.clone(), made.user));
            }
        }
        for (name, user) in left {
            match self.remove(&name) {
                Ok(()) => tracing::info!(port = %name, user, "its last user has left: it is removed"),
                Err((_, error)) => {
                    tracing::error!(port = %name, user, "its last user has left, but it cannot be removed: {error}")
                }
            }
        }
    }
}
