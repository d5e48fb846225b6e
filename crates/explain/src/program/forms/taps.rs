//! What is read, and what comes out: taps that hold another tensor, other rows, other heads, or a function of what is due.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use firstdiff_program::{At, Change, Edit, OtherOperand, Tensor, View};
use firstdiff_trace::{Site, Tap};
use ndarray::{ArrayD, Axis};
use serde_json::json;

use super::embedding::picked;
use super::scale::is_of_products;
use crate::laws::called_from;
use crate::mistakes::Mistake;
use crate::mistakes::attention::SOFTMAX_BASE;
use crate::mistakes::embedding::TOKENS_DIFFER;
use crate::mistakes::head::{FUNCTIONS, LOGIT_ROW, LOGIT_SCALE, LOGIT_SOFTCAP, RESULT_ACTIVATED, activated};
use crate::mistakes::linear::{HEAD_LAYOUT, LINEAR_INPUT};
use crate::mistakes::recorded::{OPERATION_INPUT, RESULT_SCALED, TOKEN_TYPES_DIFFER};
use crate::mistakes::residual::{LAYER_SKIPPED, RESIDUAL_PARALLEL, RESIDUAL_SOURCE};
use crate::mistakes::scores::{SCORE_SCALE, SCORE_SOFTCAP};
use crate::program::arrays::{array, floats};
use crate::program::change::{computed, each, function, kept, softmax};
use crate::program::context::Context;
use crate::program::form::Form;
use crate::program::forms::turn::is_rotation;

pub(super) fn forms(context: &Context<'_>) -> Vec<Form> {
    let mut forms = Vec::from_iter(of_tokens(context));
    let ends = ends(context);
    for tap in context.slice.known() {
        forms.extend(of_heads(context, tap));
        forms.extend(of_others(context, tap, ends));
    }
    // Those that are made on the way.
    let taps = context.program.taps();
    let made =
        (0..taps.len()).filter(|&tap| context.has(taps[tap].op) && context.slice.known().all(|known| known != tap));
    let made: Vec<usize> = made.collect();
    let heads: Vec<(Site, Form)> = made
        .iter()
        .flat_map(|&tap| of_heads(context, tap).into_iter().map(move |form| (context.site(tap), form)))
        .collect();
    for sites in HEADS {
        let mut joined: BTreeMap<String, Form> = BTreeMap::new();
        for (_, form) in heads.iter().filter(|(site, _)| sites.contains(site)) {
            match joined.entry(form.key()) {
                Entry::Vacant(place) => drop(place.insert(form.clone())),
                Entry::Occupied(mut place) => place.get_mut().edits.extend(form.edits.clone()),
            }
        }
        forms.extend(joined.into_values().filter(|form| form.edits.len() > 1));
    }
    forms.extend(heads.into_iter().map(|(_, form)| form));
    let layers: Vec<Form> = made.iter().flat_map(|&tap| of_layer(context, tap)).collect();
    // What is one line of code in a loop over layers is so in all of them.
    if let [first, _, ..] = &layers[..] {
        let alike = layers.iter().filter(|form| form.key() == first.key());
        let edits = alike.flat_map(|form| form.edits.clone()).collect();
        forms.push(Form::new(first.mistake, first.params.clone(), edits));
    }
    forms.extend(layers);
    forms.extend(of_result(context));
    forms.extend(of_unscaled(context));
    forms
}

/// Heads that one line of code lays out alike: before the rotation, and behind it.
const HEADS: [&[Site]; 4] = [
    &[Site::Q, Site::K, Site::V],
    &[Site::QRope, Site::KRope, Site::V],
    &[Site::QRope, Site::KRope],
    &[Site::QNorm, Site::KNorm],
];

/// Which kind of operation the slice is, by how it ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    InProduct,
    InSum,
    InNorm,
    Otherwise,
}

fn ends(context: &Context<'_>) -> Ends {
    let op = context.program.taps()[context.slice.target()].op;
    let normed = context.call(op).any(|at| matches!(context.base(at), "rsqrt" | "layer_norm" | "rms_norm" | "sqrt"));
    match context.base(op) {
        "linear" | "addmm" | "matmul" if context.tensors(op).iter().any(|(_, view)| context.is_weight(view)) => {
            Ends::InProduct
        }
        "add" if is_rotation(context, op) => Ends::Otherwise,
        "add" if context.tensors(op).iter().filter(|(_, view)| context.is_activation(view)).count() == 2 => Ends::InSum,
        _ if normed => Ends::InNorm,
        _ => Ends::Otherwise,
    }
}

