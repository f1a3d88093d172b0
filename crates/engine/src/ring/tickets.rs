//! What a ring's state needs of the place in which both sides' indices stand ([`Hands`]), and the usual such
//! place: the words behind a region, as the engine uses them: each side's index, and the ticket by which it
//! says that it sleeps (`sidecore_abi::ring`).

use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;

use sidecore_abi::ring::{ask, due, is_asked, next_ticket, observe, publish, withdraw, Engine, Nonsense};

use super::region::{Region, RingWords};

/// How the two sides of a ring tell each other how far they are, and that they want to be woken.
pub trait Hands: Send {
    /// The client's `head`. What the client wrote before it is seen.
    fn head(&self) -> u32;

    /// The engine's indices; what was written before is visible to a side that sees them.
    fn publish(&mut self, hwcur: u32, hwtail: u32);

    /// Whether the client waits and is to be woken, after an index was published and a full barrier since.
    fn is_asked(&mut self) -> bool;

    /// `is_asked` behind a barrier: without it the client's wish could be read before our index is seen.
    #[inline]
    fn is_due(&mut self) -> bool {
        fence(Ordering::SeqCst);
        self.is_asked()
    }

    /// Asks the client for kicks. A look that follows sees what the client has published without having seen
    /// that.
    fn ask(&mut self);

    /// Declines kicks.
    fn withdraw(&mut self);

    /// Tells the client that its ring was reset, and how often it was.
    fn reset(&mut self, resets: u32, reason: Nonsense);
}

/// One ring's words.
pub struct Tickets {
    words: RingWords,
    /// Ours that was put last.
    ticket: u32,
    /// The client's that was answered last.
    answered: u32,
}

impl Tickets {
    /// Those of ring `number`, counted over all rings and then those of pipes.
    pub(super) fn new(region: &Arc<Region>, number: u32) -> Tickets {
        Tickets { words: region.ring_words(number), ticket: 0, answered: 0 }
    }
}

impl Tickets {
    /// The engine's indices as they stand there: the ring's previous server wrote them, and the client may
    /// have.
    pub(super) fn indices(&self) -> [u32; 2] {
        let Engine { hwcur, hwtail, .. } = &self.words.engine;
        [observe(hwcur), observe(hwtail)]
    }
}

impl Hands for Tickets {
    fn head(&self) -> u32 {
        observe(&self.words.client.head)
    }

    #[inline]
    fn publish(&mut self, hwcur: u32, hwtail: u32) {
        self.words.engine.hwcur.store(hwcur, Ordering::Relaxed);
        publish(&self.words.engine.hwtail, hwtail);
    }

    fn is_asked(&mut self) -> bool {
        is_asked(&self.words.client.ticket, &mut self.answered)
    }

    fn ask(&mut self) {
        self.ticket = next_ticket(self.ticket);
        ask(&self.words.engine.ticket, self.ticket, &self.words.client.head);
    }

    fn withdraw(&mut self) {
        withdraw(&self.words.engine.ticket);
    }

    fn reset(&mut self, resets: u32, reason: Nonsense) {
        let Engine { resets: word, reason: why, .. } = &self.words.engine;
        why.store(reason as u32, Ordering::Relaxed);
        publish(word, resets);
    }
}

/// How far a pipe's monitors are, for the end that sends what they see; and the way to wake it when they go
/// on.
pub struct PipeGate {
    /// Status words of the watched ring, and of the one on which the sender sends, which is this one or the
    /// one across.
    watched: RingWords,
    sender: RingWords,
    answered: u32,
}

impl PipeGate {
    /// Closes behind slots of ring `number` of `region` that are not read yet, for the sender on ring
    /// `sender`; both are counted over all rings. They are kept from now on, before the follower of the ring
    /// looks where it is.
    ///
    /// # Panics
    /// If there are no such rings.
    pub fn new(region: &Arc<Region>, number: u32, sender: u32) -> PipeGate {
        let gate =
            PipeGate { watched: region.ring_words(number), sender: region.ring_words(sender), answered: 0 };
        let words = &gate.watched;
        words.engine.hwcur.store(words.client.head.load(Ordering::Relaxed), Ordering::Relaxed);
        words.engine.ticket.store(1, Ordering::Release);
        // A sender either sees the ticket, or has published what we follow.
        fence(Ordering::SeqCst);
        gate
    }

    /// The slots from `at` on are kept. True if the sender waits and is to be woken.
    pub fn keep_from(&mut self, at: u32) -> bool {
        publish(&self.watched.engine.hwcur, at);
        due(&self.sender.client.ticket, &mut self.answered)
    }
}

impl Drop for PipeGate {
    /// No sender has to wait for us any more; one that does is to be woken after this.
    fn drop(&mut self) {
        withdraw(&self.watched.engine.ticket);
    }
}
