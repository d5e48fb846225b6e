//! A rotation as it is: what is turned, by which tables, and how it would be turned otherwise.

use std::collections::BTreeMap;
use std::sync::Arc;

use firstdiff_program::{Change, View};
use half::{bf16, f16};
use ndarray::{Array2, ArrayD, Axis};

use crate::mistakes::rope::BASES;
use crate::program::arrays::in_rows;
use crate::program::change::computed;
use crate::program::context::Context;
use crate::program::form::rounded_to;
use crate::tolerance::search::SAME_STEP;

/// A rotation: its last operation, what it turns, and the two tables.
#[derive(Clone)]
pub(super) struct Rotation {
    pub(super) op: usize,
    pub(super) views: [View; 3],
    /// Of what it gives.
    pub(super) shape: Vec<usize>,
    /// Position of the step's first token.
    pub(super) start: usize,
    /// The angle of each pair from one position to the next, where a step of several positions shows it.
    pub(super) steps: Option<Arc<Vec<f64>>>,
}

impl Rotation {
    pub(super) fn of(context: &Context<'_>, op: usize) -> Option<Rotation> {
        let views = match context.base(op) {
            "add" => whole(context, op),
            "cat" => halves(context, op),
            _ => None,
        }?;
        let start = context.start(context.step_of(op));
        Some(Rotation { op, views, shape: context.out(op)?.shape.clone(), start, steps: None })
    }