/// The same where a tap is read: in a product before all else, and in a sum that a norm reads.
fn ends_of(context: &Context<'_>, tap: usize, ends: Ends) -> Ends {
    let found = &context.program.taps()[tap];
    let is_read_by = |op: usize| context.tensors(op).iter().any(|(_, view)| view.buffer == found.view.buffer);
    let is_product = |op: usize| {
        let is_product = matches!(context.base(op), "linear" | "addmm" | "matmul" | "mm");
        is_product && context.tensors(op).iter().any(|(_, view)| context.is_weight(view))
    };
    let is_sum = |op: usize| {
        let terms = context.tensors(op).into_iter().filter(|(_, view)| context.is_activation(view)).count();
        context.base(op) == "add" && terms == 2
    };
    let reads = |is: &dyn Fn(usize) -> bool| context.ops().any(|op| is_read_by(op) && is(op));
    match ends {
        _ if reads(&is_product) => Ends::InProduct,
        Ends::InNorm if reads(&is_sum) => Ends::InSum,
        ends => ends,
    }
}

/// Another tap of the candidate's is read, or another position's row.
fn of_others(context: &Context<'_>, tap: usize, ends: Ends) -> Vec<Form> {
    let taps = context.program.taps();
    let (found, target) = (&taps[tap], context.slice.target());
    let place = |tap: usize| context.held.place(tap).tap;
    let (own, layer) = (place(tap), place(target).layer);
    let near = |other: usize| {
        let beside =
            place(other).layer == layer || place(other).layer.map(|l| l + 1) == layer || place(other).layer.is_none();
        beside
            && taps[other].step == found.step
            && fits(&taps[other].view, &found.view)
            // Weights are no numbers of experts.
            && taps[other].view.dtype.kind() == found.view.dtype.kind()
            && taps[other].op < taps[target].op
    };
    let ends = ends_of(context, tap, ends);
    let mut forms = Vec::new();
    // What is listed first is stated of all that give the same numbers: another order of what it should read, then what is nearer.
    for (word, by) in MOVED {
        let Some(change) = rows_moved(&found.view, own.site, by) else { continue };
        let (mistake, params): (&'static Mistake, _) = match place(target).site {
            Site::Logits => (&LOGIT_ROW, vec![("row", json!(word))]),
            _ => (&OPERATION_INPUT, vec![("reads", json!(format!("{own}, the position {word}")))]),
        };
        forms.push(Form::read(mistake, params, tap, change));
    }
    let mut others: Vec<usize> = (0..taps.len()).filter(|&other| other != tap && near(other)).collect();
    others.sort_by_key(|&other| place(other).layer != layer);
    for other in others {
        // Nothing but zeros could be anything.
        let Some(held) = context.held.readable(other).filter(|held| array(held).iter().any(|x| *x != 0.0)) else {
            continue;
        };
        let (name, held) = (place(other).to_string(), Arc::new(held.clone()));
        let is_stream = |site: Site| matches!(site, Site::H | Site::H0);
        let (mistake, params): (&'static Mistake, _) = match ends {
            Ends::InProduct => (&LINEAR_INPUT, vec![("reads", json!(name))]),
            Ends::InSum => (&RESIDUAL_SOURCE, vec![("sum", json!(format!("{name} for {own}")))]),
            Ends::InNorm if context.site(tap) == Site::HAttn && is_stream(context.site(other)) => {
                (&RESIDUAL_PARALLEL, vec![])
            }
            Ends::InNorm
                if is_stream(context.site(tap)) && is_stream(context.site(other)) && taps[other].op < taps[tap].op =>
            {
                (&LAYER_SKIPPED, vec![])
            }
            _ => (&OPERATION_INPUT, vec![("reads", json!(name))]),
        };
        let shape = found.view.shape.clone();
        let instead = move |_: &[Tensor<'_>]| {
            let values: Vec<f64> = array(&held).iter().copied().collect();
            Some(vec![floats(ArrayD::from_shape_vec(shape.clone(), values).ok()?)?])
        };
        let change = Change::Values(Vec::new(), Arc::new(instead));
        let form = Form::read(mistake, params, tap, change);
        let words = called_from(place(target), place(other), None).filter(|_| !form.params.is_empty());
        forms.push(Form { kin: words.map(|words| reading_kin(mistake, &words)), ..form });
    }
    forms
}

/// What came into a layer, as [`called_from`] says it.
pub(super) const BEFORE: &str = "h of the layer before";

