//! Identifies the laws that a wrong operation may follow. Each is fitted on the first place and said with its price; none is believed before its proof.

mod activation;
mod after;
mod aliased;
mod attention;
mod cells;
mod choice;
mod context;
mod embedding;
mod experts;
mod heads;
mod joined;
mod linear;
mod memory;
mod norm;
mod operands;
mod output;
mod part;
mod pool;
mod products;
mod replaced;
mod rotation;
mod rotation_otherwise;
mod scales;
mod shares;
mod slots;
mod softmax;
mod statistics;
mod subject;
mod sums;
mod terms;
mod vector;

use ndarray::ArrayD;

use crate::case::{Case, Kind, Place};
use crate::describe::set::Set;
use crate::law::{Form, Law, Support};

/// All laws that may hold.
pub(crate) fn laws(case: &Case<'_>) -> Vec<Law> {
    let mut laws = whole(case);
    laws.extend(of_kind(case));
    let output = subject::Subject::output(case);
    laws.extend(output::laws(&output, case));
    laws.extend(on_a_part(case, &output));
    laws
}

/// Laws that only operations of the case's kind have.
fn of_kind(case: &Case<'_>) -> Vec<Law> {
    match case.kind {
        Kind::Sum => sums::laws(case),
        Kind::Rotation => match rotation::laws(case) {
            none if none.is_empty() => rotation_otherwise::laws(case),
            laws => laws,
        },
        Kind::Norm => norm::laws(case),
        Kind::Activation | Kind::Gate => activation::laws(case),
        Kind::Probs => attention::laws(case),
        Kind::Context => context::laws(case),
        Kind::Linear => linear::laws(case),
        Kind::Embedding => embedding::laws(case),
        Kind::Choice => choice::laws(case),
        Kind::Mixture => experts::laws(case),
        Kind::Shares => shares::laws(case),
        Kind::Other => Vec::new(),
    }
}

/// Laws that are looked for where none of the plain ones holds.
pub(crate) fn further_laws(case: &Case<'_>) -> Vec<Law> {
    let mut laws = Vec::new();
    if case.kind == Kind::Probs {
        laws.extend(softmax::laws(case));
    }
    laws.extend(part::laws(case, &of_kind));
    let output = subject::Subject::output(case);
    laws.extend(products::laws(&output, case));
    laws.extend(memory::laws(&output, case));
    laws.extend(replaced::laws(&output, case));
    // Caches are read in another layout than they are written in more often than otherwise.
    let is_of_cache = matches!(case.kind, Kind::Probs | Kind::Context);
    if is_of_cache && laws.is_empty() {
        laws.extend(memory::of_operands(case));
    }
    laws.extend(operands::laws(case));
    laws.extend(joined::laws(case));
    if case.kind == Kind::Linear {
        laws.extend(linear::functions(case));
        laws.extend(linear::recovered::laws(case));
    }
    // Of sums of attention's probabilities there is more to say than terms.
    if case.kind != Kind::Probs && case.has_time() {
        let most = if case.kind == Kind::Gate { 3 } else { 2 };
        laws.extend(sums::sparse(&output, case, "the output", most, &terms::terms));
    }
    if laws.is_empty() && !is_of_cache {
        laws.extend(memory::of_operands(case));
    }
    laws
}

/// Laws of an operand that was recovered from the output.
fn of_recovered(subject: &subject::Subject, case: &Case<'_>) -> Vec<Law> {
    let mut laws = replaced::laws(subject, case);
    laws.extend(products::laws(subject, case));
    laws.extend(output::laws(subject, case));
    laws.extend(memory::laws(subject, case));
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

/// The operation is left out, or carried out twice, on a part of its output.
fn on_a_part(case: &Case<'_>, output: &subject::Subject) -> Vec<Law> {
    let parts = output::wrong_parts(output, case);
    let Some(on) = OnPart::of(output, &parts) else { return Vec::new() };
    whole(case).into_iter().map(|law| on.put(law)).filter(|law| output.is_near_by(law, case)).collect()
}

/// A part of an output on which a law may hold, with what is right elsewhere.
#[derive(Clone)]
pub(crate) struct OnPart {
    mask: ArrayD<bool>,
    support: Support,
    bits: f64,
}

impl OnPart {
    /// The part that lies in all of these sets; `None` where it is the whole, or dear to say.
    pub(crate) fn of(output: &subject::Subject, parts: &[Set]) -> Option<OnPart> {
        let (support, bits) = output::support_of(&output.axes, parts);
        let is_whole = parts.iter().all(Set::is_all) || parts.len() != output.right.ndim();
        let mask = output::inside(output.right.shape(), parts);
        (!is_whole && bits <= DEAR).then_some(OnPart { mask, support, bits })
    }

    /// The part of these axes on which an operation's output is wrong, all of the others; with its sets.
    pub(crate) fn along(case: &Case<'_>, is_of: impl Fn(usize) -> bool) -> Option<(OnPart, Vec<Set>)> {
        let output = subject::Subject::output(case);
        let parts = output::wrong_parts(&output, case).into_iter().enumerate();
        let parts: Vec<Set> =
            parts.map(|(axis, part)| if is_of(axis) { part } else { Set::all(part.has.len()) }).collect();
        Some((OnPart::of(&output, &parts)?, parts))
    }

    /// Other values in this part, the right ones elsewhere.
    pub(crate) fn within(&self, right: &ArrayD<f64>, other: &ArrayD<f64>) -> Option<ArrayD<f64>> {
        (right.shape() == self.mask.shape() && other.shape() == self.mask.shape()).then_some(())?;
        let pick = |right: &f64, other: &f64, is: &bool| if *is { *other } else { *right };
        Some(ndarray::Zip::from(right).and(other).and(&self.mask).map_collect(pick))
    }

    /// The law on this part alone.
    pub(crate) fn put(&self, law: Law) -> Law {
        let (inner, part) = (law.predict.clone(), self.clone());
        let predict = move |case: &Case<'_>, at: usize| part.within(&case.places[at].right, &inner(case, at)?);
        let words = format!("{}{}", law.words, self.support.said());
        Law { words, bits: law.bits + self.bits, predict: std::sync::Arc::new(predict), ..law }.on(self.support.clone())
    }
}

/// Parts that are dearer to say are no parts.
const DEAR: f64 = 48.0;

/// Which values are further off than rounding.
pub(crate) fn wrong(place: &Place) -> ArrayD<bool> {
    further_off(&place.right, &place.own, place.noise())
}

/// Of each slice along an axis whether a value in it is wrong.
pub(crate) fn any_along(wrong: &ArrayD<bool>, axis: usize) -> Vec<Option<bool>> {
    wrong.axis_iter(ndarray::Axis(axis)).map(|slice| Some(slice.iter().any(|is| *is))).collect()
}

/// The first slice along an axis in which a value is wrong; 0 where none is.
pub(crate) fn first_along(wrong: &ArrayD<bool>, axis: usize) -> usize {
    any_along(wrong, axis).iter().position(|is| *is == Some(true)).unwrap_or(0)
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
