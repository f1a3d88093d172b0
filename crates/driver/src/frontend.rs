//! The orderly vhost-user conversation, front end's part.
//!
//! One [`Frontend`] is one connection. Either side may be the one that listens, so there are two ways
//! to make one: [`Frontend::connect`] and [`Listener::accept`]. Every call is synchronous: with
//! REPLY_ACK negotiated each setting is acknowledged before the call returns, without it the order of
//! messages on the socket is all that is promised.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags};

use crate::error::{Error, Result};
use crate::raw::{request, Message, FLAG_NEED_REPLY};

/// Protocol feature bits.
pub mod protocol {
    pub use sidecore_abi::vhost_user::protocol::*;

    /// Everything that this front end can speak with any device. CONFIG and BACKEND_REQ are for those that
    /// have something to say there.
    pub const ALL: u64 = MQ
        | LOG_SHMFD
        | RARP
        | REPLY_ACK
        | MTU
        | INFLIGHT_SHMFD
        | RESET_DEVICE
        | CONFIGURE_MEM_SLOTS
        | STATUS;
}

/// How long one answer may take.
const ANSWER: Duration = Duration::from_secs(5);

/// A region of memory as the messages describe it.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// Guest physical address.
    pub gpa: u64,
    /// Bytes.
    pub size: u64,
    /// User address in the front end.
    pub user: u64,
    /// Offset in the file.
    pub offset: u64,
}

/// A ring's three addresses, as user addresses.
#[derive(Clone, Copy, Debug)]
pub struct RingAddresses {
    /// Descriptors.
    pub desc: u64,
    /// Used ring; packed: device event suppression.
    pub used: u64,
    /// Available ring; packed: driver event suppression.
    pub avail: u64,
}

/// The shared record of descriptors in flight (INFLIGHT_SHMFD).
#[derive(Debug)]
pub struct Inflight {
    /// The file, made by the backend.
    pub fd: OwnedFd,
    /// Bytes of it.
    pub size: u64,
    /// Offset in it.
    pub offset: u64,
    /// Queues that it covers.
    pub queues: u16,
    /// Entries of each queue.
    pub queue_size: u16,
}

/// A socket on which backends call.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// Listens at `path`, replacing a socket that no process serves.
    pub fn new(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref().to_path_buf();
        // Connecting to a file that is no socket is refused, too (unix(7)).
        let is_socket = std::fs::symlink_metadata(&path).is_ok_and(|it| it.file_type().is_socket());
        let refused = |e: io::Error| e.kind() == io::ErrorKind::ConnectionRefused;
        if is_socket && UnixStream::connect(&path).is_err_and(refused) {
            let _ = std::fs::remove_file(&path);
        }
        let socket = UnixListener::bind(&path)
            .map_err(|e| Error::io(format!("listening at {}", path.display()), e))?;
        Ok(Self { socket, path })
    }

    /// Waits for a backend to connect.
    pub fn accept(&self, timeout: Duration) -> Result<Frontend> {
        let what = || format!("no backend connected to {}", self.path.display());
        let limit = rustix::time::Timespec::try_from(timeout)
            .map_err(|_| Error::Config("timeout out of range".into()))?;
        let ready = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&limit))
            .map_err(|e| Error::io(what(), e))?;
        if ready == 0 {
            return Err(Error::io(what(), io::Error::from(io::ErrorKind::TimedOut)));
        }
        let (socket, _) = self.socket.accept().map_err(|e| Error::io(what(), e))?;
        Frontend::new(socket)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// One connection to a backend.
#[derive(Debug)]
pub struct Frontend {
    socket: UnixStream,
    acknowledged: bool,
}

/// The backend sees the end at once. Closing alone would not do: a process that another thread starts at this
/// moment has a copy of the socket until it runs its program.
impl Drop for Frontend {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

impl Frontend {
    /// Takes over a connected socket.
    pub fn new(socket: UnixStream) -> Result<Self> {
        socket.set_read_timeout(Some(ANSWER)).map_err(|e| Error::io("setting the socket's timeout", e))?;
        Ok(Self { socket, acknowledged: false })
    }

