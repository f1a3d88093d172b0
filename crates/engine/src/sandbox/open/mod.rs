//! Everything that the daemon makes or opens by name: folders, sockets, files of its own.
//!
//! Theory of operation. A user who may write in a folder can change the meaning of its names between two
//! system calls. So a name is looked up once, to a descriptor, and from then on only the descriptor is used:
//!
//! * [`Folder`]: a path is walked part by part. A symbolic link is followed only in a folder in which only
//!   root and the daemon's user may write. The folder that is reached is held open, so later renames above it
//!   change nothing.
//! * [`Spot`]: a name in such a folder. Sockets are made there, never in place of anything; mode and owner
//!   are set on the socket's own file, by its descriptor ([`socket`]). A removal removes the file that was
//!   meant, or none.
//! * [`own_file`]: a regular file that is ours alone, or an error; never what a link leads to.
//! * [`journal`]: what ports keep while no daemon runs, one such file for each, in a folder of the daemon's.
//!
//! A process that has given up its privileges asks its broker instead ([`broker`]). Each function here has a
//! twin whose name ends in `_here`, which does the work. The broker calls that, and so does a process without
//! a broker.

pub mod accounts;
pub mod broker;
pub(crate) mod early;
mod file;
mod folder;
mod journal;
pub(crate) mod passing;
pub mod reserve;
pub mod socket;

pub(crate) use file::disk_file;
pub use file::{allocate, own_file, remove_own, OwnFile};
pub use folder::{is_tight, make_folder, Folder, Spot};
pub(crate) use journal::{forget_here, journal_here, next_here};
pub use journal::{forget_journal, journal, journal_at, set_journals, sweep_journals, JournalFile};

/// Reads a configuration file: that of the daemon, if a broker does it.
///
/// # Errors
/// What the system says.
pub fn read_config(path: &std::path::Path) -> std::io::Result<String> {
    read(broker::obtain(&broker::Request::Config, &[], || open_text(path)))
}

fn open_text(path: &std::path::Path) -> std::io::Result<std::os::fd::OwnedFd> {
    Ok(std::fs::File::open(path)?.into())
}

fn read(file: std::io::Result<std::os::fd::OwnedFd>) -> std::io::Result<String> {
    std::io::read_to_string(std::fs::File::from(file?))
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::PathBuf;

    /// A folder that goes away, in which only we may write.
    pub(crate) struct Dir(PathBuf);

    impl Dir {
        pub(crate) fn new(name: &str) -> Dir {
            let path = std::env::temp_dir().join(format!("sidecore-open-{name}-{}", std::process::id()));
            std::fs::create_dir(&path).unwrap();
            Dir(path)
        }

        pub(crate) fn at(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}
