//! Files that are opened before their disks are made (`open::early`): their servers may take their time.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::nature::Nature;
use super::open::{look_here, open_here};
use super::opener;
use crate::open::broker::broker;
use crate::open::early::{Early, Fetched};

/// A path, and whether it is only to be read.
type Wanted = (PathBuf, bool);
type Result = io::Result<(File, Nature)>;

/// Files that were opened, for as long as this lives.
pub(crate) type OpenedFiles = Fetched<Wanted, Result>;

/// Most files that are opened at a time.
const AT_A_TIME: usize = 32;

static EARLY: Early<Wanted, Result> = Early::new();

/// Opens `files`, each to be read only or not.
pub(crate) fn open_early(files: Vec<Wanted>) -> OpenedFiles {
    EARLY.fetch("open", AT_A_TIME, files, |(path, read_only)| open(path, *read_only))
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
    EARLY.take(&(path.to_owned(), read_only)).unwrap_or_else(|| open(path, read_only))
}
