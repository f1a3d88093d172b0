//! Messages of rtnetlink(7): taken apart and put together.
//!
//! Theory of operation. A message is a header of 16 bytes and a body; a body is a fixed part and attributes,
//! each with a length and a kind, each beginning at a multiple of four. Numbers are in the machine's own
//! order. Any process may have sent a message: each length is judged against the bytes that came, and a
//! message that is not sound is [`Malformed`] as a whole.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use crate::util::slice::{behind, upto};

/// Kinds of messages (linux/netlink.h, linux/rtnetlink.h).
pub mod kind {
    #![allow(missing_docs, reason = "the kernel's names")]
    pub use libc::{
        RTM_DELADDR as DELADDR, RTM_DELLINK as DELLINK, RTM_DELNEIGH as DELNEIGH, RTM_DELROUTE as DELROUTE,
        RTM_GETADDR as GETADDR, RTM_GETLINK as GETLINK, RTM_GETNEIGH as GETNEIGH, RTM_GETROUTE as GETROUTE,
        RTM_NEWADDR as NEWADDR, RTM_NEWLINK as NEWLINK, RTM_NEWNEIGH as NEWNEIGH, RTM_NEWROUTE as NEWROUTE,
        RTM_SETLINK as SETLINK,
    };
    pub const ERROR: u16 = 2;
    pub const DONE: u16 = 3;
    pub const NEWNEXTHOP: u16 = 104;
    pub const DELNEXTHOP: u16 = 105;
    pub const GETNEXTHOP: u16 = 106;
}

/// It is a request.
pub const REQUEST: u16 = 1;
/// An answer is wanted, if only that it was done.
pub const ACK: u16 = 4;
/// What there was has changed while it was told.
pub const INTERRUPTED: u16 = 0x10;
/// All that there is.
pub const DUMP: u16 = 0x300;
/// Make it; it may be there.
pub const CREATE: u16 = 0x400;
/// What is there is replaced.
pub const REPLACE: u16 = 0x100;

/// Bytes of a header.
pub const HEADER: usize = 16;

/// What comes is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a netlink message whose lengths contradict each other")]
pub struct Malformed;

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'m> {
    /// Its [`kind`].
    pub kind: u16,
    /// Its flags.
    pub flags: u16,
    /// The number of the request that it answers.
    pub sequence: u32,
    /// The fixed part and the attributes.
    pub body: &'m [u8],
}

/// The `N` bytes at `at`.
pub fn bytes<const N: usize>(all: &[u8], at: usize) -> Result<[u8; N], Malformed> {
    behind(all, at).first_chunk().copied().ok_or(Malformed)
}

/// The 16-bit number at `at`.
///
/// # Errors
/// There is none.
pub fn short(all: &[u8], at: usize) -> Result<u16, Malformed> {
    bytes(all, at).map(u16::from_ne_bytes)
}

/// The 32-bit number at `at`.
///
/// # Errors
/// There is none.
pub fn word(all: &[u8], at: usize) -> Result<u32, Malformed> {
    bytes(all, at).map(u32::from_ne_bytes)
}

/// One of several things behind each other, and the bytes behind it.
type First<'a, T> = Result<(T, &'a [u8]), Malformed>;

/// All that `first` finds in `rest`; the first one that is not sound is the last.
fn each<'a, T: 'a>(
    mut rest: &'a [u8],
    first: fn(&'a [u8]) -> First<'a, T>,
) -> impl Iterator<Item = Result<T, Malformed>> + 'a {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let taken = first(rest);
        rest = taken.as_ref().map_or(&[], |(_, rest)| rest);
        Some(taken.map(|(it, _)| it))
    })
}

/// The messages in `all`, one behind the other; the first one that is none is the last.
pub fn messages(all: &[u8]) -> impl Iterator<Item = Result<Message<'_>, Malformed>> {
    each(all, message)
}

