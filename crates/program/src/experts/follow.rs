//! Rewrites the operations of a program, one after the other, for another choice of experts.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use crate::experts::loops::{Body, Index, Loop, Loops, Name, Turn, split_counter, split_numbers};
use crate::experts::part::Resized;
use crate::experts::pieces::{Piece, Pieces};
use crate::kernels::base_and_overload;
use crate::kernels::{self, Arg, Call};
use crate::memory::Memory;
use crate::program::flow::DataFlow;
use crate::program::{Limits, Operation, Program, ProgramTap, Scope, Step, check};
use crate::value::arithmetic::Arithmetic;
use crate::value::dtype::Kind;
use crate::value::error::Misfit;
use crate::value::operand::Operand;
use crate::value::scalar::Scalar;
use crate::value::tensor::{Tensor, Values};
use crate::value::view::View;

impl Program {
    /// The program for the choices `chosen`, by the index of their tap; `None` if it is unchanged.
    pub fn with_choices(&self, chosen: &HashMap<usize, Tensor<'static>>) -> Option<Program> {
        if chosen.is_empty() {
            return None;
        }
        let loops = Loops::find(self);
        let pieces = Pieces::find(self);
        let mut rewriter = Rewriter::new(self, chosen, &loops, &pieces);
        let mut op = 0;
        while op < self.ops.len() {
            match loops.by_start.get(&op) {
                Some(found) => {
                    rewriter.turns(found);
                    op = found.end;
                }
                None => {
                    rewriter.copy_operations(op..op + 1);
                    op += 1;
                }
            }
        }
        rewriter.program()
    }
}

/// The state of the rewriting: the old program, and the new one so far.
struct Rewriter<'a> {
    old: &'a Program,
    chosen: &'a HashMap<usize, Tensor<'static>>,
    loops: &'a Loops,
    pieces: &'a Pieces,
    /// Changed lengths of pieces that Python received, by the operation that gives them.
    lengths: HashMap<usize, Vec<usize>>,
    releases: Vec<Vec<usize>>,
    weights: HashMap<&'a str, usize>,
    buffers: Vec<View>,
    /// The size in numbers of each buffer in the recording, or of the buffer that it replaces.
    sizes: Vec<usize>,
    scopes: Vec<Scope>,
    ops: Vec<Operation>,
    taps: Vec<ProgramTap>,
    misfits: BTreeMap<usize, Misfit>,
    /// For each recorded operation, how many new operations come before it.
    begins: Vec<usize>,
    /// For each changed buffer, the results that it holds.
    parts: HashMap<usize, Vec<Resized>>,
    /// The values that can be computed from the choices and from constants.
    known: HashMap<usize, Memory>,
    is_other: bool,
}

/// The context of an operation: which recorded operation it comes from, and what differs.
#[derive(Default)]
struct Frame<'f> {
    /// The new buffer for each recorded one.
    buffers: HashMap<usize, usize>,
    /// The loop turn that it belongs to.
    turn: Option<TurnCopy<'f>>,
}

/// A turn for one expert, copied from the turn of another.
struct TurnCopy<'f> {
    from: &'f Turn,
    /// Which turn of the recording that is.
    from_turn: usize,
    body: &'f Body,
    expert: usize,
    turn: usize,
}