/// What tells reading one tensor for another from other mistakes, in whichever layer.
pub(super) fn reading_kin(mistake: &Mistake, words: &str) -> String {
    format!("{} {words}", mistake.id)
}

/// What was recorded in the target's step before it, with what it is called: in its layer, in the one before, outside of layers, and in the
/// last layer before what it reads, as of an encoder; zeros could be anything.
pub(crate) fn recorded_before(context: &Context<'_>) -> Vec<(Tap, ArrayD<f64>)> {
    let (taps, target) = (context.program.taps(), context.slice.target());
    let name = |tap: usize| context.held.place(tap).tap;
    let last_layer = |read: usize| (0..=read).rev().map(name).find(|tap| tap.layer.is_some());
    let ends: Vec<Tap> = context.slice.known().filter_map(last_layer).collect();
    let is_near = |&tap: &usize| {
        let (own, due) = (name(tap), name(target));
        let follows = |layer: u32| due.layer.is_some_and(|due| layer == due || layer + 1 == due);
        let is_of = |end: &Tap| (own.stack(), own.layer) == (end.stack(), end.layer);
        let near = own.layer.is_none_or(|layer| own.stack() == due.stack() && follows(layer)) || ends.iter().any(is_of);
        near && taps[tap].step == taps[target].step && taps[tap].op < taps[target].op
    };
    let value = |tap: usize| {
        let values = context.held.readable(tap).map(array)?;
        values.iter().any(|x| *x != 0.0).then(|| (name(tap), values))
    };
    (0..taps.len()).filter(is_near).filter_map(value).collect()
}

/// Whether a tensor may be read for another: the same shape, or rows of as many numbers.
fn fits(other: &View, own: &View) -> bool {
    let rows = |view: &View| view.shape.first().copied();
    other.shape == own.shape || rows(other) == rows(own) && other.elements() == own.elements()
}

/// Whose rows are taken; 2 is the same as 1, and the first takes the last one's.
const MOVED: [(&str, isize); 4] = [("before", 1), ("behind", -1), ("before", 2), ("behind", -2)];

/// Rows of the position before, or behind; at the edge there is none, and its own stays.
fn rows_moved(view: &View, site: Site, by: isize) -> Option<Change> {
    let axis = site.position_axis();
    let rows = *view.shape.get(axis).filter(|&&rows| rows > 1)?;
    Some(computed(&[view], move |x| {
        let from = |row: usize| match by.abs() {
            1 => row.checked_add_signed(-by).filter(|row| *row < rows).unwrap_or(row),
            // Twice as far: the rows go round.
            _ => (row + rows).wrapping_add_signed(-by / 2) % rows,
        };
        Some(x[0].select(Axis(axis), &(0..rows).map(from).collect::<Vec<_>>()))
    }))
}

/// What comes out of a layer, or is normed behind its attention, is what went into it.
fn of_layer(context: &Context<'_>, tap: usize) -> Vec<Form> {
    let mistake: &'static Mistake = match context.site(tap) {
        Site::H => &LAYER_SKIPPED,
        Site::HAttn => &RESIDUAL_PARALLEL,
        _ => return Vec::new(),
    };
    let (taps, own) = (context.program.taps(), context.held.place(tap));
    let is_input = |&other: &usize| {
        let (place, found) = (context.held.place(other), &taps[other]);
        let before = place.tap.layer == own.tap.layer.and_then(|layer| layer.checked_sub(1));
        let is_stream = matches!(context.site(other), Site::H | Site::H0) && found.op < taps[tap].op;
        before && is_stream && place.step == own.step && found.view.shape == taps[tap].view.shape
    };
    let inputs = (0..taps.len()).filter(is_input);
    if mistake == &RESIDUAL_PARALLEL {
        return inputs.filter_map(|other| normed_instead(context, tap, other)).collect();
    }
    let form = |other: usize| {
        let change = match context.held.readable(other).cloned() {
            Some(held) => Change::Values(Vec::new(), Arc::new(move |_| Some(vec![held.clone()]))),
            // What was not recorded whole is made on the way.
            None if context.has(taps[other].op) => kept(&taps[other].view),
            None => return None,
        };
        Some(Form::read(mistake, vec![], tap, change))
    };
    inputs.filter_map(form).collect()
}

