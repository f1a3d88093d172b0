//! Where each frame of a batch goes: lists of frames by destination, in the order of the batch.
//!
//! The lists are linked through one array, as VALE does it: `lists[d]` has the first and the last frame for
//! destination `d`, as numbers in the batch (*picks*), and `next[i]` links frame `i` to the next one for the
//! same destination. One more list holds the frames to flood. Filling costs a few stores a frame, whatever
//! the number of ports.

use crate::packet::{Batch, MAX_BATCH};
use crate::port::{DropReason, PortId};

use sidecore_abi::counters::MAX_PORTS;

/// The list of frames to flood.
pub const FLOOD: usize = MAX_PORTS;

/// Most ports that a frame goes to beside the one on whose list it is.
pub const MAX_ALSO: usize = 2 * 64;

const END: u16 = u16::MAX;

#[derive(Clone, Copy)]
struct List {
    head: u16,
    tail: u16,
}

const EMPTY: List = List { head: END, tail: END };

/// Verdicts on the frames of one batch.
pub struct Verdicts {
    /// By destination; the last one is `FLOOD`.
    lists: Box<[List]>,
    /// By frame: the next one on its list.
    next: Box<[u16]>,
    /// Destinations with a list, without `FLOOD`.
    pub used: Vec<u16>,
    /// Frames dropped, with reasons.
    pub drops: Vec<(u16, DropReason)>,
    /// Frames that go to more ports than the one on whose list they are, in the order of the batch.
    also: Vec<(u16, PortId)>,
}

impl Default for Verdicts {
    /// No verdicts, and all the memory that will ever be needed.
    fn default() -> Verdicts {
        Verdicts {
            lists: vec![EMPTY; MAX_PORTS + 1].into(),
            next: vec![END; MAX_BATCH].into(),
            used: Vec::with_capacity(MAX_BATCH),
            drops: Vec::with_capacity(MAX_BATCH),
            also: Vec::with_capacity(MAX_ALSO * MAX_BATCH),
        }
    }
}

impl Verdicts {
    /// Forgets all verdicts.
    pub fn clear(&mut self) {
        for &port in &self.used {
            self.lists[usize::from(port)] = EMPTY;
        }
        self.lists[FLOOD] = EMPTY;
        self.used.clear();
        self.drops.clear();
        self.also.clear();
    }

    #[inline]
    fn append(&mut self, list: usize, frame: usize) -> bool {
        #[expect(clippy::cast_possible_truncation, reason = "frame is below MAX_BATCH")]
        let index = frame as u16;
        let entry = &mut self.lists[list];
        let first = entry.head == END;
        if first {
            entry.head = index;
        } else {
            self.next[usize::from(entry.tail)] = index;
        }
        entry.tail = index;
        self.next[frame] = END;
        first
    }

    /// Frame `frame` goes to `port`.
    #[inline]
    pub fn send(&mut self, frame: usize, port: PortId) {
        if self.append(usize::from(port.0), frame) {
            self.used.push(port.0);
        }
    }

    /// Frame `frame`, which is on the list of one port, goes to `port`, too. Called [`MAX_ALSO`] times a
    /// frame at most.
    #[cold]
    pub fn also(&mut self, frame: usize, port: PortId) {
        #[expect(clippy::cast_possible_truncation, reason = "frame is below MAX_BATCH")]
        self.also.push((frame as u16, port));
    }

    /// How many copies go to ports beside the first.
    pub fn seconds(&self) -> usize {
        self.also.len()
    }

