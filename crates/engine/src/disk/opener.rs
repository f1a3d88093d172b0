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
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use rustix::process::{set_parent_process_death_signal, Signal};

use super::nature::Nature;
use super::open::{look_here, open_here};
use crate::open::broker::{answer, await_answer, receive, request, Answer, Broker, Refusal, Request};
use crate::open::passing::is_for_records;

/// How long a file's server is waited for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Why a file is not opened whose server is silent.
pub(crate) const SILENT: &str = "its server does not answer";

/// The request has this number.
const NUMBER: u64 = 1;

/// Starts the process that opens the file at `path`, or only `look`s at it; the way to its answer.
pub(crate) fn spawn(path: &Path, read_only: bool, look: bool) -> io::Result<(OwnedFd, Child)> {
    let (ours, child) = crate::hold::helper("open-disk")?;
    request(&ours, NUMBER, &Request::Disk { path: path.to_owned(), read_only, look }, &[])?;
    Ok((ours, child))
}

/// Has `broker` do what is asked.
fn await_opener(broker: &Broker, asked: &Request) -> io::Result<Answer> {
    let way = broker.fd(asked, &[])?;
    match await_answer(&way, NUMBER, PATIENCE)? {
        Some(answer) => Ok(answer?),
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
    fd.map(File::from)
        .zip(serde_json::from_str(&text).ok())
        .ok_or_else(|| io::Error::other("its opener gave no file"))
}

/// `sidecore open-disk`: opens the one file that is asked for on `socket`.
///
/// # Errors
/// `InvalidInput`: `socket` is none of a daemon's. Else what the system says of it.
pub fn serve(socket: &OwnedFd) -> io::Result<()> {
    if !is_for_records(socket) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // It ends with the broker, where it can be ended.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let (number, Ok(Request::Disk { path, read_only, look }), _) = receive(socket)? else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    if look {
        // The daemon gets no descriptor that it would have to close.
        let looked = look_here(&path, read_only).map_err(Refusal::from);
        return answer(socket, number, looked.map(|()| Answer::default()));
    }
    let opened = open_here(&path, read_only).map_err(Refusal::from);
    let told = |(file, nature): (File, Nature)| {
        Ok(Answer { text: serde_json::to_string(&nature).map_err(io::Error::from)?, ..Answer::fd(file) })
    };
    answer(socket, number, opened.and_then(told))
}
