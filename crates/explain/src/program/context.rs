//! Describes what stands around an operation of a program: who makes what it reads, and who reads what it makes.

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use firstdiff_model::WeightView;
use firstdiff_program::{Bench, Kind, Operand, Operation, Program, Scalar, Slice, View};
use firstdiff_trace::Site;
use ndarray::{ArrayD, Dimension, IxDyn};

use crate::program::arrays::{array, floats};
use crate::program::condition::PRODUCTS;
use crate::program::held::Held;
use crate::program::routing::read_by;
use crate::program::slices::reached;
use crate::replay::right::distance;
use crate::tolerance::search::ROUNDED_TO_16_BITS;

/// The operations of a slice, in their program.
pub(crate) struct Context<'a> {
    pub(crate) program: &'a Program,
    pub(crate) held: &'a Held,
    pub(crate) slice: &'a Slice<'a>,
    bench: &'a Bench<'a>,
    /// What the candidate has at the tap that the slice makes.
    pub(crate) own: Arc<ArrayD<f64>>,
    /// The step that a mistake of decoding begins with.
    pub(crate) onset: usize,
    ops: BTreeSet<usize>,
    /// Whether the candidate is as far off as rounding to 16 bits leaves it.
    is_off_as_rounded: OnceCell<bool>,
}

/// Operations that only move, round or scale values, and those between a product and its softmax.
const FOLLOWED: usize = 24;

