//! The back end message by message, with a device that does nothing; and the crate's own front end
//! against a whole conversation.
#![allow(clippy::cast_possible_truncation)]

mod requests;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use rustix::net::SendFlags;
use sidecore_abi::virtio::features as bit;

use super::super::server::conversation::{ConversationEnd, Exchange, Heard};
use super::backend::Backend;
use super::channel::Descriptors;
use super::conversation::Conversation;
use super::journal::RingSlots;
use super::messages::*;
use crate::device::VirtioDevice;
use crate::observe::CounterFile;
use crate::port::{Port, PortId, DEFAULT_MTU};
use crate::sandbox::open::passing;
use crate::virtq::{Position, RingConfig, RingConfigError};

const GPA: u64 = 0x10_0000;
const USER: u64 = 0x7f00_0000_0000;
const MEMORY: u64 = 0x10_0000;
const SIZE: u16 = 64;
const OFFERED: u64 = bit::VERSION_1 | bit::RING_PACKED | bit::EVENT_IDX;
const PROTOCOL: u64 = bit::VHOST_USER_PROTOCOL;

/// A device whose rings move on by `step` entries between start and stop.
struct Still {
    port: Arc<Port>,
    features: u64,
    running: [Option<RingConfig>; 2],
    step: u16,
}

impl VirtioDevice for Still {
    fn port(&self) -> &Arc<Port> {
        &self.port
    }
    fn features(&self) -> u64 {
        OFFERED
    }
    fn feature_names(&self, _: u64) -> Vec<String> {
        Vec::new()
    }
    fn rings(&self) -> usize {
        2
    }
    fn ring_role(&self, index: usize) -> (usize, &'static str) {
        (index, "ingress")
    }
    fn set_features(&mut self, features: u64) {
        assert!(self.running.iter().all(Option::is_none), "features change under a ring");
        self.features = features;
    }
    fn start_ring(
        &mut self,
        index: usize,
        config: RingConfig,
        _: Option<OwnedFd>,
    ) -> Result<(), RingConfigError> {
        assert!(self.running[index].is_none());
        config.check()?;
        self.running[index] = Some(config);
        Ok(())
    }
    fn stop_ring(&mut self, index: usize) -> Option<Position> {
        let mut config = self.running[index].take()?;
        match &mut config.position {
            Position::Split(index) => *index = index.wrapping_add(self.step),
            Position::Packed { used, .. } => {
                let mut at = *used;
                for _ in 0..self.step {
                    at = if at & 0x7fff == SIZE - 1 { (at & 0x8000) ^ 0x8000 } else { at + 1 };
                }
                let after = Position::Packed { avail: at, used: at };
                if let Some(journal) = &mut config.journal {
                    journal.published(at);
                }
                config.position = after;
            }
        }
        // What a real ring would have left in memory.
        if let Position::Split(index) = config.position {
            let mut at = config.device;
            at.advance(2);
            at.write(&index.to_le_bytes());
        }
        Some(config.position)
    }
}

fn memory(size: u64) -> File {
    let fd = memfd_create(c"test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, size).unwrap();
    fd.into()
}

fn event() -> File {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap().into()
}

fn port() -> Arc<Port> {
    let counters = CounterFile::anonymous().unwrap().open_slot(PortId(0), "still");
    Arc::new(Port::new(PortId(0), "still", counters, DEFAULT_MTU).unwrap())
}

fn backend() -> Backend<Still> {
    let device = Still { port: port(), features: 0, running: [None, None], step: 0 };
    Backend::new(device, RingSlots::anonymous(2, 256).unwrap())
}

/// One step of setting ring 0 or 1 up.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Say {
    Features,
    Memory,
    Size(u8),
    Base(u8),
    Addresses(u8),
    Kick(u8),
    Call(u8),
    Enable(u8),
}

