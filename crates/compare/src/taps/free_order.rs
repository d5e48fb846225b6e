//! Detects taps that hold the same values in an order that is free: the rows of an expert, and the weights of the chosen experts by their numbers.

use firstdiff_trace::{Dump, DumpError, Tap};

use crate::expert::{are_of_one_expert, is_of_expert};
use crate::graph::Place;
use crate::layout::row_order::row_order;
use crate::metrics::Squares;
use crate::report::reason::Reason;
use crate::taps::choice::{CHOICE, RoundedRows, WEIGHTS};
use crate::taps::context::{ComparisonContext, TapJudgement};

/// What both sides hold at a place, and the NMSE allowed there.
struct RowPair {
    reference: RoundedRows,
    candidate: RoundedRows,
    shape: [usize; 2],
    allowed: f64,
}

impl RowPair {
    /// Whether the candidate's rows in an order are the reference's.
    fn is_same_in(&self, order: &[usize]) -> bool {
        let theirs: Vec<&[f64]> = self.candidate.rows().collect();
        let pairs = self.reference.rows().zip(order);
        let pairs = pairs.flat_map(|(row, &from)| row.iter().copied().zip(theirs[from].iter().copied()));
        Squares::sum(pairs).nmse() <= self.allowed
    }
}

impl ComparisonContext<'_> {
    /// A tap that differs, unless both sides hold the same in an order that is free: then it is not compared.
    pub(crate) fn in_free_order(&self, place: Place, here: TapJudgement) -> Result<TapJudgement, DumpError> {
        let (name, is_compared) = (place.tap.to_string(), here.is_compared());
        if !is_compared || here.agrees() {
            return Ok(here);
        }
        let is_same = match name.strip_suffix(WEIGHTS) {
            Some(layer) => {
                self.are_same_weights(place, Place { tap: Tap::named(&format!("{layer}{CHOICE}")), ..place })?
            }
            // Only the rows of an expert have no fixed order: nothing else is searched.
            None if is_of_expert(place.tap) => match self.other_order(place)? {
                Some(order) => self.options.open_rows.contains(&place) || !self.is_held_by_another(place, &order)?,
                None => false,
            },
            None => false,
        };
        Ok(if is_same { TapJudgement::Unchecked(Reason::OrderOfExperts) } else { here })
    }

    /// Both sides of a place of two axes.
    fn both_grids(&self, place: Place) -> Result<Option<RowPair>, DumpError> {
        let held = |dump: &Dump| dump.entry(place.tap, place.step);
        let (Some(left), Some(right)) = (held(self.reference), held(self.candidate)) else { return Ok(None) };
        let &[rows, width] = &left.shape[..] else { return Ok(None) };
        if left.shape != right.shape || rows == 0 {
            return Ok(None);
        }
        let grids = RoundedRows::read(self.reference, &left, &left.shape)?.zip(RoundedRows::read(
            self.candidate,
            &right,
            &right.shape,
        )?);
        let allowed = self.allowed(place, &left, &right);
        Ok(grids.map(|(reference, candidate)| RowPair { reference, candidate, shape: [rows, width], allowed }))
    }

    /// The order in which the candidate's rows are the reference's, where that is another one.
    fn other_order(&self, place: Place) -> Result<Option<Vec<usize>>, DumpError> {
        // A single number does not identify a row.
        let Some(both) = self.both_grids(place)?.filter(|both| both.shape[1] > 1) else { return Ok(None) };
        let order = row_order(&both.candidate.values, &both.reference.values, both.shape[1]);
        let is_moved = |order: &Vec<usize>| order.iter().enumerate().any(|(to, &from)| to != from);
        Ok(order.filter(|order| is_moved(order) && both.is_same_in(order)))
    }

    /// Whether another tap of the same expert and step holds the reference's rows as they stand, and not in that order: an expert's rows have one order, so
    /// that rows in another one belong to other tokens.
    fn is_held_by_another(&self, place: Place, order: &[usize]) -> Result<bool, DumpError> {
        let as_stored: Vec<usize> = (0..order.len()).collect();
        let others = self.graph.places().iter().filter(|&&other| other != place && other.step == place.step);
        for &other in others.filter(|other| are_of_one_expert(place.tap, other.tap)) {
            let Some(both) = self.both_grids(other)?.filter(|both| both.shape[0] == order.len()) else { continue };
            if both.is_same_in(&as_stored) && !both.is_same_in(order) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether both sides choose the same experts with the same weights, sorted by expert number; where a side did not record its choice, sorted by weight.
    fn are_same_weights(&self, weights: Place, choice: Place) -> Result<bool, DumpError> {
        let Some(weights) = self.both_grids(weights)? else { return Ok(false) };
        let is_told = [self.reference, self.candidate].iter().all(|dump| dump.entry(choice.tap, choice.step).is_some());
        let chosen = if is_told { self.both_grids(choice)? } else { None };
        if is_told && chosen.as_ref().is_none_or(|chosen| chosen.shape != weights.shape) {
            return Ok(false);
        }
        let by = chosen.as_ref().unwrap_or(&weights);
        let ours = by_number(&weights.reference, &by.reference);
        let theirs = by_number(&weights.candidate, &by.candidate);
        let is_same_choice = !is_told || ours.iter().zip(&theirs).all(|(one, other)| one.0 == other.0);
        let pairs = ours.iter().zip(&theirs).map(|(one, other)| (one.1, other.1));
        Ok(is_same_choice && Squares::sum(pairs).nmse() <= weights.allowed)
    }
}

/// The expert numbers of a row and their weights, each row sorted by number.
fn by_number(weights: &RoundedRows, numbers: &RoundedRows) -> Vec<(f64, f64)> {
    let sorted = |(weights, numbers): (&[f64], &[f64])| {
        let mut pairs: Vec<(f64, f64)> = numbers.iter().copied().zip(weights.iter().copied()).collect();
        pairs.sort_by(|one, other| one.0.total_cmp(&other.0));
        pairs
    };
    weights.rows().zip(numbers.rows()).flat_map(sorted).collect()
}
