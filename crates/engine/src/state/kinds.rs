//! The kinds of ports that this build has: one row each. Everything that differs from kind to kind in
//! the control plane stands in its row; a new kind is a new row.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::media::DiskFile;
use super::spec::{name_complaint, PortSpec, GATEWAY, GROUP, ROUTER};
use super::values::{BlockSize, Cache, Fd, List, Mac, Number, Owner, PortMode, Role, Toggle};
use crate::device::e1000::{self, E1000Config, Model, E1000};
use crate::device::pci::PciDevice;
use crate::device::ptnet::{self, PtnetConfig};
use crate::device::rtl8169::{Rtl8169, Rtl8169Config};
use crate::device::virtio_blk::{self, BlkConfig, VirtioBlk};
use crate::device::virtio_net::{self, NetConfig, VirtioNet};
use crate::device::VirtioDevice;
use crate::disk::{self, Disk};
use crate::graph::Scheduler;
use crate::host::netns;
use crate::host::packet::{self, PacketConfig};
use crate::host::passed;
use crate::host::tap::{remove_tap, Tap, TapConfig, TapIn, TapSource};
use crate::host::vxlan::{self, Vxlan, VxlanConfig};
use crate::host::xdp::{self, XdpConfig, XdpMode};
use crate::observe::CounterFile;
use crate::port::{Attachment, Port, PortId, MAX_QUEUES};
use crate::ring::{Geometry, Side};
use crate::router::Gateway;
use crate::sandbox::holder;
use crate::slots::pipe::End;
use crate::transport::ring::{self, HostRingsPort, RingPort, RingPortConfig};
use crate::transport::vfio_user::{Functions, StandIn, Still, VfioUser};
use crate::transport::vhost_user::{Endpoint, JournalAt, VhostUser, VhostUserConfig};
use crate::util::form::{Key, Scope};

/// What stands behind a port, or what could not be done and why.
pub type Started = Result<Box<dyn Attachment>, String>;
/// Makes it.
pub type Start = fn(&PortSpec, &Arc<Port>, Arc<dyn Scheduler>) -> Started;

/// A network card and nothing around it; `None`: it is no such kind.
pub(super) type Card =
    fn(&PortSpec, &Arc<Port>, Arc<dyn Scheduler>) -> Option<io::Result<Box<dyn PciDevice>>>;

/// What was started, or why not, in words.
fn started<A: Attachment + 'static>(started: Result<A, impl std::fmt::Display>) -> Started {
    started.map(|attachment| Box::new(attachment) as _).map_err(|e| e.to_string())
}

/// One kind of port.
pub struct Kind {
    /// The word before the colon.
    pub name: &'static str,
    /// What the words after the colon are.
    pub location: Location,
    /// The options that it knows beyond those of every port, with blanks between them.
    pub keys: &'static str,
    /// Whether its ports carry frames, and so are joined to something.
    pub frames: bool,
    /// The words that `features-off` may name.
    pub features: fn() -> Vec<String>,
    /// Makes it.
    pub start: Start,
    /// The network card that its VMM sees, if it is one that a holder can stand in for.
    pub(super) card: Card,
    /// Where the holder is found that keeps its VMM's connection, if it has one.
    pub holder: fn(&PortSpec) -> Option<PathBuf>,
    /// Removes what it left for the next daemon: the port was deleted.
    pub forget: fn(&PortSpec),
    /// What stands behind the path of its second socket, if it has one.
    pub second: Option<&'static str>,
}

impl Kind {
    /// Whether it knows this option.
    pub fn knows(&self, key: &Key) -> bool {
        match key.scope {
            Scope::Must | Scope::Any | Scope::Paid => true,
            Scope::Frames | Scope::Queues | Scope::Learning => self.frames,
            Scope::Kind => self.names(key.name),
        }
    }

    /// The paths or names that a port of this kind has.
    pub fn locations(&self, spec: &PortSpec) -> Vec<String> {
        if let Some(netns) = &spec.netns {
            return vec![netns::path(netns).join(&spec.location).to_string_lossy().into_owned()];
        }
        if let (Location::Address, Some(vni)) = (self.location, spec.vni) {
            return vec![format!("{}, VNI {vni}", spec.location)];
        }
        let second = self.second.map(|end| format!("{}{end}", spec.location));
        std::iter::once(spec.location.clone()).chain(second).collect()
    }

