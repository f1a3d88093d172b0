//! What samples come to by the distance of the two processors: `modes` of a row.
//!
//! Theory of operation. A benchmark labels each sample (`distance`) and keeps the label with it. A row then
//! has a field `modes` of this type, made from its labelled samples; in JSON it is an object with a key for
//! each mode that has samples. Where a row is compared with another one, [`Modes::over`] compares samples of
//! the same mode with each other, and nothing else.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::distance::{by_mode, Mode, Spread};

/// A row's samples by mode.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct Modes(BTreeMap<Mode, OfMode>);

/// Samples of one mode.
#[derive(Clone, Debug, Serialize)]
struct OfMode {
    samples: usize,
    decile: f64,
    quartile: f64,
    median: f64,
    /// `ratio_to_…`: the median over that of the others in this mode, if they have samples in it.
    #[serde(flatten)]
    ratios: BTreeMap<&'static str, Option<f64>>,
}

impl Modes {
    /// The modes of samples that say their mode and figure.
    pub fn of<T>(samples: &[T], sample: impl Fn(&T) -> (Mode, f64)) -> Modes {
        let of_mode = |(mode, spread)| {
            let Spread { samples, decile, quartile, median } = spread;
            (mode, OfMode { samples, decile, quartile, median, ratios: BTreeMap::new() })
        };
        Modes(by_mode(samples.iter().map(sample)).into_iter().map(of_mode).collect())
    }

    /// These, with their medians over those of `theirs`, mode by mode, as `ratio_to_…`.
    pub fn over(mut self, name: &'static str, theirs: &Modes) -> Modes {
        for (mode, of) in &mut self.0 {
            of.ratios.insert(name, theirs.0.get(mode).map(|their| of.median / their.median));
        }
        self
    }

    /// The median over that of `theirs` in this mode, where both have samples in it.
    pub fn ratio(&self, mode: Mode, theirs: &Modes) -> Option<f64> {
        Some(self.0.get(&mode)?.median / theirs.0.get(&mode)?.median)
    }
}

/// A mode by its name.
impl Serialize for Mode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// Processors of a sample whose threads run wherever the scheduler puts them: `own`, if one of them has its
/// own, and the first other one that this process may use.
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
        assert_eq!((modes.ratio(Mode::Near, &theirs), modes.ratio(Mode::Far, &theirs)), (Some(2.0), None));
        assert_eq!(serde_json::to_value(Modes::default()).unwrap(), serde_json::json!({}));
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
