//! Rotations: pairs of elements that are multiplied with tables of cosines and sines.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use firstdiff_compare::Place;
use firstdiff_program::{At, Change, Edit, Operand, Scalar, View};
use firstdiff_trace::Site;
use half::{bf16, f16};
use ndarray::{Array2, ArrayD, Axis, Slice};
use serde_json::json;

use super::norm::gain_of;
use super::{Form, computed, numbers, other_operand, over, times, with_number};
use crate::mistakes::norm::QK_NORM_ORDER;
use crate::mistakes::recorded::ROPE_LAYER_KIND;
use crate::mistakes::rope::{
    ALIASING, BASES, ROPE_ATTENTION_FACTOR, ROPE_DIRECTION, ROPE_EXPONENT, ROPE_OMITTED, ROPE_ON_V, ROPE_PAIRING,
    ROPE_PARTIAL, ROPE_POSITION, ROPE_PRECISION, ROPE_SCALING, ROPE_THETA, ROPE_TWICE,
};
use crate::mistakes::{Mistake, Params};
use crate::program::context::Context;
use crate::program::held::array;
use crate::program::search::rounded_to;
use crate::tolerance::search::SAME_STEP;

/// Factors of scalings.
const FACTORS: [f64; 12] = [1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 32.0, 64.0];
/// Positions by which others may be off.
const SHIFTS: i32 = 8;
/// And by which they may be seen to be off.
const FARTHEST: i32 = 8192;
/// Shares of a head that may be turned, in so many parts.
const PARTS: usize = 8;

/// A rotation: its last operation, what it turns, and the two tables.
#[derive(Clone)]
pub(super) struct Rotation {
    pub(super) op: usize,
    pub(super) views: [View; 3],
    /// Of what it gives.
    shape: Vec<usize>,
    /// Position of the step's first token.
    start: usize,
    /// The angle of each pair from one position to the next, where a step of several positions shows it.
    pub(super) steps: Option<Arc<Vec<f64>>>,
}

pub(super) fn forms(context: &Context<'_>, op: usize) -> Vec<Form> {
    match context.base(op) {
        "arange" => return of_positions(context, op),
        "mul" => return of_factor(context, op),
        _ => {}
    }
    let Some(rotation) = Rotation::of(context, op) else { return of_part(context, op) };
    let rotation = rotation.stepped(context);
    let one = |mistake: &'static Mistake, params: Params, turn: fn(&mut Turn) -> Option<()>| {
        Form::one(mistake, params, op, rotation.change(turn))
    };
    let set = |mistake: &'static Mistake, params: Params, turn: fn(&mut Turn)| {
        let change = rotation.change(move |turned| {
            turn(turned);
            Some(())
        });
        Form::one(mistake, params, op, change)
    };
    let mut forms = vec![
        set(&ROPE_OMITTED, vec![], |turn| turn.times = 0),
        set(&ROPE_PAIRING, vec![], |turn| turn.halves = !turn.halves),
        set(&ROPE_DIRECTION, vec![], |turn| turn.sin.mapv_inplace(|sin| -sin)),
        set(&ROPE_TWICE, vec![], |turn| turn.times = 2),
        set(&ROPE_PRECISION, vec![("tables", json!("bf16"))], |turn| turn.map(|x| bf16::from_f64(x).to_f64())),
        one(&ROPE_PRECISION, vec![("frequencies", json!("bf16"))], |turn| {
            turn.stepping(|w| bf16::from_f64(w).to_f64())
        }),
        set(&ROPE_PRECISION, vec![("tables", json!("f16"))], |turn| turn.map(|x| f16::from_f64(x).to_f64())),
        one(&ROPE_PRECISION, vec![("frequencies", json!("f16"))], |turn| turn.stepping(|w| f16::from_f64(w).to_f64())),
        one(&ROPE_PRECISION, vec![("angles", json!("bf16"))], |turn| {
            let round = |x: f64| bf16::from_f64(x).to_f64();
            turn.by_angles(|position, _, w| round(position * round(w)))
        }),
        // What is written first is read again.
        set(&ALIASING, vec![("kind", json!("rotated in place"))], |turn| turn.rereads = true),
        one(&ROPE_EXPONENT, vec![], |turn| turn.stepping(|w| w.abs().sqrt())),
        one(&ROPE_POSITION, vec![("kind", json!("decode-zero"))], Turn::restarted),
        one(&ROPE_POSITION, vec![("kind", json!("the last for all"))], Turn::of_the_last),
    ];
    if rotation.tables(context).is_some_and(|turn| turn.is_longer()) {
        forms.push(one(&ROPE_ATTENTION_FACTOR, vec![("factor", json!("ignored"))], Turn::normalised));
    }
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
    // Longer tables are those of a scaling: what has no scaling has another base by chance.
    let is_longer = rotation.tables(context).is_some_and(|turn| turn.is_longer());
    forms.extend(of_shift(context, &rotation));
    let makes_its_base = context.ops().any(|at| context.base(at) == "pow" && turns_by(context, at));
    forms.extend(rotation.of_frequencies(&steps, is_longer, makes_its_base));
    let whole = rotation.views[0].clone();
    forms.extend(rotation.of_parts(&whole, &steps));
    forms.extend(super::scaling::forms(context, &rotation));
    let owned = rotation.clone();
    forms.push(Form::any(&ROPE_SCALING, "factor", 1.0, At::Op(op), move |factor| {
        owned.change(move |turn| turn.stepping(|w| w * factor))
    }));
    let scaled = move |factor| {
        rotation.change(move |turn: &mut Turn| {
            turn.map(|x| factor * x);
            Some(())
        })
    };
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
    let before = context.program.steps().iter().take(context.onset).map(|step| step.tokens);
    let first: usize = before.sum();
    let [due, first] = [rotation.start, first].map(|position| position as f64);
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
        let Some(Operand::List(parts)) = context.op(op).operands.first() else { return None };
        let [Operand::View(turned), Operand::View(rest)] = &parts[..] else { return None };
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

