//! Where the documents leave a choice, or say nothing, the model has a *doubt*: both answers are right. A
//! frame is judged once for each combination of answers that it meets, and what happened has to be what one
//! of them says.

use std::cell::RefCell;

/// Most doubts of one frame.
const MOST: usize = 64;

/// What a doubt is about: its name, and the port or the rule that it is of.
pub type About = (&'static str, usize);

/// The answers of one judgement.
#[derive(Default)]
pub struct Doubts {
    /// Points of the code that still differ from the model, whose old answer is let pass.
    known: Vec<&'static str>,
    asked: RefCell<Vec<(About, bool)>>,
    plan: Vec<bool>,
}

impl Doubts {
    /// None yet; `known` are the points that may differ.
    pub fn new(known: &[&'static str]) -> Doubts {
        Doubts { known: known.to_vec(), ..Doubts::default() }
    }

    /// One of the two, and the same for the rest of the judgement.
    pub fn either(&self, name: &'static str, of: usize) -> bool {
        let mut asked = self.asked.borrow_mut();
        if let Some((_, answer)) = asked.iter().find(|(about, _)| *about == (name, of)) {
            return *answer;
        }
        let answer = asked.len() < MOST && self.plan.get(asked.len()).copied().unwrap_or(false);
        asked.push(((name, of), answer));
        answer
    }

    /// Whether the code may still do as it did before `point` was mended.
    pub fn as_before(&self, point: &'static str, of: usize) -> bool {
        self.known.contains(&point) && self.either(point, of)
    }

    /// The next combination of answers, if there is one.
    pub fn next(&mut self) -> bool {
        let asked = self.asked.replace(Vec::new());
        let mut plan: Vec<bool> = asked.into_iter().take(MOST).map(|(_, answer)| answer).collect();
        while plan.last() == Some(&true) {
            plan.pop();
        }
        let Some(last) = plan.last_mut() else { return false };
        *last = true;
        self.plan = plan;
        true
    }

    /// Doubts of this judgement that were answered with yes.
    pub fn affirmed(&self) -> Vec<About> {
        self.asked.borrow().iter().filter(|(_, answer)| *answer).map(|(about, _)| *about).collect()
    }
}