fn message(all: &[u8]) -> First<'_, Message<'_>> {
    let len = word(all, 0)? as usize;
    let whole = all.get(..len).filter(|_| len >= HEADER).ok_or(Malformed)?;
    let message = Message {
        kind: short(whole, 4)?,
        flags: short(whole, 6)?,
        sequence: word(whole, 8)?,
        body: behind(whole, HEADER),
    };
    Ok((message, behind(all, len.next_multiple_of(4))))
}

/// The attributes in `all`, kinds without their flag bits; the first one that is none is the last.
pub fn attributes(all: &[u8]) -> impl Iterator<Item = Result<(u16, &[u8]), Malformed>> {
    each(all, attribute)
}

/// NLA_F_NESTED and NLA_F_NET_BYTEORDER.
const FLAGS: u16 = 0xc000;

fn attribute(all: &[u8]) -> First<'_, (u16, &[u8])> {
    let len = usize::from(short(all, 0)?);
    let whole = all.get(..len).filter(|_| len >= 4).ok_or(Malformed)?;
    Ok(((short(whole, 2)? & !FLAGS, behind(whole, 4)), behind(all, len.next_multiple_of(4))))
}

/// A message that is put together.
pub struct Builder(Vec<u8>);

impl Builder {
    /// A message with this fixed part.
    pub fn new(kind: u16, flags: u16, sequence: u32, fixed: &[u8]) -> Builder {
        let mut all = vec![0; 4];
        all.extend(kind.to_ne_bytes());
        all.extend(flags.to_ne_bytes());
        all.extend(sequence.to_ne_bytes());
        all.extend([0; 4]);
        all.extend(fixed);
        all.resize(all.len().next_multiple_of(4), 0);
        Builder(all)
    }

    /// Adds an attribute.
    #[must_use]
    pub fn with(mut self, kind: u16, value: &[u8]) -> Builder {
        let len = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
        self.0.extend(len.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(upto(value, usize::from(len) - 4));
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// The message's bytes.
    pub fn end(mut self) -> Vec<u8> {
        let len = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        crate::util::slice::put(&mut self.0, 0, &len.to_ne_bytes());
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_what_they_were_made_of() {
        let one = Builder::new(kind::NEWROUTE, REQUEST | ACK, 7, &[1, 2, 3, 4])
            .with(1, &[10, 0, 0])
            .with(0x8002, b"x");
        let all = [one.end(), Builder::new(kind::DONE, 0, 8, &[]).end()].concat();
        let got: Vec<_> = messages(&all).map(Result::unwrap).collect();
        assert_eq!((got[0].kind, got[0].flags, got[0].sequence), (kind::NEWROUTE, REQUEST | ACK, 7));
        let attributes: Vec<_> = attributes(&got[0].body[4..]).map(Result::unwrap).collect();
        assert_eq!(attributes, [(1, &[10, 0, 0][..]), (2, b"x")]);
        assert_eq!((got[1].kind, got[1].sequence, got[1].body), (kind::DONE, 8, &[][..]));
        assert_eq!(got.len(), 2);
    }

    #[test]
    fn lengths_that_contradict_what_there_is_end_it() {
        let sound = Builder::new(kind::NEWROUTE, 0, 1, &[0; 4]).with(1, &[1; 4]).end();
        for len in [0u32, 15, 29, u32::MAX] {
            let mut bad = sound.clone();
            bad[..4].copy_from_slice(&len.to_ne_bytes());
            let got: Vec<_> = messages(&bad).take(9).collect();
            assert_eq!(got, [Err(Malformed)], "{len}");
        }
        for len in [0u16, 3, 9, u16::MAX] {
            let mut bad = sound[20..].to_vec();
            bad[..2].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(attributes(&bad).take(9).collect::<Vec<_>>(), [Err(Malformed)], "{len}");
        }
        (0..sound.len()).for_each(|cut| assert!(cut == 0 || messages(&sound[..cut]).all(|it| it.is_err())));
    }
}
