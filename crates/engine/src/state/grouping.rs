//! What is wanted of a group, as options: when flows may move, the members' shares, and who drains.
//!
//! A group's interface is a port of kind `group`; a member's ports name the group, the member and the
//! interface that they stand behind.

use std::net::IpAddr;
use std::time::Duration;

use super::values::{texts, List, NameList, Number, Toggle};
use crate::util::form::{options, Form, Key, Scope};

/// A member's share beside those of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberWeight {
    /// Whose it is.
    pub(super) member: String,
    weight: u32,
}

/// How long a draining member keeps flows that are not idle: seconds, or for as long as they live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForceAfter(Option<u32>);

texts! {
    MemberWeight = Form::Text("MEMBER:N", "a:100"), {
        read: |text| {
            let (member, weight) = text.split_once(':')?;
            let weight = weight.parse().ok().filter(|weight| (1..=1000).contains(weight))?;
            Some(MemberWeight { member: member.to_owned(), weight })
        },
        allowed: "MEMBER:N with a weight from 1 to 1000",
        write: |it, f| write!(f, "{}:{}", it.member, it.weight),
    }
    ForceAfter = Form::Text("SECONDS|never", "30"), {
        read: |text| match text {
            "never" => Some(ForceAfter(None)),
            _ => text.parse().ok().filter(|seconds| *seconds <= 86_400).map(|it| ForceAfter(Some(it))),
        },
        allowed: "seconds from 0 to 86400, or never",
        write: |after, f| match after.0 {
            None => f.write_str("never"),
            Some(seconds) => write!(f, "{seconds}"),
        },
    }
}

options! {
    /// One group.
    GroupSpec {
        must {
            /// Its name: 1 to 63 letters, digits, `.`, `_` and `-`.
            name: String = "name";
        }
        may {
            /// Whether members know the flows that pass them, as firewalls do: then a flow is idle only after
            /// a long time.
            stateful: Toggle = "stateful", Any, "`off`";
            /// Milliseconds without a frame after which flows may move to another member.
            idle: Number<1, 3_600_000> = "idle", Any, "100; with `stateful=on` 120000";
            /// Seconds after which a draining member loses flows that are not idle, too.
            force_after: ForceAfter = "force-after", Any, "30";
            /// Milliseconds after which a member is gone that has returned no buffers and sent nothing while
            /// frames came for it.
            stall: Number<10, 60_000> = "stall", Any, "500";
            /// Where probes go through members, one each `stall`: an address that they route out by an
            /// interface of the group; who misses three is gone.
            probe: IpAddr = "probe", Any, "no probes";
            /// The number of active members below which probes take no member out.
            probe_floor: Number<1, 64> = "probe-floor", Any with "probe", "half of the members, rounded up";
            /// Shares of members beside those of others.
            weights: List<MemberWeight> = "weights", Any, "100 each";
            /// Members that get no new flows.
            drain: NameList = "drain", Any, "none";
        }
    }
}

impl GroupSpec {
    pub(super) fn idle(&self) -> Duration {
        let usual = if self.stateful == Some(Toggle::On) { 120_000 } else { 100 };
        Duration::from_millis(self.idle.map_or(usual, Number::get).into())
    }

    pub(super) fn force_after(&self) -> Option<Duration> {
        let seconds = self.force_after.map_or(Some(30), |after| after.0);
        seconds.map(|seconds| Duration::from_secs(seconds.into()))
    }

    pub(super) fn stall(&self) -> Duration {
        Duration::from_millis(self.stall.map_or(500, Number::get).into())
    }

    pub(super) fn probe_floor(&self, members: usize) -> usize {
        self.probe_floor.map_or(members.div_ceil(2), |floor| floor.get() as usize)
    }

    pub(super) fn weight(&self, member: &str) -> u32 {
        let all = self.weights.iter().flat_map(|weights| &weights.0);
        all.filter(|it| it.member == member).map(|it| it.weight).next_back().unwrap_or(100)
    }

    pub(super) fn drains(&self, member: &str) -> bool {
        self.drain.as_ref().is_some_and(|names| names.0.iter().any(|name| name == member))
    }

    /// Its weights and drains of those members that `stays` says, and no others.
    pub(super) fn keep(&mut self, stays: impl Fn(&str) -> bool) {
        fn some<T>(list: &mut Option<List<T>>, stays: impl Fn(&T) -> bool) {
            list.iter_mut().for_each(|list| list.0.retain(|it| stays(it)));
            *list = list.take().filter(|list| !list.0.is_empty());
        }
        some(&mut self.weights, |it| stays(&it.member));
        some(&mut self.drain, |name| stays(name));
    }

    /// The members that it names.
    pub(super) fn named(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let weights = self.weights.iter().flat_map(|all| &all.0).map(|it| ("weights", it.member.as_str()));
        weights.chain(self.drain.iter().flat_map(|all| &all.0).map(|name| ("drain", name.as_str())))
    }
}
