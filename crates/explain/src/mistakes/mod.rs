//! Which mistakes do people make? Each is another way to carry out one step of the Plan, under the id it has in the catalogue.
//!
//! A group of operations is a file. `listed` gives the mistakes that are known without looking at any number; `fitted` those whose
//! parameter is read off what the candidate recorded.

mod attention;
mod embedding;
mod feed_forward;
mod linear;
mod norm;
mod precision;
mod residual;
mod rope;
mod stored;
mod words;

use std::sync::Arc;

use firstdiff_core as core;
use firstdiff_model::{
    Chunk, Half, Model, Op, Profile, Role, Rope, Scores, Step, WeightRef, WeightView, eval_step, eval_step_in, ggml,
    ggml_activations,
};
use firstdiff_trace::{Site, Tap};
use ndarray::{Array2, ArrayD, ArrayView2, Axis, Ix2};
use rayon::prelude::*;
use serde_json::Value;

pub use words::{advice, ids, what};

/// The taps of a layer that all show it when QK-norm comes behind the rotation.
const QK_NORM_ORDER: &[Site] = &[Site::QNorm, Site::KNorm, Site::QRope, Site::KRope, Site::Qk];

/// What a mistake gives for a step; `None` where it does not apply.
pub(crate) type Out = Option<ArrayD<f64>>;

