//! Adds the axis of token positions to tensors that leave it out, where the number of positions of their step is known.

use std::collections::BTreeMap;

use firstdiff_trace::{Dump, Site, Tap};

use crate::layout::rows::squeezed;
use crate::run::steps::Chunks;

/// The chunks: as the side declares that records its tokens, else as either side shows.
pub(crate) fn declared_chunks(reference: &Dump, candidate: &Dump) -> Option<Chunks> {
    [reference, candidate].into_iter().filter_map(Chunks::find).min_by_key(|chunks| chunks.ids.is_none())
}

/// The dump with the axis of positions added to every tensor of a step of one position (an engine that runs token by token writes \[D\], \[H,d\], \[H,S\]),
/// and to the flat tensors of longer steps beside them.
pub fn with_positions(dump: Dump) -> Dump {
    let Some(chunks) = Chunks::find(&dump).filter(|chunks| chunks.lengths.len() > 1) else { return dump };
    dump.reshaped(|tap: Tap, step, shape| match chunks.lengths.get(step as usize)? {
        1 => position_axis_of_one(tap.site, shape),
        &positions if tap.site.position_axis() == 0 => unflattened(tap.site, shape, positions),
        _ => None,
    })
}

/// The dump, with the heads of a context in one axis, as the vocabulary has it: \[T, H*d\] for \[T, H, d\], where the queries of either run have such
/// heads and the step as many tokens.
pub(crate) fn with_merged_heads(dump: Dump, like: &Dump) -> Dump {
    let (mut heads, mut tokens) = (BTreeMap::new(), BTreeMap::new());
    for entry in like.entries().iter().chain(dump.entries()) {
        let (site, shape) = (entry.tap.site, squeezed(entry.tap.site, &entry.shape));
        match (site, &shape[..]) {
            (Site::Q | Site::QNorm | Site::QRope, &[_, heads_there, width]) => {
                heads.insert(entry.tap.layer, [heads_there, width]);
            }
            (site, &[.., _]) if site.axes().len() == 2 && site != Site::Context => {
                let rows = if shape.len() == 2 { shape[0] } else { 1 };
                let most = tokens.entry(entry.step).or_insert(rows);
                *most = rows.max(*most);
            }
            _ => {}
        }
    }
    dump.reshaped(|tap, step, shape| {
        let (&[heads, width], &rows) = (heads.get(&tap.layer)?, tokens.get(&step)?);
        let (before, last) = shape.split_at(shape.len().checked_sub(2)?);
        let are_apart = tap.site == Site::Context && last == [heads, width] && before.iter().product::<usize>() == rows;
        are_apart.then(|| vec![rows, heads * width])
    })
}

/// The full shape of a tensor of one position that lacks the axis for it.
pub(crate) fn position_axis_of_one(site: Site, shape: &[usize]) -> Option<Vec<usize>> {
    let shape = squeezed(site, shape);
    let (axes, at) = (site.axes().len(), site.position_axis());
    let lacks = shape.len() + 1 == axes && (at > 0 || shape[0] != 1);
    let flat = shape.len() == 1 && at == 0;
    (lacks || flat).then(|| {
        let at = at.min(shape.len());
        [&shape[..at], &[1], &shape[at..]].concat()
    })
}

/// The full shape of a flat tensor of this many positions; positions are the slowest axis, except in a tap with keys.
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
            assert_eq!(position_axis_of_one(site, shape), due, "{site:?} {shape:?}");
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
