//! "My VM has no traffic", with real VMMs and drivers: memory that is private or not shared at all is named,
//! and so is a driver that is not there. A guest that is well is not accused.

use sidecore_lab::{Daemon, Guest, Nic, Result, Role, RunDir};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// The troubles of port `name` that are wrong.
fn troubles(daemon: &mut Daemon, name: &str) -> Result<Vec<String>> {
    let ports = daemon.show_json("ports")?;
    let port = ports["ports"].as_array().unwrap().iter().find(|port| port["name"] == name).unwrap().clone();
    let all = port["state"]["troubles"].as_array().cloned().unwrap_or_default();
    let wrong = all.iter().filter(|trouble| trouble["wrong"] == true);
    Ok(wrong.map(|trouble| trouble["name"].as_str().unwrap().to_owned()).collect())
}

fn await_troubles(daemon: &mut Daemon, name: &str, wanted: &[&str]) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let found = troubles(daemon, name)?;
        if found == wanted {
            return Ok(());
        }
        assert!(
            Instant::now() < deadline,
            "{name}: {found:?}, not {wanted:?}; {}",
            daemon.show_json("ports")?
        );
        // A guest and its VMM are at it.
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Boots a guest with a virtio and an Intel card whose memory is `object`, and has it bring both up. What its
/// ports say then.
fn told(name: &str, object: &str, wanted: [&[&str]; 2]) -> Result<()> {
    let dir = RunDir::new(name)?;
    let socket = |card: &str| dir.join(&format!("{card}.sock"));
    let (v, e) = (format!("v=vhost-user:{}", socket("v")), format!("e=e1000e:{}", socket("e")));
    let mut daemon = Daemon::start(&["--port", &v, "--port", &e])?;
    let virtio = Nic::vhost_user(socket("v"), Role::QemuClient { reconnect_ms: 200 }, 1);
    let guest = Guest::named(name).nic(virtio).nic(Nic::vfio_user(socket("e")));
    let guest = match object {
        "" => guest,
        object => {
            guest.argument("-object").argument(object).argument("-machine").argument("memory-backend=other")
        }
    };
    let mut guest = guest.boot()?;
    for card in ["eth0", "eth1"] {
        // Without memory that we share its driver may fail to bring it up.
        guest.run(&format!(
            "ip addr add 10.9.0.1/24 dev {card}; ip link set {card} up; ping -c 1 -W 1 10.9.0.2"
        ))?;
    }
    for (port, wanted) in ["v", "e"].into_iter().zip(wanted) {
        await_troubles(&mut daemon, port, wanted)?;
    }
    guest.power_off()
}

#[test]
fn private_memory_is_named() -> Result<()> {
    // QEMU does not give a vhost-user back end memory of which it has a private mapping, and gives it a
    // vfio-user one.
    told(
        "private",
        "memory-backend-memfd,id=other,size=256M,share=off",
        [&["no_memory"], &["private_memory"]],
    )
}

#[test]
fn memory_that_has_no_file_is_named() -> Result<()> {
    told("nofile", "memory-backend-ram,id=other,size=256M", [&["no_memory"], &["no_memory"]])
}

#[test]
fn a_guest_that_is_well_is_not_accused() -> Result<()> {
    told("well", "", [&[], &[]])
}
