//! What was measured as a table, JSON and a figure.

use super::delay::DelayRow;
use super::ends::Sample;
use crate::prelude::*;

/// What one row is about.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Case {
    pub candidate: &'static str,
    pub family: &'static str,
    pub ports: &'static str,
    pub routes: usize,
    pub flows: usize,
}

row! {
    /// `load`: what loading the table took, and bytes that lookups may touch.
    pub fn row(case: Case, samples: &[Sample], load: Option<(f64, usize)>) -> Row {}

    /// A row of the table.
    pub struct Row {
        #[serde(flatten)]
        case: Case = case,
        /// Million frames that arrived a second: the median of the rounds, and all of them.
        mpps: f64 = middle(samples, |it| it.mpps),
        samples: Vec<f64> = samples.iter().map(|it| it.mpps).collect(),
        /// Rates by the distance of the two processors.
        modes: Modes = Modes::of(samples, |it| (it.mode, it.mpps)),
        /// Nanoseconds of a core for a frame.
        ns_per_frame: f64 = middle(samples, |it| it.ns),
        lost: u64 = samples.iter().map(|it| it.lost).sum(),
        /// Seconds to load the table, and bytes that lookups may touch.
        load_seconds: Option<f64> = load.map(|(seconds, _)| seconds),
        bytes: Option<usize> = load.map(|(_, bytes)| bytes),
    }
}

/// What the rows say together.
pub fn summary(rows: &[Row], delays: &[DelayRow]) -> impl Serialize {
    let of = |candidate: &str, ports: &str| {
        let all = rows.iter().filter(|row| row.case.candidate == candidate && row.case.ports == ports);
        all.filter(|row| row.case.family == "IPv4" && row.case.flows > 1).max_by_key(|row| row.case.routes)
    };
    let (ring, virtio) = (of("sidecore", "ring"), of("sidecore", "virtio"));
    let beside_l3fwd = virtio.zip(of("l3fwd", "virtio"));
    let ratio_at = |mode: Mode| {
        let (ours, l3fwd) = beside_l3fwd?;
        ours.modes.ratio(mode, &l3fwd.modes)
    };
    let delay = |candidate: &str| {
        delays.iter().find(|row| row.case.candidate == candidate && row.case.ports == "virtio")
    };
    let (routed, wire, their) = (delay("sidecore"), delay("wire"), delay("l3fwd"));
    let added = |of: fn(&DelayRow) -> f64| routed.zip(wire).map(|(routed, wire)| of(routed) - of(wire));
    let kernel = ring.zip(of("kernel", "veth"));
    fields! {
        /// Many flows in the greatest IPv4 table that was asked for, a million routes without options;
        /// between ring ports, and between virtio ports.
        mpps_1m: ring.map_or(f64::NAN, |row| row.mpps),
        mpps_1m_virtio: virtio.map_or(f64::NAN, |row| row.mpps),
        /// Between virtio ports against DPDK's l3fwd there: medians of all samples, of those with near and of
        /// those with far processors.
        ratio_l3fwd: beside_l3fwd.map(|(ours, l3fwd)| ours.mpps / l3fwd.mpps),
        ratio_l3fwd_near: ratio_at(Mode::Near),
        ratio_l3fwd_far: ratio_at(Mode::Far),
        /// Between ring ports against the price of a frame that the kernel forwards.
        ratio_kernel: kernel.map(|(ours, kernel)| kernel.ns_per_frame / ours.ns_per_frame),
        /// One way between virtio ports at 100,000 frames a second, in that table, in microseconds; what of
        /// it a wire does not have; and l3fwd's.
        delay_p50_us: routed.map(|row| row.p50_us),
        delay_p99_us: routed.map(|row| row.p99_us),
        added_p50_us: added(|row| row.p50_us),
        added_p99_us: added(|row| row.p99_us),
        l3fwd_delay_p50_us: their.map(|row| row.p50_us),
        l3fwd_delay_p99_us: their.map(|row| row.p99_us),
    }
}

/// The rates by table, those of peers in a group of their own.
pub fn picture(rows: &[Row]) -> String {
    let group = |row: &Row| match row.case.candidate {
        "sidecore" => format!("{}, {}", row.case.family, row.case.routes),
        _ => "peers".to_owned(),
    };
    let kind = |row: &Row| match (row.case.candidate, row.case.flows) {
        ("sidecore", 1) => format!("{} ports, one flow", row.case.ports),
        ("sidecore", _) => format!("{} ports, many flows", row.case.ports),
        (peer, flows) => format!("{peer}, {} routes, {flows} flows", row.case.routes),
    };
    let groups = distinct(rows.iter().map(group));
    let bar = |name: String| {
        let value = |of: &String| {
            rows.iter().find(|row| group(row) == *of && kind(row) == name).map_or(0.0, |row| row.mpps)
        };
        Bars { values: groups.iter().map(value).collect(), name }
    };
    let all: Vec<Bars> = distinct(rows.iter().map(kind)).into_iter().map(bar).collect();
    let y = Axis::linear("million frames a second");
    bars(
        "Routed frames of 64 bytes",
        "sidecore bench router --svg FILE; one core",
        "routes",
        &groups,
        y,
        &all,
    )
}
