//! Watching I/O cores that stand still in somebody's memory.
//!
//! Theory of operation. Each core says in one word what it is at ([`Beat`]): a number that changes with every queue that it
//! turns to, the port whose queue that is, and the port that it copies to. A thread of the control plane looks at those
//! words ([`LOOK`]). A core whose word has not changed for [`STALL`], and which the kernel says is waiting for a page each
//! time, is stalled; one that is merely not being run is not. The stall is counted at its port: at the sender's when its
//! own queue was looked at, at both ports while frames were copied, since nobody can tell then in whose memory it waits.
//! A port whose own memory stalls cores again and again is stopped (`Fault::MemoryStalled`).
//!
//! While no core is at work the thread looks once a second, so an idle engine sleeps.
//!
//! A fault cannot be cut short, and queues cannot be taken from a core in the middle of a batch: what else that core
//! serves waits, too.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::port::{Fault, Port, PortId};

/// How often cores are looked at while one is at work.
const LOOK: Duration = Duration::from_millis(20);
/// And while none is.
const IDLE_LOOK: Duration = Duration::from_secs(1);
/// A batch that waits for as long is a stall.
const STALL: Duration = Duration::from_millis(50);
/// How often the log says of one port that it is slow.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// What a core is at: 16 bits of its port and one, 16 of the receiver and one, 32 of a number. Written by the core alone.
#[derive(Debug, Default)]
pub(super) struct Beat(AtomicU64);

impl Beat {
    /// The core turns to a queue of `port`.
    #[inline]
    pub(super) fn begin(&self, port: PortId) {
        let number = (self.0.load(Ordering::Relaxed) >> 32).wrapping_add(1);
        self.0.store((number << 32) | (u64::from(port.0) + 1), Ordering::Relaxed);
    }

    /// It copies to `port` from now on; to nobody.
    #[inline]
    pub(super) fn towards(&self, port: Option<PortId>) {
        let word = self.0.load(Ordering::Relaxed) & !0xffff_0000;
        let port = port.map_or(0, |port| u64::from(port.0) + 1);
        self.0.store(word | ((port & 0xffff) << 16), Ordering::Relaxed);
    }

    /// It looks at the receiver of all that the port sends.
    #[inline]
    pub(super) fn elsewhere(&self) {
        self.towards(Some(PortId(u16::MAX - 1)));
    }

    /// It is at nothing that belongs to a port.
    #[inline]
    pub(super) fn pause(&self) {
        self.0.store(self.0.load(Ordering::Relaxed) & !0xffff_ffff, Ordering::Relaxed);
    }

    fn word(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "16 bits of a word")]
fn ports_of(word: u64) -> [Option<PortId>; 2] {
    [word as u16, (word >> 16) as u16].map(|number| number.checked_sub(1).map(PortId))
}

/// A core, as the thread sees it.
struct Seen {
    beat: Arc<Beat>,
    word: u64,
    since: Instant,
    /// It waited for a page at every look since.
    waits: bool,
    told: bool,
}

type Ports = Arc<Mutex<HashMap<PortId, Weak<Port>>>>;

/// What the thread knows.
struct Looker {
    cores: Vec<Seen>,
    ports: Ports,
    said: HashMap<PortId, (Instant, u64)>,
}

impl Looker {
    fn new(beats: Vec<Arc<Beat>>, ports: Ports, now: Instant) -> Looker {
        let seen = |beat| Seen { beat, word: 0, since: now, waits: false, told: false };
        Looker { cores: beats.into_iter().map(seen).collect(), ports, said: HashMap::new() }
    }

    /// Looks at all cores at `now`; `waits` tells whether a core waits for a page. True if one is at work.
    fn look(&mut self, now: Instant, mut waits: impl FnMut(usize) -> bool) -> bool {
        let mut busy = false;
        let mut stalls = Vec::new();
        for (number, core) in self.cores.iter_mut().enumerate() {
            let word = core.beat.word();
            let [source, receiver] = ports_of(word);
            let Some(source) = source else {
                core.word = word;
                continue;
            };
            busy = true;
            if core.word != word {
                // Nobody is asked about a core that moves.
                (core.word, core.since, core.waits, core.told) = (word, now, true, false);
                continue;
            }
            core.waits = core.waits && waits(number);
            let time = now.saturating_duration_since(core.since);
            if core.waits && !core.told && time >= STALL {
                core.told = true;
                stalls.push((number, source, receiver, time));
            }
        }
        for (core, source, receiver, time) in stalls {
            self.stalled(core, source, receiver, time, now);
        }
        busy
    }

