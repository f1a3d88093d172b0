//! One trial: frames at a rate, and what became of each.
//!
//! Theory of operation. One thread is the sender and the receiver by turns. When a frame is due follows from
//! the time stamp counter and the rate alone, not from when the last one went: a tester that was held up does
//! not hide what a device did meanwhile (no coordinated omission). In each turn the frames that are due are
//! sent, and what has come is taken. A frame that is due and finds no room in its queue is *refused*: the
//! target was too slow to take it, as behind a full network card, and it is lost there. If more are due at
//! once than half a queue holds, it was the tester that slept: what is beyond that is *late*, was not
//! offered, and makes the trial invalid if it is more than a thousandth. Behind the last frame the receiver
//! waits until all are there or nothing has come for a while.

use hdrhistogram::Histogram;
use sidecore_driver::load::{now, seen, ticks_per_ns};

use super::super::lane::{End, Once};
use super::sink::{Came, Receiver};
use super::traffic::{Maker, Traffic};
use crate::prelude::*;
use sidecore_pktgen::end::{Lane, Result};

/// Nothing came for so long behind the last frame: what is missing is lost.
const QUIET: Duration = Duration::from_millis(50);
/// What comes later than this behind the last frame is lost in any case (RFC 2544 §23 e: two seconds for
/// residual frames).
const RESIDUAL: Duration = Duration::from_secs(2);
/// Frames that are due at once at most, if the tester was there.
const MOST_DUE: u64 = 512;
/// Frames that a turn takes at most: more than it sends, so that a tester that was late does not fill the
/// ring itself.
const TAKE: usize = 1024;
/// Part of the frames that may be late in a valid trial.
const LATE: f64 = 1e-3;
/// How often a station that has to speak during a trial does so.
const SPEAK: Duration = Duration::from_secs(5);

/// A spell at one rate.
#[derive(Clone, Copy, Debug)]
pub struct Spell {
    /// Frames a second.
    pub rate: f64,
    /// How many.
    pub frames: u64,
}

impl Spell {
    /// At this rate for so many seconds.
    pub fn of(rate: f64, seconds: f64) -> Spell {
        Spell { rate, frames: whole((rate * seconds).round().max(1.0)) }
    }
}

/// What came of a trial.
#[derive(Clone, Debug, Default)]
pub struct Trial {
    /// Frames that were asked for.
    pub asked: u64,
    /// What became of them: not offered, since the tester came late; refused, since the queue was full; sent.
    pub late: u64,
    pub refused: u64,
    pub sent: u64,
    pub came: Came,
    /// From the first to the last frame that was due.
    pub seconds: f64,
    /// Share of the time in which the tester had something to do.
    pub busy: f64,
    /// Delays in units of 16 ticks.
    pub delays: Option<Histogram<u64>>,
    /// When the first and the last frame came, in ticks.
    pub first: Option<u64>,
    pub last: Option<u64>,
    /// Nanoseconds from when the last spell began until the last frame was refused, or came behind a gap.
    pub last_loss_ns: f64,
}

impl Trial {
    /// Frames that were offered.
    pub fn offered(&self) -> u64 {
        self.asked - self.late
    }

    /// Frames that were offered and did not arrive.
    pub fn lost(&self) -> u64 {
        (self.refused + self.sent).saturating_sub(self.came.frames)
    }

    /// Their part of those that were offered.
    pub fn loss_ratio(&self) -> f64 {
        self.lost() as f64 / self.offered().max(1) as f64
    }

    /// Whether the tester offered what it was asked for.
    pub fn is_valid(&self) -> bool {
        self.late as f64 <= LATE * self.asked as f64
    }
}

/// The two ends of a path, and what makes and reads the frames between them.
pub struct Tester<'t> {
    traffic: &'t Traffic,
    from: End,
    /// None: what is sent comes back at the same end.
    to: Option<End>,
    per_ns: f64,
    /// Number of the last trial: never 0, which empty memory says.
    number: u16,
    /// What the receiver has to say now and then, so that a router knows it.
    hello: Option<Vec<u8>>,
    /// It sleeps for so long behind each turn, as its processor has other work.
    nap: Option<Duration>,
}

