//! Records: words and a text of one size for both, and the rules for texts.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Longest text of a record: a path.
pub const MAX_TEXT: usize = 4096;
/// Words of a record: what, number, bytes of text, and five with a meaning of their own.
const WORDS: usize = 8;
/// Bytes of a record.
pub const RECORD: usize = 8 * WORDS + MAX_TEXT;
/// Most descriptors that go along.
pub const MAX_FDS: usize = 2;
/// The first word: the protocol's number above, what is asked or answered below.
pub(super) const PROTOCOL: u64 = 0x7363_6272 << 32;
pub(super) const DONE: u64 = PROTOCOL | 0x100;
pub(super) const FAILED: u64 = PROTOCOL | 0x101;

/// Why a record is no request.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is no request that is known")]
pub struct NoRequest;

/// An absolute path.
pub(super) fn path(text: &[u8]) -> Result<PathBuf, NoRequest> {
    let path = Path::new(std::ffi::OsStr::from_bytes(text));
    (path.is_absolute() && !text.contains(&0)).then(|| path.to_owned()).ok_or(NoRequest)
}

/// A name without a folder.
pub(super) fn name(text: &[u8]) -> Result<String, NoRequest> {
    let text = std::str::from_utf8(text).map_err(|_| NoRequest)?;
    let good = text.len() < 256 && !text.starts_with('.') && text.chars().all(|c| c.is_ascii_graphic());
    (good && !text.contains('/')).then(|| text.to_owned()).ok_or(NoRequest)
}

pub(super) fn record(what: u64, number: u64, words: [u64; 5], text: &[u8]) -> io::Result<[u8; RECORD]> {
    let mut bytes = [0; RECORD];
    let room = bytes.get_mut(8 * WORDS..8 * WORDS + text.len());
    room.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path is too long"))?
        .copy_from_slice(text);
    let head = [what, number, text.len() as u64].into_iter().chain(words);
    for (place, word) in bytes.chunks_exact_mut(8).zip(head) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    Ok(bytes)
}

/// First word, number, arguments and text of a record.
pub(super) fn parts(bytes: &[u8]) -> Option<(u64, u64, [u64; 5], &[u8])> {
    if bytes.len() != RECORD {
        return None;
    }
    let mut words = [0; WORDS];
    for (word, place) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        let mut raw = [0; 8];
        raw.copy_from_slice(place);
        *word = u64::from_ne_bytes(raw);
    }
    let [what, number, len, arguments @ ..] = words;
    let text = bytes[8 * WORDS..].get(..usize::try_from(len).ok()?)?;
    Some((what, number, arguments, text))
}

/// The number of a record that is no request, as far as it can be told.
pub(crate) fn number(bytes: &[u8]) -> u64 {
    parts(bytes).map_or(0, |(_, number, ..)| number)
}
