//! Products with a matrix of weights.

use std::collections::BTreeSet;
use std::sync::Arc;

use firstdiff_program::{At, Change, Edit, Operand, Operation, ProgramTap, View};
use firstdiff_trace::{Site, Tap};
use half::{bf16, f16};
use ndarray::{Array2, ArrayD, Axis, Ix2};
use serde_json::{Value, json};

use super::taps::{BEFORE, reading_kin, recorded_before};
use crate::laws::called_from;
use crate::mistakes::head::{HEAD_TIED, HEAD_UNTIED};
use crate::mistakes::linear::{
    BIAS_OMITTED, BIAS_TWICE, FUSED_SPLIT, LINEAR_INPUT, QK_ROW_ORDER, WEIGHT_STRIDE, WEIGHT_SWAPPED,
    WEIGHT_TRANSPOSED, WEIGHT_UNSET, WEIGHT_WRONG_LAYER,
};
use crate::mistakes::recorded::EXPERT_ORDER;
use crate::mistakes::stored::STORAGE_TYPE;
use crate::mistakes::{Mistake, Params};
use crate::program::arrays::{array, in_rows};
use crate::program::change::{computed, other_operand, plus, with, with_all};
use crate::program::context::Context;
use crate::program::edits::parts::orders;
use crate::program::form::Form;
use crate::program::forms::beside::{beside, bias_beside};
use crate::program::forms::stored::{Bits, read_as};

/// How a matrix is read.
type Read = fn(&ArrayD<f64>) -> ArrayD<f64>;

