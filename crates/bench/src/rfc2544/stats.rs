//! How sure a figure is: intervals of means of independent repetitions, ratios of pairs, and what it means
//! that nothing was lost.

use crate::prelude::*;

/// Two-sided 99 % points of Student's distribution, by degrees of freedom from 1.
const STUDENT_99: [f64; 30] = [
    63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169, 3.106, 3.055, 3.012, 2.977, 2.947,
    2.921, 2.898, 2.878, 2.861, 2.845, 2.831, 2.819, 2.807, 2.797, 2.787, 2.779, 2.771, 2.763, 2.756, 2.750,
];

/// The 99 % point for so many degrees of freedom.
fn student(freedom: usize) -> f64 {
    match freedom.checked_sub(1).and_then(|place| STUDENT_99.get(place)) {
        Some(value) => *value,
        None if freedom == 0 => f64::INFINITY,
        None => {
            // Its expansion around the normal distribution's point: four digits from 30 on.
            let (z, n) = (2.575_829f64, freedom as f64);
            z + (z.powi(3) + z) / (4.0 * n) + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * n * n)
        }
    }
}

/// A value by independent repetitions.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figure {
    /// Mean, and half the width of its 99 % interval; none if there is one repetition only.
    pub mean: f64,
    pub ci99: Option<f64>,
    pub median: f64,
    pub min: f64,
    pub max: f64,
    /// All, in the order of the repetitions.
    pub samples: Vec<f64>,
}

impl Figure {
    /// The figure of these repetitions. None: there is none.
    pub fn of(samples: impl IntoIterator<Item = f64>) -> Option<Figure> {
        let samples: Vec<f64> = samples.into_iter().collect();
        let mut sorted = samples.clone();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let (count, middle) = (samples.len(), sorted.len() / 2);
        let median = match count % 2 {
            1 => sorted[middle],
            _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
        };
        let mean = mean(&samples);
        let ci99 = (count > 1).then(|| student(count - 1) * deviation(&samples) / (count as f64).sqrt());
        Some(Figure { mean, ci99, median, min, max, samples })
    }
}

fn mean(samples: &[f64]) -> f64 {
    samples.iter().sum::<f64>() / samples.len().max(1) as f64
}

/// The standard deviation of what samples were drawn from.
pub fn deviation(samples: &[f64]) -> f64 {
    let mean = mean(samples);
    let squares: f64 = samples.iter().map(|it| (it - mean) * (it - mean)).sum();
    (squares / samples.len().saturating_sub(1).max(1) as f64).sqrt()
}

/// How many times as much ours is, by pairs of adjacent repetitions: the geometric mean and the ends of its
/// 99 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    pub ratio: f64,
    /// Absent with one pair only.
    pub ci99: Option<[f64; 2]>,
}

impl Ratio {
    /// The ratio of pairs; those with a zero say nothing. None: there is no other.
    pub fn of(pairs: impl IntoIterator<Item = (f64, f64)>) -> Option<Ratio> {
        let logs = pairs.into_iter().filter(|(a, b)| *a > 0.0 && *b > 0.0).map(|(a, b)| (a / b).ln());
        let figure = Figure::of(logs)?;
        let end = |half: f64| (figure.mean + half).exp();
        Some(Ratio { ratio: end(0.0), ci99: figure.ci99.map(|half| [end(-half), end(half)]) })
    }
}

/// The rule of three: with 95 % confidence no more of all frames get lost if none of so many was. Above 1 it
/// says nothing.
pub fn rule_of_three(frames: f64) -> f64 {
    (3.0 / frames.max(1.0)).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_as_wide_as_students_distribution_says() {
        let ten = Figure::of((1..=10).map(f64::from)).unwrap();
        assert_eq!((ten.mean, ten.median, ten.min, ten.max), (5.5, 5.5, 1.0, 10.0));
        // s = 3.02765, t = 3.250: 3.1115.
        assert!((ten.ci99.unwrap() - 3.1115).abs() < 1e-3, "{ten:?}");
        let one = Figure::of([4.0]).unwrap();
        assert_eq!((one.mean, one.ci99), (4.0, None), "one says nothing about how far others are");
        assert_eq!(Figure::of([]), None);
        let same = Figure::of([2.0; 5]).unwrap();
        assert_eq!(same.ci99, Some(0.0));
    }

    #[test]
    fn the_points_of_students_distribution_go_on_smoothly() {
        assert!((student(29) - student(31)).abs() < 0.02 && student(31) < student(30));
        assert!((student(60) - 2.660).abs() < 1e-3 && (student(1_000_000) - 2.5758).abs() < 1e-3);
        assert!(student(0).is_infinite());
    }

    #[test]
    fn an_interval_holds_the_truth_as_often_as_it_says() {
        let mut state = 9u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as f64 / (1u64 << 31) as f64
        };
        let mut held = 0;
        for _ in 0..2000 {
            // Sums of twelve are close to normal, around 6.
            let figure = Figure::of((0..10).map(|_| (0..12).map(|_| random()).sum())).unwrap();
            held += u32::from((figure.mean - 6.0).abs() <= figure.ci99.unwrap());
        }
        assert!((1965..=1995).contains(&held), "{held} of 2000, which should be 1980");
    }

    #[test]
    fn ratios_are_of_pairs() {
        let both = Ratio::of([(2.0, 1.0), (8.0, 1.0), (3.0, 0.0)]).unwrap();
        assert!((both.ratio - 4.0).abs() < 1e-12, "{both:?}");
        let [low, high] = both.ci99.unwrap();
        assert!(low < 1.0 && high > 16.0);
        assert_eq!(Ratio::of([(1.0, 0.0)]), None);
    }

    #[test]
    fn nothing_lost_is_a_bound() {
        assert_eq!((rule_of_three(3e6), rule_of_three(0.0)), (1e-6, 1.0));
        // 95 %: at that ratio so many frames pass without loss in one of twenty cases.
        let frames = 1e5;
        assert!(((1.0 - rule_of_three(frames)).powf(frames) - 0.05).abs() < 1e-3);
    }
}
