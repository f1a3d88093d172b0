//! A router between guests, as their users see it: ping, traceroute and the discovery of a path's MTU, for
//! IPv4 and IPv6.

use sidecore_lab::traffic::iperf3;
use sidecore_lab::{Daemon, Guest, Nic, Result, Role, RunDir};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
/// Bytes of a TCP stream: many packets of full size.
const BYTES: u32 = 1_000_000;

/// A family, with the addresses of both guests, and of the router towards each.
pub(crate) struct Family {
    pub(crate) flag: &'static str,
    pub(crate) guests: [&'static str; 2],
    pub(crate) gateways: [&'static str; 2],
    pub(crate) bits: u8,
}

pub(crate) const FAMILIES: [Family; 2] = [
    Family { flag: "-4", guests: ["10.1.0.2", "10.2.0.2"], gateways: ["10.1.0.1", "10.2.0.1"], bits: 24 },
    Family {
        flag: "-6",
        guests: ["2001:db8:1::2", "2001:db8:2::2"],
        gateways: ["2001:db8:1::1", "2001:db8:2::1"],
        bits: 64,
    },
];

#[test]
fn guests_find_each_other_their_router_and_the_mtu_of_their_path() -> Result<()> {
    let dir = RunDir::new("router")?;
    let socket = |name: &str| dir.join(&format!("{name}.sock"));
    let address =
        |side: usize| FAMILIES.each_ref().map(|it| format!("{}/{}", it.gateways[side], it.bits)).join("+");
    let (wide, narrow) = (
        format!("wide=vhost-user:{},router=r,address={}", socket("wide"), address(0)),
        format!("narrow=e1000e:{},router=r,address={},mtu=1400", socket("narrow"), address(1)),
    );
    let mut daemon = Daemon::start(&["--router", "r", "--port", &wide, "--port", &narrow])?;
    let virtio = virtio(&socket("wide"));
    let intel = Nic::vfio_user(socket("narrow"));
    let [mut wide, mut narrow] =
        Guest::boot_all([Guest::named("wide").nic(virtio), Guest::named("narrow").nic(intel)])?;
    use_router(&mut wide, &mut narrow)?;
    let drops = daemon.balance()?.drops;
    assert!(drops.get("too_big").is_some_and(|frames| *frames > 0), "{drops:?}");
    wide.kill();
    narrow.kill();
    assert!(daemon.terminate()?.success());
    Ok(())
}

/// A virtio card at this socket.
pub(crate) fn virtio(socket: &str) -> Nic {
    Nic::vhost_user(socket, Role::QemuClient { reconnect_ms: 200 }, 1)
}

/// Has a guest with two cards, which this driver serves, be the router of [`use_router`].
pub(crate) fn be_router(guest: &mut Guest, driver: &str) -> Result<()> {
    guest.expect("sysctl -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")?;
    for side in 0..2 {
        let used = guest.expect(&format!("ethtool -i eth{side} | sed -n 's/^driver: //p'"))?;
        assert_eq!(used.trim(), driver);
        // As in front of a tunnel: what leaves by the second card has 1400 bytes at most.
        guest.expect(&format!("ip link set eth{side} mtu {} up", [1500, 1400][side]))?;
        for Family { flag, gateways, bits, .. } in &FAMILIES {
            guest.expect(&format!("ip {flag} addr add {}/{bits} dev eth{side}", gateways[side]))?;
        }
    }
    // While an address is tentative (RFC 4862 §5.4), errors come from that of the other card.
    guest.wait_until("! grep -Eq ' [4-7c-f]. +eth' /proc/net/if_inet6", LIMIT)
}

/// Gives both guests their addresses and gateways, and has them use the router in all ways. What leads to the
/// second one takes packets of 1400 bytes at most.
pub(crate) fn use_router(wide: &mut Guest, narrow: &mut Guest) -> Result<()> {
    for (side, guest) in [&mut *wide, &mut *narrow].into_iter().enumerate() {
        guest.expect("ip link set eth0 up")?;
        for family in &FAMILIES {
            let Family { flag, guests, gateways, bits, .. } = family;
            guest.expect(&format!("ip {flag} addr add {}/{bits} dev eth0", guests[side]))?;
            guest.expect(&format!("ip {flag} route add default via {} dev eth0", gateways[side]))?;
        }
    }
    for family in &FAMILIES {
        let Family { flag, guests: [back, far], gateways: [near, _], .. } = family;
        wide.wait_until(&format!("ping {flag} -c 1 -W 1 {far}"), LIMIT)?;
        traceroute(wide, family)?;
        // The guest's packets are 1500 bytes long, what is behind the router takes 1400.
        let found = stream(wide, narrow, far)?;
        assert_eq!(found, 1400, "what {near} said of the way to {far}");
        // The other way its own packets fit.
        stream(narrow, wide, back)?;
    }
    Ok(())
}

/// The router is the first hop, the other guest the second and last.
fn traceroute(guest: &mut Guest, family: &Family) -> Result<()> {
    let [far, near] = [family.guests[1], family.gateways[0]];
    let text = guest.expect(&format!("traceroute {} -n -q 1 -w 5 -m 5 {far}", family.flag))?;
    let hops: Vec<&str> = text.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1)).collect();
    assert_eq!(hops, [near, far], "{text}");
    Ok(())
}

/// A TCP stream to the second guest; the path's MTU, as its sender knows it at the end.
fn stream(from: &mut Guest, to: &mut Guest, far: &str) -> Result<u64> {
    let report = iperf3(to, far, &format!("--bytes {BYTES}"), |command| from.run(command))?;
    let last = report["intervals"].as_array().and_then(|all| all.last());
    let mtu = last.and_then(|last| last["streams"][0]["pmtu"].as_u64());
    Ok(mtu.unwrap_or_else(|| panic!("{report:#}")))
}
