//! Says ggml's operations in PyTorch's: each that is exactly a few of aten's becomes those, so that whoever reads a program knows one language.
//!
//! What has no equal there stays as it is: products by index, recurrent states, sections of positions, ALiBi, sinks.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::kernels::ggml::rope::{LEAST_RAMP, yarn_attention, yarn_ramp};
use crate::program::{Operation, ProgramTap, Step};
use crate::value::dtype::DType;
use crate::value::operand::Operand;
use crate::value::scalar::Scalar;
use crate::value::view::{View, contiguous_strides};

/// Lowers all operations of ggml; taps and steps are led to the new numbers.
pub(super) fn lowered(
    buffers: &mut Vec<View>,
    ops: Vec<Operation>,
    weights: &BTreeMap<usize, String>,
    steps: &mut [Step],
    taps: &mut [ProgramTap],
) -> Vec<Operation> {
    let chains = chains(&ops, weights, steps, taps);
    let mut lower = Lower { buffers, weights, ops: Vec::with_capacity(ops.len()) };
    let mut ends = Vec::with_capacity(ops.len());
    for (number, op) in ops.iter().enumerate() {
        let first = lower.ops.len();
        let begun = chains.begun.get(&number);
        let made = match begun {
            Some(&begin) => lower.emit_chain(&ops[begin..=number]),
            None if chains.absorbed.contains(&number) => Some(()),
            None => lower.emit(op),
        };
        if made.is_none() {
            lower.ops.truncate(first);
            let before = begun.map_or(number, |&begin| begin)..number;
            let alone = before.filter(|at| chains.absorbed.contains(at)).chain([number]);
            lower.ops.extend(alone.map(|at| ops[at].clone()));
        }
        ends.push(lower.ops.len());
    }
    let before = |number: usize| number.checked_sub(1).map_or(0, |last| ends[last]);
    for step in steps {
        step.ops = before(step.ops.start)..before(step.ops.end);
    }
    taps.iter_mut().for_each(|tap| tap.op = ends[tap.op] - 1);
    lower.ops
}

/// Operations that are one of aten's together: a product and its bias, a norm with its gain and its bias.
#[derive(Default)]
struct Chains {
    /// The last of each chain, with the first.
    begun: HashMap<usize, usize>,
    /// Those before the last that nothing else reads, and behind which no tap is read.
    absorbed: HashSet<usize>,
}

fn chains(ops: &[Operation], weights: &BTreeMap<usize, String>, steps: &[Step], taps: &[ProgramTap]) -> Chains {
    let mut reads: HashMap<usize, usize> = HashMap::new();
    let outputs = steps.iter().filter_map(|step| step.output.as_ref());
    let views = ops.iter().flat_map(Operation::reads).chain(taps.iter().map(|tap| &tap.view)).chain(outputs);
    views.for_each(|view| *reads.entry(view.buffer).or_default() += 1);
    let is_read_once = |op: &Operation| matches!(&op.outputs[..], [Some(out)] if reads.get(&out.buffer) == Some(&1));
    // Whether `next` does this to what `op` makes, with a vector of weights.
    let goes_on = |op: &Operation, next: &Operation, name: &str| {
        let (Some([x, vector]), [Some(made)]) = (two(next), &op.outputs[..]) else { return false };
        next.name == name && x == made && vector.shape.len() == 1 && weights.contains_key(&vector.buffer)
    };
    let is_product = |op: &Operation| {
        let of_weights = |[matrix, _]: [&View; 2]| matrix.shape.len() == 2 && weights.contains_key(&matrix.buffer);
        op.name == "ggml.MUL_MAT" && two(op).is_some_and(of_weights)
    };
    let tapped: HashSet<usize> = taps.iter().map(|tap| tap.op).collect();
    let mut chains = Chains::default();
    for (first, op) in ops.iter().enumerate() {
        let next = |by: usize| ops.get(first + by);
        let length = match op.name.as_str() {
            _ if is_product(op) && is_read_once(op) && !tapped.contains(&first) => {
                usize::from(next(1).is_some_and(|sum| goes_on(op, sum, "ggml.ADD")))
            }
            "ggml.RMS_NORM" | "ggml.NORM" => match (next(1).filter(|gain| goes_on(op, gain, "ggml.MUL")), next(2)) {
                (Some(gain), Some(bias)) if op.name == "ggml.NORM" && goes_on(gain, bias, "ggml.ADD") => 2,
                (gain, _) => usize::from(gain.is_some()),
            },
            _ => 0,
        };
        if length > 0 {
            chains.begun.insert(first + length, first);
            let is_alone = |number: &usize| is_read_once(&ops[*number]) && !tapped.contains(number);
            chains.absorbed.extend((first..first + length).filter(is_alone));
        }
    }
    chains
}