/// Values of a mistake's parameters, by name.
pub type Params = Vec<(&'static str, Value)>;

/// One step done otherwise.
#[derive(Clone)]
pub(crate) struct Edit {
    /// The catalogue's id.
    pub(crate) id: &'static str,
    pub(crate) params: Params,
    /// The step.
    pub(crate) tap: Tap,
    /// What it reads when it is done so.
    pub(crate) reads: Vec<Tap>,
    /// Other taps of the layer that carry the same mistake, or it is another.
    pub(crate) with: &'static [Site],
    wrong: Arc<dyn Fn(&At<'_>) -> Out + Send + Sync>,
    /// The parameter that may have any value, where there is one.
    tune: Option<Tune>,
    /// Where in a run it begins to be made, if not where decoding does.
    pub(crate) onset: Option<Onset>,
}

/// A decode step that a mistake begins with, and its first position.
#[derive(Clone, Copy)]
pub(crate) struct Onset {
    pub(crate) step: u32,
    pub(crate) position: usize,
}

/// A parameter of an edit that may have any value.
#[derive(Clone)]
struct Tune {
    name: &'static str,
    value: f64,
    /// Whether it counts something.
    whole: bool,
    wrong: Tunable,
}

/// The wrong way to carry out a step, by the value of a parameter.
type Tunable = Arc<dyn Fn(f64, &At<'_>) -> Out + Send + Sync>;

impl Edit {
    /// A step done right, and then changed by what no engine is to blame for.
    pub(crate) fn harmless(step: &Step, change: impl Fn(ArrayD<f64>) -> ArrayD<f64> + Send + Sync + 'static) -> Edit {
        let wrong = Arc::new(move |at: &At<'_>| at.right().map(&change));
        let (tap, reads) = (step.tap, step.reads.clone());
        Edit { id: "precision", params: vec![], tap, reads, with: &[], wrong, tune: None, onset: None }
    }

    /// The same mistake, made from a later decode step on.
    pub(crate) fn beginning(&self, onset: Onset) -> Edit {
        Edit { onset: Some(onset), ..self.clone() }
    }

    /// The value of the parameter that may have any, and whether that is a whole number.
    pub(crate) fn tunable(&self) -> Option<(f64, bool)> {
        self.tune.as_ref().map(|tune| (tune.value, tune.whole))
    }

    /// The same mistake with another value of that parameter.
    pub(crate) fn tuned(&self, value: f64) -> Edit {
        let Some(tune) = self.tune.clone() else { return self.clone() };
        let params = self.params.iter().map(|(name, old)| {
            let new = if tune.whole { serde_json::json!(value as i64) } else { serde_json::json!(value) };
            (*name, if *name == tune.name { new } else { old.clone() })
        });
        let wrong = tune.wrong.clone();
        Edit {
            params: params.collect(),
            wrong: Arc::new(move |at| wrong(value, at)),
            tune: Some(Tune { value, ..tune }),
            ..self.clone()
        }
    }

    /// The step's value on `at.inputs`, one for each of `reads`.
    pub(crate) fn value(&self, at: &At<'_>) -> Out {
        let prefill = self.onset.map_or(at.prefill, |onset| onset.position);
        (self.wrong)(&At { prefill, ..*at })
    }

    /// Whether it is the same way to carry out a step, and not only one of the same name.
    pub(crate) fn is(&self, other: &Edit) -> bool {
        Arc::ptr_eq(&self.wrong, &other.wrong)
    }

    /// Whether what a token gets may depend on how many there are, or on those behind it.
    pub(crate) fn mixes_tokens(&self) -> bool {
        const MIXING: &[&str] = &[
            "mask-",
            "softmax-axis",
            "norm-axis",
            "head-layout",
            "context-layout",
            "logit-row",
            "window-",
            "kv-cache",
            "tokens-",
        ];
        MIXING.iter().any(|start| self.id.starts_with(start))
    }

    /// What tells this mistake from others, wherever it is made. Two parameters follow from the shape of a matrix.
    pub(crate) fn key(&self) -> String {
        let params = self.params.iter().filter(|(name, _)| !["form", "zero_from"].contains(name));
        let params: Vec<String> = params.map(|(name, value)| format!("{name}={value}")).collect();
        format!("{} {}", self.id, params.join(","))
    }

    /// Whether it is the same mistake, made in the same step.
    pub(crate) fn is_made_as(&self, other: &Edit) -> bool {
        self.tap == other.tap && self.key() == other.key()
    }
}

/// A step at the time it is carried out.
pub(crate) struct At<'a> {
    /// As it should be.
    pub(crate) step: &'a Step,
    /// What it reads.
    pub(crate) inputs: &'a [ArrayD<f64>],
    pub(crate) chunk: Chunk<'a>,
    /// Tokens of the prefill: of all steps before the mistake is made.
    pub(crate) prefill: usize,
    pub(crate) model: &'a Model,
    /// In what arithmetic.
    pub(crate) profile: Profile,
    /// Further mistakes in the same step: what carries it out is wrong in turn.
    pub(crate) inner: &'a [&'a Edit],
    /// Of the stored elements of the step's matrix, the first that was not loaded and is 0.
    pub(crate) unread_from: Option<usize>,
}

impl At<'_> {
    /// The step with mistakes made in it, the first around the others.
    pub(crate) fn with(&self, edits: &[&Edit]) -> Out {
        match edits.split_first() {
            None => self.right(),
            Some((first, inner)) => first.value(&At { inner, ..*self }),
        }
    }

    /// The step as it should be.
    pub(crate) fn right(&self) -> Out {
        self.run(self.step, self.inputs)
    }

    /// Another step in the same place.
    fn run(&self, step: &Step, inputs: &[ArrayD<f64>]) -> Out {
        self.run_as(self.profile, step, inputs)
    }

    fn run_as(&self, profile: Profile, step: &Step, inputs: &[ArrayD<f64>]) -> Out {
        if let Some((edit, inner)) = self.inner.split_first().filter(|_| step.tap == self.step.tap) {
            return edit.value(&At { step, inputs, profile, inner, ..*self });
        }
        if let (Op::Softmax, [scores]) = (&step.op, inputs)
            && scores.rows().into_iter().any(|row| row.iter().all(|x| *x == f64::NEG_INFINITY))
        {
            return self.keyless(profile, step, scores);
        }
        let weights = &self.model.weights;
        if profile == Profile::Exact {
            let views: Vec<_> = inputs.iter().map(|x| x.view()).collect();
            return eval_step(step, &views, self.chunk, weights).ok();
        }
        let narrow: Vec<ArrayD<f32>> = inputs.iter().map(|x| x.mapv(|x| x as f32)).collect();
        let views: Vec<_> = narrow.iter().map(|x| x.view()).collect();
        Some(eval_step_in(profile, step, &views, self.chunk, weights).ok()?.mapv(f64::from))
    }

    /// A softmax that has rows without a key: NaN, as 0/0 gives.
    fn keyless(&self, profile: Profile, step: &Step, scores: &ArrayD<f64>) -> Out {
        let mut open = scores.clone();
        let hidden = |row: ndarray::ArrayView1<'_, f64>| row.iter().all(|x| *x == f64::NEG_INFINITY);
        open.rows_mut().into_iter().filter(|row| hidden(row.view())).for_each(|mut row| row.fill(0.0));
        let mut out = self.run_as(profile, step, &[open])?;
        let rows = out.rows_mut().into_iter().zip(scores.rows());
        rows.filter(|(_, row)| hidden(row.view())).for_each(|(mut to, _)| to.fill(f64::NAN));
        Some(out)
    }

    /// The step on other inputs.
    fn on(&self, inputs: &[ArrayD<f64>]) -> Out {
        self.run(self.step, inputs)
    }

    /// The step with another operation.
    fn doing(&self, op: Op) -> Out {
        self.run(&Step { op, ..self.step.clone() }, self.inputs)
    }

    fn input(&self, at: usize) -> Option<&ArrayD<f64>> {
        self.inputs.get(at)
    }

    /// Values as the profile's arithmetic keeps them.
    fn kept(&self, x: ArrayD<f64>) -> ArrayD<f64> {
        match half(self.profile) {
            Some(half) => x.mapv(|x| f64::from(half.round(x as f32))),
            None if self.profile == Profile::Exact => x,
            None => x.mapv(|x| f64::from(x as f32)),
        }
    }

    /// Weight `at` of the step, a vector.
    fn vector(&self, at: usize) -> Option<Vec<f64>> {
        let view = self.model.weights.view(*self.step.weights.get(at)?).ok()?;
        let half = half(self.profile);
        let values = view.vector::<f64>();
        Some(values.iter().map(|&x| half.map_or(x, |half| f64::from(half.round(x as f32)))).collect())
    }

    /// The step with its stored elements from `first` on left at 0.
    fn unread_from(&self, first: usize) -> Out {
        let at = At { unread_from: Some(first), ..*self };
        match self.inner.split_first() {
            Some((edit, inner)) => edit.value(&At { inner, ..at }),
            None => {
                let width = self.matrix_shape()?[1];
                at.remapped(|o, i| Some(o * width + i))
            }
        }
    }

    /// The product with the step's matrix \[out,in\] after its elements were taken from elsewhere: element (o, i) is number `index(o, i)` of the
    /// stored ones, or 0.
    fn remapped(&self, index: impl Fn(usize, usize) -> Option<usize> + Sync) -> Out {
        let shape = self.matrix_shape()?;
        self.product(
            |flat, row, o| {
                row.iter_mut()
                    .enumerate()
                    .for_each(|(i, w)| *w = index(o, i).and_then(|at| flat.get(at)).copied().unwrap_or(0.0));
            },
            shape,
        )
    }

    /// x · W where the stored elements are taken as \[in,out\]; the matrix is read once, in a fixed number of parts.
    fn reversed(&self) -> Out {
        const PARTS: usize = 16;
        let [out, inner] = self.matrix_shape()?;
        let view = self.model.weights.view(*self.step.weights.first()?).ok()?;
        let x = self.multiplied()?;
        let rows = out.div_ceil(PARTS);
        let part = |part: usize| -> Array2<f64> {
            let mut y = Array2::<f64>::zeros((x.nrows(), out));
            let mut first = part * rows;
            while first < ((part + 1) * rows).min(out) {
                let last = (first + 16).min((part + 1) * rows).min(out);
                let tile = view.rows::<f32>(first..last);
                let Some(mut tile) = tile.as_slice() else { return y };
                let mut at = first * inner;
                while !tile.is_empty() {
                    let (i, j) = (at / out, at % out);
                    let (run, rest) = tile.split_at(tile.len().min(out - j));
                    for (mut y, x) in y.rows_mut().into_iter().zip(x.column(i)) {
                        let Some(y) = y.as_slice_mut() else { continue };
                        y[j..j + run.len()].iter_mut().zip(run).for_each(|(y, &w)| *y += x * f64::from(w));
                    }
                    (at, tile) = (at + run.len(), rest);
                }
                first = last;
            }
            y
        };
        let parts: Vec<Array2<f64>> = (0..PARTS).into_par_iter().map(part).collect();
        self.biased(parts.into_iter().reduce(|a, b| a + b)?)
    }

    /// The product with the step's matrix after each of its blocks was rewritten.
    fn unpacked(&self, kind: ggml::Type, rewrite: fn(ggml::Type, &mut [u8])) -> Out {
        let view = self.model.weights.view(*self.step.weights.first()?).ok()?;
        let mut bytes = view.bytes().to_vec();
        bytes.chunks_exact_mut(kind.block_bytes()).for_each(|block| rewrite(kind, block));
        let view = view.with_bytes(&bytes).filter(WeightView::is_plain)?;
        let read =
            |row: &mut [f32], o: usize| row.iter_mut().zip(&view.rows::<f32>(o..o + 1)).for_each(|(to, &x)| *to = x);
        self.product_by(read, self.matrix_shape()?)
    }

    /// The product with a matrix \[out,in\] whose rows are made from all stored elements, and the bias; of an embedding, its rows.
    fn product(&self, row: impl Fn(&[f32], &mut [f32], usize) + Sync, shape: [usize; 2]) -> Out {
        let view = self.model.weights.view(*self.step.weights.first()?).ok()?;
        let mut flat = view.rows::<f32>(0..view.shape()[0]);
        if let Some(unread) = self.unread_from {
            flat.as_slice_mut()?.get_mut(unread..)?.fill(0.0);
        }
        let flat = flat.as_slice()?;
        self.product_by(|out, o| row(flat, out, o), shape)
    }

    /// The same, each row made by itself.
    fn product_by(&self, row: impl Fn(&mut [f32], usize) + Sync, shape: [usize; 2]) -> Out {
        if let Op::Embedding { scale } = self.step.op {
            let mut out = Array2::<f32>::zeros((self.chunk.tokens.len(), shape[1]));
            for (&token, mut out) in self.chunk.tokens.iter().zip(out.rows_mut()) {
                row(out.as_slice_mut()?, token as usize);
            }
            return Some(self.kept(out.into_dyn().mapv(|x| f64::from(x) * scale)));
        }
        let mut matrix = Array2::<f32>::zeros((shape[0], shape[1]));
        let rows: Vec<_> = matrix.as_slice_mut()?.chunks_mut(shape[1].max(1)).enumerate().collect();
        rows.into_par_iter().for_each(|(o, out)| row(out, o));
        if let Some(half) = half(self.profile) {
            matrix.mapv_inplace(|x| half.round(x));
        }
        self.times(matrix.view())
    }

    /// The step's input times a matrix \[out,in\], and the step's own bias.
    fn times(&self, matrix: ArrayView2<'_, f32>) -> Out {
        let x = self.multiplied()?;
        self.biased(if self.profile == Profile::Exact {
            core::linear(x.view(), matrix.mapv(f64::from).view(), None).ok()?
        } else {
            core::linear(x.mapv(|x| x as f32).view(), matrix, None).ok()?.mapv(f64::from)
        })
    }

    /// The step's input as the profile multiplies it with the step's matrix.
    fn multiplied(&self) -> Option<Array2<f64>> {
        let x = flat(self.input(0)?)?;
        let Profile::Ggml { .. } = self.profile else { return Some(x.to_owned()) };
        let storage = self.model.weights.view(*self.step.weights.first()?).ok()?.storage();
        Some(ggml_activations(x.mapv(|x| x as f32).view(), storage).ok()?.mapv(f64::from))
    }

    /// A product \[T,out\] as the step leaves it: the bias added, rounded, split into heads.
    fn biased(&self, mut out: Array2<f64>) -> Out {
        if let Some(bias) = self.vector(1) {
            out += &ndarray::Array1::from_vec(bias);
        }
        self.split(self.kept(out.into_dyn()))
    }

    /// \[T,H·d\] as \[T,H,d\] where the step has heads.
    fn split(&self, out: ArrayD<f64>) -> Out {
        let Op::Linear { heads: Some(heads) } = self.step.op else { return Some(out) };
        let tokens = out.shape()[0];
        let width = out.len() / tokens.max(1) / heads.max(1);
        out.into_shape_with_order(vec![tokens, heads, width]).ok()
    }

    /// Rows and columns of the step's matrix.
    fn matrix_shape(&self) -> Option<[usize; 2]> {
        matrix_shape(self.model, self.step)
    }
}

/// Rows and columns of a step's matrix.
fn matrix_shape(model: &Model, step: &Step) -> Option<[usize; 2]> {
    model.weights.shape(*step.weights.first()?)?.try_into().ok()
}

/// What the profile rounds every result to.
fn half(profile: Profile) -> Option<Half> {
    match profile {
        Profile::F16 => Some(Half::F16),
        Profile::Bf16 => Some(Half::BF16),
        _ => None,
    }
}

/// All axes but the first merged.
fn flat(x: &ArrayD<f64>) -> Option<ArrayView2<'_, f64>> {
    let rows = x.shape().first().copied()?;
    x.view().into_shape_with_order((rows, x.len() / rows.max(1))).ok()
}

