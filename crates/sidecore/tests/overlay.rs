//! A switch that follows a routing daemon. The daemon is this test, which writes into the kernel's tables
//! what FRR 8.4 writes there.

use std::net::Ipv6Addr;

use crate::rig::net::Net;
use crate::rig::{needs, until, Daemon, Testbed};
use crate::vlan::{frame, guests, mac, EVERYBODY};
use rustix::process::Signal;

fn daemon(bed: &Testbed, control: &Net) -> Daemon {
    let switch = format!("lan,control={},vni=100,table-size=1048576", control.path());
    let guest = format!("vm=vhost-user:{}", bed.at("vm.sock"));
    let port = std::net::UdpSocket::bind("127.0.8.1:0").unwrap().local_addr().unwrap().port();
    let over = format!("over=vxlan:127.0.8.1:{port},vni=100");
    bed.daemon(&["--switch", &switch, "--port", &over, "--port", &guest])
}

/// Tells of an endpoint: a tunnel runs as soon as it has somewhere to send to.
fn endpoint(control: &Net) {
    let line = "fdb append 00:00:00:00:00:00 dev scvx100 dst 127.0.8.2 self permanent";
    until("shadow", || control.command("bridge").args(line.split(' ')).output().unwrap().status.success());
}

/// At which port of the shadow its bridge has a station.
fn shadow(control: &Net, mac: u8) -> Option<String> {
    let output = control.command("bridge").args(["fdb", "show"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mac = format!("02:00:00:00:00:{mac:02x} dev ");
    let line = text.lines().find(|line| line.starts_with(&mac) && line.contains(" master "))?;
    line.split(' ').nth(2).map(str::to_owned)
}

/// At which port the switch has it.
fn at(bed: &Testbed, mac: u8) -> Option<String> {
    let (table, mac) = (bed.show("mac"), format!("02:00:00:00:00:{mac:02x}"));
    let row = table["addresses"].as_array().unwrap().iter().find(|row| row["mac"] == mac)?;
    row["port"].as_str().map(str::to_owned)
}

/// What zebra does where a station is behind another host, or is not any more.
fn far(control: &Net, what: &str, mac: u8) {
    let line = format!(
        "fdb {what} 02:00:00:00:00:{mac:02x} dev scvx100 dst 127.0.8.2 self master dynamic extern_learn"
    );
    let output = control.command("bridge").args(line.split(' ')).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn stations_move_between_hosts_and_the_shadow_outlives_the_daemon() {
    needs("bridge", "iproute2");
    let (bed, control) = (Testbed::new(), Net::new());
    let first = daemon(&bed, &control);
    endpoint(&control);
    let [mut vm] = guests(&bed, ["vm"]);
    let is = |port: &str| Some(port.to_owned());

    vm.send(&frame(EVERYBODY, 1, None, 1));
    until("station that is announced", || shadow(&control, 1) == is("scfd100"));
    far(&control, "replace", 2);
    far(&control, "replace", 3);
    until("station of another host", || at(&bed, 2) == is("over") && at(&bed, 3) == is("over"));

    // It comes here, goes back, and comes again. What was said of it stays in the VXLAN device's own table,
    // as zebra has it.
    for number in 2..5 {
        vm.send(&frame(EVERYBODY, 2, None, number));
        until("station that has come", || shadow(&control, 2) == is("scfd100") && at(&bed, 2) == is("vm"));
        far(&control, "replace", 2);
        until("station that has gone back", || at(&bed, 2) == is("over"));
        assert_eq!(shadow(&control, 2), is("scvx100"));
    }
    vm.send(&frame(EVERYBODY, 2, None, 5));
    until("station that has come", || shadow(&control, 2) == is("scfd100"));

    // An address that the kernel refuses, here because the bridge has no IPv6, does not end the control
    // plane.
    control.ip("link set scbr100 mtu 1200");
    let mac = [2, 0, 0, 0, 0, 1];
    let [own, other, group] =
        ["fd00::1", "fd00::2", "ff02::1:ff00:2"].map(|it| it.parse::<Ipv6Addr>().unwrap().octets());
    let ip = [&[0x60, 0, 0, 0, 0, 32, 58, 255][..], &own, &group].concat();
    let icmp = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &other, &[1, 1], &mac].concat();
    vm.send(&[&[0x33, 0x33, 0xff, 0, 0, 2][..], &mac, &[0x86, 0xdd], &ip, &icmp].concat());
    first.await_log("addresses of stations cannot all be announced");
    vm.send(&frame(EVERYBODY, 6, None, 6));
    until("a further station", || shadow(&control, 6) == is("scfd100"));
    let log = first.rest_of_log();
    assert!(!log.contains("its control plane: "), "{log}");

    // The next daemon takes the shadow as it is.
    first.end(Signal::KILL);
    assert_eq!([1, 2, 3].map(|mac| shadow(&control, mac)), [is("scfd100"), is("scfd100"), is("scvx100")]);
    let _second = daemon(&bed, &control);
    until("station that was said before", || at(&bed, 3) == is("over"));
    assert_eq!(at(&bed, 2), None, "it has moved here, and has not spoken yet");
    assert_eq!([1, 2].map(|mac| shadow(&control, mac)), [is("scfd100"), is("scfd100")]);

    far(&control, "del", 3);
    until("withdrawal that is obeyed", || at(&bed, 3).is_none());
    control.ip("link del scvx100");
    until("device that is made again", || {
        control.command("ip").args(["link", "show", "scvx100"]).output().unwrap().status.success()
    });
}

/// A tunnel in another VLAN is another one for the control plane, and what that has told goes on.
#[test]
fn a_tunnel_moves_to_a_vlan_and_is_followed_there() {
    needs("bridge", "iproute2");
    let (bed, control) = (Testbed::new(), Net::new());
    let _daemon = daemon(&bed, &control);
    endpoint(&control);
    let [mut vm] = guests(&bed, ["vm"]);
    vm.send(&frame(EVERYBODY, 1, None, 1));
    far(&control, "add", 2);
    until("stations", || {
        shadow(&control, 1).as_deref() == Some("scfd100") && at(&bed, 2).as_deref() == Some("over")
    });
    let vlan = |mac: u8| {
        let (table, mac) = (bed.show("mac"), format!("02:00:00:00:00:{mac:02x}"));
        let row = table["addresses"].as_array().unwrap().iter().find(|row| row["mac"] == mac)?;
        row["vlan"].as_u64()
    };
    bed.ok(&["set", "over", "vlan=10"]);
    until("a station told before", || vlan(2) == Some(10));
    until("the station of another VLAN", || shadow(&control, 1).is_none());
    far(&control, "add", 3);
    until("a station told later", || vlan(3) == Some(10));
    bed.ok(&["set", "vm", "vlan=10"]);
    vm.send(&frame(EVERYBODY, 1, None, 2));
    until("the station again", || shadow(&control, 1).as_deref() == Some("scfd100"));
    // Another table does not forget what is told once.
    bed.ok(&["set", "--switch", "lan", "table-size=64"]);
    assert_eq!([vlan(2), vlan(3)], [Some(10); 2]);
}

/// `ip netns del` and `add`: the name leads to another namespace.
#[test]
fn a_namespace_that_is_made_again_is_found() {
    let (bed, first, second) = (Testbed::new(), Net::new(), Net::new());
    let place = bed.at("ns");
    std::fs::write(&place, "").unwrap();
    let mount = |words: &[&str]| {
        let output = std::process::Command::new(words[0]).args(&words[1..]).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    mount(&["mount", "--bind", &first.path(), &place]);
    let switch = format!("lan,control={place},vni=100");
    let (router, tap) = (format!("r,control={place}"), format!("t=tap:t0,netns={place}"));
    let _daemon = bed.daemon(&[
        "--switch",
        &switch,
        "--router",
        &router,
        "--port",
        "over=vxlan:127.0.8.3,vni=100,switch=lan",
        "--port",
        &tap,
        "--port",
        "up=ring:up,router=r,address=10.3.0.1/24",
    ]);
    let has = |net: &Net, name: &str| {
        net.command("ip").args(["link", "show", name]).output().unwrap().status.success()
    };
    let all = |net: &Net| ["scvx100", "up", "t0"].iter().all(|name| has(net, name));
    until("interfaces", || all(&first));
    mount(&["umount", "--lazy", &place]);
    // The file is no namespace now, as where there is none.
    until("ports that wait", || bed.port("t")["state"]["peer"] == "stopped");
    mount(&["mount", "--bind", &second.path(), &place]);
    until("interfaces in the other one", || all(&second));
    mount(&["umount", "--lazy", &place]);
}

/// A guest that uses a new address in each frame.
#[test]
fn ever_new_addresses_are_announced_slowly() {
    const STATIONS: u32 = 6000;
    needs("bridge", "iproute2");
    let (bed, control) = (Testbed::new(), Net::new());
    let _daemon = daemon(&bed, &control);
    endpoint(&control);
    let [mut vm] = guests(&bed, ["vm"]);
    let announced = || {
        let output = control.command("bridge").args(["fdb", "show", "dev", "scfd100"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().lines().filter(|line| line.starts_with("02:00:01:")).count()
    };
    // Frames for one that is known are not limited as those for many are.
    far(&control, "add", 2);
    until("a station elsewhere", || at(&bed, 2).is_some());
    let start = std::time::Instant::now();
    let (mut next, mut known) = (0u32, 0);
    while known < STATIONS as usize {
        for number in next..next + 100 {
            let [_, a, b, c] = number.to_be_bytes();
            let mut bytes = frame(mac(2), 1, None, 1);
            bytes[6..12].copy_from_slice(&[2, 0, 1, a, b, c]);
            vm.send(&bytes);
        }
        next = (next + 100) % STATIONS;
        if next == 0 {
            known = bed.show("mac")["addresses"].as_array().unwrap().len();
        }
        let (count, most) = (announced(), 4096.0 + 500.0 * start.elapsed().as_secs_f64());
        assert!(count as f64 <= most + 1.0, "{count} of at most {most}");
        assert!(start.elapsed() < 6 * crate::rig::LIMIT);
    }
    until("all of them in the end", || announced() == STATIONS as usize);
}

/// The kernel keeps fewer changes than these for one who does not read. What is lost has to be asked for,
/// also what comes while that is done.
#[test]
fn stations_that_come_faster_than_they_are_read_are_all_in_force() {
    const STATIONS: u32 = 30_000;
    needs("bridge", "iproute2");
    let (bed, control) = (Testbed::new(), Net::new());
    let daemon = daemon(&bed, &control);
    let entry = |n: u32| {
        let [_, a, b, c] = n.to_be_bytes();
        let mac = format!("02:00:00:{a:02x}:{b:02x}:{c:02x}");
        format!("fdb add {mac} dev scvx100 dst 127.0.8.2 self master dynamic extern_learn\n")
    };
    let come = |from: u32| {
        let batch = bed.at("batch");
        std::fs::write(&batch, (from..from + STATIONS).map(entry).collect::<String>()).unwrap();
        let output = control.command("bridge").args(["-batch", &batch]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let shadow = ["link", "show", "scvx100"];
    until("shadow", || control.command("ip").args(shadow).output().unwrap().status.success());
    daemon.signal(Signal::STOP);
    come(0);
    std::thread::scope(|scope| {
        scope.spawn(|| come(STATIONS));
        daemon.signal(Signal::CONT);
    });
    let behind = format!("{} addresses behind", 2 * STATIONS);
    until("all of them", || bed.show("ports").to_string().contains(&behind));
}

/// More addresses than the kernel lets a namespace have of those that it may take out (arp(7), `gc_thresh3`:
/// 1024).
#[test]
fn addresses_of_many_stations_stay_announced() {
    const STATIONS: u16 = 1500;
    needs("ip", "iproute2");
    let (bed, control) = (Testbed::new(), Net::new());
    let _daemon = daemon(&bed, &control);
    endpoint(&control);
    let [mut vm] = guests(&bed, ["vm"]);
    let ask = |number: u16| {
        let [high, low] = number.to_be_bytes();
        let (mac, ip) = ([2, 0, 0, 1, high, low], [10, 1, high, low]);
        let arp = [&[0, 1, 8, 0, 6, 4, 0, 1][..], &mac, &ip, &[0; 6], &[10, 1, 99, 1]].concat();
        [&[0xff; 6][..], &mac, &[8, 6], &arp, &[0; 18]].concat()
    };
    let announced = || {
        let output = control.command("ip").args(["neigh", "show", "dev", "scbr100"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().lines().filter(|line| line.starts_with("10.1.")).count()
    };
    let mut next = 0;
    // A guest's broadcasts are limited.
    until("all addresses", || {
        (next..next + 100).for_each(|number| vm.send(&ask(number)));
        next = (next + 100) % STATIONS;
        announced() == usize::from(STATIONS)
    });

    // Two of them move to another host, and zebra has said where the second one's address is: the first one's
    // goes.
    control.ip("neigh replace 10.1.0.1 lladdr 02:00:00:01:00:01 dev scbr100 nud noarp extern_learn");
    for mac in ["02:00:00:01:00:00", "02:00:00:01:00:01"] {
        let line = format!("fdb replace {mac} dev scvx100 dst 127.0.8.2 self master dynamic extern_learn");
        assert!(control.command("bridge").args(line.split(' ')).output().unwrap().status.success());
    }
    until("an address that is not announced any more", || announced() == usize::from(STATIONS) - 1);
    until("stations that have moved", || bed.show("ports").to_string().contains("2 addresses behind"));
    assert_eq!(announced(), usize::from(STATIONS) - 1);
}
