//! Journals: what a port keeps on a file system while no daemon runs, in a folder beside the control socket.
//!
//! The folder is ours alone, so what lies in it is what we put there. A file is named as its port is; it goes
//! when the port is deleted, and what a daemon's start finds of ports that are not configured any more goes,
//! too.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::fstat;

use super::broker::{broker, have_done, obtain, Answer, Request};
use super::file::{own_file, remove_own, OwnFile};
use super::folder::{is_tight, make_folder, Folder};

static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// Says once where journals are: in the folder beside the control socket that has its name and ends in
/// `.journals`. Without it there are none but those with a path of their own.
pub fn set_journals(control_socket: &Path) {
    let _ = FOLDER.set(control_socket.with_extension("journals"));
}

/// Opens the journal of port `name`, or makes it. `None`: it is not set where journals are.
///
/// # Errors
/// As of [`own_file`](super::own_file), and where it happened.
pub fn journal(name: &str) -> Result<Option<JournalFile>, (PathBuf, io::Error)> {
    let Some(folder) = FOLDER.get() else { return Ok(None) };
    let path = folder.join(name);
    let (file, new) = match broker() {
        None => match journal_here(name)? {
            Some(own) => (own.file, own.new),
            None => return Ok(None),
        },
        Some(broker) => match broker.ask(&Request::Journal { name: name.to_owned() }, &[]) {
            Ok(Answer { number, fd: Some(fd), .. }) => (fd.into(), number != 0),
            Ok(_) => return Err((path, io::ErrorKind::InvalidData.into())),
            Err(refusal) => return Err((path, refusal.error)),
        },
    };
    Ok(Some(JournalFile { path, file, made: new.then(|| name.to_owned()) }))
}

/// Opens the operator's journal at `path`, or makes it.
///
/// # Errors
/// As of [`own_file`](super::own_file).
pub fn journal_at(path: &Path) -> io::Result<JournalFile> {
    let request = Request::JournalAt { path: std::path::absolute(path)? };
    let file = obtain(&request, &[], || Ok(own_file(path, 0o600)?.file.into()))?;
    Ok(JournalFile { path: path.to_owned(), file: file.into(), made: None })
}

/// A journal, open.
pub struct JournalFile {
    /// Where it is.
    pub path: PathBuf,
    /// The file.
    pub file: File,
    /// The port for which it was made just now.
    made: Option<String>,
}

impl JournalFile {
    /// It cannot be used: if it was made just now, it goes again.
    pub fn undo(self) {
        self.made.iter().for_each(|name| forget_journal(name));
    }
}

/// As `journal`, carried out by this process.
pub(crate) fn journal_here(name: &str) -> Result<Option<OwnFile>, (PathBuf, io::Error)> {
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
    own_file(&path, 0o600).map_err(|e| (path, e))
}

/// Removes the journal of port `name`, which is no more.
pub fn forget_journal(name: &str) {
    if let Err(e) = have_done(&Request::Forget { name: name.to_owned() }, &[], || forget_here(name)) {
        tracing::warn!(port = %name, "its journal stays: {e}");
    }
}

/// As `forget_journal`, carried out by this process.
pub(crate) fn forget_here(name: &str) -> io::Result<()> {
    FOLDER.get().map_or(Ok(()), |folder| remove_own(&folder.join(name)))
}

/// The name of the first journal behind `after`, in the order of names.
pub(crate) fn next_here(after: &str) -> Option<String> {
    next_in(FOLDER.get()?, after)
}

fn next_in(folder: &Path, after: &str) -> Option<String> {
    // No folder, no journals.
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.as_str() > after && !name.starts_with('.')).min()
}

/// Removes the journals of all ports but those named.
pub fn sweep_journals(names: &BTreeSet<&str>) {
    let mut last = String::new();
    loop {
        let next = match broker() {
            Some(broker) => {
                broker.ask(&Request::Next { after: last }, &[]).map(|answer| answer.text).unwrap_or_default()
            }
            None => next_here(&last).unwrap_or_default(),
        };
        if next.is_empty() {
            return;
        }
        if !names.contains(next.as_str()) {
            forget_journal(&next);
        }
        last = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::open::tests::Dir;
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
        let names = ["", "a", "b", "c"].map(|name| next_in(&folder, name));
        assert_eq!(names.map(Option::unwrap_or_default), ["a", "b", "c", ""]);
        assert_eq!(std::fs::read(dir.at("victim")).unwrap(), b"mine");
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(open_in(&folder, "b").unwrap_err().0, folder);
    }
}
