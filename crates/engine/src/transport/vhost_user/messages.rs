//! The protocol as a table: every message of the vhost-user specification that may reach this back end.
//!
//! | what it changes | rings meanwhile |
//! |---|---|
//! | features, memory, dirty log | all running rings are taken back, rebuilt and go on where they stood |
//! | addresses, size, start, kick, enable of one ring | that ring is taken back, and starts once all is known |
//! | interrupt and error descriptors | nothing stops: the descriptor is swapped |
//! | the rest | nothing stops |
//!
//! Most messages are parsed by the `vhost` crate. It refuses some that network devices need, and one
//! (SET_VRING_ENABLE) that QEMU sends before the crate thinks it may: those are read here.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

/// The reader of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// The `vhost` crate.
    Crate,
    /// We do; with so many bytes of payload at most.
    Us(u32),
}

/// What descriptors come with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Given {
    /// Memory.
    Memory,
    /// An eventfd.
    Event,
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
    pub by: By,
    pub given: Given,
}

pub(super) const SET_LOG_FD: u32 = 7;
pub(super) const SET_VRING_ENABLE: u32 = 18;
pub(super) const SEND_RARP: u32 = 19;
pub(super) const NET_SET_MTU: u32 = 20;
pub(super) const SET_BACKEND_REQ_FD: u32 = 21;
pub(super) const SET_STATUS: u32 = 39;
pub(super) const GET_STATUS: u32 = 40;

const fn message(code: u32, name: &'static str, by: By) -> Message {
    Message { code, name, by, given: Given::Nothing }
}

const fn with(given: Given, message: Message) -> Message {
    Message { given, ..message }
}

static MESSAGES: [Message; 31] = [
    message(1, "GET_FEATURES", By::Crate),
    message(2, "SET_FEATURES", By::Crate),
    message(3, "SET_OWNER", By::Crate),
    message(4, "RESET_OWNER", By::Crate),
    with(Given::Memory, message(5, "SET_MEM_TABLE", By::Crate)),
    with(Given::Memory, message(6, "SET_LOG_BASE", By::Crate)),
    with(Given::Event, message(SET_LOG_FD, "SET_LOG_FD", By::Us(8))),
    message(8, "SET_VRING_NUM", By::Crate),
    message(9, "SET_VRING_ADDR", By::Crate),
    message(10, "SET_VRING_BASE", By::Crate),
    message(11, "GET_VRING_BASE", By::Crate),
    with(Given::Event, message(12, "SET_VRING_KICK", By::Crate)),
    with(Given::Event, message(13, "SET_VRING_CALL", By::Crate)),
    with(Given::Event, message(14, "SET_VRING_ERR", By::Crate)),
    message(15, "GET_PROTOCOL_FEATURES", By::Crate),
    message(16, "SET_PROTOCOL_FEATURES", By::Crate),
    message(17, "GET_QUEUE_NUM", By::Crate),
    message(SET_VRING_ENABLE, "SET_VRING_ENABLE", By::Us(8)),
    message(SEND_RARP, "SEND_RARP", By::Us(8)),
    message(NET_SET_MTU, "NET_SET_MTU", By::Us(8)),
    with(Given::Socket, message(SET_BACKEND_REQ_FD, "SET_BACKEND_REQ_FD", By::Us(0))),
    message(24, "GET_CONFIG", By::Crate),
    message(25, "SET_CONFIG", By::Crate),
    message(31, "GET_INFLIGHT_FD", By::Crate),
    with(Given::Memory, message(32, "SET_INFLIGHT_FD", By::Crate)),
    message(34, "RESET_DEVICE", By::Crate),
    message(36, "GET_MAX_MEM_SLOTS", By::Crate),
    with(Given::Memory, message(37, "ADD_MEM_REG", By::Crate)),
    message(38, "REM_MEM_REG", By::Crate),
    message(SET_STATUS, "SET_STATUS", By::Us(8)),
    message(GET_STATUS, "GET_STATUS", By::Us(0)),
];

/// The header of every message.
pub(super) const HEADER: usize = 12;
/// The largest payload, as the `vhost` crate limits it.
pub(super) const MAX_PAYLOAD: u32 = 0x1000;
const _: () = assert!(MAX_PAYLOAD as usize == vhost::vhost_user::message::MAX_MSG_SIZE);
/// Header flag: this is a reply.
const FLAG_REPLY: u32 = 4;
/// Header flag: the sender wants an answer even to a message that has none of its own (REPLY_ACK).
const FLAG_NEED_REPLY: u32 = 8;

/// A message's header, checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub message: Message,
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
        let Some(message) = MESSAGES.iter().find(|message| message.code == code) else {
            return Err(format!(
                "message {code} does not exist, or belongs to a feature that was not offered"
            ));
        };
        let name = message.name;
        if flags & !FLAG_NEED_REPLY != 1 {
            return Err(format!("{name} has header flags {flags:#x}, which no request of version 1 has"));
        }
        let most = match message.by {
            By::Us(most) => most,
            By::Crate => MAX_PAYLOAD,
        };
        if size > most {
            return Err(format!("{name} has a payload of {size} bytes; {most} are the most"));
        }
        Ok(Header { message: *message, size, need_reply: flags & FLAG_NEED_REPLY != 0 })
    }

    /// The reply to it with a number as payload.
    pub(super) fn reply(&self, value: u64) -> [u8; HEADER + 8] {
        let mut bytes = [0; HEADER + 8];
        let head = [self.message.code, 1 | FLAG_REPLY, 8].map(u32::to_le_bytes);
        let value = value.to_le_bytes();
        let words = head.as_flattened().iter().chain(&value);
        bytes.iter_mut().zip(words).for_each(|(to, byte)| *to = *byte);
        bytes
    }
}