/// A product, by the places of its operands.
struct Product<'a> {
    record: &'a Operation,
    x: (usize, &'a View),
    weight: (usize, &'a View),
    bias: Option<(usize, &'a View)>,
}

impl<'a> Product<'a> {
    /// How its weight becomes [out, in].
    fn matrix(&self) -> Option<Read> {
        match self.record.base() {
            "linear" => Some(ArrayD::clone),
            "addmm" | "matmul" | "mm" => Some(transposed),
            _ => None,
        }
    }

    fn views(&self) -> Vec<&'a View> {
        let bias = self.bias.map(|(_, view)| view);
        [self.x.1, self.weight.1].into_iter().chain(bias).collect()
    }

    fn of(context: &Context<'a>, op: usize) -> Option<Product<'a>> {
        let (x, weight, bias) = match context.base(op) {
            "linear" | "conv1d" | "conv2d" => (0, 1, 2),
            "addmm" => (1, 2, 0),
            "matmul" | "mm" => (0, 1, usize::MAX),
            _ => return None,
        };
        let weight = (weight, context.tensor(op, weight)?);
        let of_weight = |view: &View| context.is_weight(view) || !context.is_activation(view);
        let bias = context.tensor(op, bias).map(|view| (bias, view));
        let product = Product { record: context.op(op), x: (x, context.tensor(op, x)?), weight, bias };
        of_weight(product.weight.1).then_some(product)
    }
}

pub(super) fn forms(context: &Context<'_>, op: usize) -> Vec<Form> {
    let split = of_split(context, op).unwrap_or_default();
    let Some(product) = Product::of(context, op) else { return split };
    let mut forms = [of_bias(context, &product, op), split].concat();
    if context.is_weight(product.weight.1) {
        forms.extend(of_weight(context, &product, op));
    }
    let others = [of_siblings, of_rows, of_input].map(|of| of(context, &product, op));
    forms.extend(others.into_iter().flatten().flatten());
    forms
}

/// Several matrices that are multiplied with one input, read as if their rows stood by group, or in turn.
fn of_siblings(context: &Context<'_>, product: &Product<'_>, op: usize) -> Option<Vec<Form>> {
    let reads = |at: usize| Product::of(context, at).filter(|other| other.x.1 == product.x.1);
    let step = context.program.steps().get(context.step_of(op)).map_or(0..0, |step| step.ops.clone());
    let all: Vec<(usize, Product<'_>)> = step.filter_map(|at| Some((at, reads(at)?))).collect();
    let own = all.iter().position(|(at, _)| *at == op)?;
    let (out, matrix) = (context.out(op)?, product.matrix()?);
    let rows: Vec<usize> = all.iter().map(|(_, other)| other.weight.1.shape.first().copied().unwrap_or(0)).collect();
    let has_bias = |other: &Product<'_>| other.bias.is_some();
    let is_alike = all.iter().all(|(_, other)| has_bias(other) == has_bias(product) && other.record.base() == "linear");
    (is_alike && (2..=MOST_PARTS).contains(&all.len())).then_some(())?;
    // As many groups as key/value heads have taps, else one of each row.
    let heads = context
        .program
        .taps()
        .iter()
        .filter(|tap| tap.view.buffer == out.buffer || all.iter().any(|(at, _)| tap.op == *at));
    let heads = heads.filter(|tap| tap.view.shape.len() == 3).map(|tap| tap.view.shape[1]).min();
    let least = rows.iter().copied().min().unwrap_or(1);
    let views: Vec<&View> = std::iter::once(product.x.1)
        .chain(all.iter().map(|(_, other)| other.weight.1))
        .chain(all.iter().filter_map(|(_, other)| other.bias.map(|(_, bias)| bias)))
        .collect();
    let (count, shape, total) = (all.len(), out.shape.clone(), rows.iter().sum::<usize>());
    let begin: usize = rows[..own].iter().sum();
    let form = |(kind, groups): (&str, usize)| {
        if groups < 2 || rows.iter().any(|rows| rows % groups != 0) {
            return None;
        }
        // Where the rows of this matrix are taken from, of all in the order of their groups.
        let each: Vec<usize> = rows.iter().map(|rows| rows / groups).collect();
        let first: usize = each[..own].iter().sum();
        let from: Vec<usize> =
            (0..rows[own]).map(|at| at / each[own] * (total / groups) + first + at % each[own]).collect();
        let is_moved = from.iter().enumerate().any(|(at, from)| begin + at != *from);
        let shape = shape.clone();
        let change = computed(&views, move |x| {
            let parts = |which: &[ArrayD<f64>]| {
                let all: Vec<_> = which.iter().map(|part| part.view()).collect();
                Some(ndarray::concatenate(Axis(0), &all).ok()?.select(Axis(0), &from))
            };
            let (weights, biases) = x[1..].split_at(count);
            let products = product_of(&x[0], &matrix(&parts(weights)?))?;
            let sums = if biases.is_empty() { products } else { plus(&products, &parts(biases)?)? };
            sums.into_shape_with_order(shape.as_slice()).ok()
        });
        is_moved.then(|| Form::one(&FUSED_SPLIT, vec![("kind", json!(kind))], op, change))
    };
    let kinds = [("by-group", heads.unwrap_or(0)), ("interleaved", least)];
    Some(kinds.into_iter().filter_map(form).collect())
}

/// Activations, the matrix [out, in] of weights, and the bias, where there is one.
type Multiplied = (ArrayD<f64>, Array2<f64>, Option<ArrayD<f64>>);

/// What an operation multiplies with weights.
pub(crate) fn multiplied(context: &Context<'_>, op: usize) -> Option<Multiplied> {
    let product = Product::of(context, op).filter(|product| context.is_weight(product.weight.1))?;
    let matrix = product.matrix()?;
    let mut read = context.read(op, &product.views())?.into_iter();
    let (x, w) = (read.next()?, matrix(&read.next()?));
    Some((x, w.into_dimensionality().ok()?, read.next()))
}

/// Another tensor is multiplied, where what is due was not recorded.
fn of_input(context: &Context<'_>, product: &Product<'_>, op: usize) -> Option<Vec<Form>> {
    let x = product.x.1;
    let is_recorded = context.slice.known().any(|tap| context.program.taps()[tap].view.buffer == x.buffer);
    (!is_recorded && context.is_weight(product.weight.1)).then_some(())?;
    let target = context.held.place(context.slice.target()).tap;
    let form = |(tap, read): (Tap, ArrayD<f64>)| {
        let read = read.into_shape_with_order(x.shape.as_slice()).ok()?;
        let other = other_operand((product.x.0, None), x, Arc::new(move |_| Some(read.clone())));
        let change = Change::Operands(vec![other]);
        let form = Form::one(&LINEAR_INPUT, vec![("reads", json!(tap.to_string()))], op, change);
        let kin = called_from(target, tap, None).map(|words| reading_kin(&LINEAR_INPUT, &words));
        Some(Form { kin, ..form })
    };
    let recorded = recorded_before(context).into_iter().filter_map(form);
    Some(recorded.chain(of_inputs_on_the_way(context, product, op)).collect())
}

/// Another tensor of the same layer is multiplied, or what came into the layer, which was not recorded either: one line of code does so in all layers.
fn of_inputs_on_the_way(context: &Context<'_>, product: &Product<'_>, op: usize) -> Vec<Form> {
    let (taps, (place, x)) = (context.program.taps(), product.x);
    let tap_of = |tap: usize| context.held.place(tap).tap;
    let behind = taps.iter().enumerate().filter(|(_, tap)| tap.op >= op).min_by_key(|(_, tap)| tap.op);
    let Some(behind) = behind.map(|(tap, _)| tap_of(tap)).filter(|tap| tap.layer.is_some()) else { return Vec::new() };
    let form = |(tap, found): (usize, &ProgramTap)| {
        let words = called_from(behind, tap_of(tap), None)?;
        let shown = found.view.reshaped(&x.shape).filter(|view| view.buffer != x.buffer)?;
        let change = with(product.record, place, Operand::View(shown));
        let is_near = tap_of(tap).layer == behind.layer || words == BEFORE;
        let is_before = is_near && context.has(found.op) && found.op < op;
        let form = Form::one(&LINEAR_INPUT, vec![("reads", json!(words))], op, change);
        is_before.then(|| Form { kin: Some(reading_kin(&LINEAR_INPUT, &words)), ..form })
    };
    taps.iter().enumerate().filter_map(form).collect()
}

/// What is right only where nothing else gives the same: a product of nothing.
pub(super) fn last(context: &Context<'_>, op: usize) -> Vec<Form> {
    let Some(product) = Product::of(context, op) else {
        return Vec::new();
    };
    let Some(matrix) = product.matrix() else { return Vec::new() };
    let unset = computed(&product.views(), move |x| with_bias(product_of(&x[0], &matrix(&x[1]))? * 0.0, x));
    let nothing = |x: &ArrayD<f64>| x.iter().all(|x| *x == 0.0);
    // A matrix that gave something in a step before is not unset.
    let target = context.held.place(context.slice.target());
    let before = (0..context.program.taps().len()).filter(|&tap| {
        let place = context.held.place(tap);
        place.tap == target.tap && place.step < target.step
    });
    let gave = || before.filter_map(|tap| context.held.get(tap)).any(|held| !nothing(&array(held)));
    if nothing(&context.own) && gave() {
        return Vec::new();
    }
    let unset = Form::one(&WEIGHT_UNSET, vec![], op, unset);
    [vec![unset], of_bits(context, &product, op)].concat()
}

/// Bits that are read as another type's: what they give may be as good as nothing.
fn of_bits(context: &Context<'_>, product: &Product<'_>, op: usize) -> Vec<Form> {
    let Some(matrix) = product.matrix().filter(|_| context.is_weight(product.weight.1)) else { return Vec::new() };
    let form = |params: Params, bits: Bits| {
        let change = computed(&product.views(), move |x| {
            let mut read = x.to_vec();
            read[1..].iter_mut().filter(|weight| is_of_16_bits(weight)).for_each(|weight| weight.mapv_inplace(bits));
            with_bias(product_of(&read[0], &matrix(&read[1]))?, &read)
        });
        Form::one(&STORAGE_TYPE, params, op, change)
    };
    read_as(form).to_vec()
}

/// Whether all numbers are of one type of 16 bits: others are not stored so.
fn is_of_16_bits(weight: &ArrayD<f64>) -> bool {
    let all = |round: fn(f64) -> f64| weight.iter().all(|x| round(*x) == *x);
    all(|x| f16::from_f64(x).to_f64()) || all(|x| bf16::from_f64(x).to_f64())
}

/// A product and its bias, where there is one.
fn with_bias(product: ArrayD<f64>, x: &[ArrayD<f64>]) -> Option<ArrayD<f64>> {
    match x.get(2) {
        Some(bias) => plus(&product, bias),
        None => Some(product),
    }
}

fn of_bias(context: &Context<'_>, product: &Product<'_>, op: usize) -> Vec<Form> {
    let Some((place, bias)) = product.bias else { return Vec::new() };
    let times = |mistake, factor: f64| {
        let other = other_operand((place, None), bias, Arc::new(move |bias| Some(bias * factor)));
        Form::one(mistake, vec![], op, Change::Operands(vec![other]))
    };
    let name = context.weight(bias).unwrap_or_default();
    let other = |(said, buffer): (String, usize)| {
        let change = with(product.record, place, Operand::View(View { buffer, ..bias.clone() }));
        let (mistake, of) = of_another(&said, false);
        Form::one(mistake, vec![of, ("part", json!("bias"))], op, change)
    };
    let named = (!name.is_empty()).then(|| name.to_owned());
    let named = |form: Form| form.having(named.clone());
    let mut forms = vec![named(times(&BIAS_OMITTED, 0.0)), named(times(&BIAS_TWICE, 2.0))];
    forms.extend(beside(context, bias, name).into_iter().map(other));
    forms
}

fn transposed(x: &ArrayD<f64>) -> ArrayD<f64> {
    x.clone().reversed_axes().as_standard_layout().into_owned()
}

/// x Wᵀ for x of any axes.
fn product_of(x: &ArrayD<f64>, weight: &ArrayD<f64>) -> Option<ArrayD<f64>> {
    let weight = weight.view().into_dimensionality::<Ix2>().ok()?;
    let (flat, mut shape) = (in_rows(x)?, x.shape().to_vec());
    *shape.last_mut()? = weight.nrows();
    (weight.ncols() == flat.ncols()).then(|| flat.dot(&weight.t()).into_shape_with_order(shape).ok()).flatten()
}

fn of_weight(context: &Context<'_>, product: &Product<'_>, op: usize) -> Vec<Form> {
    let (record, (place, weight)) = (product.record, product.weight);
    let mut forms = Vec::new();
    let instead = |view: View| with(record, place, Operand::View(view));
    if let [rows, columns] = weight.shape[..] {
        if rows == columns {
            let turned = View { strides: weight.strides.iter().rev().copied().collect(), ..weight.clone() };
            forms.push(Form::one(&WEIGHT_TRANSPOSED, vec![("form", json!("transpose"))], op, instead(turned)));
        } else if weight.is_contiguous() {
            // The same bytes as [in,out].
            let turned = View { strides: vec![1, rows], ..weight.clone() };
            forms.push(Form::one(&WEIGHT_TRANSPOSED, vec![("form", json!("reshape"))], op, instead(turned)));
        }
    }
    forms.extend(of_distance(context, product, op).unwrap_or_default());
    let name = context.weight(weight).unwrap_or_default();
    let experts = name.contains(".experts.");
    for (said, buffer) in beside(context, weight, name) {
        let view = View { buffer, ..weight.clone() };
        let (mistake, of) = of_another(&said, experts);
        let form = Form::one(mistake, vec![of], op, instead(view.clone()));
        let bias = product.bias.and_then(|(at, bias)| Some((at, bias_beside(context, &view, bias)?)));
        if let Some((at, bias)) = bias {
            let both = with_all(record, [(place, Operand::View(view)), (at, Operand::View(bias))]);
            let params = [&form.params[..], &[("bias", json!(true))]].concat();
            forms.push(Form::one(form.mistake, params, op, both));
        }
        forms.push(form);
    }
    // A slice of stacked experts: the one beside it.
    let whole = &context.program.buffers()[weight.buffer];
    if whole.shape.len() == weight.shape.len() + 1 && whole.is_contiguous() && whole.shape[0] > 1 {
        let (size, count) = (weight.elements(), whole.shape[0]);
        for (by, step) in [("next", 1), ("previous", count - 1)] {
            let at = (weight.offset / size.max(1) + step) % count;
            let other = View { offset: at * size + weight.offset % size.max(1), ..weight.clone() };
            forms.push(Form::one(&EXPERT_ORDER, vec![("expert", json!(by))], op, instead(other)));
        }
    }
    if context.base(op) == "linear" {
        let views = product.views();
        // Matrices of no layer: the embedding and the head.
        let is_of_none = |name: &str| name.split('.').all(|part| part.parse::<usize>().is_err());
        let is_table = |other: &str, buffer: usize| is_of_none(other) && context.is_looked_up(buffer);
        let others = context.alike(weight).filter(|(other, buffer)| is_of_none(name) && is_table(other, *buffer));
        forms.extend(
            others.map(|(_, buffer)| Form::one(&HEAD_TIED, vec![], op, instead(View { buffer, ..weight.clone() }))),
        );
        // A head of its own, never loaded, in the place of the embedding.
        if is_of_none(name) && context.is_looked_up(weight.buffer) {
            let ones = computed(&views, |x| with_bias(product_of(&x[0], &ArrayD::ones(x[1].raw_dim()))?, x));
            forms.push(Form::one(&HEAD_UNTIED, vec![("kind", json!("ones"))], op, ones));
        }
    }
    forms
}

/// What it is to take another weight for one, by what `beside` calls it.
fn of_another(said: &str, experts: bool) -> (&'static Mistake, (&'static str, Value)) {
    let (mistake, name): (&'static Mistake, _) = match (said, experts) {
        ("next" | "previous", true) => (&EXPERT_ORDER, "expert"),
        ("next" | "previous", false) => (&WEIGHT_WRONG_LAYER, "layer"),
        _ => (&WEIGHT_SWAPPED, "with"),
    };
    (mistake, (name, json!(said)))
}

/// Rows that are read at another distance than they stand, whichever way the product takes its matrix.
fn of_distance(context: &Context<'_>, product: &Product<'_>, op: usize) -> Option<Vec<Form>> {
    let weight = product.weight.1;
    let &[rows, columns] = &weight.shape[..] else { return None };
    let turned =
        View { shape: vec![columns, rows], strides: vec![weight.strides[1], weight.strides[0]], ..weight.clone() };
    let is_turned = !weight.is_contiguous();
    // As it stands in memory, row by row.
    let stored = if is_turned { turned } else { weight.clone() };
    let is_read_by_rows = matches!(context.base(op), "linear" | "addmm" | "matmul" | "mm");
    (is_read_by_rows && stored.is_contiguous() && stored.shape[1] >= 2).then_some(())?;
    let form = |(what, by): (&str, isize)| {
        let read = move |stored: &ArrayD<f64>| {
            let (&[rows, columns], flat) = (stored.shape(), stored.as_slice()?) else { return None };
            let distance = columns.checked_add_signed(by)?;
            let at = |(row, column): (usize, usize)| flat.get(row * distance + column).copied().unwrap_or(0.0);
            let read = ndarray::Array2::from_shape_fn((rows, columns), at).into_dyn();
            Some(if is_turned { transposed(&read) } else { read })
        };
        let change = Change::Operands(vec![other_operand((product.weight.0, None), &stored, Arc::new(read))]);
        Form::one(&WEIGHT_STRIDE, vec![("leading_dimension", json!(what))], op, change)
    };
    Some([("in-1", -1), ("in+1", 1)].map(form).to_vec())
}

/// A part of what an operation gives that is a tap of its own.
struct Part<'a> {
    tap: usize,
    name: String,
    shape: &'a [usize],
    /// Which columns of a row it is.
    columns: Vec<usize>,
}

/// The parts of what an operation gives, in the order in which they lie.
fn parts_of<'a>(context: &Context<'a>, op: usize) -> Option<(&'a View, Vec<Part<'a>>)> {
    let out = context.out(op).filter(|out| out.is_contiguous())?;
    let width = *out.shape.last()?;
    let taps = context.program.taps().iter().enumerate();
    let here = taps.filter(|(_, tap)| {
        let view = &tap.view;
        tap.op == op && view.buffer == out.buffer && view.elements() < out.elements() && view.offset >= out.offset
    });
    let part = |(tap, found): (usize, &'a firstdiff_program::ProgramTap)| {
        let view = &found.view;
        let (&rows, inner) = view.shape.split_first()?;
        let mut columns = vec![(view.offset - out.offset) % width];
        for (extent, stride) in inner.iter().zip(&view.strides[1..]) {
            columns = columns.iter().flat_map(|at| (0..*extent).map(move |i| at + i * stride)).collect();
        }
        let by_rows = rows * width == out.elements() && (rows == 1 || view.strides[0] == width);
        let name = context.held.place(tap).tap.to_string();
        let name = name.rsplit('.').next().unwrap_or_default().to_owned();
        let fits = by_rows && columns.iter().all(|column| *column < width);
        fits.then_some(Part { tap, name, shape: &view.shape, columns })
    };
    let mut parts: Vec<Part<'a>> = here.filter_map(part).collect();
    parts.sort_by_key(|part| part.columns.first().copied());
    Some((out, parts))
}

