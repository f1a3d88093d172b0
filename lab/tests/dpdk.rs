//! DPDK's own driver for Intel's cards: testpmd, in a guest's user space, forwards between an e1000e and an
//! e1000.

use sidecore_lab::{dpdk, Daemon, Guest, Nic, Result, RunDir};
use sidecore_port::{Interest, Port};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(180);
/// Each way.
const FRAMES: u32 = 5_000;
/// Frames under way at once: fewer than testpmd's receive rings have descriptors.
const WINDOW: u32 = 128;
/// PCI identities of the cards.
const CARDS: [&str; 2] = ["8086 10d3", "8086 100e"];

#[test]
fn testpmd_forwards_between_both_cards() -> Result<()> {
    let dir = RunDir::new("dpdk")?;
    let at = |name: &str| dir.join(name);
    let ports = [
        format!("a=e1000e:{},wire=a", at("a")),
        format!("p=ring:{},wire=a", at("p")),
        format!("b=e1000:{},wire=b", at("b")),
        format!("q=ring:{},wire=b", at("q")),
    ];
    let mut daemon = Daemon::start(&ports.each_ref().map(|port| ["--port", port]).concat())?;
    let [mut p, mut q] = ["p", "q"].map(|name| Port::attach(&at(name)).unwrap());
    let spec = Guest::named("dpdk").vcpus(2).memory_mib(512).limit(LIMIT);
    let spec = spec.nic(Nic::vfio_user(at("a"))).nic(Nic::vfio_user(at("b")));
    let mut guest = dpdk::install(spec)?.boot()?;

    // The kernel gives both cards and 128 MiB away.
    guest.expect("echo 64 > /proc/sys/vm/nr_hugepages && grep -x 64 /proc/sys/vm/nr_hugepages")?;
    guest.expect("rmmod e1000e e1000 && modprobe uio_pci_generic")?;
    for card in CARDS {
        guest.expect(&format!("echo {card} > /sys/bus/pci/drivers/uio_pci_generic/new_id"))?;
    }
    // Statistics each second, and with each of them the log is written.
    let testpmd = guest.run_in_background(
        "dpdk-testpmd -l 0,1 --in-memory -m 96 -a 00:10.0 -a 00:11.0 -- \
         --forward-mode=io --total-num-mbufs=4096 --stats-period=1 > /run/log 2>&1; echo it has ended >> /run/log",
    )?;
    guest.wait_until("grep -qs -e 'NIC statistics' -e 'it has ended' /run/log", LIMIT)?;
    let log = guest.expect("cat /run/log")?;
    assert!(log.contains("NIC statistics"), "{log}");

    exchange(&mut p, &mut q);
    exchange(&mut q, &mut p);

    guest.expect("killall -INT dpdk-testpmd")?;
    guest.wait_for(testpmd, LIMIT)?;
    // It has counted the same, and lost nothing.
    let log = guest.expect("cat /run/log")?;
    let all = log.split("Accumulated forward statistics").nth(1).unwrap_or_default();
    let all: Vec<&str> = all.split_whitespace().collect();
    let frames = (2 * FRAMES).to_string();
    for way in ["RX", "TX"] {
        let count = [&format!("{way}-packets:"), &frames, &format!("{way}-dropped:"), "0"];
        assert!(all.windows(4).any(|words| words == count), "no {count:?} in {log}");
    }
    the_kernel_takes_them_back(&mut guest, [&mut p, &mut q])?;
    let balance = daemon.balance()?;
    println!("{balance}; {:?}", balance.drops);
    Ok(())
}

fn the_kernel_takes_them_back(guest: &mut Guest, ports: [&mut Port; 2]) -> Result<()> {
    guest.expect("rmmod uio_pci_generic && modprobe e1000e && modprobe e1000")?;
    for (card, port) in ["eth0", "eth1"].into_iter().zip(ports) {
        guest.expect(&format!("ip link set {card} up"))?;
        guest.wait_until(&format!("test $(cat /sys/class/net/{card}/carrier) = 1"), LIMIT)?;
        guest.expect(&format!("arping -c 1 -w 1 -I {card} -s 10.0.0.1 10.0.0.2 || true"))?;
        assert!(port.wait(Interest::RECEIVE, Some(LIMIT)).unwrap(), "nothing comes from {card}");
    }
    Ok(())
}

/// Everything that is sent arrives, once, in its order, unchanged.
fn exchange(from: &mut Port, to: &mut Port) {
    let (mut sent, mut received) = (0, 0);
    while received < FRAMES {
        while sent < FRAMES && sent - received < WINDOW && from.tx[0].push(&frame(sent)) {
            sent += 1;
        }
        from.tx[0].sync().unwrap();
        assert!(to.wait(Interest::RECEIVE, Some(LIMIT)).unwrap(), "{received} of {sent} frames came");
        while let Some(got) = to.rx[0].take() {
            assert_eq!(got.bytes(), frame(received), "frame {received}");
            received += 1;
        }
        to.rx[0].sync().unwrap();
    }
}

/// Frame `number`, of 60 to 1514 bytes.
fn frame(number: u32) -> Vec<u8> {
    let mut frame = b"\x52\x54\0\0\xdd\x02\x52\x54\0\0\xdd\x01\x88\xb5".to_vec();
    frame.extend(number.to_be_bytes());
    let length = 60 + usize::try_from(number % 1455).unwrap();
    frame.extend(number.to_le_bytes().iter().cycle().take(length - frame.len()));
    frame
}