/// The results of an operation.
enum Results {
    /// Computed values.
    Known(Vec<Tensor<'static>>),
    /// Only the extents of the results.
    Extents(Vec<Vec<usize>>),
    /// The recorded results.
    AsBefore,
}

impl<'a> Rewriter<'a> {
    fn new(
        old: &'a Program,
        chosen: &'a HashMap<usize, Tensor<'static>>,
        loops: &'a Loops,
        pieces: &'a Pieces,
    ) -> Rewriter<'a> {
        let mut known = HashMap::new();
        for (&buffer, tensor) in &old.given {
            let mut memory = Memory::zeros(old.buffers[buffer].dtype, old.sizes[buffer]);
            // Pixels and audio frames cannot be computed, and are not needed for the choices.
            let is_fed = old.is_activation(buffer);
            if !is_fed && memory.write(&old.buffers[buffer], tensor.view(), Arithmetic::F64).is_ok() {
                known.insert(buffer, memory);
            }
        }
        Rewriter {
            old,
            chosen,
            loops,
            pieces,
            lengths: HashMap::new(),
            releases: check::releases(old),
            weights: old.weights.iter().map(|(&buffer, name)| (name.as_str(), buffer)).collect(),
            buffers: old.buffers.clone(),
            sizes: old.sizes.clone(),
            scopes: old.scopes.clone(),
            ops: Vec::with_capacity(old.ops.len()),
            taps: Vec::with_capacity(old.taps.len()),
            misfits: BTreeMap::new(),
            begins: Vec::with_capacity(old.ops.len()),
            parts: HashMap::new(),
            known,
            is_other: false,
        }
    }

    /// The new program, checked like one that was read from a file.
    fn program(mut self) -> Option<Program> {
        if !self.is_other {
            return None;
        }
        let old = self.old;
        self.begins.push(self.ops.len());
        let steps: Vec<Step> = old
            .steps
            .iter()
            .map(|step| Step { ops: self.begins[step.ops.start]..self.begins[step.ops.end], ..step.clone() })
            .collect();
        let sizes = check::sizes(&self.buffers, &self.ops, &steps, &self.taps);
        let mut program = Program {
            taps_after: check::taps_after(&self.taps, self.ops.len()),
            flow: DataFlow::analyse(&self.buffers, &self.ops, &self.scopes, &old.weights, &old.inputs),
            buffers: self.buffers,
            sizes,
            ops: self.ops,
            steps,
            taps: self.taps,
            scopes: self.scopes,
            misfits: self.misfits,
            ..old.clone()
        };
        program.needed = check::memory(&program);
        check::within(program.needed, Limits::default().elements).is_ok().then_some(program)
    }

    /// Copies operations outside of loops, with new extents.
    fn copy_operations(&mut self, ops: Range<usize>) {
        let mut frame = Frame::default();
        for op in ops {
            self.begins.push(self.ops.len());
            self.operation(op, &mut frame);
            for &buffer in &self.releases[op] {
                self.known.remove(&buffer);
            }
        }
    }

    /// Rewrites a loop: one turn for each expert that is hit.
    fn turns(&mut self, found: &Loop) {
        let body = &self.loops.bodies[found.body];
        let all = found.turns[0].ops.start..found.end;
        let experts = match body.list {
            None => Some(found.turns.iter().map(|turn| turn.expert).collect()),
            Some(place) => self.experts_hit(found, place),
        };
        let Some(experts) = experts else { return self.copy_operations(all) };
        let most = found.turns.iter().filter(|turn| turn.is_whole).max_by_key(|turn| turn.rows);
        let recorded: Vec<usize> = found.turns.iter().map(|turn| turn.expert).collect();
        self.is_other |= recorded != experts;
        self.begins.extend(std::iter::repeat_n(self.ops.len(), all.len()));
        for (turn, &expert) in experts.iter().enumerate() {
            let own = found.turns.iter().find(|own| own.expert == expert);
            // With a single row it is unclear which axis holds the rows.
            let is_clear =
                |own: &&Turn| own.is_whole && (own.rows > 1 || most.is_some_and(|most| most.rows == own.rows));
            let Some(from) = own.filter(is_clear).or(most).or(own) else { continue };
            let from_turn = found.turns.iter().position(|own| own.expert == from.expert).unwrap_or(0);
            let rows = self.rewrite_turn(TurnCopy { from, from_turn, body, expert, turn });
            self.is_other |= own.is_none_or(|own| own.rows != rows);
        }
        // Buffers that all turns write into are complete after the last turn.
        let number = self.ops.len().saturating_sub(1);
        let old = self.old;
        let made: HashSet<usize> = all.clone().flat_map(|op| old.ops[op].created_buffers()).collect();
        let taps = all.clone().flat_map(|op| &old.taps_after[op]).map(|&tap| &old.taps[tap]);
        let of_all = taps.filter(|tap| !made.contains(&tap.view.buffer));
        self.taps.extend(of_all.map(|tap| ProgramTap { op: number, ..tap.clone() }));
        all.for_each(|op| self.releases[op].iter().for_each(|buffer| drop(self.known.remove(buffer))));
    }

