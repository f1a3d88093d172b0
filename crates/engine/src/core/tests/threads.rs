//! Tasks on real cores, each with its thread.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::channel;
use std::sync::Mutex;
use std::time::Instant;

use rustix::event::{eventfd, EventfdFlags};

use super::*;

/// A queue whose event is a file: it has been kicked when that is readable.
struct Kicked {
    guest: Arc<Guest>,
    event: OwnedFd,
    kicks: Arc<AtomicU64>,
}

impl Task<()> for Kicked {
    fn owner(&self) -> Arc<dyn Owner> {
        Arc::clone(&self.guest) as Arc<dyn Owner>
    }
    fn visit(&mut self, (): &mut (), _: Budget) -> Visit {
        let kicked = u64::from(rustix::io::read(&self.event, &mut [0; 8]).is_ok());
        self.kicks.fetch_add(kicked, Ordering::Relaxed);
        Visit { moved: kicked, items: usize::from(kicked > 0), ..Visit::default() }
    }
    fn arm(&mut self) -> bool {
        false
    }
    fn disarm(&mut self) {}
    fn events<'t>(&'t self, each: &mut dyn FnMut(BorrowedFd<'t>)) {
        each(self.event.as_fd());
    }
    fn next_look(&self) -> Option<Duration> {
        None
    }
    fn settle(&mut self, (): &mut ()) {}
}

#[test]
fn a_kick_that_comes_while_cores_rest_is_kept() {
    let cores = Cores::start(&[], &Tuning::default(), |_| (), || ()).unwrap();
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let (kick, kicks) = (event.try_clone().unwrap(), Arc::<AtomicU64>::default());
    let task = Kicked { guest: guest(1, Service::default()), event, kicks: Arc::clone(&kicks) };
    let _lease = cores.place(task);
    for kicked in 1..6 {
        // One that was silent for long when the core fell asleep stays cold when that is woken for something
        // else.
        let long = Instant::now() + Duration::from_millis(15);
        while Instant::now() < long {
            cores.each(|()| ());
        }
        while cores.tasks()[0].heat != Heat::Cold {
            std::thread::yield_now();
        }
        cores.rest(true);
        rustix::io::write(&kick, &1u64.to_ne_bytes()).unwrap();
        // It is awake by now, and has seen it, or will.
        cores.each(|()| ());
        cores.each(|()| ());
        cores.rest(false);
        wait("a kick is lost", || kicks.load(Ordering::Relaxed) >= kicked);
    }
}

/// A task that always has work, and whose visits are this.
struct Busy<V> {
    guest: Arc<Guest>,
    visit: V,
}

impl<V: FnMut() + Send + 'static> Task<()> for Busy<V> {
    fn owner(&self) -> Arc<dyn Owner> {
        Arc::clone(&self.guest) as Arc<dyn Owner>
    }
    fn visit(&mut self, (): &mut (), _: Budget) -> Visit {
        (self.visit)();
        Visit { moved: 1, items: 1, ..Visit::default() }
    }
    fn arm(&mut self) -> bool {
        true
    }
    fn disarm(&mut self) {}
    fn events<'t>(&'t self, _: &mut dyn FnMut(BorrowedFd<'t>)) {}
    fn next_look(&self) -> Option<Duration> {
        None
    }
    fn settle(&mut self, (): &mut ()) {}
}

#[test]
fn tasks_move_are_recalled_and_evicted_at_any_moment() {
    let tuning = Tuning { balance: false, ..Tuning::default() };
    let cores = Cores::start(&[], &tuning, |_| (), || ()).unwrap();
    assert_eq!((cores.active(), cores.set_active(5)), (1, 1));
    drop(cores);
    let cores = Cores::unpinned(3, &tuning, |_| ()).unwrap();
    let lends = Arc::new(Mutex::new(0u64));
    std::thread::scope(|scope| {
        for number in 0..3u16 {
            let (cores, lends) = (&cores, &lends);
            scope.spawn(move || {
                for turn in 0..100 {
                    let (inside, visits) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
                    let seen = (Arc::clone(&inside), Arc::clone(&visits));
                    let visit = move || {
                        assert!(!seen.0.swap(true, Ordering::AcqRel), "two cores have it");
                        seen.1.fetch_add(1, Ordering::Relaxed);
                        seen.0.store(false, Ordering::Release);
                    };
                    let lease = cores.place(Busy { guest: guest(number, Service::default()), visit });
                    while visits.load(Ordering::Relaxed) < turn % 3 {
                        std::thread::yield_now();
                    }
                    if turn % 10 == 9 {
                        cores.evict(number);
                    }
                    assert!(lease.take_back().is_some(), "it is at home");
                    assert!(!inside.load(Ordering::Acquire), "nothing is under way");
                    let after = visits.load(Ordering::Relaxed);
                    std::thread::yield_now();
                    assert_eq!(visits.load(Ordering::Relaxed), after, "nobody has it any more");
                    *lends.lock().unwrap() += 1;
                }
            });
        }
        for seed in 0..2u64 {
            let (cores, lends) = (&cores, &lends);
            scope.spawn(move || {
                let mut turn = seed;
                while *lends.lock().unwrap() < 300 {
                    turn += 1;
                    for task in cores.tasks() {
                        cores.move_task(task.id, usize::try_from(turn % 3).unwrap());
                    }
                    cores.set_active(usize::try_from(turn % 3).unwrap() + 1);
                }
            });
        }
    });
    assert!(cores.tasks().is_empty());
}

/// Waits until something is so.
fn wait(what: &str, so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn a_core_that_stands_gets_no_new_task_until_it_moves_on() {
    let tuning = Tuning { least_cores: 2, ..Tuning::default() };
    let cores = Cores::unpinned(2, &tuning, |_| ()).unwrap();
    let (go_on, told) = channel::<()>();
    // Its first visit lasts until it is told, or the test has failed.
    let stuck = Busy { guest: guest(1, Service::default()), visit: move || _ = told.recv() };
    let stuck = cores.place(stuck);
    let at = cores.tasks()[0].core;
    wait("nobody saw that the core stands", || cores.stands(at));
    let busy = |number: u16| cores.place(Busy { guest: guest(number, Service::default()), visit: || () });
    let others: Vec<_> = (2..6).map(busy).collect();
    let on = |core: usize| cores.tasks().iter().filter(|task| task.core == core).count();
    assert_eq!((on(at), on(1 - at)), (1, 4), "those that it has stay, new ones go elsewhere");
    drop(go_on);
    wait("nobody saw that the core moves on", || !cores.stands(at));
    let last = busy(6);
    assert_eq!(on(at), 2, "it has fewest");
    drop((stuck, others, last));
    assert!(cores.tasks().is_empty());
}
