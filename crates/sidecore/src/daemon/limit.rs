//! How much memory the daemon may have, if its control group limits that.
//!
//! Pages that a guest has never used become the daemon's own when it touches them first, by a frame that it
//! delivers or by `prefault`: the kernel charges the process that touches first. With a limit, guests can
//! fill it, and then the kernel ends the daemon. So a limit is worth a warning at the start.

use std::path::{Path, PathBuf};

/// The smallest limit of the groups that this process is in, in bytes.
pub fn memory_limit() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let groups = read("/proc/self/cgroup");
    let mounts = read("/proc/self/mountinfo");
    smallest(&groups, &mounts, |path| std::fs::read_to_string(path).ok())
}

/// Says so in the log.
pub fn warn_of_memory_limit(limit: Option<u64>) {
    if let Some(bytes) = limit {
        let mib = bytes >> 20;
        tracing::warn!(
            "the memory of this process is limited to {mib} MiB by its control group, and pages of guests that it touches \
             first count as its own: the kernel may end it when guests use their memory. Run it without MemoryMax= and \
             memory.limit_in_bytes, or let each VMM touch its guest's memory itself (QEMU: prealloc=on)"
        );
    }
}

fn smallest(groups: &str, mounts: &str, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let mut least = None;
    for (root, point, old) in mounts.lines().filter_map(mount) {
        // "number:controllers:path"; version 2 has no controllers (cgroups(7)).
        let ours = groups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            let fits =
                if old { controllers.split(',').any(|one| one == "memory") } else { controllers.is_empty() };
            fits.then_some(path)
        });
        let Some(path) = ours else { continue };
        let inside = Path::new(path).strip_prefix(&root).unwrap_or_else(|_| Path::new(""));
        let file = if old { "memory.limit_in_bytes" } else { "memory.max" };
        // Each group above limits, too.
        for group in inside.ancestors() {
            let text = read(&point.join(group).join(file));
            let limit = text.and_then(|text| text.trim().parse::<u64>().ok());
            // Version 1 has a number near 2^63 for none.
            least = limit.filter(|limit| *limit < 1 << 62).into_iter().chain(least).min();
        }
    }
    least
}

/// Root, mount point and whether it is version 1, of a line of mountinfo that is a hierarchy with memory's
/// controller.
fn mount(line: &str) -> Option<(PathBuf, PathBuf, bool)> {
    let (before, after) = line.split_once(" - ")?;
    let mut before = before.split(' ').skip(3);
    let (root, point) = (before.next()?, before.next()?);
    let mut after = after.split(' ');
    let (kind, _, options) = (after.next()?, after.next()?, after.next()?);
    let old = kind == "cgroup" && options.split(',').any(|option| option == "memory");
    (old || kind == "cgroup2").then(|| (root.into(), point.into(), old))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
        24 23 0:21 / /proc rw shared:5 - proc proc rw\n\
        30 23 0:26 / /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory\n\
        31 23 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    fn limit(groups: &str, mounts: &str, files: &[(&str, &str)]) -> Option<u64> {
        smallest(groups, mounts, |path| {
            files.iter().find(|(name, _)| Path::new(name) == path).map(|(_, text)| (*text).to_owned())
        })
    }

    #[test]
    fn the_smallest_limit_of_all_groups_above_counts() {
        let old = "5:cpu,memory:/a/b\n0::/x\n";
        assert_eq!(limit(old, MOUNTS, &[]), None);
        let none = ("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(limit(old, MOUNTS, &[none]), None);
        let above = ("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "4096\n");
        assert_eq!(limit(old, MOUNTS, &[none, above]), Some(4096));
        let new = ("/sys/fs/cgroup/unified/x/memory.max", "2048\n");
        assert_eq!(limit(old, MOUNTS, &[none, above, new]), Some(2048));
        let max = ("/sys/fs/cgroup/unified/x/memory.max", "max\n");
        assert_eq!(limit(old, MOUNTS, &[max]), None);
    }

    #[test]
    fn a_group_of_a_container_is_its_root() {
        let mounts = "40 1 0:27 /docker/7 /sys/fs/cgroup ro - cgroup2 cgroup rw,nsdelegate\n";
        let file = ("/sys/fs/cgroup/memory.max", "1024\n");
        assert_eq!(limit("0::/docker/7\n", mounts, &[file]), Some(1024));
        assert_eq!(limit("0::/\n", mounts, &[file]), Some(1024));
    }
}
