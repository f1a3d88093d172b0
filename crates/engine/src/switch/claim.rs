//! What the MAC table knows of a port that claims another one's address: one word.
//!
//! ```text
//! 0..11   the port's number plus one; 0: no port
//! 11..19  claims within the second `since`
//! 19      the address is held: the claim is not heeded
//! 20      somebody was told of that
//! 21      the claim is over: the home has spoken, or the address has moved from this port to its home
//! 22..25  earlier seconds in which the address was claimed, each soon before the next one; 7: or more
//! 25..44  when the claim was last heard, in seconds; if held, the number plus one of the port that claimed it before
//! 44..63  the second in which claims are counted; if held, when that began
//! ```
//!
//! Times are kept to 19 bits, 6 days; nothing here lives longer than the ageing time, a day at most.

use crate::port::PortId;

/// Claims of one address within a second that are no station which moves: a pair of VRRP routers that fails
/// over all the time moves each of its addresses once in four seconds, a loop thousands of times a second.
pub const MOVES: u64 = 10;
/// Seconds for which an address stays where it is after that.
pub const HOLD: u32 = 10;
/// Seconds between two claims, at most, of stations that use one address by turns, and earlier claims from
/// which on they do. A pair of VRRP routers takes longer to fail over (RFC 9568 §6.1: three advertisements,
/// of a second by default).
const SOON: u32 = 3;
const TURNS: u64 = 4;

const PORT: u64 = 0x7ff;
const COUNT_AT: u32 = 11;
const COUNT: u64 = 0xff;
const HELD: u64 = 1 << 19;
const TOLD: u64 = 1 << 20;
const OVER: u64 = 1 << 21;
const EARLIER_AT: u32 = 22;
const EARLIER: u64 = 7;
const HEARD_AT: u32 = 25;
const SINCE_AT: u32 = 44;
const CLOCK: u64 = (1 << 19) - 1;

/// How two ports have one address, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contest {
    /// One claims it, and the other has not spoken since.
    Lasting,
    /// Both use it by turns.
    ByTurns,
    /// It went to and fro so often that it is held.
    Held,
}

/// The port of that number plus one.
fn port_of(number: u64) -> Option<PortId> {
    u16::try_from(number.checked_sub(1)?).ok().map(PortId)
}

/// The word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim(u64);

impl Claim {
    /// No port claims it, and none did.
    pub const NONE: Claim = Claim(0);

    /// As it is stored.
    pub fn from_word(word: u64) -> Claim {
        Claim(word)
    }

    /// To store it.
    pub fn word(self) -> u64 {
        self.0
    }

    /// `now` as it is kept.
    pub fn clock(now: u32) -> u64 {
        u64::from(now) & CLOCK
    }

    /// The port that claims or claimed it.
    pub fn port(self) -> Option<PortId> {
        port_of(self.0 & PORT)
    }

    /// The port whose claim is heeded.
    pub fn claimant(self) -> Option<PortId> {
        self.port().filter(|_| self.0 & (HELD | OVER) == 0)
    }

    /// When the claim was last heard.
    pub fn heard(self) -> u64 {
        self.0 >> HEARD_AT & CLOCK
    }

    fn since(self) -> u64 {
        self.0 >> SINCE_AT & CLOCK
    }

    fn seconds(now: u32, then: u64) -> u32 {
        let passed = Claim::clock(now).wrapping_sub(then) & CLOCK;
        // A clock that another core has seen tick already is not half a period behind.
        if passed > CLOCK / 2 {
            return 0;
        }
        passed as u32
    }

    /// Seconds since the claim was last heard.
    pub fn age(self, now: u32) -> u32 {
        Claim::seconds(now, self.heard())
    }

    /// This claim, heard again.
    pub fn heard_at(self, now: u32) -> Claim {
        Claim(self.0 & !(CLOCK << HEARD_AT) | Claim::clock(now) << HEARD_AT)
    }

    /// A claim of `port`, which counts those before it.
    pub fn next(self, port: PortId, now: u32) -> Claim {
        let clock = Claim::clock(now);
        let (count, earlier) = (self.0 >> COUNT_AT & COUNT, self.0 >> EARLIER_AT & EARLIER);
        let (count, earlier) = match Claim::seconds(now, self.since()) {
            0 if count != 0 => ((count + 1).min(COUNT), earlier),
            1..=SOON if count != 0 => (1, (earlier + 1).min(EARLIER)),
            _ => (1, 0),
        };
        let times = clock << HEARD_AT | clock << SINCE_AT;
        Claim((u64::from(port.0) + 1) | count << COUNT_AT | earlier << EARLIER_AT | times)
    }

    /// What becomes of it when `port` claims the address: its claim, or if there were too many, a hold.
    pub fn claimed_by(self, port: PortId, now: u32) -> Claim {
        let claim = self.next(port, now);
        if claim.0 >> COUNT_AT & COUNT > MOVES {
            let before =
                self.port().filter(|before| *before != port).map_or(0, |before| u64::from(before.0) + 1);
            return Claim(claim.0 & (PORT | CLOCK << SINCE_AT) | before << HEARD_AT | HELD);
        }
        claim
    }

    /// No port claims it any more; which did, and how often, is kept.
    pub fn refuted(self) -> Claim {
        Claim(self.0 | OVER)
    }

    /// Whether it is the first claim in its second.
    pub fn is_first(self) -> bool {
        self.0 >> COUNT_AT & COUNT == 1
    }

    /// Whether claims are not heeded, or were not until lately.
    pub fn was_held(self) -> bool {
        self.0 & HELD != 0
    }

    /// Whether claims are not heeded now.
    pub fn is_held(self, now: u32) -> bool {
        self.0 & HELD != 0 && Claim::seconds(now, self.since()) < HOLD
    }

    /// The port whose claims are not heeded, and since when.
    pub fn held(self) -> Option<(PortId, u32)> {
        self.port()
            .filter(|_| self.0 & HELD != 0)
            .map(|port| (port, u32::try_from(self.since()).unwrap_or(0)))
    }

    /// What the operator is to know of it: the port that is beside the address's home, and a third one.
    pub fn dispute(self, now: u32) -> Option<(Contest, PortId, Option<PortId>)> {
        let port = self.port()?;
        let age = Claim::seconds(now, self.since());
        match () {
            () if self.0 & HELD != 0 => {
                (self.0 & TOLD == 0).then(|| (Contest::Held, port, port_of(self.heard() & PORT)))
            }
            () if age <= SOON && self.0 >> EARLIER_AT & EARLIER >= TURNS => {
                Some((Contest::ByTurns, port, None))
            }
            () if age > SOON && self.0 & OVER == 0 => Some((Contest::Lasting, port, None)),
            () => None,
        }
    }

    /// The operator was told.
    pub fn told(self) -> Claim {
        Claim(self.0 | TOLD)
    }
}
