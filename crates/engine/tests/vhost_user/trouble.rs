//! VMMs that lie, that stall, and that change their memory and their rings under traffic.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use sidecore_abi::virtio::features as f;
use sidecore_driver::frontend::{Frontend, Region};
use sidecore_driver::lying::{self, Liar, Outcome};
use sidecore_driver::memory::Page;
use sidecore_driver::net::NetDriver;
use sidecore_driver::session::Config;
use sidecore_engine::port::{Peer, BURST};

use super::{await_status, config, frame, pass, Rig, Role, Stream, LIMIT};
use crate::cards::assert_conserved;
use crate::huge_pages::{HugePages, HUGE};

#[test]
fn a_liar_loses_its_own_port_only() {
    let lies: Vec<_> = lying::all().collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while let Some(lie) = lies.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let rig = Rig::new(&format!("lie-{}", lie.name));
                    let _honest = [rig.attach(0, Role::Server), rig.attach(1, Role::Server)];
                    let mut a = NetDriver::start(rig.meet(0, Role::Server), config(0)).unwrap();
                    let mut b = NetDriver::start(rig.meet(1, Role::Server), config(0)).unwrap();
                    let lied_to = rig.attach(2, Role::Server);
                    let path = rig.path(2);
                    let mut liar = Liar::new(move || Frontend::connect(&path, LIMIT));
                    let outcome = (lie.run)(&mut liar).unwrap_or_else(|e| panic!("{}: {e}", lie.name));
                    if matches!(outcome, Outcome::Closed | Outcome::Signalled) {
                        let status = await_status(&lied_to, |status| status.peer == Peer::Faulted);
                        println!("{}: {}", lie.name, status.detail);
                        assert!(status.detail.contains("last fault: "), "{}: {}", lie.name, status.detail);
                    }
                    pass(&mut a, &mut b, 0..100);
                    liar.release();
                    drop(lied_to);
                    pass(&mut a, &mut b, 0..100);
                    assert_conserved(&rig.ports);
                }
            });
        }
    });
}

/// Port 0 and its driver under traffic to port 1, while `disturb` happens once per round.
pub(super) fn disturbed(name: &str, features: u64, mut disturb: impl FnMut(&Rig, &mut NetDriver, u32)) {
    let rig = Rig::new(name);
    let vus = [rig.attach(0, Role::Server), rig.attach(1, Role::Server)];
    let mut a = NetDriver::start(rig.meet(0, Role::Server), config(features)).unwrap();
    let mut b = NetDriver::start(rig.meet(1, Role::Server), config(features)).unwrap();
    let mut stream = Stream::default();
    for round in 1..=20 {
        stream.run(&mut a, &mut b, round * 200);
        // Frames are under way meanwhile.
        stream.send(&mut a);
        disturb(&rig, &mut a, round);
        stream.receive(&mut b);
    }
    let until = stream.next;
    stream.run(&mut a, &mut b, until);
    assert_eq!(stream.twice, 0, "nothing comes twice as long as nobody dies");
    pass(&mut b, &mut a, 0..100);
    drop(vus);
    assert_conserved(&rig.ports);
}