    /// The experts that are hit; `None` if the list cannot be computed.
    fn experts_hit(&self, found: &Loop, (op, slot): (usize, usize)) -> Option<Vec<usize>> {
        let first = &found.turns[0];
        let view = check::operands(&self.old.ops[first.ops.start + op]).nth(slot)?;
        let list = self.parts.get(&view.buffer)?.first()?.new_view();
        let experts = self.known.get(&view.buffer)?.read(list).to_ints().into_owned();
        experts.into_iter().map(|expert| usize::try_from(expert).ok()).collect()
    }

    /// Rewrites one turn. Returns how many rows it takes.
    fn rewrite_turn(&mut self, copy: TurnCopy<'_>) -> usize {
        let ops = copy.from.ops.clone();
        let mut frame = Frame { turn: Some(copy), ..Frame::default() };
        let mut rows = None;
        for op in ops {
            let gave = self.operation(op, &mut frame);
            if self.old.ops[op].has_open_shape() {
                rows = rows.or(gave);
                // No row is routed to this expert: the rest of the turn has no effect.
                if gave == Some(0) {
                    break;
                }
            }
        }
        rows.unwrap_or(0)
    }

    /// Rewrites an operation and its taps. Returns how many rows it gives.
    fn operation(&mut self, op: usize, frame: &mut Frame<'_>) -> Option<usize> {
        let made = self.rewrite_operation(op, frame).unwrap_or_else(|misfit| {
            self.is_other = true;
            self.misfits.insert(self.ops.len(), misfit);
            self.as_before(op, frame)
        });
        let gives = made.outputs.first().and_then(Option::as_ref).and_then(|view| view.shape.first().copied());
        let number = self.ops.len();
        self.ops.push(made);
        for (at, &tap) in self.old.taps_after[op].iter().enumerate() {
            let found = &self.old.taps[tap];
            if frame.turn.is_some() && !frame.buffers.contains_key(&found.view.buffer) {
                continue;
            }
            if let Some(chosen) = self.chosen.get(&tap) {
                self.set_choice(&found.view, chosen);
            }
            let view = self.piece(&found.view, self.pieces.taps.get(&tap), None, frame);
            let misfit = view.as_ref().err().cloned();
            let view = view.unwrap_or_else(|_| self.renamed(&found.view, frame));
            // A tap without rows is left out.
            if view.elements() == 0 && found.view.elements() > 0 {
                continue;
            }
            if let Some(misfit) = misfit {
                self.misfits.entry(number).or_insert(misfit);
            }
            let name = match &frame.turn {
                Some(copy) if !copy.has_number(Name::Tap(op - copy.from.ops.start, at)) => {
                    copy.counted_name(&found.tap, Name::Tap(op - copy.from.ops.start, at))
                }
                Some(copy) => copy.expert_name(&found.tap, |op| Name::Tap(op, at), op),
                None => Some(found.tap.clone()),
            };
            self.taps.extend(name.map(|tap| ProgramTap { tap, step: found.step, op: number, view }));
        }
        gives
    }

    /// Replaces the recorded choice.
    fn set_choice(&mut self, view: &View, chosen: &Tensor<'_>) {
        if view.distinct() < self.old.sizes[view.buffer] {
            return;
        }
        let mut memory = Memory::zeros(self.old.buffers[view.buffer].dtype, self.old.sizes[view.buffer]);
        if memory.write(view, chosen.view(), Arithmetic::F64).is_ok() {
            self.known.insert(view.buffer, memory);
        }
    }

