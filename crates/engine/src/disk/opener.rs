//! Opening a disk's file in a process of its own, which may have to wait for ever.
//!
//! Theory of operation. The server of a file (FUSE, NFS) may leave open(2) and all questions about it without an
//! answer, and then not even SIGKILL ends the wait. So the broker starts a process for each file to be opened
//! ([`spawn`]), gives the daemon the connection to it, and goes on. The process opens and locks the file, asks what
//! there is to ask ([`Nature`]), sends all of that and ends ([`serve`]). The daemon waits for [`PATIENCE`] ([`ask`]); a
//! process that takes longer is the broker's to end (`crate::broker`). Before a disk that runs is stopped, to be
//! started with its file again, such a process only looks whether the file can be had ([`look`]).
//!
//! The one record that such a process reads was written by the broker before the daemon had the connection: what it opens is
//! what the broker's rules allow.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{socketpair, AddressFamily, SendFlags, SocketFlags, SocketType};
use rustix::process::{set_parent_process_death_signal, Signal};

use super::nature::Nature;
use super::open::{look_here, open_here};
use crate::open::broker::{answer, await_answer, receive, Answer, Broker, Refusal, Request, RECORD};
use crate::open::passing;

/// How long a file's server is waited for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Why a file is not opened whose server is silent.
pub(crate) const SILENT: &str = "its server does not answer";

/// The request has this number.
const NUMBER: u64 = 1;

/// Starts the process that opens the file at `path`, or only `look`s at it; the way to its answer.
pub(crate) fn spawn(path: &Path, read_only: bool, look: bool) -> io::Result<(OwnedFd, Child)> {
    let program = crate::hold::program().ok_or_else(|| io::Error::other("no program for it was named"))?;
    let request = Request::Disk { path: path.to_owned(), read_only, look }.encode(NUMBER)?;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    passing::send(&ours, &request, &[], SendFlags::empty())?;
    let mut command = Command::new(program);
    command.arg0("sidecore").arg("open-disk").env_clear().current_dir("/");
    command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
    // What is typed at a terminal is for the daemon.
    command.process_group(0);
    let child = command.spawn()?;
    crate::hold::raise(&child);
    Ok((ours, child))
}

/// Has `broker` do what is asked.
fn await_opener(broker: &Broker, asked: &Request) -> io::Result<Answer> {
    let way = broker.fd(asked, &[]).map_err(|refusal| refusal.error)?;
    match await_answer(&way, NUMBER, PATIENCE)? {
        Some(answer) => answer.map_err(|refusal| refusal.error),
        None => Err(io::Error::new(io::ErrorKind::TimedOut, SILENT)),
    }
}

/// Has `broker` look whether the file at `path`, which is absolute, can be had.
pub(super) fn look(broker: &Broker, path: &Path, read_only: bool) -> io::Result<()> {
    let asked = Request::Disk { path: path.to_owned(), read_only, look: true };
    await_opener(broker, &asked).map(drop)
}

/// Has `broker` open the file at `path`, which is absolute.
pub(super) fn ask(broker: &Broker, path: &Path, read_only: bool) -> io::Result<(File, Nature)> {
    let asked = Request::Disk { path: path.to_owned(), read_only, look: false };
    let Answer { fd, text, .. } = await_opener(broker, &asked)?;
    fd.map(File::from).zip(Nature::decode(&text)).ok_or_else(|| io::Error::other("its opener gave no file"))
}

/// `sidecore open-disk`: opens the one file that is asked for on `socket`.
///
/// # Errors
/// `InvalidInput`: `socket` is none of a daemon's. Else what the system says of it.
pub fn serve(socket: &OwnedFd) -> io::Result<()> {
    let ours =
        socket_domain(socket) == Ok(AddressFamily::UNIX) && socket_type(socket) == Ok(SocketType::SEQPACKET);
    if !ours {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // It ends with the broker, where it can be ended.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut bytes = Box::new([0; RECORD]);
    let (len, _) = receive(socket, &mut bytes)?;
    let Ok((Request::Disk { path, read_only, look }, number)) = Request::decode(&bytes[..len]) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    if look {
        // The daemon gets no descriptor that it would have to close.
        let looked = look_here(&path, read_only).map_err(Refusal::from);
        return answer(socket, number, looked.map(|()| Answer::default()));
    }
    let opened = open_here(&path, read_only).map_err(Refusal::from);
    answer(socket, number, opened.map(|(file, nature)| Answer { text: nature.encode(), ..Answer::fd(file) }))
}
