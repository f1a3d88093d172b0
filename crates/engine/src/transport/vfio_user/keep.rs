//! What a conversation leaves behind for the next daemon, and how every message is done exactly once.
//!
//! Theory of operation. A VMM that cannot connect again must not notice that the daemon was killed: the
//! socket, its memory and its eventfds are with a holder (`crate::sandbox::holder`), and so are two files of
//! ours.
//!
//! The *state* holds two copies of an [`Image`] of device and session, and two numbers: how many messages the
//! newer copy has seen (`COMMIT`), and how many have been taken from the socket and answered (`DONE`). A
//! message is
//! 1. looked at, not taken (MSG_PEEK hands out duplicates of its descriptors), and handled; descriptors go to
//!    the holder;
//! 2. committed: the older copy is brought up to date, the answer written to the file of *answers*, `COMMIT`
//!    goes up;
//! 3. taken from the socket;
//! 4. answered by `sendfile`;
//! 5. done: `DONE` goes up.
//!
//! Killed before 2, the successor finds the state before the message and the message: it handles it again.
//! (What lies in files of the device's own may have changed already; writing a register twice does no harm.)
//! Killed later, `COMMIT` is ahead, and two numbers that the kernel keeps tell how far it came, because the
//! kernel changes them in the same call: how much of what was looked at is still in the socket
//! ([`peeked`](crate::mem::peeked)), and the file position of the answers, which is where `sendfile` has got
//! to. So the rest is taken, the rest is sent, and no answer comes twice or not at all. The one exception is
//! an answer with a descriptor, which `sendfile` cannot carry (the VMM asks for those while it starts):
//! killed between 3 and 5 of such a message, the connection is given up.
//!
//! Answers reach the socket as references to the file's pages, so the file is far larger than a socket's
//! buffer: a stretch is written again when its former content has long been read.
//!
//! Only we and the holder ever see these files. Their [`Format`] stands in front; another one is refused.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use super::messages::Answer;
use crate::device::pci::{Format, Image, Index, PciDevice, Persist};
use crate::mem::{memory_file, sparse_file, JournalSlot, SharedFile};
use crate::sandbox::holder::{Found, Holder};

/// To be raised when anything here, or in what a session saves, means something else.
const VERSION: u64 = 2;
/// Words of the state, behind what it is of.
const COMMIT: usize = Format::HEAD;
const DONE: usize = COMMIT + 1;
const HEAD: usize = 64;
/// Words in front of a copy: bytes of the message, and where its answer is.
const TAKEN: usize = 0;
const ANSWER: usize = 1;
const ANSWER_LEN: usize = 2;
const WITH_FD: usize = 3;
const COPY_HEAD: usize = 8;

/// Bytes for answers; the longest one is a quarter of it.
const ANSWERS: usize = 4 << 20;

/// Keys of descriptors.
pub(super) mod key {
    use crate::device::pci::Index;

    pub(in super::super) const STATE: u64 = 1;
    pub(in super::super) const ANSWERS: u64 = 2;
    pub(in super::super) const STREAM: u64 = 3;
    pub(in super::super) const RESAMPLE: u64 = 4;
    const DEVICE: u64 = 16;
    const TRIGGER: u64 = 1 << 16;
    const MEMORY: u64 = 1 << 32;

    pub(in super::super) fn device(file: usize) -> u64 {
        DEVICE + file as u64
    }

    pub(in super::super) fn trigger(index: Index, number: usize) -> u64 {
        TRIGGER | (index as u64) << 12 | number as u64
    }

    pub(in super::super) fn memory(range: u32) -> u64 {
        MEMORY | u64::from(range)
    }
}

/// What was under way when a daemon ended.
pub(super) struct Pending {
    /// Bytes of the message.
    pub(super) taken: usize,
    /// Bytes of its answer that have not been sent.
    pub(super) unsent: usize,
    /// A descriptor belongs to the answer.
    pub(super) with_fd: bool,
}

