//! Rotations: pairs of elements that are multiplied with tables of cosines and sines.

use firstdiff_program::{At, Change, Operand, Scalar, View};
use half::{bf16, f16};
use ndarray::{Array2, ArrayD};
use serde_json::json;

use super::{Form, computed, with_number};
use crate::mistakes::rope::{
    ALIASING, ROPE_ATTENTION_FACTOR, ROPE_DIRECTION, ROPE_EXPONENT, ROPE_OMITTED, ROPE_PAIRING, ROPE_POSITION,
    ROPE_PRECISION, ROPE_SCALING, ROPE_THETA, ROPE_TWICE,
};
use crate::program::context::Context;

/// Bases that models have.
const BASES: [f64; 8] = [1e4, 1e6, 5e5, 1e5, 1e3, 1e7, 8e6, 2.5e5];

/// A rotation: its last operation, what it turns, and the two tables.
struct Rotation {
    views: [View; 3],
    /// Position of the step's first token.
    start: usize,
}

pub(super) fn forms(context: &Context<'_>, op: usize) -> Vec<Form> {
    match context.base(op) {
        "arange" => return of_positions(context, op),
        "mul" => return of_factor(context, op),
        _ => {}
    }
    let Some(Rotation { views, start }) = Rotation::of(context, op) else { return Vec::new() };
    let shape = context.out(op).map_or_else(Vec::new, |out| out.shape.clone());
    let change = move |turn: fn(&mut Turn, f64) -> Option<()>, value: f64| -> Change {
        let shape = shape.clone();
        computed(&views.each_ref(), move |x| {
            let mut turned = Turn::of(x, start)?;
            turn(&mut turned, value)?;
            turned.done()?.into_shape_with_order(shape.as_slice()).ok()
        })
    };
    let mut forms = vec![
        Form::one(&ROPE_OMITTED, vec![], op, change(Turn::not, 0.0)),
        Form::one(&ROPE_PAIRING, vec![], op, change(Turn::other_pairs, 0.0)),
        Form::one(&ROPE_DIRECTION, vec![], op, change(Turn::back, 0.0)),
        Form::one(&ROPE_TWICE, vec![], op, change(Turn::twice, 0.0)),
        Form::one(&ROPE_ATTENTION_FACTOR, vec![("factor", json!("ignored"))], op, change(Turn::normalised, 0.0)),
        Form::one(&ROPE_SCALING, vec![("kind", json!("absent"))], op, change(Turn::unscaled, 0.0)),
        Form::one(&ROPE_PRECISION, vec![("tables", json!("bf16"))], op, change(Turn::rounded, 8.0)),
        Form::one(&ROPE_PRECISION, vec![("frequencies", json!("bf16"))], op, change(Turn::of_rounded_steps, 0.0)),
        Form::one(&ROPE_PRECISION, vec![("tables", json!("f16"))], op, change(Turn::rounded, 11.0)),
        Form::one(&ALIASING, vec![("kind", json!("rotated in place"))], op, change(Turn::in_place, 0.0)),
        Form::one(&ROPE_EXPONENT, vec![], op, change(Turn::of_half_exponent, 0.0)),
        Form::one(&ROPE_POSITION, vec![("kind", json!("decode-zero"))], op, change(Turn::restarted, 0.0)),
    ];
    for shift in [-2, -1, 1, 2] {
        let change = change(Turn::shifted, f64::from(shift));
        forms.push(Form::one(&ROPE_POSITION, vec![("shift", json!(shift))], op, change));
    }
    for factor in [2.0, 4.0, 8.0, 16.0, 32.0] {
        let kinds = [(format!("linear by {factor}"), 1.0 / factor), ("inverse".to_owned(), factor)];
        for (kind, times) in kinds {
            let change = change(Turn::scaled, times);
            forms.push(Form::one(&ROPE_SCALING, vec![("kind", json!(kind))], op, change));
        }
    }
    for base in BASES {
        forms.push(Form::one(&ROPE_THETA, vec![("theta", json!(base))], op, change(Turn::of_base, base)));
    }
    forms.push(Form::any(&ROPE_THETA, "theta", 1e5, At::Op(op), move |base| change(Turn::of_base, base)));
    forms
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
    let beginning = |at: i64| {
        let mut other = context.op(op).clone();
        other.name = "arange.start".into();
        other.operands = vec![Operand::Scalar(Scalar::Int(at)), Operand::Scalar(Scalar::Int(at + last - first))];
        Change::Operation(Box::new(other))
    };
    let mut forms = Vec::new();
    if first > 0 {
        forms.push(Form::one(&ROPE_POSITION, vec![("kind", json!("decode-zero"))], op, beginning(0)));
        forms.push(Form::one(&ROPE_POSITION, vec![("kind", json!("decode-behind"))], op, beginning(first - 1)));
        forms.push(Form::one(&ROPE_POSITION, vec![("kind", json!("decode-ahead"))], op, beginning(first + 1)));
    }
    for shift in [-2i64, -1, 1, 2] {
        forms.push(Form::one(&ROPE_POSITION, vec![("shift", json!(shift))], op, beginning(first + shift)));
    }
    forms
}

/// Whether an operation ends a rotation.
pub(super) fn is_rotation(context: &Context<'_>, op: usize) -> bool {
    Rotation::of(context, op).is_some()
}

