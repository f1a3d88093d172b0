//! Control groups: an exclusive set of processors, which SCHED_DEADLINE takes for a machine of its own, and a cap on processor
//! time. Version 1 (Documentation/admin-guide/cgroup-v1/cpusets.rst) and 2 (Documentation/admin-guide/cgroup-v2.rst).

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::record::{Reservation, Step};
use super::threads::ThreadId;
use crate::place::Cpus;

/// The group of a thread in the hierarchy that has a controller.
#[derive(Debug, PartialEq, Eq)]
pub struct Group {
    top: PathBuf,
    /// Below `top`.
    path: PathBuf,
    second: bool,
    controller: &'static str,
}

impl Group {
    pub fn of(proc: &Path, id: &ThreadId, controller: &'static str) -> Result<Group, String> {
        let groups = read(&proc.join(format!("{}/task/{}/cgroup", id.process, id.thread)))?;
        let mounts = read(&proc.join("self/mountinfo"))?;
        let group = |second: bool| {
            let path = groups.lines().find_map(|line| {
                let (number, rest) = line.split_once(':')?;
                let (controllers, path) = rest.split_once(':')?;
                let fits = match second {
                    true => number == "0",
                    false => controllers.split(',').any(|it| it == controller),
                };
                fits.then_some(path)
            })?;
            let (top, root) = mounts.lines().find_map(|line| mount(line, second, controller))?;
            let path = Path::new(path).strip_prefix(root).ok()?;
            Some(Group { top: top.to_owned(), path: path.to_owned(), second, controller })
        };
        let has = |group: &Group| {
            read(&group.top.join("cgroup.controllers"))
                .is_ok_and(|all| all.split_whitespace().any(|it| it == controller))
        };
        let found = group(false).or_else(|| group(true).filter(has));
        found.ok_or_else(|| format!("no control group here has the controller {controller}"))
    }

    fn folder(&self) -> PathBuf {
        self.top.join(&self.path)
    }

    /// Whether it is the hierarchy's first one.
    pub fn is_top(&self) -> bool {
        self.path.as_os_str().is_empty()
    }

    /// Its name, as proc(5) has it.
    pub fn title(&self) -> String {
        format!("/{}", self.path.display())
    }

    /// A setting of it.
    pub fn get(&self, name: &str) -> Option<String> {
        read(&self.folder().join(name)).ok()
    }

    /// The group and those above it, the hierarchy's first one at the start.
    fn line(&self) -> Vec<PathBuf> {
        let mut line: Vec<PathBuf> = self.path.ancestors().map(|path| self.top.join(path)).collect();
        line.reverse();
        line
    }

    fn members(&self, folder: &Path) -> PathBuf {
        folder.join(if self.second { "cgroup.threads" } else { "tasks" })
    }

    /// Version 2: has all groups down to this one hand the controller on.
    fn hand_on(&self, reservation: &mut Reservation) -> Result<(), String> {
        for folder in self.line().into_iter().filter(|_| self.second) {
            let file = folder.join("cgroup.subtree_control");
            if !read(&file)?.split_whitespace().any(|it| it == self.controller) {
                let [value, before] = ["+", "-"].map(|sign| format!("{sign}{}", self.controller));
                set(reservation, file, value, Some(before))?;
            }
        }
        Ok(())
    }

    /// Makes a group below this one, if the reservation has none of that name yet, with these settings.
    fn below(
        &self,
        reservation: &mut Reservation,
        name: &str,
        settings: &[(&str, String)],
    ) -> Result<PathBuf, String> {
        let folder = self.folder().join(name);
        let step = Step::Group { folder: folder.clone() };
        if reservation.steps.contains(&step) {
            return Ok(folder);
        }
        reservation.take(step).map_err(|e| failed(&folder, e))?;
        if self.second {
            set(reservation, folder.join("cgroup.type"), "threaded".to_owned(), None)?;
        }
        for (name, value) in settings {
            set(reservation, folder.join(name), value.clone(), None)?;
        }
        Ok(folder)
    }

    fn enter(&self, reservation: &mut Reservation, thread: ThreadId, folder: &Path) -> Result<(), String> {
        let (to, from) = (self.members(folder), self.members(&self.folder()));
        reservation.take(Step::Move { thread, to, from }).map_err(|e| failed(folder, e))
    }
}

/// The mount of a hierarchy and the part of it that is mounted, if that is what a line of mountinfo tells.
fn mount<'a>(line: &'a str, second: bool, controller: &str) -> Option<(&'a Path, &'a Path)> {
    let (left, right) = line.split_once(" - ")?;
    let (mut left, mut right) = (left.split(' ').skip(3), right.split(' '));
    let fits = match (right.next()?, second) {
        ("cgroup2", true) => true,
        ("cgroup", false) => right.nth(1)?.split(',').any(|option| option == controller),
        _ => false,
    };
    let (root, top) = (left.next()?, left.next()?);
    fits.then_some((Path::new(top), Path::new(root)))
}

