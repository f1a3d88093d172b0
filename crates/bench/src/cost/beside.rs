//! The access list beside the same rules in Open vSwitch: frames a second between two virtio ports.
//!
//! Both are started in turn on the I/O core, with two ports. When all flows have passed, samples are taken,
//! each with the distance of the processors.

use sidecore_driver::Listener;

use super::super::lane::{End, Frames};
use super::super::peers::{Flows, Ovs, OvsPort};
use super::list::{List, NAME};
use super::{Ends, Kind, Method, Stage, ENTRIES, SIZE};
use crate::prelude::*;

/// How much longer a sample is than a turn.
const LONGER: u32 = 10;

/// One sample: how far the two processors were from each other, and million frames a second.
type Sample = (Mode, f64);

/// One row of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    candidate: &'static str,
    /// Million frames a second.
    mpps: Range,
    modes: Modes,
}

/// What was measured.
pub struct Beside {
    pub rows: Vec<Row>,
    /// Our rate over Open vSwitch's, of near processors, or of all samples if either has none of these; or
    /// why it is not there.
    pub ratio: Result<f64>,
}

impl Beside {
    /// With two ports and the list of `method`, as often as it has daemons.
    pub fn of(method: &Method<'_>, list: &List) -> Result<Beside> {
        let method = &Method { measures: Vec::new(), ports: 2, ..*method };
        let (mut ours, mut theirs) = (Vec::new(), Ok(Vec::new()));
        for set in 1..=method.sets {
            ours.extend(apart(|| {
                let mut stage = Stage::start(Kind::VhostUser, method, &[])?;
                pin(method.cpus.load_core).map_err(text)?;
                stage.switch.daemon.command(&["set", "p0", &format!("acl-in={NAME}")])?;
                stage.ends.introduce()?;
                samples(method, list, &mut stage.ends)
            })?);
            theirs = theirs.and_then(|all| Ok([all, apart(|| ovs(method, list))?].concat()));
            let last = |all: &[Sample]| all.last().map_or(f64::NAN, |sample| sample.1);
            let (sets, ours) = (method.sets, last(&ours));
            let theirs = theirs.as_ref().map_or_else(Clone::clone, |all| format!("{:.2} Mpps", last(all)));
            eprintln!("round {set}/{sets}: list: sidecore {ours:.2} Mpps, ovs {theirs}");
        }
        let modes = |samples: &[Sample]| Modes::of(samples, |sample| *sample);
        let others = theirs.as_ref().map(|all| modes(all)).unwrap_or_default();
        let row = |candidate, samples: &[Sample]| Row {
            candidate,
            mpps: Range::of(samples.iter().map(|sample| sample.1)),
            modes: modes(samples).over("ratio_to_ovs", &others),
        };
        let mut rows = vec![row("sidecore", &ours)];
        let ratio = theirs.map(|theirs| {
            rows.push(row("ovs", &theirs));
            let all = || rows[0].mpps.median / rows[1].mpps.median;
            modes(&ours).ratio(Mode::Near, &others).unwrap_or_else(all)
        });
        Ok(Beside { rows, ratio })
    }
}

/// Sends the frames of `bench policy` through Open vSwitch, whose flows are the list.
fn ovs(method: &Method<'_>, list: &List) -> Result<Vec<Sample>> {
    let scratch = Scratch::new("sc-list")?;
    let paths = ["a", "b"].map(|name| scratch.file(name));
    let [a, b] = paths.each_ref().map(Listener::new);
    let listeners = [a.map_err(text)?, b.map_err(text)?];
    let ports = paths.map(OvsPort::Vhost);
    let ovs = Ovs::start(method.cpus.io_core, &ports, Flows::Wire)?;
    ovs.set_flows(&list.flows)?;
    pin(method.cpus.load_core).map_err(text)?;
    let end = |listener: &Listener| {
        let frontend = listener.accept(START).map_err(text)?;
        End::virtio(frontend, ENTRIES, SIZE, Page::Small)
    };
    let mut ends = Ends(listeners.iter().map(end).collect::<Result<_>>()?);
    ends.introduce()?;
    samples(method, list, &mut ends)
}

/// Samples in which all frames arrive, after each flow's first.
fn samples(method: &Method<'_>, list: &List, ends: &mut Ends) -> Result<Vec<Sample>> {
    let mut frames = Frames { frames: &list.frames, next: 0 };
    ends.flow(&mut frames, method.window, 2 * list.frames.len())?;
    let one = |_| {
        let distance = Distance::before(&method.cpus.pair());
        let mpps = ends.flow(&mut frames, method.window * LONGER, 0)?;
        Ok((distance.after(), mpps))
    };
    (0..method.rounds).map(one).collect()
}
