//! The counters file: readable by every process that may open it, also when the daemon is stopped or dead.
//!
//! ```text
//! 0        Header, one page
//! 4096     one Slot per port number, each SLOT_SIZE bytes:
//!            name, state            one cache-line-aligned block of SLOT_HEAD bytes
//!            one Block per I/O core (MAX_CORES of them), written by that core alone
//! ```
//!
//! Counters only grow while a port lives; a new port in the same slot starts them at zero and raises
//! `generation`. A reader adds the blocks of all cores. The law that a test holds, over all ports:
//! Σ `in_frames` + Σ `made` = Σ `out_frames` + Σ drops (nothing is in flight between two batches).

/// First eight bytes of the file.
pub const MAGIC: u64 = u64::from_le_bytes(*b"sidecor1");
/// Layout version; readers refuse another.
pub const VERSION: u32 = 4;
/// Ports that the file has room for.
pub const MAX_PORTS: usize = 1024;
/// I/O cores that the file has room for.
pub const MAX_CORES: usize = 16;
/// Bytes of the file's header.
pub const HEADER_SIZE: usize = 4096;
/// Bytes at the start of a slot that name its port.
pub const SLOT_HEAD: usize = 128;
/// Longest port name in bytes; the field ends with at least one zero byte.
pub const MAX_NAME: usize = 63;

/// Offsets in the header.
pub mod header {
    /// `MAGIC`, u64.
    pub const MAGIC: usize = 0;
    /// `VERSION`, u32.
    pub const VERSION: usize = 8;
    /// Process id of the daemon, u32.
    pub const PID: usize = 12;
    /// Number of drop reasons, u32: a reader with fewer names shows numbers.
    pub const REASONS: usize = 16;
}

/// Offsets in a slot's head.
pub mod slot {
    /// u32: 0 free, 1 in use.
    pub const STATE: usize = 0;
    /// u32: raised whenever the slot gets a new port.
    pub const GENERATION: usize = 4;
    /// Name, zero padded, `MAX_NAME + 1` bytes.
    pub const NAME: usize = 8;
}

