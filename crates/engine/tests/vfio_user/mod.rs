//! vfio-user from outside: a native client at the other end of the socket, a real I/O core inside.

mod messages;

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use rustix::io::Errno;
use sidecore_abi::pci;
use sidecore_abi::vfio_user::{command, dma, flags, irq, region, DmaMap, Header, RegionAccess, SetIrqs};
use sidecore_driver::vfio::{Channel, Client, Event};
use sidecore_driver::Error;
use sidecore_engine::core::Recall;
use sidecore_engine::graph::{CoreOptions, Graph, QueueHandle, Scheduler};
use sidecore_engine::observe::CounterFile;
use sidecore_engine::port::{Attachment, Lack, Peer, Port, PortId, DEFAULT_MTU};
use sidecore_engine::transport::vfio_user::{Endpoint, VfioUser};

use crate::huge_pages::{HugePages, HUGE};
use crate::scratch::{
    converse, Inside, Scratch, FAIL, INCREMENT, LEVEL, MESSAGE, MSIX, PAD, PORTS, REGISTERS, SHARED, WATCH,
};

const LIMIT: Duration = Duration::from_secs(10);
/// What a client waits for an interrupt that must not come: it would have come before the answer to the
/// command that the test waited for.
const AT_ONCE: Duration = Duration::ZERO;

/// A scratch device on a socket.
struct Rig {
    dir: PathBuf,
    inside: Arc<Inside>,
    pages: Arc<sidecore_engine::mem::SharedPages>,
    port: Arc<Port>,
    attachment: Option<VfioUser>,
}

fn port(name: &str) -> Arc<Port> {
    let file = CounterFile::anonymous().unwrap();
    let counters = file.open_slot(PortId(0), name);
    Arc::new(Port::new(PortId(0), name, counters, DEFAULT_MTU).unwrap())
}