const ALL: [Say; 14] = [
    Say::Features,
    Say::Memory,
    Say::Size(0),
    Say::Base(0),
    Say::Addresses(0),
    Say::Kick(0),
    Say::Call(0),
    Say::Enable(0),
    Say::Size(1),
    Say::Base(1),
    Say::Addresses(1),
    Say::Kick(1),
    Say::Call(1),
    Say::Enable(1),
];

/// Sends a message with these words and files; the payload of its answer.
fn tell<D: VirtioDevice>(
    backend: &mut Backend<D>,
    code: u32,
    words: &[u64],
    files: Vec<File>,
) -> Result<Vec<u8>, String> {
    let payload: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let fds = Descriptors(files.into_iter().map(OwnedFd::from).collect());
    let answer = backend.handle(Message::find(code).unwrap(), &payload, fds)?;
    Ok(answer.unwrap_or_default().0)
}

/// Sends a message about one ring.
fn ring<D: VirtioDevice>(backend: &mut Backend<D>, code: u32, index: u32, value: u32) -> Result<u32, String> {
    let word = u64::from(value) << 32 | u64::from(index);
    let answer = tell(backend, code, &[word], Vec::new())?;
    Ok(answer.get(4..8).map_or(0, |base| u32::from_le_bytes(base.try_into().unwrap())))
}

fn say<D: VirtioDevice>(backend: &mut Backend<D>, file: &File, features: u64, what: Say) {
    match what {
        Say::Features => tell(backend, SET_FEATURES, &[features], Vec::new()).map(drop),
        Say::Memory => memory_table(backend, MEMORY, file.try_clone().unwrap()),
        Say::Size(at) => ring(backend, SET_VRING_NUM, at.into(), SIZE.into()).map(drop),
        Say::Base(at) => {
            let base = if features & bit::RING_PACKED == 0 { 0 } else { 0x8000_8000 };
            ring(backend, SET_VRING_BASE, at.into(), base).map(drop)
        }
        Say::Addresses(at) => addresses(backend, at, None),
        Say::Kick(at) => tell(backend, SET_VRING_KICK, &[at.into()], vec![event()]).map(drop),
        Say::Call(at) => tell(backend, SET_VRING_CALL, &[at.into()], vec![event()]).map(drop),
        Say::Enable(at) => ring(backend, SET_VRING_ENABLE, at.into(), 1).map(drop),
    }
    .unwrap();
}

fn memory_table<D: VirtioDevice>(backend: &mut Backend<D>, size: u64, file: File) -> Result<(), String> {
    tell(backend, SET_MEM_TABLE, &[1, GPA, size, USER, 0], vec![file]).map(drop)
}

fn addresses<D: VirtioDevice>(backend: &mut Backend<D>, ring: u8, log: Option<u64>) -> Result<(), String> {
    let at = USER + 0x1_0000 * u64::from(ring);
    let head = u64::from(log.is_some()) << 32 | u64::from(ring);
    let words = [head, at, at + 0x2000, at + 0x1000, log.unwrap_or(0)];
    tell(backend, SET_VRING_ADDR, &words, Vec::new()).map(drop)
}

fn running(backend: &Backend<Still>) -> [bool; 2] {
    [0, 1].map(|ring| backend.device.running[ring].is_some())
}

fn position(backend: &Backend<Still>, ring: usize) -> Position {
    backend.device.running[ring].as_ref().unwrap().position
}

/// A back end with both rings running.
fn set_up(features: u64) -> (Backend<Still>, File) {
    let (mut backend, file) = (backend(), memory(MEMORY));
    for what in ALL {
        say(&mut backend, &file, features, what);
    }
    assert_eq!(running(&backend), [true, true]);
    (backend, file)
}

const FORMATS: [u64; 2] = [bit::VERSION_1 | PROTOCOL, bit::VERSION_1 | PROTOCOL | bit::RING_PACKED];

