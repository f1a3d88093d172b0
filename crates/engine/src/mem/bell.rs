//! The bell threads signal the eventfds that take an I/O core too long, and all eventfds where there is no io_uring.
//!
//! Theory of operation. A port has a [`Bell`]. Its thread starts when one of the port's eventfds first needs it, and
//! ends with the port's bell. Each port has its own thread, so that no port's interrupts wait for another port's. An
//! I/O core that wants a signal sets a flag, and wakes the thread if it sleeps. Requests that come while the thread is
//! busy become one. The port pays for slow signals: after a slow signal the thread rests nine
//! times as long, so a VMM's waiters take a tenth of a processor at most.
//!
//! I/O cores make no threads. The *founder*, one thread for the whole process, makes them when an I/O core wakes it.
//!
//! Where there is no io_uring the thread writes the eventfd. A VMM that tries hard can make it wait there, and its own
//! port's interrupts with it. When that eventfd is taken away, a signal wakes the thread out of the write.
//!
//! Invariant that the `unsafe` here keeps: a thread is signalled under the lock under which it says that it ends.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError, Weak};
use std::thread::{Builder, Thread};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::shared_event::{SharedEvent, SLOW};

/// The rest after a slow signal is so many times as long as that was,
const REST: u32 = 9;
/// but no longer than this.
const LONGEST_REST: Duration = Duration::from_millis(100);
/// A thread that has been in one write for so long is blocked.
const BLOCKED: Duration = Duration::from_secs(1);
/// How long a thread is woken again and again out of a write: a signal that comes a moment too early wakes no thread.
const FREEING: Duration = Duration::from_secs(1);
/// For so long after an eventfd was moved, another one of the port is moved for less.
const SUSPECT: Duration = Duration::from_secs(60);
/// How soon the founder tries again when the system refuses a thread.
const AGAIN: Duration = Duration::from_secs(1);

/// What a port's interrupts took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BellCount {
    /// Interrupts that took longer than 1 ms to signal, as far as they were timed.
    pub slow_interrupts: u64,
    /// Times that an eventfd was moved to the bell thread because of that.
    pub moved: u64,
    /// Interrupts that the bell thread sent.
    pub rung: u64,
    /// Times that the bell thread was held up for more than a second.
    pub blocked: u64,
    /// Eventfds that the bell thread rings now.
    pub at_bell: u32,
}

/// A port's bell. Dropping the last copy ends its thread.
#[derive(Clone)]
pub struct Bell(Arc<BellOwner>);

struct BellOwner(Arc<BellState>);

struct BellState {
    name: String,
    signals: Mutex<Vec<Weak<SharedEvent>>>,
    thread: OnceLock<Thread>,
    /// The thread, as long as it can be signalled.
    alive: Mutex<Option<libc::pthread_t>>,
    wanted: AtomicBool,
    ended: AtomicBool,
    /// Raised while the thread is in a write, which may wait.
    writing: AtomicBool,
    /// When that began, in nanoseconds since `epoch`.
    since: AtomicU64,
    epoch: Instant,
    slow: AtomicU64,
    moved: AtomicU64,
    /// When that was last, in nanoseconds since `epoch`.
    moved_at: AtomicU64,
    rung: AtomicU64,
    blocked: AtomicU64,
}

impl std::fmt::Debug for Bell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Bell").field(&self.0 .0.name).finish()
    }
}

impl Default for Bell {
    fn default() -> Bell {
        Bell::new("")
    }
}

impl Bell {
    /// The bell of the port called `name`; without a thread until it needs one.
    pub fn new(name: &str) -> Bell {
        let state = BellState {
            name: name.to_owned(),
            signals: Mutex::default(),
            thread: OnceLock::new(),
            alive: Mutex::default(),
            wanted: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            writing: AtomicBool::new(false),
            since: AtomicU64::new(0),
            epoch: Instant::now(),
            slow: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            moved_at: AtomicU64::new(0),
            rung: AtomicU64::new(0),
            blocked: AtomicU64::new(0),
        };
        Bell(Arc::new(BellOwner(Arc::new(state))))
    }

    /// What was counted.
    pub fn count(&self) -> BellCount {
        let state = &self.0 .0;
        let at_bell =
            lock(&state.signals).iter().filter_map(Weak::upgrade).filter(|i| i.is_at_bell()).count();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        BellCount {
            slow_interrupts: load(&state.slow),
            moved: load(&state.moved),
            rung: load(&state.rung),
            blocked: load(&state.blocked).saturating_add(u64::from(state.is_blocked())),
            at_bell: u32::try_from(at_bell).unwrap_or(u32::MAX),
        }
    }