    fn port(&self, id: PortId) -> Option<Arc<Port>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner).get(&id)?.upgrade()
    }

    fn stalled(
        &mut self,
        core: usize,
        source: PortId,
        receiver: Option<PortId>,
        time: Duration,
        now: Instant,
    ) {
        let Some(port) = self.port(source) else { return };
        if let Some(receiver) = receiver.filter(|receiver| *receiver != source) {
            port.slow.stalled_with_another();
            let other = self.port(receiver);
            let name = other.as_ref().map_or("?", |other| other.name.as_str());
            if let Some(other) = &other {
                other.slow.stalled_with_another();
            }
            tracing::warn!(port = %port.name, core, to = name, "the core has waited for {time:?} in the memory of one of the two");
            return;
        }
        tracing::warn!(port = %port.name, core, "the core has waited for {time:?} in the port's memory");
        if port.slow.stalled(now) {
            port.fault.set(Fault::MemoryStalled);
        }
    }

    /// Says which ports were slow, of each once a minute.
    fn tell_slow(&mut self, now: Instant) {
        let ports: Vec<Arc<Port>> = {
            let mut ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
            ports.retain(|_, port| port.strong_count() > 0);
            ports.values().filter_map(Weak::upgrade).collect()
        };
        self.said.retain(|id, _| ports.iter().any(|port| port.id == *id));
        for port in ports {
            let count = port.slow.count();
            let (at, before) = self.said.get(&port.id).copied().unwrap_or((now, 0));
            if count.batches == before || (before > 0 && now.saturating_duration_since(at) < SAY_EVERY) {
                continue;
            }
            self.said.insert(port.id, (now, count.batches));
            let (more, longest) = (count.batches - before, count.longest_us);
            tracing::info!(port = %port.name, more, longest_us = longest, "batches took longer than 1 ms of an I/O core");
        }
    }
}

/// The state of a thread, as the kernel has it: whether it waits for a page (or a disk).
struct State(Option<File>);

impl State {
    fn of(thread: i32) -> State {
        // Opened once: later there may be no permission to.
        State(File::open(format!("/proc/self/task/{thread}/stat")).ok())
    }

    fn waits(&self) -> bool {
        let mut text = [0; 128];
        let Some(got) = self.0.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()) else {
            return false;
        };
        // "number (name) state …": the name may hold anything.
        let text = text.get(..got).unwrap_or_default();
        let name_end = text.iter().rposition(|byte| *byte == b')');
        name_end.and_then(|end| text.get(end + 2)) == Some(&b'D')
    }
}

/// The thread.
pub(super) struct Watch {
    ports: Ports,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Watches cores by their words and the numbers of their threads.
    pub(super) fn start(cores: Vec<(Arc<Beat>, i32)>) -> io::Result<Watch> {
        let ports = Ports::default();
        let (stop, stopped) = channel();
        let states: Vec<State> = cores.iter().map(|(_, thread)| State::of(*thread)).collect();
        let beats = cores.into_iter().map(|(beat, _)| beat).collect();
        let looker = Looker::new(beats, Arc::clone(&ports), Instant::now());
        let thread = std::thread::Builder::new().name("core-watch".to_owned());
        let thread = thread.spawn(move || run(looker, &states, &stopped))?;
        Ok(Watch { ports, stop: Some(stop), thread: Some(thread) })
    }

    /// A port that cores will serve.
    pub(super) fn add(&self, port: &Arc<Port>) {
        let mut ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        ports.insert(port.id, Arc::downgrade(port));
    }
}

