//! What the operator asks for. These types are the only description of the configuration: the TOML
//! file, the JSON of the control socket and the words of the command line are all read into them.

use std::any::Any;
use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::Serialize;

use super::acl::AclSpec;
use super::grants::{Bits, Budget, Cpus, Frames, TenantSpec};
use super::grouping::GroupSpec;
use super::media::DiskFile;
use super::routes::RouterSpec;
use super::values::{
    BlockSize, Cache, Control, Directions, Fds, Gateways, Link, LogFormat, Mac, MacMove, Macs, Mode,
    NameList, Nets, Number, Owner, PortMode, Role, Sandbox, Source, Sources, Toggle, VlanNumber, VlanRanges,
};
use crate::core::Class;
use crate::mem::Files;
use crate::policy::acl::Acl;
use crate::policy::{
    EgressRate, IpGuard, MacGuard, Mirror, Policy, PortVlans, SourceGuard, Storm, StormLimits, TagProtocol,
};
use crate::port::PortId;
use crate::router::{Net, Rpf};
use crate::util::form::{options, view, Key, Scope, Value};

/// Longest name of ports, switches and wires in bytes: the counters file has room for no more.
pub const MAX_NAME: usize = sidecore_abi::counters::MAX_NAME;

/// Why `name` cannot be a name, if it cannot. Names stand in paths, in option lists and in labels of
/// metrics, so they have none of the marks that mean something there.
pub fn name_complaint(name: &str) -> Option<String> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let fits =
        (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(plain) && !name.starts_with(['.', '-']);
    (!fits).then(|| {
        format!(
            "{name:?} is no name; allowed: 1 to {MAX_NAME} letters, digits, '.', '_' and '-', \
             the first not '.' or '-'"
        )
    })
}

/// The kind of a router's port on a switch.
pub(super) const GATEWAY: &str = "switch";

/// The kind of a group's interface.
pub(super) const GROUP: &str = "group";

/// The kind of a router's port behind a group's interface.
pub(super) const ROUTER: &str = "router";

/// Kinds of ports between two nodes. They have no queues, and one node may have several of them.
pub(super) const INSIDE: [&str; 3] = [GATEWAY, GROUP, ROUTER];

/// The switch that ports join unless they say otherwise. It always exists.
pub const DEFAULT_SWITCH: &str = "lan";