/// How frequencies are kept.
type Kept = fn(f64) -> f64;
/// A model in 16 bits may keep its frequencies in them too.
const KEPT: [Kept; 3] = [|w| w, |w| bf16::from_f64(w).to_f64(), |w| f16::from_f64(w).to_f64()];

/// The base of which frequencies are the powers base^(-2i/d), times the first of them, and how these are kept.
pub(super) fn base_of(steps: &[f64]) -> Option<(f64, Kept)> {
    let (first, count) = (*steps.first()?, steps.len() as f64);
    let base = (steps.get(1)? / first).powf(-count);
    let are_powers = |(base, kept): &(f64, Kept)| {
        let due = |i: usize| kept(first * base.powf(-(i as f64) / count));
        base.is_finite() && steps.iter().enumerate().all(|(i, w)| (w / due(i) - 1.0).abs() <= SAME_STEP)
    };
    // Kept in 16 bits they are those of several bases: one that models have comes first.
    let known = KEPT.iter().flat_map(|kept| BASES.map(|base| (base, *kept)));
    let found = known.chain([(base, KEPT[0])]).find(are_powers);
    found.map(|(base, kept)| (plain(base), kept))
}

/// Bases that scaled frequencies may have come from: a scaling leaves some as they are, or gives neighbours one factor.
pub(super) fn bases_of(steps: &[f64]) -> Vec<f64> {
    let count = steps.len() as f64;
    let alone = (1..steps.len()).map(|i| steps[i].powf(-count / i as f64));
    let beside = steps.windows(2).map(|pair| (pair[1] / pair[0]).powf(-count));
    let mut out: Vec<f64> = Vec::new();
    for base in alone.chain(beside).map(plain).filter(|base| base.is_finite() && *base > 1.0) {
        if !out.contains(&base) && out.len() < MOST_BASES {
            out.push(base);
        }
    }
    out
}

/// Digits of a base that models have.
const BASE_DIGITS: i32 = 3;
/// Bases of a scaled table that are tried.
const MOST_BASES: usize = 24;

/// A number that was computed in f32, or the plain one that it is as good as.
fn plain(x: f64) -> f64 {
    let plain = rounded_to(x, 4);
    if (plain - x).abs() <= SAME_STEP * x { plain } else { x }
}