    /// Has the paths of `spec` that are relative lead from the folder `at`: their author was there, and the
    /// daemon is not.
    pub fn root(&self, spec: &mut PortSpec, at: &Path) {
        let is_path = self.location == Location::Socket
            || self.location == Location::Ring && spec.location.contains('/');
        if is_path && !spec.location.is_empty() && spec.fd.is_none() {
            // A path on the command line is text; so is what it is joined to, as far as it can be shown.
            spec.location = at.join(&spec.location).to_string_lossy().into_owned();
        }
        if let Some(path) = spec.file.as_ref().and_then(DiskFile::path) {
            spec.file = Some(DiskFile::Path(at.join(path)));
        }
        if let Some(journal) = spec.journal.as_mut().filter(|path| path.as_os_str() != "none") {
            *journal = at.join(&*journal);
        }
    }

    /// Whether its row names `key`.
    pub fn names(&self, key: &str) -> bool {
        self.keys.split(' ').any(|named| named == key)
    }

    /// What to say of `key`, which it does not know: that of other kinds, or a misspelt one.
    pub fn not_known(&self, key: &str) -> String {
        let known: Vec<_> = PortSpec::KEYS.iter().filter(|key| self.knows(key)).map(|key| key.name).collect();
        let why = match PortSpec::KEYS.iter().any(|other| other.name == key) {
            true => format!("does not apply to kind {}", self.name),
            false => match nearest(key, &known) {
                Some(near) => format!("no such key; did you mean `{near}`?"),
                None => "no such key".to_owned(),
            },
        };
        format!("{why}; allowed: {}", known.join(", ")).replace("?;", "?")
    }
}

/// Which of `words` may be meant by `word`: one letter in three may be wrong.
fn nearest<'w>(word: &str, words: &[&'w str]) -> Option<&'w str> {
    let near = |other: &&'w str| (strsim::osa_distance(word, other), *other);
    let (edits, other) = words.iter().map(near).min_by_key(|(edits, _)| *edits)?;
    (edits <= word.len().div_ceil(3)).then_some(other)
}

/// What the `where` of a kind is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// The path of a Unix socket.
    Socket,
    /// The name of a network interface.
    Interface,
    /// The name by which native programs ask for a ring port, or the path of its socket.
    Ring,
    /// An address of the host, with a port or without.
    Address,
    /// The name of a switch.
    Switch,
    /// The name of a group.
    Group,
    /// The name of a router.
    Router,
}

/// Longest path of a Unix socket in bytes: `sun_path` holds 108 with the closing zero (unix(7)).
pub const MAX_SOCKET_PATH: usize = 107;
/// Longest name of a ring port in bytes: netmap's names have 64 with the closing zero.
pub const MAX_RING: usize = 63;
/// Longest name of an interface in bytes: `IFNAMSIZ` less the closing zero (netdevice(7)).
pub const MAX_INTERFACE: usize = 15;

impl Location {
    /// Why `text` cannot be one, if it cannot.
    pub fn complaint(self, text: &str) -> Option<String> {
        match self {
            Location::Socket if text.is_empty() => Some("a socket needs a path".to_owned()),
            Location::Socket if text.len() > MAX_SOCKET_PATH => Some(format!(
                "the path is {} bytes long; a socket's path may have {MAX_SOCKET_PATH}",
                text.len()
            )),
            Location::Interface
                if text.is_empty()
                    || text.len() > MAX_INTERFACE
                    || text.bytes().any(|b| b == b'/' || !b.is_ascii_graphic()) =>
            {
                Some(format!("{text:?} is no interface name; allowed: 1 to {MAX_INTERFACE} letters, digits or marks without '/'"))
            }
            Location::Address => vxlan::address(text).err(),
            Location::Switch | Location::Group | Location::Router => name_complaint(text),
            Location::Ring if text.contains('/') => Location::Socket.complaint(text),
            Location::Ring
                if text.is_empty()
                    || text.len() > MAX_RING
                    || text.starts_with('.')
                    || text.bytes().any(|b| !b.is_ascii_graphic()) =>
            {
                Some(format!("{text:?} is no ring port's name; allowed: 1 to {MAX_RING} letters, digits or marks, the first no '.', or a path"))
            }
            _ => None,
        }
    }
}

