//! The log of written pages, by which a guest migrates.

use std::time::Instant;

use rustix::fs::{memfd_create, MemfdFlags};
use sidecore_abi::virtio::features as f;
use sidecore_driver::net::NetDriver;
use sidecore_driver::raw::{request, Message};

use super::trouble::disturbed;
use super::{config, frame, pass, Rig, Role, LIMIT};

/// SET_VRING_ADDR with the log flag, as QEMU sends it while it migrates.
fn log_ring(driver: &NetDriver, number: u16, on: bool) {
    let session = driver.session();
    let parts = session.vring(number).unwrap().parts.addresses();
    let used_gpa = parts.used - session.memory.user(0) + session.memory.gpa(0);
    let words = [u64::from(number) | u64::from(on) << 32, parts.desc, parts.used, parts.avail, used_gpa];
    session.frontend.set(Message::words(request::SET_VRING_ADDR, &words)).unwrap();
}

#[test]
fn the_dirty_log_names_each_page_that_was_written() {
    use std::os::unix::fs::FileExt;
    for features in [f::EVENT_IDX | f::NET_MRG_RXBUF, f::RING_PACKED | f::NET_MRG_RXBUF] {
        let rig = Rig::new(&format!("log{features}"));
        let _vus = [rig.attach(0, Role::Server), rig.attach(1, Role::Server)];
        let mut a = NetDriver::start(rig.meet(0, Role::Server), config(features)).unwrap();
        let mut b = NetDriver::start(rig.meet(1, Role::Server), config(features)).unwrap();
        pass(&mut a, &mut b, 0..100);
        let session = b.session();
        let (gpa, size) = (session.memory.gpa(0), session.memory.size());
        let pages = (gpa + size as u64) >> 12;
        let bytes = pages.div_ceil(8).next_multiple_of(8);
        let log: std::fs::File = memfd_create(c"log", MemfdFlags::CLOEXEC).unwrap().into();
        log.set_len(bytes).unwrap();
        let message = Message::words(request::SET_LOG_BASE, &[bytes, 0]).with_fd(&log).unwrap();
        session.frontend.ask(&message).unwrap();
        rig.ports[0].set_mtu(9000);
        let image = |driver: &NetDriver| {
            let mut image = vec![0; size];
            driver.session().memory.read(0, &mut image);
            image
        };
        session.frontend.set_features(session.features | f::VHOST_LOG_ALL).unwrap();
        (0..2).for_each(|number| log_ring(&b, number, true));
        let before = image(&b);
        // The driver writes only what is in the rings and refills; what we write is in `after`.
        // Long enough to fill several buffers to the brim.
        for number in 0..10 {
            let mut long = frame(1000 + number).to_vec();
            long.resize(4 * 2048 - 12, 0xee);
            assert_eq!(a.send(0, &[&long]).unwrap(), 1);
        }
        let deadline = Instant::now() + LIMIT;
        while rig.ports[1].counters.totals().out_frames < 110 {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
        let after = image(&b);
        let mut bits = vec![0; bytes as usize];
        log.read_exact_at(&mut bits, 0).unwrap();
        let logged = |page: u64| bits[(page / 8) as usize] >> (page % 8) & 1 == 1;
        let mut written = 0;
        for (number, (old, new)) in before.chunks(4096).zip(after.chunks(4096)).enumerate() {
            let page = (gpa >> 12) + number as u64;
            assert!(old == new || logged(page), "page {page:#x} was written and not logged");
            written += usize::from(old != new);
        }
        let marked = (0..pages).filter(|page| logged(*page)).count();
        assert!(written >= 20, "10 frames fill twenty pages of buffers");
        assert!(marked <= written + 3, "{marked} pages marked, {written} written");
        // Off again: nothing more is marked.
        b.session().frontend.set_features(b.session().features).unwrap();
        log.write_all_at(&vec![0; bytes as usize], 0).unwrap();
        let mut got = 0;
        b.receive(0, |_, bytes| got = u32::from_be_bytes(bytes[14..18].try_into().unwrap())).unwrap();
        assert_eq!(got, 1009);
        pass(&mut a, &mut b, 0..100);
        log.read_exact_at(&mut bits, 0).unwrap();
        assert!(bits.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn turning_the_log_on_and_off_under_traffic_moves_no_ring() {
    let log: std::fs::File = memfd_create(c"log", MemfdFlags::CLOEXEC).unwrap().into();
    log.set_len(0x10_0000).unwrap();
    for features in [f::EVENT_IDX, f::RING_PACKED] {
        disturbed(&format!("logging{features}"), features, |_, a, round| {
            let session = a.session();
            let message = Message::words(request::SET_LOG_BASE, &[0x10_0000, 0]).with_fd(&log).unwrap();
            session.frontend.ask(&message).unwrap();
            let on = round % 2 == 1;
            let bit = if on { f::VHOST_LOG_ALL } else { 0 };
            session.frontend.set_features(session.features | bit).unwrap();
            (0..2).for_each(|number| log_ring(a, number, on));
        });
    }
}