/// A norm behind a sum that norms what came into the layer; the sum itself is read as it is.
fn normed_instead(context: &Context<'_>, tap: usize, other: usize) -> Option<Form> {
    let taps = context.program.taps();
    let norms = |&op: &usize| context.has(op) && context.is_of_norm(op);
    let held = context.held.readable(other).cloned();
    let edit = |op: usize| {
        let read = context.tensors(op).into_iter().filter(|(_, view)| view.buffer == taps[tap].view.buffer);
        let operand = |(place, view): (usize, &View)| -> Option<OtherOperand> {
            let (held, shape) = (held.clone(), view.shape.clone());
            let views = if held.is_some() { Vec::new() } else { vec![taps[other].view.reshaped(&view.shape)?] };
            let value = move |tensors: &[Tensor<'_>]| {
                let value = held.as_ref().map(array).or_else(|| tensors.first().map(array))?;
                Some(vec![floats(value.into_shape_with_order(shape.as_slice()).ok()?)?])
            };
            Some(OtherOperand { place: (place, None), views, value: Arc::new(value) })
        };
        let operands: Option<Vec<OtherOperand>> = read.map(operand).collect();
        Some(Edit { at: At::Op(op), change: Change::Operands(operands.filter(|all| !all.is_empty())?) })
    };
    let readers = context.program.readers(taps[tap].op).iter().copied().filter(norms);
    let edits: Vec<Edit> = readers.filter_map(edit).collect();
    (!edits.is_empty()).then(|| Form::new(&RESIDUAL_PARALLEL, vec![], edits))
}

/// Heads that are read from memory in another order.
fn of_heads(context: &Context<'_>, tap: usize) -> Vec<Form> {
    let view = &context.program.taps()[tap].view;
    let site = context.site(tap);
    let by_heads = matches!(site, Site::Q | Site::K | Site::V | Site::QNorm | Site::KNorm | Site::QRope | Site::KRope);
    let &[rows, heads, width] = &view.shape[..] else { return Vec::new() };
    if !by_heads || heads < 2 {
        return Vec::new();
    }
    type From = fn([usize; 3], [usize; 3]) -> usize;
    let kinds: [(&str, From); 2] = [
        ("d-first", |[row, head, i], [_, heads, width]| row * heads * width + i * heads + head),
        ("head-first", |[row, head, i], [rows, _, width]| (head * rows + row) * width + i),
    ];
    let form = |(kind, from): (&str, From)| {
        let change = computed(&[view], move |x| {
            let flat = x[0].as_slice()?;
            let at = |(row, head, i): (usize, usize, usize)| flat[from([row, head, i], [rows, heads, width])];
            Some(ndarray::Array3::from_shape_fn((rows, heads, width), at).into_dyn())
        });
        Form::read(&HEAD_LAYOUT, vec![("kind", json!(kind))], tap, change)
    };
    kinds.into_iter().map(form).collect()
}

/// A function of what is due.
fn of_result(context: &Context<'_>) -> Vec<Form> {
    let target = context.slice.target();
    let (view, site) = (context.program.taps()[target].view.clone(), context.site(target));
    if !context.is_float(&view) {
        return Vec::new();
    }
    let any = |mistake: &'static Mistake, name: &'static str, right: f64, f: fn(f64, f64) -> f64| {
        Form::any(mistake, name, right, At::Tap(target), each(&view, f))
    };
    let capped: fn(f64, f64) -> f64 = |x, cap| cap * (x / cap).tanh();
    let mut forms = Vec::new();
    // What nothing reads is handed out.
    let is_output = context.program.readers(context.program.taps()[target].op).is_empty();
    if site == Site::Logits || is_output {
        forms.extend(FUNCTIONS.iter().map(|&name| {
            let change = computed(&[&view], move |x| activated(name, &x[0]));
            Form::read(&RESULT_ACTIVATED, vec![("function", json!(name))], target, change)
        }));
    }
    match site {
        Site::Logits => {
            forms.push(any(&LOGIT_SOFTCAP, "cap", 30.0, capped));
            forms.push(any(&LOGIT_SCALE, "factor", 1.0, |x, factor| x * factor));
        }
        Site::Qk | Site::Scores => {
            forms.push(Form::read(&SOFTMAX_BASE, vec![], target, each(&view, |x, by| x * by)(std::f64::consts::LN_2)));
            forms.push(any(&SCORE_SOFTCAP, "cap", 30.0, capped));
        }
        _ => {}
    }
    if matches!(site, Site::Logits | Site::FinalNorm) {
        for (word, by) in MOVED {
            let form = |change| Form::read(&LOGIT_ROW, vec![("row", json!(word))], target, change);
            forms.extend(rows_moved(&view, site, by).map(form));
        }
    }
    forms
}

