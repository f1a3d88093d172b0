//! Holders that were found before a port asked: those of several ports at the same time, and under no lock.
//!
//! Theory of operation. A caller of a holder waits for its answers, ten seconds at most. Ports are started one after
//! the other, while nothing else can be asked or changed; so before that all holders that they will ask for are looked
//! for side by side, and each port finds there what its holder said. What no port has asked for is dropped with the
//! [`Sought`]: its holder goes on waiting for a daemon.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::client::{Found, HoldError, Holder};

type Result = std::result::Result<Option<(Holder, Found)>, HoldError>;

static EARLY: Mutex<BTreeMap<PathBuf, Result>> = Mutex::new(BTreeMap::new());

fn early() -> MutexGuard<'static, BTreeMap<PathBuf, Result>> {
    // Each entry is whole.
    EARLY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Paths at which holders were looked for, for as long as this lives.
pub struct Sought(Vec<PathBuf>);

impl Sought {
    /// Looks for the holders at `paths`, for all of them at the same time.
    pub fn at(paths: Vec<PathBuf>) -> Sought {
        std::thread::scope(|scope| {
            for path in &paths {
                let seek = || {
                    let found = Holder::find_now(path);
                    early().insert(path.clone(), found);
                };
                // Without a thread its port looks by itself.
                let _ = std::thread::Builder::new().name("seek".to_owned()).spawn_scoped(scope, seek);
            }
        });
        Sought(paths)
    }
}

impl Drop for Sought {
    fn drop(&mut self) {
        self.0.iter().for_each(|path| drop(early().remove(path)));
    }
}

impl Holder {
    /// The holder at `path` and what it has, if there is one: as it was found before, once, or now.
    ///
    /// # Errors
    /// There is one, but it cannot be used.
    pub fn find(path: &Path) -> Result {
        let found = early().remove(path);
        found.unwrap_or_else(|| Holder::find_now(path))
    }
}
