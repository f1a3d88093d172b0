//! The service as `make install` installs it, in a guest whose first process is systemd: with a port of each
//! kind, reloaded, crashed, and stopped.

use std::fs::File;
use std::time::Duration;

use serde_json::Value;
use sidecore_lab::{system, Guest, Result, RunDir};

const LIMIT: Duration = Duration::from_secs(180);

/// Where the control socket is, which is not where commands look for it.
const DAEMON: &str =
    "[daemon]\nsocket = \"/run/sidecore/own.sock\"\n\n[[router]]\nname = \"r\"\ncontrol = \"frr\"\n";

/// Name, kind, where, and what else: ports that the unit has all rights for by itself.
const PLAIN: [(&str, &str, &str, &str); 11] = [
    ("virtio", "vhost-user", "/run/sidecore/virtio.sock", "mode = '0660'\nowner = ':nogroup'"),
    ("intel", "e1000", "/run/sidecore/intel.sock", ""),
    ("intel-e", "e1000e", "/run/sidecore/intel-e.sock", ""),
    ("realtek", "rtl8169", "/run/sidecore/realtek.sock", ""),
    ("netmap-guest", "ptnet", "/run/sidecore/netmap-guest.sock", ""),
    ("program", "ring", "program", ""),
    ("host", "tap", "sc0", ""),
    ("frames", "packet", "pk0", ""),
    ("express", "xdp", "xd0", ""),
    ("gateway", "switch", "lan", "router = 'r'\naddress = '10.0.0.1/24'"),
    ("memory", "blk", "/run/sidecore/memory.sock", "file = 'ram:4M'"),
];
/// Those that a drop-in is for, and the router's control plane with them.
const MORE: [(&str, &str, &str, &str); 3] = [
    ("device", "blk", "/run/sidecore/device.sock", "file = '/dev/vdb'"),
    ("image", "blk", "/run/sidecore/image.sock", "file = '/var/lib/images/root.img'"),
    ("inside", "tap", "sc1", "netns = 'vms'"),
];

fn port((name, kind, place, more): &(&str, &str, &str, &str)) -> String {
    format!("\n[[port]]\nname = \"{name}\"\nkind = \"{kind}\"\nwhere = \"{place}\"\n{more}\n")
}

fn show(guest: &mut Guest, topic: &str) -> Result<Value> {
    let text = guest.expect(&format!("sidecore show {topic} --json --socket /run/sidecore/own.sock"))?;
    Ok(serde_json::from_str(&text).unwrap())
}

/// The ports that do not run, and what the router says of its control plane.
fn troubled(guest: &mut Guest) -> Result<(Vec<String>, Value)> {
    let ports = show(guest, "ports")?;
    let ports = ports["ports"].as_array().unwrap();
    assert!(ports.len() >= PLAIN.len() + MORE.len(), "{ports:#?}");
    let stopped = ports.iter().filter(|port| port["state"]["peer"] == "stopped");
    let names = stopped.map(|port| port["name"].as_str().unwrap().to_owned()).collect();
    Ok((names, show(guest, "routers")?["routers"][0]["control"]["trouble"].clone()))
}

/// Runs a command that must succeed; if it does not, the error has what the service said.
fn expect(guest: &mut Guest, command: &str) -> Result<String> {
    guest.expect(&format!("{{ {command}; }} || {{ journalctl --no-pager -n 60 -o cat -u sidecore; false; }}"))
}

