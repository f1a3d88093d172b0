//! What was done for reservations, step by step, and how each step is undone.
//!
//! Theory of operation. A step is written to the record before it is carried out, and undoing a step that was
//! not carried out changes nothing. So whatever is killed, the daemon, this command or the VMM, the record
//! has everything that must be undone. A record is a file in the runtime directory of the user who reserved.
//! Undoing follows what the file says, so the folder has to be that user's own.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{flock, FlockOperation};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use sidecore_engine::mem::SchedulingPolicy;

use super::threads::{Thread, ThreadId};
use crate::place::{set_affinity, Cpus};

const PROC: &str = "/proc";

/// One change, and the state before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// A control group is made.
    Group { folder: PathBuf },
    /// A setting of a control group that we made, with which it goes.
    Setting { file: PathBuf, to: String },
    /// Processors that a control group's file did not have; other reservations add theirs.
    Cpus { file: PathBuf, more: Cpus },
    /// A controller that a control group did not hand on to those below it.
    HandOn { file: PathBuf, controller: String },
    /// A thread moves; both are files that take its number.
    Move { thread: ThreadId, to: PathBuf, from: PathBuf },
    /// A thread is pinned.
    Pin { thread: ThreadId, to: Cpus, from: Cpus },
    /// A thread is scheduled otherwise.
    Policy { thread: ThreadId, to: SchedulingPolicy, from: SchedulingPolicy },
}

impl Step {
    fn carry_out(&self) -> io::Result<()> {
        match self {
            Step::Group { folder } => fs::create_dir(folder),
            Step::Setting { file, to } => fs::write(file, to),
            Step::Cpus { file, more } => change(file, |cpus| cpus.extend(&more.0)),
            Step::HandOn { file, controller } => fs::write(file, format!("+{controller}")),
            Step::Move { thread, to, .. } => fs::write(to, thread.thread.to_string()),
            Step::Pin { thread, to, .. } => set_affinity(thread.thread, &to.0),
            Step::Policy { thread, to, .. } => to.apply(thread.thread),
        }
    }

    fn undo(&self) -> io::Result<()> {
        if let Step::Move { thread, .. } | Step::Pin { thread, .. } | Step::Policy { thread, .. } = self {
            if !thread.is_there(Path::new(PROC)) {
                return Ok(());
            }
        }
        let done = match self {
            Step::Group { folder } => fs::remove_dir(folder),
            Step::Setting { .. } => Ok(()),
            Step::Cpus { file, more } => change(file, |cpus| cpus.retain(|cpu| !more.0.contains(cpu))),
            Step::HandOn { file, controller } => fs::write(file, format!("-{controller}")),
            Step::Move { thread, from, .. } => fs::write(from, thread.thread.to_string()),
            Step::Pin { thread, from, .. } => set_affinity(thread.thread, &from.0),
            Step::Policy { thread, from, .. } => from.apply(thread.thread),
        };
        match done.as_ref().map_err(io::Error::raw_os_error) {
            // The group has gone, or the thread.
            Err(Some(libc::ENOENT | libc::ESRCH)) => Ok(()),
            // Others use the controller, too, by now.
            Err(Some(libc::EBUSY)) if matches!(self, Step::HandOn { .. }) => Ok(()),
            _ => done,
        }
    }

    /// Whether what was done for a thread still is so.
    fn holds(&self) -> bool {
        match self {
            Step::Pin { thread, to, .. } => thread.allowed(Path::new(PROC)).as_ref() == Some(to),
            Step::Policy { thread, to, .. } => {
                SchedulingPolicy::of(thread.thread).is_ok_and(|now| now == *to)
            }
            _ => true,
        }
    }
}

/// Changes the processors that a control group's file lists.
fn change(file: &Path, change: impl FnOnce(&mut BTreeSet<usize>)) -> io::Result<()> {
    let mut cpus = Cpus::read(fs::read_to_string(file)?.trim()).unwrap_or_default();
    change(&mut cpus.0);
    // Nothing at all would not be taken for a list.
    fs::write(file, format!("{cpus}\n"))
}