proptest! {
    #[test]
    fn a_ring_runs_as_soon_as_all_is_known_in_any_order(
        order in Just(ALL.to_vec()).prop_shuffle(), format in 0usize..2,
    ) {
        let (mut backend, file) = (backend(), memory(MEMORY));
        let mut said = Vec::new();
        for what in order {
            say(&mut backend, &file, FORMATS[format], what);
            said.push(what);
            for ring in 0..2u8 {
                let known = |what: Say| said.contains(&what);
                let its = [Say::Size(ring), Say::Base(ring), Say::Addresses(ring), Say::Kick(ring), Say::Enable(ring)];
                let ready = known(Say::Features) && known(Say::Memory) && its.into_iter().all(known);
                prop_assert_eq!(running(&backend)[usize::from(ring)], ready, "{:?}", said);
            }
        }
        prop_assert_eq!(running(&backend), [true, true]);
    }

    #[test]
    fn no_disturbance_moves_a_ring(steps in prop::collection::vec(0u8..10, 1..40), format in 0usize..2) {
        let features = FORMATS[format];
        let (mut backend, file) = set_up(features);
        backend.device.step = 0;
        // Vring 0 stands somewhere in the middle, past a lap.
        backend.device.step = SIZE + 7;
        say(&mut backend, &file, features, Say::Kick(0));
        backend.device.step = 0;
        let at = position(&backend, 0);
        for step in steps {
            match step {
                0 => say(&mut backend, &file, features, Say::Memory),
                1 => say(&mut backend, &file, features | bit::VHOST_LOG_ALL, Say::Features),
                2 => say(&mut backend, &file, features, Say::Features),
                3 => addresses(&mut backend, 0, Some(GPA + 0x2000)).unwrap(),
                4 => addresses(&mut backend, 0, None).unwrap(),
                5 => say(&mut backend, &file, features, Say::Kick(0)),
                6 => say(&mut backend, &file, features, Say::Call(0)),
                7 => {
                    ring(&mut backend, SET_VRING_ENABLE, 0, 0).unwrap();
                    prop_assert_eq!(running(&backend), [false, true]);
                    ring(&mut backend, SET_VRING_ENABLE, 0, 1).unwrap();
                }
                8 => {
                    let base = ring(&mut backend, GET_VRING_BASE, 0, 0).unwrap();
                    prop_assert_eq!(running(&backend), [false, true]);
                    ring(&mut backend, SET_VRING_BASE, 0, base).unwrap();
                    say(&mut backend, &file, features, Say::Kick(0));
                }
                _ => {
                    backend.protocol = protocol::CONFIGURE_MEM_SLOTS;
                    let more = [0, GPA + MEMORY, 0x1000, USER + MEMORY, 0];
                    tell(&mut backend, ADD_MEM_REG, &more, vec![memory(0x1000)]).unwrap();
                    tell(&mut backend, REM_MEM_REG, &more, Vec::new()).unwrap();
                }
            }
            prop_assert_eq!(running(&backend), [true, true], "step {}", step);
            prop_assert_eq!(position(&backend, 0), at, "step {}", step);
        }
    }

    #[test]
    fn any_twelve_bytes_are_a_header_or_an_error(bytes in any::<[u8; HEADER]>()) {
        if let Ok(header) = Header::parse(bytes) {
            prop_assert!(header.size <= 0x1000);
        }
    }
}

#[test]
fn a_ring_that_was_asked_for_its_base_runs_again_only_when_kicked() {
    let (mut backend, file) = set_up(FORMATS[0]);
    backend.device.step = 300;
    assert_eq!(ring(&mut backend, GET_VRING_BASE, 0, 0).unwrap(), 300);
    say(&mut backend, &file, FORMATS[0], Say::Memory);
    ring(&mut backend, SET_VRING_ENABLE, 0, 0).unwrap();
    ring(&mut backend, SET_VRING_ENABLE, 0, 1).unwrap();
    assert_eq!(running(&backend), [false, true]);
    tell(&mut backend, SET_VRING_KICK, &[1 << 8], Vec::new()).unwrap();
    assert_eq!(running(&backend), [true, true]);
    assert_eq!(position(&backend, 0), Position::Split(300));
}

