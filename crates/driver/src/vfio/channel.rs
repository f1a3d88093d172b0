//! Messages on the socket: sent whole, answered one by one.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::net::{
    recvmsg, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use sidecore_abi::vfio_user::{flags, Header, MAX_FDS};

use crate::error::{Error, Result};

/// How long one answer may take: longer than QEMU waits (5 s), so that a busy machine is not taken for a dead
/// device.
const ANSWER: Duration = Duration::from_secs(30);
/// Longest answer that we take.
const LONGEST: usize = (1 << 20) + 4096;

/// An answer.
#[derive(Debug)]
pub struct Reply {
    /// Its header.
    pub header: Header,
    /// What follows the header.
    pub payload: Vec<u8>,
    /// The descriptors that came with it.
    pub fds: Vec<OwnedFd>,
}

/// A socket on which vfio-user is spoken.
#[derive(Debug)]
pub struct Channel {
    stream: UnixStream,
    next_id: u16,
}

/// As for a vhost-user front end: the device sees the end at once, even while another process has a copy of
/// the socket.
impl Drop for Channel {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Channel {
    /// Connects to the socket at `path`.
    pub fn connect(path: &Path) -> Result<Channel> {
        let stream = UnixStream::connect(path)
            .map_err(|e| Error::io(format!("connecting to the device at {}", path.display()), e))?;
        Ok(Channel { stream, next_id: 1 })
    }

    /// Sends a command and waits for its answer.
    ///
    /// # Errors
    /// The connection is broken, or the device refused ([`Error::Refused`]).
    pub fn ask(&mut self, command: u16, parts: &[&[u8]], fds: &[BorrowedFd]) -> Result<Reply> {
        let id = self.command(command, parts, fds, flags::COMMAND)?;
        let reply = self.receive()?;
        let Header { id: got, command: about, flags: reply_flags, error, .. } = reply.header;
        if got != id || about != command || reply_flags & flags::TYPE != flags::REPLY {
            return Err(Error::Vfio(format!(
                "message {got} about command {about} came, but message {id} about {command} is due"
            )));
        }
        if reply_flags & flags::ERROR != 0 {
            return Err(Error::Refused { command, errno: error });
        }
        Ok(reply)
    }

    /// Sends a command that wants no answer.
    pub fn tell(&mut self, command: u16, parts: &[&[u8]]) -> Result<()> {
        self.command(command, parts, &[], flags::NO_REPLY).map(drop)
    }

    fn command(&mut self, command: u16, parts: &[&[u8]], fds: &[BorrowedFd], flags: u32) -> Result<u16> {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        let size = Header::SIZE + parts.iter().map(|part| part.len()).sum::<usize>();
        let size = u32::try_from(size).map_err(|_| Error::Config("a message has at most 4 GiB".into()))?;
        let header = Header { id, command, size, flags, error: 0 }.bytes();
        let mut all = vec![&header[..]];
        all.extend(parts);
        self.send(&all, fds)?;
        Ok(id)
    }

    /// Sends bytes as they are, with descriptors attached to the first one.
    pub fn send(&mut self, parts: &[&[u8]], fds: &[BorrowedFd]) -> Result<()> {
        let fail = |e: rustix::io::Errno| Error::io("sending to the device", e);
        let mut bytes: Vec<u8> = parts.concat();
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(Error::Config(format!("a message carries at most {MAX_FDS} descriptors")));
        }
        while !bytes.is_empty() {
            let sent = sendmsg(&self.stream, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL);
            bytes.drain(..sent.map_err(fail)?);
            control.clear();
        }
        Ok(())
    }

    /// Waits for the next message of the device.
    pub fn receive(&mut self) -> Result<Reply> {
        let end = Instant::now() + ANSWER;
        let mut fds = Vec::new();
        let mut header = [0; Header::SIZE];
        self.fill(&mut header, &mut fds, end)?;
        let header = Header::parse(&header).unwrap_or_default();
        let payload = (header.size as usize).checked_sub(Header::SIZE).filter(|size| *size <= LONGEST);
        let payload = payload.ok_or_else(|| {
            Error::Vfio(format!("the device says that its message has {} bytes", header.size))
        })?;
        let mut payload = vec![0; payload];
        self.fill(&mut payload, &mut fds, end)?;
        Ok(Reply { header, payload, fds })
    }

    /// Whether the device has hung up, or does so within the time that an answer may take. What it says
    /// before is thrown away.
    pub fn hangs_up(&mut self) -> bool {
        loop {
            match self.receive() {
                Ok(_) => {}
                Err(Error::Vfio(why)) => return why == HUNG_UP,
                Err(e) => {
                    return matches!(e, Error::Io { ref source, .. } if source.kind() == std::io::ErrorKind::ConnectionReset)
                }
            }
        }
    }

    fn fill(&mut self, mut into: &mut [u8], fds: &mut Vec<OwnedFd>, end: Instant) -> Result<()> {
        while !into.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            let time = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(left.subsec_nanos()),
            };
            let mut ready = [PollFd::new(&self.stream, PollFlags::IN)];
            match poll(&mut ready, Some(&time)) {
                Ok(0) => return Err(Error::Vfio(format!("the device did not answer within {ANSWER:?}"))),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(Error::io("waiting for the device", e)),
            }
            let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let got =
                recvmsg(&self.stream, &mut [IoSliceMut::new(into)], &mut control, RecvFlags::CMSG_CLOEXEC);
            let got = got.map_err(|e| Error::io("hearing the device", e))?.bytes;
            for part in control.drain() {
                if let RecvAncillaryMessage::ScmRights(received) = part {
                    fds.extend(received);
                }
            }
            if got == 0 {
                return Err(Error::Vfio(HUNG_UP.to_owned()));
            }
            into = &mut into[got..];
        }
        Ok(())
    }
}

const HUNG_UP: &str = "the device hung up";

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
