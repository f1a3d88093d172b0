//! A VMM that says anything: a correct vhost-user conversation, mutated, on a real socket, with a guest that
//! uses its rings meanwhile. The conversation may end or be refused; the daemon must not panic, hang or lose
//! track of its rings.
//!
//! Theory of operation. The input is a list of operations. A zero says the next message of the correct
//! conversation ([`script`]), so an input of zeros sets all rings up and takes them down again, and what
//! the fuzzer changes departs from there. Other operations say a message out of its turn, with a byte
//! changed or with the wrong descriptors, say nonsense, write guest memory, or offer a frame. After each
//! message the target waits until it has been read, so that a run is what the input says.
//!
//! Every 4,096 inputs the target tells how many got to running rings and how many moved frames.
#![cfg_attr(feature = "libfuzzer", no_main)]

use std::io::{IoSlice, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::net::{sendmsg, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use sidecore_abi::virtio::features as bit;
use sidecore_engine::core::Tuning;
use sidecore_engine::device::virtio_net::{NetConfig, VirtioNet};
use sidecore_engine::graph::{Attach, CoreOptions, Graph, Scheduler, Topology};
use sidecore_engine::port::Port;
use sidecore_engine::transport::vhost_user::{Endpoint, VhostUser, VhostUserConfig};
use sidecore_fuzz::fuzz_target;
use sidecore_fuzz::{port, Guest, ENTRIES, GPA, MEMORY, PARTS};

const RINGS: u32 = 4;
/// From one ring's parts to the next one's.
const STEP: u64 = 0x1000;
/// Where buffers lie.
const BUFFERS: u64 = RINGS as u64 * STEP;
/// Messages in one conversation, at most.
const MOST: usize = 200;

static INPUTS: AtomicU64 = AtomicU64::new(0);
static RUNNING: AtomicU64 = AtomicU64::new(0);
static MOVING: AtomicU64 = AtomicU64::new(0);

fn cores() -> &'static Arc<Graph> {
    static CORES: OnceLock<Arc<Graph>> = OnceLock::new();
    // A core that polls, or naps while a sender waits for room, has the fuzzer's processor.
    let tuning = Tuning { spin: Duration::ZERO, ..Tuning::default() };
    let options = CoreOptions { tuning, patience: Duration::from_millis(1), ..CoreOptions::default() };
    CORES.get_or_init(|| Graph::start(&options).unwrap())
}

/// The port of all conversations, one after the other. What the guest sends it receives: both directions run.
fn echo() -> &'static Arc<Port> {
    static PORT: OnceLock<Arc<Port>> = OnceLock::new();
    PORT.get_or_init(|| {
        let port = port();
        let echo = Topology::new(&[(Arc::clone(&port), Attach::Wire(port.id))]);
        cores().publish(&Arc::new(echo));
        port
    })
}

/// What is attached to a message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Files {
    None,
    Memory,
    Event,
    Many,
}

#[derive(Clone)]
struct Message {
    code: u32,
    payload: Vec<u8>,
    files: Files,
}

fn message(code: u32, payload: Vec<u8>, files: Files) -> Message {
    Message { code, payload, files }
}

