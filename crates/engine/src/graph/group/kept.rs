//! What a group keeps for the next daemon: the key of its hash, its members' numbers, and who has which
//! bucket.
//!
//! Theory of operation. The mover writes down the owner of each bucket that it has moved, as a byte in a file
//! of the daemon's own. If the daemon is killed between the move and the note, the next one finds the former
//! owner there. The bucket was idle, or its owner gone, so its flows may be at either.

use std::fs::File;
use std::io;
use std::sync::atomic::Ordering::Relaxed;

use super::buckets::{BUCKETS, MAX_MEMBERS, NO_MEMBER};
use crate::mem::SharedFile;
use crate::sandbox::open::allocate;

/// The layout's name and version, in the file's first word once all else is written.
const MAGIC: u64 = u64::from_le_bytes(*b"sc-grp-1");
/// Where the key is.
const KEY: usize = 8;
/// Where members' names are.
const NAMES: usize = 64;
/// Bytes of a name: 63 at most, and a zero.
const NAME: usize = 64;
/// Where buckets' owners are.
const OWNERS: usize = NAMES + MAX_MEMBERS * NAME;
const BYTES: usize = OWNERS + BUCKETS;

/// A group's file.
pub struct KeptGroup(SharedFile);

impl KeptGroup {
    /// Maps `file`, which is the daemon's own. A new one gets this `key`, and has no members.
    ///
    /// # Errors
    /// There is no room for it, or it cannot be mapped.
    pub fn open(file: &File, key: [u64; 2]) -> io::Result<KeptGroup> {
        allocate(file, BYTES as u64)?;
        let kept = KeptGroup(SharedFile::map(file, 0, BYTES as u64)?);
        if kept.word(0) != MAGIC {
            (0..MAX_MEMBERS).for_each(|number| kept.set_name(number, ""));
            (0..BUCKETS).for_each(|bucket| kept.set_owner(bucket, NO_MEMBER));
            (0..).zip(key).for_each(|(n, word)| kept.set_word(KEY + 8 * n, word));
            kept.set_word(0, MAGIC);
        }
        Ok(kept)
    }

    fn word(&self, at: usize) -> u64 {
        self.0.word(at).map_or(0, |word| u64::from_le(word.load(Relaxed)))
    }

    fn set_word(&self, at: usize, value: u64) {
        if let Some(word) = self.0.word(at) {
            word.store(value.to_le(), Relaxed);
        }
    }

    fn byte(&self, at: usize) -> u8 {
        self.0.byte(at).map_or(0, |byte| byte.load(Relaxed))
    }

    fn set_byte(&self, at: usize, value: u8) {
        if let Some(byte) = self.0.byte(at) {
            byte.store(value, Relaxed);
        }
    }

    /// The key of the group's hash.
    pub fn key(&self) -> [u64; 2] {
        [KEY, KEY + 8].map(|at| self.word(at))
    }

    /// The name of member `number`; empty: there is none.
    pub fn name(&self, number: usize) -> String {
        let bytes = (0..NAME - 1).map(|n| self.byte(NAMES + number * NAME + n));
        String::from_utf8(bytes.take_while(|byte| *byte != 0).collect()).unwrap_or_default()
    }

    /// Member `number` has this name, of 63 bytes at most, from now on.
    pub fn set_name(&self, number: usize, name: &str) {
        let bytes = name.bytes().chain(std::iter::repeat(0));
        (0..NAME).zip(bytes).for_each(|(n, byte)| self.set_byte(NAMES + number * NAME + n, byte));
    }

    /// The member that has `bucket`.
    pub fn owner(&self, bucket: usize) -> u8 {
        self.byte(OWNERS + bucket)
    }

    /// Member `to` has `bucket` now.
    pub fn set_owner(&self, bucket: usize, to: u8) {
        self.set_byte(OWNERS + bucket, to);
    }
}