/// A factor on the products of q and k, where the reference scales them by no number.
fn of_unscaled(context: &Context<'_>) -> Option<Form> {
    let is_scale = |op: usize| {
        let by_number = matches!(context.base(op), "mul" | "div") && context.number(op).is_some();
        context.base(op) == "ggml.SOFT_MAX" || by_number && is_of_products(context, op)
    };
    let (taps, target) = (context.program.taps(), context.slice.target());
    let is_read = |tap: usize| context.has(taps[tap].op) || context.slice.known().any(|known| known == tap);
    let qk = (0..taps.len()).filter(|&tap| tap != target && context.site(tap) == Site::Qk);
    let views: Vec<(usize, View)> = qk.filter(|&tap| is_read(tap)).map(|tap| (tap, taps[tap].view.clone())).collect();
    let scaled = move |scale: f64| {
        let change = |view: &View| each(view, |x, scale| scale * x)(scale);
        views.iter().map(|(tap, view)| Edit { at: At::Tap(*tap), change: change(view) }).collect()
    };
    (!context.ops().any(is_scale)).then(|| Form::any_of(&SCORE_SCALE, "scale", 1.0, scaled))
}

/// Any factor on what is due: where nothing that is known of the operation says more.
pub(super) fn scaled(context: &Context<'_>) -> Vec<Form> {
    let target = context.slice.target();
    let view = &context.program.taps()[target].view;
    if context.site(target) == Site::Logits || !context.is_float(view) {
        return Vec::new();
    }
    let times = each(view, |x, factor| factor * x);
    let mut forms = vec![Form::any(&RESULT_SCALED, "factor", 1.0, At::Tap(target), times)];
    forms.extend(context.ops().filter_map(|op| of_operand(context, op)));
    forms
}

/// A factor on what a function is taken of, that gives no factor on its result.
fn of_operand(context: &Context<'_>, op: usize) -> Option<Form> {
    let is_function = matches!(context.base(op), "softmax" | "sigmoid" | "tanh" | "exp" | "softplus");
    let x = context.tensor(op, 0).filter(|x| is_function && context.is_activation(x))?;
    if context.is_attention_softmax(op) {
        return None;
    }
    let (name, view) = (context.base(op).to_owned(), x.clone());
    let scaled = move |factor: f64| {
        let name = name.clone();
        computed(&[&view], move |x| {
            let x = x[0].mapv(|x| factor * x);
            if name == "softmax" { softmax(&x) } else { function(&name, &x) }
        })
    };
    Some(Form::any(&RESULT_SCALED, "factor", 1.0, At::Op(op), scaled).saying(vec![("of", json!("operand"))]))
}

/// Rows of the embedding that are those of other tokens.
fn of_tokens(context: &Context<'_>) -> Option<Form> {
    let is_table = |&op: &usize| {
        let ids = context.tensor(op, 1).map(|ids| ids.buffer);
        let is_fed = |ids| context.program.is_token_input(ids) || context.program.is_type_input(ids);
        context.base(op) == "embedding" && ids.is_some_and(is_fed)
    };
    let op = context.ops().find(is_table)?;
    let (table, ids) = (context.tensor(op, 0)?, context.tensor(op, 1)?);
    let own = context.own.clone();
    let change = computed(&[table, ids], move |x| {
        let tokens = nearest(&x[0], &own)?;
        (tokens.len() == x[1].len()).then_some(())?;
        picked(&x[0], &x[1], tokens.into_iter().map(|token| token as i64))
    });
    let mistake = if context.program.is_type_input(ids.buffer) { &TOKEN_TYPES_DIFFER } else { &TOKENS_DIFFER };
    Some(Form::one(mistake, vec![], op, change))
}

/// For each row the nearest row of a table, by direction.
fn nearest(table: &ArrayD<f64>, own: &ArrayD<f64>) -> Option<Vec<usize>> {
    let width = *table.shape().last()?;
    if own.shape().last() != Some(&width) || table.ndim() != 2 || table.len() > MOST_ROWS {
        return None;
    }
    let (table, own) = (table.as_slice()?, own.as_slice()?);
    let cosine = |a: &[f64], b: &[f64]| {
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        dot(a, b) / (dot(a, a) * dot(b, b)).sqrt().max(f64::MIN_POSITIVE)
    };
    let best = |row: &[f64]| {
        let all = table.chunks(width).map(|known| cosine(known, row)).enumerate();
        all.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(at, _)| at)
    };
    own.chunks(width).map(best).collect()
}

/// Values of a table beyond which no row is looked for.
pub(super) const MOST_ROWS: usize = 1 << 24;
