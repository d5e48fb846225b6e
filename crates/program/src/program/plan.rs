//! Says a Plan as a program: the operations that PyTorch runs for it, with the tokens of one run.

use std::collections::HashMap;

use firstdiff_core::{Activation, RopePairing, RopeScaling, rope_inv_freq};
use firstdiff_model::{Model, Op, Rope, Scores, Step as PlanStep};
use firstdiff_trace::{Site, Tap};

use crate::program::{Operation, Parts, Program, ProgramTap, Scope, Step};
use crate::value::dtype::DType;
use crate::value::operand::Operand;
use crate::value::scalar::Scalar;
use crate::value::tensor::{Tensor, Values};
use crate::value::view::{View, contiguous_strides};

impl Program {
    /// The program of a model for a run of these steps: the token ids of the prefill, then those of each decode step.
    ///
    /// Values have PyTorch's axes, a batch of one first: \[1,T,D\], \[1,H,T,d\]. Keys and values of earlier steps are joined with those of the step.
    /// Rotations read tables of cosines and sines, \[1,1,T,d\]; masks are added, \[1,1,T,S\].
    pub fn of_model(model: &Model, steps: &[Vec<u32>]) -> Program {
        let mut lower = Lower { model, parts: Parts::default(), weights: HashMap::new(), kept: HashMap::new() };
        lower.parts.model.clone_from(&model.plan.family);
        let mut start = 0;
        for tokens in steps {
            lower.step(tokens, start);
            start += tokens.len();
        }
        // What the files hold beside may be what a candidate reads.
        for name in &model.unread {
            if let Ok(Some(weight)) = model.weights.tensor(name) {
                lower.named(name, weight.shape());
            }
        }
        lower.parts.program()
    }
}

/// The parts of the program so far.
struct Lower<'m> {
    model: &'m Model,
    parts: Parts,
    /// The buffer of each weight.
    weights: HashMap<String, View>,
    /// Keys and values of all steps so far, \[1,K,S,d\].
    kept: HashMap<Tap, View>,
}

/// What the operations of one step read.
struct Chunk {
    number: usize,
    start: usize,
    tokens: usize,
    ids: View,
    /// What each tap is, in PyTorch's axes.
    made: HashMap<Tap, View>,
    /// Masks that layers share, by their window.
    masks: Vec<(Option<usize>, View)>,
}

