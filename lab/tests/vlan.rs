//! VLANs with unmodified guests: a trunk to a guest with VLAN interfaces; a lab of four guests whose VLANs,
//! access list and mirror are in one file.

use crate::cards::{checked, no_wrong_checksum, reaches, LIMIT};
use crate::router::virtio;
use sidecore_lab::capture::delivered;
use sidecore_lab::traffic::{iperf3, received_gbits, Ping};
use sidecore_lab::{Daemon, Guest, Netns, Nic, Result, RunDir};

/// Two tenants, each with a host on an access port: name, VLAN.
const TENANTS: [(&str, u16); 2] = [("red", 10), ("blue", 20)];
const MTU: usize = 1500;

#[test]
fn two_vlans_over_one_trunk_with_virtio_cards() -> Result<()> {
    two_vlans_over_one_trunk("vhost-user", virtio)
}

/// The card inserts and removes the tags.
#[test]
fn two_vlans_over_one_trunk_with_e1000e_cards() -> Result<()> {
    two_vlans_over_one_trunk("e1000e", |socket| Nic::vfio_user(socket))
}

/// A tenant's host, and the guest's address in its VLAN.
struct Host {
    netns: Netns,
    interface: String,
    address: String,
    guest: String,
}

impl Host {
    fn new((name, vlan): (&str, u16)) -> Result<Host> {
        let interface = format!("eth0.{vlan}");
        let address = |host| format!("10.0.{vlan}.{host}");
        Ok(Host { netns: Netns::new(name)?, interface, address: address(2), guest: address(1) })
    }
}

fn two_vlans_over_one_trunk(kind: &str, card: fn(&str) -> Nic) -> Result<()> {
    let dir = RunDir::new("trunk")?;
    let hosts = [Host::new(TENANTS[0])?, Host::new(TENANTS[1])?];
    let access = |at: usize| {
        let (name, vlan) = TENANTS[at];
        format!("{name}=tap:{name},netns={},vlan={vlan}", hosts[at].netns.name())
    };
    let trunk = format!("vm={kind}:{},trunk=10+20", dir.join("vm"));
    let mut daemon = Daemon::start(&["--port", &trunk, "--port", &access(0), "--port", &access(1)])?;
    for (host, (name, _)) in hosts.iter().zip(TENANTS) {
        host.netns.address(name, &format!("{}/24", host.address))?;
    }
    let mut vm = Guest::named("vm").nic(card(&dir.join("vm"))).boot()?;
    vm.expect("modprobe 8021q && ip link set eth0 up")?;
    for (host, (_, vlan)) in hosts.iter().zip(TENANTS) {
        let Host { interface, guest, .. } = host;
        vm.expect(&format!("ip link add link eth0 name {interface} type vlan id {vlan}"))?;
        vm.expect(&format!("ip addr add {guest}/24 dev {interface} && ip link set {interface} up"))?;
    }
    let tags = vm.expect("ethtool -k eth0 | grep -E '^[rt]x-vlan-offload: on'; true")?;
    assert_eq!(tags.lines().count(), if kind == "e1000e" { 2 } else { 0 }, "{tags}");

    for host in &hosts {
        reaches(&mut vm, &host.address)?;
        let text = vm.expect(&format!("ping -c 10 -i 0.1 {}", host.address))?;
        assert_eq!(Ping::parse(&text).unwrap().lost(), 0, "{text}");
        host.netns.expect(&format!("ping -c 3 {}", host.guest))?;
    }
    the_other_vlan_hears_nothing(&mut daemon, &mut vm, &hosts)?;
    for host in &hosts {
        streams(kind, &mut daemon, &mut vm, host)?;
        a_file_comes_back_as_it_was(&mut vm, host, &dir)?;
    }
    no_wrong_checksum(&mut vm)?;
    for host in &hosts {
        let wrong = host.netns.expect("awk '/^Tcp:/{n = $NF} END{print n}' /proc/net/snmp")?;
        assert_eq!(wrong, "0\n", "{}: wrong checksums", host.netns.name());
    }
    let balance = daemon.balance()?;
    println!("{kind}: {balance}; {:?}", balance.drops);
    // Streams fill rings; a card filters what its guest did not ask for; who is up first has nobody to speak
    // to.
    let known = ["ring_full", "vlan", "filtered", "no_destination", "link_down"];
    assert!(balance.drops.keys().all(|reason| known.contains(&reason.as_str())), "{:?}", balance.drops);
    vm.kill();
    assert!(daemon.terminate()?.success());
    Ok(())
}

