//! The UDP socket at which frames of all VNIs of one address come in.
//!
//! Theory of operation. Ports with different VNIs at one address have one socket. Each has a *lane* behind it, and fetches from
//! its own; if that is empty it receives for all: one recvmmsg(2) takes up to 32 datagrams into slots of 64 KiB. With UDP_GRO
//! (udp(7)) a datagram may be a train of them, each with a VXLAN header of its own. Each goes to the lane of its VNI, where it
//! stays in its slot until the port has forwarded it. A lane that is not emptied may hold a part of the slots, so that one port
//! stops no other.
//!
//! A sleeping core needs no other wake-up than the socket's: the event of a datagram reaches all cores that have a port here, and a
//! port sleeps only when both its lane and the socket were empty.
//!
//! Invariant of the `unsafe` here: the kernel and this module write to a slot while it is free, under the lock of the inbox;
//! from then on it is only read until `give_back` has freed it, which the port calls when no frame of its is in use any more. Pointers in
//! the messages lead to slots, names and control buffers of the inbox, and are used by the one call for which they are set.

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

use super::vteps::Vteps;
use crate::host::interface::{set_option, set_receive_buffer, set_send_buffer};
use crate::host::mapping::Mapping;
use crate::port::{DropReason, Drops, Tally};
use crate::sandbox::open::broker::{obtain, Request};

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

/// UDP_GRO of linux/udp.h.
const UDP_GRO: c_int = 104;

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
    /// By slot: how many frames are in it.
    users: Box<[u16]>,
    lanes: Vec<Lane>,
    messages: Box<[mmsghdr]>,
    vectors: Box<[iovec]>,
    names: Box<[MaybeUninit<SocketAddrStorage>]>,
    controls: Box<[[u64; 4]]>,
}

// SAFETY: pointers in the messages are set anew for each call, under the inbox's lock.
unsafe impl Send for Inbox {}

/// What waits for the port with one VNI.
struct Lane {
    vni: u32,
    vteps: Arc<Vteps>,
    waiting: VecDeque<Segment>,
    /// How many slots that is.
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
                let on: c_int = 1;
                // SAFETY: UDP_GRO takes an int.
                unsafe { set_option(&fd, libc::SOL_UDP, UDP_GRO, &on) }?;
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
        inbox.lanes.push(Lane {
            vni,
            vteps: Arc::clone(vteps),
            waiting: VecDeque::with_capacity(SLOTS),
            slots: 0,
            lost: Drops::default(),
            lost_frames: 0,
        });
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

    /// Moves up to `most` frames with `vni` into `to`, receiving if none wait; what was dropped is counted in `tally`.
    pub(super) fn take(&self, vni: u32, most: usize, to: &mut VecDeque<Segment>, tally: &mut Tally) {
        let inbox = &mut *crate::lock(&self.inbox);
        let Some(own) = inbox.lanes.iter().position(|lane| lane.vni == vni) else { return };
        if inbox.lanes[own].waiting.is_empty() {
            inbox.receive(self, tally);
        }
        let lane = &mut inbox.lanes[own];
        tally.frames += std::mem::take(&mut lane.lost_frames);
        if lane.lost.any() {
            tally.drops.merge(&std::mem::take(&mut lane.lost));
        }
        for _ in 0..most {
            let Some(segment) = lane.waiting.pop_front() else { break };
            if lane.waiting.front().is_none_or(|next| next.slot != segment.slot) {
                lane.slots -= 1;
            }
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
            lanes: Vec::new(),
            messages: vec![message; MESSAGES].into(),
            vectors: vec![vector; MESSAGES].into(),
            names: vec![MaybeUninit::uninit(); MESSAGES].into(),
            controls: vec![[0; 4]; MESSAGES].into(),
        }
    }

    /// A frame less is in its slot.
    fn free(&mut self, segment: Segment) {
        let users = &mut self.users[usize::from(segment.slot)];
        *users -= 1;
        if *users == 0 {
            self.free.push(segment.slot);
        }
    }

