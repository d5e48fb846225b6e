//! Rotations: pairs of elements that are multiplied with tables of cosines and sines.

use std::collections::BTreeSet;
use std::sync::Arc;

use firstdiff_compare::Place;
use firstdiff_program::{At, Change, Edit, Operand, Scalar, View};
use firstdiff_trace::Site;
use ndarray::{ArrayD, Axis, Slice};
use serde_json::json;

use super::norm::gain_of;
use crate::mistakes::norm::QK_NORM_ORDER;
use crate::mistakes::recorded::ROPE_LAYER_KIND;
use crate::mistakes::rope::{
    ALIASING, BASES, ROPE_ATTENTION_FACTOR, ROPE_DIRECTION, ROPE_EXPONENT, ROPE_OMITTED, ROPE_ON_V, ROPE_PAIRING,
    ROPE_PARTIAL, ROPE_POSITION, ROPE_PRECISION, ROPE_SCALING, ROPE_THETA, ROPE_TWICE,
};
use crate::mistakes::{Mistake, Params};
use crate::program::arrays::array;
use crate::program::change::{computed, numbers, other_operand, over, times, with_number};
use crate::program::context::Context;
use crate::program::form::Form;
use crate::program::form::rounded_to;
use crate::program::forms::turn::{KEPT, Rotation, Turn, base_of, bases_of, in_bf16, in_f16, is_rotation};
use crate::tolerance::search::SAME_STEP;

/// Factors of scalings.
const FACTORS: [f64; 12] = [1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 32.0, 64.0];
/// Positions by which others may be off.
const SHIFTS: i32 = 8;
/// And by which they may be seen to be off.
const FARTHEST: i32 = 8192;
/// Shares of a head that may be turned, in so many parts.
const PARTS: usize = 8;

