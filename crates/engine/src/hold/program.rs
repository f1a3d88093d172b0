//! The program that is a holder and each other process of ours, and where a holder's socket is found.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use rustix::net::{socketpair, AddressFamily, SocketFlags, SocketType};
use rustix::process::{getrlimit, prlimit, Pid, Resource, Rlimit};

static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Names the program that is a holder when it is run with the one argument `hold`. Without it nothing is held.
pub fn set_program(path: PathBuf) {
    // Said once, at the start of a daemon.
    let _ = PROGRAM.set(path);
}

/// Starts that program with these words and the standard input `input`, in a process group of its own if it `leads` one: then
/// what is typed at a terminal is not for it.
pub(super) fn start(words: &[&OsStr], input: OwnedFd, leads: bool) -> io::Result<Child> {
    let program = PROGRAM.get().ok_or_else(|| io::Error::other("no program for it was named"))?;
    let mut command = Command::new(program);
    command.arg0("sidecore").args(words).env_clear().current_dir("/");
    command.stdin(Stdio::from(input)).stdout(Stdio::null()).stderr(Stdio::null());
    if leads {
        command.process_group(0);
    }
    let child = command.spawn()?;
    raise(&child);
    Ok(child)
}

/// Starts that program with this word, and the other end of what is returned as its standard input.
pub(crate) fn helper(word: &str) -> io::Result<(OwnedFd, Child)> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    Ok((ours, start(&[word.as_ref()], theirs, true)?))
}

/// The path at which the holder of what belongs to the socket at `path` is found; `None`: nothing is held here.
pub fn path_beside(path: &Path) -> Option<PathBuf> {
    PROGRAM.get()?;
    let mut name = path.as_os_str().to_owned();
    name.push(".hold");
    Some(name.into())
}

/// Lets `child`, a process of ours that passes descriptors on, own as many as there may be: the kernel holds those that are under
/// way, of all processes of its user, against this limit of a sender's.
fn raise(child: &Child) {
    let raise = |to: Option<u64>| {
        let limit = Rlimit { current: to, maximum: to };
        prlimit(Some(Pid::from_child(child)), Resource::Nofile, limit).is_ok()
    };
    let most = std::fs::read_to_string("/proc/sys/fs/nr_open").ok().and_then(|text| text.trim().parse().ok());
    if !most.is_some_and(|most| raise(Some(most))) {
        raise(getrlimit(Resource::Nofile).maximum);
    }
}
