//! Control groups: an exclusive set of processors, which SCHED_DEADLINE takes for a machine of its own, and a
//! cap on processor time. Version 1 (Documentation/admin-guide/cgroup-v1/cpusets.rst) and 2
//! (Documentation/admin-guide/cgroup-v2.rst).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::record::{Reservation, Step};
use super::threads::ThreadId;
use crate::place::Cpus;

/// The group of a thread in the hierarchy that has a controller.
pub struct Group {
    controller: &'static str,
    /// The hierarchy is one of version 2.
    second: bool,
    top: PathBuf,
    /// Below `top`.
    path: PathBuf,
}

impl Group {
    /// Hierarchies are where systemd mounts them, below `root`.
    pub fn of(root: &Path, id: &ThreadId, controller: &'static str) -> Result<Group, String> {
        let groups = read(&root.join(format!("proc/{}/task/{}/cgroup", id.process, id.thread)))?;
        let mounts = root.join("sys/fs/cgroup");
        // Number, controllers, path (cgroups(7)); that of version 2 has number 0 and comes last.
        let mut lines = groups.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
        let has = |list: &str| list.split([',', ' ']).any(|it| it == controller);
        let handed = read(&mounts.join("cgroup.controllers")).is_ok_and(|list| has(&list));
        let found = lines.find(|(list, _)| has(list) || list.is_empty() && handed);
        let (list, path) = found.ok_or_else(|| format!("there is no control group for {controller}"))?;
        let second = list.is_empty();
        let top = if second { mounts } else { mounts.join(controller) };
        Ok(Group { controller, second, top, path: path.trim_start_matches('/').into() })
    }

    /// Whether it is the hierarchy's first one.
    pub fn is_top(&self) -> bool {
        self.path.as_os_str().is_empty()
    }

    /// A setting of it.
    pub fn get(&self, name: &str) -> Result<String, String> {
        read(&self.top.join(&self.path).join(name))
    }

    /// The group and those above it, the hierarchy's first one at the start.
    fn line(&self) -> Vec<PathBuf> {
        let mut line: Vec<PathBuf> = self.path.ancestors().map(|path| self.top.join(path)).collect();
        line.reverse();
        line
    }

    /// Version 2: has all groups down to this one hand the controller on.
    fn hand_on(&self, reservation: &mut Reservation) -> Result<(), String> {
        for folder in self.line().into_iter().filter(|_| self.second) {
            let file = folder.join("cgroup.subtree_control");
            if !read(&file)?.split(' ').any(|it| it == self.controller) {
                let step = Step::HandOn { file: file.clone(), controller: self.controller.to_owned() };
                reservation.take(step).map_err(|e| failed(&file, &e))?;
            }
        }
        Ok(())
    }

    /// Moves a thread to a group below this one. The reservation's first thread there makes it, with these
    /// settings; `check` sees what became of it.
    fn enter(
        &self,
        reservation: &mut Reservation,
        thread: ThreadId,
        name: &str,
        settings: &[(&str, String)],
        check: impl FnOnce(&Path) -> Result<(), String>,
    ) -> Result<(), String> {
        let own = self.top.join(&self.path);
        let folder = own.join(name);
        let step = Step::Group { folder: folder.clone() };
        if !reservation.steps.contains(&step) {
            reservation.take(step).map_err(|e| failed(&folder, &e))?;
            let threaded = self.second.then(|| ("cgroup.type", "threaded".to_owned()));
            for (name, to) in threaded.iter().chain(settings) {
                let file = folder.join(name);
                let step = Step::Setting { file: file.clone(), to: to.clone() };
                reservation.take(step).map_err(|e| failed(&file, &e))?;
            }
            check(&folder)?;
        }
        let members = if self.second { "cgroup.threads" } else { "tasks" };
        let (to, from) = (folder.join(members), own.join(members));
        reservation.take(Step::Move { thread, to, from }).map_err(|e| failed(&folder, &e))
    }
}