fn words32(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn words64(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// What QEMU says to a network device with two queue pairs, from the first message to a migration's end.
fn script(packed: bool) -> Vec<Message> {
    use Files::{Event, Memory, None};
    let mut features = bit::VERSION_1 | bit::VHOST_USER_PROTOCOL | bit::NET_MRG_RXBUF | bit::NET_CTRL_VQ;
    features |= bit::NET_MQ | bit::INDIRECT_DESC | bit::EVENT_IDX | bit::NET_CSUM | bit::NET_HOST_TSO4;
    if packed {
        features |= bit::RING_PACKED;
    }
    // MQ, LOG_SHMFD, RARP, REPLY_ACK, MTU, CONFIG, INFLIGHT_SHMFD, RESET_DEVICE, CONFIGURE_MEM_SLOTS, STATUS.
    let protocol = 1 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 9 | 1 << 12 | 1 << 13 | 1 << 15 | 1 << 16;
    let mut all = vec![
        message(1, vec![], None),
        message(15, vec![], None),
        message(16, words64(&[protocol]), None),
        message(17, vec![], None),
        message(3, vec![], None),
        message(1, vec![], None),
        message(20, words64(&[1500]), None),
        message(31, [words64(&[0, 0]), words32(&[RINGS | u32::from(ENTRIES) << 16, 0])].concat(), None),
        message(2, words64(&[features]), None),
        message(5, [words32(&[1, 0]), words64(&[GPA, MEMORY, GPA, 0])].concat(), Memory),
    ];
    let base = if packed { 0x8000_8000 } else { 0 };
    for ring in 0..RINGS {
        let at = |part: usize| GPA + u64::from(ring) * STEP + PARTS[part];
        all.extend([
            message(8, words32(&[ring, ENTRIES.into()]), None),
            message(10, words32(&[ring, base]), None),
            message(9, [words32(&[ring, 0]), words64(&[at(0), at(2), at(1), 0])].concat(), None),
            message(13, words64(&[ring.into()]), Event),
            message(12, words64(&[ring.into()]), Event),
        ]);
    }
    all.extend((0..RINGS).map(|ring| message(18, words32(&[ring, 1]), None)));
    all.push(message(39, words64(&[15]), None));
    // Here the rings run. A migration: log, all features with logging, the announcement, the end.
    all.push(message(6, words64(&[MEMORY, 0]), Memory));
    all.push(message(2, words64(&[features | bit::VHOST_LOG_ALL]), None));
    all.push(message(19, words64(&[0x0100_0077_5452]), None));
    all.extend((0..RINGS).map(|ring| message(18, words32(&[ring, 0]), None)));
    all.extend((0..RINGS).map(|ring| message(11, words32(&[ring, 0]), None)));
    all.push(message(34, vec![], None));
    // What other front ends say, and QEMU to other devices: the configuration space, memory by the region,
    // and a region for what is in flight, which lies in the guest's memory here, so that the guest lies in
    // it.
    all.push(message(24, [words32(&[0, 8, 0]), vec![0; 8]].concat(), None));
    all.push(message(25, [words32(&[6, 2, 1]), vec![0; 2]].concat(), None));
    all.push(message(36, vec![], None));
    let region = words64(&[0, GPA + MEMORY, MEMORY, GPA + MEMORY, 0]);
    all.push(message(37, region.clone(), Memory));
    all.push(message(38, region, None));
    all.push(message(
        32,
        [words64(&[MEMORY, 0]), words32(&[RINGS | u32::from(ENTRIES) << 16, 0])].concat(),
        Memory,
    ));
    all.push(message(7, vec![], Event));
    all
}

/// The VMM and its guest.
struct Vmm {
    socket: UnixStream,
    guest: Guest,
    kick: rustix::fd::OwnedFd,
    offered: [u16; RINGS as usize],
    packed: bool,
}

impl Vmm {
    /// Says it, and waits until it has been read. False: the conversation has ended.
    fn say(&mut self, message: &Message, flags: u32, size: u32) -> bool {
        let mut bytes = words32(&[message.code, 1 | flags, size]);
        bytes.extend(&message.payload);
        let memory = self.guest.fd();
        let list = match message.files {
            Files::None => vec![],
            Files::Memory => vec![memory.as_fd()],
            Files::Event => vec![self.kick.as_fd()],
            Files::Many => vec![memory.as_fd(), self.kick.as_fd(), memory.as_fd()],
        };
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !list.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&list));
        }
        if sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL).is_err() {
            return false;
        }
        // GET_FEATURES is answered, and its answer proves that what came before was read. A conversation that
        // has ended hangs up. One that waits for the rest of a message does neither.
        let question = words32(&[1, 1, 0]);
        if sendmsg(&self.socket, &[IoSlice::new(&question)], &mut Default::default(), SendFlags::NOSIGNAL)
            .is_err()
        {
            return false;
        }
        let short = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
        let mut answers = [0; 512];
        let mut heard = 0;
        loop {
            let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
            if poll(&mut fds, Some(&short)).unwrap_or(0) == 0 {
                // It waits, or was slow: the next message will show.
                return true;
            }
            match self.socket.read(&mut answers[heard..]) {
                Ok(n) if n > 0 => heard += n,
                _ => return false,
            }
            // The answer to the question is the last: its header, then eight bytes.
            let last = heard.checked_sub(20).map(|at| &answers[at..at + 4]);
            if last == Some(&1u32.to_le_bytes()[..]) || heard + 64 > answers.len() {
                return true;
            }
        }
    }

    /// Offers a buffer of `len` bytes in `ring`, written as a driver does, and kicks.
    fn offer(&mut self, ring: u32, len: u32) {
        let index = ring as usize % RINGS as usize;
        let parts = PARTS.map(|part| index as u64 * STEP + part);
        let (n, entries) = (self.offered[index], ENTRIES);
        let slot = n % entries;
        let buffer = BUFFERS + u64::from(slot) * 0x800;
        let write = index % 2 == 0;
        let mut descriptor = words64(&[GPA + buffer]);
        descriptor.extend(words32(&[len]));
        if self.packed {
            // Flags: WRITE, and AVAIL and USED by the lap (virtio 1.2 §2.8.1).
            let lap = n / entries % 2 == 0;
            let flags = if write { 2 } else { 0 } | if lap { 1u16 << 7 } else { 1 << 15 };
            descriptor.extend(slot.to_le_bytes());
            descriptor.extend(flags.to_le_bytes());
            self.guest.write(parts[0] + u64::from(slot) * 16, &descriptor);
        } else {
            descriptor.extend(if write { 2u16 } else { 0 }.to_le_bytes());
            descriptor.extend([0; 2]);
            self.guest.write(parts[0] + u64::from(slot) * 16, &descriptor);
            self.guest.write(parts[1] + 4 + u64::from(slot) * 2, &slot.to_le_bytes());
            self.guest.write(parts[1] + 2, &n.wrapping_add(1).to_le_bytes());
        }
        self.offered[index] = n.wrapping_add(1);
        let _ = rustix::io::write(&self.kick, &1u64.to_ne_bytes());
    }
}

