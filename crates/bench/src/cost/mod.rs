//! What a frame costs the I/O core with something turned on, against without it: `bench containment`, `bench
//! policy`.
//!
//! Theory of operation. A flow between two ports goes one way, between ring ports, virtio ports or e1000e
//! cards; one thread is both ends. What is measured is the time in which the I/O core was busy, by its own
//! account, over the frames that it took.
//!
//! The machine is faster in some seconds than in others, and one process is faster than another one of the
//! same program, because its pages lie elsewhere. Both are larger than what is in question. So what is
//! measured is turned on and off in the running daemon, the measures take turns, a window long each, and a
//! turn's ratio is that of a measure to the mean of both plain turns of its own round; what has frames of
//! many flows is compared with the turn of these without it. A set of daemons says the median of its rounds,
//! and the table the median of the sets.
//!
//! The first two measures, `plain` and `again`, are the same: what lies between them is noise. The interval
//! holds the median with 95 %, by its order statistics, so whatever the distribution.

mod beside;
pub mod containment;
mod list;
pub mod policy;

use std::ops::Range;
use std::path::Path;

use sidecore_pktgen::end::{Blind, Lane};

use super::lane::{End, Flow, Frames, Once, SIZE};
use crate::prelude::*;
use list::List;

/// Entries of a ring, and frames under way at most.
const ENTRIES: u16 = 1024;
const WINDOW: u64 = 512;
/// Frames that have not come after this time are lost.
const PATIENCE: Duration = Duration::from_secs(1);
/// The ends' stations.
const MAC: [[u8; 6]; 3] = [[2, 0x63, 0, 0, 0, 1], [2, 0x63, 0, 0, 0, 2], [2, 0x63, 0, 0, 0, 3]];
/// A group that no other station is in.
const GROUP: [u8; 6] = [0x03, 0x63, 0, 0, 0, 1];

named! {
    /// Kinds of ports.
    #[derive(Serialize, clap::ValueEnum)]
    #[serde(rename_all = "kebab-case")]
    pub enum Kind {
        /// Ring ports.
        Ring = "ring",
        /// virtio-net over vhost-user.
        VhostUser = "vhost-user",
        /// The 82574L over vfio-user.
        E1000e = "e1000e",
    }
}

/// Which frames a measure has.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Traffic {
    /// All alike, for the receiver.
    #[default]
    One,
    /// All alike, for all ports.
    ToAll,
    /// Those of the list, for the receiver.
    Many,
}

/// What is turned on.
struct Measure {
    name: &'static str,
    /// In which of a set's daemons.
    daemon: usize,
    /// What each port is set to, all that any measure changes.
    options: Vec<(&'static str, Vec<String>)>,
    traffic: Traffic,
    /// The measure that it is compared with, if that is not the plain ones.
    against: Option<&'static str>,
}

/// How many measures, from the first on, are plain.
const PLAIN: usize = 2;

/// How it is measured.
struct Method<'a> {
    measures: Vec<Measure>,
    /// Arguments of each daemon of a set.
    daemons: &'a [&'a [&'a str]],
    /// Ports of a daemon: the flow's two, and others.
    ports: usize,
    /// The access list that each daemon has, as [`list::NAME`], and its frames.
    list: Option<&'a List>,
    cpus: Processors,
    sets: u16,
    rounds: u16,
    window: Duration,
}

/// One turn: nanoseconds of the I/O core for a frame, and how far the two processors were from each other.
type Turn = (Mode, f64);

/// The ends at a switch's ports: the sender, the receiver, and others.
struct Ends(Vec<End>);

impl Ends {
    /// The receiver says a word, so that frames for it go to it alone.
    fn introduce(&mut self) -> Result<()> {
        let word = frame([0xff; 6], MAC[1]);
        let mut frame = Once(&word);
        // A driver may be ready before the port's carrier is; frames until then are dropped.
        until("a frame comes", START, Duration::ZERO, || {
            self.0[1].send(1, &mut frame)?;
            let end = Instant::now() + Duration::from_millis(20);
            while Instant::now() < end {
                if take(&mut self.0[0])? > 0 {
                    return Ok(Some(()));
                }
                std::thread::yield_now();
            }
            Ok(None)
        })
    }

