//! Detects a row or a key that belongs to another position, as in a K/V cache that is off by one slot. No change within a tensor gives this.

use firstdiff_trace::{Dump, DumpError, Site};

use crate::align::chunks::ChunkAlignment;
use crate::graph::Place;
use crate::layout::elements::TensorRef;
use crate::layout::pair::Pair;
use crate::metrics::Squares;
use crate::report::anatomy::{Change, Transform};
use crate::tolerance::judge::MASKED;
use crate::tolerance::layout::CHANGE_LEAVES;

/// With more rows or keys than this, other positions are not searched.
const MANY: usize = 512;

/// Which of the reference's positions the candidate's single row belongs to, where that is not its own.
pub(crate) fn other_position(
    reference: &Dump,
    alignment: &ChunkAlignment,
    place: Place,
    candidate: &TensorRef<'_>,
    allowed: f64,
    nmse: f64,
) -> Result<Option<Transform>, DumpError> {
    let single = |cell: u32| alignment.cells.get(cell as usize).is_some_and(|positions| positions.len() == 1);
    if place.tap.site.position_axis() == 1 || !single(place.step) || alignment.cells.len() > MANY {
        return Ok(None);
    }
    let mut best: Option<Transform> = None;
    for (cell, positions) in (0u32..).zip(&alignment.cells).filter(|(cell, _)| *cell != place.step && single(*cell)) {
        let Some(entry) = reference.find(place.tap, cell) else { continue };
        let tensor = reference.read(entry)?;
        let values = tensor.values();
        let left = TensorRef { values: &values, shape: &entry.shape, rows: entry.rows.as_ref() };
        let Ok(pair) = Pair::new(place.tap.site, &left, candidate, None) else { continue };
        let residual_nmse = pair.sampled_nmse(1);
        let better = best.as_ref().is_none_or(|best| residual_nmse < best.residual_nmse);
        if better && residual_nmse <= allowed.min(CHANGE_LEAVES * nmse) {
            best = Some(Transform { change: Change::OtherPosition(positions.start), residual_nmse });
        }
    }
    Ok(best)
}

/// From which key on the candidate's products belong to other keys of the reference, all shifted by the same number of slots; keys from outside are zeros.
pub(crate) fn moved_keys(pair: &Pair<'_>, allowed: f64) -> Option<Transform> {
    let [heads, rows, keys] = *pair.shape() else { return None };
    if !matches!(pair.site(), Site::Qk | Site::Scores) || heads * rows < 2 || !(2..=MANY).contains(&keys) {
        return None;
    }
    let column = |key: usize| (0..heads * rows).map(move |row| row * keys + key);
    // NMSE of the candidate's key against another key of the reference; cells masked on both sides count as equal.
    let off = |mine: usize, theirs: usize| {
        let mut squares = Squares::default();
        for (c, r) in column(mine).zip(column(theirs)).map(|(c, r)| (pair.candidate(c), pair.reference(r))) {
            if c > MASKED || r > MASKED {
                squares.add(r, c);
            }
        }
        squares.relative()
    };
    // Written so that a NaN does not agree.
    let agrees = |key: usize| off(key, key) <= allowed;
    let first = (0..keys).find(|&key| !agrees(key))?;
    let seen = (first..keys).filter(|&key| column(key).any(|at| pair.reference(at) > MASKED)).max()?;
    let empty = |key: usize| column(key).all(|at| pair.candidate(at) == 0.0 || pair.candidate(at) <= MASKED);
    for by in [-1i64, 1, -2, 2] {
        let source = |key: usize| key.checked_add_signed(-by as isize).filter(|from| *from <= seen);
        let (mut found, mut worst, mut fits) = (0, 0.0f64, true);
        for key in first..=seen {
            // A key that agrees in its own place shows that nothing was moved.
            match source(key).map(|from| off(key, from)) {
                Some(nmse) if nmse <= allowed => (found, worst) = (found + 1, worst.max(nmse)),
                _ if empty(key) => {}
                _ => fits = false,
            }
        }
        if fits && found > 0 {
            return Some(Transform { change: Change::MovedKeys { from: first, by }, residual_nmse: worst });
        }
    }
    None
}