    /// The ports that get such copies.
    pub fn beside(&self) -> impl Iterator<Item = PortId> + '_ {
        self.also.iter().map(|(_, port)| *port)
    }

    /// The next port that gets such copies; `picks` are their frames, which are taken off the list.
    pub fn take_seconds(&mut self, picks: &mut Vec<u16>) -> Option<PortId> {
        picks.clear();
        let (_, port) = *self.also.first()?;
        picks.extend(self.also.iter().filter(|(_, to)| *to == port).map(|(frame, _)| *frame));
        self.also.retain(|(_, to)| *to != port);
        Some(port)
    }

    /// Frame `frame` goes to all ports but its sender.
    pub fn flood(&mut self, frame: usize) {
        self.append(FLOOD, frame);
    }

    /// Frame `frame` goes nowhere.
    pub fn drop(&mut self, frame: usize, reason: DropReason) {
        #[expect(clippy::cast_possible_truncation, reason = "frame is below MAX_BATCH")]
        self.drops.push((frame as u16, reason));
    }

    /// Whether any frame is flooded.
    pub fn any_flood(&self) -> bool {
        self.lists[FLOOD].head != END
    }

    /// Whether the whole batch goes to a single destination.
    pub fn is_all_for_one(&self, batch: &Batch) -> bool {
        self.used.len() == 1 && self.drops.is_empty() && !self.any_flood() && !batch.is_empty()
    }

    /// The frames for `port`, with those floods that it `takes` merged in, in the order of the batch.
    #[inline]
    pub fn picks(&self, port: PortId, picks: &mut Vec<u16>, takes: impl Fn(u16) -> bool) {
        picks.clear();
        let mut own = self.lists[usize::from(port.0)].head;
        let mut all = self.lists[FLOOD].head;
        while own != END || all != END {
            // END is the largest number, so the smaller one comes first.
            let (at, flooded) = if own < all { (&mut own, false) } else { (&mut all, true) };
            if !flooded || takes(*at) {
                picks.push(*at);
            }
            *at = self.next[usize::from(*at)];
        }
    }

    /// The frames for `port`, without those to flood.
    pub fn picks_alone(&self, port: PortId, picks: &mut Vec<u16>) {
        self.read_list(usize::from(port.0), picks);
    }

    /// Asks about each flooded frame, in the order of the batch, and drops those that are refused.
    pub fn limit_floods(&mut self, mut ask: impl FnMut(u16) -> Result<(), DropReason>) {
        let mut at = std::mem::replace(&mut self.lists[FLOOD], EMPTY).head;
        while at != END {
            let frame = usize::from(at);
            let asked = ask(at);
            at = self.next[frame];
            match asked {
                Ok(()) => self.flood(frame),
                Err(reason) => self.drop(frame, reason),
            }
        }
    }

    /// The frames to flood.
    pub fn floods(&self, picks: &mut Vec<u16>) {
        self.read_list(FLOOD, picks);
    }

    /// Puts the frames of `list` into `picks`, in their order.
    fn read_list(&self, list: usize, picks: &mut Vec<u16>) {
        picks.clear();
        let mut at = self.lists[list].head;
        while at != END {
            picks.push(at);
            at = self.next[usize::from(at)];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Every destination gets its own frames and the floods, in the order of the batch.
        #[test]
        fn order_is_kept(goes in prop::collection::vec(0usize..6, 0..MAX_BATCH)) {
            let mut verdicts = Verdicts::default();
            for round in 0..2 {
                verdicts.clear();
                for (i, to) in goes.iter().enumerate() {
                    match to {
                        0 => verdicts.flood(i),
                        1 => verdicts.drop(i, DropReason::Hairpin),
                        port => verdicts.send(i, PortId(u16::try_from(*port).unwrap() + round)),
                    }
                }
                let mut picks = Vec::new();
                for port in 2..6u16 {
                    verdicts.picks(PortId(port + round), &mut picks, |_| true);
                    let expected: Vec<u16> = goes.iter().enumerate()
                        .filter(|(_, to)| **to == 0 || **to == usize::from(port))
                        .map(|(i, _)| u16::try_from(i).unwrap()).collect();
                    prop_assert_eq!(&picks, &expected);
                }
                prop_assert_eq!(verdicts.drops.len(), goes.iter().filter(|to| **to == 1).count());
            }
        }
    }
}
