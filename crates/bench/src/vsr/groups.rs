//! Figures 18 and 19: routers that act as one, as members of a [group](super::super::group) of a daemon's.
//!
//! A member is a guest router whose processor is a reservation: a part of the load's processor in each period
//! (`SCHED_DEADLINE`), which it uses up, as more is offered than all members forward. The load has a
//! reservation there, too, with a period so short that it goes first. The daemon's I/O core, which does the
//! group's work, has the other processor; `io` says how busy it was.
//!
//! What balances load in a multistage router is the same group. Alone it has routers of the engine as
//! members, which the I/O core does as well, so the stage itself forwards at least as much as that.

use std::collections::BTreeMap;
use std::path::PathBuf;

use sidecore_driver::guest_router::{Config, GuestRouter, Hop, Vcpu, BUDGET};
use sidecore_driver::load::Lane;

use serde_json::Value;

use super::super::ends::{Kind, PathEnd};
use super::super::group::until_active;
use super::super::peers::polling_thread;
use super::super::rfc2544::traffic::FCS;
use super::super::target::{gateway_says, route_to_gateway, ADDRESSES};
use super::curves::PERIOD;
use super::report::{Point, Row};
use super::stage::{hops, lane, traffic, Bench, Placement, Sample, ALONE, GUEST_RING, SIZE};
use super::threads::{self, Class, Pinned};
use super::{lines, Found, Plan};
use crate::prelude::*;

/// The part of a processor that is a member's.
const SHARE: f64 = 0.15;
/// Members of Figure 18 at most, and of a multistage router.
const MOST: usize = 4;
const BACK_ENDS: usize = 3;
/// Flows: enough for each member to have its part of them.
const FLOWS: u64 = 1000;
/// The load, in rates that the most members would have if they did nothing but route.
const FLOOD: f64 = 2.0;
/// Loads of back-ends, and million frames a second for the stage alone.
const LOADS: [f64; 6] = [0.2, 0.4, 0.7, 1.0, 1.5, 3.0];
const STAGE_LOADS: [f64; 6] = [0.5, 1.0, 2.0, 4.0, 6.0, 8.0];
/// Periods of a measurement.
const COUNTED: u32 = 5;
/// The only picture.
const PICTURE: &str = "several as one";
/// Lines of Figure 19.
const STAGE: &str = "stage alone";

/// What is behind a group's interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Members {
    number: usize,
    /// Routers of the engine instead of guests.
    native: bool,
}

/// A line: its members, and the rates offered.
type Line = (Members, Vec<f64>);

/// What the output says.
fn note() -> String {
    format!(
        "a guest's processor is a reservation of {:.0} % of one, {:?} in each {PERIOD:?} (SCHED_DEADLINE); the load is on the same processor",
        SHARE * 100.0,
        PERIOD.mul_f64(SHARE),
    )
}

/// Figure 18: members that forward all they can, by their number.
pub fn parallel(plan: &Plan) -> Result<Found> {
    let flood = FLOOD * rate(plan, MOST);
    let numbers = 1..=if plan.quick { 2 } else { MOST };
    let all = |_: &()| numbers.clone().map(|number| number as f64).collect();
    let name = |_: &()| [PICTURE, "members with reservations"].map(str::to_owned);
    let rows = lines(plan, &[()], name, all, |(), _| {
        let of = |number| one(plan, Members { number, native: false }, &[flood]);
        Ok(numbers.clone().map(of).collect::<Result<Vec<_>>>()?.concat())
    })?;
    Ok(Found { notes: vec![note()], summary: summary(&rows), ..rows.into() })
}