/// Takes bytes from the input; zeros behind its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *byte
    }
}

fn talk(vmm: &mut Vmm, script: &[Message], mut input: Input, port: &Port) -> bool {
    let (mut next, mut ran, mut said) = (0, false, 0);
    while !input.0.is_empty() && said < MOST {
        let op = input.byte();
        let flags = if op & 0x40 == 0 { 0 } else { 8 };
        let mut chosen = match op % 8 {
            0 | 1 => {
                next += 1;
                script[(next - 1) % script.len()].clone()
            }
            2..=4 => script[usize::from(input.byte()) % script.len()].clone(),
            5 => {
                vmm.offer(input.byte().into(), u32::from(input.byte()) * 8);
                continue;
            }
            6 => {
                let at = u16::from_le_bytes([input.byte(), input.byte()]);
                let word = [input.byte(), input.byte(), input.byte(), input.byte()];
                vmm.guest.write(u64::from(at), &word);
                let _ = rustix::io::write(&vmm.kick, &1u64.to_ne_bytes());
                continue;
            }
            _ => {
                let payload = (0..input.byte() % 64).map(|_| input.byte()).collect();
                message(u32::from(input.byte() % 48), payload, Files::None)
            }
        };
        let mut size = chosen.payload.len() as u32;
        match op % 8 {
            // A changed byte.
            3 if size > 0 => {
                let at = usize::from(input.byte()) % chosen.payload.len();
                chosen.payload[at] ^= input.byte();
            }
            // Other descriptors, or another size.
            4 => match input.byte() % 5 {
                0 => chosen.files = Files::None,
                1 => chosen.files = Files::Memory,
                2 => chosen.files = Files::Event,
                3 => chosen.files = Files::Many,
                _ => size = u32::from(input.byte()) * 16,
            },
            _ => {}
        }
        said += 1;
        if !vmm.say(&chosen, flags, size) {
            break;
        }
        ran |= port.link();
    }
    ran | port.link()
}

fuzz_target!(|data: &[u8]| {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let port = echo();
    port.fault.clear();
    let before = port.counters.totals();
    // With an address of its own it has a configuration space.
    let mac = Some([2, 0, 0, 0, 0, 1]);
    let net = NetConfig { queue_pairs: 2, mac, ..NetConfig::default() };
    let scheduler = Arc::clone(cores()) as Arc<dyn Scheduler>;
    let device = VirtioNet::new(&net, Arc::clone(port), scheduler).unwrap();
    let config = VhostUserConfig { endpoint: Endpoint::Opened(theirs.into()), journal: None };
    let conversation = VhostUser::start(config, device).unwrap();
    let kick = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
    let mut input = Input(data);
    let packed = input.byte() & 1 == 1;
    let mut vmm = Vmm { socket: ours, guest: Guest::new(), kick, offered: [0; RINGS as usize], packed };
    let ran = talk(&mut vmm, &script(packed), input, port);
    // Must come back, whatever the conversation is waiting for.
    drop(conversation);
    let totals = port.counters.totals();
    let drops: u64 = totals.drops.iter().sum();
    assert_eq!(totals.in_frames + totals.made, totals.out_frames + drops, "frames are unaccounted for");
    let moved = totals.in_frames > before.in_frames;
    RUNNING.fetch_add(u64::from(ran), Ordering::Relaxed);
    MOVING.fetch_add(u64::from(moved), Ordering::Relaxed);
    let inputs = INPUTS.fetch_add(1, Ordering::Relaxed) + 1;
    if inputs % 4096 == 0 {
        let (ran, moved) = (RUNNING.load(Ordering::Relaxed), MOVING.load(Ordering::Relaxed));
        eprintln!("messages: {inputs} inputs, {ran} reached running rings, {moved} moved frames");
    }
});
