//! Finds the order of places in which the candidate holds its choices. A router sends each token to a set of experts: which of them stands first is nobody's
//! fault, as long as all that stands by places has the same order.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use firstdiff_compare::{CHOICE, WEIGHTS};
use firstdiff_program::{Kind, Program, Tensor};
use ndarray::ArrayD;

use crate::program::arrays::array;
use crate::program::held::Held;
use crate::program::rows::is_same;
use crate::program::slices::reached;

/// The choices that the candidate recorded, and what stands by their places.
pub(crate) struct Places {
    choices: BTreeMap<usize, Choice>,
    /// The choice by whose places a tap stands.
    by_place: HashMap<usize, usize>,
    /// The expert whose rows a tap holds, and the choice that sends them there where that was recorded.
    experts: HashMap<usize, (usize, Option<usize>)>,
}

struct Choice {
    /// As the candidate holds it.
    own: Vec<usize>,
    /// How many each token goes to.
    places: usize,
    is_settled: bool,
    /// Whether its places were brought into another order.
    is_moved: bool,
    /// The reference's.
    reference: Option<Vec<usize>>,
    /// In whose order of places rows of experts stand, once one shows it.
    rows: Option<Whose>,
}

/// Whose order of places it is that rows follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// That in which the candidate's scores put them.
    Scores,
    /// That of the choice which the candidate recorded.
    Own,
    /// The reference's.
    Reference,
}

impl Places {
    pub(crate) fn of(program: &Program, held: &Held) -> Places {
        let taps = program.taps();
        let mut places = Places { choices: BTreeMap::new(), by_place: HashMap::new(), experts: HashMap::new() };
        let mut named: HashMap<(&str, usize), usize> = HashMap::new();
        for number in program.choices() {
            let (Some(layer), Some(own)) = (taps[number].tap.strip_suffix(CHOICE), whole(held, number)) else {
                continue;
            };
            let shape = &taps[number].view.shape;
            let Some(&count) = shape.last().filter(|count| shape.len() > 1 && **count > 0) else { continue };
            named.insert((layer, taps[number].step), number);
            let choice = Choice { own, places: count, is_settled: false, is_moved: false, reference: None, rows: None };
            places.choices.insert(number, choice);
            // All operations that read what it gives, or what those give.
            let behind = reached([taps[number].op], |at| program.readers(at).iter().copied());
            let stands_by_place = |&other: &usize| {
                let found = &taps[other];
                let is_of_the_layer = found.step == taps[number].step && found.tap.starts_with(layer);
                let is_weights = found.view.shape == *shape && found.tap.strip_prefix(layer) == Some(WEIGHTS);
                let is_of_rows = found.view.shape.len() > shape.len()
                    && found.view.shape.starts_with(shape)
                    && behind.contains(&found.op);
                other != number && is_of_the_layer && (is_weights || is_of_rows)
            };
            places.by_place.extend((0..taps.len()).filter(stands_by_place).map(|other| (other, number)));
        }
        for (number, tap) in taps.iter().enumerate() {
            let of = tap.tap.split_once("experts.").and_then(|(layer, rest)| {
                // Of a module of the reference's own the name goes on with a slash.
                let expert = rest.split(['.', '/']).next()?.parse().ok()?;
                let of_layer = named.iter().filter(|((of, step), _)| *step == tap.step && layer.starts_with(of));
                // An attention of experts has a choice of its own within the layer's.
                let choice = of_layer.max_by_key(|((of, _), _)| of.len());
                Some((expert, choice.map(|(_, number)| *number)))
            });
            places.experts.extend(of.map(|of| (number, of)));
        }
        places
    }

    /// The choice on whose order the reading of a tap depends, where that is not known yet.
    pub(crate) fn open(&self, tap: usize) -> Option<usize> {
        let choice = self.by_place.get(&tap).copied().unwrap_or(tap);
        self.choices.get(&choice).filter(|choice| !choice.is_settled).map(|_| choice)
    }

    /// Whether the places of a choice were brought into another order.
    pub(crate) fn is_moved(&self, tap: usize) -> bool {
        self.choices.get(&tap).is_some_and(|choice| choice.is_moved)
    }

    /// Brings the places of a choice, and of all that stands by them, into the order that is `due`: where a token goes to the same experts.
    pub(crate) fn settle(&mut self, tap: usize, due: Option<&ArrayD<f64>>, reference: Option<&[f64]>, held: &mut Held) {
        let Some(choice) = self.choices.get_mut(&tap) else { return };
        choice.is_settled = true;
        choice.reference = reference.and_then(whole_numbers).filter(|reference| reference.len() == choice.own.len());
        let Some(due) = due.and_then(|due| due.as_slice()).filter(|due| due.len() == choice.own.len()) else { return };
        let rows = choice.own.chunks_exact(choice.places).zip(due.chunks_exact(choice.places)).enumerate();
        let order: Vec<usize> = rows
            .flat_map(|(row, (own, due))| {
                let order = same_set(own, due).unwrap_or_else(|| (0..own.len()).collect());
                order.into_iter().map(move |place| row * own.len() + place)
            })
            .collect();
        if is_same(&order) {
            return;
        }
        choice.is_moved = true;
        let all = self.by_place.iter().filter(|(_, of)| **of == tap).map(|(other, _)| *other).chain([tap]);
        all.for_each(|other| held.rearrange(other, &order));
    }

