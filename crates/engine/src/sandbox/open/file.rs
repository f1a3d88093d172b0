//! Files that are ours alone: counters and journals.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{fallocate, fstat, open, openat, FallocateFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::folder::{inode, is_tight, kind, reach_from, Inode, Spot};

/// A file that was opened or made.
#[derive(Debug)]
pub struct OwnFile {
    /// The file.
    pub file: File,
    /// It was not there before.
    pub new: bool,
    spot: Spot,
    is: Inode,
}

impl OwnFile {
    /// Takes it away again, as long as it has its name.
    pub fn remove(&self) {
        // What cannot be removed is found by the next look.
        let _ = self.spot.remove(self.is);
    }
}

fn not_ours(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, format!("it is there, but {why}; it was left as it is"))
}

/// Why a file is not ours alone, if it is not.
fn vet(stat: &Stat) -> io::Result<()> {
    if kind(stat) != FileType::RegularFile {
        return Err(not_ours(match kind(stat) {
            FileType::Symlink => "it is a link, which is not followed",
            _ => "it is no regular file",
        }));
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(not_ours(&format!("it belongs to user {}", stat.st_uid)));
    }
    if stat.st_nlink != 1 {
        return Err(not_ours("it has other names as well (hard links)"));
    }
    if stat.st_mode & 0o022 != 0 {
        return Err(not_ours("others may write to it"));
    }
    Ok(())
}

/// Opens the file at `path`, to read and write. If there is none it is made, empty, with the permissions
/// `mode`.
///
/// # Errors
/// What is there is a link, no regular file, or not ours alone; or what the system says of opening it.
pub fn own_file(path: &Path, mode: u32) -> io::Result<OwnFile> {
    let spot = Spot::at(path)?;
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    loop {
        let create = flags | OFlags::CREATE | OFlags::EXCL;
        let (fd, new) = match openat(&spot.folder, &*spot.name, create, Mode::from_raw_mode(mode)) {
            Ok(fd) => (fd, true),
            Err(Errno::EXIST) => match found(&spot) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                found => (found?, false),
            },
            Err(e) => return Err(e.into()),
        };
        let is = inode(&fstat(&fd)?);
        return Ok(OwnFile { file: fd.into(), new, spot, is });
    }
}

