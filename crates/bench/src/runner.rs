//! The one runner: cases are data, and each is measured in every round by turns, so that a slow drift of the
//! machine meets all alike.
//!
//! A benchmark says what its cases are and how one of them is measured. What was measured are *figures*
//! ([`figures`]), which are declared once: for a sample, and for the row in which their medians are. A row's
//! keys and their values are declared together ([`row`]). What is made in one place only is declared there
//! ([`fields`]). Values that have names are declared with them
//! ([`named`]).

use std::collections::BTreeMap;
use std::fmt;

use super::common::Result;

/// A round, as the benchmark tells of it: `round 2/5`.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// From 1 on.
    pub number: u16,
    of: u16,
}

impl Round {
    /// All of them.
    pub fn all(of: u16) -> impl Iterator<Item = Round> {
        (1..=of).map(move |number| Round { number, of })
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "round {}/{}", self.number, self.of)
    }
}

/// Measures each case in every round, in their order. Of each the samples of all rounds.
///
/// # Errors
/// The first one.
pub fn by_turns<C, S>(
    rounds: u16,
    cases: &[C],
    mut measure: impl FnMut(Round, &C) -> Result<S>,
) -> Result<Vec<Vec<S>>> {
    let mut samples: Vec<Vec<S>> = cases.iter().map(|_| Vec::new()).collect();
    for round in Round::all(rounds) {
        for (case, of_case) in cases.iter().zip(&mut samples) {
            of_case.push(measure(round, case)?);
        }
    }
    Ok(samples)
}

/// By case and measurement, the samples of all rounds.
pub type Samples<S> = Vec<Vec<Vec<S>>>;

/// As [`by_turns`], where a case is started once in a round for several measurements: samples by case and
/// measurement.
///
/// # Errors
/// The first one.
pub fn in_parts<C, S>(
    rounds: u16,
    cases: &[C],
    measure: impl FnMut(Round, &C) -> Result<Vec<S>>,
) -> Result<Samples<S>> {
    let turned = |of_rounds: Vec<Vec<S>>| {
        let mut all: Vec<Vec<S>> = Vec::new();
        for of_round in of_rounds {
            all.resize_with(all.len().max(of_round.len()), Vec::new);
            all.iter_mut().zip(of_round).for_each(|(of_part, sample)| of_part.push(sample));
        }
        all
    };
    Ok(by_turns(rounds, cases, measure)?.into_iter().map(turned).collect())
}

/// As [`in_parts`], where peers may be missing: one that fails takes no further part, has no samples, and why
/// is told by its name. `name` also says whether a case is a peer.
///
/// # Errors
/// The first one of a case that is none.
pub fn beside_peers<C, S>(
    rounds: u16,
    cases: &[C],
    name: impl Fn(&C) -> (&'static str, bool),
    mut measure: impl FnMut(Round, &C) -> Result<Vec<S>>,
) -> Result<(Samples<S>, BTreeMap<&'static str, String>)> {
    let mut missing = BTreeMap::new();
    let mut samples = in_parts(rounds, cases, |round, case| {
        let (name, is_peer) = name(case);
        if missing.contains_key(name) {
            return Ok(Vec::new());
        }
        measure(round, case).map_err(|why| format!("{name}: {why}")).or_else(|why| match is_peer {
            true => {
                eprintln!("{why}");
                // What it printed itself stays out of the table.
                missing.insert(name, why.lines().next().unwrap_or_default().to_owned());
                Ok(Vec::new())
            }
            false => Err(why),
        })
    })?;
    // Rounds of others would be compared with what it had in fewer.
    let failed = cases.iter().zip(&mut samples).filter(|(case, _)| missing.contains_key(name(case).0));
    failed.for_each(|(_, of)| of.clear());
    Ok((samples, missing))
}

/// Declares what a sample says: figures, whose medians are a row's, and behind a semicolon counts, whose sums
/// are.
macro_rules! figures {
    ($(#[$about:meta])* $vis:vis struct $name:ident {
        $($(#[$of:meta])* $key:ident),* $(; $($(#[$of_count:meta])* $count:ident),*)? $(,)?
    }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
        $vis struct $name {
            $($(#[$of])* pub $key: f64,)*
            $($($(#[$of_count])* pub $count: u64,)*)?
        }

        impl $name {
            /// Medians of figures and sums of counts.
            $vis fn of<'s>(samples: impl Iterator<Item = &'s $name> + Clone) -> $name {
                $name {
                    $($key: $crate::common::median(samples.clone().map(|it| it.$key)),)*
                    $($($count: samples.clone().map(|it| it.$count).sum(),)*)?
                }
            }
        }
    };
}
pub(crate) use figures;

/// A row of a table whose keys, types and values are declared together. The function, which stands in front,
/// makes the row: what it does first is in its body.
macro_rules! row {
    (
        $(#[$of_function:meta])*
        $reach:vis fn $make:ident $(<$life:lifetime>)? ($($given:ident: $type:ty),* $(,)?) -> $made:ty {
            $($first:tt)*
        }

        $(#[$about:meta])*
        $vis:vis struct $name:ident {
            $($(#[$of:meta])* $seen:vis $key:ident: $kind:ty = $value:expr),+ $(,)?
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug, serde::Serialize)]
        $vis struct $name {
            $($(#[$of])* $seen $key: $kind),+
        }

        $(#[$of_function])*
        $reach fn $make $(<$life>)? ($($given: $type),*) -> $made {
            $($first)*
            <$made>::from($name { $($key: $value),+ })
        }
    };
}
pub(crate) use row;

/// A struct that is declared where it is made, for JSON and tables: its keys in this order.
macro_rules! fields {
    ($($(#[$of:meta])* $key:ident $(: $value:expr)?),+ $(,)?) => {{
        #[allow(non_camel_case_types, reason = "a type for each key, of its name")]
        mod declared {
            #[derive(Clone, Debug, serde::Serialize)]
            pub struct Fields<$($key),+> {
                $($(#[$of])* pub $key: $key),+
            }
        }
        declared::Fields { $($key $(: $value)?),+ }
    }};
}
pub(crate) use fields;

/// An enumeration whose values have names, in tables and JSON.
macro_rules! named {
    ($(#[$about:meta])* $vis:vis enum $name:ident { $($(#[$of:meta])* $value:ident = $text:literal),+ $(,)? }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis enum $name {
            $($(#[$of])* $value),+
        }

        impl $name {
            /// All of them.
            #[allow(dead_code, reason = "most are gone through, or named")]
            $vis const ALL: [$name; [$($text),+].len()] = [$($name::$value),+];

            /// Its name.
            $vis const fn name(self) -> &'static str {
                match self {
                    $($name::$value => $text),+
                }
            }
        }
    };
}
pub(crate) use named;
