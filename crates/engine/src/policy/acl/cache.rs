//! What was found for flows before: one core's.

use super::headers::{Headers, WORDS};
use super::table::Acl;
use crate::mem::prefetch_read;
use crate::packet::MAX_BATCH;

/// Pairs of flows that are remembered: 8 MiB, of which only what is used is ever there.
const PAIRS: usize = 1 << 16;
/// Words of a flow: what its frames are, and behind that the list that decided on it, and by which rule. A cache line.
const FLOW: usize = WORDS + 1;

/// What was found for flows before.
#[derive(Default)]
pub struct AclCache {
    /// Pairs of flows, of which the one that was used last comes first. Empty until it is needed.
    memory: Vec<u64>,
    /// The first word that begins a cache line.
    base: usize,
    /// Of the batch under way: words, and where the pair of each frame begins.
    batch: Vec<(Headers, usize)>,
}

impl AclCache {
    /// Makes room, if there is none. The system clears the memory when it is used.
    pub fn open(&mut self) {
        if self.memory.is_empty() {
            self.memory = vec![0; PAIRS * 2 * FLOW + FLOW];
            self.base = self.memory.as_ptr().align_offset(64).min(FLOW);
            self.batch = Vec::with_capacity(MAX_BATCH);
        }
    }

    /// Has `acl` decide on frames with these words, a batch at most: `told` gets the rule of each, in their order.
    #[inline]
    pub fn decide(&mut self, acl: &Acl, frames: impl Iterator<Item = Headers>, mut told: impl FnMut(usize)) {
        let AclCache { memory, base, batch } = self;
        batch.clear();
        for headers in frames.take(MAX_BATCH) {
            let pair = (acl.hash(&headers.0) >> 20) % PAIRS;
            let at = *base + pair * 2 * FLOW;
            if let Some(first) = memory.get(at) {
                prefetch_read(std::ptr::from_ref(first).cast());
            }
            batch.push((headers, at));
        }
        for (headers, at) in &*batch {
            let Some(pair) = memory.get_mut(*at..*at + 2 * FLOW) else {
                told(acl.find(headers));
                continue;
            };
            let is = |flow: &[u64]| flow[..WORDS] == headers.0 && flow[WORDS] >> 32 == u64::from(acl.id);
            let (first, second) = pair.split_at_mut(FLOW);
            if !is(first) {
                first.swap_with_slice(second);
                if !is(first) {
                    let rule = acl.find(headers) as u64;
                    first[..WORDS].copy_from_slice(&headers.0);
                    first[WORDS] = u64::from(acl.id) << 32 | rule;
                }
            }
            // Behind the list's number.
            told(usize::try_from(first[WORDS] & u64::from(u32::MAX)).unwrap_or(usize::MAX));
        }
    }
}
