//! Checks a program as a whole: order of reads and writes, sizes, and peak memory.

use std::collections::HashSet;

use crate::program::{Operation, Program, ProgramTap, Step};
use crate::value::error::{Fault, JsonPlace, ProgramError, at_place};
use crate::value::operand::Operand;
use crate::value::view::View;

/// Checks that every buffer is written before it is read; `written` holds those with given values.
pub(crate) fn order(
    ops: &[Operation],
    steps: &[Step],
    taps: &[ProgramTap],
    mut written: HashSet<usize>,
) -> Result<(), ProgramError> {
    let by_op = taps_after(taps, ops.len());
    let mut step = 0;
    for (number, op) in ops.iter().enumerate() {
        while step < steps.len() && steps[step].ops.end <= number {
            output(step, &steps[step], &written)?;
            step += 1;
        }
        let place = |part: String| JsonPlace::Op(number, op.name.clone(), part);
        for (i, operand) in op.operands.iter().enumerate() {
            if let Some(buffer) = unwritten(operand, &written) {
                return Err(at_place(place(format!("operand {i}")))(Fault::Unwritten(buffer)));
            }
        }
        for (key, operand) in &op.keywords {
            if let Some(buffer) = unwritten(operand, &written) {
                return Err(at_place(place(format!("keyword {key}")))(Fault::Unwritten(buffer)));
            }
        }
        written.extend(op.outputs.iter().flatten().map(|view| view.buffer));
        for &tap in &by_op[number] {
            let buffer = taps[tap].view.buffer;
            if !written.contains(&buffer) {
                return Err(at_place(JsonPlace::Tap(tap))(Fault::Unwritten(buffer)));
            }
        }
    }
    for (number, step) in steps.iter().enumerate().skip(step) {
        output(number, step, &written)?;
    }
    Ok(())
}

/// For each of `ops` operations, the taps that are read after it.
pub(crate) fn taps_after(taps: &[ProgramTap], ops: usize) -> Vec<Vec<usize>> {
    let mut after = vec![Vec::new(); ops];
    taps.iter().enumerate().for_each(|(number, tap)| after[tap.op].push(number));
    after
}

fn output(number: usize, step: &Step, written: &HashSet<usize>) -> Result<(), ProgramError> {
    match &step.output {
        Some(view) if !written.contains(&view.buffer) => {
            Err(at_place(JsonPlace::Step(number))(Fault::Unwritten(view.buffer)))
        }
        _ => Ok(()),
    }
}

fn unwritten(operand: &Operand, written: &HashSet<usize>) -> Option<usize> {
    operand.views().into_iter().map(|view| view.buffer).find(|buffer| !written.contains(buffer))
}

/// The size of each buffer in numbers: how far its views reach. Each view was checked before.
pub(crate) fn sizes(buffers: &[View], ops: &[Operation], steps: &[Step], taps: &[ProgramTap]) -> Vec<usize> {
    let mut sizes = vec![0; buffers.len()];
    let mut reach = |view: &View| {
        let size = &mut sizes[view.buffer];
        *size = view.span(u64::MAX).unwrap_or(0).max(*size);
    };
    buffers.iter().for_each(&mut reach);
    for op in ops {
        operands(op).for_each(&mut reach);
        op.outputs.iter().flatten().for_each(&mut reach);
    }
    steps.iter().filter_map(|step| step.output.as_ref()).for_each(&mut reach);
    taps.iter().for_each(|tap| reach(&tap.view));
    sizes
}

/// All views that an operation reads.
pub(crate) fn operands(op: &Operation) -> impl Iterator<Item = &View> {
    op.operands.iter().chain(op.keywords.iter().map(|(_, operand)| operand)).flat_map(Operand::views)
}

/// For each operation, the buffers that are freed after it.
pub(crate) fn releases(program: &Program) -> Vec<Vec<usize>> {
    let mut last = vec![None; program.buffers.len()];
    for (number, op) in program.ops.iter().enumerate() {
        operands(op).chain(op.outputs.iter().flatten()).for_each(|view| last[view.buffer] = Some(number));
    }
    let later = program.taps.iter().map(|tap| (tap.op, &tap.view));
    let outputs = program.steps.iter().filter_map(|step| Some((step.ops.end.checked_sub(1)?, step.output.as_ref()?)));
    for (op, view) in later.chain(outputs) {
        last[view.buffer] = last[view.buffer].max(Some(op));
    }
    let mut out = vec![Vec::new(); program.ops.len()];
    for (buffer, op) in last.into_iter().enumerate() {
        if let Some(op) = op {
            out[op].push(buffer);
        }
    }
    out
}

/// The peak of numbers in memory: the live buffers, and copies of views that are not contiguous. The elements of a weight itself do not count: its file holds them.
pub(crate) fn memory(program: &Program) -> u64 {
    let size = |buffer: usize| {
        let own = if program.weights.contains_key(&buffer) { program.buffers[buffer].distinct() } else { 0 };
        program.sizes[buffer].saturating_sub(own) as u64
    };
    let copied = |view: &View| if view.is_contiguous() { 0 } else { (view.elements() * view.dtype.units()) as u64 };
    let mut alive = vec![false; program.buffers.len()];
    let (mut held, mut most) = (0u64, 0);
    let hold = |alive: &mut [bool], held: &mut u64, buffer: usize| {
        if !std::mem::replace(&mut alive[buffer], true) {
            *held = held.saturating_add(size(buffer));
        }
    };
    program.given.keys().for_each(|&buffer| hold(&mut alive, &mut held, buffer));
    for (number, (op, released)) in program.ops.iter().zip(releases(program)).enumerate() {
        operands(op).chain(op.outputs.iter().flatten()).for_each(|view| hold(&mut alive, &mut held, view.buffer));
        let copies = operands(op).map(copied).fold(0, u64::saturating_add);
        let taps = program.taps_after[number].iter().map(|&tap| copied(&program.taps[tap].view));
        most = most.max(held.saturating_add(taps.fold(copies, u64::max)));
        for buffer in released {
            if std::mem::take(&mut alive[buffer]) {
                held = held.saturating_sub(size(buffer));
            }
        }
    }
    let outputs = program.steps.iter().filter_map(|step| step.output.as_ref()).map(copied);
    outputs.fold(most, u64::max)
}

/// Refuses more memory than the limit.
pub(crate) fn within(needed: u64, limit: u64) -> Result<(), ProgramError> {
    if needed > limit { Err(at_place(JsonPlace::Whole)(Fault::Elements { needed, limit })) } else { Ok(()) }
}

/// Refuses more work than the limit.
pub(crate) fn within_work(needed: u64, limit: u64) -> Result<(), ProgramError> {
    if needed > limit { Err(at_place(JsonPlace::Ops)(Fault::Work { needed, limit })) } else { Ok(()) }
}
