//! Judges taps by place of a router's choice, such as its weights, in the reference's order of places. The experts chosen for a token are a set, which the
//! two sides may hold in different orders.

use firstdiff_trace::{DumpError, Entry, Tap, Values};

use crate::expert::EXPERTS;
use crate::graph::Place;
use crate::taps::choice::{CHOICE, RoundedRows, WEIGHTS};
use crate::taps::context::{ComparisonContext, TapJudgement};

impl ComparisonContext<'_> {
    /// A tap by place of a choice, judged in the reference's order; `None` where it is not such a tap, or both have the same order.
    pub(crate) fn judge_by_place(&self, place: Place, here: &TapJudgement) -> Result<Option<TapJudgement>, DumpError> {
        if !here.is_compared() {
            return Ok(None);
        }
        let (Some(moved), (Some(left), Some(right))) = (self.by_place(place)?, self.both(place)) else {
            return Ok(None);
        };
        let (reference, candidate) = (self.reference.read(&left)?, self.candidate.read(&right)?);
        let (reference, candidate) = (reference.values(), candidate.values());
        let allowed = self.allowance(place, self.allowed(place, &left, &right));
        let judged = self.tap_judge(&left, &reference, &right, &candidate).with_candidate(&moved).judge(&allowed);
        // It is not known that other taps than the weights are ordered by place: the order counts only if it makes them agree.
        Ok((are_weights(place.tap) || judged.agrees() && !here.agrees()).then_some(judged))
    }

    /// The candidate's weights of a choice in the reference's order of places, where that is another one.
    pub(crate) fn weights_by_place(&self, place: Place) -> Result<Option<Values<'static>>, DumpError> {
        if are_weights(place.tap) { self.by_place(place) } else { Ok(None) }
    }

    fn by_place(&self, place: Place) -> Result<Option<Values<'static>>, DumpError> {
        let name = place.tap.to_string();
        let choice = match (name.strip_suffix(WEIGHTS), name.split_once(EXPERTS)) {
            (Some(layer), _) => format!("{layer}{CHOICE}"),
            (None, Some((layer, _))) => format!("{layer}.{CHOICE}"),
            (None, None) => return Ok(None),
        };
        let both = |tap: Tap| {
            let sides = [self.reference, self.candidate].map(|dump| dump.entry(tap, place.step));
            let [Some(left), Some(right)] = sides else { return None };
            let is_whole = |entry: &Entry| entry.rows.is_none() && entry.shape.len() > 1;
            (left.shape == right.shape && is_whole(&left) && is_whole(&right)).then_some([left, right])
        };
        let Some(chosen) = both(Tap::named(&choice)) else { return Ok(None) };
        let fits = |sides: &[Entry; 2]| {
            let (shape, of_choice) = (&sides[0].shape, &chosen[0].shape);
            shape == of_choice || shape.len() > of_choice.len() && shape.starts_with(of_choice)
        };
        let Some([_, own]) = both(place.tap).filter(fits) else { return Ok(None) };
        let [left, right] = &chosen;
        let grids = RoundedRows::read(self.reference, left, &left.shape)?.zip(RoundedRows::read(
            self.candidate,
            right,
            &right.shape,
        )?);
        let Some(order) = grids.and_then(|(ours, theirs)| order_of_places(ours.rows().zip(theirs.rows()))) else {
            return Ok(None);
        };
        let own = self.candidate.read(&own)?.values().to_f64();
        let width = own.len() / order.len();
        let moved: Vec<f64> = order.iter().flat_map(|&from| own[from * width..][..width].iter().copied()).collect();
        Ok(Some(Values::F64(moved.into())))
    }
}

/// Whether a tap holds the weights of the chosen experts.
fn are_weights(tap: Tap) -> bool {
    tap.is_open() && tap.last_name() == WEIGHTS
}

/// For each place of the reference's choice, token by token, the candidate's place with the same choice; `None` where all orders are the same. The places of
/// a token that goes elsewhere stay unchanged.
fn order_of_places<'a>(rows: impl Iterator<Item = (&'a [f64], &'a [f64])>) -> Option<Vec<usize>> {
    let mut order: Vec<usize> = Vec::new();
    for (ours, theirs) in rows {
        let places = ours.iter().map(|expert| theirs.iter().position(|other| other == expert));
        let places: Option<Vec<usize>> = places.collect();
        // No token goes to one expert twice.
        let is_once = |places: &Vec<usize>| (0..ours.len()).all(|place| places.contains(&place));
        let begin = order.len();
        match places.filter(is_once) {
            Some(places) => order.extend(places.into_iter().map(|place| begin + place)),
            None => order.extend(begin..begin + ours.len()),
        }
    }
    order.iter().enumerate().any(|(to, &from)| to != from).then_some(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_follow_the_choice_token_by_token() {
        let order = |ours: &[f64], theirs: &[f64]| order_of_places(ours.chunks(2).zip(theirs.chunks(2)));
        assert_eq!(order(&[1.0, 3.0, 2.0, 0.0], &[3.0, 1.0, 2.0, 0.0]), Some(vec![1, 0, 2, 3]));
        assert_eq!(order(&[1.0, 3.0], &[1.0, 3.0]), None);
        // Other experts, or one of them twice: nothing says which place is which.
        assert_eq!(order(&[1.0, 3.0, 2.0, 0.0], &[3.0, 2.0, 0.0, 2.0]), Some(vec![0, 1, 3, 2]));
        assert_eq!(order(&[1.0, 1.0], &[1.0, 3.0]), None);
    }
}