#[test]
fn a_split_ring_starts_at_its_used_index_whatever_was_sent() {
    let (mut backend, file) = (backend(), memory(MEMORY));
    std::os::unix::fs::FileExt::write_at(&file, &77u16.to_le_bytes(), 0x2002).unwrap();
    for what in ALL {
        say(&mut backend, &file, FORMATS[0], what);
    }
    assert_eq!(position(&backend, 0), Position::Split(77));
    assert_eq!(position(&backend, 1), Position::Split(0));
}

#[test]
fn a_packed_ring_survives_a_stale_base_but_not_a_new_driver() {
    let (mut backend, file) = set_up(FORMATS[1]);
    backend.device.step = 9;
    let again = |backend: &mut Backend<Still>| {
        backend.disconnect(false);
        backend.device.step = 0;
        for what in ALL {
            say(backend, &file, FORMATS[1], what);
        }
        position(backend, 0)
    };
    let at = |used| Position::Packed { avail: used, used };
    // The VMM says what it said at the first start, as QEMU does.
    assert_eq!(again(&mut backend), at(0x8009));
    assert_eq!(again(&mut backend), at(0x8009));
    // A driver that sets its ring up anew clears it.
    std::os::unix::fs::FileExt::write_at(&file, &[0; 0x3000], 0).unwrap();
    assert_eq!(again(&mut backend), at(0x8000));
    // What was handed over is the front end's to say.
    backend.device.step = 5;
    assert_eq!(ring(&mut backend, GET_VRING_BASE, 0, 0).unwrap(), 0x8005_8005);
    assert_eq!(again(&mut backend), at(0x8000));
}

#[test]
fn a_reset_forgets_the_rings_and_keeps_the_memory() {
    for reset in [0, 1, 2] {
        let (mut backend, file) = set_up(FORMATS[0]);
        backend.protocol = protocol::RESET_DEVICE;
        let (code, words) = [(RESET_DEVICE, &[][..]), (RESET_OWNER, &[]), (SET_STATUS, &[0])][reset];
        assert!(tell(&mut backend, code, words, Vec::new()).unwrap().is_empty());
        assert_eq!(running(&backend), [false, false]);
        for what in ALL.into_iter().filter(|what| *what != Say::Memory && *what != Say::Features) {
            say(&mut backend, &file, FORMATS[0], what);
        }
        assert_eq!(running(&backend), [true, true]);
    }
}

#[test]
fn a_ring_outside_of_memory_waits_for_the_memory_that_holds_it() {
    let (mut backend, file) = set_up(FORMATS[0]);
    memory_table(&mut backend, 0x1_0000, file.try_clone().unwrap()).unwrap();
    assert_eq!(running(&backend), [true, false]);
    let status = backend.status(String::new());
    assert!(status.queues[1].state.contains("is not inside one region"), "{status:?}");
    say(&mut backend, &file, FORMATS[0], Say::Memory);
    assert_eq!(running(&backend), [true, true]);
}

