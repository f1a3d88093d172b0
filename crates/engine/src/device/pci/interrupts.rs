//! A function's interrupts: INTx with its level, MSI and MSI-X vectors.
//!
//! Theory of operation. Each of them ends in an eventfd that the VMM has given and usually has wired to the
//! guest's interrupt controller. A message (MSI, MSI-X) is one write of it. INTx has a level, and an eventfd
//! has none: so a rising level writes the eventfd and masks itself (VFIO's "automasked"); the guest's end of
//! interrupt comes back as an unmask message or on the resample eventfd, and if the level is still up then,
//! the eventfd is written again. A spurious look at the level costs an interrupt, a forgotten one hangs the
//! guest: every event that could let a pending level through ends in [`InterruptPin::look`].
//!
//! A message whose vector has no eventfd yet stays pending (PCI 3.0 §6.8.3.4, the pending bit array) and goes
//! out when the VMM gives one.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

use crate::mem::{Overrun, Signal};

/// The kinds of interrupts, with VFIO's numbers for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Index {
    /// The interrupt pin.
    Intx = 0,
    /// Message signalled.
    Msi = 1,
    /// Message signalled, with a table.
    Msix = 2,
    /// Bus errors. We never have any, but VMMs warn of a device that could not tell.
    Error = 3,
    /// Our wish that the VMM give the device up.
    Request = 4,
}

impl Index {
    /// The kind with VFIO's number `number`.
    pub fn new(number: u32) -> Option<Index> {
        [Index::Intx, Index::Msi, Index::Msix, Index::Error, Index::Request]
            .into_iter()
            .find(|index| *index as u32 == number)
    }
}

/// Which kind of interrupts the guest has turned on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The interrupt pin.
    Intx,
    /// MSI.
    Msi,
    /// MSI-X.
    Msix,
}

/// An eventfd, or a wish to write it when it comes.
struct Vector {
    trigger: Signal,
    pending: bool,
}

impl Vector {
    fn new(overrun: &Overrun) -> Mutex<Vector> {
        Mutex::new(Vector { trigger: Signal::new(overrun), pending: false })
    }

    /// Interrupts; true if an eventfd was written.
    fn fire(&mut self) -> bool {
        let fired = self.trigger.raise();
        self.pending = !fired;
        fired
    }

    fn set(&mut self, trigger: Option<OwnedFd>) {
        self.trigger.set(trigger);
        if self.pending && self.trigger.is_set() {
            self.fire();
        }
    }
}

/// The interrupt pin.
struct InterruptPin {
    level: bool,
    /// By the VMM, or by ourselves since the eventfd was written.
    masked: bool,
    /// By the guest: command register bit 10.
    disabled: bool,
    /// The guest uses messages instead.
    unused: bool,
    trigger: Signal,
    resample: Option<Arc<OwnedFd>>,
}

impl InterruptPin {
    fn new(overrun: &Overrun) -> Mutex<InterruptPin> {
        Mutex::new(InterruptPin {
            level: false,
            masked: false,
            disabled: false,
            unused: false,
            trigger: Signal::new(overrun),
            resample: None,
        })
    }

    /// Writes the eventfd if the level is up and nothing stands against it.
    fn look(&mut self) -> bool {
        if !self.level || self.masked || self.disabled || self.unused {
            return false;
        }
        let fired = self.trigger.raise();
        self.masked = fired;
        fired
    }
}

/// One function's interrupts. I/O cores call [`mode`](Interrupts::mode), [`message`](Interrupts::message) and
/// [`set_level`](Interrupts::set_level); the transport calls the rest.
pub struct Interrupts {
    mode: AtomicU8,
    /// Eventfds that the VMM gives are dropped here ([`Interrupts::silence`]).
    silent: AtomicBool,
    has_pin: bool,
    pin: Mutex<InterruptPin>,
    /// The vectors of each kind but the pin, in the order of their numbers.
    vectors: [Box<[Mutex<Vector>]>; 4],
}

impl Interrupts {
    /// A function with an interrupt pin or without one, `msi` MSI vectors and `msix` MSI-X vectors, behind a
    /// port with this account.
    pub fn new(has_pin: bool, msi: u16, msix: u16, overrun: &Overrun) -> Arc<Interrupts> {
        let vectors = |count: u16| (0..count).map(|_| Vector::new(overrun)).collect();
        Arc::new(Interrupts {
            mode: AtomicU8::new(Mode::Intx as u8),
            silent: AtomicBool::new(false),
            has_pin,
            pin: InterruptPin::new(overrun),
            vectors: [msi, msix, 1, 1].map(vectors),
        })
    }

