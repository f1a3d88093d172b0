//! The program that is a holder, and where its socket is found.

use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::OnceLock;

use rustix::process::{getrlimit, prlimit, Pid, Resource, Rlimit};

static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Names the program that is a holder when it is run with the one argument `hold`. Without it nothing is held.
pub fn set_program(path: PathBuf) {
    // Said once, at the start of a daemon.
    let _ = PROGRAM.set(path);
}

/// That program: it is other processes of ours, too.
pub(crate) fn program() -> Option<&'static Path> {
    PROGRAM.get().map(PathBuf::as_path)
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
pub(crate) fn raise(child: &Child) {
    let raise = |to: Option<u64>| {
        let limit = Rlimit { current: to, maximum: to };
        prlimit(Some(Pid::from_child(child)), Resource::Nofile, limit).is_ok()
    };
    let most = std::fs::read_to_string("/proc/sys/fs/nr_open").ok().and_then(|text| text.trim().parse().ok());
    if !most.is_some_and(|most| raise(Some(most))) {
        raise(getrlimit(Resource::Nofile).maximum);
    }
}