    /// Copies an operation with its new buffers, and everything else unchanged.
    fn as_before(&mut self, op: usize, frame: &mut Frame<'_>) -> Operation {
        let record = &self.old.ops[op];
        if record.written.is_empty() {
            for view in record.outputs.iter().flatten() {
                self.new_buffer(view, frame);
                let own = self.renamed(view, frame).buffer;
                self.parts.remove(&own);
                self.buffers[own] = View { buffer: own, ..self.old.buffers[view.buffer].clone() };
            }
        }
        let mut made = record.clone();
        made.views_mut().for_each(|view| *view = self.renamed(view, frame));
        for view in made.outputs.iter().flatten() {
            self.known.remove(&view.buffer);
        }
        made
    }

    fn renamed(&self, view: &View, frame: &Frame<'_>) -> View {
        View { buffer: frame.buffers.get(&view.buffer).copied().unwrap_or(view.buffer), ..view.clone() }
    }

    /// Creates a new buffer for what this turn writes.
    fn new_buffer(&mut self, view: &View, frame: &mut Frame<'_>) {
        if frame.turn.is_some() && !frame.buffers.contains_key(&view.buffer) {
            frame.buffers.insert(view.buffer, self.buffers.len());
            let canonical = &self.old.buffers[view.buffer];
            self.buffers.push(View { buffer: self.buffers.len(), ..canonical.clone() });
            self.sizes.push(self.old.sizes[view.buffer]);
        }
    }

    /// A view after the rewriting; `indices` says what the start index of each axis depends on.
    fn view(&self, view: &View, indices: Option<&[Index]>, frame: &Frame<'_>) -> Result<View, Misfit> {
        let own = self.renamed(view, frame);
        let indices = indices.unwrap_or_default();
        let parts = self.parts.get(&own.buffer);
        if parts.is_none() && indices.is_empty() {
            return Ok(own);
        }
        let same;
        let part = match parts {
            Some(parts) => parts.iter().find(|part| part.contains(view)).ok_or(Misfit::Window)?,
            None => {
                same = Resized::unchanged(&self.old.buffers[view.buffer])?;
                &same
            }
        };
        let mut begins = part.begins(view).ok_or(Misfit::Window)?;
        for (at, index) in begins.iter_mut().zip(indices) {
            match (index, &frame.turn) {
                (Index::Expert(times), Some(copy)) => *at = times * copy.expert,
                (Index::Turn, Some(copy)) => *at = copy.turn,
                _ => {}
            }
        }
        let is_indexed = |axis: usize| indices.get(axis).is_some_and(|index| *index != Index::Fixed);
        Ok(View { buffer: own.buffer, ..part.moved(view, &begins, is_indexed)? })
    }

    /// A view after the rewriting, which may be a piece of a tensor.
    fn piece(
        &self,
        view: &View,
        piece: Option<&Piece>,
        indices: Option<&[Index]>,
        frame: &Frame<'_>,
    ) -> Result<View, Misfit> {
        let cut = piece.and_then(|piece| Some((piece, self.lengths.get(&piece.list)?)));
        match cut {
            Some(_) if frame.turn.is_some() || self.parts.contains_key(&view.buffer) => Err(Misfit::Window),
            Some((piece, lengths)) => Ok(piece.with_lengths(self.old, view, lengths)),
            None => self.view(view, indices, frame),
        }
    }

