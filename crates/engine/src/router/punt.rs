//! What goes on to the control plane: frames for the router itself, by class, each class with a limit of its own.
//!
//! Theory of operation. A port with a control plane has another port that stands for it there. What the router would take for itself
//! goes to that one as it came, and nothing else does. The I/O core answers questions about the router's own addresses, and echo requests,
//! by itself; so no flood of these reaches a routing daemon. ICMP errors are the I/O core's, too.
//!
//! A flood of one class takes nothing from another: each class of each port has a bucket of its own. What is beyond is dropped as
//! `punt_limit`.

use std::sync::atomic::{AtomicU64, Ordering};

use super::header::{ethertype, ARP, IPV4, IPV6};
use super::limit::Limit;
use super::made::{ICMP6, UDP};
use crate::account::DropReason;
use crate::frame::Frame;

/// Classes of frames, by what would be lost with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// BGP: TCP, port 179 (RFC 4271 §2).
    Bgp,
    /// Bidirectional Forwarding Detection: UDP, ports 3784, 3785 and 4784 (RFC 5881 §4, RFC 5883 §5).
    Bfd,
    /// OSPF (RFC 2328 appendix A.1, RFC 5340 appendix A.1).
    Ospf,
    /// ARP, and Neighbor Discovery.
    Neighbours,
    /// All else.
    Other,
}

/// The classes, with their names and what each may have: frames a second, and at once.
const CLASSES: [(Class, &str, u64, u64); 5] = [
    (Class::Bgp, "bgp", 10_000, 2000),
    (Class::Bfd, "bfd", 5000, 500),
    (Class::Ospf, "ospf", 2000, 1000),
    (Class::Neighbours, "neighbours", 1000, 200),
    (Class::Other, "other", 1000, 200),
];

const BGP_PORT: u16 = 179;
const BFD_PORTS: [u16; 3] = [3784, 3785, 4784];
const TCP: u8 = 6;
const OSPF: u8 = 89;

/// What a port may hand on to its control plane, and what it has.
#[derive(Debug)]
pub(super) struct Punt([Bucket; CLASSES.len()]);

#[derive(Debug)]
struct Bucket {
    limit: Limit,
    passed: AtomicU64,
    refused: AtomicU64,
}

impl Punt {
    pub fn new() -> Punt {
        Punt(CLASSES.map(|(_, _, rate, burst)| Bucket {
            limit: Limit::new(rate, burst),
            passed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }))
    }

    /// Whether a frame of `class` may go on at `now`, in microseconds.
    pub fn admit(&self, class: Class, now: u64) -> Result<(), DropReason> {
        let Some(bucket) = self.0.get(class as usize) else { return Err(DropReason::PuntLimit) };
        let may = bucket.limit.take(now);
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

/// The class of `frame`. Ports are looked for where a header without options has them; with options it is of no class of its own.
pub(super) fn class(frame: &Frame) -> Class {
    let head = &frame.head;
    let (protocol, at) = match ethertype(frame) {
        ARP => return Class::Neighbours,
        // Not the first fragment: what stands there are no ports.
        IPV4 if head[14] == 0x45 && u16::from_be_bytes([head[20], head[21]]) & 0x1fff == 0 => (head[23], 34),
        IPV6 => (head[20], 54),
        _ => return Class::Other,
    };
    let word = |at: usize| {
        head.get(at..at + 2).and_then(|bytes| bytes.first_chunk()).map_or(0, |it| u16::from_be_bytes(*it))
    };
    let ports = [word(at), word(at + 2)];
    match protocol {
        OSPF => Class::Ospf,
        TCP if ports.contains(&BGP_PORT) => Class::Bgp,
        UDP if ports.get(1).is_some_and(|port| BFD_PORTS.contains(port)) => Class::Bfd,
        ICMP6 if matches!(head.get(at), Some(133..=137)) => Class::Neighbours,
        _ => Class::Other,
    }
}

/// Whether `frame` is for a group of its own link, which routing protocols speak to: 224.0.0.0/24 (RFC 5771 §4), ff02::/16 (RFC 4291
/// §2.7).
pub(super) fn is_for_link_group(frame: &Frame) -> bool {
    let head = &frame.head;
    match ethertype(frame) {
        IPV4 => head[30..33] == [224, 0, 0],
        IPV6 => head[38..40] == [0xff, 0x02],
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Batch;

    fn class_of(bytes: &[u8]) -> Class {
        let mut batch = Batch::new();
        let (frame, _) = batch.next_frame().unwrap();
        frame.head[..bytes.len()].copy_from_slice(bytes);
        frame.len = 64;
        class(frame)
    }

    fn four(protocol: u8, rest: &[u8]) -> Vec<u8> {
        let ip = [0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1];
        [&[0; 12][..], &[8, 0], &ip, rest].concat()
    }

    #[test]
    fn each_protocol_has_its_class() {
        assert_eq!(class_of(&four(TCP, &[0x9c, 0x40, 0, 179])), Class::Bgp);
        assert_eq!(class_of(&four(TCP, &[0, 179, 0x9c, 0x40])), Class::Bgp);
        assert_eq!(class_of(&four(TCP, &[0, 22, 0x9c, 0x40])), Class::Other);
        assert_eq!(class_of(&four(UDP, &[0xc0, 0, 14, 200])), Class::Bfd);
        assert_eq!(class_of(&four(UDP, &[14, 200, 0xc0, 0])), Class::Other, "from such a port is no BFD");
        assert_eq!(class_of(&four(OSPF, &[])), Class::Ospf);
        let mut fragment = four(TCP, &[0, 179, 0, 179]);
        fragment[21] = 1;
        assert_eq!(class_of(&fragment), Class::Other);
        let six = [&[0; 12][..], &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 24, 58, 255], &[0; 32], &[135]].concat();
        assert_eq!(class_of(&six), Class::Neighbours);
        assert_eq!(class_of(&[&[0; 12][..], &[8, 6]].concat()), Class::Neighbours);
    }

    #[test]
    fn a_flood_of_one_class_takes_nothing_from_another() {
        let punt = Punt::new();
        let passed = (0..100_000).filter(|_| punt.admit(Class::Other, 5_000_000).is_ok()).count();
        assert_eq!(passed, 200);
        assert!(punt.admit(Class::Bgp, 5_000_000).is_ok());
        let other = punt.counts().find(|(name, ..)| *name == "other");
        assert_eq!(other, Some(("other", 200, 99_800)));
    }
}
