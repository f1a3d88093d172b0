//! The driver's side of the communication status block (`sidecore_abi::csb`): tails and wishes in memory
//! instead of registers and interrupts.

use std::mem::offset_of;
use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;

use sidecore_abi::csb::{self, Csb, NONE, SEEN, WANTED};

use crate::error::Result;
use crate::memory::{Memory, View};

/// A field's index among the block's words.
macro_rules! field {
    ($name:ident) => {
        offset_of!(Csb, $name) / 4
    };
}

/// A block in the driver's memory.
pub(super) struct Block {
    words: View,
}

impl Block {
    /// Bytes of memory that one takes.
    pub(super) const ROOM: usize = 2 * csb::SIZE;

    pub(super) fn new(memory: &Arc<Memory>) -> Result<Block> {
        let words = memory.view(memory.alloc(csb::SIZE, csb::SIZE)?, csb::SIZE);
        Ok(Block { words })
    }

    /// The page, as the device reaches it.
    pub(super) fn address(&self) -> u64 {
        self.words.memory().gpa(self.words.offset())
    }

    fn set(&self, field: usize, value: u32) {
        self.words.store32(field, value, Ordering::Release);
    }

    fn get(&self, field: usize) -> u32 {
        self.words.load32(field, Ordering::Acquire)
    }

    /// Everything as at the beginning, and off.
    pub(super) fn restart(&self) {
        (0..size_of::<Csb>() / 4).for_each(|field| self.set(field, 0));
        self.set(field!(host_need_txkick), WANTED);
        self.set(field!(host_rxkick_at), NONE);
    }

    /// From now on the block counts and the registers do not.
    pub(super) fn turn_on(&self) {
        self.set(field!(guest_csb_on), 1);
    }

    /// Sets the transmit tail; true if the device must be kicked.
    pub(super) fn set_tx_tail(&self, tail: u16) -> bool {
        self.set(field!(guest_tdt), tail.into());
        // The device raises its flag, and then looks at the tail once more.
        fence(Ordering::SeqCst);
        self.get(field!(host_need_txkick)) & WANTED != 0
    }

    /// Moves the receive tail from `from` to `tail` in a ring of `count`; true if the device must be kicked.
    pub(super) fn set_rx_tail(&self, from: u16, tail: u16, count: u16) -> bool {
        self.set(field!(guest_rdt), tail.into());
        fence(Ordering::SeqCst);
        let at = self.get(field!(host_rxkick_at));
        let [at, from, tail, count] = [at, from.into(), tail.into(), count.into()];
        let passed = at < count && at != from && (at + count - from) % count <= (tail + count - from) % count;
        passed || self.get(field!(host_need_rxkick)) & WANTED != 0
    }

    /// Asks for an interrupt when a frame comes, or no longer. After asking, a look at the ring must follow.
    pub(super) fn want_receive(&self, on: bool) {
        self.set(field!(guest_need_rxkick), u32::from(on));
        fence(Ordering::SeqCst);
    }

    /// Asks for an interrupt when frames have been sent. A look at the ring must follow.
    pub(super) fn want_room(&self) {
        self.set(field!(guest_need_txkick), WANTED);
        fence(Ordering::SeqCst);
    }

    /// There is room again.
    pub(super) fn has_room(&self) {
        if self.get(field!(guest_need_txkick)) == WANTED {
            self.set(field!(guest_need_txkick), SEEN);
        }
    }

    /// Where the device says it is: transmit, receive.
    pub(super) fn heads(&self) -> [u32; 2] {
        [self.get(field!(host_tdh)), self.get(field!(host_rdh))]
    }

    /// The whole page, to lie in.
    pub(super) fn words(&self) -> &View {
        &self.words
    }
}
