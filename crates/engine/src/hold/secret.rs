//! What a daemon has to say before a holder listens to it.
//!
//! A holder answers processes of its own user only ([`super::is_ours`]). A VMM may run as that user, confined so that it can
//! open no file and trace no process, while calling a socket is still free to it (landlock knows no rule for that before
//! Linux 7.1). So a holder has a secret: 64 random bits in a file beside its socket, which its user alone may read, made
//! before the holder starts and removed at its end. The next daemon, and a newer one, finds it there.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::open::{own_file, remove_own};

const BYTES: usize = 8;

/// The file of the holder whose socket is at `path`.
pub(super) fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".secret");
    name.into()
}

/// Makes a new secret for the holder whose socket is at `path`.
///
/// # Errors
/// What is there is not ours alone, or what the system says.
pub(super) fn make(path: &Path) -> io::Result<()> {
    // Its keys come from the system's random numbers, and its output tells nothing of them (SipHash).
    let secret = RandomState::new().build_hasher().finish();
    own_file(&beside(path), 0o600)?.file.write_all_at(&secret.to_ne_bytes(), 0)
}

/// The secret of the holder whose socket is at `path`.
///
/// # Errors
/// There is none, what is there is not ours alone, or what the system says.
pub(super) fn read(path: &Path) -> io::Result<u64> {
    let found = own_file(&beside(path), 0o600)?;
    let mut bytes = [0; BYTES];
    match found.file.read_exact_at(&mut bytes, 0) {
        Ok(()) => Ok(u64::from_ne_bytes(bytes)),
        Err(_) => {
            found.remove();
            Err(io::ErrorKind::InvalidData.into())
        }
    }
}

/// Removes it.
pub(super) fn remove(path: &Path) {
    // One that stays is replaced by the next holder's.
    let _ = remove_own(&beside(path));
}
