//! Files that are opened before their disks are made: those of several disks at the same time, and under no lock.
//!
//! Theory of operation. The server of a file may take its time. Ports are started one after the other, while nothing
//! else can be asked or changed; so before that the files of all new disks are opened side by side, and each disk finds
//! its own there, or why it has none. What no disk has asked for is closed with the [`OpenedFiles`].

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::nature::Nature;
use super::open::{look_here, open_here};
use super::opener;
use crate::open::broker::broker;

/// A path, and whether it is only to be read.
type Wanted = (PathBuf, bool);
type Result = io::Result<(File, Nature)>;

/// Most files that are opened at a time.
const AT_A_TIME: usize = 32;

static EARLY: Mutex<BTreeMap<Wanted, Result>> = Mutex::new(BTreeMap::new());

fn early() -> MutexGuard<'static, BTreeMap<Wanted, Result>> {
    // Each entry is whole.
    EARLY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Files that were opened, for as long as this lives.
pub struct OpenedFiles(Vec<Wanted>);

impl OpenedFiles {
    /// Opens `files`, each to be read only or not.
    pub fn at(files: Vec<Wanted>) -> OpenedFiles {
        let left = Mutex::new(files.iter());
        let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
        let work = || {
            while let Some(wanted) = next() {
                let opened = open(&wanted.0, wanted.1);
                early().insert(wanted.clone(), opened);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..files.len().min(AT_A_TIME) {
                // Without a thread the others, and this one, do its work.
                let _ = std::thread::Builder::new().name("open".to_owned()).spawn_scoped(scope, work);
            }
            work();
        });
        OpenedFiles(files)
    }
}

impl Drop for OpenedFiles {
    fn drop(&mut self) {
        let left: Vec<_> = self.0.iter().filter_map(|wanted| early().remove(wanted)).collect();
        // Under no lock: closing a file may wait for its server, too.
        drop(left);
    }
}

/// Opens what is at `path` as a disk, to read, or to write, too. The broker has it done, if there is one.
fn open(path: &Path, read_only: bool) -> Result {
    match broker() {
        Some(broker) => opener::ask(broker, &std::path::absolute(path)?, read_only),
        None => open_here(path, read_only),
    }
}

/// Whether the file at `path`, which a disk of ours has, could be opened anew. Waits for its server, for some seconds.
///
/// # Errors
/// As of opening it.
pub fn look(path: &Path, read_only: bool) -> io::Result<()> {
    match broker() {
        Some(broker) => opener::look(broker, &std::path::absolute(path)?, read_only),
        None => look_here(path, read_only),
    }
}

/// The file at `path`: as it was opened before, once, or now.
pub(super) fn take(path: &Path, read_only: bool) -> Result {
    let opened = early().remove(&(path.to_owned(), read_only));
    opened.unwrap_or_else(|| open(path, read_only))
}
