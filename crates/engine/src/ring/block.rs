//! Netmap's communication status block, as the engine uses it: each side's indices and its wish to be woken
//! stand in the client's own memory (`sidecore_abi::ptnet`).
//!
//! A block is two cache lines, one written by each side. Each 64-bit word of ours is written whole, so that
//! both of our indices change at once; of the client's two indices `head` alone counts.

use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;

use sidecore_abi::ptnet::BLOCK;
use sidecore_abi::ring::Nonsense;

use super::region::pair;
use super::tickets::Hands;
use crate::mem::{halves, GuestMap, Words};

/// Words of either line: the two indices, and behind them the wish. Beside ours stands whether the link is
/// up.
const INDICES: usize = 0;
const WISH: usize = 1;
const WORDS: usize = BLOCK as usize / 8;

/// One ring's block, and the map that it lies in.
pub struct Block {
    theirs: Words,
    ours: Words,
    /// What stands there of ours.
    wish: u32,
    link: u32,
    _map: Option<Arc<GuestMap>>,
}

impl Block {
    /// No block: nothing is read and nothing written.
    pub const NONE: Block = Block { theirs: Words::EMPTY, ours: Words::EMPTY, wish: 0, link: 0, _map: None };

    /// Block `number` of those that begin at `theirs` and `ours` in `map`; `None` if it is not all there, or
    /// not aligned.
    pub fn find(map: &Arc<GuestMap>, [theirs, ours]: [u64; 2], number: u32) -> Option<Block> {
        let find = |first: u64| {
            let at = first.checked_add(u64::from(number) * u64::from(BLOCK))?;
            let line = map.translate(at, BLOCK, &mut 0).filter(|_| at % u64::from(BLOCK) == 0)?;
            Words::new(&line)
        };
        let (theirs, ours) = (find(theirs)?, find(ours)?);
        Some(Block { theirs, ours, wish: 0, link: 0, _map: Some(Arc::clone(map)) })
    }

    /// Fills it in for a client that begins: the ring is at `position`, and both sides want to be woken.
    pub fn begin(&mut self, [head, hwcur, hwtail]: [u32; 3]) {
        (WISH + 1..WORDS).for_each(|word| self.ours.publish(word, 0));
        self.theirs.publish(INDICES, pair(head, head));
        // It wants to be woken, and shall read.
        self.theirs.publish(WISH, pair(1, 1));
        self.set_wish(1);
        self.publish(hwcur, hwtail);
    }

    /// Whether the memory that it lies in was cut short.
    pub fn is_truncated(&self) -> bool {
        self._map.as_ref().is_some_and(|map| map.is_truncated())
    }

    /// Our indices as they stand there: the ring's previous server wrote them, and the client may have.
    pub fn indices(&self) -> [u32; 2] {
        let word = self.ours.acquire(INDICES);
        halves(word).into()
    }

    /// Shows whether the link is up, to a client that knows where.
    pub fn set_link(&mut self, up: bool) {
        self.link = up.into();
        self.set_wish(self.wish);
    }

    fn set_wish(&mut self, wish: u32) {
        self.wish = wish;
        self.ours.publish(WISH, pair(wish, self.link));
    }
}

impl Hands for Block {
    fn head(&self) -> u32 {
        halves(self.theirs.acquire(INDICES)).0
    }

    fn publish(&mut self, hwcur: u32, hwtail: u32) {
        self.ours.publish(INDICES, pair(hwcur, hwtail));
    }

    fn is_asked(&mut self) -> bool {
        // The client sets its wish, and then looks at our indices once more.
        halves(self.theirs.load(WISH)).0 != 0
    }

    fn ask(&mut self) {
        self.set_wish(1);
        fence(Ordering::SeqCst);
    }

    fn withdraw(&mut self) {
        self.set_wish(0);
    }

    /// There is no place for it: the server of the ring has to end it.
    fn reset(&mut self, _: u32, _: Nonsense) {}
}