/// A kind that has no options, and leaves nothing behind.
pub(super) const PLAIN: Kind = Kind {
    name: "",
    location: Location::Interface,
    keys: "",
    frames: true,
    features: Vec::new,
    start: |_, _, _| Err("there is no such kind".to_owned()),
    card: |_, _, _| None,
    holder: |_| None,
    forget: |_| (),
    second: None,
};

/// The kind of tunnels.
pub(super) const VXLAN: &str = "vxlan";

/// The kinds that this build has.
pub const KINDS: &[Kind] = &[
    Kind {
        name: "vhost-user",
        location: Location::Socket,
        keys: "role mode owner queues features-off mac moderation queue journal memory-file prefault call-socket fd",
        features: || virtio_net::features::names(u64::MAX),
        start: start_vhost_user,
        forget: forget_vhost_user,
        ..PLAIN
    },
    Kind {
        name: "blk",
        location: Location::Socket,
        keys: "file readonly cache queues serial block-size role mode owner features-off journal memory-file prefault call-socket fd",
        frames: false,
        features: virtio_blk::feature_names,
        start: start_blk,
        forget: forget_vhost_user,
        ..PLAIN
    },
    Kind {
        name: "tap",
        location: Location::Interface,
        keys: "queues fd netns control-of",
        start: start_tap,
        forget: forget_tap,
        ..PLAIN
    },
    Kind { name: "packet", location: Location::Interface, keys: "queues", start: start_packet, ..PLAIN },
    Kind {
        name: VXLAN,
        location: Location::Address,
        keys: "vni peers ttl dscp",
        start: start_vxlan,
        ..PLAIN
    },
    Kind { name: "xdp", location: Location::Interface, keys: "queues mode", start: start_xdp, ..PLAIN },
    Kind {
        name: "e1000",
        location: Location::Socket,
        keys: "mode owner features-off mac moderation queue receive-share csb memory-file prefault fd",
        features: || [e1000::EXITLESS, e1000::PCIX].map(str::to_owned).to_vec(),
        start: start_card,
        card: |spec, port, scheduler| Some(e1000(Model::E1000, spec, port, scheduler)),
        holder: holder_beside,
        ..PLAIN
    },
    Kind {
        name: "e1000e",
        location: Location::Socket,
        keys: "mode owner features-off mac moderation queue receive-share memory-file prefault fd",
        features: || [e1000::EXITLESS, e1000::MSIX].map(str::to_owned).to_vec(),
        start: start_card,
        card: |spec, port, scheduler| Some(e1000(Model::E1000e, spec, port, scheduler)),
        holder: holder_beside,
        ..PLAIN
    },
    Kind {
        name: "rtl8169",
        location: Location::Socket,
        keys: "mode owner mac moderation queue csb memory-file prefault fd",
        start: start_card,
        card: |spec, port, scheduler| Some(rtl8169(spec, port, scheduler)),
        holder: holder_beside,
        ..PLAIN
    },
    Kind {
        name: "ptnet",
        location: Location::Socket,
        keys: "mode owner queues slots buf-size features-off mac moderation queue memory-file prefault pipe",
        features: || vec![ptnet::VNET_HDR.to_owned()],
        start: start_ptnet,
        holder: holder_beside,
        second: Some(MEMORY_SOCKET),
        ..PLAIN
    },
    Kind {
        name: "ring",
        location: Location::Ring,
        keys: "mode owner queues slots buf-size extra-bufs queue pipes memory header pipe",
        start: start_ring,
        ..PLAIN
    },
    Kind { name: GATEWAY, location: Location::Switch, start: start_gateway, ..PLAIN },
    Kind { name: GROUP, location: Location::Group, keys: "mac", start: start_interface, ..PLAIN },
    Kind { name: ROUTER, location: Location::Router, start: start_member, ..PLAIN },
];

