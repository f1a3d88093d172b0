//! Unmodified Linux drivers on our e1000 and e1000e: the way a user goes, from the command line to traffic.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::Value;
use sidecore_lab::{Daemon, Guest, Nic, Result, Role};
use std::path::PathBuf;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// A folder for sockets that goes away with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("sidecore-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn socket(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What `show` says about port `name`.
fn show(daemon: &mut Daemon, name: &str) -> Result<Value> {
    let ports = daemon.show_json("ports")?;
    let found =
        ports["ports"].as_array().and_then(|all| all.iter().find(|port| port["name"] == name)).cloned();
    Ok(found.unwrap_or_else(|| panic!("no port {name} in {ports}")))
}

/// Traffic both ways between the first cards of two guests.
fn exchange(a: &mut Guest, b: &mut Guest) -> Result<()> {
    a.expect("ip addr flush dev eth0 && ip addr add 10.0.0.1/24 dev eth0 && ip link set eth0 up")?;
    b.expect("ip addr flush dev eth0 && ip addr add 10.0.0.2/24 dev eth0 && ip link set eth0 up")?;
    a.wait_until("ping -c 1 -W 1 10.0.0.2 > /dev/null", LIMIT)?;
    let pings = a.expect("ping -c 20 -i 0.1 10.0.0.2")?;
    assert!(pings.contains("20 packets received"), "{pings}");
    eprintln!("{}", pings.lines().last().unwrap_or_default());
    for direction in ["", "--reverse"] {
        let server = b.run_in_background("iperf3 --server --one-off")?;
        b.wait_until("netstat -lnt | grep -q :5201", LIMIT)?;
        let report = a.expect(&format!("iperf3 --client 10.0.0.2 --time 2 --json {direction}"))?;
        let report: Value = serde_json::from_str(&report).unwrap();
        let rate = report["end"]["sum_received"]["bits_per_second"].as_f64().unwrap();
        eprintln!("iperf3 {direction} {:.0} Mbit/s", rate / 1e6);
        assert!(rate > 0.0, "{report}");
        assert!(b.wait_for(server, LIMIT)?.success());
    }
    Ok(())
}

fn driver(guest: &mut Guest) -> Result<String> {
    Ok(guest.expect("ethtool -i eth0 | sed -n 's/^driver: //p'")?.trim().to_owned())
}

#[test]
fn linux_e1000e_talks_to_a_virtio_guest_without_exits() -> Result<()> {
    let folder = Folder::new("e1000e");
    let (nic, net) = (folder.socket("nic"), folder.socket("net"));
    let ports = [format!("a=e1000e:{nic},mac=52:54:00:00:e0:01"), format!("b=vhost-user:{net}")];
    let mut daemon = Daemon::start(&["--port", &ports[0], "--port", &ports[1]])?;
    let mut a = Guest::named("e1000e").nic(Nic::vfio_user(&nic)).boot()?;
    let mut b =
        Guest::named("virtio").nic(Nic::vhost_user(&net, Role::QemuClient { reconnect_ms: 0 }, 1)).boot()?;
    assert_eq!(driver(&mut a)?, "e1000e");
    assert_eq!(a.expect("cat /sys/class/net/eth0/address")?.trim(), "52:54:00:00:e0:01");
    exchange(&mut a, &mut b)?;
    let port = show(&mut daemon, "a")?.to_string();
    for word in ["\"exitless\"", "trapped-tx-tails=0", "trapped-rx-tails=0", "msix"] {
        assert!(port.contains(word), "no {word} in {port}");
    }
    assert!(!port.contains("\"trapping\""), "{port}");
    // The driver goes and comes back; the rings are where it says.
    a.expect("rmmod e1000e && modprobe e1000e")?;
    a.wait_until("test -e /sys/class/net/eth0", LIMIT)?;
    exchange(&mut a, &mut b)?;
    a.power_off()?;
    b.power_off()
}

