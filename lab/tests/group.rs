//! Two guests that are one router: alike down to their addresses, members of a group between two others.
//! Unmodified kernels of Debian with forwarding turned on; the others use them as they would use one router,
//! while one is killed, comes back and is drained.

use crate::router::{be_router, use_router, virtio, Family, FAMILIES};
use sidecore_lab::traffic::{iperf3, received_gbits, Pinging};
use sidecore_lab::{Daemon, Error, Guest, Nic, Result, RunDir, Spec};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
/// The group's stations, and its switches.
const MACS: [&str; 2] = ["52:54:00:00:01:01", "52:54:00:00:01:02"];
const SWITCHES: [&str; 2] = ["near", "far"];

#[test]
fn two_guests_are_one_router_with_virtio_cards() -> Result<()> {
    two_guests_are_one_router("vhost-user", "virtio_net", virtio)
}

#[test]
fn two_guests_are_one_router_with_e1000e_cards() -> Result<()> {
    two_guests_are_one_router("e1000e", "e1000e", |socket| Nic::vfio_user(socket))
}

/// What members are made of.
struct Members {
    dir: RunDir,
    card: fn(&str) -> Nic,
}

impl Members {
    fn socket(&self, name: &str) -> String {
        self.dir.join(name)
    }

    fn spec(&self, name: &str) -> Spec {
        let card = |side: usize| (self.card)(&self.socket(&format!("{name}{side}"))).mac(MACS[side]);
        Guest::named(name).nic(card(0)).nic(card(1))
    }
}

/// The states of members a and b.
fn states(daemon: &mut Daemon) -> Result<[String; 2]> {
    let groups = daemon.show_json("groups")?;
    let members = &groups["groups"][0]["members"];
    Ok([0, 1].map(|at| members[at]["state"].as_str().unwrap_or_default().to_owned()))
}

