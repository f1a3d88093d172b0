//! The program that is a holder and each other process of ours, where a holder's socket is found, and what a
//! daemon has to say before a holder listens to it.
//!
//! A holder answers processes of its own user only ([`super::is_ours`]). A VMM may run as that user, confined
//! so that it can open no file and trace no process, while calling a socket is still free to it (landlock
//! knows no rule for that before Linux 7.1). So a holder has a secret: 64 random bits in a file beside its
//! socket, which its user alone may read, made before the holder starts and removed at its end. The next
//! daemon, and a newer one, finds it there.

use std::ffi::OsStr;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use rustix::net::{socketpair, AddressFamily, SocketFlags, SocketType};
use rustix::process::{getrlimit, prlimit, Pid, Resource, Rlimit};

use crate::sandbox::open::{own_file, remove_own};

static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Names the program that is a holder when it is run with the one argument `hold`. Without it nothing is
/// held.
pub fn set_program(path: PathBuf) {
    // Said once, at the start of a daemon.
    let _ = PROGRAM.set(path);
}

/// Starts that program with these words and the standard input `input`, in a process group of its own if it
/// `leads` one: then what is typed at a terminal is not for it.
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

/// The path at which the holder of what belongs to the socket at `path` is found; `None`: nothing is held
/// here.
pub fn path_beside(path: &Path) -> Option<PathBuf> {
    PROGRAM.get()?;
    Some(with_suffix(path, ".hold"))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// The file of the holder whose socket is at `path`.
pub(super) fn secret_beside(path: &Path) -> PathBuf {
    with_suffix(path, ".secret")
}

/// Makes a new secret for the holder whose socket is at `path`.
///
/// # Errors
/// What is there is not ours alone, or what the system says.
pub(super) fn make_secret(path: &Path) -> io::Result<()> {
    // Its keys come from the system's random numbers, and its output tells nothing of them (SipHash).
    let secret = RandomState::new().build_hasher().finish();
    own_file(&secret_beside(path), 0o600)?.file.write_all_at(&secret.to_ne_bytes(), 0)
}

/// The secret of the holder whose socket is at `path`.
///
/// # Errors
/// There is none, what is there is not ours alone, or what the system says.
pub(super) fn read_secret(path: &Path) -> io::Result<u64> {
    let found = own_file(&secret_beside(path), 0o600)?;
    let mut bytes = [0; 8];
    match found.file.read_exact_at(&mut bytes, 0) {
        Ok(()) => Ok(u64::from_ne_bytes(bytes)),
        Err(_) => {
            found.remove();
            Err(io::ErrorKind::InvalidData.into())
        }
    }
}

/// Removes that secret.
pub(super) fn remove_secret(path: &Path) {
    // One that stays is replaced by the next holder's.
    let _ = remove_own(&secret_beside(path));
}

/// Lets `child`, a process of ours that passes descriptors on, own as many as there may be: the kernel holds
/// those that are under way, of all processes of its user, against this limit of a sender's.
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