#[test]
fn the_service_runs_every_kind_of_port_and_comes_back_from_ten_crashes() -> Result<()> {
    let dir = RunDir::new("service")?;
    let data = dir.join("data.img");
    File::create(&data).unwrap().set_len(4 << 20).unwrap();
    let ports: String = PLAIN.iter().chain(&MORE).map(port).collect();
    let packaged = |name: &str| std::fs::read(format!("{}/../packaging/{name}", env!("CARGO_MANIFEST_DIR")));
    let packaged = |name: &str| packaged(name).unwrap();
    let mut guest = system::guest(
        "service",
        vec![
            ("/usr/bin/sidecore", 0o755, system::program()?),
            ("/usr/lib/systemd/system/sidecore.service", 0o644, packaged("sidecore.service")),
            ("/usr/lib/sysusers.d/sidecore.conf", 0o644, packaged("sidecore.sysusers")),
            ("/usr/share/sidecore/disks.conf", 0o644, packaged("disks.conf")),
            ("/usr/share/sidecore/netns.conf", 0o644, packaged("netns.conf")),
            ("/etc/sidecore/sidecore.toml", 0o644, format!("{DAEMON}{ports}").into_bytes()),
        ],
    )?
    .vcpus(2)
    .argument("-drive")
    .argument(&format!("if=none,id=data,format=raw,file={data}"))
    .argument("-device")
    .argument("virtio-blk-pci,drive=data")
    .boot()?;
    guest.expect(
        "set -e; systemd-sysusers sidecore.conf 2>&1; mkdir /var/lib/images; truncate -s 4M /var/lib/images/root.img; \
         for name in frr vms; do ip netns add $name; done; \
         for name in pk xd; do ip link add ${name}0 type veth peer name ${name}1; ip link set ${name}0 up; done",
    )?;
    assert_eq!(guest.expect("systemd-analyze verify --man=no sidecore.service 2>&1 | cat")?, "");

    // The unit alone refuses what the drop-ins are for, and nothing else.
    expect(&mut guest, "systemctl start sidecore")?;
    let (stopped, control) = troubled(&mut guest)?;
    let log = guest.expect("journalctl --no-pager -o cat -u sidecore")?;
    assert_eq!(stopped, ["device", "gateway.control", "image", "inside"], "{log}");
    assert!(control.as_str().is_some_and(|why| why.contains("frr")), "{control}");
    let about = show(&mut guest, "daemon")?;
    assert_eq!((&about["sandbox"]["user"], &about["sandbox"]["mode"]), (&"sidecore".into(), &"on".into()));
    // The guests' kernel is older than all of landlock that is used.
    let missing = about["sandbox"]["missing"].as_array().unwrap().iter();
    let missing: Vec<_> =
        missing.filter(|what| !what.as_str().unwrap().starts_with("landlock has")).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let owner =
        |guest: &mut Guest, name: &str| guest.expect(&format!("stat -c '%a %u:%g' /run/sidecore/{name}"));
    assert_eq!(owner(&mut guest, "virtio.sock")?.trim(), "660 0:65534");
    assert_eq!(owner(&mut guest, "intel.sock")?.trim(), "700 0:0");
    assert_eq!(owner(&mut guest, "own.counters")?.trim(), "644 0:0");
    // A program of the host's, and the host itself.
    let sent =
        "ip link set sc0 up && sidecore pkt-gen -f tx -n 10 -i /run/sidecore/ring/program >/dev/null && \
                [ \"$(cat /sys/class/net/sc0/statistics/rx_packets)\" -ge 10 ]";
    expect(&mut guest, sent)?;

    // busybox's `install` makes no folders.
    let dropped =
        "d=/etc/systemd/system/sidecore.service.d; mkdir $d && cp /usr/share/sidecore/*.conf $d && \
                   systemctl daemon-reload && systemctl restart sidecore";
    expect(&mut guest, dropped)?;
    let (stopped, control) = troubled(&mut guest)?;
    assert!(stopped.is_empty() && control.is_null(), "{stopped:?} {control}");
    assert!(guest.run("ip -n frr link show gateway")?.success(), "the control plane has no interface");

    // Each crash comes as soon as there is a process.
    let crash = "for n in 1 2 3 4 5 6 7 8 9 10; do \
                 old=$(systemctl show -P MainPID sidecore); kill -KILL $old; \
                 until new=$(systemctl show -P MainPID sidecore); [ $new != 0 ] && [ $new != $old ]; do \
                 ! systemctl is-failed -q sidecore || { echo not back from crash $n; exit 1; }; usleep 20000; done; done";
    expect(&mut guest, &format!("( {crash} )"))?;
    guest.wait_until("systemctl is-active -q sidecore", LIMIT)?;
    assert_eq!(troubled(&mut guest)?, (vec![], Value::Null));

    // One that stands still is ended and started again before QEMU would give it up.
    let stands = "old=$(systemctl show -P MainPID sidecore); kill -STOP $old; \
                  until new=$(systemctl show -P MainPID sidecore); [ $new != 0 ] && [ $new != $old ]; do usleep 20000; done";
    expect(&mut guest, &format!("( {stands} )"))?;
    guest.wait_until("systemctl is-active -q sidecore", LIMIT)?;
    assert_eq!(troubled(&mut guest)?, (vec![], Value::Null));

    let another = port(&("late", "ring", "late", ""));
    let file = "/etc/sidecore/sidecore.toml";
    expect(&mut guest, &format!("echo '{another}' >> {file}; systemctl reload sidecore"))?;
    let names = |guest: &mut Guest| -> Result<Vec<Value>> {
        let ports = show(guest, "ports")?;
        Ok(ports["ports"].as_array().unwrap().iter().map(|port| port["name"].clone()).collect())
    };
    let all = names(&mut guest)?;
    assert!(all.contains(&"late".into()), "{all:?}");
    // A file that is wrong is the reload's failure, and changes nothing.
    assert!(!guest.run(&format!("echo nonsense >> {file}; systemctl reload sidecore"))?.success());
    assert_eq!(names(&mut guest)?, all);

    // Counters are to be read behind the end.
    expect(&mut guest, "systemctl stop sidecore")?;
    assert!(guest
        .expect("sidecore show ports --socket /run/sidecore/own.sock 2>/dev/null")?
        .contains("program"));
    guest.power_off()
}