/// `switch:NAME`: a router's port on that switch.
fn start_gateway(spec: &PortSpec, port: &Arc<Port>, _: Arc<dyn Scheduler>) -> Started {
    Ok(Box::new(Gateway::open(port, format!("stands on switch {}", spec.location))))
}

/// `group:NAME`: an interface of that group.
fn start_interface(spec: &PortSpec, port: &Arc<Port>, _: Arc<dyn Scheduler>) -> Started {
    Ok(Box::new(Gateway::open(port, format!("is an interface of group {}", spec.location))))
}

/// `router:NAME`: that router's port behind a group's interface.
fn start_member(spec: &PortSpec, port: &Arc<Port>, _: Arc<dyn Scheduler>) -> Started {
    let group = spec.group.as_deref().unwrap_or_default();
    Ok(Box::new(Gateway::open(port, format!("is router {}'s in group {group}", spec.location))))
}

/// `vhost-user:PATH`: virtio-net on a socket that we make, that the VMM makes, or that was passed.
fn start_vhost_user(spec: &PortSpec, port: &Arc<Port>, scheduler: Arc<dyn Scheduler>) -> Started {
    let config = NetConfig {
        // Left open, the VMM decides: it uses as many as it wants.
        queue_pairs: spec.queues.map_or(MAX_QUEUES, |queues| queues.get() as usize),
        features_off: spec.features_off.as_ref().map_or_else(Vec::new, |words| words.0.clone()),
        mac: spec.mac.map(|mac| mac.0),
        moderation: gap(spec, Duration::ZERO),
    };
    let device = VirtioNet::new(&config, Arc::clone(port), scheduler)?;
    speak_vhost_user(spec, port, device)
}

/// `blk:PATH`: virtio-blk on such a socket.
fn start_blk(spec: &PortSpec, port: &Arc<Port>, scheduler: Arc<dyn Scheduler>) -> Started {
    let read_only = spec.readonly == Some(Toggle::On);
    let block_size = match spec.block_size {
        Some(BlockSize::Page) => 4096,
        Some(BlockSize::Sector) | None => 512,
    };
    let disk = match spec.file.as_ref().ok_or("file: it has to be given")? {
        DiskFile::Ram(bytes) => Disk::ram(*bytes, block_size, read_only)
            .map_err(|e| format!("file: there is no memory for a disk of {bytes} bytes: {e}"))?,
        DiskFile::Null(bytes) => Disk::null(*bytes, block_size, read_only),
        DiskFile::Path(path) => Disk::file(path, block_size, read_only)
            .map_err(|e| format!("cannot use the disk \"{}\": {e}", path.display()))?,
    };
    let config = BlkConfig {
        queues: spec.queues.map_or(disk::MAX_QUEUES, |queues| queues.get() as usize),
        writeback: spec.cache != Some(Cache::Writethrough),
        serial: spec.serial.clone().unwrap_or_else(|| spec.name.clone()),
        features_off: spec.features_off.as_ref().map_or_else(Vec::new, |words| words.0.clone()),
    };
    let device = VirtioBlk::new(&config, Arc::new(disk), Arc::clone(port), scheduler)?;
    speak_vhost_user(spec, port, device)
}

/// Puts `device` on the socket of `spec`.
fn speak_vhost_user<D: VirtioDevice + 'static>(spec: &PortSpec, port: &Port, device: D) -> Started {
    let endpoint = endpoint(spec)?;
    set_terms(spec, port);
    port.terms.set_call_sockets(spec.call_socket == Some(Toggle::On));
    let journal = match &spec.journal {
        Some(path) if path.as_os_str() == "none" => None,
        Some(path) => Some(JournalAt::Path(path.clone())),
        None if spec.fd.is_some() => None,
        None => Some(JournalAt::Ours),
    };
    started(VhostUser::start(VhostUserConfig { endpoint, journal }, device))
}

