//! What a tenant or a port is granted of the I/O cores, as options: a budget, rates, and all that a tenant
//! has.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;

use super::values::{in_units, scaled, texts, Number, Toggle};
use crate::core::{Class, CpuBudget, MOST_RESERVED};
use crate::util::form::{forms, options, read_as_word, write_as_text, Form, Key, Scope};

/// Millionths of a core in a percent.
pub(super) const PERCENT: u64 = 10_000;
/// The period of a budget that is written in percent, in microseconds.
const USUAL_PERIOD: u32 = 5_000;
/// Shortest and longest period.
const PERIODS: std::ops::RangeInclusive<u32> = 1_000..=1_000_000;
/// Least runtime in microseconds: less is used up by a single visit.
const LEAST_RUNTIME: u32 = 10;

/// A part of a core: `20%`, or a runtime in each period, such as `2ms/10ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    runtime_us: u32,
    period_us: u32,
}

impl Budget {
    /// Its part of a core, in millionths.
    pub fn share(self) -> u64 {
        u64::from(self.runtime_us) * 1_000_000 / u64::from(self.period_us)
    }

    /// The budget as the cores take it.
    pub(super) fn on_a_core(self, reclaim: bool) -> CpuBudget {
        let [runtime, period] = [self.runtime_us, self.period_us].map(|us| Duration::from_micros(us.into()));
        CpuBudget { runtime, period, reclaim }
    }

    fn read(text: &str) -> Option<(u32, u32)> {
        if let Some(percent) = text.strip_suffix('%') {
            let (whole, tenth) = percent.split_once('.').unwrap_or((percent, "0"));
            let digits = |part: &str, most| (1..=most).contains(&part.len()) && is_number(part);
            if !digits(whole, 3) || !digits(tenth, 1) {
                return None;
            }
            let tenths = whole.parse::<u32>().ok()? * 10 + tenth.parse::<u32>().ok()?;
            return Some((tenths * (USUAL_PERIOD / 1_000), USUAL_PERIOD));
        }
        let (runtime, period) = text.split_once('/')?;
        Some((microseconds(runtime)?, microseconds(period)?))
    }
}

fn is_number(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit())
}

fn microseconds(text: &str) -> Option<u32> {
    let (number, unit) = match (text.strip_suffix("ms"), text.strip_suffix("us")) {
        (Some(number), _) => (number, 1_000),
        (None, number) => (number?, 1),
    };
    is_number(number).then(|| number.parse::<u32>().ok()?.checked_mul(unit)).flatten()
}

impl FromStr for Budget {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let most = MOST_RESERVED / PERCENT;
        let no = |why: String| {
            Err(format!(
                "{text:?} is not allowed{why}; allowed: a part of one core up to {most}%, or a runtime from \
                 {LEAST_RUNTIME}us in each period from 1ms to 1000ms, such as 2ms/10ms"
            ))
        };
        let Some((runtime_us, period_us)) = Budget::read(text) else { return no(String::new()) };
        let budget = Budget { runtime_us, period_us };
        if !PERIODS.contains(&period_us) || runtime_us < LEAST_RUNTIME {
            return no(String::new());
        }
        match budget.share() {
            share if share > 1_000_000 => no(": it is more than a core".to_owned()),
            share if share > MOST_RESERVED => no(format!(
                ": {}% of each core are kept for changes and for a visit of another port between two of this one",
                100 - most
            )),
            _ => Ok(budget),
        }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenth = USUAL_PERIOD / 1_000;
        if self.period_us == USUAL_PERIOD && self.runtime_us % tenth == 0 {
            return write!(f, "{}%", Tenths((self.runtime_us / tenth).into()));
        }
        let time = |us: u32| match us % 1_000 {
            0 => format!("{}ms", us / 1_000),
            _ => format!("{us}us"),
        };
        write!(f, "{}/{}", time(self.runtime_us), time(self.period_us))
    }
}

