//! Firmware is a driver, too: iPXE, in each card's ROM, boots a guest over the network, and Linux takes the
//! card over.

use sidecore_lab::netboot::NetBoot;
use sidecore_lab::{Daemon, Guest, Netns, Nic, Result, RunDir, Spec};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(180);

#[test]
fn guests_boot_over_both_cards() -> Result<()> {
    let dir = RunDir::new("netboot")?;
    let host = Netns::new("boot")?;
    host.tap("tap0", false)?;
    let ports = [
        format!("a=e1000e:{},mac=52:54:00:00:b0:01", dir.join("a")),
        format!("b=e1000:{},mac=52:54:00:00:b0:02", dir.join("b")),
    ];
    let mut daemon =
        Daemon::start_in(&host, &["--port", &ports[0], "--port", &ports[1], "--port", "host=tap:tap0"])?;
    let servers = NetBoot::serve(&host, "tap0")?;
    let card = |name: &str, mac: &str, rom: &str| -> Spec {
        let nic =
            Nic::vfio_user(dir.join(name)).mac(mac).option(&format!("romfile={rom}")).option("bootindex=0");
        Guest::named(name).nic(nic).boot_over_network(&servers)
    };
    let booted = Guest::boot_all([
        card("a", "52:54:00:00:b0:01", "pxe-e1000e.rom"),
        card("b", "52:54:00:00:b0:02", "pxe-e1000.rom"),
    ]);
    if booted.is_err() {
        println!("{}\n{}", servers.log(), daemon.command(&["show", "ports"])?);
    }
    let [mut a, mut b] = booted?;

    let log = servers.log();
    for file in ["boot.ipxe", "52-54-00-00-b0-01.ipxe", "52-54-00-00-b0-02.ipxe", "kernel", "initrd"] {
        assert!(log.contains(&format!("url:/{file}")), "nobody asked for {file}: {log}");
    }
    for (guest, driver, address) in [(&mut a, "e1000e", "10.0.0.11"), (&mut b, "e1000", "10.0.0.12")] {
        assert!(guest.expect("cat /proc/cmdline")?.contains("initrd=initrd"));
        assert_eq!(guest.expect("ethtool -i eth0 | sed -n 's/^driver: //p'")?.trim(), driver);
        guest.address(&format!("{address}/24"))?;
        guest.wait_until("ping -c 1 -W 1 10.0.0.1 > /dev/null", LIMIT)?;
    }
    a.expect("ping -c 5 -i 0.1 10.0.0.12")?;
    let balance = daemon.balance()?;
    println!("{balance}; {:?}", balance.drops);
    Ok(())
}
