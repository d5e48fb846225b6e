//! Any operation: left out, turned about, or with another number.

use firstdiff_program::{At, Operand, Scalar, View};
use serde_json::json;

use super::scale::by_keyword;
use crate::mistakes::Mistake;
use crate::mistakes::norm::{EPSILONS, NORM_EPS};
use crate::mistakes::recorded::{NUMBER_DIFFERS, OPERATION_OMITTED, SIGN_FLIPPED};
use crate::mistakes::rope::{BASES, ROPE_ATTENTION_FACTOR, ROPE_THETA};
use crate::mistakes::scores::SCORE_SCALE;
use crate::program::change::{Compute, computed, function, kept, minus, numbers, plus};
use crate::program::context::{Context, number_of};
use crate::program::form::Form;

pub(super) fn forms(context: &Context<'_>, op: usize) -> Vec<Form> {
    // What is computed of weights alone is part of what is done with them.
    let of_weights = context.tensors(op).iter().any(|(_, view)| context.is_weight(view));
    let counts = |view: &View| context.is_activation(view) || of_weights;
    let Some(out) = context.out(op).filter(|out| counts(out) && context.is_float(out)) else {
        return Vec::new();
    };
    let said = || vec![("operation", json!(context.program.said(op)))];
    let name = context.base(op);
    let counts_with_one = matches!(name, "add" | "sub" | "mul" | "div" | "pow" | "clamp" | "clamp_min" | "clamp_max");
    let number = context.number(op).filter(|_| counts_with_one);
    let mut forms = Vec::new();
    for (key, operand) in &context.op(op).keywords {
        // Whole numbers count something, but for a factor.
        if number_of(operand).is_some() && (key == "scale" || !matches!(operand, Operand::Scalar(Scalar::Int(_)))) {
            forms.extend(of_keyword(context, op, key));
        }
    }
    let like = |view: &&View| counts(view) && view.shape == out.shape && context.is_float(view);
    if elementwise(name) {
        let kept_ones = context.tensors(op).into_iter().map(|(_, view)| view).filter(like);
        for (at, view) in kept_ones.enumerate() {
            let mut params = said();
            params.extend((at > 0).then(|| ("keeps", json!("second"))));
            forms.push(Form::one(&OPERATION_OMITTED, params, op, kept(view)).due(number.map(|(_, number)| number)));
        }
    }
    let turned: Option<Compute> = match name {
        "add" => Some(|x| minus(&x[0], &x[1])),
        "sub" => Some(|x| plus(&x[0], &x[1])),
        "exp" => Some(|x| Some(x[0].mapv(|x| (-x).exp()))),
        "softplus" => Some(|x| function("softplus", &x[0].mapv(|x| -x))),
        _ => None,
    };
    let views: Vec<&View> = context.tensors(op).into_iter().map(|(_, view)| view).collect();
    if let Some(turned) = turned.filter(|_| context.number(op).is_none()) {
        let needed = if matches!(name, "add" | "sub") { 2 } else { 1 };
        if views.len() >= needed {
            forms.push(Form::one(&SIGN_FLIPPED, said(), op, computed(&views, turned)));
        }
    }
    if let Some((place, number)) = number.filter(|(_, number)| *number != 0.0) {
        let differs = Form::any(&NUMBER_DIFFERS, "value", number, At::Op(op), numbers(context.op(op), place));
        forms.push(differs.saying(said()).due(number));
    }
    forms
}

/// Other numbers that an operation takes by name: what it is called says which mistake that is.
fn of_keyword(context: &Context<'_>, op: usize, key: &str) -> Vec<Form> {
    let name = context.base(op);
    let of_it = |(operation, known, ..): &&Number| *known == key && (operation.is_empty() || *operation == name);
    match NUMBERS.iter().find(of_it) {
        Some((.., mistake, values)) => by_keyword(context, op, key, mistake, |_| values.to_vec()),
        None => {
            let said = vec![("operation", json!(context.program.said(op))), ("name", json!(key))];
            let forms = by_keyword(context, op, key, &NUMBER_DIFFERS, |_| Vec::new());
            forms.into_iter().map(|form| form.saying(said.clone())).collect()
        }
    }
}

/// Of any operation, or of the one of this name, the number of this name: the mistake that another one is, and what it often is.
type Number = (&'static str, &'static str, &'static Mistake, &'static [f64]);
const NUMBERS: [Number; 4] = [
    ("", "eps", &NORM_EPS, &EPSILONS),
    ("", "freq_base", &ROPE_THETA, &BASES),
    ("", "attn_factor", &ROPE_ATTENTION_FACTOR, &[]),
    ("ggml.SOFT_MAX", "scale", &SCORE_SCALE, &[1.0]),
];

/// Operations that give a value for each value.
fn elementwise(base: &str) -> bool {
    const KNOWN: &str = "add sub mul div neg exp tanh sigmoid silu gelu relu softplus clamp pow where masked_fill roll layer_norm rms_norm abs square \
                         sqrt log sin cos erf clamp_min clamp_max maximum minimum index_add rsub softmax";
    KNOWN.split_whitespace().any(|known| known == base)
}
