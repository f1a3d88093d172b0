//! What goes on to the control plane: frames for the router itself, by class, each class with a limit of its
//! own.
//!
//! Theory of operation. A port with a control plane has another port that stands for it there. What the
//! router would take for itself goes to that one as it came, and nothing else does. The I/O core answers
//! questions about the router's own addresses, and echo requests, by itself; so no flood of these reaches a
//! routing daemon. ICMP errors are the I/O core's, too.
//!
//! A flood of one class takes nothing from another: each class of each port has a bucket of its own. Nor does
//! it take all from other senders behind the same gateway: each port of its switch has a part of each bucket
//! (`limit`). What is beyond is dropped as `punt_limit`.

use std::sync::atomic::{AtomicU64, Ordering};

use super::limit::Fair;
use crate::observe::account::DropReason;
use crate::port::PortId;

/// Classes of frames, by what would be lost with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// BGP: TCP, port 179 (RFC 4271 §2).
    Bgp,
    /// Bidirectional Forwarding Detection between neighbours: UDP, ports 3784 and 3785, with a hop limit that
    /// only a neighbour's packets have (RFC 5881 §4, §5).
    Bfd,
    /// BFD over several hops: UDP, port 4784 (RFC 5883 §5). Anybody may send it, so it takes nothing from the
    /// neighbours'.
    BfdMultihop,
    /// OSPF (RFC 2328 appendix A.1, RFC 5340 appendix A.1).
    Ospf,
    /// ARP, and Neighbor Discovery.
    Neighbours,
    /// Fragments of either family. A kernel has some MiB for all that wait for the others of their packet,
    /// from all ports together, and keeps each for half a minute: so few may come that one flood leaves room
    /// for others.
    Fragments,
    /// All else.
    Other,
}

/// The classes, with their names and what each may have: frames a second, and at once.
const CLASSES: [(Class, &str, u64, u64); 7] = [
    (Class::Bgp, "bgp", 10_000, 2000),
    (Class::Bfd, "bfd", 5000, 500),
    (Class::BfdMultihop, "bfd-multihop", 1000, 200),
    (Class::Ospf, "ospf", 2000, 1000),
    (Class::Neighbours, "neighbours", 1000, 200),
    (Class::Fragments, "fragments", 20, 64),
    (Class::Other, "other", 1000, 200),
];

/// What a port may hand on to its control plane, and what it has.
pub(super) struct Punt([Bucket; CLASSES.len()]);

struct Bucket {
    limit: Fair,
    passed: AtomicU64,
    refused: AtomicU64,
}

impl Punt {
    pub fn new() -> Punt {
        Punt(CLASSES.map(|(_, _, rate, burst)| Bucket {
            limit: Fair::new(rate, burst),
            passed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }))
    }

    /// Whether a frame of `class` from `sender` may go on at `now`, in microseconds.
    pub fn admit(&self, class: Class, sender: PortId, now: u64) -> Result<(), DropReason> {
        let Some(bucket) = self.0.get(class as usize) else { return Err(DropReason::PuntLimit) };
        let may = bucket.limit.take(sender, now);
        let count = if may { &bucket.passed } else { &bucket.refused };
        count.fetch_add(1, Ordering::Relaxed);
        may.then_some(()).ok_or(DropReason::PuntLimit)
    }

    /// Each class with what went on and what did not.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64, u64)> + '_ {
        let counts =
            |bucket: &Bucket| (bucket.passed.load(Ordering::Relaxed), bucket.refused.load(Ordering::Relaxed));
        CLASSES.iter().zip(&self.0).map(move |((_, name, ..), bucket)| {
            let (passed, refused) = counts(bucket);
            (*name, passed, refused)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_one_class_takes_nothing_from_another() {
        let (punt, one, two) = (Punt::new(), PortId(1), PortId(2));
        let passed = (0..100_000).filter(|_| punt.admit(Class::Other, one, 5_000_000).is_ok()).count();
        assert_eq!(passed, 200);
        assert!(punt.admit(Class::Bgp, one, 5_000_000).is_ok());
        let other = punt.counts().find(|(name, ..)| *name == "other");
        assert_eq!(other, Some(("other", 200, 99_800)));
        assert!(punt.admit(Class::Other, two, 5_000_000).is_ok(), "nor from another sender");
    }
}