    /// Connects to a backend that listens at `path`; tries again until `timeout`, because a backend
    /// that was just started may not have made its socket yet.
    pub fn connect(path: impl AsRef<Path>, timeout: Duration) -> Result<Self> {
        let start = Instant::now();
        loop {
            match UnixStream::connect(path.as_ref()) {
                Ok(socket) => return Self::new(socket),
                Err(error) if start.elapsed() > timeout => {
                    return Err(Error::io(format!("connecting to {}", path.as_ref().display()), error));
                }
                // A path that does not exist yet cannot be waited for with poll(2).
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    }

    /// The socket, for [`crate::raw`] messages.
    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }

    fn send(&self, message: &Message) -> Result<()> {
        message.send(&self.socket).map_err(|e| Error::io(format!("sending request {}", message.request), e))
    }

    fn answer(&self, to: u32) -> Result<Message> {
        let answer =
            Message::receive(&self.socket).map_err(|e| Error::io(format!("answer to request {to}"), e))?;
        if answer.request != to {
            return Err(Error::Backend(format!("answered request {to} with {}", answer.request)));
        }
        Ok(answer)
    }

    /// Asks a question that has an answer of its own.
    pub fn ask(&self, question: &Message) -> Result<Message> {
        self.send(question)?;
        self.answer(question.request)
    }

    fn ask_word(&self, request: u32) -> Result<u64> {
        let answer = self.ask(&Message::new(request, Vec::new()))?;
        answer.word(0).ok_or_else(|| Error::Backend(format!("answer to request {request} is too short")))
    }

    /// Sends a setting, and waits for its acknowledgement if that was negotiated.
    pub fn set(&self, message: Message) -> Result<()> {
        if !self.acknowledged {
            return self.send(&message);
        }
        let message = message.flagged(FLAG_NEED_REPLY);
        match self.ask(&message)?.word(0) {
            Some(0) => Ok(()),
            code => Err(Error::Backend(format!("refused request {} with {code:?}", message.request))),
        }
    }

    /// SET_OWNER.
    pub fn set_owner(&self) -> Result<()> {
        self.set(Message::new(request::SET_OWNER, Vec::new()))
    }

    /// GET_FEATURES.
    pub fn features(&self) -> Result<u64> {
        self.ask_word(request::GET_FEATURES)
    }

    /// SET_FEATURES.
    pub fn set_features(&self, features: u64) -> Result<()> {
        self.set(Message::words(request::SET_FEATURES, &[features]))
    }

    /// GET_PROTOCOL_FEATURES.
    pub fn protocol_features(&self) -> Result<u64> {
        self.ask_word(request::GET_PROTOCOL_FEATURES)
    }

    /// SET_PROTOCOL_FEATURES; from here on settings are acknowledged if REPLY_ACK is among them.
    pub fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        self.acknowledged = false;
        self.set(Message::words(request::SET_PROTOCOL_FEATURES, &[features]))?;
        self.acknowledged = features & protocol::REPLY_ACK != 0;
        Ok(())
    }

    /// GET_QUEUE_NUM: queue pairs of a network device, queues of others.
    pub fn queue_count(&self) -> Result<u64> {
        self.ask_word(request::GET_QUEUE_NUM)
    }

