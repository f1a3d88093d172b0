//! What a ring's state needs of the place in which both sides' indices stand.

use std::sync::atomic::{fence, Ordering};

use sidecore_abi::ring::Nonsense;

/// How the two sides of a ring tell each other how far they are, and that they want to be woken.
pub trait Hands: Send {
    /// The client's `head`. What the client wrote before it is seen.
    fn head(&self) -> u32;

    /// The engine's indices; what was written before is visible to a side that sees them.
    fn publish(&mut self, hwcur: u32, hwtail: u32);

    /// Whether the client waits and is to be woken, after an index was published and a full barrier since.
    fn is_asked(&mut self) -> bool;

    /// The same, with the barrier: without it the client's wish could be read before our index is seen.
    #[inline]
    fn is_due(&mut self) -> bool {
        fence(Ordering::SeqCst);
        self.is_asked()
    }

    /// Asks the client for kicks. A look that follows sees what the client has published without having seen that.
    fn ask(&mut self);

    /// Declines kicks.
    fn withdraw(&mut self);

    /// Tells the client that its ring was reset, and how often it was.
    fn reset(&mut self, resets: u32, reason: Nonsense);
}
