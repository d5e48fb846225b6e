//! What would come out of many sets of mistakes? All are carried through the steps side by side, so that a large matrix is read once for all of them.

use std::sync::OnceLock;

use firstdiff_compare::Place;
use firstdiff_model::{Op, Profile, Step};
use ndarray::{ArrayD, Axis, concatenate};
use rayon::prelude::*;

use crate::mistakes::Edit;
use crate::search::Search;
use crate::search::proof::Target;
use crate::search::simulate::Simulation;

impl Search<'_, '_> {
    /// The target's value under each set of mistakes; the same numbers as one by one: no row of a product depends on the others.
    pub(crate) fn values(
        &self,
        target: &Target<'_>,
        sets: &[Vec<&Edit>],
        profile: Profile,
    ) -> Vec<Option<ArrayD<f64>>> {
        if target.row_inputs.is_some() {
            return sets.iter().map(|edits| self.value(target, edits, profile)).collect();
        }
        let mut runs: Vec<Simulation<'_, '_>> =
            sets.iter().map(|edits| self.imitation(target, edits, profile)).collect();
        for (at, &step) in target.steps.iter().enumerate() {
            let place = Place { tap: step.tap, ..target.place };
            if matches!(step.op, Op::Linear { .. } | Op::Head) {
                product(&mut runs, step, place);
            }
            runs.par_iter_mut().for_each(|run| {
                if place != target.place || run.is_touched(place) {
                    run.value(place);
                }
                run.forget(&target.steps[at + 1..]);
            });
        }
        // What no mistake has changed on its way is the value without any.
        let without = OnceLock::new();
        let unchanged = || {
            let none = Search { accepted: &[], ..*self };
            without.get_or_init(|| none.imitation(target, &[], profile).run()).clone()
        };
        let value = |mut run: Simulation<'_, '_>| match run.is_touched(target.place) {
            true => run.run(),
            false => unchanged(),
        };
        runs.into_par_iter().map(|run| Some(target.listed(value(run)?))).collect()
    }
}

/// Carries out one linear step at once for the runs that make the same of it.
fn product(runs: &mut [Simulation<'_, '_>], step: &Step, place: Place) {
    let mut alike: Vec<(Vec<&Edit>, Vec<&mut Simulation<'_, '_>>)> = Vec::new();
    for run in runs {
        if !run.is_computed(place) || run.chain(place).iter().any(|edit| edit.mistake.mixes_tokens) {
            continue;
        }
        let chain = run.chain(place);
        let same = |other: &[&Edit]| chain.len() == other.len() && chain.iter().zip(other).all(|(a, b)| a.is(b));
        match alike.iter_mut().find(|(other, _)| same(other)) {
            Some((_, runs)) => runs.push(run),
            None => alike.push((chain, vec![run])),
        }
    }
    for (chain, runs) in alike.into_iter().filter(|(_, runs)| runs.len() > 1) {
        joined(runs, &chain, step, place);
    }
}

/// The rows of all runs through one matrix.
fn joined(runs: Vec<&mut Simulation<'_, '_>>, chain: &[&Edit], step: &Step, place: Place) -> Option<()> {
    let mut runs: Vec<(&mut Simulation<'_, '_>, ArrayD<f64>)> = runs
        .into_iter()
        .filter_map(|run| <[_; 1]>::try_from(run.inputs(step, place.step)?).ok().map(|[input]| (run, input)))
        .collect();
    let views: Vec<_> = runs.iter().map(|(_, x)| x.view()).collect();
    let input = concatenate(Axis(0), &views).ok()?;
    let rows = input.shape()[0];
    let out = runs[0].0.carried_out(step, &[input], place.step, chain, runs.len())?;
    if out.shape().first() != Some(&rows) {
        return None;
    }
    let mut first = 0;
    for (run, input) in &mut runs {
        let rows = input.shape()[0];
        run.put(place, out.slice_axis(Axis(0), (first..first + rows).into()).to_owned());
        first += rows;
    }
    Some(())
}
