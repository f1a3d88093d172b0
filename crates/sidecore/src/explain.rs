//! `explain`: what a router does with a packet, and what becomes of a frame that comes in by a port.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use hyper::Method;
use serde_json::json;
use sidecore_abi::counters::DROPS;
use sidecore_engine::packet::{Mac, Sum};
use sidecore_engine::state::explain::{FrameExplained, StepView};
use sidecore_engine::state::routers::Explained;
use sidecore_pktgen::replay::Recording;

use crate::cli::{ExplainArgs, OfDaemon};
use crate::client::{segment, Client};
use crate::show::answer;
use crate::show::routes::explained;
use crate::table::Table;
use crate::{print, Outcome};

const KEYS: &str = "src-mac, dst-mac, vlan, type, src, dst, proto, sport, dport, icmp, flags, len";
/// Shortest and longest frame, without its FCS.
const LENGTHS: std::ops::RangeInclusive<usize> = 60..=65_535;

/// `explain`.
pub fn run(args: &OfDaemon<ExplainArgs>) -> Outcome {
    let client = Client::new(&args.control.path())?;
    match (&*args.what, &args.from) {
        ([router, to], from) if to.parse::<IpAddr>().is_ok() => {
            let from = from.as_ref().map_or_else(String::new, |from| format!("&from={}", segment(from)));
            let path = format!("/v1/routers/{}/explain?to={}{from}", segment(router), segment(to));
            print(&answer(args.json, &client.get::<Explained>(&path)?, explained)?)
        }
        (_, None) => Err(
            "explain what? a router and an address (r 10.1.2.3), or a frame and its port (--from PORT FRAME)"
                .into(),
        ),
        (what, Some(from)) => {
            let digits = digits(&frame(what)?);
            let path = format!("/v1/ports/{}/explain", segment(from));
            let frame = client.send(Method::POST, &path, &json!({ "frame": digits }))?;
            print(&answer(args.json, &frame, text)?)
        }
    }
}

fn text(frame: &FrameExplained) -> String {
    let mut table = Table::new(&["port", "what", "why"]);
    let mut routed = String::new();
    for StepView { port, action, why, about, routed: router } in &frame.steps {
        let what = match action.as_str() {
            "pass" => "passes",
            "out" => "leaves by it",
            "route" => "comes to its router",
            "group" => "is for a member of its group",
            _ => "is dropped",
        };
        let reason = why.as_ref().map(|why| {
            let meaning = DROPS.iter().find(|(_, name, _)| name == why).map_or("", |(.., meaning)| *meaning);
            format!("{why}: {meaning}")
        });
        let why = [reason, about.clone()].into_iter().flatten().collect::<Vec<_>>().join("; ");
        table.row(vec![port.clone(), what.to_owned(), why]);
        routed.extend(router.as_ref().map(explained));
    }
    table.text() + &routed
}

/// The frame that is asked about: hexadecimal digits, the first one of a capture, or fields.
fn frame(what: &[String]) -> Result<Vec<u8>, String> {
    match what {
        [one] if Path::new(one).is_file() => {
            // It names itself as an option of pkt-gen's.
            let read = Recording::read(Path::new(one)).map_err(|e| e.trim_start_matches("-P ").to_owned());
            let first = read?.frames().next().map(<[u8]>::to_vec);
            first.ok_or_else(|| format!("{one}: it holds no packets"))
        }
        _ => typed(what),
    }
}

/// The frame that these words say, by hexadecimal digits or by fields.
pub fn typed(what: &[String]) -> Result<Vec<u8>, String> {
    if !what.is_empty() && what.iter().all(|word| word.contains('=')) {
        return build(what);
    }
    let digits: Vec<u8> = what.concat().bytes().filter(|byte| !b":-. ".contains(byte)).collect();
    let pairs = digits.chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?;
        u8::from_str_radix(pair, 16).ok()
    });
    let bytes: Option<Vec<u8>> = pairs.collect();
    bytes.ok_or_else(|| {
        format!(
            "{:?} is no frame; allowed: hexadecimal digits, a capture file, or fields: {KEYS}",
            what.join(" ")
        )
    })
}

