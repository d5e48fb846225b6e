//! Evaluates one slice of a program: the operations between a tap and the nearest earlier taps with known values.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use firstdiff_model::WeightView;

use crate::kernels::{self, Arg, Call, base_and_overload};
use crate::program::check;
use crate::program::{Operation, Program};
use crate::value::arithmetic::Arithmetic;
use crate::value::dtype::DType;
use crate::value::error::{EvaluateError, KernelError};
use crate::value::operand::Operand;
use crate::value::scalar::Scalar;
use crate::value::tensor::{Tensor, Values};
use crate::value::view::{View, each_number};
use crate::weights::Weights;
use crate::workspace::{Workspace, call, kernel};

/// The operations that compute one tap from known values.
#[derive(Debug)]
pub struct Slice<'a> {
    program: &'a Program,
    target: usize,
    events: Vec<Event>,
}

/// All that a slice computes with no operation changed.
pub struct Baseline<'a> {
    values: Workspace<'a>,
    /// The buffers that several events write.
    rewritten: HashSet<usize>,
    /// What replaces operands, where that is made of weights alone.
    made: Mutex<Made>,
}

/// So many numbers that replace operands are kept.
const KEPT_NUMBERS: usize = 1 << 23;

/// Values that functions of weights gave, the oldest first: of each the function, the view that its result is read as, and how many numbers all have.
#[derive(Default)]
struct Made {
    kept: VecDeque<(Instead, Option<View>, Arc<Tensor<'static>>)>,
    numbers: usize,
}

impl Made {
    fn get(&self, value: &Instead, read_as: Option<&View>) -> Option<Arc<Tensor<'static>>> {
        let is_it = |(own, view, _): &&(Instead, Option<View>, _)| Arc::ptr_eq(own, value) && view.as_ref() == read_as;
        self.kept.iter().find(is_it).map(|(.., tensor)| Arc::clone(tensor))
    }

    fn keep(&mut self, value: &Instead, read_as: Option<&View>, tensor: &Arc<Tensor<'static>>) {
        self.numbers += tensor.len();
        self.kept.push_back((Arc::clone(value), read_as.cloned(), Arc::clone(tensor)));
        while self.numbers > KEPT_NUMBERS
            && let Some((.., oldest)) = self.kept.pop_front()
        {
            self.numbers -= oldest.len();
        }
    }
}

impl fmt::Debug for Baseline<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Baseline").field("held", &self.values.held()).finish_non_exhaustive()
    }
}

/// The actions of a slice, in order.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// Carries out an operation.
    Op(usize),
    /// Sets a tap to its known value.
    SetTap(usize),
}

/// A change to what is computed.
#[derive(Clone)]
pub struct Edit {
    /// The place.
    pub at: At,
    /// The change.
    pub change: Change,
}

/// The place of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// The result of an operation, by its index.
    Op(usize),
    /// The value of a tap, by its index, for everything that reads it.
    Tap(usize),
}

/// Computes the outputs of an operation from the values of some views; `None` if they do not fit.
pub type Instead = Arc<dyn Fn(&[Tensor<'_>]) -> Option<Vec<Tensor<'static>>> + Send + Sync>;

/// How an operation is changed.
#[derive(Clone)]
pub enum Change {
    /// Replaced by another operation with the same outputs.
    Operation(Box<Operation>),
    /// Replaced by a function of the values of some views.
    Values(Vec<View>, Instead),
    /// Carried out on other operands.
    Operands(Vec<OtherOperand>),
}

/// An operand that is replaced by a function of the values of some views.
#[derive(Clone)]
pub struct OtherOperand {
    /// Which operand, and which item of it where that is a list.
    pub place: (usize, Option<usize>),
    /// What the function is taken of.
    pub views: Vec<View>,
    /// The function: its first result is the operand.
    pub value: Instead,
}

impl fmt::Debug for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = match &self.change {
            Change::Operation(op) => op.name.as_str(),
            Change::Values(..) => "values",
            Change::Operands(..) => "operands",
        };
        f.debug_struct("Edit").field("at", &self.at).field("by", &by).finish()
    }
}

