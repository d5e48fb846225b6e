//! Mistakes that no entry of the catalogue lists: each tensor of a slice read in another order, through a function, or another one in its place; each
//! operation another one. The cheapest are tried first.

mod names;
mod tables;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use firstdiff_laws::orders;
use firstdiff_program::{At, Change, Edit, Operand, Operation, OtherOperand, Scalar, Tensor, View};
use ndarray::{ArrayD, Axis};
use serde_json::json;

use self::names::Names;
use self::tables::{BINARY, ROW_FUNCTIONS, STATISTICS};
use super::context::Context;
use super::forms::{Form, computed, kept, recorded_before, renamed};
use super::held::{array, floats};
use crate::mistakes::recorded::{
    FUNCTION_DIFFERS, OPERATION_DIFFERS, OPERATION_INPUT, OPERATION_MOVED, OPERATION_OMITTED, ORDER_DIFFERS,
    TENSORS_EXCHANGED,
};
use crate::mistakes::{Mistake, Params};
use crate::tolerance::search::{FUNCTION_BITS, ORDER_BITS};

/// A form, and its price in bits.
pub(super) struct Priced {
    pub(super) bits: f64,
    pub(super) form: Form,
}

/// Operations of a slice beyond which nothing is changed one by one: most of what would be tried, nobody waits for.
const LARGEST: usize = 300;
/// The longest axis of which orders are tried.
const LONGEST: usize = 4096;
/// So many forms are listed at most, the cheapest.
const MOST: usize = 6000;
/// Tensors of which each is tried in the place of another.
const TENSORS: usize = 48;

/// A function of one array.
type Function = Arc<dyn Fn(&ArrayD<f64>) -> Option<ArrayD<f64>> + Send + Sync>;

/// A tensor that an operation reads.
struct Slot<'a> {
    op: usize,
    place: (usize, Option<usize>),
    view: &'a View,
    /// What it costs to say which.
    bits: f64,
    /// Whether it stands for all that reads this weight: what is wrong with it is so wherever it is read.
    is_of_weight: bool,
}

/// All edits of the operations of a slice, the cheapest first. What is one line of code is done otherwise wherever it is carried out.
pub(super) fn edits(context: &Context<'_>) -> Vec<Priced> {
    let ops: Vec<usize> = context.ops().collect();
    if ops.len() > LARGEST {
        return Vec::new();
    }
    let mut list = List { context, names: Names::new(context), orders: HashMap::new(), all: Vec::new() };
    for (at, &op) in ops.iter().enumerate() {
        if ops[..at].iter().any(|&before| context.program.class(before) == context.program.class(op)) {
            continue;
        }
        let bits = ((ops.len() - at + 1) as f64).log2();
        list.edit_operation(op, bits);
        for slot in slots(context, op, bits).into_iter().filter(|slot| !context.is_weight(slot.view)) {
            list.edit_tensor(&slot);
        }
    }
    let weights = list.weights();
    for slot in weights {
        list.edit_tensor(&slot);
    }
    list.modules();
    list.exchanges();
    list.all.sort_by(|a, b| a.bits.total_cmp(&b.bits));
    list.all.truncate(MOST);
    list.all
}

/// The tensors that an operation reads, those of lists included.
fn slots<'a>(context: &Context<'a>, op: usize, bits: f64) -> Vec<Slot<'a>> {
    let mut out = Vec::new();
    for (place, operand) in context.op(op).operands.iter().enumerate() {
        match operand {
            Operand::View(view) => out.push(Slot { op, place: (place, None), view, bits, is_of_weight: false }),
            Operand::List(items) => out.extend(items.iter().enumerate().filter_map(|(item, operand)| match operand {
                Operand::View(view) => {
                    Some(Slot { op, place: (place, Some(item)), view, bits: bits + 1.0, is_of_weight: false })
                }
                _ => None,
            })),
            _ => {}
        }
    }
    out.retain(|slot| slot.view.elements() > 0);
    out
}

