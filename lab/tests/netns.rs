//! Network namespaces beside the guests: a guest on a TAP interface talks with a namespace.

use sidecore_lab::{Guest, Netns, Nic, Result};

#[test]
fn namespaces_are_connected_and_removed() -> Result<()> {
    let (a, b) = (Netns::new("a")?, Netns::new("b")?);
    a.veth("east", &b, "west")?;
    a.address("east", "10.0.0.1/24")?;
    b.address("west", "10.0.0.2/24")?;
    a.expect("ping -c 1 10.0.0.2")?;
    assert!(a.expect("iperf3 --version")?.contains("iperf 3"));
    assert_eq!(a.run("exit 7")?.status, 7);
    let name = a.name().to_owned();
    let path = format!("/run/netns/{name}");
    assert!(std::path::Path::new(&path).exists());
    drop(a);
    assert!(!std::path::Path::new(&path).exists(), "{name} is removed with its value");
    Ok(())
}

#[test]
fn a_guest_pings_a_namespace_through_a_tap() -> Result<()> {
    let host = Netns::new("host")?;
    host.tap("tap0", false)?;
    host.address("tap0", "10.0.0.1/24")?;
    let nic = Nic::qemu("virtio-net-pci", "tap,ifname=tap0,script=no,downscript=no");
    let mut guest = Guest::named("tap").netns(&host).nic(nic).boot()?;
    guest.expect("ip addr add 10.0.0.2/24 dev eth0 && ip link set eth0 up && ping -c 2 10.0.0.1")?;
    guest.power_off()
}