    /// Sends for `time`, and `least` frames at least; waits until all have come. How many came in a second,
    /// in millions.
    fn flow(&mut self, frames: &mut Frames<'_>, time: Duration, least: usize) -> Result<f64> {
        let [from, to, others @ ..] = &mut *self.0 else { return Err("a flow has two ends".to_owned()) };
        let (mut flow, mut got, start) = (Flow::default(), 0, Instant::now());
        while start.elapsed() < time || flow.sent < least as u64 {
            flow.run(from, frames, WINDOW, time, || {
                got += take(to)?;
                others.iter_mut().try_for_each(|other| take(other).map(drop))?;
                Ok(got)
            })?;
            let sent = flow.sent;
            let all = until("all frames have arrived", PATIENCE, Duration::ZERO, || {
                got += take(to)?;
                Ok((got >= sent).then_some(()))
            });
            all.map_err(|late| format!("{late}: {} of {sent} are missing", sent - got))?;
        }
        Ok(got as f64 / start.elapsed().as_secs_f64() / 1e6)
    }
}

/// A daemon and the ends at its ports.
struct Stage {
    ends: Ends,
    switch: Switch,
    /// The measure that is turned on.
    on: Option<&'static str>,
}

impl Stage {
    fn start(kind: Kind, method: &Method<'_>, arguments: &[&str]) -> Result<Stage> {
        let port = |n: usize| {
            let mac = MAC[n].map(|byte| format!("{byte:02x}")).join(":");
            // A program at a ring port has no address of its own.
            let more = match kind {
                Kind::Ring => format!("fdb={mac},slots={ENTRIES}"),
                Kind::VhostUser | Kind::E1000e => format!("mac={mac}"),
            };
            format!("{}:@/e{n},mac-guard=off,{more}", kind.name())
        };
        let switch = Switch::start(method.cpus.io_core, (0..method.ports).map(port), arguments)?;
        if let Some(list) = method.list {
            let file = switch.file("acl");
            std::fs::write(&file, &list.rules).map_err(text)?;
            switch.daemon.command(&["acl", list::NAME, &file.to_string_lossy()])?;
        }
        let end = |n: usize| connect(kind, &switch.file(format!("e{n}")));
        let ends = (0..method.ports).map(end).collect::<Result<_>>()?;
        Ok(Stage { ends: Ends(ends), switch, on: None })
    }

    /// Turns on what `measure` has, and what no measure before it has off.
    fn apply(&mut self, measure: &Measure) -> Result<()> {
        if self.on == Some(measure.name) {
            return Ok(());
        }
        for (port, words) in &measure.options {
            let words: Vec<&str> =
                ["set", port].into_iter().chain(words.iter().map(String::as_str)).collect();
            self.switch.daemon.command(&words)?;
        }
        self.on = Some(measure.name);
        self.ends.introduce()
    }

    /// As [`Ends::flow`].
    fn flow(&mut self, frames: &mut Frames<'_>, time: Duration, least: usize) -> Result<f64> {
        self.ends.flow(frames, time, least).map_err(|missing| {
            match self.switch.daemon.command(&["show", "drops"]) {
                Ok(drops) => format!("{missing}:\n{}", String::from_utf8_lossy(&drops)),
                Err(_) => missing,
            }
        })
    }

    /// With frames of `list`, if the measure has many. Before it counts, each of them has passed.
    fn measure(
        &mut self,
        measure: &Measure,
        list: Option<&List>,
        time: Duration,
        cpus: [usize; 2],
    ) -> Result<Turn> {
        self.apply(measure)?;
        let alike = [frame(if measure.traffic == Traffic::ToAll { GROUP } else { MAC[1] }, MAC[0])];
        let frames = match list.filter(|_| measure.traffic == Traffic::Many) {
            Some(list) => &*list.frames,
            None => &alike,
        };
        let (each, mut frames) = (frames.len(), Frames { frames, next: 0 });
        self.flow(&mut frames, time / 5, each)?;
        let distance = Distance::before(&cpus);
        let before = self.switch.spent()?;
        self.flow(&mut frames, time, 0)?;
        let spent = self.switch.spent()?.since(before);
        Ok((distance.after(), spent.per_frame()))
    }
}

/// The driver of a port.
fn connect(kind: Kind, path: &Path) -> Result<End> {
    match kind {
        Kind::Ring => End::ring(&path.to_string_lossy(), SIZE),
        Kind::VhostUser => {
            End::virtio(Frontend::connect(path, START).map_err(text)?, ENTRIES, SIZE, Page::Small)
        }
        Kind::E1000e => End::card(path, ENTRIES),
    }
}

/// Takes what has come; how many.
#[inline]
fn take(end: &mut End) -> Result<u64> {
    Ok(end.receive(usize::MAX, &mut Blind)?.frames as u64)
}

/// A frame of a local experimental type (IEEE 802).
fn frame(to: [u8; 6], from: [u8; 6]) -> [u8; SIZE] {
    let mut frame = [0x5a; SIZE];
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&from);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

impl Method<'_> {
    /// One set of daemons: each round's turns.
    fn set(&self, kind: Kind) -> Result<Vec<Vec<Turn>>> {
        apart(|| {
            let start = |arguments: &&[&str]| Stage::start(kind, self, arguments);
            let mut stages = self.daemons.iter().map(start).collect::<Result<Vec<_>>>()?;
            pin(self.cpus.load_core).map_err(text)?;
            let mut all = Vec::new();
            for round in 0..usize::from(self.rounds) {
                let mut turns = vec![(Mode::Unknown, 0.0); self.measures.len()];
                for turn in 0..self.measures.len() {
                    let at = (round + turn) % self.measures.len();
                    let measure = &self.measures[at];
                    turns[at] =
                        stages[measure.daemon].measure(measure, self.list, self.window, self.cpus.pair())?;
                }
                all.push(turns);
            }
            Ok(all)
        })
    }

