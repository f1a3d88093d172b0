//! What was done for reservations, step by step, and how each step is undone.
//!
//! Theory of operation. A step is written to the record before it is carried out, and undoing a step that was not carried out
//! changes nothing. So whatever is killed, the daemon, this command or the VMM, the record has everything that must be undone.
//! A record is a file in the runtime directory of the user who reserved. Undoing follows what the file says, so the
//! folder has to be that user's own.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
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
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// A control group is made.
    Group { folder: PathBuf },
    /// A control group's setting; what is not known to have been before goes with its group.
    Setting { file: PathBuf, value: String, before: Option<String> },
    /// A thread moves; both are files that take its number.
    Move { thread: ThreadId, to: PathBuf, from: PathBuf },
    /// A thread is pinned.
    Pin { thread: ThreadId, to: Cpus, from: Cpus },
    /// A thread is scheduled otherwise.
    Policy { thread: ThreadId, to: SchedulingPolicy, from: SchedulingPolicy },
}

impl Step {
    /// The thread that it is about.
    pub fn thread(&self) -> Option<&ThreadId> {
        match self {
            Step::Group { .. } | Step::Setting { .. } => None,
            Step::Move { thread, .. } | Step::Pin { thread, .. } | Step::Policy { thread, .. } => {
                Some(thread)
            }
        }
    }

    fn carry_out(&self) -> io::Result<()> {
        match self {
            Step::Group { folder } => fs::create_dir(folder),
            Step::Setting { file, value, .. } => fs::write(file, value),
            Step::Move { thread, to, .. } => fs::write(to, thread.thread.to_string()),
            Step::Pin { thread, to, .. } => set_affinity(thread.thread, &to.0),
            Step::Policy { thread, to, .. } => to.apply(thread.thread),
        }
    }

    fn undo(&self) -> io::Result<()> {
        if self.thread().is_some_and(|thread| !thread.is_there(Path::new(PROC))) {
            return Ok(());
        }
        let done = match self {
            Step::Group { folder } => fs::remove_dir(folder),
            Step::Setting { before: None, .. } => Ok(()),
            Step::Setting { file, before: Some(before), .. } => match fs::write(file, before) {
                // A controller that somebody else uses by now.
                Err(e) if e.kind() == ErrorKind::ResourceBusy => Ok(()),
                done => done,
            },
            Step::Move { thread, from, .. } => fs::write(from, thread.thread.to_string()),
            Step::Pin { thread, from, .. } => set_affinity(thread.thread, &from.0),
            Step::Policy { thread, from, .. } => from.apply(thread.thread),
        };
        match done {
            // A group that has gone, or a thread.
            Err(e) if e.kind() == ErrorKind::NotFound || e.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            done => done,
        }
    }

    /// What cannot be undone, for people.
    fn title(&self) -> String {
        match self {
            Step::Group { folder: path } | Step::Setting { file: path, .. } => path.display().to_string(),
            Step::Move { thread, from, .. } => format!("thread {} to {}", thread.thread, from.display()),
            Step::Pin { thread, .. } => format!("processors of thread {}", thread.thread),
            Step::Policy { thread, .. } => format!("policy of thread {}", thread.thread),
        }
    }

    /// Whether it still is as it was made.
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

/// Ways to give a thread time of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mechanism {
    Deadline,
    Fifo,
    Rr,
    #[serde(rename = "cpu.max")]
    CpuMax,
    Affinity,
}

/// Why a thread has not got a better one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    pub mechanism: Mechanism,
    pub reason: String,
}

/// What a thread has got.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    #[serde(flatten)]
    pub thread: Thread,
    /// Absent: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mechanism: Option<Mechanism>,
    /// Millionths of a processor; absent: what others leave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_ppm: Option<u64>,
    /// The processors that it may run on.
    pub cpus: Cpus,
    pub refused: Vec<Refusal>,
}

/// What one command reserved.
#[derive(Debug, Serialize, Deserialize)]
pub struct Reservation {
    /// The daemon's control socket, and the name that was given.
    pub socket: PathBuf,
    pub name: String,
    pub ports: Vec<String>,
    /// What was asked for, as on the command line.
    pub asked: String,
    /// The VMM's process, by its first thread.
    pub process: ThreadId,
    pub threads: Vec<Grant>,
    pub steps: Vec<Step>,
    #[serde(skip)]
    pub file: PathBuf,
}

impl Reservation {
    /// Writes `step` down, and carries it out.
    pub fn take(&mut self, step: Step) -> io::Result<()> {
        self.steps.push(step);
        self.save()?;
        let done = self.steps.last().map_or(Ok(()), Step::carry_out);
        if done.is_err() {
            self.steps.pop();
        }
        done
    }

    /// Undoes all steps but the first `kept`; errors name those that stay.
    pub fn undo_to(&mut self, kept: usize) -> Result<(), String> {
        let steps = self.steps.split_off(kept.min(self.steps.len()));
        self.undo(steps)
    }

    /// Undoes what was done for threads that `ends` names, and what was done for all if none is left.
    pub fn release(&mut self, ends: impl Fn(&ThreadId) -> bool) -> Result<(), String> {
        let all = std::mem::take(&mut self.steps);
        self.threads.retain(|grant| !ends(&grant.thread.id));
        let last = self.threads.is_empty();
        let (gone, kept) = all.into_iter().partition(|step| step.thread().map_or(last, &ends));
        self.steps = kept;
        let done = self.undo(gone);
        self.save().map_err(|e| format!("{}: {e}", self.file.display()))?;
        done
    }

