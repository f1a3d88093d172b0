//! A folder that looks like /proc and control groups, for tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::record::Reservation;
use super::threads::ThreadId;

pub struct Fake(PathBuf);

impl Fake {
    pub fn new() -> Fake {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("sidecore-reserve-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(name);
        fs::create_dir(&dir).unwrap();
        Fake(dir)
    }

    pub fn proc(&self) -> PathBuf {
        self.0.join("proc")
    }

    pub fn root(&self) -> PathBuf {
        self.0.clone()
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    pub fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
        fs::write(path, text).unwrap();
    }

    pub fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    /// A reservation of nothing, for a process that is not there.
    pub fn reservation(&self) -> Reservation {
        Reservation {
            socket: self.path("control.sock"),
            name: "vm1".to_owned(),
            ports: vec!["vm1".to_owned()],
            process: ThreadId { process: 77, thread: 77, start: u64::MAX },
            file: self.path("77-0.json"),
            ..Reservation::default()
        }
    }

    /// A thread that started 1,000 ticks after the host and its number.
    pub fn thread(&self, process: u32, thread: u32, name: &str, allowed: &str) {
        let at = format!("proc/{process}/task/{thread}");
        self.write(&format!("{at}/comm"), &format!("{name}\n"));
        let rest = ["0"; 18].join(" ");
        let start = 1_000 + thread;
        self.write(&format!("{at}/stat"), &format!("{thread} ({name}) S {rest} {start} 0 0\n"));
        let status = format!("Name:\t{name}\nPPid:\t2\nUid:\t0\t1000\t0\t0\nCpus_allowed_list:\t{allowed}\n");
        self.write(&format!("{at}/status"), &status);
        self.write(&format!("{at}/cgroup"), "0::/vm\n");
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
