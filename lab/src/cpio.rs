//! Writes the `newc` archives that Linux unpacks as its first root file system.
//!
//! The format is in the kernel's `Documentation/driver-api/early-userspace/buffer-format.rst`: a header of
//! thirteen 8-digit hexadecimal fields, the name, the data, each part padded to four bytes. Archives may
//! follow one another, which is how a test adds its own files to the common image.

use std::collections::BTreeSet;

const DIRECTORY: u32 = 0o040_000;
const CHARACTER_DEVICE: u32 = 0o020_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;

/// An archive that is being written in memory.
#[derive(Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    inode: usize,
    directories: BTreeSet<String>,
}

impl Archive {
    /// A directory and, before it, every missing parent.
    pub(crate) fn directory(&mut self, path: &str) {
        if path.is_empty() || self.directories.contains(path) {
            return;
        }
        self.parents(path);
        self.directories.insert(path.to_owned());
        self.entry(path, DIRECTORY | 0o755, (0, 0), &[]);
    }

    /// A file with the permission bits `mode`.
    pub(crate) fn file(&mut self, path: &str, mode: u32, data: &[u8]) {
        self.parents(path);
        self.entry(path, REGULAR | (mode & 0o7777), (0, 0), data);
    }

    /// A symbolic link that reads `target`.
    pub(crate) fn symlink(&mut self, path: &str, target: &str) {
        self.parents(path);
        self.entry(path, SYMLINK | 0o777, (0, 0), target.as_bytes());
    }

    /// A character device node.
    pub(crate) fn character_device(&mut self, path: &str, major: usize, minor: usize) {
        self.parents(path);
        self.entry(path, CHARACTER_DEVICE | 0o600, (major, minor), &[]);
    }

    /// The finished archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn parents(&mut self, path: &str) {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.directory(parent);
        }
    }

    fn entry(&mut self, path: &str, mode: u32, (major, minor): (usize, usize), data: &[u8]) {
        self.inode += 1;
        let (inode, size, name) = (self.inode, data.len(), path.len() + 1);
        let header = format!(
            "070701{inode:08x}{mode:08x}{0:08x}{0:08x}{1:08x}{0:08x}{size:08x}{0:08x}{0:08x}\
             {major:08x}{minor:08x}{name:08x}{0:08x}",
            0, 1
        );
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(data);
        self.pad();
    }

    fn pad(&mut self) {
        while self.bytes.len() % 4 != 0 {
            self.bytes.push(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_the_fields_of_the_format() {
        let mut archive = Archive::default();
        archive.file("etc/motd", 0o644, b"hello");
        let bytes = archive.finish();
        assert_eq!(&bytes[..6], b"070701");
        assert_eq!(&bytes[14..22], b"000041ed", "the parent comes first, a directory with mode 755");
        assert_eq!(&bytes[110..114], b"etc\0");
        let file = &bytes[116..];
        assert_eq!(&file[14..22], b"000081a4", "a regular file with mode 644");
        assert_eq!(&file[54..62], b"00000005", "the size of its data");
        assert_eq!(&file[94..102], b"00000009", "the length of its name with the NUL");
        assert_eq!(&file[110..119], b"etc/motd\0");
        assert_eq!(&file[120..128], b"hello\0\0\0");
        assert_eq!(bytes.len() % 4, 0);
    }

    #[test]
    fn a_directory_is_written_once() {
        let mut archive = Archive::default();
        archive.file("a/b/c", 0o600, &[]);
        archive.symlink("a/b/d", "c");
        let bytes = archive.finish();
        assert_eq!(bytes.windows(6).filter(|w| w == b"070701").count(), 5, "a, a/b, two files, the trailer");
    }
}