impl Edit {
    /// Whether both can be made: in two places, of other operands of one operation, or where one gives a tensor other values and the other reads it
    /// otherwise.
    pub fn is_beside(&self, other: &Edit, program: &Program) -> bool {
        if self.at != other.at {
            return true;
        }
        let Some(op) = self.at.op().map(|op| &program.ops[op]) else { return false };
        let operands = |edit: &Edit| edit.change.operands(op);
        let reads_the_other = |place: &usize| {
            let one_of_other = |one: &Edit, other: &Edit| one.change.gives(*place) && other.change.rereads(op, *place);
            one_of_other(self, other) || one_of_other(other, self)
        };
        operands(self).zip(operands(other)).is_some_and(|(own, others)| own.intersection(&others).all(reads_the_other))
    }
}

impl Change {
    /// The operands of an operation that it replaces, where that is all it does.
    fn operands(&self, op: &Operation) -> Option<HashSet<usize>> {
        match self {
            Change::Operands(others) => Some(others.iter().map(|other| other.place.0).collect()),
            Change::Operation(other) => {
                let is_same = other.name == op.name && other.keywords == op.keywords;
                let pairs = op.operands.iter().zip(&other.operands).enumerate();
                let differ = pairs.filter(|(_, (own, other))| own != other).map(|(place, _)| place);
                (is_same && op.operands.len() == other.operands.len()).then(|| differ.collect())
            }
            Change::Values(..) => None,
        }
    }

    /// Whether it gives an operand that is one tensor other values.
    fn gives(&self, place: usize) -> bool {
        matches!(self, Change::Operands(others) if others.iter().any(|other| other.place == (place, None)))
    }

    /// Whether it reads an operand that is one whole tensor in another order.
    fn rereads(&self, op: &Operation, place: usize) -> bool {
        let Change::Operation(other) = self else { return false };
        match (&op.operands[place], &other.operands[place]) {
            (Operand::View(own), Operand::View(other)) => {
                own.buffer == other.buffer && own.is_contiguous() && own.elements() == other.elements()
            }
            _ => false,
        }
    }
}

/// The view that an operand is, and the one that a changed operation has in its place, where they are not the same.
fn operand_views<'o>(
    (place, item): (usize, Option<usize>),
    op: &'o Operation,
    other: &'o Operation,
) -> Option<(&'o View, &'o View)> {
    match (item, op.operands.get(place)?, other.operands.get(place)?) {
        (None, Operand::View(own), Operand::View(other)) => (own != other).then_some((own, other)),
        _ => None,
    }
}

/// The values of a view, read as another view of its buffer reads them.
fn reread(value: Tensor<'static>, own: &View, other: &View) -> Option<Tensor<'static>> {
    let all = value.to_floats();
    let mut at = vec![0; other.shape.len()];
    let mut read = Vec::with_capacity(other.elements());
    for _ in 0..other.elements() {
        let place: usize = at.iter().zip(&other.strides).map(|(at, stride)| at * stride).sum();
        read.push(*all.get((other.offset + place).checked_sub(own.offset)?)?);
        for (at, &extent) in at.iter_mut().zip(&other.shape).rev() {
            *at = (*at + 1) % extent;
            if *at > 0 {
                break;
            }
        }
    }
    Tensor::new(DType::F64, other.shape.clone(), Values::from(read))
}

/// An operation with some of its operands replaced by each of several changes that do nothing else.
fn with_operands<'o>(op: &'o Operation, changes: &[&Change]) -> Cow<'o, Operation> {
    let mut record = Cow::Borrowed(op);
    for change in changes {
        if let Change::Operation(other) = change {
            let places = change.operands(op).into_iter().flatten();
            places.for_each(|place| record.to_mut().operands[place] = other.operands[place].clone());
        }
    }
    record
}

