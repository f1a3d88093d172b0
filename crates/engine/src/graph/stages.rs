//! The stages of ports: what their rules do to frames that come in, and to frames that go out.
//!
//! Theory of operation. A port's rules are two lists, the same whether it stands on a switch, a wire, a
//! router or a group. *In*: MTU, VLAN, guards, access list; on a switch then the MAC guard, the number of
//! addresses, learning, and the spanning tree's frames (`switch::Switch`), and when the receivers are known
//! the storm limits (`graph/switch.rs`). *Out*: isolation, the spanning tree's frames, the form of the VLAN,
//! access list, rate, mirror. At a gateway directions are the router's: what enters it passes the list of
//! *in*, what leaves it that of *out*, each once.
//!
//! A stage sees no byte that the sender can still change. Before the first stage of a walk, headers that do
//! not end in a frame's private head were read once into memory of the batch (`Batch::see_through`), and the
//! receiver gets that reading.
//!
//! Frames of which the same is to be done, one after the other, are dealt with together. A port for which
//! nothing is configured costs a look at the lengths of its frames.

use std::time::Instant;

use super::deliver::Delivery;
use super::effects::Effects;
use super::topology::{Attach, Member, Source};
use crate::packet::{Batch, Picked, ALL};
use crate::policy::acl::{Acl, Headers};
use crate::policy::{Form, Policy};
use crate::port::{DropReason, Outcome, Port};

impl<E: Effects> Delivery<E> {
    /// Has `batch`, which comes by `port`, pass the first stages of *in*. What they refuse is taken out of
    /// it.
    #[inline]
    pub(super) fn come_in(
        &mut self,
        policy: Option<&Policy>,
        port: &Port,
        batch: &mut Batch,
        on_switch: bool,
    ) {
        let mut each = port.any_too_long(batch);
        if let Some(policy) = policy {
            self.enter(policy, batch, on_switch);
            each |= self.vlans.any_refused() || policy.ip_guard.is_some();
        }
        let asks = each || policy.is_some_and(|policy| policy.acl[0].is_some());
        if asks && self.refuse_in(policy, port, batch, each) {
            policy.iter().for_each(|policy| self.enter(policy, batch, on_switch));
        }
    }

    /// `batch` comes to a node by a port with `policy`: only a switch has VLANs, and knows isolated ports.
    #[inline]
    pub(super) fn enter(&mut self, policy: &Policy, batch: &Batch, on_switch: bool) {
        if on_switch {
            self.isolated = policy.isolated;
            self.vlans.find(batch, policy.vlans.as_ref());
        }
    }

    /// Takes those frames out of `batch` that MTU, VLAN and guards refuse, which are asked for `each` or for
    /// none, or the access list. Whether there were any.
    #[inline(never)]
    fn refuse_in(&mut self, policy: Option<&Policy>, port: &Port, batch: &mut Batch, each: bool) -> bool {
        let mut outcome = self.outcome(port);
        let mut passing = std::mem::take(&mut self.permitted);
        passing.clear();
        let guard = policy.and_then(|policy| policy.ip_guard.as_ref());
        if !each {
            passing.extend_from_slice(&ALL[..batch.len()]);
        }
        for (pick, frame) in (0..).zip(batch.frames()).take_while(|_| each) {
            let judged = match port.is_too_long(frame) {
                true => Err(DropReason::TooLong),
                false => self.vlans.admits(pick),
            };
            match judged.and_then(|()| guard.map_or(Ok(()), |guard| guard.admits(batch, frame))) {
                Ok(()) => passing.push(pick),
                Err(why) => outcome.dropped(pick, why),
            }
        }
        if let Some(acl) = policy.and_then(|policy| policy.acl[0].as_deref()) {
            let refused = self.listed(port, acl, batch, &mut passing);
            outcome.dropped_all(&refused, DropReason::Acl);
            self.by_member = refused;
        }
        let any = passing.len() < batch.len();
        if any {
            self.settle(port, &outcome);
            if let (Some(drops), true) = (&mut outcome.trace, E::LIVE) {
                drops.sort_unstable_by_key(|(pick, _)| *pick);
                self.by_member.clear();
                self.by_member.extend(drops.iter().map(|(pick, _)| *pick));
                port.capture.ingress(batch.only(&self.by_member), drops);
            }
            batch.retain(|frame| passing.binary_search(&frame).is_ok());
        }
        self.permitted = passing;
        any
    }