/// A number of tenths, without a point where it needs none.
pub(super) struct Tenths(pub(super) u64);

impl fmt::Display for Tenths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 % 10 {
            0 => write!(f, "{}", self.0 / 10),
            tenth => write!(f, "{}.{tenth}", self.0 / 10),
        }
    }
}

/// What stands behind a number, and what it is multiplied by.
const UNITS: [(char, u64); 3] = [('k', 1_000), ('M', 1_000_000), ('G', 1_000_000_000)];

/// A whole number from 1 to `MAX`, in the first `KNOWN` of [`UNITS`] or in none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount<const KNOWN: usize, const MAX: u64>(u64);

/// Frames a second.
pub type Frames = Amount<2, 1_000_000_000>;
/// Bits a second.
pub type Bits = Amount<3, 1_000_000_000_000>;

impl<const KNOWN: usize, const MAX: u64> Amount<KNOWN, MAX> {
    /// The number.
    pub(super) fn get(self) -> u64 {
        self.0
    }
}

impl<const KNOWN: usize, const MAX: u64> FromStr for Amount<KNOWN, MAX> {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let units = &UNITS[..KNOWN];
        match scaled(text, units) {
            Some(n) if (1..=MAX).contains(&n) => Ok(Amount(n)),
            _ => {
                let letters: Vec<_> = units.iter().map(|(letter, _)| letter.to_string()).collect();
                Err(format!(
                    "{text:?} is not allowed; allowed: a whole number from 1 to {}, with {} behind it for thousands and so on",
                    Amount::<KNOWN, MAX>(MAX),
                    letters.join(", ")
                ))
            }
        }
    }
}

impl<const KNOWN: usize, const MAX: u64> fmt::Display for Amount<KNOWN, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&in_units(self.0, &UNITS[..KNOWN]))
    }
}

read_as_word!(Budget, Amount<KNOWN, MAX> [const KNOWN: usize, const MAX: u64]);
write_as_text!(Budget, Amount<KNOWN, MAX> [const KNOWN: usize, const MAX: u64]);

options! {
    /// One tenant.
    TenantSpec {
        must {
            /// Its name: 1 to 63 letters, digits, `.`, `_` and `-`.
            name: String = "name";
        }
        may {
            /// How urgent the work of its ports is.
            class: Class = "class", Any, "`throughput`";
            /// Its share of an I/O core beside other tenants, and ports without one, that have work.
            weight: Number<1, 1000> = "weight", Any, "100";
            /// The share of one I/O core that its ports together are guaranteed and limited to. All their
            /// queues are on that core then.
            budget: Budget = "budget", Any, "none: its share by weight";
            /// Whether it may use, beyond its budget, time that others leave.
            reclaim: Toggle = "reclaim", Any, "`off`";
            /// Most frames and requests a second that are taken from its ports together.
            rate: Frames = "rate", Any, "no limit";
            /// Most bits a second of the frames and requests that are taken from its ports together.
            bit_rate: Bits = "bit-rate", Any, "no limit";
        }
    }
}

/// Processors, in the order in which they were given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cpus(pub Vec<usize>);

/// Numbers from this on are no processor's on any machine; a range must not fill the memory.
const MOST_CPUS: usize = 8192;

texts! {
    Cpus = Form::List("CPU", &Form::Number(0, 8191), ','), {
        read: |text| {
            let number = |text: &str| text.trim().parse().ok().filter(|cpu: &usize| *cpu < MOST_CPUS);
            let mut cpus = Vec::new();
            // A list in TOML or JSON comes with '+' between its numbers.
            for part in text.split([',', '+']) {
                let (first, last) = part.split_once('-').unwrap_or((part, part));
                let range = number(first)?..=number(last)?;
                if range.is_empty() {
                    return None;
                }
                cpus.extend(range);
            }
            Some(Cpus(cpus))
        },
        allowed: "numbers of processors and ranges, such as 2,3 or 4-7",
    }
}

