//! The communication status block (`sidecore_abi::csb`), as one ring's owner sees it.
//!
//! Theory of operation. The block's address is in two registers. An e1000's are on the shared page, where the
//! device does not notice that the driver writes them, so each ring compares the address when it is polled.
//! While the block is on, the ring's tail is the block's, the head is published there, and the guest is
//! interrupted only if the block says so. A ring without a tail, such as an rtl8169's, uses the other fields.
//! Both kick protocols are supported: flags are read behind a fence, thresholds are compared with the
//! distance that the head has moved.
//!
//! The core of a transmit queue enables kicks only while it sleeps for long and a kick could wake it, which a
//! store to a mapped tail cannot. It never enables kicks for receive buffers: it looks for buffers when there
//! are frames. `host_isr` stays zero, because the pin falls only when `ICR` is read.
//!
//! Each 64-bit word of the block that we write holds nothing of the guest's once the block is on, and nothing
//! of the other ring's, so whole words are written.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::mem::offset_of;
use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;

use sidecore_abi::csb::{self, Csb, NONE, WANTED};

use crate::mem::{halves, GuestMap, Words};
use crate::util::fault::Fault;

/// Words of the block: two fields each.
const TX_TAIL: usize = offset_of!(Csb, guest_tdt) / 8;
const RX_WISH_ON: usize = offset_of!(Csb, guest_need_rxkick) / 8;
const RX_TAIL: usize = offset_of!(Csb, guest_rdt) / 8;
const TX_HEAD: usize = offset_of!(Csb, host_tdh) / 8;
const RX_HEAD: usize = offset_of!(Csb, host_rdh) / 8;
const RX_THRESHOLD: usize = offset_of!(Csb, host_isr) / 8;

/// Which ring it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RingSide {
    Transmit,
    Receive,
}

/// A ring's view of the block.
pub struct Block {
    side: RingSide,
    /// The device has one.
    there: bool,
    /// As the registers say it.
    address: u64,
    words: Words,
    /// Whether the registers have given way to it.
    pub(super) on: bool,
    /// What `host_need_txkick` says.
    kicks: u32,
    head: u32,
}

impl Block {
    /// None yet; none ever, unless the device is one that has it.
    pub(super) fn new(side: RingSide, there: bool) -> Block {
        Block { side, there, address: 0, words: Words::EMPTY, on: false, kicks: WANTED, head: 0 }
    }

    /// The memory is another: looked up again at the next poll.
    pub(super) fn forget(&mut self) {
        *self = Block::new(self.side, self.there);
    }

    /// The ring's tail, if the block is on. `address` gives what the registers say, zero if there is none;
    /// `head` is where the ring is.
    ///
    /// # Errors
    /// The driver named a page that is none, or is not in its memory.
    #[inline]
    pub(super) fn tail(
        &mut self,
        address: impl FnOnce() -> u64,
        map: &Arc<GuestMap>,
        head: u32,
    ) -> Result<Option<u32>, Fault> {
        if !self.there {
            return Ok(None);
        }
        let address = address();
        if address != self.address {
            self.find(address, map)?;
        }
        if self.words.is_empty() {
            return Ok(None);
        }
        let on = halves(self.words.load(RX_WISH_ON)).1 != 0;
        if on != self.on {
            self.turn(on, head);
        }
        // Descriptors were written before it.
        Ok(self.peek())
    }

    /// The tail as it is now, if the block is on; nothing else is looked at.
    pub(super) fn peek(&self) -> Option<u32> {
        let word = if self.side == RingSide::Transmit { TX_TAIL } else { RX_TAIL };
        self.on.then(|| halves(self.words.acquire(word)).0)
    }

    #[cold]
    fn find(&mut self, address: u64, map: &Arc<GuestMap>) -> Result<(), Fault> {
        self.forget();
        self.address = address;
        if address == 0 {
            return Ok(());
        }
        let size = u32::try_from(csb::SIZE).unwrap_or(u32::MAX);
        if address % u64::from(size) != 0 {
            return Err(Fault::BadRegister);
        }
        let page = map.translate(address, size, &mut 0).ok_or(Fault::AddressOutOfRange)?;
        self.words = Words::new(&page).ok_or(Fault::BadRegister)?;
        Ok(())
    }

    #[cold]
    fn turn(&mut self, on: bool, head: u32) {
        self.on = on;
        if on && self.side == RingSide::Receive {
            self.words.publish(RX_THRESHOLD, u64::from(NONE) << 32);
        }
        if on {
            self.publish(head);
            self.ask_for_kicks(false);
        }
    }

    /// The head is here now.
    #[inline]
    pub(super) fn publish(&mut self, head: u32) {
        if !self.on {
            return;
        }
        self.head = head;
        match self.side {
            RingSide::Transmit => self.words.publish(TX_HEAD, u64::from(head) | u64::from(self.kicks) << 32),
            RingSide::Receive => self.words.publish(RX_HEAD, head.into()),
        }
    }

    /// Asks the guest to write `TDT`, or no longer. After asking, a look at the tail must follow.
    pub(super) fn ask_for_kicks(&mut self, on: bool) {
        let kicks = if on { WANTED } else { 0 };
        if !self.on || self.side == RingSide::Receive || self.kicks == kicks {
            return;
        }
        self.kicks = kicks;
        self.publish(self.head);
        fence(Ordering::SeqCst);
    }

    /// Whether the guest wants to hear that the head has moved from `from` to where it is, in a ring of
    /// `size`. After the descriptors and the head were written.
    #[inline]
    pub(super) fn wants_interrupt(&self, from: u32, size: u32) -> bool {
        if !self.on {
            return true;
        }
        // The guest raises its flag, and then looks at the ring once more.
        fence(Ordering::SeqCst);
        match self.side {
            RingSide::Receive => halves(self.words.load(RX_WISH_ON)).0 != 0,
            RingSide::Transmit => {
                let at = halves(self.words.load(RX_TAIL)).1;
                let behind = |place: u32| (place + size - from) % size.max(1);
                let passed = at != 0 && at < size && behind(at) <= behind(self.head) && at != from;
                halves(self.words.load(TX_TAIL)).1 == WANTED || passed
            }
        }
    }
}