/// Makes of a table of the sorts of parts the configuration, and each sort an [`Entry`]: its list, its type,
/// what it is called, and why that of a name cannot be deleted.
macro_rules! parts {
    ($($(#[doc = $doc:literal])+ $list:ident: $part:ident = $what:literal, held: $held:expr;)+) => {
        view! {
            /// The configuration, as in the TOML file.
            #[derive(Default)]
            #[serde(deny_unknown_fields)]
            Spec {
                /// What can only be chosen at the start.
                daemon*: DaemonSpec,
                $($(#[doc = $doc])+ $list as $what *: Vec<$part>,)+
            }
        }

        impl Spec {
            fn sort(&mut self) {
                $(self.$list.sort_by(|a, b| a.name.cmp(&b.name));)+
            }
        }

        $(impl Entry for $part {
            const WHAT: &'static str = $what;

            fn name(&self) -> &str {
                &self.name
            }

            fn list(spec: &mut Spec) -> &mut Vec<$part> {
                &mut spec.$list
            }

            fn held(spec: &Spec, name: &str) -> Option<String> {
                let held: fn(&Spec, &str) -> Option<String> = $held;
                held(spec, name)
            }
        })+
    };
}

parts! {
    /// Switches. The switch `lan` always exists and may be listed to give it options.
    switches: SwitchSpec = "switch", held: |spec, name| match name {
        DEFAULT_SWITCH => Some("ports join it unless they say otherwise".to_owned()),
        _ => spec.held_by("is joined to it", |port| {
            port.joint() == Joint::Switch(name) || port.gateway_on() == Some(name)
        }),
    };
    /// Routers.
    routers: RouterSpec = "router", held: |spec, name| {
        spec.held_by("is on it", |port| port.router_name() == Some(name))
    };
    /// Tenants.
    tenants: TenantSpec = "tenant", held: |spec, name| {
        let ports = spec.paid_by(name);
        (!ports.is_empty()).then(|| format!("it pays for {}", ports.join(", ")))
    };
    /// Groups.
    groups: GroupSpec = "group", held: |spec, name| spec.held_by("is of it", |port| {
        port.group.as_deref() == Some(name) || port.group_interface() == Some(name)
    });
    /// Access lists.
    acls: AclSpec = "acl", held: |spec, name| spec.held_by("has it", |port| {
        [&port.acl_in, &port.acl_out, &port.mirror_acl].iter().any(|list| list.as_deref() == Some(name))
    });
    /// Ports.
    ports: PortSpec = "port", held: |spec, name| {
        let of = spec.ports.iter().find(|port| port.mirror.as_deref() == Some(name));
        of.map(|port| format!("it is the mirror of port {}", port.name))
    };
}

options! {
    /// What can only be chosen at the start. A value that differs from the one in use is refused.
    DaemonSpec {
        must {}
        may {
            /// Processors for the I/O cores.
            cores: Cpus = "cores", Any, "the last one that the process may use";
            /// Active I/O cores at the start, and the least number of them; with `balance` more become active
            /// while these are full.
            least_cores: Number<1, 16> = "least-cores", Any, "all of `cores`";
            /// Whether queues move between I/O cores, and how many of these are active, by their load.
            balance: Toggle = "balance", Any, "`on`";
            /// Microseconds for which a core polls without finding anything before it sleeps; 0: it sleeps at
            /// once.
            spin: Number<0, 1_000_000> = "spin", Any, "50";
            /// Path of the control socket.
            socket: PathBuf = "socket", Any,
                "`$SIDECORE_SOCKET`, else `/run/sidecore/control.sock`, for others than root `$XDG_RUNTIME_DIR/sidecore/control.sock`";
            /// Permission bits of the control socket, octal.
            socket_mode: Mode = "socket-mode", Any, "`0660`";
            /// Owner of the control socket: `USER`, `USER:GROUP` or `:GROUP`.
            socket_owner: Owner = "socket-owner", Any, "the user that starts the daemon";
            /// Path of a second control socket, which only shows what is so, and `/metrics`.
            read_socket: PathBuf = "read-socket", Any, "none";
            /// Permission bits of the read socket, octal.
            read_socket_mode: Mode = "read-socket-mode", Any, "`0660`";
            /// Owner of the read socket.
            read_socket_owner: Owner = "read-socket-owner", Any, "the user that starts the daemon";
            /// How lines of the log are written.
            log_format: LogFormat = "log-format", Any, "`text`";
            /// Path of the counters file.
            counters: PathBuf = "counters", Any, "the control socket's with the ending `.counters`";
            /// Largest number of ring ports that netmap programs may make on demand; 0: none.
            vale_ports: Number<0, 1000> = "vale-ports", Any, "64";
            /// Permission bits of the socket at which netmap programs ask for ports, octal.
            vale_mode: Mode = "vale-mode", Any, "`0600`";
            /// Owner of the socket at which netmap programs ask for ports.
            vale_owner: Owner = "vale-owner", Any, "the user that starts the daemon";
            /// Whether the daemon gives up rights that it does not need; `warn`: the kernel only logs what it
            /// would refuse.
            sandbox: Sandbox = "sandbox", Any, "`on`, as far as this system has it";
            /// User that the daemon becomes if root starts it, unless the sandbox is `off` or `warn`.
            user: String = "user", Any, "`sidecore` if there is that user, else `nobody`";
        }
    }
}

options! {
    /// One switch.
    SwitchSpec {
        must {
            /// Its name: 1 to 63 letters, digits, `.`, `_` and `-`.
            name: String = "name";
        }
        may {
            /// Seconds after which a silent address is forgotten.
            ageing: Number<1, 86400> = "ageing", Any, "300";
            /// Addresses that it can remember, rounded up to a power of two of 4096 at least.
            table_size: Number<64, 1_048_576> = "table-size", Any, "8192";
            /// Whether frames for reserved group addresses pass: LLDP, LACP, 802.1X and PAUSE (802.1Q table
            /// 8-1).
            control_frames: Control = "control-frames", Any, "`drop`";
            /// What becomes of an address that comes in by another port than before: with `claim` both ports
            /// get its frames until it is clear where it is, with `learn` it has moved (802.1Q §8.7).
            mac_move: MacMove = "mac-move", Any, "`claim`";
            /// The network namespace of the routing daemon that tells of its stations on other hosts (EVPN):
            /// a name (ip-netns(8)) or a path.
            control: String = "control", Any, "none";
            /// The VXLAN network identifier that it is there, as that of its tunnel.
            vni: Number<1, 16_777_215> = "vni", Any, "";
        }
    }
}

impl SwitchSpec {
    /// A switch without options.
    pub fn new(name: &str) -> SwitchSpec {
        SwitchSpec { name: name.to_owned(), ..SwitchSpec::default() }
    }
}

options! {
    /// One port. Numbers may also be written as text, and lists as one text, joined by `+`. A key that does
    /// not apply to the kind is refused.
    PortSpec {
        must {
            /// Its name: 1 to 63 letters, digits, `.`, `_` and `-`.
            name: String = "name";
            /// What it connects to; `GET /v1/daemon` lists the kinds.
            kind: String = "kind";
            /// The path of its socket, the name of its interface, the name (or path) by which programs ask
            /// for a ring port, the switch that a router's port stands on, the address of a tunnel's end
            /// here, the group that it is an interface of, or the router that is a member.
            location: String = "where";
        }
        may {
            /// The switch that it joins.
            switch: String = "switch", Frames, "`lan`";
            /// The wire that it is one end of, instead of a switch: everything passes, nothing is learned.
            wire: String = "wire", Frames, "";
            /// The router that it is an interface of, instead of a switch.
            router: String = "router", Frames, "";
            /// The pipe that it is one end of, instead of a switch: frames that one end sends arrive at the
            /// other in the same buffers, without a copy. Both ends see all of the pipe's memory.
            pipe: String = "pipe", Kind, "";
            /// The group that it belongs to, instead of a switch, as a port of one of its members.
            group: String = "group", Frames, "";
            /// The member of the group that it belongs to.
            member: String = "member", Frames, "";
            /// Which of the group's interfaces it is, or stands behind.
            interface: Number<0, 15> = "interface", Frames, "";
            /// The router's or the group's addresses there, each with the length of its network; at a
            /// member's port behind an interface with `router`, the group's.
            address: Nets = "address", Frames, "none; of kind router: those of the group's interface";
            /// The router's station address there.
            router_mac: Mac = "router-mac", Frames,
                "of kind router: the `mac` of the group's interface; else made from router, port and machine";
            /// Which sources the router takes packets from there (RFC 3704): `off`: all; `loose`: those that
            /// a route leads to; `strict`: those that a route leads to through this port. Others are dropped
            /// as `reverse_path`.
            rpf: Rpf = "rpf", Frames, "`off`";
            /// Largest Ethernet payload that it may send, in bytes.
            mtu: Number<68, 65535> = "mtu", Frames,
                "1500; an existing interface: its own; ring ports made on demand: 65535";
            /// Its carrier: with `up` it follows the peer, with `down` it is down.
            link: Link = "link", Any, "`up`";
            /// The tenant that pays for its work, instead of itself. A port keeps its tenant.
            tenant: String = "tenant", Paid, "";
            /// How urgent its frames or requests are: those of class `latency` are served between two visits
            /// of other ports.
            class: Class = "class", Paid, "`throughput`";
            /// Its share of an I/O core beside other ports that have work.
            weight: Number<1, 1000> = "weight", Paid, "100";
            /// The share of an I/O core that it is guaranteed and limited to: percent of each 5 ms, or a
            /// runtime in each period.
            budget: Budget = "budget", Paid, "none: its share by weight";
            /// Whether it may use, beyond its budget, time that other ports leave.
            reclaim: Toggle = "reclaim", Paid, "`off`";
            /// Most frames or requests a second that are taken from it.
            rate: Frames = "rate", Paid, "no limit";
            /// Most bits a second of the frames or requests that are taken from it.
            bit_rate: Bits = "bit-rate", Paid, "no limit";
            /// Addresses and networks of IP that its frames may claim, also by ARP and neighbour discovery.
            allow_ip: Nets = "allow-ip", Queues, "all";
            /// Whether answers of DHCP servers that come in by it are dropped.
            dhcp_guard: Toggle = "dhcp-guard", Queues, "`off`";
            /// Whether router advertisements and redirects that come in by it are dropped.
            ra_guard: Toggle = "ra-guard", Queues, "`off`";
            /// The access list for frames that come in by it.
            acl_in: String = "acl-in", Frames, "none: all may";
            /// The access list for frames that go out by it.
            acl_out: String = "acl-out", Frames, "none: all may";
            /// Most frames a second that go out by it; more are dropped as `rate`.
            out_rate: Frames = "out-rate", Queues, "no limit";
            /// Most bits a second of the frames that go out by it.
            out_bit_rate: Bits = "out-bit-rate", Queues, "no limit";
            /// Milliseconds of these rates that it may save up.
            out_burst: Number<1, 1000> = "out-burst", Queues with "out-rate" "out-bit-rate", "10";
            /// The port that gets a copy of each frame that passes it.
            mirror: String = "mirror", Queues, "none";
            /// Which of them: those that come in by it, those that go out, or both.
            mirror_direction: Directions = "mirror-direction", Frames with "mirror", "`both`";
            /// An access list; only frames that it permits are copied.
            mirror_acl: String = "mirror-acl", Frames with "mirror", "none: all are";
            /// Bytes of a copy; longer frames are cut.
            mirror_snap: Number<64, 65535> = "mirror-snap", Frames with "mirror", "all";
            /// The VLAN of its frames, which have no tag there: it is an access port.
            vlan: VlanNumber = "vlan", Learning, "none: it is in no VLAN, with others that are in none";
            /// The VLANs that it carries with tags.
            trunk: VlanRanges = "trunk", Learning, "none";
            /// The VLAN of frames without a tag on a trunk.
            native: VlanNumber = "native", Learning with "trunk", "none: such frames are dropped";
            /// By which number tags are known: 0x8100, or 0x88a8, so that tags of 802.1Q inside are payload
            /// (QinQ).
            vlan_proto: TagProtocol = "vlan-proto", Learning with "vlan" "trunk", "`802.1q`";
            /// Whether it exchanges no frames with other isolated ports (a private VLAN).
            isolated: Toggle = "isolated", Learning, "`off`";
            /// Whether messages of the spanning tree pass, into it and out of it.
            bpdu: Control = "bpdu", Learning, "`pass`";
            /// Source addresses that it may use; frames from more are dropped as `mac_limit`.
            mac_limit: Number<1, 65535> = "mac-limit", Learning, "no limit";
            /// How source addresses are guarded: `off`; `claim`: no other port may take its `mac`; `strict`:
            /// it may use no other, either.
            mac_guard: MacGuard = "mac-guard", Learning, "`claim` with `mac`, else `off`";
            /// Further source addresses that it may use under `mac-guard=strict`; `vrrp`: those of all
            /// virtual routers.
            allow_mac: Sources = "allow-mac", Learning, "none";
            /// What becomes of an address of another port that comes in by this one: `claim` or `learn`, as
            /// at the switch.
            mac_move: MacMove = "mac-move", Learning, "the switch's; with `allow-mac=vrrp`, of virtual routers: `learn`";
            /// Addresses that are always behind it: they are never learned elsewhere, do not age, and stay
            /// when it goes down.
            fdb: Macs = "fdb", Learning, "none";
            /// Copies a second that its broadcasts may make.
            storm_broadcast: Number<1, 1_000_000_000> = "storm-broadcast", Learning, "no limit";
            /// Copies a second that its multicasts may make.
            storm_multicast: Number<1, 1_000_000_000> = "storm-multicast", Learning, "no limit";
            /// Copies a second that its frames to unknown addresses may make.
            storm_unicast: Number<1, 1_000_000_000> = "storm-unicast", Learning, "no limit";
            /// Which side makes the socket: the daemon (`server`) or the VMM (`client`).
            role: Role = "role", Kind, "`server`";
            /// Permission bits of the port's socket, octal; of kind xdp, whether the kernel copies frames:
            /// `copy`, `zerocopy` or `auto`.
            mode: PortMode = "mode", Kind, "`0700`; xdp: `auto`";
            /// Owner of the port's socket: `USER`, `USER:GROUP` or `:GROUP`.
            owner: Owner = "owner", Kind, "the user that starts the daemon";
            /// Queue pairs, of kind ptnet 15 at most; of kind blk, queues.
            queues: Number<1, 16> = "queues", Kind,
                "vhost-user, blk: as many as the VMM asks for; tap, packet, ptnet, ring: 1; xdp: as many as the interface receives on";
            /// Features that are not offered; `GET /v1/daemon` lists them.
            features_off: NameList = "features-off", Kind, "none";
            /// The guest's address, where the port decides it; of an e1000, e1000e or rtl8169 the one in its
            /// EEPROM.
            mac: Mac = "mac", Kind, "vhost-user: what the VMM says; e1000, e1000e, rtl8169, ptnet: made from port and machine";
            /// The file that keeps the positions of packed rings while no daemon runs, or `none`.
            journal: PathBuf = "journal", Kind, "a file of the daemon's, deleted with the port";
            /// The disk's contents, always required: a file, a block device, `ram:SIZE` or `null:SIZE` with a
            /// size such as `64M`.
            file: DiskFile = "file", Kind, "";
            /// Whether the guest cannot write to the disk.
            readonly: Toggle = "readonly", Kind, "`off`";
            /// When a guest's write is durable: with `writeback` after its next flush, with `writethrough`
            /// when it is answered.
            cache: Cache = "cache", Kind, "`writeback`";
            /// The disk's name for the guest, which gets its first 20 bytes.
            serial: String = "serial", Kind, "the port's name";
            /// Bytes of the disk's logical block.
            block_size: BlockSize = "block-size", Kind, "`512`";
            /// Slots of each ring.
            slots: Number<2, 4096> = "slots", Kind, "1024";
            /// Bytes of a ring's buffer, a multiple of 64.
            buf_size: Number<64, 65536> = "buf-size", Kind, "2048";
            /// Buffers beyond those of the rings; a client gets no more than these.
            extra_bufs: Number<0, 163_840> = "extra-bufs", Kind, "none; 4096 at most for a client that asks";
            /// Largest number of pipes; an unused pipe takes no buffers.
            pipes: Number<0, 64> = "pipes", Kind, "4";
            /// The memory that up to 8 ring ports with equal rings share to exchange buffers: those with the
            /// same name here.
            memory: String = "memory", Kind, "one of its own";
            /// Bytes of the virtio-net header before each frame: 0, 10 or 12; the program may change it.
            header: Number<0, 12> = "header", Kind, "0";
            /// Smallest gap between two interrupts in microseconds, also if the driver sets a smaller one; 0:
            /// the driver's gap alone. With vhost-user it is for each queue.
            moderation: Number<0, 1000> = "moderation", Kind, "8; vhost-user: 0";
            /// Frames that may wait in each of its receive rings, where the ring is longer. More are dropped
            /// as `queue_full` before they are copied; on a wire they wait in the sender's ring.
            queue: Number<64, 32_768> = "queue", Kind, "the whole ring";
            /// Percent of its time that the guest may spend on serving receive interrupts; 100: all.
            receive_share: Number<10, 100> = "receive-share", Kind, "100";
            /// Whether the card has a communication status block.
            csb: Toggle = "csb", Kind, "`off`";
            /// Files that the VMM may give as its memory: `memory`: those of memfd, tmpfs and hugetlbfs;
            /// `any`: all that can be mapped.
            memory_file: Files = "memory-file", Kind, "`memory`";
            /// Whether all pages of the guest's memory are made present when the VMM gives it.
            prefault: Toggle = "prefault", Kind, "`off`";
            /// Whether interrupts may be ends of connected sockets, as User-mode Linux gives them, and a
            /// channel is offered.
            call_socket: Toggle = "call-socket", Kind, "`off`";
            /// The network namespace that the interface lies in: a name (ip-netns(8)) or a path.
            netns: String = "netns", Kind, "the daemon's";
            /// The router's port that it represents to the control plane. Only a router's `control` makes
            /// such ports.
            control_of: String = "control-of", Kind, "none";
            /// The VXLAN network identifier, always required.
            vni: Number<1, 16_777_215> = "vni", Kind, "";
            /// Addresses of the other endpoints of its VNI.
            peers: Gateways = "peers", Kind, "those of which the switch's control plane tells";
            /// TTL of its datagrams.
            ttl: Number<1, 255> = "ttl", Kind, "64";
            /// DSCP of its datagrams.
            dscp: Number<0, 63> = "dscp", Kind, "0";
            /// Open descriptors of the daemon to use: of a tap one for each queue, else one socket.
            fd: Fds = "fd", Kind, "";
        }
    }
}

/// What a port is joined to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joint<'s> {
    /// The switch of this name.
    Switch(&'s str),
    /// One end of the wire of this name.
    Wire(&'s str),
    /// The router of this name.
    Router(&'s str),
    /// One end of the pipe of this name.
    Pipe(&'s str),
    /// The port of a router, for which it stands before a control plane.
    Control(&'s str),
    /// The group of this name, as a member's port.
    Group(&'s str),
    /// Nothing: it is a disk, which carries no frames.
    Nothing,
}

impl fmt::Display for Joint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Joint::Switch(name) => write!(f, "switch {name}"),
            Joint::Wire(name) => write!(f, "wire {name}"),
            Joint::Router(name) => write!(f, "router {name}"),
            Joint::Pipe(name) => write!(f, "pipe {name}"),
            Joint::Control(name) => write!(f, "port {name}, for its control plane"),
            Joint::Group(name) => write!(f, "group {name}"),
            Joint::Nothing => f.write_str("nothing"),
        }
    }
}

impl PortSpec {
    /// Whether it is a disk and carries no frames.
    pub fn is_disk(&self) -> bool {
        self.file.is_some()
    }

    /// The wire or the pipe that it is one end of.
    pub fn line(&self) -> Option<Joint<'_>> {
        Some(self.joint()).filter(|joint| matches!(joint, Joint::Wire(_) | Joint::Pipe(_)))
    }

    /// What it is joined to.
    pub fn joint(&self) -> Joint<'_> {
        match (&self.wire, &self.router, &self.switch) {
            _ if self.is_disk() => Joint::Nothing,
            _ if self.pipe.is_some() => Joint::Pipe(self.pipe.as_deref().unwrap_or_default()),
            _ if self.control_of.is_some() => Joint::Control(self.control_of.as_deref().unwrap_or_default()),
            _ if self.group.is_some() => Joint::Group(self.group.as_deref().unwrap_or_default()),
            (Some(wire), ..) => Joint::Wire(wire),
            (None, Some(router), _) => Joint::Router(router),
            (None, None, switch) => Joint::Switch(switch.as_deref().unwrap_or(DEFAULT_SWITCH)),
        }
    }

    /// The switch on which it stands as a router's port.
    pub fn gateway_on(&self) -> Option<&str> {
        (self.kind == GATEWAY && self.router.is_some()).then_some(self.location.as_str())
    }

    /// The router that it is an interface of.
    pub fn router_name(&self) -> Option<&str> {
        match self.joint() {
            Joint::Router(name) => Some(name),
            _ => (self.kind == ROUTER).then_some(self.location.as_str()),
        }
    }

    /// The group's interface, one of `all`, behind which it stands.
    pub(super) fn front<'s>(&self, all: impl IntoIterator<Item = &'s PortSpec>) -> Option<&'s PortSpec> {
        let group = self.group.as_deref()?;
        let is =
            |other: &&PortSpec| other.group_interface() == Some(group) && other.interface == self.interface;
        all.into_iter().find(is)
    }

    /// Its addresses as a router's; the group's at the interface `front` behind which it stands, if it has
    /// none.
    pub(super) fn addresses<'s>(&'s self, front: Option<&'s PortSpec>) -> &'s [Net] {
        let of_group = || front.filter(|front| front.router.is_none())?.address.as_ref();
        let nets = self.address.as_ref().or_else(of_group);
        nets.map_or(&[], |nets| &nets.0)
    }

    /// The group of which it is an interface.
    pub fn group_interface(&self) -> Option<&str> {
        (self.kind == GROUP).then_some(self.location.as_str())
    }

    /// Whether `other` can be reached from this without a new attachment: only what the port itself and
    /// its place in the graph are made of differs.
    pub fn same_attachment(&self, other: &PortSpec) -> bool {
        let attached = |port: &PortSpec| PortSpec {
            queue: None,
            ..port.without(&[Scope::Any, Scope::Paid, Scope::Frames, Scope::Queues, Scope::Learning])
        };
        attached(self) == attached(other)
    }

    /// How its source addresses are guarded.
    pub fn guard(&self) -> MacGuard {
        self.mac_guard.unwrap_or(if self.mac.is_some() { MacGuard::Claim } else { MacGuard::Off })
    }

    /// What it may do to its neighbours on a switch. `number` is that of the port of a name, and `list` the
    /// access list.
    pub(super) fn policy(
        &self,
        number: impl Fn(&str) -> Option<PortId>,
        list: impl Fn(&str) -> Option<Arc<Acl>>,
    ) -> Policy {
        let sources = self.allow_mac.as_ref().map_or(&[][..], |sources| &sources.0);
        let allowed: Vec<u64> = sources
            .iter()
            .filter_map(|source| match source {
                Source::Mac(mac) => Some(mac.number()),
                Source::Vrrp => None,
            })
            .collect();
        let fixed: Vec<u64> =
            self.fdb.as_ref().map_or_else(Vec::new, |macs| macs.0.iter().map(|mac| mac.number()).collect());
        let own = self.mac.map_or(0, Mac::number);
        let storm = StormLimits {
            broadcast: self.storm_broadcast.map_or(0, Number::get),
            multicast: self.storm_multicast.map_or(0, Number::get),
            unicast: self.storm_unicast.map_or(0, Number::get),
        };
        Policy {
            mac_limit: self.mac_limit.map_or(0, Number::get),
            guard: SourceGuard::new(self.guard(), own, &fixed, &allowed, sources.contains(&Source::Vrrp)),
            moves: self.mac_move.map(|it| it == MacMove::Learn),
            storm: Storm::new(storm),
            vlans: self.vlans(),
            ip_guard: IpGuard::new(
                self.allow_ip.as_ref().map(|nets| nets.0.iter().map(|net| (net.address, net.len))),
                self.dhcp_guard == Some(Toggle::On),
                self.ra_guard == Some(Toggle::On),
            ),
            acl: [&self.acl_in, &self.acl_out].map(|name| name.as_deref().and_then(&list)),
            egress_rate: EgressRate::new(
                self.out_rate.map(Frames::get),
                self.out_bit_rate.map(Bits::get),
                Duration::from_millis(self.out_burst.map_or(10, Number::get).into()),
            ),
            mirror: self.mirror.as_deref().and_then(number).map(|to| Mirror {
                to,
                ways: [Directions::Out, Directions::In].map(|not| self.mirror_direction != Some(not)),
                acl: self.mirror_acl.as_deref().and_then(&list),
                snap: self.mirror_snap.and_then(|snap| u16::try_from(snap.get()).ok()),
            }),
            isolated: self.isolated == Some(Toggle::On),
            no_bpdu: self.bpdu == Some(Control::Drop),
        }
    }

    /// The VLANs that it carries, if it is in any.
    pub(super) fn vlans(&self) -> Option<PortVlans> {
        let own = self.vlan.or(self.native);
        (own.is_some() || self.trunk.is_some()).then(|| {
            let own = own.and_then(|own| u16::try_from(own.get()).ok()).unwrap_or(0);
            let tagged = self.trunk.as_ref().map(VlanRanges::set);
            PortVlans::new(own, tagged, self.vlan_proto.unwrap_or_default())
        })
    }

    /// Whether the operator wants the carrier up.
    pub fn link_wanted(&self) -> bool {
        self.link != Some(Link::Down)
    }
}

impl Spec {
    /// This configuration with every default that depends on others written out, so that two that
    /// mean the same are equal.
    #[must_use]
    pub fn settled(mut self) -> Spec {
        for port in &mut self.ports {
            if port.switch.is_none() && matches!(port.joint(), Joint::Switch(_)) {
                port.switch = Some(DEFAULT_SWITCH.to_owned());
            }
            if port.link == Some(Link::Up) {
                port.link = None;
            }
        }
        if !self.switches.iter().any(|switch| switch.name == DEFAULT_SWITCH) {
            self.switches.push(SwitchSpec::new(DEFAULT_SWITCH));
        }
        self.sort();
        self
    }

    /// The first port of which `holds` is so, and what it does, as a reason.
    fn held_by(&self, does: &str, holds: impl Fn(&PortSpec) -> bool) -> Option<String> {
        let port = self.ports.iter().find(|port| holds(port))?;
        Some(format!("port {} {does}", port.name))
    }

    /// The names of the ports that a tenant pays for.
    pub(super) fn paid_by(&self, tenant: &str) -> Vec<String> {
        let its = self.ports.iter().filter(|port| port.tenant.as_deref() == Some(tenant));
        its.map(|port| port.name.clone()).collect()
    }

    /// The members of a group.
    pub(super) fn members(&self, group: &str) -> BTreeSet<&str> {
        let its = self.ports.iter().filter(|port| port.group.as_deref() == Some(group));
        its.filter_map(|port| port.member.as_deref()).collect()
    }

    /// Forgets what is wanted of members that `before` had and this has not: their ports were deleted.
    pub(super) fn forget_members(&mut self, before: &Spec) {
        let mut groups = std::mem::take(&mut self.groups);
        for group in &mut groups {
            let (were, are) = (before.members(&group.name), self.members(&group.name));
            group.keep(|name| are.contains(name) || !were.contains(name));
        }
        self.groups = groups;
    }
}

/// A port, a switch, a router or a tenant: what the requests that change one have in common.
pub trait Entry: Clone + PartialEq + Serialize + DeserializeOwned + Value + Send + 'static {
    /// Which of these, for people.
    const WHAT: &'static str;

    /// Its name.
    fn name(&self) -> &str;

    /// The port that it is, if it is one.
    fn as_port(&self) -> Option<&PortSpec> {
        (self as &dyn Any).downcast_ref()
    }

    /// All of its sort.
    fn list(spec: &mut Spec) -> &mut Vec<Self>;

    /// Why that of this name cannot be deleted.
    fn held(spec: &Spec, name: &str) -> Option<String>;
}
