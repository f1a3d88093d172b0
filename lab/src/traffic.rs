//! Traffic as a person makes it: ping and iperf3, started in a guest or in a namespace, read as numbers.

use crate::error::{Error, Result};
use crate::{Guest, Job, Output};
use serde_json::Value;
use std::time::Duration;

/// How long iperf3 or the echoes of a ping may be waited for.
const LIMIT: Duration = Duration::from_secs(90);

/// What ping reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ping {
    /// Requests.
    pub sent: u32,
    /// Replies.
    pub received: u32,
    /// The fastest round trip, in milliseconds.
    pub min_ms: f64,
    /// The average round trip, in milliseconds.
    pub avg_ms: f64,
    /// Replies that came once more.
    pub doubled: u32,
}

impl Ping {
    /// Reads the end of what ping printed: "5 packets transmitted, 5 packets received … round-trip
    /// min/avg/max = 0.1/0.2/0.3 ms", or the same in the words of iputils. Nothing if nothing came back.
    pub fn parse(text: &str) -> Option<Self> {
        let sent = number_before(text, " packets transmitted")?;
        let received =
            number_before(text, " packets received").or_else(|| number_before(text, " received"))?;
        let mut times = text.split("min/avg/max").nth(1)?.split_once("= ")?.1.split('/');
        let mut time = || times.next()?.parse().ok();
        let doubled = number_before(text, " duplicates").unwrap_or(0);
        Some(Self { sent, received, min_ms: time()?, avg_ms: time()?, doubled })
    }

    /// Requests without a reply.
    pub fn lost(&self) -> u32 {
        self.sent.saturating_sub(self.received)
    }
}

fn number_before(text: &str, words: &str) -> Option<u32> {
    text.split_once(words)?.0.rsplit([' ', '\n']).next()?.parse().ok()
}

/// A ping that goes on, five requests a second, while something else happens to its path. In one guest all
/// end together.
#[derive(Debug)]
pub struct Pinging {
    job: Job,
    address: String,
}

impl Pinging {
    /// Starts it in `guest`, and waits for the first reply.
    ///
    /// # Errors
    /// No reply comes.
    pub fn start(guest: &mut Guest, address: &str) -> Result<Self> {
        let job = guest.run_in_background(&format!("ping -i 0.2 {address} > /tmp/ping.{address} 2>&1"))?;
        let pinging = Self { job, address: address.to_owned() };
        pinging.more(guest, 1)?;
        Ok(pinging)
    }

    /// Waits until this many more replies have come.
    ///
    /// # Errors
    /// They do not come; the error has what ping printed last.
    pub fn more(&self, guest: &mut Guest, replies: u32) -> Result<()> {
        let file = format!("/tmp/ping.{}", self.address);
        let count = format!("$(grep -c ttl= {file} || true)");
        guest
            .run_within(
                &format!("want=$(({count} + {replies})); until [ {count} -ge $want ]; do usleep 50000; done"),
                LIMIT,
            )
            .map(drop)
            .map_err(|e| {
                let last = guest.run(&format!("tail -n 3 {file}")).map(|o| o.text).unwrap_or_default();
                Error::new(format!(
                    "no {replies} replies from {} came: {e}\nping printed last:\n{last}",
                    self.address
                ))
            })
    }

    /// Ends it, and says how it went.
    ///
    /// # Errors
    /// ping had ended before, or the guest is gone.
    pub fn end(self, guest: &mut Guest) -> Result<Ping> {
        // With the first of several all have ended.
        guest.run("killall -INT ping")?;
        guest.wait_for(self.job, LIMIT)?;
        let text = guest.expect(&format!("tail -n 4 /tmp/ping.{}", self.address))?;
        Ping::parse(&text).ok_or_else(|| Error::new(format!("ping printed no result:\n{text}")))
    }
}

/// Sends to a guest with iperf3 and returns its report. `client` runs the sender's command, wherever that is;
/// `options` are more of its options, such as `--time 2`.
///
/// # Errors
/// No data arrived; the error has what both ends said.
pub fn iperf3(
    server: &mut Guest,
    address: &str,
    options: &str,
    client: impl FnOnce(&str) -> Result<Output>,
) -> Result<Value> {
    let job = server.run_in_background("iperf3 --server --one-off")?;
    server.wait_until("netstat -lnt | grep -q :5201", LIMIT)?;
    let sent = client(&format!("iperf3 --client {address} --json {options}"))?;
    let report: Value = serde_json::from_str(&sent.text).unwrap_or_default();
    if received_gbits(&report) > 0.0 && server.wait_for(job, LIMIT)?.success() {
        return Ok(report);
    }
    server.stop(job)?;
    let served = server.wait_for(job, LIMIT)?;
    Err(Error::new(format!("no data arrived; the sender:\n{}the receiver:\n{}", sent.text, served.text)))
}

/// Gbit/s as the receiver counted them.
pub fn received_gbits(report: &Value) -> f64 {
    report["end"]["sum_received"]["bits_per_second"].as_f64().unwrap_or_default() / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_ping_are_understood() {
        let busybox =
            "--- 10.0.0.1 ping statistics ---\n5 packets transmitted, 4 packets received, 2 duplicates, 20% packet loss\n\
                       round-trip min/avg/max = 0.113/0.212/0.401 ms\n";
        let iputils = "--- 10.0.0.1 ping statistics ---\n5 packets transmitted, 5 received, 0% packet loss, time 804ms\n\
                       rtt min/avg/max/mdev = 0.113/0.212/0.401/0.100 ms\n";
        for (text, received, doubled) in [(busybox, 4, 2), (iputils, 5, 0)] {
            let ping = Ping::parse(text).unwrap();
            assert_eq!(ping, Ping { sent: 5, received, min_ms: 0.113, avg_ms: 0.212, doubled });
            assert_eq!(ping.lost(), 5 - received);
        }
        assert!(Ping::parse("ping: sendto: Network is unreachable\n").is_none());
    }
}
