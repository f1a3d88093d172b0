//! Guests that do nothing wrong, at times when their memory or the host is slow: no port rests, and none
//! stops.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{fallocate, fstat, FallocateFlags};
use rustix::process::Pid;
use rustix::thread::{sched_setaffinity, CpuSet};
use sidecore_driver::memory::Page;
use sidecore_driver::net::NetDriver;
use sidecore_driver::session::Config;
use sidecore_driver::Frontend;

use crate::huge_pages::{HugePages, HUGE};
use crate::rig::{last_of_two_processors, Testbed, LIMIT};

const FRAME: &[u8] = &[2; 64];

fn driver(bed: &Testbed, name: &str, config: Config) -> NetDriver {
    NetDriver::start(Frontend::connect(bed.path(name), LIMIT).unwrap(), config).unwrap()
}

fn assert_that_none_was_accused(bed: &Testbed) {
    for name in ["a", "b"] {
        let port = bed.port(name)["state"].clone();
        assert_eq!(port["overrun"]["rests"], 0, "{port}");
        assert_eq!(port["peer"], "running", "{port}");
    }
}

/// The kernel clears a huge page when it is touched first: here in the middle of a flood, each buffer in a
/// page of its own.
#[test]
fn new_huge_pages_under_a_flood_are_no_overrun() {
    const ENTRIES: usize = 32;
    let size = usize::try_from(HUGE).unwrap();
    // Buffers of both rings, and the rings themselves.
    let pages = HugePages::take(2 * ENTRIES + 2);
    let bed = Testbed::new();
    let port = |name: &str| format!("{name}=vhost-user:{},wire=w", bed.at(name));
    let _daemon = bed.daemon(&["--port", &port("a"), "--port", &port("b")]);
    let mut a = driver(&bed, "a", Config::default());
    let mut b =
        driver(&bed, "b", Config { entries: 32, buffer: size, page: Page::Huge, ..Config::default() });
    // What the VMM would not have prepared: all but the rings.
    let file = b.session().memory.fd();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let all = fstat(file).unwrap();
    fallocate(file, punch, HUGE, u64::try_from(all.st_size).unwrap() - HUGE).unwrap();
    let before = fstat(file).unwrap().st_blocks;
    let (mut received, start) = (0, Instant::now());
    while received < 4 * ENTRIES {
        a.send(0, &[FRAME; 16]).unwrap();
        received += b.receive(0, |_, bytes| assert_eq!(bytes, FRAME)).unwrap();
        assert!(start.elapsed() < LIMIT, "{received} frames came");
    }
    let blocks = fstat(b.session().memory.fd()).unwrap().st_blocks - before;
    let cleared = usize::try_from(blocks * 512).unwrap() / size;
    assert!(cleared >= ENTRIES - 1, "{cleared} pages were new");
    assert_that_none_was_accused(&bed);
    drop(pages);
}

/// Processes that are killed when the test ends.
struct Loops(Vec<Child>);

impl Drop for Loops {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Others have two thirds of the I/O core's processor, for `HONEST_SECONDS` (30): that is the host's doing.
#[test]
fn busy_loops_on_an_io_cores_processor_are_no_ports_overrun() {
    let processor = last_of_two_processors();
    let seconds = std::env::var("HONEST_SECONDS").map_or(30, |text| text.parse().unwrap());
    let bed = Testbed::new();
    let port = |name: &str| format!("{name}=vhost-user:{},wire=w", bed.at(name));
    let cores = processor.to_string();
    let _daemon = bed.daemon(&["--cores", &cores, "--port", &port("a"), "--port", &port("b")]);
    let mut set = CpuSet::new();
    set.set(processor);
    let busy = || {
        let child =
            Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn().unwrap();
        sched_setaffinity(Some(Pid::from_child(&child)), &set).unwrap();
        child
    };
    let _loops = Loops(vec![busy(), busy()]);
    let (mut a, mut b) = (driver(&bed, "a", Config::default()), driver(&bed, "b", Config::default()));
    let (mut received, start) = (0u64, Instant::now());
    while start.elapsed() < Duration::from_secs(seconds) {
        a.send(0, &[FRAME; 32]).unwrap();
        received += b.receive(0, |_, _| {}).unwrap() as u64;
    }
    assert!(received > 1_000, "{received} frames came");
    assert_that_none_was_accused(&bed);
}
