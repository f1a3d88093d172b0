//! The UDP socket at which frames of all VNIs of one address come in.
//!
//! Theory of operation. Ports with different VNIs at one address have one socket. Each has a *lane* behind
//! it, and fetches from its own; if that is empty it receives for all: one recvmmsg(2) takes up to 32
//! datagrams into slots of 64 KiB. With UDP_GRO (udp(7)) a datagram may be a train of them, each with a VXLAN
//! header of its own. Each goes to the lane of its VNI, where it stays in its slot until the port has
//! forwarded it. A port that does not forward may hold a part of the slots, in its lane and taken out of it
//! together, and all ports less than there are: none stops another. What is of no lane's VNI, or says none,
//! is dropped at the port with the lowest VNI, whichever port has received it.
//!
//! A sleeping core needs no other wake-up than the socket's: the event of a datagram reaches all cores that
//! have a port here, and a port sleeps only when both its lane and the socket were empty.
//!
//! Invariant of the `unsafe` here: the kernel and this module write to a slot while it is free, under the
//! lock of the inbox; from then on it is only read until `give_back` has freed it, which the port calls when
//! no frame of its is in use any more. Pointers in the messages lead to slots, names and control buffers of
//! the inbox, and are used by the one call for which they are set.

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::{Arc, Mutex, Weak};

use libc::{c_int, iovec, mmsghdr};
use rustix::net::addr::SocketAddrStorage;
use rustix::net::{bind, socket_with, AddressFamily, SocketAddrAny, SocketFlags, SocketType};

use super::ecn::pass_on;
use super::vteps::Vteps;
use crate::host::interface::{set_option, set_receive_buffer, set_send_buffer};
use crate::host::mapping::Mapping;
use crate::port::{DropReason, Drops, Tally};
use crate::sandbox::open::broker::{obtain, Request};
use crate::util::slice::behind;

/// Bytes of a VXLAN header (RFC 7348 §5): flags, three reserved bytes, the VNI, and one more.
pub(super) const HEADER: usize = 8;
/// The flag that says that there is a VNI.
pub(super) const HAS_VNI: u8 = 8;
/// Slots, and bytes of each: no datagram is longer.
const SLOTS: usize = 256;
const SLOT: usize = 1 << 16;
/// Most datagrams of one call.
const MESSAGES: usize = 32;
/// Bytes of an address of any family.
#[expect(clippy::cast_possible_truncation, reason = "it has 128")]
const NAME: u32 = size_of::<SocketAddrStorage>() as u32;
/// Room in the kernel for what comes while cores are busy, and for what goes out.
const BUFFER: u32 = 8 << 20;

/// Seconds for which a station is known that is silent, as by 802.1Q.
const AGEING: u32 = 300;

/// Words of two control messages, each with at most 8 bytes: the size of a train, and the outer header's
/// traffic class.
const CONTROLS: usize = 2 * 3;

/// A frame in its slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    slot: u16,
    /// Where in the slots it begins, and its length.
    pub(super) at: usize,
    pub(super) len: usize,
    /// The endpoint that sent it.
    pub(super) vtep: u16,
}

/// What the ports at one address share.
pub(super) struct Underlay {
    at: SocketAddr,
    pub(super) fd: OwnedFd,
    pub(super) slots: Mapping,
    inbox: Mutex<Inbox>,
}

struct Inbox {
    free: Vec<u16>,
    /// By slot: how many frames are in it, and the VNI of the first of them, whose lane it counts for.
    users: Box<[u16]>,
    owners: Box<[u32]>,
    /// In the order of their VNIs.
    lanes: Vec<Lane>,
    messages: Box<[mmsghdr]>,
    vectors: Box<[iovec]>,
    names: Box<[MaybeUninit<SocketAddrStorage>]>,
    controls: Box<[[u64; CONTROLS]]>,
}

// SAFETY: pointers in the messages are set anew for each call, under the inbox's lock.
unsafe impl Send for Inbox {}

/// What waits for the port with one VNI.
struct Lane {
    vni: u32,
    vteps: Arc<Vteps>,
    waiting: VecDeque<Segment>,
    /// How many slots it holds, with those that its port has taken.
    slots: usize,
    /// What was dropped for it.
    lost: Drops,
    lost_frames: u64,
}

static UNDERLAYS: Mutex<Vec<Weak<Underlay>>> = Mutex::new(Vec::new());

