//! What a device must find again when another process takes it over.
//!
//! Theory of operation. A device that can be taken over has two kinds of state. What the guest and the I/O
//! cores change without a message lies in files of its own ([`Persist::files`]): pages that the guest maps,
//! the places of rings. Everything else changes only while a message is handled, and is written down behind
//! it, in an [`Image`]: words, of which the transport keeps two copies in shared memory and makes one of them
//! valid by a single store. So what is found is the state before a message or the one after it, never one in
//! between.
//!
//! An image remembers which of its words each copy lacks, so that writing it down costs what has changed. In
//! front of its copies stands its [`Format`]: a daemon that finds another format than its own refuses the
//! image, and names both.

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::mem::halves;
use crate::util::fault::shown;

/// Words that are compared and copied together: a cache line.
const CHUNK: usize = 8;

/// What an image is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    /// The device, with those of its options that its guest was told of: 32 bytes are kept.
    pub kind: String,
    /// Another one wherever an image, or a file that belongs to it, would be misread.
    pub version: u32,
    /// Words in an image, with those of its other writers.
    pub size: usize,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}, version {}, of {} words", self.kind, self.version, self.size)
    }
}

impl Format {
    /// Words of a head.
    pub const HEAD: usize = 8;
    const MAGIC: u64 = u64::from_le_bytes(*b"sidecore");

    /// What stands in front of an image; `of` is the version of what is around it.
    pub fn head(&self, of: u64) -> [u64; Format::HEAD] {
        let mut kind = [0; 32];
        kind.iter_mut().zip(self.kind.bytes()).for_each(|(to, byte)| *to = byte);
        let [a, b, c, d] =
            std::array::from_fn(|at| u64::from_le_bytes(std::array::from_fn(|byte| kind[8 * at + byte])));
        [Format::MAGIC, of, self.version.into(), self.size as u64, a, b, c, d]
    }

    /// Whether `head` is one of ours. An error says what it is instead.
    pub fn check(&self, of: u64, head: [u64; Format::HEAD]) -> Result<(), String> {
        let [magic, around, version, size, kind @ ..] = head;
        if head == self.head(of) {
            return Ok(());
        }
        let is = match (magic == Format::MAGIC, around == of) {
            (true, true) => {
                let kind: Vec<u8> =
                    kind.into_iter().flat_map(u64::to_le_bytes).take_while(|byte| *byte != 0).collect();
                let kind = shown(&String::from_utf8_lossy(&kind), 32);
                format!("{kind}, version {version}, of {size} words")
            }
            (true, false) => format!("one of format {around}"),
            (false, _) => "not an image of sidecore".to_owned(),
        };
        Err(format!(
            "its state has another format: it is {is}; {self}, of format {of}, is read here: another version of sidecore left it, or the \
             port's options were others"
        ))
    }
}

/// A device's state as words, and which of them two copies lack.
pub struct Image {
    words: Vec<u64>,
    lacks: [Vec<u64>; 2],
}

impl Image {
    /// `size` words of zero, which both copies lack.
    pub fn new(size: usize) -> Image {
        let size = size.next_multiple_of(CHUNK);
        let all = vec![u64::MAX; (size / CHUNK).div_ceil(64)];
        Image { words: vec![0; size], lacks: [all.clone(), all] }
    }

    /// Words in it.
    pub fn size(&self) -> usize {
        self.words.len()
    }

    /// Word `at`; zero beyond the end.
    pub fn get(&self, at: usize) -> u64 {
        self.words.get(at).copied().unwrap_or(0)
    }

    /// Sets word `at`.
    ///
    /// # Panics
    /// If it is beyond the end: the size is the device's own.
    #[inline]
    pub fn put(&mut self, at: usize, word: u64) {
        if self.words[at] != word {
            self.words[at] = word;
            for lacks in &mut self.lacks {
                lacks[at / CHUNK / 64] |= 1 << (at / CHUNK % 64);
            }
        }
    }