impl<'a> Context<'a> {
    pub(crate) fn new(
        program: &'a Program,
        held: &'a Held,
        slice: &'a Slice<'a>,
        bench: &'a Bench<'a>,
        own: Arc<ArrayD<f64>>,
    ) -> Context<'a> {
        let ops: BTreeSet<usize> = slice.ops().collect();
        Context { program, held, slice, bench, own, onset: 1, ops, is_off_as_rounded: OnceCell::new() }
    }

    /// The same, of mistakes of decoding that begin with this step.
    pub(crate) fn beginning_at(self, onset: u32) -> Context<'a> {
        Context { onset: onset.max(1) as usize, ..self }
    }

    /// The operations, in their order.
    pub(crate) fn ops(&self) -> impl Iterator<Item = usize> {
        self.ops.iter().copied()
    }

    pub(crate) fn has(&self, op: usize) -> bool {
        self.ops.contains(&op)
    }

    pub(crate) fn op(&self, op: usize) -> &'a Operation {
        &self.program.ops()[op]
    }

    /// The name without overload, and without the `_` of one in place.
    pub(crate) fn base(&self, op: usize) -> &'a str {
        let base = self.op(op).base();
        if base.starts_with('_') { base } else { base.strip_suffix('_').unwrap_or(base) }
    }

    /// What it writes first.
    pub(crate) fn out(&self, op: usize) -> Option<&'a View> {
        self.op(op).outputs.first().and_then(Option::as_ref)
    }

    /// The tensors among its operands, with their places; none of lists.
    pub(crate) fn tensors(&self, op: usize) -> Vec<(usize, &'a View)> {
        let tensor = |(place, operand): (usize, &'a Operand)| match operand {
            Operand::View(view) => Some((place, view)),
            _ => None,
        };
        self.op(op).operands.iter().enumerate().filter_map(tensor).collect()
    }

    /// The tensor at a place.
    pub(crate) fn tensor(&self, op: usize, place: usize) -> Option<&'a View> {
        match self.op(op).operands.get(place) {
            Some(Operand::View(view)) => Some(view),
            _ => None,
        }
    }

    /// The first number among the operands behind the first, and its place.
    pub(crate) fn number(&self, op: usize) -> Option<(usize, f64)> {
        let operands = self.op(op).operands.iter().enumerate().take(2);
        let mut numbers = operands.filter_map(|(place, operand)| match operand {
            Operand::View(view) => Some((place, self.program.constant(view).or_else(|| self.filled(op, view))?)),
            other => Some((place, number_of(other)?)),
        });
        numbers.next()
    }

    /// The activation among its operands: the first, where there are several.
    pub(crate) fn activation(&self, op: usize) -> Option<&'a View> {
        self.tensors(op).into_iter().map(|(_, view)| view).find(|view| self.is_activation(view))
    }

    /// The one of its two tensors for which alone `is` holds, and the other, each with its place.
    pub(crate) fn one_of_two(&self, op: usize, is: impl Fn(&View) -> bool) -> Option<[(usize, &'a View); 2]> {
        let [a, b] = self.tensors(op)[..] else { return None };
        match (is(a.1), is(b.1)) {
            (true, false) => Some([a, b]),
            (false, true) => Some([b, a]),
            _ => None,
        }
    }

    /// The two tensors that an operation joins.
    pub(crate) fn joined(&self, op: usize) -> Option<[&'a View; 2]> {
        let Some(Operand::List(parts)) = self.op(op).operands.first() else { return None };
        let [Operand::View(first), Operand::View(second)] = &parts[..] else { return None };
        Some([first, second])
    }

    /// Whether what an operation gives is read by one for which `is` holds.
    pub(crate) fn is_read_by(&self, op: usize, is: impl Fn(usize) -> bool) -> bool {
        self.program.readers(op).iter().any(|&reader| is(reader))
    }

    /// How many tokens the step of an operation takes.
    pub(crate) fn tokens(&self, op: usize) -> usize {
        self.program.steps().get(self.step_of(op)).map_or(0, |step| step.tokens)
    }

    /// The position of the first token of a step.
    pub(crate) fn start(&self, step: usize) -> usize {
        self.program.steps().iter().take(step).map(|step| step.tokens).sum()
    }

    /// The number that a tensor of one element was made of.
    fn filled(&self, op: usize, view: &View) -> Option<f64> {
        let maker = self.maker(op, view).filter(|&maker| self.base(maker) == "full" && view.elements() == 1)?;
        number_of(self.op(maker).operands.get(1)?)
    }

    /// The same of another slice.
    pub(crate) fn at<'s>(&self, slice: &'s Slice<'s>, own: ArrayD<f64>) -> Context<'s>
    where
        'a: 's,
    {
        Context::new(self.program, self.held, slice, self.bench, Arc::new(own))
    }

    /// What the operations between a tap and the one before it make of another value.
    pub(crate) fn made_of(&self, tap: usize, x: &ArrayD<f64>) -> Option<ArrayD<f64>> {
        let slice = Slice::of(self.program, tap, |_| true);
        let before = slice.known().next().filter(|_| slice.known().count() == 1)?;
        let x = x.to_shape(self.program.taps()[before].view.shape.as_slice()).ok()?.into_owned();
        let x = floats(x)?;
        Some(array(&slice.evaluate(self.bench, &|_| Some(x.view()), &[]).ok()?))
    }

    /// What a tap is, whichever stack it is of.
    pub(crate) fn site(&self, tap: usize) -> Site {
        self.held.place(tap).tap.last_site()
    }

    pub(crate) fn is_weight(&self, view: &View) -> bool {
        self.program.weights().contains_key(&view.buffer)
    }

    /// A weight as its file holds it.
    pub(crate) fn stored(&self, view: &View) -> Option<WeightView<'a>> {
        self.bench.stored(self.weight(view)?)
    }

    /// Whether rows of it are looked up by ids.
    pub(crate) fn is_looked_up(&self, table: usize) -> bool {
        let reads = |op: usize| self.base(op) == "embedding" && self.tensor(op, 0).is_some_and(|t| t.buffer == table);
        (0..self.program.ops().len()).any(reads)
    }

    /// Whether a product made it.
    pub(crate) fn is_projected(&self, op: usize, view: &View) -> bool {
        self.origin(op, view).is_some_and(|at| PRODUCTS.contains(&self.base(at)))
    }

    pub(crate) fn is_activation(&self, view: &View) -> bool {
        self.program.is_activation(view.buffer)
    }

    /// Whether it is a table of floats or truths that depends on no activation, and is no weight: positions, masks.
    pub(crate) fn is_table(&self, view: &View) -> bool {
        self.program.is_table(view)
    }

    /// The values of a table, as `op` reads it.
    pub(crate) fn table(&self, op: usize, view: &View) -> Option<ArrayD<f64>> {
        self.bench.table(op, view).map(|values| array(&values))
    }

    /// What the slice makes where nothing is changed.
    pub(crate) fn due(&self) -> Option<ArrayD<f64>> {
        self.held.made(self.bench, self.slice, &[])
    }

    /// Whether the candidate is as far off as operands leave it that are rounded to 16 bits.
    pub(crate) fn is_off_as_rounded(&self) -> bool {
        let is_so = || {
            let due = self.due().filter(|due| due.shape() == self.own.shape());
            due.is_some_and(|due| distance(self.site(self.slice.target()), &self.own, &due) <= ROUNDED_TO_16_BITS)
        };
        *self.is_off_as_rounded.get_or_init(is_so)
    }

    /// What `op` reads in views, of the candidate's own values.
    pub(crate) fn read(&self, op: usize, views: &[&View]) -> Option<Vec<ArrayD<f64>>> {
        read_by((self.slice, &[]), self.bench, op, views, &|tap| self.held.value(tap))
    }

    /// What the candidate has at the tap that the slice makes, as a view of the same elements shows it.
    pub(crate) fn own_as(&self, view: &View) -> Option<ArrayD<f64>> {
        let target = &self.program.taps()[self.slice.target()].view;
        if target.buffer != view.buffer || target.elements() != view.elements() || target.dtype != view.dtype {
            return None;
        }
        let place = |view: &View, index: &IxDyn| {
            view.offset + index.slice().iter().zip(&view.strides).map(|(i, stride)| i * stride).sum::<usize>()
        };
        let shaped = self.own.to_shape(target.shape.as_slice()).ok()?;
        let held: HashMap<usize, f64> = shaped.indexed_iter().map(|(index, x)| (place(target, &index), *x)).collect();
        let values: Option<Vec<f64>> =
            ndarray::indices(view.shape.as_slice()).into_iter().map(|i| held.get(&place(view, &i)).copied()).collect();
        ArrayD::from_shape_vec(view.shape.as_slice(), values?).ok()
    }

    /// All operations that make what `op` reads in a view, where no activation is among what they read.
    pub(crate) fn makers(&self, op: usize, view: &View) -> BTreeSet<usize> {
        reached(self.maker(op, view), |at| {
            let read = self.op(at).operands.iter().flat_map(Operand::views);
            read.filter(|read| !self.is_activation(read)).filter_map(move |read| self.maker(at, read))
        })
    }

    /// The operation that made what `op` reads in a view.
    pub(crate) fn maker(&self, op: usize, view: &View) -> Option<usize> {
        self.program.writer(op, view.buffer)
    }

    /// What `op` reads in a view, before copies, changes of type and shape: the operation that made it.
    pub(crate) fn origin(&self, op: usize, view: &View) -> Option<usize> {
        let mut at = self.maker(op, view)?;
        for _ in 0..FOLLOWED {
            if !matches!(
                self.base(at),
                "clone" | "contiguous" | "to" | "_to_copy" | "reshape" | "view" | "type_as" | "dropout"
            ) {
                break;
            }
            let Some((_, read)) = self.tensors(at).first().copied() else { break };
            let Some(before) = self.maker(at, read) else { break };
            at = before;
        }
        Some(at)
    }

    /// Whether what an operation makes comes to one for which `is` holds, with no product with a weight and no norm between.
    pub(crate) fn leads_to(&self, op: usize, is: impl Fn(usize) -> bool) -> bool {
        const ENDS: [&str; 7] = ["linear", "addmm", "layer_norm", "rms_norm", "rsqrt", "softmax", "topk"];
        self.meets(op, FOLLOWED, |at| self.program.readers(at).to_vec(), is, &ENDS)
    }

    /// Whether what an operation reads comes from one for which `is` holds, behind none of those that end it, within so many operations.
    pub(crate) fn comes_from(&self, op: usize, most: usize, is: impl Fn(usize) -> bool, ends: &[&str]) -> bool {
        let makers = |at: usize| self.tensors(at).into_iter().filter_map(|(_, view)| self.maker(at, view)).collect();
        self.meets(op, most, makers, is, ends)
    }

    /// Whether a way on from an operation comes to one for which `is` holds, behind none of those that end it, within so many operations.
    fn meets(
        &self,
        op: usize,
        most: usize,
        on: impl Fn(usize) -> Vec<usize>,
        is: impl Fn(usize) -> bool,
        ends: &[&str],
    ) -> bool {
        let (mut open, mut seen) = (vec![op], BTreeSet::new());
        while let Some(at) = open.pop() {
            for next in on(at) {
                if is(next) {
                    return true;
                }
                if !ends.contains(&self.base(next)) && seen.len() < most && seen.insert(next) {
                    open.push(next);
                }
            }
        }
        false
    }

    /// Whether it makes scores of attention: what it gives comes to a softmax, and its last two axes are queries and keys.
    pub(crate) fn leads_to_probs(&self, op: usize) -> bool {
        self.leads_to(op, |reader| self.is_attention_softmax(reader))
    }

    pub(crate) fn is_attention_softmax(&self, op: usize) -> bool {
        let is_wide = self.out(op).is_some_and(|out| out.shape.len() >= 3);
        self.base(op).trim_start_matches('_') == "softmax" && is_wide && self.leads_to_product(op)
    }

    /// Whether what it makes is multiplied with another activation.
    fn leads_to_product(&self, op: usize) -> bool {
        self.leads_to(op, |reader| matches!(self.base(reader), "matmul" | "bmm" | "baddbmm"))
    }

    /// The step that an operation is of.
    pub(crate) fn step_of(&self, op: usize) -> usize {
        self.program.steps().iter().position(|step| op < step.ops.end).unwrap_or(usize::MAX)
    }

    /// The first operation of its class.
    pub(crate) fn first_of(&self, op: usize) -> usize {
        let class = self.program.class(op);
        (0..op).find(|&at| self.program.class(at) == class).unwrap_or(op)
    }

    /// The activation function that made what `op` reads in a view, where one did.
    pub(crate) fn gate(&self, op: usize, view: &View) -> Option<usize> {
        self.origin(op, view).filter(|&at| matches!(self.base(at), "silu" | "gelu" | "relu" | "sigmoid"))
    }

    /// The module that an operation is called in.
    pub(crate) fn module(&self, op: usize) -> Option<&'a str> {
        self.op(op).scope.map(|scope| self.program.scopes()[scope].module.as_str())
    }

    /// The operations of one call of a module, `op` among them.
    pub(crate) fn call(&self, op: usize) -> std::ops::RangeInclusive<usize> {
        let module = self.module(op);
        let inside = |&at: &usize| self.module(at) == module;
        let first = (0..op).rev().take_while(inside).last().unwrap_or(op);
        let last = (op + 1..self.program.ops().len()).take_while(inside).last().unwrap_or(op);
        first..=last
    }

    /// Whether an operation is of a norm: its module takes a row's size.
    pub(crate) fn is_of_norm(&self, op: usize) -> bool {
        self.call(op).any(|at| matches!(self.base(at), "rsqrt" | "layer_norm" | "rms_norm"))
    }

    /// The name of the weight that a view is of.
    pub(crate) fn weight(&self, view: &View) -> Option<&'a str> {
        self.program.weights().get(&view.buffer).map(String::as_str)
    }

    /// Other weights of the same shape, by their names.
    pub(crate) fn alike(&self, view: &View) -> impl Iterator<Item = (&'a str, usize)> {
        let (program, own) = (self.program, view.buffer);
        let shape = &program.buffers()[own].shape;
        let weights = program.weights().iter().filter(move |(buffer, _)| **buffer != own);
        let same = weights.filter(move |(buffer, _)| program.buffers()[**buffer].shape == *shape);
        same.map(|(&buffer, name)| (name.as_str(), buffer))
    }

    pub(crate) fn is_float(&self, view: &View) -> bool {
        view.dtype.kind() == Kind::Float
    }
}

/// The number that an operand is.
pub(crate) fn number_of(operand: &Operand) -> Option<f64> {
    match operand {
        Operand::Scalar(Scalar::Float(x)) => Some(*x),
        Operand::Scalar(Scalar::Int(x)) => Some(*x as f64),
        _ => None,
    }
}