/// Figure 19: a multistage router, and its first stage alone.
pub fn multistage(plan: &Plan) -> Result<Found> {
    let back_ends = |number: usize| {
        (Members { number, native: false }, LOADS.map(|load| load * rate(plan, number)).to_vec())
    };
    let stage = (Members { number: 2, native: true }, STAGE_LOADS.to_vec());
    let mut all = vec![stage, back_ends(1), back_ends(BACK_ENDS)];
    if plan.quick {
        all.iter_mut().for_each(|(_, loads)| loads.truncate(2));
    }
    let name = |(members, _): &Line| [PICTURE.to_owned(), members.name()];
    let points = |(_, loads): &Line| loads.clone();
    let rows = lines(plan, &all, name, points, |(members, _), loads| one(plan, *members, loads))?;
    Ok(Found { notes: vec![note()], summary: summary(&rows), ..rows.into() })
}

/// What members forward by what one does, or the stage by what the back-ends do: as they are, and if each had
/// a whole processor.
fn summary(rows: &[Row]) -> BTreeMap<String, Value> {
    match rows {
        [stage, .., all] => {
            let ratio = stage.peak_mpps / all.peak_mpps;
            let whole = ("stage_headroom_whole".to_owned(), (ratio * SHARE).into());
            BTreeMap::from([("stage_headroom".to_owned(), ratio.into()), whole])
        }
        [row] => {
            let one = row.points.first().map_or(f64::NAN, |point| point.forwarded_mpps);
            let ratio = |point: &Point| (format!("speedup_{}", point.x), (point.forwarded_mpps / one).into());
            row.points.iter().skip(1).map(ratio).collect()
        }
        [] => BTreeMap::new(),
    }
}

/// Million frames a second of so many members that do nothing but route.
fn rate(plan: &Plan, members: usize) -> f64 {
    members as f64 * SHARE * 1e3 / plan.cost_ns
}

impl Members {
    fn name(self) -> String {
        if self.native {
            STAGE.to_owned()
        } else {
            format!("members: {}", self.number)
        }
    }

    /// Sockets of a guest's two cards.
    fn sockets(member: usize, scratch: &Scratch) -> [PathBuf; 2] {
        [0, 1].map(|number| scratch.file(format!("m{member}-{number}")))
    }

    /// Starts the group between two ports outside.
    fn start(self, core: usize, scratch: &Scratch, ends: &[PathEnd; 2]) -> Result<Switch> {
        let mut ports = Vec::new();
        let mut more = vec!["--group".to_owned(), "g".to_owned()];
        for (number, (end, hop)) in ends.iter().zip(hops()).enumerate() {
            let mac = hop.from.map(|byte| format!("{byte:02x}")).join(":");
            let group = format!("group:g,interface={number},mac={mac},address={}", ADDRESSES[number]);
            ports.extend([end.spec(), group].map(|port| format!("{port},wire=w{number}")));
        }
        for member in 0..self.number {
            let of_guest =
                Members::sockets(member, scratch).map(|path| format!("vhost-user:{}", path.display()));
            let both = if self.native { [0, 1].map(|_| format!("router:r{member}")) } else { of_guest };
            let port = |(number, port)| format!("{port},group=g,member=m{member},interface={number}");
            ports.extend(both.iter().enumerate().map(port));
            if self.native {
                more.extend(["--router".to_owned(), format!("r{member}")]);
            }
        }
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        let switch = Switch::start(core, &ports, &more)?;
        let thread = polling_thread(switch.process.id(), core).ok_or("a daemon without an I/O core")?;
        threads::place(thread, ALONE, &[core])?;
        let routers = 0..if self.native { self.number } else { 0 };
        for router in routers {
            route_to_gateway(&switch.daemon, &format!("r{router}"))?;
        }
        Ok(switch)
    }
}

