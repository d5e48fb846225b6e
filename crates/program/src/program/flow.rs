//! Which values come from where? What of a program is computed from the model's input, and which operations are the same one in other layers.

use std::collections::{BTreeMap, HashMap};

use crate::program::check;
use crate::program::{Operation, Scope};
use crate::value::dtype::Kind;
use crate::value::view::View;

/// What is known of the values of a program without computing any.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flow {
    /// Buffers that hold activations: what weights and the model's input give together.
    activations: Vec<bool>,
    /// Buffers that are weights.
    weights: Vec<bool>,
    /// Buffers of one number for each row: a sum or a mean along it, and what follows from such numbers alone.
    statistics: Vec<bool>,
    /// Buffers that some operation writes.
    written: Vec<bool>,
    /// The class of each operation.
    classes: Vec<usize>,
    /// For each operation the buffers that it reads, each with the operation that wrote it last.
    sources: Vec<Vec<(usize, Option<usize>)>>,
    /// For each operation those that read what it wrote.
    readers: Vec<Vec<usize>>,
}

/// Operations that make one number of a row.
const REDUCTIONS: [&str; 15] = [
    "sum",
    "mean",
    "prod",
    "var",
    "std",
    "var_mean",
    "std_mean",
    "amax",
    "amin",
    "logsumexp",
    "linalg_vector_norm",
    "norm",
    "ggml.SUM",
    "ggml.SUM_ROWS",
    "ggml.MEAN",
];

impl Flow {
    /// Reads the operations once, in their order.
    pub(crate) fn of(
        buffers: &[View],
        ops: &[Operation],
        scopes: &[Scope],
        weights: &BTreeMap<usize, String>,
        inputs: &BTreeMap<usize, String>,
    ) -> Flow {
        let (count, is_weight) = (buffers.len(), |buffer: usize| weights.contains_key(&buffer));
        let mut flow = Flow {
            activations: vec![false; count],
            weights: (0..count).map(is_weight).collect(),
            statistics: vec![false; count],
            written: vec![false; count],
            classes: classes(ops, scopes),
            sources: Vec::with_capacity(ops.len()),
            readers: vec![Vec::new(); ops.len()],
        };
        let mut from_input = vec![false; count];
        for &buffer in inputs.keys() {
            from_input[buffer] = true;
            // Pixels, frames of sound, embeddings that were handed in.
            flow.activations[buffer] = buffers[buffer].dtype.kind() == Kind::Float && buffers[buffer].shape.len() > 2;
        }
        let mut last: Vec<Option<usize>> = vec![None; count];
        for (number, op) in ops.iter().enumerate() {
            let mut sources: Vec<(usize, Option<usize>)> = Vec::new();
            for view in check::operands(op) {
                if !sources.iter().any(|(buffer, _)| *buffer == view.buffer) {
                    sources.push((view.buffer, last[view.buffer]));
                }
            }
            let any = |of: &[bool]| sources.iter().any(|(buffer, _)| of[*buffer]);
            let reads_input = any(&from_input);
            let activates = any(&flow.activations) || reads_input && any(&flow.weights);
            for writer in sources.iter().filter_map(|(_, writer)| *writer) {
                flow.readers[writer].push(number);
            }
            flow.sources.push(sources);
            let is_statistic = flow.is_statistic(op);
            for view in op.outputs.iter().flatten() {
                flow.statistics[view.buffer] = is_statistic && buffers[view.buffer].shape.last() == Some(&1);
                flow.written[view.buffer] = true;
                from_input[view.buffer] |= reads_input;
                flow.activations[view.buffer] |= activates;
                last[view.buffer] = Some(number);
            }
        }
        flow
    }

    /// Whether a run in 16 bits holds a buffer in them.
    pub(crate) fn is_narrow(&self, buffer: usize) -> bool {
        (self.activations[buffer] || self.weights[buffer]) && !self.statistics[buffer]
    }

    /// Whether an operation makes one number of each row, or reads no other activations than such numbers. A single column of a product, or a single key,
    /// is none.
    fn is_statistic(&self, op: &Operation) -> bool {
        let base = if op.name.starts_with("ggml.") { &op.name } else { op.name.split('.').next().unwrap_or_default() };
        let mut read = check::operands(op).filter(|view| self.activations[view.buffer]).peekable();
        match REDUCTIONS.contains(&base) {
            true => {
                read.any(|view| view.shape.last().is_some_and(|&extent| extent > 1) || self.statistics[view.buffer])
            }
            false => read.peek().is_some() && read.all(|view| self.statistics[view.buffer]),
        }
    }

    pub(crate) fn is_activation(&self, buffer: usize) -> bool {
        self.activations[buffer]
    }

    pub(crate) fn is_written(&self, buffer: usize) -> bool {
        self.written[buffer]
    }

    pub(crate) fn class(&self, op: usize) -> usize {
        self.classes[op]
    }

    pub(crate) fn writer(&self, op: usize, buffer: usize) -> Option<usize> {
        self.sources[op].iter().find(|(read, _)| *read == buffer).and_then(|(_, writer)| *writer)
    }

    pub(crate) fn readers(&self, op: usize) -> &[usize] {
        &self.readers[op]
    }
}

/// The same line of the same function, in whichever layer and step, is one class; of several operations of one line each is its own.
fn classes(ops: &[Operation], scopes: &[Scope]) -> Vec<usize> {
    type Key<'a> = (String, &'a [String], Option<usize>, &'a str, usize);
    let mut known: HashMap<Key<'_>, usize> = HashMap::new();
    let mut seen: HashMap<(usize, Option<usize>, &str), usize> = HashMap::new();
    let mut classes = Vec::with_capacity(ops.len());
    let mut module = None;
    for op in ops {
        let scope = op.scope.map(|scope| &scopes[scope]);
        // Each call of a module counts anew.
        let here = scope.map(|scope| scope.module.as_str());
        if here != module {
            seen.clear();
            module = here;
        }
        let ordinal = seen.entry((op.scope.unwrap_or(usize::MAX), op.line, &op.name)).or_insert(0);
        let path = here.map(without_numbers).unwrap_or_default();
        let functions = scope.map_or(&[][..], |scope| &scope.functions);
        let next = known.len();
        classes.push(*known.entry((path, functions, op.line, &op.name, *ordinal)).or_insert(next));
        *ordinal += 1;
    }
    classes
}

/// `model.layers.*.mlp`.
fn without_numbers(module: &str) -> String {
    let part = |part: &str| if part.bytes().all(|b| b.is_ascii_digit()) { "*".to_owned() } else { part.to_owned() };
    module.split('.').map(part).collect::<Vec<_>>().join(".")
}
