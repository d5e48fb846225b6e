//! Bounds the error that an operation may have passed on from what it reads, as measured in a run.

use crate::tolerance::judge::{INHERITED_MOST, INHERITED_USUAL, NORM_ROOM, POSITION_ROOM};

/// What an operation may have passed on.
#[derive(Clone, Debug, Default)]
pub struct Inherited {
    /// NMSE of what it reads, summed.
    pub read: f64,
    /// NMSE of its result that this usually explains.
    pub expected: f64,
    /// The largest NMSE of its result that this can explain.
    pub max: f64,
    /// NMSE beyond which it is inconclusive, though the profile allows more at such a depth.
    pub limit: Option<f64>,
    /// The maximum for each position; empty where nothing is inherited.
    pub positions: Vec<f64>,
    /// The same, where of inputs read at all positions the median counts instead of the worst.
    pub expected_positions: Vec<f64>,
    /// The maximum for each key, where keys are read themselves.
    pub keys: Vec<f64>,
    /// How far from 1 the factors of the inputs may move that of a sum; `None` for other operations.
    pub factor: Option<f64>,
    /// NMSE of its result that the rounding of a K/V cache explains; included in all the others.
    pub cache: f64,
}

impl Inherited {
    /// From the NMSE of the inputs (`read`) and the largest NMSE of a result that right runs were seen to make of it (`seen`).
    pub(crate) fn from_largest(read: f64, seen: f64, positions: Vec<f64>) -> Inherited {
        let expected_positions = positions.clone();
        Inherited {
            read,
            expected: INHERITED_USUAL * seen,
            max: INHERITED_MOST * seen,
            positions,
            expected_positions,
            ..Inherited::default()
        }
    }

    /// Adds the error that may come from a tap that is itself inconclusive, with NMSE `nmse`: operations on the way may multiply it by up to `growth`.
    pub(crate) fn add_inconclusive(&mut self, nmse: f64, growth: f64) {
        self.read = self.read.max(nmse);
        self.max = self.max.max(growth * nmse);
        let each = self.positions.iter_mut().chain(&mut self.expected_positions);
        each.for_each(|position| *position += growth * nmse);
    }

    /// Adds the usual error of reading keys and values from the cache, for a pair of this many rows; `stored` is the NMSE of what is read there.
    pub(crate) fn read_from_the_cache(&mut self, stored: f64, cost: f64, rows: usize) {
        if cost == 0.0 {
            return;
        }
        self.read += stored;
        self.cache = INHERITED_USUAL * cost;
        self.expected += INHERITED_USUAL * cost;
        self.max += INHERITED_MOST * cost;
        self.limit = self.limit.map(|within| within + INHERITED_USUAL * cost);
        self.positions.resize(rows, 0.0);
        self.expected_positions.resize(rows, 0.0);
        let each = self.positions.iter_mut().chain(&mut self.expected_positions).chain(&mut self.keys);
        each.for_each(|most| *most += INHERITED_MOST * POSITION_ROOM * cost);
    }

    /// Replaces the estimate by what a norm passes on, as a whole and by position.
    pub(crate) fn replace_by_norm(&mut self, passed: Option<(f64, Vec<f64>)>) {
        let Some((whole, positions)) = passed else { return };
        // The error of an input counts as it is once the norm has weighted its channels.
        let positions = positions.into_iter().map(|nmse| NORM_ROOM * INHERITED_MOST * POSITION_ROOM * nmse).collect();
        *self = Inherited::from_largest(whole, NORM_ROOM * whole, positions);
    }
}