/// Moves a thread to an exclusive set of processors.
pub fn exclusive(root: &Path, to: &mut Reservation, thread: ThreadId, cpus: &Cpus) -> Result<(), String> {
    let group = Group::of(root, &thread, "cpuset")?;
    let list = cpus.to_string();
    let name = format!("sidecore-{}-{}", thread.process, list.replace(',', "_"));
    let mut settings = vec![("cpuset.cpus", list.clone())];
    if !group.second {
        if read(&group.top.join("cpuset.sched_load_balance"))? != "0" {
            return Err(format!(
                "{} has sched_load_balance = 1; until it is 0, which ends balancing for all that is in no \
                 cpuset, version 1 of control groups keeps no processors apart",
                group.top.display()
            ));
        }
        settings.push(("cpuset.mems", group.get("cpuset.effective_mems")?));
        settings.push(("cpuset.cpu_exclusive", "1".to_owned()));
        return group.enter(to, thread, &name, &settings, |_| Ok(()));
    }
    group.hand_on(to)?;
    // A partition need not be below another one since Linux 6.7, if all groups above it give the processors
    // away.
    for folder in group.line().into_iter().skip(1) {
        let file = folder.join("cpuset.cpus.exclusive");
        let before = read(&file).map_err(|e| format!("{e} (Linux has it since 6.7)"))?;
        let before = Cpus::read(&before).unwrap_or_default();
        let more = Cpus(cpus.0.difference(&before.0).copied().collect());
        if !more.0.is_empty() {
            to.take(Step::Cpus { file: file.clone(), more }).map_err(|e| failed(&file, &e))?;
        }
    }
    if !group.is_top() {
        settings.push(("cpuset.cpus.exclusive", list.clone()));
    }
    settings.push(("cpuset.cpus.partition", "root".to_owned()));
    group.enter(to, thread, &name, &settings, |folder| match read(&folder.join("cpuset.cpus.partition"))? {
        kind if kind == "root" => Ok(()),
        kind => Err(format!("the kernel makes no partition of {list}: {kind}")),
    })
}

/// Moves a thread to a group of its own that gets this time and no more.
pub fn cap(
    root: &Path,
    to: &mut Reservation,
    thread: ThreadId,
    (runtime, period): (Duration, Duration),
) -> Result<(), String> {
    let group = Group::of(root, &thread, "cpu")?;
    let [runtime, period] = [runtime, period].map(|time| time.as_micros().to_string());
    let settings = match group.second {
        true => vec![("cpu.max", format!("{runtime} {period}"))],
        false => vec![("cpu.cfs_period_us", period), ("cpu.cfs_quota_us", runtime)],
    };
    group.hand_on(to)?;
    group.enter(to, thread, &format!("sidecore-{}", thread.thread), &settings, |_| Ok(()))
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).map_err(|e| failed(path, &e))
}

