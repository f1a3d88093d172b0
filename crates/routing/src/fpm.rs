//! zebra's way to a forwarding plane, FPM: messages of rtnetlink in a stream.
//!
//! Each frame is a header of four bytes (version 1, type 1 for netlink, and the length of all of it,
//! big-endian) and one message or several; a frame ends at a multiple of four. There is no answer, no number
//! and no end of a table: what a stream has said is what there is. The peer may be any process in the
//! namespace; a stream that is no FPM ends at its first bad header, and no more than one frame of it is ever
//! kept.

use sidecore_engine::host::netlink::{bytes, messages, Malformed, Message};
use sidecore_engine::util::slice::behind;

/// Bytes of a frame's header.
pub const HEADER: usize = 4;
const VERSION: u8 = 1;
const NETLINK: u8 = 1;

/// What a stream has brought that is not yet a whole frame.
#[derive(Debug, Default)]
pub struct Stream(Vec<u8>);

impl Stream {
    /// Takes what comes next; `each` gets the messages of all frames that are whole now. One that is not
    /// sound is the last of its frame.
    ///
    /// # Errors
    /// It is no FPM: nothing behind that can be understood.
    pub fn take(
        &mut self,
        more: &[u8],
        mut each: impl FnMut(Result<Message<'_>, Malformed>),
    ) -> Result<(), Malformed> {
        self.0.extend(more);
        let mut at = 0;
        loop {
            let rest = behind(&self.0, at);
            let Ok([version, kind, high, low]) = bytes::<HEADER>(rest, 0) else { break };
            let len = usize::from(u16::from_be_bytes([high, low]));
            if version != VERSION || kind != NETLINK || len < HEADER {
                self.0.clear();
                return Err(Malformed);
            }
            let Some(frame) = rest.get(HEADER..len) else { break };
            messages(frame).for_each(&mut each);
            at += len;
        }
        self.0.drain(..at.min(self.0.len()));
        Ok(())
    }

    /// Bytes that wait for the rest of their frame: less than 64 KiB.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.0.len()
    }
}

/// The frame of `message`, as a peer sends it: for tests.
#[must_use]
pub fn frame(message: &[u8]) -> Vec<u8> {
    let len = u16::try_from(HEADER + message.len()).unwrap_or(u16::MAX).to_be_bytes();
    [&[VERSION, NETLINK][..], &len, message].concat()
}

#[cfg(test)]
mod tests {
    use sidecore_engine::host::netlink::{kind, Builder};

    use super::*;

    #[test]
    fn frames_come_whole_however_they_are_cut() {
        let one = frame(&Builder::new(kind::NEWROUTE, 0, 1, &[7; 12]).end());
        let two =
            [Builder::new(kind::DELROUTE, 0, 2, &[]).end(), Builder::new(kind::NEWROUTE, 0, 3, &[]).end()];
        let all = [one, frame(&two.concat())].concat();
        for size in 1..=all.len() {
            let (mut stream, mut seen) = (Stream::default(), Vec::new());
            for part in all.chunks(size) {
                stream.take(part, |message| seen.push(message.unwrap().sequence)).unwrap();
            }
            assert_eq!((seen, stream.waiting()), (vec![1, 2, 3], 0), "{size}");
        }
    }

    #[test]
    fn what_is_no_fpm_ends_and_a_bad_message_costs_its_frame() {
        for bad in [[2, 1, 0, 8], [1, 2, 0, 8], [1, 1, 0, 3]] {
            assert_eq!(Stream::default().take(&bad, |_| ()), Err(Malformed));
        }
        let mut stream = Stream::default();
        let bad = frame(&[9; 20]);
        let good = frame(&Builder::new(kind::NEWROUTE, 0, 1, &[]).end());
        let mut seen = Vec::new();
        stream.take(&[bad, good].concat(), |message| seen.push(message.map(|it| it.sequence))).unwrap();
        assert_eq!(seen, [Err(Malformed), Ok(1)]);
        // Half a frame that never ends is kept, and no more.
        stream.take(&[1, 1, 0xff, 0xff], |_| ()).unwrap();
        assert_eq!(stream.take(&[0; 0xfff0], |_| ()), Ok(()));
        assert_eq!(stream.waiting(), 0xfff4);
        // Its end, and something that begins no frame: nothing is kept.
        assert_eq!(stream.take(&[0; 0xff], |_| ()), Err(Malformed));
        assert_eq!(stream.waiting(), 0);
    }
}
