//! Evaluates a program operation by operation, and gives the value of each tap.

use crate::kernels::Kernel;
use crate::program::check;
use crate::program::{Operation, Program};
use crate::value::arithmetic::Arithmetic;
use crate::value::error::EvaluateError;
use crate::value::operand::Operand;
use crate::value::tensor::Tensor;
use crate::value::view::{View, each_number};
use crate::weights::Weights;
use crate::workspace::{Workspace, kernel};

/// The value of a tap.
#[derive(Debug)]
pub struct TapValue<'a> {
    /// Name of the tap.
    pub tap: &'a str,
    /// The step.
    pub step: usize,
    /// The operation after which it was read.
    pub op: usize,
    /// Its values, in the tap's axes.
    pub value: Tensor<'a>,
}

/// A weight is kept if it is needed again within this many operations.
const KEPT_FOR: usize = 64;

/// Evaluates a program. A buffer is freed after its last reader, and a weight soon after it is used.
pub struct Evaluator<'a> {
    program: &'a Program,
    values: Workspace<'a>,
    /// Unknown numbers of each buffer, because an operation could not be evaluated.
    unknown: Vec<Option<Unknown>>,
    /// The operations that could not be evaluated, and why.
    gaps: Vec<EvaluateError>,
    /// The module in which the reference took another path, until evaluation leaves it.
    astray_in: Option<String>,
    kernels: Vec<Option<Kernel>>,
    /// For each operation, the buffers that nothing reads after it.
    releases: Vec<Vec<usize>>,
    /// For each operation, each weight that it reads and that can be read again, with the next operation that reads it.
    next_use: Vec<Vec<(usize, Option<usize>)>>,
    next_op: usize,
    /// How many taps of the operation before `next_op` were given out.
    reached: usize,
    next_step: usize,
}

/// A buffer with unknown numbers.
#[derive(Clone, Debug)]
struct Unknown {
    /// Index of the gap that caused it.
    gap: usize,
    /// Which of its numbers are still unknown, and how many; empty if none was written since.
    open: (Vec<bool>, usize),
}

impl Unknown {
    /// Marks the numbers of a view as known; returns whether all numbers of the buffer, of that size, are known now.
    fn is_all_known_with(&mut self, view: &View, size: usize) -> bool {
        let (open, count) = &mut self.open;
        if open.is_empty() {
            (*open, *count) = (vec![true; size], size);
        }
        each_number(view, |at| *count -= usize::from(std::mem::take(&mut open[at])));
        *count == 0
    }
}