/// The only two operands, where these are tensors.
fn two(op: &Operation) -> Option<[&View; 2]> {
    match &op.operands[..] {
        [Operand::View(a), Operand::View(b)] => Some([a, b]),
        _ => None,
    }
}

struct Lower<'a> {
    buffers: &'a mut Vec<View>,
    weights: &'a BTreeMap<usize, String>,
    ops: Vec<Operation>,
}

impl Lower<'_> {
    /// Adds what a chain is.
    fn emit_chain(&mut self, chain: &[Operation]) -> Option<()> {
        let (first, last) = (chain.first()?, chain.last()?);
        let [Some(out)] = &last.outputs[..] else { return None };
        let [bias, x] = [two(last)?[1], first.operands.first()?.views().first().copied()?];
        match (first.name.as_str(), chain) {
            ("ggml.MUL_MAT", _) => {
                let [matrix, x] = two(first)?;
                self.push(last, "linear", vec![view(x), view(matrix), view(bias)], out.clone());
                Some(())
            }
            (_, [_, gain, _]) => self.norm(first, last, x, [view(two(gain)?[1]), view(bias)], out),
            _ => self.norm(first, last, x, [view(bias), Operand::None], out),
        }
    }

    /// Adds the norm that `first` is, with its gain and its bias, as a part of `last`.
    fn norm(
        &mut self,
        first: &Operation,
        last: &Operation,
        x: &View,
        [gain, bias]: [Operand; 2],
        out: &View,
    ) -> Option<()> {
        let (eps, width) = (number(float(first, "eps")?), *x.shape.last().unwrap_or(&1) as i64);
        let width = Operand::List(vec![Operand::Scalar(Scalar::Int(width))]);
        match first.name.as_str() {
            "ggml.RMS_NORM" => self.push(last, "rms_norm", vec![view(x), width, gain, eps], out.clone()),
            _ => self.push(last, "layer_norm", vec![view(x), width, gain, bias, eps], out.clone()),
        }
        Some(())
    }

    /// Adds what an operation is; `None` where it has no equal.
    fn emit(&mut self, op: &Operation) -> Option<()> {
        let name = op.name.strip_prefix("ggml.")?;
        let ([Some(out)], true) = (&op.outputs[..], op.written.is_empty()) else { return None };
        let x = op.operands.first()?.views().first().copied()?;
        let last = Operand::Scalar(Scalar::Int(-1));
        let is_alike = x.shape == out.shape;
        match name {
            "MUL_MAT" => return self.product(op, two(op)?, out),
            "ROPE" => return self.rotation(op, x, out),
            "SOFT_MAX" if is_alike => return self.softmax(op, x, out),
            "GET_ROWS" => {
                let [table, ids] = two(op).filter(|[table, ids]| table.shape.len() == 2 && ids.shape.len() == 1)?;
                // A leading axis of extent 1 is not recorded.
                let out = out.reshaped(&[ids.shape[0], table.shape[1]])?;
                match self.weights.contains_key(&table.buffer) {
                    true => self.push(op, "embedding", vec![view(table), view(ids)], out),
                    false => {
                        let rows = vec![view(table), Operand::Scalar(Scalar::Int(0)), view(ids)];
                        self.push(op, "index_select", rows, out);
                    }
                }
                return Some(());
            }
            "ADD" | "SUB" | "MUL" | "DIV" => {
                let b = two(op)?[1];
                let axes = x.shape.len().checked_sub(b.shape.len())?;
                let fits = b.shape.iter().zip(&x.shape[axes..]).all(|(own, due)| own == due || *own == 1);
                let name = format!("{}.Tensor", name.to_lowercase());
                return (fits && is_alike).then(|| self.push(op, &name, vec![view(x), view(b)], out.clone()));
            }
            "GLU.SWIGLU" | "GLU.GEGLU" | "GLU.GEGLU_ERF" | "GLU.REGLU" => return self.gate(op, name, x, out),
            "CONCAT" => {
                let axis = float(op, "axis").filter(|axis| *axis < 0.0)?;
                let parts = two(op)?.map(|part| {
                    let lead = out.shape.len().saturating_sub(part.shape.len());
                    let ones = |axes: &[usize]| [&vec![1; lead][..], axes].concat();
                    View { shape: ones(&part.shape), strides: ones(&part.strides), ..part.clone() }
                });
                let cat =
                    vec![Operand::List(parts.iter().map(view).collect()), Operand::Scalar(Scalar::Int(axis as i64))];
                self.push(op, "cat", cat, out.clone());
                return Some(());
            }
            "SUM_ROWS" | "MEAN" => {
                let is_row = |(axis, (own, due)): (usize, (&usize, &usize))| {
                    own == due || axis + 1 == x.shape.len() && *own == 1
                };
                let fits = out.shape.len() == x.shape.len() && out.shape.iter().zip(&x.shape).enumerate().all(is_row);
                let name = if name == "MEAN" { "mean.dim" } else { "sum.dim_IntList" };
                let kept = Operand::Scalar(Scalar::Bool(true));
                return fits.then(|| self.push(op, name, vec![view(x), Operand::List(vec![last]), kept], out.clone()));
            }
            _ if !is_alike => return None,
            "SCALE" if float(op, "bias") == Some(0.0) => {
                self.push(op, "mul.Tensor", vec![view(x), number(float(op, "scale")?)], out.clone());
            }
            "CLAMP" => {
                let limits = [number(float(op, "min")?), number(float(op, "max")?)];
                self.push(op, "clamp", [&[view(x)], &limits[..]].concat(), out.clone());
            }
            "RMS_NORM" | "NORM" => return self.norm(op, op, x, [Operand::None, Operand::None], out),
            "SQR" => self.push(op, "square", vec![view(x)], out.clone()),
            "CONT" | "DUP" => self.push(op, "clone", vec![view(x)], out.clone()),
            _ => self.function(op, name, x, out.clone())?,
        }
        Some(())
    }

    /// A function of single values.
    fn function(&mut self, op: &Operation, name: &str, x: &View, out: View) -> Option<()> {
        let (name, keywords) = match name.strip_prefix("UNARY.").unwrap_or(name) {
            "SQRT" => ("sqrt", vec![]),
            "LOG" => ("log", vec![]),
            "SIN" => ("sin", vec![]),
            "COS" => ("cos", vec![]),
            "ABS" => ("abs", vec![]),
            "NEG" => ("neg", vec![]),
            "TANH" => ("tanh", vec![]),
            "RELU" => ("relu", vec![]),
            "SIGMOID" => ("sigmoid", vec![]),
            "SILU" => ("silu", vec![]),
            "EXP" => ("exp", vec![]),
            "SOFTPLUS" => ("softplus", vec![]),
            "GELU_ERF" => ("gelu", vec![]),
            "GELU" => ("gelu", vec![("approximate".to_owned(), Operand::Scalar(Scalar::Text("tanh".into())))]),
            _ => return None,
        };
        self.push(op, name, vec![view(x)], out);
        self.ops.last_mut()?.keywords = keywords;
        Some(())
    }

    /// An activation of one tensor, or of one half of each row, times the other.
    fn gate(&mut self, op: &Operation, name: &str, x: &View, out: &View) -> Option<()> {
        let [act, up] = match two(op) {
            Some(both) => both.map(View::clone),
            None => {
                let half = x.shape.last()? / 2;
                let part = |at: usize| part(x, at * half, half, 1);
                if float(op, "swapped").is_some_and(|swapped| swapped != 0.0) {
                    [part(1)?, part(0)?]
                } else {
                    [part(0)?, part(1)?]
                }
            }
        };
        if act.shape != out.shape || up.shape != out.shape {
            return None;
        }
        let acted = self.floats(&out.shape);
        let function = match name {
            "GLU.SWIGLU" => "SILU",
            "GLU.GEGLU" => "GELU",
            "GLU.GEGLU_ERF" => "GELU_ERF",
            _ => "RELU",
        };
        self.function(op, function, &act, acted.clone())?;
        self.push(op, "mul.Tensor", vec![view(&acted), view(&up)], out.clone());
        Some(())
    }

    /// Rows of the second with rows of the first; each matrix of the first serves several neighbouring ones of the second.
    fn product(&mut self, op: &Operation, [a, b]: [&View; 2], out: &View) -> Option<()> {
        if a.shape.len() == 2 && self.weights.contains_key(&a.buffer) {
            self.push(op, "linear", vec![view(b), view(a)], out.clone());
            return Some(());
        }
        let turned = |of: &View| {
            let mut turned = of.clone();
            let axes = of.shape.len();
            turned.shape.swap(axes - 1, axes - 2);
            turned.strides.swap(axes - 1, axes - 2);
            turned
        };
        match [a.shape.len(), b.shape.len(), out.shape.len()] {
            [2, 2, 2] | [2, 3, 3] => self.push(op, "matmul", vec![view(b), view(&turned(a))], out.clone()),
            [3, 3, 3] => {
                let (few, many) = (a.shape[0], b.shape[0]);
                let each = many.checked_div(few).filter(|each| each * few == many)?;
                let grouped = |of: &View, count: usize| {
                    let mut grouped = of.clone();
                    grouped.shape.splice(0..1, [few, count]);
                    grouped.strides.splice(0..1, [count * of.strides[0], of.strides[0]]);
                    grouped
                };
                match each {
                    1 => self.push(op, "matmul", vec![view(b), view(&turned(a))], out.clone()),
                    _ => {
                        let one = grouped(&turned(a), 1);
                        self.push(op, "matmul", vec![view(&grouped(b, each)), view(&one)], grouped(out, each));
                    }
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// Scores are scaled, the mask is added, and each row becomes shares of one.
    fn softmax(&mut self, op: &Operation, x: &View, out: &View) -> Option<()> {
        let mask = match &op.operands[1..] {
            [] | [Operand::None] => None,
            [Operand::View(mask)] | [Operand::View(mask), Operand::None] => Some(mask),
            _ => return None,
        };
        let (scale, rows) = (float(op, "scale")?, x.shape.len().checked_sub(2).map(|axis| x.shape[axis])?);
        let mask = match mask {
            None => None,
            Some(mask) => {
                let (lead, masks) = mask.shape.split_at(mask.shape.len().saturating_sub(2));
                let is_alone = lead.iter().all(|&extent| extent == 1) && mask.shape.last() == x.shape.last();
                let mut own = mask.clone();
                // Masks may have more rows than there are.
                let fits = match masks {
                    [own_rows, _] if *own_rows >= rows => {
                        own.shape[lead.len()] = rows;
                        is_alone && own.shape.len() <= x.shape.len()
                    }
                    _ => is_alone && masks.len() == 1 && rows == 1,
                };
                Some(fits.then_some(own)?)
            }
        };
        if float(op, "max_bias")? != 0.0 {
            return None;
        }
        let mut scores = x.clone();
        if scale != 1.0 {
            let scaled = self.floats(&x.shape);
            self.push(op, "mul.Tensor", vec![view(&scores), number(scale)], scaled.clone());
            scores = scaled;
        }
        if let Some(mask) = mask {
            let masked = self.floats(&x.shape);
            self.push(op, "add.Tensor", vec![view(&scores), view(&mask)], masked.clone());
            scores = masked;
        }
        self.push(op, "softmax.int", vec![view(&scores), Operand::Scalar(Scalar::Int(-1))], out.clone());
        Some(())
    }

    /// x cos + turned(x) sin, of tables that are made of the positions.
    fn rotation(&mut self, op: &Operation, x: &View, out: &View) -> Option<()> {
        let (positions, factors) = match &op.operands[1..] {
            [Operand::View(positions)] | [Operand::View(positions), Operand::None] => (positions, None),
            [Operand::View(positions), Operand::View(factors)] => (positions, Some(factors)),
            _ => return None,
        };
        let (mode, dims, tokens) = (float(op, "mode")?, float(op, "n_dims")? as usize, positions.elements());
        let (axes, pairs, width) = (x.shape.len(), dims / 2, *x.shape.last()?);
        let is_whole = float(op, "offset").is_none_or(|offset| offset == 0.0);
        let is_plain = (mode == 0.0 || mode == 2.0) && is_whole;
        let fits = dims % 2 == 0 && (2..=width).contains(&dims) && x.strides.last() == Some(&1) && x.shape == out.shape;
        let is_told = positions.shape.len() == 1 && if axes < 3 { tokens == 1 } else { x.shape[axes - 3] == tokens };
        let is_enough = factors.is_none_or(|factors| factors.shape.len() == 1 && factors.shape[0] >= pairs);
        if !is_plain || !fits || !is_told || !is_enough {
            return None;
        }
        let is_blended = float(op, "ext_factor")? != 0.0;
        let longer = if is_blended { yarn_attention(float(op, "freq_scale")?) } else { 1.0 };
        let attention = float(op, "attn_factor")? * longer;
        let mut frequencies = self.frequencies(op, pairs)?;
        if let Some(factors) = factors {
            let longer = self.floats(&[pairs]);
            let own = View { shape: vec![pairs], ..factors.clone() };
            self.push(op, "div.Tensor", vec![view(&frequencies), view(&own)], longer.clone());
            frequencies = longer;
        }
        let angles = self.floats(&[tokens, pairs]);
        let column = View { shape: vec![tokens, 1], strides: vec![positions.strides[0], 1], ..positions.clone() };
        self.push(op, "mul.Tensor", vec![view(&column), view(&frequencies)], angles.clone());
        let is_halves = mode == 2.0;
        let twice = self.floats(&[tokens, dims]);
        let join = if is_halves { "cat" } else { "stack" };
        // Pairs that stand side by side are two numbers of one axis more.
        let by_pairs = |all: &View| match is_halves {
            true => all.clone(),
            false => {
                let mut paired = all.clone();
                paired.shape.splice(paired.shape.len() - 1.., [pairs, 2]);
                paired.strides.splice(paired.strides.len() - 1.., [2, 1]);
                paired
            }
        };
        let last = || Operand::Scalar(Scalar::Int(-1));
        let doubled = vec![Operand::List(vec![view(&angles), view(&angles)]), last()];
        self.push(op, join, doubled, by_pairs(&twice));
        let mut tables = Vec::new();
        for function in ["cos", "sin"] {
            let mut table = self.floats(&[tokens, dims]);
            self.push(op, function, vec![view(&twice)], table.clone());
            if attention != 1.0 {
                let longer = self.floats(&[tokens, dims]);
                self.push(op, "mul.Tensor", vec![view(&table), number(attention)], longer.clone());
                table = longer;
            }
            let shape = if axes < 3 { vec![1; axes - 1] } else { vec![tokens, 1] };
            let shape = [&shape[..], &[dims]].concat();
            tables.push(table.reshaped(&shape)?);
        }
        let (own, whole) = (part(x, 0, dims, 1)?, dims == width);
        let [first, second] = match is_halves {
            true => [part(x, 0, pairs, 1)?, part(x, pairs, pairs, 1)?],
            false => [part(x, 0, pairs, 2)?, part(x, 1, pairs, 2)?],
        };
        let [negative, turned, a, b] = [&second, &own, &own, &own].map(|like| self.floats(&like.shape));
        self.push(op, "neg", vec![view(&second)], negative.clone());
        self.push(op, join, vec![Operand::List(vec![view(&negative), view(&first)]), last()], by_pairs(&turned));
        self.push(op, "mul.Tensor", vec![view(&own), view(&tables[0])], a.clone());
        self.push(op, "mul.Tensor", vec![view(&turned), view(&tables[1])], b.clone());
        let sum = if whole { out.clone() } else { self.floats(&own.shape) };
        self.push(op, "add.Tensor", vec![view(&a), view(&b)], sum.clone());
        if !whole {
            let rest = part(x, dims, width - dims, 1)?;
            self.push(op, "cat", vec![Operand::List(vec![view(&sum), view(&rest)]), last()], out.clone());
        }
        Some(())
    }

    /// scale · base^(-2i/n) of each pair i; with YaRN the scale goes over to 1 along a ramp of the pairs.
    fn frequencies(&mut self, op: &Operation, pairs: usize) -> Option<View> {
        let (dims, int) = (2 * pairs, |x: usize| Operand::Scalar(Scalar::Int(x as i64)));
        let [counted, exponents, powers, scaled] = [(); 4].map(|()| self.buffer(DType::F64, &[pairs]));
        self.push(op, "arange.start_step", vec![int(0), int(dims), int(2)], counted.clone());
        self.push(op, "mul.Tensor", vec![view(&counted), number(-1.0 / dims as f64)], exponents.clone());
        self.push(op, "pow.Scalar", vec![number(float(op, "freq_base")?), view(&exponents)], powers.clone());
        let (scale, blend) = (float(op, "freq_scale")?, float(op, "ext_factor")?);
        if blend == 0.0 {
            self.push(op, "mul.Tensor", vec![view(&powers), number(scale)], scaled.clone());
            return Some(scaled);
        }
        let turns = [float(op, "beta_fast")?, float(op, "beta_slow")?];
        let [first, last] = yarn_ramp(dims, float(op, "n_ctx_orig")?, float(op, "freq_base")?, turns);
        let [pair, along, within, share, rest, scales] = [(); 6].map(|()| self.buffer(DType::F64, &[pairs]));
        self.push(op, "arange", vec![int(pairs)], pair.clone());
        let per_pair = number(1.0 / (last - first).max(LEAST_RAMP));
        self.push(op, "add.Tensor", vec![view(&pair), number(-first)], along.clone());
        self.push(op, "mul.Tensor", vec![view(&along), per_pair], within.clone());
        self.push(op, "clamp", vec![view(&within), number(0.0), number(1.0)], share.clone());
        // scale + (1 - scale) · blend · (1 - share)
        let (most, slope) = (scale + (1.0 - scale) * blend, (scale - 1.0) * blend);
        self.push(op, "mul.Tensor", vec![view(&share), number(slope)], rest.clone());
        self.push(op, "add.Tensor", vec![view(&rest), number(most)], scales.clone());
        self.push(op, "mul.Tensor", vec![view(&powers), view(&scales)], scaled.clone());
        Some(scaled)
    }

    /// Adds an operation that is a part of `of`.
    fn push(&mut self, of: &Operation, name: &str, operands: Vec<Operand>, out: View) {
        let node = of.name.strip_prefix("ggml.").map(str::to_owned);
        let (keywords, written) = (Vec::new(), Vec::new());
        self.ops.push(Operation {
            name: name.into(),
            operands,
            keywords,
            outputs: vec![Some(out)],
            written,
            node,
            ..of.clone()
        });
    }

    /// A new buffer, of floats as ggml keeps them.
    fn floats(&mut self, shape: &[usize]) -> View {
        self.buffer(DType::F32, shape)
    }

    fn buffer(&mut self, dtype: DType, shape: &[usize]) -> View {
        let (buffer, strides) = (self.buffers.len(), contiguous_strides(shape));
        let view = View { buffer, dtype, shape: shape.to_vec(), strides, offset: 0 };
        self.buffers.push(view.clone());
        view
    }
}

/// Elements of each row: `count` from `first` on, `by` apart.
fn part(x: &View, first: usize, count: usize, by: usize) -> Option<View> {
    let mut part = x.clone();
    let stride = *x.strides.last()?;
    part.offset += first * stride;
    *part.shape.last_mut()? = count;
    *part.strides.last_mut()? = by * stride;
    Some(part)
}

fn view(view: &View) -> Operand {
    Operand::View(view.clone())
}

fn number(x: f64) -> Operand {
    Operand::Scalar(Scalar::Float(x))
}

/// A parameter by its name.
fn float(op: &Operation, key: &str) -> Option<f64> {
    match op.keywords.iter().find(|(name, _)| name == key)? {
        (_, Operand::Scalar(Scalar::Float(x))) => Some(*x),
        (_, Operand::Scalar(Scalar::Int(x))) => Some(*x as f64),
        _ => None,
    }
}