    /// Has `batch`, which leaves a router by `at`, pass the stages of *out* before its mirror. What they
    /// refuse is taken out of it.
    pub(super) fn leave_router(&mut self, at: &Member, batch: &mut Batch) {
        let Some(policy) = at.policy.as_deref() else { return };
        let mut room = std::mem::take(&mut self.permitted);
        let left = self.within_list(policy, &at.port, batch.all(), &mut room);
        let left = self.within_rate(policy, &at.port, left).picks;
        self.picks.clear();
        self.picks.extend_from_slice(left);
        batch.retain(|frame| self.picks.binary_search(&frame).is_ok());
        self.permitted = room;
    }

    /// Delivers `picked` frames to `member`, which is asked for each by its stages of *out*, in the form that
    /// it has for their VLANs. What a router's gateway takes here comes in there.
    #[inline(never)]
    pub(super) fn egress(&mut self, source: Source<'_>, member: &Member, picked: Picked<'_>) {
        let policy = member.policy.as_deref();
        let own = policy.filter(|_| !matches!(member.attach, Attach::Gateway(..)));
        let all = self.vlans.are_alike() && !policy.is_some_and(|policy| policy.no_bpdu);
        let mut rest = picked;
        while let Some(first) = rest.picks.first() {
            let judge = |it: &Self, pick: u16| {
                let sent = (it.isolated, it.vlans.protocol);
                Policy::judge_out(policy, picked.batch.frame(pick).dst(), it.vlans.of(pick), sent)
            };
            let verdict = judge(self, *first);
            let run = match all {
                true => rest.picks.len(),
                false => rest.picks.iter().take_while(|pick| judge(self, **pick) == verdict).count(),
            };
            let (now, later) = rest.split_at(run);
            rest = later;
            match verdict {
                Err(why) => self.refuse(&member.port, now, why),
                Ok(form) => {
                    let mut room = std::mem::take(&mut self.permitted);
                    let now = match own {
                        Some(policy) => {
                            let now = self.within_list(policy, &member.port, now, &mut room);
                            self.within_rate(policy, &member.port, now)
                        }
                        None => now,
                    };
                    match form {
                        None => self.as_they_are(source, member, now),
                        Some(form) => self.retag(source, member, now, form),
                    }
                    self.permitted = room;
                }
            }
        }
    }

