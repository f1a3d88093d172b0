//! Signals with real eventfds, and with VMMs that mean harm.

use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::event::{epoll, eventfd, EventfdFlags};
use rustix::fs::{fcntl_setfl, OFlags};
use rustix::io::Errno;
use rustix::pipe::{pipe_with, PipeFlags};

use super::*;

const LONG: Duration = Duration::from_secs(20);

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap()
}

/// What was counted, which may be nothing.
fn count(fd: &OwnedFd) -> u64 {
    let mut bytes = [0; 8];
    match rustix::io::read(fd, &mut bytes) {
        Ok(_) => u64::from_ne_bytes(bytes),
        Err(e) => {
            assert_eq!(e, Errno::AGAIN);
            0
        }
    }
}

/// Waits until `fd` is signalled.
fn heard(fd: &OwnedFd) -> bool {
    let limit = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
    let readable = rustix::event::PollFlags::IN;
    rustix::event::poll(&mut [rustix::event::PollFd::new(fd, readable)], Some(&limit)) == Ok(1)
}

/// Waits until `so` is so.
fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < LONG, "{what}");
        std::thread::yield_now();
    }
}

fn without_ring(fd: OwnedFd, _: &mut Option<IoUring>) -> Target {
    Target::without_ring(fd)
}

/// Most systems have rings; it is them that this is about.
fn needs_rings() {
    assert!(Target::new(event(), &mut None).never_waits(), "this test needs a kernel that grants io_uring");
}

#[test]
fn every_signal_arrives() {
    needs_rings();
    let (fd, other) = (event(), event());
    let signal = Signal::default();
    assert!(!signal.raise() && !signal.is_set());
    for n in 1..300 {
        let fd = if n % 7 == 0 { &other } else { &fd };
        signal.set(Some(fd.try_clone().unwrap()));
        for _ in 0..n % 3 + 1 {
            assert!(signal.raise());
        }
        // Several become one when the bell thread sends them.
        assert!(heard(fd));
        if !signal.is_at_bell() {
            assert_eq!(count(fd), n % 3 + 1);
        } else {
            count(fd);
        }
    }
    signal.set(None);
    assert!(!signal.raise());
    assert_eq!((count(&fd), count(&other)), (0, 0));
}

/// What a VMM can do: make it blocking again, and fill it.
#[test]
fn a_full_counter_that_blocks_holds_nobody_up() {
    for ring in [true, false] {
        let fd = event();
        let signal = Signal::default();
        let make = if ring { Target::new } else { without_ring };
        signal.set_with(Some(fd.try_clone().unwrap()), make);
        fcntl_setfl(&fd, OFlags::empty()).unwrap();
        rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let (done, end) = channel();
        // On a thread of its own: one that waits would wait for ever.
        std::thread::spawn(move || {
            assert!((0..10).all(|_| signal.raise()));
            drop(signal);
            done.send(()).unwrap();
        });
        end.recv_timeout(LONG).expect("it waits for the reader");
        // The reader still learns of it.
        assert!(count(&fd) >= u64::MAX - 1);
    }
}

/// One that makes it full just when the bell thread is about to write: over and over, in its stead, as the race is hard
/// to win.
#[test]
fn a_bell_thread_that_is_held_up_is_free_when_the_eventfd_goes() {
    let fd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    let target = Arc::new(Target::without_ring(fd));
    let bell = Bell::default();
    let (freed, end) = channel();
    let held = {
        let target = Arc::clone(&target);
        bell.run_as_thread(move || {
            // As `Target::write`, without the look whether there is room.
            while !target.gone.load(Ordering::Acquire) {
                let written = rustix::io::write(target.fd(), &1u64.to_ne_bytes());
                assert_eq!(written, Err(Errno::INTR));
            }
            freed.send(()).unwrap();
        })
    };
    target.gone.store(true, Ordering::Release);
    bell.free();
    end.recv_timeout(LONG).expect("it still waits for the VMM");
    held.join().unwrap();
}