/// Its journal goes, unless the operator chose where it is.
fn forget_vhost_user(spec: &PortSpec) {
    if spec.journal.is_none() && spec.fd.is_none() {
        crate::sandbox::open::forget_journal(&spec.name);
    }
}

/// Sets the terms on which the VMM gives its memory.
fn set_terms(spec: &PortSpec, port: &Port) {
    port.terms.set_files(spec.memory_file.unwrap_or_default());
    port.terms.set_prefault(spec.prefault == Some(Toggle::On));
}

/// The socket that `spec` describes.
fn endpoint(spec: &PortSpec) -> Result<Endpoint, String> {
    let path = PathBuf::from(&spec.location);
    let (whose, endpoint) = match (&spec.fd, spec.role) {
        (Some(_), Some(_)) => return Err("role does not apply to a socket that was passed".to_owned()),
        (Some(List(numbers)), None) => match numbers.as_slice() {
            [number] => ("a socket that was passed", Endpoint::Opened(take(*number)?)),
            _ => return Err("fd: one socket is needed, not several".to_owned()),
        },
        (None, Some(Role::Client)) => ("a socket that the VMM makes", Endpoint::Connect { path }),
        (None, _) => {
            let owner = spec.owner.as_ref().map_or(Ok((None, None)), Owner::ids)?;
            return Ok(Endpoint::Listen { path, mode: spec.mode.and_then(PortMode::bits), owner });
        }
    };
    match spec.mode.is_some() || spec.owner.is_some() {
        true => Err(format!("mode and owner do not apply to {whose}")),
        false => Ok(endpoint),
    }
}

/// A socket that was passed has no location beside which a holder could be found.
fn holder_beside(spec: &PortSpec) -> Option<PathBuf> {
    spec.fd.is_none().then(|| holder::path_beside(Path::new(&spec.location))).flatten()
}

/// Whether `features-off` has `name`.
fn is_off(spec: &PortSpec, name: &str) -> bool {
    spec.features_off.as_ref().is_some_and(|words| words.0.iter().any(|word| word == name))
}

/// The address of an emulated NIC.
fn mac(spec: &PortSpec, port: &Port) -> crate::packet::Mac {
    spec.mac.map_or_else(|| e1000::usual_mac(&port.name), |mac| crate::packet::Mac(mac.0))
}

/// The least time between two of its interrupts.
fn gap(spec: &PortSpec, default: Duration) -> Duration {
    spec.moderation.map_or(default, |gap| Duration::from_micros(gap.get().into()))
}

/// What a holder is told of the port whose VMM's connection it keeps: what a card is made of, and no more,
/// since a record to the broker is short.
#[derive(Serialize, Deserialize)]
pub struct HeldPort {
    /// The port. Its address is resolved, since a holder reads no file of the host's.
    pub port: PortSpec,
    /// The number of the port.
    id: u16,
    /// The longest packet that the port takes, in bytes.
    mtu: u32,
    /// Whether the VMM is at the port's second socket.
    second: bool,
    /// Whether the port, if it is at a pipe, is the pipe's second end.
    second_end: bool,
}

/// Puts `device` on the vfio-user socket of `spec`, its `second` one or the first.
fn speak_vfio_user(
    spec: &PortSpec,
    port: &Arc<Port>,
    device: Box<dyn PciDevice>,
    (second, end): (bool, Option<&End>),
) -> Result<VfioUser, String> {
    set_terms(spec, port);
    let endpoint = endpoint(spec)?;
    let PortSpec { name, kind, location, csb, moderation, receive_share, memory_file, .. } = spec.clone();
    let PortSpec { features_off, queues, slots, buf_size, pipe, .. } = spec.clone();
    let of = PortSpec {
        name,
        kind,
        location,
        csb,
        moderation,
        receive_share,
        memory_file,
        features_off,
        queues,
        slots,
        buf_size,
        pipe,
        mac: Some(Mac(mac(spec, port).0)),
        ..PortSpec::default()
    };
    let second_end = end.is_some_and(|end| end.side() == Side::Second);
    let of = HeldPort { port: of, id: port.id.0, mtu: port.mtu(), second, second_end };
    let hold = holder_beside(spec).map(|path| Ok((path, serde_json::to_string(&of)?)));
    let hold = hold.transpose().map_err(|e: serde_json::Error| e.to_string())?;
    VfioUser::start(endpoint, Arc::clone(port), device, hold).map_err(|e| e.to_string())
}