    /// Those `picked` frames that the list of `policy` lets go out by `port`.
    #[inline]
    fn within_list<'p>(
        &mut self,
        policy: &Policy,
        port: &Port,
        picked: Picked<'p>,
        room: &'p mut Vec<u16>,
    ) -> Picked<'p> {
        let Some(acl) = policy.acl[1].as_deref() else { return picked };
        room.clear();
        room.extend_from_slice(picked.picks);
        let refused = self.listed(port, acl, picked.batch, room);
        if !refused.is_empty() {
            self.refuse(port, picked.batch.only(&refused), DropReason::Acl);
        }
        self.by_member = refused;
        picked.batch.only(room)
    }

    /// Those `picked` frames for which the rate of `policy` has room at `port` now. The others are dropped.
    #[inline]
    fn within_rate<'p>(&mut self, policy: &Policy, port: &Port, picked: Picked<'p>) -> Picked<'p> {
        let Some(rate) = &policy.egress_rate else { return picked };
        let (now, over) = picked.split_at(rate.admit(picked.frames(), Instant::now(), E::LIVE));
        if !over.picks.is_empty() {
            self.refuse(port, over, DropReason::Rate);
        }
        now
    }

    /// Takes those of `picks` of `batch` that `acl`, a list of `port`, refuses out of them, and returns them:
    /// in `by_member`, which the caller gives back.
    #[inline(never)]
    fn listed(&mut self, port: &Port, acl: &Acl, batch: &Batch, picks: &mut Vec<u16>) -> Vec<u16> {
        let mut refused = std::mem::take(&mut self.by_member);
        refused.clear();
        self.judge_all(Some(port), acl, batch.only(picks), |pick| refused.push(pick));
        if !refused.is_empty() {
            picks.retain(|pick| refused.binary_search(pick).is_err());
        }
        refused
    }

    /// Calls `refuse` with each of the `picked` frames that `acl` lets not pass. It is a list of `port`, or
    /// one that chooses what is mirrored.
    pub(super) fn judge_all(
        &mut self,
        port: Option<&Port>,
        acl: &Acl,
        Picked { batch, picks }: Picked<'_>,
        mut refuse: impl FnMut(u16),
    ) {
        let Delivery { acl_cache, vlans, core, effects, .. } = self;
        let headers = |pick: &u16| Headers::of(batch, batch.frame(*pick), vlans.of(*pick).number());
        let mut asked = picks.iter();
        acl_cache.decide(acl, picks.iter().map(headers), |rule| {
            if E::LIVE {
                acl.count(*core, rule);
            } else if let Some(port) = port {
                effects.ruled(port.id, acl, rule);
            }
            if let (Some(pick), false) = (asked.next(), acl.permits(rule)) {
                refuse(*pick);
            }
        });
    }

    /// Delivers frames whose form is the receiver's, and copies of them to its mirror. What they go through
    /// from here on knows no VLANs: a group's members, say.
    fn as_they_are(&mut self, source: Source<'_>, member: &Member, picked: Picked<'_>) {
        let on = self.vlans.set_on(false);
        self.reach(source, member, picked);
        self.vlans.set_on(on);
        if !matches!(member.attach, Attach::Gateway(..)) {
            self.mirror(source.at(&member.port), member.policy.as_deref(), 1, picked);
        }
    }

    /// An account of frames at `port`, which says of each why it was dropped, if anybody wants to know.
    pub(super) fn outcome(&self, port: &Port) -> Outcome {
        let mut outcome = Outcome::new();
        outcome.trace = (!E::LIVE || port.capture.is_on()).then(Vec::new);
        outcome
    }

    /// Enters `outcome` at `port`.
    pub(super) fn settle(&mut self, port: &Port, outcome: &Outcome) {
        if E::LIVE {
            return port.counters.block(self.core).add_outcome(outcome);
        }
        for (_, why) in outcome.trace.iter().flatten() {
            self.effects.step(port.id, super::effects::Fate::Dropped(*why), String::new);
        }
    }

    /// Delivers frames that have to get `form`.
    fn retag(&mut self, source: Source<'_>, member: &Member, picked: Picked<'_>, form: Form) {
        let Some(mut retagged) = self.retagged.take() else { return };
        // A mirror's list asks for the VLAN of the frame, whatever form it has now.
        let chosen = member.policy.as_ref().and_then(|policy| policy.copies(1)?.acl.as_ref()).is_some();
        let form_of = || if form == Form::Untagged { "without its tag" } else { "with a tag" }.to_owned();
        self.effects.note(form_of);
        let Picked { batch, picks: mut rest } = picked;
        while !rest.is_empty() {
            retagged.batch.clear();
            let fits = |pick: &&u16| retagged.push(batch, batch.frame(**pick), self.vlans.of(**pick), form);
            let (now, later) = rest.split_at(rest.iter().take_while(fits).count());
            rest = match later.split_first() {
                // Alone it has no room, either: as many pieces as a frame may have.
                Some((first, others)) if now.is_empty() => {
                    self.refuse(&member.port, batch.only(&[*first]), DropReason::TooManyPieces);
                    others
                }
                _ => later,
            };
            // Flows and VLANs are kept by a frame's place in its batch, and here it has another.
            self.forget_flows();
            let vlans = chosen.then(|| self.vlans.only(now));
            let vlans = vlans.map(|picked| std::mem::replace(&mut self.vlans, picked));
            self.as_they_are(source, member, retagged.batch.all());
            if let Some(vlans) = vlans {
                self.vlans = vlans;
            }
            self.forget_flows();
        }
        self.retagged = Some(retagged);
    }
}
