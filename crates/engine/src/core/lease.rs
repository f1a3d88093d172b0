//! Leases: a thing that is lent out as a trait object comes back with its own type.
//!
//! Theory of operation. An I/O core and a port's egress slot know what they hold only as a trait object; its owner
//! wants it back with its type. So a lent thing travels with the address of its home ([`Lent`]), and its holder is told
//! to send it there (`go_home`). The owner keeps the [`Lease`]: the home, and how to reach the holder ([`Recall`]). The
//! holder may pass the thing on: a task may move from core to core, and its lease stays the same.

use std::sync::{Arc, Mutex, PoisonError};

/// Has the holder of a lent thing send it home. When it returns the thing is there, or lost with its holder.
pub type Recall = Box<dyn FnOnce() + Send + Sync>;

/// Something that is lent, and knows where it belongs.
pub struct Lent<T> {
    thing: T,
    home: Arc<Mutex<Option<T>>>,
}

impl<T> Lent<T> {
    /// Lends `thing`. Its home becomes a [`Lease`] once its holder is known.
    pub fn new(thing: T) -> (Lent<T>, Home<T>) {
        let home = Arc::<Mutex<Option<T>>>::default();
        (Lent { thing, home: Arc::clone(&home) }, Home(home))
    }

    /// Gives the thing back to its owner. If the owner has gone, the thing ends here.
    pub fn go_home(self) {
        *self.home.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.thing);
    }
}

impl<T> std::ops::Deref for Lent<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.thing
    }
}

impl<T> std::ops::DerefMut for Lent<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.thing
    }
}

/// Where a lent thing comes back to.
pub struct Home<T>(Arc<Mutex<Option<T>>>);

impl<T> Home<T> {
    /// The lease of a thing that `recall` brings home.
    pub fn lease(self, recall: Recall) -> Lease<T> {
        Lease { home: self.0, recall: Some(recall) }
    }
}

/// The right to have a lent thing back. Dropping it takes the thing back and drops it.
pub struct Lease<T> {
    home: Arc<Mutex<Option<T>>>,
    recall: Option<Recall>,
}

impl<T> Lease<T> {
    /// Takes the thing back. When this returns its holder does not touch it any more: the quiescence that changing it, or
    /// unmapping its memory, needs. `None`: its holder is gone, and the thing with it.
    pub fn take_back(mut self) -> Option<T> {
        self.recall();
        let mut home = self.home.lock().unwrap_or_else(PoisonError::into_inner);
        home.take()
    }

    fn recall(&mut self) {
        if let Some(recall) = self.recall.take() {
            recall();
        }
    }
}

impl<T> Drop for Lease<T> {
    fn drop(&mut self) {
        self.recall();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    trait Held: Send {
        fn go_home(self: Box<Self>);
    }

    impl<T: Send> Held for Lent<T> {
        fn go_home(self: Box<Self>) {
            Lent::go_home(*self);
        }
    }

    #[derive(Debug)]
    struct Thing(Arc<AtomicBool>);

    impl Drop for Thing {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    type Holder = Arc<Mutex<Option<Box<dyn Held>>>>;

    fn lend() -> (Lease<Thing>, Holder, Arc<AtomicBool>) {
        let gone = Arc::<AtomicBool>::default();
        let (lent, home) = Lent::new(Thing(Arc::clone(&gone)));
        let holder: Holder = Arc::new(Mutex::new(Some(Box::new(lent))));
        let from = Arc::clone(&holder);
        let recall = Box::new(move || {
            if let Some(held) = from.lock().unwrap().take() {
                held.go_home();
            }
        });
        (home.lease(recall), holder, gone)
    }

    #[test]
    fn what_was_lent_comes_back_as_it_was() {
        let (lease, holder, gone) = lend();
        let thing = lease.take_back().unwrap();
        assert!(holder.lock().unwrap().is_none() && !gone.load(Ordering::Relaxed));
        drop(thing);
        assert!(gone.load(Ordering::Relaxed));
    }

    #[test]
    fn a_lease_that_is_dropped_takes_it_back() {
        let (lease, holder, gone) = lend();
        drop(lease);
        assert!(holder.lock().unwrap().is_none() && gone.load(Ordering::Relaxed));
    }

    #[test]
    fn what_ended_with_its_holder_does_not_come_back() {
        let (lease, holder, gone) = lend();
        drop(holder.lock().unwrap().take());
        assert!(gone.load(Ordering::Relaxed) && lease.take_back().is_none());
    }

    #[test]
    fn what_goes_home_by_itself_waits_for_its_owner() {
        let (lease, holder, gone) = lend();
        holder.lock().unwrap().take().unwrap().go_home();
        assert!(!gone.load(Ordering::Relaxed) && lease.take_back().is_some());
    }
}