/// Moves a thread to an exclusive set of processors, which is made for the reservation's first thread.
pub fn exclusive(
    proc: &Path,
    reservation: &mut Reservation,
    thread: ThreadId,
    cpus: &Cpus,
) -> Result<(), String> {
    let group = Group::of(proc, &thread, "cpuset")?;
    let name = format!("sidecore-{}-{}", thread.process, cpus.to_string().replace(',', "_"));
    let list = cpus.to_string();
    let folder = if group.second {
        group.hand_on(reservation)?;
        // A partition need not be below another one since Linux 6.7, if all groups above it give the processors away.
        for folder in group.line().into_iter().skip(1) {
            let file = folder.join("cpuset.cpus.exclusive");
            let before = read(&file).map_err(|e| format!("{e} (Linux has it since 6.7)"))?;
            let own = Cpus::read(&before).unwrap_or_default();
            let all: BTreeSet<usize> = own.0.union(&cpus.0).copied().collect();
            set(reservation, file, Cpus(all).to_string(), Some(before + "\n"))?;
        }
        let mut settings = vec![("cpuset.cpus", list.clone())];
        if !group.is_top() {
            settings.push(("cpuset.cpus.exclusive", list.clone()));
        }
        settings.push(("cpuset.cpus.partition", "root".to_owned()));
        let folder = group.below(reservation, &name, &settings)?;
        match read(&folder.join("cpuset.cpus.partition"))? {
            kind if kind == "root" => folder,
            kind => return Err(format!("the kernel makes no partition of {list}: {kind}")),
        }
    } else {
        if read(&group.top.join("cpuset.sched_load_balance"))? != "0" {
            return Err(format!(
                "{} has sched_load_balance = 1: until it is 0, which ends balancing for everything outside of \
                 cpusets, version 1 of control groups keeps no processors apart",
                group.top.display()
            ));
        }
        let memory = group.get("cpuset.effective_mems").unwrap_or_default();
        let exclusive = ("cpuset.cpu_exclusive", "1".to_owned());
        let settings = [("cpuset.cpus", list.clone()), ("cpuset.mems", memory), exclusive];
        group.below(reservation, &name, &settings)?
    };
    group.enter(reservation, thread, &folder)
}

/// Moves a thread to a group of its own that gets this time and no more.
pub fn cap(
    proc: &Path,
    reservation: &mut Reservation,
    thread: ThreadId,
    (runtime, period): (Duration, Duration),
) -> Result<(), String> {
    let group = Group::of(proc, &thread, "cpu")?;
    let [runtime, period] = [runtime, period].map(|time| time.as_micros().to_string());
    let settings = match group.second {
        true => vec![("cpu.max", format!("{runtime} {period}"))],
        false => vec![("cpu.cfs_period_us", period), ("cpu.cfs_quota_us", runtime)],
    };
    group.hand_on(reservation)?;
    let folder = group.below(reservation, &format!("sidecore-{}", thread.thread), &settings)?;
    group.enter(reservation, thread, &folder)
}

fn set(
    reservation: &mut Reservation,
    file: PathBuf,
    value: String,
    before: Option<String>,
) -> Result<(), String> {
    reservation.take(Step::Setting { file: file.clone(), value, before }).map_err(|e| failed(&file, e))
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).map_err(|e| failed(path, e))
}