    /// The bell rings `signal` from now on whenever it is asked to.
    pub(super) fn enter(&self, signal: &Arc<SharedEvent>) {
        founder();
        let mut signals = lock(&self.0 .0.signals);
        signals.retain(|other| other.strong_count() > 0);
        if !signals.iter().any(|other| std::ptr::eq(other.as_ptr(), Arc::as_ptr(signal))) {
            signals.push(Arc::downgrade(signal));
            drop(signals);
            let mut bells = lock(&BELLS);
            bells.retain(|bell| bell.strong_count() > 0);
            if !bells.iter().any(|bell| std::ptr::eq(bell.as_ptr(), Arc::as_ptr(&self.0 .0))) {
                bells.push(Arc::downgrade(&self.0 .0));
            }
        }
    }

    /// Whether one of its eventfds was moved to the thread lately.
    pub(super) fn is_suspect(&self) -> bool {
        let state = &self.0 .0;
        let moved = Duration::from_nanos(state.moved_at.load(Ordering::Relaxed));
        state.moved.load(Ordering::Relaxed) > 0 && state.epoch.elapsed().saturating_sub(moved) < SUSPECT
    }

    /// An interrupt was slow.
    pub(super) fn count_slow(&self) {
        self.0 .0.slow.fetch_add(1, Ordering::Relaxed);
    }

    /// One of its eventfds is rung by the thread from now on.
    pub(super) fn moved(&self) {
        let state = &self.0 .0;
        let now = u64::try_from(state.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX);
        state.moved_at.store(now, Ordering::Relaxed);
        state.moved.fetch_add(1, Ordering::Relaxed);
        self.start();
    }

    /// There is to be a thread.
    pub(super) fn start(&self) {
        let state = &self.0 .0;
        if state.thread.get().is_none() && !state.wanted.swap(true, Ordering::AcqRel) {
            if let Some(founder) = FOUNDER.get() {
                founder.unpark();
            }
        }
    }

    /// There is something to ring.
    pub(super) fn wake(&self) {
        match self.0 .0.thread.get() {
            Some(thread) => thread.unpark(),
            // It looks for work when it begins.
            None => self.start(),
        }
    }

    /// Runs `write` on a thread that counts as this bell's in the middle of a write. Returns when it has begun.
    #[cfg(test)]
    pub(super) fn run_as_thread(&self, write: impl FnOnce() + Send + 'static) -> std::thread::JoinHandle<()> {
        let state = Arc::clone(&self.0 .0);
        let (begun, begin) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            // SAFETY: no argument, no effect.
            *lock(&state.alive) = Some(unsafe { libc::pthread_self() });
            state.writing.store(true, Ordering::Release);
            begun.send(()).unwrap();
            write();
            state.writing.store(false, Ordering::Release);
            *lock(&state.alive) = None;
        });
        begin.recv().unwrap();
        thread
    }

    /// The eventfd that the thread may be writing was taken away: it is not to wait there.
    pub(super) fn free(&self) {
        self.0 .0.free();
    }
}

impl Drop for BellOwner {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Release);
        if let Some(thread) = self.0.thread.get() {
            thread.unpark();
        }
    }
}

impl BellState {
    /// How long the thread has been in a write.
    fn writing_for(&self) -> Option<Duration> {
        let since = Duration::from_nanos(self.since.load(Ordering::Relaxed));
        self.writing.load(Ordering::Acquire).then(|| self.epoch.elapsed().saturating_sub(since))
    }

    fn is_blocked(&self) -> bool {
        self.writing_for().is_some_and(|time| time > BLOCKED)
    }

    /// Wakes the thread out of the write that it is in.
    fn free(&self) {
        let write = |state: &BellState| {
            state.writing.load(Ordering::Acquire).then(|| state.since.load(Ordering::Relaxed))
        };
        let (begun, this) = (Instant::now(), write(self));
        while this.is_some() && write(self) == this && begun.elapsed() < FREEING {
            if let Some(thread) = *lock(&self.alive) {
                // SAFETY: the thread clears this place, under its lock, before it ends: it is alive.
                unsafe { libc::pthread_kill(thread, wake_up()) };
            }
            std::thread::yield_now();
        }
    }