    /// The operation after the rewriting.
    fn rewrite_operation(&mut self, op: usize, frame: &mut Frame<'_>) -> Result<Operation, Misfit> {
        let record = &self.old.ops[op];
        self.take_weights(op, frame)?;
        let mut made = record.clone();
        made.scope = self.scope(op, frame);
        let (mut slot, mut extents) = (0, Vec::new());
        for view in made.operands_mut() {
            let indices = frame.turn.as_ref().and_then(|copy| copy.body.begins.get(&(op - copy.from.ops.start, slot)));
            let own = self.piece(view, self.pieces.views.get(&(op, slot)), indices.map(Vec::as_slice), frame)?;
            extents.extend(view.shape.iter().copied().zip(own.shape.iter().copied()).filter(|(old, new)| old != new));
            (*view, slot) = (own, slot + 1);
        }
        let given = self.compute_results(&made, &extents)?;
        if let (Some(recorded), Results::Known(results)) = (&record.scalar, &given) {
            made.scalar = Some(match self.new_lengths(op, recorded, results) {
                Some(lengths) => lengths,
                None => value_for_python(recorded, results, frame),
            });
            return Ok(made);
        }
        if !record.written.is_empty() {
            for (output, &at) in made.outputs.iter_mut().zip(&record.written) {
                if let Operand::View(view) = &made.operands[at] {
                    *output = Some(view.clone());
                }
            }
        } else {
            self.outputs(record, &mut made, &given, !extents.is_empty(), frame)?;
        }
        self.remember(&made, given);
        Ok(made)
    }