/// A frame as hexadecimal digits.
pub fn digits(frame: &[u8]) -> String {
    frame.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Fields by their keys, each of which is taken once.
struct Fields<'f>(BTreeMap<&'f str, &'f str>);

impl Fields<'_> {
    fn take<T>(&mut self, key: &str, read: impl Fn(&str) -> Option<T>) -> Result<Option<T>, String> {
        let Some(text) = self.0.remove(key) else { return Ok(None) };
        read(text).map(Some).ok_or_else(|| format!("{key}={text}: not allowed"))
    }
}

/// The frame that has these fields, and sound checksums of IP. What is not given is zero.
fn build(words: &[String]) -> Result<Vec<u8>, String> {
    let mut fields = Fields(words.iter().filter_map(|word| word.split_once('=')).collect());
    let mac = |text: &str| text.parse::<Mac>().ok().map(|mac| mac.0);
    let number = |text: &str| text.parse::<u16>().ok();
    let needed = |key: &str| format!("a frame has {key}=MAC");
    let to = fields.take("dst-mac", mac)?.ok_or_else(|| needed("dst-mac"))?;
    let from = fields.take("src-mac", mac)?.ok_or_else(|| needed("src-mac"))?;
    let vlan = fields.take("vlan", |text| number(text).filter(|vlan| *vlan < 4095))?;
    let ip = |text: &str| text.parse::<IpAddr>().ok();
    let (src, dst) = (fields.take("src", ip)?, fields.take("dst", ip)?);
    let ethertype = fields.take("type", |text| match text {
        "ipv4" => Some(0x0800),
        "ipv6" => Some(0x86dd),
        "arp" => Some(0x0806),
        _ => u16::from_str_radix(text.strip_prefix("0x")?, 16).ok(),
    })?;
    let protocol = fields.take("proto", |text| match text {
        "icmp" => Some(1),
        "tcp" => Some(6),
        "udp" => Some(17),
        "icmpv6" => Some(58),
        _ => text.parse::<u8>().ok(),
    })?;
    let ports = [fields.take("sport", number)?, fields.take("dport", number)?].map(Option::unwrap_or_default);
    let icmp = fields.take("icmp", |text| {
        let (kind, code) = text.split_once('/').unwrap_or((text, "0"));
        Some([kind.parse::<u8>().ok()?, code.parse::<u8>().ok()?])
    })?;
    let flags = fields.take("flags", |text| {
        let bit = |name| ["fin", "syn", "rst", "psh", "ack", "urg"].iter().position(|it| *it == name);
        text.split('+').try_fold(0u8, |all, name| Some(all | 1 << bit(name)?))
    })?;
    let len = fields.take("len", |text| text.parse().ok().filter(|len| LENGTHS.contains(len)))?;
    if let Some(key) = fields.0.keys().next() {
        return Err(format!("key `{key}`: no such key; allowed: {KEYS}"));
    }
    let transport = match (protocol, icmp) {
        (_, Some([kind, code])) => vec![kind, code, 0, 0, 0, 0, 0, 0],
        (Some(6), _) => [&both(ports)[..], &[0; 8], &[0x50, flags.unwrap_or(0)], &[0; 6]].concat(),
        _ => [&both(ports)[..], &[0, 8, 0, 0]].concat(),
    };
    let (known, packet) = match (src, dst) {
        (Some(IpAddr::V4(src)), Some(IpAddr::V4(dst))) if ethertype == Some(0x0806) => {
            let asked =
                [&[0, 1, 8, 0, 6, 4, 0, 1][..], &from, &src.octets(), &[0; 6], &dst.octets()].concat();
            (0x0806, asked)
        }
        (Some(IpAddr::V4(src)), Some(IpAddr::V4(dst))) => {
            let [high, low] = u16::try_from(20 + transport.len()).unwrap_or(0).to_be_bytes();
            let mut head = [
                &[0x45, 0, high, low, 0, 0, 0, 0, 64, protocol.unwrap_or(0), 0, 0][..],
                &src.octets(),
                &dst.octets(),
            ]
            .concat();
            let sum = Sum::of(&head).checksum().to_be_bytes();
            head.splice(10..12, sum);
            (0x0800, [head, transport].concat())
        }
        (Some(IpAddr::V6(src)), Some(IpAddr::V6(dst))) => {
            let [high, low] = u16::try_from(transport.len()).unwrap_or(0).to_be_bytes();
            let head = [0x60, 0, 0, 0, high, low, protocol.unwrap_or(59), 64];
            (0x86dd, [&head[..], &src.octets(), &dst.octets(), &transport].concat())
        }
        (None, None) => (ethertype.unwrap_or(0x88b5), Vec::new()),
        _ => return Err("src and dst are both of IPv4 or both of IPv6, or there is neither".to_owned()),
    };
    let tag = vlan.map_or(Vec::new(), |vlan| [[0x81, 0], vlan.to_be_bytes()].concat());
    let mut bytes = [&to[..], &from, &tag, &ethertype.unwrap_or(known).to_be_bytes(), &packet].concat();
    bytes.resize(len.unwrap_or(60).max(bytes.len()), 0);
    Ok(bytes)
}