/// What the mistakes of a step are gathered in.
pub(crate) struct List<'a> {
    pub(crate) model: &'a Model,
    pub(crate) step: &'a Step,
    edits: Vec<Edit>,
}

impl List<'_> {
    fn add(
        &mut self,
        id: &'static str,
        params: Params,
        wrong: impl Fn(&At<'_>) -> Out + Send + Sync + 'static,
    ) -> &mut Edit {
        let (tap, reads) = (self.step.tap, self.step.reads.clone());
        self.edits.push(Edit { id, params, tap, reads, with: &[], wrong: Arc::new(wrong), tune: None, onset: None });
        self.edits.last_mut().expect("just pushed")
    }

    /// A mistake with a parameter `name` that may have any value.
    fn tunable(
        &mut self,
        id: &'static str,
        name: &'static str,
        value: f64,
        wrong: impl Fn(f64, &At<'_>) -> Out + Send + Sync + 'static,
    ) -> &mut Edit {
        let wrong = Arc::new(wrong);
        let of = wrong.clone();
        let edit = self.add(id, vec![(name, serde_json::json!(value))], move |at| of(value, at));
        edit.tune = Some(Tune { name, value, whole: false, wrong });
        edit
    }

    /// Another operation in the step's place, with a parameter `name` that may have any value.
    fn op_with(
        &mut self,
        id: &'static str,
        name: &'static str,
        value: f64,
        op: impl Fn(f64) -> Op + Send + Sync + 'static,
    ) {
        let right = self.step.op.clone();
        self.tunable(id, name, value, move |x, at| at.doing(changed(&right, &op(x), &at.step.op)));
    }

    /// Another operation in the step's place.
    fn op(&mut self, id: &'static str, params: Params, op: Op) -> &mut Edit {
        let right = self.step.op.clone();
        self.add(id, params, move |at| at.doing(changed(&right, &op, &at.step.op)))
    }

    /// The same operation on another tap.
    fn read(&mut self, id: &'static str, params: Params, reads: &[Tap]) -> &mut Edit {
        let edit = self.add(id, params, |at| at.right());
        edit.reads = reads.to_vec();
        edit
    }

    /// The same operation with other weights.
    fn weights(&mut self, id: &'static str, params: Params, weights: Vec<WeightRef>) {
        self.add(id, params, move |at| at.run(&Step { weights: weights.clone(), ..at.step.clone() }, at.inputs));
    }

    fn site(&self) -> Site {
        self.step.tap.site
    }

    /// A tap of the same layer, where the model has it.
    fn sibling(&self, site: Site) -> Option<Tap> {
        let tap = Tap::layer(self.step.tap.layer?, site);
        self.model.plan.step(tap).map(|step| step.tap)
    }

    /// The residual stream before the step's layer.
    fn stream(&self) -> Option<Tap> {
        match self.step.tap.layer? {
            0 => Some(Tap { layer: None, site: Site::H0 }),
            layer => Some(Tap::layer(layer - 1, Site::H)),
        }
    }

    /// The layers but `own`, and what each is called from there: the next and the previous, around the ends, then the rest by number.
    fn other_layers(&self, own: u32) -> Vec<(u32, Value)> {
        let layers = self.model.plan.dims.layers;
        let (next, previous) = ((own + 1) % layers, (own + layers - 1) % layers);
        let rest = (0..layers).filter(|l| ![own, next, previous].contains(l)).map(|l| (l, l.into()));
        [(next, "next".into()), (previous, "previous".into())]
            .into_iter()
            .chain(rest)
            .filter(|(l, _)| *l != own)
            .collect()
    }

    /// A weight of the same layer.
    fn weight(&self, role: Role) -> WeightRef {
        WeightRef { layer: self.step.tap.layer, role }
    }
}

/// The mistakes that can be made in `step`, the most evidenced first.
pub(crate) fn listed(model: &Model, step: &Step, tokens: &[Vec<u32>]) -> Vec<Edit> {
    let mut list = List { model, step, edits: Vec::new() };
    match &step.op {
        Op::Embedding { .. } => embedding::listed(&mut list, tokens),
        Op::RmsNorm { eps } => norm::listed(&mut list, *eps),
        Op::Linear { .. } | Op::Head => linear::listed(&mut list),
        Op::Rope(rope) => rope::listed(&mut list, rope),
        Op::Qk => attention::products(&mut list),
        Op::Scores(scores) => attention::scores(&mut list, scores),
        Op::Softmax => attention::softmax(&mut list),
        Op::Context => attention::context(&mut list),
        Op::Gated { activation } => feed_forward::listed(&mut list, *activation),
        Op::Residual { .. } => residual::listed(&mut list),
    }
    stored::listed(&mut list);
    precision::listed(&mut list);
    list.edits
}

/// What a step read and what the candidate made of it.
pub(crate) struct Seen<'a> {
    pub(crate) inputs: &'a [ArrayD<f64>],
    /// The candidate's value.
    pub(crate) own: &'a ArrayD<f64>,
    /// The right one.
    pub(crate) right: &'a ArrayD<f64>,
    pub(crate) chunk: Chunk<'a>,
}

