//! Probes: whether a member forwards.
//!
//! Theory of operation. The thread that tends groups makes a datagram for each member ([`Probes`]) and has an
//! I/O core put it into the member's port at the group's first interface, past the buckets. A member that
//! routes as the operator says sends it out by one of the interfaces again. There the group takes it: it goes
//! nowhere else. Whatever a member sends to that address or to the one beside it, which probes come from,
//! ends there too, so neither probes nor errors about them ever leave the group.
//!
//! Each probe has a random number, which counts once and for its member alone. So nobody can answer for a
//! member through which no packet passes.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use super::buckets::MAX_MEMBERS;
use crate::mem::{Arena, Pieces};
use crate::packet::{Batch, Frame, Offload, Sum, HEAD, UDP};
use crate::port::{DropReason, PortId};
use crate::util::slice::{behind, put};

/// It passes the member, and dies at the next router should it ever get there.
const HOPS: u8 = 2;
const ETHERTYPE4: [u8; 2] = [8, 0];
const ETHERTYPE6: [u8; 2] = [0x86, 0xdd];
/// From one discard service to another (RFC 863): the number follows.
const DATAGRAM: [u8; 8] = [0, 9, 0, 9, 0, 16, 0, 0];
/// Where the number stands behind the headers of Ethernet, IP and UDP.
const NUMBER4: usize = 14 + 20 + 8;
const NUMBER6: usize = 14 + 40 + 8;
/// Room for the longest.
const LONGEST: usize = NUMBER6 + 8;

/// There is nothing to tell of a member, or it has sent its last probe out again. Numbers of probes are
/// larger.
const NOTHING: u64 = 0;
const PASSED: u64 = 1;

/// What has become of each member's last probe.
pub struct ProbeStates([AtomicU64; MAX_MEMBERS]);

impl ProbeStates {
    pub fn new() -> ProbeStates {
        ProbeStates(std::array::from_fn(|_| AtomicU64::new(NOTHING)))
    }

    fn set(&self, member: u8, state: u64) -> u64 {
        self.0.get(usize::from(member)).map_or(NOTHING, |it| it.swap(state, Ordering::Relaxed))
    }

    /// Whether `member` has sent its last probe out again, if there was any since this was asked last.
    pub fn passed(&self, member: u8) -> Option<bool> {
        let state = self.set(member, NOTHING);
        (state != NOTHING).then_some(state == PASSED)
    }

    /// `frame`, which came from `member`, goes to the probes' address: what it is dropped as.
    #[cold]
    pub fn came(&self, batch: &Batch, frame: &Frame, member: u8) -> DropReason {
        let at = if frame.head[12..14] == ETHERTYPE6 { NUMBER6 } else { NUMBER4 };
        let mut number = [0; 8];
        let len = batch.read(frame, at, &mut number);
        let number = u64::from_be_bytes(number);
        let state = self.0.get(usize::from(member)).filter(|_| len == 8 && number > PASSED);
        match state.map(|it| it.compare_exchange(number, PASSED, Ordering::Relaxed, Ordering::Relaxed)) {
            Some(Ok(_)) => DropReason::Probe,
            _ => DropReason::BadProbe,
        }
    }
}

/// Probes on their way to an I/O core, one for each of several members.
pub struct Probes {
    /// The interface behind which they go into the members.
    pub(in crate::graph) at: PortId,
    /// Member, number and frame of each.
    pub(crate) all: Vec<(u8, u64, Vec<u8>)>,
    /// For what a frame has behind its head.
    memory: Arena,
    /// Shared for as long as they are on their way.
    _pending: Arc<()>,
}

impl Probes {
    /// Probes to address `to` for these `members`, by way of interface `at`, which has station address `mac`.
    pub fn new(at: PortId, mac: [u8; 6], to: IpAddr, members: &[u8], pending: &Arc<()>) -> Probes {
        let probe = |member: &u8| {
            // Nobody can guess it, and it is above all states.
            let number = RandomState::new().build_hasher().finish() | 2;
            (*member, number, frame(mac, to, number))
        };
        let all = members.iter().map(probe).collect();
        Probes { at, all, memory: Arena::new(members.len(), LONGEST), _pending: Arc::clone(pending) }
    }

    /// Calls `send` for each with its member and `batch`, which has its frame alone.
    pub(in crate::graph) fn each(
        &mut self,
        states: &ProbeStates,
        batch: &mut Batch,
        mut send: impl FnMut(u8, &Batch),
    ) {
        for (slot, (member, number, bytes)) in self.all.iter().enumerate() {
            batch.clear();
            let far = self.memory.put(slot, bytes, bytes.len().min(HEAD));
            let add = |pieces: &mut Pieces| bytes.len() <= HEAD || pieces.push(far);
            if batch.push_with(bytes, bytes.len(), Offload::NONE, add) {
                // Before it can come back.
                states.set(*member, *number);
                send(*member, batch);
            }
        }
        batch.clear();
    }
}

/// The probe of this number to address `to`, which comes from the one beside that, for station `mac`.
fn frame(mac: [u8; 6], to: IpAddr, number: u64) -> Vec<u8> {
    let mut bytes = [mac, mac].concat();
    put(&mut bytes, 11, &[mac[5] ^ 1]);
    let mut datagram = [DATAGRAM, number.to_be_bytes()].concat();
    match to {
        IpAddr::V4(to) => {
            let ends = [u32::from(to) ^ 1, to.into()].map(u32::to_be_bytes).concat();
            let head = [0x45, 0, 0, 36, 0, 0, 0, 0, HOPS, UDP, 0, 0];
            bytes.extend([&ETHERTYPE4[..], &head, &ends].concat());
            let sum = Sum::of(behind(&bytes, 14)).checksum();
            put(&mut bytes, 24, &sum.to_be_bytes());
        }
        IpAddr::V6(to) => {
            let ends = [u128::from(to) ^ 1, to.into()].map(u128::to_be_bytes).concat();
            bytes.extend([&ETHERTYPE6[..], &[0x60, 0, 0, 0, 0, 16, UDP, HOPS], &ends].concat());
            // RFC 8200 §8.1: with a checksum, which is not 0.
            let mut sum = Sum::pseudo(&ends, &[], UDP, datagram.len());
            sum.add(&datagram);
            let sum = Some(sum.checksum()).filter(|sum| *sum != 0).unwrap_or(0xffff);
            put(&mut datagram, 6, &sum.to_be_bytes());
        }
    }
    bytes.extend(datagram);
    bytes.resize(bytes.len().max(60), 0);
    bytes
}
