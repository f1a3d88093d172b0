//! An entry point for fuzzers and property tests: one conversation without a socket.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use rustix::event::{eventfd, EventfdFlags};
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use sidecore_abi::vfio_user::{command, flags, Header};

use super::commands::handle;
use super::messages::{payload_size, Answer};
use super::session::{Session, SharedDevice};
use crate::device::pci::PciDevice;

/// Bytes of a memory file that a fuzzed conversation hands over.
const MEMORY: u64 = 0x10000;

/// What came of a fuzzed conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FuzzOutcome {
    /// Commands that were done.
    pub done: u64,
    /// Commands that were refused.
    pub refused: u64,
    /// Whether a command ended the conversation.
    pub ended: bool,
}

/// Talks to `device` as `bytes` say: for each message a byte for the descriptors that come along (two bits say
/// how many, each further bit whether one is memory or an eventfd; the highest bit: VERSION comes first), then
/// the message, whose size is the header's own. Ends with the bytes, or as a conversation ends.
///
/// # Panics
/// If an answer is not one: that is what the fuzzer looks for.
pub fn fuzz_conversation(mut bytes: &[u8], device: Box<dyn PciDevice>) -> FuzzOutcome {
    let device: SharedDevice = Arc::new(Mutex::new(device));
    let mut session = Session::new("fuzz", &device, &crate::mem::Terms::default());
    let mut answer = Answer::default();
    let mut outcome = FuzzOutcome::default();
    if bytes.first().is_some_and(|first| first & 0x80 != 0) {
        let version = Header { command: command::VERSION, ..Header::default() };
        let (_, result) = handle(&mut session, &version, &[0; 4], Vec::new(), &mut answer);
        assert!(result.is_ok(), "a plain VERSION was refused: {result:?}");
    }
    while let Some((kinds, rest)) = bytes.split_first() {
        let Some(header) = Header::parse(rest) else { break };
        let rest = &rest[Header::SIZE..];
        let Ok(size) = payload_size(&header) else {
            outcome.ended = true;
            break;
        };
        let Some(payload) = rest.get(..size) else { break };
        bytes = &rest[size..];
        let Some(fds) = descriptors(*kinds) else { break };
        let (due, result) = handle(&mut session, &header, payload, fds, &mut answer);
        assert_eq!(due, header.flags & flags::NO_REPLY == 0);
        let reply = Header::parse(answer.bytes()).unwrap_or_default();
        assert_eq!((reply.id, reply.command), (header.id, header.command));
        assert_eq!(reply.size as usize, answer.bytes().len());
        let failed = reply.flags & flags::ERROR != 0;
        assert_eq!(reply.flags, if failed { flags::REPLY | flags::ERROR } else { flags::REPLY });
        assert_eq!(failed, reply.error != 0);
        assert!(!failed || (answer.fd.is_none() && reply.size as usize == Header::SIZE));
        if failed {
            outcome.refused += 1;
        } else {
            outcome.done += 1;
        }
        if result.is_err() {
            assert!(failed);
            outcome.ended = true;
            break;
        }
    }
    outcome
}

/// None if the system has no more of them.
fn descriptors(kinds: u8) -> Option<Vec<OwnedFd>> {
    let one = |index: u8| {
        if kinds & 4 << index == 0 {
            return eventfd(0, EventfdFlags::CLOEXEC).ok();
        }
        let memory: File = memfd_create(c"fuzz", MemfdFlags::CLOEXEC).ok()?.into();
        ftruncate(&memory, MEMORY).ok()?;
        Some(memory.into())
    };
    (0..kinds & 3).map(one).collect()
}
