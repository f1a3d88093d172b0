//! The learning switch (IEEE 802.1Q §8.8 in spirit, VALE in method).
//!
//! Theory of operation. A batch comes from one port. Pass 1 walks its frames: it checks the MTU, learns the
//! source address, looks the destination up, and notes each frame on the list of its destination
//! ([`Verdicts`]). Pass 2 (`graph/deliver.rs`) visits each destination once with its list. Lists keep the
//! order of the batch, and flooded frames are merged in at their position, so no flow is reordered.
//!
//! Group addresses are flooded, but for the reserved ones of 802.1Q table 8-1: LACP, LLDP, 802.1X and PAUSE
//! end at a switch, unless the operator has it pass them on. The spanning tree's is flooded as by any switch
//! that takes no part in it, unless a port says otherwise.
//!
//! Limits. The table has `table-size` addresses. A port has `mac-limit` addresses; frames from further source
//! addresses are dropped with a name. Entries age after `ageing` seconds. A new address always finds an
//! entry; `table` explains which entry gives way, and what happens when two ports have one address.

mod atomic;
mod claim;
mod sizes;
mod table;
#[cfg(test)]
mod table_tests;
mod verdict;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

pub use claim::{Contest, HOLD};
pub use table::{Dispute, Entry, Found, Kind, Learned, MacTable, Rivals, Teller};
pub use verdict::{Verdicts, FLOOD};

use crate::packet::{is_group, Batch};
use crate::policy::{BatchVlans, Policy};
use crate::port::{DropReason, Port, PortId, Ports};

/// What can be chosen about a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchOptions {
    /// Addresses that it can learn.
    pub table_size: usize,
    /// Seconds after which an address that was not seen is forgotten.
    pub ageing: u32,
    /// Whether frames for reserved group addresses pass.
    pub control_frames: bool,
    /// Whether an address moves by the first frame from another port.
    pub moves: bool,
}

impl Default for SwitchOptions {
    fn default() -> Self {
        // 802.1Q table 8-6 recommends 300 s.
        SwitchOptions { table_size: 8192, ageing: 300, control_frames: false, moves: false }
    }
}

/// Most ports that get copies of a frame for a held address; if more use it, all ports do.
const MAX_RIVALS: u32 = 8;

/// The ports of a switch.
#[derive(Clone, Copy)]
pub struct Members<'a> {
    /// Those that are attached to it, in the order of their names.
    pub here: &'a [PortId],
    /// All ports.
    pub all: &'a Ports,
}

/// Where the frames of a batch come from.
#[derive(Clone, Copy)]
pub struct Sender<'a> {
    /// The port on the switch.
    pub port: &'a Port,
    /// What it may do.
    pub policy: Option<&'a Policy>,
    /// The VLANs of its frames.
    pub vlans: &'a BatchVlans,
}

/// Where an address is.
#[derive(Clone, Copy)]
enum Destination {
    To(PortId),
    /// At the one or the other: two ports have it.
    Both(PortId, PortId),
    /// Held at the one, and used by the others.
    Held(PortId, Rivals),
    Flood,
    /// At the port that asks.
    Back,
    /// A reserved group address, whose frames end here.
    Reserved,
}

/// The reserved group addresses, 01:80:c2:00:00:00 to 0f, but for their last four bits, and that of the
/// spanning tree among them.
const RESERVED: u64 = 0x00_00_00_c2_80_01;
const LAST: u64 = 0x0f_00_00_00_00_00;
/// An address without the VLAN that stands above it.
const MAC: u64 = (1 << 48) - 1;

/// A key that no peer can know: the standard library's hasher is seeded by the system.
pub(crate) fn random_key() -> [u64; 2] {
    [0, 1].map(|_| RandomState::new().build_hasher().finish())
}

/// A learning switch.
pub struct Switch {
    /// Its name.
    pub name: String,
    /// Its MAC table.
    pub table: MacTable,
    ageing: AtomicU32,
    control_frames: AtomicBool,
    moves: AtomicBool,
}

impl Switch {
    /// A learning switch with an empty table.
    pub fn new(name: &str, options: SwitchOptions) -> Switch {
        Switch {
            name: name.to_owned(),
            table: MacTable::new(options.table_size, random_key()),
            ageing: AtomicU32::new(options.ageing),
            control_frames: AtomicBool::new(options.control_frames),
            moves: AtomicBool::new(options.moves),
        }
    }

    /// This switch with another table, which has what this one knows, as far as there is room.
    pub fn with_new_table(&self, options: SwitchOptions) -> Switch {
        let new = Switch::new(&self.name, options);
        new.table.take_over_all(&self.table);
        new
    }

    /// Seconds after which an address that was not seen is forgotten.
    pub fn ageing(&self) -> u32 {
        self.ageing.load(Ordering::Relaxed)
    }

    /// Takes what can be changed while it runs from `options`.
    pub fn set(&self, options: SwitchOptions) {
        self.ageing.store(options.ageing, Ordering::Relaxed);
        self.control_frames.store(options.control_frames, Ordering::Relaxed);
        self.moves.store(options.moves, Ordering::Relaxed);
    }

