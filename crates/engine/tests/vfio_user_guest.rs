//! A PCI device of ours in a real guest: unmodified QEMU, unmodified Linux.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;
use std::time::Duration;

use sidecore_engine::graph::{CoreOptions, Graph};
use sidecore_engine::observe::CounterFile;
use sidecore_engine::port::{Attachment, Peer, Port, PortId, DEFAULT_MTU};
use sidecore_engine::transport::vfio_user::{Endpoint, VfioUser};
use sidecore_lab::{Guest, Nic, Result, RunDir};

use crate::scratch::{Scratch, INCREMENT, LEVEL, PAD, SHARED, WATCH};

const LIMIT: Duration = Duration::from_secs(30);
/// Guest memory that its kernel is told to leave alone, so that the test can have it.
const OURS: u64 = 0x0e00_0000;

#[test]
fn linux_finds_the_device_and_uses_all_of_it() -> Result<()> {
    let dir = RunDir::new("scratch")?;
    let path = dir.path().join("d.sock");
    let file = CounterFile::anonymous().unwrap();
    let port = Arc::new(Port::new(PortId(0), "p", file.open_slot(PortId(0), "p"), DEFAULT_MTU).unwrap());
    let cores = Graph::start(&CoreOptions::default()).unwrap();
    let device = Scratch::new(&port, cores);
    let (inside, pages) = (Arc::clone(&device.inside), Arc::clone(&device.pages));
    let endpoint = Endpoint::Listen { path: path.clone(), mode: None, owner: (None, None) };
    let attachment = VfioUser::start(endpoint, port, Box::new(device), None).unwrap();

    let guest = Guest::named("scratch").nic(Nic::vfio_user(&path));
    let mut guest = guest.kernel_argument("mem=200M").kernel_argument("iomem=relaxed").boot()?;
    let status = attachment.status();
    assert_eq!(status.peer, Peer::Connected, "{status:?}");
    assert!(!status.detail.contains("refused"), "QEMU was refused something: {}", status.detail);

    // It is on the bus, with its regions, capabilities and class.
    let found = guest.expect(
        "for d in /sys/bus/pci/devices/*; do [ $(cat $d/vendor) = 0x1b36 ] && [ $(cat $d/device) = 0x5ca7 ] && echo $d; done; true",
    )?;
    let at = found.trim().to_owned();
    assert!(at.starts_with("/sys/bus/pci/devices/0000:") && !at.contains('\n'), "{found:?}");
    assert_eq!(guest.expect(&format!("cat {at}/class"))?.trim(), "0xff0000");
    let resources = guest.expect(&format!("cat {at}/resource"))?;
    let bars: Vec<Vec<u64>> = resources
        .lines()
        .map(|line| line.split(' ').map(|n| u64::from_str_radix(&n[2..], 16).unwrap()).collect())
        .collect();
    let size = |bar: usize| if bars[bar][1] == 0 { 0 } else { bars[bar][1] - bars[bar][0] + 1 };
    assert_eq!([0, 1, 2, 3, 4, 5].map(size), [0x4000, 0, 64, 0x4000, 0, 0], "{resources}");
    let bar = bars[0][0];

    // Registers by trap, and the shared page without one.
    guest.expect(&format!("echo 1 > {at}/enable"))?;
    let mut peek = |address: u64| -> Result<u64> {
        let text = guest.expect(&format!("devmem {address:#x} 32"))?;
        Ok(u64::from_str_radix(&text.trim()[2..], 16).unwrap())
    };
    assert_eq!(peek(bar + PAD)?, 0);
    pages.word(SHARED as usize + 4).unwrap().store(0x1234_5678, SeqCst);
    assert_eq!(peek(bar + SHARED + 4)?, 0x1234_5678);
    let poke = |guest: &mut Guest, address: u64, value: u64| {
        guest.expect(&format!("devmem {address:#x} 32 {value:#x}")).map(drop)
    };
    poke(&mut guest, bar + PAD, 0xcafe)?;
    assert_eq!(guest.expect(&format!("devmem {:#x} 32", bar + PAD))?.trim(), "0x0000CAFE");
    let trapped = inside.shared_accesses.load(SeqCst);
    poke(&mut guest, bar + SHARED + 8, 0x5566)?;
    assert_eq!(pages.word(SHARED as usize + 8).unwrap().load(SeqCst), 0x5566);
    assert_eq!(inside.shared_accesses.load(SeqCst), trapped, "the shared page trapped");

    // Guest memory, by command and by a queue on an I/O core.
    poke(&mut guest, OURS, 41)?;
    poke(&mut guest, bar + INCREMENT, OURS)?;
    // A write may be posted; the read behind it is its end.
    assert_eq!(guest.expect(&format!("devmem {:#x} 32", bar + INCREMENT))?.trim(), format!("0x{OURS:08X}"));
    assert_eq!(guest.expect(&format!("devmem {OURS:#x} 32"))?.trim(), "0x0000002A");
    poke(&mut guest, bar + WATCH, OURS)?;
    poke(&mut guest, OURS, 0x7777)?;
    let start = std::time::Instant::now();
    while inside.seen.load(SeqCst) != 0x7777 {
        assert!(start.elapsed() < LIMIT, "the queue does not see what the guest writes");
        std::thread::yield_now();
    }
    assert_eq!(attachment.status().peer, Peer::Running);

    // The pin, through a driver of Linux's own that counts. It switches the pin off in the command register
    // when it fires; zero in the register's upper byte switches it on again.
    guest
        .expect("modprobe uio_pci_generic && echo 1b36 5ca7 > /sys/bus/pci/drivers/uio_pci_generic/new_id")?;
    for count in 1..=3 {
        guest.expect(&format!("printf '\\000' | dd of={at}/config bs=1 seek=5 conv=notrunc 2>/dev/null"))?;
        poke(&mut guest, bar + LEVEL, 1)?;
        guest.wait_until(&format!("[ $(cat {at}/uio/uio0/event) = {count} ]"), LIMIT)?;
        poke(&mut guest, bar + LEVEL, 0)?;
    }

    // A guest that starts anew finds a device that is new.
    let before = inside.resets.load(SeqCst);
    guest.qmp(serde_json::json!({"execute": "system_reset"}))?;
    let start = std::time::Instant::now();
    while inside.resets.load(SeqCst) == before {
        assert!(start.elapsed() < LIMIT, "the machine's reset did not reach the device");
        std::thread::yield_now();
    }
    let status = attachment.status();
    assert!(!status.detail.contains("refused"), "QEMU was refused something: {}", status.detail);
    guest.kill();
    let start = std::time::Instant::now();
    while inside.detached.load(SeqCst) == 0 {
        assert!(start.elapsed() < LIMIT, "the VMM's end was not noticed");
        std::thread::yield_now();
    }
    Ok(())
}
