//! Mirrors: copies of frames that pass a port, for another port.

use super::deliver::Delivery;
use super::effects::Effects;
use super::topology::Source;
use crate::packet::{stretch, Batch, Offload, Picked, ALL, HEAD, MAX_BATCH};
use crate::policy::Policy;
use crate::port::DropReason;

impl<E: Effects> Delivery<E> {
    /// Delivers copies of the frames of `batch`, which came in by `source`, to its mirror, but of those that
    /// are dropped.
    #[cold]
    pub(super) fn mirror_all(
        &mut self,
        source: Source<'_>,
        policy: Option<&Policy>,
        batch: &Batch,
        drops: &[(u16, DropReason)],
    ) {
        let mut dropped = [false; MAX_BATCH];
        drops.iter().for_each(|(pick, _)| dropped[usize::from(*pick) % MAX_BATCH] = true);
        let mut passing = std::mem::take(&mut self.permitted);
        passing.clear();
        passing.extend(ALL[..batch.len()].iter().filter(|pick| !dropped[usize::from(**pick)]));
        self.mirror(source, policy, 0, batch.only(&passing));
        self.permitted = passing;
    }

    /// Delivers copies of `picked` frames, which come in by `at` (`way` 0) or go out (1), to the mirror that
    /// `policy` has for them. No policy holds there: a mirror gets all that its ring has room for, and is not
    /// mirrored. What the receiver of the originals had room for is not known.
    pub(super) fn mirror(&mut self, at: Source<'_>, policy: Option<&Policy>, way: usize, picked: Picked<'_>) {
        let (Source { topology, port }, Picked { batch, picks }) = (at, picked);
        let Some(mirror) = policy.and_then(|policy| policy.copies(way)) else { return };
        let Some(to) = topology.get(mirror.to) else { return };
        if to.port.is_silent() || !topology.ports.is_up(to.port.id) {
            return;
        }
        let mut copied = std::mem::take(&mut self.copied);
        copied.clear();
        copied.extend_from_slice(picks);
        if let Some(acl) = &mirror.acl {
            let mut unwanted = std::mem::take(&mut self.by_member);
            unwanted.clear();
            self.judge_all(None, acl, picked, |pick| unwanted.push(pick));
            copied.retain(|pick| unwanted.binary_search(pick).is_err());
            self.by_member = unwanted;
        }
        self.made(port, copied.len());
        self.deliveries += copied.len();
        let on = self.vlans.set_on(false);
        if !copied.is_empty() {
            self.effects.note(|| format!("a copy: mirror of {}", port.name));
        }
        match mirror.snap.and_then(|snap| Some((snap, self.cut.take()?))) {
            None => self.reach(at, to, batch.only(&copied)),
            Some((snap, mut cut)) => {
                cut.clear();
                for frame in copied.iter().map(|pick| batch.frame(*pick)) {
                    let len = (frame.len as usize).min(snap.into());
                    let mut body = stretch(batch.body(frame), HEAD, len);
                    // One batch has room for what another had. The copy asks for no offloads: a checksum that
                    // was to be made is not.
                    cut.push_with(&frame.head, len, Offload::NONE, |to| body.all(|piece| to.push(piece)));
                }
                self.forget_flows();
                self.reach(at, to, cut.all());
                self.forget_flows();
                self.cut = Some(cut);
            }
        }
        self.vlans.set_on(on);
        self.copied = copied;
    }
}