#[test]
fn the_bell_thread_sends_what_it_is_asked_for() {
    let bell = Bell::new("test");
    let (fd, other) = (event(), event());
    let (signal, second) = (Signal::new(&bell), Signal::new(&bell));
    signal.set_with(Some(fd.try_clone().unwrap()), without_ring);
    second.set_with(Some(other.try_clone().unwrap()), without_ring);
    assert!(signal.is_at_bell() && signal.is_set());
    for _ in 0..100 {
        assert!(signal.raise() && heard(&fd));
        assert!(count(&fd) > 0);
        assert!(second.raise() && heard(&other));
        assert!(count(&other) > 0);
    }
    let counted = bell.count();
    assert!(counted.rung >= 199 && counted.at_bell == 2 && counted.blocked == 0, "{counted:?}");
    // Neither a target that has gone nor a full one keeps the bell thread.
    drop(second);
    rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    assert!((0..10).all(|_| signal.raise()));
    until("the bell thread waits", || {
        bell.count().at_bell == 1 && !signal.inner.asked.load(Ordering::Acquire)
    });
    assert!(count(&fd) >= u64::MAX - 1);
}

/// 40,000 waiters for `fd`, until the sets go: a signal takes milliseconds.
fn crowd(fd: &OwnedFd) -> Vec<OwnedFd> {
    let set = |_| epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let sets: Vec<OwnedFd> = (0..100).map(set).collect();
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    for number in 500..900 {
        // A set goes on to watch the file when the number under which it knows it is closed.
        let other = rustix::io::fcntl_dupfd_cloexec(fd, number).unwrap();
        for set in &sets {
            let added = epoll::add(set, &other, epoll::EventData::new_u64(0), flags);
            // Other tests may have had some of the numbers.
            assert!(matches!(added, Ok(()) | Err(Errno::EXIST)), "{added:?}");
        }
    }
    sets
}

/// Waiters that the VMM hangs on its eventfd are walked by the thread that signals.
#[test]
fn an_eventfd_with_many_waiters_leaves_the_io_core_and_comes_back() {
    if !has_rings() {
        return;
    }
    let fd = event();
    let sets = crowd(&fd);
    let bell = Bell::new("slow");
    let signal = Signal::new(&bell);
    signal.set(Some(fd.try_clone().unwrap()));
    until("it stays on the I/O core", || {
        assert!(signal.raise());
        signal.is_at_bell()
    });
    let counted = bell.count();
    assert!(counted.slow_interrupts >= 3 && counted.moved == 1 && counted.at_bell == 1, "{counted:?}");
    count(&fd);
    assert!(signal.raise() && heard(&fd), "the bell thread sends them now");
    // Another eventfd of the same port, with as many waiters, is moved at its first slow signal.
    let next = Signal::new(&bell);
    next.set(Some(fd.try_clone().unwrap()));
    // On a quick machine not each signal to them is slow.
    until("it stays on the I/O core", || {
        assert!(next.raise());
        next.is_at_bell()
    });
    // Without waiters it comes back, once it has behaved for a while.
    drop(sets);
    until("it does not come back", || {
        assert!(signal.raise());
        count(&fd);
        !signal.is_at_bell()
    });
    count(&fd);
    until("signals are lost", || signal.raise() && count(&fd) > 0);
}

/// So are those that a program hangs on its end of a pipe; and a full pipe is no trouble.
#[test]
fn a_pipe_with_many_waiters_leaves_the_io_core() {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
    let (bell, mut bytes) = (Bell::new("pipe"), [0; 4096]);
    let signal = Signal::new(&bell);
    signal.set_pipe(write);
    assert!(signal.raise() && !signal.is_at_bell());
    assert_eq!(rustix::io::read(&read, &mut bytes), Ok(1));
    let sets = crowd(&read);
    // Without a reader meanwhile.
    until("it stays on the I/O core", || {
        assert!(signal.raise());
        signal.is_at_bell()
    });
    while rustix::io::read(&read, &mut bytes).is_ok() {}
    assert!(signal.raise() && heard(&read), "the bell thread writes now");
    drop(sets);
    until("it does not come back", || {
        assert!(signal.raise());
        let _ = rustix::io::read(&read, &mut bytes);
        !signal.is_at_bell()
    });
    // A reader that has gone holds no thread up.
    drop(read);
    assert!(signal.raise() && signal.raise());
}

/// A slow eventfd of one port takes nothing from the bell of another.
#[test]
fn each_port_has_a_bell_of_its_own() {
    let (slow, quick) = (Bell::new("slow"), Bell::new("quick"));
    let fd = event();
    let signal = Signal::new(&quick);
    signal.set_with(Some(fd.try_clone().unwrap()), without_ring);
    let (release, held) = channel::<()>();
    let thread = slow.run_as_thread(move || assert!(held.recv().is_err()));
    for _ in 0..10 {
        assert!(signal.raise() && heard(&fd));
        count(&fd);
    }
    drop(release);
    thread.join().unwrap();
}