forms! {
    Budget = Form::Text("N%|RUNTIME/PERIOD", "20%");
    Frames = Form::Text("N[k|M]", "200k");
    Bits = Form::Text("N[k|M|G]", "1G");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_read_and_written() {
        for (text, share, written) in [
            ("20%", 200_000, "20%"),
            ("12.5%", 125_000, "12.5%"),
            ("95%", 950_000, "95%"),
            ("0.2%", 2_000, "0.2%"),
            ("1ms/5ms", 200_000, "20%"),
            ("2ms/10ms", 200_000, "2ms/10ms"),
            ("500us/5ms", 100_000, "10%"),
            ("12us/1000us", 12_000, "12us/1ms"),
            ("95ms/100ms", 950_000, "95ms/100ms"),
            ("70ms/200ms", 350_000, "70ms/200ms"),
        ] {
            let budget: Budget = text.parse().unwrap();
            assert_eq!((budget.share(), budget.to_string().as_str()), (share, written), "{text}");
            assert_eq!(written.parse(), Ok(budget));
        }
        for (text, why) in [
            ("101%", "more than a core"),
            ("100%", "5% of each core are kept"),
            ("95.1%", "are kept"),
            ("9.6ms/10ms", "allowed: "),
            ("96ms/100ms", "are kept"),
            ("20ms/10ms", "more than a core"),
            ("0%", "from 10us"),
            ("9us/5ms", "from 10us"),
            ("1ms/1001ms", "to 1000ms"),
            ("20us/999us", "from 1ms"),
            ("20", "up to 95%"),
            ("", "up to 95%"),
            ("%", "up to 95%"),
            ("-1%", "up to 95%"),
            ("+1%", "up to 95%"),
            ("1/2", "up to 95%"),
            ("4294967295ms/5ms", "up to 95%"),
            ("ms/ms", "up to 95%"),
        ] {
            let told = text.parse::<Budget>().unwrap_err();
            assert!(told.contains(why) && told.starts_with(&format!("{text:?} is not allowed")), "{told}");
        }
    }

    #[test]
    fn ranges_of_processors_are_the_numbers_in_them() {
        let of = |text: &str| text.parse::<Cpus>().map(|cpus| cpus.0);
        assert_eq!(of("0-3,6"), Ok(vec![0, 1, 2, 3, 6]));
        assert_eq!(of("5"), Ok(vec![5]));
        for bad in ["", "a", "3-1", "0-", "-1", "0-9999999999", "1.."] {
            assert!(of(bad).is_err_and(|why| why.contains("4-7")), "{bad}");
        }
        let read = |json: &str| serde_json::from_str::<Cpus>(json).ok().map(|cpus| cpus.0);
        assert_eq!(read("[1, 2]"), Some(vec![1, 2]));
        assert_eq!(read("\"1-2\""), Some(vec![1, 2]));
        assert_eq!(read("7"), Some(vec![7]));
        assert_eq!(read("true"), None);
        assert_eq!(read("[8192]"), None);
    }

    #[test]
    fn rates_are_read_and_written() {
        for (text, number, written) in
            [("1", 1, "1"), ("200k", 200_000, "200k"), ("1500", 1_500, "1500"), ("3000k", 3_000_000, "3M")]
        {
            let rate: Frames = text.parse().unwrap();
            assert_eq!((rate.0, rate.to_string().as_str()), (number, written));
        }
        assert_eq!("1000G".parse::<Bits>().map(|rate| rate.0), Ok(1_000_000_000_000));
        for text in [
            "0",
            "0k",
            "",
            "k",
            "1kk",
            "1G",
            "-1",
            "1.5k",
            "1001M",
            "99999999999999999999",
            "18446744073709551615k",
        ] {
            assert!(
                text.parse::<Frames>().unwrap_err().contains("from 1 to 1000M, with k, M behind"),
                "{text}"
            );
        }
    }
}