/// A factor on the tables.
fn of_factor(context: &Context<'_>, op: usize) -> Vec<Form> {
    let Some((place, factor)) = context.number(op).filter(|(_, factor)| *factor != 0.0) else { return Vec::new() };
    let table = context.tensors(op).into_iter().map(|(_, view)| view).find(|view| context.is_table(view));
    let turns =
        table.and_then(|table| context.maker(op, table)).is_some_and(|at| matches!(context.base(at), "cos" | "sin"));
    if !turns {
        return Vec::new();
    }
    let said = |kind: &str| vec![("factor", json!(kind))];
    let change = |number: f64| with_number(context.op(op), place, number);
    vec![
        Form::one(&ROPE_ATTENTION_FACTOR, said("ignored"), op, change(1.0)),
        Form::one(&ROPE_ATTENTION_FACTOR, said("twice"), op, change(factor * factor)),
        Form::one(&ROPE_ATTENTION_FACTOR, said("inverse"), op, change(1.0 / factor)),
    ]
}

impl Rotation {
    fn of(context: &Context<'_>, op: usize) -> Option<Rotation> {
        let start = context.program.steps().iter().take(context.step_of(op)).map(|step| step.tokens).sum();
        let views = match context.base(op) {
            "add" => whole(context, op),
            "cat" => halves(context, op),
            _ => None,
        }?;
        Some(Rotation { views, start })
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
    let maker = context.maker(op, view).filter(|&maker| context.base(maker) == "mul" && context.has(maker))?;
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
    let first = context.maker(op, first).filter(|&at| context.base(at) == "sub" && context.has(at))?;
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
struct Turn {
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

impl Turn {
    fn of(x: &[ArrayD<f64>], start: usize) -> Option<Turn> {
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
            let angle = |i: usize| {
                let (c, s) = (
                    cos[[b, i]] * cos[[a, i]] + sin[[b, i]] * sin[[a, i]],
                    sin[[b, i]] * cos[[a, i]] - cos[[b, i]] * sin[[a, i]],
                );
                s.atan2(c)
            };
            (0..pairs).map(angle).collect()
        });
        let flat = x.as_standard_layout().into_owned().into_shape_with_order((rows, width)).ok()?;
        let positions = (0..rows).map(|row| (start + position(row)) as f64).collect();
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

    fn not(&mut self, _: f64) -> Option<()> {
        self.times = 0;
        Some(())
    }

    fn twice(&mut self, _: f64) -> Option<()> {
        self.times = 2;
        Some(())
    }

    fn other_pairs(&mut self, _: f64) -> Option<()> {
        self.halves = !self.halves;
        Some(())
    }

    fn back(&mut self, _: f64) -> Option<()> {
        self.sin.mapv_inplace(|sin| -sin);
        Some(())
    }

    /// What is written first is read again.
    fn in_place(&mut self, _: f64) -> Option<()> {
        self.rereads = true;
        Some(())
    }

    fn of_half_exponent(&mut self, _: f64) -> Option<()> {
        let steps = self.steps.clone()?;
        self.turned_by(|position, i| position * steps[i].abs().sqrt());
        Some(())
    }

    /// With frequencies that are kept in bf16.
    fn of_rounded_steps(&mut self, _: f64) -> Option<()> {
        let steps = self.steps.clone()?;
        self.turned_by(|position, i| position * bf16::from_f64(steps[i]).to_f64());
        Some(())
    }

    fn scaled(&mut self, times: f64) -> Option<()> {
        let steps = self.steps.clone()?;
        self.turned_by(|position, i| position * steps[i] * times);
        Some(())
    }

    fn normalised(&mut self, _: f64) -> Option<()> {
        for (cos, sin) in self.cos.iter_mut().zip(&mut self.sin) {
            let length = cos.hypot(*sin);
            (*cos, *sin) = (*cos / length, *sin / length);
        }
        Some(())
    }

    fn rounded(&mut self, bits: f64) -> Option<()> {
        let round = |x: f64| if bits > 8.0 { f16::from_f64(x).to_f64() } else { bf16::from_f64(x).to_f64() };
        self.cos.mapv_inplace(round);
        self.sin.mapv_inplace(round);
        Some(())
    }

    fn shifted(&mut self, by: f64) -> Option<()> {
        let steps = self.steps.clone()?;
        self.turned_by(|position, i| (position + by) * steps[i]);
        Some(())
    }

    fn restarted(&mut self, _: f64) -> Option<()> {
        let start = self.positions.iter().copied().fold(f64::INFINITY, f64::min);
        // A single position is 0 then, whatever its angles.
        match self.steps.clone() {
            _ if start == 0.0 => return None,
            Some(steps) => self.turned_by(|position, i| (position - start) * steps[i]),
            None => self.turned_by(|_, _| 0.0),
        }
        Some(())
    }

    fn of_base(&mut self, base: f64) -> Option<()> {
        let pairs = self.cos.ncols() as f64;
        self.turned_by(|position, i| position * base.powf(-(i as f64) / pairs));
        Some(())
    }

    /// With the base that the two fastest pairs have, which scalings leave alone.
    fn unscaled(&mut self, _: f64) -> Option<()> {
        let steps = self.steps.clone()?;
        let (first, second) = (*steps.first()?, *steps.get(1)?);
        let base = (second / first).powf(-(steps.len() as f64));
        self.of_base(base)
    }
}