    /// Pass 1: a verdict for each frame of a batch from `sender`, at time `now` in seconds. Without a time
    /// nothing is learned: it is only asked.
    // Two walks call it, the live one and the dry one: without `always` the compiler has the live one call a
    // function for each batch, and each verdict in it costs more.
    #[inline(always)]
    pub fn classify(
        &self,
        batch: &Batch,
        sender: Sender<'_>,
        now: Option<u32>,
        members: Members<'_>,
        verdicts: &mut Verdicts,
    ) {
        let admit = |src, dst| self.source((src, dst), sender.port, sender.policy, now, members);
        match sender.vlans.is_on() {
            false => self.decide(batch, sender, members, |_| 0, admit, verdicts),
            true => self.decide(batch, sender, members, |index| sender.vlans.key(index), admit, verdicts),
        }
    }

    /// What would become of a frame from `src` that may come in: whether the port may have one more address.
    /// If it would live here from now on, a frame to itself goes nowhere.
    #[cold]
    fn foresee(&self, (src, dst): (u64, u64), by: &Teller, members: Members<'_>) -> Result<(), DropReason> {
        let found = self.table.lookup(src);
        let has = |it: Found| [Some(it.port), it.claimant].contains(&Some(by.port));
        let held = |it: Found| match it.kind {
            Kind::Static => true,
            Kind::Pinned => members.all.keeps(it.port),
            Kind::Learned => false,
        };
        let stays = |it: Found| held(it) || it.rivals != Rivals::NONE;
        let comes = |it: Found| !stays(it) && (by.moves || by.owns || !members.all.keeps(it.port));
        let free = src & MAC == 0 || by.limit == 0 || found.is_some_and(|it| has(it) || stays(it));
        match found.is_none_or(|it| it.port == by.port && it.rivals == Rivals::NONE || comes(it)) {
            _ if !free && self.table.count(by.port) >= by.limit => Err(DropReason::MacLimit),
            true if src == dst && src & MAC != 0 => Err(DropReason::Hairpin),
            _ => Ok(()),
        }
    }

    /// As [`Switch::classify`], where `vlan` tells what stands above the addresses of a frame, and `admit`
    /// whether one may come from a source to a destination.
    #[inline(always)]
    fn decide(
        &self,
        batch: &Batch,
        Sender { port: from, policy, .. }: Sender<'_>,
        members: Members<'_>,
        vlan: impl Fn(usize) -> u64,
        admit: impl Fn(u64, u64) -> Result<(), DropReason>,
        verdicts: &mut Verdicts,
    ) {
        let mut last = u64::MAX;
        for (i, frame) in batch.frames().iter().enumerate() {
            let dst = frame.dst() | vlan(i);
            if dst != last {
                last = dst;
                self.table.prefetch(last);
            }
        }
        // Frames of one flow come in a row: what was decided on an address goes for the next frames with it.
        let mut last_src = u64::MAX;
        let mut last_dst = (u64::MAX, Destination::Flood);
        for (i, frame) in batch.frames().iter().enumerate() {
            let (src, dst) = (frame.src() | vlan(i), frame.dst() | vlan(i));
            if src != last_src {
                if let Err(reason) = admit(src, dst) {
                    verdicts.drop(i, reason);
                    continue;
                }
                last_src = src;
                if src == last_dst.0 {
                    // It was looked for before it was learned.
                    last_dst.0 = u64::MAX;
                }
            }
            if dst != last_dst.0 {
                last_dst = (dst, self.destination(dst, from.id, members));
            }
            match last_dst.1 {
                Destination::To(port) => verdicts.send(i, port),
                Destination::Both(port, other) => {
                    verdicts.send(i, port);
                    verdicts.also(i, other);
                }
                Destination::Held(home, rivals) => self.held(i, (home, rivals), from.id, members, verdicts),
                // A station's own; an address of zeros is none's.
                Destination::Flood if src == dst && src & MAC != 0 && !is_group(dst) => {
                    verdicts.drop(i, DropReason::Hairpin);
                }
                Destination::Flood => {
                    match policy.map_or(Ok(()), |policy| policy.admits_control(dst & MAC)) {
                        Ok(()) => verdicts.flood(i),
                        Err(reason) => verdicts.drop(i, reason),
                    }
                }
                Destination::Reserved => verdicts.drop(i, DropReason::ControlFrame),
                Destination::Back => verdicts.drop(i, DropReason::Hairpin),
            }
        }
    }

