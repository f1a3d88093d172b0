//! What rings of both formats have beside the places in them: chains that were taken, requests in flight,
//! memory and interrupt.

use std::sync::Arc;

use super::config::RingConfig;
use super::flight::Flight;
use super::memory::{Chain, Memory, Refusal, TakenChains};
use crate::mem::{Pieces, Signal};
use crate::util::fault::Fault;

/// What rings of both formats have beside the places in them.
pub(super) struct Common {
    /// Requests in flight, if the ring carries requests.
    pub(super) flight: Option<Box<Flight>>,
    pub(super) taken: TakenChains,
    pub(super) memory: Memory,
    pub(super) notifier: Arc<Signal>,
    pub(super) broken: Option<Fault>,
}

impl Common {
    pub(super) fn new(config: &RingConfig, flight: Option<Box<Flight>>) -> Common {
        let (memory, notifier) = (Memory::new(config), Arc::clone(&config.notifier));
        Common { flight, taken: TakenChains::new(), memory, notifier, broken: None }
    }

    /// Another batch begins.
    #[inline]
    pub(super) fn begin(&mut self) -> Result<(), Fault> {
        self.memory.begin();
        self.broken.map_or(Ok(()), Err)
    }

    /// A chain was walked whose pieces stand in `pieces` from `before` on. How many descriptors it has;
    /// `None`: the batch ends before it. Chains before a bad one are good; the ring stops behind them, as it
    /// does if not even an empty batch holds one.
    pub(super) fn took(
        &mut self,
        walked: Result<Chain, Refusal>,
        pieces: &mut Pieces,
        before: usize,
    ) -> Option<u16> {
        match walked {
            Ok(chain) => {
                self.taken.push(chain);
                Some(chain.descs)
            }
            Err(refusal) => {
                pieces.truncate(before);
                self.broken = refusal.ends_ring(self.taken.as_slice().is_empty());
                None
            }
        }
    }

    /// Whether requests are to be picked again.
    pub(super) fn owes(&self) -> bool {
        self.flight.as_ref().is_some_and(|flight| !flight.owed.is_empty())
    }
}
