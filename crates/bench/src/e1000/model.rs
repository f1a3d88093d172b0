//! The rows of the paper's Figure 4, by drivers whose traps have a price.

use sidecore_engine::device::e1000::Model;

use super::guest::{Clock, Guest, Mode, Seen};
use super::nic::{Part, Setup};
use super::stage::{frame, Limits, Stage};
use super::Args;
use crate::prelude::*;

/// The usual size of rings in Linux.
const RING: u16 = 256;
/// Frame sizes: the shortest, and a datagram of 1460 bytes with its headers.
const SIZES: [usize; 2] = [64, 1460 + 42];
/// The least gap between interrupts that Linux's drivers start with: 20,000 a second, in 256 ns.
const LINUX_ITR: u16 = 195;
/// How often the host looks for frames, in nanoseconds.
const HOST_LOOK: u64 = 5_000;
/// The operator's least gap in the row that is ours: the default.
const FLOOR: Duration = Duration::from_micros(8);

/// A row of the table: how the driver and the device behave.
pub struct Kind {
    /// The paper's name.
    pub name: &'static str,
    /// The driver.
    pub mode: Mode,
    /// The least gap between interrupts that it asks for, in 256 ns.
    pub itr: u16,
    /// The operator's.
    pub floor: Duration,
    /// What the paper measured in Kpps with one virtual processor: guest to host over TAP, guest to guest
    /// over VALE; 8 and 1460 bytes of UDP each.
    pub paper: Option<[[u32; 2]; 2]>,
}

/// A row without a limit of the operator's.
pub const fn kind(name: &'static str, mode: Mode, itr: u16, paper: Option<[[u32; 2]; 2]>) -> Kind {
    Kind { name, mode, itr, floor: Duration::ZERO, paper }
}

const KINDS: [Kind; 5] = [
    kind("BASE itr=0", Mode::Trapping, 0, Some([[30, 28], [32, 31]])),
    kind("itr=250", Mode::Trapping, 250, Some([[83, 71], [125, 98]])),
    kind("itr=250 SC", Mode::Combining, 250, Some([[216, 138], [455, 186]])),
    kind("itr=0 CSB", Mode::Csb, 0, Some([[353, 242], [1526, 480]])),
    Kind { floor: FLOOR, ..kind("unmodified, exitless", Mode::Exitless, LINUX_ITR, None) },
];

/// Rows of a card whose doorbells cannot but trap, in pairs without and with a status block: moderation off,
/// and as it is unless the operator says otherwise.
const TRAPPING: [Kind; 4] = [
    kind("itr=0", Mode::Trapping, 0, None),
    kind("itr=0 CSB", Mode::Csb, 0, None),
    Kind { floor: FLOOR, ..kind(UNMODIFIED, Mode::Trapping, 0, None) },
    Kind { floor: FLOOR, ..kind(WITH_CSB, Mode::Csb, 0, None) },
];
/// The last of these pairs, which the summary has.
pub const UNMODIFIED: &str = "unmodified";
pub const WITH_CSB: &str = "csb=on";

/// The rows of `part`.
fn kinds(part: Part) -> impl Iterator<Item = &'static Kind> {
    let kinds = match part {
        Part::Intel(_) => &KINDS[..],
        Part::Rtl8169 => &TRAPPING,
    };
    kinds.iter().filter(move |kind| part != Part::Intel(Model::E1000e) || kind.mode != Mode::Csb)
}

/// Measures all rows.
pub fn measure(args: &Args) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for &trap_ns in &args.costs {
        for &part in &args.parts {
            for other in [false, true] {
                for size in SIZES {
                    for kind in kinds(part) {
                        rows.push(one(args, part, kind, trap_ns, other, size)?);
                    }
                }
            }
        }
    }
    Ok(rows)
}