fn failed(path: &Path, e: io::Error) -> String {
    format!("{}: {e}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reserve::fake::Fake;

    const THREAD: ThreadId = ThreadId { process: 77, thread: 80, start: 1_080 };

    fn mounts(fake: &Fake, lines: &[(&str, &str, &str)]) {
        let line = |(at, kind, options): &(&str, &str, &str)| {
            format!("30 20 0:1 / {} rw shared:9 - {kind} none rw,{options}\n", fake.path(at).display())
        };
        fake.write("proc/self/mountinfo", &lines.iter().map(line).collect::<String>());
    }

    fn settings(reservation: &Reservation, fake: &Fake) -> Vec<String> {
        let short = |path: &Path| path.strip_prefix(fake.path("")).unwrap().display().to_string();
        let words = |step: &Step| match step {
            Step::Group { folder } => format!("make {}", short(folder)),
            Step::Setting { file, value, before } => {
                format!("{} = {value}, was {before:?}", short(file))
            }
            Step::Move { to, from, .. } => format!("{} from {}", short(to), short(from)),
            other => format!("{other:?}"),
        };
        reservation.steps.iter().map(words).collect()
    }

    /// The second version: each group above the thread's hands the controller on, and gives the processors away.
    #[test]
    fn a_partition_is_made_below_the_threads_own_group() {
        let fake = Fake::new();
        mounts(&fake, &[("v1", "cgroup", "memory"), ("v2", "cgroup2", "nsdelegate")]);
        fake.write("proc/77/task/80/cgroup", "4:memory:/x\n0::/a/b\n");
        fake.write("v2/cgroup.controllers", "cpuset cpu\n");
        fake.write("v2/cgroup.subtree_control", "cpuset\n");
        fake.write("v2/a/cgroup.subtree_control", "cpu\n");
        fake.write("v2/a/b/cgroup.subtree_control", "\n");
        let proc = fake.proc();
        let mut reservation = fake.reservation();
        let error = exclusive(&proc, &mut reservation, THREAD, &Cpus::from([2, 3])).unwrap_err();
        assert!(error.contains("v2/a/cpuset.cpus.exclusive: ") && error.contains("since 6.7"), "{error}");
        fake.write("v2/a/cgroup.subtree_control", "cpu cpuset\n");
        fake.write("v2/a/cpuset.cpus.exclusive", "5\n");
        fake.write("v2/a/b/cpuset.cpus.exclusive", "\n");
        let mut reservation = fake.reservation();
        exclusive(&proc, &mut reservation, THREAD, &Cpus::from([2, 3])).unwrap();
        let set = "v2/a/b/sidecore-77-2-3";
        let first = [
            "v2/a/b/cgroup.subtree_control = +cpuset, was Some(\"-cpuset\")".to_owned(),
            "v2/a/cpuset.cpus.exclusive = 2-3,5, was Some(\"5\\n\")".to_owned(),
            "v2/a/b/cpuset.cpus.exclusive = 2-3, was Some(\"\\n\")".to_owned(),
            format!("make {set}"),
            format!("{set}/cgroup.type = threaded, was None"),
            format!("{set}/cpuset.cpus = 2-3, was None"),
            format!("{set}/cpuset.cpus.exclusive = 2-3, was None"),
            format!("{set}/cpuset.cpus.partition = root, was None"),
            format!("{set}/cgroup.threads from v2/a/b/cgroup.threads"),
        ];
        assert_eq!(settings(&reservation, &fake), first);
        assert_eq!(fake.read(&format!("{set}/cgroup.threads")), "80");
        // The kernel says what kept it from making one.
        let mut reservation = fake.reservation();
        reservation.steps.push(Step::Group { folder: fake.path("v2/a/b/sidecore-77-1") });
        fake.write(
            "v2/a/b/sidecore-77-1/cpuset.cpus.partition",
            "root invalid (Cpu list in cpuset.cpus not exclusive)\n",
        );
        let error = exclusive(&proc, &mut reservation, THREAD, &Cpus::from([1])).unwrap_err();
        assert!(error.contains("no partition of 1: root invalid (Cpu list"), "{error}");
    }

    #[test]
    fn the_first_version_keeps_processors_apart_only_where_nothing_else_is_balanced() {
        let fake = Fake::new();
        mounts(&fake, &[("cpuset", "cgroup", "cpuset"), ("cpu", "cgroup", "cpu,cpuacct")]);
        fake.write("proc/77/task/80/cgroup", "3:cpuset:/\n1:cpu,cpuacct:/vm\n0::/\n");
        fake.write("cpuset/cpuset.sched_load_balance", "1\n");
        fake.write("cpuset/cpuset.effective_mems", "0-1\n");
        let mut reservation = fake.reservation();
        let error = exclusive(&fake.proc(), &mut reservation, THREAD, &Cpus::from([1])).unwrap_err();
        assert!(error.contains("sched_load_balance = 1") && reservation.steps.is_empty(), "{error}");
        fake.write("cpuset/cpuset.sched_load_balance", "0\n");
        exclusive(&fake.proc(), &mut reservation, THREAD, &Cpus::from([1])).unwrap();
        let set = "cpuset/sidecore-77-1";
        let exclusive = [
            format!("make {set}"),
            format!("{set}/cpuset.cpus = 1, was None"),
            format!("{set}/cpuset.mems = 0-1, was None"),
            format!("{set}/cpuset.cpu_exclusive = 1, was None"),
            format!("{set}/tasks from cpuset/tasks"),
        ];
        assert_eq!(settings(&reservation, &fake), exclusive);

        let mut reservation = fake.reservation();
        fs::create_dir_all(fake.path("cpu/vm")).unwrap();
        let time = (Duration::from_millis(2), Duration::from_millis(10));
        cap(&fake.proc(), &mut reservation, THREAD, time).unwrap();
        let group = "cpu/vm/sidecore-80";
        let capped = [
            format!("make {group}"),
            format!("{group}/cpu.cfs_period_us = 10000, was None"),
            format!("{group}/cpu.cfs_quota_us = 2000, was None"),
            format!("{group}/tasks from cpu/vm/tasks"),
        ];
        assert_eq!(settings(&reservation, &fake), capped);
        assert_eq!(Group::of(&fake.proc(), &THREAD, "cpu").unwrap().title(), "/vm");
    }

    #[test]
    fn a_controller_that_is_not_there_is_named() {
        let fake = Fake::new();
        mounts(&fake, &[("v2", "cgroup2", "nsdelegate")]);
        fake.write("v2/cgroup.controllers", "memory\n");
        fake.write("proc/77/task/80/cgroup", "0::/vm\n");
        let error = Group::of(&fake.proc(), &THREAD, "cpu").unwrap_err();
        assert_eq!(error, "no control group here has the controller cpu");
    }
}
