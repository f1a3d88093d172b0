//! The hands of an end of a pipe between ports: those of a guest, of a program, or of none.
//!
//! Where the ring is stands in the region's words in any case, and is written there before the end is told:
//! so the successor of a killed process finds it, and is never behind what an end knows.

use std::sync::Arc;

use sidecore_abi::ring::Nonsense;

use super::block::Block;
use super::region::Region;
use super::tickets::{Hands, Tickets};

/// The user of this end.
enum Who {
    Nobody,
    /// Its blocks, in its own memory.
    Guest(Block),
    /// The words are its blocks.
    Program,
}

/// How an end of a pipe is told of its ring.
pub struct Hand {
    words: Tickets,
    who: Who,
}

impl Hand {
    /// Without a user, for ring `number` of `region`, counted over all rings.
    pub(super) fn new(region: &Arc<Region>, number: u32) -> Hand {
        Hand { words: Tickets::new(region, number), who: Who::Nobody }
    }

    /// A guest has the ring, whose indices stand at `block`.
    pub fn set_guest(&mut self, block: Block) {
        self.who = Who::Guest(block);
    }

    /// A program has the ring.
    pub fn set_program(&mut self) {
        self.who = Who::Program;
    }

    /// No user has it.
    pub fn clear(&mut self) {
        self.who = Who::Nobody;
    }

    /// A guest's block; the ring has no user then.
    pub fn take_guest(&mut self) -> Option<Block> {
        match std::mem::replace(&mut self.who, Who::Nobody) {
            Who::Guest(block) => Some(block),
            other => {
                self.who = other;
                None
            }
        }
    }

    /// Whether a guest's memory was cut short.
    pub fn is_truncated(&self) -> bool {
        matches!(&self.who, Who::Guest(block) if block.is_truncated())
    }

    /// Our indices as they stand in the region.
    pub(super) fn indices(&self) -> [u32; 2] {
        self.words.indices()
    }
}

impl Hands for Hand {
    /// The head of an end without a user never moves; it is not asked for.
    #[inline]
    fn head(&self) -> u32 {
        match &self.who {
            Who::Guest(block) => block.head(),
            Who::Program | Who::Nobody => self.words.head(),
        }
    }

    #[inline]
    fn publish(&mut self, hwcur: u32, hwtail: u32) {
        self.words.publish(hwcur, hwtail);
        if let Who::Guest(block) = &mut self.who {
            block.publish(hwcur, hwtail);
        }
    }

    #[inline]
    fn is_asked(&mut self) -> bool {
        match &mut self.who {
            Who::Guest(block) => block.is_asked(),
            Who::Program => self.words.is_asked(),
            Who::Nobody => false,
        }
    }

    fn ask(&mut self) {
        match &mut self.who {
            Who::Guest(block) => block.ask(),
            Who::Program => self.words.ask(),
            Who::Nobody => {}
        }
    }

    fn withdraw(&mut self) {
        match &mut self.who {
            Who::Guest(block) => block.withdraw(),
            Who::Program => self.words.withdraw(),
            Who::Nobody => {}
        }
    }

    fn reset(&mut self, resets: u32, reason: Nonsense) {
        if let Who::Program = self.who {
            self.words.reset(resets, reason);
        }
    }
}
