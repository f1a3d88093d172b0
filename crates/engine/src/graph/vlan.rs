//! Tags on the way out: frames get the form that their receiver has for their VLAN.
//!
//! Theory of operation. A frame that needs a tag, or must lose one, is described once more in a batch of our own: the new head is
//! private memory, as every head is, and the body is described where it lies. Where a tag moves four bytes out of the head, they lie
//! in a slot of our own. Checksum and segmentation requests go with the frame, their offsets moved.

use std::time::Instant;

use super::deliver::Delivery;
use super::topology::{Member, Topology};
use crate::mem::{Arena, Pieces};
use crate::packet::{stretch, Batch, Frame, ALL, HEAD, MAX_BATCH};
use crate::policy::{Form, InVlan};
use crate::port::{DropReason, Port, PortId};
use crate::slice::behind;

/// Where a tag stands: behind the addresses (802.1Q §9.3).
const AT: usize = 12;
const TAG: usize = 4;

/// Frames in another form.
pub(super) struct Retagged {
    batch: Batch,
    /// Bytes that a tag moved out of the head.
    moved: Arena,
}

impl Retagged {
    pub(super) fn new() -> Retagged {
        Retagged { batch: Batch::new(), moved: Arena::new(MAX_BATCH, TAG) }
    }

    /// Appends `frame` of `from`, which is in VLAN `of`, in `form`. False if there is no room.
    fn push(&mut self, from: &Batch, frame: &Frame, of: InVlan, form: Form) -> bool {
        let slot = self.batch.len();
        let old = if of.has_tag() { TAG } else { 0 };
        let mut head = [0; HEAD];
        let (addresses, rest) = head.split_at_mut(AT);
        addresses.copy_from_slice(&frame.head[..AT]);
        let new = match form {
            Form::Untagged => 0,
            Form::Tagged(protocol) => {
                let priority = if old > 0 { frame.head[AT + 2] & 0xf0 } else { 0 };
                let [high, low] = of.number().to_be_bytes();
                let [a, b] = protocol.bytes();
                rest[..TAG].copy_from_slice(&[a, b, priority | high, low]);
                TAG
            }
        };
        let taken = AT + old + from.read(frame, AT + old, &mut rest[new..]);
        let len = frame.len as usize - old + new;
        let moved = behind(frame.head(), taken);
        let piece = (!moved.is_empty()).then(|| self.moved.put(slot, moved, 0));
        let offload = frame.offload.moved(old, new);
        let body = stretch(from.body(frame), taken.max(HEAD), frame.len as usize);
        let add = |pieces: &mut Pieces| piece.into_iter().chain(body).all(|piece| pieces.push(piece));
        self.batch.push_with(&head, len, offload, add)
    }
}

impl Delivery {
    /// Delivers `picks` of `batch` to `member` as its policy says, and in the form that it has for their VLANs.
    #[inline(never)]
    pub(super) fn egress(
        &mut self,
        topology: &Topology,
        source: &Port,
        member: &Member,
        batch: &Batch,
        picks: &[u16],
    ) {
        let mut rest = picks;
        while let Some(first) = rest.first() {
            let verdict = self.judge(member, batch, *first);
            let all = self.vlans.are_alike() && !member.filters();
            let run = match all {
                true => rest.len(),
                false => rest.iter().take_while(|pick| self.judge(member, batch, **pick) == verdict).count(),
            };
            let (now, later) = rest.split_at(run);
            rest = later;
            match verdict {
                Err(why) => self.refuse(&member.port, batch, now, why),
                Ok(form) => {
                    let now = self.within_rate(member, batch, now);
                    match form {
                        None => self.as_they_are(topology, source, member, batch, now),
                        Some(form) => self.retag(topology, source, member, batch, now, form),
                    }
                }
            }
        }
    }

