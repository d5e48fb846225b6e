//! Operands that are rounded to 16 bits before they are multiplied, or looked up: another arithmetic, and no mistake.

use std::sync::Arc;

use firstdiff_program::{At, Change, Edit, View};
use serde_json::json;

use crate::mistakes::precision::PRECISION;
use crate::program::arithmetic::NARROW;
use crate::program::change::other_operand;
use crate::program::condition::PRODUCTS;
use crate::program::context::Context;
use crate::program::form::Form;

/// Weights, and weights and all else that is read, in each type.
pub(super) fn forms(context: &Context<'_>, op: usize) -> Vec<Form> {
    let is_product = PRODUCTS.contains(&context.base(op));
    if !is_product && context.base(op) != "embedding" || !context.is_off_as_rounded() {
        return Vec::new();
    }
    let mut forms = Vec::new();
    for half in NARROW {
        // A unit for products rounds what it multiplies, and no bias.
        let is_read = |view: &View| context.is_float(view) && (half.profile.is_some() || !is_vector(view));
        let all: Vec<(usize, &View)> = context.tensors(op).into_iter().filter(|(_, view)| is_read(view)).collect();
        let weights: Vec<(usize, &View)> = all.iter().copied().filter(|(_, view)| context.is_weight(view)).collect();
        let mut form = |what: &str, operands: &[(usize, &View)]| {
            let round = move |&(place, view): &(usize, &View)| {
                other_operand((place, None), view, Arc::new(move |x| Some(x.mapv(half.round))))
            };
            let edit = Edit { at: At::Op(op), change: Change::Operands(operands.iter().map(round).collect()) };
            let params = vec![("format", json!(format!("{} {what}", half.name)))];
            forms.push(Form::new(&PRECISION, params, vec![edit]));
        };
        if !weights.is_empty() && half.profile.is_some() {
            form("weights", &weights);
        }
        if weights.len() < all.len() {
            form(if weights.is_empty() { "inputs" } else { "weights and inputs" }, &all);
        }
    }
    forms
}

fn is_vector(view: &View) -> bool {
    view.shape.iter().filter(|&&extent| extent > 1).count() < 2
}
