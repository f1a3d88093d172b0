//! The broker: the process that keeps the privileges, and does with them what is in its table and nothing else.
//!
//! Theory of operation. The daemon starts it before it gives anything up, over a pair of sockets, and asks it for what it
//! may not do itself ([`Request`]). One thread reads a request, does it, answers, and reads the next; the code that does it is
//! the one that a daemon without a broker runs itself. When the other end is gone, so is the broker.
//!
//! What a worker can do that has turned hostile, at worst:
//! * sockets: made where nothing is, or where a dead one is, in a folder below [`Rules::below`]; removed
//!   only if this broker made them. Files that are there are neither opened nor replaced;
//! * journals: in the daemon's own folder, by a port's name;
//! * reading: the configuration file, a file that is a lookup program as a whole, `/etc/passwd` and `/etc/group`;
//! * holders: this program, with the one argument that makes it one, at a path that ends in `.hold`;
//! * interfaces: by name, as a packet, AF_XDP or TAP socket of this network namespace; MTU and *up*. That is much: whoever
//!   has a packet socket sees the host's frames.
//!
//! Without [`Rules::strict`] nobody is kept from anything that the daemon may do itself: sockets are made everywhere, journals
//! opened where they are ours alone (`open::own_file`), and programs read before anybody knows whether they are any.
//!
//! Nothing of it grows: [`MAX_SOCKETS`] sockets and holders, records and answers of one size.

mod table;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Child;

