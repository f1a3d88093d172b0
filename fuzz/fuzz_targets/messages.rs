//! A VMM that says anything: arbitrary vhost-user messages, some with a memory file, on a real socket.
//! The conversation may end or be refused; the daemon must not panic, hang or lose track of its ring.
#![no_main]

use std::io::{IoSlice, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use rustix::net::{sendmsg, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use sidecore_engine::core::{CoreOptions, Cores};
use sidecore_engine::device::virtio_net::{NetConfig, VirtioNet};
use sidecore_engine::port::Scheduler;
use sidecore_engine::transport::vhost_user::{Endpoint, VhostUser, VhostUserConfig};
use sidecore_fuzz::{port, GPA, MEMORY};

fn cores() -> Arc<dyn Scheduler> {
    static CORES: OnceLock<Arc<Cores>> = OnceLock::new();
    CORES.get_or_init(|| Cores::start(&CoreOptions::default()).unwrap()).clone()
}

// A message is five bytes of choice and up to 64 of payload. Sizes are mostly right, or nothing deep would
// ever be reached; one choice makes them wrong.
fuzz_target!(|data: &[u8]| {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    let device =
        VirtioNet::new(&NetConfig { queue_pairs: 2, ..NetConfig::default() }, port(), cores()).unwrap();
    let config = VhostUserConfig { endpoint: Endpoint::Opened(theirs.into()), journal: None };
    let conversation = VhostUser::start(config, device).unwrap();
    let memory = sidecore_fuzz::Guest::new();
    let mut drain = ours.try_clone().unwrap();
    drain.set_nonblocking(true).unwrap();
    for chunk in data.chunks(69).take(24) {
        let Some(([request, flags, size, fds, table], payload)) = chunk.split_first_chunk::<5>() else {
            break;
        };
        let mut payload = payload.to_vec();
        if *table & 3 == 0 {
            // A memory table that could be true.
            payload = [1u32.to_le_bytes(), [0; 4]].concat();
            for word in [GPA, MEMORY, GPA, 0] {
                payload.extend(word.to_le_bytes());
            }
        }
        let len = if *size & 0x80 == 0 { payload.len() as u32 } else { u32::from(*size) * 97 };
        let mut message = u32::from(*request % 48).to_le_bytes().to_vec();
        message.extend((1u32 | u32::from(*flags & 8)).to_le_bytes());
        message.extend(len.to_le_bytes());
        message.extend(&payload);
        let fd = memory.fd();
        let list = [fd.as_fd(); 3];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let count = usize::from(*fds % 4);
        if count > 0 {
            ancillary.push(SendAncillaryMessage::ScmRights(&list[..count]));
        }
        if sendmsg(&ours, &[IoSlice::new(&message)], &mut ancillary, SendFlags::NOSIGNAL).is_err() {
            break;
        }
        let _ = drain.read(&mut [0; 512]);
    }
    let _ = (&ours).flush();
    // Must come back, whatever the conversation is waiting for.
    drop(conversation);
});
