//! A guest moves to another QEMU and back, with traffic running.

use serde_json::json;
use sidecore_lab::traffic::Pinging;
use sidecore_lab::{Daemon, Guest, Nic, Result, Role, RunDir, Spec};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// The switch writes into the guest's memory while QEMU copies it. If a page that it wrote were not sent
/// again (the log of dirty pages, vhost-user `SET_LOG_BASE`), the received file would differ from the sent
/// one: the receiving program sleeps during the move, so that what arrives meanwhile stays where the switch
/// wrote it.
#[test]
fn a_guest_moves_to_another_qemu_and_back_while_it_receives() -> Result<()> {
    let dir = RunDir::new("migration")?;
    let socket = |name: &str| dir.join(&format!("{name}.sock"));
    let ports = ["here", "there", "peer"].map(|name| format!("{name}=vhost-user:{}", socket(name)));
    let arguments: Vec<&str> = ports.iter().flat_map(|port| ["--port", port.as_str()]).collect();
    let mut daemon = Daemon::start(&arguments)?;
    let nic = |name: &str| Nic::vhost_user(socket(name), Role::QemuClient { reconnect_ms: 200 }, 1);
    let mut peer = Guest::named("peer").nic(nic("peer")).boot()?;
    peer.address("10.0.0.2/24")?;
    for format in ["packed=off", "packed=on"] {
        // Always the same address: the peer remembers it.
        let mac = "52:54:00:77:00:01";
        let mover = |port: &str| Guest::named("mover").nic(nic(port).option(format).mac(mac));
        let guest = mover("here").boot()?;
        println!("{format}:");
        there_and_back(&mut daemon, &mover, guest, &mut peer)?;
        daemon.wait_peer("here", "waiting")?;
        let balance = daemon.balance()?;
        println!("{balance}; {:?}", balance.drops);
        let known = ["ring_full", "link_down", "no_destination"];
        assert!(balance.drops.keys().all(|reason| known.contains(&reason.as_str())), "{:?}", balance.drops);
    }
    Ok(())
}

/// A guest that cannot announce itself, and that sends nothing after the move. QEMU asks the switch to do it
/// (`VHOST_USER_SEND_RARP`), so frames for the guest go to its new port before it has said a word.
#[test]
fn a_silent_guest_without_guest_announce_is_found_at_its_new_port_at_once() -> Result<()> {
    const MAC: &str = "52:54:00:77:00:02";
    let dir = RunDir::new("rarp")?;
    let socket = |name: &str| dir.join(&format!("{name}.sock"));
    let ports = ["here", "there"].map(|name| format!("{name}=vhost-user:{}", socket(name)));
    let arguments: Vec<&str> = ports.iter().flat_map(|port| ["--port", port.as_str()]).collect();
    let mut daemon = Daemon::start(&arguments)?;
    let mover = |port: &str| {
        let nic = Nic::vhost_user(socket(port), Role::QemuClient { reconnect_ms: 200 }, 1);
        Guest::named("mover").nic(nic.option("guest_announce=off").mac(MAC))
    };
    let mut guest = mover("here").boot()?;
    // Without IPv6 it says nothing by itself; one question for an unused address shows it to the switch.
    guest.expect("sysctl -w net.ipv6.conf.all.disable_ipv6=1")?;
    guest.address("10.0.0.1/24")?;
    guest.run("ping -c 1 -W 1 10.0.0.9")?;
    assert_eq!(place_of(&mut daemon, MAC)?.as_deref(), Some("here"));
    let features = daemon.show_json("ports")?["ports"][0]["state"]["features"].to_string();
    assert!(!features.contains("guest_announce"), "{features}");
    // What it still wanted to say about that question it has said.
    guest.wait_until("! ip neigh | grep -q INCOMPLETE", LIMIT)?;
    let sent = guest.expect("cat /sys/class/net/eth0/statistics/tx_packets")?;
    let (mut guest, migration) = guest.migrate_to(mover("there"))?;
    let arrived = Instant::now();
    while place_of(&mut daemon, MAC)?.as_deref() != Some("there") {
        assert!(arrived.elapsed() < LIMIT, "the switch still looks for it at its old port");
    }
    println!("{migration:?}; the switch knows {:?} after its end", arrived.elapsed());
    assert_eq!(guest.expect("cat /sys/class/net/eth0/statistics/tx_packets")?, sent, "it spoke by itself");
    guest.kill();
    println!("{}", daemon.balance()?);
    Ok(())
}