/// Mistakes of `step` whose parameter is read off the numbers.
pub(crate) fn fitted(model: &Model, step: &Step, seen: &Seen<'_>) -> Vec<Edit> {
    let mut list = List { model, step, edits: Vec::new() };
    match &step.op {
        Op::Embedding { .. } => embedding::fitted(&mut list, seen),
        Op::RmsNorm { eps } => norm::fitted(&mut list, *eps, seen),
        Op::Linear { .. } if matches!(list.site(), Site::FfnGate | Site::FfnUp) => {
            feed_forward::fitted_projection(&mut list, seen);
        }
        Op::Linear { .. } => {}
        Op::Head => linear::fitted(&mut list, seen),
        Op::Rope(rope) => rope::fitted(&mut list, rope, seen),
        Op::Gated { activation } => feed_forward::fitted(&mut list, *activation, seen),
        Op::Qk | Op::Softmax | Op::Context => {}
        Op::Scores(scores) => attention::fitted(&mut list, scores, seen),
        Op::Residual { .. } => residual::fitted(&mut list, seen),
    }
    list.edits
}

/// `now` with what tells `wrong` from `right`.
fn changed(right: &Op, wrong: &Op, now: &Op) -> Op {
    fn pick<T: PartialEq + Clone>(right: &T, wrong: &T, now: &T) -> T {
        if right == wrong { now.clone() } else { wrong.clone() }
    }
    match (right, wrong, now) {
        (Op::Rope(r), Op::Rope(w), Op::Rope(n)) => Op::Rope(Rope {
            pairing: pick(&r.pairing, &w.pairing, &n.pairing),
            rotary_dim: pick(&r.rotary_dim, &w.rotary_dim, &n.rotary_dim),
            theta: pick(&r.theta, &w.theta, &n.theta),
            scaling: pick(&r.scaling, &w.scaling, &n.scaling),
        }),
        (Op::Scores(r), Op::Scores(w), Op::Scores(n)) => Op::Scores(Scores {
            scale: pick(&r.scale, &w.scale, &n.scale),
            softcap: pick(&r.softcap, &w.softcap, &n.softcap),
            causal: pick(&r.causal, &w.causal, &n.causal),
            window: pick(&r.window, &w.window, &n.window),
        }),
        _ => wrong.clone(),
    }
}