    /// Which kind of interrupts the guest has turned on.
    #[inline]
    pub fn mode(&self) -> Mode {
        match self.mode.load(Ordering::Relaxed) {
            mode if mode == Mode::Msi as u8 => Mode::Msi,
            mode if mode == Mode::Msix as u8 => Mode::Msix,
            _ => Mode::Intx,
        }
    }

    /// Sends message `vector` of the kind that is turned on. True if an eventfd was written; false in INTx
    /// mode, for a vector that the function does not have, and for one that stays pending.
    #[inline]
    pub fn message(&self, vector: u16) -> bool {
        let index = match self.mode() {
            Mode::Msi => Index::Msi,
            Mode::Msix => Index::Msix,
            Mode::Intx => return false,
        };
        self.of(index).get(usize::from(vector)).is_some_and(|vector| crate::lock(vector).fire())
    }

    /// Sets the level of the interrupt pin. True if an eventfd was written.
    pub fn set_level(&self, up: bool) -> bool {
        let mut pin = crate::lock(&self.pin);
        pin.level = up;
        pin.look()
    }

    /// The level of the interrupt pin.
    pub fn level(&self) -> bool {
        crate::lock(&self.pin).level
    }

    /// The pending bit array (PCI 3.0 §6.8.2.6): which of the first 32 MSI-X vectors wait for an eventfd.
    pub fn pending(&self) -> u32 {
        (0..32)
            .zip(self.of(Index::Msix))
            .fold(0, |bits, (at, vector)| bits | u32::from(crate::lock(vector).pending) << at)
    }

    /// Interrupts of kind `index`.
    pub fn count(&self, index: Index) -> usize {
        self.of(index).len() + usize::from(index == Index::Intx && self.has_pin)
    }

    /// From now on eventfds that the VMM gives are dropped: the next daemon will signal them.
    pub fn silence(&self) {
        self.silent.store(true, Ordering::Relaxed);
    }

    /// Gives interrupt `number` of kind `index` its eventfd, or takes it away.
    pub fn set_trigger(&self, index: Index, number: usize, trigger: Option<OwnedFd>) {
        if self.silent.load(Ordering::Relaxed) {
            return;
        }
        if index == Index::Intx {
            let mut pin = crate::lock(&self.pin);
            pin.trigger.set(trigger);
            pin.masked = false;
            pin.look();
        } else if let Some(vector) = self.of(index).get(number) {
            crate::lock(vector).set(trigger);
        }
    }

    /// Fires interrupt `number` of kind `index` on the VMM's own wish.
    pub fn fire(&self, index: Index, number: usize) {
        if index == Index::Intx {
            let mut pin = crate::lock(&self.pin);
            if !pin.masked {
                pin.masked = pin.trigger.raise();
            }
        } else if let Some(vector) = self.of(index).get(number) {
            crate::lock(vector).fire();
        }
    }

    /// Takes all eventfds of kind `index` away.
    pub fn disable(&self, index: Index) {
        if index == Index::Intx {
            let mut pin = crate::lock(&self.pin);
            pin.trigger.set(None);
            (pin.resample, pin.masked) = (None, false);
        }
        for vector in self.of(index) {
            let mut vector = crate::lock(vector);
            vector.set(None);
            vector.pending = false;
        }
    }

    /// Masks the interrupt pin.
    pub fn mask(&self) {
        crate::lock(&self.pin).masked = true;
    }

    /// Unmasks the interrupt pin: also the end of an interrupt. True if the level is still up and the
    /// eventfd was written again.
    pub fn unmask(&self) -> bool {
        let mut pin = crate::lock(&self.pin);
        pin.masked = false;
        pin.look()
    }

    /// Sets the eventfd by which the end of an interrupt is told.
    pub fn set_resample(&self, resample: Option<OwnedFd>) {
        crate::lock(&self.pin).resample = resample.map(Arc::new);
    }

    /// That eventfd. Its reader calls [`unmask`](Interrupts::unmask).
    pub fn resample(&self) -> Option<Arc<OwnedFd>> {
        crate::lock(&self.pin).resample.clone()
    }

    /// Which kind the guest has turned on: from its configuration space.
    pub fn set_mode(&self, mode: Mode) {
        self.mode.store(mode as u8, Ordering::Relaxed);
        let mut pin = crate::lock(&self.pin);
        pin.unused = mode != Mode::Intx;
        pin.look();
    }

