//! Requests for which a visit has no time, and what becomes of them.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{fstat, memfd_create, MemfdFlags};
use sidecore_abi::virtio::{blk::request as kind, features};
use sidecore_driver::memory::{Memory, Page, View};
use sidecore_driver::queue::{Buf, Options, Parts, Queue as Driver, Table};

use super::*;
use crate::disk::FileMedium;
use crate::mem::{GuestMap, RegionSpec, Signal};
use crate::observe::CounterFile;
use crate::port::{PortId, DEFAULT_MTU};
use crate::virtq::RingConfig;

const MEMORY: usize = 2 << 20;
const CAPACITY: u64 = 1 << 18;
const ENTRIES: u16 = 8;
/// Data of a request, which lie in three pages.
const LEN: usize = 8192;
/// Data of one that a file in memory takes in several parts.
const LONG: usize = 1 << 17;
/// Bytes of a request's memory.
const SLOT: usize = 0x2000 + LONG;
/// A visit without time.
const NO_TIME: Budget = Budget { items: 64, bytes: 1 << 20, ns: 0 };

struct World {
    memory: Arc<Memory>,
    driver: Driver,
    tables: Vec<Table>,
    /// Where a request's memory is: header, status, and from its second page on, data.
    slots: usize,
    queue: BlkQueue,
}

fn part(map: &GuestMap, memory: &Memory, view: &View) -> Piece {
    map.translate(memory.gpa(view.offset()), u32::try_from(view.size()).unwrap(), &mut 0).unwrap()
}

impl World {
    fn new(disk: Disk) -> World {
        let options = Options { entries: ENTRIES, packed: false, event_idx: false, in_order: false };
        let memory = Memory::new(MEMORY, Page::Small).unwrap();
        let parts = Parts::new(&memory, options).unwrap();
        let driver = Driver::new(0, options, parts.clone()).unwrap();
        let tables = (0..ENTRIES).map(|_| Table::new(&memory, 4).unwrap()).collect();
        let slots = memory.alloc(SLOT * usize::from(ENTRIES), 4096).unwrap();
        let file = memory.fd().try_clone_to_owned().unwrap().into();
        let (gpa, user_addr) = (memory.gpa(0), memory.user(0));
        let map =
            GuestMap::new(&[RegionSpec { gpa, size: MEMORY as u64, user_addr, offset: 0, file }]).unwrap();
        let map = Arc::new(map);
        let way = match &disk.medium {
            Medium::File(file) => {
                let way = file.way(ENTRIES, Arc::clone(&map));
                Some(way.expect("this test needs a kernel that grants io_uring"))
            }
            _ => None,
        };
        let queue = Queue::requests(RingConfig {
            size: ENTRIES,
            desc: part(&map, &memory, &parts.desc),
            driver: part(&map, &memory, &parts.avail),
            device: part(&map, &memory, &parts.used),
            used_log: None,
            map,
            features: features::VERSION_1 | features::INDIRECT_DESC,
            position: Position::Split(0),
            notifier: Arc::new(Signal::default()),
            log: None,
            journal: None,
            region: None,
        });
        let counters = CounterFile::anonymous().unwrap();
        let port = Port::new(PortId(0), "disk", counters.open_slot(PortId(0), "disk"), DEFAULT_MTU).unwrap();
        let limits =
            Limits { capacity: CAPACITY, read_only: false, features: 0, id: *b"the name of the disk" };
        let queue = BlkQueue::new(Arc::new(port), Arc::new(disk), 0, (queue.unwrap(), way), None, limits);
        World { memory, driver, tables, slots, queue }
    }