/// `e1000:PATH`, `e1000e:PATH`, `rtl8169:PATH`: a card on a vfio-user socket.
fn start_card(spec: &PortSpec, port: &Arc<Port>, scheduler: Arc<dyn Scheduler>) -> Started {
    let card = (find(KINDS, &spec.kind)?.card)(spec, port, scheduler).ok_or("it is no card")?;
    started(speak_vfio_user(spec, port, card.map_err(|e| e.to_string())?, (false, None)))
}

/// Who stands in for the daemon at the port `of` (JSON), in the process of its holder. `None`: the port has
/// no card that a holder can answer for.
pub fn stand_in(of: &str) -> Option<Box<dyn holder::StandIn>> {
    let HeldPort { port: spec, id, mtu, second, second_end } = serde_json::from_str(of).ok()?;
    let counters = CounterFile::anonymous().ok()?.open_slot(PortId(0), &spec.name);
    let port = Arc::new(Port::new(PortId(id), &spec.name, counters, mtu).ok()?);
    set_terms(&spec, &port);
    let kind = find(KINDS, &spec.kind).ok()?;
    let card = if kind.second.is_some() {
        let end = if second_end { Side::Second } else { Side::First };
        let config = ptnet_config(&spec, &port).ok()?;
        ptnet::function_alone(config, &port, Arc::new(Still), second.then_some(end))
    } else {
        (kind.card)(&spec, &port, Arc::new(Still))?
    };
    Some(Box::new(StandIn::new(port, card.ok()?)))
}

/// An Intel NIC.
fn e1000(
    model: Model,
    spec: &PortSpec,
    port: &Arc<Port>,
    scheduler: Arc<dyn Scheduler>,
) -> io::Result<Box<dyn PciDevice>> {
    let default = E1000Config::new(model, mac(spec, port));
    let config = E1000Config {
        exitless: !is_off(spec, e1000::EXITLESS),
        pcix: !is_off(spec, e1000::PCIX),
        msix: !is_off(spec, e1000::MSIX),
        csb: spec.csb == Some(Toggle::On),
        receive_share: spec.receive_share.map_or(default.receive_share, Number::get),
        moderation: gap(spec, default.moderation),
        ..default
    };
    Ok(Box::new(E1000::new(config, Arc::clone(port), scheduler)?))
}

/// A Realtek NIC.
fn rtl8169(
    spec: &PortSpec,
    port: &Arc<Port>,
    scheduler: Arc<dyn Scheduler>,
) -> io::Result<Box<dyn PciDevice>> {
    let default = Rtl8169Config::new(mac(spec, port));
    let (moderation, csb) = (gap(spec, default.moderation), spec.csb == Some(Toggle::On));
    let config = Rtl8169Config { moderation, csb, ..default };
    Ok(Box::new(Rtl8169::new(config, Arc::clone(port), scheduler)?))
}

/// What stands behind the path of a ptnet port where its memory device is.
pub const MEMORY_SOCKET: &str = ".mem";

/// What can be chosen about a ptnet device, as `spec` has it.
fn ptnet_config(spec: &PortSpec, port: &Port) -> Result<PtnetConfig, String> {
    let default = PtnetConfig::new(mac(spec, port));
    let mut config = PtnetConfig {
        pairs: spec.queues.map_or(default.pairs, |queues| queues.get() as usize),
        slots: spec.slots.map_or(default.slots, |slots| slots.get()),
        buf_size: spec.buf_size.map_or(default.buf_size, |size| size.get()),
        header: !is_off(spec, ptnet::VNET_HDR),
        moderation: gap(spec, default.moderation),
        ..default
    };
    if config.pairs > ptnet::MAX_PAIRS {
        let (asked, most) = (config.pairs, ptnet::MAX_PAIRS);
        return Err(format!("queues={asked} is not possible; of kind ptnet allowed: 1 to {most}"));
    }
    if let Some(name) = &spec.pipe {
        let end = End::join(name, &config.geometry().of_pipe(), false);
        config.pipe = Some(end.map_err(|e| format!("pipe: {e}"))?);
    }
    Ok(config)
}