    /// The new lengths of pieces as given to Python, if it is known where the program splits by them.
    fn new_lengths(&mut self, op: usize, recorded: &[Scalar], results: &[Tensor<'_>]) -> Option<Vec<Scalar>> {
        let found = results.first()?.to_ints().into_owned();
        let lengths: Vec<usize> = found.iter().map(|&x| usize::try_from(x).ok()).collect::<Option<_>>()?;
        let was = |x: &Scalar| if let Scalar::Int(x) = x { *x } else { 0 };
        let is_same_whole = recorded.iter().map(was).sum::<i64>() == found.iter().sum::<i64>();
        if !self.pieces.is_split(op) || recorded.len() != found.len() || !is_same_whole {
            return None;
        }
        self.is_other |= !recorded.iter().map(was).eq(found.iter().copied());
        self.lengths.insert(op, lengths);
        Some(found.into_iter().map(Scalar::Int).collect())
    }

    /// Replaces the weights of the copied turn's expert by those of the turn's own expert.
    fn take_weights(&mut self, op: usize, frame: &mut Frame<'_>) -> Result<(), Misfit> {
        let Some(copy) = &frame.turn else { return Ok(()) };
        for (slot, view) in check::operands(&self.old.ops[op]).enumerate() {
            let Some(name) = self.old.weights.get(&view.buffer) else { continue };
            let other =
                copy.expert_name(name, |op| Name::Weight(op, slot), op).ok_or_else(|| Misfit::Weight(name.clone()))?;
            let buffer = self.weights.get(other.as_str()).copied();
            let fits = |buffer: &usize| self.old.buffers[*buffer].shape == self.old.buffers[view.buffer].shape;
            frame.buffers.insert(view.buffer, buffer.filter(fits).ok_or(Misfit::Weight(other))?);
        }
        Ok(())
    }

    /// The scope of an operation, with the module of the turn's own expert.
    fn scope(&mut self, op: usize, frame: &Frame<'_>) -> Option<usize> {
        let number = self.old.ops[op].scope?;
        let scope = &self.old.scopes[number];
        let module = frame.turn.as_ref().and_then(|copy| copy.expert_name(&scope.module, Name::Module, op));
        let Some(module) = module.filter(|module| *module != scope.module) else { return Some(number) };
        self.scopes.push(Scope { module, ..scope.clone() });
        Some(self.scopes.len() - 1)
    }

    /// Computes the results of an operation from its new operands; `extents` are the pairs of recorded and new extents that differ.
    fn compute_results(&self, op: &Operation, extents: &[(usize, usize)]) -> Result<Results, Misfit> {
        let is_of_numbers = |view: &View| view.dtype.kind() == Kind::Int;
        let is_known = check::operands(op).all(|view| self.known.contains_key(&view.buffer));
        let has_numbers = check::operands(op).all(|view| !is_of_numbers(view) || self.known.contains_key(&view.buffer));
        let is_chosen = op.has_open_shape() && has_numbers && check::operands(op).any(is_of_numbers);
        if !is_known && !is_chosen && extents.is_empty() {
            return Ok(Results::AsBefore);
        }
        let Some(kernel) = kernels::find(&op.name) else {
            return if extents.is_empty() { Ok(Results::AsBefore) } else { Err(Misfit::Opaque) };
        };
        if !has_numbers {
            return Err(Misfit::Value);
        }
        let (base, overload) = base_and_overload(&op.name);
        let call = Call {
            name: base,
            overload,
            args: op.operands.iter().map(|operand| self.argument(operand)).collect(),
            named: op.keywords.iter().map(|(key, operand)| (key.as_str(), self.argument(operand))).collect(),
            outputs: if op.has_open_shape() { Vec::new() } else { op.outputs.iter().map(Option::as_ref).collect() },
        };
        let results = match kernel(&call) {
            Ok(results) if results.len() >= op.outputs.len() => results,
            _ if extents.is_empty() => return Ok(Results::AsBefore),
            _ => return Err(Misfit::Extents),
        };
        let follows = |(view, result): (&Option<View>, &Tensor<'_>)| {
            let Some(view) = view else { return true };
            let axes = view.shape.iter().copied().zip(result.shape().iter().copied());
            // A concatenation has the sum of its parts' extents.
            let joins = base.starts_with("cat") || base.starts_with("concat");
            view.shape.len() == result.shape().len()
                && axes.into_iter().all(|pair| pair.0 == pair.1 || joins || extents.contains(&pair))
        };
        let is_in_place = !op.written.is_empty();
        if !extents.is_empty() && !is_in_place && op.scalar.is_none() && !op.outputs.iter().zip(&results).all(follows) {
            return Err(Misfit::Extents);
        }
        match is_known {
            true => Ok(Results::Known(results)),
            false => Ok(Results::Extents(results.iter().map(|result| result.shape().to_vec()).collect())),
        }
    }

    fn argument<'s>(&'s self, operand: &'s Operand) -> Arg<'s> {
        match operand {
            Operand::View(view) => Arg::Tensor(match self.known.get(&view.buffer) {
                Some(memory) => memory.read(view),
                None => blank(view),
            }),
            Operand::Scalar(scalar) => Arg::Scalar(scalar),
            Operand::DType(dtype) => Arg::DType(*dtype),
            Operand::None => Arg::None,
            Operand::List(list) => Arg::List(list.iter().map(|operand| self.argument(operand)).collect()),
        }
    }

    /// Places the outputs: one after the other, where a buffer takes several.
    fn outputs(
        &mut self,
        record: &Operation,
        made: &mut Operation,
        given: &Results,
        is_moved: bool,
        frame: &mut Frame<'_>,
    ) -> Result<(), Misfit> {
        let shape = |number: usize, view: &View| -> Vec<usize> {
            match given {
                Results::Extents(shapes) => shapes[number].clone(),
                // A result of unchanged size may be stored broadcast.
                Results::Known(results) if record.has_open_shape() || is_moved => results[number].shape().to_vec(),
                _ => view.shape.clone(),
            }
        };
        let mut ends: HashMap<usize, usize> = HashMap::new();
        for (number, view) in record.outputs.iter().enumerate() {
            let Some(view) = view else { continue };
            self.new_buffer(view, frame);
            let shape = shape(number, view);
            let own = self.renamed(view, frame);
            if shape == view.shape && !record.has_open_shape() {
                made.outputs[number] = Some(own);
                continue;
            }
            // Inside a turn, the number of its rows decides this.
            self.is_other |= shape != view.shape && frame.turn.is_none();
            let open = (0..shape.len()).map(|axis| axis == 0 && record.has_open_shape()).collect();
            let begin = *ends.get(&own.buffer).unwrap_or(&0);
            let part = Resized::new(view, &shape, begin, open)?;
            ends.insert(own.buffer, begin + shape.iter().product::<usize>());
            let now = View { buffer: own.buffer, ..part.new_view().clone() };
            if begin == 0 && number == 0 {
                self.buffers[own.buffer] = now.clone();
                self.parts.remove(&own.buffer);
            }
            self.parts.entry(own.buffer).or_default().push(part);
            made.outputs[number] = Some(now);
        }
        Ok(())
    }

    /// Stores the computed values of results.
    fn remember(&mut self, made: &Operation, given: Results) {
        let mut results = match given {
            Results::Known(results) => results.into_iter(),
            _ => Vec::new().into_iter(),
        };
        for view in made.outputs.iter().flatten() {
            let reach = |view: &View| view.span(u64::MAX).unwrap_or(0);
            let parts = self.parts.get(&view.buffer).into_iter().flatten().map(|part| reach(part.new_view())).max();
            let size = parts.unwrap_or(self.sizes[view.buffer]);
            let size = size.max(reach(view)).max(reach(&self.buffers[view.buffer]));
            let dtype = self.buffers[view.buffer].dtype;
            let held = self.known.remove(&view.buffer).filter(|memory| memory.len() >= size);
            let mut memory = held.unwrap_or_else(|| Memory::zeros(dtype, size));
            let result = results.next();
            if result.is_some_and(|result| memory.write(view, result, Arithmetic::F64).is_ok()) {
                self.known.insert(view.buffer, memory);
            }
        }
    }
}

impl TurnCopy<'_> {
    /// Whether a name contains the expert's number.
    fn has_number(&self, name: Name) -> bool {
        self.body.names.get(&name).is_some_and(|numbers| numbers.contains(&true))
    }