    /// Those of `picks` that may go out by `member` now. The others are dropped.
    #[inline]
    fn within_rate<'p>(&self, member: &Member, batch: &Batch, picks: &'p [u16]) -> &'p [u16] {
        let Some(rate) = member.policy.as_ref().and_then(|policy| policy.egress_rate.as_ref()) else {
            return picks;
        };
        let frames = picks.iter().map(|pick| batch.frame(*pick));
        let (now, over) = picks.split_at(rate.admit(frames, Instant::now()).min(picks.len()));
        if !over.is_empty() {
            self.refuse(&member.port, batch, over, DropReason::Rate);
        }
        now
    }

    /// Whether frame `pick` of `batch` may go out at `member`, and the form that it has to get, if it has another.
    #[inline]
    fn judge(&self, member: &Member, batch: &Batch, pick: u16) -> Result<Option<Form>, DropReason> {
        let policy = member.policy.as_deref();
        if let Some(policy) = policy {
            if self.isolated && policy.isolated {
                return Err(DropReason::Isolated);
            }
            policy.admits_control(batch.frame(pick).dst())?;
        }
        let of = self.vlans.of(pick);
        match policy.and_then(|policy| policy.vlans.as_ref()) {
            None if of.number() == 0 => Ok(None),
            None => Err(DropReason::Vlan),
            Some(vlans) => {
                let form = vlans.form(of.number()).ok_or(DropReason::Vlan)?;
                Ok((!of.is(self.vlans.protocol(), form)).then_some(form))
            }
        }
    }

    /// Delivers frames whose form is the receiver's, and copies of them to its mirror. What they go through from here on knows no
    /// VLANs: a group's members, say.
    fn as_they_are(
        &mut self,
        topology: &Topology,
        source: &Port,
        member: &Member,
        batch: &Batch,
        picks: &[u16],
    ) {
        let on = self.vlans.set_on(false);
        self.reach(topology, source, member, batch, picks);
        if let Some(policy) = &member.policy {
            if let Some(to) = policy.mirror[1] {
                self.mirror(topology, &member.port, to, batch, picks);
            }
        }
        self.vlans.set_on(on);
    }

    /// Delivers copies of `picks` of `batch`, which pass `port`, to its mirror `to`. No policy holds there: a mirror gets all that its
    /// ring has room for, and is not mirrored.
    fn mirror(&mut self, topology: &Topology, port: &Port, to: PortId, batch: &Batch, picks: &[u16]) {
        let Some(mirror) = topology.get(to) else { return };
        if mirror.port.is_silent() || !topology.ports.is_up(mirror.port.id) {
            return;
        }
        port.counters.block(self.core).add_made(picks.len() as u64);
        self.deliveries += picks.len();
        self.reach(topology, port, mirror, batch, picks);
    }

    /// Delivers copies of the frames of `batch`, which came in by `port`, to its mirror `to`, but of those that are dropped.
    #[cold]
    pub(super) fn mirror_all(
        &mut self,
        topology: &Topology,
        port: &Port,
        to: PortId,
        batch: &Batch,
        drops: &[(u16, DropReason)],
    ) {
        let mut picks = std::mem::take(&mut self.by_member);
        picks.clear();
        let mut dropped = [false; MAX_BATCH];
        drops.iter().for_each(|(pick, _)| dropped[usize::from(*pick) % MAX_BATCH] = true);
        picks.extend(ALL[..batch.len()].iter().filter(|pick| !dropped[usize::from(**pick)]));
        self.mirror(topology, port, to, batch, &picks);
        self.by_member = picks;
    }

    /// Delivers frames that have to get `form`.
    fn retag(
        &mut self,
        topology: &Topology,
        source: &Port,
        member: &Member,
        batch: &Batch,
        picks: &[u16],
        form: Form,
    ) {
        let Some(mut retagged) = self.retagged.take() else { return };
        let mut rest = picks;
        while !rest.is_empty() {
            retagged.batch.clear();
            let fits = |pick: &&u16| retagged.push(batch, batch.frame(**pick), self.vlans.of(**pick), form);
            let (now, later) = rest.split_at(rest.iter().take_while(fits).count());
            rest = match later.split_first() {
                // Alone it has no room, either: as many pieces as a frame may have.
                Some((first, others)) if now.is_empty() => {
                    self.refuse(&member.port, batch, &[*first], DropReason::TooManyPieces);
                    others
                }
                _ => later,
            };
            // Flows are kept by a frame's place in its batch, and here it has another.
            self.forget_flows();
            self.as_they_are(topology, source, member, &retagged.batch, &ALL[..retagged.batch.len()]);
            self.forget_flows();
        }
        self.retagged = Some(retagged);
    }
}