/// `ptnet:PATH`: netmap's rings as a guest's NIC, on a vfio-user socket for each of its two functions.
fn start_ptnet(spec: &PortSpec, port: &Arc<Port>, scheduler: Arc<dyn Scheduler>) -> Started {
    let config = ptnet_config(spec, port)?;
    let end = config.pipe.clone();
    let functions = ptnet::functions(config, port, scheduler);
    let (nic, memory, beside) = functions.map_err(|e| e.to_string())?;
    let second = PortSpec { location: format!("{}{MEMORY_SOCKET}", spec.location), ..spec.clone() };
    // The NIC first: with it comes the memory that both have.
    let nic = speak_vfio_user(spec, port, Box::new(nic), (false, end.as_deref()))?;
    let memory = speak_vfio_user(&second, &beside, Box::new(memory), (true, end.as_deref()))?;
    Ok(Box::new(Functions { nic, memory }))
}

/// A duplicate of the daemon's descriptor `number`.
fn take(number: Fd) -> Result<OwnedFd, String> {
    passed(i32::try_from(number.get()).unwrap_or(-1))
        .map_err(|e| format!("fd={number}: the daemon has no such descriptor: {e}"))
}

/// `tap:IFNAME`: made, adopted, or passed as descriptors.
fn start_tap(spec: &PortSpec, port: &Arc<Port>, scheduler: Arc<dyn Scheduler>) -> Started {
    let queues = spec.queues.map(|queues| queues.get() as usize);
    let (source, queues) = match (&spec.fd, &spec.netns) {
        (Some(_), Some(_)) => return Err("netns does not apply to descriptors that were passed".to_owned()),
        (None, Some(_)) if queues.is_some_and(|queues| queues != 1) => {
            return Err("queues: an interface in another namespace has one".to_owned());
        }
        (None, Some(namespace)) => {
            let (netns, name) = (netns::path(namespace), spec.location.clone());
            let (mac, stays) = (spec.router_mac.map(|mac| mac.0), spec.control_of.is_some());
            (TapSource::Inside(TapIn { netns, name, mac, mtu: port.mtu(), stays }), 1)
        }
        (None, None) => (TapSource::Name(spec.location.clone()), queues.unwrap_or(1)),
        (Some(List(numbers)), None) => {
            let fds = numbers.iter().map(|&number| take(number)).collect::<Result<Vec<_>, _>>()?;
            (TapSource::Fds(fds), queues.unwrap_or(numbers.len()))
        }
    };
    let config = TapConfig { source, queues, mtu: spec.mtu.map(|mtu| mtu.get()) };
    let tap = Tap::start(config, Arc::clone(port), scheduler)?;
    if tap.name != spec.location {
        return Err(format!("the passed descriptors belong to {}, not to {}", tap.name, spec.location));
    }
    Ok(Box::new(tap))
}

/// One that stands for a router's port stays when the daemon ends, and goes with its port.
fn forget_tap(spec: &PortSpec) {
    let (Some(namespace), true) = (&spec.netns, spec.control_of.is_some()) else { return };
    let netns = netns::path(namespace);
    // With its namespace it has gone already.
    if let Err(e) =
        remove_tap(&netns, &spec.location).or_else(|e| if netns.exists() { Err(e) } else { Ok(()) })
    {
        tracing::warn!(port = %spec.name, "the interface {} stays in its namespace: {e}", spec.location);
    }
}

/// `packet:IFNAME`: an interface that the host has, by AF_PACKET.
fn start_packet(spec: &PortSpec, port: &Arc<Port>, scheduler: Arc<dyn Scheduler>) -> Started {
    let config = PacketConfig {
        interface: spec.location.clone(),
        queues: spec.queues.map_or(1, |queues| queues.get() as usize),
        mtu: spec.mtu.map(|mtu| mtu.get()),
    };
    started(packet::start(&config, Arc::clone(port), scheduler))
}

