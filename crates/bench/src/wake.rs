//! What waking up costs on this machine without us: a bare thread that sleeps in `epoll_wait` until an
//! eventfd is written, as an I/O core does.
//!
//! `bench idle` measures it between its own frames, so that both meet the same machine: a processor that
//! sleeps must be woken by the hypervisor, which on a busy host takes from microseconds to milliseconds.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::prelude::*;
use rustix::event::{epoll, eventfd, EventfdFlags};

/// Stops the thread: more than all wake-ups together.
const END: u64 = 1 << 32;

/// The bare thread.
pub(super) struct Sleeper {
    kick: Arc<OwnedFd>,
    woken: Arc<AtomicU64>,
    rounds: u64,
    thread: Option<JoinHandle<()>>,
}

impl Sleeper {
    /// A sleeping thread on processor `core`.
    pub(super) fn start(core: usize) -> Result<Sleeper, String> {
        let kick = eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| format!("an eventfd: {e}"))?;
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| format!("an epoll set: {e}"))?;
        epoll::add(&set, &kick, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
            .map_err(|e| format!("watching an eventfd: {e}"))?;
        let (kick, woken) = (Arc::new(kick), Arc::new(AtomicU64::new(0)));
        let (its_kick, its_woken) = (Arc::clone(&kick), Arc::clone(&woken));
        let thread = std::thread::Builder::new()
            .name("sleeper".to_owned())
            .spawn(move || {
                // Not pinned, it still measures a wake-up: only of whichever processor.
                let _ = sidecore_driver::load::pin(core);
                let mut events =
                    [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }];
                let mut count = [0; 8];
                while epoll::wait(&set, &mut events[..], None).is_ok() {
                    its_woken.fetch_add(1, Ordering::Release);
                    // There is something to read: this does not block.
                    if rustix::io::read(&*its_kick, &mut count).is_err() || u64::from_ne_bytes(count) >= END {
                        break;
                    }
                }
            })
            .map_err(|e| format!("a thread to be woken: {e}"))?;
        Ok(Sleeper { kick, woken, rounds: 0, thread: Some(thread) })
    }

    /// Wakes the thread; how long it took until it ran.
    pub(super) fn wake(&mut self, within: Duration) -> Result<Duration, String> {
        self.rounds += 1;
        let start = Instant::now();
        rustix::io::write(&*self.kick, &1u64.to_ne_bytes()).map_err(|e| format!("waking a thread: {e}"))?;
        let runs = || Ok((self.woken.load(Ordering::Acquire) == self.rounds).then_some(()));
        until("a thread runs that was woken", within, Duration::ZERO, runs)?;
        Ok(start.elapsed())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let told = rustix::io::write(&*self.kick, &END.to_ne_bytes()).is_ok();
        if let (true, Some(thread)) = (told, self.thread.take()) {
            let _ = thread.join();
        }
    }
}