impl<'a> Slice<'a> {
    /// The operations that compute the tap `target` from the taps for which `is_known` holds.
    pub fn of(program: &'a Program, target: usize, is_known: impl Fn(usize) -> bool) -> Slice<'a> {
        let found = &program.taps[target];
        let (mut needed, mut events) = (Needed::new(program), Vec::new());
        needed.add(&found.view);
        let mut above = false;
        for op in (0..=found.op).rev() {
            for &tap in program.taps_after[op].iter().rev() {
                above |= tap == target;
                let is_above = above && tap != target;
                if is_above && needed.has(&program.taps[tap].view) && is_known(tap) {
                    needed.remove(&program.taps[tap].view);
                    events.push(Event::SetTap(tap));
                }
            }
            if needed.is_empty() {
                break;
            }
            if needed.passes(op) {
                events.push(Event::Op(op));
            }
        }
        events.reverse();
        Slice { program, target, events }
    }

    /// The tap that it computes.
    pub fn target(&self) -> usize {
        self.target
    }

    /// The operations, in their order.
    pub fn ops(&self) -> impl Iterator<Item = usize> {
        self.events.iter().filter_map(|event| match event {
            Event::Op(op) => Some(*op),
            Event::SetTap(_) => None,
        })
    }

    /// The taps whose known values it uses.
    pub fn known(&self) -> impl Iterator<Item = usize> {
        self.events.iter().filter_map(|event| match event {
            Event::SetTap(tap) => Some(*tap),
            Event::Op(_) => None,
        })
    }

    /// Computes the tap, with some operations changed. `value` gives the known values.
    ///
    /// # Errors
    /// When an operation cannot be carried out, or a known value does not fit its tap.
    pub fn evaluate<'v>(
        &self,
        bench: &Bench<'_>,
        value: &dyn Fn(usize) -> Option<Tensor<'v>>,
        edits: &[Edit],
    ) -> Result<Tensor<'static>, EvaluateError> {
        let mut values = bench.values.clone();
        self.carry_out(&mut values, value, edits, None)?;
        self.result(values)
    }

    /// Computes everything with no operation changed, and keeps it.
    ///
    /// # Errors
    /// As [`Slice::evaluate`].
    pub fn baseline<'b, 'v>(
        &self,
        bench: &Bench<'b>,
        value: &dyn Fn(usize) -> Option<Tensor<'v>>,
    ) -> Result<Baseline<'b>, EvaluateError> {
        let mut values = bench.values.clone();
        self.carry_out(&mut values, value, &[], None)?;
        // What several events write cannot be taken up between them.
        let (mut once, mut rewritten) = (HashSet::new(), HashSet::new());
        for event in &self.events {
            let written: Vec<usize> = match *event {
                Event::Op(op) => self.program.ops[op].outputs.iter().flatten().map(|view| view.buffer).collect(),
                Event::SetTap(tap) => vec![self.program.taps[tap].view.buffer],
            };
            rewritten.extend(written.into_iter().filter(|&buffer| !once.insert(buffer)));
        }
        rewritten.iter().for_each(|&buffer| values.begin_as(buffer, &bench.values));
        Ok(Baseline { values, rewritten, made: Mutex::default() })
    }

    /// The same as [`Slice::evaluate`]: of what no changed operation touches, the values of `baseline`.
    ///
    /// # Errors
    /// As [`Slice::evaluate`].
    pub fn evaluate_beside<'v>(
        &self,
        baseline: &Baseline<'_>,
        value: &dyn Fn(usize) -> Option<Tensor<'v>>,
        edits: &[Edit],
    ) -> Result<Tensor<'static>, EvaluateError> {
        let mut values = baseline.values.clone();
        self.carry_out(&mut values, value, edits, Some(baseline))?;
        self.result(values)
    }

    fn result(&self, mut values: Workspace<'_>) -> Result<Tensor<'static>, EvaluateError> {
        let view = &self.program.taps[self.target].view;
        values.load(view)?;
        Ok(values.read(view).into_owned())
    }

    /// Carries out the events; beside a baseline, which `values` hold, only what reads or writes buffers that differ from it.
    fn carry_out<'v>(
        &self,
        values: &mut Workspace<'_>,
        value: &dyn Fn(usize) -> Option<Tensor<'v>>,
        edits: &[Edit],
        baseline: Option<&Baseline<'_>>,
    ) -> Result<(), EvaluateError> {
        let mut differ = baseline.map(|baseline| baseline.rewritten.clone());
        let changes = |at: At| edits.iter().filter(move |edit| edit.at == at).map(|edit| &edit.change);
        let edited: Vec<usize> = edits.iter().filter_map(|edit| edit.at.tap()).collect();
        for (at, event) in self.events.iter().enumerate() {
            match *event {
                Event::SetTap(tap) => {
                    let buffer = self.program.taps[tap].view.buffer;
                    if differ.as_ref().is_none_or(|differ| differ.contains(&buffer)) {
                        let value = value(tap).ok_or(KernelError::Absent("its value"));
                        self.set_tap(values, tap, value)?;
                    }
                }
                Event::Op(number) => {
                    let op = &self.program.ops[number];
                    let changes: Vec<&Change> = changes(At::Op(number)).collect();
                    let is_as_it_is = differ.as_mut().is_some_and(|differ| {
                        let outputs = || op.outputs.iter().flatten().map(|view| view.buffer);
                        let mut touched = check::operands(op).map(|view| view.buffer).chain(outputs());
                        let is_touched = !changes.is_empty() || touched.any(|buffer| differ.contains(&buffer));
                        differ.extend(outputs().filter(|_| is_touched));
                        !is_touched
                    });
                    match &changes[..] {
                        _ if is_as_it_is => {}
                        [] => values.execute(number, op, kernel(op), Vec::new())?,
                        [Change::Operation(other)] => values.execute(number, other, kernel(other), Vec::new())?,
                        [Change::Values(views, instead), ..] => {
                            let results = applied(values, views, instead)?;
                            values.store(number, op, results.ok_or(EvaluateError::Edit { op: number })?)?;
                        }
                        all => {
                            let others = all.iter().flat_map(|change| match change {
                                Change::Operands(others) => &others[..],
                                _ => &[],
                            });
                            let record = with_operands(op, all);
                            let others = others.map(|other| {
                                let views = operand_views(other.place, op, &record);
                                let value = self.other_operand(values, other, views, baseline)?;
                                Ok((other.place, value.ok_or(EvaluateError::Edit { op: number })?))
                            });
                            let others = others.collect::<Result<Vec<_>, EvaluateError>>()?;
                            let others = others.iter().map(|(place, value)| (*place, value.view())).collect();
                            values.execute(number, &record, kernel(&record), others)?;
                        }
                    }
                }
            }
            // Several taps may be in one buffer: all are computed before any is written.
            let mut others = Vec::new();
            for &tap in edited.iter().filter(|&&tap| self.is_there(tap, at)) {
                if let Some(Change::Values(views, instead)) = changes(At::Tap(tap)).next() {
                    let results = applied(values, views, instead)?.and_then(|results| results.into_iter().next());
                    others.push((tap, results.ok_or(KernelError::Absent("its value"))));
                }
            }
            for (tap, value) in others {
                self.set_tap(values, tap, value)?;
                differ.iter_mut().for_each(|differ| differ.extend([self.program.taps[tap].view.buffer]));
            }
        }
        Ok(())
    }

    /// What replaces an operand, read as the second of two views where the operand itself is the first; what is made of weights alone is made once.
    fn other_operand(
        &self,
        values: &mut Workspace<'_>,
        other: &OtherOperand,
        read: Option<(&View, &View)>,
        baseline: Option<&Baseline<'_>>,
    ) -> Result<Option<Arc<Tensor<'static>>>, EvaluateError> {
        let is_weight =
            |buffer: usize| self.program.weights.contains_key(&buffer) && !self.program.flow.is_written(buffer);
        let is_of_weights = other.views.iter().all(|view| is_weight(view.buffer));
        let made = baseline.filter(|_| is_of_weights).map(|baseline| &baseline.made);
        let made = || made.map(|made| made.lock().unwrap_or_else(PoisonError::into_inner));
        let read_as = read.map(|(_, other)| other);
        if let Some(kept) = made().and_then(|made| made.get(&other.value, read_as)) {
            return Ok(Some(kept));
        }
        let results = applied(values, &other.views, &other.value)?;
        let value = results.and_then(|results| results.into_iter().next());
        let value = value.and_then(|value| match read {
            Some((own, other)) => reread(value, own, other),
            None => Some(value),
        });
        let value = value.map(Arc::new);
        if let Some((mut made, value)) = made().zip(value.as_ref()) {
            made.keep(&other.value, read_as, value);
        }
        Ok(value)
    }

    /// Whether an event completes the value of a tap. One that is a part of a known tap is complete at the end.
    fn is_there(&self, tap: usize, at: usize) -> bool {
        let op = self.program.taps[tap].op;
        match self.events[at] {
            Event::SetTap(held) if held == tap => true,
            Event::Op(own) if own == op && self.known().all(|known| known != tap) => true,
            _ => tap == self.target && at + 1 == self.events.len() && self.ops().all(|own| own != op),
        }
    }

    fn set_tap(
        &self,
        values: &mut Workspace<'_>,
        tap: usize,
        value: Result<Tensor<'_>, KernelError>,
    ) -> Result<(), EvaluateError> {
        let found = &self.program.taps[tap];
        values.load(&found.view)?;
        let written = value.and_then(|value| values.write(&found.view, value));
        written.map_err(|error| EvaluateError::Tap { tap: found.tap.clone(), error })
    }
}