    /// Sets words from `at` on to `bytes`, eight each.
    pub fn put_bytes(&mut self, at: usize, bytes: &[u8]) {
        for (index, part) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.put(at + index, u64::from_le_bytes(word));
        }
    }

    /// Fills `bytes` from the words from `at` on.
    pub fn get_bytes(&self, at: usize, bytes: &mut [u8]) {
        for (index, part) in bytes.chunks_mut(8).enumerate() {
            part.copy_from_slice(&self.get(at + index).to_le_bytes()[..part.len()]);
        }
    }

    /// Sets words from `at` on to `halves`, one each.
    pub fn put_halves(&mut self, at: usize, halves: &[u32]) {
        (at..).zip(halves).for_each(|(at, half)| self.put(at, (*half).into()));
    }

    /// Halves from the words from `at` on; zero where a word has more than that.
    pub fn get_halves<const N: usize>(&self, at: usize) -> [u32; N] {
        std::array::from_fn(|index| u32::try_from(self.get(at + index)).unwrap_or(0))
    }

    /// Sets words from `at` on to registers, two each.
    pub fn put_registers(&mut self, at: usize, registers: &[AtomicU32]) {
        for (at, pair) in (at..).zip(registers.chunks_exact(2)) {
            let [low, high] = [0, 1].map(|half| u64::from(pair[half].load(Ordering::Relaxed)));
            self.put(at, low | high << 32);
        }
    }

    /// Sets `registers` from the words from `at` on.
    pub fn get_registers(&self, at: usize, registers: &[AtomicU32]) {
        for (at, pair) in (at..).zip(registers.chunks_exact(2)) {
            let (low, high) = halves(self.get(at));
            pair.iter().zip([low, high]).for_each(|(word, half)| word.store(half, Ordering::Relaxed));
        }
    }

    /// Brings copy `which` up to date: `store` is called for each word that it may lack.
    pub fn copy_to(&mut self, which: usize, mut store: impl FnMut(usize, u64)) {
        for (row, lacks) in self.lacks[which].iter_mut().enumerate() {
            let mut left = std::mem::take(lacks);
            while left != 0 {
                let first = (row * 64 + left.trailing_zeros() as usize) * CHUNK;
                left &= left - 1;
                let chunk = self.words.iter().enumerate().skip(first).take(CHUNK);
                chunk.for_each(|(at, word)| store(at, *word));
            }
        }
    }
}

/// A device that another process can take over.
///
/// The order of a take-over, on a device that is as new: [`adopt`](Persist::adopt), then the transport gives
/// back eventfds and memory, then [`resume`](Persist::resume).
pub trait Persist {
    /// What its image is of.
    fn format(&self) -> Format;

    /// Its files, always as many, in the same order; those that it has from now on.
    fn files(&self) -> Vec<BorrowedFd<'_>>;

    /// Writes everything else into `image`. Comes after every message, so it should look only at what may
    /// have changed.
    fn save(&mut self, image: &mut Image);

    /// Becomes what `files` and `image` say. Nothing runs yet. An error says what is wrong with them, and the
    /// device is as it was.
    fn adopt(&mut self, files: Vec<OwnedFd>, image: &Image) -> Result<(), String>;

    /// Goes on: rings first make good what was under way when their former owner ended, and the guest is
    /// interrupted for all that it may have missed.
    fn resume(&mut self);

    /// Goes on answering its driver, without rings, memory or interrupts, until another process resumes it.
    /// False: it cannot.
    fn stand_still(&mut self) -> bool {
        false
    }

    /// Takes the queues back: another process will go on from here.
    fn suspend(&mut self);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever is changed between whichever copies, each copy is the image after it was brought up to
        /// date.
        #[test]
        fn a_copy_is_what_the_image_is(
            steps in prop::collection::vec((0usize..600, any::<u64>(), 0usize..3), 1..200)
        ) {
            let mut image = Image::new(600);
            let mut copies = [vec![1; 600], vec![2; 600]];
            for (at, word, which) in steps {
                image.put(at, word);
                if let Some(copy) = copies.get_mut(which) {
                    image.copy_to(which, |at, word| copy[at] = word);
                    prop_assert_eq!(&*copy, &image.words);
                }
            }
        }
    }

    #[test]
    fn an_image_of_another_kind_or_version_is_refused_by_name() {
        let format = |kind: &str, version| Format { kind: kind.to_owned(), version, size: 8 };
        let ours = format("e1000e,csb", 3);
        assert_eq!(ours.check(2, ours.head(2)), Ok(()));
        let why = |head| ours.check(2, head).unwrap_err();
        for (other, is) in [
            (format("e1000", 3), "it is e1000, version 3,"),
            (format("e1000e,csb", 2), "it is e1000e,csb, version 2,"),
        ] {
            let why = why(other.head(2));
            assert!(
                why.contains(is) && why.contains("; e1000e,csb, version 3, of 8 words, of format 2, is read"),
                "{why}"
            );
        }
        assert!(why(ours.head(1)).contains("it is one of format 1;"));
        assert!(why([0; Format::HEAD]).contains("not an image"));
        assert!(why(format("\u{202e}x", 3).head(2)).contains("it is \\u{202e}x,"));
    }

    #[test]
    fn bytes_come_back() {
        let mut image = Image::new(8);
        image.put_bytes(1, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        let mut bytes = [0; 10];
        image.get_bytes(1, &mut bytes);
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        assert_eq!((image.get(0), image.get(2), image.get(99)), (0, 0x0a09, 0));
    }
}
