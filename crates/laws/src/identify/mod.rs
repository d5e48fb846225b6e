//! Which laws may a wrong operation follow? Each is fitted on the first place and said with its price; none is believed before its proof.

mod activation;
mod attention;
mod context;
mod embedding;
mod linear;
mod norm;
mod output;
mod rotation;
mod subject;
mod sums;

use ndarray::ArrayD;

use crate::case::{Case, Kind, Place};
use crate::law::{Form, Law};

/// All laws that may hold.
pub(crate) fn laws(case: &Case<'_>) -> Vec<Law> {
    let mut laws = whole(case);
    laws.extend(match case.kind {
        Kind::Sum => sums::laws(case),
        Kind::Rotation => rotation::laws(case),
        Kind::Norm => norm::laws(case),
        Kind::Activation | Kind::Gate => activation::laws(case),
        Kind::Probs => attention::laws(case),
        Kind::Context => context::laws(case),
        Kind::Linear => linear::laws(case),
        Kind::Embedding => embedding::laws(case),
        Kind::Other => Vec::new(),
    });
    laws.extend(output::laws(&subject::Subject::output(case), case));
    laws
}

/// The operation is left out, or carried out twice.
fn whole(case: &Case<'_>) -> Vec<Law> {
    let mut laws = Vec::new();
    let count = case.first().inputs.len();
    for operand in 0..count {
        let words = match (count, operand) {
            (1, _) => "the operation is left out: its input goes through".to_owned(),
            (2, 0) => "the operation is left out: its first operand goes through".to_owned(),
            (2, 1) => "the operation is left out: its second operand goes through".to_owned(),
            (_, operand) => format!("the operation is left out: operand {operand} goes through"),
        };
        let through = move |case: &Case<'_>, place: usize| {
            let place = &case.places[place];
            let input = place.inputs.get(operand)?;
            input.to_shape(place.right.raw_dim()).ok().map(|x| x.into_owned())
        };
        laws.push(Law::new(Form::Omitted, words, 3.0, through).with("operand", operand));
    }
    let twice = |case: &Case<'_>, place: usize| {
        let here = &case.places[place];
        let [input] = &here.inputs[..] else { return None };
        let again = here.right.to_shape(input.raw_dim()).ok()?.into_owned();
        case.operation.apply(place, &[again])
    };
    if count == 1 {
        laws.push(Law::new(Form::Twice, "the operation is carried out twice", 5.0, twice));
    }
    laws
}

/// Which values are further off than rounding.
pub(crate) fn wrong(place: &Place) -> ArrayD<bool> {
    further_off(&place.right, &place.own, place.noise())
}

/// Which values differ by more than an error of this share.
pub(crate) fn further_off(right: &ArrayD<f64>, own: &ArrayD<f64>, noise: f64) -> ArrayD<bool> {
    let size = (right.iter().map(|x| x * x).sum::<f64>() / right.len().max(1) as f64).sqrt();
    ndarray::Zip::from(right)
        .and(own)
        .map_collect(|&right, &own| (own - right).abs() > ROOM * noise * (right.abs() + size))
}

/// How many errors of rounding's size make a value wrong.
const ROOM: f64 = 3.0;
