//! The scale of an axis: which values it spans, where its marks are, and how numbers are written beside them.

/// The least and greatest value of an axis, and where its marks are.
pub(super) struct Scale {
    log: bool,
    from: f64,
    to: f64,
    pub(super) marks: Vec<f64>,
}

impl Scale {
    /// The one that holds all `values`: from zero on in round steps, or in decades. What is no number has no
    /// place on it, and nothing up to zero has one among decades.
    pub(super) fn new(log: bool, values: impl Iterator<Item = f64>) -> Scale {
        let (mut least, mut most) = (f64::MAX, 0.0f64);
        for value in values.filter(|value| value.is_finite() && (!log || *value > 0.0)) {
            (least, most) = (least.min(value), most.max(value));
        }
        if log {
            let (from, to) = (least.min(most).max(1e-12).log10().floor(), most.max(1e-12).log10().ceil());
            let to = to.max(from + 1.0);
            let mut marks = Vec::new();
            let mut at = from;
            while at <= to {
                marks.push(10f64.powf(at));
                at += 1.0;
            }
            return Scale { log, from, to, marks };
        }
        let most = if most > 0.0 { most } else { 1.0 };
        // Steps of 1, 2 or 5, five to ten of them.
        let rough = 10f64.powf((most / 5.0).log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * rough).into_iter().find(|step| most / step <= 8.0);
        let step = step.unwrap_or(most);
        let mut marks = vec![0.0];
        while marks.last().is_some_and(|last| *last < most * (1.0 - 1e-9)) {
            marks.push(marks.len() as f64 * step);
        }
        Scale { log, from: 0.0, to: marks.last().copied().unwrap_or(most), marks }
    }

    /// Where a value is between the ends: 0 to 1. `None`: it cannot be drawn.
    pub(super) fn place(&self, value: f64) -> Option<f64> {
        let value = if self.log { (value > 0.0).then(|| value.log10())? } else { value };
        value.is_finite().then(|| (value - self.from) / (self.to - self.from))
    }
}

/// A number as people write it.
pub(super) fn number(value: f64) -> String {
    let text =
        if value.abs() >= 10.0 || value == 0.0 { format!("{value:.0}") } else { format!("{value:.2}") };
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_hold_all_values() {
        for most in [0.07, 1.0, 3.4, 20.0, 455.0, 1526.0, 99_999.0] {
            let scale = Scale::new(false, [0.0, most].into_iter());
            assert!((4..=10).contains(&scale.marks.len()), "{most}: {:?}", scale.marks);
            assert!(scale.place(most).is_some_and(|at| (0.5..=1.0 + 1e-9).contains(&at)), "{most}");
        }
        let scale = Scale::new(true, [0.1, 20.0].into_iter());
        assert_eq!(
            scale.marks.iter().map(|mark| number(*mark)).collect::<Vec<_>>(),
            ["0.1", "1", "10", "100"]
        );
        assert_eq!((scale.place(0.1), scale.place(0.0)), (Some(0.0), None));
    }
}
