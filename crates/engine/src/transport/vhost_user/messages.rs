//! The protocol as a table: every message of the vhost-user specification that may reach this back end.
//!
//! | what it changes | rings meanwhile |
//! |---|---|
//! | features, memory, dirty log | all running rings are taken back, rebuilt and go on where they stood |
//! | addresses, size, start, kick, enable of one ring | that ring is taken back, and starts once all is known |
//! | interrupt and error descriptors | nothing stops: the descriptor is swapped |
//! | the rest | nothing stops |
//!
//! A message is checked by its row, before anything of it is read: its size, its descriptors, and whether the
//! feature that it belongs to was negotiated.
//!
//! Sizes. DPDK and libvhost-user read a payload of any size into one union of all payloads, and front ends
//! rely on it: User-mode Linux sends a table of two regions whatever their number is. So a payload may be
//! longer than what belongs to its message, up to that union; what is behind is not read. Both compare the
//! sizes of the messages about the dirty log and the in-flight region, and so does this table. A payload
//! shorter than its content is refused: there they read what an earlier message left.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::fs::File;

pub(super) use sidecore_abi::vhost_user::protocol;

use super::super::inbox::MessageHeader;
use crate::mem::{RegionSpec, Terms};

/// What descriptors come with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Given {
    /// Memory.
    Memory,
    /// An eventfd.
    Event,
    /// An eventfd; where the port takes interrupts by sockets (`call-socket`), also the end of one.
    Call,
    /// A connected socket, on which we speak.
    Socket,
    /// None belongs to it.
    Nothing,
}

/// A message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    pub code: u32,
    pub name: &'static str,
    /// The least and the most bytes of its payload.
    sizes: (u32, u32),
    pub given: Given,
    /// The protocol feature that it belongs to.
    needs: u64,
}

macro_rules! messages {
    ($($name:ident = $code:literal, $sizes:expr, $given:ident, $needs:ident;)*) => {
        $(pub(super) const $name: u32 = $code;)*
        static MESSAGES: &[Message] = &[$(Message {
            code: $code,
            name: stringify!($name),
            sizes: $sizes,
            given: Given::$given,
            needs: protocol::$needs,
        }),*];
    };
}

messages! {
    GET_FEATURES = 1, (0, ROOM), Nothing, ALWAYS;
    SET_FEATURES = 2, (8, ROOM), Nothing, ALWAYS;
    SET_OWNER = 3, (0, ROOM), Nothing, ALWAYS;
    RESET_OWNER = 4, (0, ROOM), Nothing, ALWAYS;
    SET_MEM_TABLE = 5, (8, 8 + 32 * REGION), Memory, ALWAYS;
    SET_LOG_BASE = 6, (16, 16), Memory, LOG_SHMFD;
    SET_LOG_FD = 7, (0, ROOM), Event, ALWAYS;
    SET_VRING_NUM = 8, (8, ROOM), Nothing, ALWAYS;
    SET_VRING_ADDR = 9, (40, ROOM), Nothing, ALWAYS;
    SET_VRING_BASE = 10, (8, ROOM), Nothing, ALWAYS;
    GET_VRING_BASE = 11, (8, ROOM), Nothing, ALWAYS;
    SET_VRING_KICK = 12, (8, ROOM), Event, ALWAYS;
    SET_VRING_CALL = 13, (8, ROOM), Call, ALWAYS;
    SET_VRING_ERR = 14, (8, ROOM), Event, ALWAYS;
    GET_PROTOCOL_FEATURES = 15, (0, ROOM), Nothing, ALWAYS;
    SET_PROTOCOL_FEATURES = 16, (8, ROOM), Nothing, ALWAYS;
    GET_QUEUE_NUM = 17, (0, ROOM), Nothing, MQ;
    // QEMU sends it before it has acknowledged the feature that it belongs to.
    SET_VRING_ENABLE = 18, (8, ROOM), Nothing, ALWAYS;
    SEND_RARP = 19, (8, ROOM), Nothing, ALWAYS;
    NET_SET_MTU = 20, (8, ROOM), Nothing, ALWAYS;
    SET_BACKEND_REQ_FD = 21, (0, ROOM), Socket, BACKEND_REQ;
    GET_CONFIG = 24, (12, ROOM), Nothing, CONFIG;
    SET_CONFIG = 25, (12, ROOM), Nothing, CONFIG;
    GET_INFLIGHT_FD = 31, (24, 24), Nothing, INFLIGHT_SHMFD;
    SET_INFLIGHT_FD = 32, (24, 24), Memory, INFLIGHT_SHMFD;
    RESET_DEVICE = 34, (0, ROOM), Nothing, RESET_DEVICE;
    GET_MAX_MEM_SLOTS = 36, (0, ROOM), Nothing, CONFIGURE_MEM_SLOTS;
    ADD_MEM_REG = 37, (8 + REGION, ROOM), Memory, CONFIGURE_MEM_SLOTS;
    // Some front ends send the region's file with it, which is closed.
    REM_MEM_REG = 38, (8 + REGION, ROOM), Memory, CONFIGURE_MEM_SLOTS;
    SET_STATUS = 39, (8, ROOM), Nothing, ALWAYS;
    GET_STATUS = 40, (0, ROOM), Nothing, ALWAYS;
}

