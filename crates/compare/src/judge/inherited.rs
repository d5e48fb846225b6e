//! What may an operation have passed on of the error of what it reads? Bounds, as they are measured in a run.

use crate::tolerance::judge::{INHERITED_MOST, INHERITED_USUAL, NORM_ROOM, POSITION_ROOM};

/// What an operation may have passed on.
#[derive(Clone, Debug, Default)]
pub struct Inherited {
    /// NMSE of what it reads, summed.
    pub read: f64,
    /// NMSE of what it writes that this explains as a rule.
    pub usual: f64,
    /// NMSE that it explains at the very most.
    pub most: f64,
    /// NMSE beyond which it is unclear, though the profile allows more at such a depth.
    pub within: Option<f64>,
    /// The most for each position; empty where nothing is inherited.
    pub positions: Vec<f64>,
    /// The same where, of what is read at all positions, not the worst counts but the median.
    pub usual_positions: Vec<f64>,
    /// The most for each key, where keys are read themselves.
    pub keys: Vec<f64>,
    /// How far from 1 the factors of what is read may put that of a sum; nothing of other operations.
    pub factor: Option<f64>,
    /// NMSE of what is written that the rounding of a K/V cache explains, included in all others.
    pub cache: f64,
}

impl Inherited {
    /// From the NMSE that `seen` runs would have written at the most.
    pub(crate) fn of(read: f64, seen: f64, positions: Vec<f64>) -> Inherited {
        let usual_positions = positions.clone();
        Inherited {
            read,
            usual: INHERITED_USUAL * seen,
            most: INHERITED_MOST * seen,
            positions,
            usual_positions,
            ..Inherited::default()
        }
    }

    /// Adds what may come from a tap that is unclear itself, and off by `nmse`: operations on the way make of it up to `growth` times as much.
    pub(crate) fn unclear(&mut self, nmse: f64, growth: f64) {
        self.read = self.read.max(nmse);
        self.most = self.most.max(growth * nmse);
        let each = self.positions.iter_mut().chain(&mut self.usual_positions);
        each.for_each(|position| *position += growth * nmse);
    }

    /// Adds what reading keys and values from the cache costs as a rule, in a pair of so many rows; `stored` is the NMSE of what is read there.
    pub(crate) fn read_from_the_cache(&mut self, stored: f64, cost: f64, rows: usize) {
        if cost == 0.0 {
            return;
        }
        self.read += stored;
        self.cache = INHERITED_USUAL * cost;
        self.usual += INHERITED_USUAL * cost;
        self.most += INHERITED_MOST * cost;
        self.within = self.within.map(|within| within + INHERITED_USUAL * cost);
        self.positions.resize(rows, 0.0);
        self.usual_positions.resize(rows, 0.0);
        let each = self.positions.iter_mut().chain(&mut self.usual_positions).chain(&mut self.keys);
        each.for_each(|most| *most += INHERITED_MOST * POSITION_ROOM * cost);
    }

    /// Takes what a norm passes on, whole and by position, for what was only estimated.
    pub(crate) fn passed(&mut self, passed: Option<(f64, Vec<f64>)>) {
        let Some((whole, positions)) = passed else { return };
        // What is read is as far off as it looks once the norm has weighed its channels.
        let positions = positions.into_iter().map(|nmse| NORM_ROOM * INHERITED_MOST * POSITION_ROOM * nmse).collect();
        *self = Inherited::of(whole, NORM_ROOM * whole, positions);
    }
}
