//! Signals with real eventfds, and with VMMs that mean harm.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{epoll, eventfd, EventfdFlags};
use rustix::fs::{fcntl_setfl, OFlags};
use rustix::io::Errno;
use rustix::pipe::{pipe_with, PipeFlags};

use super::*;
use crate::mem::{CoreTime, EVERY};

const LONG: Duration = Duration::from_secs(20);
/// On a machine with much else to do, acts in which this thread waited for a processor for long are entered
/// in no account.
const LONGER: Duration = Duration::from_secs(120);

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

fn without_ring(fd: OwnedFd, _: &mut Option<IoUring>) -> Target {
    Target::without_ring(fd)
}

#[test]
fn every_signal_arrives() {
    for ring in [true, false] {
        let (fd, other) = (event(), event());
        let signal = Signal::default();
        assert!(!signal.raise() && !signal.is_set());
        for n in 1..600 {
            let fd = if n % 7 == 0 { &other } else { &fd };
            let make = if ring { Target::new } else { without_ring };
            signal.set_with(Some(fd.try_clone().unwrap()), make);
            for _ in 0..n % 3 + 1 {
                assert!(signal.raise());
            }
            assert_eq!(count(fd), n % 3 + 1);
        }
        signal.set(None);
        assert!(!signal.raise());
        assert_eq!((count(&fd), count(&other)), (0, 0));
    }
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

/// A full socket that blocks: nobody waits. One that was shut turns signals off.
#[test]
fn a_socket_holds_nobody_up_and_ends_with_its_reader() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (signal, shared) = (Signal::default(), ours.try_clone().unwrap());
    signal.set_socket(ours.into());
    let (done, end) = channel();
    std::thread::spawn(move || {
        // More than any socket holds.
        let all = (0..100_000).all(|_| signal.raise());
        done.send((all, signal)).unwrap();
    });
    let (all, signal) = end.recv_timeout(LONG).expect("it waits for the reader");
    assert!(all && signal.is_set());
    // What was signalled is whole numbers of 8 bytes, as an eventfd's.
    theirs.set_nonblocking(true).unwrap();
    let mut count = 0;
    while let Ok(8) = (&theirs).read(&mut [0; 8]) {
        count += 1;
    }
    assert!(count > 0 && signal.raise() && (&theirs).read(&mut [0; 9]).unwrap() == 8, "{count}");
    theirs.shutdown(std::net::Shutdown::Read).unwrap();
    signal.raise();
    assert!(!signal.is_set() && !signal.raise());
    assert!(signal.take_socket().is_some() && signal.take_socket().is_none());
    drop(shared);
}

/// Waiters that a VMM hangs on its eventfd or socket, or a program on its end of a pipe, are walked by the
/// core that signals.
#[test]
fn thousands_of_waiters_are_the_ports_overrun() {
    std::thread::spawn(move || {
        let time = CoreTime::of_this_thread().unwrap();
        // As the watch does: an act of more than some milliseconds behind which there is no note is the
        // host's.
        let noted = Arc::downgrade(&time);
        std::thread::spawn(move || {
            while let Some(time) = noted.upgrade() {
                time.note();
                std::thread::sleep(EVERY / 2);
            }
        });
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let (event, theirs) = (event(), OwnedFd::from(theirs));
        for (number, waited_for) in [&event, &read, &theirs].into_iter().enumerate() {
            let overrun = Overrun::new("slow");
            let signal = Signal::new(&overrun);
            let _sets = crowd(waited_for);
            match number {
                0 => signal.set(Some(event.try_clone().unwrap())),
                1 => signal.set_pipe(write.try_clone().unwrap()),
                _ => signal.set_socket(ours.try_clone().unwrap().into()),
            }
            let start = Instant::now();
            while !overrun.rests() {
                assert!(signal.raise() && start.elapsed() < LONGER, "{overrun:?}");
                while number > 0 && rustix::io::read(waited_for, &mut [0; 64]).is_ok() {}
            }
        }
        // A reader that has gone holds no thread up.
        let signal = Signal::default();
        signal.set_pipe(write);
        drop(read);
        assert!(signal.raise() && signal.raise());
        drop(time);
    })
    .join()
    .unwrap();
}
