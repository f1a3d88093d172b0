//! Ports that have each other's addresses: what the operator is told of them.
//!
//! A switch finds that an address went to and fro between ports more than ten times within a second. Either the ports
//! are joined outside of the switch, and frames circle, or two stations have one address, or one forges the other's.
//! The log says so once a minute for each pair of ports, and `show ports` as long as it goes on.

use std::collections::BTreeMap;

use crate::port::PortId;
use crate::switch::{Flap, HOLD};

/// Seconds after which the log repeats itself.
const AGAIN: u32 = 60;
/// Seconds after the last flap for which it is shown: an address that goes on flapping is held again after [`HOLD`].
const SHOWN: u32 = 2 * HOLD;

/// Pairs of ports, the one with the lower number first.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    pairs: BTreeMap<(PortId, PortId), Pair>,
}

#[derive(Debug)]
struct Pair {
    text: String,
    told: u32,
    last: u32,
}

impl Neighbours {
    /// Takes in what a switch found at time `now`; returns what is to be logged.
    pub fn note(&mut self, flaps: Vec<Flap>, now: u32, name: impl Fn(PortId) -> String) -> Vec<String> {
        self.pairs.retain(|_, pair| now.saturating_sub(pair.last) < AGAIN);
        let mut reports = Vec::new();
        for Flap { mac, home, other, third } in flaps {
            // Frames that circle come in by two ports beside the one where their sender lives.
            let (a, b) = (third.unwrap_or(home), other);
            let key = (a.min(b), a.max(b));
            let mac = mac_text(mac);
            let text = format!(
                "address {mac} came in by ports {} and {} by turns more than 10 times within a second: they are \
                 joined outside of this switch (a loop), or two stations have one address; it stays at port {} for {HOLD} s",
                name(key.0),
                name(key.1),
                name(home)
            );
            let told = self.pairs.get(&key).map(|pair| pair.told);
            let due = told.is_none_or(|told| now.saturating_sub(told) >= AGAIN);
            if due {
                reports.push(text.clone());
            }
            let told = told.filter(|_| !due).unwrap_or(now);
            self.pairs.insert(key, Pair { text, told, last: now });
        }
        reports
    }

    /// What is to be shown at port `id`.
    pub fn report(&self, id: PortId, now: u32) -> Option<String> {
        let fresh = |pair: &Pair| now.saturating_sub(pair.last) < SHOWN;
        let of_port = |(key, pair): &(&(PortId, PortId), &Pair)| (key.0 == id || key.1 == id) && fresh(pair);
        self.pairs.iter().find(of_port).map(|(_, pair)| pair.text.clone())
    }
}

/// `mac` (first byte lowest) as six pairs of hexadecimal digits.
pub(super) fn mac_text(mac: u64) -> String {
    let [a, b, c, d, e, f, ..] = mac.to_le_bytes();
    crate::packet::Mac([a, b, c, d, e, f]).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_logged_once_a_minute_and_shown_while_it_goes_on() {
        let mut neighbours = Neighbours::default();
        let name = |id: PortId| format!("p{}", id.0);
        let flap = |mac, home, other, third| Flap { mac, home: PortId(home), other: PortId(other), third };
        let flaps = vec![flap(1, 5, 2, None), flap(2, 5, 2, None), flap(1, 2, 5, None)];
        let reports = neighbours.note(flaps, 100, name);
        assert_eq!(reports.len(), 1, "two addresses of one pair, in either order");
        assert!(reports[0].contains("01:00:00:00:00:00 came in by ports p2 and p5"), "{reports:?}");
        assert!(neighbours.report(PortId(2), 101).is_some() && neighbours.report(PortId(5), 101).is_some());
        assert_eq!(neighbours.report(PortId(3), 101), None);
        assert!(neighbours.note(vec![flap(1, 5, 2, None)], 111, name).is_empty());
        assert!(neighbours.report(PortId(2), 130).is_some());
        assert_eq!(neighbours.report(PortId(2), 131), None);
        assert_eq!(neighbours.note(vec![flap(1, 5, 2, None)], 160, name).len(), 1);
        let circle = neighbours.note(vec![flap(9, 1, 7, Some(PortId(6)))], 160, name);
        assert!(
            circle[0].contains("by ports p6 and p7") && circle[0].contains("stays at port p1"),
            "{circle:?}"
        );
    }

    #[test]
    fn the_first_byte_comes_first() {
        assert_eq!(mac_text(0x0605_0403_0201), "01:02:03:04:05:06");
    }
}
