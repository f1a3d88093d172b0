//! What the MAC table knows of a port that claims another one's address: one word.
//!
//! ```text
//! 0..11   the port's number plus one; 0: no port
//! 11..19  claims within the second `since`
//! 19      the address is held: the claim is not heeded
//! 20      somebody was told of that
//! 21..42  when the claim was last heard, in seconds; if held, the number plus one of the port that claimed it before
//! 42..63  the second in which claims are counted; if held, when that began
//! ```
//!
//! Times are kept to 21 bits, 24 days; nothing here lives longer than the ageing time, a day at most.

use crate::port::PortId;

/// Claims of one address within a second that are no station which moves: a pair of VRRP routers that fails over all
/// the time moves each of its addresses once in four seconds, a loop thousands of times a second.
pub const MOVES: u64 = 10;
/// Seconds for which an address stays where it is after that.
pub const HOLD: u32 = 10;

const PORT: u64 = 0x7ff;
const COUNT_AT: u32 = 11;
const COUNT: u64 = 0xff;
const HELD: u64 = 1 << 19;
const TOLD: u64 = 1 << 20;
const HEARD_AT: u32 = 21;
const SINCE_AT: u32 = 42;
const CLOCK: u64 = (1 << 21) - 1;

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
        self.port().filter(|_| self.0 & HELD == 0)
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

    /// The same claim, heard again.
    pub fn heard_at(self, now: u32) -> Claim {
        Claim(self.0 & !(CLOCK << HEARD_AT) | Claim::clock(now) << HEARD_AT)
    }

    /// What becomes of it when `port` claims the address: its claim, or if there were too many, a hold.
    pub fn claimed_by(self, port: PortId, now: u32) -> Claim {
        let clock = Claim::clock(now);
        let same = self.since() == clock && self.0 & HELD == 0;
        let count = if same { (self.0 >> COUNT_AT & COUNT) + 1 } else { 1 };
        let claim = (u64::from(port.0) + 1) | (clock << HEARD_AT) | (clock << SINCE_AT);
        if count > MOVES {
            let before = self.0 & PORT;
            return Claim(claim & !(CLOCK << HEARD_AT) | before << HEARD_AT | HELD);
        }
        Claim(claim | count << COUNT_AT)
    }

    /// No port claims it any more; how many did is kept.
    pub fn refuted(self) -> Claim {
        Claim(self.0 & (COUNT << COUNT_AT | CLOCK << SINCE_AT))
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

    /// The port whose claims are not heeded, and another one that claimed the address before, if the operator was not
    /// told.
    pub fn untold(self) -> Option<(PortId, Option<PortId>)> {
        let (port, _) = self.held().filter(|_| self.0 & TOLD == 0)?;
        Some((port, port_of(self.heard() & PORT)))
    }

    /// The operator was told.
    pub fn told(self) -> Claim {
        Claim(self.0 | TOLD)
    }
}
