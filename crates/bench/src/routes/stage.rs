//! What is measured, as a user would have it: the daemon with a router, FRR as its control plane, a neighbour
//! behind its port.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::super::frr::Frr;
use super::super::ours;
use super::super::peers::Process;
use super::back_ends::{BackEnd, ROUTER};
use super::relay::{self, Relay};
use super::speaker::{Speaker, OURS};
use crate::prelude::*;

/// The router's port, its address there, and its network.
pub const PORT: &str = "up";
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);
pub const NETWORK: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 0);
/// The neighbour, and another gateway of its.
pub const GATEWAYS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 1, 2), Ipv4Addr::new(10, 0, 1, 3)];
/// Where BGP is spoken (RFC 4271 §8.2.1).
const BGP: u16 = 179;
/// How often the router is asked: so much at most is too late what is told of it.
const PAUSE: Duration = Duration::from_micros(500);

/// All of it. What is first ends first.
pub struct Stage {
    pub speaker: Speaker,
    pub relay: Relay,
    pub back_ends: Vec<BackEnd>,
    _frr: Frr,
    _daemon: Process,
    socket: PathBuf,
    _nets: [Net; 2],
    _scratch: Scratch,
}

impl Stage {
    /// Starts it, until the neighbour's session is open; as many back-ends have its routes, too.
    ///
    /// # Errors
    /// FRR is not installed, there is no permission, or one of them does not start.
    pub fn start(back_ends: usize) -> Result<Stage> {
        Frr::is_there()?;
        let scratch = Scratch::new("sc-routes")?;
        // Addresses of IPv6 would be routes, too.
        let (control, side) = (Net::quiet()?, Net::quiet()?);
        let socket = scratch.file("ctl");
        let back_ends =
            (1..=back_ends).map(|number| BackEnd::start(&scratch, number)).collect::<Result<Vec<_>>>()?;
        let daemon = daemon(&scratch, &socket, &control.path(), &side.path(), &back_ends)?;
        for gateway in GATEWAYS {
            side.ip(&format!("address add {gateway}/24 dev eth0"))?;
        }
        side.ip("link set eth0 up")?;
        // It is to be there before zebra looks for it.
        let relay = control.enter(Relay::start)?;
        let zebra = format!("fpm address 127.0.0.1 port {}\n", relay::PORT);
        let neighbour = GATEWAYS[0];
        let bgp = format!(
            "router bgp 65000\n no bgp ebgp-requires-policy\n neighbor {neighbour} remote-as {OURS}\n neighbor {neighbour} passive\n"
        );
        let frr = Frr::start(&scratch, "frr", &control, &zebra, &bgp)?;
        let speaker = side.enter(|| Speaker::connect(SocketAddrV4::new(ADDRESS, BGP), GATEWAYS[0]))?;
        Ok(Stage {
            speaker,
            relay,
            back_ends,
            _frr: frr,
            _daemon: daemon,
            socket,
            _nets: [control, side],
            _scratch: scratch,
        })
    }

    /// Waits until each back-end has confirmed that it has the router's table, for `limit` at most. When that
    /// was seen.
    ///
    /// # Errors
    /// One has another.
    pub fn all_consistent(&self, limit: Duration) -> Result<Instant> {
        self.watch("all back-ends have the routes", limit, |control| {
            let agents = control["agents"].as_array().cloned().unwrap_or_default();
            let is = |agent: &Value| agent["state"] == "consistent" && agent["digest"] == control["digest"];
            agents.len() == self.back_ends.len() && agents.iter().all(is)
        })
    }

    /// Waits until the router has so many routes with this digest, for `limit` at most. When it was seen.
    ///
    /// # Errors
    /// It has others.
    pub fn reach(&self, expected: &(u64, String), limit: Duration) -> Result<Instant> {
        let what = format!("the router has {} routes with digest {}", expected.0, expected.1);
        self.watch(&what, limit, |control| {
            (control["routes"].as_u64(), control["digest"].as_str())
                == (Some(expected.0), Some(expected.1.as_str()))
        })
    }

    /// Waits until what the router says of its control plane `is` so. When that was said.
    fn watch(&self, what: &str, limit: Duration, is: impl Fn(&Value) -> bool) -> Result<Instant> {
        let mut last = Value::Null;
        let seen = until(what, limit, PAUSE, || {
            let state = ours::get(&self.socket, "/v1/routers")?;
            let now = Instant::now();
            last = state["routers"][0]["control"].clone();
            Ok(is(&last).then_some(now))
        });
        seen.map_err(|error| format!("{error}: {last}"))
    }
}

fn daemon(
    scratch: &Scratch,
    socket: &Path,
    control: &str,
    side: &str,
    back_ends: &[BackEnd],
) -> Result<Process> {
    let agent = |(number, it): (usize, &BackEnd)| format!("m{number}:{}", it.socket.display());
    let agents: Vec<String> = (1..).zip(back_ends).map(agent).collect();
    ours::run(None, scratch, |command| {
        command.arg("--socket").arg(socket);
        let agents = if agents.is_empty() { String::new() } else { format!(",agents={}", agents.join("+")) };
        command.args(["--router", &format!("r,control={control}{agents}")]);
        let at = format!("router=r,address={ADDRESS}/24,router-mac={ROUTER}");
        command.args(["--port", &format!("{PORT}=tap:eth0,netns={side},{at}")]);
        if !back_ends.is_empty() {
            // Nothing passes the group: it makes the router and the others members of one.
            command.args(["--group", "g", "--port", "g0=group:g,interface=0,mac=02:00:00:00:00:08"]);
            command.args(["--port", "r0=router:r,group=g,member=r,interface=0"]);
        }
        for number in 1..=back_ends.len() {
            let ring = scratch.file(format!("m{number}"));
            let port = format!("m{number}=ring:{},group=g,member=m{number},interface=0", ring.display());
            command.args(["--port", &port]);
        }
    })
    .map_err(text)
}