impl At {
    /// The tap, where it is one.
    pub fn tap(self) -> Option<usize> {
        match self {
            At::Tap(tap) => Some(tap),
            At::Op(_) => None,
        }
    }

    /// The operation, where it is one.
    pub fn op(self) -> Option<usize> {
        match self {
            At::Op(op) => Some(op),
            At::Tap(_) => None,
        }
    }
}

/// Applies a function to the values of some views.
fn applied(
    values: &mut Workspace<'_>,
    views: &[View],
    instead: &Instead,
) -> Result<Option<Vec<Tensor<'static>>>, EvaluateError> {
    views.iter().try_for_each(|view| values.load(view))?;
    Ok(instead(&views.iter().map(|view| values.read(view)).collect::<Vec<_>>()))
}

/// Evaluates slices; weights that several of them read stay loaded.
pub struct Bench<'a> {
    values: Workspace<'a>,
}

impl<'a> Bench<'a> {
    /// An evaluator with no weights loaded.
    pub fn new(program: &'a Program, arithmetic: Arithmetic, weights: &'a dyn Weights) -> Bench<'a> {
        Bench { values: Workspace::new(program, arithmetic, weights) }
    }

    /// A weight as its file holds it.
    pub fn stored(&self, name: &str) -> Option<WeightView<'a>> {
        self.values.weights.view(name)
    }

    /// Loads the weights that a slice reads.
    ///
    /// # Errors
    /// When one cannot be read.
    pub fn load(&mut self, slice: &Slice<'_>) -> Result<(), EvaluateError> {
        let reads = slice.ops().flat_map(|op| check::operands(&slice.program.ops[op]));
        reads.filter(|view| !slice.program.flow.is_written(view.buffer)).try_for_each(|view| self.values.load(view))
    }

    /// The unrounded value of a view that an operation reads, if it does not depend on activations: positions, masks, tables. Otherwise `None`.
    pub fn table(&self, op: usize, view: &View) -> Option<Tensor<'static>> {
        let program = self.values.program;
        let mut needed = Needed::new(program);
        needed.add(view);
        let makes = |at: &usize| !needed.is_empty() && needed.passes(*at);
        let ops: Vec<usize> = (0..op).rev().filter(makes).collect();
        let reads = || ops.iter().flat_map(|&at| check::operands(&program.ops[at]));
        if program.is_activation(view.buffer) || reads().any(|read| program.is_activation(read.buffer)) {
            return None;
        }
        let mut values = self.values.wide();
        reads().filter(|read| !program.flow.is_written(read.buffer)).try_for_each(|read| values.load(read)).ok()?;
        let carried_out = ops.iter().rev().try_for_each(|&at| {
            let record = &program.ops[at];
            values.execute(at, record, kernel(record), Vec::new())
        });
        carried_out.and_then(|()| values.load(view)).ok()?;
        Some(values.read(view).into_owned())
    }
}

