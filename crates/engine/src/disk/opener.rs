//! Opening a disk's file in a process of its own, which may have to wait for ever.
//!
//! Theory of operation. The server of a file (FUSE, NFS) may leave open(2) and all questions about it without
//! an answer, and then not even SIGKILL ends the wait. So the broker starts a process for each file to be
//! opened ([`spawn`]), gives the daemon the connection to it, and goes on. The process opens and locks the
//! file, asks what there is to ask ([`Nature`]), sends all of that and ends ([`serve`]). The daemon waits for
//! [`PATIENCE`] (`await_opener`); a process that takes longer is the broker's to end (`crate::broker`).
//! Before a disk that runs is stopped, to be started with its file again, such a process only looks whether
//! the file can be had ([`look`]). Files may be opened before their disks are made (`open::early`), because
//! their servers may take their time.
//!
//! The one record that such a process reads was written by the broker before the daemon had the connection:
//! what it opens is what the broker's rules allow.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use rustix::process::{set_parent_process_death_signal, Signal};

use super::open::{look_here, open_here, Nature};
use crate::sandbox::open::broker::{
    answer, await_answer, broker, receive, request, Answer, Broker, Refusal, Request,
};
use crate::sandbox::open::early::{Early, Fetched};
use crate::sandbox::open::passing::is_for_records;

/// How long a file's server is waited for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Why a file is not opened whose server is silent.
pub(crate) const SILENT: &str = "its server does not answer";

/// The request has this number.
const NUMBER: u64 = 1;

/// Starts the process that opens the file at `path`, or only `look`s at it; the way to its answer.
pub(crate) fn spawn(path: &Path, read_only: bool, look: bool) -> io::Result<(OwnedFd, Child)> {
    let (ours, child) = crate::sandbox::holder::helper("open-disk")?;
    request(&ours, NUMBER, &Request::Disk { path: path.to_owned(), read_only, look }, &[])?;
    Ok((ours, child))
}

/// Has `broker` open the file at `path`, or only `look` whether it can be had.
fn await_opener(broker: &Broker, path: &Path, read_only: bool, look: bool) -> io::Result<Answer> {
    let path = std::path::absolute(path)?;
    let way = broker.fd(&Request::Disk { path, read_only, look }, &[])?;
    match await_answer(&way, NUMBER, PATIENCE)? {
        Some(answer) => Ok(answer?),
        None => Err(io::Error::new(io::ErrorKind::TimedOut, SILENT)),
    }
}

/// A path, and whether it is only to be read.
type Wanted = (PathBuf, bool);
type Opened = io::Result<(File, Nature)>;

/// Files that were opened, for as long as this lives.
pub(crate) type OpenedFiles = Fetched<Wanted, Opened>;

/// Most files that are opened at a time.
const AT_A_TIME: usize = 32;

static EARLY: Early<Wanted, Opened> = Early::new();

/// Opens `files`, each to be read only or not.
pub(crate) fn open_early(files: Vec<Wanted>) -> OpenedFiles {
    EARLY.fetch("open", AT_A_TIME, files, |(path, read_only)| open(path, *read_only))
}

/// Opens what is at `path` as a disk, to read, or to write, too. The broker has it done, if there is one.
fn open(path: &Path, read_only: bool) -> Opened {
    match broker() {
        Some(broker) => {
            let Answer { fd, text, .. } = await_opener(broker, path, read_only, false)?;
            fd.map(File::from)
                .zip(serde_json::from_str(&text).ok())
                .ok_or_else(|| io::Error::other("its opener gave no file"))
        }
        None => open_here(path, read_only),
    }
}

/// Whether the file at `path`, which a disk of ours has, could be opened anew. Waits for its server, for some
/// seconds.
///
/// # Errors
/// As of opening it.
pub fn look(path: &Path, read_only: bool) -> io::Result<()> {
    match broker() {
        Some(broker) => await_opener(broker, path, read_only, true).map(drop),
        None => look_here(path, read_only),
    }
}

/// The file at `path`: as it was opened before, once, or now.
pub(super) fn opened(path: &Path, read_only: bool) -> Opened {
    EARLY.take(&(path.to_owned(), read_only)).unwrap_or_else(|| open(path, read_only))
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
