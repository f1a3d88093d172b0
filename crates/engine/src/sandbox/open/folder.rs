//! Folders, reached once and held, and names in them.

use std::collections::hash_map::RandomState;
use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    fstat, mkdirat, open, openat, readlinkat, renameat_with, statat, unlinkat, AtFlags, FileType, Mode,
    OFlags, RenameFlags, Stat,
};
use rustix::io::Errno;

/// Symbolic links that one path may lead through, as in path_resolution(7).
const MAX_LINKS: usize = 40;

/// How a name is looked at: nothing is opened, nothing is followed.
const LOOK: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A file, by what the kernel knows it by.
pub(super) type Inode = (u64, u64);

pub(super) fn inode(stat: &Stat) -> Inode {
    (stat.st_dev, stat.st_ino)
}

pub(super) fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Whether only root and ourselves may make, rename or remove names in a folder. (An access control list
/// shows in the bits of the group.)
pub fn is_tight(stat: &Stat) -> bool {
    let ours = stat.st_uid == 0 || stat.st_uid == rustix::process::geteuid().as_raw();
    ours && stat.st_mode & 0o022 == 0
}

/// A folder.
#[derive(Debug)]
pub struct Folder {
    fd: OwnedFd,
}

/// A name in a folder.
#[derive(Debug)]
pub struct Spot {
    pub(super) folder: Folder,
    pub(super) name: OsString,
    /// The path that it was reached by, for people.
    pub(super) path: PathBuf,
}

fn stranger(path: &Path) -> io::Error {
    let why =
        format!("\"{}\" is a link in a folder that others may write in; it is not followed", path.display());
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// The folder or file that `path` leads to.
pub(super) fn reach(path: &Path) -> io::Result<OwnedFd> {
    reach_from(path).map(|(reached, _)| reached)
}

/// The folder or file that `path` leads to, and the folder in which it has the name that was met last.
pub(super) fn reach_from(path: &Path) -> io::Result<(OwnedFd, Option<OwnedFd>)> {
    let root = || open("/", LOOK | OFlags::DIRECTORY, Mode::empty());
    let mut at = match path.is_absolute() {
        true => root()?,
        false => open(".", LOOK | OFlags::DIRECTORY, Mode::empty())?,
    };
    let parts = |path: &Path| {
        let names = path.components().filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            _ => None,
        });
        names.collect::<Vec<OsString>>().into_iter().rev()
    };
    let mut left: Vec<OsString> = parts(path).collect();
    let (mut links, mut from) = (0, None);
    while let Some(name) = left.pop() {
        let next = openat(&at, &*name, LOOK, Mode::empty())?;
        let stat = fstat(&next)?;
        if kind(&stat) != FileType::Symlink {
            // A file in the middle is answered by the next `openat`: ENOTDIR.
            from = Some(std::mem::replace(&mut at, next));
            continue;
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(Errno::LOOP.into());
        }
        if !is_tight(&fstat(&at)?) {
            return Err(stranger(path));
        }
        let target = readlinkat(&next, "", Vec::new())?.into_bytes();
        let target = PathBuf::from(OsString::from_vec(target));
        if target.is_absolute() {
            at = root()?;
        }
        left.extend(parts(&target));
    }
    Ok((at, from))
}

impl Folder {
    /// The folder at `path`.
    ///
    /// # Errors
    /// There is none, it cannot be reached, or a stranger's link is on the way.
    pub fn open(path: &Path) -> io::Result<Folder> {
        let fd = reach(path)?;
        match kind(&fstat(&fd)?) {
            FileType::Directory => Ok(Folder { fd }),
            _ => Err(Errno::NOTDIR.into()),
        }
    }

    /// Whether only root and ourselves may change names in it.
    pub(super) fn is_tight(&self) -> io::Result<bool> {
        Ok(is_tight(&fstat(&self.fd)?))
    }

    /// A path by which the kernel finds `name` in it, whatever it is called by now.
    pub(super) fn proc_path(&self, name: &OsStr) -> PathBuf {
        Path::new(&format!("/proc/self/fd/{}", self.fd.as_raw_fd())).join(name)
    }

    /// What bears `name`, without following or opening it.
    pub(super) fn look(&self, name: &OsStr) -> io::Result<OwnedFd> {
        Ok(openat(&self.fd, name, LOOK, Mode::empty())?)
    }

    /// A new folder in it that only we may use, under a secret name.
    pub(super) fn nursery(&self) -> io::Result<(Folder, OsString)> {
        let name = secret();
        mkdirat(&self.fd, &*name, Mode::RWXU)?;
        let fd = openat(&self.fd, &*name, LOOK | OFlags::DIRECTORY, Mode::empty())?;
        let stat = fstat(&fd)?;
        if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & 0o077 != 0 {
            return Err(io::Error::other("another process changes that folder meanwhile"));
        }
        Ok((Folder { fd }, name))
    }

    /// Moves `name` to `to` in `other`, where nothing may bear that name.
    pub(super) fn pass(&self, name: &OsStr, other: &Folder, to: &OsStr) -> Result<(), Errno> {
        renameat_with(&self.fd, name, &other.fd, to, RenameFlags::NOREPLACE)
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A name that no other process can have made before us.
fn secret() -> OsString {
    // The standard library's keys are the kernel's random numbers.
    format!(".sidecore-{:016x}", RandomState::new().build_hasher().finish()).into()
}

impl Spot {
    /// The place `path`, whose folder has to be there.
    ///
    /// # Errors
    /// As of [`Folder::open`]; `InvalidInput`: it names no file.
    pub fn at(path: &Path) -> io::Result<Spot> {
        let name = path.file_name().filter(|_| !path.as_os_str().as_bytes().ends_with(b"/"));
        let name = name.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "it names no file"))?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok(Spot { folder: Folder::open(parent)?, name: name.to_owned(), path: path.to_owned() })
    }