/// Why a frame was not delivered. The number is the counter's place in the file and never changes.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DropReason {
    /// The switch has no other port to give it to.
    NoDestination = 0,
    /// The destination is the port that it came from.
    Hairpin = 1,
    /// The destination has no peer or its link is down.
    LinkDown = 2,
    /// The receiver offers no buffers.
    RingFull = 3,
    /// Longer than the MTU of the port by which it came in.
    TooLong = 4,
    /// Shorter than an Ethernet header.
    TooShort = 5,
    /// The offload header contradicts the frame or what was negotiated.
    BadOffload = 6,
    /// The receiver's buffer is too small for it.
    BufferTooSmall = 7,
    /// The receiver's ring broke while it was being delivered.
    RingBroken = 8,
    /// The host's interface refused it.
    HostRefused = 9,
    /// Its source address is beyond the port's MAC limit.
    MacLimit = 10,
    /// The receiver lacks the offload and the frame cannot be segmented or completed in software.
    CannotSegment = 11,
    /// More pieces than a batch can describe.
    TooManyPieces = 12,
    /// The receiver's own address or VLAN filter refuses it.
    Filtered = 13,
    /// A slot names a buffer that is not its client's, or more bytes than a buffer has.
    BadBuffer = 14,
    /// The host's interface had it for us, but its ring to us was full.
    HostOverrun = 15,
    /// Its source address is none that the port may use.
    MacGuard = 16,
    /// Broadcasts beyond the port's limit.
    StormBroadcast = 17,
    /// Multicasts beyond the port's limit.
    StormMulticast = 18,
    /// Frames to unknown addresses beyond the port's limit.
    StormUnicast = 19,
    /// The receiver's memory, eventfds or messages held I/O cores up for too long: it rests.
    Overrun = 20,
    /// A router was its destination, and has taken it: no loss.
    ToRouter = 21,
    /// Its station address is not the router's.
    NotForRouter = 22,
    /// It is no packet that a router passes on: neither IPv4 nor IPv6, or tagged.
    NotRouted = 23,
    /// Its IP, ARP or Neighbor Discovery header contradicts itself or the frame.
    BadHeader = 24,
    /// No packet may come from or go to its addresses.
    Martian = 25,
    /// It is for a group, which the router passes nothing on to.
    GroupAddress = 26,
    /// It has a source route (an IPv4 option).
    SourceRoute = 27,
    /// A neighbour says of itself what cannot be.
    Spoofed = 28,
    /// No route leads to its destination.
    NoRoute = 29,
    /// Its route says so.
    Blackhole = 30,
    /// Its route says so; the sender was told.
    Unreachable = 31,
    /// Its route says so; the sender was told.
    Prohibit = 32,
    /// Its TTL or hop limit is used up.
    TimeExceeded = 33,
    /// It is longer than the MTU of the port by which it would leave.
    TooBig = 34,
    /// The station of its next hop is not known yet, or does not answer.
    NoNeighbour = 35,
    /// A router cut it into fragments, which went on in its place: no loss.
    Fragmented = 36,
    /// It is addressed to the router itself, beyond the limit of its class for the control plane.
    PuntLimit = 37,
    /// It has passed as many routers as it may within one visit, by way of switches, or there was no room for
    /// it between two of them.
    Reentry = 38,
    /// No route leads back to its source, or none by the port that it came from (RFC 3704).
    ReversePath = 39,
    /// Another I/O core is in the receiver's queue for long, or this one has waited for the receiver's memory
    /// for too long.
    ReceiverBusy = 40,
    /// As many frames wait in the receiver's ring as the port allows (`queue`).
    QueueFull = 41,
    /// No member of the group takes it.
    NoMember = 42,
    /// Another member of its group answers for all.
    NotSpeaker = 43,
    /// A member of a group says of an address that is not the group's that it is its own.
    ForeignAddress = 44,
    /// A port by which it came, or would leave, does not carry its VLAN.
    Vlan = 45,
    /// Both ports are isolated.
    Isolated = 46,
    /// It is for a reserved group address (802.1Q table 8-1), whose frames end at a switch, or the port.
    ControlFrame = 47,
    /// More than may go out by its port (`out-rate`, `out-bit-rate`).
    Rate = 48,
    /// An access list of the port says so.
    Acl = 49,
    /// A probe of a group that has passed its member.
    Probe = 50,
    /// It goes to the address of a group's probes, and is late, another member's or none.
    BadProbe = 51,
    /// It claims an address of IP that its port may not use (`allow-ip`).
    IpGuard = 52,
    /// It answers DHCP requests, and its port may not (`dhcp-guard`).
    DhcpGuard = 53,
    /// It is a router advertisement or redirect, and its port may send none (`ra-guard`).
    RaGuard = 54,
    /// It is no datagram of VXLAN, or says no VNI.
    VxlanHeader = 55,
    /// No port has its VNI.
    VxlanVni = 56,
    /// It comes from no endpoint of its VNI.
    VxlanPeer = 57,
    /// It met congestion in a tunnel, and its sender cannot be told (RFC 6040 §4.2).
    VxlanEcn = 58,
    /// It is for the router itself, which has no control plane to give it to.
    NotTaken = 59,
}

