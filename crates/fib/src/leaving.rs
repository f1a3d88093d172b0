//! What readers find no more, until none can be in it.
//!
//! Those that come together share an epoch: to begin one costs fences, and to ask which one all readers have reached costs
//! each reader a cache miss.

use std::collections::VecDeque;

use crate::epoch::Epochs;

/// Some that wait for an epoch to be [reached](Epochs::reached), and those for which none has begun so far.
pub(crate) struct Leaving<T> {
    fresh: Vec<T>,
    waiting: VecDeque<(u64, T)>,
}

impl<T> Leaving<T> {
    pub const fn new() -> Leaving<T> {
        Leaving { fresh: Vec::new(), waiting: VecDeque::new() }
    }

    /// Readers find it no more from now on.
    pub fn push(&mut self, it: T) {
        self.fresh.push(it);
    }

    pub fn len(&self) -> usize {
        self.fresh.len() + self.waiting.len()
    }

    /// Those for which no epoch has begun.
    pub fn fresh(&self) -> usize {
        self.fresh.len()
    }

    /// Those that no reader can be in any more. An epoch begins for those that came since the last call.
    pub fn gone<'a>(&'a mut self, epochs: &Epochs) -> impl Iterator<Item = T> + 'a {
        if !self.fresh.is_empty() {
            let epoch = epochs.begin();
            self.waiting.extend(self.fresh.drain(..).map(|it| (epoch, it)));
        }
        let reached = epochs.reached();
        let gone = self.waiting.iter().take_while(|(epoch, _)| *epoch <= reached).count();
        self.waiting.drain(..gone).map(|(_, it)| it)
    }

    /// All of them: there is no reader that could be in one.
    pub fn all(&mut self) -> impl Iterator<Item = T> + '_ {
        self.waiting.drain(..).map(|(_, it)| it).chain(self.fresh.drain(..))
    }
}
