//! The processors of the I/O cores: numbers and ranges of them.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::options::{Form, Value};

/// Processors, in the order in which they were given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cpus(Vec<usize>);

/// Numbers beyond this are no processor's on any machine; a range must not fill the memory.
const MOST: usize = 8192;

impl Value for Cpus {
    const FORM: Form = Form::List("CPU", "0", ',');
}

impl From<Vec<usize>> for Cpus {
    fn from(cpus: Vec<usize>) -> Cpus {
        Cpus(cpus)
    }
}

impl Deref for Cpus {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl FromStr for Cpus {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || {
            format!("{text:?} is not allowed; allowed: numbers of processors and ranges, such as 2,3 or 4-7")
        };
        let number = |text: &str| text.trim().parse::<usize>().ok().filter(|cpu| *cpu < MOST).ok_or_else(bad);
        let mut cpus = Vec::new();
        for part in text.split(',') {
            match part.split_once('-') {
                Some((first, last)) => {
                    let (first, last) = (number(first)?, number(last)?);
                    if first > last {
                        return Err(bad());
                    }
                    cpus.extend(first..=last);
                }
                None => cpus.push(number(part)?),
            }
        }
        Ok(Cpus(cpus))
    }
}

impl<'de> Deserialize<'de> for Cpus {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Cpus;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of processors, such as [2, 3], or ranges of them, such as \"4-7\"")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Cpus, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_u64<E: serde::de::Error>(self, cpu: u64) -> Result<Cpus, E> {
                cpu.to_string().parse().map_err(E::custom)
            }
            fn visit_i64<E: serde::de::Error>(self, cpu: i64) -> Result<Cpus, E> {
                cpu.to_string().parse().map_err(E::custom)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Cpus, A::Error> {
                let mut cpus = Vec::new();
                while let Some(cpu) = list.next_element::<usize>()? {
                    cpus.push(cpu);
                }
                if let Some(cpu) = cpus.iter().find(|cpu| **cpu >= MOST) {
                    return Err(A::Error::custom(format!("there is no processor {cpu}")));
                }
                Ok(Cpus(cpus))
            }
        }
        source.deserialize_any(Either)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_the_numbers_in_them() {
        let of = |text: &str| text.parse::<Cpus>().map(|cpus| cpus.0);
        assert_eq!(of("0-3,6"), Ok(vec![0, 1, 2, 3, 6]));
        assert_eq!(of("5"), Ok(vec![5]));
        for bad in ["", "a", "3-1", "0-", "-1", "0-9999999999", "1.."] {
            assert!(of(bad).is_err_and(|why| why.contains("4-7")), "{bad}");
        }
        let read =
            |json: &str| serde_json::from_str::<Cpus>(json).map(|cpus| cpus.0).map_err(|e| e.to_string());
        assert_eq!(read("[1, 2]"), Ok(vec![1, 2]));
        assert_eq!(read("\"1-2\""), Ok(vec![1, 2]));
        assert_eq!(read("7"), Ok(vec![7]));
        assert!(read("true").is_err_and(|why| why.contains("4-7")));
    }
}
