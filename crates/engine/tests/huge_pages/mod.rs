//! A few huge pages of the system's pool, given back when the test ends, however it ends.
//!
//! Tests of several processes want some at a time, so there is a lock, which the kernel opens for those that
//! died.

use std::fs::File;
use std::io::{Read, Seek, Write};

use rustix::fs::{flock, ftruncate, memfd_create, FlockOperation, MemfdFlags};

/// Bytes of a huge page here.
pub const HUGE: u64 = 2 << 20;
const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

/// Huge pages in the pool.
pub struct HugePages {
    before: usize,
    _lock: File,
}

fn pool() -> usize {
    std::fs::read_to_string(POOL).unwrap().trim().parse().unwrap()
}

impl HugePages {
    /// `more` pages more than there were.
    pub fn take(more: usize) -> HugePages {
        assert!(std::path::Path::new(POOL).exists(), "this test needs a kernel with huge pages of 2 MiB");
        assert!(
            rustix::process::geteuid().is_root(),
            "run as root: this test changes the system's number of huge pages"
        );
        let path = std::env::temp_dir().join("sidecore-test-huge-pages");
        let mut lock =
            File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        // What one that was killed did not put back.
        let mut left = String::new();
        lock.read_to_string(&mut left).unwrap();
        let before = left.trim().parse().unwrap_or_else(|_| pool());
        let note = |lock: &mut File, text: &str| {
            ftruncate(&*lock, 0).unwrap();
            lock.rewind().unwrap();
            lock.write_all(text.as_bytes()).unwrap();
        };
        note(&mut lock, &before.to_string());
        let pages = HugePages { before, _lock: lock };
        std::fs::write(POOL, (before + more).to_string()).expect("the number of huge pages is the system's");
        assert_eq!(pool(), before + more, "no memory in one piece for {more} huge pages");
        pages
    }

    /// How many the pool has, in use or not.
    pub fn all(&self) -> u64 {
        pool() as u64
    }

    /// A file of huge pages.
    pub fn file(&self, size: u64) -> File {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        let fd = memfd_create(c"huge", flags).unwrap();
        ftruncate(&fd, size).unwrap();
        fd.into()
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if std::fs::write(POOL, self.before.to_string()).is_ok() {
            let _ = ftruncate(&self._lock, 0);
        }
    }
}