#[test]
fn impossible_requests_are_named() {
    let (mut backend, _file) = set_up(FORMATS[0]);
    backend.protocol = protocol::CONFIGURE_MEM_SLOTS;
    let mut said = |code, words: &[u64]| tell(&mut backend, code, words, Vec::new()).unwrap_err();
    assert!(said(SET_FEATURES, &[1 << 40]).contains("not offered"));
    assert!(said(SET_PROTOCOL_FEATURES, &[1 << 40]).contains("not offered"));
    assert!(said(SET_VRING_NUM, &[64 << 32 | 2]).contains("ring 2 does not exist"));
    assert!(said(SET_VRING_NUM, &[65_536 << 32]).contains("65536"));
    assert!(said(SET_VRING_BASE, &[0]).contains("runs"));
    assert!(said(SET_VRING_KICK, &[0]).contains("0 descriptors"));
    assert!(said(SET_VRING_ADDR, &[0, USER + 8, USER, USER, 0]).contains("cannot be"));
    assert!(said(SET_VRING_ADDR, &[2 << 32, USER, USER, USER, 0]).contains("cannot be"));
    assert!(said(REM_MEM_REG, &[0, 0, 0x1000, 0, 0]).contains("no memory region"));
    assert!(said(SET_MEM_TABLE, &[1, GPA, MEMORY, USER, 0]).contains("1 regions came with 32 bytes and 0"));
    assert!(said(SET_VRING_ENABLE, &[2]).contains("ring 2"));
    assert!(said(SET_VRING_ENABLE, &[2 << 32]).contains("neither"));
    assert!(said(NET_SET_MTU, &[0]).contains("no network device"));
    assert!(said(GET_CONFIG, &[0, 0]).contains("not negotiated"));
    assert!(said(GET_QUEUE_NUM, &[]).contains("not negotiated"));
    assert!(memory_table(&mut backend, 2 * MEMORY, memory(MEMORY)).unwrap_err().contains("bytes but"));
    let attached = tell(&mut backend, SET_VRING_NUM, &[0], vec![memory(8)]);
    assert!(attached.unwrap_err().contains("none belongs to it"));
    let short = [SET_VRING_ENABLE, 1, 4].map(u32::to_le_bytes).concat().try_into().unwrap();
    assert!(Header::parse(short).unwrap_err().contains("4 bytes"));
}

/// A message for `code` with a payload of `size` bytes, as it comes.
fn whole(code: u32, size: u32) -> Vec<u8> {
    [[code, 1, size].map(u32::to_le_bytes).concat(), vec![0xa5; size as usize]].concat()
}

/// As other back ends take them: room behind the content is not read, and none of the content may be missing.
#[test]
fn a_payload_may_be_longer_than_its_content() {
    let header = |code, size| Header::parse(*whole(code, size).first_chunk().unwrap());
    for (code, least) in [
        (GET_FEATURES, 0),
        (SET_FEATURES, 8),
        (SET_VRING_ADDR, 40),
        (SET_VRING_CALL, 8),
        (SET_MEM_TABLE, 8),
        (GET_CONFIG, 12),
        (ADD_MEM_REG, 40),
        (SET_STATUS, 8),
    ] {
        let row = Message::find(code).unwrap().name;
        assert!(least == 0 || header(code, least - 1).is_err(), "{row}");
        assert!(header(code, least).is_ok() && header(code, 272).is_ok(), "{row}");
        assert!(code == SET_MEM_TABLE || header(code, 273).is_err(), "{row}");
    }
    // DPDK and libvhost-user compare these themselves.
    for (code, only) in [(SET_LOG_BASE, 16), (GET_INFLIGHT_FD, 24), (SET_INFLIGHT_FD, 24)] {
        assert!(
            header(code, only).is_ok() && header(code, only + 1).is_err() && header(code, only - 1).is_err()
        );
    }
    assert!(header(SET_MEM_TABLE, 8 + 32 * 32).is_ok() && header(SET_MEM_TABLE, 9 + 32 * 32).is_err());

    // As User-mode Linux sends it: one region of two, and what stands in the other is believed by nobody.
    let (mut backend, file) = (backend(), memory(MEMORY));
    let table = |backend: &mut Backend<Still>, count: u64, files| {
        let junk = [u64::MAX; 4];
        tell(backend, SET_MEM_TABLE, &[&[count, GPA, MEMORY, USER, 0], &junk[..]].concat(), files)
    };
    table(&mut backend, 1, vec![file.try_clone().unwrap()]).unwrap();
    for what in ALL.into_iter().filter(|what| *what != Say::Memory) {
        say(&mut backend, &file, FORMATS[0], what);
    }
    assert_eq!(running(&backend), [true, true]);
    let two = || vec![file.try_clone().unwrap(), file.try_clone().unwrap()];
    assert!(table(&mut backend, 1, two()).unwrap_err().contains("2 descriptors"));
    assert!(table(&mut backend, 3, two()).unwrap_err().contains("64 bytes"));
    assert_eq!(running(&backend), [true, true]);
    // A table of nothing takes the memory away.
    table(&mut backend, 0, Vec::new()).unwrap();
    assert_eq!(running(&backend), [false, false]);
    // A ring is asked as well.
    say(&mut backend, &file, FORMATS[0], Say::Memory);
    tell(&mut backend, SET_VRING_ENABLE, &[1, u64::MAX], Vec::new()).unwrap();
    assert_eq!(running(&backend), [true, false]);
}