    /// Takes what has come in.
    fn receive(&mut self, underlay: &Underlay, tally: &mut Tally) {
        let count = MESSAGES.min(self.free.len());
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
            header.msg_controllen = size_of::<[u64; 4]>() as _;
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
            self.sort(underlay, index, slot, tally);
            if self.users[usize::from(slot)] == 0 {
                self.free.push(slot);
            }
        }
    }

    /// Gives the frames of message `index`, which is in `slot`, to the lanes of their VNIs.
    fn sort(&mut self, underlay: &Underlay, index: usize, slot: u16, tally: &mut Tally) {
        let (message, begin) = (&self.messages[index], usize::from(slot) * SLOT);
        let len = (message.msg_len as usize).min(SLOT);
        let train = if message.msg_hdr.msg_controllen == 0 { len } else { gro_size(&self.controls[index]) };
        // SAFETY: the kernel has filled in that many bytes.
        let from = unsafe { SocketAddrAny::new(self.names[index], message.msg_hdr.msg_namelen) };
        let from = SocketAddr::try_from(from).ok().map(|from| from.ip());
        let share = MESSAGES.max(SLOTS / 2 / self.lanes.len().max(1));
        // The last lane, and the endpoint that the sender is there.
        let mut last: Option<(usize, Option<u16>)> = None;
        let mut at = 0;
        while at < len {
            let part = train.clamp(1, len - at);
            // SAFETY: the slot was just received into, and nothing writes there while it is in use.
            let bytes = unsafe { underlay.slots.bytes(begin + at, part) };
            let place = begin + at + HEADER;
            at += part;
            let mut refuse = |reason| {
                tally.frames += 1;
                tally.drops.add(reason, 1);
            };
            let Some(vni) = vni(bytes) else {
                refuse(DropReason::VxlanHeader);
                continue;
            };
            if last.is_none_or(|(lane, _)| self.lanes[lane].vni != vni) {
                let lane = self.lanes.iter().position(|lane| lane.vni == vni);
                let vtep = |lane: usize| self.lanes[lane].vteps.admits(from?);
                last = lane.map(|lane| (lane, vtep(lane)));
            }
            let Some((lane, vtep)) = last else {
                refuse(DropReason::VxlanVni);
                continue;
            };
            let lane = &mut self.lanes[lane];
            let is_new = lane.waiting.back().is_none_or(|last| last.slot != slot);
            let why = match vtep {
                None => DropReason::VxlanPeer,
                Some(_) if is_new && lane.slots >= share => DropReason::HostOverrun,
                Some(vtep) => {
                    lane.slots += usize::from(is_new);
                    lane.waiting.push_back(Segment { slot, at: place, len: part - HEADER, vtep });
                    self.users[usize::from(slot)] += 1;
                    continue;
                }
            };
            lane.lost_frames += 1;
            lane.lost.add(why, 1);
        }
        if len == 0 {
            tally.frames += 1;
            tally.drops.add(DropReason::VxlanHeader, 1);
        }
    }
}

/// The VNI of a datagram, if it has one.
fn vni(bytes: &[u8]) -> Option<u32> {
    let header: &[u8; HEADER] = bytes.first_chunk()?;
    let [flags, _, _, _, a, b, c, _] = *header;
    (flags & HAS_VNI != 0).then(|| u32::from_be_bytes([0, a, b, c]))
}

/// The length of each datagram of a train but the last, as the one control message says that is asked for.
fn gro_size(control: &[u64; 4]) -> usize {
    // struct cmsghdr: a length of 8 bytes, a level and a kind of 4 each, and behind them an int.
    let numbers = |word: u64| {
        let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
        [i32::from_ne_bytes([a, b, c, d]), i32::from_ne_bytes([e, f, g, h])]
    };
    match (numbers(control[1]), numbers(control[2])) {
        ([libc::SOL_UDP, UDP_GRO], [size, _]) => usize::try_from(size).unwrap_or(usize::MAX),
        _ => usize::MAX,
    }
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
