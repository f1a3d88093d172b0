//! A holder on a thread, and daemons that come and go.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{eventfd, EventfdFlags};

use super::client::listen_at;
use super::program::{make_secret, read_secret, remove_secret, secret_beside};
use super::server::{hear, say, DONE, HERE, LIST, SECRET};
use super::{serve, Holder, StandIn};

/// A holder at a path of its own, until it ends.
pub(crate) fn started(name: &str) -> (PathBuf, JoinHandle<()>) {
    started_with(name, || None)
}

/// As [`started`], with who stands in for its daemon.
pub(crate) fn started_with(
    name: &str,
    confine: impl FnOnce() -> Option<Box<dyn StandIn>> + Send + 'static,
) -> (PathBuf, JoinHandle<()>) {
    let path = std::env::temp_dir().join(format!("sidecore-hold-{name}-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = listen_at(&path).unwrap();
    make_secret(&path).unwrap();
    let at = path.clone();
    (path, std::thread::spawn(move || serve(&listener, &at, confine).unwrap()))
}

/// Somebody who calls the holder at `path`, and says nothing.
pub(crate) fn call(path: &Path) -> OwnedFd {
    let call = || crate::sandbox::open::socket::call_here(path, rustix::net::SocketType::SEQPACKET);
    // Its queue is full while it is busy.
    let busy = |called: &std::io::Result<OwnedFd>| matches!(called, Err(e) if e.kind() == std::io::ErrorKind::WouldBlock);
    let socket = std::iter::repeat_with(call).find(|called| !busy(called)).unwrap().unwrap();
    rustix::io::ioctl_fionbio(&socket, false).unwrap();
    socket
}

#[test]
fn what_one_daemon_puts_the_next_one_finds() {
    let (path, end) = started("find");
    let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
    {
        let first = Holder::connect(&path).unwrap();
        for key in 0..100 {
            first.put(key, event.as_fd()).unwrap();
        }
        first.forget(7).unwrap();
        first.forget(7777).unwrap();
        assert!(listen_at(&path).is_err(), "a holder that lives is not replaced");
    }
    let (second, found) = Holder::find(&path, false).unwrap().expect("nobody is there");
    assert_eq!(found.len(), 99);
    assert!(!found.contains_key(&7));
    rustix::io::write(&found[&8], &1u64.to_ne_bytes()).unwrap();
    assert_eq!(rustix::io::read(&event, &mut [0; 8]), Ok(8), "another file than the one that was put there");
    // Nothing is kept any more: that is its end.
    found.keys().for_each(|key| second.forget(*key).unwrap());
    drop(second);
    end.join().unwrap();
    assert!(!path.exists());
    assert!(Holder::find(&path, false).unwrap().is_none());
}

#[test]
fn a_holder_ends_when_its_daemon_and_its_peer_are_gone() {
    let (path, end) = started("hangup");
    let (ours, theirs) = UnixStream::pair().unwrap();
    let daemon = Holder::connect(&path).unwrap();
    daemon.put(1, ours.as_fd()).unwrap();
    drop(ours);
    drop(theirs);
    // The daemon is told of it by itself, so nothing is lost while there is one.
    daemon.put(2, eventfd(0, EventfdFlags::CLOEXEC).unwrap().as_fd()).unwrap();
    drop(daemon);
    end.join().unwrap();
    // The file of a dead holder does no harm.
    std::fs::write(&path, "").unwrap();
    std::fs::remove_file(&path).unwrap();
    drop(listen_at(&path).unwrap());
    drop(listen_at(&path).unwrap());
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_full_holder_says_so_and_keeps_what_it_has() {
    let (path, end) = started("full");
    let (ours, theirs) = UnixStream::pair().unwrap();
    let daemon = Holder::connect(&path).unwrap();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    // In one process, all of them count against one limit.
    let most = super::MAX_KEYS.min(usize::try_from(limit).unwrap_or(usize::MAX));
    let refused = (0..=most as u64).find(|key| daemon.put(*key, ours.as_fd()).is_err());
    assert!(refused.is_some_and(|key| key > 100 && key <= most as u64), "{refused:?}");
    drop(theirs);
    drop(daemon);
    end.join().unwrap();
}

#[test]
fn the_next_clients_holder_takes_the_place_of_one_that_is_ending() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let (path, mut end) = started("next");
    for _ in 0..20 {
        let daemon = Holder::connect(&path).unwrap();
        daemon.put(1, ours.as_fd()).unwrap();
        daemon.forget(1).unwrap();
        drop(daemon);
        let listener = listen_at(&path).unwrap();
        end.join().unwrap();
        make_secret(&path).unwrap();
        let at = path.clone();
        end = std::thread::spawn(move || serve(&listener, &at, || None).unwrap());
    }
    // Nothing is ever put into the last one.
    drop(Holder::connect(&path).unwrap());
    end.join().unwrap();
}

/// A VMM of our own user may call the socket, where it can open no file.
#[test]
fn who_does_not_know_the_secret_is_told_nothing() {
    let (path, end) = started("secret");
    let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let daemon = Holder::connect(&path).unwrap();
    daemon.put(1, event.as_fd()).unwrap();
    drop(daemon);
    for (what, key) in [(LIST, 0), (SECRET, 0), (SECRET, u64::MAX)] {
        let stranger =
            crate::sandbox::open::socket::call_here(&path, rustix::net::SocketType::SEQPACKET).unwrap();
        rustix::io::ioctl_fionbio(&stranger, false).unwrap();
        say(&stranger, what, key, None).unwrap();
        // It may be late for the second one.
        let _ = say(&stranger, LIST, 0, None);
        assert!(hear(&stranger).is_err(), "a stranger was answered");
    }
    let (daemon, found) = Holder::find(&path, false).unwrap().unwrap();
    assert_eq!(found.len(), 1);
    daemon.forget(1).unwrap();
    drop(daemon);
    end.join().unwrap();
    assert!(!secret_beside(&path).exists());
}

/// A machine may be so busy that a daemon calls and speaks much later; and a stranger never speaks.
#[test]
fn a_daemon_that_is_slow_to_speak_is_heard_and_keeps_nobody_waiting() {
    let (path, end) = started("slow");
    let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let daemon = Holder::connect(&path).unwrap();
    daemon.put(1, event.as_fd()).unwrap();
    drop(daemon);
    let slow = call(&path);
    // Each of these is served while the slow one says nothing.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(500) {
        let (daemon, found) = Holder::find(&path, false).unwrap().unwrap();
        assert_eq!(found.len(), 1);
        drop((daemon, found));
    }
    say(&slow, SECRET, read_secret(&path).unwrap(), None).unwrap();
    assert_eq!(hear(&slow).unwrap().what, DONE, "the slow one was forgotten");
    // More strangers than the holder has places for, and than its queue has.
    drop(slow);
    let strangers: Vec<_> =
        (0..40).map(|_| (Holder::find(&path, false).unwrap().is_some(), call(&path))).collect();
    assert!(strangers.iter().all(|(found, _)| *found), "the holder was taken for gone");
    drop(strangers);
    let (daemon, _) = Holder::find(&path, false).unwrap().unwrap();
    daemon.forget(1).unwrap();
    drop(daemon);
    end.join().unwrap();
}

/// A holder has heard its VMM, which may have got it into its hands: more than a holder may keep, or a file
/// that no VMM may give.
#[test]
fn a_holder_that_lies_is_given_up() {
    let (event, pipe) = (eventfd(0, EventfdFlags::CLOEXEC).unwrap(), rustix::pipe::pipe().unwrap());
    for (fd, why) in [(event.as_fd(), "more than a holder may have"), (pipe.0.as_fd(), "no VMM may give")] {
        let path = std::env::temp_dir().join(format!("sidecore-hold-lies-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = listen_at(&path).unwrap();
        make_secret(&path).unwrap();
        let fd = fd.try_clone_to_owned().unwrap();
        let lies = std::thread::spawn(move || {
            let daemon = rustix::net::accept(&listener).unwrap();
            assert_eq!(hear(&daemon).unwrap().what, SECRET);
            say(&daemon, DONE, 0, None).unwrap();
            assert_eq!(hear(&daemon).unwrap().what, LIST);
            // For as long as it is listened to.
            while say(&daemon, HERE, 1, Some(fd.as_fd())).is_ok() {}
        });
        let error = Holder::find(&path, false).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
        lies.join().unwrap();
        remove_secret(&path);
        std::fs::remove_file(&path).unwrap();
    }
}