/// A descriptor may come before it is known what for: a socket is hung up on where the message would close
/// it.
#[test]
fn a_socket_that_came_before_its_header_is_hung_up_on() {
    for code in [ADD_MEM_REG, SET_MEM_TABLE, SET_FEATURES] {
        let (peer, ours) = UnixStream::pair().unwrap();
        let backend = Arc::new(Mutex::new(backend()));
        crate::lock(&backend).protocol = protocol::CONFIGURE_MEM_SLOTS;
        let mut exchange = Conversation::new(ours.into(), backend).unwrap();
        let mut message = whole(code, 40);
        message[HEADER..].fill(0);
        message[HEADER] = 1;
        let (mut theirs, kept) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        passing::send(&peer, &message[..6], &[kept.as_fd()], SendFlags::empty()).unwrap();
        assert!(matches!(exchange.listen(), Ok(Heard::Part(_))));
        (&peer).write_all(&message[6..]).unwrap();
        assert!(matches!(exchange.listen(), Err(ConversationEnd::Fault(..))));
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0, "{code}: the end of it");
    }
}

/// The call socket of a ring, and whether `exchange` takes it.
fn call(
    port_takes_it: bool,
    code: u32,
) -> (Result<Heard, ConversationEnd>, Arc<Mutex<Backend<Still>>>, UnixStream) {
    let (peer, ours) = UnixStream::pair().unwrap();
    let backend = Arc::new(Mutex::new(backend()));
    crate::lock(&backend).terms.set_call_sockets(port_takes_it);
    let mut exchange = Conversation::new(ours.into(), Arc::clone(&backend)).unwrap();
    let (theirs, given) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    let message = [[code, 1, 8].map(u32::to_le_bytes).concat(), vec![0; 8]].concat();
    passing::send(&peer, &message, &[given.as_fd()], SendFlags::empty()).unwrap();
    (exchange.listen(), backend, theirs)
}

#[test]
fn an_interrupt_may_be_a_socket_where_the_port_takes_one() {
    assert!(matches!(call(false, SET_VRING_CALL).0, Err(ConversationEnd::Fault(..))));
    for code in [SET_VRING_KICK, SET_VRING_ERR] {
        assert!(matches!(call(true, code).0, Err(ConversationEnd::Fault(..))), "{code}");
    }
    let (heard, backend, mut theirs) = call(true, SET_VRING_CALL);
    assert!(matches!(heard, Ok(Heard::More)));
    let mut backend = crate::lock(&backend);
    assert!(backend.protocol_features() & protocol::BACKEND_REQ != 0);
    let notifier = Arc::clone(&backend.rings[0].notifier);
    let mut got = [0; 20];
    assert!(notifier.raise() && notifier.raise());
    assert_eq!((theirs.read(&mut got).unwrap(), got[0], got[8]), (16, 1, 1));
    // It is hung up on when another one takes its place, and when the VMM has gone; an eventfd among others.
    tell(&mut backend, SET_VRING_CALL, &[0], vec![event()]).unwrap();
    assert_eq!(theirs.read(&mut got).unwrap(), 0);
    assert!(notifier.raise());
    let (theirs, given) = UnixStream::pair().unwrap();
    tell(&mut backend, SET_VRING_CALL, &[0], vec![OwnedFd::from(given.try_clone().unwrap()).into()]).unwrap();
    backend.disconnect(false);
    assert_eq!((&theirs).read(&mut got).unwrap(), 0);
    assert!(!notifier.raise());
}