/// All loads, with one daemon.
fn one(plan: &Plan, members: Members, loads: &[f64]) -> Result<Vec<Sample>> {
    let _pinned = Pinned::new()?;
    let scratch = Scratch::new("sc-vsr")?;
    let ends = [0, 1].map(|number| PathEnd::there(Kind::VhostUser, number, &scratch.file("")));
    let switch = members.start(plan.cpus.io_core, &scratch, &ends)?;
    on(plan.cpus.load_core, || {
        let guests = 0..if members.native { 0 } else { members.number };
        let guests = guests.map(|member| guest(&Members::sockets(member, &scratch), plan.cost_ns));
        let guests = guests.collect::<Result<Vec<_>>>()?;
        until_active(&switch.daemon)?;
        let [from, to] = ends.each_ref().map(|end| end.open(None, SIZE - FCS, Page::Small));
        let (traffic, hello) = (traffic(FLOWS)?, members.native.then(gateway_says));
        let mut bench = Bench::new(&traffic, [from?, to?], hello, guests, Vec::new(), plan.cpus)?;
        let mut window = plan.window;
        if !members.native {
            bench.place(Placement::Reserved(Class::reserved(SHARE, PERIOD)))?;
            window = plan.whole(PERIOD, COUNTED).window;
        }
        loads.iter().map(|load| offer(&switch, &mut bench, *load, window)).collect()
    })
}

/// A router in a guest that has made itself known on both sides.
fn guest(sockets: &[PathBuf; 2], cost_ns: f64) -> Result<Vcpu> {
    let card = |socket: &PathBuf, hop: Hop| -> Result<Lane> {
        let front = Frontend::connect(socket, START).map_err(text)?;
        let mut card = lane(front, GUEST_RING, [GUEST_RING; 2], SIZE - FCS)?;
        let hello = [&hop.to[..], &hop.from, &[0; SIZE - FCS - 12]].concat();
        let write = |buffer: &mut [u8]| {
            buffer[..hello.len()].copy_from_slice(&hello);
            hello.len()
        };
        card.send(1, write).map_err(text)?;
        Ok(card)
    };
    let cards = [card(&sockets[0], hops()[0])?, card(&sockets[1], hops()[1])?];
    let config = Config { hops: hops(), cost_ns, budget: BUDGET };
    GuestRouter::new(cards, &config).map_err(text)?.start().map_err(text)
}

/// Offers so much; what the I/O core had to do is its own account.
fn offer(switch: &Switch, bench: &mut Bench<'_>, mpps: f64, window: Duration) -> Result<Sample> {
    let busy = || switch.spent().map(|spent| spent.busy / 1e9);
    let before = busy()?;
    let sample = bench.offer(mpps, window)?;
    Ok(Sample { io: (busy()? - before) / window.as_secs_f64(), ..sample })
}

#[cfg(test)]
mod tests {
    use super::super::super::distance::Mode;
    use super::*;

    #[test]
    fn members_are_compared_with_one_and_the_stage_with_all_back_ends() {
        let sample = |forwarded: f64| Sample {
            offered: 1.2,
            forwarded,
            refused: 0.0,
            wasted: 0.0,
            vcpu: 0.3,
            io: 0.1,
            load: 0.1,
            late: 0.0,
            mode: Mode::Near,
        };
        let row = |figure: &str, line: &str, rates: &[f64]| {
            let points = (1..).map(f64::from).zip(rates.iter().map(|rate| vec![sample(*rate)]));
            super::super::report::row([figure, PICTURE, line], &points.collect::<Vec<_>>(), false)
        };
        let rows = [row("18", "", &[0.1, 0.2, 0.25])];
        let of = |rows: &[Row]| -> Vec<(String, f64)> {
            summary(rows).into_iter().map(|(key, value)| (key, value.as_f64().unwrap())).collect()
        };
        assert_eq!(of(&rows), [("speedup_2".to_owned(), 2.0), ("speedup_3".to_owned(), 2.5)]);
        // The points are at numbers of members, and the paper's two beside them.
        let picture = super::super::report::draw(&rows);
        assert!(picture.contains(">members<") && picture.matches("<circle ").count() == 3 + 2, "{picture}");
        let rows = [row("19", STAGE, &[1.0, 5.0]), row("19", "", &[0.1]), row("19", "", &[0.2, 0.25])];
        let whole = ("stage_headroom_whole".to_owned(), 20.0 * SHARE);
        assert_eq!(of(&rows), [("stage_headroom".to_owned(), 20.0), whole]);
    }
}