    /// Where a frame for `dst` that came from `from` goes.
    #[inline]
    fn destination(&self, dst: u64, from: PortId, members: Members<'_>) -> Destination {
        if is_group(dst) {
            let reserved = dst & MAC & !LAST == RESERVED && dst & LAST != 0;
            return match reserved && !self.control_frames.load(Ordering::Relaxed) {
                true => Destination::Reserved,
                false => Destination::Flood,
            };
        }
        match self.table.lookup(dst) {
            None => Destination::Flood,
            Some(Found { port, rivals, .. }) if rivals != Rivals::NONE => match rivals.count() {
                ..=MAX_RIVALS => Destination::Held(port, rivals),
                _ => Destination::Flood,
            },
            Some(Found { port, claimant: None, .. }) if port == from => Destination::Back,
            Some(Found { port, claimant: None, .. }) => Destination::To(port),
            Some(Found { port, claimant: Some(other), .. }) => match (port == from, other == from) {
                (true, true) => Destination::Back,
                (true, _) => Destination::To(other),
                (_, true) => Destination::To(port),
                _ if !members.all.is_up(port) => Destination::To(other),
                _ if !members.all.is_up(other) => Destination::To(port),
                _ => Destination::Both(port, other),
            },
        }
    }

    /// Frame `i` is for an address that is held: its home and all its rivals get it.
    #[cold]
    fn held(
        &self,
        i: usize,
        (home, rivals): (PortId, Rivals),
        from: PortId,
        members: Members<'_>,
        verdicts: &mut Verdicts,
    ) {
        let has = |port: PortId| port == home || rivals.has(port);
        let mut there = members
            .here
            .iter()
            .copied()
            .filter(|port| *port != from && has(*port) && members.all.is_up(*port));
        match there.next() {
            Some(first) => verdicts.send(i, first),
            None => verdicts.drop(i, DropReason::Hairpin),
        }
        there.for_each(|port| verdicts.also(i, port));
    }

    /// Whether frames from `src` to `dst` may come in by `from`; if they may, where it lives is learned, or
    /// foreseen.
    #[inline]
    fn source(
        &self,
        (src, dst): (u64, u64),
        from: &Port,
        policy: Option<&Policy>,
        now: Option<u32>,
        members: Members<'_>,
    ) -> Result<(), DropReason> {
        let moves = self.moves.load(Ordering::Relaxed);
        let (time, ageing) = (now.unwrap_or(0), self.ageing());
        let mut by = Teller { port: from.id, limit: 0, owns: false, moves, now: time, ageing };
        if let Some(policy) = policy {
            if !policy.guard.admits(src & MAC) {
                return Err(DropReason::MacGuard);
            }
            (by.limit, by.owns) = (policy.mac_limit, policy.guard.owns(src & MAC));
            by.moves = policy.moves.unwrap_or(moves || policy.guard.is_virtual(src & MAC));
        }
        if is_group(src) || from.is_told() {
            return Ok(());
        }
        if now.is_none() {
            return self.foresee((src, dst), &by, members);
        }
        match self.table.learn(src, &by, |port| members.all.keeps(port)) {
            Learned::Limit => return Err(DropReason::MacLimit),
            Learned::Claimed(_) => from.claims.heeded(),
            Learned::Pinned(_) => from.claims.pinned(),
            Learned::Held(_) => from.claims.held(),
            Learned::Known | Learned::New | Learned::Moved(_) | Learned::Full => {}
        }
        Ok(())
    }

    /// Forgets everything behind `port`, which is gone or has lost its link; static entries stay if `stays`.
    pub fn forget(&self, port: PortId, stays: bool, now: u32) {
        self.table.forget(port, stays, now, self.ageing());
    }

    /// Forgets what it knows of `port` in VLANs that the port does not carry any more.
    pub fn forget_vlans(&self, port: PortId, carries: impl Fn(u16) -> bool, now: u32) {
        self.table.forget_vlans(port, carries, now, self.ageing());
    }

    /// Puts `mac`, above which its VLAN stands, behind `port` to stay; false if there is no room.
    pub fn pin(&self, mac: u64, port: PortId, kind: Kind, now: u32) -> bool {
        self.table.pin(
            mac,
            &Teller { port, limit: 0, owns: true, moves: false, now, ageing: self.ageing() },
            kind,
        )
    }

    /// A control plane says that `mac`, above which its VLAN stands, is behind `port`, for good if it is
    /// `sticky`. False: there is no room, or another port has it for good. It stays until the control plane
    /// takes it back or the station speaks elsewhere; in a bucket with many of such, as long as a station
    /// that is heard.
    pub fn tell(&self, mac: u64, port: PortId, sticky: bool, now: u32) -> bool {
        let kind = match sticky {
            true => Kind::Static,
            false if self.table.may_fix(mac) => Kind::Pinned,
            false => Kind::Learned,
        };
        // Whoever has it by having spoken has lost it.
        let kept = self.table.lookup(mac).is_some_and(|it| it.kind != Kind::Learned && it.port != port);
        mac & MAC != 0 && !kept && self.pin(mac, port, kind, now)
    }

    /// Forgets addresses that have aged, but for those at ports where they `stay`. For the control plane,
    /// every second. True: the table is under attack, and the switch needs another one.
    pub fn age(&self, now: u32, stay: impl Fn(PortId) -> bool) -> bool {
        self.table.age(now, self.ageing(), stay);
        self.table.pressed()
    }
}