impl Message {
    /// The message of this code. What has no row belongs to a feature that is not offered.
    pub(super) fn find(code: u32) -> Option<&'static Message> {
        MESSAGES.iter().find(|message| message.code == code)
    }

    /// Whether its answer is one of its own, and no acknowledgement.
    pub(super) fn is_answered(&self) -> bool {
        self.name.starts_with("GET_") || self.code == SET_LOG_BASE
    }

    /// Whether a socket may come with it to a port with these terms.
    pub(super) fn takes_socket(&self, terms: &Terms) -> bool {
        self.given == Given::Socket || self.given == Given::Call && terms.call_sockets()
    }

    /// Whether it may be carried out.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn check(&self, negotiated: u64, fds: usize) -> Result<(), String> {
        if self.needs & !negotiated != 0 {
            return Err("it belongs to a feature that was not negotiated".to_owned());
        }
        if fds > 0 && self.given == Given::Nothing {
            return Err("a descriptor is attached, but none belongs to it".to_owned());
        }
        Ok(())
    }
}

/// The largest payload that libvhost-user takes: that of a whole configuration space. DPDK takes more.
const ROOM: u32 = 272;
/// Bytes of a memory region in a message.
const REGION: u32 = 32;
/// The largest configuration space that is read or written by messages.
pub(super) const CONFIG_SPACE: u32 = 256;

/// A payload, whose numbers are read one behind the other; behind its end they are 0. Its size was checked.
pub(super) struct Payload<'p>(pub(super) &'p [u8]);

impl Payload<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let Some((taken, rest)) = self.0.split_first_chunk() else { return [0; N] };
        self.0 = rest;
        *taken
    }

    pub(super) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    /// A memory region, which lies in `file`.
    pub(super) fn region(&mut self, file: File) -> RegionSpec {
        let [gpa, size, user_addr, offset] = std::array::from_fn(|_| self.u64());
        RegionSpec { gpa, size, user_addr, offset, file }
    }
}

/// The header of every message.
pub(super) const HEADER: usize = 12;
/// Header flag: this is a reply.
const FLAG_REPLY: u32 = 4;
/// Header flag: the sender wants an answer even to a message that has none of its own (REPLY_ACK).
const FLAG_NEED_REPLY: u32 = 8;

/// A message's header, checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub message: &'static Message,
    pub size: u32,
    pub need_reply: bool,
}

impl Header {
    /// # Errors
    /// What is wrong with it, in words.
    pub(super) fn parse(bytes: [u8; HEADER]) -> Result<Header, String> {
        let [c0, c1, c2, c3, f0, f1, f2, f3, s0, s1, s2, s3] = bytes;
        let [code, flags, size] =
            [[c0, c1, c2, c3], [f0, f1, f2, f3], [s0, s1, s2, s3]].map(u32::from_le_bytes);
        let message = Message::find(code).ok_or_else(|| {
            format!("message {code} does not exist, or belongs to a feature that was not offered")
        })?;
        let name = message.name;
        if flags & !FLAG_NEED_REPLY != 1 {
            return Err(format!("{name} has header flags {flags:#x}, which no request of version 1 has"));
        }
        let (least, most) = message.sizes;
        if !(least..=most).contains(&size) {
            return Err(format!("{name} has a payload of {size} bytes; {least} to {most} are possible"));
        }
        Ok(Header { message, size, need_reply: flags & FLAG_NEED_REPLY != 0 })
    }

    /// The reply to it with this payload.
    pub(super) fn reply(&self, payload: &[u8]) -> Vec<u8> {
        let size = u32::try_from(payload.len()).unwrap_or(0);
        let head = [self.message.code, 1 | FLAG_REPLY, size].map(u32::to_le_bytes);
        [head.as_flattened(), payload].concat()
    }
}

impl MessageHeader for Header {
    /// Most regions of a message that gives memory.
    const MAX_FDS: usize = 32;

    fn read(bytes: &[u8]) -> Result<Option<(Header, usize)>, String> {
        let header = bytes.first_chunk().map(|head| Header::parse(*head)).transpose()?;
        Ok(header.map(|header| (header, HEADER + header.size as usize)))
    }

    /// VERSION of vfio-user has a number and the command where no message has such a code.
    fn is_foreign(bytes: &[u8]) -> bool {
        matches!(bytes, [_, _, 1, 0, ..])
    }

    fn gives(header: Option<&Header>, terms: &Terms) -> (bool, bool) {
        let message = header.map(|header| header.message);
        let memory = message.is_none_or(|message| message.given == Given::Memory);
        (memory, message.is_none_or(|message| message.takes_socket(terms)))
    }
}