    /// With the angles of a step of several positions: its own, or another one's of the same module; of two steps of one position each, where none has more.
    pub(super) fn stepped(self, context: &Context<'_>) -> Rotation {
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
    pub(super) fn tables(&self, context: &Context<'_>) -> Option<Turn> {
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

    pub(super) fn with_tables(&self, cos: ArrayD<f64>, sin: ArrayD<f64>) -> Change {
        let own = self.clone();
        computed(&[&self.views[0]], move |x| {
            let turned = Turn::of(&[x[0].clone(), cos.clone(), sin.clone()], &own)?;
            turned.done()?.into_shape_with_order(own.shape.as_slice()).ok()
        })
    }

    /// With the powers of a base as frequencies, times the first of them.
    pub(super) fn by_powers(&self, first: f64, base: f64, kept: Kept) -> Change {
        self.change(move |turn| turn.by_powers(first, base, kept))
    }

    /// The same with tables that carry no factor: a scaling that is not made brings none.
    pub(super) fn by_bare_powers(&self, first: f64, base: f64, kept: Kept) -> Change {
        self.change(move |turn| {
            turn.normalised()?;
            turn.by_powers(first, base, kept)
        })
    }
}

/// Whether an operation ends a rotation.
pub(crate) fn is_rotation(context: &Context<'_>, op: usize) -> bool {
    Rotation::of(context, op).is_some()
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
    let [(_, x), (_, table)] = context.one_of_two(maker, |view| context.is_activation(view))?;
    context.is_table(table).then(|| (x.clone(), table.clone()))
}

/// [x1 cos - x2 sin, x2 cos + x1 sin].
fn halves(context: &Context<'_>, op: usize) -> Option<[View; 3]> {
    let [first, _] = context.joined(op)?;
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
    pub(super) x: Array2<f64>,
    pub(super) cos: Array2<f64>,
    pub(super) sin: Array2<f64>,
    /// Whether the pairs are (i, i + d/2), else (2i, 2i + 1).
    pub(super) halves: bool,
    pub(super) times: usize,
    /// Whether the second of a pair is made of the first as it was written.
    pub(super) rereads: bool,
    /// The position of each row.
    pub(super) positions: Vec<f64>,
    /// The angle of each pair from one position to the next, where the tables have two.
    pub(super) steps: Option<Vec<f64>>,
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
        let flat = in_rows(x)?;
        let positions = (0..rows).map(|row| (rotation.start + position(row)) as f64).collect();
        (width % 2 == 0).then_some(Turn { x: flat, cos, sin, halves, times: 1, rereads: false, positions, steps })
    }

    pub(super) fn done(&self) -> Option<ArrayD<f64>> {
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
    pub(super) fn turned_by(&mut self, angle: impl Fn(f64, usize) -> f64) {
        for ((row, i), cos) in self.cos.indexed_iter_mut() {
            let sin = &mut self.sin[[row, i]];
            let (length, turn) = (cos.hypot(*sin), angle(self.positions[row], i));
            (*cos, *sin) = (length * turn.cos(), length * turn.sin());
        }
    }

    /// With the powers of a base as frequencies, times the first of them.
    pub(super) fn by_powers(&mut self, first: f64, base: f64, kept: Kept) -> Option<()> {
        let count = self.cos.ncols() as f64;
        self.turned_by(|position, i| position * kept(first * base.powf(-(i as f64) / count)));
        Some(())
    }

    /// Turns each pair by an angle made of its position, its number and its frequency.
    pub(super) fn by_angles(&mut self, angle: impl Fn(f64, usize, f64) -> f64) -> Option<()> {
        let steps = self.steps.clone()?;
        self.turned_by(|position, i| angle(position, i, steps[i]));
        Some(())
    }

    /// With frequencies that are a function of the right ones.
    pub(super) fn stepping(&mut self, of: impl Fn(f64) -> f64) -> Option<()> {
        self.by_angles(|position, _, w| position * of(w))
    }

    /// Whether a single position was turned by its number times the frequencies of the other steps.
    pub(super) fn is_at_its_position(&self) -> bool {
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
    pub(super) fn apart(&self, own: &ArrayD<f64>) -> Option<BTreeMap<usize, Vec<[f64; 2]>>> {
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

    pub(super) fn shifted(&mut self, by: f64) -> Option<()> {
        self.by_angles(|position, _, w| (position + by) * w)
    }

    /// Whether the tables carry a factor.
    pub(super) fn is_longer(&self) -> bool {
        self.cos.iter().zip(&self.sin).any(|(cos, sin)| (cos.hypot(*sin) - 1.0).abs() > SAME_STEP)
    }

    pub(super) fn normalised(&mut self) -> Option<()> {
        for (cos, sin) in self.cos.iter_mut().zip(&mut self.sin) {
            let length = cos.hypot(*sin);
            (*cos, *sin) = (*cos / length, *sin / length);
        }
        Some(())
    }

    /// With tables that are a function of the right ones.
    pub(super) fn map(&mut self, of: impl Fn(f64) -> f64) -> Option<()> {
        self.cos.mapv_inplace(&of);
        self.sin.mapv_inplace(&of);
        Some(())
    }

    /// Otherwise in a way that can always be.
    pub(super) fn set(&mut self, how: impl Fn(&mut Turn)) -> Option<()> {
        how(self);
        Some(())
    }

    pub(super) fn restarted(&mut self) -> Option<()> {
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
    pub(super) fn of_the_last(&mut self) -> Option<()> {
        let last = self.positions.iter().copied().fold(0.0, f64::max);
        let differ = self.positions.iter().any(|position| *position != last);
        differ.then(|| self.by_angles(|_, _, w| last * w))?
    }

    /// With so many pairs alone; the others are left as they are, but for the tables' length.
    pub(super) fn leaving(&mut self, count: usize) -> Option<()> {
        self.by_angles(|position, i, w| if i < count { position * w } else { 0.0 })
    }

    /// A part of each head turned by these frequencies.
    pub(super) fn of_part(&self, all: &ArrayD<f64>, frequencies: &[f64]) -> Option<ArrayD<f64>> {
        let (flat, rows) = (in_rows(all)?, self.x.nrows());
        let width = flat.ncols();
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
    pub(super) fn turning(&self, x: &ArrayD<f64>) -> Option<ArrayD<f64>> {
        let (&rows, &width) = (x.shape().first()?, x.shape().last()?);
        let each = (x.len() / width.max(1)).checked_div(rows)?;
        let begin = self.positions.iter().copied().fold(f64::INFINITY, f64::min);
        let of = |row: usize| self.positions.iter().position(|&at| at == begin + (row / each) as f64);
        let index: Vec<usize> = (0..rows * each).map(of).collect::<Option<_>>()?;
        let pick = |table: &Array2<f64>| table.select(Axis(0), &index);
        let flat = in_rows(x)?;
        let turn =
            Turn { x: flat, cos: pick(&self.cos), sin: pick(&self.sin), positions: vec![], steps: None, ..*self };
        let turned = (2 * self.cos.ncols() <= width).then(|| turn.done()).flatten()?;
        turned.into_shape_with_order(x.shape()).ok()
    }
}

/// The angle from one cosine and sine to another.
fn angle_between([a, b]: [f64; 2], [c, s]: [f64; 2]) -> f64 {
    (s * a - c * b).atan2(c * a + s * b)
}

/// How frequencies are kept.
pub(super) type Kept = fn(f64) -> f64;

/// A model in 16 bits may keep its frequencies in them too.
pub(super) const KEPT: [Kept; 3] = [|w| w, in_bf16, in_f16];

/// A number as bf16 keeps it.
pub(super) fn in_bf16(x: f64) -> f64 {
    bf16::from_f64(x).to_f64()
}

/// A number as f16 keeps it.
pub(super) fn in_f16(x: f64) -> f64 {
    f16::from_f64(x).to_f64()
}

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

/// Bases of a scaled table that are tried.
const MOST_BASES: usize = 24;

/// A number that was computed in f32, or the plain one that it is as good as.
fn plain(x: f64) -> f64 {
    let plain = rounded_to(x, 4);
    if (plain - x).abs() <= SAME_STEP * x { plain } else { x }
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