impl<'t> Tester<'t> {
    /// Between these ends.
    pub fn new(traffic: &'t Traffic, from: End, to: Option<End>, hello: Option<Vec<u8>>) -> Tester<'t> {
        Tester { traffic, from, to, per_ns: ticks_per_ns(), number: 0, hello, nap: None }
    }

    /// From now on it sleeps for so long behind each turn.
    pub fn naps(&mut self, nap: Duration) {
        self.nap = Some(nap);
    }

    /// Both ends.
    pub fn ends(&mut self) -> (&mut End, Option<&mut End>) {
        (&mut self.from, self.to.as_mut())
    }

    /// Nanoseconds of that many ticks.
    pub fn ns(&self, ticks: u64) -> f64 {
        ticks as f64 / self.per_ns
    }

    /// Microseconds of a delay, which has units of 16 ticks.
    pub fn us(&self, units: u64) -> f64 {
        self.ns(16 * units) / 1e3
    }

    /// Ticks of a nanosecond.
    pub fn per_ns(&self) -> f64 {
        self.per_ns
    }

    /// The receiver makes itself known.
    pub fn speak(&mut self) -> Result<()> {
        if let (Some(hello), Some(to)) = (&self.hello, &mut self.to) {
            if to.room()? > 0 {
                to.send(1, &mut Once(hello))?;
            }
        }
        Ok(())
    }

    /// Sends single frames both ways until the receiver gets them: stations are known then, and links up.
    pub fn connect(&mut self, limit: Duration) -> Result<()> {
        until("frames arrive", limit, Duration::ZERO, || {
            self.speak()?;
            let trial = self.run(&[Spell { rate: 1e4, frames: 8 }], false)?;
            Ok((trial.came.frames == trial.sent && trial.lost() == 0).then_some(()))
        })
    }

    /// A trial of these spells, one behind the other.
    pub fn run(&mut self, spells: &[Spell], delays: bool) -> Result<Trial> {
        self.run_with(spells, delays, || ())
    }

    /// As [`run`](Self::run), and calls `behind` when the last frame was due, before it waits for what is
    /// still on its way.
    pub fn run_with(&mut self, spells: &[Spell], delays: bool, behind: impl FnOnce()) -> Result<Trial> {
        self.number = self.number.checked_add(1).unwrap_or(1);
        let mut maker = Maker::new(self.traffic, self.number);
        let mut receiver = Receiver::new(self.traffic, self.number, delays.then_some(seen))?;
        let mut trial = Trial::default();
        let (begun, mut busy) = (now(), 0);
        let mut spoken = begun;
        let mut last_refused = 0.0;
        let mut start = begun;
        for spell in spells {
            let gap = self.per_ns * 1e9 / spell.rate;
            start = now();
            (maker.start, maker.due, maker.gap) = (start, 0.0, gap);
            last_refused = 0.0;
            let mut done = 0;
            let mut turn = start;
            while done < spell.frames {
                let due = whole((turn - start) as f64 / gap) + 1;
                let mut waiting = due.min(spell.frames) - done.min(due);
                if waiting > MOST_DUE {
                    let late = waiting - MOST_DUE;
                    maker.skip(late);
                    (trial.late, done, waiting) = (trial.late + late, done + late, MOST_DUE);
                }
                let mut worked = false;
                if waiting > 0 {
                    let room = self.from.room()? as u64;
                    if room < waiting {
                        // The oldest go; the others are refused.
                        last_refused = maker.due + gap * waiting as f64;
                    }
                    let mut allowed = waiting.min(room);
                    let mut sent = 0;
                    while allowed > 0 {
                        let taken =
                            self.from.send(usize::try_from(allowed).unwrap_or(usize::MAX), &mut maker)?;
                        if taken.frames == 0 {
                            break;
                        }
                        (allowed, sent) = (allowed - taken.frames as u64, sent + taken.frames as u64);
                    }
                    maker.skip(waiting - sent);
                    (trial.sent, trial.refused) = (trial.sent + sent, trial.refused + waiting - sent);
                    done += waiting;
                    worked = true;
                }
                let at = now();
                worked |= self.take(&mut receiver, at)? > 0;
                let after = now();
                if worked {
                    busy += after - turn;
                }
                turn = after;
                if let Some(nap) = self.nap {
                    std::thread::sleep(nap);
                    turn = now();
                }
                if self.hello.is_some() && self.ns(turn - spoken) > SPEAK.as_nanos() as f64 {
                    spoken = turn;
                    self.speak()?;
                }
            }
            trial.asked += spell.frames;
        }
        let end = now();
        behind();
        (trial.seconds, trial.busy) = (self.ns(end - begun) / 1e9, busy as f64 / (end - begun).max(1) as f64);
        self.residual(&mut receiver, trial.sent)?;
        trial.came = receiver.came;
        (trial.first, trial.last) = (receiver.first, receiver.last);
        let gap_ends = receiver.after_gap.map_or(0.0, |at| at.saturating_sub(start) as f64);
        trial.last_loss_ns = gap_ends.max(last_refused) / self.per_ns;
        trial.delays = receiver.into_delays();
        Ok(trial)
    }

    /// Takes what has come by `at`; how many frames.
    #[inline]
    fn take(&mut self, receiver: &mut Receiver<'_>, at: u64) -> Result<usize> {
        receiver.at(at);
        let taken = match &mut self.to {
            Some(to) => {
                // What comes back to the sender, an answer or a flood, makes room again.
                to.receive(TAKE, receiver)?
            }
            None => self.from.receive(TAKE, receiver)?,
        };
        Ok(taken.frames)
    }

    /// Takes what is on its way behind the last of `sent` frames.
    fn residual(&mut self, receiver: &mut Receiver<'_>, sent: u64) -> Result<()> {
        let start = Instant::now();
        let mut heard = start;
        while start.elapsed() < RESIDUAL {
            // In this order: what the target has given back it has delivered before.
            let drained = self.from.is_drained()?;
            if self.take(receiver, now())? > 0 {
                heard = Instant::now();
            } else if drained && (receiver.came.frames >= sent || heard.elapsed() > QUIET) {
                break;
            }
            if heard.elapsed() > QUIET / 10 {
                // The target may share this processor, and be in a lower class.
                match self.nap {
                    Some(nap) => std::thread::sleep(nap),
                    None => std::thread::yield_now(),
                }
            }
        }
        // Frames that came to the sender are not counted.
        if self.to.is_some() {
            while self.from.receive(TAKE, &mut Nobody)?.frames > 0 {}
        }
        Ok(())
    }
}

/// Throws away.
struct Nobody;

impl sidecore_pktgen::end::Sink for Nobody {
    const READS: bool = true;