    fn undo(&mut self, steps: Vec<Step>) -> Result<(), String> {
        let (mut failed, mut left) = (Vec::new(), Vec::new());
        for step in steps.into_iter().rev() {
            if let Err(e) = step.undo() {
                failed.push(format!("{}: {e}", step.title()));
                left.push(step);
            }
        }
        self.steps.extend(left.into_iter().rev());
        match failed.is_empty() {
            true => Ok(()),
            false => Err(format!("cannot be undone: {}", failed.join("; "))),
        }
    }

    /// Whether the VMM is there.
    pub fn is_alive(&self) -> bool {
        self.process.is_there(Path::new(PROC))
    }

    /// Whether all that was done for a thread still is so.
    pub fn holds(&self, thread: &ThreadId) -> bool {
        thread.is_there(Path::new(PROC))
            && self.steps.iter().filter(|step| step.thread() == Some(thread)).all(Step::holds)
    }

    /// Writes the record anew; one of nothing is deleted.
    pub fn save(&self) -> io::Result<()> {
        if self.threads.is_empty() && self.steps.is_empty() {
            return match fs::remove_file(&self.file) {
                Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
                _ => Ok(()),
            };
        }
        let new = self.file.with_extension("new");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&serde_json::to_vec(self)?)?;
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
            None => return Err("XDG_RUNTIME_DIR is not set; it names the folder in which the command writes down what --undo undoes".to_owned()),
        };
        // Not the daemon's folder: its user may be another one, and root is to undo nothing that others wrote.
        let folder = runtime.join("sidecore-reservations");
        let failed = |e: io::Error| format!("{}: {e}", folder.display());
        match DirBuilder::new().mode(0o700).create(&folder) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(failed(e)),
            _ => {}
        }
        let meta = fs::symlink_metadata(&folder).map_err(failed)?;
        if !meta.is_dir() || meta.uid() != geteuid().as_raw() || meta.mode() & 0o022 != 0 {
            return Err(format!("{}: others can write there; remove it", folder.display()));
        }
        let lock = File::open(&folder).map_err(failed)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|e| failed(e.into()))?;
        Ok(Records { folder, _lock: lock })
    }

    /// All reservations.
    pub fn all(&self) -> Result<Vec<Reservation>, String> {
        let failed = |path: &Path, e: io::Error| format!("{}: {e}", path.display());
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(|e| failed(&self.folder, e))?.flatten() {
            let file = entry.path();
            if file.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let text = fs::read(&file).map_err(|e| failed(&file, e))?;
            let reservation: Reservation =
                serde_json::from_slice(&text).map_err(|e| failed(&file, e.into()))?;
            all.push(Reservation { file, ..reservation });
        }
        all.sort_by(|a, b| a.file.cmp(&b.file));
        Ok(all)
    }

    /// A new reservation, of nothing so far, in a file of its own.
    pub fn start(&self, empty: Reservation) -> Reservation {
        let file = |number: u32| self.folder.join(format!("{}-{number}.json", empty.process.process));
        let free = (0..).map(file).find(|file| !file.exists());
        Reservation { file: free.unwrap_or_default(), ..empty }
    }

    /// Removes what reservations for VMMs that have ended left behind.
    pub fn tidy(&self) -> Result<(), String> {
        let ended = self.all()?.into_iter().filter(|reservation| !reservation.is_alive());
        ended.map(|mut reservation| reservation.release(|_| true)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reserve::fake::Fake;
    use crate::reserve::threads::Role;

    /// The calling thread, as if it were a vCPU's.
    fn grant() -> Grant {
        let [process, thread] = [rustix::process::getpid(), rustix::thread::gettid()]
            .map(|pid| u32::try_from(pid.as_raw_nonzero().get()).unwrap());
        let id = ThreadId::find(Path::new(PROC), process, thread).unwrap();
        let thread = Thread { id, name: "CPU 0/KVM".to_owned(), role: Role::Vcpu, vcpu: Some(0) };
        Grant { thread, mechanism: None, share_ppm: None, cpus: Cpus::default(), refused: vec![] }
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
        fake.write("top", "a");
        for value in ["b", "c"] {
            let was = Some(fake.read("top"));
            let step = Step::Setting { file: fake.path("top"), value: value.to_owned(), before: was };
            reservation.take(step).unwrap();
        }
        reservation.take(Step::Group { folder: fake.path("group") }).unwrap();
        reservation.take(Step::Pin { thread, to: one.clone(), from: before.clone() }).unwrap();
        assert_eq!(thread.allowed(Path::new(PROC)), Some(one));
        assert!(reservation.holds(&thread));
        // What was not carried out is not in the way.
        let kept = reservation.steps.len();
        assert!(reservation.take(Step::Group { folder: fake.path("no/group") }).is_err());
        assert_eq!(reservation.steps.len(), kept);

        // Another process takes the file up.
        let text = fs::read(&reservation.file).unwrap();
        let file = reservation.file.clone();
        let mut reservation = Reservation { file, ..serde_json::from_slice(&text).unwrap() };
        reservation.release(|id| id.thread == 1).unwrap();
        assert_eq!((reservation.threads.len(), fake.read("top")), (1, "c".to_owned()));
        reservation.release(|id| *id == thread).unwrap();
        assert_eq!(fake.read("top"), "a");
        assert_eq!(thread.allowed(Path::new(PROC)), Some(before));
        assert!(!fake.path("group").exists() && !reservation.file.exists());
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
        assert!(!reservation.holds(&thread) && !reservation.is_alive());
        let error = reservation.release(|_| true).unwrap_err();
        assert!(error.contains("cannot be undone: ") && error.contains("full/group"), "{error}");
        assert!(!fake.path("b").exists());
        assert_eq!((reservation.steps.len(), reservation.file.exists()), (1, true));
        fs::remove_file(fake.path("full/group/has-a-member")).unwrap();
        reservation.release(|_| true).unwrap();
        assert!(!reservation.file.exists());
    }
}
