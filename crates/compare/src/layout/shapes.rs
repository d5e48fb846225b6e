//! Matches two shapes that differ by merged, split or permuted axes, where the shapes alone decide it.

use std::sync::Arc;

use firstdiff_trace::{Site, element_count};

use crate::layout::elements::IndexMap;
use crate::layout::types::Layout;

/// How memory of shape `candidate` is read in shape `reference`, if its shape alone decides it.
pub(crate) fn match_shapes(site: Site, reference: &[usize], candidate: &[usize]) -> Option<(Layout, Option<IndexMap>)> {
    if reference == candidate {
        return Some((Layout::Same, None));
    }
    if element_count(reference) != element_count(candidate) || element_count(reference) == Some(0) {
        return None;
    }
    if merges(reference, candidate) {
        return Some((Layout::Reshaped, None));
    }
    // Only with the vocabulary's axes, so that the dump states the order and it is no guess.
    let order = (reference.len() == site.axes().len()).then(|| permutation(reference, candidate)).flatten()?;
    let map = permuted_index(reference, &order);
    Some((Layout::Permuted(order), Some(map)))
}

/// Whether one shape is the other with neighbouring axes merged (axes of length 1 are ignored).
fn merges(one: &[usize], other: &[usize]) -> bool {
    let ends = |shape: &[usize]| {
        let mut total = 1usize;
        shape
            .iter()
            .map(|d| {
                total *= d;
                total
            })
            .collect::<std::collections::BTreeSet<_>>()
    };
    let (one, other) = (ends(one), ends(other));
    let proper = |set: &std::collections::BTreeSet<usize>| {
        set.iter().copied().filter(|&n| n > 1).collect::<std::collections::BTreeSet<_>>()
    };
    let (one, other) = (proper(&one), proper(&other));
    one.is_subset(&other) || other.is_subset(&one)
}

/// The order of axes that turns `candidate` into `reference`, where their lengths leave exactly one.
fn permutation(reference: &[usize], candidate: &[usize]) -> Option<Vec<usize>> {
    if reference.len() != candidate.len() {
        return None;
    }
    let find = |extent: &usize| {
        let mut at = candidate.iter().enumerate().filter(|(_, d)| *d == extent).map(|(i, _)| i);
        at.next().filter(|_| at.next().is_none())
    };
    reference.iter().map(find).collect()
}

/// Where element `at` of `shape` lies in memory whose axis `order[i]` is axis i of `shape`.
pub(crate) fn permuted_index(shape: &[usize], order: &[usize]) -> IndexMap {
    let mut extents = vec![0; shape.len()];
    for (axis, &place) in order.iter().enumerate() {
        extents[place] = shape[axis];
    }
    let strides: Vec<usize> = order.iter().map(|&place| extents[place + 1..].iter().product()).collect();
    let shape = shape.to_vec();
    Arc::new(move |mut at| {
        let mut place = 0;
        for (&extent, &stride) in shape.iter().zip(&strides).rev() {
            place += (at % extent) * stride;
            at /= extent;
        }
        place
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(site: Site, reference: &[usize], candidate: &[usize]) -> Option<Layout> {
        match_shapes(site, reference, candidate).map(|(layout, _)| layout)
    }

    #[test]
    fn shapes_are_matched_only_where_they_can_be() {
        assert_eq!(fit(Site::Q, &[11, 6, 16], &[11, 96]), Some(Layout::Reshaped));
        assert_eq!(fit(Site::Q, &[11, 6, 16], &[1, 11, 6, 16]), Some(Layout::Reshaped));
        assert_eq!(fit(Site::Q, &[11, 6, 16], &[6, 11, 16]), Some(Layout::Permuted(vec![1, 0, 2])));
        assert_eq!(fit(Site::H, &[11, 48], &[48, 11]), Some(Layout::Permuted(vec![1, 0])));
        assert_eq!(fit(Site::Context, &[11, 96], &[6, 11, 16]), None);
        assert_eq!(fit(Site::H, &[11, 48], &[11, 47]), None);
        assert_eq!(fit(Site::Probs, &[6, 11, 11], &[11, 6, 11]), None);
    }
}