/// Its close may wait for others, so it is never closed with something in it: whatever is wrong with the
/// message.
#[test]
fn a_channel_that_is_refused_is_hung_up_on() {
    let (mut backend, _file) = set_up(FORMATS[0]);
    let all: Vec<_> = (0..3).map(|_| UnixStream::pair().unwrap()).collect();
    let given = |pairs: &[(UnixStream, UnixStream)]| {
        Descriptors(pairs.iter().map(|(ours, _)| OwnedFd::from(ours.try_clone().unwrap())).collect())
    };
    let row = Message::find(SET_BACKEND_REQ_FD).unwrap();
    // It belongs to a feature that was not negotiated, and then there are two of it.
    assert!(backend.handle(row, &[], given(&all[..1])).is_err());
    backend.protocol = protocol::BACKEND_REQ;
    assert!(backend.handle(row, &[], given(&all[1..])).is_err());
    for (_ours, mut theirs) in all {
        theirs.set_nonblocking(true).unwrap();
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0, "the end of it");
    }
}

/// The descriptor helper lets memory and eventfds pass with any message.
#[test]
fn only_a_socket_becomes_a_channel() {
    let mut backend = backend();
    backend.protocol = protocol::BACKEND_REQ;
    for file in [memory(8), event()] {
        let said = tell(&mut backend, SET_BACKEND_REQ_FD, &[], vec![file]);
        assert!(said.unwrap_err().contains("no connected stream socket"));
        assert!(!backend.channel.config_changed());
    }
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    tell(&mut backend, SET_BACKEND_REQ_FD, &[], vec![OwnedFd::from(ours).into()]).unwrap();
    assert!(backend.channel.config_changed());
    assert_eq!(theirs.read(&mut [0; 16]).unwrap(), HEADER);
}

#[test]
fn an_inflight_region_holds_what_its_size_says() {
    let (file, bytes) = RingSlots::create(2, SIZE).unwrap();
    let terms = crate::mem::Terms::default();
    assert!(RingSlots::adopt(&file, 0, bytes, 2, SIZE, &terms).is_ok());
    assert!(RingSlots::adopt(&file, 0, bytes, 3, SIZE, &terms).is_err());
    assert!(RingSlots::adopt(&file, 8, bytes, 2, SIZE, &terms).is_err());
    assert!(RingSlots::adopt(&file, 0, bytes - 1, 2, SIZE, &terms).is_err());
    assert!(RingSlots::adopt(&file, u64::MAX - 7, bytes, 2, SIZE, &terms).is_err());
    let slots = RingSlots::adopt(&file, 0, bytes, 2, SIZE, &terms).unwrap();
    assert!(slots.slot(1).is_some() && slots.slot(2).is_none());
}

/// Answers that are not read fill the socket: they are waited for, unless the peer has shut it down.
#[test]
fn who_shuts_down_a_socket_full_of_answers_has_left() {
    let (mut peer, ours) = UnixStream::pair().unwrap();
    let answers = ours.try_clone().unwrap();
    let backend = Arc::new(Mutex::new(backend()));
    let mut exchange = Conversation::new(ours.into(), backend).unwrap();
    while (&answers).write(&[0; 4096]).is_ok() {}
    // GET_FEATURES in version 1, without a payload.
    peer.write_all(&[1u32, 1, 0].map(u32::to_le_bytes).concat()).unwrap();
    assert!(matches!(exchange.listen(), Ok(Heard::Part("did not read our answers"))));
    peer.shutdown(std::net::Shutdown::Both).unwrap();
    assert!(matches!(exchange.listen(), Err(ConversationEnd::Closed)));
}