    /// Offers a request for the disk's first bytes; its place.
    fn offer(&mut self, kind: u32, len: usize) -> usize {
        let name = self.driver.next_free(0);
        let at = self.slots + SLOT * usize::from(name);
        self.memory.write(at, &[&kind.to_le_bytes()[..], &[0; 12]].concat());
        self.memory.write(at + 64, &[0xee]);
        let gpa = self.memory.gpa(at);
        let buf = |offset, len, write| Buf { addr: gpa + offset, len, write };
        let chain = [buf(0, 16, false), buf(0x1800, len as u32, kind == kind::IN), buf(64, 1, true)];
        self.driver.add_indirect(&self.tables[usize::from(name)], &chain).unwrap();
        self.driver.publish();
        at
    }

    fn visit(&mut self) -> Visit {
        Task::<()>::visit(&mut self.queue, &mut (), NO_TIME)
    }

    fn reaped(&mut self) -> usize {
        self.driver.reap(usize::MAX, |_, _| ()).unwrap()
    }

    /// Visits as an I/O core does until so many more requests were given back; false if the ring sleeps for
    /// ten seconds before, or never.
    fn until_given(&mut self, count: usize) -> bool {
        let mut given = 0;
        for _ in 0..100_000 {
            if given >= count {
                return true;
            }
            if Task::<()>::has_work(&mut self.queue) || Task::<()>::arm(&mut self.queue) {
                self.visit();
                given += self.reaped();
                continue;
            }
            let event = self.queue.way.as_ref().unwrap().event();
            let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
            if poll(&mut [PollFd::new(&event, PollFlags::IN)], Some(&limit)).unwrap() == 0 {
                return false;
            }
        }
        false
    }

    /// Visits until there is no work; false if there always is.
    fn comes_to_rest(&mut self) -> bool {
        let has_work = |queue: &mut BlkQueue| Task::<()>::has_work(queue) || Task::<()>::arm(queue);
        for _ in 0..1000 {
            if !has_work(&mut self.queue) {
                return true;
            }
            self.visit();
        }
        false
    }

    fn status(&self, at: usize) -> u8 {
        let mut status = [0];
        self.memory.read(at + 64, &mut status);
        status[0]
    }
}

/// One page of one request in each visit, however many there are; none is forgotten, and the core does not
/// sleep before.
#[test]
fn a_visit_without_time_does_something() {
    let mut world = World::new(Disk::ram(CAPACITY, 512, false).unwrap());
    let data: Vec<u8> = (0..LEN).map(|i| (i % 251) as u8).collect();
    let write = world.offer(kind::OUT, LEN);
    world.memory.write(write + 0x1800, &data);
    let reads = [world.offer(kind::IN, LEN), world.offer(kind::IN, LEN)];
    let (mut visits, mut given) = (0, 0);
    while given < 3 {
        let before = Task::<()>::has_work(&mut world.queue);
        let visit = world.visit();
        assert!(before && visit.moved > 0 && visit.bytes <= 4096, "{visit:?}");
        visits += 1;
        given += world.reaped();
        assert_eq!(visit.end, VisitEnd::Time);
    }
    // Each is read in one, and moved in three.
    assert_eq!(visits, 12);
    assert!(!Task::<()>::arm(&mut world.queue));
    for at in reads {
        let mut back = vec![0; LEN];
        world.memory.read(at + 0x1800, &mut back);
        assert_eq!((world.status(at), back == data), (status::OK, true));
    }
}

/// A ring that is taken back in the middle of that ends all that it took, and says so.
#[test]
fn what_was_taken_is_done_before_the_end() {
    let mut world = World::new(Disk::null(CAPACITY, 512, false));
    let places = [kind::OUT, kind::IN, kind::IN].map(|kind| world.offer(kind, LEN));
    world.visit();
    assert_eq!((world.queue.unread(), world.reaped()), (2, 0));
    let World { queue, mut driver, memory, .. } = world;
    assert_eq!(queue.close(), Position::Split(3));
    assert_eq!(driver.reap(usize::MAX, |_, _| ()).unwrap(), 3);
    let mut status = [0];
    memory.read(places[2] + 64, &mut status);
    assert_eq!(status, [status::OK]);
}