/// The endpoints of the port with `vni` at `at`, if there is one.
pub fn vteps(at: SocketAddr, vni: u32) -> Option<Arc<Vteps>> {
    let underlay =
        crate::lock(&UNDERLAYS).iter().filter_map(Weak::upgrade).find(|underlay| underlay.at == at)?;
    let inbox = crate::lock(&underlay.inbox);
    inbox.lanes.iter().find(|lane| lane.vni == vni).map(|lane| Arc::clone(&lane.vteps))
}

/// It is `now` on the switches' clock: stations that were learned and are silent for long are forgotten.
pub fn age(now: u32) {
    let underlays: Vec<_> = crate::lock(&UNDERLAYS).iter().filter_map(Weak::upgrade).collect();
    for underlay in underlays {
        let vteps: Vec<_> =
            crate::lock(&underlay.inbox).lanes.iter().map(|lane| Arc::clone(&lane.vteps)).collect();
        vteps.iter().for_each(|vteps| vteps.age(now, AGEING));
    }
}

impl Underlay {
    /// Joins the socket at `at`, which is opened if there is none, for frames with `vni`.
    pub(super) fn join(at: SocketAddr, vni: u32, vteps: &Arc<Vteps>) -> io::Result<Arc<Underlay>> {
        let mut all = crate::lock(&UNDERLAYS);
        all.retain(|underlay| underlay.strong_count() > 0);
        let there = all.iter().filter_map(Weak::upgrade).find(|underlay| underlay.at == at);
        let underlay = match there {
            Some(underlay) => underlay,
            None => {
                let fd = open(at)?;
                // RFC 7348 §5: a checksum of zero is taken, with IPv6, too (RFC 6935 §5).
                const SIX: [(c_int, c_int); 2] =
                    [(libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS), (libc::SOL_UDP, libc::UDP_NO_CHECK6_RX)];
                let its = if at.is_ipv4() { &[(libc::IPPROTO_IP, libc::IP_RECVTOS)][..] } else { &SIX };
                for (level, name) in its.iter().chain(&[(libc::SOL_UDP, libc::UDP_GRO)]) {
                    // SAFETY: these options take an int.
                    unsafe { set_option(&fd, *level, *name, &1i32) }?;
                }
                let slots = Mapping::private(SLOTS * SLOT)?;
                let opened = Arc::new(Underlay { at, fd, slots, inbox: Mutex::new(Inbox::new()) });
                all.push(Arc::downgrade(&opened));
                opened
            }
        };
        let mut inbox = crate::lock(&underlay.inbox);
        if inbox.lanes.iter().any(|lane| lane.vni == vni) {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another port has this VNI there"));
        }
        let place = inbox.lanes.partition_point(|lane| lane.vni < vni);
        let (waiting, lost) = (VecDeque::with_capacity(SLOTS), Drops::default());
        let lane = Lane { vni, vteps: Arc::clone(vteps), waiting, slots: 0, lost, lost_frames: 0 };
        inbox.lanes.insert(place, lane);
        drop(inbox);
        Ok(underlay)
    }

    /// The port with `vni` is gone.
    pub(super) fn leave(&self, vni: u32) {
        let inbox = &mut *crate::lock(&self.inbox);
        let Some(at) = inbox.lanes.iter().position(|lane| lane.vni == vni) else { return };
        let lane = inbox.lanes.remove(at);
        lane.waiting.iter().for_each(|segment| inbox.free(*segment));
    }

    /// Moves up to `most` frames with `vni` into `to`, receiving if none wait; what was dropped is counted in
    /// `tally`.
    pub(super) fn take(&self, vni: u32, most: usize, to: &mut VecDeque<Segment>, tally: &mut Tally) {
        let inbox = &mut *crate::lock(&self.inbox);
        let Some(own) = inbox.lanes.iter().position(|lane| lane.vni == vni) else { return };
        if inbox.lanes[own].waiting.is_empty() {
            inbox.receive(self, own);
        }
        let lane = &mut inbox.lanes[own];
        tally.frames += std::mem::take(&mut lane.lost_frames);
        if lane.lost.any() {
            tally.drops.merge(&std::mem::take(&mut lane.lost));
        }
        for _ in 0..most {
            let Some(segment) = lane.waiting.pop_front() else { break };
            to.push_back(segment);
        }
    }

