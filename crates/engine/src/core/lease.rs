//! Leases: what is lent out as a trait object comes back with its own type.
//!
//! Theory of operation. An I/O core and a port's egress slot know what they hold only as a trait object; its
//! owner wants it back with its type. So a holder has the thing with the place of its owner ([`Lent`]), and
//! is told to return it there ([`Lent::return_to_owner`]). The owner keeps the [`Lease`]: that place, how to
//! reach the holder ([`Recall`]), and how the thing gets its type again. The holder may pass the thing on: a
//! task may move from core to core, and its lease stays the same.

use std::any::Any;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};

/// Has the holder of a lent thing return it. When it returns the thing is there, or lost with its holder.
pub type Recall = Box<dyn FnOnce() + Send + Sync>;

/// Where lent things come back to.
type Shelf = Arc<Mutex<Option<Box<dyn Any + Send>>>>;

/// A lent thing, as its holder has it.
pub struct Lent<T: ?Sized> {
    thing: Box<T>,
    home: Shelf,
}

impl<T: ?Sized> Lent<T> {
    /// The thing as `f` shows it, with the same owner.
    pub(crate) fn map<U: ?Sized>(self, f: impl FnOnce(Box<T>) -> Box<U>) -> Lent<U> {
        Lent { thing: f(self.thing), home: self.home }
    }
}

impl Lent<dyn Any + Send> {
    /// Gives the thing back to its owner. If the owner has gone, the thing ends here.
    pub(crate) fn return_to_owner(self) {
        *crate::lock(&self.home) = Some(self.thing);
    }
}

impl<T: ?Sized> Deref for Lent<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.thing
    }
}

impl<T: ?Sized> DerefMut for Lent<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.thing
    }
}

/// Where a lent thing comes back to, and becomes a `T` again.
pub struct Home<T> {
    place: Shelf,
    open: fn(Box<dyn Any + Send>) -> Option<T>,
}

impl<T: 'static> Home<T> {
    /// That of a thing of which `open` makes a `T`.
    pub fn of(open: fn(Box<dyn Any + Send>) -> Option<T>) -> Home<T> {
        Home { place: Shelf::default(), open }
    }

    /// Lends `thing`, which will come back here.
    pub fn lend<H: ?Sized>(&self, thing: Box<H>) -> Lent<H> {
        Lent { thing, home: Arc::clone(&self.place) }
    }

    /// The lease of the thing that `recall` brings back.
    pub fn lease(self, recall: Recall) -> Lease<T> {
        Lease { home: self, recall: Some(recall) }
    }
}

impl<T: 'static> Default for Home<T> {
    /// That of a thing that is lent as it is.
    fn default() -> Home<T> {
        Home::of(|thing| Some(*thing.downcast::<T>().ok()?))
    }
}

/// The right to have a lent thing back. Dropping it takes the thing back and drops it.
pub struct Lease<T> {
    home: Home<T>,
    recall: Option<Recall>,
}

impl<T> Lease<T> {
    /// Takes the thing back. When this returns its holder does not touch it any more: the quiescence that
    /// changing it, or unmapping its memory, needs. `None`: its holder is gone, and the thing with it.
    pub fn take_back(mut self) -> Option<T> {
        self.recall();
        let thing = crate::lock(&self.home.place).take();
        (self.home.open)(thing?)
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

    #[derive(Debug)]
    struct Flag(Arc<AtomicBool>);

    impl Drop for Flag {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    type Holder = Arc<Mutex<Option<Lent<dyn Any + Send>>>>;

    fn lend() -> (Lease<Flag>, Holder, Arc<AtomicBool>) {
        let gone = Arc::<AtomicBool>::default();
        let home = Home::default();
        let lent = home.lend::<dyn Any + Send>(Box::new(Flag(Arc::clone(&gone))));
        let holder: Holder = Arc::new(Mutex::new(Some(lent)));
        let from = Arc::clone(&holder);
        let recall = Box::new(move || {
            if let Some(held) = from.lock().unwrap().take() {
                held.return_to_owner();
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
        holder.lock().unwrap().take().unwrap().return_to_owner();
        assert!(!gone.load(Ordering::Relaxed) && lease.take_back().is_some());
    }
}