fn failed(path: &Path, e: &io::Error) -> String {
    format!("{}: {e}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reserve::fake_tests::Fake;

    const THREAD: ThreadId = ThreadId { process: 77, thread: 80, start: 1_080 };

    fn settings(reservation: &Reservation, fake: &Fake) -> Vec<String> {
        let short =
            |path: &Path| path.strip_prefix(fake.path("sys/fs/cgroup")).unwrap().display().to_string();
        let words = |step: &Step| match step {
            Step::Group { folder } => format!("make {}", short(folder)),
            Step::Setting { file, to } => format!("{} = {to}", short(file)),
            Step::Cpus { file, more } => format!("{} and {more}", short(file)),
            Step::HandOn { file, controller } => format!("{} + {controller}", short(file)),
            Step::Move { to, from, .. } => format!("{} from {}", short(to), short(from)),
            other => format!("{other:?}"),
        };
        reservation.steps.iter().map(words).collect()
    }

    /// The second version: each group above the thread's hands the controller on, and gives the processors
    /// away.
    #[test]
    fn a_partition_is_made_below_the_threads_own_group() {
        let fake = Fake::new();
        fake.write("proc/77/task/80/cgroup", "4:memory:/x\n0::/a/b\n");
        fake.write("sys/fs/cgroup/cgroup.controllers", "cpuset cpu\n");
        fake.write("sys/fs/cgroup/cgroup.subtree_control", "cpuset\n");
        fake.write("sys/fs/cgroup/a/cgroup.subtree_control", "cpu\n");
        fake.write("sys/fs/cgroup/a/b/cgroup.subtree_control", "\n");
        let root = fake.root();
        let mut reservation = fake.reservation();
        let error = exclusive(&root, &mut reservation, THREAD, &Cpus::from([2, 3])).unwrap_err();
        assert!(
            error.contains("sys/fs/cgroup/a/cpuset.cpus.exclusive: ") && error.contains("since 6.7"),
            "{error}"
        );
        fake.write("sys/fs/cgroup/a/cgroup.subtree_control", "cpu cpuset\n");
        fake.write("sys/fs/cgroup/a/cpuset.cpus.exclusive", "5\n");
        fake.write("sys/fs/cgroup/a/b/cpuset.cpus.exclusive", "\n");
        let mut reservation = fake.reservation();
        exclusive(&root, &mut reservation, THREAD, &Cpus::from([2, 3])).unwrap();
        let set = "a/b/sidecore-77-2-3";
        let first = [
            "a/b/cgroup.subtree_control + cpuset".to_owned(),
            "a/cpuset.cpus.exclusive and 2-3".to_owned(),
            "a/b/cpuset.cpus.exclusive and 2-3".to_owned(),
            format!("make {set}"),
            format!("{set}/cgroup.type = threaded"),
            format!("{set}/cpuset.cpus = 2-3"),
            format!("{set}/cpuset.cpus.exclusive = 2-3"),
            format!("{set}/cpuset.cpus.partition = root"),
            format!("{set}/cgroup.threads from a/b/cgroup.threads"),
        ];
        assert_eq!(settings(&reservation, &fake), first);
        assert_eq!(fake.read(&format!("sys/fs/cgroup/{set}/cgroup.threads")), "80");
    }

    #[test]
    fn the_first_version_keeps_processors_apart_only_where_nothing_else_is_balanced() {
        let fake = Fake::new();
        fake.write("proc/77/task/80/cgroup", "3:cpuset:/\n1:cpu,cpuacct:/vm\n0::/\n");
        fake.write("sys/fs/cgroup/cpuset/cpuset.sched_load_balance", "1\n");
        fake.write("sys/fs/cgroup/cpuset/cpuset.effective_mems", "0-1\n");
        let mut reservation = fake.reservation();
        let error = exclusive(&fake.root(), &mut reservation, THREAD, &Cpus::from([1])).unwrap_err();
        assert!(error.contains("sched_load_balance = 1") && reservation.steps.is_empty(), "{error}");
        fake.write("sys/fs/cgroup/cpuset/cpuset.sched_load_balance", "0\n");
        exclusive(&fake.root(), &mut reservation, THREAD, &Cpus::from([1])).unwrap();
        let set = "cpuset/sidecore-77-1";
        let exclusive = [
            format!("make {set}"),
            format!("{set}/cpuset.cpus = 1"),
            format!("{set}/cpuset.mems = 0-1"),
            format!("{set}/cpuset.cpu_exclusive = 1"),
            format!("{set}/tasks from cpuset/tasks"),
        ];
        assert_eq!(settings(&reservation, &fake), exclusive);

        let mut reservation = fake.reservation();
        fs::create_dir_all(fake.path("sys/fs/cgroup/cpu/vm")).unwrap();
        let time = (Duration::from_millis(2), Duration::from_millis(10));
        cap(&fake.root(), &mut reservation, THREAD, time).unwrap();
        let group = "cpu/vm/sidecore-80";
        let capped = [
            format!("make {group}"),
            format!("{group}/cpu.cfs_period_us = 10000"),
            format!("{group}/cpu.cfs_quota_us = 2000"),
            format!("{group}/tasks from cpu/vm/tasks"),
        ];
        assert_eq!(settings(&reservation, &fake), capped);
        assert!(!Group::of(&fake.root(), &THREAD, "cpu").unwrap().is_top());
    }

    #[test]
    fn a_controller_that_is_not_there_is_named() {
        let fake = Fake::new();
        fake.write("sys/fs/cgroup/cgroup.controllers", "memory\n");
        fake.write("proc/77/task/80/cgroup", "0::/vm\n");
        let error = Group::of(&fake.root(), &THREAD, "cpu").err();
        assert_eq!(error.unwrap(), "there is no control group for cpu");
    }
}
