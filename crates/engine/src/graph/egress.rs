//! What a port's policy says of frames that go out by it, and its access lists both ways.
//!
//! Theory of operation. Frames for a port meet, in this order, isolation and its VLANs, its access list, its rate, and its mirror.
//! Frames of which the same is to be done, one after the other, are dealt with together. A port whose policy says nothing of what
//! goes out is not dealt with here at all, unless the sender's frames have VLANs.

use std::time::Instant;

use super::deliver::Delivery;
use super::topology::{Attach, Member, Topology};
use crate::packet::{stretch, Batch, Offload, ALL, HEAD, MAX_BATCH};
use crate::policy::acl::{Acl, Headers};
use crate::policy::{Form, IpGuard, Mirror, Policy};
use crate::port::{DropReason, Outcome, Port};

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
                    let mut permitted = std::mem::take(&mut self.permitted);
                    let now = self.permitted(member, batch, now, &mut permitted);
                    let now = self.within_rate(member, batch, now);
                    match form {
                        None => self.as_they_are(topology, source, member, batch, now),
                        Some(form) => self.retag(topology, source, member, batch, now, form),
                    }
                    self.permitted = permitted;
                }
            }
        }
    }

    /// Those of `picks` that the access list of `member` lets pass. What a router's port on a switch takes comes in there.
    #[inline]
    fn permitted<'p>(
        &mut self,
        member: &Member,
        batch: &Batch,
        picks: &'p [u16],
        room: &'p mut Vec<u16>,
    ) -> &'p [u16] {
        let acl = member.policy.as_ref().and_then(|policy| policy.acl[1].as_deref());
        let Some(acl) = acl.filter(|_| !matches!(member.attach, Attach::Gateway(..))) else { return picks };
        room.clear();
        room.extend_from_slice(picks);
        self.filter_egress(acl, &member.port, batch, room);
        room
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
    pub(super) fn judge(
        &self,
        member: &Member,
        batch: &Batch,
        pick: u16,
    ) -> Result<Option<Form>, DropReason> {
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
        if let Some(mirror) = member.policy.as_ref().and_then(|policy| policy.copies(1)) {
            self.mirror(topology, &member.port, mirror, batch, picks.iter().copied());
        }
        self.vlans.set_on(on);
    }

    /// Delivers copies of the frames of `batch`, which came in by `port`, to its mirror, but of those that are dropped.
    #[cold]
    pub(super) fn mirror_all(
        &mut self,
        topology: &Topology,
        port: &Port,
        mirror: &Mirror,
        batch: &Batch,
        drops: &[(u16, DropReason)],
    ) {
        let mut dropped = [false; MAX_BATCH];
        drops.iter().for_each(|(pick, _)| dropped[usize::from(*pick) % MAX_BATCH] = true);
        let picks = ALL[..batch.len()].iter().filter(|pick| !dropped[usize::from(**pick)]);
        self.mirror(topology, port, mirror, batch, picks.copied());
    }

    /// Delivers copies of `picks` of `batch`, which pass `port`, to its mirror. No policy holds there: a mirror gets all that its
    /// ring has room for, and is not mirrored.
    fn mirror(
        &mut self,
        topology: &Topology,
        port: &Port,
        mirror: &Mirror,
        batch: &Batch,
        picks: impl Iterator<Item = u16>,
    ) {
        let Some(to) = topology.get(mirror.to) else { return };
        if to.port.is_silent() || !topology.ports.is_up(to.port.id) {
            return;
        }
        let mut copied = std::mem::take(&mut self.copied);
        copied.clear();
        copied.extend(picks);
        if let Some(acl) = &mirror.acl {
            let mut unwanted = std::mem::take(&mut self.by_member);
            unwanted.clear();
            self.judge_all(acl, batch, copied.iter().copied(), |pick| unwanted.push(pick));
            copied.retain(|pick| unwanted.binary_search(pick).is_err());
            self.by_member = unwanted;
        }
        port.counters.block(self.core).add_made(copied.len() as u64);
        self.deliveries += copied.len();
        match mirror.snap.zip(self.cut.take()) {
            None => self.reach(topology, port, to, batch, &copied),
            Some((snap, mut cut)) => {
                cut.clear();
                for frame in copied.iter().map(|pick| batch.frame(*pick)) {
                    let len = (frame.len as usize).min(snap.into());
                    let mut body = stretch(batch.body(frame), HEAD, len);
                    // One batch has room for what another had. The copy asks for no offloads: a checksum that was to be made is not.
                    cut.push_with(&frame.head, len, Offload::NONE, |to| body.all(|piece| to.push(piece)));
                }
                self.forget_flows();
                self.reach(topology, port, to, &cut, &ALL[..cut.len()]);
                self.forget_flows();
                self.cut = Some(cut);
            }
        }
        self.copied = copied;
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

impl Delivery {
    /// Takes the frames out of `batch` that the guard and the access list in `policy` refuse. They came by `port` if they are `new`,
    /// which captures see, or leave a router by it, where there is no guard. Whether there were any.
    #[inline]
    pub(super) fn filter(&mut self, policy: &Policy, port: &Port, batch: &mut Batch, new: bool) -> bool {
        let (guard, acl) = (policy.ip_guard.as_ref().filter(|_| new), &policy.acl[usize::from(!new)]);
        (guard.is_some() || acl.is_some()) && self.filter_ingress(guard, acl.as_deref(), port, batch, new)
    }

    /// As [`Delivery::filter`].
    #[cold]
    fn filter_ingress(
        &mut self,
        guard: Option<&IpGuard>,
        acl: Option<&Acl>,
        port: &Port,
        batch: &mut Batch,
        new: bool,
    ) -> bool {
        let mut refused = std::mem::take(&mut self.by_member);
        refused.clear();
        let mut outcome = Outcome::new();
        outcome.trace = (new && port.capture.is_on()).then(Vec::new);
        let mut passing = std::mem::take(&mut self.permitted);
        passing.clear();
        passing.extend(ALL.iter().take(batch.len()));
        if let Some(guard) = guard {
            passing.retain(|pick| {
                let verdict = guard.admits(batch, batch.frame(*pick));
                verdict.inspect_err(|why| outcome.dropped(*pick, *why)).is_ok()
            });
        }
        if let Some(acl) = acl {
            self.judge_all(acl, batch, passing.iter().copied(), |pick| refused.push(pick));
            outcome.dropped_all(&refused, DropReason::Acl);
            passing.retain(|pick| refused.binary_search(pick).is_err());
        }
        let any = passing.len() < batch.len();
        if any {
            port.counters.block(self.core).add_outcome(&outcome);
            if let Some(drops) = &mut outcome.trace {
                drops.sort_unstable_by_key(|(pick, _)| *pick);
                refused.clear();
                refused.extend(drops.iter().map(|(pick, _)| *pick));
                port.capture.refused(batch, &refused, drops);
            }
            batch.retain(|frame| passing.binary_search(&frame).is_ok());
        }
        (self.by_member, self.permitted) = (refused, passing);
        any
    }

    /// Takes those that `acl` refuses out of `picks` of `batch`, which were to go out by `port`.
    #[cold]
    pub(super) fn filter_egress(&mut self, acl: &Acl, port: &Port, batch: &Batch, picks: &mut Vec<u16>) {
        let mut refused = std::mem::take(&mut self.by_member);
        refused.clear();
        self.judge_all(acl, batch, picks.iter().copied(), |pick| refused.push(pick));
        if !refused.is_empty() {
            self.refuse(port, batch, &refused, DropReason::Acl);
            picks.retain(|pick| refused.binary_search(pick).is_err());
        }
        self.by_member = refused;
    }

    /// Calls `refuse` with each of `picks` of `batch` that `acl` lets not pass.
    fn judge_all(
        &mut self,
        acl: &Acl,
        batch: &Batch,
        picks: impl Iterator<Item = u16> + Clone,
        mut refuse: impl FnMut(u16),
    ) {
        let Delivery { acl_cache, vlans, core, .. } = self;
        let headers = |pick: u16| Headers::of(batch, batch.frame(pick), vlans.of(pick).number());
        let mut asked = picks.clone();
        acl_cache.decide(acl, picks.map(headers), |rule| {
            acl.count(*core, rule);
            if let (Some(pick), false) = (asked.next(), acl.permits(rule)) {
                refuse(pick);
            }
        });
    }
}