    /// Whether frames with `vni` wait outside of the socket.
    pub(super) fn waits(&self, vni: u32) -> bool {
        let inbox = crate::lock(&self.inbox);
        inbox.lanes.iter().any(|lane| lane.vni == vni && !lane.waiting.is_empty())
    }

    /// The frames in these segments are not in use any more.
    pub(super) fn give_back(&self, segments: impl Iterator<Item = Segment>) {
        let inbox = &mut *crate::lock(&self.inbox);
        segments.for_each(|segment| inbox.free(segment));
    }
}

impl Inbox {
    fn new() -> Inbox {
        // SAFETY: all-zero bytes are a valid message.
        let message: mmsghdr = unsafe { std::mem::zeroed() };
        let vector = iovec { iov_base: ptr::null_mut(), iov_len: SLOT };
        Inbox {
            free: (0..).take(SLOTS).collect(),
            users: vec![0; SLOTS].into(),
            owners: vec![0; SLOTS].into(),
            lanes: Vec::new(),
            messages: vec![message; MESSAGES].into(),
            vectors: vec![vector; MESSAGES].into(),
            names: vec![MaybeUninit::uninit(); MESSAGES].into(),
            controls: vec![[0; CONTROLS]; MESSAGES].into(),
        }
    }

    /// A frame less is in its slot.
    fn free(&mut self, segment: Segment) {
        let users = &mut self.users[usize::from(segment.slot)];
        *users -= 1;
        if *users == 0 {
            self.free.push(segment.slot);
            let owner = self.owners[usize::from(segment.slot)];
            if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.vni == owner) {
                // The owner may have left and come again while others had frames in its slot.
                lane.slots = lane.slots.saturating_sub(1);
            }
        }
    }

    /// Slots that one lane may hold: a call's messages are left when all do.
    fn share(&self) -> usize {
        ((SLOTS - MESSAGES) / self.lanes.len().max(1)).max(1)
    }

    /// Takes what has come in, as far as lane `own` has room for it, were all of it its.
    fn receive(&mut self, underlay: &Underlay, own: usize) {
        let room = self.share().saturating_sub(self.lanes[own].slots);
        let count = MESSAGES.min(self.free.len()).min(room);
        let first = self.free.len() - count;
        for index in 0..count {
            let slot = usize::from(self.free[self.free.len() - 1 - index]);
            // SAFETY: inside the mapping, which has SLOTS slots.
            self.vectors[index].iov_base = unsafe { underlay.slots.address().add(slot * SLOT) }.cast();
            let header = &mut self.messages[index].msg_hdr;
            header.msg_name = ptr::from_mut(&mut self.names[index]).cast();
            header.msg_namelen = NAME;
            header.msg_iov = &mut self.vectors[index];
            header.msg_iovlen = 1;
            header.msg_control = self.controls[index].as_mut_ptr().cast();
            header.msg_controllen = size_of::<[u64; CONTROLS]>() as _;
            header.msg_flags = 0;
        }
        let (messages, flags) = (self.messages.as_mut_ptr(), libc::MSG_DONTWAIT);
        let most = u32::try_from(count).unwrap_or(0);
        // SAFETY: `count` messages; what they lead to is alive, and the slots are free (module invariant).
        let got =
            unsafe { libc::recvmmsg(underlay.fd.as_raw_fd(), messages, most, flags as _, ptr::null_mut()) };
        let got = usize::try_from(got).unwrap_or(0).min(count);
        let slots: [u16; MESSAGES] =
            std::array::from_fn(|index| self.free.iter().rev().nth(index).copied().unwrap_or(0));
        self.free.truncate(first + count - got);
        for (index, slot) in slots.into_iter().enumerate().take(got) {
            self.sort(underlay, index, slot);
            if self.users[usize::from(slot)] == 0 {
                self.free.push(slot);
            }
        }
    }

    /// Gives the frames of message `index`, which is in `slot`, to the lanes of their VNIs.
    fn sort(&mut self, underlay: &Underlay, index: usize, slot: u16) {
        let (message, begin) = (&self.messages[index], usize::from(slot) * SLOT);
        let len = (message.msg_len as usize).min(SLOT);
        let (train, ecn) = said(&self.controls[index], message.msg_hdr.msg_controllen as _);
        // SAFETY: the kernel has filled in that many bytes.
        let from = unsafe { SocketAddrAny::new(self.names[index], message.msg_hdr.msg_namelen) };
        let from = SocketAddr::try_from(from).ok().map(|from| from.ip());
        let share = self.share();
        // The last lane, and the endpoint that the sender is there.
        let mut last: Option<(usize, Option<u16>)> = None;
        let mut at = 0;
        loop {
            let part = train.min(len - at);
            let place = begin + at;
            // SAFETY: the slot was just received into, and nothing writes there while it is in use.
            let bytes = unsafe { underlay.slots.bytes(place, part) };
            let is_new = self.users[usize::from(slot)] == 0;
            let (lane, taken) = match vni(bytes) {
                None => (0, Err(DropReason::VxlanHeader)),
                Some(vni) => {
                    if last.is_none_or(|(lane, _)| self.lanes[lane].vni != vni) {
                        let lane = self.lanes.iter().position(|lane| lane.vni == vni);
                        let vtep = |lane: usize| self.lanes[lane].vteps.admits(from?);
                        last = lane.map(|lane| (lane, vtep(lane)));
                    }
                    match last {
                        None => (0, Err(DropReason::VxlanVni)),
                        Some((lane, None)) => (lane, Err(DropReason::VxlanPeer)),
                        Some((lane, _)) if is_new && self.lanes[lane].slots >= share => {
                            (lane, Err(DropReason::HostOverrun))
                        }
                        Some((lane, Some(vtep))) => {
                            (lane, pass_on(behind(bytes, HEADER), ecn).map(|patches| (vtep, patches)))
                        }
                    }
                }
            };
            let lane = &mut self.lanes[lane];
            match taken {
                Ok((vtep, patches)) => {
                    for (at, pair) in patches.into_iter().flatten() {
                        // SAFETY: the slot is nobody's yet, and no slice of it is used below.
                        unsafe { underlay.slots.write(place + HEADER + at, pair) };
                    }
                    if is_new {
                        self.owners[usize::from(slot)] = lane.vni;
                        lane.slots += 1;
                    }
                    self.users[usize::from(slot)] += 1;
                    lane.waiting.push_back(Segment { slot, at: place + HEADER, len: part - HEADER, vtep });
                }
                Err(why) => {
                    lane.lost_frames += 1;
                    lane.lost.add(why, 1);
                }
            }
            at += part;
            if at >= len {
                return;
            }
        }
    }
}

