//! The program that is a holder, and where its socket is found.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

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