struct List<'c, 'a> {
    context: &'c Context<'a>,
    names: Names<'c, 'a>,
    /// Orders of axes, by how long they are: one list serves all that are as long.
    orders: HashMap<(usize, &'static str), Arc<[Order]>>,
    all: Vec<Priced>,
}

/// Another order of an axis in words, its price, and for each place which stands there; `None` for zeros.
type Order = (String, f64, Arc<[Option<usize>]>);

impl<'a> List<'_, 'a> {
    /// Adds a form; `edit` makes it of one operation, and the same is done in all of its class.
    fn add(
        &mut self,
        bits: f64,
        mistake: &'static Mistake,
        params: Params,
        op: usize,
        edit: &dyn Fn(usize) -> Vec<Edit>,
    ) {
        let class = self.context.program.class(op);
        let alike = self.context.ops().filter(|&other| self.context.program.class(other) == class);
        let edits: Vec<Edit> = alike.flat_map(edit).collect();
        if !edits.is_empty() {
            self.all.push(Priced { bits, form: Form { class, ..Form::new(mistake, params, edits) } });
        }
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
        for op in self.context.ops() {
            let read = slots(self.context, op, 0.0).into_iter().filter(|slot| self.context.is_weight(slot.view));
            for slot in read {
                if !out.iter().any(|known| known.view.buffer == slot.view.buffer) {
                    out.push(Slot { is_of_weight: true, ..slot });
                }
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
        let place = slot.place;
        if slot.is_of_weight {
            let is_it = |other: &Slot<'_>| other.view.buffer == slot.view.buffer && other.view.shape == slot.view.shape;
            let edit = |op: usize| {
                let read = slots(context, op, 0.0).into_iter().filter(is_it);
                let others: Vec<OtherOperand> =
                    read.map(|other| other_operand(other.place, other.view, function.clone())).collect();
                (!others.is_empty()).then(|| operands(op, others))
            };
            let edits: Vec<Edit> = context.ops().filter_map(edit).collect();
            let class = context.program.class(slot.op);
            self.all.push(Priced { bits: slot.bits + bits, form: Form { class, ..Form::new(mistake, params, edits) } });
            return;
        }
        self.add(slot.bits + bits, mistake, params, slot.op, &|op| {
            let found = slots(context, op, 0.0).into_iter().find(|other| other.place == place);
            let view = found.filter(|other| other.view.shape == slot.view.shape).map(|other| other.view.clone());
            view.map_or_else(Vec::new, |view| vec![operands(op, vec![other_operand(place, &view, function.clone())])])
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
        for axis in (0..shape.len()).filter(|&axis| (2..=LONGEST).contains(&shape[axis])) {
            let is_last = shape[axis + 1..].iter().all(|&extent| extent == 1);
            let is_first = shape[..axis].iter().all(|&extent| extent == 1);
            let on_axis = if is_last || is_first { String::new() } else { format!(", along axis {axis}") };
            let name = if is_last { "element" } else { "row" };
            for (words, bits, from) in self.orders(shape[axis], name).iter() {
                let (words, from) = (format!("{words}{on_axis}"), from.clone());
                found.push((4.0 + bits, &ORDER_DIFFERS, said("order", words), in_order(axis, from)));
            }
        }
        for axis in 0..shape.len() {
            for other in (axis + 1..shape.len()).filter(|&other| shape[axis] > 1 && shape[other] == shape[axis]) {
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
            for word in firstdiff_laws::functions(FUNCTION_BITS) {
                let words = word.words.replace("{}", "x");
                let f = word.value;
                let function: Function = Arc::new(move |x| Some(x.mapv(|x| f(x))));
                found.push((3.0 + word.bits, &FUNCTION_DIFFERS, said("function", words), function));
            }
            for (words, bits, f) in ROW_FUNCTIONS {
                found.push((3.0 + bits, &FUNCTION_DIFFERS, said("function", words.to_owned()), Arc::new(f)));
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
        let said = |reads: &str| {
            vec![
                ("operation", json!(self.context.program.said(slot.op))),
                ("tensor", json!(tensor)),
                ("reads", json!(reads)),
            ]
        };
        let place = slot.place;
        let others = self.names.others(slot.op, slot.view);
        for (rank, (name, view)) in others.into_iter().enumerate().take(TENSORS) {
            let bits = slot.bits + 6.0 + (rank as f64 + 2.0).log2();
            let shape = slot.view.shape.clone();
            // In each operation of the class the tensor that stands there to it as this one here.
            let edit = |op: usize| {
                let other = if op == slot.op { Some(view.clone()) } else { self.names.same(op, place, &name) };
                let shape = shape.clone();
                let reshaped: Function = Arc::new(move |x| x.clone().into_shape_with_order(shape.as_slice()).ok());
                other.map_or_else(Vec::new, |view| vec![operands(op, vec![other_operand(place, &view, reshaped)])])
            };
            let class = self.context.program.class(slot.op);
            let alike = self.context.ops().filter(|&other| self.context.program.class(other) == class);
            let edits: Vec<Edit> = alike.flat_map(edit).collect();
            self.all.push(Priced { bits, form: Form { class, ..Form::new(&OPERATION_INPUT, said(&name), edits) } });
        }
        if !self.context.is_float(slot.view) {
            return;
        }
        let target = self.context.slice.target();
        let own = self.context.held.place(target).tap;
        for (rank, (tap, values)) in recorded_before(self.context).into_iter().enumerate().take(TENSORS) {
            let Ok(values) = values.into_shape_with_order(slot.view.shape.as_slice()) else { continue };
            let name = names::relative_tap(&tap, own.layer);
            let bits = slot.bits + 6.5 + (rank as f64 + 2.0).log2();
            let values = Arc::new(values);
            let instead: Function = Arc::new(move |_| Some((*values).clone()));
            let change = operands(slot.op, vec![other_operand(place, slot.view, instead)]);
            let class = self.context.program.class(slot.op);
            let form = Form { class, ..Form::new(&OPERATION_INPUT, said(&name), vec![change]) };
            self.all.push(Priced { bits, form });
        }
    }

    /// Another operation.
    fn edit_operation(&mut self, op: usize, bits: f64) {
        let context = self.context;
        let record = context.op(op);
        let said = |by: String| vec![("operation", json!(context.program.said(op))), ("is", json!(by))];
        let omitted = |at: usize| {
            let keeps = (at > 0).then(|| ("keeps", json!("second")));
            [("operation", json!(context.program.said(op)))].into_iter().chain(keeps).collect::<Params>()
        };
        let plain = context.common_name(op);
        if let Some(own) = BINARY.iter().find(|known| **known == plain) {
            for at in 0..2 {
                self.add(bits + 2.0, &OPERATION_OMITTED, omitted(at), op, &|op| {
                    let [a, b] = context.tensors(op)[..] else { return Vec::new() };
                    let (_, view) = if at == 0 { a } else { b };
                    let is_whole = context.out(op).is_some_and(|out| out.shape == view.shape);
                    if is_whole { vec![Edit { at: At::Op(op), change: kept(view) }] } else { Vec::new() }
                });
            }
            if context.number(op).is_some() {
                self.add(bits + 2.0, &OPERATION_OMITTED, omitted(0), op, &|op| {
                    let view =
                        context.tensor(op, 0).filter(|view| context.out(op).is_some_and(|out| out.shape == view.shape));
                    view.map_or_else(Vec::new, |view| vec![Edit { at: At::Op(op), change: kept(view) }])
                });
            }
            for other in BINARY.iter().filter(|other| *other != own) {
                let is_ggml = record.name.starts_with("ggml.");
                let (own, by) = if is_ggml {
                    (own.to_uppercase(), other.to_uppercase())
                } else {
                    ((*own).to_owned(), (*other).to_owned())
                };
                let name = record.name.replacen(&own, &by, 1);
                let price = if matches!(*other, "maximum" | "minimum") { 7.0 } else { 4.0 };
                self.add(bits + price, &OPERATION_DIFFERS, said((*other).to_owned()), op, &|op| {
                    vec![Edit { at: At::Op(op), change: renamed(context.op(op), &name) }]
                });
            }
            // One of its operands twice.
            for (at, (_, view)) in context.tensors(op).into_iter().enumerate().take(2) {
                let tensor = self.names.describe(op, view);
                self.add(bits + 5.0, &OPERATION_DIFFERS, said(format!("{plain} of {tensor} twice")), op, &|op| {
                    let [(first, a), (second, b)] = context.tensors(op)[..] else { return Vec::new() };
                    let name = context.op(op).name.clone();
                    let once = move |x: &[Tensor<'_>]| firstdiff_program::apply(&name, &[x.first()?, x.get(1)?], &[]);
                    let place = (if at == 0 { second } else { first }, None);
                    vec![operands(
                        op,
                        vec![OtherOperand { place, views: vec![a.clone(), b.clone()], value: Arc::new(once) }],
                    )]
                });
            }
        }
        if is_unary(context, op) {
            self.add(bits + 2.0, &OPERATION_OMITTED, omitted(0), op, &|op| {
                let view = context.tensor(op, 0);
                view.map_or_else(Vec::new, |view| vec![Edit { at: At::Op(op), change: kept(view) }])
            });
            for word in firstdiff_laws::functions(FUNCTION_BITS) {
                let words = word.words.replace("{}", "x");
                self.add(bits + 2.0 + word.bits, &OPERATION_DIFFERS, said(words), op, &|op| {
                    let f = word.value.clone();
                    let view = context.tensor(op, 0);
                    let change = view.map(|view| computed(&[view], move |x| Some(x[0].mapv(|x| f(x)))));
                    change.map_or_else(Vec::new, |change| vec![Edit { at: At::Op(op), change }])
                });
            }
            self.add(bits + 6.0, &OPERATION_DIFFERS, said("carried out twice".to_owned()), op, &|op| {
                let Some(view) = context.tensor(op, 0) else { return Vec::new() };
                vec![operands(op, vec![other_operand((0, None), view, carried_out(context.op(op)))])]
            });
            self.moved(op, bits);
        }
        self.statistics(op, bits);
        self.numbers(op, bits);
    }

    /// A function that stands in front of a product or a sum, or behind it, and is taken of something else there.
    fn moved(&mut self, op: usize, bits: f64) {
        let context = self.context;
        let Some(out) = context.out(op) else { return };
        let said = |to: String| vec![("operation", json!(context.program.said(op))), ("of", json!(to))];
        let readers: Vec<usize> = context.program.readers(op).iter().copied().filter(|&r| context.has(r)).collect();
        if let [reader] = readers[..] {
            let tensors = context.tensors(reader);
            let is_own = |view: &View| view.buffer == out.buffer;
            if let [(_, a), (_, b)] = tensors[..]
                && BINARY.contains(&context.base(reader))
                && is_own(a) != is_own(b)
            {
                let (other, place) = if is_own(a) { (b, tensors[1].0) } else { (a, tensors[0].0) };
                let tensor = self.names.describe(reader, other);
                let function = carried_out(context.op(op));
                let moved = |op: usize, reader: usize| {
                    let view = context.tensor(op, 0)?;
                    let onto = operands(reader, vec![other_operand((place, None), other, function.clone())]);
                    Some(vec![Edit { at: At::Op(op), change: kept(view) }, onto])
                };
                self.add(bits + 5.0, &OPERATION_MOVED, said(tensor), op, &|other_op| {
                    if other_op == op { moved(op, reader).unwrap_or_default() } else { Vec::new() }
                });
                let name = context.op(reader).name.clone();
                let result = context.program.said(reader);
                let behind = {
                    let function = carried_out(context.op(op));
                    move |x: &[Tensor<'_>]| {
                        let result = firstdiff_program::apply(&name, &[x.first()?, x.get(1)?], &[])?;
                        Some(vec![floats(function(&array(result.first()?))?)?])
                    }
                };
                let behind = Arc::new(behind);
                self.add(bits + 5.0, &OPERATION_MOVED, said(format!("what {result} gives")), op, &|other_op| {
                    let Some(view) = context.tensor(op, 0).filter(|_| other_op == op) else { return Vec::new() };
                    let views = tensors.iter().map(|(_, view)| (*view).clone()).collect();
                    let change = Change::Values(views, behind.clone());
                    vec![Edit { at: At::Op(op), change: kept(view) }, Edit { at: At::Op(reader), change }]
                });
            }
        }
        let Some(maker) = context.tensor(op, 0).and_then(|view| context.maker(op, view)).filter(|&at| context.has(at))
        else {
            return;
        };
        if !BINARY.contains(&context.base(maker)) {
            return;
        }
        for (place, view) in context.tensors(maker) {
            let tensor = self.names.describe(maker, view);
            let function = carried_out(context.op(op));
            self.add(bits + 5.0, &OPERATION_MOVED, said(tensor), op, &|other_op| {
                let Some(result) = context.tensor(op, 0).filter(|_| other_op == op) else { return Vec::new() };
                let onto = operands(maker, vec![other_operand((place, None), view, function.clone())]);
                vec![onto, Edit { at: At::Op(op), change: kept(result) }]
            });
        }
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
                let (Some(x), Some(out)) = (context.tensor(op, 0), context.out(op)) else { return Vec::new() };
                let (axes, shape) = (axes.clone(), out.shape.clone());
                let change = computed(&[x], move |x| {
                    let mut value = x[0].clone();
                    for &axis in axes.iter().rev() {
                        value = value.map_axis(Axis(axis), |lane| f(&mut lane.iter().copied()));
                    }
                    value.into_shape_with_order(shape.as_slice()).ok()
                });
                vec![Edit { at: At::Op(op), change }]
            });
        }
    }

    /// Another whole number, or the other of yes and no.
    fn numbers(&mut self, op: usize, bits: f64) {
        let context = self.context;
        let record = context.op(op);
        let mut others: Vec<(f64, String, Operation)> = Vec::new();
        let mut vary = |words: &str, operand: &Operand, put: &dyn Fn(Operand) -> Operation| match operand {
            Operand::Scalar(Scalar::Int(x)) => {
                for other in
                    BTreeSet::from([x + 1, x - 1, -x, 0, 1, 2 * x, x / 2]).into_iter().filter(|other| other != x)
                {
                    let said = format!("{words}{other} in place of {x}");
                    others.push((5.0, said, put(Operand::Scalar(Scalar::Int(other)))));
                }
            }
            Operand::Scalar(Scalar::Bool(x)) => {
                others.push((4.0, format!("{words}{} in place of {x}", !x), put(Operand::Scalar(Scalar::Bool(!x)))));
            }
            _ => {}
        };
        for (place, operand) in record.operands.iter().enumerate() {
            let with = |place: usize, operand: Operand| {
                let mut other = record.clone();
                other.operands[place] = operand;
                other
            };
            match operand {
                Operand::List(items) => {
                    for (at, item) in items.iter().enumerate() {
                        vary("", item, &|other| {
                            let mut items = items.clone();
                            items[at] = other;
                            with(place, Operand::List(items))
                        });
                    }
                }
                operand => vary("", operand, &|other| with(place, other)),
            }
        }
        for (at, (key, operand)) in record.keywords.iter().enumerate() {
            vary(&format!("{key} "), operand, &|operand| {
                let mut other = record.clone();
                other.keywords[at].1 = operand;
                other
            });
        }
        for (price, words, other) in others {
            let params = vec![("operation", json!(context.program.said(op))), ("is", json!(words))];
            // Its own views, and what differs from the first of its class.
            self.add(bits + price, &OPERATION_DIFFERS, params, op, &|op| {
                let mut own = context.op(op).clone();
                if own.operands.len() != other.operands.len() || own.keywords.len() != other.keywords.len() {
                    return Vec::new();
                }
                for (own, other) in own.operands.iter_mut().zip(&other.operands) {
                    if own.views().is_empty() {
                        *own = other.clone();
                    }
                }
                for ((_, own), (_, other)) in own.keywords.iter_mut().zip(&other.keywords) {
                    if own.views().is_empty() {
                        *own = other.clone();
                    }
                }
                vec![Edit { at: At::Op(op), change: Change::Operation(Box::new(own)) }]
            });
        }
    }

    /// The weights of another module in the place of those of one, or of each other: what is loaded by one name, is loaded whole.
    fn modules(&mut self) {
        let context = self.context;
        let mut modules: Vec<(&str, Vec<(&str, usize)>)> = Vec::new();
        for slot in self.weights() {
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
                let (tensor, reads) = (self.names.weight(module), self.names.weight_beside(other, module));
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
            let other = |slot: Slot<'_>| {
                let buffer = *instead.get(&slot.view.buffer)?;
                let view = View { buffer, ..slot.view.clone() };
                Some(other_operand(slot.place, &view, Arc::new(|x| Some(x.clone()))))
            };
            let edit = |op: usize| {
                let others: Vec<OtherOperand> = slots(context, op, 0.0).into_iter().filter_map(other).collect();
                (!others.is_empty()).then(|| operands(op, others))
            };
            let edits: Vec<Edit> = context.ops().filter_map(edit).collect();
            let class = edits.first().and_then(|edit| edit.at.op()).map_or(0, |op| context.program.class(op));
            self.all.push(Priced { bits, form: Form { class, ..Form::new(mistake, params, edits) } });
        }
    }

    /// Two tensors of one shape, each read in the place of the other.
    fn exchanges(&mut self) {
        let context = self.context;
        let mut reads: Vec<Slot<'_>> = Vec::new();
        for op in context.ops() {
            for slot in slots(context, op, 0.0).into_iter().filter(|slot| !context.is_weight(slot.view)) {
                if !reads.iter().any(|known| known.view == slot.view) {
                    reads.push(slot);
                }
            }
        }
        let is_alike = |a: &View, b: &View| a.shape == b.shape && a.dtype.kind() == b.dtype.kind() && a.elements() > 1;
        let mut found = Vec::new();
        for (at, a) in reads.iter().enumerate() {
            for b in reads[at + 1..].iter().filter(|b| is_alike(a.view, b.view)).take(TENSORS) {
                let written = |slot: &Slot<'_>| context.maker(slot.op, slot.view).filter(|&at| context.has(at));
                // Both are there before either is read.
                if [written(a), written(b)].into_iter().flatten().any(|at| at >= a.op.min(b.op)) {
                    continue;
                }
                let mut edits: Vec<Edit> = Vec::new();
                for op in context.ops() {
                    let others: Vec<OtherOperand> = slots(context, op, 0.0)
                        .into_iter()
                        .filter_map(|slot| {
                            let other = if slot.view == a.view {
                                b.view
                            } else if slot.view == b.view {
                                a.view
                            } else {
                                return None;
                            };
                            Some(other_operand(slot.place, other, Arc::new(|x| Some(x.clone()))))
                        })
                        .collect();
                    if !others.is_empty() {
                        edits.push(operands(op, others));
                    }
                }
                let (first, second) = (self.names.describe(a.op, a.view), self.names.describe(b.op, b.view));
                let params = vec![("tensors", json!(format!("{first} and {second}")))];
                let form = Form { class: context.program.class(a.op), ..Form::new(&TENSORS_EXCHANGED, params, edits) };
                found.push(Priced { bits: 8.0 + (reads.len() as f64).log2(), form });
            }
        }
        self.all.extend(found);
    }
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
            | "CONT"
            | "CPY"
            | "cumsum"
            | "expand"
            | "repeat"
    );
    !moves
        && context.is_float(x)
        && context.number(op).is_none()
        && context.out(op).is_some_and(|out| out.shape == x.shape && context.is_float(out))
}

/// What tells a form from others where the line of code is another: the same is done in decoding by another line.
pub(super) fn kin(form: &Form) -> String {
    let params =
        form.params.iter().filter(|(name, _)| *name != "operation").map(|(name, value)| format!("{name}={value}"));
    format!("{} {}", form.mistake.id, params.collect::<Vec<_>>().join(","))
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
    let name = record.name.clone();
    let keywords: Vec<(String, Scalar)> = record
        .keywords
        .iter()
        .filter_map(|(key, operand)| match operand {
            Operand::Scalar(scalar) => Some((key.clone(), scalar.clone())),
            _ => None,
        })
        .collect();
    // What stands behind the tensor is told by position: the axis of a softmax.
    let axis = record.operands.get(1).and_then(|operand| match operand {
        Operand::Scalar(scalar) => Some(scalar.clone()),
        _ => None,
    });
    Arc::new(move |x| {
        let mut named: Vec<(&str, Scalar)> =
            keywords.iter().map(|(key, scalar)| (key.as_str(), scalar.clone())).collect();
        named.extend(axis.clone().map(|axis| ("dim", axis)));
        firstdiff_program::apply(&name, &[&floats(x.clone())?], &named)?.first().map(array)
    })
}

fn in_order(axis: usize, from: Arc<[Option<usize>]>) -> Function {
    Arc::new(move |x| {
        let indices: Vec<usize> = from.iter().map(|from| from.unwrap_or(0)).collect();
        let mut value = x.select(Axis(axis), &indices);
        for (at, _) in from.iter().enumerate().filter(|(_, from)| from.is_none()) {
            value.index_axis_mut(Axis(axis), at).fill(0.0);
        }
        Some(value)
    })
}

fn operands(op: usize, others: Vec<OtherOperand>) -> Edit {
    Edit { at: At::Op(op), change: Change::Operands(others) }
}

/// A function of a view in the place of an operand; whole numbers stay what they are.
fn other_operand(place: (usize, Option<usize>), view: &View, function: Function) -> OtherOperand {
    let value = move |tensors: &[Tensor<'_>]| {
        let read = tensors.first()?;
        let values = function(&array(read))?;
        Some(vec![tables::of_kind(read.dtype(), values)?])
    };
    OtherOperand { place, views: vec![view.clone()], value: Arc::new(value) }
}