/// The VNI of a datagram, if it has one.
fn vni(bytes: &[u8]) -> Option<u32> {
    let header: &[u8; HEADER] = bytes.first_chunk()?;
    let [flags, _, _, _, a, b, c, _] = *header;
    (flags & HAS_VNI != 0).then(|| u32::from_be_bytes([0, a, b, c]))
}

/// What the control messages in the first `used` bytes say: the length of each datagram of a train but the
/// last, and the outer header's ECN.
fn said(controls: &[u64; CONTROLS], used: usize) -> (usize, u8) {
    // struct cmsghdr: a length of 8 bytes, a level and a kind of 4 each, and behind them a byte or an int.
    let numbers = |word: u64| {
        let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
        [i32::from_ne_bytes([a, b, c, d]), i32::from_ne_bytes([e, f, g, h])]
    };
    let (mut train, mut ecn) = (usize::MAX, 0);
    for control in controls.chunks_exact(3).take(used.div_ceil(24)) {
        let &[_, what, value] = control else { continue };
        match (numbers(what), numbers(value)) {
            ([libc::SOL_UDP, libc::UDP_GRO], [size, _]) => {
                train = usize::try_from(size).unwrap_or(usize::MAX).max(1)
            }
            ([libc::IPPROTO_IP, libc::IP_TOS], _) => ecn = value.to_ne_bytes()[0] & 3,
            ([libc::IPPROTO_IPV6, libc::IPV6_TCLASS], [class, _]) => ecn = class.to_be_bytes()[3] & 3,
            _ => {}
        }
    }
    (train, ecn)
}

/// A socket at this address; with port 0 at a port that nothing has.
pub(super) fn open(at: SocketAddr) -> io::Result<OwnedFd> {
    obtain(&Request::Udp { at }, &[], || open_here(at))
}

/// The work itself, for the broker and for a process without one.
pub(crate) fn open_here(at: SocketAddr) -> io::Result<OwnedFd> {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let fd = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    set_receive_buffer(&fd, if at.port() == 0 { 0 } else { BUFFER })?;
    set_send_buffer(&fd, BUFFER)?;
    bind(&fd, &at)?;
    Ok(fd)
}
