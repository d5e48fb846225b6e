//! Which shape has a tensor that leaves the axis of token positions out? Where it is known how many positions a step has.

use firstdiff_trace::{Dump, DumpError, Entry, Site, Tap};

use crate::first::{Found, Run};
use crate::judge::{Allowance, Outcome};
use crate::reason::Reason;
use crate::rows::{are_all, squeezed};
use crate::steps::Chunks;

/// How the tokens were taken: as the side says that names them, else as either shows.
pub(crate) fn told_chunks(reference: &Dump, candidate: &Dump) -> Option<Chunks> {
    [reference, candidate].into_iter().filter_map(Chunks::of).min_by_key(|chunks| chunks.ids.is_none())
}

impl Run<'_> {
    /// How many token positions a step, or a cell, has.
    fn positions(&self, step: u32) -> Option<usize> {
        match self.laid() {
            Some(laid) => laid.cells.get(step as usize).map(ExactSizeIterator::len),
            None => self.chunks.as_ref()?.lengths.get(step as usize).copied(),
        }
    }

    /// Both sides of a place, a flat reference with its axis of positions, where the number of them or the candidate's shape tells it.
    pub(crate) fn with_axes(
        &self,
        mut left: Option<Entry>,
        mut right: Option<Entry>,
    ) -> (Option<Entry>, Option<Entry>) {
        if let (Some(left), Some(right)) = (&mut left, &mut right)
            && self.is_flat(left, right)
        {
            let (site, theirs) = (left.tap.site, squeezed(left.tap.site, &right.shape));
            let positions = self.positions(left.step);
            let in_order = theirs.len() == site.axes().len()
                && positions.is_none_or(|positions| theirs.get(site.position_axis()) == Some(&positions));
            let same = theirs.iter().product::<usize>() == left.shape[0];
            let told = positions.and_then(|positions| unflattened(site, &left.shape, positions));
            match (in_order && same, told) {
                (true, _) => left.shape = theirs,
                (false, Some(shape)) => {
                    if right.shape == left.shape {
                        right.shape.clone_from(&shape);
                    }
                    left.shape = shape;
                }
                (false, None) => {}
            }
        }
        (left, right)
    }

    /// Whether the reference holds a flat tensor of all positions.
    fn is_flat(&self, left: &Entry, right: &Entry) -> bool {
        left.shape.len() == 1 && are_all(&left.rows) && are_all(&right.rows) && are_all(&self.options.rows)
    }

    /// What can be said of flat tensors of nobody knows how many positions: whether they are the same, bit for bit.
    pub(crate) fn flat(&self, left: &Entry, right: &Entry) -> Result<Option<Found>, DumpError> {
        let same = left.shape.iter().product::<usize>() == right.shape.iter().product::<usize>();
        if !self.is_flat(left, right) || !same {
            return Ok(None);
        }
        let (reference, candidate) = (self.reference.read(left)?, self.candidate.read(right)?);
        let (reference, candidate) = (reference.values(), candidate.values());
        let row = |entry: &Entry| {
            let mut row = entry.clone();
            row.shape = vec![1, left.shape[0]];
            row
        };
        let (left, right) = (row(left), row(right));
        let found = self.lay(&left, &reference, &right, &candidate).judge(&Allowance::own(0.0));
        Ok(Some(match found {
            Found::Judged(judged) if judged.judgement.outcome == Outcome::Exact => Found::Judged(judged),
            _ => Found::Apart(Reason::FlatOnBothSides { values: reference.len() }),
        }))
    }
}

/// The dump, with the axis of positions in every tensor of a step of one position: an engine that runs token by token writes \[D\], \[H,d\], \[H,S\]; and
/// in the flat ones of longer steps beside them.
pub fn with_positions(dump: Dump) -> Dump {
    let Some(chunks) = Chunks::of(&dump).filter(|chunks| chunks.lengths.len() > 1) else { return dump };
    dump.reshaped(|tap: Tap, step, shape| match chunks.lengths.get(step as usize)? {
        1 => of_one(tap.site, shape),
        &positions if tap.site.position_axis() == 0 => unflattened(tap.site, shape, positions),
        _ => None,
    })
}

/// The shape of a tensor of one position that has no axis for it.
pub(crate) fn of_one(site: Site, shape: &[usize]) -> Option<Vec<usize>> {
    let shape = squeezed(site, shape);
    let (axes, at) = (site.axes().len(), site.position_axis());
    let lacks = shape.len() + 1 == axes && (at > 0 || shape[0] != 1);
    let flat = shape.len() == 1 && at == 0;
    (lacks || flat).then(|| {
        let at = at.min(shape.len());
        [&shape[..at], &[1], &shape[at..]].concat()
    })
}

/// The shape of a flat tensor of so many positions, the slowest axis if it is not one of keys.
pub(crate) fn unflattened(site: Site, shape: &[usize], positions: usize) -> Option<Vec<usize>> {
    let &[count] = shape else { return None };
    let fits = |parts: usize| positions > 0 && count > 0 && count.is_multiple_of(parts);
    match site.position_axis() {
        0 => fits(positions).then(|| vec![positions, count / positions]),
        _ => {
            let square = positions.checked_mul(positions)?;
            fits(square).then(|| vec![count / square, positions, positions])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_of_one_position() {
        for (site, shape, due) in [
            (Site::H, &[64][..], Some(vec![1, 64])),
            (Site::H, &[1, 64], None),
            (Site::K, &[4, 8], Some(vec![1, 4, 8])),
            (Site::K, &[32], Some(vec![1, 32])),
            (Site::K, &[1, 32], None),
            (Site::Probs, &[8, 5], Some(vec![8, 1, 5])),
            (Site::Probs, &[40], None),
            (Site::Probs, &[8, 1, 5], None),
        ] {
            assert_eq!(of_one(site, shape), due, "{site:?} {shape:?}");
        }
    }

    #[test]
    fn flat_tensors_of_known_positions() {
        assert_eq!(unflattened(Site::H, &[768], 12), Some(vec![12, 64]));
        assert_eq!(unflattened(Site::H, &[12, 64], 12), None);
        assert_eq!(unflattened(Site::H, &[770], 12), None);
        assert_eq!(unflattened(Site::Scores, &[8 * 144], 12), Some(vec![8, 12, 12]));
        assert_eq!(unflattened(Site::Scores, &[8 * 12 * 64 + 1], 12), None);
    }
}
