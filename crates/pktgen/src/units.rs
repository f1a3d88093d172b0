//! Numbers as pkt-gen's users write and read them: 14.88M in, `14.880 M` out.

use std::str::FromStr;

/// A count, perhaps written with K, M or G.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count(pub u64);

impl FromStr for Count {
    type Err = String;

    fn from_str(text: &str) -> Result<Count, String> {
        let (digits, unit) = match text.char_indices().next_back() {
            Some((at, 'k' | 'K')) => (&text[..at], 1000.0),
            Some((at, 'm' | 'M')) => (&text[..at], 1e6),
            Some((at, 'g' | 'G')) => (&text[..at], 1e9),
            _ => (text, 1.0),
        };
        if let (Ok(whole), 1.0) = (digits.parse(), unit) {
            return Ok(Count(whole));
        }
        let bad = || format!("{text:?} is not a number like 1000, 10K, 1.5M or 2G");
        let number = digits.parse::<f64>().map_err(|_| bad())? * unit;
        if !(0.0..=1e18).contains(&number) || number.fract() != 0.0 {
            return Err(bad());
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and in range")]
        Ok(Count(number as u64))
    }
}

/// `value` with three digits behind the point and K, M, G or T, then `unit`; without those letters if
/// `plain`.
pub fn scaled(value: f64, unit: &str, plain: bool) -> String {
    if plain {
        return format!("{value:.0} {unit}");
    }
    let steps = ["", "K", "M", "G", "T"];
    let (mut value, mut step) = (value, 0);
    while value >= 1000.0 && step + 1 < steps.len() {
        value /= 1000.0;
        step += 1;
    }
    format!("{value:.3} {}{unit}", steps[step])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_and_written() {
        let read = |text: &str| text.parse::<Count>().map(|c| c.0);
        assert_eq!(read("0"), Ok(0));
        assert_eq!(read("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(read("1.5M"), Ok(1_500_000));
        assert_eq!(read("14.88M"), Ok(14_880_000));
        assert_eq!(read("2g"), Ok(2_000_000_000));
        for bad in ["", "K", "-1", "1.5", "1e30G", "x", "NaN"] {
            assert!(read(bad).is_err(), "{bad}");
        }
        assert_eq!(scaled(14_880_000.0, "pps", false), "14.880 Mpps");
        assert_eq!(scaled(999.0, "pps", false), "999.000 pps");
        assert_eq!(scaled(2e15, "bps", false), "2000.000 Tbps");
        assert_eq!(scaled(14_880_000.4, "pps", true), "14880000 pps");
    }
}