    /// The bell thread.
    fn run(&self) {
        // SAFETY: no argument, no effect.
        *lock(&self.alive) = Some(unsafe { libc::pthread_self() });
        super::helper::first_act();
        self.live();
        *lock(&self.alive) = None;
    }

    fn live(&self) {
        let mut asked = VecDeque::new();
        while !self.ended.load(Ordering::Acquire) {
            let signals: Vec<Arc<SharedEvent>> =
                lock(&self.signals).iter().filter_map(Weak::upgrade).collect();
            asked.extend(signals.into_iter().filter(|signal| signal.asked.load(Ordering::Acquire)));
            if asked.is_empty() {
                std::thread::park();
            }
            for signal in asked.drain(..) {
                self.ring(&signal);
            }
        }
    }

    fn ring(&self, signal: &SharedEvent) {
        // Lowered first: a thread that asks from now on asks for another signal.
        if !signal.asked.swap(false, Ordering::AcqRel) {
            return;
        }
        let Some(target) = signal.target() else { return };
        let before = Instant::now();
        if !target.raise() {
            let since = before.saturating_duration_since(self.epoch).as_nanos();
            self.since.store(u64::try_from(since).unwrap_or(u64::MAX), Ordering::Relaxed);
            self.writing.store(true, Ordering::Release);
            target.write();
            self.writing.store(false, Ordering::Release);
        }
        drop(target);
        let now = Instant::now();
        let took = now - before;
        self.rung.fetch_add(1, Ordering::Relaxed);
        self.slow.fetch_add(u64::from(took > SLOW), Ordering::Relaxed);
        self.blocked.fetch_add(u64::from(took > BLOCKED), Ordering::Relaxed);
        signal.rung(took, now);
        if took > SLOW {
            self.rest(now, (took * REST).min(LONGEST_REST));
        }
    }

    /// Does nothing for `time`, unless the bell ends.
    fn rest(&self, since: Instant, time: Duration) {
        while let Some(left) = time.checked_sub(since.elapsed()).filter(|left| !left.is_zero()) {
            if self.ended.load(Ordering::Acquire) {
                return;
            }
            std::thread::park_timeout(left);
        }
    }
}

/// All bells that may need a thread.
static BELLS: Mutex<Vec<Weak<BellState>>> = Mutex::new(Vec::new());
static FOUNDER: OnceLock<Thread> = OnceLock::new();

/// Starts the founder, if there is none yet. It inherits the processors and limits of its caller: the control plane.
pub fn founder() {
    static START: Once = Once::new();
    START.call_once(|| match Builder::new().name("bells".to_owned()).spawn(found) {
        Ok(thread) => drop(FOUNDER.set(thread.thread().clone())),
        Err(e) => tracing::error!("no thread for slow interrupts: {e}"),
    });
}

/// The founder's life.
fn found() {
    loop {
        let wanted: Vec<Arc<BellState>> = {
            let bells = lock(&BELLS);
            let wanted =
                |bell: &Arc<BellState>| bell.wanted.load(Ordering::Acquire) && bell.thread.get().is_none();
            bells.iter().filter_map(Weak::upgrade).filter(wanted).collect()
        };
        let mut refused = false;
        for bell in wanted {
            let state = Arc::clone(&bell);
            match Builder::new().name(format!("bell-{}", bell.name)).spawn(move || state.run()) {
                Ok(thread) => {
                    let _ = bell.thread.set(thread.thread().clone());
                    // It may have looked for work before a core that asked then knew its handle.
                    thread.thread().unpark();
                    tracing::warn!(
                        port = bell.name,
                        "interrupts of this port are slow, or there is no io_uring: a thread sends them"
                    );
                }
                Err(e) => {
                    tracing::error!(port = bell.name, "no thread for its interrupts: {e}");
                    refused = true;
                }
            }
        }
        if refused {
            std::thread::park_timeout(AGAIN);
        } else {
            std::thread::park();
        }
    }
}

/// The signal that wakes a thread out of a write; it does nothing else.
fn wake_up() -> libc::c_int {
    extern "C" fn nothing(_: libc::c_int) {}
    static INSTALL: Once = Once::new();
    // The first ones are the C library's own.
    let signal = libc::SIGRTMIN() + 5;
    INSTALL.call_once(|| {
        // SAFETY: a zeroed sigaction is a valid one; without SA_RESTART calls end. The handler does nothing.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as extern "C" fn(_) as usize;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    });
    signal
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change under these locks is a single store.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