/// Opens what is there, having looked at it first: opening a device may do something already.
fn found(spot: &Spot) -> io::Result<OwnedFd> {
    let seen = spot.folder.look(&spot.name)?;
    vet(&fstat(&seen)?)?;
    let path = format!("/proc/self/fd/{}", seen.as_raw_fd());
    Ok(open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens the regular file or block device at `path`, to read, or to write, too: anything else is looked at,
/// and not opened. Opening a device, a pipe or a terminal does something already.
///
/// # Errors
/// It is something else, a stranger's link is on the way or may be what the name is, or the system says no.
pub(crate) fn disk_file(path: &Path, read_only: bool) -> io::Result<File> {
    let (seen, folder) = reach_from(path)?;
    let stat = fstat(&seen)?;
    if !matches!(kind(&stat), FileType::RegularFile | FileType::BlockDevice) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file and no block device"));
    }
    // A second name for a stranger's file can be made without any right to it, unless the system forbids that
    // (fs.protected_hardlinks, proc_sys_fs(5)).
    if let (Some(folder), 2..) = (folder, stat.st_nlink) {
        let of = fstat(&folder)?;
        let is_its_owners = of.st_uid == stat.st_uid && of.st_mode & 0o022 == 0;
        if !is_tight(&of) && !is_its_owners {
            let why = "it has other names as well (hard links), and others may make names in its folder";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
    }
    let path = format!("/proc/self/fd/{}", seen.as_raw_fd());
    let way = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
    Ok(open(path, way | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?.into())
}

/// Removes the file at `path` if it is ours alone.
///
/// # Errors
/// It is not, or the system says no. No file at all is no error.
pub fn remove_own(path: &Path) -> io::Result<()> {
    let remove = || {
        let spot = Spot::at(path)?;
        let stat = fstat(spot.folder.look(&spot.name)?)?;
        vet(&stat)?;
        spot.remove(inode(&stat)).map(drop)
    };
    match remove() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Makes `file` at least `bytes` long and gives it room for all of them now, so that writing to a mapping of
/// it cannot find the file system full (SIGBUS). What stands in it stays.
///
/// # Errors
/// There is no room.
pub fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Ok(()) => Ok(()),
        // A file system that cannot: what is missing is written.
        Err(Errno::OPNOTSUPP) => {
            let mut at = file.metadata()?.len();
            let mut out = file;
            out.seek(SeekFrom::Start(at))?;
            while at < bytes {
                let zeros = [0; 4096];
                let part = &zeros[..usize::try_from(bytes - at).unwrap_or(usize::MAX).min(zeros.len())];
                out.write_all(part)?;
                at += part.len() as u64;
            }
            Ok(())
        }
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::open::tests::Dir;
    use std::os::unix::fs::{symlink, PermissionsExt};

    /// A user who may write in a disk's folder could have the disk be any file of the same file system.
    #[test]
    fn a_disk_is_no_strangers_hard_link() {
        let dir = Dir::new("disk");
        std::fs::write(dir.at("secret"), "root's").unwrap();
        let (loose, tight) = (dir.at("loose"), dir.at("tight"));
        for (folder, mode) in [(&loose, 0o777), (&tight, 0o755)] {
            std::fs::create_dir(folder).unwrap();
            std::fs::set_permissions(folder, std::fs::Permissions::from_mode(mode)).unwrap();
            std::fs::write(folder.join("own"), "disk").unwrap();
            disk_file(&folder.join("own"), false).unwrap();
            std::fs::hard_link(dir.at("secret"), folder.join("hard")).unwrap();
        }
        let error = disk_file(&loose.join("hard"), true).unwrap_err();
        assert!(
            error.kind() == io::ErrorKind::PermissionDenied && error.to_string().contains("hard links"),
            "{error}"
        );
        disk_file(&tight.join("hard"), false).unwrap();
        // By a link of ours, too.
        symlink(loose.join("hard"), dir.at("link")).unwrap();
        disk_file(&dir.at("link"), true).unwrap_err();
        if rustix::process::geteuid().is_root() {
            // In their own folder users may link their own files.
            for name in [&loose, &loose.join("hard")] {
                std::os::unix::fs::chown(name, Some(65534), None).unwrap();
            }
            std::fs::set_permissions(&loose, std::fs::Permissions::from_mode(0o755)).unwrap();
            disk_file(&loose.join("hard"), true).unwrap();
            std::os::unix::fs::chown(loose.join("hard"), Some(0), None).unwrap();
            disk_file(&loose.join("hard"), true).unwrap_err();
        }
    }

    /// A file of 17 bytes that a link leads to grew to the length of a journal and was mapped writable.
    #[test]
    fn links_and_strangers_files_are_left_alone() {
        let dir = Dir::new("own");
        std::fs::write(dir.at("victim"), "seventeen bytes.\n").unwrap();
        symlink(dir.at("victim"), dir.at("link")).unwrap();
        symlink(dir.at("nowhere"), dir.at("dangling")).unwrap();
        std::fs::hard_link(dir.at("victim"), dir.at("hard")).unwrap();
        std::fs::create_dir(dir.at("folder")).unwrap();
        std::fs::write(dir.at("loose"), "x").unwrap();
        std::fs::set_permissions(dir.at("loose"), std::fs::Permissions::from_mode(0o666)).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, dir.at("pipe"), Mode::RUSR | Mode::WUSR).unwrap();
        for name in ["link", "dangling", "hard", "folder", "loose", "pipe"] {
            let error = own_file(&dir.at(name), 0o600).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{name}: {error}");
            assert!(remove_own(&dir.at(name)).is_err(), "{name}");
        }
        if rustix::process::geteuid().is_root() {
            std::fs::write(dir.at("theirs"), "x").unwrap();
            std::os::unix::fs::chown(dir.at("theirs"), Some(65534), None).unwrap();
            assert!(own_file(&dir.at("theirs"), 0o600).unwrap_err().to_string().contains("65534"));
        }
        assert_eq!(std::fs::read(dir.at("victim")).unwrap(), b"seventeen bytes.\n");
        assert!(!dir.at("nowhere").exists());

        let made = own_file(&dir.at("ours"), 0o600).unwrap();
        assert!(made.new);
        (&made.file).write_all(b"kept").unwrap();
        allocate(&made.file, 8192).unwrap();
        let again = own_file(&dir.at("ours"), 0o600).unwrap();
        assert!(!again.new);
        let bytes = std::fs::read(dir.at("ours")).unwrap();
        assert_eq!((bytes.len(), &bytes[..4]), (8192, &b"kept"[..]));
        again.remove();
        assert!(!dir.at("ours").exists());
        remove_own(&dir.at("ours")).unwrap();
    }
}
