//! Descriptors that a VMM passes, looked at before an I/O core touches them: a write or a page fault on
//! some kinds of file waits for as long as another process likes, and with it would wait every port of
//! that core.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{fcntl_getfl, fcntl_setfl, fstatfs, OFlags};

/// Makes an event descriptor of `file`: it must be an eventfd, and a full counter must not block.
///
/// # Errors
/// What it is instead.
pub(super) fn eventfd(file: File) -> Result<File, String> {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let kind = link.map_err(|e| format!("the descriptor cannot be examined: {e}"))?;
    if kind.as_os_str() != "anon_inode:[eventfd]" {
        return Err(format!("the descriptor is no eventfd but {}", kind.display()));
    }
    // The flag is the VMM's, too; those that care have set it themselves.
    let set = fcntl_getfl(&file).and_then(|flags| fcntl_setfl(&file, flags | OFlags::NONBLOCK));
    set.map_err(|e| format!("the eventfd cannot be made non-blocking: {e}"))?;
    Ok(file)
}

/// Whether `file` is on a file system whose pages are served by another process or host.
///
/// # Errors
/// It is, and cannot be guest memory.
pub(super) fn memory(file: &File) -> Result<(), String> {
    /// `f_type` of FUSE, NFS, 9P, CIFS, SMB2 and Ceph, from linux/magic.h.
    const SERVED: [u32; 6] = [0x6573_5546, 0x6969, 0x0102_1997, 0xff53_4d42, 0xfe53_4d42, 0x00c3_6400];
    let stat = fstatfs(file.as_fd()).map_err(|e| format!("the memory file cannot be examined: {e}"))?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "magic numbers have 32 bits")]
    let kind = stat.f_type as u32;
    if SERVED.contains(&kind) {
        return Err(
            "guest memory is on a network or user-space file system; use a memfd, tmpfs or hugetlbfs"
                .to_owned(),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{eventfd as make, EventfdFlags};

    #[test]
    fn only_eventfds_that_do_not_block_are_written_to() {
        let full: File = make(0, EventfdFlags::empty()).unwrap().into();
        rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let event = eventfd(full).unwrap();
        assert_eq!(rustix::io::write(&event, &1u64.to_ne_bytes()), Err(rustix::io::Errno::AGAIN));
        assert!(eventfd(File::open("/dev/null").unwrap()).unwrap_err().contains("/dev/null"));
        assert!(memory(&File::open("/dev/shm").unwrap()).is_ok());
    }
}