    /// Removes the name if it still is that of the file `meant`; says whether it was. A stranger who puts
    /// another file there meanwhile loses nothing but the time in which it bears another name.
    ///
    /// # Errors
    /// What the system says of it.
    pub(super) fn remove(&self, meant: Inode) -> io::Result<bool> {
        let fd = &self.folder.fd;
        let is_meant = |name: &OsStr| match statat(fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(inode(&stat) == meant),
            Err(Errno::NOENT) => Ok(false),
            Err(e) => Err(io::Error::from(e)),
        };
        if !is_meant(&self.name)? {
            return Ok(false);
        }
        if self.folder.is_tight()? {
            return match unlinkat(fd, &*self.name, AtFlags::empty()) {
                Ok(()) => Ok(true),
                Err(Errno::NOENT) => Ok(false),
                Err(e) => Err(e.into()),
            };
        }
        // Under a secret name there is nothing that could be exchanged between the look and the end.
        let aside = secret();
        match self.folder.pass(&self.name, &self.folder, &aside) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(false),
            Err(e) => return Err(e.into()),
        }
        if is_meant(&aside)? {
            unlinkat(fd, &*aside, AtFlags::empty())?;
            return Ok(true);
        }
        self.folder.pass(&aside, &self.folder, &self.name)?;
        Ok(false)
    }
}

/// Makes the folder `path` with the permissions `mode` (whatever the umask), unless it is there.
///
/// # Errors
/// It cannot be made, or something else bears the name.
pub fn make_folder(path: &Path, mode: u32) -> io::Result<()> {
    let spot = Spot::at(path)?;
    match mkdirat(&spot.folder.fd, &*spot.name, Mode::from_raw_mode(mode)) {
        Ok(()) => {
            let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let made = openat(&spot.folder.fd, &*spot.name, flags, Mode::empty())?;
            Ok(rustix::fs::fchmod(made, Mode::from_raw_mode(mode))?)
        }
        Err(Errno::EXIST) => Folder::open(path).map(drop),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::open::tests::Dir;
    use std::os::unix::fs::{symlink, PermissionsExt};

    fn loosen(path: &Path) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }

    #[test]
    fn links_count_only_where_strangers_cannot_make_them() {
        let dir = Dir::new("links");
        for name in ["real", "real/deep", "open"] {
            std::fs::create_dir(dir.at(name)).unwrap();
        }
        symlink("real", dir.at("link")).unwrap();
        symlink(dir.at("real/deep/../deep"), dir.at("absolute")).unwrap();
        for path in ["real", "link", "link/deep", "absolute", "link/../real", "./absolute/.."] {
            Folder::open(&dir.at(path)).unwrap();
        }
        loosen(&dir.at("open"));
        symlink(dir.at("real"), dir.at("open/link")).unwrap();
        let refused = Folder::open(&dir.at("open/link/deep")).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{refused}");
        symlink("loop", dir.at("loop")).unwrap();
        let error = Folder::open(&dir.at("loop")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::LOOP.raw_os_error()));
        std::fs::write(dir.at("file"), "x").unwrap();
        for path in ["file", "file/x", "nowhere"] {
            assert!(Folder::open(&dir.at(path)).is_err(), "{path}");
        }
        for path in ["/", "real/..", "real/"] {
            assert!(Spot::at(Path::new(path)).is_err(), "{path}");
        }
    }

    /// In a folder of strangers a file that took the place of the one that was meant stays, and keeps its
    /// name.
    #[test]
    fn only_what_was_meant_is_removed() {
        let dir = Dir::new("meant");
        for loose in [false, true] {
            if loose {
                loosen(&dir.at(""));
            }
            std::fs::write(dir.at("a"), "first").unwrap();
            let spot = Spot::at(&dir.at("a")).unwrap();
            let first = inode(&fstat(spot.folder.look(&spot.name).unwrap()).unwrap());
            std::fs::write(dir.at("b"), "second").unwrap();
            std::fs::rename(dir.at("b"), dir.at("a")).unwrap();
            assert!(!spot.remove(first).unwrap());
            assert_eq!(std::fs::read(dir.at("a")).unwrap(), b"second");
            let second = inode(&fstat(spot.folder.look(&spot.name).unwrap()).unwrap());
            assert!(spot.remove(second).unwrap());
            assert!(!spot.remove(second).unwrap());
            assert_eq!(std::fs::read_dir(dir.at("")).unwrap().count(), 0);
        }
    }

    #[test]
    fn a_folder_is_made_once() {
        let dir = Dir::new("make");
        make_folder(&dir.at("x"), 0o700).unwrap();
        make_folder(&dir.at("x"), 0o755).unwrap();
        assert_eq!(std::fs::metadata(dir.at("x")).unwrap().permissions().mode() & 0o777, 0o700);
        std::fs::write(dir.at("y"), "").unwrap();
        assert!(make_folder(&dir.at("y"), 0o700).is_err());
    }
}