    /// The name with this turn's number where it counts the turns.
    fn counted_name(&self, name: &str, what: Name) -> Option<String> {
        let (base, count) = split_counter(name).filter(|_| self.body.counted.contains(&what))?;
        match (count + self.turn).checked_sub(self.from_turn)? {
            0 => None,
            1 => Some(base.to_owned()),
            count => Some(format!("{base}#{count}")),
        }
    }

    /// The name with this expert's number; `None` if it is not known which number in the name that is.
    fn expert_name(&self, name: &str, what: impl Fn(usize) -> Name, op: usize) -> Option<String> {
        if self.expert == self.from.expert {
            return Some(name.to_owned());
        }
        let is_own = self.body.names.get(&what(op - self.from.ops.start))?;
        let (texts, numbers) = split_numbers(name);
        let number = |(&number, &is_own): (&usize, &bool)| if is_own { self.expert } else { number };
        let numbers = numbers.iter().zip(is_own).map(|pair| number(pair).to_string()).chain([String::new()]);
        Some(texts.iter().zip(numbers).flat_map(|(text, number)| [(*text).to_owned(), number]).collect())
    }
}

/// The value that an operation gives to Python: this expert's number in place of that of the copied turn.
fn value_for_python(recorded: &[Scalar], results: &[Tensor<'_>], frame: &Frame<'_>) -> Vec<Scalar> {
    let found = results.first().filter(|found| found.kind() == Kind::Int).map(Tensor::to_ints);
    match (recorded, found.as_deref(), &frame.turn) {
        (&[Scalar::Int(was)], Some(&[is]), Some(copy))
            if was == copy.from.expert as i64 && is == copy.expert as i64 =>
        {
            vec![Scalar::Int(is)]
        }
        // Any other value means another path; evaluation will stop there.
        _ => recorded.to_vec(),
    }
}

/// Zeros in the shape of a view.
fn blank(view: &View) -> Tensor<'static> {
    let count = view.elements();
    let values = match view.dtype.kind() {
        Kind::Complex => Values::Complex(Cow::Owned(vec![[0.0; 2]; count])),
        _ => Values::Float(Cow::Owned(vec![0.0; count])),
    };
    Tensor { dtype: view.dtype, shape: view.shape.clone(), values }
}
