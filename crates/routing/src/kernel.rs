//! The kernel of a control plane's namespace: its links, neighbours, addresses and routes, by rtnetlink(7).
//!
//! Two sockets: one is told of changes, the other asks. What is told of links and addresses is only the
//! occasion to ask for all of them, and so is every loss of what was told: there are few of these. Neighbours
//! are taken as they are told.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::{
    IFA_ADDRESS, IFA_LOCAL, IFLA_ADDRESS, IFLA_IFNAME, IFLA_INFO_KIND, IFLA_LINKINFO, NDA_DST, NDA_LLADDR,
};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{recv, send, RecvFlags, SendFlags};
use sidecore_engine::host::netlink::{
    self, attributes, bytes, kind, messages, word, Builder, Malformed, Message,
};
use sidecore_engine::host::netns::{self, Socket};
use sidecore_engine::packet::Mac;
use sidecore_engine::router::Net;
use sidecore_engine::util::slice::{behind, behind_mut, put, upto};

use crate::say::ip;

/// How long the kernel may take to tell all that there is.
const PATIENCE: Duration = Duration::from_secs(10);
/// The kernel's messages come in blocks of at most so many bytes.
const BLOCK: usize = 64 << 10;
/// Changes that it is asked for together: its answers have room.
const TOGETHER: usize = 64;

/// A flag of interfaces (linux/if.h, IFF_LOOPBACK).
const LOOPBACK: u32 = 0x8;
/// The family of bridges (AF_BRIDGE), and a flag of their entries.
const BRIDGE: u8 = 7;
const STICKY: u8 = 0x40;
/// States of neighbours (linux/neighbour.h): one that is known, and one that always holds.
const REACHABLE: u16 = 0x02;
const PERMANENT: u16 = 0x80;
const ALWAYS: u16 = 0x40 | PERMANENT;

/// What is told of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The kernel's number of the interface.
    pub link: u32,
    /// Its address.
    pub address: IpAddr,
    /// Its station; none: it is not known.
    pub mac: Option<Mac>,
    /// An operator has said so.
    pub always: bool,
    /// In the state in which addresses of our stations are entered, and zebra enters none.
    pub permanent: bool,
}

/// An entry of a bridge's table, at one of the bridge's ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Station {
    /// The kernel's number of the port.
    pub link: u32,
    /// Its address; zero: all whose addresses are not known.
    pub mac: [u8; 6],
    /// The tunnel endpoint behind which it is.
    pub behind: Option<IpAddr>,
    /// It moves nowhere.
    pub sticky: bool,
    /// It is the port's own address.
    pub own: bool,
    /// It has come, and not gone.
    pub there: bool,
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The kernel's number of it.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its station address.
    pub mac: Option<Mac>,
    /// It leads nowhere and is there for its addresses: a loopback or dummy interface.
    pub is_loopback: bool,
}

/// The sockets.
pub struct Kernel {
    hear: OwnedFd,
    ask: OwnedFd,
    /// Readable when nobody waits for answers any more.
    end: Arc<OwnedFd>,
    sequence: u32,
    block: Box<[u8]>,
    /// Something was lost, and what else is lost before all has been read is not said again
    /// (`NETLINK_S_CONGESTED`).
    lost: bool,
}

/// What there was to hear.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Neighbours, in the order in which they were told of.
    pub neighbours: Vec<Neighbour>,
    /// Entries of bridges, in that order.
    pub stations: Vec<Station>,
    /// Links or addresses are not what they were.
    pub links: bool,
    /// Something was lost, and all else has been heard: it has to be asked for.
    pub lost: bool,
}

impl Kernel {
    /// The kernel of the namespace at `netns`. While `end` is readable it is asked for nothing.
    ///
    /// # Errors
    /// There is no such namespace, or it cannot be entered.
    pub fn new(netns: &Path, end: &Arc<OwnedFd>) -> io::Result<Kernel> {
        let (hear, ask) = (netns::open(netns, Socket::Hear)?, netns::open(netns, Socket::Ask)?);
        Ok(Kernel { hear, ask, end: Arc::clone(end), sequence: 0, block: vec![0; BLOCK].into(), lost: false })
    }

