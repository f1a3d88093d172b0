//! `trace`: what happens to the next frames that come in by a port.
//!
//! A capture of all ports tells each frame as it comes in and as it goes out, with the time. A frame is known
//! again by its bytes, but for those that ports and routers change: its stations, its tags, and in IP what
//! counts hops.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::json;
use sidecore_engine::packet::{Ether, Fields, Mac, L4};

use crate::capture::{path, Filter};
use crate::cli::{OfDaemon, TraceArgs};
use crate::client::{told_to_end, Client};
use crate::pcapng::{parts, Blocks, Lost, Packet, Part};
use crate::{print, Outcome};

/// How long after it came in a frame is waited for elsewhere.
const PATIENCE: Duration = Duration::from_millis(200);
/// Bytes by which a frame is known.
const KNOWN_BY: usize = 512;

/// A frame on its way.
struct Traced {
    key: Vec<u8>,
    came: Duration,
    about: String,
    steps: Vec<Step>,
}

struct Step {
    port: String,
    inbound: bool,
    after: Duration,
    dropped: Option<String>,
}

impl Traced {
    fn text(&self, number: u64) -> String {
        let mut text = format!("{number}: {}\n", self.about);
        for Step { port, inbound, after, dropped } in &self.steps {
            let way = if *inbound { "in by" } else { "out by" };
            let dropped = dropped.as_ref().map_or(String::new(), |why| format!(", dropped: {why}"));
            text.push_str(&format!("  {:>9.1} us  {way} {port}{dropped}\n", after.as_secs_f64() * 1e6));
        }
        let lost = self.steps.iter().all(|step| step.inbound && step.dropped.is_none());
        text + if lost {
            "             by no port: a router answers it, or it was cut into others\n"
        } else {
            ""
        }
    }

    fn json(&self, number: u64) -> String {
        let step = |step: &Step| {
            let mut object = json!({
                "port": step.port,
                "direction": if step.inbound { "in" } else { "out" },
                "after_ns": u64::try_from(step.after.as_nanos()).unwrap_or(u64::MAX),
            });
            if let Some(why) = &step.dropped {
                object["dropped"] = why.as_str().into();
            }
            object
        };
        let steps: Vec<_> = self.steps.iter().map(step).collect();
        let time = u64::try_from(self.came.as_nanos()).unwrap_or(u64::MAX);
        format!("{}\n", json!({ "number": number, "time_ns": time, "frame": self.about, "steps": steps }))
    }
}

/// What stays of a frame on its way: what is behind its stations and tags, without what counts hops.
fn key(bytes: &[u8]) -> Vec<u8> {
    let Some(Ether { mut ethertype, mut l3, .. }) = Ether::parse(bytes) else { return bytes.to_vec() };
    // A trunk puts its tag before those that the sender gave, of which two are parsed.
    while let (0x8100 | 0x88a8 | 0x9100, Some(&[_, _, a, b])) = (ethertype, bytes.get(l3..l3 + 4)) {
        (ethertype, l3) = (u16::from_be_bytes([a, b]), l3 + 4);
    }
    let mut key = ethertype.to_be_bytes().to_vec();
    key.extend(bytes.iter().skip(l3).take(KNOWN_BY));
    let counted: &[usize] = match ethertype {
        // The time to live and the checksum; the hop limit.
        0x0800 => &[8, 10, 11],
        0x86dd => &[7],
        _ => &[],
    };
    for at in counted {
        if let Some(byte) = key.get_mut(2 + at) {
            *byte = 0;
        }
    }
    key
}

/// What a frame is, in a line.
fn about(packet: &Packet<'_>) -> String {
    let Some((ether, fields)) = Ether::parse(&packet.bytes).zip(Fields::find(&packet.bytes)) else {
        return format!("{} bytes", packet.len);
    };
    let Ether { dst: Mac(dst), src: Mac(src), tci, ethertype, .. } = ether;
    let mut text = format!("{} > {}, {} bytes", Mac(src), Mac(dst), packet.len);
    if let Some(tci) = tci {
        text.push_str(&format!(", VLAN {}", tci & 0xfff));
    }
    let address = |bits: u128| std::net::Ipv6Addr::from_bits(bits).to_canonical();
    match ethertype {
        0x0806 => text.push_str(&format!(", ARP {} > {}", address(fields.src), address(fields.dst))),
        0x0800 | 0x86dd => {
            let (from, to) = (address(fields.src), address(fields.dst));
            let name = match fields.protocol {
                1 => "ICMP".to_owned(),
                6 => "TCP".to_owned(),
                17 => "UDP".to_owned(),
                58 => "ICMPv6".to_owned(),
                other => format!("protocol {other}"),
            };
            text.push_str(&match (fields.l4, fields.protocol) {
                (L4::Ports(kind, code, _), 1 | 58) => format!(", {from} > {to} {name} {kind}/{code}"),
                (L4::Ports(sport, dport, _), _) => format!(", {from} > {to} {name} {sport} > {dport}"),
                _ => format!(", {from} > {to} {name}"),
            });
        }
        other => text.push_str(&format!(", type {other:#06x}")),
    }
    text
}

/// What was read of the stream so far.
pub struct Trace {
    port: String,
    filter: Option<Filter>,
    left: u64,
    names: Vec<String>,
    waiting: BTreeMap<u64, Traced>,
    next: u64,
    now: Duration,
}