    /// The measures that this one is compared with.
    fn against(&self, at: usize) -> Range<usize> {
        let name = self.measures[at].against;
        let other = self.measures.iter().position(|measure| Some(measure.name) == name);
        other.map_or(0..if at < PLAIN { 1 } else { PLAIN }, |other| other..other + 1)
    }

    /// A row for each measure with ports of `kind`.
    fn rows(&self, kind: Kind) -> Result<Vec<Row>> {
        let count = self.measures.len();
        let (mut ratios, mut samples) = (vec![Vec::new(); count], vec![Vec::<Turn>::new(); count]);
        for number in 1..=self.sets {
            let turns = self.set(kind)?;
            for at in 0..count {
                samples[at].extend(turns.iter().map(|turns| turns[at]));
                let against = self.against(at);
                let plain = |turns: &[Turn]| {
                    turns[against.clone()].iter().map(|turn| turn.1).sum::<f64>() / against.len() as f64
                };
                ratios[at].push(median(turns.iter().map(|turns| turns[at].1 / plain(turns))));
            }
            let last = self.measures.iter().zip(&ratios).map(|(measure, ratios)| {
                format!("{} {:.3}", measure.name, ratios.last().unwrap_or(&f64::NAN))
            });
            let last: Vec<String> = last.collect();
            eprintln!("round {number}/{}: {}: {}", self.sets, kind.name(), last.join(", "));
        }
        let modes = |samples: &[Turn]| Modes::of(samples, |turn| *turn);
        // These have both plain measures, too.
        let plain =
            |at: usize| modes(&samples[if at < PLAIN { 0..PLAIN } else { self.against(at) }].concat());
        let one = |(at, ratios): (usize, Vec<f64>)| {
            row(kind, self.measures[at].name, &samples[at], ratios, &plain(at))
        };
        Ok(ratios.into_iter().enumerate().map(one).collect())
    }
}

row! {
    fn row(port: Kind, name: &'static str, turns: &[Turn], ratios: Vec<f64>, plain: &Modes) -> Row {}

    /// One row of the table.
    struct Row {
        port: Kind = port,
        measure: &'static str = name,
        /// Nanoseconds of the I/O core for a frame, median of all turns.
        ns_per_frame: f64 = middle(turns, |turn| turn.1),
        /// With it against without it: median of the sets, and where it lies with 95 %.
        ratio: f64 = median(ratios.iter().copied()),
        between: [f64; 2] = interval(&ratios),
        /// Each set's own.
        sets: Vec<f64> = ratios,
        /// Nanoseconds of the I/O core for a frame, by the distance of the two processors.
        modes: Modes = Modes::of(turns, |turn| *turn).over("ratio_to_plain", plain),
    }
}

/// Where the median lies with 95 %: between two of the values. Fewer than six do not tell: then it is all of
/// them.
fn interval(values: &[f64]) -> [f64; 2] {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    // At most `k` of a fair coin's throws are heads, or at most `k` are tails.
    let (mut ways, mut below, mut at) = (1.0, 0.0, 0);
    for k in 0..count / 2 {
        below += ways;
        if 2.0 * below / 2f64.powi(i32::try_from(count).unwrap_or(i32::MAX)) <= 0.05 {
            at = k;
        }
        ways *= (count - k) as f64 / (k + 1) as f64;
    }
    let of = |at: usize| sorted.get(at).copied().unwrap_or(f64::NAN);
    [of(at), of(count.saturating_sub(at + 1))]
}

#[cfg(test)]
mod tests {
    use super::interval;

    #[test]
    fn the_interval_of_a_median() {
        // Nine values: 2 · (1 + 9) / 512 = 3.9 %; six: 2 / 64 = 3.1 %; five: 2 / 32 = 6.3 %, so all of them.
        let values = |count: u8| (1..=count).rev().map(f64::from).collect::<Vec<f64>>();
        assert_eq!(interval(&values(9)), [2.0, 8.0]);
        assert_eq!(interval(&values(6)), [1.0, 6.0]);
        assert_eq!(interval(&values(5)), [1.0, 5.0]);
        assert_eq!(interval(&values(1)), [1.0, 1.0]);
    }
}
