//! A helper as a thread, and what it hands out.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;

use rustix::event::{eventfd, EventfdFlags};
use rustix::fs::{memfd_create, MemfdFlags};
use rustix::net::{socketpair, AddressFamily, SendFlags, SocketFlags, SocketType};

use super::*;
use crate::mem::{is_eventfd, is_memory, peeked, set_peeked};
use crate::sandbox::open::passing;

const WANTED: WantedFds = WantedFds { most: 8, any: false, sockets: false };

fn memory() -> OwnedFd {
    memfd_create(c"door", MemfdFlags::CLOEXEC).unwrap()
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC).unwrap()
}

/// Neither, and it does no harm.
fn stranger() -> OwnedFd {
    File::open("/dev/null").unwrap().into()
}

fn send(to: &UnixStream, bytes: &[u8], fds: &[&OwnedFd]) {
    let fds: Vec<BorrowedFd> = fds.iter().map(|fd| fd.as_fd()).collect();
    passing::send(to, bytes, &fds, SendFlags::empty()).unwrap();
}

fn started() -> (OwnedFd, std::thread::JoinHandle<io::Result<()>>) {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    (ours, std::thread::spawn(move || server::attend(&theirs, &mut Vec::new())))
}

#[test]
fn good_descriptors_pass_and_nothing_is_taken() {
    let (helper, thread) = started();
    let (theirs, mut ours) = UnixStream::pair().unwrap();
    send(&theirs, b"without", &[]);
    send(&theirs, b"with", &[&memory(), &event()]);
    send(&theirs, b"more", &[&event()]);
    set_peeked(&ours, 0).unwrap();
    // As often as wanted.
    for _ in 0..3 {
        let fds = exchange(&helper, ours.as_fd(), WANTED).unwrap().unwrap();
        assert!(is_memory(&fds[0]) && is_eventfd(&fds[1]) && fds.len() == 2);
        assert_eq!(peeked(&ours).unwrap(), 0);
    }
    // From where looks begin.
    set_peeked(&ours, 11).unwrap();
    let fds = exchange(&helper, ours.as_fd(), WANTED).unwrap().unwrap();
    assert!(fds.len() == 1 && is_eventfd(&fds[0]));
    assert_eq!(peeked(&ours).unwrap(), 11);
    let mut bytes = [0; 15];
    ours.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"withoutwithmore");
    // There is nothing: that is an answer, too.
    let nothing = exchange(&helper, ours.as_fd(), WANTED).unwrap();
    assert!(matches!(nothing, Err(Why::NoHelper(_))), "{nothing:?}");
    drop(helper);
    thread.join().unwrap().unwrap();
}

#[test]
fn one_stranger_keeps_all_out_and_is_the_end_of_its_helper() {
    let (helper, thread) = started();
    let (theirs, ours) = UnixStream::pair().unwrap();
    send(&theirs, b"x", &[&memory(), &stranger()]);
    let refused = exchange(&helper, ours.as_fd(), WANTED).unwrap().unwrap_err();
    assert_eq!(refused, Why::Stranger("/dev/null".to_owned()));
    // The helper closes the file behind the message, so it waits for our word; then it ends.
    assert!(!thread.is_finished());
    dropped(&helper);
    dropped(&helper);
    thread.join().unwrap().unwrap();
    assert_eq!(hear(&helper, 0).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    assert!(exchange(&helper, ours.as_fd(), WANTED).is_none());
    // Where any file may pass, so does this.
    let (helper, thread) = started();
    let any = WantedFds { any: true, ..WANTED };
    assert_eq!(exchange(&helper, ours.as_fd(), any).unwrap().unwrap().len(), 2);
    drop(helper);
    thread.join().unwrap().unwrap();
}

/// What it is to keep is closed behind its end, which comes soon, and not before.
#[test]
fn a_helper_ends_with_what_it_keeps() {
    let (helper, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let (peer, ours) = UnixStream::pair().unwrap();
    send(&peer, b"never read", &[&event()]);
    say(&helper, KEEP, 0, &[], &[ours.as_fd()]).unwrap();
    drop(ours);
    let mut kept = Vec::new();
    server::attend(&theirs, &mut kept).unwrap();
    assert_eq!(kept.len(), 1);
    send(&peer, b"it is still there", &[]);
    drop(kept);
    (&peer).read_exact(&mut [0]).unwrap_err();
    // So many at most; the rest is the next one's.
    for _ in 0..server::MOST + 1 {
        say(&helper, KEEP, 0, &[], &[peer.as_fd()]).unwrap();
    }
    let mut kept = Vec::new();
    server::attend(&theirs, &mut kept).unwrap();
    assert_eq!(kept.len(), server::MOST);
}

#[test]
fn more_than_may_pass_are_refused_and_the_helper_goes_on() {
    let (helper, thread) = started();
    let (theirs, ours) = UnixStream::pair().unwrap();
    let event = event();
    send(&theirs, b"x", &[&event; MAX_FDS]);
    let refused = exchange(&helper, ours.as_fd(), WANTED).unwrap().unwrap_err();
    assert_eq!(refused, Why::TooMany { came: 253, most: 8 });
    let all = WantedFds { most: MAX_FDS, ..WANTED };
    assert_eq!(exchange(&helper, ours.as_fd(), all).unwrap().unwrap().len(), MAX_FDS);
    drop(helper);
    thread.join().unwrap().unwrap();
}

#[test]
fn a_process_without_a_helper_looks_by_itself() {
    let (theirs, ours) = UnixStream::pair().unwrap();
    send(&theirs, b"x", &[&event()]);
    assert_eq!(look(ours.as_fd(), WANTED).unwrap().len(), 1);
    send(&theirs, b"y", &[&stranger()]);
    (&ours).read_exact(&mut [0]).unwrap();
    let refused = look(ours.as_fd(), WANTED).unwrap_err();
    assert!(matches!(refused.why, Why::Stranger(_)) && refused.closing.is_none(), "{refused:?}");
}

/// A socket passes where one is wanted, if it is connected, streams and stays on this host.
#[test]
fn sockets_pass_where_they_are_wanted() {
    let (theirs, ours) = UnixStream::pair().unwrap();
    let wanted = WantedFds { sockets: true, ..WANTED };
    let place = |kind| rustix::net::socket(AddressFamily::UNIX, kind, None).unwrap();
    let (good, other) = UnixStream::pair().unwrap();
    let inet = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let called = std::net::TcpStream::connect(inet.local_addr().unwrap()).unwrap();
    let (record, _other) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let listener = place(SocketType::STREAM);
    rustix::net::bind(&listener, &rustix::net::SocketAddrUnix::new_unnamed()).unwrap();
    rustix::net::listen(&listener, 1).unwrap();
    let list =
        [good.into(), place(SocketType::STREAM), place(SocketType::DGRAM), called.into(), record, listener];
    for (number, socket) in list.iter().enumerate() {
        send(&theirs, b"x", &[socket]);
        assert!(look(ours.as_fd(), WANTED).is_err());
        assert_eq!(look(ours.as_fd(), wanted).is_ok(), number == 0, "{number}");
        (&ours).read_exact(&mut [0]).unwrap();
    }
    drop(other);
}