/// A conversation's estate.
pub(super) struct Keep {
    holder: Holder,
    keys: BTreeSet<u64>,
    state: JournalSlot,
    answers: SharedFile,
    answers_file: File,
    /// Where the next answer goes.
    at: usize,
    pub(super) image: Image,
    /// Words of it that are the device's.
    pub(super) device: usize,
    count: u64,
}

/// The image of a device and of a session that saves `words`, and what it is of.
fn image_of(device: &dyn Persist, words: usize) -> (Format, Image) {
    let format = device.format();
    let size = format.size + words;
    (Format { size, ..format }, Image::new(size))
}

fn map(file: &File) -> io::Result<SharedFile> {
    SharedFile::map(file, 0, file.metadata()?.len())
}

impl Keep {
    /// Has `holder`, a new one, keep a conversation on `stream` with `device`; `words` are what the session
    /// itself saves. An error says why nothing is kept.
    pub(super) fn begin(
        holder: Holder,
        stream: &UnixStream,
        device: &mut dyn PciDevice,
        words: usize,
    ) -> Result<Keep, String> {
        let device = device.persist().ok_or("this kind of device cannot be taken over")?;
        let (format, image) = image_of(device, words);
        let size = format.size - words;
        let file = memory_file(c"sidecore-vfio-user", 8 * (HEAD + 2 * (COPY_HEAD + image.size())));
        let file = file.map_err(|e| e.to_string())?;
        let answers_file = sparse_file(c"sidecore-answers", ANSWERS).map_err(|e| e.to_string())?;
        let state = JournalSlot::at(&Arc::new(map(&file).map_err(|e| e.to_string())?), 0);
        format.head(VERSION).into_iter().enumerate().for_each(|(at, word)| state.set(at, word));
        let mut keep = Keep {
            holder,
            keys: BTreeSet::new(),
            answers: map(&answers_file).map_err(|e| e.to_string())?,
            state,
            answers_file,
            at: 0,
            image,
            device: size,
            count: 0,
        };
        keep.put(key::STATE, file.as_fd())?;
        let answers = keep.answers_file.try_clone().map_err(|e| e.to_string())?;
        keep.put(key::ANSWERS, answers.as_fd())?;
        for (index, file) in device.files().into_iter().enumerate() {
            keep.put(key::device(index), file)?;
        }
        keep.commit(0, None);
        keep.done();
        // The last: what has a socket is whole.
        keep.put(key::STREAM, stream.as_fd())?;
        Ok(keep)
    }

    /// Opens what another daemon left with `holder` for a device like `device`; gives back the connection,
    /// and the files of the device. An error says what is wrong with it.
    pub(super) fn open(
        holder: Holder,
        found: &mut Found,
        device: &mut dyn PciDevice,
        words: usize,
    ) -> Result<(Keep, UnixStream, Vec<OwnedFd>), String> {
        let device = device.persist().ok_or("this kind of device cannot be taken over")?;
        let keys = found.keys().copied().collect();
        let mut take = |key: u64, what: &str| found.remove(&key).ok_or_else(|| format!("{what} is missing"));
        let stream = take(key::STREAM, "the connection")?;
        let file = File::from(take(key::STATE, "the state")?);
        let answers_file = File::from(take(key::ANSWERS, "the file of answers")?);
        let files = (0..device.files().len()).map(|index| take(key::device(index), "a file of the device"));
        let files = files.collect::<Result<Vec<_>, _>>()?;
        let state = JournalSlot::at(&Arc::new(map(&file).map_err(|e| e.to_string())?), 0);
        let (format, mut image) = image_of(device, words);
        let size = format.size - words;
        format.check(VERSION, std::array::from_fn(|at| state.get(at)))?;
        let count = state.get(COMMIT);
        let copy = copy_at(&image, count);
        (0..image.size()).for_each(|at| image.put(at, state.get(copy + COPY_HEAD + at)));
        let answers = SharedFile::map(&answers_file, 0, ANSWERS as u64).map_err(|e| e.to_string())?;
        let keep =
            Keep { holder, keys, state, answers, answers_file, at: ANSWERS, image, device: size, count };
        Ok((keep, stream.into(), files))
    }

