//! What the I/O cores and the conversation of a card share.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::Arc;
use std::time::Duration;

use crate::device::moderation::{Causes, Irq};
use crate::port::Port;

/// A part's own of that: registers and statistics.
pub trait SharedPart: Send + Sync + 'static {
    /// Its interrupts.
    type Causes: Causes<Beside: Send + Sync> + Send;
    /// How long a core sleeps at most while doorbells trap, which wake it.
    const NAP_IF_TRAPPING: Option<Duration>;

    /// Transmit rings that the driver has set up.
    fn transmit_rings(&self) -> usize {
        1
    }
    /// Whether each doorbell leaves the guest.
    fn always_traps(&self) -> bool;
    /// Whether doorbells do so for now.
    fn is_trapping(&self) -> bool {
        self.always_traps()
    }
}

/// All of it.
pub struct Nic<S: SharedPart> {
    pub(in crate::device) port: Arc<Port>,
    pub(in crate::device) irq: Irq<S::Causes>,
    /// Frames were delivered to the guest since the transmit queue last looked.
    pub(in crate::device) received: AtomicBool,
    /// What the guest sends comes back to it, and nothing else does.
    pub(in crate::device) looped: AtomicBool,
    /// Accesses that trapped.
    pub(in crate::device) reads: AtomicU64,
    pub(in crate::device) writes: AtomicU64,
    own: S,
}

impl<S: SharedPart> Nic<S> {
    pub(in crate::device) fn new(port: Arc<Port>, irq: Irq<S::Causes>, own: S) -> Arc<Nic<S>> {
        let (received, looped) = (AtomicBool::new(false), AtomicBool::new(false));
        let (reads, writes) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Nic { port, irq, received, looped, reads, writes, own })
    }
}

impl<S: SharedPart> Deref for Nic<S> {
    type Target = S;

    #[inline]
    fn deref(&self) -> &S {
        &self.own
    }
}
