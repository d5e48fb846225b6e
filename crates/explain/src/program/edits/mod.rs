//! Mistakes that no entry of the catalogue lists: each tensor of a slice read in another order, through a function, or another one in its place; each
//! operation another one. The cheapest are tried first.

mod moved;
mod names;
pub(super) mod parts;
mod slots;
mod tables;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use firstdiff_laws::orders;
use firstdiff_program::{
    At, Change, Edit, Operand, Operation, OtherOperand, ProgramTap, Scalar, Tensor, View, carry_out,
};
use ndarray::{ArrayD, Axis};
use serde_json::json;

use self::names::Names;
use self::tables::{BINARY, ROW_FUNCTIONS, STATISTICS};
use super::context::Context;
use super::forms::recorded_before;
use crate::mistakes::recorded::{
    FUNCTION_DIFFERS, OPERATION_DIFFERS, OPERATION_INPUT, OPERATION_OMITTED, ORDER_DIFFERS, TENSORS_EXCHANGED,
};
use crate::mistakes::{Mistake, Params};
use crate::program::arrays::{array, floats};
use crate::program::change::{FunctionOfTensor as Function, computed, in_order, kept, other_operand, renamed};
use crate::program::condition::PRODUCTS;
use crate::program::edits::slots::{Slot, slots};
use crate::program::form::Form;
use crate::tolerance::search::{AS_GOOD_AS_ONE, FUNCTION_BITS, NOTHING_BITS, ORDER_BITS};

/// A form, and its price in bits.
pub(super) struct Priced {
    pub(super) bits: f64,
    pub(super) form: Form,
}

/// Operations of a slice beyond which only other parts of longer tensors are tried: for the rest nobody waits.
const LARGEST: usize = 300;
/// The longest axis of which orders are tried.
const LONGEST: usize = 4096;
/// So many forms are listed at most, the cheapest.
const MOST: usize = 9000;
/// Tensors of which each is tried in the place of another.
const TENSORS: usize = 48;