/// The port behind which the switch saw `mac` last.
fn place_of(daemon: &mut Daemon, mac: &str) -> Result<Option<String>> {
    let answer = daemon.show_json("mac")?;
    let known = answer["addresses"].as_array().into_iter().flatten().find(|known| known["mac"] == mac);
    Ok(known.and_then(|known| known["port"].as_str().map(str::to_owned)))
}

fn there_and_back(
    daemon: &mut Daemon,
    mover: &impl Fn(&str) -> Spec,
    mut guest: Guest,
    peer: &mut Guest,
) -> Result<()> {
    guest.address("10.0.0.1/24")?;
    guest.expect("touch /tmp/received; sysctl -w net.ipv4.tcp_rmem='4096 6000000 6000000'")?;
    let receiver = guest.run_in_background("nc -l -p 9999 -e sh -c 'exec cat > /tmp/received'")?;
    guest.wait_until("netstat -lnt | grep -q :9999", LIMIT)?;
    let pinging = Pinging::start(peer, "10.0.0.1")?;
    // Blocks of 64 KiB, because frames that fill whole pages leave nothing in them for the guest to write.
    // Fast at first, which opens TCP's window, then about 400 kB/s.
    peer.expect("rm -f /tmp/stop; dd if=/dev/urandom of=/tmp/sent bs=1M count=48")?;
    let block =
        "dd if=/tmp/sent bs=64k count=1 skip=$n 2>/dev/null; n=$((n + 1)); [ $n -lt 200 ] || usleep 150000";
    let sender = peer.run_in_background(&format!(
        "nc 10.0.0.1 9999 -e sh -c 'n=0; until [ $n = 768 -o -e /tmp/stop ]; do {block}; done'"
    ))?;
    guest.wait_until(&format!("[ $(stat -c %s /tmp/received) -ge {} ]", 200 << 16), LIMIT)?;
    for (from, to) in [("here", "there"), ("there", "here")] {
        guest.expect("killall -STOP cat")?;
        // The guest rewrites 13 MB over and over for 4 s, more than may be left at the end; so QEMU goes on
        // copying, and frames arrive in pages that it has copied already and that only the switch touches.
        let limits = json!({"max-bandwidth": 64 << 20, "downtime-limit": 50});
        guest.qmp(json!({"execute": "migrate-set-parameters", "arguments": limits}))?;
        let busy = guest.run_in_background(
            "timeout 4 sh -c 'while :; do dd if=/tmp/received of=/tmp/scratch bs=1M count=13; done' 2>/dev/null",
        )?;
        let (moved, migration) = guest.migrate_to(mover(to))?;
        guest = moved;
        guest.wait_for(busy, LIMIT)?;
        let waiting = guest.expect("netstat -nt | awk '/:9999 / {print $2}'")?;
        guest.expect("killall -CONT cat")?;
        daemon.wait_peer(to, "running")?;
        daemon.wait_peer(from, "waiting")?;
        // Five a second: at its new port nothing of the guest's may look slow in the second after, either
        // (`balance`).
        pinging.more(peer, 6)?;
        received_more(&mut guest)?;
        let waiting: u64 = waiting.trim().parse().unwrap();
        assert!(waiting > 300_000, "only {waiting} bytes arrived during the move: nothing was tested");
        println!("{from} → {to}: {migration:?}, {waiting} bytes arrived meanwhile");
    }
    peer.expect("touch /tmp/stop")?;
    assert!(peer.wait_for(sender, LIMIT)?.success());
    assert!(guest.wait_for(receiver, LIMIT)?.success());
    let size = received(&mut guest)?;
    let here = guest.expect("sha256sum < /tmp/received")?;
    let there = peer.expect(&format!("head -c {size} /tmp/sent | sha256sum"))?;
    assert_eq!(here, there, "memory was lost on the way: the {size} bytes received are not those sent");
    let ping = pinging.end(peer)?;
    println!("two migrations: {} of {} pings lost", ping.lost(), ping.sent);
    guest.kill();
    Ok(())
}

fn received(guest: &mut Guest) -> Result<u64> {
    Ok(guest.expect("stat -c %s /tmp/received")?.trim().parse().unwrap())
}

/// Waits until a good deal more has been received; returns how much there was.
fn received_more(guest: &mut Guest) -> Result<u64> {
    let so_far = received(guest)?;
    guest.wait_until(&format!("[ $(stat -c %s /tmp/received) -ge {} ]", so_far + 200_000), LIMIT)?;
    Ok(so_far)
}