    /// Readable when there is something to hear.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.hear.as_fd()
    }

    /// What there is to hear.
    ///
    /// # Errors
    /// The socket is of no use any more.
    pub fn hear(&mut self) -> io::Result<Heard> {
        let mut heard = Heard::default();
        for _ in 0..1024 {
            let (len, whole) = match recv(&self.hear, &mut self.block[..], RecvFlags::TRUNC) {
                Ok(lengths) => lengths,
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(Errno::NOBUFS) => (0, usize::MAX),
                Err(e) => return Err(e.into()),
            };
            self.lost |= whole > len;
            for message in messages(upto(&self.block, len)).flatten() {
                match message.kind {
                    kind::NEWLINK | kind::DELLINK | kind::NEWADDR | kind::DELADDR => heard.links = true,
                    _ if message.body.first() == Some(&BRIDGE) => {
                        heard.stations.extend(station(message).ok().flatten());
                    }
                    _ => heard.neighbours.extend(neighbour(message).ok().flatten()),
                }
            }
        }
        if self.lost {
            let mut fds = [PollFd::new(&self.hear, PollFlags::IN)];
            self.lost = matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1));
            heard.lost = !self.lost;
        }
        Ok(heard)
    }

    /// Waits for what the kernel says next, until `end`: its length in `block`.
    fn answer(&mut self, end: Instant) -> io::Result<usize> {
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
            let mut fds = [PollFd::new(&self.ask, PollFlags::IN), PollFd::new(&self.end, PollFlags::IN)];
            match poll(&mut fds, Some(&left)) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Err(Errno::INTR) => continue,
                ready => ready?,
            };
            let [_, ended] = fds;
            if !ended.revents().is_empty() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            match recv(&self.ask, &mut self.block[..], RecvFlags::empty()) {
                Ok((len, _)) => return Ok(len),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// All that there is of one kind; `each` gets `None` behind each block of messages. What changed
    /// meanwhile is in it or not; `false`: it may be torn.
    ///
    /// # Errors
    /// The kernel refuses, or takes too long; or nobody waits for it any more.
    fn dump(
        &mut self,
        what: u16,
        fixed: &[u8],
        mut each: impl FnMut(Option<Message<'_>>),
    ) -> io::Result<bool> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = Builder::new(what, netlink::REQUEST | netlink::DUMP, self.sequence, fixed).end();
        send(&self.ask, &request, SendFlags::empty())?;
        let (end, mut whole) = (Instant::now() + PATIENCE, true);
        loop {
            let len = self.answer(end)?;
            for message in messages(upto(&self.block, len)).flatten() {
                if message.sequence != self.sequence {
                    continue;
                }
                whole &= message.flags & netlink::INTERRUPTED == 0;
                match message.kind {
                    kind::DONE => {
                        each(None);
                        return Ok(whole);
                    }
                    kind::ERROR => refusal(message)?,
                    _ => each(Some(message)),
                }
            }
            each(None);
        }
    }

    /// Has the kernel take `changes`, requests that want an answer, and what it says to each.
    ///
    /// # Errors
    /// It cannot be asked, or takes too long; or nobody waits for it any more.
    pub fn change(&mut self, changes: &[Vec<u8>]) -> io::Result<Vec<io::Result<()>>> {
        let mut answers: Vec<io::Result<()>> = Vec::new();
        for some in changes.chunks(TOGETHER) {
            let first = self.sequence.wrapping_add(1);
            let mut all = Vec::new();
            for change in some {
                self.sequence = self.sequence.wrapping_add(1);
                let begin = all.len();
                all.extend(change);
                put(behind_mut(&mut all, begin), 8, &self.sequence.to_ne_bytes());
            }
            send(&self.ask, &all, SendFlags::empty())?;
            let (end, done) = (Instant::now() + PATIENCE, answers.len() + some.len());
            while answers.len() < done {
                let len = self.answer(end)?;
                for message in messages(upto(&self.block, len)).flatten() {
                    let its = message.sequence.wrapping_sub(first) as usize;
                    if message.kind == kind::ERROR && its < some.len() {
                        answers.push(refusal(message));
                    }
                }
            }
        }
        Ok(answers)
    }

    /// All that `read` finds in a dump of `what`.
    fn all<T>(&mut self, what: u16, fixed: &[u8], read: fn(Message<'_>) -> Found<T>) -> io::Result<Vec<T>> {
        let mut all = Vec::new();
        self.dump(what, fixed, |message| all.extend(message.and_then(|it| read(it).ok()?)))?;
        Ok(all)
    }

    /// All interfaces.
    ///
    /// # Errors
    /// As of `dump`.
    pub fn links(&mut self) -> io::Result<Vec<Link>> {
        self.all(kind::GETLINK, &[0; 16], link)
    }

    /// All addresses, each with its interface's number.
    ///
    /// # Errors
    /// As of `dump`.
    pub fn addresses(&mut self) -> io::Result<Vec<(u32, Net)>> {
        self.all(kind::GETADDR, &[0; 8], address)
    }

    /// All neighbours.
    ///
    /// # Errors
    /// As of `dump`.
    pub fn neighbours(&mut self) -> io::Result<Vec<Neighbour>> {
        self.all(kind::GETNEIGH, &[0; 12], neighbour)
    }

    /// All entries of bridges.
    ///
    /// # Errors
    /// As of `dump`.
    pub fn stations(&mut self) -> io::Result<Vec<Station>> {
        self.all(kind::GETNEIGH, &[BRIDGE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], station)
    }

    /// All next hops and routes, of both families; whether that is the whole of them as they were at one
    /// time. `None` comes behind each block: then there is time for something else.
    ///
    /// # Errors
    /// As of `dump`.
    pub fn routes(&mut self, mut each: impl FnMut(Option<Message<'_>>)) -> io::Result<bool> {
        // A kernel without objects has none.
        let objects = self.dump(kind::GETNEXTHOP, &[0; 8], &mut each).unwrap_or(true);
        let four = self.dump(kind::GETROUTE, &[2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &mut each)?;
        let six = self.dump(kind::GETROUTE, &[10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &mut each)?;
        Ok(objects && four && six)
    }
}

/// What an answer says: nothing, or why not (netlink(7), NLMSG_ERROR).
fn refusal(message: Message<'_>) -> io::Result<()> {
    let errno =
        word(message.body, 0).map_or(libc::EBADMSG, |it| i32::from_ne_bytes(it.to_ne_bytes()).wrapping_neg());
    match errno {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// What a message tells, if it is one of its kind and tells anything.
type Found<T> = Result<Option<T>, Malformed>;

fn link(message: Message<'_>) -> Found<Link> {
    let (index, flags) = (word(message.body, 4)?, word(message.body, 8)?);
    let (mut name, mut mac, mut dummy) = (None, None, false);
    for attribute in attributes(behind(message.body, 16)) {
        match attribute? {
            (IFLA_IFNAME, value) => name = Some(String::from_utf8_lossy(text(value)).into_owned()),
            (IFLA_ADDRESS, value) => mac = bytes(value, 0).ok().map(Mac),
            (IFLA_LINKINFO, value) => {
                let kinds = attributes(value).flatten().filter(|(what, _)| *what == IFLA_INFO_KIND);
                dummy |= kinds.map(|(_, kind)| text(kind)).any(|kind| kind == b"dummy");
            }
            _ => {}
        }
    }
    Ok(name.map(|name| Link { index, name, mac, is_loopback: dummy || flags & LOOPBACK != 0 }))
}

/// What stands before the first zero.
pub(crate) fn text(value: &[u8]) -> &[u8] {
    value.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn address(message: Message<'_>) -> Found<(u32, Net)> {
    let ([_, len], index) = (bytes::<2>(message.body, 0)?, word(message.body, 4)?);
    let (mut own, mut other) = (None, None);
    for attribute in attributes(behind(message.body, 8)) {
        match attribute? {
            (IFA_LOCAL, value) => own = Some(ip(value)?),
            (IFA_ADDRESS, value) => other = Some(ip(value)?),
            _ => {}
        }
    }
    Ok(own.or(other).map(|address| (index, Net { address, len })))
}

fn neighbour(message: Message<'_>) -> Found<Neighbour> {
    if !matches!(message.kind, kind::NEWNEIGH | kind::DELNEIGH) {
        return Ok(None);
    }
    let (link, state) = (word(message.body, 4)?, netlink::short(message.body, 8)?);
    let (mut address, mut mac) = (None, None);
    for attribute in attributes(behind(message.body, 12)) {
        match attribute? {
            (NDA_DST, value) => address = Some(ip(value)?),
            (NDA_LLADDR, value) if value.len() == 6 => mac = Some(Mac(bytes(value, 0)?)),
            _ => {}
        }
    }
    let Some(address) = address.filter(|it| !it.is_multicast()) else { return Ok(None) };
    let there = message.kind == kind::NEWNEIGH;
    let (known, always) = (state & (REACHABLE | ALWAYS) != 0, state & ALWAYS != 0);
    let permanent = state & PERMANENT != 0;
    let gone = Neighbour { link, address, mac: None, always: false, permanent: false };
    Ok(match mac {
        Some(mac) if there && known => Some(Neighbour { link, address, mac: Some(mac), always, permanent }),
        // In between: what is known of it holds.
        _ if there && mac.is_some() => None,
        _ => Some(gone),
    })
}

fn station(message: Message<'_>) -> Found<Station> {
    if !matches!(message.kind, kind::NEWNEIGH | kind::DELNEIGH) || message.body.first() != Some(&BRIDGE) {
        return Ok(None);
    }
    let (link, state) = (word(message.body, 4)?, netlink::short(message.body, 8)?);
    let [flags] = bytes(message.body, 10)?;
    let (mut behind_it, mut mac) = (None, None);
    for attribute in attributes(behind(message.body, 12)) {
        match attribute? {
            (NDA_DST, value) => behind_it = Some(ip(value)?),
            (NDA_LLADDR, value) if value.len() == 6 => mac = Some(bytes(value, 0)?),
            _ => {}
        }
    }
    Ok(mac.map(|mac| Station {
        link,
        mac,
        behind: behind_it,
        sticky: flags & STICKY != 0 || state & ALWAYS != 0,
        own: state & PERMANENT != 0,
        there: message.kind == kind::NEWNEIGH,
    }))
}

#[cfg(test)]
mod tests {
    use rustix::event::{eventfd, EventfdFlags};

    use super::*;

    impl Kernel {
        /// One of which the answers come from the socket that is returned, and nothing else is heard.
        pub(crate) fn by_hand(end: &Arc<OwnedFd>) -> (Kernel, OwnedFd) {
            use rustix::net::{socketpair, AddressFamily, SocketFlags, SocketType};
            let kind = SocketType::SEQPACKET;
            let (ask, answers) = socketpair(AddressFamily::UNIX, kind, SocketFlags::NONBLOCK, None).unwrap();
            let (hear, end) = (eventfd(0, EventfdFlags::NONBLOCK).unwrap(), Arc::clone(end));
            (Kernel { hear, ask, end, sequence: 0, block: vec![0; BLOCK].into(), lost: false }, answers)
        }
    }

    /// A kernel that never answers makes nobody wait who is to end.
    #[test]
    fn the_end_does_not_wait_for_an_answer() {
        let end = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        let (mut kernel, silent) = Kernel::by_hand(&end);
        let thread = std::thread::spawn(move || kernel.links().unwrap_err().kind());
        // It has asked, and waits or is about to.
        poll(&mut [PollFd::new(&silent, PollFlags::IN)], None).unwrap();
        rustix::io::write(&*end, &1u64.to_ne_bytes()).unwrap();
        assert_eq!(thread.join().unwrap(), io::ErrorKind::Interrupted);
    }

    fn one(what: u16, state: u16, mac: Option<[u8; 6]>) -> Option<Neighbour> {
        let fixed = [&[2, 0, 0, 0][..], &9u32.to_ne_bytes(), &state.to_ne_bytes(), &[0, 1]].concat();
        let builder = Builder::new(what, 0, 0, &fixed).with(NDA_DST, &[10, 0, 0, 2]);
        let all = match mac {
            Some(mac) => builder.with(NDA_LLADDR, &mac),
            None => builder,
        }
        .end();
        let message = messages(&all).next().unwrap().unwrap();
        neighbour(message).unwrap()
    }

    #[test]
    fn loopback_and_dummy_interfaces_are_told_from_others() {
        let one = |flags: u32, kind: Option<&[u8]>| {
            let fixed = [&[0; 4][..], &7u32.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 4]].concat();
            let builder = Builder::new(kind::NEWLINK, 0, 0, &fixed).with(IFLA_IFNAME, b"x0\0");
            let all = match kind {
                Some(kind) => {
                    let len = u16::try_from(4 + kind.len()).unwrap().to_ne_bytes();
                    let mut info = [&len[..], &IFLA_INFO_KIND.to_ne_bytes(), kind].concat();
                    info.resize(info.len().next_multiple_of(4), 0);
                    builder.with(IFLA_LINKINFO, &info)
                }
                None => builder,
            }
            .end();
            let message = messages(&all).next().unwrap().unwrap();
            link(message).unwrap()
        };
        let is = |is_loopback| Some(Link { index: 7, name: "x0".to_owned(), mac: None, is_loopback });
        assert_eq!([one(0x49, None), one(0x82, Some(b"dummy\0"))], [is(true), is(true)]);
        assert_eq!(
            [one(0x1043, None), one(0x1043, Some(b"tun\0")), one(2, Some(b""))],
            [is(false), is(false), is(false)]
        );
    }

    #[test]
    fn entries_of_bridges_are_read() {
        let (mac, zero) = ([2, 0, 0, 0, 0, 9], [0; 6]);
        let read = |what: u16, state: u16, flags: u8, mac: [u8; 6], behind: &[u8]| {
            let fixed =
                [&[BRIDGE, 0, 0, 0][..], &9u32.to_ne_bytes(), &state.to_ne_bytes(), &[flags, 0]].concat();
            let builder = Builder::new(what, 0, 0, &fixed).with(NDA_LLADDR, &mac);
            let all = if behind.is_empty() { builder } else { builder.with(NDA_DST, behind) }.end();
            let whole = station(messages(&all).next().unwrap().unwrap());
            // Cut anywhere it is none, or says less.
            for cut in 16..all.len() {
                let message = Message { kind: what, flags: 0, sequence: 0, body: &all[16..cut] };
                let _ = station(message);
            }
            whole.unwrap().unwrap()
        };
        let one = Station {
            link: 9,
            mac,
            behind: Some([10, 0, 0, 2].into()),
            sticky: false,
            own: false,
            there: true,
        };
        assert_eq!(read(kind::NEWNEIGH, 2, 0x12, mac, &[10, 0, 0, 2]), one);
        assert_eq!(read(kind::DELNEIGH, 2, 0x12, mac, &[10, 0, 0, 2]), Station { there: false, ..one });
        assert!(read(kind::NEWNEIGH, 0x40, 0x12, mac, &[10, 0, 0, 2]).sticky);
        assert!(read(kind::NEWNEIGH, 2, 0x52, mac, &[10, 0, 0, 2]).sticky);
        let six = Station { mac: zero, behind: Some([7u16; 8].into()), sticky: true, own: true, ..one };
        assert_eq!(read(kind::NEWNEIGH, 0x80, 2, zero, &[0, 7].repeat(8)), six);
        assert_eq!(read(kind::NEWNEIGH, 0x80, 4, mac, &[]).behind, None);
    }

    #[test]
    fn neighbours_are_read() {
        let mac = [2, 0, 0, 0, 0, 9];
        let known = |always| {
            let mac = Some(Mac(mac));
            Neighbour { link: 9, address: [10, 0, 0, 2].into(), mac, always, permanent: always }
        };
        assert_eq!(one(kind::NEWNEIGH, REACHABLE, Some(mac)), Some(known(false)));
        assert_eq!(one(kind::NEWNEIGH, 0x80, Some(mac)), Some(known(true)));
        assert_eq!(one(kind::NEWNEIGH, 0x04, Some(mac)), None, "stale: as it was");
        assert_eq!(one(kind::NEWNEIGH, 0x40, Some(mac)), Some(Neighbour { always: true, ..known(false) }));
        let gone = Neighbour { mac: None, ..known(false) };
        assert_eq!(one(kind::NEWNEIGH, 0x20, None), Some(gone), "failed");
        assert_eq!(one(kind::DELNEIGH, 0x80, Some(mac)), Some(gone));
    }
}
