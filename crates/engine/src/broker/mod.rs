//! The broker: the process that keeps the privileges, and uses them only for the requests of its table.
//!
//! Theory of operation. The daemon starts the broker before it gives up its privileges, and later sends it
//! requests over a pair of sockets ([`Request`]). One thread reads a request, does it, answers, and reads the
//! next. A daemon without a broker runs the same code itself. The broker ends when the other end of its
//! socket is closed.
//!
//! A hostile daemon can at worst do this by its requests:
//! * sockets: made where nothing is, or where a dead one is, at a path or in a folder that is [`Named`];
//!   removed only if this broker made them. Files that are there are neither opened nor replaced;
//! * calls: to the process that listens at a path that is [`Named`] for that;
//! * journals: in the daemon's own folder, by a port's name, or at a path that is [`Named`];
//! * reading: the configuration file, `/etc/passwd` and `/etc/group`;
//! * disks: a regular file or block device that is [`Named`] is opened and locked, by a separate process,
//!   because its file server may never answer while other requests go on ([`children`]);
//! * descriptor helpers (`crate::sandbox::descriptors`): this program, with the one argument that makes it
//!   one, which has nothing but its connection;
//! * holders: this program, with the one argument that makes it one, beside a socket of ours, and calls to
//!   them;
//! * network namespaces that are [`Named`]: TAPs, MTUs and addresses in them, an rtnetlink socket, a listener
//!   at their loopback;
//! * interfaces that are [`Named`]: packet, AF_XDP and TAP sockets of this network namespace; MTU and *up*.
//!   One such interface is enough to reach all others, because a packet socket can be bound to any interface.
//!
//! Without [`Rules::strict`] the broker does all that the daemon may do itself: it makes sockets everywhere,
//! opens journals that are ours alone (`open::own_file`).
//!
//! The configuration and operators name the paths and interfaces: a user who may open the control socket may
//! send a [`Named`] to the broker's own socket ([`Rules::operators`]). The daemon, without privileges,
//! cannot.
//!
//! Everything is bounded: [`MAX_SOCKETS`] sockets and holders, [`children::MOST`] files that are being
//! opened, [`rules::MAX_NAMED`] names, records and answers of one size.

mod children;
mod rules;
mod table;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::net::{recv, RecvFlags};

use children::Children;
pub use rules::Rules;

use crate::sandbox::open::broker::{answer, receive, Named, Refusal};
use crate::sandbox::open::passing::MAX_TEXT;
use crate::sandbox::open::socket::{listen_here, SocketError, SocketFile};
use crate::util::wait;

/// Most sockets that it remembers.
pub const MAX_SOCKETS: usize = 4096;

/// How soon it tries again to get the socket at which operators speak.
const AGAIN: Duration = Duration::from_millis(50);

/// The socket at which operators speak.
struct Operators {
    socket: OwnedFd,
    file: SocketFile,
}

impl Drop for Operators {
    fn drop(&mut self) {
        self.file.remove();
    }
}

/// What it has done so far.
struct Broker {
    rules: Rules,
    operators: Option<Operators>,
    sockets: BTreeMap<u64, SocketFile>,
    next: u64,
    children: Children,
}