/// All edits of the operations of a slice, the cheapest first. What is one line of code is done otherwise wherever it is carried out.
pub(super) fn edits(context: &Context<'_>) -> Vec<Priced> {
    let ops: Vec<usize> = context.ops().collect();
    let functions = firstdiff_laws::functions(FUNCTION_BITS).into_iter().map(|word| {
        let (words, f) = (word.words.replace("{}", "x"), word.value);
        let function: Function = Arc::new(move |x| varied(x, x.mapv(|x| f(x))));
        (words, word.bits, function)
    });
    let functions = functions.collect();
    let slots_of_all: Arc<[Slot<'_>]> = ops.iter().flat_map(|&op| slots(context, op, 0.0)).collect();
    let mut reads: Vec<Slot<'_>> = Vec::new();
    for slot in slots_of_all.iter() {
        if !reads.iter().any(|known| known.view == slot.view) {
            reads.push(*slot);
        }
    }
    let mut list = List {
        context,
        names: Names::new(context),
        functions,
        orders: HashMap::new(),
        slots: slots_of_all,
        reads: reads.into(),
        all: Vec::new(),
    };
    list.parts();
    if ops.len() <= LARGEST {
        list.one_by_one(&ops);
    }
    list.all.sort_by(|a, b| a.bits.total_cmp(&b.bits));
    list.all.truncate(MOST);
    list.all
}

struct List<'c, 'a> {
    context: &'c Context<'a>,
    names: Names<'c, 'a>,
    /// Functions of one number in words, with their prices.
    functions: Arc<[(String, f64, Function)]>,
    /// Orders of axes, by how long they are: one list serves all that are as long.
    orders: HashMap<(usize, &'static str), Arc<[Order]>>,
    /// Everything that is read, in the order of the operations; and each tensor once.
    slots: Arc<[Slot<'a>]>,
    reads: Arc<[Slot<'a>]>,
    all: Vec<Priced>,
}

/// Another order of an axis in words, its price, and for each place which stands there; `None` for zeros.
type Order = (String, f64, Arc<[Option<usize>]>);

impl<'a> List<'_, 'a> {
    fn push(&mut self, bits: f64, mistake: &'static Mistake, params: Params, class: usize, edits: Vec<Edit>) {
        if !edits.is_empty() {
            self.all.push(Priced { bits, form: Form { class, ..Form::new(mistake, params, edits) } });
        }
    }

    /// Each operation and each tensor is another.
    fn one_by_one(&mut self, ops: &[usize]) {
        let context = self.context;
        for (at, &op) in ops.iter().enumerate() {
            if ops[..at].iter().any(|&before| context.program.class(before) == context.program.class(op)) {
                continue;
            }
            let bits = ((ops.len() - at + 1) as f64).log2();
            self.edit_operation(op, bits);
            for slot in slots(context, op, bits).into_iter().filter(|slot| !context.is_weight(slot.view)) {
                self.edit_tensor(&slot);
            }
        }
        let weights = self.weights();
        for slot in &weights {
            self.edit_tensor(slot);
        }
        self.modules(&weights);
        self.exchanges();
    }

    /// Adds a form; `edit` makes it of one operation, and the same is done in all of its class.
    fn add(
        &mut self,
        bits: f64,
        mistake: &'static Mistake,
        params: Params,
        op: usize,
        edit: &dyn Fn(usize) -> Option<Edit>,
    ) {
        let class = self.context.program.class(op);
        let alike = self.context.ops().filter(|&other| self.context.program.class(other) == class);
        let edits = alike.filter_map(edit).collect();
        self.push(bits, mistake, params, class, edits);
    }

    /// Adds a form by which some tensors are others wherever they are read.
    fn add_wherever(
        &mut self,
        bits: f64,
        mistake: &'static Mistake,
        params: Params,
        other: &dyn Fn(&Slot<'_>) -> Option<OtherOperand>,
    ) {
        let edits = self.wherever(other);
        let class = edits.first().and_then(|edit| edit.at.op()).map_or(0, |op| self.context.program.class(op));
        self.push(bits, mistake, params, class, edits);
    }

    /// The edits by which some tensors are others wherever they are read.
    fn wherever(&self, other: &dyn Fn(&Slot<'_>) -> Option<OtherOperand>) -> Vec<Edit> {
        let of_one = |slots: &[Slot<'_>]| {
            let others: Vec<OtherOperand> = slots.iter().filter_map(other).collect();
            (!others.is_empty()).then(|| operands(slots[0].op, others))
        };
        self.slots.chunk_by(|a, b| a.op == b.op).filter_map(of_one).collect()
    }

    /// The orders of an axis.
    fn orders(&mut self, extent: usize, name: &'static str) -> Arc<[Order]> {
        let known = self.orders.entry((extent, name)).or_insert_with(|| {
            let listed = orders(extent, name, ORDER_BITS).into_iter();
            let listed = listed.map(|word| (word.words, word.bits, word.value.into_iter().map(Some).collect()));
            let beyond = [1isize, -1, 2, -2].into_iter().filter(|by| by.unsigned_abs() < extent).map(|by| {
                let from = (0..extent).map(|i| i.checked_add_signed(-by).filter(|&i| i < extent)).collect();
                let end = if by > 0 { "before the first" } else { "behind the last" };
                (format!("{} i{:+}, zeros {end}", name, -by), 3.0 + by.unsigned_abs() as f64, from)
            });
            listed.chain(beyond).collect()
        });
        known.clone()
    }

    /// Each weight once, as it is read first.
    fn weights(&self) -> Vec<Slot<'a>> {
        let mut out: Vec<Slot<'a>> = Vec::new();
        for slot in self.reads.iter().filter(|slot| self.context.is_weight(slot.view)) {
            if !out.iter().any(|known| known.view.buffer == slot.view.buffer) {
                out.push(Slot { is_of_weight: true, ..*slot });
            }
        }
        let bits = (out.len() as f64 + 1.0).log2();
        out.iter_mut().for_each(|slot| slot.bits = bits);
        out
    }

    /// Adds a form that reads something else in a slot.
    fn read_otherwise(
        &mut self,
        slot: &Slot<'_>,
        bits: f64,
        mistake: &'static Mistake,
        params: Params,
        function: Function,
    ) {
        let context = self.context;
        if slot.is_of_weight {
            self.add_wherever(slot.bits + bits, mistake, params, &|other| {
                let is_it = other.view.buffer == slot.view.buffer && other.view.shape == slot.view.shape;
                is_it.then(|| other_operand(other.place, other.view, function.clone()))
            });
            return;
        }
        self.add(slot.bits + bits, mistake, params, slot.op, &|op| {
            let found = slots(context, op, 0.0).into_iter().find(|other| other.place == slot.place)?;
            let is_alike = found.view.shape == slot.view.shape;
            is_alike.then(|| operands(op, vec![other_operand(slot.place, found.view, function.clone())]))
        });
    }

    fn edit_tensor(&mut self, slot: &Slot<'_>) {
        let operation = ("operation", json!(self.context.program.said(slot.op)));
        let tensor = ("tensor", json!(self.names.describe(slot.op, slot.view)));
        let said = |key: &'static str, words: String| {
            let all = [operation.clone(), tensor.clone(), (key, json!(words))];
            all.into_iter().skip(usize::from(slot.is_of_weight)).collect()
        };
        let shape = &slot.view.shape;
        let mut found: Vec<(f64, &'static Mistake, Params, Function)> = Vec::new();
        // One number in all places has no other order.
        let is_one = |values: ArrayD<f64>| values.iter().all(|x| Some(x) == values.first());
        let is_filled = self.context.is_table(slot.view) && self.context.table(slot.op, slot.view).is_some_and(is_one);
        let axes = if is_filled { 0 } else { shape.len() };
        for axis in (0..axes).filter(|&axis| (2..=LONGEST).contains(&shape[axis])) {
            // What stands there several times is one, however many tokens a step takes.
            let is_single = |other: usize| shape[other] == 1 || slot.view.strides[other] == 0;
            let is_last = (axis + 1..axes).all(is_single);
            let is_first = (0..axis).all(is_single);
            let on_axis = if is_last || is_first { String::new() } else { format!(", along axis {axis}") };
            let name = if is_last { "element" } else { "row" };
            for (words, bits, from) in self.orders(shape[axis], name).iter() {
                let (words, from) = (format!("{words}{on_axis}"), from.clone());
                let ordered: Function = Arc::new(move |x| Some(in_order(x, Axis(axis), &from)));
                found.push((4.0 + bits, &ORDER_DIFFERS, said("order", words), ordered));
            }
        }
        for axis in 0..axes {
            for other in (axis + 1..axes).filter(|&other| shape[axis] > 1 && shape[other] == shape[axis]) {
                let exchanged: Function = Arc::new(move |x| {
                    let mut view = x.view();
                    view.swap_axes(axis, other);
                    Some(view.as_standard_layout().into_owned())
                });
                let words = format!("axes {axis} and {other} exchanged");
                found.push((7.0, &ORDER_DIFFERS, said("order", words), exchanged));
            }
        }
        if self.context.is_float(slot.view) {
            for (words, bits, function) in self.functions.iter() {
                found.push((3.0 + bits, &FUNCTION_DIFFERS, said("function", words.clone()), function.clone()));
            }
            // A matrix of zeros is one that was not loaded, and has a name.
            let is_matrix =
                |op: usize| PRODUCTS.contains(&self.context.base(op)) || self.context.base(op) == "embedding";
            if slot.is_of_weight && !is_matrix(slot.op) {
                let nothing: Function = Arc::new(|x| Some(ArrayD::zeros(x.raw_dim())));
                found.push((3.0 + NOTHING_BITS, &FUNCTION_DIFFERS, said("function", "0".to_owned()), nothing));
            }
            for (words, bits, f) in ROW_FUNCTIONS {
                let function: Function = Arc::new(move |x| varied(x, f(x)?));
                found.push((3.0 + bits, &FUNCTION_DIFFERS, said("function", words.to_owned()), function));
            }
        }
        for (bits, mistake, params, function) in found {
            self.read_otherwise(slot, bits, mistake, params, function);
        }
        if !slot.is_of_weight {
            self.other_tensors(slot);
        }
    }

    /// Another tensor in the place of one.
    fn other_tensors(&mut self, slot: &Slot<'_>) {
        let tensor = self.names.describe(slot.op, slot.view);
        let operation = self.context.program.said(slot.op);
        let said =
            |reads: &str| vec![("operation", json!(operation)), ("tensor", json!(tensor)), ("reads", json!(reads))];
        let place = slot.place;
        let others = self.names.others(slot.op, slot.view);
        for (rank, (name, view)) in others.into_iter().enumerate().take(TENSORS) {
            let bits = slot.bits + 6.0 + (rank as f64 + 2.0).log2();
            let shape = slot.view.shape.clone();
            let reshaped: Function = Arc::new(move |x| x.clone().into_shape_with_order(shape.as_slice()).ok());
            let names = self.names;
            // In each operation of the class the tensor that stands there to it as this one here.
            self.add(bits, &OPERATION_INPUT, said(&name), slot.op, &|op| {
                let other = if op == slot.op { Some(view.clone()) } else { names.same(op, place, &name) };
                Some(operands(op, vec![other_operand(place, &other?, reshaped.clone())]))
            });
        }
        if !self.context.is_float(slot.view) {
            return;
        }
        for (rank, (tap, values)) in recorded_before(self.context).into_iter().enumerate().take(TENSORS) {
            let Ok(values) = values.into_shape_with_order(slot.view.shape.as_slice()) else { continue };
            let name = self.names.tap(&tap.to_string());
            let bits = slot.bits + 6.5 + (rank as f64 + 2.0).log2();
            let values = Arc::new(values);
            let instead: Function = Arc::new(move |_| Some((*values).clone()));
            let edits = vec![operands(slot.op, vec![other_operand(place, slot.view, instead)])];
            self.push(bits, &OPERATION_INPUT, said(&name), self.context.program.class(slot.op), edits);
        }
    }

    /// Another operation.
    fn edit_operation(&mut self, op: usize, bits: f64) {
        let context = self.context;
        let record = context.op(op);
        let said = |by: String| vec![("operation", json!(context.program.said(op))), ("is", json!(by))];
        let plain = context.base(op);
        let (binary, unary) = (BINARY.iter().find(|known| **known == plain), is_unary(context, op));
        // What it reads passes as it is.
        let passes = |op: usize, at: usize| {
            let (place, view) = *context.tensors(op).get(at)?;
            let is_whole = place == at && context.out(op).is_some_and(|out| out.shape == view.shape);
            is_whole.then(|| Edit { at: At::Op(op), change: kept(view) })
        };
        let several = if binary.is_some() && context.tensors(op).len() == 2 { 2 } else { 1 };
        for at in 0..if binary.is_some() || unary { several } else { 0 } {
            let keeps = (at > 0).then(|| ("keeps", json!("second")));
            let params = [("operation", json!(context.program.said(op)))].into_iter().chain(keeps).collect();
            self.add(bits + 2.0, &OPERATION_OMITTED, params, op, &|op| passes(op, at));
        }
        if let Some(own) = binary {
            for other in BINARY.iter().filter(|other| *other != own) {
                let name = record.name.replacen(own, other, 1);
                let price = if matches!(*other, "maximum" | "minimum") { 7.0 } else { 4.0 };
                self.add(bits + price, &OPERATION_DIFFERS, said((*other).to_owned()), op, &|op| {
                    Some(Edit { at: At::Op(op), change: renamed(context.op(op), &name) })
                });
            }
            // One of its operands twice.
            for (at, (_, view)) in context.tensors(op).into_iter().enumerate().take(2) {
                let tensor = self.names.describe(op, view);
                self.add(bits + 5.0, &OPERATION_DIFFERS, said(format!("{plain} of {tensor} twice")), op, &|op| {
                    let [(first, a), (second, b)] = context.tensors(op)[..] else { return None };
                    let name = context.op(op).name.clone();
                    let once = move |x: &[Tensor<'_>]| firstdiff_program::apply(&name, &[x.first()?, x.get(1)?], &[]);
                    let place = (if at == 0 { second } else { first }, None);
                    let other = OtherOperand { place, views: vec![a.clone(), b.clone()], value: Arc::new(once) };
                    Some(operands(op, vec![other]))
                });
            }
        }
        if unary {
            for (words, price, f) in self.functions.clone().iter() {
                self.add(bits + 2.0 + price, &OPERATION_DIFFERS, said(words.clone()), op, &|op| {
                    let f = f.clone();
                    let change = computed(&[context.tensor(op, 0)?], move |x| f(&x[0]));
                    Some(Edit { at: At::Op(op), change })
                });
            }
            self.add(bits + 6.0, &OPERATION_DIFFERS, said("carried out twice".to_owned()), op, &|op| {
                let view = context.tensor(op, 0)?;
                Some(operands(op, vec![other_operand((0, None), view, carried_out(context.op(op)))]))
            });
        }
        self.moved(op, bits);
        self.statistics(op, bits);
        self.numbers(op, bits);
    }

    /// Another statistic of the same axes.
    fn statistics(&mut self, op: usize, bits: f64) {
        let context = self.context;
        let base = context.base(op);
        if !matches!(base, "mean" | "sum" | "amax" | "amin" | "var" | "std" | "prod" | "max" | "min") {
            return;
        }
        let (Some(x), Some(out)) = (context.tensor(op, 0), context.out(op)) else { return };
        let Some(axes) = reduced(&x.shape, &out.shape) else { return };
        for (name, price, f) in STATISTICS {
            let params = vec![("operation", json!(context.program.said(op))), ("is", json!(format!("the {name}")))];
            let axes = axes.clone();
            self.add(bits + price, &OPERATION_DIFFERS, params, op, &|op| {
                let (x, axes, shape) = (context.tensor(op, 0)?, axes.clone(), context.out(op)?.shape.clone());
                let change = computed(&[x], move |x| {
                    let mut value = x[0].clone();
                    for &axis in axes.iter().rev() {
                        value = value.map_axis(Axis(axis), |lane| f(&mut lane.iter().copied()));
                    }
                    value.into_shape_with_order(shape.as_slice()).ok()
                });
                Some(Edit { at: At::Op(op), change })
            });
        }
    }

    /// Another whole number, or the other of yes and no.
    fn numbers(&mut self, op: usize, bits: f64) {
        let context = self.context;
        let mut record = context.op(op).clone();
        let mut found: Vec<(usize, f64, String, Scalar)> = Vec::new();
        for (at, (name, scalar)) in scalars(&mut record).into_iter().enumerate() {
            match scalar {
                Scalar::Int(x) => {
                    let x = *x;
                    let others = BTreeSet::from([x + 1, x - 1, -x, 0, 1, 2 * x, x / 2]);
                    let others = others.into_iter().filter(|other| *other != x);
                    found.extend(others.map(|y| (at, 5.0, format!("{name}{y} in place of {x}"), Scalar::Int(y))));
                }
                Scalar::Bool(x) => found.push((at, 4.0, format!("{name}{} in place of {x}", !*x), Scalar::Bool(!*x))),
                _ => {}
            }
        }
        for (at, price, words, other) in found {
            let params = vec![("operation", json!(context.program.said(op))), ("is", json!(words))];
            self.add(bits + price, &OPERATION_DIFFERS, params, op, &|op| {
                let mut own = context.op(op).clone();
                *scalars(&mut own).into_iter().nth(at)?.1 = other.clone();
                Some(Edit { at: At::Op(op), change: Change::Operation(Box::new(own)) })
            });
        }
    }

    /// The weights of another module in the place of those of one, or of each other: what is loaded by one name, is loaded whole.
    fn modules(&mut self, all: &[Slot<'a>]) {
        let context = self.context;
        let mut modules: Vec<(&str, Vec<(&str, usize)>)> = Vec::new();
        for slot in all {
            let Some((module, name)) = context.weight(slot.view).and_then(|name| name.rsplit_once('.')) else {
                continue;
            };
            match modules.iter_mut().find(|(known, _)| *known == module) {
                Some((_, weights)) => weights.push((name, slot.view.buffer)),
                None => modules.push((module, vec![(name, slot.view.buffer)])),
            }
        }
        let by_name: HashMap<&str, usize> =
            context.program.weights().iter().map(|(&buffer, name)| (name.as_str(), buffer)).collect();
        let shape = |buffer: usize| &context.program.buffers()[buffer].shape;
        let bits = (modules.len() as f64 + 1.0).log2();
        let mut found = Vec::new();
        for (module, weights) in &modules {
            let suffix = format!(".{}", weights[0].0);
            let others = by_name.keys().filter_map(|name| name.strip_suffix(&suffix)).filter(|other| other != module);
            // Each of its weights has one of that name and shape there.
            let paired = |other: &str| -> Option<Vec<[usize; 2]>> {
                let pair = |(name, own): &(&str, usize)| {
                    let there = *by_name.get(format!("{other}.{name}").as_str())?;
                    (shape(there) == shape(*own)).then_some([*own, there])
                };
                weights.iter().map(pair).collect()
            };
            let mut others: Vec<(&str, Vec<[usize; 2]>)> =
                others.filter_map(|other| Some((other, paired(other)?))).collect();
            others.sort_by_key(|(other, _)| (self.names.apart(other), *other));
            for (rank, (other, pairs)) in others.into_iter().enumerate().take(TENSORS) {
                // A weight that is the layer's own has no module in it.
                let is_layer = |module: &str| module.rsplit('.').next().is_some_and(|last| last.parse::<u32>().is_ok());
                let called =
                    |module: &str| if is_layer(module) { format!("{module}{suffix}") } else { module.to_owned() };
                let (tensor, reads) =
                    (self.names.weight(&called(module)), self.names.weight_beside(&called(other), module));
                let bits = bits + 5.0 + (rank as f64 + 2.0).log2();
                let instead: HashMap<usize, usize> = pairs.iter().map(|[own, there]| (*own, *there)).collect();
                let params = vec![("tensor", json!(tensor)), ("reads", json!(reads))];
                found.push((bits, &OPERATION_INPUT, params, instead));
                if modules.iter().any(|(known, _)| *known == other) && *module < other {
                    let both = pairs.iter().flat_map(|&[own, there]| [(own, there), (there, own)]).collect();
                    let params = vec![("tensors", json!(format!("{tensor} and {reads}")))];
                    found.push((bits, &TENSORS_EXCHANGED, params, both));
                }
            }
        }
        for (bits, mistake, params, instead) in found {
            self.add_wherever(bits, mistake, params, &|slot| {
                let view = View { buffer: *instead.get(&slot.view.buffer)?, ..slot.view.clone() };
                Some(instead_of(slot, &view))
            });
        }
    }

    /// Other parts of longer tensors: one in the place of another, all cut at other places, or another as the tap that is to be made.
    fn parts(&mut self) {
        let context = self.context;
        let (reads, target) = (self.reads.clone(), context.slice.target());
        let made = &context.program.taps()[target];
        let bits = (reads.len() as f64 + 1.0).log2() + 4.0;
        let buffers: BTreeSet<usize> = reads.iter().map(|slot| slot.view.buffer).chain([made.view.buffer]).collect();
        for buffer in buffers {
            let of_it: Vec<&Slot<'_>> = reads.iter().filter(|slot| slot.view.buffer == buffer).collect();
            let reader = of_it.first().map(|slot| slot.op).or(context.program.readers(made.op).first().copied());
            let reader = reader.unwrap_or(made.op);
            let whole = &context.program.buffers()[buffer];
            let (called, maker) = (self.names.describe(reader, whole), context.maker(reader, whole));
            let before = self.all.len();
            for slot in &of_it {
                let tensor = json!(self.names.describe(slot.op, slot.view));
                for (words, view) in parts::others(context.program, slot.view, maker, &called) {
                    let params = vec![("tensor", tensor.clone()), ("reads", json!(words))];
                    self.add_wherever(bits, &OPERATION_INPUT, params, &|other| {
                        (other.view == slot.view).then(|| instead_of(other, &view))
                    });
                }
            }
            let views: Vec<&View> = of_it.iter().map(|slot| slot.view).collect();
            let cuts = if views.len() > 1 { parts::cuts(context.program, &views, maker) } else { Vec::new() };
            for (words, others) in cuts {
                let params = vec![("tensor", json!(called)), ("reads", json!(words))];
                self.add_wherever(bits + 2.0, &OPERATION_INPUT, params, &|other| {
                    let at = views.iter().position(|view| *view == other.view)?;
                    Some(instead_of(other, &others[at]))
                });
            }
            let is_made = |found: &&ProgramTap| found.view.buffer == buffer;
            let instead =
                Some(made).filter(is_made).map(|made| parts::others(context.program, &made.view, maker, &called));
            for (words, view) in instead.into_iter().flatten() {
                let edits = vec![Edit { at: At::Tap(target), change: kept(&view) }];
                self.push(bits, &OPERATION_INPUT, vec![("reads", json!(words))], context.program.class(made.op), edits);
            }
            self.all[before..].iter_mut().for_each(|edit| edit.form.kin = Some(format!("parts of {called}")));
        }
    }

    /// Two tensors of one shape, each read in the place of the other.
    fn exchanges(&mut self) {
        let context = self.context;
        let all = self.reads.clone();
        let reads: Vec<&Slot<'_>> = all.iter().filter(|slot| !context.is_weight(slot.view)).collect();
        let is_alike = |a: &View, b: &View| a.shape == b.shape && a.dtype.kind() == b.dtype.kind() && a.elements() > 1;
        let bits = 8.0 + (reads.len() as f64).log2();
        for (at, a) in reads.iter().enumerate() {
            for b in reads[at + 1..].iter().filter(|b| is_alike(a.view, b.view)).take(TENSORS) {
                let written = |slot: &Slot<'_>| context.maker(slot.op, slot.view).filter(|&at| context.has(at));
                // Both are there before either is read.
                if [written(a), written(b)].into_iter().flatten().any(|at| at >= a.op.min(b.op)) {
                    continue;
                }
                let (first, second) = (self.names.describe(a.op, a.view), self.names.describe(b.op, b.view));
                let params = vec![("tensors", json!(format!("{first} and {second}")))];
                self.add_wherever(bits, &TENSORS_EXCHANGED, params, &|slot| match slot.view {
                    view if view == a.view => Some(instead_of(slot, b.view)),
                    view if view == b.view => Some(instead_of(slot, a.view)),
                    _ => None,
                });
            }
        }
    }
}

/// What a function gives of several numbers, unless it is as good as one and the same: which function that was is not to be told then.
fn varied(x: &ArrayD<f64>, y: ArrayD<f64>) -> Option<ArrayD<f64>> {
    let largest = x.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
    let differs = |y: &f64, first: &f64| (y - first).abs() > AS_GOOD_AS_ONE * largest;
    (y.len() < 2 || y.iter().any(|one| y.first().is_some_and(|first| differs(one, first)))).then_some(y)
}

/// The numbers, truths and texts among the operands of an operation, those of lists included, each with the name that it goes by.
fn scalars(record: &mut Operation) -> Vec<(String, &mut Scalar)> {
    fn within<'o>(name: &str, operand: &'o mut Operand, out: &mut Vec<(String, &'o mut Scalar)>) {
        match operand {
            Operand::Scalar(scalar) => out.push((name.to_owned(), scalar)),
            Operand::List(items) => items.iter_mut().for_each(|item| within(name, item, out)),
            _ => {}
        }
    }
    let mut out = Vec::new();
    record.operands.iter_mut().for_each(|operand| within("", operand, &mut out));
    record.keywords.iter_mut().for_each(|(key, operand)| within(&format!("{key} "), operand, &mut out));
    out
}

/// An operation of one tensor that gives a value for each.
fn is_unary(context: &Context<'_>, op: usize) -> bool {
    let tensors = context.tensors(op);
    let [(0, x)] = tensors[..] else { return false };
    let moves = matches!(
        context.base(op),
        "clone"
            | "contiguous"
            | "to"
            | "_to_copy"
            | "reshape"
            | "view"
            | "roll"
            | "flip"
            | "cat"
            | "cumsum"
            | "expand"
            | "repeat"
    );
    !moves
        && context.is_float(x)
        && context.number(op).is_none()
        && context.out(op).is_some_and(|out| out.shape == x.shape && context.is_float(out))
}

/// The axes that a statistic is taken of.
fn reduced(x: &[usize], out: &[usize]) -> Option<Vec<usize>> {
    if x.len() == out.len() {
        let axes: Vec<usize> = (0..x.len()).filter(|&axis| x[axis] != out[axis]).collect();
        return (!axes.is_empty() && axes.iter().all(|&axis| out[axis] == 1)).then_some(axes);
    }
    let mut axes = Vec::new();
    let mut rest = out.iter().peekable();
    for (axis, extent) in x.iter().enumerate() {
        match rest.peek() {
            Some(next) if *next == extent => {
                rest.next();
            }
            _ => axes.push(axis),
        }
    }
    (rest.peek().is_none() && x.len() == out.len() + axes.len()).then_some(axes)
}

/// What an operation of one tensor gives of another.
fn carried_out(record: &Operation) -> Function {
    let record = record.clone();
    Arc::new(move |x| carry_out(&record, &[floats(x.clone())?])?.first().map(array))
}

fn operands(op: usize, others: Vec<OtherOperand>) -> Edit {
    Edit { at: At::Op(op), change: Change::Operands(others) }
}

/// Another tensor in the place of one.
fn instead_of(slot: &Slot<'_>, view: &View) -> OtherOperand {
    other_operand(slot.place, view, Arc::new(|x| Some(x.clone())))
}
