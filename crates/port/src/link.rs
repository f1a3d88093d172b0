//! The client's end of one ring: how slots change hands and how both sides wake each other.
//!
//! This is the protocol alone (`sidecore_abi::ring`), without slots and frames: [`TxRing`](crate::TxRing) and
//! [`RxRing`](crate::RxRing) stand on it, and so does the netmap API in C. At the other side is the engine,
//! or for a pipe the other end ([`Far`]), which is a client as we are.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::Arc;

use sidecore_abi::ring::{ask, due, next_ticket, observe, publish, withdraw, Nonsense, RingStatus};

use crate::map::Map;
use crate::pipe::Far;

/// The client's end of one ring.
#[derive(Debug)]
pub struct Link {
    map: Arc<Map>,
    number: u32,
    num_slots: u32,
    /// The engine's eventfd, for rings on which the client sends.
    kick: Option<OwnedFd>,
    wake: OwnedFd,
    ticket: u32,
    answered: u32,
    resets: u32,
    /// The ring across, if this is one of a pipe.
    far: Option<Far>,
}

impl Link {
    pub(crate) fn new(map: &Arc<Map>, number: u32, kick: Option<OwnedFd>, wake: OwnedFd) -> Link {
        let num_slots = map.num_slots(number);
        let map = Arc::clone(map);
        Link { map, number, num_slots, kick, wake, ticket: 0, answered: 0, resets: 0, far: None }
    }

    /// One of a pipe's rings, which goes on where its last owner left it.
    pub(crate) fn of_pipe(map: &Arc<Map>, number: u32, wake: OwnedFd, far: OwnedFd) -> Link {
        let mut link = Link::new(map, number, None, wake);
        link.far = Some(Far::new(map, number, far));
        link
    }

    #[cfg(test)]
    pub(crate) fn set_far(&mut self, far: Far) {
        self.far = Some(far);
    }

    #[inline]
    fn words(&self) -> &RingStatus {
        self.map.words(self.number)
    }

    /// The region that the ring is in.
    pub fn map(&self) -> &Arc<Map> {
        &self.map
    }

    /// The ring's number, counted over both directions: those on which the client sends come first. Of a
    /// pipe's ring, its number among the four.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Slots of the ring.
    #[inline]
    pub fn num_slots(&self) -> u32 {
        self.num_slots
    }

    /// Where the client starts: 0, unless the ring is one of a pipe that goes on.
    pub fn start(&self) -> u32 {
        match &self.far {
            Some(far) => far.given(self.num_slots),
            None => observe(&self.words().client.head).min(self.num_slots - 1),
        }
    }

    /// Gives all slots before `head` to the other side, and kicks it if it sleeps.
    #[inline]
    pub fn give(&mut self, head: u32, cur: u32) {
        if let Some(far) = &mut self.far {
            return far.give(&self.map, self.number, head);
        }
        let words = self.map.words(self.number);
        words.client.cur.store(cur, Ordering::Relaxed);
        publish(&words.client.head, head);
        if let Some(kick) = &self.kick {
            if due(&words.engine.ticket, &mut self.answered) {
                // Fails only when the counter is full, and then the engine has been kicked.
                let _ = rustix::io::write(kick, &1u64.to_ne_bytes());
            }
        }
    }

    /// First slot that the other side has not given back.
    #[inline]
    pub fn hwcur(&self) -> u32 {
        match &self.far {
            Some(far) => far.hwcur(&self.map, self.number),
            None => observe(&self.words().engine.hwcur).min(self.num_slots - 1),
        }
    }

    /// First slot that the client does not own.
    #[inline]
    pub fn hwtail(&self) -> u32 {
        match &self.far {
            Some(far) => far.hwtail(&self.map, self.number),
            None => observe(&self.words().engine.hwtail).min(self.num_slots - 1),
        }
    }

    /// As [`hwtail`](Self::hwtail); but `head`, as if nothing had come and nothing were free, if memory was
    /// taken away with its port. In a region that reads as zeros the tail is the first slot, or the last one
    /// of a pipe's ring on which the client sends.
    #[inline]
    pub(crate) fn tail(&self, head: u32) -> u32 {
        let tail = self.hwtail();
        if (tail == 0 || tail == self.num_slots - 1) && self.map.is_taken(self.number) {
            return head;
        }
        tail
    }

    /// Why the engine has reset the ring since this was asked last, if it has. The client's `head` is then to
    /// be put back to [`Link::hwcur`].
    #[inline]
    pub fn reset(&mut self) -> Option<Nonsense> {
        let resets = observe(&self.words().engine.resets);
        if resets == self.resets || resets == 0 && self.map.is_taken(self.number) {
            return None;
        }
        self.resets = resets;
        let reason = self.words().engine.reason.load(Ordering::Relaxed);
        Some(Nonsense::from_code(reason).unwrap_or(Nonsense::HeadOutOfTurn))
    }

    /// Asks to be woken by [`Link::wake_fd`] when `hwtail` moves, and returns `hwtail` as it is after that.
    /// If that is where the client waits, it may sleep.
    pub fn arm(&mut self) -> u32 {
        self.ticket = next_ticket(self.ticket);
        let words = self.words();
        let index = match &self.far {
            Some(far) => &self.map.words(far.number()).client.head,
            None => &words.engine.hwtail,
        };
        ask(&words.client.ticket, self.ticket, index);
        self.hwtail()
    }

    /// Asks no more, and empties what woke us.
    pub fn disarm(&mut self) {
        withdraw(&self.words().client.ticket);
        let mut bytes = [0; 64];
        while matches!(rustix::io::read(&self.wake, &mut bytes), Ok(n) if n == bytes.len()) {}
    }

    /// Readable when the other side has woken us, or the engine is gone.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