impl Rig {
    fn new(name: &str) -> Rig {
        let dir = std::env::temp_dir().join(format!("sidecore-vfu-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let port = port("p");
        let cores = Graph::start(&CoreOptions::default()).unwrap();
        let device = Scratch::new(&port, cores);
        let (inside, pages) = (Arc::clone(&device.inside), Arc::clone(&device.pages));
        let endpoint = Endpoint::Listen { path: dir.join("d.sock"), mode: Some(0o600), owner: (None, None) };
        let attachment = VfioUser::start(endpoint, Arc::clone(&port), Box::new(device), None).unwrap();
        Rig { dir, inside, pages, port, attachment: Some(attachment) }
    }

    fn path(&self) -> PathBuf {
        self.dir.join("d.sock")
    }

    /// A client; the one before it may still be on its way out.
    fn client(&self) -> Client {
        let start = Instant::now();
        loop {
            match Client::connect(&self.path()) {
                Ok(client) => return client,
                Err(e) => assert!(start.elapsed() < LIMIT, "{e}"),
            }
            std::thread::yield_now();
        }
    }

    fn channel(&self) -> Channel {
        Channel::connect(&self.path()).unwrap()
    }

    fn until(&self, what: &str, mut is_so: impl FnMut(&Rig) -> bool) {
        let start = Instant::now();
        while !is_so(self) {
            assert!(start.elapsed() < LIMIT, "not within {LIMIT:?}: {what}; {:?}", self.status());
            std::thread::yield_now();
        }
    }

    fn status(&self) -> sidecore_engine::port::AttachmentStatus {
        self.attachment.as_ref().unwrap().status()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.attachment = None;
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn memory(name: &str, size: u64) -> File {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, size).unwrap();
    fd.into()
}

/// How often a memory file of this name is mapped in this process.
fn mapped(name: &str) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains(&format!("memfd:{name} "))).count()
}

fn refused(result: Result<(), Error>, errno: Errno) {
    match result {
        Err(Error::Refused { errno: got, .. }) => assert_eq!(got, errno.raw_os_error() as u32),
        other => panic!("{other:?} instead of {errno}"),
    }
}

/// A command as bytes.
fn message(command: u16, size: u32, flag: u32, payload: &[u8]) -> Vec<u8> {
    [&Header { id: 77, command, size, flags: flag, error: 0 }.bytes()[..], payload].concat()
}

#[test]
fn a_device_describes_itself() {
    let rig = Rig::new("describe");
    let mut client = rig.client();
    assert!(client.server().contains("\"max_msg_fds\":16"), "{}", client.server());
    let bar = client.region(REGISTERS).unwrap();
    assert_eq!((bar.size, bar.flags), (0x4000, region::READ | region::WRITE | region::MMAP | region::CAPS));
    assert_eq!((bar.areas.len(), bar.areas[0].offset, bar.areas[0].size), (1, SHARED, 0x1000));
    assert_eq!(client.region(PORTS).map(|r| (r.size, r.flags)), Some((64, region::READ | region::WRITE)));
    assert_eq!(client.region(region::CONFIG).unwrap().size, 4096);
    assert!(client.region(1).is_none() && client.region(region::ROM).is_none() && client.region(8).is_none());
    let pin = client.irq(irq::INTX).unwrap();
    assert_eq!((pin.count, pin.flags), (1, irq::EVENTFD | irq::MASKABLE | irq::AUTOMASKED));
    let msix = client.irq(irq::MSIX).unwrap();
    assert_eq!((msix.count, msix.flags), (3, irq::EVENTFD));
    assert_eq!(client.read32(region::CONFIG, 0).unwrap(), 0x5ca7_1b36);
    assert_eq!(client.capability(pci::capability::MSIX).unwrap(), Some(0xa0));
    assert_eq!(client.capability(0x42).unwrap(), None);
    // Sizing a BAR as Cloud Hypervisor does.
    client.write32(region::CONFIG, 0x10, u32::MAX).unwrap();
    assert_eq!(client.read32(region::CONFIG, 0x10).unwrap(), 0xffff_c000);
    client.enable(pci::command::MEMORY | pci::command::MASTER).unwrap();
    assert_eq!(rig.inside.command.load(SeqCst), 6);
    assert_eq!(rig.status().peer, Peer::Connected);
}

#[test]
fn registers_are_read_and_written_in_every_shape() {
    let rig = Rig::new("registers");
    let mut client = rig.client();
    client.write32(REGISTERS, PAD, 0x1234_5678).unwrap();
    assert_eq!(client.read32(PORTS, PAD).unwrap(), 0x1234_5678);
    client.post(REGISTERS, PAD + 1, &[0xaa]).unwrap();
    client.post(REGISTERS, PAD + 2, &[0xbb, 0xcc]).unwrap();
    assert_eq!(client.read32(REGISTERS, PAD).unwrap(), 0xccbb_aa78, "posted writes come before the read");
    // An access that is long, not aligned, and reaches from registers into the shared page.
    let bytes: Vec<u8> = (1..=13).collect();
    client.write(REGISTERS, SHARED - 5, &bytes).unwrap();
    let mut back = [0; 13];
    client.read(REGISTERS, SHARED - 5, &mut back).unwrap();
    assert_eq!(back[5..], bytes[5..], "the shared page keeps what is written there");
    client.write(MSIX, 3, &bytes).unwrap();
    client.read(MSIX, 3, &mut back).unwrap();
    assert_eq!(back[..], bytes[..]);
    client.write_multi(&[(REGISTERS, PAD, &[1, 0, 0, 0]), (MSIX, 8, &[7; 8]), (PORTS, 2, &[9])]).unwrap();
    assert_eq!(client.read32(REGISTERS, PAD).unwrap(), 0x0009_0001);
    let mut whole = vec![0; 0x4000];
    client.read(MSIX, 0, &mut whole).unwrap();
    assert_eq!(whole[8..16], [7; 8]);
    assert_eq!(client.traps().reads, 5 + 1);
    assert_eq!(client.traps().writes, 1 + 2 + 2 + 3);
}

#[test]
fn the_shared_page_is_one_memory_for_both() {
    let rig = Rig::new("shared");
    let mut client = rig.client();
    let window = client.window(REGISTERS).unwrap().unwrap();
    assert!(window.write32(SHARED + 0x18, 41));
    assert_eq!(rig.pages.word(0x1018).unwrap().load(SeqCst), 41);
    assert_eq!(client.read32(REGISTERS, SHARED + 0x18).unwrap(), 41, "by message, too");
    rig.pages.word(0x1ffc).unwrap().store(42, SeqCst);
    assert_eq!(window.read32(SHARED + 0xffc), Some(42));
    client.write32(REGISTERS, SHARED, 43).unwrap();
    assert_eq!(window.read32(SHARED), Some(43));
    assert_eq!(window.read32(0), None, "the registers are not mapped");
    assert!(!window.write32(SHARED + 0x1000, 1) && !window.write32(SHARED + 2, 1));
    assert!(client.window(PORTS).unwrap().is_none());
}

#[test]
fn messages_reach_their_eventfds() {
    let rig = Rig::new("msix");
    let mut client = rig.client();
    client.write32(REGISTERS, MESSAGE, 2).unwrap();
    let events = client.enable_msix().unwrap();
    assert_eq!(events.len(), 3);
    client.write32(REGISTERS, MESSAGE, 1).unwrap();
    assert_eq!(events.iter().map(Event::take).collect::<Vec<_>>(), [0, 1, 0], "MSI-X was off before");
    client.write32(REGISTERS, MESSAGE, 3).unwrap();
    // Loopback, by both kinds of data.
    client.set_irqs(irq::DATA_BOOL | irq::ACTION_TRIGGER, irq::MSIX, 0, 3, &[1, 0, 255], &[]).unwrap();
    client.set_irqs(irq::DATA_NONE | irq::ACTION_TRIGGER, irq::MSIX, 2, 1, &[], &[]).unwrap();
    assert_eq!(events.iter().map(Event::take).collect::<Vec<_>>(), [1, 0, 2]);
    // One is taken away, and what pends meanwhile comes when it is wired again.
    client.set_irqs(irq::DATA_EVENTFD | irq::ACTION_TRIGGER, irq::MSIX, 1, 1, &[], &[]).unwrap();
    client.write32(REGISTERS, MESSAGE, 1).unwrap();
    assert_eq!(events[1].wait(AT_ONCE).unwrap(), 0);
    client.wire(irq::MSIX, 1, &events[1..2]).unwrap();
    assert_eq!(events[1].wait(LIMIT).unwrap(), 1);
    client.unwire(irq::MSIX).unwrap();
    client.write32(REGISTERS, MESSAGE, 0).unwrap();
    assert_eq!(events[0].wait(AT_ONCE).unwrap(), 0);
}

#[test]
fn the_pin_is_a_level_and_its_end_comes_by_eventfd_or_message() {
    let rig = Rig::new("intx");
    let mut client = rig.client();
    let (trigger, resample) = (Event::new().unwrap(), Event::new().unwrap());
    client.wire_pin(&trigger, Some(&resample)).unwrap();
    client.write32(REGISTERS, LEVEL, 1).unwrap();
    assert_eq!(trigger.wait(LIMIT).unwrap(), 1);
    client.write32(REGISTERS, LEVEL, 1).unwrap();
    assert_eq!(trigger.wait(AT_ONCE).unwrap(), 0, "masked until the end of the interrupt");
    assert_eq!(client.config16(pci::STATUS).unwrap() & pci::status::INTERRUPT, pci::status::INTERRUPT);
    resample.signal().unwrap();
    assert_eq!(trigger.wait(LIMIT).unwrap(), 1, "the level is still up");
    client.write32(REGISTERS, LEVEL, 0).unwrap();
    resample.signal().unwrap();
    rig.until("the end is heard", |_| !resample.is_set());
    client.write32(REGISTERS, LEVEL, 1).unwrap();
    assert_eq!(trigger.wait(LIMIT).unwrap(), 1);
    client.unmask_pin().unwrap();
    assert_eq!(trigger.take(), 1, "by message, too");
    // Switched off by the guest, and on again.
    client.unmask_pin().unwrap();
    client.set_config16(pci::COMMAND, pci::command::INTX_DISABLE).unwrap();
    trigger.take();
    client.unmask_pin().unwrap();
    assert_eq!(trigger.take(), 0);
    client.set_config16(pci::COMMAND, 0).unwrap();
    assert_eq!(trigger.take(), 1);
    client.unwire(irq::INTX).unwrap();
    client.unmask_pin().unwrap();
    assert_eq!(trigger.take(), 0);
}

#[test]
fn memory_comes_and_goes_under_a_queue_that_reads_it() {
    let rig = Rig::new("dma");
    let mut client = rig.client();
    let (a, b) = (memory("dma-a", 0x3000), memory("dma-b", 0x2000));
    client.map(0x1_0000, 0x2000, dma::READ | dma::WRITE, Some((a.as_fd(), 0x1000))).unwrap();
    rustix::io::pwrite(&a, &7u32.to_le_bytes(), 0x1010).unwrap();
    client.write32(REGISTERS, INCREMENT, 0x1_0010).unwrap();
    client.write32(REGISTERS, INCREMENT, 0x1_2000).unwrap();
    let mut bytes = [0; 4];
    rustix::io::pread(&a, &mut bytes, 0x1010).unwrap();
    assert_eq!(u32::from_le_bytes(bytes), 8, "it is the same memory, at the right offset");

    client.write32(REGISTERS, WATCH, 0x1_0010).unwrap();
    rig.until("the queue reads", |rig| rig.inside.seen.load(SeqCst) == 8);
    assert_eq!(rig.status().peer, Peer::Running);
    for round in 0..100u32 {
        // Another range comes and goes: the queue goes on with the first.
        client.map(0x8_0000, 0x2000, dma::READ | dma::WRITE, Some((b.as_fd(), 0))).unwrap();
        assert_eq!((mapped("dma-a"), mapped("dma-b")), (1, 1));
        rustix::io::pwrite(&a, &round.to_le_bytes(), 0x1010).unwrap();
        rig.until("the queue goes on", |rig| rig.inside.seen.load(SeqCst) == round);
        client.unmap(0x8_0000, 0x2000).unwrap();
        assert_eq!((mapped("dma-a"), mapped("dma-b")), (1, 0), "when the answer comes, it is gone");
        // Its own goes, too.
        client.unmap(0x1_0000, 0x2000).unwrap();
        assert_eq!(mapped("dma-a"), 0);
        let looks = rig.inside.looks.load(SeqCst);
        assert_eq!(client.read32(REGISTERS, WATCH).unwrap(), 0x1_0010);
        assert_eq!(rig.inside.looks.load(SeqCst), looks, "nobody reads what is gone");
        client.map(0x1_0000, 0x2000, dma::READ | dma::WRITE, Some((a.as_fd(), 0x1000))).unwrap();
        rig.until("the queue reads again", |rig| rig.inside.looks.load(SeqCst) > looks);
    }
    drop(client);
    rig.until("all is given back", |_| mapped("dma-a") == 0);
}

#[test]
fn ranges_that_cannot_be_reached_are_remembered() {
    let rig = Rig::new("unreachable");
    let mut client = rig.client();
    let file = memory("ro", 0x1000);
    let both = dma::READ | dma::WRITE;
    client.map(0xf_0000, 0x1_0000, both, None).unwrap();
    client.map(0xe_0000, 0x1000, dma::READ, Some((file.as_fd(), 0))).unwrap();
    client.write32(REGISTERS, INCREMENT, 0xe_0000).unwrap();
    assert_eq!((mapped("ro"), rig.inside.maps.load(SeqCst)), (0, 0));
    rig.until("the operator is told", |rig| rig.status().lack == Some(Lack::Memory));
    refused(client.map(0xf_ffff, 1, both, None), Errno::EXIST);
    client.unmap(0xf_0000, 0x1_0000).unwrap();
    client.map(0xf_0000, 0x1000, both, Some((file.as_fd(), 0))).unwrap();
    client.channel().ask(command::DMA_UNMAP, &[&[24, 0, 0, 0, 2, 0, 0, 0], &[0; 16]], &[]).unwrap();
    assert_eq!(mapped("ro"), 0);
    refused(client.unmap(0xf_0000, 0x1000), Errno::NOENT);
    for n in 0..509 {
        client.map(n << 12, 0x1000, both, Some((file.as_fd(), 0))).unwrap();
    }
    assert_eq!(mapped("ro"), 509);
    refused(client.map(509 << 12, 0x1000, both, Some((file.as_fd(), 0))), Errno::NOSPC);
    for n in 509..1024 {
        client.map(n << 12, 0x1000, both, None).unwrap();
    }
    refused(client.map(1 << 40, 0x1000, both, None), Errno::NOSPC);
}

#[test]
fn a_reset_puts_everything_back() {
    let rig = Rig::new("reset");
    let mut client = rig.client();
    let file = memory("reset", 0x1000);
    client.map(0x1000, 0x1000, dma::READ | dma::WRITE, Some((file.as_fd(), 0))).unwrap();
    let window = client.window(REGISTERS).unwrap().unwrap();
    for function_reset in [false, true] {
        let before = rig.inside.resets.load(SeqCst);
        client.enable(pci::command::MASTER).unwrap();
        client.write32(REGISTERS, PAD, 5).unwrap();
        client.write32(REGISTERS, WATCH, 0x1000).unwrap();
        assert!(window.write32(SHARED, 5));
        if function_reset {
            let at = client.capability(pci::capability::EXPRESS).unwrap().unwrap();
            let at = at + pci::capability::DEVICE_CONTROL;
            client.set_config16(at, pci::capability::FUNCTION_RESET).unwrap();
        } else {
            client.reset().unwrap();
        }
        assert_eq!(rig.inside.resets.load(SeqCst), before + 1);
        assert_eq!(client.config16(pci::COMMAND).unwrap(), 0);
        assert_eq!(rig.inside.command.load(SeqCst), 0);
        assert_eq!((client.read32(REGISTERS, PAD).unwrap(), window.read32(SHARED)), (0, Some(0)));
        assert_eq!(rig.status().peer, Peer::Connected, "the queue is gone");
    }
    // The memory is still there.
    client.write32(REGISTERS, INCREMENT, 0x1000).unwrap();
    let mut byte = [0];
    rustix::io::pread(&file, &mut byte, 0).unwrap();
    assert_eq!(byte, [1]);
}

#[test]
fn one_client_after_the_other() {
    let rig = Rig::new("reconnect");
    for round in 0..5 {
        let mut client = rig.client();
        assert_eq!(client.read32(REGISTERS, PAD).unwrap(), 0, "nothing of the last client is left");
        client.write32(REGISTERS, PAD, 1).unwrap();
        client.enable(pci::command::MASTER).unwrap();
        let second = Client::connect(&rig.path());
        assert!(second.is_err(), "one at a time");
        assert_eq!(client.read32(REGISTERS, PAD).unwrap(), 1, "the first one did not notice");
        drop(client);
        rig.until("the device is let go", |rig| rig.inside.detached.load(SeqCst) == round + 1);
    }
}

/// Each time costs a set-up, so a client that goes on like that is let in once a second; a client that stays
/// is served.
#[test]
fn who_comes_and_goes_is_let_in_once_a_second() {
    let rig = Rig::new("comes-and-goes");
    let start = Instant::now();
    for visit in 1..=5 {
        let channel = rig.channel();
        // A client that leaves before that came for nothing, and cost nothing.
        rig.until("it is let in", |rig| rig.port.messages.count().connections == visit);
        drop(channel);
        rig.until("it has left", |rig| rig.port.messages.count().brief == visit);
    }
    // Two are free, and two seconds lie between the other three, on any machine.
    assert!(start.elapsed() >= Duration::from_secs(2), "{:?}", start.elapsed());
    let mut client = rig.client();
    assert_eq!(client.read32(REGISTERS, PAD).unwrap(), 0);
    let count = rig.port.messages.count();
    assert_eq!((count.silent, count.held), (0, 0));
}

/// A client that connects and sends nothing does not keep the port for itself.
#[test]
fn a_client_that_says_nothing_is_let_go_and_the_next_one_is_served() {
    let rig = Rig::new("silent");
    let mut silent = std::os::unix::net::UnixStream::connect(rig.path()).unwrap();
    // It may be a slow VMM: it has the port for as long as another one's whole attempt takes.
    assert!(Client::connect(&rig.path()).is_err(), "one at a time");
    rig.until("the refusal is counted", |rig| rig.port.messages.count().refused == 1);
    assert_eq!(std::io::Read::read(&mut silent, &mut [0]).unwrap(), 0, "it is hung up on");
    rig.until("it is told", |rig| rig.status().detail.contains("no_version"));
    let mut client = rig.client();
    assert_eq!(client.read32(REGISTERS, PAD).unwrap(), 0);
    assert_eq!(rig.port.messages.count().silent, 1);
}

/// Maps that come and go under a device are changes that an I/O core notices: after so many of them the
/// client has to wait. Registers are free.
#[test]
fn who_changes_memory_without_end_is_held_back() {
    let rig = Rig::new("map-storm");
    rig.port.messages.limit(200, 1);
    let mut client = rig.client();
    let file = memory("storm", 0x1000);
    for _ in 0..2_000 {
        client.write32(REGISTERS, PAD, 1).unwrap();
        client.read32(REGISTERS, PAD).unwrap();
    }
    assert_eq!(rig.port.messages.count().changes, 0);
    let mut rounds = 0u64;
    while rig.port.messages.count().held == 0 {
        assert!(rounds < 1_000, "{:?}", rig.port.messages.count());
        client.map(0, 0x1000, dma::READ | dma::WRITE, Some((file.as_fd(), 0))).unwrap();
        client.unmap(0, 0x1000).unwrap();
        rounds += 1;
    }
    assert!(rounds >= 100, "a burst is not held back: {rounds}");
    let count = rig.port.messages.count();
    assert!(count.held_us > 0 && count.changes >= 200, "{count:?}");
    // It goes on, and the port can be ended meanwhile (by the rig).
    client.map(0, 0x1000, dma::READ | dma::WRITE, Some((file.as_fd(), 0))).unwrap();
    client.unmap(0, 0x1000).unwrap();
}

/// The client's memory is huge pages, and it takes away the one that a queue reads, far from where that
/// begins.
#[test]
fn huge_pages_may_be_cut_short_under_a_queue() {
    let pages = HugePages::take(2);
    let rig = Rig::new("huge");
    let mut client = rig.client();
    let file = pages.file(2 * HUGE);
    client.map(0, 2 * HUGE, dma::READ | dma::WRITE, Some((file.as_fd(), 0))).unwrap();
    let at = HUGE + 0x5120;
    client.write32(REGISTERS, INCREMENT, at as u32).unwrap();
    client.write32(REGISTERS, WATCH, at as u32).unwrap();
    rig.until("the queue reads", |rig| rig.inside.seen.load(SeqCst) == 1);
    ftruncate(&file, HUGE).unwrap();
    rig.until("it reads zeros", |rig| rig.inside.seen.load(SeqCst) == 0);
    client.write32(REGISTERS, INCREMENT, 0x5120).unwrap();
    // The part that is left is still shared, and the range goes as it came.
    client.write32(REGISTERS, WATCH, 0x5120).unwrap();
    rig.until("the rest is still there", |rig| rig.inside.seen.load(SeqCst) == 1);
    client.unmap(0, 2 * HUGE).unwrap();
    assert_eq!(mapped("huge"), 0);
}

#[test]
fn a_queue_that_stops_does_not_end_the_conversation() {
    let rig = Rig::new("fault");
    let mut client = rig.client();
    client.write32(REGISTERS, WATCH, 0x1000).unwrap();
    client.write32(REGISTERS, FAIL, 1).unwrap();
    rig.until("it is told", |rig| rig.status().peer == Peer::Faulted);
    let status = rig.status();
    assert!(status.detail.contains("bad_register"), "{}", status.detail);
    assert_eq!(status.queues[0].state, "stopped");
    client.reset().unwrap();
    client.write32(REGISTERS, WATCH, 0x1000).unwrap();
    rig.until("it runs again", |rig| rig.status().peer == Peer::Running);
    assert_eq!(rig.port.fault.get(), None);
    // A reset and the next fault come so fast that no thread looks in between.
    client.write32(REGISTERS, FAIL, 1).unwrap();
    rig.until("it is told again", |rig| rig.status().queues[0].state == "stopped");
    let at = client.capability(pci::capability::EXPRESS).unwrap().unwrap() + pci::capability::DEVICE_CONTROL;
    let post = |region, offset, data: &[u8]| {
        let access = RegionAccess { offset, region, count: data.len() as u32 };
        let size = (Header::SIZE + RegionAccess::SIZE + data.len()) as u32;
        message(command::REGION_WRITE, size, flags::NO_REPLY, &[&access.bytes()[..], data].concat())
    };
    let resets = rig.inside.resets.load(SeqCst);
    let glued = [
        post(region::CONFIG, at as u64, &pci::capability::FUNCTION_RESET.to_le_bytes()),
        post(REGISTERS, WATCH, &[0, 0x10, 0, 0]),
        post(REGISTERS, FAIL, &[1, 0, 0, 0]),
    ];
    client.channel().send(&[&glued.concat()], &[]).unwrap();
    rig.until("the reset is heard", |rig| rig.inside.resets.load(SeqCst) == resets + 1);
    client.read32(REGISTERS, PAD).unwrap();
    rig.until("it is told once more", |rig| rig.status().queues[0].state == "stopped");
    assert_eq!(rig.status().peer, Peer::Faulted);
}

#[test]
fn the_link_is_the_devices() {
    let mut rig = Rig::new("link");
    rig.attachment.as_mut().unwrap().set_link(false).unwrap();
    assert_eq!(rig.status().features, ["link down"]);
    let path = rig.path();
    rig.attachment = None;
    assert!(!path.exists(), "the socket goes with the device");
}

/// Cloud Hypervisor's own client: it asks in other ways than QEMU (a larger `argsz` than it reads, the
/// region's areas in a second question, all vectors in one message) and reads answers without looking for
/// errors.
#[test]
fn the_client_of_cloud_hypervisor_is_served() {
    use vm_memory::mmap::MmapRegion;
    let rig = Rig::new("ch");
    let mut client = vfio_user::Client::new(&rig.path()).unwrap();
    let bar = client.region(REGISTERS).unwrap();
    assert_eq!((bar.size, bar.sparse_areas.len()), (0x4000, 1));
    let area = bar.sparse_areas[0];
    assert_eq!((area.offset, area.size), (SHARED, 0x1000));
    let file = bar.file_offset.clone().unwrap();
    let at = file.start() + area.offset;
    let window: MmapRegion<()> = MmapRegion::build(
        Some(vm_memory::FileOffset::from_arc(Arc::clone(file.arc()), at)),
        area.size as usize,
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_SHARED,
    )
    .unwrap();
    rig.pages.word(SHARED as usize).unwrap().store(99, SeqCst);
    // SAFETY: the first word of a mapping of a page.
    assert_eq!(unsafe { window.as_ptr().cast::<u32>().read_volatile() }, 99);
    assert!(client.region(region::CONFIG).unwrap().file_offset.is_none());

    let counts: Vec<u32> = (0..irq::COUNT).map(|index| client.get_irq_info(index).unwrap().count).collect();
    assert_eq!(counts, [1, 1, 3, 1, 1]);
    let events: Vec<Event> = (0..3).map(|_| Event::new().unwrap()).collect();
    let fds: Vec<i32> = events.iter().map(|event| event.as_fd().as_raw_fd()).collect();
    let trigger = irq::DATA_EVENTFD | irq::ACTION_TRIGGER;
    client.set_irqs(irq::MSIX, trigger, 0, 3, &fds).unwrap();
    client.region_write(region::CONFIG, 0xa2, &pci::capability::MSIX_ENABLE.to_le_bytes()).unwrap();
    client.region_write(REGISTERS, MESSAGE, &2u32.to_le_bytes()).unwrap();
    assert_eq!(events.iter().map(Event::take).collect::<Vec<_>>(), [0, 0, 1]);
    client.set_irqs(irq::MSIX, irq::DATA_NONE | irq::ACTION_TRIGGER, 0, 0, &[]).unwrap();

    let memory = memory("ch", 0x1000);
    client.dma_map(0, 0x4000, 0x1000, memory.as_raw_fd()).unwrap();
    client.region_write(REGISTERS, INCREMENT, &0x4008u32.to_le_bytes()).unwrap();
    let mut byte = [0];
    rustix::io::pread(&memory, &mut byte, 8).unwrap();
    assert_eq!((byte, mapped("ch")), ([1], 1));
    client.dma_unmap(0x4000, 0x1000).unwrap();
    assert_eq!(mapped("ch"), 0);

    let mut bytes = [0; 4];
    client.region_write(region::CONFIG, 0x10, &[0xff; 4]).unwrap();
    client.region_read(region::CONFIG, 0x10, &mut bytes).unwrap();
    assert_eq!(u32::from_le_bytes(bytes), 0xffff_c000);
    client.reset().unwrap();
    client.region_read(region::CONFIG, 0x10, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 4]);
    assert!(!rig.status().detail.contains("refused"), "{}", rig.status().detail);
    client.shutdown().unwrap();
    rig.until("its end is noticed", |rig| rig.inside.detached.load(SeqCst) == 1);
}
