//! Norms in their parts: of a norm whose values before the gain, or before the bias, are known, that part alone is what makes the rest.

use std::collections::HashSet;

use crate::program::{Operation, Parts, Program};
use crate::value::operand::Operand;
use crate::value::view::View;

impl Program {
    /// The program in which a norm with a gain goes on from its values without one, and one with a bias from those without that, where these are a tap for
    /// which `is_known` holds; `None` where there is none. Operations and taps keep their numbers.
    pub fn with_norms_in_parts(&self, is_known: impl Fn(usize) -> bool) -> Option<Program> {
        let known: HashSet<(usize, usize)> =
            (0..self.taps.len()).filter(|&tap| is_known(tap)).map(|tap| held(&self.taps[tap].view)).collect();
        let part = |start: usize, at: usize| {
            let part = part_of(&self.ops[at], &self.ops[start..at]).filter(|part| known.contains(&held(&part.0)))?;
            Some((at, part))
        };
        let steps = self.steps.iter().map(|step| step.ops.clone());
        let others: Vec<_> = steps.flat_map(|ops| ops.clone().filter_map(move |at| part(ops.start, at))).collect();
        if others.is_empty() {
            return None;
        }
        let mut ops = self.ops.clone();
        for (at, (made, name, weight)) in others {
            let operands = vec![Operand::View(made), weight];
            ops[at] = Operation { name: name.into(), operands, keywords: Vec::new(), ..self.ops[at].clone() };
        }
        let parts = Parts {
            source: self.source.clone(),
            model: self.model.clone(),
            folder: self.folder.clone(),
            weights: self.weights.clone(),
            inputs: self.inputs.clone(),
            given: self.given.clone(),
            buffers: self.buffers.clone(),
            ops,
            steps: self.steps.clone(),
            taps: self.taps.clone(),
            files: self.files.clone(),
            scopes: self.scopes.clone(),
        };
        Some(Program { recorded: self.recorded, ..parts.program() })
    }
}

/// A buffer, and how much of it.
fn held(view: &View) -> (usize, usize) {
    (view.buffer, view.elements())
}

/// What a norm goes on from, by which operation, and with which weight.
fn part_of(norm: &Operation, before: &[Operation]) -> Option<(View, &'static str, Operand)> {
    if !matches!(norm.base(), "rms_norm" | "layer_norm") {
        return None;
    }
    let made = |op: &Operation| op.outputs.first().cloned().flatten();
    let without_gain = |other: &&Operation| {
        let place = if norm.base() == "layer_norm" { 4 } else { 3 };
        let is_bare = other.operands.iter().skip(2).take(place - 2).all(|weight| matches!(weight, Operand::None));
        other.name == norm.name
            && is_bare
            && other.operands.first() == norm.operands.first()
            && other.operands.get(place) == norm.operands.get(place)
    };
    let bare = made(before.iter().rev().find(without_gain)?)?;
    match (norm.base(), &norm.operands[..]) {
        ("rms_norm", [_, _, gain @ Operand::View(_), ..]) => Some((bare, "mul.Tensor", gain.clone())),
        ("layer_norm", [_, _, gain @ Operand::View(_), Operand::None, ..]) => Some((bare, "mul.Tensor", gain.clone())),
        ("layer_norm", [_, _, gain @ Operand::View(_), bias @ Operand::View(_), ..]) => {
            let weighs =
                |op: &&Operation| op.base() == "mul" && op.operands[..] == [Operand::View(bare.clone()), gain.clone()];
            Some((made(before.iter().rev().find(weighs)?)?, "add.Tensor", bias.clone()))
        }
        _ => None,
    }
}