/// A peer that has shut its end for reading: it would wait for the answers of a conversation that goes on.
#[test]
fn a_conversation_ends_with_an_answer_that_cannot_be_sent() {
    let (mut peer, ours) = UnixStream::pair().unwrap();
    let mut exchange = Conversation::new(ours.into(), Arc::new(Mutex::new(backend()))).unwrap();
    peer.shutdown(std::net::Shutdown::Read).unwrap();
    peer.write_all(&[1u32, 1, 0].map(u32::to_le_bytes).concat()).unwrap();
    assert!(matches!(exchange.listen(), Err(ConversationEnd::Closed)));
}

mod front_end {
    //! The `vhost` crate's front end over a socket pair.
    use super::*;
    use crate::transport::vhost_user::{Endpoint, VhostUser, VhostUserConfig};
    use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserInflight, VhostUserProtocolFeatures};
    use vhost::vhost_user::{Frontend, VhostUserFrontend};
    use vhost::{VhostBackend, VhostUserDirtyLogRegion, VhostUserMemoryRegionInfo};

    #[test]
    fn understands_every_answer() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let device = Still { port: port(), features: 0, running: [None, None], step: 0 };
        let config = VhostUserConfig { endpoint: Endpoint::Opened(ours.into()), journal: None };
        let attachment = VhostUser::start(config, device).unwrap();
        let mut front = Frontend::from_stream(theirs, 2);
        front.set_owner().unwrap();
        let features = front.get_features().unwrap();
        assert_eq!(features, OFFERED | PROTOCOL | bit::VHOST_LOG_ALL);
        front.set_features(bit::VERSION_1 | PROTOCOL).unwrap();
        let protocol = front.get_protocol_features().unwrap();
        assert!(!protocol.contains(VhostUserProtocolFeatures::CONFIG));
        front.set_protocol_features(protocol).unwrap();
        front.set_hdr_flags(vhost::vhost_user::message::VhostUserHeaderFlag::NEED_REPLY);
        assert_eq!(front.get_queue_num().unwrap(), 2);
        assert_eq!(front.get_max_mem_slots().unwrap(), 509);
        let file = memory(MEMORY);
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: GPA,
            memory_size: MEMORY,
            userspace_addr: USER,
            mmap_offset: 0,
            mmap_handle: std::os::fd::AsRawFd::as_raw_fd(&file),
        };
        front.add_mem_region(&region).unwrap();
        front.set_vring_num(0, SIZE).unwrap();
        front.set_vring_base(0, 0).unwrap();
        front.set_vring_enable(0, true).unwrap();
        let (inflight, fd) = front.get_inflight_fd(&VhostUserInflight::new(0, 0, 2, SIZE)).unwrap();
        front.set_inflight_fd(&inflight, std::os::fd::AsRawFd::as_raw_fd(&fd)).unwrap();
        let log = memory(0x1000);
        let log = VhostUserDirtyLogRegion {
            mmap_size: 0x1000,
            mmap_offset: 0,
            mmap_handle: std::os::fd::AsRawFd::as_raw_fd(&log),
        };
        front.set_log_base(0, Some(log)).unwrap();
        assert_eq!(front.get_vring_base(0).unwrap(), 0);
        assert_eq!(crate::port::Attachment::status(&attachment).queues[0].state, "waits for its addresses");
        front.reset_device().unwrap();
        front.remove_mem_region(&region).unwrap();
        let none = front.get_config(0, 8, VhostUserConfigFlags::empty(), &[0; 8]);
        assert!(none.is_err(), "it was not offered");
        drop(attachment);
        assert!(front.get_features().is_err());
        let _ = file.as_fd();
    }
}
