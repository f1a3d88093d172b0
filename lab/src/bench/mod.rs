//! Benchmarks of cards in real guests: Intel cards of ours [`beside`] QEMU's own, the rows of the paper's
//! [`figure4`], and [`ptnet`] beside the other cards; and how all of them bear a daemon that is [`away`].
//!
//! Those that compare read the counters of guests and daemon before and after, and go round by round through
//! whatever they compare, so that whatever else the machine does hits all of it alike. Medians, with the
//! least and the most.

pub mod away;
pub mod beside;
mod chart;
pub mod figure4;
pub mod ptnet;

use crate::error::{Error, Result};
use crate::Guest;
use serde_json::Value;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
/// Datagrams of `netsend`: a short run finds the rate; the measured one has those of a second, or so.
const FIRST: u32 = 1_000;
const MOST: u32 = 1_000_000;

/// What the kernel's generator is to send.
struct Load<'a> {
    frames: u32,
    /// Bytes of a frame without its check sequence.
    size: u32,
    /// Frames for each doorbell.
    burst: u32,
    address: &'a str,
    mac: &'a str,
}

/// Sends; thousands of frames a second. One frame again and again: making one takes the guest as long as all
/// the rest.
fn pktgen(guest: &mut Guest, interface: &str, load: &Load) -> Result<f64> {
    let thread = "/proc/net/pktgen/kpktgend_0";
    let device = format!("/proc/net/pktgen/{interface}");
    let Load { frames, size, burst, address, mac } = load;
    let words = [
        format!("echo rem_device_all > {thread}; echo add_device {interface} > {thread}"),
        format!("echo count {frames} > {device}; echo pkt_size {size} > {device}; echo delay 0 > {device}"),
        format!(
            "echo clone_skb 1000 > {device}; echo burst {burst} > {device}; echo dst {address} > {device}"
        ),
        format!("echo dst_mac {mac} > {device}; echo start > /proc/net/pktgen/pgctrl; cat {device}"),
        format!("echo rem_device_all > {thread}"),
    ];
    // "… 115262pps 55Mb/sec (55325760bps) errors: 0"
    let text = guest.expect(&words.join("; "))?;
    let rate = text.split_whitespace().find_map(|word| word.strip_suffix("pps")?.parse::<f64>().ok());
    rate.map(|pps| pps / 1e3).ok_or_else(|| Error::new(format!("pktgen printed no rate:\n{text}")))
}

/// What a port of ours has counted.
#[derive(Clone, Copy, Default)]
struct Counts {
    /// Register accesses that left the guest.
    traps: u64,
    interrupts: u64,
}

impl Counts {
    /// Those of the port `name` in `show ports --json`.
    fn of(ports: &Value, name: &str) -> Result<Self> {
        let port = port(ports, name)?;
        let traps = feature(port, "trapped-reads")? + feature(port, "trapped-writes")?;
        Ok(Self { traps, interrupts: counter(port, "interrupts")? })
    }

    fn since(self, before: Self) -> Self {
        Self { traps: self.traps - before.traps, interrupts: self.interrupts - before.interrupts }
    }
}

/// The port `name` in `show ports --json`.
fn port<'v>(ports: &'v Value, name: &str) -> Result<&'v Value> {
    let port = ports["ports"].as_array().and_then(|all| all.iter().find(|port| port["name"] == name));
    port.ok_or_else(|| Error::new(format!("there is no port {name}")))
}

/// A counter of a port.
fn counter(port: &Value, name: &str) -> Result<u64> {
    port["counters"][name].as_u64().ok_or_else(|| Error::new(format!("no count of {name} in {port}")))
}

/// What stands behind `name=` in a port's features.
fn feature(port: &Value, name: &str) -> Result<u64> {
    let text = port["state"]["features"].to_string();
    let number = text.split_once(&format!("{name}=")).and_then(|(_, after)| {
        after.split(|c: char| !c.is_ascii_digit()).next().and_then(|digits| digits.parse().ok())
    });
    number.ok_or_else(|| Error::new(format!("no count of {name} in {text}")))
}