/// A VMM shares its interrupts' eventfds with us, and their flags: it makes one blocking again and fills it.
/// A thread that writes it now waits for the VMM to read it, which it does not.
#[test]
fn a_full_interrupt_that_blocks_stalls_no_io_core() {
    use rustix::fs::{fcntl_getfl, fcntl_setfl, OFlags};
    let rig = Rig::new("full");
    let _attachments = [rig.attach(0, Role::Server), rig.attach(1, Role::Server)];
    let mut drivers = [0, 1].map(|port| NetDriver::start(rig.meet(port, Role::Server), config(0)).unwrap());
    let [a, b] = &mut drivers;
    pass(a, b, 0..10);
    let call = b.session().vring(0).unwrap().call.try_clone().unwrap();
    let flags = fcntl_getfl(&call).unwrap();
    // What earlier interrupts left there.
    let _ = rustix::io::read(&call, &mut [0; 8]);
    rustix::io::write(&call, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    fcntl_setfl(&call, flags - OFlags::NONBLOCK).unwrap();
    let before = interrupts(&rig);
    b.ask_for_interrupts();
    let deadline = Instant::now() + LIMIT;
    let out = || rig.ports[1].counters.totals().out_frames;
    for n in 10..20 {
        assert_eq!(a.send(0, &[&frame(n)]).unwrap(), 1);
        while out() <= u64::from(n) && Instant::now() < deadline {
            std::thread::yield_now();
        }
    }
    let arrived = out();
    // Lets a core that waits go on, so that a failure ends.
    rustix::io::read(&call, &mut [0; 8]).unwrap();
    fcntl_setfl(&call, flags).unwrap();
    assert_eq!(arrived, 20, "the I/O core waited for the VMM");
    assert!(interrupts(&rig) > before, "nothing was tested");
    pass(b, a, 20..30);
    assert_conserved(&rig.ports);
}

fn interrupts(rig: &Rig) -> u64 {
    rig.ports[1].counters.totals().interrupts
}

#[test]
fn memory_may_come_and_go_under_traffic() {
    for features in [f::EVENT_IDX, f::RING_PACKED] {
        let fd = memfd_create(c"more", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, 0x10_0000).unwrap();
        disturbed(&format!("memory{features}"), features, |_, a, round| {
            let session = a.session();
            let region = session.region();
            let more = Region {
                gpa: region.gpa + region.size + 0x10_0000 * u64::from(round),
                size: 0x10_0000,
                user: region.user + region.size + 0x10_0000 * u64::from(round),
                offset: 0,
            };
            match round % 3 {
                0 => session.frontend.set_mem_table(&[(region, session.memory.fd())]).unwrap(),
                1 => session
                    .frontend
                    .set_mem_table(&[(region, session.memory.fd()), (more, fd.as_fd())])
                    .unwrap(),
                _ => {
                    session.frontend.add_region(more, &fd).unwrap();
                    session.frontend.remove_region(more).unwrap();
                }
            }
        });
    }
}

/// A VMM whose memory is huge pages takes the last ones away: under the buffers that lie there, far from
/// where a huge page begins, and then under the rings.
#[test]
fn huge_pages_that_are_cut_short_end_their_port_only() {
    let config = Config { page: Page::Huge, entries: 1024, buffer: 4096, ..config(0) };
    let _pages = HugePages::take(2 * 8);
    let rig = Rig::new("huge");
    let vus = [rig.attach(0, Role::Server), rig.attach(1, Role::Server), rig.attach(2, Role::Server)];
    let mut a = NetDriver::start(rig.meet(0, Role::Server), config).unwrap();
    let mut b = NetDriver::start(rig.meet(1, Role::Server), config).unwrap();
    pass(&mut a, &mut b, 0..100);
    let region = a.session().region();
    assert!(region.size > 2 * HUGE, "more than one huge page is needed");
    ftruncate(a.session().memory.fd(), 0).unwrap();
    // The rings begin in the first huge page, which goes, too. The driver must not touch it either: only its
    // doorbell is left.
    rustix::io::write(&a.session().vring(1).unwrap().kick, &1u64.to_ne_bytes()).unwrap();
    let status = await_status(&vus[0], |status| status.peer == Peer::Faulted);
    assert!(status.detail.contains("memory_truncated"), "{}", status.detail);
    // The daemon lives, and so does the neighbour, and the port itself for the next VMM.
    drop(a);
    let mut a = NetDriver::start(rig.meet(0, Role::Server), super::config(0)).unwrap();
    pass(&mut b, &mut a, 0..100);
    assert_conserved(&rig.ports);
}

#[test]
fn all_509_memory_slots_can_be_used() {
    let rig = Rig::new("slots");
    let _vu = rig.attach(0, Role::Server);
    let a = NetDriver::start(rig.meet(0, Role::Server), config(0)).unwrap();
    let frontend = &a.session().frontend;
    let slots = frontend.max_mem_slots().unwrap();
    assert_eq!(slots, 509);
    let fd = memfd_create(c"slot", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, 0x1000).unwrap();
    let slot = |n: u64| Region { gpa: n << 40, size: 0x1000, user: n << 40 | 1 << 39, offset: 0 };
    // The driver has one already.
    for n in 1..slots {
        frontend.add_region(slot(n), &fd).unwrap();
    }
    assert!(frontend.add_region(slot(slots), &fd).is_err());
}

/// Each time an I/O core gives a queue back and gets it again. After so many a VMM has to wait; its ring runs
/// on.
#[test]
fn who_enables_and_disables_without_end_is_held_back() {
    let rig = Rig::new("enable-storm");
    let (_a, _b) = (rig.attach(0, Role::Server), rig.attach(1, Role::Server));
    let mut a = NetDriver::start(rig.meet(0, Role::Server), config(0)).unwrap();
    let mut b = NetDriver::start(rig.meet(1, Role::Server), config(0)).unwrap();
    pass(&mut a, &mut b, 0..100);
    let start = rig.ports[0].messages.count();
    assert!(start.changes < u64::from(BURST) / 20 && start.held == 0, "the start of a guest: {start:?}");
    rig.ports[0].messages.limit(200, 1);
    let honest = rig.ports[1].messages.count();
    let mut rounds = 0u64;
    while rig.ports[0].messages.count().held == 0 {
        assert!(rounds < 1_000, "{:?}", rig.ports[0].messages.count());
        a.session().enable(1, false).unwrap();
        a.session().enable(1, true).unwrap();
        rounds += 1;
    }
    pass(&mut a, &mut b, 100..200);
    assert_eq!(rig.ports[1].messages.count(), honest, "the other port pays for nothing");
    drop((a, b));
    assert_conserved(&rig.ports);
}

#[test]
fn rings_stop_and_resume_under_traffic() {
    for features in [f::EVENT_IDX, f::RING_PACKED | f::EVENT_IDX] {
        disturbed(&format!("pause{features}"), features, |_, a, _| {
            for number in 0..2 {
                let base = a.session().stop_vring(number).unwrap();
                a.session().resume_vring(number, base).unwrap();
            }
        });
    }
}
