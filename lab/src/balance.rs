//! The law of conservation: every frame that came in, or was made by flooding or segmentation, went out or
//! was dropped under a name. Held after every test by [`Daemon::balance`](crate::Daemon::balance).

use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

/// Sums over all ports of a daemon, those that are gone included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    /// Frames from ports into the switch.
    pub in_frames: u64,
    /// Copies by flooding and segments, each beyond the first.
    pub made: u64,
    /// Frames delivered to ports.
    pub out_frames: u64,
    /// Notifications from peers.
    pub kicks: u64,
    /// Notifications to peers.
    pub interrupts: u64,
    /// Dropped frames by reason; none are left out.
    pub drops: BTreeMap<String, u64>,
}

impl Balance {
    /// Adds up `show ports --json`.
    pub(crate) fn of(ports: &Value) -> Self {
        let mut sum = Self::default();
        let each = ports["ports"].as_array().into_iter().flatten();
        // What passes a router's port on a switch or behind a group, or an interface of a group, stays
        // inside.
        let is_end =
            |port: &Value| !["switch", "group", "router"].iter().any(|kind| port["state"]["kind"] == *kind);
        let each = each.map(|port| (&port["counters"], is_end(port)));
        for (counters, is_end) in each.chain([(&ports["retired"], true)]) {
            let number = |key: &str| counters[key].as_u64().unwrap_or_default();
            if is_end {
                sum.in_frames += number("in_frames");
                sum.out_frames += number("out_frames");
            }
            sum.made += number("made");
            sum.kicks += number("kicks");
            sum.interrupts += number("interrupts");
            for (reason, frames) in counters["drops"].as_object().into_iter().flatten() {
                *sum.drops.entry(reason.clone()).or_default() += frames.as_u64().unwrap_or_default();
            }
        }
        sum
    }

    /// All dropped frames.
    pub fn dropped(&self) -> u64 {
        self.drops.values().sum()
    }

    /// True if every frame is accounted for.
    pub fn holds(&self) -> bool {
        self.in_frames + self.made == self.out_frames + self.dropped()
    }
}

impl fmt::Display for Balance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is = if self.holds() { "=" } else { "≠" };
        write!(
            f,
            "frames: {} in + {} made {is} {} out + {} dropped; {} kicks, {} interrupts",
            self.in_frames,
            self.made,
            self.out_frames,
            self.dropped(),
            self.kicks,
            self.interrupts
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_lost_frame_is_seen() {
        let mut ports = json!({
            "ports": [
                {"counters": {"in_frames": 10, "made": 1, "out_frames": 4, "drops": {"ring_full": 2}}},
                {"counters": {"in_frames": 0, "out_frames": 5, "drops": {}}},
            ],
            "retired": {"in_frames": 1, "made": 0, "out_frames": 0, "drops": {"ring_full": 1}},
        });
        let balance = Balance::of(&ports);
        assert!(balance.holds(), "{balance}");
        assert_eq!(balance.drops["ring_full"], 3);
        ports["ports"][1]["counters"]["out_frames"] = 4.into();
        assert!(!Balance::of(&ports).holds());
    }
}
