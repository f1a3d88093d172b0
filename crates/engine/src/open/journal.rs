//! Journals: what a port keeps on a file system while no daemon runs, in a folder beside the control socket.
//!
//! The folder is ours alone, so what lies in it is what we put there. A file is named as its port is; it goes when the
//! port is deleted, and what a daemon's start finds of ports that are not configured any more goes, too.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::fstat;

use super::{is_tight, make_folder, remove_own, Folder, OwnFile};

static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// Says once where journals are: in the folder beside the control socket that has its name and ends in `.journals`.
/// Without it there are none but those with a path of their own.
pub fn set_journals(control_socket: &Path) {
    let _ = FOLDER.set(control_socket.with_extension("journals"));
}

/// Opens the journal of port `name`, or makes it. `None`: nobody has said where journals are.
///
/// # Errors
/// As of [`own_file`](super::own_file), and where it happened.
pub fn journal(name: &str) -> Result<Option<OwnFile>, (PathBuf, io::Error)> {
    FOLDER.get().map_or(Ok(None), |folder| open_in(folder, name).map(Some))
}

fn open_in(folder: &Path, name: &str) -> Result<OwnFile, (PathBuf, io::Error)> {
    let vetted = make_folder(folder, 0o700).and_then(|()| {
        let stat = fstat(Folder::open(folder)?)?;
        match is_tight(&stat) {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::PermissionDenied, "others may write in this folder")),
        }
    });
    vetted.map_err(|e| (folder.to_owned(), e))?;
    let path = folder.join(name);
    super::own_file(&path, 0o600).map_err(|e| (path, e))
}

/// Removes the journal of port `name`, which is no more.
pub fn forget_journal(name: &str) {
    if let Some(path) = FOLDER.get().map(|folder| folder.join(name)) {
        if let Err(e) = remove_own(&path) {
            tracing::warn!(port = %name, "its journal {} stays: {e}", path.display());
        }
    }
}

/// Removes the journals of all ports but those named.
pub fn sweep_journals(names: &BTreeSet<&str>) {
    if let Some(folder) = FOLDER.get() {
        sweep_in(folder, names);
    }
}

fn sweep_in(folder: &Path, names: &BTreeSet<&str>) {
    // No folder, no journals.
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let kept = entry.file_name().to_str().is_some_and(|name| names.contains(name));
        if !kept {
            // Whatever is not a file of ours was not put there by us.
            let _ = remove_own(&entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open::tests::Dir;
    use std::os::unix::fs::{symlink, PermissionsExt};

    #[test]
    fn journals_are_in_a_folder_of_our_own() {
        let dir = Dir::new("journals");
        let folder = dir.at("x.journals");
        assert!(open_in(&folder, "a").unwrap().new);
        assert!(!open_in(&folder, "a").unwrap().new);
        assert!(open_in(&folder, "b").unwrap().new);
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&folder.join("a"))), (0o700, 0o600));
        std::fs::write(dir.at("victim"), "mine").unwrap();
        symlink(dir.at("victim"), folder.join("c")).unwrap();
        assert_eq!(open_in(&folder, "c").unwrap_err().1.kind(), io::ErrorKind::PermissionDenied);
        sweep_in(&folder, &["b"].into());
        assert!(!folder.join("a").exists() && folder.join("b").exists());
        assert_eq!(std::fs::read(dir.at("victim")).unwrap(), b"mine");
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(open_in(&folder, "b").unwrap_err().0, folder);
    }
}