fn both([from, to]: [u16; 2]) -> [u8; 4] {
    let ([a, b], [c, d]) = (from.to_be_bytes(), to.to_be_bytes());
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    /// What the engine finds in them is what was asked for.
    #[test]
    fn frames_have_the_fields_that_were_given() {
        use sidecore_engine::packet::{is_right, Fields, L4};
        let text = "dst-mac=02:00:00:00:00:02 src-mac=02:00:00:00:00:01 vlan=10 src=10.0.0.1 dst=10.0.0.2 proto=tcp sport=7 dport=80 flags=syn+ack";
        let bytes = frame(&words(text)).unwrap();
        let fields = Fields::find(&bytes).unwrap();
        assert_eq!((fields.tag, fields.ethertype, fields.protocol, bytes.len()), (10, 0x0800, 6, 60));
        assert_eq!(fields.l4, L4::Ports(7, 80, Some(0x12)));
        assert!(is_right(bytes[18..38].try_into().unwrap()));
        let text = "dst-mac=02:00:00:00:00:02 src-mac=02:00:00:00:00:01 src=fe80::1 dst=ff02::1 proto=icmpv6 icmp=134 len=100";
        let bytes = frame(&words(text)).unwrap();
        let fields = Fields::find(&bytes).unwrap();
        assert_eq!((fields.ethertype, fields.l4, bytes.len()), (0x86dd, L4::Ports(134, 0, Some(0)), 100));
        let text = "dst-mac=ff:ff:ff:ff:ff:ff src-mac=02:00:00:00:00:01 type=arp src=10.0.0.1 dst=10.0.0.9";
        let fields = Fields::find(&frame(&words(text)).unwrap()).unwrap();
        assert_eq!(
            (fields.ethertype, fields.src & 0xffff_ffff, fields.dst & 0xffff_ffff),
            (0x0806, 0x0a00_0001, 0x0a00_0009)
        );
        assert_eq!(frame(&words("0102:03-04 05.06")).unwrap(), [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn what_is_no_frame_is_said() {
        for (text, why) in [
            ("zz", "is no frame"),
            ("123", "is no frame"),
            ("dst-mac=02:00:00:00:00:02", "src-mac"),
            ("dst-mac=1 src-mac=02:00:00:00:00:01", "dst-mac=1"),
            ("dst-mac=02:00:00:00:00:02 src-mac=02:00:00:00:00:01 port=7", "no such key"),
            ("dst-mac=02:00:00:00:00:02 src-mac=02:00:00:00:00:01 src=1.2.3.4", "both"),
        ] {
            let said = frame(&words(text)).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
    }
}