/// What a thread has got.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    #[serde(flatten)]
    pub thread: Thread,
    /// `none`: nothing was granted.
    pub mechanism: String,
    /// Whether it is what was asked for.
    pub enough: bool,
    /// Millionths of a processor, where it can be told.
    pub share_ppm: Option<u64>,
    /// What that means.
    pub meaning: String,
    /// The processors that it may run on.
    pub cpus: Cpus,
    /// Better mechanisms, each with the reason why it is not that.
    pub refused: Vec<String>,
}

/// What one command reserved.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Reservation {
    /// The daemon's control socket, and the name that was given.
    pub socket: PathBuf,
    pub name: String,
    pub ports: Vec<String>,
    /// The VMM's process, by its first thread.
    pub process: ThreadId,
    /// It has ended; `--undo`, or the next `reserve`, removes what is left.
    pub ended: bool,
    /// A thread has ended, or somebody has changed what was reserved for it.
    pub changed: bool,
    pub threads: Vec<Grant>,
    pub steps: Vec<Step>,
    #[serde(skip)]
    pub file: PathBuf,
}

impl Reservation {
    /// Writes `step` down, and carries it out.
    pub fn take(&mut self, step: Step) -> io::Result<()> {
        self.steps.push(step.clone());
        self.save()?;
        step.carry_out().inspect_err(|_| drop(self.steps.pop()))
    }

    /// Undoes all steps but the first `kept`; an error names those that stay.
    pub fn undo_to(&mut self, kept: usize) -> Result<(), String> {
        let (mut left, mut failed) = (Vec::new(), String::new());
        for step in self.steps.split_off(kept).into_iter().rev() {
            if let Err(e) = step.undo() {
                failed += &format!("; cannot undo {step:?}: {e}");
                left.push(step);
            }
        }
        self.steps.extend(left.into_iter().rev());
        self.save().map_err(|e| format!("{}: {e}", self.file.display()))?;
        match failed.strip_prefix("; ") {
            Some(failed) => Err(failed.to_owned()),
            None => Ok(()),
        }
    }

    /// Undoes all of it but what `others` still need, which is theirs to undo from now on.
    pub fn undo(&mut self, others: &mut [Reservation]) -> Result<(), String> {
        let needs = |other: &Reservation, file: &Path| {
            let below = |folder: &Path| file.parent().is_some_and(|it| folder.starts_with(it));
            other.steps.iter().any(|step| matches!(step, Step::Group { folder } if below(folder)))
        };
        for (at, step) in self.steps.clone().into_iter().enumerate().rev() {
            let Step::HandOn { file, .. } = &step else { continue };
            if let Some(heir) = others.iter_mut().find(|other| needs(other, file)) {
                heir.steps.insert(0, step);
                heir.save().map_err(|e| format!("{}: {e}", heir.file.display()))?;
                self.steps.remove(at);
            }
        }
        self.undo_to(0)
    }

    /// Finds out what has become of it.
    pub fn look(&mut self) {
        let there = |thread: &ThreadId| thread.is_there(Path::new(PROC));
        self.ended = !there(&self.process);
        self.changed =
            !self.threads.iter().all(|grant| there(&grant.thread.id)) || !self.steps.iter().all(Step::holds);
    }

    /// Writes the record anew; one without steps is deleted.
    pub fn save(&self) -> io::Result<()> {
        if self.steps.is_empty() {
            return match fs::remove_file(&self.file) {
                Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
                _ => Ok(()),
            };
        }
        let new = self.file.with_extension("new");
        fs::write(&new, serde_json::to_vec(self)?)?;
        fs::rename(new, &self.file)
    }
}