/// Nobody answers to questions for a neighbour's address, without a tag, or in a VLAN that is not the
/// trunk's; and the neighbour's port has seen none of them.
fn the_other_vlan_hears_nothing(daemon: &mut Daemon, vm: &mut Guest, hosts: &[Host; 2]) -> Result<()> {
    let [red, blue] = hosts;
    let captures = [daemon.capture("red")?, daemon.capture("blue")?];
    vm.expect("ip link add link eth0 name eth0.30 type vlan id 30 && ip link set eth0.30 up")?;
    vm.expect("ip addr add 10.9.9.9/32 dev lo")?;
    let mut asked = |interface: &str, address: &str| {
        let text = vm.run(&format!("arping -c 2 -w 2 -I {interface} -s 10.9.9.9 {address}"))?.text;
        assert!(text.contains("Received 0 "), "{interface} to {address}: {text}");
        Ok(())
    };
    asked(&red.interface, &blue.address)?;
    asked(&blue.interface, &red.address)?;
    for host in hosts {
        asked("eth0", &host.address)?;
        asked("eth0.30", &host.address)?;
    }
    // What is behind all of that in each VLAN.
    for host in hosts {
        vm.expect(&format!("arping -c 1 -w 5 -I {} {}", host.interface, host.address))?;
    }
    for (capture, (host, other)) in captures.into_iter().zip([(red, blue), (blue, red)]) {
        let file = capture.end()?;
        // The own tenant's guest asked for an address that nobody has here, twice.
        let heard = delivered(&file, "arp.src.proto_ipv4 == 10.9.9.9", &["arp.dst.proto_ipv4", "vlan.id"])?;
        assert_eq!(heard, vec![[other.address.clone(), String::new()]; 2], "at {}", host.netns.name());
        let last = delivered(&file, &format!("arp.dst.proto_ipv4 == {}", host.address), &["frame.len"])?;
        assert!(!last.is_empty(), "the last question of all did not come");
    }
    vm.expect("ip link del eth0.30 && ip addr del 10.9.9.9/32 dev lo")?;
    let drops = daemon.balance()?.drops;
    assert!(drops.get("vlan").is_some_and(|frames| *frames >= 8), "{drops:?}");
    Ok(())
}

/// TCP both ways. What reaches the guest has the tag of its VLAN. A virtio driver takes long segments whole,
/// with checksums left to it; the Intel card gets frames that are cut up behind their tags, with right
/// checksums.
fn streams(kind: &str, daemon: &mut Daemon, vm: &mut Guest, host: &Host) -> Result<()> {
    let capture = daemon.capture("vm")?;
    let there = iperf3(vm, &host.guest, "--bytes 8M", |command| host.netns.run(command))?;
    let file = capture.end()?;
    let (vlan, ours) = (host.interface.trim_start_matches("eth0."), format!("ip.dst == {}", host.guest));
    let frames = delivered(&file, &ours, &["vlan.id", "frame.len"])?;
    assert!(frames.iter().all(|frame| frame[0] == vlan), "a frame for {} without its tag", host.interface);
    let longest = frames.iter().map(|frame| frame[1].parse::<usize>().unwrap()).max().unwrap();
    if kind == "e1000e" {
        assert!(checked(&file, &ours, MTU)? > 2000, "{} frames for 8 MB", frames.len());
    } else {
        assert!(longest > 10_000, "the longest frame has {longest} bytes");
    }
    let back = iperf3(vm, &host.guest, "--bytes 8M --reverse", |command| host.netns.run(command))?;
    println!(
        "{kind}, {}: {} frames for 8 MB, the longest of {longest} bytes; {:.2} Gbit/s, back {:.2}",
        host.interface,
        frames.len(),
        received_gbits(&there),
        received_gbits(&back)
    );
    Ok(())
}

