//! Cards are taken out of a running guest. QEMU 11.1 aborts when a vfio-user device with MSI-X is, whatever
//! its layout, so the e1000e does without.

use crate::cards::LIMIT;
use serde_json::json;
use sidecore_lab::{Daemon, Guest, Nic, Result, RunDir};

#[test]
fn cards_without_msix_are_unplugged() -> Result<()> {
    let dir = RunDir::new("unplug")?;
    let at = |name: &str| dir.join(name);
    let ports = [format!("a=e1000e:{},features-off=msix", at("a")), format!("b=e1000:{}", at("b"))];
    let _daemon = Daemon::start(&ports.each_ref().map(|port| ["--port", port]).concat())?;
    let mut spec = Guest::named("unplug");
    for (slot, name) in ["a", "b"].into_iter().enumerate() {
        let root = format!("pcie-root-port,id=root{slot},chassis={slot},slot={slot}");
        let nic = Nic::vfio_user(at(name)).option(&format!("bus=root{slot}")).option("addr=0");
        spec = spec.argument("-device").argument(&root).nic(nic);
    }
    let mut guest = spec.boot()?;
    let interrupts = guest.expect("ip link set eth0 up; grep eth0 /proc/interrupts")?;
    assert!(interrupts.contains("MSI") && interrupts.lines().count() == 1, "{interrupts}");
    for id in ["nic0", "nic1"] {
        guest.qmp(json!({"execute": "device_del", "arguments": {"id": id}}))?;
        guest.wait_event("DEVICE_DELETED", LIMIT)?;
    }
    guest.wait_until("test \"$(ls /sys/class/net)\" = lo", LIMIT)?;
    guest.power_off()
}