/// Waits until something is so; the control socket tells states, not events.
fn wait(daemon: &mut Daemon, is: impl Fn(&mut Daemon) -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    while !is(daemon)? {
        if Instant::now() > deadline {
            let groups = daemon.show_json("groups")?;
            return Err(Error::new(format!("it did not come to that: {groups:#}")));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn wait_states(daemon: &mut Daemon, wanted: [&str; 2]) -> Result<()> {
    wait(daemon, |daemon| Ok(states(daemon)? == wanted))
}

/// Frames that a port's guest has sent.
fn sent(daemon: &mut Daemon, name: &str) -> Result<u64> {
    let ports = daemon.show_json("ports")?;
    let port = ports["ports"].as_array().and_then(|all| all.iter().find(|port| port["name"] == name));
    Ok(port.and_then(|port| port["counters"]["in_frames"].as_u64()).unwrap_or_default())
}

fn two_guests_are_one_router(kind: &str, driver: &str, card: fn(&str) -> Nic) -> Result<()> {
    let members = Members { dir: RunDir::new("group")?, card };
    let addresses =
        |side: usize| FAMILIES.each_ref().map(|it| format!("{}/{}", it.gateways[side], it.bits)).join("+");
    let mut ports = vec![
        format!("left=vhost-user:{},switch=near", members.socket("left")),
        format!("right=vhost-user:{},switch=far", members.socket("right")),
    ];
    for side in 0..2 {
        let (mac, switch) = (MACS[side], SWITCHES[side]);
        ports.push(format!(
            "g{side}=group:g,interface={side},switch={switch},mac={mac},address={}",
            addresses(side)
        ));
        ports.extend(["a", "b"].map(|name| {
            let port = format!("{name}{side}");
            let socket = members.socket(&port);
            format!("{port}={kind}:{socket},mac={mac},group=g,member={name},interface={side}")
        }));
    }
    let mut arguments = vec!["--switch", "near", "--switch", "far", "--group", "g"];
    arguments.extend(ports.iter().flat_map(|port| ["--port", port.as_str()]));
    let mut daemon = Daemon::start(&arguments)?;
    let [mut left, mut a, mut b, mut right] = Guest::boot_all([
        Guest::named("left").nic(virtio(&members.socket("left"))),
        members.spec("a"),
        members.spec("b"),
        Guest::named("right").nic(virtio(&members.socket("right"))),
    ])?;
    be_router(&mut a, driver)?;
    be_router(&mut b, driver)?;
    wait_states(&mut daemon, ["active", "active"])?;
    use_router(&mut left, &mut right)?;

    // One question has one answer, though both members hear it.
    let Family { gateways: [near, _], guests: [_, far], .. } = &FAMILIES[0];
    let answers = left.expect(&format!("arping -c 3 -I eth0 {near}"))?;
    assert!(answers.contains("Received 3 "), "{answers}");

    // Many flows pass both of them, and so both find stations.
    let streams = |left: &mut Guest, right: &mut Guest| {
        let report = iperf3(right, far, "--parallel 16 --bytes 4M", |command| left.run(command))?;
        assert!(received_gbits(&report) > 0.0);
        Ok::<_, Error>(())
    };
    let before = [sent(&mut daemon, "a1")?, sent(&mut daemon, "b1")?];
    streams(&mut left, &mut right)?;
    assert!(sent(&mut daemon, "a1")? > before[0] && sent(&mut daemon, "b1")? > before[1]);
    for guest in [&mut a, &mut b] {
        guest.expect(&format!("ip neigh show {far} dev eth1 | grep lladdr"))?;
    }
    daemon.balance()?;

    // One is killed while packets are under way: what passed it passes the other one.
    let ping = Pinging::start(&mut left, far)?;
    let server = right.run_in_background("iperf3 --server --one-off")?;
    right.wait_until("netstat -lnt | grep -q :5201", LIMIT)?;
    let begun = sent(&mut daemon, "b1")?;
    let streaming = left.run_in_background(&format!("iperf3 --client {far} --parallel 16 --time 5"))?;
    wait(&mut daemon, |daemon| Ok(sent(daemon, "b1")? > begun + 100))?;
    b.crash();
    wait_states(&mut daemon, ["active", "gone"])?;
    ping.more(&mut left, 5)?;
    let streamed = left.wait_for(streaming, LIMIT)?;
    assert!(streamed.success(), "{}", streamed.text);
    assert!(right.wait_for(server, LIMIT)?.success());
    let groups = daemon.show_json("groups")?;
    let why = groups["groups"][0]["members"][1]["why"].as_str().unwrap_or_default().to_owned();
    assert!(why.starts_with("port b") && why.ends_with("is down"), "{why}");

    // It comes back, and the first one is drained meanwhile.
    let mut b = members.spec("b").boot()?;
    be_router(&mut b, driver)?;
    wait_states(&mut daemon, ["active", "active"])?;
    daemon.command(&["drain", "g/a", "--wait"])?;
    assert_eq!(states(&mut daemon)?, ["drained", "active"]);
    ping.more(&mut left, 5)?;
    let before = sent(&mut daemon, "b1")?;
    streams(&mut left, &mut right)?;
    assert!(sent(&mut daemon, "b1")? > before);
    daemon.command(&["undrain", "g/a"])?;
    wait_states(&mut daemon, ["active", "active"])?;
    let ping = ping.end(&mut left)?;
    println!(
        "{driver}: {} of {} echoes were lost while a member was killed, came back and the other was drained",
        ping.lost(),
        ping.sent
    );
    for guest in [left, a, b, right] {
        guest.kill();
    }
    assert!(daemon.terminate()?.success());
    Ok(())
}

/// Two guests with agents and a router with FRR, between two neighbours: what `make demo DEMO=group` shows,
/// and it fails where that does.
#[test]
fn guests_with_agents_and_a_router_with_frr_are_one_router() -> Result<()> {
    sidecore_lab::demo::group::demo()
}