impl<'a> Evaluator<'a> {
    /// An evaluator before the first step.
    pub fn new(program: &'a Program, arithmetic: Arithmetic, weights: &'a dyn Weights) -> Evaluator<'a> {
        Evaluator {
            program,
            values: Workspace::new(program, arithmetic, weights),
            unknown: vec![None; program.buffers.len()],
            gaps: Vec::new(),
            astray_in: None,
            kernels: program.ops.iter().map(kernel).collect(),
            releases: check::releases(program),
            next_use: next_use(program),
            next_op: 0,
            reached: 0,
            next_step: 0,
        }
    }

    /// Evaluates the next step, and returns the model's main output. `tap` gets each tap right after its operation.
    ///
    /// Operations between two steps are evaluated with the later one.
    ///
    /// # Errors
    /// When `step` is not the next, an operation has no kernel or does not fit its operands, a weight cannot be read, or the reference took another path.
    pub fn run_step(
        &mut self,
        step: usize,
        tap: &mut dyn FnMut(TapValue<'_>),
    ) -> Result<Option<Tensor<'static>>, EvaluateError> {
        let program = self.program;
        let Some(record) = program.steps.get(step).filter(|_| step == self.next_step) else {
            return Err(EvaluateError::Step { step, next: self.next_step, count: program.steps.len() });
        };
        while let Some(number) = self.tap_before(record.ops.end) {
            self.refuse_gaps()?;
            let found = &program.taps[number];
            if let Some(value) = self.value(number)? {
                tap(TapValue { tap: &found.tap, step, op: found.op, value });
            }
        }
        self.refuse_gaps()?;
        self.next_step += 1;
        let mut output = None;
        if let Some(view) = &record.output {
            self.values.load(view)?;
            output = Some(self.values.read(view).into_owned());
        }
        Ok(output)
    }

    /// Evaluates up to the next tap, over all steps, and returns its index in [`Program::taps`]; `None` at the end.
    ///
    /// An operation that cannot be evaluated leaves its outputs unknown, and so does one that reads an unknown value: see [`Evaluator::gaps`].
    pub fn next_tap(&mut self) -> Option<usize> {
        self.tap_before(self.program.ops.len())
    }

    /// The value of the tap that was reached last; `None` if it is unknown.
    ///
    /// # Errors
    /// When it is part of a weight that cannot be read.
    pub fn value(&mut self, tap: usize) -> Result<Option<Tensor<'_>>, EvaluateError> {
        let view = &self.program.taps[tap].view;
        if self.unknown[view.buffer].is_some() {
            return Ok(None);
        }
        self.values.load(view)?;
        Ok(Some(self.values.read(view)))
    }

    /// Why a tap has no value.
    pub fn why(&self, tap: usize) -> Option<&EvaluateError> {
        self.unknown[self.program.taps[tap].view.buffer].as_ref().map(|unknown| &self.gaps[unknown.gap])
    }

    /// An operand of the last evaluated operation; `None` if it is not a tensor, or unknown.
    pub fn operand(&self, operand: &Operand) -> Option<Tensor<'_>> {
        match operand {
            Operand::View(view) if self.unknown[view.buffer].is_none() => Some(self.values.read(view)),
            _ => None,
        }
    }

    /// Replaces the value of the tap that was reached last, and continues with it.
    ///
    /// # Errors
    /// When the value has another shape than the tap, or the tap is part of a weight that cannot be read.
    pub fn hold(&mut self, tap: usize, value: Tensor<'_>) -> Result<(), EvaluateError> {
        let found = &self.program.taps[tap];
        self.values.load(&found.view)?;
        let fail = |error| EvaluateError::Tap { tap: found.tap.clone(), error };
        self.values.write(&found.view, value).map_err(fail)?;
        self.mark_written(&found.view);
        Ok(())
    }

    /// The operations that could not be evaluated, and why.
    pub fn gaps(&self) -> &[EvaluateError] {
        &self.gaps
    }

    /// Evaluates up to the next tap of the operations before `end`.
    fn tap_before(&mut self, end: usize) -> Option<usize> {
        loop {
            let done = self.next_op.checked_sub(1);
            if let Some(&tap) = done.and_then(|done| self.program.taps_after[done].get(self.reached)) {
                self.reached += 1;
                return Some(tap);
            }
            if self.next_op >= end {
                return None;
            }
            if let Some(done) = done {
                self.release(done);
            }
            if let Err(gap) = self.evaluate(self.next_op) {
                self.record_gap(self.next_op, gap);
            }
            (self.next_op, self.reached) = (self.next_op + 1, 0);
        }
    }

    fn refuse_gaps(&mut self) -> Result<(), EvaluateError> {
        if self.gaps.is_empty() { Ok(()) } else { Err(self.gaps.remove(0)) }
    }

    /// Records why an operation was not evaluated, and marks its outputs as unknown.
    fn record_gap(&mut self, op: usize, why: EvaluateError) {
        if let EvaluateError::OtherPath { .. } = why {
            let scope = self.program.ops[op].scope.map(|scope| self.program.scopes[scope].module.as_str());
            self.astray_in = scope.map(|module| module.rsplit_once('.').map_or("", |(outer, _)| outer).to_owned());
        }
        self.gaps.push(why);
        self.mark_unknown(op, self.gaps.len() - 1);
    }

    /// Marks the outputs of an operation as unknown.
    fn mark_unknown(&mut self, op: usize, gap: usize) {
        for view in self.program.ops[op].outputs.iter().flatten() {
            self.unknown[view.buffer] = Some(Unknown { gap, open: Default::default() });
        }
    }

    /// The gap that prevents an operation: it reads an unknown value, or lies on a path that the reference would not take for these values.
    fn blocking_gap(&mut self, op: &Operation) -> Option<usize> {
        let module = |scope: usize| self.program.scopes[scope].module.as_str();
        let inside = |outer: &str| op.scope.is_some_and(|scope| is_inside(module(scope), outer));
        if self.astray_in.as_deref().is_some_and(|outer| !inside(outer)) {
            self.astray_in = None;
        }
        let last = || self.astray_in.as_ref().map(|_| self.gaps.len() - 1);
        check::operands(op).find_map(|view| self.unknown[view.buffer].as_ref()).map(|unknown| unknown.gap).or_else(last)
    }

    fn evaluate(&mut self, number: usize) -> Result<(), EvaluateError> {
        let program = self.program;
        let op = &program.ops[number];
        if let Some(gap) = self.blocking_gap(op) {
            self.mark_unknown(number, gap);
            return Ok(());
        }
        self.values.execute(number, op, self.kernels[number], Vec::new())?;
        op.outputs.iter().flatten().for_each(|view| self.mark_written(view));
        Ok(())
    }

    /// Marks the numbers of a view as known; a buffer is known again once every number of it was written.
    fn mark_written(&mut self, view: &View) {
        let (unknown, size) = (&mut self.unknown[view.buffer], self.program.sizes[view.buffer]);
        if unknown.as_mut().is_some_and(|unknown| unknown.is_all_known_with(view, size)) {
            *unknown = None;
        }
    }

    fn release(&mut self, op: usize) {
        for &buffer in &self.releases[op] {
            self.values.free(buffer);
        }
        for &(buffer, next) in &self.next_use[op] {
            if next.is_none_or(|next| next > op + KEPT_FOR) {
                self.values.free(buffer);
            }
        }
    }
}

/// Whether `module` is `outer` or inside it; all modules are inside the model itself.
fn is_inside(module: &str, outer: &str) -> bool {
    outer.is_empty() || module.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

impl std::fmt::Debug for Evaluator<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Evaluator")
            .field("next_step", &self.next_step)
            .field("held", &self.values.held())
            .finish_non_exhaustive()
    }
}

/// For each operation, the weights that it reads and the next operation that reads each. Weights that are written to are left out.
fn next_use(program: &Program) -> Vec<Vec<(usize, Option<usize>)>> {
    let mut plain: Vec<bool> = (0..program.buffers.len()).map(|buffer| program.weights.contains_key(&buffer)).collect();
    program.ops.iter().flat_map(|op| op.outputs.iter().flatten()).for_each(|view| plain[view.buffer] = false);
    let mut later = vec![None; program.buffers.len()];
    let mut out = vec![Vec::new(); program.ops.len()];
    for (number, op) in program.ops.iter().enumerate().rev() {
        for view in check::operands(op).filter(|view| plain[view.buffer]) {
            if later[view.buffer] != Some(number) {
                out[number].push((view.buffer, later[view.buffer]));
                later[view.buffer] = Some(number);
            }
        }
    }
    out
}