/// Rows of several projections in one matrix: taken as if they lay otherwise, or brought into another order and taken as if not.
fn of_split(context: &Context<'_>, op: usize) -> Option<Vec<Form>> {
    let (out, parts) = parts_of(context, op)?;
    let width = out.shape.last().copied().unwrap_or(0);
    let is_known = |tap: usize| context.slice.known().any(|known| known == tap);
    let with = |params: Params, columns: &dyn Fn(usize) -> usize| {
        let edit = |part: &Part<'_>| {
            let (shape, columns): (_, Vec<usize>) =
                (part.shape.to_vec(), part.columns.iter().map(|&at| columns(at)).collect());
            let change = computed(&[out], move |x| {
                let picked = in_rows(&x[0])?.select(Axis(1), &columns).as_standard_layout().into_owned();
                picked.into_shape_with_order(shape.as_slice()).ok()
            });
            Edit { at: At::Tap(part.tap), change }
        };
        let moved = |part: &&Part<'_>| !is_known(part.tap) && part.columns.iter().any(|&at| columns(at) != at);
        let edits: Vec<Edit> = parts.iter().filter(moved).map(edit).collect();
        (!edits.is_empty()).then(|| Form::new(&FUSED_SPLIT, params, edits))
    };
    let mut forms = Vec::new();
    let covered: BTreeSet<usize> = parts.iter().flat_map(|part| part.columns.iter().copied()).collect();
    let count: usize = parts.iter().map(|part| part.columns.len()).sum();
    if (2..=MOST_PARTS).contains(&parts.len()) && covered.len() == width && count == width {
        let heads = parts.iter().filter(|part| part.shape.len() == 3).map(|part| part.shape[1]);
        let least = parts.iter().map(|part| part.columns.len()).min().unwrap_or(1);
        for groups in BTreeSet::from_iter(heads.chain([1, least])) {
            if parts.iter().any(|part| part.columns.len() % groups != 0) {
                continue;
            }
            let kind = match groups {
                1 => "blocks",
                _ if groups == least => "interleaved",
                _ => "by-group",
            };
            for order in orders(parts.len()) {
                // Where each column is in this order, by where it is.
                let mut read = vec![0; width];
                let mut begin = 0;
                for &part in &order {
                    let each = parts[part].columns.len() / groups;
                    for (at, &column) in parts[part].columns.iter().enumerate() {
                        read[column] = at / each * (width / groups) + begin + at % each;
                    }
                    begin += each;
                }
                let mut stored = vec![0; width];
                read.iter().enumerate().for_each(|(to, &from)| stored[from] = to);
                let names: Vec<&str> = order.iter().map(|&part| parts[part].name.as_str()).collect();
                for (how, columns) in [("read", &read), ("stored", &stored)] {
                    let params = vec![("kind", json!(kind)), ("order", json!(names.join(" "))), ("how", json!(how))];
                    forms.extend(with(params, &|at| columns[at]));
                }
            }
        }
    }
    // One part alone that begins elsewhere.
    for part in parts.iter().filter(|part| part.columns.windows(2).all(|pair| pair[1] == pair[0] + 1)) {
        let (unit, length) = (part.shape.last().copied().unwrap_or(1).max(1), part.columns.len());
        let own = part.columns.first().copied().unwrap_or(0);
        for first in (0..=width - length).step_by(unit).filter(|first| *first != own).take(MOST_PLACES) {
            let params = vec![("order", json!(part.name)), ("first", json!(first))];
            forms.extend(with(params, &|at| if part.columns.contains(&at) { at - own + first } else { at }));
        }
    }
    Some(forms)
}