/// Every drop reason in the order of its number, with the name that `show` prints and one sentence.
pub const DROPS: [(DropReason, &str, &str); 60] = [
    (DropReason::NoDestination, "no_destination", "the switch has no other port to give the frame to"),
    (DropReason::Hairpin, "hairpin", "the destination is the port that the frame came from"),
    (DropReason::LinkDown, "link_down", "the destination has no peer or its link is down"),
    (DropReason::RingFull, "ring_full", "the receiver offers no buffers"),
    (
        DropReason::TooLong,
        "too_long",
        "longer than the MTU of the port by which it came in; MPLS labels and third tags count",
    ),
    (DropReason::TooShort, "too_short", "shorter than an Ethernet header"),
    (
        DropReason::BadOffload,
        "bad_offload",
        "the offload header contradicts the frame or the negotiated features, or asks for another checksum than the transport's",
    ),
    (DropReason::BufferTooSmall, "buffer_too_small", "the receiver's buffer is too small for the frame"),
    (DropReason::RingBroken, "ring_broken", "the receiver's ring broke during delivery"),
    (DropReason::HostRefused, "host_refused", "the host's interface refused the frame"),
    (DropReason::MacLimit, "mac_limit", "the source address is beyond the port's MAC limit"),
    (
        DropReason::CannotSegment,
        "cannot_segment",
        "the receiver lacks an offload that software cannot make up for",
    ),
    (DropReason::TooManyPieces, "too_many_pieces", "more pieces than one frame may have"),
    (DropReason::Filtered, "filtered", "the receiver's own address or VLAN filter refuses the frame"),
    (
        DropReason::BadBuffer,
        "bad_buffer",
        "a slot names a buffer that is not its client's, or more bytes than a buffer has",
    ),
    (
        DropReason::HostOverrun,
        "host_overrun",
        "the host's interface had the frame for us, but its ring to us was full",
    ),
    (
        DropReason::MacGuard,
        "mac_guard",
        "mac-guard=strict does not allow the source address at this port",
    ),
    (DropReason::StormBroadcast, "storm_broadcast", "a broadcast beyond the port's limit of copies a second"),
    (DropReason::StormMulticast, "storm_multicast", "a multicast beyond the port's limit of copies a second"),
    (
        DropReason::StormUnicast,
        "storm_unicast",
        "a frame to an unknown address beyond the port's limit of copies a second",
    ),
    (
        DropReason::Overrun,
        "overrun",
        "the receiver's memory, eventfds or messages held I/O cores up for more than 50 ms in a second: it rests for a second",
    ),
    (DropReason::ToRouter, "to_router", "addressed to the router itself, which took it: no loss"),
    (DropReason::NotForRouter, "not_for_router", "addressed to a station other than the router"),
    (DropReason::NotRouted, "not_routed", "neither IPv4 nor IPv6, or with the tag of a VLAN: routers do not forward it"),
    (
        DropReason::BadHeader,
        "bad_header",
        "the IP, ARP or Neighbor Discovery header contradicts itself or the frame",
    ),
    (DropReason::Martian, "martian", "no packet may have its source or destination address"),
    (DropReason::GroupAddress, "group_address", "addressed to a group or a broadcast: routers do not forward it"),
    (DropReason::SourceRoute, "source_route", "it has a source route, an IPv4 option that is refused"),
    (DropReason::Spoofed, "spoofed", "a neighbour claims an address that it cannot have"),
    (DropReason::NoRoute, "no_route", "no route leads to the destination"),
    (DropReason::Blackhole, "blackhole", "the route is a blackhole"),
    (DropReason::Unreachable, "unreachable", "the route says that the destination is unreachable"),
    (DropReason::Prohibit, "prohibit", "the route says that it is prohibited"),
    (DropReason::TimeExceeded, "time_exceeded", "TTL or hop limit is used up"),
    (DropReason::TooBig, "too_big", "longer than the MTU of the port by which it would leave"),
    (
        DropReason::NoNeighbour,
        "no_neighbour",
        "the station of the next hop is not known yet, or does not answer",
    ),
    (DropReason::Fragmented, "fragmented", "cut into fragments, which were forwarded instead: no loss"),
    (
        DropReason::PuntLimit,
        "punt_limit",
        "addressed to the router itself, beyond the limit of its class for the control plane",
    ),
    (
        DropReason::Reentry,
        "reentry",
        "it has passed 16 routers of this daemon, the most at once (or there was no room between two of them)",
    ),
    (
        DropReason::ReversePath,
        "reverse_path",
        "rpf=strict: no route to its source leads through its port; rpf=loose: there is none at all",
    ),
    (
        DropReason::ReceiverBusy,
        "receiver_busy",
        "an I/O core waited for the receiver's memory, or for another core in the receiver's queue, for a millisecond",
    ),
    (DropReason::QueueFull, "queue_full", "as many frames wait in the receiver's ring as queue=N of its port allows"),
    (DropReason::NoMember, "no_member", "no member of the group takes flows"),
    (DropReason::NotSpeaker, "not_speaker", "another member of the group answers for all: no loss"),
    (DropReason::ForeignAddress, "foreign_address", "a member of a group claims an address that is not the group's"),
    (DropReason::Vlan, "vlan", "the port does not carry the frame's VLAN (vlan, trunk, native)"),
    (DropReason::Isolated, "isolated", "both ports are isolated"),
    (
        DropReason::ControlFrame,
        "control_frame",
        "for a reserved group address: the switch (control-frames) or the port (bpdu) passes none on",
    ),
    (DropReason::Rate, "rate", "more than may go out by the port (out-rate, out-bit-rate)"),
    (DropReason::Acl, "acl", "an access list of the port (acl-in, acl-out) denies it"),
    (DropReason::Probe, "probe", "a probe of the group has passed its member: no loss"),
    (
        DropReason::BadProbe,
        "bad_probe",
        "it goes to the address of the group's probes, and is late, another member's or none",
    ),
    (DropReason::IpGuard, "ip_guard", "it claims an address of IP that the port may not use (allow-ip)"),
    (DropReason::DhcpGuard, "dhcp_guard", "the port may not answer DHCP requests (dhcp-guard)"),
    (DropReason::RaGuard, "ra_guard", "the port may send no router advertisements or redirects (ra-guard)"),
    (DropReason::VxlanHeader, "vxlan_header", "it is no datagram of VXLAN, or says no VNI"),
    (DropReason::VxlanVni, "vxlan_vni", "no port at the address has its VNI (vni)"),
    (DropReason::VxlanPeer, "vxlan_peer", "it comes from an address that is no endpoint of its VNI (peers)"),
    (DropReason::VxlanEcn, "vxlan_ecn", "it met congestion in the tunnel, and its sender takes no ECN"),
    (DropReason::NotTaken, "not_taken", "addressed to the router itself, which has no control plane to take it"),
];

