//! Analyses the data flow of a program: which values depend on the model's input, which operation reads what another wrote, and which operations are alike in other layers.

use std::collections::{BTreeMap, HashMap};

use crate::program::check;
use crate::program::{Operation, Scope};
use crate::value::dtype::Kind;
use crate::value::view::View;

/// What is known about the values of a program without computing them.
#[derive(Clone, Debug, Default)]
pub(crate) struct DataFlow {
    /// Buffers that hold activations: they depend on both weights and the model's input.
    activations: Vec<bool>,
    /// Buffers that are weights.
    weights: Vec<bool>,
    /// Buffers of row statistics: a sum or a mean along each row, what is computed from such numbers only, and what nothing but such a sum reads.
    statistics: Vec<bool>,
    /// Buffers that an operation writes to.
    written: Vec<bool>,
    /// The class of each operation: the same number in every layer.
    classes: Vec<usize>,
    /// For each operation, the buffers that it reads, each with the operation that wrote it last.
    sources: Vec<Vec<(usize, Option<usize>)>>,
    /// For each operation, the operations that read its output.
    readers: Vec<Vec<usize>>,
}

/// Operations that reduce a row to one number.
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

impl DataFlow {
    /// Analyses the operations in their order.
    pub(crate) fn analyse(
        buffers: &[View],
        ops: &[Operation],
        scopes: &[Scope],
        weights: &BTreeMap<usize, String>,
        inputs: &BTreeMap<usize, String>,
    ) -> DataFlow {
        let (count, is_weight) = (buffers.len(), |buffer: usize| weights.contains_key(&buffer));
        let mut flow = DataFlow {
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
            // Pixels, audio frames, precomputed embeddings.
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
            let any = |flags: &[bool]| sources.iter().any(|(buffer, _)| flags[*buffer]);
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
        let is_sum = |op: &usize| {
            let outputs = || ops[*op].outputs.iter().flatten();
            REDUCTIONS.contains(&ops[*op].base()) && outputs().all(|view| flow.statistics[view.buffer])
        };
        let summed = (0..ops.len()).filter(|&op| !flow.readers[op].is_empty() && flow.readers[op].iter().all(is_sum));
        let summed: Vec<usize> =
            summed.flat_map(|op| ops[op].outputs.iter().flatten().map(|view| view.buffer)).collect();
        summed.into_iter().for_each(|buffer| flow.statistics[buffer] = true);
        flow
    }

    /// Whether a 16-bit run stores this buffer in 16 bits.
    pub(crate) fn has_16_bits(&self, buffer: usize) -> bool {
        (self.activations[buffer] || self.weights[buffer]) && !self.statistics[buffer]
    }

    /// Whether an operation reduces each row to one number, or reads no other activations than such numbers. A product with a single column, or attention
    /// to a single key, does not count.
    fn is_statistic(&self, op: &Operation) -> bool {
        let base = op.base();
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

/// A class is one line of one function, in every layer and step; several operations on one line have a class each.
fn classes(ops: &[Operation], scopes: &[Scope]) -> Vec<usize> {
    type Key<'a> = (String, &'a [String], Option<usize>, &'a str, usize);
    let mut known: HashMap<Key<'_>, usize> = HashMap::new();
    let mut seen: HashMap<(usize, Option<usize>, &str), usize> = HashMap::new();
    let mut classes = Vec::with_capacity(ops.len());
    let (mut module, mut made) = (None, HashMap::new());
    for op in ops {
        let scope = op.scope.map(|scope| &scopes[scope]);
        // Each call of a module restarts the count.
        let here = scope.map(|scope| scope.module.as_str());
        if here != module {
            seen.clear();
            module = here;
        }
        let ordinal = seen.entry((op.scope.unwrap_or(usize::MAX), op.line, &op.name)).or_insert(0);
        // A node of a graph has no line; where its name is its number alone, what it reads tells which it is.
        let mut path = here.map(|here| without_numbers(here, op.node.is_some())).unwrap_or_default();
        if op.node.is_some() && path.starts_with(UNNAMED) {
            let read = op.reads().last().and_then(|view| made.get(&view.buffer));
            path.push_str(&format!("{read:?}"));
        }
        let functions = scope.map_or(&[][..], |scope| &scope.functions);
        let next = known.len();
        classes.push(*known.entry((path, functions, op.line, &op.name, *ordinal)).or_insert(next));
        *ordinal += 1;
        let class = *classes.last().unwrap_or(&0);
        made.extend(op.outputs.iter().flatten().map(|view| (view.buffer, class)));
    }
    classes
}

/// What ggml calls a node that nobody named, before its number.
const UNNAMED: &str = "node_";

/// `model.layers.*.mlp`; of a node of a graph `attn_norm-*`.
fn without_numbers(module: &str, is_node: bool) -> String {
    if is_node {
        let digits = |c: char| c.is_ascii_digit();
        return module.split(digits).filter(|part| !part.is_empty()).collect::<Vec<_>>().join("*");
    }
    let part = |part: &str| if part.bytes().all(|b| b.is_ascii_digit()) { "*".to_owned() } else { part.to_owned() };
    module.split('.').map(part).collect::<Vec<_>>().join(".")
}
