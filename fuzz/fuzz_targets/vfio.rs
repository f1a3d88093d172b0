//! A VMM that says anything to a PCI device: arbitrary vfio-user commands, with memory files and eventfds.
//! Commands may be refused or end the conversation; every answer must be one.
#![no_main]

#[path = "../../crates/engine/tests/scratch/mod.rs"]
mod scratch;

use std::sync::{Arc, OnceLock};

use libfuzzer_sys::fuzz_target;
use sidecore_abi::vfio_user::Header;
use sidecore_engine::fabric::Scheduler;
use sidecore_engine::fabric::{CoreOptions, Fabric};
use sidecore_engine::transport::vfio_user::fuzz_conversation;

fn cores() -> Arc<dyn Scheduler> {
    static CORES: OnceLock<Arc<Fabric>> = OnceLock::new();
    CORES.get_or_init(|| Fabric::start(&CoreOptions::default()).unwrap()).clone()
}

// A message is four bytes of choice and up to 63 of payload. Sizes are right: those that are not end the
// conversation, and the properties in the engine's tests see to them.
fuzz_target!(|data: &[u8]| {
    let mut bytes = Vec::new();
    let mut rest = data;
    while let Some(([kinds, command, flags, size], more)) = rest.split_first_chunk::<4>() {
        let payload = &more[..usize::from(size % 64).min(more.len())];
        rest = &more[payload.len()..];
        let header = Header {
            id: bytes.len() as u16,
            command: u16::from(command % 20),
            size: (Header::SIZE + payload.len()) as u32,
            flags: u32::from(flags & 0x10),
            error: 0,
        };
        bytes.push(kinds | 0x80);
        bytes.extend(header.bytes());
        bytes.extend(payload);
    }
    fuzz_conversation(&bytes, Box::new(scratch::Scratch::new(&sidecore_fuzz::port(), cores())));
});