    /// Whether the guest has switched the pin off in its command register.
    pub fn set_intx_disabled(&self, disabled: bool) {
        let mut pin = crate::lock(&self.pin);
        pin.disabled = disabled;
        pin.look();
    }

    /// The function is reset: nothing pends. Eventfds and what they wait for stay.
    pub fn reset(&self) {
        self.set_level(false);
        for vector in self.of(Index::Msi).iter().chain(self.of(Index::Msix)) {
            crate::lock(vector).pending = false;
        }
    }

    /// The VMM is gone: everything it gave is closed.
    pub fn disconnect(&self) {
        for index in [Index::Intx, Index::Msi, Index::Msix, Index::Error, Index::Request] {
            self.disable(index);
        }
        self.reset();
    }

    /// The vectors of a kind; none of the pin.
    fn of(&self, index: Index) -> &[Mutex<Vector>] {
        (index as usize).checked_sub(1).and_then(|at| self.vectors.get(at)).map_or(&[], |of| of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{eventfd, EventfdFlags};

    /// An eventfd, and how often it was written since the last look.
    struct Ear(OwnedFd);

    impl Ear {
        fn new() -> Ear {
            Ear(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap())
        }

        fn mouth(&self) -> Option<OwnedFd> {
            Some(self.0.try_clone().unwrap())
        }

        fn heard(&self) -> u64 {
            let mut count = [0; 8];
            rustix::io::read(&self.0, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
        }
    }

    #[test]
    fn a_level_is_told_once_until_the_end_of_interrupt() {
        let (ear, irq) = (Ear::new(), Interrupts::new(true, 0, 0, &Overrun::default()));
        assert!(!irq.set_level(true));
        irq.set_trigger(Index::Intx, 0, ear.mouth());
        assert_eq!(ear.heard(), 1, "the level was up before the eventfd came");
        assert!(!irq.set_level(true));
        // End of interrupt while the level is up: again.
        assert!(irq.unmask());
        assert_eq!(ear.heard(), 1);
        // The level falls, and the end of interrupt changes nothing; the next rise is told.
        assert!(!irq.set_level(false) && !irq.unmask());
        assert!(irq.set_level(true));
        assert_eq!(ear.heard(), 1);
    }

    #[test]
    fn the_order_in_which_qemu_sets_intx_up() {
        let (ear, end, irq) = (Ear::new(), Ear::new(), Interrupts::new(true, 0, 0, &Overrun::default()));
        irq.set_trigger(Index::Intx, 0, ear.mouth());
        irq.mask();
        irq.set_resample(end.mouth());
        assert!(!irq.set_level(true), "masked");
        assert!(irq.unmask());
        assert_eq!(ear.heard(), 1);
        assert!(irq.resample().is_some());
        irq.disable(Index::Intx);
        assert!(irq.resample().is_none() && !irq.unmask());
    }

    #[test]
    fn nothing_passes_a_pin_that_the_guest_has_switched_off() {
        let (ear, irq) = (Ear::new(), Interrupts::new(true, 0, 1, &Overrun::default()));
        irq.set_trigger(Index::Intx, 0, ear.mouth());
        irq.set_intx_disabled(true);
        assert!(!irq.set_level(true));
        irq.set_mode(Mode::Msix);
        irq.set_intx_disabled(false);
        assert_eq!(ear.heard(), 0);
        irq.set_mode(Mode::Intx);
        assert_eq!(ear.heard(), 1);
    }

    #[test]
    fn messages_wait_for_their_eventfd() {
        let (ear, irq) = (Ear::new(), Interrupts::new(false, 1, 2, &Overrun::default()));
        assert!(!irq.message(0), "INTx mode");
        irq.set_mode(Mode::Msix);
        assert!(!irq.message(1) && !irq.message(2));
        assert_eq!(irq.pending(), 1 << 1);
        irq.set_trigger(Index::Msix, 1, ear.mouth());
        assert_eq!(irq.pending(), 0);
        assert_eq!(ear.heard(), 1);
        assert!(irq.message(1) && irq.message(1));
        assert_eq!(ear.heard(), 2);
        irq.set_trigger(Index::Msix, 1, None);
        assert!(!irq.message(1));
        irq.reset();
        irq.set_trigger(Index::Msix, 1, ear.mouth());
        assert_eq!(ear.heard(), 0, "a reset forgets what was pending");
        irq.disconnect();
        assert!(!irq.message(1));
    }
}