use rustix::event::{poll, PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{pidfd_open, Pid, PidfdFlags};

use crate::open::broker::{answer, receive, Refusal, Request, RECORD};
use crate::open::socket::SocketFile;

/// Most sockets that it remembers, and most holders that it waits for.
pub const MAX_SOCKETS: usize = 4096;

/// What a broker is told by whoever starts it.
#[derive(Debug, Default)]
pub struct Rules {
    /// The configuration file.
    pub config: Option<PathBuf>,
    /// Whether the daemon has given its privileges up, and could be somebody else's by now.
    pub strict: bool,
    /// If so, the folders below which sockets are made and called.
    pub below: Vec<PathBuf>,
    /// The folders that the ports of a configuration have their sockets in: each time that the file is read, these are
    /// added.
    pub folders: Option<fn(&str) -> Vec<PathBuf>>,
}

impl Rules {
    /// The configuration file has been read again.
    fn learn(&mut self, text: &str) {
        for folder in self.folders.map(|folders| folders(text)).unwrap_or_default() {
            if !self.below.contains(&folder) && self.below.len() < MAX_SOCKETS {
                self.below.push(folder);
            }
        }
    }

    /// Whether a socket may be at `path`.
    fn allow(&self, path: &Path) -> io::Result<()> {
        if !self.strict || self.below.iter().any(|folder| path.starts_with(folder)) {
            return Ok(());
        }
        let folders: Vec<_> = self.below.iter().map(|folder| folder.display().to_string()).collect();
        let why = format!("the broker makes and calls sockets only below {}; name a port there in the configuration file and reload it", folders.join(", "));
        Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
    }
}

/// What it has done so far.
struct Broker {
    rules: Rules,
    sockets: BTreeMap<u64, SocketFile>,
    next: u64,
    holders: Vec<(Child, OwnedFd)>,
}

/// Answers what comes from `socket` until its other end is gone.
///
/// # Errors
/// What the system says of the socket.
pub fn serve(socket: &OwnedFd, rules: Rules) -> io::Result<()> {
    let mut broker = Broker { rules, sockets: BTreeMap::new(), next: 1, holders: Vec::new() };
    let mut bytes = Box::new([0; RECORD]);
    loop {
        broker.wait(socket)?;
        let (len, fds) = match receive(socket, &mut bytes) {
            // A worker that was killed resets the connection.
            Ok((0, _)) => return Ok(()),
            Err(e) if e.raw_os_error() == Some(Errno::CONNRESET.raw_os_error()) => return Ok(()),
            got => got?,
        };
        // The number of what cannot be read is not known; the other end gives such a broker up.
        let (number, result) = match Request::decode(&bytes[..len]) {
            Ok((request, number)) if request.fds() == fds.len() => (number, broker.carry_out(request, &fds)),
            Ok((_, number)) => (number, Err(bad("wrong number of descriptors"))),
            Err(e) => (0, Err(Refusal::from(io::Error::new(io::ErrorKind::InvalidInput, e.to_string())))),
        };
        if answer(socket, number, result).is_err() {
            return Ok(());
        }
    }
}

fn bad(why: &str) -> Refusal {
    io::Error::new(io::ErrorKind::InvalidInput, why.to_owned()).into()
}

impl Broker {
    /// Waits for a request; notes the ends of holders meanwhile.
    fn wait(&mut self, socket: &OwnedFd) -> io::Result<()> {
        loop {
            let mut fds = vec![PollFd::new(socket, PollFlags::IN)];
            fds.extend(
                self.holders.iter().map(|(_, end)| PollFd::from_borrowed_fd(end.as_fd(), PollFlags::IN)),
            );
            match poll(&mut fds, None) {
                Err(Errno::INTR) => continue,
                ready => ready?,
            };
            let (asked, ended) =
                (!fds[0].revents().is_empty(), fds[1..].iter().any(|fd| !fd.revents().is_empty()));
            if ended {
                // One that cannot be waited for has been.
                self.holders.retain_mut(|(child, _)| matches!(child.try_wait(), Ok(None)));
            }
            if asked {
                return Ok(());
            }
        }
    }

    /// Remembers a socket's file under a new number.
    fn remember(&mut self, file: SocketFile) -> Result<u64, Refusal> {
        if self.sockets.len() >= MAX_SOCKETS {
            file.remove();
            return Err(bad("the broker remembers no more sockets"));
        }
        let number = self.next;
        self.next += 1;
        self.sockets.insert(number, file);
        Ok(number)
    }

    /// Waits for the end of `child` from now on.
    fn adopt(&mut self, child: Child) -> io::Result<()> {
        let end = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
        self.holders.push((child, end));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use super::*;
    use crate::open::broker::{Answer, Broker as Client};
    use crate::open::tests::Dir;
    use rustix::net::{socketpair, AddressFamily, SocketFlags, SocketType};

    fn started(rules: Rules) -> (Client, std::thread::JoinHandle<()>) {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let thread = std::thread::spawn(move || serve(&theirs, rules).unwrap());
        (Client::at(ours), thread)
    }

    fn listen(path: PathBuf) -> Request {
        Request::Listen { path, seqpacket: false, mode: Some(0o660), owner: (None, None), backlog: 4 }
    }

    #[test]
    fn sockets_are_made_where_they_may_be_and_only_ours_are_removed() {
        let dir = Dir::new("broker");
        std::fs::create_dir(dir.at("in")).unwrap();
        let (client, thread) = started(Rules { strict: true, below: vec![dir.at("in")], ..Rules::default() });
        let made = client.ask(&listen(dir.at("in/a")), &[]).unwrap();
        assert!(made.fd.is_some() && dir.at("in/a").exists());
        let error = |request| client.ask(&request, &[]).map(|_: Answer| ()).unwrap_err().error;
        assert_eq!(error(listen(dir.at("out"))).kind(), io::ErrorKind::PermissionDenied);
        std::fs::write(dir.at("in/file"), "x").unwrap();
        error(listen(dir.at("in/file")));
        error(listen(dir.at("in/a")));
        assert_eq!(error(Request::Hold { path: dir.at("in/a") }).kind(), io::ErrorKind::InvalidInput);
        assert_eq!(error(Request::Remove { number: 99 }).kind(), io::ErrorKind::NotFound);
        assert_eq!(error(Request::Config).kind(), io::ErrorKind::NotFound);
        assert_eq!(
            error(Request::JournalAt { path: dir.at("in/j") }).kind(),
            io::ErrorKind::PermissionDenied
        );
        client.ask(&Request::Remove { number: made.number }, &[]).unwrap();
        assert!(!dir.at("in/a").exists());
        assert_eq!(std::fs::read(dir.at("in/file")).unwrap(), b"x");
        drop(client);
        thread.join().unwrap();
    }

    #[test]
    fn only_a_lookup_program_is_read() {
        let dir = Dir::new("reads");
        std::fs::write(dir.at("secret"), "root:$6$...:1::::::\n").unwrap();
        std::fs::write(dir.at("program"), "mov r0, 0\nexit\n").unwrap();
        let (client, thread) = started(Rules { strict: true, ..Rules::default() });
        let read = |name| client.ask(&Request::Program { path: dir.at(name) }, &[]);
        let refused = read("secret").unwrap_err().error.to_string();
        assert!(!refused.contains("$6$"), "{refused}");
        let program = read("program").unwrap().fd.unwrap();
        assert_eq!(std::io::read_to_string(std::fs::File::from(program)).unwrap(), "mov r0, 0\nexit\n");
        drop(client);
        thread.join().unwrap();
    }

    /// What no worker of ours would say gets an answer, or none, and the next request its own.
    #[test]
    fn nonsense_is_refused() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let thread = std::thread::spawn(move || serve(&theirs, Rules::default()).unwrap());
        let mut bytes = Box::new([0; RECORD]);
        for nonsense in [&[1][..], &[0xff; RECORD], &[0; RECORD], &[0; 2 * RECORD]] {
            rustix::net::send(&ours, nonsense, rustix::net::SendFlags::empty()).unwrap();
            assert_eq!(receive(&ours, &mut bytes).unwrap().0, RECORD);
        }
        let client = Client::at(ours);
        // Without the descriptors that belong to it.
        let refused = client.ask(&Request::Enter { queue: 0 }, &[]).unwrap_err();
        assert!(refused.error.to_string().contains("descriptors"), "{}", refused.error);
        drop(client);
        thread.join().unwrap();
    }
}
