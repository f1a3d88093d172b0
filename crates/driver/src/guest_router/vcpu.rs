//! A router's thread: the virtual processor of its guest.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::thread::gettid;

use super::{Counters, Counts, GuestRouter, Nic};
use crate::error::{Error, Result};

/// What QEMU calls the thread of a guest's first processor (with `debug-threads=on`), so that it is found as
/// one.
const NAME: &str = "CPU 0/KVM";
/// How long it sleeps before it looks whether it is to end.
const LOOK: Duration = Duration::from_millis(20);

/// A router that runs; it ends when this is dropped.
#[derive(Debug)]
pub struct Vcpu {
    thread: Option<JoinHandle<Result<()>>>,
    number: u32,
    over: Arc<AtomicBool>,
    counters: Arc<Counters>,
}

impl<N: Nic + 'static> GuestRouter<N> {
    /// Routes on a thread of its own from now on.
    ///
    /// # Errors
    /// There is no thread.
    pub fn start(mut self) -> Result<Vcpu> {
        let (over, number) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let (counters, ended, told) = (Arc::clone(&self.counters), Arc::clone(&over), Arc::clone(&number));
        let run = move || {
            told.store(gettid().as_raw_nonzero().get().unsigned_abs(), Ordering::Release);
            while !ended.load(Ordering::Relaxed) {
                if !self.turn()? {
                    self.sleep(LOOK)?;
                }
            }
            Ok(())
        };
        let thread = std::thread::Builder::new().name(NAME.to_owned()).spawn(run);
        let thread = thread.map_err(|e| Error::io("starting a guest's thread", e))?;
        while number.load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
        Ok(Vcpu { thread: Some(thread), number: number.load(Ordering::Acquire), over, counters })
    }
}

impl Vcpu {
    /// Its thread, as the system numbers it: for sched_setattr(2) and the like.
    pub fn thread(&self) -> u32 {
        self.number
    }

    /// What the router did so far.
    pub fn counts(&self) -> Counts {
        self.counters.load()
    }

    /// Ends it.
    ///
    /// # Errors
    /// What ended it before.
    pub fn stop(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        self.over.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(ended)) => ended,
            Some(Err(_)) => Err(Error::Config("a guest's thread panicked".into())),
            None => Ok(()),
        }
    }
}

impl Drop for Vcpu {
    fn drop(&mut self) {
        let _ = self.end();
    }
}