#[test]
fn linux_e1000_talks_to_a_virtio_guest() -> Result<()> {
    let folder = Folder::new("e1000");
    let (nic, net) = (folder.socket("nic"), folder.socket("net"));
    let ports = [format!("a=e1000:{nic},mac=52:54:00:00:e0:02"), format!("b=vhost-user:{net}")];
    let mut daemon = Daemon::start(&["--port", &ports[0], "--port", &ports[1]])?;
    let mut a = Guest::named("e1000").nic(Nic::vfio_user(&nic)).boot()?;
    let mut b =
        Guest::named("virtio").nic(Nic::vhost_user(&net, Role::QemuClient { reconnect_ms: 0 }, 1)).boot()?;
    assert_eq!(driver(&mut a)?, "e1000");
    assert_eq!(a.expect("cat /sys/class/net/eth0/address")?.trim(), "52:54:00:00:e0:02");
    exchange(&mut a, &mut b)?;
    // Whether the VMM keeps the pages mapped beside INTx is its affair; that we know is ours.
    let port = show(&mut daemon, "a")?.to_string();
    assert!(port.contains("intx") && port.contains("running"), "{port}");
    eprintln!("{port}");
    a.power_off()?;
    b.power_off()
}

#[test]
fn long_frames_tags_and_the_link_between_e1000_and_e1000e() -> Result<()> {
    let folder = Folder::new("e1000-e1000e");
    let (left, right) = (folder.socket("left"), folder.socket("right"));
    let ports = [format!("a=e1000:{left},mtu=9000"), format!("b=e1000e:{right},mtu=9000")];
    let mut daemon = Daemon::start(&["--port", &ports[0], "--port", &ports[1]])?;
    let mut a = Guest::named("e1000").nic(Nic::vfio_user(&left)).boot()?;
    let mut b = Guest::named("e1000e").nic(Nic::vfio_user(&right)).boot()?;
    for (guest, host) in [(&mut a, 1), (&mut b, 2)] {
        guest.expect("modprobe 8021q && ip link set eth0 mtu 9000 && ip link set eth0 up")?;
        guest.expect("vconfig add eth0 7 && ip link set eth0.7 up")?;
        guest.expect(&format!(
            "ip addr add 10.0.0.{host}/24 dev eth0 && ip addr add 10.0.7.{host}/24 dev eth0.7"
        ))?;
    }
    for (size, to) in [(8900, "10.0.0.2"), (8000, "10.0.7.2"), (1, "10.0.7.2")] {
        a.wait_until(&format!("ping -c 1 -W 1 -s {size} {to} > /dev/null"), LIMIT)?;
        let pings = a.expect(&format!("ping -c 10 -i 0.1 -s {size} {to}"))?;
        assert!(pings.contains("10 packets received"), "{size} bytes to {to}: {pings}");
    }
    // TSO on one side, none on the other, with a tag: every checksum is made on the way.
    let server = b.run_in_background("iperf3 --server --one-off")?;
    b.wait_until("netstat -lnt | grep -q :5201", LIMIT)?;
    a.expect("iperf3 --client 10.0.7.2 --time 2")?;
    assert!(b.wait_for(server, LIMIT)?.success());
    let bad = b.expect("ethtool -S eth0 | sed -n 's/ *rx_csum_offload_errors: //p'")?;
    assert_eq!(bad.trim(), "0");
    // The carrier is the operator's.
    for (link, carrier) in [("down", 0), ("up", 1)] {
        daemon.command(&["set", "b", &format!("link={link}")])?;
        b.wait_until(&format!("test $(cat /sys/class/net/eth0/carrier) = {carrier}"), LIMIT)?;
    }
    a.wait_until("ping -c 1 -W 1 10.0.0.2 > /dev/null", LIMIT)?;
    b.expect("for i in 1 2 3 4 5; do rmmod e1000e; modprobe e1000e; done")?;
    b.wait_until("test -e /sys/class/net/eth0", LIMIT)?;
    b.expect("ip addr add 10.0.0.2/24 dev eth0 && ip link set eth0 up")?;
    a.wait_until("ping -c 1 -W 1 10.0.0.2 > /dev/null", LIMIT)?;
    let port = show(&mut daemon, "b")?.to_string();
    assert!(port.contains("trapped-tx-tails=0") && !port.contains("fault"), "{port}");
    a.power_off()?;
    b.power_off()
}
