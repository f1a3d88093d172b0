//! What routers have: ports, routes, neighbours; and what one does with a packet.

use sidecore_engine::state::routers::{Explained, HopView, Neighbours, RouteView, Routes};
use sidecore_routing::{AgentView, ControlView, Routers};

use crate::client::segment;
use crate::table::{bytes, Table};

/// Where the routes of a router are.
pub fn path(router: Option<&str>) -> String {
    format!("/v1/routers/{}/routes", segment(router.unwrap_or_default()))
}

pub fn routers(answer: &Routers) -> String {
    let mut table = Table::new(&["router", "port", "address", "station", "link", ">mtu", ">tables"]);
    for router in &answer.routers {
        let tables = bytes(router.table_bytes);
        if router.interfaces.is_empty() {
            table.row(vec![
                router.name.clone(),
                String::new(),
                String::new(),
                String::new(),
                String::new(),
                String::new(),
                tables.clone(),
            ]);
        }
        for at in &router.interfaces {
            let addresses: Vec<String> = at.addresses.iter().map(ToString::to_string).collect();
            let all = [addresses.join(" "), at.link_local.to_string()].join(" ");
            let link = if at.link { "up" } else { "down" }.to_owned();
            table.row(vec![
                router.name.clone(),
                at.port.clone(),
                all.trim().to_owned(),
                at.mac.to_string(),
                link,
                at.mtu.to_string(),
                tables.clone(),
            ]);
        }
    }
    let controls =
        answer.routers.iter().filter_map(|router| Some(control(&router.name, router.control.as_ref()?)));
    table.text() + &controls.collect::<String>()
}

/// What there is to say of the control plane of router `name`.
fn control(name: &str, it: &ControlView) -> String {
    let mut text = format!("\nrouter {name} has its control plane in namespace {}: ", it.namespace);
    match (&it.trouble, it.since_s) {
        (Some(why), _) => text.push_str(why),
        (None, Some(since)) => text.push_str(&format!("zebra is connected for {since} s")),
        (None, None) => text.push_str("zebra is not connected"),
    }
    if let Some(last) = it.last_message_s {
        text.push_str(&format!(", last message {last} s ago"));
    }
    text.push_str(&format!("\n  {} routes, {} objects, digest {}\n", it.routes, it.objects, it.digest));
    if !it.addresses.is_empty() {
        let all: Vec<String> = it.addresses.iter().map(ToString::to_string).collect();
        text.push_str(&format!("  addresses at no port: {}\n", all.join(" ")));
    }
    if it.stale > 0 {
        let sweep = it.sweep_in_s.map_or_else(String::new, |left| format!(", gone in {left} s"));
        text.push_str(&format!("  {} routes that zebra has not sent again so far{sweep}\n", it.stale));
    }
    text.push_str(&format!(
        "  {} messages, {} malformed, {} refused; {} comparisons, {} corrected, {} replays; {} neighbours\n",
        it.messages, it.malformed, it.refused, it.comparisons, it.corrected, it.replays, it.neighbours
    ));
    let mut table = Table::new(&["  to the namespace", ">frames", ">beyond the limit"]);
    for class in &it.classes {
        table.row(vec![format!("  {}", class.class), class.passed.to_string(), class.refused.to_string()]);
    }
    text + &table.text() + &agents(&it.agents)
}

/// The agents of other members, if there are any.
fn agents(all: &[AgentView]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let heads =
        ["  agent of", "state", ">routes", ">failed", "digest", ">behind", ">tables", ">malformed", "socket"];
    let mut table = Table::new(&heads);
    for it in all {
        let behind = it.behind_ms.map_or_else(String::new, |ms| format!("{ms} ms"));
        table.row(vec![
            format!("  {}", it.member),
            it.state.clone(),
            it.routes.to_string(),
            it.failed.to_string(),
            it.digest.clone(),
            behind,
            it.tables.to_string(),
            it.malformed.to_string(),
            it.socket.display().to_string(),
        ]);
    }
    let troubles =
        all.iter().filter_map(|it| Some(format!("  agent of {}: {}\n", it.member, it.trouble.as_ref()?)));
    format!("\n{}{}", table.text(), troubles.collect::<String>())
}