fn run(mut looker: Looker, states: &[State], stopped: &Receiver<()>) {
    let (mut pause, mut told) = (IDLE_LOOK, Instant::now());
    while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let now = Instant::now();
        let busy = looker.look(now, |core| states.get(core).is_some_and(State::waits));
        if now.saturating_duration_since(told) >= IDLE_LOOK {
            looker.tell_slow(now);
            told = now;
        }
        pause = if busy { LOOK } else { IDLE_LOOK };
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by the thread itself.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::BorrowedFd;

    use crate::core::{CoreOptions, Cores};
    use crate::frame::Batch;
    use crate::observe::CounterFile;
    use crate::port::{IngressQueue, Scheduler, Tally, DEFAULT_MTU, SLOW_BATCH};

    struct Rig {
        beat: Arc<Beat>,
        ports: [Arc<Port>; 2],
        looker: Looker,
        now: Instant,
    }

    impl Rig {
        fn new() -> Rig {
            let file = CounterFile::anonymous().unwrap();
            let ports = [3, 7].map(|id| {
                let counters = file.open_slot(PortId(id), "p");
                Arc::new(Port::new(PortId(id), "p", counters, DEFAULT_MTU).unwrap())
            });
            let (beat, now) = (Arc::<Beat>::default(), Instant::now());
            let known = ports.iter().map(|port| (port.id, Arc::downgrade(port))).collect();
            let looker = Looker::new(vec![Arc::clone(&beat)], Arc::new(Mutex::new(known)), now);
            Rig { beat, ports, looker, now }
        }

        /// So many looks at a core that does not move.
        fn looks(&mut self, count: u32, waits: bool) -> bool {
            (0..count).fold(false, |_, _| {
                self.now += LOOK;
                self.looker.look(self.now, |_| waits)
            })
        }

        fn stalls(&self) -> [(u64, u64); 2] {
            [0, 1].map(|at: usize| {
                let count = self.ports[at].slow.count();
                (count.stalls, count.shared_stalls)
            })
        }
    }

    #[test]
    fn a_core_that_waits_in_a_ports_memory_is_a_stall() {
        let mut rig = Rig::new();
        rig.beat.begin(PortId(3));
        assert!(rig.looks(3, true));
        assert_eq!(rig.stalls(), [(0, 0), (0, 0)], "not yet");
        assert!(rig.looks(100, true));
        assert_eq!(rig.stalls(), [(1, 0), (0, 0)], "and then once");
        // The next one, which is not the port's fault: the core is not being run.
        rig.beat.begin(PortId(3));
        rig.looks(100, false);
        // And one that copies.
        rig.beat.begin(PortId(3));
        rig.beat.towards(Some(PortId(7)));
        rig.looks(100, true);
        assert_eq!(rig.stalls(), [(1, 1), (0, 1)]);
        rig.beat.towards(None);
        rig.looks(100, true);
        assert_eq!(rig.stalls(), [(2, 1), (0, 1)], "what it holds is given back");
        rig.beat.pause();
        assert!(!rig.looks(100, true));
        assert_eq!(rig.stalls(), [(2, 1), (0, 1)]);
        assert_eq!(rig.ports[0].fault.get(), None);
    }

    #[test]
    fn who_stalls_again_and_again_is_stopped_and_its_partner_is_not() {
        let mut rig = Rig::new();
        for _ in 0..20 {
            rig.beat.begin(PortId(3));
            rig.beat.towards(Some(PortId(7)));
            rig.looks(10, true);
        }
        assert_eq!(rig.ports.each_ref().map(|port| port.fault.get()), [None, None]);
        for _ in 0..20 {
            rig.beat.begin(PortId(7));
            rig.looks(10, true);
        }
        assert_eq!(rig.ports.each_ref().map(|port| port.fault.get()), [None, Some(Fault::MemoryStalled)]);
    }

    /// A queue whose memory takes its time, once.
    struct Slowly(bool);

    impl IngressQueue for Slowly {
        fn fetch(&mut self, _: &mut Batch, tally: &mut Tally) {
            let begun = Instant::now();
            if std::mem::take(&mut self.0) {
                while begun.elapsed() <= SLOW_BATCH {
                    std::hint::spin_loop();
                }
                tally.frames = 1;
            }
        }

        fn release(&mut self, _: &mut Tally) {}

        fn want_kicks(&mut self, _: bool) -> bool {
            false
        }

        fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }

        fn into_any(self: Box<Self>) -> Box<dyn std::any::Any + Send> {
            self
        }
    }

    #[test]
    fn a_slow_batch_is_counted_at_its_port() {
        let Rig { ports: [port, _], .. } = Rig::new();
        let cores = Cores::start(&CoreOptions::default()).unwrap();
        let key = cores.serve(&port, 0, Box::new(Slowly(true)));
        while port.slow.count().batches == 0 {
            std::thread::yield_now();
        }
        assert!(port.slow.count().longest_us >= 1_000);
        assert!(cores.take_back(key).is_some());
    }

    #[test]
    fn the_state_of_a_thread_is_read() {
        let state = State::of(rustix::thread::gettid().as_raw_nonzero().get());
        assert!(state.0.is_some() && !state.waits(), "it runs");
        assert!(!State::of(0).waits());
    }
}