    /// Has `fd` kept under `key`. An error says that the holder does not keep it.
    pub(super) fn put(&mut self, key: u64, fd: BorrowedFd) -> Result<(), String> {
        self.keys.insert(key);
        self.holder.put(key, fd).map_err(|e| e.to_string())
    }

    /// Has what is under `key` kept no longer.
    pub(super) fn forget(&mut self, key: u64) {
        if self.keys.remove(&key) {
            // A holder that is gone keeps nothing; the conversation learns of it by itself.
            let _ = self.holder.forget(key);
        }
    }

    /// Forgets the eventfds of all interrupts of kind `index`.
    pub(super) fn forget_triggers(&mut self, index: Index, count: usize) {
        (0..count).for_each(|number| self.forget(key::trigger(index, number)));
        if index == Index::Intx {
            self.forget(key::RESAMPLE);
        }
    }

    /// Writes down a message of `taken` bytes that was handled, and its answer.
    pub(super) fn commit(&mut self, taken: usize, answer: Option<&Answer>) {
        let (bytes, with_fd) =
            answer.map_or((&[][..], false), |answer| (answer.bytes(), answer.fd.is_some()));
        if self.at + bytes.len() > ANSWERS {
            self.at = 0;
            // Fails only for places before the first.
            let _ = self.answers_file.seek(SeekFrom::Start(0));
        }
        for (index, byte) in bytes.iter().enumerate().filter(|_| !with_fd) {
            if let Some(place) = self.answers.byte(self.at + index) {
                place.store(*byte, Ordering::Relaxed);
            }
        }
        let next = self.count.wrapping_add(1);
        let copy = copy_at(&self.image, next);
        let state = &self.state;
        self.image.copy_to(which(next), |at, word| state.set(copy + COPY_HEAD + at, word));
        state.set(copy + TAKEN, taken as u64);
        state.set(copy + ANSWER, self.at as u64);
        state.set(copy + ANSWER_LEN, bytes.len() as u64);
        state.set(copy + WITH_FD, with_fd.into());
        self.count = next;
        state.set(COMMIT, next);
        if !with_fd {
            self.at += bytes.len();
        }
    }

    /// The file from which the answer that was committed last is sent.
    pub(super) fn answers(&self) -> &File {
        &self.answers_file
    }

    /// The message that was committed last was taken and answered.
    pub(super) fn done(&self) {
        self.state.set(DONE, self.count);
    }

    /// What was under way when the daemon before us ended.
    pub(super) fn pending(&mut self) -> io::Result<Option<Pending>> {
        if self.state.get(DONE) == self.count {
            return Ok(None);
        }
        let copy = copy_at(&self.image, self.count);
        let number = |at| usize::try_from(self.state.get(copy + at)).unwrap_or(usize::MAX);
        let (start, len) = (number(ANSWER), number(ANSWER_LEN));
        let with_fd = number(WITH_FD) != 0;
        let position = usize::try_from(self.answers_file.stream_position()?).unwrap_or(usize::MAX);
        let sent = if with_fd { 0 } else { position.saturating_sub(start) };
        // The file may have become a longer one in the holder's hands.
        if len > ANSWERS {
            return Err(io::Error::other("the last answer is longer than any"));
        }
        Ok(Some(Pending { taken: number(TAKEN), unsent: len.saturating_sub(sent), with_fd }))
    }

    /// Readable when the holder is gone.
    pub(super) fn end_of_holder(&self) -> Option<BorrowedFd<'_>> {
        self.holder.end()
    }

    /// Ends: nothing is kept any more, and the holder ends, too.
    pub(super) fn end(mut self) {
        while let Some(key) = self.keys.pop_first() {
            if self.holder.forget(key).is_err() {
                return;
            }
        }
    }
}

fn which(count: u64) -> usize {
    usize::from(count % 2 == 1)
}

/// The word at which the copy starts that has seen `count` messages.
fn copy_at(image: &Image, count: u64) -> usize {
    HEAD + which(count) * (COPY_HEAD + image.size())
}