/// Answers what comes from `socket` until its other end is gone.
///
/// # Errors
/// What the system says of the socket.
pub fn serve(socket: &OwnedFd, rules: Rules) -> io::Result<()> {
    let sockets = BTreeMap::new();
    let mut broker = Broker { rules, operators: None, sockets, next: 1, children: Children::default() };
    loop {
        broker.wait(socket)?;
        let (number, request, fds) = match receive(socket) {
            // A worker that was killed resets the connection.
            Err(e) if matches!(e.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) => {
                return Ok(())
            }
            got => got?,
        };
        let result = match request {
            Ok(request) if request.fds() == fds.len() => broker.carry_out(request, &fds),
            Ok(_) => Err(bad("wrong number of descriptors")),
            Err(e) => Err(bad(&e.to_string())),
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
    /// Waits for a request; hears operators and notes the ends of holders meanwhile.
    fn wait(&mut self, socket: &OwnedFd) -> io::Result<()> {
        loop {
            let again = self.listen_to_operators().then_some(AGAIN);
            let again = again.into_iter().chain(self.children.end_late()).min();
            let mut fds = vec![PollFd::new(socket, PollFlags::IN)];
            let others = self.operators.iter().map(|operators| operators.socket.as_fd());
            let others = others.chain(self.children.ends());
            fds.extend(others.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            wait(&mut fds, again)?;
            let (asked, others) =
                (!fds[0].revents().is_empty(), fds[1..].iter().any(|fd| !fd.revents().is_empty()));
            // What an operator said before the daemon was asked counts.
            self.hear();
            if others {
                self.children.look();
            }
            if asked {
                return Ok(());
            }
        }
    }

    /// Makes the socket at which operators speak, if there is to be one and is none. Says whether to try
    /// again soon: the broker of a daemon that was killed may still have it for a moment.
    fn listen_to_operators(&mut self) -> bool {
        let Some(wanted) = &self.rules.operators else { return false };
        match listen_here(wanted) {
            Ok((socket, file)) => self.operators = Some(Operators { socket, file }),
            Err(SocketError::InUse(_)) => return true,
            // Then what the configuration names is all.
            Err(_) => {}
        }
        self.rules.operators = None;
        false
    }

    /// Takes note of what operators have said.
    fn hear(&mut self) {
        let Some(operators) = &self.operators else { return };
        let mut bytes = [0; MAX_TEXT + 1];
        while let Ok((len, _)) = recv(&operators.socket, &mut bytes, RecvFlags::DONTWAIT) {
            // What is nothing is no operator's.
            if let Ok(named) = Named::decode(&bytes[..len]) {
                self.rules.add(named);
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
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use super::*;
    use crate::sandbox::open::broker::{Answer, Broker as Client, Request};
    use crate::sandbox::open::passing::hear;
    use crate::sandbox::open::socket::SocketSpec;
    use crate::sandbox::open::tests::Dir;
    use rustix::net::{socketpair, AddressFamily, SocketFlags, SocketType};
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

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
        let (client, thread) = started(Rules {
            strict: true,
            named: vec![Named::Folder(dir.at("in")), Named::Call(dir.at("vmm"))],
            ..Rules::default()
        });
        let made = client.ask(&listen(dir.at("in/a")), &[]).unwrap();
        assert!(made.fd.is_some() && dir.at("in/a").exists());
        let error = |request| client.ask(&request, &[]).map(|_: Answer| ()).unwrap_err().error;
        assert_eq!(error(listen(dir.at("out"))).kind(), io::ErrorKind::PermissionDenied);
        std::fs::write(dir.at("in/file"), "x").unwrap();
        error(listen(dir.at("in/file")));
        error(listen(dir.at("in/a")));
        assert_eq!(
            error(Request::Hold { path: dir.at("in/a"), of: String::new() }).kind(),
            io::ErrorKind::InvalidInput
        );
        std::fs::create_dir(dir.at("in/below")).unwrap();
        assert_eq!(error(listen(dir.at("in/below/a"))).kind(), io::ErrorKind::PermissionDenied);
        // What may be made may not be called.
        let call = |name| Request::Call { path: dir.at(name) };
        assert_eq!(error(call("in/a")).kind(), io::ErrorKind::PermissionDenied);
        let _vmm = std::os::unix::net::UnixListener::bind(dir.at("vmm")).unwrap();
        assert!(client.ask(&call("vmm"), &[]).unwrap().fd.is_some());
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

    /// Only the paths that an operator named before the daemon started count.
    #[test]
    fn operators_name_sockets_folders_and_journals() {
        let dir = Dir::new("operators");
        std::fs::create_dir(dir.at("ring")).unwrap();
        std::fs::create_dir(dir.at("out")).unwrap();
        let operators = SocketSpec {
            path: Named::place(&dir.at("control.sock")),
            kind: SocketType::DGRAM,
            mode: Some(0o600),
            owner: (None, None),
            backlog: 0,
        };
        let rules = Rules { strict: true, operators: Some(operators.clone()), ..Rules::default() };
        let (client, thread) = started(rules);
        let refused = |request: &Request| client.ask(request, &[]).map(|_| ()).unwrap_err().error.kind();
        assert_eq!(refused(&listen(dir.at("out/a"))), io::ErrorKind::PermissionDenied);
        assert_eq!(operators.path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let journal = Request::JournalAt { path: dir.at("out/j") };
        assert_eq!(refused(&journal), io::ErrorKind::PermissionDenied);
        Named::Journal(dir.at("out/j")).tell(&dir.at("control.sock")).unwrap();
        client.ask(&journal, &[]).unwrap();
        assert_eq!(refused(&listen(dir.at("out/a"))), io::ErrorKind::PermissionDenied);
        Named::Socket(dir.at("out/a")).tell(&dir.at("control.sock")).unwrap();
        client.ask(&listen(dir.at("out/a")), &[]).unwrap();
        assert_eq!(refused(&listen(dir.at("out/b"))), io::ErrorKind::PermissionDenied);
        Named::Folder(dir.at("out")).tell(&dir.at("control.sock")).unwrap();
        client.ask(&listen(dir.at("out/b")), &[]).unwrap();
        drop(client);
        thread.join().unwrap();
        assert!(!operators.path.exists());
    }

    /// What no worker of ours would say gets an answer, or none, and the next request its own.
    #[test]
    fn nonsense_is_refused() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let thread = std::thread::spawn(move || serve(&theirs, Rules::default()).unwrap());
        for nonsense in [&[1][..], &[0xff; MAX_TEXT], &[0; MAX_TEXT], &[0; 2 * MAX_TEXT]] {
            rustix::net::send(&ours, nonsense, rustix::net::SendFlags::empty()).unwrap();
            assert!(String::from_utf8(hear(&ours, 1).unwrap().text).unwrap().contains("no request"));
        }
        let client = Client::at(ours);
        // Without the descriptors that belong to it.
        let refused = client.ask(&Request::Enter { queue: 0 }, &[]).unwrap_err();
        assert!(refused.error.to_string().contains("descriptors"), "{}", refused.error);
        drop(client);
        thread.join().unwrap();
    }
}