/// Parts of one matrix that are put in every order, and places where one may begin.
const MOST_PARTS: usize = 3;
const MOST_PLACES: usize = 64;

/// Rows of each head in the order of the other rotation.
fn of_rows(context: &Context<'_>, product: &Product<'_>, op: usize) -> Option<Vec<Form>> {
    let out = context.out(op)?;
    let taps = context.program.taps().iter().enumerate();
    let taps = taps.filter(|(_, tap)| tap.op == op && tap.view.buffer == out.buffer);
    // What is turned later, and nothing else, has such an order.
    let taps = taps.filter(|(number, _)| matches!(context.site(*number), Site::Q | Site::K)).map(|(_, tap)| tap);
    let width = taps.filter(|tap| tap.view.shape.len() == 3).filter_map(|tap| tap.view.shape.last().copied()).next();
    let width = width.filter(|width| width % 2 == 0 && context.base(op) == "linear")?;
    let views = product.views();
    type From = fn(usize, usize) -> usize;
    let kinds: [(&str, From); 2] = [
        ("halves-to-pairs", |i, d| if i % 2 == 0 { i / 2 } else { d / 2 + i / 2 }),
        ("pairs-to-halves", |i, d| if i < d / 2 { 2 * i } else { 2 * (i - d / 2) + 1 }),
    ];
    // Of a part of each head, where a part is rotated.
    let parts = [width, width / 2, width / 4].into_iter().filter(|part| part % 2 == 0 && *part > 2);
    let all = parts.flat_map(|part| kinds.map(|(kind, from)| (kind, from, part)));
    let has_bias = product.bias.is_some();
    let form = |(kind, from, part): (&'static str, From, usize), leaves_bias: bool| {
        let from = move |i: usize| if i < part { from(i, part) } else { i };
        let change = computed(&views, move |x| {
            let y = product_of(&x[0], &x[1])?;
            let y = if leaves_bias { y } else { with_bias(y, x)? };
            let last = Axis(y.ndim() - 1);
            let rows = y.len_of(last);
            let order: Vec<usize> = (0..rows).map(|row| row / width * width + from(row % width)).collect();
            let moved = order.iter().all(|&row| row < rows).then(|| y.select(last, &order))?;
            if leaves_bias { with_bias(moved, x) } else { Some(moved) }
        });
        let mut params = vec![("kind", json!(kind))];
        params.extend((part < width).then(|| ("rotary_dim", json!(part))));
        params.extend(leaves_bias.then(|| ("bias", json!("left"))));
        Form::one(&QK_ROW_ORDER, params, op, change)
    };
    let both = all.flat_map(|kind| [false, true].map(|left| (kind, left))).filter(|(_, left)| has_bias || !left);
    Some(both.map(|(kind, left)| form(kind, left)).collect())
}