impl fmt::Debug for Bench<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bench").field("held", &self.values.held()).finish_non_exhaustive()
    }
}

/// The elements of buffers that are still to be computed.
struct Needed<'a> {
    program: &'a Program,
    /// For each buffer, which of its numbers, and how many.
    open: HashMap<usize, (Vec<bool>, usize)>,
}

impl<'a> Needed<'a> {
    fn new(program: &'a Program) -> Needed<'a> {
        Needed { program, open: HashMap::new() }
    }

    fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    fn has(&self, view: &View) -> bool {
        let Some((open, _)) = self.open.get(&view.buffer) else { return false };
        let mut any = false;
        each_number(view, |at| any |= open[at]);
        any
    }

    /// Adds a view, unless no operation writes it: then its value is available.
    fn add(&mut self, view: &View) {
        if !self.program.flow.is_written(view.buffer) {
            return;
        }
        let size = self.program.sizes[view.buffer];
        let (open, count) = self.open.entry(view.buffer).or_insert_with(|| (vec![false; size], 0));
        each_number(view, |at| *count += usize::from(!std::mem::replace(&mut open[at], true)));
        if *count == 0 {
            self.open.remove(&view.buffer);
        }
    }

    /// Replaces the outputs of an operation by what it reads; false if none of the outputs is needed.
    fn passes(&mut self, op: usize) -> bool {
        let record = &self.program.ops[op];
        let makes = record.outputs.iter().flatten().any(|view| self.has(view));
        if makes {
            record.outputs.iter().flatten().for_each(|view| self.remove(view));
            check::operands(record).for_each(|view| self.add(view));
        }
        makes
    }

    fn remove(&mut self, view: &View) {
        let Some((open, count)) = self.open.get_mut(&view.buffer) else { return };
        each_number(view, |at| *count -= usize::from(std::mem::take(&mut open[at])));
        if *count == 0 {
            self.open.remove(&view.buffer);
        }
    }
}

/// Carries out a recorded operation on other tensors: one for each view of [`Operation::reads`].
pub fn carry_out(record: &Operation, tensors: &[Tensor<'_>]) -> Option<Vec<Tensor<'static>>> {
    if record.reads().count() != tensors.len() {
        return None;
    }
    let mut values = tensors.iter();
    let call = call(record, &mut |_| values.next().expect("one for each view").view());
    kernel(record)?(&call).ok()
}

/// Applies the operation of this name, one of [`crate::kernel_names`], to operands in order and keywords.
pub fn apply(name: &str, operands: &[&Tensor<'_>], keywords: &[(&str, Scalar)]) -> Option<Vec<Tensor<'static>>> {
    let (base, overload) = base_and_overload(name);
    let args = operands.iter().map(|tensor| Arg::Tensor(tensor.view())).collect();
    let named = keywords.iter().map(|(key, scalar)| (*key, Arg::Scalar(scalar))).collect();
    let call = Call { name: base, overload, args, named, outputs: Vec::new() };
    kernels::find(name)?(&call).ok()
}