    fn frame(&mut self, _: &[u8]) {}
}

#[cfg(test)]
mod tests {
    use super::super::super::target::Stations;
    use super::super::traffic::Lengths;
    use super::*;

    fn traffic(lengths: &Lengths) -> Traffic {
        let stations = Stations { from: [2; 6], to: [4; 6] };
        Traffic::new(lengths, stations, 5, [None, None]).unwrap()
    }

    #[test]
    fn a_bare_ring_loses_nothing_and_every_frame_is_accounted_for() {
        for lengths in [Lengths::Fixed(64), Lengths::Fixed(1518), Lengths::Imix] {
            let traffic = traffic(&lengths);
            let mut tester = Tester::new(&traffic, End::Bare(Box::default()), None, None);
            tester.connect(Duration::from_secs(5)).unwrap();
            let trial = tester.run(&[Spell::of(2e5, 0.05)], true).unwrap();
            assert_eq!((trial.asked, trial.refused, trial.lost()), (10_000, 0, 0), "{trial:?}");
            assert_eq!(trial.sent + trial.late, 10_000);
            assert_eq!(trial.came, Came { frames: trial.sent, ..Came::default() });
            assert_eq!(trial.delays.as_ref().map(Histogram::len), Some(trial.sent));
            assert!(trial.seconds >= 0.049, "it took the time that its rate says: {trial:?}");
            assert_eq!(trial.last_loss_ns, 0.0);
        }
    }

    #[test]
    fn spells_follow_one_another() {
        let traffic = traffic(&Lengths::Fixed(64));
        let mut tester = Tester::new(&traffic, End::Bare(Box::default()), None, None);
        let trial = tester.run(&[Spell::of(1e5, 0.01), Spell::of(5e4, 0.01)], false).unwrap();
        assert_eq!((trial.asked, trial.lost(), trial.loss_ratio()), (1500, 0, 0.0));
        assert!(trial.delays.is_none() && trial.last > trial.first);
    }
}
