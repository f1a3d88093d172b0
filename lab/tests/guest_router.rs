//! A guest that routes between two others: two of our cards, each on a switch with one of them, and Debian's unmodified kernel with
//! forwarding turned on. The others use it as they would use our own router: ping, traceroute, TCP both ways, the path's MTU.

use crate::router::{be_router, use_router, virtio};
use sidecore_lab::{Daemon, Guest, Nic, Result, RunDir};

#[test]
fn a_guest_routes_with_virtio_cards() -> Result<()> {
    a_guest_routes("vhost-user", "virtio_net", virtio)
}

#[test]
fn a_guest_routes_with_e1000e_cards() -> Result<()> {
    a_guest_routes("e1000e", "e1000e", |socket| Nic::vfio_user(socket))
}

/// Its cards are ports of this kind, served by this driver.
fn a_guest_routes(kind: &str, driver: &str, card: fn(&str) -> Nic) -> Result<()> {
    let dir = RunDir::new("guest-router")?;
    let socket = |name: &str| dir.join(name);
    let port =
        |name: &str, kind: &str, switch: &str| format!("{name}={kind}:{},switch={switch}", socket(name));
    let ports = [
        port("left", "vhost-user", "near"),
        port("r0", kind, "near"),
        port("r1", kind, "far"),
        port("right", "vhost-user", "far"),
    ];
    let mut arguments = vec!["--switch", "near", "--switch", "far"];
    arguments.extend(ports.iter().flat_map(|port| ["--port", port.as_str()]));
    let mut daemon = Daemon::start(&arguments)?;
    let [mut left, mut router, mut right] = Guest::boot_all([
        Guest::named("left").nic(virtio(&socket("left"))),
        Guest::named("router").nic(card(&socket("r0"))).nic(card(&socket("r1"))),
        Guest::named("right").nic(virtio(&socket("right"))),
    ])?;
    be_router(&mut router, driver)?;
    use_router(&mut left, &mut right)?;
    let balance = daemon.balance()?;
    println!("{balance}; {:?}", balance.drops);
    for guest in [left, router, right] {
        guest.kill();
    }
    assert!(daemon.terminate()?.success());
    Ok(())
}