/// Has a shell print how many packets the IP layer has got.
const RECEIVED: &str = "awk '/^Ip: [0-9]/{print $4}' /proc/net/snmp";

/// A card that is up, as a guest's kernel names it.
struct Interface {
    name: String,
    /// Lines of `/proc/interrupts` have one of these.
    pattern: String,
    mac: String,
}

impl Interface {
    /// Sets the card in this slot up. Names depend on the order in which drivers come, so it is found by its
    /// slot.
    fn up(guest: &mut Guest, slot: &str, address: &str) -> Result<Self> {
        let device = format!("/sys/bus/pci/devices/0000:00:{slot}");
        let list = format!("ls -d {device}/net/* {device}/virtio*/net/* 2> /dev/null");
        guest.wait_until(&format!("{list} | grep -q ."), LIMIT)?;
        let path = guest.run(&list)?.text.trim().to_owned();
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        guest.expect(&format!("ip addr add {address}/24 dev {name}; ip link set {name} up"))?;
        guest.wait_until(&format!("grep -q 1 /sys/class/net/{name}/carrier"), LIMIT)?;
        let virtio = path.split('/').find(|part| part.starts_with("virtio")).unwrap_or(&name);
        let mac = guest.expect(&format!("cat /sys/class/net/{name}/address"))?.trim().to_owned();
        Ok(Self { pattern: format!("({name}|{virtio})(-|$)"), name, mac })
    }

    /// Its interrupts that the guest has taken.
    fn interrupts(&self, guest: &mut Guest) -> Result<u64> {
        let pattern = &self.pattern;
        number(&guest.expect(&format!("awk '/{pattern}/{{n += $2}} END{{print n + 0}}' /proc/interrupts"))?)
    }

    fn down(&self, guest: &mut Guest) -> Result<()> {
        let name = &self.name;
        guest.expect(&format!("ip addr flush dev {name}; ip link set {name} down")).map(drop)
    }
}

/// Sends datagrams; thousands of them a second.
fn netsend(guest: &mut Guest, address: &str, bytes: u32, count: u32) -> Result<f64> {
    // "sent 1000 in 25000000 ns"
    let text = guest.expect(&format!("/netsend {address} 9 {bytes} {count}"))?;
    let nanoseconds = text.split(' ').nth(3).and_then(|word| word.parse::<f64>().ok());
    nanoseconds
        .map(|ns| f64::from(count) / ns * 1e6)
        .ok_or_else(|| Error::new(format!("netsend printed no time:\n{text}")))
}

fn number(text: &str) -> Result<u64> {
    text.trim().parse().map_err(|_| Error::new(format!("{text:?} is not a number")))
}

/// So many frames pass in a second at this rate.
fn frames_of_a_second(kpps: f64) -> u32 {
    (0..MOST).step_by(1_000).find(|&frames| f64::from(frames) >= 1e3 * kpps).map_or(MOST, |n| n.max(FIRST))
}

/// The processor of the I/O core, which has one of its own, as it is meant to; guests run where the system
/// puts them.
fn io_core() -> String {
    std::thread::available_parallelism().map_or(0, |n| n.get() - 1).to_string()
}

/// The daemon's `spin`, and the options that are not it.
fn spin_of<'a>(options: &[&'a str]) -> (&'a str, Vec<&'a str>) {
    let (spin, others): (Vec<&str>, Vec<&str>) =
        options.iter().partition(|option| option.starts_with("spin="));
    (spin.last().map_or("50", |option| &option["spin=".len()..]), others)
}

fn ratio(of: u64, to: u64) -> f64 {
    let float = |n: u64| f64::from(u32::try_from(n).unwrap_or(u32::MAX));
    float(of) / float(to).max(1.0)
}

/// Median, least, most.
fn spread(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
    (at(values.len() / 2), at(0), at(values.len().saturating_sub(1)))
}