pub fn routes(answer: &Routes) -> String {
    let heads =
        ["prefix", "from", "action", "gateway", "port", ">weight", "station", "state", ">frames", ">bytes"];
    let mut table = Table::new(&heads);
    let mut notes = String::new();
    for route in &answer.routes {
        if let Some(why) = &route.idle {
            notes.push_str(&format!("{} is not in force: {why}\n", route.prefix));
        }
        for row in rows(route) {
            table.row(row);
        }
    }
    table.text() + &notes
}

/// A row for each next hop of a route, the first one with the route's own columns.
fn rows(route: &RouteView) -> Vec<Vec<String>> {
    let mut head = vec![route.prefix.to_string(), route.origin.clone(), route.action.clone()];
    if route.hops.is_empty() {
        head.extend([String::new(), route.port.clone().unwrap_or_default()]);
        head.resize(10, String::new());
        return vec![head];
    }
    let mut rows = Vec::new();
    for hop in &route.hops {
        let mut row = std::mem::replace(&mut head, vec![String::new(); 3]);
        let weight = hop.weight.map(|weight| weight.to_string());
        row.extend([hop.gateway.to_string(), hop.port.clone(), weight.unwrap_or_default()]);
        row.push(hop.mac.map_or_else(String::new, |mac| mac.to_string()));
        row.extend([hop.state.clone(), hop.frames.to_string(), bytes(hop.bytes)]);
        rows.push(row);
    }
    rows
}

pub fn neighbours(answer: &Neighbours) -> String {
    let mut table = Table::new(&["router", "port", "address", "station", "state", ">heard", "gateway"]);
    for it in &answer.neighbours {
        table.row(vec![
            it.router.clone(),
            it.port.clone(),
            it.address.to_string(),
            it.mac.map_or_else(String::new, |mac| mac.to_string()),
            it.state.clone(),
            it.age_s.map_or_else(String::new, |age| format!("{age} s ago")),
            if it.gateway { "yes" } else { "" }.to_owned(),
        ]);
    }
    table.text()
}

/// What a router does with a packet.
pub fn explained(it: &Explained) -> String {
    let mut text = format!("{} on router {}", it.to, it.router);
    if let Some(from) = &it.from {
        text.push_str(&format!(", from port {from}"));
    }
    text.push_str(": ");
    text.push_str(&match (it.action.as_str(), &it.why) {
        ("answer", _) => "it is the router's own address\n".to_owned(),
        ("drop", Some(why)) => format!("dropped, {why}\n"),
        _ => "sent on\n".to_owned(),
    });
    if let (Some(route), Some(origin)) = (it.route, &it.origin) {
        let group = it.group.map_or_else(String::new, |group| format!(", group {group}"));
        text.push_str(&format!("route: {route} ({origin}){group}\n"));
    }
    for hop in &it.hops {
        text.push_str(&next(hop, it));
    }
    if it.hops.len() > 1 {
        text.push_str("of these the flow chooses one: addresses and ports\n");
    }
    if let Some(mtu) = it.mtu.filter(|_| it.action == "forward") {
        text.push_str(&format!("changed: stations, TTL or hop limit less one; at most {mtu} bytes\n"));
    }
    for other in &it.shorter {
        text.push_str(&format!("not {}: {}\n", other.prefix, other.why));
    }
    text
}

fn next(hop: &HopView, it: &Explained) -> String {
    let station = match (hop.mac, it.source_mac) {
        (Some(to), Some(from)) if it.hops.len() == 1 => format!("station {from} → {to} ({})", hop.state),
        (Some(to), _) => format!("station {to} ({})", hop.state),
        (None, _) => format!("station {}: frames are dropped, no_neighbour, until it answers", hop.state),
    };
    let link = if hop.link { "" } else { ", link down: frames are dropped, link_down" };
    let weight = hop.weight.map_or_else(String::new, |weight| format!(", weight {weight}"));
    format!("next hop: {} at port {}{weight}{link}, {station}\n", hop.gateway, hop.port)
}