/// Places for drop reasons in a block; more than there are, so that the file need not change.
pub const DROP_PLACES: usize = 64;

/// One core's counters of one port: whole cache lines, one writer.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Frames taken from the port.
    pub in_frames: u64,
    /// Bytes of those frames, without offload headers.
    pub in_bytes: u64,
    /// Frames delivered to the port.
    pub out_frames: u64,
    /// Bytes of those frames.
    pub out_bytes: u64,
    /// Frames that came into being behind this port: copies by flooding, segments by segmentation,
    /// each beyond the first.
    pub made: u64,
    /// Kicks received.
    pub kicks: u64,
    /// Interrupts sent.
    pub interrupts: u64,
    /// Batches taken from the port.
    pub batches: u64,
    /// Frames not delivered, by `DropReason`, counted at the port that caused the drop's reason.
    pub drops: [u64; DROP_PLACES],
}

const _: () = assert!(size_of::<Block>() == 576);
const _: () = assert!(DROPS.len() <= DROP_PLACES);

/// Bytes of a slot.
pub const SLOT_SIZE: usize = SLOT_HEAD + MAX_CORES * size_of::<Block>();
/// Bytes of the whole file.
pub const FILE_SIZE: usize = HEADER_SIZE + MAX_PORTS * SLOT_SIZE;

impl DropReason {
    /// The name that `show drops` prints.
    pub fn name(self) -> &'static str {
        DROPS[self as usize].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drop_numbers_are_places() {
        for (place, (reason, ..)) in DROPS.iter().enumerate() {
            assert_eq!(*reason as usize, place);
        }
    }
}