/// c of own = c · right over what is finite in both.
fn factor(own: &ArrayD<f64>, right: &ArrayD<f64>) -> Option<f64> {
    let finite = own.iter().zip(right).filter(|(o, r)| o.is_finite() && r.is_finite());
    let (dot, energy) = finite.fold((0.0, 0.0), |(d, e), (o, r)| (d + o * r, e + r * r));
    (energy > 0.0 && (dot / energy).is_finite()).then(|| dot / energy)
}

/// A number as few digits as it has to be known by: the nearest of one, two or three digits if it is within `slack` of it.
pub(crate) fn snapped(x: f64, slack: f64) -> f64 {
    for digits in 1..=6 {
        let near: f64 = format!("{x:.*e}", digits - 1).parse().unwrap_or(x);
        if (near - x).abs() <= slack * x.abs() {
            return near;
        }
    }
    x
}

/// `x` with its last axis handled row by row.
fn by_row(x: &ArrayD<f64>, mut change: impl FnMut(&mut [f64])) -> ArrayD<f64> {
    let mut out = x.as_standard_layout().into_owned();
    let width = out.shape().last().copied().unwrap_or(1).max(1);
    if let Some(all) = out.as_slice_mut() {
        all.chunks_mut(width).for_each(&mut change);
    }
    out
}

/// Rows of the first axis in another order, or copies of them.
fn rows(x: &ArrayD<f64>, order: &[usize]) -> ArrayD<f64> {
    x.select(Axis(0), order)
}

/// \[T,H,d\] as \[T,H·d\], or what has two axes already.
fn merged(x: ArrayD<f64>) -> Option<Array2<f64>> {
    let rows = x.shape().first().copied()?;
    let columns = x.len() / rows.max(1);
    x.as_standard_layout().into_owned().into_shape_with_order((rows, columns)).ok()?.into_dimensionality::<Ix2>().ok()
}