impl Trace {
    /// A trace of the next `left` frames of `port`.
    pub fn new(port: String, filter: Option<Filter>, left: u64) -> Trace {
        let (names, waiting) = (Vec::new(), BTreeMap::new());
        Trace { port, filter, left, names, waiting, next: 0, now: Duration::ZERO }
    }

    fn packet(&mut self, packet: &Packet<'_>) {
        let name = usize::try_from(packet.interface).ok().and_then(|at| self.names.get(at));
        let port = name.cloned().unwrap_or_default();
        self.now = self.now.max(packet.time);
        let takes = |filter: &Filter| filter.takes(&packet.bytes, packet.len);
        let begins = port == self.port && packet.inbound;
        if begins && self.left > 0 && self.filter.as_ref().is_none_or(takes) {
            let dropped = packet.dropped.clone();
            let step = Step { port, inbound: true, after: Duration::ZERO, dropped };
            let (key, about) = (key(&packet.bytes), about(packet));
            let traced = Traced { key, came: packet.time, about, steps: vec![step] };
            (self.left, self.next) = (self.left - 1, self.next + 1);
            self.waiting.insert(self.next, traced);
        } else if !begins {
            let key = key(&packet.bytes);
            // The first of two that are alike that has not been here yet.
            let been = |traced: &Traced| {
                traced.steps.iter().any(|step| step.port == port && step.inbound == packet.inbound)
            };
            let found = self.waiting.values_mut().find(|traced| traced.key == key && !been(traced));
            if let Some(traced) = found {
                let (after, dropped) = (packet.time.saturating_sub(traced.came), packet.dropped.clone());
                traced.steps.push(Step { port, inbound: packet.inbound, after, dropped });
            }
        }
    }

    /// Says those that nothing more will be heard of, or all.
    fn tell(&mut self, json: bool, all: bool, say: &impl Fn(String) -> Outcome) -> Outcome {
        while let Some(first) = self.waiting.first_entry() {
            if !all && self.now.saturating_sub(first.get().came) < PATIENCE {
                break;
            }
            let (number, traced) = first.remove_entry();
            say(if json { traced.json(number) } else { traced.text(number) })?;
        }
        Ok(())
    }
}

/// `trace`.
pub fn run(args: &OfDaemon<TraceArgs>) -> Outcome {
    let filter = args.filter.as_deref().map(Filter::compile).transpose()?;
    let client = Client::new(&args.control.path())?;
    client.get::<serde_json::Value>(&format!("/v1/ports/{}", crate::client::segment(&args.port)))?;
    client.stream(&path(&[], &[]), |body| {
        let trace = Trace::new(args.port.clone(), filter, args.next);
        let json = args.json;
        async move {
            let lost = read(body, trace, told_to_end()?, json, |text| print(&text)).await?;
            if lost > 0 {
                eprintln!("sidecore: {lost} frames were not seen: they come faster than they are read");
            }
            Ok(())
        }
    })
}

/// Reads a capture of all ports until all is said, or until `end`; how many frames were lost.
pub async fn read(
    mut body: Incoming,
    mut trace: Trace,
    end: impl Future<Output = ()>,
    json: bool,
    say: impl Fn(String) -> Outcome,
) -> Result<u64, String> {
    let (mut blocks, mut lost) = (Blocks::default(), Lost::default());
    tokio::pin!(end);
    while trace.left > 0 || !trace.waiting.is_empty() {
        let frame = tokio::select! {
            frame = body.frame() => frame,
            // Nothing comes: what was waited for has not come, either.
            () = tokio::time::sleep(PATIENCE), if !trace.waiting.is_empty() => {
                trace.tell(json, true, &say)?;
                continue;
            }
            () = &mut end => None,
        };
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|e| format!("the daemon broke the trace off: {e}"))?;
        let Ok(piece) = frame.into_data() else { continue };
        let whole = blocks.push(&piece)?;
        for part in parts(&whole) {
            match part {
                Part::Head(_, Some(name)) => trace.names.push(name),
                Part::Packet(packet) => trace.packet(&packet),
                Part::Head(_, None) | Part::Other(_) => {}
            }
        }
        lost.look(&whole);
        trace.tell(json, false, &say)?;
    }
    trace.tell(json, true, &say)?;
    Ok(lost.frames())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_known_again_behind_ports_and_routers() {
        let ip = |ttl: u8, sum: u8| {
            [&[0x45, 0, 0, 30, 0, 1, 0, 0, ttl, 17, sum, sum][..], &[10; 8], &[7; 30]].concat()
        };
        let frame =
            |stations: u8, tag: &[u8], packet: &[u8]| [&[stations; 12][..], tag, &[8, 0], packet].concat();
        let plain = key(&frame(2, &[], &ip(64, 9)));
        assert_eq!(key(&frame(2, &[0x81, 0, 0, 10], &ip(64, 9))), plain);
        assert_eq!(key(&frame(3, &[], &ip(63, 8))), plain);
        // Two tags of a sender's at an access port, and then on a trunk.
        let two = [0x88, 0xa8, 0, 7, 0x81, 0, 0, 8];
        let trunk = [&[0x81, 0, 0, 10][..], &two].concat();
        assert_eq!(key(&frame(2, &trunk, &ip(64, 9))), key(&frame(2, &two, &ip(64, 9))));
        let mut other = frame(2, &[], &ip(64, 9));
        *other.last_mut().unwrap() = 8;
        assert_ne!(key(&other), plain);
    }
}
