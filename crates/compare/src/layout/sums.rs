//! Over which axis do a dump's probabilities sum to 1? That axis is the keys', whatever layout its scores would agree in.

use firstdiff_trace::Site;

use crate::layout::candidates::LayoutCandidates;
use crate::layout::convention::LayoutConvention;
use crate::layout::pair::Pair;
use crate::tolerance::inspect::SUM_ROOM;

/// Whether the probabilities of `layouts` speak against a layout of theirs, of the products that they are made from, or of the scores: as they stand every
/// row sums to 1 over its keys, and in that layout not. As many queries as keys let a transposed product look as if it were stored so.
pub fn sums_speak_against(own: &LayoutConvention, layouts: &LayoutCandidates<'_>) -> bool {
    let same = |pair: &Pair<'_>| LayoutConvention::of(pair.site(), pair.layout()).same(own);
    let other = || layouts.others().into_iter().find(same);
    layouts.as_it_stands().is_ok_and(sums_to_one) && other().is_some_and(|other| !sums_to_one(&other))
}

/// Whether a site has a number for each query and key.
pub fn is_of_queries_and_keys(site: Site) -> bool {
    matches!(site, Site::Qk | Site::Scores | Site::Probs)
}

/// Whether every row of \[H,T,S\] sums to 1, as a softmax over the keys leaves it.
fn sums_to_one(pair: &Pair<'_>) -> bool {
    let keys = pair.shape().last().copied().unwrap_or(0);
    if keys == 0 || pair.is_empty() {
        return false;
    }
    let sum = |row: usize| (row * keys..(row + 1) * keys).map(|i| pair.candidate(i)).sum::<f64>();
    (0..pair.len() / keys).all(|row| (sum(row) - 1.0).abs() <= SUM_ROOM)
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use firstdiff_trace::Values;

    use super::*;
    use crate::layout::pair::TensorRef;

    /// Whether probabilities of two heads, three queries and three keys speak against keys before queries.
    fn speak_against(probs: &[f64; 18]) -> bool {
        let (held, blank) = (Values::F64(Cow::Borrowed(&probs[..])), Values::F64(Cow::Borrowed(&[0.0; 18][..])));
        let shape = [2, 3, 3];
        let tensor = |values| TensorRef { values, shape: &shape, rows: None };
        let layouts = LayoutCandidates::new(Site::Probs, tensor(&blank), tensor(&held), None, None);
        let others = layouts.others();
        let of = |pair: &Pair<'_>| LayoutConvention::of(Site::Probs, pair.layout());
        let keys_first = |pair: &&Pair<'_>| pair.place(1) == 3 && pair.place(9) == 9;
        let own = others.iter().find(keys_first).map(of).expect("keys may stand before queries");
        sums_speak_against(&own, &layouts)
    }

    #[test]
    fn rows_that_sum_to_one_show_which_axis_is_the_keys() {
        let head = [1.0, 0.0, 0.0, 0.25, 0.75, 0.0, 0.5, 0.25, 0.25];
        let turned = [1.0, 0.25, 0.5, 0.0, 0.75, 0.25, 0.0, 0.0, 0.25];
        let twice = |head: [f64; 9]| -> [f64; 18] { std::array::from_fn(|i| head[i % 9]) };
        assert!(speak_against(&twice(head)));
        assert!(!speak_against(&twice(turned)), "they are stored so");
        assert!(!speak_against(&[1.0 / 3.0; 18]), "both ways sum to 1");
        assert!(!speak_against(&[0.5; 18]), "neither does");
    }
}
