//! A folder for the sockets and logs of one run.

use crate::error::{Context, Result};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Once;
use std::time::Duration;

const PREFIX: &str = "sidecore-lab-";

/// A fresh folder below the system's temporary folder (short, because the path of a Unix socket is limited to
/// 108 bytes). It is removed when dropped, unless the thread is panicking, [`RunDir::keep`] says so or
/// `SIDECORE_LAB_KEEP` is set: then its logs stay to be read, for a day.
pub struct RunDir {
    path: PathBuf,
    keep: bool,
}

impl RunDir {
    /// Makes a folder whose name contains `name`.
    ///
    /// # Errors
    /// The temporary folder cannot be written.
    pub fn new(name: &str) -> Result<Self> {
        static SWEEP: Once = Once::new();
        SWEEP.call_once(sweep);
        let path = std::env::temp_dir().join(format!("{PREFIX}{}-{name}", unique()));
        std::fs::create_dir_all(&path).context(|| format!("making {}", path.display()))?;
        let mut dir = Self { path, keep: false };
        dir.keep(false);
        Ok(dir)
    }

    /// Where the folder is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of `name` in the folder, as text for a command line.
    pub fn join(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }

    /// Whether the folder stays after this value is dropped.
    pub fn keep(&mut self, keep: bool) {
        self.keep = keep || std::env::var_os("SIDECORE_LAB_KEEP").is_some();
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        if !self.keep && !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// Removes folders that were kept more than a day ago.
fn sweep() {
    let Ok(entries) = std::fs::read_dir(std::env::temp_dir()) else { return };
    for entry in entries.flatten() {
        let ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
        let age = entry.metadata().ok().and_then(|m| m.modified().ok()?.elapsed().ok());
        if ours && age.is_some_and(|age| age > Duration::from_secs(24 * 3600)) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Removes the folders of process `pid`, unless `SIDECORE_LAB_KEEP` is set.
pub(crate) fn remove_of(pid: &str) {
    let Ok(entries) = std::fs::read_dir(std::env::temp_dir()) else { return };
    let start = format!("{PREFIX}{pid}-");
    for entry in entries.flatten().filter(|_| std::env::var_os("SIDECORE_LAB_KEEP").is_none()) {
        if entry.file_name().to_string_lossy().starts_with(&start) {
            // Once more where a process that ends has removed a socket of its own meanwhile.
            let _ = std::fs::remove_dir_all(entry.path()).or_else(|_| std::fs::remove_dir_all(entry.path()));
        }
    }
}

/// A name that no other run on this machine has now: process id and a number.
pub(crate) fn unique() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The last `lines` lines of a file, for a report; empty if there is no such file.
pub(crate) fn tail(path: &Path, lines: usize) -> String {
    let bytes = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes).replace('\r', "");
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