    /// In which order the rows of an expert stand, where another of its block's taps showed it.
    pub(crate) fn settled(&self, tap: usize, held: &Held) -> Option<Vec<usize>> {
        let whose = self.choices.get(&self.experts.get(&tap)?.1?)?.rows?;
        self.orders(tap, held).into_iter().find(|(of, _)| *of == whose).map(|(_, order)| order)
    }

    /// The orders in which rows of an expert may stand, other than by the scores, while none is shown: for each row that is due which of the candidate's it is.
    pub(crate) fn others(&self, tap: usize, held: &Held) -> Vec<(Whose, Vec<usize>)> {
        let choice = self.experts.get(&tap).and_then(|of| self.choices.get(&of.1?));
        if choice.is_some_and(|choice| choice.rows.is_none()) { self.orders(tap, held) } else { Vec::new() }
    }

    fn orders(&self, tap: usize, held: &Held) -> Vec<(Whose, Vec<usize>)> {
        let Some(&(expert, Some(number))) = self.experts.get(&tap) else { return Vec::new() };
        let Some((choice, now)) = self.choices.get(&number).zip(whole(held, number)) else { return Vec::new() };
        let due = tokens_of(&now, choice.places, expert);
        let all = [(Whose::Own, Some(&choice.own)), (Whose::Reference, choice.reference.as_ref())];
        let order = |(whose, of): (Whose, Option<&Vec<usize>>)| {
            let own = tokens_of(of?, choice.places, expert);
            let order: Vec<usize> =
                due.iter().map(|token| own.iter().position(|other| other == token)).collect::<Option<_>>()?;
            (!is_same(&order) && own.len() == due.len()).then_some((whose, order))
        };
        all.into_iter().filter_map(order).collect()
    }

    /// The taps that hold rows of the expert that a tap is of, in its layer and step.
    pub(crate) fn block(&self, tap: usize) -> Vec<usize> {
        let Some(of) = self.experts.get(&tap) else { return Vec::new() };
        let mut taps: Vec<usize> = self.experts.iter().filter(|(_, other)| *other == of).map(|(tap, _)| *tap).collect();
        taps.sort_unstable();
        taps
    }

    /// The number of the expert whose rows a tap holds.
    pub(crate) fn expert(&self, tap: usize) -> Option<usize> {
        self.experts.get(&tap).map(|of| of.0)
    }

    /// Takes the order of a tap's rows for that of all others of its block.
    pub(crate) fn learn(&mut self, tap: usize, whose: Whose) {
        let choice = self.experts.get(&tap).and_then(|of| self.choices.get_mut(&of.1?));
        if let Some(choice) = choice {
            choice.rows.get_or_insert(whose);
        }
    }
}

fn whole(held: &Held, tap: usize) -> Option<Vec<usize>> {
    let own: &Tensor<'_> = held.get(tap).filter(|own| own.dtype().kind() == Kind::Int)?;
    whole_numbers(array(own).as_slice()?)
}

fn whole_numbers(values: &[f64]) -> Option<Vec<usize>> {
    values.iter().map(|&x| (x >= 0.0 && x.fract() == 0.0).then_some(x as usize)).collect()
}

/// For each number that is due the place that it has in a row of the same numbers; `None` where they are others.
fn same_set(own: &[usize], due: &[f64]) -> Option<Vec<usize>> {
    let order: Vec<usize> =
        due.iter().map(|due| own.iter().position(|own| *own as f64 == *due)).collect::<Option<_>>()?;
    (order.iter().collect::<BTreeSet<_>>().len() == own.len()).then_some(order)
}

/// The tokens of an expert, first those whose first choice it is.
fn tokens_of(choice: &[usize], places: usize, expert: usize) -> Vec<usize> {
    let mut rows: Vec<(usize, usize)> = Vec::new();
    let all = choice.iter().enumerate().filter(|(_, chosen)| **chosen == expert);
    rows.extend(all.map(|(at, _)| (at % places, at / places)));
    rows.sort_unstable();
    rows.into_iter().map(|(_, token)| token).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_brought_into_another_order_where_it_holds_the_same_numbers_once_each() {
        assert_eq!(same_set(&[3, 1], &[1.0, 3.0]), Some(vec![1, 0]));
        assert_eq!(same_set(&[3, 1], &[1.0, 2.0]), None);
        assert_eq!(same_set(&[3, 3], &[3.0, 3.0]), None);
        assert_eq!(whole_numbers(&[1.0, 2.4]), None);
        assert_eq!(whole_numbers(&[1.0, f64::NAN]), None);
        assert_eq!(whole_numbers(&[1.0, -1.0]), None);
    }

    #[test]
    fn an_expert_takes_the_tokens_by_place() {
        // Expert 2 is the second choice of token 0, and the first of token 1.
        assert_eq!(tokens_of(&[1, 2, 2, 3], 2, 2), [1, 0]);
    }
}