    /// SET_MEM_TABLE with regions of one file each.
    pub fn set_mem_table(&self, regions: &[(Region, BorrowedFd<'_>)]) -> Result<()> {
        let mut words = vec![regions.len() as u64];
        for (region, _) in regions {
            words.extend([region.gpa, region.size, region.user, region.offset]);
        }
        let mut message = Message::words(request::SET_MEM_TABLE, &words);
        for (_, file) in regions {
            message = message.with_fd(file).map_err(|e| Error::io("duplicating the memory's file", e))?;
        }
        self.set(message)
    }

    /// GET_MAX_MEM_SLOTS.
    pub fn max_mem_slots(&self) -> Result<u64> {
        self.ask_word(request::GET_MAX_MEM_SLOTS)
    }

    /// ADD_MEM_REG.
    pub fn add_region(&self, region: Region, file: impl AsFd) -> Result<()> {
        let words = [0, region.gpa, region.size, region.user, region.offset];
        let message = Message::words(request::ADD_MEM_REG, &words).with_fd(file);
        self.set(message.map_err(|e| Error::io("duplicating the memory's file", e))?)
    }

    /// REM_MEM_REG.
    pub fn remove_region(&self, region: Region) -> Result<()> {
        let words = [0, region.gpa, region.size, region.user, region.offset];
        self.set(Message::words(request::REM_MEM_REG, &words))
    }

    /// SET_VRING_NUM: entries of the ring.
    pub fn set_vring_num(&self, queue: u16, entries: u16) -> Result<()> {
        self.set(Message::state(request::SET_VRING_NUM, queue.into(), entries.into()))
    }

    /// SET_VRING_BASE: where the device goes on.
    pub fn set_vring_base(&self, queue: u16, base: u32) -> Result<()> {
        self.set(Message::state(request::SET_VRING_BASE, queue.into(), base))
    }

    /// GET_VRING_BASE: stops the ring and tells where the device was.
    pub fn vring_base(&self, queue: u16) -> Result<u32> {
        let answer = self.ask(&Message::state(request::GET_VRING_BASE, queue.into(), 0))?;
        let word = answer.word(0).ok_or_else(|| Error::Backend("GET_VRING_BASE: short answer".into()))?;
        Ok((word >> 32 & 0xffff_ffff) as u32)
    }

    /// SET_VRING_ADDR.
    pub fn set_vring_addr(&self, queue: u16, ring: RingAddresses) -> Result<()> {
        let words = [u64::from(queue), ring.desc, ring.used, ring.avail, 0];
        self.set(Message::words(request::SET_VRING_ADDR, &words))
    }

    /// SET_VRING_KICK.
    pub fn set_vring_kick(&self, queue: u16, fd: impl AsFd) -> Result<()> {
        self.set_vring_fd(request::SET_VRING_KICK, queue, fd)
    }

    /// SET_VRING_CALL.
    pub fn set_vring_call(&self, queue: u16, fd: impl AsFd) -> Result<()> {
        self.set_vring_fd(request::SET_VRING_CALL, queue, fd)
    }

    fn set_vring_fd(&self, request: u32, queue: u16, fd: impl AsFd) -> Result<()> {
        let message = Message::words(request, &[queue.into()]).with_fd(fd);
        self.set(message.map_err(|e| Error::io("duplicating an eventfd", e))?)
    }

    /// SET_VRING_ENABLE.
    pub fn enable(&self, queue: u16, on: bool) -> Result<()> {
        self.set(Message::state(request::SET_VRING_ENABLE, queue.into(), on.into()))
    }

    /// SEND_RARP for a station that moved here.
    pub fn send_rarp(&self, mac: [u8; 6]) -> Result<()> {
        let word = u64::from_le_bytes([mac[0], mac[1], mac[2], mac[3], mac[4], mac[5], 0, 0]);
        self.set(Message::words(request::SEND_RARP, &[word]))
    }

    /// NET_SET_MTU.
    pub fn set_mtu(&self, mtu: u16) -> Result<()> {
        self.set(Message::words(request::NET_SET_MTU, &[mtu.into()]))
    }

    /// SET_STATUS: virtio's device status byte.
    pub fn set_status(&self, status: u8) -> Result<()> {
        self.set(Message::words(request::SET_STATUS, &[status.into()]))
    }

    /// GET_STATUS.
    pub fn status(&self) -> Result<u64> {
        self.ask_word(request::GET_STATUS)
    }

    /// RESET_DEVICE.
    pub fn reset_device(&self) -> Result<()> {
        self.set(Message::new(request::RESET_DEVICE, Vec::new()))
    }

    /// GET_CONFIG: `len` bytes of the configuration space.
    pub fn config(&self, offset: usize, len: usize) -> Result<Vec<u8>> {
        let question = Message::new(request::GET_CONFIG, config_payload(offset, &vec![0; len]));
        let mut payload = self.ask(&question)?.payload;
        // A backend that cannot answer says so with a size of zero.
        if payload.len() != CONFIG_HEADER + len {
            let got = payload.len();
            return Err(Error::Backend(format!(
                "GET_CONFIG of {len} bytes at {offset}: the answer has {got} bytes"
            )));
        }
        Ok(payload.split_off(CONFIG_HEADER))
    }

    /// SET_CONFIG: the driver writes into the configuration space.
    pub fn set_config(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.set(Message::new(request::SET_CONFIG, config_payload(offset, bytes)))
    }

    /// SET_BACKEND_REQ_FD: makes the channel on which the backend speaks by itself, and returns our end of
    /// it.
    pub fn backend_channel(&self) -> Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair().map_err(|e| Error::io("making a channel", e))?;
        let message = Message::new(request::SET_BACKEND_REQ_FD, Vec::new()).with_fd(&theirs);
        self.set(message.map_err(|e| Error::io("duplicating a channel", e))?)?;
        Ok(ours)
    }

    /// GET_INFLIGHT_FD: asks the backend to make its record of descriptors in flight.
    pub fn inflight(&self, queues: u16, queue_size: u16) -> Result<Inflight> {
        let question = Message::new(request::GET_INFLIGHT_FD, inflight_payload(0, 0, queues, queue_size));
        let mut answer = self.ask(&question)?;
        let (Some(size), Some(offset), Some(fd)) = (answer.word(0), answer.word(1), answer.fds.pop()) else {
            return Err(Error::Backend("GET_INFLIGHT_FD: the answer lacks its size or its file".into()));
        };
        Ok(Inflight { fd, size, offset, queues, queue_size })
    }

    /// SET_INFLIGHT_FD: gives the record (back) to the backend.
    pub fn set_inflight(&self, inflight: &Inflight) -> Result<()> {
        let Inflight { fd, size, offset, queues, queue_size } = inflight;
        let payload = inflight_payload(*size, *offset, *queues, *queue_size);
        let message = Message::new(request::SET_INFLIGHT_FD, payload).with_fd(fd);
        self.set(message.map_err(|e| Error::io("duplicating the inflight file", e))?)
    }
}

/// Bytes before those of the configuration space: offset, size and flags, each a u32.
const CONFIG_HEADER: usize = 12;

fn config_payload(offset: usize, bytes: &[u8]) -> Vec<u8> {
    let words = [offset, bytes.len(), 0].map(|word| u32::try_from(word).unwrap_or(u32::MAX));
    let mut payload: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    payload.extend_from_slice(bytes);
    payload
}

fn inflight_payload(size: u64, offset: u64, queues: u16, queue_size: u16) -> Vec<u8> {
    let mut payload = Vec::with_capacity(24);
    payload.extend(size.to_le_bytes());
    payload.extend(offset.to_le_bytes());
    payload.extend(queues.to_le_bytes());
    payload.extend(queue_size.to_le_bytes());
    payload.extend([0; 4]); // The structure ends on an 8-byte boundary.
    payload
}
