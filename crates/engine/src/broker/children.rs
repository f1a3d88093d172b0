//! Processes that the broker has started, and how many of those a silent server can hold that open disks'
//! files.
//!
//! Theory of operation. Descriptor helpers and holders end when their time has come. A process that opens a
//! file mostly ends at once. One that waits for a server gets some time, since a disk may have to spin up,
//! and is killed then; but a wait for a FUSE server that has read the question ends with the answer or with
//! the server, and not before. So a file whose opener is late gets no second one, and there are [`MOST`] in
//! all.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::process::{pidfd_open, Pid, PidfdFlags};

use crate::disk::opener::{PATIENCE, SILENT};

/// Most openers, and most descriptor helpers and holders.
pub(super) const MOST: usize = 64;
const MOST_OTHERS: usize = 4096;
/// How long an opener may take.
const LONGEST: Duration = Duration::from_secs(60);

struct Process {
    child: Child,
    /// Readable when it has ended.
    end: OwnedFd,
    /// What it opens; nothing: it is a descriptor helper or a holder.
    path: Option<PathBuf>,
    begun: Instant,
    killed: bool,
}

/// Those that there are.
#[derive(Default)]
pub(super) struct Children(Vec<Process>);

impl Children {
    /// Has `start` begin to open the file at `path`; what that gives.
    pub(super) fn open<T>(
        &mut self,
        path: PathBuf,
        start: impl FnOnce(&Path) -> io::Result<(T, Child)>,
    ) -> io::Result<T> {
        self.look();
        let late = |it: &Process| it.path.as_ref() == Some(&path) && it.begun.elapsed() >= PATIENCE;
        if self.0.iter().any(late) {
            return Err(io::Error::other(SILENT));
        }
        if self.0.iter().filter(|it| it.path.is_some()).count() >= MOST {
            return Err(io::Error::other(format!("{MOST} other files are being opened")));
        }
        let (way, child) = start(&path)?;
        self.adopt(child, Some(path))?;
        Ok(way)
    }

    /// Whether there is room for another descriptor helper or holder.
    pub(super) fn room(&self) -> io::Result<()> {
        match self.0.iter().filter(|it| it.path.is_none()).count() < MOST_OTHERS {
            true => Ok(()),
            false => {
                Err(io::Error::new(io::ErrorKind::InvalidInput, "the broker waits for no more processes"))
            }
        }
    }

    /// Waits for the end of `child` from now on, which opens `path`, or is a descriptor helper or a holder.
    pub(super) fn adopt(&mut self, child: Child, path: Option<PathBuf>) -> io::Result<()> {
        let end = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
        self.0.push(Process { child, end, path, begun: Instant::now(), killed: false });
        Ok(())
    }

    /// Each readable when one has ended.
    pub(super) fn ends(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(|process| process.end.as_fd())
    }

    /// Forgets those that have ended.
    pub(super) fn look(&mut self) {
        // One that cannot be waited for has been.
        self.0.retain_mut(|process| matches!(process.child.try_wait(), Ok(None)));
    }

    /// Kills openers that have had their time. How soon to do so again.
    pub(super) fn end_late(&mut self) -> Option<Duration> {
        let waiting = self.0.iter_mut().filter(|it| it.path.is_some() && !it.killed);
        let left = waiting.filter_map(|opener| {
            let left = LONGEST.saturating_sub(opener.begun.elapsed());
            opener.killed = left.is_zero();
            if opener.killed {
                // It may have ended by itself.
                let _ = opener.child.kill();
            }
            (!opener.killed).then_some(left)
        });
        left.min()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::process::Command;

    fn waiting(_: &Path) -> io::Result<((), Child)> {
        Ok(((), Command::new("sleep").arg("3600").spawn()?))
    }

    #[test]
    fn a_file_whose_opener_is_late_gets_no_second_one_until_that_has_ended() {
        let mut openers = Children::default();
        openers.open("/a".into(), waiting).unwrap();
        openers.open("/a".into(), waiting).unwrap();
        let late = Instant::now().checked_sub(PATIENCE).unwrap();
        openers.0[0].begun = late;
        assert_eq!(openers.open("/a".into(), waiting).unwrap_err().to_string(), SILENT);
        openers.open("/b".into(), waiting).unwrap();
        assert!(openers.end_late().is_some());
        // All are killed when they have had their time, and forgotten when they have ended.
        let begun = Instant::now().checked_sub(LONGEST).unwrap();
        openers.0.iter_mut().for_each(|opener| opener.begun = begun);
        assert!(openers.end_late().is_none());
        for opener in &mut openers.0 {
            opener.child.wait().unwrap();
        }
        openers.open("/a".into(), waiting).unwrap();
        assert_eq!(openers.0.len(), 1);
        openers.0[0].child.kill().unwrap();
        openers.0[0].child.wait().unwrap();
    }

    #[test]
    fn there_are_so_many_and_no_more() {
        let mut openers = Children::default();
        for number in 0..MOST {
            openers.open(format!("/{number}").into(), waiting).unwrap();
        }
        assert!(openers.open("/more".into(), waiting).is_err());
        for opener in &mut openers.0 {
            opener.child.kill().unwrap();
            opener.child.wait().unwrap();
        }
        openers.open("/more".into(), |_| Ok(((), Command::new("true").spawn()?))).unwrap();
    }
}
