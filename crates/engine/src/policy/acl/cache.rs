//! What one core remembers of flows: the rule that decided on their frames.

use super::headers::{Headers, WORDS};
use super::table::Acl;
use crate::mem::{in_huge_pages, prefetch_read, HUGE_PAGE};

/// Places for flows: 16 MiB, of which only what is used is ever there, in huge pages if the system has them.
const PLACES: usize = 1 << 18;
/// Places that a flow may be at, one behind the other: of 100,000 flows all but 1 in 1,000 find one free.
const WAYS: usize = 8;
/// How many frames' flows are prefetched before the first one is compared. All stay in the first-level cache
/// until then.
const AT_ONCE: usize = 32;
/// Words of a flow: what its frames are, and behind that the list that decided on it, and by which rule. A
/// cache line.
const FLOW: usize = WORDS + 1;

/// Which rule decided on which flow. See the module.
#[derive(Default)]
pub struct AclCache {
    /// Places. Empty until it is needed.
    memory: Vec<u64>,
    /// The first word that begins a huge page.
    base: usize,
    /// The batch under way: words, and the first place of each frame.
    batch: Vec<(Headers, usize)>,
    /// How many flows made room for others. Of the flows at hand, each makes room in its turn: if it were the
    /// one that was used longest ago, flows that come in one order again and again would all be gone before
    /// they come.
    forgotten: usize,
}

impl AclCache {
    /// Whether there is room.
    pub fn is_open(&self) -> bool {
        !self.memory.is_empty()
    }

    /// Makes room, if there is none. The system clears the memory when it is used.
    pub fn open(&mut self) {
        if !self.is_open() {
            let begin = HUGE_PAGE / size_of::<u64>();
            self.memory = vec![0; (PLACES + WAYS) * FLOW + begin];
            self.base = self.memory.as_ptr().align_offset(HUGE_PAGE).min(begin);
            in_huge_pages(&mut self.memory);
            self.batch = Vec::with_capacity(AT_ONCE);
        }
    }

    /// Has `acl` decide on frames with these words, a batch at most: `told` gets the rule of each, in their
    /// order.
    #[inline]
    pub fn decide(
        &mut self,
        acl: &Acl,
        mut frames: impl Iterator<Item = Headers>,
        mut told: impl FnMut(usize),
    ) {
        let AclCache { memory, base, batch, forgotten } = self;
        loop {
            batch.clear();
            for headers in frames.by_ref().take(AT_ONCE) {
                let at = *base + (acl.hash(&headers.0) >> 20) % PLACES * FLOW;
                if let Some(first) = memory.get(at..at + FLOW) {
                    prefetch_read(first.as_ptr().cast());
                    // The flow is there, or behind it.
                    prefetch_read(first.as_ptr_range().end.cast());
                }
                batch.push((headers, at));
            }
            if batch.is_empty() {
                return;
            }
            for (headers, at) in &*batch {
                let Some(near) = memory.get_mut(*at..*at + WAYS * FLOW) else {
                    told(acl.find(headers));
                    continue;
                };
                let mut flows = near.chunks_exact(FLOW).filter_map(|flow| flow.first_chunk::<FLOW>());
                let is = |flow: &&[u64; FLOW]| {
                    let other = (0..WORDS).fold(0, |other, n| other | (flow[n] ^ headers.0[n]));
                    other | (flow[WORDS] >> 32 ^ u64::from(acl.id)) == 0
                };
                let known = flows.find(is).map(|flow| flow[WORDS] & u64::from(u32::MAX));
                let rule = known.unwrap_or_else(|| {
                    let rule = acl.find(headers) as u64;
                    let free = near.chunks_exact(FLOW).position(|flow| flow[WORDS] == 0);
                    let at = free.unwrap_or_else(|| {
                        *forgotten = forgotten.wrapping_add(1);
                        *forgotten % WAYS
                    });
                    if let Some(flow) = near.chunks_exact_mut(FLOW).nth(at) {
                        flow[..WORDS].copy_from_slice(&headers.0);
                        flow[WORDS] = u64::from(acl.id) << 32 | rule;
                    }
                    rule
                });
                told(usize::try_from(rule).unwrap_or(usize::MAX));
            }
        }
    }
}