impl Lower<'_> {
    fn step(&mut self, tokens: &[u32], start: usize) {
        let (number, first) = (self.parts.steps.len(), self.parts.ops.len());
        let ids = Values::from(tokens.iter().map(|&id| i64::from(id)).collect::<Vec<_>>());
        let ids = self.given(DType::I64, &[1, tokens.len()], ids);
        self.parts.inputs.insert(ids.buffer, format!("input_ids@{number}"));
        let (made, masks) = (HashMap::new(), Vec::new());
        let mut chunk = Chunk { number, start, tokens: tokens.len(), ids, made, masks };
        for step in &self.model.plan.steps {
            self.scope(step);
            let out = self.emit(step, &mut chunk);
            self.tap(step, &chunk, &out);
            chunk.made.insert(step.tap, out);
        }
        let output = self.model.plan.steps.last().and_then(|last| chunk.made.get(&last.tap)).cloned();
        self.parts.steps.push(Step { ops: first..self.parts.ops.len(), tokens: tokens.len(), output });
    }

    /// Adds the operations of one step of the Plan, and returns what they give.
    fn emit(&mut self, step: &PlanStep, chunk: &mut Chunk) -> View {
        let read = |at: usize, chunk: &Chunk| step.reads.get(at).and_then(|tap| chunk.made.get(tap)).cloned();
        let x = read(0, chunk).unwrap_or_else(|| chunk.ids.clone());
        match &step.op {
            Op::Embedding { scale } => {
                let table = self.weight(step, 0);
                let width = table.shape[1];
                let rows = self.push("embedding", vec![view(&table), view(&x)], &[1, chunk.tokens, width]);
                if *scale == 1.0 {
                    rows
                } else {
                    self.push("mul.Tensor", vec![view(&rows), number(*scale)], &rows.shape)
                }
            }
            Op::RmsNorm { eps } => {
                let width = Operand::List(vec![int(*x.shape.last().unwrap_or(&1))]);
                let gain = self.weight(step, 0);
                self.push("rms_norm", vec![view(&x), width, view(&gain), number(*eps)], &x.shape)
            }
            Op::Linear { heads } => {
                let out = self.linear(step, &x);
                match heads {
                    None => out,
                    // [1,T,H d] as [1,H,T,d].
                    Some(heads) => {
                        let width = out.shape[2] / heads.max(&1);
                        axes_exchanged(&out.reshaped(&[1, chunk.tokens, *heads, width]).unwrap_or(out), 1, 2)
                    }
                }
            }
            Op::Head => self.linear(step, &x),
            Op::Rope(rope) => self.rotation(rope, &x, chunk),
            Op::Qk => {
                let keys = self.all_so_far(step, chunk);
                let keys = self.for_each_query_head(&keys, x.shape[1]);
                let shape = [1, x.shape[1], chunk.tokens, keys.shape[2]];
                self.push("matmul", vec![view(&x), view(&axes_exchanged(&keys, 2, 3))], &shape)
            }
            Op::Scores(scores) => self.scores(scores, &x, chunk),
            Op::Softmax => self.push("softmax.int", vec![view(&x), last()], &x.shape),
            Op::Context => {
                let values = self.all_so_far(step, chunk);
                let values = self.for_each_query_head(&values, x.shape[1]);
                let (heads, width) = (x.shape[1], values.shape[3]);
                let sums = self.push("matmul", vec![view(&x), view(&values)], &[1, heads, chunk.tokens, width]);
                let merged = vec![view(&axes_exchanged(&sums, 1, 2))];
                let merged = self.push("clone", merged, &[1, chunk.tokens, heads, width]);
                merged.reshaped(&[1, chunk.tokens, heads * width]).unwrap_or(merged)
            }
            Op::Gated { activation } => {
                let up = read(1, chunk).unwrap_or_else(|| x.clone());
                let acted = self.activation(*activation, &x);
                self.push("mul.Tensor", vec![view(&acted), view(&up)], &x.shape)
            }
            Op::Residual { multiplier } => {
                let branch = read(1, chunk).unwrap_or_else(|| x.clone());
                let branch = match *multiplier {
                    1.0 => branch,
                    times => self.push("mul.Tensor", vec![view(&branch), number(times)], &x.shape),
                };
                self.push("add.Tensor", vec![view(&x), view(&branch)], &x.shape)
            }
        }
    }

    fn linear(&mut self, step: &PlanStep, x: &View) -> View {
        let weights: Vec<View> = (0..step.weights.len()).map(|at| self.weight(step, at)).collect();
        let shape = [1, x.shape[1], weights[0].shape[0]];
        self.push("linear", [x].into_iter().chain(&weights).map(view).collect(), &shape)
    }

    fn activation(&mut self, activation: Activation, x: &View) -> View {
        let name = match activation {
            Activation::Silu => "silu",
            Activation::Relu => "relu",
            Activation::GeluErf | Activation::GeluTanh => "gelu",
        };
        let acted = self.push(name, vec![view(x)], &x.shape);
        if activation == Activation::GeluTanh
            && let Some(op) = self.parts.ops.last_mut()
        {
            op.keywords.push(("approximate".to_owned(), Operand::Scalar(Scalar::Text("tanh".into()))));
        }
        acted
    }

    /// x cos + turned(x) sin; what is not rotated of a head is joined with it.
    fn rotation(&mut self, rope: &Rope, x: &View, chunk: &Chunk) -> View {
        let [cos, sin] = self.tables(rope, chunk);
        let (width, dims) = (x.shape[3], rope.rotary_dim.min(x.shape[3]));
        let (own, pairs) = (part(x, 0, dims, 1), dims / 2);
        let join = |first: &View, second: &View| vec![Operand::List(vec![view(first), view(second)]), last()];
        let turned = match rope.pairing {
            RopePairing::Half => {
                let [first, second] = [part(x, 0, pairs, 1), part(x, pairs, pairs, 1)];
                let minus = self.push("neg", vec![view(&second)], &second.shape);
                self.push("cat", join(&minus, &first), &own.shape)
            }
            RopePairing::Adjacent => {
                let [first, second] = [part(x, 0, pairs, 2), part(x, 1, pairs, 2)];
                let minus = self.push("neg", vec![view(&second)], &second.shape);
                let paired = [&first.shape[..], &[2]].concat();
                let paired = self.push("stack", join(&minus, &first), &paired);
                paired.reshaped(&own.shape).unwrap_or(paired)
            }
        };
        let a = self.push("mul.Tensor", vec![view(&own), view(&cos)], &own.shape);
        let b = self.push("mul.Tensor", vec![view(&turned), view(&sin)], &own.shape);
        let sum = self.push("add.Tensor", vec![view(&a), view(&b)], &own.shape);
        if dims == width {
            return sum;
        }
        let rest = part(x, dims, width - dims, 1);
        self.push("cat", join(&sum, &rest), &x.shape)
    }

    /// Cosines and sines of the positions of a step, \[1,1,T,d\].
    fn tables(&mut self, rope: &Rope, chunk: &Chunk) -> [View; 2] {
        let (frequencies, factor) = self.frequencies(rope);
        let (tokens, pairs) = (chunk.tokens, frequencies.elements());
        let positions = (chunk.start..chunk.start + tokens).map(|position| position as f64).collect::<Vec<_>>();
        let positions = self.given(DType::F64, &[tokens, 1], Values::from(positions));
        let angles = self.wide("mul.Tensor", vec![view(&positions), view(&frequencies)], &[tokens, pairs]);
        let join = vec![Operand::List(vec![view(&angles), view(&angles)]), last()];
        let (name, shape) = match rope.pairing {
            RopePairing::Half => ("cat", vec![tokens, 2 * pairs]),
            RopePairing::Adjacent => ("stack", vec![tokens, pairs, 2]),
        };
        let twice = self.wide(name, join, &shape);
        ["cos", "sin"].map(|function| {
            let table = self.push(function, vec![view(&twice)], &shape);
            let table = match factor {
                1.0 => table,
                factor => self.push("mul.Tensor", vec![view(&table), number(factor)], &shape),
            };
            table.reshaped(&[1, 1, tokens, 2 * pairs]).unwrap_or(table)
        })
    }

    /// The angle of each pair from one position to the next, \[d/2\], and the factor on the tables.
    fn frequencies(&mut self, rope: &Rope) -> (View, f64) {
        let (scaled, factor) = rope_inv_freq::<f64>(rope.rotary_dim, rope.theta, &rope.scaling);
        let (plain, _) = rope_inv_freq::<f64>(rope.rotary_dim, rope.theta, &RopeScaling::None);
        let pairs = plain.len();
        let exponents = (0..pairs).map(|i| -((2 * i) as f64) / rope.rotary_dim as f64).collect::<Vec<_>>();
        let exponents = self.given(DType::F64, &[pairs], Values::from(exponents));
        let own = self.wide("pow.Scalar", vec![number(rope.theta), view(&exponents)], &[pairs]);
        let scaled = match rope.scaling {
            RopeScaling::None => own,
            // Which pairs are scaled follows from their frequencies: from those kept to those divided.
            RopeScaling::Llama3 { factor, low_freq_factor: low, high_freq_factor: high, original_max_position } => {
                let turns = number(original_max_position / std::f64::consts::TAU);
                let turns = self.wide("mul.Tensor", vec![view(&own), turns], &[pairs]);
                let above = self.wide("sub.Tensor", vec![view(&turns), number(low)], &[pairs]);
                let share = self.wide("div.Tensor", vec![view(&above), number(high - low)], &[pairs]);
                let share = self.wide("clamp", vec![view(&share), number(0.0), number(1.0)], &[pairs]);
                let divided = self.wide("div.Tensor", vec![view(&own), number(factor)], &[pairs]);
                self.wide("lerp.Tensor", vec![view(&divided), view(&own), view(&share)], &[pairs])
            }
            _ => {
                let ratios = scaled.iter().zip(&plain).map(|(scaled, plain)| scaled / plain).collect::<Vec<_>>();
                let ratios = self.given(DType::F64, &[pairs], Values::from(ratios));
                self.wide("mul.Tensor", vec![view(&own), view(&ratios)], &[pairs])
            }
        };
        (scaled, factor)
    }

    /// Scales, caps and masks.
    fn scores(&mut self, scores: &Scores, x: &View, chunk: &mut Chunk) -> View {
        let mut x = self.push("mul.Tensor", vec![view(x), number(scores.scale)], &x.shape);
        if let Some(cap) = scores.softcap {
            for (name, operand) in [("div.Tensor", Some(cap)), ("tanh", None), ("mul.Tensor", Some(cap))] {
                x = self.push(name, [view(&x)].into_iter().chain(operand.map(number)).collect(), &x.shape);
            }
        }
        let keys = x.shape[3];
        if !scores.causal && scores.window.is_none() {
            return x;
        }
        let mask = match chunk.masks.iter().find(|(window, _)| *window == scores.window) {
            Some((_, mask)) => mask.clone(),
            None => {
                let hides = |query: usize, key: usize| {
                    let position = chunk.start + query;
                    scores.causal && key > position || scores.window.is_some_and(|window| key + window <= position)
                };
                let row =
                    |query: usize| (0..keys).map(move |key| if hides(query, key) { f64::NEG_INFINITY } else { 0.0 });
                let values = (0..chunk.tokens).flat_map(row).collect::<Vec<_>>();
                let mask = self.given(DType::F32, &[1, 1, chunk.tokens, keys], Values::from(values));
                chunk.masks.push((scores.window, mask.clone()));
                mask
            }
        };
        self.push("add.Tensor", vec![view(&x), view(&mask)], &x.shape)
    }

    /// Keys or values of all steps so far, \[1,K,S,d\].
    fn all_so_far(&mut self, step: &PlanStep, chunk: &Chunk) -> View {
        let tap = step.cached().unwrap_or(step.tap);
        let new = chunk.made.get(&tap).cloned().unwrap_or_else(|| chunk.ids.clone());
        let all = match self.kept.get(&tap).cloned() {
            None => new,
            Some(past) => {
                let mut shape = past.shape.clone();
                shape[2] += new.shape[2];
                let along = Operand::Scalar(Scalar::Int(-2));
                self.push("cat", vec![Operand::List(vec![view(&past), view(&new)]), along], &shape)
            }
        };
        self.kept.insert(tap, all.clone());
        all
    }

    /// Heads of keys or values once for each query head that reads them.
    fn for_each_query_head(&mut self, x: &View, heads: usize) -> View {
        let &[_, few, keys, width] = &x.shape[..] else { return x.clone() };
        let each = heads / few.max(1);
        if each <= 1 {
            return x.clone();
        }
        let mut expanded = x.clone();
        expanded.shape.insert(2, each);
        expanded.strides.insert(2, 0);
        let copied = self.push("clone", vec![view(&expanded)], &[1, few, each, keys, width]);
        copied.reshaped(&[1, heads, keys, width]).unwrap_or(copied)
    }

    /// The tap of a step, in its own axes.
    fn tap(&mut self, step: &PlanStep, chunk: &Chunk, out: &View) {
        let is_by_heads = matches!(
            step.tap.site,
            Site::Q | Site::K | Site::V | Site::QNorm | Site::KNorm | Site::QRope | Site::KRope
        );
        let own = if is_by_heads { axes_exchanged(out, 1, 2) } else { out.clone() };
        let (shape, strides) = (own.shape[1..].to_vec(), own.strides[1..].to_vec());
        let op = self.parts.ops.len() - 1;
        self.parts.taps.push(ProgramTap {
            tap: step.tap.to_string(),
            step: chunk.number,
            op,
            view: View { shape, strides, ..own },
        });
    }

    /// The place of the operations that follow.
    fn scope(&mut self, step: &PlanStep) {
        let (module, name) = (step.tap.to_string(), step.op.name().to_owned());
        self.parts.scopes.push(Scope { module, functions: vec![name], file: None });
    }

    fn weight(&mut self, step: &PlanStep, at: usize) -> View {
        let weight = step.weights[at];
        self.named(&self.model.weights.name(weight), &self.model.plan.dims.shape(weight.role))
    }

    /// The weight of this name: a head that is the embedding is one weight.
    fn named(&mut self, name: &str, shape: &[usize]) -> View {
        if let Some(known) = self.weights.get(name) {
            return known.clone();
        }
        let view = self.buffer(DType::F32, shape);
        self.parts.weights.insert(view.buffer, name.to_owned());
        self.weights.insert(name.to_owned(), view.clone());
        view
    }

    /// A buffer with values of its own.
    fn given(&mut self, dtype: DType, shape: &[usize], values: Values<'static>) -> View {
        let view = self.buffer(dtype, shape);
        self.parts.given.insert(view.buffer, Tensor { dtype, shape: shape.to_vec(), values });
        view
    }

    fn push(&mut self, name: &str, operands: Vec<Operand>, shape: &[usize]) -> View {
        self.push_as(DType::F32, name, operands, shape)
    }

    /// The same of tables, which are made in f64.
    fn wide(&mut self, name: &str, operands: Vec<Operand>, shape: &[usize]) -> View {
        self.push_as(DType::F64, name, operands, shape)
    }

    fn push_as(&mut self, dtype: DType, name: &str, operands: Vec<Operand>, shape: &[usize]) -> View {
        let out = self.buffer(dtype, shape);
        let scope = self.parts.scopes.len() - 1;
        self.parts.ops.push(Operation {
            name: name.to_owned(),
            operands,
            keywords: Vec::new(),
            outputs: vec![Some(out.clone())],
            written: Vec::new(),
            scalar: None,
            scope: Some(scope),
            line: None,
            node: Some(self.parts.scopes[scope].functions[0].clone()),
        });
        out
    }

    fn buffer(&mut self, dtype: DType, shape: &[usize]) -> View {
        let buffer = self.parts.buffers.len();
        let view = View { buffer, dtype, shape: shape.to_vec(), strides: contiguous_strides(shape), offset: 0 };
        self.parts.buffers.push(view.clone());
        view
    }
}

/// The same elements with two axes exchanged.
fn axes_exchanged(view: &View, a: usize, b: usize) -> View {
    let mut view = view.clone();
    view.shape.swap(a, b);
    view.strides.swap(a, b);
    view
}

/// Elements of each row: `count` from `first` on, `by` apart.
pub(super) fn part(x: &View, first: usize, count: usize, by: usize) -> View {
    let mut part = x.clone();
    if let (Some(extent), Some(stride)) = (part.shape.last_mut(), part.strides.last_mut()) {
        part.offset += first * *stride;
        (*extent, *stride) = (count, by * *stride);
    }
    part
}

fn view(view: &View) -> Operand {
    Operand::View(view.clone())
}

fn number(x: f64) -> Operand {
    Operand::Scalar(Scalar::Float(x))
}

fn int(x: usize) -> Operand {
    Operand::Scalar(Scalar::Int(x as i64))
}

fn last() -> Operand {
    Operand::Scalar(Scalar::Int(-1))
}