/// Another way to turn: its mistake, the parameter that says which, with its word, and what is done.
type Turned = (&'static Mistake, &'static str, &'static str, fn(&mut Turn) -> Option<()>);

/// Ways to turn otherwise without a number.
const TURNED: [Turned; 14] = [
    (&ROPE_OMITTED, "", "", |turn| turn.set(|turn| turn.times = 0)),
    (&ROPE_PAIRING, "", "", |turn| turn.set(|turn| turn.halves = !turn.halves)),
    (&ROPE_DIRECTION, "", "", |turn| turn.set(|turn| turn.sin.mapv_inplace(|sin| -sin))),
    (&ROPE_TWICE, "", "", |turn| turn.set(|turn| turn.times = 2)),
    (&ROPE_PRECISION, "tables", "bf16", |turn| turn.map(in_bf16)),
    (&ROPE_PRECISION, "frequencies", "bf16", |turn| turn.stepping(in_bf16)),
    (&ROPE_PRECISION, "tables", "f16", |turn| turn.map(in_f16)),
    (&ROPE_PRECISION, "frequencies", "f16", |turn| turn.stepping(in_f16)),
    (&ROPE_PRECISION, "angles", "bf16", |turn| turn.by_angles(|position, _, w| in_bf16(position * in_bf16(w)))),
    // What is written first is read again.
    (&ALIASING, "kind", "rotated in place", |turn| turn.set(|turn| turn.rereads = true)),
    (&ROPE_EXPONENT, "", "", |turn| turn.stepping(|w| w.abs().sqrt())),
    (&ROPE_POSITION, "kind", "decode-zero", Turn::restarted),
    (&ROPE_POSITION, "kind", "the last for all", Turn::of_the_last),
    // Of tables that carry a factor.
    (&ROPE_ATTENTION_FACTOR, "factor", "ignored", Turn::normalised),
];

pub(super) fn forms(context: &Context<'_>, op: usize) -> Vec<Form> {
    match context.base(op) {
        "arange" => return of_positions(context, op),
        "mul" => return of_factor(context, op),
        _ => {}
    }
    let Some(rotation) = Rotation::of(context, op) else { return of_part(context, op) };
    let rotation = rotation.stepped(context);
    let of_tables = |turned: Turned| turned.0 != &ROPE_ATTENTION_FACTOR;
    let is_longer = rotation.tables(context).is_some_and(|turn| turn.is_longer());
    let turned = TURNED.into_iter().filter(|turned| is_longer || of_tables(*turned));
    let mut forms: Vec<Form> = turned
        .map(|(mistake, name, word, turn)| {
            let params = (!name.is_empty()).then(|| (name, json!(word))).into_iter().collect();
            Form::one(mistake, params, op, rotation.change(turn))
        })
        .collect();
    for shift in (-SHIFTS..=SHIFTS).filter(|shift| *shift != 0) {
        let change = rotation.change(move |turn| turn.shifted(f64::from(shift)));
        forms.push(Form::one(&ROPE_POSITION, vec![("shift", json!(shift))], op, change));
    }
    forms.extend(of_decoding(context, &rotation));
    for factor in FACTORS {
        for (kind, times) in [(format!("linear by {factor}"), 1.0 / factor), (format!("times {factor}"), factor)] {
            let change = rotation.change(move |turn| turn.stepping(|w| w * times));
            forms.push(Form::one(&ROPE_SCALING, vec![("kind", json!(kind))], op, change));
        }
    }
    forms.extend(of_other_tables(context, &rotation));
    forms.extend(of_norm_behind(context, &rotation));
    let Some(steps) = rotation.steps.clone() else { return forms };
    // A token that was not turned by its own position shows nothing of the frequencies: the model's own would be a mistake.
    if rotation.tables(context).is_some_and(|turn| !turn.is_at_its_position()) {
        return forms;
    }
    forms.extend(of_shift(context, &rotation));
    let makes_its_base = context.ops().any(|at| context.base(at) == "pow" && turns_by(context, at));
    // Longer tables are those of a scaling: what has no scaling has another base by chance.
    forms.extend(rotation.of_frequencies(&steps, is_longer, makes_its_base));
    let whole = rotation.views[0].clone();
    forms.extend(rotation.of_parts(&whole, &steps));
    forms.extend(super::scaling::forms(context, &rotation));
    let owned = rotation.clone();
    forms.push(Form::any(&ROPE_SCALING, "factor", 1.0, At::Op(op), move |factor| {
        owned.change(move |turn| turn.stepping(|w| w * factor))
    }));
    let scaled = move |factor| rotation.change(move |turn: &mut Turn| turn.map(|x| factor * x));
    forms.push(Form::any(&ROPE_ATTENTION_FACTOR, "factor", 1.0, At::Op(op), scaled));
    forms
}

/// What is read as q and k are rotated, or not: v, what is normed first, layers that have no rotation.
pub(super) fn of_taps(context: &Context<'_>) -> Vec<Form> {
    let target = context.slice.target();
    let taps = context.program.taps();
    let known: Vec<usize> = context.slice.known().collect();
    let made = (0..taps.len()).filter(|&tap| tap != target && context.has(taps[tap].op));
    let read: BTreeSet<usize> = known.iter().copied().chain(made).collect();
    let at =
        |sites: &[Site]| read.iter().copied().filter(|&tap| sites.contains(&context.site(tap))).collect::<Vec<_>>();
    let turned = |mistake, params, taps: Vec<usize>| {
        let edit = |tap: usize| Some(Edit { at: At::Tap(tap), change: turned_as_beside(context, tap)? });
        let edits: Vec<Edit> = taps.into_iter().filter_map(edit).collect();
        (!edits.is_empty()).then(|| Form::new(mistake, params, edits))
    };
    let unrotated = || !context.ops().any(|op| is_rotation(context, op)) && at(&[Site::QRope, Site::KRope]).is_empty();
    let mut forms = Vec::new();
    match context.site(target) {
        Site::QNorm | Site::KNorm => forms.extend(turned(&QK_NORM_ORDER, vec![], at(&[Site::Q, Site::K]))),
        // What is normed behind the rotation is rotated without, and read as it is normed.
        Site::QRope | Site::KRope => forms.extend(reading(context, &[(Site::QNorm, Site::Q), (Site::KNorm, Site::K)])),
        Site::Qk | Site::Scores | Site::Probs if unrotated() => {
            let read = known.iter().copied();
            let both = read.filter(|&tap| matches!(context.site(tap), Site::Q | Site::K | Site::QNorm | Site::KNorm));
            forms.extend(turned(&ROPE_LAYER_KIND, vec![("kind", json!("rotated"))], both.collect()));
        }
        Site::Qk => forms.extend(reading(context, &[(Site::QRope, Site::QNorm), (Site::KRope, Site::KNorm)])),
        _ => {}
    }
    // Where one product makes q, k and v, its taps lie in one tensor: only what reads v can tell that it is turned.
    let site = context.site(target);
    let reads_v = site == Site::V || !(Site::Q..=Site::Probs).contains(&site);
    forms.extend(reads_v.then(|| turned(&ROPE_ON_V, vec![], at(&[Site::V]))).flatten());
    forms
}

/// Taps that are read, each for another of its layer and step that the candidate holds; one that it does not hold is made of what it read instead.
fn reading(context: &Context<'_>, others: &[(Site, Site)]) -> Option<Form> {
    let taps = context.program.taps();
    let edit = |tap: usize| {
        let place = context.held.place(tap);
        let (_, other) = others.iter().find(|(own, _)| *own == context.site(tap))?;
        let other = place.tap.sibling(*other);
        let other = (0..taps.len()).find(|&at| context.held.place(at) == Place { tap: other, ..place })?;
        let values = match context.held.get(other) {
            Some(_) => context.held.readable(other).map(array)?,
            None => context.made_of(other, &array(context.held.readable(tap)?))?,
        };
        let shape = taps[tap].view.shape.clone();
        let change = computed(&[], move |_| values.clone().into_shape_with_order(shape.as_slice()).ok());
        Some(Edit { at: At::Tap(tap), change })
    };
    let edits: Vec<Edit> = context.slice.known().filter_map(edit).collect();
    (!edits.is_empty()).then(|| Form::new(&QK_NORM_ORDER, vec![], edits))
}

/// What a tap holds, turned as the nearest rotation of its step turns.
fn turned_as_beside(context: &Context<'_>, tap: usize) -> Option<Change> {
    let record = &context.program.taps()[tap];
    let step = context.program.steps().get(record.step)?;
    let near = step.ops.clone().filter(|&op| is_rotation(context, op)).min_by_key(|op| op.abs_diff(record.op))?;
    let tables = Rotation::of(context, near)?.tables(context)?;
    let view = record.view.clone();
    Some(computed(&[&view], move |x| tables.turning(&x[0])))
}

/// Tokens that are decoded at a position that does not go on, or that begins at 0.
fn of_decoding(context: &Context<'_>, rotation: &Rotation) -> Vec<Form> {
    let [due, first] = [rotation.start, context.start(context.onset)].map(|position| position as f64);
    let all = [("decode-stuck", first - 1.0), ("decode-from-zero", due - first)];
    let others = all.into_iter().filter(|(_, at)| due >= first && *at != due);
    let form = |(kind, at): (&str, f64)| {
        let change = rotation.change(move |turn| turn.shifted(at - due));
        Form::one(&ROPE_POSITION, vec![("kind", json!(kind))], rotation.op, change)
    };
    others.map(form).collect()
}

/// All positions off by more than the shifts that are tried: as many as the angles between what is due and what the candidate has show.
fn of_shift(context: &Context<'_>, rotation: &Rotation) -> Option<Form> {
    let own = context.own_as(context.out(rotation.op)?)?;
    let turn = Turn::of(&context.read(rotation.op, &rotation.views.each_ref())?, rotation)?;
    let (steps, due) = (turn.steps.clone()?, Turn { x: turn.done()?.into_dimensionality().ok()?, ..turn });
    let angles: Vec<f64> = due
        .apart(&own)?
        .into_values()
        .fold(Vec::new(), |mut sums: Vec<[f64; 2]>, pairs| {
            sums.resize(pairs.len(), [0.0; 2]);
            sums.iter_mut().zip(pairs).for_each(|(sum, pair)| *sum = [sum[0] + pair[0], sum[1] + pair[1]]);
            sums
        })
        .into_iter()
        .map(|[dot, cross]| cross.atan2(dot))
        .collect();
    let off =
        |by: i32| angles.iter().zip(&steps).map(|(angle, w)| 1.0 - (angle - f64::from(by) * w).cos()).sum::<f64>();
    let shift = (-FARTHEST..=FARTHEST).min_by(|a, b| off(*a).total_cmp(&off(*b))).filter(|by| by.abs() > SHIFTS)?;
    let change = rotation.change(move |turn| turn.shifted(f64::from(shift)));
    Some(Form::one(&ROPE_POSITION, vec![("shift", json!(shift))], rotation.op, change))
}

/// A norm behind the rotation for one before: a turn leaves the mean square, so that only the gain comes later.
fn of_norm_behind(context: &Context<'_>, rotation: &Rotation) -> Option<Form> {
    let [x, cos, sin] = &rotation.views;
    let reads = |at: usize| context.tensors(at).iter().any(|(_, view)| view.buffer == x.buffer);
    let last = context.origin((0..=rotation.op).rev().find(|&at| reads(at))?, x)?;
    let gain = match context.base(last) {
        "rms_norm" => context.tensor(last, 2)?,
        _ if context.call(last).any(|at| context.base(at) == "rsqrt") => gain_of(context, last)?,
        _ => return None,
    };
    let width = *x.shape.last()?;
    let own = rotation.clone();
    let change = computed(&[x, cos, sin, gain], move |x| {
        let gain = match x[3].len() {
            len if len == width => x[3].clone().into_shape_with_order(vec![width]).ok()?,
            // Of all heads together: [H,1,d] of [H d].
            len => x[3].clone().into_shape_with_order(vec![len / width, 1, width]).ok()?,
        };
        let bare = over(&x[0], &gain)?;
        let turned = Turn::of(&[bare, x[1].clone(), x[2].clone()], &own)?.done()?;
        times(&turned.into_shape_with_order(x[0].shape()).ok()?, &gain)?
            .into_shape_with_order(own.shape.as_slice())
            .ok()
    });
    Some(Form::one(&QK_NORM_ORDER, vec![], rotation.op, change))
}

/// The tables that other layers of the step have.
fn of_other_tables(context: &Context<'_>, rotation: &Rotation) -> Vec<Form> {
    let step = context.program.steps().get(context.step_of(rotation.op));
    let own = [&rotation.views[1], &rotation.views[2]];
    let is_own = |tables: &[ArrayD<f64>; 2]| {
        tables.iter().zip(own).all(|(a, b)| context.table(rotation.op, b).as_ref() == Some(a))
    };
    let mut seen: Vec<[View; 2]> = vec![own.map(View::clone)];
    let mut forms = Vec::new();
    for op in step.into_iter().flat_map(|step| step.ops.clone()) {
        let Some(Rotation { views: [_, cos, sin], .. }) = Rotation::of(context, op) else { continue };
        // The same two exchanged are no tables of another layer.
        let is_known = seen.contains(&[cos.clone(), sin.clone()]) || seen.contains(&[sin.clone(), cos.clone()]);
        let is_new = cos.shape == own[0].shape && !is_known;
        let tables = is_new.then(|| Some([context.table(op, &cos)?, context.table(op, &sin)?])).flatten();
        let tables = tables.filter(|tables| !is_own(tables));
        seen.push([cos, sin]);
        if let Some([cos, sin]) = tables {
            let change = rotation.with_tables(cos, sin);
            forms.push(Form::one(&ROPE_LAYER_KIND, vec![("kind", json!("other tables"))], rotation.op, change));
            break;
        }
    }
    forms
}

/// A rotation of a part of each head, and what is left as it is: another part is turned.
fn of_part(context: &Context<'_>, op: usize) -> Vec<Form> {
    let whole = || {
        let [turned, rest] = context.joined(op)?;
        let rotation = Rotation::of(context, context.origin(op, turned)?)?.stepped(context);
        let x = &rotation.views[0];
        let width = *x.shape.last()?;
        let beside = rest.buffer == x.buffer && rest.offset == x.offset + width && x.strides.last() == Some(&1);
        let mut all = x.clone();
        *all.shape.last_mut()? = width + rest.shape.last()?;
        let shape = context.out(op)?.shape.clone();
        beside.then_some((all, Rotation { op, shape, ..rotation }))
    };
    let Some((all, rotation)) = whole().filter(|_| context.base(op) == "cat") else { return Vec::new() };
    rotation.steps.as_ref().map_or_else(Vec::new, |steps| rotation.of_parts(&all, steps))
}

/// Digits of a base that models have.
const BASE_DIGITS: i32 = 3;

/// The positions themselves, where a slice makes its tables of them.
fn of_positions(context: &Context<'_>, op: usize) -> Vec<Form> {
    let turns = context.ops().any(|at| context.base(at) == "cos" || context.base(at) == "polar");
    let whole = |operand: &Operand| match operand {
        Operand::Scalar(Scalar::Int(x)) => Some(*x),
        _ => None,
    };
    let numbers: Option<Vec<i64>> = context.op(op).operands.iter().map(whole).collect();
    let (first, last) = match numbers.as_deref() {
        Some([last]) => (0, *last),
        Some([first, last]) => (*first, *last),
        _ => return Vec::new(),
    };
    // Positions of tokens, and no others that are counted up.
    if !turns || last - first != context.tokens(op) as i64 {
        return Vec::new();
    }
    // A mask that is made of the same positions stays as it is.
    let is_turned = |&at: &usize| turns_by(context, at);
    let readers = context.program.readers(op).iter().copied().filter(|&at| context.has(at)).filter(is_turned);
    let readers: Vec<usize> = readers.collect();
    let beginning = |at: i64| {
        let by = (at - first) as f64;
        let edit = |&reader: &usize| {
            let read = context.tensors(reader).into_iter().filter(|(_, view)| context.maker(reader, view) == Some(op));
            let shifted = |(place, view)| other_operand((place, None), view, Arc::new(move |x| Some(x + by)));
            Edit { at: At::Op(reader), change: Change::Operands(read.map(shifted).collect()) }
        };
        readers.iter().map(edit).collect::<Vec<Edit>>()
    };
    let mut forms = Vec::new();
    let position = |params, at| Form::new(&ROPE_POSITION, params, beginning(at));
    if readers.is_empty() {
        return forms;
    }
    if first > 0 {
        let kinds = [("decode-zero", 0), ("decode-behind", first - 1), ("decode-ahead", first + 1)];
        forms.extend(kinds.map(|(kind, at)| position(vec![("kind", json!(kind))], at)));
    }
    forms.extend([-2i64, -1, 1, 2].map(|shift| position(vec![("shift", json!(shift))], first + shift)));
    forms
}

/// The base of frequencies that the program makes itself, whatever scales them.
pub(super) fn of_base(context: &Context<'_>, op: usize) -> Vec<Form> {
    let is_power = context.base(op) == "pow" && turns_by(context, op);
    let Some((0, base)) = context.number(op).filter(|_| is_power) else { return Vec::new() };
    let number = numbers(context.op(op), 0);
    let form = |theta: f64| Form::one(&ROPE_THETA, vec![("theta", json!(theta))], op, number(theta)).due(base);
    let others = BASES.into_iter().filter(|other| (other - base).abs() > SAME_STEP * base);
    let mut forms: Vec<Form> = others.map(form).collect();
    forms.push(Form::any(&ROPE_THETA, "theta", 1e5, At::Op(op), number).due(base));
    forms
}

/// Whether tables of a rotation are made of what an operation gives.
fn turns_by(context: &Context<'_>, op: usize) -> bool {
    context.leads_to(op, |at| matches!(context.base(at), "cos" | "polar"))
}

/// A factor on the tables.
fn of_factor(context: &Context<'_>, op: usize) -> Vec<Form> {
    let Some((place, factor)) = context.number(op).filter(|(_, factor)| *factor != 0.0 && *factor != 1.0) else {
        return Vec::new();
    };
    let table = context.tensors(op).into_iter().map(|(_, view)| view).find(|view| context.is_table(view));
    let turns =
        table.and_then(|table| context.maker(op, table)).is_some_and(|at| matches!(context.base(at), "cos" | "sin"));
    if !turns {
        return Vec::new();
    }
    let form = |(kind, number): (&str, f64)| {
        let change = with_number(context.op(op), place, number);
        Form::one(&ROPE_ATTENTION_FACTOR, vec![("factor", json!(kind))], op, change).due(factor)
    };
    [("ignored", 1.0), ("twice", factor * factor), ("inverse", 1.0 / factor)].map(form).to_vec()
}

impl Rotation {
    /// Frequencies of another base, and of another scaling. No model has a base of many digits: one is made by a scaling, as that of a longer context.
    fn of_frequencies(&self, steps: &Arc<Vec<f64>>, is_longer: bool, makes_its_base: bool) -> Vec<Form> {
        let (op, own) = (self.op, self.clone());
        let first = steps.first().copied().unwrap_or(1.0);
        let mut forms = Vec::new();
        let (base, kept) = base_of(steps).map_or((None, KEPT[0]), |(base, kept)| (Some(base), kept));
        let is_scaled =
            is_longer || base.is_some_and(|base| (rounded_to(base, BASE_DIGITS) - base).abs() > SAME_STEP * base);
        // The base that the program takes powers of is told there.
        if let Some(base) = base.filter(|_| is_scaled || !makes_its_base) {
            let (mistake, said): (&'static Mistake, Params) =
                if is_scaled { (&ROPE_SCALING, vec![("kind", json!("absent"))]) } else { (&ROPE_THETA, vec![]) };
            // Of two pairs any scaling makes another base.
            let due = (!is_scaled && steps.len() > 2).then_some(base);
            let other = |other: &f64| (other - base).abs() > SAME_STEP * base;
            for theta in BASES.into_iter().chain([base.sqrt()]).filter(other) {
                let params = [&said[..], &[("theta", json!(theta))]].concat();
                forms.push(Form::one(mistake, params, op, self.by_powers(first, theta, kept)).due(due));
            }
            let any = Form::any(mistake, "theta", base, At::Op(op), move |theta| own.by_powers(first, theta, kept));
            forms.push(any.saying(said).due(due));
        }
        let is_told = makes_its_base || steps.len() > 2;
        if base.is_some() && (first - 1.0).abs() <= SAME_STEP && !is_scaled && is_told {
            return forms;
        }
        for base in bases_of(steps) {
            let said = |kind: &str| vec![("kind", json!(kind)), ("theta", json!(base))];
            let scaled = steps.clone();
            let inverse = self.change(move |turn| {
                let count = turn.cos.ncols() as f64;
                let own = |i: usize| base.powf(-(i as f64) / count);
                (scaled.len() == turn.cos.ncols()).then(|| turn.turned_by(|p, i| p * own(i).powi(2) / scaled[i]))
            });
            if is_longer {
                let owned = self.clone();
                forms.push(Form::one(&ROPE_SCALING, said("absent"), op, self.by_bare_powers(1.0, base, kept)));
                let linear = Form::any(&ROPE_SCALING, "factor", 1.0, At::Op(op), move |factor| {
                    owned.by_bare_powers(factor, base, kept)
                });
                forms.push(linear.saying(said("linear")));
            }
            forms.push(Form::one(&ROPE_SCALING, said("absent"), op, self.by_powers(1.0, base, kept)));
            forms.push(Form::one(&ROPE_SCALING, said("inverse"), op, inverse));
            let own = self.clone();
            let linear =
                Form::any(&ROPE_SCALING, "factor", 1.0, At::Op(op), move |factor| own.by_powers(factor, base, kept));
            forms.push(linear.saying(said("linear")));
        }
        let own = self.clone();
        let absent = Form::any(&ROPE_SCALING, "theta", 1e4, At::Op(op), move |theta| own.by_powers(1.0, theta, kept));
        forms.push(absent.saying(vec![("kind", json!("absent"))]));
        forms
    }

    /// Another share of each head is turned, with exponents over that or over the head; `all` is the head.
    fn of_parts(&self, all: &View, steps: &Arc<Vec<f64>>) -> Vec<Form> {
        let (width, own) = (all.shape.last().copied().unwrap_or(0), 2 * steps.len());
        let base = base_of(steps).map(|(base, _)| base);
        let form = |params: Params, part: usize, over: usize| {
            // What is scaled is known where the exponents are.
            let frequencies: Vec<f64> = match base {
                _ if over == own && part <= own => steps[..part / 2].to_vec(),
                Some(base) => (0..part / 2).map(|i| steps[0] * base.powf(-2.0 * i as f64 / over as f64)).collect(),
                None => return None,
            };
            let rotation = self.clone();
            let change = computed(&[all, &self.views[1], &self.views[2]], move |x| {
                let last = Axis(x[0].ndim().checked_sub(1)?);
                let rotated = x[0].slice_axis(last, Slice::from(..own.min(width))).to_owned();
                let turn = Turn::of(&[rotated, x[1].clone(), x[2].clone()], &rotation)?;
                turn.of_part(&x[0], &frequencies)?.into_shape_with_order(rotation.shape.as_slice()).ok()
            });
            Some(Form::one(&ROPE_PARTIAL, params, self.op, change))
        };
        let mut forms = Vec::new();
        let parts: BTreeSet<usize> = (1..=PARTS).map(|part| 2 * (width * part / PARTS / 2)).collect();
        for part in parts.into_iter().filter(|part| *part > 0) {
            for over in BTreeSet::from([part, width]).into_iter().filter(|over| [part, *over] != [own, own]) {
                let mut params = vec![("rotary_dim", json!(part))];
                params.extend((over != part).then(|| ("exponent", json!("2i/head_dim"))));
                forms.extend(form(params, part, over));
            }
        }
        if width == own {
            let counts: BTreeSet<usize> = (1..PARTS).map(|part| steps.len() * part / PARTS).collect();
            for count in counts.into_iter().filter(|count| *count > 0) {
                let change = self.change(move |turn| turn.leaving(count));
                forms.push(Form::one(&ROPE_PARTIAL, vec![("pairs", json!(count))], self.op, change));
            }
        }
        forms
    }
}
