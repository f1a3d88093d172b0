//! What one core needs to hand frames from switches to routers on them, and back (`crossing`): all memory is there from the start.

use std::time::Instant;

use crate::frame::{Batch, MAX_BATCH};
use crate::port::PortId;
use crate::router::Desk;
use crate::switch::Verdicts;

use sidecore_abi::counters::MAX_PORTS;

/// Whoever has it is on the way through a gateway.
pub(super) struct Crossing {
    pub epoch: Instant,
    /// What enters a router.
    pub entering: Pass,
    pub desk: Desk,
    /// What leaves it for a switch.
    pub leaving: Pass,
}

impl Crossing {
    pub fn new(epoch: Instant) -> Crossing {
        Crossing { epoch, entering: Pass::new(), desk: Desk::new(), leaving: Pass::new() }
    }
}

/// A batch on its way, and scratch memory in place of that which the batch that it came from uses.
pub(super) struct Pass {
    pub batch: Batch,
    pub verdicts: Verdicts,
    pub picks: Vec<u16>,
    pub others: Vec<PortId>,
    pub floods: Vec<u16>,
}

impl Pass {
    fn new() -> Pass {
        Pass {
            batch: Batch::new(),
            verdicts: Verdicts::new(),
            picks: Vec::with_capacity(MAX_BATCH),
            others: Vec::with_capacity(MAX_PORTS),
            floods: Vec::with_capacity(MAX_BATCH),
        }
    }

    /// Takes `picks` of `from`, and no verdicts on them. How many frames had no room for their pieces, and how many bytes the others have.
    pub fn take(&mut self, from: &Batch, picks: &[u16]) -> (usize, u64) {
        self.batch.clear();
        self.verdicts.clear();
        let (mut left, mut bytes) = (0, 0);
        for pick in picks {
            let frame = from.frame(*pick);
            match self.batch.push_described(frame, from.body(frame)) {
                true => bytes += u64::from(frame.len),
                false => left += 1,
            }
        }
        (left, bytes)
    }
}