/// A file that the host sends and fetches again.
fn a_file_comes_back_as_it_was(vm: &mut Guest, host: &Host, dir: &RunDir) -> Result<()> {
    let [sent, got] = ["sent", "got"].map(|name| dir.join(name));
    host.netns.expect(&format!("dd if=/dev/urandom of={sent} bs=1001 count=3001 2> /dev/null"))?;
    let job = vm.run_in_background("nc -l -p 9999 -e sh -c 'exec cat > /tmp/got'")?;
    vm.wait_until("netstat -lnt | grep -q :9999", LIMIT)?;
    host.netns.expect(&format!("nc {} 9999 -e cat {sent}", host.guest))?;
    assert!(vm.wait_for(job, LIMIT)?.success());
    assert_eq!(vm.expect("sha256sum < /tmp/got")?, host.netns.expect(&format!("sha256sum < {sent}"))?);
    let job = vm.run_in_background("nc -l -p 9999 -e cat /tmp/got")?;
    vm.wait_until("netstat -lnt | grep -q :9999", LIMIT)?;
    host.netns.expect(&format!("nc {} 9999 -e sh -c 'exec cat > {got}'", host.guest))?;
    assert!(vm.wait_for(job, LIMIT)?.success());
    host.netns.expect(&format!("cmp {sent} {got}"))?;
    vm.expect("rm /tmp/got").map(drop)
}

/// Guests of two tenants, a web server for both of them on a trunk, and an intrusion detection that gets
/// copies of its traffic.
fn site(dir: &RunDir) -> String {
    let socket = |name: &str| dir.join(name);
    format!(
        "[[acl]]
name = 'web'
rules = [
    'permit type=arp',
    'permit proto=icmp icmp=8',
    'permit proto=tcp dport=80 vlan=10',
    'deny proto=tcp dport=80',
]

[[switch]]
name = 'ids'

[[port]]
name = 'web'
kind = 'vhost-user'
where = '{}'
trunk = [10, 20]
acl-out = 'web'
mirror = 'ids'

[[port]]
name = 'red'
kind = 'e1000e'
where = '{}'
vlan = 10

[[port]]
name = 'blue'
kind = 'vhost-user'
where = '{}'
vlan = 20

[[port]]
name = 'ids'
kind = 'vhost-user'
where = '{}'
switch = 'ids'
",
        socket("web"),
        socket("red"),
        socket("blue"),
        socket("ids")
    )
}