/// Measures one row.
pub fn one(
    args: &Args,
    part: Part,
    kind: &Kind,
    trap_ns: u32,
    other: bool,
    size: usize,
) -> Result<Row, String> {
    let trap = Duration::from_nanos(trap_ns.into());
    let mut stage = Stage::new(args.cpus.io_core)?;
    let setup = Setup {
        ring: RING,
        page: Page::Small,
        map: kind.mode == Mode::Exitless,
        itr: kind.itr,
        csb: kind.mode == Mode::Csb,
    };
    let guest = |stage: &mut Stage| {
        let nic = stage.card(part, Limits { floor: kind.floor, share: 100 }, &setup)?;
        Guest::new(nic, kind.mode, trap)
    };
    let mut pair = Pair {
        sender: guest(&mut stage)?,
        receiver: if other { Some(guest(&mut stage)?) } else { None },
        host: if other { None } else { Some(stage.host()?) },
        data: frame(0, 1, size),
        arrived: 0,
        look_at: 0,
        clock: Clock::new(),
    };
    pair.run(Duration::from_millis(50))?;
    let before = pair.seen();
    let start = pair.clock.now();
    pair.run(args.window / 4)?;
    let after = pair.seen();
    let time = (pair.clock.now() - start) as f64;
    let seen = [0, 1].map(|i| after[i].since(before[i]));
    Ok(row(part, kind, trap_ns, usize::from(other), size, time, seen))
}

row! {
    fn row(
        part: Part,
        kind: &Kind,
        trap_ns: u32,
        path: usize,
        size: usize,
        time: f64,
        seen: [Seen; 2],
    ) -> Row {
        let [sender, receiver] = seen;
        let (queued, frames) = (sender.sent as f64, receiver.received as f64);
        let each = |count: u64, frames: f64| if frames > 0.0 { count as f64 / frames } else { 0.0 };
    }

    /// What was measured.
    pub struct Row {
        /// `e1000`, `e1000e` or `rtl8169`.
        pub model: &'static str = part.name(),
        /// The paper's name of the row.
        pub row: &'static str = kind.name,
        /// `GH`: guest to host. `GG`: guest to guest.
        pub path: &'static str = ["GH", "GG"][path],
        /// Bytes of a frame.
        pub size: usize = size,
        /// What a trap takes, in nanoseconds.
        pub trap_ns: u32 = trap_ns,
        /// Thousand frames a second that arrived.
        pub kpps: f64 = frames / time * 1e6,
        /// Traps of the sending guest for each frame, and of the receiving one.
        pub traps: [f64; 2] = [each(sender.traps, queued), each(receiver.traps, frames)],
        /// Interrupts of the sending guest for each frame, and of the receiving one.
        pub interrupts: [f64; 2] = [each(sender.interrupts, queued), each(receiver.interrupts, frames)],
        /// Share of the frames that the receiver had no place for.
        pub lost: f64 = (1.0 - frames / queued.max(1.0)).max(0.0),
        /// What the paper measured, in thousand frames a second.
        pub paper_kpps: Option<u32> = kind.paper.map(|paper| paper[path][usize::from(size > 64)]),
    }
}

/// A guest that sends, and the guest or host that receives.
struct Pair {
    sender: Guest,
    receiver: Option<Guest>,
    host: Option<NetDriver>,
    data: Vec<u8>,
    /// At the host.
    arrived: u64,
    /// When the host looks again: it shares our processor, and must not take the guest's time.
    look_at: u64,
    clock: Clock,
}

impl Pair {
    fn run(&mut self, time: Duration) -> Result<(), String> {
        let end = self.clock.now() + u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        while self.clock.now() < end {
            self.sender.step(self.clock.now(), Some(&self.data), |_| {}).map_err(text)?;
            if let Some(receiver) = &mut self.receiver {
                receiver.step(self.clock.now(), None, |_| {}).map_err(text)?;
            }
            let now = self.clock.now();
            if let Some(host) = self.host.as_mut().filter(|_| now >= self.look_at) {
                self.look_at = now + HOST_LOOK;
                let arrived = &mut self.arrived;
                host.receive(0, |_, _| *arrived += 1).map_err(text)?;
            }
        }
        Ok(())
    }

    fn seen(&self) -> [Seen; 2] {
        let host = Seen { received: self.arrived, ..Seen::default() };
        [self.sender.seen, self.receiver.as_ref().map_or(host, |guest| guest.seen)]
    }
}
