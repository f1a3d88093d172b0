//! Ports that have each other's addresses: what the operator is told of them.
//!
//! A switch finds that an address goes to and fro between ports, or is claimed at one and silent at the
//! other. Either the ports are joined outside of the switch, and frames circle, or two stations have one
//! address, or one forges the other's, or it has moved and its former port is still up. The log says so once
//! a minute for each pair of ports, and when it gets worse; `show ports` and `doctor` as long as it goes on.

use std::collections::BTreeMap;

use crate::port::PortId;
use crate::switch::{Contest, Dispute, HOLD};

/// Seconds after which the log repeats itself.
const AGAIN: u32 = 60;
/// Seconds after the last sign of it for which it is shown: an address that goes on flapping is held again
/// after [`HOLD`].
const SHOWN: u32 = 2 * HOLD;

/// Pairs of ports, the one with the lower number first.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    pairs: BTreeMap<(PortId, PortId), Pair>,
}

#[derive(Debug)]
struct Pair {
    contest: Contest,
    text: String,
    told: u32,
    last: u32,
}

impl Neighbours {
    /// Takes in what a switch found at time `now`; returns what is to be logged.
    pub fn note(&mut self, it: &Dispute, now: u32, name: impl Fn(PortId) -> String) -> Option<String> {
        // Frames that circle come in by two ports beside the one where their sender lives.
        let (a, b) = (it.third.unwrap_or(it.home), it.other);
        let key = (a.min(b), a.max(b));
        let told = |pair: &&mut Pair| now.saturating_sub(pair.told) < AGAIN && it.contest <= pair.contest;
        if let Some(pair) = self.pairs.get_mut(&key).filter(told) {
            pair.last = now;
            return None;
        }
        self.pairs.retain(|_, pair| now.saturating_sub(pair.last) < AGAIN);
        let text = text(it, [key.0, key.1, it.home, it.other].map(name));
        let pair = Pair { contest: it.contest, text: text.clone(), told: now, last: now };
        self.pairs.insert(key, pair);
        Some(text)
    }

    /// What is to be shown at port `id`.
    pub fn report(&self, id: PortId, now: u32) -> Option<String> {
        let fresh = |pair: &Pair| now.saturating_sub(pair.last) < SHOWN;
        let of_port = |(key, pair): &(&(PortId, PortId), &Pair)| (key.0 == id || key.1 == id) && fresh(pair);
        self.pairs.iter().find(of_port).map(|(_, pair)| pair.text.clone())
    }
}

/// What is told, with the cure; the names are of the two ports, of the address's home, and of the port beside
/// that.
fn text(it: &Dispute, [one, two, home, other]: [String; 4]) -> String {
    let mac = mac_text(it.mac);
    match it.contest {
        Contest::Held => format!(
            "address {mac} came in by ports {one} and {two} by turns more than 10 times within a second: they are joined \
             outside of this switch (a loop), or two stations have one address; it stays at port {home} for {HOLD} s"
        ),
        Contest::ByTurns => format!(
            "address {mac} comes in by ports {one} and {two} by turns: two stations have one address, and each misses \
             frames; give one of them another (QEMU: mac=…)"
        ),
        Contest::Lasting => format!(
            "address {mac} of port {home} is in use at port {other}: both get its frames until {home} is down or has aged; \
             if it has moved (VRRP): sidecore set {other} mac-move=learn; if it must not: sidecore set {home} fdb={mac}"
        ),
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
        let mut note = |now, contest, home, other, third: Option<u16>| {
            let [home, other] = [home, other].map(PortId);
            let it = Dispute { contest, mac: 1, home, other, third: third.map(PortId) };
            let told = neighbours.note(&it, now, |id| format!("p{}", id.0));
            let shown = [2, 3, 5].map(|port| neighbours.report(PortId(port), now).is_some());
            (told, shown)
        };
        let (told, shown) = note(100, Contest::Held, 5, 2, None);
        assert!(told.unwrap().contains("01:00:00:00:00:00 came in by ports p2 and p5"));
        assert_eq!(shown, [true, false, true]);
        // Another of its addresses, in either order, and in another way.
        assert_eq!(note(100, Contest::Held, 2, 5, None).0, None);
        assert_eq!(note(111, Contest::ByTurns, 5, 2, None).0, None, "not worse than before");
        let (told, shown) = note(130, Contest::Held, 1, 7, Some(6));
        let told = told.unwrap();
        assert!(told.contains("by ports p6 and p7") && told.contains("stays at port p1"), "{told}");
        assert_eq!(shown, [true, false, true]);
        assert_eq!(note(131, Contest::Held, 1, 7, Some(6)), (None, [false; 3]));
        assert!(note(160, Contest::Lasting, 5, 2, None)
            .0
            .unwrap()
            .contains("of port p5 is in use at port p2"));
        assert!(note(161, Contest::ByTurns, 5, 2, None).0.unwrap().contains("by turns"), "worse");
    }

    #[test]
    fn the_first_byte_comes_first() {
        assert_eq!(mac_text(0x0605_0403_0201), "01:02:03:04:05:06");
    }
}