#[test]
fn a_lab_of_four_guests() -> Result<()> {
    let dir = RunDir::new("site")?;
    let file = dir.join("site.toml");
    std::fs::write(&file, site(&dir)).unwrap();
    let mut daemon = Daemon::start(&[&file])?;
    let guest = |name: &str, card: fn(&str) -> Nic| Guest::named(name).nic(card(&dir.join(name)));
    let [mut web, mut red, mut blue, mut ids] = Guest::boot_all([
        guest("web", virtio),
        guest("red", |socket| Nic::vfio_user(socket)),
        guest("blue", virtio),
        guest("ids", virtio),
    ])?;
    ids.expect("ip link set eth0 up")?;
    web.expect("modprobe 8021q && ip link set eth0 up && mkdir /www && echo it works > /www/index.html")?;
    for (vlan, tenant) in [(10, &mut red), (20, &mut blue)] {
        web.expect(&format!("ip link add link eth0 name eth0.{vlan} type vlan id {vlan}"))?;
        web.expect(&format!("ip addr add 10.0.{vlan}.1/24 dev eth0.{vlan} && ip link set eth0.{vlan} up"))?;
        tenant.address(&format!("10.0.{vlan}.2/24"))?;
    }
    web.expect("httpd -p 80 -h /www && httpd -p 8080 -h /www")?;

    // Both reach the server, and it them.
    reaches(&mut red, "10.0.10.1")?;
    reaches(&mut blue, "10.0.20.1")?;
    let capture = daemon.capture("ids")?;
    for (tenant, address) in [(&mut red, "10.0.10.1"), (&mut blue, "10.0.20.1")] {
        let text = tenant.expect(&format!("ping -c 5 -i 0.1 {address}"))?;
        assert_eq!(Ping::parse(&text).unwrap().lost(), 0, "{text}");
    }
    // The list permits no answers to what the server asks.
    assert!(!web.run("ping -c 1 -W 2 10.0.10.2")?.success());

    // Tenants do not reach each other, whatever addresses they take.
    red.expect("ip addr add 10.0.99.1/24 dev eth0")?;
    blue.expect("ip addr add 10.0.99.2/24 dev eth0")?;
    assert!(!red.run("ping -c 2 -W 1 10.0.99.2")?.success());
    assert!(!blue.run("ping -c 2 -W 1 10.0.99.1")?.success());
    assert!(blue.run("arping -c 2 -w 2 -I eth0 10.0.10.2")?.text.contains("Received 0 "));

    // The page is red's alone, and only at the usual port.
    let fetch = |from: &mut Guest, place: &str| {
        from.run(&format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 3 {place}"))
    };
    let page = fetch(&mut red, "10.0.10.1 80")?;
    assert!(page.success() && page.text.ends_with("it works\n"), "{}", page.text);
    for (tenant, place) in [(&mut red, "10.0.10.1 8080"), (&mut blue, "10.0.20.1 80")] {
        let page = fetch(tenant, place)?;
        assert!(!page.success() && page.text.contains("timed out"), "{place}: {}", page.text);
    }

    // The list has counted all of that.
    let lists = daemon.show_json("acl")?;
    let list = &lists["acls"][0];
    assert_eq!(list["ports"], serde_json::json!(["web out"]), "{list:#}");
    let frames: Vec<u64> =
        list["rules"].as_array().unwrap().iter().map(|rule| rule["frames"].as_u64().unwrap()).collect();
    let [arp, asked, pages, refused, others] = frames[..] else { panic!("{list:#}") };
    println!("{arp} ARP, {asked} echo requests, {pages} of pages, {refused} refused, {others} others");
    assert!(arp >= 2 && asked >= 12 && pages >= 3, "{list:#}");
    // A connection that nobody answers is asked for more than once: within three seconds twice.
    assert!(refused >= 1 && others >= 2, "{list:#}");

    // Copies of what passed, as it looks at the server's port.
    reaches(&mut red, "10.0.10.1")?;
    let file = capture.end()?;
    let copies = |filter: &str| Ok::<_, sidecore_lab::Error>(delivered(&file, filter, &["vlan.id"])?.len());
    assert_eq!(copies("!vlan")?, 0);
    assert_eq!(copies("vlan.id == 20 && icmp.type == 8")?, 5);
    assert_eq!(copies("vlan.id == 20 && icmp.type == 0")?, 5);
    assert!(copies("vlan.id == 10 && icmp.type == 0 && ip.src == 10.0.10.1")? >= 6);
    assert_eq!(
        copies("icmp.type == 0 && ip.src == 10.0.10.2")?,
        0,
        "an answer that the list refuses was copied"
    );
    let page = copies("vlan.id == 10 && tcp.dstport == 80")?;
    assert!(page >= 3 && copies("vlan.id == 10 && tcp.srcport == 80")? >= 2, "{page} frames to the server");
    assert_eq!(copies("vlan.id == 20 && tcp")?, 0, "a refused connection was copied");
    assert_eq!(copies("tcp.port == 8080")?, 0, "a refused connection was copied");
    let ports = daemon.show_json("ports")?;
    let port = ports["ports"].as_array().unwrap().iter().find(|port| port["name"] == "ids").unwrap();
    let delivered = port["counters"]["out_frames"].as_u64().unwrap();
    let received = format!("test $(cat /sys/class/net/eth0/statistics/rx_packets) -ge {delivered}");
    ids.wait_until(&received, LIMIT)?;

    let balance = daemon.balance()?;
    println!("{balance}; {:?}", balance.drops);
    let known = ["acl", "filtered", "link_down", "no_destination", "ring_full", "vlan"];
    assert!(balance.drops.keys().all(|reason| known.contains(&reason.as_str())), "{:?}", balance.drops);
    assert!(balance.drops["acl"] >= refused + others, "{:?}", balance.drops);
    for guest in [web, red, blue, ids] {
        guest.kill();
    }
    assert!(daemon.terminate()?.success());
    Ok(())
}