/// The folder of records; this command alone uses it while it has it.
pub struct Records {
    folder: PathBuf,
    _lock: File,
}

impl Records {
    pub fn open() -> Result<Records, String> {
        let runtime = match std::env::var_os("XDG_RUNTIME_DIR").filter(|value| !value.is_empty()) {
            _ if geteuid().is_root() => PathBuf::from("/run"),
            Some(runtime) => PathBuf::from(runtime),
            None => {
                return Err("XDG_RUNTIME_DIR is not set; what --undo undoes is written down there".to_owned())
            }
        };
        // Not the daemon's folder: its user may be another one, and root is to undo nothing that others
        // wrote.
        let folder = runtime.join("sidecore-reservations");
        let open = || {
            match DirBuilder::new().mode(0o700).create(&folder) {
                Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e),
                _ => {}
            }
            let meta = fs::symlink_metadata(&folder)?;
            if !meta.is_dir() || meta.uid() != geteuid().as_raw() || meta.mode() & 0o077 != 0 {
                return Err(io::Error::other("it is not a folder that only its user may use; remove it"));
            }
            let lock = File::open(&folder)?;
            flock(&lock, FlockOperation::LockExclusive)?;
            Ok(lock)
        };
        let _lock = open().map_err(|e| format!("{}: {e}", folder.display()))?;
        Ok(Records { folder, _lock })
    }

    /// All reservations.
    pub fn all(&self) -> Result<Vec<Reservation>, String> {
        let read = |file: &Path| -> io::Result<Reservation> {
            let mut reservation: Reservation = serde_json::from_slice(&fs::read(file)?)?;
            reservation.file = file.to_owned();
            reservation.look();
            Ok(reservation)
        };
        let entries = fs::read_dir(&self.folder).map_err(|e| format!("{}: {e}", self.folder.display()))?;
        let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
        files.sort();
        files.iter().map(|file| read(file).map_err(|e| format!("{}: {e}", file.display()))).collect()
    }

    /// The file of a new reservation for a process.
    pub fn file(&self, process: &ThreadId) -> PathBuf {
        let file = |number: u32| self.folder.join(format!("{}-{number}.json", process.process));
        (0..).map(file).find(|file| !file.exists()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reserve::fake_tests::Fake;

    /// The calling thread, as if it were a vCPU's.
    fn grant() -> Grant {
        let [process, thread] = [rustix::process::getpid(), rustix::thread::gettid()]
            .map(|pid| u32::try_from(pid.as_raw_nonzero().get()).unwrap());
        let id = ThreadId::find(Path::new(PROC), process, thread).unwrap();
        let thread = Thread { id, title: "vCPU 0".to_owned(), vcpu: Some(0) };
        Grant {
            thread,
            mechanism: "none".to_owned(),
            enough: false,
            share_ppm: None,
            meaning: String::new(),
            cpus: Cpus::default(),
            refused: vec![],
        }
    }

    #[test]
    fn what_was_done_is_undone_in_reverse_and_survives_in_its_file() {
        let fake = Fake::new();
        let mut reservation = fake.reservation();
        let grant = grant();
        let thread = grant.thread.id;
        let before = thread.allowed(Path::new(PROC)).unwrap();
        let one = Cpus(before.0.iter().take(1).copied().collect());
        reservation.threads.push(grant);
        fake.write("top", "7\n");
        for more in [[2], [3]] {
            reservation.take(Step::Cpus { file: fake.path("top"), more: more.into() }).unwrap();
        }
        reservation.take(Step::Group { folder: fake.path("group") }).unwrap();
        reservation.take(Step::Pin { thread, to: one.clone(), from: before.clone() }).unwrap();
        assert_eq!(thread.allowed(Path::new(PROC)), Some(one));
        reservation.look();
        assert!(reservation.ended && !reservation.changed);
        // What was not carried out is not in the way.
        let kept = reservation.steps.len();
        assert!(reservation.take(Step::Group { folder: fake.path("no/group") }).is_err());
        assert_eq!(reservation.steps.len(), kept);

        // Another process takes the file up.
        let text = fs::read(&reservation.file).unwrap();
        let file = reservation.file.clone();
        let mut reservation = Reservation { file, ..serde_json::from_slice(&text).unwrap() };
        reservation.undo_to(kept).unwrap();
        assert_eq!((reservation.steps.len(), fake.read("top").trim()), (kept, "2-3,7"));
        reservation.undo_to(0).unwrap();
        assert_eq!(fake.read("top"), "7\n");
        assert_eq!(thread.allowed(Path::new(PROC)), Some(before));
        assert!(!fake.path("group").exists() && !reservation.file.exists());
    }

    /// Two VMs in one group: what the first reserved there goes, what the second needs stays until that is
    /// undone, too.
    #[test]
    fn what_another_reservation_needs_is_undone_with_that() {
        let fake = Fake::new();
        fake.write("vm/cpuset.cpus.exclusive", "7\n");
        fake.write("vm/cgroup.subtree_control", "");
        let mut all = [("a", 2), ("b", 3)].map(|(name, cpu)| {
            let file = fake.path(&format!("{name}.json"));
            let mut one = Reservation { file, ..fake.reservation() };
            if name == "a" {
                let file = fake.path("vm/cgroup.subtree_control");
                one.take(Step::HandOn { file, controller: "cpuset".to_owned() }).unwrap();
            }
            one.take(Step::Cpus { file: fake.path("vm/cpuset.cpus.exclusive"), more: [cpu].into() }).unwrap();
            one.take(Step::Group { folder: fake.path(&format!("vm/{name}")) }).unwrap();
            one
        });
        let [a, b] = &mut all;
        assert_eq!(fake.read("vm/cpuset.cpus.exclusive").trim(), "2-3,7");
        a.undo(std::slice::from_mut(b)).unwrap();
        let now = |file: &str| fake.read(&format!("vm/{file}")).trim().to_owned();
        assert_eq!(
            (now("cpuset.cpus.exclusive"), now("cgroup.subtree_control")),
            ("3,7".into(), "+cpuset".into())
        );
        let kept: Reservation = serde_json::from_slice(&fs::read(&b.file).unwrap()).unwrap();
        assert_eq!(kept.steps, b.steps, "another process undoes it");
        b.undo(&mut []).unwrap();
        assert_eq!(
            (now("cpuset.cpus.exclusive"), now("cgroup.subtree_control")),
            ("7".into(), "-cpuset".into())
        );
        assert!(!a.file.exists() && !b.file.exists());
    }

    #[test]
    fn a_number_that_was_reused_is_not_touched_and_what_stays_is_named() {
        let fake = Fake::new();
        let mut reservation = fake.reservation();
        let mut grant = grant();
        grant.thread.id.start += 1;
        let thread = grant.thread.id;
        reservation.threads.push(grant);
        let before = thread.allowed(Path::new(PROC)).unwrap();
        let none = Cpus::default();
        reservation.steps.push(Step::Pin { thread, to: before.clone(), from: none });
        reservation.steps.push(Step::Move { thread, to: fake.path("a"), from: fake.path("b") });
        fake.write("full/group/has-a-member", "");
        reservation.steps.push(Step::Group { folder: fake.path("full/group") });
        reservation.look();
        assert!(reservation.ended && reservation.changed);
        let error = reservation.undo_to(0).unwrap_err();
        assert!(error.starts_with("cannot undo Group") && error.contains("full/group"), "{error}");
        assert!(!fake.path("b").exists());
        assert_eq!((reservation.steps.len(), reservation.file.exists()), (1, true));
        fs::remove_file(fake.path("full/group/has-a-member")).unwrap();
        reservation.undo_to(0).unwrap();
        assert!(!reservation.file.exists());
    }
}