/// The positions themselves, where a slice makes its tables of them.
fn of_positions(context: &Context<'_>, op: usize) -> Vec<Form> {
    let turns = context.ops().any(|at| context.base(at) == "cos" || context.base(at) == "polar");
    let numbers: Option<Vec<i64>> = context
        .op(op)
        .operands
        .iter()
        .map(|operand| match operand {
            Operand::Scalar(Scalar::Int(x)) => Some(*x),
            _ => None,
        })
        .collect();
    let (first, last) = match numbers.as_deref() {
        Some([last]) => (0, *last),
        Some([first, last]) => (*first, *last),
        _ => return Vec::new(),
    };
    // Positions of tokens, and no others that are counted up.
    let tokens = context.program.steps().get(context.step_of(op)).map_or(0, |step| step.tokens as i64);
    if !turns || last - first != tokens {
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
    let change = numbers(context.op(op), 0);
    let form = |theta: f64| Form::one(&ROPE_THETA, vec![("theta", json!(theta))], op, change(theta)).due(base);
    let others = BASES.into_iter().filter(|other| (other - base).abs() > SAME_STEP * base);
    let mut forms: Vec<Form> = others.map(form).collect();
    forms.push(Form::any(&ROPE_THETA, "theta", 1e5, At::Op(op), numbers(context.op(op), 0)).due(base));
    forms
}

/// Whether tables of a rotation are made of what an operation gives.
fn turns_by(context: &Context<'_>, op: usize) -> bool {
    context.leads_to(op, |at| matches!(context.base(at), "cos" | "polar"))
}

/// Whether an operation ends a rotation.
pub(crate) fn is_rotation(context: &Context<'_>, op: usize) -> bool {
    Rotation::of(context, op).is_some()
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
    let said = |kind: &str| vec![("factor", json!(kind))];
    let change = |number: f64| with_number(context.op(op), place, number);
    vec![
        Form::one(&ROPE_ATTENTION_FACTOR, said("ignored"), op, change(1.0)).due(factor),
        Form::one(&ROPE_ATTENTION_FACTOR, said("twice"), op, change(factor * factor)).due(factor),
        Form::one(&ROPE_ATTENTION_FACTOR, said("inverse"), op, change(1.0 / factor)).due(factor),
    ]
}

impl Rotation {
    pub(super) fn of(context: &Context<'_>, op: usize) -> Option<Rotation> {
        let views = match context.base(op) {
            "add" => whole(context, op),
            "cat" => halves(context, op),
            _ => None,
        }?;
        let start = context.program.steps().iter().take(context.step_of(op)).map(|step| step.tokens).sum();
        Some(Rotation { op, views, shape: context.out(op)?.shape.clone(), start, steps: None })
    }

    /// With the angles of a step of several positions: its own, or another one's of the same module; of two steps of one position each, where none has more.
    fn stepped(self, context: &Context<'_>) -> Rotation {
        let (program, module) = (context.program, context.module(self.op));
        let several = program.steps().iter().filter(|step| step.tokens > 1).flat_map(|step| step.ops.clone());
        let same = |op: &usize| program.class(*op) == program.class(self.op) && context.module(*op) == module;
        let steps = several.filter(same).find_map(|op| Rotation::of(context, op)?.tables(context)?.steps);
        let of_two = || {
            let all = program.steps().iter().flat_map(|step| step.ops.clone()).filter(same);
            let mut turns = all.filter_map(|op| Rotation::of(context, op)?.tables(context));
            let (a, b) = (turns.next()?, turns.next()?);
            let are_neighbours = b.positions.first()? - a.positions.first()? == 1.0;
            let of = |turn: &Turn, i: usize| [turn.cos[[0, i]], turn.sin[[0, i]]];
            are_neighbours.then(|| (0..a.cos.ncols()).map(|i| angle_between(of(&a, i), of(&b, i))).collect())
        };
        Rotation { steps: steps.or_else(of_two).map(Arc::new), ..self }
    }

    /// What it turns nothing by.
    fn tables(&self, context: &Context<'_>) -> Option<Turn> {
        let [x, cos, sin] = &self.views;
        let zeros = ArrayD::zeros(x.shape.as_slice());
        Turn::of(&[zeros, context.table(self.op, cos)?, context.table(self.op, sin)?], self)
    }

    /// Turned otherwise.
    pub(super) fn change(&self, turn: impl Fn(&mut Turn) -> Option<()> + Send + Sync + 'static) -> Change {
        let own = self.clone();
        computed(&self.views.each_ref(), move |x| {
            let mut turned = Turn::of(x, &own)?;
            turn(&mut turned)?;
            turned.done()?.into_shape_with_order(own.shape.as_slice()).ok()
        })
    }

    fn with_tables(&self, cos: ArrayD<f64>, sin: ArrayD<f64>) -> Change {
        let own = self.clone();
        computed(&[&self.views[0]], move |x| {
            let turned = Turn::of(&[x[0].clone(), cos.clone(), sin.clone()], &own)?;
            turned.done()?.into_shape_with_order(own.shape.as_slice()).ok()
        })
    }

    /// With the powers of a base as frequencies, times the first of them.
    fn by_powers(&self, first: f64, base: f64, kept: Kept) -> Change {
        self.change(move |turn| turn.by_powers(first, base, kept))
    }

    /// The same with tables that carry no factor: a scaling that is not made brings none.
    fn by_bare_powers(&self, first: f64, base: f64, kept: Kept) -> Change {
        self.change(move |turn| {
            turn.normalised()?;
            turn.by_powers(first, base, kept)
        })
    }

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
            let any = Form::any(mistake, "theta", 1e5, At::Op(op), move |theta| own.by_powers(first, theta, kept));
            forms.push(any.saying(said).due(due));
        }
        if base.is_some() && (first - 1.0).abs() <= SAME_STEP && !is_scaled && steps.len() > 2 {
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

/// x cos + turned(x) sin, of whole heads.
fn whole(context: &Context<'_>, op: usize) -> Option<[View; 3]> {
    let [(_, a), (_, b)] = context.tensors(op)[..] else { return None };
    let ([first, second], out) = ([a, b].map(|view| scaled(context, op, view)), context.out(op)?);
    let ((x, cos), (turned, sin)) = (first?, second?);
    let (x, cos, sin) = if x.elements() == out.elements() && is_turned(context, op, b, &turned) {
        (x, cos, sin)
    } else {
        (turned, sin, cos)
    };
    (x.shape == out.shape).then_some([x, cos, sin])
}

/// Whether what is multiplied by a table is another view of an activation, put together from its pairs.
fn is_turned(context: &Context<'_>, op: usize, product: &View, turned: &View) -> bool {
    let Some(maker) = context.maker(op, product) else { return false };
    let origin = context.origin(maker, turned);
    origin.is_some_and(|at| matches!(context.base(at), "cat" | "stack" | "neg" | "concat"))
}

/// An activation that was multiplied with a table.
fn scaled(context: &Context<'_>, op: usize, view: &View) -> Option<(View, View)> {
    let maker = context.maker(op, view).filter(|&maker| context.base(maker) == "mul")?;
    let [(_, a), (_, b)] = context.tensors(maker)[..] else { return None };
    match (context.is_activation(a), context.is_activation(b)) {
        (true, false) if context.is_table(b) => Some((a.clone(), b.clone())),
        (false, true) if context.is_table(a) => Some((b.clone(), a.clone())),
        _ => None,
    }
}

/// [x1 cos - x2 sin, x2 cos + x1 sin].
fn halves(context: &Context<'_>, op: usize) -> Option<[View; 3]> {
    let Some(Operand::List(parts)) = context.op(op).operands.first() else { return None };
    let [Operand::View(first), Operand::View(_)] = &parts[..] else { return None };
    let first = context.maker(op, first).filter(|&at| context.base(at) == "sub")?;
    let [(_, a), (_, b)] = context.tensors(first)[..] else { return None };
    let ((x1, cos), (x2, sin)) = (scaled(context, first, a)?, scaled(context, first, b)?);
    let width = *x1.shape.last()?;
    // Both halves of one buffer, side by side.
    let beside = x1.buffer == x2.buffer && x1.strides.last() == Some(&1) && x2.offset == x1.offset + width;
    let mut x = x1;
    *x.shape.last_mut()? = 2 * width;
    beside.then_some([x, cos, sin])
}

/// Rows of pairs, and the angles that they are turned by.
pub(super) struct Turn {
    x: Array2<f64>,
    cos: Array2<f64>,
    sin: Array2<f64>,
    /// Whether the pairs are (i, i + d/2), else (2i, 2i + 1).
    halves: bool,
    times: usize,
    /// Whether the second of a pair is made of the first as it was written.
    rereads: bool,
    /// The position of each row.
    positions: Vec<f64>,
    /// The angle of each pair from one position to the next, where the tables have two.
    steps: Option<Vec<f64>>,
}

/// The angle from one cosine and sine to another.
fn angle_between([a, b]: [f64; 2], [c, s]: [f64; 2]) -> f64 {
    (s * a - c * b).atan2(c * a + s * b)
}

impl Turn {
    pub(super) fn of(x: &[ArrayD<f64>], rotation: &Rotation) -> Option<Turn> {
        let [x, cos, sin] = x else { return None };
        let (width, tables) = (*x.shape().last()?, *cos.shape().last()?);
        let pairs = width / 2;
        // A table wider or narrower than this is none of these pairs'.
        if tables != width && tables != pairs || cos.shape() != sin.shape() || cos.ndim() > x.ndim() {
            return None;
        }
        let is_twice = |row: ndarray::ArrayView1<'_, f64>| (0..pairs).all(|i| row[i] == row[i + pairs]);
        // Tables of one number a pair belong to halves; of two, they show the pairs themselves.
        let halves = tables == pairs || pairs < 2 || cos.rows().into_iter().all(is_twice);
        let index = |i: usize| if tables == pairs || halves { i } else { 2 * i };
        let rows = x.len() / width.max(1);
        let table = |values: &ArrayD<f64>| -> Option<Array2<f64>> {
            let mut shape = x.shape().to_vec();
            *shape.last_mut()? = tables;
            let all = values.broadcast(shape)?.to_owned().into_shape_with_order((rows, tables)).ok()?;
            Some(Array2::from_shape_fn((rows, pairs), |(row, i)| all[[row, index(i)]]))
        };
        // Positions run along the axis of the tables that is neither the last nor alone.
        let lead = x.ndim() - cos.ndim();
        let axis = (0..cos.ndim().saturating_sub(1)).rev().find(|&axis| cos.shape()[axis] > 1).map(|axis| axis + lead);
        let inner: usize = axis.map_or(1, |axis| x.shape()[axis + 1..x.ndim() - 1].iter().product());
        let count = axis.map_or(1, |axis| x.shape()[axis]);
        let position = |row: usize| if axis.is_some() { row / inner % count } else { 0 };
        let (cos, sin) = (table(cos)?, table(sin)?);
        let first = |at: usize| (0..rows).find(|&row| position(row) == at);
        let steps = first(0).zip(first(1)).map(|(a, b)| {
            let of = |row: usize, i: usize| [cos[[row, i]], sin[[row, i]]];
            (0..pairs).map(|i| angle_between(of(a, i), of(b, i))).collect()
        });
        let steps = steps.or_else(|| rotation.steps.as_deref().filter(|steps| steps.len() == pairs).cloned());
        let flat = x.as_standard_layout().into_owned().into_shape_with_order((rows, width)).ok()?;
        let positions = (0..rows).map(|row| (rotation.start + position(row)) as f64).collect();
        (width % 2 == 0).then_some(Turn { x: flat, cos, sin, halves, times: 1, rereads: false, positions, steps })
    }

    fn done(&self) -> Option<ArrayD<f64>> {
        let (pairs, mut x) = (self.cos.ncols(), self.x.clone());
        for _ in 0..self.times {
            for (row, mut values) in x.rows_mut().into_iter().enumerate() {
                for i in 0..pairs {
                    let (a, b) = if self.halves { (i, i + pairs) } else { (2 * i, 2 * i + 1) };
                    let (c, s, p, q) = (self.cos[[row, i]], self.sin[[row, i]], values[a], values[b]);
                    values[a] = p * c - q * s;
                    values[b] = q * c + if self.rereads { values[a] } else { p } * s;
                }
            }
        }
        Some(x.into_dyn())
    }

    /// Turns each pair by another angle, and leaves its length.
    fn turned_by(&mut self, angle: impl Fn(f64, usize) -> f64) {
        for ((row, i), cos) in self.cos.indexed_iter_mut() {
            let sin = &mut self.sin[[row, i]];
            let (length, turn) = (cos.hypot(*sin), angle(self.positions[row], i));
            (*cos, *sin) = (length * turn.cos(), length * turn.sin());
        }
    }

    /// With the powers of a base as frequencies, times the first of them.
    fn by_powers(&mut self, first: f64, base: f64, kept: Kept) -> Option<()> {
        let count = self.cos.ncols() as f64;
        self.turned_by(|position, i| position * kept(first * base.powf(-(i as f64) / count)));
        Some(())
    }

    /// Turns each pair by an angle made of its position, its number and its frequency.
    fn by_angles(&mut self, angle: impl Fn(f64, usize, f64) -> f64) -> Option<()> {
        let steps = self.steps.clone()?;
        self.turned_by(|position, i| angle(position, i, steps[i]));
        Some(())
    }

    /// With frequencies that are a function of the right ones.
    fn stepping(&mut self, of: impl Fn(f64) -> f64) -> Option<()> {
        self.by_angles(|position, _, w| position * of(w))
    }

    /// Whether a single position was turned by its number times the frequencies of the other steps.
    fn is_at_its_position(&self) -> bool {
        let Some(steps) = self.steps.as_ref().filter(|_| self.positions.windows(2).all(|pair| pair[0] == pair[1]))
        else {
            return true;
        };
        self.cos.indexed_iter().all(|((row, i), cos)| {
            let (sin, turn) = (self.sin[[row, i]], self.positions[row] * steps[i]);
            let (length, off) = (cos.hypot(sin), |x: f64, due: f64| (x - due).abs());
            let room = SAME_STEP * length * (1.0 + turn.abs());
            off(*cos, length * turn.cos()) <= room && off(sin, length * turn.sin()) <= room
        })
    }

    /// With these frequencies.
    pub(super) fn turned_with(&mut self, frequencies: &[f64]) -> Option<()> {
        (frequencies.len() == self.cos.ncols()).then(|| self.turned_by(|position, i| position * frequencies[i]))
    }

    /// Of each position and pair, all heads together: the cosine and the sine of the angle between its rows and those of `own`, times a length.
    fn apart(&self, own: &ArrayD<f64>) -> Option<BTreeMap<usize, Vec<[f64; 2]>>> {
        let own = own.as_standard_layout().into_owned().into_shape_with_order(self.x.raw_dim()).ok()?;
        let pairs = self.cos.ncols();
        let mut turned: BTreeMap<usize, Vec<[f64; 2]>> = BTreeMap::new();
        for ((&position, before), after) in self.positions.iter().zip(self.x.rows()).zip(own.rows()) {
            let sums = turned.entry(position as usize).or_insert_with(|| vec![[0.0; 2]; pairs]);
            for (i, [dot, cross]) in sums.iter_mut().enumerate() {
                let (a, b) = if self.halves { (i, i + pairs) } else { (2 * i, 2 * i + 1) };
                *dot += before[a] * after[a] + before[b] * after[b];
                *cross += before[a] * after[b] - before[b] * after[a];
            }
        }
        Some(turned)
    }

    /// The frequency of each pair by which `own` was turned, as far as that grows with the position, and the largest position; `None` of fewer positions.
    pub(super) fn frequencies(&self, own: &ArrayD<f64>, least: usize) -> Option<(Vec<f64>, f64)> {
        let (pairs, turned) = (self.cos.ncols(), self.apart(own)?);
        let positions: Vec<usize> = turned.keys().copied().collect();
        let follow = || positions.windows(2).filter(|pair| pair[1] == pair[0] + 1);
        if follow().count() + 1 < least {
            return None;
        }
        let frequency = |i: usize| {
            let apart = follow().map(|pair| (turned[&pair[0]][i], turned[&pair[1]][i]));
            let sum = apart.fold([0.0; 2], |[dot, cross], ([c, s], [next_c, next_s])| {
                [dot + c * next_c + s * next_s, cross + c * next_s - s * next_c]
            });
            // Each position behind says it more exactly.
            positions.iter().filter(|position| **position > 0).fold(sum[1].atan2(sum[0]), |near, &position| {
                let [c, s] = turned[&position][i];
                let due = position as f64 * near;
                let off = (s * due.cos() - c * due.sin()).atan2(c * due.cos() + s * due.sin());
                near + off / position as f64
            })
        };
        Some(((0..pairs).map(frequency).collect(), *positions.last()? as f64))
    }

    fn shifted(&mut self, by: f64) -> Option<()> {
        self.by_angles(|position, _, w| (position + by) * w)
    }

    /// Whether the tables carry a factor.
    fn is_longer(&self) -> bool {
        self.cos.iter().zip(&self.sin).any(|(cos, sin)| (cos.hypot(*sin) - 1.0).abs() > SAME_STEP)
    }

    fn normalised(&mut self) -> Option<()> {
        for (cos, sin) in self.cos.iter_mut().zip(&mut self.sin) {
            let length = cos.hypot(*sin);
            (*cos, *sin) = (*cos / length, *sin / length);
        }
        Some(())
    }

    /// With tables that are a function of the right ones.
    fn map(&mut self, of: impl Fn(f64) -> f64) {
        self.cos.mapv_inplace(&of);
        self.sin.mapv_inplace(&of);
    }

    fn restarted(&mut self) -> Option<()> {
        let start = self.positions.iter().copied().fold(f64::INFINITY, f64::min);
        // A single position is 0 then, whatever its angles; what begins there is as it is.
        match self.steps.clone() {
            _ if start == 0.0 => {}
            Some(steps) => self.turned_by(|position, i| (position - start) * steps[i]),
            None => self.turned_by(|_, _| 0.0),
        }
        Some(())
    }

    /// All turned as the last one of the step.
    fn of_the_last(&mut self) -> Option<()> {
        let last = self.positions.iter().copied().fold(0.0, f64::max);
        let differ = self.positions.iter().any(|position| *position != last);
        differ.then(|| self.by_angles(|_, _, w| last * w))?
    }

    /// With so many pairs alone; the others are left as they are, but for the tables' length.
    fn leaving(&mut self, count: usize) -> Option<()> {
        self.by_angles(|position, i, w| if i < count { position * w } else { 0.0 })
    }

    /// A part of each head turned by these frequencies.
    fn of_part(&self, all: &ArrayD<f64>, frequencies: &[f64]) -> Option<ArrayD<f64>> {
        let (rows, width) = (self.x.nrows(), *all.shape().last()?);
        let flat = all.as_standard_layout().into_owned().into_shape_with_order((rows, width)).ok()?;
        let length = self.cos.first()?.hypot(*self.sin.first()?);
        let table = |of: fn(f64) -> f64| {
            let angle = |(row, i): (usize, usize)| length * of(self.positions[row] * frequencies[i]);
            Array2::from_shape_fn((rows, frequencies.len()), angle)
        };
        let turn =
            Turn { x: flat, cos: table(f64::cos), sin: table(f64::sin), positions: vec![], steps: None, ..*self };
        (2 * frequencies.len() <= width).then(|| turn.done()).flatten()
    }

    /// Rows, positions first, turned by these tables.
    fn turning(&self, x: &ArrayD<f64>) -> Option<ArrayD<f64>> {
        let (&rows, &width) = (x.shape().first()?, x.shape().last()?);
        let each = (x.len() / width.max(1)).checked_div(rows)?;
        let begin = self.positions.iter().copied().fold(f64::INFINITY, f64::min);
        let of = |row: usize| self.positions.iter().position(|&at| at == begin + (row / each) as f64);
        let index: Vec<usize> = (0..rows * each).map(of).collect::<Option<_>>()?;
        let pick = |table: &Array2<f64>| table.select(Axis(0), &index);
        let flat = x.as_standard_layout().into_owned().into_shape_with_order((rows * each, width)).ok()?;
        let turn =
            Turn { x: flat, cos: pick(&self.cos), sin: pick(&self.sin), positions: vec![], steps: None, ..*self };
        let turned = (2 * self.cos.ncols() <= width).then(|| turn.done()).flatten()?;
        turned.into_shape_with_order(x.shape()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A token that is decoded at a position and was turned as the one at another.
    fn turned(at: f64, position: f64) -> Turn {
        let steps = vec![1.0, 0.1];
        let of = |f: fn(f64) -> f64| Array2::from_shape_fn((1, 2), |(_, i)| f(at * steps[i]));
        let (cos, sin) = (of(f64::cos), of(f64::sin));
        let (x, positions) = (Array2::zeros((1, 4)), vec![position]);
        Turn { x, cos, sin, halves: true, times: 1, rereads: false, positions, steps: Some(steps) }
    }

    #[test]
    fn a_token_at_another_position_shows_no_frequencies() {
        assert!(turned(12.0, 12.0).is_at_its_position());
        assert!(!turned(0.0, 12.0).is_at_its_position());
        assert!(!turned(11.0, 12.0).is_at_its_position());
        // Longer by a factor, and without frequencies to hold it against.
        let mut longer = turned(12.0, 12.0);
        longer.map(|x| 1.2 * x);
        assert!(longer.is_at_its_position());
        assert!(Turn { steps: None, ..turned(0.0, 12.0) }.is_at_its_position());
    }
}
