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
        let port = ports["ports"].as_array().and_then(|all| all.iter().find(|port| port["name"] == name));
        let port = port.ok_or_else(|| Error::new(format!("there is no port {name}")))?;
        let text = port.to_string();
        let number = |name: &str| {
            let after = text.split_once(&format!("{name}="))?.1;
            after[..after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len())].parse::<u64>().ok()
        };
        let traps =
            number("trapped-reads").zip(number("trapped-writes")).map(|(reads, writes)| reads + writes);
        let traps = traps.ok_or_else(|| Error::new(format!("no count of traps in {text}")))?;
        let interrupts = port["counters"]["interrupts"].as_u64();
        let interrupts = interrupts.ok_or_else(|| Error::new(format!("no count of interrupts in {text}")))?;
        Ok(Self { traps, interrupts })
    }

    fn since(self, before: Self) -> Self {
        Self { traps: self.traps - before.traps, interrupts: self.interrupts - before.interrupts }
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