/// `vxlan:ADDRESS[:PORT]`: a tunnel to other hosts.
fn start_vxlan(spec: &PortSpec, port: &Arc<Port>, scheduler: Arc<dyn Scheduler>) -> Started {
    let config = VxlanConfig {
        at: vxlan::address(&spec.location)?,
        vni: spec.vni.map(Number::get).ok_or("vni: it has to be given")?,
        peers: spec.peers.as_ref().map(|peers| peers.0.clone()),
        ttl: spec.ttl.map_or(64, |ttl| u8::try_from(ttl.get()).unwrap_or(u8::MAX)),
        dscp: spec.dscp.map_or(0, |dscp| u8::try_from(dscp.get()).unwrap_or(0)),
    };
    started(Vxlan::start(config, port, &scheduler))
}

/// `xdp:IFNAME`: an interface that the host has, by AF_XDP.
fn start_xdp(spec: &PortSpec, port: &Arc<Port>, scheduler: Arc<dyn Scheduler>) -> Started {
    let config = XdpConfig {
        interface: spec.location.clone(),
        queues: spec.queues.map(|queues| queues.get() as usize),
        mtu: spec.mtu.map(|mtu| mtu.get()),
        mode: match spec.mode {
            Some(PortMode::Xdp(mode)) => mode,
            _ => XdpMode::Auto,
        },
    };
    started(xdp::start(&config, Arc::clone(port), scheduler))
}

/// `ring:NAME^`: the host rings of the ring port NAME.
fn start_host_rings(
    spec: &PortSpec,
    base: &str,
    rings: usize,
    port: &Arc<Port>,
    scheduler: Arc<dyn Scheduler>,
) -> Started {
    if let Some(key) = spec.given().find(|key| key.scope == Scope::Kind && key.name != "queues") {
        return Err(format!("{} does not apply to host rings: they are as those of ring:{base}", key.name));
    }
    let path = ring::socket_path(base)?;
    started(HostRingsPort::start(&path, rings, Arc::clone(port), scheduler))
}

/// `ring:NAME`: rings in netmap's format for a native program.
fn start_ring(spec: &PortSpec, port: &Arc<Port>, scheduler: Arc<dyn Scheduler>) -> Started {
    let default = Geometry::default();
    let rings = spec.queues.map_or(default.rings, |queues| queues.get() as usize);
    if let Some(base) = spec.location.strip_suffix(ring::HOST) {
        return start_host_rings(spec, base, rings, port, scheduler);
    }
    if let Some(why) = spec.memory.as_deref().and_then(name_complaint) {
        return Err(format!("memory: {why}"));
    }
    let path = ring::socket_path(&spec.location)?;
    let config = RingPortConfig {
        mode: spec.mode.and_then(PortMode::bits),
        owner: spec.owner.as_ref().map_or(Ok((None, None)), Owner::ids)?,
        geometry: Geometry {
            rings,
            slots: spec.slots.map_or(default.slots, |slots| slots.get()),
            buf_size: spec.buf_size.map_or(default.buf_size, |bytes| bytes.get()),
            extra_bufs: spec.extra_bufs.map_or(default.extra_bufs, |bufs| bufs.get()),
            pipes: spec.pipes.map_or(default.pipes, |pipes| pipes.get() as usize),
            ..default
        },
        extra_limit: spec.extra_bufs.map_or(ring::EXTRA_LIMIT, |bufs| bufs.get()),
        memory: spec.memory.clone(),
        pipe: spec.pipe.clone(),
        header: spec.header.map_or(0, |bytes| bytes.get()),
        path,
    };
    started(RingPort::start(config, Arc::clone(port), scheduler))
}

/// The row of `name`, or an error that names the kinds there are.
pub fn find<'k>(kinds: &'k [Kind], name: &str) -> Result<&'k Kind, String> {
    kinds.iter().find(|kind| kind.name == name).ok_or_else(|| {
        let names: Vec<_> = kinds.iter().map(|kind| kind.name).collect();
        format!("{name:?} is not a kind that this build has; allowed: {}", names.join(", "))
    })
}
