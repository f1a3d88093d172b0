//! What samples come to by the distance of the two processors: `modes` in JSON, and a second table for people.
//!
//! Theory of operation. A benchmark labels each sample (`distance`) and keeps the label with it. A row then has a field `modes` of
//! this type, made from its labelled samples; in JSON it is an object with a key for each mode that has samples. Where a row is
//! compared with another one, [`Modes::over`] compares samples of the same mode with each other, and nothing else.

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::distance::{by_mode, ratios, told, Mode, Spread, HEAD};

/// A row's samples by mode.
#[derive(Clone, Debug, Default)]
pub struct Modes {
    spreads: Vec<(Mode, Spread)>,
    /// The name of a ratio, and for each mode the median over that of the others in it.
    ratio: Option<(&'static str, Vec<Option<f64>>)>,
}

impl Modes {
    /// Of samples that say their mode and figure.
    pub fn of<T>(samples: &[T], sample: impl Fn(&T) -> (Mode, f64)) -> Modes {
        Modes { spreads: by_mode(samples.iter().map(sample)), ratio: None }
    }

    /// The same with its medians over those of `theirs`, mode by mode, as `ratio_to_…`.
    pub fn over(self, name: &'static str, theirs: &Modes) -> Modes {
        let each = ratios(&self.spreads, &theirs.spreads);
        Modes { ratio: Some((name, each)), ..self }
    }

    /// The median over that of `theirs` in this mode, where both have samples in it.
    pub fn ratio(&self, mode: Mode, theirs: &Modes) -> Option<f64> {
        let place = self.spreads.iter().position(|(of, _)| *of == mode)?;
        ratios(&self.spreads, &theirs.spreads).get(place).copied().flatten()
    }

    /// For people, in units of `unit`: `near 24.10 / 25.00 / 31.20 (3), far 10.20 / 10.20 / 10.20 (1); near: 1.90 × testpmd`.
    pub fn told_in(&self, unit: f64) -> String {
        let scaled = |(mode, of): &(Mode, Spread)| {
            let [decile, quartile, median] = [of.decile, of.quartile, of.median].map(|figure| figure / unit);
            (*mode, Spread { samples: of.samples, decile, quartile, median })
        };
        let mut text = told(&self.spreads.iter().map(scaled).collect::<Vec<_>>());
        if let Some((name, ratios)) = &self.ratio {
            let whom = name.trim_start_matches("ratio_to_").replace('_', " ");
            for ((mode, _), ratio) in self.spreads.iter().zip(ratios) {
                if let Some(ratio) = ratio {
                    text += &format!("; {}: {ratio:.2} × {whom}", mode.name());
                }
            }
        }
        text
    }

    /// The same in the unit of the samples.
    pub fn told(&self) -> String {
        self.told_in(1.0)
    }
}

/// A mode by its name.
impl Serialize for Mode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl Serialize for Modes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.spreads.len()))?;
        for (place, (mode, of)) in self.spreads.iter().enumerate() {
            let Spread { samples, decile, quartile, median } = of;
            let mut of = serde_json::json!({
                "samples": samples, "decile": decile, "quartile": quartile, "median": median
            });
            if let Some((name, ratios)) = &self.ratio {
                of[*name] = ratios.get(place).copied().flatten().into();
            }
            map.serialize_entry(mode.name(), &of)?;
        }
        map.end()
    }
}

/// The second table: what its figures are, and a line for each row, which begins as that of the first table.
pub fn table<'a>(unit: &str, rows: impl IntoIterator<Item = (String, &'a Modes)>) -> String {
    let mut text = format!("{unit}, {HEAD}\n");
    for (row, modes) in rows {
        text += &format!("{row}  {}\n", modes.told());
    }
    text
}

/// Processors of a sample whose threads run wherever the scheduler puts them: `own`, if one of them has its own, and the first
/// other one that this process may use.
pub fn anywhere(own: Option<usize>) -> Vec<usize> {
    let allowed = rustix::thread::sched_getaffinity(None);
    let allowed =
        (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| allowed.as_ref().is_ok_and(|set| set.is_set(*cpu)));
    let mut cpus: Vec<usize> = own.into_iter().collect();
    cpus.extend(allowed.filter(|cpu| Some(*cpu) != own).take(2 - cpus.len()));
    cpus
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_one_mode_are_compared_with_each_other() {
        let ours = [(Mode::Near, 30.0), (Mode::Near, 40.0), (Mode::Near, 50.0), (Mode::Far, 12.0)];
        let theirs = [(Mode::Near, 20.0), (Mode::Mixed, 11.0)];
        let theirs = Modes::of(&theirs, |sample| *sample);
        let modes = Modes::of(&ours, |sample| *sample).over("ratio_to_all_others", &theirs);
        assert_eq!(
            serde_json::to_value(&modes).unwrap(),
            serde_json::json!({
                "near": { "samples": 3, "decile": 32.0, "quartile": 35.0, "median": 40.0, "ratio_to_all_others": 2.0 },
                "far": { "samples": 1, "decile": 12.0, "quartile": 12.0, "median": 12.0, "ratio_to_all_others": null },
            })
        );
        let told = "near 3.20 / 3.50 / 4.00 (3), far 1.20 / 1.20 / 1.20 (1); near: 2.00 × all others";
        assert_eq!(modes.told_in(10.0), told);
        assert_eq!((modes.ratio(Mode::Near, &theirs), modes.ratio(Mode::Far, &theirs)), (Some(2.0), None));
        assert_eq!(serde_json::to_value(Modes::default()).unwrap(), serde_json::json!({}));
        assert!(table("Mpps", [("64".to_owned(), &theirs)])
            .ends_with("\n64  near 20.00 / 20.00 / 20.00 (1), mixed 11.00 / 11.00 / 11.00 (1)\n"));
    }

    #[test]
    fn two_processors_are_probed_where_there_are_two() {
        let two = std::thread::available_parallelism().map_or(1, usize::from).min(2);
        assert_eq!(anywhere(None).len(), two);
        let [own, ..] = anywhere(None)[..] else { panic!("this test runs nowhere") };
        assert_eq!(anywhere(Some(own)).first(), Some(&own));
        assert_eq!(anywhere(Some(own)).len(), two);
    }
}