/// A disk whose file lies in memory, and that file.
fn in_memory() -> (Disk, std::fs::File) {
    let file = std::fs::File::from(memfd_create(c"disk", MemfdFlags::CLOEXEC).unwrap());
    file.set_len(CAPACITY).unwrap();
    let (medium, len) = FileMedium::of(file.try_clone().unwrap(), 512).unwrap();
    (Disk::new(Medium::File(medium), "memory".to_owned(), len, 512, false), file)
}

/// A ring that is taken back: its requests are done, not failed, however many parts they have.
#[test]
fn all_parts_of_a_request_are_done_before_the_end() {
    // What was not taken from the ring stays there.
    for visits in 1..4 {
        let mut world = World::new(in_memory().0);
        let places = [kind::OUT, kind::IN].map(|kind| world.offer(kind, LONG));
        (0..visits).for_each(|_| _ = world.visit());
        let World { queue, memory, .. } = world;
        assert_eq!(queue.close(), Position::Split(2));
        for at in places {
            let mut status = [0];
            memory.read(at + 64, &mut status);
            assert_eq!(status, [status::OK], "after {visits} visits");
        }
    }
}

/// What the kernel copies has its pages found before.
#[test]
fn files_have_their_requests_all_the_same() {
    let (disk, file) = in_memory();
    let mut world = World::new(disk);
    let write = world.offer(kind::OUT, LEN);
    let reads: Vec<usize> = (0..3).map(|_| world.offer(kind::IN, LEN)).collect();
    let mut given = 0;
    for _ in 0..100_000 {
        world.visit();
        given += world.reaped();
        if given == 4 {
            break;
        }
    }
    assert_eq!(given, 4);
    assert!(reads.iter().chain([&write]).all(|at| world.status(*at) == status::OK));
    assert!(fstat(&file).unwrap().st_blocks > 0, "it was written");
}

/// A disk whose file has a server, the other end of a socket: workers read and write it, and wait for that
/// end.
fn served() -> (Disk, UnixStream) {
    let (ours, server) = UnixStream::pair().unwrap();
    let file = std::fs::File::from(OwnedFd::from(ours));
    let (medium, len) = FileMedium::served(file, CAPACITY).unwrap();
    (Disk::new(Medium::File(medium), "served".to_owned(), len, 512, false), server)
}

/// While all workers wait for a server and more requests wait for workers, a core has nothing to do, whatever
/// the guest offers.
#[test]
fn a_core_sleeps_while_requests_wait() {
    let (disk, mut server) = served();
    let mut world = World::new(disk);
    let mut places: Vec<usize> = (0..6).map(|_| world.offer(kind::IN, 512)).collect();
    assert!(world.comes_to_rest());
    places.push(world.offer(kind::IN, 512));
    assert!(world.comes_to_rest(), "it never sleeps");
    for at in places {
        assert_eq!(world.status(at), 0xee);
    }
    server.write_all(&[7; 7 * 512]).unwrap();
    assert!(world.until_given(7));
}

/// Writes that wait for a server leave a worker to reads, and reads pass those that wait for a worker.
#[test]
fn reads_pass_writes_that_wait() {
    let (disk, mut server) = served();
    let Medium::File(file) = &disk.medium else { return };
    file.stuff();
    let mut world = World::new(disk);
    let writes: Vec<usize> = (0..6).map(|_| world.offer(kind::OUT, LEN)).collect();
    assert!(world.comes_to_rest());
    let read = world.offer(kind::IN, 512);
    server.write_all(&[7; 512]).unwrap();
    assert!(world.until_given(1), "the read waits for writes");
    assert_eq!(world.status(read), status::OK);
    assert!(writes.iter().all(|at| world.status(*at) == 0xee));
    // The server has room again.
    let server = std::thread::spawn(move || server.read_to_end(&mut Vec::new()));
    assert!(world.until_given(6));
    drop(world);
    server.join().unwrap().unwrap();
}
