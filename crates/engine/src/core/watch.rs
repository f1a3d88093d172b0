//! Watching I/O cores.
//!
//! Theory of operation. Each core publishes what it is doing ([`Heartbeat`]): a number that changes with
//! every task that it turns to, and the owner of the task. While a core is at work a thread of the control
//! plane looks at each core every [`EVERY`]. It notes what the core's thread has lost to others
//! ([`CoreTime`]), which tells later what an act that took long has cost (`mem::overrun`). And it says in the
//! log that a core has been in one visit for [`STALL`]: in memory that somebody punches out all the time,
//! say. It changes nothing: what the owner pays is settled when the core gets on.
//!
//! While no core has worked since the last look, the thread looks less and less often, at last once a second,
//! so an idle engine sleeps.
//!
//! A page fault cannot be interrupted, and tasks cannot be taken from a core in the middle of a visit. So the
//! core's other tasks wait, too. The core gets no new tasks meanwhile (`balance`).
//!
//! A thread that looks after the I/O cores now and then: the watchdog's, and the one that balances them.
//!
//! Between two looks it waits for the time of the next one, or for its end. It takes no lock that an I/O core
//! takes while it waits.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use super::task::Owner;
use crate::mem::{start_helper, CoreTime, JoinedThread, EVERY};

/// How often cores are looked at while none is at work.
const IDLE_LOOK: Duration = Duration::from_secs(1);
/// A visit that takes longer is reported.
const STALL: Duration = Duration::from_millis(500);

/// What a core is at: 16 bits of its owner and one, 32 of a number. Written by the core alone.
#[derive(Debug, Default)]
pub struct Heartbeat(AtomicU64);

impl Heartbeat {
    /// The core turns to a task of `owner`.
    pub(super) fn begin(&self, owner: u16) {
        let number = (self.0.load(Ordering::Relaxed) >> 32).wrapping_add(1);
        self.0.store((number << 32) | (u64::from(owner) + 1), Ordering::Relaxed);
    }

    /// It is at nothing that belongs to an owner.
    pub(super) fn pause(&self) {
        self.0.store(self.0.load(Ordering::Relaxed) & !0xffff_ffff, Ordering::Relaxed);
    }

    fn word(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Whether it is at something that belongs to an owner.
    pub(super) fn is_at_work(&self) -> bool {
        owner_of(self.word()).is_some()
    }
}

fn owner_of(word: u64) -> Option<u16> {
    u16::try_from(word & 0xffff_ffff).ok()?.checked_sub(1)
}

/// A core, as the thread sees it.
struct WatchedCore {
    heartbeat: Arc<Heartbeat>,
    time: Arc<CoreTime>,
    word: u64,
    since: Instant,
    reported: bool,
}

type Owners = Arc<Mutex<HashMap<u16, Weak<dyn Owner>>>>;

impl WatchedCore {
    /// Looks at the core. The owner of its task, if it has been in that for too long and was not reported
    /// yet.
    fn look(&mut self, now: Instant) -> Option<u16> {
        let word = self.heartbeat.word();
        if self.word != word {
            (self.word, self.since, self.reported) = (word, now, false);
        }
        let owner = owner_of(word)?;
        if self.reported || now.saturating_duration_since(self.since) < STALL {
            return None;
        }
        self.reported = true;
        Some(owner)
    }
}

/// The thread.
pub(super) struct Watchdog {
    owners: Owners,
    _thread: PeriodicThread,
}

impl Watchdog {
    /// Watches cores by their words and their threads.
    pub(super) fn start(cores: Vec<(Arc<Heartbeat>, Arc<CoreTime>)>) -> io::Result<Watchdog> {
        let owners = Owners::default();
        let since = Instant::now();
        let seen = |(heartbeat, time)| WatchedCore { heartbeat, time, word: 0, since, reported: false };
        let mut cores: Vec<WatchedCore> = cores.into_iter().map(seen).collect();
        let (known, mut pause) = (Arc::clone(&owners), IDLE_LOOK);
        let look_at_all = move || {
            // A core that sleeps between frames is at work, too.
            pause = if look(&mut cores, &known) { EVERY } else { (2 * pause).min(IDLE_LOOK) };
            Some(pause)
        };
        Ok(Watchdog { owners, _thread: PeriodicThread::start("core-watch", IDLE_LOOK, look_at_all)? })
    }

    /// An owner that cores will serve.
    pub(super) fn add(&self, owner: &Arc<dyn Owner>) {
        let mut owners = crate::lock(&self.owners);
        owners.retain(|_, owner| owner.strong_count() > 0);
        owners.insert(owner.number(), Arc::downgrade(owner));
    }
}

/// Looks at all cores; whether any has been at work since the last look.
fn look(cores: &mut [WatchedCore], owners: &Owners) -> bool {
    let (now, mut busy) = (Instant::now(), false);
    for (number, core) in cores.iter_mut().enumerate() {
        core.time.note();
        busy |= core.heartbeat.is_at_work() || core.heartbeat.word() != core.word;
        let Some(owner) = core.look(now) else { continue };
        let owner = crate::lock(owners).get(&owner).and_then(Weak::upgrade);
        let name = owner.as_ref().map_or("?", |owner| owner.name());
        tracing::warn!(
            port = name,
            core = number,
            "the core has been in one visit for {STALL:?}: it waits for memory, or has no processor"
        );
    }
    busy
}

/// The thread. Dropping this ends it.
pub(super) struct PeriodicThread {
    // In this order: without it the thread ends, which is waited for.
    _stop: Sender<()>,
    _thread: JoinedThread,
}

impl PeriodicThread {
    /// Calls `look` after `pause`, and again after each time that it returns. `None`: there is nothing to
    /// look after any more.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(super) fn start(
        name: &str,
        mut pause: Duration,
        mut look: impl FnMut() -> Option<Duration> + Send + 'static,
    ) -> io::Result<PeriodicThread> {
        let (stop, stopped) = channel::<()>();
        let body = move || {
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let Some(next) = look() else { return };
                pause = next;
            }
        };
        Ok(PeriodicThread { _stop: stop, _thread: start_helper(name.to_owned(), body)?.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_that_is_in_one_visit_for_long_is_reported_once() {
        std::thread::spawn(|| {
            let (heartbeat, since) = (Arc::<Heartbeat>::default(), Instant::now());
            let time = CoreTime::of_this_thread().unwrap();
            let mut core =
                WatchedCore { heartbeat: Arc::clone(&heartbeat), time, word: 0, since, reported: false };
            let mut look = |ms| core.look(since + Duration::from_millis(ms));
            assert_eq!((look(0), look(5_000)), (None, None), "it is at nothing");
            heartbeat.begin(3);
            assert_eq!([5_010, 5_400, 5_600, 9_000].map(&mut look), [None, None, Some(3), None]);
            // The next visit is another one, of whichever owner.
            heartbeat.begin(3);
            assert_eq!([9_010, 9_500, 9_600].map(&mut look), [None, None, Some(3)]);
            heartbeat.pause();
            assert_eq!([9_700, 19_000].map(&mut look), [None, None]);
        })
        .join()
        .unwrap();
    }
}
