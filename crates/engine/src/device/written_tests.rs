//! What another version of this program wrote, as text: `tests/*.txt` have those words of a device's image
//! and files that are not zero.
//!
//! The program of commit 12c8d5a wrote them: it was killed under traffic (`SIDECORE_BEFORE=… cargo test -p
//! sidecore --test all upgrade`), and what its holders had was copied: the newer image without the session's
//! words, and the files of the device. The first line has what the image is of: kind, version, words.

use std::os::fd::BorrowedFd;

use super::pci::{Format, Image, Persist};

/// What another version wrote, as text.
pub(super) struct Written(pub(super) &'static str);

impl Written {
    /// The words of `part`, and where they stand.
    pub(super) fn words(&self, part: &'static str) -> impl Iterator<Item = (usize, u64)> {
        self.0.lines().skip(1).filter_map(move |line| {
            let (at, word) = line.strip_prefix(part)?.trim_start().split_once(' ')?;
            Some((at.parse().unwrap(), u64::from_str_radix(word, 16).unwrap()))
        })
    }

    /// `device`, which is new, becomes what was written: `parts` are its files. The words that it would save
    /// now, and did not find there.
    pub(super) fn adopt(&self, device: &mut dyn Persist, parts: &[&'static str]) -> Vec<usize> {
        let Format { kind, version, size } = device.format();
        let first = self.0.lines().next().unwrap();
        assert_eq!(
            first,
            format!("{kind} {version} {size}"),
            "after a change of version this has to be written anew"
        );
        let own = |file: BorrowedFd| file.try_clone_to_owned().unwrap();
        let files: Vec<_> = device.files().into_iter().map(own).collect();
        for (file, part) in files.iter().zip(parts) {
            for (at, word) in self.words(part) {
                assert_eq!(rustix::io::pwrite(file, &word.to_le_bytes(), 8 * at as u64), Ok(8));
            }
        }
        let (mut found, mut saved) = (Image::new(size), Image::new(size));
        self.words("image").for_each(|(at, word)| found.put(at, word));
        device.adopt(files, &found).unwrap();
        device.save(&mut saved);
        (0..size).filter(|at| saved.get(*at) != found.get(*at)).collect()
    }
}
